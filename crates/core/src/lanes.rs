//! Positions by priority.

use forebay_model::limits::PRIORITY_MAX;

use crate::seqset::SeqSet;
use crate::types::{Seq, SeqRange};

/// One for each priority.
pub(crate) const LANES: usize = PRIORITY_MAX as usize + 1;

/// One set of positions for each priority.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lanes {
    sets: [SeqSet; LANES],
    count: u64,
}

impl Lanes {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn lane(&self, lane: u8) -> &SeqSet {
        &self.sets[usize::from(lane)]
    }

    pub(crate) fn insert(&mut self, lane: u8, range: SeqRange) {
        self.count += self.sets[usize::from(lane)].insert(range);
    }

    pub(crate) fn remove(&mut self, lane: u8, range: SeqRange) -> u64 {
        let removed = self.sets[usize::from(lane)].remove(range);
        self.count -= removed;
        removed
    }

    /// Takes the range out of every lane.
    pub(crate) fn remove_all(&mut self, range: SeqRange) -> u64 {
        if self.is_empty() {
            return 0;
        }
        (0..LANES as u8).map(|lane| self.remove(lane, range)).sum()
    }

    /// The lane that a position is in.
    pub(crate) fn lane_of(&self, seq: Seq) -> Option<u8> {
        if self.is_empty() {
            return None;
        }
        (0..LANES as u8).rev().find(|&lane| self.lane(lane).contains(seq))
    }

    /// The first position at `seq` or after it that is in some lane.
    pub(crate) fn next_from(&self, seq: Seq) -> Option<Seq> {
        if self.is_empty() {
            return None;
        }
        self.sets.iter().filter_map(|set| set.run_from(seq)).map(|run| run.first).min()
    }
}
