//! Owners of a cluster. A run of the history is a term of one of them.

use std::collections::BTreeMap;

use super::record::{Ending, Record, RunId};
use super::{CLOCKS_AGREE, Promise, Report};
use crate::history::Time;

/// The cause of a change that nothing explains.
const NONE: &str = "none";

pub(super) fn check(record: &Record, report: &mut Report) {
    report.counts.faults = record.faults.clone();
    for change in &record.changes {
        *report.counts.changes.entry(change.cause.clone()).or_default() += 1;
        if change.cause == NONE {
            let what = format!("term {} began, and nothing was done to the owner before it", change.run);
            report.add(Promise::Owner, change.at, what);
        }
    }
    if !record.changes.is_empty() {
        one_at_a_time(record, report);
    }
}

/// An owner that is cut off does not deliver any more when its successor does. One that stops cleanly lets go of the
/// log at once, so that its last deliveries may still be on their way; and a process that is held still may be so just
/// before it writes to a socket.
fn one_at_a_time(record: &Record, report: &mut Report) {
    let mut began: BTreeMap<RunId, Time> = BTreeMap::new();
    for delivery in &record.deliveries {
        let first = began.entry(delivery.run).or_insert(delivery.at);
        *first = delivery.at.min(*first);
    }
    for delivery in &record.deliveries {
        let end = record.run_end(delivery.run);
        if end.is_some_and(|end| end.how == Ending::Stopped) {
            continue;
        }
        let next = began.range(delivery.run + 1..).find(|(_, at)| **at + CLOCKS_AGREE < delivery.at);
        let Some((next, at)) = next else { continue };
        if end.is_some_and(|end| end.was_suspended) {
            report.counts.late_deliveries += 1;
            continue;
        }
        let what = format!(
            "{} {} came in term {}, and the owner of term {next} delivers since {at}",
            delivery.group, delivery.seq, delivery.run
        );
        report.add(Promise::TwoOwners, delivery.at, what);
    }
}
