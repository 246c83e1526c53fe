//! What an error is in HTTP's words, in one table.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use forebay_broker::api::JobRefusal;
use forebay_broker::api::SettingsError;
use forebay_broker::api::{Advice, CallError, PublishError};
use forebay_broker::api::{ChangeRefusal, CreateRefusal, MemberRefusal, PublishRefusal};
use forebay_core::types::{NameError, Timestamp};
use forebay_wire::problem::{Kind, MEDIA_TYPE, Problem, Retry};

use crate::telemetry::Refused;

/// Where nothing better is known.
const RETRY_AFTER: f64 = 1.0;

/// A problem, as an answer.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    problem: Box<Problem>,
    /// The request was not read to its end, so nothing more can be read from the connection.
    closes: bool,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure { problem: Box::new(problem), closes: false }
    }
}

impl Failure {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Failure {
        Problem::new(kind, detail).into()
    }

    /// A value that a field cannot have.
    pub(super) fn field(field: impl Into<String>, detail: impl AsRef<str>) -> Failure {
        let field = field.into();
        let detail = format!("{field}: {}", detail.as_ref());
        Problem::new(Kind::InvalidField, detail).with_field(field).into()
    }

    pub(super) fn name(of: &str, error: &NameError) -> Failure {
        Problem::new(Kind::InvalidName, format!("the {of}'s name: {error}")).with_field(of).into()
    }

    #[cfg(test)]
    pub(super) fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(super) fn is(&self, kind: Kind) -> bool {
        self.problem.kind() == Some(kind)
    }

    pub(super) fn with_field(self, field: String) -> Failure {
        Failure { problem: Box::new(self.problem.with_field(field)), ..self }
    }

