//! Errors, and what a caller can do about each.

use std::error::Error;
use std::sync::Arc;

use forebay_wire::v1;
use tonic::{Code, Status};

pub use forebay_wire::problem::Kind as ProblemKind;

/// The error behind another one, for example of the network. It can be shown and logged; its type is not part of the
/// API.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// What a caller can do about an error.
///
/// ```
/// use forebay_client::{Advice, PublishError};
///
/// fn worth_another_try(error: &PublishError) -> bool {
///     error.advice() != Advice::FixRequest
/// }
///
/// assert!(!worth_another_try(&PublishError::Closed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing was done, and the same request will fail again.
    FixRequest,
    /// Nothing was done. The same request may succeed later.
    RetryLater,
    /// It is not known whether the request was carried out. Publishing again with the same message ids stores nothing
    /// twice; most other calls can simply be repeated.
    RetryWithSameId,
}

impl Advice {
    pub(crate) fn from_wire(retry: v1::Retry) -> Advice {
        match retry {
            v1::Retry::Later => Advice::RetryLater,
            v1::Retry::SameId => Advice::RetryWithSameId,
            v1::Retry::Never | v1::Retry::Unspecified => Advice::FixRequest,
        }
    }
}

/// Why a client could not connect.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not an address.
    #[error("the address must be http://HOST:PORT, https://HOST:PORT or HOST:PORT. url=`{url}`")]
    InvalidUrl {
        /// The address as it was given.
        url: String,
    },
    /// The certificates by which the server should be recognised, or the client's own, cannot be used.
    #[error("the certificates cannot be used; the CA, the client's certificate and its key must be in PEM")]
    InvalidCertificate {
        /// Why not.
        #[source]
        cause: Cause,
    },
    /// The address asks for another protocol.
    #[error("the scheme of the address must be `http` or `https`. scheme=`{scheme}`")]
    UnknownScheme {
        /// The scheme as it was given.
        scheme: String,
    },
    /// The application's name cannot be sent as a header.
    #[error("the application name must have visible ASCII characters only. name=`{name}`")]
    InvalidName {
        /// The name as it was given.
        name: String,
    },
    /// The token cannot be sent as a header.
    #[error("a token must have visible ASCII characters only")]
    InvalidToken,
    /// The server does not accept the client's token, or asks for one.
    #[error("{detail}. server=`{server}`")]
    NotAccepted {
        /// Host and port.
        server: String,
        /// The server's sentence.
        detail: String,
    },
    /// The client was made outside of a Tokio runtime, which it needs for its connection.
    #[error("a client must be made inside a Tokio runtime")]
    NoRuntime,
    /// No connection could be made.
    #[error("cannot connect; is the server running? server=`{server}`")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The error of the network.
        #[source]
        cause: Cause,
    },
    /// Another program listens there.
    #[error("the server at this address is not Forebay. server=`{server}`")]
    NotForebay {
        /// Host and port.
        server: String,
        /// The answer, as an error.
        #[source]
        cause: Cause,
    },
    /// The connection was made, and then no answer came.
    #[error("the server did not answer in time. server=`{server}`")]
    Silent {
        /// Host and port.
        server: String,
    },
}

impl ConnectError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => Advice::RetryLater,
            _ => Advice::FixRequest,
        }
    }
}

