//! The door of a node that does not own the log. It carries connections on to the node that does, so that any node of a
//! cluster serves any client.
//!
//! The native port of a standby answers `/livez` and `/readyz` for itself, as long as they are not encrypted: `/readyz`
//! is 200 if the standby reaches the owner. Where clients need no credential it tells `/cluster` and `/metrics` of
//! itself too. Any other connection is carried to the same port of the owner, byte for
//! byte, and ends when the owner changes. TLS passes through. While no owner is known or reached, every call, HTTP or
//! gRPC, is answered with the problem `not-owner`, and nothing of a request but its head is read.

mod splice;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use forebay_wire::problem::{Kind, MEDIA_TYPE, Problem};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};

use crate::http::connection::{self, Protocol};
use crate::kit::tls::{self, Speaks, Tls, Wire};
use crate::native::cluster::ClusterReporter;
use crate::native::grpc::status::refused;
use crate::native::problem::Refusal;

/// A connection that the standby answers itself is of no use for longer.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// After the system had no more sockets to give.
const PAUSE: Duration = Duration::from_millis(50);
/// Before a connection is looked at again whose first bytes do not tell enough.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How requests begin that a standby answers for itself. A space or `?` follows.
const LOCAL: [&[u8]; 4] = [b"GET /livez", b"GET /readyz", b"HEAD /livez", b"HEAD /readyz"];
/// The same, where clients need no credential.
const LOCAL_REPORTS: [&[u8]; 2] = [b"GET /cluster", b"GET /metrics"];
const LOCAL_BYTES_MAX: usize = 16;

/// The figures of a standby. Those of streams and groups are the owner's.
const METRICS: &str = "\
# HELP forebay_ready 1 while the server takes work.
# TYPE forebay_ready gauge
forebay_ready 0
";

/// How a node stands that does not own the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// A sentence that names the owner, or says why none is known.
    pub reason: String,
    pub owner: Option<Owner>,
}

/// The node that owns the log, as another node knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    pub node: String,
    /// Where its native API is.
    pub address: String,
    /// Where its other APIs are, by name.
    pub others: Vec<(String, String)>,
}

/// One port of a standby.
#[derive(Debug, Clone)]
pub struct StandbyPort {
    /// The name of the API that the owner serves on this port. `None`: the native one.
    pub api: Option<&'static str>,
    /// For connections that the standby answers itself.
    pub tls: Option<Tls>,
    /// Connections at once. One more waits until another has ended.
    pub connections_max: usize,
    /// Answers `/cluster` and `/metrics` for this node. None: the owner does, as it does for other requests, since only
    /// the owner knows credentials.
    pub cluster: Option<ClusterReporter>,
}

impl StandbyPort {
    /// The address of the same API at the owner.
    fn address_in(&self, standing: &Standing) -> Option<String> {
        let owner = standing.owner.as_ref()?;
        match self.api {
            None => Some(owner.address.clone()),
            Some(api) => {
                owner.others.iter().find(|(name, _)| name == api).map(|(_, address)| address.clone())
            }
        }
    }
}

