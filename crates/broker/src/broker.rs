//! The one API that doors use. A [`Broker`] is a handle: cheap to clone, with the state elsewhere, in the
//! task that owns the shard.
//!
//! Pressure travels back to whoever causes it. A publisher takes [`Room`] from a byte budget before it
//! enters, and the room is given back after the sync, so a slow disk holds up producers, there, and never
//! a consumer's ack. A consumer's queue is as long as its credit, so handing over never waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use forebay_core::group::{Departure, GroupFigures};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{CreateRefusal, MemberRefusal, PublishOptions, PublishRefusal, Start};
use forebay_core::types::{ConsumerId, Epoch, GroupName, Limits, StreamId, StreamName};
use forebay_storage::engine::{Durable, Engine};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::batch::Batch;
use crate::clock::Clock;
use crate::driver::{self, DriverConfig, Published};
use crate::recovery::{Recovery, RecoveryError};
use crate::shard_task::{Command, Session, ShardTask};

pub use crate::shard_task::{Action, Event, Settlement, Settlements};

/// What a broker may use.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    pub limits: Limits,
    pub driver: DriverConfig,
    /// Batches that are on their way to the disk, in bytes.
    pub room_bytes: u32,
    /// Frames that are on their way to the disk. While as many are, the next one grows instead: two keep
    /// the disk busy without a pause, and more would only be smaller.
    pub frames_on_their_way: usize,
    /// Calls other than publishing and settling that may wait for their answer.
    pub calls_max: usize,
    /// Says to the operator what must not go unnoticed, such as stored data that is damaged.
    pub alarm: fn(&str),
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            limits: Limits::DEFAULT,
            driver: DriverConfig::default(),
            room_bytes: 64 << 20,
            frames_on_their_way: 2,
            calls_max: 1_024,
            alarm: |_| {},
        }
    }
}

/// What a batch and a message cost beside their contents, by rough count.
const BATCH_OVERHEAD: usize = 512;
const MESSAGE_OVERHEAD: usize = 64;
/// Requests to settle that a consumer may send before it takes the answers.
const SETTLEMENTS_UNANSWERED_MAX: usize = 1_024;
/// What a frame must have room for beside the largest batch: the entries of a turn.
const FRAME_ROOM: usize = 2 << 20;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    FixRequest,
    RetryLater,
    /// The outcome is unknown. The same message ids again, and nothing is stored twice.
    RetryWithSameId,
}

/// Why a broker could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("the log cannot be brought back")]
    Recovery(#[from] RecoveryError),
    #[error("the engine's frames are too small for the largest batch. bytes=`{bytes}` needed=`{needed}`")]
    FramesTooSmall { bytes: usize, needed: usize },
}

/// Why a batch was not stored, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    #[error(transparent)]
    Refused(#[from] driver::PublishError),
    #[error("the server is stopping and stored nothing")]
    Stopping,
    /// The batch was on its way to the disk when something broke.
    #[error("outcome unknown: the batch may or may not be stored")]
    Unknown,
}

impl PublishError {
    pub fn advice(&self) -> Advice {
        match self {
            PublishError::Refused(driver::PublishError::Refused(PublishRefusal::NoSuchStream)) => {
                Advice::FixRequest
            }
            PublishError::Refused(driver::PublishError::Refused(
                PublishRefusal::Full { .. } | PublishRefusal::TooFast { .. },
            ))
            | PublishError::Refused(driver::PublishError::StorageFull)
            | PublishError::Stopping => Advice::RetryLater,
            PublishError::Refused(_) => Advice::FixRequest,
            PublishError::Unknown => Advice::RetryWithSameId,
        }
    }
}

/// Why something was not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error(transparent)]
    Refused(#[from] CreateRefusal),
    #[error("there is one of that name with other settings")]
    Different,
    #[error("the server is stopping")]
    Stopping,
    #[error("outcome unknown: it may or may not have been created")]
    Unknown,
}

/// Why a group did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    #[error("no such stream")]
    NoSuchStream,
    #[error("no such group")]
    NoSuchGroup,
    #[error("the server is stopping")]
    Stopping,
}

/// Why a consumer was not let in, or not given credit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Refused(#[from] MemberRefusal),
}

/// Something that exists now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The stream itself, or the group's.
    pub stream: StreamId,
    /// False if it was there already.
    pub new: bool,
}

/// A server's streams and groups, as the rest of the server sees them.
#[derive(Clone)]
pub struct Broker {
    commands: mpsc::UnboundedSender<Command>,
    room: Arc<Semaphore>,
    room_bytes: u32,
    calls: Arc<Semaphore>,
    consumers: Arc<AtomicU64>,
    running: watch::Receiver<bool>,
    limits: Arc<Limits>,
    clock: Clock,
    remarks: Arc<[String]>,
}

