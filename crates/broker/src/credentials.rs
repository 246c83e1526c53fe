//! Credentials: API tokens, and access keys for SQS. Each is a note in the log, and all of them are in memory here, so
//! that a client is recognised without asking the shard.
//!
//! Of a token the log has a salted hash only. Its text, `fby_ID_SECRET`, is told once, when it is created; the secret
//! has 256 random bits, so a fast hash is enough. The secret of an access key signs requests, so the server must know
//! it, and the log has it as it is.
//!
//! ```text
//! note key      "t/" or "k/", then the id
//! note value    version (1) | name | grants | created by | created | expires, 0: never
//!               | token: salt (16) | hash (32)       key: secret | account, empty: the usual one
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forebay_core::codec::{Cursor, DecodeError, put_bytes, put_varint};
use forebay_core::notes::{Expected, Note, NoteChange};
use forebay_core::types::Timestamp;

use crate::access::{Grants, Principal, Standing};
use crate::clock::Clock;
use crate::door::CREDENTIALS;

/// Credentials that a server has at most.
pub const CREDENTIALS_MAX: usize = 10_000;
/// The name of a credential, in bytes.
pub const CREDENTIAL_NAME_BYTES_MAX: usize = 128;
/// How long a credential is still listed after its end.
const LISTED_AFTER_END: Duration = Duration::from_secs(30 * 86_400);
/// The shortest admin token that the server takes from a file or the environment.
pub const ADMIN_TOKEN_BYTES_MIN: usize = 32;

const VERSION: u8 = 1;
const PREFIX: &str = "fby_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;
const SECRET_BYTES: usize = 32;

/// The kinds of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialKind {
    /// A bearer token, for HTTP and gRPC.
    Token,
    /// An access key, for SQS.
    AccessKey,
}

impl CredentialKind {
    pub const ALL: [CredentialKind; 2] = [CredentialKind::Token, CredentialKind::AccessKey];

    pub fn name(self) -> &'static str {
        match self {
            CredentialKind::Token => "token",
            CredentialKind::AccessKey => "access_key",
        }
    }

    fn letter(self) -> u8 {
        match self {
            CredentialKind::Token => b't',
            CredentialKind::AccessKey => b'k',
        }
    }
}

/// The terms of a new credential.
#[derive(Debug, Clone)]
pub struct CredentialTerms {
    pub kind: CredentialKind,
    pub name: String,
    pub grants: Grants,
    pub expires: Option<Timestamp>,
    /// Of an access key: the account whose queues it uses.
    pub account: Option<String>,
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
    /// The limits of clients with its name, as they are written.
    pub limits: Option<String>,
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

/// Why a client is not recognised. The client is told no more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRecognised {
    #[error("the token is not one of this server's, or was revoked")]
    Unknown,
    #[error("the token has expired")]
    Expired,
}

/// Recognises tokens that are issued elsewhere.
pub trait TokenIssuer: Send + Sync {
    /// The client that has this token.
    fn recognise(&self, token: &str) -> Result<Principal, NotRecognised>;
}

/// Why a credential cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialRefusal {
    #[error(
        "name must have 1 to {} bytes and no control characters. bytes=`{bytes}`",
        CREDENTIAL_NAME_BYTES_MAX
    )]
    Name { bytes: usize },
    #[error("expires must be in the future")]
    Past,
    #[error("account must be twelve digits. value=`{account}`")]
    Account { account: String },
    #[error("only an access key has an account")]
    AccountOfToken,
    #[error("there can be no more credentials; revoke some that are not used. limit=`{}`", CREDENTIALS_MAX)]
    TooMany,
    #[error("no such credential. id=`{id}`")]
    NoSuchCredential { id: String },
    #[error("the system has no random numbers to give")]
    NoRandomness,
}

/// An access key, for a door that verifies signatures.
#[derive(Debug, Clone)]
pub struct KnownKey {
    pub secret: Secret,
    pub account: Option<Arc<str>>,
    pub principal: Principal,
}

/// What proves a credential.
#[derive(Clone)]
enum Proof {
    Hash { salt: [u8; 16], hash: blake3::Hash },
    Secret(Secret),
}

