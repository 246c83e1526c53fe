//! An outbox in SQLite.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{SqliteConnection, SqlitePool};

use super::row::{BYTES_AT_ONCE, COLUMNS, Columns, NewRow, Row, signed, signed_millis};
use super::{Hold, OutboxError, RefusedRow, Relay, TABLE, Table};
use crate::client::Client;
use crate::idempotency::BoxFuture;
use crate::message::IntoMessage;
use crate::sql::{SQLITE_NOW_MS as NOW, Statement, TableName};

/// How often the table is polled. SQLite has no notification of an insert.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long a relay is taken to be alive that says nothing. Every look at the table says something.
const LEASE: Duration = Duration::from_secs(15);

/// An outbox in SQLite. Cheap to clone.
#[derive(Clone)]
pub struct SqliteOutbox {
    inner: Arc<Inner>,
    lease: Duration,
}

struct Inner {
    pool: SqlitePool,
    table: TableName,
    name: String,
    insert: Statement,
    lease: Statement,
    release: Statement,
    read: Statement,
    remove: Statement,
    refuse: Statement,
    refused: Statement,
    retry: Statement,
    discard: Statement,
}

impl SqliteOutbox {
    /// An outbox in the table `forebay_outbox`.
    pub fn new(pool: SqlitePool) -> SqliteOutbox {
        SqliteOutbox::in_table(pool, TableName::parse(TABLE).expect("a name that fits"))
    }

    /// An outbox in a table of another name, in an attached database if the name has that before a dot.
    pub fn with_table(pool: SqlitePool, table: &str) -> Result<SqliteOutbox, OutboxError> {
        let name =
            TableName::parse(table).ok_or_else(|| OutboxError::BadTableName { name: table.to_owned() })?;
        Ok(SqliteOutbox::in_table(pool, name))
    }

