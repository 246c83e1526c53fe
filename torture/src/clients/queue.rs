//! Clients of SQS queues: producers that send one message or a batch, and consumers that receive, delete and change the
//! visibility of the messages that they hold. They speak the JSON protocol of SQS, and know nothing of streams and
//! groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AGAIN, ANSWER_WITHIN};
use crate::content::{Content, NUMBER};
use crate::dice::Dice;
use crate::history::{Phase, Time};
use crate::http::{Answer, Connection, HttpError};
use crate::plan::QueuePlan;
use crate::world::{Stage, World};

/// Messages that a consumer holds before it takes no more.
const HELD_MAX: usize = 15;
/// Message groups of a FIFO queue.
const GROUPS: u64 = 6;

/// A connection to the SQS door, and the address of the queue there.
pub(crate) struct Link {
    connection: Connection,
    url: String,
}

/// The connection is of no more use.
#[derive(Debug)]
pub(crate) struct Gone;

impl Link {
    /// Connects, and asks where the queue is.
    pub(crate) async fn open(address: std::net::SocketAddr, queue: &QueuePlan) -> anyhow::Result<Link> {
        let mut connection = Connection::open(address).await?;
        let name = json!({ "QueueName": queue.name });
        let answer = tokio::time::timeout(ANSWER_WITHIN, connection.action("GetQueueUrl", &name)).await??;
        match answer.body["QueueUrl"].as_str() {
            Some(url) if answer.status == 200 => Ok(Link { url: url.to_owned(), connection }),
            _ => anyhow::bail!("{}: the address of the queue was answered {answer:?}", queue.name),
        }
    }

    /// Asks for the queue, creating it if it is not there. True if it was not.
    pub(crate) async fn create(address: std::net::SocketAddr, queue: &QueuePlan) -> anyhow::Result<bool> {
        let mut connection = Connection::open(address).await?;
        let name = json!({ "QueueName": queue.name });
        let found = tokio::time::timeout(ANSWER_WITHIN, connection.action("GetQueueUrl", &name)).await??;
        let request = json!({ "QueueName": queue.name, "Attributes": queue.attributes() });
        let answer =
            tokio::time::timeout(ANSWER_WITHIN, connection.action("CreateQueue", &request)).await??;
        if answer.status != 200 {
            anyhow::bail!("{}: the queue was answered {answer:?}", queue.name);
        }
        Ok(found.status != 200)
    }

    /// How many messages the queue has, in any state.
    pub(crate) async fn left(&mut self) -> anyhow::Result<u64> {
        let names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ];
        let answer = self.ask("GetQueueAttributes", json!({ "AttributeNames": names })).await?;
        let count =
            |name: &&str| answer.body["Attributes"][*name].as_str().and_then(|text| text.parse::<u64>().ok());
        let counts: Option<Vec<u64>> = names.iter().map(count).collect();
        match counts {
            Some(counts) if answer.status == 200 => Ok(counts.iter().sum()),
            _ => anyhow::bail!("the attributes of a queue were answered {answer:?}"),
        }
    }

    async fn ask(&mut self, action: &str, mut body: Value) -> Result<Answer, HttpError> {
        body["QueueUrl"] = json!(self.url);
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.connection.action(action, &body));
        asked.await.unwrap_or(Err(HttpError::Ended))
    }
}

/// A message to send.
struct Draft {
    number: u64,
    group: Option<String>,
    body: String,
}

impl Draft {
    fn new(number: u64, queue: &QueuePlan, dice: &mut Dice) -> Draft {
        let size = if dice.permille(100) { dice.between(5_000, 40_000) } else { dice.between(0, 300) };
        let filling: String = (0..size).map(|_| char::from(b'a' + dice.between(0, 25) as u8)).collect();
        let group = queue.is_fifo.then(|| format!("group-{}", dice.between(1, GROUPS)));
        Draft { number, group, body: format!("{number} {filling}") }
    }

    fn json(&self) -> Value {
        let mut message = json!({ "MessageBody": self.body });
        if let Some(group) = &self.group {
            message["MessageGroupId"] = json!(group);
            // A message whose outcome is unknown is sent again, and stored once.
            message["MessageDeduplicationId"] = json!(format!("message-{}", self.number));
        }
        message
    }
}

/// Of all that a consumer sees of a message.
fn digest(number: u64, group: Option<&str>, body: &str) -> u64 {
    let content = Content {
        key: group.unwrap_or_default().to_owned(),
        headers: vec![(NUMBER.to_owned(), number.to_string())],
        body: body.as_bytes().to_vec(),
        ..Content::default()
    };
    content.digest()
}

