//! Between the messages of SQS and those of the broker.
//!
//! A message attribute is a header, so that other doors see it. The rest is in headers whose names no attribute can
//! have, since they have a colon: the types of attributes that are not strings, the trace, the sender. A body has no
//! content type: it is text, which may be JSON.
//!
//! The other way round, every header that could be an attribute is one, with the type `Binary` if it is not text; the
//! type of a message is the attribute `forebay.type`, a content type that is not a common one `forebay.content-type`.
//! A body that is not text as SQS has it comes in base64, with the attribute `forebay.body`, which is `none` for a
//! message without a body. A key that is not text is shown in base64.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_broker::api::{self, BatchBuilder, ContentType, Dedupe, Delivered, parse_content};
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
use crate::kit::trace::AWS as TRACE;

const TYPES: &str = "sqs:types";
const SENDER: &str = "sqs:sender";
/// Attributes for what other doors say and SQS does not.
const KIND: &str = "forebay.type";
const BODY: &str = "forebay.body";
const CONTENT_TYPE: &str = "forebay.content-type";

const TEXT_TYPE: &str = "String";
const BINARY_TYPE: &str = "Binary";

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
    let mut headers: Vec<(&str, &[u8])> =
        message.attributes.iter().map(|(name, attribute)| (name.as_str(), header(attribute))).collect();
    headers.extend(types.as_deref().map(|types| (TYPES, types.as_bytes())));
    headers.extend(trace(message).map(|trace| (TRACE, trace.as_bytes())));
    headers.extend((sender != queue.id.account).then_some((SENDER, sender.as_bytes())));
    // A FIFO queue delays all its messages alike, also those that come in by another door.
    let delay = if settings.is_fifo { 0 } else { message.delay.unwrap_or(settings.delay) };
    batch.push(&api::Message {
        id: id.as_deref(),
        dedupe: scoped.as_deref().map_or(Dedupe::ById, |scoped| Dedupe::By(scoped.as_bytes())),
        key: message.group_id.as_deref().map(str::as_bytes),
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

fn header(attribute: &MessageAttribute) -> &[u8] {
    match &attribute.value {
        AttributeValue::Text(text) => text.as_bytes(),
        AttributeValue::Bytes(bytes) => bytes,
    }
}

/// The other way round, of a header that may come from another door. One without a type is a string if it is text as
/// SQS has it. None if it cannot be an attribute: an empty one, or one whose type is of text and whose value is not.
fn attribute(data_type: Option<&str>, value: &[u8]) -> Option<MessageAttribute> {
    let text = || std::str::from_utf8(value).ok().filter(|text| text.chars().all(message::is_allowed));
    let (data_type, value) = match (data_type, text()) {
        _ if value.is_empty() => return None,
        (Some(binary), _) if binary.starts_with(BINARY_TYPE) => {
            (binary, AttributeValue::Bytes(value.to_vec()))
        }
        (other, Some(text)) => (other.unwrap_or(TEXT_TYPE), AttributeValue::Text(text.to_owned())),
        (None, None) => (BINARY_TYPE, AttributeValue::Bytes(value.to_vec())),
        (Some(_), None) => return None,
    };
    Some(MessageAttribute { data_type: data_type.to_owned(), value })
}

/// The name of a message group for a key, which another door may have given.
fn group_id(key: &[u8]) -> String {
    std::str::from_utf8(key).map_or_else(|_| BASE64.encode(key), str::to_owned)
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
        let about_body = match body {
            _ if content.no_body => "none",
            Cow::Owned(_) => "base64",
            Cow::Borrowed(_) => "",
        };
        let attributes = self.attributes_of(&content, about_body);
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
        about_body: &str,
    ) -> BTreeMap<String, MessageAttribute> {
        let types = content.headers.iter().find(|(name, _)| *name == TYPES);
        let types: BTreeMap<&str, Cow<'_, str>> =
            types.and_then(|(_, text)| serde_json::from_slice(text).ok()).unwrap_or_default();
        let content_type = match content.content_type {
            ContentType::Other(name) => name,
            ContentType::Unsaid | ContentType::Json | ContentType::Text | ContentType::Bytes => "",
        };
        let own =
            [(KIND, content.kind.unwrap_or_default()), (BODY, about_body), (CONTENT_TYPE, content_type)];
        let own = own.map(|(name, value)| (name, value.as_bytes()));
        let all = own.into_iter().chain(content.headers.iter().copied());
        let mut attributes = BTreeMap::new();
        for (name, value) in all {
            if self.attributes.wants(name)
                && message::is_attribute_name(name)
                && let Some(attribute) = attribute(types.get(name).map(Cow::as_ref), value)
            {
                attributes.insert(name.to_owned(), attribute);
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
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
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
            SystemAttribute::MessageGroupId => content.key.map(group_id),
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