    fn in_table(pool: SqlitePool, table: TableName) -> SqliteOutbox {
        let (name, lease) = (table.quoted(), table.beside("_lease"));
        let insert = format!(
            "INSERT INTO {name} ({COLUMNS}, created_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, {NOW})"
        );
        // Bodies are added up in order, and the first row goes whatever its size.
        let read = format!(
            "SELECT position, {COLUMNS}, {NOW} - created_at FROM (
                SELECT *, sum(length(body)) OVER (ORDER BY position) AS bytes,
                    row_number() OVER (ORDER BY position) AS place
                FROM (
                    SELECT * FROM {name}
                    WHERE refused IS NULL AND stream NOT IN (SELECT value FROM json_each(?1))
                    ORDER BY position LIMIT ?2
                )
            ) WHERE bytes <= {BYTES_AT_ONCE} OR place = 1 ORDER BY position"
        );
        let take = format!(
            "INSERT INTO {lease} AS held (only_one, holder, expires) VALUES (1, ?1, {NOW} + ?2)
            ON CONFLICT (only_one) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
            WHERE held.holder = excluded.holder OR held.expires <= {NOW}"
        );
        let statement = |text: String| Statement::new(text);
        let inner = Inner {
            pool,
            insert: statement(insert),
            lease: statement(take),
            release: statement(format!("DELETE FROM {lease} WHERE holder = ?1")),
            read: statement(read),
            remove: statement(format!(
                "DELETE FROM {name} WHERE position IN (SELECT value FROM json_each(?1))"
            )),
            refuse: statement(format!("UPDATE {name} SET refused = ?2 WHERE position = ?1")),
            refused: statement(format!(
                "SELECT position, id, stream, refused FROM {name}
                WHERE refused IS NOT NULL AND position > ?1 ORDER BY position LIMIT ?2"
            )),
            retry: statement(format!(
                "UPDATE {name} SET refused = NULL WHERE position = ?1 AND refused IS NOT NULL"
            )),
            discard: statement(format!("DELETE FROM {name} WHERE position = ?1 AND refused IS NOT NULL")),
            table,
            name,
        };
        SqliteOutbox { inner: Arc::new(inner), lease: LEASE }
    }

    /// Sets how long a silent relay counts as alive. The default is fifteen seconds. It must be the same for all
    /// relays of a table, and longer than the longest transaction that they may have to wait for.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> SqliteOutbox {
        self.lease = lease.max(Duration::from_millis(20));
        self
    }

    /// The SQL that creates the tables unless they exist, for migrations.
    pub fn table_sql(&self) -> String {
        let Inner { table, name, .. } = &*self.inner;
        let (waiting, refused) = (table.beside("_waiting"), table.beside("_refused"));
        let (local, lease) = (table.local(""), table.beside("_lease"));
        format!(
            "CREATE TABLE IF NOT EXISTS {name} (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    stream TEXT NOT NULL,
    key TEXT NOT NULL,
    type TEXT NOT NULL,
    schema INTEGER,
    headers TEXT NOT NULL,
    priority INTEGER NOT NULL,
    delay_ms INTEGER NOT NULL,
    deliver_at_us INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    refused TEXT
);
CREATE INDEX IF NOT EXISTS {waiting} ON {local} (position) WHERE refused IS NULL;
CREATE INDEX IF NOT EXISTS {refused} ON {local} (position) WHERE refused IS NOT NULL;
CREATE TABLE IF NOT EXISTS {lease} (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    holder TEXT NOT NULL,
    expires INTEGER NOT NULL
);
"
        )
    }

    /// Creates the tables unless they exist. Several programs may do so at once.
    pub async fn create_table(&self) -> Result<(), OutboxError> {
        Ok(crate::sql::create_in_sqlite(&self.inner.pool, self.table_sql()).await?)
    }

    /// Inserts a message that is published once the transaction is committed, and never if it is not. Answers the
    /// message's id, which is a random one if the message has none.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Message;
    /// use forebay_client::outbox::SqliteOutbox;
    ///
    /// let outbox = SqliteOutbox::new(pool.clone());
    /// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    /// sqlx::query("UPDATE orders SET paid = true WHERE id = 17").execute(&mut *tx).await?;
    /// let id = outbox.insert(&mut tx, "payments", Message::new("17").key("order-17")).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert<'a, M: IntoMessage>(
        &'a self,
        connection: &'a mut SqliteConnection,
        stream: &'a str,
        message: M,
    ) -> impl Future<Output = Result<String, OutboxError>> + Send + use<'a, M> {
        // The payload need not be one that can go to another thread.
        let row = message.into_message().map_err(OutboxError::from).and_then(|it| NewRow::of(stream, it));
        async move { self.insert_row(connection, stream, row?).await }
    }

    async fn insert_row(
        &self,
        connection: &mut SqliteConnection,
        stream: &str,
        row: NewRow,
    ) -> Result<String, OutboxError> {
        let message = &row.message;
        sqlx::query(self.inner.insert.sql())
            .bind(&message.id)
            .bind(stream)
            .bind(&message.key)
            .bind(&message.r#type)
            .bind(row.schema())
            .bind(&row.headers)
            .bind(row.priority())
            .bind(signed(message.delay_ms))
            .bind(signed(message.deliver_at_us))
            .bind(signed(message.ttl_ms))
            .bind(&message.body[..])
            .execute(connection)
            .await?;
        Ok(row.message.id)
    }

    /// A relay that publishes the rows of the table. When it dies, another one takes over after its
    /// [`lease`](SqliteOutbox::lease).
    pub fn relay(&self, client: Client) -> Relay {
        Relay::new(client, Arc::new(self.clone()), POLL_EVERY)
    }

    /// Rows that were refused for good, in order, after this position.
    pub async fn refused(&self, after: i64, most: u32) -> Result<Vec<RefusedRow>, OutboxError> {
        let rows: Vec<(i64, String, String, String)> = sqlx::query_as(self.inner.refused.sql())
            .bind(after)
            .bind(i64::from(most))
            .fetch_all(&self.inner.pool)
            .await?;
        let row = |(position, id, stream, reason)| RefusedRow { position, id, stream, reason };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Publishes a refused row after all. Returns whether it existed.
    pub async fn retry_refused(&self, position: i64) -> Result<bool, OutboxError> {
        let done = sqlx::query(self.inner.retry.sql()).bind(position).execute(&self.inner.pool).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Removes a refused row. Returns whether it existed.
    pub async fn discard_refused(&self, position: i64) -> Result<bool, OutboxError> {
        let done = sqlx::query(self.inner.discard.sql()).bind(position).execute(&self.inner.pool).await?;
        Ok(done.rows_affected() == 1)
    }
}

impl Table for SqliteOutbox {
    fn hold(&self) -> BoxFuture<'_, Result<Option<Box<dyn Hold>>, sqlx::Error>> {
        Box::pin(async move {
            let holder = super::row::new_id().map_err(|error| match error {
                OutboxError::Failed(error) => error,
                other => sqlx::Error::Configuration(Box::new(other)),
            })?;
            let mut hold = SqliteHold { outbox: self.clone(), holder };
            if !hold.extend().await? {
                return Ok(None);
            }
            let hold: Box<dyn Hold> = Box::new(hold);
            Ok(Some(hold))
        })
    }

    fn name(&self) -> &str {
        &self.inner.name
    }
}

struct SqliteHold {
    outbox: SqliteOutbox,
    holder: String,
}

impl SqliteHold {
    /// Says whether the lease is ours, for a while from now.
    async fn extend(&mut self) -> Result<bool, sqlx::Error> {
        let taken = sqlx::query(self.outbox.inner.lease.sql())
            .bind(&self.holder)
            .bind(signed_millis(self.outbox.lease))
            .execute(&self.outbox.inner.pool)
            .await?;
        Ok(taken.rows_affected() == 1)
    }
}

impl Hold for SqliteHold {
    fn read<'a>(
        &'a mut self,
        but_not: &'a [String],
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(async move {
            self.keep().await?;
            let but_not =
                serde_json::to_string(but_not).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
            let rows: Vec<Columns> = sqlx::query_as(self.outbox.inner.read.sql())
                .bind(but_not)
                .bind(i64::try_from(most).unwrap_or(i64::MAX))
                .fetch_all(&self.outbox.inner.pool)
                .await?;
            rows.into_iter().map(Row::read).collect()
        })
    }

    fn remove<'a>(&'a mut self, positions: &'a [i64]) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let list =
                serde_json::to_string(positions).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
            let remove = sqlx::query(self.outbox.inner.remove.sql()).bind(list);
            remove.execute(&self.outbox.inner.pool).await.map(|_| ())
        })
    }

    fn refuse<'a>(&'a mut self, position: i64, reason: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let refuse = sqlx::query(self.outbox.inner.refuse.sql()).bind(position).bind(reason);
            refuse.execute(&self.outbox.inner.pool).await.map(|_| ())
        })
    }

    fn inserted(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn keep(&mut self) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        Box::pin(async move {
            if self.extend().await? {
                return Ok(());
            }
            Err(sqlx::Error::Protocol("another relay has taken over".to_owned()))
        })
    }

    fn keep_every(&self) -> Duration {
        self.outbox.lease / 4
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let release = sqlx::query(self.outbox.inner.release.sql()).bind(&self.holder);
            if let Err(error) = release.execute(&self.outbox.inner.pool).await {
                tracing::warn!(%error, "another relay can take over only when the lease has run out");
            }
        })
    }
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOutbox").field("table", &self.inner.table).finish_non_exhaustive()
    }
}
