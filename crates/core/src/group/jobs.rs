//! Work on many messages that takes its time: replaying or discarding parked messages, or moving waiting messages
//! to another stream, at a rate.
//!
//! The messages of a job are fixed when it starts. Each step is an entry, so a job goes on after a restart
//! where it was, and a crash leaves each message either parked or ready, or in one of the two streams.

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::entry::{JobFailure, Work};
use crate::pace::Rate;
use crate::seqset::SeqSet;
use crate::types::{JobId, SeqRange, Timestamp};

/// Jobs that are over and still remembered, so that their outcome can be asked for.
pub(crate) const FINISHED_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub id: JobId,
    pub work: Work,
    pub started: Timestamp,
    pub rate: Option<Rate>,
    /// How many messages it was started for.
    pub matched: u64,
    pub done: u64,
    /// Messages that were not parked any more when it came to them, or could not be moved.
    pub failed: u64,
    pub state: JobState,
    /// Messages that it has put on their way to another stream and that have not arrived. Not written down: the
    /// count follows from the messages in the state `Moving`.
    pub(crate) on_way: u64,
    /// Messages it has not come to.
    pub(crate) left: SeqSet,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    Running,
    Done {
        at: Timestamp,
    },
    Cancelled {
        at: Timestamp,
    },
    /// It could not go on. The remaining messages stay where they were.
    Failed {
        at: Timestamp,
        why: JobFailure,
    },
}

impl Job {
    pub(crate) fn starting(
        id: JobId,
        started: Timestamp,
        work: Work,
        rate: Option<Rate>,
        left: SeqSet,
    ) -> Job {
        let (matched, state) = (left.count(), JobState::Running);
        Job { id, work, started, rate, matched, done: 0, failed: 0, state, on_way: 0, left }
    }

    pub fn is_running(&self) -> bool {
        self.state == JobState::Running
    }

    /// `id | work | started | rate | matched | done | failed | state, with when and why | left`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0.into());
        self.work.encode(out);
        put_varint(out, self.started.0);
        put_varint(out, self.rate.map_or(0, |rate| rate.burst.into()));
        put_varint(out, self.rate.map_or(0, |rate| rate.per_second.to_bits()));
        put_varint(out, self.matched);
        put_varint(out, self.done);
        put_varint(out, self.failed);
        let (state, at) = match &self.state {
            JobState::Running => (0, Timestamp::ZERO),
            JobState::Done { at } => (1, *at),
            JobState::Cancelled { at } => (2, *at),
            JobState::Failed { at, .. } => (3, *at),
        };
        out.push(state);
        put_varint(out, at.0);
        if let JobState::Failed { why, .. } = &self.state {
            why.encode(out);
        }
        let runs: Vec<SeqRange> = self.left.runs().collect();
        put_varint(out, runs.len() as u64);
        let mut from = 0;
        for run in runs {
            super::ledger::put_run(out, run, &mut from);
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Job, DecodeError> {
        let id = JobId(cursor.varint_u32()?);
        let work = Work::decode(cursor)?;
        let started = Timestamp(cursor.varint()?);
        let (burst, per_second) = (cursor.varint_u32()?, f64::from_bits(cursor.varint()?));
        let (matched, done, failed) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        let (state, at) = (cursor.byte()?, Timestamp(cursor.varint()?));
        let state = match state {
            0 => JobState::Running,
            1 => JobState::Done { at },
            2 => JobState::Cancelled { at },
            3 => JobState::Failed { at, why: JobFailure::decode(cursor)? },
            _ => return Err(DecodeError::OutOfRange("state of a job")),
        };
        let mut left = SeqSet::new();
        let mut from = 0;
        for _ in 0..cursor.count()? {
            left.insert(super::ledger::take_run(cursor, &mut from)?);
        }
        let rate = (burst > 0).then_some(Rate { per_second, burst });
        Ok(Job { id, work, started, rate, matched, done, failed, state, on_way: 0, left })
    }
}
