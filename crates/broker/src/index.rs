//! Where each message is.
//!
//! The index is sparse: for each stream it knows, every so often (64 KiB of a journal), which message comes
//! first from there on. To find a message, frames are read from the place before it. Ten million messages
//! of a hundred bytes are some twenty thousand places.
//!
//! Messages that were copied forward are exceptions: the index knows of each run of them in which frame the
//! newest copy is. A copy counts from the moment its frame is durable.
//!
//! `index/whole.rs` has the same for positions over all streams.

mod whole;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_core::types::{Ordinal, Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::{IndexRun, Run};

use crate::reader::{Direction, Spot, WholeSpot};
use whole::{WHOLE, Whole};

pub(crate) use whole::Ordinals;
pub use whole::{Copies, CopyFrame};

#[derive(Debug)]
pub struct Index {
    /// Two places of one stream are at least this far apart in the log,
    stride: u64,
    /// unless they lie in different units of this size. Space returns in whole units, and a place before a
    /// unit would hold on to the unit before it.
    unit: u64,
    streams: BTreeMap<StreamId, Of>,
    /// Every run of copies by where it is.
    moved: BTreeSet<(Position, StreamId, Seq)>,
    moved_messages: u64,
    whole: Whole,
}

/// The places of one stream's messages.
#[derive(Debug, Default)]
struct Of {
    places: VecDeque<Place>,
    /// Runs of copies by their first message. They do not overlap.
    moved: BTreeMap<Seq, Moved>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    first: Seq,
    position: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moved {
    last: Seq,
    position: Position,
}

impl Index {
    pub fn new(stride: u64, unit: u64) -> Index {
        Index {
            stride,
            unit: unit.max(1),
            streams: BTreeMap::new(),
            moved: BTreeSet::new(),
            moved_messages: 0,
            whole: Whole::default(),
        }
    }

    /// Takes in what the engine knows of older frames.
    pub fn load(&mut self, runs: &[IndexRun]) {
        for run in runs {
            self.add(run.stream, run.first, run.count, run.position, run.copied);
        }
    }

    /// Takes in a frame that has become durable at this position.
    pub fn frame(&mut self, position: Position, runs: &[Run]) {
        for run in runs {
            self.add(run.stream, run.first, run.count.into(), position, run.copied);
        }
    }

    fn add(&mut self, stream: StreamId, first: Seq, count: u64, position: Position, copied: bool) {
        let (stride, unit) = (self.stride, self.unit);
        let is_far = |last: Position| position.0 - last.0 >= stride || position.0 / unit != last.0 / unit;
        if stream == WHOLE {
            let ordinal = Ordinal(first.0);
            return match copied {
                true => self.whole.copied(ordinal, position),
                false => self.whole.published(ordinal, count, position, is_far),
            };
        }
        if copied {
            if count > 0 {
                self.whole.has_copies(position);
                self.add_moved(stream, SeqRange::starting(first, count), position);
            }
            return;
        }
        let places = &mut self.streams.entry(stream).or_default().places;
        if places.back().is_none_or(|last| is_far(last.position)) {
            places.push_back(Place { first, position });
        }
    }

    /// Of two copies the one further on in the log counts, since the other may be trimmed away first.
    fn add_moved(&mut self, stream: StreamId, range: SeqRange, position: Position) {
        for (piece, at) in self.moved_in(stream, range) {
            if at > position {
                // Never so when frames come in the order of the log.
                return;
            }
            self.remove_moved(stream, piece.first);
            let left = (piece.first < range.first).then(|| (piece.first, Seq(range.first.0 - 1)));
            let right = (piece.last > range.last).then(|| (range.last.next(), piece.last));
            for (first, last) in left.into_iter().chain(right) {
                self.put_moved(stream, SeqRange::new(first, last), at);
            }
        }
        self.put_moved(stream, range, position);
    }

    fn put_moved(&mut self, stream: StreamId, range: SeqRange, position: Position) {
        let of = self.streams.entry(stream).or_default();
        of.moved.insert(range.first, Moved { last: range.last, position });
        self.moved.insert((position, stream, range.first));
        self.moved_messages += range.count();
    }

