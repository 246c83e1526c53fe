//! FORMAT: what kind of folder this is. Written once, when the journal is made, and decisive from then
//! on: what it says about sizes wins over the configuration.

use forebay_core::types::{Epoch, ShardId};

use crate::journal::OpenError;
use crate::journal::block::{JournalId, PAGE, u32_at, u64_at, u128_at};

pub(crate) const NAME: &str = "FORMAT";
const MAGIC: u64 = u64::from_le_bytes(*b"FBYFORMT");
pub(crate) const VERSION: u32 = 1;
/// MARK is always there, and a journal whose MARK cannot be read is refused.
const FEATURE_MARK: u32 = 1;
/// The folder is a backup. Only copies are made from it; a server on it would have epochs, and so leases, that the
/// server of the original has too.
const FEATURE_BACKUP: u32 = 2;
/// Every segment and every image is encrypted.
const FEATURE_ENCRYPTED: u32 = 4;
const FEATURES_KNOWN: u32 = FEATURE_MARK | FEATURE_BACKUP | FEATURE_ENCRYPTED;
const BYTES: usize = 64;

/// Sizes that everything else is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u64,
    pub(crate) block_bytes_max: u64,
}

impl Layout {
    /// Space at the end of a segment that is kept for its footer.
    pub(crate) fn footer_room(&self) -> u64 {
        (self.segment_bytes / 32).next_multiple_of(PAGE)
    }

    /// Commit blocks end at or before this offset.
    pub(crate) fn data_max(&self) -> u64 {
        self.segment_bytes - self.footer_room()
    }

    /// Where a segment begins in the journal's address space.
    pub(crate) fn base(&self, segment: u64) -> u64 {
        segment * self.segment_bytes
    }

    pub(crate) fn segment_of(&self, position: u64) -> u64 {
        position / self.segment_bytes
    }

    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        position % self.segment_bytes
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !self.segment_bytes.is_multiple_of(PAGE) || !self.block_bytes_max.is_multiple_of(PAGE) {
            return Err("sizes of segments and blocks are multiples of 4096");
        }
        if self.segment_bytes > 1 << 31 || self.block_bytes_max < 2 * PAGE {
            return Err("segments are at most 2 GiB, and a block may have at least 8 KiB");
        }
        if self.segment_bytes < 4 * PAGE || self.data_max() < PAGE + self.block_bytes_max {
            return Err("a segment has room for its header, one block of the largest size, and its footer");
        }
        Ok(())
    }
}

/// The file, 64 bytes, little endian:
///
/// ```text
///   0  magic "FBYFORMT"     8    36  shard                 4
///   8  version              4    40  segment bytes         8
///  12  zero                 4    48  block bytes, maximum  8
///  16  journal id          16    56  epoch floor           4
///  32  required features    4    60  crc32c                4
/// ```
///
/// Every owner's epoch lies above the floor. It is 0 in a folder that was made new. A folder that was made
/// from another one goes on far above it, because that one may have had owners since, whose leases must not
/// be taken for ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) id: JournalId,
    pub(crate) shard: ShardId,
    pub(crate) layout: Layout,
    pub(crate) epoch_floor: Epoch,
    pub(crate) is_backup: bool,
    pub(crate) is_encrypted: bool,
}

impl Format {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.id.number.to_le_bytes());
        let backup = if self.is_backup { FEATURE_BACKUP } else { 0 };
        let encrypted = if self.is_encrypted { FEATURE_ENCRYPTED } else { 0 };
        let features = FEATURE_MARK | backup | encrypted;
        out[32..36].copy_from_slice(&features.to_le_bytes());
        out[36..40].copy_from_slice(&self.shard.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.layout.segment_bytes.to_le_bytes());
        out[48..56].copy_from_slice(&self.layout.block_bytes_max.to_le_bytes());
        out[56..60].copy_from_slice(&self.epoch_floor.0.to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Format, OpenError> {
        let bad = |text: &str| OpenError::refused("FORMAT", NAME, 0, text);
        if bytes.len() < BYTES {
            return Err(bad("the file is too short"));
        }
        if u64_at(bytes, 0) != MAGIC {
            return Err(bad("this is not a FORMAT file of a journal"));
        }
        // The version comes before the checksum: a newer release may have moved the checksum.
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(OpenError::TooNew { version, known: VERSION });
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(bad("the file does not match its checksum"));
        }
        let unknown = u32_at(bytes, 32) & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(OpenError::UnknownFeatures { features: unknown });
        }
        let layout = Layout { segment_bytes: u64_at(bytes, 40), block_bytes_max: u64_at(bytes, 48) };
        layout.check().map_err(bad)?;
        Ok(Format {
            id: JournalId::new(u128_at(bytes, 16)),
            shard: ShardId(u32_at(bytes, 36)),
            layout,
            epoch_floor: Epoch(u32_at(bytes, 56)),
            is_backup: u32_at(bytes, 32) & FEATURE_BACKUP != 0,
            is_encrypted: u32_at(bytes, 32) & FEATURE_ENCRYPTED != 0,
        })
    }
}
