//! `pub` and `sub`: every way in and out, and what happens when the server goes away in between.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::rig::Server;
use crate::rig::{Folder, run};

fn lines(text: &str) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(line).collect()
}

#[test]
fn message_objects_keep_all_their_fields() {
    let folder = Folder::made("ndjson");
    let server = Server::start();
    let objects = [
        json!({"id": "email-17", "type": "email.send", "key": "user-4", "headers": {"trace": "a"},
               "body": {"to": ["a@example.com"]}, "priority": 5, "schema": 2}),
        json!({"body_base64": "AP8="}),
    ];
    let file = folder.write("two.ndjson", &format!("{}\n\n{}\n", objects[0], objects[1]));
    let stored = server.run(&["pub", "emails", "--ndjson", "--file", &file, "-o", "json"]).json();
    assert_eq!(stored, json!({"stream": "emails", "stored": 2, "duplicates": 0}));
    // The one with an id is known; the other one is another one.
    let again = server.run(&["pub", "emails", "--ndjson", "--file", &file, "-o", "json"]).json();
    assert_eq!(again, json!({"stream": "emails", "stored": 1, "duplicates": 1}));

    let received =
        server.run(&["sub", "emails/senders", "--create", "--ack", "--max", "3", "-o", "json"]).good();
    let received = lines(&received);
    assert_eq!(received.len(), 3);
    for field in ["id", "type", "key", "headers", "body", "priority", "schema"] {
        assert_eq!(received[0][field], objects[0][field], "{field}");
    }
    assert_eq!((&received[1]["body_base64"], &received[1]["attempt"]), (&"AP8=".into(), &1.into()));
    assert!(received[0]["published_at"].as_str().is_some_and(|at| at.ends_with('Z')));
    server.stop();
}

#[test]
fn a_line_that_is_no_message_is_named_and_what_came_before_it_is_stored() {
    let server = Server::start();
    let input = "{\"body\": 1}\n{\"body\": 2}\n{\"bodi\": 3}\n{\"body\": 4}\n";
    let ran = server.run_with(&["pub", "numbers", "--ndjson"], input);
    ran.refused(2, &["line 3", "unknown field `bodi`", "first 2 messages were stored"]);
    let received = server.run(&["sub", "numbers/g", "--create", "--ack", "--idle", "300ms", "--raw"]).good();
    assert_eq!(received, "1\n2\n");
    server.run(&["pub", "numbers", "--ndjson", "x"]).refused(2, &["--ndjson"]);
    server.run(&["pub", "numbers", "--file", "/no/such/file"]).refused(1, &["/no/such/file"]);
    server.stop();
}

#[test]
fn many_lines_are_stored_once_and_in_order_although_the_server_goes_away() {
    let folder = Folder::made("restart");
    let data = folder.file("data");
    let server = Server::start_with(&["--data", &data]);
    let address = server.address.clone();
    const COUNT: usize = 200_000;
    let input: String = (1..=COUNT).map(|n| format!("{n}\n")).collect();
    let publishing = std::thread::spawn(move || run(&["pub", "numbers", "--server", &address], &input, &[]));
    // Somewhere in the middle, if the machine is as fast as usual; the result is the same wherever it is, once the
    // first of them are stored.
    while server.run(&["stream", "show", "numbers"]).code != 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = server.address.clone();
    drop(server);
    let server = Server::start_first(&["--listen", &address, "--data", &data]);
    assert!(!server.address.is_empty(), "{}", server.first);
    let ran = publishing.join().expect("it ran");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.said.contains("stored 200,000 messages in the new stream numbers"), "{}", ran.said);
    let all =
        server.run(&["sub", "numbers/g", "--create", "--ack", "--max", &COUNT.to_string(), "--raw"]).good();
    let wrong = all.lines().zip(1..).find(|(line, n)| *line != n.to_string());
    assert_eq!((wrong, all.lines().count()), (None, COUNT));
    server.run(&["pub", "numbers", "end"]).good();
    let end = server.run(&["sub", "numbers/g", "--create", "--ack", "--max", "1"]).good();
    assert_eq!(end, format!("{}\t#1\tend\n", COUNT + 1), "nothing was stored twice");
    server.stop();
}

