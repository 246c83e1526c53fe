//! What producers and consumers do.

use std::time::Duration;

use forebay_broker::batch::{Batch, BatchBuilder, Message, parse_content};
use forebay_broker::driver::Ticket;
use forebay_core::group::{
    Bound, ConsumerTerms, Credit, Departure, Lease, LeaseRun, Outcome, OutcomeRun, Settlement, Verb,
    each_outcome,
};
use forebay_core::shard::{PublishOptions, PublishRefusal};
use forebay_core::types::{ConsumerId, GroupId, StreamId};

use crate::model::{Hold, Uid, Wanted};
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::operators::elsewhere;
use crate::world::{Consumer, World};

/// Which message a content is of. The body begins with its number.
pub(super) fn identify(content: &[u8]) -> Uid {
    let message = parse_content(content).expect("I2: a content can be read");
    let number = message.body.first_chunk().expect("I2: a body begins with its number");
    Uid(u64::from_le_bytes(*number))
}

impl World {
    pub(super) fn publish(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let stream = *self.dice.pick(&streams);
        if self.dice.chance(1, 5) {
            return self.publish_numbered(stream);
        }
        let most = if self.dice.chance(1, 8) { 16 } else { 4 };
        let (uids, batch) = self.write(stream, most);
        let (now, ticket) = (self.now, Ticket(self.number()));
        let kept = self.count_kept(stream);
        tell(|| format!("publish {uids:?} to {stream:?}"));
        match self.driver().publish(now, stream, &batch, PublishOptions::default(), ticket) {
            Ok(published) => {
                self.publishes.insert(ticket, (stream, uids, published));
                self.check_limit(stream, kept, None);
            }
            Err(refusal) => self.publish_refused(stream, kept, uids, &refusal),
        }
    }

    /// A producer is told that nothing was stored.
    pub(super) fn publish_refused(
        &mut self,
        stream: StreamId,
        kept: Option<u64>,
        uids: Vec<Uid>,
        refusal: &PublishRefusal,
    ) {
        match refusal {
            PublishRefusal::Full { .. } => self.check_limit(stream, kept, Some(uids.len() as u64)),
            PublishRefusal::StorageFull => self.situations.reached(Situation::PublishRefusedDiskFull),
            error => panic!("a good batch was refused: {error}"),
        }
        let stream = self.streams.get_mut(&stream).expect("the stream exists");
        uids.into_iter().for_each(|uid| stream.refused(uid));
    }

