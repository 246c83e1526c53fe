//! Parked messages: listing, replaying, moving, editing and discarding them.

use std::time::SystemTime;

use forebay_wire::v1;

use super::settings::Rate;
use super::{Items, Page, convert};
use crate::client::Client;
use crate::error::CallError;
use crate::message::{Message, StoredMessage};

impl Client {
    /// All parked messages of a group that the filter lets through, ordered by position.
    pub fn parked_all(&self, stream: &str, group: &str, filter: ParkedFilter) -> Items<Parked> {
        let (client, stream, group) = (self.clone(), stream.to_owned(), group.to_owned());
        Items::of(move |after: Option<u64>| {
            let (client, stream, group, filter) =
                (client.clone(), stream.clone(), group.clone(), filter.clone());
            async move { client.parked_after(&stream, &group, after.unwrap_or(0), filter).await }
        })
    }

    /// Parked messages of a group, ordered by position: up to a hundred after the given position.
    pub async fn parked_after(
        &self,
        stream: &str,
        group: &str,
        after: u64,
        filter: ParkedFilter,
    ) -> Result<Page<Parked, u64>, CallError> {
        let request = v1::ListParkedRequest {
            stream: stream.into(),
            group: group.into(),
            after,
            limit: 0,
            filter: Some(filter.into()),
        };
        let reply = self.grpc().list_parked(request).await?.into_inner();
        let items = reply.parked.into_iter().map(Parked::from).collect();
        Ok(Page { items, next: Some(reply.next).filter(|next| *next > 0) })
    }

    /// One parked message.
    pub async fn parked(&self, stream: &str, group: &str, seq: u64) -> Result<Parked, CallError> {
        let request = v1::GetParkedRequest { stream: stream.into(), group: group.into(), seq };
        Ok(self.grpc().get_parked(request).await?.into_inner().into())
    }

    /// How many messages are parked for each reason, most frequent first.
    pub async fn parked_reasons(&self, stream: &str, group: &str) -> Result<Vec<(String, u64)>, CallError> {
        let request = v1::ListParkedReasonsRequest { stream: stream.into(), group: group.into() };
        let reply = self.grpc().list_parked_reasons(request).await?.into_inner();
        Ok(reply.reasons.into_iter().map(|of| (of.reason, of.count)).collect())
    }

    /// Replays parked messages: they are delivered again, with all their retries.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::admin::parked::{ParkedFilter, Selection};
    /// use forebay_client::admin::settings::Rate;
    ///
    /// let timeouts = ParkedFilter { reason: Some("timeout".into()), ..ParkedFilter::default() };
    /// let gently = Selection::matching(timeouts).rate(Rate::per_second(50.0));
    /// let started = client.replay_parked("emails", "senders", gently).await?;
    /// println!("{} messages, job {:?}", started.matched, started.job);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn replay_parked(
        &self,
        stream: &str,
        group: &str,
        which: Selection,
    ) -> Result<JobStarted, CallError> {
        let reply = self.grpc().replay_parked(which.request(stream, group, "")).await?;
        Ok(JobStarted::from_wire(reply.into_inner()))
    }

    /// Discards parked messages for good.
    pub async fn discard_parked(
        &self,
        stream: &str,
        group: &str,
        which: Selection,
    ) -> Result<JobStarted, CallError> {
        let reply = self.grpc().discard_parked(which.request(stream, group, "")).await?;
        Ok(JobStarted::from_wire(reply.into_inner()))
    }

    /// Moves parked messages to another stream, which must exist. Each message is published there and leaves the group
    /// in one step.
    pub async fn move_parked(
        &self,
        stream: &str,
        group: &str,
        which: Selection,
        to: &str,
    ) -> Result<JobStarted, CallError> {
        let reply = self.grpc().move_parked(which.request(stream, group, to)).await?;
        Ok(JobStarted::from_wire(reply.into_inner()))
    }

    /// Publishes an edited copy of a parked message and discards the original, in one step. Returns the position of the
    /// copy.
    pub async fn resubmit_parked(
        &self,
        stream: &str,
        group: &str,
        seq: u64,
        message: Message,
    ) -> Result<u64, CallError> {
        let (stream, group) = (stream.into(), group.into());
        let request =
            v1::ResubmitParkedRequest { stream, group, seq, message: Some(message.0), ..Default::default() };
        Ok(self.grpc().resubmit_parked(request).await?.into_inner().seq)
    }

    /// The progress of a job on parked messages.
    pub async fn parked_job(&self, stream: &str, group: &str, job: u32) -> Result<ParkedJob, CallError> {
        let request = v1::GetJobRequest { stream: stream.into(), group: group.into(), job };
        Ok(self.grpc().get_job(request).await?.into_inner().into())
    }

    /// The jobs of a group that run, or have ended lately.
    pub async fn parked_jobs(&self, stream: &str, group: &str) -> Result<Vec<ParkedJob>, CallError> {
        let request = v1::ListJobsRequest { stream: stream.into(), group: group.into() };
        let reply = self.grpc().list_jobs(request).await?.into_inner();
        Ok(reply.jobs.into_iter().map(ParkedJob::from).collect())
    }

    /// Cancels a job. Messages that it has dealt with stay as they are.
    pub async fn cancel_parked_job(&self, stream: &str, group: &str, job: u32) -> Result<(), CallError> {
        let request = v1::CancelJobRequest { stream: stream.into(), group: group.into(), job };
        self.grpc().cancel_job(request).await?;
        Ok(())
    }
}

/// Selects parked messages. A field that is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParkedFilter {
    /// Only messages that were parked for this reason.
    pub reason: Option<String>,
    /// Only messages with this key.
    pub key: Option<String>,
    /// Only messages of this type.
    pub kind: Option<String>,
}

