//! Requests for pages, without a browser.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use forebay_broker::api::{Broker, BrokerConfig, Clock, Principal};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::native::NativeConfig;
use crate::native::http::HttpDoor;

const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
const FRAME_BYTES_MAX: usize = 32 << 20;
const SCRIPT: &str = "<script>alert(1)</script>\"'&";
/// The name of a group has no slash.
const GROUP: &str = "<script>alert(1)\"'&";

struct Rig(HttpDoor);

impl Rig {
    async fn start() -> Rig {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
        let (broker, _) =
            Broker::open(Arc::new(engine), Clock::start(), config).await.expect("a new log opens");
        Rig(HttpDoor::new(broker, &NativeConfig::default()))
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
