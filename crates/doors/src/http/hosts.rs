//! Which names the server answers to, and pages of which sites may ask.

use std::net::Ipv6Addr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};

/// A request that was meant for another server, or that a page of another site sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stranger {
    #[error("a request must have one Host header. headers=`{0}`")]
    Hosts(usize),
    #[error(
        "the Host header must name this server. The settings --host-names and FOREBAY_HOST_NAMES add names. host=`{0}`"
    )]
    Host(String),
    #[error("requests from web pages of another site are not allowed. origin=`{0}`")]
    Origin(String),
}

/// Refuses a request that names no host, or more than one: proxies and servers might each go by another one.
pub(crate) fn check_host(version: Version, headers: &HeaderMap) -> Result<(), Stranger> {
    let count = headers.get_all(header::HOST).iter().count();
    // Before HTTP/1.1 the header was optional; HTTP/2 has another one for it.
    if count > 1 || (count == 0 && version == Version::HTTP_11) {
        return Err(Stranger::Hosts(count));
    }
    Ok(())
}

/// The names that the server has.
///
/// A web page may send requests to a server on the reader's own machine, directly or under a name that it makes
/// point there. The first has an `Origin` from elsewhere, the second a `Host` that is not the server's.
///
/// A page that makes its reader's browser fetch something, as a picture say, sends no `Origin`; browsers tell of
/// those in `Sec-Fetch-Site`, and older ones in `Referer`.
pub(crate) struct Hosts {
    /// None: whatever the server is called is its name.
    names: Option<Vec<String>>,
    /// Of the server's own pages.
    scheme: &'static str,
}

impl Hosts {
    pub(crate) fn new(names: &[String]) -> Hosts {
        Hosts { names: Some(names.iter().map(|name| name.to_ascii_lowercase()).collect()), scheme: "http" }
    }

    /// Whatever the server is called is its name, and only pages of other sites are turned away.
    pub(crate) fn any() -> Hosts {
        Hosts { names: None, scheme: "http" }
    }

    /// Of a server with TLS, or without.
    pub(crate) fn over_tls(self, is_tls: bool) -> Hosts {
        Hosts { scheme: if is_tls { "https" } else { "http" }, ..self }
    }

    pub(crate) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Stranger> {
        let in_path = uri.authority().map(|authority| authority.as_str().to_owned());
        let host = in_path.or_else(|| text(headers, header::HOST));
        if let Some(host) = &host
            && !self.is_ours(host)
        {
            return Err(Stranger::Host(host.clone()));
        }
        // A proxy that ends TLS for the server says so; a page cannot set this header for another site.
        let scheme = text(headers, HeaderName::from_static("x-forwarded-proto"));
        let scheme = scheme.unwrap_or_else(|| self.scheme.to_owned());
        let is_same = |page: &str| {
            let Some((of_page, rest)) = page.split_once("://") else { return false };
            let of = rest.split('/').next().unwrap_or_default();
            of_page.eq_ignore_ascii_case(&scheme)
                && host.as_deref().is_some_and(|host| of.eq_ignore_ascii_case(host))
        };
        let pages = [header::ORIGIN, header::REFERER].into_iter().flat_map(|name| texts(headers, name));
        if let Some(page) = pages.into_iter().find(|page| !is_same(page)) {
            return Err(Stranger::Origin(page));
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
            return Err(Stranger::Origin("sec-fetch-site".to_owned()));
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok()
            || name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).is_some_and(is_v6);
        is_address || name == "localhost" || self.names.as_ref().is_none_or(|names| names.contains(&name))
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

/// A header as text. Bytes that are not UTF-8 are replaced, so that the text equals no name of the server.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    texts(headers, name).into_iter().next()
}

/// All headers of this name.
fn texts(headers: &HeaderMap, name: HeaderName) -> Vec<String> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.get_all(name).iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn admitted(host: &str, origin: Option<&str>) -> bool {
        let mut request = Request::builder().uri("/").header(header::HOST, host);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        let request = request.body(()).expect("a request");
        let hosts = Hosts::new(&["Forebay.example".to_owned()]);
        hosts.admit(request.uri(), request.headers()).is_ok()
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
    fn a_request_names_one_host() {
        let hosts = |version, count| {
            let mut headers = HeaderMap::new();
            for n in 0..count {
                headers.append(header::HOST, HeaderValue::from_str(&format!("h{n}")).expect("a value"));
            }
            check_host(version, &headers).is_ok()
        };
        assert_eq!([0, 1, 2].map(|count| hosts(Version::HTTP_11, count)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|count| hosts(Version::HTTP_2, count)), [true, true, false]);
        assert_eq!([0, 1, 2].map(|count| hosts(Version::HTTP_10, count)), [true, true, false]);
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        assert!(admitted("localhost:7070", Some("http://localhost:7070")));
        for other in [
            "http://localhost:8080",
            "http://evil.example",
            "https://localhost:7070",
            "null",
            "",
            "localhost:7070",
        ] {
            assert!(!admitted("localhost:7070", Some(other)), "{other}");
        }
        let with = |headers: &[(&str, &str)]| {
            let mut request = Request::builder().uri("/").header(header::HOST, "localhost:7070");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(()).expect("a request");
            Hosts::new(&[]).admit(request.uri(), request.headers()).is_ok()
        };
        let (own, other) = (("origin", "http://localhost:7070"), ("origin", "http://evil.example"));
        assert!(with(&[own]) && !with(&[own, other]) && !with(&[other, own]));
        assert!(
            with(&[("origin", "https://localhost:7070"), ("x-forwarded-proto", "https")]),
            "behind a proxy"
        );
        let fetched = |name: &str, value: &str| {
            let request =
                Request::builder().uri("/").header(header::HOST, "localhost:7070").header(name, value);
            let request = request.body(()).expect("a request");
            let hosts = [Hosts::new(&[]), Hosts::any()];
            hosts.map(|hosts| hosts.admit(request.uri(), request.headers()).is_ok())
        };
        for (name, value) in [
            ("referer", "http://evil.example/page"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "null"),
        ] {
            assert_eq!(fetched(name, value), [false, false], "{name}: {value}");
        }
        for (name, value) in [
            ("referer", "http://localhost:7070/some/page"),
            ("sec-fetch-site", "none"),
            ("sec-fetch-site", "same-origin"),
        ] {
            assert_eq!(fetched(name, value), [true, true], "{name}: {value}");
        }
    }
}
