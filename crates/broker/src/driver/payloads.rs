//! Attaching contents to deliveries: from the window, or else from the engine.
//!
//! [`Payloads`] knows what each read is for. The read scheduler ([`Reads`]) decides which frames to read and when;
//! what it brings goes into the window, and from there to every request that lacks it. `deliveries` holds what waits
//! for durability, `fetches` what callers want to see.

use std::collections::{BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use forebay_core::Admission;
use forebay_core::entry::{Entry, MessageMeta, copied_runs, entries};
use forebay_core::group::{Deliver, Lease, MoveOut, ReadAhead};
use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{ConsumerId, GroupId, KeyHash, Seq, SeqRange, StreamId, Timestamp};
use forebay_storage::engine::{Damage, StoredFrame};

use crate::batch::Batch;
use crate::driver::deliveries::{Deliveries, PendingDelivery, is_for};
use crate::driver::fetches::{Fetches, collect_kept};
use crate::driver::lines::Lines;
use crate::driver::reads::{Brought, ReadRequest, Reads};
use crate::driver::{DriverFigures, Outbox, Ticket};
use crate::index::Index;
use crate::recovery::RecoveryError;
use crate::window::{Found, Place, Window};

#[derive(Debug)]
pub(super) struct Payloads {
    pub(super) window: Window,
    reads: Reads<Purpose>,
    deliveries: Deliveries,
    lines: Lines,
    fetches: Fetches,
    /// Messages that are to be moved: with their contents, or without where these cannot be read.
    pub(super) moves: VecDeque<(MoveOut, Option<Found>)>,
    /// Streams of which something was settled this turn.
    settled: Vec<StreamId>,
    /// Streams of which something is read before it is asked for.
    prefetched: BTreeSet<StreamId>,
    /// Messages that were read back from a copy.
    pub(super) copies_read: u64,
    /// Messages handed out whose contents were in the window, and those that had to be read.
    hits: u64,
    misses: u64,
    /// Deliveries of messages that were parked because their contents cannot be read.
    damaged: u64,
}

/// The purpose of a read of messages.
#[derive(Debug)]
enum Purpose {
    /// A group has to know of them.
    ReadAhead(Lookahead),
    /// A group will have to know of them soon.
    Prefetch(GroupId),
    Deliver(PendingDelivery),
    /// A part of a fetch, by its number.
    Fetch(u64, Vec<Found>),
    /// The message goes to another stream.
    Move(MoveOut, Option<Found>),
}

type Request = ReadRequest<Purpose>;

/// A group that looks ahead.
#[derive(Debug)]
struct Lookahead {
    group: GroupId,
    /// Anything from here on is progress.
    asked: Seq,
    /// The keys of the messages found so far, for a group that has to know them.
    keys: Option<Vec<KeyHash>>,
    /// Messages whose keys cannot be read.
    unreadable: Vec<SeqRange>,
}

/// The parts of the driver that attaching contents needs.
pub(super) struct Context<'a> {
    pub(super) index: &'a Index,
    /// How many bytes one read may bring.
    pub(super) read_bytes_max: usize,
    /// The newest frame that is durable.
    pub(super) durable: u64,
    pub(super) outbox: &'a mut Outbox,
}

