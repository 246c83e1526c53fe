//! Published messages: none is lost, none appears without a publish, none is stored twice.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Action, Answer, Delivery, Figures, Group, Number, Outcome, Publish, Record, Seq};
use super::{CLOCKS_AGREE, Promise, Report};

pub(super) fn check(record: &Record, report: &mut Report) {
    for delivery in &record.deliveries {
        delivered(record, delivery, report);
    }
    report.counts.deliveries = record.deliveries.len() as u64;
    let stored = positions(record, report);
    for (number, publish) in &record.publishes {
        if let Some(why) = &publish.hopeless {
            let what = format!("message {number} was refused for good: {why}");
            report.add(Promise::Refused, publish.sent, what);
        }
        if !publish.confirmed.is_empty() {
            report.counts.confirmed += 1;
            report.counts.confirmed_again += u64::from(publish.unknown > 0);
        } else if publish.refused < publish.tries {
            report.counts.unknown += 1;
            report.counts.recovered += u64::from(stored.contains_key(number));
        }
    }
    for (name, group) in &record.groups {
        finished(record, name, group, &stored, report);
    }
}

/// I2, I12: a delivery equals its publish, and does not come too soon.
fn delivered(record: &Record, delivery: &Delivery, report: &mut Report) {
    let at = delivery.at;
    let what = format!("{} {} (message {})", delivery.group, delivery.seq, delivery.number);
    let stream = record.groups.get(&delivery.group).map(|group| group.stream.as_str());
    let publish = record.publishes.get(&delivery.number);
    let Some(publish) = publish.filter(|publish| Some(publish.stream.as_str()) == stream) else {
        report.add(Promise::Unexpected, at, format!("{what} was never published"));
        return;
    };
    if publish.confirmed.is_empty() && publish.refused == publish.tries {
        report.add(Promise::Unexpected, at, format!("{what} was refused each time it was published"));
    }
    if publish.content != delivery.content {
        report.add(Promise::Content, at, format!("{what} is not what was published"));
    }
    if at + CLOCKS_AGREE < publish.sent + publish.delay {
        let early = publish.sent + publish.delay - at;
        report.add(Promise::Early, at, format!("{what} came {early} us before its delay was over"));
    }
}

/// The position of each message, by all deliveries and confirmations. I11: one publish has one position, and I10:
/// one position has one publish.
fn positions(record: &Record, report: &mut Report) -> BTreeMap<Number, Seq> {
    let mut by_number: BTreeMap<Number, BTreeSet<Seq>> = BTreeMap::new();
    for (&number, publish) in record.publishes.iter().filter(|(_, publish)| !publish.confirmed.is_empty()) {
        by_number.entry(number).or_default().extend(&publish.confirmed);
    }
    let mut published: BTreeMap<(&str, Seq), u64> = BTreeMap::new();
    for delivery in &record.deliveries {
        by_number.entry(delivery.number).or_default().insert(delivery.seq);
        let Some(group) = record.groups.get(&delivery.group) else { continue };
        let first = published.entry((&group.stream, delivery.seq)).or_insert(delivery.published);
        if *first != delivery.published {
            let what = format!(
                "{} {}: published at {first} and at {}",
                delivery.group, delivery.seq, delivery.published
            );
            report.add(Promise::Kept, delivery.at, what);
        }
    }
    let mut by_seq: BTreeMap<(&str, Seq), Number> = BTreeMap::new();
    let mut stored = BTreeMap::new();
    for (number, seqs) in by_number {
        let Some(publish) = record.publishes.get(&number) else { continue };
        if seqs.len() > 1 {
            let what = format!("message {number} is in {} as {seqs:?}", publish.stream);
            report.add(Promise::StoredTwice, publish.sent, what);
        }
        for &seq in &seqs {
            if let Some(other) = by_seq.insert((&publish.stream, seq), number) {
                let what = format!("messages {other} and {number} are both {} {seq}", publish.stream);
                report.add(Promise::StoredTwice, publish.sent, what);
            }
        }
        stored.extend(seqs.first().map(|&seq| (number, seq)));
    }
    stored
}

