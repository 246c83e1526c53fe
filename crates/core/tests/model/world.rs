//! A shard, its model, and all that happens to both.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::entry::{Entry, MessageMeta, Route, entries};
use forebay_core::group::{
    Bound, ConsumerTerms, Credit, Departure, Effects, Lease, LeaseRun, NotYours, Outcome, Settlement, Verb,
    each_outcome,
};
use forebay_core::image::Taking;
use forebay_core::notes::{Expected, NoteRefusal};
use forebay_core::producers::ProducerStamp;
use forebay_core::settings::{GroupSettings, OnEnd, OnExhausted, OnFull, Retention};
use forebay_core::shard::{
    ChangeRefusal, DeleteIf, KeyRun, MemberRefusal, PublishOptions, PublishRefusal, Purge, Shard, Start,
};
use forebay_core::types::{
    ConsumerId, Epoch, Grant, GroupId, GroupName, IdHash, KeyHash, Limits, PartKey, Position, Seq, SeqRange,
    StreamId, Timestamp,
};

use crate::book::{How, State, group_of};
use crate::commands::{Amount, Answer, Command, Setup, To, Wish, stream_name};
use crate::jobs::{ended, job_came_to, passed, set_out};
use crate::plain::{Group, Member, Message, SIZE, Stream, check_rate, held};

pub(crate) const FOREVER: Timestamp = Timestamp(u64::MAX);
pub(crate) const REASONS: [&str; 3] = ["bad", "ugly", "(timed out)"];

type Parts = BTreeMap<PartKey, (Position, Vec<u8>)>;

pub(crate) struct World {
    pub(crate) shard: Shard,
    pub(crate) now: Timestamp,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    /// Keys, values and times of notes, with the highest version ever given.
    pub(crate) notes: BTreeMap<u8, (u64, Vec<u8>, Timestamp)>,
    version: u64,
    epoch: Epoch,
    grant: Grant,
    log: Vec<Vec<u8>>,
    /// Every lease ever given.
    leases: Vec<(GroupId, Lease)>,
    next_consumer: u64,
    slots: BTreeMap<(GroupId, u8), ConsumerId>,
    /// The image made last, and the one being made with its remaining parts.
    image: Option<Parts>,
    taking: Option<(Vec<PartKey>, Parts)>,
    /// The log before the image counts as trimmed.
    needs_image: bool,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> World {
        let mut shard = Shard::new(Limits::DEFAULT);
        let now = Timestamp(1_700_000_000_000_000);
        shard.open(now, Epoch(1));
        let mut world = World {
            shard,
            now,
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            notes: BTreeMap::new(),
            version: 0,
            epoch: Epoch(1),
            grant: Grant(0),
            log: Vec::new(),
            leases: Vec::new(),
            next_consumer: 1,
            slots: BTreeMap::new(),
            image: None,
            taking: None,
            needs_image: false,
        };
        for (n, settings) in setup.streams.iter().enumerate() {
            let name = stream_name(n as u8);
            let id = world.shard.create_stream(now, &name, settings).expect("a new stream");
            world.streams.insert(id, Stream::new(id, name, settings.clone()));
        }
        world.create(0, &setup.group, To::Beginning);
        world.finish_turn();
        world
    }

    pub(crate) fn play(&mut self, command: &Command, goes_on: bool) {
        let mut goes_on = goes_on;
        match command {
            Command::Publish { stream, wishes, expect, stamp } => {
                self.publish(*stream, wishes, *expect, *stamp);
            }
            Command::Join { group, slot, clock, credit, terms } => {
                self.join(*group, *slot, *clock, *credit, *terms);
            }
            Command::Credit { group, slot, credit } => {
                if let Some((group, consumer)) = self.consumer(*group, *slot) {
                    self.credit(group, consumer, *credit);
                }
            }
            Command::Leave { group, slot, goodbye } => self.leave(*group, *slot, *goodbye),
            Command::Settle { back, count, answer } => self.settle(*back, *count, *answer),
            Command::Bundle { back, count, stream, wishes } => self.bundle(*back, *count, *stream, wishes),
            Command::AckAll { group } => self.ack_all(*group),
            Command::Extend { back, by, total } => self.extend(*back, *by, *total),
            Command::Pass { millis } => {
                self.now = self.now + Duration::from_millis(*millis);
                goes_on = false;
            }
            Command::PassToWake => {
                self.now = self.shard.wake_at().unwrap_or(self.now).max(self.now);
                goes_on = false;
            }
            Command::Pause { group, paused } => {
                if let Some(id) = self.group(*group) {
                    self.shard.pause(self.now, id, *paused).expect("the group exists");
                    self.of(id).paused = *paused;
                }
            }
            Command::Change { group, settings } => self.change(*group, settings),
            Command::ChangeStream { stream, settings } => {
                let id = self.stream(*stream);
                self.shard.change_stream(self.now, id, settings).expect("good settings");
                self.streams.get_mut(&id).expect("it exists").change(self.now, settings);
                goes_on = false;
            }
            Command::Reset { group, to, parked } => {
                self.reset(*group, *to, *parked);
                // Until the turn ends leased messages are not dropped, for example to make room.
                goes_on = false;
            }
            Command::Move { group, back, rate } => self.start_move(*group, *back, *rate),
            Command::Purge { stream, purge } => self.purge(*stream, *purge),
            Command::Truncate { stream, back } => self.truncate(*stream, *back),
            Command::PurgeReady { stream } => self.purge_ready(*stream),
            Command::DeleteEmpty { stream } => self.delete_empty(*stream),
            Command::Job { group, work, which, limit, rate } => {
                self.start_job(*group, *work, *which, *limit, *rate);
            }
            Command::Cancel { group, back } => self.cancel(*group, *back),
            Command::Resubmit { group, nth } => self.resubmit(*group, *nth),
            Command::Delete { group } => {
                if let Some(id) = self.group(*group) {
                    self.shard.delete_group(id).expect("the group exists");
                    self.groups.remove(&id);
                }
            }
            Command::Create { group, settings, to } => self.create(*group, settings, *to),
            Command::PutNote { key, expected, ttl } => self.put_note(*key, *expected, *ttl),
            Command::RemoveNote { key, expected } => self.remove_note(*key, *expected),
            Command::Reader { stream, name, seq } => self.reader(*stream, *name, *seq),
            Command::Release => {
                self.finish_turn();
                self.shard.release();
                self.adopt_gone(false);
            }
            Command::CheckPoint => self.shard.check_point_all(self.now),
            Command::TakeParts { count } => {
                self.finish_turn();
                self.take_parts(*count);
            }
            Command::Crash { image } => {
                self.finish_turn();
                self.crash(*image);
                goes_on = false;
            }
        }
        if !goes_on {
            self.finish_turn();
        }
    }

