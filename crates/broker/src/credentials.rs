//! Credentials: API tokens, access keys for SQS, and users with passwords. Each is a note in the log, and all of them
//! are in memory here, so that a client is recognised without asking the shard.
//!
//! Of a token the log has a salted hash only. Its text, `fby_ID_SECRET`, is told once, when it is created; the secret
//! has 256 random bits, so a fast hash is enough. The secret of an access key signs requests, so the server must know
//! it, and the log has it as it is. Of a password the log has the values of SCRAM-SHA-256 (see `password`).
//!
//! | Module | What it does |
//! | --- | --- |
//! | `stored` | A credential in memory, and its note in the log. |
//! | `draft` | Makes a credential, and checks its terms. |
//! | `recognise` | From what a client sent to the principal that it is. |
//! | `password` | The values of a password, and what a password must be. |
//! | `desk` | Checks passwords one at a time. |

mod desk;
mod draft;
mod password;
mod recognise;
mod stored;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_core::notes::Note;
use forebay_core::types::Timestamp;

use crate::access::{Grants, Standing};
use crate::clock::Clock;
use crate::tenants::{ClientLimits, Refusals};
use desk::Desk;
use stored::Known;

pub(crate) use draft::Draft;
pub use draft::{CredentialRefusal, CredentialTerms, NewCredential};
pub use password::{PASSWORD_CHARACTERS, PASSWORD_ITERATIONS, Verifier};
pub use recognise::{IssuerFigures, KnownKey, KnownUser, NotRecognised, TokenIssuer};
pub(crate) use stored::change;

/// Credentials that a server has at most.
pub const CREDENTIALS_MAX: usize = 10_000;
/// The name of a credential, in bytes.
pub const CREDENTIAL_NAME_BYTES_MAX: usize = 128;
/// The shortest admin token that the server takes from a file or the environment.
pub const ADMIN_TOKEN_BYTES_MIN: usize = 32;

const PREFIX: &str = "fby_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;
const SECRET_BYTES: usize = 32;
/// Before the name of a user, in its id. No token or access key has an id like this.
const USER_PREFIX: &str = "usr_";

/// The kinds of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialKind {
    /// A bearer token, for HTTP and gRPC.
    Token,
    /// An access key, for SQS.
    AccessKey,
    /// A user with a password.
    User,
}

impl CredentialKind {
    pub const ALL: [CredentialKind; 3] =
        [CredentialKind::Token, CredentialKind::AccessKey, CredentialKind::User];

    pub fn name(self) -> &'static str {
        match self {
            CredentialKind::Token => "token",
            CredentialKind::AccessKey => "access_key",
            CredentialKind::User => "user",
        }
    }

    fn letter(self) -> u8 {
        match self {
            CredentialKind::Token => b't',
            CredentialKind::AccessKey => b'k',
            CredentialKind::User => b'u',
        }
    }
}

/// A credential, as it may be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialReport {
    pub id: Arc<str>,
    pub kind: CredentialKind,
    pub name: Arc<str>,
    pub grants: Grants,
    pub account: Option<Arc<str>>,
    pub created: Timestamp,
    pub created_by: Arc<str>,
    pub expires: Option<Timestamp>,
    /// None: not since the server started.
    pub last_used: Option<Timestamp>,
    /// Its own.
    pub limits: Option<ClientLimits>,
    /// The limits that it shares with others, by its name, as they are written.
    pub shared_limits: Option<String>,
}

/// A text that must not be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// 256 random bits, as text.
    pub fn random() -> Result<Secret, CredentialRefusal> {
        Ok(Secret(URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>()?)))
    }

    /// The text, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// All credentials of a server.
pub struct Credentials {
    clock: Clock,
    /// Read for every request with a credential, and locked for a look-up only.
    known: RwLock<BTreeMap<Arc<str>, Arc<Known>>>,
    /// The token that the server was started with. It is not in the log.
    admin: RwLock<Option<(blake3::Hash, Arc<Standing>)>>,
    /// Whose tokens are recognised beside those of the server.
    issuer: OnceLock<Arc<dyn TokenIssuer>>,
    desk: Desk,
    /// The secret of the log, which keys hashes of passwords in memory and salts of users that do not exist.
    secret: [u8; 32],
}

