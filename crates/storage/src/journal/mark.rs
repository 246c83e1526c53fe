//! MARK: the remembered durable end, which tells a torn tail from corruption.
//!
//! Two slots are written alternately, so that a torn write leaves the other one. A slot is written
//! after a block was synced and before its answers go out. It is not synced each time: what it says is
//! true whenever it is read, because everything below its durable end was synced before it was written.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use crate::journal::block::{JournalId, PAGE, u32_at, u64_at, u128_at};
use crate::journal::disk::DiskFile;

pub(crate) const NAME: &str = "MARK";
const MAGIC: u64 = u64::from_le_bytes(*b"FBYMARK1");
/// One sector: the unit that a disk writes whole or not at all.
const SLOT_BYTES: usize = 512;
const SLOTS: u64 = 2;
const FLAG_CLEAN: u32 = 1;

/// One slot, 512 bytes, little endian:
///
/// ```text
///   0  magic "FBYMARK1"   8    40  sequence                8
///   8  journal id        16    48  first kept segment      8
///  24  counter            8    56  last trimmed frame      8
///  32  durable end        8    64  flags (1: clean stop)   4
///                              68  crc32c                  4
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Grows with every write; the larger one is the newer.
    pub(crate) counter: u64,
    pub(crate) durable_end: u64,
    pub(crate) sequence: u64,
    pub(crate) first: u64,
    /// Frames up to this position may be gone, so an image that covers less is of no use.
    pub(crate) trimmed: u64,
    pub(crate) clean: bool,
}

impl Slot {
    pub(crate) fn encode(&self, id: JournalId) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..24].copy_from_slice(&id.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.counter.to_le_bytes());
        out[32..40].copy_from_slice(&self.durable_end.to_le_bytes());
        out[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        out[48..56].copy_from_slice(&self.first.to_le_bytes());
        out[56..64].copy_from_slice(&self.trimmed.to_le_bytes());
        out[64..68].copy_from_slice(&(if self.clean { FLAG_CLEAN } else { 0 }).to_le_bytes());
        let crc = crc32c::crc32c(&out[..68]);
        out[68..72].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8], id: JournalId) -> Option<Slot> {
        if bytes.len() < 72
            || u64_at(bytes, 0) != MAGIC
            || u128_at(bytes, 8) != id.number
            || crc32c::crc32c(&bytes[..68]) != u32_at(bytes, 68)
        {
            return None;
        }
        Some(Slot {
            counter: u64_at(bytes, 24),
            durable_end: u64_at(bytes, 32),
            sequence: u64_at(bytes, 40),
            first: u64_at(bytes, 48),
            trimmed: u64_at(bytes, 56),
            clean: u32_at(bytes, 64) & FLAG_CLEAN != 0,
        })
    }
}

/// The file and what it says now.
pub(crate) struct Mark<F> {
    file: Arc<F>,
    id: JournalId,
    now: Slot,
}

impl<F: DiskFile> Mark<F> {
    /// Fills a new file with two valid slots and makes its content durable.
    pub(crate) fn create(file: F, id: JournalId) -> io::Result<Mark<F>> {
        let now = Slot { counter: 0, durable_end: 0, sequence: 0, first: 1, trimmed: 0, clean: false };
        let mut mark = Mark { file: Arc::new(file), id, now };
        mark.file.write_at(&[IoSlice::new(&[0; (SLOTS * PAGE) as usize])], 0)?;
        mark.write(|_| ())?;
        mark.write(|_| ())?;
        mark.file.sync_all()?;
        Ok(mark)
    }

    /// Reads both slots; the newer one goes on. `None` if neither is valid.
    pub(crate) fn load(file: F, id: JournalId) -> io::Result<Option<Mark<F>>> {
        let mut newest: Option<Slot> = None;
        let mut durable_end = 0;
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            let len = file.read_at(&mut bytes, slot * PAGE)?;
            if let Some(slot) = Slot::decode(&bytes[..len], id) {
                durable_end = durable_end.max(slot.durable_end);
                if newest.is_none_or(|newest| slot.counter > newest.counter) {
                    newest = Some(slot);
                }
            }
        }
        Ok(newest.map(|now| Mark { file: Arc::new(file), id, now: Slot { durable_end, ..now } }))
    }

    pub(crate) fn now(&self) -> Slot {
        self.now
    }

    /// Writes what `change` makes of the present state into the older slot. Not durable by itself.
    pub(crate) fn write(&mut self, change: impl FnOnce(&mut Slot)) -> io::Result<()> {
        change(&mut self.now);
        self.now.counter += 1;
        let bytes = self.now.encode(self.id);
        self.file.write_at(&[IoSlice::new(&bytes)], self.now.counter % SLOTS * PAGE)
    }

    /// The file, to be synced without holding up writers.
    pub(crate) fn file(&self) -> Arc<F> {
        self.file.clone()
    }
}
