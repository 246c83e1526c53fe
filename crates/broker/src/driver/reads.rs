//! The read scheduler: which frames to read from the engine, for requests that lack messages.
//!
//! A few reads are in flight at a time, and each serves every request that waits for a message it brings. A retry
//! storm behind a small window therefore costs the same few reads as one retry. The scheduler knows which
//! messages a request lacks and where the last read for it ended. It does not know what a request is for: that is
//! the `P` of [`Reads`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use forebay_core::types::{Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::{Damage, ReadBudget, StoredFrame};

use crate::driver::payloads::Context;
use crate::driver::{DriverFigures, Read};

/// Reads that are in flight at once.
const READS_MAX: usize = 4;

/// A read for this many messages or fewer need not bring much more than them.
const FEW: u64 = 16;
const FEW_BYTES: usize = 128 << 10;

/// Requests at the head of the queue that may wait for the read of another request, while others pass them.
const COVERED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Reads<P> {
    requests: BTreeMap<u64, ReadRequest<P>>,
    /// The next message that each request lacks, so that a read that brings it finds the request.
    lacking: BTreeSet<(StreamId, Seq, u64)>,
    /// Requests that a read is in flight for, and requests that wait for their turn.
    reading: BTreeMap<u64, Reading>,
    queued: VecDeque<u64>,
    /// Requests that are read for when no other one waits.
    later: VecDeque<u64>,
    next_id: u64,
    /// Requests whose message the index does not have.
    nowhere: Vec<u64>,
    /// Reads that were started.
    started: u64,
}

/// Messages of a stream that are lacking.
#[derive(Debug)]
pub(super) struct ReadRequest<P> {
    pub(super) stream: StreamId,
    /// The next message that is lacking, and the last that is wanted.
    pub(super) next: Seq,
    pub(super) last: Seq,
    /// Whether contents are to be read too.
    pub(super) contents: bool,
    pub(super) purpose: P,
    search: Search,
}

/// How far the reads for a request have come in search of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Search {
    /// The message, and the place where the index had it then.
    seq: Seq,
    place: Position,
    /// Where to read on.
    next: Position,
    /// The search has passed frames that cannot be read.
    holed: bool,
}

/// What a read brought: frames, and places that cannot be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brought<'a> {
    pub(super) frames: &'a [StoredFrame],
    pub(super) damage: &'a [Damage],
}

impl Brought<'_> {
    /// Whether the log ends where the read began.
    pub(super) fn is_nothing(&self) -> bool {
        self.frames.is_empty() && self.holes().next().is_none()
    }

    /// Stretches of the log whose frames cannot be read.
    fn holes(&self) -> impl Iterator<Item = &Damage> + '_ {
        self.damage.iter().filter(|place| place.payload.is_none())
    }

    /// Where the next read goes on.
    fn reached(&self) -> Option<Position> {
        let frames = self.frames.last().map(|frame| Position(frame.position.0 + 1));
        frames.max(self.holes().last().map(|hole| hole.until))
    }

    /// Whether a frame has the message as it was published.
    fn has(&self, stream: StreamId, seq: Seq) -> bool {
        let mut runs = self.frames.iter().flat_map(|frame| &frame.runs);
        runs.any(|run| {
            let seqs = SeqRange::starting(run.first, u64::from(run.count));
            run.stream == stream && !run.copied && seqs.contains(seq)
        })
    }

    /// The bytes of a frame's payload that cannot be read.
    pub(super) fn missing_in(&self, frame: &StoredFrame) -> impl Iterator<Item = Range<usize>> + Clone + '_ {
        let position = frame.position;
        self.damage
            .iter()
            .filter(move |place| place.from == position)
            .filter_map(|place| place.payload.clone())
    }
}

/// A read that is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Frames from the first to just before the second of these places come with it, as far as one can tell.
    from: Position,
    until: Position,
    /// Whether contents are read too.
    pub(super) contents: bool,
}

impl Reading {
    /// Whether a frame at this place, and its contents, may be expected to come with it.
    fn brings(&self, place: Position) -> bool {
        self.contents && (self.from..self.until).contains(&place)
    }
}

impl<P> ReadRequest<P> {
    pub(super) fn new(stream: StreamId, range: SeqRange, contents: bool, purpose: P) -> ReadRequest<P> {
        let (next, last) = (range.first, range.last);
        ReadRequest { stream, next, last, contents, purpose, search: Search::default() }
    }

    /// Whether nothing is lacking any more.
    pub(super) fn is_complete(&self) -> bool {
        self.next > self.last
    }

    /// Where to read for the next message that is lacking, which the index knows to be at `place` or after it: on
    /// from where the last read ended, unless that was for another place, or the message has moved since.
    fn reads_from(&self, place: Position, context: &Context<'_>) -> Position {
        let moved = context.index.moved(self.stream, self.next).is_some();
        if self.search.place == place && !moved { self.search.next.max(place) } else { place }
    }

