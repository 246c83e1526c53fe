//! An order-processing pool.
//!
//! An order goes through three steps: it is placed, paid and shipped. Every step is a message whose key is the
//! order, and the group is ordered by key. So the steps of one order are done one after the other, and any number of
//! orders at once. The write of a step and the mark that it is done are one transaction. So a step is done
//! once, whichever process is killed.
//!
//! ```text
//! cargo build -p forebay-examples
//! target/debug/orders place 2000
//! target/debug/orders work          # kill it, and start it again
//! target/debug/orders report
//! ```

// A program that talks to its user.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_client::admin::settings::{Backoff, Strategy};
use forebay_client::idempotency::SqliteStore;
use forebay_client::worker::WorkerBuilder;
use forebay_client::{Client, Fault, GroupSettings, Job, Message, Payload, Worker};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

const STREAM: &str = "orders";
const GROUP: &str = "processing";
/// Longer than a message may come again.
const MARKS_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    Placed,
    Paid,
    Shipped,
}

#[derive(Debug, Serialize, Deserialize)]
struct OrderStep {
    order: String,
    step: Step,
}

impl Payload for OrderStep {
    const TYPE: &'static str = "order.step";
}

/// The state that handlers share.
#[derive(Clone)]
struct Shop {
    db: SqlitePool,
    done: SqliteStore,
    /// Number of failures of each message before it succeeds. In a real shop something always fails.
    failures: fn(&Job<OrderStep>) -> u32,
}

impl Shop {
    async fn open(db: SqlitePool) -> Result<Shop, Box<dyn std::error::Error>> {
        // No key here would keep a step from being written twice. That is left to the mark.
        let table = "CREATE TABLE IF NOT EXISTS steps (order_id TEXT NOT NULL, step TEXT NOT NULL)";
        sqlx::query(table).execute(&db).await?;
        let done = SqliteStore::new(db.clone());
        done.create_table().await?;
        Ok(Shop { db, done, failures: |job| u32::from(job.info.seq() % 7 == 0) })
    }
}

async fn do_step(shop: Shop, job: Job<OrderStep>) -> Result<(), Fault> {
    let mut tx = shop.db.begin_with("BEGIN IMMEDIATE").await?;
    let before: i64 = sqlx::query_scalar("SELECT count(*) FROM steps WHERE order_id = ?1")
        .bind(&job.order)
        .fetch_one(&mut *tx)
        .await?;
    if before != job.step as i64 {
        return Err(Fault::permanent(format!("{:?} cannot be step {} of an order", job.step, before + 1)));
    }
    sqlx::query("INSERT INTO steps (order_id, step) VALUES (?1, ?2)")
        .bind(&job.order)
        .bind(format!("{:?}", job.step))
        .execute(&mut *tx)
        .await?;
    if job.info.attempt() <= (shop.failures)(&job) {
        // The transaction is dropped, and the write with it.
        return Err(Fault::transient("the warehouse does not answer"));
    }
    shop.done.mark_in(&mut tx, &job, MARKS_KEPT).await?;
    tx.commit().await?;
    Ok(())
}

async fn create_group(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let settings = GroupSettings::new()
        .strategy(Strategy::Ordered)
        // Renewed while a step runs. The messages of a killed worker go to others after this time.
        .message_timeout(Duration::from_secs(2))
        .backoff(Backoff::new().min(Duration::from_millis(200)).max(Duration::from_secs(30)));
    client.create_group(STREAM, GROUP, settings).await?;
    Ok(())
}

fn worker(client: Client, shop: Shop) -> WorkerBuilder<Shop> {
    let done = shop.done.clone();
    Worker::builder(client, STREAM, GROUP, shop).concurrency(8).idempotency(done, MARKS_KEPT).on(do_step)
}

/// Every message has an id, so an order that is placed again after an unknown outcome is stored once.
async fn place(client: &Client, orders: u32) -> Result<(), Box<dyn std::error::Error>> {
    let producer = client.producer(STREAM).build();
    for step in [Step::Placed, Step::Paid, Step::Shipped] {
        for number in 1..=orders {
            let order = format!("order-{number}");
            let message = Message::of(&OrderStep { order: order.clone(), step })?;
            producer.send(message.id(format!("{order}/{step:?}")).key(order)).await?;
        }
    }
    producer.close().await?;
    Ok(())
}

/// Counts the orders that went through all three steps in sequence, and the steps that were written.
async fn report(db: &SqlitePool) -> Result<(i64, i64), sqlx::Error> {
    let whole = "SELECT count(*) FROM
        (SELECT group_concat(step, ' ') AS all_steps FROM (SELECT * FROM steps ORDER BY rowid) GROUP BY order_id)
        WHERE all_steps = 'Placed Paid Shipped'";
    let whole = sqlx::query_scalar(whole).fetch_one(db).await?;
    let steps = sqlx::query_scalar("SELECT count(*) FROM steps").fetch_one(db).await?;
    Ok((whole, steps))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("FOREBAY_SERVER").unwrap_or_else(|_| "127.0.0.1:7070".to_owned());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let client = Client::connect(server).await?;
    create_group(&client).await?;
    let file = SqliteConnectOptions::new().filename("orders.db").create_if_missing(true);
    let db = SqlitePool::connect_with(file.journal_mode(SqliteJournalMode::Wal)).await?;
    let shop = Shop::open(db.clone()).await?;
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["place", orders] => {
            place(&client, orders.parse()?).await?;
            println!("{orders} orders are placed, paid and to be shipped");
        }
        ["work"] => {
            println!("working; Ctrl-C lets what runs finish, and kill -9 does no harm either");
            let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
            let stats = worker(client, shop).run_until(stop).await?;
            println!("done {}, found done {}, retried {}", stats.acked, stats.duplicates, stats.retried);
        }
        ["report"] => {
            let (whole, steps) = report(&db).await?;
            println!("{whole} orders are through, {steps} steps were done");
        }
        _ => return Err("orders place NUMBER | work | report".into()),
    }
    Ok(())
}
