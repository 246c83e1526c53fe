//! A subscription as its clients see it: settings, progress, consumers and figures. gRPC and HTTP write the same facts
//! in two forms.

use std::sync::atomic::Ordering;

use forebay_broker::api::{Bound, ConsumerReport, GroupReport, JobReport, JobState, Status, Work};
use forebay_core::types::{Ordinal, Seq, Timestamp};

use super::super::places;
use super::calls::{GroupCalls, lock};
use super::service::ALL;
use super::settings::{Noted, Settings};

/// Shown for a consumer that did not say who it is.
pub(crate) const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Info {
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) status: String,
    pub(crate) connections: Vec<Connection>,
    pub(crate) average_per_second: i32,
    pub(crate) total_items: i64,
    pub(crate) count_since_last_measurement: i64,
    pub(crate) last_checkpointed: Option<At>,
    pub(crate) last_known: Option<At>,
    pub(crate) start_from: String,
    pub(crate) settings: Settings,
    pub(crate) read_buffer_count: i32,
    pub(crate) retry_buffer_count: i32,
    pub(crate) total_in_flight: i32,
    pub(crate) outstanding: i32,
    pub(crate) parked: i64,
}

/// A place of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// In a stream.
    Revision(u64),
    /// Among all events.
    Position(u64),
}

impl At {
    pub(crate) fn text(self) -> String {
        match self {
            At::Revision(revision) => revision.to_string(),
            At::Position(commit) => places::position_text(commit, commit),
        }
    }

    pub(crate) fn number(self) -> i64 {
        let (At::Revision(number) | At::Position(number)) = self;
        i64::try_from(number).unwrap_or(i64::MAX)
    }
}

/// How far a subscription to `$all` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllProgress {
    /// Events up to it are done with.
    pub(crate) done: Ordinal,
    /// Events up to it are known.
    pub(crate) known: Ordinal,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Connection {
    pub(crate) from: String,
    pub(crate) user: String,
    pub(crate) name: String,
    pub(crate) average_per_second: i32,
    pub(crate) total_items: i64,
    pub(crate) count_since_last_measurement: i64,
    pub(crate) measurements: Vec<(&'static str, i64)>,
    pub(crate) available_slots: i32,
    pub(crate) in_flight: i32,
}

impl Info {
    /// Of a group, with what this door knows of its consumers. Looking begins a new measurement.
    pub(crate) fn of(
        now: Timestamp,
        report: &GroupReport,
        noted: Option<&Noted>,
        calls: Option<&GroupCalls>,
        jobs: &[JobReport],
        all: Option<AllProgress>,
    ) -> Info {
        let figures = &report.figures;
        let connected = report.consumers.iter().filter(|consumer| consumer.bound == Bound::Connection);
        let connections: Vec<_> = connected.map(|consumer| Connection::of(now, consumer, calls)).collect();
        let delivered = figures.counters.delivered;
        // A group that has no consumers of this door is not measured from look to look.
        let since_last = calls.map_or(0, |calls| lock(&calls.measured).look(now, now, delivered).0);
        // As long as nothing is settled the checkpoint is only where the group began.
        let has_progress = figures.counters.settled() + figures.counters.parked > 0;
        let settings = Settings::shown(&report.settings, noted);
        let position =
            |ordinal: Ordinal| (ordinal > Ordinal(0)).then(|| At::Position(places::commit(ordinal)));
        let (checkpoint, last_known) = match all {
            Some(AllProgress { done, known }) => (position(done), position(known)),
            None => (revision(figures.checkpoint), revision(figures.last_known)),
        };
        Info {
            stream: if all.is_some() { ALL } else { report.stream.as_str() }.to_owned(),
            group: report.name.as_str().to_owned(),
            status: status(report, jobs),
            average_per_second: rate(report.throughput.delivered.second),
            total_items: long(delivered),
            count_since_last_measurement: since_last,
            last_checkpointed: checkpoint.filter(|_| has_progress),
            last_known,
            start_from: settings.start.text(all.is_some()),
            settings,
            read_buffer_count: int(figures.ready),
            retry_buffer_count: int(figures.waiting),
            total_in_flight: connections.iter().fold(0, |sum: i32, one| sum.saturating_add(one.in_flight)),
            outstanding: int(figures.in_flight),
            parked: long(figures.parked),
            connections,
        }
    }
}

impl Connection {
    fn of(now: Timestamp, report: &ConsumerReport, calls: Option<&GroupCalls>) -> Connection {
        let in_flight = int(report.in_flight);
        let slots = i32::try_from(report.credit).unwrap_or(i32::MAX);
        let mut connection = Connection {
            from: report.address.map(|address| address.to_string()).unwrap_or_default(),
            user: ANONYMOUS.to_owned(),
            name: report.name.to_string(),
            average_per_second: 0,
            total_items: long(report.acked + report.failed + report.in_flight),
            count_since_last_measurement: 0,
            measurements: Vec::new(),
            available_slots: slots.saturating_sub(in_flight).max(0),
            in_flight,
        };
        // A consumer of another door has no call here.
        if let Some(call) = calls.and_then(|calls| calls.call(report.id)) {
            let sent = call.sent.load(Ordering::Relaxed);
            let (count, per_second) = lock(&call.measured).look(now, call.since, sent);
            connection.name.clone_from(&call.connection_name);
            connection.user.clone_from(&call.user);
            connection.total_items = long(sent);
            connection.count_since_last_measurement = count;
            connection.average_per_second = per_second;
            connection.measurements = lock(&call.times).measurements();
        }
        connection
    }
}

/// Names of states, of which several may apply.
fn status(report: &GroupReport, jobs: &[JobReport]) -> String {
    let mut words = match report.figures.status {
        Status::Paused => vec!["NotReady"],
        Status::Idle if report.figures.ready == 0 => vec!["Live"],
        Status::Live => vec!["Live"],
        Status::ParkedFull | Status::WindowFull | Status::KeyScanFull | Status::Idle | Status::CatchingUp => {
            vec!["Behind"]
        }
    };
    let replays = |job: &JobReport| job.work == Work::Replay && job.state == JobState::Running;
    if jobs.iter().any(replays) {
        words.push("ReplayingParkedMessages");
    }
    words.join(", ")
}

fn revision(seq: Seq) -> Option<At> {
    places::revision(seq).map(At::Revision)
}

fn rate(per_second: f64) -> i32 {
    // A cast of a float ends at the limits of the number.
    per_second.round() as i32
}

fn int(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn long(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
