//! Bytes of gRPC messages that are on their way in, within a pool that all connections share.
//!
//! A message is assembled in memory before any code sees it, so a client that sends only a part of a large one holds on
//! to that memory. Here a message takes room for its bytes as they come, and waits until there is room; it has to be
//! complete within a time; and it gives the room back when the call asks for what comes after it, by when it has been
//! handed on. A message that only says how long it will be holds nothing. Messages that come whole in one small piece
//! are as good as free and are not counted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{Hold, Share};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use crate::kit::tenants::Meter;

/// Messages that come whole in a piece of this size take no room.
const SMALL: usize = 16 << 10;
/// How long a message may take to come.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);
/// A message begins with a byte of flags and its length.
const HEAD: usize = 5;

/// Room for everything of a message that has come, and whether there was some.
type Growing = Pin<Box<dyn Future<Output = (Hold, bool)> + Send>>;

/// The body of a call.
pub(crate) struct Intake<B> {
    body: B,
    share: Share,
    /// The status of a call for which there is no room.
    busy: fn() -> Status,
    message_time_max: Duration,
    place: Place,
    /// Room for messages that have not been handed on.
    held: Option<Hold>,
    /// A piece that cannot be handed on before there is room for it.
    waiting: Option<(Bytes, Growing)>,
    /// When the message that is coming has to be whole.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Of a client that may send only so many bytes a second. A message that is one too many waits, and so do the
    /// messages that follow it.
    meter: Option<Meter>,
}

/// Where in the sequence of messages the body is.
#[derive(Default)]
struct Place {
    head: [u8; HEAD],
    head_len: usize,
    /// Bytes of the present message that are to come.
    left: usize,
}

impl Place {
    fn is_between(&self) -> bool {
        self.left == 0 && self.head_len == 0
    }

    /// Goes on by a piece of the body.
    fn advance(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let taken = if self.left > 0 {
                let taken = self.left.min(piece.len());
                self.left -= taken;
                taken
            } else {
                let taken = (HEAD - self.head_len).min(piece.len());
                self.head[self.head_len..self.head_len + taken].copy_from_slice(&piece[..taken]);
                self.head_len += taken;
                if self.head_len == HEAD {
                    self.head_len = 0;
                    let [_, length @ ..] = self.head;
                    self.left = u32::from_be_bytes(length) as usize;
                }
                taken
            };
            piece = &piece[taken..];
        }
    }
}

impl<B> Intake<B> {
    pub(crate) fn new(body: B, share: Share, busy: fn() -> Status) -> Intake<B> {
        Intake {
            body,
            share,
            busy,
            message_time_max: MESSAGE_TIME_MAX,
            place: Place::default(),
            held: None,
            waiting: None,
            deadline: None,
            meter: None,
        }
    }

    pub(crate) fn metered(self, meter: Option<Meter>) -> Intake<B> {
        Intake { meter, ..self }
    }
}

