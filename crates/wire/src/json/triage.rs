//! Parked messages: seeing them, bringing them back, moving them, letting them go.

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::schema;
use super::{Rate, StoredMessage, Time};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Parked {
    pub seq: u64,
    /// `null` if it cannot be read.
    pub message: Option<StoredMessage>,
    /// How often it was handed out.
    pub attempts: u32,
    /// What the consumer said, or else what happened, in parentheses.
    pub reason: String,
    pub parked_at: Time,
    /// Who had it last.
    pub consumer: Option<String>,
    /// Its last failures, the oldest first.
    pub history: Vec<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    pub at: Time,
    pub attempt: u32,
    #[serde(default)]
    pub cause: FailureCause,
    /// What the consumer said, or else the cause, in parentheses.
    pub reason: String,
    pub consumer: Option<String>,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// The consumer said so.
    #[default]
    Nack,
    /// The lease ran out.
    Timeout,
    /// The consumer's connection broke.
    Lost,
    /// The content could not be read back.
    Damaged,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ParkedList {
    pub parked: Vec<Parked>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}

/// What became of a message in each group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageLife {
    pub stream: String,
    pub seq: u64,
    pub groups: Vec<GroupLife>,
}

/// What became of a message in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupLife {
    pub group: String,
    pub state: MessageState,
    /// How often it was handed out. `null` of a message that is settled: the group has forgotten.
    pub attempts: Option<u32>,
    /// When it was first handed out, where that is known.
    pub first_delivered_at: Option<Time>,
    /// Of a leased message: who has it. `null` also if the server has started anew since.
    pub consumer: Option<String>,
    /// Of a leased message: since when, and until when it has to be settled or extended.
    pub leased_at: Option<Time>,
    pub lease_until: Option<Time>,
    /// Of a message that failed: when it may be handed out again.
    pub retry_at: Option<Time>,
    pub parked_at: Option<Time>,
    /// Its last failures, the oldest first. Forgotten when it is settled.
    pub history: Vec<Failure>,
}

/// Where a message stands in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// It was not handed out yet.
    Pending,
    /// It was handed out before, and may be again now.
    Ready,
    /// It failed, and waits to be handed out again.
    Waiting,
    Leased,
    /// On its way to another stream.
    Moving,
    Parked,
    /// Acked, skipped, moved, expired or discarded.
    Settled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReasonList {
    pub reasons: Vec<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reason {
    pub reason: String,
    pub count: u64,
}

/// Which parked messages are meant, and how to go about it. One of `seqs`, `filter` and `all` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seqs: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<SelectFilter>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// No more than this many, the oldest positions first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// No faster than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Rate>))]
    pub rate: Option<Rate>,
    /// Only say how many there are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The stream that the messages go to. It must exist. Moves need it, other jobs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Those with this reason, and of this key and type, as far as these are given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SelectReply {
    pub matched: u64,
    /// `null` if nothing was started: it was only asked how many, or there are none.
    pub job: Option<u32>,
}

/// Work on parked messages, or on those that wait in the group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    pub job: u32,
    pub work: JobWork,
    pub state: JobState,
    pub started_at: Time,
    /// `null` while it runs.
    pub ended_at: Option<Time>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Rate>))]
    pub rate: Option<Rate>,
    /// How many messages it was started for.
    pub matched: u64,
    pub done: u64,
    /// Those that were not parked any more when it came to them, or that were not there to be moved.
    pub failed: u64,
    /// The stream that messages go to, if the job names one.
    #[serde(default)]
    pub to: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobWork {
    Replay,
    Discard,
    /// What waits in the group goes to another stream. Not started here.
    Move,
    /// Parked messages go to another stream.
    MoveParked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
    Cancelled,
    /// It could not go on; the remaining messages stay where they were.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {
    pub jobs: Vec<Job>,
}