/// The task that owns the shard. Ends when it is told to stop, or when the engine fails.
pub type Running = JoinHandle<Result<(), RecoveryError>>;

/// Room for one batch on its way to the disk.
#[derive(Debug)]
pub struct Room(OwnedSemaphorePermit);

/// Resolves when the batch is durable.
#[derive(Debug)]
pub struct Confirmation(oneshot::Receiver<Result<Durable<Published>, PublishError>>);

impl Future for Confirmation {
    type Output = Result<Durable<Published>, PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or(Err(PublishError::Unknown)))
    }
}

impl Broker {
    /// Claims the engine's log, brings back what is in it, and starts to serve.
    pub async fn open(
        engine: Arc<dyn Engine>,
        clock: Clock,
        config: BrokerConfig,
    ) -> Result<(Broker, Running), OpenError> {
        let shard = config.driver.shard;
        let mut claim = engine.claim(shard).await.map_err(RecoveryError::from)?;
        let needed = config.limits.batch_bytes_max as usize + FRAME_ROOM;
        if claim.frame_bytes_max < needed {
            return Err(OpenError::FramesTooSmall { bytes: claim.frame_bytes_max, needed });
        }
        claim.frames_max = claim.frames_max.min(config.frames_on_their_way);
        let mut recovery = Recovery::begin(&claim, config.limits.clone())?;
        while let Some((from, budget)) = recovery.next_read() {
            let frames = engine.read(shard, from, budget).await.map_err(RecoveryError::from)?;
            recovery.feed(&frames)?;
        }
        let clock = clock.not_before(recovery.latest());
        let driver = recovery.finish(clock.now(), config.driver);
        let (commands, queue) = mpsc::unbounded_channel();
        let (running, is_running) = watch::channel(true);
        let task = ShardTask::new(driver, engine, claim.space, clock, queue, running, config.alarm);
        let broker = Broker {
            commands,
            room: Arc::new(Semaphore::new(config.room_bytes as usize)),
            room_bytes: config.room_bytes,
            calls: Arc::new(Semaphore::new(config.calls_max)),
            consumers: Arc::new(AtomicU64::new(1)),
            running: is_running,
            limits: Arc::new(config.limits),
            clock,
            remarks: claim.remarks.into(),
        };
        Ok((broker, tokio::spawn(task.run())))
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was out of the ordinary when the log was opened, for the operator.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes nothing more in, makes durable what was decided, and ends the task.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Resolves when the server takes nothing more in.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut running = self.running.clone();
        async move {
            // An error means that the task has ended.
            let _ = running.wait_for(|running| !running).await;
        }
    }

    /// Room for a batch, if there is some now.
    pub fn try_room(&self, batch: &Batch) -> Option<Room> {
        self.room.clone().try_acquire_many_owned(self.cost(batch)).ok().map(Room)
    }

    /// Room for a batch, as soon as there is some. Those who wait are served in their order.
    pub fn room(&self, batch: &Batch) -> impl Future<Output = Room> + Send + use<> {
        let waiting = self.room.clone().acquire_many_owned(self.cost(batch));
        async move { Room(waiting.await.expect("the budget is never closed")) }
    }

    /// A batch larger than the whole budget enters alone.
    fn cost(&self, batch: &Batch) -> u32 {
        let cost = batch.bytes() + batch.len() * MESSAGE_OVERHEAD + BATCH_OVERHEAD;
        u32::try_from(cost).unwrap_or(u32::MAX).min(self.room_bytes)
    }

    /// Stores a batch, whole or not at all. Batches of one caller are stored in the order of the calls.
    pub fn publish(&self, room: Room, stream: StreamId, batch: Batch) -> Confirmation {
        self.publish_if(room, stream, batch, PublishOptions::default())
    }

    /// As [`Broker::publish`], with what the batch asks for beside being stored.
    pub fn publish_if(
        &self,
        room: Room,
        stream: StreamId,
        batch: Batch,
        options: PublishOptions,
    ) -> Confirmation {
        let (reply, answer) = oneshot::channel();
        let command = Command::Publish { stream, batch, options, room: room.0, reply };
        if let Err(unsent) = self.commands.send(command)
            && let Command::Publish { reply, .. } = unsent.0
        {
            let _ = reply.send(Err(PublishError::Stopping));
        }
        Confirmation(answer)
    }

    /// Creates a stream. One that is there already and agrees with `change` will do.
    pub async fn create_stream(
        &self,
        name: StreamName,
        change: impl Fn(&mut StreamSettings) + Send + 'static,
    ) -> Result<Durable<Created>, CreateError> {
        let change = Box::new(change);
        let (reply, answer) = oneshot::channel();
        self.call(Command::CreateStream { name, change, reply }, answer)
            .await
            .unwrap_or(Err(CreateError::Unknown))
    }

