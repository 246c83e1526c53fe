//! What every door needs, whatever protocol it speaks.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `identity` | From the credentials of a request to a principal. |
//! | `jwt` | Clients that are recognised by tokens of an OIDC issuer. |
//! | `scram` | The exchange in which a client proves that it knows a password. |
//! | `sessions` | The cookies of people who signed in to the dashboard. |
//! | `attempts` | Slows down clients that present wrong credentials. |
//! | `certificates` | Clients that are recognised by their certificates. |
//! | `tenants` | The limits of clients. |
//! | `tls` | Certificates, handshakes, and the bytes of a connection. |
//! | `trace` | The trace that a message belongs to, in the form of each protocol. |
//! | `watched` | Ends an answer when the credential of its request ends. |

pub(crate) mod attempts;
pub mod certificates;
pub mod identity;
pub mod jwt;
pub mod scram;
#[cfg(feature = "dashboard")]
pub(crate) mod sessions;
pub(crate) mod tenants;
#[cfg(test)]
pub(crate) mod tests;
pub mod tls;
pub(crate) mod trace;
pub(crate) mod watched;
