//! Attaching contents to deliveries: from the window, or else from the engine.
//!
//! What is missing is read by a few reads at a time, and whatever one read brings serves everybody who
//! waits for it. A retry storm behind a small window therefore costs the same few reads as one retry.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use forebay_core::Admission;
use forebay_core::entry::{Entry, MessageMeta, copied_runs, entries};
use forebay_core::group::{Bound, Deliver, Lease, MoveOut, ReadAhead};
use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{ConsumerId, Epoch, GroupId, KeyHash, Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::{ReadBudget, StoredFrame};

use crate::batch::Batch;
use crate::driver::{Delivery, Outbox, Past, Read, RunMessage, Ticket};
use crate::index::Index;
use crate::recovery::RecoveryError;
use crate::window::{Found, Window};

/// Reads that are on their way to the engine at once.
const READS_MAX: usize = 4;

/// A read for this many messages or fewer need not bring much more than them.
const FEW: u64 = 16;
const FEW_BYTES: usize = 128 << 10;

/// Those at the head of the queue that may wait for a read of somebody else, while others pass them.
const COVERED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Payloads {
    pub(super) window: Window,
    /// Whole, but the entry of their leases is not durable yet. By frame.
    held: BTreeMap<u64, Vec<Partial>>,
    /// What is wanted from the engine, by number.
    wants: BTreeMap<u64, Want>,
    /// The next message each of them lacks, so that whoever reads it finds them.
    lacking: BTreeSet<(StreamId, Seq, u64)>,
    /// Those that a read is on its way for, and those that wait for their turn.
    reading: BTreeMap<u64, Reading>,
    queued: VecDeque<u64>,
    next: u64,
    /// Streams of which something was settled this turn.
    settled: Vec<StreamId>,
    /// Streams of which something is read before it is asked for.
    prefetched: BTreeSet<StreamId>,
    fetches: BTreeMap<u64, Fetch>,
    /// Those whose message the log does not have any more.
    nowhere: Vec<u64>,
    /// What is to be moved and has been found, or cannot be read.
    pub(super) moves: VecDeque<(MoveOut, Option<Found>)>,
    /// Messages that were read back from a copy.
    pub(super) copies_read: u64,
    /// Deliveries to consumers without a connection that have not left. By consumer.
    owed: HashMap<ConsumerId, u32>,
    /// Those to whom nothing is owed any more.
    served: Vec<ConsumerId>,
}

/// Messages that somebody lacks.
#[derive(Debug)]
struct Want {
    stream: StreamId,
    /// The next one that is lacking, and the last that is wanted.
    next: Seq,
    last: Seq,
    purpose: Purpose,
    search: Search,
}

/// How far somebody has read in search of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Search {
    /// Which one, and the place where it was to be found then.
    seq: Seq,
    place: Position,
    /// Where to read on.
    next: Position,
}

/// A read that is on its way.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Frames from the first to just before the second of these places come with it, as far as one can tell.
    from: Position,
    until: Position,
    /// Whether contents are read too.
    contents: bool,
}

#[derive(Debug)]
enum Purpose {
    /// A group wants to look ahead.
    ReadAhead(Look),
    /// A group will want to, soon.
    Prefetch(GroupId),
    Deliver(Partial),
    /// Somebody wants to see messages, or to bring one to another stream.
    Fetch(u64, Vec<Found>),
    Move(MoveOut, Option<Found>),
}

/// A group that looks ahead.
#[derive(Debug)]
struct Look {
    group: GroupId,
    /// Anything from here on is progress.
    asked: Seq,
    /// The keys of what was found so far, for a group that has to know them.
    keys: Option<Vec<KeyHash>>,
    /// Whether what is found is worth keeping.
    contents: bool,
}

/// Messages that somebody wants to see, from several places.
#[derive(Debug)]
struct Fetch {
    ticket: Ticket,
    /// Places that are not found yet.
    left: usize,
    found: Vec<Found>,
}

/// A delivery that is being put together.
#[derive(Debug)]
struct Partial {
    epoch: Epoch,
    deliver: Deliver,
    /// Leaves no earlier than this frame is durable.
    frame: Option<u64>,
    messages: Vec<RunMessage>,
}

