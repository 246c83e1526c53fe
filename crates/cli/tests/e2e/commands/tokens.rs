//! Tokens and access keys, as an administrator and the clients use them.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::rig::Server;
use crate::rig::{Folder, Ran, binary, run};

pub(crate) const ADMIN: &str = "an-admin-token-for-the-tests-of-the-binary";

/// What a command without a token is told: what to do, and no header.
pub(crate) const NO_TOKEN: [&str; 3] = ["set FOREBAY_TOKEN", "--token-file", "run `forebay login`"];

/// A file that only its owner can read.
pub(crate) fn private(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.write(name, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    path
}

/// A server that asks for a token, and a folder for it.
fn start(folder: &Folder) -> Server {
    let file = private(folder, "admin.token", ADMIN);
    let (audit, data) = (folder.file("audit.log"), folder.file("data"));
    let words = ["--require-auth", "--admin-token-file", &file, "--audit-file", &audit, "--data", &data];
    Server::start_with(&words)
}

pub(crate) fn with(server: &Server, token: &str, words: &[&str]) -> Ran {
    run(words, "", &[("FOREBAY_SERVER", &server.address), ("FOREBAY_TOKEN", token)])
}

#[test]
fn a_token_is_created_used_listed_and_revoked() {
    let folder = Folder::made("tokens");
    let server = start(&folder);
    server.run(&["stream", "list"]).refused(12, &NO_TOKEN);
    server.run(&["pub", "orders-eu", "x"]).refused(12, &NO_TOKEN);
    with(&server, "wrong", &["stream", "list"]).refused(12, &["not one of this server's"]);

    let create =
        ["token", "create", "ci", "--may", "publish:orders-*,consume:orders-eu/*", "--expires", "90d"];
    let created = with(&server, ADMIN, &create);
    assert!(created.said.contains("may publish:orders-*,consume:orders-eu/*"), "{created:?}");
    let token = created.good().trim().to_owned();
    assert!(token.starts_with("fby_") && token.len() == 64, "{token}");
    with(&server, &token, &["pub", "orders-eu", "x"]).good();
    with(&server, &token, &["pub", "invoices", "x"]).refused(12, &["`publish`", "who=`ci`", "invoices"]);
    let delete = ["stream", "delete", "orders-eu", "--yes"];
    with(&server, &token, &delete)
        .refused(12, &["the right `configure` is missing", "who=`ci`", "what=`orders-eu`"]);
    with(&server, &token, &["token", "list"]).refused(12, &["the right `admin` is missing", "who=`ci`"]);
    with(&server, ADMIN, &["stream", "create", "secret"]).good();
    let seen = with(&server, &token, &["stream", "list"]).good();
    assert!(seen.contains("orders-eu") && !seen.contains("secret"), "{seen}");

    let listed = with(&server, ADMIN, &["token", "list", "-o", "json"]).json();
    let one = &listed["credentials"][0];
    assert_eq!((&one["name"], &one["created_by"]), (&"ci".into(), &"admin".into()));
    assert!(one["last_used_at"].is_string() && one["expires_at"].is_string(), "{one}");
    assert!(!listed.to_string().contains(&token[21..]), "the secret is not told again");

    // It is there after a restart, until it is revoked.
    server.stop();
    let server = start(&folder);
    with(&server, &token, &["pub", "orders-eu", "y"]).good();
    with(&server, ADMIN, &["token", "revoke", "ci", "--yes"]).good();
    with(&server, &token, &["pub", "orders-eu", "z"]).refused(12, &["revoked"]);
    with(&server, ADMIN, &["token", "revoke", "ci", "--yes"]).refused(8, &["no such token"]);
    let log = server.stop();
    let said: String = log.iter().map(ToString::to_string).collect();
    assert!(!said.contains(&token[21..]) && !said.contains(ADMIN), "no secret is logged: {said}");
    let audit = std::fs::read_to_string(folder.file("audit.log")).expect("there is an audit");
    assert!(!audit.contains(&token[21..]) && !audit.contains(ADMIN), "no secret is recorded: {audit}");
    let records: Vec<Value> =
        audit.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let recorded = |who: &str, action: &str, outcome: &str, what: &str| {
        let is = |record: &Value, name: &str, text: &str| record[name] == text;
        records.iter().any(|record| {
            is(record, "who", who)
                && is(record, "action", action)
                && is(record, "outcome", outcome)
                && record["what"].as_str().is_some_and(|is| is.contains(what))
                && record["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:"))
        })
    };
    assert!(recorded("admin", "administer", "done", "create token"), "{audit}");
    assert!(recorded("admin", "administer", "done", "revoke "), "{audit}");
    assert!(recorded("admin", "create", "done", "secret"), "{audit}");
    assert!(recorded("ci", "delete", "denied", "orders-eu"), "{audit}");
    for entry in std::fs::read_dir(folder.file("data")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!has(&token[21..]) && !has(ADMIN), "{} has a token", path.display());
    }
}

