//! Connections of clients.

use serde::{Deserialize, Serialize};

use super::Time;

/// A connection that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Connection {
    /// Of its own until the server starts anew.
    pub id: String,
    /// The port that accepted it: `native`, `sqs` or `kurrent`.
    pub api: String,
    /// Address and port of the client.
    pub address: String,
    pub since: Time,
    /// The name of the client that made the last request. `null`: no client was recognised so far.
    pub client: Option<String>,
    pub requests: u64,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of answers.
    pub sent_bytes: u64,
    /// Connected consumers that take messages through it.
    pub consumers: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConnectionList {
    pub connections: Vec<Connection>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}
