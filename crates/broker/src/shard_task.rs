//! The async loop around the driver: commands, receipts, one timer.
//!
//! The task owns the shard. A turn takes everything that has come in, lets the driver decide once, and
//! carries out what it says. Nothing here waits for a disk or a consumer, so settling goes on at the same
//! pace however slow either is.
//!
//! The queue of commands has no length of its own. Each kind of command is limited before it gets here:
//! a batch has taken room from the byte budget, a consumer has a limited number of unanswered
//! settlements, every other call holds one of a fixed number of permits, and a consumer leaves once.

mod commands;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::group::{Credit, Departure};
use forebay_core::types::{ConsumerId, Position, Timestamp};
use forebay_storage::engine::{Durable, Engine, Receipt, Saved, SpaceGauge, StorageError, StoredFrame};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Sleep;

use crate::broker::PublishError;
use crate::clock::Clock;
use crate::driver::{Answer, Driver, Outbox};
use crate::recovery::RecoveryError;
use commands::{Member, Waiting, WaitingRoom, answer};

pub use commands::{Action, Event, Settlement, Settlements};
pub(crate) use commands::{Command, Session};

/// Commands that one turn takes at most, so that a flood of them does not keep receipts waiting.
const COMMANDS_PER_TURN: usize = 4_096;

/// What the engine was asked to do in the background.
enum Done {
    Read(u64, Result<Vec<StoredFrame>, StorageError>),
    Saved(Result<Saved, StorageError>),
    Trimmed(Result<(), StorageError>),
}

pub(crate) struct ShardTask {
    driver: Driver,
    engine: Arc<dyn Engine>,
    space: SpaceGauge,
    clock: Clock,
    commands: mpsc::UnboundedReceiver<Command>,
    running: watch::Sender<bool>,
    /// In the order of the frames.
    receipts: VecDeque<Receipt>,
    work: JoinSet<Done>,
    waiting: WaitingRoom,
    members: HashMap<ConsumerId, Member>,
    timer: Pin<Box<Sleep>>,
    /// When the timer goes off, if it is set.
    timer_at: Option<Timestamp>,
    /// Nothing more is taken or handed out, and the task ends when all is durable.
    stopping: bool,
    /// Says to the operator what must not go unnoticed.
    alarm: fn(&str),
}

