//! A server at work, as an operator might find it: some groups keep up, one falls behind, one fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Client, Server};

/// Producers and consumers that work until this is dropped.
pub(crate) struct Scene {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A group, and how its consumers work.
struct Team {
    group: &'static str,
    consumers: &'static [&'static str],
    /// Messages that a consumer takes at a time, and how long it works on them.
    batch: u32,
    works: Duration,
    settings: Value,
    /// Of a hundred messages so many are parked, and so many fail and are retried.
    parks: u64,
    fails: u64,
}

const REASONS: [&str; 5] = [
    "card declined: insufficient funds",
    "card declined: expired card",
    "payment provider answered 503",
    "no such customer",
    "amount must be positive. value=`-12.50`",
];

impl Scene {
    pub(crate) fn play(server: &Server) -> Scene {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let team = |group, consumers, batch, works| Team {
            group,
            consumers,
            batch,
            works: Duration::from_millis(works),
            settings: json!({}),
            parks: 0,
            fails: 0,
        };
        let teams = [
            Team {
                settings: json!({ "rate": { "per_second": 60, "burst": 10 } }),
                parks: 4,
                fails: 6,
                ..team("orders/billing", &["billing-1", "billing-2", "billing-3"][..], 10, 40)
            },
            team("orders/shipping", &["shipping-1", "shipping-2"][..], 50, 20),
            team("orders/analytics", &["warehouse-loader"][..], 100, 60),
            Team {
                settings: json!({ "strategy": "ordered" }),
                parks: 1,
                fails: 20,
                ..team("emails/senders", &["smtp-eu-1", "smtp-eu-2", "smtp-us-1"][..], 5, 30)
            },
            Team {
                settings: json!({ "max_retries": 2 }),
                fails: 45,
                ..team("webhooks/delivery", &["hooks-1"][..], 5, 15)
            },
            team("sensors/ingest", &["ingest-1", "ingest-2", "ingest-3", "ingest-4"][..], 200, 10),
        ];
        for team in teams {
            let (stream, group) = team.group.split_once('/').expect("a stream and a group");
            server.call("PUT", &format!("/subscriptions/{stream}/{group}"), &team.settings);
            for (n, consumer) in team.consumers.iter().enumerate() {
                let (client, is_over) = (server.client(), is_over.clone());
                let path = format!("/subscriptions/{stream}/{group}");
                let worker = Worker {
                    path,
                    consumer: (*consumer).to_owned(),
                    seed: n as u64,
                    batch: team.batch,
                    works: team.works,
                    parks: team.parks,
                    fails: team.fails,
                };
                threads.push(std::thread::spawn(move || worker.run(client, &is_over)));
            }
        }
        server.call("PUT", "/subscriptions/emails/audit-log", &json!({}));
        server.call("POST", "/subscriptions/emails/audit-log/pause", &json!({}));
        server.call("PUT", "/subscriptions/invoices/archive", &json!({}));
        for (stream, rate, key) in [
            ("orders", 90, "customer"),
            ("emails", 35, "user"),
            ("webhooks", 12, "endpoint"),
            ("sensors", 400, "device"),
            ("invoices", 1, "account"),
        ] {
            let (client, is_over) = (server.client(), is_over.clone());
            threads.push(std::thread::spawn(move || produce(client, stream, rate, key, &is_over)));
        }
        let later: Vec<Value> =
            (1..=40).map(|n| json!({ "body": { "reminder": n }, "delay": format!("{}m", n * 7) })).collect();
        server.call("POST", "/streams/reminders/messages", &json!({ "messages": later }));
        Scene { is_over, threads }
    }
}

fn produce(mut client: Client, stream: &str, rate: u64, key: &str, is_over: &AtomicBool) {
    let mut n: u64 = 0;
    while !is_over.load(Ordering::Relaxed) {
        // Five times a second, with waves.
        let wave = 1.0 + 0.35 * ((n as f64) / 40.0).sin();
        let count = ((rate as f64 / 5.0) * wave).ceil() as u64;
        let message = |i: u64| {
            let id = n * 1_000 + i;
            json!({
                "type": format!("{stream}.created"), "key": format!("{key}-{}", id * 7 % 97),
                "headers": { "source": "checkout", "region": if id.is_multiple_of(3) { "eu-west" } else { "us-east" } },
                "body": { "id": format!("{stream}-{id}"), "amount": (id % 900) as f64 / 4.0, "items": id % 5 + 1 },
            })
        };
        let messages: Vec<Value> = (0..count.max(1)).map(message).collect();
        let path = format!("/streams/{stream}/messages");
        if client.call("POST", &path, &json!({ "messages": messages })).is_none() {
            return;
        }
        n += 1;
        std::thread::sleep(Duration::from_millis(if rate < 5 { 1_000 } else { 200 }));
    }
}

struct Worker {
    path: String,
    consumer: String,
    seed: u64,
    batch: u32,
    works: Duration,
    parks: u64,
    fails: u64,
}

impl Worker {
    fn run(&self, mut client: Client, is_over: &AtomicBool) {
        let mut round = self.seed;
        while !is_over.load(Ordering::Relaxed) {
            let wish = json!({ "max": self.batch, "wait": "500ms", "consumer": self.consumer });
            let Some((_, taken)) = client.call("POST", &format!("{}/receive", self.path), &wish) else {
                return;
            };
            let messages = taken["messages"].as_array().cloned().unwrap_or_default();
            if messages.is_empty() {
                continue;
            }
            std::thread::sleep(self.works + Duration::from_millis(round * 37 % 50));
            let (mut done, mut failed) = (Vec::new(), Vec::new());
            for message in &messages {
                round += 1;
                let lot = round * 61 % 100;
                let lease = message["lease"].clone();
                if lot < self.parks {
                    let reason = REASONS[[0, 0, 0, 1, 1, 2, 2, 3, 4][(round % 9) as usize]];
                    let nack = json!({ "leases": [lease], "action": "park", "reason": reason });
                    client.call("POST", &format!("{}/nack", self.path), &nack);
                } else if lot < self.parks + self.fails {
                    failed.push(lease);
                } else {
                    done.push(lease);
                }
            }
            for (call, body) in [
                ("ack", json!({ "leases": done })),
                (
                    "nack",
                    json!({ "leases": failed, "action": "retry", "reason": "the endpoint answered 502" }),
                ),
            ] {
                if body["leases"].as_array().is_some_and(|leases| !leases.is_empty())
                    && client.call("POST", &format!("{}/{call}", self.path), &body).is_none()
                {
                    return;
                }
            }
        }
    }
}
