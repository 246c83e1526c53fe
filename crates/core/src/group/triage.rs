//! Parked messages: what is there, and bringing them back or letting them go.

use crate::entry::{Ending, Entry, Selection, Work};
use crate::fault::{Fault, planted};
use crate::group::{Budget, Group, Job, Parked, Turn};
use crate::pace::{Pace, Rate};
use crate::settings::OnParkedKey;
use crate::stream::Stream;
use crate::types::{JobId, KeyHash, Seq, SeqRange, Timestamp, push_range};

/// Why a job was not started, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobRefusal {
    #[error("no such group")]
    NoSuchGroup,
    #[error("no parked message is meant")]
    Empty,
    #[error("the group has as many jobs as it may have. limit=`{limit}`")]
    TooMany { limit: usize },
    #[error("no such job, or it is over. job=`{}`", job.0)]
    NoSuchJob { job: JobId },
    #[error("a rate is between 0.001 and 10 million a second, with a burst of at least one")]
    Rate,
    #[error("the message is not parked. seq=`{seq}`")]
    NotParked { seq: Seq },
}

/// Messages of a job that are seen to at a time.
const SLICE: u64 = 32;
/// What one of them takes of a turn: it leaves five tables and enters three, about a microsecond and a half.
const COST: u64 = 2;

impl Group {
    /// What a job of this kind would be: the entry that starts it, and how many messages it is about.
    pub(crate) fn plan_job(
        &self,
        now: Timestamp,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
        jobs_max: usize,
    ) -> Result<(JobId, u64, Entry), JobRefusal> {
        if rate.is_some_and(|rate| !(0.001..=10_000_000.0).contains(&rate.per_second) || rate.burst == 0) {
            return Err(JobRefusal::Rate);
        }
        let matched = self.count_selected(&selection).min(limit.unwrap_or(u64::MAX));
        if matched == 0 {
            return Err(JobRefusal::Empty);
        }
        if self.ledger.jobs.values().filter(|job| job.is_running()).count() >= jobs_max {
            return Err(JobRefusal::TooMany { limit: jobs_max });
        }
        let job = self.ledger.next_job;
        Ok((job, matched, Entry::JobStarted { group: self.id, job, at: now, work, selection, limit, rate }))
    }

    /// How many parked messages a selection means now.
    pub(crate) fn count_selected(&self, selection: &Selection) -> u64 {
        match selection {
            Selection::All => self.ledger.parked.count(),
            Selection::Reason(reason) => {
                self.ledger.parked.with_reason(reason).map_or(0, super::super::seqset::SeqSet::count)
            }
            Selection::Seqs(_) => self.ledger.selected(selection).count(),
        }
    }

    pub(crate) fn job(&self, job: JobId) -> Option<&Job> {
        self.ledger.jobs.get(&job)
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Job> + '_ {
        self.ledger.jobs.values()
    }

    /// Every pace begins empty with its owner.
    pub(super) fn start_job_paces(&mut self, now: Timestamp) {
        self.job_paces.clear();
        for job in self.ledger.jobs.values().filter(|job| job.is_running()) {
            if let Some(rate) = job.rate {
                self.job_paces.insert(job.id, Pace::starting(now, rate));
            }
        }
    }

    pub(crate) fn start_job_pace(&mut self, now: Timestamp, job: JobId) {
        if let Some(rate) = self.ledger.jobs.get(&job).and_then(|job| job.rate) {
            self.job_paces.insert(job, Pace::starting(now, rate));
        }
    }

    /// When a job has something to do.
    pub(super) fn jobs_at(&self, now: Timestamp) -> Option<Timestamp> {
        let running = self.ledger.jobs.values().filter(|job| job.is_running());
        running.map(|job| self.job_paces.get(&job.id).map_or(now, |pace| pace.next_at().max(now))).min()
    }

    pub(super) fn run_jobs(&mut self, now: Timestamp, stream: &Stream, budget: &mut Budget) {
        if self.ledger.jobs.is_empty() {
            return;
        }
        let running: Vec<JobId> =
            self.ledger.jobs.values().filter(|job| job.is_running()).map(|job| job.id).collect();
        for id in running {
            self.run_job(now, stream, id, budget);
        }
    }

    fn run_job(&mut self, now: Timestamp, stream: &Stream, id: JobId, budget: &mut Budget) {
        while !budget.is_spent() {
            let job = &self.ledger.jobs[&id];
            let Some(run) = job.left.run_from(Seq::START) else { break };
            let allowed = self.job_paces.get(&id).map_or(SLICE, |pace| pace.available(now)).min(SLICE);
            if allowed == 0 {
                return;
            }
            let seqs = SeqRange::starting(run.first, run.count().min(allowed));
            budget.spend_each(COST * seqs.count());
            if let Some(pace) = self.job_paces.get_mut(&id) {
                pace.spend(now, seqs.count());
            }
            match job.work {
                Work::Replay => self.replay(stream, seqs, id),
                Work::Discard => self.discard(stream, seqs, id),
            }
        }
        // Written by the shard at the end of the turn, after what the job did.
    }

