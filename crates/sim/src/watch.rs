//! Where every message of a group stands, turn by turn: open, parked or settled. Nothing changes without a
//! recorded reason, and after a crash every message is where it was when some frame was the last that
//! survived.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::shard::Shard;
use forebay_core::types::{GroupId, Seq};

/// A change that is not in a frame yet.
const NOT_YET: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// In process, or not looked at yet.
    Open,
    Parked,
    Settled,
}

impl Class {
    pub(crate) fn of(shard: &Shard, group: GroupId, seq: Seq) -> Class {
        if shard.parked(group, seq).is_some() {
            Class::Parked
        } else if shard.is_settled(group, seq) {
            Class::Settled
        } else {
            Class::Open
        }
    }
}

/// The requests for a message or a group, since the last look.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    /// A consumer was told that it is settled, or parked.
    pub(crate) settled: BTreeSet<Seq>,
    pub(crate) parked: BTreeSet<Seq>,
    pub(crate) reset: bool,
    pub(crate) reset_parked: bool,
    pub(crate) purged: Option<Seq>,
    pub(crate) purged_parked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The classes that a message had, with the frame that makes each durable. The last is the present one.
    classes: BTreeMap<Seq, Vec<(u64, Class)>>,
    pub(crate) reasons: Reasons,
    /// What jobs were started for.
    pub(crate) replayed: BTreeSet<Seq>,
    pub(crate) discarded: BTreeSet<Seq>,
    /// Messages that are or were on their way to another stream.
    pub(crate) moved: BTreeSet<Seq>,
    /// Messages among them that expired or were dropped, and go there for that.
    pub(crate) ended: BTreeSet<Seq>,
    /// Parked messages that jobs were started to move to another stream.
    pub(crate) moved_parked: BTreeSet<Seq>,
    /// Those that are settled, and only a move can have done it.
    went: BTreeSet<Seq>,
    /// The newest frame that a reset or a purge is in, and the present frame for one that is not in a frame
    /// yet.
    upheaval: Option<u64>,
}

impl Watch {
    pub(crate) fn class(&self, seq: Seq) -> Class {
        self.classes.get(&seq).and_then(|classes| classes.last()).map_or(Class::Open, |&(_, class)| class)
    }

    /// Messages that must be in another stream.
    pub(crate) fn gone_elsewhere(&self) -> impl Iterator<Item = Seq> + '_ {
        self.went.iter().copied()
    }

    pub(crate) fn upheaval(&mut self) {
        self.upheaval = Some(NOT_YET);
    }

    /// Whether a reset or a purge is not durable.
    pub(crate) fn is_in_upheaval(&self, durable: u64) -> bool {
        self.upheaval.is_some_and(|frame| frame > durable)
    }

    /// Looks where a message is now. `may_settle` and `may_park`: time or used-up retries may have done it.
    pub(crate) fn look(&mut self, seq: Seq, now: Class, may_settle: bool, may_park: bool) -> Option<Class> {
        let before = self.class(seq);
        let reasons = &self.reasons;
        let purged = reasons.purged.is_some_and(|through| seq <= through);
        if before == now {
            // It may have been on its way, although the group was done with it.
            if purged {
                self.went.remove(&seq);
            }
            return None;
        }
        let upset = reasons.reset || purged;
        let dropped_parked = (purged && reasons.purged_parked) || reasons.reset_parked;
        let dropped =
            dropped_parked || self.discarded.contains(&seq) || (self.replayed.contains(&seq) && upset);
        let allowed = match (before, now) {
            (Class::Open, Class::Settled) => {
                upset || may_settle || reasons.settled.contains(&seq) || self.moved.contains(&seq)
            }
            (Class::Open, Class::Parked) => may_park || reasons.parked.contains(&seq),
            (Class::Parked, Class::Open) => self.replayed.contains(&seq) || reasons.reset_parked,
            (Class::Parked, Class::Settled) => dropped || self.moved_parked.contains(&seq),
            (Class::Settled, Class::Open) => reasons.reset,
            // It expired or was dropped, and could not be brought where it should go.
            (Class::Settled, Class::Parked) => may_park && self.ended.contains(&seq),
            _ => true,
        };
        let said = upset || may_settle || reasons.settled.contains(&seq);
        let only_moved = match before {
            Class::Open => !said,
            // A replay may have been followed by another verb.
            Class::Parked => !dropped && !self.replayed.contains(&seq),
            Class::Settled => false,
        };
        if now == Class::Settled && only_moved {
            self.went.insert(seq);
        } else {
            self.went.remove(&seq);
        }
        assert!(allowed, "I5: {seq} went from {before:?} to {now:?}, and nobody wanted that");
        self.classes.entry(seq).or_default().push((NOT_YET, now));
        Some(before)
    }

    /// The turn is over: its changes are durable once this frame is.
    pub(crate) fn stamp(&mut self, frame: u64) {
        for classes in self.classes.values_mut() {
            for (at, _) in classes.iter_mut().rev().take_while(|(at, _)| *at == NOT_YET) {
                *at = frame;
            }
        }
        if self.upheaval == Some(NOT_YET) {
            self.upheaval = Some(frame);
        }
        self.reasons = Reasons::default();
    }

    /// The server stopped when frames up to `durable` were durable, and this is what came back. `lenient`:
    /// acks may not have been written.
    pub(crate) fn recovered(
        &mut self,
        durable: u64,
        (start, last): (Seq, Seq),
        lenient: bool,
        now: impl Fn(Seq) -> Class,
    ) {
        let upset = self.is_in_upheaval(durable);
        if upset {
            // Messages that were settled since may have been settled before, by another verb.
            self.went.clear();
        }
        for seq in (start.0 + 1..=last.0).map(Seq) {
            let found = now(seq);
            let classes = self.classes.remove(&seq).unwrap_or_default();
            let sure = classes.iter().rev().find(|(frame, _)| *frame <= durable).map_or(Class::Open, |c| c.1);
            let later = classes.iter().filter(|(frame, _)| *frame > durable).map(|&(_, class)| class);
            let mut possible: BTreeSet<Class> = later.collect();
            possible.insert(sure);
            if lenient && possible.contains(&Class::Settled) {
                possible.insert(Class::Open);
            }
            assert!(
                upset || possible.contains(&found),
                "exact resume: {seq} came back as {found:?}, and can only be one of {possible:?}"
            );
            if found != Class::Settled {
                self.went.remove(&seq);
            }
            if found != Class::Open {
                self.classes.insert(seq, vec![(0, found)]);
            }
        }
        // The messages published last may be gone, and their positions given to others.
        self.classes.retain(|&seq, _| seq <= last);
        self.went.retain(|&seq| seq <= last);
        self.upheaval = None;
        self.reasons = Reasons::default();
    }
}