#[test]
fn a_user_is_created_used_changed_and_revoked() {
    let folder = Folder::made("users");
    let server = start(&folder);
    let file = private(&folder, "alice.password", "correct horse battery\n");
    let create = ["user", "create", "alice", "--may", "publish:orders-*", "--password-file", &file];
    assert_eq!(with(&server, ADMIN, &create).good(), "", "a password that was given is not shown");
    with(&server, ADMIN, &create).refused(9, &["user alice already exists"]);
    let drawn = with(&server, ADMIN, &["user", "create", "bob", "--may", "view:*"]).good();
    assert_eq!(drawn.trim().len(), 32, "{drawn}");
    let empty = private(&folder, "empty", "\n");
    with(&server, ADMIN, &["user", "password", "bob", "--password-file", &empty])
        .refused(2, &["no password"]);
    let changed = with(&server, ADMIN, &["user", "password", "bob"]).good();
    assert_ne!(changed, drawn);
    let listed = with(&server, ADMIN, &["user", "list"]).good();
    assert!(listed.contains("usr_alice") && listed.contains("usr_bob"), "{listed}");
    with(&server, ADMIN, &["user", "revoke", "bob", "--yes"]).good();
    with(&server, ADMIN, &["user", "password", "bob"]).refused(8, &["no such user"]);
    let log: String = server.stop().iter().map(ToString::to_string).collect();
    let audit = std::fs::read_to_string(folder.file("audit.log")).expect("there is an audit");
    let secrets = ["correct horse", drawn.trim(), changed.trim()];
    assert!(
        !secrets.iter().any(|secret| log.contains(secret) || audit.contains(secret)),
        "none is written down"
    );
    for entry in std::fs::read_dir(folder.file("data")).expect("a folder") {
        let bytes = std::fs::read(entry.expect("an entry").path()).unwrap_or_default();
        // Most of a file is zeros, and a secret has none.
        for part in bytes.split(|byte| *byte == 0).filter(|part| part.len() > 12) {
            let text = String::from_utf8_lossy(part);
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "no secret is in the data folder");
        }
    }
    assert!(audit.contains("change password usr_bob") && audit.contains("create user usr_alice"), "{audit}");
}

#[test]
fn a_wrong_grant_is_named() {
    let folder = Folder::made("grants");
    let server = start(&folder);
    let create = |may: &str| with(&server, ADMIN, &["token", "create", "ci", "--may", may]);
    create("sing:orders").refused(2, &["action=`sing`"]);
    create("publish:orders/emails").refused(2, &["publish must name streams without groups"]);
    create("publish").refused(2, &["ACTION:PATTERN"]);
}

#[test]
fn a_consumer_ends_when_its_token_is_revoked() {
    let folder = Folder::made("ended");
    let server = start(&folder);
    with(&server, ADMIN, &["group", "create", "work/team"]).good();
    let token = with(&server, ADMIN, &["token", "create", "w", "--may", "consume:work/team"]).good();
    let mut child = binary()
        .args(["sub", "work/team", "--ack"])
        .envs([("FOREBAY_SERVER", &*server.address), ("FOREBAY_TOKEN", token.trim())])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let consumers = || {
        let group = with(&server, ADMIN, &["group", "show", "work/team", "-o", "json"]).json();
        group["consumers"].as_array().map_or(0, Vec::len)
    };
    let begun = Instant::now();
    while consumers() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the consumer does not join");
    }
    with(&server, ADMIN, &["token", "revoke", "w", "--yes"]).good();
    let revoked = Instant::now();
    while consumers() > 0 {
        assert!(revoked.elapsed() < Duration::from_secs(20), "the consumer stays");
    }
    let status = child.wait().expect("it ends");
    assert!(!status.success(), "{status:?}");
}

