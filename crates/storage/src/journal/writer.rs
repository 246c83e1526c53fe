//! Group commit: whatever waits goes into one block, one write and one sync.
//!
//! The order is fixed: encode, write, sync, MARK, answers. Never more than one block is unsynced, which
//! is what recovery relies on. Nothing large is copied, and a commit allocates the same whatever the
//! number of messages.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::fault::{self, Fault};
use forebay_core::types::{Epoch, Position};

use crate::engine::{Durable, Frame, StorageError};
use crate::journal::JournalConfig;
use crate::journal::block::{BLOCK_HEADER, BlockHeader, Encoder, Kind, frame_len, padded};
use crate::journal::crypt::{DataKey, KeyedFile, Sealer, WrappedKey, frame_growth};
use crate::journal::disk::{Disk, DiskFile, Stage};
use crate::journal::segment::{Head, Link};
use crate::journal::shared::{EmptySegment, Segment, Shared, is_passing};

/// A sync that takes longer than this is worth a line in the log.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// How the blocks of an encrypted segment are written.
struct Sealing {
    sealer: Sealer,
    key: u32,
}

/// Writes to the active segment. Nothing else does.
pub struct Writer<D: Disk> {
    shared: Arc<Shared<D>>,
    file: D::File,
    segment: u64,
    /// Commit blocks end at or before this offset of the active segment.
    data_max: u64,
    epoch: Epoch,
    /// The last block that was written.
    last: Link,
    /// Offset of the last frame in the active segment, 0 without frames.
    last_frame: u64,
    encoder: Encoder,
    sealing: Option<Sealing>,
    positions: Vec<Position>,
    block_frames_max: usize,
    created: u64,
    rotated: bool,
}

impl<D: Disk> Writer<D> {
    /// Begins a new epoch in a new segment after `last`.
    pub(crate) fn start(
        shared: Arc<Shared<D>>,
        last: Link,
        spare: Option<u64>,
        epoch: Epoch,
        config: &JournalConfig,
    ) -> io::Result<Writer<D>> {
        let active = shared.segments().last_key_value().map(|(&number, _)| number);
        let segment = active.map_or(1, |active| active + 1);
        assert!(spare.is_none_or(|spare| spare == segment), "a spare segment is the next one");
        let EmptySegment { file, data_max } =
            if spare.is_some() { shared.reuse_segment(segment)? } else { shared.make_short(segment, 0)? };
        shared.disk.at(Stage::Recovering);
        let created = config.opened_at.0;
        let (last, sealing) = begin(&shared, &file, segment, last, epoch, created)?;
        shared.spare().begun(segment, data_max < shared.layout.data_max());
        Ok(Writer {
            shared,
            file,
            segment,
            data_max,
            epoch,
            last,
            last_frame: 0,
            encoder: Encoder::default(),
            sealing,
            positions: Vec::new(),
            block_frames_max: config.block_frames_max.max(1),
            created,
            rotated: true,
        })
    }

    /// Makes frames from the front of `frames` durable, as many as one block takes, and removes them.
    /// Their positions are appended to `out`; returns how many there were.
    ///
    /// After an error that is `Poisoned`, the frames of the block may or may not be stored. After any
    /// other, nothing was written and the frames are where they were.
    pub fn commit(
        &mut self,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Durable<Position>>,
    ) -> Result<usize, StorageError> {
        self.shared.check_open()?;
        let (count, body) = self.fitting(frames)?;
        if count == 0 {
            return Ok(0);
        }
        let len = padded(BLOCK_HEADER as u64 + body);
        let base = self.shared.layout.base(self.segment);
        if self.last.end - base + len > self.data_max {
            self.rotate(len)?;
        }
        self.write(&frames[..count]).map_err(|error| self.shared.poison(error))?;
        frames.drain(..count);
        out.extend(self.positions.drain(..).map(Durable::after_sync));
        self.shared.disk.at(Stage::Idle);
        Ok(count)
    }

    /// Whether a segment was begun since this was last asked. The chores then have work.
    pub fn take_rotated(&mut self) -> bool {
        std::mem::take(&mut self.rotated)
    }

    /// How many frames from the front fit in one block, and how long its body then is.
    fn fitting(&self, frames: &[Frame]) -> Result<(usize, u64), StorageError> {
        let body_max = self.shared.layout.block_bytes_max - BLOCK_HEADER as u64;
        let mut body = 0;
        for (count, frame) in frames.iter().take(self.block_frames_max).enumerate() {
            match check_frame(&self.shared, frame) {
                Ok(len) if body + len <= body_max => body += len,
                // A frame that cannot be committed is reported when it has come to the front.
                Err(error) if count == 0 => return Err(error),
                _ => return Ok((count, body)),
            }
        }
        Ok((frames.len().min(self.block_frames_max), body))
    }

