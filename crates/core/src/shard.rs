//! The root of the core: one log's streams and groups. The unit that a task owns and the simulator
//! drives.
//!
//! Commands change state at once and add entries to the frame being filled; the shell appends the frame
//! and tells the shard when it is durable. After any number of commands comes one [`Shard::finish_turn`].
//!
//! State is applied when decided and visible when durable: an answer that states a durable fact leaves
//! no earlier than the receipt of the last frame that was filled when it was decided. Holding answers
//! back is the shell's part.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::DecodeError;
use crate::entry::{self, Entry, MessageMeta};
use crate::group::{
    Bound, Budget, Credit, Departure, Effects, Group, GroupFigures, Lease, Outcome, Settled, Turn,
    ledger::{Parked, Terms},
};
use crate::settings::{GroupSettings, SettingsError, StreamSettings};
use crate::stream::{Admission, Stream};
use crate::types::{
    ConsumerId, Epoch, Grant, GroupId, GroupName, Limits, Ordinal, Position, Seq, SeqRange, StreamId,
    StreamName, Timestamp,
};

/// Where a new group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Beginning,
    End,
    /// With this message.
    At(Seq),
}

#[derive(Debug)]
pub struct Shard {
    pub(crate) limits: Limits,
    pub(crate) epoch: Epoch,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) streams_by_name: BTreeMap<StreamName, StreamId>,
    pub(crate) next_stream: StreamId,
    pub(crate) next_group: GroupId,
    /// The position over all streams that the next message gets.
    pub(crate) next_ordinal: Ordinal,
    /// Whether the registry changed since a snapshot took it.
    pub(crate) changed: bool,
    /// Recovery: the registry as loaded has every entry up to here.
    pub(crate) through: Position,

    next_grant: Grant,
    /// When each group next has something to do by itself.
    wakeups: BTreeSet<(Timestamp, GroupId)>,
    /// Groups that have something to do at the end of this turn.
    touched: Vec<GroupId>,
    entries: Vec<u8>,
    fresh: Vec<MessageMeta>,
    /// The latest time that anything was decided at, in this run or before.
    latest: Timestamp,
}

/// Why a batch was refused. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishRefusal {
    #[error("no such stream")]
    NoSuchStream,
    #[error("a batch has at least one message")]
    Empty,
    #[error("too many messages in one batch. messages=`{messages}` limit=`{limit}`")]
    TooMany { messages: usize, limit: u32 },
    #[error("message is too large. bytes=`{bytes}` limit=`{limit}`")]
    MessageTooLarge { bytes: u32, limit: u32 },
    #[error("batch is too large. bytes=`{bytes}` limit=`{limit}`")]
    BatchTooLarge { bytes: u64, limit: u32 },
    #[error("priority is above 9. priority=`{priority}`")]
    Priority { priority: u8 },
}

/// Why something was not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateRefusal {
    #[error("a stream of that name exists. stream=`{name}`")]
    StreamExists { name: StreamName, stream: StreamId },
    #[error("a group of that name exists. group=`{name}`")]
    GroupExists { name: GroupName, group: GroupId },
    #[error("no such stream")]
    NoSuchStream,
    #[error("there can be no more of these. limit=`{limit}`")]
    TooMany { limit: u32 },
    #[error(transparent)]
    Settings(SettingsError),
}

/// Why a consumer was not let in, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberRefusal {
    #[error("no such group")]
    NoSuchGroup,
    #[error("not a member of the group")]
    NotAMember,
    #[error("already a member of the group")]
    AlreadyAMember,
    #[error("credit is larger than a consumer may have. credit=`{credit}` limit=`{limit}`")]
    CreditTooLarge { credit: u32, limit: u32 },
    #[error("the group has as many consumers as it may have. limit=`{limit}`")]
    TooManyConsumers { limit: u32 },
}