/// Why a call failed.
///
/// ```
/// use forebay_client::error::{CallError, ProblemKind};
///
/// fn is_gone(error: &CallError) -> bool {
///     error.is(ProblemKind::NoSuchStream) || error.is(ProblemKind::NoSuchGroup)
/// }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server refused the request.
    #[error("{detail}")]
    Refused {
        /// The kind of problem, if this version of the SDK knows it.
        kind: Option<ProblemKind>,
        /// A description for people.
        detail: String,
        /// What to do about it.
        advice: Advice,
    },
    /// There is no connection, so the request was not sent.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Cause),
    /// The connection broke, or the call was cut short. The request may or may not have been carried out.
    #[error("the call broke off")]
    Broken(#[source] Cause),
    /// The answer is not one of this API.
    #[error("the answer was not understood; is the server of another version?")]
    NotUnderstood(#[source] Cause),
}

impl CallError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            CallError::Refused { advice, .. } => *advice,
            CallError::Unreachable(_) => Advice::RetryLater,
            CallError::Broken(_) => Advice::RetryWithSameId,
            CallError::NotUnderstood(_) => Advice::FixRequest,
        }
    }

    /// The kind of problem that the server reported, if it did.
    pub fn kind(&self) -> Option<ProblemKind> {
        match self {
            CallError::Refused { kind, .. } => *kind,
            _ => None,
        }
    }

    /// Whether the server reported this kind of problem.
    pub fn is(&self, kind: ProblemKind) -> bool {
        self.kind() == Some(kind)
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        if let Some((kind, advice)) = reported_by_forebay(&status) {
            return CallError::Refused { kind, detail: status.message().to_owned(), advice };
        }
        let (code, is_unconnected) = (status.code(), is_unconnected(&status));
        let cause: Cause = Arc::new(status);
        if is_unconnected {
            return CallError::Unreachable(cause);
        }
        match code {
            Code::Unimplemented
            | Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition => CallError::NotUnderstood(cause),
            _ => CallError::Broken(cause),
        }
    }
}

/// The problem and the advice that a Forebay server puts beside its status.
fn reported_by_forebay(status: &Status) -> Option<(Option<ProblemKind>, Advice)> {
    let text = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
    let advice = match text("forebay-retry")? {
        "later" => Advice::RetryLater,
        "same_id" => Advice::RetryWithSameId,
        _ => Advice::FixRequest,
    };
    let slug = text("forebay-problem");
    let kind = ProblemKind::ALL.iter().copied().find(|kind| Some(kind.slug()) == slug);
    Some((kind, advice))
}

/// Whether the call failed before there was a connection to send it on.
fn is_unconnected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The kind of a problem that came inside a call. Codes that stand for several kinds have none.
pub(crate) fn kind_of_code(code: v1::problem::Code) -> Option<ProblemKind> {
    use v1::problem::Code;
    Some(match code {
        Code::NoSuchStream => ProblemKind::NoSuchStream,
        Code::NoSuchGroup => ProblemKind::NoSuchGroup,
        Code::TooLarge => ProblemKind::MessageTooLarge,
        Code::StorageFull => ProblemKind::StorageFull,
        Code::Stopping => ProblemKind::Stopping,
        Code::OutcomeUnknown => ProblemKind::OutcomeUnknown,
        Code::Limit => ProblemKind::LimitReached,
        Code::StreamFull => ProblemKind::StreamFull,
        Code::TooFast => ProblemKind::TooFast,
        Code::WrongLastSeq => ProblemKind::WrongLastSeq,
        Code::Denied => ProblemKind::Denied,
        Code::LeaseNotCurrent => ProblemKind::LeaseNotCurrent,
        _ => return None,
    })
}

/// Why a message was not stored, or may not have been.
///
/// Where a later try could succeed, the SDK has tried again by then, for as long as the client's `retry_for` says.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The payload cannot be written as JSON. The message was not sent.
    #[error("the payload cannot be serialized")]
    NotSerialized(#[source] Arc<serde_json::Error>),
    /// The server refused the message, and nothing was stored.
    #[error("{detail}")]
    Refused {
        /// The reason, for programs.
        refusal: Refusal,
        /// The reason, for people.
        detail: String,
    },
    /// The batch should be stored only after a certain message, and the stream does not end there.
    #[error("the stream does not end at the expected position. last_seq=`{last_seq}`")]
    WrongLastSeq {
        /// Where the stream ends.
        last_seq: u64,
    },
    /// The time to retry is over. The message was never sent, or the server said each time that it stored nothing.
    #[error("not stored in time: {detail}")]
    NotInTime {
        /// What stood in the way last.
        detail: String,
        /// Whether that was the connection, rather than an answer of the server.
        is_disconnected: bool,
    },
    /// The time to retry is over, and it is not known whether the message was stored.
    #[error("outcome unknown, the message may or may not be stored: {detail}")]
    Unknown {
        /// What stood in the way last.
        detail: String,
        /// Whether that was the connection, rather than an answer of the server.
        is_disconnected: bool,
    },
    /// The server refused an earlier message, and the producer stops at the first failure. Nothing was stored.
    #[error("not stored, because an earlier message was refused")]
    Aborted,
    /// The producer is closed. The message was not sent.
    #[error("the producer is closed")]
    Closed,
}

