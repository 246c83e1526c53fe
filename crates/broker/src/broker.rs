//! The server's streams and groups, as the rest of the server sees them. A [`Broker`] is a handle: cheap to
//! clone, with the state in the tasks that own the shards. A door gets its [`Entrance`], enters it in the name of a
//! principal, and asks for everything through the [`Caller`] that this gives it.
//!
//! Pressure travels back to its cause. A publisher takes [`Room`] from a byte budget before it enters, and the room is
//! given back after the sync, so a slow disk holds up producers, there, and never a consumer's ack. A consumer's queue
//! is as long as its credit, so sending to it never waits.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::fault::{Fault, planted};
use forebay_core::settings::{StreamSettings, UNASKED_BYTES_MAX};
use forebay_core::types::{Epoch, Limits, Seq, StreamId, StreamName, Timestamp};
use forebay_storage::engine::{BoxFuture, Elapsed, Engine};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::access::Principal;
use crate::audit::Audit;
use crate::batch::Batch;
use crate::caller::{Caller, Feeders};
use crate::clock::Clock;
use crate::credentials::{CREDENTIALS_MAX, Credentials};
use crate::door::CREDENTIALS;
use crate::driver::DriverConfig;
use crate::error::OpenError;
use crate::memory::Memory;
use crate::recovery::{Recovery, RecoveryError};
use crate::shard_handle::ShardHandle;
use crate::shard_task::{Command, ShardTask, TaskConfig};
use crate::stats::doors::Doors;
use crate::tenants::Tenants;
use crate::trace::Tracer;

pub use crate::caller::{Created, GroupCursor};
pub use crate::shard_handle::Room;
pub use crate::shard_task::{Event, SettleRequest, Settled};

/// The limits and resources of a broker.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    pub limits: Limits,
    pub driver: DriverConfig,
    /// Batches that are on their way to the disk, in bytes.
    pub room_bytes: u32,
    /// Replies that are being encoded or wait to be taken, in bytes.
    pub reply_bytes: usize,
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
    /// The settings of a stream that a first publish creates. `None`: a publish to a stream that does not
    /// exist is refused.
    pub stream_of_first_publish: Option<StreamSettings>,
    /// How long consumers have to finish what they hold when the server drains.
    pub drain_max: Duration,
    /// The server does not open a log if the date is later than the last time in it by more than this.
    pub date_jump_max: Option<Duration>,
    /// Seals receipts and names messages, so it must not be guessable. The first start keeps it in the log, and the
    /// log's secret counts from then on.
    pub secret: [u8; 32],
}

impl BrokerConfig {
    /// The usual configuration, with a secret of the server's own. There is no usual secret: a known one would let
    /// anyone forge receipts.
    pub fn new(secret: [u8; 32]) -> BrokerConfig {
        BrokerConfig {
            limits: Limits::DEFAULT,
            driver: DriverConfig::default(),
            room_bytes: 64 << 20,
            reply_bytes: 64 << 20,
            frames_on_their_way: 2,
            calls_max: 1_024,
            receives_max: 100_000,
            reads_max: 16,
            read_bytes_max: 4 << 20,
            stream_of_first_publish: Some(StreamSettings::unasked()),
            drain_max: Duration::from_secs(10),
            date_jump_max: Some(Duration::from_secs(366 * 86_400)),
            secret,
        }
    }
}

/// How many bytes a stream that was created by a first publish may hold.
pub const FIRST_PUBLISH_BYTES_MAX: u64 = UNASKED_BYTES_MAX;
/// The room that a frame must have beside the largest batch, for the entries of a turn.
const FRAME_ROOM: usize = 2 << 20;

/// A date that is further behind the log than this was set back.
const DATE_BEHIND: Duration = Duration::from_secs(5);
/// Dates that differ by no more are the same.
const DATE_NEAR: Duration = Duration::from_millis(100);
/// The dates of two nodes should not differ by more.
const DATE_DIFFERS: Duration = Duration::from_secs(1);
/// By as much no date is corrected in ordinary service: one that was ahead has moved the server's clock.
const DATE_FAR_BEHIND: Duration = Duration::from_secs(5 * 60);
/// A server that was stopped for longer than this is told how long it was by its clock.
const DATE_AHEAD: Duration = Duration::from_secs(86_400);

