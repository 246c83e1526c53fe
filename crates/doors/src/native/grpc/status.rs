//! Refusals in the words of gRPC. Every status carries the kind of the problem in the metadata `forebay-problem`, by
//! the name that it has over HTTP too, and the advice of the API in `forebay-retry`: `never`, `later` or `same_id`.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::Response;
use forebay_wire::problem::{Kind, Retry};
use forebay_wire::settings::wire_name;
use forebay_wire::v1;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

use crate::native::problem::Refusal;

/// Fields, beside settings, that have another name in `forebay.v1` than over HTTP, where durations and times have no
/// unit.
const NAMES: [(&str, &str); 11] = [
    ("action.move", "move_to"),
    ("by", "delay_ms"),
    ("delay", "delay_ms"),
    ("deliver_at", "deliver_at_us"),
    ("expires_in", "expires_in_ms"),
    ("key_base64", "key_bytes"),
    ("rest", "rest_ms"),
    ("target_drain", "target_drain_ms"),
    ("timeout", "timeout_ms"),
    ("ttl", "ttl_ms"),
    ("wait", "wait_ms"),
];

/// A field by its name in `forebay.v1`.
pub(in crate::native) fn field_name(field: &str) -> Cow<'_, str> {
    let prefix = field.rfind("].").map_or(0, |at| at + 2);
    let prefix = if field.starts_with("message.") { "message.".len() } else { prefix };
    let (path, name) = field.split_at(prefix);
    match NAMES.iter().find(|(other, _)| *other == name) {
        Some((_, name)) => format!("{path}{name}").into(),
        None => wire_name(field).into(),
    }
}

/// A call that is refused.
pub(in crate::native) fn refused(refusal: &Refusal) -> Status {
    let field = refusal.field.as_deref().map(field_name);
    let mut status = Status::new(refusal.kind.grpc_status(), refusal.sentence(field.as_deref()));
    let metadata = status.metadata_mut();
    metadata.insert("forebay-problem", MetadataValue::from_static(refusal.kind.slug()));
    let retry = match refusal.kind.retry() {
        Retry::Never => "never",
        Retry::Later => "later",
        Retry::SameId => "same_id",
    };
    metadata.insert("forebay-retry", MetadataValue::from_static(retry));
    if let Some(Ok(field)) = field.map(|field| MetadataValue::<Ascii>::try_from(&*field)) {
        metadata.insert("forebay-field", field);
    }
    if let Some(last_seq) = refusal.last_seq {
        metadata.insert("forebay-last-seq", last_seq.into());
    }
    if let Some(after) = refusal.retry_after {
        metadata.insert("forebay-retry-after-ms", millis(after).into());
    }
    status
}

/// A message for which there is no room.
pub(in crate::native) fn busy() -> Status {
    refused(&Refusal::new(Kind::Busy, "too many bytes are on their way to the server"))
}

/// The status of a request that cannot be decoded. The library calls that an internal error, which is a mistake of the
/// server; every internal error of ours says that it is one.
pub(in crate::native) fn of_wire(status: Status) -> Status {
    if status.code() != Code::Internal || status.metadata().contains_key("forebay-problem") {
        return status;
    }
    refused(&Refusal::new(
        Kind::MalformedRequest,
        format!("the request cannot be decoded: {}", status.message()),
    ))
}

/// The same of an answer to a call with one request, which the library gives by itself.
pub(in crate::native) fn mend<B>(answer: &mut Response<B>) {
    let headers = answer.headers_mut();
    let is_internal = headers.get("grpc-status").is_some_and(|status| status == "13");
    if !is_internal || headers.contains_key("forebay-problem") {
        return;
    }
    let message = headers.get("grpc-message").and_then(|message| message.to_str().ok()).unwrap_or_default();
    let message = percent_encoding::percent_decode_str(message).decode_utf8_lossy().into_owned();
    let mended = of_wire(Status::internal(message)).into_http::<()>();
    for (name, value) in mended.headers() {
        headers.insert(name, value.clone());
    }
}

