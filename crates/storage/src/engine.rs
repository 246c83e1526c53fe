//! The contract between the broker and whatever keeps its log.
//!
//! An engine promises order, durability and one owner, per shard. A frame is atomic, so whatever must
//! happen together is put in one frame. An engine does not understand entries: to it a frame is two
//! runs of bytes and a note of which messages it publishes.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::fault::{Fault, planted};
use forebay_core::histogram::Histogram;
use forebay_core::types::{Epoch, PartKey, Position, Seq, ShardId, StreamId, Timestamp};
use tokio::sync::watch;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place that keeps logs. Everything Forebay remembers is an entry in a frame in a log.
///
/// Engines repeat calls to a disk or a network whose failure may pass by itself. An error that they return lasts,
/// unless [`StorageError::is_passing`] is true for it.
pub trait Engine: Send + Sync + 'static {
    /// Takes ownership of a shard. Once this returns, no earlier owner can append to it.
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>>;

    /// Queues a frame right after the previous one. Never waits: the broker bounds how many frames may be
    /// outstanding. The answer resolves when this frame and all before it are durable.
    fn append(&self, frame: Frame) -> Appended;

    /// Reads durable frames in order, beginning with the first one at or after `from`; at least one if
    /// there is one. An owner that has lost the shard is told so if the next one has let go of any of them.
    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>>;

    /// Reads as [`read`](Engine::read) does, but around damage: a place that cannot be read is reported, and
    /// the frames behind it are returned. An error of the disk that passes is an error, for which
    /// [`StorageError::is_passing`] is true; a lasting one is damage.
    fn read_around(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        Box::pin(
            async move { Ok(Readout { frames: self.read(shard, from, budget).await?, damage: Vec::new() }) },
        )
    }

    /// Reads as [`read_around`](Engine::read_around) does, for a reader that may wait: no read of the other kind waits
    /// for it.
    fn read_beside(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        self.read_around(shard, from, budget)
    }

    /// Keeps an image of the shard's state and lets go of all but the one before it.
    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>>;

    /// Lets go of all frames up to and including `through`. Space returns in its own time.
    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>>;

    /// Its counters since it was opened. Never waits.
    fn figures(&self) -> EngineFigures {
        EngineFigures::default()
    }
}

/// Counters of an engine since it was opened, and its present state. Fields that an engine does not know stay zero.
#[derive(Debug, Clone, Default)]
pub struct EngineFigures {
    pub syncs: u64,
    /// How long the syncs took, where there is a [`Stopwatch`](crate::journal::Stopwatch).
    pub sync_times: Histogram,
    /// Bytes that the syncs made durable, headers and padding included, and frames.
    pub synced_bytes: u64,
    pub synced_frames: u64,
    /// Frames that wait to be written now.
    pub frames_waiting: u64,
    /// Files of the log that are kept now, and how many were deleted.
    pub segments: u64,
    pub segments_deleted: u64,
    /// Attempts to make the next segment for a commit that waited for it, which found no space, no descriptor or no
    /// memory.
    pub segment_retries: u64,
    /// Space that may still be taken, as it was found last.
    pub free_bytes: Option<u64>,
    pub reads: u64,
    /// Entries and payloads that were read.
    pub read_bytes: u64,
    /// Places of the stored data that were found damaged or unreadable.
    pub damaged_places: u64,
    pub images: u64,
    pub image_bytes: u64,
    /// How often this node has owned a log that nodes share, since it started.
    pub terms: u64,
    /// How long the owner of this log may still serve without another sign that it owns it.
    pub tenure_left: Option<Duration>,
    /// How often deliveries had to wait in this term because another node might own the log.
    pub stalls: u64,
}

/// Proof that a value has reached stable storage. Only this crate can make one, so a producer cannot be
/// answered early by mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    pub(crate) fn after_sync(value: T) -> Durable<T> {
        Durable(value)
    }

    pub fn get(self) -> T {
        self.0
    }

    /// A value that follows from a durable one is durable too.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Durable<U> {
        Durable(f(self.0))
    }
}

/// Entries that become durable together, all or none.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    pub shard: ShardId,
    /// Every entry of the frame, encoded.
    pub entries: Bytes,
    /// The contents of the messages that the entries publish, one after the other.
    pub payload: Bytes,
    /// Which messages the frame publishes, for the index.
    pub runs: Vec<Run>,
}

/// Consecutive messages of one stream in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub stream: StreamId,
    pub first: Seq,
    pub count: u32,
    /// They were published earlier in the log, and the frame holds copies of them.
    pub copied: bool,
}