/// What attaching contents needs of the rest of the driver.
pub(super) struct Around<'a> {
    pub(super) index: &'a Index,
    /// What one read may bring.
    pub(super) read_bytes_max: usize,
    /// The newest frame that is durable.
    pub(super) durable: u64,
    pub(super) outbox: &'a mut Outbox,
}

impl Reading {
    /// Whether a frame at this place, and its contents, may be expected to come with it.
    fn brings(&self, place: Position) -> bool {
        self.contents && (self.from..self.until).contains(&place)
    }
}

impl Want {
    /// Takes what the window has, from the next message that is lacking on.
    fn take_from(&mut self, window: &Window, shard: &Shard) {
        let range = SeqRange::new(self.next, self.last);
        self.next = match &mut self.purpose {
            Purpose::Deliver(partial) => partial.collect(window, shard),
            Purpose::ReadAhead(look) => {
                let next = window.reaches(self.stream, range);
                if let Some(keys) = look.keys.as_mut().filter(|_| next > range.first) {
                    window.keys(self.stream, SeqRange::new(range.first, Seq(next.0 - 1)), keys);
                }
                next
            }
            Purpose::Prefetch(_) => window.reaches(self.stream, range),
            Purpose::Fetch(_, found) => collect_kept(self.stream, range, window, shard, found),
            Purpose::Move(_, found) => window.collect(self.stream, range, |one| *found = Some(one)),
        };
    }

    /// Where to read for the next message that is lacking, which the index knows to be at `place` or after it: on
    /// from where the last read ended, unless that was for another place, or the message has moved since.
    fn reads_from(&self, place: Position, around: &Around<'_>) -> Position {
        let moved = around.index.moved(self.stream, self.next).is_some();
        if self.search.place == place && !moved { self.search.next.max(place) } else { place }
    }

    /// Whether it is for a group that goes through the stream.
    fn is_ahead(&self) -> bool {
        matches!(self.purpose, Purpose::ReadAhead(_) | Purpose::Prefetch(_))
    }

    fn take_key(&mut self, seq: Seq, meta: &MessageMeta) {
        if let Purpose::ReadAhead(Look { keys: Some(keys), .. }) = &mut self.purpose
            && seq == self.next
            && seq <= self.last
        {
            keys.push(meta.key.unwrap_or(KeyHash(0)));
            self.next = seq.next();
        }
    }
}

/// Adds those messages of the range that are kept and in the window, and returns the first that is kept and is
/// not there. What is gone between them is passed over.
fn collect_kept(
    stream: StreamId,
    range: SeqRange,
    window: &Window,
    shard: &Shard,
    found: &mut Vec<Found>,
) -> Seq {
    let kept_from = |seq| shard.first_kept(stream, seq);
    let mut next = range.first;
    while let Some(kept) = kept_from(next).filter(|&kept| kept <= range.last) {
        next = window.collect(stream, SeqRange::new(kept, range.last), |one| {
            // What is not kept may be in the window all the same.
            if kept_from(one.seq) == Some(one.seq) {
                found.push(one);
            }
        });
        if next == kept {
            return kept;
        }
    }
    range.last.next()
}

fn key_run(keys: Option<&Vec<KeyHash>>) -> KeyRun<'_> {
    keys.map_or(KeyRun::Plain, |keys| KeyRun::Each(keys))
}

impl Partial {
    fn leases(&self) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let Deliver { seqs, grant, consumer, .. } = self.deliver;
        let lease = move |seq: Seq| Lease { epoch: self.epoch, seq, grant: grant.plus(seq.0 - seqs.first.0) };
        seqs.seqs().map(move |seq| (consumer, lease(seq)))
    }

    /// Adds what the window has and returns the first message that it has not.
    fn collect(&mut self, window: &Window, shard: &Shard) -> Seq {
        let deliver = self.deliver;
        let next = deliver.seqs.first.plus(self.messages.len() as u64);
        if next > deliver.seqs.last {
            return next;
        }
        window.collect(deliver.stream, SeqRange::new(next, deliver.seqs.last), |found| {
            let past = found.extra.origin.as_ref().map(|origin| {
                let name = |id| shard.stream_name(id).cloned();
                Box::new(Past {
                    receives: origin.receives,
                    home: origin.trail.map(|trail| (trail.home, trail.seq)),
                    from: origin.trail.and_then(|trail| name(trail.from)),
                })
            });
            self.messages.push(RunMessage {
                published: found.published(),
                priority: found.extra.priority,
                past,
                content: found.content,
            });
        })
    }

    fn into_delivery(self) -> Delivery {
        let Deliver { group, consumer, seqs, grant, attempt, first_received, deadline, .. } = self.deliver;
        let lease = Lease { epoch: self.epoch, seq: seqs.first, grant };
        Delivery { group, consumer, lease, attempt, first_received, deadline, messages: self.messages }
    }
}

