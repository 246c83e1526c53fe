//! Reads a history and says which promises it shows broken. Nothing here waits, opens a file or knows where
//! the history came from.
//!
//! | Module | Is about |
//! | --- | --- |
//! | `record` | The history, put in order |
//! | `messages` | Published messages: lost, unexpected, stored twice, early, left behind |
//! | `leases` | Who held what: overlaps, returns without a reason, attempts, answers, credit |
//! | `order` | Keys and pace |
//! | `queues` | SQS queues: lost, deleted and back, overlaps, order of groups |
//! | `kurrent` | KurrentDB clients: appends, readers, persistent subscriptions |
//! | `server` | What must be there after every start |
//! | `cluster` | Owners of a cluster: one at a time, and none that changes without a reason |
//!
//! The clients' times are not the server's. A request is sent before the server sees it and its answer comes
//! after, so what a client held is taken from when the message came until the first moment at which the
//! server may have taken it back. What overlaps even so did overlap.

mod cluster;
mod kurrent;
mod leases;
mod messages;
mod order;
mod queues;
mod record;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use crate::history::Time;

pub(crate) use record::Record;

/// Two clocks on one machine, of which the date may be corrected while they run, agree this well.
const CLOCKS_AGREE: Time = 20_000;
/// Violations of one kind that are told one by one.
const TOLD_MAX: usize = 10;

/// A promise, by what the history of a server that breaks it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// I1: an answered publish is gone.
    Lost,
    /// I2: a delivered message was never published, or was refused.
    Unexpected,
    /// I2: a delivery differs from its publish.
    Content,
    /// I3: two consumers held a message at once.
    Overlap,
    /// I3: a node of a cluster delivered after its successor had begun to.
    TwoOwners,
    /// I4: after everything the group is not done.
    Unfinished,
    /// I5: a settled message came back.
    CameBack,
    /// I5, in a group with durable acks.
    DurableAck,
    /// A second delivery for which there is no reason.
    Duplicate,
    /// I6: a message went before an earlier one of its key was done.
    KeyOrder,
    /// I7: a consumer held more than its credit.
    Credit,
    /// I8: a wrong number of attempts, or parked at the wrong time.
    Attempts,
    /// I9: progress went back.
    Progress,
    /// I10: a message came back with another time of publishing.
    Kept,
    /// I11: one publish stored two messages, or two publishes one.
    StoredTwice,
    /// I12: delivered before its delay was over.
    Early,
    /// I13: faster than the pace.
    Pace,
    /// I15: an answer to a lease that was over counted.
    Stale,
    /// An answer to a lease that was held did not count.
    LeaseForgotten,
    /// An answer that does not answer the question.
    Answer,
    /// A publish was refused for good, although nothing was wrong with it.
    Refused,
    /// I19: an append was stored in part.
    Torn,
    /// I20: a reader of a log missed an event, saw one twice, or saw it in another order.
    ReadOrder,
    /// I22: an append is at a revision that its writer did not expect.
    Expected,
    /// A stream or a group is gone or different after a restart.
    Present,
    /// The server ended by itself, did not start, or did not stop.
    Server,
    /// The owner of a cluster changed although nothing was done to it.
    Owner,
}

impl Promise {
    fn id(self) -> &'static str {
        match self {
            Promise::Lost => "I1",
            Promise::Unexpected | Promise::Content => "I2",
            Promise::Overlap | Promise::TwoOwners => "I3",
            Promise::Unfinished => "I4",
            Promise::CameBack | Promise::DurableAck | Promise::Duplicate => "I5",
            Promise::KeyOrder => "I6",
            Promise::Credit => "I7",
            Promise::Attempts => "I8",
            Promise::Progress => "I9",
            Promise::Kept => "I10",
            Promise::StoredTwice | Promise::Refused => "I11",
            Promise::Early => "I12",
            Promise::Pace => "I13",
            Promise::Stale | Promise::LeaseForgotten | Promise::Answer => "I15",
            Promise::Torn => "I19",
            Promise::ReadOrder => "I20",
            Promise::Expected => "I22",
            Promise::Present => "I16",
            Promise::Server => "server",
            Promise::Owner => "owner",
        }
    }
}

/// A promise that the history shows broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) at: Time,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at {} us: {}", self.promise.id(), self.promise, self.at, self.what)
    }
}