impl Run {
    /// More messages than this are never in one run: a format may need a bit of the count for itself.
    pub const COUNT_MAX: u32 = u32::MAX >> 1;
}

/// Where to begin looking for messages of a stream: those from `first` on are in the frame at
/// `position` or in frames after it, up to the position of the stream's next run. Engines may join runs
/// that lie close together, so that an index of ten million messages is small.
///
/// Copies are exceptions to that, and are never joined: exactly these messages are in exactly that frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexRun {
    pub stream: StreamId,
    pub first: Seq,
    pub count: u64,
    pub position: Position,
    pub copied: bool,
}

/// A frame as it was read back.
#[derive(Debug, Clone)]
pub struct StoredFrame {
    pub position: Position,
    /// The epoch of the owner that wrote it.
    pub epoch: Epoch,
    pub entries: Bytes,
    /// Empty unless the budget asked for payloads.
    pub payload: Bytes,
    pub runs: Vec<Run>,
}

/// Frames as they were read around damage.
#[derive(Debug, Clone, Default)]
pub struct Readout {
    /// Where part of a payload cannot be read, these bytes are zeros and `damage` names them.
    pub frames: Vec<StoredFrame>,
    /// In the order of the log.
    pub damage: Vec<Damage>,
}

/// A place of the log that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Frames that begin from here to just before `until` are missing.
    pub from: Position,
    pub until: Position,
    /// If given, the frame at `from` is there, and only these bytes of its payload are missing.
    pub payload: Option<Range<usize>>,
    pub what: String,
    pub file: String,
    pub offset: u64,
    /// Whether the engine finds it for the first time since it was opened.
    pub is_new: bool,
}

impl Readout {
    /// The frames before the first damage; an error if there are none.
    pub fn until_damage(mut self) -> Result<Vec<StoredFrame>, StorageError> {
        if let Some(Damage { from, what, file, offset, .. }) = self.damage.into_iter().next() {
            self.frames.retain(|frame| frame.position < from);
            if self.frames.is_empty() {
                return Err(StorageError::Damaged { what, file, offset });
            }
        }
        Ok(self.frames)
    }
}

/// How much one read may bring.
#[derive(Debug, Clone, Copy)]
pub struct ReadBudget {
    /// Stop after the frame with which the returned bytes exceed this.
    pub bytes_max: usize,
    pub frames_max: usize,
    /// Whether payloads are wanted too.
    pub payloads: bool,
}

/// The state of a shard, in parts. Names every part that exists.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub parts: Vec<ImagePart>,
}

#[derive(Debug, Clone)]
pub struct ImagePart {
    pub key: PartKey,
    /// Every entry of this part in frames up to and including this position is in the bytes.
    pub through: Position,
    /// `None` where the part is still as it was in the image before.
    pub bytes: Option<Bytes>,
}

/// The answer to `save`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// The older of the two kept images covers the log up to here; what lies before is not needed to
    /// recover state, whichever of the two has to be used.
    pub covered: Position,
}

/// One part of the image a claim found.
#[derive(Debug, Clone)]
pub struct SavedPart {
    pub key: PartKey,
    pub through: Position,
    pub bytes: Bytes,
}

/// Everything that the new owner of a shard needs to know.
#[derive(Debug)]
pub struct Claim {
    pub epoch: Epoch,
    /// The first frame that is kept is at this position or after it.
    pub start: Position,
    /// Every durable frame lies before this position.
    pub end: Position,
    /// The parts of the newest good image, empty without one.
    pub parts: Vec<SavedPart>,
    /// The position up to which the older of the two kept images covers the log, as in [`Saved`]; `START` if
    /// there are not two.
    pub covered: Position,
    /// Index runs of every frame before `indexed`, in log order. `indexed` is not before the oldest part of the image,
    /// because the log is read from there on only.
    pub runs: Vec<IndexRun>,
    /// Frames from here on have to be read to be indexed.
    pub indexed: Position,
    /// How far apart, as this engine counts positions, two places of a sparse index should be: far
    /// enough to be few, near enough to read from one to the next in passing.
    pub index_stride: u64,
    /// Space returns in whole multiples of this many positions: a trim frees the units that end at or
    /// before its position.
    pub trim_unit: u64,
    /// How many frames may be on their way at once.
    pub frames_max: usize,
    /// How large one frame may be, entries and payload together.
    pub frame_bytes_max: usize,
    pub space: SpaceGauge,
    /// How long this owner may serve.
    pub tenure: Tenure,
    /// How much time has passed since the last frame, if another machine may have written it. `None`: it was this
    /// machine, whose date goes on.
    pub elapsed: Option<Elapsed>,
    /// Remarks for the operator about unusual findings: a torn tail that was cut, an image that
    /// could not be read.
    pub remarks: Vec<String>,
}

