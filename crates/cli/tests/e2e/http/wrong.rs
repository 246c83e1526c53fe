//! Every way in which a request can be wrong, and the error of each.

use crate::http::rig::Server;

#[test]
fn a_wrong_body_is_refused_by_what_is_wrong_with_it() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    let (stream, group) = ("/streams/work", "/subscriptions/work/team");
    let messages = "/streams/work/messages";
    let receive = "/subscriptions/work/team/receive";
    let settle = |verb: &str| format!("/subscriptions/work/team/{verb}");
    for (method, path, body, expected) in [
        ("PUT", stream, r#"{"retension":"work"}"#, "400 unknown-field retension never"),
        ("PUT", stream, r#"{"limits":{"max":1}}"#, "400 unknown-field limits.max never"),
        ("PUT", stream, r#"{"dedupe_window":"10"}"#, "400 invalid-field dedupe_window never"),
        ("PUT", stream, r#"{"dedupe_window":600}"#, "400 invalid-field dedupe_window never"),
        ("PUT", stream, r#"{"dedupe_window":"400d"}"#, "400 invalid-field dedupe_window never"),
        ("PUT", stream, r#"{"dedupe_max":-1}"#, "400 invalid-field dedupe_max never"),
        ("PUT", stream, r#"{"dedupe_max":5000000000}"#, "400 invalid-field dedupe_max never"),
        ("PUT", stream, r#"{"limits":{"max_bytes":0}}"#, "400 invalid-field limits.max_bytes never"),
        ("PUT", stream, "{", "400 malformed-json - never"),
        ("PUT", stream, "{} x", "400 malformed-json - never"),
        ("PUT", stream, "[]", "400 invalid-field - never"),
        ("PATCH", stream, r#"{"limits":[5]}"#, "400 invalid-field limits never"),
        ("POST", messages, r#"{"messages":[["id"],[]]}"#, "400 invalid-field messages[0] never"),
        ("PATCH", group, r#"{"max_retrys":1}"#, "400 unknown-field max_retrys never"),
        ("PATCH", group, r#"{"message_timeout":"soon"}"#, "400 invalid-field message_timeout never"),
        ("PATCH", group, r#"{"message_timeout":null}"#, "400 invalid-field message_timeout never"),
        ("PATCH", group, r#"{"message_timeout":"0s"}"#, "400 invalid-field message_timeout never"),
        ("PATCH", group, r#"{"strategy":"random"}"#, "400 invalid-field strategy never"),
        ("PATCH", group, r#"{"backoff":{"jitter":2}}"#, "400 invalid-field backoff.jitter never"),
        ("PATCH", group, r#"{"backoff":{"min":"1h"}}"#, "400 invalid-field backoff.min never"),
        ("PATCH", group, r#"{"on_exhausted":{"move":"work"}}"#, "400 invalid-field on_exhausted.move never"),
        ("PATCH", group, r#"{"window_max":0}"#, "400 invalid-field window_max never"),
        ("POST", messages, "{}", "400 invalid-field messages never"),
        ("POST", messages, r#"{"messages":[]}"#, "400 empty-batch messages never"),
        ("POST", messages, r#"{"messages":[{"bdy":1}]}"#, "400 unknown-field messages[0].bdy never"),
        ("POST", messages, r#"{"messages":[{"delay":"x"}]}"#, "400 invalid-field messages[0].delay never"),
        (
            "POST",
            messages,
            r#"{"messages":[{},{"priority":10}]}"#,
            "400 invalid-field messages[1].priority never",
        ),
        (
            "POST",
            messages,
            r#"{"messages":[{"deliver_at":"now"}]}"#,
            "400 invalid-field messages[0].deliver_at never",
        ),
        ("POST", receive, r#"{"max":0}"#, "400 invalid-field max never"),
        ("POST", receive, r#"{"max":1001}"#, "400 invalid-field max never"),
        ("POST", receive, r#"{"wait":"11m"}"#, "400 invalid-field wait never"),
        ("POST", receive, r#"{"wait":"1.5s"}"#, "400 invalid-field wait never"),
        ("POST", receive, r#"{"timeout":"0s"}"#, "400 invalid-field timeout never"),
        ("POST", &settle("ack"), "{}", "400 invalid-field leases never"),
        ("POST", &settle("ack"), r#"{"leases":[]}"#, "400 invalid-field leases never"),
        ("POST", &settle("nack"), r#"{"leases":["x"],"action":"drop"}"#, "400 invalid-field action never"),
        (
            "POST",
            &settle("nack"),
            r#"{"leases":["x"],"action":"park","delay":"1s"}"#,
            "400 invalid-field delay never",
        ),
        ("POST", &settle("nack"), r#"{"leases":["x"],"rest":"301s"}"#, "400 invalid-field rest never"),
        ("POST", &settle("extend"), r#"{"leases":["x"]}"#, "400 invalid-field by never"),
        ("POST", &settle("extend"), r#"{"leases":["x"],"by":"5"}"#, "400 invalid-field by never"),
        ("POST", &settle("pause"), r#"{"for":"5s"}"#, "400 unknown-field for never"),
        ("POST", &settle("reset"), "{}", "400 invalid-field to never"),
        (
            "POST",
            &settle("parked/replay"),
            r#"{"filter":{"reasn":"x"}}"#,
            "400 unknown-field filter.reasn never",
        ),
        (
            "POST",
            &settle("parked/replay"),
            r#"{"all":true,"rate":{"per_second":0}}"#,
            "400 invalid-field rate.per_second never",
        ),
    ] {
        assert_eq!(server.refused(method, path, body), expected, "{method} {path} {body}");
    }
    let unit = server.call("PUT", stream, r#"{"dedupe_window":"10"}"#).json();
    assert!(
        unit["detail"].as_str().is_some_and(|text| text.contains("\"30s\"")),
        "an example is shown: {unit}"
    );
    let unknown = server.call("PUT", stream, r#"{"retension":"work"}"#).json();
    assert!(unknown["detail"].as_str().is_some_and(|text| text.contains("`retention`")), "{unknown}");
    let broken = server.call("PUT", stream, "{\n  \"dedupe_max\": ,\n}").json();
    assert!(broken["detail"].as_str().is_some_and(|text| text.contains("line=`2` column=`17`")), "{broken}");
    server.stop();
}

#[test]
fn a_wrong_path_method_name_or_parameter_is_refused() {
    let server = Server::in_memory();
    let long = format!("/streams/{}", "x".repeat(256));
    for (method, path, expected) in [
        ("GET", "/stream", "404 no-such-path - never"),
        ("GET", "/streams/", "404 no-such-path - never"),
        ("GET", "/subscriptions/a/b/c", "404 no-such-path - never"),
        ("GET", "/streams/none", "404 no-such-stream - never"),
        ("GET", "/subscriptions/none", "404 no-such-stream - never"),
        ("GET", "/subscriptions/none/team", "404 no-such-stream - never"),
        ("GET", "/streams/none/messages", "404 no-such-stream - never"),
        ("PUT", "/streams/$system", "400 invalid-name stream never"),
        ("PUT", "/streams/a%00b", "400 invalid-name stream never"),
        ("PUT", "/streams/%ff", "400 malformed-request - never"),
        ("PUT", "/subscriptions/a/%24b", "400 invalid-name group never"),
        ("PUT", "/subscriptions/a/b%2Fc", "400 invalid-name group never"),
        ("PUT", &long, "400 invalid-name stream never"),
        ("GET", "/streams?limit=0", "400 invalid-parameter limit never"),
        ("GET", "/streams?limit=1001", "400 invalid-parameter limit never"),
        ("GET", "/streams?limit=ten", "400 invalid-parameter limit never"),
        ("GET", "/streams?lmit=1", "400 unknown-parameter lmit never"),
        ("GET", "/streams?limit=1&limit=2", "400 invalid-parameter limit never"),
        ("GET", "/subscriptions?after=x", "400 invalid-parameter after never"),
        ("PUT", "/streams/a?x=1", "400 unknown-parameter x never"),
        ("GET", "/livez?x=1", "400 unknown-parameter x never"),
    ] {
        assert_eq!(server.refused(method, path, ""), expected, "{method} {path}");
    }
    for (method, path, allowed) in [
        ("POST", "/streams/a", "DELETE,GET,HEAD,PATCH,PUT"),
        ("DELETE", "/streams", "GET,HEAD"),
        ("PUT", "/streams/a/messages", "GET,HEAD,POST"),
        ("GET", "/subscriptions/a/b/receive", "POST"),
        ("BREW", "/livez", "GET,HEAD"),
    ] {
        let reply = server.call(method, path, "");
        assert_eq!(reply.problem(), "405 method-not-allowed - never", "{method} {path}");
        let mut allow: Vec<&str> = reply.header("allow").expect("it says which").split(',').collect();
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
        let detail = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
        let named = detail.split("allowed=`").nth(1).unwrap_or_default().trim_end_matches('`');
        let named: Vec<&str> = named.split(", ").collect();
        assert!(allow.iter().filter(|method| **method != "HEAD").eq(&named), "{method} {path}: {detail}");
    }
    server.stop();
}

#[test]
fn only_json_is_taken_and_only_for_this_server() {
    let server = Server::in_memory();
    let call = |headers: &[&str]| {
        let mut connection = server.connect();
        let mut headers = headers.to_vec();
        headers.push("content-length: 2");
        connection.send_request("PUT", "/streams/a", &headers, "");
        connection.send(b"{}");
        connection.reply().expect("it is answered")
    };
    for wrong in ["text/plain", "multipart/form-data", "application/jsonx", ""] {
        let reply = call(&[&format!("content-type: {wrong}")]);
        assert_eq!(reply.problem(), "415 unsupported-media-type - never", "{wrong}");
    }
    for right in ["application/json", "Application/JSON; charset=utf-8", "application/x-www-form-urlencoded"]
    {
        assert!(call(&[&format!("content-type: {right}")]).status < 300, "{right}");
    }
    assert_eq!(call(&[]).status, 200, "none at all will do");
    let own = format!("origin: http://{}", server.address);
    assert_eq!(call(&[&own]).status, 200);
    assert_eq!(call(&["origin: http://evil.example"]).problem(), "403 origin-not-allowed - never");
    let mut connection = server.connect();
    connection.send(b"GET /streams HTTP/1.1\r\nhost: evil.example\r\n\r\n");
    assert_eq!(connection.reply().expect("it is answered").problem(), "403 host-not-allowed - never");
    server.stop();
}

#[test]
fn a_full_stream_and_a_fast_producer_are_told_to_come_later() {
    let server = Server::in_memory();
    server.ok("PUT", "/streams/small", r#"{"limits":{"max_messages":2}}"#);
    server.publish("small", 1..=2);
    let body = r#"{"messages":[{"body":3}]}"#;
    assert_eq!(server.refused("POST", "/streams/small/messages", body), "429 stream-full - later");
    server.ok("PUT", "/streams/slow", r#"{"ingress_rate":{"per_second":0.01,"burst":1}}"#);
    // A new rate begins with its burst.
    server.publish("slow", 1..=1);
    let reply = server.call("POST", "/streams/slow/messages", body);
    assert_eq!(reply.problem(), "429 too-fast - later");
    let after: u64 = reply.header("retry-after").and_then(|after| after.parse().ok()).expect("seconds");
    assert!((2..=100).contains(&after), "{after}");
    assert!(reply.json()["retry_after"].as_f64().is_some_and(|seconds| seconds > 1.0));
    server.ok("PUT", "/subscriptions/work/team", r#"{"max_consumers":1}"#);
    server.publish("work", 1..=1);
    server.receive(r#"{"consumer":"one"}"#);
    let second = server.refused("POST", "/subscriptions/work/team/receive", r#"{"consumer":"two"}"#);
    assert_eq!(second, "429 too-many-consumers - later");
    server.stop();
}

#[test]
fn the_largest_numbers_there_are_do_no_harm() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=1);
    let most = u64::MAX;
    for (method, path, body) in [
        ("GET", format!("/streams/work/messages?from={most}"), String::new()),
        ("GET", format!("/streams/work/messages?from={most}&key=a"), String::new()),
        (
            "POST",
            "/streams/work/messages".to_owned(),
            format!(r#"{{"messages":[{{}}],"expect_last_seq":{most}}}"#),
        ),
        ("POST", "/streams/work/messages".to_owned(), format!(r#"{{"messages":[{{"schema":{most}}}]}}"#)),
        ("GET", format!("/subscriptions/work/team/parked?after={most}"), String::new()),
        ("GET", format!("/subscriptions/work/team/parked/{most}"), String::new()),
        ("POST", format!("/subscriptions/work/team/parked/{most}/resubmit"), String::new()),
        ("POST", "/subscriptions/work/team/parked/replay".to_owned(), format!(r#"{{"seqs":[0,{most}]}}"#)),
        (
            "POST",
            "/subscriptions/work/team/parked/discard".to_owned(),
            format!(r#"{{"all":true,"limit":{most}}}"#),
        ),
        ("POST", "/subscriptions/work/team/reset".to_owned(), format!(r#"{{"to":{{"seq":{most}}}}}"#)),
        (
            "POST",
            "/subscriptions/work/team/reset".to_owned(),
            r#"{"to":{"time":"9999-12-31T23:59:59Z"}}"#.to_owned(),
        ),
        ("PUT", "/subscriptions/work/late".to_owned(), format!(r#"{{"start":{{"seq":{most}}}}}"#)),
        (
            "PATCH",
            "/streams/work".to_owned(),
            format!(r#"{{"limits":{{"max_bytes":{most},"max_messages":{most}}}}}"#),
        ),
        ("GET", format!("/subscriptions/work/team/jobs/{}", u32::MAX), String::new()),
    ] {
        let reply = server.call(method, &path, &body);
        assert!(reply.status < 500, "{method} {path} {body}: {}", reply.text());
    }
    assert_eq!(server.call("GET", "/readyz", "").status, 200);
    server.publish("work", 1..=1);
    server.stop();
}

/// A page of another site that has given its own name this server's address may send any content type.
#[test]
fn what_says_that_it_is_grpc_comes_past_nobody() {
    let server = Server::in_memory();
    server.ok("PUT", "/streams/kept", "{}");
    let mut connection = server.connect();
    let mut text = "POST /forebay.v1.Forebay/DeleteStream HTTP/1.1\r\nhost: evil.example\r\n".to_owned();
    text.push_str(
        "origin: http://evil.example\r\ncontent-type: application/grpc\r\ncontent-length: 11\r\n\r\n",
    );
    let mut bytes = text.into_bytes();
    bytes.extend(b"\x00\x00\x00\x00\x06\x0a\x04kept");
    assert!(connection.send(&bytes));
    assert_eq!(connection.reply().expect("it is answered").problem(), "403 host-not-allowed - never");
    server.ok("GET", "/streams/kept", "");
}

#[test]
fn a_client_of_sqs_is_told_where_sqs_is() {
    let server = Server::start_with(&["--memory", "--sqs", "127.0.0.1:0"]);
    let signed = "authorization: AWS4-HMAC-SHA256 Credential=a/20261115/us-east-1/sqs/aws4_request";
    for header in [signed, "x-amz-target: AmazonSQS.CreateQueue"] {
        let reply = server.connect().call_with("POST", "/", &[header], r#"{"QueueName":"jobs"}"#);
        let told = reply.json();
        assert_eq!((reply.status, &told["__type"]), (400, &"com.amazonaws.sqs#UnsupportedOperation".into()));
        let text = told["message"].as_str().unwrap_or_default();
        assert!(text.starts_with("this port has the native API of Forebay; SQS is on port "), "{text}");
    }
    server.stop();
}
