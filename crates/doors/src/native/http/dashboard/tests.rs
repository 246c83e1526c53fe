//! Requests for pages, without a browser.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use forebay_broker::api::{Broker, BrokerConfig, Clock, Principal};
use forebay_core::types::Timestamp;
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::json::{ClusterLog, ClusterNode, ClusterReport, NatsServer, NodeRole};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::native::alerts::Alerts;
use crate::native::http::HttpDoor;
use crate::native::node::{LogLine, NodeFacts, SettingRow};
use crate::native::{ClusterReporter, NativeConfig};

const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
const FRAME_BYTES_MAX: usize = 32 << 20;
const SCRIPT: &str = "<script>alert(1)</script>\"'&";
/// The name of a group has no slash.
const GROUP: &str = "<script>alert(1)\"'&";

struct Rig(HttpDoor);

impl Rig {
    async fn start() -> Rig {
        Rig::start_with(&NativeConfig::default()).await
    }

    async fn start_with(native: &NativeConfig) -> Rig {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
        let (broker, _) =
            Broker::open(Arc::new(engine), Clock::start(), config).await.expect("a new log opens");
        Rig(HttpDoor::new(broker.entrance(), native))
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.0.answer(FROM, Principal::owner(), request.body(Body::from(body)).expect("a request")).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.ask(method, path, &[], &body).await;
        assert!(answer.status().is_success(), "{method} {path}: {}", text(answer).await);
        serde_json::from_str(&text(answer).await).unwrap_or(Value::Null)
    }

    async fn page(&self, path: &str) -> (StatusCode, String) {
        let answer = self.ask("GET", path, &[], &Value::Null).await;
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("a policy").to_owned();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        (answer.status(), text(answer).await)
    }

    /// A stream whose name, and everything in it, is a script, with one message parked.
    async fn with_hostile_texts() -> Rig {
        let rig = Rig::start().await;
        let name = super::view::encoded(SCRIPT);
        let group = format!("/subscriptions/{name}/{}", super::view::encoded(GROUP));
        rig.call("PUT", &group, json!({ "on_exhausted": { "move": GROUP } })).await;
        let message = json!({
            "id": SCRIPT, "key": SCRIPT, "type": SCRIPT, "headers": { SCRIPT: SCRIPT }, "body": { SCRIPT: SCRIPT },
        });
        rig.call("POST", &format!("/streams/{name}/messages"), json!({ "messages": [message] })).await;
        let taken = rig.call("POST", &format!("{group}/receive"), json!({ "consumer": SCRIPT })).await;
        let leases = json!([taken["messages"][0]["lease"]]);
        let nack = json!({ "leases": leases, "action": "park", "reason": SCRIPT });
        rig.call("POST", &format!("{group}/nack"), nack).await;
        rig
    }
}

