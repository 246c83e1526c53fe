//! Producers and consumers of the trial.

use std::time::Duration;

use forebay_client::{Client, Confirmation, Delivery, Message};
use tokio::sync::{mpsc, watch};

use super::ledger::Ledger;
use super::stage::{GROUP, STREAM};
use crate::clock::Clock;

/// The length of a message.
const BYTES: usize = 100;
/// How often a producer looks whether it is behind.
const LOOK: Duration = Duration::from_millis(5);
/// Messages that one producer may have under way: those of half a minute at most rates.
const WINDOW: usize = 50_000;
/// A message is sent again for as long as that.
const RETRY_FOR: Duration = Duration::from_secs(300);
const CREDIT: u32 = 256;
/// A node that does not answer for so long is passed by.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Connects to the first of these nodes that answers.
pub(super) async fn connect(nodes: &str) -> Client {
    loop {
        let client = Client::builder(nodes).connect_timeout(CONNECT_MAX).retry_for(RETRY_FOR).connect().await;
        match client {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Sends so many messages a second until it is told to stop, and waits until all of them are confirmed.
pub(super) async fn produce(
    nodes: String,
    rate: f64,
    ledger: Ledger,
    clock: Clock,
    mut over: watch::Receiver<bool>,
) {
    let client = connect(&nodes).await;
    let producer = client.producer(STREAM).window(WINDOW).build();
    let (confirmations, waited_for) = mpsc::channel(WINDOW);
    let confirmed = tokio::spawn(write_down(waited_for, ledger.clone(), clock));
    let (began, mut sent) = (clock.now(), 0);
    while !*over.borrow_and_update() {
        let due = (clock.now().since(began).as_secs_f64() * rate) as u64;
        while sent < due {
            sent += 1;
            let number = ledger.open();
            let mut body = number.to_le_bytes().to_vec();
            body.resize(BYTES, b'.');
            match producer.send(Message::new(body)).await {
                Ok(confirmation) => drop(confirmations.send((number, confirmation)).await),
                Err(_) => ledger.given_up(),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    drop(confirmations);
    let _ = confirmed.await;
}

async fn write_down(mut confirmations: mpsc::Receiver<(u64, Confirmation)>, ledger: Ledger, clock: Clock) {
    while let Some((number, confirmation)) = confirmations.recv().await {
        match confirmation.await {
            Ok(_) => ledger.confirmed(clock.now(), number),
            Err(_) => ledger.given_up(),
        }
    }
}

/// Receives and acks messages, and connects again whenever its connection ends.
pub(super) async fn consume(nodes: String, ledger: Ledger, clock: Clock) {
    loop {
        let client = connect(&nodes).await;
        let connected = clock.now();
        if let Ok(mut consumer) = client.consumer(STREAM, GROUP).credit(CREDIT).open().await {
            while let Some(Ok(batch)) = consumer.next_batch().await {
                let now = clock.now();
                batch.iter().for_each(|delivery| ledger.delivered(now, connected, number_of(delivery)));
                // If this fails the connection is over, and the messages are delivered again.
                tokio::spawn(consumer.ack(&batch));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn number_of(delivery: &Delivery) -> Option<u64> {
    Some(u64::from_le_bytes(*delivery.body().first_chunk()?))
}

/// Messages that wait from the beginning to the end.
pub(super) async fn publish_backlog(client: &Client, stream: &str, count: u32) -> anyhow::Result<()> {
    let producer = client.producer(stream).window(WINDOW).build();
    for _ in 0..count {
        // The confirmation is not waited for one by one.
        drop(producer.send(Message::new(vec![b'.'; BYTES])).await?);
    }
    producer.flush().await?;
    Ok(())
}
