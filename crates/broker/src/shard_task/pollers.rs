//! Consumers without a connection: each receive is answered once, and the consumer stays a member for a while
//! in case it asks again.
//!
//! A receive needs a member of its own while it waits. Receives under one name share members as they become
//! free, so that however often one asks, there are never more of them than wait at a time.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_core::group::{Bound, Credit, LeaseRun};
use forebay_core::types::{ConsumerId, GroupId, GroupName, StreamName};
use tokio::sync::oneshot;

use super::commands::answer;
use super::{ShardTask, Stage};
use crate::caller::{Receive, Receiving, Reply};
use crate::driver::Delivery;
use crate::error::CallError;
use crate::stats::Histogram;

pub(super) struct Poller {
    pub(super) group: GroupId,
    pub(super) name: Arc<str>,
    pub(super) address: Option<SocketAddr>,
    /// The receive that it waits for, and who asked.
    waiting: Option<(u64, Reply<Receiving>)>,
    /// What the receive asks for.
    credit: Credit,
    /// Whether the receive is to be answered as soon as nothing is on its way to it: it does not wait, or the caller
    /// does not wait any more.
    is_hasty: bool,
    is_called_off: bool,
    /// The deliveries that have come for it. They leave as one answer.
    collected: Vec<Delivery>,
    pub(super) processing: Option<Box<Histogram>>,
}

#[derive(Default)]
pub(super) struct Pollers {
    pollers: HashMap<ConsumerId, Poller>,
    /// Those that wait for nothing. Thousands may be of one name, and each of them departs by itself.
    idle: HashMap<(GroupId, Arc<str>), BTreeSet<ConsumerId>>,
    receives: HashMap<u64, ConsumerId>,
    /// Receives that do not wait: they take the messages that are there now, or none.
    hasty: Vec<u64>,
    /// New receives that are to be refused if their group is full.
    wary: Vec<u64>,
    /// Answered receives whose callers wait until no message of the group is on its way to another stream.
    watching_moves: Vec<(GroupId, oneshot::Sender<()>)>,
}

impl Pollers {
    pub(super) fn get(&self, consumer: ConsumerId) -> Option<&Poller> {
        self.pollers.get(&consumer)
    }

    pub(super) fn get_mut(&mut self, consumer: ConsumerId) -> Option<&mut Poller> {
        self.pollers.get_mut(&consumer)
    }

    pub(super) fn len(&self) -> usize {
        self.pollers.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.receives.len()
    }

    fn take_idle(&mut self, group: GroupId, name: &Arc<str>) -> Option<ConsumerId> {
        // Always from the same end, so that those of a crowd that is over stay idle, and depart.
        self.idle.get_mut(&(group, name.clone())).and_then(BTreeSet::pop_first)
    }

    fn put_idle(&mut self, consumer: ConsumerId) {
        if let Some(poller) = self.pollers.get(&consumer) {
            self.idle.entry((poller.group, poller.name.clone())).or_default().insert(consumer);
        }
    }

    /// It has been silent for so long that it is no member any more.
    pub(super) fn depart(&mut self, consumer: ConsumerId) {
        let Some(poller) = self.pollers.remove(&consumer) else { return };
        let place = (poller.group, poller.name);
        if let Some(idle) = self.idle.get_mut(&place) {
            idle.remove(&consumer);
            if idle.is_empty() {
                self.idle.remove(&place);
            }
        }
    }

    /// Something has come. It leaves with [`ShardTask::finish_receive`].
    pub(super) fn collect(&mut self, delivery: Delivery) {
        if let Some(poller) = self.pollers.get_mut(&delivery.consumer) {
            poller.collected.push(delivery);
        }
    }

    /// The groups are gone. Returns the receives that waited for messages of them.
    pub(super) fn dismiss(&mut self, groups: &[GroupId]) -> Vec<Reply<Receiving>> {
        self.idle.retain(|(group, _), _| !groups.contains(group));
        let gone = self.pollers.extract_if(|_, poller| groups.contains(&poller.group));
        let waiting: Vec<_> = gone.filter_map(|(_, poller)| poller.waiting).collect();
        let replies = waiting.into_iter().map(|(receive, reply)| {
            self.receives.remove(&receive);
            reply
        });
        replies.collect()
    }
}

