//! Bytes of gRPC messages that are on their way in, within a budget of the whole server.
//!
//! A message is assembled in memory before any code sees it, so a client that sends only the beginning of a
//! large one holds on to that memory. Here a large message takes room for all of it when it begins, and waits
//! until there is room; it has to be complete within a time; and it gives the room back when the call asks for
//! what comes after it, by when it has been handed on. Small messages are as good as free and are not counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;

/// A message up to this size takes no room.
const SMALL: usize = 64 << 10;
/// How long a large message may take to come.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);
/// A message begins with a byte of flags and its length.
const HEAD: usize = 5;

/// The budget that all calls share.
#[derive(Clone)]
pub(super) struct Budget {
    room: Arc<Semaphore>,
    bytes: usize,
    message_time_max: Duration,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Budget {
        let bytes = bytes.clamp(1, u32::MAX as usize);
        Budget { room: Arc::new(Semaphore::new(bytes)), bytes, message_time_max: MESSAGE_TIME_MAX }
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The body of a call.
pub(super) struct Intake<B> {
    body: B,
    budget: Budget,
    place: Place,
    /// Room for large messages that have not been handed on.
    held: Option<OwnedSemaphorePermit>,
    /// A piece that cannot be handed on before there is room for the messages that begin in it.
    waiting: Option<(Bytes, Acquiring)>,
    /// When the message that is coming has to be whole.
    deadline: Option<Pin<Box<Sleep>>>,
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

    /// Goes on by a piece of the body. Returns the size of the large messages that begin in it.
    fn advance(&mut self, mut piece: &[u8]) -> usize {
        let mut begun = 0usize;
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
                    if self.left > SMALL {
                        begun = begun.saturating_add(self.left);
                    }
                }
                taken
            };
            piece = &piece[taken..];
        }
        begun
    }
}

impl<B> Intake<B> {
    pub(super) fn new(body: B, budget: Budget) -> Intake<B> {
        Intake { body, budget, place: Place::default(), held: None, waiting: None, deadline: None }
    }

    fn hold(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.budget.message_time_max)));
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
        if let Some((_, acquiring)) = &mut this.waiting {
            let permit = ready!(acquiring.as_mut().poll(cx)).expect("the budget is never closed");
            let (piece, _) = this.waiting.take().expect("it is there");
            this.hold(permit);
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
        let begun = this.place.advance(&piece).min(this.budget.bytes);
        if begun > 0 {
            let acquiring = this.budget.room.clone().acquire_many_owned(begun as u32);
            this.waiting = Some((piece, Box::pin(acquiring)));
            return self.poll_frame(cx);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
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
    use super::*;
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

    fn call(budget: &Budget) -> (mpsc::UnboundedSender<Bytes>, Intake<Fed>) {
        let (feed, fed) = mpsc::unbounded_channel();
        (feed, Intake::new(Fed(fed), budget.clone()))
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
            let begun: usize = all.chunks(size).map(|piece| place.advance(piece)).sum();
            assert_eq!(begun, 170_000, "pieces of {size}");
            assert!(place.is_between());
        }
    }

    #[tokio::test]
    async fn a_large_message_waits_for_room_and_gives_it_back() {
        let budget = Budget::new(1_000_000);
        let (slow, mut first) = call(&budget);
        slow.send(message(900_000)[..1_000].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut first).await, Some(1_000));
        let (feed, mut second) = call(&budget);
        feed.send(message(10).into()).expect("it is read");
        assert_eq!(next(&mut second).await, Some(15), "a small one needs none");
        feed.send(message(900_000).into()).expect("it is read");
        assert_eq!(next(&mut second).await, None, "there is no room");
        slow.send(message(900_000)[1_000..].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut first).await, Some(899_005));
        assert_eq!(next(&mut second).await, None, "the first has not been handed on");
        assert_eq!(next(&mut first).await, None, "asking for more says that it has been");
        assert_eq!(next(&mut second).await, Some(900_005));
        drop(second);
        assert_eq!(budget.room.available_permits(), 1_000_000);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_budget_enters_alone_and_one_that_never_ends_is_cut_off() {
        let budget = Budget { message_time_max: Duration::from_millis(20), ..Budget::new(100_000) };
        let (feed, mut intake) = call(&budget);
        feed.send(message(500_000)[..10].to_vec().into()).expect("it is read");
        assert_eq!(next(&mut intake).await, Some(10));
        assert_eq!(budget.room.available_permits(), 0);
        let cut_off = intake.frame().await.expect("the body says so").expect_err("it is too slow");
        assert_eq!(cut_off.downcast::<Status>().expect("a status").code(), tonic::Code::DeadlineExceeded);
        drop(intake);
        assert_eq!(budget.room.available_permits(), 100_000);
    }
}
