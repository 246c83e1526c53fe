//! The MD5s that clients verify. A wrong one makes a client throw after a message was stored, and send it again.

use std::collections::BTreeMap;

use md5::{Digest as _, Md5};

use super::message::{AttributeValue, MessageAttribute};

/// Of a body, in hexadecimal.
pub fn of_body(body: &str) -> String {
    hex(&Md5::digest(body.as_bytes()))
}

/// Of message attributes, in hexadecimal; nothing where there are none.
///
/// For each attribute, by name: `length name length type transport length value`, where lengths are four bytes,
/// big endian, and transport is 1 for text and 2 for bytes. A string sorts by code point, which is how a map of
/// UTF-8 sorts.
pub fn of_attributes(attributes: &BTreeMap<String, MessageAttribute>) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    let mut part = |bytes: &[u8], transport: &[u8]| {
        md5.update(transport);
        // Messages are far smaller than what four bytes can say.
        md5.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        md5.update(bytes);
    };
    for (name, attribute) in attributes {
        part(name.as_bytes(), &[]);
        part(attribute.data_type.as_bytes(), &[]);
        match &attribute.value {
            AttributeValue::Text(text) => part(text.as_bytes(), &[1]),
            AttributeValue::Bytes(bytes) => part(bytes, &[2]),
        }
    }
    Some(hex(&md5.finalize()))
}

/// Lower case, two digits for each byte.
pub(in crate::sqs) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}