/// Serves clients until it is dropped, which ends their connections.
pub async fn stand_by(
    listener: &TcpListener,
    port: StandbyPort,
    standing: watch::Receiver<Standing>,
) -> Infallible {
    let permits = Arc::new(Semaphore::new(port.connections_max));
    let port = Arc::new(port);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, from)) => {
                let (port, standing) = (port.clone(), standing.clone());
                connections.spawn(async move {
                    serve(stream, from, &port, standing).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Carries a connection on, or answers it here.
async fn serve(
    stream: TcpStream,
    from: SocketAddr,
    port: &StandbyPort,
    mut standing: watch::Receiver<Standing>,
) {
    let mut reason = standing.borrow().reason.clone();
    let is_local =
        port.api.is_none() && port.tls.is_none() && is_local(&stream, port.cluster.is_some()).await;
    let address = port.address_in(&standing.borrow());
    if let Some(address) = address.filter(|_| !is_local) {
        match splice::connect(&address).await {
            Ok(owner) => {
                let over = async {
                    let is_other = |now: &Standing| port.address_in(now).as_ref() != Some(&address);
                    let _ = standing.wait_for(is_other).await;
                };
                return splice::splice(stream, owner, over).await;
            }
            Err(error) => {
                tracing::debug!(address, %error, "the owner of the log cannot be reached");
                reason = format!("{reason}. Its address cannot be reached: {error}");
            }
        }
    }
    let (standing, reason) = (standing.clone(), Arc::new(reason));
    let answer = async {
        if let Some(wire) = tls::begin(port.tls.as_ref(), Speaks::Both, stream, from).await {
            serve_one(wire, standing, reason, port.cluster.as_ref()).await;
        }
    };
    let _ = tokio::time::timeout(CONNECTION_MAX, answer).await;
}

/// Whether a connection begins with a request that a standby answers for itself. Takes nothing of it. A client that
/// sends nothing is no reason to wait for long: it may be a connection that is made before it is needed.
async fn is_local(stream: &TcpStream, has_reports: bool) -> bool {
    let look = async {
        let mut seen = 0;
        loop {
            let mut bytes = [0; LOCAL_BYTES_MAX];
            let Ok(count) = stream.peek(&mut bytes).await else { return false };
            if count == 0 {
                return false;
            }
            match tells(&bytes[..count], has_reports) {
                Some(is_local) => return is_local,
                // Nothing more came since the last look.
                None if count == seen => tokio::time::sleep(LOOK_AGAIN).await,
                None => seen = count,
            }
        }
    };
    tokio::time::timeout(HEAD_WITHIN, look).await.unwrap_or(false)
}

/// Whether these are the first bytes of a request that a standby answers for itself; `None` if more are needed.
fn tells(bytes: &[u8], has_reports: bool) -> Option<bool> {
    let reports = LOCAL_REPORTS.iter().filter(|_| has_reports);
    for local in LOCAL.iter().chain(reports) {
        match bytes.strip_prefix(*local) {
            Some(rest) => return rest.first().map(|next| matches!(next, b' ' | b'?')),
            None if local.starts_with(bytes) => return None,
            None => {}
        }
    }
    Some(false)
}

async fn serve_one(
    wire: Wire,
    standing: watch::Receiver<Standing>,
    reason: Arc<String>,
    cluster: Option<&ClusterReporter>,
) {
    let Some(protocol) = connection::protocol_of(&wire).await else { return };
    let io = TokioIo::new(wire);
    let answered = Arc::new(Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (standing, reason) = (standing.borrow().clone(), reason.clone());
        let cluster = cluster.cloned();
        let answered = answered.clone();
        async move {
            let answer = answer(&request, &standing, &reason, cluster.as_ref()).await;
            answered.notify_one();
            Ok::<_, Infallible>(answer)
        }
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
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .serve_connection(io, service);
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                // The client connects again, to another node if it knows one.
                () = answered.notified() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
    }
}

async fn answer<B>(
    request: &Request<B>,
    standing: &Standing,
    reason: &str,
    cluster: Option<&ClusterReporter>,
) -> Response<Body> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc")) {
        return refused(&Refusal::new(Kind::NotOwner, reason)).into_http();
    }
    let text = |text: String| response(StatusCode::OK, "text/plain; charset=utf-8", text);
    if let Some(cluster) = cluster {
        match request.uri().path() {
            "/cluster" => {
                let report = serde_json::to_string(&cluster.report().await).unwrap_or_default();
                return response(StatusCode::OK, "application/json", report);
            }
            "/metrics" => return text(METRICS.to_owned()),
            _ => {}
        }
    }
    let kind = match request.uri().path() {
        "/livez" => return text("alive\n".to_owned()),
        "/readyz" => match &standing.owner {
            Some(owner) if splice::connect(&owner.address).await.is_ok() => {
                return text(format!("ready: node {} at {} serves clients\n", owner.node, owner.address));
            }
            _ => Kind::NotReady,
        },
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
mod tests;
