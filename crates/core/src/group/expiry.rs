//! Changes that time alone brings: leases lapse, retries become due, messages become too old, and consumers
//! that left lose their leases.
//!
//! Ten thousand leases may lapse at one instant. A turn does as much of that as its budget allows and asks
//! to be called again at once for the rest, so that no turn is long.

use crate::entry::{Cause, Ending};
use crate::group::decision::Decision;
use crate::group::settle::FailureSource;
use crate::group::standing::State;
use crate::group::timers::Lapse;
use crate::group::{Departure, Group, Turn};
use crate::settings::is_exhausted;
use crate::stream::Stream;
use crate::types::{Seq, SeqRange, Timestamp};

/// Messages that are seen to at a time, so that the budget is asked often enough.
const SLICE: u64 = 64;
/// Messages that are looked up in about the time in which one is expired or handed out.
const LOOKUPS: u64 = 4;

impl Group {
    pub(super) fn expire(&mut self, turn: &mut Turn<'_>) {
        // Consumers that left come first: a goodbye that came in time must not be taken for a timeout.
        self.release_left_behind(turn);
        self.lapse(turn);
        self.expire_gone(turn);
        self.expire_anew(turn);
        self.expire_parked(turn);
        self.make_due_ready(turn);
        while let Some(consumer) = self.members.next_idle(turn.now, turn.budget) {
            self.leave(consumer, Departure::Goodbye);
            turn.effects.departed.push((self.id, consumer));
        }
    }

    fn make_due_ready(&mut self, turn: &mut Turn<'_>) {
        while !turn.budget.is_spent() {
            let Some(seq) = self.timers.pop_due(turn.now) else { break };
            turn.budget.spend_each(1);
            self.decide(Decision::Ready(SeqRange::one(seq)));
            self.put_on_offer(turn.stream, SeqRange::one(seq));
        }
    }

    fn lapse(&mut self, turn: &mut Turn<'_>) {
        while !turn.budget.is_spent() {
            let Some((lapse, outstanding)) = self.timers.next_lapse(turn.now) else { break };
            let (seqs, lease) = self
                .ledger
                .standing()
                .pieces(outstanding)
                .find_map(|(seqs, state)| match state {
                    Some(State::Leased(lease)) if Lapse::from(&lease) == lapse => Some((seqs, lease)),
                    _ => None,
                })
                .expect("a deadline is kept while something is leased until then");
            let seqs = SeqRange::starting(seqs.first, seqs.count().min(SLICE));
            turn.budget.spend_each(seqs.count());
            self.end_lease(turn.now, turn.stream, seqs, &lease);
            self.counters.timed_out += seqs.count();
            let consumer = lease.holder.and_then(|holder| self.members.name(holder));
            if let Some(holder) = lease.holder {
                self.members.count_failed(holder, seqs.count());
            }
            let source = FailureSource { cause: Cause::Timeout, reason: None, consumer };
            for seq in seqs.seqs() {
                self.fail(turn.now, turn.stream, seq, lease.attempt, None, source.clone());
            }
            self.timers.lapsed_through(lapse, seqs.last);
        }
    }

    fn release_left_behind(&mut self, turn: &mut Turn<'_>) {
        while !turn.budget.is_spent() {
            let Some((departure, name, run)) = self.members.next_left_behind(SLICE) else { break };
            let mut next = run.first;
            while next <= run.last {
                let rest = SeqRange::new(next, run.last);
                let (seqs, state) =
                    self.ledger.standing().pieces(rest).next().expect("a range has at least one piece");
                turn.budget.spend_run(seqs.count());
                let Some(State::Leased(lease)) = state else { panic!("what a consumer holds is leased") };
                self.end_lease(turn.now, turn.stream, seqs, &lease);
                match departure {
                    Departure::Goodbye => {
                        self.decide(Decision::Returned(seqs));
                        self.counters.returned += seqs.count();
                        self.offer_returned(turn.now, turn.stream, seqs);
                    }
                    Departure::Lost if is_exhausted(self.settings.max_retries, lease.attempt) => {
                        turn.budget.spend_each(seqs.count());
                        let consumer = Some(name.clone());
                        let source = FailureSource { cause: Cause::Lost, reason: None, consumer };
                        for seq in seqs.seqs() {
                            self.fail(turn.now, turn.stream, seq, lease.attempt, None, source.clone());
                        }
                    }
                    Departure::Lost => {
                        self.decide(Decision::Ready(seqs));
                        self.offer_returned(turn.now, turn.stream, seqs);
                    }
                }
                next = seqs.last.next();
            }
        }
    }

