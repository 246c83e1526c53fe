//! The example `webhooks`, as its reader runs it: its receiver, and its script with the real command.

#[path = "../../../../../../examples/webhooks/receiver.rs"]
mod receiver;

use std::process::Command;
use std::sync::{Arc, Mutex};

use super::{group, parked};
use crate::commands::rig::Server;
use receiver::Receiver;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/webhooks/dispatch.sh");

/// The example's customers, on a port of their own. Answers where they are.
fn serve(receiver: Receiver) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.set_nonblocking(true).expect("a socket");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            axum::serve(listener, receiver.router()).await
        })
    });
    url
}

#[test]
fn every_customer_gets_every_event_once_and_one_who_is_closed_holds_up_nobody() {
    let server = Server::start();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let list = taken.clone();
    let url = serve(Receiver::new(move |customer, event| {
        list.lock().expect("nobody panics").push((customer.to_owned(), event.to_owned()));
    }));
    let dispatched = Command::new(SCRIPT)
        .arg(url)
        .env("FOREBAY", env!("CARGO_BIN_EXE_forebay"))
        .env("FOREBAY_SERVER", &server.address)
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&dispatched.stderr);
    assert!(dispatched.status.success(), "{said}");
    let printed = String::from_utf8_lossy(&dispatched.stdout);
    assert!(printed.contains("HTTP 410: we are out of business"), "{printed}");

    let mut taken = taken.lock().expect("nobody panics").clone();
    taken.sort();
    let all =
        |customer: &'static str| (1..=5).map(move |n| (customer.to_owned(), format!("{{\"event\": {n}}}")));
    assert_eq!(taken, all("shaky").chain(all("solid")).collect::<Vec<_>>());
    for customer in ["events/solid", "events/shaky"] {
        let group = group(&server, customer);
        assert_eq!((&group["lag"], &group["parked"]), (&0.into(), &0.into()), "{customer}");
    }
    let expected = [1; 5].map(|attempts| (attempts, "HTTP 410: we are out of business".to_owned()));
    let reasons: Vec<_> = parked(&server, "events/closed")
        .into_iter()
        .map(|(_, attempts, reason)| (attempts, reason))
        .collect();
    assert_eq!(reasons, expected);
}
