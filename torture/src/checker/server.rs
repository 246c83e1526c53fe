//! What must be there after every start.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Ending, Record};
use super::{Promise, Report};

pub(super) fn check(record: &Record, report: &mut Report) {
    let ends = |how| record.runs.values().filter(|run| run.end.is_some_and(|end| end.how == how)).count();
    report.counts.starts = record.runs.len() as u64;
    report.counts.kills = ends(Ending::Killed) as u64;
    report.counts.power_losses = record.power_losses;
    report.counts.stops = ends(Ending::Stopped) as u64;
    report.counts.pauses = record.pauses.len() as u64;
    for (at, what) in &record.trouble {
        report.add(Promise::Server, *at, what.clone());
    }
    present(record, report);
    progress(record, report);
}

/// After a restart a client finds every stream and every group as it was.
fn present(record: &Record, report: &mut Report) {
    let mut asked: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    let mut made = BTreeSet::new();
    for presence in &record.presences {
        asked.entry(presence.run).or_default().insert(&presence.name);
        // The first to ask makes them.
        let is_first = made.insert(&presence.name);
        if presence.found != "same" && !(is_first && presence.found == "new") {
            let what = format!("{} is {} in run {}", presence.name, presence.found, presence.run);
            report.add(Promise::Present, presence.at, what);
        }
    }
    let names = record.streams.iter().map(String::as_str).chain(record.groups.keys().map(|name| &**name));
    let names: BTreeSet<&str> = names.collect();
    for (run, found) in asked {
        for name in names.difference(&found) {
            report.add(Promise::Present, record.ended, format!("nobody found {name} in run {run}"));
        }
    }
}

/// I9: what a group was done with stays done.
fn progress(record: &Record, report: &mut Report) {
    let mut floors: BTreeMap<&str, u64> = BTreeMap::new();
    for presence in &record.presences {
        let Some(floor) = presence.floor else { continue };
        let before = floors.entry(&presence.name).or_default();
        if floor < *before {
            let what = format!("{}: the floor went back from {before} to {floor}", presence.name);
            report.add(Promise::Progress, presence.at, what);
        }
        *before = floor.max(*before);
    }
}
