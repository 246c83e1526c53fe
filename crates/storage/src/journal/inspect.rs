//! Looking at a journal without opening it: all of it, damaged or not, and nothing is changed.
//!
//! Opening a journal reads only the necessary parts and refuses at the first damage. A tool that reports
//! all damage and all readable frames needs the opposite: [`Inspection::scan`] goes over every byte of the
//! log, verifies everything that has a checksum, goes on behind bytes that do not verify, and hands out
//! every frame that does. [`Inspection::claim`] reports what a server would report on opening. Both are
//! made of the same pieces as the journal itself.
//!
//! | module | holds |
//! | --- | --- |
//! | `scan` | the way over the log |
//! | `copy` | a consistent copy of a folder, also of one in use |

mod copy;
mod scan;

use std::io;

use bytes::Bytes;
use forebay_core::types::{Epoch, PartKey, Position, ShardId};

use crate::engine::{Claim, SpaceGauge, Tenure};
use crate::journal::block::{BLOCK_HEADER, JournalId, PAGE, u64_at, u128_at};
use crate::journal::crypt::{KeyUse, Keyring, WrappedKey};
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::format::{self, Format, Layout};
use crate::journal::image::{self, Catalog, Held, Manifest, Parts};
use crate::journal::mark::{self, Slot};
use crate::journal::segment::{self, Head};
use crate::journal::{
    BLOCK_BYTES_MAX, JournalConfig, KeysWanted, OpenError, frame_bytes_max, keys_wanted, load_format,
    load_mark, next_epoch, recovery, shared, unfinished,
};

pub use self::copy::{Copied, CopyError, back_up, restore};
pub use self::scan::{Found, Scanned, ScannedFrame};

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub kind: DamageKind,
    pub file: String,
    pub offset: u64,
    /// How many bytes it is about; 0 where that cannot be told.
    pub len: u64,
    /// Where in the log that is, if it is a piece of the log.
    pub position: Option<Position>,
    /// In words for the operator.
    pub what: String,
}

/// The damaged thing, which decides the consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// The block that was being written at the last stop. No client was told that it was stored; this is
    /// ordinary after a crash.
    TornTail,
    /// Whatever lies there could not be told apart.
    Block,
    /// The entries of a frame are lost, and with them its contents.
    Entries,
    /// The contents of some messages.
    Payload,
    /// Blocks are good, but do not follow each other.
    Chain,
    /// A whole segment, or its end, is not there.
    Missing,
    /// The index at the end of a segment. It can be made anew from the segment.
    Footer,
    /// One of the two copies of a segment's data key.
    Key,
    /// A part of an image of the state, or all of it.
    Image,
    Mark,
    Format,
}

impl DamageKind {
    /// Whether anything is wrong at all.
    pub fn is_harmless(self) -> bool {
        self == DamageKind::TornTail
    }

    pub fn as_str(self) -> &'static str {
        match self {
            DamageKind::TornTail => "torn-tail",
            DamageKind::Block => "block",
            DamageKind::Entries => "entries",
            DamageKind::Payload => "payload",
            DamageKind::Chain => "chain",
            DamageKind::Missing => "missing",
            DamageKind::Footer => "footer",
            DamageKind::Key => "key",
            DamageKind::Image => "image",
            DamageKind::Mark => "mark",
            DamageKind::Format => "format",
        }
    }
}

/// The properties of a folder.
#[derive(Debug, Clone)]
pub struct Facts {
    pub version: u32,
    /// Tells journals apart. The id itself never leaves the server.
    pub fingerprint: String,
    pub shard: ShardId,
    pub segment_bytes: u64,
    pub block_bytes_max: u64,
    /// Segment files and their bytes.
    pub segments: u64,
    pub bytes: u64,
    pub mark: Option<MarkFacts>,
}

#[derive(Debug, Clone, Copy)]
pub struct MarkFacts {
    pub durable_end: Position,
    /// Frames up to here may be gone.
    pub trimmed: Position,
    pub clean_stop: bool,
}

/// An image of the state that is kept.
#[derive(Debug, Clone)]
pub struct ImageFound {
    pub name: String,
    /// The position up to which it covers the log; `None` if its manifest cannot be read.
    pub covered: Option<Position>,
    pub parts: Vec<PartFound>,
}