/// How much time has passed since the last frame of a log that several machines write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Elapsed {
    /// By the clocks of the servers that keep the log, which may be set.
    pub stamped: Duration,
    /// At least so much, by a clock that cannot be set.
    pub seen: Duration,
}

/// Whether there is space for more messages. Settling goes on regardless, from a reserve.
#[derive(Debug, Clone, Default)]
pub struct SpaceGauge(Arc<Space>);

#[derive(Debug)]
struct Space {
    full: AtomicBool,
    left: AtomicU64,
}

impl Default for Space {
    fn default() -> Space {
        Space { full: AtomicBool::new(false), left: AtomicU64::new(u64::MAX) }
    }
}

impl SpaceGauge {
    pub fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Relaxed)
    }

    /// How many bytes the log may still take, the reserve included.
    pub fn left(&self) -> u64 {
        self.0.left.load(Ordering::Relaxed)
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.0.full.store(full, Ordering::Relaxed);
    }

    pub(crate) fn set_left(&self, bytes: u64) {
        self.0.left.store(bytes, Ordering::Relaxed);
    }
}

/// The right to serve clients. A log that only one process can open gives it for good. Where another node can claim the
/// log, it ends by itself unless frames become durable: the next owner waits for that before it serves, so two owners
/// never hand out the same message at once.
#[derive(Debug, Clone, Default)]
pub struct Tenure(Option<Arc<Office>>);

struct Office {
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Until when the owner may serve, in microseconds of the clock.
    until: AtomicU64,
    /// When the oldest frame that is not durable was sent; `u64::MAX` without one.
    waits_since: AtomicU64,
    /// A frame that takes longer than this shows that the log may be lost.
    patience: Duration,
    /// How long after its end consumers still keep their leases.
    grace: Duration,
    stalls: AtomicU64,
    lost: watch::Sender<Option<StorageError>>,
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let until = self.until.load(Ordering::Relaxed);
        f.debug_struct("Office").field("until", &until).finish_non_exhaustive()
    }
}

impl Tenure {
    /// One that has not begun. By a clock that never goes back. A frame that takes longer than `patience` holds
    /// deliveries back, and `grace` after the end of the tenure consumers lose their leases.
    pub fn limited(
        patience: Duration,
        grace: Duration,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Tenure {
        Tenure(Some(Arc::new(Office {
            clock: Box::new(clock),
            until: AtomicU64::new(0),
            waits_since: AtomicU64::new(u64::MAX),
            patience,
            grace,
            stalls: AtomicU64::new(0),
            lost: watch::Sender::new(None),
        })))
    }

    /// Whether it can end.
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Whether messages may be handed out, and decisions told that are not durable yet. If not, it may still come back.
    pub fn may_serve(&self) -> bool {
        planted(Fault::ServesWithoutTenure)
            || self.0.as_ref().is_none_or(|office| {
                let now = (office.clock)().0;
                let waits = now.saturating_sub(office.waits_since.load(Ordering::Relaxed));
                now < office.until.load(Ordering::Relaxed) && u128::from(waits) < office.patience.as_micros()
            })
    }

    /// Whether it has been over for so long that another node may have handed out what consumers of this one hold.
    pub fn is_long_over(&self) -> bool {
        self.0.as_ref().is_some_and(|office| {
            let until = office.until.load(Ordering::Relaxed);
            let over = (office.clock)().0.saturating_sub(until);
            // One that has not begun is not over.
            until > 0 && u128::from(over) > office.grace.as_micros()
        })
    }

    /// How long messages may be handed out without another sign of ownership. `None` if that is not limited.
    pub fn left(&self) -> Option<Duration> {
        let office = self.0.as_ref()?;
        let left = office.until.load(Ordering::Relaxed).saturating_sub((office.clock)().0);
        Some(Duration::from_micros(left))
    }

    /// Counts that deliveries begin to wait.
    pub fn count_stall(&self) {
        if let Some(office) = &self.0 {
            office.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn stalls(&self) -> u64 {
        self.0.as_ref().map_or(0, |office| office.stalls.load(Ordering::Relaxed))
    }

    /// Whether the log is lost for good.
    pub fn is_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|office| office.lost.borrow().is_some())
    }

    /// Resolves when the log is lost for good. Never, if it cannot be.
    pub async fn lost(&self) -> StorageError {
        let Some(office) = &self.0 else { return std::future::pending().await };
        let mut lost = office.lost.subscribe();
        let error = lost.wait_for(Option::is_some).await.map(|error| error.clone());
        error.ok().flatten().unwrap_or(StorageError::Stopped)
    }

    /// The owner may serve until then.
    pub fn extend(&self, until: Timestamp) {
        if let Some(office) = &self.0 {
            office.until.fetch_max(until.0, Ordering::Relaxed);
        }
    }

    /// When the oldest frame that is not durable was sent.
    pub fn set_waits_since(&self, since: Option<Timestamp>) {
        if let Some(office) = &self.0 {
            office.waits_since.store(since.map_or(u64::MAX, |since| since.0), Ordering::Relaxed);
        }
    }

    /// The log is lost for good.
    pub fn end(&self, error: StorageError) {
        if let Some(office) = &self.0 {
            office.until.store(0, Ordering::Relaxed);
            office.lost.send_if_modified(|lost| {
                let is_first = lost.is_none();
                if is_first {
                    *lost = Some(error);
                }
                is_first
            });
        }
    }
}

/// A frame that was handed to an engine. Resolves to the frame's position once the frame is durable.
#[derive(Debug)]
pub struct Appended(pub(crate) tokio::sync::oneshot::Receiver<Result<Durable<Position>, StorageError>>);

impl Future for Appended {
    type Output = Result<Durable<Position>, StorageError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or(Err(StorageError::Stopped)))
    }
}

