//! Receiving.

use std::time::Duration;

use forebay_broker::api::{CallError, Delivered, Outcome, Receive, Verb};

use super::{Asker, Service};
use crate::sqs::attempts::Given;
use crate::sqs::content::View;
use crate::sqs::queue::Queue;
use crate::sqs::wire::error::{ErrorKind, SqsError};
use crate::sqs::wire::protocol::Action;
use crate::sqs::wire::request::{ReceiveMessage, ReceiveTerms};
use crate::sqs::wire::response::Response;

/// All who receive over this door are one consumer to the group, so that a receive leaves no member of its own behind.
const CONSUMER: &str = "sqs";
/// The limit of the contents of one answer. Messages that turn out not to fit go back as if they had never been
/// received.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The size of an answer, by rough count: an attribute is text in JSON or XML, with a digest beside it.
fn reply_bytes(messages: usize, content: usize) -> usize {
    content + content / 3 + messages * 1_024
}

impl Service {
    pub(super) async fn receive(
        &self,
        asker: &Asker,
        request: &ReceiveMessage,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::ReceiveMessage)?;
        let settings = &queue.about.settings;
        let terms = request.terms(&settings.rules())?;
        let seconds = |of: u32| Duration::from_secs(of.into());
        let visibility = seconds(terms.visibility.unwrap_or(settings.visibility_timeout));
        let given = match self.given_before(asker, &queue, &terms, visibility).await {
            Some(given) => {
                let content = given.iter().map(|(_, delivered)| delivered.content.len()).sum();
                asker.keep(asker.share.count(reply_bytes(given.len(), content)));
                given
            }
            None => {
                let wish = Receive {
                    consumer: CONSUMER.to_owned(),
                    max: terms.max,
                    bytes: Some(ANSWER_BYTES_MAX as u64),
                    wait: seconds(terms.wait.unwrap_or(settings.receive_wait)),
                    timeout: Some(visibility),
                    refuse_when_full: !queue.is_fifo(),
                };
                self.take(asker, &queue, wish).await?
            }
        };
        if let Some(attempt) = terms.attempt_id {
            self.attempts.remember(self.now(), queue.stream_id, attempt, &given);
        }
        let view = View {
            queue: &queue,
            region: &asker.locality.region,
            system: &request.system_attributes,
            attributes: &request.attributes,
        };
        let show = |(receipt, delivered): (String, Delivered)| {
            let (stream, seq) = delivered.home(queue.stream_id);
            view.received(receipt, self.message_id(&queue, stream, seq), &delivered)
        };
        let messages = given.into_iter().map(show).collect::<Result<_, _>>()?;
        Ok(Response::ReceiveMessage { messages })
    }

    async fn take(&self, asker: &Asker, queue: &Queue, wish: Receive) -> Result<Given, SqsError> {
        // Dropped with the request if the client goes: then messages that were handed out meanwhile go back.
        match asker.caller.receive(queue.stream(), queue.group(), wish).await {
            Ok(received) => {
                let bytes = reply_bytes(received.len(), received.bytes_within(ANSWER_BYTES_MAX));
                // Messages that find no room go back as well.
                let Some(hold) = asker.share.take(bytes).await else {
                    return Err(self.failed(queue, &CallError::TooManyBytes).await);
                };
                asker.keep(hold);
                Ok(received.take_within(ANSWER_BYTES_MAX))
            }
            Err(error) => {
                let failure = self.failed(queue, &error).await;
                Err(match failure.kind() {
                    ErrorKind::OverLimit => SqsError::new(
                        ErrorKind::OverLimit,
                        "Too many messages in flight. Delete messages, or let them become visible again.",
                    ),
                    _ => failure,
                })
            }
        }
    }

    /// The messages that the same attempt was given before, if the receiver still holds all of them. They are
    /// hidden anew.
    async fn given_before(
        &self,
        asker: &Asker,
        queue: &Queue,
        terms: &ReceiveTerms,
        visibility: Duration,
    ) -> Option<Given> {
        let attempt = terms.attempt_id.as_deref()?;
        let given = self.attempts.find(self.now(), queue.stream_id, attempt)?;
        if given.is_empty() {
            return None;
        }
        let receipts: Vec<String> = given.iter().map(|(receipt, _)| receipt.clone()).collect();
        let again = Verb::Extend { by: visibility, total_max: None };
        let settled =
            asker.caller.settle(queue.stream(), queue.group(), &receipts, again.into()).await.ok()?;
        settled.iter().all(|settled| *settled == Outcome::Extended).then_some(given)
    }
}
