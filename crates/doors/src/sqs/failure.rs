//! Errors of the broker as errors of SQS.

use forebay_broker::api::{
    Advice, CallError, CreateRefusal, NoteRefusal, OverLimit, PublishError, PublishRefusal,
};

use super::wire::error::{ErrorKind, SqsError};

/// A client at a limit. SQS clients retry this error by themselves, and wait longer each time.
pub(super) fn over_limit(over: &OverLimit) -> SqsError {
    SqsError::new(ErrorKind::RequestThrottled, over.to_string())
}

pub(super) fn of_call(error: &CallError) -> SqsError {
    match error {
        CallError::NoSuchStream { .. }
        | CallError::NoSuchGroup { .. }
        | CallError::StreamGone
        | CallError::GroupGone => SqsError::no_such_queue(),
        CallError::InFlightFull { .. } => SqsError::new(ErrorKind::OverLimit, error.to_string()),
        CallError::NotCreated(CreateRefusal::TooMany { .. }) | CallError::Note(NoteRefusal::TooMany) => {
            SqsError::new(ErrorKind::OverLimit, error.to_string())
        }
        CallError::Note(NoteRefusal::Full) => {
            let message =
                "There is no room for it: storage is full, or attributes and tags of all queues are.";
            SqsError::new(ErrorKind::ServiceUnavailable, message)
        }
        CallError::OverLimit(over) => over_limit(over),
        CallError::NotStored { error, .. } if matches!(**error, PublishError::OverLimit(_)) => {
            of_publish(error)
        }
        CallError::Denied(_) => SqsError::new(ErrorKind::AccessDenied, error.to_string()),
        _ if error.advice() == Advice::RetryLater => {
            SqsError::new(ErrorKind::ServiceUnavailable, error.to_string())
        }
        _ => SqsError::new(ErrorKind::InternalFailure, error.to_string()),
    }
}

pub(super) fn of_publish(error: &PublishError) -> SqsError {
    let refusal = match error {
        PublishError::OverLimit(over) => return over_limit(over),
        PublishError::Refused(refusal) => Some(refusal),
        _ => None,
    };
    let kind = match refusal {
        Some(PublishRefusal::NoSuchStream) => return SqsError::no_such_queue(),
        Some(PublishRefusal::TooFast { .. }) => ErrorKind::RequestThrottled,
        Some(PublishRefusal::MessageTooLarge { .. } | PublishRefusal::BatchTooLarge { .. }) => {
            ErrorKind::InvalidParameterValue
        }
        _ if matches!(error, PublishError::Denied(_)) => ErrorKind::AccessDenied,
        _ if error.advice() == Advice::RetryLater => ErrorKind::ServiceUnavailable,
        // Whether it is stored is unknown, and clients retry this error by themselves, as they do on AWS.
        _ => ErrorKind::InternalFailure,
    };
    SqsError::new(kind, error.to_string())
}