impl Credentials {
    /// The credentials in the log. A note that cannot be read recognises no client, and the log says so.
    pub(crate) fn load<'a>(clock: Clock, notes: impl Iterator<Item = (&'a [u8], &'a Note)>) -> Credentials {
        let mut known = BTreeMap::new();
        for (key, note) in notes {
            match Known::read(key, &note.value) {
                Ok(one) => drop(known.insert(one.report.id.clone(), Arc::new(one))),
                Err(error) => tracing::error!(
                    credential = %String::from_utf8_lossy(key),
                    %error,
                    "a credential cannot be read and is not accepted; was it written by a later release?"
                ),
            }
        }
        let (known, admin) = (RwLock::new(known), RwLock::new(None));
        let (issuer, desk) = (OnceLock::new(), Desk::new(clock));
        Credentials { clock, known, admin, issuer, desk, secret: [0; 32] }
    }

    /// With the secret of the log.
    pub(crate) fn with_secret(self, secret: [u8; 32]) -> Credentials {
        Credentials { secret, ..self }
    }

    /// Recognises tokens of this issuer too. Only the first one counts.
    pub fn set_issuer(&self, issuer: Arc<dyn TokenIssuer>) {
        let _ = self.issuer.set(issuer);
    }

    /// Accepts this token as that of an administrator, for as long as the server runs. An earlier one is not accepted
    /// any more.
    pub fn set_admin_token(&self, token: &Secret) {
        let admin = Some((blake3::hash(token.reveal().as_bytes()), Arc::new(Standing::new(None))));
        let before =
            std::mem::replace(&mut *self.admin.write().unwrap_or_else(PoisonError::into_inner), admin);
        if let Some((_, standing)) = before {
            standing.end();
        }
    }

    /// Whether any client can be recognised by a token or a password.
    pub fn has_tokens(&self) -> bool {
        let now = self.clock.now();
        let is_key = |one: &Known| one.report.kind == CredentialKind::AccessKey;
        let is_good = |one: &Arc<Known>| !is_key(one) && !one.is_expired(now);
        self.admin.read().unwrap_or_else(PoisonError::into_inner).is_some()
            || self.issuer.get().is_some()
            || self.read().values().any(is_good)
    }

    /// Whether there is any access key in the log.
    pub fn has_keys(&self) -> bool {
        self.read().values().any(|one| one.report.kind == CredentialKind::AccessKey)
    }

    pub(crate) fn list(&self, kind: Option<CredentialKind>) -> Vec<CredentialReport> {
        let known = self.read();
        let mut list: Vec<CredentialReport> = known
            .values()
            .filter(|one| kind.is_none_or(|kind| one.report.kind == kind))
            .map(|one| one.report())
            .collect();
        list.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        list
    }

    /// How often clients were refused because their credentials are at a limit of their own.
    pub fn refusals(&self) -> Vec<Refusals> {
        let known = self.read();
        known.values().filter_map(|one| one.tenant.as_ref()).flat_map(|tenant| tenant.refusals()).collect()
    }

    /// The key of a credential's note.
    pub(crate) fn key_of(&self, id: &str) -> Result<Vec<u8>, CredentialRefusal> {
        let found = self.read().get(id).map(|known| known.note_key());
        found.ok_or_else(|| CredentialRefusal::NoSuchCredential { id: id.to_owned() })
    }

    /// Ends a credential: nothing is done in its name any more.
    pub(crate) fn end(&self, id: &str) {
        if let Some(known) = self.write().remove(id) {
            known.standing.end();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Arc<str>, Arc<Known>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Arc<str>, Arc<Known>>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn user_id(name: &str) -> String {
    format!("{USER_PREFIX}{name}")
}

/// The hash of a token in the log.
fn hash_of(salt: &[u8; 16], secret: &str) -> blake3::Hash {
    blake3::Hasher::new().update(salt).update(secret.as_bytes()).finalize()
}

fn random<const N: usize>() -> Result<[u8; N], CredentialRefusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| CredentialRefusal::NoRandomness)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
