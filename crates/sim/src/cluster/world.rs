//! One history: two nodes with their clients, mishaps, and the way to rest, where everything must have arrived.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Acks, Backoff, Bound, Broker, BrokerConfig, DriverConfig, GroupSettings, Receive, Retries, Settlement,
    Strategy, Verb,
};
use forebay_core::types::{GroupName, StreamName, Timestamp};
use tokio::time::Instant;

use super::clients::{self, Naming, Office, Shared};
use super::model::{GroupPlan, Model};
use super::node::{Life, Nature, Spawned};
use super::servers::{NODES, Servers, Weather, moment};
use super::{Outcome, STEP};
use crate::dice::Dice;
use crate::shell::executor::{Executor, TaskId};
use crate::tale::tell;

/// The date at which every history begins.
pub(super) const BEGINS: Timestamp = Timestamp(1_900_000_000_000_000);
/// A node takes over within this, once nothing stands in its way: an owner that cannot go on gives up after one and a
/// half tenures and 15 s, and a standby needs one and a quarter to see it.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// A clean stop is followed by the next term within this.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(3);
/// Work that comes to no end is found after so much.
const ENDS_WITHIN: Duration = Duration::from_secs(1_200);
const STEPS_MAX: u64 = 3_000_000;

pub(super) struct World {
    dice: Dice,
    shared: Rc<Shared>,
    servers: Arc<Servers>,
    executor: Executor,
    nodes: Vec<Node>,
    /// Which node a task belongs to. Those of clients and servers are not named.
    tasks: BTreeMap<TaskId, usize>,
    clients: Vec<TaskId>,
    config: BrokerConfig,
    weather: Weather,
    troubles: Vec<(Instant, Trouble)>,
    next_mishap: Instant,
    terms: Rc<Cell<u64>>,
    outcome: Outcome,
}

struct Node {
    nature: Nature,
    lives: u64,
    /// The task of its present life.
    life: Option<TaskId>,
    spawned: Spawned,
    broker: Rc<RefCell<Option<Broker>>>,
    is_paused: bool,
}

