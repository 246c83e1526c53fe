//! Orders in, invoices out: from stream to stream exactly once.
//!
//! For every order the worker writes one invoice to another stream. The acknowledgement of the order and the invoice
//! are one transaction. So there is one invoice for each order, whichever process is killed, worker or server, and no
//! database is needed for it.
//!
//! ```text
//! cargo build -p forebay-examples
//! target/debug/invoices order 2000
//! target/debug/invoices work          # kill it, and start it again
//! target/debug/invoices report
//! ```

// A program that talks to its user.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use forebay_client::admin::streams::ReadQuery;
use forebay_client::worker::WorkerBuilder;
use forebay_client::{Client, Fault, GroupSettings, Job, Message, MessageSet, Payload, Worker};
use serde::{Deserialize, Serialize};

const ORDERS: &str = "shop-orders";
const INVOICES: &str = "shop-invoices";
const GROUP: &str = "billing";

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
    cents: u64,
}

impl Payload for Order {
    const TYPE: &'static str = "shop.order";
}

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    order: u64,
    cents: u64,
}

impl Payload for Invoice {
    const TYPE: &'static str = "shop.invoice";
}

async fn bill(_state: (), job: Job<Order>) -> Result<(), Fault> {
    let invoice = Invoice { order: job.number, cents: job.cents * 119 / 100 };
    let message = Message::of(&invoice)?.key(format!("order-{}", job.number));
    job.finish_with(MessageSet::new().add(INVOICES, message)?).await
}

fn worker(client: Client) -> WorkerBuilder<()> {
    Worker::builder(client, ORDERS, GROUP, ()).ensure_group(GroupSettings::new()).concurrency(16).on(bill)
}

async fn order(client: &Client, orders: u64) -> Result<(), Box<dyn std::error::Error>> {
    let producer = client.producer(ORDERS).build();
    for number in 1..=orders {
        producer.send(Message::of(&Order { number, cents: 100 * number })?).await?;
    }
    producer.close().await?;
    Ok(())
}

/// How many invoices there are for each order.
async fn report(client: &Client) -> Result<BTreeMap<u64, u32>, Box<dyn std::error::Error>> {
    let mut invoices = BTreeMap::new();
    let mut query = ReadQuery::default();
    loop {
        let page = client.read_messages(INVOICES, query.clone()).await?;
        for message in &page.messages {
            let invoice: Invoice = serde_json::from_slice(message.body())?;
            *invoices.entry(invoice.order).or_default() += 1;
        }
        if page.next > page.last_seq {
            return Ok(invoices);
        }
        query.from = page.next;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("FOREBAY_SERVER").unwrap_or_else(|_| "127.0.0.1:7070".to_owned());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let client = Client::connect(server).await?;
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["order", orders] => {
            order(&client, orders.parse()?).await?;
            println!("{orders} orders are placed");
        }
        ["work"] => {
            println!("working; Ctrl-C lets what runs finish, and kill -9 does no harm either");
            let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
            let stats = worker(client).run_until(stop).await?;
            println!("{} orders were billed", stats.acked);
        }
        ["report"] => {
            let invoices = report(&client).await?;
            let twice = invoices.values().filter(|count| **count > 1).count();
            println!("{} orders have an invoice, {twice} have more than one", invoices.len());
        }
        _ => return Err("invoices order NUMBER | work | report".into()),
    }
    Ok(())
}
