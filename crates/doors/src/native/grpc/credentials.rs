//! The calls about tokens, access keys and users.

use std::time::Duration;

use forebay_broker::api::{CredentialKind, CredentialReport};
use forebay_wire::v1;

use super::request::{Budget, some};
use crate::native::problem::Refusal;
use crate::native::service::{Answer, NewTerms, Service};

pub(super) async fn create(
    service: Service,
    request: v1::CreateCredentialRequest,
) -> Answer<v1::CreateCredentialReply> {
    let kind = kind(request.kind)?.ok_or_else(|| Refusal::field("kind", "must be given"))?;
    let v1::CreateCredentialRequest { name, grants, account, expires_in_ms, password, limits, .. } = request;
    let expires_in = expires_in_ms.map(Duration::from_millis);
    let (account, password, limits) = (some(account), some(password), some(limits));
    let terms = NewTerms { kind, name, grants, account, expires_in, limits, password };
    let new = service.create_credential(terms).await?;
    let secret = new.secret.reveal().to_owned();
    Ok(v1::CreateCredentialReply { credential: Some(report(&new.report)), secret })
}

pub(super) async fn change_password(
    service: Service,
    request: v1::ChangePasswordRequest,
) -> Answer<v1::ChangePasswordReply> {
    let new = service.change_password(&request.id, some(request.password)).await?;
    let secret = new.secret.reveal().to_owned();
    Ok(v1::ChangePasswordReply { credential: Some(report(&new.report)), secret })
}

pub(super) async fn list(
    service: Service,
    request: v1::ListCredentialsRequest,
) -> Answer<v1::ListCredentialsReply> {
    let after = Some(&request.after[..]).filter(|after| !after.is_empty());
    let page = service.credentials(kind(request.kind)?, after, some(request.limit.into()))?;
    let mut reply = v1::ListCredentialsReply::default();
    let mut budget = Budget::new();
    for one in &page.items {
        let one = report(one);
        if !budget.take(&one) {
            reply.next = reply.credentials.last().map(|last| last.id.clone()).unwrap_or_default();
            return Ok(reply);
        }
        reply.credentials.push(one);
    }
    reply.next = page.next.unwrap_or_default();
    Ok(reply)
}

pub(super) async fn revoke(
    service: Service,
    request: v1::RevokeCredentialRequest,
) -> Answer<v1::RevokeCredentialReply> {
    service.revoke_credential(&request.id).await?;
    Ok(v1::RevokeCredentialReply {})
}

fn kind(wire: i32) -> Answer<Option<CredentialKind>> {
    match v1::CredentialKind::try_from(wire) {
        Ok(v1::CredentialKind::Unspecified) => Ok(None),
        Ok(v1::CredentialKind::Token) => Ok(Some(CredentialKind::Token)),
        Ok(v1::CredentialKind::AccessKey) => Ok(Some(CredentialKind::AccessKey)),
        Ok(v1::CredentialKind::User) => Ok(Some(CredentialKind::User)),
        Err(_) => Err(Refusal::value("kind", "must be token, access_key or user", wire)),
    }
}

fn report(of: &CredentialReport) -> v1::Credential {
    let kind = match of.kind {
        CredentialKind::Token => v1::CredentialKind::Token,
        CredentialKind::AccessKey => v1::CredentialKind::AccessKey,
        CredentialKind::User => v1::CredentialKind::User,
    };
    v1::Credential {
        id: of.id.to_string(),
        kind: kind.into(),
        name: of.name.to_string(),
        grants: of.grants.to_string(),
        account: of.account.as_deref().unwrap_or_default().to_owned(),
        created_at_us: of.created.0,
        created_by: of.created_by.to_string(),
        expires_at_us: of.expires.map(|at| at.0),
        last_used_at_us: of.last_used.map(|at| at.0),
        limits: of.limits.map(|limits| limits.to_string()).unwrap_or_default(),
        shared_limits: of.shared_limits.clone().unwrap_or_default(),
    }
}
