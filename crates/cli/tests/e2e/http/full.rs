//! A disk that is full, again and again: publishing is refused and says so, everything else goes on, and when
//! there is room again publishing goes on by itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::client::Connection;
use crate::http::rig::{Server, leases, numbers};
use crate::rig::Folder;

/// A few for every day. `cargo xtask full` asks for fifty.
const CYCLES: u32 = 4;
/// The smallest files there are. The reserve is four of them, and one must stay free.
const SMALL: &[&str] = &[
    "--segment-bytes",
    "32MiB",
    "--reserve-bytes",
    "128MiB",
    "--free-bytes-min",
    "32MiB",
    "--disk-max-bytes",
    "320MiB",
];
const BODY: usize = 400_000;
const BATCH: usize = 10;
/// How long the server may take to find that there is room again.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_full_disk_stops_producers_and_nobody_else_and_loses_nothing() {
    let folder = Folder::new("full");
    let mut server = Server::start_as(&folder, SMALL);
    server.ok("PUT", "/subscriptions/work/team", r#"{"message_timeout":"10m"}"#);
    // A message is parked durably when the call is answered, whatever happens to the server then.
    server.ok("PUT", "/subscriptions/side/team", r#"{"acks":"durable"}"#);
    // Something parked at the front of the log, which stays there all the time.
    server.ok("POST", "/streams/side/messages", r#"{"messages":[{"body":"kept"},{"body":"kept too"}]}"#);
    park(&server, 2);

    let (mut number, mut confirmed) = (0, BTreeSet::new());
    let cycles =
        std::env::var("FOREBAY_FULL_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
    for cycle in 1..=cycles {
        let mut producer = server.connect();
        let mut refusals = 0;
        // Full, and still so: the little that is freed by itself is used up.
        while refusals < 3 {
            let bodies: Vec<u64> = (number..number + BATCH as u64).collect();
            let reply = publish(&mut producer, &bodies);
            if reply.status == 201 {
                confirmed.extend(bodies);
                number += BATCH as u64;
            } else {
                assert_eq!(reply.problem(), "507 storage-full - later", "cycle {cycle}");
                refusals += 1;
            }
            assert!(number < 1_000_000, "the disk never fills");
        }
        // Although the stream is full, parked messages can be replayed, received and parked again.
        server.ok("POST", "/subscriptions/side/team/parked/replay", r#"{"all":true}"#);
        park(&server, 2);
        if cycle % 4 == 0 {
            server.kill();
            server = Server::start_as(&folder, SMALL);
        }
        drain(&server, &mut confirmed);
        assert!(confirmed.is_empty(), "cycle {cycle}: {} are lost", confirmed.len());
        let began = Instant::now();
        let mut producer = server.connect();
        while publish(&mut producer, &[number]).status != 201 {
            assert!(
                began.elapsed() < PATIENCE,
                "cycle {cycle}: there is room, and publishing is still refused"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        confirmed.insert(number);
        number += 1;
    }
    let parked = server.ok("GET", "/subscriptions/side/team/parked", "");
    let parked = parked["parked"].as_array().expect("a list");
    assert_eq!(numbers(parked, "seq"), [1, 2]);
    assert_eq!(parked[0]["message"]["body"], "kept");
    server.stop();
}

/// Each body begins with its number.
fn publish(producer: &mut Connection, bodies: &[u64]) -> crate::http::client::Reply {
    let filler = "x".repeat(BODY);
    let messages: Vec<String> =
        bodies.iter().map(|number| format!(r#"{{"body":[{number},"{filler}"]}}"#)).collect();
    let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
    producer.call("POST", "/streams/work/messages", &body)
}

fn park(server: &Server, count: usize) {
    let mut parked = 0;
    while parked < count {
        let wish = r#"{"max":10,"wait":"10s"}"#;
        let reply = server.ok("POST", "/subscriptions/side/team/receive", wish);
        let messages = reply["messages"].as_array().expect("a list");
        assert!(!messages.is_empty(), "a replayed message comes");
        let nack = format!(r#"{{"leases":{},"action":"park","reason":"kept"}}"#, leases(messages));
        let reply = server.ok("POST", "/subscriptions/side/team/nack", &nack);
        for result in reply["results"].as_array().expect("a list") {
            assert_eq!(result["outcome"], "parked");
            parked += 1;
        }
    }
}

/// Receives and acks everything that is there.
fn drain(server: &Server, confirmed: &mut BTreeSet<u64>) {
    while !confirmed.is_empty() {
        let messages = server.receive(r#"{"max":50,"wait":"10s"}"#);
        assert!(!messages.is_empty(), "{} never come, from {:?} on", confirmed.len(), confirmed.first());
        for message in &messages {
            let number = message["body"][0].as_u64().expect("a number");
            assert_eq!(message["body"][1].as_str().map(str::len), Some(BODY), "its content is whole");
            assert!(confirmed.remove(&number), "{number} was never confirmed, or comes twice");
        }
        let ack = format!(r#"{{"leases":{}}}"#, leases(&messages));
        let reply = server.ok("POST", "/subscriptions/work/team/ack", &ack);
        let acked = |result: &Value| result["outcome"] == "acked";
        assert!(reply["results"].as_array().expect("a list").iter().all(acked), "{reply}");
    }
}
