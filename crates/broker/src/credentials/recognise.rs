//! From what a client sent to the principal that it is.

use std::net::IpAddr;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::desk::Checked;
use super::stored::{Known, Proof};
use super::{
    Credentials, ID_DIGITS, PASSWORD_ITERATIONS, PREFIX, Secret, USER_PREFIX, Verifier, hash_of, user_id,
};
use crate::access::{Grants, Principal};

/// Why a client is not recognised. The client is told no more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRecognised {
    #[error("the token is not one of this server's, or was revoked")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the user or the password is wrong")]
    Password,
    #[error("the user has expired")]
    ExpiredUser,
    /// It is not known whether the password is right.
    #[error("too many passwords wait to be checked")]
    Busy,
    /// It is not known whether the token is right: see [`TokenIssuer::settled`].
    #[error("the keys of the token's issuer are not known yet")]
    Pending,
}

/// Recognises tokens that are issued elsewhere.
pub trait TokenIssuer: Send + Sync {
    /// The client that has this token.
    fn recognise(&self, token: &str) -> Result<Principal, NotRecognised>;

    /// Resolves, within a few seconds, when a token that was [`NotRecognised::Pending`] should be looked at again.
    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// None: its keys are not fetched.
    fn figures(&self) -> Option<IssuerFigures>;
}

/// How fetching the keys of an issuer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssuerFigures {
    pub keys: usize,
    pub fetches: u64,
    pub failures: u64,
    /// How long ago the keys were fetched. None: not yet.
    pub age: Option<Duration>,
}

/// An access key, for a door that verifies signatures.
#[derive(Debug, Clone)]
pub struct KnownKey {
    pub secret: Secret,
    pub account: Option<Arc<str>>,
    pub principal: Principal,
}

/// A user, for a door that lets the client prove that it knows the password.
#[derive(Debug, Clone)]
pub struct KnownUser {
    pub verifier: Verifier,
    /// None: there is no user of this name, or it has expired. The exchange goes to its end, so that the client does
    /// not learn which names there are.
    pub principal: Option<Principal>,
}

impl Credentials {
    /// The client that has this token.
    pub fn recognise(&self, token: &str) -> Result<Principal, NotRecognised> {
        // Hashes are compared in constant time.
        if let Some((hash, standing)) = &*self.admin.read().unwrap_or_else(PoisonError::into_inner)
            && blake3::hash(token.as_bytes()) == *hash
        {
            return Ok(Principal::with_standing("admin", Grants::admin(), standing.clone()));
        }
        let Some((id, secret)) = parts(token) else {
            return self.issuer.get().map_or(Err(NotRecognised::Unknown), |issuer| issuer.recognise(token));
        };
        let known = self.read().get(id).cloned().ok_or(NotRecognised::Unknown)?;
        let Proof::Hash { salt, hash } = &known.proof else { return Err(NotRecognised::Unknown) };
        if hash_of(salt, secret) != *hash {
            return Err(NotRecognised::Unknown);
        }
        let now = self.clock.now();
        if known.is_expired(now) {
            return Err(NotRecognised::Expired);
        }
        known.used.store(now.0, Ordering::Relaxed);
        Ok(known.principal())
    }

    /// As [`Credentials::recognise`], and waits a few seconds for the keys of the issuer if that can help.
    pub async fn recognise_soon(&self, token: &str) -> Result<Principal, NotRecognised> {
        match (self.recognise(token), self.issuer.get()) {
            (Err(NotRecognised::Pending), Some(issuer)) => {
                issuer.settled().await;
                self.recognise(token)
            }
            (known, _) => known,
        }
    }

    /// How fetching the keys of the issuer goes. None: there is no issuer, or its keys are in a file.
    pub fn issuer_figures(&self) -> Option<IssuerFigures> {
        self.issuer.get().and_then(|issuer| issuer.figures())
    }

