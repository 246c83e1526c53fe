//! Marks in PostgreSQL.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{PgPool, Postgres, Transaction};

use super::{Begun, BoxFuture, Claim, DURATION_MAX, IdempotencyStore, StoreError, new_token};
use crate::job::JobInfo;
use crate::sql::{Statement, TableName};

const TABLE: &str = "forebay_done";
/// After this many calls of `begin` the store removes expired rows.
const SWEEP_EVERY: u64 = 256;
/// Rows that one statement removes. More than are added between two looks.
const SWEPT_AT_ONCE: i64 = 1_000;
/// Claims that one statement renews.
const RENEWED_AT_ONCE: usize = 1_000;
/// Looks at a row that comes and goes while we look at it.
const LOOKS: u32 = 3;
/// How long to stay away from work whose mark is being written, or that changes hands as we look.
const HELD: Duration = Duration::from_secs(1);
/// An index takes keys up to a third of a page. A longer key is kept as a hash.
const KEY_BYTES_MAX: usize = 1_024;

const CLAIMED: i16 = 0;
const DONE: i16 = 1;

/// Marks in PostgreSQL, in a table of their own. Cheap to clone.
///
/// Whether a claim or a mark has expired is told by the database's clock, so the workers' clocks do not matter.
/// Expired rows are removed on the way, a thousand at a time; [`sweep`](PostgresStore::sweep) removes all of them.
/// Keys are kept as bytes: `convert_from(key, 'UTF8')` shows them.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_client::idempotency::PostgresStore;
/// use sqlx::PgPool;
///
/// let pool = PgPool::connect("postgres://orders@localhost/orders").await?;
/// let store = PostgresStore::new(pool);
/// store.create_table().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore(Arc<Inner>);

struct Inner {
    pool: PgPool,
    table: TableName,
    begin: Statement,
    take_over: Statement,
    renew: Statement,
    mark: Statement,
    abandon: Statement,
    sweep: Statement,
    begins: AtomicU64,
}

impl PostgresStore {
    /// A store in the table `forebay_done`.
    pub fn new(pool: PgPool) -> PostgresStore {
        PostgresStore::in_table(pool, TableName::parse(TABLE).expect("a name that fits"))
    }

    /// A store in a table of another name, in another schema if the name has one before a dot. Marks in different
    /// tables know nothing of each other.
    pub fn with_table(pool: PgPool, table: &str) -> Result<PostgresStore, StoreError> {
        let name =
            TableName::parse(table).ok_or_else(|| StoreError::BadTableName { name: table.to_owned() })?;
        Ok(PostgresStore::in_table(pool, name))
    }

