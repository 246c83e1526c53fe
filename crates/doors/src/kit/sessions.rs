//! Sessions of people in browsers. A person signs in with a token once, and the browser then sends a cookie that stands
//! for the token.
//!
//! The server keeps the token of each session in memory and recognises it anew for every request, so that a token that
//! is revoked or expires ends its sessions. A restart ends all of them. The table has the hash of each cookie, so that
//! finding one tells nothing about others by the time it takes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use forebay_broker::api::Secret;
use forebay_core::types::Timestamp;

/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 3_600);
/// Sessions at a time. The oldest ends when there is another one.
const SESSIONS_MAX: usize = 1_000;
const COOKIE: &str = "forebay_session";

struct Session {
    token: Secret,
    since: Timestamp,
}

/// The sessions of a server. Locked to find, add and remove one, never across a wait.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<blake3::Hash, Session>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<blake3::Hash, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session for a token that is known. Returns the cookie for it. None: the system has no random numbers.
    pub(crate) fn begin(&self, now: Timestamp, token: Secret, is_tls: bool) -> Option<HeaderValue> {
        let id = Secret::random().ok()?;
        let id = id.reveal();
        let mut sessions = self.lock();
        sessions.retain(|_, one| now.since(one.since) < LASTS);
        if sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = sessions.iter().min_by_key(|(_, one)| one.since).map(|(hash, _)| *hash)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(blake3::hash(id.as_bytes()), Session { token, since: now });
        cookie(id, LASTS, is_tls)
    }

    /// The token of the session that a request belongs to.
    pub(crate) fn token(&self, now: Timestamp, headers: &HeaderMap) -> Option<Secret> {
        let hash = of_request(headers)?;
        let sessions = self.lock();
        let session = sessions.get(&hash).filter(|one| now.since(one.since) < LASTS)?;
        Some(session.token.clone())
    }

    /// Ends the session that a request belongs to. Returns a cookie that is nothing, in place of the one the browser
    /// has.
    pub(crate) fn end(&self, headers: &HeaderMap, is_tls: bool) -> Option<HeaderValue> {
        if let Some(hash) = of_request(headers) {
            self.lock().remove(&hash);
        }
        cookie("", Duration::ZERO, is_tls)
    }
}

/// Scripts cannot read it, and no request of another site carries it.
fn cookie(id: &str, lasts: Duration, is_tls: bool) -> Option<HeaderValue> {
    let secure = if is_tls { "; Secure" } else { "" };
    let seconds = lasts.as_secs();
    let text = format!("{COOKIE}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The hash of the cookie that a request has. A request with two of them has none.
fn of_request(headers: &HeaderMap) -> Option<blake3::Hash> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut ours = all
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, id)| *name == COOKIE && !id.is_empty());
    match (ours.next(), ours.next()) {
        (Some((_, id)), None) => Some(blake3::hash(id.as_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn headers(cookies: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(header::COOKIE, HeaderValue::from_str(cookie).expect("a value"));
        }
        headers
    }

    fn begin(sessions: &Sessions, now: Timestamp, token: &str) -> String {
        let value = sessions.begin(now, Secret::new(token), true).expect("a cookie");
        let text = value.to_str().expect("text");
        for word in ["HttpOnly", "SameSite=Strict", "Path=/", "Secure", "Max-Age=43200"] {
            assert!(text.split("; ").any(|one| one == word), "{word}: {text}");
        }
        assert!(!text.contains(token), "the token stays with the server");
        text.split(';').next().expect("a pair").to_owned()
    }

    fn known(sessions: &Sessions, now: Timestamp, cookies: &[&str]) -> Option<String> {
        sessions.token(now, &headers(cookies)).map(|token| token.reveal().to_owned())
    }

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let (a, b) = (begin(&sessions, NOW, "token-a"), begin(&sessions, NOW, "token-b"));
        assert_eq!(known(&sessions, NOW, &[&a]).as_deref(), Some("token-a"));
        assert_eq!(known(&sessions, NOW, &[&format!("theme=dark; {b}")]).as_deref(), Some("token-b"));
        assert_eq!(known(&sessions, NOW, &[&a, &b]), None, "which of them is meant is not guessed");
        for other in ["forebay_session=", "forebay_session=x", "other=1", ""] {
            assert_eq!(known(&sessions, NOW, &[other]), None, "{other}");
        }
        let gone = sessions.end(&headers(&[&a]), false).expect("a cookie");
        assert!(gone.to_str().expect("text").contains("Max-Age=0"));
        assert_eq!(known(&sessions, NOW, &[&a]), None);
        assert_eq!(known(&sessions, NOW + LASTS, &[&b]), None, "it has lasted long enough");
    }

    #[test]
    fn the_table_has_a_limit() {
        let sessions = Sessions::default();
        let first = begin(&sessions, NOW, "first");
        let second = begin(&sessions, NOW + Duration::from_secs(1), "second");
        for _ in 0..SESSIONS_MAX - 1 {
            begin(&sessions, NOW + Duration::from_secs(2), "more");
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert_eq!(known(&sessions, NOW, &[&first]), None, "the oldest has ended");
        assert!(known(&sessions, NOW, &[&second]).is_some());
    }
}
