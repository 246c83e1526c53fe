//! Parked messages and jobs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::rig::{Server, leases, numbers};

const TEAM: &str = "/subscriptions/work/team";

/// Seven messages are parked: 1, 2, 3 as `bad address`, 4, 5, 6, 7 as `down`.
fn server() -> Server {
    let server = Server::in_memory();
    server.ok("PUT", TEAM, "{}");
    let messages = r#"{"messages":[{"key":"a","type":"t","body":1,"headers":{"x":"1"},"priority":0},
        {"key":"a","body":2},{"body":3},{"body":4},{"key":"a","body":5},{"body":6},{"body":7}]}"#;
    server.ok("POST", "/streams/work/messages", messages);
    let got = server.receive(r#"{"max":7,"consumer":"worker-1"}"#);
    assert_eq!(got.len(), 7);
    for (messages, reason) in [(&got[..3], "bad address"), (&got[3..], "down")] {
        let body = format!(r#"{{"leases":{},"action":"park","reason":"{reason}"}}"#, leases(messages));
        server.ok("POST", &format!("{TEAM}/nack"), &body);
    }
    server
}

#[track_caller]
fn parked(server: &Server, query: &str) -> Vec<u64> {
    let page = server.ok("GET", &format!("{TEAM}/parked{query}"), "");
    numbers(page["parked"].as_array().expect("a list"), "seq")
}

/// The job once it is over.
fn finished(server: &Server, job: &Value) -> Value {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let report = server.ok("GET", &format!("{TEAM}/jobs/{job}"), "");
        if report["state"] != "running" {
            return report;
        }
        assert!(Instant::now() < until, "{report}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn parked_messages_are_seen_with_what_happened_to_them() {
    let server = server();
    assert_eq!(parked(&server, ""), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(parked(&server, "?reason=bad%20address&key=a"), [1, 2]);
    assert_eq!(parked(&server, "?type=t"), [1]);
    assert_eq!(parked(&server, "?after=5&limit=1"), [6]);
    let page = server.ok("GET", &format!("{TEAM}/parked?limit=2"), "");
    assert_eq!(page["next"], "2");
    let one = server.ok("GET", &format!("{TEAM}/parked/1"), "");
    assert_eq!(
        (&one["seq"], &one["attempts"], &one["reason"]),
        (&json!(1), &json!(1), &json!("bad address"))
    );
    assert_eq!((&one["consumer"], &one["message"]["body"]), (&json!("worker-1"), &json!(1)));
    assert_eq!(one["history"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["history"][0]["reason"], "bad address");
    assert!(one["parked_at"].is_string());
    let reasons = server.ok("GET", &format!("{TEAM}/parked/reasons"), "");
    let expected = json!([{ "reason": "down", "count": 4 }, { "reason": "bad address", "count": 3 }]);
    assert_eq!(reasons["reasons"], expected);
    assert_eq!(server.refused("GET", &format!("{TEAM}/parked/99"), ""), "404 not-parked - never");
    server.stop();
}

#[test]
fn parked_messages_are_brought_back_and_let_go() {
    let server = server();
    let replay = |body: &str| server.ok("POST", &format!("{TEAM}/parked/replay"), body);
    let dry = replay(r#"{"filter":{"reason":"down"},"dry_run":true}"#);
    assert_eq!(dry, json!({ "matched": 4, "job": null }));
    assert_eq!(parked(&server, "").len(), 7, "it was only asked");
    let started = replay(r#"{"filter":{"reason":"down"},"limit":2,"rate":{"per_second":5000}}"#);
    assert_eq!(started["matched"], 2);
    let job = finished(&server, &started["job"]);
    assert_eq!((&job["done"], &job["failed"], &job["work"]), (&json!(2), &json!(0), &json!("replay")));
    assert_eq!(parked(&server, ""), [1, 2, 3, 6, 7]);
    finished(&server, &replay(r#"{"seqs":[1,1,2]}"#)["job"]);
    let mut again = server.receive(r#"{"max":9,"wait":"10s"}"#);
    again.sort_by_key(|message| message["seq"].as_u64());
    assert_eq!(numbers(&again, "seq"), [1, 2, 4, 5]);
    assert_eq!(replay(r#"{"filter":{"key":"nobody"}}"#), json!({ "matched": 0, "job": null }));
    let discard = server.ok("POST", &format!("{TEAM}/parked/discard"), r#"{"all":true}"#);
    assert_eq!(discard["matched"], 3);
    finished(&server, &discard["job"]);
    assert_eq!(parked(&server, ""), [0u64; 0]);
    let jobs = server.ok("GET", &format!("{TEAM}/jobs"), "");
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(3));
    server.stop();
}

#[test]
fn an_empty_selection_is_refused() {
    let server = server();
    for verb in ["replay", "discard"] {
        for body in ["", "{}", r#"{"seqs":[]}"#, r#"{"filter":{}}"#, r#"{"all":false}"#, r#"{"limit":5}"#] {
            let refused = server.refused("POST", &format!("{TEAM}/parked/{verb}"), body);
            assert_eq!(refused, "400 empty-selection - never", "{verb} {body}");
        }
        let both = server.refused("POST", &format!("{TEAM}/parked/{verb}"), r#"{"all":true,"seqs":[1]}"#);
        assert_eq!(both, "400 invalid-field all never");
    }
    assert_eq!(parked(&server, "").len(), 7);
    server.stop();
}

#[test]
fn a_job_is_cancelled_and_what_it_did_stays_done() {
    let server = server();
    let slow = r#"{"all":true,"rate":{"per_second":0.1}}"#;
    let job = server.ok("POST", &format!("{TEAM}/parked/replay"), slow)["job"].clone();
    assert_eq!(server.call("DELETE", &format!("{TEAM}/jobs/{job}"), "").status, 204);
    assert_eq!(finished(&server, &job)["state"], "cancelled");
    assert!(parked(&server, "").len() >= 5);
    assert_eq!(server.refused("DELETE", &format!("{TEAM}/jobs/{job}"), ""), "404 no-such-job - never");
    assert_eq!(server.refused("GET", &format!("{TEAM}/jobs/99"), ""), "404 no-such-job - never");
    assert_eq!(server.refused("GET", &format!("{TEAM}/jobs/x"), ""), "404 no-such-path - never");
    server.stop();
}

#[test]
fn an_edited_copy_takes_the_place_of_a_parked_message() {
    let server = server();
    let reply =
        server.call("POST", &format!("{TEAM}/parked/1/resubmit"), r#"{"body":{"fixed":true},"id":"new"}"#);
    let copy = json!({ "seq": 8, "id": "new", "duplicate": false, "log_position": 8 });
    assert_eq!((reply.status, reply.json()), (201, copy));
    assert_eq!(parked(&server, ""), [2, 3, 4, 5, 6, 7]);
    let got = server.receive(r#"{"max":9,"wait":"10s"}"#);
    let copy = &got[0];
    assert_eq!(
        (&copy["seq"], &copy["body"], &copy["key"]),
        (&json!(8), &json!({ "fixed": true }), &json!("a"))
    );
    assert_eq!(
        (&copy["type"], &copy["headers"]),
        (&json!("t"), &json!({ "x": "1" })),
        "the rest is as it was"
    );
    let again = server.refused("POST", &format!("{TEAM}/parked/1/resubmit"), "{}");
    assert_eq!(again, "404 not-parked - never");
    server.stop();
}