    fn write(&mut self, frames: &[Frame]) -> io::Result<()> {
        let shared = &*self.shared;
        let base = shared.layout.base(self.segment);
        let header = BlockHeader {
            kind: Kind::Commit,
            position: self.last.end,
            sequence: self.last.sequence + 1,
            durable_end: self.last.end,
            previous: self.last.tag,
            epoch: self.epoch,
            frames: 0,
            body_len: 0,
            body_crc: 0,
            key: self.sealing.as_ref().map_or(0, |sealing| sealing.key),
        };
        self.positions.clear();
        let frames = match &mut self.sealing {
            None => frames,
            Some(sealing) => sealing.sealer.seal(shared.id, header.position + BLOCK_HEADER as u64, frames),
        };
        let (tag, len) = self.encoder.encode(shared.id, header, frames, &mut self.positions);
        shared.disk.at(Stage::Committing);
        self.file.write_at(&self.encoder.slices(frames), self.last.end - base)?;
        if !fault::planted(Fault::NoSync) {
            let (synced, took) = shared.stopwatch.time(|| self.file.sync_data());
            synced?;
            count_sync(shared, took, frames.len(), len);
        }
        self.last = Link { sequence: header.sequence, tag, epoch: self.epoch, end: self.last.end + len };
        self.last_frame = self.positions.last().map_or(self.last_frame, |last| last.0 - base);
        shared.disk.at(Stage::Marking);
        shared.mark().write(|mark| {
            mark.durable_end = self.last.end;
            mark.sequence = self.last.sequence;
        })?;
        shared.set_durable_end(self.last.end);
        Ok(())
    }

    /// Goes on in the next segment, in which there is room for a block of `len` bytes.
    fn rotate(&mut self, len: u64) -> Result<(), StorageError> {
        let shared = self.shared.clone();
        shared.disk.at(Stage::Rotating);
        // Held to the end: no further segment is made ready before this one has begun for good, so that
        // recovery never meets two that are empty.
        let mut spare = shared.spare();
        let segment = self.segment + 1;
        let is_ready = spare.ready.is_some();
        let EmptySegment { file, data_max } = match spare.ready.take() {
            Some(segment) => segment,
            None => shared.make_short(segment, len).map_err(|error| {
                if is_passing(&error) {
                    shared.count(|figures| figures.segment_retries += 1);
                    let doing = "make the next segment".to_owned();
                    StorageError::Io { doing, source: Arc::new(error) }
                } else {
                    shared.poison(error)
                }
            })?,
        };
        shared.disk.at(Stage::Rotating);
        if let Some(closed) = shared.segments().get_mut(&self.segment) {
            closed.end = self.last.end - shared.layout.base(self.segment);
            closed.last_frame = self.last_frame;
        }
        let begun = begin(&shared, &file, segment, self.last, self.epoch, self.created);
        (self.last, self.sealing) = begun.map_err(|error| shared.poison(error))?;
        self.file = file;
        self.segment = segment;
        self.data_max = data_max;
        self.last_frame = 0;
        self.rotated = true;
        spare.begun(segment, data_max < shared.layout.data_max());
        tracing::debug!(segment, bytes = data_max, was_ready = is_ready, "segment begun");
        Ok(())
    }
}

fn count_sync<D: Disk>(shared: &Shared<D>, took: Option<Duration>, frames: usize, bytes: u64) {
    shared.count(|figures| {
        figures.syncs += 1;
        figures.synced_frames += frames as u64;
        figures.synced_bytes += bytes;
        if let Some(took) = took {
            figures.sync_times.record(took);
        }
    });
    if let Some(took) = took.filter(|took| *took >= SLOW_SYNC) {
        tracing::warn!(seconds = took.as_secs_f64(), frames, bytes, "the disk was slow to sync");
    }
}

/// Writes the header of a segment and makes it, and MARK, durable. An encrypted segment gets a new key, also if
/// an interrupted attempt has written a header with another one.
fn begin<D: Disk>(
    shared: &Shared<D>,
    file: &D::File,
    segment: u64,
    last: Link,
    epoch: Epoch,
    created: u64,
) -> io::Result<(Link, Option<Sealing>)> {
    let base = shared.layout.base(segment);
    let keys: Option<(DataKey, WrappedKey)> = match &shared.keys {
        None => None,
        Some(keys) => Some(keys.make(shared.id, KeyedFile::Segment(segment))?),
    };
    let wrapped = keys.as_ref().map(|(_, wrapped)| wrapped);
    let (bytes, link) = Head::encode(shared.id, base, last, epoch, created, wrapped);
    file.write_at(&[IoSlice::new(&bytes)], 0)?;
    file.sync_data()?;
    shared.mark().write(|mark| {
        mark.durable_end = link.end;
        mark.sequence = link.sequence;
        mark.clean = false;
    })?;
    shared.sync_mark()?;
    let (key, sealing) = match keys {
        None => (None, None),
        Some((key, wrapped)) => {
            let key = Arc::new(key);
            let sealer = Sealer::new(key.clone());
            (Some(key), Some(Sealing { sealer, key: wrapped.id().0 }))
        }
    };
    let begun = Segment { end: link.end - base, last_frame: 0, sealed: false, key };
    shared.segments().insert(segment, begun);
    shared.set_durable_end(link.end);
    Ok((link, sealing))
}

/// Whether a frame is one of this shard and fits in a block, and how long it is there.
fn check_frame<D: Disk>(shared: &Shared<D>, frame: &Frame) -> Result<u64, StorageError> {
    if frame.shard != shared.shard {
        return Err(StorageError::NoSuchShard { shard: frame.shard });
    }
    let bytes = frame.entries.len() + frame.payload.len();
    let limit = shared.frame_bytes_max;
    let len = frame_len(frame) + if shared.keys.is_some() { frame_growth(frame) } else { 0 };
    if bytes > limit || BLOCK_HEADER as u64 + len > shared.layout.block_bytes_max {
        return Err(StorageError::FrameTooLarge { bytes, limit });
    }
    Ok(len)
}
