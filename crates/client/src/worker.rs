//! Workers: pools of handlers for the messages of one group.
//!
//! ```
//! # use forebay_test::TestServer;
//! use forebay_client::{Client, Fault, Job, Payload, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! impl Payload for SendEmail {
//!     const TYPE: &'static str = "email.send";
//! }
//!
//! /// The state that handlers share. Cloned for each job.
//! #[derive(Clone)]
//! struct App {
//!     from: &'static str,
//! }
//!
//! async fn send_email(app: App, job: Job<SendEmail>) -> Result<(), Fault> {
//!     if !job.to.contains('@') {
//!         return Err(Fault::permanent("not an email address"));
//!     }
//!     println!("from {} to {}", app.from, job.to);
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = TestServer::start().await?;
//! # let client = Client::connect(server.url()).await?;
//! let worker = Worker::builder(client.clone(), "emails", "senders", App { from: "me@example.com" })
//!     .ensure_group(Default::default())
//!     .concurrency(8)
//!     .on(send_email)
//!     .start()
//!     .await?;
//!
//! client.publish("emails", &SendEmail { to: "you@example.com".into() }).await?;
//! # server.until_settled("emails", "senders").await?;
//!
//! let stats = worker.shutdown().await?;
//! assert_eq!(stats.acked, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What happens to a message
//!
//! | The handler | The message |
//! | --- | --- |
//! | returns `Ok(())` | is acked |
//! | calls [`JobInfo::finish_with`] | is acked in one transaction with the messages that are published |
//! | returns an error by `?` | is treated as [`WorkerBuilder::classify`] decides; transient without it |
//! | returns [`Fault::transient`], panics, or takes too long | is delivered again by the group's retry policy |
//! | returns [`Fault::retry_after`] | is delivered again after that long; it counts as an attempt |
//! | returns [`Fault::permanent`] | is parked |
//! | returns [`Fault::skip`] | is settled without being done |
//! | returns [`Fault::snooze`] | is delivered again after that long; the attempt does not count |
//! | returns [`Fault::throttled`] | as with snooze; this worker and the whole group pause for as long |
//! | does not exist, or the payload cannot be decoded | is parked |
//!
//! While a message is in hand its lease is renewed. If the lease is lost all the same, [`JobInfo::cancelled`] resolves.
//!
//! | Module | Has |
//! | --- | --- |
//! | `builder`, `route`, `middleware`, `event`, `stats` | the public API |
//! | `desk`, `pace`, `breaker`, `scale` | the decisions: which message may begin now, and how many to hold |
//! | `runner` | the tasks that run handlers |
//! | `pump` | the task that owns the connection |
//! | `leases`, `answers`, `credit` | its state: leases to renew, answers that are missing, messages that may come |
//! | `shared` | the state that the tasks share |
//!
//! [`JobInfo::cancelled`]: crate::JobInfo::cancelled
//! [`JobInfo::finish_with`]: crate::JobInfo::finish_with
//! [`Fault::permanent`]: crate::Fault::permanent
//! [`Fault::retry_after`]: crate::Fault::retry_after
//! [`Fault::skip`]: crate::Fault::skip
//! [`Fault::snooze`]: crate::Fault::snooze
//! [`Fault::throttled`]: crate::Fault::throttled
//! [`Fault::transient`]: crate::Fault::transient

mod answers;
mod breaker;
mod builder;
mod credit;
mod desk;
mod event;
mod leases;
mod middleware;
mod pace;
mod pump;
mod route;
mod runner;
mod scale;
mod shared;
mod stats;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::error::CallError;

pub use breaker::{BreakerPolicy, BreakerState};
pub use builder::WorkerBuilder;
pub use event::WorkerEvent;
pub use middleware::Next;
pub use route::{JobResult, Route};
pub use scale::Concurrency;
pub use stats::WorkerStats;

/// A running worker. Made by [`Worker::builder`].
///
/// Call [`shutdown`](Worker::shutdown) to stop it. If it is dropped instead, the messages it holds go to other
/// workers, and their delivery counts as an attempt.
pub struct Worker {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), WorkerError>>,
    stats: Arc<dyn Fn() -> WorkerStats + Send + Sync>,
}

impl Worker {
    /// A builder of a worker for the group `group` of the stream `stream`. Handlers get a clone of the state for each
    /// job.
    pub fn builder<S: Clone + Send + Sync + 'static>(
        client: Client,
        stream: impl Into<String>,
        group: impl Into<String>,
        state: S,
    ) -> WorkerBuilder<S> {
        WorkerBuilder::new(client, stream.into(), group.into(), state)
    }

    /// Counters since the worker started, and its present state.
    pub fn stats(&self) -> WorkerStats {
        (self.stats)()
    }

    /// A function with the same result as [`stats`](Worker::stats), for an exporter of metrics. It does not keep the
    /// worker running.
    pub fn stats_handle(&self) -> impl Fn() -> WorkerStats + Send + Sync + Clone + use<> {
        let stats = self.stats.clone();
        move || stats()
    }

    /// Stops taking messages, lets running jobs finish within [`WorkerBuilder::shutdown_within`], gives the other
    /// messages back, and leaves the group.
    pub async fn shutdown(mut self) -> Result<WorkerStats, WorkerError> {
        let _ = self.stop.send(true);
        let ended = (&mut self.task).await;
        self.ended(ended)
    }

    /// Works until `stop` resolves, then shuts down.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<WorkerStats, WorkerError> {
        tokio::select! {
            () = stop => self.shutdown().await,
            ended = &mut self.task => self.ended(ended),
        }
    }

    /// Waits until the worker ends by itself, which happens only if the server refuses it for good.
    pub async fn wait(mut self) -> Result<WorkerStats, WorkerError> {
        let ended = (&mut self.task).await;
        self.ended(ended)
    }

    fn ended(
        &self,
        ended: Result<Result<(), WorkerError>, tokio::task::JoinError>,
    ) -> Result<WorkerStats, WorkerError> {
        match ended {
            Ok(outcome) => outcome.map(|()| self.stats()),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(WorkerError::Broken),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Why a worker could not start, or has stopped.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Two handlers were added for the same type and version.
    #[error("a type must have one handler. type=`{of}`")]
    TwoRoutes {
        /// The type's name.
        of: String,
    },
    /// No handler was added.
    #[error("a worker must have a handler: `on`, `on_batch` or `on_any`")]
    NoRoutes,
    /// A route names a bulkhead that was not added.
    #[error("the bulkhead of a route must be added to the worker. bulkhead=`{name}`")]
    NoSuchBulkhead {
        /// The bulkhead's name.
        name: String,
    },
    /// A bulkhead was added twice.
    #[error("the name of a bulkhead must be unique. bulkhead=`{name}`")]
    TwoBulkheads {
        /// The bulkhead's name.
        name: String,
    },
    /// The rate is out of range.
    #[error("rate must be between 0.000001 and 1000000000 per second. value=`{per_second}`")]
    InvalidRate {
        /// The rate as it was given.
        per_second: String,
    },
    /// The server refused the worker, for example because there is no such group; or it could not be reached when the
    /// worker [started](WorkerBuilder::start).
    #[error("the worker cannot join its group")]
    Refused(#[source] CallError),
    /// The worker's task was dropped, which happens when its runtime ends.
    #[error("the worker's task has ended")]
    Broken,
}
