//! Taking messages and settling them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use super::{Headers, SourceMessage, Span, Time, some};

/// Messages that one receive may ask for.
pub const RECEIVE_MAX: u32 = 1_000;

/// A number that is not within the limits is told these, and not those of its type.
fn receive_max<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let Some(given) = Option::<i64>::deserialize(from)? else { return Ok(None) };
    match u32::try_from(given) {
        Ok(max) if (1..=RECEIVE_MAX).contains(&max) => Ok(Some(max)),
        _ => Err(de::Error::custom(format_args!("must be between 1 and {RECEIVE_MAX}. value=`{given}`"))),
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReceiveRequest {
    /// From 1 to 1000. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "receive_max")]
    pub max: Option<u32>,
    /// How long to wait for the first message. Default none, at most `"10m"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
    /// How long the leases last, if not as long as the group says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// Who asks. Receives with the same name are one consumer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReceiveReply {
    /// None if nothing came in time.
    pub messages: Vec<Delivery>,
}

/// A message, and the lease it is held on. It has one of `body`, `body_text`, `body_base64` and `no_body`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// Opaque. Good until the deadline, whatever becomes of the connection or the server.
    pub lease: String,
    pub seq: u64,
    /// The first delivery is attempt 1.
    pub attempt: u32,
    /// Whether the message was delivered before, to any consumer of the group, also if that does not count as an
    /// attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redelivered: bool,
    pub deadline: Time,
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
    /// The message of another stream that this one is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceMessage>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    pub leases: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NackRequest {
    pub leases: Vec<String>,
    /// Default `"auto"`.
    #[serde(default)]
    pub action: NackAction,
    /// Before a retry, in place of the group's backoff; or for how long a message is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// Why the message failed, for operators. The first 512 bytes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For how long the whole group should hand out nothing, `"5m"` at most. Only makes a rest longer, and counts
    /// only if one of the leases is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Span>,
}

/// What becomes of messages that were not finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NackAction {
    /// As the group's policy says: a retry, or `on_exhausted` when they are used up.
    #[default]
    Auto,
    /// Offer it again. Once its retries are used up, `on_exhausted`.
    Retry,
    /// Set it aside at once.
    Park,
    /// Never offer it again.
    Skip,
    /// Give it back, as if it had never been handed out, for a while if there is a `delay`.
    Return,
    /// Settle it here and publish it to this stream.
    Move(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    pub leases: Vec<String>,
    /// Counted from now.
    pub by: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettleReply {
    /// One for each lease, in their order.
    pub results: Vec<SettleResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettleResult {
    pub lease: String,
    pub outcome: Outcome,
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Acked,
    Retrying,
    Parked,
    Skipped,
    Extended,
    /// On its way to another stream.
    Moving,
    /// It will not be offered again, since its time is over.
    Expired,
    Returned,
    /// The lease has lapsed, was given to another, or its message is no longer in process. Nothing was changed.
    NotYours,
}
