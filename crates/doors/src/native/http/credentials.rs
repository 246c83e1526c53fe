//! Calls on tokens, access keys and users.

use axum::http::StatusCode;
use forebay_broker::api::{CredentialKind, CredentialReport};
use forebay_wire::json::{self, Time};

use super::failure::{Failure, in_query};
use super::live::Reply;
use super::request::{Entered, InPath, Json, NoQuery, Query, bad_parameter};
use crate::native::service::NewTerms;

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn create(
    Entered(service): Entered,
    _: NoQuery,
    Json(request): Json<json::CreateCredentialRequest>,
) -> Answer<json::CreateCredentialReply> {
    let json::CreateCredentialRequest { kind, name, grants, expires_in, limits, account, password } = request;
    let kind = match kind {
        json::CredentialKind::Token => CredentialKind::Token,
        json::CredentialKind::AccessKey => CredentialKind::AccessKey,
        json::CredentialKind::User => CredentialKind::User,
    };
    let expires_in = expires_in.map(|span| span.0);
    let terms = NewTerms { kind, name, grants, account, expires_in, limits, password };
    let new = service.create_credential(terms).await?;
    let secret = new.secret.reveal().to_owned();
    let reply = json::CreateCredentialReply { credential: report(&new.report), secret };
    Ok(Reply(StatusCode::CREATED, reply))
}

pub(super) async fn change_password(
    Entered(service): Entered,
    InPath(id): InPath,
    _: NoQuery,
    Json(request): Json<json::ChangePasswordRequest>,
) -> Answer<json::CreateCredentialReply> {
    let new = service.change_password(&id, request.password).await?;
    let secret = new.secret.reveal().to_owned();
    Ok(Reply(StatusCode::OK, json::CreateCredentialReply { credential: report(&new.report), secret }))
}

pub(super) async fn list(Entered(service): Entered, mut query: Query) -> Answer<json::CredentialList> {
    let (kind, limit, after) = (query.text("kind"), query.number("limit")?, query.text("after"));
    query.end()?;
    let kind = kind.map(|text| CredentialKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or(()));
    let kind = kind.transpose().map_err(|()| bad_parameter("kind", "must be token, access_key or user"))?;
    let page = service.credentials(kind, after.as_deref(), limit).map_err(in_query)?;
    let credentials = page.items.iter().map(report).collect();
    Ok(Reply(StatusCode::OK, json::CredentialList { credentials, next: page.next }))
}

pub(super) async fn revoke(
    Entered(service): Entered,
    InPath(id): InPath,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    service.revoke_credential(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn report(of: &CredentialReport) -> json::Credential {
    json::Credential {
        id: of.id.to_string(),
        kind: match of.kind {
            CredentialKind::Token => json::CredentialKind::Token,
            CredentialKind::AccessKey => json::CredentialKind::AccessKey,
            CredentialKind::User => json::CredentialKind::User,
        },
        name: of.name.to_string(),
        grants: of.grants.to_string(),
        account: of.account.as_deref().map(str::to_owned),
        created_at: Time(of.created.0),
        created_by: of.created_by.to_string(),
        expires_at: of.expires.map(|at| Time(at.0)),
        last_used_at: of.last_used.map(|at| Time(at.0)),
        limits: of.limits.map(|limits| limits.to_string()),
        shared_limits: of.shared_limits.clone(),
    }
}
