//! Keys that the server fetches from an issuer, over HTTP and TLS: from an issuer that rotates them, and from one that
//! hangs, lies, sends garbage or is down.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::commands::rig::Server;
use crate::commands::tls::certificate;
use crate::commands::tokens::{ADMIN, private, with};
use crate::rig::{Folder, Ran, run};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// A key with which the issuer signs.
struct Key {
    kid: &'static str,
    pair: KeyPair,
}

impl Key {
    fn new(kid: &'static str) -> Key {
        Key { kid, pair: KeyPair::generate_for(&PKCS_ED25519).expect("a key") }
    }

    fn published(&self) -> Value {
        let x = BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key_raw());
        json!({ "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.kid, "x": x })
    }

    /// A token for the subject `billing`, good until the year 2100.
    fn token(&self, issuer: &str) -> String {
        let encode = |part: Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
        let header = encode(json!({ "alg": "EdDSA", "kid": self.kid }));
        let claims =
            encode(json!({ "iss": issuer, "aud": "forebay", "sub": "billing", "exp": 4_102_444_800_u64 }));
        let signed = format!("{header}.{claims}");
        let signature = self.pair.sign(signed.as_bytes()).expect("a signature");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

/// What the issuer answers.
#[derive(Clone)]
enum Says {
    Keys(Vec<Value>),
    /// These are the keys, with this status.
    Text(u16, String),
    /// The configuration names another issuer.
    Lies,
    Hangs,
    /// More bytes than the server reads.
    Floods,
}

/// An issuer on a port of its own, until the test ends.
struct Issuer {
    address: String,
    says: Arc<Mutex<Says>>,
}

impl Issuer {
    fn over_http(says: Says) -> Issuer {
        Issuer::listen("http", says, None)
    }

    /// With the certificate of this name in the folder.
    fn over_tls(says: Says, folder: &Folder, name: &str) -> Issuer {
        certificate(folder, name);
        let read = |file: String| std::fs::read(file).expect("a file");
        let chain = CertificateDer::pem_slice_iter(&read(folder.file(&format!("{name}.pem"))))
            .collect::<Result<_, _>>()
            .expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(&read(folder.file(&format!("{name}.key")))).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate");
        Issuer::listen("https", says, Some(Arc::new(config)))
    }

    fn listen(scheme: &str, says: Says, tls: Option<Arc<ServerConfig>>) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("an address").port();
        let (address, says) = (format!("{scheme}://localhost:{port}"), Arc::new(Mutex::new(says)));
        let (at, of) = (address.clone(), says.clone());
        std::thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                let (at, of, tls) = (at.clone(), of.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => answer(socket, &at, &of),
                    Some(tls) => {
                        let connection = ServerConnection::new(tls).expect("a connection");
                        answer(StreamOwned::new(connection, socket), &at, &of);
                    }
                });
            }
        });
        Issuer { address, says }
    }

    fn now(&self, says: Says) {
        *self.says.lock().expect("no panic") = says;
    }
}

fn answer(stream: impl Read + Write, at: &str, says: &Mutex<Says>) {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    if stream.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|count| count > 2) {
        line.clear();
    }
    let says = says.lock().expect("no panic").clone();
    let is_configuration = first.starts_with("GET /.well-known/openid-configuration ");
    let configuration = |issuer: &str| json!({ "issuer": issuer, "jwks_uri": format!("{at}/keys") });
    let (status, body) = match says {
        Says::Hangs => {
            std::thread::sleep(PATIENCE);
            return;
        }
        Says::Floods => (200, " ".repeat(1 << 20)),
        Says::Lies if is_configuration => (200, configuration("https://another.example.com").to_string()),
        _ if is_configuration => (200, configuration(at).to_string()),
        Says::Keys(keys) => (200, json!({ "keys": keys }).to_string()),
        Says::Text(status, text) => (status, text),
        Says::Lies => (500, String::new()),
    };
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
    let _ = stream.get_mut().flush();
}

/// A server that recognises tokens of the issuer for publishing to `orders`.
fn start(folder: &Folder, issuer: &str, words: &[&str]) -> Server {
    let admin = private(folder, "admin.token", ADMIN);
    let rights = folder.write("rights", "sub=billing publish:orders\n");
    let usual = [
        "--memory",
        "--require-auth",
        "--admin-token-file",
        &admin,
        "--jwt-issuer",
        issuer,
        "--jwt-audience",
        "forebay",
        "--jwt-rights",
        &rights,
    ];
    Server::start_with(&[&usual[..], words].concat())
}

