//! Effect and mark in one transaction, with two workers in every order that we can think of, and many that we
//! cannot.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgPool, SqlitePool};

use super::super::{Begun, Claim, IdempotencyStore, PostgresStore, SqliteStore, StoreError};
use super::{claim, job};
use crate::services_tests as services;

const LONG: Duration = Duration::from_secs(600);
const NO_TIME: Duration = Duration::from_millis(1);

/// A claim that has lapsed by now.
async fn lapsed(store: &dyn IdempotencyStore, key: &str) -> Claim {
    let claim = claim(store.begin(key, NO_TIME).await);
    tokio::time::sleep(Duration::from_millis(20)).await;
    claim
}

async fn postgres(connections: u32) -> Option<(PgPool, PostgresStore)> {
    let pool = services::postgres(connections).await?;
    let store = PostgresStore::with_table(pool.clone(), &services::unique("done")).expect("a name");
    store.create_table().await.expect("a table");
    Some((pool, store))
}

async fn sqlite(connections: u32) -> (services::SqliteFile, SqliteStore) {
    let file = services::sqlite(connections).await;
    let store = SqliteStore::new(file.pool.clone());
    store.create_table().await.expect("a table");
    (file, store)
}

#[tokio::test]
async fn a_mark_comes_and_goes_with_its_transaction() {
    let (file, store) = sqlite(4).await;
    let first = job(Some(claim(store.begin("k", LONG).await)));
    let mut tx = file.pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &first, LONG).await.expect("it is ours");
    assert!(first.info.is_marked());
    assert!(matches!(store.begin("k", LONG).await, Ok(Begun::Busy(_))));
    tx.rollback().await.expect("an end");
    assert!(matches!(store.begin("k", LONG).await, Ok(Begun::Busy(_))));
    let mut tx = file.pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &first.info, LONG).await.expect("it is ours");
    tx.commit().await.expect("an end");
    assert_eq!(store.begin("k", LONG).await.ok(), Some(Begun::Done));
    // A handler that fails after its commit abandons finished work.
    store.abandon(first.info.claim().expect("a claim")).await.expect("nothing to do");
    assert_eq!(store.begin("k", LONG).await.ok(), Some(Begun::Done));
}

#[tokio::test]
async fn without_a_claim_there_is_nothing_to_mark() {
    let (file, store) = sqlite(2).await;
    let lone = job(None);
    let mut tx = file.pool.begin().await.expect("a transaction");
    assert!(matches!(store.mark_in(&mut tx, &lone, LONG).await, Err(StoreError::NoClaim)));
    assert!(!lone.info.is_marked());
}

#[tokio::test]
async fn a_worker_whose_claim_was_taken_over_cannot_mark() {
    let (file, store) = sqlite(4).await;
    let (stale, present) = (lapsed(&store, "k").await, claim(store.begin("k", LONG).await));
    let late = job(Some(stale));
    let mut tx = file.pool.begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
    assert!(matches!(store.mark_in(&mut tx, &late, LONG).await, Err(StoreError::Taken { .. })));
    assert!(!late.info.is_marked());
    drop(tx);
    let mut tx = file.pool.begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
    store.mark_in(&mut tx, &job(Some(present)), LONG).await.expect("it is ours");
    tx.commit().await.expect("an end");
    assert_eq!(store.begin("k", LONG).await.ok(), Some(Begun::Done));
}

/// The stale worker is in its transaction already: no other worker waits for it or takes its work.
#[tokio::test]
async fn a_claim_that_lapses_inside_the_transaction_is_not_taken_over() {
    let Some((pool, store)) = postgres(4).await else { return };
    let first = job(Some(lapsed(&store, "k").await));
    let mut tx = pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &first, LONG).await.expect("nobody took it");
    assert!(matches!(store.begin("k", LONG).await, Ok(Begun::Busy(_))));
    assert_eq!(store.sweep().await.ok(), Some(0));
    tx.commit().await.expect("an end");
    assert_eq!(store.begin("k", LONG).await.ok(), Some(Begun::Done));

    let second = job(Some(lapsed(&store, "l").await));
    let mut tx = pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &second, LONG).await.expect("nobody took it");
    tx.rollback().await.expect("an end");
    claim(store.begin("l", LONG).await);
}

#[tokio::test]
async fn a_worker_whose_row_was_swept_away_cannot_mark_what_another_has_begun() {
    let Some((pool, store)) = postgres(4).await else { return };
    let stale = lapsed(&store, "k").await;
    assert_eq!(store.sweep().await.ok(), Some(1));
    let present = claim(store.begin("k", LONG).await);
    let mut late = pool.begin().await.expect("a transaction");
    assert!(matches!(store.mark_in(&mut late, &job(Some(stale)), LONG).await, Err(StoreError::Taken { .. })));
    late.rollback().await.expect("an end");
    let mut tx = pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &job(Some(present)), LONG).await.expect("it is ours");
    tx.commit().await.expect("an end");
    assert_eq!(store.begin("k", LONG).await.ok(), Some(Begun::Done));
}

