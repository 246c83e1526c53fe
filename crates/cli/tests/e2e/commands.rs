//! Every command as a person and as a script use it, with the built binary.

mod bench;
mod complete;
mod demo;
mod operate;
mod publish;
#[cfg(feature = "sqs")]
mod readme;
mod rig;
mod start;
mod tls;
mod tokens;
mod work;