/// The broker, as doors are given it. It serves callers and cannot end the server.
#[derive(Clone)]
pub struct Entrance {
    shards: Arc<[ShardHandle]>,
    limits: Arc<Limits>,
    clock: Clock,
    stage: watch::Receiver<Stage>,
    doors: Arc<Doors>,
    memory: Arc<Memory>,
    credentials: Arc<Credentials>,
    audit: Arc<Audit>,
    feeders: Arc<Feeders>,
    tenants: Arc<Tenants>,
}

/// The server's streams and groups, for the program that runs the server: an [`Entrance`] for its doors, and the means
/// to drain and stop.
#[derive(Clone)]
pub struct Broker {
    entrance: Entrance,
    remarks: Arc<[String]>,
}

impl Deref for Broker {
    type Target = Entrance;

    fn deref(&self) -> &Entrance {
        &self.entrance
    }
}

/// How far a server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Running,
    /// Nothing more is handed out or taken in; what consumers hold may be finished.
    Draining,
    Stopping,
}

/// The work of the task that owns the shard. Ends when it is told to stop, or when the engine fails.
pub type TaskFuture = BoxFuture<'static, Result<(), RecoveryError>>;

/// The task that owns the shard.
pub type Running = JoinHandle<Result<(), RecoveryError>>;

impl Entrance {
    /// The broker in the name of a principal, who calls from this address.
    pub fn enter(&self, who: Principal, from: Option<SocketAddr>) -> Caller {
        Caller::new(self.clone(), who, from)
    }

    /// The shard that a stream lives in. This is the one place that decides it.
    pub(crate) fn shard_of(&self, _stream: &StreamName) -> &ShardHandle {
        &self.shards[0]
    }

    /// The shard that is asked about the server as a whole: lists, reports, all notes of a door. There is one shard. A
    /// second one means that the callers of this function ask every shard and merge the answers.
    pub(crate) fn whole(&self) -> &ShardHandle {
        &self.shards[0]
    }

    /// A name for a message that no other message has, here or on another server. The same after a restart. `at` is the
    /// stream that the message is in; `stream` and `seq` say where it was stored first, in the same shard.
    pub fn message_name(&self, at: &StreamName, stream: StreamId, seq: Seq) -> [u8; 16] {
        self.shard_of(at).receipts.name(stream, seq)
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Spans of messages that belong to a trace go to this tracer from now on.
    pub fn trace(&self, tracer: &Tracer) {
        for shard in self.shards.iter() {
            let tracer = tracer.clone();
            // A task that has ended has nothing to tell.
            let _ = shard.send(Command::Call(Box::new(move |task| task.trace(tracer))));
        }
    }

    /// The counts of this server's doors.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }

    /// The tokens and access keys that the server knows.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// The record of administrative and triage calls.
    pub fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    /// The feeders of link streams.
    pub(crate) fn feeders(&self) -> &Arc<Feeders> {
        &self.feeders
    }

    /// The limits of clients and streams.
    pub fn tenants(&self) -> &Arc<Tenants> {
        &self.tenants
    }

    /// Contents that are on their way out.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
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

    /// Resolves when the server serves no callers any more.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.reached(Stage::Stopping)
    }

    /// Room for a batch to a stream, if there is some now.
    pub fn try_room(&self, stream: &StreamName, batch: &Batch) -> Option<Room> {
        let shard = self.shard_of(stream);
        shard.try_room(shard.cost([batch]))
    }

    /// Room for a batch to a stream, as soon as there is some. Requests for room are served in their order.
    pub fn room(&self, stream: &StreamName, batch: &Batch) -> impl Future<Output = Room> + Send + use<> {
        let shard = self.shard_of(stream);
        shard.room(shard.cost([batch]))
    }
}

#[cfg(test)]
impl Entrance {
    /// The broker, for tests that hold a caller only.
    pub(crate) fn owner(&self) -> Broker {
        Broker { entrance: self.clone(), remarks: Arc::from([]) }
    }
}

impl Broker {
    /// Claims the engine's log, recovers its state, and starts to serve.
    pub async fn open(
        engine: Arc<dyn Engine>,
        clock: Clock,
        config: BrokerConfig,
    ) -> Result<(Broker, Running), OpenError> {
        let mut running = None;
        let spawn = |task: TaskFuture| running = Some(tokio::spawn(task));
        let broker = Broker::open_on(engine, clock, config, spawn).await?;
        Ok((broker, running.expect("the task runs before the broker serves")))
    }

