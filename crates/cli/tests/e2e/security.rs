//! What an attacker, a noisy neighbour and a new certificate must not do to clients that behave: with real processes,
//! over every API that has TLS.
//!
//! The bounds are wide, since tests run beside each other. `cargo xtask wear` runs the same alone, longer and with
//! narrow bounds, and prints the figures.

// The figures are for the person who runs `cargo xtask wear`.
#![allow(clippy::print_stdout)]

mod load;
#[cfg(feature = "sqs")]
mod rotation;
