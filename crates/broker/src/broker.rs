//! The server's streams and groups, as the rest of the server sees them. A [`Broker`] is a handle: cheap to
//! clone, with the state elsewhere, in the task that owns the shard. A door enters it in somebody's name, and
//! everything is then asked through that [`Caller`].
//!
//! Pressure travels back to whoever causes it. A publisher takes [`Room`] from a byte budget before it
//! enters, and the room is given back after the sync, so a slow disk holds up producers, there, and never
//! a consumer's ack. A consumer's queue is as long as its credit, so handing over never waits.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::settings::{StreamSettings, UNASKED_BYTES_MAX};
use forebay_core::types::{ConsumerId, Limits, Seq, StreamId, Timestamp};
use forebay_storage::engine::{Claim, Engine};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::access::Principal;
use crate::batch::Batch;
use crate::caller::Caller;
use crate::clock::Clock;
use crate::driver::DriverConfig;
use crate::error::OpenError;
use crate::receipt::Receipts;
use crate::recovery::{Recovery, RecoveryError};
use crate::shard_task::{Command, ShardTask, TaskConfig};
use crate::stats::doors::Doors;

pub use crate::caller::{Created, GroupCursor};
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
    /// Receives that may wait for a message.
    pub receives_max: usize,
    /// Reads of stored messages that may be on their way, and what one of them brings at most.
    pub reads_max: usize,
    pub read_bytes_max: usize,
    /// What a stream is like that a first publish creates. None: such a publish is refused.
    pub stream_of_first_publish: Option<StreamSettings>,
    /// How long consumers have to finish what they hold when the server drains.
    pub drain_max: Duration,
    /// Makes receipts that nobody can forge, until the log has a secret of its own.
    pub secret: [u8; 32],
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            limits: Limits::DEFAULT,
            driver: DriverConfig::default(),
            room_bytes: 64 << 20,
            frames_on_their_way: 2,
            calls_max: 1_024,
            receives_max: 100_000,
            reads_max: 16,
            read_bytes_max: 4 << 20,
            stream_of_first_publish: Some(StreamSettings::unasked()),
            drain_max: Duration::from_secs(10),
            secret: [0; 32],
        }
    }
}

/// What a batch and a message cost beside their contents, by rough count.
const BATCH_OVERHEAD: usize = 512;
const MESSAGE_OVERHEAD: usize = 64;
/// What a stream may hold that nobody created in so many words.
pub const FIRST_PUBLISH_BYTES_MAX: u64 = UNASKED_BYTES_MAX;
/// What a frame must have room for beside the largest batch: the entries of a turn.
const FRAME_ROOM: usize = 2 << 20;

/// A clock that is further behind the log than this was set back.
const CLOCK_JUMP: Duration = Duration::from_secs(5);

/// A server's streams and groups, as the rest of the server sees them.
#[derive(Clone)]
pub struct Broker {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    room: Arc<Semaphore>,
    room_bytes: u32,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) receives: Arc<Semaphore>,
    pub(crate) receives_max: usize,
    pub(crate) reads: Arc<Semaphore>,
    pub(crate) read_bytes_max: usize,
    pub(crate) receipts: Receipts,
    consumers: Arc<AtomicU64>,
    stage: watch::Receiver<Stage>,
    limits: Arc<Limits>,
    clock: Clock,
    remarks: Arc<[String]>,
    doors: Arc<Doors>,
}

/// How far a server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Running,
    /// Nothing more is handed out or taken in; what consumers hold may be finished.
    Draining,
    Stopping,
}

/// The task that owns the shard. Ends when it is told to stop, or when the engine fails.
pub type Running = JoinHandle<Result<(), RecoveryError>>;

/// Room for one batch on its way to the disk.
#[derive(Debug)]
pub struct Room(pub(crate) OwnedSemaphorePermit);

