//! Marks of work that is done, so that a message that comes twice is worked on once.
//!
//! A worker with a store asks it before it runs a handler. The store gives a [`Claim`] to the first who asks; the
//! worker turns it into a mark when the handler is done, and gives it up when the handler fails. A claim that is
//! neither lapses by itself, since whoever has it may have died. A mark is kept for as long as the worker wants,
//! then forgotten. Keep it for longer than a message may come again: for as long as retries, replays and parked
//! messages go on, and as producers may send it once more.
//!
//! A message is known by its group and its id, or by its position in the stream if it has no id.
//!
//! | Store | Feature | Shared by | Survives |
//! | --- | --- | --- | --- |
//! | [`MemoryStore`] | | one process | nothing |
//! | `SqliteStore` | `sqlite` | one machine | whatever the database survives |
//! | `PostgresStore` | `postgres` | everybody | whatever the database survives |
//! | `RedisStore` | `redis` | everybody | what Redis is told to keep |
//!
//! # Effect and mark as one
//!
//! A handler that has done its work may still die before the mark is written, and then the work is done again. With
//! a store in the database that the handler writes to, the mark can be a part of the handler's own transaction:
//! see `PostgresStore::mark_in` and `SqliteStore::mark_in`. Then the effect and the mark are there both or not at
//! all, and the effect comes about exactly once, whatever dies when, for as long as the mark is kept.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// A future that can be kept in a table of stores.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Remembers what was done. Shared by everyone who works on the same effects.
///
/// A store that fails fails the attempt, never the promise: whoever is not told [`Begun::New`] does not begin.
/// Calls are dropped in the middle when a worker stops, and what was asked for may then happen or not.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims the work of this key, unless it is done or somebody else has claimed it. The claim lapses after
    /// `lasts` if it is not renewed.
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>>;

    /// Keeps claims for another `lasts`, from now. Those that are no longer ours are left alone.
    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The work is done; the mark is kept for this long. Fails with [`StoreError::Taken`] if the claim has lapsed
    /// and another has taken it. A claim that has lapsed and that nobody took is as good as before. Finishing twice
    /// does no harm.
    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The work was not done, and the next one may try. Does nothing if the claim is no longer ours, or is a mark.
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

/// What a store says to one who wants to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The work is ours.
    New(Claim),
    /// It is done already.
    Done,
    /// Somebody else is at it. If he dies, his claim lapses after this long.
    Busy(Duration),
}

/// The right to do some work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    key: Arc<str>,
    /// Told from every other claim on the same key.
    token: u64,
}

impl Claim {
    /// A claim that a store has given. No other claim on this key may have the same token, whoever gave it and
    /// however long ago; a random number is good enough.
    pub fn new(key: &str, token: u64) -> Claim {
        Claim { key: key.into(), token }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn token(&self) -> u64 {
        self.token
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// Why a store did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The claim has lapsed, and another has the work, or has done it.
    #[error("the work was taken by another. key=`{key}`")]
    Taken { key: String },
    #[error("the store holds as much as it may. entries=`{entries}`")]
    Full { entries: usize },
    /// There is nothing to mark: the worker that runs the handler was given no store.
    #[error("the job has no claim, since its worker has no idempotency store")]
    NoClaim,
    #[error(
        "not a name for a table: letters, digits and `_`, 48 at most, with a schema before a dot if need be. \
         name=`{name}`"
    )]
    BadTableName { name: String },
    #[error("the store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// A store's own trouble, for those who write one.
    pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Failed(Box::new(error))
    }

    fn taken(claim: &Claim) -> StoreError {
        StoreError::Taken { key: claim.key().to_owned() }
    }
}

/// What tells a claim from every other.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
fn new_token() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::failed(std::io::Error::other(error.to_string())))
}

/// Longer than anybody waits, and short enough for every store to reckon with.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
