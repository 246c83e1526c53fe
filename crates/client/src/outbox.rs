//! The transactional outbox: messages that are published if, and only if, a database transaction is committed.
//!
//! A program that writes to its database and publishes a message does one of the two first, and may die in between.
//! With an outbox the message is a row, inserted in the same transaction, and a [`Relay`] publishes committed rows.
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
//! # Guarantees
//!
//! **Nothing is lost.** A row is removed once the server has confirmed that the message is durable, and not before.
//!
//! **Nothing is stored twice**, within the stream's dedupe window. A row has an id, which is the message's id unless
//! that had one of its own. A relay that dies between the confirmation and the removal leaves the row to the next
//! relay, which publishes it again with the same id, and the server stores it once. So the window (`dedupe_window`, ten
//! minutes by default) must be longer than the time from one relay's death until the next one has caught up. A day
//! is a good choice: ids cost a few bytes each. `dedupe_max` must be at least the number of messages of that time.
//!
//! **Messages of one stream keep their order**: one that was committed before another transaction began to insert goes
//! first. A row that the server refuses for good, for example because it is too large, is set aside with the reason
//! (`refused`), and later rows go on. A stream that is full does not hold up the others.
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
pub use relay::{Relay, RelayStats};
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
    /// The stream that the message is for.
    pub stream: String,
    /// The server's reason.
    pub reason: String,
}

/// Why a call of an outbox failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The payload cannot be written as JSON.
    #[error("the payload cannot be serialized")]
    NotSerialized(#[from] serde_json::Error),
    /// No server would store the message, so it was not inserted.
    #[error("{what}")]
    Invalid {
        /// The reason.
        what: String,
    },
    /// The name of the table cannot be used.
    #[error(
        "a table name must have at most 48 letters, digits and `_`, optionally after a schema and a dot. name=`{name}`"
    )]
    BadTableName {
        /// The name as it was given.
        name: String,
    },
    /// The database failed.
    #[error("the database failed")]
    Failed(#[from] sqlx::Error),
}

/// A table as a relay sees it.
trait Table: Send + Sync {
    /// Takes hold of the table, unless another relay has it.
    fn hold(&self) -> BoxFuture<'_, Result<Option<Box<dyn Hold>>, sqlx::Error>>;

    /// The table's name, for logs.
    fn name(&self) -> &str;
}

/// The right to publish the rows of a table. It ends soon after it is dropped.
///
/// It is not a fence: a relay that has lost it may still publish and remove rows that it has read. That does no harm,
/// because the next relay publishes with the same ids, and only stored rows are removed.
trait Hold: Send {
    /// Rows in order, without those of the given streams. Fails if the hold is lost.
    fn read<'a>(
        &'a mut self,
        but_not: &'a [String],
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>>;

    fn remove<'a>(&'a mut self, positions: &'a [i64]) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    fn refuse<'a>(&'a mut self, position: i64, reason: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Resolves when rows may have been inserted, if the database can tell.
    fn inserted(&mut self) -> BoxFuture<'_, ()>;

    /// Fails if the hold is lost.
    fn keep(&mut self) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// How often it must be read or kept in order not to be lost.
    fn keep_every(&self) -> Duration;

    /// Lets another relay take over at once.
    fn release(self: Box<Self>) -> BoxFuture<'static, ()>;
}
