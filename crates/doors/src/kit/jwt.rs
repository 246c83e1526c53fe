//! Clients that are recognised by tokens of an OIDC issuer: JSON Web Tokens, signed by a key of the issuer's.
//!
//! The keys are in a file, as the issuer publishes them (a JSON Web Key Set), or the program fetches them from the
//! issuer when `fetching` says so. A second file says which rights a claim of a token gives, one claim with its value
//! and the grants on each line:
//!
//! ```text
//! # claim=value              grants
//! sub=billing                worker:orders-*
//! groups=platform            operator:*
//! scope=orders.write         publish:orders-*
//! ```
//!
//! A token has the grants of all lines that it matches; one that matches no line is not recognised. A claim matches a
//! line if it is that text, a list with that text, or, for `scope`, words of which one is that text.
//!
//! The signature is RS256, ES256 or EdDSA, and it is the key that says which: the header of a token only names its key.
//! A token without a signature, or with one that every server that checks it could make (HMAC), is not recognised.

mod fetching;
mod keys;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use forebay_broker::api::{Clock, GrantError, Grants, IssuerFigures, NotRecognised, Principal, TokenIssuer};
use forebay_core::types::Timestamp;
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Map, Value};

use fetching::Fetching;
pub use fetching::REFRESH;
use keys::{KEYS_MAX, Key, Keys};

/// By so much the clocks of the issuer and the server may differ.
const LEEWAY: Duration = Duration::from_secs(60);
/// Lines of rights, and tokens that are recognised at a time.
const LINES_MAX: usize = 10_000;
const TOKENS_MAX: usize = 100_000;
/// The longest subject, which is the name of the client.
const SUBJECT_BYTES_MAX: usize = 255;

/// Why tokens of an issuer cannot be recognised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    #[error("the keys of the issuer must be a JSON Web Key Set: {0}")]
    NoKeys(String),
    #[error(
        "the keys must have at least one of RS256 (2048 bits or more), ES256 or EdDSA for signatures, and at most \
         {KEYS_MAX}"
    )]
    NoUsableKey,
    #[error("a line must be CLAIM=VALUE, a space and grants. line=`{line}`")]
    Line { line: usize },
    #[error("{error}. line=`{line}`")]
    Grants { line: usize, error: GrantError },
    #[error("there must be at most {LINES_MAX} lines of rights")]
    TooMany,
}

/// The issuer whose tokens are recognised. Cheap to clone.
#[derive(Clone)]
pub struct Jwt(Arc<Shared>);

struct Shared {
    clock: Clock,
    issuer: String,
    audience: String,
    state: RwLock<State>,
    /// None: the keys are in a file.
    fetching: Option<Fetching>,
}

struct State {
    trust: Trust,
    /// By the hash of the token.
    known: HashMap<Hash, Known>,
}

type Hash = [u8; 32];

/// A token that was recognised.
struct Known {
    principal: Principal,
    expires: Timestamp,
    key: Key,
    claims: Map<String, Value>,
}

/// The keys and the rights.
struct Trust {
    /// None at all: they could not be fetched yet.
    keys: Keys,
    lines: Vec<Line>,
}

struct Line {
    claim: String,
    value: String,
    grants: Grants,
}

impl Trust {
    /// The rights of a token. None: no line is for it.
    fn grants(&self, claims: &Map<String, Value>) -> Option<Grants> {
        let of: Vec<&str> = self
            .lines
            .iter()
            .filter(|line| claims.get(&line.claim).is_some_and(|claim| line.matches(claim)))
            .map(|line| line.grants.as_str())
            .collect();
        // Together they may be more than one credential can have.
        if of.is_empty() { None } else { of.join(",").parse().ok() }
    }
}

impl Line {
    fn matches(&self, claim: &Value) -> bool {
        match claim {
            Value::String(text) if self.claim == "scope" => text.split(' ').any(|word| word == self.value),
            Value::String(text) => *text == self.value,
            Value::Array(list) => list.iter().any(|one| one.as_str() == Some(&self.value)),
            _ => false,
        }
    }
}

