//! From an HTTP request to its answer: who asks, in which protocol, for what.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request as HttpRequest, Response as HttpResponse, header};
use bytes::Bytes;
use forebay_broker::api::{DoorStats, Entrance, Hold, LiveConnection, Pool, Principal, Share};
use hyper::body::Incoming;

use super::keys::AccessKeys;
use super::service::{Asker, Service};
use super::wire::address::{Locality, UrlBase, UrlOptions};
use super::wire::error::{ErrorKind, SqsError};
use super::wire::protocol::{Call, Format, Head, Protocol};
use super::wire::request::Request;
use super::wire::response::uuid;
use super::wire::signature;
use crate::http::body::{self, BodyError};
use crate::http::hosts::{Hosts, Stranger, check_host};
use crate::http::outgoing;
use crate::http::unharmed;
use crate::kit::attempts::Attempts;
use crate::kit::tls::Tls;
use crate::telemetry;

/// The largest request: a message of 1 MiB, with what base64 and escapes make of it.
pub(super) const BODY_BYTES_MAX: usize = 8 << 20;

pub(super) struct Door {
    pub(super) broker: Entrance,
    pub(super) service: Arc<Service>,
    pub(super) keys: AccessKeys,
    pub(super) attempts: Attempts,
    pub(super) tls: Option<Tls>,
    pub(super) urls: UrlOptions,
    /// The door's own address, for clients that do not say how they call it.
    pub(super) address: String,
    /// The names that the server answers to, if it has no access keys, since a page of another site could send
    /// requests as well.
    pub(super) hosts: Option<Hosts>,
    pub(super) bodies: Arc<Pool>,
    pub(super) request_ids: RequestIds,
    pub(super) stats: Arc<DoorStats>,
}

/// The shares of one connection.
pub(super) struct Shares {
    live: Arc<LiveConnection>,
    replies: Share,
    bodies: Share,
}

impl Door {
    pub(super) fn shares(&self, live: Arc<LiveConnection>) -> Shares {
        Shares { live, replies: self.broker.memory().share(), bodies: self.bodies.share() }
    }

    /// Never fails: what goes wrong is an answer too.
    pub(super) async fn answer(
        &self,
        from: SocketAddr,
        shares: &Shares,
        request: HttpRequest<Incoming>,
    ) -> HttpResponse<Body> {
        let request_id = self.request_ids.next();
        let (parts, body) = request.into_parts();
        // Nothing is read for a client that the server would not believe anyway.
        let recognized = match self.admit(&parts) {
            Ok(()) => self.recognize(from, &parts).await,
            Err(refused) => Err(refused),
        };
        let read = match recognized {
            Ok(()) => body::read(body, &shares.bodies, BODY_BYTES_MAX).await.map_err(unread),
            Err(refused) => Err(refused),
        };
        let answered = match read {
            Ok((body, room)) => {
                let protocol = protocol_of(&parts.headers);
                let (target, uri) = (parts.headers.get("x-amz-target").cloned(), parts.uri.clone());
                let name = std::fmt::from_fn(move |f| write!(f, "{target:?} {}", uri.path()));
                let call = self.answer_to(from, shares, parts, (body, room), &request_id);
                let answered = unharmed(&self.stats, name, call).await;
                answered.unwrap_or_else(|| broken().render(protocol, &request_id))
            }
            Err(refused) => {
                let mut answer = refused.render(protocol_of(&parts.headers), &request_id);
                // The unread rest of the request stands between this answer and the next request.
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                answer
            }
        };
        answered.map(Body::from)
    }

    async fn answer_to(
        &self,
        from: SocketAddr,
        shares: &Shares,
        parts: Parts,
        (body, room): (Bytes, Hold),
        request_id: &str,
    ) -> HttpResponse<Bytes> {
        let head = head_of(&parts);
        let call = match Call::of(&head, &body) {
            Ok(call) => call,
            Err(none) => return none.render(request_id),
        };
        let protocol = call.protocol();
        let authenticated = self.authenticate(from, &shares.replies, &head, &body);
        shares.live.request(authenticated.as_ref().ok().map(|asker| asker.caller.principal()));
        let understood = match authenticated {
            Ok(asker) => Request::parse(&head, call).map(|request| (asker, request)),
            Err(error) => {
                self.slow_down(from).await;
                Err(error)
            }
        };
        let (asker, request) = match understood {
            Ok(understood) => understood,
            Err(error) => {
                self.stats.count(telemetry::UNKNOWN, Some(error.code()));
                return error.render(protocol, request_id);
            }
        };
        let (action, held) = (request.action(), asker.room.clone());
        // A receive may wait for long, so it keeps no memory that it does not need.
        drop((parts, body));
        // Messages being sent count against the budget until they are stored. A waiting receive holds nothing
        // of it.
        let room =
            Some(room).filter(|_| matches!(request, Request::SendMessage(_) | Request::SendMessageBatch(_)));
        let (who, clock) = (asker.caller.principal().clone(), self.broker.clock());
        let answered = if request.action().changes_queues() {
            // Once begun, a request is carried out to its end, also if the client has gone: the queues in the log and
            // the queues in the door's memory must not differ.
            let service = self.service.clone();
            let change = tokio::spawn(async move { service.answer(&asker, request).await });
            change.await.unwrap_or_else(|_| Err(broken()))
        } else if who.may_end() {
            tokio::select! {
                answered = self.service.answer(&asker, request) => answered,
                () = who.ended(clock) => Err(signature::unknown_key()),
            }
        } else {
            self.service.answer(&asker, request).await
        };
        drop(room);
        telemetry::answered_sqs(&self.stats, from, action.name(), answered.as_ref().err());
        let answer = match answered {
            Ok(response) => response.render(protocol, request_id),
            Err(error) => error.render(protocol, request_id),
        };
        let held = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        match held {
            Some(hold) => answer.map(|body| outgoing::held(body.into(), hold)),
            None => answer,
        }
    }

