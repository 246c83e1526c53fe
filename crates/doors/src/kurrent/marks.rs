//! Streams that were deleted, as far as only this door knows of it: the log has a note for each, and the door remembers
//! all of them.
//!
//! A deleted stream keeps its numbers and can be written again, which takes the mark away. A tombstone stays for ever:
//! the stream is gone, and its name cannot be used again through this door.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use forebay_broker::api::{CallError, Caller, Door, Expected, NoteWish};
use forebay_core::types::StreamName;

const PREFIX: &str = "stream/";
/// Notes that are asked for at a time.
const PAGE: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Until it is written again.
    Deleted,
    /// For ever.
    Tombstone,
}

impl Mark {
    fn text(self) -> &'static [u8] {
        match self {
            Mark::Deleted => b"deleted",
            Mark::Tombstone => b"tombstone",
        }
    }
}

/// All marks. As many as there are notes, which are limited.
#[derive(Debug, Default)]
pub(super) struct Marks(RwLock<HashMap<StreamName, Mark>>);

impl Marks {
    /// The marks in the log.
    pub(super) async fn load(caller: &Caller) -> Result<Marks, CallError> {
        let (mut marks, mut after) = (HashMap::new(), None);
        loop {
            let page = caller.notes(Door::KURRENT, PREFIX.into(), after, PAGE).await?;
            for (key, note) in &page.items {
                let name = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(PREFIX));
                let mark =
                    [Mark::Deleted, Mark::Tombstone].into_iter().find(|mark| mark.text() == &note.value[..]);
                if let (Some(name), Some(mark)) = (name, mark) {
                    marks.insert(StreamName::stored(name), mark);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(Marks(RwLock::new(marks)));
            }
        }
    }

    /// The mark of a stream. The stream of a tombstone's metadata has that tombstone too.
    pub(super) fn of(&self, stream: &StreamName) -> Option<Mark> {
        let marks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if marks.is_empty() {
            return None;
        }
        let of_data = stream.as_str().strip_prefix("$$").and_then(|name| StreamName::of_any(name).ok());
        let of_data = of_data.and_then(|name| marks.get(&name)).filter(|mark| **mark == Mark::Tombstone);
        marks.get(stream).or(of_data).copied()
    }

    /// Remembers what the log has.
    pub(super) fn set(&self, stream: &StreamName, mark: Option<Mark>) {
        let mut marks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match mark {
            Some(mark) => marks.insert(stream.clone(), mark),
            None => marks.remove(stream),
        };
    }
}

/// The note of a mark, or of there being none.
pub(super) fn note(stream: &StreamName, mark: Option<Mark>) -> NoteWish {
    NoteWish {
        door: Door::KURRENT,
        key: format!("{PREFIX}{stream}").into_bytes(),
        value: mark.map(|mark| mark.text().to_vec()),
        expected: Expected::Any,
        expires: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_a_tombstone_is_gone_with_it() {
        let marks = Marks::default();
        let name = |text| StreamName::of_any(text).expect("a name");
        assert_eq!(marks.of(&name("orders")), None);
        marks.set(&name("orders"), Some(Mark::Tombstone));
        marks.set(&name("others"), Some(Mark::Deleted));
        assert_eq!(marks.of(&name("$$orders")), Some(Mark::Tombstone));
        assert_eq!((marks.of(&name("others")), marks.of(&name("$$others"))), (Some(Mark::Deleted), None));
        marks.set(&name("others"), None);
        assert_eq!(marks.of(&name("others")), None);
    }
}
