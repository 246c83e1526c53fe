//! The SDK against a real server: one program for all of it, since each further one would be compiled and linked by
//! itself. `cargo test --package forebay-client --test e2e worker::` runs those of the worker alone.

mod admin;
mod consumer;
mod exact;
mod killed;
mod publish;
mod rig;
mod transactions;
mod worker;
