//! What groups, consumers and the server say about themselves. Times are numbers of seconds.

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::schema;
use super::{GroupSettings, Time};

/// Averages for each second, over about so long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rates {
    #[serde(rename = "1s")]
    pub second: f64,
    #[serde(rename = "1m")]
    pub minute: f64,
    #[serde(rename = "15m")]
    pub quarter_hour: f64,
}

/// How often something happens in a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Throughput {
    /// Came to an end, in whatever way.
    pub settled: Rates,
    pub acked: Rates,
    pub retried: Rates,
    pub parked: Rates,
    pub timed_out: Rates,
    pub expired: Rates,
    pub moved: Rates,
    pub dropped: Rates,
    pub skipped: Rates,
    pub delivered: Rates,
    /// Came into the stream.
    pub arrived: Rates,
}

/// What a group is doing, or what keeps it from doing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupStatus {
    Live,
    CatchingUp,
    Paused,
    /// There is no consumer.
    Idle,
    WindowFull,
    ParkedFull,
    KeyScanFull,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupReport {
    pub stream: String,
    pub group: String,
    pub status: GroupStatus,
    #[cfg_attr(feature = "openapi", schema(value_type = schema::GroupSettings))]
    pub settings: GroupSettings,
    pub last_known_seq: u64,
    /// The highest position that was settled or parked. After a restart, `checkpoint_seq` until that is passed.
    pub last_processed_seq: u64,
    /// Progress as it was last published, by the group's checkpoint policy.
    pub last_checkpointed_seq: u64,
    /// Every message up to this position is settled or parked.
    #[serde(default)]
    pub checkpoint_seq: u64,
    /// Messages not yet settled.
    pub lag: u64,
    /// Those of them that are not due yet.
    #[serde(default)]
    pub delayed: u64,
    /// Seconds that the oldest of the others has been due.
    pub oldest_age: Option<f64>,
    pub in_flight: u64,
    pub ready: u64,
    pub waiting: u64,
    pub parked: u64,
    /// Seconds.
    pub oldest_parked_age: Option<f64>,
    /// On their way to another stream.
    pub moving: u64,
    /// Seconds for which nothing is handed out because a consumer asked for that. `null` if none did.
    #[serde(default)]
    pub resting_for: Option<f64>,
    /// `key_scan_full`: how many messages wait for the key that most messages wait for.
    #[serde(default)]
    pub stuck_key_messages: u64,
    #[serde(default)]
    pub counters: Counters,
    pub throughput: Throughput,
    /// Seconds until caught up at the present pace. `null` if that will never be.
    pub catch_up_time: Option<f64>,
    /// `null` if the group keeps no extra statistics.
    pub processing_time: Option<ProcessingTime>,
    /// How many consumers the group has.
    #[serde(default)]
    pub consumer_count: u64,
    /// The consumers, up to 1000 of them.
    pub consumers: Vec<Consumer>,
}

impl GroupReport {
    /// Messages that are due and not settled: what there is to do.
    pub fn due(&self) -> u64 {
        self.lag.saturating_sub(self.delayed)
    }
}

/// What a group has done since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Counters {
    pub delivered: u64,
    pub acked: u64,
    pub retried: u64,
    pub parked: u64,
    pub timed_out: u64,
    pub skipped: u64,
    pub expired: u64,
    pub moved: u64,
    /// Dropped to make room, or purged.
    pub dropped: u64,
    pub returned: u64,
    pub replayed: u64,
    pub discarded: u64,
}

/// From the delivery to the answer, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessingTime {
    pub count: u64,
    pub mean: f64,
    pub stddev: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Consumer {
    pub name: String,
    pub address: Option<String>,
    pub kind: ConsumerKind,
    pub connected_at: Time,
    pub in_flight: u64,
    /// How many messages it is willing to hold.
    pub credit: u32,
    pub acked: u64,
    pub failed: u64,
    pub processing_time: Option<ProcessingTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ConsumerKind {
    /// Its leases go with its connection.
    Connected,
    /// Its leases are on the clock.
    Polling,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupList {
    pub groups: Vec<GroupReport>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}

/// The same, as `/subscriptions` answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubscriptionList {
    pub subscriptions: Vec<GroupReport>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}

/// How many consumers a group should have, and the figures that this is computed from. Rates are for each
/// second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Scaling {
    /// Messages that wait for a consumer.
    pub backlog: u64,
    /// Seconds.
    pub oldest_age: f64,
    pub in_flight: u64,
    /// How many there are.
    pub consumers: u64,
    pub arrival_rate: f64,
    pub service_rate: f64,
    /// Seconds until the backlog is gone at the present pace. `null` if that will never be.
    pub drain_time: Option<f64>,
    pub desired_consumers: u32,
}

/// Figures over time, each a list with one value for each point, from the oldest to the newest. A point without a
/// record is `null`. Rates are means and are for each second; everything else is the largest value of its point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct History {
    /// When the first point begins.
    pub from: Time,
    /// Seconds of one point.
    pub step: u64,
    /// Messages that came in.
    pub arrived: Vec<Option<f64>>,
    /// Messages that came to an end.
    pub settled: Vec<Option<f64>>,
    pub lag: Vec<Option<f64>>,
    /// Seconds.
    pub oldest_age: Vec<Option<f64>>,
    pub in_flight: Vec<Option<f64>>,
    pub parked: Vec<Option<f64>>,
}

/// How far the server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServerStage {
    Running,
    Draining,
    Stopping,
}

/// The server as a whole, as told by the event `server` of `/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerReport {
    pub version: String,
    pub stage: ServerStage,
    pub streams: u64,
    pub groups: u64,
    /// Consumers with a connection, and those that poll.
    pub connected: u64,
    pub polling: u64,
    /// Receives that wait for a message.
    pub waiting: u64,
    pub storage_full: bool,
    /// Contents that are held in memory, in bytes.
    pub window_bytes: u64,
    /// How often the log was opened.
    pub epoch: u32,
}
