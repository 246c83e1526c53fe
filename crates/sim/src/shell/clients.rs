//! The callers of a history: they publish, receive, subscribe, settle and look, through the real [`Caller`], and drop
//! their futures whenever they like. Guards tell the model that a future was dropped, so a caller can be dropped as a
//! whole at any point too.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Advice, BatchBuilder, Bound, Broker, Caller, Clock, Consumer, Event, Lease, LeaseRun, Message,
    PublishOptions, Receive, SettleRequest, Settlement, Verb, each_outcome,
};
use forebay_core::types::{GroupName, Seq, StreamName, Timestamp};

use super::executor::{LocalFuture, Whim, at_whim};
use super::feeds::KIND;
use super::model::{Id, Model};
use crate::dice::Dice;
use crate::tale::tell;

const EVENTS_MAX: usize = 10_000;

/// What all callers share.
pub(super) struct Shared {
    pub(super) model: RefCell<Model>,
    pub(super) clock: Clock,
    pub(super) streams: Vec<StreamName>,
    /// The server, while it serves.
    pub(super) broker: RefCell<Option<Broker>>,
    pub(super) caller: RefCell<Option<Caller>>,
    /// Tasks that wait to be run.
    pub(super) spawned: RefCell<Vec<(String, LocalFuture)>>,
    /// How the task of the server ended.
    pub(super) ended: RefCell<Option<Result<(), String>>>,
    /// Callers come to an end.
    pub(super) is_calm: Cell<bool>,
    /// Nothing is published, and consumers take and ack all that there is without delay, so that in the end they wait.
    pub(super) is_lull: Cell<bool>,
    /// One in so many futures is dropped.
    pub(super) patience: u64,
    /// How large a body is at most.
    pub(super) body_max: u64,
    /// Whether streams are fed with messages of others.
    pub(super) has_feeds: bool,
    /// The streams among them that keep their messages, as far as they are there.
    pub(super) kept: RefCell<Vec<StreamName>>,
}

impl Shared {
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn model(&self) -> RefMut<'_, Model> {
        self.model.borrow_mut()
    }

    pub(super) fn names(&self, of: usize) -> (StreamName, GroupName) {
        let model = self.model.borrow();
        let plan = &model.plans[of];
        (plan.stream.clone(), plan.name.clone())
    }

    /// Waits for a server. None once callers come to an end.
    pub(super) async fn server(&self, dice: &mut Dice) -> Option<Caller> {
        loop {
            if self.is_calm.get() {
                return None;
            }
            let caller = self.caller.borrow().clone();
            if caller.is_some() {
                return caller;
            }
            pause(dice, 50).await;
        }
    }

    /// A stream to publish to.
    fn pick_stream(&self, dice: &mut Dice) -> StreamName {
        let kept = self.kept.borrow();
        if kept.is_empty() || dice.chance(1, 2) {
            return dice.pick(&self.streams).clone();
        }
        dice.pick(&kept).clone()
    }

    fn waits(self: &Rc<Shared>, of: usize) -> Waits {
        self.model().waits(self.now(), of, true);
        Waits { shared: self.clone(), of }
    }

    fn untaken(self: &Rc<Shared>, of: usize) -> Untaken {
        self.model().has_untaken(of, true);
        Untaken { shared: self.clone(), of }
    }
}

/// A caller waits for messages.
struct Waits {
    shared: Rc<Shared>,
    of: usize,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.shared.model().waits(self.shared.now(), self.of, false);
    }
}

/// A caller may have messages that it did not take out.
struct Untaken {
    shared: Rc<Shared>,
    of: usize,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.shared.model().has_untaken(self.of, false);
    }
}

