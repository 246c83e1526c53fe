//! Whose requests are believed. Access keys come from the server's keys file, which is read again when it changes, and
//! from the log, where `forebay key create` puts them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_broker::api::{Entrance, Principal, Secret};

use super::wire::address::DEFAULT_ACCOUNT;
use super::wire::signature::Trust;
use crate::kit::identity::Anonymous;

/// An access key of the keys file. It has every right on the queues of its account.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    pub id: String,
    pub secret: String,
    /// Twelve digits. Queues belong to accounts.
    pub account: Option<String>,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret has no place in a log.
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

/// The access keys of the keys file, which can be replaced while the server runs. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KeyRing(Arc<RwLock<HashMap<String, AccessKey>>>);

impl KeyRing {
    pub fn new(keys: Vec<AccessKey>) -> KeyRing {
        let ring = KeyRing::default();
        ring.replace(keys);
        ring
    }

    /// From now on these keys are believed, and no others of the file.
    pub fn replace(&self, keys: Vec<AccessKey>) {
        let keys = keys.into_iter().map(|key| (key.id.clone(), key)).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn get(&self, id: &str) -> Option<AccessKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

/// An access key that the server knows.
pub(super) struct Known {
    pub(super) principal: Principal,
    pub(super) account: Arc<str>,
    secret: Secret,
}

/// All access keys that the server knows.
pub(super) struct AccessKeys {
    file: KeyRing,
    broker: Entrance,
    anonymous: Anonymous,
}

impl AccessKeys {
    pub(super) fn new(file: KeyRing, broker: Entrance, anonymous: Anonymous) -> AccessKeys {
        AccessKeys { file, broker, anonymous }
    }

    /// Whether every client has to sign its requests with a known key.
    pub(super) fn are_needed(&self) -> bool {
        !self.file.is_empty() || self.anonymous == Anonymous::Refused
    }

    /// The key with this id.
    pub(super) fn find(&self, id: &str) -> Option<Known> {
        if let Some(AccessKey { id, secret, account }) = self.file.get(id) {
            let account = account.as_deref().unwrap_or(DEFAULT_ACCOUNT).into();
            return Some(Known { principal: Principal::owner_as(&id), account, secret: Secret::new(secret) });
        }
        let key = self.broker.credentials().access_key(id)?;
        let account = key.account.unwrap_or_else(|| DEFAULT_ACCOUNT.into());
        Some(Known { principal: key.principal, account, secret: key.secret })
    }

    /// Asks `with` whether to believe a request that names this key. If no key is needed, only the keys of the server
    /// are verified: clients of SQS send some key or other in any case.
    pub(super) fn trust<T>(&self, named: Option<&str>, with: impl FnOnce(&Trust<'_>) -> T) -> T {
        if !self.are_needed() && named.is_none_or(|id| self.find(id).is_none()) {
            return with(&Trust::Anybody);
        }
        with(&Trust::Verify(&|id| self.find(id).map(|key| key.secret.reveal().to_owned())))
    }
}