#[derive(Debug, Clone)]
pub struct PartFound {
    pub key: PartKey,
    pub through: Position,
    pub len: u64,
    pub is_good: bool,
    held: Held,
}

/// The master keys that the files of a folder need; `None` if it is not encrypted. A server may be using the folder.
pub fn keys_used<D: Disk>(disk: &D) -> Result<Option<Vec<KeyUse>>, OpenError> {
    let names = disk.list().map_err(|source| OpenError::io("list the data folder", source))?;
    let format = load_format(disk, &names)?
        .ok_or_else(|| OpenError::io("find a journal there", io::ErrorKind::NotFound.into()))?;
    Ok(format.is_encrypted.then(|| keys_wanted(disk, &format, &names).used()))
}

/// A journal's folder under inspection. No server can open the journal meanwhile.
pub struct Inspection<D: Disk> {
    disk: D,
    names: Vec<String>,
    format: Format,
    mark: Option<Slot>,
    /// The damage of FORMAT and MARK.
    flaws: Vec<Damage>,
    refused: Option<OpenError>,
    wanted: KeysWanted,
    keys: Option<Keyring>,
    _lock: Option<D::Lock>,
}

impl<D: Disk> Inspection<D> {
    /// Takes the folder to look at it. Where FORMAT is lost, what it said is found in the segments.
    pub fn open(disk: D) -> Result<Inspection<D>, OpenError> {
        Inspection::open_with(disk, None)
    }

    /// The same, with the keys of an encrypted folder. Those of a folder that is not encrypted are not used.
    pub fn open_with(disk: D, keys: Option<&Keyring>) -> Result<Inspection<D>, OpenError> {
        let lock = match disk.lock("LOCK") {
            Ok(lock) => Some(lock),
            // A copy of a folder need not have one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(OpenError::InUse),
            Err(error) => return Err(OpenError::io("take the lock of the data folder", error)),
        };
        let names = disk.list().map_err(|source| OpenError::io("list the data folder", source))?;
        unfinished::check(&disk, &names)?;
        let mut flaws = Vec::new();
        let mut refused = None;
        let format = match load_format(&disk, &names) {
            Ok(Some(format)) => format,
            Err(error @ (OpenError::TooNew { .. } | OpenError::UnknownFeatures { .. })) => return Err(error),
            bad => {
                let found = rebuild_format(&disk, &names).ok_or_else(|| match bad {
                    Err(error) => error,
                    _ => OpenError::io("find a journal there", io::ErrorKind::NotFound.into()),
                })?;
                let error = OpenError::refused(
                    "FORMAT",
                    format::NAME,
                    0,
                    "the file is missing or damaged; its contents follow from the segments",
                );
                flaws.push(whole_file(DamageKind::Format, format::NAME, &error));
                refused = Some(error);
                found
            }
        };
        let mark = match load_mark(&disk, &names, format.id) {
            Ok(mark) => Some(mark.now()),
            Err(error) => {
                flaws.push(whole_file(DamageKind::Mark, mark::NAME, &error));
                refused.get_or_insert(error);
                None
            }
        };
        let wanted = keys_wanted(&disk, &format, &names);
        let keys = keys.filter(|_| format.is_encrypted).cloned();
        Ok(Inspection { disk, names, format, mark, flaws, refused, wanted, keys, _lock: lock })
    }

    /// The master keys that segments and images are encrypted with.
    pub fn keys_used(&self) -> Vec<KeyUse> {
        self.wanted.used()
    }

