//! Sharing out messages among consumers with room.
//!
//! One precedence, so that features do not fight: nothing is handed out while the shard withholds it, nor by a
//! group that is paused or rests; pace, the group's in-flight limit and its window say how many may go; messages on
//! offer are due, not expired and of a key that is not locked; among them, priority goes first, aged so that none
//! starves, then keys in turn where the group asks for it, then position; and the strategy chooses the consumer.

use crate::fault::{Fault, planted};
use crate::group::candidates::Offered;
use crate::group::decision::{Decision, Terms};
use crate::group::standing::State;
use crate::group::{Bound, Credit, Deliver, Group, Turn};
use crate::settings::{Strategy, YEAR};
use crate::types::{Attempt, ConsumerId, Grant, Seq, SeqRange, Timestamp};

impl Group {
    /// Hands out what may go, once a turn.
    ///
    /// Consumers take turns, beginning after the one served last. In each round everybody takes an equal
    /// share in one piece rather than message by message: shares differ by one at most, as they would one
    /// by one, but consecutive messages stay together, and with them everything that is written and sent.
    pub(super) fn dispatch(&mut self, turn: &mut Turn<'_>) {
        let is_behind = self.recheck.is_some() || turn.stream.is_behind(turn.now);
        if turn.withheld || self.ledger.is_paused() || self.is_parked_full() || is_behind {
            return;
        }
        let is_order_unknown = self.candidates.is_order_unknown(self.view(turn.stream));
        if is_order_unknown || self.rests_until(turn.now).is_some() {
            return;
        }
        self.members.wake_sated();
        let mut once = Vec::new();
        while self.round(turn, &mut once) {}
        self.candidates.end_dispatch();
        for consumer in once {
            self.members.end_credit_once(consumer);
        }
    }

    pub(super) fn is_parked_full(&self) -> bool {
        self.ledger.parked().count() >= u64::from(self.settings.parked_max)
    }

    /// How many may go now, whatever there is to go.
    fn allowance(&self, now: Timestamp) -> u64 {
        let open = u64::from(self.settings.max_in_flight).saturating_sub(self.in_flight());
        match &self.paces.group {
            Some(pace) if !planted(Fault::PaceExceeded) => open.min(pace.available(now)),
            _ => open,
        }
    }

