//! The clients of a cluster: they publish, receive, subscribe and settle at a node that serves, wait for an answer for
//! a while, and go to another node if none comes.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Advice, Batch, BatchBuilder, Bound, Caller, Consumer, Dedupe, Event, Lease, LeaseRun, Message,
    ProducerStamp, PublishOptions, Receive, SettleRequest, Settlement, Verb, each_outcome,
};
use forebay_core::types::{Epoch, GroupName, StreamName, Timestamp};
use tokio::time::Instant;

use super::model::{Id, Model};
use super::servers::{NODES, moment};
use super::world::BEGINS;
use crate::dice::Dice;
use crate::tale::tell;

const EVENTS_MAX: usize = 10_000;

/// A node that has claimed the log, and serves as far as it knows.
#[derive(Clone)]
pub(super) struct Office {
    pub(super) caller: Caller,
    pub(super) epoch: Epoch,
}

/// What all clients share.
pub(super) struct Shared {
    pub(super) model: RefCell<Model>,
    pub(super) began: Instant,
    pub(super) streams: Vec<StreamName>,
    pub(super) offices: [RefCell<Option<Office>>; NODES],
    /// The last owner that began to serve.
    pub(super) newest: Cell<Epoch>,
    /// Clients come to an end.
    pub(super) is_calm: Cell<bool>,
}

impl Shared {
    pub(super) fn now(&self) -> Timestamp {
        BEGINS + self.began.elapsed()
    }

    pub(super) fn model(&self) -> RefMut<'_, Model> {
        self.model.borrow_mut()
    }

    pub(super) fn names(&self, of: usize) -> (StreamName, GroupName) {
        let model = self.model.borrow();
        let plan = &model.plans[of];
        (plan.stream.clone(), plan.name.clone())
    }

    pub(super) fn offices(&self) -> Vec<Office> {
        self.offices.iter().filter_map(|office| office.borrow().clone()).collect()
    }

    /// Waits for a node that serves. `None` once clients come to an end.
    async fn server(&self, dice: &mut Dice) -> Option<Office> {
        loop {
            if self.is_calm.get() {
                return None;
            }
            let offices = self.offices();
            if !offices.is_empty() {
                return Some(dice.pick(&offices).clone());
            }
            pause(dice, 100).await;
        }
    }

    /// A client has these messages now.
    fn delivered(
        &self,
        of: usize,
        bound: Bound,
        office: &Office,
        message: &forebay_broker::api::Delivered,
    ) -> Id {
        let lasts = message.deadline.since(office.caller.broker().clock().now());
        self.model().delivered(self.now(), of, bound, lasts, message)
    }
}

/// Up to so many milliseconds; now and then much longer, or not at all.
async fn pause(dice: &mut Dice, most: u64) {
    let micros = match dice.roll(12) {
        0 => return tokio::task::yield_now().await,
        11 => dice.roll(most * 10_000),
        _ => dice.roll(most * 1_000),
    };
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// How long a client waits for an answer.
async fn patiently<T>(dice: &mut Dice, future: impl Future<Output = T>) -> Option<T> {
    let most = Duration::from_millis(500 + dice.roll(4_000));
    tokio::time::timeout(most, future).await.ok()
}

/// How a producer makes sure that its messages are stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// It does not, and sends each message once.
    None,
    Ids,
    Numbers(u64),
}