/// Up to so many milliseconds; rarely much longer, and often not at all.
pub(super) async fn pause(dice: &mut Dice, most: u64) {
    let micros = match dice.roll(10) {
        0..3 => return tokio::task::yield_now().await,
        9 => dice.roll(most * 20_000),
        _ => dice.roll(most * 1_000),
    };
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

pub(super) async fn produce(shared: Rc<Shared>, mut dice: Dice) {
    while let Some(caller) = shared.server(&mut dice).await {
        if shared.is_lull.get() {
            pause(&mut dice, 50).await;
            continue;
        }
        let stream = shared.pick_stream(&mut dice);
        let mut builder = BatchBuilder::default();
        let mut ids = Vec::new();
        for _ in 0..=dice.roll(4) {
            let key = dice.chance(2, 3).then(|| format!("k{}", dice.roll(4)));
            let bytes = 8 + dice.roll(shared.body_max) as usize;
            let kind = (shared.has_feeds && dice.chance(1, 2)).then_some(KIND);
            let id = shared.model().drafted(&stream, key.clone(), kind, bytes);
            let mut body = id.to_le_bytes().to_vec();
            body.resize(bytes, b'.');
            builder.push(&Message {
                key: key.as_deref().map(str::as_bytes),
                kind,
                body: &body,
                ..Message::default()
            });
            ids.push(id);
        }
        let batch = builder.build();
        let room = if dice.chance(1, 3) {
            caller.broker().try_room(&stream, &batch)
        } else {
            let whim = Whim::roll(&mut dice, shared.patience);
            at_whim(whim, caller.broker().room(&stream, &batch)).await
        };
        let Some(room) = room.filter(|_| !dice.chance(1, 30)) else {
            pause(&mut dice, 20).await;
            continue;
        };
        shared.model().sent(&ids);
        let confirmation = caller.publish(room, Arc::new(stream), batch, PublishOptions::default());
        let answer = at_whim(Whim::roll(&mut dice, shared.patience), confirmation).await;
        match answer {
            Some(Ok(published)) => shared.model().confirmed(shared.now(), &ids, &published.get()),
            Some(Err(error)) if error.advice() != Advice::RetryWithSameId => shared.model().refused(&ids),
            Some(Err(_)) | None => {}
        }
        pause(&mut dice, 40).await;
    }
}

/// A consumer without a connection.
pub(super) async fn pull(shared: Rc<Shared>, of: usize, name: String, mut dice: Dice) {
    let (stream, group) = shared.names(of);
    while let Some(caller) = shared.server(&mut dice).await {
        let is_lull = shared.is_lull.get();
        let patience = if is_lull { u64::MAX } else { shared.patience };
        let wait = if is_lull { 5_000 } else { *dice.pick(&[0, 0, 20, 1_000, 30_000]) };
        let request = Receive {
            consumer: name.clone(),
            max: 1 + dice.roll(8) as u32,
            bytes: dice.chance(1, 4).then(|| dice.roll(2_000)),
            wait: Duration::from_millis(wait),
            timeout: dice.chance(1, 3).then(|| Duration::from_millis(50 + dice.roll(3_000))),
            refuse_when_full: false,
        };
        let number = shared.model().receives(of, request.timeout);
        let receive = caller.receive(stream.clone(), group.clone(), request);
        let received = {
            let _waits = shared.waits(of);
            at_whim(Whim::roll(&mut dice, patience), receive).await
        };
        let Some(Ok(receiving)) = received else {
            pause(&mut dice, 40).await;
            continue;
        };
        let untaken = shared.untaken(of);
        if !is_lull && dice.chance(1, 4) {
            pause(&mut dice, 30).await;
        }
        let count = receiving.len();
        let taken = match dice.roll(8) {
            _ if is_lull => receiving.take(),
            0 => {
                tell(|| format!("{name} takes none of {}", receiving.len()));
                drop(receiving);
                Vec::new()
            }
            1 => receiving.take_within(dice.roll(1_000) as usize),
            _ => receiving.take(),
        };
        let mut held = Vec::new();
        for (receipt, message) in taken {
            let id = shared.model().delivered(shared.now(), of, Bound::Clock, &message);
            tell(|| format!("{name} receives {id} on {:?} until {}", message.lease, message.deadline.0));
            held.push((receipt, (id, message.lease), true));
        }
        if held.len() == count {
            shared.model().took_all(of, number);
        }
        drop(untaken);
        while !held.is_empty() && (is_lull || !dice.chance(1, 30)) {
            if !is_lull {
                pause(&mut dice, 30).await;
            }
            let count = 1 + dice.roll(held.len() as u64) as usize;
            let verb = if is_lull { Verb::Ack } else { roll_verb(&mut dice) };
            let is_last = !matches!(verb, Verb::Extend { .. });
            let some: Vec<_> = if is_last { held.drain(..count).collect() } else { held[..count].to_vec() };
            let asked = shared.now();
            for (_, lease, _) in &some {
                shared.model().asked(asked, of, *lease, &verb);
            }
            let receipts: Vec<String> = some.iter().map(|(receipt, ..)| receipt.clone()).collect();
            let settle =
                caller.settle(stream.clone(), group.clone(), &receipts, Settlement::from(verb.clone()));
            let answer = at_whim(Whim::roll(&mut dice, patience), settle).await;
            if let Some(Ok(outcomes)) = answer {
                let times = (asked, shared.now());
                for ((_, lease, could_count), outcome) in some.into_iter().zip(outcomes) {
                    shared.model().answered(times, of, lease, &verb, outcome, could_count);
                }
            }
        }
        if !is_lull {
            pause(&mut dice, 40).await;
        }
    }
}

fn roll_verb(dice: &mut Dice) -> Verb {
    match dice.roll(20) {
        0..12 => Verb::Ack,
        12 => Verb::Park,
        13 => Verb::Skip,
        14..16 => Verb::Retry { delay: None },
        16..18 => Verb::Return { delay: None },
        _ => Verb::Extend { by: Duration::from_millis(100 + dice.roll(3_000)), total_max: None },
    }
}

/// A consumer with a connection.
pub(super) async fn subscribe(shared: Rc<Shared>, of: usize, name: String, mut dice: Dice) {
    let (stream, group) = shared.names(of);
    while let Some(caller) = shared.server(&mut dice).await {
        let credit = 1 + dice.roll(40) as u32;
        let joined = {
            let _untaken = shared.untaken(of);
            let join = caller.subscribe(stream.clone(), group.clone(), &name, credit);
            at_whim(Whim::roll(&mut dice, shared.patience), join).await
        };
        if let Some(Ok(consumer)) = joined {
            let untaken = Some(shared.untaken(of));
            let (held, asked, ticket) = (Vec::new(), BTreeMap::new(), 0);
            let shared = shared.clone();
            let session =
                Session { shared, of, consumer, credit, held, asked, ticket, unencoded: 0, untaken };
            session.serve(&name, &mut dice).await;
        }
        pause(&mut dice, 60).await;
    }
}

/// When a consumer asked to settle these leases, and how.
type Asked = (Timestamp, Vec<(Id, Lease)>, Verb);

/// One life of a connected consumer. Its leases end with it.
struct Session {
    shared: Rc<Shared>,
    of: usize,
    consumer: Consumer,
    credit: u32,
    held: Vec<(Id, Lease)>,
    /// Requests that were not answered yet.
    asked: BTreeMap<u64, Asked>,
    ticket: u64,
    unencoded: usize,
    /// While its queue may have something.
    untaken: Option<Untaken>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Session {
    fn let_go(&mut self) {
        let now = self.shared.now();
        for lease in self.held.drain(..) {
            self.shared.model().let_go(now, self.of, lease);
        }
    }

    async fn serve(mut self, name: &str, dice: &mut Dice) {
        while !self.shared.is_calm.get() {
            let action = dice.roll(16);
            match action {
                _ if self.shared.is_lull.get() => {
                    self.settle(dice);
                    if !self.take_events(name, dice).await {
                        return;
                    }
                }
                0..8 => {
                    if !self.take_events(name, dice).await {
                        return;
                    }
                }
                8..13 => self.settle(dice),
                13 => {
                    self.credit = dice.roll(50) as u32;
                    self.consumer.credit(self.credit).expect("it is no large credit");
                }
                14 => pause(dice, 60).await,
                _ if dice.chance(1, 4) => {
                    if dice.chance(1, 2) {
                        tell(|| format!("{name} says goodbye"));
                        self.consumer.goodbye();
                        self.let_go();
                        self.finish().await;
                    }
                    return;
                }
                _ => self.encode(),
            }
        }
    }

    fn encode(&mut self) {
        self.consumer.encoded(std::mem::take(&mut self.unencoded));
    }

    /// After a goodbye: answers still come, and then the end.
    async fn finish(&mut self) {
        self.encode();
        loop {
            let mut events = Vec::new();
            poll_fn(|cx| self.consumer.poll_events(cx, &mut events, EVENTS_MAX)).await;
            if events.is_empty() {
                return;
            }
        }
    }

    /// Waits for events for a while. False if there will be no more.
    async fn take_events(&mut self, name: &str, dice: &mut Dice) -> bool {
        let encodes = self.shared.is_lull.get() || dice.chance(3, 4);
        if encodes {
            self.encode();
        }
        let mut events = Vec::new();
        {
            let mut waits = None;
            // Leases that have lapsed use no credit, but whether they have is not known here.
            let has_credit = self.held.len() < self.credit as usize && self.unencoded == 0;
            let (shared, of, consumer, untaken) =
                (&self.shared, self.of, &mut self.consumer, &mut self.untaken);
            let next = poll_fn(|cx| {
                let ready = if encodes {
                    consumer.poll_events(cx, &mut events, EVENTS_MAX)
                } else {
                    consumer.poll_unencoded(cx, &mut events, EVENTS_MAX)
                };
                if ready.is_pending() {
                    // The queue is empty, so a message that it could have is not on its way to it.
                    *untaken = None;
                    if has_credit && waits.is_none() {
                        waits = Some(shared.waits(of));
                    }
                }
                ready
            });
            let most = Duration::from_millis(*dice.pick(&[1, 20, 500, 5_000]));
            let is_there = tokio::time::timeout(most, next).await.is_ok();
            self.untaken.get_or_insert_with(|| self.shared.untaken(self.of));
            if !is_there {
                return true;
            }
        }
        if events.iter().any(|event| matches!(event, Event::CutOff | Event::GroupGone | Event::LogUnsure)) {
            tell(|| format!("{name} was cut off"));
            return false;
        }
        let is_open = !events.is_empty();
        for event in events {
            match event {
                Event::Delivery(delivery) => {
                    if !encodes {
                        self.unencoded += delivery.bytes();
                    }
                    for message in delivery.into_each() {
                        let now = self.shared.now();
                        let id = self.shared.model().delivered(now, self.of, Bound::Connection, &message);
                        tell(|| {
                            format!("{name} gets {id} on {:?} until {}", message.lease, message.deadline.0)
                        });
                        self.held.push((id, message.lease));
                    }
                }
                Event::Settled(answers) => {
                    for settled in answers {
                        let (asked, leases, verb) =
                            self.asked.remove(&settled.ticket).expect("I15: an answer has a question");
                        let outcomes: Vec<_> = each_outcome(&settled.outcomes).collect();
                        assert_eq!(outcomes.len(), leases.len(), "I15: one outcome for each lease");
                        let times = (asked, self.shared.now());
                        for (lease, outcome) in leases.into_iter().zip(outcomes) {
                            self.shared.model().answered(times, self.of, lease, &verb, outcome, true);
                        }
                    }
                }
                Event::Committed(..) => unreachable!("these clients commit no bundles"),
                Event::CutOff | Event::GroupGone | Event::LogUnsure => {}
            }
        }
        is_open
    }

    fn settle(&mut self, dice: &mut Dice) {
        if self.held.is_empty() || !self.consumer.may_settle() {
            return;
        }
        let count = 1 + dice.roll(self.held.len() as u64) as usize;
        let verb = if self.shared.is_lull.get() { Verb::Ack } else { roll_verb(dice) };
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

/// A caller that only looks.
pub(super) async fn look(shared: Rc<Shared>, mut dice: Dice) {
    while let Some(caller) = shared.server(&mut dice).await {
        let of = dice.roll(shared.model.borrow().plans.len() as u64) as usize;
        let (stream, group) = shared.names(of);
        let whim = Whim::roll(&mut dice, shared.patience);
        match dice.roll(5) {
            0 => drop(at_whim(whim, caller.group(stream, group)).await),
            1 => drop(at_whim(whim, caller.server()).await),
            2 => {
                let from = Seq(1 + dice.roll(200));
                drop(at_whim(whim, caller.read(stream, from, 1 + dice.roll(50))).await);
            }
            3 => {
                let most = Duration::from_millis(dice.roll(2_000));
                let grown = caller.grown(stream, Seq(dice.roll(300)));
                drop(tokio::time::timeout(most, grown).await);
            }
            _ => drop(at_whim(whim, caller.groups(None, None, 100)).await),
        }
        pause(&mut dice, 200).await;
    }
}