impl ShardTask {
    pub(crate) fn new(
        driver: Driver,
        engine: Arc<dyn Engine>,
        space: SpaceGauge,
        clock: Clock,
        commands: mpsc::UnboundedReceiver<Command>,
        running: watch::Sender<bool>,
        alarm: fn(&str),
    ) -> ShardTask {
        ShardTask {
            driver,
            engine,
            space,
            clock,
            commands,
            running,
            receipts: VecDeque::new(),
            work: JoinSet::new(),
            waiting: WaitingRoom::default(),
            members: HashMap::new(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_at: None,
            stopping: false,
            alarm,
        }
    }

    /// Serves until it is told to stop or the engine fails. Those who still wait then learn that their
    /// outcome is unknown.
    pub(crate) async fn run(mut self) -> Result<(), RecoveryError> {
        let mut inbox = Vec::new();
        loop {
            let now = self.clock.now();
            self.driver.set_storage_full(self.space.is_full());
            for command in inbox.drain(..) {
                self.on_command(now, command);
            }
            self.driver.finish_turn(now);
            if self.stopping {
                self.driver.flush(now);
            }
            self.carry_out();
            if self.stopping && self.receipts.is_empty() && self.driver.is_settled() {
                return Ok(());
            }
            self.set_timer();
            tokio::select! {
                biased;
                receipt = next_receipt(&mut self.receipts) => self.on_receipts(receipt)?,
                Some(done) = self.work.join_next() => self.on_done(done)?,
                () = &mut self.timer, if self.timer_at.is_some() => self.timer_at = None,
                count = self.commands.recv_many(&mut inbox, COMMANDS_PER_TURN) => {
                    if count == 0 {
                        // Every handle is gone, and with them everyone who could ask for anything.
                        self.stop(now);
                    }
                }
            }
            while inbox.len() < COMMANDS_PER_TURN
                && let Ok(command) = self.commands.try_recv()
            {
                inbox.push(command);
            }
        }
    }

    fn on_command(&mut self, now: Timestamp, command: Command) {
        match command {
            Command::Publish { stream, batch, options, room, reply } => {
                if self.stopping {
                    return answer(reply, Err(PublishError::Stopping));
                }
                match self.driver.publish(now, stream, &batch, options, self.waiting.next()) {
                    Ok(()) => self.waiting.enter(Waiting::Publish(reply, room)),
                    Err(refusal) => answer(reply, Err(refusal.into())),
                }
            }
            Command::Settle { consumer, settlements } => self.settle(now, consumer, settlements),
            Command::Credit { consumer, credit } => {
                if let Some(member) = self.members.get_mut(&consumer).filter(|_| !self.stopping) {
                    member.credit = credit;
                    let slots = Credit::slots(credit);
                    // The group may have been deleted, which it is told by itself.
                    let _ = self.driver.credit(now, member.group, consumer, slots);
                }
            }
            Command::Join { stream, group, name, credit, session, reply } => {
                let joined = self.join(now, (&stream, &group), &name, credit, session);
                answer(reply, joined);
            }
            Command::Leave { consumer, departure } => {
                if let Some(member) = self.members.remove(&consumer) {
                    self.driver.leave(member.group, consumer, departure);
                }
            }
            Command::CreateStream { name, change, reply } => match self.create_stream(now, &name, &change) {
                Ok(created) => self.waiting.enter(Waiting::Create(reply, created)),
                Err(error) => answer(reply, Err(error)),
            },
            Command::CreateGroup { stream, name, change, start, reply } => {
                match self.create_group(now, &stream, &name, &change, start) {
                    Ok(created) => self.waiting.enter(Waiting::Create(reply, created)),
                    Err(error) => answer(reply, Err(error)),
                }
            }
            Command::Figures { stream, group, reply } => match self.find_group(&stream, &group) {
                Ok(group) => {
                    let figures =
                        self.driver.shard().figures(now, group).expect("the group was found just now");
                    self.driver.confirm(Answer::GroupCreated(group), self.waiting.next());
                    self.waiting.enter(Waiting::Figures(reply, Box::new(figures)));
                }
                Err(error) => answer(reply, Err(error)),
            },
            Command::Stop => self.stop(now),
        }
    }

    /// Hands out nothing more. What consumers hold stays leased in the log, as after a crash: the stop is
    /// no failure of theirs, so it must not use up a retry.
    fn stop(&mut self, now: Timestamp) {
        self.stopping = true;
        let _ = self.running.send_replace(false);
        for (&consumer, member) in &self.members {
            // A group that was deleted has no members any more.
            let _ = self.driver.credit(now, member.group, consumer, Credit::slots(0));
        }
    }

    fn on_receipts(&mut self, first: Result<Durable<Position>, StorageError>) -> Result<(), RecoveryError> {
        let mut receipt = first;
        loop {
            self.receipts.pop_front();
            self.driver.on_durable(receipt?);
            match self.receipts.front_mut().and_then(Receipt::try_take) {
                Some(next) => receipt = next,
                None => return Ok(()),
            }
        }
    }

    fn on_done(&mut self, done: Result<Done, JoinError>) -> Result<(), RecoveryError> {
        match done.expect("an engine does not panic") {
            Done::Read(id, Err(error @ StorageError::Damaged { .. })) => {
                (self.alarm)(&format!("{error}; what is there is not delivered"));
                self.driver.on_unreadable(id);
            }
            Done::Read(id, frames) => self.driver.on_read(id, &frames?)?,
            Done::Saved(saved) => self.driver.on_saved(saved?),
            Done::Trimmed(done) => done?,
        }
        Ok(())
    }

    /// Does what the driver says has to be done.
    fn carry_out(&mut self) {
        let shard = self.driver.id();
        let Outbox { frames, answers, deliveries, fetched, departed, reads, image, trim } =
            self.driver.outbox();
        // Nobody asks for these yet: consumers here are connected, and leave by themselves.
        fetched.clear();
        departed.clear();
        for frame in frames.drain(..) {
            self.receipts.push_back(self.engine.append(frame));
        }
        for (ticket, answer) in answers.drain(..) {
            self.waiting.leave(ticket).tell(answer);
        }
        let mut slow = Vec::new();
        for delivery in deliveries.drain(..) {
            let consumer = delivery.consumer;
            if self.members.get(&consumer).is_some_and(|member| !member.hand_over(delivery)) {
                slow.push(consumer);
            }
        }
        for read in reads.drain(..) {
            let engine = self.engine.clone();
            self.work
                .spawn(async move { Done::Read(read.id, engine.read(shard, read.from, read.budget).await) });
        }
        if let Some(image) = image.take() {
            let engine = self.engine.clone();
            self.work.spawn(async move { Done::Saved(engine.save(shard, image).await) });
        }
        if let Some(through) = trim.take() {
            let engine = self.engine.clone();
            self.work.spawn(async move { Done::Trimmed(engine.trim(shard, through).await) });
        }
        for consumer in slow {
            if let Some(member) = self.members.remove(&consumer) {
                let _ = member.session.events.send(Event::CutOff);
                self.driver.leave(member.group, consumer, Departure::Lost);
            }
        }
    }

    /// One timer for everything. One that goes off early only costs a turn, so it is moved forward but
    /// never back.
    fn set_timer(&mut self) {
        let Some(at) = self.driver.wake_at() else { return };
        if self.timer_at.is_none_or(|set| at < set) {
            self.timer.as_mut().reset(self.clock.instant_of(at).into());
            self.timer_at = Some(at);
        }
    }
}

async fn next_receipt(receipts: &mut VecDeque<Receipt>) -> Result<Durable<Position>, StorageError> {
    match receipts.front_mut() {
        Some(receipt) => receipt.await,
        None => std::future::pending().await,
    }
}