impl Request {
    /// Takes what the window has, from the next message that is lacking on.
    fn take_from(&mut self, window: &Window, shard: &Shard) {
        let range = SeqRange::new(self.next, self.last);
        self.next = match &mut self.purpose {
            Purpose::Deliver(pending) => pending.collect(window, shard),
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

    /// Whether it is for a group that goes through the stream.
    fn is_ahead(&self) -> bool {
        matches!(self.purpose, Purpose::ReadAhead(_) | Purpose::Prefetch(_))
    }

    fn is_fetch(&self) -> bool {
        matches!(self.purpose, Purpose::Fetch(..))
    }

    fn take_key(&mut self, seq: Seq, meta: &MessageMeta) {
        if let Purpose::ReadAhead(Lookahead { keys: Some(keys), .. }) = &mut self.purpose
            && seq == self.next
            && seq <= self.last
        {
            keys.push(meta.key.unwrap_or(KeyHash(0)));
            self.next = seq.next();
        }
    }
}

fn key_run(keys: Option<&Vec<KeyHash>>) -> KeyRun<'_> {
    keys.map_or(KeyRun::Plain, |keys| KeyRun::Each(keys))
}

impl Payloads {
    pub(super) fn new(window: Window) -> Payloads {
        Payloads {
            window,
            reads: Reads::new(),
            deliveries: Deliveries::default(),
            lines: Lines::default(),
            fetches: Fetches::default(),
            moves: VecDeque::new(),
            settled: Vec::new(),
            prefetched: BTreeSet::new(),
            copies_read: 0,
            hits: 0,
            misses: 0,
            damaged: 0,
        }
    }

    /// The figures, with this module's counts added.
    pub(super) fn add_figures(&self, figures: DriverFigures) -> DriverFigures {
        let (cache_hits, cache_misses) = (self.hits, self.misses);
        let counted = DriverFigures { cache_hits, cache_misses, damaged: self.damaged, ..figures };
        self.reads.add_figures(counted)
    }

    /// A group has parked messages because their keys cannot be read.
    pub(super) fn parked_damaged(&mut self, count: u64) {
        self.damaged += count;
    }

    /// Whether a delivery to a consumer without a connection has not left yet.
    pub(super) fn is_owed(&self, consumer: ConsumerId) -> bool {
        self.deliveries.is_owed(consumer)
    }

    /// Consumers without a connection to whom all deliveries have left.
    pub(super) fn take_served(&mut self, shard: &mut Shard, out: &mut Vec<ConsumerId>) {
        self.deliveries.take_served(shard, out);
    }

    /// Collects these messages for a caller. Messages that are gone or damaged are left out.
    pub(super) fn fetch(
        &mut self,
        stream: StreamId,
        ranges: &[SeqRange],
        ticket: Ticket,
        shard: &Shard,
        context: &mut Context<'_>,
    ) {
        let id = self.reads.next_id();
        let durable = SeqRange { first: Seq(1), last: shard.last_seq(stream).unwrap_or(Seq::START) };
        let ranges: Vec<SeqRange> = ranges.iter().filter_map(|range| range.overlap(durable)).collect();
        self.fetches.begin(id, ticket, ranges.len());
        for range in ranges {
            self.find(stream, range, Purpose::Fetch(id, Vec::new()), shard, context);
        }
        self.fetches.finish(id, context.outbox);
    }

    /// The content of a message has to be brought to another stream.
    pub(super) fn move_out(&mut self, moved: MoveOut, shard: &Shard, context: &mut Context<'_>) {
        let (stream, seq) = (moved.stream, SeqRange::one(moved.seq));
        self.find(stream, seq, Purpose::Move(moved, None), shard, context);
    }

    /// Takes messages from the window, or else asks the engine for them.
    fn find(
        &mut self,
        stream: StreamId,
        range: SeqRange,
        purpose: Purpose,
        shard: &Shard,
        context: &mut Context<'_>,
    ) {
        let mut request = Request::new(stream, range, true, purpose);
        request.take_from(&self.window, shard);
        if request.is_complete() {
            self.complete(request, context);
        } else {
            self.reads.request(request, context);
        }
    }

    /// A fetch or a move has what it needs.
    fn complete(&mut self, request: Request, context: &mut Context<'_>) {
        match request.purpose {
            Purpose::Fetch(id, found) => self.fetches.found(id, found, context.outbox),
            Purpose::Move(moved, found) => self.moves.push_back((moved, found)),
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Deliver(_) => {
                unreachable!("a group waits for it")
            }
        }
    }

