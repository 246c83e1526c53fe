//! Where the messages of a reader are. Nothing changes, and the cost does not depend on how many messages there are.

use forebay_core::fault::{Fault, planted};
use forebay_core::types::{Ordinal, Seq, SeqRange, StreamId};

use super::Driver;
use crate::reader::{Direction, Located, WholeLocated, WholeSpot, WholeWish, Wish};

/// A reader of this many messages or fewer need not look far back.
const FEW: u64 = 16;

impl Driver {
    /// The next messages of a reader: from memory, or else their place in the log. None if the stream is not there.
    pub fn locate(&self, wish: &Wish) -> Option<Located> {
        let Wish { stream, next, direction, most } = *wish;
        let last = self.shard.last_seq(stream)?;
        let mut readable = self.shard.readable(stream);
        if planted(Fault::ReaderSeesUndurable) {
            readable =
                readable.zip(self.shard.last_given(stream)).map(|(of, last)| SeqRange::new(of.first, last));
        }
        let mut located = Located { last, readable, hot: Vec::new(), spot: None };
        let Some(kept) = readable.filter(|_| most.messages > 0) else { return Some(located) };
        let wanted = match direction {
            Direction::Forwards => kept.overlap(SeqRange { first: next, last: Seq(u64::MAX) }),
            Direction::Backwards => kept.overlap(SeqRange { first: Seq::START, last: next }),
        };
        let Some(wanted) = wanted else { return Some(located) };
        self.payloads.window.stretches(stream, wanted, direction, most, &mut located.hot);
        if located.hot.is_empty() {
            located.spot = match direction {
                Direction::Forwards => self.index.spot(stream, wanted),
                Direction::Backwards => {
                    let span = if most.messages <= FEW { 0 } else { most.bytes as u64 };
                    self.index.spot_back(stream, wanted, span)
                }
            };
        }
        Some(located)
    }

    /// The next messages of a reader of the whole log: where to read on, or which frames may have copies of them.
    pub fn locate_whole(&self, wish: &WholeWish) -> WholeLocated {
        let WholeWish { direction, hole, bytes, .. } = *wish;
        let mut last = self.index.last_ordinal();
        if planted(Fault::ReaderSeesUndurable) {
            last = Ordinal(self.shard.next_ordinal().0 - 1);
        }
        let next = wish.next.min(last);
        let hole = hole.filter(|(low, high)| (*low..=*high).contains(&next));
        let spot = match (hole, direction) {
            (Some((_, high)), Direction::Forwards) => {
                WholeSpot::Copies(self.index.copies(next, high, direction))
            }
            (Some((low, _)), Direction::Backwards) => {
                WholeSpot::Copies(self.index.copies(low, next, direction))
            }
            (None, Direction::Forwards) => self.index.whole_spot(next, 0),
            (None, Direction::Backwards) => self.index.whole_spot(next, bytes as u64),
        };
        WholeLocated { last, spot }
    }

    /// The position in the log of the last durable message.
    pub fn last_ordinal(&self) -> Ordinal {
        self.index.last_ordinal()
    }

    /// The streams that the frame which became durable last has messages of.
    pub fn grown(&self) -> &[StreamId] {
        &self.grown
    }
}
