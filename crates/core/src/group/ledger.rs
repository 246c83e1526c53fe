//! What the log remembers of a group, and the one way in which it changes.
//!
//! There is a method for each kind of entry. The group calls it when it decides, and writes the entry;
//! recovery calls it when it reads the entry. Nothing else changes what is in here, so what recovery
//! arrives at is what was decided.

use std::collections::BTreeMap;

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::entry::Cause;
use crate::fault::{Fault, planted};
use crate::group::progress::Progress;
use crate::group::standing::{Bound, Leased, Standing, State};
use crate::types::{Attempt, ConsumerId, Epoch, Grant, Seq, SeqRange, Timestamp};

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) progress: Progress,
    pub(crate) standing: Standing,
    pub(crate) parked: BTreeMap<Seq, Parked>,
    /// Whether something changed since a snapshot took this part.
    pub(crate) changed: bool,
}

/// What is remembered of a parked message beside its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    pub attempts: u32,
    pub at: Timestamp,
    pub cause: Cause,
}

/// The terms on which messages are handed out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) epoch: Epoch,
    pub(crate) grant: Grant,
    pub(crate) bound: Bound,
    pub(crate) granted: Timestamp,
    pub(crate) deadline: Timestamp,
    pub(crate) holder: Option<ConsumerId>,
}

impl Ledger {
    pub(crate) fn starting_at(floor: Seq) -> Ledger {
        Ledger {
            progress: Progress::starting_at(floor),
            standing: Standing::default(),
            parked: BTreeMap::new(),
            changed: true,
        }
    }

    /// Entry `Handed` or `Leased`. Attempts are counted here, when a message goes out, so one that kills
    /// its consumers is counted whatever becomes of them.
    pub(crate) fn handed(&mut self, range: SeqRange, terms: Terms) {
        self.changed = true;
        let mut next = range.first;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempt = Attempt(state.map_or(0, |state| state.attempts()) + 1);
            let lease = Leased {
                attempt,
                epoch: terms.epoch,
                grant: terms.grant.plus(piece.first.0 - range.first.0),
                bound: terms.bound,
                granted: terms.granted,
                deadline: terms.deadline,
                delivery: terms.grant,
                holder: terms.holder,
            };
            self.standing.put(piece, State::Leased(lease));
            next = piece.last.next();
        }
    }

    /// Entry `Acked`.
    pub(crate) fn acked(&mut self, range: SeqRange) {
        self.changed = true;
        self.standing.remove(range);
        self.progress.settle(range);
    }

    /// Entry `Failed`.
    pub(crate) fn failed(&mut self, seq: Seq, until: Timestamp) {
        self.changed = true;
        let attempts = self.attempts(seq);
        self.standing.put(SeqRange::one(seq), State::Waiting { attempts, until });
    }

    /// Entry `Returned`: as if these had not been handed out.
    pub(crate) fn returned(&mut self, range: SeqRange) {
        self.release(range, 1);
    }

    /// No entry: a connection that goes takes its leases along, and recovery knows that by itself.
    pub(crate) fn released(&mut self, range: SeqRange) {
        self.release(range, 0);
    }

    fn release(&mut self, range: SeqRange, uncounted: u32) {
        self.changed = true;
        let mut next = range.first;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempts = state.map_or(0, |state| state.attempts()).saturating_sub(uncounted);
            self.standing.put(piece, State::Ready { attempts });
            next = piece.last.next();
        }
    }

    /// Entry `Parked`. A parked message counts as settled.
    pub(crate) fn parked(&mut self, seq: Seq, at: Timestamp, cause: Cause) {
        self.changed = true;
        let attempts = self.attempts(seq);
        self.standing.remove(SeqRange::one(seq));
        self.progress.settle(SeqRange::one(seq));
        self.parked.insert(seq, Parked { attempts, at, cause });
    }

    fn attempts(&self, seq: Seq) -> u32 {
        self.standing.run_at(seq).map_or(0, |(_, state)| state.attempts())
    }

    /// After the last entry: leases that hung on a connection are over, the others go on.
    pub(crate) fn reopened(&mut self) {
        let over: Vec<SeqRange> = self
            .standing
            .runs()
            .filter(|(_, state)| matches!(state, State::Leased(lease) if lease.bound == Bound::Connection))
            .map(|(range, _)| range)
            .collect();
        for range in over {
            let uncounted = if planted(Fault::AttemptsForgotten) { u32::MAX } else { 0 };
            self.release(range, uncounted);
        }
    }

    /// The oldest message whose content is still wanted.
    pub(crate) fn oldest_wanted(&self) -> Seq {
        let unsettled = self.progress.floor().next();
        self.parked.keys().next().map_or(unsettled, |&parked| parked.min(unsettled))
    }

    /// `floor | settled runs | standing runs | parked`, positions as distances from the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.progress.floor().0);
        let above = self.progress.above();
        let forgotten = planted(Fault::SettledForgotten);
        put_varint(out, if forgotten { 0 } else { above.runs().count() as u64 });
        let mut from = self.progress.floor().0;
        for run in above.runs().filter(|_| !forgotten) {
            put_run(out, run, &mut from);
        }
        put_varint(out, self.standing.len() as u64);
        let mut from = 0;
        for (run, state) in self.standing.runs() {
            put_run(out, run, &mut from);
            put_state(out, state);
        }
        put_varint(out, self.parked.len() as u64);
        let mut from = 0;
        for (seq, parked) in &self.parked {
            put_varint(out, seq.0 - from);
            from = seq.0;
            put_varint(out, parked.attempts.into());
            put_varint(out, parked.at.0);
            out.push(parked.cause as u8);
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Ledger, DecodeError> {
        let floor = Seq(cursor.varint()?);
        let mut ledger = Ledger::starting_at(floor);
        let mut from = floor.0;
        for _ in 0..cursor.count()? {
            let run = take_run(cursor, &mut from)?;
            ledger.progress.settle(run);
        }
        let mut from = 0;
        for _ in 0..cursor.count()? {
            let run = take_run(cursor, &mut from)?;
            ledger.standing.put(run, take_state(cursor)?);
        }
        let mut from = 0u64;
        for _ in 0..cursor.count()? {
            from = from.checked_add(cursor.varint()?).ok_or(DecodeError::OutOfRange("position"))?;
            let parked = Parked {
                attempts: cursor.varint_u32()?,
                at: Timestamp(cursor.varint()?),
                cause: Cause::decode(cursor.byte()?)?,
            };
            ledger.parked.insert(Seq(from), parked);
        }
        ledger.changed = false;
        Ok(ledger)
    }
}

