//! Progress as users see it, and acks that are written only with it.
//!
//! On each interval a checkpoint is made if enough messages were settled since the last one; as soon as very
//! many were, one is made at once; and a group gone idle makes one of what is left. Where acks are written
//! as they come, the checkpoint is a figure; where they are not, it is when they are written.

use crate::entry;
use crate::group::{ENTRY_ITEMS_MAX, Effects, Group};
use crate::seqset::SeqSet;
use crate::settings::Checkpoint as Policy;
use crate::types::{GroupId, Seq, SeqRange, Timestamp};

#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The progress that was published last.
    seq: Seq,
    /// Messages settled since.
    settled: u64,
    /// When the interval ends. There is none while nothing was settled.
    tick: Option<Timestamp>,
    /// Whether anything was settled in this interval.
    active: bool,
    /// Acks that wait for the next checkpoint.
    kept_back: SeqSet,
    /// They are to be written now.
    flush: bool,
}

impl Checkpoint {
    pub(crate) fn at(seq: Seq) -> Checkpoint {
        Checkpoint { seq, settled: 0, tick: None, active: false, kept_back: SeqSet::new(), flush: false }
    }

    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    pub(crate) fn settled(&mut self, now: Timestamp, count: u64, policy: &Policy) {
        self.settled += count;
        self.active = true;
        self.tick.get_or_insert(now + policy.interval);
    }

    pub(crate) fn at_next(&self) -> Option<Timestamp> {
        self.tick
    }

    /// Whether one is due now.
    fn is_due(&mut self, now: Timestamp, policy: &Policy) -> bool {
        if self.settled >= u64::from(policy.max) {
            return true;
        }
        if self.tick.is_none_or(|tick| tick > now) {
            return false;
        }
        if self.settled >= u64::from(policy.min) || !self.active {
            return true;
        }
        self.active = false;
        self.tick = Some(now + policy.interval);
        false
    }

    fn make(&mut self, floor: Seq) {
        self.seq = floor;
        self.settled = 0;
        self.active = false;
        self.tick = None;
        self.flush = true;
    }

    pub(crate) fn keep_back(&mut self, acked: &[SeqRange]) {
        for &range in acked {
            self.kept_back.insert(range);
        }
    }

    pub(crate) fn write(&mut self, group: GroupId, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.flush) || self.kept_back.is_empty() {
            return;
        }
        let ranges: Vec<SeqRange> = self.kept_back.runs().collect();
        for ranges in ranges.chunks(ENTRY_ITEMS_MAX) {
            entry::put_acked(out, group, ranges);
        }
        self.kept_back.clear();
    }
}

impl Group {
    pub(super) fn check_point(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.checkpoint.is_due(now, &self.settings.checkpoint) {
            self.make_checkpoint();
            effects.checkpoints.push((self.id, self.checkpoint.seq()));
        }
    }

    /// Everything that is settled is written with the next entries.
    pub(crate) fn make_checkpoint(&mut self) {
        self.checkpoint.make(self.ledger.progress.floor());
    }
}
