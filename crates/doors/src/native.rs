//! The native door: one port for everything that speaks Forebay's own API, HTTP with JSON and gRPC alike.
//!
//! A connection is HTTP/1.1 or HTTP/2, which its first bytes tell; a request is gRPC or not, which its content
//! type tells. gRPC goes to its services as it is, without another task or queue in between.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `service` | Every call, once: its checks, limits, pages and reports. |
//! | `limits` | All limits of the API. |
//! | `problem` | From the errors of the broker to kinds of problems, in one table. |
//! | `http` | The HTTP API: JSON to the service and back. |
//! | `grpc` | `forebay.v1`: the same for protobuf, and the streaming calls. |
//! | `standby` | The door of a node that does not own the log. |
//! | `trace` | The trace that messages carry on. |
//! | `intake` | What gRPC messages may hold while they come in. |

mod grpc;
mod http;
mod intake;
mod limits;
mod problem;
mod service;
mod standby;
mod trace;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, header};
use forebay_broker::api::{Broker, DoorStats, Pool, Share};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use crate::http::accept::{self, Stopping};
use crate::http::connection::{self, Connection, Open, Protocol};
use crate::http::outgoing::Outgoing;
use crate::telemetry;
use http::BodyShares;
use http::HttpDoor;
use intake::Intake;

pub use standby::stand_by;

/// Bytes that a client may send on one call, and on one connection, before the server has read them.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest frame of HTTP/2 that a client may send. Room for a frame is made when its head has come, and
/// an unauthenticated client may make the server allocate no more than 64 KiB.
const FRAME_MAX: u32 = 60 << 10;
/// Calls that one connection may have at once.
const CALLS_MAX: u32 = 256;
/// A connection that says nothing is asked whether it is still there, and given up if it does not answer.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// The head of a request, and what a connection keeps of what it has read.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The limits and settings of the door.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Connections at a time. A further client is told that the server is busy.
    pub connections_max: usize,
    /// Names that the server has beside its addresses and `localhost`. A request for another one is refused,
    /// since a web page could have made it by giving a name of its own this server's address.
    pub host_names: Vec<String>,
    /// Bytes of request bodies that are being read, over all connections; and as much again for gRPC.
    pub body_bytes_max: usize,
    /// Figures of the process for `/metrics`. The door opens no files itself.
    pub process: fn() -> ProcessFigures,
    /// Whether figures are recorded from the start on, for the dashboard's charts, and kept in the log. Otherwise
    /// recording begins with the first page that is opened, and nothing is kept.
    pub history: bool,
}

/// Figures of the process, as far as the system tells.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessFigures {
    /// Resident memory in bytes.
    pub memory: Option<u64>,
    /// File descriptors that are open, and how many may be.
    pub open_files: Option<u64>,
    pub open_files_max: Option<u64>,
}

impl Default for NativeConfig {
    fn default() -> NativeConfig {
        NativeConfig {
            connections_max: 20_000,
            host_names: Vec::new(),
            body_bytes_max: 64 << 20,
            process: ProcessFigures::default,
            history: false,
        }
    }
}

/// Serves the native API with the usual limits on this socket until `stop` resolves and the calls have ended.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    serve_with(broker, listener, stop, NativeConfig::default()).await
}

/// As [`serve`], with other limits.
pub async fn serve_with(
    broker: Broker,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    config: NativeConfig,
) -> std::io::Result<()> {
    let connections = Arc::new(Semaphore::new(config.connections_max));
    let stats = broker.doors().door("native");
    let (memory, clock) = (broker.memory().clone(), broker.clock());
    let services = Arc::new(Services {
        stats: stats.clone(),
        grpc_stats: broker.doors().door("grpc"),
        http_stats: broker.doors().door("http"),
        grpc: grpc::routes(broker.clone()).prepare(),
        grpc_bodies: Pool::new(config.body_bytes_max),
        http: HttpDoor::new(broker, &config),
    });
    let one = |stream, address, stopping| {
        serve_one(services.clone(), Outgoing::new(memory.share(), clock), stream, address, stopping)
    };
    accept::connections(listener, stop, connections, http::BUSY_REPLY, &stats, one).await;
    Ok(())
}

/// The shares of one connection.
struct Shares {
    replies: Share,
    bodies: BodyShares,
    grpc: Share,
}

struct Services {
    grpc: Routes,
    grpc_bodies: Arc<Pool>,
    http: HttpDoor,
    stats: Arc<DoorStats>,
    grpc_stats: Arc<DoorStats>,
    http_stats: Arc<DoorStats>,
}

impl Services {
    async fn answer(&self, from: SocketAddr, of: &Shares, mut request: Request<Incoming>) -> Response<Body> {
        request.extensions_mut().insert(of.replies.clone());
        let content_type = request.headers().get(header::CONTENT_TYPE);
        // gRPC is spoken over HTTP/2 only, which no browser does without TLS. A page of another site could
        // otherwise have a request taken for gRPC, and so past the checks of a request's origin.
        let may_be_grpc = request.version() == hyper::Version::HTTP_2;
        if may_be_grpc && content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc")) {
            let info = TcpConnectInfo { local_addr: None, remote_addr: Some(from) };
            request.extensions_mut().insert(info);
            let request = request.map(|body| Intake::new(body, of.grpc.clone()));
            let uri = request.uri().clone();
            let answered = tonic::codegen::Service::call(&mut self.grpc.clone(), request).await;
            let mut answered = answered.unwrap_or_else(|never| match never {}).map(Body::new);
            grpc::status::mend(&mut answered);
            telemetry::answered_grpc(&self.grpc_stats, from, uri.path(), &answered);
            return answered;
        }
        request.extensions_mut().insert(of.bodies.clone());
        let answered = self.http.answer(from, request).await;
        telemetry::answered_http(&self.http_stats, from, &answered);
        answered
    }
}

/// Serves one connection until its client leaves or, when the server stops, until its requests have ended.
async fn serve_one(
    services: Arc<Services>,
    outgoing: Arc<Outgoing>,
    stream: TcpStream,
    address: SocketAddr,
    stopping: Stopping,
) {
    let Some(protocol) = connection::protocol_of(&stream).await else { return };
    let open = Open::default();
    let io = TokioIo::new(Connection::new(stream, protocol, open.clone(), http::refusal));
    let stopped = stopping.wait();
    let shares = Arc::new(Shares {
        replies: outgoing.share.clone(),
        bodies: services.http.body_shares(),
        grpc: services.grpc_bodies.share(),
    });
    // How a connection ends is its client's business; a caller that waits for an answer on it sees that it
    // ended.
    match protocol {
        Protocol::Http1 => {
            let service = service_fn(|request| {
                let (services, shares, open) = (services.clone(), shares.clone(), open.enter());
                async move {
                    let answered = services.answer(address, &shares, request).await;
                    Ok::<_, std::convert::Infallible>(open.hold(answered))
                }
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
                let (services, shares, outgoing) = (services.clone(), shares.clone(), outgoing.clone());
                async move {
                    let answered = services.answer(address, &shares, request).await;
                    Ok::<_, std::convert::Infallible>(outgoing.send(answered))
                }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(CALL_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(FRAME_MAX)
                .max_concurrent_streams(CALLS_MAX)
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
                    services.stats.stalled.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(peer = %address, "a client did not take a reply and was disconnected");
                }
            }
        }
    }
}
