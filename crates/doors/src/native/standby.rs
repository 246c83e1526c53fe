//! The door of a node that does not own the log: it says so, and which node does.
//!
//! `/livez` answers as on any server, `/readyz` with the problem `not-ready`, and every other call, HTTP or gRPC, with
//! `not-owner`. Nothing of a request but its head is read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use forebay_wire::problem::{Kind, MEDIA_TYPE, Problem};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::http::connection::{self, Protocol};
use crate::kit::tls::{self, Speaks, Tls, Wire};
use crate::native::grpc::status::refused;
use crate::native::problem::Refusal;

/// Connections at once. One more waits until another has ended.
const CONNECTIONS_MAX: usize = 256;
/// A connection to a standby is of no use for longer.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// After the system had no more sockets to give.
const PAUSE: Duration = Duration::from_millis(50);

/// Answers clients until it is dropped. `reason` is a sentence that names the owner.
pub async fn stand_by(
    listener: &TcpListener,
    tls: Option<Tls>,
    reason: watch::Receiver<String>,
) -> Infallible {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, address)) => {
                let (tls, reason) = (tls.clone(), reason.clone());
                connections.spawn(async move {
                    let serve = async {
                        let wire = tls::begin(tls.as_ref(), Speaks::Both, stream, address).await;
                        if let Some(wire) = wire {
                            serve_one(wire, reason).await;
                        }
                    };
                    let _ = tokio::time::timeout(CONNECTION_MAX, serve).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_one(wire: Wire, reason: watch::Receiver<String>) {
    let Some(protocol) = connection::protocol_of(&wire).await else { return };
    let io = TokioIo::new(wire);
    let service = service_fn(|request: Request<Incoming>| {
        let answered = answer(&request, &reason.borrow());
        async move { Ok::<_, Infallible>(answered) }
    });
    // How a connection ends is its client's business.
    match protocol {
        Protocol::Http1 => {
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WITHIN)
                .keep_alive(false)
                .serve_connection(io, service)
                .await;
        }
        Protocol::Http2 => {
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .serve_connection(io, service)
                .await;
        }
    }
}

fn answer<B>(request: &Request<B>, reason: &str) -> Response<Body> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc")) {
        return refused(&Refusal::new(Kind::NotOwner, reason)).into_http();
    }
    let kind = match request.uri().path() {
        "/livez" => return response(StatusCode::OK, "text/plain; charset=utf-8", "alive\n".to_owned()),
        "/readyz" => Kind::NotReady,
        _ => Kind::NotOwner,
    };
    let status = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let problem = serde_json::to_string(&Problem::new(kind, reason)).unwrap_or_default();
    response(status, MEDIA_TYPE, problem)
}

fn response(status: StatusCode, media_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASON: &str = "node `b` owns the log. owner=`10.0.0.2:7070`";

    fn ask(path: &str, media_type: &str) -> Response<Body> {
        let request = Request::builder().uri(path).header(header::CONTENT_TYPE, media_type).body(());
        answer(&request.expect("a request"), REASON)
    }

    #[test]
    fn a_standby_lives_is_not_ready_and_names_the_owner() {
        assert_eq!(ask("/livez", "text/plain").status(), 200);
        for (path, slug) in [("/readyz", "not-ready"), ("/streams", "not-owner"), ("/", "not-owner")] {
            let answer = ask(path, "application/json");
            assert_eq!(answer.status(), 503, "{path}");
            assert_eq!(answer.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
            let kind = if slug == "not-ready" { Kind::NotReady } else { Kind::NotOwner };
            assert_eq!(kind.slug(), slug);
        }
        let answer = ask("/forebay.v1.Forebay/PublishOnce", "application/grpc");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["grpc-status"], "14");
        assert_eq!(answer.headers()["forebay-problem"], "not-owner");
        assert_eq!(answer.headers()["forebay-retry"], "later");
    }

    #[tokio::test]
    async fn a_standby_answers_over_a_socket() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_sender, reason) = watch::channel(REASON.to_owned());
        let ask = async {
            let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
            stream.write_all(b"GET /streams HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it is sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("it is answered and closed");
            answer
        };
        let answer = tokio::select! {
            answer = ask => answer,
            never = stand_by(&listener, None, reason) => match never {},
        };
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("/problems/not-owner") && answer.contains("10.0.0.2:7070"), "{answer}");
    }
}
