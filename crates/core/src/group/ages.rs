//! For how long messages have been due. A message that had a delay is as old as the time since it came due, not as the
//! time since it was published.
//!
//! The times are not in the log: after a restart a message that came due before it is as old as its publication.

use std::collections::VecDeque;

use crate::group::ledger::Ledger;
use crate::seqset::SeqSet;
use crate::stream::Stream;
use crate::types::{Seq, SeqRange, Timestamp};

/// Times that are kept. If more messages have come due and are open, the times of some stand for all.
const TIMES_MAX: usize = 4_096;
/// Runs of positions that a turn passes over.
const PASSED_A_TURN: usize = 256;
/// Runs of positions that a question for figures passes over.
const PASSED_A_QUESTION: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Ages {
    /// Messages above the floor that came due after a delay.
    risen: SeqSet,
    /// When they came due, in that order.
    times: VecDeque<(Timestamp, Seq)>,
    /// Everything up to here is settled, not due, or in `risen`.
    passed: Seq,
}

impl Ages {
    /// The time of a message came at `at`.
    pub(super) fn came_due(&mut self, ledger: &Ledger, seq: Seq, at: Timestamp) {
        self.risen.insert(SeqRange::one(seq));
        if self.times.len() >= TIMES_MAX {
            self.times.retain(|&(_, seq)| !ledger.is_settled(seq));
        }
        if self.times.len() >= TIMES_MAX {
            // The first stays: it is the oldest.
            let mut index = 0;
            self.times.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        let last = self.times.back().map_or(at, |&(last, _)| last);
        self.times.push_back((at.max(last), seq));
    }

    /// Lets go of what the group has come past.
    pub(super) fn pass(&mut self, ledger: &Ledger, stream: &Stream) {
        if self.risen.is_empty() && stream.undue.is_empty() {
            return;
        }
        let floor = ledger.progress().floor();
        self.risen.remove(SeqRange::new(Seq::START, floor));
        while self.times.front().is_some_and(|&(_, seq)| ledger.is_settled(seq)) {
            self.times.pop_front();
        }
        self.passed = Seq(self.first_plain(ledger, stream, PASSED_A_TURN).0 - 1);
    }

    /// Since when the oldest message has been due that is due and not settled.
    pub(super) fn oldest(&self, ledger: &Ledger, stream: &Stream) -> Option<Timestamp> {
        let plain = self.first_plain(ledger, stream, PASSED_A_QUESTION);
        let replayed = ledger.replayed().keys().next().copied();
        let published = replayed.into_iter().chain((plain <= stream.durable).then_some(plain)).min();
        let risen = self.times.iter().find(|(_, seq)| !ledger.is_settled(*seq)).map(|&(at, _)| at);
        published.and_then(|seq| stream.timeline.at(seq)).into_iter().chain(risen).min()
    }

    /// The first message that is not settled and had no delay, or a position before it after that many runs of others.
    fn first_plain(&self, ledger: &Ledger, stream: &Stream, runs_max: usize) -> Seq {
        let progress = ledger.progress();
        let mut next = progress.unsettled_from(self.passed.next());
        for _ in 0..runs_max {
            let after = self.risen.gap_from(stream.undue.gap_from(next));
            if after == next || next > stream.durable {
                break;
            }
            next = progress.unsettled_from(after);
        }
        next
    }
}
