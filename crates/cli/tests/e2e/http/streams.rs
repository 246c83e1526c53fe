//! Streams: settings, publishing, looking, following.

use serde_json::json;

use crate::http::rig::{Server, numbers};
use crate::rig::Folder;

#[test]
fn a_stream_is_created_once_changed_and_deleted() {
    let server = Server::in_memory();
    let settings = r#"{"dedupe_window":"60s","limits":{"max_messages":5},"retention":{"max_age":"7d"}}"#;
    assert_eq!(server.call("PUT", "/streams/orders", settings).status, 201);
    assert_eq!(server.call("PUT", "/streams/orders", settings).status, 200);
    assert_eq!(server.call("PUT", "/streams/orders", "").status, 200);
    let other = r#"{"dedupe_window":"60s","limits":{"max_messages":6}}"#;
    assert_eq!(
        server.refused("PUT", "/streams/orders", other),
        "409 settings-differ limits.max_messages never"
    );
    let stream = server.ok("GET", "/streams/orders", "");
    assert_eq!(stream["settings"]["dedupe_window"], "1m");
    assert_eq!(
        stream["settings"]["retention"],
        json!({ "max_age": "7d", "max_bytes": null, "max_messages": null })
    );
    assert_eq!(
        (&stream["first_seq"], &stream["last_seq"], &stream["messages"]),
        (&json!(1), &json!(0), &json!(0))
    );
    let patch = r#"{"limits":{"max_messages":null,"on_full":"drop_oldest"},"ingress_rate":{"per_second":5}}"#;
    let changed = server.ok("PATCH", "/streams/orders", patch);
    let limits =
        json!({ "max_messages": null, "max_bytes": null, "max_age": null, "on_full": "drop_oldest" });
    assert_eq!(changed["settings"]["limits"], limits);
    assert_eq!(changed["settings"]["ingress_rate"], json!({ "per_second": 5.0, "burst": 1 }));
    assert_eq!(changed["settings"]["dedupe_window"], "1m", "what is left out stays");
    let changed = server.ok("PATCH", "/streams/orders", r#"{"ingress_rate":null}"#);
    assert_eq!(changed["settings"]["ingress_rate"], json!(null));
    assert_eq!(server.call("DELETE", "/streams/orders", "").status, 204);
    assert_eq!(server.refused("GET", "/streams/orders", ""), "404 no-such-stream - never");
    assert_eq!(server.refused("DELETE", "/streams/orders", ""), "404 no-such-stream - never");
    server.stop();
}

#[test]
fn names_are_percent_encoded_and_lists_have_pages() {
    let server = Server::in_memory();
    for name in ["a", "b%2Fc", "%C3%BC%20%25", "z"] {
        assert_eq!(server.call("PUT", &format!("/streams/{name}"), "").status, 201, "{name}");
    }
    assert_eq!(server.ok("GET", "/streams/b%2fc", "")["stream"], "b/c");
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.ok("GET", &format!("/streams?limit=3&after={after}"), "");
        let streams = page["streams"].as_array().expect("a list").clone();
        names.extend(streams.iter().map(|stream| stream["stream"].as_str().expect("a name").to_owned()));
        match page["next"].as_str() {
            Some(next) => after = next.replace('/', "%2F").replace('%', "%25").replace(' ', "%20"),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b/c", "z", "ü %"]);
    for (stream, group) in [("a", "one"), ("a", "two%25"), ("z", "one")] {
        assert_eq!(server.call("PUT", &format!("/subscriptions/{stream}/{group}"), "{}").status, 201);
    }
    let page = server.ok("GET", "/subscriptions?limit=2", "");
    assert_eq!(page["subscriptions"][1]["group"], "two%");
    let next = page["next"].as_str().expect("there are more").replace('%', "%25");
    let rest = server.ok("GET", &format!("/subscriptions?limit=2&after={next}"), "");
    assert_eq!((&rest["subscriptions"][0]["stream"], &rest["next"]), (&json!("z"), &json!(null)));
    let of_a = server.ok("GET", "/subscriptions/a", "");
    assert_eq!(of_a["subscriptions"].as_array().map(Vec::len), Some(2));
    assert_eq!(server.ok("GET", "/streams/a", "")["groups"], 2);
    server.stop();
}

#[test]
fn a_message_keeps_its_fields_and_its_id_is_stored_once() {
    let folder = Folder::new("fields");
    let server = Server::start(&folder);
    let message = concat!(
        r#"{ "id": "email-17", "type": "email.send", "schema": 3, "key": "user-4", "headers": { "trace": "x" },"#,
        r#" "body": { "to":   "a@example.com", "n": 1.50 }, "priority": 5, "ttl": "1h" }"#,
    );
    let body = format!(r#"{{ "messages": [ {message}, {{ "body_base64": "MTIz" }} ] }}"#);
    let reply = server.call("POST", "/streams/work/messages", &body);
    let results = json!([
        { "seq": 1, "id": "email-17", "duplicate": false, "log_position": 1 },
        { "seq": 2, "id": null, "duplicate": false, "log_position": 2 },
    ]);
    assert_eq!((reply.status, reply.json()), (201, json!({ "results": results })));
    let again = server.ok("POST", "/streams/work/messages", &format!(r#"{{"messages":[{message}]}}"#));
    assert_eq!(again["results"][0], json!({ "seq": 1, "id": "email-17", "duplicate": true }));
    server.kill();
    let server = Server::start(&folder);
    let text = server.call("GET", "/streams/work/messages", "").text();
    assert!(text.contains(r#""body":{ "to":   "a@example.com", "n": 1.50 }"#), "as it was written: {text}");
    assert!(text.contains(r#""body_base64":"MTIz""#), "bytes stay bytes: {text}");
    let page = server.ok("GET", "/streams/work/messages", "");
    let first = &page["messages"][0];
    assert_eq!(
        (&first["key"], &first["type"], &first["schema"]),
        (&json!("user-4"), &json!("email.send"), &json!(3))
    );
    assert_eq!((&first["priority"], &first["headers"]), (&json!(5), &json!({ "trace": "x" })));
    let published_at = first["published_at"].as_str().expect("a time");
    assert!(published_at.len() == 27 && published_at.ends_with('Z'), "{published_at}");
    server.stop();
}

#[test]
fn messages_are_browsed_by_pages_and_filters() {
    let server = Server::in_memory();
    server.publish("work", 1..=5);
    let some = r#"{"messages":[{"key":"a","type":"x"},{"key":"a","type":"y"},{"key":"b","type":"x"}]}"#;
    server.ok("POST", "/streams/work/messages", some);
    let seqs = |path: &str| {
        let page = server.ok("GET", path, "");
        let seqs = numbers(page["messages"].as_array().expect("a list"), "seq");
        (seqs, page["next"].as_str().map(str::to_owned))
    };
    let next = |text: &str| Some(text.to_owned());
    assert_eq!(seqs("/streams/work/messages?limit=2"), (vec![1, 2], next("3")));
    assert_eq!(seqs("/streams/work/messages?from=7&limit=2"), (vec![7, 8], None));
    assert_eq!(seqs("/streams/work/messages?from=9"), (vec![], None));
    assert_eq!(seqs("/streams/work/messages?key=a"), (vec![6, 7], None));
    assert_eq!(seqs("/streams/work/messages?key=a&type=x"), (vec![6], None));
    assert_eq!(seqs("/streams/work/messages?order=desc&limit=3"), (vec![8, 7, 6], next("5")));
    assert_eq!(seqs("/streams/work/messages?order=desc&from=2"), (vec![2, 1], None));
    assert_eq!(seqs("/streams/work/messages?order=desc&key=a"), (vec![7, 6], None));
    let wrong = server.call("GET", "/streams/work/messages?order=up", "");
    assert_eq!(wrong.problem(), "400 invalid-parameter order never");
    server.stop();
}

#[test]
fn a_batch_is_stored_only_where_it_was_expected_to_be() {
    let server = Server::in_memory();
    server.publish("work", 1..=2);
    let wrong =
        server.call("POST", "/streams/work/messages", r#"{"messages":[{"body":1}],"expect_last_seq":1}"#);
    assert_eq!(wrong.problem(), "409 wrong-last-seq - never");
    assert_eq!(wrong.json()["last_seq"], 2);
    let right = r#"{"messages":[{"body":1}],"expect_last_seq":2}"#;
    assert_eq!(server.ok("POST", "/streams/work/messages", right)["results"][0]["seq"], 3);
    server.stop();
}

#[test]
fn a_stream_is_followed_from_where_one_wants() {
    let server = Server::in_memory();
    server.publish("work", 1..=3);
    let mut reader = server.connect();
    reader.send_request("GET", "/streams/work/follow?from=2", &[], "");
    let head = reader.head().expect("it is answered");
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    for n in 2..=3u64 {
        let (id, data) = reader.event("message").expect("a message");
        assert_eq!((id, &data["seq"], &data["body"]), (n.to_string(), &json!(n), &json!(n)));
    }
    let mut resumed = server.connect();
    resumed.send_request("GET", "/streams/work/follow", &["last-event-id: 3"], "");
    assert_eq!(resumed.head().expect("it is answered").status, 200);
    let mut at_end = server.connect();
    at_end.send_request("GET", "/streams/work/follow?from=end", &[], "");
    assert_eq!(at_end.head().expect("it is answered").status, 200);
    server.publish("work", 4..=4);
    for reader in [&mut reader, &mut resumed, &mut at_end] {
        assert_eq!(reader.event("message").expect("a message").0, "4");
    }
    assert_eq!(server.refused("GET", "/streams/none/follow", ""), "404 no-such-stream - never");
    assert_eq!(server.refused("GET", "/streams/work/follow?from=x", ""), "400 invalid-parameter from never");
    server.ok("DELETE", "/streams/work", "");
    assert!(reader.event("gone").is_some(), "it is told when the stream goes");
    assert!(reader.chunk().is_none(), "and that is the end");
    server.stop();
}

#[test]
fn a_purge_says_how_many() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=4);
    assert_eq!(server.receive(r#"{"max":1}"#).len(), 1);
    assert_eq!(server.ok("POST", "/streams/work/purge", "")["purged"], 4);
    assert!(server.receive("{}").is_empty());
    assert_eq!(server.ok("POST", "/streams/work/purge", r#"{"parked":true}"#)["purged"], 0);
    server.stop();
}

#[test]
fn a_request_hands_its_trace_to_its_messages() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    let trace = ["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate: a=b"];
    let body = r#"{"messages":[{"body":1},{"body":2,"headers":{"traceparent":"own"}}]}"#;
    assert_eq!(server.connect().call_with("POST", "/streams/work/messages", &trace, body).status, 201);
    let got = server.receive(r#"{"max":2}"#);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(got[0]["headers"], json!({ "traceparent": parent, "tracestate": "a=b" }));
    assert_eq!(got[1]["headers"], json!({ "traceparent": "own" }));
    server.stop();
}
