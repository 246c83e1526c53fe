//! What an error is in gRPC's words, in one table. Every status carries the kind of the problem in the
//! metadata `forebay-problem`, by the name that it has over HTTP too, and the advice of the API in
//! `forebay-retry`: `never`, `later` or `same_id`.

use forebay_broker::api::DecodeError;
use forebay_broker::api::JobRefusal;
use forebay_broker::api::ProducerRefusal;
use forebay_broker::api::SettingsError;
use forebay_broker::api::{Advice, CallError, PublishError};
use forebay_broker::api::{ChangeRefusal, CreateRefusal, MemberRefusal, PublishRefusal};
use forebay_core::types::Timestamp;
use forebay_wire::v1::problem::Code as Problem;
use forebay_wire::v1::{self, Retry};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

pub(super) fn of_call(error: &CallError) -> Status {
    let (code, kind) = match error {
        CallError::Denied(_) => (Code::PermissionDenied, "denied"),
        CallError::NoSuchStream
        | CallError::NotCreated(CreateRefusal::NoSuchStream)
        | CallError::NotChanged(ChangeRefusal::NoSuchStream) => (Code::NotFound, "no-such-stream"),
        CallError::NoSuchGroup
        | CallError::NotChanged(ChangeRefusal::NoSuchGroup)
        | CallError::NotAMember(MemberRefusal::NoSuchGroup)
        | CallError::Job(JobRefusal::NoSuchGroup) => (Code::NotFound, "no-such-group"),
        CallError::Job(JobRefusal::NoSuchJob { .. }) => (Code::NotFound, "no-such-job"),
        CallError::Job(JobRefusal::NotParked { .. }) => (Code::NotFound, "not-parked"),
        CallError::NotCreated(CreateRefusal::Settings(_))
        | CallError::NotChanged(ChangeRefusal::Settings(_))
        | CallError::NotAMember(MemberRefusal::CreditTooLarge { .. })
        | CallError::Job(JobRefusal::Rate) => (Code::InvalidArgument, "invalid-field"),
        CallError::Job(JobRefusal::Empty) => (Code::InvalidArgument, "empty-selection"),
        CallError::NotChanged(ChangeRefusal::Beyond { .. }) => (Code::OutOfRange, "no-such-position"),
        CallError::NotCreated(CreateRefusal::TooMany { .. })
        | CallError::NotChanged(ChangeRefusal::TooMany { .. }) => (Code::ResourceExhausted, "limit-reached"),
        CallError::NotAMember(MemberRefusal::TooManyConsumers { .. }) => {
            (Code::ResourceExhausted, "too-many-consumers")
        }
        CallError::Job(JobRefusal::TooMany { .. }) => (Code::ResourceExhausted, "too-many-jobs"),
        CallError::TooManyWaiting { .. } => (Code::ResourceExhausted, "too-many-waiting"),
        CallError::NotCreated(_) | CallError::Different => (Code::AlreadyExists, "settings-differ"),
        CallError::NotChanged(ChangeRefusal::InUse { .. }) => (Code::FailedPrecondition, "in-use"),
        CallError::NotPublished(error) => of_publish(error),
        CallError::Stopping => (Code::Unavailable, "stopping"),
        // Whatever can be asked twice can simply be repeated.
        CallError::Unknown => (Code::Unknown, "outcome-unknown"),
        _ => (Code::Internal, "internal"),
    };
    let text = match field(error) {
        Some(field) => format!("{field}: {error}"),
        None => error.to_string(),
    };
    status(code, kind, error.advice(), text)
}

/// The field that is to blame.
fn field(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::NotChanged(ChangeRefusal::Settings(error))
        | CallError::NotCreated(CreateRefusal::Settings(error)) => match error {
            SettingsError::Factor => Some("backoff.factor"),
            SettingsError::Jitter => Some("backoff.jitter"),
            SettingsError::DelayOrder => Some("backoff.min_ms"),
            SettingsError::NoTimeout => Some("message_timeout_ms"),
            SettingsError::Rate => Some("rate"),
            SettingsError::Checkpoint => Some("checkpoint.min"),
            SettingsError::PinnedFairness => Some("fairness"),
            SettingsError::MoveToItself => Some("on_exhausted.move_to"),
            _ => None,
        },
        CallError::NotAMember(MemberRefusal::CreditTooLarge { .. }) => Some("credit"),
        CallError::Job(JobRefusal::Rate) => Some("rate"),
        _ => None,
    }
}

