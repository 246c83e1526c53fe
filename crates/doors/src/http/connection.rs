//! One connection: which protocol it speaks, and how long it may be silent or slow.
//!
//! A client has ten seconds for the head of a request, and may rest longer between requests. While a request is
//! being answered no timer runs for it, so that a long poll costs nothing but its memory. A client that does not
//! take its answers is given up, since they take room.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use bytes::{Buf as _, Bytes};
use forebay_broker::api::LiveConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::keeping::Keeping;
use crate::kit::tls::Wire;

/// From the first byte of a request to the end of its head; also for the first byte of all.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Between requests.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// How long a client may take nothing of what waits for it.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// How long, and up to how many bytes, a request is still read after it was refused unread. A connection that
/// is closed while more bytes come is reset, and the refusal may be lost with it.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 64 << 20;
const LINGER_STEP: usize = 16 << 10;
/// How HTTP/2 begins, with its first frame's head after it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_AND_HEAD: usize = PREFACE.len() + 9;
/// As many of its bytes as tell it from any method of HTTP/1.
const TELLING: usize = 3;
/// Before a connection is looked at again that has not sent as many.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Tells the protocol without taking anything. `None` if nothing came in time.
pub(crate) async fn protocol_of(wire: &Wire) -> Option<Protocol> {
    match (wire.chose_http2(), wire.plain()) {
        (Some(true), _) => Some(Protocol::Http2),
        (None, Some(stream)) => first_bytes_of(stream).await,
        // A client that chose nothing speaks HTTP/1.
        _ => Some(Protocol::Http1),
    }
}

async fn first_bytes_of(stream: &TcpStream) -> Option<Protocol> {
    let tell = async {
        let mut first = [0; TELLING];
        loop {
            let count = stream.peek(&mut first).await.ok()?;
            match &first[..count] {
                [] => return None,
                seen if !PREFACE.starts_with(seen) => return Some(Protocol::Http1),
                seen if seen.len() == TELLING => return Some(Protocol::Http2),
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    };
    tokio::time::timeout(HEAD_MAX, tell).await.ok().flatten()
}

/// The requests of a connection, shared by the side that reads them and the side that answers them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Open(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// Those that are being answered.
    open: AtomicUsize,
    /// Those that there have been.
    all: AtomicUsize,
    /// One was refused before it was read to its end.
    is_unread: AtomicBool,
}

impl Open {
    pub(crate) fn enter(&self) -> Answering {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        self.0.all.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    fn any(&self) -> bool {
        self.0.open.load(Ordering::Relaxed) > 0
    }

    fn all(&self) -> usize {
        self.0.all.load(Ordering::Relaxed)
    }

    fn is_unread(&self) -> bool {
        self.0.is_unread.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Open);

impl Answering {
    /// It is answered when the last of the answer has left.
    pub(crate) fn hold(self, response: Response<Body>) -> Response<Keeping<Answering>> {
        // Only a request that was not read to its end is answered with a close.
        if response.headers().contains_key(header::CONNECTION) {
            self.0.0.is_unread.store(true, Ordering::Relaxed);
        }
        response.map(|body| Keeping::new(body, self))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the reading side waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The first byte of a request.
    Request,
    /// The rest of a head.
    Head,
}

pub(crate) struct Connection {
    stream: Wire,
    protocol: Protocol,
    open: Open,
    /// Requests whose heads have come.
    seen: usize,
    awaited: Awaited,
    read_timer: Option<Pin<Box<Sleep>>>,
    is_read_timed: bool,
    write_timer: Option<Pin<Box<Sleep>>>,
    is_write_timed: bool,
    read: usize,
    /// How much was read and thrown away since the last answer, once that has left.
    lingered: Option<usize>,
    live: Arc<LiveConnection>,
    /// The reply that is sent in place of hyper's bare refusal, and the length of that refusal.
    instead: Option<(Bytes, usize)>,
    refusal: Refusal,
}

impl Connection {
    pub(crate) fn new(
        stream: Wire,
        protocol: Protocol,
        open: Open,
        refusal: Refusal,
        live: Arc<LiveConnection>,
    ) -> Connection {
        Connection {
            stream,
            protocol,
            open,
            seen: 0,
            // Its first bytes are there, or should come soon.
            awaited: Awaited::Head,
            read_timer: None,
            is_read_timed: false,
            write_timer: None,
            is_write_timed: false,
            read: 0,
            lingered: None,
            live,
            instead: None,
            refusal,
        }
    }

    /// Whether the client may take its time. HTTP/2 looks after its connections by itself, once they are there.
    fn is_unhurried(&self) -> bool {
        match self.protocol {
            Protocol::Http1 => self.open.any(),
            Protocol::Http2 => self.read >= PREFACE_AND_HEAD,
        }
    }

    /// After a head the next request is awaited.
    fn look_at_requests(&mut self) {
        let all = self.open.all();
        if self.seen != all {
            self.seen = all;
            self.awaited = Awaited::Request;
            self.is_read_timed = false;
        }
    }

    fn poll_read_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.look_at_requests();
        if self.is_unhurried() {
            self.is_read_timed = false;
            return Poll::Pending;
        }
        if !self.is_read_timed {
            self.is_read_timed = true;
            let patience = if self.awaited == Awaited::Head { HEAD_MAX } else { IDLE_MAX };
            start(&mut self.read_timer, patience);
        }
        self.read_timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }

    /// Sends what the door says where a bare refusal would be sent. Ready once the whole of it is.
    fn poll_instead(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() && self.protocol == Protocol::Http1 {
            self.instead = bare_refusal(bytes).and_then(self.refusal).map(|text| (text, bytes.len()));
        }
        let (text, length) = self.instead.as_mut()?;
        while text.has_remaining() {
            match Pin::new(&mut self.stream).poll_write(cx, text) {
                Poll::Ready(Ok(count)) if count > 0 => text.advance(count),
                Poll::Ready(Ok(_)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(Poll::Pending),
            }
        }
        let length = *length;
        self.instead = None;
        Some(Poll::Ready(Ok(length)))
    }

    /// Throws away what still comes, for a while.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; LINGER_STEP];
        while self.lingered.is_some_and(|bytes| bytes < LINGER_BYTES_MAX) {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.lingered = self.lingered.map(|bytes| bytes + buffer.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    return self.read_timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(cx));
                }
            }
        }
        Poll::Ready(())
    }

    /// A write that went through, or the wait for one that did not.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_write_timed = false;
            return written;
        }
        if !self.is_write_timed {
            self.is_write_timed = true;
            start(&mut self.write_timer, WRITE_STALL_MAX);
        }
        let timer = self.write_timer.as_mut().expect("it was started");
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(self.timed_out("the client to read the response")))
    }

    fn timed_out(&self, awaited: &str) -> io::Error {
        let peer = self.stream.peer_addr().ok();
        tracing::debug!(?peer, awaited, "connection closed by deadline");
        io::ErrorKind::TimedOut.into()
    }
}

