//! A server that runs out of something, or whose clients take nothing or send nothing: it refuses clearly, keeps
//! everything that it confirmed, and goes on.
//!
//! The counts are those that a busy machine does in seconds. `cargo xtask wear` has the full ones, with the limits of
//! memory and time that hold on a machine with nothing else to do.

use std::time::{Duration, Instant};

use crate::http::client::Connection;
use crate::http::h2::Stubborn;
use crate::http::rig::Server;
use crate::rig::{Folder, sized};

const SMALL_FOLDER: [&str; 6] =
    ["--segment-bytes", "32MiB", "--reserve-bytes", "128MiB", "--free-bytes-min", "64MiB"];

/// The first figure of this name in `/metrics`, whatever its labels.
pub(crate) fn figure(server: &Server, name: &str) -> f64 {
    let text = server.call("GET", "/metrics", "").text();
    let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in {text}"))
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_leave_descriptors_for_the_data_folder() {
    const FILES: u32 = 256;
    let folder = Folder::new("descriptors");
    let (server, sqs) = Server::start_within(FILES, &folder, &SMALL_FOLDER);
    let mut publisher = server.connect();
    let mut publish = |bytes: usize| {
        let message = format!(r#"{{"messages":[{{"body":"{}"}}]}}"#, "x".repeat(bytes));
        let reply = publisher.call("POST", "/streams/work/messages", &message);
        assert_eq!(reply.status, 201, "{}", reply.text());
    };
    let (mut kept, mut refused, mut published) = (Vec::new(), 0, 0);
    let end = Instant::now() + sized(Duration::ZERO, Duration::from_secs(60));
    for n in (0..).take_while(|n| *n < 1_000 || Instant::now() < end) {
        let is_native = n % 2 == 0;
        let mut client = Connection::open(if is_native { &server.address } else { &sqs });
        let reply = if is_native {
            client.call("GET", "/livez", "")
        } else {
            let headers = [
                "x-amz-target: AmazonSQS.ListQueues",
                "content-type: application/x-amz-json-1.0",
                "content-length: 2",
            ];
            client.send_request("POST", "/", &headers, "");
            client.send(b"{}");
            client.reply().expect("it is answered")
        };
        match reply.status {
            200 => kept.push(client),
            503 => {
                assert_eq!(reply.header("retry-after"), Some("1"));
                refused += 1;
            }
            other => panic!("{other} {}", reply.text()),
        }
        // Large messages first, so that segments are begun while descriptors are scarce.
        if n >= 1_000 || n % 10 == 0 {
            publish(if n < 1_000 { 512 << 10 } else { 1 << 10 });
            published += 1;
        }
    }
    assert!(kept.len() > 150 && refused > 700, "{} connections, {refused} refused", kept.len());
    drop(kept);
    until("connections are taken again", || server.call("GET", "/livez", "").status == 200);
    let status = server.ok("GET", "/streams/work", "");
    assert_eq!(status["last_seq"], published, "{status}");
    assert_eq!(figure(&server, "process_max_fds"), f64::from(FILES));
    assert_eq!(figure(&server, "forebay_connections_max"), 192.0);
    server.stop();
    let server = Server::start_as(&folder, &SMALL_FOLDER);
    assert_eq!(server.ok("GET", "/streams/work", "")["last_seq"], published);
    server.stop();
}

const MIB: f64 = 1024.0 * 1024.0;

/// A message of so many bytes, published as often.
fn publish_large(server: &Server, stream: &str, count: usize, bytes: usize) {
    let mut connection = server.connect();
    let message = format!(r#"{{"messages":[{{"body":"{}"}}]}}"#, "x".repeat(bytes));
    for _ in 0..count {
        let reply = connection.call("POST", &format!("/streams/{stream}/messages"), &message);
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
}

/// Publishes, receives and acks a small message, and says how long that took.
fn cycle(server: &Server) -> Duration {
    let begun = Instant::now();
    server.publish("work", 1..=1);
    let messages = server.receive(r#"{"wait":"5s"}"#);
    assert_eq!(messages.len(), 1);
    let acked = format!(r#"{{"leases":{}}}"#, crate::http::rig::leases(&messages));
    server.ok("POST", "/subscriptions/work/team/ack", &acked);
    begun.elapsed()
}

/// Other clients go on meanwhile, and wait no longer than this.
fn cycle_max() -> Duration {
    sized(Duration::from_secs(5), Duration::from_millis(250))
}

/// A small budget for replies with the usual counts, and the default one with the full ones.
fn budgets<'a>(small: &[&'a str]) -> Vec<&'a str> {
    sized(small.to_vec(), Vec::new())
}

/// With the full counts: how much memory the server may take meanwhile, and keep.
fn check_memory(server: &Server, is_over: bool) {
    if !sized(false, cfg!(target_os = "linux")) {
        return;
    }
    let peak = server.memory_peak();
    assert!(peak < 300, "{peak} MiB at most");
    if is_over {
        until("memory is given back", || server.memory_now() < 100);
    }
}

#[test]
fn followers_that_do_not_read_hold_a_bounded_number_of_bytes() {
    let folder = Folder::new("followers");
    let server = Server::start_as(&folder, &budgets(&["--reply-bytes", "4MiB"]));
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.ok("PUT", "/streams/news", "{}");
    let follow = |_| {
        let mut connection = server.connect();
        connection.send_request("GET", "/streams/news/follow", &[], "");
        connection
    };
    let followers: Vec<Connection> = (0..sized(50, 1_000)).map(follow).collect();
    let messages = sized(60, 200);
    publish_large(&server, "news", messages, 300 << 10);
    let mut most = 0.0_f64;
    for _ in 0..20 {
        most = most.max(figure(&server, "forebay_reply_bytes "));
        let took = cycle(&server);
        assert!(took < cycle_max(), "{took:?}");
    }
    assert!(most > 0.0 && most < sized(6.0, 96.0) * MIB, "{most}");
    check_memory(&server, false);
    drop(followers);
    until("the room is given back", || figure(&server, "forebay_reply_bytes ") == 0.0);
    check_memory(&server, true);
    let mut reads = server.connect();
    reads.send_request("GET", "/streams/news/follow", &[], "");
    assert_eq!(reads.head().map(|head| head.status), Some(200));
    for n in 1..=messages {
        assert_eq!(reads.event("message").expect("a message").0, n.to_string());
    }
    server.stop();
}

#[test]
fn a_client_of_http2_that_opens_no_window_is_bounded_and_given_up() {
    let folder = Folder::new("window");
    let server = Server::start_as(&folder, &budgets(&["--reply-bytes", "4MiB"]));
    server.ok("PUT", "/subscriptions/work/team", "{}");
    publish_large(&server, "news", 10, 300 << 10);
    let (count, requests) = sized((8, 100), (50, 250));
    let mut clients: Vec<Stubborn> = (0..count).map(|_| Stubborn::connect(&server.address)).collect();
    for n in 0..requests {
        for client in &mut clients {
            client.get(&format!("/streams/news/messages?limit=1&from={}", n % 10 + 1));
        }
    }
    until("replies wait", || figure(&server, "forebay_reply_bytes ") > 0.5 * MIB);
    let mut most = 0.0_f64;
    for _ in 0..20 {
        most = most.max(figure(&server, "forebay_reply_bytes "));
        let took = cycle(&server);
        assert!(took < cycle_max(), "{took:?}");
    }
    // Each of the 800 requests may hold 16 KiB while its page is read, however little room there is.
    let bound = sized(1.1 * (4.0 * MIB + 800.0 * 0.015_625 * MIB), 96.0 * MIB);
    assert!(most < bound, "{most}");
    check_memory(&server, false);
    until("they are given up", || clients.iter().all(Stubborn::is_closed));
    assert_eq!(figure(&server, "forebay_connections_stalled_total"), f64::from(count));
    until("the room is given back", || figure(&server, "forebay_reply_bytes ") == 0.0);
    check_memory(&server, true);
    server.stop();
}

#[test]
fn consumers_with_full_credit_that_do_not_read_are_held_back() {
    let folder = Folder::new("unread");
    let small = ["--reply-bytes", "4MiB", "--window-bytes", "4MiB"];
    let server = Server::start_as(&folder, &budgets(&small));
    server.ok("PUT", "/subscriptions/work/team", "{}");
    server.ok("PUT", "/subscriptions/news/readers", "{}");
    let (first, count) = sized((60, 20), (400, 200));
    publish_large(&server, "news", first, 300 << 10);
    // Open: stream, group, a credit of 1,000.
    let open = b"\x0a\x04news\x12\x07readers\x20\xe8\x07";
    let request = [&[0, 0, 0, 0, open.len() as u8 + 2, 0x0a, open.len() as u8][..], open].concat();
    let mut consumers: Vec<Stubborn> = (0..count).map(|_| Stubborn::connect(&server.address)).collect();
    for consumer in &mut consumers {
        consumer.call("Consume", &request);
    }
    until("consumers are held back", || figure(&server, "forebay_consumers_held_back_total") > 0.0);
    publish_large(&server, "news", 20, 300 << 10);
    let mut most = 0.0_f64;
    for _ in 0..20 {
        most = most.max(figure(&server, "forebay_handed_out_bytes"));
        let took = cycle(&server);
        assert!(took < cycle_max(), "{took:?}");
    }
    assert!(most < sized(16.0, 128.0) * MIB, "{most}");
    check_memory(&server, false);
    drop(consumers);
    // None of the messages is lost, and none was tried too often.
    let mut got = 0;
    until("all messages come", || {
        let reply = server.ok("POST", "/subscriptions/news/readers/receive", r#"{"max":10,"wait":"1s"}"#);
        let messages = reply["messages"].as_array().expect("a list").clone();
        if !messages.is_empty() {
            let acked = format!(r#"{{"leases":{}}}"#, crate::http::rig::leases(&messages));
            server.ok("POST", "/subscriptions/news/readers/ack", &acked);
        }
        got += messages.len();
        got == first + 20
    });
    check_memory(&server, true);
    assert_eq!(server.ok("GET", "/subscriptions/news/readers", "")["parked"], 0);
    server.stop();
}

#[test]
fn bodies_that_were_announced_and_do_not_come_hold_up_nobody() {
    let folder = Folder::new("announced");
    let (server, sqs) = Server::start_within(4_096, &folder, &["--request-bytes", "1MiB"]);
    server.ok("PUT", "/subscriptions/work/team", "{}");
    let cycles = || {
        let begun = Instant::now();
        for _ in 0..sized(20, 2_000) {
            assert!(cycle(&server) < Duration::from_secs(2));
        }
        begun.elapsed()
    };
    let alone = sized(false, true).then(cycles);
    let mut announced = Vec::new();
    for n in 0..sized(300, 1_100) {
        let (address, path) = match n % 3 {
            0 => (&server.address, "/streams/work/messages"),
            1 => (&server.address, "/subscriptions/work/team/receive"),
            _ => (&sqs, "/"),
        };
        let mut client = Connection::open(address);
        client.send_request("POST", path, &["content-length: 900000"], "");
        client.send(b"{");
        announced.push(client);
    }
    // Calls of gRPC that begin with 8 MB, of which nothing comes.
    let mut half_sent = Stubborn::connect(&server.address);
    for _ in 0..12 {
        half_sent.call("Publish", &[0, 0, 0x7f, 0, 0]);
    }
    let beside = cycles();
    if let Some(alone) = alone {
        assert!(beside.mul_f64(0.8) <= alone, "{beside:?} for cycles that take {alone:?} otherwise");
    }
    publish_large(&server, "work", 5, 100 << 10);
    drop((announced, half_sent));
    server.stop();
}