pub(crate) async fn send(world: Arc<World>, process: u32, queue: QueuePlan, dice: Dice) {
    let mut sender = Sender { world, process, queue, dice, batch: Vec::new() };
    while let Some(server) = sender.world.listening().await {
        if let Some(address) = server.sqs
            && let Ok(mut link) = Link::open(address, &sender.queue).await
        {
            sender.work(&mut link).await;
        }
        if sender.is_done() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct Sender {
    world: Arc<World>,
    process: u32,
    queue: QueuePlan,
    dice: Dice,
    /// Messages of a FIFO queue must be confirmed before others are sent.
    batch: Vec<Draft>,
}

impl Sender {
    fn is_done(&self) -> bool {
        self.world.stage() > Stage::Chaos && self.batch.is_empty()
    }

    async fn work(&mut self, link: &mut Link) {
        while !self.is_done() && self.world.stage() < Stage::Over && !link.connection.is_over() {
            if self.batch.is_empty() {
                let pause = Duration::from_millis(self.dice.between(1, self.queue.gap_ms));
                tokio::time::sleep(pause).await;
                if self.world.stage() > Stage::Chaos {
                    continue;
                }
                let count = if self.dice.permille(500) { 1 } else { self.dice.between(2, 10) };
                for _ in 0..count {
                    let number = self.world.number();
                    self.batch.push(Draft::new(number, &self.queue, &mut self.dice));
                }
            }
            for draft in &self.batch {
                let content = digest(draft.number, draft.group.as_deref(), &draft.body);
                let mut fields = vec![
                    ("queue", self.queue.name.to_owned()),
                    ("n", draft.number.to_string()),
                    ("content", content.to_string()),
                ];
                fields.extend(draft.group.clone().map(|group| ("key", group)));
                self.world.write(self.process, Phase::Invoke, "send", &fields);
            }
            let answer = match &self.batch[..] {
                [one] => link.ask("SendMessage", one.json()).await,
                many => {
                    let entry = |(n, draft): (usize, &Draft)| {
                        let mut entry = draft.json();
                        entry["Id"] = json!(n.to_string());
                        entry
                    };
                    let entries: Vec<Value> = many.iter().enumerate().map(entry).collect();
                    link.ask("SendMessageBatch", json!({ "Entries": entries })).await
                }
            };
            if !self.answered(answer) {
                return;
            }
        }
    }

    /// False if the connection is of no more use.
    fn answered(&mut self, answer: Result<Answer, HttpError>) -> bool {
        let answer = match answer {
            Ok(answer) if answer.status == 200 => answer,
            // A refused message is not stored.
            Ok(answer) if (400..500).contains(&answer.status) => {
                for draft in std::mem::take(&mut self.batch) {
                    let fields = [("n", draft.number.to_string()), ("why", answer.body.to_string())];
                    self.world.write(self.process, Phase::Fail, "send", &fields);
                }
                self.world.trouble(self.process, format!("a send was answered {answer:?}"));
                return true;
            }
            _ => {
                for draft in &self.batch {
                    self.world.write(self.process, Phase::Info, "send", &[("n", draft.number.to_string())]);
                }
                if !self.queue.is_fifo {
                    // Sent again it would be another message.
                    self.batch.clear();
                }
                return false;
            }
        };
        let results: BTreeMap<usize, &Value> = match answer.body["Successful"].as_array() {
            None => BTreeMap::from([(0, &answer.body)]),
            Some(all) => {
                let id = |entry: &Value| entry["Id"].as_str().and_then(|id| id.parse().ok());
                all.iter().filter_map(|entry| Some((id(entry)?, entry))).collect()
            }
        };
        for (n, draft) in std::mem::take(&mut self.batch).into_iter().enumerate() {
            let number = ("n", draft.number.to_string());
            match results.get(&n).and_then(|result| result["MessageId"].as_str().map(|id| (id, *result))) {
                Some((id, result)) => {
                    let mut fields = vec![number, ("id", id.to_owned())];
                    fields.extend(sequence(result).map(|seq| ("seq", seq.to_string())));
                    self.world.write(self.process, Phase::Ok, "send", &fields);
                }
                None => {
                    self.world.write(self.process, Phase::Fail, "send", &[number]);
                    self.world.trouble(self.process, format!("a send was answered {answer:?}"));
                }
            }
        }
        true
    }
}

fn sequence(of: &Value) -> Option<u64> {
    of["SequenceNumber"].as_str().and_then(|text| text.parse().ok())
}

pub(crate) async fn work_off(world: Arc<World>, process: u32, queue: QueuePlan, dice: Dice) {
    let mut consumer = Consumer { world, process, queue, dice, held: BTreeMap::new() };
    while let Some(server) = consumer.world.listening().await {
        if let Some(address) = server.sqs
            && let Ok(mut link) = Link::open(address, &consumer.queue).await
        {
            // Messages that are held stay held if the connection fails.
            let _ = consumer.work(&mut link).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A message in hand, by the number of its delivery.
struct Held {
    handle: String,
    due: Instant,
    intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    Delete,
    /// Invisible for so many seconds from now on.
    Hide(u64),
    /// Left until it is visible again.
    Forget,
}

struct Consumer {
    world: Arc<World>,
    process: u32,
    queue: QueuePlan,
    dice: Dice,
    held: BTreeMap<u64, Held>,
}

impl Consumer {
    async fn work(&mut self, link: &mut Link) -> Result<(), Gone> {
        while self.world.stage() < Stage::Over && !link.connection.is_over() {
            self.settle_due(link).await?;
            if self.held.len() < HELD_MAX {
                self.receive(link).await?;
            } else if let Some(due) = self.held.values().map(|held| held.due).min() {
                tokio::time::sleep_until(due).await;
            }
        }
        Ok(())
    }

    async fn receive(&mut self, link: &mut Link) -> Result<(), Gone> {
        let wait = if self.held.is_empty() { self.dice.between(0, 2) } else { 0 };
        let max = self.dice.between(1, 10);
        let body = json!({
            "MaxNumberOfMessages": max,
            "WaitTimeSeconds": wait,
            "MessageSystemAttributeNames": ["All"],
        });
        let (asked, receive) = (self.world.history.now(), self.world.number());
        let answer = match link.ask("ReceiveMessage", body).await {
            Ok(answer) => answer,
            Err(_) => return Err(Gone),
        };
        // Now and then the answer is lost on its way.
        if self.world.stage() == Stage::Chaos && self.dice.permille(15) {
            return Err(Gone);
        }
        if answer.status != 200 {
            self.refused("a receive", &answer);
            return Err(Gone);
        }
        let messages = answer.body["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() && wait == 0 {
            tokio::time::sleep(AGAIN).await;
        }
        for message in &messages {
            if self.received(message, (asked, receive)).is_none() {
                let name = self.queue.name;
                self.world
                    .trouble(self.process, format!("{name} gave {message}, which is no message of this run"));
            }
        }
        Ok(())
    }

    fn received(&mut self, message: &Value, (asked, receive): (Time, u64)) -> Option<()> {
        let body = message["Body"].as_str()?;
        let number: u64 = body.split(' ').next()?.parse().ok()?;
        let attributes = &message["Attributes"];
        let delivery = self.world.number();
        let content = digest(number, attributes["MessageGroupId"].as_str(), body);
        let mut fields = vec![
            ("delivery", delivery.to_string()),
            ("queue", self.queue.name.to_owned()),
            ("n", number.to_string()),
            ("content", content.to_string()),
            ("id", message["MessageId"].as_str()?.to_owned()),
            ("count", attributes["ApproximateReceiveCount"].as_str()?.to_owned()),
            ("receive", receive.to_string()),
            ("asked", asked.to_string()),
        ];
        fields.extend(sequence(attributes).map(|seq| ("seq", seq.to_string())));
        self.world.write(self.process, Phase::Ok, "got", &fields);
        let (intent, after) = self.decide();
        let handle = message["ReceiptHandle"].as_str()?.to_owned();
        self.held.insert(delivery, Held { handle, due: Instant::now() + after, intent });
        Some(())
    }

    fn decide(&mut self) -> (Intent, Duration) {
        let dice = &mut self.dice;
        let timeout = self.queue.timeout_ms;
        if self.world.stage() != Stage::Chaos {
            return (Intent::Delete, Duration::ZERO);
        }
        let soon = Duration::from_millis(dice.between(0, 150));
        match dice.between(0, 999) {
            0..700 => (Intent::Delete, soon),
            // Long enough to see the server go and come again.
            700..850 => (Intent::Delete, Duration::from_millis(dice.between(100, timeout * 3 / 4))),
            850..900 => (Intent::Hide(0), soon),
            900..950 => (Intent::Hide(dice.between(1, 4)), soon),
            950..970 => (Intent::Forget, soon),
            // When it may be visible again.
            _ => (Intent::Delete, Duration::from_millis(timeout + dice.between(0, 600))),
        }
    }

    /// Carries out all intents that are due, one message at a time or all deletes together.
    async fn settle_due(&mut self, link: &mut Link) -> Result<(), Gone> {
        let now = Instant::now();
        let due = self.held.iter().filter(|(_, held)| held.due <= now);
        let due: Vec<(u64, Intent)> = due.map(|(&delivery, held)| (delivery, held.intent)).collect();
        let (deletes, others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, intent)| *intent == Intent::Delete);
        let deletes: Vec<u64> = deletes.into_iter().map(|(delivery, _)| delivery).collect();
        if deletes.len() > 1 && self.dice.permille(700) {
            for some in deletes.chunks(10) {
                self.delete_many(link, some).await?;
            }
        } else {
            for delivery in deletes {
                let request = json!({ "ReceiptHandle": self.held[&delivery].handle });
                self.ask_one(link, delivery, "delete", "DeleteMessage", request).await?;
            }
        }
        for (delivery, intent) in others {
            match intent {
                Intent::Hide(seconds) => {
                    let handle = &self.held[&delivery].handle;
                    let request = json!({ "ReceiptHandle": handle, "VisibilityTimeout": seconds });
                    self.ask_one(link, delivery, "hide", "ChangeMessageVisibility", request).await?;
                }
                Intent::Forget | Intent::Delete => {
                    self.held.remove(&delivery);
                }
            }
        }
        Ok(())
    }

    async fn ask_one(
        &mut self,
        link: &mut Link,
        delivery: u64,
        operation: &str,
        action: &str,
        request: Value,
    ) -> Result<(), Gone> {
        let mut fields = vec![("delivery", delivery.to_string())];
        let seconds = request["VisibilityTimeout"].as_u64();
        fields.extend(seconds.map(|seconds| ("seconds", seconds.to_string())));
        self.world.write(self.process, Phase::Invoke, operation, &fields);
        let answer = link.ask(action, request).await;
        let phase = match &answer {
            Ok(answer) if answer.status == 200 => Phase::Ok,
            Ok(answer) if (400..500).contains(&answer.status) => Phase::Fail,
            _ => Phase::Info,
        };
        self.world.write(self.process, phase, operation, &[("delivery", delivery.to_string())]);
        match (answer, phase) {
            (Ok(_), Phase::Ok | Phase::Fail) => {
                match (self.held.get_mut(&delivery), seconds) {
                    // It is still in hand, for the time that it was asked for.
                    (Some(held), Some(more)) if more > 0 && phase == Phase::Ok => {
                        held.intent = Intent::Delete;
                        held.due = Instant::now() + Duration::from_millis(self.dice.between(0, more * 900));
                    }
                    _ => {
                        self.held.remove(&delivery);
                    }
                }
                Ok(())
            }
            (Ok(answer), _) => {
                self.refused(action, &answer);
                Err(Gone)
            }
            // Tried again on the next connection: the receipt may well be good.
            (Err(_), _) => Err(Gone),
        }
    }

    async fn delete_many(&mut self, link: &mut Link, deliveries: &[u64]) -> Result<(), Gone> {
        let entry = |delivery: &u64| json!({ "Id": delivery.to_string(), "ReceiptHandle": self.held[delivery].handle });
        let entries: Vec<Value> = deliveries.iter().map(entry).collect();
        for delivery in deliveries {
            self.world.write(self.process, Phase::Invoke, "delete", &[("delivery", delivery.to_string())]);
        }
        let answer = match link.ask("DeleteMessageBatch", json!({ "Entries": entries })).await {
            Ok(answer) if answer.status == 200 => answer,
            other => {
                for delivery in deliveries {
                    self.world.write(
                        self.process,
                        Phase::Info,
                        "delete",
                        &[("delivery", delivery.to_string())],
                    );
                }
                if let Ok(answer) = other {
                    self.refused("DeleteMessageBatch", &answer);
                }
                return Err(Gone);
            }
        };
        let named = |list: &str| -> Vec<u64> {
            let entries = answer.body[list].as_array().into_iter().flatten();
            entries.filter_map(|entry| entry["Id"].as_str()?.parse().ok()).collect()
        };
        let (done, failed) = (named("Successful"), named("Failed"));
        for delivery in deliveries {
            let phase = match (done.contains(delivery), failed.contains(delivery)) {
                (true, false) => Phase::Ok,
                (false, true) => Phase::Fail,
                _ => {
                    self.world.trouble(self.process, format!("a batch of deletes was answered {answer:?}"));
                    Phase::Info
                }
            };
            self.world.write(self.process, phase, "delete", &[("delivery", delivery.to_string())]);
            self.held.remove(delivery);
        }
        Ok(())
    }

    /// A server that stops answers so, and any other refusal is trouble.
    fn refused(&self, what: &str, answer: &Answer) {
        if answer.status < 500 {
            self.world.trouble(self.process, format!("{}: {what} was answered {answer:?}", self.queue.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_recognised_by_all_that_a_consumer_sees() {
        let whole = digest(7, Some("group-1"), "7 abc");
        assert_eq!(whole, digest(7, Some("group-1"), "7 abc"));
        for other in [
            digest(8, Some("group-1"), "7 abc"),
            digest(7, None, "7 abc"),
            digest(7, Some("group-1"), "7 ab"),
        ] {
            assert_ne!(other, whole);
        }
    }

    #[test]
    fn sequence_numbers_are_read_with_their_zeros() {
        assert_eq!(sequence(&json!({ "SequenceNumber": "00000000000000000042" })), Some(42));
        assert_eq!(sequence(&json!({})), None);
    }
}