    /// Attaches contents to a delivery. It leaves now, or when `frame` is durable, or when the missing
    /// contents have been read.
    pub(super) fn deliver(
        &mut self,
        shard: &Shard,
        deliver: Deliver,
        frame: Option<u64>,
        context: &mut Context<'_>,
    ) {
        self.deliveries.begin(&deliver);
        let mut pending = PendingDelivery::new(shard.epoch(), deliver, frame);
        let next = pending.collect(&self.window, shard);
        self.hits += pending.len();
        self.misses += deliver.seqs.count() - pending.len();
        if next > deliver.seqs.last {
            let may_leave = if deliver.in_order { self.lines.stand_in_line(pending) } else { Some(pending) };
            if let Some(pending) = may_leave {
                self.deliveries.send(pending, context);
            }
        } else {
            if deliver.in_order {
                self.lines.open(&deliver);
            }
            let lacking = SeqRange::new(next, deliver.seqs.last);
            self.reads
                .request(Request::new(deliver.stream, lacking, true, Purpose::Deliver(pending)), context);
        }
    }

    /// A group wants to know of messages it has not seen. If their contents are here, it knows them now.
    pub(super) fn read_ahead(&mut self, read: ReadAhead, shard: &mut Shard, context: &mut Context<'_>) {
        let first = read.seqs.first;
        let gap = self.known_until(read.stream, read.seqs, shard);
        if gap > first {
            let range = SeqRange::new(first, Seq(gap.0 - 1));
            let mut keys = Vec::new();
            if read.keys {
                self.window.keys(read.stream, range, &mut keys);
            }
            shard.read_ahead(read.group, range, key_run(read.keys.then_some(&keys)));
            if read.contents {
                self.prefetch(read.group, read.stream, gap, shard, context);
            }
        } else {
            let keys = read.keys.then(Vec::new);
            let look = Lookahead { group: read.group, asked: first, keys, unreadable: Vec::new() };
            let request = Request::new(read.stream, read.seqs, read.contents, Purpose::ReadAhead(look));
            self.reads.request(request, context);
        }
    }

    /// The first message of the range that has to be read: it is not in the window, and a group wants it. Messages
    /// that no group wants may be gone from the log, and need not be read to be passed over.
    fn known_until(&self, stream: StreamId, range: SeqRange, shard: &Shard) -> Seq {
        let end = range.last.next();
        let mut next = range.first;
        while next < end {
            let gap = self.window.reaches(stream, SeqRange::new(next, range.last));
            let wanted = shard.first_wanted(stream, gap).unwrap_or(end).min(end);
            if wanted == gap {
                return gap;
            }
            next = wanted;
        }
        end
    }

    /// Reads on for a group before it has used up the messages in the window, so that it need not wait for
    /// the disk.
    fn prefetch(
        &mut self,
        group: GroupId,
        stream: StreamId,
        from: Seq,
        shard: &Shard,
        context: &mut Context<'_>,
    ) {
        let Some(next) = self.window.runs_out(stream, from, context.read_bytes_max / 2) else { return };
        if shard.last_seq(stream).is_some_and(|last| next <= last) && self.prefetched.insert(stream) {
            let request = Request::new(stream, SeqRange::one(next), true, Purpose::Prefetch(group));
            self.reads.request_later(request, context);
        }
    }

