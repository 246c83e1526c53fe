//! Readers of the log: messages of streams in order, without taking them.
//!
//! A reader works in the task of its caller. The shard's task tells it only where messages are, in one short call for
//! each page, and hands out stretches that are in memory. The reader asks the engine for frames and decodes them by
//! itself, so a reader of old data takes nothing from the shard's task and puts nothing into its window.
//!
//! | Module | Has |
//! | --- | --- |
//! | `stretch` | [`Stretch`]: consecutive messages that were published together, as they are stored |
//! | `cursor` | [`Cursor`]: where a reader is in one stream, and its next step. The simulator runs it too |
//! | `whole` | [`WholeCursor`]: the same for all streams together |
//! | `decode` | stretches out of frames |
//!
//! [`Reader`](crate::caller::Reader) is the loop around cursors, for callers.

mod cursor;
mod decode;
mod stretch;
mod whole;

pub use cursor::{Cursor, Located, Spot, Step, Wish};
pub use stretch::{Sizes, Stretch};
pub use whole::{WholeCursor, WholeLocated, WholeSpot, WholeWish};

/// The way that a reader goes through a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forwards,
    /// From the newest message to the oldest.
    Backwards,
}

/// How much of something is wanted at most. One message is always brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    pub messages: u64,
    pub bytes: usize,
}

impl Most {
    /// Whether there is room for a message after `messages` with `bytes`.
    pub fn has_room(self, messages: u64, bytes: usize) -> bool {
        messages < self.messages && bytes < self.bytes
    }
}
