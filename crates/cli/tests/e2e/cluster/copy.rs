//! `forebay copy`: a log moves to NATS and back, and delivers the messages that were left.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::servers::{Servers, unique};
use super::{Node, PATIENCE, ports, words};
use crate::http::client::Connection;
use crate::rig::{Folder, Process, Ran, binary, forebay};

const TEAM: &str = "/subscriptions/work/team";
/// Messages, each in a frame of its own, so that a copy takes a while.
const MESSAGES: u64 = 400;
/// Large messages: together more than a server writes without an image.
const LARGE: usize = 72;
const LARGE_BYTES: usize = 1_000_000;

fn on_folder(folder: &Folder) -> Node {
    let [address, sqs] = ports();
    let data = ["--data", folder.path(), "--listen", &address, "--sqs", &sqs];
    let words = [&data[..], &["--log", "text", "--kurrent", "none"]].concat();
    let (process, ()) = Process::serve(&words, |said| said.contains("listening on").then_some(()));
    Node { process, address, sqs }
}

/// The words that name the log on NATS.
fn log_words(servers: &Servers, cluster: &str) -> Vec<String> {
    let nats = (servers.addresses().join(","), servers.monitors().join(","));
    let flags = [
        ("--nats", &*nats.0),
        ("--nats-monitors", &*nats.1),
        ("--cluster", cluster),
        ("--nats-replicas", "1"),
        ("--tenure", "1s"),
    ];
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()]).collect()
}

struct Copy {
    words: Vec<String>,
}

impl Copy {
    fn new(servers: &Servers, cluster: &str, from: &str, to: &str) -> Copy {
        let own = ["copy", "--from", from, "--to", to, "-o", "json"].map(str::to_owned);
        Copy { words: [own.to_vec(), log_words(servers, cluster)].concat() }
    }

    fn run(&self) -> Ran {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        forebay(&words, "")
    }

