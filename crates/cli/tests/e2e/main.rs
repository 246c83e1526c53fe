//! The built binary from outside: one program for all of it, since each further one would be compiled and linked by
//! itself. A module is one way in: `cargo test --package forebay --test e2e http::` runs those over HTTP alone.

#[cfg(feature = "jetstream")]
mod cluster;
mod commands;
mod doctor;
mod encryption;
mod exactly_once;
mod grpc;
mod http;
#[cfg(feature = "kurrent")]
mod kurrent;
mod rig;
mod security;
#[cfg(feature = "sqs")]
mod sqs;
