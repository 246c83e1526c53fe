//! Messages on their way in: what the core needs to know of each, and the bytes that storage keeps.
//!
//! A door builds the batch on its own task, so that hashing and copying do not cost the shard's. `content` has the form
//! in which a message is kept.

mod content;

use std::time::Duration;

use bytes::Bytes;
use forebay_core::entry::MessageMeta;
use forebay_core::types::{IdHash, KeyHash, Seq, Timestamp};

pub use content::{ContentType, CopiedFrom, Dedupe, Message, Own, parse_content};

/// Messages that are stored whole or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) metas: Vec<MessageMeta>,
    /// Their contents, one after the other.
    pub(crate) contents: Bytes,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// Their contents, one after the other.
    pub fn contents(&self) -> &Bytes {
        &self.contents
    }

    /// Bytes of all contents together.
    pub fn bytes(&self) -> usize {
        self.contents.len()
    }
}

/// Collects messages into a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    metas: Vec<MessageMeta>,
    contents: Vec<u8>,
}

impl BatchBuilder {
    pub fn with_capacity(messages: usize, bytes: usize) -> BatchBuilder {
        BatchBuilder { metas: Vec::with_capacity(messages), contents: Vec::with_capacity(bytes) }
    }

    /// Adds a copy of a message of another stream. Groups that look at keys treat a copy without a key as one of the
    /// key that is the name of that stream, so that they keep its order.
    pub fn push_copy(&mut self, message: &Message<'_>, stream: &str, seq: Seq) {
        let copy =
            Message { dedupe: Dedupe::No, copied_from: Some(CopiedFrom { stream, seq }), ..message.clone() };
        self.push(&copy);
        if let Some(meta) = self.metas.last_mut() {
            meta.key.get_or_insert_with(|| key_hash(stream.as_bytes()));
        }
    }

    pub fn push(&mut self, message: &Message<'_>) {
        let start = self.contents.len();
        content::put(&mut self.contents, message);
        self.metas.push(MessageMeta {
            size: u32::try_from(self.contents.len() - start).unwrap_or(u32::MAX),
            id: match message.dedupe {
                Dedupe::ById => message.id.map(|id| id_hash(id.as_bytes())),
                Dedupe::By(bytes) => Some(id_hash(bytes)),
                Dedupe::No => None,
            },
            key: message.key.map(key_hash),
            priority: message.priority,
            not_before: message.not_before,
            expires: message.expires,
            origin: None,
        });
    }

    pub fn build(self) -> Batch {
        Batch { metas: self.metas, contents: self.contents.into() }
    }
}

/// Ids are compared by this hash alone, so it has to be collision-resistant.
fn id_hash(id: &[u8]) -> IdHash {
    let hash = blake3::hash(id);
    IdHash(u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes")))
}

fn key_hash(key: &[u8]) -> KeyHash {
    let hash = blake3::hash(key);
    KeyHash(u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes")))
}

/// A delay as a time, for doors that are told "in five seconds".
pub fn after(now: Timestamp, delay: Option<Duration>) -> Option<Timestamp> {
    delay.filter(|delay| !delay.is_zero()).map(|delay| now + delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_where_it_comes_from_and_keeps_the_order_of_its_stream() {
        let mut builder = BatchBuilder::default();
        let message = Message { id: Some("1"), body: b"x", ..Message::default() };
        builder.push_copy(&message, "orders-7", Seq(300));
        builder.push_copy(&Message { key: Some(b"k"), ..message.clone() }, "orders-7", Seq(301));
        let batch = builder.build();
        assert_eq!(batch.metas[0].key, Some(key_hash(b"orders-7")));
        assert_eq!(batch.metas[1].key, Some(key_hash(b"k")));
        assert_eq!(
            (batch.metas[0].id, batch.metas[1].id),
            (None, None),
            "each message is copied once anyway"
        );
        let copied = parse_content(&batch.contents[..batch.metas[0].size as usize]).expect("a content");
        let copied_from = Some(CopiedFrom { stream: "orders-7", seq: Seq(300) });
        assert_eq!(copied, Message { copied_from, ..message });
    }

    #[test]
    fn a_duplicate_may_be_recognised_by_something_else_than_the_id_that_is_shown() {
        let mut builder = BatchBuilder::default();
        let message = Message { id: Some("shown"), ..Message::default() };
        builder.push(&message);
        builder.push(&Message { dedupe: Dedupe::By(b"hidden"), ..message.clone() });
        builder.push(&Message { id: Some("hidden"), ..Message::default() });
        builder.push(&Message { dedupe: Dedupe::By(b"hidden"), ..Message::default() });
        builder.push(&Message { dedupe: Dedupe::No, ..message });
        let batch = builder.build();
        let (last, others) = batch.metas.split_last().expect("five messages");
        assert_eq!(last.id, None, "an id that is only shown is not remembered");
        let ids: Vec<_> = others.iter().map(|meta| meta.id.expect("each has one")).collect();
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids[1..], [ids[1]; 3], "one space for both");
        let size = batch.metas[0].size as usize;
        let (first, rest) = batch.contents.split_at(size);
        assert_eq!(first, &rest[..size], "what it is recognised by is not part of the content");
        assert_eq!(parse_content(first).expect("a content").id, Some("shown"));
    }
}
