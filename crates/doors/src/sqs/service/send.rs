//! Sending, one or a batch.

use std::sync::Arc;

use forebay_broker::api::{BatchBuilder, PublishError};
use forebay_core::types::Seq;

use super::{Asker, Service};
use crate::sqs::content;
use crate::sqs::failure;
use crate::sqs::queue::Queue;
use crate::sqs::wire::error::{ErrorKind, SqsError};
use crate::sqs::wire::message::Message;
use crate::sqs::wire::protocol::Action;
use crate::sqs::wire::request::{SendMessage, SendMessageBatch};
use crate::sqs::wire::response::{Batch, Response, Sent, SentEntry};

/// What a message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 128;

impl Service {
    pub(super) async fn send(&self, asker: &Asker, request: SendMessage) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::SendMessage)?;
        let message = request.message(&queue.about.settings.rules())?;
        let sent = self.store(asker, &queue, &[&message]).await?;
        let sent = sent.into_iter().next();
        let nothing = || SqsError::new(ErrorKind::InternalFailure, "The message was not answered.");
        sent.map(Response::SendMessage).ok_or_else(nothing)
    }

    pub(super) async fn send_batch(
        &self,
        asker: &Asker,
        request: SendMessageBatch,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::SendMessage)?;
        let mut failed = Vec::new();
        let mut good = Vec::new();
        for entry in request.messages(&queue.about.settings.rules())? {
            match entry.content {
                Ok(message) => good.push((entry.id, message)),
                Err(error) => failed.push((entry.id, error)),
            }
        }
        let messages: Vec<&Message> = good.iter().map(|(_, message)| message).collect();
        let sent =
            if messages.is_empty() { Vec::new() } else { self.store(asker, &queue, &messages).await? };
        let successful = good.into_iter().zip(sent).map(|((id, _), sent)| SentEntry { id, sent }).collect();
        Ok(Response::SendMessageBatch(Batch { successful, failed }))
    }

    /// Stores messages, all or none, and says what each sender is told.
    async fn store(
        &self,
        asker: &Asker,
        queue: &Arc<Queue>,
        messages: &[&Message],
    ) -> Result<Vec<Sent>, SqsError> {
        let is_first_with_group = !queue.is_fifo()
            && !queue.about.is_fair
            && messages.iter().any(|message| message.group_id.is_some());
        if is_first_with_group {
            self.make_fair(asker, queue).await?;
        }
        let bytes = messages.iter().map(|message| message.body.len() + CONTENT_OVERHEAD).sum();
        let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
        let now = self.now();
        for message in messages {
            content::put(&mut batch, now, queue, &asker.locality.account, message);
        }
        let batch = batch.build();
        let room = self.broker.room(&queue.stream, &batch).await;
        let published = asker.caller.publish_to_existing(room, queue.stream.clone(), batch).await;
        let published = match published {
            Ok(published) => published.get(),
            Err(error) => return Err(self.not_stored(queue, &error).await),
        };
        // A duplicate is answered as the original was.
        let seqs = published.each().map(|(admission, _)| admission.seq);
        let told = |(message, seq): (&&Message, Seq)| {
            let number = queue.is_fifo().then(|| content::sequence_number(seq.0));
            content::sent(message, self.message_id(queue, queue.stream_id, seq), number)
        };
        Ok(messages.iter().zip(seqs).map(told).collect())
    }

    /// From now on the groups of a standard queue take turns. Before its first message with a group there are none,
    /// and a queue that looks at groups looks at every message.
    async fn make_fair(&self, asker: &Asker, queue: &Queue) -> Result<(), SqsError> {
        let url = asker.url(&queue.id);
        self.change(asker, &url, Action::SendMessage, |about, _| {
            about.is_fair = true;
            Ok(())
        })
        .await
        .map(drop)
    }

    async fn not_stored(&self, queue: &Queue, error: &PublishError) -> SqsError {
        let failure = failure::of_publish(error);
        if failure.kind() == ErrorKind::QueueDoesNotExist {
            self.registry.forget(queue).await;
        }
        failure
    }
}
