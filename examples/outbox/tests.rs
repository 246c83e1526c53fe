//! Orders that are committed, orders that are not, and a relay that is lost on the way.

use std::sync::{Arc, Mutex};

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_test::TestServer;

use super::*;

/// A database of its own for each test, in a file: one in memory is gone when its connection is dropped.
async fn shop() -> Shop {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("forebay-outbox-{}-{number}.db", std::process::id());
    let file = SqliteConnectOptions::new().filename(std::env::temp_dir().join(name)).create_if_missing(true);
    let file = file.journal_mode(SqliteJournalMode::Wal);
    Shop::open(SqlitePool::connect_with(file).await.expect("a database")).await.expect("tables")
}

#[tokio::test]
async fn the_warehouse_hears_once_of_what_was_committed_and_never_of_what_was_not() {
    let server = TestServer::start().await.expect("it starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    create_stream(&client).await.expect("there was none");
    let mut shop = shop().await;
    shop.outbox = shop.outbox.lease(Duration::from_millis(300));
    let picked = Arc::new(Mutex::new(Vec::new()));
    let list = picked.clone();
    let pick = move |order: &OrderPlaced| list.lock().expect("nobody panics").push(order.count);
    let worker = warehouse(client.clone(), pick).concurrency(1).start().await.expect("it joins");

    // An order of nothing is refused by the database, every fourth time.
    let orders: Vec<i64> = (1..=40).collect();
    let (first, second) = orders.split_at(20);
    let order = async |count: i64| {
        let ordered =
            OrderPlaced { item: "apples".to_owned(), count: if count % 4 == 0 { 0 } else { count } };
        assert_eq!(shop.order(&ordered).await.is_ok(), count % 4 != 0);
    };
    let relay = tokio::spawn(shop.outbox.relay(client.clone()).run());
    for count in first {
        order(*count).await;
    }
    while picked.lock().expect("nobody panics").len() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Wherever it is, it is lost; the next one goes on.
    relay.abort();
    for count in second {
        order(*count).await;
    }
    let relay = tokio::spawn(shop.outbox.relay(client.clone()).run());
    let expected: Vec<i64> = orders.into_iter().filter(|count| count % 4 != 0).collect();
    for _ in 0..20_000 {
        if picked.lock().expect("nobody panics").len() >= expected.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*picked.lock().expect("nobody panics"), expected);
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&shop.db).await.expect("a number");
    assert_eq!(rows, 30);
    relay.abort();
    assert_eq!(worker.shutdown().await.expect("it leaves well").acked, 30);
}
