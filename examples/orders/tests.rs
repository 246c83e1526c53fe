//! Several workers, failures on the way, and one worker that is lost in the middle.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_test::TestServer;

use super::*;

const ORDERS: u32 = 40;

/// A database of its own for each test, in a file: one in memory is gone when its connection is dropped.
async fn shop() -> Shop {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("forebay-orders-{}-{number}.db", std::process::id());
    let file = SqliteConnectOptions::new().filename(std::env::temp_dir().join(name)).create_if_missing(true);
    let file = file.journal_mode(SqliteJournalMode::Wal);
    Shop::open(SqlitePool::connect_with(file).await.expect("a database")).await.expect("tables")
}

#[tokio::test]
async fn every_step_is_done_once_and_in_order_by_workers_that_fail_and_go() {
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    create_group(&client).await.expect("there was none");
    let shop = Shop { failures: |job| (job.info.seq() % 3) as u32, ..shop().await };
    let first = worker(client.clone(), shop.clone()).start().await.expect("it joins");
    let second = worker(client.clone(), shop.clone()).start().await.expect("it joins");
    place(&client, ORDERS).await.expect("they are stored");
    // In the middle of the work; whatever it holds is lost with it.
    while first.stats().acked < 10 {
        server.advance(Duration::from_millis(20)).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(first);
    let third = worker(client.clone(), shop.clone()).start().await.expect("it joins");

    let group = server.until_settled(STREAM, GROUP).await.expect("all is done");
    assert_eq!(group.parked, 0);
    assert_eq!(report(&shop.db).await.expect("it is there"), (ORDERS.into(), 3 * i64::from(ORDERS)));
    let (second, third) = (second.shutdown().await, third.shutdown().await);
    assert!(second.expect("it leaves well").retried + third.expect("it leaves well").retried > 0);
}

#[tokio::test]
async fn placing_the_same_orders_again_stores_nothing() {
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    create_group(&client).await.expect("there was none");
    place(&client, 5).await.expect("they are stored");
    place(&client, 5).await.expect("they are stored");
    assert_eq!(client.clone().group(STREAM, GROUP).await.expect("it is there").lag, 15);
}

#[tokio::test]
async fn a_step_that_comes_too_early_is_set_aside_with_the_reason() {
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    create_group(&client).await.expect("there was none");
    let step = OrderStep { order: "order-1".to_owned(), step: Step::Shipped };
    client.publish(STREAM, &step).await.expect("it is stored");
    let worker = worker(client.clone(), shop().await).start().await.expect("it joins");
    server.until_settled(STREAM, GROUP).await.expect("all is done");
    let parked = client.parked(STREAM, GROUP, 1).await.expect("it is parked");
    assert_eq!(parked.reason, "Shipped cannot be step 1 of an order");
    worker.shutdown().await.expect("it leaves well");
}
