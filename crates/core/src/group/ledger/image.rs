//! The part of an image that a group's ledger is.

use std::collections::BTreeMap;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::entry::Route;
use crate::fault::{Fault, planted};
use crate::group::jobs::Job;
use crate::group::ledger::{Ledger, Outgoing};
use crate::group::parked::{put_failures, take_failures};
use crate::group::standing::{Bound, LastLease, Leased, State};
use crate::texts::Texts;
use crate::types::{Attempt, Epoch, Grant, JobId, KeyHash, Seq, SeqRange, Timestamp};

impl Ledger {
    /// `floor | settled | standing | replayed | failures | moving | jobs | next job | paused | terms of moves that
    /// are not the usual ones | messages that go to another stream, if there are any`, positions as distances from the
    /// one before. The parked list has parts of its own.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>) {
        self.changed = false;
        put_varint(out, self.progress.floor().0);
        let above = self.progress.above();
        let forgotten = planted(Fault::SettledForgotten);
        put_varint(out, if forgotten { 0 } else { above.runs().count() as u64 });
        let mut from = self.progress.floor().0;
        for run in above.runs().filter(|_| !forgotten) {
            put_run(out, run, &mut from);
        }
        // Entries that a sweep has not come to yet are over all the same.
        let begin = self.sweep.map_or(Seq(1), Seq::next);
        let end = Seq(u64::MAX - 1);
        let pieces = || {
            // After a reset that is everything.
            let rest = (begin <= end).then(|| SeqRange::new(begin, end));
            let runs = rest.into_iter().flat_map(|rest| self.standing.pieces(rest));
            runs.filter_map(|(run, state)| state.map(|state| (run, state)))
        };
        put_varint(out, pieces().count() as u64);
        let mut from = 0;
        for (run, state) in pieces() {
            put_run(out, run, &mut from);
            put_state(out, state);
        }
        put_map(out, &self.replayed, begin, |out, key| {
            out.push(u8::from(key.is_some()));
            if let Some(key) = key {
                out.extend_from_slice(&key.0.to_le_bytes());
            }
        });
        put_map(out, &self.failures, begin, |out, failures| put_failures(out, failures));
        put_map(out, &self.moving, begin, |out, route| put_bytes(out, route.name()));
        put_varint(out, self.jobs.len() as u64);
        for job in self.jobs.values() {
            job.encode(out);
        }
        put_varint(out, self.next_job.0.into());
        out.push(u8::from(self.paused));
        let unusual = self.moving.iter().filter(|(_, route)| !route.is_usual());
        let unusual: BTreeMap<Seq, &Route> = unusual.map(|(&seq, route)| (seq, route)).collect();
        put_map(out, &unusual, begin, |out, route| route.put_rest(out));
        if !self.outgoing.is_empty() {
            self.outgoing.encode(out);
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>, texts: &mut Texts) -> Result<Ledger, DecodeError> {
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
        ledger.replayed = take_map(cursor, |cursor| {
            Ok(if cursor.byte()? == 1 { Some(KeyHash(cursor.u64()?)) } else { None })
        })?;
        ledger.failures = take_map(cursor, |cursor| take_failures(cursor, texts))?;
        let names = take_map(cursor, |cursor| Ok(cursor.text()?.to_owned()))?;
        ledger.moving = names.iter().map(|(&seq, name)| (seq, Route::usual(name))).collect();
        for _ in 0..cursor.count()? {
            let job = Job::decode(cursor)?;
            ledger.jobs.insert(job.id, job);
        }
        ledger.next_job = JobId(cursor.varint_u32()?);
        ledger.paused = cursor.byte()? == 1;
        // There was no more once.
        if !cursor.is_at_end() {
            let unusual = take_map(cursor, |cursor| Route::take_rest("", cursor))?;
            for (seq, route) in unusual {
                let name = names.get(&seq).ok_or(DecodeError::OutOfRange("terms of a move"))?;
                ledger.moving.insert(seq, route.named(name));
            }
        }
        if !cursor.is_at_end() {
            ledger.outgoing = Outgoing::decode(cursor)?;
        }
        for job in ledger.moving.values().filter_map(Route::job) {
            if let Some(job) = ledger.jobs.get_mut(&job) {
                job.on_way += 1;
            }
        }
        ledger.changed = false;
        Ok(ledger)
    }
}

pub(crate) fn put_run(out: &mut Vec<u8>, run: SeqRange, from: &mut u64) {
    put_varint(out, run.first.0 - *from);
    put_varint(out, run.count() - 1);
    *from = run.last.0;
}

pub(crate) fn take_run(cursor: &mut Cursor<'_>, from: &mut u64) -> Result<SeqRange, DecodeError> {
    let out_of_range = || DecodeError::OutOfRange("run of positions");
    let first = from.checked_add(cursor.varint()?).ok_or_else(out_of_range)?;
    let last =
        first.checked_add(cursor.varint()?).filter(|&last| last < u64::MAX).ok_or_else(out_of_range)?;
    *from = last;
    Ok(SeqRange::new(Seq(first), Seq(last)))
}

