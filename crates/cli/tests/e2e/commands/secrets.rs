//! Secrets that are planted in everything that clients send: the server writes none of them into its log, its metrics,
//! its errors or its audit, and the commands print none.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::commands::rig::Server;
use crate::rig::{Folder, run};

/// The beginning of every text that is planted.
const PLANTED: &str = "planted-";
const ADMIN: &str = "planted-admin-token-of-more-than-32-characters";
const WRONG: &str = "planted-wrong-token-of-more-than-32-characters";

/// Sends a request, and answers with everything that came back.
fn ask(server: &Server, head: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut socket = TcpStream::connect(&server.address).expect("the server listens");
    let mut request = format!("{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    socket.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("it is answered");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Every file below a folder.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn secrets_and_contents_are_written_nowhere() {
    let folder = Folder::made("secrets");
    let file = folder.write("admin.token", ADMIN);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (audit, data) = (folder.file("audit.log"), folder.file("data"));
    let words = [
        "--require-auth",
        "--admin-token-file",
        &file,
        "--audit-file",
        &audit,
        "--audit-stream",
        "--data",
        &data,
    ];
    let server = Server::start_with(&[&words[..], &["--log-level", "debug"]].concat());
    let with = |token: &str, words: &[&str]| {
        run(words, "", &[("FOREBAY_SERVER", &server.address), ("FOREBAY_TOKEN", token)])
    };
    let may = "publish+consume+triage:work";
    let token = with(ADMIN, &["token", "create", "ci", "--may", may]).good().trim().to_owned();
    let key = with(ADMIN, &["key", "create", "app", "--may", "worker:*"]).good();
    let key = key.lines().find_map(|line| line.strip_prefix("aws_secret_access_key")).expect("a secret");
    let key = key.trim_start_matches([' ', '=']).to_owned();
    // The secret may have an underscore of its own.
    let secret = token.splitn(3, '_').last().expect("a secret").to_owned();

    let mut told = Vec::new();
    let bearer = |token: &str| format!("Bearer {token}");
    let json = ("content-type", "application/json");
    let (good, wrong, admin) = (bearer(&token), bearer(WRONG), bearer(ADMIN));
    // Of calls that are done, the ones that tell no contents.
    let message =
        r#"{"messages":[{"key":"planted-key","headers":{"h":"planted-header"},"body":"planted-body"}]}"#;
    let published = ask(&server, "POST /streams/work/messages", &[("authorization", &good), json], message);
    assert!(published.starts_with("HTTP/1.1 201"), "{published}");
    told.push(published);
    for path in ["/credentials", "/streams", "/streams/work", "/groups", "/server", "/metrics"] {
        told.push(ask(&server, &format!("GET {path}"), &[("authorization", &admin)], ""));
    }
    // Errors: of clients that are not known, of rights, and of requests that are wrong with a secret in them.
    for (head, headers, body, status) in [
        ("GET /streams", &[("authorization", &*wrong)][..], "", 401),
        ("GET /streams", &[("authorization", "Basic cGxhbnRlZC1iYXNpYzpwbGFudGVkLWJhc2lj")], "", 401),
        ("GET /streams", &[("authorization", "planted-scheme planted-value")], "", 401),
        ("GET /streams", &[("cookie", "forebay_session=planted-cookie")], "", 401),
        ("GET /metrics", &[("authorization", &good)], "", 403),
        ("POST /streams/other/messages", &[("authorization", &good), json], message, 403),
        (
            "POST /streams/work/messages",
            &[("authorization", &good), json],
            r#"{"messages":[planted-json"#,
            400,
        ),
        (
            "POST /streams/work/messages",
            &[("authorization", &good), json],
            r#"{"messages":["planted-text"]}"#,
            400,
        ),
        (
            "POST /ui/sign-in",
            &[("content-type", "application/x-www-form-urlencoded")],
            &format!("token={WRONG}"),
            401,
        ),
        ("POST /ui/sign-in", &[json], r#"{"token":"planted-form"}"#, 400),
    ] {
        let answer = ask(&server, head, headers, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
        told.push(answer);
    }
    for words in [&["stream", "list"][..], &["pub", "work", "planted-argument"]] {
        let refused = with(WRONG, words).refused(12, &["not one of this server's"]);
        told.extend([refused.printed, refused.said]);
    }
    for words in [&["token", "list", "-o", "json"][..], &["key", "list"], &["group", "list"]] {
        told.push(with(ADMIN, words).good());
    }
    with(ADMIN, &["stream", "delete", "work", "--yes"]).good();
    with(ADMIN, &["token", "revoke", "ci", "--yes"]).good();
    // The stream of the audit has the same, for administrators alone.
    let path = "GET /streams/$audit/messages?limit=1000";
    let begun = Instant::now();
    loop {
        let audited = ask(&server, path, &[("authorization", &admin)], "");
        assert!(audited.starts_with("HTTP/1.1 200"), "{audited}");
        if audited.contains("revoke ") {
            assert!(audited.contains("forebay.audit") && audited.contains("create token"), "{audited}");
            told.push(audited);
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "the record does not come: {audited}");
    }
    let reader = with(ADMIN, &["token", "create", "reader", "--may", "read:*,read+operate:$*"]).good();
    let reader = bearer(reader.trim());
    assert!(ask(&server, path, &[("authorization", &reader)], "").starts_with("HTTP/1.1 403"));
    told.push(serde_json::to_string(&server.stop()).expect("the log"));
    told.push(std::fs::read_to_string(&audit).expect("the audit"));
    assert!(told.last().is_some_and(|audit| audit.contains("\"revoke ")), "the audit was written");
    for text in &told {
        for planted in [PLANTED, &token, &secret, &key] {
            assert!(!text.contains(planted), "{planted} is in {text}");
        }
    }
    // The log of the server has a hash of the token. The secret of an access key signs, and has to be there.
    for path in files(data.as_ref()) {
        let bytes = std::fs::read(&path).expect("a file");
        let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!has(&secret) && !has(ADMIN), "{} has a token", path.display());
    }
}