    fn remove_moved(&mut self, stream: StreamId, first: Seq) {
        let of = self.streams.get_mut(&stream).expect("moved messages belong to a known stream");
        let moved = of.moved.remove(&first).expect("the moved range is in the index");
        self.moved.remove(&(moved.position, stream, first));
        self.moved_messages -= SeqRange::new(first, moved.last).count();
    }

    /// The runs of copies that have something in common with the range, whole.
    fn moved_in(&self, stream: StreamId, range: SeqRange) -> Vec<(SeqRange, Position)> {
        let Some(of) = self.streams.get(&stream) else { return Vec::new() };
        let before = of.moved.range(..range.first).next_back().filter(|(_, moved)| moved.last >= range.first);
        let within = of.moved.range(range.first..=range.last);
        let runs = before.into_iter().chain(within);
        runs.map(|(&first, moved)| (SeqRange::new(first, moved.last), moved.position)).collect()
    }

    /// The run of copies that the message is in, and the frame that holds them.
    pub fn moved(&self, stream: StreamId, seq: Seq) -> Option<(SeqRange, Position)> {
        let (&first, moved) = self.streams.get(&stream)?.moved.range(..=seq).next_back()?;
        (seq <= moved.last).then(|| (SeqRange::new(first, moved.last), moved.position))
    }

    /// Where to begin reading for this message: no later than the frame it is in.
    pub fn find(&self, stream: StreamId, seq: Seq) -> Option<Position> {
        if let Some((_, position)) = self.moved(stream, seq) {
            return Some(position);
        }
        let places = &self.streams.get(&stream)?.places;
        let after = places.partition_point(|place| place.first <= seq);
        Some(places[after.checked_sub(1)?].position)
    }

    /// A message that was not copied lies before this position. Comes with the last message of which that is known,
    /// not counting copies.
    pub fn bound(&self, stream: StreamId, seq: Seq) -> Option<(Position, Seq)> {
        let of = self.streams.get(&stream)?;
        let after = of.places.partition_point(|place| place.first <= seq);
        let place = of.places.get(after.checked_sub(1)?)?;
        let unit_end = Position((place.position.0 / self.unit + 1).saturating_mul(self.unit));
        let (position, last) = match of.places.get(after) {
            Some(next) => (next.position, Seq(next.first.0 - 1)),
            // A stream has a place in every unit in which it has messages.
            None => (unit_end, Seq(u64::MAX - 1)),
        };
        let copied = of.moved.range(seq..).next().map(|(first, _)| Seq(first.0 - 1));
        Some((position, copied.map_or(last, |copied| copied.min(last))))
    }

    /// Where to read the first message of the range and those after it, as far as they lie in one part of the log: the
    /// messages before the next copies, or a run of copies.
    pub fn spot(&self, stream: StreamId, range: SeqRange) -> Option<Spot> {
        if let Some((run, from)) = self.moved(stream, range.first) {
            return copies(run, from, range);
        }
        let from = self.find(stream, range.first)?;
        let (until, bound) = self.bound(stream, range.first)?;
        let copied = self.streams.get(&stream)?.moved.range(range.first..).next();
        let last = copied.map_or(range.last, |(first, _)| range.last.min(Seq(first.0 - 1)));
        let seqs = SeqRange::new(range.first, last);
        Some(Spot { seqs, from, until, bound, copied: false })
    }

    /// Where to read the last message of the range and those before it. Places that lie up to `span` before the last
    /// message count as one.
    pub fn spot_back(&self, stream: StreamId, range: SeqRange, span: u64) -> Option<Spot> {
        if let Some((run, from)) = self.moved(stream, range.last) {
            return copies(run, from, range);
        }
        let of = self.streams.get(&stream)?;
        // Copies that lie between are not in this part of the log.
        let copied = of.moved.range(..range.last).next_back().map(|(_, moved)| moved.last.next());
        let first = copied.map_or(range.first, |first| range.first.max(first));
        let after = of.places.partition_point(|place| place.first <= range.last);
        let mut at = after.checked_sub(1)?;
        let near = of.places[at].position.0.saturating_sub(span);
        while at > 0 && of.places[at].first > first && of.places[at - 1].position.0 >= near {
            at -= 1;
        }
        let seqs = SeqRange::new(first.max(of.places[at].first), range.last);
        let (until, bound) = self.bound(stream, seqs.first)?;
        Some(Spot { seqs, from: of.places[at].position, until, bound, copied: false })
    }

