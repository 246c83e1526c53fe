//! Whether the server lives, what it says about itself, and what its document promises.

use serde_json::{Value, json};

use crate::http::rig::Server;

/// The calls of the contract.
const CONTRACT: &str = "
    PUT /streams/{stream}
    PATCH /streams/{stream}
    DELETE /credentials/{id}
    GET /credentials
    POST /credentials
    PUT /credentials/{id}/password
    GET /streams
    GET /streams/{stream}
    DELETE /streams/{stream}
    POST /streams/{stream}/messages
    GET /streams/{stream}/messages
    POST /streams/{stream}/purge
    POST /streams/{stream}/truncate
    POST /transactions
    GET /streams/{stream}/follow
    GET /log
    GET /log/follow
    PUT /streams/{stream}/groups/{group}
    PATCH /streams/{stream}/groups/{group}
    GET /groups
    GET /streams/{stream}/groups
    GET /streams/{stream}/groups/{group}
    DELETE /streams/{stream}/groups/{group}
    POST /streams/{stream}/groups/{group}/receive
    POST /streams/{stream}/groups/{group}/ack
    POST /streams/{stream}/groups/{group}/nack
    POST /streams/{stream}/groups/{group}/extend
    POST /streams/{stream}/groups/{group}/pause
    POST /streams/{stream}/groups/{group}/resume
    POST /streams/{stream}/groups/{group}/reset
    GET /streams/{stream}/groups/{group}/parked
    GET /streams/{stream}/groups/{group}/parked/reasons
    GET /streams/{stream}/groups/{group}/parked/{seq}
    POST /streams/{stream}/groups/{group}/parked/replay
    POST /streams/{stream}/groups/{group}/parked/move
    POST /streams/{stream}/groups/{group}/parked/discard
    POST /streams/{stream}/groups/{group}/parked/{seq}/resubmit
    GET /streams/{stream}/groups/{group}/jobs
    GET /streams/{stream}/groups/{group}/jobs/{job}
    DELETE /streams/{stream}/groups/{group}/jobs/{job}
    GET /streams/{stream}/groups/{group}/scaling
    GET /streams/{stream}/groups/{group}/history
    GET /streams/{stream}/messages/{seq}/life
    GET /connections
    DELETE /connections/{connection}
    GET /cluster
    GET /server
    GET /problems/{kind}
    GET /livez
    GET /readyz
    GET /history
    GET /metrics
    GET /openapi.json
    GET /events
    GET /
";

#[test]
fn the_document_has_the_calls_of_the_contract_and_the_server_has_those_of_the_document() {
    let server = Server::in_memory();
    let document = server.ok("GET", "/openapi.json", "");
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    let mut documented: Vec<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods").keys();
            methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
        })
        .collect();
    documented.sort();
    let mut contract: Vec<&str> = CONTRACT.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    contract.sort_unstable();
    assert_eq!(documented, contract);
    for call in &documented {
        let (method, path) = call.split_once(' ').expect("a method and a path");
        let path = path.replace("{stream}", "none").replace("{group}", "none");
        let path = path.replace("{seq}", "1").replace("{job}", "1").replace("{kind}", "busy");
        let path = path.replace("{id}", "none").replace("{connection}", "1000000");
        let mut connection = server.connect();
        connection.send_request(method, &path, &[], "");
        let reply =
            if ["/events", "/log/follow"].contains(&&*path) { connection.head() } else { connection.reply() };
        let reply = reply.unwrap_or_else(|| panic!("{call} was not answered"));
        assert!(reply.status != 405, "{call}");
        if reply.status >= 400 {
            assert_ne!(reply.problem(), "404 no-such-path - never", "{call}");
        }
    }
    server.stop();
}

#[test]
fn every_field_that_comes_is_in_the_document() {
    let server = Server::in_memory();
    let document = server.ok("GET", "/openapi.json", "");
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=2);
    let got = server.receive(r#"{"consumer":"w"}"#);
    let group = server.ok("GET", "/subscriptions/work/team", "");
    let stream = server.ok("GET", "/streams/work", "");
    for (name, value) in [
        ("GroupReport", &group),
        ("GroupSettings", &group["settings"]),
        ("Throughput", &group["throughput"]),
        ("Consumer", &group["consumers"][0]),
        ("StreamReport", &stream),
        ("StreamSettings", &stream["settings"]),
        ("Delivery", &got[0]),
    ] {
        let properties = &document["components"]["schemas"][name]["properties"];
        for field in value.as_object().expect("an object").keys() {
            assert!(properties.get(field).is_some(), "{name} has no {field}: {properties}");
        }
    }
    server.stop();
}