    /// Messages for a stream, up to `most`, which their producer knows from now on.
    pub(super) fn write(&mut self, stream: StreamId, most: u64) -> (Vec<Uid>, Batch) {
        let mut builder = BatchBuilder::default();
        let mut uids = Vec::new();
        let (now, epoch) = (self.now, self.epoch());
        let count = 1 + self.dice.roll(most);
        for _ in 0..count {
            let uid = Uid(self.number());
            let id = self.choose_id(stream);
            let size = if self.dice.chance(1, 20) { self.dice.roll(300) } else { self.dice.roll(60) };
            let mut body = uid.0.to_le_bytes().to_vec();
            body.extend(self.dice.bytes(size as usize));
            let text = id.map(|id| format!("id-{id}"));
            let mut message = Message { id: text.as_deref(), body: &body, ..Message::default() };
            if self.wild {
                let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"\xff"];
                message.key = self.dice.chance(4, 5).then(|| *self.dice.pick(&keys));
                message.priority = if self.dice.chance(1, 5) { self.dice.roll(10) as u8 } else { 0 };
                let delay = Duration::from_millis(self.dice.roll(3_000));
                message.not_before = self.dice.chance(1, 8).then_some(now + delay);
                let life = Duration::from_millis(500 + self.dice.roll(8_000));
                message.expires = self.dice.chance(1, 8).then_some(now + life);
            }
            builder.push(&message);
            let mut alone = BatchBuilder::default();
            alone.push(&message);
            let content = alone.build().contents().to_vec();
            let model = self.streams.get_mut(&stream).expect("the stream exists");
            model.sends(uid, id, content, now, epoch, message.not_before);
            uids.push(uid);
        }
        (uids, builder.build())
    }

    /// No id, a new one, or one that was used before.
    fn choose_id(&mut self, stream: StreamId) -> Option<u64> {
        match self.dice.roll(10) {
            0..5 => None,
            5..8 => Some(self.number()),
            _ => {
                let known = self.streams[&stream].known_ids();
                let recent = &known[known.len().saturating_sub(12)..];
                let id = *self.dice.pick((!recent.is_empty()).then_some(recent)?);
                if self.streams[&stream].is_open(id) {
                    self.situations.reached(Situation::DuplicateBeforeFirstSync);
                }
                Some(id)
            }
        }
    }

    /// A consumer answers some of what it holds.
    pub(super) fn answer_some(&mut self, ack: bool) {
        let wanted = match self.dice.roll(10) {
            _ if ack => Wanted::Ack,
            0..6 => Wanted::Retry,
            _ if !self.wild => Wanted::Retry,
            6 => Wanted::Skip,
            7 => Wanted::Move,
            8 => Wanted::Return(self.now + Duration::from_millis(self.dice.roll(500))),
            _ => Wanted::Park,
        };
        let Some((group, mut holds)) = self.somebody_holding() else { return };
        let count = 1 + self.dice.roll(holds.len() as u64) as usize;
        if self.dice.chance(1, 3) {
            holds.reverse();
        }
        holds.truncate(count);
        self.answer(group, &holds, wanted);
    }

    pub(super) fn somebody_holding(&mut self) -> Option<(GroupId, Vec<Hold>)> {
        let holding: Vec<(GroupId, ConsumerId)> = self
            .groups
            .iter()
            .flat_map(|(&id, following)| following.model.held().map(move |hold| (id, hold.consumer)))
            .collect();
        let (group, consumer) = *self.dice.pick((!holding.is_empty()).then_some(&holding[..])?);
        Some((group, self.groups[&group].model.held_by(consumer).copied().collect()))
    }

    /// At the end everybody finishes what they hold.
    pub(super) fn answer_all(&mut self) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            let holds: Vec<Hold> = self.groups[&group].model.held().copied().collect();
            if !holds.is_empty() {
                self.answer(group, &holds, Wanted::Ack);
            }
        }
    }

    fn answer(&mut self, group: GroupId, holds: &[Hold], wanted: Wanted) {
        let leases: Vec<Lease> = holds.iter().map(|hold| hold.lease).collect();
        let delay = self.dice.chance(1, 3).then(|| Duration::from_millis(self.dice.roll(500)));
        let verb = match wanted {
            Wanted::Ack => Verb::Ack,
            Wanted::Retry => Verb::Retry { delay },
            Wanted::Park => Verb::Park,
            Wanted::Skip => Verb::Skip,
            Wanted::Move => Verb::Move(elsewhere()),
            Wanted::Return(until) => Verb::Return { delay: Some(until.since(self.now)) },
        };
        let reason = self.dice.chance(1, 2).then(|| (*self.dice.pick(&["bad", "worse"])).to_owned());
        let settlement = Settlement { reason, ..verb.into() };
        let now = self.now;
        let mut outcomes = Vec::new();
        let runs = LeaseRun::join(leases.iter().copied());
        self.driver().settle(now, group, &runs, &settlement, &mut outcomes);
        self.answered(group, &leases, wanted, &outcomes);
    }

    /// Leases were answered, and their consumer is told what became of each.
    pub(super) fn answered(
        &mut self,
        group: GroupId,
        leases: &[Lease],
        wanted: Wanted,
        outcomes: &[OutcomeRun],
    ) {
        let now = self.now;
        let results: Vec<Outcome> = each_outcome(outcomes).collect();
        assert_eq!(results.len(), leases.len(), "I17: every answer is answered");
        let following = self.groups.get_mut(&group).expect("the group exists");
        let model = &mut following.model;
        for (&lease, &result) in leases.iter().zip(&results) {
            if matches!(result, Outcome::NotYours(_)) && model.moved_on(lease) {
                self.situations.reached(Situation::StaleAnswerAfterMoving);
            }
            if result == Outcome::Acked {
                self.acked_this_turn.push(group);
                self.settled_since_commit = true;
            }
            tell(|| format!("{group:?} settles {lease:?} with {wanted:?}: {result:?}"));
            let watch = &mut following.watch;
            match result {
                Outcome::Expired if following.sends_expired => {
                    watch.moved.insert(lease.seq);
                }
                Outcome::Acked | Outcome::Skipped | Outcome::Expired => {
                    watch.reasons.settled.insert(lease.seq);
                }
                Outcome::Parked => {
                    watch.reasons.parked.insert(lease.seq);
                }
                Outcome::Moving => {
                    watch.moved.insert(lease.seq);
                }
                _ => {}
            }
            model.settled(now, lease, wanted, result);
            let what: u64 = format!("{result:?}").bytes().map(u64::from).sum();
            self.trace.add(lease.grant.0 ^ what << 50);
        }
        self.stale.extend(leases.iter().map(|&lease| (group, lease)));
        let excess = self.stale.len().saturating_sub(40);
        self.stale.drain(..excess);
    }

    /// A consumer answers a lease that is long over, or answers twice.
    pub(super) fn answer_stale(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let (group, lease) = *self.dice.pick(&self.stale);
        let now = self.now;
        let mut outcomes = Vec::new();
        self.driver().settle(now, group, &[LeaseRun::one(lease)], &Verb::Ack.into(), &mut outcomes);
        let (outcome, _) = outcomes[0];
        let following = self.groups.get_mut(&group).expect("the group exists");
        if outcome == Outcome::Acked {
            following.watch.reasons.settled.insert(lease.seq);
        }
        let model = &mut following.model;
        if matches!(outcome, Outcome::NotYours(_)) && model.moved_on(lease) {
            self.situations.reached(Situation::StaleAnswerAfterMoving);
        }
        tell(|| format!("{group:?} acks {lease:?} again: {outcome:?}"));
        model.settled(now, lease, Wanted::Ack, outcome);
    }

    pub(super) fn join(&mut self) {
        if self.consumers.len() >= 8 || self.groups.is_empty() {
            return;
        }
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        let group = *self.dice.pick(&groups);
        self.join_group(group);
    }

    pub(super) fn join_group(&mut self, group: GroupId) {
        let id = ConsumerId(self.number());
        let bound = if self.mishaps && self.dice.chance(1, 3) { Bound::Clock } else { Bound::Connection };
        let now = self.now;
        tell(|| format!("{id:?} joins {group:?}, bound to {bound:?}"));
        let is_special = self.wild && bound == Bound::Connection;
        let rank = if is_special { *self.dice.pick(&[0, 0, 0, 1, -1]) } else { 0 };
        let lease =
            (is_special && self.dice.chance(1, 5)).then(|| Duration::from_millis(300 + self.dice.roll(900)));
        let terms = ConsumerTerms { lease, rank };
        self.driver().join_on(now, group, id, "worker", bound, terms).expect("a new member");
        let consumer = Consumer { group, bound, credit: 0, allowed: 0, asked: None, lease_for: lease, rank };
        self.consumers.insert(id, consumer);
        if bound == Bound::Connection {
            self.set_slots(id);
        }
    }

    pub(super) fn set_slots(&mut self, id: ConsumerId) {
        let slots = if self.mishaps { self.dice.roll(10) as u32 } else { 10 };
        let consumer = self.consumers.get_mut(&id).expect("the consumer is there");
        consumer.credit = slots;
        consumer.allowed = consumer.allowed.max(slots);
        let group = consumer.group;
        let now = self.now;
        tell(|| format!("{id:?} has {slots} slots"));
        self.driver().credit(now, group, id, Credit::slots(slots)).expect("a member");
    }

    fn somebody(&mut self, bound: Bound) -> Option<ConsumerId> {
        let there: Vec<ConsumerId> = self
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.bound == bound)
            .map(|(&id, _)| id)
            .collect();
        Some(*self.dice.pick((!there.is_empty()).then_some(&there[..])?))
    }

    pub(super) fn change_credit(&mut self) {
        if let Some(id) = self.somebody(Bound::Connection) {
            self.set_slots(id);
        }
    }

    pub(super) fn poll(&mut self) {
        let Some(id) = self.somebody(Bound::Clock) else { return };
        // A poller asks again only when it has what it asked for, or gave up waiting.
        let group = self.consumers[&id].group;
        if self.server().driver.undelivered(group).any(|(consumer, _)| consumer == id) {
            return;
        }
        let messages = self.dice.roll(6) as u32;
        let timeout = match self.dice.roll(8) {
            // Gone as soon as they are there.
            0 => Some(Duration::ZERO),
            1..5 => Some(Duration::from_millis(50 + self.dice.roll(5_000))),
            _ => None,
        };
        let consumer = self.consumers.get_mut(&id).expect("the consumer is there");
        (consumer.credit, consumer.asked) = (messages, Some((messages, timeout)));
        consumer.lease_for = timeout;
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.situations.reached(Situation::LeaseForNoTime);
            self.is_fleeting = true;
        }
        let now = self.now;
        tell(|| format!("{id:?} polls {messages} for {timeout:?}"));
        let credit = Credit::Once { messages, bytes: None, timeout };
        self.driver().credit(now, group, id, credit).expect("a member");
    }

    pub(super) fn leave(&mut self) {
        let there: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        if there.is_empty() {
            return;
        }
        let id = *self.dice.pick(&there);
        let consumer = self.consumers.remove(&id).expect("it was picked from those there");
        // A poller does not leave; it is just not seen again. What it holds runs out.
        let departure = match consumer.bound {
            Bound::Connection if self.dice.chance(1, 2) => Departure::Goodbye,
            _ => Departure::Lost,
        };
        let now = self.now;
        let group = consumer.group;
        let late = self.groups[&group].model.held_by(id).any(|hold| hold.deadline <= now);
        if departure == Departure::Goodbye && late {
            self.situations.reached(Situation::GoodbyeAgainstTimeout);
        }
        let unseen: Vec<_> = self
            .server()
            .driver
            .undelivered(group)
            .filter(|(of, _)| *of == id)
            .map(|(_, seqs)| seqs)
            .collect();
        tell(|| format!("{id:?} leaves {group:?}: {departure:?}, unseen {unseen:?}"));
        self.driver().leave(group, id, departure);
        let model = &mut self.groups.get_mut(&group).expect("the group exists").model;
        model.left(now, id, departure == Departure::Goodbye, &unseen);
    }
}
