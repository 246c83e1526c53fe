//! The content of a message: what its producer says of it, and the body. One form for all doors, so that each can show
//! the messages of every other.
//!
//! As it lies in a payload section:
//!
//! ```text
//! flags     1 byte: 1 id, 2 key, 4 type, 8 headers, 16 schema, 32 and 64 the content type, 128 more flags follow
//! more      1 byte, if flagged: 1 there is no body, 2 the content type as text, 4 time of sending,
//!           8 a door's own part, 16 the message that it is a copy of
//! id, key, type            if flagged, each: length (varint) | bytes
//! headers                  if flagged: count (varint), then name and value, each length | bytes
//! schema                   if flagged: varint
//! content type             if flagged: length | bytes
//! time of sending          if flagged: varint, in microseconds since 1970
//! own part                 if flagged: number of the door (1 byte) | length | bytes
//! copied from              if flagged: name of the stream, length | bytes | position, varint
//! body                     the rest
//! ```
//!
//! The content type is 0 if the producer did not say, 32 for JSON, 64 for bytes, 96 for text. Ids, types, names of
//! headers and content types are text. Keys, values of headers, own parts and bodies are bytes.

use forebay_core::codec::{Cursor, DecodeError, put_bytes, put_varint};
use forebay_core::types::{Seq, Timestamp};

use crate::door::Door;

/// A message as its producer gives it, and as a door reads it. Nothing here is copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message<'a> {
    pub id: Option<&'a str>,
    /// Not part of the content.
    pub dedupe: Dedupe<'a>,
    /// A door that speaks in text shows a key that is not UTF-8 in base64.
    pub key: Option<&'a [u8]>,
    pub kind: Option<&'a str>,
    /// Version of the type.
    pub schema: Option<u64>,
    /// In the order of the producer. A name may come several times.
    pub headers: Vec<(&'a str, &'a [u8])>,
    pub body: &'a [u8],
    /// There is no body, as opposed to an empty one. `body` is empty then.
    pub no_body: bool,
    pub content_type: ContentType<'a>,
    /// When its producer says that it was sent, as opposed to the time at which the server stored it.
    pub sent: Option<Timestamp>,
    /// Kept verbatim for the door that wrote it. Other doors do not look at it.
    pub own: Option<Own<'a>>,
    /// The message that it is a copy of. Only the server copies messages.
    pub copied_from: Option<CopiedFrom<'a>>,
    /// Not part of the content, as the next two.
    pub priority: u8,
    pub not_before: Option<Timestamp>,
    pub expires: Option<Timestamp>,
}

/// The message of another stream that a message is a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedFrom<'a> {
    pub stream: &'a str,
    pub seq: Seq,
}

/// How a duplicate of a message is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dedupe<'a> {
    /// By its id, if it has one.
    #[default]
    ById,
    /// By these bytes. The id is only shown. Bytes and ids share one space: the same bytes in either place are a
    /// duplicate.
    By(&'a [u8]),
    /// Not at all. The id is only shown, and takes no room in the memory of ids.
    No,
}

/// The part of a content that belongs to one door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own<'a> {
    /// The number of the door. It may be one that this release does not know.
    number: u8,
    bytes: &'a [u8],
}

impl<'a> Own<'a> {
    pub fn new(door: Door, bytes: &'a [u8]) -> Own<'a> {
        Own { number: door.number(), bytes }
    }

    /// The part, if it belongs to this door.
    pub fn of(self, door: Door) -> Option<&'a [u8]> {
        (self.number == door.number()).then_some(self.bytes)
    }
}

