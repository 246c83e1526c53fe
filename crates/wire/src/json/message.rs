//! Messages on their way in, and as they are stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::body::{BadField, Content, Given};
use super::{Span, Time, some};

/// Names and values that travel with a message.
pub type Headers = BTreeMap<String, String>;

/// A message as its producer gives it.
///
/// The body is in one field: `body` is any JSON value and is kept as it is written; `body_text` carries text, and
/// `body_base64` bytes; `no_body` is a message without a body. With none of them, the body is the JSON value `null`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Within the stream's `dedupe_window` a second publish with the same id stores nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Version of the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<u64>,
    /// Messages of one key belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// A key that is not UTF-8, instead of `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: Headers,
    /// Values that are not UTF-8.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_base64: Headers,
    // With the `Option` alone, `null` would be no body rather than one that is null.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<utoipa::openapi::schema::Value>))]
    pub body: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// There is no body, which is not the same as an empty one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_body: bool,
    /// Media type of the body, if it does not follow from the field: `application/json` from `body`, `text/plain` from
    /// `body_text`, `application/octet-stream` from `body_base64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Not handed out before this long has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// Not handed out before then. In place of `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<Time>,
    /// 0 to 9, default 0. Higher goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Not handed out after this long has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
}

impl Message {
    /// The bytes of the body, and its content type. `None` if no field of the body is given.
    pub fn content(&self) -> Result<Option<Content<'_>>, BadField> {
        let given = Given {
            body: self.body.as_deref(),
            body_text: self.body_text.as_deref(),
            body_base64: self.body_base64.as_deref(),
            no_body: self.no_body,
            content_type: self.content_type.as_deref(),
        };
        given.read()
    }
}

/// Stored whole or not at all.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PublishRequest {
    pub messages: Vec<Message>,
    /// Publish only if the stream ends there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_last_seq: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublishReply {
    /// One for each message, in their order.
    pub results: Vec<PublishResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublishResult {
    pub seq: u64,
    pub id: Option<String>,
    /// It was stored before under the same id, as `seq`.
    pub duplicate: bool,
    /// Position in the server's log, over all its streams. A duplicate has none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_position: Option<u64>,
}

/// A message of another stream that was copied because of the setting `source` of the stream that the copy is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceMessage {
    pub stream: String,
    pub seq: u64,
}

/// A message as it lies in its stream. It has one of `body`, `body_text`, `body_base64` and `no_body`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredMessage {
    /// The stream that the message is in, where messages of several streams are shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    pub seq: u64,
    /// Position in the server's log, over all its streams. The positions of a stream's messages rise with `seq`, with
    /// gaps.
    #[serde(default)]
    pub log_position: u64,
    pub published_at: Time,
    pub id: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<u64>,
    pub key: Option<String>,
    /// A key that is not UTF-8, instead of `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    #[serde(default)]
    pub headers: Headers,
    /// Values that are not UTF-8.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_base64: Headers,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<utoipa::openapi::schema::Value>))]
    pub body: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// There is no body, which is not the same as an empty one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_body: bool,
    /// Media type of the body, if it does not follow from the field: `application/json` from `body`, `text/plain` from
    /// `body_text`, `application/octet-stream` from `body_base64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// The message of another stream that this one is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceMessage>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageList {
    pub messages: Vec<StoredMessage>,
    /// Goes on with `?from=`. `null` at the end of the stream.
    pub next: Option<String>,
    /// The last message that the stream had.
    pub last_seq: u64,
}

/// Messages of all streams, in the order of the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogList {
    pub messages: Vec<StoredMessage>,
    /// Goes on with `?from=`. `null` at the end of the log.
    pub next: Option<String>,
    /// Position in the log of the last message of all streams.
    pub last_log_position: u64,
}
