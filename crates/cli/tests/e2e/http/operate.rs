//! Groups: settings, monitoring, pausing, resetting, scaling.

use serde_json::json;

use crate::http::rig::{Server, leases, numbers};

#[test]
fn a_group_is_created_once_changed_and_deleted() {
    let server = Server::in_memory();
    let settings = concat!(
        r#"{ "start": "end", "strategy": "ordered", "message_timeout": "45s", "max_retries": "unlimited","#,
        r#" "on_exhausted": { "move": "elsewhere" }, "backoff": { "min": "1s" }, "rate": { "per_second": 100 } }"#,
    );
    let created = server.call("PUT", "/subscriptions/work/team", settings);
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(
        server.ok("GET", "/streams/work", "")["group_names"],
        json!(["team"]),
        "the stream came with it"
    );
    assert_eq!(server.call("PUT", "/subscriptions/work/team", settings).status, 200);
    assert_eq!(server.call("PUT", "/subscriptions/work/team", "").status, 200);
    for (differs, field) in [
        (r#"{"message_timeout":"46s"}"#, "message_timeout"),
        (r#"{"max_retries":10}"#, "max_retries"),
        (r#"{"backoff":{"min":"1s","factor":3}}"#, "backoff.factor"),
        (r#"{"rate":null}"#, "rate"),
        (r#"{"rate":{"per_second":100,"burst":2}}"#, "rate.burst"),
        (r#"{"on_exhausted":"park"}"#, "on_exhausted"),
        (r#"{"start":"beginning"}"#, "start"),
    ] {
        let refused = server.refused("PUT", "/subscriptions/work/team", differs);
        assert_eq!(refused, format!("409 settings-differ {field} never"), "{differs}");
    }
    let expected = json!({
        "start": "end", "strategy": "ordered", "message_timeout": "45s", "max_retries": "unlimited",
        "on_exhausted": { "move": "elsewhere" },
        "backoff": { "min": "1s", "max": "30s", "factor": 2.0, "jitter": 0.5 },
        "key_batch": 1, "on_parked_key": "continue", "fairness": "none", "priority_age_step": "1m",
        "window_max": 100_000, "parked_max": 1_000_000, "parked_max_age": null, "max_in_flight": 10_000,
        "max_consumers": 0, "rate": { "per_second": 100.0, "burst": 1 }, "acks": "journal",
        "checkpoint": { "interval": "2s", "min": 10, "max": 1_000 }, "buffer": 500, "extra_statistics": true,
    });
    let told = created.json()["settings"].clone();
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&told[name], value, "{name}");
    }
    let mut names: Vec<&str> = forebay_model::GroupSettings::FIELDS.iter().map(|field| field.name).collect();
    names.sort_unstable();
    assert_eq!(told.as_object().map(|told| told.keys().map(String::as_str).collect()), Some(names));
    let patch = r#"{"rate":null,"parked_max_age":"1h","max_retries":3,"extra_statistics":false}"#;
    let changed = server.ok("PATCH", "/subscriptions/work/team", patch);
    let settings = &changed["settings"];
    assert_eq!((&settings["rate"], &settings["max_retries"]), (&json!(null), &json!(3)));
    assert_eq!((&settings["parked_max_age"], &settings["strategy"]), (&json!("1h"), &json!("ordered")));
    assert_eq!(changed["processing_time"], json!(null), "nobody wants it");
    assert_eq!(
        server.refused("PATCH", "/subscriptions/work/team", r#"{"start":"beginning"}"#),
        "400 invalid-field start never"
    );
    server.ok("PATCH", "/subscriptions/work/team", r#"{"start":"end","max_retries":4}"#);
    assert_eq!(server.call("DELETE", "/subscriptions/work/team", "").status, 204);
    assert_eq!(server.refused("GET", "/subscriptions/work/team", ""), "404 no-such-group - never");
    server.stop();
}

#[test]
fn a_group_tells_everything_that_is_promised() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=3);
    server.receive(r#"{"max":1,"consumer":"w"}"#);
    let group = server.ok("GET", "/subscriptions/work/team", "");
    for name in [
        "stream",
        "group",
        "status",
        "settings",
        "last_known_seq",
        "last_processed_seq",
        "last_checkpointed_seq",
        "lag",
        "oldest_age",
        "in_flight",
        "ready",
        "waiting",
        "parked",
        "oldest_parked_age",
        "throughput",
        "catch_up_time",
        "processing_time",
        "consumers",
    ] {
        assert!(group.get(name).is_some(), "{name} is missing");
    }
    for name in ["settled", "acked", "retried", "parked", "timed_out", "expired", "moved", "dropped"] {
        for over in ["1s", "1m", "15m"] {
            assert!(group["throughput"][name][over].is_number(), "{name} {over}");
        }
    }
    for name in ["count", "mean", "stddev", "p50", "p90", "p95", "p99", "p999", "max"] {
        assert!(group["processing_time"][name].is_number(), "{name}");
    }
    let consumer = &group["consumers"][0];
    for name in
        ["name", "address", "connected_at", "in_flight", "credit", "acked", "failed", "processing_time"]
    {
        assert!(consumer.get(name).is_some(), "{name} is missing");
    }
    assert_eq!(
        (&group["lag"], &group["in_flight"], &group["last_known_seq"]),
        (&json!(3), &json!(1), &json!(3))
    );
    assert!(group["oldest_age"].is_number());
    server.stop();
}

#[test]
fn a_paused_group_hands_out_nothing_and_a_reset_moves_it() {
    let server = Server::in_memory();
    server.ok("PUT", "/streams/work", r#"{"retention":{"max_messages":1000}}"#);
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=5);
    assert_eq!(server.ok("POST", "/subscriptions/work/team/pause", ""), json!({ "paused": true }));
    assert_eq!(server.ok("GET", "/subscriptions/work/team", "")["status"], "paused");
    assert!(server.receive(r#"{"max":5}"#).is_empty());
    assert_eq!(server.ok("POST", "/subscriptions/work/team/resume", "{}"), json!({ "paused": false }));
    let got = server.receive(r#"{"max":5}"#);
    assert_eq!(got.len(), 5);
    server.ok("POST", "/subscriptions/work/team/ack", &format!(r#"{{"leases":{}}}"#, leases(&got)));
    let reset =
        |body: &str| server.ok("POST", "/subscriptions/work/team/reset", body)["settled_through"].clone();
    assert_eq!(reset(r#"{"to":{"seq":4}}"#), 3);
    assert_eq!(numbers(&server.receive(r#"{"max":9,"wait":"5s"}"#), "seq"), [4, 5]);
    assert_eq!(reset(r#"{"to":"end","parked":"keep"}"#), 5);
    assert_eq!(reset(r#"{"to":"beginning","parked":"drop"}"#), 0);
    assert_eq!(numbers(&server.receive(r#"{"max":9,"wait":"5s"}"#), "seq"), [1, 2, 3, 4, 5]);
    assert_eq!(reset(r#"{"to":{"time":"1999-01-01T00:00:00Z"}}"#), 0);
    let wrong = server.refused("POST", "/subscriptions/work/team/reset", r#"{"to":"middle"}"#);
    assert_eq!(wrong, "400 invalid-field to never");
    let before = server.ok("GET", "/subscriptions/work/team", "")["lag"].clone();
    let beyond = server.refused("POST", "/subscriptions/work/team/reset", r#"{"to":{"seq":500}}"#);
    assert_eq!(beyond, "409 no-such-position - never");
    assert_eq!(server.ok("GET", "/subscriptions/work/team", "")["lag"], before, "nothing was settled");
    assert_eq!(reset(r#"{"to":{"seq":6}}"#), 5, "the next message is where a group may wait");
    server.stop();
}

#[test]
fn an_autoscaler_is_told_how_many_consumers_there_should_be() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=10);
    let advice = server.ok("GET", "/subscriptions/work/team/scaling?target_drain=5m&min=1&max=50", "");
    assert_eq!((&advice["backlog"], &advice["in_flight"]), (&json!(10), &json!(0)));
    for name in ["oldest_age", "arrival_rate", "service_rate", "desired_consumers"] {
        assert!(advice[name].is_number(), "{name}: {advice}");
    }
    assert!(advice.get("drain_time").is_some());
    for (query, wrong) in [
        ("target_drain=5", "400 invalid-parameter target_drain never"),
        ("min=-1", "400 invalid-parameter min never"),
        ("min=5&max=1", "400 invalid-parameter min never"),
        ("mon=1", "400 unknown-parameter mon never"),
    ] {
        let path = format!("/subscriptions/work/team/scaling?{query}");
        assert_eq!(server.refused("GET", &path, ""), wrong);
    }
    server.stop();
}

#[test]
fn a_stream_with_consumers_is_deleted_only_by_force() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=1);
    assert_eq!(server.receive(r#"{"consumer":"w"}"#).len(), 1);
    assert_eq!(server.refused("DELETE", "/streams/work", ""), "409 in-use - never");
    assert_eq!(
        server.refused("DELETE", "/streams/work?force=maybe", ""),
        "400 invalid-parameter force never"
    );
    assert_eq!(server.call("DELETE", "/streams/work?force=true", "").status, 204);
    server.stop();
}
