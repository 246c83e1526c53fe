//! Persistent subscriptions. The protocol has no answer to an ack, so a client learns in one way only that its ack was
//! taken: the server keeps to the size of the client's buffer, and takes the answers of a call in the order in which
//! they were sent. An event that comes on a call beyond that size shows that the oldest answers were taken.
//!
//! The promise is then: an event whose ack the server has taken, while the consumer held the event, does not come again
//! while the server runs, nor after a clean stop, nor after a kill, unless the kill came so soon that the ack was not
//! in the log yet. An ack that the server may not have read promises nothing, since its call may have ended before; but
//! an event that comes again always has a reason.

use std::collections::BTreeMap;

use super::{Action, Delivery, Kurrent, Number, has};
use crate::checker::record::Record;
use crate::checker::{Promise, Reason, Report};
use crate::history::Time;

/// A consumer may see an event this long after the server leased it, on a machine that is busy with other things.
const SEEN_WITHIN: Time = 1_000_000;
/// An answer that is sent is taken within this time by a server that is at work.
const TAKEN_WITHIN: Time = 2_000_000;

pub(super) fn check(record: &Record, report: &mut Report) {
    let kurrent = &record.kurrent;
    let view = View { record, kurrent, taken: taken(record, report), by_event: by_event(kurrent) };
    for delivery in &kurrent.deliveries {
        view.is_the_event(delivery, report);
    }
    for deliveries in view.by_event.values() {
        for two in deliveries.windows(2) {
            view.again(two[0], two[1], report);
        }
        for &index in deliveries {
            view.attempts(index, report);
        }
    }
    finished(kurrent, &view.by_event, report);
    report.counts.kurrent_delivered = kurrent.deliveries.len() as u64;
    report.counts.kurrent_acks_taken = view.taken.len() as u64;
}

/// Deliveries by subscription and event, in the order of the server's lives and then of time.
type ByEvent<'a> = BTreeMap<(&'a str, Number), Vec<usize>>;

fn by_event(kurrent: &Kurrent) -> ByEvent<'_> {
    let mut all: ByEvent<'_> = BTreeMap::new();
    for (index, delivery) in kurrent.deliveries.iter().enumerate() {
        let subscription = kurrent.calls[&delivery.call].subscription.as_str();
        all.entry((subscription, delivery.number)).or_default().push(index);
    }
    for deliveries in all.values_mut() {
        deliveries.sort_by_key(|&index| {
            let delivery = &kurrent.deliveries[index];
            (kurrent.calls[&delivery.call].run, delivery.at)
        });
    }
    all
}

/// Which answers the server certainly took, and when at the latest; by delivery. Also I7: no call holds more events
/// than its buffer has room for.
fn taken(record: &Record, report: &mut Report) -> BTreeMap<usize, Time> {
    let kurrent = &record.kurrent;
    // An answer may also be for an event that came to another call meanwhile, and frees that call's room.
    let mut answers: BTreeMap<(&str, Number), Vec<(usize, Time)>> = BTreeMap::new();
    for (index, delivery) in kurrent.deliveries.iter().enumerate() {
        let subscription = kurrent.calls[&delivery.call].subscription.as_str();
        let answer = delivery.answer.map(|(_, at)| (index, at));
        answers.entry((subscription, delivery.number)).or_default().extend(answer);
    }
    let mut taken = BTreeMap::new();
    for call in kurrent.calls.values() {
        let timeout = kurrent.subscriptions[&call.subscription].timeout;
        for (n, &newest) in call.deliveries.iter().enumerate() {
            let now = kurrent.deliveries[newest].at;
            let is_held = |&index: &usize| {
                let delivery = &kurrent.deliveries[index];
                let may_be_over = now > delivery.at + timeout.saturating_sub(SEEN_WITHIN)
                    || record
                        .pauses
                        .iter()
                        .any(|&(from, until)| from <= now && until.saturating_add(timeout) >= delivery.at);
                let others = &answers[&(call.subscription.as_str(), delivery.number)];
                let by_other =
                    |&(of, at): &(usize, Time)| of != index && at + TAKEN_WITHIN > delivery.at && at <= now;
                !may_be_over && !others.iter().any(by_other)
            };
            let held: Vec<usize> = call.deliveries[..=n].iter().copied().filter(is_held).collect();
            let beyond = held.len().saturating_sub(call.buffer);
            let answer = |&index: &usize| {
                let (_, at) = kurrent.deliveries[index].answer?;
                (at <= now).then_some((at, index))
            };
            let mut answered: Vec<(Time, usize)> = held.iter().filter_map(answer).collect();
            answered.sort_unstable();
            if answered.len() < beyond {
                let (count, buffer) = (held.len() - answered.len(), call.buffer);
                let what =
                    format!("{}: a call with a buffer of {buffer} had {count} events", call.subscription);
                report.add(Promise::Credit, now, what);
            }
            for &(_, index) in answered.iter().take(beyond) {
                taken.entry(index).or_insert(now);
            }
        }
    }
    taken
}