/// What a body is, as its producer says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentType<'a> {
    /// Its producer did not say.
    #[default]
    Unsaid,
    /// `application/json`
    Json,
    /// `text/plain`, in UTF-8.
    Text,
    /// `application/octet-stream`
    Bytes,
    /// Another media type.
    Other(&'a str),
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const BYTES: &str = "application/octet-stream";

impl<'a> ContentType<'a> {
    /// The content type of this name. An empty name says nothing.
    pub fn named(name: &'a str) -> ContentType<'a> {
        match name {
            "" => ContentType::Unsaid,
            JSON => ContentType::Json,
            TEXT => ContentType::Text,
            BYTES => ContentType::Bytes,
            other => ContentType::Other(other),
        }
    }

    /// Its name, unless its producer did not say.
    pub fn name(self) -> Option<&'a str> {
        match self {
            ContentType::Unsaid => None,
            ContentType::Json => Some(JSON),
            ContentType::Text => Some(TEXT),
            ContentType::Bytes => Some(BYTES),
            ContentType::Other(name) => Some(name),
        }
    }
}

mod flag {
    pub(super) const ID: u8 = 1;
    pub(super) const KEY: u8 = 2;
    pub(super) const KIND: u8 = 4;
    pub(super) const HEADERS: u8 = 8;
    pub(super) const SCHEMA: u8 = 16;
    /// Two bits for the content types that are used most.
    pub(super) const JSON: u8 = 32;
    pub(super) const BYTES: u8 = 64;
    pub(super) const TEXT: u8 = JSON | BYTES;
    pub(super) const MORE: u8 = 128;
}

mod more {
    pub(super) const NO_BODY: u8 = 1;
    pub(super) const CONTENT_TYPE: u8 = 2;
    pub(super) const SENT: u8 = 4;
    pub(super) const OWN: u8 = 8;
    pub(super) const COPIED_FROM: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

pub(super) fn put(out: &mut Vec<u8>, message: &Message<'_>) {
    let flag_if = |present: bool, flag: u8| if present { flag } else { 0 };
    let more = flag_if(message.no_body, more::NO_BODY)
        | flag_if(matches!(message.content_type, ContentType::Other(_)), more::CONTENT_TYPE)
        | flag_if(message.sent.is_some(), more::SENT)
        | flag_if(message.own.is_some(), more::OWN)
        | flag_if(message.copied_from.is_some(), more::COPIED_FROM);
    let content_type = match message.content_type {
        ContentType::Unsaid | ContentType::Other(_) => 0,
        ContentType::Json => flag::JSON,
        ContentType::Text => flag::TEXT,
        ContentType::Bytes => flag::BYTES,
    };
    out.push(
        flag_if(message.id.is_some(), flag::ID)
            | flag_if(message.key.is_some(), flag::KEY)
            | flag_if(message.kind.is_some(), flag::KIND)
            | flag_if(!message.headers.is_empty(), flag::HEADERS)
            | flag_if(message.schema.is_some(), flag::SCHEMA)
            | content_type
            | flag_if(more != 0, flag::MORE),
    );
    if more != 0 {
        out.push(more);
    }
    // Not a loop over the three: nearly every message has none of them.
    if let Some(id) = message.id {
        put_bytes(out, id.as_bytes());
    }
    if let Some(key) = message.key {
        put_bytes(out, key);
    }
    if let Some(kind) = message.kind {
        put_bytes(out, kind.as_bytes());
    }
    if !message.headers.is_empty() {
        put_varint(out, message.headers.len() as u64);
        for (name, value) in &message.headers {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value);
        }
    }
    if let Some(schema) = message.schema {
        put_varint(out, schema);
    }
    if more != 0 {
        put_more(out, message);
    }
    if !message.no_body {
        out.extend_from_slice(message.body);
    }
}

fn put_more(out: &mut Vec<u8>, message: &Message<'_>) {
    if let ContentType::Other(name) = message.content_type {
        put_bytes(out, name.as_bytes());
    }
    if let Some(sent) = message.sent {
        put_varint(out, sent.0);
    }
    if let Some(Own { number, bytes }) = message.own {
        out.push(number);
        put_bytes(out, bytes);
    }
    if let Some(CopiedFrom { stream, seq }) = message.copied_from {
        put_bytes(out, stream.as_bytes());
        put_varint(out, seq.0);
    }
}

/// Reads a content without copying any of it. Priority and times are not part of the content.
pub fn parse_content(content: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut cursor = Cursor::new(content);
    let flags = cursor.byte()?;
    let has = |flag| flags & flag != 0;
    let more = if has(flag::MORE) { cursor.byte()? } else { 0 };
    if more & !more::ALL != 0 || (has(flag::MORE) && more == 0) {
        return Err(DecodeError::UnknownField { field: more.into() });
    }
    let content_type = match flags & flag::TEXT {
        0 => ContentType::Unsaid,
        flag::JSON => ContentType::Json,
        flag::BYTES => ContentType::Bytes,
        _ => ContentType::Text,
    };
    let mut message = Message { content_type, ..Message::default() };
    if has(flag::ID) {
        message.id = Some(cursor.text()?);
    }
    if has(flag::KEY) {
        message.key = Some(cursor.bytes()?);
    }
    if has(flag::KIND) {
        message.kind = Some(cursor.text()?);
    }
    if has(flag::HEADERS) {
        for _ in 0..cursor.count()? {
            message.headers.push((cursor.text()?, cursor.bytes()?));
        }
    }
    if has(flag::SCHEMA) {
        message.schema = Some(cursor.varint()?);
    }
    if more != 0 {
        take_more(&mut cursor, more, &mut message)?;
    }
    message.body = cursor.take(cursor.remaining())?;
    if message.no_body && !message.body.is_empty() {
        return Err(DecodeError::OutOfRange("a body that is not there"));
    }
    Ok(message)
}

fn take_more<'a>(cursor: &mut Cursor<'a>, more: u8, message: &mut Message<'a>) -> Result<(), DecodeError> {
    message.no_body = more & more::NO_BODY != 0;
    if more & more::CONTENT_TYPE != 0 {
        let name = cursor.text()?;
        // A type that has bits of its own is not written out, so that a content has one form.
        if message.content_type != ContentType::Unsaid
            || !matches!(ContentType::named(name), ContentType::Other(_))
        {
            return Err(DecodeError::OutOfRange("content type"));
        }
        message.content_type = ContentType::Other(name);
    }
    if more & more::SENT != 0 {
        message.sent = Some(Timestamp(cursor.varint()?));
    }
    if more & more::OWN != 0 {
        message.own = Some(Own { number: cursor.byte()?, bytes: cursor.bytes()? });
    }
    if more & more::COPIED_FROM != 0 {
        message.copied_from = Some(CopiedFrom { stream: cursor.text()?, seq: Seq(cursor.varint()?) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(message: &Message<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, message);
        out
    }

    #[test]
    fn a_plain_message_has_one_byte_beside_its_body() {
        for (content_type, flags) in [
            (ContentType::Unsaid, 0),
            (ContentType::Json, 32),
            (ContentType::Bytes, 64),
            (ContentType::Text, 96),
        ] {
            let message = Message { body: b"x", content_type, ..Message::default() };
            assert_eq!(written(&message), [flags, b'x']);
        }
    }

    #[test]
    fn no_body_differs_from_an_empty_one() {
        let none = Message { no_body: true, ..Message::default() };
        assert_eq!(written(&none), [128, 1]);
        assert_eq!(written(&Message::default()), [0]);
        assert_eq!(parse_content(&[128, 1]), Ok(none));
        assert!(parse_content(&[128, 1, b'x']).is_err(), "a body that is not there has no bytes");
    }

    #[test]
    fn a_content_has_one_form() {
        for (content, why) in [
            (&[128, 0][..], "more flags that say nothing"),
            (&[128, 32], "a flag that is not known"),
            (&[128, 2, 10, b't', b'e', b'x', b't', b'/', b'p', b'l', b'a', b'i', b'n'], "text has its bits"),
            (&[128 | 32, 2, 3, b'a', b'/', b'b'], "two content types"),
            (&[128, 2, 0], "a content type without a name"),
        ] {
            assert!(parse_content(content).is_err(), "{why}");
        }
    }

    #[test]
    fn a_part_is_for_the_door_that_wrote_it() {
        let message = Message { own: Some(Own::new(Door::SQS, b"part")), ..Message::default() };
        let content = written(&message);
        assert_eq!(content, [128, 8, 1, 4, b'p', b'a', b'r', b't']);
        let own = parse_content(&content).expect("a content").own.expect("an own part");
        assert_eq!(own.of(Door::SQS), Some(&b"part"[..]));
        assert_eq!(own.of(Door::TEST), None);
    }

    #[test]
    fn a_content_type_is_known_by_its_name() {
        for name in ["application/json", "text/plain", "application/octet-stream", "image/png", "Text/Plain"]
        {
            assert_eq!(ContentType::named(name).name(), Some(name));
        }
        assert_eq!(ContentType::named("").name(), None);
    }

    fn content_type() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            Just(JSON.to_owned()),
            Just(TEXT.to_owned()),
            Just(BYTES.to_owned()),
            "[a-z]{1,5}/[a-z]{1,5}",
        ]
    }

    proptest! {
        #[test]
        fn a_content_survives_the_round_trip(
            texts: (Option<String>, Option<String>), key: Option<Vec<u8>>, schema: Option<u64>,
            headers: Vec<(String, Vec<u8>)>, body: Option<Vec<u8>>, content_type in content_type(),
            sent: Option<u64>, own: Option<(u8, Vec<u8>)>
        ) {
            let message = Message {
                id: texts.0.as_deref(),
                key: key.as_deref(),
                kind: texts.1.as_deref(),
                schema,
                headers: headers.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
                body: body.as_deref().unwrap_or_default(),
                no_body: body.is_none(),
                content_type: ContentType::named(&content_type),
                sent: sent.map(Timestamp),
                own: own.as_ref().map(|(number, bytes)| Own { number: *number, bytes }),
                ..Message::default()
            };
            let content = written(&message);
            prop_assert_eq!(parse_content(&content), Ok(message));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read_but_never_worse(bytes: Vec<u8>) {
            if let Ok(message) = parse_content(&bytes) {
                let content = written(&message);
                prop_assert_eq!(parse_content(&content), Ok(message), "what is read can be written");
            }
        }

        #[test]
        fn damage_to_a_content_is_refused_or_read_but_never_worse(
            flags: u8, more: u8, rest in prop::collection::vec(0u8..6, 0..40)
        ) {
            let bytes: Vec<u8> = [flags, more].into_iter().chain(rest).collect();
            if let Ok(message) = parse_content(&bytes) {
                let content = written(&message);
                prop_assert_eq!(parse_content(&content), Ok(message));
            }
        }
    }
}