/// A batch or a settlement that is refused does not end its call, so the refusal is part of a reply.
pub(super) fn problem(refusal: &Refusal) -> v1::Problem {
    let retry = match refusal.kind.retry() {
        Retry::Never => v1::Retry::Never,
        Retry::Later => v1::Retry::Later,
        Retry::SameId => v1::Retry::SameId,
    };
    let field = refusal.field.as_deref().map(field_name);
    v1::Problem {
        code: refusal.kind.code().into(),
        retry: retry.into(),
        detail: refusal.sentence(field.as_deref()),
        last_seq: refusal.last_seq,
        retry_after_ms: refusal.retry_after.map(millis),
        field: field.unwrap_or_default().into_owned(),
        kind: refusal.kind.slug().to_owned(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn stopping() -> Status {
    refused(&Refusal::stopping())
}

pub(super) fn cut_off() -> Status {
    let text = "messages lay in the consumer's queue until their leases lapsed; ask for less credit";
    refused(&Refusal::new(Kind::Busy, text))
}

/// The server may have lost the log.
pub(super) fn log_unsure() -> Status {
    let text = "the server cannot reach the log, so another node may own it; leases of connections are over";
    refused(&Refusal::new(Kind::NotOwner, text))
}

pub(super) fn no_such_service(name: &str) -> Status {
    refused(&Refusal::new(Kind::NoSuchPath, format!("no such service. service=`{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_is_wrong_in_words_of_grpc() {
        let refusal = Refusal::value("wait", "must be at most 10m", "11m");
        let status = refused(&refusal);
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "wait_ms must be at most 10m. value=`11m`")
        );
        let of = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
        assert_eq!((of("forebay-problem"), of("forebay-retry")), (Some("invalid-field"), Some("never")));
        assert_eq!((of("forebay-field"), of("forebay-last-seq")), (Some("wait_ms"), None));
        let mut refusal = Refusal::new(Kind::NoSuchPosition, "no such position");
        refusal.last_seq = Some(7);
        let status = refused(&refusal);
        assert_eq!(
            status.metadata().get("forebay-last-seq").and_then(|value| value.to_str().ok()),
            Some("7")
        );
    }

    #[test]
    fn a_request_that_cannot_be_decoded_is_no_internal_error() {
        let decoding = || Status::internal("failed to decode Protobuf message: invalid wire type");
        let mended = of_wire(decoding());
        assert_eq!(mended.code(), Code::InvalidArgument);
        assert!(mended.message().contains("invalid wire type"), "{mended}");
        assert_eq!(
            mended.metadata().get("forebay-problem").map(MetadataValue::as_bytes),
            Some(&b"malformed-request"[..])
        );
        let mut answer = decoding().into_http::<()>();
        mend(&mut answer);
        assert_eq!(answer.headers()["grpc-status"], "3");
        assert_eq!(answer.headers()["forebay-problem"], "malformed-request");
        let ours = refused(&Refusal::new(Kind::Internal, "a mistake"));
        assert_eq!(of_wire(ours.clone()).code(), Code::Internal, "a mistake of ours stays one");
        let mut answer = ours.into_http::<()>();
        mend(&mut answer);
        assert_eq!(answer.headers()["grpc-status"], "13");
    }

    #[test]
    fn fields_have_their_names_of_the_protocol() {
        for (field, name) in [
            ("messages[3].delay", "messages[3].delay_ms"),
            ("publish[1].messages[3].delay", "publish[1].messages[3].delay_ms"),
            ("settle[2].leases[0]", "settle[2].leases[0]"),
            ("message.priority", "message.priority"),
            ("message.deliver_at", "message.deliver_at_us"),
            ("limit", "limit"),
        ] {
            assert_eq!(field_name(field), name);
        }
        assert!(NAMES.is_sorted());
    }
}
