//! Whose requests are believed.

use std::collections::HashMap;

use super::wire::address::DEFAULT_ACCOUNT;
use super::wire::signature::Trust;

/// An access key that the server knows.
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

/// All access keys that the server knows. Without any, every client is trusted.
pub(super) struct AccessKeys(HashMap<String, AccessKey>);

impl AccessKeys {
    pub(super) fn new(keys: Vec<AccessKey>) -> AccessKeys {
        AccessKeys(keys.into_iter().map(|key| (key.id.clone(), key)).collect())
    }

    pub(super) fn are_needed(&self) -> bool {
        !self.0.is_empty()
    }

    /// Asks `with` whom to believe.
    pub(super) fn trust<T>(&self, with: impl FnOnce(&Trust<'_>) -> T) -> T {
        if !self.are_needed() {
            return with(&Trust::Anybody);
        }
        with(&Trust::Verify(&|id| self.0.get(id).map(|key| key.secret.clone())))
    }

    /// Whose key it is, where the server knows it.
    pub(super) fn account(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(|key| key.account.as_deref().unwrap_or(DEFAULT_ACCOUNT))
    }
}