    pub(crate) fn stream(&self, n: u8) -> StreamId {
        StreamId(u32::from(n % 2) + 1)
    }

    /// Two groups on the first stream, one on the other.
    pub(crate) fn group(&self, n: u8) -> Option<GroupId> {
        self.shard.group_named(self.stream(n / 2), &group_name(n))
    }

    pub(crate) fn of(&mut self, group: GroupId) -> &mut Group {
        self.groups.get_mut(&group).expect("the group exists")
    }

    pub(crate) fn both(&mut self, group: GroupId) -> (&mut Group, &Stream) {
        let group = self.groups.get_mut(&group).expect("the group exists");
        let stream = &self.streams[&group.stream];
        (group, stream)
    }

    fn consumer(&self, group: u8, slot: u8) -> Option<(GroupId, ConsumerId)> {
        let id = self.group(group)?;
        let consumer = *self.slots.get(&(id, slot))?;
        self.groups[&id].members.contains_key(&consumer).then_some((id, consumer))
    }

    fn create(&mut self, group: u8, settings: &GroupSettings, to: To) {
        if self.group(group).is_some() {
            return;
        }
        let id = self.stream(group / 2);
        let mut settings = settings.clone();
        if group == 2 {
            settings.on_exhausted = OnExhausted::Park;
            send_back(&mut settings);
        }
        let created = self.shard.create_group(self.now, id, &group_name(group), &settings, self.start(to));
        let created = created.expect("a new group");
        let floor = self.shard.figures(self.now, created).expect("it was created").floor;
        self.check_start(id, to, floor);
        self.groups.insert(created, Group::new(created, &self.streams[&id], settings, floor));
    }

    fn start(&self, to: To) -> Start {
        match to {
            To::Beginning => Start::Beginning,
            To::End => Start::End,
            To::At(seq) => Start::Seq(Seq(seq)),
            To::Ago(millis) => Start::Time(self.now - Duration::from_millis(millis)),
        }
    }

    fn check_start(&mut self, stream: StreamId, to: To, floor: Seq) {
        let of = &self.streams[&stream];
        let (gone, last) = (of.gone, of.last());
        match to {
            To::Beginning => assert_eq!(floor, gone, "the beginning is the first message that is kept"),
            To::End => assert_eq!(floor, last, "the end is behind the last message"),
            To::At(seq) => {
                let expected = Seq(seq.saturating_sub(1)).clamp(gone, last);
                assert_eq!(floor, expected, "begins with the message that was asked for");
            }
            To::Ago(millis) => {
                let from = self.now - Duration::from_millis(millis);
                let missed = of.messages.iter().find(|(seq, m)| **seq > gone && m.published >= from);
                let missed = missed.filter(|(seq, _)| **seq <= floor);
                assert!(missed.is_none() && floor >= gone, "begins no later than the time asked for");
            }
        }
    }

