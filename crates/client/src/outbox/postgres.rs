//! An outbox in PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::row::{BYTES_AT_ONCE, COLUMNS, Columns, NewRow, Row, signed};
use super::{Hold, OutboxError, RefusedRow, Relay, TABLE, Table};
use crate::client::Client;
use crate::idempotency::BoxFuture;
use crate::message::IntoMessage;
use crate::sql::{Statement, TableName};

/// How often the table is polled if no notification of an insert comes.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Before listening is tried again. The table is looked at meanwhile all the same.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// An outbox in PostgreSQL. Cheap to clone.
///
/// An insert also notifies the relay, in the same transaction, so that it publishes as soon as there is something.
/// PostgreSQL commits transactions that notify one after the other; where thousands a second are too few, see
/// [`without_notify`](PostgresOutbox::without_notify).
#[derive(Clone)]
pub struct PostgresOutbox(Arc<Inner>);

struct Inner {
    pool: PgPool,
    table: TableName,
    name: String,
    notifies: bool,
    insert: Statement,
    lock: Statement,
    read: Statement,
    remove: Statement,
    refuse: Statement,
    refused: Statement,
    retry: Statement,
    discard: Statement,
}

impl PostgresOutbox {
    /// An outbox in the table `forebay_outbox`.
    pub fn new(pool: PgPool) -> PostgresOutbox {
        PostgresOutbox::in_table(pool, TableName::parse(TABLE).expect("a name that fits"), true)
    }

    /// An outbox in a table of another name, in another schema if the name has one before a dot.
    pub fn with_table(pool: PgPool, table: &str) -> Result<PostgresOutbox, OutboxError> {
        let name =
            TableName::parse(table).ok_or_else(|| OutboxError::BadTableName { name: table.to_owned() })?;
        Ok(PostgresOutbox::in_table(pool, name, true))
    }

    /// Inserts do not notify the relay, which then polls.
    #[must_use]
    pub fn without_notify(&self) -> PostgresOutbox {
        PostgresOutbox::in_table(self.0.pool.clone(), self.0.table.clone(), false)
    }

    fn in_table(pool: PgPool, table: TableName, notifies: bool) -> PostgresOutbox {
        let name = table.quoted();
        let values = "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11";
        let insert = if notifies {
            format!(
                "WITH inserted AS (INSERT INTO {name} ({COLUMNS}) VALUES ({values}) RETURNING 1)
                SELECT pg_notify($12, '') FROM inserted"
            )
        } else {
            format!("INSERT INTO {name} ({COLUMNS}) VALUES ({values})")
        };
        // Rows of one read are seen as of one moment, so a row is never read before one that was committed earlier.
        // Bodies are added up in order, and the first row goes whatever its size.
        let read = format!(
            "SELECT position, {COLUMNS}, age_ms FROM (
                SELECT *, sum(octet_length(body)) OVER (ORDER BY position) AS bytes,
                    row_number() OVER (ORDER BY position) AS place,
                    (extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint AS age_ms
                FROM (
                    SELECT * FROM {name} WHERE refused IS NULL AND stream <> ALL($1)
                    ORDER BY position LIMIT $2
                ) AS next
            ) AS summed WHERE bytes <= {BYTES_AT_ONCE} OR place = 1 ORDER BY position"
        );
        let lock = format!(
            "SELECT pg_try_advisory_lock(hashtextextended('forebay outbox ' || '{name}'::regclass::oid, 0))"
        );
        let statement = |text: String| Statement::new(text);
        PostgresOutbox(Arc::new(Inner {
            pool,
            notifies,
            insert: statement(insert),
            lock: statement(lock),
            read: statement(read),
            remove: statement(format!("DELETE FROM {name} WHERE position = ANY($1)")),
            refuse: statement(format!("UPDATE {name} SET refused = $2 WHERE position = $1")),
            refused: statement(format!(
                "SELECT position, id, stream, refused FROM {name}
                WHERE refused IS NOT NULL AND position > $1 ORDER BY position LIMIT $2"
            )),
            retry: statement(format!(
                "UPDATE {name} SET refused = NULL WHERE position = $1 AND refused IS NOT NULL"
            )),
            discard: statement(format!("DELETE FROM {name} WHERE position = $1 AND refused IS NOT NULL")),
            table,
            name,
        }))
    }

