//! A shard, as the rest of the server sees it: a queue of commands to the task that owns the shard, and the limits on
//! what may wait in it. Cheap to clone; the state is in the task.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use forebay_core::shard::Shard;
use forebay_core::types::{ConsumerId, Position, ShardId, Timestamp};
use forebay_storage::engine::{Engine, ReadBudget, Readout};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc, oneshot};

use crate::batch::Batch;
use crate::broker::BrokerConfig;
use crate::error::CallError;
use crate::receipt::Receipts;
use crate::shard_task::{Command, ShardTask, engine_calls};

/// The memory that a batch and a message take beside their contents, by rough count.
const BATCH_OVERHEAD: usize = 512;
const MESSAGE_OVERHEAD: usize = 64;

/// Where an answer of the task goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// Room for one batch on its way to the disk.
#[derive(Debug)]
pub struct Room(pub(crate) OwnedSemaphorePermit);

#[derive(Clone)]
pub(crate) struct ShardHandle {
    commands: mpsc::UnboundedSender<Command>,
    room: Arc<Semaphore>,
    room_bytes: u32,
    permits: Arc<Permits>,
    pub(crate) read_bytes_max: usize,
    /// For readers. The engine belongs to the task, and ends with it.
    engine: Weak<dyn Engine>,
    shard: ShardId,
    /// How many bytes one read of a reader may bring.
    pub(crate) reader_bytes_max: usize,
    pub(crate) receipts: Receipts,
    consumers: Arc<AtomicU64>,
}

/// How many calls of each kind may wait for their answers.
struct Permits {
    calls: Semaphore,
    reads: Semaphore,
    /// A list of reports is made in slices, one at a time, since the task does nothing else meanwhile.
    reports: Semaphore,
    receives: Semaphore,
    receives_max: usize,
}

impl ShardHandle {
    pub(crate) fn new(
        shard: ShardId,
        commands: mpsc::UnboundedSender<Command>,
        engine: Weak<dyn Engine>,
        secret: [u8; 32],
        config: &BrokerConfig,
    ) -> ShardHandle {
        let permits = Permits {
            calls: Semaphore::new(config.calls_max),
            reads: Semaphore::new(config.reads_max),
            reports: Semaphore::new(1),
            receives: Semaphore::new(config.receives_max),
            receives_max: config.receives_max,
        };
        ShardHandle {
            commands,
            room: Arc::new(Semaphore::new(config.room_bytes as usize)),
            room_bytes: config.room_bytes,
            permits: Arc::new(permits),
            read_bytes_max: config.read_bytes_max,
            engine,
            shard,
            reader_bytes_max: config.driver.read_bytes_max,
            receipts: Receipts::new(shard, secret),
            consumers: Arc::new(AtomicU64::new(1)),
        }
    }

    /// Sends a command. It comes back if the task has ended.
    #[expect(clippy::result_large_err, reason = "the batch of a publish goes back to its caller")]
    pub(crate) fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|unsent| unsent.0)
    }

    /// The queue itself, for a value that sends one last command when it is dropped.
    pub(crate) fn commands(&self) -> &mpsc::UnboundedSender<Command> {
        &self.commands
    }

    /// Runs `work` in a turn of the task. The answer comes by the reply that it is given.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ShardTask, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let _permit = self.permits.calls.acquire().await.expect("permits are never closed");
        self.ask_at_once(work).await
    }

    /// As [`ShardHandle::ask`], without waiting for other calls: for settling.
    pub(crate) async fn ask_at_once<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ShardTask, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        let call = Command::Call(Box::new(move |task| work(task, reply)));
        self.send(call).map_err(|_| CallError::Stopping)?;
        answer.await.unwrap_or(Err(CallError::Unknown))
    }

    /// Lets the shard decide something. The answer leaves when the decision is durable; a server that is draining or
    /// stopping decides nothing more.
    pub(crate) async fn decide<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut Shard, Timestamp) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        self.ask(move |task, reply| {
            task.decide(reply, |driver, now| driver.decide(|shard| decide(shard, now)));
        })
        .await
    }

    /// Asks about something without changing it. The answer leaves when everything that it speaks of is durable.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&ShardTask) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        self.ask(move |task, reply| {
            let found = query(task);
            task.answer_durably(reply, found);
        })
        .await
    }

    /// Runs `work` in a turn of the task. None if the task has ended.
    pub(crate) async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ShardTask) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let call = move |task: &mut ShardTask| drop(reply.send(work(task)));
        self.send(Command::Call(Box::new(call))).ok()?;
        answer.await.ok()
    }

    /// Held while a slice of a list is made.
    pub(crate) async fn report_permit(&self) -> SemaphorePermit<'_> {
        self.permits.reports.acquire().await.expect("permits are never closed")
    }

    /// Reads frames for a reader, beside the reads for consumers. None if nothing of them can be read.
    pub(crate) async fn read_frames(
        &self,
        from: Position,
        budget: ReadBudget,
    ) -> Result<Option<Readout>, CallError> {
        let _permit = self.read_permit().await;
        let engine = self.engine.upgrade().ok_or(CallError::Stopping)?;
        engine_calls::read_beside(&*engine, self.shard, from, budget).await.map_err(|_| CallError::Stopping)
    }

    /// Held while stored messages are fetched by the task.
    pub(crate) async fn read_permit(&self) -> SemaphorePermit<'_> {
        self.permits.reads.acquire().await.expect("permits are never closed")
    }

    /// Held while a receive waits for messages.
    pub(crate) fn receive_permit(&self) -> Result<SemaphorePermit<'_>, CallError> {
        let limit = self.permits.receives_max;
        self.permits.receives.try_acquire().map_err(|_| CallError::TooManyWaiting { limit })
    }

    /// Room, if there is some now.
    pub(crate) fn try_room(&self, cost: u32) -> Option<Room> {
        self.room.clone().try_acquire_many_owned(cost).ok().map(Room)
    }

    /// Room, as soon as there is some. Requests for room are served in their order.
    pub(crate) fn room(&self, cost: u32) -> impl Future<Output = Room> + Send + use<> {
        let waiting = self.room.clone().acquire_many_owned(cost);
        async move { Room(waiting.await.expect("the budget is never closed")) }
    }

    /// The room that batches take which enter together. One that is larger than the whole budget enters alone.
    pub(crate) fn cost<'a>(&self, batches: impl IntoIterator<Item = &'a Batch>) -> u32 {
        let of_one = |batch: &Batch| batch.bytes() + batch.len() * MESSAGE_OVERHEAD + BATCH_OVERHEAD;
        let cost: usize = batches.into_iter().map(of_one).sum();
        u32::try_from(cost).unwrap_or(u32::MAX).min(self.room_bytes)
    }

    /// A number that no other consumer of the shard has had since it was opened. Every receive takes one as well: it
    /// names the receive, and the member that joins for it if no idle member of the same name is there.
    pub(crate) fn next_consumer(&self) -> ConsumerId {
        ConsumerId(self.consumers.fetch_add(1, Ordering::Relaxed))
    }
}
