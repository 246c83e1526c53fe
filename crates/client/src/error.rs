//! Why something was not done, and what the one who asked can do about it.

use std::error::Error;
use std::sync::Arc;

use forebay_wire::v1;
use tonic::{Code, Status};

pub use forebay_wire::problem::Kind as ProblemKind;

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
    /// It was not done, and will not be done in these words.
    FixRequest,
    /// It was not done. Later it may be.
    RetryLater,
    /// Nobody knows whether it was done. A publish with the same message ids stores nothing twice; most other
    /// calls can simply be repeated.
    RetryWithSameId,
}

impl Advice {
    pub(crate) fn of(retry: v1::Retry) -> Advice {
        match retry {
            v1::Retry::Later => Advice::RetryLater,
            v1::Retry::SameId => Advice::RetryWithSameId,
            v1::Retry::Never | v1::Retry::Unspecified => Advice::FixRequest,
        }
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error("that is no address of a server; expected http://HOST:PORT. url=`{url}`")]
    InvalidUrl { url: String },
    #[error("TLS is not there yet; a server is reached by http://HOST:PORT. url=`{url}`")]
    NoTls { url: String },
    #[error("a server is reached by http, and not otherwise. scheme=`{scheme}`")]
    UnknownScheme { scheme: String },
    /// It cannot be part of a header.
    #[error("that is no name of an application: it has characters that are not plain. name=`{name}`")]
    InvalidName { name: String },
    #[error("cannot connect; is the server running? server=`{server}`")]
    Unreachable {
        server: String,
        #[source]
        cause: Arc<dyn Error + Send + Sync>,
    },
    #[error("whoever answers there is no Forebay. server=`{server}`")]
    NotForebay {
        server: String,
        #[source]
        cause: Box<Status>,
    },
    #[error("the server did not answer in time. server=`{server}`")]
    Silent { server: String },
}

impl ConnectError {
    pub fn advice(&self) -> Advice {
        match self {
            ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => Advice::RetryLater,
            _ => Advice::FixRequest,
        }
    }
}

/// Why a call with one answer did not do what it should.
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
    /// The server said no.
    #[error("{detail}")]
    Refused {
        /// What is wrong, if this client knows the word for it.
        kind: Option<ProblemKind>,
        /// The same for a person.
        detail: String,
        advice: Advice,
    },
    /// There is no connection, so nothing was asked.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Box<Status>),
    /// The connection broke, or the call was cut short. It may or may not have been done.
    #[error("the call broke off")]
    Broken(#[source] Box<Status>),
    /// What came back is nothing that a server of this API says.
    #[error("the answer was not understood; is the server of another version?")]
    NotUnderstood(#[source] Box<Status>),
}

impl CallError {
    pub fn advice(&self) -> Advice {
        match self {
            CallError::Refused { advice, .. } => *advice,
            CallError::Unreachable(_) => Advice::RetryLater,
            CallError::Broken(_) => Advice::RetryWithSameId,
            CallError::NotUnderstood(_) => Advice::FixRequest,
        }
    }

    /// What the server says is wrong, if it said so.
    pub fn kind(&self) -> Option<ProblemKind> {
        match self {
            CallError::Refused { kind, .. } => *kind,
            _ => None,
        }
    }

    /// Whether the server says that this is wrong.
    pub fn is(&self, kind: ProblemKind) -> bool {
        self.kind() == Some(kind)
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        if let Some((kind, advice)) = said_by_forebay(&status) {
            return CallError::Refused { kind, detail: status.message().to_owned(), advice };
        }
        if is_unconnected(&status) {
            return CallError::Unreachable(Box::new(status));
        }
        match status.code() {
            Code::Unimplemented
            | Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition => CallError::NotUnderstood(Box::new(status)),
            _ => CallError::Broken(Box::new(status)),
        }
    }
}

/// The problem and the advice that a server puts beside its status. Nobody else does.
fn said_by_forebay(status: &Status) -> Option<(Option<ProblemKind>, Advice)> {
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

/// Why a message was not stored, or may not have been.
///
/// What may go better later has been tried again by then, for as long as the client's `retry_for` says.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A payload that serde cannot write as JSON. It was never sent.
    #[error("the payload cannot be serialized")]
    NotSerialized(#[source] Arc<serde_json::Error>),
    /// The server will not store it. Nothing was stored.
    #[error("{detail}")]
    Refused { code: v1::problem::Code, detail: String },
    /// The batch should be stored only behind a certain message, and the stream ends elsewhere.
    #[error("the stream does not end where it was expected to. last_seq=`{last_seq}`")]
    WrongLastSeq { last_seq: u64 },
    /// Time is over. The message was never sent, or the server has said each time that it stored nothing.
    #[error("not stored in time: {detail}")]
    NotInTime { detail: String },
    /// Time is over, and the message may or may not be stored.
    #[error("outcome unknown, the message may or may not be stored: {detail}")]
    Unknown { detail: String },
    /// It was not sent: the producer is closed.
    #[error("the producer is closed")]
    Closed,
}

impl PublishError {
    pub fn advice(&self) -> Advice {
        match self {
            PublishError::NotSerialized(_)
            | PublishError::Refused { .. }
            | PublishError::WrongLastSeq { .. }
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

/// An error and what caused it, in one line, where only text can be kept.
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