    /// Begins, and is killed as soon as the condition holds.
    fn killed_when(&self, holds: impl Fn() -> bool) {
        let mut command = binary();
        let mut child: Child =
            command.args(&self.words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let since = tokio::time::Instant::now();
        while !holds() {
            assert!(since.elapsed() < PATIENCE, "the copy does not begin");
            let ended = child.try_wait().expect("it can be asked");
            assert!(ended.is_none(), "the copy ended before it could be killed: {ended:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().expect("it is killed");
        child.wait().expect("it is gone");
    }
}

/// Messages that all streams of a server have.
fn stored(servers: &Servers) -> u64 {
    let address = servers.monitors()[0].trim_start_matches("http://").to_owned();
    Connection::open(&address).call("GET", "/jsz", "").json()["messages"].as_u64().unwrap_or_default()
}

fn has_image(folder: &Folder) -> bool {
    let files = std::fs::read_dir(folder.path()).expect("the folder is there");
    let mut names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    names.any(|name| name.starts_with("image-") && !name.contains('.'))
}

fn fill(node: &Node, folder: &Folder) -> Value {
    node.ok("PUT", "/streams/work", "{}");
    node.ok("PUT", TEAM, "{}");
    let mut connection = Connection::open(&node.address);
    for number in 1..=MESSAGES {
        let reply = connection.call(
            "POST",
            "/streams/work/messages",
            &format!(r#"{{"messages":[{{"body":{number}}}]}}"#),
        );
        assert!(reply.status < 300, "{}", reply.text());
    }
    // Contents that take several messages of NATS, and so much log that the server makes an image of its state.
    let large = format!(r#"{{"messages":[{{"body_text":"{}"}}]}}"#, "x".repeat(LARGE_BYTES));
    node.ok("PUT", "/streams/large", "{}");
    node.ok("PUT", "/subscriptions/large/team", "{}");
    for _ in 0..LARGE {
        let reply = connection.call("POST", "/streams/large/messages", &large);
        assert!(reply.status < 300, "{}", reply.text());
    }
    let since = tokio::time::Instant::now();
    while !has_image(folder) {
        assert!(since.elapsed() < PATIENCE, "no image is made");
        std::thread::sleep(Duration::from_millis(20));
    }
    // 1 to 100 are settled, 101 is parked, 102 is held.
    assert_eq!(node.take(), (1..=100).collect::<Vec<_>>());
    let parked = receive(node, r#"{"max":1}"#);
    let park = json!({ "leases": [parked[0]["lease"]], "action": "park", "reason": "bad" }).to_string();
    node.ok("POST", &format!("{TEAM}/nack"), &park);
    let held = receive(node, r#"{"max":1,"timeout":"1h"}"#);
    let queue = node.sqs("CreateQueue", r#"{"QueueName":"jobs"}"#)["QueueUrl"].clone();
    let send = json!({ "QueueUrl": queue, "MessageBody": "hello" }).to_string();
    node.sqs("SendMessage", &send);
    held[0]["lease"].clone()
}

fn receive(node: &Node, body: &str) -> Vec<Value> {
    let got = node.ok("POST", &format!("{TEAM}/receive"), body);
    got["messages"].as_array().expect("a list").clone()
}

/// The log has exactly the messages that were left when its first server stopped.
fn delivers_the_rest(node: &Node, held: &Value, epoch_before: u64) {
    let parked = node.ok("GET", &format!("{TEAM}/parked"), "");
    let parked = parked["parked"].as_array().expect("a list");
    assert_eq!(parked.len(), 1, "{parked:?}");
    assert_eq!((&parked[0]["seq"], &parked[0]["reason"]), (&json!(101), &json!("bad")));
    let epoch = node.ok("GET", "/server", "")["epoch"].as_u64().expect("a number");
    assert!(epoch > epoch_before, "{epoch} is later than {epoch_before}");
    let mut bodies = Vec::new();
    loop {
        let some = node.take();
        if some.is_empty() {
            break;
        }
        bodies.extend(some);
    }
    assert_eq!(bodies, (103..=MESSAGES).collect::<Vec<_>>(), "message 102 is still on its lease");
    let ack = json!({ "leases": [held] }).to_string();
    let acked = node.ok("POST", &format!("{TEAM}/ack"), &ack);
    assert_eq!(acked["results"][0]["outcome"], "acked", "the lease is good: {acked}");
    let large = node.ok("POST", "/subscriptions/large/team/receive", r#"{"max":2}"#);
    let large = large["messages"].as_array().expect("a list").clone();
    assert_eq!(large.len(), 2);
    for message in &large {
        assert_eq!(
            message["body_text"].as_str().or(message["body"].as_str()).map(str::len),
            Some(LARGE_BYTES)
        );
    }
    let queue = node.sqs("GetQueueUrl", r#"{"QueueName":"jobs"}"#)["QueueUrl"].clone();
    let got = node.sqs("ReceiveMessage", &json!({ "QueueUrl": queue }).to_string());
    assert_eq!(got["Messages"][0]["Body"], "hello", "{got}");
    // Time goes on, and so does the log.
    node.publish(1_001..=1_003);
    assert_eq!(node.take(), [1_001, 1_002, 1_003]);
}

#[test]
fn a_log_moves_to_nats_and_back_and_nothing_is_lost_or_doubled() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let cluster = unique();
    let (old, new, other) = (Folder::new("copy-old"), Folder::new("copy-new"), Folder::new("copy-other"));
    let node = on_folder(&old);
    let there = Copy::new(&servers, &cluster, old.path(), "nats");
    let held = fill(&node, &old);
    let epoch = node.ok("GET", "/server", "")["epoch"].as_u64().expect("a number");
    there.run().refused(3, &["in use"]);
    node.process.stop();

    there.killed_when(|| stored(&servers) > 50);
    // Nothing but the same copy uses the unfinished log.
    let node_words = words(&servers, &cluster, "a", "127.0.0.1:0");
    let serve: Vec<&str> = ["serve"].into_iter().chain(node_words.iter().map(String::as_str)).collect();
    forebay(&serve, "").refused(4, &["unfinished result of an interrupted `forebay copy`", "goes on"]);
    on_folder(&other).process.stop();
    Copy::new(&servers, &cluster, other.path(), "nats")
        .run()
        .refused(4, &["not an unfinished copy of this source"]);
    let copied = there.run().json();
    let before = copied["frames_before"].as_u64().expect("a number");
    assert!(before > 10 && before < copied["frames"].as_u64().expect("a number"), "{copied}");
    assert!(copied["image_parts"].as_u64().is_some_and(|parts| parts > 0), "{copied}");
    there.run().refused(4, &["not empty"]);

    // And back, before anything uses it.
    let back = Copy::new(&servers, &cluster, "nats", new.path());
    back.killed_when(|| std::path::Path::new(&new.file("UNFINISHED")).exists());
    forebay(&["serve", "--data", new.path(), "--listen", "127.0.0.1:0"], "")
        .refused(4, &["unfinished result"]);
    forebay(&["doctor", "--data", new.path()], "").refused(4, &["unfinished result"]);
    let returned = back.run().json();
    // The frame with which a copy ends is there too.
    let frames = |report: &Value| report["frames"].as_u64().expect("a number");
    assert_eq!(frames(&returned), frames(&copied) + 1, "{returned} {copied}");
    back.run().refused(4, &["not empty"]);
    assert!(forebay(&["doctor", "--data", new.path()], "").good().contains("The folder is sound."));

    let first = Node::start(&servers, &cluster, "a", "listening on");
    Copy::new(&servers, &cluster, "nats", other.path()).run().refused(3, &["in use"]);
    delivers_the_rest(&first, &held, epoch);
    first.process.stop();
    let second = on_folder(&new);
    delivers_the_rest(&second, &held, epoch);
    second.process.stop();
}

#[test]
fn a_copy_needs_a_folder_and_a_log_on_nats() {
    let copy = |from, to| forebay(&["copy", "--from", from, "--to", to, "--cluster", "c"], "");
    copy("a", "b").refused(2, &["forebay backup"]);
    copy("nats", "nats://127.0.0.1:1").refused(2, &["must be a data folder"]);
    copy("nats", "b").refused(2, &["nats must be set"]);
    copy("nats://127.0.0.1:1", "b").refused(7, &["no NATS server answers", "127.0.0.1:1"]);
}
