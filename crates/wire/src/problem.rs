//! What an error is on the wire, as RFC 9457 has it: `application/problem+json`.
//!
//! Every problem is of a [`Kind`]. The list is closed, and `docs/reference/problems.md` explains each.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::v1::problem::Code;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What the caller can do about a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// Fix the request.
    Never,
    /// Try again later.
    Later,
    /// The outcome is unknown: repeat with the same message ids, and nothing is stored twice.
    SameId,
}

macro_rules! kinds {
    ($($kind:ident $slug:literal $status:literal $grpc:ident $code:ident $retry:ident $title:literal)*) => {
        /// Everything that can be wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $title] $kind,)*
        }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The last part of the type.
            pub fn slug(self) -> &'static str {
                match self { $(Kind::$kind => $slug,)* }
            }

            /// The status over HTTP.
            pub fn status(self) -> u16 {
                match self { $(Kind::$kind => $status,)* }
            }

            /// The status over gRPC.
            pub fn grpc_status(self) -> tonic::Code {
                match self { $(Kind::$kind => tonic::Code::$grpc,)* }
            }

            /// The code of a batch or a settlement that is refused within a call over gRPC.
            pub fn code(self) -> Code {
                match self { $(Kind::$kind => Code::$code,)* }
            }

            pub fn retry(self) -> Retry {
                match self { $(Kind::$kind => Retry::$retry,)* }
            }

            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)* }
            }
        }
    };
}

// A kind, the last part of its type, its status over HTTP, its status over gRPC, its code within a call over gRPC,
// the advice, and the title.
kinds! {
    MalformedRequest "malformed-request" 400 InvalidArgument Invalid Never "The request cannot be understood"
    MalformedJson "malformed-json" 400 InvalidArgument Invalid Never "The body is not JSON"
    UnknownField "unknown-field" 400 InvalidArgument Invalid Never "There is no such field"
    InvalidField "invalid-field" 400 InvalidArgument Invalid Never "A field has a value that it cannot have"
    InvalidName "invalid-name" 400 InvalidArgument Invalid Never "A name cannot be that"
    UnknownParameter "unknown-parameter" 400 InvalidArgument Invalid Never "There is no such query parameter"
    InvalidParameter "invalid-parameter" 400 InvalidArgument Invalid Never
        "A query parameter has a value that it cannot have"
    EmptySelection "empty-selection" 400 InvalidArgument Invalid Never "Nothing was selected"
    EmptyBatch "empty-batch" 400 InvalidArgument Invalid Never "There is no message in the batch"
    Unauthenticated "unauthenticated" 401 Unauthenticated Denied Never
        "A credential is needed, or the one that was sent is not accepted"
    Denied "denied" 403 PermissionDenied Denied Never "That is not allowed"
    HostNotAllowed "host-not-allowed" 403 PermissionDenied Denied Never "The server is not called that"
    OriginNotAllowed "origin-not-allowed" 403 PermissionDenied Denied Never
        "Pages from elsewhere may not use this server"
    NoSuchPath "no-such-path" 404 NotFound Invalid Never "There is nothing at this path"
    NoSuchStream "no-such-stream" 404 NotFound NoSuchStream Never "There is no such stream"
    NoSuchGroup "no-such-group" 404 NotFound NoSuchGroup Never "There is no such group"
    NoSuchCredential "no-such-credential" 404 NotFound Invalid Never "There is no such credential"
    NoSuchJob "no-such-job" 404 NotFound Invalid Never "There is no such job, or it is over"
    NotParked "not-parked" 404 NotFound Invalid Never "The message is not parked"
    MethodNotAllowed "method-not-allowed" 405 Unimplemented Unsupported Never
        "The path does not have this method"
    SlowRequest "slow-request" 408 DeadlineExceeded Invalid Later "The request came too slowly"
    SettingsDiffer "settings-differ" 409 AlreadyExists Conflict Never
        "There is one of that name with other settings"
    IdTaken "id-taken" 409 AlreadyExists Conflict Never "The id is that of another message"
    WrongLastSeq "wrong-last-seq" 409 FailedPrecondition WrongLastSeq Never
        "The stream does not end where it was expected to"
    ProducerFenced "producer-fenced" 409 FailedPrecondition ProducerFenced Never
        "A later instance of the producer has taken over"
    ProducerGap "producer-gap" 409 FailedPrecondition ProducerGap Never
        "The batch does not follow the producer's last one"
    ProducerTooOld "producer-too-old" 409 FailedPrecondition ProducerTooOld Never
        "The batch is older than the batches that the server remembers"
    InUse "in-use" 409 FailedPrecondition Conflict Never "There are consumers"
    NoSuchPosition "no-such-position" 409 OutOfRange Invalid Never "There is no such position yet"
    LimitReached "limit-reached" 409 ResourceExhausted Limit Never "There can be no more of these"
    MessageTooLarge "message-too-large" 413 InvalidArgument TooLarge Never "A message is too large"
    BatchTooLarge "batch-too-large" 413 InvalidArgument TooLarge Never "The batch is too large"
    SelectionTooLarge "selection-too-large" 413 InvalidArgument TooLarge Never
        "The selection has too many separate positions"
    BodyTooLarge "body-too-large" 413 InvalidArgument TooLarge Never "The body of the request is too large"
    UriTooLong "uri-too-long" 414 InvalidArgument TooLarge Never "The path is too long"
    UnsupportedMediaType "unsupported-media-type" 415 InvalidArgument Invalid Never
        "The body is of another type than JSON"
    StreamFull "stream-full" 429 ResourceExhausted StreamFull Later "The stream is full"
    TooFast "too-fast" 429 ResourceExhausted TooFast Later
        "The stream's producers are faster than they may be"
    TooManyConsumers "too-many-consumers" 429 ResourceExhausted Limit Later
        "The group has as many consumers as it may have"
    TooManyJobs "too-many-jobs" 429 ResourceExhausted Limit Later "The group has as many jobs as it may have"
    TooManyWaiting "too-many-waiting" 429 ResourceExhausted Limit Later "As many as may wait are waiting"
    HeadersTooLarge "headers-too-large" 431 InvalidArgument TooLarge Never "The headers are too large"
    Internal "internal" 500 Internal OutcomeUnknown SameId "The server made a mistake"
    Damaged "damaged" 500 DataLoss Invalid Never "A stored message cannot be read"
    Stopping "stopping" 503 Unavailable Stopping Later "The server is stopping"
    NotReady "not-ready" 503 Unavailable Stopping Later "The server is not ready"
    Busy "busy" 503 Aborted Limit Later "The server has too much to do at the moment"
    OutcomeUnknown "outcome-unknown" 503 Unknown OutcomeUnknown SameId "It may or may not have been done"
    StorageFull "storage-full" 507 ResourceExhausted StorageFull Later "Storage is full"
}

