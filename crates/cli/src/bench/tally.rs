//! The records of all producers and consumers of a run, made a batch at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::histogram::{FineHistogram, Summary};

use super::ledger::{Delivery, Ledger};
use super::pace::Feed;
use super::stamp::Stamp;
use crate::clock::Timestamp;

/// Messages that were sent together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) at: Timestamp,
}

/// The measured window, and the messages that are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    /// Latencies are those of messages whose time counts from here on, and from before `to`.
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Whether the run has consumers.
    pub(super) is_consumed: bool,
    /// Whether it says anything how long a message took to its consumer.
    pub(super) is_end_to_end: bool,
}

#[derive(Debug)]
pub(super) struct Tally {
    scope: Scope,
    ledgers: Vec<Mutex<Ledger>>,
    sent: AtomicU64,
    confirmed: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    unsent: AtomicU64,
    delivered: AtomicU64,
    duplicates: AtomicU64,
    foreign: AtomicU64,
    acked: AtomicU64,
    not_acked: AtomicU64,
    last_confirmed: AtomicU64,
    last_acked: AtomicU64,
    times: Mutex<Times>,
}

/// How long things took.
#[derive(Debug, Default, Clone)]
pub(super) struct Times {
    /// From when a message was sent, or due, to its confirmation.
    pub(super) publish: FineHistogram,
    /// To its consumer.
    pub(super) end_to_end: FineHistogram,
    /// From when a message was due to when it was sent.
    pub(super) delay: FineHistogram,
}

/// The summary of a histogram. `None` if nothing was recorded.
pub(super) fn summary(histogram: &FineHistogram) -> Option<Summary> {
    Some(histogram.summary()).filter(|summary| summary.count > 0)
}

impl Times {
    pub(super) fn merge(&mut self, other: &Times) {
        self.publish.merge(&other.publish);
        self.end_to_end.merge(&other.end_to_end);
        self.delay.merge(&other.delay);
    }
}

/// How many messages came how far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) confirmed: u64,
    /// The server had no room for them, or they came too fast for it.
    pub(super) refused: u64,
    /// Messages of which it is unknown whether they were stored.
    pub(super) unknown: u64,
    /// Due before the end, and not sent.
    pub(super) unsent: u64,
    /// Each counts once.
    pub(super) delivered: u64,
    pub(super) duplicates: u64,
    /// Not of this run.
    pub(super) foreign: u64,
    pub(super) acked: u64,
    /// Their acks changed nothing.
    pub(super) not_acked: u64,
}

impl Tally {
    pub(super) fn new(producers: u64, scope: Scope) -> Tally {
        Tally {
            scope,
            ledgers: (0..producers).map(|_| Mutex::default()).collect(),
            sent: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            not_acked: AtomicU64::new(0),
            last_confirmed: AtomicU64::new(0),
            last_acked: AtomicU64::new(0),
            times: Mutex::default(),
        }
    }

    /// A producer is about to send these.
    pub(super) fn send(&self, feed: &Feed, sent: Sent) {
        if self.scope.is_consumed {
            self.ledger(feed.producer).send(sent.count);
        }
        add(&self.sent, sent.count);
        if feed.pace.is_some() {
            let mut times = lock(&self.times);
            for since in self.measured(feed, sent) {
                times.delay.record_n(sent.at.since(since), 1);
            }
        }
    }

    pub(super) fn confirm(&self, feed: &Feed, sent: Sent, now: Timestamp) {
        if self.scope.is_consumed {
            self.ledger(feed.producer).confirm(sent.first, sent.count);
        }
        add(&self.confirmed, sent.count);
        self.last_confirmed.fetch_max(now.0, Ordering::Relaxed);
        let mut times = lock(&self.times);
        if feed.pace.is_some() {
            self.measured(feed, sent).for_each(|since| times.publish.record_n(now.since(since), 1));
        } else if self.is_measured(sent.at) {
            times.publish.record_n(now.since(sent.at), sent.count);
        }
    }

    pub(super) fn refuse(&self, feed: &Feed, sent: Sent) {
        if self.scope.is_consumed {
            self.ledger(feed.producer).refuse(sent.first, sent.count);
        }
        add(&self.refused, sent.count);
    }

    pub(super) fn lose_sight_of(&self, sent: Sent) {
        add(&self.unknown, sent.count);
    }

    /// A producer is done. What it should have sent by now has waited for so long at least, and would be missing from
    /// the latencies just because the server was too slow for it.
    pub(super) fn finish(&self, feed: &Feed) {
        let unsent = feed.unsent();
        let sent = Sent { first: unsent.start, count: unsent.end - unsent.start, at: feed.until };
        add(&self.unsent, sent.count);
        let mut times = lock(&self.times);
        for since in self.measured(feed, sent) {
            let waited = feed.until.since(since);
            times.publish.record_n(waited, 1);
            times.delay.record_n(waited, 1);
            if self.scope.is_end_to_end {
                times.end_to_end.record_n(waited, 1);
            }
        }
    }

