//! The Kurrent door: clients of KurrentDB and EventStoreDB use Forebay as they use those, given nothing but its
//! address, as `esdb://127.0.0.1:2113?tls=false`.
//!
//! A stream is a stream and a persistent subscription is a group, so every other door sees them too.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `ids` | Ids of events in both of their forms. |
//! | `places` | Revisions and positions, and what they are in a stream and in the log. |
//! | `event` | Between the events of Kurrent and the messages of the broker. |
//! | `status` | Refusals, with the codes, texts and trailers that clients go by. |
//! | `deadline` | The time that a call may take. |
//! | `features`, `gossip` | What clients ask before their first call. |
//! | `filter` | Which events of all streams are wanted. |
//! | `links` | Streams of links: of subscriptions to `$all`, of categories and of types. |
//! | `marks` | Streams that were deleted. |
//! | `streams` | Append, read, delete. |
//! | `persistent` | Persistent subscriptions. |
//! | `http` | Requests that are not gRPC. |

mod deadline;
mod event;
mod features;
mod filter;
mod gossip;
mod http;
mod ids;
mod links;
mod marks;
#[cfg(test)]
mod page;
mod persistent;
mod places;
mod status;
mod streams;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, Version, header};
use forebay_broker::api::{
    CallError, Caller, Clock, DoorStats, Entrance, Grants, LiveConnection, Pool, Principal, Share,
    StreamSettings,
};
use forebay_wire::kurrent::gossip::gossip_server::GossipServer;
use forebay_wire::kurrent::persistent_subscriptions::persistent_subscriptions_server::PersistentSubscriptionsServer;
use forebay_wire::kurrent::server_features::server_features_server::ServerFeaturesServer;
use forebay_wire::kurrent::streams::streams_server::StreamsServer;
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::Stream;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use crate::http::accept::{self, Stopping};
use crate::http::hosts::Hosts;
use crate::http::intake::Intake;
use crate::http::outgoing::Outgoing;
use crate::http::{serve, unharmed};
use crate::kit::identity::{Anonymous, Client, Gate};
use crate::kit::tenants::{self, Call, Seats};
use crate::kit::tls::{self, Speaks, Tls};
use crate::kit::watched::watch;
use crate::telemetry;
use features::Features;
use gossip::{CalledAs, Gossip};
use ids::EventId;
use marks::Marks;
use streams::recent::Recent;

/// Calls that one connection may have at once. Clients open one for each subscription, and some of them wait silently
/// for a place.
const CALLS_MAX: u32 = 2_000;
/// The bytes that a request may have beside the contents of a batch.
const REQUEST_OVERHEAD: usize = 8 << 20;

/// The reply to a client that connects when there are too many connections.
const BUSY_REPLY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 0\r\n\r\n";

/// The limits of the door.
#[derive(Debug, Clone)]
pub struct KurrentConfig {
    /// Connections at a time. A further client is told that the server is busy.
    pub connections_max: usize,
    /// Bytes of requests that are being read, over all connections.
    pub body_bytes_max: usize,
    /// Names that the server has beside its addresses and `localhost`. Used if the door is open to this machine alone:
    /// a page of another site could have been given a name with this server's address.
    pub host_names: Vec<String>,
    /// Connections at a time from one address. None: as many as there may be.
    pub connections_per_address: Option<usize>,
    /// The server's certificate. None: connections are not encrypted.
    pub tls: Option<Tls>,
    /// What a client without a credential is.
    pub anonymous: Anonymous,
    /// Names this run of the server.
    pub instance: [u8; 16],
}

impl KurrentConfig {
    /// The usual configuration, of a run with this name.
    pub fn new(instance: [u8; 16]) -> KurrentConfig {
        KurrentConfig {
            connections_max: 20_000,
            body_bytes_max: 64 << 20,
            host_names: Vec::new(),
            connections_per_address: None,
            tls: None,
            anonymous: Anonymous::Owner,
            instance,
        }
    }
}