    /// Jobs that have nothing left to do.
    pub(crate) fn finished_jobs(&self) -> Vec<JobId> {
        let over = self.ledger.jobs.values().filter(|job| job.is_running() && job.left.is_empty());
        over.map(|job| job.id).collect()
    }

    fn replay(&mut self, stream: &Stream, seqs: SeqRange, job: JobId) {
        self.pending.taken_out.push(((true, job), seqs));
        let replayed = self.ledger.replayed(seqs, job);
        self.counters.replayed += replayed.len() as u64;
        for (seq, key) in replayed {
            if planted(Fault::ReplayLoses) && seq.0 % 3 == 0 {
                self.ledger.settled(SeqRange::one(seq));
                continue;
            }
            self.let_go_of(stream, key);
            self.enter_replayed(stream, seq, key);
        }
    }

    pub(crate) fn discard(&mut self, stream: &Stream, seqs: SeqRange, job: JobId) {
        self.pending.taken_out.push(((false, job), seqs));
        let discarded = self.ledger.discarded(seqs, job);
        self.counters.discarded += discarded.len() as u64;
        for (_, key) in discarded {
            self.let_go_of(stream, key);
        }
    }

    fn let_go_of(&mut self, stream: &Stream, key: Option<KeyHash>) {
        if self.settings.on_parked_key == OnParkedKey::Hold
            && let Some(key) = key
        {
            self.let_go_of_key(stream, key);
        }
    }

    /// When the oldest parked message is too old.
    pub(super) fn parked_age_at(&self) -> Option<Timestamp> {
        let age = self.settings.parked_age_max?;
        self.ledger.parked.oldest().map(|(at, _)| at + age)
    }

    pub(super) fn expire_parked(&mut self, turn: &mut Turn<'_>) {
        while let Some(at) = self.parked_age_at().filter(|at| *at <= turn.now && !turn.budget.is_spent()) {
            let (_, seq) = self.ledger.parked.oldest().expect("it has an age");
            turn.budget.spend_each(1);
            debug_assert!(at <= turn.now);
            self.discard(turn.stream, SeqRange::one(seq), JobId(0));
        }
    }

    pub(crate) fn parked_after(&self, after: Seq) -> impl Iterator<Item = (Seq, &Parked)> + '_ {
        self.ledger.parked.iter_after(after)
    }

    /// How many messages have to be kept for the group.
    pub(crate) fn wanted_count(&self, stream: &Stream) -> u64 {
        let progress = &self.ledger.progress;
        let unsettled = progress.unsettled_through(stream.durable);
        unsettled + self.ledger.parked.count() + self.ledger.replayed_count()
    }

    /// The oldest message that is in process or parked: wanted whatever the stream keeps.
    pub(crate) fn oldest_held(&self) -> Option<Seq> {
        let parked = self.ledger.parked.positions().first();
        let standing = self.ledger.standing.run_from(Seq(1)).map(|(run, _)| run.first);
        [parked, standing].into_iter().flatten().min()
    }

    /// The stream is full and lets go of its oldest. Those that somebody holds or that are parked stay.
    /// Returns what of the range is wanted by the group no more.
    pub(crate) fn can_drop(&self, range: SeqRange) -> Vec<SeqRange> {
        use crate::group::standing::State;
        let mut free = Vec::new();
        for (piece, state) in self.ledger.standing.pieces(range) {
            if matches!(state, Some(State::Leased(_) | State::Moving { .. })) {
                continue;
            }
            let mut next = piece.first;
            while next <= piece.last {
                let rest = SeqRange::new(next, piece.last);
                let parked = self.ledger.parked.positions().run_from(next).and_then(|run| run.overlap(rest));
                let Some(parked) = parked else {
                    push_range(&mut free, rest);
                    break;
                };
                if parked.first > next {
                    push_range(&mut free, SeqRange::new(next, Seq(parked.first.0 - 1)));
                }
                next = parked.last.next();
            }
        }
        free
    }

    /// These are gone, to make room.
    pub(crate) fn drop_messages(&mut self, now: Timestamp, stream: &Stream, range: SeqRange) {
        for seq in range.seqs() {
            if self.ledger.is_settled(seq) {
                continue;
            }
            match self.ledger.standing.run_at(seq) {
                Some((_, state)) => self.withdraw(stream, seq, state),
                None => self.take_off_offer(stream, seq),
            }
            self.done(now, stream, SeqRange::one(seq), Ending::Dropped);
        }
    }
}
