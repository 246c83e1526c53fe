//! Attaching contents to deliveries: from the window, or else from the engine.
//!
//! [`Payloads`] knows what each read is for. The read scheduler ([`Reads`]) decides which frames to read and when;
//! what it brings goes into the window, and from there to every request that lacks it. `deliveries` holds what waits
//! for durability, `fetches` what callers want to see.

mod gone;
mod intake;
mod losses;
mod sending;

use std::collections::{BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use forebay_core::Admission;
use forebay_core::entry::MessageMeta;
use forebay_core::group::{Deliver, MoveOut, ReadAhead};
use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{ConsumerId, GroupId, KeyHash, Seq, SeqRange, StreamId};

use crate::batch::Batch;
use crate::driver::deliveries::{Deliveries, PendingDelivery};
use crate::driver::fetches::{Fetches, collect_kept};
use crate::driver::lines::Lines;
use crate::driver::reads::{ReadRequest, Reads};
use crate::driver::{DriverFigures, Outbox, Ticket};
use crate::index::Index;
use crate::window::{Found, Window};

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
