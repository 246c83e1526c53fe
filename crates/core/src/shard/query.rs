//! Looking without touching.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::Selection;
use crate::fault::{Fault, planted};
use crate::group::{ConsumerFigures, Counters, Group, GroupFigures, Job, Lease, Life, Parked};
use crate::notes::Note;
use crate::settings::{GroupSettings, Retention, StreamSettings};
use crate::shard::Shard;
use crate::stream::Stream;
use crate::types::{
    ConsumerId, Grant, GroupId, GroupName, JobId, Ordinal, Seq, SeqRange, StreamId, StreamName, Timestamp,
};

/// What a stream says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFigures {
    pub created: Timestamp,
    /// The oldest message that is kept.
    pub first: Seq,
    pub last: Seq,
    /// Messages and bytes that count against its limits.
    pub messages: u64,
    pub bytes: u64,
    pub delayed: u64,
    pub groups: usize,
    pub oldest_age: Option<Duration>,
}

impl Shard {
    /// Checks everything that must agree, message by message. For tests and the simulator, between two turns: it takes
    /// as long as there are messages in process. The sums are checked at the end of every turn anyway.
    pub fn check(&self) {
        for group in self.groups.values() {
            let stream = self.streams.get(&group.stream).expect("a group's stream exists");
            group.check_all(stream);
            let is_listed = stream.groups.iter().any(|(_, id)| *id == group.id);
            assert!(is_listed, "a stream lists its groups");
            assert!(group.listed || !group.is_unwritten(), "a group with unwritten decisions is listed");
        }
        for stream in self.streams.values() {
            stream.check();
            assert_eq!(self.streams_by_name.get(&stream.name), Some(&stream.id), "a stream is found by name");
        }
    }

    /// The position in the shard that the next stored message gets.
    pub fn next_ordinal(&self) -> Ordinal {
        self.next_ordinal
    }

    pub fn stream_named(&self, name: &StreamName) -> Option<StreamId> {
        self.streams_by_name.get(name).copied()
    }

