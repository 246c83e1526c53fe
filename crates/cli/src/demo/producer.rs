//! The demo's producers: they send as many orders as the plan says, and write down what the server confirmed.

use std::time::Duration;

use forebay_client::{Client, Confirmation, Message, PublishError};
use tokio::sync::mpsc;

use super::ledger::Ledger;
use super::plan::{Plan, Trouble};
use super::worker::Order;
use super::{STREAM, id_of};
use crate::clock::{Clock, Timestamp};

/// Producers that share the orders.
pub(super) const PRODUCERS: u32 = 3;
/// How often each looks whether it is behind.
const LOOK: Duration = Duration::from_millis(10);
/// How many orders one producer may have under way.
const WINDOW: usize = 4_096;

/// Sends its share until the last order has been sent and confirmed.
pub(super) async fn produce(client: Client, plan: Plan, ledger: Ledger, clock: Clock, began: Timestamp) {
    let producer = client.producer(STREAM).window(WINDOW).build();
    let (confirmations, waited_for) = mpsc::channel(WINDOW);
    let confirmed = tokio::spawn(write_down(waited_for, ledger.clone()));
    let mut sent = 0;
    loop {
        let now = clock.now().since(began);
        let due = (plan.orders_by(now) / f64::from(PRODUCERS)) as u64;
        while sent < due {
            sent += 1;
            let number = ledger.open();
            let trouble = Trouble::of(number);
            for _ in 0..if trouble.copied { 2 } else { 1 } {
                match message(number, trouble) {
                    Ok(message) => match producer.send(message).await {
                        Ok(confirmation) => drop(confirmations.send((number, confirmation)).await),
                        Err(_) => ledger.not_stored(),
                    },
                    Err(_) => ledger.not_stored(),
                }
            }
        }
        if now >= plan.orders_end {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    drop(confirmations);
    let _ = confirmed.await;
}

fn message(number: u64, trouble: Trouble) -> Result<Message, PublishError> {
    let order = Order { number, fails: trouble.fails, poison: trouble.poison };
    Ok(Message::of(&order)?.id(id_of(number)))
}

async fn write_down(mut confirmations: mpsc::Receiver<(u64, Confirmation)>, ledger: Ledger) {
    while let Some((number, confirmation)) = confirmations.recv().await {
        match confirmation.await {
            Ok(_) => ledger.stored(number),
            Err(_) => ledger.not_stored(),
        }
    }
}
