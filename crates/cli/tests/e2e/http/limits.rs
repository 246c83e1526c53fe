//! Clients that send too much, too slowly, or nothing at all.

use std::time::{Duration, Instant};

use crate::http::rig::Server;

const MESSAGES: &str = "/streams/work/messages";

#[test]
fn a_message_a_batch_or_a_body_that_is_too_large_is_refused() {
    let server = Server::in_memory();
    let text = |bytes: usize| format!("{{\"body\":\"{}\"}}", "x".repeat(bytes));
    let one = format!(r#"{{"messages":[{}]}}"#, text((1 << 20) + (512 << 10)));
    assert_eq!(server.refused("POST", MESSAGES, &one), "413 message-too-large - never");
    let many = vec![text(1 << 20); 9].join(",");
    assert_eq!(
        server.refused("POST", MESSAGES, &format!(r#"{{"messages":[{many}]}}"#)),
        "413 batch-too-large - never"
    );
    let count = vec![r#"{"body":1}"#; 10_001].join(",");
    assert_eq!(
        server.refused("POST", MESSAGES, &format!(r#"{{"messages":[{count}]}}"#)),
        "413 batch-too-large - never"
    );
    let stored = server.refused("GET", "/streams/work", "");
    assert_eq!(stored, "404 no-such-stream - never", "nothing was stored, not even the stream");
    let largest = format!(r#"{{"messages":[{}]}}"#, text(1 << 20));
    assert_eq!(server.call("POST", MESSAGES, &largest).status, 201);
    server.stop();
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let server = Server::in_memory();
    for (path, length) in [(MESSAGES, 100 << 20), ("/subscriptions/work/team/ack", 2 << 20)] {
        let mut connection = server.connect();
        let length = format!("content-length: {length}");
        connection.send_request("POST", path, &["content-type: application/json", &length], "");
        // Not a byte of it was sent.
        let reply = connection.reply().expect("it is answered");
        assert_eq!(reply.problem(), "413 body-too-large - never");
        assert_eq!(reply.header("connection"), Some("close"));
        assert!(connection.is_closed());
    }
    // One that does not say how long it is, is cut off where it is too long.
    let mut connection = server.connect();
    let headers = ["content-type: application/json", "transfer-encoding: chunked"];
    connection.send_request("POST", "/subscriptions/work/team/ack", &headers, "");
    let chunk = [format!("{:x}\r\n", 64 << 10).into_bytes(), vec![b' '; 64 << 10], b"\r\n".to_vec()].concat();
    let sent = (0..64).take_while(|_| connection.send(&chunk)).count();
    assert!(sent >= 16, "{sent}");
    // The answer may be lost with bytes that were still under way when the connection was closed.
    if let Some(reply) = connection.reply() {
        assert_eq!(reply.problem(), "413 body-too-large - never");
    }
    assert_eq!(server.call("GET", "/readyz", "").status, 200);
    server.stop();
}

#[test]
fn heads_that_are_no_heads_end_their_connection_and_nothing_else() {
    let server = Server::in_memory();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"HELO there\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /streams/a HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n and whatever follows, which is no frame at all",
        b"\0\0\0\0\0\0\0\0\0\0",
    ] {
        let mut connection = server.connect();
        connection.send(bytes);
        assert!(connection.is_closed(), "{}", String::from_utf8_lossy(bytes));
    }
    for (head, expected) in [
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), "400 malformed-request - never"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200)), "431 headers-too-large - never"),
        (
            format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(60 << 10)),
            "403 host-not-allowed - never",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(60 << 10)),
            "404 no-such-path - never",
        ),
        ("GET /livez HTTP/1.1\r\n\r\n".to_owned(), "400 malformed-request - never"),
        (
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".to_owned(),
            "400 malformed-request - never",
        ),
    ] {
        let mut connection = server.connect();
        connection.send(head.as_bytes());
        let reply = connection.reply().expect("it is answered");
        assert_eq!(reply.problem(), expected);
    }
    let mut connection = server.connect();
    connection.send(b"GET / HTTP/1.1\r\nx: ");
    let flood = vec![b'x'; 16 << 10];
    assert!((0..1_000).any(|_| !connection.send(&flood)), "a head has a largest size");
    assert_eq!(server.call("GET", "/readyz", "").status, 200);
    server.stop();
}

#[test]
fn slow_and_silent_clients_are_cut_off_and_idle_ones_are_not() {
    let server = Server::in_memory();
    server.ok("PUT", "/subscriptions/work/team", "{}");
    let begun = Instant::now();
    let mut silent = server.connect();
    let mut slow_head = server.connect();
    slow_head.send(b"GET /livez HTTP/1.1\r\n");
    let mut slow_preface = server.connect();
    slow_preface.send(b"PRI * HT");
    let mut slow_body = server.connect();
    slow_body.send_request("PUT", "/streams/a", &["content-length: 10"], "");
    slow_body.send(b"{");
    let mut idle = server.connect();
    assert_eq!(idle.call("GET", "/livez", "").status, 200);
    let mut polling = server.connect();
    polling.send_request("POST", "/subscriptions/work/team/receive", &[], r#"{"wait":"12s"}"#);
    // A byte now and then does not help.
    let drip = std::thread::spawn(move || {
        while slow_head.send(b"x") {
            std::thread::sleep(Duration::from_millis(500));
        }
        slow_head.is_closed()
    });
    assert_eq!(slow_body.reply().expect("it is answered").problem(), "408 slow-request - later");
    assert!(slow_body.is_closed());
    assert!(silent.is_closed());
    assert!(slow_preface.is_closed());
    assert!(drip.join().expect("the thread ends"));
    assert!(begun.elapsed() >= Duration::from_secs(9), "they had their time");
    assert_eq!(polling.reply().expect("it is answered").status, 200);
    assert_eq!(idle.call("GET", "/livez", "").status, 200);
    server.stop();
}
