//! The two protocols of the native API beside each other: every call goes through both, to two brokers that are alike,
//! and the answers must be the same, refusals included.
//!
//! Both brokers are on the memory engine and share a clock that stands still, so that even leases and times agree. The
//! list of calls is that of `http/api.rs` and that of the service in `forebay.proto`: a call that only one protocol
//! has, or that no test runs, fails.

#![expect(clippy::needless_update, reason = "`request!` and `of_team!` name some or all fields of a request")]

mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use forebay_broker::api::{Broker, BrokerConfig, Clock, Principal};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::problem::{Kind, Problem};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use http_body_util::BodyExt as _;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::native::http::HttpDoor;
use crate::native::{NativeConfig, grpc, http};
use shape::Shape;

/// Calls that only one protocol can have.
const ONLY_GRPC: [&str; 2] = ["Consume", "Publish"];
/// And calls for people and monitoring, which use HTTP.
const ONLY_HTTP: [&str; 14] = [
    "/",
    "/cluster",
    "/connections",
    "/connections/{connection}",
    "/events",
    "/history",
    "/livez",
    "/metrics",
    "/openapi.json",
    "/problems/{kind}",
    "/readyz",
    "/server",
    "/streams/{stream}/groups/{group}/history",
    "/streams/{stream}/messages/{seq}/life",
];

const FRAME_BYTES_MAX: usize = 32 << 20;
const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

type Outcome = Result<Value, Value>;

struct Pair {
    brokers: [Broker; 2],
    http: HttpDoor,
    grpc: ForebayClient<Routes>,
    /// Calls of HTTP by method and path, with their calls of gRPC, and those that were made.
    calls: BTreeMap<(String, String), Option<String>>,
    made: BTreeSet<(String, String)>,
}

async fn broker(clock: Clock) -> Broker {
    let config = BrokerConfig::new([7; 32]);
    let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
    Broker::open(Arc::new(engine), clock, config).await.expect("a new log opens").0
}

impl Pair {
    async fn start() -> Pair {
        let clock = Clock::still();
        let brokers = [broker(clock).await, broker(clock).await];
        let http = HttpDoor::new(brokers[0].entrance(), &NativeConfig::default());
        let grpc = ForebayClient::new(grpc::routes(brokers[1].entrance(), Principal::owner()));
        Pair { brokers, http, grpc, calls: http_calls(), made: BTreeSet::new() }
    }

    async fn advance(&self, by: Duration) {
        self.brokers[0].advance(by).await;
        self.brokers[1].advance(Duration::ZERO).await;
    }

    /// Calls over HTTP. The status is part of the answer.
    async fn http(&mut self, method: &str, path: &str, body: &Value) -> (u16, Bytes) {
        self.made.insert(self.template(method, path));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.body(Body::from(body)).expect("a request");
        let response = self.http.answer(FROM, Principal::owner(), request).await;
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.expect("a body").to_bytes())
    }

    fn template(&self, method: &str, path: &str) -> (String, String) {
        let path = path.split('?').next().expect("a path");
        let is = |template: &str| {
            let parts = || template.split('/').zip(path.split('/'));
            template.split('/').count() == path.split('/').count()
                && parts().all(|(part, text)| part == text || (part.starts_with('{') && !text.is_empty()))
        };
        // Of several that fit, the one with the fewest variables.
        let fit = self.calls.keys().filter(|(of, template)| of == method && is(template));
        fit.min_by_key(|(_, template)| template.matches('{').count()).cloned().expect("a call of the API")
    }

    /// Sees that both answers are the same, and that both were meant to be.
    #[track_caller]
    fn compare(&self, what: &str, rpc: &str, http: (u16, Bytes), grpc: Outcome) {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        let (path, _) = path.split_once(' ').unwrap_or((path, ""));
        let call = self.calls[&self.template(method, path)].as_deref();
        assert_eq!(call, Some(rpc), "`{what}` is said to be another call of gRPC");
        let (status, body) = http;
        match (status, grpc) {
            (200..300, Ok(Value::Null)) => {}
            (200..300, Ok(grpc)) if grpc.get("created").is_some() => {
                assert_eq!(grpc["created"], json!(status == 201), "{what}");
            }
            (200..300, Ok(grpc)) => {
                // Read from text too, since reading a number may change its last bit.
                let grpc = parse(grpc.to_string().as_bytes());
                assert_eq!(normal(parse(&body)), normal(grpc), "{what}");
            }
            (_, Err(grpc)) => {
                let mut http = refused_over_http(&body, grpc["field"].as_str());
                for field in ["kind", "field", "code"] {
                    if grpc.get(field).is_none() {
                        http.as_object_mut().expect("an object").remove(field);
                    }
                }
                assert_eq!(http, grpc, "{what}");
            }
            (status, Ok(grpc)) => panic!("{what}: {status} {}, but {grpc}", String::from_utf8_lossy(&body)),
        }
    }
}