struct View<'a> {
    record: &'a Record,
    kurrent: &'a Kurrent,
    taken: BTreeMap<usize, Time>,
    by_event: ByEvent<'a>,
}

impl View<'_> {
    fn named(&self, delivery: &Delivery) -> String {
        let subscription = &self.kurrent.calls[&delivery.call].subscription;
        format!("{subscription} event {} at {}@{}", delivery.number, delivery.revision, delivery.log)
    }

    /// I2: what comes is the event that the log has there.
    fn is_the_event(&self, delivery: &Delivery, report: &mut Report) {
        let what = self.named(delivery);
        let log = self.kurrent.logs.get(&delivery.log);
        if log.is_some_and(|log| !log.was_read) {
            return;
        }
        match log.and_then(|log| log.kept.get(&delivery.revision)) {
            None => {
                report.add(Promise::Lost, delivery.at, format!("{what} came, and the log has it no more"));
            }
            Some(kept) if kept.number != delivery.number => {
                report.add(
                    Promise::Unexpected,
                    delivery.at,
                    format!("{what} came, and {} is there", kept.number),
                );
            }
            Some(kept) if kept.content != delivery.content => {
                report.add(Promise::Content, delivery.at, format!("{what} is not the one that was written"));
            }
            Some(_) => {}
        }
    }

    /// From when on the server certainly had the answer to a delivery, while the consumer held the event.
    fn settled(&self, index: usize) -> Option<Time> {
        let delivery = &self.kurrent.deliveries[index];
        let call = &self.kurrent.calls[&delivery.call];
        let (_, sent) = delivery.answer?;
        // Without another sign: the call went on for so long that the server has read it.
        let later = sent + TAKEN_WITHIN;
        let went_on = call.end.map_or(self.kurrent.ended, |end| end.at) >= later;
        let shown = self.taken.get(&index).copied();
        let taken = [shown, went_on.then_some(later)].into_iter().flatten().min()?;
        let timeout = self.kurrent.subscriptions[&call.subscription].timeout;
        let over = delivery.at + timeout.saturating_sub(SEEN_WITHIN);
        let in_time = shown.is_some_and(|at| at <= over) || sent + SEEN_WITHIN <= over;
        // A server that is held still may take an answer long after it was sent.
        (in_time && !self.was_still(delivery.at.saturating_sub(timeout), taken)).then_some(taken)
    }

    fn was_still(&self, from: Time, until: Time) -> bool {
        self.record.pauses.iter().any(|&(start, end)| start <= until && end >= from)
    }

    /// I3, I5: an event that comes again has a reason, and none that was settled does.
    fn again(&self, first: usize, second: usize, report: &mut Report) {
        let (a, b) = (&self.kurrent.deliveries[first], &self.kurrent.deliveries[second]);
        let (call, next) = (&self.kurrent.calls[&a.call], &self.kurrent.calls[&b.call]);
        let subscription = &self.kurrent.subscriptions[&call.subscription];
        let what = || self.named(b);
        let action = a.answer.map(|(action, _)| action);
        let was_unparked = subscription.unparked.iter().any(|at| *at <= b.at);
        let is_final = match action {
            Some(Action::Ack | Action::Skip) => true,
            Some(Action::Park) => !was_unparked,
            Some(Action::Retry) | None => false,
        };
        let settled = self.settled(first).filter(|at| is_final && *at <= b.at);
        let is_forgotten = |at: Time| call.run != next.run && self.record.may_be_forgotten(call.run, at);
        if let Some(at) = settled
            && !is_forgotten(at)
        {
            let after = b.at - at;
            let what = format!("{} came again {after} us after its {action:?} was taken", what());
            return report.add(Promise::CameBack, b.at, what);
        }
        let reason = if call.run != next.run {
            Reason::Crash
        } else if action == Some(Action::Retry) && a.answer.is_some_and(|(_, at)| at <= b.at) {
            Reason::Nack
        } else if call.end.is_some_and(|end| end.at <= b.at) {
            Reason::Disconnect
        } else if was_unparked {
            Reason::Replay
        } else if b.at + SEEN_WITHIN >= a.at + subscription.timeout
            || self.was_still(a.at.saturating_sub(subscription.timeout), b.at)
        {
            Reason::Expiry
        } else if a.answer.is_some_and(|(_, at)| at <= b.at) {
            let what = format!("{} came again after its {action:?}, and there was no reason", what());
            return report.add(Promise::Duplicate, b.at, what);
        } else {
            let what = format!("{} came to a second consumer, and the first held it", what());
            return report.add(Promise::Overlap, b.at, what);
        };
        *report.counts.kurrent_again.entry(reason).or_default() += 1;
    }

    /// I8: an event is tried no more often than the subscription allows, and a retry that a running server was asked
    /// for counts.
    fn attempts(&self, index: usize, report: &mut Report) {
        let delivery = &self.kurrent.deliveries[index];
        let call = &self.kurrent.calls[&delivery.call];
        let subscription = &self.kurrent.subscriptions[&call.subscription];
        if delivery.retries > subscription.retries {
            let what = format!("{} came with {} retries", self.named(delivery), delivery.retries);
            report.add(Promise::Attempts, delivery.at, what);
        }
        let deliveries = &self.by_event[&(call.subscription.as_str(), delivery.number)];
        let before = deliveries.iter().take_while(|&&other| other != index).last();
        let Some(before) = before.map(|&before| &self.kurrent.deliveries[before]) else { return };
        let was_unparked = subscription.unparked.iter().any(|at| *at <= delivery.at);
        let is_same_run = self.kurrent.calls[&before.call].run == call.run;
        if is_same_run && !was_unparked && delivery.retries < before.retries {
            let (is, was) = (delivery.retries, before.retries);
            let what = format!("{} came with {is} retries after {was}", self.named(delivery));
            report.add(Promise::Attempts, delivery.at, what);
        }
    }
}

