//! Whether the server lives and takes work, what it does, and what it can.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use forebay_broker::api::{Hold, Stage};
use forebay_wire::json;
use forebay_wire::problem::{Kind, Retry};
use serde::Serialize;

use super::failure::Failure;
use super::request::{Entered, NoQuery};
use super::{Door, events, metrics, report};
use crate::http::outgoing::{self, Counted};

/// An answer in JSON.
pub(super) struct Reply<T>(pub(super) StatusCode, pub(super) T);

impl<T: Serialize> IntoResponse for Reply<T> {
    fn into_response(self) -> Response {
        let mut body = Vec::new();
        match serde_json::to_writer(&mut body, &self.1) {
            Ok(()) => {
                // On a terminal the prompt begins on a line of its own.
                body.push(b'\n');
                typed(self.0, "application/json", body.into())
            }
            Err(error) => Failure::new(Kind::Internal, error.to_string()).into_response(),
        }
    }
}

/// An answer in JSON with contents in it, and room for them.
pub(super) struct HeldReply<T>(pub(super) T, pub(super) Hold);

impl<T: Serialize> IntoResponse for HeldReply<T> {
    fn into_response(self) -> Response {
        let HeldReply(reply, hold) = self;
        let mut body = Vec::with_capacity(hold.bytes());
        match serde_json::to_writer(&mut body, &reply) {
            Ok(()) => {
                body.push(b'\n');
                held_body(body, hold)
            }
            Err(error) => Failure::new(Kind::Internal, error.to_string()).into_response(),
        }
    }
}

/// A body of JSON that keeps its room until it has left.
pub(super) fn held_body(body: Vec<u8>, hold: Hold) -> Response {
    let mut response = typed(StatusCode::OK, "application/json", outgoing::held(body, hold));
    response.extensions_mut().insert(Counted);
    response
}

fn typed(status: StatusCode, media_type: &'static str, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

const TEXT: &str = "text/plain; charset=utf-8";

pub(super) async fn livez(_: NoQuery) -> Response {
    typed(StatusCode::OK, TEXT, Bytes::from_static(b"alive\n"))
}

pub(super) async fn server(
    State(door): State<Door>,
    Entered(service): Entered,
    _: NoQuery,
) -> Result<Reply<json::ServerReport>, Failure> {
    Ok(Reply(StatusCode::OK, report::server(&service.server().await?, door.broker().stage())))
}

/// Needs the same right as the report on the server.
pub(super) async fn cluster(
    State(door): State<Door>,
    Entered(service): Entered,
    _: NoQuery,
) -> Result<Reply<json::ClusterReport>, Failure> {
    let server = service.server().await?;
    Ok(Reply(StatusCode::OK, door.cluster_report(server.epoch).await))
}

/// What a kind of problem means, for people that follow its `type`.
pub(super) async fn problem(Path(slug): Path<String>, _: NoQuery) -> Result<Response, Failure> {
    let kind = Kind::ALL.iter().find(|kind| kind.slug() == slug);
    let kind =
        kind.ok_or_else(|| Failure::new(Kind::NoSuchPath, format!("no such problem. problem=`{slug}`")))?;
    let advice = match kind.retry() {
        Retry::Never => "Fix the request.",
        Retry::Later => {
            "Nothing was done. Try again later, after <code>retry_after</code> seconds if it is given."
        }
        Retry::SameId => {
            "The outcome is unknown. Repeat the request with the same message ids; nothing is stored twice."
        }
    };
    let (title, help, status) = (kind.title(), kind.help().replace('<', "&lt;"), kind.status());
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n\
         <p><code>{slug}</code>, status {status}</p>\n<p>{help}</p>\n<p>{advice}</p>\n</html>\n"
    );
    Ok(html(page.into()))
}

pub(super) async fn readyz(State(door): State<Door>, _: NoQuery) -> Result<Response, Failure> {
    match door.broker().stage() {
        Stage::Running => Ok(typed(StatusCode::OK, TEXT, Bytes::from_static(b"ready\n"))),
        Stage::Draining => Err(Failure::new(Kind::NotReady, "the server is draining")),
        Stage::Stopping => Err(Failure::new(Kind::NotReady, "the server is stopping")),
    }
}

pub(super) async fn metrics(
    State(door): State<Door>,
    Entered(service): Entered,
    _: NoQuery,
) -> Result<Response, Failure> {
    let text = metrics::write(&door, &service).await?;
    Ok(typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into()))
}

pub(super) async fn openapi(State(door): State<Door>, _: NoQuery) -> Response {
    typed(StatusCode::OK, "application/json", door.0.openapi.clone())
}

pub(super) async fn events(
    State(door): State<Door>,
    Entered(service): Entered,
    _: NoQuery,
) -> Result<Response, Failure> {
    // A client that may see nothing is refused here, and not left waiting.
    service.server().await?;
    Ok(events::listen(&door))
}

/// In place of the dashboard, where it is left out.
#[cfg(not(feature = "dashboard"))]
pub(super) async fn index(_: NoQuery) -> Response {
    html(Bytes::from_static(include_bytes!("index.html")))
}

fn html(page: Bytes) -> Response {
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", page);
    let policy =
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}
