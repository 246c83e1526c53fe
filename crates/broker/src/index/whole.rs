//! Where messages are by their position in the log over all streams, their ordinal.
//!
//! Ordinals are given one after the other as messages are published, so frames have them in the order of the log. Each
//! frame names the first of its own and their number in a run of stream 0, which is no stream: numbers of streams begin
//! with 1. Engines treat this run as any other, and it comes back from them after a restart.
//!
//! Copies are out of order. A frame of copies names the lowest and the highest ordinal of its messages, as two copied
//! runs of stream 0. Frames of older versions do not, and may have any.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_core::types::{Ordinal, Position, Seq, StreamId};
use forebay_storage::engine::Run;

use crate::reader::{Direction, WholeSpot};

/// The stream that stands for all of them in runs.
pub(crate) const WHOLE: StreamId = StreamId(0);

/// So many frames of copies of similar width are named at a time, unless more of them have the same message.
const COPIES_MAX: usize = 64;

/// The ordinals of the messages in a frame, gathered while it is filled.
#[derive(Debug, Default)]
pub(crate) struct Ordinals {
    published: Option<(u64, u64)>,
    copied: Option<(u64, u64)>,
}

impl Ordinals {
    pub(crate) fn publish(&mut self, first: Ordinal, count: u64) {
        // Salvage puts placeholders for lost messages into a log, which have no ordinal.
        if first.0 > 0 && count > 0 {
            widen(&mut self.published, first.0);
            widen(&mut self.published, first.0 + count - 1);
        }
    }

    pub(crate) fn copy(&mut self, ordinal: Ordinal) {
        widen(&mut self.copied, ordinal.0);
    }

    /// The runs that name them, and begins anew.
    pub(crate) fn take_runs(&mut self) -> impl Iterator<Item = Run> + use<> {
        let run = |first: u64, count: u64, copied| {
            let count = u32::try_from(count).unwrap_or(Run::COUNT_MAX).min(Run::COUNT_MAX);
            Run { stream: WHOLE, first: Seq(first), count, copied }
        };
        let published = self.published.take().map(|(first, last)| run(first, last - first + 1, false));
        let copied = self.copied.take();
        let low = copied.map(|(low, _)| run(low, 1, true));
        let high = copied.filter(|(low, high)| low < high).map(|(_, high)| run(high, 1, true));
        published.into_iter().chain(low).chain(high)
    }
}

fn widen(range: &mut Option<(u64, u64)>, with: u64) {
    let (low, high) = range.unwrap_or((with, with));
    *range = Some((low.min(with), high.max(with)));
}

/// A frame that has copies of messages with ordinals from `low` to `high`, though not of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFrame {
    pub position: Position,
    pub low: Ordinal,
    pub high: Ordinal,
}

/// Frames of copies, and the ordinals of which these are all that have copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    pub frames: Vec<CopyFrame>,
    pub low: Ordinal,
    pub high: Ordinal,
}

#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Messages from this ordinal on are in this frame or after it, unless they were copied. In order.
    places: VecDeque<(Ordinal, Position)>,
    /// The frames that have copies, with their lowest and highest ordinal if that is known.
    copies: BTreeMap<Position, Option<(u64, u64)>>,
    /// The same by width: frames whose ordinals span up to the same power of two are found by their lowest one.
    by_width: BTreeSet<(u32, u64, Position)>,
    /// The last ordinal of a durable message.
    last: Ordinal,
}

/// The ordinals of frames of one width span no more than this.
fn span(width: u32) -> u64 {
    u64::MAX.checked_shr(64 - width).unwrap_or(0)
}

fn width((low, high): (u64, u64)) -> u32 {
    u64::BITS - (high - low).leading_zeros()
}

fn bounds(known: Option<(u64, u64)>) -> (u64, u64) {
    known.unwrap_or((0, u64::MAX))
}

impl Whole {
    pub(super) fn last(&self) -> Ordinal {
        self.last
    }

    /// Everything up to this ordinal is durable.
    pub(super) fn opened(&mut self, last: Ordinal) {
        self.last = self.last.max(last);
    }

