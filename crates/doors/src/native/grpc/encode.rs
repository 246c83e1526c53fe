//! Stored messages, written straight into replies.
//!
//! [`convert`](super::convert) makes a value of a message, for replies with few of them. A message that is written here
//! has the same bytes on the wire, which a test compares.

use bytes::Bytes;
use forebay_broker::api::{Found, Message, parse_content};
use forebay_core::types::Timestamp;
use forebay_wire::encoded::{Encoded, Field, len_with};

use crate::native::problem::Refusal;
use crate::native::service::Answer;

/// The tag of the body.
const BODY: u32 = 1;
/// The tag of a header.
const HEADER: u32 = 6;

/// A message as it is shown to a client.
pub(super) struct Shown<'a> {
    content: &'a Bytes,
    parsed: Message<'a>,
    priority: u8,
    published: Timestamp,
    expires_at: u64,
    log_position: u64,
    /// Of its fields, without a tag.
    len: usize,
}

impl<'a> Shown<'a> {
    /// One that is delivered.
    pub(super) fn delivered(content: &'a Bytes, priority: u8, published: Timestamp) -> Answer<Shown<'a>> {
        Shown::parse(content, priority, published, 0, 0)
    }

    /// One that is read.
    pub(super) fn found(of: &'a Found) -> Answer<Shown<'a>> {
        let expires_at = of.extra.expires.map_or(0, |at| at.0);
        Shown::parse(&of.content, of.extra.priority, of.published(), expires_at, of.ordinal.0)
    }

    fn parse(
        content: &'a Bytes,
        priority: u8,
        published: Timestamp,
        expires_at: u64,
        log_position: u64,
    ) -> Answer<Shown<'a>> {
        let parsed = parse_content(content).map_err(|error| Refusal::damaged(&error))?;
        let mut shown = Shown { content, parsed, priority, published, expires_at, log_position, len: 0 };
        let mut len = Field::Bytes(shown.parsed.body).len_with(BODY);
        shown.each_field(|tag, field| len += field.len_with(tag));
        shown.len = len;
        Ok(shown)
    }

    /// How many bytes it takes as a field with this tag.
    pub(super) fn len_with(&self, tag: u32) -> usize {
        len_with(tag, self.len)
    }

    /// Writes it as a field with this tag.
    pub(super) fn put(&self, tag: u32, out: &mut Encoded) {
        out.begin(tag, self.len);
        out.part(BODY, self.parsed.body, self.content);
        self.each_field(|tag, field| match field {
            Shape::Plain(field) => out.field(tag, field),
            Shape::Header(header) => {
                out.begin(tag, header.len());
                header.each_field(|tag, field| out.field(tag, field));
            }
        });
    }

    /// Every field but the body, in the order of their tags.
    fn each_field(&self, mut each: impl FnMut(u32, Shape<'_>)) {
        let Message { id, key, kind, schema, headers, content_type, no_body, copied_from, .. } = &self.parsed;
        let (key, key_bytes) = text_or_bytes(key.unwrap_or_default());
        let mut plain = |tag, field| each(tag, Shape::Plain(field));
        plain(2, text(*id));
        plain(3, Field::Bytes(key));
        plain(4, text(*kind));
        if let Some(schema) = schema {
            plain(5, Field::Given(*schema));
        }
        for (name, value) in headers {
            each(HEADER, Shape::Header(Header { name, value }));
        }
        let mut plain = |tag, field| each(tag, Shape::Plain(field));
        plain(7, Field::Number(self.priority.into()));
        plain(11, Field::Fixed(self.published.0));
        plain(12, Field::Fixed(self.expires_at));
        plain(13, Field::Number(self.log_position));
        plain(14, text(content_type.name()));
        plain(15, Field::Number((*no_body).into()));
        plain(16, Field::Bytes(key_bytes));
        if let Some(from) = copied_from {
            plain(17, text(Some(from.stream)));
            plain(18, Field::Number(from.seq.0));
        }
    }
}

enum Shape<'a> {
    Plain(Field<'a>),
    Header(Header<'a>),
}

impl Shape<'_> {
    fn len_with(&self, tag: u32) -> usize {
        match self {
            Shape::Plain(field) => field.len_with(tag),
            Shape::Header(header) => len_with(tag, header.len()),
        }
    }
}

struct Header<'a> {
    name: &'a str,
    value: &'a [u8],
}

impl Header<'_> {
    fn each_field(&self, mut each: impl FnMut(u32, Field<'_>)) {
        let (value, value_bytes) = text_or_bytes(self.value);
        each(1, text(Some(self.name)));
        each(2, Field::Bytes(value));
        each(3, Field::Bytes(value_bytes));
    }

    fn len(&self) -> usize {
        let mut len = 0;
        self.each_field(|tag, field| len += field.len_with(tag));
        len
    }
}

fn text(text: Option<&str>) -> Field<'_> {
    Field::Bytes(text.unwrap_or_default().as_bytes())
}

/// A value as text if it can be, and otherwise as bytes.
fn text_or_bytes(value: &[u8]) -> (&[u8], &[u8]) {
    if std::str::from_utf8(value).is_ok() { (value, &[]) } else { (&[], value) }
}

#[cfg(test)]
mod tests {
    use forebay_broker::api::{BatchBuilder, ContentType, CopiedFrom};
    use forebay_core::types::Seq;
    use forebay_wire::v1;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::convert;
    use super::*;

    fn content(message: &Message<'_>) -> Bytes {
        let mut batch = BatchBuilder::with_capacity(1, 100);
        batch.push(message);
        batch.build().contents().clone()
    }

    proptest! {
        #[test]
        fn a_message_is_written_as_its_value_would_be(
            id in option::of("[a-zé]{0,9}"),
            key in option::of(vec(any::<u8>(), 0..9)),
            kind in option::of("[a-z]{0,9}"),
            schema in option::of(prop_oneof![Just(0), any::<u64>()]),
            headers in vec(("[a-z]{0,9}", vec(any::<u8>(), 0..3)), 0..4),
            body in prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 1_000..1_100)],
            content_type in prop_oneof![Just(""), Just("text/plain"), Just("image/png")],
            no_body in any::<bool>(),
            copied in option::of(("[a-z]{1,9}", any::<u64>())),
            priority in 0_u8..10,
            times in [any::<u64>(), any::<u64>(), any::<u64>()],
        ) {
            let content = content(&Message {
                id: id.as_deref(),
                key: key.as_deref(),
                kind: kind.as_deref(),
                schema,
                headers: headers.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
                body: if no_body { &[] } else { &body },
                no_body,
                content_type: ContentType::named(content_type),
                copied_from: copied.as_ref().map(|(stream, seq)| CopiedFrom { stream, seq: Seq(*seq) }),
                ..Message::default()
            });
            let [published, expires_at_us, log_position] = times;
            let published = Timestamp(published);
            let value = convert::message(&content, priority, published).expect("a message");
            let value = v1::Message { expires_at_us, log_position, ..value };
            let shown = Shown::parse(&content, priority, published, expires_at_us, log_position);
            let shown = shown.expect("a message");
            let mut encoded = Encoded::default();
            shown.put(v1::Deliveries::MESSAGES, &mut encoded);
            let direct = v1::Deliveries { encoded, ..v1::Deliveries::default() };
            let plain = v1::Deliveries { messages: vec![value], ..v1::Deliveries::default() };
            prop_assert_eq!(shown.len_with(v1::Deliveries::MESSAGES), plain.encoded_len());
            prop_assert_eq!(direct.encode_to_vec(), plain.encode_to_vec());
        }
    }
}
