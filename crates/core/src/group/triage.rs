//! Parked messages: listing, replaying and discarding them. `moves.rs` moves them to other streams.

use crate::entry::{Ending, Entry, Selection, Work};
use crate::fault::{Fault, planted};
use crate::group::decision::Decision;
use crate::group::moves::Moves;
use crate::group::standing::State;
use crate::group::{Budget, Group, Job, Parked, Turn};
use crate::pace::{Pace, Rate};
use crate::stream::Stream;
use crate::types::{JobId, Seq, SeqRange, Timestamp};

/// Why a job was not started, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobRefusal {
    #[error("no such group")]
    NoSuchGroup,
    #[error("nothing is selected; expected `seqs`, `filter` or `all`")]
    Empty,
    #[error("the limit of jobs of a group is reached. limit=`{limit}`")]
    TooMany { limit: usize },
    #[error("no such job, or it has ended. job=`{}`", job.0)]
    NoSuchJob { job: JobId },
    #[error("must be between 0.001 and 10 million per second, with a burst of at least 1")]
    Rate,
    #[error("another job moves messages of the group. job=`{}`", job.0)]
    Moving { job: JobId },
    #[error("there is no such stream to move messages to, or it is the one they are in")]
    NoDestination,
    #[error("the message is not parked. seq=`{seq}`")]
    NotParked { seq: Seq },
    #[error("another message has this id. seq=`{seq}`")]
    IdTaken { seq: Seq },
    #[error("too many separate positions are named. ranges=`{ranges}` limit=`{limit}`")]
    TooManyRanges { ranges: usize, limit: usize },
}

/// Stretches of positions that a job may be started for, so that its entry fits in a frame.
const SELECTION_RANGES_MAX: usize = 10_000;
/// Messages of a job that are seen to at a time.
pub(super) const SLICE: u64 = 32;
/// The cost of one of them in a turn's budget: it leaves five tables and enters three, about a microsecond
/// and a half.
pub(super) const COST: u64 = 2;

impl Group {
    /// Plans a job: the entry that starts it, and how many messages it covers.
    #[expect(clippy::too_many_arguments, reason = "each is a thing that a job is told")]
    pub(crate) fn plan_job(
        &self,
        now: Timestamp,
        last: Seq,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
        jobs_max: usize,
    ) -> Result<(JobId, u64, Entry), JobRefusal> {
        if rate.is_some_and(|rate| rate.check("rate").is_err()) {
            return Err(JobRefusal::Rate);
        }
        let parked = work.is_about_parked();
        let selection = match selection {
            Selection::All if !parked => Selection::Seqs(vec![SeqRange { first: Seq(1), last }]),
            selection => selection,
        };
        let selection = self.cut_selection(last, selection)?;
        let meant = match parked {
            true => self.count_selected(&selection),
            false => self.ledger.unsettled(&selection).count(),
        };
        let matched = meant.min(limit.unwrap_or(u64::MAX));
        // A job that empties a group may find it empty.
        if matched == 0 && parked {
            return Err(JobRefusal::Empty);
        }
        let mut running = self.ledger.jobs().values().filter(|job| job.is_running());
        if work.moves()
            && let Some(other) = running.find(|job| job.work.moves())
        {
            return Err(JobRefusal::Moving { job: other.id });
        }
        if self.ledger.jobs().values().filter(|job| job.is_running()).count() >= jobs_max {
            return Err(JobRefusal::TooMany { limit: jobs_max });
        }
        let job = self.ledger.next_job();
        Ok((job, matched, Entry::JobStarted { group: self.id, job, at: now, work, selection, limit, rate }))
    }

    /// The same selection, named by no more positions than there are, in order and each of them once.
    fn cut_selection(&self, last: Seq, selection: Selection) -> Result<Selection, JobRefusal> {
        let Selection::Seqs(ranges) = selection else { return Ok(selection) };
        let within = |range: &SeqRange| {
            let (first, last) = (range.first.max(Seq(1)), range.last.min(last));
            (first <= last).then_some(SeqRange { first, last })
        };
        let mut named: Vec<SeqRange> = ranges.iter().filter_map(within).collect();
        named.sort_unstable();
        let mut cut: Vec<SeqRange> = Vec::new();
        for range in named {
            match cut.last_mut() {
                Some(before) if range.first <= before.last.next() => {
                    before.last = before.last.max(range.last);
                }
                _ => cut.push(range),
            }
        }
        if cut.len() > SELECTION_RANGES_MAX {
            return Err(JobRefusal::TooManyRanges { ranges: cut.len(), limit: SELECTION_RANGES_MAX });
        }
        Ok(Selection::Seqs(cut))
    }

    /// How many parked messages a selection means now.
    pub(crate) fn count_selected(&self, selection: &Selection) -> u64 {
        match selection {
            Selection::All => self.ledger.parked().count(),
            Selection::Reason(reason) => {
                self.ledger.parked().with_reason(reason).map_or(0, super::super::seqset::SeqSet::count)
            }
            Selection::Seqs(_) => self.ledger.selected(selection).count(),
        }
    }