    /// The SQL that creates the table unless it exists, for migrations.
    pub fn table_sql(&self) -> String {
        let Inner { table, name, .. } = &*self.0;
        let (waiting, refused) = (table.local("_waiting"), table.local("_refused"));
        format!(
            "CREATE TABLE IF NOT EXISTS {name} (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    stream text NOT NULL,
    key text NOT NULL,
    type text NOT NULL,
    schema bigint,
    headers text NOT NULL,
    priority integer NOT NULL,
    delay_ms bigint NOT NULL,
    deliver_at_us bigint NOT NULL,
    ttl_ms bigint NOT NULL,
    body bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused text
);
CREATE INDEX IF NOT EXISTS {waiting} ON {name} (position) WHERE refused IS NULL;
CREATE INDEX IF NOT EXISTS {refused} ON {name} (position) WHERE refused IS NOT NULL;
"
        )
    }

    /// Creates the table unless it exists. Several programs may do so at once.
    pub async fn create_table(&self) -> Result<(), OutboxError> {
        Ok(crate::sql::create_in_postgres(&self.0.pool, &self.0.table, self.table_sql()).await?)
    }

    /// Inserts a message that is published once the transaction is committed, and never if it is not. Answers the
    /// message's id, which is a random one if the message has none.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Message;
    /// use forebay_client::outbox::PostgresOutbox;
    ///
    /// let outbox = PostgresOutbox::new(pool.clone());
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("UPDATE orders SET paid = true WHERE id = 17").execute(&mut *tx).await?;
    /// let id = outbox.insert(&mut tx, "payments", Message::new("17").key("order-17")).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert<'a, M: IntoMessage>(
        &'a self,
        connection: &'a mut PgConnection,
        stream: &'a str,
        message: M,
    ) -> impl Future<Output = Result<String, OutboxError>> + Send + use<'a, M> {
        // The payload need not be one that can go to another thread.
        let row = message.into_message().map_err(OutboxError::from).and_then(|it| NewRow::of(stream, it));
        async move { self.insert_row(connection, stream, row?).await }
    }

    async fn insert_row(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        row: NewRow,
    ) -> Result<String, OutboxError> {
        let message = &row.message;
        let insert = sqlx::query(self.0.insert.sql())
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
            .bind(&message.body[..]);
        let insert = if self.0.notifies { insert.bind(self.channel()) } else { insert };
        insert.execute(connection).await?;
        Ok(row.message.id)
    }

    /// A relay that publishes the rows of the table. While it works it has two connections of its own, beside those of
    /// the pool.
    pub fn relay(&self, client: Client) -> Relay {
        Relay::new(client, Arc::new(self.clone()), POLL_EVERY)
    }

    /// Rows that were refused for good, in order, after this position.
    pub async fn refused(&self, after: i64, most: u32) -> Result<Vec<RefusedRow>, OutboxError> {
        let rows: Vec<(i64, String, String, String)> = sqlx::query_as(self.0.refused.sql())
            .bind(after)
            .bind(i64::from(most))
            .fetch_all(&self.0.pool)
            .await?;
        let row = |(position, id, stream, reason)| RefusedRow { position, id, stream, reason };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Publishes a refused row after all. Returns whether it existed.
    pub async fn retry_refused(&self, position: i64) -> Result<bool, OutboxError> {
        let done = sqlx::query(self.0.retry.sql()).bind(position).execute(&self.0.pool).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Removes a refused row. Returns whether it existed.
    pub async fn discard_refused(&self, position: i64) -> Result<bool, OutboxError> {
        let done = sqlx::query(self.0.discard.sql()).bind(position).execute(&self.0.pool).await?;
        Ok(done.rows_affected() == 1)
    }

    /// The channel on which inserts are notified. It leaves out the schema, since a channel's name may be no
    /// longer than any other name. Two tables that share a channel cost at worst a poll that finds nothing.
    fn channel(&self) -> String {
        self.0.table.local("").replace('"', "")
    }
}

impl Table for PostgresOutbox {
    fn hold(&self) -> BoxFuture<'_, Result<Option<Box<dyn Hold>>, sqlx::Error>> {
        Box::pin(async move {
            // A connection of its own, since the lock is the connection's and goes with it.
            let mut connection = self.0.pool.acquire().await?.detach();
            let is_ours: bool = sqlx::query_scalar(self.0.lock.sql()).fetch_one(&mut connection).await?;
            if !is_ours {
                let _ = connection.close().await;
                return Ok(None);
            }
            let inserted = Arc::new(Notify::new());
            let listener = self.0.notifies.then(|| {
                let told = Arc::clone(&inserted);
                Listener(tokio::spawn(listen(self.0.pool.clone(), self.channel(), told)))
            });
            let hold: Box<dyn Hold> =
                Box::new(PostgresHold { outbox: self.clone(), connection, inserted, _listener: listener });
            Ok(Some(hold))
        })
    }

    fn name(&self) -> &str {
        &self.0.name
    }
}

