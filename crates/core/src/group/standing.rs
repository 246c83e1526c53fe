//! The state of each message that has been handed out and is not settled.
//!
//! Messages that were never handed out have no state and cost nothing. The others are kept as runs:
//! consecutive messages in the same state, on consecutive grants. Deliveries go out in runs and are
//! mostly settled in runs, so a thousand leases are usually a handful of records.

use std::collections::BTreeMap;

use crate::types::{Attempt, ConsumerId, Epoch, Grant, Seq, SeqRange, Timestamp};

/// Where a message stands. A message is in exactly one of these states, or untouched, or settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// May go out now. `attempts` is how often it has been handed out so far, and `first` when that began: also if no
    /// attempt counts any more, since its consumers gave it back. Zero if it was never handed out.
    Ready {
        attempts: u32,
        first: Timestamp,
        last: Option<LastLease>,
    },
    /// Failed, and may go out from `until` on.
    Waiting {
        attempts: u32,
        first: Timestamp,
        until: Timestamp,
        last: Option<LastLease>,
    },
    Leased(Leased),
    /// On its way to another stream.
    Moving {
        attempts: u32,
        first: Timestamp,
        /// It may come back, if it cannot go there.
        last: Option<LastLease>,
    },
}

/// The lease that a message was on last, if it hung on the clock: a late answer may still count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastLease {
    pub(crate) epoch: Epoch,
    /// Of the run's first message; the others follow.
    pub(crate) grant: Grant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) attempt: Attempt,
    pub(crate) epoch: Epoch,
    /// Of the run's first message; the others follow.
    pub(crate) grant: Grant,
    pub(crate) bound: Bound,
    /// When the message was first handed out.
    pub(crate) first: Timestamp,
    pub(crate) granted: Timestamp,
    pub(crate) deadline: Timestamp,
    /// The first grant of the delivery whose remainder this run is. Names its deadline.
    pub(crate) delivery: Grant,
    /// `None` after a restart: the lease is still good, but the consumer that will answer is not known yet.
    pub(crate) holder: Option<ConsumerId>,
}

/// What a lease hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Released at once when the connection goes.
    Connection,
    /// Released at the deadline, and good across a restart until then.
    Clock,
}

const READY: usize = 0;
const WAITING: usize = 1;
const LEASED: usize = 2;
const MOVING: usize = 3;
const KINDS: usize = 4;

impl State {
    fn kind(&self) -> usize {
        match self {
            State::Ready { .. } => READY,
            State::Waiting { .. } => WAITING,
            State::Leased(_) => LEASED,
            State::Moving { .. } => MOVING,
        }
    }

    /// How often the message has been handed out.
    pub(crate) fn attempts(&self) -> u32 {
        match self {
            State::Ready { attempts, .. }
            | State::Waiting { attempts, .. }
            | State::Moving { attempts, .. } => *attempts,
            State::Leased(lease) => lease.attempt.0,
        }
    }

