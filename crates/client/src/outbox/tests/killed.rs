//! A relay that is killed at any point, again and again, while programs insert.

use std::time::Duration;

use super::*;

const KEYS: u64 = 6;
const EACH: u64 = 60;
const KILLS: u64 = 30;

/// Several programs insert, each in the order of its own key; now and then a transaction is rolled back. Relays come
/// and are killed. Everything that was committed must be in the stream once, and in order by key.
macro_rules! kills {
    ($pool:expr, $outbox:expr) => {{
        let server = server().await;
        let programs: Vec<_> = (0..KEYS)
            .map(|key| {
                let (pool, outbox) = ($pool.clone(), $outbox.clone());
                tokio::spawn(async move {
                    for number in 0..EACH {
                        let mut tx = pool.begin().await.expect("a transaction");
                        outbox.insert(&mut tx, "work", numbered(key, number)).await.expect("a row");
                        tokio::time::sleep(Duration::from_millis(1 + (key + number) % 4)).await;
                        if (key * 31 + number * 17) % 5 == 0 {
                            tx.rollback().await.expect("an end");
                            tx = pool.begin().await.expect("a transaction");
                            outbox.insert(&mut tx, "work", numbered(key, number)).await.expect("a row");
                        }
                        tx.commit().await.expect("an end");
                    }
                })
            })
            .collect();
        let relay =
            |client: &Client| $outbox.relay(client.clone()).poll_every(Duration::from_millis(2)).batch(7);
        for kill in 0..KILLS {
            // Each has a connection of its own, as one in another process would.
            let client = Client::connect(server.client.server()).await.expect("the server answers");
            let running = tokio::spawn(relay(&client).run());
            tokio::time::sleep(Duration::from_micros(kill * 7_919 % 40_000)).await;
            running.abort();
            let _ = running.await;
        }
        for program in programs {
            program.await.expect("it inserts everything");
        }
        let running = tokio::spawn(relay(&server.client).run());
        let all = usize::try_from(KEYS * EACH).expect("a small number");
        let messages = arrived(&server.client, "work", all).await;
        check_exact(&messages, KEYS, EACH);
        running.abort();
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_published_once_however_often_the_relay_is_killed_in_postgres() {
    let Some((pool, outbox, _)) = postgres().await else { return };
    kills!(pool, outbox);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_published_once_however_often_the_relay_is_killed_in_sqlite() {
    let (file, outbox) = sqlite().await;
    // A short lease, so that the next relay need not wait for long, and two may well work at once.
    let outbox = outbox.lease(Duration::from_millis(25));
    kills!(file.pool, outbox);
}

/// The database goes away and comes back, and so does the hold on the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_loses_its_connection_goes_on() {
    let Some((pool, outbox, table)) = postgres().await else { return };
    let server = server().await;
    let relay = outbox.relay(server.client.clone()).poll_every(Duration::from_millis(5)).batch(5);
    let running = tokio::spawn(relay.run());
    for number in 0..60 {
        let mut tx = pool.begin().await.expect("a transaction");
        outbox.insert(&mut tx, "work", numbered(0, number)).await.expect("a row");
        tx.commit().await.expect("an end");
        if number % 20 == 10 {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND query LIKE '%age_ms%' || $1 || '%'";
            sqlx::query(cut).bind(&table).execute(&pool).await.expect("connections are cut");
        }
    }
    check_exact(&arrived(&server.client, "work", 60).await, 1, 60);
    running.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_waits_for_a_server_that_is_away() {
    let (file, outbox) = sqlite().await;
    let mut server = server().await;
    let relay = outbox.relay(server.client.clone()).poll_every(Duration::from_millis(5)).batch(5);
    let figures = relay.stats();
    let running = tokio::spawn(relay.run());
    for round in 0..3 {
        let failures = figures.failures();
        server.leave().await;
        let mut tx = file.pool.begin().await.expect("a transaction");
        for number in 0..20 {
            outbox.insert(&mut tx, "work", numbered(0, round * 20 + number)).await.expect("a row");
        }
        tx.commit().await.expect("an end");
        let patience = tokio::time::timeout(Duration::from_secs(60), async {
            while figures.failures() < failures + 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        patience.await.expect("it cannot publish");
        server.come_back().await;
        arrived(&server.client, "work", usize::try_from(20 * (round + 1)).expect("a small number")).await;
    }
    check_exact(&stored(&server.client, "work").await, 1, 60);
    running.abort();
}