/// Why the server refused a message for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A name or a field has a value that it cannot have.
    Invalid,
    /// The message, or the batch, is larger than the server takes.
    TooLarge,
    /// There is no such stream, and the server does not create streams by itself.
    NoSuchStream,
    /// The client is not allowed to publish to the stream.
    Denied,
    /// The server cannot have more streams.
    Limit,
    /// The message uses a part of the API that this server does not have.
    Unsupported,
    /// Another reason. The description says which.
    Other,
}

impl Refusal {
    pub(crate) fn from_code(code: v1::problem::Code) -> Refusal {
        use v1::problem::Code;
        match code {
            Code::Invalid => Refusal::Invalid,
            Code::TooLarge => Refusal::TooLarge,
            Code::NoSuchStream => Refusal::NoSuchStream,
            Code::Denied => Refusal::Denied,
            Code::Limit => Refusal::Limit,
            Code::Unsupported => Refusal::Unsupported,
            _ => Refusal::Other,
        }
    }

    pub(crate) fn from_kind(kind: Option<ProblemKind>) -> Refusal {
        match kind {
            Some(ProblemKind::Denied) => Refusal::Denied,
            Some(ProblemKind::NoSuchStream) => Refusal::NoSuchStream,
            Some(ProblemKind::LimitReached) => Refusal::Limit,
            Some(ProblemKind::MessageTooLarge | ProblemKind::BatchTooLarge) => Refusal::TooLarge,
            _ => Refusal::Invalid,
        }
    }
}

impl PublishError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            PublishError::NotSerialized(_)
            | PublishError::Refused { .. }
            | PublishError::WrongLastSeq { .. }
            | PublishError::Aborted
            | PublishError::Closed => Advice::FixRequest,
            PublishError::NotInTime { .. } => Advice::RetryLater,
            PublishError::Unknown { .. } => Advice::RetryWithSameId,
        }
    }
}

impl From<serde_json::Error> for PublishError {
    fn from(error: serde_json::Error) -> PublishError {
        PublishError::NotSerialized(Arc::new(error))
    }
}

/// An error and its causes in one line.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::metadata::MetadataValue;

    fn said(code: Code, problem: &'static str, retry: &'static str) -> CallError {
        let mut status = Status::new(code, "so it is");
        status.metadata_mut().insert("forebay-problem", MetadataValue::from_static(problem));
        status.metadata_mut().insert("forebay-retry", MetadataValue::from_static(retry));
        status.into()
    }

    #[test]
    fn what_the_server_says_is_kept() {
        let error = said(Code::NotFound, "no-such-group", "never");
        assert!(error.is(ProblemKind::NoSuchGroup));
        assert_eq!((error.advice(), error.to_string()), (Advice::FixRequest, "so it is".to_owned()));
        assert_eq!(said(Code::Unavailable, "stopping", "later").advice(), Advice::RetryLater);
        assert_eq!(said(Code::Unknown, "outcome-unknown", "same_id").advice(), Advice::RetryWithSameId);
        let newer = said(Code::Internal, "of-a-later-version", "later");
        assert_eq!((newer.kind(), newer.advice()), (None, Advice::RetryLater));
    }

    #[test]
    fn what_never_left_is_told_from_what_broke_on_the_way() {
        let refused = tonic::ConnectError("connection refused".into());
        let error = CallError::from(Status::from_error(Box::new(refused)));
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        assert_eq!(error.advice(), Advice::RetryLater);
        let error = CallError::from(Status::unavailable("connection reset"));
        assert!(matches!(error, CallError::Broken(_)), "{error:?}");
        assert_eq!(error.advice(), Advice::RetryWithSameId);
        let error = CallError::from(Status::unimplemented("404"));
        assert!(matches!(error, CallError::NotUnderstood(_)), "{error:?}");
    }
}