    fn in_table(pool: PgPool, name: TableName) -> PostgresStore {
        let table = name.quoted();
        let until = |lasts: &str| format!("clock_timestamp() + {lasts}::bigint * interval '1 microsecond'");
        // An insert waits for a transaction that holds the row, even if it is to do nothing then, and a handler may
        // be in its transaction for long. So we look first, and see the row as it was before that transaction; we
        // insert only where we see none, and the primary key decides between several who do.
        let begin = format!(
            "WITH seen AS (
                SELECT state, (extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint AS left_us
                FROM {table} WHERE key = $1
            ), new AS (
                INSERT INTO {table} (key, token, state, expires)
                SELECT $1, $2::bigint, {CLAIMED}, {} WHERE NOT EXISTS (SELECT FROM seen)
                ON CONFLICT (key) DO NOTHING RETURNING 1
            )
            SELECT true, 0::smallint, 0::bigint FROM new UNION ALL SELECT false, state, left_us FROM seen",
            until("$3"),
        );
        // A row that is locked is about to become a mark, or another worker's claim: either way it is not ours
        // to take.
        let take_over = format!(
            "UPDATE {table} SET token = $2, state = {CLAIMED}, expires = {}
            WHERE key = (
                SELECT key FROM {table} WHERE key = $1 AND expires <= clock_timestamp() FOR UPDATE SKIP LOCKED
            )",
            until("$3"),
        );
        // A row that its own handler's transaction holds need not be renewed: no other worker can take it
        // meanwhile. To wait for it would hold up the others.
        let renew = format!(
            "UPDATE {table} AS held SET expires = {}
            FROM (
                SELECT d.key FROM {table} AS d
                JOIN unnest($1::bytea[], $2::bigint[]) AS mine (key, token)
                ON d.key = mine.key AND d.token = mine.token
                WHERE d.state = {CLAIMED} FOR UPDATE OF d SKIP LOCKED
            ) AS mine
            WHERE held.key = mine.key",
            until("$3"),
        );
        // The primary key decides between two who find no row; the row's lock between two who find one.
        let mark = format!(
            "INSERT INTO {table} AS held (key, token, state, expires) VALUES ($1, $2, {DONE}, {})
            ON CONFLICT (key) DO UPDATE SET state = {DONE}, expires = excluded.expires
            WHERE held.token = excluded.token",
            until("$3"),
        );
        let abandon = format!("DELETE FROM {table} WHERE key = $1 AND token = $2 AND state = {CLAIMED}");
        let sweep = format!(
            "DELETE FROM {table} WHERE key IN (
                SELECT key FROM {table} WHERE expires <= clock_timestamp()
                ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED
            )"
        );
        PostgresStore(Arc::new(Inner {
            pool,
            table: name,
            begin: Statement::new(begin),
            take_over: Statement::new(take_over),
            renew: Statement::new(renew),
            mark: Statement::new(mark),
            abandon: Statement::new(abandon),
            sweep: Statement::new(sweep),
            // Not all workers at once, and one that is started again and again gets there too.
            begins: AtomicU64::new(new_token().unwrap_or(0) % SWEEP_EVERY),
        }))
    }

    /// The statements that create the table, for services that keep all their tables in migrations. They do
    /// nothing if the table exists.
    pub fn table_sql(&self) -> String {
        let Inner { table, .. } = &*self.0;
        let (name, index) = (table.quoted(), table.local("_expires"));
        format!(
            "CREATE TABLE IF NOT EXISTS {name} (
    key bytea PRIMARY KEY,
    token bigint NOT NULL,
    state smallint NOT NULL,
    expires timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {name} (expires);
"
        )
    }

    /// Makes the table unless it is there. Any number of workers may do so at once.
    pub async fn create_table(&self) -> Result<(), StoreError> {
        crate::sql::create_in_postgres(&self.0.pool, &self.0.table, self.table_sql())
            .await
            .map_err(StoreError::failed)
    }

    /// Writes the mark of this job in the handler's own transaction, to be kept for this long. What the handler
    /// writes in that transaction and the mark are then committed both or not at all, and by one worker only.
    ///
    /// Fails with [`StoreError::Taken`] if the work has gone to another meanwhile; let the transaction go then, and
    /// return the error. It need not be the last thing in the transaction; the earlier, the less is done in vain.
    /// If it was rolled back to a savepoint before, the mark is gone, and the worker does not write it again.
    ///
    /// The worker must have this very store, or another on the same table. Any level of isolation will do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebay_client::{Fault, Job};
    /// use forebay_client::idempotency::PostgresStore;
    /// use sqlx::PgPool;
    ///
    /// # struct Order { sku: String, count: i32 }
    /// #[derive(Clone)]
    /// struct Shop {
    ///     pool: PgPool,
    ///     done: PostgresStore,
    /// }
    ///
    /// async fn ship(shop: Shop, job: Job<Order>) -> Result<(), Fault> {
    ///     let mut tx = shop.pool.begin().await?;
    ///     sqlx::query("UPDATE stock SET count = count - $1 WHERE sku = $2")
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
        tx: &mut Transaction<'_, Postgres>,
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
        let Inner { pool, begin, take_over, .. } = &*self.0;
        let (stored, lasts) = (stored(key), micros(lasts));
        let claim = Claim::new(key, new_token()?);
        for _ in 0..LOOKS {
            // All of the answer is read, since a row may come before the insert is committed.
            let rows: Vec<(bool, i16, i64)> = sqlx::query_as(begin.sql())
                .bind(&*stored)
                .bind(claim.token.cast_signed())
                .bind(lasts)
                .fetch_all(pool)
                .await
                .map_err(StoreError::failed)?;
            match rows.first() {
                Some((true, ..)) => return Ok(Begun::New(claim)),
                Some((false, DONE, left)) if *left > 0 => return Ok(Begun::Done),
                Some((false, _, left)) if *left > 0 => {
                    return Ok(Begun::Busy(Duration::from_micros(left.unsigned_abs())));
                }
                Some((false, ..)) => {
                    let taken = sqlx::query(take_over.sql())
                        .bind(&*stored)
                        .bind(claim.token.cast_signed())
                        .bind(lasts)
                        .execute(pool)
                        .await
                        .map_err(StoreError::failed)?;
                    if taken.rows_affected() == 1 {
                        return Ok(Begun::New(claim));
                    }
                }
                // There was a row when we wanted to insert ours, and not yet when we began to look, or no longer.
                None => {}
            }
        }
        Ok(Begun::Busy(HELD))
    }

    async fn mark<'c, E>(&self, executor: E, claim: &Claim, keep: Duration) -> Result<(), StoreError>
    where
        E: sqlx::Executor<'c, Database = Postgres>,
    {
        let marked = sqlx::query(self.0.mark.sql())
            .bind(&*stored(claim.key()))
            .bind(claim.token.cast_signed())
            .bind(micros(keep))
            .execute(executor)
            .await
            .map_err(StoreError::failed)?;
        if marked.rows_affected() == 1 { Ok(()) } else { Err(StoreError::taken(claim)) }
    }
}

impl IdempotencyStore for PostgresStore {
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
            for piece in claims.chunks(RENEWED_AT_ONCE) {
                let keys: Vec<Vec<u8>> = piece.iter().map(|claim| stored(claim.key()).into_owned()).collect();
                let tokens: Vec<i64> = piece.iter().map(|claim| claim.token.cast_signed()).collect();
                let renewed = sqlx::query(self.0.renew.sql()).bind(keys).bind(tokens).bind(micros(lasts));
                renewed.execute(&self.0.pool).await.map_err(StoreError::failed)?;
            }
            Ok(())
        })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.mark(&self.0.pool, claim, keep))
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let given_up = sqlx::query(self.0.abandon.sql())
                .bind(&*stored(claim.key()))
                .bind(claim.token.cast_signed())
                .execute(&self.0.pool)
                .await;
            given_up.map(|_| ()).map_err(StoreError::failed)
        })
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("table", &self.0.table).finish_non_exhaustive()
    }
}

/// The key as the table has it. Bytes rather than text, which may be in another encoding and has no zeros.
fn stored(key: &str) -> Cow<'_, [u8]> {
    if key.len() <= KEY_BYTES_MAX {
        return Cow::Borrowed(key.as_bytes());
    }
    let hash = blake3::hash(key.as_bytes());
    // The beginning is for people who look at the table.
    let beginning = &key.as_bytes()[..KEY_BYTES_MAX - 2 * blake3::OUT_LEN];
    Cow::Owned([beginning, hash.to_hex().as_bytes()].concat())
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.min(DURATION_MAX).as_micros()).expect("a hundred years fit").max(1)
}
