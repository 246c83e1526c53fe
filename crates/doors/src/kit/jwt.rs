//! Clients that are recognised by tokens of an OIDC issuer: JSON Web Tokens, signed by a key of the issuer's.
//!
//! The keys are in a file, as the issuer publishes them (a JSON Web Key Set). A second file says which rights a claim
//! of a token gives, one claim with its value and the grants on each line:
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

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use forebay_broker::api::{Clock, GrantError, Grants, NotRecognised, Principal, TokenIssuer};
use forebay_core::types::Timestamp;
use ring::digest::{SHA256, digest};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// By so much the clocks of the issuer and the server may differ.
const LEEWAY: Duration = Duration::from_secs(60);
/// Keys of an issuer, lines of rights, and tokens that are recognised at a time.
const KEYS_MAX: usize = 100;
const LINES_MAX: usize = 10_000;
const TOKENS_MAX: usize = 100_000;
/// The longest subject, which is the name of the client.
const SUBJECT_BYTES_MAX: usize = 255;

/// Why tokens of an issuer cannot be recognised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    #[error("the file with the keys of the issuer must be a JSON Web Key Set: {0}")]
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
    keys: Vec<(Option<String>, Key)>,
    lines: Vec<Line>,
}

struct Line {
    claim: String,
    value: String,
    grants: Grants,
}

/// A key of the issuer, with the only algorithm that it is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The point, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    fn algorithm(&self) -> &'static str {
        match self {
            Key::Rsa { .. } => "RS256",
            Key::P256(_) => "ES256",
            Key::Ed25519(_) => "EdDSA",
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Key::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Key::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Key::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

/// A key, as the issuer publishes it. Fields that are not here say nothing about signatures.
#[derive(Deserialize)]
struct Published {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Published>,
}

impl Published {
    /// None: it is not for signatures that are recognised here. Issuers publish others beside them.
    fn key(&self) -> Option<Key> {
        if self.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| decode(text.as_deref()?);
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", None) => {
                let (n, e) = (bytes(&self.n)?, bytes(&self.e)?);
                // Shorter ones verify nothing.
                (n.len() >= 256).then_some(Key::Rsa { n, e })?
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
                (x.len() == 32 && y.len() == 32).then(|| Key::P256([&[4], &x[..], &y[..]].concat()))?
            }
            ("OKP", Some("Ed25519")) => Key::Ed25519(bytes(&self.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        self.alg.as_deref().is_none_or(|alg| alg == key.algorithm()).then_some(key)
    }
}

impl Trust {
    fn read(keys: &str, rights: &str) -> Result<Trust, JwtError> {
        let set: KeySet = serde_json::from_str(keys).map_err(|error| JwtError::NoKeys(error.to_string()))?;
        let keys: Vec<_> =
            set.keys.iter().filter_map(|published| Some((published.kid.clone(), published.key()?))).collect();
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(JwtError::NoUsableKey);
        }
        Ok(Trust { keys, lines: read_rights(rights)? })
    }

    /// The key that a token names. One that names none has the only one.
    fn key(&self, kid: Option<&str>) -> Option<&Key> {
        match (kid, &self.keys[..]) {
            (Some(kid), keys) => {
                keys.iter().find(|(known, _)| known.as_deref() == Some(kid)).map(|(_, key)| key)
            }
            (None, [(_, only)]) => Some(only),
            (None, _) => None,
        }
    }

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
    /// Tokens of this issuer for this audience, by the keys and the rights in two files.
    pub fn new(
        clock: Clock,
        issuer: &str,
        audience: &str,
        keys: &str,
        rights: &str,
    ) -> Result<Jwt, JwtError> {
        let state = State { trust: Trust::read(keys, rights)?, known: HashMap::new() };
        let (issuer, audience) = (issuer.to_owned(), audience.to_owned());
        Ok(Jwt(Arc::new(Shared { clock, issuer, audience, state: RwLock::new(state) })))
    }

    /// Whether the contents of the two files can be used.
    pub fn check_files(keys: &str, rights: &str) -> Result<(), JwtError> {
        Trust::read(keys, rights).map(drop)
    }

    /// From now on these keys and rights count. A client whose key is gone, or whose rights are others, ends.
    pub fn replace(&self, keys: &str, rights: &str) -> Result<(), JwtError> {
        let trust = Trust::read(keys, rights)?;
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        state.trust = trust;
        let State { trust, known } = &mut *state;
        known.retain(|_, one| {
            let has_key = trust.keys.iter().any(|(_, key)| *key == one.key);
            let goes_on = has_key && trust.grants(&one.claims).as_ref() == one.principal.grants();
            if !goes_on {
                one.principal.end();
            }
            goes_on
        });
        Ok(())
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
        let (key, claims) = verify(&state.trust, token).ok_or(NotRecognised::Unknown)?;
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

    /// Remembers a token, so that a change of rights ends what runs in its name.
    fn keep(&self, hash: Hash, known: Known) -> Result<Principal, NotRecognised> {
        let date = self.0.clock.date();
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        // The keys or the rights may have changed meanwhile.
        let has_key = state.trust.keys.iter().any(|(_, key)| *key == known.key);
        if !has_key || state.trust.grants(&known.claims).as_ref() != known.principal.grants() {
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
}

/// The key and the claims of a token whose signature is right.
fn verify(trust: &Trust, token: &str) -> Option<(Key, Map<String, Value>)> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
    let key = trust.key(header.kid.as_deref())?;
    if header.crit.is_some() || header.alg != key.algorithm() {
        return None;
    }
    if !key.verifies(signed.as_bytes(), &decode(signature)?) {
        return None;
    }
    // Only now anything of it is believed.
    match serde_json::from_slice(&decode(claims)?).ok()? {
        Value::Object(claims) => Some((key.clone(), claims)),
        _ => None,
    }
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