/// Calls of HTTP with their calls of gRPC, by the OpenAPI document.
pub(super) fn http_calls() -> BTreeMap<(String, String), Option<String>> {
    let document: Value = serde_json::from_slice(&http::api::calls().document()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths").clone();
    let methods = |(path, methods): (String, Value)| {
        let methods = methods.as_object().expect("methods").clone();
        methods.into_iter().map(move |(method, operation)| {
            let call = operation["x-grpc"].as_str().map(str::to_owned);
            ((method.to_ascii_uppercase(), path.clone()), call)
        })
    };
    paths.into_iter().flat_map(methods).collect()
}

/// The parts of a `FileDescriptorSet` that name the calls of a service.
#[derive(Clone, PartialEq, prost::Message)]
struct Files {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(message, repeated, tag = "6")]
    services: Vec<ServiceOf>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceOf {
    #[prost(message, repeated, tag = "2")]
    methods: Vec<Method>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Method {
    #[prost(string, tag = "1")]
    name: String,
}

pub(super) fn grpc_calls() -> BTreeSet<String> {
    let files = Files::decode(v1::FILE_DESCRIPTOR_SET).expect("a set of files").files;
    let methods = files.into_iter().flat_map(|file| file.services).flat_map(|service| service.methods);
    methods.map(|method| method.name).collect()
}

#[test]
fn each_call_is_in_both_protocols() {
    let (http, grpc) = (http_calls(), grpc_calls());
    let mut both: BTreeSet<&str> = ONLY_GRPC.into_iter().collect();
    for ((_, path), call) in &http {
        match call {
            Some(call) => {
                assert!(grpc.contains(call), "`{path}` names a call that gRPC does not have: {call}");
            }
            None => assert!(ONLY_HTTP.contains(&&path[..]), "`{path}` has no call of gRPC"),
        }
        both.extend(call.as_deref());
    }
    for call in &grpc {
        assert!(both.contains(&call[..]), "{call} has no call of HTTP");
    }
}

fn parse(body: &[u8]) -> Value {
    if body.is_empty() { Value::Null } else { serde_json::from_slice(body).expect("JSON") }
}

/// Without what the protocols show in different ways: settled leases are named over HTTP only, an id is repeated by a
/// resubmission over HTTP only, addresses differ, and credentials are drawn at random.
fn normal(mut value: Value) -> Value {
    if let Some(results) = value.get("results").and_then(Value::as_array)
        && results.iter().any(|result| result.get("outcome").is_some())
    {
        value = json!({ "outcomes": results.iter().map(|result| &result["outcome"]).collect::<Vec<_>>() });
    }
    if value.get("already_committed").is_some() {
        for part in ["settled", "published"] {
            let parts = value[part].as_array_mut().into_iter().flatten();
            parts.flat_map(|part| part["results"].as_array_mut()).flatten().for_each(|result| {
                let result = result.as_object_mut().expect("an object");
                result.remove("lease");
                result.remove("id");
            });
        }
    }
    if value.get("seq").is_some() && value.get("duplicate").is_some() {
        value.as_object_mut().expect("an object").remove("id");
    }
    let many = value.get_mut("credentials").and_then(Value::as_array_mut).into_iter().flatten();
    for credential in many {
        credential.as_object_mut().expect("an object").remove("id");
    }
    if let Some(credential) = value.get_mut("credential").and_then(Value::as_object_mut) {
        credential.remove("id");
        value["secret"] = json!(value["secret"].as_str().map(str::len));
    }
    without_addresses(&mut value);
    value
}

fn without_addresses(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("address");
            map.values_mut().for_each(without_addresses);
        }
        Value::Array(values) => values.iter_mut().for_each(without_addresses),
        _ => {}
    }
}

/// A problem in the words of gRPC, for a field that gRPC calls so.
fn refused_over_http(body: &[u8], name: Option<&str>) -> Value {
    let problem: Problem = serde_json::from_slice(body).expect("a problem");
    let kind = match problem.kind().expect("a known kind") {
        Kind::InvalidParameter => Kind::InvalidField,
        kind => kind,
    };
    let (mut detail, mut field) = (problem.detail, problem.field);
    if let Some(is) = &field {
        let own = grpc::status::field_name(is).into_owned();
        // Over gRPC an edited copy is a field of its request.
        let copy = name.filter(|name| name.strip_prefix("message.").is_some_and(|rest| rest == own));
        let own = copy.map_or(own, str::to_owned);
        detail = detail.replacen(&is[..], &own, 1);
        field = Some(own);
    }
    json!({
        "kind": kind.slug(), "code": kind.code().as_str_name(), "retry": problem.retry, "detail": detail,
        "field": field, "last_seq": problem.last_seq,
        // A second is said over HTTP where it is not known better.
        "retry_after": problem.retry_after.filter(|seconds| *seconds != 1.0),
    })
}

fn answered<T: Shape>(answer: Result<Response<T>, Status>) -> Outcome {
    answer.map(|response| response.into_inner().shape()).map_err(|status| refused_over_grpc(&status))
}

fn refused_over_grpc(status: &Status) -> Value {
    let text = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
    let number = |name| text(name).and_then(|text| text.parse::<u64>().ok());
    let slug = text("forebay-problem").unwrap_or_else(|| panic!("not refused by Forebay: {status:?}"));
    let kind = Kind::ALL.iter().find(|kind| kind.slug() == slug).expect("a known kind");
    assert_eq!(status.code(), kind.grpc_status());
    json!({
        "kind": slug, "code": kind.code().as_str_name(), "retry": text("forebay-retry"),
        "detail": status.message(), "field": text("forebay-field"), "last_seq": number("forebay-last-seq"),
        "retry_after": number("forebay-retry-after-ms").map(|millis| millis as f64 / 1_000.0),
    })
}

fn refused_in_call(problem: &v1::Problem) -> Value {
    let retry = problem.retry().as_str_name().to_ascii_lowercase();
    let field = Some(&problem.field[..]).filter(|field| !field.is_empty());
    json!({
        "kind": problem.kind, "code": problem.code().as_str_name(), "retry": retry, "detail": problem.detail,
        "field": field, "last_seq": problem.last_seq,
        "retry_after": problem.retry_after_ms.map(|millis| millis as f64 / 1_000.0),
    })
}

/// One call over both protocols: `METHOD path body = call request`.
macro_rules! both {
    ($pair:ident, $method:literal $path:expr, $body:tt = $call:ident $request:expr) => {{
        let (path, body) = ($path.to_string(), json!($body));
        let over_http = $pair.http($method, &path, &body).await;
        let over_grpc = answered($pair.grpc.$call($request).await);
        let what = format!("{} {path} {body}", $method);
        $pair.compare(&what, &camel(stringify!($call)), over_http.clone(), over_grpc);
        parse(&over_http.1)
    }};
}

fn camel(name: &str) -> String {
    let upper = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    name.split('_').map(upper).collect()
}

/// A request of gRPC; fields that are left out have their defaults.
macro_rules! request {
    ($request:ident $(, $field:ident: $value:expr)*) => {
        v1::$request { $($field: $value.into(),)* ..Default::default() }
    };
}

/// A request about the group `work/team`.
macro_rules! of_team {
    ($request:ident $(, $field:ident: $value:expr)*) => {
        v1::$request { stream: "work".into(), group: "team".into(), $($field: $value.into(),)* ..Default::default() }
    };
}

// After the macros, which it uses.
mod transactions;

const TEAM: &str = "/streams/work/groups/team";

fn at(rest: &str) -> String {
    format!("{TEAM}/{rest}")
}

