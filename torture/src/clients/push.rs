//! A producer over HTTP: one batch at a time, and the same batch under the same ids until it is confirmed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{AGAIN, ANSWER_WITHIN, Retry, write_confirmed, write_publish, write_unconfirmed};
use crate::content::Draft;
use crate::dice::Dice;
use crate::http::{Answer, Connection, in_path, to_base64};
use crate::plan::StreamPlan;
use crate::world::{Stage, World};

pub(crate) async fn push(world: Arc<World>, process: u32, stream: StreamPlan, dice: Dice) {
    let mut producer = Producer { world, process, stream, dice, batch: Vec::new() };
    while let Some(server) = producer.world.listening().await {
        if let Ok(mut connection) = Connection::open(server.address).await {
            producer.work(&mut connection).await;
        }
        if producer.is_done() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct Producer {
    world: Arc<World>,
    process: u32,
    stream: StreamPlan,
    dice: Dice,
    /// The batch that must be confirmed before anything else is sent.
    batch: Vec<Draft>,
}

impl Producer {
    fn is_done(&self) -> bool {
        self.world.stage() > Stage::Chaos && self.batch.is_empty()
    }

    async fn work(&mut self, connection: &mut Connection) {
        while !self.is_done() && self.world.stage() < Stage::Over && !connection.is_over() {
            if self.batch.is_empty() {
                let pause = Duration::from_millis(self.dice.between(1, self.stream.gap_ms));
                tokio::time::sleep(pause).await;
                if self.world.stage() > Stage::Chaos {
                    continue;
                }
                for _ in 0..self.dice.between(1, self.stream.batch_max) {
                    let number = self.world.number();
                    self.batch.push(Draft::new(number, self.stream.flavour, true, &mut self.dice));
                }
            }
            for draft in &self.batch {
                write_publish(&self.world, self.process, self.stream.name, draft);
            }
            let path = format!("/streams/{}/messages", in_path(self.stream.name));
            let body = json!({ "messages": self.batch.iter().map(message).collect::<Vec<_>>() });
            let asked = connection.request("POST", &path, Some(&body));
            match tokio::time::timeout(ANSWER_WITHIN, asked).await {
                Ok(Ok(answer)) => self.answered(&answer),
                Ok(Err(_)) | Err(_) => {
                    write_unconfirmed(&self.world, self.process, &self.batch, Retry::SameId, "");
                    return;
                }
            }
        }
    }

    fn answered(&mut self, answer: &Answer) {
        if answer.status == 201 {
            let seqs: Option<Vec<u64>> = answer.body["results"]
                .as_array()
                .map(|results| results.iter().filter_map(|r| r["seq"].as_u64()).collect());
            match seqs.filter(|seqs| seqs.len() == self.batch.len()) {
                Some(seqs) => {
                    for (draft, seq) in self.batch.drain(..).zip(seqs) {
                        write_confirmed(&self.world, self.process, &draft, seq);
                    }
                }
                None => {
                    self.world.trouble(self.process, format!("a publish was answered {}", answer.body));
                    self.batch.clear();
                }
            }
            return;
        }
        let retry = match answer.body["retry"].as_str() {
            Some("later") => Retry::Later,
            Some("same_id") => Retry::SameId,
            _ => Retry::Never,
        };
        let why = format!("{} {}", answer.status, answer.body["detail"]);
        write_unconfirmed(&self.world, self.process, &self.batch, retry, &why);
        if retry == Retry::Never {
            self.batch.clear();
        }
    }
}

fn message(draft: &Draft) -> Value {
    let content = &draft.content;
    let headers = content.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut message = json!({ "id": content.id, "type": content.kind, "headers": Value::Object(headers) });
    match serde_json::from_slice::<Value>(&content.body) {
        Ok(body) => message["body"] = body,
        Err(_) => message["body_base64"] = json!(to_base64(&content.body)),
    }
    if !content.key.is_empty() {
        message["key"] = json!(content.key);
    }
    if content.priority > 0 {
        message["priority"] = json!(content.priority);
    }
    if draft.delay_ms > 0 {
        message["delay"] = json!(format!("{}ms", draft.delay_ms));
    }
    message
}
