//! Tokens and access keys: creating, listing, revoking. For administrators.

use super::Caller;
use crate::access::{Resource, Right};
use crate::credentials::{self, CredentialKind, CredentialReport, CredentialTerms, NewCredential};
use crate::error::CallError;

impl Caller {
    /// Creates a credential. It counts as soon as it is durable, and its secret is told by this answer alone.
    pub async fn create_credential(&self, terms: CredentialTerms) -> Result<NewCredential, CallError> {
        let record = self.record(Right::Administer, Resource::Server)?;
        let record = record.about(|| format!("create {} {}", terms.kind.name(), terms.name));
        let credentials = self.broker.credentials();
        let draft = match credentials.draft(self.principal.name(), terms) {
            Ok(draft) => draft,
            Err(refusal) => return record.close(Err(refusal.into())),
        };
        let record = record.about(|| draft.label());
        let credentials = credentials.clone();
        let done = self
            .broker
            .whole()
            .ask(move |task, reply| {
                task.decide(reply, |driver, now| {
                    let (key, value) = (draft.key(), draft.value());
                    driver.put_note(now, credentials::change(&key, Some(&value), draft.forgotten()))?;
                    // In the same turn, so that the log and the memory agree also if the client has gone.
                    Ok(credentials.add(now, draft))
                });
            })
            .await;
        record.close(done)
    }

    /// Credentials, the oldest first.
    pub fn credentials(&self, kind: Option<CredentialKind>) -> Result<Vec<CredentialReport>, CallError> {
        self.may(Right::Administer, Resource::Server)?;
        let mut list = self.broker.credentials().list(kind);
        for one in &mut list {
            one.limits = self.broker.tenants().limits_of(&one.name);
        }
        Ok(list)
    }

    /// Revokes a credential. Everything that runs in its name ends.
    pub async fn revoke_credential(&self, id: &str) -> Result<(), CallError> {
        let record = self.record(Right::Administer, Resource::Server)?.about(|| format!("revoke {id}"));
        let (credentials, id) = (self.broker.credentials().clone(), id.to_owned());
        let done = self
            .broker
            .whole()
            .ask(move |task, reply| {
                task.decide(reply, |driver, now| {
                    let key = credentials.key_of(&id)?;
                    driver.put_note(now, credentials::change(&key, None, None))?;
                    credentials.end(&id);
                    Ok(())
                });
            })
            .await;
        record.close(done)
    }
}
