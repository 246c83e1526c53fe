//! How far a group has come.

use crate::fault::{Fault, planted};
use crate::seqset::SeqSet;
use crate::types::{Seq, SeqRange};

/// Progress of a group: everything up to `floor` is settled, and so is everything in `above`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Progress {
    floor: Seq,
    /// Settled positions past the floor. Never holds the one right after it.
    above: SeqSet,
}

impl Progress {
    pub(crate) fn starting_at(floor: Seq) -> Progress {
        Progress { floor, above: SeqSet::new() }
    }

    /// As if everything up to `floor` were settled, and these.
    pub(crate) fn starting_with(floor: Seq, settled: &SeqSet) -> Progress {
        let mut above = settled.clone();
        above.remove(SeqRange::new(Seq::START, floor));
        let floor = Seq(above.gap_from(floor.next()).0 - 1);
        above.remove(SeqRange::new(Seq::START, floor));
        Progress { floor, above }
    }

    pub(crate) fn floor(&self) -> Seq {
        self.floor
    }

    /// How many positions up to `last` are not settled. A message that is not durable yet may be settled
    /// already, if the stream was purged.
    pub(crate) fn unsettled_through(&self, last: Seq) -> u64 {
        let beyond = match self.above.first_from(last.next()) {
            None => 0,
            Some(_) => {
                let runs = self.above.runs_from(last.next());
                runs.map(|run| run.count()).sum()
            }
        };
        last.0.saturating_sub(self.floor.0).saturating_sub(self.above.count() - beyond)
    }

    pub(crate) fn above(&self) -> &SeqSet {
        &self.above
    }

    pub(crate) fn is_settled(&self, seq: Seq) -> bool {
        seq <= self.floor || self.above.contains(seq)
    }

    /// The first position at `seq` or after it that is not settled.
    pub(crate) fn unsettled_from(&self, seq: Seq) -> Seq {
        self.above.gap_from(seq.max(self.floor.next()))
    }

    pub(crate) fn settle(&mut self, range: SeqRange) {
        if range.first <= self.floor.next() {
            // Consumers finish nearly in order, so this is the usual way.
            self.floor = self.floor.max(range.last);
        } else {
            self.above.insert(range);
        }
        if self.above.is_empty() {
            return;
        }
        let floor = Seq(self.above.gap_from(self.floor.next()).0 - 1);
        if floor > self.floor || range.first <= self.floor {
            self.floor = floor;
            self.above.remove(SeqRange::new(Seq::START, floor));
        }
        if planted(Fault::FloorPastUnsettled) && self.above.count() > 8 {
            self.floor = self.above.run_from(self.floor).map_or(self.floor, |run| run.last);
            self.above.remove(SeqRange::new(Seq::START, self.floor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_floor_is_the_end_of_what_is_settled_without_a_gap(
            ranges in prop::collection::vec((1u64..60, 0u64..8), 1..60)
        ) {
            let mut progress = Progress::default();
            let mut plain = BTreeSet::new();
            for (first, more) in ranges {
                progress.settle(SeqRange::new(Seq(first), Seq(first + more)));
                plain.extend(first..=first + more);
                let floor = (1..).find(|n| !plain.contains(n)).expect("the set is finite") - 1;
                prop_assert_eq!(progress.floor(), Seq(floor));
                for n in 1..80 {
                    prop_assert_eq!(progress.is_settled(Seq(n)), plain.contains(&n));
                }
                prop_assert_eq!(progress.above().count(), plain.iter().filter(|&&n| n > floor).count() as u64);
            }
        }
    }
}
