//! Ids of events and of writes. Clients send them in one of two forms, and say in which they want them back.

use std::fmt;

use forebay_core::types::{Seq, StreamName};
use forebay_wire::kurrent::client::uuid::{Structured, Value};
use forebay_wire::kurrent::client::uuid_option::Content;
use forebay_wire::kurrent::client::{Uuid, UuidOption};

/// Sixteen bytes, as RFC 9562 orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct EventId(pub(super) [u8; 16]);

/// The form of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Two numbers.
    Structured,
    Text,
}

impl Form {
    /// The form that a client asks for. `None` if it asks for none.
    pub(super) fn wanted(option: Option<&UuidOption>) -> Option<Form> {
        match option?.content.as_ref()? {
            Content::Structured(_) => Some(Form::Structured),
            Content::String(_) => Some(Form::Text),
        }
    }

    pub(super) fn write(self, id: EventId) -> Uuid {
        let value = match self {
            Form::Text => Value::String(id.to_string()),
            Form::Structured => {
                let number = u128::from_be_bytes(id.0);
                Value::Structured(Structured {
                    most_significant_bits: (number >> 64) as u64 as i64,
                    least_significant_bits: number as u64 as i64,
                })
            }
        };
        Uuid { value: Some(value) }
    }
}

impl EventId {
    /// Reads an id in either form. `None` if it is absent, or its text is not a UUID.
    pub(super) fn read(uuid: Option<&Uuid>) -> Option<EventId> {
        match uuid?.value.as_ref()? {
            Value::Structured(Structured { most_significant_bits, least_significant_bits }) => {
                let high = u128::from(*most_significant_bits as u64) << 64;
                let number = high | u128::from(*least_significant_bits as u64);
                Some(EventId(number.to_be_bytes()))
            }
            Value::String(text) => EventId::parse(text),
        }
    }

    /// Reads 32 hexadecimal digits, with hyphens after the 8th, 12th, 16th and 20th or without any.
    pub(super) fn parse(text: &str) -> Option<EventId> {
        let digits: [u8; 32] = match text.len() {
            32 => text.as_bytes().try_into().ok()?,
            36 => {
                let mut digits = [0; 32];
                let mut filled = 0;
                for (at, byte) in text.bytes().enumerate() {
                    if matches!(at, 8 | 13 | 18 | 23) {
                        if byte != b'-' {
                            return None;
                        }
                        continue;
                    }
                    digits[filled] = byte;
                    filled += 1;
                }
                digits
            }
            _ => return None,
        };
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Some(EventId(bytes))
    }

    /// The id of a message that has none, or one that is not a UUID. It follows from the message's place, so it is the
    /// same whenever the message is read.
    pub(super) fn of_place(stream: &StreamName, seq: Seq) -> EventId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(stream.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(&seq.0.to_be_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        // Version 8: of a kind that its maker defines.
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        EventId(bytes)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let text = "11111111-2222-3333-4444-555555555555";
        let id = EventId::parse(text).expect("a UUID");
        let Some(Value::Structured(numbers)) = Form::Structured.write(id).value else {
            panic!("two numbers")
        };
        assert_eq!(numbers.most_significant_bits, 1_229_782_938_533_638_963);
        assert_eq!(numbers.least_significant_bits, 4_919_150_517_987_661_141);
        assert_eq!(Form::Text.write(id).value, Some(Value::String(text.to_owned())));
        assert_eq!(EventId::parse(&text.replace('-', "")), Some(id));
    }

    #[test]
    fn a_text_that_is_not_a_uuid_is_none() {
        for text in ["", "x", "11111111-2222-3333-4444-55555555555g", "11111111-2222-3333-4444+555555555555"]
        {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
        assert_eq!(EventId::parse("ééééééééééééééééé"), None);
        assert_eq!(EventId::read(None), None);
        assert_eq!(EventId::read(Some(&Uuid { value: None })), None);
    }

    #[test]
    fn messages_of_other_places_have_other_ids() {
        let name = |text| StreamName::parse(text).expect("a name");
        let id = EventId::of_place(&name("orders"), Seq(1));
        assert_eq!(id, EventId::of_place(&name("orders"), Seq(1)));
        assert_ne!(id, EventId::of_place(&name("orders"), Seq(2)));
        assert_ne!(id, EventId::of_place(&name("order"), Seq(1)));
        assert_eq!(id.to_string().as_bytes()[14], b'8');
    }

    proptest! {
        #[test]
        fn an_id_survives_both_forms(bytes: [u8; 16]) {
            for form in [Form::Structured, Form::Text] {
                prop_assert_eq!(EventId::read(Some(&form.write(EventId(bytes)))), Some(EventId(bytes)));
            }
        }
    }
}
