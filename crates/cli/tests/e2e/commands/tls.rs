//! TLS, with the clients that people have: the command, its SDK, and curl.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::commands::rig::Server;
use crate::commands::tokens::NO_TOKEN;
use crate::rig::{Folder, Ran, forebay, run};

const ADMIN: &str = "an-admin-token-for-the-tests-of-the-binary";

struct Secure {
    folder: Folder,
    server: Server,
}

fn certificate(folder: &Folder, name: &str) {
    let (cert, key) = (folder.file(&format!("{name}.pem")), folder.file(&format!("{name}.key")));
    forebay(
        &[
            "cert",
            "self-signed",
            "--name",
            "localhost",
            "--name",
            "127.0.0.1",
            "--cert",
            &cert,
            "--key",
            &key,
        ],
        "",
    )
    .good();
}

impl Secure {
    fn start(name: &str) -> Secure {
        let folder = Folder::made(name);
        certificate(&folder, "server");
        let (cert, key) = (folder.file("server.pem"), folder.file("server.key"));
        let server = Server::start_with(&["--memory", "--tls-cert", &cert, "--tls-key", &key]);
        Secure { folder, server }
    }

    fn run(&self, ca: &str, words: &[&str]) -> Ran {
        let server = format!("https://{}", self.server.address);
        run(words, "", &[("FOREBAY_SERVER", &server), ("FOREBAY_CA", &self.folder.file(ca))])
    }

    /// Status and version of HTTP that curl gets.
    fn curl(&self, words: &[&str]) -> Option<String> {
        let output = Command::new("curl")
            .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code} %{http_version}"])
            .args(["--cacert", &self.folder.file("server.pem")])
            .args(words)
            .arg(format!("https://{}/streams", self.server.address))
            .output();
        match output {
            Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
            Err(_) if std::env::var_os("CI").is_some() => panic!("there is no curl"),
            Err(_) => None,
        }
    }
}

#[test]
fn the_command_and_the_sdk_speak_tls() {
    let secure = Secure::start("tls");
    secure.run("server.pem", &["pub", "work", "one", "two"]).good();
    secure.run("server.pem", &["group", "create", "work/team"]).good();
    let list = secure.run("server.pem", &["stream", "list", "-o", "json"]).json();
    assert_eq!(list["streams"][0]["messages"], 2, "{list}");
    certificate(&secure.folder, "other");
    secure.run("other.pem", &["stream", "list"]).refused(7, &["invalid peer certificate", "--ca"]);
    secure.run("other.pem", &["pub", "work", "x"]).refused(7, &["invalid peer certificate", "--ca"]);
    // Without TLS there is no answer.
    let plain = run(&["stream", "list"], "", &[("FOREBAY_SERVER", &secure.server.address)]);
    assert_eq!(plain.code, 7, "{plain:?}");
}

#[test]
fn curl_speaks_both_versions_of_http_over_both_versions_of_tls() {
    let secure = Secure::start("curl");
    let Some(usual) = secure.curl(&[]) else { return };
    assert_eq!(usual, "200 2");
    assert_eq!(secure.curl(&["--http1.1"]).as_deref(), Some("200 1.1"));
    assert_eq!(secure.curl(&["--tls-max", "1.2"]).as_deref(), Some("200 2"));
    assert_eq!(secure.curl(&["--tlsv1.3"]).as_deref(), Some("200 2"));
    assert_eq!(secure.curl(&["--tls-max", "1.1"]).as_deref(), Some("000 0"), "older versions are refused");
    assert_eq!(secure.curl(&["--cacert", "/dev/null"]).as_deref(), Some("000 0"));
}

