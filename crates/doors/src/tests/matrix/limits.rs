//! The limits of clients and streams, through every door: refused in the words of the protocol, before anything is
//! done, and counted.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use forebay_broker::api::{CredentialKind, CredentialTerms, Limit};
use forebay_wire::problem::{Kind, Problem};
use http_body_util::Full;
use serde_json::json;
use tokio::net::TcpStream;

use super::client::{Answer, over_http1, over_http2};
use super::{Credential, Needs, Stage, kurrent, native, sqs, stream};

const SECOND: Duration = Duration::from_secs(1);

/// A server with these limits, and the address of its native door. Tokens are of the client `ci`.
async fn open(limits: &str) -> (Stage, SocketAddr) {
    let of = Stage::open(CredentialKind::Token, Needs::Grants("admin:*")).await;
    let address = native::prepare(&of).await;
    of.broker.tenants().replace(limits).expect("they are good");
    (of, address)
}

fn token(of: &Stage) -> String {
    of.credential(Credential::Right).expect("it has one").1
}

fn http(token: &str, method: &str, path: &str, body: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.header("authorization", format!("Bearer {token}"));
    let request = request.header("content-type", "application/json");
    request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request")
}

fn grpc(token: &str, address: SocketAddr, path: &str, message: &[u8]) -> Request<Full<Bytes>> {
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let frame = [&[0], &length[..], message].concat();
    let request = Request::post(format!("http://{address}/{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let request = request.header("authorization", format!("Bearer {token}"));
    request.body(Full::new(Bytes::from(frame))).expect("a request")
}

/// The status of a call, and why it was refused.
fn told(answer: &Answer) -> (u16, Option<String>) {
    let problem: Option<Problem> = serde_json::from_slice(&answer.body).ok();
    let refused = problem.filter(|problem| problem.kind() == Some(Kind::OverLimit));
    (answer.status.as_u16(), refused.map(|problem| problem.detail))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn refusals(of: &Stage) -> Vec<(Limit, u64)> {
    of.broker.tenants().refusals().iter().map(|(_, limit, count)| (*limit, *count)).collect()
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_and_others_are_not_touched() {
    let (of, address) = open("ci requests=2").await;
    let list = async |token: &str| over_http1(address, http(token, "GET", "/streams", "")).await;
    let terms = CredentialTerms {
        kind: CredentialKind::Token,
        name: "another".to_owned(),
        grants: "view:work".parse().expect("grants"),
        expires: None,
        limits: None,
        account: None,
        password: None,
    };
    let another = of.owner.create_credential(terms).await.expect("it is created");
    for _ in 0..2 {
        assert_eq!(told(&list(&token(&of)).await), (200, None));
    }
    let refused = list(&token(&of)).await;
    let text = "the number of requests a second of the client is reached. tenant=`ci` limit=`requests=2`";
    assert_eq!(told(&refused), (429, Some(text.to_owned())));
    assert_eq!(header(&refused.headers, "retry-after"), Some("1"));
    for _ in 0..5 {
        assert_eq!(told(&list(another.secret.reveal()).await), (200, None));
    }
    let live = over_http1(address, http("wrong", "GET", "/livez", "")).await;
    assert_eq!(live.status, 200, "a question that needs no credential has no limits");
    // Both codecs share the rate.
    let refused =
        over_http2(address, grpc(&token(&of), address, "forebay.v1.Forebay/ListStreams", b"")).await;
    assert_eq!(header(&refused.headers, "grpc-status"), Some("8"), "RESOURCE_EXHAUSTED");
    assert_eq!(header(&refused.headers, "forebay-problem"), Some("over-limit"));
    assert_eq!(header(&refused.headers, "forebay-retry"), Some("later"));
    assert_eq!(header(&refused.headers, "forebay-retry-after-ms"), Some("500"));
    assert_eq!(refusals(&of), [(Limit::Requests, 2)]);
    of.broker.advance(SECOND).await;
    assert_eq!(told(&list(&token(&of)).await), (200, None));
    // Without a restart.
    of.broker.tenants().replace("ci requests=1000").expect("they are good");
    for _ in 0..5 {
        assert_eq!(told(&list(&token(&of)).await), (200, None));
    }
    let listed = over_http1(address, http(&token(&of), "GET", "/credentials", "")).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.body).expect("JSON");
    let limits: Vec<_> = listed["credentials"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["name"].as_str(), one["shared_limits"].as_str()))
        .collect();
    assert!(limits.contains(&(Some("ci"), Some("requests=1000"))), "{limits:?}");
    assert!(limits.contains(&(Some("another"), None)), "{limits:?}");
    of.broker.stop();
}

#[tokio::test]
async fn a_credential_has_limits_of_its_own_beside_those_of_its_name() {
    let (of, address) = open("ci requests=3").await;
    let body =
        json!({ "kind": "token", "name": "ci", "grants": "view:*", "limits": "requests=1,bytes=1KiB" });
    let create =
        async |body: &str| over_http1(address, http(&token(&of), "POST", "/credentials", body)).await;
    let created = create(&body.to_string()).await;
    let created: serde_json::Value = serde_json::from_slice(&created.body).expect("JSON");
    assert_eq!(created["credential"]["limits"], "requests=1,bytes=1KiB");
    let limited = created["secret"].as_str().expect("a token");
    let list = async |token: &str| over_http1(address, http(token, "GET", "/streams", "")).await;
    of.broker.advance(3 * SECOND).await;
    assert_eq!(told(&list(limited).await), (200, None));
    let id = created["credential"]["id"].as_str().expect("an id");
    let text = "the number of requests a second of the client is reached.";
    for _ in 0..3 {
        let over = format!("{text} tenant=`id:{id}` limit=`requests=1`");
        assert_eq!(told(&list(limited).await), (429, Some(over)));
    }
    // What it was refused did not count for the others of its name.
    assert_eq!(told(&list(&token(&of)).await), (200, None));
    assert_eq!(told(&list(&token(&of)).await), (200, None));
    let over = format!("{text} tenant=`ci` limit=`requests=3`");
    assert_eq!(told(&list(&token(&of)).await), (429, Some(over)));
    assert_eq!(of.broker.credentials().refusals(), [(format!("id:{id}").into(), Limit::Requests, 3)]);
    of.broker.advance(3 * SECOND).await;
    for wrong in ["requests=0", "streams=1", "nonsense"] {
        let body = json!({ "kind": "token", "name": "ci", "grants": "view:*", "limits": wrong });
        of.broker.advance(3 * SECOND).await;
        assert_eq!(create(&body.to_string()).await.status, 400, "{wrong}");
    }
    of.broker.stop();
}

#[tokio::test]
async fn bytes_beyond_the_rate_are_paid_with_time() {
    let (of, address) = open("ci bytes=1KiB").await;
    let body = json!({ "messages": [{ "body": "x".repeat(3_000) }] }).to_string();
    let publish =
        async || over_http1(address, http(&token(&of), "POST", "/streams/work/messages", &body)).await;
    assert_eq!(told(&publish().await), (201, None));
    let before = of.state().await;
    let refused = publish().await;
    let text = "the number of bytes a second of the client is reached. tenant=`ci` limit=`bytes=1024`";
    assert_eq!(told(&refused), (429, Some(text.to_owned())));
    assert_eq!(header(&refused.headers, "retry-after"), Some("2"));
    assert_eq!(of.state().await, before, "nothing was stored");
    of.broker.advance(2 * SECOND).await;
    assert_eq!(told(&publish().await), (201, None));
    of.broker.stop();
}

/// One connection, which is kept.
struct Kept(hyper::client::conn::http1::SendRequest<Full<Bytes>>);

impl Kept {
    async fn open(address: SocketAddr) -> Kept {
        let socket = TcpStream::connect(address).await.expect("the server listens");
        let io = hyper_util::rt::TokioIo::new(socket);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("a connection");
        tokio::spawn(connection);
        Kept(sender)
    }
}

#[tokio::test]
async fn a_client_has_so_many_connections_and_calls_at_once() {
    let (of, address) = open("ci connections=1").await;
    let list = async || told(&over_http1(address, http(&token(&of), "GET", "/streams", "")).await);
    let mut kept = Kept::open(address).await;
    let answer = kept.0.send_request(http(&token(&of), "GET", "/streams", "")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(list().await.0, 429, "the connection counts while it is open");
    drop((answer, kept));
    while list().await.0 != 200 {
        tokio::task::yield_now().await;
    }
    of.broker.tenants().replace("ci in_flight=1").expect("they are good");
    // A receive that waits is a call.
    of.owner.purge_ready(stream("work")).await.expect("nothing is left to receive");
    let path = "/streams/work/groups/team/receive";
    let waiting = tokio::spawn(over_http1(address, http(&token(&of), "POST", path, r#"{"wait":"60s"}"#)));
    while of.owner.server().await.expect("a report").waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(list().await.0, 429, "the receive is a call");
    waiting.abort();
    while list().await.0 != 200 {
        tokio::task::yield_now().await;
    }
    of.broker.stop();
}

#[tokio::test]
async fn streams_have_a_number_and_a_size() {
    let (of, address) = open("stream:work* streams=2,stored_bytes=1KiB").await;
    of.broker.tenants().measure(&of.broker).await.expect("a look");
    let publish = async |stream: &str, bytes: usize| {
        let body = json!({ "messages": [{ "body": "x".repeat(bytes) }] }).to_string();
        let path = format!("/streams/{stream}/messages");
        told(&over_http1(address, http(&token(&of), "POST", &path, &body)).await)
    };
    assert_eq!(publish("work-2", 10).await, (201, None), "a stream comes about");
    let (status, why) = publish("work-3", 10).await;
    assert_eq!(status, 429);
    assert!(why.is_some_and(|why| why.contains("limit=`streams=2`")));
    let put = over_http1(address, http(&token(&of), "PUT", "/streams/work-3", "{}")).await;
    assert_eq!(told(&put).0, 429);
    assert!(of.owner.stream(stream("work-3")).await.is_err(), "it was not created");
    let put = over_http1(address, http(&token(&of), "PUT", "/streams/elsewhere", "{}")).await;
    assert_eq!(put.status, 201, "others have no limits");
    assert_eq!(publish("work", 2_000).await, (201, None));
    let (status, why) = publish("work-2", 1).await;
    assert_eq!(status, 429);
    assert!(why.is_some_and(|why| why.contains("limit=`stored_bytes=1024`")));
    // Room is there again after a look.
    of.owner.purge_ready(stream("work")).await.expect("it is purged");
    of.owner.delete_stream(stream("work-2"), true).await.expect("it is deleted");
    of.broker.tenants().measure(&of.broker).await.expect("a look");
    assert_eq!(publish("work-3", 1).await, (201, None));
    of.broker.stop();
}

#[tokio::test]
async fn sqs_clients_are_throttled_in_their_words() {
    let of = Stage::open(CredentialKind::AccessKey, Needs::Grants("admin:*")).await;
    let address = sqs::prepare(&of).await;
    of.broker.tenants().replace("ci requests=1").expect("they are good");
    let (id, secret) = of.credential(Credential::Right).expect("a key");
    let call = async || {
        sqs::call(&of, address, Some((id.as_str(), secret.as_str())), "ListQueues", &json!({})).await
    };
    assert_eq!(call().await.0, 200);
    let (status, said) = call().await;
    assert!(status == 403 && said.contains("RequestThrottled"), "{status} {said}");
    assert!(said.contains("requests a second"), "{said}");
    of.broker.advance(SECOND).await;
    assert_eq!(call().await.0, 200);
    of.broker.stop();
}

#[tokio::test]
async fn kurrent_clients_are_told_that_the_server_is_busy() {
    let of = Stage::open(CredentialKind::Token, Needs::Grants("admin:*")).await;
    let address = kurrent::prepare(&of).await;
    of.broker.tenants().replace("ci requests=1").expect("they are good");
    let path = "event_store.client.server_features.ServerFeatures/GetSupportedMethods";
    let call = async || over_http2(address, grpc(&token(&of), address, path, b"")).await;
    assert_eq!(header(&call().await.headers, "grpc-status"), Some("0"));
    let refused = call().await;
    assert_eq!(header(&refused.headers, "grpc-status"), Some("14"), "UNAVAILABLE");
    let message = header(&refused.headers, "grpc-message").unwrap_or_default();
    assert!(message.contains("Busy"), "{message}");
    let refused = over_http1(address, http(&token(&of), "POST", "/streams/work", "[]")).await;
    assert_eq!((refused.status.as_u16(), header(&refused.headers, "retry-after")), (503, Some("1")));
    assert_eq!(refusals(&of), [(Limit::Requests, 2)]);
    of.broker.advance(SECOND).await;
    assert_eq!(header(&call().await.headers, "grpc-status"), Some("0"));
    of.broker.stop();
}
