//! Connections of clients, as an operator sees and closes them.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::rig::Server;
use crate::http::client::Connection;
use crate::rig::binary;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(40);

fn listed(server: &Server) -> Vec<Value> {
    let list = server.run(&["connections", "list", "-o", "json"]).json();
    list["connections"].as_array().expect("a list").clone()
}

/// The connection that fits, as soon as there is one.
#[track_caller]
fn wait_for(server: &Server, fits: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = listed(server).into_iter().find(&fits) {
            return found;
        }
        assert!(Instant::now() < until, "no connection fits: {:?}", listed(server));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_connection_is_listed_and_closed() {
    let server = Server::start();
    let mut client = Connection::open(&server.address);
    assert_eq!(client.call("GET", "/streams", "").status, 200);
    assert_eq!(client.call("GET", "/streams", "").status, 200);
    let found = wait_for(&server, |one| one["requests"] == 2);
    assert_eq!((&found["api"], &found["client"]), (&"native".into(), &"owner".into()), "{found}");
    assert!(found["received_bytes"].as_u64() > Some(0) && found["sent_bytes"].as_u64() > Some(0), "{found}");
    let id = found["id"].as_str().expect("an id").to_owned();
    let table = server.run(&["connections", "list"]).good();
    assert!(table.contains("owner") && table.lines().any(|line| line.starts_with(&id)), "{table}");

    let closed = server.run(&["connections", "close", &id, "--yes"]).good();
    assert_eq!(closed, format!("connection {id} closed\n"));
    assert!(client.is_closed(), "the client sees the end of its connection");
    let until = Instant::now() + PATIENCE;
    while listed(&server).iter().any(|one| one["id"] == id) {
        assert!(Instant::now() < until, "a closed connection is not listed for long");
    }
    server.run(&["connections", "close", &id, "--yes"]).refused(8, &["no such connection"]);
    server.run(&["connections", "close", "x", "--yes"]).refused(8, &["no such connection. id=`x`"]);
}

#[test]
fn a_consumer_counts_for_its_connection_and_ends_with_it() {
    let server = Server::start();
    let mut consumer = binary()
        .args(["sub", "orders/billing", "--create", "--ack"])
        .env("FOREBAY_SERVER", &server.address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let found = wait_for(&server, |one| one["consumers"] == 1);
    let group = server.run(&["group", "show", "orders/billing", "-o", "json"]).json();
    assert_eq!(group["consumers"].as_array().map(Vec::len), Some(1), "{group}");
    server.run(&["connections", "close", found["id"].as_str().expect("an id"), "--yes"]).good();
    let ended = consumer.wait().expect("it sees that its connection is gone");
    assert!(!ended.success(), "{ended}");
    let group = server.run(&["group", "show", "orders/billing", "-o", "json"]).json();
    assert_eq!(group["consumers"].as_array().map(Vec::len), Some(0), "it has left its group: {group}");
    assert!(listed(&server).iter().all(|one| one["consumers"] == 0));
}