impl Payloads {
    pub(super) fn new(window: Window) -> Payloads {
        Payloads {
            window,
            held: BTreeMap::new(),
            wants: BTreeMap::new(),
            lacking: BTreeSet::new(),
            reading: BTreeMap::new(),
            queued: VecDeque::new(),
            next: 1,
            settled: Vec::new(),
            prefetched: BTreeSet::new(),
            fetches: BTreeMap::new(),
            nowhere: Vec::new(),
            moves: VecDeque::new(),
            copies_read: 0,
            owed: HashMap::new(),
            served: Vec::new(),
        }
    }

    /// Whether something is leased to a consumer without a connection that has not left yet.
    pub(super) fn is_owed(&self, consumer: ConsumerId) -> bool {
        self.owed.contains_key(&consumer)
    }

    /// Those to whom nothing is owed any more. Until they are taken from here what was theirs is still on its way
    /// to them, and nobody may tell them that there was nothing.
    pub(super) fn take_served(&mut self, out: &mut Vec<ConsumerId>) {
        for consumer in self.served.drain(..) {
            if self.owed.get(&consumer) == Some(&0) {
                self.owed.remove(&consumer);
            }
            out.push(consumer);
        }
    }

    /// A delivery has left, or never will.
    fn paid(&mut self, consumer: ConsumerId) {
        if let Some(left) = self.owed.get_mut(&consumer) {
            *left -= 1;
            if *left == 0 {
                self.served.push(consumer);
            }
        }
    }

    /// Somebody wants to see these messages. What is gone or damaged is left out.
    pub(super) fn fetch(
        &mut self,
        stream: StreamId,
        ranges: &[SeqRange],
        ticket: Ticket,
        shard: &Shard,
        around: &mut Around<'_>,
    ) {
        let job = self.next;
        self.next += 1;
        let durable = SeqRange { first: Seq(1), last: shard.last_seq(stream).unwrap_or(Seq::START) };
        let ranges: Vec<SeqRange> = ranges.iter().filter_map(|range| range.overlap(durable)).collect();
        self.fetches.insert(job, Fetch { ticket, left: ranges.len(), found: Vec::new() });
        for range in ranges {
            self.want_all(stream, range, Purpose::Fetch(job, Vec::new()), shard, around);
        }
        self.finish_fetch(job, around.outbox);
    }

    fn finish_fetch(&mut self, job: u64, outbox: &mut Outbox) {
        if self.fetches.get(&job).is_some_and(|fetch| fetch.left == 0) {
            let mut fetch = self.fetches.remove(&job).expect("it was there just now");
            fetch.found.sort_by_key(|found| found.seq);
            outbox.fetched.push((fetch.ticket, fetch.found));
        }
    }

    /// The content of a message has to be brought to another stream.
    pub(super) fn move_out(&mut self, moved: MoveOut, shard: &Shard, around: &mut Around<'_>) {
        let (stream, seq) = (moved.stream, SeqRange::one(moved.seq));
        self.want_all(stream, seq, Purpose::Move(moved, None), shard, around);
    }

    /// Wants messages from the window, or else from the engine.
    fn want_all(
        &mut self,
        stream: StreamId,
        range: SeqRange,
        purpose: Purpose,
        shard: &Shard,
        around: &mut Around<'_>,
    ) {
        let mut want =
            Want { stream, next: range.first, last: range.last, purpose, search: Search::default() };
        want.take_from(&self.window, shard);
        if want.next > want.last {
            self.complete(want, around);
        } else {
            self.want(want, around);
        }
    }

