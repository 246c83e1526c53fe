//! Appends and readers: confirmed events are there, once and where the writer expected them; readers see each log in
//! its order, without a gap.

use std::collections::BTreeMap;

use super::{Append, Expected, Kept, Kurrent, Log, Number, Outcome, Revision, has};
use crate::checker::{Promise, Report};
use crate::history::Time;

pub(super) fn check(kurrent: &Kurrent, report: &mut Report) {
    for (name, log) in &kurrent.logs {
        if !log.was_read {
            let what = format!("{name}: no client read it in the end");
            report.add(Promise::Unfinished, kurrent.ended, what);
            continue;
        }
        let places = kept(kurrent, name, log, report);
        let appends = || kurrent.appends.iter().filter(|(_, append)| append.log == *name);
        for (number, append) in appends() {
            answers(*number, append, log, &places, report);
        }
        in_order_of_time(name, appends().map(|(_, append)| append), &places, report);
    }
    for (name, reader) in &kurrent.readers {
        let mut next: BTreeMap<&str, Revision> = BTreeMap::new();
        let mut last = None;
        for saw in &reader.saw {
            let what = || format!("{name} saw event {} at {}@{}", saw.kept.number, saw.revision, saw.log);
            let expected = next.entry(&saw.log).or_default();
            if saw.revision != *expected {
                report.add(Promise::ReadOrder, saw.at, format!("{}, and not revision {expected}", what()));
            }
            *expected = saw.revision + 1;
            if reader.source == "$all" && last.is_some_and(|last| saw.kept.position <= last) {
                report.add(Promise::ReadOrder, saw.at, format!("{} after a later one", what()));
            }
            last = Some(saw.kept.position);
            let log = kurrent.logs.get(&saw.log);
            if log.is_some_and(|log| !log.was_read) {
                continue;
            }
            match log.and_then(|log| log.kept.get(&saw.revision)) {
                None => report.add(Promise::Lost, saw.at, format!("{}, which is gone", what())),
                Some(kept) if kept.number != saw.kept.number => {
                    report.add(Promise::Unexpected, saw.at, format!("{}: {} is there", what(), kept.number));
                }
                Some(kept) if kept.content != saw.kept.content => {
                    report.add(Promise::Content, saw.at, format!("{}, and not as it was written", what()));
                }
                Some(_) => {}
            }
        }
        for (log, kept) in kurrent.logs.iter().filter(|(log, _)| has(&reader.source, log)) {
            let seen = next.get(log.as_str()).copied().unwrap_or_default();
            if kept.kept.keys().next_back().is_some_and(|last| *last >= seen) {
                let what = format!("{name} came no further than revision {seen} of {log}");
                report.add(Promise::Lost, kurrent.ended, what);
            }
        }
        report.counts.kurrent_read += reader.saw.len() as u64;
    }
}

/// Events that the log has in the end: each was appended, as it is there, and is there once. Where each event is.
fn kept(kurrent: &Kurrent, name: &str, log: &Log, report: &mut Report) -> BTreeMap<Number, Revision> {
    let mut places = BTreeMap::new();
    let mut last: Option<u64> = None;
    for ((&revision, &Kept { number, content, position }), expected) in log.kept.iter().zip(0..) {
        let what = format!("{name} has event {number} at revision {revision}");
        if revision != expected {
            report.add(Promise::ReadOrder, kurrent.ended, format!("{what}, and not {expected}"));
        }
        if last.is_some_and(|last| position <= last) {
            report.add(
                Promise::ReadOrder,
                kurrent.ended,
                format!("{what}, before the one that goes before it"),
            );
        }
        last = Some(position);
        let append = kurrent.appended.get(&number).filter(|event| kurrent.appends[&event.append].log == name);
        match append {
            None => {
                report.add(Promise::Unexpected, kurrent.ended, format!("{what}, which no client appended"));
            }
            Some(event) => {
                let tries = &kurrent.appends[&event.append].tries;
                if tries.iter().all(|one| matches!(one.outcome, Outcome::Conflict | Outcome::Refused)) {
                    report.add(
                        Promise::Unexpected,
                        kurrent.ended,
                        format!("{what}, which was always refused"),
                    );
                }
                if event.content != content {
                    report.add(Promise::Content, kurrent.ended, format!("{what}, and not as it was written"));
                }
            }
        }
        let first = *places.entry(number).or_insert(revision);
        if first != revision {
            report.add(Promise::StoredTwice, kurrent.ended, format!("{what} and at {first}"));
        }
    }
    places
}