    /// A frame has messages that were published with these ordinals.
    pub(super) fn published(
        &mut self,
        first: Ordinal,
        count: u64,
        position: Position,
        is_far: impl Fn(Position) -> bool,
    ) {
        self.last = self.last.max(Ordinal(first.0.saturating_add(count.saturating_sub(1))));
        let (is_place, is_later) =
            self.places.back().map_or((true, true), |&(before, at)| (is_far(at), first > before));
        if is_place && is_later {
            self.places.push_back((first, position));
        }
    }

    /// A frame has copies.
    pub(super) fn has_copies(&mut self, position: Position) {
        if !self.copies.contains_key(&position) {
            self.set(position, None);
        }
    }

    /// A frame has a copy with this ordinal, the lowest or the highest one.
    pub(super) fn copied(&mut self, ordinal: Ordinal, position: Position) {
        let mut known = self.copies.get(&position).copied().flatten();
        widen(&mut known, ordinal.0);
        self.set(position, known);
    }

    fn set(&mut self, position: Position, known: Option<(u64, u64)>) {
        if let Some(before) = self.copies.insert(position, known).map(bounds) {
            self.by_width.remove(&(width(before), before.0, position));
        }
        let now = bounds(known);
        self.by_width.insert((width(now), now.0, position));
    }

    pub(super) fn trim(&mut self, through: Position) {
        while self.copies.first_key_value().is_some_and(|(position, _)| *position <= through) {
            let (position, known) = self.copies.pop_first().expect("there is a first one");
            let known = bounds(known);
            self.by_width.remove(&(width(known), known.0, position));
        }
        while self.places.get(1).is_some_and(|(_, next)| *next <= through) {
            self.places.pop_front();
        }
        if let Some((_, position)) = self.places.front_mut() {
            *position = (*position).max(through);
        }
    }

    /// Where to begin reading for the message. It may be up to `before` bytes further back than it has to be.
    pub(super) fn find(&self, ordinal: Ordinal, before: u64) -> WholeSpot {
        let after = self.places.partition_point(|(first, _)| *first <= ordinal);
        let bound = self.places.get(after).map_or(self.last, |(next, _)| Ordinal(next.0 - 1));
        // Frames before the first place were trimmed away, or an older version wrote them.
        let Some(mut at) = after.checked_sub(1) else {
            return WholeSpot::Log { from: Position::START, first: Ordinal(1), bound };
        };
        let near = self.places[at].1.0.saturating_sub(before);
        while at > 0 && self.places[at - 1].1.0 >= near {
            at -= 1;
        }
        let (first, position) = self.places[at];
        WholeSpot::Log { from: position, first, bound }
    }

    /// The frames that have copies of messages from `low` to `high`, nearest first in the direction of reading. If
    /// there are many, not all of them, and the ordinals of which they are all.
    pub(super) fn copies(&self, low: Ordinal, high: Ordinal, direction: Direction) -> Copies {
        let mut most = COPIES_MAX;
        loop {
            let found = self.some_copies(low, high, direction, most);
            if found.low <= found.high {
                return found;
            }
            most = most.saturating_mul(16);
        }
    }

