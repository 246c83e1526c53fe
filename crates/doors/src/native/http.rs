//! The HTTP API: JSON in, JSON out, and every error a problem.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `api` | Every call, once: its path, its handler, its call of gRPC, and what the OpenAPI document says of it. |
//! | `document` | The parts of the OpenAPI document: parameters, limits, examples, problems. |
//! | `request` | What the handlers read out of requests: names, parameters, bodies. |
//! | `failure` | A refusal as an answer. |
//! | `report`, `message` | Between the types of the wire and those of the broker. |
//! | `streams`, `groups`, `consume`, `transact`, `parked`, `credentials`, `connections`, `live` | The handlers. |
//! | `sse`, `events` | Server-sent events: following a stream, and what changes in the server. |
//! | `metrics` | Figures for Prometheus. |
//! | `dashboard` | Pages for people. |

pub(super) mod api;
mod connections;
mod consume;
mod credentials;
#[cfg(feature = "dashboard")]
mod dashboard;
mod document;
mod events;
mod failure;
mod groups;
mod guard;
mod live;
mod log;
mod message;
pub(super) mod metrics;
mod parked;
mod report;
mod request;
mod sse;
mod streams;
mod transact;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
#[cfg(feature = "dashboard")]
use axum::http::HeaderMap;
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use forebay_broker::api::{DoorStats, Entrance, Pool, Principal, Share};
use forebay_wire::json;

#[cfg(feature = "dashboard")]
use super::alerts::Alerts;
#[cfg(feature = "dashboard")]
use super::node::NodeFacts;
use super::otlp::Exports;
use super::problem::Refusal;
use super::service::Service;
use super::{Client, ClusterReporter, NativeConfig, ProcessFigures, unknown_client};
pub(super) use failure::{for_sqs, is_for_sqs, over_limit, refusal, unauthenticated};

use crate::http::hosts::Hosts;
use crate::kit::identity::Gate;
use events::Events;

/// The reply to a client that connects when there are too many connections.
pub(super) const BUSY_REPLY: &[u8] = concat!(
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n",
    "connection: close\r\ncontent-length: 140\r\n\r\n",
    r#"{"type":"/problems/busy","title":"Server busy","status":503,"#,
    r#""detail":"the limit of connections is reached","retry":"later","retry_after":1}"#,
    "\n",
)
.as_bytes();

/// Bytes of bodies without messages that may be read at a time.
const SMALL_BODIES_BYTES: usize = 16 << 20;

/// The state that the handlers share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Door(Arc<Shared>);

struct Shared {
    broker: Entrance,
    gate: Arc<Gate>,
    #[cfg(feature = "dashboard")]
    is_tls: bool,
    hosts: Hosts,
    any_host: Hosts,
    /// Bytes of bodies that may be read now: of messages, and of everything else. A client that settles must
    /// not wait for clients that publish.
    bodies: Arc<Pool>,
    small_bodies: Arc<Pool>,
    events: Events,
    openapi: Bytes,
    process: fn() -> ProcessFigures,
    cluster: Option<ClusterReporter>,
    exports: Option<Exports>,
    metrics_series_max: usize,
    chosen: metrics::chosen::Chosen,
    #[cfg(feature = "dashboard")]
    alerts: Option<Alerts>,
    #[cfg(feature = "dashboard")]
    node: Arc<NodeFacts>,
    #[cfg(feature = "dashboard")]
    dashboard: dashboard::Dashboard,
}

impl Door {
    fn enter(&self, who: Principal, from: Option<SocketAddr>, share: Option<Share>) -> Service {
        let share = share.unwrap_or_else(|| self.0.broker.memory().share());
        Service::new(self.0.broker.enter(who, from), share)
    }

    /// How the cluster stands; empty for a server with a log of its own.
    async fn cluster_report(&self, epoch: u32) -> json::ClusterReport {
        match &self.0.cluster {
            Some(cluster) => cluster.report().await,
            None => json::ClusterReport { term: epoch, ..json::ClusterReport::default() },
        }
    }

    #[cfg(feature = "dashboard")]
    fn is_in_cluster(&self) -> bool {
        self.0.cluster.is_some()
    }

    /// The server itself, for work that is done once for several clients.
    pub(super) fn own(&self) -> Service {
        self.enter(Principal::owner(), None, None)
    }

    fn body_shares(&self) -> BodyShares {
        BodyShares { messages: self.0.bodies.share(), small: self.0.small_bodies.share() }
    }

    pub(super) fn broker(&self) -> &Entrance {
        &self.0.broker
    }

    #[cfg(feature = "dashboard")]
    fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Whether a request came over TLS, to this server or to a proxy in front of it.
    #[cfg(feature = "dashboard")]
    fn is_tls(&self, headers: &HeaderMap) -> bool {
        self.0.is_tls || headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https")
    }

