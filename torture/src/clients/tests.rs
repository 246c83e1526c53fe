//! The HTTP clients at work on a small stand-in for the door: it keeps to the contract, breaks connections as a
//! killed server does, and so shows that what the clients write down of a server that keeps its promises is a good
//! history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{pull, push};
use crate::content::Flavour;
use crate::dice::Dice;
use crate::history::{History, Phase};
use crate::plan::{Door, GroupPlan, StreamPlan};
use crate::run::check_file;
use crate::world::{Place, Server, Stage, World};

/// After so many requests a connection is closed instead of an answer.
const PATIENCE: usize = 9;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the date is after 1970").as_micros() as u64
}

fn text_of(micros: u64) -> String {
    let (seconds, days) = (micros / 1_000_000, micros / 86_400_000_000);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", micros % 1_000_000)
}

fn micros(span: &Value) -> Option<u64> {
    span.as_str()?.strip_suffix("ms")?.parse::<u64>().ok().map(|millis| millis * 1_000)
}

/// A message of the one stream, as its one group sees it.
struct Stored {
    message: Value,
    published: u64,
    not_before: u64,
    attempt: u64,
    /// Until when it is leased.
    leased: Option<u64>,
    is_done: bool,
}

#[derive(Default)]
struct Stand {
    stored: Vec<Stored>,
    ids: BTreeMap<String, usize>,
}

impl Stand {
    fn answer(&mut self, path: &str, body: &Value) -> (u16, Value) {
        match path.rsplit('/').next() {
            Some("messages") => (201, self.publish(body)),
            Some("receive") => (200, self.receive(body)),
            Some(verb) => (200, self.settle(verb, body)),
            None => (404, Value::Null),
        }
    }

    fn publish(&mut self, body: &Value) -> Value {
        let mut results = Vec::new();
        for message in body["messages"].as_array().expect("messages") {
            let id = message["id"].as_str().expect("an id").to_owned();
            let fresh = self.stored.len();
            let index = *self.ids.entry(id.clone()).or_insert(fresh);
            if index == fresh {
                let not_before = now() + micros(&message["delay"]).unwrap_or(0);
                let (message, published) = (message.clone(), now());
                let (attempt, leased, is_done) = (0, None, false);
                self.stored.push(Stored { message, published, not_before, attempt, leased, is_done });
            }
            results.push(json!({ "seq": index + 1, "id": id, "duplicate": index != fresh }));
        }
        json!({ "results": results })
    }

    fn receive(&mut self, body: &Value) -> Value {
        let max = body["max"].as_u64().expect("max") as usize;
        let timeout = micros(&body["timeout"]).unwrap_or(TIMEOUT_MS * 1_000);
        let mut messages = Vec::new();
        for (stored, seq) in self.stored.iter_mut().zip(1..) {
            let free = stored.leased.is_none_or(|until| until < now()) && stored.not_before <= now();
            if stored.is_done || !free || messages.len() == max {
                continue;
            }
            stored.attempt += 1;
            let deadline = now() + timeout;
            stored.leased = Some(deadline);
            let mut message = stored.message.clone();
            if let Some(fields) = message.as_object_mut() {
                fields.remove("delay");
            }
            message["lease"] = json!(format!("{seq}-{}", stored.attempt));
            message["seq"] = json!(seq);
            message["attempt"] = json!(stored.attempt);
            message["deadline"] = json!(text_of(deadline));
            message["published_at"] = json!(text_of(stored.published));
            messages.push(message);
        }
        json!({ "messages": messages })
    }

    fn settle(&mut self, verb: &str, body: &Value) -> Value {
        let action = body["action"].as_str().unwrap_or(verb);
        let mut results = Vec::new();
        for lease in body["leases"].as_array().expect("leases") {
            let (seq, attempt) = lease.as_str().and_then(|lease| lease.split_once('-')).expect("our lease");
            let stored = &mut self.stored[seq.parse::<usize>().expect("our lease") - 1];
            let held = stored.leased.is_some_and(|until| until >= now()) && !stored.is_done;
            let outcome = if !held || stored.attempt.to_string() != attempt {
                "not_yours"
            } else {
                stored.leased = None;
                match action {
                    "ack" => {
                        stored.is_done = true;
                        "acked"
                    }
                    "skip" => {
                        stored.is_done = true;
                        "skipped"
                    }
                    "retry" => {
                        stored.not_before = now() + micros(&body["delay"]).unwrap_or(0);
                        "retrying"
                    }
                    "extend" => {
                        stored.leased = Some(now() + micros(&body["by"]).expect("for how long"));
                        "extended"
                    }
                    other => panic!("nobody asks for {other} here"),
                }
            };
            results.push(json!({ "lease": lease, "outcome": outcome }));
        }
        json!({ "results": results })
    }
}

