//! Nodes on one NATS server: a standby carries clients to the owner, and takes over what the owner confirmed.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, Message};
use serde_json::Value;

use crate::http::client::{Connection, Reply};
use crate::rig::{Process, forebay};
use servers::{Servers, unique};

mod copy;
mod doctor;
#[path = "../../../storage/tests/jetstream/servers.rs"]
#[allow(dead_code)]
mod servers;
mod trial;

/// Longer than a takeover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    process: Process,
    address: String,
    sqs: String,
}

/// Ports that are free.
fn ports<const N: usize>() -> [String; N] {
    let sockets = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    sockets.map(|socket| socket.local_addr().expect("an address").to_string())
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
        let [address, sqs] = ports();
        let mut words = words(servers, cluster, node, &address);
        words.extend(["--kurrent", "none", "--sqs", &sqs].map(str::to_owned));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (process, ()) = Process::serve(&words, |said| said.contains(line).then_some(()));
        Node { process, address, sqs }
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

    /// Waits until calls are answered, and says how long that took. If the owner is gone, this node is the owner then.
    fn serves(&self) -> Duration {
        let since = tokio::time::Instant::now();
        // Connections may end while they are asked.
        let is_served = || {
            let mut connection = Connection::open(&self.address);
            let sent = connection.send(b"GET /server HTTP/1.1\r\nhost: localhost\r\n\r\n");
            sent && connection.reply().is_some_and(|reply| reply.status == 200)
        };
        while !is_served() {
            assert!(since.elapsed() < PATIENCE, "the standby does not take over");
            std::thread::sleep(Duration::from_millis(20));
        }
        since.elapsed()
    }

    /// A call of SQS.
    fn sqs(&self, action: &str, body: &str) -> Value {
        let target = format!("x-amz-target: AmazonSQS.{action}");
        let mut connection = Connection::open(&self.sqs);
        let head = format!(
            "POST / HTTP/1.1\r\nhost: {}\r\n{target}\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}",
            self.sqs,
            body.len()
        );
        assert!(connection.send(format!("{head}\r\n\r\n{body}").as_bytes()), "the port takes the request");
        let reply = connection.reply().expect("it is answered");
        assert_eq!(reply.status, 200, "{action} {body}: {}", reply.text());
        if reply.body.is_empty() { Value::Null } else { reply.json() }
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
        if !leases.is_empty() {
            let acks = serde_json::json!({ "leases": leases }).to_string();
            self.ok("POST", "/subscriptions/work/team/ack", &acks);
        }
        let text = |message: &Value| message["body_text"].as_str()?.parse().ok();
        let number = |message: &Value| message["body"].as_u64().or_else(|| text(message));
        got.iter().map(|message| number(message).expect("a number")).collect()
    }
}