    /// The first message of the stream that may lie at this position or after it, copies aside.
    pub fn first_from(&self, stream: StreamId, position: Position) -> Option<Seq> {
        let places = &self.streams.get(&stream)?.places;
        let after = places.partition_point(|place| place.position <= position);
        places.get(after.saturating_sub(1)).map(|place| place.first)
    }

    /// The copies that lie first in the log.
    pub fn first_moved(&self) -> Option<(Position, StreamId, SeqRange)> {
        let &(position, stream, first) = self.moved.first()?;
        let last = self.streams[&stream].moved[&first].last;
        Some((position, stream, SeqRange::new(first, last)))
    }

    /// The copies that lie first in the log are not wanted any more.
    pub fn forget_first_moved(&mut self) {
        if let Some((_, stream, range)) = self.first_moved() {
            self.remove_moved(stream, range.first);
        }
    }

    /// How many messages the index knows copies of.
    pub fn moved_messages(&self) -> u64 {
        self.moved_messages
    }

    /// Forgets what lies before or at `through`. A place that was trimmed away but covers messages after it
    /// is moved up rather than dropped; a copy that was trimmed away is gone.
    pub fn trim(&mut self, through: Position) {
        self.whole.trim(through);
        while self.moved.first().is_some_and(|&(position, ..)| position <= through) {
            self.forget_first_moved();
        }
        for Of { places, .. } in self.streams.values_mut() {
            while places.get(1).is_some_and(|next| next.position <= through) {
                places.pop_front();
            }
            if let Some(first) = places.front_mut() {
                first.position = first.position.max(through);
            }
        }
    }

    /// The position in the log of the last durable message.
    pub fn last_ordinal(&self) -> Ordinal {
        self.whole.last()
    }

    /// Messages up to this position in the log are durable, although the frames of the last ones may be gone.
    pub fn opened(&mut self, last: Ordinal) {
        self.whole.opened(last);
    }

    /// Where to read the message with this position in the log; up to `before` bytes earlier than need be.
    pub fn whole_spot(&self, ordinal: Ordinal, before: u64) -> WholeSpot {
        self.whole.find(ordinal, before)
    }

    /// Frames that may have copies of messages with these positions in the log, the nearest first in the direction of
    /// reading.
    pub fn copies(&self, low: Ordinal, high: Ordinal, direction: Direction) -> Copies {
        self.whole.copies(low, high, direction)
    }

