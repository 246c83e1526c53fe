//! An engine that keeps everything in memory: the shortest reading of the contract, for tests and for
//! measuring everything but a disk.
//!
//! [`MemoryLog`] is the log itself, with the same verbs as the journal's plain structs. A
//! [`MemoryEngine`] is one owner's handle to a log that other handles share. The handle that claims it last
//! owns it, and frames of earlier owners are refused.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forebay_core::types::{Epoch, Position, ShardId};
use tokio::sync::oneshot;

use crate::engine::{
    Appended, BoxFuture, Claim, Durable, Engine, Frame, Image, IndexRun, ReadBudget, Saved, SavedPart,
    SpaceGauge, StorageError, StoredFrame, Tenure,
};

/// How many frames may wait. Nothing ever waits here, but an owner may want a number.
const FRAMES_MAX: usize = 1024;
const FRAME_BYTES_MAX: usize = 8 << 20;

/// A log in memory. The first frame is at position 1, and each further one at the next.
#[derive(Debug)]
pub struct MemoryLog {
    shard: ShardId,
    epoch: Epoch,
    frames: VecDeque<StoredFrame>,
    /// How many frames were let go.
    trimmed: u64,
    newest: Option<Vec<SavedPart>>,
    older: Option<Vec<SavedPart>>,
    frame_bytes_max: usize,
}

impl Default for MemoryLog {
    fn default() -> MemoryLog {
        MemoryLog::new(ShardId(0), FRAME_BYTES_MAX)
    }
}

impl MemoryLog {
    pub fn new(shard: ShardId, frame_bytes_max: usize) -> MemoryLog {
        MemoryLog {
            shard,
            epoch: Epoch(0),
            frames: VecDeque::new(),
            trimmed: 0,
            newest: None,
            older: None,
            frame_bytes_max,
        }
    }

    /// Takes ownership: a new epoch begins.
    pub fn claim(&mut self) -> Claim {
        self.epoch = Epoch(self.epoch.0 + 1);
        let index = self.frames.iter().flat_map(|frame| {
            frame.runs.iter().map(|run| IndexRun {
                stream: run.stream,
                first: run.first,
                count: u64::from(run.count),
                position: frame.position,
                copied: run.copied,
            })
        });
        Claim {
            epoch: self.epoch,
            start: Position(self.trimmed + 1),
            end: self.end(),
            parts: self.newest.clone().unwrap_or_default(),
            covered: self.covered(),
            runs: index.collect(),
            indexed: self.end(),
            // A position is a frame here.
            index_stride: 16,
            trim_unit: 1,
            frames_max: FRAMES_MAX,
            frame_bytes_max: self.frame_bytes_max,
            space: SpaceGauge::default(),
            tenure: Tenure::default(),
            elapsed: None,
            remarks: Vec::new(),
        }
    }

    /// Every frame lies before this position.
    pub fn end(&self) -> Position {
        Position(self.trimmed + self.frames.len() as u64 + 1)
    }

    /// Keeps all of the frames, in order, as far as none is refused; removes those that were kept.
    pub fn commit(
        &mut self,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Durable<Position>>,
    ) -> Result<usize, StorageError> {
        let refused = frames.iter().position(|frame| self.check(frame).is_err());
        if refused == Some(0) {
            return self.check(&frames[0]).map(|()| 0);
        }
        let count = refused.unwrap_or(frames.len());
        for frame in frames.drain(..count) {
            out.push(self.push(frame));
        }
        Ok(count)
    }

    fn push(&mut self, frame: Frame) -> Durable<Position> {
        let position = self.end();
        let Frame { entries, payload, runs, .. } = frame;
        self.frames.push_back(StoredFrame { position, epoch: self.epoch, entries, payload, runs });
        Durable::after_sync(position)
    }