/// Either node describes both.
fn cluster_is_told(first: &Node, second: &Node) {
    for (asked, role) in [(first, "owner"), (second, "standby")] {
        let report = asked.ok("GET", "/cluster", "");
        assert_eq!(
            (&report["role"], &report["owner"], &report["term"]),
            (&role.into(), &"a".into(), &1.into())
        );
        assert_eq!(report["owner_address"], first.address, "{report}");
        let nodes = report["nodes"].as_array().expect("a list");
        let nodes: Vec<_> = nodes.iter().map(|node| (node["node"].clone(), node["role"].clone())).collect();
        assert_eq!(nodes, [("a".into(), "owner".into()), ("b".into(), "standby".into())], "{report}");
        let left = report["nodes"][0]["tenure_left"].as_f64().expect("the owner has a tenure");
        assert!(left > 0.0 && left <= 1.0, "{left}");
        let server = &report["log"]["servers"][0];
        assert_eq!((&server["name"], &server["leader"]), (&"n0".into(), &true.into()), "{report}");
    }
    let shown = forebay(&["cluster", "status", "--server", &second.address], "").good();
    for words in [&*format!("a at {}", first.address), "b (standby)", "NATS SERVER", "leader", "current"] {
        assert!(shown.contains(words), "{words} is missing in {shown}");
    }
    let metrics = first.call("GET", "/metrics", "").text();
    for line in ["forebay_cluster_terms_total 1\n", "forebay_cluster_tenure_seconds 0.", "forebay_ready 1\n"]
    {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(second.call("GET", "/metrics", "").text().contains("forebay_ready 0\n"));
}

#[test]
fn a_standby_takes_over_what_was_confirmed() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let cluster = unique();
    let first = Node::start(&servers, &cluster, "a", "listening on");
    first.ok("PUT", "/streams/work", "{}");
    first.ok("PUT", "/subscriptions/work/team", "{}");
    first.ok("PUT", "/streams/quiet", "{}");
    first.ok("PUT", "/subscriptions/quiet/team", "{}");
    first.publish(1..=3);
    assert_eq!(first.take(), [1, 2, 3]);

    let second = Node::start(&servers, &cluster, "b", "standing by: node a");
    assert_eq!(second.call("GET", "/livez", "").status, 200);
    let ready = second.call("GET", "/readyz", "");
    assert_eq!(ready.status, 200, "{}", ready.text());
    assert!(ready.text().contains(&format!("node a at {}", first.address)), "{}", ready.text());
    // Any node serves any client: the standby carries connections to the owner.
    second.publish(4..=6);
    let queue = second.sqs("CreateQueue", r#"{"QueueName":"jobs"}"#)["QueueUrl"].clone();
    let body = serde_json::json!({ "QueueUrl": queue, "MessageBody": "hello" }).to_string();
    second.sqs("SendMessage", &body);
    let receive = serde_json::json!({ "QueueUrl": queue, "VisibilityTimeout": 600 }).to_string();
    let received = second.sqs("ReceiveMessage", &receive);
    let receipt = received["Messages"][0]["ReceiptHandle"].clone();
    assert!(receipt.is_string(), "{received}");
    // A connection that waits at the owner ends with it, and its client comes back.
    let mut waits = Connection::open(&second.address);
    waits.send_request("POST", "/subscriptions/quiet/team/receive", &[], r#"{"wait":"20s"}"#);
    cluster_is_told(&first, &second);
    first.process.kill();
    assert!(waits.is_closed());
    second.serves();
    assert_eq!(second.take(), [4, 5, 6], "nothing confirmed is lost, and nothing acked comes again");
    let delete = serde_json::json!({ "QueueUrl": queue, "ReceiptHandle": receipt }).to_string();
    second.sqs("DeleteMessage", &delete);
    let left = serde_json::json!({ "QueueUrl": queue, "AttributeNames": ["All"] }).to_string();
    let left = second.sqs("GetQueueAttributes", &left);
    assert_eq!(
        left["Attributes"]["ApproximateNumberOfMessagesNotVisible"], "0",
        "the receipt is good: {left}"
    );
    second.publish(7..=8);

    // The next one is there when its owner stops, and has nothing to wait for.
    let third = Node::start(&servers, &cluster, "a", "standing by: node b");
    second.process.stop();
    let took = third.serves();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(third.take(), [7, 8]);
    assert_eq!(third.ok("GET", "/server", "")["epoch"], 3);
    third.process.stop();
}

/// Messages that are on their way when their owner is killed.
const ON_THEIR_WAY: u64 = 300;

#[test]
fn the_sdk_publishes_through_a_takeover_and_nothing_is_lost_or_doubled() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let cluster = unique();
    let first = Node::start(&servers, &cluster, "a", "listening on");
    first.ok("PUT", "/streams/work", "{}");
    first.ok("PUT", "/subscriptions/work/team", "{}");
    let second = Node::start(&servers, &cluster, "b", "standing by: node a");
    // By the owner and by the standby, which passes connections on.
    let addresses =
        [format!("{},{}", first.address, second.address), format!("{},{}", second.address, first.address)];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut sending = tokio::task::JoinSet::new();
        for (nth, address) in (0..).zip(addresses) {
            let client = Client::connect(address).await.expect("a node answers");
            let producer = Arc::new(client.producer("work").build());
            for number in nth * ON_THEIR_WAY..(nth + 1) * ON_THEIR_WAY {
                let producer = producer.clone();
                sending.spawn(async move { producer.send(Message::text(number.to_string())).await?.await });
            }
        }
        sending.join_next().await.expect("there are some").expect("no panic").expect("it is confirmed");
        first.process.kill();
        while let Some(sent) = sending.join_next().await {
            sent.expect("no panic").expect("it is confirmed, by one owner or the other");
        }
    });
    second.serves();
    let mut bodies: Vec<u64> = Vec::new();
    loop {
        let some = second.take();
        if some.is_empty() {
            break;
        }
        bodies.extend(some);
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..2 * ON_THEIR_WAY).collect::<Vec<_>>(), "each of them once");
    second.process.stop();
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
    let open =
        [&without("--listen")[..], &["--listen", "0.0.0.0:0", "--allow-anyone"].map(str::to_owned)].concat();
    serve(&open).refused(2, &["advertise must be set", "listen=`0.0.0.0:"]);
    for name in ["nats", "cluster", "node"] {
        serve(&without(&format!("--{name}"))).refused(2, &[name, "must be set if engine is `jetstream`"]);
    }
    serve(&all).refused(4, &["sync_interval: always", "nats_accept_loss", "server=`n0`"]);
    serve(&without("--nats-monitors")).refused(4, &["nats_monitors", "nats_accept_loss"]);
    let nowhere = [&without("--nats")[..], &["--nats".to_owned(), "nats://127.0.0.1:1".to_owned()]].concat();
    serve(&nowhere).refused(7, &["`nats` names the servers", "127.0.0.1:1"]);
}
