//! Two nodes on one NATS server: a standby takes over what its owner confirmed.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;

use crate::http::client::{Connection, Reply};
use crate::rig::{Process, forebay};
use servers::{Servers, unique};

#[path = "../../../storage/tests/jetstream/servers.rs"]
#[allow(dead_code)]
mod servers;

/// Longer than a takeover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    process: Process,
    address: String,
}

fn words(servers: &Servers, cluster: &str, node: &str, address: &str) -> Vec<String> {
    let words = ["--log", "text", "--engine", "jetstream", "--nats-replicas", "1", "--tenure", "1s"];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    let nats = (servers.addresses().join(","), servers.monitors().join(","));
    for (flag, value) in [("--nats", &*nats.0), ("--nats-monitors", &*nats.1)] {
        words.extend([flag.to_owned(), value.to_owned()]);
    }
    for (flag, value) in [("--cluster", cluster), ("--node", node), ("--listen", address)] {
        words.extend([flag.to_owned(), value.to_owned()]);
    }
    words
}

impl Node {
    /// Starts a node and waits for a line of its log.
    fn start(servers: &Servers, cluster: &str, node: &str, line: &str) -> Node {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let address = port.to_string();
        let words = words(servers, cluster, node, &address);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (process, ()) = Process::serve(&words, |said| said.contains(line).then_some(()));
        Node { process, address }
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Reply {
        Connection::open(&self.address).call(method, path, body)
    }

    #[track_caller]
    fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let reply = self.call(method, path, body);
        assert!(reply.status < 300, "{method} {path} {body}: {} {}", reply.status, reply.text());
        reply.json()
    }

    /// Waits until it is ready, and says how long that took.
    fn ready(&self) -> Duration {
        let since = tokio::time::Instant::now();
        while self.call("GET", "/readyz", "").status != 200 {
            assert!(since.elapsed() < PATIENCE, "the standby does not take over");
            std::thread::sleep(Duration::from_millis(20));
        }
        since.elapsed()
    }

    fn publish(&self, bodies: std::ops::RangeInclusive<u32>) {
        let messages: Vec<String> = bodies.map(|n| format!(r#"{{"body":{n}}}"#)).collect();
        self.ok("POST", "/streams/work/messages", &format!(r#"{{"messages":[{}]}}"#, messages.join(",")));
    }

    /// Takes all messages that wait and acks them.
    fn take(&self) -> Vec<u64> {
        let got = self.ok("POST", "/subscriptions/work/team/receive", r#"{"max":100,"wait":"5s"}"#);
        let got = got["messages"].as_array().expect("a list").clone();
        let leases: Vec<&Value> = got.iter().map(|message| &message["lease"]).collect();
        let acks = serde_json::json!({ "leases": leases }).to_string();
        self.ok("POST", "/subscriptions/work/team/ack", &acks);
        got.iter().map(|message| message["body"].as_u64().expect("a number")).collect()
    }
}

#[test]
fn a_standby_takes_over_what_was_confirmed() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let cluster = unique();
    let first = Node::start(&servers, &cluster, "a", "listening on");
    first.ok("PUT", "/streams/work", "{}");
    first.ok("PUT", "/subscriptions/work/team", "{}");
    first.publish(1..=3);
    assert_eq!(first.take(), [1, 2, 3]);
    first.publish(4..=6);

    let second = Node::start(&servers, &cluster, "b", "standing by: node a");
    assert_eq!(second.call("GET", "/livez", "").status, 200);
    for (method, path, slug) in
        [("GET", "/readyz", "not-ready"), ("GET", "/streams", "not-owner"), ("GET", "/", "not-owner")]
    {
        let reply = second.call(method, path, "");
        let text = reply.text();
        assert_eq!(reply.status, 503, "{text}");
        assert!(text.contains(slug) && text.contains(&first.address), "{text}");
    }
    first.process.kill();
    second.ready();
    assert_eq!(second.take(), [4, 5, 6], "nothing confirmed is lost, and nothing acked comes again");
    second.publish(7..=8);

    // The next one is there when its owner stops, and has nothing to wait for.
    let third = Node::start(&servers, &cluster, "a", "standing by: node b");
    second.process.stop();
    let took = third.ready();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(third.take(), [7, 8]);
    assert_eq!(third.ok("GET", "/server", "")["epoch"], 3);
    third.process.stop();
}

#[test]
fn a_node_refuses_settings_and_servers_that_would_lose_messages() {
    let Some(servers) = Servers::start(1, "sync_interval: \"1m\"") else { return };
    let all = words(&servers, "refused", "a", "127.0.0.1:0");
    let without = |flag: &str| -> Vec<String> {
        let at = all.iter().position(|word| word == flag).expect("it is given");
        all.iter()
            .enumerate()
            .filter(|(index, _)| ![at, at + 1].contains(index))
            .map(|(_, word)| word.clone())
            .collect()
    };
    let serve = |words: &[String]| {
        let words: Vec<&str> =
            ["serve", "--sqs", "none"].into_iter().chain(words.iter().map(String::as_str)).collect();
        forebay(&words, "")
    };
    for name in ["nats", "cluster", "node"] {
        serve(&without(&format!("--{name}"))).refused(2, &[name, "must be set if engine is `jetstream`"]);
    }
    serve(&all).refused(4, &["sync_interval: always", "nats_accept_loss", "server=`n0`"]);
    serve(&without("--nats-monitors")).refused(4, &["nats_monitors", "nats_accept_loss"]);
    let nowhere = [&without("--nats")[..], &["--nats".to_owned(), "nats://127.0.0.1:1".to_owned()]].concat();
    serve(&nowhere).refused(7, &["`nats` names the servers", "127.0.0.1:1"]);
}
