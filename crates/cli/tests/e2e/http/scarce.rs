//! A server that runs out of something: it refuses clearly, keeps what it confirmed, and goes on.

use std::time::{Duration, Instant};

use crate::http::client::Connection;
use crate::http::rig::Server;
use crate::rig::Folder;

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
    let mut publish = || {
        let message = format!(r#"{{"messages":[{{"body":"{}"}}]}}"#, "x".repeat(512 << 10));
        let reply = publisher.call("POST", "/streams/work/messages", &message);
        assert_eq!(reply.status, 201, "{}", reply.text());
    };
    let (mut kept, mut refused, mut published) = (Vec::new(), 0, 0);
    for n in 0..1_000 {
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
        if n % 10 == 0 {
            publish();
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
