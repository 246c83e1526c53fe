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
//! | `otlp` | Metrics that a collector is sent. |
//! | `facts`, `alerts` | Figures of groups, and operators that are told when they cross a threshold. |
//! | `node` | The server as its operator started it. |
//! | `cluster` | How the cluster stands that the server is a node of. |
//! | `standby` | The ports of a node that does not own the log: connections are carried to the node that does. |
//! | `trace` | The trace that messages carry on. |

pub mod alerts;
mod cluster;
mod facts;
mod grpc;
mod http;
mod limits;
pub mod node;
pub mod otlp;
mod problem;
mod service;
mod standby;
mod trace;

#[cfg(test)]
pub(crate) mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, header};
use forebay_broker::api::{Clock, DoorStats, Entrance, Grants, LiveConnection, Pool, Principal, Share};
use forebay_wire::problem::Kind;
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use crate::http::accept::{self, Stopping};
use crate::http::intake::Intake;
use crate::http::outgoing::Outgoing;
use crate::http::serve;
use crate::kit::identity::{Anonymous, Client, Gate, Refused};
use crate::kit::tenants::{self, Call, Seats};
use crate::kit::tls::{self, Certified, Speaks, Tls};
use crate::kit::watched::watch;
use crate::telemetry;
use alerts::Alerts;
use http::BodyShares;
use http::HttpDoor;
use node::NodeFacts;
use otlp::Exports;
use problem::Refusal;

pub use cluster::ClusterReporter;
pub use standby::{Owner, StandbyPort, Standing, stand_by};

/// Calls that one connection may have at once.
const CALLS_MAX: u32 = 256;

/// The limits and settings of the door.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Connections at a time. A further client is told that the server is busy.
    pub connections_max: usize,
    /// Connections at a time from one address. None: as many as there may be.
    pub connections_per_address: Option<usize>,
    /// Names that the server has beside its addresses and `localhost`. A request for another one is refused,
    /// since a web page could have made it by giving a name of its own this server's address.
    pub host_names: Vec<String>,
    /// The server's certificate. None: connections are not encrypted.
    pub tls: Option<Tls>,
    /// What a client without a token is.
    pub anonymous: Anonymous,
    /// Bytes of request bodies that are being read, over all connections; and as much again for gRPC.
    pub body_bytes_max: usize,
    /// Figures of the process for `/metrics`. The door opens no files itself.
    pub process: fn() -> ProcessFigures,
    /// Whether figures are recorded from the start on, for the dashboard's charts, and kept in the log. Otherwise
    /// recording begins with the first page that is opened, and nothing is kept.
    pub history: bool,
    /// How the cluster stands. None: the server has a log of its own.
    pub cluster: Option<ClusterReporter>,
    /// Operators that are told about groups.
    pub alerts: Option<Alerts>,
    /// Streams, and groups, that have series of their own in `/metrics`.
    pub metrics_series_max: usize,
    /// Metrics that a collector is sent.
    pub exports: Option<Exports>,
    /// For the dashboard.
    pub node: Arc<NodeFacts>,
    /// Where SQS is served, for its clients that come to this port by mistake.
    pub sqs: Option<SocketAddr>,
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
            connections_per_address: None,
            host_names: Vec::new(),
            tls: None,
            anonymous: Anonymous::Owner,
            body_bytes_max: 64 << 20,
            process: ProcessFigures::default,
            history: false,
            cluster: None,
            alerts: None,
            metrics_series_max: 2_000,
            exports: None,
            node: Arc::default(),
            sqs: None,
        }
    }
}

/// Serves the native API with the usual limits on this socket until `stop` resolves and the calls have ended.
pub async fn serve(
    broker: Entrance,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    serve_with(broker, listener, stop, NativeConfig::default()).await
}