/// Both insert: the second waits for the first, and then it depends on how that one ends.
#[tokio::test]
async fn of_two_whose_rows_were_swept_away_the_first_to_commit_has_it() {
    let Some(pool) = services::postgres(6).await else { return };
    let table = services::unique("done");
    let store = PostgresStore::with_table(pool.clone(), &table).expect("a name");
    store.create_table().await.expect("a table");
    for first_commits in [true, false] {
        let key = if first_commits { "commits" } else { "rolls back" };
        let a = lapsed(&store, key).await;
        store.sweep().await.expect("swept");
        let b = lapsed(&store, key).await;
        assert_eq!(store.sweep().await.ok(), Some(1));
        let mut of_a = pool.begin().await.expect("a transaction");
        store.mark_in(&mut of_a, &job(Some(a)), LONG).await.expect("there is no row");
        let second = tokio::spawn({
            let (pool, store) = (pool.clone(), store.clone());
            async move {
                let mut of_b = pool.begin().await.expect("a transaction");
                store.mark_in(&mut of_b, &job(Some(b)), LONG).await?;
                of_b.commit().await.expect("an end");
                Ok::<(), StoreError>(())
            }
        });
        // A third who asks waits as well, and learns how it went.
        let third = tokio::spawn({
            let store = store.clone();
            async move { store.begin(key, LONG).await }
        });
        waiting_for_a_lock(&pool, &table, 2).await;
        if first_commits {
            of_a.commit().await.expect("an end");
            assert!(matches!(second.await.expect("an answer"), Err(StoreError::Taken { .. })));
            assert_eq!(third.await.expect("an answer").ok(), Some(Begun::Done));
        } else {
            of_a.rollback().await.expect("an end");
            let (second, third) = (second.await.expect("an answer"), third.await.expect("an answer"));
            match third.expect("the store answers") {
                Begun::New(_) => assert!(matches!(second, Err(StoreError::Taken { .. }))),
                Begun::Done => assert!(second.is_ok()),
                Begun::Busy(_) => panic!("nobody else is there"),
            }
        }
    }
}

/// Until so many sessions wait for locks on this table's rows.
async fn waiting_for_a_lock(pool: &PgPool, table: &str, sessions: i64) {
    let waiting = "SELECT count(*) FROM pg_locks AS l, pg_stat_activity AS a
        WHERE NOT l.granted AND l.pid = a.pid AND a.query LIKE '%' || $1 || '%'";
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let count: i64 = sqlx::query_scalar(waiting).bind(table).fetch_one(pool).await.expect("a number");
            if count >= sessions {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    seen.await.expect("they wait for the one that is first");
}

/// With this isolation level a transaction sees an old snapshot, and must not mark the work by it.
#[tokio::test]
async fn a_transaction_that_sees_the_past_cannot_mark_what_another_took() {
    let Some((pool, store)) = postgres(4).await else { return };
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let stale = lapsed(&store, isolation).await;
        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {isolation}"));
        let mut tx = pool.begin_with(begin).await.expect("a transaction");
        sqlx::query("SELECT count(*) FROM pg_class").execute(&mut *tx).await.expect("the past is fixed");
        let present = claim(store.begin(isolation, LONG).await);
        assert!(store.mark_in(&mut tx, &job(Some(stale)), LONG).await.is_err(), "{isolation}");
        drop(tx);
        store.finish(&present, LONG).await.expect("it is ours");
    }
}