fn put_run(out: &mut Vec<u8>, run: SeqRange, from: &mut u64) {
    put_varint(out, run.first.0 - *from);
    put_varint(out, run.count() - 1);
    *from = run.last.0;
}

fn take_run(cursor: &mut Cursor<'_>, from: &mut u64) -> Result<SeqRange, DecodeError> {
    let out_of_range = DecodeError::OutOfRange("run of positions");
    let first = from.checked_add(cursor.varint()?).ok_or(out_of_range.clone())?;
    let last = first.checked_add(cursor.varint()?).ok_or(out_of_range)?;
    *from = last;
    Ok(SeqRange::new(Seq(first), Seq(last)))
}

const READY: u8 = 0;
const WAITING: u8 = 1;
const LEASED_CONNECTION: u8 = 2;
const LEASED_CLOCK: u8 = 3;

/// `kind | attempts | what the state has`. The holder is not written: it is gone after a restart.
fn put_state(out: &mut Vec<u8>, state: State) {
    let mut put = |kind: u8, values: &[u64]| {
        out.push(kind);
        put_varint(out, state.attempts().into());
        for &value in values {
            put_varint(out, value);
        }
    };
    match state {
        State::Ready { .. } => put(READY, &[]),
        State::Waiting { until, .. } => put(WAITING, &[until.0]),
        State::Leased(lease) if lease.bound == Bound::Connection => put(LEASED_CONNECTION, &[]),
        State::Leased(lease) => put(
            LEASED_CLOCK,
            &[lease.epoch.0.into(), lease.grant.0, lease.delivery.0, lease.granted.0, lease.deadline.0],
        ),
    }
}

fn take_state(cursor: &mut Cursor<'_>) -> Result<State, DecodeError> {
    let kind = cursor.byte()?;
    let attempts = cursor.varint_u32()?;
    Ok(match kind {
        READY => State::Ready { attempts },
        WAITING => State::Waiting { attempts, until: Timestamp(cursor.varint()?) },
        LEASED_CONNECTION => State::Leased(Leased {
            attempt: Attempt(attempts),
            epoch: Epoch(0),
            grant: Grant(0),
            bound: Bound::Connection,
            granted: Timestamp::ZERO,
            deadline: Timestamp::ZERO,
            delivery: Grant(0),
            holder: None,
        }),
        LEASED_CLOCK => State::Leased(Leased {
            attempt: Attempt(attempts),
            epoch: Epoch(cursor.varint_u32()?),
            grant: Grant(cursor.varint()?),
            bound: Bound::Clock,
            delivery: Grant(cursor.varint()?),
            granted: Timestamp(cursor.varint()?),
            deadline: Timestamp(cursor.varint()?),
            holder: None,
        }),
        _ => return Err(DecodeError::OutOfRange("state of a message")),
    })
}
