//! Messages that are published if, and only if, a transaction of the database is committed.
//!
//! A program that writes to its database and publishes a message does one of the two first, and may die in between.
//! With an outbox it does neither first: the message is a row, inserted in the same transaction, and a [`Relay`]
//! publishes what is committed, in its own time, as often as it takes.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_client::Message;
//! use forebay_client::outbox::PostgresOutbox;
//! use sqlx::PgPool;
//!
//! let pool = PgPool::connect("postgres://orders@localhost/orders").await?;
//! let outbox = PostgresOutbox::new(pool.clone());
//! outbox.create_table().await?;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut *tx).await?;
//! outbox.insert(&mut tx, "orders", Message::new("order 17").key("17")).await?;
//! tx.commit().await?;
//!
//! // In one or more processes, of which one works and the others stand by:
//! tokio::spawn(outbox.relay(client).run());
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! **Nothing is lost.** A row is removed once the server has confirmed that the message is durable, and not before.
//!
//! **Nothing is stored twice**, within the stream's dedupe window. A row has an id, which is the message's id unless
//! that had one of its own. A relay that dies between the confirmation and the removal leaves the row to the next
//! relay, which publishes it again with the same id, and the server knows it. So the window (`dedupe_window`, ten
//! minutes unless said) must be longer than the time from one relay's death until the next one has caught up. A day
//! is a good choice: ids cost a few bytes each. `dedupe_max` must be no less than the messages of that time.
//!
//! **Messages of one stream keep their order**: one that was committed before another transaction began to insert goes
//! first. A row that the server refuses for good, such as one that is too large, is set aside with the reason
//! (`refused`), and what comes behind it goes on. A stream that cannot take anything now, being full perhaps, does not
//! hold up the others.
//!
//! A delay or a time to live counts from the insert, by the database's clock.

#[cfg(feature = "postgres")]
mod postgres;
mod relay;
mod row;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
mod tests;

#[cfg(feature = "postgres")]
pub use postgres::PostgresOutbox;
pub use relay::{Relay, RelayFigures};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteOutbox;

use std::time::Duration;

use crate::idempotency::BoxFuture;
use row::Row;

/// The table of an outbox, unless it is given another name.
const TABLE: &str = "forebay_outbox";

/// A row that the server has refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedRow {
    /// Its place in the table, by which it is tried again or discarded.
    pub position: i64,
    /// The message's id.
    pub id: String,
    pub stream: String,
    /// What the server said.
    pub reason: String,
}

/// Why something could not be done with an outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    #[error("the payload cannot be serialized")]
    NotSerialized(#[from] serde_json::Error),
    /// No server would take it, so it is not kept either.
    #[error("{what}")]
    Invalid { what: String },
    #[error(
        "not a name for a table: letters, digits and `_`, 48 at most, with a schema before a dot if need be. \
         name=`{name}`"
    )]
    BadTableName { name: String },
    #[error("the database failed")]
    Failed(#[from] sqlx::Error),
}

/// A table as a relay sees it.
trait Table: Send + Sync {
    /// Takes hold of the table, unless another relay has it.
    fn hold(&self) -> BoxFuture<'_, Result<Option<Box<dyn Hold>>, sqlx::Error>>;

    /// For people, who may have several.
    fn name(&self) -> &str;
}

/// The right to publish what is in a table. Ends when it is dropped, if not at once then soon.
///
/// It is no fence: one that has lost it may still publish and remove what it has read. That does no harm, since
/// whoever has it now publishes with the same ids, and what is removed is stored.
trait Hold: Send {
    /// Rows in order, and none of these streams. Fails if the hold is lost.
    fn read<'a>(
        &'a mut self,
        but_not: &'a [String],
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>>;

    fn remove<'a>(&'a mut self, positions: &'a [i64]) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    fn refuse<'a>(&'a mut self, position: i64, reason: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Resolves when something may have been inserted, if that can be known.
    fn inserted(&mut self) -> BoxFuture<'_, ()>;

    /// Fails if the hold is lost.
    fn keep(&mut self) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// How often it must be read or kept in order not to be lost.
    fn keep_every(&self) -> Duration;

    /// Lets another relay take over at once.
    fn release(self: Box<Self>) -> BoxFuture<'static, ()>;
}