    fn some_copies(&self, low: Ordinal, high: Ordinal, direction: Direction, most: usize) -> Copies {
        let mut found = Copies { frames: Vec::new(), low, high };
        let mut at = 0;
        while let Some(&(width, ..)) = self.by_width.range((at, 0, Position::START)..).next() {
            at = width + 1;
            // Frames that begin before this have nothing of the range.
            let first = low.0.saturating_sub(span(width));
            let of_width =
                self.by_width.range((width, first, Position::START)..=(width, high.0, Position(u64::MAX)));
            let frame = |&(_, from, position): &(u32, u64, Position)| {
                let (_, to) = bounds(self.copies.get(&position).copied().flatten());
                CopyFrame { position, low: Ordinal(from), high: Ordinal(to) }
            };
            let meets = |frame: &CopyFrame| frame.high >= low;
            match direction {
                Direction::Forwards => {
                    let mut frames = of_width.map(frame).filter(meets);
                    found.frames.extend(frames.by_ref().take(most));
                    match frames.next().map(|next| next.low.0.checked_sub(1)) {
                        Some(Some(last)) => found.high = found.high.min(Ordinal(last)),
                        // It may have any: there is no ordinal of which these are all.
                        Some(None) => (found.low, found.high) = (Ordinal(1), Ordinal(0)),
                        None => {}
                    }
                }
                Direction::Backwards => {
                    let mut frames = of_width.rev().map(frame).filter(meets);
                    found.frames.extend(frames.by_ref().take(most));
                    if let Some(next) = frames.next() {
                        let end = next.low.0.saturating_add(span(width)).saturating_add(1);
                        found.low = found.low.max(Ordinal(end));
                    }
                }
            }
        }
        let Copies { low, high, .. } = found;
        found.frames.retain(|frame| frame.low <= high && frame.high >= low);
        match direction {
            Direction::Forwards => found.frames.sort_by_key(|frame| (frame.low, frame.position)),
            Direction::Backwards => {
                found.frames.sort_by_key(|frame| std::cmp::Reverse((frame.high, frame.position)));
            }
        }
        found
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() + self.copies.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_frame_that_may_have_copies_is_named(
            frames in prop::collection::vec((0u64..2_000, prop_oneof![0u64..4, 0u64..2_000], any::<bool>()), 0..300),
            low in 0u64..2_000,
            span in 0u64..500,
            trimmed in 0u64..50,
        ) {
            let mut whole = Whole::default();
            let mut plain = Vec::new();
            for (n, (from, width, is_known)) in frames.into_iter().enumerate() {
                let position = Position(n as u64 * 10);
                whole.has_copies(position);
                if is_known {
                    whole.copied(Ordinal(from), position);
                    whole.copied(Ordinal(from + width), position);
                    plain.push((position, from, from + width));
                } else {
                    plain.push((position, 0, u64::MAX));
                }
            }
            whole.trim(Position(trimmed));
            plain.retain(|(position, ..)| *position > Position(trimmed));
            prop_assert_eq!(whole.copies.len(), plain.len());
            prop_assert_eq!(whole.by_width.len(), plain.len());
            let high = low + span;
            for direction in [Direction::Forwards, Direction::Backwards] {
                let found = whole.copies(Ordinal(low), Ordinal(high), direction);
                match direction {
                    Direction::Forwards => prop_assert!(found.low == Ordinal(low) && found.high <= Ordinal(high)),
                    Direction::Backwards => prop_assert!(found.high == Ordinal(high) && found.low >= Ordinal(low)),
                }
                let mut named: Vec<Position> = found.frames.iter().map(|frame| frame.position).collect();
                named.sort();
                let meets = |(_, from, to): &&(Position, u64, u64)| *from <= found.high.0 && *to >= found.low.0;
                let expected: Vec<Position> = plain.iter().filter(meets).map(|(position, ..)| *position).collect();
                prop_assert_eq!(named, expected);
            }
        }
    }

    #[test]
    fn frames_that_may_have_any_message_are_all_named_from_the_first_ordinal_on() {
        let mut whole = Whole::default();
        (0..65).for_each(|n| whole.has_copies(Position(n * 10)));
        for direction in [Direction::Forwards, Direction::Backwards] {
            assert_eq!(whole.copies(Ordinal(0), Ordinal(9), direction).frames.len(), 65);
        }
    }

    #[test]
    fn a_frame_names_its_ordinals_in_runs_that_bring_them_back() {
        let mut ordinals = Ordinals::default();
        ordinals.publish(Ordinal(7), 3);
        ordinals.publish(Ordinal(0), 4);
        ordinals.publish(Ordinal(10), 1);
        [5, 2, 900].into_iter().for_each(|ordinal| ordinals.copy(Ordinal(ordinal)));
        let runs: Vec<(u64, u32, bool)> =
            ordinals.take_runs().map(|run| (run.first.0, run.count, run.copied)).collect();
        assert_eq!(runs, [(7, 4, false), (2, 1, true), (900, 1, true)]);
        assert_eq!(ordinals.take_runs().count(), 0);
    }
}