/// How far a group got with a message, as far as its consumers know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    NeverSeen,
    Open,
    /// A client asked to end it, and the outcome is unknown.
    MaybeDone,
    Done,
}

fn fate(record: &Record, group: &str, seq: Seq) -> Fate {
    let deliveries = record.by_message.get(&(group.into(), seq));
    let mut fate = if deliveries.is_some() { Fate::Open } else { Fate::NeverSeen };
    for settle in deliveries.into_iter().flatten().flat_map(|&index| &record.deliveries[index].settles) {
        match settle.answer {
            Answer::Is(Outcome::Acked | Outcome::Skipped, at) => {
                if !record.may_be_forgotten(settle.run, at) {
                    return Fate::Done;
                }
                fate = Fate::MaybeDone;
            }
            Answer::Unknown if matches!(settle.action, Action::Ack | Action::Skip) => fate = Fate::MaybeDone,
            _ => {}
        }
    }
    fate
}

/// I1, I4: in the end everything that was stored is done or parked, in every group of its stream.
fn finished(record: &Record, name: &str, group: &Group, stored: &BTreeMap<Number, Seq>, report: &mut Report) {
    let figures = record.figures.get(name);
    let Some(last) = figures.and_then(|figures| figures.last()) else {
        let what = format!("{name}: nobody asked how it stood in the end");
        report.add(Promise::Unfinished, record.ended, what);
        return;
    };
    let figures = figures.into_iter().flatten();
    let parked = figures.clone().map(|figures| figures.parked).max().unwrap_or(0);
    report.counts.parked += parked;
    report.counts.replayed += parked - last.parked.min(parked);
    for figures in figures {
        in_agreement(record, name, figures, report);
    }
    if last.lag > 0 {
        let what = format!("{name}: {} messages are not finished", last.lag);
        report.add(Promise::Unfinished, last.at, what);
    }
    let of_stream = |publish: &Publish| publish.stream == group.stream;
    let mut missing = Vec::new();
    let parked_seqs: BTreeSet<Seq> = last.parked_seqs.iter().flatten().copied().collect();
    for (number, &seq) in stored {
        let Some(publish) = record.publishes.get(number).filter(|publish| of_stream(publish)) else {
            continue;
        };
        let fate = fate(record, name, seq);
        if !parked_seqs.contains(&seq) && matches!(fate, Fate::NeverSeen | Fate::Open) {
            missing.push((publish, number, seq, fate));
        }
    }
    // Without their names, the parked ones are known by how many they are.
    let parked = if last.parked_seqs.is_some() { 0 } else { last.parked };
    // Messages that the group itself reports as unfinished have been reported already.
    if missing.len() as u64 > parked + last.lag {
        for (publish, number, seq, fate) in &missing {
            let seen = if *fate == Fate::NeverSeen { "was never delivered" } else { "was never finished" };
            let what = format!(
                "{name} {seq} (message {number}) {seen}; {} are missing, and {} are parked",
                missing.len(),
                last.parked
            );
            report.add(Promise::Lost, publish.sent, what);
        }
    }
}

/// The group's report of parked messages agrees with itself and with the outcomes that consumers got.
fn in_agreement(record: &Record, name: &str, figures: &Figures, report: &mut Report) {
    let Some(seqs) = &figures.parked_seqs else { return };
    if seqs.len() as u64 != figures.parked {
        let what = format!("{name}: {} are parked, and {} are listed", figures.parked, seqs.len());
        report.add(Promise::Unfinished, figures.at, what);
    }
    for &seq in seqs {
        let deliveries = record.by_message.get(&(name.into(), seq)).into_iter().flatten();
        let mut settles = deliveries.flat_map(|&index| &record.deliveries[index].settles);
        let done = settles.any(|settle| {
            let done = settle.answered(Outcome::Acked).or(settle.answered(Outcome::Skipped));
            done.is_some_and(|at| at < figures.at && !record.may_be_forgotten(settle.run, at))
        });
        if done {
            let what = format!("{name} {seq} is parked, and was settled before");
            report.add(Promise::CameBack, figures.at, what);
        }
    }
}
