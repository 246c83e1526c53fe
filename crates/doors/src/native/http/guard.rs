//! Who may ask, and what becomes of a handler that breaks.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;

use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use forebay_broker::api::DoorStats;
use forebay_wire::problem::{Kind, Problem};

use super::failure::Failure;
use crate::http::hosts::{Hosts, Stranger, check_host};

/// Refuses requests that are meant for another server or come from a page of another site.
pub(super) fn admit<B>(hosts: &Hosts, request: &Request<B>) -> Result<(), Failure> {
    let has_host = check_host(request.version(), request.headers());
    let admitted = has_host.and_then(|()| match hosts.admit(request.uri(), request.headers()) {
        // A link to a page of the dashboard may stand anywhere, as in a chat.
        #[cfg(feature = "dashboard")]
        Err(Stranger::Origin(_)) if super::dashboard::is_visit(request) => Ok(()),
        admitted => admitted,
    });
    admitted.map_err(|stranger| {
        let kind = match stranger {
            Stranger::Hosts(_) => Kind::MalformedRequest,
            Stranger::Host(_) => Kind::HostNotAllowed,
            Stranger::Origin(_) => Kind::OriginNotAllowed,
        };
        Problem::new(kind, stranger.to_string()).into()
    })
}

/// Runs a handler. If it panics, its client is told, the log says so, and no other request is affected.
pub(super) async fn unharmed(
    stats: &DoorStats,
    name: impl Display,
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    match crate::http::unharmed(stats, name, call).await {
        Some(answer) => answer.unwrap_or_else(|never| match never {}),
        None => {
            let problem = Problem::new(Kind::Internal, "the server made a mistake with this request");
            Failure::from(problem).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use forebay_broker::api::Doors;

    use super::*;
    use crate::telemetry::Refused;
    use crate::telemetry::capture::events_of;

    #[tokio::test]
    async fn a_handler_that_breaks_is_a_problem() {
        async fn breaks() -> Result<Response<Body>, Infallible> {
            panic!("on purpose")
        }
        let stats = Doors::default().door("http");
        let (answer, events) = events_of(unharmed(&stats, "GET /breaks", breaks())).await;
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        assert!(answer.extensions().get::<Refused>().is_some(), "it can be counted");
        assert_eq!(events, [r#"ERROR a handler panicked door=http call=GET /breaks panic=on purpose"#]);
        assert_eq!(stats.panics.load(Ordering::Relaxed), 1);
    }
}
