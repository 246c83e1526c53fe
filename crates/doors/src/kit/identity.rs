//! Who a client is. Every door asks here, once for each request, before anything of the request is read but its head.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{HeaderMap, header};
#[cfg(feature = "dashboard")]
use axum::http::{HeaderValue, Method};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
#[cfg(feature = "dashboard")]
use forebay_broker::api::Secret;
use forebay_broker::api::{DoorStats, Entrance, NotRecognised, Principal};

use super::attempts::{Attempts, network_of};
#[cfg(feature = "dashboard")]
use super::sessions::Sessions;

/// The longest credential that is looked at.
const CREDENTIAL_BYTES_MAX: usize = 4 << 10;

/// What a client without a credential is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anonymous {
    /// The owner, who may do everything: for doors that only this machine can reach.
    #[default]
    Owner,
    /// Refused.
    Refused,
}

/// The client that sent a request. An extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Client(pub(crate) Principal);

/// Why a client is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("a credential is needed: send `Authorization: Bearer TOKEN`")]
    Missing,
    #[error("the Authorization header must be one `Bearer TOKEN`, or `Basic` with a user and its password")]
    Malformed,
    #[error(transparent)]
    NotRecognised(#[from] NotRecognised),
    #[error("a change that a page makes must say which site the page is of")]
    NoOrigin,
}

impl Refused {
    /// It is not known whether the credential is right, and the client may try again.
    pub(crate) fn is_busy(self) -> bool {
        matches!(self, Refused::NotRecognised(NotRecognised::Busy | NotRecognised::Pending))
    }
}

/// A credential, as a request has it.
#[derive(Debug, PartialEq, Eq)]
enum Given<'a> {
    Token(&'a str),
    /// A user with a password; or any name, with a token as the password.
    Password {
        user: String,
        password: String,
    },
}

/// Recognises clients by their tokens and passwords.
pub(crate) struct Gate {
    broker: Entrance,
    anonymous: Anonymous,
    attempts: Attempts,
    stats: Arc<DoorStats>,
    #[cfg(feature = "dashboard")]
    sessions: Sessions,
}

impl Gate {
    pub(crate) fn new(broker: Entrance, anonymous: Anonymous, stats: Arc<DoorStats>) -> Gate {
        Gate {
            broker,
            anonymous,
            attempts: Attempts::default(),
            stats,
            #[cfg(feature = "dashboard")]
            sessions: Sessions::default(),
        }
    }

    /// The client that sent these headers. The answer to a wrong credential takes longer the more of them came from
    /// the same address; a right one is never slowed down.
    pub(crate) async fn admit(&self, from: SocketAddr, headers: &HeaderMap) -> Result<Principal, Refused> {
        if !headers.contains_key(header::AUTHORIZATION) && self.anonymous == Anonymous::Owner {
            return Ok(Principal::owner());
        }
        match self.recognise(from, headers, true).await {
            Ok(principal) => Ok(principal),
            Err(refused) if refused.is_busy() => Err(refused),
            Err(refused) => Err(self.failed(from, refused).await),
        }
    }

    /// Counts a refusal, and waits as long as the answer to it has to.
    async fn failed(&self, from: SocketAddr, refused: Refused) -> Refused {
        self.stats.unauthenticated.fetch_add(1, Ordering::Relaxed);
        self.attempts.failed(self.broker.clock(), self.stats.name, from.ip()).await;
        refused
    }

    /// As [`Gate::admit`], for clients that always send a user and a password. Where a client without a credential is
    /// the owner, one with an unknown password is too: there is nothing that it would have to know.
    pub(crate) async fn admit_any(
        &self,
        from: SocketAddr,
        headers: &HeaderMap,
    ) -> Result<Principal, Refused> {
        match self.anonymous {
            Anonymous::Owner => {
                let known = self.recognise(from, headers, false).await;
                Ok(known.unwrap_or_else(|_| Principal::owner()))
            }
            Anonymous::Refused => self.admit(from, headers).await,
        }
    }

