//! The journal as an [`Engine`]: four named threads around the plain structs.
//!
//! The writer's thread takes everything that waits and commits it; while it syncs, the next frames
//! gather. The chores' thread does what must not hold up a commit. The reader's thread reads, so that no
//! asynchronous task ever waits for a disk. Readers that may wait have a thread of their own, so that no other read
//! waits for theirs.

use std::collections::VecDeque;
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_core::types::{Epoch, Position, ShardId};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    Appended, BoxFuture, Claim, Durable, Engine, EngineFigures, Frame, Image, ReadBudget, Readout, Saved,
    StorageError, StoredFrame,
};
use crate::journal::chores::Preparation;
use crate::journal::disk::{Disk, FolderDisk};
use crate::journal::shared::Shared;
use crate::journal::{Chores, Journal, JournalConfig, OpenError, Opened, Reader, Writer};

/// MARK is made durable once nothing was committed for this long.
const IDLE: Duration = Duration::from_millis(100);
/// Free space is looked at this often, in moments of [`IDLE`], and what could not be done is tried again.
const TIDY_EVERY: u64 = 10;
/// Between two pieces of a next segment whose preparation is on time.
const PREPARATION_PAUSE: Duration = Duration::from_micros(2_500);
/// One sealed segment is scrubbed this often, in moments of [`IDLE`].
const SCRUB_EVERY: u64 = 600;
/// How long the writer waits after the next segment found no space, no descriptor or no memory, before it tries
/// again.
const SPACE_PAUSE: Duration = Duration::from_millis(100);
/// How many reads may wait.
const READS_MAX: usize = 64;

type Answer = oneshot::Sender<Result<Durable<Position>, StorageError>>;
type Reply<T> = oneshot::Sender<Result<T, StorageError>>;

struct Append {
    frame: Frame,
    answer: Answer,
}

struct Read {
    from: Position,
    budget: ReadBudget,
    reply: Reply<Readout>,
}

enum Chore {
    Tidy,
    Save(Image, Reply<Saved>),
    Trim(Position, Reply<()>),
    Stop,
}

/// An embedded journal with its threads. Dropping it commits what waits and stops cleanly.
pub struct JournalEngine<D: Disk = FolderDisk> {
    /// `None` only while the engine is being dropped.
    queues: Option<Queues>,
    reader: Reader<D>,
    shared: Arc<Shared<D>>,
    epoch: Epoch,
    frames_max: usize,
    /// `None` once the shard was claimed.
    claim: Mutex<Option<Claim>>,
    writer: Option<JoinHandle<()>>,
    chores: Option<JoinHandle<Result<(), StorageError>>>,
    reads: Option<JoinHandle<()>>,
    reads_beside: Option<JoinHandle<()>>,
}

struct Queues {
    appends: mpsc::Sender<Append>,
    reads: mpsc::Sender<Read>,
    reads_beside: mpsc::Sender<Read>,
    chores: blocking::Sender<Chore>,
}

impl<D: Disk> JournalEngine<D> {
    /// Opens the journal and starts its threads.
    pub fn open(disk: D, config: &JournalConfig) -> Result<JournalEngine<D>, OpenError> {
        JournalEngine::start(Journal::open(disk, config)?, config)
    }

    /// The same for a folder that is to become a copy of another log.
    pub fn open_copy(disk: D, config: &JournalConfig, of: &str) -> Result<JournalEngine<D>, OpenError> {
        JournalEngine::start(Journal::begin_copy(disk, config, of)?, config)
    }

    fn start(opened: Opened<D>, config: &JournalConfig) -> Result<JournalEngine<D>, OpenError> {
        let Opened { writer, chores, reader, claim } = opened;
        let shared = reader.shared().clone();
        let (appends, append_queue) = mpsc::channel(config.frames_max.max(1));
        let (reads, read_queue) = mpsc::channel(READS_MAX);
        let (reads_beside, beside_queue) = mpsc::channel(READS_MAX);
        // Has no bound of its own: every sender waits for an answer, except the writer, which sends once a
        // segment.
        let (chore_sender, chore_queue) = blocking::channel();
        let spawn = |source| OpenError::Io { doing: "start a thread", source };
        let chores = start("journal-chores", move || run_chores(chores, &chore_queue)).map_err(spawn)?;
        let writer = {
            let chores = chore_sender.clone();
            start("journal-writer", move || run_writer(writer, append_queue, &chores)).map_err(spawn)?
        };
        let read_with = |name, queue| {
            let reader = reader.clone();
            start(name, move || run_reader(&reader, queue)).map_err(spawn)
        };
        let reads_thread = read_with("journal-reader", read_queue)?;
        let beside_thread = read_with("journal-beside", beside_queue)?;
        Ok(JournalEngine {
            queues: Some(Queues { appends, reads, reads_beside, chores: chore_sender }),
            reader,
            shared,
            epoch: claim.epoch,
            frames_max: config.frames_max,
            claim: Mutex::new(Some(claim)),
            writer: Some(writer),
            chores: Some(chores),
            reads: Some(reads_thread),
            reads_beside: Some(beside_thread),
        })
    }

