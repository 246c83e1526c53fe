//! Publishing a batch that is stored whole or not at all.

use std::future::Future;
use std::pin::Pin;

use super::window::NoRoom;
use super::{Published, handle};
use crate::client::Client;
use crate::clock;
use crate::error::PublishError;
use crate::message::{IntoMessage, Message};

impl Client {
    /// Publishes messages to a stream, all of them or none. Resolves when they are durable, to a result for each
    /// message, in their order. A batch must have at least one message.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::{Message, PublishError};
    ///
    /// let lines = ["one", "two", "three"];
    /// let results = client.publish_batch("lines", lines.map(Message::new)).await?;
    /// let last = results.last().map_or(0, |published| published.seq);
    ///
    /// // Only if no other message was published since.
    /// match client.publish_batch("lines", [Message::new("four")]).expect_last_seq(last).await {
    ///     Ok(_) => println!("stored"),
    ///     Err(PublishError::WrongLastSeq { last_seq }) => println!("the stream ends at {last_seq} by now"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_batch<'a, M: IntoMessage>(
        &self,
        stream: &'a str,
        messages: impl IntoIterator<Item = M>,
    ) -> PublishBatch<'a> {
        let messages: Result<_, _> = messages.into_iter().map(IntoMessage::into_message).collect();
        PublishBatch {
            client: self.clone(),
            stream,
            messages: messages.map_err(PublishError::from),
            expected: None,
        }
    }
}

/// A batch to publish. To `.await` it publishes it. Made by [`Client::publish_batch`].
#[derive(Debug)]
#[must_use = "nothing is published before it is awaited"]
pub struct PublishBatch<'a> {
    client: Client,
    stream: &'a str,
    messages: Result<Vec<Message>, PublishError>,
    expected: Option<u64>,
}

impl<'a> PublishBatch<'a> {
    /// Stores the batch only if this is the last position of the stream; zero: only if the stream never had a message.
    /// Otherwise publishing fails with [`PublishError::WrongLastSeq`].
    pub fn expect_last_seq(self, seq: u64) -> PublishBatch<'a> {
        PublishBatch { expected: Some(seq), ..self }
    }

    async fn run(self) -> Result<Vec<Published>, PublishError> {
        let mut messages: Vec<_> = self.messages?.into_iter().map(|message| message.0).collect();
        handle::check(&messages)?;
        let retry_for = self.client.retry_for();
        let deadline = clock::after(retry_for);
        let too_late = || handle::no_room_in_time(retry_for);
        loop {
            let getting = tokio::time::timeout_at(deadline, self.client.publish_streams().get(self.stream));
            let pipeline = getting.await.map_err(|_| too_late())?;
            match pipeline.send_whole(&mut messages, self.expected, deadline).await {
                Ok(answer) => return answer.await.unwrap_or_else(|_| Err(handle::ended())),
                Err(NoRoom::Full) => return Err(too_late()),
                // The pipeline was unused and has ended meanwhile. The next one starts.
                Err(NoRoom::Closed) => tokio::task::yield_now().await,
            }
        }
    }
}

impl<'a> IntoFuture for PublishBatch<'a> {
    type Output = Result<Vec<Published>, PublishError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
