//! The Rust SDK of Forebay: publishing, consuming, and workers that survive failure.
//!
//! What most programs want is a [`Message`] type, a [`Client`] to publish it, and a worker that handles it.

pub mod admin;
pub mod client;
mod clock;
pub mod consumer;
pub mod error;
pub mod fault;
pub mod idempotency;
pub mod job;
pub mod message;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod outbox;
pub mod publish;
#[cfg(test)]
mod services_tests;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
pub mod worker;

pub use admin::settings::{Backoff, GroupSettings, Rate, Retries, Strategy, StreamSettings};
pub use client::Client;
pub use error::{Advice, CallError, ConnectError, PublishError};
pub use fault::{Class, Fault};
pub use job::{Job, JobInfo};
pub use message::{IntoMessage, Message, Payload};
pub use publish::{Confirmation, Producer, Published};
pub use worker::Worker;

/// The native API as the generated client has it, for [`Client::raw`].
pub use forebay_wire::v1;
