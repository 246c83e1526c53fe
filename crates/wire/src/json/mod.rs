//! The native API in JSON: every request and every reply of the HTTP calls, in both directions.
//!
//! A request refuses fields that it does not know, so that a typing mistake never passes silently. A reply
//! takes them, so that an older client can read what a newer server says. Fields of a request that may be
//! left out are options; where `null` says something of its own, they are options of options.

mod consume;
mod group;
mod message;
mod monitor;
mod span;
mod stream;
mod time;
mod triage;

use serde::{Deserialize, Deserializer, Serialize};

pub use consume::{
    AckRequest, Delivery, ExtendRequest, NackAction, NackRequest, Outcome, ReceiveReply, ReceiveRequest,
    SettleReply, SettleResult,
};
pub use group::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, OnExhausted, OnParkedKey, ParkedOnReset, PausedReply,
    ResetReply, ResetRequest, Retries, Start, Strategy,
};
pub use message::{
    Headers, Message, MessageList, PublishReply, PublishRequest, PublishResult, StoredMessage,
};
pub use monitor::{
    Consumer, ConsumerKind, Counters, GroupList, GroupReport, GroupStatus, ProcessingTime, Rates, Scaling,
    ServerReport, ServerStage, Throughput,
};
pub use span::{BadSpan, Span};
pub use stream::{
    OnFull, PurgeReply, PurgeRequest, Retention, RetentionLimits, StreamLimits, StreamList, StreamRates,
    StreamReport, StreamSettings,
};
pub use time::{BadTime, Time};
pub use triage::{
    Failure, FailureCause, Job, JobList, JobState, JobWork, Parked, ParkedList, Reason, ReasonList,
    SelectFilter, SelectReply, SelectRequest,
};

/// A steady pace, and how far it may be exceeded for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// From 0.001 to 10 million.
    pub per_second: f64,
    /// At least 1, which is also what it is if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub burst: Option<u32>,
}

/// A field that may be left out but not be `null`: `Option` alone would take `null` for nothing, silently.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A field that may be left out, and that `null` resets to none.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests;
