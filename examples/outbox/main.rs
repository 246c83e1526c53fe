//! A shop with an outbox.
//!
//! An order is a row in the shop's database, and the warehouse has to hear of it. If the shop wrote the row first
//! and published then, it could die in between, and the warehouse would never hear. The other way round, the
//! warehouse could hear of an order that is not there. So the shop writes both in one transaction, the order and the
//! message about it, and a relay publishes the committed messages.
//!
//! ```text
//! cargo run -p forebay-examples --bin outbox
//! ```

// A program that talks to its user.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_client::outbox::SqliteOutbox;
use forebay_client::worker::WorkerBuilder;
use forebay_client::{Client, Fault, GroupSettings, Job, Message, Payload, StreamSettings, Worker};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

const STREAM: &str = "shop.orders";
const GROUP: &str = "warehouse";
/// Longer than the shop is ever without a relay: for this time the server recognises messages that it has stored.
const DEDUPE_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct OrderPlaced {
    item: String,
    count: i64,
}

impl Payload for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, Clone)]
struct Shop {
    db: SqlitePool,
    outbox: SqliteOutbox,
}

impl Shop {
    async fn open(db: SqlitePool) -> Result<Shop, Box<dyn std::error::Error>> {
        let table = "CREATE TABLE IF NOT EXISTS orders
            (id INTEGER PRIMARY KEY, item TEXT NOT NULL, count INTEGER NOT NULL CHECK (count > 0))";
        sqlx::query(table).execute(&db).await?;
        let outbox = SqliteOutbox::new(db.clone());
        outbox.create_table().await?;
        Ok(Shop { db, outbox })
    }

    /// Stores both the order and the message about it, or neither.
    async fn order(&self, order: &OrderPlaced) -> Result<i64, Box<dyn std::error::Error>> {
        let mut tx = self.db.begin_with("BEGIN IMMEDIATE").await?;
        // The message first, to show that it goes when the order does: an order of nothing is refused below.
        self.outbox.insert(&mut tx, STREAM, Message::of(order)?.key(&order.item)).await?;
        let row = sqlx::query("INSERT INTO orders (item, count) VALUES (?1, ?2)")
            .bind(&order.item)
            .bind(order.count)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(row.last_insert_rowid())
    }
}

async fn create_stream(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    client.create_stream(STREAM, StreamSettings::new().dedupe_window(DEDUPE_WINDOW)).await?;
    client.create_group(STREAM, GROUP, GroupSettings::new()).await?;
    Ok(())
}

/// The warehouse hears of orders by a function of its own.
fn warehouse<F: Fn(&OrderPlaced) + Clone + Send + Sync + 'static>(
    client: Client,
    pick: F,
) -> WorkerBuilder<F> {
    async fn handle<F: Fn(&OrderPlaced)>(pick: F, job: Job<OrderPlaced>) -> Result<(), Fault> {
        pick(&job);
        Ok(())
    }
    Worker::builder(client, STREAM, GROUP, pick).on(handle)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("FOREBAY_SERVER").unwrap_or_else(|_| "127.0.0.1:7070".to_owned());
    let client = Client::connect(server).await?;
    create_stream(&client).await?;
    let file = SqliteConnectOptions::new().filename("shop.db").create_if_missing(true);
    let shop = Shop::open(SqlitePool::connect_with(file.journal_mode(SqliteJournalMode::Wal)).await?).await?;

    // In a real shop these three are three programs.
    let relay = tokio::spawn(shop.outbox.relay(client.clone()).run());
    let pick = |order: &OrderPlaced| println!("warehouse: {} of {}", order.count, order.item);
    let worker = warehouse(client.clone(), pick).start().await?;
    for (item, count) in [("apples", 3), ("pears", 0), ("plums", 12)] {
        match shop.order(&OrderPlaced { item: item.to_owned(), count }).await {
            Ok(id) => println!("shop: order {id} is committed"),
            Err(error) => println!("shop: no order of {count} {item}: {error}"),
        }
    }
    while worker.stats().acked < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.abort();
    worker.shutdown().await?;
    Ok(())
}