    /// Whether the messages are stored.
    pub(crate) fn publish(
        &mut self,
        n: u8,
        wishes: &[Wish],
        expect: Option<u64>,
        stamp: Option<(u8, u32, i8)>,
    ) -> bool {
        let (now, id) = (self.now, self.stream(n));
        let metas: Vec<MessageMeta> = wishes.iter().map(|wish| meta(now, wish)).collect();
        let of = &self.streams[&id];
        let expect_last = expect.map(|back| Seq(of.last().0.saturating_sub(back)));
        let stamp = stamp.map(|(producer, epoch, offset)| {
            let last = of.producers.get(&producer.into()).and_then(|(_, batches)| batches.last());
            let next = last.map_or(10, |batch| batch.number + batch.count);
            let number = next.saturating_add_signed(offset.into());
            ProducerStamp { producer: producer.into(), epoch, number }
        });
        // What must come of it, in the order in which it is asked.
        let count = metas.len() as u64;
        let verdict = stamp.map_or(Ok(None), |stamp| of.verdict(stamp, count));
        let groups = self.groups.values().filter(|group| group.stream == id);
        let before_held = held(of, groups.clone());
        let before: Vec<(GroupId, Vec<Seq>)> = groups.map(|group| (group.id, droppable(group))).collect();
        let mut admissions = Vec::new();
        let options = PublishOptions { expect_last, stamp };
        let result = self.shard.publish(now, id, &metas, options, &mut admissions);
        let of = &self.streams[&id];
        let given: Vec<_> = admissions.iter().map(|a| (a.seq, a.duplicate)).collect();
        let (fresh, expected) = of.admissions(now, &metas, &given);
        let limit = of.settings.limits.max_messages.filter(|_| !fresh.is_empty());
        let over = limit.map_or(0, |most| (before_held + fresh.len() as u64).saturating_sub(most));
        match (&result, verdict) {
            (Err(PublishRefusal::Producer(_)), Err(())) => return false,
            (Ok(None), Ok(Some(batch))) => {
                let seqs: Vec<_> =
                    batch.seqs.iter().flat_map(SeqRange::seqs).map(|seq| (seq, true)).collect();
                if batch.count == seqs.len() as u64 {
                    assert_eq!(given, seqs, "a batch sent again is answered as the first time");
                }
                assert_eq!(given.len() as u64, count, "there is an answer for each message");
                return true;
            }
            // Some of its messages were known by their ids when it came first. With other ids their positions
            // are unknown.
            (Err(PublishRefusal::Producer(_)), Ok(Some(batch))) => {
                assert!(batch.seqs.is_none_or(|seqs| seqs.count() < batch.count), "a batch that is known");
                return false;
            }
            (_, Ok(None)) => {}
            other => panic!("a producer's batch: {other:?}"),
        }
        if expect_last.is_some_and(|expected| expected != of.last()) {
            assert_eq!(result, Err(PublishRefusal::WrongLastSeq { last: of.last() }));
            return false;
        }
        match result {
            Err(PublishRefusal::TooFast { .. }) => {
                assert!(
                    of.settings.ingress_rate.is_some(),
                    "only a stream with a rate holds producers to it"
                );
                return false;
            }
            Err(PublishRefusal::Full { .. }) => {
                let limits = &of.settings.limits;
                assert!(over > 0 && !fresh.is_empty(), "a stream with room takes messages");
                let fits = limits.max_messages.is_some_and(|most| fresh.len() as u64 <= most);
                let work = of.settings.retention == Retention::Work;
                if limits.on_full == OnFull::DropOldest && fits && before.len() == 1 && work {
                    let kept = before[0].1.iter().filter(|seq| **seq > of.gone);
                    assert!((kept.count() as u64) < over, "a full stream drops what it can");
                }
                return false;
            }
            _ => {}
        }
        let stored = result.expect("there is no other reason to refuse");
        assert_eq!(given, expected, "positions, and what was a duplicate");
        assert_eq!(stored.map_or(0, |range| range.count()), fresh.len() as u64, "what is new is stored");
        self.adopt_drops(id, over, &before);
        let of = self.streams.get_mut(&id).expect("it exists");
        if let Some(stamp) = stamp {
            of.stamped(stamp, count, stored);
        }
        let Some(range) = stored else { return true };
        if let Some(rate) = of.settings.ingress_rate {
            of.taken.push((now, range.count()));
            // A batch that is larger than the burst goes all the same, and is paid off.
            check_rate(&of.taken, rate.per_second, f64::from(rate.burst) + 7.0);
        }
        self.stored(id, range.first, &fresh);
        let of = &self.streams[&id];
        let after = held(of, self.groups.values().filter(|group| group.stream == id));
        let fits = of.settings.limits.max_messages.is_none_or(|most| after <= most);
        assert!(fits, "a stream holds no more than it may: {after} after {before_held}");
        true
    }

    /// A full stream has let go of its oldest.
    fn adopt_drops(&mut self, stream: StreamId, over: u64, before: &[(GroupId, Vec<Seq>)]) {
        let of = &self.streams[&stream];
        let drops = of.settings.limits.on_full == OnFull::DropOldest && over > 0;
        let alone = before.len() == 1 && of.settings.retention == Retention::Work;
        for (id, droppable) in before {
            let group = self.groups.get_mut(id).expect("it was there just now");
            let dropped: Vec<Seq> =
                droppable.iter().filter(|&&seq| self.shard.is_settled(*id, seq)).copied().collect();
            assert!(drops || dropped.is_empty(), "a stream with room drops nothing");
            // Messages that were replayed from before the front of the stream are not looked for.
            if alone && droppable.first().is_none_or(|&first| first > of.gone) {
                let oldest = &droppable[..(over as usize).min(droppable.len())];
                assert_eq!(dropped, oldest, "the oldest go, and no more than have to");
            }
            for seq in dropped {
                group.let_go(seq, How::Dropped);
            }
        }
        self.adopt_gone(true);
    }