impl Pair {
    /// Publishes over both protocols.
    async fn publish(&mut self, body: Value, request: v1::PublishRequest) {
        self.publish_to("work", body, request).await;
    }

    async fn publish_to(&mut self, stream: &str, body: Value, request: v1::PublishRequest) {
        let path = format!("/streams/{stream}/messages");
        let over_http = self.http("POST", &path, &body).await;
        let ids: Vec<Option<&str>> = request
            .messages
            .iter()
            .map(|message| Some(&message.id[..]).filter(|id| !id.is_empty()))
            .collect();
        let requests = v1::PublishRequest { stream: stream.to_owned(), ..request.clone() };
        let replies =
            self.grpc.publish(tokio_stream::iter([requests.clone()])).await.expect("the call opens");
        let reply = replies.into_inner().message().await.expect("it goes on").expect("a reply");
        let confirmation = reply.confirmations.into_iter().next().expect("a confirmation");
        let over_grpc = match &confirmation.problem {
            Some(problem) => Err(refused_in_call(problem)),
            None => Ok(shape::confirmation(confirmation, &ids)),
        };
        let what = format!("POST {path} {body}");
        let is_refused = over_grpc.is_err();
        self.compare(&what, "PublishOnce", over_http.clone(), over_grpc);
        // A refusal stores nothing, so the call with one request can be made as well.
        if is_refused {
            let status = self.grpc.publish_once(requests).await.expect_err("it is refused in any way");
            self.compare(&what, "PublishOnce", over_http, Err(refused_over_grpc(&status)));
        }
    }

    /// Publishes over HTTP, and over gRPC with one request.
    async fn publish_once(&mut self, body: Value, request: v1::PublishRequest) {
        let over_http = self.http("POST", "/streams/work/messages", &body).await;
        let request = v1::PublishRequest { stream: "work".to_owned(), ..request };
        let confirmation = self.grpc.publish_once(request).await.expect("it is stored").into_inner();
        let over_grpc = Ok(shape::confirmation(confirmation, &[None]));
        self.compare(&format!("POST /streams/work/messages {body}"), "PublishOnce", over_http, over_grpc);
    }

    /// Receives over both protocols, and gives the leases.
    async fn receive(&mut self, max: u32) -> Vec<String> {
        let request = of_team!(ReceiveRequest, max: max, consumer: "clerk");
        let got = both!(self, "POST" at("receive"), { "max": max, "consumer": "clerk" } = receive request);
        let messages = got["messages"].as_array().expect("messages");
        messages.iter().map(|message| message["lease"].as_str().expect("a lease").to_owned()).collect()
    }

    /// Follows the stream over both protocols until the first messages come.
    async fn follow(&mut self, query: &str, request: v1::FollowStreamRequest) {
        let path = format!("/streams/work/follow{query}");
        let grpc = self.grpc.follow_stream(request).await.map(Response::into_inner);
        self.follow_both("FollowStream", &path, grpc, |reply| reply.messages).await;
    }

    /// The same for all streams.
    async fn follow_log(&mut self, query: &str, request: v1::FollowLogRequest) {
        let path = format!("/log/follow{query}");
        let grpc = self.grpc.follow_log(request).await.map(Response::into_inner);
        self.follow_both("FollowLog", &path, grpc, |reply| reply.messages).await;
    }

    async fn follow_both<R>(
        &mut self,
        call: &str,
        path: &str,
        grpc: Result<tonic::Streaming<R>, Status>,
        messages: fn(R) -> Vec<v1::StoredMessage>,
    ) {
        self.made.insert(self.template("GET", path));
        let http = Request::builder().uri(path).header("host", "localhost");
        let response =
            self.http.answer(FROM, Principal::owner(), http.body(Body::empty()).expect("a request")).await;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let refused = grpc.map(|_| Value::Null).map_err(|status| refused_over_grpc(&status));
            return self.compare(&format!("GET {path}"), call, (status, body), refused);
        }
        let (mut body, mut text) = (response.into_body(), String::new());
        while !text.contains("event: message") {
            let frame = body.frame().await.expect("it goes on").expect("a piece");
            text.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
        }
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let over_http: Vec<Value> = events.map(|data| parse(data.as_bytes())).collect();
        let reply = grpc.expect("it follows").message().await.expect("it goes on").expect("a reply");
        let over_grpc = Ok(json!({ "messages": shape::all(messages(reply)) }));
        let over_http = json!({ "messages": over_http }).to_string().into();
        self.compare(&format!("GET {path}"), call, (200, over_http), over_grpc);
    }
}

fn message(body: &str) -> v1::Message {
    let content_type = "application/json".to_owned();
    v1::Message { body: body.to_owned().into(), content_type, ..v1::Message::default() }
}

#[tokio::test]
async fn every_call_is_answered_alike() {
    let mut pair = Pair::start().await;
    streams(&mut pair).await;
    groups(&mut pair).await;
    consuming(&mut pair).await;
    parked(&mut pair).await;
    credentials(&mut pair).await;
    transactions::both_protocols(&mut pair).await;
    ends(&mut pair).await;
    contents(&mut pair).await;
    for (call, grpc) in &pair.calls {
        assert!(grpc.is_none() || pair.made.contains(call), "no test makes the call {call:?}");
    }
}

