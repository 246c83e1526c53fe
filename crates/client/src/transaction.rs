//! Messages for several streams that are stored together or not at all: by themselves with
//! [`Client::publish_all`], or with the acknowledgement of a message with
//! [`JobInfo::finish_with`](crate::JobInfo::finish_with).

use std::time::Duration;

use forebay_wire::v1;

use crate::client::Client;
use crate::clock;
use crate::error::{Advice, CallError, PublishError, Refusal, in_words};
use crate::message::IntoMessage;
use crate::publish::Published;

/// The wait before the next try: twice as long each time.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// Messages, each for a stream, that are stored together or not at all.
///
/// A transaction takes 8 MiB of messages for 1,000 streams at most, and 10,000 messages for one stream.
///
/// ```
/// use forebay_client::{Message, MessageSet};
///
/// # fn main() -> Result<(), forebay_client::PublishError> {
/// let messages = MessageSet::new()
///     .add("invoices", Message::new("invoice 17"))?
///     .add("audit", Message::new("invoice 17 was made"))?;
/// assert_eq!(messages.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct MessageSet {
    /// By stream, in the order in which streams were first named.
    parts: Vec<v1::Publication>,
    /// The part and the place in it of each message, in the order in which they were added.
    places: Vec<(usize, usize)>,
}

impl MessageSet {
    /// Without a message.
    pub fn new() -> MessageSet {
        MessageSet::default()
    }

    /// Adds a message for a stream, which is created if it does not exist. Fails if a payload cannot be serialized.
    pub fn add(
        mut self,
        stream: impl Into<String>,
        message: impl IntoMessage,
    ) -> Result<MessageSet, PublishError> {
        self.push(stream, message)?;
        Ok(self)
    }

    /// The same, in place.
    pub fn push(&mut self, stream: impl Into<String>, message: impl IntoMessage) -> Result<(), PublishError> {
        let message = message.into_message()?.0;
        let stream = stream.into();
        let part = match self.parts.iter().position(|part| part.stream == stream) {
            Some(part) => part,
            None => {
                self.parts.push(v1::Publication { stream, ..Default::default() });
                self.parts.len() - 1
            }
        };
        let messages = &mut self.parts[part].messages;
        self.places.push((part, messages.len()));
        messages.push(message);
        Ok(())
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// As the wire has it.
    pub(crate) fn into_wire(self) -> Vec<v1::Publication> {
        self.parts
    }

    /// Gives each message without an id a random one, so that a second try stores nothing twice.
    fn name(&mut self) -> Result<(), PublishError> {
        let nameless = |message: &&mut v1::Message| message.id.is_empty();
        for message in self.parts.iter_mut().flat_map(|part| &mut part.messages).filter(nameless) {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).map_err(|error| PublishError::NotInTime {
                detail: format!("the system has no random numbers: {error}"),
                is_disconnected: false,
            })?;
            message.id = format!("{:032x}", u128::from_le_bytes(bytes));
        }
        Ok(())
    }

    /// Where each message is, in the order in which they were added.
    fn published(self, confirmations: &[v1::Confirmation]) -> Vec<Published> {
        let places: Vec<Vec<(u64, Option<u64>)>> = self
            .parts
            .iter()
            .enumerate()
            .map(|(part, publication)| {
                let unknown = v1::Confirmation::default();
                places(confirmations.get(part).unwrap_or(&unknown), publication.messages.len())
            })
            .collect();
        let published = |&(part, at): &(usize, usize)| {
            let (seq, log_position) = places[part][at];
            let duplicate = log_position.is_none();
            let id = &self.parts[part].messages[at].id;
            Published { seq, duplicate, id: (!id.is_empty()).then(|| id.clone()), log_position }
        };
        self.places.iter().map(published).collect()
    }
}

