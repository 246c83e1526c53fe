//! Credentials: API tokens, access keys for SQS, and users with passwords. Each is a note in the log, and all of them
//! are in memory here, so that a client is recognised without asking the shard.
//!
//! Of a token the log has a salted hash only. Its text, `fby_ID_SECRET`, is told once, when it is created; the secret
//! has 256 random bits, so a fast hash is enough. The secret of an access key signs requests, so the server must know
//! it, and the log has it as it is. Of a password the log has the values of SCRAM-SHA-256 (see `password`).
//!
//! ```text
//! note key      "t/", "k/" or "u/", then the id
//! note value    version (1) | name | grants | created by | created | expires, 0: never
//!               | token: salt (16) | hash (32)       key: secret | account, empty: the usual one
//!               | user: salt (16) | iterations | stored key (32) | server key (32)
//! ```

mod desk;
mod password;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forebay_core::codec::{Cursor, DecodeError, put_bytes, put_varint};
use forebay_core::notes::{Expected, Note, NoteChange};
use forebay_core::types::Timestamp;

use crate::access::{Grants, Principal, Standing};
use crate::clock::Clock;
use crate::door::CREDENTIALS;

use desk::{Checked, Desk};
pub use password::{PASSWORD_CHARACTERS, PASSWORD_ITERATIONS, Verifier};

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

/// The terms of a new credential.
#[derive(Debug, Clone)]
pub struct CredentialTerms {
    pub kind: CredentialKind,
    pub name: String,
    pub grants: Grants,
    pub expires: Option<Timestamp>,
    /// Of an access key: the account whose queues it uses.
    pub account: Option<String>,
    /// Of a user. None: the server draws one at random.
    pub password: Option<Secret>,
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
    #[error("the user or the password is wrong")]
    Password,
    #[error("the user has expired")]
    ExpiredUser,
    /// It is not known whether the password is right.
    #[error("too many passwords wait to be checked")]
    Busy,
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
    #[error("name of a user must be of visible ASCII characters, and have no colon. value=`{name}`")]
    UserName { name: String },
    #[error(
        "password must have {} to {} characters of printable ASCII. bytes=`{bytes}`",
        PASSWORD_CHARACTERS.start(),
        PASSWORD_CHARACTERS.end()
    )]
    Password { bytes: usize },
    #[error("only a user has a password")]
    PasswordOfOther,
    #[error("user {name} already exists")]
    UserExists { name: String },
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
    Hash {
        salt: [u8; 16],
        hash: blake3::Hash,
    },
    Secret(Secret),
    Password {
        verifier: Verifier,
        /// The hash of the password, once it was right. In memory only.
        proven: Arc<Mutex<Option<blake3::Hash>>>,
    },
}

