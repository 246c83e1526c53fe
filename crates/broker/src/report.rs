//! The broker's reports on streams, groups and messages, which doors put into their own words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::entry::Work;
use forebay_core::group::{Bound, GroupFigures, JobState, Parked};
use forebay_core::pace::Rate;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::StreamFigures;
use forebay_core::types::{ConsumerId, GroupId, GroupName, JobId, Seq, StreamId, StreamName, Timestamp};
use forebay_storage::engine::EngineFigures;

use crate::driver::DriverFigures;
use crate::stats::{Histogram, Rates, ScalingAdvice, Summary};
pub use crate::window::Found;

/// Some of many, and where the next ones begin if there are more.
#[derive(Debug, Clone)]
pub struct Page<T, C> {
    pub items: Vec<T>,
    pub next: Option<C>,
}

#[derive(Debug, Clone)]
pub struct StreamReport {
    pub id: StreamId,
    pub name: StreamName,
    pub settings: StreamSettings,
    pub figures: StreamFigures,
    /// Messages published.
    pub published: Rates,
    pub groups: Vec<GroupName>,
}

/// How often something happens in a group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Throughput {
    pub delivered: Rates,
    pub settled: Rates,
    pub acked: Rates,
    pub retried: Rates,
    pub parked: Rates,
    pub timed_out: Rates,
    pub skipped: Rates,
    pub expired: Rates,
    pub moved: Rates,
    pub dropped: Rates,
}

#[derive(Debug, Clone)]
pub struct GroupReport {
    pub id: GroupId,
    pub stream: StreamName,
    pub name: GroupName,
    pub settings: GroupSettings,
    pub figures: GroupFigures,
    pub throughput: Throughput,
    /// Messages that come into the stream.
    pub arrivals: Rates,
    /// Seconds until the group has caught up at the present pace; zero if it has, none if it never will.
    pub catch_up: Option<f64>,
    /// From the delivery to its settlement. `None` if nothing was settled yet, or the group's setting
    /// `extra_statistics` is off.
    pub processing: Option<Summary>,
    /// The same times by [`BANDS`].
    pub processing_bands: Option<Bands<{ BANDS.len() + 1 }>>,
    /// From the publish of a message to its ack, by [`END_TO_END_BANDS`]. `None` as for `processing`.
    pub end_to_end: Option<Bands<{ END_TO_END_BANDS.len() + 1 }>>,
    pub consumers: Vec<ConsumerReport>,
}

/// Times by how long they were. They only grow, so that the difference of two reports tells of the time between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bands<const N: usize> {
    /// How many were shorter than the end of each band, and how many there are.
    pub shorter: [u64; N],
    /// All times together.
    pub sum: Duration,
}

/// Ends of bands of processing times, as powers of two of a microsecond: from 256 µs to 17 s, by fours.
pub const BANDS: [u32; 9] = [8, 10, 12, 14, 16, 18, 20, 22, 24];
/// The same for times from publish to ack, which may have a backlog in them: from 1 ms to 71 minutes, by fours.
pub const END_TO_END_BANDS: [u32; 12] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32];

#[derive(Debug, Clone)]
pub struct ConsumerReport {
    /// One of the members, if several poll under one name.
    pub id: ConsumerId,
    pub name: Arc<str>,
    pub address: Option<SocketAddr>,
    pub bound: Bound,
    pub joined: Timestamp,
    pub in_flight: u64,
    /// A message that it holds, the one that it has held for longest or nearly so, and since when.
    pub holds: Option<(Seq, Timestamp)>,
    pub credit: u32,
    pub acked: u64,
    pub failed: u64,
    pub processing: Option<Summary>,
}

/// How many consumers a group should have, and the figures that this is computed from.
#[derive(Debug, Clone)]
pub struct ScalingReport {
    pub backlog: u64,
    /// In seconds.
    pub oldest_age: f64,
    pub in_flight: u64,
    pub consumers: u64,
    pub arrival_rate: f64,
    pub service_rate: f64,
    pub advice: ScalingAdvice,
}

/// Messages of a stream, in order.
#[derive(Debug, Clone)]
pub struct ReadPage {
    pub messages: Vec<Found>,
    /// Where to read on.
    pub next: Seq,
    /// The last message that was there.
    pub last: Seq,
}

#[derive(Debug, Clone)]
pub struct ParkedReport {
    pub seq: Seq,
    pub parked: Parked,
    /// None if it cannot be read.
    pub message: Option<Found>,
}

/// A job on the parked or the waiting messages of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct JobReport {
    pub id: JobId,
    pub work: Work,
    pub started: Timestamp,
    pub rate: Option<Rate>,
    pub matched: u64,
    pub done: u64,
    pub failed: u64,
    pub state: JobState,
}

impl JobReport {
    /// Whether the job is moving waiting messages of the group right now. A group has one moving job at a
    /// time.
    pub fn is_moving(&self) -> bool {
        matches!(self.work, Work::Move { .. }) && self.state == JobState::Running
    }
}

/// The messages of a replay or a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    pub matched: u64,
    /// None if nothing was started: it was only asked how many, or there are none.
    pub job: Option<JobId>,
}

/// The server as a whole.
#[derive(Debug, Clone, Default)]
pub struct ServerReport {
    pub streams: usize,
    pub groups: usize,
    /// Consumers with a connection, and those that poll.
    pub connected: usize,
    pub polling: usize,
    /// Receives that wait for a message.
    pub waiting: usize,
    pub storage_full: bool,
    /// Nothing is handed out, because the reserve is nearly used up.
    pub storage_scarce: bool,
    /// How far the server's clock is ahead of the machine's date, in microseconds.
    pub clock_ahead: i64,
    /// Contents that are held in memory.
    pub window_bytes: usize,
    pub epoch: u32,
    /// How long frames took to become durable, from the turn that decided them.
    pub commit_times: Histogram,
    pub driver: DriverFigures,
    pub engine: EngineFigures,
}
