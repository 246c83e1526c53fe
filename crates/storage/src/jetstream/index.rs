//! The index of a log: where frames are, and which messages they publish.
//!
//! The owner writes an index record every few hundred frames. It names only frames that count, so whatever becomes of
//! the record itself, its contents are true. A new owner reads the index records, and then walks from the end of the
//! last one on.

use std::collections::{BTreeMap, HashMap};

use forebay_core::types::{Position, StreamId};

use crate::engine::{IndexRun, Run};
use crate::jetstream::record::{IndexBody, Place};

const FRAMES_MAX: usize = 512;
const BYTES_MAX: u64 = 32 << 20;
const RUNS_MAX: usize = 8_192;

/// The index of the frames behind the last index record.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    /// A place is kept for the first frame of each stretch of so many positions.
    unit: u64,
    from: Position,
    frames: usize,
    until: Option<Place>,
    places: Vec<Place>,
    last_unit: Option<u64>,
    runs: Vec<IndexRun>,
    /// The run of each stream to which its next messages may be joined.
    open: HashMap<StreamId, usize>,
}

impl IndexBuilder {
    pub(crate) fn new(unit: u64, from: Position) -> IndexBuilder {
        IndexBuilder {
            unit,
            from,
            frames: 0,
            until: None,
            places: Vec::new(),
            last_unit: None,
            runs: Vec::new(),
            open: HashMap::new(),
        }
    }

    /// Adds a frame; `until` is the place behind it. Returns whether its place is kept.
    pub(crate) fn add(&mut self, place: Place, runs: &[Run], until: Place) -> bool {
        let unit = place.position.0 / self.unit;
        let opens = self.last_unit != Some(unit);
        if opens {
            self.last_unit = Some(unit);
            self.places.push(place);
            // A run never reaches over a place, so that a log that begins with the place has whole runs.
            self.open.clear();
        }
        for run in runs {
            let joined = (!run.copied)
                .then(|| self.open.get(&run.stream))
                .flatten()
                .map(|at| &mut self.runs[*at])
                .filter(|open| open.first.0 + open.count == run.first.0);
            if let Some(open) = joined {
                open.count += u64::from(run.count);
                continue;
            }
            if !run.copied {
                self.open.insert(run.stream, self.runs.len());
            }
            self.runs.push(IndexRun {
                stream: run.stream,
                first: run.first,
                count: u64::from(run.count),
                position: place.position,
                copied: run.copied,
            });
        }
        self.frames += 1;
        self.until = Some(until);
        opens
    }

    /// Whether it is time for an index record.
    pub(crate) fn is_due(&self) -> bool {
        let bytes = self.until.map_or(0, |until| until.position.0 - self.from.0);
        self.frames >= FRAMES_MAX || bytes >= BYTES_MAX || self.runs.len() >= RUNS_MAX
    }

    /// The body of the next index record; `None` without new frames.
    pub(crate) fn take(&mut self) -> Option<IndexBody> {
        let until = self.until.take()?;
        self.open.clear();
        self.frames = 0;
        let from = std::mem::replace(&mut self.from, until.position);
        let (places, runs) = (std::mem::take(&mut self.places), std::mem::take(&mut self.runs));
        Some(IndexBody { from, until: Some(until), places, runs })
    }

    pub(crate) fn runs(&self) -> &[IndexRun] {
        &self.runs
    }
}

/// What the owner knows about its log.
#[derive(Debug)]
pub(crate) struct Known {
    places: BTreeMap<Position, Place>,
    /// Where a new log begins, or the first frame that is kept.
    start: Place,
    /// The sequence of the last record that counts.
    pub(crate) last: u64,
    /// Every durable frame lies before it.
    pub(crate) end: Position,
    /// Frames before it are in an index record that counts.
    pub(crate) indexed: Position,
    /// The last claim or statement of the owner.
    pub(crate) term: u64,
}

