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
    /// want to wait for each message. It is made once and kept: the server remembers each one for a while, and each
    /// has a call of its own while it is in use, of which a connection has 256.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Message;
    ///
    /// let producer = client.producer("readings").window(4_096).build();
    /// for reading in 0..100_000 {
    ///     // Waits only while 4,096 are on their way.
    ///     producer.send(Message::new(format!("{reading}"))).await?;
    /// }
    /// producer.close().await?; // Says if any of them failed.
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

/// How a producer is to be. Made by [`Client::producer`].
#[derive(Debug, Clone)]
#[must_use = "it is no producer before it is built"]
pub struct ProducerBuilder {
    client: Client,
    stream: String,
    terms: Terms,
    retry_for: Duration,
}

impl ProducerBuilder {
    /// How many messages may be on their way. 1,024 unless said.
    pub fn window(mut self, messages: usize) -> ProducerBuilder {
        self.terms.window_messages = messages;
        self
    }

    /// And how many bytes. 16 MiB unless said; a message that is larger goes alone.
    pub fn window_bytes(mut self, bytes: usize) -> ProducerBuilder {
        self.terms.window_bytes = bytes;
        self
    }

    /// The most messages in one batch. 1,000 unless said, and never more than 10,000.
    pub fn batch_max(mut self, messages: usize) -> ProducerBuilder {
        self.terms.batch_max.messages = messages.clamp(1, 10_000);
        self
    }

    /// How long a message is sent again and again if it may go better later. As the client says, unless said.
    pub fn retry_for(mut self, time: Duration) -> ProducerBuilder {
        self.retry_for = time;
        self
    }

    pub fn build(self) -> Producer {
        let handle = self.client.streams().start(&self.stream, self.terms);
        Producer { handle, stream: self.stream.into(), retry_for: self.retry_for }
    }
}

/// Publishes a steady flow of messages to one stream, many on their way at a time.
///
/// What waits goes together, so batches become larger the more there is to do. Messages are stored in the order in
/// which they were sent, each once, whatever becomes of the connection: what nobody has confirmed is sent again,
/// numbered as before, and the server knows what it has. If the server refuses a message for good, that one fails
/// and the others go on.
///
/// Several tasks may share a producer, by reference or by clone. When the last clone is dropped, what was sent is
/// still published, in the background.
#[derive(Clone)]
pub struct Producer {
    handle: Handle,
    stream: std::sync::Arc<str>,
    retry_for: Duration,
}

impl Producer {
    /// Hands a message over, once there is room for it in the window. The confirmation resolves when it is durable.
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
        let deadline = clock::after(self.retry_for);
        self.handle.send(&mut message, deadline).await.map_err(|no_room| match no_room {
            NoRoom::Full => handle::no_room_in_time(self.retry_for),
            NoRoom::Closed => PublishError::Closed,
        })
    }

    /// Waits until everything that was sent before is durable or has failed. Fails with the first failure since the
    /// last flush, so that whoever drops his confirmations still learns of it.
    pub async fn flush(&self) -> Result<(), PublishError> {
        self.handle.flush().await
    }

    /// Takes no more messages, here and in every clone, and waits as [`Producer::flush`] does.
    pub async fn close(&self) -> Result<(), PublishError> {
        let flushed = self.handle.flush();
        self.handle.close();
        flushed.await
    }

    pub fn stream(&self) -> &str {
        &self.stream
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("stream", &self.stream).finish_non_exhaustive()
    }
}
