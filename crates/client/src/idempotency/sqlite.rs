//! Marks in SQLite.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{Sqlite, SqlitePool, Transaction};

use super::{Begun, BoxFuture, Claim, DURATION_MAX, IdempotencyStore, StoreError, new_token};
use crate::job::JobInfo;
use crate::message::millis;
use crate::sql::{SQLITE_NOW_MS as NOW, Statement, TableName};

const TABLE: &str = "forebay_done";
/// After this many calls of `begin` the store removes expired rows.
const SWEEP_EVERY: u64 = 256;
/// Rows that one statement removes. More than are added between two looks.
const SWEPT_AT_ONCE: i64 = 1_000;
/// Looks at a row that comes and goes while we look at it.
const LOOKS: u32 = 3;
/// How long to stay away from work that changes hands as we look.
const HELD: Duration = Duration::from_secs(1);

const CLAIMED: i64 = 0;
const DONE: i64 = 1;

/// Marks in SQLite, in a table of their own. Cheap to clone.
///
/// SQLite has one writer at a time: a handler's open transaction holds up all workers that begin or end work, for
/// as long as the pool's `busy_timeout` says, and then their attempts fail. Keep transactions short, begin those
/// that write with `BEGIN IMMEDIATE`, and use the journal mode `Wal`, in which readers do not block writers.
///
/// Expired rows are removed on the way, a thousand at a time; [`sweep`](SqliteStore::sweep) removes all of them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use forebay_client::idempotency::SqliteStore;
/// use sqlx::SqlitePool;
///
/// # let url = "sqlite::memory:";
/// let pool = SqlitePool::connect(url).await?;
/// let store = SqliteStore::new(pool);
/// store.create_table().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteStore(Arc<Inner>);

struct Inner {
    pool: SqlitePool,
    table: TableName,
    look: Statement,
    begin: Statement,
    renew: Statement,
    mark: Statement,
    abandon: Statement,
    sweep: Statement,
    begins: AtomicU64,
}

impl SqliteStore {
    /// A store in the table `forebay_done`.
    pub fn new(pool: SqlitePool) -> SqliteStore {
        SqliteStore::in_table(pool, TableName::parse(TABLE).expect("a name that fits"))
    }

    /// A store in a table of another name, in an attached database if the name has that before a dot. Marks in
    /// different tables know nothing of each other.
    pub fn with_table(pool: SqlitePool, table: &str) -> Result<SqliteStore, StoreError> {
        let name =
            TableName::parse(table).ok_or_else(|| StoreError::BadTableName { name: table.to_owned() })?;
        Ok(SqliteStore::in_table(pool, name))
    }

