//! Idempotency stores: marks of work that is done, so that a message that is delivered twice is worked on once.
//!
//! A worker with a store asks it before it runs a handler. The store gives a [`Claim`] to the first worker that asks.
//! The worker turns it into a mark when the handler succeeds, and gives it up when the handler fails. If the worker
//! dies, the claim lapses by itself. A mark is kept for as long as the worker says. Keep it for longer than a message
//! can be delivered again, by retries or replays of parked messages, and for longer than producers may publish it
//! again.
//!
//! The key of a message is made from its group and its id, or from its position in the stream if it has no id.
//!
//! | Store | Feature | Shared by | Survives |
//! | --- | --- | --- | --- |
//! | [`MemoryStore`] | | one process | nothing |
//! | `SqliteStore` | `sqlite` | one machine | whatever the database survives |
//! | `PostgresStore` | `postgres` | all workers | whatever the database survives |
//! | `RedisStore` | `redis` | all workers | whatever Redis is configured to survive |
//!
//! # Effect and mark as one
//!
//! A handler that has done its work may still die before the mark is written, and then the work is done again. With
//! a store in the database that the handler writes to, the mark can be a part of the handler's own transaction:
//! see `PostgresStore::mark_in` and `SqliteStore::mark_in`. Then the effect and the mark are committed together, and
//! the effect happens exactly once, for as long as the mark is kept.
//!
//! # A store of your own
//!
//! Implement [`IdempotencyStore`], and run the suite in `conformance` (with the feature of that name) in your tests. A
//! store that writes marks in a handler's transaction calls [`mark_written`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use crate::job::JobInfo;

pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Remembers which work is done. Shared by all workers with the same effects.
///
/// When a store fails, the attempt fails: a worker begins only after [`Begun::New`]. A worker that stops may drop a
/// call in the middle, and the call may then take effect or not.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims the work of this key, unless it is done or another worker has claimed it. The claim lapses after
    /// `lasts` if it is not renewed.
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>>;

    /// Renews claims: they lapse after `lasts` from now. Claims that another worker has taken are left alone.
    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Turns a claim into a mark, which is kept for this long. Fails with [`StoreError::Taken`] if the claim has lapsed
    /// and another worker has taken the work. A claim that has lapsed and was not taken is still good. Finishing twice
    /// does no harm.
    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Gives a claim up, so that the next worker can begin. Does nothing if another worker has taken the claim, or if
    /// it is a mark.
    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>>;
}

impl<T: IdempotencyStore + ?Sized> IdempotencyStore for Arc<T> {
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>> {
        (**self).begin(key, lasts)
    }

    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        (**self).renew(claims, lasts)
    }

    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        (**self).finish(claim, keep)
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>> {
        (**self).abandon(claim)
    }
}

/// The answer to a worker that wants to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The worker may begin, with this claim.
    New(Claim),
    /// The work is done already.
    Done,
    /// Another worker has claimed it. Its claim lapses after this long unless it is renewed.
    Busy(Duration),
}

/// The right to do a piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    key: Arc<str>,
    /// Differs from every other claim on the same key.
    token: u64,
}

impl Claim {
    /// A claim, made by a store. The token must differ from every other claim on this key, past and future; a random
    /// number will do.
    pub fn new(key: &str, token: u64) -> Claim {
        Claim { key: key.into(), token }
    }

    /// The key of the work.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The number that tells this claim from others on the same key.
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The claim has lapsed, and another worker has taken the work.
    #[error("another worker has taken the work. key=`{key}`")]
    Taken {
        /// The key of the work.
        key: String,
    },
    /// The store has reached its limit.
    #[error("the store is full. entries=`{entries}`")]
    Full {
        /// How many entries it holds.
        entries: usize,
    },
    /// There is no claim to mark: the worker that runs the handler has no store.
    #[error("the job has no claim, because its worker has no idempotency store")]
    NoClaim,
    /// The name of the table cannot be used.
    #[error(
        "a table name must have at most 48 letters, digits and `_`, optionally after a schema and a dot. name=`{name}`"
    )]
    BadTableName {
        /// The name as it was given.
        name: String,
    },
    /// The database, or whatever the store uses, failed.
    #[error("the store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// An error of the store itself, for implementations.
    pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Failed(Box::new(error))
    }

    fn taken(claim: &Claim) -> StoreError {
        StoreError::Taken { key: claim.key().to_owned() }
    }
}

/// Tells the worker that the mark of a job is written, or will be when the handler's transaction is committed, so
/// that the worker does not write it. Only for stores that write marks in a handler's transaction; to call it without
/// writing the mark means that the work may be done twice.
pub fn mark_written(job: &impl AsRef<JobInfo>) {
    job.as_ref().set_marked();
}

/// A token that no other claim has.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
fn new_token() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::failed(std::io::Error::other(error.to_string())))
}

/// The longest duration, short enough for the arithmetic of every store.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