/// Bodies, keys and headers of every kind.
async fn contents(pair: &mut Pair) {
    let of = |body: &[u8], content_type: &str| v1::Message {
        body: body.to_vec().into(),
        content_type: content_type.to_owned(),
        ..v1::Message::default()
    };
    let bytes = Bytes::from_static(b"\xff");
    let header = v1::Header { name: "b".into(), value_bytes: bytes.clone(), ..Default::default() };
    let binary = v1::Message { key_bytes: bytes, headers: vec![header], ..of(b"\0", "image/png") };
    let none = v1::Message { no_body: true, ..Default::default() };
    let messages = vec![of(b"hello", "text/plain"), of(b"a,b", "text/csv"), binary, none];
    let bodies = json!([
        { "body_text": "hello" },
        { "body_text": "a,b", "content_type": "text/csv" },
        { "body_base64": "AA==", "content_type": "image/png", "key_base64": "/w==", "headers_base64": { "b": "/w==" } },
        { "no_body": true },
    ]);
    let request = request!(PublishRequest, messages: messages);
    pair.publish_to("contents", json!({ "messages": bodies }), request).await;
    let request = request!(ReadMessagesRequest, stream: "contents");
    let read = both!(pair, "GET" "/streams/contents/messages", null = read_messages request);
    for (sent, read) in
        bodies.as_array().expect("a list").iter().zip(read["messages"].as_array().expect("a list"))
    {
        for (field, value) in sent.as_object().expect("an object") {
            assert_eq!(&read[field], value, "{field} of {read}");
        }
    }
    // Each is refused.
    let bad = |text: &str| v1::Message { content_type: text.to_owned(), ..message("1") };
    for (wrong, message) in [
        (json!({ "body": 1, "no_body": true }), v1::Message { no_body: true, ..message("1") }),
        (json!({ "body": 1, "content_type": "json" }), bad("json")),
        (
            json!({ "body": 1, "key": "k", "key_base64": "AA==" }),
            v1::Message { key: "k".into(), key_bytes: Bytes::from_static(&[0]), ..message("1") },
        ),
    ] {
        let request = request!(PublishRequest, messages: vec![message]);
        pair.publish_to("contents", json!({ "messages": [wrong] }), request).await;
    }
}

