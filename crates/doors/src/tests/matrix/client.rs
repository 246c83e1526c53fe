//! A client that sends one request on a connection of its own, and reads the first of the answer.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// How long an answer that goes on is read.
const A_WHILE: Duration = Duration::from_millis(300);

pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// With the trailers, if they came.
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

pub(super) async fn over_http1(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let socket = TcpStream::connect(address).await.expect("the server listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("a connection");
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.expect("an answer")).await;
    connection.abort();
    answer
}

pub(super) async fn over_http2(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let socket = TcpStream::connect(address).await.expect("the server listens");
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
    let (mut sender, connection) = shaken.expect("a connection");
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.expect("an answer")).await;
    connection.abort();
    answer
}

async fn read(answer: hyper::Response<hyper::body::Incoming>) -> Answer {
    let (parts, mut body) = answer.into_parts();
    let mut answer = Answer { status: parts.status, headers: parts.headers, body: Vec::new() };
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(A_WHILE, body.frame()).await {
        match frame.into_data() {
            Ok(data) => answer.body.extend_from_slice(&data),
            Err(frame) => answer.headers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    answer
}

/// Sends a request, and returns when the answer has ended, in whatever way.
pub(super) async fn whole_over_http1(address: SocketAddr, request: Request<Full<Bytes>>) {
    let socket = TcpStream::connect(address).await.expect("the server listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("a connection");
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.expect("an answer");
    let _ = answer.into_body().collect().await;
    connection.abort();
}

/// As [`whole_over_http1`], for a call of gRPC whose client sends nothing more and stays.
pub(super) async fn whole_over_http2(
    address: SocketAddr,
    request: axum::http::request::Builder,
    first: Vec<u8>,
) {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    let socket = TcpStream::connect(address).await.expect("the server listens");
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
    let (mut sender, connection) = shaken.expect("a connection");
    let connection = tokio::spawn(connection);
    let (frames, body) = tokio::sync::mpsc::channel::<Result<http_body::Frame<Bytes>, Infallible>>(1);
    frames.send(Ok(http_body::Frame::data(first.into()))).await.expect("there is room");
    let body = StreamBody::new(futures_of(body));
    let answer = sender.send_request(request.body(body).expect("a request")).await.expect("an answer");
    let headers = answer.headers().clone();
    let trailers = answer.into_body().collect().await.ok().and_then(|body| body.trailers().cloned());
    let status = trailers.unwrap_or(headers).get("grpc-status").cloned();
    assert_eq!(status.as_ref().map(HeaderValue::as_bytes), Some(&b"16"[..]), "it says why");
    drop(frames);
    connection.abort();
}

fn futures_of<T: Send + 'static>(
    queue: tokio::sync::mpsc::Receiver<T>,
) -> impl tokio_stream::Stream<Item = T> + Send + 'static {
    struct Queue<T>(tokio::sync::mpsc::Receiver<T>);
    impl<T> tokio_stream::Stream for Queue<T> {
        type Item = T;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<T>> {
            self.0.poll_recv(cx)
        }
    }
    Queue(queue)
}