fn publish(server: &Server, token: &str) -> Ran {
    with(server, token, &["pub", "orders", "x"])
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The value of a metric.
fn metric(server: &Server, name: &str) -> f64 {
    let mut socket = TcpStream::connect(&server.address).expect("it listens");
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {ADMIN}\r\nconnection: close\r\n\r\n",
        server.address
    );
    socket.write_all(request.as_bytes()).expect("it is taken");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("metrics");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn failures(server: &Server) -> f64 {
    metric(server, "forebay_issuer_fetch_failures_total")
}

#[test]
fn keys_are_found_through_the_issuer_and_follow_its_rotation() {
    let (folder, a, b) = (Folder::made("issuer"), Key::new("a"), Key::new("b"));
    let issuer = Issuer::over_http(Says::Keys(vec![a.published()]));
    let server = start(&folder, &issuer.address, &["--jwt-refresh", "1s"]);
    let (of_a, of_b) = (a.token(&issuer.address), b.token(&issuer.address));
    // The first request may come before the keys: it waits for them.
    publish(&server, &of_a).good();
    publish(&server, &of_b).refused(12, &["not one of this server's"]);
    issuer.now(Says::Keys(vec![a.published(), b.published()]));
    until("the new key counts", || publish(&server, &of_b).code == 0);
    publish(&server, &of_a).good();
    issuer.now(Says::Keys(vec![b.published()]));
    until("the old key does not count", || publish(&server, &of_a).code == 12);
    publish(&server, &of_b).good();
    assert!(metric(&server, "forebay_issuer_keys_age_seconds") < 30.0);
}

#[test]
fn a_token_with_a_new_key_makes_the_server_fetch_the_keys() {
    let (folder, a, b) = (Folder::made("issuer-ask"), Key::new("a"), Key::new("b"));
    let issuer = Issuer::over_http(Says::Keys(vec![a.published()]));
    let server = start(&folder, &issuer.address, &["--jwt-refresh", "1d"]);
    publish(&server, &a.token(&issuer.address)).good();
    issuer.now(Says::Keys(vec![a.published(), b.published()]));
    // At most one fetch in ten seconds, however many tokens ask for it.
    until("the new key counts", || publish(&server, &b.token(&issuer.address)).code == 0);
    let fetches = metric(&server, "forebay_issuer_fetches_total");
    for _ in 0..3 {
        publish(&server, &Key::new("unknown").token(&issuer.address)).refused(12, &[]);
    }
    assert_eq!(metric(&server, "forebay_issuer_fetches_total"), fetches);
}

#[test]
fn the_last_good_keys_count_while_the_issuer_fails() {
    let (folder, a) = (Folder::made("issuer-bad"), Key::new("a"));
    let good = Says::Keys(vec![a.published()]);
    let issuer = Issuer::over_http(good.clone());
    let server = start(&folder, &issuer.address, &["--jwt-refresh", "1s"]);
    let token = a.token(&issuer.address);
    publish(&server, &token).good();
    let secret = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "kid": "a" }] }).to_string();
    for bad in [
        Says::Text(500, "down".to_owned()),
        Says::Text(302, String::new()),
        Says::Text(200, "<html>\u{1b}[31m".to_owned()),
        Says::Text(200, secret),
        Says::Keys(Vec::new()),
        Says::Floods,
        Says::Lies,
        Says::Hangs,
    ] {
        let before = failures(&server);
        issuer.now(bad);
        until("a fetch fails", || failures(&server) > before);
        publish(&server, &token).good();
    }
    issuer.now(good);
    let fetched = metric(&server, "forebay_issuer_fetches_total") - failures(&server);
    until("the issuer is asked again", || {
        metric(&server, "forebay_issuer_fetches_total") - failures(&server) > fetched
    });
    let log: Vec<String> = server.stop().iter().map(Value::to_string).collect();
    for said in
        ["HTTP 500", "HTTP 302", "must be a JSON Web Key Set", "more than 262144 bytes", "another issuer"]
    {
        assert!(log.iter().any(|line| line.contains(said)), "{said} is not in {log:#?}");
    }
    assert!(log.iter().all(|line| !line.contains('\u{1b}') && !line.contains("c2VjcmV0")), "{log:#?}");
}

#[test]
fn the_server_starts_without_its_issuer() {
    let (folder, a) = (Folder::made("issuer-down"), Key::new("a"));
    let issuer = Issuer::over_http(Says::Hangs);
    let keys = format!("{}/keys", issuer.address);
    let server = start(&folder, "not-an-address", &["--jwt-keys", &keys]);
    let begun = Instant::now();
    publish(&server, ADMIN).good();
    assert!(begun.elapsed() < Duration::from_secs(3), "other clients do not wait for the issuer");
    let token = a.token("not-an-address");
    let list = with(&server, &token, &["stream", "list"]);
    list.refused(10, &["the keys of the token's issuer are not known yet"]);
    issuer.now(Says::Keys(vec![a.published()]));
    until("the keys are fetched", || publish(&server, &token).code == 0);
}

#[test]
fn an_issuer_over_tls_is_recognised_by_its_authority() {
    let (folder, a) = (Folder::made("issuer-tls"), Key::new("a"));
    let issuer = Issuer::over_tls(Says::Keys(vec![a.published()]), &folder, "issuer");
    certificate(&folder, "other");
    let token = a.token(&issuer.address);
    let server = start(&folder, &issuer.address, &["--jwt-ca", &folder.file("issuer.pem")]);
    publish(&server, &token).good();
    let server = start(&folder, &issuer.address, &["--jwt-ca", &folder.file("other.pem")]);
    with(&server, &token, &["stream", "list"]).refused(10, &["are not known yet"]);
    let log: Vec<String> = server.stop().iter().map(Value::to_string).collect();
    assert!(log.iter().any(|line| line.contains("invalid peer certificate")), "{log:#?}");
}

#[test]
fn keys_come_over_http_from_this_machine_only_unless_that_is_allowed() {
    let folder = Folder::made("issuer-http");
    let rights = folder.write("rights", "sub=x view:*\n");
    let check = |issuer: &str, words: &[&str]| {
        let usual = ["--jwt-issuer", issuer, "--jwt-audience", "a", "--jwt-rights", &rights];
        run(&[&["config", "check", "--memory"][..], &usual, words].concat(), "", &[])
    };
    check("http://10.0.0.1", &[]).refused(2, &["must come over https", "jwt_allow_http"]);
    check("http://10.0.0.1", &["--jwt-allow-http"]).good();
    check("https://10.0.0.1", &[]).good();
    check("https://10.0.0.1", &["--jwt-keys", "http://10.0.0.2/keys"]).refused(2, &["must come over https"]);
    check("accounts", &[]).refused(2, &["jwt_keys must be given"]);
    check("https://10.0.0.1", &["--jwt-ca", &rights]).refused(2, &["must be in PEM"]);
    check("https://10.0.0.1", &["--jwt-refresh", "0s"]).refused(2, &["between 1s and 1d"]);
}