    /// As the answer to a request that was not read to its end.
    pub(super) fn closing(self) -> Failure {
        Failure { closes: true, ..self }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response<Body> {
        let mut problem = *self.problem;
        if problem.retry == Retry::Later {
            problem.retry_after.get_or_insert(RETRY_AFTER);
        }
        let body = serde_json::to_vec(&problem).expect("a problem can be written");
        let mut response = Response::new(Body::from(body));
        response.extensions_mut().insert(Refused::from(&problem));
        *response.status_mut() = StatusCode::from_u16(problem.status).expect("a kind has a status");
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = problem.retry_after {
            // Rounded up, so that whoever waits as long is not refused again.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.ceil() as u64));
        }
        response
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let detail = error.to_string();
        let problem = match &error {
            CallError::Denied(_) => Problem::new(Kind::Denied, detail),
            CallError::NoSuchStream
            | CallError::NotCreated(CreateRefusal::NoSuchStream)
            | CallError::NotChanged(ChangeRefusal::NoSuchStream) => Problem::new(Kind::NoSuchStream, detail),
            CallError::NoSuchGroup
            | CallError::NotChanged(ChangeRefusal::NoSuchGroup)
            | CallError::NotAMember(MemberRefusal::NoSuchGroup)
            | CallError::Job(JobRefusal::NoSuchGroup) => Problem::new(Kind::NoSuchGroup, detail),
            CallError::Job(JobRefusal::NoSuchJob { .. }) => Problem::new(Kind::NoSuchJob, detail),
            CallError::Job(JobRefusal::NotParked { .. }) => Problem::new(Kind::NotParked, detail),
            CallError::Job(JobRefusal::Empty) => Problem::new(Kind::EmptySelection, detail),
            CallError::Job(JobRefusal::Rate) => Problem::new(Kind::InvalidField, detail).with_field("rate"),
            CallError::Job(JobRefusal::TooMany { .. }) => Problem::new(Kind::TooManyJobs, detail),
            CallError::NotCreated(CreateRefusal::Settings(refusal))
            | CallError::NotChanged(ChangeRefusal::Settings(refusal)) => of_settings(refusal, detail),
            CallError::NotCreated(CreateRefusal::TooMany { .. })
            | CallError::NotChanged(ChangeRefusal::TooMany { .. }) => {
                Problem::new(Kind::LimitReached, detail)
            }
            CallError::NotCreated(_) | CallError::Different => Problem::new(Kind::SettingsDiffer, detail),
            CallError::NotChanged(ChangeRefusal::InUse { .. }) => Problem::new(Kind::InUse, detail),
            CallError::NotChanged(ChangeRefusal::Beyond { last }) => {
                Problem::new(Kind::NoSuchPosition, detail).with_last_seq(last.0)
            }
            CallError::NotAMember(MemberRefusal::CreditTooLarge { .. }) => {
                Problem::new(Kind::InvalidField, detail).with_field("max")
            }
            CallError::NotAMember(MemberRefusal::TooManyConsumers { .. }) => {
                Problem::new(Kind::TooManyConsumers, detail)
            }
            CallError::NotPublished(error) => return of_publish(Timestamp(u64::MAX), error),
            CallError::TooManyWaiting { .. } => Problem::new(Kind::TooManyWaiting, detail),
            CallError::Stopping => Problem::new(Kind::Stopping, detail),
            CallError::Unknown => Problem::new(Kind::OutcomeUnknown, detail),
            other => Problem::new(of_advice(other.advice()), detail),
        };
        problem.into()
    }
}

/// For what the broker learns to refuse before this table does.
fn of_advice(advice: Advice) -> Kind {
    match advice {
        Advice::FixRequest => Kind::InvalidField,
        Advice::RetryLater => Kind::Busy,
        Advice::RetryWithSameId => Kind::OutcomeUnknown,
    }
}

fn of_settings(refusal: &SettingsError, detail: String) -> Problem {
    let field = match refusal {
        SettingsError::Factor => Some("backoff.factor"),
        SettingsError::Jitter => Some("backoff.jitter"),
        SettingsError::DelayOrder => Some("backoff.min"),
        SettingsError::NoTimeout => Some("message_timeout"),
        SettingsError::Rate => Some("rate"),
        SettingsError::Checkpoint => Some("checkpoint.min"),
        SettingsError::PinnedFairness => Some("fairness"),
        SettingsError::MoveToItself => Some("on_exhausted.move"),
        _ => None,
    };
    let problem = Problem::new(Kind::InvalidField, detail);
    match field {
        Some(field) => problem.with_field(field),
        None => problem,
    }
}

/// A batch that was not stored, or may not have been.
pub(super) fn of_publish(now: Timestamp, error: &PublishError) -> Failure {
    let detail = error.to_string();
    let problem = match error {
        PublishError::Refused(PublishRefusal::StorageFull) => Problem::new(Kind::StorageFull, detail),
        PublishError::Refused(refusal) => match refusal {
            PublishRefusal::NoSuchStream => Problem::new(Kind::NoSuchStream, detail),
            PublishRefusal::Empty => Problem::new(Kind::EmptyBatch, detail).with_field("messages"),
            PublishRefusal::MessageTooLarge { .. } => Problem::new(Kind::MessageTooLarge, detail),
            PublishRefusal::BatchTooLarge { .. } | PublishRefusal::TooMany { .. } => {
                Problem::new(Kind::BatchTooLarge, detail)
            }
            PublishRefusal::Priority { .. } => {
                Problem::new(Kind::InvalidField, detail).with_field("priority")
            }
            PublishRefusal::WrongLastSeq { last } => {
                Problem::new(Kind::WrongLastSeq, detail).with_last_seq(last.0)
            }
            PublishRefusal::Full { .. } => Problem::new(Kind::StreamFull, detail),
            PublishRefusal::TooFast { retry_at } => {
                let wait = retry_at.since(now).as_secs_f64();
                let problem = Problem::new(Kind::TooFast, detail);
                if wait > 0.0 { problem.with_retry_after(wait) } else { problem }
            }
            _ => Problem::new(of_advice(error.advice()), detail),
        },
        PublishError::NotCreated(CreateRefusal::TooMany { .. }) => Problem::new(Kind::LimitReached, detail),
        PublishError::Denied(_) => Problem::new(Kind::Denied, detail),
        PublishError::Stopping => Problem::new(Kind::Stopping, detail),
        PublishError::Unknown => Problem::new(Kind::OutcomeUnknown, detail),
        other => Problem::new(of_advice(other.advice()), detail),
    };
    problem.into()
}

/// What stands for a refusal of the HTTP library.
pub(in crate::native) fn refusal(status: u16) -> Option<Bytes> {
    let kind = match status {
        400 => Kind::MalformedRequest,
        414 => Kind::UriTooLong,
        431 => Kind::HeadersTooLarge,
        _ => return None,
    };
    let problem = Problem::new(kind, "the head of the request cannot be read");
    let body = serde_json::to_string(&problem).expect("a problem can be written");
    let text = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {MEDIA_TYPE}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        kind.status(),
        kind.slug(),
        body.len()
    );
    Some(text.into())
}