    /// Until when nothing goes because consumers asked for a rest, if they did.
    pub(super) fn rests_until(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.paces.rest_until).filter(|until| *until > now)
    }

    /// When the pace next lets something go, if that is what it waits for.
    pub(super) fn pace_at(&self, now: Timestamp) -> Option<Timestamp> {
        let pace = self.paces.group.as_ref()?;
        let waits = self.members.any_hungry()
            && !self.ledger.is_paused()
            && self.candidates.is_any()
            && pace.available(now) == 0;
        waits.then(|| pace.next_at())
    }

    /// Shares out what can go among those with room. False when nothing more can go in this turn.
    fn round(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>) -> bool {
        let takers = self.members.takers();
        if takers == 0 || turn.budget.is_spent() {
            return false;
        }
        let (candidates, view) = self.candidates(turn.stream);
        let total = candidates.refill(view, turn.budget).min(self.allowance(turn.now));
        if total == 0 {
            return false;
        }
        match self.settings.strategy {
            Strategy::Pinned => return self.round_by_key(turn, once),
            Strategy::Sole => return self.round_for_sole(turn, once, total),
            Strategy::RoundRobin | Strategy::Single | Strategy::Ordered => {}
        }
        let mut given = 0;
        let (base, extra) = (total / takers, total % takers);
        for n in 0..takers.min(total) {
            if turn.budget.is_spent() {
                return false;
            }
            let single = self.settings.strategy == Strategy::Single;
            let same = single && n == 0;
            let next = if same { self.members.same_hungry() } else { self.members.next_hungry() };
            let consumer = next.expect("as many consumers have room as were counted");
            let member = self.members.get(consumer).expect("only a member is hungry");
            let share = if single { total } else { base + u64::from(n < extra) };
            // Consumers before this one may have taken more than their share, with followers of a key.
            let share = share.min(member.room()).min(self.allowance(turn.now));
            if share == 0 {
                break;
            }
            let is_once = matches!(member.credit, Credit::Once { .. });
            let some = self.give(turn, consumer, share);
            if some > 0 && is_once {
                once.push(consumer);
            }
            given += some;
            if some == 0 {
                // There is nothing left, unless only this one has no room for it. Then the others share it.
                if !self.members.is_choosy(consumer) {
                    break;
                }
                self.members.sate(consumer);
                return true;
            } else if single {
                break;
            }
        }
        given > 0
    }

    /// Every consumer takes the messages that belong to it. False if none of them took any.
    fn round_by_key(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>) -> bool {
        let mut given = 0;
        for _ in 0..self.members.hungry() {
            // A key belongs to its consumer, whatever the ranks are.
            let Some(consumer) = self.members.next_of_any_rank().filter(|_| !turn.budget.is_spent()) else {
                break;
            };
            let member = self.members.get(consumer).expect("only a member is hungry");
            let is_once = matches!(member.credit, Credit::Once { .. });
            let share = member.room().min(self.candidates.count_for(consumer)).min(self.allowance(turn.now));
            turn.budget.spend_run(0);
            let some = if share > 0 { self.give(turn, consumer, share) } else { 0 };
            self.members.passed_over(consumer);
            if share > 0 && some == 0 && self.members.is_choosy(consumer) {
                // Messages that wait for it do not keep the group from looking for messages that others can
                // have.
                self.members.sate(consumer);
            }
            if some > 0 && is_once {
                once.push(consumer);
            }
            given += some;
        }
        given > 0
    }

    /// One consumer takes everything that it has room for. False if it took nothing.
    fn round_for_sole(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>, total: u64) -> bool {
        // Messages of the one before are taken back first, so that they go before later ones.
        if self.members.are_leaving() {
            return false;
        }
        let sole = if planted(Fault::SoleShares) { self.members.next_hungry() } else { self.members.sole() };
        let Some(consumer) = sole else { return false };
        let member = self.members.get(consumer).expect("the one that is served is a member");
        let share = member.room().min(total);
        let is_once = matches!(member.credit, Credit::Once { .. });
        let some = if share > 0 { self.give(turn, consumer, share) } else { 0 };
        if some > 0 && is_once {
            once.push(consumer);
        }
        some > 0
    }

    /// Leases up to `share` of the messages on offer to the consumer, with those that go along in key
    /// batches, and returns how many messages there were.
    fn give(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, share: u64) -> u64 {
        let batches = self.settings.key_batch > 1 && self.settings.strategy == Strategy::Ordered;
        let (mut taken, mut along) = (0, 0);
        while taken < share && !turn.budget.is_spent() {
            if batches && self.room_for(turn.now, consumer) == 0 {
                break;
            }
            let (candidates, view) = self.candidates(turn.stream);
            let next = candidates.next(view, turn.now, turn.budget, consumer, share - taken);
            let Some(offered) = next else { break };
            let seqs = offered.seqs;
            turn.budget.spend_run(seqs.count());
            self.candidates.leased(seqs);
            self.lease(turn, consumer, offered);
            taken += seqs.count();
            if batches {
                let room = self.room_for(turn.now, consumer).min(self.view(turn.stream).window_room());
                along += self.give_along(turn, consumer, seqs.first, room);
            }
        }
        taken + along
    }

    /// How many more the consumer may be given.
    fn room_for(&self, now: Timestamp, consumer: ConsumerId) -> u64 {
        let room = self.members.get(consumer).map_or(0, super::members::Member::room);
        room.min(self.allowance(now))
    }

    /// Those of the same key that may go together with the one before them, in order.
    fn give_along(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, first: Seq, max: u64) -> u64 {
        let mut given = 0;
        let mut last = first;
        while given < max && given + 1 < u64::from(self.settings.key_batch) && !turn.budget.is_spent() {
            let Some((seq, key)) = self.candidates.follower(last) else { break };
            if !self.view(turn.stream).fits(consumer, seq) {
                break;
            }
            let state = self.ledger.standing().run_at(seq).map(|(_, state)| state);
            let (attempts, again) = match state {
                None if !turn.stream.undue.contains(seq) && !self.ledger.is_settled(seq) => (0, false),
                Some(state @ State::Ready { attempts, .. }) => (attempts, state.was_handed_out()),
                _ => break,
            };
            self.candidates.take_follower(seq, key);
            turn.budget.spend_run(1);
            self.lease(turn, consumer, Offered { seqs: SeqRange::one(seq), attempts, again });
            last = seq;
            given += 1;
        }
        given
    }

    fn lease(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, offered: Offered) {
        let Offered { seqs, attempts, again } = offered;
        let attempt = Attempt(attempts + 1);
        let member = self.members.get(consumer).expect("only a member is given messages");
        let bound = member.bound;
        let bytes = if member.room_bytes().is_some() { turn.stream.timeline.bytes(seqs) } else { 0 };
        let timeout = match member.credit {
            Credit::Once { timeout: Some(timeout), .. }
                if !(timeout.is_zero() && planted(Fault::LeaseForNoTimeLasts)) =>
            {
                timeout.min(YEAR)
            }
            _ => member.terms.lease.map_or(self.settings.message_timeout, |lease| lease.min(YEAR)),
        };
        let terms = Terms {
            epoch: turn.epoch,
            grant: *turn.grant,
            bound,
            granted: turn.now,
            deadline: turn.now + timeout,
            holder: Some(consumer),
        };
        let first_received = self.first_received(seqs.first, attempt).unwrap_or(terms.granted);
        self.decide(Decision::Leased { seqs, attempt, terms });
        self.timers.lease(&terms, seqs);
        if let Some(pace) = &mut self.paces.group {
            pace.spend(turn.now, seqs.count());
        }
        self.members.gave(consumer, seqs, bytes);
        self.counters.delivered += seqs.count();
        turn.effects.deliveries.push(Deliver {
            group: self.id,
            stream: self.stream,
            consumer,
            seqs,
            grant: terms.grant,
            attempt,
            redelivered: again && !planted(Fault::RedeliveryUnmarked),
            first_received,
            granted: terms.granted,
            deadline: terms.deadline,
            bound,
            in_order: bound == Bound::Connection
                && self.settings.strategy == Strategy::Ordered
                && self.settings.key_batch > 1,
        });
        let used = if planted(Fault::GrantReused) { seqs.count() - 1 } else { seqs.count() };
        *turn.grant = turn.grant.plus(used);
        if planted(Fault::LeaseTwice) {
            self.lease_again(turn, consumer, seqs, attempt);
        }
    }

    /// When a message was first handed out, if it was.
    fn first_received(&self, seq: Seq, attempt: Attempt) -> Option<Timestamp> {
        let is_first = attempt == Attempt::FIRST;
        let (_, state) = self.ledger.standing().run_at(seq).filter(|_| !is_first)?;
        state.first()
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
