//! Every command as a person and as a script use it, with the built binary.

mod alerts;
mod bench;
mod complete;
mod connections;
pub(crate) mod demo;
mod http_page;
mod issuer;
mod operate;
mod otlp;
#[cfg(feature = "sqs")]
mod pages;
mod publish;
mod receiver;
pub(crate) mod rig;
mod secrets;
mod start;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod work;
