//! Tokens, access keys and users.

use serde::{Deserialize, Serialize};

use super::{Span, Time, some};

/// The kind of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    /// A bearer token, for HTTP and gRPC.
    Token,
    /// An access key, for SQS.
    AccessKey,
    /// A user with a password.
    User,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateCredentialRequest {
    pub kind: CredentialKind,
    pub name: String,
    /// What it may do, such as `publish:orders-*,consume:orders/*`.
    pub grants: String,
    /// How long it is accepted. If it is left out, until it is revoked.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Span>,
    /// Limits of this credential alone, such as `requests=100,bytes=1MiB`: `connections`, `requests` and `bytes` a
    /// second, `in_flight`.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
    /// Of an access key: the account whose queues it uses, twelve digits. The default account if it is left out.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Of a user: 8 to 256 characters of printable ASCII. The server draws one at random if it is left out.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangePasswordRequest {
    /// 8 to 256 characters of printable ASCII. The server draws one at random if it is left out.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// A credential, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Credential {
    pub id: String,
    pub kind: CredentialKind,
    pub name: String,
    pub grants: String,
    pub account: Option<String>,
    pub created_at: Time,
    /// The name of the client that created it.
    pub created_by: String,
    /// `null`: it does not expire.
    pub expires_at: Option<Time>,
    /// `null`: it was not used since the server started.
    pub last_used_at: Option<Time>,
    /// Its own limits, such as `requests=100,bytes=1MiB`. `null`: it has none of its own.
    #[serde(default)]
    pub limits: Option<String>,
    /// The limits of the line in `limits_file` that has its name, which it shares with others. Both count. `null`:
    /// there are none.
    #[serde(default)]
    pub shared_limits: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateCredentialReply {
    pub credential: Credential,
    /// The token, the secret of the access key, or the password that the server has drawn; empty if the request had
    /// the password. The server does not tell it again.
    pub secret: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialList {
    pub credentials: Vec<Credential>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}