    /// `hides`: whether the client must not learn which users there are.
    async fn recognise(
        &self,
        from: SocketAddr,
        headers: &HeaderMap,
        hides: bool,
    ) -> Result<Principal, Refused> {
        let credentials = self.broker.credentials();
        match given(headers)? {
            Given::Token(token) => Ok(credentials.recognise_soon(token).await?),
            // A token is looked up quickly, and no password looks like one.
            Given::Password { user, password } => match credentials.recognise_soon(&password).await {
                Err(NotRecognised::Unknown) if !credentials.is_token(&password) => {
                    Ok(credentials.recognise_user(network_of(from.ip()), &user, &password, hides).await?)
                }
                known => Ok(known?),
            },
        }
    }
}

#[cfg(feature = "dashboard")]
impl Gate {
    /// The person whose browser sent these headers. A session ends with its token.
    ///
    /// Browsers send the cookie by themselves, so a change has to come with a sign of the page that made it, which
    /// the check of origins then looks at. That the cookie is not sent from other sites at all is the first defence.
    pub(crate) fn session(&self, method: &Method, headers: &HeaderMap) -> Result<Option<Principal>, Refused> {
        if headers.contains_key(header::AUTHORIZATION) {
            return Ok(None);
        }
        let Some(token) = self.sessions.token(self.broker.clock().now(), headers) else { return Ok(None) };
        let Ok(principal) = self.broker.credentials().recognise(token.reveal()) else { return Ok(None) };
        let has_origin = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
        match method.is_safe() || has_origin {
            true => Ok(Some(principal)),
            false => Err(Refused::NoOrigin),
        }
    }

    /// Begins a session. Returns its cookie.
    pub(crate) async fn sign_in(
        &self,
        from: SocketAddr,
        token: Secret,
        is_tls: bool,
    ) -> Result<Option<HeaderValue>, Refused> {
        let known = match token.reveal().len() <= CREDENTIAL_BYTES_MAX {
            true => self.broker.credentials().recognise_soon(token.reveal()).await.map_err(Refused::from),
            false => Err(Refused::Malformed),
        };
        match known {
            Ok(_) => Ok(self.sessions.begin(self.broker.clock().now(), token, is_tls)),
            Err(refused) if refused.is_busy() => Err(refused),
            Err(refused) => Err(self.failed(from, refused).await),
        }
    }

    /// Ends the session of a request. Returns the cookie that replaces the one of the browser.
    pub(crate) fn sign_out(&self, headers: &HeaderMap, is_tls: bool) -> Option<HeaderValue> {
        self.sessions.end(headers, is_tls)
    }
}

fn given(headers: &HeaderMap) -> Result<Given<'_>, Refused> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let value = match (given.next(), given.next()) {
        (None, _) => return Err(Refused::Missing),
        (Some(value), None) => value,
        (Some(_), Some(_)) => return Err(Refused::Malformed),
    };
    let text = value.to_str().ok().filter(|text| text.len() <= CREDENTIAL_BYTES_MAX);
    let (scheme, token) = text.and_then(|text| text.split_once(' ')).ok_or(Refused::Malformed)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Given::Token(token.trim()));
    }
    let password = scheme.eq_ignore_ascii_case("basic").then(|| password(token.trim())).flatten();
    password.ok_or(Refused::Malformed)
}

/// `user:password` in base64.
fn password<'a>(encoded: &str) -> Option<Given<'a>> {
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Given::Password { user: user.to_owned(), password: password.to_owned() })
}

/// Reads the header of a credential, for the fuzzer.
#[cfg(test)]
pub(crate) fn fuzz_given(headers: &HeaderMap) {
    if let Ok(Given::Token(text)) = given(headers) {
        assert!(text.len() <= CREDENTIAL_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_comes_in_one_header_of_its_form() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
            }
            given(&headers).map(|given| match given {
                Given::Token(token) => token.to_owned(),
                Given::Password { user, password } => format!("{user} with {password}"),
            })
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Ok("abc"));
        assert_eq!(of(&["bearer  abc "]).as_deref(), Ok("abc"));
        assert_eq!(of(&["Basic YWRtaW46YTpi"]).as_deref(), Ok("admin with a:b"));
        assert_eq!(of(&[]), Err(Refused::Missing));
        for wrong in [&["abc"][..], &["Basic abc"], &[""], &["Bearer"], &["Bearer a", "Bearer b"]] {
            assert_eq!(of(wrong), Err(Refused::Malformed), "{wrong:?}");
        }
        assert_eq!(of(&[&format!("Bearer {}", "x".repeat(5_000))]), Err(Refused::Malformed));
    }
}
