//! The async loop around the driver: commands, receipts, one timer.
//!
//! The task owns the shard. A turn takes everything that has come in, lets the driver decide once, and
//! carries out what it says. Nothing here waits for a disk or a consumer, so settling goes on at the same
//! pace however slow either is.
//!
//! The queue of commands has no length of its own. Each kind of command is limited before it gets here:
//! a batch has taken room from the byte budget, a consumer has a limited number of unanswered
//! settlements, every other call holds one of a fixed number of permits, and a consumer leaves once.

mod bundles;
mod commands;
pub(crate) mod engine_calls;
mod figures;
mod pollers;
mod reading;
mod requests;
mod tails;
mod traces;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::group::{Credit, Departure};
use forebay_core::settings::StreamSettings;
use forebay_core::shard::PublishRefusal;
use forebay_core::types::{ConsumerId, Position, Timestamp};
use forebay_storage::engine::{Appended, Durable, Engine, Readout, Saved, SpaceGauge, StorageError, Tenure};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Sleep;

use crate::broker::Stage;
use crate::clock::Clock;
use crate::driver::{Driver, Outbox, group_label};
use crate::error::PublishError;
use crate::memory::Memory;
use crate::receipt::Receipts;
use crate::recovery::RecoveryError;
use crate::stats::Histogram;
use commands::{Member, Waiting, WaitingRoom, answer};
use figures::Statistics;
use pollers::Pollers;
use requests::DRAIN_LOOK;
use tails::Tails;
use traces::Traces;

pub(crate) use commands::{Command, Queued, Session};
pub use commands::{Event, SettleRequest, Settled};
pub(crate) use figures::CONSUMERS_PER_LIST;
pub(crate) use requests::{find_group, find_stream};

/// Commands that one turn takes at most, so that a flood of them does not keep receipts waiting.
const COMMANDS_PER_TURN: usize = 4_096;

/// How long a consumer is held back for which there was no room.
const HELD_BACK: Duration = Duration::from_millis(250);
/// How often a task that may not serve looks whether it may again.
const STALLED_LOOK: Duration = Duration::from_millis(20);
/// Bytes of content that a connected consumer is given before it settles some, if it states no limit.
const CONSUMER_BYTES_MAX: u64 = 64 << 20;

/// Background work of the engine that is done.
enum Done {
    Read(u64, Result<Readout, StorageError>),
    Saved(Result<Saved, StorageError>),
    Trimmed(Result<(), StorageError>),
    /// A consumer that was held back has waited long enough.
    Wait(ConsumerId),
}

/// The configuration of the task.
pub(crate) struct TaskConfig {
    pub(crate) stream_of_first_publish: Option<StreamSettings>,
    pub(crate) drain_max: Duration,
    pub(crate) read_bytes_max: usize,
    pub(crate) memory: Arc<Memory>,
    /// Seals receipts until the log has a secret of its own.
    pub(crate) secret: [u8; 32],
}

pub(crate) struct ShardTask {
    config: TaskConfig,
    driver: Driver,
    engine: Arc<dyn Engine>,
    space: SpaceGauge,
    tenure: Tenure,
    /// Whether deliveries wait because another node may own the log.
    is_stalled: bool,
    /// Refusals that wait until the log is surely owned.
    unsure: Vec<Box<dyn FnOnce() + Send>>,
    clock: Clock,
    /// The time of this turn.
    now: Timestamp,
    commands: mpsc::UnboundedReceiver<Command>,
    /// For replies whose messages come back if they are not taken. Does not keep the queue open.
    own_commands: mpsc::WeakUnboundedSender<Command>,
    stage: Stage,
    staged: watch::Sender<Stage>,
    /// In the order of the frames, each with the time of its turn.
    receipts_due: VecDeque<(Timestamp, Appended)>,
    commit_times: Histogram,
    work: JoinSet<Done>,
    waiting: WaitingRoom,
    members: HashMap<ConsumerId, Member>,
    pollers: Pollers,
    receipts: Receipts,
    statistics: Statistics,
    traces: Traces,
    tails: Tails,
    /// While the server drains: when consumers that hold messages are checked next, and until when they may
    /// hold them.
    drain: Option<(Timestamp, Timestamp)>,
    timer: Pin<Box<Sleep>>,
    /// When the timer goes off, if it is set.
    timer_at: Option<Timestamp>,
}