pub(super) async fn produce(shared: Rc<Shared>, naming: Naming, mut dice: Dice) {
    let stream = dice.pick(&shared.streams).clone();
    let mut number = 0;
    loop {
        let mut builder = BatchBuilder::default();
        let mut ids = Vec::new();
        for _ in 0..=dice.roll(3) {
            let key = dice.chance(2, 3).then(|| format!("k{}", dice.roll(4)));
            let id = shared.model().sent(&stream, key.clone(), naming != Naming::None);
            let name = format!("m{id}");
            let mut body = id.to_le_bytes().to_vec();
            body.resize(8 + dice.roll(300) as usize, b'.');
            builder.push(&Message {
                id: (naming == Naming::Ids).then_some(&*name),
                dedupe: Dedupe::ById,
                key: key.as_deref().map(str::as_bytes),
                body: &body,
                ..Message::default()
            });
            ids.push(id);
        }
        let stamp = match naming {
            Naming::Numbers(producer) => Some(ProducerStamp { producer, epoch: 0, number }),
            _ => None,
        };
        number += ids.len() as u64;
        let options = PublishOptions { stamp, ..PublishOptions::default() };
        let batch = builder.build();
        let mut tries = 0;
        loop {
            let Some(office) = shared.server(&mut dice).await else { return };
            tries += 1;
            let sent = send(&office.caller, &stream, &batch, options);
            match patiently(&mut dice, sent).await {
                Some(Ok(published)) => {
                    shared.model().confirmed(&ids, &published, tries > 1);
                    break;
                }
                Some(Err(advice)) => {
                    assert!(advice != Advice::FixRequest, "I2: a batch of {naming:?} is refused");
                    // A server that is stopping has stored nothing.
                    if naming == Naming::None && advice == Advice::RetryWithSameId {
                        break;
                    }
                }
                None if naming == Naming::None => break,
                None => {}
            }
            pause(&mut dice, 100).await;
        }
        pause(&mut dice, 300).await;
    }
}

async fn send(
    caller: &Caller,
    stream: &StreamName,
    batch: &Batch,
    options: PublishOptions,
) -> Result<forebay_broker::api::Published, Advice> {
    let room = caller.broker().room(stream, batch).await;
    let confirmation = caller.publish(room, Arc::new(stream.clone()), batch.clone(), options);
    match confirmation.await {
        Ok(published) => Ok(published.get()),
        Err(error) => {
            tell(|| format!("a batch is not stored: {error}"));
            Err(error.advice())
        }
    }
}

fn roll_verb(dice: &mut Dice) -> Verb {
    match dice.roll(20) {
        0..14 => Verb::Ack,
        14..16 => Verb::Retry { delay: None },
        _ => Verb::Extend { by: Duration::from_millis(200 + dice.roll(12_000)), total_max: None },
    }
}

/// A consumer without a connection. Its leases outlive the node that gave them.
pub(super) async fn pull(shared: Rc<Shared>, of: usize, name: String, mut dice: Dice) {
    let (stream, group) = shared.names(of);
    let mut held: Vec<(String, (Id, Lease))> = Vec::new();
    while let Some(office) = shared.server(&mut dice).await {
        let request = Receive {
            consumer: name.clone(),
            max: 1 + dice.roll(4) as u32,
            wait: Duration::from_millis(*dice.pick(&[0, 50, 1_000])),
            timeout: dice.chance(1, 3).then(|| Duration::from_millis(100 + dice.roll(8_000))),
            ..Receive::default()
        };
        let receive = office.caller.receive(stream.clone(), group.clone(), request);
        let received = patiently(&mut dice, receive).await;
        if let Some(Ok(receiving)) = received {
            for (receipt, message) in receiving.take() {
                let id = shared.delivered(of, Bound::Clock, &office, &message);
                held.push((receipt, (id, message.lease)));
            }
        }
        pause(&mut dice, 300).await;
        while !held.is_empty() && !dice.chance(1, 8) {
            // Perhaps at another node than the one that gave the leases.
            let Some(office) = shared.server(&mut dice).await else { return };
            let count = 1 + dice.roll(held.len() as u64) as usize;
            let verb = roll_verb(&mut dice);
            let is_last = !matches!(verb, Verb::Extend { .. });
            let some: Vec<_> = if is_last { held.drain(..count).collect() } else { held[..count].to_vec() };
            let asked = shared.now();
            for (_, lease) in &some {
                shared.model().asked(asked, of, *lease, &verb);
            }
            let receipts: Vec<String> = some.iter().map(|(receipt, _)| receipt.clone()).collect();
            let settlement = Settlement::from(verb.clone());
            let settle = office.caller.settle(stream.clone(), group.clone(), &receipts, settlement);
            if let Some(Ok(outcomes)) = patiently(&mut dice, settle).await {
                let times = (asked, shared.now());
                for ((_, lease), outcome) in some.into_iter().zip(outcomes) {
                    shared.model().answered(times, office.epoch, of, lease, &verb, outcome);
                }
            }
            pause(&mut dice, 300).await;
        }
        if dice.chance(1, 4) {
            held.clear();
        }
    }
}