#[test]
fn the_admin_token_is_private_and_can_be_replaced() {
    let folder = Folder::made("admin");
    let open = folder.write("open.token", ADMIN);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let words = ["serve", "--memory", "--listen", "127.0.0.1:0", "--admin-token-file", &open];
    run(&words, "", &[]).refused(2, &["open to every user", "chmod 600"]);
    let short = private(&folder, "short.token", "short");
    let words = ["serve", "--memory", "--listen", "127.0.0.1:0", "--admin-token-file", &short];
    run(&words, "", &[]).refused(2, &["at least 32 visible ASCII characters", "characters=`5`"]);

    run(&["serve", "--memory", "--require-auth"], "", &[])
        .refused(2, &["require_auth is set", "--admin-token-file"]);
    let server = start(&folder);
    with(&server, ADMIN, &["token", "list"]).good();
    let other = "another-admin-token-that-replaces-the-first";
    private(&folder, "admin.token", other);
    let begun = Instant::now();
    while with(&server, other, &["token", "list"]).code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the new token is not accepted");
    }
    with(&server, ADMIN, &["token", "list"]).refused(12, &["not one of this server's"]);
}

#[test]
fn loopback_needs_no_token_unless_it_is_told_to() {
    let folder = Folder::made("loopback");
    let file = private(&folder, "admin.token", ADMIN);
    let server = Server::start_with(&["--memory", "--admin-token-file", &file]);
    server.run(&["pub", "work", "x"]).good();
    server.run(&["key", "create", "sqs", "--may", "worker:*"]).good();
    with(&server, "wrong", &["pub", "work", "x"]).refused(12, &["not one of this server's"]);
}

#[test]
fn a_login_is_kept_for_later_commands() {
    let folder = Folder::made("login");
    let server = start(&folder);
    let (config, contexts) = (folder.file("config"), folder.file("config/forebay/contexts.toml"));
    let kept = [("XDG_CONFIG_HOME", &*config)];
    run(&["login", "--server", &server.address], "wrong", &kept).refused(12, &["not one of this server's"]);
    assert!(!std::path::Path::new(&contexts).exists(), "a token that is not accepted is not kept");
    run(&["login", "--server", &server.address], ADMIN, &kept).good();
    let mode = std::fs::metadata(&contexts).expect("contexts").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    run(&["token", "list"], "", &kept).good();
    run(&["pub", "work", "x"], "", &kept).good();
    // The token is for its own server.
    let other = Folder::made("other-login");
    let other = start(&other);
    run(&["stream", "list", "--server", &other.address], "", &kept).refused(12, &NO_TOKEN);
    let text = || std::fs::read_to_string(&contexts).expect("contexts");
    assert!(text().contains(ADMIN) && text().contains("[servers.\"default\"]"), "{}", text());
    let listed = run(&["context", "list"], "", &kept).good();
    assert!(listed.contains("yes") && !listed.contains(ADMIN), "{listed}");
    run(&["token", "list", "--server", &server.address], "", &kept).good();
    // Another address under the name loses the token.
    run(&["login", "kept", "--server", &server.address], ADMIN, &kept).good();
    run(&["context", "add", "kept", &other.address], "", &kept).good();
    run(&["stream", "list", "--context", "kept"], "", &kept).refused(12, &NO_TOKEN);
    run(&["login", "--forget", "--context", "default"], "", &kept).good();
    run(&["token", "list", "--context", "default"], "", &kept).refused(12, &NO_TOKEN);
    assert!(!text().contains(ADMIN));
}

/// Keys of an issuer, and a token that it signed for the subject `billing`, good until the year 2100.
const ISSUER_KEYS: &str = concat!(
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"e2e","#,
    r#""x":"TCCKJxphtAbK4q1pHgsjsiHjDVy3KqpZQ9rDjkDq6fg"}]}"#,
);
const ISSUED: &str = concat!(
    "eyJhbGciOiJFZERTQSIsImtpZCI6ImUyZSJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwiYXVkIjoiZ",
    "m9yZWJheSIsInN1YiI6ImJpbGxpbmciLCJleHAiOjQxMDI0NDQ4MDB9.R2CoHbwte-fYHwtEyTYfUNiGT-bbkTTUgq",
    "gdMDaxQbMYEPcRnStGYUsUVjop8TWA2VmXxH98H1jCg3Lg3YtGAA",
);