    /// Creates a group, and its stream if that is absent. One that is there already and agrees with
    /// `change` will do, wherever it began.
    pub async fn create_group(
        &self,
        stream: StreamName,
        name: GroupName,
        start: Start,
        change: impl Fn(&mut GroupSettings) + Send + 'static,
    ) -> Result<Durable<Created>, CreateError> {
        let change = Box::new(change);
        let (reply, answer) = oneshot::channel();
        self.call(Command::CreateGroup { stream, name, change, start, reply }, answer)
            .await
            .unwrap_or(Err(CreateError::Unknown))
    }

    pub async fn figures(
        &self,
        stream: StreamName,
        group: GroupName,
    ) -> Result<Durable<GroupFigures>, GroupError> {
        let (reply, answer) = oneshot::channel();
        self.call(Command::Figures { stream, group, reply }, answer)
            .await
            .unwrap_or(Err(GroupError::Stopping))
    }

    /// Joins a group. The consumer is a member until it says goodbye or is dropped.
    pub async fn subscribe(
        &self,
        stream: StreamName,
        group: GroupName,
        name: &str,
        credit: u32,
    ) -> Result<Consumer, SubscribeError> {
        let id = ConsumerId(self.consumers.fetch_add(1, Ordering::Relaxed));
        let (events, queue) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let session = Session { consumer: id, events, queued: queued.clone() };
        // Made before the call, so that a caller that goes away meanwhile leaves nothing behind.
        let mut consumer = Consumer {
            id,
            epoch: Epoch(0),
            commands: self.commands.clone(),
            queue,
            queued,
            unanswered: 0,
            credit_max: self.limits.credit_max,
        };
        let (reply, answer) = oneshot::channel();
        let name = name.to_owned();
        let joined = self.call(Command::Join { stream, group, name, credit, session, reply }, answer).await;
        consumer.epoch = joined.unwrap_or(Err(GroupError::Stopping.into()))?.epoch;
        Ok(consumer)
    }

    /// `None` if the task ended before it answered.
    async fn call<T>(&self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        let _permit = self.calls.acquire().await.expect("permits are never closed");
        self.commands.send(command).ok()?;
        answer.await.ok()
    }
}

/// A member of a group, with the queue of what it is told.
#[derive(Debug)]
pub struct Consumer {
    id: ConsumerId,
    epoch: Epoch,
    commands: mpsc::UnboundedSender<Command>,
    queue: mpsc::UnboundedReceiver<Event>,
    queued: Arc<AtomicUsize>,
    unanswered: usize,
    credit_max: u32,
}

impl Consumer {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes what there is, up to `max` events. Ready with none when the consumer has
    /// left or the server has stopped.
    pub fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<Event>, max: usize) -> Poll<()> {
        let before = out.len();
        ready!(self.queue.poll_recv_many(cx, out, max));
        for event in &out[before..] {
            match event {
                Event::Delivery(delivery) => {
                    self.queued.fetch_sub(delivery.messages.len(), Ordering::Relaxed);
                }
                Event::Settled(_) => self.unanswered -= 1,
                Event::CutOff => {}
            }
        }
        Poll::Ready(())
    }

    /// Whether another request to settle may be sent before the answers to earlier ones are taken.
    pub fn may_settle(&self) -> bool {
        self.unanswered < SETTLEMENTS_UNANSWERED_MAX
    }

    /// Ends leases. The answer comes as an event. Never waits, and takes no room.
    pub fn settle(&mut self, settlements: Vec<Settlement>) {
        assert!(self.may_settle(), "answers are taken before more is asked");
        self.unanswered += 1;
        let _ = self.commands.send(Command::Settle { consumer: self.id, settlements });
    }

    /// From now on the consumer is willing to hold this many messages.
    pub fn credit(&self, credit: u32) -> Result<(), SubscribeError> {
        if credit > self.credit_max {
            return Err(MemberRefusal::CreditTooLarge { credit, limit: self.credit_max }.into());
        }
        let _ = self.commands.send(Command::Credit { consumer: self.id, credit });
        Ok(())
    }

    /// Leaves, and gives back what it holds; those attempts do not count. Answers to what came before
    /// still come, and then the events end.
    pub fn goodbye(&mut self) {
        let _ = self.commands.send(Command::Leave { consumer: self.id, departure: Departure::Goodbye });
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // After a goodbye nobody is there any more to be lost.
        let _ = self.commands.send(Command::Leave { consumer: self.id, departure: Departure::Lost });
    }
}

#[cfg(test)]
mod tests;