    /// When the message was first handed out, if that counts as an attempt and is known.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        Some(self.handed_out_at()).filter(|&first| self.attempts() > 0 && first > Timestamp::ZERO)
    }

    /// When the message was handed out for the first time that is known, also if that does not count as an attempt.
    /// Zero for a message that never was.
    pub(crate) fn handed_out_at(&self) -> Timestamp {
        match self {
            State::Ready { first, .. } | State::Waiting { first, .. } | State::Moving { first, .. } => *first,
            State::Leased(lease) => lease.first,
        }
    }

    /// Whether the message was handed out before, also if that does not count as an attempt.
    pub(crate) fn was_handed_out(&self) -> bool {
        self.attempts() > 0 || self.handed_out_at() > Timestamp::ZERO
    }

    /// The lease that a late answer would have to name.
    pub(crate) fn last(&self) -> Option<LastLease> {
        match self {
            State::Ready { last, .. } | State::Waiting { last, .. } | State::Moving { last, .. } => *last,
            State::Leased(lease) if lease.bound == Bound::Clock => {
                Some(LastLease { epoch: lease.epoch, grant: lease.grant })
            }
            State::Leased(_) => None,
        }
    }

    /// The state of the message `by` places after the first of the run.
    fn shifted(self, by: u64) -> State {
        let later =
            |last: Option<LastLease>| last.map(|last| LastLease { grant: last.grant.plus(by), ..last });
        match self {
            State::Leased(lease) => State::Leased(Leased { grant: lease.grant.plus(by), ..lease }),
            State::Ready { attempts, first, last } => State::Ready { attempts, first, last: later(last) },
            State::Waiting { attempts, first, until, last } => {
                State::Waiting { attempts, first, until, last: later(last) }
            }
            State::Moving { attempts, first, last } => State::Moving { attempts, first, last: later(last) },
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// By first position; runs never overlap.
    runs: BTreeMap<Seq, (Seq, State)>,
    /// Messages in each state, by [`State::kind`].
    counts: [u64; KINDS],
}

impl Standing {
    /// How many messages there are in these states.
    pub(crate) fn messages(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn ready(&self) -> u64 {
        self.counts[READY]
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.counts[WAITING]
    }

    pub(crate) fn leased(&self) -> u64 {
        self.counts[LEASED]
    }

    pub(crate) fn moving(&self) -> u64 {
        self.counts[MOVING]
    }

    /// Adds up what must agree: the runs follow each other, and the counts are their sums.
    pub(crate) fn check(&self) {
        let mut counts = [0; KINDS];
        let mut before = Seq::START;
        for (run, state) in self.runs() {
            assert!(before < run.first && run.first <= run.last, "runs never overlap");
            before = run.last;
            counts[state.kind()] += run.count();
        }
        assert_eq!(self.counts, counts, "the count of each state is the sum of its runs");
    }

    /// The run that `seq` is in, from `seq` to its end.
    pub(crate) fn run_at(&self, seq: Seq) -> Option<(SeqRange, State)> {
        let (&first, &(last, state)) = self.runs.range(..=seq).next_back()?;
        (seq <= last).then(|| (SeqRange::new(seq, last), state.shifted(seq.0 - first.0)))
    }

    /// The first run at or after `seq`, from `seq` on.
    pub(crate) fn run_from(&self, seq: Seq) -> Option<(SeqRange, State)> {
        self.run_at(seq).or_else(|| {
            let (&first, &(last, state)) = self.runs.range(seq..).next()?;
            Some((SeqRange::new(first, last), state))
        })
    }

    /// The end of messages that are leased or on their way, from `seq` on without a gap.
    pub(crate) fn held_until(&self, seq: Seq) -> Seq {
        let mut until = seq;
        for (piece, state) in self.run_at(seq).into_iter().chain(self.runs_after(seq)) {
            let is_next = piece.first <= until.next();
            if !is_next || !matches!(state, State::Leased(_) | State::Moving { .. }) {
                break;
            }
            until = piece.last;
        }
        until
    }

    fn runs_after(&self, seq: Seq) -> impl Iterator<Item = (SeqRange, State)> + '_ {
        let runs = self.runs.range(seq.next()..);
        runs.map(|(&first, &(last, state))| (SeqRange::new(first, last), state))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = (SeqRange, State)> + '_ {
        self.runs.iter().map(|(&first, &(last, state))| (SeqRange::new(first, last), state))
    }

    /// Takes some runs out, whatever they are. False when none is left.
    pub(crate) fn pop_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            if let Some((first, (last, state))) = self.runs.pop_first() {
                self.counts[state.kind()] -= SeqRange::new(first, last).count();
            }
        }
        !self.runs.is_empty()
    }

    /// Takes the messages of the range out; runs that reach beyond it keep the rest.
    pub(crate) fn remove(&mut self, range: SeqRange) {
        // The whole run, which is what nearly every call is about.
        if let Some(&(last, state)) = self.runs.get(&range.first)
            && last == range.last
        {
            self.runs.remove(&range.first);
            self.counts[state.kind()] -= range.count();
            return;
        }
        while let Some((&first, &(last, state))) = self.runs.range(..=range.last).next_back() {
            if last < range.first {
                break;
            }
            self.runs.remove(&first);
            let removed = SeqRange::new(first.max(range.first), last.min(range.last));
            self.counts[state.kind()] -= removed.count();
            if last > range.last {
                let rest = range.last.next();
                self.runs.insert(rest, (last, state.shifted(rest.0 - first.0)));
            }
            if first < range.first {
                self.runs.insert(first, (Seq(range.first.0 - 1), state));
                break;
            }
        }
    }

    /// Puts the messages of the range in this state, whatever they were in before.
    pub(crate) fn put(&mut self, range: SeqRange, state: State) {
        match self.runs.get_mut(&range.first) {
            Some(run) if run.0 == range.last => {
                self.counts[run.1.kind()] -= range.count();
                run.1 = state;
            }
            _ => {
                self.remove(range);
                self.runs.insert(range.first, (range.last, state));
            }
        }
        self.counts[state.kind()] += range.count();
    }

    /// The runs and gaps that make up a range, in order: what each message in it is now.
    pub(crate) fn pieces(&self, range: SeqRange) -> Pieces<'_> {
        Pieces { standing: self, next: Some(range.first), last: range.last }
    }
}