/// The position of each of the messages of a batch, and its position in the log unless it was stored before.
fn places(confirmation: &v1::Confirmation, count: usize) -> Vec<(u64, Option<u64>)> {
    let mut new = 0;
    let mut duplicates = confirmation.duplicates.iter().peekable();
    (0..count)
        .map(|at| match duplicates.next_if(|duplicate| duplicate.index as usize == at) {
            Some(duplicate) => (duplicate.seq, None),
            None => {
                new += 1;
                (confirmation.first_seq + new - 1, Some(confirmation.first_log_position + new - 1))
            }
        })
        .collect()
}

impl Client {
    /// Publishes messages to several streams in one transaction: all of them are stored, or none. Resolves when they
    /// are durable, with the place of each in the order in which they were added.
    ///
    /// A message without an id gets a random one. If the server cannot store the messages now, or if it is not known
    /// whether it did, they are sent again for as long as the client's `retry_for` says; by their ids none is stored
    /// twice within the dedupe window of its stream.
    ///
    /// ```
    /// # use forebay_test::TestServer;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = TestServer::start().await?;
    /// # let client = forebay_client::Client::connect(server.url()).await?;
    /// use forebay_client::{Message, MessageSet};
    ///
    /// let messages = MessageSet::new()
    ///     .add("orders", Message::new("order 4"))?
    ///     .add("audit", Message::new("order 4 was placed"))?;
    /// let published = client.publish_all(messages).await?;
    /// assert_eq!(published.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish_all(&self, messages: MessageSet) -> Result<Vec<Published>, PublishError> {
        let mut messages = messages;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        messages.name()?;
        let request = v1::CommitRequest { settle: Vec::new(), publish: messages.parts.clone() };
        let deadline = clock::after(self.retry_for());
        let (mut wait, mut is_unknown) = (AGAIN_MIN, false);
        loop {
            let mut grpc = self.grpc();
            let error = match tokio::time::timeout_at(deadline, grpc.commit(request.clone())).await {
                Ok(Ok(reply)) => return Ok(messages.published(&reply.into_inner().published)),
                Ok(Err(status)) => CallError::from(status),
                Err(_) => CallError::from(tonic::Status::deadline_exceeded("the server did not answer")),
            };
            let advice = error.advice();
            is_unknown |= advice == Advice::RetryWithSameId;
            if advice == Advice::FixRequest && !is_unknown {
                let refusal = Refusal::from_kind(error.kind());
                return Err(PublishError::Refused { refusal, detail: in_words(&error) });
            }
            if advice == Advice::FixRequest || clock::now() + wait >= deadline {
                let is_disconnected = matches!(error, CallError::Unreachable(_) | CallError::Broken(_));
                let detail = in_words(&error);
                return Err(match is_unknown {
                    true => PublishError::Unknown { detail, is_disconnected },
                    false => PublishError::NotInTime { detail, is_disconnected },
                });
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn messages_are_told_where_they_are_in_the_order_in_which_they_were_added() {
        let mut set = MessageSet::new();
        for (stream, id) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")] {
            set.push(stream, Message::new("x").id(id)).expect("bytes need no serializer");
        }
        assert_eq!((set.len(), set.parts.len()), (4, 2));
        let first = v1::Confirmation {
            first_seq: 7,
            count: 2,
            duplicates: vec![v1::Duplicate { index: 1, seq: 3 }],
            ..Default::default()
        };
        let second = v1::Confirmation { first_seq: 20, count: 1, ..Default::default() };
        let published = set.published(&[first, second]);
        let told: Vec<_> =
            published.iter().map(|of| (of.id.as_deref().unwrap_or(""), of.seq, of.duplicate)).collect();
        assert_eq!(told, [("1", 7, false), ("2", 20, false), ("3", 3, true), ("4", 8, false)]);
    }

    #[test]
    fn messages_without_an_id_get_one_and_others_keep_theirs() {
        let set = MessageSet::new()
            .add("a", Message::new("x"))
            .and_then(|set| set.add("b", Message::new("y").id("own")));
        let mut set = set.expect("bytes need no serializer");
        set.name().expect("there are random numbers");
        let ids: Vec<&str> = set.parts.iter().map(|part| &part.messages[0].id[..]).collect();
        assert_eq!((ids[0].len(), ids[1]), (32, "own"));
    }
}