    /// As [`Broker::open`], on an executor of the caller's: `spawn` is given the task, and must run it beside the
    /// caller.
    pub async fn open_on(
        engine: Arc<dyn Engine>,
        clock: Clock,
        mut config: BrokerConfig,
        spawn: impl FnOnce(TaskFuture),
    ) -> Result<Broker, OpenError> {
        if clock.is_still() {
            // With a clock that stands still no timer fires, so frames are closed at once.
            config.driver.lazy_delay = Duration::ZERO;
        }
        let shard = config.driver.shard;
        let mut claim = engine.claim(shard).await.map_err(RecoveryError::from)?;
        let needed = config.limits.batch_bytes_max as usize + FRAME_ROOM;
        if claim.frame_bytes_max < needed {
            return Err(OpenError::FramesTooSmall { bytes: claim.frame_bytes_max, needed });
        }
        claim.frames_max = claim.frames_max.min(config.frames_on_their_way);
        let parts = claim.parts.len();
        let (mut recovery, begun) = (Recovery::begin(&mut claim, config.limits.clone())?, clock.now());
        let mut frames_read = 0;
        while let Some((from, budget)) = recovery.next_read() {
            let frames = engine.read(shard, from, budget).await.map_err(RecoveryError::from)?;
            frames_read += frames.len();
            recovery.feed(&frames)?;
        }
        say_recovered(claim.epoch, &recovery, (parts, frames_read), clock.now().since(begun));
        check_date(clock.now(), recovery.latest(), config.date_jump_max)?;
        let (clock, behind) = match claim.elapsed {
            Some(elapsed) if !planted(Fault::DeadlinesByOwnDate) => {
                let times = (recovery.latest(), recovery.behind());
                let (clock, behind) = carried_over(clock, times, elapsed, clock.now().since(begun));
                (clock, Some(behind))
            }
            _ => (clock.not_before(recovery.latest()), None),
        };
        let driver = recovery.finish(clock.now(), config.driver.clone());
        let notes = driver.shard().notes(clock.now(), CREDENTIALS, b"", None, 2 * CREDENTIALS_MAX);
        let credentials = Credentials::load(clock, notes.into_iter());
        let (commands, queue) = mpsc::unbounded_channel();
        let (stage, at_stage) = watch::channel(Stage::Running);
        let memory = Memory::new(config.reply_bytes);
        let terms = TaskConfig {
            memory: memory.clone(),
            stream_of_first_publish: config.stream_of_first_publish.clone(),
            drain_max: config.drain_max,
            read_bytes_max: config.read_bytes_max,
            secret: config.secret,
        };
        let readers = Arc::downgrade(&engine);
        let task = ShardTask::new(
            driver,
            engine,
            (claim.space, claim.tenure),
            clock,
            (commands.downgrade(), queue),
            stage,
            terms,
        );
        spawn(Box::pin(task.run()));
        if let Some(behind) = behind {
            let _ = commands.send(Command::Call(Box::new(move |task| task.keep_behind(behind))));
        }
        let (reply, secret) = oneshot::channel();
        let _ = commands.send(Command::Call(Box::new(move |task| task.keep_secret(reply))));
        // Without an answer the task has ended already, and its handle says why.
        let secret = secret.await.unwrap_or(config.secret);
        let credentials = Arc::new(credentials.with_secret(secret));
        let shards = Arc::from([ShardHandle::new(shard, commands, readers, secret, &config)]);
        let limits = Arc::new(config.limits);
        let (stage, doors) = (at_stage, Arc::default());
        let (audit, feeders, tenants) = (Arc::default(), Arc::default(), Arc::default());
        let entrance =
            Entrance { shards, limits, clock, stage, doors, memory, credentials, audit, feeders, tenants };
        Ok(Broker { entrance, remarks: claim.remarks.into() })
    }

