//! TLS, with the clients that people have: the command, its SDK, and curl.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::commands::rig::Server;
use crate::commands::tokens::{NO_TOKEN, private};
use crate::rig::{Folder, Ran, forebay, run};

const ADMIN: &str = "an-admin-token-for-the-tests-of-the-binary";

struct Secure {
    folder: Folder,
    server: Server,
}

pub(crate) fn certificate(folder: &Folder, name: &str) {
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

/// The first message of a client that offers one version, these cipher suites and these protocols.
fn hello(version: u16, suites: &[u16], protocols: &[&str]) -> Vec<u8> {
    fn sized(body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("it is short").to_be_bytes();
        [&length[..], body].concat()
    }
    let numbers = |numbers: &[u16]| numbers.iter().flat_map(|one| one.to_be_bytes()).collect::<Vec<u8>>();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &sized(body)].concat();
    // x25519 and P-256; signatures with ECDSA, RSA and Ed25519; uncompressed points.
    let mut extensions = extension(10, &sized(&numbers(&[0x001d, 0x0017])));
    let signatures = [0x0403, 0x0503, 0x0807, 0x0804, 0x0401, 0x0203, 0x0201];
    extensions.extend(extension(13, &sized(&numbers(&signatures))));
    extensions.extend(extension(11, &[1, 0]));
    if !protocols.is_empty() {
        let named = |name: &&str| [&[u8::try_from(name.len()).expect("short")], name.as_bytes()].concat();
        let list: Vec<u8> = protocols.iter().flat_map(named).collect();
        extensions.extend(extension(16, &sized(&list)));
    }
    if version == 0x0304 {
        extensions.extend(extension(43, &[2, 3, 4]));
        let share = [&numbers(&[0x001d])[..], &sized(&[9; 32])].concat();
        extensions.extend(extension(51, &sized(&share)));
    }
    let mut body = version.min(0x0303).to_be_bytes().to_vec();
    body.extend([7; 32]);
    body.push(0);
    body.extend(sized(&numbers(suites)));
    body.extend([1, 0]);
    body.extend(sized(&extensions));
    let length = u32::try_from(body.len()).expect("it is short").to_be_bytes();
    let handshake = [&[1], &length[1..], &body].concat();
    [&[22, 3, 1], &sized(&handshake)[..]].concat()
}

/// Version and cipher suite that a server chose. `None`: it refused with an alert.
fn chosen(address: &str, hello: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    use std::io::{Read as _, Write as _};
    let mut socket = std::net::TcpStream::connect(address).expect("the server listens");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
    socket.write_all(hello).expect("it is taken");
    let mut head = [0; 5];
    socket.read_exact(&mut head).expect("an answer");
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    socket.read_exact(&mut body).expect("all of the answer");
    match head[0] {
        21 => return None,
        22 => assert_eq!(body[0], 2, "a hello of the server"),
        other => panic!("a record of another kind: {other}"),
    }
    let number = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let suite_at = 4 + 2 + 32 + 1 + usize::from(body[4 + 2 + 32]);
    let extensions = &body[suite_at + 3..];
    // The extension with the version, of TLS 1.3.
    let is_13 = extensions.windows(6).any(|part| part == [0, 43, 0, 2, 3, 4]);
    Some((if is_13 { 0x0304 } else { number(4) }, number(suite_at), extensions.to_vec()))
}

#[test]
fn only_good_versions_and_ciphers_are_spoken() {
    const GOOD_12: [u16; 3] = [0xc02b, 0xc02c, 0xcca9];
    const GOOD_13: [u16; 3] = [0x1301, 0x1302, 0x1303];
    // Without encryption, RC4, 3DES, static RSA with CBC and with GCM, CBC with ECDHE, DHE, anonymous.
    const BAD: [u16; 12] =
        [0x0001, 0xc006, 0x0005, 0xc007, 0x000a, 0xc008, 0x002f, 0x009c, 0xc009, 0xc00a, 0x009e, 0xc018];
    let secure = Secure::start("probed");
    let address = &secure.server.address;
    let all = [&GOOD_12[..], &BAD].concat();
    for old in [0x0300, 0x0301, 0x0302] {
        assert_eq!(chosen(address, &hello(old, &all, &[])), None, "version {old:x}");
    }
    for suite in GOOD_12 {
        let (version, is, _) = chosen(address, &hello(0x0303, &[suite], &[])).expect("it is spoken");
        assert_eq!((version, is), (0x0303, suite));
    }
    for suite in GOOD_13 {
        let (version, is, _) = chosen(address, &hello(0x0304, &[suite], &[])).expect("it is spoken");
        assert_eq!((version, is), (0x0304, suite));
    }
    for suite in BAD {
        assert_eq!(chosen(address, &hello(0x0303, &[suite], &[])), None, "suite {suite:x}");
    }
    // A client that offers good and bad ones gets a good one.
    let (_, is, _) =
        chosen(address, &hello(0x0303, &[&BAD[..], &GOOD_12].concat(), &[])).expect("it is spoken");
    assert!(GOOD_12.contains(&is), "{is:x}");
    for (offered, expected) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "http/1.1")] {
        let (_, _, extensions) = chosen(address, &hello(0x0303, &GOOD_12, offered)).expect("it is spoken");
        let named = [&[u8::try_from(expected.len()).expect("short")], expected.as_bytes()].concat();
        assert!(extensions.windows(named.len()).any(|part| part == named), "{expected}");
    }
    assert_eq!(chosen(address, &hello(0x0303, &GOOD_12, &["smtp"])), None, "another protocol");
    secure.run("server.pem", &["pub", "work", "x"]).good();
}

#[test]
fn bench_goes_over_tls_with_a_token() {
    let folder = Folder::made("tls-bench");
    certificate(&folder, "server");
    let (cert, key) = (folder.file("server.pem"), folder.file("server.key"));
    let admin = private(&folder, "admin.token", ADMIN);
    let words = ["--memory", "--require-auth", "--admin-token-file", &admin];
    let server = Server::start_with(&[&words[..], &["--tls-cert", &cert, "--tls-key", &key]].concat());
    let address = format!("https://{}", server.address);
    let bench = ["bench", "--messages", "2000", "-o", "json", "--server", &address, "--ca", &cert];
    let figures = run(&[&bench[..], &["--token-file", &admin]].concat(), "", &[]).json();
    assert_eq!(
        (&figures["check"]["acked"], &figures["check"]["lost"]),
        (&2_000.into(), &0.into()),
        "{figures}"
    );
    assert_eq!(figures["address"], address);
    run(&bench, "", &[]).refused(12, &NO_TOKEN);
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
