//! One history: a server with its clients, crashes and stops, and the way to rest, where every budget must be whole.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Acks, Backoff, BatchBuilder, Bound, Broker, BrokerConfig, Caller, Clock, Filter, GroupSettings, Message,
    Principal, Receive, Retries, Settlement, Stage, Strategy, Verb,
};
use forebay_broker::broker::TaskFuture;
use forebay_core::types::{GroupName, Seq, StreamName, Timestamp};

use super::clients::{self, Shared};
use super::engine::ShellEngine;
use super::executor::{Executor, TaskId};
use super::feeds::{self, Feeds};
use super::model::{GroupPlan, Model};
use super::{Outcome, STEP};
use crate::dice::Dice;
use crate::tale::tell;

/// The date at which every history begins.
const BEGINS: Timestamp = Timestamp(1_900_000_000_000_000);
/// Steps in which the server and its clients must have come to their end once they are told to.
const STEPS_MAX: u64 = 100_000;
/// A group with a waiting consumer in which nothing moves for this long is looked at. Longer than a consumer is held
/// back and a read is retried, and shorter than the second after which the server looks at its counters by itself.
const QUIET: Duration = Duration::from_millis(600);
/// How long nothing is published now and then.
const LULL: Duration = Duration::from_secs(4);
/// How long the last consumer waits for a message. Longer than any lease and backoff.
const LAST_WAIT: Duration = Duration::from_secs(120);
/// Receives of the last consumer in a row that bring nothing while the group has messages.
const IN_VAIN_MAX: u32 = 20;
/// After this long without a receive a consumer without a connection is no member any more.
const POLLERS_GONE: Duration = Duration::from_secs(40);
/// Receives that may wait at a time.
const RECEIVES_MAX: usize = 16;
const DRAIN_MAX: Duration = Duration::from_secs(2);

pub(super) struct World {
    dice: Dice,
    shared: Rc<Shared>,
    engine: Arc<ShellEngine>,
    config: BrokerConfig,
    executor: Executor,
    /// The task of the shard.
    shard: Option<TaskId>,
    clients: Vec<Client>,
    /// When contents were last on their way to a consumer, timers fired late, or a call of the engine failed. The
    /// server may then wait for a while although there is something to deliver.
    uneasy: Timestamp,
    pace: Pace,
    feeds: Option<Rc<Feeds>>,
    /// The task that keeps the feeders of the server.
    feeding: Option<TaskId>,
    outcome: Outcome,
}

#[derive(Debug, Clone)]
enum Role {
    Producer,
    Puller(usize, String),
    Subscriber(usize, String),
    Onlooker,
    Operator(Rc<Feeds>),
}

struct Client {
    role: Role,
    task: TaskId,
}

