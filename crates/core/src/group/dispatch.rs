//! Sharing out what is ready among those who have room.

use crate::entry::LeasedRun;
use crate::fault::{Fault, planted};
use crate::group::standing::{Bound, State};
use crate::group::{Credit, Deliver, Group, Lapse, Outstanding, Turn};
use crate::types::{Attempt, ConsumerId, Grant, Seq, SeqRange, push_range};

impl Group {
    /// Hands out what may go, once a turn.
    ///
    /// Consumers take turns, beginning after the one served last. In each round everybody takes an equal
    /// share in one piece rather than message by message: shares differ by one at most, as they would one
    /// by one, but consecutive messages stay together, and with them everything that is written and sent.
    pub(super) fn dispatch(&mut self, turn: &mut Turn<'_>) {
        let mut once = Vec::new();
        while self.round(turn, &mut once) {}
        for consumer in once {
            self.members.end_credit_once(consumer);
        }
    }

    /// Shares out what can go among those with room. False when nothing more can go in this turn.
    fn round(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>) -> bool {
        let open = u64::from(self.settings.in_flight_max).saturating_sub(self.in_flight);
        let candidates = self.again.count() + (self.arrived.0 - self.cursor.0);
        let total = open.min(candidates);
        let takers = self.members.hungry();
        if total == 0 || takers == 0 {
            return false;
        }
        let (base, extra) = (total / takers, total % takers);
        for n in 0..takers.min(total) {
            if turn.budget.is_spent() {
                return false;
            }
            let consumer =
                self.members.next_hungry().expect("those who are counted have not been served yet");
            let member = self.members.get(consumer).expect("only a member is hungry");
            let share = (base + u64::from(n < extra)).min(member.room());
            if matches!(member.credit, Credit::Once { .. }) {
                once.push(consumer);
            }
            if self.give(turn, consumer, share) < share {
                return false;
            }
        }
        true
    }

    /// Leases up to `share` messages to the consumer and returns how many there were.
    fn give(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, share: u64) -> u64 {
        let mut given = 0;
        while given < share {
            if turn.budget.is_spent() {
                break;
            }
            let Some((seqs, attempts)) = self.next_candidates(share - given) else { break };
            turn.budget.spend_run(seqs.count());
            self.lease(turn, consumer, seqs, Attempt(attempts + 1));
            given += seqs.count();
        }
        given
    }

    /// Takes the next messages to offer: those offered before come first, which are older than all that
    /// were not. They follow each other and have been handed out equally often.
    fn next_candidates(&mut self, max: u64) -> Option<(SeqRange, u32)> {
        if let Some(first) = self.again.first() {
            let (run, state) = self.ledger.standing.run_at(first).expect("what is offered again has a state");
            assert!(matches!(state, State::Ready { .. }), "what is offered again is ready");
            let seqs = SeqRange::starting(first, run.count().min(max));
            self.again.remove(seqs);
            return Some((seqs, state.attempts()));
        }
        if self.cursor >= self.arrived {
            return None;
        }
        let first = self.untouched_from(self.cursor.next());
        self.cursor = Seq(first.0 - 1).min(self.arrived);
        if first > self.arrived {
            return None;
        }
        let mut last = self.arrived.min(self.cursor.plus(max));
        // After a restart what lies ahead may have been handed out or settled before.
        if let Some((run, _)) = self.ledger.standing.run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        if let Some(run) = self.ledger.progress.above().run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        self.cursor = last;
        Some((SeqRange::new(first, last), 0))
    }

    /// The first position at `seq` or after it that has never been handed out nor settled.
    pub(super) fn untouched_from(&self, mut seq: Seq) -> Seq {
        loop {
            let unsettled = self.ledger.progress.unsettled_from(seq);
            match self.ledger.standing.run_at(unsettled) {
                Some((run, _)) => seq = run.last.next(),
                None => return unsettled,
            }
        }
    }

    fn lease(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, seqs: SeqRange, attempt: Attempt) {
        let member = self.members.get(consumer).expect("only a member is given messages");
        let bound = member.bound;
        let timeout = match member.credit {
            Credit::Once { timeout: Some(timeout), .. } => timeout,
            _ => self.settings.message_timeout,
        };
        let terms = self.terms(turn, consumer, bound, timeout);
        self.ledger.handed(seqs, terms);
        match bound {
            Bound::Connection => push_range(&mut self.pending.handed, seqs),
            Bound::Clock => {
                self.pending.leased.push((timeout, LeasedRun { range: seqs, grant: terms.grant }));
            }
        }
        let lapse = Lapse { deadline: terms.deadline, epoch: terms.epoch, delivery: terms.grant };
        self.lapses.insert(lapse, Outstanding { seqs, count: seqs.count() });
        self.in_flight += seqs.count();
        self.members.gave(consumer, seqs);
        turn.effects.deliveries.push(Deliver {
            group: self.id,
            stream: self.stream,
            consumer,
            seqs,
            grant: terms.grant,
            attempt,
            deadline: terms.deadline,
            bound,
        });
        let used = if planted(Fault::GrantReused) { seqs.count() - 1 } else { seqs.count() };
        *turn.grant = turn.grant.plus(used);
        if planted(Fault::LeaseTwice) {
            self.lease_again(turn, consumer, seqs, attempt);
        }
    }

    /// The planted fault: another member is handed the same messages, on grants of its own.
    fn lease_again(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, seqs: SeqRange, attempt: Attempt) {
        let Some(mut twice) = turn.effects.deliveries.last().copied() else { return };
        if let Some(other) = self.members.next_hungry().filter(|&other| other != consumer) {
            twice = Deliver { consumer: other, grant: Grant(turn.grant.0), attempt, seqs, ..twice };
            *turn.grant = turn.grant.plus(seqs.count());
            turn.effects.deliveries.push(twice);
        }
    }
}