    /// The broker for doors.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// Remarks for the operator on anything unusual that was found when the log was opened.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Lets time pass on a clock that stands still ([`Clock::still`]), and resolves when everything that this
    /// made due has been done: leases have lapsed, and messages that may go out again are with their
    /// consumers. Only a message that has to be read from the disk or made durable first may come a moment
    /// later. On a clock that runs by itself it waits for a turn and changes nothing.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        for shard in self.shards.iter() {
            // The first call sees the new time before the turn's work is done, the second after it. Work beyond a
            // turn's budget is done in the next turn.
            let mut is_first = true;
            while let Some(is_due) = shard.turn(ShardTask::on_clock_moved).await {
                if !is_first && !is_due {
                    break;
                }
                is_first = false;
            }
        }
        // Receives give up only now, so that they get the messages that have become due in time.
        self.clock.tell();
    }

    /// When something next becomes due: a retry, a delay, the end of a lease, a message's or a consumer's end,
    /// the next step of a pace. For tests that move the clock to it. There may be moments among them at which
    /// nothing is seen from outside. None: nothing happens by itself any more, or the server has stopped.
    pub async fn next_due(&self) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for shard in self.shards.iter() {
            // Earlier requests are done first, so that they do not count as due.
            shard.turn(|_| ()).await;
            let due = shard.turn(|task| task.next_due()).await.flatten();
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// Delivers nothing more and accepts nothing more. Consumers may finish the messages that they hold, for a while;
    /// then the server stops by itself.
    pub fn drain(&self) {
        for shard in self.shards.iter() {
            let _ = shard.send(Command::Drain);
        }
    }

    /// Accepts nothing more, makes all decisions durable, and ends the task.
    pub fn stop(&self) {
        for shard in self.shards.iter() {
            let _ = shard.send(Command::Stop);
        }
    }
}

/// A clock that goes on from that of the machine that owned the log before. Deadlines in the log are times of that
/// machine, and must not come early because the date of this one is ahead, or because that one's clock was behind its
/// date. If this date and the clocks of the servers that keep the log disagree, the earlier time counts, but at least
/// as much time has passed as this machine saw pass. Also returns by how much the clock is behind this date.
fn carried_over(
    clock: Clock,
    (latest, behind): (Timestamp, Duration),
    elapsed: Elapsed,
    since_claim: Duration,
) -> (Clock, Duration) {
    if latest == Timestamp::ZERO {
        return (clock, Duration::ZERO);
    }
    let date = clock.now();
    // The time of the former owner, if the dates of both machines are the same.
    let dated = date - behind;
    let stamped = latest + elapsed.stamped + since_claim;
    // Each takeover would otherwise lose the moment between a decision and its stamp.
    let stamped = if dated.since(stamped) <= DATE_NEAR { dated.max(stamped) } else { stamped };
    let at = stamped.min(dated).max(latest + elapsed.seen + since_claim);
    let (ahead, behind) = (at.since(dated), dated.since(at));
    if ahead.max(behind) > DATE_DIFFERS {
        tracing::warn!(
            ahead_seconds = ahead.as_secs_f64(),
            behind_seconds = behind.as_secs_f64(),
            "the date of this machine differs from that of the former owner, whose time goes on. Nodes should have the \
             same date (NTP)"
        );
    }
    (clock.going_on_from(at), date.since(at))
}

/// Compares the date at the start with the latest time in the log.
fn check_date(date: Timestamp, latest: Timestamp, jump_max: Option<Duration>) -> Result<(), OpenError> {
    let (behind, ahead) = (latest.since(date), date.since(latest));
    let seconds = behind.as_secs();
    if behind > DATE_FAR_BEHIND {
        tracing::error!(
            seconds,
            "ALARM: the machine's date is behind the log: it is wrong, or it was ahead at an earlier start. The server \
             goes on from the log's time, so its clock is ahead of the date, and runs slower by a tenth until the date \
             has caught up"
        );
    } else if behind > DATE_BEHIND {
        tracing::warn!(
            seconds,
            "the machine's date is behind the log; the server goes on from the log's time"
        );
    }
    // Of a new log there is nothing to say.
    if latest == Timestamp::ZERO || ahead <= DATE_AHEAD {
        return Ok(());
    }
    let days = |time: Duration| time.as_secs() / 86_400;
    if let Some(max) = jump_max.filter(|max| ahead > *max) {
        return Err(OpenError::DateJump { days: days(ahead), max_days: days(max) });
    }
    tracing::warn!(
        days = days(ahead),
        "the machine's date is days after the last time in the log. If the server was not stopped for so long, the \
         date is wrong: stop the server and set the date"
    );
    Ok(())
}

fn say_recovered(epoch: Epoch, recovery: &Recovery, (parts, frames): (usize, usize), took: Duration) {
    let (streams, groups) = recovery.counts();
    let (epoch, seconds) = (epoch.0, took.as_secs_f64());
    tracing::debug!(epoch, streams, groups, parts, frames, seconds, "shard recovered");
}

#[cfg(test)]
mod tests;