impl ShardTask {
    pub(crate) fn receive(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        receive: u64,
        request: &Receive,
        address: Option<SocketAddr>,
        reply: Reply<Receiving>,
    ) {
        if self.stage != Stage::Running {
            return answer(reply, Err(CallError::Stopping));
        }
        let group = match self.find_group(stream, group) {
            Ok(group) => group,
            Err(error) => return self.answer_durably(reply, Err(error)),
        };
        let name: Arc<str> = request.consumer.as_str().into();
        let consumer = match self.pollers.take_idle(group, &name) {
            Some(consumer) => consumer,
            None => {
                let consumer = ConsumerId(receive);
                if let Err(refusal) = self.driver.join(self.now, group, consumer, &name, Bound::Clock) {
                    return answer(reply, Err(refusal.into()));
                }
                let poller = Poller {
                    group,
                    name,
                    address,
                    waiting: None,
                    credit: Credit::slots(0),
                    is_hasty: false,
                    is_called_off: false,
                    collected: Vec::new(),
                    processing: None,
                };
                self.pollers.pollers.insert(consumer, poller);
                consumer
            }
        };
        let credit = Credit::Once { messages: request.max, bytes: request.bytes, timeout: request.timeout };
        if let Err(refusal) = self.driver.credit(self.now, group, consumer, credit) {
            self.pollers.put_idle(consumer);
            return answer(reply, Err(refusal.into()));
        }
        let poller = self.pollers.get_mut(consumer).expect("it is there, or was just made");
        poller.address = address;
        poller.waiting = Some((receive, reply));
        (poller.credit, poller.is_hasty, poller.is_called_off) = (credit, request.wait.is_zero(), false);
        self.pollers.receives.insert(receive, consumer);
        if request.wait.is_zero() {
            self.pollers.hasty.push(receive);
        }
        if request.refuse_when_full {
            self.pollers.wary.push(receive);
        }
    }

    /// Refuses receives that got nothing in their first turn because their group has as many leases as it may, and
    /// that asked to be refused then. Called once the turn is over, when lapsed leases have been released.
    pub(super) fn refuse_full(&mut self) {
        for receive in std::mem::take(&mut self.pollers.wary) {
            let Some(&consumer) = self.pollers.receives.get(&receive) else { continue };
            let group = self.pollers.pollers[&consumer].group;
            if self.driver.shard().has_more_to_do(group) {
                self.pollers.wary.push(receive);
                continue;
            }
            let full = self.driver.shard().in_flight_full(group).filter(|_| !self.driver.is_owed(consumer));
            if let Some(limit) = full {
                self.end_credit(group, consumer);
                let poller = self.pollers.get_mut(consumer).expect("it is waiting");
                let waiting = poller.waiting.take();
                self.pollers.receives.remove(&receive);
                self.pollers.put_idle(consumer);
                if let Some((_, reply)) = waiting {
                    answer(reply, Err(CallError::InFlightFull { limit }));
                }
            }
        }
    }

    /// It wants nothing more. Its group may be gone, and then it is told that.
    fn end_credit(&mut self, group: GroupId, consumer: ConsumerId) {
        let none = Credit::Once { messages: 0, bytes: None, timeout: None };
        let _ = self.driver.credit(self.now, group, consumer, none);
    }

    /// The caller does not wait for this receive any more. Messages that were leased to it already still
    /// come, and leave with it.
    pub(crate) fn call_off(&mut self, receive: u64) {
        let Some(&consumer) = self.pollers.receives.get(&receive) else { return };
        if !self.driver.is_owed(consumer) {
            let group = self.pollers.pollers[&consumer].group;
            self.end_credit(group, consumer);
            self.finish_receive(consumer);
        } else if let Some(poller) = self.pollers.get_mut(consumer) {
            poller.is_called_off = true;
        }
    }