struct PostgresHold {
    outbox: PostgresOutbox,
    connection: PgConnection,
    inserted: Arc<Notify>,
    _listener: Option<Listener>,
}

impl Hold for PostgresHold {
    fn read<'a>(
        &'a mut self,
        but_not: &'a [String],
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(async move {
            let rows: Vec<Columns> = sqlx::query_as(self.outbox.0.read.sql())
                .bind(but_not)
                .bind(i64::try_from(most).unwrap_or(i64::MAX))
                .fetch_all(&mut self.connection)
                .await?;
            rows.into_iter().map(Row::read).collect()
        })
    }

    fn remove<'a>(&'a mut self, positions: &'a [i64]) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let remove = sqlx::query(self.outbox.0.remove.sql()).bind(positions);
            remove.execute(&mut self.connection).await.map(|_| ())
        })
    }

    fn refuse<'a>(&'a mut self, position: i64, reason: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let refuse = sqlx::query(self.outbox.0.refuse.sql()).bind(position).bind(reason);
            refuse.execute(&mut self.connection).await.map(|_| ())
        })
    }

    fn inserted(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.inserted.notified())
    }

    fn keep(&mut self) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        Box::pin(self.connection.ping())
    }

    fn keep_every(&self) -> Duration {
        Duration::MAX
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The lock goes with the connection.
            let _ = self.connection.close().await;
        })
    }
}

/// A task that ends with its owner.
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Passes on notifications of inserts. Inserts that are missed while there is no connection are found by the
/// relay's next poll.
async fn listen(pool: PgPool, channel: String, inserted: Arc<Notify>) {
    loop {
        let broke: Result<(), sqlx::Error> = async {
            // Not one of the user's connections, which might be all there are.
            let one = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
            let one = one.connect_with(pool.connect_options().as_ref().clone()).await?;
            let mut listener = PgListener::connect_with(&one).await?;
            listener.listen(&channel).await?;
            loop {
                // Something may have been inserted before we listened, or while the connection was gone.
                inserted.notify_one();
                listener.try_recv().await?;
            }
        }
        .await;
        if let Err(error) = broke {
            tracing::debug!(%error, "no notifications of inserts into the outbox for now; the relay polls");
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

impl fmt::Debug for PostgresOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOutbox").field("table", &self.0.table).finish_non_exhaustive()
    }
}