/// As [`serve`], with other limits.
pub async fn serve_with(
    broker: Entrance,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    config: NativeConfig,
) -> std::io::Result<()> {
    // It ends with the broker, or with this door.
    let _feeding = AbortOnDrop(tokio::spawn(broker.clone().feed_sources()));
    let connections = accept::Limits::new(config.connections_max, config.connections_per_address);
    let stats = broker.doors().door("native");
    let (memory, clock) = (broker.memory().clone(), broker.clock());
    let http = HttpDoor::new(broker.clone(), &config);
    let services = Arc::new(Services {
        broker: broker.clone(),
        gate: http.gate(),
        stats: stats.clone(),
        grpc_stats: broker.doors().door("grpc"),
        http_stats: broker.doors().door("http"),
        tls: config.tls.clone(),
        clock,
        grpc: grpc::routes(broker, unknown_client()).prepare(),
        grpc_bodies: Pool::new(config.body_bytes_max),
        sqs: config.sqs,
        http,
    });
    let one = |stream, address, stopping, live| {
        let outgoing = Outgoing::new(memory.share(), clock);
        serve_one(services.clone(), (outgoing, live), stream, address, stopping)
    };
    accept::connections(listener, stop, connections, http::BUSY_REPLY, (&stats, clock), one).await;
    Ok(())
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A client that no door has recognised.
fn unknown_client() -> Principal {
    Principal::new("unknown", Grants::none())
}

/// The shares of one connection.
struct Shares {
    live: Arc<LiveConnection>,
    replies: Share,
    bodies: BodyShares,
    grpc: Share,
    /// Of the client.
    certified: Option<Certified>,
    seats: Seats,
}

struct Services {
    broker: Entrance,
    gate: Arc<Gate>,
    tls: Option<Tls>,
    clock: Clock,
    grpc: Routes,
    grpc_bodies: Arc<Pool>,
    sqs: Option<SocketAddr>,
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
            let who = match self.admit(from, of.certified.as_ref(), &request).await {
                Ok(who) => who,
                Err(refused) => {
                    of.live.request(None);
                    // The path is the word of a client that is not known, and is not counted by.
                    self.grpc_stats.count(telemetry::UNKNOWN, Some(refused.kind.slug()));
                    return grpc::status::refused(&refused).into_http();
                }
            };
            of.live.request(Some(&who).filter(|_| !is_public(request.uri().path())));
            let call = match self.begin(&who, of, &request) {
                Ok(call) => call,
                Err(over) => {
                    let answer = grpc::status::refused(&over).into_http();
                    telemetry::answered_grpc(&self.grpc_stats, from, request.uri().path(), &answer);
                    return answer;
                }
            };
            let meter = call.as_ref().map(Call::meter);
            let request =
                request.map(|body| Intake::new(body, of.grpc.clone(), grpc::status::busy).metered(meter));
            return tenants::hold(self.answer_grpc(from, who, request).await, call);
        }
        if http::is_for_sqs(request.headers()) {
            of.live.request(None);
            let answer = http::for_sqs(self.sqs);
            telemetry::answered_http(&self.http_stats, from, &answer);
            return answer;
        }
        request.extensions_mut().insert(of.bodies.clone());
        let who = match self.admit(from, of.certified.as_ref(), &request).await {
            Ok(who) => who,
            Err(refused) => {
                of.live.request(None);
                let answer = self.http.unauthenticated(&request, refused);
                telemetry::answered_http(&self.http_stats, from, &answer);
                return answer;
            }
        };
        of.live.request(Some(&who).filter(|_| !is_public(request.uri().path())));
        let call = match self.begin(&who, of, &request) {
            Ok(call) => call,
            Err(over) => {
                let has_body = !http_body::Body::is_end_stream(request.body());
                let answer = http::over_limit(over, has_body);
                telemetry::answered_http(&self.http_stats, from, &answer);
                return answer;
            }
        };
        if let Some(call) = &call {
            request.extensions_mut().insert(call.meter());
        }
        let answered = match who.may_end() {
            false => self.http.answer(from, who, request).await,
            true => tokio::select! {
                answered = self.http.answer(from, who.clone(), request) => {
                    watch(answered, &who, self.clock, || None)
                }
                () = who.ended(self.clock) => http::unauthenticated(ended()),
            },
        };
        telemetry::answered_http(&self.http_stats, from, &answered);
        tenants::hold(answered, call)
    }

    /// Begins a call of a client, which may be at its limits.
    fn begin<B>(&self, who: &Principal, of: &Shares, request: &Request<B>) -> Result<Option<Call>, Refusal> {
        if is_public(request.uri().path()) {
            return Ok(None);
        }
        tenants::admit(&self.broker, who, &of.seats).map_err(|over| Refusal::over_limit(&over))
    }

    /// The client that sent a request. Whether the server lives may be asked by any client.
    async fn admit<B>(
        &self,
        from: SocketAddr,
        certified: Option<&Certified>,
        request: &Request<B>,
    ) -> Result<Principal, Refusal> {
        if is_public(request.uri().path()) {
            return Ok(unknown_client());
        }
        #[cfg(feature = "dashboard")]
        if let Some(who) = self
            .gate
            .session(request.method(), request.headers())
            .map_err(|refused| unauthenticated(&refused))?
        {
            return Ok(who);
        }
        // A token counts before the certificate of the connection.
        if !request.headers().contains_key(header::AUTHORIZATION)
            && let (Some(tls), Some(certified)) = (&self.tls, certified)
            && let Some(who) = tls.client(certified)
        {
            return Ok(who);
        }
        self.gate.admit(from, request.headers()).await.map_err(|refused| unauthenticated(&refused))
    }

    async fn answer_grpc(
        &self,
        from: SocketAddr,
        who: Principal,
        mut request: Request<Intake<Incoming>>,
    ) -> Response<Body> {
        request.extensions_mut().insert(Client(who.clone()));
        let uri = request.uri().clone();
        let mut grpc = self.grpc.clone();
        let answer = tonic::codegen::Service::call(&mut grpc, request);
        let answered = match who.may_end() {
            false => answer.await,
            true => tokio::select! {
                answered = answer => answered,
                () = who.ended(self.clock) => Ok(grpc::status::refused(&ended()).into_http()),
            },
        };
        let mut answered = answered.unwrap_or_else(|never| match never {}).map(Body::new);
        grpc::status::mend(&mut answered);
        telemetry::answered_grpc(&self.grpc_stats, from, uri.path(), &answered);
        watch(answered, &who, self.clock, || {
            let mut trailers = HeaderMap::new();
            grpc::status::refused(&ended()).add_header(&mut trailers).ok()?;
            Some(trailers)
        })
    }
}

