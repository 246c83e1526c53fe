//! Refusals in the words that Kurrent clients know. The Rust client goes by codes, the Node client by the trailer
//! `exception` and the trailers that belong to it, and the Python client by message texts; so none of these may change.

use std::fmt::Display;

use forebay_broker::api::{CallError, PublishError, PublishRefusal};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

/// A status with the name of the exception that clients raise for it, and what belongs to it.
pub(super) fn exception(
    code: Code,
    message: impl Into<String>,
    exception: &'static str,
    trailers: &[(&'static str, &dyn Display)],
) -> Status {
    let mut status = Status::new(code, message);
    let metadata = status.metadata_mut();
    metadata.insert("exception", MetadataValue::from_static(exception));
    for (name, value) in trailers {
        metadata.insert(*name, header_text(&value.to_string()));
    }
    status
}

/// A text as a header can carry it. Other characters are percent-encoded, as gRPC does it with messages.
fn header_text(text: &str) -> MetadataValue<Ascii> {
    let escaped: String = text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    });
    MetadataValue::try_from(escaped).unwrap_or_else(|_| MetadataValue::from_static(""))
}

/// A request that breaks a rule.
pub(super) fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// The stream was tombstoned.
pub(super) fn stream_deleted(stream: &str) -> Status {
    exception(
        Code::FailedPrecondition,
        format!("Event stream '{stream}' is deleted."),
        "stream-deleted",
        &[("stream-name", &stream)],
    )
}

/// Of a delete or a tombstone. Versions are -1 no stream, -2 any, -4 a stream that exists.
pub(super) fn wrong_expected_version(stream: &str, expected: i64, actual: i64) -> Status {
    exception(
        Code::FailedPrecondition,
        format!(
            "Delete failed due to WrongExpectedVersion. Stream: {stream}, Expected version: {expected}, Actual \
             version: {actual}"
        ),
        "wrong-expected-version",
        &[("stream-name", &stream), ("expected-version", &expected), ("actual-version", &actual)],
    )
}

/// An append as a whole.
pub(super) fn append_too_large(limit: u64) -> Status {
    exception(
        Code::InvalidArgument,
        format!("Maximum Append Size of {limit} Exceeded."),
        "maximum-append-size-exceeded",
        &[("maximum-append-size", &limit)],
    )
}

/// One event of an append.
pub(super) fn event_too_large(id: &str, bytes: u64, limit: u64) -> Status {
    exception(
        Code::InvalidArgument,
        format!("Event with Id: {id}, Size: {bytes}, exceeds Maximum Append Event Size of {limit}."),
        "maximum-append-event-size-exceeded",
        &[("maximum-append-event-size", &limit), ("event-id", &id), ("proposed-append-event-size", &bytes)],
    )
}

/// An event without its type or content type.
pub(super) fn missing_metadata(name: &str) -> Status {
    exception(
        Code::InvalidArgument,
        format!("Required Metadata Property '{name}' is missing"),
        "missing-required-metadata-property",
        &[("required-metadata-properties", &"type,content-type")],
    )
}

/// A client without the right to do this.
pub(super) fn access_denied() -> Status {
    exception(Code::PermissionDenied, "Access Denied", "access-denied", &[])
}

/// The server stops. A subscription must never end as if it were complete.
pub(super) fn stopping() -> Status {
    Status::unavailable("Server Is Not Ready")
}

/// There is no room for now.
pub(super) fn busy() -> Status {
    Status::unavailable("Server Is Too Busy")
}

/// A write whose outcome is not known, as the protocol says it of a write that was not confirmed in time.
pub(super) fn unknown_outcome() -> Status {
    Status::aborted("Operation timed out: the outcome of the write is not known")
}

pub(super) fn group_exists(stream: &str, group: &str) -> Status {
    of_group(
        Code::AlreadyExists,
        format!("Subscription group {group} on stream {stream} exists."),
        "persistent-subscription-exists",
        (stream, group),
        None,
    )
}

pub(super) fn group_missing(stream: &str, group: &str) -> Status {
    of_group(
        Code::NotFound,
        format!("Subscription group {group} on stream {stream} does not exist."),
        "persistent-subscription-does-not-exist",
        (stream, group),
        None,
    )
}

pub(super) fn group_failed(stream: &str, group: &str, reason: &str) -> Status {
    of_group(
        Code::Internal,
        format!("Subscription group {group} on stream {stream} failed: '{reason}'"),
        "persistent-subscription-failed",
        (stream, group),
        Some(reason),
    )
}

pub(super) fn group_full(stream: &str, group: &str) -> Status {
    of_group(
        Code::FailedPrecondition,
        format!("Maximum subscriptions reached for subscription group {group} on stream {stream}."),
        "maximum-subscribers-reached",
        (stream, group),
        None,
    )
}

pub(super) fn group_dropped(stream: &str, group: &str) -> Status {
    of_group(
        Code::Cancelled,
        format!("Subscription group {group} on stream {stream} was dropped."),
        "persistent-subscription-dropped",
        (stream, group),
        None,
    )
}