/// An append is stored whole or not at all, where its writer expected the log to end, and at the place that was told.
fn answers(
    number: u64,
    append: &Append,
    log: &Log,
    places: &BTreeMap<Number, Revision>,
    report: &mut Report,
) {
    let at = append.tries.first().map_or(0, |one| one.at);
    let what = format!("append {number} to {}", append.log);
    let stored: Vec<Revision> = append.events.iter().filter_map(|event| places.get(event).copied()).collect();
    let is_run = stored.windows(2).all(|two| two[0] + 1 == two[1]);
    let is_whole = stored.len() == append.events.len() && is_run;
    if !stored.is_empty() && !is_whole {
        report.add(Promise::Torn, at, format!("{what} is there in part, at revisions {stored:?}"));
    }
    let first = stored.first().copied().filter(|_| is_whole);
    let fits = |expected: Expected, first: Revision| match expected {
        Expected::Any => true,
        Expected::NoStream => first == 0,
        Expected::At(revision) => first == revision + 1,
    };
    if first.is_some_and(|first| !append.tries.iter().any(|one| fits(one.expected, first))) {
        report.add(
            Promise::Expected,
            at,
            format!("{what} is at revision {first:?}, which it did not expect"),
        );
    }
    for one in &append.tries {
        match one.outcome {
            Outcome::Done(last, answered) if is_whole && stored.last() == Some(&last) => {
                if !fits(one.expected, last + 1 - append.events.len() as u64) {
                    let what = format!("{what} was confirmed at {last}, which it did not expect");
                    report.add(Promise::Expected, answered, what);
                }
            }
            Outcome::Done(last, answered) if stored.is_empty() => {
                report.add(Promise::Lost, answered, format!("{what} was confirmed at {last}, and is gone"));
            }
            Outcome::Done(last, answered) => {
                let what = format!("{what} was confirmed at {last}, and is at {stored:?}");
                report.add(Promise::StoredTwice, answered, what);
            }
            Outcome::Conflict if log.is_exclusive => {
                report.add(Promise::Refused, one.at, format!("{what} was a conflict with no other writer"));
            }
            Outcome::Unknown | Outcome::Conflict | Outcome::Refused => {}
        }
    }
    let is_confirmed = append.tries.iter().any(|one| matches!(one.outcome, Outcome::Done(..)));
    let was_unknown = append.tries.iter().any(|one| one.outcome == Outcome::Unknown);
    let events = append.events.len() as u64;
    report.counts.kurrent_appended += if is_confirmed { events } else { 0 };
    report.counts.kurrent_repeated += if is_confirmed && was_unknown { events } else { 0 };
    report.counts.kurrent_unknown += if is_confirmed || !was_unknown { 0 } else { events };
}

/// An append that was sent after another was confirmed is behind it.
fn in_order_of_time<'a>(
    name: &str,
    appends: impl Iterator<Item = &'a Append> + Clone,
    places: &BTreeMap<Number, Revision>,
    report: &mut Report,
) {
    let confirmed = appends.clone().flat_map(|append| &append.tries).filter_map(|one| match one.outcome {
        Outcome::Done(last, answered) => Some((answered, last)),
        _ => None,
    });
    let mut confirmed: Vec<(Time, Revision)> = confirmed.collect();
    confirmed.sort_unstable();
    // The furthest place that was confirmed up to each time.
    for n in 1..confirmed.len() {
        confirmed[n].1 = confirmed[n].1.max(confirmed[n - 1].1);
    }
    for append in appends {
        let sent = append.tries.first().map_or(0, |one| one.at);
        let before = confirmed[..confirmed.partition_point(|(at, _)| *at < sent)].last();
        let first = append.events.first().and_then(|event| places.get(event));
        if let (Some((_, before)), Some(first)) = (before, first)
            && first <= before
        {
            let what = format!("{name}: an append is at revision {first}, and {before} was confirmed before");
            report.add(Promise::ReadOrder, sent, what);
        }
    }
}
