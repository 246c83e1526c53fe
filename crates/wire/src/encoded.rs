//! Replies with many messages.
//!
//! A message as a value of its own has a dozen texts and lists. A server that made one of each stored message, only to
//! take it apart again, would spend much of its time on that. So these replies are written by hand instead of being
//! generated: a client finds the messages of a reply in `messages`, and a server may write them to `encoded` instead,
//! in the form that they have on the wire. Both forms are one field of the protocol.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType, encode_varint, encoded_len_varint};
use prost::{DecodeError, Message};

use crate::v1;

/// A body of this size is not copied before the reply is written.
const LARGE: usize = 1 << 10;

/// Messages in their encoded form, each with its tag and its length before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Encoded {
    bytes: Vec<u8>,
    /// Large parts, each with its place in `bytes`.
    parts: Vec<(usize, Bytes)>,
    parts_len: usize,
}

/// The value of a field. One that is empty is not written.
#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    /// A text, or bytes.
    Bytes(&'a [u8]),
    Number(u64),
    /// A number that is written even if it is zero.
    Given(u64),
    /// Eight bytes.
    Fixed(u64),
}

impl Field<'_> {
    #[inline]
    fn is_written(self) -> bool {
        match self {
            Field::Bytes(bytes) => !bytes.is_empty(),
            Field::Number(number) | Field::Fixed(number) => number != 0,
            Field::Given(_) => true,
        }
    }

    /// How many bytes it takes, with its tag.
    #[inline]
    pub fn len_with(self, tag: u32) -> usize {
        if !self.is_written() {
            return 0;
        }
        match self {
            Field::Bytes(bytes) => len_with(tag, bytes.len()),
            Field::Number(number) | Field::Given(number) => {
                encoding::key_len(tag) + encoded_len_varint(number)
            }
            Field::Fixed(_) => encoding::key_len(tag) + 8,
        }
    }
}

/// How many bytes a part of this length takes, with its tag and its length.
#[inline]
pub fn len_with(tag: u32, len: usize) -> usize {
    encoding::key_len(tag) + encoded_len_varint(len as u64) + len
}

impl Encoded {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn encoded_len(&self) -> usize {
        self.bytes.len() + self.parts_len
    }

    /// Makes room for so many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Begins a part whose fields, of this length in all, follow.
    #[inline]
    pub fn begin(&mut self, tag: u32, len: usize) {
        encoding::encode_key(tag, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(len as u64, &mut self.bytes);
    }

    #[inline]
    pub fn field(&mut self, tag: u32, field: Field<'_>) {
        if !field.is_written() {
            return;
        }
        match field {
            Field::Bytes(bytes) => {
                self.begin(tag, bytes.len());
                self.bytes.extend_from_slice(bytes);
            }
            Field::Number(number) | Field::Given(number) => {
                encoding::encode_key(tag, WireType::Varint, &mut self.bytes);
                encode_varint(number, &mut self.bytes);
            }
            Field::Fixed(number) => {
                encoding::encode_key(tag, WireType::SixtyFourBit, &mut self.bytes);
                self.bytes.put_u64_le(number);
            }
        }
    }

    /// A field of bytes that are a part of `whole`. Many bytes are not copied.
    #[inline]
    pub fn part(&mut self, tag: u32, part: &[u8], whole: &Bytes) {
        if part.len() < LARGE {
            return self.field(tag, Field::Bytes(part));
        }
        self.begin(tag, part.len());
        self.parts.push((self.bytes.len(), whole.slice_ref(part)));
        self.parts_len += part.len();
    }

    fn put(&self, out: &mut impl BufMut) {
        let mut from = 0;
        for (at, part) in &self.parts {
            out.put_slice(&self.bytes[from..*at]);
            out.put_slice(part);
            from = *at;
        }
        out.put_slice(&self.bytes[from..]);
    }
}

/// Messages for a consumer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deliveries {
    pub epoch: u32,
    pub runs: Vec<v1::DeliveryRun>,
    /// The messages of all runs, one after the other.
    pub messages: Vec<v1::Message>,
    pub encoded: Encoded,
    /// The server's time when these were sent, so that a consumer whose clock differs can tell how long its leases
    /// last.
    pub now_us: u64,
}

impl Deliveries {
    /// The tag of a message.
    pub const MESSAGES: u32 = 3;
}

