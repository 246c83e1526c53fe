//! Entries of a group, as decisions.

use crate::codec::DecodeError;
use crate::entry::{Entry, FailedMessage, ParkedMessage, Selection, Work};
use crate::group::decision::{Decision, Terms};
use crate::group::ledger::Ledger;
use crate::group::parked::with_shared_texts;
use crate::group::standing::Bound;
use crate::texts::Texts;
use crate::types::{Attempt, Epoch, Grant, Seq, SeqRange, Timestamp};

impl Ledger {
    /// Applies an entry that the log vouches for, or that the shard has decided on. `last` is the last message of the
    /// stream, and `epoch` the one that the entry was written in. `texts` are those of the group.
    pub(crate) fn apply_entry(
        &mut self,
        epoch: Epoch,
        last: Seq,
        entry: &Entry,
        texts: &mut Texts,
    ) -> Result<(), DecodeError> {
        let check = |range: &SeqRange| match range.last <= last {
            true => Ok(()),
            false => Err(DecodeError::Contradiction("a group is only handed published messages")),
        };
        let terms =
            |grant, bound, granted, deadline| Terms { epoch, grant, bound, granted, deadline, holder: None };
        let mut each = |ranges: &[SeqRange], decision: &dyn Fn(SeqRange) -> Decision| {
            for range in ranges {
                check(range)?;
                self.apply(&decision(*range));
            }
            Ok(())
        };
        match entry {
            Entry::Handed { at, ranges, .. } => {
                let terms = terms(Grant(0), Bound::Connection, *at, Timestamp::ZERO);
                each(ranges, &|seqs| Decision::Leased { seqs, attempt: Attempt::FIRST, terms })?;
            }
            Entry::Leased { at, duration, runs, .. } => {
                for run in runs {
                    let terms = terms(run.grant, Bound::Clock, *at, *at + *duration);
                    each(&[run.range], &|seqs| Decision::Leased { seqs, attempt: Attempt::FIRST, terms })?;
                }
            }
            Entry::Acked { ranges, .. } => each(ranges, &Decision::Acked)?,
            Entry::Skipped { how, ranges, .. } => {
                each(ranges, &|seqs| Decision::Ended { seqs, how: *how })?;
            }
            Entry::Returned { ranges, .. } => each(ranges, &Decision::Returned)?,
            Entry::Snoozed { at, until, ranges, .. } => {
                each(ranges, &|seqs| Decision::Snoozed { seqs, at: *at, until: *until })?;
            }
            Entry::Failed { messages, .. } => {
                for message in messages {
                    let failure = with_shared_texts(&message.failure, texts);
                    let message = FailedMessage { failure, ..*message };
                    each(&[SeqRange::one(message.seq)], &|_| Decision::Failed(message.clone()))?;
                }
            }
            Entry::Parked { messages, .. } => {
                for message in messages {
                    let failure = with_shared_texts(&message.failure, texts);
                    let message = ParkedMessage { failure, ..*message };
                    each(&[SeqRange::one(message.seq)], &|_| Decision::Parked(message.clone()))?;
                }
            }
            Entry::KeysFound { keys, .. } => {
                for &(seq, key) in keys {
                    each(&[SeqRange::one(seq)], &|_| Decision::KeyFound { seq, key })?;
                }
            }
            Entry::Moving { route, seqs, .. } => {
                each(seqs, &|seqs| Decision::Moving { seqs, route: route.clone() })?;
            }
            Entry::Sent { route, ranges, .. } => {
                each(ranges, &|seqs| Decision::Sent { seqs, route: route.clone() })?;
            }
            Entry::Stayed { ranges, .. } => each(ranges, &Decision::Stayed)?,
            Entry::Replayed { job, ranges, .. } => {
                each(ranges, &|seqs| Decision::Replayed { seqs, job: *job })?;
            }
            Entry::Discarded { job, ranges, .. } => {
                each(ranges, &|seqs| Decision::Discarded { seqs, job: *job })?;
            }
            Entry::JobPassed { job, ranges, .. } => {
                each(ranges, &|seqs| Decision::JobPassed { seqs, job: *job })?;
            }
            Entry::Extended { at, deadline, ranges, .. } => {
                let (at, deadline, bound) = (*at, *deadline, Bound::Clock);
                each(ranges, &|seqs| Decision::Extended { seqs, at, deadline, bound })?;
            }
            Entry::JobStarted { job, at, work, selection, limit, rate, .. } => {
                if job.0 == u32::MAX {
                    return Err(DecodeError::OutOfRange("number of a job"));
                }
                if let (Work::Move { .. }, Selection::Seqs(ranges)) = (work, selection) {
                    ranges.iter().try_for_each(check)?;
                }
                let (work, selection) = (work.clone(), selection.clone());
                let (job, at, limit, rate) = (*job, *at, *limit, *rate);
                self.apply(&Decision::JobStarted { job, at, work, selection, limit, rate });
            }
            Entry::JobEnded { job, at, how, .. } => {
                self.apply(&Decision::JobEnded { job: *job, at: *at, how: how.clone() });
            }
            Entry::GroupPaused { paused, .. } => self.apply(&Decision::Paused(*paused)),
            Entry::Reset { floor, parked, .. } => {
                if *floor > last {
                    return Err(DecodeError::Contradiction("a group is only reset to a published position"));
                }
                self.apply(&Decision::Reset { floor: *floor, parked: *parked });
            }
            _ => unreachable!("an entry about a group"),
        }
        Ok(())
    }
}