/// A worker renews all its claims together; one whose handler holds its row must not hold up the rest.
#[tokio::test]
async fn renewal_does_not_wait_for_a_handler_in_its_transaction() {
    let Some((pool, store)) = postgres(4).await else { return };
    let marked = claim(store.begin("in its transaction", LONG).await);
    let other = claim(store.begin("other", LONG / 4).await);
    let mut tx = pool.begin().await.expect("a transaction");
    store.mark_in(&mut tx, &job(Some(marked.clone())), LONG).await.expect("it is ours");
    let renewal = [marked, other];
    let renewed = tokio::time::timeout(Duration::from_secs(30), store.renew(&renewal, LONG));
    renewed.await.expect("it does not wait").expect("the store answers");
    match store.begin("other", LONG).await {
        Ok(Begun::Busy(left)) => assert!(left > LONG / 2, "{left:?}"),
        other => panic!("not busy: {other:?}"),
    }
    tx.commit().await.expect("an end");
    assert_eq!(store.begin("in its transaction", LONG).await.ok(), Some(Begun::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn any_number_of_workers_may_make_the_table() {
    let (file, store) = (services::sqlite(8).await, services::unique("done"));
    let makers = (0..8).map(|_| {
        let store = SqliteStore::with_table(file.pool.clone(), &store).expect("a name");
        tokio::spawn(async move { store.create_table().await })
    });
    for maker in makers.collect::<Vec<_>>() {
        maker.await.expect("an answer").expect("a table");
    }
    let Some(pool) = services::postgres(16).await else { return };
    for _ in 0..5 {
        let table = services::unique("done");
        let makers = (0..16).map(|_| {
            let store = PostgresStore::with_table(pool.clone(), &table).expect("a name");
            tokio::spawn(async move { store.create_table().await })
        });
        for maker in makers.collect::<Vec<_>>() {
            maker.await.expect("an answer").expect("a table");
        }
    }
}

#[test]
fn a_name_that_is_none_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let pool = SqlitePool::connect_lazy("sqlite::memory:").expect("an address");
    let refused = SqliteStore::with_table(pool, "done; DROP TABLE orders");
    assert!(matches!(refused, Err(StoreError::BadTableName { name }) if name == "done; DROP TABLE orders"));
}

/// A program that begins and forgets leaves rows behind, and the store removes them on the way.
#[tokio::test]
async fn expired_rows_do_not_pile_up() {
    let (file, store) = sqlite(4).await;
    for n in 0..600 {
        claim(store.begin(&n.to_string(), NO_TIME).await);
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM forebay_done")
        .fetch_one(&file.pool)
        .await
        .expect("a number");
    assert!(left < 600, "{left}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.sweep().await.ok(), Some(left.unsigned_abs()));

    let Some((_, store)) = postgres(4).await else { return };
    for n in 0..600 {
        claim(store.begin(&n.to_string(), NO_TIME).await);
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let left = store.sweep().await.expect("swept");
    assert!(left < 600, "{left}");
}

const STORM_KEYS: u64 = 20;
const STORM_WORKERS: u64 = 6;

/// Numbers that look random and are the same in every run, though what they meet is not.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Workers whose claims lapse nearly at once, who dawdle, die and come back, while rows are swept away under them.
/// Every effect must be there once in the end.
macro_rules! storm {
    ($store:expr, $pool:expr, $effects:expr, $begin:expr) => {{
        let insert = sqlx::AssertSqlSafe(Arc::<str>::from(format!("INSERT INTO {} VALUES ($1)", $effects)));
        let workers: Vec<_> = (1..=STORM_WORKERS)
            .map(|number| {
                let (store, pool, insert) = ($store.clone(), $pool.clone(), Arc::clone(&insert.0));
                tokio::spawn(async move {
                    let mut dice = Dice(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                    let mut done = 0;
                    while done < STORM_KEYS {
                        done = 0;
                        for key in 0..STORM_KEYS {
                            let lasts = Duration::from_micros(1 + dice.below(3_000));
                            let claim = match store.begin(&key.to_string(), lasts).await {
                                Ok(Begun::New(claim)) => claim,
                                Ok(Begun::Done) => {
                                    done += 1;
                                    continue;
                                }
                                Ok(Begun::Busy(_)) | Err(StoreError::Failed(_)) => continue,
                                Err(other) => panic!("{other}"),
                            };
                            let dawdle = |most| Duration::from_micros(most);
                            tokio::time::sleep(dawdle(dice.below(6_000))).await;
                            if dice.below(4) == 0 {
                                store.sweep().await.ok();
                            }
                            let job = job(Some(claim.clone()));
                            let Ok(mut tx) = pool.begin_with($begin).await else { continue };
                            let insert = sqlx::AssertSqlSafe(Arc::clone(&insert));
                            let effect_first = dice.below(2) == 0;
                            let effect = sqlx::query(insert).bind(i64::try_from(key).expect("small"));
                            if effect_first {
                                if effect.execute(&mut *tx).await.is_err()
                                    || store.mark_in(&mut tx, &job, LONG).await.is_err()
                                {
                                    continue;
                                }
                            } else {
                                if store.mark_in(&mut tx, &job, LONG).await.is_err()
                                    || effect.execute(&mut *tx).await.is_err()
                                {
                                    continue;
                                }
                            }
                            tokio::time::sleep(dawdle(dice.below(3_000))).await;
                            match dice.below(4) {
                                // It dies here.
                                0 => drop(tx),
                                // It does not know how it went, and gives up.
                                1 => {
                                    let committed = tx.commit().await;
                                    store.abandon(&claim).await.ok();
                                    drop(committed);
                                }
                                _ => drop(tx.commit().await),
                            }
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            tokio::time::timeout(Duration::from_secs(120), worker).await.expect("an end").expect("no panic");
        }
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*), count(DISTINCT key) FROM {}", $effects));
        let (effects, keys): (i64, i64) = sqlx::query_as(count).fetch_one(&$pool).await.expect("numbers");
        assert_eq!((effects, keys), (STORM_KEYS.cast_signed(), STORM_KEYS.cast_signed()), "effects and keys");
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_effect_is_there_once_in_postgres() {
    let Some((pool, store)) = postgres(16).await else { return };
    let effects = services::unique("effects");
    let table = sqlx::AssertSqlSafe(format!("CREATE TABLE {effects} (key bigint)"));
    sqlx::query(table).execute(&pool).await.expect("a table");
    storm!(store, pool, effects, "BEGIN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_effect_is_there_once_in_sqlite() {
    let (file, store) = sqlite(8).await;
    sqlx::query("CREATE TABLE effects (key bigint)").execute(&file.pool).await.expect("a table");
    storm!(store, file.pool, "effects", "BEGIN IMMEDIATE");
}