    /// Takes in frames that were read for one request, and reads on if that was not enough.
    pub(super) fn read(
        &mut self,
        id: u64,
        frames: &[StoredFrame],
        damage: &[Damage],
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) -> Result<(), RecoveryError> {
        let brought = Brought { frames, damage };
        let reading = self.reads.ended(id).expect("a finished read was requested");
        if !reading.contents {
            for frame in frames {
                if self.reads.get(id).is_some() {
                    self.take_keys(id, frame)?;
                }
            }
            if self.reads.get(id).is_some_and(Request::is_complete) {
                self.finish(id, shard, context);
            }
        } else {
            // A group goes on where it is, and will want what lies ahead of it: that has been read now.
            let ahead = self.reads.get(id).filter(|request| request.is_ahead());
            let ahead = ahead.map(|request| (request.stream, request.next));
            for frame in frames {
                self.take_in(frame, brought, ahead, shard, context)?;
            }
        }
        // A message may have gone meanwhile, and those that come after it may be here.
        if self.reads.get(id).is_some_and(Request::is_fetch) && self.take_more(id, shard) {
            self.finish(id, shard, context);
        }
        if let Some(stream) = self.reads.get(id).map(|request| request.stream)
            && let Some(lost) = self.reads.change(id, |request| request.lost_in_hole(brought, context))
        {
            self.lose(stream, lost, KeyRun::Plain, shard, context);
        }
        if let Some(request) = self.reads.get(id) {
            let unwanted = shard.first_wanted(request.stream, request.next) != Some(request.next);
            match &request.purpose {
                Purpose::ReadAhead(look) if request.next > look.asked => self.finish(id, shard, context),
                // The group has settled it meanwhile, and it may be gone. The group asks again.
                Purpose::ReadAhead(_) if unwanted => self.finish(id, shard, context),
                // It was a guess.
                Purpose::Prefetch(_) => self.finish(id, shard, context),
                // Messages that no group wants any more cannot be shown.
                Purpose::Fetch(..) | Purpose::Move(..) if unwanted && brought.is_nothing() => {
                    self.finish(id, shard, context);
                }
                // It may have lapsed while it waited, and its messages may be settled and trimmed by now.
                Purpose::Deliver(pending) if !pending.may_leave(shard, unwanted) => self.forget(id),
                _ => {
                    let (stream, seq) = (request.stream, request.next);
                    let nowhere = request.is_nowhere(brought, context);
                    let shows = matches!(request.purpose, Purpose::Fetch(..) | Purpose::Move(..));
                    if nowhere && unwanted && shows {
                        self.finish(id, shard, context);
                    } else if nowhere {
                        return Err(RecoveryError::MessageMissing { stream, seq });
                    } else {
                        self.reads.change(id, |request| request.search_after(brought));
                        self.reads.queue_last(id);
                    }
                }
            }
        }
        self.send_in_line(shard, context);
        self.reads.start_reads(context);
        Ok(())
    }

    /// Ends requests for messages that have gone because every group was done with them: a fetch that came too
    /// late, a message that was purged while it was on its way.
    pub(super) fn give_up(&mut self, shard: &mut Shard, context: &mut Context<'_>) {
        for id in self.reads.take_nowhere() {
            let Some(request) = self.reads.get(id) else { continue };
            let (stream, seq) = (request.stream, request.next);
            let unwanted = shard.first_wanted(stream, seq) != Some(seq);
            assert!(unwanted, "a message that is wanted is in the index: {seq} of {stream:?}");
            let delivers = matches!(request.purpose, Purpose::Deliver(_));
            if delivers {
                self.forget(id);
            } else if request.is_fetch()
                && !self.take_more(id, shard)
                && self.reads.get(id).is_some_and(|request| request.next > seq)
            {
                self.reads.queue_last(id);
            } else {
                self.finish(id, shard, context);
            }
        }
        self.send_in_line(shard, context);
        self.reads.start_reads(context);
    }