/// What this history is like.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Of a hundred steps in which the engine has work, those in which a task goes on instead.
    tasks: u64,
    /// Of a thousand steps, those in which only time passes.
    time: u64,
    /// Of ten thousand steps, those in which a client is dropped.
    abandons: u64,
    /// Of a hundred steps in which the shard could go on, those in which another task does.
    holds_up: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut dice = Dice::from(seed);
        let name = |text: &str| StreamName::parse(text).expect("a name");
        let streams: Vec<StreamName> =
            ["red", "blue"][..1 + dice.roll(2) as usize].iter().map(|s| name(s)).collect();
        let plans: Vec<GroupPlan> = (0..1 + dice.roll(3))
            .map(|n| GroupPlan {
                stream: dice.pick(&streams).clone(),
                name: GroupName::parse(&format!("g{n}")).expect("a name"),
                is_ordered: dice.chance(1, 2),
                has_durable_acks: dice.chance(1, 2),
                timeout: Duration::from_millis(*dice.pick(&[500, 3_000, 20_000])),
                retries: dice.chance(1, 3).then(|| dice.roll(4) as u32),
                backoff: Duration::from_millis(*dice.pick(&[0, 0, 50, 400])),
            })
            .collect();
        let mut config = BrokerConfig::new([7; 32]);
        config.room_bytes = *dice.pick(&[4 << 10, 64 << 10]);
        config.reply_bytes = *dice.pick(&[8 << 10, 8 << 10, 64 << 20]);
        config.calls_max = 1 + dice.roll(4) as usize;
        config.reads_max = 1 + dice.roll(2) as usize;
        config.receives_max = RECEIVES_MAX;
        config.drain_max = DRAIN_MAX;
        config.read_bytes_max = *dice.pick(&[1 << 10, 64 << 10]);
        config.driver.window_bytes_max = *dice.pick(&[0, 2 << 10, 32 << 20]);
        config.driver.read_bytes_max = *dice.pick(&[256, 4 << 10, 64 << 10]);
        config.driver.image_frames = *dice.pick(&[5, 40, 1_000]);
        config.driver.image_slice_bytes = *dice.pick(&[64, 4 << 10]);
        let pace = Pace {
            tasks: *dice.pick(&[20, 50, 80, 97]),
            time: *dice.pick(&[2, 20, 100]),
            abandons: *dice.pick(&[0, 5, 40]),
            holds_up: *dice.pick(&[0, 0, 60, 95]),
        };
        let feeds = Feeds::roll(seed);
        let shared = Shared {
            model: RefCell::new(Model::new(plans)),
            clock: Clock::starting_at(BEGINS),
            streams,
            broker: RefCell::new(None),
            caller: RefCell::new(None),
            spawned: RefCell::default(),
            ended: RefCell::new(None),
            is_calm: Cell::new(false),
            is_lull: Cell::new(false),
            patience: *dice.pick(&[2, 4, 12, 100]),
            body_max: *dice.pick(&[40, 400, 9_000, 9_000]),
            has_feeds: feeds.is_some(),
            kept: RefCell::default(),
        };
        World {
            engine: Arc::new(ShellEngine::new(dice.fork())),
            dice,
            shared: Rc::new(shared),
            config,
            executor: Executor::default(),
            shard: None,
            clients: Vec::new(),
            uneasy: BEGINS,
            pace,
            feeds,
            feeding: None,
            outcome: Outcome::default(),
        }
    }

    /// Goes through the whole history.
    pub(super) async fn live(mut self) -> Outcome {
        tell(|| format!("{:?} {:?} {:?}", self.pace, self.config, self.shared.model.borrow().plans));
        tell(|| format!("{:?}", self.feeds));
        self.start().await;
        self.create_groups().await;
        self.gather();
        for part in 0..1 + self.dice.roll(3) {
            if part > 0 {
                self.restart().await;
            }
            for _ in 0..200 + self.dice.roll(1_200) {
                self.step().await;
                self.abandon_a_client();
            }
            if self.dice.chance(1, 2) {
                self.lull().await;
            }
        }
        self.come_to_rest().await;
        let counts = self.engine.counts();
        let model = self.shared.model.borrow();
        Outcome {
            deliveries: model.deliveries,
            redeliveries: model.redeliveries,
            reads: counts.reads,
            saves: counts.saves,
            trims: counts.trims,
            ..self.outcome
        }
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn note(&mut self, what: u64) {
        let mixed = self.outcome.trace.rotate_left(5) ^ what ^ self.now().0;
        self.outcome.trace = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// One choice: a task goes on, the engine answers, or time passes.
    async fn step(&mut self) {
        self.outcome.steps += 1;
        STEP.set(self.outcome.steps as u32);
        let spawned: Vec<_> = self.shared.spawned.borrow_mut().drain(..).collect();
        for (name, future) in spawned {
            let is_shard = name == SHARD;
            let id = self.executor.spawn(name, future);
            if is_shard {
                self.shard = Some(id);
            }
        }
        let is_scarce = |broker: &Broker| broker.memory().figures().handed_out > 0;
        let is_scarce = self.shared.broker.borrow().as_ref().is_some_and(is_scarce);
        if is_scarce {
            self.uneasy = self.now();
        }
        let mut ready = self.executor.ready();
        let has_work = self.engine.has_work();
        if self.dice.chance(self.pace.time, 1_000) {
            let micros =
                if self.dice.chance(1, 40) { self.dice.roll(3_000_000) } else { self.dice.roll(4_000) };
            tokio::time::advance(Duration::from_micros(micros)).await;
            if micros > 100_000 {
                // Timers that were due meanwhile fire only now.
                self.uneasy = self.now();
            }
            self.note(1);
        } else if !ready.is_empty() && (!has_work || self.dice.chance(self.pace.tasks, 100)) {
            if ready.len() > 1 && self.dice.chance(self.pace.holds_up, 100) {
                ready.retain(|id| Some(*id) != self.shard);
            }
            let id = *self.dice.pick(&ready);
            self.note(2 + u64::from(id) * 8);
            tell(|| {
                format!("{}: {} goes on", self.now().since(BEGINS).as_secs_f64(), self.executor.name(id))
            });
            self.executor.poll(id);
        } else if has_work {
            let failures = self.engine.counts().failures;
            let done = self.engine.work();
            tell(|| done);
            if self.engine.counts().failures > failures {
                // The server tries again after a pause.
                self.uneasy = self.now();
            }
            self.note(3);
        } else {
            self.idle().await;
        }
        // Work of the engine runs beside the tasks, and says that it is done.
        tokio::task::yield_now().await;
    }

    /// Nothing can go on until a timer fires.
    async fn idle(&mut self) {
        let quiet = self.shared.model.borrow().quiet(self.now(), QUIET);
        for of in quiet {
            self.look_at_quiet(of);
        }
        // So that a wait in which nothing moves is seen to be one.
        let limit = Duration::from_millis(50 + self.dice.roll(700));
        self.executor.wait(limit).await;
        tell(|| format!("{}: nothing went on until now", self.now().since(BEGINS).as_secs_f64()));
        self.note(4);
    }

    /// Asks for the figures of a group before the server has another reason for a turn, so they are of the moment at
    /// which it had nothing to do.
    fn look_at_quiet(&mut self, of: usize) {
        let now = self.now();
        let (Some(shard), Some(caller)) = (self.shard, self.shared.caller.borrow().clone()) else { return };
        // Contents that consumers have not encoded keep back large deliveries to others, for a while.
        if now.since(self.uneasy) < QUIET
            || caller.broker().stage() != Stage::Running
            || !self.executor.is_alive(shard)
        {
            return;
        }
        self.outcome.looks += 1;
        let shared = self.shared.clone();
        shared.model().looked_at(now, of);
        if shared.model.borrow().plans[of].is_ordered {
            return shared.model.borrow().check_quiet_keys(now, of);
        }
        let look = async move {
            let (stream, group) = shared.names(of);
            // If the server dies meanwhile there is no answer.
            if let Ok((_, figures)) = caller.figures(stream, group).await {
                shared.model.borrow().check_quiet(of, &figures);
            }
        };
        let look = self.executor.spawn("look".to_owned(), Box::pin(look));
        self.executor.poll(look);
        self.executor.poll(shard);
    }

    /// Lets consumers take all that there is, and wait.
    async fn lull(&mut self) {
        tell(|| "a lull".to_owned());
        self.shared.is_lull.set(true);
        let until = self.now() + LULL;
        self.run_until("a lull", |world| world.now() >= until).await;
        self.shared.is_lull.set(false);
    }

    /// Goes on until `is_done`.
    async fn run_until(&mut self, what: &str, is_done: impl Fn(&World) -> bool) {
        let from = self.outcome.steps;
        while !is_done(self) {
            assert!(
                self.outcome.steps - from < STEPS_MAX,
                "I4: {what} does not come to an end. Waiting: {:?}",
                self.clients.iter().map(|client| self.executor.name(client.task)).collect::<Vec<_>>()
            );
            self.step().await;
        }
    }

    /// Opens the log and waits until the server serves.
    async fn start(&mut self) {
        let (shared, engine, config) = (self.shared.clone(), self.engine.clone(), self.config.clone());
        let open = async move {
            let tasks = shared.clone();
            let spawn = move |task: TaskFuture| {
                let shared = tasks.clone();
                let run = async move {
                    let ended = task.await.map_err(|error| format!("{error:?}"));
                    *shared.ended.borrow_mut() = Some(ended);
                };
                tasks.spawned.borrow_mut().push((SHARD.to_owned(), Box::pin(run)));
            };
            let broker = Broker::open_on(engine, shared.clock, config, spawn).await.expect("the log opens");
            *shared.caller.borrow_mut() = Some(broker.enter(Principal::owner(), None));
            *shared.broker.borrow_mut() = Some(broker);
        };
        *self.shared.ended.borrow_mut() = None;
        self.executor.spawn("start".to_owned(), Box::pin(open));
        tell(|| "the server starts".to_owned());
        self.run_until("the start", |world| world.shared.caller.borrow().is_some()).await;
        if self.feeds.is_some() {
            let feeding = self.caller().broker().clone().feed_sources();
            self.feeding = Some(self.executor.spawn("feeding".to_owned(), Box::pin(feeding)));
        }
    }

    /// Runs a future as a task and waits for its value.
    async fn ask<T: 'static>(&mut self, what: &str, future: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let answer = slot.clone();
        let task = async move {
            let value = future.await;
            *answer.borrow_mut() = Some(value);
        };
        self.executor.spawn(what.to_owned(), Box::pin(task));
        self.run_until(what, |_| slot.borrow().is_some()).await;
        let value = slot.borrow_mut().take();
        value.expect("it was there")
    }

    fn caller(&self) -> Caller {
        self.shared.caller.borrow().clone().expect("the server serves")
    }

    async fn create_groups(&mut self) {
        let plans = self.shared.model.borrow().plans.clone();
        let caller = self.caller();
        for stream in self.shared.streams.clone() {
            let caller = caller.clone();
            self.ask("a stream", async move { caller.create_stream(stream, |_| {}).await })
                .await
                .expect("a stream");
        }
        for plan in plans {
            let caller = caller.clone();
            let create = async move {
                let (stream, name) = (plan.stream.clone(), plan.name.clone());
                let change = move |settings: &mut GroupSettings| {
                    if plan.is_ordered {
                        settings.strategy = Strategy::Ordered;
                    }
                    settings.acks = if plan.has_durable_acks { Acks::Durable } else { Acks::Journal };
                    settings.message_timeout = plan.timeout;
                    settings.max_retries = plan.retries.map_or(Retries::Unlimited, Retries::AtMost);
                    settings.backoff = Backoff { min: plan.backoff, max: plan.backoff, ..Backoff::default() };
                };
                caller.create_group(stream, name, change).await
            };
            self.ask("a group", create).await.expect("a group");
        }
    }

    fn gather(&mut self) {
        let mut roles = vec![Role::Producer; 1 + self.dice.roll(3) as usize];
        let groups = self.shared.model.borrow().plans.len();
        for of in 0..groups {
            // Most groups have both kinds of consumers, some of them under one name.
            for n in 0..self.dice.roll(4) {
                roles.push(Role::Puller(of, format!("puller-{}", n.min(1))));
            }
            for n in 0..self.dice.roll(3) {
                roles.push(Role::Subscriber(of, format!("member-{n}")));
            }
        }
        if self.dice.chance(1, 2) {
            roles.push(Role::Onlooker);
        }
        roles.extend(self.feeds.clone().map(Role::Operator));
        for role in roles {
            let task = self.spawn(&role);
            self.clients.push(Client { role, task });
        }
    }

    fn spawn(&mut self, role: &Role) -> TaskId {
        let (shared, dice) = (self.shared.clone(), self.dice.fork());
        let name = format!("{role:?}");
        match role.clone() {
            Role::Producer => self.executor.spawn(name, Box::pin(clients::produce(shared, dice))),
            Role::Puller(of, who) => {
                self.executor.spawn(name, Box::pin(clients::pull(shared, of, who, dice)))
            }
            Role::Subscriber(of, who) => {
                self.executor.spawn(name, Box::pin(clients::subscribe(shared, of, who, dice)))
            }
            Role::Onlooker => self.executor.spawn(name, Box::pin(clients::look(shared, dice))),
            Role::Operator(feeds) => {
                self.executor.spawn("operator".to_owned(), Box::pin(feeds::operate(shared, feeds, dice)))
            }
        }
    }

    /// Drops a client wherever it is, and begins another one.
    fn abandon_a_client(&mut self) {
        if self.clients.is_empty() || !self.dice.chance(self.pace.abandons, 10_000) {
            return;
        }
        self.outcome.abandoned += 1;
        let n = self.dice.roll(self.clients.len() as u64) as usize;
        let role = self.clients[n].role.clone();
        tell(|| format!("{role:?} is dropped"));
        self.executor.abandon(self.clients[n].task);
        self.clients[n].task = self.spawn(&role);
    }

    /// The server dies, or is stopped with its clients at work, and starts again.
    async fn restart(&mut self) {
        let shard = self.shard.expect("the server runs");
        if self.dice.chance(1, 2) {
            tell(|| "the server dies".to_owned());
            self.outcome.crashes += 1;
            self.end_server(false);
            self.executor.abandon(shard);
            self.engine.crash();
        } else {
            self.stop().await;
        }
        self.start().await;
    }

    /// Callers find no server until the next start.
    fn end_server(&mut self, is_clean: bool) {
        *self.shared.caller.borrow_mut() = None;
        if let Some(feeding) = self.feeding.take() {
            self.executor.abandon(feeding);
        }
        if let Some(broker) = self.shared.broker.borrow_mut().take() {
            self.outcome.held_back += broker.memory().figures().held_back;
        }
        let now = self.now();
        self.shared.model().server_gone(now, is_clean);
    }

    /// Stops or drains the server, which must end by itself.
    async fn stop(&mut self) {
        let drains = self.dice.chance(1, 2);
        tell(|| if drains { "the server drains".to_owned() } else { "the server stops".to_owned() });
        self.outcome.stops += 1;
        let from = self.now();
        {
            let broker = self.shared.broker.borrow().clone().expect("the server runs");
            if drains { broker.drain() } else { broker.stop() }
        }
        self.run_until("the stop", |world| world.shared.ended.borrow().is_some()).await;
        let ended = self.shared.ended.borrow_mut().take().expect("it has ended");
        assert_eq!(ended, Ok(()), "a server that is stopped ends well");
        tell(|| format!("the server has stopped after {:?}", self.now().since(from)));
        self.end_server(true);
    }

    /// Clients end, everything is received and acked, and every budget is whole. Then the server stops.
    async fn come_to_rest(&mut self) {
        tell(|| "clients come to an end".to_owned());
        self.shared.is_calm.set(true);
        if self.dice.chance(1, 3) {
            // In the middle of their calls.
            for client in std::mem::take(&mut self.clients) {
                self.executor.abandon(client.task);
            }
        }
        let has_ended =
            |world: &World| world.clients.iter().all(|client| !world.executor.is_alive(client.task));
        self.run_until("a call of a client", has_ended).await;
        // A call that its caller dropped may still store messages. This one is answered when those before it are
        // durable.
        let (caller, stream) = (self.caller(), self.shared.streams[0].clone());
        let exists = async move { caller.create_stream(stream, |_| {}).await };
        self.ask("calls that were dropped", exists).await.expect("the stream is there already");
        let plans = self.shared.model.borrow().plans.clone();
        for (of, plan) in plans.iter().enumerate() {
            let finish = finish(self.shared.clone(), self.caller(), of, plan.clone());
            self.ask("the last consumer", finish).await;
        }
        if let Some(feeds) = self.feeds.clone() {
            let finish = feeds::finish(self.shared.clone(), self.caller(), feeds);
            self.outcome.copies = self.ask("streams that are fed", finish).await;
        }
        for (of, plan) in plans.iter().enumerate() {
            let parked = parked(self.caller(), plan.clone());
            let parked = self.ask("the list of parked messages", parked).await;
            self.shared.model.borrow().check_end(of, &parked);
        }
        self.ask("time", tokio::time::sleep(POLLERS_GONE)).await;
        self.check_budgets().await;
        self.stop().await;
    }

    /// Nothing is under way and no client is there, so nothing may be taken.
    async fn check_budgets(&mut self) {
        let caller = self.caller();
        let asks = caller.clone();
        let report = self.ask("the report", async move { asks.server().await }).await.expect("it answers");
        assert_eq!(
            (report.connected, report.polling, report.waiting),
            (0, 0, 0),
            "budgets: connected, polling and waiting consumers of a server without clients"
        );
        let memory = caller.broker().memory().figures();
        assert_eq!((memory.replies, memory.handed_out), (0, 0), "budgets: bytes on their way to nowhere");
        let mut builder = BatchBuilder::default();
        builder.push(&Message { body: &vec![0; self.config.room_bytes as usize], ..Message::default() });
        let stream = self.shared.streams[0].clone();
        let room = caller.broker().try_room(&stream, &builder.build());
        assert!(room.is_some(), "budgets: room for batches is taken, and no batch is on its way");
        drop(room);
        let plan = self.shared.model.borrow().plans[0].clone();
        let all = Rc::new(Cell::new(0));
        for n in 0..RECEIVES_MAX {
            let (caller, plan, all) = (caller.clone(), plan.clone(), all.clone());
            let receive = async move {
                let wait = Duration::from_millis(10);
                let request = Receive { consumer: format!("last-{n}"), max: 1, wait, ..Receive::default() };
                let received = caller.receive(plan.stream, plan.name, request).await;
                assert!(
                    received.is_ok_and(|received| received.is_empty()),
                    "budgets: every receive may wait"
                );
                all.set(all.get() + 1);
            };
            self.executor.spawn("a receive".to_owned(), Box::pin(receive));
        }
        self.run_until("receives", |_| all.get() == RECEIVES_MAX).await;
    }
}