impl Broker {
    /// Claims the engine's log, brings back what is in it, and starts to serve.
    pub async fn open(
        engine: Arc<dyn Engine>,
        clock: Clock,
        mut config: BrokerConfig,
    ) -> Result<(Broker, Running), OpenError> {
        if clock.is_still() {
            // Where time stands still nobody would come along whom a frame could wait for.
            config.driver.lazy_delay = Duration::ZERO;
        }
        let shard = config.driver.shard;
        let mut claim = engine.claim(shard).await.map_err(RecoveryError::from)?;
        let needed = config.limits.batch_bytes_max as usize + FRAME_ROOM;
        if claim.frame_bytes_max < needed {
            return Err(OpenError::FramesTooSmall { bytes: claim.frame_bytes_max, needed });
        }
        claim.frames_max = claim.frames_max.min(config.frames_on_their_way);
        let (mut recovery, begun) = (Recovery::begin(&claim, config.limits.clone())?, clock.now());
        let mut frames_read = 0;
        while let Some((from, budget)) = recovery.next_read() {
            let frames = engine.read(shard, from, budget).await.map_err(RecoveryError::from)?;
            frames_read += frames.len();
            recovery.feed(&frames)?;
        }
        say_recovered(&claim, &recovery, frames_read, clock.now().since(begun));
        let behind = recovery.latest().since(clock.now());
        if behind > CLOCK_JUMP {
            let seconds = behind.as_secs();
            tracing::warn!(
                seconds,
                "the machine's clock is behind the log; the server goes on from the log's time"
            );
        }
        let clock = clock.not_before(recovery.latest());
        let driver = recovery.finish(clock.now(), config.driver);
        let (commands, queue) = mpsc::unbounded_channel();
        let (stage, at_stage) = watch::channel(Stage::Running);
        let terms = TaskConfig {
            stream_of_first_publish: config.stream_of_first_publish,
            drain_max: config.drain_max,
            read_bytes_max: config.read_bytes_max,
        };
        let task =
            ShardTask::new(driver, engine, claim.space, clock, (commands.downgrade(), queue), stage, terms);
        let running = tokio::spawn(task.run());
        let (reply, secret) = oneshot::channel();
        let offered = config.secret;
        let ask = Command::Call(Box::new(move |task| task.keep_secret(offered, reply)));
        let _ = commands.send(ask);
        // The task has ended already if there is no answer, and whoever watches it learns why.
        let secret = secret.await.unwrap_or(offered);
        let broker = Broker {
            commands,
            room: Arc::new(Semaphore::new(config.room_bytes as usize)),
            room_bytes: config.room_bytes,
            calls: Arc::new(Semaphore::new(config.calls_max)),
            receives: Arc::new(Semaphore::new(config.receives_max)),
            receives_max: config.receives_max,
            reads: Arc::new(Semaphore::new(config.reads_max)),
            read_bytes_max: config.read_bytes_max,
            receipts: Receipts::new(secret),
            consumers: Arc::new(AtomicU64::new(1)),
            stage: at_stage,
            limits: Arc::new(config.limits),
            clock,
            remarks: claim.remarks.into(),
            doors: Arc::default(),
        };
        Ok((broker, running))
    }

    /// The broker in somebody's name, from where he is.
    pub fn enter(&self, who: Principal, from: Option<SocketAddr>) -> Caller {
        Caller::new(self.clone(), who, from)
    }

    /// A name for a message that no other message has, here or on another server. The same after a restart.
    pub fn message_name(&self, stream: StreamId, seq: Seq) -> [u8; 16] {
        self.receipts.name(stream, seq)
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

    /// What the doors of this server count.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }

    /// Lets time pass on a clock that stands still ([`Clock::still`]), and resolves when everything that this
    /// made due has been done: leases have lapsed, and what may go out again is with its consumers. Only what
    /// has to be read from the disk or made durable first may come a moment later. On a clock that runs by
    /// itself it waits for a turn and changes nothing.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        // The first call sees the new time before the turn's work is done, the second after it, and what one
        // turn has no budget for is done in the next.
        let mut is_first = true;
        while let Some(is_due) = self.turn(ShardTask::on_clock_moved).await {
            if !is_first && !is_due {
                break;
            }
            is_first = false;
        }
        // Those who wait for messages give up only now, so that they get what has become due in time.
        self.clock.tell();
    }

    /// When something next becomes due: a retry, a delay, the end of a lease, a message's or a consumer's end,
    /// the next step of a pace. For tests that move the clock to it. There may be moments among them at which
    /// nothing is seen from outside. None: nothing happens by itself any more, or the server has stopped.
    pub async fn next_due(&self) -> Option<Timestamp> {
        // What was asked for before is done first, so that it does not count as due.
        self.turn(|_| ()).await;
        self.turn(|task| task.next_due()).await.flatten()
    }

    /// Asks the task something. None if it has ended.
    async fn turn<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut ShardTask) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let call = move |task: &mut ShardTask| drop(reply.send(ask(task)));
        self.commands.send(Command::Call(Box::new(call))).ok()?;
        answer.await.ok()
    }

    /// Hands nothing more out and takes nothing more in. Those who hold messages may finish them, for a while;
    /// then the server stops by itself.
    pub fn drain(&self) {
        let _ = self.commands.send(Command::Drain);
    }

    /// Takes nothing more in, makes durable what was decided, and ends the task.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Resolves when the server has come this far, or its task has ended.
    pub fn reached(&self, stage: Stage) -> impl Future<Output = ()> + Send + use<> {
        let mut at = self.stage.clone();
        async move {
            // An error means that the task has ended.
            let _ = at.wait_for(|at| *at >= stage).await;
        }
    }

    /// Resolves when nobody is served any more.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.reached(Stage::Stopping)
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

    pub(crate) fn next_consumer(&self) -> ConsumerId {
        ConsumerId(self.consumers.fetch_add(1, Ordering::Relaxed))
    }
}

fn say_recovered(claim: &Claim, recovery: &Recovery, frames: usize, took: Duration) {
    let (streams, groups) = recovery.counts();
    let (epoch, parts, seconds) = (claim.epoch.0, claim.parts.len(), took.as_secs_f64());
    tracing::debug!(epoch, streams, groups, parts, frames, seconds, "shard recovered");
}

#[cfg(test)]
mod tests;
