//! A consumer over HTTP: receives, and settles by the lease. Its leases hang on the clock, so it settles after a
//! restart of the server what it took before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AGAIN, ANSWER_WITHIN, Arrived, write_delivery};
use crate::content::Content;
use crate::dice::Dice;
use crate::history::Phase;
use crate::http::{Connection, from_base64, in_path, micros_of};
use crate::plan::GroupPlan;
use crate::world::{Server, Stage, World, term_at};

/// Messages that a consumer holds before it takes no more.
const HELD_MAX: usize = 12;

pub(crate) async fn pull(world: Arc<World>, process: u32, group: GroupPlan, dice: Dice) {
    let name = group.name();
    let path = format!("/subscriptions/{}/{}", in_path(group.stream), in_path(group.group));
    let mut consumer = Consumer { world, process, group, name, path, dice, held: BTreeMap::new() };
    while let Some(server) = consumer.world.listening().await {
        if let Some((server, mut connection)) = open(server).await {
            // Whatever went wrong, held messages are still held.
            let _ = consumer.work(server, &mut connection).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A connection, and the server at its other end. That of a cluster may have changed since it was asked for.
async fn open(server: Server) -> Option<(Server, Connection)> {
    let mut connection = Connection::open(server.address).await.ok()?;
    if !server.is_node {
        return Some((server, connection));
    }
    let asked = tokio::time::timeout(ANSWER_WITHIN, term_at(&mut connection));
    let run = asked.await.ok().flatten()?;
    Some((Server { run, ..server }, connection))
}

/// A message in hand, by the number of its delivery.
struct Held {
    lease: String,
    is_poison: bool,
    due: Instant,
    intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    Ack,
    Retry(Option<u64>),
    Park,
    Skip,
    Extend(u64),
}

struct Consumer {
    world: Arc<World>,
    process: u32,
    group: GroupPlan,
    name: String,
    path: String,
    dice: Dice,
    held: BTreeMap<u64, Held>,
}

/// The connection is of no more use.
struct Gone;

impl Consumer {
    async fn work(&mut self, server: Server, connection: &mut Connection) -> Result<(), Gone> {
        while self.world.stage() < Stage::Over && !connection.is_over() {
            self.settle_due(server, connection).await?;
            let next = self.held.values().map(|held| held.due).min();
            if self.held.len() < HELD_MAX {
                let wait = next.map_or(Duration::from_secs(1), |due| due - Instant::now());
                self.receive(server, connection, wait.min(Duration::from_secs(1))).await?;
            } else if let Some(due) = next {
                tokio::time::sleep_until(due).await;
            }
        }
        Ok(())
    }

    async fn receive(
        &mut self,
        server: Server,
        connection: &mut Connection,
        wait: Duration,
    ) -> Result<(), Gone> {
        let max = self.dice.between(1, 6);
        let wait = format!("{}ms", wait.as_millis());
        let mut body = json!({ "max": max, "wait": wait, "consumer": format!("puller-{}", self.process) });
        if self.dice.permille(500) {
            let timeout = self.dice.between(self.group.timeout_ms, self.group.timeout_ms * 2);
            body["timeout"] = json!(format!("{timeout}ms"));
        }
        let group = [("group", self.name.clone())];
        self.world.write(self.process, Phase::Invoke, "receive", &group);
        let path = format!("{}/receive", self.path);
        let sent = connection.send("POST", &path, Some(&body)).await;
        // Now and then a consumer goes without waiting for what it asked for.
        let goes = self.world.stage() == Stage::Chaos && self.dice.permille(15);
        let answer = match sent {
            Ok(()) if !goes => tokio::time::timeout(ANSWER_WITHIN, connection.answer()).await,
            _ => {
                self.world.write(self.process, Phase::Info, "receive", &group);
                return Err(Gone);
            }
        };
        let Ok(Ok(answer)) = answer else {
            self.world.write(self.process, Phase::Info, "receive", &group);
            return Err(Gone);
        };
        let Some(messages) = answer.body["messages"].as_array().filter(|_| answer.status == 200) else {
            self.refused("receive", answer.status, &answer.body);
            self.world.write(self.process, Phase::Fail, "receive", &group);
            return Err(Gone);
        };
        self.world.write(self.process, Phase::Ok, "receive", &group);
        for message in messages {
            self.delivered(server, message);
        }
        Ok(())
    }

    fn refused(&self, what: &str, status: u16, body: &Value) {
        // A server that stops says so.
        if !matches!(body["retry"].as_str(), Some("later" | "same_id")) {
            self.world.trouble(self.process, format!("{}: {what} was answered {status} {body}", self.name));
        }
    }

    fn delivered(&mut self, server: Server, message: &Value) {
        let Some((lease, arrived)) = parse(message) else {
            self.world.trouble(self.process, format!("{}: this is no delivery: {message}", self.name));
            return;
        };
        let run = server.run;
        let delivery = write_delivery(&self.world, self.process, &self.name, run, &arrived);
        let Some(delivery) = delivery else { return };
        let is_poison = arrived.content.is_poison();
        let mut held = Held { lease, is_poison, due: Instant::now(), intent: Intent::Ack };
        if self.intend(&mut held, arrived.deadline) {
            self.held.insert(delivery, held);
        }
    }

    /// Makes up its mind about a message. False: it will never be heard of again.
    fn intend(&mut self, held: &mut Held, deadline: u64) -> bool {
        let dice = &mut self.dice;
        let soon = Duration::from_millis(dice.between(0, 40));
        let (intent, after) = match (self.world.stage(), held.is_poison) {
            (Stage::Chaos | Stage::Calm, true) => (Intent::Retry(None), soon),
            (Stage::Chaos, false) => match dice.between(0, 999) {
                0..650 => (Intent::Ack, soon),
                // Long enough to see the server go and come again.
                650..850 => {
                    (Intent::Ack, Duration::from_millis(dice.between(200, self.group.timeout_ms * 3 / 4)))
                }
                850..900 => (Intent::Retry(Some(dice.between(50, 900))), soon),
                900..920 => (Intent::Retry(None), soon),
                920..960 => (Intent::Extend(self.group.timeout_ms + dice.between(0, 1_000)), soon),
                960..970 => return false,
                970..980 => {
                    let deadline = self.world.history.instant_of(self.world.history.time_of(deadline));
                    let after = Instant::from_std(deadline).saturating_duration_since(Instant::now());
                    (Intent::Ack, after + Duration::from_millis(dice.between(50, 600)))
                }
                980..990 if self.group.retries.is_some() => (Intent::Park, soon),
                980..990 => (Intent::Skip, soon),
                _ => (Intent::Ack, soon),
            },
            _ => (Intent::Ack, Duration::ZERO),
        };
        held.intent = intent;
        held.due = Instant::now() + after;
        true
    }

    /// Settles everything whose time has come, one by one or all acks together.
    async fn settle_due(&mut self, server: Server, connection: &mut Connection) -> Result<(), Gone> {
        let now = Instant::now();
        let due: Vec<(u64, Intent)> = self
            .held
            .iter()
            .filter(|(_, held)| held.due <= now)
            .map(|(&delivery, held)| (delivery, held.intent))
            .collect();
        let (acks, others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, intent)| *intent == Intent::Ack);
        if !acks.is_empty() {
            let acks: Vec<u64> = acks.into_iter().map(|(delivery, _)| delivery).collect();
            self.settle(server, connection, &acks, Intent::Ack).await?;
        }
        for (delivery, intent) in others {
            self.settle(server, connection, &[delivery], intent).await?;
        }
        Ok(())
    }

    async fn settle(
        &mut self,
        server: Server,
        connection: &mut Connection,
        deliveries: &[u64],
        intent: Intent,
    ) -> Result<(), Gone> {
        let leases: Vec<&str> =
            deliveries.iter().map(|delivery| self.held[delivery].lease.as_str()).collect();
        let mut body = json!({ "leases": leases });
        let (verb, action, delay_ms) = match intent {
            Intent::Ack => ("ack", "ack", None),
            Intent::Retry(delay) => ("nack", "retry", delay),
            Intent::Park => ("nack", "park", None),
            Intent::Skip => ("nack", "skip", None),
            Intent::Extend(by) => ("extend", "extend", Some(by)),
        };
        if verb == "nack" {
            body["action"] = json!(action);
            body["reason"] = json!("as it happens");
        }
        if let Some(millis) = delay_ms {
            let field = if verb == "extend" { "by" } else { "delay" };
            body[field] = json!(format!("{millis}ms"));
        }
        for delivery in deliveries {
            let mut fields = vec![
                ("delivery", delivery.to_string()),
                ("action", action.to_owned()),
                ("run", server.run.to_string()),
            ];
            fields.extend(delay_ms.map(|delay| ("delay_ms", delay.to_string())));
            self.world.write(self.process, Phase::Invoke, "settle", &fields);
        }
        let path = format!("{}/{verb}", self.path);
        let asked = connection.request("POST", &path, Some(&body));
        let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
        let results = match &answer {
            Ok(Ok(answer)) if answer.status == 200 => answer.body["results"].as_array(),
            Ok(Ok(answer)) => {
                self.refused(verb, answer.status, &answer.body);
                None
            }
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(results) = results else {
            // Tried again on the next connection: the lease may well be good.
            for delivery in deliveries {
                let fields = [("delivery", delivery.to_string())];
                self.world.write(self.process, Phase::Info, "settle", &fields);
            }
            return Err(Gone);
        };
        if results.len() != deliveries.len() {
            self.world.trouble(self.process, format!("{}: as many answers as leases", self.name));
        }
        for (delivery, result) in deliveries.iter().zip(results) {
            let outcome = result["outcome"].as_str().unwrap_or("none");
            let fields = [("delivery", delivery.to_string()), ("outcome", outcome.to_owned())];
            self.world.write(self.process, Phase::Ok, "settle", &fields);
            match self.held.get_mut(delivery) {
                Some(held) if outcome == "extended" => {
                    held.intent = Intent::Ack;
                    let after = self.dice.between(0, self.group.timeout_ms);
                    held.due = Instant::now() + Duration::from_millis(after);
                }
                _ => {
                    self.held.remove(delivery);
                }
            }
        }
        Ok(())
    }
}

/// A delivery of the HTTP door.
fn parse(message: &Value) -> Option<(String, Arrived)> {
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    let headers = message["headers"].as_object().into_iter().flatten();
    let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
    let body = match (message["body_base64"].as_str(), message["body_text"].as_str()) {
        (Some(base64), _) => from_base64(base64)?,
        (None, Some(text)) => text.as_bytes().to_vec(),
        (None, None) => message.get("body")?.to_string().into_bytes(),
    };
    let content = Content {
        id: text("id"),
        key: text("key"),
        kind: text("type"),
        headers: headers.collect(),
        priority: message["priority"].as_u64().unwrap_or(0) as u32,
        body,
    };
    let arrived = Arrived {
        seq: message["seq"].as_u64()?,
        attempt: message["attempt"].as_u64()? as u32,
        deadline: micros_of(message["deadline"].as_str()?)?,
        published: micros_of(message["published_at"].as_str()?)?,
        content,
        session: None,
    };
    Some((message["lease"].as_str()?.to_owned(), arrived))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_read_with_all_that_it_has() {
        let message = json!({
            "lease": "abc", "seq": 12, "attempt": 2, "deadline": "1970-01-01T00:00:30Z",
            "published_at": "1970-01-01T00:00:00.000005Z", "id": "i", "type": "t", "key": "k",
            "headers": { "n": "7" }, "body": { "b": 1, "a": 2 }, "priority": 3
        });
        let (lease, arrived) = parse(&message).expect("a delivery");
        assert_eq!((lease.as_str(), arrived.seq, arrived.attempt), ("abc", 12, 2));
        assert_eq!((arrived.deadline, arrived.published), (30_000_000, 5));
        assert_eq!(arrived.content.number(), Some(7));
        assert_eq!((arrived.content.priority, &arrived.content.key[..]), (3, "k"));
        assert_eq!(arrived.content.body, b"{\"a\":2,\"b\":1}");
        assert!(parse(&json!({ "lease": "abc" })).is_none());
    }
}
