//! Replies on their way to a client: what they take of the memory that all clients share, and whether the client takes
//! them.
//!
//! A reply keeps its room until its last byte has left, since the room goes where the bytes go: see [`held`]. Over
//! HTTP/2 a client may keep its connection alive, answer every PING, and never open the window of a stream. So replies
//! leave there in pieces, and a connection on which a piece lies for too long is given up.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use forebay_broker::api::{Clock, Hold, Share};
use forebay_core::types::Timestamp;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

/// The pieces of a reply. A client that takes one of them in time makes progress.
const PIECE: usize = 64 << 10;
/// A piece of a gRPC reply up to this size is as good as free. Replies to publishers and settlements mostly are.
const TINY: usize = 4 << 10;
/// How long a piece may lie.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Bytes that hold room for as long as any part of them is there.
pub(crate) fn held(bytes: Vec<u8>, mut hold: Hold) -> Bytes {
    hold.set(bytes.capacity());
    Bytes::from_owner(WithHold { bytes, _hold: hold })
}

/// Says of a response that all bytes of its body hold their room themselves. An extension of the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted;

struct WithHold {
    bytes: Vec<u8>,
    _hold: Hold,
}

impl AsRef<[u8]> for WithHold {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The replies of one connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) share: Share,
    /// When each of the pieces that the client has not taken was handed on.
    lying: Mutex<BTreeMap<u64, Timestamp>>,
    next: AtomicU64,
    begun: Notify,
    stall_max: Duration,
    clock: Clock,
}

impl Outgoing {
    pub(crate) fn new(share: Share, clock: Clock) -> Arc<Outgoing> {
        Outgoing::within(share, clock, STALL_MAX)
    }

    fn within(share: Share, clock: Clock, stall_max: Duration) -> Arc<Outgoing> {
        let (lying, next, begun) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        Arc::new(Outgoing { share, lying, next, begun, stall_max, clock })
    }

    fn lying(&self) -> MutexGuard<'_, BTreeMap<u64, Timestamp>> {
        self.lying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when a piece has been lying for too long.
    pub(crate) async fn stalled(&self) {
        loop {
            let oldest = self.lying().first_key_value().map(|(_, at)| *at);
            match oldest.map(|at| self.stall_max.saturating_sub(self.clock.now().since(at))) {
                Some(Duration::ZERO) => return,
                Some(left) => tokio::time::sleep(left).await,
                None => self.begun.notified().await,
            }
        }
    }

    /// The reply, in pieces that are watched.
    pub(crate) fn send(self: &Arc<Outgoing>, mut response: Response<Body>) -> Response<InPieces> {
        let hold = response.extensions_mut().remove::<Arc<Hold>>();
        let is_counted = response.extensions_mut().remove::<Counted>().is_some();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"));
        let (outgoing, free) = (self.clone(), if is_grpc { TINY } else { 0 });
        response.map(|body| InPieces { body, outgoing, rest: Bytes::new(), hold, is_counted, free })
    }

    fn piece(self: &Arc<Outgoing>, bytes: Bytes, hold: Option<Arc<Hold>>) -> Bytes {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let is_first = {
            let mut lying = self.lying();
            lying.insert(n, self.clock.now());
            lying.len() == 1
        };
        if is_first {
            self.begun.notify_one();
        }
        Bytes::from_owner(Piece { bytes, _hold: hold, outgoing: self.clone(), n })
    }
}

struct Piece {
    bytes: Bytes,
    _hold: Option<Arc<Hold>>,
    outgoing: Arc<Outgoing>,
    n: u64,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.outgoing.lying().remove(&self.n);
    }
}

pub(crate) struct InPieces {
    body: Body,
    outgoing: Arc<Outgoing>,
    /// The part of the last piece of the body that has not been handed on.
    rest: Bytes,
    hold: Option<Arc<Hold>>,
    /// The bytes hold their room themselves.
    is_counted: bool,
    /// A piece of the body up to this size is not watched.
    free: usize,
}

impl http_body::Body for InPieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.len() <= this.free => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(data) => {
                        // A call that streams encodes a reply when it is asked for it, which is now.
                        if !this.is_counted && this.hold.is_none() {
                            this.hold = Some(Arc::new(this.outgoing.share.count(data.len())));
                        }
                        this.rest = data;
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        let hold = this.hold.clone();
        if this.rest.is_empty() {
            this.hold = None;
        }
        Poll::Ready(Some(Ok(Frame::data(this.outgoing.piece(piece, hold)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => {
                hint.set_lower(hint.lower() + rest);
                hint
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_broker::api::Memory;
    use http_body_util::BodyExt as _;

    fn reply(outgoing: &Arc<Outgoing>, bytes: usize) -> InPieces {
        let hold = outgoing.share.count(0);
        let mut response = Response::new(Body::from(held(vec![7; bytes], hold)));
        response.extensions_mut().insert(Counted);
        outgoing.send(response).into_body()
    }

    #[tokio::test]
    async fn a_reply_leaves_in_pieces_and_keeps_its_room_until_the_last_has_left() {
        let memory = Memory::new(8 << 20);
        let outgoing = Outgoing::new(memory.share(), Clock::start());
        let mut body = reply(&outgoing, 200_000);
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(200_000));
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.expect("a piece").into_data().expect("data"));
        }
        drop(body);
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), 200_000);
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
        assert!(memory.figures().replies >= 200_000);
        assert_eq!(outgoing.lying().len(), 4);
        pieces.truncate(1);
        assert!(memory.figures().replies >= 200_000, "one piece keeps all of it in memory");
        drop(pieces);
        assert_eq!((memory.figures().replies, outgoing.lying().len()), (0, 0));
    }

    #[tokio::test]
    async fn a_connection_stalls_if_one_reply_is_not_taken_whatever_becomes_of_others() {
        let stall_max = Duration::from_millis(200);
        let clock = Clock::start();
        let outgoing = Outgoing::within(Memory::new(8 << 20).share(), clock, stall_max);
        let started = clock.now();
        let mut first = reply(&outgoing, 10_000);
        let lies = first.frame().await;
        let others = async {
            loop {
                let mut other = reply(&outgoing, 10_000);
                drop(other.frame().await);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = others => {}
            () = outgoing.stalled() => {}
        }
        assert!(clock.now().since(started) >= stall_max);
        drop(lies);
        let others = tokio::time::timeout(2 * stall_max, outgoing.stalled()).await;
        assert!(others.is_err(), "nothing lies there any more");
    }
}