impl Known {
    pub(crate) fn new(start: Place, last: u64, end: Position) -> Known {
        Known { places: BTreeMap::new(), start, last, end, indexed: start.position, term: last }
    }

    pub(crate) fn start(&self) -> Place {
        self.start
    }

    pub(crate) fn insert(&mut self, place: Place) {
        self.places.insert(place.position, place);
    }

    /// Where to read from for frames at this position and after it.
    pub(crate) fn place(&self, from: Position) -> Place {
        self.places.range(..=from).next_back().map_or(self.start, |(_, place)| *place)
    }

    /// The first place of a log that begins with this sequence.
    pub(crate) fn place_from(&self, sequence: u64) -> Option<Place> {
        self.places.values().find(|place| place.sequence >= sequence).copied()
    }

    /// The last place before which everything may go if frames up to `through` may.
    pub(crate) fn place_to_trim(&self, through: Position) -> Option<Place> {
        let dead = self.places.range(..=through);
        let behind = self.places.range(Position(through.0.saturating_add(1))..).next();
        let mut places = behind.into_iter().chain(dead.rev()).map(|(_, place)| *place);
        places.find(|place| place.before <= through && place.position > self.start.position)
    }

    /// Forgets everything before a place.
    pub(crate) fn trim(&mut self, to: Place) {
        self.places = self.places.split_off(&to.position);
        self.start = to;
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::types::{Epoch, Seq};

    use super::*;

    fn place(position: u64, before: u64) -> Place {
        let (position, before) = (Position(position), Position(before));
        Place { position, before, sequence: position.0, epoch: Epoch(1), number: 0, chain: [0; 16] }
    }

    fn run(stream: u32, first: u64, count: u32, copied: bool) -> Run {
        Run { stream: StreamId(stream), first: Seq(first), count, copied }
    }

    #[test]
    fn runs_are_joined_within_a_unit_and_copies_never() {
        let mut index = IndexBuilder::new(100, Position(1));
        assert!(index.add(place(1, 0), &[run(1, 1, 2, false)], place(40, 1)));
        assert!(!index.add(place(40, 1), &[run(1, 3, 1, false), run(1, 1, 1, true)], place(120, 40)));
        assert!(index.add(place(120, 40), &[run(1, 4, 1, false)], place(150, 120)));
        let body = index.take().expect("there are frames");
        let runs: Vec<_> =
            body.runs.iter().map(|run| (run.first.0, run.count, run.position.0, run.copied)).collect();
        assert_eq!(runs, [(1, 3, 1, false), (1, 1, 40, true), (4, 1, 120, false)]);
        assert_eq!(body.places, [place(1, 0), place(120, 40)]);
        assert_eq!((body.from, body.until), (Position(1), Some(place(150, 120))));
        assert_eq!(index.take(), None);
    }

    #[test]
    fn a_trim_goes_to_the_last_place_that_only_dead_frames_precede() {
        let mut known = Known::new(place(1, 0), 9, Position(500));
        for (position, before) in [(1, 0), (120, 40), (230, 210)] {
            known.insert(place(position, before));
        }
        assert_eq!(known.place_to_trim(Position(39)), None);
        assert_eq!(known.place_to_trim(Position(40)), Some(place(120, 40)));
        assert_eq!(known.place_to_trim(Position(200)), Some(place(120, 40)));
        assert_eq!(known.place_to_trim(Position(210)), Some(place(230, 210)));
        assert_eq!(known.place_from(1), Some(place(1, 0)));
        assert_eq!(known.place_from(2), Some(place(120, 40)));
        assert_eq!(known.place_from(230), Some(place(230, 210)));
        assert_eq!(known.place_from(231), None);
        known.trim(place(120, 40));
        assert_eq!(known.place(Position(50)), place(120, 40));
        assert_eq!(known.place(Position(300)), place(230, 210));
        assert_eq!(known.place_to_trim(Position(40)), None);
    }
}