/// Something that goes on until it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Paused(usize),
    Cut(usize),
    /// The process is not there.
    Down(usize),
    /// Letters take long, or are lost.
    Storm,
    /// A node is on the side of a former leader of the servers.
    LeftBehind,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut dice = Dice::from(seed);
        let name = |text: &str| StreamName::parse(text).expect("a name");
        let streams: Vec<StreamName> =
            ["red", "blue"][..1 + dice.roll(2) as usize].iter().map(|s| name(s)).collect();
        let plans: Vec<GroupPlan> = (0..1 + dice.roll(2))
            .map(|n| GroupPlan {
                stream: dice.pick(&streams).clone(),
                name: GroupName::parse(&format!("g{n}")).expect("a name"),
                is_ordered: dice.chance(1, 3),
                has_durable_acks: dice.chance(1, 2),
                timeout: Duration::from_millis(*dice.pick(&[1_000, 8_000, 20_000])),
            })
            .collect();
        let mut config = BrokerConfig::new([7; 32]);
        // As the server has them on this engine.
        config.frames_on_their_way = 8;
        config.driver = DriverConfig { lazy_delay: Duration::from_millis(25), ..config.driver };
        config.driver.image_frames = *dice.pick(&[10, 60, 1_000]);
        config.driver.window_bytes_max = *dice.pick(&[0, 2 << 10, 32 << 20]);
        config.drain_max = Duration::from_secs(2);
        let weather = Weather {
            latency: Duration::from_millis(*dice.pick(&[2, 10, 40])),
            late: *dice.pick(&[50, 400, 10_000]),
            lost: *dice.pick(&[100, 1_000, 1_000_000]),
            lag: Duration::from_millis(*dice.pick(&[0, 20, 400])),
        };
        // Either dates of nodes are wrong or those of the servers.
        let whose = dice.roll(3);
        let mut skew = |is_meant: bool| {
            let micros = *dice.pick(&[50_000, 2_000_000, 30_000_000, 600_000_000]);
            let micros = dice.roll(2 * micros) as i64 - micros as i64;
            if is_meant { micros } else { 0 }
        };
        let skews = [skew(whose == 1), skew(whose == 1)];
        let clocks = [skew(whose == 2), skew(whose == 2), skew(whose == 2)];
        let drift_max = *dice.pick(&[0, 5, 100]);
        let tenure = Duration::from_millis(*dice.pick(&[1_000, 3_000]));
        let place_bytes = *dice.pick(&[512, 8 << 10, 1 << 20]);
        let nodes = (0..NODES).map(|number| Node {
            nature: Nature {
                number,
                skew: skews[number],
                drift: dice.roll(2 * drift_max + 1) as i64 - drift_max as i64,
                tenure,
                place_bytes,
            },
            lives: 0,
            life: None,
            spawned: Spawned::default(),
            broker: Rc::default(),
            is_paused: false,
        });
        let nodes = nodes.collect();
        // Two dates that differ by a tenth of a second count as the same, and a clock that gains counts for as long as
        // a standby has watched the log.
        let early = Duration::from_millis(110) + Duration::from_secs(30) * drift_max as u32 / 1_000;
        let shared = Shared {
            model: RefCell::new(Model::new(plans, early)),
            began: moment(),
            streams,
            offices: Default::default(),
            newest: Cell::default(),
            is_calm: Cell::new(false),
        };
        let servers = Servers::new(dice.fork(), weather, clocks);
        World {
            dice,
            shared: Rc::new(shared),
            servers,
            executor: Executor::default(),
            nodes,
            tasks: BTreeMap::new(),
            clients: Vec::new(),
            config,
            weather,
            troubles: Vec::new(),
            next_mishap: moment() + ENDS_WITHIN,
            terms: Rc::default(),
            outcome: Outcome::default(),
        }
    }

    /// Goes through the whole history.
    pub(super) async fn live(mut self) -> Outcome {
        tell(|| {
            let natures: Vec<Nature> = self.nodes.iter().map(|node| node.nature).collect();
            format!("{natures:?} {:?} {:?}", self.weather, self.shared.model.borrow().plans)
        });
        self.executor.spawn("servers".to_owned(), Box::pin(self.servers.clone().work()));
        for node in 0..NODES {
            self.start(node);
        }
        self.ask(create_all(self.shared.clone())).await;
        self.gather();
        self.next_mishap = moment();
        let until = moment() + Duration::from_secs(20 + self.dice.roll(40));
        self.run_until("mishaps", ENDS_WITHIN, |_| moment() >= until).await;
        self.heal().await;
        self.come_to_rest().await;
        let counts = self.servers.counts();
        let model = self.shared.model.borrow();
        Outcome {
            seconds: self.shared.began.elapsed().as_secs(),
            terms: self.terms.get(),
            elections: counts.elections,
            void: counts.void,
            unchecked: counts.unchecked,
            letters_lost: counts.lost,
            proposals_dropped: counts.dropped,
            chunks: counts.chunks,
            purges: counts.purges,
            confirmed: model.counts.confirmed,
            sent_again: model.counts.again,
            deliveries: model.counts.deliveries,
            redeliveries: model.counts.redeliveries,
            leases_freed: model.counts.freed,
            leases_outlived: model.counts.outlived,
            acks_undone: model.counts.undone,
            ..self.outcome
        }
    }

    fn note(&mut self, what: u64) {
        let mixed = self.outcome.trace.rotate_left(5) ^ what ^ self.shared.now().0;
        self.outcome.trace = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn start(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.lives += 1;
        let life = Life {
            nature: node.nature,
            start: node.lives * 2 + number as u64,
            shared: self.shared.clone(),
            servers: self.servers.clone(),
            config: self.config.clone(),
            spawned: node.spawned.clone(),
            broker: node.broker.clone(),
            terms: self.terms.clone(),
        };
        let task = self.executor.spawn(format!("node {number}"), Box::pin(life.live()));
        node.life = Some(task);
        self.tasks.insert(task, number);
    }

    /// Whether a task may go on: its process does not stand still.
    fn may_go_on(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_none_or(|node| !self.nodes[*node].is_paused)
    }

    /// One choice: a task goes on, something befalls the cluster, or time passes.
    async fn step(&mut self) {
        self.outcome.steps += 1;
        STEP.set(self.outcome.steps as u32);
        for number in 0..NODES {
            for task in self.nodes[number].spawned.take() {
                let id = self.executor.spawn(format!("task of node {number}"), task);
                self.tasks.insert(id, number);
            }
        }
        let ready: Vec<TaskId> =
            self.executor.ready().into_iter().filter(|task| self.may_go_on(*task)).collect();
        // Clients take at once what comes to them, so that it is known when it left its server.
        let client = ready.iter().copied().find(|task| self.clients.contains(task));
        if let Some(task) = client {
            self.note(u64::from(task) * 4);
            self.executor.poll(task);
        } else if !ready.is_empty() {
            let task = *self.dice.pick(&ready);
            self.note(u64::from(task) * 4 + 1);
            self.executor.poll(task);
        } else {
            self.idle().await;
        }
        // Work of the engine runs beside the tasks, and says that it is done.
        tokio::task::yield_now().await;
    }

    /// Nothing can go on until a timer fires.
    async fn idle(&mut self) {
        let now = moment();
        if let Some(at) = self.troubles.iter().position(|(until, _)| *until <= now) {
            let (_, trouble) = self.troubles.swap_remove(at);
            self.end(trouble);
        } else if self.next_mishap <= now {
            self.next_mishap = now + Duration::from_millis(300 + self.dice.roll(7_000));
            self.mishap();
        } else {
            let next = self.troubles.iter().map(|(until, _)| *until).chain([self.next_mishap]).min();
            let limit = next.map_or(ENDS_WITHIN, |next| next - now).min(Duration::from_secs(1));
            self.executor.wait_for(limit, |task| self.may_go_on(task)).await;
        }
        self.note(2);
    }

    /// Goes on until `is_done`.
    async fn run_until(&mut self, what: &str, within: Duration, is_done: impl Fn(&World) -> bool) {
        let by = moment() + within;
        while !is_done(self) {
            assert!(moment() < by, "I4: {what} does not come to an end");
            assert!(self.outcome.steps < STEPS_MAX, "I4: {what} goes round in circles");
            self.step().await;
        }
    }

    /// Runs a future as a client and waits for its value.
    async fn ask<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let answer = slot.clone();
        let task = async move {
            let value = future.await;
            *answer.borrow_mut() = Some(value);
        };
        let task = self.executor.spawn("the last client".to_owned(), Box::pin(task));
        self.clients.push(task);
        self.run_until("the last client", ENDS_WITHIN, |_| slot.borrow().is_some()).await;
        let value = slot.borrow_mut().take();
        value.expect("it was there")
    }

    fn gather(&mut self) {
        let groups = self.shared.model.borrow().plans.len();
        for n in 0..2 + self.dice.roll(3) {
            let naming = match self.dice.roll(3) {
                0 => Naming::None,
                1 => Naming::Ids,
                _ => Naming::Numbers(n + 1),
            };
            let produce = clients::produce(self.shared.clone(), naming, self.dice.fork());
            let task = self.executor.spawn(format!("producer {n}"), Box::pin(produce));
            self.clients.push(task);
        }
        for of in 0..groups {
            for n in 0..1 + self.dice.roll(2) {
                let name = format!("puller-{n}");
                let pull = clients::pull(self.shared.clone(), of, name.clone(), self.dice.fork());
                let task = self.executor.spawn(name, Box::pin(pull));
                self.clients.push(task);
            }
            for n in 0..1 + self.dice.roll(3) {
                let name = format!("member-{n}");
                let subscribe = clients::subscribe(self.shared.clone(), of, name.clone(), self.dice.fork());
                let task = self.executor.spawn(name, Box::pin(subscribe));
                self.clients.push(task);
            }
        }
    }

    /// Something befalls the cluster.
    fn mishap(&mut self) {
        // The one that serves, more often than not.
        let serving = self.shared.offices.iter().position(|office| office.borrow().is_some());
        let node = match serving {
            Some(node) if self.dice.chance(3, 4) => node,
            _ => self.dice.roll(NODES as u64) as usize,
        };
        let millis = match self.dice.roll(4) {
            0 => self.dice.roll(1_000),
            1 => 1_000 + self.dice.roll(3_000),
            _ => 3_000 + self.dice.roll(9_000),
        };
        let lasts = Duration::from_millis(millis);
        let is_there = self.nodes[node].life.is_some_and(|life| self.executor.is_alive(life));
        match self.dice.roll(9) {
            0 | 1 if is_there => self.begin(Trouble::Paused(node), lasts),
            2 | 3 => self.begin(Trouble::Cut(node), lasts),
            4 if is_there => {
                self.outcome.kills += 1;
                self.begin(Trouble::Down(node), lasts);
            }
            5 if is_there && !self.nodes[node].is_paused => self.stop(node, lasts),
            6 | 7 => {
                let left_behind = self.dice.chance(1, 3).then_some(node);
                let most = *self.dice.pick(&[50, 3_000, 9_000]);
                let takes = Duration::from_millis(self.dice.roll(most));
                tell(|| format!("{}: the servers elect for {takes:?}, {left_behind:?}", self.seconds()));
                self.servers.elect(takes, left_behind);
                if left_behind.is_some() {
                    self.troubles.retain(|(_, trouble)| *trouble != Trouble::LeftBehind);
                    self.troubles.push((moment() + takes + lasts / 2, Trouble::LeftBehind));
                }
            }
            _ => self.begin(Trouble::Storm, lasts),
        }
    }

    fn seconds(&self) -> f64 {
        self.shared.began.elapsed().as_secs_f64()
    }

    fn begin(&mut self, trouble: Trouble, lasts: Duration) {
        if self.troubles.iter().any(|(_, other)| *other == trouble) {
            return;
        }
        tell(|| format!("{}: {trouble:?} for {lasts:?}", self.seconds()));
        match trouble {
            Trouble::Paused(node) => {
                self.outcome.pauses += 1;
                self.nodes[node].is_paused = true;
                self.servers.pause(node, true);
            }
            Trouble::Cut(node) => {
                self.outcome.cuts += 1;
                self.servers.cut(node);
            }
            Trouble::Down(node) => self.kill(node),
            Trouble::Storm => {
                let latency = Duration::from_millis(50 + self.dice.roll(1_000));
                let lost = *self.dice.pick(&[4, 30, 1_000]);
                self.servers.set_weather(Weather { latency, lost, ..self.weather });
            }
            Trouble::LeftBehind => {}
        }
        self.troubles.push((moment() + lasts, trouble));
    }

    fn end(&mut self, trouble: Trouble) {
        tell(|| format!("{}: {trouble:?} is over", self.seconds()));
        match trouble {
            Trouble::Paused(node) => {
                self.nodes[node].is_paused = false;
                self.servers.pause(node, false);
            }
            Trouble::Cut(node) => self.servers.mend(node),
            Trouble::Down(node) => {
                self.kill(node);
                self.start(node);
            }
            Trouble::Storm => self.servers.set_weather(self.weather),
            Trouble::LeftBehind => self.servers.rejoin(),
        }
    }

    /// The process is gone, with everything that it has in memory.
    fn kill(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.is_paused = false;
        node.life = None;
        drop(node.spawned.take());
        *self.shared.offices[number].borrow_mut() = None;
        *node.broker.borrow_mut() = None;
        let tasks: Vec<TaskId> =
            self.tasks.iter().filter(|(_, node)| **node == number).map(|(task, _)| *task).collect();
        for task in tasks {
            self.tasks.remove(&task);
            self.executor.abandon(task);
        }
        self.servers.kill(number);
        self.troubles.retain(|(_, trouble)| *trouble != Trouble::Paused(number));
    }

    /// A node is told to stop, and starts again after a while.
    fn stop(&mut self, number: usize, lasts: Duration) {
        if self.troubles.iter().any(|(_, trouble)| *trouble == Trouble::Down(number)) {
            return;
        }
        self.outcome.stops += 1;
        let drains = self.dice.chance(1, 2);
        tell(|| format!("{}: node {number} is told to stop, and is away for {lasts:?}", self.seconds()));
        let broker = self.nodes[number].broker.borrow().clone();
        match broker {
            Some(broker) if drains => broker.drain(),
            Some(broker) => broker.stop(),
            // A standby has nothing to finish.
            None => self.kill(number),
        }
        // The service manager kills a node that takes too long to stop.
        self.troubles.push((moment() + Duration::from_secs(4) + lasts, Trouble::Down(number)));
    }

    /// Everything is whole again, and one node serves.
    async fn heal(&mut self) {
        tell(|| format!("{}: everything heals", self.seconds()));
        for (_, trouble) in std::mem::take(&mut self.troubles) {
            self.end(trouble);
        }
        self.weather = Weather {
            latency: Duration::from_millis(2),
            late: u64::MAX,
            lost: u64::MAX,
            lag: Duration::from_millis(5),
        };
        self.servers.set_weather(self.weather);
        self.next_mishap = moment() + ENDS_WITHIN * 2;
        let until = moment() + RECOVERS_WITHIN;
        let settle = moment() + Duration::from_secs(25);
        let is_one = |world: &World| world.shared.offices().len() == 1 && moment() >= settle;
        self.run_until("the change of owner after everything healed", until - moment(), is_one).await;
    }

    /// Clients end, and everything is received and acked. Then the owner stops, and the other node goes on.
    async fn come_to_rest(&mut self) {
        tell(|| format!("{}: clients come to an end", self.seconds()));
        self.shared.is_calm.set(true);
        let has_ended = |world: &World| world.clients.iter().all(|client| !world.executor.is_alive(*client));
        self.run_until("a call of a client", ENDS_WITHIN, has_ended).await;
        let groups = self.shared.model.borrow().plans.len();
        for of in 0..groups {
            self.ask(finish(self.shared.clone(), of)).await;
            self.shared.model.borrow().check_end(of);
        }
        let owner = self.shared.offices.iter().position(|office| office.borrow().is_some());
        let owner = owner.expect("one node serves");
        let broker = self.nodes[owner].broker.borrow().clone().expect("it serves");
        tell(|| format!("{}: the owner stops", self.seconds()));
        broker.stop();
        let is_next = |world: &World| world.shared.offices[1 - owner].borrow().is_some();
        self.run_until("the hand-over after a clean stop", HANDED_OVER_WITHIN, is_next).await;
        for of in 0..groups {
            let (stream, group) = self.shared.names(of);
            let office = self.shared.offices().pop().expect("the other one serves");
            let figures = self.ask(async move { office.caller.figures(stream, group).await }).await;
            let (_, figures) = figures.expect("it answers");
            assert_eq!(
                (figures.lag, figures.in_flight),
                (0, 0),
                "I5: the next owner has messages of group {of}"
            );
        }
    }
}