    /// For code that is not asynchronous and may wait for the disk.
    pub fn reader(&self) -> Reader<D> {
        self.reader.clone()
    }

    /// Commits what waits, and stops cleanly.
    pub fn close(mut self) -> Result<(), StorageError> {
        self.shut()
    }

    fn shut(&mut self) -> Result<(), StorageError> {
        // A thread ends when its queue has no sender left: the writer first, which then tells the chores to
        // stop.
        self.queues = None;
        for thread in [self.writer.take(), self.reads.take(), self.reads_beside.take()].into_iter().flatten()
        {
            thread.join().map_err(|_| StorageError::Stopped)?;
        }
        match self.chores.take() {
            Some(thread) => thread.join().unwrap_or(Err(StorageError::Stopped)),
            None => Ok(()),
        }
    }

    fn queues(&self) -> &Queues {
        self.queues.as_ref().expect("an engine in use is not being dropped")
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StorageError> {
        if shard == self.shared.shard { Ok(()) } else { Err(StorageError::NoSuchShard { shard }) }
    }

    async fn read_by(
        &self,
        queue: &mpsc::Sender<Read>,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> Result<Readout, StorageError> {
        self.check_shard(shard)?;
        let (reply, answer) = oneshot::channel();
        queue.send(Read { from, budget, reply }).await.map_err(|_| StorageError::Stopped)?;
        answer.await.unwrap_or(Err(StorageError::Stopped))
    }

    async fn do_chore<T>(
        &self,
        shard: ShardId,
        chore: impl FnOnce(Reply<T>) -> Chore,
    ) -> Result<T, StorageError> {
        self.check_shard(shard)?;
        let (reply, answer) = oneshot::channel();
        self.queues().chores.send(chore(reply)).map_err(|_| StorageError::Stopped)?;
        answer.await.unwrap_or(Err(StorageError::Stopped))
    }
}

impl<D: Disk> Drop for JournalEngine<D> {
    fn drop(&mut self) {
        // `close` reports errors; a drop has nowhere to report them to.
        let _ = self.shut();
    }
}

impl<D: Disk> Engine for JournalEngine<D> {
    /// The folder was taken when it was opened, so there is one claim to be had.
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(async move {
            self.check_shard(shard)?;
            let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner).take();
            claim.ok_or(StorageError::Fenced { epoch: self.epoch })
        })
    }

    fn append(&self, frame: Frame) -> Appended {
        let (answer, appended) = oneshot::channel();
        if let Err(refused) = self.queues().appends.try_send(Append { frame, answer }) {
            let (append, error) = match refused {
                mpsc::error::TrySendError::Full(append) => {
                    (append, StorageError::TooManyFrames { limit: self.frames_max })
                }
                mpsc::error::TrySendError::Closed(append) => (append, StorageError::Stopped),
            };
            let _ = append.answer.send(Err(error));
        }
        Appended(appended)
    }

    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        Box::pin(async move { self.read_around(shard, from, budget).await?.until_damage() })
    }

    fn read_around(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        Box::pin(self.read_by(&self.queues().reads, shard, from, budget))
    }

    fn read_beside(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        Box::pin(self.read_by(&self.queues().reads_beside, shard, from, budget))
    }

    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        Box::pin(self.do_chore(shard, move |reply| Chore::Save(image, reply)))
    }

    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(self.do_chore(shard, move |reply| Chore::Trim(through, reply)))
    }

    fn figures(&self) -> EngineFigures {
        let appends = &self.queues().appends;
        let waiting = appends.max_capacity() - appends.capacity();
        EngineFigures { frames_waiting: waiting as u64, ..self.shared.figures() }
    }
}

