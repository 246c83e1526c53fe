//! Credentials that are made and not yet durable: what their terms must be, and the text that is told once.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forebay_core::types::Timestamp;

use super::stored::{Known, Proof};
use super::{
    CREDENTIAL_NAME_BYTES_MAX, CREDENTIALS_MAX, CredentialKind, CredentialReport, Credentials,
    PASSWORD_CHARACTERS, PREFIX, SECRET_BYTES, Secret, Verifier, hash_of, password, random, user_id,
};
use crate::access::Grants;
use crate::tenants::ClientLimits;

/// How long a credential is still listed after its end.
const LISTED_AFTER_END: Duration = Duration::from_secs(30 * 86_400);

/// The terms of a new credential.
#[derive(Debug, Clone)]
pub struct CredentialTerms {
    pub kind: CredentialKind,
    pub name: String,
    pub grants: Grants,
    pub expires: Option<Timestamp>,
    /// Of this credential alone. None: those of its name only.
    pub limits: Option<ClientLimits>,
    /// Of an access key: the account whose queues it uses.
    pub account: Option<String>,
    /// Of a user. None: the server draws one at random.
    pub password: Option<Secret>,
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

/// A credential that is made and not yet durable.
pub(crate) struct Draft {
    known: Known,
    /// The text that proves it, which is told once.
    text: Secret,
    /// Whether it takes the place of one that exists.
    replaces: bool,
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
        let CredentialReport { id, kind, name, grants, limits, .. } = &self.known.report;
        let limits = limits.map(|limits| format!(" {limits}")).unwrap_or_default();
        format!("create {} {id} {name} {grants}{limits}", kind.name())
    }

    pub(crate) fn key(&self) -> Vec<u8> {
        self.known.note_key()
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        self.known.note_value()
    }

    /// From this time on the log forgets it.
    pub(crate) fn forgotten(&self) -> Option<Timestamp> {
        self.known.report.expires.map(|expires| expires + LISTED_AFTER_END)
    }
}

impl Credentials {
    /// Makes a credential that counts once it is stored.
    pub(crate) fn draft(&self, by: &str, terms: CredentialTerms) -> Result<Draft, CredentialRefusal> {
        let CredentialTerms { kind, name, grants, expires, limits, account, password } = terms;
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
            limits,
            shared_limits: None,
        };
        Ok(Draft { known: Known::new(report, proof), text, replaces: false })
    }

    /// Two users cannot have the same name.
    fn check_new(&self, id: &str) -> Result<(), CredentialRefusal> {
        match self.read().get(id).filter(|known| known.report.kind == CredentialKind::User) {
            Some(known) => Err(CredentialRefusal::UserExists { name: known.report.name.to_string() }),
            None => Ok(()),
        }
    }

    /// Refuses a draft that cannot be stored any more: others may have been created or revoked since it was made.
    pub(crate) fn check(&self, draft: &Draft) -> Result<(), CredentialRefusal> {
        let id = &draft.known.report.id;
        if draft.replaces { self.key_of(id).map(drop) } else { self.check_new(id) }
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
        Ok(Draft { known: Known::new(report, proof), text, replaces: true })
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
