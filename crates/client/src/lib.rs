//! The Rust SDK of Forebay: publishing, consuming, and workers that survive failures.
//!
//! Most programs need a [`Payload`](trait@Payload) type, a [`Client`] to publish it, and a [`Worker`] that handles it.
//! A whole program, beside a running `forebay serve`:
//!
//! ```no_run
//! use forebay_client::{Client, Fault, GroupSettings, Job, Payload, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Serialize, Deserialize, Payload)]
//! #[payload(type = "email.send")]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! async fn send_email(_: (), job: Job<SendEmail>) -> Result<(), Fault> {
//!     if !job.to.contains('@') {
//!         return Err(Fault::permanent("not an email address")); // parked, as a dead letter
//!     }
//!     println!("to {}, attempt {}", job.to, job.info.attempt());
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::connect("127.0.0.1:7070").await?;
//!     client.publish("emails", &SendEmail { to: "ann@example.com".into() }).await?;
//!     Worker::builder(client, "emails", "senders", ())
//!         .ensure_group(GroupSettings::new())
//!         .on(send_email)
//!         .run_until(async { drop(tokio::signal::ctrl_c().await) })
//!         .await?;
//!     Ok(())
//! }
//! ```
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

pub use admin::settings::{Backoff, GroupSettings, Rate, Retries, Source, Strategy, StreamSettings};
pub use client::{Client, authority};
pub use consumer::{Consumer, Delivery};
pub use error::{Advice, CallError, ConnectError, PublishError};
pub use fault::{Class, Fault};
pub use forebay_derive::Payload;
pub use job::{Job, JobInfo};
pub use message::{IntoMessage, Message, Payload, StoredMessage};
pub use publish::{Confirmation, Producer, Published};
pub use transaction::MessageSet;
pub use worker::Worker;
