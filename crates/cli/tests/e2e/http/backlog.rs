//! Large backlogs: nothing deliverable waits, and nothing is gathered in memory.

use std::time::{Duration, Instant};

use crate::http::rig::{Server, numbers};
use crate::rig::Folder;

/// An ordered group, with leases that outlast the test.
const ORDERED: &str = r#"{"strategy":"ordered","message_timeout":"10m"}"#;

/// Publishes messages of one key, a thousand at a time.
fn publish_key(server: &Server, key: &str, count: usize, body: &str) {
    let mut connection = server.connect();
    let message = format!(r#"{{"key":"{key}","body":"{body}"}}"#);
    let mut left = count;
    while left > 0 {
        let some = left.min(1_000);
        let messages = vec![&message[..]; some].join(",");
        let reply =
            connection.call("POST", "/streams/work/messages", &format!(r#"{{"messages":[{messages}]}}"#));
        assert!(reply.status < 300, "{} {}", reply.status, reply.text());
        left -= some;
    }
}

#[test]
fn a_free_key_behind_a_long_run_of_a_held_one_is_found_at_once() {
    let folder = Folder::new("http-free-key");
    let server = Server::start(&folder);
    server.ok("PUT", "/subscriptions/work/team", ORDERED);
    publish_key(&server, "a", 30_000, "x");
    publish_key(&server, "b", 1, "x");
    assert_eq!(numbers(&server.receive(r#"{"max":1,"consumer":"first"}"#), "seq"), [1]);
    let begun = Instant::now();
    let second = server.receive(r#"{"max":1,"wait":"30s","consumer":"second"}"#);
    assert_eq!(numbers(&second, "seq"), [30_001]);
    assert!(begun.elapsed() < Duration::from_millis(500), "it took {:?}", begun.elapsed());
    server.stop();
}

#[test]
fn an_ordered_group_goes_on_at_once_after_a_crash() {
    let folder = Folder::new("http-order-again");
    let server = Server::start(&folder);
    server.ok("PUT", "/subscriptions/work/team", ORDERED);
    // 100,000 unsettled messages, of which one at the front and ten near the end are leased.
    publish_key(&server, "a", 100_000, &"x".repeat(200));
    assert_eq!(numbers(&server.receive(r#"{"max":1,"consumer":"first"}"#), "seq"), [1]);
    let keys: Vec<String> = (0..10).map(|n| format!(r#"{{"key":"b{n}","body":1}}"#)).collect();
    server.ok("POST", "/streams/work/messages", &format!(r#"{{"messages":[{}]}}"#, keys.join(",")));
    let mut held = 0;
    while held < 10 {
        held += server.receive(r#"{"max":10,"wait":"30s","consumer":"second"}"#).len();
    }
    publish_key(&server, "c", 1, "x");
    server.kill();

    let server = Server::start(&folder);
    let listening = Instant::now();
    let third = server.receive(r#"{"max":1,"wait":"30s","consumer":"third"}"#);
    assert_eq!(numbers(&third, "seq"), [100_011]);
    assert!(listening.elapsed() < Duration::from_secs(1), "it took {:?}", listening.elapsed());
    server.stop();
}
