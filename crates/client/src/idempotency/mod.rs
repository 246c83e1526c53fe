//! Marks of work that is done, so that a message that comes twice is worked on once.
//!
//! A worker with a store asks it before it runs a handler. The store gives a [`Claim`] to the first who asks; the
//! worker turns it into a mark when the handler is done, and gives it up when the handler fails. A claim that is
//! neither lapses by itself, since whoever has it may have died. A mark is kept for as long as the worker wants,
//! then forgotten.
//!
//! A message is known by its group and its id, or by its position in the stream if it has no id.
//!
//! With a store in the database that the handler writes to, the mark can be a part of the handler's own
//! transaction. Then the effect and the mark are there both or not at all, and the work is done exactly once
//! whatever dies when.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A future that can be kept in a table of stores.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Remembers what was done. Shared by everyone who works on the same effects.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims the work of this key, unless it is done or somebody else has claimed it. The claim lapses after
    /// `lasts` if it is not renewed.
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>>;

    /// Keeps claims for another `lasts`, from now. Those that are no longer ours are left alone.
    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The work is done; the mark is kept for this long. Fails with [`StoreError::Taken`] if the claim has lapsed
    /// and another has taken it.
    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The work was not done, and the next one may try. Does nothing if the claim is no longer ours.
    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>>;
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
    /// A claim that a store has given.
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
    #[error("the store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}