    /// All streams after `after`, by name.
    pub fn streams_after<'a>(
        &'a self,
        after: Option<&'a StreamName>,
    ) -> impl Iterator<Item = (&'a StreamName, StreamId)> + 'a {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.streams_by_name.range((from, Unbounded)).map(|(name, &id)| (name, id))
    }

    pub fn stream_name(&self, stream: StreamId) -> Option<&StreamName> {
        self.streams.get(&stream).map(|stream| &stream.name)
    }

    pub fn group_named(&self, stream: StreamId, name: &GroupName) -> Option<GroupId> {
        let stream = self.streams.get(&stream)?;
        stream.groups.iter().find(|(other, _)| other == name).map(|&(_, id)| id)
    }

    /// The groups of a stream, by name.
    pub fn groups_of(&self, stream: StreamId) -> impl Iterator<Item = (&GroupName, GroupId)> + '_ {
        let groups = self.streams.get(&stream).into_iter().flat_map(|stream| stream.groups.iter());
        groups.map(|(name, id)| (name, *id))
    }

    /// The latest time at which anything was decided. A server that opens the shard must use no earlier time.
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    pub fn stream_of(&self, group: GroupId) -> Option<StreamId> {
        self.groups.get(&group).map(|group| group.stream)
    }

    /// The oldest message of each stream whose content has to be kept.
    pub fn oldest_kept(&self) -> impl Iterator<Item = (StreamId, Seq)> + '_ {
        self.streams.values().map(|stream| (stream.id, self.oldest_content(stream)))
    }

    fn oldest_content(&self, stream: &Stream) -> Seq {
        let groups = stream.groups.iter().map(|(_, id)| self.groups[id].oldest_held());
        groups.flatten().fold(stream.first, Seq::min)
    }

    /// The last durable position of a stream.
    pub fn last_seq(&self, stream: StreamId) -> Option<Seq> {
        self.streams.get(&stream).map(|stream| stream.durable)
    }

    /// The last position that was given out, durable or not.
    pub fn last_given(&self, stream: StreamId) -> Option<Seq> {
        self.streams.get(&stream).map(|stream| stream.last)
    }

    /// How far a group has looked: what comes after may be the most urgent of all, and it would not know.
    pub fn looked_at(&self, group: GroupId) -> Option<Seq> {
        self.groups.get(&group).map(Group::looked_at)
    }

    /// What of a stream can be read: durable and kept.
    pub fn readable(&self, stream: StreamId) -> Option<SeqRange> {
        let stream = self.streams.get(&stream)?;
        let first = stream.first.max(stream.gone.next());
        (first <= stream.durable).then(|| SeqRange::new(first, stream.durable))
    }

    pub fn reader(&self, stream: StreamId, name: &GroupName) -> Option<Seq> {
        self.streams.get(&stream)?.readers.get(name).copied()
    }

    pub fn stream_settings(&self, stream: StreamId) -> Option<&StreamSettings> {
        self.streams.get(&stream).map(|stream| &stream.settings)
    }

    pub fn group_settings(&self, group: GroupId) -> Option<&GroupSettings> {
        self.groups.get(&group).map(|group| &group.settings)
    }

    pub fn stream_figures(&self, now: Timestamp, stream: StreamId) -> Option<StreamFigures> {
        let stream = self.streams.get(&stream)?;
        let (messages, bytes) = self.held(stream);
        let oldest = self.readable(stream.id).and_then(|kept| stream.timeline.at(kept.first));
        Some(StreamFigures {
            created: stream.created,
            first: stream.first,
            last: stream.durable,
            messages,
            bytes,
            delayed: stream.undue.count(),
            groups: stream.groups.len(),
            oldest_age: oldest.map(|at| now.since(at)),
        })
    }

    pub fn figures(&self, now: Timestamp, group: GroupId) -> Option<GroupFigures> {
        let group = self.groups.get(&group)?;
        let stream = self.streams.get(&group.stream)?;
        Some(group.figures(now, stream, self.limits.key_scan_bytes_max))
    }

    pub fn consumers(&self, group: GroupId) -> impl Iterator<Item = ConsumerFigures> + '_ {
        self.groups.get(&group).into_iter().flat_map(Group::consumer_figures)
    }

    /// Parked messages after `after`, in order of position.
    pub fn parked_after(&self, group: GroupId, after: Seq) -> impl Iterator<Item = (Seq, &Parked)> + '_ {
        self.groups.get(&group).into_iter().flat_map(move |group| group.parked_after(after))
    }

    pub fn parked(&self, group: GroupId, seq: Seq) -> Option<&Parked> {
        self.groups.get(&group)?.ledger.parked().get(seq)
    }

    /// What became of a message in a group.
    pub fn life(&self, group: GroupId, seq: Seq) -> Option<Life> {
        self.groups.get(&group).map(|group| group.life(seq))
    }

    /// How many messages are parked for each reason.
    pub fn parked_reasons(&self, group: GroupId) -> impl Iterator<Item = (&Arc<str>, u64)> + '_ {
        self.groups.get(&group).into_iter().flat_map(|group| group.ledger.parked().reasons())
    }

    /// How many parked messages a selection means now.
    pub fn count_selected(&self, group: GroupId, selection: &Selection) -> Option<u64> {
        self.groups.get(&group).map(|group| group.count_selected(selection))
    }

    pub fn jobs(&self, group: GroupId) -> impl Iterator<Item = &Job> + '_ {
        self.groups.get(&group).into_iter().flat_map(Group::jobs)
    }

    pub fn job(&self, group: GroupId, job: JobId) -> Option<&Job> {
        self.groups.get(&group)?.job(job)
    }

    pub fn note(&self, now: Timestamp, door: u8, key: &[u8]) -> Option<&Note> {
        self.notes.get(now, door, key)
    }

    /// Notes of a door whose keys begin with `prefix` and come after `after`.
    pub fn notes(
        &self,
        now: Timestamp,
        door: u8,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Vec<(&[u8], &Note)> {
        self.notes.list(now, door, prefix, after, limit)
    }

    /// Whether a group is done with a message: settled or parked.
    pub fn is_settled(&self, group: GroupId, seq: Seq) -> bool {
        self.groups.get(&group).is_some_and(|group| group.ledger.is_settled(seq))
    }

    /// Whether this is the lease that the message is held on now.
    pub fn is_current(&self, group: GroupId, lease: Lease) -> bool {
        self.groups.get(&group).is_some_and(|group| group.is_current(lease))
    }

    pub fn counters(&self, group: GroupId) -> Option<&Counters> {
        self.groups.get(&group).map(|group| &group.counters)
    }

    /// How many streams there are, and how many groups.
    pub fn counts(&self) -> (usize, usize) {
        (self.streams.len(), self.groups.len())
    }

    /// How many messages a consumer holds.
    pub fn held_by(&self, group: GroupId, consumer: ConsumerId) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.held_by(consumer))
    }

    /// Messages that consumers hold, over all groups.
    pub fn in_flight(&self) -> u64 {
        self.groups.values().map(Group::in_flight).sum()
    }

    /// The consumer that holds the message on this lease. A consumer that held it before the shard was opened
    /// has no number now.
    pub fn holder(&self, group: GroupId, lease: Lease) -> Option<ConsumerId> {
        self.groups.get(&group)?.holder(lease)
    }

    /// The limit of leases that a group may hold at once, if it holds as many.
    pub fn in_flight_full(&self, group: GroupId) -> Option<u32> {
        self.groups.get(&group)?.in_flight_full()
    }

    /// Whether a turn had no time left for all that a group could do.
    pub fn has_more_to_do(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|group| group.touched)
    }

    /// Whether a group waits for messages to be read, and so may have some to hand out soon.
    pub fn is_reading(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(Group::is_reading)
    }

    /// Whether messages of a group are being brought to another stream just now. Messages that found no room there
    /// do not count.
    pub fn is_moving(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(Group::is_moving)
    }

    /// The number of the next lease.
    pub fn next_grant(&self) -> Grant {
        self.next_grant
    }

    /// When a message was published, to a tenth of a second mostly, and the first position after it of which that need
    /// not be so. None if the stream has forgotten.
    pub fn published_about(&self, stream: StreamId, seq: Seq) -> Option<(Timestamp, Seq)> {
        self.streams.get(&stream)?.timeline.around(seq)
    }

    /// Bytes of the messages in a range of a stream, or nearly so.
    pub fn bytes_of(&self, stream: StreamId, range: SeqRange) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.timeline.bytes(range))
    }

    /// How often a message that is in process has been handed out.
    pub fn attempts(&self, group: GroupId, seq: Seq) -> Option<u32> {
        self.groups.get(&group)?.attempts(seq)
    }

    /// The oldest message of a stream whose content is still wanted. A stream without groups keeps
    /// everything, and so does one that keeps messages whatever its groups do.
    pub fn oldest_wanted(&self, stream: StreamId) -> Option<Seq> {
        let stream = self.streams.get(&stream)?;
        if stream.settings.retention != Retention::Work {
            return Some(stream.first);
        }
        let groups = stream.groups.iter().map(|(_, id)| self.groups[id].ledger.oldest_wanted());
        let Some(wanted) = groups.min() else { return Some(stream.first) };
        let readers = stream.readers.values().filter(|_| !planted(Fault::ReaderForgotten));
        let read = readers.map(|seq| seq.next()).fold(wanted, Seq::min);
        Some(read.max(stream.first).min(stream.last.next()))
    }
}