fn read_rights(text: &str) -> Result<Vec<Line>, JwtError> {
    let mut lines = Vec::new();
    for (at, text) in text.lines().enumerate() {
        let (line, text) = (at + 1, text.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (of, grants) = text.split_once(char::is_whitespace).ok_or(JwtError::Line { line })?;
        let (claim, value) = of.split_once('=').ok_or(JwtError::Line { line })?;
        if claim.is_empty() || value.is_empty() {
            return Err(JwtError::Line { line });
        }
        let grants = grants.trim().parse().map_err(|error| JwtError::Grants { line, error })?;
        lines.push(Line { claim: claim.to_owned(), value: value.to_owned(), grants });
        if lines.len() > LINES_MAX {
            return Err(JwtError::TooMany);
        }
    }
    Ok(lines)
}

/// The first part of a token. A token that wants more of its reader than this is not recognised.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// The claims that every token has to have.
#[derive(Deserialize)]
struct Registered {
    iss: String,
    sub: String,
    aud: OneOrMore,
    exp: f64,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Jwt {
    /// Tokens of this issuer for this audience, by these keys.
    pub fn new(
        clock: Clock,
        issuer: &str,
        audience: &str,
        keys: &str,
        rights: &str,
    ) -> Result<Jwt, JwtError> {
        let trust = Trust { keys: Keys::read(keys)?, lines: read_rights(rights)? };
        Ok(Jwt::with(clock, issuer, audience, trust, None))
    }

    /// Tokens of this issuer for this audience, by keys that are fetched now, again each time that so much has passed,
    /// and when a token names another key.
    pub fn with_fetched_keys(
        clock: Clock,
        issuer: &str,
        audience: &str,
        rights: &str,
        every: Duration,
    ) -> Result<Jwt, JwtError> {
        let trust = Trust { keys: Keys::default(), lines: read_rights(rights)? };
        Ok(Jwt::with(clock, issuer, audience, trust, Some(Fetching::new(clock, every))))
    }

    fn with(clock: Clock, issuer: &str, audience: &str, trust: Trust, fetching: Option<Fetching>) -> Jwt {
        let state = RwLock::new(State { trust, known: HashMap::new() });
        let (issuer, audience) = (issuer.to_owned(), audience.to_owned());
        Jwt(Arc::new(Shared { clock, issuer, audience, state, fetching }))
    }

    /// Whether keys can be used.
    pub fn check_keys(keys: &str) -> Result<(), JwtError> {
        Keys::read(keys).map(drop)
    }

    /// Whether rights of claims can be used.
    pub fn check_rights(rights: &str) -> Result<(), JwtError> {
        read_rights(rights).map(drop)
    }

    /// From now on these keys count. A client whose key is gone ends. Returns how many there are.
    pub fn replace_keys(&self, keys: &str) -> Result<usize, JwtError> {
        let keys = Keys::read(keys)?;
        let count = keys.len();
        self.change(|trust| trust.keys = keys);
        Ok(count)
    }

    /// From now on these rights count. A client whose rights are others ends.
    pub fn replace_rights(&self, rights: &str) -> Result<(), JwtError> {
        let lines = read_rights(rights)?;
        self.change(|trust| trust.lines = lines);
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Trust)) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { trust, known } = &mut *state;
        change(trust);
        known.retain(|_, one| {
            let goes_on =
                trust.keys.has(&one.key) && trust.grants(&one.claims).as_ref() == one.principal.grants();
            if !goes_on {
                one.principal.end();
            }
            goes_on
        });
    }

    /// Resolves when the program has to fetch the keys, and then say how that ended: with [`Jwt::fetched`] or
    /// [`Jwt::not_fetched`]. Never, if they are in a file.
    pub async fn fetch_is_due(&self) {
        match &self.0.fetching {
            Some(fetching) => fetching.is_due().await,
            None => std::future::pending().await,
        }
    }

    /// The issuer sent these keys. If they cannot be used, the last ones stay in force.
    pub fn fetched(&self, keys: &str) -> Result<usize, JwtError> {
        let replaced = self.replace_keys(keys);
        self.fetch_ended(replaced.is_ok());
        replaced
    }

    /// The issuer sent nothing. The last keys stay in force.
    pub fn not_fetched(&self) {
        self.fetch_ended(false);
    }

    fn fetch_ended(&self, is_good: bool) {
        if let Some(fetching) = &self.0.fetching {
            fetching.end(is_good);
        }
    }

    fn check(&self, token: &str) -> Result<Principal, NotRecognised> {
        let (now, date) = (self.0.clock.now(), self.0.clock.date());
        let hash: Hash =
            digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("the hash has 32 bytes");
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.known.get(&hash) {
            return if known.expires > date {
                Ok(known.principal.clone())
            } else {
                Err(NotRecognised::Expired)
            };
        }
        let (key, claims) = match verify(&state.trust.keys, token) {
            Ok(verified) => verified,
            Err(Unverified::NoKey) => return Err(self.without_key(state.trust.keys.is_empty())),
            Err(Unverified::Wrong) => return Err(NotRecognised::Unknown),
        };
        let of: Registered =
            serde_json::from_value(Value::Object(claims.clone())).map_err(|_| NotRecognised::Unknown)?;
        let is_for_us = match &of.aud {
            OneOrMore::One(audience) => *audience == self.0.audience,
            OneOrMore::More(list) => list.contains(&self.0.audience),
        };
        let has_name =
            (1..=SUBJECT_BYTES_MAX).contains(&of.sub.len()) && !of.sub.chars().any(char::is_control);
        if of.iss != self.0.issuer || !is_for_us || !has_name {
            return Err(NotRecognised::Unknown);
        }
        let expires = time(of.exp).ok_or(NotRecognised::Unknown)? + LEEWAY;
        let begins = of.nbf.map_or(Some(Timestamp::ZERO), time).ok_or(NotRecognised::Unknown)?;
        if expires <= date {
            return Err(NotRecognised::Expired);
        }
        if begins > date + LEEWAY {
            return Err(NotRecognised::Unknown);
        }
        let grants = state.trust.grants(&claims).ok_or(NotRecognised::Unknown)?;
        drop(state);
        let principal = Principal::until(&format!("jwt:{}", of.sub), grants, now + expires.since(date));
        self.keep(hash, Known { principal, expires, key, claims })
    }

    /// A token names a key that is not there. The issuer may have a new one.
    fn without_key(&self, has_none: bool) -> NotRecognised {
        let Some(fetching) = &self.0.fetching else { return NotRecognised::Unknown };
        if fetching.ask() || has_none { NotRecognised::Pending } else { NotRecognised::Unknown }
    }

    /// Remembers a token, so that a change of rights ends what runs in its name.
    fn keep(&self, hash: Hash, known: Known) -> Result<Principal, NotRecognised> {
        let date = self.0.clock.date();
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        // The keys or the rights may have changed meanwhile.
        if !state.trust.keys.has(&known.key)
            || state.trust.grants(&known.claims).as_ref() != known.principal.grants()
        {
            return Err(NotRecognised::Unknown);
        }
        if state.known.len() >= TOKENS_MAX {
            state.known.retain(|_, one| one.expires > date);
        }
        if state.known.len() >= TOKENS_MAX {
            tracing::error!(
                "ALARM: more tokens of the issuer are in use than there may be, and a client was refused"
            );
            return Err(NotRecognised::Unknown);
        }
        Ok(state.known.entry(hash).or_insert(known).principal.clone())
    }
}