async fn text(answer: Response<Body>) -> String {
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Every page of the hostile stream and group.
fn pages() -> Vec<String> {
    let name = super::view::encoded(SCRIPT);
    let group = format!("/ui/streams/{name}/groups/{}", super::view::encoded(GROUP));
    vec![
        "/".to_owned(),
        "/ui?span=7d".to_owned(),
        "/ui/streams".to_owned(),
        format!("/ui/streams/{name}"),
        format!("/ui/streams/{name}?key={name}&type={name}"),
        format!("/ui/streams/{name}/messages/1"),
        "/ui/groups?sort=lag".to_owned(),
        format!("/ui/groups?q={name}"),
        group.clone(),
        "/ui/parked".to_owned(),
        format!("{group}/parked"),
        format!("{group}/parked?reason={name}&q={name}"),
        format!("{group}/parked/1"),
        "/ui/delayed".to_owned(),
        "/ui/clients".to_owned(),
        "/ui/cluster".to_owned(),
        "/ui/node".to_owned(),
    ]
}

#[tokio::test]
async fn hostile_text_is_text_on_every_page() {
    let rig = Rig::with_hostile_texts().await;
    for path in pages() {
        let (status, page) = rig.page(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(!page.contains("<script>"), "{path}");
        assert!(!page.contains("style=\""), "{path} has an inline style, which the policy forbids");
        assert!(!page.contains("alert(1)</script>"), "{path}");
    }
    let (_, page) = rig.page(&format!("/ui/streams/{}/messages/1", super::view::encoded(SCRIPT))).await;
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"), "the text is shown");
}

#[tokio::test]
async fn the_page_of_a_cluster_shows_what_the_api_reports() {
    let rig = Rig::start().await;
    let (_, page) = rig.page("/ui/cluster").await;
    assert!(page.contains("This server is one machine"), "{page}");
    assert!(!page.contains("href=\"../ui/cluster\""), "one machine has no entry for a cluster: {page}");
    let node = |name: &str, role, tenure_left, records_behind| ClusterNode {
        node: name.to_owned(),
        address: "10.0.0.1:7070".to_owned(),
        version: "0.1.0".to_owned(),
        role,
        term: if role == NodeRole::Owner { 1_234 } else { 0 },
        tenure_left,
        records_behind,
    };
    let server = |name: &str, leader, online, current| NatsServer {
        name: name.to_owned(),
        leader,
        online,
        current,
        records_behind: if current { 0 } else { 512 },
        silent_for: (!online).then_some(90.0),
    };
    let report = ClusterReport {
        cluster: Some("main".to_owned()),
        node: Some("a".to_owned()),
        role: NodeRole::Owner,
        owner: Some("a".to_owned()),
        owner_address: Some("10.0.0.1:7070".to_owned()),
        term: 1_234,
        nodes: vec![node("a", NodeRole::Owner, Some(7.5), 0), node(SCRIPT, NodeRole::Standby, None, 77_000)],
        log: Some(ClusterLog {
            stream: "FOREBAY".to_owned(),
            last_record: 5_000_000,
            bytes: 3 << 30,
            max_bytes: None,
            servers: vec![
                server("n1", true, true, true),
                server("n2", false, true, false),
                server("n3", false, false, false),
            ],
        }),
        problem: None,
    };
    let asked = Arc::new(std::sync::Mutex::new(report));
    let answers = asked.clone();
    let cluster = ClusterReporter::new(move || {
        let report = answers.lock().expect("no test panics with it").clone();
        async move { report }
    });
    let config = NativeConfig { cluster: Some(cluster), ..NativeConfig::default() };
    let rig = Rig::start_with(&config).await;
    let (status, page) = rig.page("/ui/cluster").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    for text in
        ["href=\"../ui/cluster\"", "1,234", "7.5s", "77k", "GiB", "leader", "offline", "behind", "1m 30s ago"]
    {
        assert!(page.contains(text), "{text} is missing in {page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("does not answer"), "{page}");
    asked.lock().expect("no test panics with it").nodes.remove(0);
    let (_, page) = rig.page("/ui/cluster").await;
    assert!(page.contains("does not answer"), "{page}");
}

#[tokio::test]
async fn addresses_on_pages_are_relative() {
    let rig = Rig::with_hostile_texts().await;
    for path in pages() {
        let (_, page) = rig.page(&path).await;
        for attribute in
            ["href=\"/", "src=\"/", "data-address=\"/", "data-then=\"/", "href=\"http", "src=\"http"]
        {
            assert!(!page.contains(attribute), "{path} has {attribute}");
        }
    }
}

#[tokio::test]
async fn what_does_not_exist_is_a_page_that_says_so() {
    let rig = Rig::start().await;
    for (path, status) in [
        ("/ui/nowhere", 404),
        ("/ui/streams/none", 404),
        ("/ui/streams/none/groups/none", 404),
        ("/ui/streams/none/groups/none/parked", 404),
        ("/ui/streams/none/messages/x", 404),
        ("/ui?span=1y", 400),
        ("/ui/groups?colour=red", 400),
        ("/ui/streams/%ff", 400),
        ("/ui/streams/$x", 400),
    ] {
        let (answered, page) = rig.page(path).await;
        assert_eq!(answered.as_u16(), status, "{path}");
        assert!(page.contains("Back to the overview"), "{path}");
    }
    let (status, page) = rig.page("/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("No streams yet"), "an empty server says how to begin");
}

#[tokio::test]
async fn a_page_is_followed_by_its_updates() {
    let rig = Rig::start().await;
    rig.call("PUT", "/subscriptions/orders/billing", json!({})).await;
    let accept = [("accept", "text/event-stream")];
    let mut updates = rig.ask("GET", "/ui/streams/orders/groups/billing", &accept, &Value::Null).await;
    assert_eq!(updates.headers()[header::CONTENT_TYPE], "text/event-stream");
    let first = next_parts(&mut updates).await;
    assert!(first["figures"].as_str().is_some_and(|part| part.contains("Backlog")), "{first}");
    let message = json!({ "messages": [{ "body": 1 }, { "body": 2 }] });
    rig.call("POST", "/streams/orders/messages", message).await;
    loop {
        let parts = next_parts(&mut updates).await;
        assert!(parts.get("times").is_none(), "parts that did not change are not sent: {parts}");
        if parts["figures"].as_str().is_some_and(|part| part.contains(">2<")) {
            break;
        }
    }
    rig.call("DELETE", "/subscriptions/orders/billing", Value::Null).await;
    loop {
        let event = next_event(&mut updates).await;
        if event.starts_with("event: gone") {
            break;
        }
    }
    let refused = rig.ask("GET", "/ui/streams/none", &accept, &Value::Null).await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
}

async fn next_event(updates: &mut Response<Body>) -> String {
    let frame = updates.body_mut().frame().await.expect("the stream goes on").expect("it is whole");
    String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text")
}

async fn next_parts(updates: &mut Response<Body>) -> Value {
    loop {
        let event = next_event(updates).await;
        if let Some(data) = event.strip_prefix("event: parts\ndata: ") {
            return serde_json::from_str(data.trim()).expect("JSON");
        }
    }
}

#[tokio::test]
async fn the_overview_shows_active_alerts_and_their_receivers() {
    let rules = "*: lag 2".parse().expect("a rule");
    let receivers = vec!["hooks.example.com".to_owned()];
    let alerts = Alerts::new("here".to_owned(), rules, Duration::ZERO, receivers);
    let rig =
        Rig::start_with(&NativeConfig { alerts: Some(alerts.clone()), ..NativeConfig::default() }).await;
    rig.call("PUT", "/subscriptions/orders/billing", json!({})).await;
    let (_, page) = rig.page("/").await;
    assert!(page.contains("No alert is active") && page.contains("hooks.example.com"), "{page}");
    rig.call("POST", "/streams/orders/messages", json!({ "messages": [{ "body": 1 }, { "body": 2 }] })).await;
    let told = alerts.receivers()[0].next().await;
    assert_eq!((told.alerts.len(), &*told.server), (1, "here"));
    assert!(alerts.receivers()[0].failed(Timestamp(1), "connection refused"));
    let (_, page) = rig.page("/").await;
    assert!(
        page.contains("Active alerts") && page.contains("has 2 messages waiting; the limit is 2"),
        "{page}"
    );
    assert!(
        page.contains("has not taken notifications for") && page.contains("connection refused"),
        "{page}"
    );
    // A client that may not see the group sees neither the alert nor the receivers.
    let grants = "view:elsewhere".parse().expect("grants");
    let request = Request::builder().uri("/").header("host", "localhost").body(Body::empty());
    let who = Principal::new("guest", grants);
    let page = text(rig.0.answer(FROM, who, request.expect("a request")).await).await;
    assert!(page.contains("No alert is active"), "{page}");
    assert!(!page.contains("billing") && !page.contains("hooks.example.com"), "{page}");
}

#[tokio::test]
async fn the_life_of_a_message_is_told_to_machines_and_people() {
    let rig = Rig::start().await;
    let group = "/subscriptions/orders/billing";
    rig.call("PUT", group, json!({})).await;
    rig.call("POST", "/streams/orders/messages", json!({ "messages": [{ "body": 1 }] })).await;
    let path = "/streams/orders/messages/1/life";
    let life = rig.call("GET", path, Value::Null).await;
    assert_eq!((&life["stream"], &life["seq"]), (&json!("orders"), &json!(1)));
    let one = &life["groups"][0];
    assert_eq!((&one["group"], &one["state"]), (&json!("billing"), &json!("pending")), "{life}");
    let taken = rig.call("POST", &format!("{group}/receive"), json!({ "consumer": "ann" })).await;
    let one = rig.call("GET", path, Value::Null).await["groups"][0].clone();
    assert_eq!(
        (&one["state"], &one["consumer"], &one["attempts"]),
        (&json!("leased"), &json!("ann"), &json!(1))
    );
    assert!(one["leased_at"].is_string() && one["lease_until"].as_str() > one["leased_at"].as_str(), "{one}");
    let (_, page) = rig.page("/ui/streams/orders/messages/1").await;
    assert!(
        page.contains("handed to") && page.contains("ann") && page.contains("has to be settled"),
        "{page}"
    );
    let nack =
        json!({ "leases": [taken["messages"][0]["lease"]], "action": "park", "reason": "no such card" });
    rig.call("POST", &format!("{group}/nack"), nack).await;
    let one = rig.call("GET", path, Value::Null).await["groups"][0].clone();
    assert_eq!(
        (&one["state"], &one["history"][0]["reason"]),
        (&json!("parked"), &json!("no such card")),
        "{one}"
    );
    assert_eq!(one["history"][0]["consumer"], "ann");
    let (_, page) = rig.page("/ui/streams/orders/messages/1").await;
    assert!(page.contains("attempt 1 failed") && page.contains("no such card"), "{page}");
    // A client that may look and not see parked messages is not told why they failed.
    let who = Principal::new("guest", "view:*".parse().expect("grants"));
    let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty());
    let seen = text(rig.0.answer(FROM, who, request.expect("a request")).await).await;
    assert!(seen.contains("parked") && !seen.contains("no such card"), "{seen}");
    for (path, status) in [
        ("/streams/orders/messages/2/life", 409),
        ("/streams/orders/messages/0/life", 409),
        ("/streams/orders/messages/x/life", 404),
        ("/streams/none/messages/1/life", 404),
    ] {
        assert_eq!(rig.ask("GET", path, &[], &Value::Null).await.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn settings_and_log_are_shown_to_operators_of_the_server() {
    let row = |name, value: &str, origin: &str, is_default| SettingRow {
        name,
        value: value.to_owned(),
        origin: origin.to_owned(),
        is_default,
        help: "It does something",
    };
    let node = NodeFacts {
        settings: vec![row("listen", SCRIPT, "flag --listen", false), row("data", "./d", "default", true)],
        build: vec![("Built for", "a machine".to_owned())],
        started: Some(1),
        log: Some(|| vec![LogLine { at: 1, level: "warn", text: format!("the disk is slow {SCRIPT}") }]),
    };
    let rig = Rig::start_with(&NativeConfig { node: Arc::new(node), ..NativeConfig::default() }).await;
    let (_, page) = rig.page("/ui/node").await;
    for shown in ["flag --listen", "./d", "the disk is slow", "a machine", "&lt;script&gt;"] {
        assert!(page.contains(shown), "{shown} is not in {page}");
    }
    assert!(!page.contains("<script>alert"), "a value is text");
    let who = Principal::new("guest", "monitor:*".parse().expect("grants"));
    let request = Request::builder().uri("/ui/node").header("host", "localhost").body(Body::empty());
    let page = text(rig.0.answer(FROM, who, request.expect("a request")).await).await;
    assert!(page.contains("Commit times") && !page.contains("flag --listen"), "{page}");
    assert!(!page.contains("the disk is slow"), "{page}");
}

#[tokio::test]
async fn files_are_kept_by_browsers_for_good() {
    let rig = Rig::start().await;
    let (_, page) = rig.page("/").await;
    let names = page.match_indices("./ui/assets/").map(|(at, _)| {
        let address = &page[at + 1..];
        address[..address.find('"').expect("the end of the address")].to_owned()
    });
    let names: Vec<String> = names.collect();
    assert_eq!(names.len(), 4);
    for name in names {
        let file = rig.ask("GET", &name, &[], &Value::Null).await;
        assert_eq!(file.status(), StatusCode::OK, "{name}");
        assert_eq!(file.headers()[header::CACHE_CONTROL], "public, max-age=31536000, immutable");
    }
    assert_eq!(rig.ask("GET", "/ui/assets/app.css", &[], &Value::Null).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_link_from_another_site_opens_a_page_and_nothing_else() {
    let rig = Rig::start().await;
    let link = [
        ("referer", "https://chat.example/"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    for (path, status) in [("/", 200), ("/ui/groups", 200), ("/streams", 403), ("/ui/assets/x", 403)] {
        assert_eq!(rig.ask("GET", path, &link, &Value::Null).await.status().as_u16(), status, "{path}");
    }
    assert_eq!(rig.ask("POST", "/streams/a/purge", &link, &json!({})).await.status().as_u16(), 403);
    // Neither a frame of another page nor a script of it is a visit.
    let mut frame = link;
    frame[3] = ("sec-fetch-dest", "iframe");
    assert_eq!(rig.ask("GET", "/", &frame, &Value::Null).await.status().as_u16(), 403);
    let script =
        [("origin", "https://chat.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")];
    assert_eq!(rig.ask("GET", "/", &script, &Value::Null).await.status().as_u16(), 403);
}

#[tokio::test]
async fn messages_are_found_by_time_key_and_type() {
    let rig = Rig::start().await;
    for n in 0..9 {
        let message =
            json!({ "key": format!("k{}", n % 3), "type": "t", "body": { "n": format!("number-{n}") } });
        rig.call("POST", "/streams/orders/messages", json!({ "messages": [message] })).await;
    }
    let shown = |page: &str| (0..9).filter(|n| page.contains(&format!("number-{n}"))).collect::<Vec<_>>();
    let listed = rig.call("GET", "/streams/orders/messages", Value::Null).await;
    let fifth = listed["messages"][4]["published_at"].as_str().expect("a time");
    for (query, expected) in [
        ("", (0..9).collect::<Vec<_>>()),
        ("?from=8", vec![7, 8]),
        ("?key=k1", vec![1, 4, 7]),
        ("?key=k1&type=other", vec![]),
        (&format!("?time={fifth}"), (4..9).collect()),
        ("?time=2020-01-01", vec![]),
    ] {
        let (status, page) = rig.page(&format!("/ui/streams/orders{query}")).await;
        if query.ends_with("2020-01-01") {
            assert_eq!(status, StatusCode::BAD_REQUEST);
            continue;
        }
        assert_eq!(shown(&page), expected, "{query}");
    }
}
