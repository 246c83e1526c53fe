//! The SQS door: clients of Amazon SQS use Forebay as they use SQS, given nothing but its address.
//!
//! A queue is a stream with one group, `queue`, so every other door sees it too. The attributes and tags of a queue
//! are a note of the log. A receipt handle is the receipt of a lease, good after a restart.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `wire` | The protocol, without a queue behind it: requests, responses, errors, signatures, addresses. |
//! | `door` | From an HTTP request to its answer. |
//! | `keys` | Whose requests are believed. |
//! | `queue` | What a queue is, as a stream, a group and a note. |
//! | `registry` | Which queues there are. |
//! | `service` | What each action does. |
//! | `content` | Between the messages of SQS and those of the broker. |
//! | `attempts` | What receives with an attempt id were given. |
//! | `failure` | From the errors of the broker to those of SQS. |

mod attempts;
mod content;
mod door;
mod failure;
mod keys;
mod queue;
mod registry;
mod service;
pub mod wire;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use forebay_broker::api::{Entrance, LiveConnection, Pool, Principal};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

pub use keys::{AccessKey, KeyRing};
pub use wire::address::{UrlOptions, is_account};

use crate::http::accept::{self, Stopping};
use crate::http::connection::{Connection, Open, Protocol};
use crate::http::hosts::Hosts;
use crate::kit::attempts::Attempts;
use crate::kit::identity::Anonymous;
use crate::kit::tls::{self, Speaks, Tls};
use door::{Door, RequestIds};
use keys::AccessKeys;
use service::Service;

/// The head of a request, and what a connection keeps of what it has read.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The reply to a client that connects when there are too many connections.
const BUSY_REPLY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/xml\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 0\r\n\r\n";

/// The limits of the door, and the access keys that it trusts.
#[derive(Debug, Clone)]
pub struct SqsConfig {
    /// Connections at a time. A further client is told that the server is busy.
    pub connections_max: usize,
    /// Connections at a time from one address. None: as many as there may be.
    pub connections_per_address: Option<usize>,
    /// Bytes of request bodies that are being read, over all connections.
    pub body_bytes_max: usize,
    /// The access keys of the keys file. Those in the log are believed as well.
    pub keys: KeyRing,
    /// What a client without a known key is, if there is no keys file.
    pub anonymous: Anonymous,
    /// The server's certificate. None: connections are not encrypted.
    pub tls: Option<Tls>,
    pub urls: UrlOptions,
    /// Names that the server has beside its addresses and `localhost`. Used if there are no access keys and the
    /// door is open to this machine alone: a page of another site could have been given a name with this server's
    /// address.
    pub host_names: Vec<String>,
    /// Whether the name of a deleted queue, and a purge, have to wait for 60 seconds, as they do on AWS.
    pub waits: bool,
    /// Makes request ids, so it must not be guessable.
    pub seed: [u8; 32],
}

impl SqsConfig {
    /// The usual configuration, with a seed of the server's own.
    pub fn new(seed: [u8; 32]) -> SqsConfig {
        SqsConfig {
            connections_max: 20_000,
            connections_per_address: None,
            body_bytes_max: 64 << 20,
            keys: KeyRing::default(),
            anonymous: Anonymous::Owner,
            tls: None,
            urls: UrlOptions::default(),
            host_names: Vec::new(),
            waits: false,
            seed,
        }
    }
}

/// Serves SQS on this socket until `stop` resolves and the calls have ended.
pub async fn serve(
    broker: Entrance,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    config: SqsConfig,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    let caller = broker.enter(Principal::owner(), None);
    let service = Service::open(broker.clone(), caller, config.waits).await.map_err(std::io::Error::other)?;
    let keys = AccessKeys::new(config.keys, broker.clone(), config.anonymous);
    let hosts = match address.ip().is_loopback() {
        true => Hosts::new(&config.host_names).over_tls(config.tls.is_some()),
        // A server that listens for other machines is called by names that it does not know.
        false => Hosts::any().over_tls(config.tls.is_some()),
    };
    let hosts = Some(hosts).filter(|_| !keys.are_needed());
    let door = Arc::new(Door {
        stats: broker.doors().door("sqs"),
        attempts: Attempts::default(),
        tls: config.tls,
        broker,
        service: Arc::new(service),
        keys,
        urls: config.urls,
        address: address.to_string(),
        hosts,
        // One request must always find room.
        bodies: Pool::new(config.body_bytes_max.max(door::BODY_BYTES_MAX)),
        request_ids: RequestIds::new(config.seed),
    });
    let connections = accept::Limits::new(config.connections_max, config.connections_per_address);
    let (stats, clock) = (door.stats.clone(), door.broker.clock());
    let one = |stream, address, stopping, live| serve_one(door.clone(), live, stream, address, stopping);
    accept::connections(listener, stop, connections, BUSY_REPLY, (&stats, clock), one).await;
    Ok(())
}

/// Serves one connection until its client leaves or, when the server stops, until its requests have ended.
async fn serve_one(
    door: Arc<Door>,
    live: Arc<LiveConnection>,
    stream: TcpStream,
    address: SocketAddr,
    stopping: Stopping,
) {
    let Some(wire) = tls::begin(door.tls.as_ref(), Speaks::Http1, stream, address).await else { return };
    let (open, shares) = (Open::default(), Arc::new(door.shares(live.clone())));
    let io = TokioIo::new(Connection::new(wire, Protocol::Http1, open.clone(), |_| None::<Bytes>, live));
    let service = service_fn(|request| {
        let (door, open, shares) = (door.clone(), open.enter(), shares.clone());
        async move { Ok::<_, std::convert::Infallible>(open.hold(door.answer(address, &shares, request).await)) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .header_read_timeout(None)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    // How a connection ends is its client's business; a caller that waits for an answer on it sees that it
    // ended.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stopping.wait() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
