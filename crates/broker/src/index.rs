//! Where each message is.
//!
//! The index is sparse: for each stream it knows, every so often (64 KiB of a journal), which message comes
//! first from there on. Whoever wants a message reads frames from the place before it. Ten million messages
//! of a hundred bytes are some twenty thousand places.

use std::collections::{BTreeMap, VecDeque};

use forebay_core::types::{Position, Seq, StreamId};
use forebay_storage::engine::{IndexRun, Run};

#[derive(Debug)]
pub struct Index {
    /// Two places of one stream are at least this far apart in the log.
    stride: u64,
    streams: BTreeMap<StreamId, VecDeque<Place>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    first: Seq,
    position: Position,
}

impl Index {
    pub fn new(stride: u64) -> Index {
        Index { stride, streams: BTreeMap::new() }
    }

    /// Takes in what the engine knows of older frames.
    pub fn load(&mut self, runs: &[IndexRun]) {
        for run in runs {
            self.add(run.stream, run.first, run.position);
        }
    }

    /// Takes in a frame that has become durable at this position.
    pub fn frame(&mut self, position: Position, runs: &[Run]) {
        for run in runs {
            self.add(run.stream, run.first, position);
        }
    }

    fn add(&mut self, stream: StreamId, first: Seq, position: Position) {
        let places = self.streams.entry(stream).or_default();
        if places.back().is_none_or(|last| position.0 - last.position.0 >= self.stride) {
            places.push_back(Place { first, position });
        }
    }

    /// Where to begin reading for this message: no later than the frame it is in.
    pub fn find(&self, stream: StreamId, seq: Seq) -> Option<Position> {
        let places = self.streams.get(&stream)?;
        let after = places.partition_point(|place| place.first <= seq);
        Some(places[after.checked_sub(1)?].position)
    }

    /// Forgets what lies before `start`. A place that was trimmed away but covers messages after it is
    /// moved up rather than dropped.
    pub fn trim(&mut self, start: Position) {
        for places in self.streams.values_mut() {
            while places.get(1).is_some_and(|next| next.position <= start) {
                places.pop_front();
            }
            if let Some(first) = places.front_mut() {
                first.position = first.position.max(start);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.streams.values().map(VecDeque::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: u64 = 64 << 10;

    fn run(first: u64, count: u32) -> Run {
        Run { stream: StreamId(1), first: Seq(first), count, copied: false }
    }

    #[test]
    fn a_message_is_looked_for_from_the_place_before_it() {
        let mut index = Index::new(STRIDE);
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
        let mut index = Index::new(STRIDE);
        for n in 0..100u64 {
            index.frame(Position(n * 10_000), &[run(n * 64 + 1, 64)]);
        }
        index.trim(Position(500_000));
        assert_eq!(index.find(StreamId(1), Seq(50 * 64 + 1)), Some(Position(500_000)));
        assert!(index.len() < 12);
    }
}