    /// Whether a read that brought these frames has shown that the log does not have the message: it was looked
    /// for where the index still has it, and the frames end there.
    pub(super) fn is_nowhere(&self, brought: Brought<'_>, context: &Context<'_>) -> bool {
        let exact = context.index.moved(self.stream, self.next).is_some();
        self.is_searched(context) && (exact || brought.is_nothing())
    }

    /// Whether the last read was for the message that is lacking, and the index still has it there.
    fn is_searched(&self, context: &Context<'_>) -> bool {
        let (seq, place) = (self.search.seq, self.search.place);
        seq == self.next && context.index.find(self.stream, seq) == Some(place)
    }

    /// Messages, from the next that is lacking on, that a read has shown to be in frames that cannot be read: the
    /// search has passed frames that are broken, and the log goes on with later messages of the stream, or beyond the
    /// place up to
    /// which the index has the message.
    pub(super) fn lost_in_hole(&mut self, brought: Brought<'_>, context: &Context<'_>) -> Option<SeqRange> {
        self.search.holed |= brought.holes().next().is_some();
        if !self.search.holed || self.is_complete() || !self.is_searched(context) {
            return None;
        }
        let (stream, first) = (self.stream, self.next);
        if let Some((copies, position)) = context.index.moved(stream, first) {
            let is_in = |hole: &Damage| (hole.from..hole.until).contains(&position);
            return brought.holes().any(is_in).then(|| SeqRange::new(first, copies.last));
        }
        let (bound, last) = context.index.bound(stream, first)?;
        let runs = brought.frames.iter().flat_map(|frame| &frame.runs);
        let later = runs.filter(|run| run.stream == stream && !run.copied && run.first > first);
        if let Some(run) = later.min_by_key(|run| run.first) {
            return Some(SeqRange::new(first, last.min(Seq(run.first.0 - 1))));
        }
        let is_past = brought.reached().is_none_or(|reached| reached >= bound);
        is_past.then(|| SeqRange::new(first, last))
    }

    /// Forgets how far the search has come, so that it begins again.
    pub(super) fn search_again(&mut self) {
        self.search = Search::default();
    }

    /// The next read begins after the messages of this one. If the request lacks another message now than before it,
    /// that one may lie in a place that was passed, and is looked for by itself: in a hole, or in a frame whose new
    /// messages come before the copies that were lacking then.
    pub(super) fn search_after(&mut self, brought: Brought<'_>) {
        let passed = || brought.holes().next().is_some() || brought.has(self.stream, self.next);
        if self.search.seq != self.next && passed() {
            return self.search_again();
        }
        self.search.next = brought.reached().unwrap_or(self.search.next);
    }
}

impl<P> Reads<P> {
    pub(super) fn new() -> Reads<P> {
        Reads {
            requests: BTreeMap::new(),
            lacking: BTreeSet::new(),
            reading: BTreeMap::new(),
            queued: VecDeque::new(),
            later: VecDeque::new(),
            next_id: 1,
            nowhere: Vec::new(),
            started: 0,
        }
    }

    /// A number that no request and no other caller of this has.
    pub(super) fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(super) fn request(&mut self, request: ReadRequest<P>, context: &mut Context<'_>) {
        let id = self.enter(request);
        self.queued.push_back(id);
        self.start_reads(context);
    }

    /// As `request`, but every other request goes first.
    pub(super) fn request_later(&mut self, request: ReadRequest<P>, context: &mut Context<'_>) {
        let id = self.enter(request);
        self.later.push_back(id);
        self.start_reads(context);
    }

