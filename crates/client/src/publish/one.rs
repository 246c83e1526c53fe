//! Publishing one message.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use forebay_wire::v1;

use super::Published;
use super::handle::{self, Confirmation, Confirming};
use super::window::NoRoom;
use crate::client::Client;
use crate::clock::{self, Instant};
use crate::error::PublishError;
use crate::message::{IntoMessage, Message};

impl Client {
    /// Publishes a message to a stream, which is created if it does not exist. Resolves when the message is durable.
    ///
    /// Messages that are published at the same time are sent together, so many tasks can publish concurrently at little
    /// cost. If the server cannot store the message now, or if it is not known whether it did, the message is sent
    /// again for as long as the client's `retry_for` says, and is never stored twice. Publishes that are awaited one
    /// after the other keep their order.
    ///
    /// To drop the future once it was polled does not take the message back.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use forebay_client::{Client, Message, Payload};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct SendEmail {
    ///     to: String,
    /// }
    ///
    /// impl Payload for SendEmail {
    ///     const TYPE: &'static str = "email.send";
    /// }
    ///
    /// let client = Client::connect("http://127.0.0.1:7070").await?;
    /// let email = SendEmail { to: "a@example.com".into() };
    /// let published = client.publish("emails", &email).key("user-4").id("email-17").await?;
    /// println!("stored at {}", published.seq);
    ///
    /// client.publish("notes", Message::new("plain text")).delay(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish<'a>(&self, stream: &'a str, message: impl IntoMessage) -> Publish<'a> {
        let message = message.into_message().map_err(PublishError::from);
        Publish { client: self.clone(), stream, message }
    }
}

/// A message to publish. To `.await` it publishes it. Made by [`Client::publish`].
#[derive(Debug)]
#[must_use = "nothing is published before it is awaited"]
pub struct Publish<'a> {
    client: Client,
    stream: &'a str,
    message: Result<Message, PublishError>,
}

impl<'a> Publish<'a> {
    /// Sets the message id: see [`Message::id`].
    pub fn id(self, id: impl Into<String>) -> Publish<'a> {
        self.with(|message| message.id(id))
    }

    /// Sets the key: see [`Message::key`].
    pub fn key(self, key: impl Into<String>) -> Publish<'a> {
        self.with(|message| message.key(key))
    }

    /// Adds a header. Workers continue the trace of a `traceparent` header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Publish<'a> {
        self.with(|message| message.header(name, value))
    }

    /// Sets the priority: see [`Message::priority`].
    pub fn priority(self, priority: u8) -> Publish<'a> {
        self.with(|message| message.priority(priority))
    }

    /// Delays the delivery: see [`Message::delay`].
    pub fn delay(self, delay: Duration) -> Publish<'a> {
        self.with(|message| message.delay(delay))
    }

    /// Sets the earliest time of delivery: see [`Message::deliver_at`].
    pub fn deliver_at(self, at: SystemTime) -> Publish<'a> {
        self.with(|message| message.deliver_at(at))
    }

    /// Sets the time to live: see [`Message::ttl`].
    pub fn ttl(self, ttl: Duration) -> Publish<'a> {
        self.with(|message| message.ttl(ttl))
    }

    fn with(self, change: impl FnOnce(Message) -> Message) -> Publish<'a> {
        Publish { message: self.message.map(change), ..self }
    }
}

impl<'a> IntoFuture for Publish<'a> {
    type Output = Result<Published, PublishError>;
    type IntoFuture = Publishing<'a>;

    fn into_future(self) -> Publishing<'a> {
        let state = match self.message {
            Ok(message) => State::Begin(message.0),
            Err(error) => State::Failed(error),
        };
        Publishing { client: self.client, stream: self.stream, state }
    }
}

/// A message that is being published. Made from a [`Publish`].
#[must_use = "nothing is published before it is awaited"]
pub struct Publishing<'a> {
    client: Client,
    stream: &'a str,
    state: State,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum State {
    Begin(v1::Message),
    Failed(PublishError),
    /// The window was full.
    Waiting(Pin<Box<dyn Future<Output = Result<Confirmation, PublishError>> + Send>>),
    Sent(Confirming),
    Over,
}

impl Future for Publishing<'_> {
    type Output = Result<Published, PublishError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.state, State::Over) {
                State::Begin(message) => this.begin(message),
                State::Failed(error) => return Poll::Ready(Err(error)),
                State::Waiting(mut waiting) => match waiting.as_mut().poll(cx) {
                    Poll::Ready(Ok(confirmation)) => this.state = State::Sent(confirmation.into_future()),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        this.state = State::Waiting(waiting);
                        return Poll::Pending;
                    }
                },
                State::Sent(mut confirming) => {
                    let Poll::Ready(published) = Pin::new(&mut confirming).poll(cx) else {
                        this.state = State::Sent(confirming);
                        return Poll::Pending;
                    };
                    return Poll::Ready(published);
                }
                // A future must not be polled after it is done.
                State::Over => return Poll::Pending,
            }
        }
    }
}

impl Publishing<'_> {
    fn begin(&mut self, mut message: v1::Message) {
        if let Err(error) = handle::check(std::slice::from_ref(&message)) {
            self.state = State::Failed(error);
            return;
        }
        let deadline = clock::after(self.client.retry_for());
        let handle = self.client.publish_streams().try_get(self.stream);
        if let Some(Ok(confirmation)) = handle.map(|handle| handle.try_send(&mut message, deadline)) {
            self.state = State::Sent(confirmation.into_future());
            return;
        }
        let (client, stream) = (self.client.clone(), self.stream.to_owned());
        self.state = State::Waiting(Box::pin(wait_and_send(client, stream, message, deadline)));
    }
}

async fn wait_and_send(
    client: Client,
    stream: String,
    mut message: v1::Message,
    deadline: Instant,
) -> Result<Confirmation, PublishError> {
    let too_late = || handle::no_room_in_time(client.retry_for());
    loop {
        let getting = tokio::time::timeout_at(deadline, client.publish_streams().get(&stream));
        let handle = getting.await.map_err(|_| too_late())?;
        match handle.send(&mut message, deadline).await {
            Ok(confirmation) => return Ok(confirmation),
            Err(NoRoom::Full) => return Err(too_late()),
            // The pipeline was unused and has ended meanwhile. The next one starts.
            Err(NoRoom::Closed) => tokio::task::yield_now().await,
        }
    }
}