/// An edited copy that could not be published.
fn of_publish(error: &PublishError) -> (Code, &'static str) {
    match error {
        PublishError::Refused(PublishRefusal::StorageFull) => (Code::ResourceExhausted, "storage-full"),
        PublishError::Refused(refusal) => match refusal {
            PublishRefusal::NoSuchStream => (Code::NotFound, "no-such-stream"),
            PublishRefusal::MessageTooLarge { .. } => (Code::InvalidArgument, "message-too-large"),
            PublishRefusal::BatchTooLarge { .. } | PublishRefusal::TooMany { .. } => {
                (Code::InvalidArgument, "batch-too-large")
            }
            PublishRefusal::Empty => (Code::InvalidArgument, "empty-batch"),
            PublishRefusal::Full { .. } => (Code::ResourceExhausted, "stream-full"),
            PublishRefusal::TooFast { .. } => (Code::ResourceExhausted, "too-fast"),
            PublishRefusal::WrongLastSeq { .. } => (Code::FailedPrecondition, "wrong-last-seq"),
            _ => (Code::InvalidArgument, "invalid-field"),
        },
        PublishError::NotCreated(CreateRefusal::TooMany { .. }) => (Code::ResourceExhausted, "limit-reached"),
        PublishError::Denied(_) => (Code::PermissionDenied, "denied"),
        PublishError::Stopping => (Code::Unavailable, "stopping"),
        PublishError::Unknown => (Code::Unknown, "outcome-unknown"),
        _ => (Code::InvalidArgument, "invalid-field"),
    }
}

/// A field has a value that it cannot have. The text begins with its name.
pub(super) fn invalid(text: String) -> Status {
    status(Code::InvalidArgument, "invalid-field", Advice::FixRequest, text)
}

pub(super) fn invalid_name(text: String) -> Status {
    status(Code::InvalidArgument, "invalid-name", Advice::FixRequest, text)
}

pub(super) fn empty_selection() -> Status {
    let text = "select: nothing is selected; `all` means all";
    status(Code::InvalidArgument, "empty-selection", Advice::FixRequest, text.to_owned())
}

pub(super) fn no_such_service(name: &str) -> Status {
    let text = format!("service: no such service. service=`{name}`");
    status(Code::NotFound, "no-such-path", Advice::FixRequest, text)
}

pub(super) fn stopping() -> Status {
    status(Code::Unavailable, "stopping", Advice::RetryLater, "the server is stopping".to_owned())
}

pub(super) fn cut_off() -> Status {
    let text = "messages lay in the consumer's queue until their leases lapsed; ask for less credit";
    status(Code::Aborted, "busy", Advice::RetryLater, text.to_owned())
}

pub(super) fn damaged(error: &DecodeError) -> Status {
    let text = format!("a stored message cannot be understood: {error}");
    status(Code::DataLoss, "internal", Advice::FixRequest, text)
}

/// A batch that was not stored does not end the call, so its error is no status but part of a reply.
pub(super) fn publish_problem(now: Timestamp, error: &PublishError) -> v1::Problem {
    let (mut last_seq, mut retry_after_ms) = (None, None);
    let code = match error {
        PublishError::Refused(PublishRefusal::StorageFull) => Problem::StorageFull,
        PublishError::Refused(refusal) => match refusal {
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
        PublishError::NotCreated(CreateRefusal::TooMany { .. }) => Problem::Limit,
        PublishError::Denied(_) => Problem::Denied,
        PublishError::Stopping => Problem::Stopping,
        PublishError::Unknown => Problem::OutcomeUnknown,
        _ => Problem::Invalid,
    };
    v1::Problem { last_seq, retry_after_ms, ..problem(code, error.advice(), error.to_string()) }
}

pub(super) fn problem(code: Problem, advice: Advice, detail: String) -> v1::Problem {
    let retry = match advice {
        Advice::FixRequest => Retry::Never,
        Advice::RetryLater => Retry::Later,
        Advice::RetryWithSameId => Retry::SameId,
    };
    v1::Problem { code: code.into(), retry: retry.into(), detail, ..v1::Problem::default() }
}

fn status(code: Code, kind: &'static str, advice: Advice, text: String) -> Status {
    let retry = match advice {
        Advice::FixRequest => "never",
        Advice::RetryLater => "later",
        Advice::RetryWithSameId => "same_id",
    };
    let mut status = Status::new(code, text);
    status.metadata_mut().insert("forebay-problem", MetadataValue::from_static(kind));
    status.metadata_mut().insert("forebay-retry", MetadataValue::from_static(retry));
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_go_together_are_named() {
        let refused = CallError::NotChanged(ChangeRefusal::Settings(SettingsError::DelayOrder));
        let status = of_call(&refused);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("backoff.min_ms: the least wait"), "{}", status.message());
        let of = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
        assert_eq!((of("forebay-problem"), of("forebay-retry")), (Some("invalid-field"), Some("never")));
    }
}