    /// Whether the folder is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.format.is_encrypted
    }

    /// The reason why contents cannot be read, if a key is missing. Checksums can be compared all the same.
    pub fn locked(&self) -> Option<OpenError> {
        self.wanted.check(self.keys.as_ref()).err()
    }

    /// The damage of FORMAT and MARK.
    pub fn flaws(&self) -> &[Damage] {
        &self.flaws
    }

    pub fn facts(&self) -> Facts {
        let sizes = self.segment_numbers().into_iter().filter_map(|number| self.size(&segment::name(number)));
        let (segments, bytes) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        Facts {
            version: format::VERSION,
            fingerprint: fingerprint(self.format.id),
            shard: self.format.shard,
            segment_bytes: self.format.layout.segment_bytes,
            block_bytes_max: self.format.layout.block_bytes_max,
            segments,
            bytes,
            mark: self.mark.map(|mark| MarkFacts {
                durable_end: Position(mark.durable_end),
                trimmed: Position(mark.trimmed),
                clean_stop: mark.clean,
            }),
        }
    }

    /// The claim that a server would get if it opened the journal now, or the reason of its refusal.
    pub fn claim(&self) -> Result<Claim, OpenError> {
        if let Some(refused) = &self.refused {
            return Err(refused.again());
        }
        let mark = self.mark.expect("a folder whose MARK cannot be read is refused");
        let config = JournalConfig::new(0);
        self.wanted.check(self.keys.as_ref())?;
        let keys = self.keys.as_ref();
        let examined = recovery::examine(&self.disk, &self.format, mark, &self.names, keys)?;
        let images = Catalog::load(&self.disk, &self.format, &self.names, mark, examined.end(), keys)?;
        let end = Position(examined.end());
        let mut remarks = examined.remarks.clone();
        remarks.extend(images.remarks);
        Ok(Claim {
            epoch: next_epoch(&self.format, &examined),
            start: Position(self.format.layout.base(mark.first)),
            end,
            parts: images.parts,
            covered: images.catalog.covered(),
            runs: examined.runs,
            indexed: end,
            index_stride: segment::RUN_SPAN,
            trim_unit: self.format.layout.segment_bytes,
            frames_max: config.frames_max,
            frame_bytes_max: frame_bytes_max(&config, &self.format.layout),
            space: SpaceGauge::default(),
            tenure: Tenure::default(),
            elapsed: None,
            remarks,
        })
    }

    /// The images that a server might use, the newest first, every part of them verified, and their damage.
    pub fn images(&self) -> (Vec<ImageFound>, Vec<Damage>) {
        let mut damages = Vec::new();
        let mut images = Vec::new();
        let mut numbers: Vec<u64> = self.names.iter().filter_map(|name| image::number(name)).collect();
        numbers.sort_unstable();
        let mut candidate = numbers.last().copied();
        let mut whole = 0;
        while let Some(number) = candidate.filter(|_| whole < 2) {
            let name = image::name(number);
            let manifest = match Manifest::read(&self.disk, self.format.id, number) {
                Ok(Ok(manifest)) => Ok(manifest),
                Ok(Err(flaw)) => Err(flaw.to_owned()),
                Err(error) => Err(format!("it cannot be read ({error})")),
            };
            match manifest {
                Ok(manifest) => {
                    let image = self.verify_image(&manifest, &mut damages);
                    whole += usize::from(image.parts.iter().all(|part| part.is_good));
                    images.push(image);
                    candidate = Some(manifest.previous).filter(|previous| numbers.contains(previous));
                }
                Err(what) => {
                    damages.push(Damage {
                        kind: DamageKind::Image,
                        file: name.clone(),
                        offset: 0,
                        len: 0,
                        position: None,
                        what,
                    });
                    images.push(ImageFound { name, covered: None, parts: Vec::new() });
                    candidate = numbers.iter().copied().rfind(|&other| other < number);
                }
            }
        }
        (images, damages)
    }

    /// The bytes of a part, if they are as they were written.
    pub fn image_part(&self, part: &PartFound) -> Option<Bytes> {
        self.parts().read(&self.disk, self.format.id, &part.held).ok()?.ok()
    }

    /// The configuration of a new folder that is to take the contents of this one.
    pub fn config_like(&self, new_id: u128) -> JournalConfig {
        let layout = &self.format.layout;
        JournalConfig {
            shard: self.format.shard,
            segment_bytes: layout.segment_bytes,
            block_bytes_max: u32::try_from(layout.block_bytes_max)
                .map_or(BLOCK_BYTES_MAX, |bytes| bytes.min(BLOCK_BYTES_MAX)),
            frame_bytes_max: usize::MAX,
            keys: self.keys.clone(),
            ..JournalConfig::new(new_id)
        }
    }

    /// Without the keys, the bytes as they are on disk.
    fn parts(&self) -> Parts<'_> {
        Parts::new(self.keys.as_ref().filter(|_| self.locked().is_none()))
    }

    fn verify_image(&self, manifest: &Manifest, damages: &mut Vec<Damage>) -> ImageFound {
        let mut reader = self.parts();
        let parts = manifest.parts.iter().map(|held| {
            let flaw = match reader.read(&self.disk, self.format.id, held) {
                Ok(Ok(_)) => None,
                Ok(Err(flaw)) => Some(flaw.to_owned()),
                Err(error) => Some(format!("a part cannot be read ({error})")),
            };
            let is_good = flaw.is_none();
            damages.extend(flaw.map(|what| Damage {
                kind: DamageKind::Image,
                file: image::name(held.file),
                offset: held.offset,
                len: held.len,
                position: None,
                what: format!("{what} (for {})", image::name(manifest.number)),
            }));
            PartFound { key: held.key, through: Position(held.through), len: held.len, is_good, held: *held }
        });
        let parts = parts.collect();
        ImageFound { name: image::name(manifest.number), covered: Some(Position(manifest.covered())), parts }
    }

    /// The segments that are there and belong to the log, in order.
    fn segment_numbers(&self) -> Vec<u64> {
        let first = self.mark.map_or(0, |mark| mark.first);
        let mut numbers: Vec<u64> = self
            .names
            .iter()
            .filter(|name| !shared::is_temporary(name))
            .filter_map(|name| segment::number(name))
            .filter(|&number| number >= first)
            .collect();
        numbers.sort_unstable();
        numbers
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.disk.open(name).and_then(|file| file.size()).ok()
    }

    /// The last epoch that any segment tells of.
    pub fn last_epoch(&self) -> Epoch {
        let heads = self.segment_numbers().into_iter().rev().filter_map(|number| self.head(number).ok());
        heads.map(|head| head.link.epoch).next().unwrap_or_default().max(self.format.epoch_floor)
    }

    /// The header of a segment, or a description of its damage.
    fn head(&self, number: u64) -> Result<Head, String> {
        let page = self.first_page(number).map_err(|error| format!("it cannot be read ({error})"))?;
        Head::decode(&page, self.format.id, self.format.layout.base(number)).map_err(str::to_owned)
    }

    /// The second copy of a segment's data key.
    fn key_copy(&self, number: u64) -> Option<WrappedKey> {
        Head::key_copy(&self.first_page(number).ok()?)
    }

    fn first_page(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut page = vec![0; PAGE as usize];
        let len = self.disk.open(&segment::name(number))?.read_at(&mut page, 0)?;
        page.truncate(len);
        Ok(page)
    }
}