    /// Somebody has what he wanted, of those that no group waits for.
    fn complete(&mut self, want: Want, around: &mut Around<'_>) {
        match want.purpose {
            Purpose::Fetch(job, found) => {
                if let Some(fetch) = self.fetches.get_mut(&job) {
                    fetch.left -= 1;
                    fetch.found.extend(found);
                }
                self.finish_fetch(job, around.outbox);
            }
            Purpose::Move(moved, found) => self.moves.push_back((moved, found)),
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Deliver(_) => {
                unreachable!("a group waits for it")
            }
        }
    }

    /// Attaches contents to a delivery. It leaves now, or when `frame` is durable, or when what is missing
    /// has been read.
    pub(super) fn deliver(
        &mut self,
        shard: &Shard,
        deliver: Deliver,
        frame: Option<u64>,
        around: &mut Around<'_>,
    ) {
        if deliver.bound == Bound::Clock {
            *self.owed.entry(deliver.consumer).or_default() += 1;
        }
        let messages = Vec::with_capacity(deliver.seqs.count() as usize);
        let mut partial = Partial { epoch: shard.epoch(), deliver, frame, messages };
        let next = partial.collect(&self.window, shard);
        if next > deliver.seqs.last {
            match partial.frame.filter(|&frame| frame > around.durable) {
                Some(frame) => self.held.entry(frame).or_default().push(partial),
                None => {
                    around.outbox.deliveries.push(partial.into_delivery());
                    self.paid(deliver.consumer);
                }
            }
        } else {
            let (stream, last) = (deliver.stream, deliver.seqs.last);
            let (purpose, search) = (Purpose::Deliver(partial), Search::default());
            self.want(Want { stream, next, last, purpose, search }, around);
        }
    }

    /// A group wants to know of messages it has not seen. If their contents are here, it knows them now.
    pub(super) fn read_ahead(&mut self, read: ReadAhead, shard: &mut Shard, around: &mut Around<'_>) {
        let first = read.seqs.first;
        // What nobody wants may be gone from the log, and need not be read to be passed over.
        let wanted = shard.first_wanted(read.stream, first).unwrap_or(read.seqs.last.next());
        let gap = self.window.reaches(read.stream, read.seqs).max(wanted.min(read.seqs.last.next()));
        if gap > first {
            let range = SeqRange::new(first, Seq(gap.0 - 1));
            let mut keys = Vec::new();
            if read.keys {
                self.window.keys(read.stream, range, &mut keys);
            }
            shard.read_ahead(read.group, range, key_run(read.keys.then_some(&keys)));
            if read.contents {
                self.prefetch(read.group, read.stream, gap, shard, around);
            }
        } else {
            let keys = read.keys.then(Vec::new);
            let look = Look { group: read.group, asked: first, keys, contents: read.contents };
            let (stream, last, purpose) = (read.stream, read.seqs.last, Purpose::ReadAhead(look));
            self.want(Want { stream, next: first, last, purpose, search: Search::default() }, around);
        }
    }

    /// Reads on for a group before it runs out of what is here, so that it need not wait for the disk.
    fn prefetch(
        &mut self,
        group: GroupId,
        stream: StreamId,
        from: Seq,
        shard: &Shard,
        around: &mut Around<'_>,
    ) {
        let Some(next) = self.window.runs_out(stream, from, around.read_bytes_max / 2) else { return };
        if shard.last_seq(stream).is_some_and(|last| next <= last) && self.prefetched.insert(stream) {
            let (purpose, search) = (Purpose::Prefetch(group), Search::default());
            self.want(Want { stream, next, last: next, purpose, search }, around);
        }
    }

    fn want(&mut self, want: Want, around: &mut Around<'_>) {
        let id = self.next;
        self.next += 1;
        self.lacking.insert((want.stream, want.next, id));
        self.wants.insert(id, want);
        self.queued.push_back(id);
        self.start_reads(around);
    }

    fn start_reads(&mut self, around: &mut Around<'_>) {
        let mut passed = 0;
        while self.reading.len() < READS_MAX
            && passed < COVERED_MAX
            && let Some(&id) = self.queued.get(passed)
        {
            // Others may have read what it wanted, or it may have left.
            let Some(want) = self.wants.get(&id) else {
                self.queued.remove(passed);
                continue;
            };
            let from = around.index.find(want.stream, want.next).map(|place| want.reads_from(place, around));
            if from.is_some_and(|from| self.reading.values().any(|reading| reading.brings(from))) {
                passed += 1;
            } else {
                self.queued.remove(passed);
                self.start_read(id, around);
            }
        }
    }