    /// Whether a text has the form of a token of this server.
    pub fn is_token(&self, text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// The client that has this password. `hides`: it takes as long for a name that no user has.
    pub async fn recognise_user(
        &self,
        from: IpAddr,
        name: &str,
        password: &str,
        hides: bool,
    ) -> Result<Principal, NotRecognised> {
        if !self.has_users() {
            return Err(NotRecognised::Password);
        }
        let known = self.user(name);
        let hash = self.hash_of_user(name, password);
        let (verifier, proven) = match known.as_deref().map(|known| &known.proof) {
            Some(Proof::Password { verifier, proven }) => (verifier.clone(), Some(proven.clone())),
            _ if !hides => return Err(NotRecognised::Password),
            _ => (self.absent(name), None),
        };
        let is_proven = |proven: &Arc<Mutex<Option<blake3::Hash>>>| {
            // Hashes are compared in constant time.
            proven.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|proven| proven == hash)
        };
        if !proven.as_ref().is_some_and(is_proven) {
            if self.desk.was_wrong(&hash) {
                return Err(NotRecognised::Password);
            }
            match self.desk.check(from, verifier, password.to_owned()).await {
                Checked::Right => {}
                Checked::Busy => return Err(NotRecognised::Busy),
                Checked::Wrong => {
                    self.desk.is_wrong(hash);
                    return Err(NotRecognised::Password);
                }
            }
        }
        let (Some(known), Some(proven)) = (known, proven) else { return Err(NotRecognised::Password) };
        *proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash);
        let now = self.clock.now();
        if known.is_expired(now) {
            return Err(NotRecognised::ExpiredUser);
        }
        known.used.store(now.0, Ordering::Relaxed);
        Ok(known.principal())
    }

    /// The user of this name, for an exchange in which the password is not sent.
    pub fn known_user(&self, name: &str) -> KnownUser {
        let now = self.clock.now();
        if let Some(known) = self.user(name)
            && let Proof::Password { verifier, .. } = &known.proof
        {
            let principal = (!known.is_expired(now)).then(|| known.principal());
            return KnownUser { verifier: verifier.clone(), principal };
        }
        KnownUser { verifier: self.absent(name), principal: None }
    }

    /// The user of this name has proved that it knows the password.
    pub fn user_proved(&self, name: &str) {
        self.used(&user_id(name));
    }

    /// Their ids come after all others.
    fn has_users(&self) -> bool {
        let from = (Bound::Included(USER_PREFIX), Bound::Unbounded);
        self.read().range::<str, _>(from).next().is_some()
    }

    fn user(&self, name: &str) -> Option<Arc<Known>> {
        self.read().get(&*user_id(name)).cloned()
    }

    fn hash_of_user(&self, name: &str, password: &str) -> blake3::Hash {
        let key = blake3::derive_key("forebay 2026 passwords that were checked", &self.secret);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&name.len().to_le_bytes()).update(name.as_bytes()).update(password.as_bytes());
        hasher.finalize()
    }

    /// The values of a user that does not exist: the same each time, and no password is right.
    fn absent(&self, name: &str) -> Verifier {
        let key = blake3::derive_key("forebay 2026 users that do not exist", &self.secret);
        let mut bytes = [0; 80];
        blake3::Hasher::new_keyed(&key).update(name.as_bytes()).finalize_xof().fill(&mut bytes);
        let part = |at: usize| bytes[at..at + 32].try_into().expect("32 bytes");
        let salt = bytes[..16].try_into().expect("sixteen bytes");
        Verifier { salt, iterations: PASSWORD_ITERATIONS, stored_key: part(16), server_key: part(48) }
    }

    /// The access key with this id, if it has not expired.
    pub fn access_key(&self, id: &str) -> Option<KnownKey> {
        let known = self.read().get(id).cloned()?;
        let Proof::Secret(secret) = &known.proof else { return None };
        if known.is_expired(self.clock.now()) {
            return None;
        }
        let (secret, account) = (secret.clone(), known.report.account.clone());
        Some(KnownKey { secret, account, principal: known.principal() })
    }

    /// A request was signed with this access key.
    pub fn used(&self, id: &str) {
        if let Some(known) = self.read().get(id) {
            known.used.store(self.clock.now().0, Ordering::Relaxed);
        }
    }
}

/// Id and secret of a token.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_at_checked(ID_DIGITS)?;
    Some((id, secret.strip_prefix('_')?))
}
