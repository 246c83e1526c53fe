//! The HTTP side of the port: what version 4 of Event Store offers beside gRPC.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use super::KurrentDoor;
use crate::http::hosts::check_host;

/// The answer to a request that is not gRPC, with the name under which it is counted.
pub(super) async fn answer(
    door: &KurrentDoor,
    _from: SocketAddr,
    request: Request<Incoming>,
) -> (&'static str, Response<Body>) {
    let admitted = check_host(request.version(), request.headers())
        .and_then(|()| door.hosts.admit(request.uri(), request.headers()));
    if let Err(stranger) = admitted {
        return (crate::telemetry::UNKNOWN, text(StatusCode::FORBIDDEN, &stranger.to_string()));
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/health/live") => ("health", text(StatusCode::NO_CONTENT, "")),
        (_, path) => {
            let message = format!("there is nothing at this path. path=`{path}`");
            (crate::telemetry::UNKNOWN, text(StatusCode::NOT_FOUND, &message))
        }
    }
}

/// An answer in plain text.
pub(super) fn text(status: StatusCode, message: &str) -> Response<Body> {
    let body = if message.is_empty() { String::new() } else { format!("{message}\n") };
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
