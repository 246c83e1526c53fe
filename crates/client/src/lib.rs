//! The Rust SDK of Forebay: publishing, consuming, and workers that survive failure.
//!
//! What most programs want is a [`Message`] type, a [`Client`] to publish it, and a worker that handles it.

pub mod fault;
pub mod idempotency;
pub mod job;
pub mod message;

pub use fault::{Class, Fault};
pub use job::Job;
pub use message::{IntoMessage, Message, Payload};