    pub(crate) fn job(&self, job: JobId) -> Option<&Job> {
        self.ledger.jobs().get(&job)
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Job> + '_ {
        self.ledger.jobs().values()
    }

    /// The paces of jobs begin with nothing saved.
    pub(super) fn start_job_paces(&mut self, now: Timestamp) {
        self.paces.jobs.clear();
        for job in self.ledger.jobs().values().filter(|job| job.is_running()) {
            if let Some(rate) = job.rate {
                self.paces.jobs.insert(job.id, Pace::reopened(now, rate));
            }
        }
    }

    pub(crate) fn start_job_pace(&mut self, now: Timestamp, job: JobId) {
        if let Some(rate) = self.ledger.jobs().get(&job).and_then(|job| job.rate) {
            self.paces.jobs.insert(job, Pace::reopened(now, rate));
        }
    }

    #[cfg(test)]
    pub(crate) fn paced_jobs(&self) -> usize {
        self.paces.jobs.len()
    }

    /// A job is over. Contents of parked messages that it has asked for are not wanted any more.
    pub(crate) fn job_ended(&mut self, job: JobId) {
        self.paces.jobs.remove(&job);
        if self.job(job).is_some_and(|job| matches!(job.work, Work::MoveParked { .. })) {
            self.parked_moves = Moves::default();
        }
    }

    /// When a job has something to do.
    pub(super) fn jobs_at(&self, now: Timestamp) -> Option<Timestamp> {
        let running = self.ledger.jobs().values().filter(|job| job.is_running());
        let goes_on = running.filter(|job| !self.waits_for_moves(job));
        goes_on.map(|job| self.paces.jobs.get(&job.id).map_or(now, |pace| pace.next_at().max(now))).min()
    }

    pub(super) fn run_jobs(&mut self, turn: &mut Turn<'_>) {
        if self.ledger.jobs().is_empty() {
            return;
        }
        let running: Vec<JobId> =
            self.ledger.jobs().values().filter(|job| job.is_running()).map(|job| job.id).collect();
        for id in running {
            match self.ledger.jobs()[&id].work {
                Work::Replay | Work::Discard => self.run_triage(turn.now, turn.stream, id, turn.budget),
                Work::Move { .. } => self.run_move(turn.now, turn.stream, id, turn.budget),
                Work::MoveParked { .. } => self.run_parked_move(turn, id),
            }
        }
    }

    fn run_triage(&mut self, now: Timestamp, stream: &Stream, id: JobId, budget: &mut Budget) {
        while !budget.is_spent() {
            let job = &self.ledger.jobs()[&id];
            let Some(run) = job.left.run_from(Seq::START) else { break };
            let allowed = self.paces.jobs.get(&id).map_or(SLICE, |pace| pace.available(now)).min(SLICE);
            if allowed == 0 {
                return;
            }
            let seqs = SeqRange::starting(run.first, run.count().min(allowed));
            budget.spend_each(COST * seqs.count());
            if let Some(pace) = self.paces.jobs.get_mut(&id) {
                pace.spend(now, seqs.count());
            }
            let replays = self.ledger.jobs()[&id].work == Work::Replay;
            if replays { self.replay(stream, seqs, id) } else { self.discard(stream, seqs, id) }
        }
        // Written by the shard at the end of the turn, after what the job did.
    }

    /// Jobs that have nothing left to do.
    pub(crate) fn finished_jobs(&self) -> Vec<JobId> {
        let over = self.ledger.jobs().values().filter(|job| job.is_running() && job.left.is_empty());
        over.filter(|job| job.on_way == 0).map(|job| job.id).collect()
    }

    fn replay(&mut self, stream: &Stream, seqs: SeqRange, job: JobId) {
        let replayed = self.ledger.parked_for(seqs, job);
        self.decide(Decision::Replayed { seqs, job });
        self.counters.replayed += replayed.len() as u64;
        for (seq, key) in replayed {
            if planted(Fault::ReplayLoses) && seq.0 % 3 == 0 {
                self.ledger.apply(&Decision::Acked(SeqRange::one(seq)));
                continue;
            }
            let (candidates, view) = self.candidates(stream);
            candidates.unparked(view, seq, key);
            candidates.replayed(view, seq, key);
        }
    }

    pub(crate) fn discard(&mut self, stream: &Stream, seqs: SeqRange, job: JobId) {
        self.counters.discarded += self.take_out(stream, seqs, job);
    }

    /// Parked messages leave the list, and the group is done with them. Returns how many.
    pub(super) fn take_out(&mut self, stream: &Stream, seqs: SeqRange, job: JobId) -> u64 {
        let taken = self.ledger.parked_for(seqs, job);
        self.decide(Decision::Discarded { seqs, job });
        for &(seq, key) in &taken {
            let (candidates, view) = self.candidates(stream);
            candidates.unparked(view, seq, key);
        }
        taken.len() as u64
    }

    /// When the oldest parked message is too old.
    pub(super) fn parked_age_at(&self) -> Option<Timestamp> {
        let age = self.settings.parked_max_age?;
        self.ledger.parked().oldest().map(|(at, _)| at + age)
    }

