//! Messages whose contents cannot be read back.
//!
//! They are parked at once, with the cause [`Cause::Damaged`], whatever the group does with messages whose retries are
//! used up: an operator may still bring the contents back. No consumer has seen them, so no attempt counts.

use crate::entry::Cause;
use crate::group::Group;
use crate::group::decision::Decision;
use crate::group::settle::{FailureSource, LeaseRun, NotYours};
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
}