    /// Reads for the next message that somebody lacks.
    fn start_read(&mut self, id: u64, around: &mut Around<'_>) {
        let want = self.wants.get_mut(&id).expect("a read is for somebody who wants it");
        let Some(place) = around.index.find(want.stream, want.next) else {
            self.nowhere.push(id);
            return;
        };
        let from = want.reads_from(place, around);
        want.search = Search { seq: want.next, place, next: from };
        let few = want.last.0 - want.next.0 < FEW;
        let bytes_max = if few { FEW_BYTES.min(around.read_bytes_max) } else { around.read_bytes_max };
        let contents = !matches!(&want.purpose, Purpose::ReadAhead(look) if !look.contents);
        let budget = ReadBudget { bytes_max, frames_max: usize::MAX, payloads: contents };
        around.outbox.reads.push(Read { id, from, budget });
        let until = Position(from.0.saturating_add(bytes_max as u64));
        self.reading.insert(id, Reading { from, until, contents });
    }

    /// Takes in frames that were read for one want, and reads on if that was not enough.
    pub(super) fn read(
        &mut self,
        id: u64,
        frames: &[StoredFrame],
        shard: &mut Shard,
        around: &mut Around<'_>,
    ) -> Result<(), RecoveryError> {
        let reading = self.reading.remove(&id).expect("what was read was asked for");
        if !reading.contents {
            for frame in frames {
                if self.wants.contains_key(&id) {
                    self.take_keys(id, frame)?;
                }
            }
            if self.wants.get(&id).is_some_and(|want| want.next > want.last) {
                self.finish(id, shard, around);
            }
        } else {
            // A group goes on where it is, and will want what lies ahead of it: that has been read now.
            let ahead = self.wants.get(&id).filter(|want| want.is_ahead());
            let ahead = ahead.map(|want| (want.stream, want.next));
            for frame in frames {
                self.take_in(frame, ahead, shard, around)?;
            }
        }
        // What was wanted may have gone meanwhile, and what comes after it may be here.
        let fetches = |want: &Want| matches!(want.purpose, Purpose::Fetch(..));
        if self.wants.get(&id).is_some_and(fetches) && self.take_more(id, shard) {
            self.finish(id, shard, around);
        }
        if let Some(want) = self.wants.get_mut(&id) {
            let unwanted = shard.first_wanted(want.stream, want.next) != Some(want.next);
            match &want.purpose {
                Purpose::ReadAhead(look) if want.next > look.asked => self.finish(id, shard, around),
                // Whoever wanted it has settled it meanwhile, and it may be gone. The group asks again.
                Purpose::ReadAhead(_) if unwanted => self.finish(id, shard, around),
                // It was a guess.
                Purpose::Prefetch(_) => self.finish(id, shard, around),
                // What nobody wants any more cannot be shown.
                Purpose::Fetch(..) | Purpose::Move(..) if unwanted && frames.is_empty() => {
                    self.finish(id, shard, around);
                }
                // It may have lapsed while it waited, and its messages may be settled and trimmed by now.
                Purpose::Deliver(partial) if !may_leave(partial, shard, unwanted) => self.forget(id),
                _ => {
                    let (stream, seq) = (want.stream, want.next);
                    let before = want.search;
                    let stays = seq == before.seq && around.index.find(stream, seq) == Some(before.place);
                    let exact = around.index.moved(stream, seq).is_some();
                    let nowhere = stays && (exact || frames.is_empty());
                    let shows = matches!(want.purpose, Purpose::Fetch(..) | Purpose::Move(..));
                    if nowhere && unwanted && shows {
                        self.finish(id, shard, around);
                    } else if nowhere {
                        return Err(RecoveryError::MessageMissing { stream, seq });
                    } else {
                        want.search.next =
                            frames.last().map_or(before.next, |last| Position(last.position.0 + 1));
                        self.queued.push_front(id);
                    }
                }
            }
        }
        self.start_reads(around);
        Ok(())
    }