impl Message for Deliveries {
    fn encode_raw(&self, out: &mut impl BufMut) {
        if self.epoch != 0 {
            encoding::uint32::encode(1, &self.epoch, out);
        }
        encoding::message::encode_repeated(2, &self.runs, out);
        encoding::message::encode_repeated(Deliveries::MESSAGES, &self.messages, out);
        self.encoded.put(out);
        if self.now_us != 0 {
            encoding::fixed64::encode(4, &self.now_us, out);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => encoding::uint32::merge(kind, &mut self.epoch, from, context),
            2 => encoding::message::merge_repeated(kind, &mut self.runs, from, context),
            Deliveries::MESSAGES => {
                encoding::message::merge_repeated(kind, &mut self.messages, from, context)
            }
            4 => encoding::fixed64::merge(kind, &mut self.now_us, from, context),
            _ => encoding::skip_field(kind, tag, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let epoch = Field::Number(self.epoch.into()).len_with(1);
        let runs = encoding::message::encoded_len_repeated(2, &self.runs);
        let messages = encoding::message::encoded_len_repeated(Deliveries::MESSAGES, &self.messages);
        epoch + runs + messages + self.encoded.encoded_len() + Field::Fixed(self.now_us).len_with(4)
    }

    fn clear(&mut self) {
        *self = Deliveries::default();
    }
}

/// Messages for a client that follows a stream, or all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Followed {
    pub messages: Vec<v1::StoredMessage>,
    pub encoded: Encoded,
    /// The `from` to resume with after a break.
    pub next: u64,
}

impl Followed {
    /// The tag of a message.
    pub const MESSAGES: u32 = 1;
}

impl Message for Followed {
    fn encode_raw(&self, out: &mut impl BufMut) {
        encoding::message::encode_repeated(Followed::MESSAGES, &self.messages, out);
        self.encoded.put(out);
        if self.next != 0 {
            encoding::uint64::encode(2, &self.next, out);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            Followed::MESSAGES => encoding::message::merge_repeated(kind, &mut self.messages, from, context),
            2 => encoding::uint64::merge(kind, &mut self.next, from, context),
            _ => encoding::skip_field(kind, tag, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let messages = encoding::message::encoded_len_repeated(Followed::MESSAGES, &self.messages);
        messages + self.encoded.encoded_len() + Field::Number(self.next).len_with(2)
    }

    fn clear(&mut self) {
        *self = Followed::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Field<'static> {
        Field::Bytes(text.as_bytes())
    }

    #[test]
    fn messages_that_are_encoded_already_are_read_as_messages() {
        let body = Bytes::from(vec![7; LARGE]);
        let mut encoded = Encoded::default();
        for body in [body.clone(), Bytes::new(), body.slice(..3)] {
            let len = len_with(1, body.len()) * usize::from(!body.is_empty()) + text("x").len_with(2);
            encoded.begin(Deliveries::MESSAGES, len);
            encoded.part(1, &body, &body);
            encoded.field(2, text("x"));
        }
        let run = v1::DeliveryRun { first_seq: 5, count: 3, ..v1::DeliveryRun::default() };
        let sent = Deliveries { epoch: 4, runs: vec![run], encoded, now_us: 9, ..Deliveries::default() };
        let bytes = sent.encode_to_vec();
        assert_eq!(bytes.len(), sent.encoded_len());

        let message = |body: Bytes| v1::Message { body, id: "x".to_owned(), ..v1::Message::default() };
        let messages = vec![message(body.clone()), message(Bytes::new()), message(body.slice(..3))];
        let plain = Deliveries { encoded: Encoded::default(), messages, ..sent };
        assert_eq!(Deliveries::decode(&bytes[..]), Ok(plain.clone()));
        assert_eq!(plain.encode_to_vec(), bytes, "both forms are the same bytes");
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let mut encoded = Encoded::default();
        let seq = Field::Number(300);
        encoded.begin(Followed::MESSAGES, seq.len_with(1) + text("s").len_with(3));
        encoded.field(1, seq);
        encoded.field(3, text("s"));
        let sent = Followed { encoded, next: 301, ..Followed::default() };
        let stored = v1::StoredMessage { seq: 300, message: None, stream: "s".to_owned() };
        let plain = Followed { messages: vec![stored], next: 301, ..Followed::default() };
        assert_eq!(sent.encoded_len(), sent.encode_to_vec().len());
        assert_eq!(Followed::decode(&sent.encode_to_vec()[..]), Ok(plain.clone()));
        assert_eq!(plain.encode_to_vec(), sent.encode_to_vec());
    }

    #[test]
    fn fields_that_are_empty_are_not_written() {
        let mut encoded = Encoded::default();
        for field in [text(""), Field::Number(0), Field::Fixed(0)] {
            assert_eq!(field.len_with(1), 0);
            encoded.field(1, field);
        }
        assert!(encoded.is_empty());
        encoded.field(1, Field::Given(0));
        assert_eq!((encoded.encoded_len(), Field::Given(0).len_with(1)), (2, 2));
    }
}
