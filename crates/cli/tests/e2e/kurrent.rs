//! Where the server listens for KurrentDB clients. `compat/kurrent` plays the clients themselves.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::rig::{Folder, Process, address_after, forebay};

fn start(words: &[&str]) -> (Process, Option<String>) {
    let usual = ["--log", "text", "--listen", "127.0.0.1:0", "--drain-timeout", "1s"];
    let listens = |line: &str| {
        address_after("listening on ", line)?;
        Some(address_after("Kurrent on ", line))
    };
    Process::serve(&[&usual[..], words].concat(), listens)
}

/// The first line of the answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = format!("{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_server_says_where_it_listens_for_kurrent_clients() {
    let folder = Folder::new("kurrent");
    let (server, address) = start(&["--data", folder.path(), "--kurrent", "127.0.0.1:0"]);
    let address = address.expect("the log names it");
    assert_eq!(ask(&address, "GET /health/live"), "HTTP/1.1 204 No Content");
    assert_eq!(ask(&address, "GET /elsewhere"), "HTTP/1.1 404 Not Found");
    server.stop();
    let (server, address) = start(&["--data", folder.path(), "--kurrent", "none"]);
    assert_eq!(address, None);
    server.stop();
}

#[test]
fn an_address_that_others_can_reach_is_refused_and_a_port_in_use_is_an_error() {
    let serve = |address: &str| {
        forebay(&["serve", "--memory", "--log", "text", "--listen", "127.0.0.1:0", "--kurrent", address], "")
    };
    let refused = serve("0.0.0.0:0");
    assert_ne!(refused.code, 0);
    assert!(
        refused.said.contains("--kurrent") && refused.said.contains("--allow-anyone"),
        "{}",
        refused.said
    );
    let checked = forebay(&["config", "check", "--memory", "--kurrent", "0.0.0.0:2113"], "");
    assert_ne!(checked.code, 0);
    assert!(checked.said.contains("--kurrent"), "{}", checked.said);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let in_use = serve(&address);
    assert_eq!(in_use.code, 5, "{}", in_use.said);
    assert!(
        in_use.said.contains(&address) && in_use.said.contains("To use another address, give --kurrent"),
        "{}",
        in_use.said
    );
}