    pub(super) fn expire_parked(&mut self, turn: &mut Turn<'_>) {
        while let Some(at) = self.parked_age_at().filter(|at| *at <= turn.now && !turn.budget.is_spent()) {
            let (_, seq) = self.ledger.parked().oldest().expect("it has an age");
            turn.budget.spend_each(1);
            debug_assert!(at <= turn.now);
            self.discard(turn.stream, SeqRange::one(seq), JobId(0));
        }
    }

    pub(crate) fn parked_after(&self, after: Seq) -> impl Iterator<Item = (Seq, &Parked)> + '_ {
        self.ledger.parked().iter_after(after)
    }

    /// How many messages have to be kept for the group.
    pub(crate) fn wanted_count(&self, stream: &Stream) -> u64 {
        let progress = &self.ledger.progress();
        let unsettled = progress.unsettled_through(stream.durable);
        unsettled
            + self.ledger.parked().count()
            + self.ledger.replayed_count()
            + self.ledger.outgoing().count()
    }

    /// The oldest message that is in process, parked or on its way to another stream: wanted whatever the stream keeps.
    pub(crate) fn oldest_held(&self) -> Option<Seq> {
        let parked = self.ledger.parked().positions().first();
        let standing = self.ledger.standing().run_from(Seq(1)).map(|(run, _)| run.first);
        let outgoing = self.ledger.outgoing().first_from(Seq(1)).map(|(seq, _)| seq);
        [parked, standing, outgoing].into_iter().flatten().min()
    }

    /// How the group holds on to a message, and up to which one it does so likewise.
    pub(crate) fn hold(&self, seq: Seq) -> (Hold, Seq) {
        let (standing, parked, progress) =
            (self.ledger.standing(), self.ledger.parked(), self.ledger.progress());
        let before = |next: Option<Seq>| next.map_or(Seq(u64::MAX - 1), |next| Seq(next.0 - 1));
        let run = standing.run_from(seq);
        if let Some((run, state)) = run.filter(|(run, _)| run.first == seq) {
            return match state {
                State::Leased(_) | State::Moving { .. } => (Hold::Held, standing.held_until(seq)),
                State::Ready { .. } | State::Waiting { .. } => (Hold::Wanted, run.last),
            };
        }
        let until = before(run.map(|(run, _)| run.first));
        if !progress.is_settled(seq) {
            return (Hold::Wanted, until.min(before(progress.above().first_from(seq))));
        }
        match parked.positions().run_from(seq) {
            Some(run) if run.first == seq => (Hold::Held, run.last),
            run => {
                let settled = before(Some(progress.unsettled_from(seq)));
                (Hold::Done, until.min(settled).min(before(run.map(|run| run.first))))
            }
        }
    }

    /// Drops the messages that are neither leased, nor on their way to another stream, nor parked. Returns how many.
    /// An operator asked for it, so they go nowhere else.
    pub(crate) fn drop_ready(&mut self, now: Timestamp, stream: &Stream) -> u64 {
        let before = self.counters.dropped;
        // What a reset or a purge has ended only waits to be forgotten.
        let swept = self.ledger.sweeps_through().map_or(Seq::START, Seq::next);
        let mut next = self.ledger.oldest_wanted().max(swept);
        while next <= stream.last {
            let (hold, until) = self.hold(next);
            let last = until.min(stream.last);
            if hold == Hold::Wanted {
                self.drop_some(now, stream, SeqRange::new(next, last), Group::done);
            }
            next = last.next();
        }
        self.counters.dropped - before
    }

    /// These are gone, to make room: the stream is full and lets go of its oldest. Leased and parked
    /// messages are not among them.
    pub(crate) fn drop_messages(&mut self, now: Timestamp, stream: &Stream, range: SeqRange) {
        self.drop_some(now, stream, range, Group::let_go);
    }

    fn drop_some(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        range: SeqRange,
        end: impl Fn(&mut Group, Timestamp, &Stream, SeqRange, Ending),
    ) {
        let mut next = self.ledger.unsettled_from(range.first);
        while next <= range.last {
            let rest = SeqRange::new(next, range.last);
            let (piece, state) =
                self.ledger.standing().pieces(rest).next().expect("a range has at least one piece");
            let settled = self.ledger.progress().above().first_from(next).filter(|_| state.is_none());
            let last = settled.map_or(piece.last, |settled| piece.last.min(Seq(settled.0 - 1)));
            let seqs = SeqRange::new(next, last);
            match state {
                Some(State::Waiting { .. }) => {
                    for seq in seqs.seqs() {
                        self.withdraw(stream, seq, state.expect("it was matched just now"));
                    }
                }
                _ => {
                    let (candidates, view) = self.candidates(stream);
                    candidates.withdraw_all(view, seqs);
                }
            }
            end(self, now, stream, seqs, Ending::Dropped);
            next = self.ledger.unsettled_from(last.next());
        }
    }
}

/// How a group holds on to a message when its stream is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is leased, on its way to another stream, or parked.
    Held,
    /// It is still to be handed out.
    Wanted,
    Done,
}
