//! A producer over gRPC. It sends a few batches ahead; when the call breaks, the outcome of unconfirmed batches is
//! unknown, and they are sent again in the same order, under the same names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::v1;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{AGAIN, ANSWER_WITHIN, Retry, connect, write_confirmed, write_publish, write_unconfirmed};
use crate::content::Draft;
use crate::dice::Dice;
use crate::plan::{Naming, StreamPlan};
use crate::world::{Server, Stage, World};

/// Batches on their way at once: the server remembers five of a producer.
const AHEAD_MAX: usize = 4;

struct Batch {
    drafts: Vec<Draft>,
    /// Of its first message, where the producer counts.
    counter: u64,
    is_sent: bool,
}

pub(crate) async fn produce(world: Arc<World>, process: u32, stream: StreamPlan, naming: Naming, dice: Dice) {
    let batches = VecDeque::new();
    let mut producer = Producer { world, process, stream, naming, dice, batches, counter: 1 };
    while let Some(server) = producer.world.listening().await {
        producer.session(server).await;
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
    naming: Naming,
    dice: Dice,
    /// Batches that are not confirmed, in order.
    batches: VecDeque<Batch>,
    counter: u64,
}

impl Producer {
    fn is_done(&self) -> bool {
        self.world.stage() > Stage::Chaos && self.batches.is_empty()
    }

    async fn session(&mut self, server: Server) {
        let Ok(mut client) = connect(server).await else { return };
        let (requests, sent) = mpsc::channel(AHEAD_MAX);
        self.send(&requests);
        let opened = tokio::time::timeout(ANSWER_WITHIN, client.publish(ReceiverStream::new(sent))).await;
        if let Ok(Ok(replies)) = opened {
            self.work(&requests, replies.into_inner()).await;
        }
        self.forget_sent();
    }

    /// The outcome of batches that were sent and not confirmed is unknown.
    fn forget_sent(&mut self) {
        for batch in self.batches.iter_mut().filter(|batch| batch.is_sent) {
            write_unconfirmed(&self.world, self.process, &batch.drafts, Retry::SameId, "");
        }
        if self.naming == Naming::Nothing {
            // To send it again could store it twice.
            self.batches.retain(|batch| !batch.is_sent);
        }
        for batch in &mut self.batches {
            batch.is_sent = false;
        }
    }

    async fn work(
        &mut self,
        requests: &mpsc::Sender<v1::PublishRequest>,
        mut replies: Streaming<v1::PublishReply>,
    ) {
        let mut next = Instant::now();
        let mut quiet_since = Instant::now();
        while !self.is_done() && self.world.stage() < Stage::Over {
            // Now and then a producer goes without waiting for its answers.
            if self.world.stage() == Stage::Chaos && self.dice.permille(5) {
                return;
            }
            self.send(requests);
            tokio::select! {
                reply = replies.message() => {
                    quiet_since = Instant::now();
                    let Ok(Some(reply)) = reply else { return };
                    for confirmation in reply.confirmations {
                        if !self.confirmed(&confirmation) {
                            return;
                        }
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    next = Instant::now() + Duration::from_millis(self.dice.between(1, self.stream.gap_ms));
                    self.draw_up();
                    if quiet_since.elapsed() > ANSWER_WITHIN && !self.batches.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    fn draw_up(&mut self) {
        if self.world.stage() > Stage::Chaos || self.batches.len() >= AHEAD_MAX {
            return;
        }
        let count = self.dice.between(1, self.stream.batch_max);
        let has_id = self.naming == Naming::Ids;
        let drafts = (0..count)
            .map(|_| Draft::new(self.world.number(), self.stream.flavour, has_id, &mut self.dice))
            .collect();
        self.batches.push_back(Batch { drafts, counter: self.counter, is_sent: false });
        self.counter += count;
    }

    fn send(&mut self, requests: &mpsc::Sender<v1::PublishRequest>) {
        for batch in self.batches.iter_mut().filter(|batch| !batch.is_sent) {
            let Ok(place) = requests.try_reserve() else { return };
            for draft in &batch.drafts {
                write_publish(&self.world, self.process, self.stream.name, draft);
            }
            batch.is_sent = true;
            let producer = (self.naming == Naming::Stamps).then_some(v1::Producer {
                id: self.process.into(),
                epoch: 1,
                counter: batch.counter,
            });
            place.send(v1::PublishRequest {
                stream: self.stream.name.to_owned(),
                messages: batch.drafts.iter().map(message).collect(),
                ticket: batch.counter,
                producer,
                ..v1::PublishRequest::default()
            });
        }
    }

    /// False if the call is better given up.
    fn confirmed(&mut self, confirmation: &v1::Confirmation) -> bool {
        let Some(batch) = self.batches.pop_front_if(|batch| batch.counter == confirmation.ticket) else {
            self.world.trouble(self.process, format!("an answer out of turn: {confirmation:?}"));
            return false;
        };
        if let Some(problem) = &confirmation.problem {
            let retry = match problem.retry() {
                v1::Retry::Later => Retry::Later,
                v1::Retry::SameId => Retry::SameId,
                v1::Retry::Never | v1::Retry::Unspecified => Retry::Never,
            };
            write_unconfirmed(&self.world, self.process, &batch.drafts, retry, &problem.detail);
            let gone = retry == Retry::SameId && self.naming == Naming::Nothing;
            if retry != Retry::Never && !gone {
                self.batches.push_front(Batch { is_sent: false, ..batch });
            }
            return false;
        }
        let mut fresh = confirmation.first_seq..confirmation.first_seq + u64::from(confirmation.count);
        for (draft, index) in batch.drafts.iter().zip(0..) {
            let before = confirmation.duplicates.iter().find(|duplicate| duplicate.index == index);
            match before.map(|duplicate| duplicate.seq).or_else(|| fresh.next()) {
                Some(seq) => write_confirmed(&self.world, self.process, draft, seq),
                None => {
                    self.world.trouble(self.process, format!("an answer with a gap: {confirmation:?}"));
                    return false;
                }
            }
        }
        true
    }
}

fn message(draft: &Draft) -> v1::Message {
    let content = &draft.content;
    v1::Message {
        body: content.body.clone().into(),
        id: content.id.clone(),
        key: content.key.clone(),
        r#type: content.kind.clone(),
        headers: content
            .headers
            .iter()
            .map(|(name, value)| v1::Header {
                name: name.clone(),
                value: value.clone(),
                ..Default::default()
            })
            .collect(),
        priority: content.priority,
        delay_ms: draft.delay_ms,
        ..v1::Message::default()
    }
}
