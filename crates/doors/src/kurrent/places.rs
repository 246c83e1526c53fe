//! Places of events: the only file that knows how revisions and positions of Kurrent relate to Forebay's.
//!
//! The first event of a stream has revision 0 and the first message position 1, so a revision is a position in the
//! stream less one. A position in `$all` is the position in the log, and its two numbers are always equal: some clients
//! keep one of them only.

use forebay_core::types::{Ordinal, Seq};
use forebay_wire::kurrent::client::AllStreamPosition;

/// The revision of the message at this position. No revision stands for the place before the first.
pub(super) fn revision(seq: Seq) -> Option<u64> {
    seq.0.checked_sub(1)
}

/// The position of the event with this revision. The largest revision, and any beyond what a stream can have, is the
/// last possible position.
pub(super) fn seq(revision: u64) -> Seq {
    Seq(revision.saturating_add(1))
}

/// The revision as the old protocol writes it in texts: -1 for no revision.
pub(super) fn revision_text(seq: Seq) -> i64 {
    revision(seq).map_or(-1, |revision| i64::try_from(revision).unwrap_or(i64::MAX))
}

/// The number of a place in the log.
pub(super) fn commit(ordinal: Ordinal) -> u64 {
    ordinal.0
}

pub(super) fn position(ordinal: Ordinal) -> AllStreamPosition {
    AllStreamPosition { commit_position: commit(ordinal), prepare_position: commit(ordinal) }
}

/// A position in the form that texts have.
pub(super) fn position_text(commit: u64, prepare: u64) -> String {
    format!("C:{commit}/P:{prepare}")
}

/// The place that a position names.
pub(super) fn ordinal(commit_position: u64) -> Ordinal {
    Ordinal(commit_position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_of_a_stream_has_revision_zero() {
        assert_eq!((revision(Seq::START), revision(Seq(1)), seq(0)), (None, Some(0), Seq(1)));
        assert_eq!((revision_text(Seq::START), revision_text(Seq(1))), (-1, 0));
        assert_eq!(seq(u64::MAX), Seq(u64::MAX));
    }

    #[test]
    fn both_numbers_of_a_position_are_equal() {
        let at = position(Ordinal(7));
        assert_eq!((at.commit_position, at.prepare_position), (7, 7));
        assert_eq!(ordinal(7), Ordinal(7));
    }
}
