//! Refusals and other problems as answers.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use forebay_wire::problem::{Kind, MEDIA_TYPE, Problem, Retry};

use crate::native::problem::Refusal;
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

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let field = refusal.field.as_deref();
        let mut problem = Problem::new(refusal.kind, refusal.sentence(field));
        problem.field = field.map(str::to_owned);
        problem.last_seq = refusal.last_seq;
        problem.retry_after = refusal.retry_after.map(|after| after.as_secs_f64());
        problem.into()
    }
}

/// The refusal of a call whose fields are query parameters.
pub(super) fn in_query(refusal: Refusal) -> Failure {
    match refusal.kind {
        Kind::InvalidField => refusal.with_kind(Kind::InvalidParameter).into(),
        _ => refusal.into(),
    }
}

impl Failure {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Failure {
        Problem::new(kind, detail).into()
    }

    #[cfg(any(test, feature = "dashboard"))]
    pub(super) fn problem(&self) -> &Problem {
        &self.problem
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
        let mut body = serde_json::to_vec(&problem).expect("a problem can be written");
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        response.extensions_mut().insert(Refused::from(&problem));
        *response.status_mut() = StatusCode::from_u16(problem.status).expect("a kind has a status");
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = problem.retry_after {
            // Rounded up, so that a client that waits as long is not refused again.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.ceil() as u64));
        }
        response
    }
}

/// The answer to a client that is not known.
pub(in crate::native) fn unauthenticated(refusal: Refusal) -> Response<Body> {
    let mut answer = Failure::from(refusal).closing().into_response();
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// Whether a client takes this port for SQS. No client of the native API signs its requests in this way.
pub(in crate::native) fn is_for_sqs(headers: &HeaderMap) -> bool {
    let is_signed = |value: &HeaderValue| value.as_bytes().starts_with(b"AWS4-HMAC-SHA256");
    headers.contains_key("x-amz-target") || headers.get(header::AUTHORIZATION).is_some_and(is_signed)
}

/// The answer to a client of SQS, in the form that it shows to its user.
pub(in crate::native) fn for_sqs(sqs: Option<SocketAddr>) -> Response<Body> {
    let place = match sqs {
        Some(address) => format!("SQS is on port {}", address.port()),
        None => "this server does not serve SQS, for which its setting `sqs` takes an address".to_owned(),
    };
    let text = format!("this port has the native API of Forebay; {place}");
    let problem = Problem::new(Kind::NoSuchPath, text.clone());
    let kind = "com.amazonaws.sqs#UnsupportedOperation";
    let body = serde_json::json!({ "__type": kind, "message": text }).to_string();
    let mut response = Response::new(Body::from(body));
    response.extensions_mut().insert(Refused::from(&problem));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-amz-json-1.0"));
    // The body of the request is not read.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The answer to a client that is at a limit.
pub(in crate::native) fn over_limit(refusal: Refusal, has_body: bool) -> Response<Body> {
    let failure = Failure::from(refusal);
    // The unread rest of the request stands between this answer and the next request.
    if has_body { failure.closing().into_response() } else { failure.into_response() }
}

/// The reply that replaces a refusal of the HTTP library.
pub(in crate::native) fn refusal(status: u16) -> Option<Bytes> {
    let kind = match status {
        400 => Kind::MalformedRequest,
        414 => Kind::UriTooLong,
        431 => Kind::HeadersTooLarge,
        _ => return None,
    };
    let problem = Problem::new(kind, "the head of the request cannot be read");
    let body = serde_json::to_string(&problem).expect("a problem can be written") + "\n";
    let text = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {MEDIA_TYPE}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        kind.status(),
        kind.slug(),
        body.len()
    );
    Some(text.into())
}
