//! Parked messages: seeing them, bringing them back, letting them go.

use std::time::SystemTime;

use forebay_wire::v1;

use super::settings::Rate;
use super::streams::StoredMessage;
use super::{Page, convert};
use crate::client::Client;
use crate::error::CallError;
use crate::message::Message;

impl Client {
    /// Messages that a group has set aside, by position: up to a hundred after the given one.
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

    /// One of them.
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

    /// Offers parked messages again, with all their retries.
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
        let reply = self.grpc().replay_parked(which.request(stream, group)).await?;
        Ok(JobStarted::of(reply.into_inner()))
    }

    /// Lets parked messages go for good.
    pub async fn discard_parked(
        &self,
        stream: &str,
        group: &str,
        which: Selection,
    ) -> Result<JobStarted, CallError> {
        let reply = self.grpc().discard_parked(which.request(stream, group)).await?;
        Ok(JobStarted::of(reply.into_inner()))
    }

    /// Publishes an edited copy of a parked message and lets go of the message, in one step. Answers where the copy
    /// is.
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

    /// How far a replay or a discard has come.
    pub async fn parked_job(&self, stream: &str, group: &str, job: u32) -> Result<ParkedJob, CallError> {
        let request = v1::GetJobRequest { stream: stream.into(), group: group.into(), job };
        let of = self.grpc().get_job(request).await?.into_inner();
        let state = match of.state() {
            v1::job::State::Done => JobState::Done,
            v1::job::State::Cancelled => JobState::Cancelled,
            v1::job::State::Failed => JobState::Failed,
            v1::job::State::Running | v1::job::State::Unspecified => JobState::Running,
        };
        Ok(ParkedJob { job: of.job, state, matched: of.matched, done: of.done, failed: of.failed })
    }

    /// Ends a replay or a discard that is under way. What it has done stays done.
    pub async fn cancel_parked_job(&self, stream: &str, group: &str, job: u32) -> Result<(), CallError> {
        let request = v1::CancelJobRequest { stream: stream.into(), group: group.into(), job };
        self.grpc().cancel_job(request).await?;
        Ok(())
    }
}

/// Which parked messages are wanted. What is absent does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParkedFilter {
    pub reason: Option<String>,
    pub key: Option<String>,
    /// What the messages are called.
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

/// A message that was set aside.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Parked {
    pub seq: u64,
    /// None if it cannot be read.
    pub message: Option<StoredMessage>,
    pub attempts: u32,
    /// What the consumer said, or else what happened.
    pub reason: String,
    pub parked_at: SystemTime,
    /// The last that had it.
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

/// One attempt that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    pub at: SystemTime,
    pub attempt: u32,
    pub cause: Cause,
    /// What the consumer said.
    pub reason: Option<String>,
    pub consumer: Option<String>,
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The consumer said so.
    Nack,
    /// The lease ran out.
    Timeout,
    /// The consumer went away without a word.
    Lost,
    /// The content could not be read back.
    Damaged,
    /// One that this client does not know.
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

/// Which parked messages to replay or discard, and how fast. What is meant is fixed when the job starts.
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

    /// Everything that is parked.
    pub fn all() -> Selection {
        Selection::new(v1::parked_job_request::Select::All(true))
    }

    /// These. At most 10000.
    pub fn seqs(seqs: impl IntoIterator<Item = u64>) -> Selection {
        let seqs = seqs.into_iter().collect();
        Selection::new(v1::parked_job_request::Select::Seqs(v1::Seqs { seqs }))
    }

    /// Those that pass a filter, which must say something.
    pub fn matching(filter: ParkedFilter) -> Selection {
        Selection::new(v1::parked_job_request::Select::Filter(filter.into()))
    }

    /// No more than this many, the oldest positions first.
    #[must_use]
    pub fn limit(self, limit: u64) -> Selection {
        Selection { limit, ..self }
    }

    /// No faster than this.
    #[must_use]
    pub fn rate(self, rate: Rate) -> Selection {
        Selection { rate: Some(rate), ..self }
    }

    /// Only say how many there are.
    #[must_use]
    pub fn dry_run(self) -> Selection {
        Selection { dry_run: true, ..self }
    }

    fn request(self, stream: &str, group: &str) -> v1::ParkedJobRequest {
        v1::ParkedJobRequest {
            stream: stream.into(),
            group: group.into(),
            select: Some(self.select),
            limit: self.limit,
            rate: self.rate.map(v1::Rate::from),
            dry_run: self.dry_run,
        }
    }
}

/// A replay or a discard that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStarted {
    /// How many messages are meant.
    pub matched: u64,
    /// None if nothing was started: it was a dry run, or there are none.
    pub job: Option<u32>,
}

impl JobStarted {
    fn of(reply: v1::ParkedJobReply) -> JobStarted {
        JobStarted { matched: reply.matched, job: Some(reply.job).filter(|job| *job > 0) }
    }
}

/// How far a replay or a discard has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedJob {
    pub job: u32,
    pub state: JobState,
    /// How many messages it was started for.
    pub matched: u64,
    pub done: u64,
    /// Those that were not parked any more when it came to them.
    pub failed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    Running,
    Done,
    Cancelled,
    /// It could not go on, and what was left stays.
    Failed,
}
