//! Who may ask, and what becomes of a handler that breaks.

use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv6Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use axum::response::IntoResponse as _;
use forebay_wire::problem::{Kind, Problem};

use super::failure::Failure;

/// The names that the server has.
///
/// A web page may send requests to a server on the reader's own machine, directly or under a name that it makes
/// point there. The first has an `Origin` from elsewhere, the second a `Host` that is not the server's.
pub(super) struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    pub(super) fn new(names: &[String]) -> Hosts {
        Hosts { names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        let in_path = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let host = in_path.or_else(|| text(request.headers(), header::HOST));
        if let Some(host) = &host
            && !self.is_ours(host)
        {
            let detail = format!("the request is for another server. host=`{host}`");
            return Err(Problem::new(Kind::HostNotAllowed, detail).into());
        }
        if let Some(origin) = text(request.headers(), header::ORIGIN) {
            let of = origin.split_once("://").map(|(_, of)| of);
            if of.is_none()
                || !of.zip(host.as_deref()).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host))
            {
                let detail = format!("the request comes from a page of another server. origin=`{origin}`");
                return Err(Problem::new(Kind::OriginNotAllowed, detail).into());
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok()
            || name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).is_some_and(is_v6);
        is_address || name == "localhost" || self.names.contains(&name)
    }
}

fn is_v6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A header as text. One that is none is like no name at all.
fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name).map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Runs a handler. If it panics, its client is told and nobody else notices.
pub(super) async fn unharmed(
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    let mut call = Box::pin(call);
    std::future::poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(cx))) {
        Ok(polled) => polled.map(|answer| answer.unwrap_or_else(|never| match never {})),
        Err(_) => {
            let problem = Problem::new(Kind::Internal, "the server made a mistake with this request");
            Poll::Ready(Failure::from(problem).into_response())
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(host: &str, origin: Option<&str>) -> Result<(), u16> {
        let mut request = Request::builder().uri("/").header(header::HOST, host);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        let request = request.body(()).expect("a request");
        let hosts = Hosts::new(&["Forebay.example".to_owned()]);
        hosts.admit(&request).map_err(|failure| failure.into_response().status().as_u16())
    }

    #[test]
    fn the_server_answers_to_its_own_names_only() {
        for ours in
            ["127.0.0.1:7070", "localhost", "LOCALHOST:80", "[::1]:7070", "forebay.example:1", "10.0.0.7"]
        {
            assert_eq!(admitted(ours, None), Ok(()), "{ours}");
        }
        for other in ["evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "", "::1"] {
            assert_eq!(admitted(other, None), Err(403), "{other}");
        }
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        assert_eq!(admitted("localhost:7070", Some("http://localhost:7070")), Ok(()));
        for other in ["http://localhost:8080", "http://evil.example", "null", "", "localhost:7070"] {
            assert_eq!(admitted("localhost:7070", Some(other)), Err(403), "{other}");
        }
    }

    #[tokio::test]
    async fn a_handler_that_breaks_is_a_problem() {
        async fn breaks() -> Result<Response<Body>, Infallible> {
            panic!("on purpose")
        }
        let answer = unharmed(breaks()).await;
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
}
