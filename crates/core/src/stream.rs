//! A stream: admission, dedupe, positions, and what its messages say about time and priority.
//!
//! A message gets its position when it is admitted and exists when its frame is durable; `last` is the
//! former, `durable` the latter. Groups are told only of durable messages.
//!
//! Plain messages cost nothing here but a share of a bucket of sizes and times. A priority is a position in
//! a set, a delay or an expiry a few bytes by time; groups share all three.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::dedupe::Dedupe;
use crate::due::Due;
use crate::entry::{MessageMeta, Messages};
use crate::fault::{Fault, planted};
use crate::group::ledger::{put_run, take_run};
use crate::lanes::{LANES, Lanes};
use crate::pace::Pace;
use crate::producers::{ProducerStamp, Producers};
use crate::seqset::SeqSet;
use crate::settings::{Retention, StreamSettings};
use crate::timeline::Timeline;
use crate::types::{GroupId, GroupName, Ordinal, Position, Seq, SeqRange, StreamId, StreamName, Timestamp};

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) name: StreamName,
    pub(crate) settings: StreamSettings,
    pub(crate) created: Timestamp,
    /// From here on everything is kept. What lies before is kept where a group wants it.
    pub(crate) first: Seq,
    /// The last position given out.
    pub(crate) last: Seq,
    /// The last position that is durable.
    pub(crate) durable: Seq,
    /// The shard-wide position of the last message.
    pub(crate) ordinal: Ordinal,
    pub(crate) dedupe: Dedupe,
    pub(crate) producers: Producers,
    pub(crate) timeline: Timeline,
    /// Messages with a priority above 0.
    pub(crate) lanes: Lanes,
    /// Messages whose time has not come, and when it does.
    pub(crate) undue: SeqSet,
    pub(crate) delayed: Due,
    /// Messages that expire, and those that have.
    pub(crate) expiring: Due,
    pub(crate) expired: SeqSet,
    /// Everything up to here is too old, or too much for what the stream keeps.
    pub(crate) gone: Seq,
    /// Who reads along without leases, and what they have read.
    pub(crate) readers: BTreeMap<GroupName, Seq>,
    /// Holds producers to their rate. Starts empty with every owner.
    pub(crate) ingress: Option<Pace>,
    /// By name, so that they are told of arrivals in an order that does not depend on history.
    pub(crate) groups: Vec<(GroupName, GroupId)>,
    /// When the shard will look after it next, so that it is not told the same twice.
    pub(crate) scheduled: Option<Timestamp>,
    /// When to look for ids that are out of their window. None until there are ids.
    pub(crate) ids_at: Option<Timestamp>,
    /// Whether the shard has it on its list for the end of the turn.
    pub(crate) touched: bool,
    /// Whether something changed since an image took this part.
    pub(crate) changed: bool,
    /// Recovery: the part as loaded has every entry up to here.
    pub(crate) through: Position,
}

/// What became of one published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub seq: Seq,
    /// The id was seen before, and `seq` is the message it was seen with; nothing was stored.
    pub duplicate: bool,
}

impl Stream {
    pub(crate) fn new(
        id: StreamId,
        name: StreamName,
        settings: StreamSettings,
        created: Timestamp,
    ) -> Stream {
        Stream {
            id,
            name,
            settings,
            created,
            first: Seq(1),
            last: Seq::START,
            durable: Seq::START,
            ordinal: Ordinal(0),
            dedupe: Dedupe::default(),
            producers: Producers::default(),
            timeline: Timeline::default(),
            lanes: Lanes::default(),
            undue: SeqSet::new(),
            delayed: Due::default(),
            expiring: Due::default(),
            expired: SeqSet::new(),
            gone: Seq::START,
            readers: BTreeMap::new(),
            ingress: None,
            groups: Vec::new(),
            scheduled: None,
            ids_at: None,
            touched: false,
            changed: true,
            through: Position::START,
        }
    }

