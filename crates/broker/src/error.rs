//! Why a call failed, and what its caller can do about it.

use forebay_core::group::{JobRefusal, NotYours};
use forebay_core::notes::NoteRefusal;
use forebay_core::shard::{
    BundleRefusal, ChangeRefusal, CreateRefusal, MemberRefusal, PublishRefusal, ResubmitRefusal,
};
use forebay_core::types::{GroupName, Seq, StreamName};

use crate::access::Denied;
use crate::credentials::CredentialRefusal;
use crate::recovery::RecoveryError;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    FixRequest,
    RetryLater,
    /// The outcome is unknown. The same message ids again, and nothing is stored twice.
    RetryWithSameId,
}

/// Why a broker could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("the log cannot be brought back")]
    Recovery(#[from] RecoveryError),
    #[error("the engine's frames are too small for the largest batch. bytes=`{bytes}` needed=`{needed}`")]
    FramesTooSmall { bytes: usize, needed: usize },
    /// The date is so far ahead of the log that it is probably wrong. Nothing was decided.
    #[error(
        "the machine's date is later than the last time in the log by more than date_jump_max. A wrong date would end \
         leases, delays and retention at once, and the server's clock could not be set back. Set the date; or, if it \
         is right, start once with a larger date_jump_max. days=`{days}` date_jump_max_days=`{max_days}`"
    )]
    DateJump { days: u64, max_days: u64 },
}

/// Why a batch was not stored, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    #[error(transparent)]
    Refused(#[from] PublishRefusal),
    /// The stream is not there, and could not be created.
    #[error(transparent)]
    NotCreated(#[from] CreateRefusal),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("the server is stopping and stored nothing")]
    Stopping,
    /// The batch was on its way to the disk when something broke.
    #[error("outcome unknown: the batch may or may not be stored")]
    Unknown,
}

impl PublishError {
    pub fn advice(&self) -> Advice {
        match self {
            PublishError::Refused(
                PublishRefusal::Full { .. } | PublishRefusal::TooFast { .. } | PublishRefusal::StorageFull,
            )
            | PublishError::Stopping => Advice::RetryLater,
            PublishError::Refused(_) | PublishError::NotCreated(_) | PublishError::Denied(_) => {
                Advice::FixRequest
            }
            PublishError::Unknown => Advice::RetryWithSameId,
        }
    }
}

/// Why anything else was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("no such stream. stream=`{stream}`")]
    NoSuchStream { stream: StreamName },
    #[error("no such group. stream=`{stream}` group=`{group}`")]
    NoSuchGroup { stream: StreamName, group: GroupName },
    /// While the call waited.
    #[error("the stream was deleted")]
    StreamGone,
    /// While the call waited.
    #[error("the group was deleted")]
    GroupGone,
    #[error(transparent)]
    NotCreated(#[from] CreateRefusal),
    #[error("it exists with other settings")]
    Different,
    #[error(transparent)]
    NotChanged(#[from] ChangeRefusal),
    #[error(transparent)]
    NotAMember(#[from] MemberRefusal),
    #[error(transparent)]
    Job(#[from] JobRefusal),
    /// An edited copy of a parked message could not be published.
    #[error(transparent)]
    NotPublished(PublishError),
    #[error(transparent)]
    Note(#[from] NoteRefusal),
    #[error(transparent)]
    Credential(#[from] CredentialRefusal),
    /// Of changes that are made together, the n-th batch, counted from zero.
    #[error("{error}")]
    NotStored { nth: usize, error: Box<PublishError> },
    /// Of changes that are made together, lease `at` of the n-th settlement, both counted from zero.
    #[error("the lease is not current: {}", reason(*why))]
    NotCurrent { nth: usize, at: usize, seq: Option<Seq>, why: NotYours },
    /// Of changes that are made together, while a stream should have ended elsewhere.
    #[error("the stream does not end where it is expected to. stream=`{stream}` last=`{last}`")]
    WrongEnd { stream: StreamName, last: Seq },
    /// Of changes that are made together.
    #[error("{what} is given twice")]
    Twice { what: &'static str },
    #[error("all parts together are too large. bytes=`{bytes}` limit=`{limit}`")]
    TooLarge { bytes: usize, limit: usize },
    #[error(transparent)]
    Bundle(BundleRefusal),
    #[error("more than may wait at a time are waiting. limit=`{limit}`")]
    TooManyWaiting { limit: usize },
    #[error("a reader reads at least one stream and at most the limit. streams=`{streams}` limit=`{limit}`")]
    TooManyStreams { streams: usize, limit: usize },
    #[error("too many bytes are on their way to clients that do not take them")]
    TooManyBytes,
    /// Of a receive that does not want to wait for others to settle what they hold.
    #[error("the group holds as many leases as it may. limit=`{limit}`")]
    InFlightFull { limit: u32 },
    #[error("no such connection. id=`{id}`")]
    NoSuchConnection { id: String },
    #[error("the server is stopping")]
    Stopping,
    #[error("outcome unknown: it may or may not have been done")]
    Unknown,
}

impl CallError {
    pub fn advice(&self) -> Advice {
        match self {
            CallError::NotPublished(error) => error.advice(),
            CallError::NotStored { error, .. } => error.advice(),
            CallError::NotAMember(MemberRefusal::TooManyConsumers { .. })
            | CallError::Job(JobRefusal::TooMany { .. } | JobRefusal::Moving { .. })
            | CallError::Note(NoteRefusal::Full | NoteRefusal::TooMany)
            | CallError::TooManyWaiting { .. }
            | CallError::TooManyBytes
            | CallError::InFlightFull { .. }
            | CallError::Stopping => Advice::RetryLater,
            CallError::Unknown => Advice::RetryWithSameId,
            _ => Advice::FixRequest,
        }
    }
}

/// Why a lease is not current.
fn reason(why: NotYours) -> &'static str {
    match why {
        NotYours::Unknown => "there is no such lease",
        NotYours::Lapsed => "it has expired",
        NotYours::Superseded => "it has expired, or the message was returned or delivered again since",
        NotYours::Gone => "the group is done with the message",
    }
}

impl From<ResubmitRefusal> for CallError {
    fn from(refusal: ResubmitRefusal) -> CallError {
        match refusal {
            ResubmitRefusal::Job(refusal) => refusal.into(),
            ResubmitRefusal::Publish(refusal) => CallError::NotPublished(refusal.into()),
        }
    }
}

impl From<BundleRefusal> for CallError {
    fn from(refusal: BundleRefusal) -> CallError {
        match refusal {
            BundleRefusal::Create(refusal) => refusal.into(),
            BundleRefusal::Change(refusal) => refusal.into(),
            BundleRefusal::Publish { nth, refusal } => {
                CallError::NotStored { nth, error: Box::new(refusal.into()) }
            }
            BundleRefusal::Resubmit(refusal) => refusal.into(),
            BundleRefusal::NotYours { nth, lease, why } => {
                CallError::NotCurrent { nth, at: 0, seq: Some(lease.seq), why }
            }
            BundleRefusal::WrongEnd { stream, last } => CallError::WrongEnd { stream, last },
            BundleRefusal::Note(refusal) => refusal.into(),
            BundleRefusal::TooLarge { bytes, limit } => CallError::TooLarge { bytes, limit },
            BundleRefusal::Twice { what } => CallError::Twice { what },
            other => CallError::Bundle(other),
        }
    }
}