    /// Messages are durable: the model, the log and the groups are told.
    pub(crate) fn stored(&mut self, id: StreamId, first: Seq, metas: &[MessageMeta]) {
        self.append();
        let of = self.streams.get_mut(&id).expect("the stream exists");
        for (n, meta) in metas.iter().enumerate() {
            let seq = first.plus(n as u64);
            assert_eq!(seq, of.last().next(), "positions have no gaps");
            let message = Message {
                key: meta.key.unwrap_or(KeyHash(0)),
                priority: meta.priority,
                not_before: meta.not_before.unwrap_or(Timestamp::ZERO),
                expires: meta.expires.unwrap_or(FOREVER),
                published: self.now,
                from: meta.origin.and_then(|origin| origin.trail).map(|trail| (trail.from, trail.why)),
            };
            of.messages.insert(seq, message);
            if let Some(id) = meta.id {
                of.ids.insert(id, (seq, self.now));
                of.doubtful.remove(&id);
            }
        }
        let range = SeqRange::starting(first, metas.len() as u64);
        for group in self.groups.values_mut().filter(|group| group.stream == id) {
            let untouched = || crate::book::Item::new(State::Untouched);
            for seq in range.seqs() {
                group.book.items.insert(seq, untouched());
                group.books().for_each(|book| {
                    book.items.entry(seq).or_insert_with(untouched);
                });
            }
        }
        let keys: Vec<KeyHash> = metas.iter().map(|meta| meta.key.unwrap_or(KeyHash(0))).collect();
        self.shard.arrived(id, range, KeyRun::Each(&keys));
    }

    fn join(&mut self, group: u8, slot: u8, clock: bool, credit: Amount, (rank, lease): (i32, Option<u64>)) {
        let Some(id) = self.group(group) else { return };
        if self.consumer(group, slot).is_some() {
            return;
        }
        let consumer = ConsumerId(self.next_consumer);
        self.next_consumer += 1;
        let bound = if clock { Bound::Clock } else { Bound::Connection };
        let name = format!("c{slot}");
        let terms = ConsumerTerms { lease: lease.map(Duration::from_millis), rank };
        let joined = self.shard.join_on(self.now, id, consumer, &name, bound, terms);
        let of = self.groups.get_mut(&id).expect("the group exists");
        let limit = of.settings.max_consumers;
        if limit > 0 && of.members.len() >= limit as usize {
            assert_eq!(joined, Err(MemberRefusal::TooManyConsumers { limit }));
            return;
        }
        joined.expect("there is room for a consumer");
        let credit_none = Credit::slots(0);
        let member = Member { name, bound, credit: credit_none, terms, fed: false, seen: self.now };
        of.members.insert(consumer, member);
        of.sole.get_or_insert(consumer);
        of.pins.clear();
        self.slots.insert((id, slot), consumer);
        self.credit(id, consumer, credit);
    }

    fn credit(&mut self, group: GroupId, consumer: ConsumerId, credit: Amount) {
        let credit = match credit {
            Amount::Slots(messages) => Credit::slots(messages),
            Amount::Bytes(messages, bytes) => Credit::Slots { messages, bytes: Some(bytes) },
            Amount::Once(messages, bytes, timeout) => {
                Credit::Once { messages, bytes, timeout: timeout.map(Duration::from_millis) }
            }
        };
        self.shard.credit(self.now, group, consumer, credit).expect("a member, and not much credit");
        let now = self.now;
        let member = self.of(group).members.get_mut(&consumer).expect("a member");
        (member.credit, member.fed, member.seen) = (credit, false, now);
    }

    fn leave(&mut self, group: u8, slot: u8, goodbye: bool) {
        let Some((id, consumer)) = self.consumer(group, slot) else { return };
        let departure = if goodbye { Departure::Goodbye } else { Departure::Lost };
        self.shard.leave(id, consumer, departure);
        let of = self.of(id);
        let member = of.gone(consumer).expect("a member");
        of.pins.clear();
        if member.bound == Bound::Connection || goodbye {
            of.leaving.insert(consumer, (member.name, departure));
        }
    }

    /// Some leases of one group, counting back from the last one given.
    pub(crate) fn pick(&self, back: u16, count: u8) -> Option<(GroupId, Vec<Lease>)> {
        let at = self.leases.len().checked_sub(1 + usize::from(back))?;
        let group = self.leases[at].0;
        let some = self.leases[at..].iter().take(count.into()).filter(|(of, _)| *of == group);
        Some((group, some.map(|(_, lease)| *lease).collect()))
    }

    fn settle(&mut self, back: u16, count: u8, answer: Answer) {
        let Some((id, leases)) = self.pick(back, count) else { return };
        let to = stream_name(if let Answer::Move(to) = answer { to } else { 0 });
        let verb = match answer {
            Answer::Ack | Answer::LateAck => Verb::Ack,
            Answer::Nack => Verb::Retry { delay: None },
            Answer::NackIn(millis) => Verb::Retry { delay: Some(Duration::from_millis(millis)) },
            Answer::Park(_) => Verb::Park,
            Answer::Skip => Verb::Skip,
            Answer::Return | Answer::Rest(_) => Verb::Return { delay: None },
            Answer::ReturnFor(millis) => Verb::Return { delay: Some(Duration::from_millis(millis)) },
            Answer::Move(_) => Verb::Move(to),
        };
        let reason =
            if let Answer::Park(n) = answer { Some(REASONS[usize::from(n)].to_owned()) } else { None };
        let rest = if let Answer::Rest(millis) = answer { Some(Duration::from_millis(millis)) } else { None };
        let settlement = Settlement { verb, reason, late: matches!(answer, Answer::LateAck), rest };
        self.settle_all(id, &leases, &settlement);
    }