/// Serves Kurrent clients on this socket until `stop` resolves and the calls have ended.
pub async fn serve(
    broker: Entrance,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    config: KurrentConfig,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    let hosts = match address.ip().is_loopback() {
        true => Hosts::new(&config.host_names),
        // A server that listens for other machines is called by names that it does not know.
        false => Hosts::any(),
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let door = KurrentDoor::open(&broker, hosts, scheme, config.instance).await;
    let door = door.map_err(std::io::Error::other)?;
    let (memory, clock, stats) = (broker.memory().clone(), broker.clock(), door.stats.clone());
    let gate = Gate::new(broker, config.anonymous, stats.clone());
    let gossip = Gossip {
        instance: EventId(config.instance),
        clock,
        host: address.ip().to_string(),
        port: address.port(),
    };
    let services = Arc::new(Services {
        grpc: routes(&door, gossip).prepare(),
        bodies: Pool::new(config.body_bytes_max),
        gate,
        tls: config.tls,
        clock,
        door,
    });
    let connections = accept::Limits::new(config.connections_max, config.connections_per_address);
    let one = |stream, address, stopping, live| {
        let outgoing = Outgoing::new(memory.share(), clock);
        serve_one(services.clone(), (outgoing, live), stream, address, stopping)
    };
    accept::connections(listener, stop, connections, BUSY_REPLY, (&stats, clock), one).await;
    Ok(())
}

fn routes(door: &KurrentDoor, gossip: Gossip) -> Routes {
    let request_bytes_max = door.broker.limits().batch_bytes_max as usize + REQUEST_OVERHEAD;
    Routes::new(StreamsServer::new(door.clone()).max_decoding_message_size(request_bytes_max))
        .add_service(PersistentSubscriptionsServer::new(door.clone()))
        .add_service(ServerFeaturesServer::new(Features))
        .add_service(GossipServer::new(gossip))
}

/// The name of a route of subscriptions, by method and path, and how many names there are.
#[cfg(test)]
pub(crate) fn http_routes() -> (impl Fn(&axum::http::Method, &str) -> Option<&'static str>, usize) {
    (persistent::http_test::route_name, persistent::http_test::ROUTES)
}

/// Answers of a call, one after the other.
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The services of the door. Cheap to clone.
#[derive(Clone)]
struct KurrentDoor(Arc<Shared>);

struct Shared {
    broker: Entrance,
    /// For looks at streams that answer a write. A client is told no more of them than whether it may write, and where
    /// the stream ends.
    own: Caller,
    hosts: Hosts,
    /// How the port is reached.
    scheme: &'static str,
    stats: Arc<DoorStats>,
    marks: Marks,
    recent: Arc<Recent>,
    /// The settings of streams that come about with their first event.
    new_stream: Arc<StreamSettings>,
    /// This run of the server.
    instance: EventId,
    /// Subscriptions so far.
    subscriptions: AtomicU64,
    persistent: Arc<persistent::Subscriptions>,
}

impl std::ops::Deref for KurrentDoor {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl KurrentDoor {
    /// The door of a broker, with the state that is in the log.
    async fn open(
        broker: &Entrance,
        hosts: Hosts,
        scheme: &'static str,
        instance: [u8; 16],
    ) -> Result<KurrentDoor, CallError> {
        let caller = broker.enter(Principal::owner(), None);
        Ok(KurrentDoor(Arc::new(Shared {
            broker: broker.clone(),
            own: caller.clone(),
            hosts,
            scheme,
            stats: broker.doors().door("kurrent"),
            marks: Marks::load(&caller).await?,
            recent: Arc::default(),
            new_stream: Arc::new(streams::write::new_stream()),
            instance: EventId(instance),
            subscriptions: AtomicU64::new(1),
            persistent: Arc::new(persistent::Subscriptions::open(&caller).await?),
        })))
    }

    /// The client that sent a request, which the gate has let in.
    fn caller<T>(&self, request: &tonic::Request<T>) -> Caller {
        let who = request.extensions().get::<Client>().map(|Client(who)| who.clone());
        let unknown = || Principal::new("unknown", Grants::none());
        self.broker.enter(who.unwrap_or_else(unknown), request.remote_addr())
    }

    /// The room that answers of the request's connection have.
    fn share<T>(&self, request: &tonic::Request<T>) -> Share {
        request.extensions().get::<Share>().cloned().unwrap_or_else(|| self.broker.memory().share())
    }
}

struct Services {
    grpc: Routes,
    bodies: Arc<Pool>,
    gate: Gate,
    tls: Option<Tls>,
    clock: Clock,
    door: KurrentDoor,
}

impl Services {
    async fn answer(
        &self,
        from: SocketAddr,
        (replies, bodies): (&Share, &Share),
        (live, seats): (&LiveConnection, &Seats),
        mut request: Request<Incoming>,
    ) -> Response<Body> {
        let stats = &self.door.stats;
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"));
        // gRPC is spoken over HTTP/2 only, which no browser does without TLS. A page of another site could otherwise
        // have a request taken for gRPC, and so past the checks of a request's origin.
        if !is_grpc || request.version() != Version::HTTP_2 {
            let admitted = self.gate.admit_any(from, request.headers()).await;
            live.request(admitted.as_ref().ok());
            let (name, answered) = match admitted {
                Ok(who) => match tenants::admit(&self.door.broker, &who, seats) {
                    Ok(call) => {
                        if let Some(call) = &call {
                            request.extensions_mut().insert(call.meter());
                        }
                        let (name, answered) = http::answer(&self.door, from, who, bodies, request).await;
                        (name, tenants::hold(answered, call))
                    }
                    Err(over) => (telemetry::UNKNOWN, http::over_limit(&over)),
                },
                Err(refused) => (telemetry::UNKNOWN, http::unauthenticated(&refused)),
            };
            let problem = answered.status().is_client_error() || answered.status().is_server_error();
            stats.count(
                name,
                problem.then(|| answered.status().canonical_reason().unwrap_or(telemetry::UNKNOWN)),
            );
            return answered;
        }
        let admitted = self.gate.admit_any(from, request.headers()).await;
        live.request(admitted.as_ref().ok());
        let who = match admitted {
            Ok(who) => who,
            Err(refused) if refused.is_busy() => {
                stats.count(telemetry::UNKNOWN, Some("busy"));
                return status::busy().into_http();
            }
            Err(refused) => {
                // The path is the word of a client that is not known, and is not counted by.
                stats.count(telemetry::UNKNOWN, Some("unauthenticated"));
                return Status::unauthenticated(refused.to_string()).into_http();
            }
        };
        let begun = match tenants::admit(&self.door.broker, &who, seats) {
            Ok(begun) => begun,
            Err(_) => {
                let answer = status::busy().into_http();
                telemetry::answered_grpc(stats, from, request.uri().path(), &answer);
                return answer;
            }
        };
        let meter = begun.as_ref().map(Call::meter);
        request.extensions_mut().insert(Client(who.clone()));
        request.extensions_mut().insert(replies.clone());
        request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr: Some(from) });
        if let Some(authority) = request.uri().authority().cloned() {
            request.extensions_mut().insert(CalledAs(authority));
        }
        let limit = deadline::of(request.headers());
        let request = request.map(|body| Intake::new(body, bodies.clone(), status::busy).metered(meter));
        let path = request.uri().path().to_owned();
        let mut routes = self.grpc.clone();
        let (clock, client) = (self.clock, who.clone());
        let call = async move {
            let answer = tonic::codegen::Service::call(&mut routes, request);
            let answered = tokio::select! {
                answered = answer => answered,
                () = client.ended(clock), if client.may_end() => Ok(ended().into_http()),
            };
            answered.unwrap_or_else(|never| match never {}).map(Body::new)
        };
        let answered = unharmed(stats, &path, deadline::within(limit, call)).await;
        let answered =
            answered.unwrap_or_else(|| Status::unknown("the call failed in the server").into_http());
        telemetry::answered_grpc(stats, from, &path, &answered);
        let answered = watch(answered, &who, self.clock, || {
            let mut trailers = HeaderMap::new();
            ended().add_header(&mut trailers).ok()?;
            Some(trailers)
        });
        tenants::hold(answered, begun)
    }
}

/// The end of a call whose token was revoked.
fn ended() -> Status {
    Status::unauthenticated("the token was revoked or has expired")
}

/// Serves one connection until its client leaves or, when the server stops, until its requests have ended.
async fn serve_one(
    services: Arc<Services>,
    (outgoing, live): (Arc<Outgoing>, Arc<LiveConnection>),
    stream: TcpStream,
    address: SocketAddr,
    stopping: Stopping,
) {
    let Some(wire) = tls::begin(services.tls.as_ref(), Speaks::Both, stream, address).await else { return };
    let stats = services.door.stats.clone();
    let (replies, bodies, seen) = (outgoing.share.clone(), services.bodies.share(), live.clone());
    let seats = Arc::new(Seats::default());
    let answer = move |request| {
        let (services, replies, bodies) = (services.clone(), replies.clone(), bodies.clone());
        let (seen, seats) = (seen.clone(), seats.clone());
        async move { services.answer(address, (&replies, &bodies), (&seen, &seats), request).await }
    };
    serve::connection(wire, address, stopping, CALLS_MAX, &stats, (outgoing, live), |_| None, answer).await;
}