impl ShardTask {
    pub(crate) fn new(
        driver: Driver,
        engine: Arc<dyn Engine>,
        (space, tenure): (SpaceGauge, Tenure),
        clock: Clock,
        (own_commands, commands): (mpsc::WeakUnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
        staged: watch::Sender<Stage>,
        config: TaskConfig,
    ) -> ShardTask {
        let receipts = Receipts::new(driver.id(), config.secret);
        ShardTask {
            config,
            driver,
            engine,
            space,
            tenure,
            is_stalled: false,
            unsure: Vec::new(),
            clock,
            now: clock.now(),
            commands,
            own_commands,
            stage: Stage::Running,
            staged,
            receipts_due: VecDeque::new(),
            commit_times: Histogram::default(),
            work: JoinSet::new(),
            waiting: WaitingRoom::default(),
            members: HashMap::new(),
            pollers: Pollers::default(),
            receipts,
            statistics: Statistics::default(),
            traces: Traces::default(),
            tails: Tails::default(),
            drain: None,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_at: None,
        }
    }

    /// Serves until it is told to stop or the engine fails. Callers that still wait then learn that their
    /// outcome is unknown.
    pub(crate) async fn run(mut self) -> Result<(), RecoveryError> {
        let mut inbox = Vec::new();
        loop {
            self.now = self.clock.now();
            self.driver.set_storage_full(self.space.is_full());
            self.driver.set_space_left(self.space.left());
            for command in inbox.drain(..) {
                self.on_command(command);
            }
            self.refuse_unsure();
            self.look_at_drain();
            self.driver.finish_turn(self.now);
            self.statistics.keep_up(self.now, self.driver.shard());
            self.refuse_full();
            self.answer_hasty();
            self.report_moves();
            if self.stage == Stage::Stopping {
                self.driver.flush(self.now);
            }
            self.carry_out();
            if self.is_stalled && self.tenure.is_long_over() {
                self.cut_off_all();
            }
            if self.stage == Stage::Stopping && self.receipts_due.is_empty() && self.driver.is_settled() {
                return Ok(());
            }
            self.set_timer();
            tokio::select! {
                biased;
                receipt = next_receipt(&mut self.receipts_due) => self.on_receipts(receipt)?,
                Some(done) = self.work.join_next() => self.on_done(done)?,
                () = &mut self.timer, if self.timer_at.is_some() => self.timer_at = None,
                error = self.tenure.lost(), if self.tenure.is_limited() => return Err(error.into()),
                () = tokio::time::sleep(STALLED_LOOK), if self.is_stalled => {}
                count = self.commands.recv_many(&mut inbox, COMMANDS_PER_TURN) => {
                    if count == 0 {
                        // Every handle is gone, and with them everyone who could ask for anything.
                        self.stop();
                    }
                }
            }
            // Receipts may be ready at every turn, and must not keep finished reads, images and trims waiting.
            while let Some(done) = self.work.try_join_next() {
                self.on_done(done)?;
            }
            while inbox.len() < COMMANDS_PER_TURN
                && let Ok(command) = self.commands.try_recv()
            {
                inbox.push(command);
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish { stream, batch, options, absent, room, reply } => {
                if self.stage != Stage::Running {
                    return answer(reply, Err(PublishError::Stopping));
                }
                let stream = match self.stream_to_publish(&stream, &batch, options, &absent) {
                    Ok(stream) => stream,
                    // The deletion of the stream may not be durable yet, and must not be told before.
                    Err(error @ PublishError::Refused(PublishRefusal::NoSuchStream)) => {
                        return self.refuse(true, move || answer(reply, Err(error)));
                    }
                    Err(error) => return self.refuse(false, move || answer(reply, Err(error))),
                };
                match self.driver.publish(self.now, stream, &batch, options, self.waiting.next()) {
                    Ok(published) => {
                        let told =
                            self.traces.published(self.now, self.driver.shard(), stream, &batch, &published);
                        self.waiting.enter(Waiting::Publish(reply, published, room));
                        self.trace_when_durable(told);
                    }
                    Err(refusal) => {
                        // The message that the stream ends with may not be durable yet, and must not be told before.
                        let is_about_the_end = matches!(refusal, PublishRefusal::WrongLastSeq { .. });
                        self.refuse(is_about_the_end, move || {
                            drop(room);
                            answer(reply, Err(refusal.into()));
                        });
                    }
                }
            }
            Command::Settle { consumer, requests } => self.settle(consumer, requests),
            Command::Credit { consumer, credit, bytes } => {
                let running = self.stage == Stage::Running;
                if let Some(member) = self.members.get_mut(&consumer).filter(|_| running) {
                    member.set_credit(credit);
                    let bytes = Some(bytes.unwrap_or(CONSUMER_BYTES_MAX));
                    let slots = Credit::Slots { messages: credit, bytes };
                    member.wish = slots;
                    // The group may have been deleted, which it is told by itself.
                    if !member.session.queued.is_held_back() {
                        let _ = self.driver.credit(self.now, member.group, consumer, slots);
                    }
                }
            }
            Command::GoOn { consumer } => {
                let running = self.stage == Stage::Running;
                if running {
                    self.let_go(consumer);
                }
            }
            Command::Leave { consumer, departure } => {
                if let Some(member) = self.members.remove(&consumer) {
                    self.driver.leave(member.group, consumer, departure);
                }
            }
            Command::Call(call) => call(self),
            Command::Drain => self.begin_drain(),
            Command::Stop => self.stop(),
        }
    }

    /// A consumer that was held back is given messages again.
    fn let_go(&mut self, consumer: ConsumerId) {
        // A queue that is still long says by itself when it has become short.
        if let Some(member) = self.members.get(&consumer)
            && member.session.queued.let_go()
        {
            // The group may have been deleted, which it is told by itself.
            let _ = self.driver.credit(self.now, member.group, consumer, member.wish);
        }
    }

    fn enter_stage(&mut self, stage: Stage) {
        self.stage = stage;
        let _ = self.staged.send_replace(stage);
    }

    /// Hands out nothing more and accepts nothing more. Consumers with a connection may finish the messages
    /// they hold, since their leases end with the connection. Leases by time outlive the server, so the
    /// drain does not wait for them.
    fn begin_drain(&mut self) {
        if self.stage == Stage::Running {
            self.enter_stage(Stage::Draining);
            let (consumers, most) = (self.members.len(), self.config.drain_max.as_secs_f64());
            tracing::debug!(consumers, seconds_max = most, "draining");
            self.withhold();
            self.drain = Some((self.now, self.now + self.config.drain_max));
        }
    }

    fn withhold(&mut self) {
        let mut members: Vec<_> =
            self.members.iter().map(|(&consumer, member)| (consumer, member.group)).collect();
        // The same order in every run of a simulated history.
        members.sort_unstable_by_key(|(consumer, _)| *consumer);
        for (consumer, group) in members {
            // A group that was deleted has no members any more.
            let _ = self.driver.credit(self.now, group, consumer, Credit::slots(0));
        }
        self.call_off_all();
    }

    fn look_at_drain(&mut self) {
        // Where time stands still no look comes by itself, so every turn is one.
        let is_time = |at: Timestamp| at <= self.now || self.clock.is_still();
        let Some((at, until)) = self.drain.filter(|(at, _)| is_time(*at)) else { return };
        let shard = self.driver.shard();
        let holds = |(consumer, member): (&ConsumerId, &Member)| shard.held_by(member.group, *consumer) > 0;
        if self.now >= until || !self.members.iter().any(holds) {
            self.stop();
        } else {
            self.drain = Some((at.max(self.now) + DRAIN_LOOK, until));
        }
    }

    /// Hands out nothing more. Messages that consumers hold stay leased in the log, as after a crash: the
    /// stop is no failure of theirs, so it must not use up a retry.
    fn stop(&mut self) {
        if self.stage != Stage::Stopping {
            tracing::debug!(frames = self.receipts_due.len(), "stopping");
        }
        self.enter_stage(Stage::Stopping);
        self.drain = None;
        self.withhold();
    }

    fn on_receipts(&mut self, first: Result<Durable<Position>, StorageError>) -> Result<(), RecoveryError> {
        let mut receipt = first;
        self.tails.begin_round();
        let now = self.clock.now();
        loop {
            if let Some((decided, _)) = self.receipts_due.pop_front() {
                self.commit_times.record(now.since(decided));
            }
            if let Err(StorageError::Fenced { epoch }) = &receipt {
                tracing::error!(by = epoch.0, "claim lost: another owner has claimed the shard");
            }
            self.driver.on_durable(receipt?);
            self.tails.tell(self.driver.grown());
            match self.receipts_due.front_mut().and_then(|(_, receipt)| receipt.try_take()) {
                Some(next) => receipt = next,
                None => return Ok(()),
            }
        }
    }

    fn on_done(&mut self, done: Result<Done, JoinError>) -> Result<(), RecoveryError> {
        match done.expect("an engine does not panic") {
            Done::Read(id, Ok(Readout { frames, damage })) => {
                engine_calls::report(&damage);
                self.driver.on_read_around(id, &frames, &damage)?;
            }
            Done::Read(id, Err(error @ (StorageError::Damaged { .. } | StorageError::Io { .. }))) => {
                tracing::error!(%error, "ALARM: stored data is damaged and not delivered");
                self.driver.on_unreadable(id);
            }
            Done::Read(_, Err(error)) => return Err(error.into()),
            Done::Saved(Err(error @ StorageError::Damaged { .. })) => {
                tracing::error!(%error, "ALARM: a stored image is damaged and is written anew from memory");
                self.driver.on_image_damaged();
            }
            Done::Saved(saved) => self.driver.on_saved(saved?),
            Done::Trimmed(done) => done?,
            Done::Wait(consumer) => {
                if self.stage == Stage::Running {
                    self.let_go(consumer);
                }
            }
        }
        Ok(())
    }

    /// Refuses a publish by what the log says: at once, or when everything that was decided until now is durable. A
    /// node that may not own the log any more does not know what it says, and refuses when it is sure, or never.
    fn refuse(&mut self, is_about_the_end: bool, then: impl FnOnce() + Send + 'static) {
        if !self.tenure.may_serve() {
            self.unsure.push(Box::new(then));
        } else if is_about_the_end {
            self.when_durable(then);
        } else {
            then();
        }
    }

    fn refuse_unsure(&mut self) {
        if !self.unsure.is_empty() && self.tenure.may_serve() {
            for then in std::mem::take(&mut self.unsure) {
                self.when_durable(then);
            }
        }
    }

    /// Does what the driver says has to be done.
    fn carry_out(&mut self) {
        let shard = self.driver.id();
        // A process that was stopped for a while wakes up anywhere, so it is looked at here and not before.
        let is_stalled = !self.tenure.may_serve();
        if std::mem::replace(&mut self.is_stalled, is_stalled) != is_stalled {
            tracing::info!(is_stalled, "deliveries wait while another node may own the log");
            if is_stalled {
                self.tenure.count_stall();
            } else {
                // A consumer that took everything would otherwise be taken for one that does not.
                self.driver.drop_lapsed(|consumer| self.members.contains_key(&consumer));
            }
        }
        if !is_stalled {
            self.traces.delivered(self.now, &self.driver);
        }
        let Outbox { frames, durable, deliveries, fetched, departed, served, reads, image, trim } =
            self.driver.outbox();
        for frame in frames.drain(..) {
            self.receipts_due.push_back((self.now, self.engine.append(frame)));
        }
        for (ticket, durable) in durable.drain(..) {
            self.waiting.leave(ticket).send(durable);
        }
        for (ticket, found) in fetched.drain(..) {
            if let Waiting::Fetch(tell) = self.waiting.leave(ticket) {
                tell(found);
            }
        }
        let mut slow = Vec::new();
        let (mut too_long, mut given_back) = (Vec::new(), Vec::new());
        // Deliveries that may not leave now stay in the outbox.
        let leaving = if is_stalled { 0 } else { deliveries.len() };
        for delivery in deliveries.drain(..leaving) {
            let consumer = delivery.consumer;
            self.statistics.delivered(&delivery);
            match self.members.get(&consumer) {
                // Consumers that take nothing have all the room, this one perhaps among them.
                Some(member) if !member.session.queued.admits(delivery.bytes()) => {
                    given_back.push((member.group, consumer, delivery.leases()));
                }
                Some(member) => {
                    if !member.hand_over(delivery) {
                        slow.push(consumer);
                    }
                    if member.session.queued.becomes_too_long() {
                        too_long.push((member.group, consumer));
                    }
                }
                None => self.pollers.collect(delivery),
            }
        }
        for (_, consumer) in departed.drain(..) {
            self.pollers.depart(consumer);
        }
        let served = if is_stalled { Vec::new() } else { std::mem::take(served) };
        for read in reads.drain(..) {
            let engine = self.engine.clone();
            self.work
                .spawn(async move { Done::Read(read.id, engine_calls::read(&*engine, shard, read).await) });
        }
        if let Some(image) = image.take() {
            let engine = self.engine.clone();
            self.work.spawn(async move { Done::Saved(engine_calls::save(&*engine, shard, image).await) });
        }
        if let Some(through) = trim.take() {
            let engine = self.engine.clone();
            self.work.spawn(async move { Done::Trimmed(engine.trim(shard, through).await) });
        }
        for consumer in served {
            self.on_served(consumer);
        }
        for (group, consumer, leases) in given_back {
            self.config.memory.count_held_back();
            let _ = self.driver.credit(self.now, group, consumer, Credit::slots(0));
            self.give_back(group, &[leases]);
            // Its own queue may be empty, so that nothing it does could tell when there is room again.
            self.work.spawn(async move {
                tokio::time::sleep(HELD_BACK).await;
                Done::Wait(consumer)
            });
        }
        for (group, consumer) in too_long {
            self.config.memory.count_held_back();
            let _ = self.driver.credit(self.now, group, consumer, Credit::slots(0));
            // It may have taken everything meanwhile.
            self.let_go(consumer);
        }
        for consumer in slow {
            if let Some(member) = self.members.remove(&consumer) {
                let group = group_label(self.driver.shard(), member.group);
                let address = member.session.address;
                tracing::info!(group, ?address, "a consumer did not take its messages and was cut off");
                let _ = member.session.events.send(Event::CutOff);
                self.driver.leave(member.group, consumer, Departure::Lost);
            }
        }
    }

    /// Takes the leases of all consumers with a connection, and tells them. Another node may own the log by now, and
    /// would hand out the same messages.
    fn cut_off_all(&mut self) {
        if !self.members.is_empty() {
            let consumers = self.members.len();
            tracing::warn!(consumers, "consumers are cut off: another node may own the log");
        }
        let mut members: Vec<_> = self.members.drain().collect();
        // The same order in every run of a simulated history.
        members.sort_unstable_by_key(|(consumer, _)| *consumer);
        for (consumer, member) in members {
            let _ = member.session.events.send(Event::LogUnsure);
            self.driver.leave(member.group, consumer, Departure::Lost);
        }
    }

    /// The clock was moved, so the timer is out of date and is reset. Returns whether work that is due at the
    /// present time is left.
    pub(crate) fn on_clock_moved(&mut self) -> bool {
        self.timer_at = None;
        self.driver.wake_at().is_some_and(|at| at <= self.now)
    }

    /// When a message, a lease or a group next changes by itself, or the driver has work left.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.driver.wake_at().map(|at| at.max(self.now))
    }

    /// One timer for everything. A timer that goes off early only costs a turn, so it is moved forward but
    /// never back.
    fn set_timer(&mut self) {
        let drain = self.drain.map(|(at, _)| at);
        let Some(at) = [self.driver.wake_at(), self.statistics.wake_at(), drain].into_iter().flatten().min()
        else {
            return;
        };
        if self.timer_at.is_none_or(|set| at < set) {
            self.timer.as_mut().reset(self.clock.instant_of(at).into());
            self.timer_at = Some(at);
        }
    }
}

async fn next_receipt(
    receipts: &mut VecDeque<(Timestamp, Appended)>,
) -> Result<Durable<Position>, StorageError> {
    match receipts.front_mut() {
        Some((_, receipt)) => receipt.await,
        None => std::future::pending().await,
    }
}