    /// A consumer got messages; `None` is one without a stamp.
    pub(super) fn deliver(&self, stamps: &[Option<Stamp>], now: Timestamp) {
        let mut first = 0;
        let mut times = self.scope.is_end_to_end.then(|| lock(&self.times));
        for run in stamps.chunk_by(|one, other| one.map(|it| it.producer) == other.map(|it| it.producer)) {
            let ledger = run[0].and_then(|stamp| self.ledgers.get(usize::from(stamp.producer)));
            let Some(mut ledger) = ledger.map(lock) else {
                add(&self.foreign, run.len() as u64);
                continue;
            };
            for stamp in run.iter().flatten() {
                match ledger.deliver(stamp.number) {
                    Delivery::First => {
                        first += 1;
                        if let Some(times) = times.as_mut().filter(|_| self.is_measured(stamp.at)) {
                            times.end_to_end.record_n(now.since(stamp.at), 1);
                        }
                    }
                    Delivery::Again => add(&self.duplicates, 1),
                    Delivery::Unknown => add(&self.foreign, 1),
                }
            }
        }
        add(&self.delivered, first);
    }

    pub(super) fn ack(&self, acked: u64, not_acked: u64, now: Timestamp) {
        add(&self.acked, acked);
        add(&self.not_acked, not_acked);
        self.last_acked.fetch_max(now.0, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            sent: count(&self.sent),
            confirmed: count(&self.confirmed),
            refused: count(&self.refused),
            unknown: count(&self.unknown),
            unsent: count(&self.unsent),
            delivered: count(&self.delivered),
            duplicates: count(&self.duplicates),
            foreign: count(&self.foreign),
            acked: count(&self.acked),
            not_acked: count(&self.not_acked),
        }
    }

    pub(super) fn last_confirmed(&self) -> Timestamp {
        Timestamp(self.last_confirmed.load(Ordering::Relaxed))
    }

    pub(super) fn last_acked(&self) -> Timestamp {
        Timestamp(self.last_acked.load(Ordering::Relaxed))
    }

    /// The times recorded since the last call.
    pub(super) fn take_times(&self) -> Times {
        std::mem::take(&mut *lock(&self.times))
    }

    /// Messages that were confirmed and have not come.
    pub(super) fn missing(&self) -> u64 {
        self.ledgers.iter().map(|ledger| lock(ledger).missing()).sum()
    }

    fn ledger(&self, producer: u16) -> MutexGuard<'_, Ledger> {
        lock(&self.ledgers[usize::from(producer)])
    }

    fn is_measured(&self, since: Timestamp) -> bool {
        (self.scope.from..self.scope.to).contains(&since)
    }

    /// From when the time of each message counts that is measured.
    fn measured(&self, feed: &Feed, sent: Sent) -> impl Iterator<Item = Timestamp> {
        let since = (sent.first..sent.first + sent.count).map(move |number| feed.since(number, sent.at));
        since.filter(|since| self.is_measured(*since))
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Figures of a task that panicked are as good as those of one that did not come so far.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::pace::Pace;
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000)
    }

    fn tally() -> Tally {
        let scope = Scope { from: at(1_000), to: at(2_000), is_consumed: true, is_end_to_end: true };
        Tally::new(2, scope)
    }

    #[test]
    fn a_stall_counts_for_all_that_should_have_been_sent() {
        let tally = tally();
        let pace = Pace { began: at(0), per_second: 1_000.0, producers: 1 };
        let mut feed = Feed::new(0, 2_000, u64::MAX, at(2_000), Some(pace));
        // Everything of the first second goes in time. Then the server stalls, and nothing more goes.
        let sent = Sent { first: feed.take(1_000), count: 1_000, at: at(1_000) };
        tally.send(&feed, sent);
        tally.confirm(&feed, sent, at(1_000));
        tally.finish(&feed);
        assert_eq!((tally.counts().confirmed, tally.counts().unsent), (1_000, 1_000));
        let times = tally.take_times();
        for histogram in [times.publish, times.end_to_end, times.delay] {
            let summary = summary(&histogram).expect("what was not sent counts");
            assert_eq!(summary.count, 1_000, "what was due in the warm-up does not");
            assert!(summary.p50 >= Duration::from_millis(500) && summary.max == Duration::from_secs(1));
        }
        assert_eq!(summary(&tally.take_times().publish), None, "it is taken once");
    }

    #[test]
    fn every_message_is_accounted_for() {
        let tally = tally();
        let mut feed = Feed::new(1, 10, 30, at(9_000), None);
        for _ in 0..3 {
            let sent = Sent { first: feed.take(10), count: 10, at: at(1_500) };
            tally.send(&feed, sent);
        }
        tally.confirm(&feed, Sent { first: 0, count: 10, at: at(1_500) }, at(1_503));
        tally.refuse(&feed, Sent { first: 10, count: 10, at: at(1_500) });
        tally.lose_sight_of(Sent { first: 20, count: 10, at: at(1_500) });
        let stamp = |number| Some(Stamp { at: at(1_500), producer: 1, number });
        let stranger = Stamp { at: at(0), producer: 7, number: 0 };
        tally.deliver(&[stamp(0), stamp(1), stamp(1), None, Some(stranger), stamp(30)], at(1_510));
        tally.ack(2, 1, at(1_511));
        tally.finish(&feed);
        let expected = Counts {
            sent: 30,
            confirmed: 10,
            refused: 10,
            unknown: 10,
            unsent: 0,
            delivered: 2,
            duplicates: 1,
            foreign: 3,
            acked: 2,
            not_acked: 1,
        };
        assert_eq!((tally.counts(), tally.missing()), (expected, 8));
        let times = tally.take_times();
        assert_eq!(
            summary(&times.publish).map(|it| (it.count, it.max)),
            Some((10, Duration::from_millis(3)))
        );
        assert_eq!(
            summary(&times.end_to_end).map(|it| (it.count, it.max)),
            Some((2, Duration::from_millis(10)))
        );
        assert_eq!((tally.last_confirmed(), tally.last_acked()), (at(1_503), at(1_511)));
    }
}
