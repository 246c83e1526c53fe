//! Streams: what they say, and what operators do to them.

use forebay_model::StreamPatch;
use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::schema;
use super::{Rates, Time};

/// A stream's settings and figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamReport {
    pub stream: String,
    #[cfg_attr(feature = "openapi", schema(value_type = schema::StreamSettings))]
    pub settings: StreamPatch,
    pub created_at: Time,
    /// The oldest message that is kept. One more than `last_seq` if no message is kept.
    pub first_seq: u64,
    /// The newest message; 0 if there never was one.
    pub last_seq: u64,
    /// Messages and bytes that count against the limits.
    pub messages: u64,
    pub bytes: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Seconds since the oldest message was published.
    pub oldest_age: Option<f64>,
    /// How many groups there are.
    pub groups: u64,
    pub group_names: Vec<String>,
    pub rates: StreamRates,
}

/// How often something happens in a stream, for each second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamRates {
    pub published: Rates,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamList {
    pub streams: Vec<StreamReport>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PurgeRequest {
    /// Parked messages too.
    pub parked: bool,
    /// Only messages that no consumer holds: leased ones stay. Not together with `parked`.
    pub ready_only: bool,
}

/// Cuts off the beginning of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TruncateRequest {
    /// The first position that stays. At most the position after the last message.
    pub before: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TruncateReply {
    /// How many messages were dropped.
    pub truncated: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PurgeReply {
    /// How many messages were dropped.
    pub purged: u64,
}
