//! Digests, with vectors from the fact sheet.

use std::collections::BTreeMap;

use crate::sqs::wire::digest::{of_attributes, of_body};
use crate::sqs::wire::message::{AttributeValue, MessageAttribute};

type Attribute = (&'static str, &'static str, &'static [u8]);

/// Name, type and value of attributes, and their digest.
pub(super) const VECTORS: &[(&[Attribute], &str)] = &[
    (&[("k", "String", b"x")], "a45daa70926828a2f0a1db3418e6feb4"),
    (&[("Foo", "String", b"Bar")], "ae7155c6026991b6d54b11589678bf9c"),
    (
        &[("Help.Me", "String", b"Me"), ("General", "String", b"Kenobi"), ("Hello", "String", b"There")],
        "4c360f3fdafd970e05fae2f149d997f5",
    ),
    (
        &[("attr1", "Binary", b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")],
        "8cbe4db156db8a94db8b801b7addb984",
    ),
    (
        &[(
            "AWSTraceHeader",
            "String",
            b"Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1",
        )],
        "5ae4d5d7636402d80f4eb6d213245a88",
    ),
    // Computed with Python's hashlib: a label counts, a number is text.
    (&[("n", "Number.cents", b"1.50")], "608da08154a33cc8ec26950deac70257"),
];

#[test]
fn attributes_have_the_digests_that_clients_compute() {
    for (attributes, expected) in VECTORS {
        let attribute = |(name, data_type, value): &Attribute| {
            let value = match *data_type {
                "Binary" => AttributeValue::Bytes(value.to_vec()),
                _ => AttributeValue::Text(String::from_utf8(value.to_vec()).expect("text")),
            };
            ((*name).to_owned(), MessageAttribute { data_type: (*data_type).to_owned(), value })
        };
        let attributes: BTreeMap<_, _> = attributes.iter().map(attribute).collect();
        assert_eq!(of_attributes(&attributes).as_deref(), Some(*expected));
    }
    assert_eq!(of_attributes(&BTreeMap::new()), None, "no attributes, no digest");
}

#[test]
fn a_body_has_the_digest_of_its_utf_8() {
    assert_eq!(of_body("hello"), "5d41402abc4b2a76b9719d911017c592");
    assert_eq!(of_body("é"), "66ddcd97cfdeabb2f6fb8a999b4bc76f");
}