impl Proof {
    fn password(verifier: Verifier) -> Proof {
        Proof::Password { verifier, proven: Arc::default() }
    }
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
            Proof::Password { verifier, .. } => {
                let Verifier { salt, iterations, stored_key, server_key } = verifier;
                out.extend_from_slice(salt);
                put_varint(&mut out, iterations.get().into());
                out.extend_from_slice(stored_key);
                out.extend_from_slice(server_key);
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
            CredentialKind::User => {
                let salt = cursor.take(16)?.try_into().expect("sixteen bytes were taken");
                let iterations = u32::try_from(cursor.varint()?).ok().and_then(NonZeroU32::new);
                let iterations = iterations.ok_or(DecodeError::OutOfRange("the iterations"))?;
                let stored_key = cursor.take(32)?.try_into().expect("32 bytes were taken");
                let server_key = cursor.take(32)?.try_into().expect("32 bytes were taken");
                (Proof::password(Verifier { salt, iterations, stored_key, server_key }), None)
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
    desk: Desk,
    /// The secret of the log, which keys hashes of passwords in memory and salts of users that do not exist.
    secret: [u8; 32],
}

/// A user, for a door that lets the client prove that it knows the password.
#[derive(Debug, Clone)]
pub struct KnownUser {
    pub verifier: Verifier,
    /// None: there is no user of this name, or it has expired. The exchange goes to its end, so that the client does
    /// not learn which names there are.
    pub principal: Option<Principal>,
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
    /// A token, the secret of an access key, or the password that the server has drawn. Empty: the client gave it.
    pub secret: Secret,
}

impl Draft {
    /// For the audit: everything but the secret.
    pub(crate) fn label(&self) -> String {
        let CredentialReport { id, kind, name, grants, .. } = &self.known.report;
        format!("create {} {id} {name} {grants}", kind.name())
    }

    pub(crate) fn id(&self) -> &str {
        &self.known.report.id
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
        let CredentialTerms { kind, name, grants, expires, account, password } = terms;
        let bytes = name.len();
        if bytes == 0 || bytes > CREDENTIAL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(CredentialRefusal::Name { bytes });
        }
        let now = self.clock.now();
        if expires.is_some_and(|expires| expires <= now) {
            return Err(CredentialRefusal::Past);
        }
        match &account {
            Some(_) if kind != CredentialKind::AccessKey => return Err(CredentialRefusal::AccountOfToken),
            Some(account) if account.len() != 12 || !account.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(CredentialRefusal::Account { account: account.clone() });
            }
            _ => {}
        }
        match kind {
            CredentialKind::User => password::check_user(&name)?,
            _ if password.is_some() => return Err(CredentialRefusal::PasswordOfOther),
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
            CredentialKind::User => {
                self.check_new(&user_id(&name))?;
                let (proof, text) = of_password(password)?;
                (user_id(&name), proof, text)
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

    /// Two users cannot have the same name.
    pub(crate) fn check_new(&self, id: &str) -> Result<(), CredentialRefusal> {
        match self.read().get(id).filter(|known| known.report.kind == CredentialKind::User) {
            Some(known) => Err(CredentialRefusal::UserExists { name: known.report.name.to_string() }),
            None => Ok(()),
        }
    }

    /// The user with this id, with another password.
    pub(crate) fn draft_password(
        &self,
        id: &str,
        password: Option<Secret>,
    ) -> Result<Draft, CredentialRefusal> {
        let found = self.read().get(id).cloned();
        let absent = || CredentialRefusal::NoSuchCredential { id: id.to_owned() };
        let report = found.ok_or_else(absent)?.report.clone();
        if report.kind != CredentialKind::User {
            return Err(CredentialRefusal::PasswordOfOther);
        }
        let (proof, text) = of_password(password)?;
        let expires = report.expires;
        Ok(Draft { known: Known::new(report, proof), text, expires })
    }

    /// A credential is durable, and counts from now on. Everything that runs in the name of the one that it replaces
    /// ends.
    pub(crate) fn add(&self, now: Timestamp, draft: Draft) -> NewCredential {
        let Draft { known, text, .. } = draft;
        let report = known.report();
        let mut all = self.write();
        // The log has forgotten these.
        all.retain(|_, one| one.report.expires.is_none_or(|expires| now < expires + LISTED_AFTER_END));
        if let Some(before) = all.insert(report.id.clone(), Arc::new(known)) {
            before.standing.end();
        }
        if report.kind == CredentialKind::User {
            self.desk.forget();
        }
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

fn user_id(name: &str) -> String {
    format!("{USER_PREFIX}{name}")
}

/// The proof of a password, and the text to tell: of one that the client gave, none.
fn of_password(password: Option<Secret>) -> Result<(Proof, Secret), CredentialRefusal> {
    match password {
        Some(given) => Ok((Proof::password(Verifier::new(given.reveal())?), Secret::new(""))),
        None => {
            let drawn = Secret::new(URL_SAFE_NO_PAD.encode(random::<24>()?));
            Ok((Proof::password(Verifier::new(drawn.reveal())?), drawn))
        }
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
