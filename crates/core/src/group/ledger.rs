//! The durable state of a group, and the one way in which it changes: [`Ledger::apply`].
//!
//! The group applies what it decides, and recovery applies what it reads, so both arrive at the same state. Everything
//! else in here only reads, or lets go of state that a reset, a purge or a deletion has ended already.

mod image;
mod outgoing;
mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::DecodeError;
use crate::entry::{FailedMessage, Failure, JobEnd, ParkedMessage, Route, Selection, Work};
use crate::fault::{Fault, planted};
use crate::group::decision::{Decision, Terms};
use crate::group::jobs::{FINISHED_MAX, Job, JobState};
use crate::group::parked::{Chunk, HISTORY_MAX, Parked, ParkedStore};
use crate::group::progress::Progress;
use crate::group::standing::{Bound, Leased, Standing, State};
use crate::seqset::SeqSet;
use crate::texts::Texts;
use crate::types::{Attempt, JobId, KeyHash, Seq, SeqRange, Timestamp};

pub(crate) use image::{put_run, take_run};
pub(crate) use outgoing::Outgoing;

#[derive(Debug)]
pub(crate) struct Ledger {
    progress: Progress,
    standing: Standing,
    parked: ParkedStore,
    /// Replayed and not settled since, with their keys. They count as settled for the floor, which never
    /// goes back.
    replayed: BTreeMap<Seq, Option<KeyHash>>,
    /// The failures of messages in process, oldest first.
    failures: BTreeMap<Seq, Vec<Failure>>,
    /// Where those go that are on their way to another stream.
    moving: BTreeMap<Seq, Route>,
    /// Settled, and still to be brought to another stream.
    outgoing: Outgoing,
    jobs: BTreeMap<JobId, Job>,
    next_job: JobId,
    paused: bool,
    /// After a reset or a purge: entries of `standing`, `failures`, `replayed` and `moving` up to here are
    /// obsolete, and are dropped a slice a turn.
    sweep: Option<Seq>,
    /// Parked messages that a reset or a purge has ended, let go a slice a turn.
    dead: Vec<ParkedStore>,
    /// Whether something changed since an image took this part.
    changed: bool,
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
            outgoing: Outgoing::default(),
            jobs: BTreeMap::new(),
            next_job: JobId(1),
            paused: false,
            sweep: None,
            dead: Vec::new(),
            changed: true,
        }
    }

    /// The only function that changes the durable state.
    pub(crate) fn apply(&mut self, decision: &Decision) {
        self.changed = true;
        match decision {
            Decision::Leased { seqs, terms, .. } => self.lease(*seqs, terms),
            Decision::Ready(seqs) => self.release(*seqs, 0),
            Decision::Acked(seqs) => self.settle(*seqs),
            Decision::Ended { seqs, .. } => {
                self.settle(*seqs);
                self.outgoing.remove(*seqs);
            }
            Decision::Sent { seqs, route } => self.send(*seqs, route),
            Decision::Failed(message) => self.fail(message),
            Decision::Returned(seqs) => self.release(*seqs, 1),
            Decision::Snoozed { seqs, until, .. } => self.snooze(*seqs, *until),
            Decision::Parked(message) => self.park(message),
            Decision::KeyFound { seq, key } => {
                self.parked.set_key(*seq, *key);
            }
            Decision::Moving { seqs, route } => seqs.seqs().for_each(|seq| self.start_move(seq, route)),
            Decision::Stayed(seqs) => self.end_moves(*seqs),
            Decision::Replayed { seqs, job } => self.replay(*seqs, *job),
            Decision::Discarded { seqs, job } => self.discard(*seqs, *job),
            Decision::JobPassed { seqs, job } => self.job_came_to(*job, *seqs, 0),
            Decision::Extended { seqs, deadline, .. } => self.extend(*seqs, *deadline),
            Decision::JobStarted { job, at, work, selection, limit, rate } => {
                let left = self.meant(work, selection, *limit);
                self.start_job(Job::starting(*job, *at, work.clone(), *rate, left));
            }
            Decision::JobEnded { job, at, how } => self.end_job(*job, *at, how),
            Decision::Paused(paused) => self.paused = *paused,
            Decision::Reset { floor, parked } => self.reset(*floor, *parked),
            Decision::Purged { through, parked } => self.purge(*through, *parked),
        }
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    pub(crate) fn parked(&self) -> &ParkedStore {
        &self.parked
    }

    /// Messages that were replayed and are not settled since, with their keys.
    pub(crate) fn replayed(&self) -> &BTreeMap<Seq, Option<KeyHash>> {
        &self.replayed
    }

    /// The routes of messages that are on their way to another stream.
    pub(crate) fn moving(&self) -> &BTreeMap<Seq, Route> {
        &self.moving
    }

    /// Messages that are settled and have yet to be brought to another stream.
    pub(crate) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    pub(crate) fn jobs(&self) -> &BTreeMap<JobId, Job> {
        &self.jobs
    }

    pub(crate) fn next_job(&self) -> JobId {
        self.next_job
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The position up to which a reset or a purge has ended entries that are still to be swept.
    pub(crate) fn sweeps_through(&self) -> Option<Seq> {
        self.sweep
    }

    /// Whether parked messages that were purged or reset are still in memory.
    pub(crate) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Whether the state has changed since an image took it.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    fn lease(&mut self, seqs: SeqRange, terms: &Terms) {
        self.end_moving(seqs);
        let mut next = seqs.first;
        while next <= seqs.last {
            let rest = SeqRange::new(next, seqs.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let lease = Leased {
                attempt: Attempt(attempts(state) + 1),
                epoch: terms.epoch,
                grant: terms.grant.plus(piece.first.0 - seqs.first.0),
                bound: terms.bound,
                first: state.and_then(|state| state.first()).unwrap_or(terms.granted),
                granted: terms.granted,
                deadline: terms.deadline,
                delivery: terms.grant,
                holder: terms.holder,
            };
            self.standing.put(piece, State::Leased(lease));
            next = piece.last.next();
        }
    }

    fn settle(&mut self, seqs: SeqRange) {
        self.standing.remove(seqs);
        self.progress.settle(seqs);
        self.forget(seqs);
        // A message on its way to another stream is settled when it has arrived there.
        while let Some(route) = self.pop_moving(seqs) {
            if let Some(job) = route.job().and_then(|job| self.jobs.get_mut(&job)) {
                job.done += 1;
            }
        }
    }

    /// The group is done with messages that go to another stream.
    fn send(&mut self, seqs: SeqRange, route: &Route) {
        let pieces: Vec<_> = self.standing.pieces(seqs).collect();
        for (piece, state) in pieces {
            self.outgoing.insert(piece, route, attempts(state));
        }
        self.settle(seqs);
    }

    /// Forgets the records of settled messages beside their standing.
    fn forget(&mut self, range: SeqRange) {
        forget_in(&mut self.failures, range);
        forget_in(&mut self.replayed, range);
    }

    /// The first of these that is on its way to another stream is so no longer.
    fn pop_moving(&mut self, range: SeqRange) -> Option<Route> {
        // Nearly always no message is moving, and this is asked for every ack.
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

    /// A message that is leased, waits or is ready is not moving. In a log without holes no message is by then; in one
    /// that was salvaged the entry that ended a move may be lost.
    fn end_moving(&mut self, range: SeqRange) {
        while self.pop_moving(range).is_some() {}
    }

    fn fail(&mut self, message: &FailedMessage) {
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

    /// A consumer that gives messages back gives up its lease, so a late ack of it does not count.
    fn snooze(&mut self, range: SeqRange, until: Timestamp) {
        self.end_moving(range);
        let mut next = range.first;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempts = attempts(state).saturating_sub(1);
            self.standing.put(piece, State::Waiting { attempts, first: first(state), until, last: None });
            next = piece.last.next();
        }
    }

    /// `uncounted`: attempts that do not count after all.
    fn release(&mut self, range: SeqRange, uncounted: u32) {
        self.end_moving(range);
        let mut next = range.first;
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) = self.standing.pieces(rest).next().expect("a range has at least one piece");
            let attempts = attempts(state).saturating_sub(uncounted);
            // A consumer that gives messages back gives up its lease.
            let last = state.and_then(|state| state.last()).filter(|_| uncounted == 0);
            self.standing.put(piece, State::Ready { attempts, first: first(state), last });
            next = piece.last.next();
        }
    }

    fn park(&mut self, message: &ParkedMessage) {
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
        self.outgoing.remove(SeqRange::one(seq));
        self.parked.insert(seq, Parked { attempts, key: message.key, failures: failures.into() });
    }

    fn start_move(&mut self, seq: Seq, route: &Route) {
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

    /// Messages of the range that were on their way are ready again, as they were.
    fn end_moves(&mut self, range: SeqRange) {
        while self.pop_moving(range).is_some() {}
        let pieces: Vec<_> = self.standing.pieces(range).collect();
        for (piece, state) in pieces {
            if let Some(State::Moving { attempts, first, last }) = state {
                self.standing.put(piece, State::Ready { attempts, first, last });
            }
        }
    }

    /// The parked messages of the range that a job may take out, with their keys.
    pub(crate) fn parked_for(&self, seqs: SeqRange, job: JobId) -> Vec<(Seq, Option<KeyHash>)> {
        let meant = seqs.seqs().filter(|&seq| self.is_meant(seq, job));
        meant.map(|seq| (seq, self.parked.get(seq).and_then(|parked| parked.key))).collect()
    }

    /// Whether a message is parked and a job is about it. One that was replayed otherwise and parked again since the
    /// job began is not meant any more.
    pub(crate) fn is_meant(&self, seq: Seq, job: JobId) -> bool {
        let began = self.jobs.get(&job).map_or(Timestamp(u64::MAX), |job| job.started);
        self.parked.get(seq).is_some_and(|parked| parked.at() <= began)
    }

    fn replay(&mut self, seqs: SeqRange, job: JobId) {
        let mut done = 0;
        for seq in seqs.seqs() {
            let Some(parked) = self.take_parked(seq, job) else { continue };
            // Attempts begin anew, but consumers have seen it.
            let seen = parked.failures.first().filter(|_| parked.attempts > 0);
            let first = seen.map_or(Timestamp::ZERO, |failure| failure.at);
            self.standing.put(SeqRange::one(seq), State::Ready { attempts: 0, first, last: None });
            self.replayed.insert(seq, parked.key);
            self.failures.insert(seq, parked.failures.into_vec());
            done += 1;
        }
        self.job_came_to(job, seqs, done);
    }

    fn discard(&mut self, seqs: SeqRange, job: JobId) {
        let done = seqs.seqs().filter_map(|seq| self.take_parked(seq, job)).count();
        self.job_came_to(job, seqs, done as u64);
    }

    fn take_parked(&mut self, seq: Seq, job: JobId) -> Option<Parked> {
        if self.is_meant(seq, job) { self.parked.remove(seq) } else { None }
    }

    /// `done` of the positions in the range were still parked.
    fn job_came_to(&mut self, job: JobId, range: SeqRange, done: u64) {
        if let Some(job) = self.jobs.get_mut(&job) {
            let came_to = job.left.remove(range);
            job.done += done;
            job.failed += came_to.saturating_sub(done);
        }
    }

    fn start_job(&mut self, job: Job) {
        self.next_job = self.next_job.max(JobId(job.id.0 + 1));
        self.jobs.insert(job.id, job);
        self.forget_finished_jobs();
    }

    /// The positions that a job is started for.
    fn meant(&self, work: &Work, selection: &Selection, limit: Option<u64>) -> SeqSet {
        let mut seqs = match work {
            Work::Replay | Work::Discard | Work::MoveParked { .. } => self.selected(selection),
            Work::Move { .. } => self.unsettled(selection),
        };
        match limit.filter(|&limit| limit < seqs.count()) {
            Some(limit) => first_of(&mut seqs, limit),
            None => seqs,
        }
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

    fn end_job(&mut self, id: JobId, at: Timestamp, how: &JobEnd) {
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

    fn extend(&mut self, range: SeqRange, deadline: Timestamp) {
        let pieces: Vec<_> = self.standing.pieces(range).collect();
        for (piece, state) in pieces {
            if let Some(State::Leased(lease)) = state {
                self.standing.put(piece, State::Leased(Leased { deadline, ..lease }));
            }
        }
    }

    /// Everything in process is over at once, and is let go a slice a turn.
    fn reset(&mut self, floor: Seq, parked: bool) {
        if parked {
            self.dead.push(std::mem::take(&mut self.parked));
        }
        // Messages that the group is done with go where they should, whatever it does next.
        let mut settled = self.parked.positions().clone();
        for run in self.outgoing.runs_from(Seq::START) {
            settled.insert(run);
        }
        self.progress = Progress::starting_with(floor, &settled);
        self.sweep = Some(Seq(u64::MAX - 1));
    }

    fn purge(&mut self, through: Seq, parked: bool) {
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
        if through > Seq::START {
            self.outgoing.remove(SeqRange::new(Seq(1), through));
        }
        if through > self.progress.floor() {
            self.progress.settle(SeqRange::new(Seq(1), through));
        }
        self.sweep = self.sweep.max(Some(through));
    }

    /// The failures of messages in process.
    pub(crate) fn failures(&self) -> &BTreeMap<Seq, Vec<Failure>> {
        &self.failures
    }

    /// The chunks of parked messages for an image, and whether each has changed since the last one.
    pub(crate) fn freeze_parked(&mut self) -> Vec<(u32, Arc<Chunk>, bool)> {
        self.parked.freeze()
    }

    /// No image has any of this.
    pub(crate) fn forget_taken(&mut self) {
        self.changed = true;
        self.parked.forget_taken();
    }

    /// Takes in a chunk of parked messages from an image.
    pub(crate) fn load_parked(
        &mut self,
        number: u32,
        bytes: &[u8],
        texts: &mut Texts,
    ) -> Result<(), DecodeError> {
        self.parked.load(number, bytes, texts)
    }

    /// The contents of parked messages are lost, and so are the messages. Returns how many there were.
    pub(crate) fn lose_parked(&mut self, range: SeqRange) -> u64 {
        let mut lost = 0;
        while let Some(seq) = self.parked.positions().first_from(range.first).filter(|&seq| seq <= range.last)
        {
            self.parked.remove(seq);
            lost += 1;
        }
        lost
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

    /// Lets go of messages in process that a reset or a purge has ended.
    pub(crate) fn sweep_standing(&mut self, seqs: SeqRange) {
        assert!(self.is_swept(seqs.last), "only messages that a reset or a purge has ended are swept");
        self.standing.remove(seqs);
    }

    /// Nothing is left to be swept.
    pub(crate) fn end_sweep(&mut self) {
        self.sweep = None;
    }

    /// Lets go of some of the state of a deleted group. False when nothing is left.
    pub(crate) fn decay(&mut self, count: usize) -> bool {
        if !self.parked.is_empty() {
            self.dead.push(std::mem::take(&mut self.parked));
        }
        if self.has_dead() {
            self.drop_dead(count);
            return true;
        }
        self.sweep = Some(Seq(u64::MAX - 1));
        self.sweep_aside(count) || self.standing.pop_some(count)
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

    /// Drops some of the parked records that are not wanted any more.
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

    /// Recovery sweeps at once: it has no turns, and later entries are not to be swept along.
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
        let outgoing = self.outgoing.first_from(Seq::START).map(|(seq, _)| seq);
        [parked, replayed, outgoing].into_iter().flatten().fold(unsettled, Seq::min)
    }
}

/// How often a message was handed out, untouched ones among them.
fn attempts(state: Option<State>) -> u32 {
    state.map_or(0, |state| state.attempts())
}

/// When a message was first handed out, also if that does not count.
fn first(state: Option<State>) -> Timestamp {
    state.map_or(Timestamp::ZERO, |state| state.handed_out_at())
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