/// A consumer with a connection, whose leases end with it.
pub(super) async fn subscribe(shared: Rc<Shared>, of: usize, name: String, mut dice: Dice) {
    let (stream, group) = shared.names(of);
    while let Some(office) = shared.server(&mut dice).await {
        let join = office.caller.subscribe(stream.clone(), group.clone(), &name, 1 + dice.roll(6) as u32);
        if let Some(Ok(consumer)) = patiently(&mut dice, join).await {
            let (held, asked) = (Vec::new(), BTreeMap::new());
            let shared = shared.clone();
            Session { shared, of, office, consumer, held, asked, ticket: 0 }.serve(&mut dice).await;
        }
        pause(&mut dice, 200).await;
    }
}

/// When a consumer asked to settle these leases, and how.
type Asked = (Timestamp, Vec<(Id, Lease)>, Verb);

/// One life of a connected consumer.
struct Session {
    shared: Rc<Shared>,
    of: usize,
    office: Office,
    consumer: Consumer,
    held: Vec<(Id, Lease)>,
    /// Requests that were not answered yet.
    asked: BTreeMap<u64, Asked>,
    ticket: u64,
}

impl Drop for Session {
    fn drop(&mut self) {
        tell(|| format!("a consumer of group {} has gone", self.of));
        for lease in self.held.drain(..) {
            self.shared.model().let_go(self.of, lease);
        }
    }
}

impl Session {
    async fn serve(mut self, dice: &mut Dice) {
        let mut silent = 0;
        while !self.shared.is_calm.get() && silent < 40 {
            let until = moment() + Duration::from_millis(dice.roll(300));
            // What comes is taken at once, so that it is known when it left the server.
            loop {
                let mut events = Vec::new();
                let consumer = &mut self.consumer;
                let next = poll_fn(|cx| consumer.poll_events(cx, &mut events, EVENTS_MAX));
                if tokio::time::timeout_at(until, next).await.is_err() {
                    break;
                }
                silent = 0;
                if !self.take(events) {
                    return;
                }
            }
            silent += 1;
            if dice.chance(1, 150) {
                return;
            }
            if dice.chance(3, 4) {
                self.settle(dice);
            }
        }
    }

    /// False if there will be no more.
    fn take(&mut self, events: Vec<Event>) -> bool {
        let is_open = !events.is_empty();
        for event in events {
            match event {
                Event::Delivery(delivery) => {
                    for message in delivery.into_each() {
                        let id = self.shared.delivered(self.of, Bound::Connection, &self.office, &message);
                        self.held.push((id, message.lease));
                    }
                }
                Event::Settled(answers) => {
                    for settled in answers {
                        let (asked, leases, verb) =
                            self.asked.remove(&settled.ticket).expect("I15: an answer has a question");
                        let times = (asked, self.shared.now());
                        let outcomes = each_outcome(&settled.outcomes);
                        for (lease, outcome) in leases.into_iter().zip(outcomes) {
                            let epoch = self.office.epoch;
                            self.shared.model().answered(times, epoch, self.of, lease, &verb, outcome);
                        }
                    }
                }
                Event::Committed(..) => unreachable!("these clients commit no bundles"),
                Event::CutOff | Event::GroupGone | Event::LogUnsure => {
                    tell(|| format!("a consumer of group {} is cut off", self.of));
                    return false;
                }
            }
        }
        is_open
    }

    fn settle(&mut self, dice: &mut Dice) {
        if self.held.is_empty() || !self.consumer.may_settle() {
            return;
        }
        let count = 1 + dice.roll(self.held.len() as u64) as usize;
        let verb = roll_verb(dice);
        let now = self.shared.now();
        let some: Vec<(Id, Lease)> = match verb {
            Verb::Extend { .. } => self.held[..count].to_vec(),
            _ => self.held.drain(..count).collect(),
        };
        for lease in &some {
            self.shared.model().asked(now, self.of, *lease, &verb);
        }
        self.ticket += 1;
        let leases = LeaseRun::join(some.iter().map(|(_, lease)| *lease));
        let settlement = Settlement::from(verb.clone());
        let sent = self.consumer.settle(vec![SettleRequest { ticket: self.ticket, leases, settlement }]);
        sent.expect("the owner may settle");
        self.asked.insert(self.ticket, (now, some, verb));
    }
}