/// Creates streams and groups, at whichever node serves.
async fn create_all(shared: Rc<Shared>) {
    let plans = shared.model.borrow().plans.clone();
    for stream in shared.streams.clone() {
        loop {
            if let Some(Office { caller, .. }) = shared.offices().pop()
                && caller.create_stream(stream.clone(), |_| {}).await.is_ok()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    for plan in plans {
        loop {
            let (stream, name, plan) = (plan.stream.clone(), plan.name.clone(), plan.clone());
            let change = move |settings: &mut GroupSettings| {
                if plan.is_ordered {
                    settings.strategy = Strategy::Ordered;
                }
                settings.acks = if plan.has_durable_acks { Acks::Durable } else { Acks::Journal };
                settings.message_timeout = plan.timeout;
                settings.max_retries = Retries::Unlimited;
                settings.backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO, ..Backoff::default() };
            };
            if let Some(Office { caller, .. }) = shared.offices().pop()
                && caller.create_group(stream, name, change).await.is_ok()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Receives and acks everything that is left in a group.
async fn finish(shared: Rc<Shared>, of: usize) {
    let (stream, group) = shared.names(of);
    let mut in_vain = 0;
    loop {
        let office = shared.offices().pop().expect("one node serves");
        let caller = &office.caller;
        let (_, figures) = caller.figures(stream.clone(), group.clone()).await.expect("it answers");
        if figures.lag == 0 {
            return;
        }
        assert!(in_vain < 20, "I4: group {of} has messages and gives none: {figures:?}");
        let wait = Duration::from_secs(30);
        let request = Receive { consumer: "last".to_owned(), max: 50, wait, ..Receive::default() };
        let receiving = caller.receive(stream.clone(), group.clone(), request).await.expect("it answers");
        in_vain = if receiving.is_empty() { in_vain + 1 } else { 0 };
        let taken = receiving.take();
        let asked = shared.now();
        let mut leases = Vec::new();
        for (_, message) in &taken {
            let lasts = message.deadline.since(caller.broker().clock().now());
            let id = shared.model().delivered(asked, of, Bound::Clock, lasts, message);
            shared.model().asked(asked, of, (id, message.lease), &Verb::Ack);
            leases.push((id, message.lease));
        }
        let receipts: Vec<String> = taken.into_iter().map(|(receipt, _)| receipt).collect();
        let settle = caller.settle(stream.clone(), group.clone(), &receipts, Settlement::from(Verb::Ack));
        for (lease, outcome) in leases.into_iter().zip(settle.await.expect("it answers")) {
            let times = (asked, shared.now());
            shared.model().answered(times, office.epoch, of, lease, &Verb::Ack, outcome);
        }
    }
}