    /// Messages of this read cannot be read: gives up the requests that need them.
    pub(super) fn unreadable(&mut self, id: u64, shard: &mut Shard, context: &mut Context<'_>) {
        self.reads.ended(id);
        let Some(request) = self.reads.get(id) else { return self.reads.start_reads(context) };
        let (stream, rest) = (request.stream, SeqRange::new(request.next, request.last));
        match &request.purpose {
            Purpose::Deliver(_) => {
                self.lose_for(id, stream, rest, KeyRun::Plain, shard, context);
                // Part of it was in memory.
                if self.reads.get(id).is_some() {
                    self.reads.queue_last(id);
                }
            }
            Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => self.finish(id, shard, context),
            // The keys may be readable where the content is not.
            Purpose::ReadAhead(look) if look.keys.is_some() && request.contents => {
                self.reads.change(id, |request| {
                    request.contents = false;
                    request.search_again();
                });
                self.reads.start_read(id, context);
            }
            // The order of the keys is unknown, and must not be guessed: the group stays where it is.
            Purpose::ReadAhead(look) if look.keys.is_some() => {}
            // It is found damaged once more when it is handed out, and parked in the end.
            Purpose::ReadAhead(_) => {
                self.reads.change(id, |request| request.next = request.last.next());
                self.finish(id, shard, context);
            }
        }
        self.reads.start_reads(context);
    }

    /// These messages cannot be read: the requests that lack one of them go on without them. Keys that are not known
    /// are named to a group that asked for keys. An ordered group never delivers these messages.
    fn lose(
        &mut self,
        stream: StreamId,
        lost: SeqRange,
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        for id in self.reads.lacking(stream, lost) {
            self.lose_for(id, stream, lost, keys, shard, context);
        }
    }

    fn lose_for(
        &mut self,
        id: u64,
        stream: StreamId,
        lost: SeqRange,
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let Some(request) = self.reads.get(id) else { return };
        let first = request.next;
        let mut last = lost.last.min(request.last);
        // Some of them may be in memory, with their keys, and need not be read.
        if let Some(held) = self.window.first_from(stream, first).filter(|held| *held <= last) {
            if held == first {
                return self.go_on_behind(id, stream, (first, lost), keys, shard, context);
            }
            last = Seq(held.0 - 1);
        }
        let here = SeqRange::new(first, last);
        match &request.purpose {
            Purpose::Deliver(_) => {
                let Some(Request { purpose: Purpose::Deliver(pending), .. }) = self.remove(id) else {
                    return;
                };
                return self.deliver_without(stream, pending, here, shard, context);
            }
            Purpose::Move(..) | Purpose::Prefetch(_) => return self.finish(id, shard, context),
            Purpose::ReadAhead(_) | Purpose::Fetch(..) => {}
        }
        let whole = self.reads.change(id, |request| {
            if let Purpose::ReadAhead(Lookahead { keys: Some(found), unreadable, .. }) = &mut request.purpose
            {
                if matches!(keys, KeyRun::Plain) {
                    unreadable.push(here);
                }
                let skipped = (first.0 - lost.first.0) as usize;
                let key = |n: usize| match keys {
                    KeyRun::Plain => KeyHash(0),
                    KeyRun::Each(keys) | KeyRun::Partly { keys, .. } => {
                        keys.get(skipped + n).copied().unwrap_or(KeyHash(0))
                    }
                };
                found.extend((0..here.count() as usize).map(key));
            }
            request.next = here.last.next();
            request.is_complete()
        });
        if whole {
            self.finish(id, shard, context);
        } else {
            self.go_on_behind(id, stream, (first, lost), keys, shard, context);
        }
    }

    /// Takes messages from `from` on that are in memory, and loses those behind them that cannot be read.
    fn go_on_behind(
        &mut self,
        id: u64,
        stream: StreamId,
        (from, lost): (Seq, SeqRange),
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        if self.take_more(id, shard) {
            self.finish(id, shard, context);
        } else if self.reads.get(id).is_some_and(|request| (from.next()..=lost.last).contains(&request.next))
        {
            self.lose_for(id, stream, lost, keys, shard, context);
        }
    }