async fn streams(pair: &mut Pair) {
    let limits = v1::StreamLimits { max_messages: Some(100), ..Default::default() };
    let settings = v1::StreamSettings { limits: Some(limits), ..Default::default() };
    for _ in 0..2 {
        let settings = Some(settings.clone());
        let request = request!(CreateStreamRequest, stream: "work", settings: settings);
        both!(pair, "PUT" "/streams/work", { "limits": { "max_messages": 100 } } = create_stream request);
    }
    let other = v1::StreamSettings { dedupe_window_ms: Some(5), ..Default::default() };
    let request = request!(CreateStreamRequest, stream: "work", settings: Some(other));
    both!(pair, "PUT" "/streams/work", { "dedupe_window": "5ms" } = create_stream request);
    both!(pair, "PUT" "/streams/$x", {} = create_stream request!(CreateStreamRequest, stream: "$x"));
    // Streams of the system can be read, and do not exist here.
    both!(pair, "GET" "/streams/$x", null = get_stream request!(GetStreamRequest, stream: "$x"));
    let request = request!(ReadMessagesRequest, stream: "$x");
    both!(pair, "GET" "/streams/$x/messages", null = read_messages request);
    let rate = Some(v1::Rate { per_second: 0.5, burst: 20 });
    let settings = v1::StreamSettings { ingress_rate: rate, ..Default::default() };
    let request = request!(UpdateStreamRequest, stream: "work", settings: Some(settings));
    let body = json!({ "ingress_rate": { "per_second": 0.5, "burst": 20 } });
    both!(pair, "PATCH" "/streams/work", body = update_stream request);
    both!(pair, "GET" "/streams/work", null = get_stream request!(GetStreamRequest, stream: "work"));
    let (absent, get, update) = ("/streams/none", request!(GetStreamRequest, stream: "none"), "none");
    both!(pair, "GET" absent, null = get_stream get);
    both!(pair, "PATCH" absent, {} = update_stream request!(UpdateStreamRequest, stream: update));
    pair.advance(Duration::from_secs(60)).await;

    let full = v1::Message {
        id: "a".into(),
        key: "k".into(),
        r#type: "t".into(),
        schema: Some(3),
        headers: vec![v1::Header { name: "x".into(), value: "1".into(), ..Default::default() }],
        priority: 4,
        ttl_ms: 3_600_000,
        ..message(r#"{"n":1}"#)
    };
    let first = json!({ "id": "a", "key": "k", "type": "t", "schema": 3, "headers": { "x": "1" }, "priority": 4,
        "ttl": "1h", "body": { "n": 1 } });
    let messages = vec![full.clone(), message("2"), v1::Message { delay_ms: 1, ..message("3") }];
    let body = json!({ "messages": [first, { "body": 2 }, { "body": 3, "delay": "1ms" }] });
    pair.publish(body, request!(PublishRequest, messages: messages)).await;
    let body = json!({ "messages": [first, { "body": 4 }] });
    pair.publish(body, request!(PublishRequest, messages: vec![full, message("4")])).await;
    let more: Vec<v1::Message> = (5..=10).map(|n| message(&n.to_string())).collect();
    let body = json!({ "messages": (5..=10).map(|n| json!({ "body": n })).collect::<Vec<_>>() });
    pair.publish(body, request!(PublishRequest, messages: more)).await;
    let one = |message| request!(PublishRequest, messages: vec![message]);
    pair.publish_once(json!({ "messages": [{ "body": 11 }] }), one(message("11"))).await;
    // Each is refused.
    pair.publish(json!({ "messages": [] }), v1::PublishRequest::default()).await;
    let wrong = json!({ "messages": [{ "body": 1, "priority": 10 }] });
    pair.publish(wrong, one(v1::Message { priority: 10, ..message("1") })).await;
    let wrong = json!({ "messages": [{ "body": 1, "delay": "400d" }] });
    pair.publish(wrong, one(v1::Message { delay_ms: 400 * 86_400_000, ..message("1") })).await;
    let wrong = json!({ "messages": [{ "body": 1, "delay": "1s", "deliver_at": "2100-01-01T00:00:00Z" }] });
    let both = v1::Message { delay_ms: 1_000, deliver_at_us: 4_102_444_800_000_000, ..message("1") };
    pair.publish(wrong, one(both)).await;
    let wrong = json!({ "messages": [{ "body": 1 }], "expect_last_seq": 3 });
    let request = v1::PublishRequest { expect_last_seq: Some(3), ..one(message("1")) };
    pair.publish(wrong, request).await;
    let many: Vec<v1::Message> = (0..12).map(|_| message("0")).collect();
    let fast = json!({ "messages": (0..12).map(|_| json!({ "body": 0 })).collect::<Vec<_>>() });
    pair.publish(fast, request!(PublishRequest, messages: many)).await;
    let large = "x".repeat(1_600_000);
    let body = json!({ "messages": [{ "body": large }] });
    pair.publish(body, one(message(&format!("\"{large}\"")))).await;

    let list = |limit: u32, after: &str| request!(ListStreamsRequest, limit: limit, after: after);
    both!(pair, "PUT" "/streams/other", {} = create_stream request!(CreateStreamRequest, stream: "other"));
    both!(pair, "GET" "/streams", null = list_streams list(0, ""));
    both!(pair, "GET" "/streams?limit=1", null = list_streams list(1, ""));
    both!(pair, "GET" "/streams?after=other", null = list_streams list(0, "other"));
    both!(pair, "GET" "/streams?after=$x", null = list_streams list(0, "$x"));
    both!(pair, "GET" "/streams?limit=1001", null = list_streams list(1_001, ""));
    let read = |from: u64, limit: u32, key: &str| {
        let stream = "work";
        request!(ReadMessagesRequest, stream: stream, from: from, limit: limit, key: key)
    };
    both!(pair, "GET" "/streams/work/messages", null = read_messages read(0, 0, ""));
    both!(pair, "GET" "/streams/work/messages?from=2&limit=2", null = read_messages read(2, 2, ""));
    both!(pair, "GET" "/streams/work/messages?key=k", null = read_messages read(0, 0, "k"));
    both!(pair, "GET" "/streams/work/messages?limit=1001", null = read_messages read(0, 1_001, ""));
    let back = request!(ReadMessagesRequest, stream: "work", from: 2u64, limit: 1u32, newest_first: true);
    both!(pair, "GET" "/streams/work/messages?order=desc&from=2&limit=1", null = read_messages back);
    let newest = request!(ReadMessagesRequest, stream: "work", newest_first: true, key: "k");
    both!(pair, "GET" "/streams/work/messages?order=desc&key=k", null = read_messages newest);
    let absent = request!(ReadMessagesRequest, stream: "none");
    both!(pair, "GET" "/streams/none/messages", null = read_messages absent);
    pair.follow("?from=2", request!(FollowStreamRequest, stream: "work", from: 2u64)).await;
    pair.follow("?key=k", request!(FollowStreamRequest, stream: "work", key: "k")).await;
    pair.follow("?from=beginning&type=t", request!(FollowStreamRequest, stream: "work", r#type: "t")).await;
    let all = request!(ReadLogRequest, stream_prefix: "");
    both!(pair, "GET" "/log", null = read_log all);
    let some =
        request!(ReadLogRequest, from: 2u64, limit: 2u32, stream_prefix: "wo", type_prefix: "t", key: "k");
    both!(pair, "GET" "/log?from=2&limit=2&prefix=wo&type_prefix=t&key=k", null = read_log some);
    let back = request!(ReadLogRequest, newest_first: true, limit: 1u32, r#type: "t");
    both!(pair, "GET" "/log?order=desc&limit=1&type=t", null = read_log back);
    both!(pair, "GET" "/log?limit=1001", null = read_log request!(ReadLogRequest, limit: 1_001u32));
    pair.follow_log("?from=2", request!(FollowLogRequest, from: 2u64)).await;
    pair.follow_log(
        "?prefix=wo&type_prefix=t",
        request!(FollowLogRequest, stream_prefix: "wo", type_prefix: "t"),
    )
    .await;
}

async fn groups(pair: &mut Pair) {
    let timeout = |millis| Some(v1::GroupSettings { message_timeout_ms: Some(millis), ..Default::default() });
    for _ in 0..2 {
        let request = of_team!(CreateGroupRequest, settings: timeout(45_000));
        both!(pair, "PUT" TEAM, { "message_timeout": "45s" } = create_group request);
    }
    let request = of_team!(CreateGroupRequest, settings: timeout(5_000));
    both!(pair, "PUT" TEAM, { "message_timeout": "5s" } = create_group request);
    let backoff = v1::Backoff { min_ms: Some(3_600_000), ..Default::default() };
    let wrong = v1::GroupSettings { backoff: Some(backoff), ..Default::default() };
    let request = of_team!(UpdateGroupRequest, settings: Some(wrong));
    both!(pair, "PATCH" TEAM, { "backoff": { "min": "1h" } } = update_group request);
    let retries = Some(v1::Retries { retries: Some(v1::retries::Retries::AtMost(3)) });
    let settings = v1::GroupSettings { max_retries: retries, ..Default::default() };
    let request = of_team!(UpdateGroupRequest, settings: Some(settings));
    both!(pair, "PATCH" TEAM, { "max_retries": 3 } = update_group request);
    both!(pair, "GET" TEAM, null = get_group of_team!(GetGroupRequest));
    let plain = Some(v1::GroupSettings { extra_statistics: Some(false), ..Default::default() });
    let request = request!(CreateGroupRequest, stream: "other", group: "plain", settings: plain);
    both!(pair, "PUT" "/streams/other/groups/plain", { "extra_statistics": false } = create_group request);
    let plain = request!(GetGroupRequest, stream: "other", group: "plain");
    both!(pair, "GET" "/streams/other/groups/plain", null = get_group plain);
    let absent = request!(GetGroupRequest, stream: "work", group: "none");
    both!(pair, "GET" "/streams/work/groups/none", null = get_group absent);
    let absent = request!(GetGroupRequest, stream: "none", group: "none");
    both!(pair, "GET" "/streams/none/groups/none", null = get_group absent);
    let list = |stream: &str, limit: u32, after: Option<v1::GroupCursor>| {
        let stream = stream.to_owned();
        request!(ListGroupsRequest, stream: stream, limit: limit, after: after)
    };
    both!(pair, "GET" "/groups", null = list_groups list("", 0, None));
    both!(pair, "GET" "/groups?limit=1", null = list_groups list("", 1, None));
    let after = v1::GroupCursor { stream: "other".into(), group: "plain".into() };
    both!(pair, "GET" "/groups?after=other/plain", null = list_groups list("", 0, Some(after)));
    both!(pair, "GET" "/streams/work/groups", null = list_groups list("work", 0, None));
    both!(pair, "GET" "/streams/work/groups?limit=2000", null = list_groups list("work", 2_000, None));
}

async fn consuming(pair: &mut Pair) {
    use v1::settlement::Action;
    both!(pair, "POST" at("pause"), {} = pause_group of_team!(PauseGroupRequest));
    both!(pair, "GET" TEAM, null = get_group of_team!(GetGroupRequest));
    both!(pair, "POST" at("resume"), {} = resume_group of_team!(ResumeGroupRequest));
    for (body, request) in [
        (json!({ "max": 1_001 }), of_team!(ReceiveRequest, max: 1_001u32)),
        (json!({ "wait": "601s" }), of_team!(ReceiveRequest, wait_ms: 601_000u64)),
        (json!({ "timeout": "0s" }), of_team!(ReceiveRequest, timeout_ms: Some(0))),
        (json!({ "timeout": "400d" }), of_team!(ReceiveRequest, timeout_ms: Some(400 * 86_400_000))),
        (json!({ "consumer": "x".repeat(256) }), of_team!(ReceiveRequest, consumer: "x".repeat(256))),
        (json!({ "consumer": "a\nb" }), of_team!(ReceiveRequest, consumer: "a\nb")),
    ] {
        both!(pair, "POST" at("receive"), body = receive request);
    }
    let none = request!(ReceiveRequest, stream: "work", group: "none");
    both!(pair, "POST" "/streams/work/groups/none/receive", {} = receive none);
    // A receive without a wait gives the messages that are at hand, so it takes several for all of them.
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.extend(pair.receive(8 - leases.len() as u32).await);
        if leases.len() == 8 {
            break;
        }
    }
    assert_eq!(leases.len(), 8);
    pair.advance(Duration::from_secs(1)).await;
    let settle =
        |n: usize, action: Action| of_team!(SettleRequest, leases: vec![leases[n].clone()], action: action);
    let lease = |n: usize| vec![leases[n].clone()];
    both!(pair, "POST" at("ack"), { "leases": lease(0) } = settle settle(0, Action::Ack));
    both!(pair, "POST" at("ack"), { "leases": lease(0) } = settle settle(0, Action::Ack));
    let retry = v1::SettleRequest { delay_ms: Some(60_000), ..settle(1, Action::Retry) };
    let body = json!({ "leases": lease(1), "action": "retry", "delay": "1m" });
    both!(pair, "POST" at("nack"), body = settle retry);
    let reason = "no such address ".repeat(300);
    let park = v1::SettleRequest { reason: reason.clone(), ..settle(2, Action::Park) };
    let body = json!({ "leases": lease(2), "action": "park", "reason": reason });
    both!(pair, "POST" at("nack"), body = settle park);
    let body = json!({ "leases": lease(3), "action": "skip" });
    both!(pair, "POST" at("nack"), body = settle settle(3, Action::Skip));
    let moved = v1::SettleRequest { move_to: "other".into(), ..settle(4, Action::Move) };
    let body = json!({ "leases": lease(4), "action": { "move": "other" } });
    both!(pair, "POST" at("nack"), body = settle moved);
    let rest = v1::SettleRequest { rest_ms: Some(2_000), ..settle(5, Action::Return) };
    let body = json!({ "leases": lease(5), "action": "return", "rest": "2s" });
    both!(pair, "POST" at("nack"), body = settle rest);
    let extend = v1::SettleRequest { delay_ms: Some(90_000), ..settle(6, Action::Extend) };
    both!(pair, "POST" at("extend"), { "leases": lease(6), "by": "90s" } = settle extend);
    both!(pair, "GET" TEAM, null = get_group of_team!(GetGroupRequest));

    // Each is refused.
    let none = of_team!(SettleRequest, action: Action::Ack);
    both!(pair, "POST" at("ack"), { "leases": [] } = settle none);
    let x = |action: Action| of_team!(SettleRequest, leases: vec!["x".to_owned()], action: action);
    both!(pair, "POST" at("ack"), { "leases": ["x"] } = settle x(Action::Ack));
    for (body, request) in [
        (
            json!({ "leases": ["x"], "action": "park", "delay": "1s" }),
            v1::SettleRequest { delay_ms: Some(1_000), ..x(Action::Park) },
        ),
        (
            json!({ "leases": ["x"], "action": "retry", "delay": "400d" }),
            v1::SettleRequest { delay_ms: Some(400 * 86_400_000), ..x(Action::Retry) },
        ),
        (
            json!({ "leases": ["x"], "rest": "6m" }),
            v1::SettleRequest { rest_ms: Some(360_000), ..x(Action::Auto) },
        ),
        (
            json!({ "leases": ["x"], "action": { "move": "$x" } }),
            v1::SettleRequest { move_to: "$x".into(), ..x(Action::Move) },
        ),
    ] {
        both!(pair, "POST" at("nack"), body = settle request);
    }
    let zero = v1::SettleRequest { delay_ms: Some(0), ..x(Action::Extend) };
    both!(pair, "POST" at("extend"), { "leases": ["x"], "by": "0s" } = settle zero);
    let scaling = of_team!(GetScalingRequest, target_drain_ms: 60_000u64, min: 2u32, max: Some(5));
    both!(pair, "GET" at("scaling?target_drain=1m&min=2&max=5"), null = get_scaling scaling);
    both!(pair, "GET" at("scaling"), null = get_scaling of_team!(GetScalingRequest));
    let scaling = of_team!(GetScalingRequest, min: 6u32, max: Some(5));
    both!(pair, "GET" at("scaling?min=6&max=5"), null = get_scaling scaling);
    let scaling = of_team!(GetScalingRequest, min: 2_000u32);
    both!(pair, "GET" at("scaling?min=2000"), null = get_scaling scaling);
    pair.advance(Duration::from_secs(120)).await;
    both!(pair, "GET" TEAM, null = get_group of_team!(GetGroupRequest));
}

async fn parked(pair: &mut Pair) {
    use v1::parked_job_request::Select;
    use v1::settlement::Action;
    let leases = pair.receive(100).await;
    let park = of_team!(SettleRequest, leases: leases.clone(), action: Action::Park, reason: "down");
    both!(pair, "POST" at("nack"), { "leases": leases, "action": "park", "reason": "down" } = settle park);
    let list = |limit: u32, after: u64, reason: &str| {
        let filter = v1::ParkedFilter { reason: reason.into(), ..Default::default() };
        of_team!(ListParkedRequest, limit: limit, after: after, filter: Some(filter))
    };
    both!(pair, "GET" at("parked"), null = list_parked list(0, 0, ""));
    both!(pair, "GET" at("parked?limit=1&after=1"), null = list_parked list(1, 1, ""));
    both!(pair, "GET" at("parked?reason=down"), null = list_parked list(0, 0, "down"));
    both!(pair, "GET" at("parked?limit=1001"), null = list_parked list(1_001, 0, ""));
    let list = both!(pair, "GET" at("parked"), null = list_parked list(0, 0, ""));
    let seqs: Vec<u64> =
        list["parked"].as_array().expect("a list").iter().filter_map(|one| one["seq"].as_u64()).collect();
    assert!(seqs.len() >= 5, "{seqs:?}");
    both!(pair, "GET" at("parked/reasons"), null = list_parked_reasons of_team!(ListParkedReasonsRequest));
    let [one, two, three, ..] = seqs[..] else { panic!("some are parked: {seqs:?}") };
    both!(pair, "GET" at(&format!("parked/{one}")), null = get_parked of_team!(GetParkedRequest, seq: one));
    both!(pair, "GET" at("parked/99"), null = get_parked of_team!(GetParkedRequest, seq: 99u64));

    // Left out stays as it was; the rest is edited.
    let resubmit = |seq: u64, message| of_team!(ResubmitParkedRequest, seq: seq, message: Some(message));
    let path = |seq: u64| at(&format!("parked/{seq}/resubmit"));
    let edited = v1::Message { id: "new".into(), key: "other".into(), ..message("\"edited\"") };
    let body = json!({ "id": "new", "key": "other", "body": "edited" });
    both!(pair, "POST" path(one), body = resubmit_parked resubmit(one, edited));
    both!(pair, "POST" path(two), {} = resubmit_parked resubmit(two, v1::Message::default()));
    both!(pair, "POST" path(two), {} = resubmit_parked resubmit(two, v1::Message::default()));
    let taken = v1::Message { id: "new".into(), ..message("1") };
    both!(pair, "POST" path(three), { "id": "new", "body": 1 } = resubmit_parked resubmit(three, taken));
    let wrong = v1::Message { priority: 10, ..message("1") };
    both!(pair, "POST" path(three), { "priority": 10, "body": 1 } = resubmit_parked resubmit(three, wrong));
    both!(pair, "GET" "/streams/work/messages", null = read_messages request!(ReadMessagesRequest, stream: "work"));

    let job = |select: Option<Select>| of_team!(ParkedJobRequest, select: select);
    let seqs = |seqs: &[u64]| Some(Select::Seqs(v1::Seqs { seqs: seqs.to_vec() }));
    let filter =
        |reason: &str| Some(Select::Filter(v1::ParkedFilter { reason: reason.into(), ..Default::default() }));
    let dry = v1::ParkedJobRequest { dry_run: true, ..job(filter("down")) };
    let body = json!({ "filter": { "reason": "down" }, "dry_run": true });
    both!(pair, "POST" at("parked/replay"), body = replay_parked dry);
    let rate = Some(v1::Rate { per_second: 0.001, burst: 1 });
    let slow = v1::ParkedJobRequest { rate, limit: 2, ..job(Some(Select::All(true))) };
    let body = json!({ "all": true, "limit": 2, "rate": { "per_second": 0.001, "burst": 1 } });
    both!(pair, "POST" at("parked/replay"), body = replay_parked slow);
    both!(pair, "POST" at("parked/discard"), { "seqs": [three] } = discard_parked job(seqs(&[three])));
    let moves =
        |to: &str| v1::ParkedJobRequest { to: to.into(), dry_run: true, ..job(Some(Select::All(true))) };
    for to in ["elsewhere", "work", "not a name!", ""] {
        let body = json!({ "all": true, "dry_run": true, "to": to });
        both!(pair, "POST" at("parked/move"), body = move_parked moves(to));
    }
    let body = json!({ "all": true, "dry_run": true, "to": "elsewhere" });
    both!(pair, "POST" at("parked/replay"), body = replay_parked moves("elsewhere"));
    for (body, select) in [
        (json!({}), None),
        (json!({ "seqs": [] }), seqs(&[])),
        (json!({ "filter": {} }), filter("")),
        (json!({ "filter": { "reason": "" } }), filter("")),
        (json!({ "seqs": vec![1; 10_001] }), seqs(&vec![1; 10_001])),
    ] {
        both!(pair, "POST" at("parked/replay"), body = replay_parked job(select.clone()));
        both!(pair, "POST" at("parked/discard"), body = discard_parked job(select));
    }
    // The jobs take their steps.
    pair.advance(Duration::from_millis(1)).await;
    both!(pair, "GET" at("jobs"), null = list_jobs of_team!(ListJobsRequest));
    both!(pair, "GET" at("jobs/1"), null = get_job of_team!(GetJobRequest, job: 1u32));
    both!(pair, "GET" at("jobs/99"), null = get_job of_team!(GetJobRequest, job: 99u32));
    both!(pair, "DELETE" at("jobs/1"), null = cancel_job of_team!(CancelJobRequest, job: 1u32));
    both!(pair, "DELETE" at("jobs/1"), null = cancel_job of_team!(CancelJobRequest, job: 1u32));
    both!(pair, "GET" at("jobs"), null = list_jobs of_team!(ListJobsRequest));
    both!(pair, "GET" TEAM, null = get_group of_team!(GetGroupRequest));
}

async fn credentials(pair: &mut Pair) {
    let token = |name: &str, grants: &str| v1::CreateCredentialRequest {
        kind: v1::CredentialKind::Token.into(),
        name: name.into(),
        grants: grants.into(),
        ..Default::default()
    };
    let key = |account: &str| v1::CreateCredentialRequest {
        account: account.into(),
        kind: v1::CredentialKind::AccessKey.into(),
        ..token("sqs", "worker:*")
    };
    for (body, request) in [
        (json!({ "kind": "token", "name": "ci", "grants": "publish:a-*" }), token("ci", "publish:a-*")),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a-*", "expires_in": "90d" }),
            v1::CreateCredentialRequest {
                expires_in_ms: Some(90 * 86_400_000),
                ..token("ci", "publish:a-*")
            },
        ),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a", "expires_in": "0s" }),
            v1::CreateCredentialRequest { expires_in_ms: Some(0), ..token("ci", "publish:a") },
        ),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a", "expires_in": "400d" }),
            v1::CreateCredentialRequest { expires_in_ms: Some(400 * 86_400_000), ..token("ci", "publish:a") },
        ),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a", "limits": "requests=5,bytes=1MiB" }),
            v1::CreateCredentialRequest {
                limits: "requests=5,bytes=1MiB".into(),
                ..token("ci", "publish:a")
            },
        ),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a", "limits": "requests=0" }),
            v1::CreateCredentialRequest { limits: "requests=0".into(), ..token("ci", "publish:a") },
        ),
        (json!({ "kind": "token", "name": "", "grants": "publish:a" }), token("", "publish:a")),
        (json!({ "kind": "token", "name": "ci", "grants": "sing:a" }), token("ci", "sing:a")),
        (json!({ "kind": "token", "name": "ci", "grants": "" }), token("ci", "")),
        (
            json!({ "kind": "token", "name": "ci", "grants": "publish:a", "account": "123456789012" }),
            v1::CreateCredentialRequest { account: "123456789012".into(), ..token("ci", "publish:a") },
        ),
        (
            json!({ "kind": "access_key", "name": "sqs", "grants": "worker:*", "account": "123456789012" }),
            key("123456789012"),
        ),
        (json!({ "kind": "access_key", "name": "sqs", "grants": "worker:*", "account": "12" }), key("12")),
    ] {
        both!(pair, "POST" "/credentials", body = create_credential request);
    }
    users(pair).await;
    let list = |kind: v1::CredentialKind| request!(ListCredentialsRequest, kind: kind);
    let only = list(v1::CredentialKind::AccessKey);
    both!(pair, "GET" "/credentials?kind=access_key", null = list_credentials only);
    let tokens = list(v1::CredentialKind::Token);
    both!(pair, "GET" "/credentials?kind=token&limit=1001", null = list_credentials v1::ListCredentialsRequest {
        limit: 1_001, ..tokens
    });
    both!(pair, "DELETE" "/credentials/none", null = revoke_credential request!(RevokeCredentialRequest, id: "none"));
}

