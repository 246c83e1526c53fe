//! A steady flow of messages to one stream.

use std::fmt;
use std::time::Duration;

use super::handle::{self, Confirmation, Handle, Terms};
use super::window::NoRoom;
use crate::client::Client;
use crate::clock;
use crate::error::PublishError;
use crate::message::IntoMessage;

impl Client {
    /// A producer for a stream, which is created if it does not exist: for programs that publish much and do not
    /// want to wait for each message. Make a producer once and keep it: the server remembers every producer for a
    /// while, and each has a call of its own while it is in use, of which a connection has 256.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Message;
    ///
    /// let producer = client.producer("readings").window(4_096).build();
    /// for reading in 0..100_000 {
    ///     // Waits only while 4,096 messages are in flight.
    ///     producer.send(Message::new(format!("{reading}"))).await?;
    /// }
    /// producer.close().await?; // Fails if any message failed.
    /// # Ok(())
    /// # }
    /// ```
    pub fn producer(&self, stream: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder {
            client: self.clone(),
            stream: stream.into(),
            terms: super::PRODUCER,
            retry_for: self.retry_for(),
        }
    }
}

/// Settings of a [`Producer`]. Made by [`Client::producer`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ProducerBuilder {
    client: Client,
    stream: String,
    terms: Terms,
    retry_for: Duration,
}

impl ProducerBuilder {
    /// Sets how many messages may be in flight. The default is 1,024.
    pub fn window(mut self, messages: usize) -> ProducerBuilder {
        self.terms.window_messages = messages;
        self
    }

    /// Sets how many bytes may be in flight. A larger message goes alone. The default is 16 MiB.
    pub fn window_bytes(mut self, bytes: usize) -> ProducerBuilder {
        self.terms.window_bytes = bytes;
        self
    }

    /// Sets the most messages in one batch, from 1 to 10,000. The default is 1,000.
    pub fn batch_max(mut self, messages: usize) -> ProducerBuilder {
        self.terms.rules.batch_max.messages = messages.clamp(1, 10_000);
        self
    }

    /// Sets how long a message is retried while the server cannot store it. The default is the client's setting.
    pub fn retry_for(mut self, time: Duration) -> ProducerBuilder {
        self.retry_for = time;
        self.terms.rules.stall_timeout = self.terms.rules.stall_timeout.map(|_| time);
        self
    }

    /// Counts the retry time from the last message that was stored, instead of from when each message was sent: for
    /// long inputs to a slow stream, where the time in the queue is not a failure.
    pub fn retry_while_storing(mut self) -> ProducerBuilder {
        self.terms.rules.stall_timeout = Some(self.retry_for);
        self
    }

    /// Stops at the first message that fails: no later message is stored, and all of them fail with
    /// [`PublishError::Aborted`]. Without this, only the message that the server refuses fails.
    pub fn stop_at_failure(mut self) -> ProducerBuilder {
        self.terms.rules.stops_at_failure = true;
        self
    }

    /// Makes the producer. It connects with the first message.
    pub fn build(self) -> Producer {
        let handle = self.client.publish_streams().start(&self.stream, self.terms);
        let waits_for_room = self.terms.rules.stall_timeout.is_some();
        Producer { handle, stream: self.stream.into(), retry_for: self.retry_for, waits_for_room }
    }
}

/// Publishes a steady flow of messages to one stream, with many messages in flight at a time.
///
/// Waiting messages are sent together, so batches grow with the load. Messages are stored in the order in which they
/// were sent, each once, even if the connection breaks: unconfirmed batches are sent again with the same numbers, and
/// the server stores each number once. If the server refuses a message for good, that message fails and the others go
/// on, unless the producer [stops at failures](ProducerBuilder::stop_at_failure).
///
/// Several tasks may share a producer, by reference or by clone. When the last clone is dropped, the messages that were
/// sent are still published, in the background.
#[derive(Clone)]
pub struct Producer {
    handle: Handle,
    stream: std::sync::Arc<str>,
    retry_for: Duration,
    /// A full window is no failure: the pipeline gives up by itself when nothing is stored any more.
    waits_for_room: bool,
}

impl Producer {
    /// Sends a message once there is room for it in the window. The confirmation resolves when the message is durable.
    ///
    /// ```no_run
    /// # async fn example(producer: forebay_client::Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Message;
    ///
    /// let first = producer.send(Message::new("one").key("a")).await?;
    /// let second = producer.send(Message::new("two").key("a")).await?;
    /// println!("stored at {} and {}", first.await?.seq, second.await?.seq);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, message: impl IntoMessage) -> Result<Confirmation, PublishError> {
        let mut message = message.into_message()?.0;
        handle::check(std::slice::from_ref(&message))?;
        loop {
            let deadline = clock::after(self.retry_for);
            match self.handle.send(&mut message, deadline).await {
                Ok(confirmation) => return Ok(confirmation),
                Err(NoRoom::Full) if self.waits_for_room => {}
                Err(NoRoom::Full) => return Err(handle::no_room_in_time(self.retry_for)),
                Err(NoRoom::Closed) => return Err(PublishError::Closed),
            }
        }
    }

    /// Sends messages in order, each once there is room for it, and returns a confirmation for each. They are not
    /// stored as one unit; see [`Client::publish_batch`] for that.
    pub async fn send_batch<M: IntoMessage>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Confirmation>, PublishError> {
        let mut confirmations = Vec::new();
        for message in messages {
            confirmations.push(self.send(message).await?);
        }
        Ok(confirmations)
    }

    /// Waits until every message that was sent before is durable or has failed. Fails with the first failure since the
    /// last flush, so that confirmations can be dropped without missing a failure.
    pub async fn flush(&self) -> Result<(), PublishError> {
        self.handle.flush().await
    }

    /// Takes no more messages, here and in every clone, and waits as [`Producer::flush`] does.
    pub async fn close(&self) -> Result<(), PublishError> {
        let flushed = self.handle.flush();
        self.handle.close();
        flushed.await
    }

    /// The stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("stream", &self.stream).finish_non_exhaustive()
    }
}