/// Calls that need no credential: whether the server lives, for the machinery that runs it, and what problems mean,
/// which a client that is refused may look up. And signing in.
fn is_public(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
        || path.starts_with("/problems/")
        || path.starts_with("/grpc.health.v1.Health/")
        || http::is_public(path)
}

fn unauthenticated(refused: &Refused) -> Refusal {
    if refused.is_busy() {
        return Refusal::new(Kind::Busy, refused.to_string());
    }
    Refusal::new(Kind::Unauthenticated, refused.to_string())
}

fn ended() -> Refusal {
    Refusal::new(Kind::Unauthenticated, "the token was revoked or has expired")
}

/// Serves one connection until its client leaves or, when the server stops, until its requests have ended.
async fn serve_one(
    services: Arc<Services>,
    (outgoing, live): (Arc<Outgoing>, Arc<LiveConnection>),
    stream: TcpStream,
    address: SocketAddr,
    stopping: Stopping,
) {
    let begun = tls::begin(services.tls.as_ref(), Speaks::Both, stream, address).await;
    let Some(mut wire) = begun else { return };
    let certified = wire.take_certified();
    let shares = Arc::new(Shares {
        live: live.clone(),
        replies: outgoing.share.clone(),
        bodies: services.http.body_shares(),
        grpc: services.grpc_bodies.share(),
        certified,
        seats: Seats::default(),
    });
    let stats = services.stats.clone();
    let answer = move |request| {
        let (services, shares) = (services.clone(), shares.clone());
        async move { services.answer(address, &shares, request).await }
    };
    serve::connection(wire, address, stopping, CALLS_MAX, &stats, (outgoing, live), http::refusal, answer)
        .await;
}
