//! Taking messages and settling them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::rig::{Server, leases, numbers};
use crate::rig::Folder;

fn server() -> Server {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", r#"{"backoff":{"min":"10ms","max":"20ms"}}"#);
    server
}

#[track_caller]
fn settle(server: &Server, verb: &str, body: &str) -> Vec<String> {
    let reply = server.ok("POST", &format!("/subscriptions/work/team/{verb}"), body);
    let results = reply["results"].as_array().expect("results");
    results.iter().map(|result| result["outcome"].as_str().expect("an outcome").to_owned()).collect()
}

#[test]
fn messages_are_taken_settled_and_brought_again() {
    let server = server();
    server.publish("work", 1..=6);
    let got = server.receive(r#"{"max":5,"consumer":"worker-1"}"#);
    assert_eq!(numbers(&got, "seq"), [1, 2, 3, 4, 5]);
    let first = &got[0];
    assert_eq!((&first["attempt"], &first["body"], &first["priority"]), (&json!(1), &json!(1), &json!(0)));
    assert!(first["deadline"].as_str() > first["published_at"].as_str());
    let body = |at: usize, more: &str| format!(r#"{{"leases":{}{more}}}"#, leases(&got[at..=at]));
    assert_eq!(settle(&server, "ack", &body(0, "")), ["acked"]);
    assert_eq!(settle(&server, "ack", &body(0, "")), ["not_yours"], "once is enough");
    assert_eq!(
        settle(&server, "nack", &body(1, r#","action":"retry","delay":"1ms","reason":"busy""#)),
        ["retrying"]
    );
    assert_eq!(settle(&server, "nack", &body(2, r#","action":"park","reason":"broken""#)), ["parked"]);
    assert_eq!(settle(&server, "nack", &body(3, r#","action":"skip""#)), ["skipped"]);
    assert_eq!(settle(&server, "extend", &body(4, r#","by":"1h""#)), ["extended"]);
    assert_eq!(settle(&server, "nack", &body(4, "")), ["retrying"], "auto is what the group's policy says");
    let mut again = Vec::new();
    while again.len() < 3 {
        again.extend(server.receive(r#"{"max":5,"wait":"10s"}"#));
    }
    again.sort_by_key(|message| message["seq"].as_u64());
    assert_eq!(numbers(&again, "seq"), [2, 5, 6]);
    assert_eq!(numbers(&again, "attempt"), [2, 2, 1]);
    let group = server.ok("GET", "/subscriptions/work/team", "");
    assert_eq!((&group["parked"], &group["in_flight"], &group["lag"]), (&json!(1), &json!(3), &json!(3)));
    assert_eq!(group["processing_time"]["count"], 5);
    let consumer = group["consumers"].as_array().expect("a list").iter().find(|of| of["name"] == "worker-1");
    let consumer = consumer.expect("it is listed");
    assert_eq!((&consumer["kind"], &consumer["acked"]), (&json!("polling"), &json!(1)));
    assert!(
        consumer["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")),
        "{consumer}"
    );
    server.stop();
}

#[test]
fn a_message_is_given_back_at_once_or_for_a_while_and_not_tried_by_that() {
    let server = server();
    server.publish("work", 1..=2);
    let got = server.receive(r#"{"max":2}"#);
    let body = |more: &str| format!(r#"{{"leases":{},"action":"return"{more}}}"#, leases(&got[..1]));
    assert_eq!(settle(&server, "nack", &body(r#","delay":"1h""#)), ["returned"]);
    assert_eq!(settle(&server, "nack", &body("")), ["not_yours"]);
    assert_eq!(server.receive("{}"), [] as [Value; 0], "it waits");
    let at_once = format!(r#"{{"leases":{},"action":"return"}}"#, leases(&got[1..]));
    assert_eq!(settle(&server, "nack", &at_once), ["returned"]);
    let again = server.receive(r#"{"wait":"10s"}"#);
    assert_eq!((numbers(&again, "seq"), numbers(&again, "attempt")), (vec![2], vec![1]));
    let group = server.ok("GET", "/subscriptions/work/team", "");
    assert_eq!((&group["waiting"], &group["lag"]), (&json!(1), &json!(2)));
    server.stop();
}

#[test]
fn a_nack_lets_the_whole_group_rest() {
    let server = server();
    server.publish("work", 1..=3);
    let got = server.receive(r#"{"max":2}"#);
    let rests = || server.ok("GET", "/subscriptions/work/team", "")["resting_for"].clone();
    assert_eq!(rests(), Value::Null);
    assert_eq!(settle(&server, "nack", r#"{"leases":["forged"],"rest":"5m"}"#), ["not_yours"]);
    assert_eq!(rests(), Value::Null, "a stranger stops nobody");
    let body = |at: usize, rest: &str| {
        format!(r#"{{"leases":{},"action":"return","rest":"{rest}"}}"#, leases(&got[at..=at]))
    };
    assert_eq!(settle(&server, "nack", &body(0, "5m")), ["returned"]);
    let left = rests().as_f64().expect("it rests");
    assert!((200.0..=300.0).contains(&left), "resting_for=`{left}`");
    assert_eq!(settle(&server, "nack", &body(1, "1s")), ["returned"]);
    assert!(rests().as_f64() > Some(100.0), "no rest is made shorter");
    assert_eq!(server.receive("{}"), [] as [Value; 0]);
    server.stop();
}

#[test]
fn a_stale_or_forged_lease_is_not_yours() {
    let server = server();
    server.publish("work", 1..=1);
    let got = server.receive(r#"{"timeout":"50ms"}"#);
    let again = server.receive(r#"{"wait":"10s"}"#);
    assert_eq!(numbers(&again, "attempt"), [2]);
    let stale = format!(r#"{{"leases":[{},"forged",""]}}"#, got[0]["lease"]);
    assert_eq!(settle(&server, "ack", &stale), ["not_yours", "not_yours", "not_yours"]);
    assert_eq!(
        settle(&server, "extend", &format!(r#"{{"leases":{},"by":"5s"}}"#, leases(&got))),
        ["not_yours"]
    );
    assert_eq!(settle(&server, "ack", &format!(r#"{{"leases":{}}}"#, leases(&again))), ["acked"]);
    server.ok("PUT", "/subscriptions/work/others", "{}");
    server.stop();
}

#[test]
fn a_long_poll_is_answered_as_soon_as_a_message_comes_and_empty_when_none_does() {
    let server = server();
    let mut poll = server.connect();
    poll.send_request("POST", "/subscriptions/work/team/receive", &[], r#"{"wait":"10m"}"#);
    waiting(&server, 1);
    server.publish("work", 1..=1);
    let reply = poll.reply().expect("it is answered");
    assert_eq!(reply.json()["messages"][0]["seq"], 1);
    let empty = poll.call("POST", "/subscriptions/work/team/receive", r#"{"wait":"20ms"}"#);
    assert_eq!((empty.status, empty.json()), (200, json!({ "messages": [] })));
    server.stop();
}

/// Waits until so many receives wait at the server.
#[track_caller]
fn waiting(server: &Server, count: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    let wanted = format!("forebay_receives_waiting {count}\n");
    while !server.call("GET", "/metrics", "").text().contains(&wanted) {
        assert!(Instant::now() < until, "there are not {count} waiting");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_who_leaves_during_a_long_poll_takes_nothing_along() {
    let server = server();
    let poll = |_| {
        let mut poll = server.connect();
        poll.send_request("POST", "/subscriptions/work/team/receive", &[], r#"{"max":10,"wait":"10m"}"#);
        poll
    };
    let polls: Vec<_> = (0..20).map(poll).collect();
    waiting(&server, 20);
    drop(polls);
    waiting(&server, 0);
    server.publish("work", 1..=5);
    let got = server.receive(r#"{"max":10}"#);
    assert_eq!((numbers(&got, "seq"), numbers(&got, "attempt")), (vec![1, 2, 3, 4, 5], vec![1; 5]));
    server.stop();
}

#[test]
fn a_message_is_moved_to_another_stream() {
    let server = server();
    server.publish("work", 1..=1);
    let got = server.receive("{}");
    let body = format!(r#"{{"leases":{},"action":{{"move":"other"}}}}"#, leases(&got));
    assert_eq!(settle(&server, "nack", &body), ["moving"]);
    let until = Instant::now() + Duration::from_secs(10);
    while server.call("GET", "/streams/other/messages", "").json()["messages"][0]["body"] != json!(1) {
        assert!(Instant::now() < until, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    let path = "/subscriptions/work/team/nack";
    let wrong = server.refused("POST", path, r#"{"leases":["x"],"action":{"move":"$x"}}"#);
    assert_eq!(wrong, "400 invalid-field action.move never");
    server.stop();
}

#[test]
fn leases_survive_a_crash_with_the_time_that_is_left() {
    let folder = Folder::new("leases");
    let server = Server::start(&folder);
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=2);
    let long = server.receive(r#"{"timeout":"10m"}"#);
    let short = server.receive(r#"{"timeout":"1s"}"#);
    assert_eq!((numbers(&long, "seq"), numbers(&short, "seq")), (vec![1], vec![2]));
    server.kill();
    let server = Server::start(&folder);
    let again = server.receive(r#"{"max":10,"wait":"20s","timeout":"20s"}"#);
    assert_eq!((numbers(&again, "seq"), numbers(&again, "attempt")), (vec![2], vec![2]));
    // Its lease lasts 20 s from when it was handed out, which was not before the first one had run out.
    let seconds = |message: &Value| {
        let time = message["deadline"].as_str().expect("a time");
        let number = |range: std::ops::Range<usize>| time[range].parse::<f64>().expect("a number");
        number(11..13) * 3_600.0 + number(14..16) * 60.0 + number(17..26)
    };
    let between = (seconds(&again[0]) - seconds(&short[0])).rem_euclid(86_400.0);
    assert!((20.0..40.0).contains(&between), "{between}");
    assert_eq!(settle(&server, "ack", &format!(r#"{{"leases":{}}}"#, leases(&long))), ["acked"]);
    server.stop();
}

#[test]
fn a_server_that_stops_answers_those_who_wait() {
    let server = server();
    let mut poll = server.connect();
    poll.send_request("POST", "/subscriptions/work/team/receive", &[], r#"{"wait":"10m"}"#);
    let mut events = server.connect();
    events.send_request("GET", "/events", &[], "");
    let mut follower = server.connect();
    server.publish("work", 1..=1);
    assert_eq!(poll.reply().expect("it is answered").json()["messages"][0]["seq"], 1);
    follower.send_request("GET", "/streams/work/follow?from=end", &[], "");
    assert_eq!(follower.head().expect("it is answered").status, 200);
    assert_eq!(events.head().expect("it is answered").status, 200);
    poll.send_request("POST", "/subscriptions/work/team/receive", &[], r#"{"wait":"10m"}"#);
    waiting(&server, 1);
    server.tell_to_stop();
    let reply = poll.reply().expect("it is answered");
    assert_eq!((reply.status, reply.json()), (200, json!({ "messages": [] })));
    while follower.chunk().is_some() {}
    while events.chunk().is_some() {}
    server.wait();
}