pub(super) fn put_map<T>(
    out: &mut Vec<u8>,
    map: &BTreeMap<Seq, T>,
    begin: Seq,
    put: impl Fn(&mut Vec<u8>, &T),
) {
    put_varint(out, map.range(begin..).count() as u64);
    let mut from = 0;
    for (seq, value) in map.range(begin..) {
        put_varint(out, seq.0 - from);
        from = seq.0;
        put(out, value);
    }
}

pub(super) fn take_map<T>(
    cursor: &mut Cursor<'_>,
    mut take: impl FnMut(&mut Cursor<'_>) -> Result<T, DecodeError>,
) -> Result<BTreeMap<Seq, T>, DecodeError> {
    let mut map = BTreeMap::new();
    let mut from = 0u64;
    for _ in 0..cursor.count()? {
        from = from.checked_add(cursor.varint()?).ok_or(DecodeError::OutOfRange("position"))?;
        map.insert(Seq(from), take(cursor)?);
    }
    Ok(map)
}

const READY: u8 = 0;
const WAITING: u8 = 1;
const LEASED_CONNECTION: u8 = 2;
const LEASED_CLOCK: u8 = 3;
const MOVING: u8 = 4;
/// The last lease follows.
const LAST: u8 = 0x10;
/// When it was first handed out follows. Not written for a first lease on the clock, which says when it was granted.
const FIRST: u8 = 0x20;

/// `kind | attempts | first | what the state has`. The holder is not written: it is gone after a restart.
fn put_state(out: &mut Vec<u8>, state: State) {
    let granted = match state {
        State::Leased(lease) if lease.bound == Bound::Clock => Some(lease.granted),
        _ => None,
    };
    let first = Some(state.handed_out_at()).filter(|&at| at > Timestamp::ZERO && Some(at) != granted);
    let mut put = |kind: u8, values: &[u64]| {
        out.push(if first.is_some() { kind | FIRST } else { kind });
        put_varint(out, state.attempts().into());
        if let Some(first) = first {
            put_varint(out, first.0);
        }
        for &value in values {
            put_varint(out, value);
        }
    };
    match state {
        State::Ready { last: None, .. } => put(READY, &[]),
        State::Ready { last: Some(last), .. } => put(READY | LAST, &[last.epoch.0.into(), last.grant.0]),
        State::Waiting { until, last: None, .. } => put(WAITING, &[until.0]),
        State::Waiting { until, last: Some(last), .. } => {
            put(WAITING | LAST, &[last.epoch.0.into(), last.grant.0, until.0]);
        }
        State::Leased(lease) if lease.bound == Bound::Connection => put(LEASED_CONNECTION, &[]),
        State::Leased(lease) => put(
            LEASED_CLOCK,
            &[lease.epoch.0.into(), lease.grant.0, lease.delivery.0, lease.granted.0, lease.deadline.0],
        ),
        State::Moving { last: None, .. } => put(MOVING, &[]),
        State::Moving { last: Some(last), .. } => put(MOVING | LAST, &[last.epoch.0.into(), last.grant.0]),
    }
}

fn take_state(cursor: &mut Cursor<'_>) -> Result<State, DecodeError> {
    let kind = cursor.byte()?;
    let attempts = cursor.varint_u32()?;
    let said = if kind & FIRST != 0 { Some(Timestamp(cursor.varint()?)) } else { None };
    let first = said.unwrap_or(Timestamp::ZERO);
    let last = if kind & LAST != 0 {
        Some(LastLease { epoch: Epoch(cursor.varint_u32()?), grant: Grant(cursor.varint()?) })
    } else {
        None
    };
    Ok(match kind & !(LAST | FIRST) {
        READY => State::Ready { attempts, first, last },
        WAITING => State::Waiting { attempts, first, until: Timestamp(cursor.varint()?), last },
        MOVING => State::Moving { attempts, first, last },
        LEASED_CONNECTION => State::Leased(Leased {
            attempt: Attempt(attempts),
            epoch: Epoch(0),
            grant: Grant(0),
            bound: Bound::Connection,
            first,
            granted: Timestamp::ZERO,
            deadline: Timestamp::ZERO,
            delivery: Grant(0),
            holder: None,
        }),
        LEASED_CLOCK => {
            let (epoch, grant) = (Epoch(cursor.varint_u32()?), Grant(cursor.varint()?));
            let (delivery, granted) = (Grant(cursor.varint()?), Timestamp(cursor.varint()?));
            State::Leased(Leased {
                attempt: Attempt(attempts),
                epoch,
                grant,
                bound: Bound::Clock,
                first: said.unwrap_or(granted),
                granted,
                deadline: Timestamp(cursor.varint()?),
                delivery,
                holder: None,
            })
        }
        _ => return Err(DecodeError::OutOfRange("state of a message")),
    })
}