const SHARD: &str = "shard";

/// Receives and acks everything that is left in a group.
async fn finish(shared: Rc<Shared>, caller: Caller, of: usize, plan: GroupPlan) {
    let mut in_vain = 0;
    loop {
        let (_, figures) = caller.figures(plan.stream.clone(), plan.name.clone()).await.expect("it answers");
        if figures.lag == 0 {
            assert_eq!(figures.in_flight, 0, "I7: nothing is left, and something is in flight");
            return;
        }
        assert!(in_vain < IN_VAIN_MAX, "I4: {:?} has messages and gives none: {figures:?}", plan.name);
        let request = Receive { consumer: "last".to_owned(), max: 50, wait: LAST_WAIT, ..Receive::default() };
        let receiving =
            caller.receive(plan.stream.clone(), plan.name.clone(), request).await.expect("it answers");
        // A lease may have lapsed before its messages had been read and its entry was durable. A message that was in
        // flight may have been parked.
        in_vain = if receiving.is_empty() { in_vain + 1 } else { 0 };
        let taken = receiving.take();
        let mut leases = Vec::new();
        for (_, message) in &taken {
            let id = shared.model().delivered(shared.now(), of, Bound::Clock, message);
            tell(|| format!("the last consumer receives {id} on {:?}", message.lease));
            shared.model().asked(shared.now(), of, (id, message.lease), &Verb::Ack);
            leases.push((id, message.lease));
        }
        let receipts: Vec<String> = taken.into_iter().map(|(receipt, _)| receipt).collect();
        let asked = shared.now();
        let settled =
            caller.settle(plan.stream.clone(), plan.name.clone(), &receipts, Settlement::from(Verb::Ack));
        for (lease, outcome) in leases.into_iter().zip(settled.await.expect("it answers")) {
            shared.model().answered((asked, shared.now()), of, lease, &Verb::Ack, outcome, true);
        }
    }
}

/// The positions of the parked messages of a group.
async fn parked(caller: Caller, plan: GroupPlan) -> Vec<Seq> {
    let (mut all, mut after) = (Vec::new(), Seq::START);
    loop {
        let (stream, group) = (plan.stream.clone(), plan.name.clone());
        let page =
            caller.parked(stream, group, after, 100, None, &Filter::default()).await.expect("it answers");
        for parked in &page.items {
            assert!(parked.message.is_some(), "I10: the parked message {} can be read", parked.seq);
            all.push(parked.seq);
        }
        match page.next {
            Some(next) => after = next,
            None => return all,
        }
    }
}
