//! Parked messages: seeing them, bringing them back, moving them, letting them go. And jobs, also those that move
//! what waits.

use std::sync::Arc;

use forebay_core::entry::{Selection, Work};
use forebay_core::group::JobRefusal;
use forebay_core::pace::Rate;
use forebay_core::types::{GroupName, JobId, Seq, SeqRange, StreamName};

use super::{Caller, Filter};
use crate::access::{Resource, Right};
use crate::batch::Batch;
use crate::driver::{Bundle, Published, group_label};
use crate::error::CallError;
use crate::report::{JobReport, Page, ParkedReport, Selected};
use crate::shard_task::find_group;

/// Parked messages that one call looks at, at most.
const LOOKED_AT_MAX: usize = 10_000;
/// Parked messages that are looked at in one go.
const AT_A_TIME: usize = 1_000;

/// The call that makes a job of this kind, for the audit.
fn verb_of(work: &Work) -> &'static str {
    match work {
        Work::Replay => "replay",
        Work::Discard => "discard",
        Work::Move { .. } => "move",
        Work::MoveParked { .. } => "move-parked",
    }
}

/// Which parked messages are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    All,
    Seqs(Vec<Seq>),
    /// Those with this reason, and of this key and type, as far as these are given.
    Filter {
        reason: Option<String>,
        filter: Filter,
    },
}

/// How a job goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct JobTerms {
    /// No more than this many, the oldest positions first.
    pub limit: Option<u64>,
    /// No faster than this.
    pub rate: Option<Rate>,
    /// Only say how many there are.
    pub dry_run: bool,
}

impl Caller {
    /// Parked messages after `after`, by position.
    pub async fn parked(
        &self,
        stream: StreamName,
        group: GroupName,
        after: Seq,
        limit: usize,
        reason: Option<String>,
        filter: &Filter,
    ) -> Result<Page<ParkedReport, Seq>, CallError> {
        self.may_in(Right::Inspect, &stream, &group)?;
        let reason: Option<Arc<str>> = reason.map(Into::into);
        let mut page = Page { items: Vec::new(), next: Some(after) };
        let (mut looked_at, mut bytes) = (0, 0);
        while let Some(after) = page.next
            && looked_at < LOOKED_AT_MAX
            && bytes < self.shard_of(&stream).read_bytes_max
        {
            let some = self.some_parked(&stream, &group, after, limit - page.items.len(), &reason).await?;
            looked_at += AT_A_TIME;
            page.next = some.next;
            for parked in some.items {
                if parked
                    .message
                    .as_ref()
                    .map_or(filter.is_empty(), |message| filter.passes(&message.content))
                {
                    bytes += parked.message.as_ref().map_or(0, |message| message.content.len());
                    page.items.push(parked);
                }
            }
            if page.items.len() >= limit {
                break;
            }
        }
        Ok(page)
    }

    async fn some_parked(
        &self,
        stream: &StreamName,
        group: &GroupName,
        after: Seq,
        limit: usize,
        reason: &Option<Arc<str>>,
    ) -> Result<Page<ParkedReport, Seq>, CallError> {
        let shard = self.shard_of(stream);
        let _permit = shard.read_permit().await;
        let (stream, group, reason) = (stream.clone(), group.clone(), reason.clone());
        let limit = limit.min(AT_A_TIME);
        shard
            .ask(move |task, reply| {
                task.read_parked((&stream, &group), after, limit, AT_A_TIME, reason.as_deref(), reply);
            })
            .await
    }

    /// One parked message.
    pub async fn parked_one(
        &self,
        stream: StreamName,
        group: GroupName,
        seq: Seq,
    ) -> Result<ParkedReport, CallError> {
        let before = Seq(seq.0.saturating_sub(1));
        let page = self.parked(stream, group, before, 1, None, &Filter::default()).await?;
        let found = page.items.into_iter().find(|parked| parked.seq == seq);
        found.ok_or(CallError::Job(JobRefusal::NotParked { seq }))
    }

    /// How many messages are parked for each reason.
    pub async fn parked_reasons(
        &self,
        stream: StreamName,
        group: GroupName,
    ) -> Result<Vec<(Arc<str>, u64)>, CallError> {
        self.may_in(Right::Inspect, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| {
                let group = task.find_group(&stream, &group)?;
                let reasons = task.shard().parked_reasons(group);
                Ok(reasons.map(|(reason, count)| (reason.clone(), count)).collect())
            })
            .await
    }

    /// Replays, discards or moves parked messages. The messages of the job are fixed when it starts.
    pub async fn start_job(
        &self,
        stream: StreamName,
        group: GroupName,
        work: Work,
        select: Select,
        terms: JobTerms,
    ) -> Result<Selected, CallError> {
        let record = self.record_in(Right::Triage, &stream, &group)?.doing(verb_of(&work));
        if let Some(to) = work.to()
            && let Err(denied) = self.may(Right::Publish, Resource::Stream(to))
        {
            return record.close(Err(denied.into()));
        }
        let selection = match self.select(&stream, &group, select, terms.limit).await {
            Ok(selection) => selection,
            Err(error) => return record.close(Err(error)),
        };
        let JobTerms { limit, rate, dry_run } = terms;
        let most = limit.unwrap_or(u64::MAX);
        let shard = self.shard_of(&stream);
        if dry_run {
            let count = move |task: &crate::shard_task::ShardTask| {
                let group = task.find_group(&stream, &group)?;
                task.shard().check_destination(group, &work)?;
                task.shard().count_selected(group, &selection).ok_or(CallError::GroupGone)
            };
            let counted = shard.query(count).await.map(|matched| matched.min(most));
            return record.close(counted.map(|matched| Selected { matched, job: None }));
        }
        let started = shard.decide(move |shard, now| {
            let group = find_group(shard, &stream, &group)?;
            let (job, matched) = shard.start_job(now, group, work, selection, limit, rate)?;
            tracing::info!(group = group_label(shard, group), job = job.0, matched, "job started");
            Ok(Selected { matched, job: Some(job) })
        });
        record.close(match started.await {
            Err(CallError::Job(JobRefusal::Empty)) => Ok(Selected { matched: 0, job: None }),
            started => started,
        })
    }