async fn users(pair: &mut Pair) {
    let user = |name: &str, password: &str| v1::CreateCredentialRequest {
        kind: v1::CredentialKind::User.into(),
        name: name.into(),
        grants: "publish:a".into(),
        password: password.into(),
        ..Default::default()
    };
    for (name, password) in [
        ("alice", "a good password"),
        ("alice", "another password"),
        ("bob", "short"),
        ("a:b", "a good password"),
    ] {
        let body = json!({ "kind": "user", "name": name, "grants": "publish:a", "password": password });
        both!(pair, "POST" "/credentials", body = create_credential user(name, password));
    }
    let token =
        v1::CreateCredentialRequest { kind: v1::CredentialKind::Token.into(), ..user("ci", "a password") };
    let body = json!({ "kind": "token", "name": "ci", "grants": "publish:a", "password": "a password" });
    both!(pair, "POST" "/credentials", body = create_credential token);
    for (id, password) in
        [("usr_alice", "the next password"), ("usr_alice", "short"), ("usr_carol", "a password")]
    {
        let request = request!(ChangePasswordRequest, id: id, password: password);
        let path = format!("/credentials/{id}/password");
        both!(pair, "PUT" path, { "password": password } = change_password request);
    }
    let only = request!(ListCredentialsRequest, kind: v1::CredentialKind::User);
    both!(pair, "GET" "/credentials?kind=user", null = list_credentials only);
}

