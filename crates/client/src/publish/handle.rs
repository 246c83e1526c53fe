//! A pipeline from the outside: a window and a channel. Cheap to clone.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_wire::v1;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::Published;
use super::pipeline::{Content, Identity, Item, Pipeline, Reply, Room, Rules};
use super::task::{Command, Task};
use super::window::{NoRoom, Window};
use crate::channel::Channel;
use crate::clock::Instant;
use crate::error::{PublishError, Refusal};

/// Encoded bytes of the largest batch that a server reads. It cannot name the mistake in a larger one.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Bytes of a message beside its texts and its body, roughly.
const MESSAGE_OVERHEAD: usize = 32;
/// The highest priority.
const PRIORITY_MAX: u32 = forebay_model::limits::PRIORITY_MAX as u32;

/// Settings of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) window_messages: usize,
    pub(super) window_bytes: usize,
    pub(super) rules: Rules,
    pub(super) ends_when_idle: bool,
}

#[derive(Clone)]
pub(super) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    window: Arc<Window>,
    task: AbortHandle,
}

impl Handle {
    /// Starts a pipeline. No other pipeline may publish to the same stream with the same identity.
    pub(super) fn start(
        runtime: &Runtime,
        channel: Channel,
        stream: &str,
        identity: Arc<Identity>,
        terms: Terms,
    ) -> Handle {
        let (commands, taken) = mpsc::unbounded_channel();
        let window = Arc::new(Window::new(terms.window_messages, terms.window_bytes));
        let task = Task {
            pipeline: Pipeline::new(stream.to_owned(), identity, terms.rules),
            channel,
            commands: taken,
            window: window.clone(),
            ends_when_idle: terms.ends_when_idle,
        };
        let task = runtime.spawn(task.run()).abort_handle();
        Handle { commands, window, task }
    }

    /// Hands a message over if there is room for it now. Otherwise the message stays with the caller.
    pub(super) fn try_send(
        &self,
        message: &mut v1::Message,
        deadline: Instant,
    ) -> Result<Confirmation, NoRoom> {
        let room = self.window.room_for(1, bytes_of(message));
        self.window.try_take(room)?;
        self.hand_over(message, room, deadline)
    }

    /// Hands a message over as soon as there is room for it.
    pub(super) async fn send(
        &self,
        message: &mut v1::Message,
        deadline: Instant,
    ) -> Result<Confirmation, NoRoom> {
        let room = self.window.room_for(1, bytes_of(message));
        self.take(room, deadline).await?;
        self.hand_over(message, room, deadline)
    }

    fn hand_over(
        &self,
        message: &mut v1::Message,
        room: Room,
        deadline: Instant,
    ) -> Result<Confirmation, NoRoom> {
        let (reply, answer) = oneshot::channel();
        let content = Content::One(std::mem::take(message));
        match self.put(Item { content, deadline, room, reply: Reply::One(reply) }) {
            None => Ok(Confirmation(answer)),
            Some(back) => {
                if let Content::One(back) = back {
                    *message = back;
                }
                Err(NoRoom::Closed)
            }
        }
    }

    /// Hands a batch over as soon as there is room for it.
    pub(super) async fn send_whole(
        &self,
        messages: &mut Vec<v1::Message>,
        expect_last_seq: Option<u64>,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<Vec<Published>, PublishError>>, NoRoom> {
        let room = self.window.room_for(messages.len(), messages.iter().map(bytes_of).sum());
        self.take(room, deadline).await?;
        let (reply, answer) = oneshot::channel();
        let content = Content::Whole { messages: std::mem::take(messages), expect_last_seq };
        match self.put(Item { content, deadline, room, reply: Reply::Whole(reply) }) {
            None => Ok(answer),
            Some(back) => {
                if let Content::Whole { messages: back, .. } = back {
                    *messages = back;
                }
                Err(NoRoom::Closed)
            }
        }
    }

    async fn take(&self, room: Room, deadline: Instant) -> Result<(), NoRoom> {
        match self.window.try_take(room) {
            Err(NoRoom::Full) => {}
            taken => return taken,
        }
        tokio::time::timeout_at(deadline, self.window.take(room)).await.unwrap_or(Err(NoRoom::Full))
    }

    /// Gives the content back if the task has ended.
    fn put(&self, item: Item) -> Option<Content> {
        match self.commands.send(Command::Publish(item)) {
            Err(mpsc::error::SendError(Command::Publish(item))) => {
                self.window.give_back(item.room);
                Some(item.content)
            }
            _ => None,
        }
    }

    /// Waits until every message that was handed over before is answered. Fails with the first failure since the last
    /// flush.
    pub(super) fn flush(&self) -> impl Future<Output = Result<(), PublishError>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Flush(reply));
        let window = self.window.clone();
        // A pipeline that ended by itself has answered every message; one that ended with its runtime has not.
        let ended = move || if window.is_unused() { Ok(()) } else { Err(ended()) };
        async move { answer.await.unwrap_or_else(|_| ended()) }
    }

    /// Takes no more messages. Those that were handed over are still published.
    pub(super) fn close(&self) {
        self.window.close();
        let _ = self.commands.send(Command::Close);
    }

    /// Whether no more messages are taken.
    pub(super) fn is_closed(&self) -> bool {
        self.window.is_closed() || self.commands.is_closed()
    }

    /// Whether the task has ended, with everything answered.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Whether no message is in flight.
    pub(super) fn is_unused(&self) -> bool {
        self.window.is_unused()
    }
}

