//! Every command as a person and as a script use it, with the built binary.

mod alerts;
mod bench;
mod complete;
mod connections;
pub(crate) mod demo;
mod operate;
#[cfg(feature = "sqs")]
mod pages;
mod publish;
mod rig;
mod secrets;
mod start;
mod tls;
mod tokens;
pub(crate) mod work;
