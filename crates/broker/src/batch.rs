//! Messages on their way in: what the core needs to know of each, and the bytes that storage keeps.
//!
//! A door builds the batch on its own task, so that hashing and copying do not cost the shard's.
//!
//! Content of a message, as it lies in a payload section:
//!
//! ```text
//! flags     1 byte: 1 id, 2 key, 4 type, 8 headers, 16 schema, 32 the body is JSON, 64 the body is bytes
//! id, key, type            if flagged, each: length (varint) | bytes
//! headers                  if flagged: count (varint), then name and value, each length | bytes
//! schema                   if flagged: varint
//! body                     the rest
//! ```

use std::time::Duration;

use bytes::Bytes;
use forebay_core::codec::{Cursor, DecodeError, put_bytes, put_varint};
use forebay_core::entry::MessageMeta;
use forebay_core::types::{IdHash, KeyHash, Timestamp};

/// A message as its producer gives it. Nothing here has been stored yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message<'a> {
    pub id: Option<&'a str>,
    /// The bytes by which a duplicate is recognised, if not by the id, which is then only shown. They are not part
    /// of the content, and share one space with ids: the same bytes in either place are a duplicate.
    pub dedupe: Option<&'a [u8]>,
    pub key: Option<&'a str>,
    pub kind: Option<&'a str>,
    /// Version of the type.
    pub schema: Option<u64>,
    pub headers: Vec<(&'a str, &'a str)>,
    pub body: &'a [u8],
    pub form: BodyForm,
    pub priority: u8,
    pub not_before: Option<Timestamp>,
    pub expires: Option<Timestamp>,
}

/// The form of a body as its producer gave it, so that a door that speaks in text returns it in the same
/// form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyForm {
    /// Nothing. It may be anything.
    #[default]
    Unsaid,
    /// It is JSON.
    Json,
    /// It is bytes, whatever they look like.
    Bytes,
}

mod flag {
    pub(super) const ID: u8 = 1;
    pub(super) const KEY: u8 = 2;
    pub(super) const KIND: u8 = 4;
    pub(super) const HEADERS: u8 = 8;
    pub(super) const SCHEMA: u8 = 16;
    pub(super) const JSON: u8 = 32;
    pub(super) const BYTES: u8 = 64;
    pub(super) const ALL: u8 = 127;
}

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

    pub fn push(&mut self, message: &Message<'_>) {
        let start = self.contents.len();
        put_content(&mut self.contents, message);
        self.metas.push(MessageMeta {
            size: u32::try_from(self.contents.len() - start).unwrap_or(u32::MAX),
            id: message.dedupe.or(message.id.map(str::as_bytes)).map(id_hash),
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

fn put_content(out: &mut Vec<u8>, message: &Message<'_>) {
    let flag_if = |present: bool, flag: u8| if present { flag } else { 0 };
    out.push(
        flag_if(message.id.is_some(), flag::ID)
            | flag_if(message.key.is_some(), flag::KEY)
            | flag_if(message.kind.is_some(), flag::KIND)
            | flag_if(!message.headers.is_empty(), flag::HEADERS)
            | flag_if(message.schema.is_some(), flag::SCHEMA)
            | flag_if(message.form == BodyForm::Json, flag::JSON)
            | flag_if(message.form == BodyForm::Bytes, flag::BYTES),
    );
    // Not a loop over the three: nearly every message has none of them.
    if let Some(id) = message.id {
        put_bytes(out, id.as_bytes());
    }
    if let Some(key) = message.key {
        put_bytes(out, key.as_bytes());
    }
    if let Some(kind) = message.kind {
        put_bytes(out, kind.as_bytes());
    }
    if !message.headers.is_empty() {
        put_varint(out, message.headers.len() as u64);
        for (name, value) in &message.headers {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }
    if let Some(schema) = message.schema {
        put_varint(out, schema);
    }
    out.extend_from_slice(message.body);
}

/// Reads a content without copying any of it. Priority and times are not part of the content.
pub fn parse_content(content: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut cursor = Cursor::new(content);
    let flags = cursor.byte()?;
    if flags & !flag::ALL != 0 {
        return Err(DecodeError::UnknownField { field: flags.into() });
    }
    let has = |flag| flags & flag != 0;
    let form = match (has(flag::JSON), has(flag::BYTES)) {
        (false, false) => BodyForm::Unsaid,
        (true, false) => BodyForm::Json,
        (false, true) => BodyForm::Bytes,
        (true, true) => return Err(DecodeError::UnknownField { field: flags.into() }),
    };
    let mut message = Message { form, ..Message::default() };
    if has(flag::ID) {
        message.id = Some(cursor.text()?);
    }
    if has(flag::KEY) {
        message.key = Some(cursor.text()?);
    }
    if has(flag::KIND) {
        message.kind = Some(cursor.text()?);
    }
    if has(flag::HEADERS) {
        for _ in 0..cursor.count()? {
            message.headers.push((cursor.text()?, cursor.text()?));
        }
    }
    if has(flag::SCHEMA) {
        message.schema = Some(cursor.varint()?);
    }
    message.body = cursor.take(cursor.remaining())?;
    Ok(message)
}

/// Ids are compared by this hash alone, so it has to be collision-resistant.
fn id_hash(id: &[u8]) -> IdHash {
    let hash = blake3::hash(id);
    IdHash(u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes")))
}

fn key_hash(key: &str) -> KeyHash {
    let hash = blake3::hash(key.as_bytes());
    KeyHash(u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes")))
}

/// A delay as a time, for doors that are told "in five seconds".
pub fn after(now: Timestamp, delay: Option<Duration>) -> Option<Timestamp> {
    delay.filter(|delay| !delay.is_zero()).map(|delay| now + delay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duplicate_may_be_recognised_by_something_else_than_the_id_that_is_shown() {
        let mut builder = BatchBuilder::default();
        let message = Message { id: Some("shown"), ..Message::default() };
        builder.push(&message);
        builder.push(&Message { dedupe: Some(b"hidden"), ..message.clone() });
        builder.push(&Message { id: Some("hidden"), ..Message::default() });
        builder.push(&Message { dedupe: Some(b"hidden"), ..Message::default() });
        let batch = builder.build();
        let ids: Vec<_> = batch.metas.iter().map(|meta| meta.id.expect("each has one")).collect();
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids[1..], [ids[1]; 3], "one space for both");
        let size = batch.metas[0].size as usize;
        let (first, rest) = batch.contents.split_at(size);
        assert_eq!(first, &rest[..size], "what it is recognised by is not part of the content");
        assert_eq!(parse_content(first).expect("a content").id, Some("shown"));
    }

    proptest! {
        #[test]
        fn a_content_survives_the_round_trip(
            id: Option<String>, key: Option<String>, kind: Option<String>, schema: Option<u64>,
            headers: Vec<(String, String)>, body: Vec<u8>, form in 0usize..3
        ) {
            let message = Message {
                id: id.as_deref(),
                key: key.as_deref(),
                kind: kind.as_deref(),
                schema,
                headers: headers.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
                body: &body,
                form: [BodyForm::Unsaid, BodyForm::Json, BodyForm::Bytes][form],
                ..Message::default()
            };
            let mut builder = BatchBuilder::default();
            builder.push(&message);
            let batch = builder.build();
            prop_assert_eq!(parse_content(&batch.contents), Ok(message));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read_but_never_worse(bytes: Vec<u8>) {
            let _ = parse_content(&bytes);
        }
    }
}
