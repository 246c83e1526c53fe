//! What time does by itself: leases lapse, retries become due, and consumers that left let go of what
//! they held.
//!
//! Ten thousand leases may lapse at one instant. A turn does as much of that as its budget allows and asks
//! to be called again at once for the rest, so that no turn is long.

use crate::entry::Cause;
use crate::group::standing::State;
use crate::group::{Budget, Departure, Group, Lapse};
use crate::types::{SeqRange, Timestamp, push_range};

/// Messages that are seen to at a time, so that the budget is asked often enough.
const SLICE: u64 = 64;

impl Group {
    pub(super) fn expire(&mut self, now: Timestamp, budget: &mut Budget) {
        // First those who left: a goodbye that came in time must not be taken for a timeout.
        self.release_left_behind(now, budget);
        self.lapse(now, budget);
        self.make_due_ready(now, budget);
    }

    fn make_due_ready(&mut self, now: Timestamp, budget: &mut Budget) {
        while !budget.is_spent() {
            let Some(&(until, seq)) = self.due.first().filter(|(until, _)| *until <= now) else { break };
            budget.spend_each(1);
            self.due.remove(&(until, seq));
            self.waiting -= 1;
            let one = SeqRange::one(seq);
            self.ledger.released(one);
            self.again.insert(one);
        }
    }

    fn lapse(&mut self, now: Timestamp, budget: &mut Budget) {
        while !budget.is_spent() {
            let Some((&lapse, &outstanding)) = self.lapses.first_key_value() else { break };
            if lapse.deadline > now {
                break;
            }
            let (seqs, lease) = self
                .ledger
                .standing
                .pieces(outstanding.seqs)
                .find_map(|(seqs, state)| match state {
                    Some(State::Leased(lease)) if Lapse::of(&lease) == lapse => Some((seqs, lease)),
                    _ => None,
                })
                .expect("a deadline is kept while something is leased until then");
            let seqs = SeqRange::starting(seqs.first, seqs.count().min(SLICE));
            budget.spend_each(seqs.count());
            self.end_lease(seqs, &lease);
            for seq in seqs.seqs() {
                self.fail(now, seq, lease.attempt, None, Cause::Timeout);
            }
            // What was looked at is done with, so that a long delivery is not searched from its start
            // again and again.
            if let Some(outstanding) = self.lapses.get_mut(&lapse) {
                outstanding.seqs.first = seqs.last.next();
            }
        }
    }

    fn release_left_behind(&mut self, now: Timestamp, budget: &mut Budget) {
        while !budget.is_spent() {
            let Some((departure, run)) = self.members.next_left_behind(SLICE) else { break };
            let mut next = run.first;
            while next <= run.last {
                let rest = SeqRange::new(next, run.last);
                let (seqs, state) =
                    self.ledger.standing.pieces(rest).next().expect("a range has at least one piece");
                budget.spend_run(seqs.count());
                let Some(State::Leased(lease)) = state else { panic!("what a consumer holds is leased") };
                self.end_lease(seqs, &lease);
                match departure {
                    Departure::Goodbye => {
                        self.ledger.returned(seqs);
                        push_range(&mut self.pending.returned, seqs);
                        self.again.insert(seqs);
                    }
                    Departure::Lost if self.settings.is_exhausted(lease.attempt) => {
                        budget.spend_each(seqs.count());
                        for seq in seqs.seqs() {
                            self.fail(now, seq, lease.attempt, None, Cause::Lost);
                        }
                    }
                    Departure::Lost => {
                        self.ledger.released(seqs);
                        self.again.insert(seqs);
                    }
                }
                next = seqs.last.next();
            }
        }
    }
}