    /// Answers receives that do not wait, unless messages are on their way to them.
    pub(super) fn answer_hasty(&mut self) {
        for receive in std::mem::take(&mut self.pollers.hasty) {
            let Some(&consumer) = self.pollers.receives.get(&receive) else { continue };
            if self.driver.is_owed(consumer) {
                continue;
            }
            let group = self.pollers.pollers[&consumer].group;
            if self.driver.shard().is_reading(group) || self.driver.shard().has_more_to_do(group) {
                self.pollers.hasty.push(receive);
            } else {
                self.call_off(receive);
            }
        }
    }

    /// All that was leased for a receive has left, or never will. A receive that got nothing of it, because the
    /// contents cannot be read or the leases have lapsed meanwhile, goes on waiting for other messages.
    pub(super) fn on_served(&mut self, consumer: ConsumerId) {
        if !self.ask_again(consumer) {
            self.finish_receive(consumer);
        }
    }

    fn ask_again(&mut self, consumer: ConsumerId) -> bool {
        let Some(poller) = self.pollers.get(consumer).filter(|_| self.stage == Stage::Running) else {
            return false;
        };
        let Some(receive) = poller.waiting.as_ref().map(|(receive, _)| *receive) else { return false };
        if !poller.collected.is_empty() || poller.is_called_off {
            return false;
        }
        let is_hasty = poller.is_hasty;
        // Its group may be gone, and then it is told that.
        let asked = self.driver.credit(self.now, poller.group, consumer, poller.credit).is_ok();
        if asked && is_hasty {
            self.pollers.hasty.push(receive);
        }
        asked
    }

    /// Answers a receive with the deliveries collected for it.
    pub(super) fn finish_receive(&mut self, consumer: ConsumerId) {
        let Some(poller) = self.pollers.get_mut(consumer) else { return };
        let mut collected = std::mem::take(&mut poller.collected);
        // Messages in memory come before those that have to be read. The answer has them as they were chosen.
        collected.sort_by_key(|delivery| delivery.lease.grant);
        let group = poller.group;
        let Some((receive, reply)) = poller.waiting.take() else {
            let leases: Vec<LeaseRun> = collected.iter().map(Delivery::leases).collect();
            return self.give_back(group, &leases);
        };
        self.pollers.receives.remove(&receive);
        self.pollers.put_idle(consumer);
        let memory = &self.config.memory;
        if !memory.may_hand_out(collected.iter().map(Delivery::bytes).sum()) {
            memory.count_refused();
            let leases: Vec<LeaseRun> = collected.iter().map(Delivery::leases).collect();
            self.give_back(group, &leases);
            return answer(reply, Err(CallError::TooManyBytes));
        }
        if let Some(commands) = self.own_commands.upgrade() {
            let (receipts, memory) = (self.receipts.clone(), memory.clone());
            let moves = self.watch_moves(group);
            // If the caller is gone, they come back by themselves.
            let _ = reply.send(Ok(Receiving::new(collected, group, commands, receipts, memory, moves)));
        }
    }

    /// Messages whose retries are used up go to another stream by themselves. A receive would have found them here, so
    /// by its end they are to be found there.
    fn watch_moves(&mut self, group: GroupId) -> Option<oneshot::Receiver<()>> {
        if !self.driver.is_moving(group) {
            return None;
        }
        let (over, moves) = oneshot::channel();
        self.pollers.watching_moves.push((group, over));
        Some(moves)
    }

    /// Tells the callers of receives that the moves they wait for are over.
    pub(super) fn report_moves(&mut self) {
        let driver = &self.driver;
        // Dropping the sender is the message.
        self.pollers.watching_moves.retain(|(group, over)| !over.is_closed() && driver.is_moving(*group));
    }

    /// Nothing more is handed out: waiting receives are answered without messages.
    pub(super) fn call_off_all(&mut self) {
        let mut all: Vec<u64> = self.pollers.receives.keys().copied().collect();
        all.sort_unstable();
        for receive in all {
            self.call_off(receive);
        }
    }
}