#[test]
fn a_token_of_an_issuer_is_recognised() {
    let folder = Folder::made("jwt");
    let admin = private(&folder, "admin.token", ADMIN);
    let (keys, rights) = (folder.write("jwks.json", ISSUER_KEYS), folder.write("rights", "sub=x view:*\n"));
    run(&["serve", "--memory", "--jwt-keys", &keys], "", &[]).refused(2, &["must be given together"]);
    let issuer = ["--jwt-issuer", "https://id.example.com", "--jwt-audience", "forebay"];
    let files = ["--jwt-keys", &keys, "--jwt-rights", &rights];
    let wrong = ["--jwt-keys", &rights, "--jwt-rights", &rights];
    let serve = ["serve", "--memory", "--listen", "127.0.0.1:0"];
    run(&[&serve[..], &issuer, &wrong].concat(), "", &[]).refused(2, &["JSON Web Key Set"]);
    let words = ["--memory", "--require-auth", "--admin-token-file", &admin];
    let server = Server::start_with(&[&words[..], &issuer, &files].concat());
    let token = ISSUED;
    with(&server, token, &["pub", "orders-eu", "x"]).refused(12, &["not one of this server's"]);
    folder.write("rights", "sub=billing publish:orders-*\n");
    let begun = Instant::now();
    while with(&server, token, &["pub", "orders-eu", "x"]).code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the rights are not read again");
    }
    with(&server, token, &["pub", "invoices", "x"]).refused(12, &["who=`jwt:billing`", "`publish`"]);
}

#[test]
fn limits_come_from_a_file_that_is_read_again() {
    let folder = Folder::made("limits");
    let (admin, limits) = (private(&folder, "admin.token", ADMIN), folder.write("limits", "ci request=1\n"));
    let words = ["--memory", "--require-auth", "--admin-token-file", &admin, "--limits-file", &limits];
    let serve = [&["serve", "--listen", "127.0.0.1:0"][..], &words].concat();
    run(&serve, "", &[]).refused(2, &["a limit must be one of connections", "limit=`request=1`"]);
    folder.write("limits", "ci requests=1000\nstream:orders-* streams=1\n");
    let server = Server::start_with(&words);
    with(&server, ADMIN, &["token", "create", "ci", "--may", "publish:*"]).good();
    let listed = with(&server, ADMIN, &["token", "list"]).good();
    assert!(listed.contains("LIMITS") && listed.contains("requests=1000"), "{listed}");
    let create = |stream: &str| with(&server, ADMIN, &["stream", "create", stream]);
    create("orders-1").good();
    create("orders-2").refused(10, &["the number of streams is reached", "streams=1"]);
    folder.write("limits", "stream:orders-* streams=2\n");
    let begun = Instant::now();
    while create("orders-2").code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the limits are not read again");
    }
    let figures = with(&server, ADMIN, &["token", "list", "-o", "json"]).json();
    assert!(figures["credentials"][0]["shared_limits"].is_null(), "{figures}");
}

#[test]
fn a_token_may_have_limits_of_its_own() {
    let folder = Folder::made("own-limits");
    let server = start(&folder);
    let create = |limit: &str| {
        with(&server, ADMIN, &["token", "create", "batch", "--may", "publish:*", "--limit", limit])
    };
    create("requests=x").refused(2, &["requests must be a whole number of at least 1"]);
    let created = create("requests=1,in_flight=2");
    assert!(created.said.contains("limits requests=1,in_flight=2"), "{created:?}");
    let token = created.good().trim().to_owned();
    let listed = with(&server, ADMIN, &["token", "list"]).good();
    assert!(listed.contains("requests=1,in_flight=2") && !listed.contains("shared"), "{listed}");
    let is_refused = || {
        let ran = with(&server, &token, &["stream", "list"]);
        (ran.code == 10).then(|| ran.refused(10, &["requests a second", "limit=`requests=1`"]))
    };
    let begun = Instant::now();
    while is_refused().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never reaches its limit");
    }
    // They are stored with it.
    server.stop();
    let server = start(&folder);
    let listed = with(&server, ADMIN, &["token", "list", "-o", "json"]).json();
    assert_eq!(listed["credentials"][0]["limits"], "requests=1,in_flight=2", "{listed}");
}
