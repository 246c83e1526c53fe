//! Messages that a caller asked to see by position. One fetch may name several ranges, and is answered when all of
//! them were found, or are known to be gone.

use std::collections::BTreeMap;

use forebay_core::shard::Shard;
use forebay_core::types::{Seq, SeqRange, StreamId};

use crate::driver::{Outbox, Ticket};
use crate::window::{Found, Window};

#[derive(Debug, Default)]
pub(super) struct Fetches(BTreeMap<u64, Fetch>);

/// Messages that were asked for, from several ranges.
#[derive(Debug)]
struct Fetch {
    ticket: Ticket,
    /// Ranges that are not found yet.
    left: usize,
    found: Vec<Found>,
}

impl Fetches {
    pub(super) fn begin(&mut self, id: u64, ticket: Ticket, ranges: usize) {
        self.0.insert(id, Fetch { ticket, left: ranges, found: Vec::new() });
    }

    /// Takes the messages found of one range.
    pub(super) fn found(&mut self, id: u64, found: Vec<Found>, outbox: &mut Outbox) {
        if let Some(fetch) = self.0.get_mut(&id) {
            fetch.left -= 1;
            fetch.found.extend(found);
        }
        self.finish(id, outbox);
    }

    /// Answers a fetch that has all of its ranges.
    pub(super) fn finish(&mut self, id: u64, outbox: &mut Outbox) {
        if self.0.get(&id).is_some_and(|fetch| fetch.left == 0) {
            let mut fetch = self.0.remove(&id).expect("it was there just now");
            fetch.found.sort_by_key(|found| found.seq);
            outbox.fetched.push((fetch.ticket, fetch.found));
        }
    }
}

/// Adds those messages of the range that are kept and in the window, and returns the first that is kept and is
/// not there. Messages between them that are gone are passed over.
pub(super) fn collect_kept(
    stream: StreamId,
    range: SeqRange,
    window: &Window,
    shard: &Shard,
    found: &mut Vec<Found>,
) -> Seq {
    let kept_from = |seq| shard.first_kept(stream, seq);
    let mut next = range.first;
    while let Some(kept) = kept_from(next).filter(|&kept| kept <= range.last) {
        next = window.collect(stream, SeqRange::new(kept, range.last), |one| {
            // A message that is not kept may be in the window all the same.
            if kept_from(one.seq) == Some(one.seq) {
                found.push(one);
            }
        });
        if next == kept {
            return kept;
        }
    }
    range.last.next()
}