    fn in_table(pool: SqlitePool, name: TableName) -> SqliteStore {
        let table = name.quoted();
        // A read first spares workers that find the work done or claimed from waiting for the writer.
        let look = format!("SELECT state, expires - {NOW} FROM {table} WHERE key = ?1");
        let begin = format!(
            "INSERT INTO {table} AS held (key, token, state, expires) VALUES (?1, ?2, {CLAIMED}, {NOW} + ?3)
            ON CONFLICT (key) DO UPDATE SET token = excluded.token, state = {CLAIMED}, expires = excluded.expires
            WHERE held.expires <= {NOW}"
        );
        let renew = format!(
            "UPDATE {table} SET expires = {NOW} + ?3 WHERE key = ?1 AND token = ?2 AND state = {CLAIMED}"
        );
        let mark = format!(
            "INSERT INTO {table} AS held (key, token, state, expires) VALUES (?1, ?2, {DONE}, {NOW} + ?3)
            ON CONFLICT (key) DO UPDATE SET state = {DONE}, expires = excluded.expires
            WHERE held.token = excluded.token"
        );
        let abandon = format!("DELETE FROM {table} WHERE key = ?1 AND token = ?2 AND state = {CLAIMED}");
        let sweep = format!(
            "DELETE FROM {table} WHERE key IN (
                SELECT key FROM {table} WHERE expires <= {NOW} ORDER BY expires LIMIT ?1
            )"
        );
        SqliteStore(Arc::new(Inner {
            pool,
            table: name,
            look: Statement::new(look),
            begin: Statement::new(begin),
            renew: Statement::new(renew),
            mark: Statement::new(mark),
            abandon: Statement::new(abandon),
            sweep: Statement::new(sweep),
            // Not all workers at once, and one that is started again and again gets there too.
            begins: AtomicU64::new(new_token().unwrap_or(0) % SWEEP_EVERY),
        }))
    }

    /// The statements that create the table, for services that keep all their tables in migrations. They do
    /// nothing if the table exists. Times are in milliseconds since 1970.
    pub fn table_sql(&self) -> String {
        let Inner { table, .. } = &*self.0;
        let (name, index, local) = (table.quoted(), table.beside("_expires"), table.local(""));
        format!(
            "CREATE TABLE IF NOT EXISTS {name} (
    key TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    state INTEGER NOT NULL,
    expires INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {index} ON {local} (expires);
"
        )
    }

    /// Makes the table unless it is there. Any number of workers may do so at once.
    pub async fn create_table(&self) -> Result<(), StoreError> {
        crate::sql::create_in_sqlite(&self.0.pool, self.table_sql()).await.map_err(StoreError::failed)
    }

    /// Writes the mark of this job in the handler's own transaction, to be kept for this long. What the handler
    /// writes in that transaction and the mark are then committed both or not at all, and by one worker only.
    ///
    /// Fails with [`StoreError::Taken`] if the work has gone to another meanwhile; let the transaction go then, and
    /// return the error. If it was rolled back to a savepoint, the mark is gone, and the worker does not write it
    /// again. The worker must have this very store, or another on the same table.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebay_client::{Fault, Job};
    /// use forebay_client::idempotency::SqliteStore;
    /// use sqlx::SqlitePool;
    ///
    /// # struct Order { sku: String, count: i32 }
    /// #[derive(Clone)]
    /// struct Shop {
    ///     pool: SqlitePool,
    ///     done: SqliteStore,
    /// }
    ///
    /// async fn ship(shop: Shop, job: Job<Order>) -> Result<(), Fault> {
    ///     let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await?;
    ///     sqlx::query("UPDATE stock SET count = count - ?1 WHERE sku = ?2")
    ///         .bind(job.count)
    ///         .bind(&job.sku)
    ///         .execute(&mut *tx)
    ///         .await?;
    ///     shop.done.mark_in(&mut tx, &job, Duration::from_secs(7 * 24 * 60 * 60)).await?;
    ///     tx.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn mark_in(
        &self,
        tx: &mut Transaction<'_, Sqlite>,
        job: &(impl AsRef<JobInfo> + Sync),
        keep: Duration,
    ) -> Result<(), StoreError> {
        let info = job.as_ref();
        let claim = info.claim().ok_or(StoreError::NoClaim)?;
        self.mark(&mut **tx, claim, keep).await?;
        info.set_marked();
        Ok(())
    }

    /// Removes every mark and claim that has expired, and says how many those were.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        let mut swept = 0;
        loop {
            let piece = self.sweep_piece().await?;
            swept += piece;
            if piece < SWEPT_AT_ONCE.unsigned_abs() {
                return Ok(swept);
            }
        }
    }

    async fn sweep_piece(&self) -> Result<u64, StoreError> {
        let Inner { pool, sweep, .. } = &*self.0;
        let done = sqlx::query(sweep.sql()).bind(SWEPT_AT_ONCE).execute(pool).await;
        Ok(done.map_err(StoreError::failed)?.rows_affected())
    }

    async fn claim(&self, key: &str, lasts: Duration) -> Result<Begun, StoreError> {
        let Inner { pool, look, begin, .. } = &*self.0;
        let claim = Claim::new(key, new_token()?);
        for _ in 0..LOOKS {
            let row: Option<(i64, i64)> = sqlx::query_as(look.sql())
                .bind(key)
                .fetch_optional(pool)
                .await
                .map_err(StoreError::failed)?;
            match row {
                Some((DONE, left)) if left > 0 => return Ok(Begun::Done),
                Some((_, left)) if left > 0 => {
                    return Ok(Begun::Busy(Duration::from_millis(left.unsigned_abs())));
                }
                Some(_) | None => {}
            }
            let claimed = sqlx::query(begin.sql())
                .bind(key)
                .bind(claim.token.cast_signed())
                .bind(whole_millis(lasts))
                .execute(pool)
                .await
                .map_err(StoreError::failed)?;
            if claimed.rows_affected() == 1 {
                return Ok(Begun::New(claim));
            }
        }
        Ok(Begun::Busy(HELD))
    }

    async fn mark<'c, E>(&self, executor: E, claim: &Claim, keep: Duration) -> Result<(), StoreError>
    where
        E: sqlx::Executor<'c, Database = Sqlite>,
    {
        let marked = sqlx::query(self.0.mark.sql())
            .bind(claim.key())
            .bind(claim.token.cast_signed())
            .bind(whole_millis(keep))
            .execute(executor)
            .await
            .map_err(StoreError::failed)?;
        if marked.rows_affected() == 1 { Ok(()) } else { Err(StoreError::taken(claim)) }
    }

    async fn renew_all(&self, claims: &[Claim], lasts: Duration) -> Result<(), sqlx::Error> {
        // One transaction, so that the file is written once.
        let mut tx = self.0.pool.begin_with("BEGIN IMMEDIATE").await?;
        for claim in claims {
            let renewed = sqlx::query(self.0.renew.sql())
                .bind(claim.key())
                .bind(claim.token.cast_signed())
                .bind(whole_millis(lasts));
            renewed.execute(&mut *tx).await?;
        }
        tx.commit().await
    }
}

impl IdempotencyStore for SqliteStore {
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>> {
        Box::pin(async move {
            let begun = self.claim(key, lasts).await?;
            if self.0.begins.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY)
                && let Err(error) = self.sweep_piece().await
            {
                tracing::warn!(%error, "cannot remove expired marks");
            }
            Ok(begun)
        })
    }

    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            if claims.is_empty() {
                return Ok(());
            }
            self.renew_all(claims, lasts).await.map_err(StoreError::failed)
        })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.mark(&self.0.pool, claim, keep))
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let given_up = sqlx::query(self.0.abandon.sql())
                .bind(claim.key())
                .bind(claim.token.cast_signed())
                .execute(&self.0.pool)
                .await;
            given_up.map(|_| ()).map_err(StoreError::failed)
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("table", &self.0.table).finish_non_exhaustive()
    }
}

fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(millis(duration.min(DURATION_MAX))).expect("a hundred years fit").max(1)
}
