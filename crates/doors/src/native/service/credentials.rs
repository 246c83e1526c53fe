//! Tokens, access keys and users, for administrators.

use std::time::Duration;

use forebay_broker::api::{
    ClientLimits, CredentialKind, CredentialReport, CredentialTerms, GrantError, Grants, LimitError,
    NewCredential, Page, Secret,
};
use forebay_wire::problem::Kind;

use super::{Answer, Service, check_some_duration, page, text};
use crate::native::problem::Refusal;

/// The terms of a new credential, as a client states them.
pub(in crate::native) struct NewTerms {
    pub(in crate::native) kind: CredentialKind,
    pub(in crate::native) name: String,
    pub(in crate::native) grants: String,
    pub(in crate::native) account: Option<String>,
    pub(in crate::native) expires_in: Option<Duration>,
    pub(in crate::native) limits: Option<String>,
    pub(in crate::native) password: Option<String>,
}

impl Service {
    pub(in crate::native) async fn create_credential(&self, terms: NewTerms) -> Answer<NewCredential> {
        let NewTerms { kind, name, grants, account, expires_in, limits, password } = terms;
        let refused =
            |error: GrantError| Refusal::new(Kind::InvalidField, format!(": {error}")).with_field("grants");
        let grants: Grants = grants.parse().map_err(refused)?;
        let refused =
            |error: LimitError| Refusal::new(Kind::InvalidField, format!(": {error}")).with_field("limits");
        let limits =
            text(limits).map(|limits| limits.parse::<ClientLimits>()).transpose().map_err(refused)?;
        let expires = check_some_duration("expires_in", expires_in)?.map(|time| self.now() + time);
        let (account, password) = (text(account), text(password).map(Secret::new));
        let terms = CredentialTerms { kind, name, grants, expires, limits, account, password };
        self.answer(self.caller.create_credential(terms).await)
    }

    /// Gives a user another password.
    pub(in crate::native) async fn change_password(
        &self,
        id: &str,
        password: Option<String>,
    ) -> Answer<NewCredential> {
        self.answer(self.caller.change_password(id, text(password).map(Secret::new)).await)
    }

    /// Credentials by id, after the one with this id.
    pub(in crate::native) fn credentials(
        &self,
        kind: Option<CredentialKind>,
        after: Option<&str>,
        limit: Option<u64>,
    ) -> Answer<Page<CredentialReport, String>> {
        let limit = page(limit)?;
        let mut all = self.answer(self.caller.credentials(kind))?;
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all.retain(|one| after.is_none_or(|after| &*one.id > after));
        let has_more = all.len() > limit;
        all.truncate(limit);
        let next = all.last().filter(|_| has_more).map(|last| last.id.to_string());
        Ok(Page { items: all, next })
    }

    pub(in crate::native) async fn revoke_credential(&self, id: &str) -> Answer<()> {
        self.answer(self.caller.revoke_credential(id).await)
    }
}