impl TokenIssuer for Jwt {
    fn recognise(&self, token: &str) -> Result<Principal, NotRecognised> {
        self.check(token)
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(fetching) = &self.0.fetching {
                fetching.settled().await;
            }
        })
    }

    fn figures(&self) -> Option<IssuerFigures> {
        let keys = self.0.state.read().unwrap_or_else(PoisonError::into_inner).trust.keys.len();
        self.0.fetching.as_ref().map(|fetching| fetching.figures(keys))
    }
}

/// Why nothing of a token is believed.
enum Unverified {
    /// It names a key that is not known.
    NoKey,
    Wrong,
}

/// The key and the claims of a token whose signature is right.
fn verify(keys: &Keys, token: &str) -> Result<(Key, Map<String, Value>), Unverified> {
    let (signed, signature, header) = parts(token).ok_or(Unverified::Wrong)?;
    let key = keys.named(header.kid.as_deref()).ok_or(Unverified::NoKey)?;
    if header.crit.is_some() || header.alg != key.algorithm() {
        return Err(Unverified::Wrong);
    }
    if !key.verifies(signed.as_bytes(), &signature) {
        return Err(Unverified::Wrong);
    }
    // Only now anything of it is believed.
    let claims = signed.split_once('.').and_then(|(_, claims)| decode(claims));
    match claims.and_then(|claims| serde_json::from_slice(&claims).ok()) {
        Some(Value::Object(claims)) => Ok((key.clone(), claims)),
        _ => Err(Unverified::Wrong),
    }
}

/// The signed part of a token, its signature and its header.
fn parts(token: &str) -> Option<(&str, Vec<u8>, Header)> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, _) = signed.split_once('.')?;
    Some((signed, decode(signature)?, serde_json::from_slice(&decode(header)?).ok()?))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}

/// A time in seconds, as tokens have it.
fn time(seconds: f64) -> Option<Timestamp> {
    (seconds.is_finite() && (0.0..1e12).contains(&seconds)).then_some(Timestamp((seconds * 1e6) as u64))
}

#[cfg(test)]
pub(crate) mod tests;