    pub(crate) fn settle_all(&mut self, id: GroupId, leases: &[Lease], settlement: &Settlement) {
        let mut outcomes = Vec::new();
        let runs = LeaseRun::join(leases.iter().copied());
        self.shard.settle(self.now, id, &runs, settlement, &mut outcomes);
        let now = self.now;
        let mut expected = Vec::new();
        for &lease in leases {
            expected.push(match self.groups.contains_key(&id) {
                true => {
                    let (group, stream) = self.both(id);
                    group.settle(now, stream, lease, settlement)
                }
                false => Outcome::NotYours(NotYours::Unknown),
            });
        }
        let outcomes: Vec<Outcome> = each_outcome(&outcomes).collect();
        assert_eq!(outcomes, expected, "answers to {settlement:?} for {leases:?}");
    }

    fn ack_all(&mut self, group: u8) {
        let Some(id) = self.group(group) else { return };
        let leased = self.groups[&id].book.items.values().filter_map(|item| match &item.state {
            State::Leased { lease, .. } => Some(*lease),
            _ => None,
        });
        let leases: Vec<Lease> = leased.collect();
        self.settle_all(id, &leases, &Verb::Ack.into());
    }

    fn extend(&mut self, back: u16, by: u64, total: Option<u64>) {
        let Some((id, leases)) = self.pick(back, 2) else { return };
        let (now, by) = (self.now, Duration::from_millis(by));
        let total_max = total.map(Duration::from_millis);
        let mut outcomes = Vec::new();
        let runs = LeaseRun::join(leases.iter().copied());
        self.shard.settle(now, id, &runs, &Verb::Extend { by, total_max }.into(), &mut outcomes);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let outcomes: Vec<Outcome> = each_outcome(&outcomes).collect();
        let expected: Vec<_> = leases.iter().map(|&lease| group.extend(now, lease, by, total_max)).collect();
        assert_eq!(outcomes, expected, "answers to an extension");
    }

    fn change(&mut self, group: u8, settings: &GroupSettings) {
        let Some(id) = self.group(group) else { return };
        let mut settings = settings.clone();
        if group == 2 {
            settings.on_exhausted = OnExhausted::Park;
            send_back(&mut settings);
        }
        self.shard.change_group(self.now, id, &settings).expect("good settings");
        let of = self.of(id);
        if of.settings.rate != settings.rate {
            of.paced.clear();
        }
        of.window_changed = true;
        of.settings = settings;
        of.pins.clear();
        of.served = None;
    }

    fn reset(&mut self, group: u8, to: To, parked: bool) {
        let Some(id) = self.group(group) else { return };
        let reset = self.shard.reset(self.now, id, self.start(to), parked);
        let last = self.streams[&self.groups[&id].stream].last();
        if let To::At(seq) = to
            && Seq(seq) > last.next()
        {
            let beyond = ChangeRefusal::Beyond { seq: Seq(seq), last };
            assert_eq!(reset, Err(beyond), "a position beyond the end is refused");
            return;
        }
        let floor = reset.expect("the group exists");
        self.append();
        self.check_start(self.groups[&id].stream, to, floor);
        let of = self.of(id);
        of.book.reset(floor, parked);
        of.leaving.clear();
        of.pins.clear();
        of.unwritten.clear();
        of.checkpoint = Seq::START;
    }

    fn purge(&mut self, n: u8, purge: Purge) {
        let Purge { parked, ids } = purge;
        let id = self.stream(n);
        let count = self.shard.purge(self.now, id, purge).expect("the stream exists");
        self.append();
        let of = self.streams.get_mut(&id).expect("it exists");
        let through = of.last();
        of.purged = through;
        of.ids.retain(|_, _| !ids);
        let mut groups: Vec<&mut Group> = self.groups.values_mut().filter(|g| g.stream == id).collect();
        if let [group] = &mut groups[..]
            && of.settings.retention == Retention::Work
        {
            let goes = |item: &crate::book::Item| {
                !matches!(item.state, State::Settled(_) | State::Sent { .. }) && (parked || !item.is_parked())
            };
            assert_eq!(count, group.book.count(goes), "as many go as the answer says");
        }
        for group in groups {
            group.book.purge(through, parked);
            group.leaving.clear();
            group.pins.clear();
            group.unwritten.clear();
        }
        self.adopt_gone(true);
    }