    /// Messages that are given back go out again at once, unless they have expired.
    pub(super) fn offer_returned(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange) {
        if stream.expired.is_empty() && seqs.first > stream.gone {
            self.put_on_offer(stream, seqs);
            return;
        }
        for seq in seqs.seqs() {
            if self.is_expired(stream, seq) {
                self.let_go(now, stream, SeqRange::one(seq), Ending::Expired);
            } else {
                self.put_on_offer(stream, SeqRange::one(seq));
            }
        }
    }

    /// The time of one message is over. If it is with a consumer, that is seen when the lease ends.
    pub(crate) fn expire_one(&mut self, now: Timestamp, stream: &Stream, seq: Seq) {
        if self.ledger.is_settled(seq) || self.ledger.replayed().contains_key(&seq) {
            return;
        }
        match self.ledger.standing().run_at(seq) {
            Some((_, State::Leased(_) | State::Moving { .. })) => return,
            Some((_, state)) => self.withdraw(stream, seq, state),
            None => self.take_off_offer(stream, seq),
        }
        self.let_go(now, stream, SeqRange::one(seq), Ending::Expired);
    }

    /// Messages whose time was over before the group began, or began anew.
    fn expire_anew(&mut self, turn: &mut Turn<'_>) {
        while let Some(from) = self.recheck.filter(|_| !turn.budget.is_spent()) {
            let Some(run) = turn.stream.expired.run_from(from) else {
                self.recheck = None;
                break;
            };
            let seqs = SeqRange::starting(run.first, run.count().min(SLICE));
            turn.budget.spend_each(seqs.count());
            for seq in seqs.seqs() {
                self.expire_one(turn.now, turn.stream, seq);
            }
            self.recheck = Some(seqs.last.next());
        }
    }

    /// Everything up to the stream's watermark is too old, or more than it keeps.
    fn expire_gone(&mut self, turn: &mut Turn<'_>) {
        let gone = turn.stream.gone;
        while self.expired < gone && !turn.budget.is_spent() {
            turn.budget.spend_run(0);
            let first = self.ledger.progress().unsettled_from(self.expired.next());
            if first > gone {
                self.expired = gone;
                break;
            }
            let settled = self.ledger.progress().above().first_from(first);
            let last = settled.map_or(gone, |settled| gone.min(Seq(settled.0 - 1)));
            let range = SeqRange::new(first, last);
            let (seqs, state) =
                self.ledger.standing().pieces(range).next().expect("a range has at least one piece");
            let seqs = match state {
                Some(State::Leased(_) | State::Moving { .. }) => seqs,
                None => {
                    // Messages whose keys were looked at have to be looked up again, and go a slice at a time.
                    // All others go at once, however many there are.
                    let arrived = self.candidates.arrived();
                    let seen = self.settings.is_keyed() && seqs.first <= arrived;
                    let last = if seen { arrived.min(seqs.first.plus(SLICE - 1)) } else { seqs.last };
                    let seqs = SeqRange::new(seqs.first, seqs.last.min(last));
                    if seen {
                        turn.budget.spend_each(seqs.count() / LOOKUPS);
                    }
                    let (candidates, view) = self.candidates(turn.stream);
                    candidates.withdraw_all(view, seqs);
                    self.let_go(turn.now, turn.stream, seqs, Ending::Expired);
                    seqs
                }
                Some(_) => {
                    let seqs = SeqRange::starting(seqs.first, seqs.count().min(SLICE));
                    turn.budget.spend_each(seqs.count());
                    for seq in seqs.seqs() {
                        self.expire_one(turn.now, turn.stream, seq);
                    }
                    seqs
                }
            };
            self.expired = seqs.last;
        }
    }
}
