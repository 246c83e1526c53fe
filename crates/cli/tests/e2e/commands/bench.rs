//! `forebay bench`: that its figures are there, its accounts are right, and its stream is gone afterwards.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::commands::rig::Server;
use crate::commands::work::until;
use crate::rig::run;

/// Small, and to an end that does not depend on how fast the machine is.
const FEW: [&str; 4] = ["--messages", "2000", "-o", "json"];

fn start() -> Server {
    Server::start_with(&["--memory", "--sqs", "127.0.0.1:0"])
}

fn sqs_of(server: &Server) -> String {
    format!("http://{}", server.first["sqs"].as_str().expect("it speaks SQS"))
}

#[track_caller]
fn nothing_is_left(server: &Server) {
    assert_eq!(server.run(&["stream", "list", "-o", "json"]).json(), json!({"streams": [], "next": null}));
}

/// Every message was confirmed, came and was acked once.
#[track_caller]
fn all_is_well(figures: &Value, count: u64) {
    let expected = json!({
        "confirmed": count, "delivered": count, "acked": count, "lost": 0, "duplicates": 0, "refused": 0,
        "unknown": 0, "unsent": 0, "not_acked": 0, "foreign": 0,
    });
    assert_eq!(figures["check"], expected, "{figures}");
    assert_eq!(figures["end"], "reached");
    assert_eq!((&figures["published"], &figures["acked"]), (&json!(count), &json!(count)));
    for name in ["published_per_second", "published_time", "acked_per_second", "acked_time"] {
        assert!(figures[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {figures}");
    }
}

/// So many latencies, each percentile no less than the one before.
#[track_caller]
fn latencies(figures: &Value, name: &str, count: u64) {
    let latency = &figures[name];
    assert_eq!(latency["count"], count, "{name}: {figures}");
    let times = ["p50", "p90", "p99", "p999", "max"].map(|it| latency[it].as_f64().expect(it));
    assert!(times[0] > 0.0 && times.is_sorted() && latency["mean"].is_number(), "{name}: {figures}");
}

#[test]
fn what_goes_through_the_native_door_is_measured_and_accounted_for() {
    let server = start();
    let figures = server.run(&[&["bench"], &FEW[..]].concat()).json();
    all_is_well(&figures, 2_000);
    latencies(&figures, "publish_latency", 2_000);
    latencies(&figures, "end_to_end_latency", 2_000);
    assert_eq!((&figures["mode"], &figures["door"]), (&json!("steady"), &json!("native")));
    assert_eq!(figures["address"], json!(server.address));
    assert_eq!((&figures["server"], &figures["send_delay"]), (&Value::Null, &Value::Null));

    let words = ["bench", "drain", "--keys", "7", "--group", "strategy=ordered", "--group", "acks=durable"];
    let figures = server.run(&[&words, &FEW[..]].concat()).json();
    all_is_well(&figures, 2_000);
    assert_eq!(figures["group"], json!({"strategy": "ordered", "acks": "durable"}));
    assert_eq!(figures["end_to_end_latency"], Value::Null, "it says nothing of what waited on purpose");

    let words = ["bench", "publish", "--size", "1KiB", "--producers", "3", "--batch", "1"];
    let figures = server.run(&[&words, &FEW[..]].concat()).json();
    assert_eq!((&figures["check"]["confirmed"], &figures["published"]), (&json!(2_000), &json!(2_000)));
    assert_eq!((&figures["acked"], &figures["check"]["lost"]), (&Value::Null, &Value::Null));
    latencies(&figures, "publish_latency", 2_000);
    nothing_is_left(&server);
    server.stop();
}

#[test]
fn what_goes_through_sqs_is_measured_and_accounted_for() {
    let server = start();
    let sqs = sqs_of(&server);
    let figures = server.run(&[&["bench", "--sqs", &sqs], &FEW[..]].concat()).json();
    all_is_well(&figures, 2_000);
    latencies(&figures, "publish_latency", 2_000);
    latencies(&figures, "end_to_end_latency", 2_000);
    assert_eq!((&figures["door"], &figures["batch"]), (&json!("sqs"), &json!(10)));

    let words = ["bench", "drain", "--door", "sqs", "--sqs", &sqs, "--batch", "1", "--credit", "1"];
    let few = ["--messages", "100", "-o", "json"];
    all_is_well(&server.run(&[&words, &few[..]].concat()).json(), 100);

    let words = ["bench", "--sqs", &sqs, "--keys", "5", "--group", "FifoQueue=true"];
    let figures = server.run(&[&words, &few[..]].concat()).json();
    all_is_well(&figures, 100);
    assert!(figures["stream"].as_str().is_some_and(|name| name.ends_with(".fifo")), "{figures}");
    nothing_is_left(&server);
    server.stop();
}

#[test]
fn at_a_rate_every_message_counts_from_when_it_was_due() {
    let server = start();
    for door in [vec![], vec!["--sqs".to_owned(), sqs_of(&server)]] {
        let mut words = vec!["bench", "latency", "--rate", "1000", "--messages", "300", "-o", "json"];
        words.extend(door.iter().map(String::as_str));
        let figures = server.run(&words).json();
        all_is_well(&figures, 300);
        for name in ["publish_latency", "end_to_end_latency", "send_delay"] {
            latencies(&figures, name, 300);
        }
        // The last one is due 299 ms after the first.
        assert!(figures["published_time"].as_f64().is_some_and(|time| time >= 0.299), "{figures}");
    }
    nothing_is_left(&server);
}

#[test]
fn a_person_gets_a_table_and_the_server_has_its_costs() {
    let server = start();
    let pid = server.id().to_string();
    let shown = server.run(&["bench", "--duration", "300ms", "--warmup", "50ms", "--pid", &pid]).good();
    for text in ["closed loop", "published", "acked", "of CPU a message", "each delivered and acked once"] {
        assert!(shown.contains(text), "{text} is not in {shown}");
    }
    let row = |name: &str| shown.lines().any(|line| line.starts_with(name) && line.ends_with('s'));
    assert!(row("publish ") && row("end to end ") && shown.contains("P99.9"), "{shown}");
    let words = ["bench", "--duration", "300ms", "--pid", &pid, "-o", "json"];
    let costs = server.run(&words).json()["server"].clone();
    assert!(costs["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{costs}");
    for name in ["cpu_per_message", "cores", "written_per_message"] {
        assert!(costs[name].is_number(), "{name}: {costs}");
    }
    nothing_is_left(&server);
}

#[test]
fn it_wants_a_stream_of_its_own_and_may_leave_it() {
    let server = start();
    server.run(&["bench", "--stream", "load", "--keep", "--messages", "10"]).good();
    assert_eq!(server.run(&["stream", "show", "load", "-o", "json"]).json()["last_seq"], 10);
    server
        .run(&["bench", "--stream", "load", "--messages", "10"])
        .refused(9, &["a stream of its own", "load"]);
    let sqs = sqs_of(&server);
    server.run(&["bench", "--sqs", &sqs, "--stream", "queue", "--keep", "--messages", "10"]).good();
    server.run(&["bench", "--sqs", &sqs, "--stream", "queue", "--messages", "10"]).refused(9, &["queue"]);
    let left = server.run(&["stream", "list", "-o", "json"]).json();
    assert_eq!(left["streams"].as_array().map(Vec::len), Some(2), "what was there is left alone");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_done() {
    let server = start();
    for (words, said) in [
        (&["--window", "1", "--batch", "2"][..], "--window must have room"),
        (&["--size", "4"], "--size is from 16"),
        (&["drain", "--rate", "5"], "no rate"),
        (&["--door", "sqs"], "where does that server speak SQS"),
        (&["--pid", "4294967295"], "--pid names no process"),
        (&["--group", "acks=sometimes"], "acks"),
        (&["--group", "akcs=durable"], "akcs"),
        (&["--producers", "0"], "--producers"),
        (&["quickly"], "quickly"),
    ] {
        server.run(&[&["bench"], words].concat()).refused(2, &[said]);
    }
    let sqs = sqs_of(&server);
    server.run(&["bench", "--sqs", &sqs, "--group", "Visibility=5"]).refused(2, &["Visibility"]);
    nothing_is_left(&server);
    run(&["bench", "--server", "127.0.0.1:1"], "", &[])
        .refused(7, &["cannot reach the server at 127.0.0.1:1"]);
    run(&["bench", "--sqs", "http://127.0.0.1:1"], "", &[]).refused(7, &["--sqs takes another"]);
}

#[test]
fn who_interrupts_it_gets_what_there_is_and_the_stream_is_gone() {
    let server = start();
    let bench = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", "--warmup", "1ms", "--duration", "10m", "--rate", "100", "-o", "json"])
        .env("FOREBAY_SERVER", &server.address)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let group = until("messages are acked", || {
        let groups = server.run(&["group", "list", "-o", "json"]).json();
        let group = groups["groups"][0].clone();
        group["last_processed_seq"].as_u64().filter(|seq| *seq > 5).map(|_| group)
    });
    assert!(group["stream"].as_str().is_some_and(|name| name.starts_with("bench-")), "{group}");
    let id = bench.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is a kill command").success());
    let ran = bench.wait_with_output().expect("it ends");
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let figures: Value = serde_json::from_slice(&ran.stdout).expect("one object");
    assert_eq!((&figures["end"], &figures["check"]["lost"]), (&json!("interrupted"), &Value::Null));
    assert!(figures["acked"].as_u64().is_some_and(|acked| acked > 0), "{figures}");
    nothing_is_left(&server);
}
