//! The Rust SDK of Forebay: publishing, consuming, and workers that survive failures.
//!
//! Most programs need a [`Payload`] type, a [`Client`] to publish it, and a [`Worker`] that handles it.
//!
//! | To | Use |
//! | --- | --- |
//! | publish one message, or a batch that is stored whole | [`Client::publish`], [`Client::publish_batch`] |
//! | publish to several streams in one transaction | [`Client::publish_all`] |
//! | publish a steady flow | [`Producer`] |
//! | publish what a database transaction commits | `outbox`, with the feature `sqlite` or `postgres` |
//! | run handlers with retries, concurrency and shutdown | [`Worker`] |
//! | acknowledge a message and publish its results in one transaction | [`JobInfo::finish_with`] |
//! | do each piece of work once | [`idempotency`] |
//! | receive and settle messages yourself | [`Consumer`] |
//! | create streams and groups, look at them, replay parked messages | [`admin`] |
#![warn(missing_docs)]

pub mod admin;
mod channel;
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
mod tls;
pub mod transaction;
pub mod worker;

pub use admin::settings::{Backoff, GroupSettings, Rate, Retries, Strategy, StreamSettings};
pub use client::{Client, authority};
pub use consumer::{Consumer, Delivery};
pub use error::{Advice, CallError, ConnectError, PublishError};
pub use fault::{Class, Fault};
pub use job::{Job, JobInfo};
pub use message::{IntoMessage, Message, Payload, StoredMessage};
pub use publish::{Confirmation, Producer, Published};
pub use transaction::MessageSet;
pub use worker::Worker;
