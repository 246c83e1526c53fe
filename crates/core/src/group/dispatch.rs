//! Sharing out what is on offer among those who have room.
//!
//! One precedence, so that features do not fight: a paused group hands out nothing, nor does one that rests; pace,
//! the group's in-flight limit and its window say how many may go; what is on offer is due, not expired and of a key
//! that is not locked; among that, priority goes first, aged so that none starves, then keys in turn where
//! the group asks for it, then position; and the strategy chooses the consumer.

use crate::fault::{Fault, planted};
use crate::group::decision::{Decision, Terms};
use crate::group::offer::{NO_KEY, Offer};
use crate::group::standing::State;
use crate::group::{Budget, Credit, Deliver, Group, Turn};
use crate::lanes::LANES;
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
        if self.ledger.is_paused() || self.is_parked_full() || is_behind {
            return;
        }
        if self.is_order_unknown() || self.rests_until(turn.now).is_some() {
            return;
        }
        self.members.wake_sated();
        let mut once = Vec::new();
        while self.round(turn, &mut once) {}
        while let Some((lane, key, seq)) = self.set_aside.pop() {
            self.offer.insert(lane, key, seq);
        }
        for consumer in once {
            self.members.end_credit_once(consumer);
        }
    }

    pub(super) fn is_parked_full(&self) -> bool {
        self.ledger.parked().count() >= u64::from(self.settings.parked_max)
    }

    /// How many may go now, whatever there is to go.
    fn allowance(&self, now: Timestamp) -> u64 {
        let open = u64::from(self.settings.in_flight_max).saturating_sub(self.in_flight());
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
            && (self.offer.count() > 0 || self.arrived > self.cursor)
            && pace.available(now) == 0;
        waits.then(|| pace.next_at())
    }

    /// What could go, if there were credit for it.
    fn candidates(&self) -> u64 {
        let ahead = if self.keys.is_none() { self.arrived.0 - self.cursor.0 } else { 0 };
        self.offer.count() + ahead.min(self.window_room())
    }

    /// Shares out what can go among those with room. False when nothing more can go in this turn.
    fn round(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>) -> bool {
        let takers = self.members.hungry();
        if takers == 0 || turn.budget.is_spent() {
            return false;
        }
        let pulls = self.must_pull(turn.stream);
        if pulls {
            self.pull(turn);
        }
        let candidates = if pulls { self.offer.count() } else { self.candidates() };
        let total = self.allowance(turn.now).min(candidates);
        if total == 0 {
            return false;
        }
        if self.settings.strategy == Strategy::Pinned {
            return self.round_by_key(turn, once);
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
            let consumer = next.expect("those who are counted have not been served yet");
            let member = self.members.get(consumer).expect("only a member is hungry");
            let share = if single { total } else { base + u64::from(n < extra) };
            // Those who came before may have taken more than their share along with it.
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
                if !self.members.counts_bytes(consumer) {
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

    /// Everybody takes what belongs to it. False when nobody could.
    fn round_by_key(&mut self, turn: &mut Turn<'_>, once: &mut Vec<ConsumerId>) -> bool {
        let mut given = 0;
        for _ in 0..self.members.hungry() {
            let Some(consumer) = self.members.next_hungry().filter(|_| !turn.budget.is_spent()) else {
                break;
            };
            let member = self.members.get(consumer).expect("only a member is hungry");
            let is_once = matches!(member.credit, Credit::Once { .. });
            let share = member.room().min(self.offer.count_for(consumer)).min(self.allowance(turn.now));
            turn.budget.spend_run(0);
            let some = if share > 0 { self.give(turn, consumer, share) } else { 0 };
            self.members.passed_over(consumer);
            if share > 0 && some == 0 && self.members.counts_bytes(consumer) {
                // What waits for it does not keep the group from looking for what others can have.
                self.members.sate(consumer);
            }
            if some > 0 && is_once {
                once.push(consumer);
            }
            given += some;
        }
        given > 0
    }

    /// Leases up to `share` of what is on offer to the consumer, with what goes along with it, and returns
    /// how many messages there were.
    fn give(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, share: u64) -> u64 {
        let batches = self.settings.key_batch > 1 && self.settings.strategy == Strategy::Ordered;
        let (mut taken, mut along) = (0, 0);
        while taken < share && !turn.budget.is_spent() {
            if batches && self.room_for(turn.now, consumer) == 0 {
                break;
            }
            if self.must_pull(turn.stream) {
                self.pull_what_ran_out(turn);
                if turn.budget.is_spent() {
                    break;
                }
            }
            let Some((seqs, attempts)) = self.next_candidates(turn, consumer, share - taken) else { break };
            turn.budget.spend_run(seqs.count());
            self.lease(turn, consumer, seqs, Attempt(attempts + 1));
            taken += seqs.count();
            if batches {
                let room = self.room_for(turn.now, consumer).min(self.window_room());
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

    /// Whether the consumer has bytes for this message. One that holds nothing has for any.
    fn fits(&self, turn: &Turn<'_>, consumer: ConsumerId, seq: Seq) -> bool {
        let Some(member) = self.members.get(consumer) else { return false };
        let too_large = |room| turn.stream.timeline.bytes(SeqRange::one(seq)) > room;
        member.held.is_empty() || !member.room_bytes().is_some_and(too_large)
    }

    /// Those of the same key that may go together with the one before them, in order.
    fn give_along(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, first: Seq, max: u64) -> u64 {
        let mut given = 0;
        let mut last = first;
        while given < max && given + 1 < u64::from(self.settings.key_batch) && !turn.budget.is_spent() {
            let keys = self.keys.as_ref().expect("an ordered group looks at keys");
            let Some((seq, key)) = keys.next_of_key(last) else { break };
            if !self.fits(turn, consumer, seq) {
                break;
            }
            let state = self.ledger.standing().run_at(seq).map(|(_, state)| state);
            let attempts = match state {
                None if !turn.stream.undue.contains(seq) && !self.ledger.is_settled(seq) => 0,
                Some(State::Ready { attempts, .. }) => attempts,
                _ => break,
            };
            let keys = self.keys.as_mut().expect("an ordered group looks at keys");
            keys.given_along(seq, key);
            turn.budget.spend_run(1);
            self.lease_known(turn, consumer, SeqRange::one(seq), Attempt(attempts + 1));
            last = seq;
            given += 1;
        }
        given
    }

    /// Takes the next messages to offer to this consumer. They follow each other and have been handed out
    /// equally often.
    fn next_candidates(
        &mut self,
        turn: &mut Turn<'_>,
        consumer: ConsumerId,
        max: u64,
    ) -> Option<(SeqRange, u32)> {
        loop {
            let direct = self.keys.is_none() && !self.must_pull(turn.stream);
            let Some((lane, first)) = self.best(turn, consumer) else {
                return if direct { self.next_ahead(turn, consumer, max) } else { None };
            };
            // What lies ahead is newer than nearly all that is on offer, but not than what was delayed.
            if direct && lane == 0 && first > self.cursor && self.window_room() > 0 {
                let ahead = self.untouched_from(self.cursor.next());
                if ahead < first && ahead <= self.arrived {
                    return self.next_ahead(turn, consumer, max.min(first.0 - ahead.0));
                }
            }
            if self.ledger.is_settled(first) {
                self.offer.drop_first(lane, consumer);
                continue;
            }
            // At its limit the window takes nothing new, but what is in it goes on.
            let is_new = self.ledger.standing().run_at(first).is_none();
            let max = if is_new { max.min(self.window_room()) } else { max };
            if max == 0 {
                if self.ledger.standing().ready() == 0 {
                    return None;
                }
                let key = self.keys.as_ref().and_then(|keys| keys.key(first)).unwrap_or(NO_KEY);
                self.offer.remove(lane, key, first);
                self.set_aside.push((lane, key, first));
                continue;
            }
            if !self.fits(turn, consumer, first) {
                return None;
            }
            return Some(self.take(turn, consumer, lane, first, max));
        }
    }

    /// What a plain group has not looked at.
    fn next_ahead(&mut self, turn: &Turn<'_>, consumer: ConsumerId, max: u64) -> Option<(SeqRange, u32)> {
        let seqs = self.next_plain(turn.stream, max.min(self.window_room()))?;
        if !self.fits(turn, consumer, seqs.first) {
            self.cursor = Seq(seqs.first.0 - 1);
            return None;
        }
        let fits = self.cut_to_bytes(turn, consumer, seqs);
        self.cursor = fits.last;
        Some((fits, 0))
    }

    /// The lane to take from, and what is first in it.
    fn best(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId) -> Option<(u8, Seq)> {
        if turn.stream.lanes.is_empty() && !matches!(self.offer, Offer::Pinned(_)) {
            let lane_zero = self.first_of_lane(turn, consumer, 0);
            if lane_zero.is_some() || self.offer.count() == 0 {
                return lane_zero.map(|seq| (0, seq));
            }
        }
        let mut best: Option<(u64, Seq, u8)> = None;
        for lane in 0..LANES as u8 {
            let Some(seq) = self.first_of_lane(turn, consumer, lane) else { continue };
            let rank = self.rank(turn, lane, seq);
            let better = best.is_none_or(|(other, at, _)| rank > other || (rank == other && seq < at));
            if better {
                best = Some((rank, seq, lane));
            }
        }
        best.map(|(_, seq, lane)| (lane, seq))
    }

    fn first_of_lane(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, lane: u8) -> Option<Seq> {
        if self.keys.is_none() && self.window_room() == 0 {
            self.first_standing(turn.budget, lane)
        } else {
            self.offer.first(lane, consumer)
        }
    }

    /// What is first in a lane of that which was handed out before: when the window is full, nothing new is
    /// taken in. Goes on where it was the last time, since much that is new may lie before it.
    fn first_standing(&mut self, budget: &mut Budget, lane: u8) -> Option<Seq> {
        let Offer::Position(lanes) = &self.offer else { return None };
        let again_from = &mut self.again_from[usize::from(lane)];
        while !budget.is_spent() {
            let offered = lanes.lane(lane).first_from(*again_from)?;
            *again_from = offered;
            let (run, _) = self.ledger.standing().run_from(offered)?;
            if run.first == offered {
                return Some(offered);
            }
            budget.spend_run(0);
            *again_from = run.first;
        }
        None
    }

    /// The priority that a message has by now: one more for every step it has waited.
    fn rank(&self, turn: &Turn<'_>, lane: u8, seq: Seq) -> u64 {
        let step = self.settings.priority_age_step;
        if step.as_micros() == 0 || planted(Fault::PriorityStarves) {
            return lane.into();
        }
        // What the stream has let go of is at least as old as what it keeps.
        let timeline = &turn.stream.timeline;
        let known = timeline.range().map(|kept| seq.max(kept.first));
        let published = known.and_then(|seq| timeline.at(seq)).unwrap_or(turn.now);
        let steps = turn.now.since(published).as_micros() / step.as_micros();
        (u64::from(lane) + u64::try_from(steps).unwrap_or(u64::MAX)).min(LANES as u64 - 1)
    }

    /// Takes messages off the offer, from `first` on.
    fn take(
        &mut self,
        turn: &Turn<'_>,
        consumer: ConsumerId,
        lane: u8,
        first: Seq,
        max: u64,
    ) -> (SeqRange, u32) {
        let (run, attempts) = match self.ledger.standing().run_from(first) {
            Some((run, state)) if run.first == first => {
                assert!(matches!(state, State::Ready { .. }), "what is on offer is ready");
                (run, state.attempts())
            }
            Some((next, _)) => (SeqRange::new(first, Seq(next.first.0 - 1)), 0),
            None => (SeqRange::new(first, Seq(u64::MAX - 1)), 0),
        };
        let is_new = self.ledger.standing().run_at(first).is_none();
        let max = if is_new && self.keys.is_none() { max.min(self.window_room()) } else { max };
        let alone = self.keys.is_some() && self.settings.key_batch > 1;
        match &mut self.offer {
            Offer::Position(lanes) if !alone => {
                let offered = lanes.lane(lane).run_from(first).expect("what is first is on offer");
                let alone = lanes.count() == lanes.lane(lane).count();
                let mut last = run.last.min(offered.last).min(first.plus(max - 1));
                // Those that have waited less may come after what is in another lane.
                while !alone && last > first && self.rank(turn, lane, last) < self.rank(turn, lane, first) {
                    last = Seq(first.0 + (last.0 - first.0) / 2);
                }
                let seqs = self.cut_to_bytes(turn, consumer, SeqRange::new(first, last));
                let Offer::Position(lanes) = &mut self.offer else { unreachable!("it was one just now") };
                lanes.remove(lane, seqs);
                (seqs, attempts)
            }
            _ => {
                let key = self.keys.as_ref().and_then(|keys| keys.key(first)).unwrap_or(NO_KEY);
                self.offer.remove(lane, key, first);
                if let Offer::Fair(fair) = &mut self.offer {
                    fair.served(lane, key);
                }
                (SeqRange::one(first), attempts)
            }
        }
    }

    /// As many of the messages as fit into the bytes that the consumer has room for, and one at least.
    fn cut_to_bytes(&self, turn: &Turn<'_>, consumer: ConsumerId, seqs: SeqRange) -> SeqRange {
        let Some(room) = self.members.get(consumer).and_then(super::members::Member::room_bytes) else {
            return seqs;
        };
        let (mut low, mut high) = (1, seqs.count());
        while low < high {
            let middle = (low + high).div_ceil(2);
            let fits = turn.stream.timeline.bytes(SeqRange::starting(seqs.first, middle)) <= room;
            if fits { low = middle } else { high = middle - 1 }
        }
        SeqRange::starting(seqs.first, low)
    }

    fn lease(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, seqs: SeqRange, attempt: Attempt) {
        if let Some(keys) = &mut self.keys {
            for seq in seqs.seqs() {
                keys.given(seq);
            }
        }
        self.lease_known(turn, consumer, seqs, attempt);
    }

    fn lease_known(&mut self, turn: &mut Turn<'_>, consumer: ConsumerId, seqs: SeqRange, attempt: Attempt) {
        let member = self.members.get(consumer).expect("only a member is given messages");
        let bound = member.bound;
        let bytes = if member.room_bytes().is_some() { turn.stream.timeline.bytes(seqs) } else { 0 };
        let timeout = match member.credit {
            Credit::Once { timeout: Some(timeout), .. } => timeout.min(YEAR),
            _ => self.settings.message_timeout,
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
            first_received,
            granted: terms.granted,
            deadline: terms.deadline,
            bound,
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