fn start<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// All frames that wait when the disk becomes free are written together: the busier the server, the larger
/// the block.
fn run_writer<D: Disk>(
    mut writer: Writer<D>,
    mut queue: mpsc::Receiver<Append>,
    chores: &blocking::Sender<Chore>,
) {
    let mut taken = Vec::new();
    let mut frames = Vec::new();
    let mut answers = VecDeque::new();
    let mut positions = Vec::new();
    let room = queue.max_capacity();
    let mut waits = false;
    loop {
        if writer.take_rotated() {
            let _ = chores.send(Chore::Tidy);
        }
        if frames.is_empty() && queue.blocking_recv_many(&mut taken, room) == 0 {
            break;
        }
        while frames.len() + taken.len() < room {
            let Ok(append) = queue.try_recv() else { break };
            taken.push(append);
        }
        for Append { frame, answer } in taken.drain(..) {
            frames.push(frame);
            answers.push_back(answer);
        }
        match writer.commit(&mut frames, &mut positions) {
            Ok(count) => {
                if std::mem::take(&mut waits) {
                    tracing::info!("the next segment is made: commits go on");
                }
                for (position, answer) in positions.drain(..).zip(answers.drain(..count)) {
                    // The task that asked may have ended.
                    let _ = answer.send(Ok(position));
                }
            }
            // Nothing was written, and the frames after the refused one are not to blame.
            Err(error @ (StorageError::FrameTooLarge { .. } | StorageError::NoSuchShard { .. })) => {
                frames.remove(0);
                let answer = answers.pop_front().expect("every frame has an answer");
                let _ = answer.send(Err(error));
            }
            // Nothing was written. The next segment can be made once space or a descriptor is free, so the frames
            // wait for that, unless the engine is being closed.
            Err(error @ StorageError::Io { .. }) if !queue.is_closed() => {
                if !std::mem::replace(&mut waits, true) {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "ALARM: the next segment cannot be made, so nothing is stored until it can"
                    );
                }
                std::thread::sleep(SPACE_PAUSE);
            }
            Err(error) => {
                frames.clear();
                for answer in answers.drain(..) {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
    let _ = chores.send(Chore::Stop);
}

fn run_reader<D: Disk>(reader: &Reader<D>, mut queue: mpsc::Receiver<Read>) {
    while let Some(Read { from, budget, reply }) = queue.blocking_recv() {
        // The task that asked may have ended.
        let _ = reply.send(reader.read_around(from, budget));
    }
}

fn run_chores<D: Disk>(mut chores: Chores<D>, queue: &blocking::Receiver<Chore>) -> Result<(), StorageError> {
    let shared = chores.shared().clone();
    // A journal that failed has said so, and the next commit says so again. A place is reported once, although the
    // scrub meets it again on every round.
    let report = |done: Result<(), StorageError>| {
        let Err(error @ (StorageError::Damaged { .. } | StorageError::Io { .. })) = done else { return };
        let is_news = match &error {
            StorageError::Damaged { file, offset, .. } => shared.is_new_place(file, *offset),
            other => !other.is_passing(),
        };
        if is_news {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "ALARM: found while tidying the journal"
            );
        }
    };
    let mut rested = Duration::ZERO;
    let mut moments: u64 = 0;
    let mut counter = 0;
    // An image that found no space or no descriptor. It is tried again until it is kept: its parts are not taken
    // a second time.
    let mut unsaved: Option<(Image, Reply<Saved>)> = None;
    loop {
        let patience = match chores.filling() {
            None => IDLE,
            Some(Preparation::OnTime) => PREPARATION_PAUSE,
            Some(Preparation::Late) => Duration::ZERO,
        };
        match queue.recv_timeout(patience) {
            Ok(Chore::Tidy) => report(chores.keep_up()),
            Ok(Chore::Save(image, reply)) => unsaved = save(&mut chores, image, reply),
            Ok(Chore::Trim(through, reply)) => {
                let _ = reply.send(chores.trim(through));
                report(chores.check_space());
            }
            Ok(Chore::Stop) | Err(blocking::RecvTimeoutError::Disconnected) => {
                // So that the next start need not read them.
                report(chores.seal_all());
                return chores.stop();
            }
            Err(blocking::RecvTimeoutError::Timeout) => {
                report(chores.fill_next().map(|_| ()));
                rested += patience;
                if rested < IDLE {
                    continue;
                }
                rested = Duration::ZERO;
                moments += 1;
                // Busy if MARK has moved since the last look; then the next rotation will sync it.
                let before = std::mem::replace(&mut counter, chores.mark_counter());
                let is_idle = before == counter;
                if is_idle {
                    report(chores.sync_mark());
                }
                if moments.is_multiple_of(TIDY_EVERY) {
                    unsaved = unsaved.and_then(|(image, reply)| save(&mut chores, image, reply));
                    report(chores.keep_up());
                    if is_idle {
                        report(chores.seal_all());
                    }
                }
                if moments.is_multiple_of(SCRUB_EVERY) {
                    report(chores.scrub_next().map(|_| ()));
                }
            }
        }
    }
}

/// Keeps an image. Gives it back if it has to be tried again.
fn save<D: Disk>(chores: &mut Chores<D>, image: Image, reply: Reply<Saved>) -> Option<(Image, Reply<Saved>)> {
    match chores.save(image.clone()) {
        Err(error @ StorageError::Io { .. }) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "an image could not be saved yet");
            Some((image, reply))
        }
        done => {
            let _ = reply.send(done);
            None
        }
    }
}
