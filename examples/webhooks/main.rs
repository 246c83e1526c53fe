//! Three customers that receive webhooks, for a dispatcher that needs no program.
//!
//! Events are messages of one stream. Each customer has its own group, and `forebay work --push` sends the messages of
//! the group to the customer's address. So each customer has its own rate, retries and parked messages, and a
//! customer that is down does not hold up the others. This program is the customers' side; `dispatch.sh` beside it
//! is the dispatcher.
//!
//! ```text
//! cargo run -p forebay-examples --bin webhooks    # in one terminal
//! examples/webhooks/dispatch.sh                   # in another
//! ```

// A program that talks to its user.
#![allow(clippy::print_stdout)]

mod receiver;

use receiver::Receiver;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("customers listen at http://{address}/solid, /shaky and /closed");
    let receiver = Receiver::new(|customer, event| println!("{customer}: {event}"));
    axum::serve(listener, receiver.router()).await?;
    Ok(())
}
