//! From a claim to a running shard: the image, then the entries after it.
//!
//! The same `apply` runs here as in service. Reading is the shell's part: ask [`Recovery::next_read`] for
//! the next read, hand its frames to [`Recovery::feed`], and finish when there is no next read.

use std::time::Duration;

use forebay_core::codec::DecodeError;
use forebay_core::entry::entries;
use forebay_core::shard::Shard;
use forebay_core::types::{Epoch, Limits, Position, Seq, StreamId, Timestamp};
use forebay_storage::engine::{Claim, ReadBudget, StorageError, StoredFrame};

use crate::door::OWN_NOTES;
use crate::driver::{Driver, DriverConfig, LogTerms};
use crate::index::Index;

/// Under which key the owner of a log that several machines write keeps by how much its clock is behind its date.
pub(crate) const BEHIND_KEY: &[u8] = b"behind";

/// Why a shard could not be brought back, or why something in its log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    #[error("a part of the image cannot be understood")]
    Image(#[source] DecodeError),
    #[error("an entry of the log cannot be understood. position=`{}`", position.0)]
    Entry {
        position: Position,
        #[source]
        error: DecodeError,
    },
    #[error("a frame has fewer contents than its entries say. position=`{}`", position.0)]
    PayloadShort { position: Position },
    #[error("the log has no message where one should be. stream=`{}` seq=`{seq}`", stream.0)]
    MessageMissing { stream: StreamId, seq: Seq },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

#[derive(Debug)]
pub struct Recovery {
    shard: Shard,
    index: Index,
    epoch: Epoch,
    next: Position,
    end: Position,
    indexed: Position,
    log: LogTerms,
}

impl Recovery {
    /// Takes the parts of the image out of the claim.
    pub fn begin(claim: &mut Claim, limits: Limits) -> Result<Recovery, RecoveryError> {
        let mut shard = Shard::new(fitted(limits, claim.frame_bytes_max));
        let parts = std::mem::take(&mut claim.parts);
        let covered = parts.iter().map(|part| part.through).min();
        shard
            .load(parts.into_iter().map(|part| (part.key, part.through, part.bytes)))
            .map_err(RecoveryError::Image)?;
        let mut index = Index::new(claim.index_stride, claim.trim_unit);
        index.load(&claim.runs);
        let next = covered.map_or(claim.start, |through| Position(through.0 + 1).max(claim.start));
        Ok(Recovery {
            shard,
            index,
            epoch: claim.epoch,
            next,
            end: claim.end,
            indexed: claim.indexed,
            log: LogTerms {
                covered: claim.covered,
                since_image: claim.end.0.saturating_sub(next.0),
                trim_unit: claim.trim_unit,
                frames_max: claim.frames_max,
                frame_bytes_max: claim.frame_bytes_max,
            },
        })
    }

    /// Where to read on, or `None` when everything has been read.
    pub fn next_read(&self) -> Option<(Position, ReadBudget)> {
        let budget = ReadBudget { bytes_max: 4 << 20, frames_max: usize::MAX, payloads: false };
        (self.next < self.end).then_some((self.next, budget))
    }

    /// Applies the read frames. An empty read means that the log has ended.
    pub fn feed(&mut self, frames: &[StoredFrame]) -> Result<(), RecoveryError> {
        let Some(last) = frames.last() else {
            self.next = self.end;
            return Ok(());
        };
        self.next = Position(last.position.0 + 1);
        for frame in frames {
            let position = frame.position;
            for entry in entries(&frame.entries) {
                let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
                self.shard
                    .apply(position, &entry)
                    .map_err(|error| RecoveryError::Entry { position, error })?;
            }
            if position >= self.indexed {
                self.index.frame(position, &frame.runs);
            }
        }
        Ok(())
    }

    /// The latest time in the log. Time does not go back from one owner to the next.
    pub fn latest(&self) -> Timestamp {
        self.shard.latest()
    }

    /// By how much the clock of the last owner was behind its date.
    pub fn behind(&self) -> Duration {
        behind(&self.shard)
    }

    /// Streams and groups that were brought back so far.
    pub fn counts(&self) -> (usize, usize) {
        self.shard.counts()
    }

    /// Begins to serve, no earlier than [`Recovery::latest`].
    pub fn finish(mut self, now: Timestamp, config: DriverConfig) -> Driver {
        assert!(self.next >= self.end, "the whole log has been applied");
        self.shard.open(now, self.epoch);
        Driver::new(config, self.shard, self.index, self.log)
    }
}

/// By how much the clock of the last owner that wrote it down was behind its date.
pub(crate) fn behind(shard: &Shard) -> Duration {
    let note = shard.note(shard.latest(), OWN_NOTES, BEHIND_KEY);
    let micros = note.and_then(|note| note.value.as_slice().try_into().ok()).map(u64::from_le_bytes);
    micros.map(Duration::from_micros).unwrap_or_default()
}

/// A batch is stored whole or not at all, so it must fit in a frame together with its entries, which take
/// fewer than 64 bytes a message.
fn fitted(limits: Limits, frame_bytes_max: usize) -> Limits {
    let max = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let room = frame_bytes_max / 8;
    Limits {
        batch_bytes_max: limits.batch_bytes_max.min(max(frame_bytes_max - 2 * room)),
        message_bytes_max: limits.message_bytes_max.min(max(frame_bytes_max - 2 * room)),
        batch_messages_max: limits.batch_messages_max.min(max(room / 64)),
        ..limits
    }
}