impl Kind {
    /// The type: a reference relative to the server.
    pub fn uri(self) -> String {
        format!("/problems/{}", self.slug())
    }

    /// The kind that a type names.
    pub fn of_uri(uri: &str) -> Option<Kind> {
        let slug = uri.strip_prefix("/problems/")?;
        Kind::ALL.iter().copied().find(|kind| kind.slug() == slug)
    }
}

/// A problem, with what else is known about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Which kind of problem, as `/problems/no-such-stream`.
    #[serde(rename = "type")]
    pub uri: String,
    /// The same for every problem of the kind.
    pub title: String,
    pub status: u16,
    /// What it was this time.
    pub detail: String,
    pub retry: Retry,
    /// The field, setting or parameter that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Where the stream ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// Seconds after which it may go better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<f64>,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        Problem {
            uri: kind.uri(),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            retry: kind.retry(),
            field: None,
            last_seq: None,
            retry_after: None,
        }
    }

    pub fn kind(&self) -> Option<Kind> {
        Kind::of_uri(&self.uri)
    }

    pub fn with_field(self, field: impl Into<String>) -> Problem {
        Problem { field: Some(field.into()), ..self }
    }

    pub fn with_last_seq(self, last_seq: u64) -> Problem {
        Problem { last_seq: Some(last_seq), ..self }
    }

    pub fn with_retry_after(self, seconds: f64) -> Problem {
        Problem { retry_after: Some(seconds), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_uri(&kind.uri()), Some(*kind), "{kind:?}");
            assert!((400..600).contains(&kind.status()), "{kind:?}");
            assert!(kind.slug().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{kind:?}");
        }
        assert_eq!(Kind::of_uri("/problems/none"), None);
    }

    #[test]
    fn a_problem_says_only_what_is_known() {
        let problem = Problem::new(Kind::NoSuchStream, "no such stream");
        let text = serde_json::to_string(&problem).expect("it is written");
        let expected = concat!(
            r#"{"type":"/problems/no-such-stream","title":"There is no such stream","status":404,"#,
            r#""detail":"no such stream","retry":"never"}"#,
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Problem>(&text).expect("it is read"), problem);
    }

    /// The table of statuses in the page on gRPC has no kind that has another status.
    #[test]
    fn the_page_of_grpc_agrees() {
        let page = include_str!("../../../docs/reference/grpc.md");
        let statuses = page.split("## Statuses").nth(1).expect("a table of statuses");
        let mut found = 0;
        for row in statuses.lines().filter(|line| line.starts_with("| `")) {
            let (statuses, kinds) = row[2..].split_once(" | ").expect("two columns");
            for kind in Kind::ALL.iter().filter(|kind| kinds.contains(&format!("`{}`", kind.slug()))) {
                let status = format!("{:?}", kind.grpc_status()).to_lowercase();
                assert!(
                    statuses.to_lowercase().replace('_', "").contains(&status),
                    "{row}\n{kind:?} is {status}"
                );
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }

    /// The page that explains the kinds lists each of them as it is, and no other.
    #[test]
    fn the_page_of_problems_agrees() {
        let page = include_str!("../../../docs/reference/problems.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let expected: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| {
                let retry = serde_json::to_string(&kind.retry()).expect("a word");
                format!("| `{}` | {} | `{}` |", kind.slug(), kind.status(), retry.trim_matches('"'))
            })
            .collect();
        for (row, start) in rows.iter().zip(&expected) {
            assert!(row.starts_with(start.as_str()), "{row}\nshould begin with\n{start}");
        }
        assert_eq!(rows.len(), expected.len());
    }
}
