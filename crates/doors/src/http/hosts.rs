//! Which names the server answers to, and pages of which sites may ask.

use std::net::Ipv6Addr;

use axum::http::{HeaderMap, HeaderValue, Request, header};

/// Somebody who did not mean this server, or whom nobody here sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stranger {
    #[error("the request is for another server. host=`{0}`")]
    Host(String),
    #[error("the request comes from a page of another server. origin=`{0}`")]
    Origin(String),
}

/// The names that the server has.
///
/// A web page may send requests to a server on the reader's own machine, directly or under a name that it makes
/// point there. The first has an `Origin` from elsewhere, the second a `Host` that is not the server's.
pub(crate) struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    pub(crate) fn new(names: &[String]) -> Hosts {
        Hosts { names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    pub(crate) fn admit<B>(&self, request: &Request<B>) -> Result<(), Stranger> {
        let in_path = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let host = in_path.or_else(|| text(request.headers(), header::HOST));
        if let Some(host) = &host
            && !self.is_ours(host)
        {
            return Err(Stranger::Host(host.clone()));
        }
        if let Some(origin) = text(request.headers(), header::ORIGIN) {
            let of = origin.split_once("://").map(|(_, of)| of);
            if of.is_none()
                || !of.zip(host.as_deref()).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host))
            {
                return Err(Stranger::Origin(origin));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(host: &str, origin: Option<&str>) -> bool {
        let mut request = Request::builder().uri("/").header(header::HOST, host);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        let request = request.body(()).expect("a request");
        let hosts = Hosts::new(&["Forebay.example".to_owned()]);
        hosts.admit(&request).is_ok()
    }

    #[test]
    fn the_server_answers_to_its_own_names_only() {
        for ours in
            ["127.0.0.1:7070", "localhost", "LOCALHOST:80", "[::1]:7070", "forebay.example:1", "10.0.0.7"]
        {
            assert!(admitted(ours, None), "{ours}");
        }
        for other in ["evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "", "::1"] {
            assert!(!admitted(other, None), "{other}");
        }
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        assert!(admitted("localhost:7070", Some("http://localhost:7070")));
        for other in ["http://localhost:8080", "http://evil.example", "null", "", "localhost:7070"] {
            assert!(!admitted("localhost:7070", Some(other)), "{other}");
        }
    }
}
