//! What the log remembers of a group, and the one way in which it changes.
//!
//! There is a method for each kind of entry. The group calls it when it decides, and writes the entry;
//! recovery calls it when it reads the entry. Nothing else changes what is in here, so what recovery
//! arrives at is what was decided.

use std::collections::BTreeMap;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::entry::{FailedMessage, Failure, JobEnd, ParkedMessage, Route, Selection, Work};
use crate::fault::{Fault, planted};
use crate::group::jobs::{FINISHED_MAX, Job, JobState};
use crate::group::parked::{HISTORY_MAX, Parked, ParkedStore, put_failures, take_failures};
use crate::group::progress::Progress;
use crate::group::standing::{Bound, Last, Leased, Standing, State};
use crate::pace::Rate;
use crate::seqset::SeqSet;
use crate::types::{Attempt, ConsumerId, Epoch, Grant, JobId, KeyHash, Seq, SeqRange, Timestamp};

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) progress: Progress,
    pub(crate) standing: Standing,
    pub(crate) parked: ParkedStore,
    /// Replayed and not settled since, with their keys. They count as settled for the floor, which never
    /// goes back.
    pub(crate) replayed: BTreeMap<Seq, Option<KeyHash>>,
    /// What went wrong with messages that are in process, oldest first.
    pub(crate) failures: BTreeMap<Seq, Vec<Failure>>,
    /// Where those go that are on their way to another stream.
    pub(crate) moving: BTreeMap<Seq, Route>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) next_job: JobId,
    pub(crate) paused: bool,
    /// After a reset or a purge: what is in `standing`, `failures`, `replayed` and `moving` up to here is
    /// over, and goes a slice a turn.
    pub(crate) sweep: Option<Seq>,
    /// Parked messages that nobody wants any more, let go a slice a turn.
    pub(crate) dead: Vec<ParkedStore>,
    /// Whether something changed since a snapshot took this part.
    pub(crate) changed: bool,
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
            parked: ParkedStore::default(),
            replayed: BTreeMap::new(),
            failures: BTreeMap::new(),
            moving: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: JobId(1),
            paused: false,
            sweep: None,
            dead: Vec::new(),
            changed: true,
        }
    }

    /// Entry `Handed` or `Leased`. Attempts are counted here, when a message goes out, so one that kills
    /// its consumers is counted whatever becomes of them. Returns when the first of them was first handed out.
    pub(crate) fn handed(&mut self, range: SeqRange, terms: Terms) -> Timestamp {
        self.changed = true;
        let mut next = range.first;
        let mut first_of_all = None;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempt = Attempt(attempts(state) + 1);
            let first = state.and_then(|state| state.first()).unwrap_or(terms.granted);
            first_of_all.get_or_insert(first);
            let lease = Leased {
                attempt,
                epoch: terms.epoch,
                grant: terms.grant.plus(piece.first.0 - range.first.0),
                bound: terms.bound,
                first,
                granted: terms.granted,
                deadline: terms.deadline,
                delivery: terms.grant,
                holder: terms.holder,
            };
            self.standing.put(piece, State::Leased(lease));
            next = piece.last.next();
        }
        first_of_all.unwrap_or(terms.granted)
    }

    /// Entry `Acked` or `Skipped`.
    pub(crate) fn settled(&mut self, range: SeqRange) {
        self.changed = true;
        self.standing.remove(range);
        self.progress.settle(range);
        self.forget(range);
        // Whatever is on its way is settled when it has arrived.
        while let Some(route) = self.pop_moving(range) {
            if let Some(job) = route.job().and_then(|job| self.jobs.get_mut(&job)) {
                job.done += 1;
            }
        }
    }

    /// What is remembered beside the standing of messages that are done with.
    fn forget(&mut self, range: SeqRange) {
        forget_in(&mut self.failures, range);
        forget_in(&mut self.replayed, range);
    }

    /// The first of these that is on its way to another stream is so no longer.
    fn pop_moving(&mut self, range: SeqRange) -> Option<Route> {
        // Nearly always there is none, and this is asked for every ack.
        if self.moving.is_empty() {
            return None;
        }
        let (&seq, _) = self.moving.range(range.first..=range.last).next()?;
        let route = self.moving.remove(&seq)?;
        if let Some(job) = route.job().and_then(|job| self.jobs.get_mut(&job)) {
            job.on_way = job.on_way.saturating_sub(1);
        }
        Some(route)
    }

    /// Entry `Failed`.
    pub(crate) fn failed(&mut self, message: &FailedMessage) {
        self.changed = true;
        let seq = message.seq;
        let before = self.standing.run_at(seq).map(|(_, state)| state);
        // The lease that failed need not have been written, but the failure is.
        let attempts = attempts(before).max(message.failure.attempt);
        let first = before.and_then(|state| state.first()).unwrap_or(message.failure.at);
        let last = before.and_then(|state| state.last());
        let state = State::Waiting { attempts, first, until: message.until, last };
        self.standing.put(SeqRange::one(seq), state);
        // It may have been on its way to where it cannot go.
        self.pop_moving(SeqRange::one(seq));
        let failures = self.failures.entry(seq).or_default();
        if failures.len() == HISTORY_MAX {
            failures.remove(0);
        }
        failures.push(message.failure.clone());
    }

    /// Entry `Returned`: as if these had not been handed out.
    pub(crate) fn returned(&mut self, range: SeqRange) {
        self.release(range, 1);
    }

    /// Entry `Snoozed`: as if these had not been handed out, but not before `until`. Given back is given up, so
    /// nothing of the lease is kept.
    pub(crate) fn snoozed(&mut self, range: SeqRange, until: Timestamp) {
        self.changed = true;
        let mut next = range.first;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempts = attempts(state).saturating_sub(1);
            self.standing.put(piece, State::Waiting { attempts, first: first(state), until, last: None });
            next = piece.last.next();
        }
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
            let attempts = attempts(state).saturating_sub(uncounted);
            // Given back is given up: what was on that lease is nobody's.
            let last = state.and_then(|state| state.last()).filter(|_| uncounted == 0);
            self.standing.put(piece, State::Ready { attempts, first: first(state), last });
            next = piece.last.next();
        }
    }

    /// Entry `Parked`. A parked message counts as settled.
    pub(crate) fn parked(&mut self, message: &ParkedMessage) {
        self.changed = true;
        let seq = message.seq;
        let before = self.standing.run_at(seq).map(|(_, state)| state);
        let attempts = attempts(before).max(message.failure.attempt);
        let mut failures = self.failures.remove(&seq).unwrap_or_default();
        if failures.len() == HISTORY_MAX {
            failures.remove(0);
        }
        failures.push(message.failure.clone());
        self.standing.remove(SeqRange::one(seq));
        self.progress.settle(SeqRange::one(seq));
        self.forget(SeqRange::one(seq));
        self.pop_moving(SeqRange::one(seq));
        self.parked.insert(seq, Parked { attempts, key: message.key, failures: failures.into() });
    }

    /// Entry `KeysFound`. Returns whether the message is parked and its key was not known.
    pub(crate) fn key_found(&mut self, seq: Seq, key: KeyHash) -> bool {
        self.changed = true;
        self.parked.set_key(seq, key)
    }

    /// Entry `Moving`.
    pub(crate) fn moving(&mut self, seq: Seq, route: &Route) {
        self.changed = true;
        let before = self.standing.run_at(seq).map(|(_, state)| state);
        let last = before.and_then(|state| state.last());
        let state = State::Moving { attempts: attempts(before), first: first(before), last };
        self.standing.put(SeqRange::one(seq), state);
        self.moving.insert(seq, route.clone());
        if let Some(job) = route.job().and_then(|job| self.jobs.get_mut(&job)) {
            job.left.remove(SeqRange::one(seq));
            job.on_way += 1;
        }
    }

    /// Entry `Stayed`: those among these that were on their way are ready again, as they were.
    pub(crate) fn stayed(&mut self, range: SeqRange) {
        self.changed = true;
        while self.pop_moving(range).is_some() {}
        let pieces: Vec<_> = self.standing.pieces(range).collect();
        for (piece, state) in pieces {
            if let Some(State::Moving { attempts, first, last }) = state {
                self.standing.put(piece, State::Ready { attempts, first, last });
            }
        }
    }

    /// Entry `JobPassed`.
    pub(crate) fn job_passed(&mut self, job: JobId, range: SeqRange) {
        self.changed = true;
        self.job_came_to(job, range, 0);
    }

    /// Entry `Replayed`: parked messages are ready again, with their attempts counted anew and their
    /// history kept. Returns the keys of those that were parked.
    pub(crate) fn replayed(&mut self, range: SeqRange, job: JobId) -> Vec<(Seq, Option<KeyHash>)> {
        self.changed = true;
        let mut replayed = Vec::new();
        for seq in range.seqs() {
            let Some(parked) = self.take_parked(seq, job) else { continue };
            let anew = State::Ready { attempts: 0, first: Timestamp::ZERO, last: None };
            self.standing.put(SeqRange::one(seq), anew);
            self.replayed.insert(seq, parked.key);
            self.failures.insert(seq, parked.failures.into_vec());
            replayed.push((seq, parked.key));
        }
        self.job_came_to(job, range, replayed.len() as u64);
        replayed
    }

    /// Entry `Discarded`. Returns the keys of those that were parked.
    pub(crate) fn discarded(&mut self, range: SeqRange, job: JobId) -> Vec<(Seq, Option<KeyHash>)> {
        self.changed = true;
        let parked = range.seqs().filter_map(|seq| Some((seq, self.take_parked(seq, job)?.key)));
        let discarded: Vec<_> = parked.collect();
        self.job_came_to(job, range, discarded.len() as u64);
        discarded
    }

    /// A parked message that the job is about. One that was brought back by somebody else and parked again
    /// since the job began is not meant any more.
    fn take_parked(&mut self, seq: Seq, job: JobId) -> Option<Parked> {
        let began = self.jobs.get(&job).map(|job| job.started);
        let later = self.parked.get(seq)?.at() > began.unwrap_or(Timestamp(u64::MAX));
        if later { None } else { self.parked.remove(seq) }
    }

    /// `done` of the positions in the range were still parked.
    fn job_came_to(&mut self, job: JobId, range: SeqRange, done: u64) {
        if let Some(job) = self.jobs.get_mut(&job) {
            let came_to = job.left.remove(range);
            job.done += done;
            job.failed += came_to.saturating_sub(done);
        }
    }

    /// Entry `JobStarted`.
    pub(crate) fn job_started(
        &mut self,
        id: JobId,
        at: Timestamp,
        work: Work,
        selection: &Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
    ) {
        self.changed = true;
        let mut left = match work {
            Work::Replay | Work::Discard => self.selected(selection),
            Work::Move { .. } => self.unsettled(selection),
        };
        if let Some(limit) = limit.filter(|&limit| limit < left.count()) {
            left = first_of(&mut left, limit);
        }
        let matched = left.count();
        let state = JobState::Running;
        let (done, failed, on_way) = (0, 0, 0);
        let job = Job { id, work, started: at, rate, matched, done, failed, state, on_way, left };
        self.jobs.insert(id, job);
        self.next_job = self.next_job.max(JobId(id.0 + 1));
        self.forget_finished_jobs();
    }

    /// The positions that a selection means of what the group is not done with. There are no reasons for these.
    pub(crate) fn unsettled(&self, selection: &Selection) -> SeqSet {
        let ranges: &[SeqRange] = if let Selection::Seqs(ranges) = selection { ranges } else { &[] };
        let mut seqs = SeqSet::new();
        for range in ranges {
            let mut next = range.first.max(self.progress.floor().next());
            while next <= range.last {
                let settled = self.progress.above().run_from(next);
                let last = settled.map_or(range.last, |settled| range.last.min(Seq(settled.first.0 - 1)));
                if next <= last {
                    seqs.insert(SeqRange::new(next, last));
                }
                let Some(settled) = settled else { break };
                next = settled.last.next();
            }
            for (&seq, _) in self.replayed.range(range.first..=range.last) {
                if !self.is_swept(seq) {
                    seqs.insert(SeqRange::one(seq));
                }
            }
        }
        seqs
    }

    /// The positions that a selection means now.
    pub(crate) fn selected(&self, selection: &Selection) -> SeqSet {
        match selection {
            Selection::All => self.parked.positions().clone(),
            Selection::Reason(reason) => self.parked.with_reason(reason).cloned().unwrap_or_default(),
            Selection::Seqs(ranges) => {
                let mut seqs = SeqSet::new();
                let parked = self.parked.positions();
                for range in ranges {
                    let mut next = range.first;
                    while let Some(run) = parked.run_from(next).and_then(|run| run.overlap(*range)) {
                        seqs.insert(run);
                        next = run.last.next();
                    }
                }
                seqs
            }
        }
    }

    fn forget_finished_jobs(&mut self) {
        let finished = self.jobs.values().filter(|job| !job.is_running());
        let ids: Vec<JobId> = finished.map(|job| job.id).collect();
        for id in ids.iter().take(ids.len().saturating_sub(FINISHED_MAX)) {
            self.jobs.remove(id);
        }
    }

    /// Entry `JobEnded`.
    pub(crate) fn job_ended(&mut self, id: JobId, at: Timestamp, how: &JobEnd) {
        self.changed = true;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.left.clear();
        job.state = match how {
            JobEnd::Done => {
                // Those that were purged on their way are not there to be moved either.
                job.failed = job.matched.saturating_sub(job.done);
                JobState::Done { at }
            }
            JobEnd::Cancelled => JobState::Cancelled { at },
            JobEnd::Failed(why) => JobState::Failed { at, why: why.clone() },
        };
    }

    /// Entry `Extended`, and what extending does to a lease on a connection, which is not written down.
    /// Messages that are not leased any more are left as they are.
    pub(crate) fn extended(&mut self, range: SeqRange, deadline: Timestamp) {
        self.changed = true;
        let pieces: Vec<_> = self.standing.pieces(range).collect();
        for (piece, state) in pieces {
            if let Some(State::Leased(lease)) = state {
                self.standing.put(piece, State::Leased(Leased { deadline, ..lease }));
            }
        }
    }

    /// Entry `GroupPaused`.
    pub(crate) fn paused(&mut self, paused: bool) {
        self.changed = true;
        self.paused = paused;
    }

    /// Entry `Reset`. What stood is over at once, and let go by `sweep`.
    pub(crate) fn reset(&mut self, floor: Seq, parked: bool) {
        self.changed = true;
        if parked {
            self.dead.push(std::mem::take(&mut self.parked));
        }
        self.progress = Progress::starting_with(floor, self.parked.positions());
        self.sweep = Some(Seq(u64::MAX - 1));
    }

    /// Entry `Purged`.
    pub(crate) fn purged(&mut self, through: Seq, parked: bool) {
        self.changed = true;
        if parked {
            let keep = self.parked.positions().run_from(through.next()).is_some();
            if keep {
                let gone: Vec<Seq> = self.parked.positions().runs().flat_map(|run| run.seqs()).collect();
                for seq in gone.into_iter().take_while(|&seq| seq <= through) {
                    self.parked.remove(seq);
                }
            } else {
                self.dead.push(std::mem::take(&mut self.parked));
            }
        }
        if through > self.progress.floor() {
            self.progress.settle(SeqRange::new(Seq(1), through));
        }
        self.sweep = self.sweep.max(Some(through));
    }

    pub(crate) fn is_swept(&self, seq: Seq) -> bool {
        self.sweep.is_some_and(|through| seq <= through)
    }

    /// How many were replayed and are not terminal again, without those that only wait to be swept.
    pub(crate) fn replayed_count(&self) -> u64 {
        let count = match self.sweep {
            Some(through) => self.replayed.range(through.next()..).count(),
            None => self.replayed.len(),
        };
        count as u64
    }

    /// Lets go of up to `max` things beside the standing that a sweep is about. False when there is nothing
    /// left of those.
    pub(crate) fn sweep_aside(&mut self, max: usize) -> bool {
        let through = self.sweep.unwrap_or(Seq::START);
        fn pop<T>(map: &mut BTreeMap<Seq, T>, through: Seq) -> bool {
            map.first_entry()
                .filter(|first| *first.key() <= through)
                .map(std::collections::btree_map::OccupiedEntry::remove)
                .is_some()
        }
        let swept = SeqRange { first: Seq(1), last: through };
        (0..max).all(|_| {
            pop(&mut self.failures, through)
                || pop(&mut self.replayed, through)
                || (through > Seq::START && self.pop_moving(swept).is_some())
        })
    }

    /// Lets go of some of what was parked and is wanted no more.
    pub(crate) fn drop_dead(&mut self, count: usize) {
        if let Some(dead) = self.dead.last_mut()
            && !dead.drop_some(count)
        {
            self.dead.pop();
        }
    }

    /// After the last entry: leases that hung on a connection are over, the others go on.
    pub(crate) fn reopened(&mut self) {
        self.finish_sweep();
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

    /// Recovery sweeps at once: it has no turns.
    pub(crate) fn finish_sweep(&mut self) {
        if let Some(through) = self.sweep {
            // A stream without messages can be purged too.
            if through > Seq::START {
                self.standing.remove(SeqRange::new(Seq(1), through));
            }
            while self.sweep_aside(usize::MAX) {}
            self.sweep = None;
        }
        self.dead.clear();
    }

    /// Whether the group is done with a message: settled or parked.
    pub(crate) fn is_settled(&self, seq: Seq) -> bool {
        self.progress.is_settled(seq) && (!self.replayed.contains_key(&seq) || self.is_swept(seq))
    }

    /// The first position at `seq` or after it that the group is not done with.
    pub(crate) fn unsettled_from(&self, seq: Seq) -> Seq {
        let replayed = self.replayed.range(seq..).next().map(|(&replayed, _)| replayed);
        replayed.into_iter().fold(self.progress.unsettled_from(seq), Seq::min)
    }

    /// The oldest message whose content is still wanted.
    pub(crate) fn oldest_wanted(&self) -> Seq {
        let unsettled = self.progress.floor().next();
        let parked = self.parked.positions().first();
        let replayed = self.replayed.keys().next().copied();
        [parked, replayed].into_iter().flatten().fold(unsettled, Seq::min)
    }

    /// `floor | settled | standing | replayed | failures | moving | jobs | next job | paused | terms of moves that
    /// are not the usual ones`, positions as distances from the one before. What is parked has parts of its own.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.progress.floor().0);
        let above = self.progress.above();
        let forgotten = planted(Fault::SettledForgotten);
        put_varint(out, if forgotten { 0 } else { above.runs().count() as u64 });
        let mut from = self.progress.floor().0;
        for run in above.runs().filter(|_| !forgotten) {
            put_run(out, run, &mut from);
        }
        // What a sweep has not come to yet is over all the same.
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
        ledger.replayed = take_map(cursor, |cursor| {
            Ok(if cursor.byte()? == 1 { Some(KeyHash(cursor.u64()?)) } else { None })
        })?;
        ledger.failures = take_map(cursor, take_failures)?;
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
        for job in ledger.moving.values().filter_map(Route::job) {
            if let Some(job) = ledger.jobs.get_mut(&job) {
                job.on_way += 1;
            }
        }
        ledger.changed = false;
        Ok(ledger)
    }
}