    /// Starts to move the waiting messages of a group to another stream, or each message back to the stream that it
    /// was moved from last. Messages that are leased, delayed or to be tried later stay. A group has one moving job
    /// at a time.
    pub async fn move_waiting(
        &self,
        stream: StreamName,
        group: GroupName,
        to: Option<StreamName>,
        rate: Option<Rate>,
    ) -> Result<JobId, CallError> {
        let record = self.record_in(Right::Triage, &stream, &group)?.doing("move");
        if let Some(to) = &to
            && let Err(denied) = self.may(Right::Publish, Resource::Stream(to))
        {
            return record.close(Err(denied.into()));
        }
        let done = self
            .shard_of(&stream)
            .decide(move |shard, now| {
                let group = find_group(shard, &stream, &group)?;
                let (job, matched) =
                    shard.start_job(now, group, Work::Move { to }, Selection::All, None, rate)?;
                tracing::info!(group = group_label(shard, group), job = job.0, matched, "job started");
                Ok(job)
            })
            .await;
        record.close(done)
    }

    /// A selection in the words of the core, which knows positions and reasons but no contents.
    async fn select(
        &self,
        stream: &StreamName,
        group: &GroupName,
        select: Select,
        limit: Option<u64>,
    ) -> Result<Selection, CallError> {
        let (reason, filter) = match select {
            Select::All => return Ok(Selection::All),
            Select::Seqs(seqs) => return Ok(Selection::Seqs(ranges(seqs))),
            Select::Filter { reason: Some(reason), filter } if filter.is_empty() => {
                return Ok(Selection::Reason(reason.into()));
            }
            Select::Filter { reason, filter } => (reason.map(Arc::from), filter),
        };
        let mut seqs = Vec::new();
        let mut next = Some(Seq::START);
        while let Some(after) = next.filter(|_| limit.is_none_or(|limit| (seqs.len() as u64) < limit)) {
            let some = self.some_parked(stream, group, after, AT_A_TIME, &reason).await?;
            next = some.next;
            let passes =
                |parked: &ParkedReport| parked.message.as_ref().is_some_and(|m| filter.passes(&m.content));
            seqs.extend(some.items.iter().filter(|parked| passes(parked)).map(|parked| parked.seq));
        }
        Ok(Selection::Seqs(ranges(seqs)))
    }

    pub async fn jobs(&self, stream: StreamName, group: GroupName) -> Result<Vec<JobReport>, CallError> {
        self.may_in(Right::Look, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| {
                let group = task.find_group(&stream, &group)?;
                Ok(task.shard().jobs(group).map(JobReport::from).collect())
            })
            .await
    }

    pub async fn job(
        &self,
        stream: StreamName,
        group: GroupName,
        job: JobId,
    ) -> Result<JobReport, CallError> {
        self.may_in(Right::Look, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| {
                let group = task.find_group(&stream, &group)?;
                let found = task.shard().job(group, job).ok_or(JobRefusal::NoSuchJob { job })?;
                Ok(found.into())
            })
            .await
    }

    pub async fn cancel_job(
        &self,
        stream: StreamName,
        group: GroupName,
        job: JobId,
    ) -> Result<(), CallError> {
        let record = self.record_in(Right::Triage, &stream, &group)?.doing("cancel job");
        let done = self
            .shard_of(&stream)
            .decide(move |shard, now| Ok(shard.cancel_job(now, find_group(shard, &stream, &group)?, job)?))
            .await;
        record.close(done)
    }

    /// Publishes an edited copy of a parked message and lets go of the message, in one step. The batch has one
    /// message.
    pub async fn resubmit(
        &self,
        stream: StreamName,
        group: GroupName,
        seq: Seq,
        batch: Batch,
    ) -> Result<Published, CallError> {
        let record = self.record_in(Right::Triage, &stream, &group)?.doing("resubmit");
        // All groups of the stream get the copy.
        if let Err(denied) = self.may(Right::Publish, Resource::Stream(&stream)) {
            return record.close(Err(denied.into()));
        }
        let room = self.broker.room(&stream, &batch).await;
        let resubmitted = self.shard_of(&stream).ask(move |task, reply| {
            let found = task.find_group(&stream, &group);
            // The room is given back after the sync, with the answer.
            task.decide(reply, |driver, now| {
                let mut done = driver.commit(now, &Bundle::default().resubmit(found?, seq, &batch))?;
                Ok((done.published.remove(0), room))
            });
        });
        record.close(resubmitted.await.map(|(published, _room)| published))
    }
}

/// Positions as ranges, in order.
fn ranges(mut seqs: Vec<Seq>) -> Vec<SeqRange> {
    seqs.sort_unstable();
    seqs.dedup();
    let mut ranges: Vec<SeqRange> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some(range) if range.last.next() == seq => range.last = seq,
            _ => ranges.push(SeqRange::one(seq)),
        }
    }
    ranges
}
