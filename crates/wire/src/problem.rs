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
    ($(
        $kind:ident $slug:literal $status:literal $grpc:ident $code:ident $retry:ident $title:literal
        $help:literal
    )*) => {
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

            /// What it means, as the page of problems explains it.
            pub fn help(self) -> &'static str {
                match self { $(Kind::$kind => $help,)* }
            }
        }
    };
}

// A kind, the last part of its type, its status over HTTP, its status over gRPC, its code within a call over gRPC,
// the advice, the title, and the meaning.
kinds! {
    MalformedRequest "malformed-request" 400 InvalidArgument Invalid Never "Malformed request"
        "The request is not valid HTTP, or a name in the path is not UTF-8."
    MalformedJson "malformed-json" 400 InvalidArgument Invalid Never "Malformed JSON"
        "The body is not JSON. `detail` has the line and the column."
    UnknownField "unknown-field" 400 InvalidArgument Invalid Never "Unknown field"
        "The body has a field that the call does not have. `field` says where; `detail` lists the fields of \
         the call."
    InvalidField "invalid-field" 400 InvalidArgument Invalid Never "Invalid field value"
        "A field has an invalid value. `field` names it; `detail` states the rule."
    InvalidName "invalid-name" 400 InvalidArgument Invalid Never "Invalid name"
        "A name must have 1 to 255 bytes of UTF-8, no control characters, and must not begin with `$`. The \
         name of a group has no `/`."
    UnknownParameter "unknown-parameter" 400 InvalidArgument Invalid Never "Unknown query parameter"
        "The call does not have this query parameter."
    InvalidParameter "invalid-parameter" 400 InvalidArgument Invalid Never "Invalid query parameter"
        "A query parameter has an invalid value. `field` names it."
    EmptySelection "empty-selection" 400 InvalidArgument Invalid Never "Empty selection"
        "A replay, discard or move selects nothing. Use `{ \"all\": true }` to select everything."
    EmptyBatch "empty-batch" 400 InvalidArgument Invalid Never "Empty batch"
        "The publish has no message."
    Unauthenticated "unauthenticated" 401 Unauthenticated Denied Never "Not authenticated"
        "The server needs a token, or a user with a password, and the request has none; or it is wrong, revoked or \
         expired. The answer does not tell which of these it is."
    Denied "denied" 403 PermissionDenied Denied Never "Permission denied"
        "The client has no permission for this call. The answer is the same whether the stream or group exists or \
         not."
    HostNotAllowed "host-not-allowed" 403 PermissionDenied Denied Never "Host name not allowed"
        "The `Host` header is neither an IP address nor `localhost` nor one of the server's `host_names`."
    OriginNotAllowed "origin-not-allowed" 403 PermissionDenied Denied Never "Origin not allowed"
        "A web page of another site made the request."
    NoSuchPath "no-such-path" 404 NotFound Invalid Never "No such path"
        "The path does not exist."
    NoSuchStream "no-such-stream" 404 NotFound NoSuchStream Never "No such stream"
        "The stream does not exist."
    NoSuchGroup "no-such-group" 404 NotFound NoSuchGroup Never "No such group"
        "The group does not exist."
    NoSuchCredential "no-such-credential" 404 NotFound Invalid Never "No such credential"
        "No token, access key or user has this id, or it was revoked."
    NoSuchConnection "no-such-connection" 404 NotFound Invalid Never "No such connection"
        "No connection has this id, or it has ended."
    NoSuchJob "no-such-job" 404 NotFound Invalid Never "No such job"
        "The job does not exist. A cancellation also gets this if the job has ended."
    NotParked "not-parked" 404 NotFound Invalid Never "Message not parked"
        "The message is not parked in this group."
    MethodNotAllowed "method-not-allowed" 405 Unimplemented Unsupported Never "Method not allowed"
        "The path does not have this method. The `Allow` header lists its methods."
    SlowRequest "slow-request" 408 DeadlineExceeded Invalid Later "Request too slow"
        "The body of the request arrived too slowly."
    SettingsDiffer "settings-differ" 409 AlreadyExists Conflict Never "Exists with other settings"
        "The stream or group of the `PUT` already exists, with a different value of the setting in `field`."
    IdTaken "id-taken" 409 AlreadyExists Conflict Never "Message id in use"
        "The edited copy of a parked message has the id of another message of the stream."
    UserExists "user-exists" 409 AlreadyExists Conflict Never "User exists"
        "Another user has this name. Its password is changed with `PUT /credentials/{id}/password`."
    WrongLastSeq "wrong-last-seq" 409 FailedPrecondition WrongLastSeq Never "Unexpected last position"
        "The stream does not end at `expect_last_seq`. `last_seq` is its last position."
    LeaseNotCurrent "lease-not-current" 409 FailedPrecondition LeaseNotCurrent Never "Lease not current"
        "A lease of a transaction has expired, or its message was settled or delivered again. `field` names \
         the lease. Nothing was done."
    ProducerFenced "producer-fenced" 409 FailedPrecondition ProducerFenced Never "Producer fenced"
        "gRPC: a later instance of the producer has taken over."
    ProducerGap "producer-gap" 409 FailedPrecondition ProducerGap Never "Gap in the producer's batches"
        "gRPC: the batch does not follow the producer's last batch."
    ProducerTooOld "producer-too-old" 409 FailedPrecondition ProducerTooOld Never "Producer batch too old"
        "gRPC: the batch is older than the producer's batches that the server remembers."
    InUse "in-use" 409 FailedPrecondition Conflict Never "In use by consumers"
        "Groups of the stream have consumers. `?force=true` deletes it nevertheless."
    NotEmpty "not-empty" 409 FailedPrecondition Conflict Never "Stream not empty"
        "The stream was to be deleted only if it is empty, and has messages."
    NoSuchPosition "no-such-position" 409 OutOfRange Invalid Never "Position beyond the end of the stream"
        "The position of a message, a reset or a truncate does not exist yet. `last_seq` is the last position of the \
         stream."
    LimitReached "limit-reached" 409 ResourceExhausted Limit Never "Limit reached"
        "The server has its maximum number of streams, groups or readers."
    MessageTooLarge "message-too-large" 413 InvalidArgument TooLarge Never "Message too large"
        "One message of the batch is too large. Nothing of the batch was stored."
    BatchTooLarge "batch-too-large" 413 InvalidArgument TooLarge Never "Batch too large"
        "The batch has too many messages or bytes. Nothing of it was stored."
    SelectionTooLarge "selection-too-large" 413 InvalidArgument TooLarge Never "Selection too large"
        "A replay, discard or move selects too many separate positions."
    BodyTooLarge "body-too-large" 413 InvalidArgument TooLarge Never "Request body too large"
        "The body exceeds the limit of the call. It was refused before it was read, and the connection is \
         closed."
    UriTooLong "uri-too-long" 414 InvalidArgument TooLarge Never "Path too long"
        "Path and query are too long."
    UnsupportedMediaType "unsupported-media-type" 415 InvalidArgument Invalid Never "Unsupported media type"
        "The `Content-Type` is neither `application/json` nor the one that `curl -d` sends by default."
    StreamFull "stream-full" 429 ResourceExhausted StreamFull Later "Stream full"
        "The stream is at its limit, and its `on_full` is `reject`. Nothing was stored."
    TooFast "too-fast" 429 ResourceExhausted TooFast Later "Stream's ingress rate exceeded"
        "The stream's `ingress_rate` is exceeded. Nothing was stored."
    TooManyConsumers "too-many-consumers" 429 ResourceExhausted Limit Later "Too many consumers"
        "The group has `max_consumers` consumers already."
    TooManyJobs "too-many-jobs" 429 ResourceExhausted Limit Later "Too many jobs"
        "The group has its maximum number of running jobs."
    TooManyWaiting "too-many-waiting" 429 ResourceExhausted Limit Later "Too many waiting receives"
        "The server has its maximum number of waiting receives."
    OverLimit "over-limit" 429 ResourceExhausted Limit Later "Limit of the client reached"
        "A limit that the operator has set for this client, or for these streams, is reached: connections, requests or \
         bytes a second, calls at once, streams, stored bytes. `detail` names it. Nothing was done."
    HeadersTooLarge "headers-too-large" 431 InvalidArgument TooLarge Never "Headers too large"
        "The headers of the request are too large or too many."
    Internal "internal" 500 Internal OutcomeUnknown SameId "Internal error"
        "The server has a bug. The request may or may not have been carried out."
    Damaged "damaged" 500 DataLoss Invalid Never "Stored message damaged"
        "gRPC: a stored message cannot be decoded."
    Stopping "stopping" 503 Unavailable Stopping Later "Server stopping"
        "The server is draining or stopping. Nothing was done."
    NotReady "not-ready" 503 Unavailable Stopping Later "Server not ready"
        "`/readyz` answers this while the server does not accept work. `detail` gives the reason."
    NotOwner "not-owner" 503 Unavailable Stopping Later "Not the owner of the log"
        "The server is a standby of a cluster and reaches no owner of the log. `detail` says why. Nothing was done."
    Busy "busy" 503 Aborted Limit Later "Server busy"
        "Too many connections, too many request bytes in flight, too many passwords to check, or no room for a reply \
         because clients do not take theirs."
    OutcomeUnknown "outcome-unknown" 503 Unknown OutcomeUnknown SameId "Outcome unknown"
        "Storage failed while the request was carried out."
    StorageFull "storage-full" 507 ResourceExhausted StorageFull Later "Storage full"
        "The disk has no room for more messages. Stored messages can still be consumed."
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
            r#"{"type":"/problems/no-such-stream","title":"No such stream","status":404,"#,
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
                let retry = retry.trim_matches('"');
                format!("| `{}` | {} | `{retry}` | {} |", kind.slug(), kind.status(), kind.help())
            })
            .collect();
        for (row, expected) in rows.iter().zip(&expected) {
            assert_eq!(row, expected);
        }
        assert_eq!(rows.len(), expected.len());
    }
}