    /// Everything before a position goes, and nothing else.
    fn truncate(&mut self, n: u8, back: u8) {
        let id = self.stream(n);
        let last = self.streams[&id].last();
        let beyond = Seq(last.0 + 2);
        let refused = self.shard.truncate(self.now, id, beyond);
        assert_eq!(
            refused,
            Err(ChangeRefusal::Beyond { seq: beyond, last }),
            "only published messages are cut"
        );
        let through = Seq(last.0.saturating_sub(back.into()));
        let count = self.shard.truncate(self.now, id, through.next()).expect("the position exists");
        self.append();
        if through == Seq::START {
            assert_eq!(count, 0, "nothing lies before the first message");
            return;
        }
        let of = self.streams.get_mut(&id).expect("it exists");
        of.purged = of.purged.max(through);
        let mut groups: Vec<&mut Group> = self.groups.values_mut().filter(|g| g.stream == id).collect();
        if let [group] = &mut groups[..]
            && of.settings.retention == Retention::Work
        {
            let goes = |item: &crate::book::Item| {
                !matches!(item.state, State::Settled(_) | State::Sent { .. }) && !item.is_parked()
            };
            assert_eq!(count, group.book.count_through(through, goes), "as many go as the answer says");
        }
        for group in groups {
            group.book.purge(through, false);
            group.leaving.clear();
            group.pins.clear();
            group.unwritten.clear();
        }
        self.adopt_gone(true);
    }

    /// Messages that are not leased, moving or parked go.
    fn purge_ready(&mut self, n: u8) {
        let id = self.stream(n);
        if !self.groups.values().any(|group| group.stream == id) {
            return self.purge(n, Purge::default());
        }
        let droppable: Vec<(GroupId, Vec<Seq>)> = self
            .groups
            .values()
            .filter(|group| group.stream == id)
            .map(|group| (group.id, droppable(group)))
            .collect();
        let count = self.shard.purge_ready(self.now, id).expect("the stream exists");
        let most = droppable.iter().map(|(_, seqs)| seqs.len() as u64).max();
        assert_eq!(Some(count), most, "as many go as the answer says");
        for (id, seqs) in droppable {
            let group = self.groups.get_mut(&id).expect("it was there just now");
            for seq in seqs {
                assert!(self.shard.is_settled(id, seq), "{seq} is ready, and goes");
                group.book.item(seq).settle(How::Dropped);
            }
        }
        self.append();
        self.adopt_gone(true);
    }

    fn delete_empty(&mut self, n: u8) {
        let id = self.stream(n);
        let held = self.shard.stream_figures(self.now, id).expect("the stream exists").messages;
        if held > 0 {
            let condition = DeleteIf { unused: false, empty: true };
            let refused = self.shard.delete_stream_if(id, condition);
            assert_eq!(refused, Err(ChangeRefusal::NotEmpty { messages: held }));
        }
    }

    fn resubmit(&mut self, n: u8, nth: u8) {
        let Some(id) = self.group(n) else { return };
        let parked = self.groups[&id].book.items.iter().filter(|(_, item)| item.is_parked());
        let Some((&seq, _)) = parked.clone().nth(nth.into()) else { return };
        let stream = self.groups[&id].stream;
        let of = &self.streams[&stream];
        if of.settings.limits.max_messages.is_some() || of.settings.ingress_rate.is_some() {
            return;
        }
        let meta = MessageMeta { key: Some(KeyHash(1)), ..MessageMeta::plain(SIZE) };
        let mut admissions = Vec::new();
        let stored = self.shard.resubmit(self.now, id, seq, &meta, &mut admissions).expect("it is parked");
        self.of(id).book.item(seq).settle(How::Discarded);
        self.stored(stream, stored.expect("it is new").first, &[meta]);
    }

    fn expected(&self, key: u8, expected: u8) -> (Expected, bool) {
        let note = self.notes.get(&key).filter(|(.., expires)| *expires > self.now);
        match expected {
            0 => (Expected::Any, true),
            1 => (Expected::Absent, note.is_none()),
            _ => {
                let version = note.map_or(7_777, |(version, ..)| *version);
                (Expected::Version(version), note.is_some())
            }
        }
    }

    fn put_note(&mut self, key: u8, expected: u8, ttl: u64) {
        let (expected, fits) = self.expected(key, expected);
        let expires = if ttl > 0 { self.now + Duration::from_millis(ttl) } else { FOREVER };
        let value = vec![key; 3];
        let until = (ttl > 0).then_some(expires);
        match self.shard.put_note(self.now, 1, &[key], &value, expected, until) {
            Ok(version) => {
                assert!(fits, "a note that is not as expected is not changed");
                assert!(version > self.version, "versions of notes are never used again");
                self.version = version;
                self.notes.insert(key, (version, value, expires));
            }
            Err(NoteRefusal::Mismatch { .. }) => assert!(!fits, "a note that is as expected is changed"),
            Err(other) => panic!("a good note was refused: {other}"),
        }
    }

    fn remove_note(&mut self, key: u8, expected: u8) {
        let (expected, fits) = self.expected(key, expected);
        let removed = self.shard.remove_note(self.now, 1, &[key], expected);
        assert_eq!(removed.is_ok(), fits, "a note that is as expected is removed");
        if fits {
            self.notes.remove(&key);
        }
    }

    fn reader(&mut self, n: u8, name: u8, seq: Option<u64>) {
        let id = self.stream(n);
        let name = format!("r{name}");
        let reader = GroupName::parse(&name).expect("a good name");
        let moved = self.shard.move_reader(id, &reader, seq.map(Seq));
        let of = self.streams.get_mut(&id).expect("it exists");
        assert_eq!(moved.is_ok(), seq.is_none_or(|seq| Seq(seq) <= of.last()), "readers read what there is");
        match seq.filter(|_| moved.is_ok()) {
            Some(seq) => drop(of.readers.insert(name, Seq(seq))),
            None if seq.is_none() => drop(of.readers.remove(&name)),
            None => {}
        }
    }