    /// Somebody wanted what everybody else was done with, and it has gone: a reader who came too late, a
    /// message that was purged while it was on its way.
    pub(super) fn give_up(&mut self, shard: &mut Shard, around: &mut Around<'_>) {
        for id in std::mem::take(&mut self.nowhere) {
            let Some(want) = self.wants.get(&id) else { continue };
            let (stream, seq) = (want.stream, want.next);
            let unwanted = shard.first_wanted(stream, seq) != Some(seq);
            assert!(unwanted, "a message that is wanted is in the index: {seq} of {stream:?}");
            let (delivers, fetches) = match want.purpose {
                Purpose::Deliver(_) => (true, false),
                Purpose::Fetch(..) => (false, true),
                Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Move(..) => (false, false),
            };
            if delivers {
                self.forget(id);
            } else if fetches && !self.take_more(id, shard) && self.wants[&id].next > seq {
                self.queued.push_back(id);
            } else {
                self.finish(id, shard, around);
            }
        }
        self.start_reads(around);
    }

    /// What was wanted cannot be read.
    pub(super) fn unreadable(&mut self, id: u64, shard: &mut Shard, around: &mut Around<'_>) {
        self.reading.remove(&id);
        let Some(want) = self.wants.get_mut(&id) else { return self.start_reads(around) };
        match &mut want.purpose {
            Purpose::Deliver(_) => self.forget(id),
            Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => self.finish(id, shard, around),
            // The keys may be readable where the content is not.
            Purpose::ReadAhead(look) if look.keys.is_some() && look.contents => {
                look.contents = false;
                want.search = Search::default();
                self.start_read(id, around);
            }
            // What order it is in is not known, and must not be guessed: the group stays where it is.
            Purpose::ReadAhead(look) if look.keys.is_some() => {}
            // It is found damaged once more when it is handed out, and set aside in the end.
            Purpose::ReadAhead(_) => {
                self.lacking.remove(&(want.stream, want.next, id));
                want.next = want.last.next();
                self.lacking.insert((want.stream, want.next, id));
                self.finish(id, shard, around);
            }
        }
        self.start_reads(around);
    }

    /// Tells a group that only asks for keys those that a frame has.
    fn take_keys(&mut self, id: u64, frame: &StoredFrame) -> Result<(), RecoveryError> {
        let position = frame.position;
        let want = self.wants.get_mut(&id).expect("keys are read for somebody");
        let before = want.next;
        for entry in entries(&frame.entries) {
            match entry.map_err(|error| RecoveryError::Entry { position, error })? {
                Entry::Published { stream, first, messages, .. } if stream == want.stream => {
                    for (n, meta) in messages.iter().enumerate() {
                        want.take_key(first.plus(n as u64), &meta);
                    }
                }
                Entry::Copied { stream, messages } if stream == want.stream => {
                    for message in messages {
                        want.take_key(message.seq, &message.meta);
                    }
                }
                _ => {}
            }
        }
        let (stream, next) = (want.stream, want.next);
        if next != before {
            self.lacking.remove(&(stream, before, id));
            self.lacking.insert((stream, next, id));
        }
        Ok(())
    }