impl From<ParkedFilter> for v1::ParkedFilter {
    fn from(of: ParkedFilter) -> v1::ParkedFilter {
        v1::ParkedFilter {
            reason: of.reason.unwrap_or_default(),
            key: of.key.unwrap_or_default(),
            r#type: of.kind.unwrap_or_default(),
        }
    }
}

/// A parked message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Parked {
    /// Its position in the stream.
    pub seq: u64,
    /// The message. `None` if it cannot be read.
    pub message: Option<StoredMessage>,
    /// How often it was delivered.
    pub attempts: u32,
    /// The consumer's reason, or what happened.
    pub reason: String,
    /// When it was parked.
    pub parked_at: SystemTime,
    /// The consumer that had it last.
    pub consumer: Option<String>,
    /// Its last failures, oldest first.
    pub history: Vec<Failure>,
}

impl From<v1::Parked> for Parked {
    fn from(of: v1::Parked) -> Parked {
        Parked {
            seq: of.seq,
            message: of.message.map(|message| StoredMessage::new(of.seq, message)),
            attempts: of.attempts,
            reason: of.reason,
            parked_at: convert::time(of.parked_at_us),
            consumer: convert::some_text(of.consumer),
            history: of.history.into_iter().map(Failure::from).collect(),
        }
    }
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// When it failed.
    pub at: SystemTime,
    /// The attempt.
    pub attempt: u32,
    /// How it failed.
    pub cause: Cause,
    /// The consumer's reason.
    pub reason: Option<String>,
    /// The consumer's name.
    pub consumer: Option<String>,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The consumer reported it.
    Nack,
    /// The lease ran out.
    Timeout,
    /// The consumer's connection was lost.
    Lost,
    /// The content could not be read from the disk.
    Damaged,
    /// A cause that this version of the SDK does not know.
    Other,
}

impl From<v1::Failure> for Failure {
    fn from(of: v1::Failure) -> Failure {
        let cause = match of.cause() {
            v1::failure::Cause::Nack => Cause::Nack,
            v1::failure::Cause::Timeout => Cause::Timeout,
            v1::failure::Cause::Lost => Cause::Lost,
            v1::failure::Cause::Damaged => Cause::Damaged,
            v1::failure::Cause::Unspecified => Cause::Other,
        };
        Failure {
            at: convert::time(of.at_us),
            attempt: of.attempt,
            cause,
            reason: convert::some_text(of.reason),
            consumer: convert::some_text(of.consumer),
        }
    }
}

/// Which parked messages to replay, discard or move, and how fast. The selection is fixed when the job starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    select: v1::parked_job_request::Select,
    limit: u64,
    rate: Option<Rate>,
    dry_run: bool,
}

impl Selection {
    fn new(select: v1::parked_job_request::Select) -> Selection {
        Selection { select, limit: 0, rate: None, dry_run: false }
    }

    /// All parked messages.
    pub fn all() -> Selection {
        Selection::new(v1::parked_job_request::Select::All(true))
    }

    /// Messages at these positions, at most 10,000.
    pub fn seqs(seqs: impl IntoIterator<Item = u64>) -> Selection {
        let seqs = seqs.into_iter().collect();
        Selection::new(v1::parked_job_request::Select::Seqs(v1::Seqs { seqs }))
    }

    /// Messages that match a filter, which must have at least one field.
    pub fn matching(filter: ParkedFilter) -> Selection {
        Selection::new(v1::parked_job_request::Select::Filter(filter.into()))
    }

    /// Selects at most this many, lowest positions first.
    #[must_use]
    pub fn limit(self, limit: u64) -> Selection {
        Selection { limit, ..self }
    }

    /// Limits the rate.
    #[must_use]
    pub fn rate(self, rate: Rate) -> Selection {
        Selection { rate: Some(rate), ..self }
    }

    /// Only counts the messages.
    #[must_use]
    pub fn dry_run(self) -> Selection {
        Selection { dry_run: true, ..self }
    }

    fn request(self, stream: &str, group: &str, to: &str) -> v1::ParkedJobRequest {
        v1::ParkedJobRequest {
            stream: stream.into(),
            group: group.into(),
            select: Some(self.select),
            limit: self.limit,
            rate: self.rate.map(v1::Rate::from),
            dry_run: self.dry_run,
            to: to.into(),
        }
    }
}

/// A job that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStarted {
    /// How many messages are selected.
    pub matched: u64,
    /// The job. `None` for a dry run, or if no message matched.
    pub job: Option<u32>,
}

impl JobStarted {
    fn from_wire(reply: v1::ParkedJobReply) -> JobStarted {
        JobStarted { matched: reply.matched, job: Some(reply.job).filter(|job| *job > 0) }
    }
}

/// The progress of a job on parked messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedJob {
    /// The job's number.
    pub job: u32,
    /// Whether it runs, or how it ended.
    pub state: JobState,
    /// How many messages were selected.
    pub matched: u64,
    /// How many of them are done.
    pub done: u64,
    /// How many were no longer parked when their turn came, or could not be moved.
    pub failed: u64,
}

impl From<v1::Job> for ParkedJob {
    fn from(of: v1::Job) -> ParkedJob {
        let state = match of.state() {
            v1::job::State::Done => JobState::Done,
            v1::job::State::Cancelled => JobState::Cancelled,
            v1::job::State::Failed => JobState::Failed,
            v1::job::State::Running | v1::job::State::Unspecified => JobState::Running,
        };
        ParkedJob { job: of.job, state, matched: of.matched, done: of.done, failed: of.failed }
    }
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// It runs.
    Running,
    /// It is complete.
    Done,
    /// It was cancelled.
    Cancelled,
    /// It could not go on. The remaining messages stay parked.
    Failed,
}
