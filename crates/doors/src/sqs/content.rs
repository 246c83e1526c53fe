//! Between the messages of SQS and those of the broker.
//!
//! A message attribute is a header, so that other doors see it: text as it is, bytes in base64. The rest is in
//! headers whose names no attribute can have, since they have a colon: the types of attributes that are not strings,
//! the trace, the sender.
//!
//! The other way round, every header that could be an attribute is one; the type of a message is the attribute
//! `forebay.type`; and a body that is not text as SQS has it comes in base64, with the attribute `forebay.body`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_broker::api::{self, BatchBuilder, Delivered, parse_content};
use forebay_core::types::Timestamp;
use sha2::{Digest as _, Sha256};

use super::queue::{Queue, QueueId};
use super::wire::attributes::DeduplicationScope;
use super::wire::digest;
use super::wire::error::{ErrorKind, SqsError};
use super::wire::message::{
    self, AttributeFilter, AttributeValue, Message, MessageAttribute, SystemAttribute, SystemFilter,
    TRACE_HEADER,
};
use super::wire::response::{Received, Sent};

const TYPES: &str = "sqs:types";
const TRACE: &str = "sqs:trace";
const SENDER: &str = "sqs:sender";
/// Attributes for what other doors say and SQS does not.
const KIND: &str = "forebay.type";
const BODY: &str = "forebay.body";

const TEXT_TYPE: &str = "String";

/// Adds a message to what will be stored.
pub(super) fn put(batch: &mut BatchBuilder, now: Timestamp, queue: &Queue, sender: &str, message: &Message) {
    let settings = &queue.about.settings;
    let id = match &message.deduplication_id {
        Some(id) => Some(Cow::Borrowed(id.as_str())),
        None if settings.is_fifo => Some(Cow::Owned(digest::hex(&Sha256::digest(message.body.as_bytes())))),
        None => None,
    };
    // Within a group, the same id of another one is another message.
    let scoped = match (queue.about.scope(now), &id, &message.group_id) {
        (DeduplicationScope::MessageGroup, Some(id), Some(group)) => Some(format!("{group}\0{id}")),
        _ => None,
    };
    let types = types(&message.attributes);
    let values: Vec<(&str, Cow<'_, str>)> =
        message.attributes.iter().map(|(name, attribute)| (name.as_str(), header(attribute))).collect();
    let mut headers: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_ref())).collect();
    headers.extend(types.as_deref().map(|types| (TYPES, types)));
    headers.extend(trace(message).map(|trace| (TRACE, trace)));
    headers.extend((sender != queue.id.account).then_some((SENDER, sender)));
    // A FIFO queue delays all its messages alike, also those that come in by another door.
    let delay = if settings.is_fifo { 0 } else { message.delay.unwrap_or(settings.delay) };
    batch.push(&api::Message {
        id: id.as_deref(),
        dedupe: scoped.as_deref().map(str::as_bytes),
        key: message.group_id.as_deref(),
        headers,
        body: message.body.as_bytes(),
        not_before: api::after(now, Some(Duration::from_secs(delay.into()))),
        ..api::Message::default()
    });
}

/// The sender's receipt for a stored message, without its number.
pub(super) fn sent(message: &Message, message_id: String, sequence_number: Option<String>) -> Sent {
    Sent {
        message_id,
        md5_of_body: digest::of_body(&message.body),
        md5_of_attributes: digest::of_attributes(&message.attributes),
        md5_of_system_attributes: digest::of_attributes(&message.system_attributes),
        sequence_number,
    }
}

fn trace(message: &Message) -> Option<&str> {
    match &message.system_attributes.get(TRACE_HEADER)?.value {
        AttributeValue::Text(text) => Some(text),
        AttributeValue::Bytes(_) => None,
    }
}

/// The types of those that are not strings, as JSON. None if all of them are.
fn types(attributes: &BTreeMap<String, MessageAttribute>) -> Option<String> {
    let others: BTreeMap<&str, &str> = attributes
        .iter()
        .filter(|(_, attribute)| attribute.data_type != TEXT_TYPE)
        .map(|(name, attribute)| (name.as_str(), attribute.data_type.as_str()))
        .collect();
    let written = || serde_json::to_string(&others).expect("texts can be written");
    (!others.is_empty()).then(written)
}

fn header(attribute: &MessageAttribute) -> Cow<'_, str> {
    match &attribute.value {
        AttributeValue::Text(text) => Cow::Borrowed(text),
        AttributeValue::Bytes(bytes) => Cow::Owned(BASE64.encode(bytes)),
    }
}

