//! Tokens, access keys and users: creating, listing, revoking. For administrators.

use super::Caller;
use crate::access::{Resource, Right};
use crate::credentials::{
    self, CredentialKind, CredentialRefusal, CredentialReport, CredentialTerms, Draft, NewCredential, Secret,
};
use crate::error::CallError;

impl Caller {
    /// Creates a credential. It counts as soon as it is durable, and its secret is told by this answer alone.
    pub async fn create_credential(&self, terms: CredentialTerms) -> Result<NewCredential, CallError> {
        let record = self.record(Right::Administer, Resource::Server)?;
        let record = record.about(|| format!("create {} {}", terms.kind.name(), terms.name));
        let (credentials, by) = (self.broker.credentials().clone(), self.principal.name_shared());
        let draft = match made(move || credentials.draft(&by, terms)).await {
            Ok(draft) => draft,
            Err(refusal) => return record.close(Err(refusal)),
        };
        let record = record.about(|| draft.label());
        record.close(self.store(draft).await)
    }

    /// Changes the password of a user. Everything that runs with the old one ends.
    pub async fn change_password(
        &self,
        id: &str,
        password: Option<Secret>,
    ) -> Result<NewCredential, CallError> {
        let record = self.record(Right::Administer, Resource::Server)?;
        let record = record.about(|| format!("change password {id}"));
        let (credentials, of) = (self.broker.credentials().clone(), id.to_owned());
        let draft = match made(move || credentials.draft_password(&of, password)).await {
            Ok(draft) => draft,
            Err(refusal) => return record.close(Err(refusal)),
        };
        record.close(self.store(draft).await)
    }

    /// Writes a credential to the log, from where on it counts.
    async fn store(&self, draft: Draft) -> Result<NewCredential, CallError> {
        let credentials = self.broker.credentials().clone();
        self.broker
            .whole()
            .ask(move |task, reply| {
                task.decide(reply, |driver, now| {
                    credentials.check(&draft)?;
                    let (key, value) = (draft.key(), draft.value());
                    driver.put_note(now, credentials::change(&key, Some(&value), draft.forgotten()))?;
                    // In the same turn, so that the log and the memory agree also if the client has gone.
                    Ok(credentials.add(now, draft))
                });
            })
            .await
    }

    /// Credentials, the oldest first.
    pub fn credentials(&self, kind: Option<CredentialKind>) -> Result<Vec<CredentialReport>, CallError> {
        self.may(Right::Administer, Resource::Server)?;
        let mut list = self.broker.credentials().list(kind);
        for one in &mut list {
            one.shared_limits = self.broker.tenants().limits_of(&one.name);
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

/// Makes a credential on a thread of its own, because a password takes milliseconds of a core.
async fn made(
    make: impl FnOnce() -> Result<Draft, CredentialRefusal> + Send + 'static,
) -> Result<Draft, CallError> {
    match tokio::task::spawn_blocking(make).await {
        Ok(made) => Ok(made?),
        Err(_) => Err(CredentialRefusal::NoRandomness.into()),
    }
}