struct Known {
    report: CredentialReport,
    proof: Proof,
    standing: Arc<Standing>,
    /// Microseconds; zero: never.
    used: AtomicU64,
}

impl Known {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.report.expires.is_some_and(|expires| expires <= now)
    }

    fn principal(&self) -> Principal {
        Principal::with_standing(&self.report.name, self.report.grants.clone(), self.standing.clone())
    }

    fn report(&self) -> CredentialReport {
        let used = self.used.load(Ordering::Relaxed);
        CredentialReport { last_used: (used > 0).then_some(Timestamp(used)), ..self.report.clone() }
    }

    fn note_key(&self) -> Vec<u8> {
        note_key(self.report.kind, &self.report.id)
    }

    fn note_value(&self) -> Vec<u8> {
        let CredentialReport { name, grants, created_by, created, expires, account, .. } = &self.report;
        let mut out = vec![VERSION];
        for text in [name, grants.as_str(), created_by] {
            put_bytes(&mut out, text.as_bytes());
        }
        put_varint(&mut out, created.0);
        put_varint(&mut out, expires.map_or(0, |expires| expires.0));
        match &self.proof {
            Proof::Hash { salt, hash } => {
                out.extend_from_slice(salt);
                out.extend_from_slice(hash.as_bytes());
            }
            Proof::Secret(secret) => {
                put_bytes(&mut out, secret.reveal().as_bytes());
                put_bytes(&mut out, account.as_deref().unwrap_or_default().as_bytes());
            }
        }
        out
    }

    fn read(key: &[u8], value: &[u8]) -> Result<Known, DecodeError> {
        let [letter, b'/', id @ ..] = key else { return Err(DecodeError::OutOfRange("the key")) };
        let kind = CredentialKind::ALL.into_iter().find(|kind| kind.letter() == *letter);
        let kind = kind.ok_or(DecodeError::OutOfRange("the kind"))?;
        let id = std::str::from_utf8(id).map_err(|_| DecodeError::NotText)?;
        let mut cursor = Cursor::new(value);
        if cursor.byte()? != VERSION {
            return Err(DecodeError::OutOfRange("the version"));
        }
        let name = cursor.text()?.into();
        let grants = cursor.text()?.parse().map_err(|_| DecodeError::OutOfRange("the grants"))?;
        let created_by = cursor.text()?.into();
        let created = Timestamp(cursor.varint()?);
        let expires = Some(Timestamp(cursor.varint()?)).filter(|expires| expires.0 > 0);
        let (proof, account) = match kind {
            CredentialKind::Token => {
                let salt = cursor.take(16)?.try_into().expect("sixteen bytes were taken");
                let hash: [u8; 32] = cursor.take(32)?.try_into().expect("32 bytes were taken");
                (Proof::Hash { salt, hash: hash.into() }, None)
            }
            CredentialKind::AccessKey => {
                let secret = Secret::new(cursor.text()?);
                let account = Some(cursor.text()?).filter(|account| !account.is_empty());
                (Proof::Secret(secret), account.map(Arc::from))
            }
        };
        let report = CredentialReport {
            id: id.into(),
            kind,
            name,
            grants,
            account,
            created,
            created_by,
            expires,
            last_used: None,
            limits: None,
        };
        Ok(Known::new(report, proof))
    }

    fn new(report: CredentialReport, proof: Proof) -> Known {
        let standing = Arc::new(Standing::new(report.expires));
        Known { report, proof, standing, used: AtomicU64::new(0) }
    }
}

fn note_key(kind: CredentialKind, id: &str) -> Vec<u8> {
    let mut key = vec![kind.letter(), b'/'];
    key.extend_from_slice(id.as_bytes());
    key
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
}

/// A credential that is made and not yet durable.
pub(crate) struct Draft {
    known: Known,
    /// The text that proves it, which is told once.
    text: Secret,
    expires: Option<Timestamp>,
}

/// A new credential, with the text that is told once.
#[derive(Debug, Clone)]
pub struct NewCredential {
    pub report: CredentialReport,
    /// A token, or the secret of an access key.
    pub secret: Secret,
}

