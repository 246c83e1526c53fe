//! Every command as a person and as a script use it, with the built binary.

mod alerts;
mod bench;
mod connections;
mod demo;
mod operate;
mod publish;
#[cfg(feature = "sqs")]
mod readme;
mod rig;
mod secrets;
mod start;
mod tls;
mod tokens;
mod work;