/// See [`Standing::pieces`].
pub(crate) struct Pieces<'a> {
    standing: &'a Standing,
    next: Option<Seq>,
    last: Seq,
}

impl Iterator for Pieces<'_> {
    type Item = (SeqRange, Option<State>);

    fn next(&mut self) -> Option<Self::Item> {
        let from = self.next.filter(|&from| from <= self.last)?;
        let (piece, state) = match self.standing.run_from(from) {
            Some((run, state)) if run.first == from => {
                (SeqRange::new(from, run.last.min(self.last)), Some(state))
            }
            Some((run, _)) if run.first <= self.last => (SeqRange::new(from, Seq(run.first.0 - 1)), None),
            _ => (SeqRange::new(from, self.last), None),
        };
        self.next = Some(piece.last.next());
        Some((piece, state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leased(grant: u64) -> State {
        State::Leased(Leased {
            attempt: Attempt(1),
            epoch: Epoch(1),
            grant: Grant(grant),
            bound: Bound::Connection,
            first: Timestamp(0),
            granted: Timestamp(0),
            deadline: Timestamp(1),
            delivery: Grant(grant),
            holder: None,
        })
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_single_messages(ops in prop::collection::vec((1u64..60, 0u64..12, 0u64..3), 1..60)) {
            let mut standing = Standing::default();
            let mut plain: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for (n, (first, more, what)) in ops.into_iter().enumerate() {
                let range = SeqRange::new(Seq(first), Seq(first + more));
                let grant = n as u64 * 100;
                if what == 0 {
                    standing.remove(range);
                    plain.retain(|seq, _| !range.contains(Seq(*seq)));
                } else {
                    standing.put(range, leased(grant));
                    for seq in range.seqs() {
                        plain.insert(seq.0, (grant, grant + seq.0 - first));
                    }
                }
                let whole = SeqRange::new(Seq(1), Seq(80));
                let mut seen = BTreeMap::new();
                let mut next = 1;
                for (piece, state) in standing.pieces(whole) {
                    prop_assert_eq!(piece.first.0, next, "pieces follow each other");
                    next = piece.last.0 + 1;
                    if let Some(State::Leased(lease)) = state {
                        for (at, seq) in piece.seqs().enumerate() {
                            seen.insert(seq.0, (lease.delivery.0, lease.grant.0 + at as u64));
                        }
                    }
                }
                prop_assert_eq!(next, 81);
                prop_assert_eq!(&seen, &plain);
                prop_assert_eq!(standing.messages(), plain.len() as u64);
                standing.check();
            }
        }
    }
}