/// How often a message was handed out, untouched ones among them.
fn attempts(state: Option<State>) -> u32 {
    state.map_or(0, |state| state.attempts())
}

fn first(state: Option<State>) -> Timestamp {
    state.and_then(|state| state.first()).unwrap_or(Timestamp::ZERO)
}

fn forget_in<T>(map: &mut BTreeMap<Seq, T>, range: SeqRange) {
    // Nearly always there is nothing in it, and this is asked for every ack.
    if map.is_empty() {
        return;
    }
    while let Some((&seq, _)) = map.range(range.first..=range.last).next() {
        map.remove(&seq);
    }
}

/// The lowest `count` of them.
fn first_of(seqs: &mut SeqSet, count: u64) -> SeqSet {
    let mut first = SeqSet::new();
    while first.count() < count
        && let Some(run) = seqs.pop_run(count - first.count())
    {
        first.insert(run);
    }
    first
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

fn put_map<T>(out: &mut Vec<u8>, map: &BTreeMap<Seq, T>, begin: Seq, put: impl Fn(&mut Vec<u8>, &T)) {
    put_varint(out, map.range(begin..).count() as u64);
    let mut from = 0;
    for (seq, value) in map.range(begin..) {
        put_varint(out, seq.0 - from);
        from = seq.0;
        put(out, value);
    }
}

fn take_map<T>(
    cursor: &mut Cursor<'_>,
    take: impl Fn(&mut Cursor<'_>) -> Result<T, DecodeError>,
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
    let first = state.first().filter(|&first| Some(first) != granted);
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
        Some(Last { epoch: Epoch(cursor.varint_u32()?), grant: Grant(cursor.varint()?) })
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
