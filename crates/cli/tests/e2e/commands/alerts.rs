//! Alerts at a real listener: signed, once each, in both forms, and from a receiver that was down.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use crate::commands::receiver::{Request, listen};
use crate::commands::rig::Server;
use crate::rig::{Folder, run};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// What a receiver makes of a notification.
trait Notified {
    fn is_signed(&self) -> bool;
    fn json(&self) -> Value;
}

impl Notified for Request {
    /// As a receiver does it who knows the secret.
    fn is_signed(&self) -> bool {
        let mut mac: Hmac<Sha256> = Hmac::new_from_slice(SECRET.as_bytes()).expect("a key");
        let (id, time) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        mac.update(format!("{id}.{time}.{}", self.text()).as_bytes());
        let expected = BASE64_STANDARD.encode(mac.finalize().into_bytes());
        self.header("webhook-signature") == format!("v1,{expected}")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

fn overview(server: &Server) -> String {
    let mut socket = TcpStream::connect(&server.address).expect("it listens");
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
    socket.write_all(request.as_bytes()).expect("it is taken");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("a page");
    text
}

/// Waits until the overview has this text.
#[track_caller]
fn shows(server: &Server, text: &str) {
    let until = std::time::Instant::now() + PATIENCE;
    while !overview(server).contains(text) {
        assert!(std::time::Instant::now() < until, "the overview never shows {text}: {}", overview(server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_alert_is_sent_once_signed_and_cleared_and_waits_for_a_receiver_that_is_down() {
    let folder = Folder::made("alerts");
    let secret = folder.write("secret", &format!("{SECRET}\n"));
    // A port that refuses connections until the test listens on it.
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free").local_addr().expect("an address");
    let webhooks = format!("http://{port}/hook/secret-path,slack+http://{port}/slack");
    let config = format!(
        "memory = true\nlisten = \"127.0.0.1:0\"\nalert_webhooks = \"{webhooks}\"\nalert_hold = \"0s\"\n\
         alert_secret_file = \"{secret}\"\nalert_rules = \"\"\"\ntest/*: none\n*: lag 3\n\"\"\"\n"
    );
    let config = folder.write("forebay.toml", &config);
    assert_eq!(run(&["config", "check", "--config", &config], "", &[]).code, 0);
    let server = Server::start_first(&["--config", &config]);
    for group in ["orders/billing", "test/noise"] {
        let (stream, _) = group.split_once('/').expect("two names");
        server.run(&["group", "create", group]).good();
        server.run(&["pub", stream, "a", "b", "c"]).good();
    }
    // Nothing listens: the alert is visible all the same, and so is the receiver that fails.
    shows(&server, "Active alerts");
    shows(&server, "has not taken notifications");
    assert!(!overview(&server).contains("secret-path"), "the path of a webhook is a secret");

    let came = listen(TcpListener::bind(port).expect("the port is free"), vec![500]);
    let mut requests = Vec::new();
    // One of the two is refused first and sent again.
    for _ in 0..3 {
        requests.push(came.recv_timeout(PATIENCE).expect("the notification comes when the receiver is back"));
    }
    assert!(requests.iter().all(Notified::is_signed), "every attempt is signed");
    let json: Vec<&Request> = requests.iter().filter(|request| request.path == "/hook/secret-path").collect();
    let slack: Vec<&Request> = requests.iter().filter(|request| request.path == "/slack").collect();
    assert_eq!(json.len() + slack.len(), 3);
    for attempts in [&json, &slack] {
        let first = attempts.first().expect("each receiver is told");
        assert!(attempts.iter().all(|one| one.header("webhook-id") == first.header("webhook-id")));
    }
    let told = json[0].json();
    let alerts = told["alerts"].as_array().expect("a list");
    assert_eq!(alerts.len(), 1, "{told}");
    let alert = &alerts[0];
    assert_eq!((&alert["event"], &alert["alert"]), (&"fired".into(), &"lag".into()), "{told}");
    assert_eq!((&alert["stream"], &alert["group"]), (&"orders".into(), &"billing".into()));
    assert_eq!((&alert["value"], &alert["threshold"]), (&3.0.into(), &3.0.into()));
    let text = slack[0].json()["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("*orders/billing* has 3 messages waiting"), "{text}");

    // It is over: the next request to each receiver is the end, so nothing was sent twice.
    server.run(&["sub", "orders/billing", "--ack", "--max", "3"]).good();
    for _ in 0..2 {
        let request = came.recv_timeout(PATIENCE).expect("the end comes");
        assert!(request.is_signed());
        match &*request.path {
            "/slack" => assert!(request.text().contains("again"), "{}", request.text()),
            _ => assert_eq!(request.json()["alerts"][0]["event"], "cleared", "{}", request.text()),
        }
    }
    shows(&server, "No alert is active");
    let log = server.stop();
    let lines: Vec<&str> = log.iter().filter_map(|line| line["message"].as_str()).collect();
    let said = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((said("an alert begins"), said("an alert ends")), (1, 1), "{lines:?}");
    assert_eq!(said("cannot be sent and is tried again"), 2, "once for each receiver: {lines:?}");
    assert!(!lines.iter().any(|line| line.contains("secret-path")), "{lines:?}");
}

#[test]
fn wrong_settings_of_alerts_are_refused_before_anything_starts() {
    let folder = Folder::made("wrong-alerts");
    let check = |line: &str, said: &[&str]| {
        let file = folder.write("forebay.toml", &format!("{line}\n"));
        run(&["config", "check", "--config", &file], "", &[]).refused(2, said);
    };
    check("alert_webhooks = \"ftp://host/hidden\"", &["alert_webhooks", "https://example.com/hook"]);
    check("alert_rules = \"orders: lag 3\"", &["pattern=`orders`", "line=`1`"]);
    check("alert_rules = \"*: lag many\"", &["lag must be a whole number"]);
    check("alert_hold = \"soon\"", &["alert_hold"]);
    let short = folder.write("short", "secret\n");
    check(&format!("alert_secret_file = \"{short}\""), &["at least 24 characters", "short"]);
    check("alert_secret_file = \"/nonexistent\"", &["cannot read the secret of alerts"]);
    let shown = run(&["config", "show", "--alert-webhooks", "https://host/hidden"], "", &[]).good();
    assert!(shown.contains("https://host/***") && !shown.contains("hidden"), "{shown}");
    let remarks = run(&["config", "check", "--alert-webhooks", "https://host/hidden"], "", &[]).good();
    assert!(remarks.contains("alert_secret_file is not set"), "{remarks}");
}
