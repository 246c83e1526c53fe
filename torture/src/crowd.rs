//! All clients of a run.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::clients;
use crate::clients::kurrent;
use crate::dice::Dice;
use crate::inspect::REST_WITHIN;
use crate::plan::{Door, Plan};
use crate::run::TORMENTOR;
use crate::world::World;

/// All clients.
pub(crate) struct Crowd {
    producers: JoinSet<()>,
    consumers: JoinSet<()>,
}

impl Crowd {
    pub(crate) fn gather(world: &Arc<World>, plan: &Plan, dice: &mut Dice) -> Crowd {
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        let mut process = TORMENTOR;
        let mut next = || {
            process += 1;
            (world.clone(), process)
        };
        for stream in &plan.streams {
            for door in &stream.producers {
                let (world, process) = next();
                let (stream, dice) = (stream.clone(), dice.fork());
                match *door {
                    Door::Grpc(naming) => {
                        producers.spawn(clients::produce(world, process, stream, naming, dice))
                    }
                    Door::Http => producers.spawn(clients::push(world, process, stream, dice)),
                };
            }
        }
        for group in &plan.groups {
            for _ in 0..group.consumers {
                let (world, process) = next();
                consumers.spawn(clients::consume(world, process, group.clone(), dice.fork()));
            }
            for _ in 0..group.pullers {
                let (world, process) = next();
                consumers.spawn(clients::pull(world, process, group.clone(), dice.fork()));
            }
        }
        for queue in &plan.queues {
            for _ in 0..queue.senders {
                let (world, process) = next();
                producers.spawn(clients::queue::send(world, process, queue.clone(), dice.fork()));
            }
            for _ in 0..queue.consumers {
                let (world, process) = next();
                consumers.spawn(clients::queue::work_off(world, process, queue.clone(), dice.fork()));
            }
        }
        for log in &plan.kurrent.logs {
            for _ in 0..log.writers {
                let (world, process) = next();
                producers.spawn(kurrent::append(world, process, log.clone(), dice.fork()));
            }
        }
        for subscription in &plan.kurrent.subscriptions {
            for _ in 0..subscription.consumers {
                let (world, process) = next();
                consumers.spawn(kurrent::consume(world, process, subscription.clone(), dice.fork()));
            }
        }
        for source in &plan.kurrent.readers {
            let (world, process) = next();
            consumers.spawn(kurrent::follow(world, process, *source, dice.fork()));
        }
        Crowd { producers, consumers }
    }

    /// Waits until every producer has learnt what became of all that it sent.
    pub(crate) async fn published(&mut self) -> anyhow::Result<()> {
        let all = async {
            while let Some(ended) = self.producers.join_next().await {
                ended.context("a producer broke")?;
            }
            Ok(())
        };
        tokio::time::timeout(REST_WITHIN, all).await.context("the producers do not come to an end")?
    }

    pub(crate) async fn leave(&mut self) {
        let all = async { while self.consumers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(clients::ANSWER_WITHIN, all).await;
        self.consumers.shutdown().await;
        self.producers.shutdown().await;
    }
}