async fn serve(stand: Arc<Mutex<Stand>>, mut stream: TcpStream) -> Option<()> {
    let mut got = String::new();
    for served in 1.. {
        let (head, length) = loop {
            if let Some((head, body)) = got.split_once("\r\n\r\n") {
                let length: usize =
                    head.split("Content-Length: ").nth(1)?.lines().next()?.parse().expect("a length");
                if body.len() >= length {
                    break (head.to_owned(), length);
                }
            }
            let mut buffer = [0; 64 << 10];
            let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
            got.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
        };
        let body_at = head.len() + 4;
        let body = serde_json::from_str(&got[body_at..body_at + length]).expect("JSON");
        got.drain(..body_at + length);
        let path = head.split(' ').nth(1)?.to_owned();
        let (status, answer) = stand.lock().expect("nobody panics").answer(&path, &body);
        if served % PATIENCE == 0 {
            return None;
        }
        if answer["messages"].as_array().is_some_and(Vec::is_empty) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 {status} Yes\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(format!("{head}{answer}").as_bytes()).await.ok()?;
    }
    None
}

const TIMEOUT_MS: u64 = 300;

#[tokio::test]
async fn http_clients_of_a_server_that_keeps_its_promises_write_a_good_history() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stand = Arc::new(Mutex::new(Stand::default()));
    let door = stand.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(door.clone(), stream));
        }
    });
    let path = std::env::temp_dir().join(format!("forebay-clients-{}", std::process::id()));
    let server = Server { run: 1, address, sqs: None, kurrent: None, is_node: false };
    let (_tell_place, place) = watch::channel(Some(Place::One(server)));
    let (tell_stage, stage) = watch::channel(Stage::Chaos);
    let history = History::create(&path).expect("a file");
    let world = Arc::new(World::new(history, place, stage));
    let group = GroupPlan {
        stream: "mixed",
        group: "a group",
        is_ordered: false,
        is_durable: false,
        timeout_ms: TIMEOUT_MS,
        retries: None,
        rate: None,
        consumers: 0,
        pullers: 2,
    };
    let stream = StreamPlan {
        name: "mixed",
        flavour: Flavour::Mixed,
        producers: vec![Door::Http],
        gap_ms: 10,
        batch_max: 4,
    };
    world.write(0, Phase::Info, "stream", &[("name", "mixed".to_owned())]);
    world.write(0, Phase::Info, "group", &group.fields());
    world.write(0, Phase::Invoke, "start", &[("run", "1".to_owned())]);
    let mut consumers = tokio::task::JoinSet::new();
    for process in 2..4 {
        consumers.spawn(pull(world.clone(), process, group.clone(), Dice::from(process.into())));
    }
    let producer = tokio::spawn(push(world.clone(), 1, stream, Dice::from(1)));
    while stand.lock().expect("nobody panics").stored.len() < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tell_stage.send_replace(Stage::Calm);
    producer.await.expect("it ends");
    tell_stage.send_replace(Stage::Healed);
    while !stand.lock().expect("nobody panics").stored.iter().all(|stored| stored.is_done) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let figures = [("group", group.name()), ("lag", "0".to_owned()), ("parked", "0".to_owned())];
    world.write(0, Phase::Ok, "figures", &figures);
    tell_stage.send_replace(Stage::Over);
    consumers.join_all().await;
    world.history.flush().expect("it can be written");
    let report = check_file(&path).expect("a history");
    assert!(report.violations.is_empty(), "{report}\n{}", path.display());
    let counts = report.counts;
    assert!(counts.confirmed >= 100 && counts.confirmed_again > 0, "{counts:?}");
    assert!(counts.deliveries > counts.confirmed && !counts.duplicates.is_empty(), "{counts:?}");
    std::fs::remove_file(path).expect("it can go");
}
