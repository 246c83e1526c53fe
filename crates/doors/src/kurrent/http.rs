//! The HTTP side of the port: what version 4 of Event Store offers beside gRPC.

mod streams;

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use forebay_broker::api::{Caller, OverLimit, Principal, Share};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use super::{KurrentDoor, persistent};
use crate::http::body::{self, BodyError};
use crate::http::hosts::check_host;
use crate::kit::identity::Refused;
use crate::kit::tenants::Meter;
use crate::telemetry::UNKNOWN;

/// The largest body: a batch, with what JSON and base64 make of it.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A request that has been read.
struct HttpCall<'a> {
    door: &'a KurrentDoor,
    caller: Caller,
    parts: &'a Parts,
    body: Bytes,
}

impl HttpCall<'_> {
    /// The text of a header.
    fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The beginning of this server's addresses, as the client calls it.
    fn base(&self) -> String {
        let authority = self.parts.uri.authority().map(Authority::as_str);
        let host = authority.or_else(|| self.header("host")).unwrap_or_default();
        format!("{}://{host}", self.door.scheme)
    }
}

/// The answer to a request that is not gRPC, with the name under which it is counted.
pub(super) async fn answer(
    door: &KurrentDoor,
    from: SocketAddr,
    who: Principal,
    bodies: &Share,
    request: Request<Incoming>,
) -> (&'static str, Response<Body>) {
    let (parts, body) = request.into_parts();
    let admitted =
        check_host(parts.version, &parts.headers).and_then(|()| door.hosts.admit(&parts.uri, &parts.headers));
    if let Err(stranger) = admitted {
        return (UNKNOWN, closing(text(StatusCode::FORBIDDEN, &stranger.to_string())));
    }
    let (body, _room) = match body::read(body, bodies, BODY_BYTES_MAX).await {
        Ok(read) => read,
        Err(error) => {
            let status = match error {
                BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
                BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
                BodyError::Broken => StatusCode::BAD_REQUEST,
            };
            return (UNKNOWN, closing(text(status, &error.to_string())));
        }
    };
    if let Some(meter) = parts.extensions.get::<Meter>() {
        meter.charge(body.len());
    }
    let path = parts.uri.path().trim_start_matches('/');
    let segments: Result<Vec<String>, _> = path
        .split('/')
        .map(|segment| percent_decode_str(segment).decode_utf8().map(std::borrow::Cow::into_owned))
        .collect();
    let Ok(segments) = segments else {
        return (UNKNOWN, text(StatusCode::BAD_REQUEST, "the path must be UTF-8"));
    };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let caller = door.broker.enter(who, Some(from));
    let call = HttpCall { door, caller, parts: &parts, body };
    match (&parts.method, &segments[..]) {
        (&Method::GET | &Method::HEAD, ["health", "live"]) => ("health", text(StatusCode::NO_CONTENT, "")),
        (&Method::POST, ["streams", stream]) => ("post-stream", streams::append(&call, stream).await),
        (&Method::DELETE, ["streams", stream]) => ("delete-stream", streams::delete(&call, stream).await),
        (_, ["subscriptions", ..]) => {
            let base = call.base();
            persistent::answer_http(&door.persistent, call.caller, base, &parts, &call.body).await
        }
        _ => {
            let message = format!("there is nothing at this path. path=`{}`", parts.uri.path());
            (UNKNOWN, text(StatusCode::NOT_FOUND, &message))
        }
    }
}

/// The unread rest of a request stands between its answer and the next request.
fn closing(mut answer: Response<Body>) -> Response<Body> {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// An answer in plain text.
pub(super) fn text(status: StatusCode, message: &str) -> Response<Body> {
    let body = if message.is_empty() { String::new() } else { format!("{message}\n") };
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// The answer to a client that is not let in.
pub(super) fn unauthenticated(refused: &Refused) -> Response<Body> {
    if refused.is_busy() {
        return closing(text(StatusCode::SERVICE_UNAVAILABLE, &refused.to_string()));
    }
    let mut answer = text(StatusCode::UNAUTHORIZED, &refused.to_string());
    let challenge = HeaderValue::from_static("Basic realm=\"forebay\"");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    closing(answer)
}

/// The answer to a client that is at a limit.
pub(super) fn over_limit(over: &OverLimit) -> Response<Body> {
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, &over.to_string());
    let seconds = over.retry_after.as_millis().div_ceil(1_000).max(1);
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX)));
    closing(answer)
}

/// A refusal of a call, as HTTP says it.
fn refused(status: &tonic::Status) -> Response<Body> {
    use tonic::Code;
    let exception = status.metadata().get("exception").and_then(|value| value.to_str().ok());
    let code = match (status.code(), exception) {
        (_, Some("stream-deleted")) => StatusCode::GONE,
        (_, Some("wrong-expected-version")) | (Code::InvalidArgument, _) => StatusCode::BAD_REQUEST,
        (Code::NotFound, _) => StatusCode::NOT_FOUND,
        (Code::AlreadyExists, _) => StatusCode::CONFLICT,
        (Code::PermissionDenied | Code::Unauthenticated, _) => StatusCode::UNAUTHORIZED,
        (Code::Unavailable | Code::ResourceExhausted, _) => StatusCode::SERVICE_UNAVAILABLE,
        (Code::Aborted | Code::DeadlineExceeded, _) => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(code, status.message())
}