impl Shard {
    /// A shard with nothing in it yet. Parts of an image and entries follow, then [`Shard::open`].
    pub fn new(limits: Limits) -> Shard {
        Shard {
            limits,
            epoch: Epoch(0),
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams_by_name: BTreeMap::new(),
            next_stream: StreamId(1),
            next_group: GroupId(1),
            next_ordinal: Ordinal(1),
            changed: true,
            through: Position::START,
            next_grant: Grant(1),
            wakeups: BTreeSet::new(),
            touched: Vec::new(),
            entries: Vec::new(),
            fresh: Vec::new(),
            latest: Timestamp::ZERO,
        }
    }

    /// Begins to serve as the owner of this epoch. Everything that was loaded and applied is durable.
    pub fn open(&mut self, now: Timestamp, epoch: Epoch) {
        assert!(epoch > self.epoch, "every owner's epoch is above the one before");
        assert!(now >= self.latest, "time does not go back from one owner to the next");
        for stream in self.streams.values_mut() {
            stream.durable = stream.last;
            self.next_ordinal = self.next_ordinal.max(Ordinal(stream.ordinal.0 + 1));
        }
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in groups {
            self.groups.get_mut(&id).expect("the group was listed just now").reopened();
            self.touch(id);
        }
        self.commit(&Entry::Opened { epoch, at: now });
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn create_stream(
        &mut self,
        now: Timestamp,
        name: &StreamName,
        settings: &StreamSettings,
    ) -> Result<StreamId, CreateRefusal> {
        if let Some(&stream) = self.streams_by_name.get(name) {
            return Err(CreateRefusal::StreamExists { name: name.clone(), stream });
        }
        if self.streams.len() >= self.limits.streams_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.streams_max });
        }
        let stream = self.next_stream;
        self.commit(&Entry::StreamCreated {
            stream,
            name: name.clone(),
            settings: settings.clone(),
            at: now,
        });
        Ok(stream)
    }

    pub fn create_group(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        name: &GroupName,
        settings: &GroupSettings,
        start: Start,
    ) -> Result<GroupId, CreateRefusal> {
        let Some(of) = self.streams.get(&stream) else { return Err(CreateRefusal::NoSuchStream) };
        if let Some(&(_, group)) = of.groups.iter().find(|(other, _)| other == name) {
            return Err(CreateRefusal::GroupExists { name: name.clone(), group });
        }
        if of.groups.len() >= self.limits.groups_per_stream_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.groups_per_stream_max });
        }
        settings.check().map_err(CreateRefusal::Settings)?;
        // What is not kept any more cannot be promised to anybody.
        let before_first = Seq(of.first.0 - 1);
        let floor = match start {
            Start::Beginning => before_first,
            Start::End => of.last,
            Start::At(seq) => Seq(seq.0.saturating_sub(1)).clamp(before_first, of.last.max(before_first)),
        };
        let group = self.next_group;
        self.commit(&Entry::GroupCreated {
            group,
            stream,
            name: name.clone(),
            settings: settings.clone(),
            floor,
            at: now,
        });
        // What is durable already was not seen arriving; the group reads it when somebody joins.
        Ok(group)
    }

    /// Stores a batch, whole or not at all, less what was stored before under the same ids. Says for
    /// each message where it is, and returns the positions of the new ones.
    pub fn publish(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        messages: &[MessageMeta],
        admissions: &mut Vec<Admission>,
    ) -> Result<Option<SeqRange>, PublishRefusal> {
        let id = stream;
        self.check_batch(messages)?;
        let stream = self.streams.get_mut(&id).ok_or(PublishRefusal::NoSuchStream)?;
        self.fresh.clear();
        let ordinal = self.next_ordinal;
        let stored = stream.publish(now, ordinal, messages, &mut self.fresh, admissions);
        if let Some(range) = stored {
            self.next_ordinal = Ordinal(ordinal.0 + range.count());
            entry::put_published(&mut self.entries, id, range.first, ordinal, now, &self.fresh);
        }
        Ok(stored)
    }

    fn check_batch(&self, messages: &[MessageMeta]) -> Result<(), PublishRefusal> {
        let limits = &self.limits;
        if messages.is_empty() {
            return Err(PublishRefusal::Empty);
        }
        if messages.len() > limits.batch_messages_max as usize {
            return Err(PublishRefusal::TooMany {
                messages: messages.len(),
                limit: limits.batch_messages_max,
            });
        }
        let mut bytes = 0;
        for message in messages {
            if message.size > limits.message_bytes_max {
                let limit = limits.message_bytes_max;
                return Err(PublishRefusal::MessageTooLarge { bytes: message.size, limit });
            }
            if message.priority > 9 {
                return Err(PublishRefusal::Priority { priority: message.priority });
            }
            bytes += u64::from(message.size);
        }
        if bytes > u64::from(limits.batch_bytes_max) {
            return Err(PublishRefusal::BatchTooLarge { bytes, limit: limits.batch_bytes_max });
        }
        Ok(())
    }

    /// These messages are durable, and so is everything before them.
    pub fn arrived(&mut self, stream: StreamId, range: SeqRange) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        assert_eq!(stream.durable.next(), range.first, "messages become durable in order");
        stream.durable = range.last;
        for (_, id) in &stream.groups {
            let group = self.groups.get_mut(id).expect("a stream lists groups that exist");
            if group.arrived(range) && !group.touched {
                group.touched = true;
                self.touched.push(*id);
            }
        }
    }

    /// What a group asked to read ahead has been read, up to and including `through`.
    pub fn read_ahead(&mut self, group: GroupId, through: Seq) {
        if let Some(of) = self.groups.get_mut(&group) {
            of.read_ahead(through);
            self.touch(group);
        }
    }

    pub fn join(&mut self, group: GroupId, consumer: ConsumerId, bound: Bound) -> Result<(), MemberRefusal> {
        let limit = self.limits.consumers_per_group_max;
        let of = self.groups.get_mut(&group).ok_or(MemberRefusal::NoSuchGroup)?;
        if of.has_member(consumer) {
            return Err(MemberRefusal::AlreadyAMember);
        }
        if of.consumers() >= limit as usize {
            return Err(MemberRefusal::TooManyConsumers { limit });
        }
        of.join(consumer, bound);
        self.touch(group);
        Ok(())
    }

    pub fn credit(
        &mut self,
        group: GroupId,
        consumer: ConsumerId,
        credit: Credit,
    ) -> Result<(), MemberRefusal> {
        let (Credit::Slots(messages) | Credit::Once { messages, .. }) = credit;
        if messages > self.limits.credit_max {
            return Err(MemberRefusal::CreditTooLarge { credit: messages, limit: self.limits.credit_max });
        }
        let of = self.groups.get_mut(&group).ok_or(MemberRefusal::NoSuchGroup)?;
        if !of.has_member(consumer) {
            return Err(MemberRefusal::NotAMember);
        }
        of.set_credit(consumer, credit);
        self.touch(group);
        Ok(())
    }

    /// Leaving twice, or leaving what is not there any more, is no mistake of the one who leaves.
    pub fn leave(&mut self, group: GroupId, consumer: ConsumerId, departure: Departure) {
        if let Some(of) = self.groups.get_mut(&group) {
            of.leave(consumer, departure);
            self.touch(group);
        }
    }

    /// Ends leases, and says of each, in order, what became of it.
    pub fn settle(
        &mut self,
        now: Timestamp,
        group: GroupId,
        leases: &[Lease],
        outcome: Outcome,
        results: &mut Vec<Settled>,
    ) {
        match self.groups.get_mut(&group) {
            Some(of) => {
                of.settle(now, leases, outcome, results);
                self.touch(group);
            }
            None => results.resize(results.len() + leases.len(), Settled::NotYours),
        }
    }

    /// Lets go of what no group wants any more. Written down before the log is trimmed, so that nobody is
    /// promised what is gone: not a group that is created meanwhile, and not after a restart.
    pub fn release(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let first = self.oldest_wanted(stream).expect("the stream was listed just now");
            if first > self.streams[&stream].first {
                self.commit(&Entry::Released { stream, first });
            }
        }
    }

    pub(crate) fn happened_at(&mut self, at: Timestamp) {
        self.latest = self.latest.max(at);
    }

    /// Expires and hands out, once, in every group that has something to do, as far as the budget of a turn
    /// goes. If it does not go far enough, [`Shard::wake_at`] asks to be called again at once.
    pub fn finish_turn(&mut self, now: Timestamp, effects: &mut Effects) {
        self.happened_at(now);
        while let Some(&(at, group)) = self.wakeups.first().filter(|(at, _)| *at <= now) {
            self.wakeups.remove(&(at, group));
            self.groups.get_mut(&group).expect("a group that is gone has no wake-up").scheduled = None;
            self.touch(group);
        }
        let mut budget = Budget::of_a_turn();
        let mut touched = std::mem::take(&mut self.touched);
        let mut seen = 0;
        for &id in &touched {
            if budget.is_spent() {
                break;
            }
            seen += 1;
            self.finish_group(now, id, &mut budget, effects);
        }
        // Those that were not seen to are first in the next turn, and those that were not done come last.
        touched.drain(..seen);
        touched.append(&mut self.touched);
        self.touched = touched;
    }

    fn finish_group(&mut self, now: Timestamp, id: GroupId, budget: &mut Budget, effects: &mut Effects) {
        let group = self.groups.get_mut(&id).expect("a group that is gone is not touched");
        let durable = self.streams.get(&group.stream).expect("a group's stream exists").durable;
        group.finish_turn(Turn {
            now,
            epoch: self.epoch,
            grant: &mut self.next_grant,
            durable,
            budget,
            entries: &mut self.entries,
            effects,
        });
        group.touched = budget.is_spent();
        if group.touched {
            self.touched.push(id);
        }
        let wake_at = group.wake_at();
        if wake_at != group.scheduled {
            if let Some(before) = group.scheduled {
                self.wakeups.remove(&(before, id));
            }
            if let Some(at) = wake_at {
                self.wakeups.insert((at, id));
            }
            group.scheduled = wake_at;
        }
    }

    /// When the shard next wants to be called, if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        if self.is_touched() {
            return Some(Timestamp::ZERO);
        }
        self.wakeups.first().map(|&(at, _)| at)
    }

    /// Whether a turn is owed to some group.
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The entries that were written since the last call, to go into the next frame.
    pub fn entries(&mut self) -> &mut Vec<u8> {
        &mut self.entries
    }

    fn touch(&mut self, group: GroupId) {
        let of = self.groups.get_mut(&group).expect("only a group that exists is touched");
        if !of.touched {
            of.touched = true;
            self.touched.push(group);
        }
    }

    /// A decision, once made, is an entry: applied here now, and again from the log after a restart.
    pub(crate) fn commit(&mut self, entry: &Entry) {
        self.apply_known(entry).expect("a decision fits the state it was made in");
        entry.encode(&mut self.entries);
    }

    /// Applies an entry of the frame at `position`, except to parts that were loaded with it in them.
    pub fn apply(&mut self, position: Position, entry: &Entry) -> Result<(), DecodeError> {
        let part = match entry {
            Entry::Opened { .. } | Entry::StreamCreated { .. } | Entry::GroupCreated { .. } => self.through,
            Entry::Published { stream, .. } | Entry::Released { stream, .. } => {
                self.streams.get(stream).ok_or(DecodeError::Contradiction("a stream exists"))?.through
            }
            Entry::Handed { group, .. }
            | Entry::Leased { group, .. }
            | Entry::Acked { group, .. }
            | Entry::Failed { group, .. }
            | Entry::Returned { group, .. }
            | Entry::Parked { group, .. } => {
                self.groups.get(group).ok_or(DecodeError::Contradiction("a group exists"))?.through
            }
            Entry::Copied { stream, .. } => return self.check_copied(*stream),
        };
        self.happened_at(entry.at().unwrap_or(self.latest));
        if position <= part { Ok(()) } else { self.apply_known(entry) }
    }

    fn apply_known(&mut self, entry: &Entry) -> Result<(), DecodeError> {
        match entry {
            Entry::Opened { epoch, .. } => {
                if *epoch <= self.epoch {
                    return Err(DecodeError::Contradiction("epochs grow"));
                }
                self.epoch = *epoch;
                self.changed = true;
            }
            Entry::StreamCreated { stream, name, settings, at } => {
                self.add_stream(Stream::new(*stream, name.clone(), settings.clone(), *at))?;
            }
            Entry::GroupCreated { group, stream, name, settings, floor, at } => {
                self.add_group(Group::new(*group, *stream, name.clone(), settings.clone(), *floor, *at))?;
            }
            Entry::Published { stream, first, ordinal, at, messages } => {
                let stream =
                    self.streams.get_mut(stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
                stream.apply_published(*first, *ordinal, *at, messages)?;
            }
            Entry::Released { stream, first } => {
                let stream =
                    self.streams.get_mut(stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
                if *first > stream.last.next() {
                    return Err(DecodeError::Contradiction("only what was published is released"));
                }
                stream.release(*first);
            }
            Entry::Copied { stream, .. } => self.check_copied(*stream)?,
            Entry::Handed { group, ranges } => {
                let terms = Terms {
                    epoch: self.epoch,
                    grant: Grant(0),
                    bound: Bound::Connection,
                    granted: Timestamp::ZERO,
                    deadline: Timestamp::ZERO,
                    holder: None,
                };
                self.each_range(*group, ranges, |of, range| of.ledger.handed(range, terms))?;
            }
            Entry::Leased { group, at, duration, runs } => {
                let epoch = self.epoch;
                for run in runs {
                    let terms = Terms {
                        epoch,
                        grant: run.grant,
                        bound: Bound::Clock,
                        granted: *at,
                        deadline: *at + *duration,
                        holder: None,
                    };
                    self.each_range(*group, &[run.range], |of, range| of.ledger.handed(range, terms))?;
                }
            }
            Entry::Acked { group, ranges } => {
                self.each_range(*group, ranges, |of, range| of.ledger.acked(range))?;
            }
            Entry::Returned { group, ranges } => {
                self.each_range(*group, ranges, |of, range| of.ledger.returned(range))?;
            }
            Entry::Failed { group, messages, .. } => {
                for message in messages {
                    let one = [SeqRange::one(message.seq)];
                    self.each_range(*group, &one, |of, range| of.ledger.failed(range.first, message.until))?;
                }
            }
            Entry::Parked { group, messages, .. } => {
                for message in messages {
                    let one = [SeqRange::one(message.seq)];
                    self.each_range(*group, &one, |of, range| {
                        of.ledger.parked(range.first, message.at, message.cause);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn each_range(
        &mut self,
        group: GroupId,
        ranges: &[SeqRange],
        mut change: impl FnMut(&mut Group, SeqRange),
    ) -> Result<(), DecodeError> {
        let of = self.groups.get_mut(&group).ok_or(DecodeError::Contradiction("a group exists"))?;
        let last = self.streams.get(&of.stream).map_or(Seq::START, |stream| stream.last);
        for range in ranges {
            if range.last > last {
                return Err(DecodeError::Contradiction("a group is handed what was published"));
            }
            change(of, *range);
        }
        Ok(())
    }

    pub(crate) fn add_stream(&mut self, stream: Stream) -> Result<(), DecodeError> {
        if self.streams.contains_key(&stream.id) || self.streams_by_name.contains_key(&stream.name) {
            return Err(DecodeError::Contradiction("a stream is created once"));
        }
        let next = stream.id.0.checked_add(1).ok_or(DecodeError::OutOfRange("number of a stream"))?;
        self.next_stream = self.next_stream.max(StreamId(next));
        self.streams_by_name.insert(stream.name.clone(), stream.id);
        self.streams.insert(stream.id, stream);
        self.changed = true;
        Ok(())
    }

    pub(crate) fn add_group(&mut self, group: Group) -> Result<(), DecodeError> {
        let stream =
            self.streams.get_mut(&group.stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
        let at = stream.groups.partition_point(|(name, _)| *name < group.name);
        let taken = stream.groups.get(at).is_some_and(|(name, _)| *name == group.name);
        if taken || self.groups.contains_key(&group.id) {
            return Err(DecodeError::Contradiction("a group is created once"));
        }
        let next = group.id.0.checked_add(1).ok_or(DecodeError::OutOfRange("number of a group"))?;
        stream.groups.insert(at, (group.name.clone(), group.id));
        self.next_group = self.next_group.max(GroupId(next));
        self.groups.insert(group.id, group);
        self.changed = true;
        Ok(())
    }
}

/// Looking without touching.
impl Shard {
    pub fn stream_named(&self, name: &StreamName) -> Option<StreamId> {
        self.streams_by_name.get(name).copied()
    }

    pub fn group_named(&self, stream: StreamId, name: &GroupName) -> Option<GroupId> {
        let stream = self.streams.get(&stream)?;
        stream.groups.iter().find(|(other, _)| other == name).map(|&(_, id)| id)
    }

    /// The latest time that anything was decided at. Whoever opens the shard does so no earlier.
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    pub fn stream_of(&self, group: GroupId) -> Option<StreamId> {
        self.groups.get(&group).map(|group| group.stream)
    }

    /// The oldest message of each stream that is kept.
    pub fn oldest_kept(&self) -> impl Iterator<Item = (StreamId, Seq)> + '_ {
        self.streams.values().map(|stream| (stream.id, stream.first))
    }

    /// The last durable position of a stream.
    pub fn last_seq(&self, stream: StreamId) -> Option<Seq> {
        self.streams.get(&stream).map(|stream| stream.durable)
    }

    pub fn stream_settings(&self, stream: StreamId) -> Option<&StreamSettings> {
        self.streams.get(&stream).map(|stream| &stream.settings)
    }

    pub fn group_settings(&self, group: GroupId) -> Option<&GroupSettings> {
        self.groups.get(&group).map(|group| &group.settings)
    }

    pub fn figures(&self, group: GroupId) -> Option<GroupFigures> {
        let group = self.groups.get(&group)?;
        let durable = self.streams.get(&group.stream).map_or(Seq::START, |stream| stream.durable);
        Some(group.figures(durable))
    }

    pub fn parked(&self, group: GroupId) -> impl Iterator<Item = (Seq, Parked)> + '_ {
        self.groups
            .get(&group)
            .into_iter()
            .flat_map(|group| group.ledger.parked.iter())
            .map(|(&seq, &parked)| (seq, parked))
    }

    /// Whether a group is done with a message: settled or parked.
    pub fn is_settled(&self, group: GroupId, seq: Seq) -> bool {
        self.groups.get(&group).is_some_and(|group| group.ledger.progress.is_settled(seq))
    }

    /// Whether this is the lease that the message is held on now.
    pub fn is_current(&self, group: GroupId, lease: Lease) -> bool {
        self.groups.get(&group).is_some_and(|group| group.is_current(lease))
    }

    /// How often a message that is in process has been handed out.
    pub fn attempts(&self, group: GroupId, seq: Seq) -> Option<u32> {
        self.groups.get(&group)?.attempts(seq)
    }

    /// The oldest message of a stream whose content is still wanted. A stream without groups keeps
    /// everything.
    pub fn oldest_wanted(&self, stream: StreamId) -> Option<Seq> {
        let stream = self.streams.get(&stream)?;
        let groups = stream.groups.iter().map(|(_, id)| self.groups[id].ledger.oldest_wanted());
        Some(groups.min().map_or(stream.first, |wanted| wanted.max(stream.first)))
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