    /// Whether the frame may be committed at all.
    pub fn check(&self, frame: &Frame) -> Result<(), StorageError> {
        self.check_shard(frame.shard)?;
        let bytes = frame.entries.len() + frame.payload.len();
        let limit = self.frame_bytes_max;
        if bytes > limit { Err(StorageError::FrameTooLarge { bytes, limit }) } else { Ok(()) }
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StorageError> {
        if shard == self.shard { Ok(()) } else { Err(StorageError::NoSuchShard { shard }) }
    }

    /// Reads frames in order, beginning with the first one at or after `from`; at least one if there is
    /// one.
    pub fn read(&self, from: Position, budget: ReadBudget) -> Vec<StoredFrame> {
        let skip = from.0.saturating_sub(self.trimmed + 1).min(self.frames.len() as u64) as usize;
        let mut bytes = 0;
        let mut frames = Vec::new();
        for frame in self.frames.range(skip..).take(budget.frames_max) {
            if bytes >= budget.bytes_max && !frames.is_empty() {
                break;
            }
            let payload = if budget.payloads { frame.payload.clone() } else { Bytes::new() };
            bytes += frame.entries.len() + payload.len();
            frames.push(StoredFrame { payload, ..frame.clone() });
        }
        frames
    }

    /// Whether a frame at or after this position was let go.
    fn is_trimmed(&self, from: Position) -> bool {
        self.trimmed > 0 && from.0 <= self.trimmed
    }

    /// Keeps an image and lets go of all but the one before it.
    pub fn save(&mut self, image: Image) -> Result<Saved, StorageError> {
        let mut parts = Vec::with_capacity(image.parts.len());
        for part in image.parts {
            if part.through >= self.end() {
                return Err(StorageError::NoSuchFrame { position: part.through });
            }
            let before = self.newest.iter().flatten().find(|before| before.key == part.key);
            let bytes = part.bytes.or_else(|| before.map(|before| before.bytes.clone()));
            let bytes = bytes.ok_or(StorageError::NoSuchPart { key: part.key })?;
            parts.push(SavedPart { key: part.key, through: part.through, bytes });
        }
        self.older = self.newest.replace(parts);
        Ok(Saved { covered: self.covered() })
    }

    /// The position up to which the older of the two kept images covers the log.
    pub fn covered(&self) -> Position {
        let older = self.older.iter().flatten();
        older.map(|part| part.through).min().unwrap_or(Position::START)
    }

    /// Lets go of all frames up to and including `through`, unless there is no image: then the log is
    /// all there is.
    pub fn trim(&mut self, through: Position) {
        while self.newest.is_some() && self.frames.front().is_some_and(|frame| frame.position <= through) {
            self.frames.pop_front();
            self.trimmed += 1;
        }
    }
}

/// One owner's handle to a log in memory.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    /// Protects the log; held for the length of one call, during which nothing waits.
    log: Arc<Mutex<MemoryLog>>,
    /// The epoch that this handle has claimed; 0 if none.
    epoch: AtomicU32,
}

impl MemoryEngine {
    pub fn new(log: MemoryLog) -> MemoryEngine {
        MemoryEngine { log: Arc::new(Mutex::new(log)), epoch: AtomicU32::new(0) }
    }

    /// Another handle to the same log, which owns nothing until it claims.
    pub fn another(&self) -> MemoryEngine {
        MemoryEngine { log: self.log.clone(), epoch: AtomicU32::new(0) }
    }

    fn log(&self) -> MutexGuard<'_, MemoryLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log, if it is still this handle's.
    fn owned(&self, shard: ShardId) -> Result<MutexGuard<'_, MemoryLog>, StorageError> {
        let log = self.log();
        log.check_shard(shard)?;
        if log.epoch.0 != self.epoch.load(Ordering::Relaxed) {
            return Err(StorageError::Fenced { epoch: log.epoch });
        }
        Ok(log)
    }

    fn push(&self, frame: Frame) -> Result<Durable<Position>, StorageError> {
        let mut log = self.owned(frame.shard)?;
        log.check(&frame)?;
        Ok(log.push(frame))
    }

    fn visible(&self, shard: ShardId) -> Result<MutexGuard<'_, MemoryLog>, StorageError> {
        let log = self.log();
        log.check_shard(shard).map(|()| log)
    }
}

impl Engine for MemoryEngine {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(async move {
            let claim = self.visible(shard)?.claim();
            self.epoch.store(claim.epoch.0, Ordering::Relaxed);
            Ok(claim)
        })
    }

    fn append(&self, frame: Frame) -> Appended {
        let (answer, appended) = oneshot::channel();
        answer.send(self.push(frame)).expect("the receiver is still here");
        Appended(appended)
    }

    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        Box::pin(async move {
            let has_claimed = self.epoch.load(Ordering::Relaxed) != 0;
            if has_claimed && self.visible(shard)?.is_trimmed(from) {
                drop(self.owned(shard)?);
            }
            Ok(self.visible(shard)?.read(from, budget))
        })
    }

    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        Box::pin(async move { self.owned(shard)?.save(image) })
    }

    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.owned(shard)?.trim(through);
            Ok(())
        })
    }
}