/// The other way round. A value that does not fit its declared type becomes text.
fn attribute(data_type: Option<&str>, value: &str) -> MessageAttribute {
    let text = |data_type: &str| {
        let value = AttributeValue::Text(value.to_owned());
        MessageAttribute { data_type: data_type.to_owned(), value }
    };
    match data_type {
        Some(binary) if binary.starts_with("Binary") => match BASE64.decode(value) {
            Ok(bytes) => {
                MessageAttribute { data_type: binary.to_owned(), value: AttributeValue::Bytes(bytes) }
            }
            Err(_) => text(TEXT_TYPE),
        },
        other => text(other.unwrap_or(TEXT_TYPE)),
    }
}

/// The number that messages of a FIFO queue are in order by.
pub(super) fn sequence_number(seq: u64) -> String {
    format!("{seq:020}")
}

/// The parts of a message that a receiver wants to see.
pub(super) struct View<'a> {
    pub(super) queue: &'a Queue,
    pub(super) region: &'a str,
    pub(super) system: &'a SystemFilter,
    pub(super) attributes: &'a AttributeFilter,
}

impl View<'_> {
    /// A message as SQS shows it.
    pub(super) fn received(
        &self,
        receipt_handle: String,
        message_id: String,
        delivered: &Delivered,
    ) -> Result<Received, SqsError> {
        let unreadable = |_| SqsError::new(ErrorKind::InternalFailure, "A message cannot be read.");
        let content = parse_content(&delivered.content).map_err(unreadable)?;
        let body = match std::str::from_utf8(content.body) {
            Ok(text) if text.chars().all(message::is_allowed) => Cow::Borrowed(text),
            _ => Cow::Owned(BASE64.encode(content.body)),
        };
        let is_encoded = matches!(body, Cow::Owned(_));
        let attributes = self.attributes_of(&content, is_encoded);
        Ok(Received {
            message_id,
            receipt_handle,
            md5_of_body: digest::of_body(&body),
            body: body.into_owned(),
            system_attributes: self.system_attributes_of(&content, delivered),
            md5_of_attributes: digest::of_attributes(&attributes),
            attributes,
        })
    }

    fn attributes_of(
        &self,
        content: &api::Message<'_>,
        is_encoded: bool,
    ) -> BTreeMap<String, MessageAttribute> {
        let types = content.headers.iter().find(|(name, _)| *name == TYPES);
        let types: BTreeMap<&str, Cow<'_, str>> =
            types.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default();
        let own = [(KIND, content.kind.unwrap_or_default()), (BODY, if is_encoded { "base64" } else { "" })];
        let all = own.into_iter().chain(content.headers.iter().copied());
        let mut attributes = BTreeMap::new();
        for (name, value) in all {
            // A header of another door may be anything.
            let may_be = !value.is_empty() && value.chars().all(message::is_allowed);
            if self.attributes.wants(name) && may_be && message::is_attribute_name(name) {
                attributes.insert(name.to_owned(), attribute(types.get(name).map(Cow::as_ref), value));
            }
        }
        attributes
    }

    fn system_attributes_of(
        &self,
        content: &api::Message<'_>,
        delivered: &Delivered,
    ) -> Vec<(&'static str, String)> {
        let header = |wanted: &str| {
            let found = content.headers.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        let milliseconds = |at: Timestamp| (at.0 / 1_000).to_string();
        let is_fifo = self.queue.is_fifo();
        let value = |attribute: SystemAttribute| match attribute {
            SystemAttribute::AWSTraceHeader => header(TRACE),
            SystemAttribute::ApproximateFirstReceiveTimestamp => Some(milliseconds(delivered.first_received)),
            SystemAttribute::ApproximateReceiveCount => {
                Some((u64::from(delivered.attempt.0) + u64::from(delivered.receives())).to_string())
            }
            SystemAttribute::DeadLetterQueueSourceArn => {
                // A message that a move task brought here was not received here too often.
                let from = delivered.from().filter(|_| delivered.receives() > 0)?;
                Some(QueueId::of_stream(from.as_str()).arn(self.region).to_string())
            }
            SystemAttribute::MessageDeduplicationId => content.id.filter(|_| is_fifo).map(str::to_owned),
            SystemAttribute::MessageGroupId => content.key.map(str::to_owned),
            SystemAttribute::SenderId => {
                Some(header(SENDER).unwrap_or_else(|| self.queue.id.account.clone()))
            }
            SystemAttribute::SentTimestamp => Some(milliseconds(delivered.published)),
            SystemAttribute::SequenceNumber => is_fifo.then(|| sequence_number(delivered.lease.seq.0)),
        };
        let wanted = SystemAttribute::ALL.iter().filter(|attribute| self.system.wants(**attribute));
        wanted.filter_map(|attribute| Some((attribute.name(), value(*attribute)?))).collect()
    }
}