    /// How long the log is.
    pub(crate) fn written_bytes(&self) -> usize {
        self.log.iter().map(Vec::len).sum()
    }

    /// Everything written so far is durable from here on.
    pub(crate) fn append(&mut self) {
        let frame = std::mem::take(self.shard.entries());
        for entry in entries(&frame) {
            let entry = entry.expect("what was written can be read");
            self.written(&entry);
        }
        if !frame.is_empty() {
            self.log.push(frame);
        }
    }

    /// The log says so, and the books that follow the log are told.
    fn written(&mut self, entry: &Entry) {
        let about = group_of(entry);
        let of_stream = if let Entry::Purged { stream, .. } = entry { Some(*stream) } else { None };
        for group in self.groups.values_mut() {
            if about != Some(group.id) && of_stream != Some(group.stream) {
                continue;
            }
            let messages = &self.streams[&group.stream].messages;
            for book in group.books() {
                book.apply(self.epoch, entry);
            }
            match entry {
                Entry::Acked { ranges, .. } => {
                    for seq in ranges.iter().flat_map(SeqRange::seqs) {
                        let was = group.unwritten.remove(&seq);
                        assert!(was.is_some(), "{seq} was written as acked, and nobody acked it");
                    }
                }
                Entry::JobStarted { job, at, .. } => {
                    group.book.jobs.insert(*job, *at);
                }
                Entry::KeysFound { keys, .. } => {
                    for (seq, key) in keys {
                        assert_eq!(messages[seq].key, *key, "the key of {seq} is what it was published with");
                    }
                }
                Entry::Replayed { job, ranges, .. } | Entry::Discarded { job, ranges, .. } => {
                    let replays = matches!(entry, Entry::Replayed { .. });
                    for seq in ranges.iter().flat_map(SeqRange::seqs) {
                        job_came_to(group, *job, seq, replays);
                    }
                }
                Entry::Moving { route: Route::Job { job, to }, seqs, .. } => {
                    for seq in seqs.iter().flat_map(SeqRange::seqs) {
                        set_out(group, &self.streams[&group.stream], self.now, *job, to.as_ref(), seq);
                    }
                }
                Entry::JobPassed { job, ranges, .. } => {
                    for seq in ranges.iter().flat_map(SeqRange::seqs) {
                        passed(group, &self.streams[&group.stream], self.now, *job, seq);
                    }
                }
                Entry::JobEnded { job, how, .. } => ended(group, *job, how),
                _ => {}
            }
        }
    }

    /// Takes over how much of each stream is kept, if that is allowed.
    pub(crate) fn adopt_gone(&mut self, forced: bool) {
        for stream in self.streams.values_mut() {
            let kept = self.shard.readable(stream.id);
            let last = stream.last();
            let gone = kept.map_or(last, |kept| Seq(kept.first.0 - 1));
            assert!(gone >= stream.gone, "what is gone does not come back");
            for seq in (stream.gone.0 + 1..=gone.0).map(Seq).filter(|_| !forced) {
                let age = stream.settings.max_age();
                let old = age.is_some_and(|age| stream.messages[&seq].published + age <= self.now);
                let many = match stream.settings.retention {
                    Retention::Log { max_messages: Some(most), .. } => seq.0 + most <= last.0,
                    _ => false,
                };
                let mut groups = self.groups.values().filter(|group| group.stream == stream.id);
                let done = groups.all(|group| matches!(group.book.items[&seq].state, State::Settled(_)));
                assert!(old || many || done, "{seq} is kept no longer, and nothing speaks against it");
            }
            stream.gone = gone;
        }
    }

    pub(crate) fn finish_turn(&mut self) {
        for _ in 0..500 {
            let mut effects = Effects::default();
            self.shard.finish_turn(self.now, &mut effects);
            self.shard.check();
            self.adopt_gone(false);
            for group in self.groups.values_mut() {
                group.time_passed(self.now, &self.streams[&group.stream]);
            }
            let now = self.now;
            self.notes.retain(|_, (.., expires)| *expires > now);
            self.append();
            self.carry_out(&effects);
            let busy = !effects.reads.is_empty() || !effects.moves.is_empty();
            if !busy && !self.shard.is_touched() && self.shard.wake_at().is_none_or(|at| at > self.now) {
                self.check();
                for group in self.groups.values_mut() {
                    let figures = self.shard.figures(self.now, group.id).expect("the group exists");
                    group.checkpoint = figures.checkpoint;
                }
                return;
            }
        }
        panic!("the shard does not come to rest");
    }