/// What a door says in place of a refusal of the HTTP library, by its status. `None`: the refusal as it is.
pub(crate) type Refusal = fn(u16) -> Option<Bytes>;

/// The status of a refusal of the HTTP library, which has no body: it refuses what it cannot read before any handler
/// sees it. Every refusal of a handler has a body.
fn bare_refusal(head: &[u8]) -> Option<u16> {
    const BARE: &[u8] = b"content-length: 0\r\n";
    let status = std::str::from_utf8(head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()?.parse().ok()?;
    let is_bare = matches!(status, 400 | 414 | 431) && head.windows(BARE.len()).any(|line| line == BARE);
    is_bare.then_some(status)
}

/// Starts a timer anew, where the old one was.
fn start(timer: &mut Option<Pin<Box<Sleep>>>, patience: Duration) {
    match timer {
        Some(timer) => timer.as_mut().set(tokio::time::sleep(patience)),
        None => *timer = Some(Box::pin(tokio::time::sleep(patience))),
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            let count = buffer.filled().len() - before;
            self.live.read(count);
            self.read = self.read.saturating_add(count);
            self.look_at_requests();
            // The time for a head counts from its first byte, however many bytes it comes in.
            if self.awaited == Awaited::Request && !self.is_unhurried() {
                self.awaited = Awaited::Head;
                self.is_read_timed = false;
            }
            return read;
        }
        ready!(self.poll_read_timer(cx));
        let awaited = match self.awaited {
            Awaited::Request => "a request",
            Awaited::Head => "the head of a request",
        };
        Poll::Ready(Err(self.timed_out(awaited)))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self.poll_instead(cx, bytes) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        };
        if let Poll::Ready(Ok(count)) = &written {
            self.live.wrote(*count);
        }
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = parts.first().map_or(&[][..], |first| first);
        let written = match self.poll_instead(cx, first) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, parts),
        };
        if let Poll::Ready(Ok(count)) = &written {
            self.live.wrote(*count);
        }
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingered.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.open.is_unread() {
                return Poll::Ready(Ok(()));
            }
            self.lingered = Some(0);
            start(&mut self.read_timer, LINGER_MAX);
        }
        self.poll_linger(cx).map(Ok)
    }
}