    /// Decides for each message whether it is new, gives the new ones their positions, and returns which
    /// those are. `fresh` collects the messages to be stored if the batch has duplicates, and stays empty otherwise:
    /// then all of the batch is to be stored, and no message has to be copied.
    ///
    /// An id is remembered as soon as it is met, so one that comes twice in a batch is a duplicate of
    /// itself.
    pub(crate) fn publish(
        &mut self,
        now: Timestamp,
        ordinal: Ordinal,
        messages: &[MessageMeta],
        fresh: &mut Vec<MessageMeta>,
        admissions: &mut Vec<Admission>,
    ) -> Option<SeqRange> {
        let first = self.last.next();
        let has_ids = messages.iter().any(|message| message.id.is_some());
        if has_ids {
            self.find_duplicates(now, messages, fresh, admissions);
        } else {
            let seqs = SeqRange::starting(first, messages.len() as u64).seqs();
            admissions.extend(seqs.map(|seq| Admission { seq, duplicate: false }));
        }
        let has_duplicates = has_ids && admissions.iter().rev().take(messages.len()).any(|of| of.duplicate);
        let new = if has_duplicates { &fresh[..] } else { messages };
        if new.is_empty() {
            return None;
        }
        let range = SeqRange::starting(first, new.len() as u64);
        let bytes = new.iter().map(|message| u64::from(message.size)).sum();
        for (n, message) in new.iter().enumerate().filter(|(_, message)| message.is_special()) {
            self.take_in(first.plus(n as u64), message);
        }
        self.advance(range, ordinal, bytes, now);
        Some(range)
    }

    fn find_duplicates(
        &mut self,
        now: Timestamp,
        messages: &[MessageMeta],
        fresh: &mut Vec<MessageMeta>,
        admissions: &mut Vec<Admission>,
    ) {
        let (mut next, mut has_duplicates) = (self.last.next(), false);
        for (n, message) in messages.iter().enumerate() {
            let known = message.id.and_then(|id| self.dedupe.find(now, id, &self.settings));
            admissions.push(Admission { seq: known.unwrap_or(next), duplicate: known.is_some() });
            if known.is_some() && !has_duplicates {
                has_duplicates = true;
                fresh.extend_from_slice(&messages[..n]);
            }
            if known.is_none() {
                if has_duplicates {
                    fresh.push(*message);
                }
                if let Some(id) = message.id {
                    self.dedupe.remember(now, id, next, &self.settings);
                }
                next = next.next();
            }
        }
    }

    /// Where the messages of a batch are that came before. `None` if that cannot be told any more: some of
    /// them were known by their ids then, and are not now.
    pub(crate) fn places(
        &self,
        now: Timestamp,
        messages: &[MessageMeta],
        seqs: Option<SeqRange>,
    ) -> Option<Vec<Seq>> {
        if let Some(seqs) = seqs.filter(|seqs| seqs.count() == messages.len() as u64) {
            return Some(seqs.seqs().collect());
        }
        let place = |id| self.dedupe.find(now, id, &self.settings);
        let mut next = seqs.map(|seqs| seqs.first);
        let mut places = Vec::with_capacity(messages.len());
        for message in messages {
            // One without an id was new, and those that were new follow each other.
            let new = next.filter(|&next| seqs.is_some_and(|seqs| seqs.contains(next)));
            let seq = message.id.map_or(new, place)?;
            if seqs.is_some_and(|seqs| seqs.contains(seq)) {
                next = Some(seq.next());
            }
            places.push(seq);
        }
        Some(places)
    }

    /// What `publish` did, from the log.
    pub(crate) fn apply_published(
        &mut self,
        first: Seq,
        ordinal: Ordinal,
        at: Timestamp,
        stamp: Option<ProducerStamp>,
        messages: &Messages,
    ) -> Result<SeqRange, DecodeError> {
        if first != self.last.next() {
            return Err(DecodeError::Contradiction("positions of a stream have no gaps"));
        }
        if let Messages::Each(messages) = messages {
            for (n, message) in messages.iter().enumerate() {
                let seq = first.plus(n as u64);
                if let Some(id) = message.id {
                    self.dedupe.remember(at, id, seq, &self.settings);
                }
                self.take_in(seq, message);
            }
        }
        if ordinal.0.checked_add(messages.count()).is_none() {
            return Err(DecodeError::OutOfRange("position in the shard"));
        }
        let range = SeqRange::starting(first, messages.count());
        if let Some(stamp) = stamp.filter(|_| !planted(Fault::ProducersForgotten)) {
            self.producers.remember(at, stamp, range.count(), Some(range));
        }
        self.advance(range, ordinal, messages.bytes(), at);
        Ok(range)
    }

