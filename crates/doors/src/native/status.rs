//! What an error is in gRPC's words, in one table. Every status carries the advice of the API in the
//! metadata `forebay-retry`: `never`, `later` or `same_id`.

use forebay_broker::broker::{Advice, CreateError, GroupError, PublishError, SubscribeError};
use forebay_broker::driver;
use forebay_core::producers::ProducerRefusal;
use forebay_core::shard::{CreateRefusal, MemberRefusal, PublishRefusal};
use forebay_core::types::Timestamp;
use forebay_wire::v1::problem::Code as Problem;
use forebay_wire::v1::{self, Retry};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

pub(super) fn of_create(error: &CreateError) -> Status {
    let (code, advice) = match error {
        CreateError::Refused(CreateRefusal::Settings(_)) => (Code::InvalidArgument, Advice::FixRequest),
        CreateError::Refused(CreateRefusal::NoSuchStream) => (Code::NotFound, Advice::FixRequest),
        CreateError::Refused(CreateRefusal::TooMany { .. }) => (Code::ResourceExhausted, Advice::FixRequest),
        CreateError::Refused(_) | CreateError::Different => (Code::AlreadyExists, Advice::FixRequest),
        CreateError::Stopping => (Code::Unavailable, Advice::RetryLater),
        // Creating what is there already is no mistake, so it can simply be repeated.
        _ => (Code::Unknown, Advice::RetryWithSameId),
    };
    status(code, advice, error.to_string())
}

pub(super) fn of_group(error: &GroupError) -> Status {
    let (code, advice) = match error {
        GroupError::NoSuchStream | GroupError::NoSuchGroup => (Code::NotFound, Advice::FixRequest),
        _ => (Code::Unavailable, Advice::RetryLater),
    };
    status(code, advice, error.to_string())
}

pub(super) fn of_subscribe(error: &SubscribeError) -> Status {
    let (code, advice) = match error {
        SubscribeError::Group(error) => return of_group(error),
        SubscribeError::Refused(MemberRefusal::NoSuchGroup) => (Code::NotFound, Advice::FixRequest),
        SubscribeError::Refused(MemberRefusal::CreditTooLarge { .. }) => {
            (Code::InvalidArgument, Advice::FixRequest)
        }
        SubscribeError::Refused(MemberRefusal::TooManyConsumers { .. }) => {
            (Code::ResourceExhausted, Advice::RetryLater)
        }
        _ => (Code::FailedPrecondition, Advice::FixRequest),
    };
    status(code, advice, error.to_string())
}

pub(super) fn invalid(text: String) -> Status {
    status(Code::InvalidArgument, Advice::FixRequest, text)
}

pub(super) fn stopping() -> Status {
    status(Code::Unavailable, Advice::RetryLater, "the server is stopping".to_owned())
}

pub(super) fn cut_off() -> Status {
    let text = "messages lay in the consumer's queue until their leases lapsed; ask for less credit";
    status(Code::Aborted, Advice::RetryLater, text.to_owned())
}

/// A batch that was not stored does not end the call, so its error is no status but part of a reply.
pub(super) fn publish_problem(now: Timestamp, error: &PublishError) -> v1::Problem {
    let (mut last_seq, mut retry_after_ms) = (None, None);
    let code = match error {
        PublishError::Refused(driver::PublishError::StorageFull) => Problem::StorageFull,
        PublishError::Refused(driver::PublishError::Refused(refusal)) => match refusal {
            PublishRefusal::NoSuchStream => Problem::NoSuchStream,
            PublishRefusal::MessageTooLarge { .. }
            | PublishRefusal::BatchTooLarge { .. }
            | PublishRefusal::TooMany { .. } => Problem::TooLarge,
            PublishRefusal::Full { .. } => Problem::StreamFull,
            PublishRefusal::TooFast { retry_at } => {
                // Rounded up, so that whoever waits as long is not refused again.
                retry_after_ms = Some(retry_at.since(now).as_micros().div_ceil(1_000) as u64);
                Problem::TooFast
            }
            PublishRefusal::WrongLastSeq { last } => {
                last_seq = Some(last.0);
                Problem::WrongLastSeq
            }
            PublishRefusal::Producer(ProducerRefusal::Fenced { .. }) => Problem::ProducerFenced,
            PublishRefusal::Producer(ProducerRefusal::Gap { .. }) => Problem::ProducerGap,
            PublishRefusal::Producer(ProducerRefusal::TooOld { .. }) => Problem::ProducerTooOld,
            _ => Problem::Invalid,
        },
        PublishError::Stopping => Problem::Stopping,
        PublishError::Unknown => Problem::OutcomeUnknown,
        _ => Problem::Invalid,
    };
    v1::Problem { last_seq, retry_after_ms, ..problem(code, error.advice(), error.to_string()) }
}

/// The stream that a batch was for could not be created.
pub(super) fn create_problem(error: &CreateError) -> v1::Problem {
    let (code, advice) = match error {
        CreateError::Refused(CreateRefusal::TooMany { .. }) => (Problem::Limit, Advice::FixRequest),
        CreateError::Stopping => (Problem::Stopping, Advice::RetryLater),
        CreateError::Unknown => (Problem::OutcomeUnknown, Advice::RetryWithSameId),
        _ => (Problem::Conflict, Advice::FixRequest),
    };
    problem(code, advice, error.to_string())
}

pub(super) fn problem(code: Problem, advice: Advice, detail: String) -> v1::Problem {
    let retry = match advice {
        Advice::FixRequest => Retry::Never,
        Advice::RetryLater => Retry::Later,
        Advice::RetryWithSameId => Retry::SameId,
    };
    v1::Problem { code: code.into(), retry: retry.into(), detail, ..v1::Problem::default() }
}

fn status(code: Code, advice: Advice, text: String) -> Status {
    let retry = match advice {
        Advice::FixRequest => "never",
        Advice::RetryLater => "later",
        Advice::RetryWithSameId => "same_id",
    };
    let mut status = Status::new(code, text);
    status.metadata_mut().insert("forebay-retry", MetadataValue::from_static(retry));
    status
}
