//! The one place in the sweeps that knows the journal's API: opens it on a simulated disk, reads all of
//! it, and does one piece of its work at a time.

use std::error::Error;
use std::fmt;

use forebay_core::types::{Position, ShardId};
use forebay_storage::engine::{Durable, Frame, Image, ReadBudget, Saved, StorageError, StoredFrame};
use forebay_storage::journal::{Chores, Journal, JournalConfig, OpenError, Opened, Reader, Writer};

use super::witness::Found;
use crate::disk::SimDisk;

pub(crate) const SHARD: ShardId = ShardId(0);

/// Any number would do. The id only has to be one that no frame contains by chance.
const JOURNAL_ID: u128 = 0x5eed_f04e_ba70_0d15_c0de_d15c_7ab1_e5ee;

/// Few frames at a time, so that reading in several pieces is exercised too.
const READ_AT_ONCE: ReadBudget = ReadBudget { bytes_max: 24 << 10, frames_max: 5, payloads: true };

/// A journal that is open on a simulated disk.
pub(crate) struct Rig {
    writer: Writer<SimDisk>,
    chores: Chores<SimDisk>,
    frame_bytes_max: usize,
}

/// Why the journal did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    Open(OpenError),
    Storage(StorageError),
}

impl Trouble {
    /// Whether an operator is told which file to look at, or, for a folder of another release, that.
    pub(crate) fn names_the_place(&self) -> bool {
        match self {
            Trouble::Open(OpenError::TooNew { .. } | OpenError::UnknownFeatures { .. }) => true,
            Trouble::Open(OpenError::Refused { file, .. } | OpenError::WrongKey { file, .. }) => {
                !file.is_empty()
            }
            Trouble::Storage(StorageError::Damaged { file, .. }) => !file.is_empty(),
            Trouble::Open(_) | Trouble::Storage(_) => false,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error: &dyn Error = match self {
            Trouble::Open(error) => error,
            Trouble::Storage(error) => error,
        };
        write!(f, "{error}")?;
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl From<OpenError> for Trouble {
    fn from(error: OpenError) -> Trouble {
        Trouble::Open(error)
    }
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Trouble {
        Trouble::Storage(error)
    }
}

impl Rig {
    /// Opens the journal and reads everything in it, in order and by location.
    pub(crate) fn open(disk: &SimDisk) -> Result<(Rig, Found), Trouble> {
        let config = JournalConfig {
            shard: SHARD,
            frame_bytes_max: 16 << 10,
            keys: disk.keys(),
            ..JournalConfig::small(JOURNAL_ID)
        };
        let Opened { writer, chores, reader, claim } = Journal::open(disk.clone(), &config)?;
        let frames = read_all(&reader, claim.start)?;
        read_singly(&reader, &frames)?;
        let rig = Rig { writer, chores, frame_bytes_max: claim.frame_bytes_max };
        Ok((rig, Found { shard: reader.shard(), claim, frames }))
    }

    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Commits block after block. Returns the positions of the acknowledged frames, also if not all were
    /// acknowledged.
    pub(crate) fn commit(&mut self, mut frames: Vec<Frame>) -> (Vec<Position>, Result<(), Trouble>) {
        let mut positions: Vec<Durable<Position>> = Vec::new();
        let mut committed = Ok(());
        while committed.is_ok() && !frames.is_empty() {
            committed = self.writer.commit(&mut frames, &mut positions).map(drop);
        }
        (positions.into_iter().map(Durable::get).collect(), committed.map_err(Trouble::from))
    }

    pub(crate) fn chores(&mut self) -> Result<(), Trouble> {
        self.chores.tidy()?;
        Ok(self.chores.sync_mark()?)
    }

    pub(crate) fn save(&mut self, image: Image) -> Result<Saved, Trouble> {
        Ok(self.chores.save(image)?)
    }

    pub(crate) fn trim(&mut self, through: Position) -> Result<(), Trouble> {
        Ok(self.chores.trim(through)?)
    }

    pub(crate) fn stop(mut self) -> Result<(), Trouble> {
        Ok(self.chores.stop()?)
    }
}

fn read_all(reader: &Reader<SimDisk>, start: Position) -> Result<Vec<StoredFrame>, Trouble> {
    let mut frames: Vec<StoredFrame> = Vec::new();
    let mut from = start;
    loop {
        let more = reader.read(from, READ_AT_ONCE)?;
        let Some(last) = more.last() else { return Ok(frames) };
        from = Position(last.position.0 + 1);
        frames.extend(more);
    }
}

/// Reads every frame by itself, and is as strict with the answer as the witness is with frames.
fn read_singly(reader: &Reader<SimDisk>, frames: &[StoredFrame]) -> Result<(), Trouble> {
    for stored in frames {
        let one = reader.read(stored.position, ReadBudget { frames_max: 1, ..READ_AT_ONCE })?;
        let [alone] = &one[..] else { panic!("one frame is at {:?}: {}", stored.position, one.len()) };
        assert_eq!(alone.position, stored.position, "a frame is where it was read before");
        assert_eq!((&alone.entries, &alone.payload), (&stored.entries, &stored.payload), "and the same");
    }
    Ok(())
}
