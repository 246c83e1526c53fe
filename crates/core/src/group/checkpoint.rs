//! Progress as users see it, and acks that are written only with it.
//!
//! On each interval a checkpoint is made if enough messages were settled since the last one; as soon as very
//! many were, one is made at once; and a group that goes idle makes one of the remaining settlements. Where
//! acks are written as they come, the checkpoint is a figure; where they are not, it is when they are
//! written.

use crate::group::decision::Decision;
use crate::group::{Effects, Group};
use crate::seqset::SeqSet;
use crate::settings::Checkpoint as Policy;
use crate::types::{Seq, SeqRange, Timestamp};

#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The progress that was published last.
    seq: Seq,
    /// Messages settled since.
    settled: u64,
    /// When the interval ends. `None` while nothing was settled.
    tick: Option<Timestamp>,
    /// Whether anything was settled in this interval.
    active: bool,
    /// Acks that wait for the next checkpoint.
    kept_back: SeqSet,
}

impl Checkpoint {
    pub(crate) fn at(seq: Seq) -> Checkpoint {
        Checkpoint { seq, settled: 0, tick: None, active: false, kept_back: SeqSet::new() }
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
    }

    pub(crate) fn keep_back(&mut self, acked: SeqRange) {
        self.kept_back.insert(acked);
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
        self.checkpoint.make(self.ledger.progress().floor());
        for acked in std::mem::take(&mut self.checkpoint.kept_back).runs() {
            self.unwritten.add(self.id, &Decision::Acked(acked));
        }
    }
}