    /// How many places there are, copies included.
    pub fn len(&self) -> usize {
        self.streams.values().map(|of| of.places.len()).sum::<usize>() + self.moved.len() + self.whole.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The part of a run of copies that lies in the range.
fn copies(run: SeqRange, from: Position, range: SeqRange) -> Option<Spot> {
    let seqs = run.overlap(range)?;
    Some(Spot { seqs, from, until: Position(from.0 + 1), bound: seqs.last, copied: true })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const STRIDE: u64 = 64 << 10;
    const UNIT: u64 = 1 << 40;

    fn run(first: u64, count: u32) -> Run {
        Run { stream: StreamId(1), first: Seq(first), count, copied: false }
    }

    #[test]
    fn a_message_is_looked_for_from_the_place_before_it() {
        let mut index = Index::new(STRIDE, UNIT);
        for n in 0..100u64 {
            index.frame(Position(n * 10_000), &[run(n * 64 + 1, 64)]);
        }
        assert!(index.len() < 20, "places are sparse: {}", index.len());
        for seq in [1, 64, 65, 3_000, 6_400] {
            let found = index.find(StreamId(1), Seq(seq)).expect("the stream is known").0;
            let frame = (seq - 1) / 64 * 10_000;
            assert!(found <= frame && frame - found < STRIDE + 10_000, "{seq} is at {frame}, found {found}");
        }
        assert_eq!(index.find(StreamId(2), Seq(1)), None);
    }

    #[test]
    fn trimming_keeps_what_comes_after() {
        let mut index = Index::new(STRIDE, UNIT);
        for n in 0..100u64 {
            index.frame(Position(n * 10_000), &[run(n * 64 + 1, 64)]);
        }
        index.trim(Position(500_000));
        assert_eq!(index.find(StreamId(1), Seq(50 * 64 + 1)), Some(Position(500_000)));
        assert!(index.len() < 12);
    }

    #[test]
    fn every_unit_has_a_place_of_its_own() {
        let mut index = Index::new(STRIDE, 100_000);
        for n in 0..100u64 {
            index.frame(Position(n * 10_000), &[run(n * 64 + 1, 64)]);
        }
        for unit in 1..10 {
            assert_eq!(index.find(StreamId(1), Seq(unit * 640 + 1)), Some(Position(unit * 100_000)));
        }
    }

    /// What happens to an index: frames with messages, frames with copies, trims.
    #[derive(Debug, Clone)]
    enum Event {
        Published(u32),
        Copied(Vec<(u64, u32)>),
        /// Trims as far as the wanted messages allow. The given messages are not wanted any more.
        Trim(Vec<u64>),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (1u32..8).prop_map(Event::Published),
            3 => prop::collection::vec((1u64..120, 1u32..9), 1..4).prop_map(Event::Copied),
            1 => prop::collection::vec(1u64..160, 0..100).prop_map(Event::Trim),
        ]
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_plain_map(
            events in prop::collection::vec(event(), 1..60), stride in 1u64..60, unit in 1u64..200
        ) {
            let stream = StreamId(1);
            let mut index = Index::new(stride, unit);
            // Where each message is: in the frame it was published in, or in its newest copy.
            let mut published: BTreeMap<u64, u64> = BTreeMap::new();
            let mut copied: BTreeMap<u64, u64> = BTreeMap::new();
            let mut next = 1;
            let mut position = 10;
            let mut frames = Vec::new();
            let mut start = 0;
            for event in events {
                position += 10;
                let mut runs = Vec::new();
                match event {
                    Event::Published(count) => {
                        runs.push(run(next, count));
                        published.extend((next..next + u64::from(count)).map(|seq| (seq, position)));
                        next += u64::from(count);
                    }
                    Event::Copied(copies) => {
                        for (first, count) in copies {
                            let seqs: Vec<u64> =
                                (first..first + u64::from(count)).filter(|seq| published.contains_key(seq)).collect();
                            let whole = seqs.len() == count as usize;
                            if whole {
                                runs.push(Run { copied: true, ..run(first, count) });
                                copied.extend(seqs.iter().map(|&seq| (seq, position)));
                            }
                        }
                    }
                    Event::Trim(unwanted) => {
                        for seq in unwanted {
                            published.remove(&seq);
                            copied.remove(&seq);
                        }
                        let at = |seq: &u64| copied.get(seq).or(published.get(seq)).copied();
                        let pin = published.keys().filter_map(at).min();
                        // Places are sparse, so a wanted message pins its place rather than its frame.
                        let pin = pin.map_or(position, |_| {
                            published.keys().filter_map(|&seq| index.find(stream, Seq(seq))).min().map_or(0, |at| at.0)
                        });
                        start = pin.saturating_sub(1).max(start);
                        index.trim(Position(start));
                    }
                }
                index.frame(Position(position), &runs);
                frames.push((position, runs));
                // After a restart the engine names the runs of the remaining frames.
                let mut again = Index::new(stride, unit);
                let kept = frames.iter().filter(|(at, _)| *at > start);
                again.load(&kept.flat_map(|(at, runs)| runs.iter().map(|run| IndexRun {
                    stream: run.stream,
                    first: run.first,
                    count: run.count.into(),
                    position: Position(*at),
                    copied: run.copied,
                })).collect::<Vec<_>>());
                for (&seq, &main) in &published {
                    for index in [&index, &again] {
                        let found = index.find(stream, Seq(seq)).map(|at| at.0);
                        match copied.get(&seq) {
                            Some(&at) => prop_assert_eq!(found, Some(at), "{} is exactly there", seq),
                            None => {
                                let found = found.expect("a message is found");
                                let near = found <= main && main - found <= stride + 10;
                                prop_assert!(near, "{} is at {}, found {}", seq, main, found);
                                prop_assert!(found < start || found / unit == main / unit || found == start);
                            }
                        }
                    }
                }
            }
        }
    }
}