    #[cfg(feature = "dashboard")]
    fn node(&self) -> &NodeFacts {
        &self.0.node
    }

    #[cfg(feature = "dashboard")]
    fn alerts(&self) -> Option<&Alerts> {
        self.0.alerts.as_ref()
    }

    #[cfg(feature = "dashboard")]
    fn dashboard(&self) -> &dashboard::Dashboard {
        &self.0.dashboard
    }
}

/// The bodies of one connection.
#[derive(Debug, Clone)]
pub(super) struct BodyShares {
    messages: Share,
    small: Share,
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

/// Whether a path needs no credential.
#[cfg(feature = "dashboard")]
pub(super) fn is_public(path: &str) -> bool {
    dashboard::is_public(path)
}

#[cfg(not(feature = "dashboard"))]
pub(super) fn is_public(_path: &str) -> bool {
    false
}

pub(super) struct HttpDoor {
    door: Door,
    router: Router,
    stats: Arc<DoorStats>,
}

impl HttpDoor {
    pub(super) fn new(broker: Entrance, config: &NativeConfig) -> HttpDoor {
        let of_native = broker.doors().door("native");
        let gate = Arc::new(Gate::new(broker.clone(), config.anonymous, of_native));
        let api = api::calls();
        let stats = broker.doors().door("http");
        let door = Door(Arc::new(Shared {
            broker,
            gate,
            #[cfg(feature = "dashboard")]
            is_tls: config.tls.is_some(),
            hosts: Hosts::new(&config.host_names).over_tls(config.tls.is_some()),
            any_host: Hosts::any().over_tls(config.tls.is_some()),
            bodies: Pool::new(config.body_bytes_max),
            small_bodies: Pool::new(SMALL_BODIES_BYTES),
            events: Events::default(),
            openapi: api.document(),
            process: config.process,
            cluster: config.cluster.clone(),
            exports: config.exports.clone(),
            metrics_series_max: config.metrics_series_max,
            chosen: metrics::chosen::Chosen::default(),
            #[cfg(feature = "dashboard")]
            alerts: config.alerts.clone(),
            #[cfg(feature = "dashboard")]
            node: config.node.clone(),
            #[cfg(feature = "dashboard")]
            dashboard: dashboard::Dashboard::new(config.history),
        }));
        #[cfg(feature = "dashboard")]
        if config.history {
            dashboard::Dashboard::start(&door);
        }
        if let Some(alerts) = config.alerts.clone() {
            tokio::spawn(alerts.run(door.broker().clone()));
        }
        if let Some(exports) = config.exports.clone() {
            tokio::spawn(exports.run(door.clone()));
        }
        HttpDoor { router: api.into_router(door.clone()), door, stats }
    }

    /// Recognises clients.
    pub(super) fn gate(&self) -> Arc<Gate> {
        self.door.0.gate.clone()
    }

    /// The answer to a client that is not known: a problem, and to a person in a browser the page to sign in.
    pub(super) fn unauthenticated<B>(&self, request: &Request<B>, refused: Refusal) -> Response<Body> {
        #[cfg(feature = "dashboard")]
        if dashboard::is_for_people(request) {
            return dashboard::asks_for_token(&self.door, request.uri().path());
        }
        let _ = request;
        unauthenticated(refused)
    }

    /// For the requests of one connection.
    pub(super) fn body_shares(&self) -> BodyShares {
        self.door.body_shares()
    }

    /// Never fails: what goes wrong is an answer too.
    pub(super) async fn answer<B>(
        &self,
        from: SocketAddr,
        who: Principal,
        mut request: Request<B>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        // Browsers send no token by themselves, so a request with one was not made by a page that gave a name of its
        // own this server's address.
        // They send a cookie by themselves, to the name that it was set for only.
        let is_free = who.may_end() || is_public(request.uri().path());
        let hosts = if is_free { &self.door.0.any_host } else { &self.door.0.hosts };
        if let Err(refused) = guard::admit(hosts, &request) {
            return refused.into_response();
        }
        request.extensions_mut().insert(Peer(from));
        request.extensions_mut().insert(Client(who));
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let name = std::fmt::from_fn(move |f| write!(f, "{method} {}", uri.path()));
        let call = tonic::codegen::Service::call(&mut self.router.clone(), request);
        guard::unharmed(&self.stats, name, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_of_a_busy_server_is_a_problem_of_the_length_it_says() {
        let text = std::str::from_utf8(BUSY_REPLY).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let problem: forebay_wire::problem::Problem = serde_json::from_str(body).expect("a problem");
        assert_eq!(problem.kind(), Some(forebay_wire::problem::Kind::Busy));
        assert_eq!(problem.title, forebay_wire::problem::Kind::Busy.title());
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