fn of_group(
    code: Code,
    message: String,
    name: &'static str,
    (stream, group): (&str, &str),
    reason: Option<&str>,
) -> Status {
    let mut status = exception(code, message, name, &[("stream-name", &stream), ("group-name", &group)]);
    if let Some(reason) = reason {
        status.metadata_mut().insert("reason", header_text(reason));
    }
    status
}

/// A call that the broker refuses for a reason that has no words of its own in the protocol.
pub(super) fn of_call(error: &CallError) -> Status {
    match error {
        CallError::Denied(_) => access_denied(),
        CallError::Stopping => stopping(),
        CallError::OverLimit(_) => busy(),
        CallError::TooManyWaiting { .. } | CallError::TooManyBytes => busy(),
        CallError::Unknown => unknown_outcome(),
        CallError::NotStored { error, .. } => of_publish(error),
        CallError::NotPublished(error) => of_publish(error),
        CallError::NoSuchStream { .. } | CallError::NoSuchGroup { .. } => {
            Status::not_found(error.to_string())
        }
        CallError::StreamGone | CallError::GroupGone => Status::not_found(error.to_string()),
        CallError::Note(_) => Status::resource_exhausted(error.to_string()),
        _ => invalid(error.to_string()),
    }
}

/// A batch that was refused for a reason that does not depend on what its client expected.
pub(super) fn of_publish(error: &PublishError) -> Status {
    match error {
        PublishError::Denied(_) => access_denied(),
        PublishError::Stopping => stopping(),
        PublishError::Unknown => unknown_outcome(),
        PublishError::Refused(PublishRefusal::StorageFull | PublishRefusal::Full { .. }) => {
            Status::resource_exhausted(error.to_string())
        }
        PublishError::Refused(PublishRefusal::TooFast { .. }) | PublishError::OverLimit(_) => busy(),
        PublishError::Refused(PublishRefusal::BatchTooLarge { limit, .. }) => {
            append_too_large((*limit).into())
        }
        _ => invalid(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailers(status: &Status) -> Vec<(String, String)> {
        let pairs = status.metadata().clone().into_headers();
        let text = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
            (name.to_string(), value.to_str().expect("text").to_owned())
        };
        pairs.iter().map(text).collect()
    }

    #[test]
    fn a_refused_delete_says_the_versions_in_words_and_in_trailers() {
        let status = wrong_expected_version("orders", 5, -1);
        assert_eq!(
            status.message(),
            "Delete failed due to WrongExpectedVersion. Stream: orders, Expected version: 5, Actual version: -1"
        );
        assert_eq!(status.code(), Code::FailedPrecondition);
        let found = trailers(&status);
        for (name, value) in [
            ("exception", "wrong-expected-version"),
            ("stream-name", "orders"),
            ("expected-version", "5"),
            ("actual-version", "-1"),
        ] {
            assert!(found.contains(&(name.to_owned(), value.to_owned())), "{found:?}");
        }
    }

    #[test]
    fn a_name_that_a_header_cannot_carry_is_encoded() {
        let status = stream_deleted("bestellung-ä");
        assert_eq!(status.message(), "Event stream 'bestellung-ä' is deleted.");
        let found = trailers(&status);
        assert!(found.contains(&("stream-name".to_owned(), "bestellung-%C3%A4".to_owned())), "{found:?}");
    }

    #[test]
    fn refusals_of_groups_name_stream_and_group() {
        for (status, name, code) in [
            (group_exists("s", "g"), "persistent-subscription-exists", Code::AlreadyExists),
            (group_missing("s", "g"), "persistent-subscription-does-not-exist", Code::NotFound),
            (group_failed("s", "g", "why"), "persistent-subscription-failed", Code::Internal),
            (group_full("s", "g"), "maximum-subscribers-reached", Code::FailedPrecondition),
            (group_dropped("s", "g"), "persistent-subscription-dropped", Code::Cancelled),
        ] {
            let found = trailers(&status);
            for (key, value) in [("exception", name), ("stream-name", "s"), ("group-name", "g")] {
                assert!(found.contains(&(key.to_owned(), value.to_owned())), "{found:?}");
            }
            assert_eq!(status.code(), code);
        }
    }

    #[test]
    fn servers_that_cannot_serve_say_so_in_known_words() {
        for (status, code, text) in [
            (stopping(), Code::Unavailable, "Server Is Not Ready"),
            (busy(), Code::Unavailable, "Server Is Too Busy"),
            (of_call(&CallError::Stopping), Code::Unavailable, "Server Is Not Ready"),
            (of_call(&CallError::TooManyBytes), Code::Unavailable, "Server Is Too Busy"),
            (of_publish(&PublishError::Stopping), Code::Unavailable, "Server Is Not Ready"),
            (of_publish(&PublishError::Unknown), Code::Aborted, "Operation timed out: "),
            (of_call(&CallError::Unknown), Code::Aborted, "Operation timed out: "),
        ] {
            assert_eq!(status.code(), code);
            assert!(status.message().starts_with(text), "{}", status.message());
        }
    }
}