/// The pending confirmation of a message that was sent. To `.await` it waits until the message is durable or has
/// failed. It can be dropped: [`Producer::flush`](super::Producer::flush) still reports a failure.
// Not a future itself, because futures are `must_use` and this one may be dropped.
#[derive(Debug)]
pub struct Confirmation(oneshot::Receiver<Result<Published, PublishError>>);

impl IntoFuture for Confirmation {
    type Output = Result<Published, PublishError>;
    type IntoFuture = Confirming;

    fn into_future(self) -> Confirming {
        Confirming(self.0)
    }
}

/// Resolves when a message is durable or has failed. Made from a [`Confirmation`].
#[derive(Debug)]
pub struct Confirming(oneshot::Receiver<Result<Published, PublishError>>);

impl Future for Confirming {
    type Output = Result<Published, PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(cx)).unwrap_or_else(|_| Err(ended())))
    }
}

/// The task was dropped, which happens when its runtime ends.
pub(super) fn ended() -> PublishError {
    PublishError::Unknown { detail: "the client's runtime has ended".to_owned(), is_disconnected: false }
}

pub(super) fn no_room_in_time(retry_for: Duration) -> PublishError {
    let detail = format!("the producer's window was full for {retry_for:?}");
    PublishError::NotInTime { detail, is_disconnected: false }
}

/// Refuses messages that no server takes, before they spoil the batch that they would be in.
pub(super) fn check(messages: &[v1::Message]) -> Result<(), PublishError> {
    let refused = |refusal, detail| Err(PublishError::Refused { refusal, detail });
    if messages.is_empty() {
        return refused(Refusal::Invalid, "a batch must have at least one message".to_owned());
    }
    if let Some(message) = messages.iter().find(|message| message.priority > PRIORITY_MAX) {
        let detail = format!("priority must be between 0 and {PRIORITY_MAX}. value=`{}`", message.priority);
        return refused(Refusal::Invalid, detail);
    }
    let bytes: usize = messages.iter().map(bytes_of).sum();
    if bytes > BATCH_BYTES_MAX {
        let what = if messages.len() == 1 { "message" } else { "batch" };
        let detail = format!("{what} is too large. bytes=`{bytes}` limit=`{BATCH_BYTES_MAX}`");
        return refused(Refusal::TooLarge, detail);
    }
    Ok(())
}

fn bytes_of(message: &v1::Message) -> usize {
    let headers = message
        .headers
        .iter()
        .map(|header| header.name.len() + header.value.len() + header.value_bytes.len() + MESSAGE_OVERHEAD);
    let key = message.key.len() + message.key_bytes.len();
    let texts = message.id.len() + key + message.r#type.len() + message.content_type.len();
    message.body.len() + texts + headers.sum::<usize>() + MESSAGE_OVERHEAD
}

/// An identity that no other producer has.
pub(super) fn new_identity() -> Arc<Identity> {
    let id = getrandom::u64().unwrap_or_else(|_| {
        // Without the system's random numbers: the standard library's hasher has its own seed.
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(std::process::id())
    });
    Arc::new(Identity::new(id))
}
