//! A stream that is fed with the messages of all streams of a prefix, and a group on it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::http::rig::{Server, leases};
use crate::rig::Folder;

const STREAMS: u32 = 1_000;

/// Publishes to every stream, in one transaction for each hundred.
fn publish_to_each(server: &Server, streams: std::ops::Range<u32>, body: u32) {
    for first in streams.clone().step_by(100) {
        let part: Vec<Value> = (first..streams.end.min(first + 100))
            .map(|n| json!({ "stream": format!("orders-{n}"), "messages": [{ "body": body }] }))
            .collect();
        server.ok("POST", "/transactions", &json!({ "publish": part }).to_string());
    }
}

/// Takes messages and acks them until there are so many, and counts them by the stream that they come from.
fn consume(server: &Server, count: usize, seen: &mut BTreeMap<String, u64>) {
    let mut left = count;
    let group = "/streams/all-orders/groups/billing";
    while left > 0 {
        let wish = json!({ "max": left.min(500), "wait": "30s" }).to_string();
        let reply = server.ok("POST", &format!("{group}/receive"), &wish);
        let messages = reply["messages"].as_array().expect("a list").clone();
        assert!(!messages.is_empty(), "{left} messages are missing");
        for message in &messages {
            let source = &message["source"];
            let last = seen.entry(source["stream"].as_str().expect("a name").to_owned()).or_default();
            *last += 1;
            assert_eq!(source["seq"], *last, "in order, none left out and none twice: {message}");
            assert_eq!(message["body"], *last, "the message itself: {message}");
        }
        server.ok("POST", &format!("{group}/ack"), &format!(r#"{{"leases":{}}}"#, leases(&messages)));
        left -= messages.len();
    }
}

#[test]
fn a_group_takes_the_messages_of_a_thousand_streams_through_restarts_and_kills() {
    let folder = Folder::new("sources");
    let mut seen = BTreeMap::new();
    let server = Server::start(&folder);
    publish_to_each(&server, 0..STREAMS, 1);
    let fed = r#"{"source":{"prefix":"orders-"}}"#;
    let report = server.ok("PUT", "/streams/all-orders", fed);
    assert_eq!(report["settings"]["source"], json!({ "prefix": "orders-" }));
    server.ok("PUT", "/streams/all-orders/groups/billing", "");
    consume(&server, STREAMS as usize, &mut seen);
    server.kill();

    // Killed while messages are copied.
    for round in 2..5 {
        let server = Server::start(&folder);
        publish_to_each(&server, 0..STREAMS, round);
        server.kill();
    }
    let server = Server::start(&folder);
    consume(&server, 3 * STREAMS as usize, &mut seen);
    server.stop();

    // Streams that appear later.
    let server = Server::start(&folder);
    publish_to_each(&server, STREAMS..STREAMS + 10, 1);
    consume(&server, 10, &mut seen);
    let report = server.ok("GET", "/streams/all-orders", "");
    assert_eq!(report["last_seq"], u64::from(4 * STREAMS + 10), "nothing else was copied");
    assert_eq!(seen.len(), STREAMS as usize + 10);

    // A copy can be browsed; the message that it was made of is in its own stream.
    let page = server.ok("GET", "/streams/all-orders/messages?order=desc&limit=1", "");
    let source = &page["messages"][0]["source"];
    let path = format!("/streams/{}/messages", source["stream"].as_str().expect("a name"));
    let original = server.ok("GET", &path, "");
    assert_eq!((&original["messages"][0]["source"], &original["last_seq"]), (&Value::Null, &json!(1)));
    let off = server.ok("PATCH", "/streams/all-orders", r#"{"source":null}"#);
    assert_eq!(off["settings"]["source"], Value::Null);
    server.stop();
}

#[test]
fn a_source_that_cannot_be_is_refused_by_name() {
    let server = Server::in_memory();
    for (settings, problem) in [
        (r#"{"source":{"prefix":"$audit"}}"#, "400 invalid-field source.prefix never"),
        (r#"{"source":{"header":"eu"}}"#, "400 invalid-field source.header never"),
    ] {
        assert_eq!(server.refused("PUT", "/streams/fed", settings), problem, "{settings}");
    }
    assert_eq!(server.call("PUT", "/streams/fed", r#"{"source":{"suffix":"x"}}"#).status, 400);
    assert_eq!(server.call("GET", "/streams/fed", "").status, 404, "nothing was made");
    server.stop();
}