/// Passes everything on, but for the answers on the first connection once the client has sent `after` bytes:
/// those are lost, and a moment later the connection too. Answers where it listens.
fn losing_proxy(server: &str, after: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address").to_string();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(&server).expect("the server listens");
            let passed = Arc::new(AtomicUsize::new(0));
            let (mut from, mut to) =
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            let count = passed.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = from.read(&mut buffer) {
                    count.fetch_add(len, Ordering::Relaxed);
                    let _ = to.write_all(&buffer[..len]);
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut client, mut server) = (client, server);
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = server.read(&mut buffer) {
                    if number == 0 && passed.load(Ordering::Relaxed) >= after {
                        // Long enough for the server to store what the client has sent.
                        std::thread::sleep(Duration::from_millis(300));
                        break;
                    }
                    let _ = client.write_all(&buffer[..len]);
                }
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn what_was_stored_but_not_confirmed_is_not_stored_again() {
    let server = Server::start();
    let proxy = losing_proxy(&server.address, 50_000);
    let input: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    let ran = run(&["pub", "numbers", "--server", &proxy], &input, &[]);
    assert_eq!(
        (ran.code, ran.said.trim()),
        (0, "stored 20,000 messages in the new stream numbers, which has no group yet")
    );
    let all = server.run(&["sub", "numbers/g", "--create", "--ack", "--idle", "500ms", "--raw"]).good();
    assert!(all == input, "{} lines came of 20000", all.lines().count());
    server.stop();
}

#[test]
fn a_stream_with_a_pace_slows_down_whoever_publishes() {
    let server = Server::start();
    server
        .run(&["stream", "create", "slow", "ingress_rate.per_second=2000", "ingress_rate.burst=1000"])
        .good();
    let input: String = (1..=2_000).map(|n| format!("{n}\n")).collect();
    server.run_with(&["pub", "slow"], &input).good();
    let all = server.run(&["sub", "slow/g", "--create", "--ack", "--max", "2000", "--raw"]).good();
    assert_eq!(all, input);
    server.stop();
}

#[test]
fn ids_make_it_safe_to_repeat_a_command() {
    let server = Server::start();
    for expected in [
        "stored 3 messages in the new stream numbers, which has no group yet",
        "stored 0 messages in numbers; 3 messages there already",
    ] {
        let ran = server.run_with(&["pub", "numbers", "--id-prefix", "run"], "a\nb\nc\n");
        assert_eq!(ran.said.trim(), expected);
    }
    server.run(&["pub", "numbers", "x", "--id", "run-1"]).good();
    server.run(&["pub", "numbers", "x", "y", "--id", "run-1"]).refused(2, &["--id-prefix"]);
    server.run(&["sub", "numbers/g", "--create", "--ack", "--max", "3"]).good();
    let none = server.run(&["sub", "numbers/g", "--create", "--ack", "--idle", "100ms"]);
    assert_eq!(none.printed, "");
    server.stop();
}

#[test]
fn what_a_message_holds_does_not_act_on_the_terminal() {
    let server = Server::start();
    server.run(&["pub", "odd", "a\u{1b}[2Jb\u{202e}\tc"]).good();
    let line = server.run(&["sub", "odd/g", "--create", "--max", "1"]).good();
    assert_eq!(line, "1\t#1\ta\\x1b[2Jb\\u{202e}\\tc\n");
    let raw = server.run(&["sub", "odd/g", "--create", "--max", "1", "--raw"]).good();
    assert_eq!(raw, "a\u{1b}[2Jb\u{202e}\tc\n", "a script gets the body as it is");
    server.stop();
}

#[test]
fn a_server_that_is_not_there_or_says_no_has_a_code_of_its_own() {
    run(&["pub", "s", "x", "--server", "127.0.0.1:1"], "", &[]).refused(7, &["FOREBAY_SERVER"]);
    run(&["stream", "list"], "", &[("FOREBAY_SERVER", "127.0.0.1:1")]).refused(7, &["127.0.0.1:1"]);
    let server = Server::start_with(&["--memory", "--auto-create=false"]);
    server.run(&["pub", "none", "x"]).refused(8, &["no such stream", "Nothing was stored"]);
    server.run(&["pub", "$none", "x"]).refused(2, &["must not begin with `$`"]);
    server.run(&["stream", "create", "small", "limits.max_messages=1"]).good();
    server.run(&["pub", "small", "x"]).good();
    let full = ["pub", "small", "y", "--retry-for", "100ms"];
    server.run(&full).refused(10, &["gave up after 100ms", "Nothing was stored"]);
    server.stop();
}
