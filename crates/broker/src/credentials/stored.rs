//! A credential in memory, and its note in the log.
//!
//! ```text
//! note key      "t/", "k/" or "u/", then the id
//! note value    version (1; 2: with limits) | name | grants | created by | created | expires, 0: never
//!               | version 2: limits
//!               | token: salt (16) | hash (32)       key: secret | account, empty: the usual one
//!               | user: salt (16) | iterations | stored key (32) | server key (32)
//! ```

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::codec::{Cursor, DecodeError, put_bytes, put_varint};
use forebay_core::notes::{Expected, NoteChange};
use forebay_core::types::Timestamp;

use super::{CredentialKind, CredentialReport, Secret, Verifier};
use crate::access::{Principal, Standing};
use crate::door::CREDENTIALS;
use crate::tenants::Tenant;

/// Without limits of its own, so that a build which does not know them reads a credential that has none.
const VERSION: u8 = 1;
const VERSION_WITH_LIMITS: u8 = 2;

/// What proves a credential.
#[derive(Clone)]
pub(super) enum Proof {
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
    pub(super) fn password(verifier: Verifier) -> Proof {
        Proof::Password { verifier, proven: Arc::default() }
    }
}

pub(super) struct Known {
    pub(super) report: CredentialReport,
    pub(super) proof: Proof,
    pub(super) standing: Arc<Standing>,
    /// None: it has no limits of its own.
    pub(super) tenant: Option<Arc<Tenant>>,
    /// Microseconds; zero: never.
    pub(super) used: AtomicU64,
}

impl Known {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.report.expires.is_some_and(|expires| expires <= now)
    }

    pub(super) fn principal(&self) -> Principal {
        let CredentialReport { name, grants, .. } = &self.report;
        Principal::with_standing(name, grants.clone(), self.standing.clone()).with_tenant(self.tenant.clone())
    }

    pub(super) fn report(&self) -> CredentialReport {
        let used = self.used.load(Ordering::Relaxed);
        CredentialReport { last_used: (used > 0).then_some(Timestamp(used)), ..self.report.clone() }
    }

    pub(super) fn note_key(&self) -> Vec<u8> {
        note_key(self.report.kind, &self.report.id)
    }

    pub(super) fn note_value(&self) -> Vec<u8> {
        let CredentialReport { name, grants, created_by, created, expires, account, limits, .. } =
            &self.report;
        let mut out = vec![if limits.is_some() { VERSION_WITH_LIMITS } else { VERSION }];
        for text in [name, grants.as_str(), created_by] {
            put_bytes(&mut out, text.as_bytes());
        }
        put_varint(&mut out, created.0);
        put_varint(&mut out, expires.map_or(0, |expires| expires.0));
        if let Some(limits) = limits {
            put_bytes(&mut out, limits.to_string().as_bytes());
        }
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

    pub(super) fn read(key: &[u8], value: &[u8]) -> Result<Known, DecodeError> {
        let [letter, b'/', id @ ..] = key else { return Err(DecodeError::OutOfRange("the key")) };
        let kind = CredentialKind::ALL.into_iter().find(|kind| kind.letter() == *letter);
        let kind = kind.ok_or(DecodeError::OutOfRange("the kind"))?;
        let id = std::str::from_utf8(id).map_err(|_| DecodeError::NotText)?;
        let mut cursor = Cursor::new(value);
        let version = cursor.byte()?;
        if ![VERSION, VERSION_WITH_LIMITS].contains(&version) {
            return Err(DecodeError::OutOfRange("the version"));
        }
        let name = cursor.text()?.into();
        let grants = cursor.text()?.parse().map_err(|_| DecodeError::OutOfRange("the grants"))?;
        let created_by = cursor.text()?.into();
        let created = Timestamp(cursor.varint()?);
        let expires = Some(Timestamp(cursor.varint()?)).filter(|expires| expires.0 > 0);
        let limits = match version {
            VERSION => None,
            _ => Some(cursor.text()?.parse().map_err(|_| DecodeError::OutOfRange("the limits"))?),
        };
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
            limits,
            shared_limits: None,
        };
        Ok(Known::new(report, proof))
    }

    pub(super) fn new(report: CredentialReport, proof: Proof) -> Known {
        let standing = Arc::new(Standing::new(report.expires));
        let tenant = report.limits.map(|limits| Arc::new(Tenant::of_credential(&report.id, limits)));
        Known { report, proof, standing, tenant, used: AtomicU64::new(0) }
    }
}

fn note_key(kind: CredentialKind, id: &str) -> Vec<u8> {
    let mut key = vec![kind.letter(), b'/'];
    key.extend_from_slice(id.as_bytes());
    key
}

/// The change of a note that writes or removes a credential.
pub(crate) fn change<'a>(
    key: &'a [u8],
    value: Option<&'a [u8]>,
    expires: Option<Timestamp>,
) -> NoteChange<'a> {
    NoteChange { door: CREDENTIALS, key, value, expected: Expected::Any, expires }
}
