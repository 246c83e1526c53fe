//! One connection, in the version of HTTP that its first bytes tell. gRPC is spoken over HTTP/2 only.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use forebay_broker::api::{DoorStats, LiveConnection};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::accept::Stopping;
use super::connection::{self, Connection, Open, Protocol, Refusal};
use super::outgoing::Outgoing;
use crate::kit::tls::Wire;

/// Bytes that a client may send on one call, and on one connection, before the server has read them.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest frame of HTTP/2 that a client may send. Room for a frame is made when its head has come, and
/// an unauthenticated client may make the server allocate no more than 64 KiB.
const FRAME_MAX: u32 = 60 << 10;
/// A connection that says nothing is asked whether it is still there, and given up if it does not answer.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// The head of a request, and what a connection keeps of what it has read.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves one connection until its client leaves or, when the server stops, until its requests have ended. A connection
/// has at most `calls_max` requests at a time over HTTP/2.
#[allow(clippy::too_many_arguments, reason = "a connection, and everything that it needs")]
pub(crate) async fn connection<S, F>(
    wire: Wire,
    address: SocketAddr,
    stopping: Stopping,
    calls_max: u32,
    stats: &DoorStats,
    (outgoing, live): (Arc<Outgoing>, Arc<LiveConnection>),
    refusal: Refusal,
    answer: S,
) where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let Some(protocol) = connection::protocol_of(&wire).await else { return };
    let open = Open::default();
    let io = TokioIo::new(Connection::new(wire, protocol, open.clone(), refusal, live));
    let stopped = stopping.wait();
    // How a connection ends is its client's business; a caller that waits for an answer on it sees that it
    // ended.
    match protocol {
        Protocol::Http1 => {
            let service = service_fn(|request| {
                let (answered, open) = (answer(request), open.enter());
                async move { Ok::<_, Infallible>(open.hold(answered.await)) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .header_read_timeout(None)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stopped => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
        Protocol::Http2 => {
            let service = service_fn(|request| {
                let (answered, outgoing) = (answer(request), outgoing.clone());
                async move { Ok::<_, Infallible>(outgoing.send(answered.await)) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(CALL_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(FRAME_MAX)
                .max_concurrent_streams(calls_max)
                .keep_alive_interval(KEEPALIVE_EVERY)
                .keep_alive_timeout(KEEPALIVE_ANSWER)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            let served = async {
                tokio::select! {
                    _ = connection.as_mut() => {}
                    () = stopped => {
                        connection.as_mut().graceful_shutdown();
                        let _ = connection.await;
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = outgoing.stalled() => {
                    stats.stalled.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(peer = %address, "a client did not take a reply and was disconnected");
                }
            }
        }
    }
}
