//! The conformance suite, run against every store.

use std::sync::Arc;

use super::super::MemoryStore;
use super::super::conformance::check;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use crate::services_tests as services;

#[tokio::test]
async fn memory_keeps_the_contract() {
    check(Arc::new(MemoryStore::new())).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_keeps_the_contract() {
    let file = services::sqlite(8).await;
    let store = super::super::SqliteStore::new(file.pool.clone());
    store.create_table().await.expect("a table");
    check(Arc::new(store)).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_keeps_the_contract() {
    let Some(pool) = services::postgres(16).await else { return };
    let store = super::super::PostgresStore::with_table(pool, &services::unique("done")).expect("a name");
    store.create_table().await.expect("a table");
    check(Arc::new(store)).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_keeps_the_contract() {
    let Some(connection) = services::redis().await else { return };
    let store = super::super::RedisStore::new(connection).with_prefix(&services::unique("done"));
    check(Arc::new(store)).await;
}