    /// What a message asks of time and priority.
    fn take_in(&mut self, seq: Seq, message: &MessageMeta) {
        if message.priority > 0 {
            self.lanes.insert(message.priority, SeqRange::one(seq));
        }
        if let Some(at) = message.not_before {
            self.undue.insert(SeqRange::one(seq));
            self.delayed.insert(seq, at);
        }
        if let Some(at) = message.expires {
            self.expiring.insert(seq, at);
        }
    }

    fn advance(&mut self, range: SeqRange, ordinal: Ordinal, bytes: u64, at: Timestamp) {
        self.last = range.last;
        self.ordinal = Ordinal(ordinal.0 + range.count() - 1);
        self.timeline.push(range.first, range.count(), bytes, at);
        self.changed = true;
    }

    /// Checks everything that must agree.
    pub(crate) fn check(&self) {
        assert!(self.durable <= self.last, "only published messages are durable");
        assert!(self.gone <= self.last, "only published messages are gone");
        assert!(self.first <= self.last.next(), "a stream keeps published messages only");
        let beyond = |set: &SeqSet| set.first_from(self.last.next()).is_some();
        assert!(!beyond(&self.undue) && !beyond(&self.expired), "only published messages have times");
        let both = self
            .undue
            .runs()
            .any(|run| self.expired.run_from(run.first).is_some_and(|e| e.overlap(run).is_some()));
        assert!(!both, "an expired message does not wait for its time");
    }

    /// The stream was created just now.
    pub(crate) fn created(&mut self, now: Timestamp) {
        self.ingress = self.settings.ingress_rate.map(|rate| Pace::new(now, rate));
    }

    /// A new owner begins. Rates begin with nothing saved up.
    pub(crate) fn reopened(&mut self, now: Timestamp) {
        self.ingress = self.settings.ingress_rate.map(|rate| Pace::reopened(now, rate));
    }

    /// Takes on other settings.
    pub(crate) fn change(&mut self, now: Timestamp, settings: StreamSettings) {
        self.settings = settings;
        // The window of the ids may be over earlier.
        self.ids_at = None;
        self.ingress = match (self.ingress.take(), self.settings.ingress_rate) {
            (Some(mut pace), Some(rate)) => {
                pace.change(now, rate);
                Some(pace)
            }
            (None, Some(rate)) => Some(Pace::new(now, rate)),
            (_, None) => None,
        };
    }

    /// Messages before `first` are kept no longer.
    pub(crate) fn release(&mut self, first: Seq) {
        self.changed = true;
        if first <= self.first {
            return;
        }
        self.first = first;
    }

    /// No group will ask about messages before this one again.
    pub(crate) fn forget_before(&mut self, seq: Seq) {
        self.timeline.forget_before(seq);
        self.forget_through(Seq(seq.0.saturating_sub(1)));
    }

    /// Forgets the delays, expiries and priorities of these messages.
    pub(crate) fn forget_through(&mut self, through: Seq) {
        self.changed = true;
        let range = SeqRange::new(Seq::START, through);
        self.lanes.remove_all(range);
        self.expired.remove(range);
        if self.undue.remove(range) > 0 {
            self.delayed.forget_through(through);
        }
        self.expiring.forget_through(through);
    }

    /// Whether a message may be handed out no more, because of its own time or the stream's.
    pub(crate) fn is_expired(&self, seq: Seq) -> bool {
        seq <= self.gone || self.expired.contains(seq)
    }

    /// Whether messages have expired that the groups have not been told of yet. Until then nothing is handed
    /// out.
    pub(crate) fn is_behind(&self, now: Timestamp) -> bool {
        self.expiring.next_at().is_some_and(|at| at <= now)
    }

    pub(crate) fn priority(&self, seq: Seq) -> u8 {
        self.lanes.lane_of(seq).unwrap_or(0)
    }

    /// Everything up to here is beyond what the stream keeps.
    pub(crate) fn beyond(&self, now: Timestamp) -> Seq {
        let mut beyond = self.gone;
        if let Some(age) = self.settings.max_age()
            && let Some(old) = self.timeline.last_before(now - age)
        {
            beyond = beyond.max(old);
        }
        if let Retention::Log { max_bytes, max_messages, .. } = self.settings.retention {
            if let Some(most) = max_messages {
                let most = if planted(Fault::LogCutShort) { most / 2 } else { most };
                beyond = beyond.max(Seq(self.durable.0.saturating_sub(most)));
            }
            if let Some(most) = max_bytes {
                beyond = beyond.max(self.beyond_bytes(most, beyond));
            }
        }
        beyond.min(self.durable)
    }