impl<B> Body for Intake<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Some((_, growing)) = &mut this.waiting {
            let (hold, has_grown) = ready!(growing.as_mut().poll(cx));
            let (piece, _) = this.waiting.take().expect("it is there");
            this.held = Some(hold);
            if !has_grown {
                return Poll::Ready(Some(Err((this.busy)().into())));
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if this.place.is_between() {
            this.held = None;
            this.deadline = None;
        }
        let Poll::Ready(next) = Pin::new(&mut this.body).poll_frame(cx) else {
            if let Some(deadline) = &mut this.deadline {
                ready!(deadline.as_mut().poll(cx));
                return Poll::Ready(Some(Err(Status::deadline_exceeded("a message came too slowly").into())));
            }
            return Poll::Pending;
        };
        let frame = match next {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let Ok(piece) = frame.into_data() else { return Poll::Ready(None) };
        let pause = match &this.meter {
            Some(meter) => {
                let debt = meter.debt().filter(|_| this.place.is_between());
                meter.charge(piece.len());
                debt
            }
            None => None,
        };
        this.place.advance(&piece);
        let is_whole = this.place.is_between() && this.held.is_none();
        if is_whole && piece.len() <= SMALL && pause.is_none() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        // The time of a message begins after its pause.
        if !this.place.is_between() && pause.is_none() {
            let most = this.message_time_max;
            this.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(most)));
        }
        let mut hold = this.held.take().unwrap_or_else(|| this.share.count(0));
        let bytes = hold.bytes() + piece.len();
        if pause.is_none() && hold.try_grow(bytes) {
            this.held = Some(hold);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let growing = Box::pin(async move {
            if let Some((clock, until)) = pause {
                clock.reaches(until).await;
            }
            let has_grown = hold.grow(bytes).await;
            (hold, has_grown)
        });
        this.waiting = Some((piece, growing));
        self.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use forebay_broker::api::{Clock, Grants, Pool, Principal, Tenants};
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    /// A body that is fed by hand.
    struct Fed(mpsc::UnboundedReceiver<Bytes>);

    impl Body for Fed {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn call(pool: &Arc<Pool>) -> (mpsc::UnboundedSender<Bytes>, Intake<Fed>) {
        let (feed, fed) = mpsc::unbounded_channel();
        (feed, Intake::new(Fed(fed), pool.share(), || Status::unavailable("busy")))
    }

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.resize(HEAD + length, 7);
        bytes
    }

    async fn next(intake: &mut Intake<Fed>) -> Option<usize> {
        let frame = tokio::time::timeout(Duration::from_millis(100), intake.frame()).await.ok()?;
        frame.map(|frame| frame.expect("a piece").into_data().expect("data").len())
    }

    #[test]
    fn messages_are_told_apart_however_they_are_cut() {
        let all = [message(3), message(100_000), message(0), message(SMALL), message(70_000)].concat();
        for size in [1, 2, 4, 5, 7, 1_000, 65_536, all.len()] {
            let mut place = Place::default();
            let mut ends = 0;
            for piece in all.chunks(size) {
                place.advance(piece);
                ends += usize::from(place.is_between());
            }
            assert!(place.is_between() && ends >= 1, "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn half_sent_messages_hold_what_has_come_and_no_more() {
        let pool = Pool::new(1_000_000);
        let mut half_sent = Vec::new();
        for _ in 0..12 {
            let (feed, mut intake) = call(&pool);
            feed.send(message(900_000)[..HEAD].to_vec().into()).expect("it is read");
            assert_eq!(next(&mut intake).await, Some(HEAD));
            half_sent.push((feed, intake));
        }
        assert_eq!(pool.used(), 12 * HEAD);
        let (feed, mut other) = call(&pool);
        feed.send(message(100_000).into()).expect("it is read");
        assert_eq!(next(&mut other).await, Some(100_005));
        assert_eq!(pool.used(), 12 * HEAD + 100_005);
        assert_eq!(next(&mut other).await, None, "asking for more says that it has been handed on");
        assert_eq!(pool.used(), 12 * HEAD);
        drop(half_sent);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn a_large_message_waits_for_room_and_a_small_one_does_not() {
        let pool = Pool::new(1_000_000);
        let (slow, mut first) = call(&pool);
        slow.send(message(900_000)[..800_000].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut first).await, Some(800_000));
        let (feed, mut second) = call(&pool);
        feed.send(message(10).into()).expect("it is read");
        assert_eq!(next(&mut second).await, Some(15), "a small one needs none");
        feed.send(message(400_000).into()).expect("it is read");
        assert_eq!(next(&mut second).await, None, "there is no room");
        drop((slow, first));
        assert_eq!(next(&mut second).await, Some(400_005));
        drop(second);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_pool_enters_alone_and_one_that_never_ends_is_cut_off() {
        let pool = Pool::new(100_000);
        let (feed, mut intake) = call(&pool);
        intake.message_time_max = Duration::from_millis(20);
        feed.send(message(500_000)[..90_000].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut intake).await, Some(90_000));
        feed.send(message(500_000)[90_000..300_000].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut intake).await, Some(210_000));
        let cut_off = intake.frame().await.expect("the body says so").expect_err("it is too slow");
        assert_eq!(cut_off.downcast::<Status>().expect("a status").code(), tonic::Code::DeadlineExceeded);
        drop(intake);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn a_client_beyond_its_rate_waits_before_its_next_message() {
        let tenants = Tenants::default();
        tenants.replace("ci bytes=1MiB").expect("they are good");
        let tenant = tenants.line_of(&Principal::new("ci", Grants::admin())).expect("it has limits");
        let pool = Pool::new(10 << 20);
        let (feed, intake) = call(&pool);
        let mut intake = intake.metered(Some(Meter::new(tenant, Clock::start())));
        feed.send(message(3 << 19).into()).expect("it is read");
        assert_eq!(next(&mut intake).await, Some(HEAD + (3 << 19)), "a whole message comes through");
        feed.send(message(10).into()).expect("it is read");
        assert_eq!(next(&mut intake).await, None, "the next one waits");
        let frame = tokio::time::timeout(Duration::from_secs(30), intake.frame()).await.expect("it comes");
        let bytes = frame.expect("a piece").expect("a piece").into_data().expect("data").len();
        assert_eq!(bytes, HEAD + 10);
        drop(feed);
        assert!(intake.frame().await.is_none(), "the end does not wait");
    }
}
