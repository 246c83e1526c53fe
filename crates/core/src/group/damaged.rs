//! Messages whose contents cannot be read back.
//!
//! They are parked at once, with the cause [`Cause::Damaged`], whatever the group does with messages whose retries are
//! used up: an operator may still bring the contents back. No consumer has seen them, so no attempt counts.
//!
//! An ordered group needs the key of a message before its content. Where the key cannot be read, later messages of
//! the key go on, so the message itself must not be delivered any more: it is parked as well, even if another read of
//! it would succeed.

use crate::entry::Cause;
use crate::group::decision::Decision;
use crate::group::settle::{FailureSource, LeaseRun, NotYours};
use crate::group::standing::State;
use crate::group::{Group, Turn};
use crate::stream::Stream;
use crate::types::{Attempt, SeqRange, Timestamp};

impl Group {
    /// Parks messages that were to be delivered on these leases, and says how many. Leases that are over are passed
    /// by, except for one that lapsed and whose message is with no other consumer: a lease may last for no time.
    pub(crate) fn park_damaged(&mut self, now: Timestamp, stream: &Stream, leases: LeaseRun) -> u64 {
        let mut parked = 0;
        for lease in leases.leases() {
            let seqs = SeqRange::one(lease.seq);
            if let Some((_, held)) = self.lease_at(lease) {
                self.end_lease(now, stream, seqs, &held);
                self.decide(Decision::Returned(seqs));
            } else if self.why_not(stream, lease) == NotYours::Lapsed {
                let (_, state) = self.ledger.standing().run_at(lease.seq).expect("a lapsed lease is known");
                self.withdraw(stream, lease.seq, state);
            } else {
                continue;
            }
            let attempts = self.attempts(lease.seq).unwrap_or(0);
            let source = FailureSource { cause: Cause::Damaged, reason: None, consumer: None };
            self.park(now, stream, lease.seq, Attempt(attempts), source);
            parked += 1;
        }
        parked
    }

    /// Parks messages of an ordered group whose keys cannot be read.
    pub(super) fn park_unreadable(&mut self, turn: &mut Turn<'_>) {
        while !turn.budget.is_spent() && !self.is_parked_full() {
            let Some(seq) = self.candidates.pop_unfit() else { break };
            let state = self.ledger.standing().run_at(seq).map(|(_, state)| state);
            match state {
                // If it comes back it is found unfit again.
                Some(State::Leased(_) | State::Moving { .. }) => continue,
                Some(State::Waiting { until, .. }) => self.timers.stop_waiting(until, seq),
                Some(State::Ready { .. }) | None => {}
            }
            turn.budget.spend_each(1);
            let attempts = self.attempts(seq).unwrap_or(0);
            let source = FailureSource { cause: Cause::Damaged, reason: None, consumer: None };
            self.park(turn.now, turn.stream, seq, Attempt(attempts), source);
            turn.effects.damaged += 1;
        }
    }
}