    /// How far the front has to go so that the rest is no more than `most` bytes. Found by halving, since
    /// sizes are known by ranges.
    fn beyond_bytes(&self, most: u64, beyond: Seq) -> Seq {
        let bytes_after = |seq: Seq| {
            if seq >= self.last { 0 } else { self.timeline.bytes(SeqRange::new(seq.next(), self.last)) }
        };
        let (mut low, mut high) = (beyond.max(Seq(self.first.0 - 1)), self.last);
        if bytes_after(low) <= most {
            return beyond;
        }
        while low.0 + 1 < high.0 {
            let middle = Seq(low.0 + (high.0 - low.0) / 2);
            if bytes_after(middle) > most { low = middle } else { high = middle }
        }
        high
    }

    /// How far the front has to go to make room for this many messages and bytes more, if that much is
    /// durable. A message that is too old takes no room, although it may not have been released yet.
    pub(crate) fn front_of(&self, (messages, bytes): (u64, u64)) -> Option<Seq> {
        let before = Seq(self.first.0 - 1).max(self.gone);
        let mut front = before.plus(messages);
        if bytes > 0 && before < self.last {
            let kept = self.timeline.bytes(SeqRange::new(before.next(), self.last));
            front = front.max(self.beyond_bytes(kept.saturating_sub(bytes), before));
        }
        (front <= self.durable).then_some(front)
    }

    /// When time next does something to its messages.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        let oldest = self.first.max(self.gone.next());
        let aged = self.settings.max_age().filter(|_| oldest <= self.durable).and_then(|age| {
            // A little more than the age, since a message goes once it is certainly older.
            self.timeline.at(oldest).map(|at| at + age + Duration::from_micros(1))
        });
        [self.delayed.next_at(), self.expiring.next_at(), aged, self.ids_at].into_iter().flatten().min()
    }

    /// `first | last | ordinal | gone | readers | priorities | not due | expired | delays | expiries |
    /// producers | sizes and times`. Name and settings are in the registry, ids in parts of their own.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.first.0, self.last.0, self.ordinal.0, self.gone.0] {
            put_varint(out, value);
        }
        put_varint(out, self.readers.len() as u64);
        for (name, seq) in &self.readers {
            put_bytes(out, name.as_str().as_bytes());
            put_varint(out, seq.0);
        }
        for lane in 1..LANES as u8 {
            put_set(out, self.lanes.lane(lane));
        }
        put_set(out, &self.undue);
        put_set(out, &self.expired);
        self.delayed.encode(out);
        self.expiring.encode(out);
        self.producers.encode(out);
        self.timeline.encode(out);
    }

    pub(crate) fn decode(&mut self, bytes: &[u8], through: Position) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        self.first = Seq(cursor.varint()?);
        self.last = Seq(cursor.varint()?);
        self.ordinal = Ordinal(cursor.varint()?);
        self.gone = Seq(cursor.varint()?);
        for _ in 0..cursor.count()? {
            let name = GroupName::stored(cursor.text()?);
            self.readers.insert(name, Seq(cursor.varint()?));
        }
        for lane in 1..LANES as u8 {
            for run in take_set(&mut cursor)?.runs() {
                self.lanes.insert(lane, run);
            }
        }
        self.undue = take_set(&mut cursor)?;
        self.expired = take_set(&mut cursor)?;
        self.delayed = Due::decode(&mut cursor)?;
        self.expiring = Due::decode(&mut cursor)?;
        self.producers = Producers::decode(&mut cursor)?;
        if planted(Fault::ProducersForgotten) {
            self.producers = Producers::default();
        }
        self.timeline = Timeline::decode(&mut cursor)?;
        self.through = through;
        self.changed = false;
        Ok(())
    }
}

fn put_set(out: &mut Vec<u8>, set: &SeqSet) {
    put_varint(out, set.runs().count() as u64);
    let mut from = 0;
    for run in set.runs() {
        put_run(out, run, &mut from);
    }
}

fn take_set(cursor: &mut Cursor<'_>) -> Result<SeqSet, DecodeError> {
    let mut set = SeqSet::new();
    let mut from = 0;
    for _ in 0..cursor.count()? {
        set.insert(take_run(cursor, &mut from)?);
    }
    Ok(set)
}