async fn ends(pair: &mut Pair) {
    use v1::start::At;
    for (to, at_) in [
        (json!("beginning"), At::Beginning(true)),
        (json!({ "seq": 5 }), At::Seq(5)),
        (json!({ "seq": u64::MAX }), At::Seq(u64::MAX)),
        (json!("end"), At::End(true)),
    ] {
        let request = of_team!(ResetGroupRequest, to: Some(v1::Start { at: Some(at_) }));
        both!(pair, "POST" at("reset"), { "to": to } = reset_group request);
    }
    let to = Some(v1::Start { at: Some(At::End(true)) });
    let absent = request!(ResetGroupRequest, stream: "work", group: "none", to: to);
    both!(pair, "POST" "/streams/work/groups/none/reset", { "to": "end" } = reset_group absent);
    let cut = |before: u64| request!(TruncateStreamRequest, stream: "work", before: before);
    for before in [2, 2, 0, u64::MAX] {
        both!(pair, "POST" "/streams/work/truncate", { "before": before } = truncate_stream cut(before));
    }
    let absent = request!(TruncateStreamRequest, stream: "none", before: 1u64);
    both!(pair, "POST" "/streams/none/truncate", { "before": 1 } = truncate_stream absent);
    let if_empty = request!(DeleteStreamRequest, stream: "work", force: true, if_empty: true);
    both!(pair, "DELETE" "/streams/work?force=true&if_empty=true", null = delete_stream if_empty);
    let ready = request!(PurgeStreamRequest, stream: "work", ready_only: true);
    both!(pair, "POST" "/streams/work/purge", { "ready_only": true } = purge_stream ready);
    let ready = request!(PurgeStreamRequest, stream: "work", ready_only: true, parked: true);
    both!(pair, "POST" "/streams/work/purge", { "ready_only": true, "parked": true } = purge_stream ready);
    let purge = request!(PurgeStreamRequest, stream: "work", parked: true);
    both!(pair, "POST" "/streams/work/purge", { "parked": true } = purge_stream purge);
    both!(pair, "GET" "/streams/work", null = get_stream request!(GetStreamRequest, stream: "work"));
    both!(pair, "DELETE" "/streams/work", null = delete_stream request!(DeleteStreamRequest, stream: "work"));
    both!(pair, "DELETE" TEAM, null = delete_group of_team!(DeleteGroupRequest));
    both!(pair, "DELETE" TEAM, null = delete_group of_team!(DeleteGroupRequest));
    let force = request!(DeleteStreamRequest, stream: "work", force: true);
    both!(pair, "DELETE" "/streams/work?force=true", null = delete_stream force);
    let absent = of_team!(PauseGroupRequest);
    both!(pair, "POST" at("pause"), {} = pause_group absent);
}
