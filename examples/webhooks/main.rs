//! Three customers who want to be told, for a webhook dispatcher that is no program at all.
//!
//! Events are messages of one stream. Every customer has a group of his own, and `forebay work --push` sends what the
//! group hands out to the customer's address. So every customer has his own pace, his own retries and his own
//! parked messages, and one who is down holds up nobody else. This program is the customers' side; `dispatch.sh`
//! beside it is the dispatcher.
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