    /// Puts those messages of a frame that somebody lacks into the window, and gives them to those. Those of
    /// a stream from some place on are kept in any case.
    fn take_in(
        &mut self,
        frame: &StoredFrame,
        ahead: Option<(StreamId, Seq)>,
        shard: &mut Shard,
        around: &mut Around<'_>,
    ) -> Result<(), RecoveryError> {
        let position = frame.position;
        let mut offset = 0;
        for entry in entries(&frame.entries) {
            let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
            match entry {
                Entry::Published { stream, first, at, messages, .. } => {
                    let range = SeqRange::starting(first, messages.count());
                    let contents = contents(frame, &mut offset, messages.bytes())?;
                    let is_ahead = ahead.is_some_and(|(of, next)| of == stream && next <= range.last);
                    if is_ahead || self.is_lacking(stream, range) {
                        let contents = alone(contents, frame);
                        self.window.insert_read(stream, first, at, &messages, contents);
                        self.give(stream, range, shard, around);
                    }
                }
                Entry::Copied { stream, messages } => {
                    for run in copied_runs(&messages) {
                        let metas = run.iter().map(|message| message.meta);
                        let bytes = metas.clone().map(|meta| u64::from(meta.size)).sum();
                        let contents = contents(frame, &mut offset, bytes)?;
                        let range = SeqRange::starting(run[0].seq, run.len() as u64);
                        if self.is_lacking(stream, range) {
                            let contents = alone(contents, frame);
                            self.window.insert(stream, range.first, run[0].at, metas, contents);
                            self.copies_read += range.count();
                            self.give(stream, range, shard, around);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_lacking(&self, stream: StreamId, range: SeqRange) -> bool {
        let place = self.lacking.range((stream, range.first, 0)..).next();
        place.is_some_and(|&(of, seq, _)| of == stream && seq <= range.last)
    }

    /// Those who lack one of these messages take them from the window: at once, since the window may be
    /// smaller than what was read.
    fn give(&mut self, stream: StreamId, range: SeqRange, shard: &mut Shard, around: &mut Around<'_>) {
        let here = (stream, range.first, 0)..=(stream, range.last, u64::MAX);
        let ids: Vec<u64> = self.lacking.range(here).map(|&(.., id)| id).collect();
        for id in ids {
            if self.take_more(id, shard) {
                self.finish(id, shard, around);
            }
        }
    }

    /// Somebody takes what is there by now. True when that is all.
    fn take_more(&mut self, id: u64, shard: &Shard) -> bool {
        let want = self.wants.get_mut(&id).expect("whoever lacks something wants it");
        self.lacking.remove(&(want.stream, want.next, id));
        want.take_from(&self.window, shard);
        self.lacking.insert((want.stream, want.next, id));
        want.next > want.last
    }

    /// A want has what it needs, or as much as it takes.
    fn finish(&mut self, id: u64, shard: &mut Shard, around: &mut Around<'_>) {
        let Some(want) = self.remove(id) else { return };
        match want.purpose {
            Purpose::ReadAhead(look) if want.next > look.asked => {
                let range = SeqRange::new(look.asked, Seq(want.next.0 - 1));
                shard.read_ahead(look.group, range, key_run(look.keys.as_ref()));
            }
            Purpose::ReadAhead(look) => shard.read_nothing(look.group),
            Purpose::Prefetch(_) => {}
            Purpose::Fetch(..) | Purpose::Move(..) => self.complete(want, around),
            Purpose::Deliver(partial) => match partial.frame.filter(|&frame| frame > around.durable) {
                Some(frame) => self.held.entry(frame).or_default().push(partial),
                None => {
                    let consumer = partial.deliver.consumer;
                    send_current(partial, shard, around.outbox);
                    self.paid(consumer);
                }
            },
        }
    }

    fn forget(&mut self, id: u64) {
        let want = self.remove(id);
        if let Some(Want { purpose: Purpose::Deliver(partial), .. }) = want {
            self.paid(partial.deliver.consumer);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Want> {
        let want = self.wants.remove(&id)?;
        self.lacking.remove(&(want.stream, want.next, id));
        if matches!(want.purpose, Purpose::Prefetch(_)) {
            self.prefetched.remove(&want.stream);
        }
        Some(want)
    }

    /// Deliveries whose leases are durable now may leave.
    pub(super) fn durable(&mut self, number: u64, shard: &Shard, outbox: &mut Outbox) {
        while let Some(frame) = self.held.first_entry().filter(|frame| *frame.key() <= number) {
            for partial in frame.remove() {
                let consumer = partial.deliver.consumer;
                send_current(partial, shard, outbox);
                self.paid(consumer);
            }
        }
    }

    /// What is leased and has not left, because its content or its entry is not here yet.
    pub(super) fn undelivered(&self, group: GroupId) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let wanted = self.wants.values().filter_map(|want| match &want.purpose {
            Purpose::Deliver(partial) => Some(partial),
            _ => None,
        });
        let all = self.held.values().flatten().chain(wanted);
        all.filter(move |partial| partial.deliver.group == group).flat_map(Partial::leases)
    }

    /// What was on its way to a consumer that has left is not sent.
    pub(super) fn drop_consumer(&mut self, group: GroupId, consumer: ConsumerId) {
        self.drop_held(|deliver| deliver.group == group && deliver.consumer == consumer);
        let is_theirs = |want: &Want| match &want.purpose {
            Purpose::Deliver(Partial { deliver, .. }) => {
                deliver.group == group && deliver.consumer == consumer
            }
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => false,
        };
        self.drop_wants(is_theirs);
    }

    /// Nobody of the group waits for anything any more.
    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.drop_wants(|want| match &want.purpose {
            Purpose::Deliver(partial) => partial.deliver.group == group,
            Purpose::ReadAhead(look) => look.group == group,
            Purpose::Prefetch(of) => *of == group,
            Purpose::Move(moved, _) => moved.group == group,
            Purpose::Fetch(..) => false,
        });
        self.drop_held(|deliver| deliver.group == group);
    }

    fn drop_held(&mut self, which: impl Fn(&Deliver) -> bool) {
        let mut dropped = Vec::new();
        for held in self.held.values_mut() {
            let gone = held.extract_if(.., |partial| which(&partial.deliver));
            dropped.extend(gone.map(|partial| partial.deliver.consumer));
        }
        for consumer in dropped {
            self.paid(consumer);
        }
    }

    /// The stream is gone, and whoever wants to see something of it sees what has been found.
    pub(super) fn drop_stream(&mut self, stream: StreamId) {
        self.drop_wants(|want| want.stream == stream && !matches!(want.purpose, Purpose::Fetch(..)));
        self.window.forget_before(stream, Seq(u64::MAX));
    }

    fn drop_wants(&mut self, which: impl Fn(&Want) -> bool) {
        let ids: Vec<u64> = self.wants.iter().filter(|(_, want)| which(want)).map(|(&id, _)| id).collect();
        for id in ids {
            self.forget(id);
        }
    }

    pub(super) fn settled(&mut self, stream: StreamId) {
        if self.settled.last() != Some(&stream) {
            self.settled.push(stream);
        }
    }

    /// Lets go of contents that no group of the stream will ask for again.
    pub(super) fn forget_settled(&mut self, shard: &Shard) {
        self.settled.sort_unstable();
        self.settled.dedup();
        for stream in self.settled.drain(..) {
            if let Some((_, durable)) = shard.kept(stream) {
                let wanted = shard.first_wanted(stream, Seq(1)).unwrap_or(durable.next());
                self.window.forget_before(stream, wanted);
            }
        }
    }
}

/// The contents that follow in the payload of a frame.
fn contents(frame: &StoredFrame, offset: &mut usize, bytes: u64) -> Result<Bytes, RecoveryError> {
    let end = *offset + bytes as usize;
    if end > frame.payload.len() {
        return Err(RecoveryError::PayloadShort { position: frame.position });
    }
    let contents = frame.payload.slice(*offset..end);
    *offset = end;
    Ok(contents)
}

/// A small part of a large frame would keep all of it in memory.
fn alone(contents: Bytes, frame: &StoredFrame) -> Bytes {
    if contents.len() * 2 < frame.payload.len() { Bytes::copy_from_slice(&contents) } else { contents }
}

/// Whether it is worth reading on for a delivery. `unwanted`: what it lacks may be gone from the log.
fn may_leave(partial: &Partial, shard: &Shard, unwanted: bool) -> bool {
    if partial.deliver.is_fleeting() {
        return !unwanted;
    }
    partial.leases().any(|(_, lease)| shard.is_current(partial.deliver.group, lease))
}

/// A delivery that had to wait may have lapsed meanwhile, and its messages may be with others.
fn send_current(partial: Partial, shard: &Shard, outbox: &mut Outbox) {
    let fleeting = partial.deliver.is_fleeting();
    let delivery = partial.into_delivery();
    let group = delivery.group;
    let is_kept = |lease| fleeting || shard.is_current(group, lease);
    delivery.keep(is_kept, |delivery| outbox.deliveries.push(delivery));
}

/// The contents of those messages of a batch that are not duplicates.
pub(super) fn fresh_contents(batch: &Batch, admissions: &[Admission]) -> Bytes {
    let mut fresh = BytesMut::with_capacity(batch.contents.len());
    let mut offset = 0;
    for (meta, admission) in batch.metas.iter().zip(admissions) {
        let end = offset + meta.size as usize;
        if !admission.duplicate {
            fresh.extend_from_slice(&batch.contents[offset..end]);
        }
        offset = end;
    }
    fresh.freeze()
}
