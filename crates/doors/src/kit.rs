//! What every door needs, whatever protocol it speaks.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `identity` | From the credentials of a request to a principal. |
//! | `attempts` | Slows down clients that present wrong credentials. |
//! | `tls` | Certificates, handshakes, and the bytes of a connection. |
//! | `watched` | Ends an answer when the credential of its request ends. |

pub(crate) mod attempts;
pub mod identity;
pub mod tls;
pub(crate) mod watched;
