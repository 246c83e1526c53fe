//! The administrative calls over gRPC, each with what it refuses.

// The macros below fill in what a request has beside its names, and some have nothing.
#![allow(clippy::needless_update)]

mod drain;
mod edges;
mod groups;
mod keda;
mod parked;
mod poll;
mod standard;
mod streams;

use std::fmt::Debug;

use forebay_wire::v1;
use tonic::{Code, Response, Status};

fn message(body: &str) -> v1::Message {
    v1::Message { body: body.to_owned().into(), ..v1::Message::default() }
}

/// The message of an answer.
#[track_caller]
fn answer<T>(answered: Result<Response<T>, Status>) -> T {
    answered.unwrap_or_else(|status| panic!("refused: {status:?}")).into_inner()
}

/// With which code and as which kind of problem something was refused, and the text.
#[track_caller]
fn refusal<T: Debug>(answered: Result<Response<T>, Status>) -> (Code, String, String) {
    let status = answered.map(Response::into_inner).expect_err("this cannot be");
    let of = |name| status.metadata().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    assert!(of("forebay-retry").is_some(), "every status has its advice: {status:?}");
    let kind = of("forebay-problem").unwrap_or_else(|| panic!("every status has its kind: {status:?}"));
    (status.code(), kind, status.message().to_owned())
}

/// Sees that something was refused, with which code, as which kind, and that the text begins so.
#[track_caller]
fn is_refused<T: Debug>(answered: Result<Response<T>, Status>, code: Code, kind: &str, text: &str) {
    let (has_code, has_kind, has_text) = refusal(answered);
    assert_eq!((has_code, &has_kind[..]), (code, kind), "{has_text}");
    assert!(has_text.starts_with(text), "`{has_text}` should begin with `{text}`");
}

/// A request about a group.
macro_rules! of_group {
    ($request:ident, $stream:expr, $group:expr $(, $field:ident: $value:expr)*) => {
        forebay_wire::v1::$request {
            stream: $stream.to_owned(),
            group: $group.to_owned(),
            $($field: $value,)*
            ..Default::default()
        }
    };
}

/// A request about a stream.
macro_rules! of_stream {
    ($request:ident, $stream:expr $(, $field:ident: $value:expr)*) => {
        forebay_wire::v1::$request {
            stream: $stream.to_owned(),
            $($field: $value,)*
            ..Default::default()
        }
    };
}

use {of_group, of_stream};