fn whole_file(kind: DamageKind, file: &str, error: &OpenError) -> Damage {
    let what = match error {
        OpenError::Refused { text, .. } => text.clone(),
        other => other.to_string(),
    };
    Damage { kind, file: file.to_owned(), offset: 0, len: 0, position: None, what }
}

/// Sixteen hexadecimal digits that say which journal it is without giving its id away.
pub(crate) fn fingerprint(id: JournalId) -> String {
    let hash = blake3::hash(&id.number.to_le_bytes());
    format!("{:016x}", u64_at(hash.as_bytes(), 0))
}

/// Restores FORMAT from the first segment whose header is good: every block names the journal and its own
/// position, and from the position and the segment's number follows how large segments are.
fn rebuild_format<D: Disk>(disk: &D, names: &[String]) -> Option<Format> {
    names.iter().find_map(|name| {
        let number = segment::number(name).filter(|&number| number > 0)?;
        let mut page = [0; PAGE as usize];
        let len = disk.open(name).ok()?.read_at(&mut page, 0).ok()?;
        let page = page.get(..len).filter(|page| page.len() >= BLOCK_HEADER)?;
        let (id, base) = (JournalId::new(u128_at(page, 16)), u64_at(page, 32));
        let segment_bytes = base / number;
        if segment_bytes == 0 || base % number != 0 || segment_bytes > 1 << 31 {
            return None;
        }
        let room = Layout { segment_bytes, block_bytes_max: PAGE };
        // As large as a block can be there: a reader may allow too much, but not too little.
        let block_bytes_max = room.data_max().checked_sub(PAGE)?;
        let layout = Layout { segment_bytes, block_bytes_max };
        let head = Head::decode(page, id, base).ok()?;
        let is_encrypted = head.key.is_some();
        layout.check().ok()?;
        Some(Format {
            id,
            shard: ShardId(0),
            layout,
            epoch_floor: head.link.epoch,
            is_backup: false,
            is_encrypted,
        })
    })
}