#[test]
fn the_server_says_that_it_lives_and_what_it_does() {
    let server = Server::in_memory();
    assert_eq!(server.call("GET", "/livez", "").text(), "alive\n");
    assert_eq!(server.call("GET", "/readyz", "").text(), "ready\n");
    let page = server.call("GET", "/", "");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").is_some() && page.text().contains("/openapi.json"));
    server.ok("PUT", "/subscriptions/a%22b/team", "{}");
    server.publish("a%22b", 1..=3);
    let taken = server.ok("POST", "/subscriptions/a%22b/team/receive", r#"{"max":1}"#);
    let ack = json!({ "leases": [taken["messages"][0]["lease"]] }).to_string();
    server.ok("POST", "/subscriptions/a%22b/team/ack", &ack);
    let metrics = server.call("GET", "/metrics", "").text();
    for line in [
        "forebay_ready 1",
        "forebay_streams 1",
        "forebay_groups 1",
        "forebay_stream_last_seq{stream=\"a\\\"b\"} 3",
        "forebay_group_lag{stream=\"a\\\"b\",group=\"team\"} 2",
        "# TYPE forebay_group_end_to_end_seconds histogram",
        "forebay_group_end_to_end_seconds_bucket{stream=\"a\\\"b\",group=\"team\",le=\"+Inf\"} 1",
        "forebay_group_end_to_end_seconds_count{stream=\"a\\\"b\",group=\"team\"} 1",
        "forebay_group_processing_seconds_bucket{stream=\"a\\\"b\",group=\"team\",le=\"+Inf\"} 1",
        "# TYPE forebay_commit_seconds histogram",
        "forebay_left_out{what=\"groups\"} 0",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    for line in metrics.lines() {
        let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
        let has_value = line.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok());
        assert!(is_comment || has_value, "{line}");
    }
    server.stop();
}

#[test]
fn groups_in_need_and_those_with_the_largest_backlog_have_series() {
    let server = Server::start_with(&["--memory", "--metrics-series-max", "2"]);
    for (group, lag) in [("a", 0), ("b", 5), ("c", 700), ("d", 300), ("e", 0)] {
        server.ok("PUT", &format!("/subscriptions/{group}/team"), "{}");
        if lag > 0 {
            server.publish(group, 1..=lag);
        }
    }
    // It waits for an operator, although next to nothing waits in it.
    server.ok("POST", "/subscriptions/b/team/pause", "");
    let has = |metrics: &str, stream: &str| {
        metrics.contains(&format!("forebay_group_lag{{stream=\"{stream}\",group=\"team\"}}"))
    };
    let shown = |metrics: &str| -> String {
        ["a", "b", "c", "d", "e"].into_iter().filter(|stream| has(metrics, stream)).collect()
    };
    let metrics = server.call("GET", "/metrics", "").text();
    assert_eq!(shown(&metrics), "bc");
    for line in [
        "forebay_groups 5",
        "forebay_left_out{what=\"groups\"} 3",
        "forebay_left_out{what=\"streams\"} 3",
        "forebay_left_out_messages{state=\"unsettled\"} 300",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    // A series stays although another group has a little more, and goes when one has much more.
    server.ok("POST", "/subscriptions/b/team/resume", "");
    assert_eq!(shown(&server.call("GET", "/metrics", "").text()), "cd");
    server.publish("e", 1..=400);
    assert_eq!(shown(&server.call("GET", "/metrics", "").text()), "cd");
    server.publish("e", 401..=1_400);
    assert_eq!(shown(&server.call("GET", "/metrics", "").text()), "ce");
    server.stop();
}

#[test]
fn the_history_has_the_figures_of_the_last_seconds() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=9);
    let last = |path: &str| {
        let history = server.ok("GET", path, "");
        let points = history["lag"].as_array().expect("a list");
        assert_eq!((points.len(), history["step"].as_u64()), (30, Some(10)), "{history}");
        points.last().cloned().unwrap_or_default()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for path in ["/history", "/streams/work/groups/team/history"] {
        while last(&format!("{path}?span=5m&points=30")).as_f64() != Some(9.0) {
            assert!(std::time::Instant::now() < until, "{path} never has the backlog");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
    for (query, field) in [("points=0", "points"), ("span=8d", "span"), ("span=10s&points=11", "span")] {
        let refused = server.refused("GET", &format!("/history?{query}"), "");
        assert_eq!(refused, format!("400 invalid-parameter {field} never"));
    }
    let refused = server.refused("GET", "/streams/work/groups/none/history", "");
    assert!(refused.starts_with("404 no-such-group"), "{refused}");
    server.stop();
}

#[test]
fn one_who_watches_is_told_what_changes() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    let mut watcher = server.connect();
    watcher.send_request("GET", "/events", &[], "");
    assert_eq!(watcher.head().expect("it is answered").status, 200);
    assert_eq!(watcher.event("server").expect("it is told").1["stage"], "running");
    let mut late = server.connect();
    late.send_request("GET", "/events", &[], "");
    assert_eq!(late.head().expect("it is answered").status, 200);
    assert_eq!(late.event("group").expect("a new one is told everything").1["lag"], 0);
    server.publish("work", 1..=7);
    let until_lag = |watcher: &mut crate::http::client::Connection, lag: u64| loop {
        let (_, data) = watcher.event("group").expect("it is told");
        if data["lag"].as_u64() == Some(lag) {
            return data;
        }
    };
    let group: Value = until_lag(&mut watcher, 7);
    assert_eq!(group["group"], "team");
    until_lag(&mut late, 7);
    server.ok("DELETE", "/subscriptions/work/team", "");
    assert_eq!(watcher.event("gone").expect("it is told").1["group"], "team");
    server.stop();
}

#[test]
fn both_protocols_share_the_port_and_a_connection_serves_many_requests() {
    let server = Server::in_memory();
    let mut connection = server.connect();
    for n in 1..=100u64 {
        let reply = connection.call("POST", "/streams/work/messages", r#"{"messages":[{"body":1}]}"#);
        assert_eq!((reply.status, reply.json()["results"][0]["seq"].as_u64()), (201, Some(n)));
    }
    // Two requests at once are answered in their order.
    let mut text = Vec::new();
    for path in ["/livez", "/readyz"] {
        text.extend(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes());
    }
    connection.send(&text);
    assert_eq!(connection.reply().expect("it is answered").text(), "alive\n");
    assert_eq!(connection.reply().expect("it is answered").text(), "ready\n");
    server.stop();
}

#[test]
fn the_older_paths_of_groups_answer_the_same() {
    let server = Server::in_memory();
    server.ok("PUT", "/streams/work/groups/team", r#"{"max_retries":3}"#);
    assert_eq!(server.ok("PUT", "/subscriptions/work/team", "{}")["settings"]["max_retries"], 3);
    let settings = |path: &str| server.ok("GET", path, "")["settings"].clone();
    assert_eq!(settings("/streams/work/groups/team"), settings("/subscriptions/work/team"));
    for (path, field) in
        [("/groups", "groups"), ("/streams/work/groups", "groups"), ("/subscriptions/work", "subscriptions")]
    {
        assert_eq!(server.ok("GET", path, "")[field][0]["group"], "team", "{path}");
    }
    server.publish("work", 1..=1);
    let got = server.ok("POST", "/streams/work/groups/team/receive", "{}");
    let body = format!(r#"{{"leases":[{}]}}"#, got["messages"][0]["lease"]);
    let settled = server.ok("POST", "/subscriptions/work/team/ack", &body);
    assert_eq!(settled["results"][0]["outcome"], "acked");
    server.stop();
}

#[test]
fn the_server_tells_its_version_and_what_its_problems_mean() {
    let server = Server::in_memory();
    let about = server.ok("GET", "/server", "");
    assert_eq!((&about["version"], &about["stage"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("running")));
    let refused = server.call("GET", "/streams/none", "");
    assert!(refused.text().ends_with("}\n"), "a prompt begins on its own line: {}", refused.text());
    let kind = refused.json()["type"].as_str().expect("a type").to_owned();
    let meaning = server.call("GET", &kind, "");
    assert_eq!(meaning.status, 200);
    assert!(meaning.text().contains("The stream does not exist."), "{}", meaning.text());
    assert_eq!(server.refused("GET", "/problems/nothing", ""), "404 no-such-path - never");
    server.stop();
}

#[test]
fn a_server_that_drains_says_so_and_takes_nothing_more() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.publish("work", 1..=1);
    // A consumer with a connection holds a message, and may finish it.
    let mut holder = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["sub", "work/team", "--server", &server.address])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    while server.ok("GET", "/subscriptions/work/team", "")["in_flight"] != 1 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut connection = server.connect();
    assert_eq!(connection.call("GET", "/readyz", "").status, 200);
    server.tell_to_stop();
    while connection.call("GET", "/readyz", "").status == 200 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(server.refused("GET", "/readyz", ""), "503 not-ready - later");
    assert_eq!(server.call("GET", "/livez", "").status, 200);
    let body = r#"{"messages":[{"body":1}]}"#;
    assert_eq!(server.refused("POST", "/streams/work/messages", body), "503 stopping - later");
    assert_eq!(server.refused("POST", "/subscriptions/work/team/receive", ""), "503 stopping - later");
    assert_eq!(server.refused("PUT", "/streams/other", ""), "503 stopping - later");
    holder.kill().expect("it can be killed");
    holder.wait().expect("it ends");
    server.wait();
}