/// I1, I4: in the end every event of the log has come, and is gone only because a consumer was done with it.
fn finished(kurrent: &Kurrent, by_event: &ByEvent<'_>, report: &mut Report) {
    for (name, subscription) in &kurrent.subscriptions {
        match subscription.stood {
            Some((0, 0)) => {}
            Some((open, parked)) => {
                let what = format!("{name} has {open} open and {parked} parked events in the end");
                report.add(Promise::Unfinished, kurrent.ended, what);
            }
            None => {
                let what = format!("{name}: no client asked how it stood in the end");
                report.add(Promise::Unfinished, kurrent.ended, what);
            }
        }
        let logs = kurrent.logs.iter().filter(|(log, _)| has(&subscription.source, log));
        for (log, kept) in logs.flat_map(|(log, of)| of.kept.values().map(move |kept| (log, kept))) {
            let what = || format!("{name} event {} of {log}", kept.number);
            match by_event.get(&(name.as_str(), kept.number)) {
                None => report.add(Promise::Lost, kurrent.ended, format!("{} never came", what())),
                Some(deliveries) => {
                    let action = |&index: &usize| kurrent.deliveries[index].answer.map(|(action, _)| action);
                    let is_done = |index| matches!(action(index), Some(Action::Ack | Action::Skip));
                    if !deliveries.iter().any(is_done) && subscription.stood == Some((0, 0)) {
                        let what = format!("{} is gone, and no consumer was done with it", what());
                        report.add(Promise::Lost, kurrent.ended, what);
                    }
                }
            }
        }
    }
}