impl Appended {
    /// A frame that is on its way, and the end at which its engine answers. For engines outside of this crate.
    pub fn pending() -> (tokio::sync::oneshot::Sender<<Self as Future>::Output>, Appended) {
        let (answer, appended) = tokio::sync::oneshot::channel();
        (answer, Appended(appended))
    }

    /// The answer if it is there already; `None` while the frame is on its way.
    pub fn try_take(&mut self) -> Option<<Self as Future>::Output> {
        use tokio::sync::oneshot::error::TryRecvError;
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(StorageError::Stopped)),
        }
    }

    /// Blocks the thread until the answer is there, for code that is not asynchronous.
    pub fn wait(self) -> <Self as Future>::Output {
        self.0.blocking_recv().unwrap_or(Err(StorageError::Stopped))
    }
}

/// Why an engine did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The engine has stopped taking frames after an earlier failure. Appends that were under way may or
    /// may not be stored.
    #[error("the log stopped after a failure, and appends that were under way may or may not be stored")]
    Poisoned(#[source] Arc<std::io::Error>),
    #[error("the engine is closed")]
    Stopped,
    #[error("another owner has claimed the shard. epoch=`{0}`", epoch.0)]
    Fenced { epoch: Epoch },
    /// The log is shorter than it was. Nothing more is taken: going on would give positions out a second time.
    #[error("the log ends before a record that was durable. known=`{}` found=`{}`", known.0, found.0)]
    WentBack { known: Position, found: Position },
    /// The owner could not reach the log for longer than any election among its servers takes.
    #[error("the log could not be reached for so long that another node may have claimed it")]
    TenureOver,
    #[error("no such shard here. shard=`{0}`", shard.0)]
    NoSuchShard { shard: ShardId },
    #[error("frame is larger than the engine takes. bytes=`{bytes}` limit=`{limit}`")]
    FrameTooLarge { bytes: usize, limit: usize },
    #[error("no frame begins there. position=`{}`", position.0)]
    NoSuchFrame { position: Position },
    #[error("the image before has no such part. kind=`{}` id=`{}` sub=`{}`", key.kind, key.id, key.sub)]
    NoSuchPart { key: PartKey },
    #[error("more frames are waiting than the engine takes. limit=`{limit}`")]
    TooManyFrames { limit: usize },
    /// The stored bytes do not match their checksum. They are never delivered, and never skipped in silence.
    #[error("stored data is damaged: {what}. file=`{file}` offset=`{offset}`")]
    Damaged { what: String, file: String, offset: u64 },
    #[error("cannot {doing}")]
    Io {
        doing: String,
        #[source]
        source: Arc<std::io::Error>,
    },
}

impl StorageError {
    /// Whether it will pass by itself, and the same call may succeed later: no file descriptor, no memory or no
    /// space to be had just now.
    pub fn is_passing(&self) -> bool {
        matches!(self, StorageError::Io { source, .. } if crate::journal::is_passing(source))
    }
}