/// Why a message was delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    Nack,
    Expiry,
    Goodbye,
    Disconnect,
    Crash,
    Stop,
    Replay,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Publishes that were confirmed.
    pub(crate) confirmed: u64,
    /// Of them, those that had to be sent again because their outcome was unknown.
    pub(crate) confirmed_again: u64,
    /// Publishes whose outcome is unknown.
    pub(crate) unknown: u64,
    /// Of them, those that were delivered.
    pub(crate) recovered: u64,
    pub(crate) deliveries: u64,
    pub(crate) duplicates: BTreeMap<Reason, u64>,
    pub(crate) clock_leases_settled_after_a_crash: u64,
    pub(crate) parked: u64,
    pub(crate) replayed: u64,
    /// Messages of SQS queues: confirmed sends, receives, receives after the first, and deletes.
    pub(crate) sqs_sent: u64,
    pub(crate) sqs_received: u64,
    pub(crate) sqs_again: u64,
    pub(crate) sqs_deleted: u64,
    /// Events of KurrentDB clients: confirmed appends, those of them whose outcome was unknown at first, and appends
    /// whose outcome stayed unknown.
    pub(crate) kurrent_appended: u64,
    pub(crate) kurrent_repeated: u64,
    pub(crate) kurrent_unknown: u64,
    /// Events that readers saw, events that came on subscriptions, why they came again, and answers that the server
    /// showed that it had taken.
    pub(crate) kurrent_read: u64,
    pub(crate) kurrent_delivered: u64,
    pub(crate) kurrent_again: BTreeMap<Reason, u64>,
    pub(crate) kurrent_acks_taken: u64,
    pub(crate) starts: u64,
    pub(crate) kills: u64,
    /// Kills that took the power too.
    pub(crate) power_losses: u64,
    pub(crate) stops: u64,
    pub(crate) pauses: u64,
    /// Faults of the processes of a cluster, by name, and changes of owner, by cause.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) changes: BTreeMap<String, u64>,
    /// Deliveries of an owner that was held still, after its successor had begun to deliver.
    pub(crate) late_deliveries: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.confirmed += other.confirmed;
        self.confirmed_again += other.confirmed_again;
        self.unknown += other.unknown;
        self.recovered += other.recovered;
        self.deliveries += other.deliveries;
        for (reason, count) in &other.duplicates {
            *self.duplicates.entry(*reason).or_default() += count;
        }
        self.clock_leases_settled_after_a_crash += other.clock_leases_settled_after_a_crash;
        self.parked += other.parked;
        self.replayed += other.replayed;
        self.sqs_sent += other.sqs_sent;
        self.sqs_received += other.sqs_received;
        self.sqs_again += other.sqs_again;
        self.sqs_deleted += other.sqs_deleted;
        self.kurrent_appended += other.kurrent_appended;
        self.kurrent_repeated += other.kurrent_repeated;
        self.kurrent_unknown += other.kurrent_unknown;
        self.kurrent_read += other.kurrent_read;
        self.kurrent_delivered += other.kurrent_delivered;
        for (reason, count) in &other.kurrent_again {
            *self.kurrent_again.entry(*reason).or_default() += count;
        }
        self.kurrent_acks_taken += other.kurrent_acks_taken;
        self.starts += other.starts;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.stops += other.stops;
        self.pauses += other.pauses;
        for (all, of_run) in [(&mut self.faults, &other.faults), (&mut self.changes, &other.changes)] {
            for (name, count) in of_run {
                *all.entry(name.clone()).or_default() += count;
            }
        }
        self.late_deliveries += other.late_deliveries;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<Violation>,
}

impl Report {
    /// Adds the report of another run.
    pub(crate) fn add_run(&mut self, other: Report) {
        self.counts.add(&other.counts);
        self.violations.extend(other.violations);
    }

    fn add(&mut self, promise: Promise, at: Time, what: String) {
        self.violations.push(Violation { promise, at, what });
    }
}

/// Says what the history shows.
pub(crate) fn check(record: &Record) -> Report {
    let mut report = Report::default();
    server::check(record, &mut report);
    cluster::check(record, &mut report);
    messages::check(record, &mut report);
    leases::check(record, &mut report);
    order::check(record, &mut report);
    queues::check(&record.queues, &mut report);
    kurrent::check(record, &mut report);
    report.violations.sort_by_key(|violation| (violation.at, violation.promise));
    report
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.counts;
        writeln!(
            f,
            "server:      {} starts, {} kills ({} with loss of power), {} clean stops, {} pauses",
            of.starts, of.kills, of.power_losses, of.stops, of.pauses
        )?;
        if !of.faults.is_empty() {
            let (changes, late) = (of.changes.values().sum::<u64>(), of.late_deliveries);
            writeln!(f, "owners:      {changes} changes ({})", listed(&of.changes))?;
            writeln!(f, "             {late} deliveries of suspended owners after their successors began")?;
            writeln!(f, "faults:      {} ({})", of.faults.values().sum::<u64>(), listed(&of.faults))?;
        }
        writeln!(
            f,
            "publishes:   {} confirmed ({} of them after an unknown outcome), {} unknown ({} recovered)",
            of.confirmed, of.confirmed_again, of.unknown, of.recovered
        )?;
        writeln!(f, "deliveries:  {}, {}", of.deliveries, again(&of.duplicates))?;
        writeln!(
            f,
            "leases:      {} on the clock settled after the server that gave them was gone",
            of.clock_leases_settled_after_a_crash
        )?;
        writeln!(f, "parked:      {}, {} of them replayed", of.parked, of.replayed)?;
        writeln!(
            f,
            "SQS:         {} sent, {} received ({} of them again), {} deleted",
            of.sqs_sent, of.sqs_received, of.sqs_again, of.sqs_deleted
        )?;
        writeln!(
            f,
            "Kurrent:     {} appended ({} of them after an unknown outcome), {} unknown, {} read",
            of.kurrent_appended, of.kurrent_repeated, of.kurrent_unknown, of.kurrent_read
        )?;
        writeln!(
            f,
            "             {} delivered, {}, {} answers shown to be taken",
            of.kurrent_delivered,
            again(&of.kurrent_again),
            of.kurrent_acks_taken
        )?;
        write!(f, "violations:  {}", self.violations.len())?;
        let mut told: BTreeMap<Promise, usize> = BTreeMap::new();
        for violation in &self.violations {
            let count = told.entry(violation.promise).or_default();
            *count += 1;
            if *count <= TOLD_MAX {
                write!(f, "\n  {violation}")?;
            }
        }
        for (promise, count) in told.into_iter().filter(|(_, count)| *count > TOLD_MAX) {
            write!(f, "\n  {} {promise:?}: {} more", promise.id(), count - TOLD_MAX)?;
        }
        Ok(())
    }
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// How many came again, and why.
fn again(reasons: &BTreeMap<Reason, u64>) -> String {
    let count: u64 = reasons.values().sum();
    let reasons = reasons.iter().map(|(reason, count)| format!("{reason:?} {count}").to_lowercase());
    format!("{count} of them again ({})", reasons.collect::<Vec<_>>().join(", "))
}