    fn enter(&mut self, request: ReadRequest<P>) -> u64 {
        let id = self.next_id();
        self.lacking.insert((request.stream, request.next, id));
        self.requests.insert(id, request);
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&ReadRequest<P>> {
        self.requests.get(&id)
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &ReadRequest<P>> + '_ {
        self.requests.values()
    }

    pub(super) fn ids(&self, which: impl Fn(&ReadRequest<P>) -> bool) -> Vec<u64> {
        self.requests.iter().filter(|(_, request)| which(request)).map(|(&id, _)| id).collect()
    }

    /// Changes a request, and what it lacks with it.
    pub(super) fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut ReadRequest<P>) -> T) -> T {
        let request = self.requests.get_mut(&id).expect("a request that is changed is there");
        let before = request.next;
        let changed = change(request);
        let (stream, next) = (request.stream, request.next);
        if next != before {
            self.lacking.remove(&(stream, before, id));
            self.lacking.insert((stream, next, id));
        }
        changed
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<ReadRequest<P>> {
        let request = self.requests.remove(&id)?;
        self.lacking.remove(&(request.stream, request.next, id));
        Some(request)
    }

    /// Whether a request lacks a message of this range next.
    pub(super) fn is_lacking(&self, stream: StreamId, range: SeqRange) -> bool {
        let place = self.lacking.range((stream, range.first, 0)..).next();
        place.is_some_and(|&(of, seq, _)| of == stream && seq <= range.last)
    }

    /// The requests that lack a message of this range next.
    pub(super) fn lacking(&self, stream: StreamId, range: SeqRange) -> Vec<u64> {
        let here = (stream, range.first, 0)..=(stream, range.last, u64::MAX);
        self.lacking.range(here).map(|&(.., id)| id).collect()
    }

    /// The read for a request has ended.
    pub(super) fn ended(&mut self, id: u64) -> Option<Reading> {
        self.reading.remove(&id)
    }

    /// The request waits for its next read behind all others, so that a large one does not keep them waiting.
    pub(super) fn queue_last(&mut self, id: u64) {
        self.queued.push_back(id);
    }

    /// Requests whose message the index does not have.
    pub(super) fn take_nowhere(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.nowhere)
    }

    pub(super) fn start_reads(&mut self, context: &mut Context<'_>) {
        let mut passed = 0;
        while self.reading.len() < READS_MAX
            && passed < COVERED_MAX
            && let Some(&id) = self.queued.get(passed)
        {
            // Other reads may have brought what it lacked, or it may have been dropped.
            let Some(request) = self.requests.get(&id) else {
                self.queued.remove(passed);
                continue;
            };
            if self.is_covered(request, context) {
                passed += 1;
            } else {
                self.queued.remove(passed);
                self.start_read(id, context);
            }
        }
        while self.reading.len() < READS_MAX
            && passed == self.queued.len()
            && let Some(&id) = self.later.front()
        {
            let covered = self.requests.get(&id).map(|request| self.is_covered(request, context));
            if covered == Some(true) {
                break;
            }
            self.later.pop_front();
            if covered.is_some() {
                self.start_read(id, context);
            }
        }
    }

    /// Whether a read that is in flight may be expected to bring what a request lacks next.
    fn is_covered(&self, request: &ReadRequest<P>, context: &Context<'_>) -> bool {
        let place = context.index.find(request.stream, request.next);
        let from = place.map(|place| request.reads_from(place, context));
        from.is_some_and(|from| self.reading.values().any(|reading| reading.brings(from)))
    }

    /// Reads for the next message that a request lacks.
    pub(super) fn start_read(&mut self, id: u64, context: &mut Context<'_>) {
        let request = self.requests.get_mut(&id).expect("a read is for a request");
        let Some(place) = context.index.find(request.stream, request.next) else {
            self.nowhere.push(id);
            return;
        };
        let from = request.reads_from(place, context);
        let goes_on = (request.search.seq, request.search.place) == (request.next, place);
        let holed = request.search.holed && goes_on;
        request.search = Search { seq: request.next, place, next: from, holed };
        let few = request.last.0 - request.next.0 < FEW;
        let bytes_max = if few { FEW_BYTES.min(context.read_bytes_max) } else { context.read_bytes_max };
        let contents = request.contents;
        let budget = ReadBudget { bytes_max, frames_max: usize::MAX, payloads: contents };
        context.outbox.reads.push(Read { id, from, budget });
        self.started += 1;
        let until = Position(from.0.saturating_add(bytes_max as u64));
        self.reading.insert(id, Reading { from, until, contents });
    }

    /// The figures, with those of reads.
    pub(super) fn add_figures(&self, figures: DriverFigures) -> DriverFigures {
        DriverFigures {
            reads: self.started,
            reads_in_flight: self.reading.len() as u64,
            reads_waiting: (self.queued.len() + self.later.len()) as u64,
            ..figures
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::types::Epoch;
    use forebay_storage::engine::Run;

    use super::*;

    const STREAM: StreamId = StreamId(1);
    const PLACE: Position = Position(100);

    /// A request that looked for message 1 in a frame with messages 9 to 11 and copies of 1 to 6.
    fn after_a_read(next: u64) -> Search {
        let run =
            |first: u64, count: u32, copied: bool| Run { stream: STREAM, first: Seq(first), count, copied };
        let frame = StoredFrame {
            position: PLACE,
            epoch: Epoch(1),
            entries: bytes::Bytes::new(),
            payload: bytes::Bytes::new(),
            runs: vec![run(9, 3, false), run(1, 6, true)],
        };
        let mut request = ReadRequest::new(STREAM, SeqRange::new(Seq(1), Seq(20)), true, ());
        request.search = Search { seq: Seq(1), place: PLACE, next: PLACE, holed: false };
        request.next = Seq(next);
        request.search_after(Brought { frames: &[frame], damage: &[] });
        request.search
    }

    #[test]
    fn a_message_that_was_passed_before_it_was_lacking_is_looked_for_again() {
        assert_eq!(after_a_read(9), Search::default());
        assert_eq!(after_a_read(11), Search::default());
    }

    #[test]
    fn a_message_that_was_not_passed_is_looked_for_behind_the_read() {
        assert_eq!(after_a_read(12).next, Position(101));
        // It was looked for, and only copies of it are there.
        assert_eq!(after_a_read(1).next, Position(101));
    }
}
