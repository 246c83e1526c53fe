//! Order of keys (I6) and the pace of a group (I13).

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Action, Answer, Group, Outcome, Record, RunId, Seq};
use super::{CLOCKS_AGREE, Promise, Report};
use crate::history::Time;

pub(super) fn check(record: &Record, report: &mut Report) {
    for (name, group) in &record.groups {
        if group.is_ordered {
            keys(record, name, group, report);
        }
        if group.rate.is_some() {
            pace(record, name, group, report);
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A client was told that it is done.
    Closed(Seq),
    Delivered(Seq),
}

/// The next message of a key goes only when all before it are done. One that a crash brings back is not done
/// any more.
fn keys(record: &Record, name: &str, group: &Group, report: &mut Report) {
    let mut steps: BTreeMap<&str, Vec<(RunId, Time, Step)>> = BTreeMap::new();
    let mut open: BTreeMap<&str, BTreeSet<Seq>> = BTreeMap::new();
    let key_of = |number| record.publishes.get(&number).and_then(|publish| publish.key.as_deref());
    for publish in record.publishes.values().filter(|publish| publish.stream == group.stream) {
        if let Some(key) = &publish.key {
            open.entry(key).or_default().extend(&publish.confirmed);
        }
    }
    for delivery in record.deliveries.iter().filter(|delivery| &*delivery.group == name) {
        let Some(key) = key_of(delivery.number) else { continue };
        open.entry(key).or_default().insert(delivery.seq);
        let of_key = steps.entry(key).or_default();
        of_key.push((delivery.run, delivery.at, Step::Delivered(delivery.seq)));
        let is_last = group.retries.is_some_and(|retries| delivery.attempt > retries);
        if is_last {
            // It may be parked by itself at any time from now on.
            of_key.push((delivery.run, delivery.at + 1, Step::Closed(delivery.seq)));
        }
        for settle in &delivery.settles {
            let counts = !matches!(settle.answer, Answer::Is(Outcome::NotYours, _) | Answer::Refused);
            if counts && matches!(settle.action, Action::Ack | Action::Skip | Action::Park) {
                of_key.push((settle.run, settle.invoked, Step::Closed(delivery.seq)));
            }
        }
    }
    for (key, mut steps) in steps {
        steps.sort();
        let open = open.entry(key).or_default();
        for (run, at, step) in steps {
            match step {
                Step::Closed(seq) => {
                    open.remove(&seq);
                }
                Step::Delivered(seq) => {
                    open.insert(seq);
                    if let Some(first) = open.first().filter(|first| **first < seq) {
                        let what =
                            format!("{name} key {key}: {seq} came in run {run} while {first} was not done");
                        report.add(Promise::KeyOrder, at, what);
                    }
                }
            }
        }
    }
}

/// In any stretch of time no more go than the rate and the burst allow. When a lease was granted is told by its
/// deadline, by the server's own clock, so that it does not matter how long a delivery was on its way.
fn pace(record: &Record, name: &str, group: &Group, report: &mut Report) {
    let Some(rate) = group.rate else { return };
    let of_group = record.deliveries.iter().filter(|delivery| &*delivery.group == name);
    // Who receives without a connection may ask for leases of another length.
    let paced = of_group.filter(|delivery| delivery.session.is_some());
    let mut granted: Vec<Time> =
        paced.map(|delivery| delivery.deadline.saturating_sub(group.timeout)).collect();
    granted.sort_unstable();
    let room = rate.burst + rate.per_second * seconds(CLOCKS_AGREE);
    let (mut level, mut last) = (0.0f64, 0);
    for at in granted {
        level = (level - rate.per_second * seconds(at - last)).max(0.0) + 1.0;
        last = at;
        if level > room + 1e-6 {
            let what = format!("{name}: {:.1} more than the pace allows", level - rate.burst);
            report.add(Promise::Pace, at, what);
            // Each excess is reported once.
            level = room;
        }
    }
}

fn seconds(micros: Time) -> f64 {
    micros as f64 / 1e6
}