    fn carry_out(&mut self, effects: &Effects) {
        for &(group, consumer) in &effects.departed {
            let now = self.now;
            let of = self.of(group);
            assert_eq!(of.held(consumer), 0, "one who holds something stays");
            let member = of.gone(consumer).expect("only a member departs");
            assert!(member.bound == Bound::Clock && member.credit.messages() == 0, "one who waits stays");
            assert!(member.seen + Duration::from_secs(30) <= now, "one who was there just now stays");
            of.pins.clear();
        }
        let mut served = Vec::new();
        for deliver in &effects.deliveries {
            assert!(deliver.grant > self.grant, "no grant is used twice");
            self.grant = Grant(deliver.grant.0 + deliver.seqs.count() - 1);
            for (n, seq) in deliver.seqs.seqs().enumerate() {
                let lease = Lease { epoch: self.epoch, seq, grant: Grant(deliver.grant.0 + n as u64) };
                self.leases.push((deliver.group, lease));
            }
            let (now, epoch) = (self.now, self.epoch);
            let (group, stream) = self.both(deliver.group);
            group.deliver(now, stream, epoch, deliver);
            served.push((deliver.group, deliver.consumer));
        }
        for (group, consumer) in served {
            self.shard.served(group, consumer);
            let member = self.of(group).members.get_mut(&consumer).expect("it was given something");
            if let Credit::Once { messages, .. } = &mut member.credit {
                *messages = 0;
            }
        }
        for read in &effects.reads {
            let messages = &self.streams[&read.stream].messages;
            let keys: Vec<KeyHash> = read.seqs.seqs().map(|seq| messages[&seq].key).collect();
            self.shard.read_ahead(read.group, read.seqs, KeyRun::Each(&keys));
        }
        for moved in &effects.moves {
            self.complete_move(moved.group, moved.stream, moved.seq);
        }
    }

    /// Takes the next few parts of an image.
    fn take_parts(&mut self, count: u8) {
        let through = Position(self.log.len() as u64);
        for _ in 0..count {
            let (left, parts) = self.taking.get_or_insert_with(|| {
                let mut left = self.shard.parts();
                left.reverse();
                (left, Parts::new())
            });
            let Some(key) = left.pop() else {
                let (_, parts) = self.taking.take().expect("it was there just now");
                self.image = Some(parts);
                for group in self.groups.values_mut() {
                    group.image = group.taking.take();
                }
                return;
            };
            let mut bytes = Vec::new();
            let taken = self.shard.take_part(key, &mut bytes);
            let covers = if Shard::is_taken_along(key) {
                parts[&PartKey { kind: GROUP, id: key.id, sub: 0 }].0
            } else {
                through
            };
            let before = self.image.as_ref().and_then(|image| image.get(&key));
            match taken {
                Taking::Taken => drop(parts.insert(key, (covers, bytes))),
                // Where there was no such part before there is nothing in it.
                Taking::Unchanged => {
                    parts.extend(before.map(|(_, bytes)| (key, (covers, bytes.clone()))));
                }
                Taking::Gone => continue,
            }
            left.extend(self.shard.parts_of(key));
            if key.kind == GROUP
                && let Some(group) = self.groups.get_mut(&GroupId(key.id))
            {
                group.taking = Some(group.book.clone());
            }
        }
    }

    fn crash(&mut self, image: bool) {
        let from_image = (image || self.needs_image) && self.image.is_some();
        let mut shard = Shard::new(Limits::DEFAULT);
        if from_image {
            let parts = self.image.iter().flatten();
            let parts = parts.map(|(key, (through, bytes))| (*key, *through, &bytes[..]));
            shard.load(parts).expect("a good image");
            self.needs_image = true;
        } else {
            self.image = None;
        }
        for (n, frame) in self.log.iter().enumerate() {
            for entry in entries(frame) {
                let entry = entry.expect("what was written can be read");
                shard.apply(Position(n as u64 + 1), &entry).expect("entries fit each other");
            }
        }
        self.epoch = Epoch(self.epoch.0 + 1);
        shard.open(self.now, self.epoch);
        self.shard = shard;
        self.taking = None;
        self.grant = Grant(0);
        for group in self.groups.values_mut() {
            group.crashed(from_image);
            if !from_image {
                group.image = None;
            }
        }
        for stream in self.streams.values_mut() {
            // Messages that are too old are determined anew.
            stream.gone = stream.gone.min(stream.purged);
        }
        self.adopt_gone(true);
    }
}

const GROUP: u8 = 4;

/// The group of the second stream sends messages to the first, where the groups of the first send to the second.
fn send_back(settings: &mut GroupSettings) {
    for then in [&mut settings.on_expired, &mut settings.on_dropped] {
        if then.destination() == Some(&stream_name(1)) {
            *then = OnEnd::Move(stream_name(0));
        }
    }
}

fn group_name(n: u8) -> GroupName {
    GroupName::parse(&format!("g{n}")).expect("a good name")
}

pub(crate) fn meta(now: Timestamp, wish: &Wish) -> MessageMeta {
    let after = |millis: u64| (millis > 0).then(|| now + Duration::from_millis(millis));
    MessageMeta {
        id: (wish.id > 0).then(|| IdHash(wish.id.into())),
        key: (wish.key > 0).then(|| KeyHash(u64::from(wish.key) * 7_919)),
        priority: wish.priority,
        not_before: after(wish.delay),
        expires: after(wish.ttl),
        ..MessageMeta::plain(SIZE)
    }
}

/// What a full stream may let go of, as far as one group is concerned.
pub(crate) fn droppable(group: &Group) -> Vec<Seq> {
    let items = group.book.items.iter();
    let free = items
        .filter(|(_, item)| matches!(item.state, State::Untouched | State::Ready | State::Waiting { .. }));
    free.map(|(&seq, _)| seq).collect()
}