    /// Refuses what the head alone shows to be wrong with the credentials of a request.
    async fn recognize(&self, from: SocketAddr, parts: &Parts) -> Result<(), SqsError> {
        let (now, head) = (self.broker.clock().date(), head_of(parts));
        let named = signature::access_key(&head);
        let recognized = self.keys.trust(named.as_deref(), |trust| signature::recognize(now, trust, &head));
        if let Err(error) = &recognized {
            self.stats.count(telemetry::UNKNOWN, Some(error.code()));
            self.slow_down(from).await;
        }
        recognized
    }

    /// The answer to a wrong signature waits, the longer the more of them come from an address.
    async fn slow_down(&self, from: SocketAddr) {
        self.stats.unauthenticated.fetch_add(1, Ordering::Relaxed);
        self.attempts.failed(self.broker.clock(), self.stats.name, from.ip()).await;
    }

    fn admit(&self, parts: &Parts) -> Result<(), SqsError> {
        let has_host = check_host(parts.version, &parts.headers);
        let admitted = has_host.and_then(|()| match &self.hosts {
            Some(hosts) => hosts.admit(&parts.uri, &parts.headers),
            None => Ok(()),
        });
        admitted.map_err(|stranger| {
            let kind = match stranger {
                Stranger::Hosts(_) => ErrorKind::Malformed,
                Stranger::Host(_) | Stranger::Origin(_) => ErrorKind::AccessDenied,
            };
            SqsError::new(kind, stranger.to_string())
        })
    }

    fn authenticate(
        &self,
        from: SocketAddr,
        share: &Share,
        head: &Head<'_>,
        body: &[u8],
    ) -> Result<Asker, SqsError> {
        let now = self.broker.clock().date();
        let named = signature::access_key(head);
        let scope =
            self.keys.trust(named.as_deref(), |trust| signature::authenticate(now, trust, head, body))?;
        let known = scope.as_ref().and_then(|scope| self.keys.find(&scope.access_key));
        if let (Some(scope), Some(_)) = (&scope, &known) {
            self.broker.credentials().used(&scope.access_key);
        }
        // A key that was revoked between the two questions is not the owner's.
        if known.is_none() && self.keys.are_needed() {
            return Err(signature::unknown_key());
        }
        let owner = known.as_ref().map(|known| &*known.account);
        let who = known.as_ref().map_or_else(Principal::owner, |known| known.principal.clone());
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        Ok(Asker {
            caller: self.broker.enter(who, Some(from)),
            locality: Locality::of(scope.as_ref(), host, owner),
            urls: UrlBase::of(head.headers, &self.urls, &self.address),
            is_known: known.is_some(),
            share: share.clone(),
            room: Arc::default(),
        })
    }
}

fn head_of(parts: &Parts) -> Head<'_> {
    Head {
        method: &parts.method,
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        headers: &parts.headers,
    }
}

/// The protocol of a request of which only the head is known.
fn protocol_of(headers: &HeaderMap) -> Protocol {
    if headers.contains_key("x-amz-target") { Protocol::Json } else { Protocol::Query(Format::Xml) }
}

fn unread(error: BodyError) -> SqsError {
    let kind = match error {
        BodyError::Busy => ErrorKind::ServiceUnavailable,
        BodyError::TooLarge { .. } | BodyError::TooSlow | BodyError::Broken => ErrorKind::Malformed,
    };
    SqsError::new(kind, error.to_string())
}

fn broken() -> SqsError {
    SqsError::new(ErrorKind::InternalFailure, "The server made a mistake with this request.")
}

/// Makes request ids that cannot be guessed.
pub(super) struct RequestIds {
    seed: [u8; 32],
    given: AtomicU64,
}

impl RequestIds {
    pub(super) fn new(seed: [u8; 32]) -> RequestIds {
        RequestIds { seed, given: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        let n = self.given.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::keyed_hash(&self.seed, &n.to_le_bytes());
        uuid(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes"))
    }
}