impl Draft {
    /// For the audit: everything but the secret.
    pub(crate) fn label(&self) -> String {
        let CredentialReport { id, kind, name, grants, .. } = &self.known.report;
        format!("create {} {id} {name} {grants}", kind.name())
    }

    pub(crate) fn key(&self) -> Vec<u8> {
        self.known.note_key()
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        self.known.note_value()
    }

    /// From this time on the log forgets it.
    pub(crate) fn forgotten(&self) -> Option<Timestamp> {
        self.expires.map(|expires| expires + LISTED_AFTER_END)
    }
}

/// The change of a note that writes or removes a credential.
pub(crate) fn change<'a>(
    key: &'a [u8],
    value: Option<&'a [u8]>,
    expires: Option<Timestamp>,
) -> NoteChange<'a> {
    NoteChange { door: CREDENTIALS, key, value, expected: Expected::Any, expires }
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
        Credentials { clock, known, admin, issuer: OnceLock::new() }
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

    /// Whether any client can be recognised by a token.
    pub fn has_tokens(&self) -> bool {
        let now = self.clock.now();
        let is_good = |one: &Arc<Known>| one.report.kind == CredentialKind::Token && !one.is_expired(now);
        self.admin.read().unwrap_or_else(PoisonError::into_inner).is_some()
            || self.issuer.get().is_some()
            || self.read().values().any(is_good)
    }

    /// Whether there is any access key in the log.
    pub fn has_keys(&self) -> bool {
        self.read().values().any(|one| one.report.kind == CredentialKind::AccessKey)
    }

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

    /// Makes a credential that counts once it is stored.
    pub(crate) fn draft(&self, by: &str, terms: CredentialTerms) -> Result<Draft, CredentialRefusal> {
        let CredentialTerms { kind, name, grants, expires, account } = terms;
        let bytes = name.len();
        if bytes == 0 || bytes > CREDENTIAL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(CredentialRefusal::Name { bytes });
        }
        let now = self.clock.now();
        if expires.is_some_and(|expires| expires <= now) {
            return Err(CredentialRefusal::Past);
        }
        match &account {
            Some(_) if kind == CredentialKind::Token => return Err(CredentialRefusal::AccountOfToken),
            Some(account) if account.len() != 12 || !account.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(CredentialRefusal::Account { account: account.clone() });
            }
            _ => {}
        }
        if self.read().len() >= CREDENTIALS_MAX {
            return Err(CredentialRefusal::TooMany);
        }
        let id = u64::from_le_bytes(random()?);
        let (id, proof, text) = match kind {
            CredentialKind::Token => {
                let (id, salt) = (format!("{id:016x}"), random()?);
                let secret = URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>()?);
                let hash = hash_of(&salt, &secret);
                let text = format!("{PREFIX}{id}_{secret}");
                (id, Proof::Hash { salt, hash }, Secret(text))
            }
            CredentialKind::AccessKey => {
                let secret = Secret(STANDARD.encode(random::<30>()?));
                (format!("FBAK{id:016X}"), Proof::Secret(secret.clone()), secret)
            }
        };
        let report = CredentialReport {
            id: id.into(),
            kind,
            name: name.into(),
            grants,
            account: account.map(Arc::from),
            created: now,
            created_by: by.into(),
            expires,
            last_used: None,
            limits: None,
        };
        Ok(Draft { known: Known::new(report, proof), text, expires })
    }

    /// A credential is durable, and counts from now on.
    pub(crate) fn add(&self, now: Timestamp, draft: Draft) -> NewCredential {
        let Draft { known, text, .. } = draft;
        let report = known.report();
        let mut all = self.write();
        // The log has forgotten these.
        all.retain(|_, one| one.report.expires.is_none_or(|expires| now < expires + LISTED_AFTER_END));
        all.insert(report.id.clone(), Arc::new(known));
        NewCredential { report, secret: text }
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

/// Id and secret of a token.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_at_checked(ID_DIGITS)?;
    Some((id, secret.strip_prefix('_')?))
}

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