#[test]
fn a_client_is_recognised_by_its_certificate() {
    let folder = Folder::made("client-certificates");
    certificate(&folder, "server");
    for (name, host) in
        [("billing", "billing.internal"), ("other", "other.internal"), ("stranger", "billing.internal")]
    {
        let (cert, key) = (folder.file(&format!("{name}.pem")), folder.file(&format!("{name}.key")));
        forebay(&["cert", "self-signed", "--name", host, "--cert", &cert, "--key", &key], "").good();
    }
    let read = |name: &str| std::fs::read_to_string(folder.file(name)).expect("a file");
    let ca = folder.write("ca.pem", &(read("billing.pem") + &read("other.pem")));
    let names = folder.write("names", "# ours\nbilling.internal publish:orders-*\n");
    let (cert, key) = (folder.file("server.pem"), folder.file("server.key"));
    let words = ["--memory", "--require-auth", "--tls-cert", &cert, "--tls-key", &key];
    let of_clients = ["--tls-client-ca", &ca, "--tls-client-names", &names];
    let server = Server::start_with(&[&words[..], &of_clients].concat());
    let address = format!("https://{}", server.address);
    let with = |client: Option<&str>, words: &[&str]| {
        let files =
            client.map(|name| [folder.file(&format!("{name}.pem")), folder.file(&format!("{name}.key"))]);
        let mut variables = vec![("FOREBAY_SERVER", &*address), ("FOREBAY_CA", &*cert)];
        if let Some([cert, key]) = &files {
            variables.extend([("FOREBAY_CLIENT_CERT", &**cert), ("FOREBAY_CLIENT_KEY", &**key)]);
        }
        run(words, "", &variables)
    };
    with(Some("billing"), &["pub", "orders-eu", "x"]).good();
    let list = with(Some("billing"), &["stream", "list", "-o", "json"]).json();
    assert_eq!(list["streams"][0]["stream"], "orders-eu", "{list}");
    with(Some("billing"), &["pub", "work", "x"]).refused(12, &["billing.internal"]);
    with(Some("billing"), &["token", "list"]).refused(12, &["billing.internal"]);
    // Without a certificate, or with one whose name has no grants, a token is needed.
    for client in [None, Some("other")] {
        with(client, &["stream", "list"]).refused(12, &NO_TOKEN);
        with(client, &["pub", "orders-eu", "x"]).refused(12, &NO_TOKEN);
    }
    // The right name is nothing without the authority.
    assert_eq!(with(Some("stranger"), &["stream", "list"]).code, 7);
    assert_eq!(with(Some("stranger"), &["pub", "orders-eu", "x"]).code, 7);
    folder.write("names", "other.internal publish:orders-*\n");
    let begun = Instant::now();
    while with(Some("other"), &["pub", "orders-eu", "x"]).code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the new name is not known");
    }
    with(Some("billing"), &["stream", "list"]).refused(12, &NO_TOKEN);
}

#[test]
fn a_certificate_is_replaced_while_clients_work() {
    let secure = Secure::start("rotated");
    secure.run("server.pem", &["pub", "work", "x"]).good();
    certificate(&secure.folder, "next");
    let (old, new) = (secure.folder.file("old.pem"), secure.folder.file("next.pem"));
    std::fs::copy(secure.folder.file("server.pem"), old).expect("it can be copied");
    for (from, to) in [("next.key", "server.key"), ("next.pem", "server.pem")] {
        std::fs::copy(secure.folder.file(from), secure.folder.file(to)).expect("it can be replaced");
    }
    let begun = Instant::now();
    let mut replaced = false;
    while !replaced {
        assert!(begun.elapsed() < Duration::from_secs(30), "the certificate is not read again");
        // One of the two is always the right one.
        replaced = secure.run("next.pem", &["pub", "work", "x"]).code == 0;
        assert!(
            replaced || secure.run("old.pem", &["pub", "work", "x"]).code == 0 || {
                secure.run("next.pem", &["pub", "work", "x"]).code == 0
            }
        );
    }
    secure.run("old.pem", &["pub", "work", "x"]).refused(7, &[]);
    assert!(std::path::Path::new(&new).exists());
}

#[test]
fn files_that_are_no_certificate_keep_the_server_from_starting() {
    let folder = Folder::made("no-certificate");
    certificate(&folder, "one");
    certificate(&folder, "two");
    let serve = |cert: &str, key: &str| {
        let (cert, key) = (folder.file(cert), folder.file(key));
        run(
            &["serve", "--memory", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key],
            "",
            &[],
        )
    };
    serve("one.pem", "two.key").refused(2, &["cannot be used together", "one.pem", "two.key"]);
    serve("one.key", "one.key").refused(2, &["must have at least one certificate"]);
    serve("none.pem", "one.key").refused(2, &["cannot read the certificate", "none.pem"]);
    run(&["serve", "--memory", "--tls-cert", &folder.file("one.pem")], "", &[])
        .refused(2, &["tls_cert and tls_key must be given together"]);
    let again =
        forebay(&["cert", "self-signed", "--cert", &folder.file("one.pem"), "--key", &folder.file("x")], "");
    again.refused(1, &["cannot create the file"]);
}

#[test]
fn a_token_goes_over_tls() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::made("tls-token");
    certificate(&folder, "server");
    let token = folder.write("admin.token", ADMIN);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (cert, key) = (folder.file("server.pem"), folder.file("server.key"));
    let words =
        ["--memory", "--require-auth", "--admin-token-file", &token, "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::start_with(&words);
    let address = format!("https://{}", server.address);
    let environment = [("FOREBAY_SERVER", &*address), ("FOREBAY_CA", &cert), ("FOREBAY_TOKEN", ADMIN)];
    run(&["pub", "work", "x"], "", &environment).good();
    run(&["stream", "list"], "", &environment).good();
    run(&["pub", "work", "x"], "", &environment[..2]).refused(12, &NO_TOKEN);
}
