//! Every command as a person and as a script use it, with the built binary.

mod alerts;
mod bench;
mod complete;
mod connections;
mod demo;
mod operate;
mod otlp;
#[cfg(feature = "sqs")]
mod pages;
mod publish;
mod receiver;
mod rig;
mod secrets;
mod start;
mod tls;
mod tokens;
mod work;
