//! Changes of messages at a certain time: leases lapse, and retries become due.

use std::collections::{BTreeMap, BTreeSet};

use crate::group::decision::Terms;
use crate::group::standing::{Leased, Standing, State};
use crate::types::{Epoch, Grant, Seq, SeqRange, Timestamp};

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// When each waiting message may go out again.
    due: BTreeSet<(Timestamp, Seq)>,
    /// When each delivery ends if no answer comes.
    lapses: BTreeMap<Lapse, Outstanding>,
    /// Messages of all deliveries that have not ended.
    leased: u64,
}

/// When a delivery ends if no answer comes. The epoch and the grant tell deliveries of one instant apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lapse {
    deadline: Timestamp,
    epoch: Epoch,
    delivery: Grant,
}

impl From<&Leased> for Lapse {
    fn from(lease: &Leased) -> Lapse {
        Lapse { deadline: lease.deadline, epoch: lease.epoch, delivery: lease.delivery }
    }
}

impl From<&Terms> for Lapse {
    fn from(terms: &Terms) -> Lapse {
        Lapse { deadline: terms.deadline, epoch: terms.epoch, delivery: terms.grant }
    }
}

/// The messages of a delivery, and how many of them are still leased.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    seqs: SeqRange,
    count: u64,
}

impl Timers {
    /// A message waits until then.
    pub(super) fn wait(&mut self, until: Timestamp, seq: Seq) {
        self.due.insert((until, seq));
    }

    /// A message that was waiting waits no longer.
    pub(super) fn stop_waiting(&mut self, until: Timestamp, seq: Seq) {
        let was_waiting = self.due.remove(&(until, seq));
        assert!(was_waiting, "a waiting message has a time");
    }

    /// Takes out the next message that is due.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Seq> {
        self.due.first().filter(|(until, _)| *until <= now)?;
        self.due.pop_first().map(|(_, seq)| seq)
    }

    /// Messages are leased until their deadline.
    pub(super) fn lease(&mut self, lapse: impl Into<Lapse>, seqs: SeqRange) {
        self.leased += seqs.count();
        let of = self.lapses.entry(lapse.into()).or_insert(Outstanding { seqs, count: 0 });
        of.count += seqs.count();
        of.seqs.first = of.seqs.first.min(seqs.first);
        of.seqs.last = of.seqs.last.max(seqs.last);
    }

    /// Messages are not on this lease any more.
    pub(super) fn end_lease(&mut self, lease: &Leased, seqs: SeqRange) {
        self.leased -= seqs.count();
        let lapse = Lapse::from(lease);
        let outstanding = self.lapses.get_mut(&lapse).expect("a leased message has a deadline");
        outstanding.count -= seqs.count();
        if outstanding.count == 0 {
            self.lapses.remove(&lapse);
        }
    }

    /// The next delivery whose time is over, and where its messages are.
    pub(super) fn next_lapse(&self, now: Timestamp) -> Option<(Lapse, SeqRange)> {
        let (&lapse, outstanding) = self.lapses.first_key_value()?;
        (lapse.deadline <= now).then_some((lapse, outstanding.seqs))
    }

    /// Messages of a delivery up to here have lapsed, so that a long delivery is not searched from its start again and
    /// again.
    pub(super) fn lapsed_through(&mut self, lapse: Lapse, last: Seq) {
        if let Some(outstanding) = self.lapses.get_mut(&lapse) {
            outstanding.seqs.first = last.next();
        }
    }

    /// When the next message is due or the next delivery ends.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let due = self.due.first().map(|&(at, _)| at);
        let lapse = self.lapses.first_key_value().map(|(lapse, _)| lapse.deadline);
        due.into_iter().chain(lapse).min()
    }

    /// Lets go of some times of a deleted group. False when none is left.
    pub(super) fn decay(&mut self, count: usize) -> bool {
        for _ in 0..count {
            self.due.pop_first();
            self.lapses.pop_first();
        }
        !self.due.is_empty() || !self.lapses.is_empty()
    }

    /// Adds up what must agree.
    pub(super) fn check(&self, standing: &Standing) {
        assert_eq!(self.leased, standing.leased(), "every leased message has a deadline");
        assert_eq!(self.due.len() as u64, standing.waiting(), "every waiting message has a time");
    }

    /// As `check`, message by message.
    pub(super) fn check_all(&self, standing: &Standing) {
        let mut leased: BTreeMap<Lapse, u64> = BTreeMap::new();
        for (run, state) in standing.runs() {
            match state {
                State::Waiting { until, .. } => {
                    let has_time = run.seqs().all(|seq| self.due.contains(&(until, seq)));
                    assert!(has_time, "a message waits until the time that its state says");
                }
                State::Leased(lease) => {
                    let lapse = Lapse::from(&lease);
                    *leased.entry(lapse).or_default() += run.count();
                    let covers = self.lapses.get(&lapse).is_some_and(|outstanding| {
                        outstanding.seqs.first <= run.first && run.last <= outstanding.seqs.last
                    });
                    assert!(covers, "a delivery covers its leased messages");
                }
                State::Ready { .. } | State::Moving { .. } => {}
            }
        }
        let outstanding = self.lapses.iter().map(|(&lapse, outstanding)| (lapse, outstanding.count));
        assert_eq!(leased, outstanding.collect(), "a delivery knows how many of its messages are leased");
    }
}