    /// Parks those messages of a delivery that cannot be read, and delivers the others.
    fn deliver_without(
        &mut self,
        stream: StreamId,
        pending: PendingDelivery,
        lost: SeqRange,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let Deliver { group, consumer, .. } = pending.deliver;
        let part = pending.deliver;
        let (before, leases, after) = pending.without(lost);
        self.damaged += shard.park_damaged(shard.latest(), group, leases);
        if let Some(after) = &after {
            self.deliveries.begin(&after.deliver);
        }
        match before {
            Some(before) => self.send_read(before, shard, context),
            None => self.deliveries.ended(group, consumer),
        }
        let Some(mut after) = after else { return self.lines.close(&part) };
        let (next, last) = (after.collect(&self.window, shard), after.deliver.seqs.last);
        if next > last {
            self.send_read(after, shard, context);
            self.lines.close(&part);
        } else {
            let lacking = SeqRange::new(next, last);
            self.reads.request(Request::new(stream, lacking, true, Purpose::Deliver(after)), context);
        }
    }

    /// Tells a group that only asks for keys those that a frame has.
    fn take_keys(&mut self, id: u64, frame: &StoredFrame) -> Result<(), RecoveryError> {
        let position = frame.position;
        self.reads.change(id, |request| {
            for entry in entries(&frame.entries) {
                match entry.map_err(|error| RecoveryError::Entry { position, error })? {
                    Entry::Published { stream, first, messages, .. } if stream == request.stream => {
                        for (n, meta) in messages.iter().enumerate() {
                            request.take_key(first.plus(n as u64), &meta);
                        }
                    }
                    Entry::Copied { stream, messages } if stream == request.stream => {
                        for message in messages {
                            request.take_key(message.seq, &message.meta);
                        }
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Puts those messages of a frame that requests lack into the window, and gives them to the requests.
    /// Messages of the stream in `ahead`, from that place on, are kept in any case.
    fn take_in(
        &mut self,
        frame: &StoredFrame,
        brought: Brought<'_>,
        ahead: Option<(StreamId, Seq)>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) -> Result<(), RecoveryError> {
        let position = frame.position;
        let mut offset = 0;
        let missing = brought.missing_in(frame);
        let is_missing = |from: usize, to: usize| missing.clone().any(|gap| gap.start < to && from < gap.end);
        for entry in entries(&frame.entries) {
            let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
            match entry {
                Entry::Published { stream, first, ordinal, at, messages, .. } => {
                    let range = SeqRange::starting(first, messages.count());
                    let begin = offset;
                    let contents = contents(frame, &mut offset, messages.bytes())?;
                    let is_ahead = ahead.is_some_and(|(of, next)| of == stream && next <= range.last);
                    let is_wanted = is_ahead || self.reads.is_lacking(stream, range);
                    if is_wanted && is_missing(begin, offset) {
                        let metas: Vec<MessageMeta> = messages.iter().collect();
                        let first = Place { seq: first, ordinal };
                        let batch = ReadBatch { stream, first, at, contents: &contents, begin };
                        self.take_in_parts(&batch, &metas, &is_missing, shard, context);
                    } else if is_wanted {
                        let contents = alone(contents, frame);
                        let first = Place { seq: first, ordinal };
                        self.window.insert_read(stream, first, at, &messages, contents);
                        self.give(stream, range, shard, context);
                    }
                }
                Entry::Copied { stream, messages } => {
                    for run in copied_runs(&messages) {
                        let metas = run.iter().map(|message| message.meta);
                        let bytes = metas.clone().map(|meta| u64::from(meta.size)).sum();
                        let begin = offset;
                        let contents = contents(frame, &mut offset, bytes)?;
                        let range = SeqRange::starting(run[0].seq, run.len() as u64);
                        let (first, at) = (Place { seq: run[0].seq, ordinal: run[0].ordinal }, run[0].at);
                        let is_ahead = ahead.is_some_and(|(of, next)| of == stream && next <= range.last);
                        let is_wanted = is_ahead || self.reads.is_lacking(stream, range);
                        if is_wanted && is_missing(begin, offset) {
                            let metas: Vec<MessageMeta> = metas.collect();
                            let batch = ReadBatch { stream, first, at, contents: &contents, begin };
                            self.take_in_parts(&batch, &metas, &is_missing, shard, context);
                        } else if is_wanted {
                            let contents = alone(contents, frame);
                            self.window.insert(stream, first, at, metas, contents);
                            self.copies_read += range.count();
                            self.give(stream, range, shard, context);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts those messages of a batch into the window that can be read, and loses the others.
    fn take_in_parts(
        &mut self,
        batch: &ReadBatch<'_>,
        metas: &[MessageMeta],
        is_missing: &impl Fn(usize, usize) -> bool,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let (mut next, mut from) = (batch.first.seq, 0);
        let mut ends = Vec::with_capacity(metas.len());
        for meta in metas {
            let start = ends.last().copied().unwrap_or(0);
            ends.push(start + meta.size as usize);
        }
        let lost: Vec<bool> = (0..metas.len())
            .map(|n| {
                let start = if n == 0 { 0 } else { ends[n - 1] };
                is_missing(batch.begin + start, batch.begin + ends[n])
            })
            .collect();
        for run in lost.chunk_by(|one, other| one == other) {
            let metas = &metas[from..from + run.len()];
            let range = SeqRange::starting(next, run.len() as u64);
            let start = if from == 0 { 0 } else { ends[from - 1] };
            from += run.len();
            next = range.last.next();
            if run[0] {
                let keys: Vec<KeyHash> = metas.iter().map(|meta| meta.key.unwrap_or(KeyHash(0))).collect();
                self.lose(batch.stream, range, KeyRun::Each(&keys), shard, context);
            } else {
                let contents = Bytes::copy_from_slice(&batch.contents[start..ends[from - 1]]);
                let ordinal = batch.first.ordinal.plus(range.first.0 - batch.first.seq.0);
                let first = Place { seq: range.first, ordinal };
                self.window.insert(batch.stream, first, batch.at, metas.iter().copied(), contents);
                self.give(batch.stream, range, shard, context);
            }
        }
    }

    /// Requests that lack one of these messages take them from the window: at once, since the window may be
    /// smaller than the read.
    fn give(&mut self, stream: StreamId, range: SeqRange, shard: &mut Shard, context: &mut Context<'_>) {
        for id in self.reads.lacking(stream, range) {
            if self.take_more(id, shard) {
                self.finish(id, shard, context);
            } else {
                self.send_piece(id, shard, context);
            }
        }
    }

    /// The part of a delivery that has its contents leaves, if it is large.
    fn send_piece(&mut self, id: u64, shard: &Shard, context: &mut Context<'_>) {
        let piece = self.reads.change(id, |request| match &mut request.purpose {
            Purpose::Deliver(pending) => pending.take_piece(),
            _ => None,
        });
        if let Some(piece) = piece {
            self.deliveries.begin(&piece.deliver);
            self.send_read(piece, shard, context);
        }
    }

    /// A delivery that had to be read, or a part of it, leaves or stands in line.
    fn send_read(&mut self, pending: PendingDelivery, shard: &Shard, context: &mut Context<'_>) {
        let may_leave = if pending.deliver.in_order { self.lines.ready(pending) } else { Some(pending) };
        if let Some(pending) = may_leave {
            self.deliveries.send_late(pending, shard, context);
        }
    }

    /// Deliveries that stood in line leave, as far as the ones before them have their contents.
    fn send_in_line(&mut self, shard: &Shard, context: &mut Context<'_>) {
        while let Some(pending) = self.lines.next() {
            self.deliveries.send_late(pending, shard, context);
        }
    }

    /// A request takes the messages that the window has by now. True when none is missing any more.
    fn take_more(&mut self, id: u64, shard: &Shard) -> bool {
        self.reads.change(id, |request| {
            request.take_from(&self.window, shard);
            request.is_complete()
        })
    }

    /// A request has what it needs, or as much as it takes.
    fn finish(&mut self, id: u64, shard: &mut Shard, context: &mut Context<'_>) {
        let Some(request) = self.remove(id) else { return };
        match request.purpose {
            Purpose::ReadAhead(look) if request.next > look.asked => {
                let range = SeqRange::new(look.asked, Seq(request.next.0 - 1));
                let keys = match &look.keys {
                    Some(keys) if !look.unreadable.is_empty() => {
                        KeyRun::Partly { keys, unreadable: &look.unreadable }
                    }
                    keys => key_run(keys.as_ref()),
                };
                shard.read_ahead(look.group, range, keys);
            }
            Purpose::ReadAhead(look) => shard.read_nothing(look.group),
            Purpose::Prefetch(_) => {}
            Purpose::Fetch(..) | Purpose::Move(..) => self.complete(request, context),
            Purpose::Deliver(pending) => {
                let part = pending.deliver;
                self.send_read(pending, shard, context);
                self.lines.close(&part);
            }
        }
    }

    /// Drops a request. A delivery that it was for never leaves.
    fn forget(&mut self, id: u64) {
        if let Some(Request { purpose: Purpose::Deliver(pending), .. }) = self.remove(id) {
            self.lines.close(&pending.deliver);
            self.deliveries.ended(pending.deliver.group, pending.deliver.consumer);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Request> {
        let request = self.reads.remove(id)?;
        if matches!(request.purpose, Purpose::Prefetch(_)) {
            self.prefetched.remove(&request.stream);
        }
        Some(request)
    }

    /// Deliveries whose leases are durable now may leave.
    pub(super) fn durable(&mut self, number: u64, shard: &Shard, outbox: &mut Outbox) {
        self.deliveries.durable(number, shard, outbox);
    }

    /// Messages that are leased and have not left, because their contents or their entry is not here yet.
    pub(super) fn undelivered(&self, group: GroupId) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let reading = self.reads.requests().filter_map(|request| match &request.purpose {
            Purpose::Deliver(pending) => Some(pending),
            _ => None,
        });
        let all = self.deliveries.held().chain(reading).chain(self.lines.waiting());
        all.filter(move |pending| pending.deliver.group == group).flat_map(PendingDelivery::leases)
    }

    /// Deliveries to a consumer that has left are not sent.
    pub(super) fn drop_consumer(&mut self, group: GroupId, consumer: ConsumerId) {
        self.deliveries.drop_held(group, Some(consumer));
        self.lines.drop(group, Some(consumer));
        self.drop_requests(|request| match &request.purpose {
            Purpose::Deliver(pending) => is_for(&pending.deliver, group, Some(consumer)),
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => false,
        });
    }

    /// Nothing is read or delivered for the group any more.
    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.drop_requests(|request| match &request.purpose {
            Purpose::Deliver(pending) => is_for(&pending.deliver, group, None),
            Purpose::ReadAhead(look) => look.group == group,
            Purpose::Prefetch(of) => *of == group,
            Purpose::Move(moved, _) => moved.group == group,
            Purpose::Fetch(..) => false,
        });
        self.deliveries.drop_held(group, None);
        self.lines.drop(group, None);
    }

    /// The stream is gone. Fetches return the messages found of it so far.
    pub(super) fn drop_stream(&mut self, stream: StreamId) {
        self.drop_requests(|request| request.stream == stream && !request.is_fetch());
        self.window.forget_before(stream, Seq(u64::MAX));
    }

    fn drop_requests(&mut self, which: impl Fn(&Request) -> bool) {
        for id in self.reads.ids(which) {
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

/// Messages of one entry as they were read.
struct ReadBatch<'a> {
    stream: StreamId,
    first: Place,
    at: Timestamp,
    contents: &'a Bytes,
    /// Where the contents begin in the payload of their frame.
    begin: usize,
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
