//! The embedded engine: one file being written at any moment, so that one sync serves everyone.
//!
//! The journal is a folder. FORMAT says what it is, MARK remembers how far it is durable, segment files
//! hold the log, image files hold the state of the shard as it was, RESERVE is space set aside. Opening
//! it decides what the last stop left behind (`recovery`) and starts a new epoch in a new segment.
//!
//! Everything is a plain struct that does its work when it is called: the [`Writer`] commits, the
//! [`Chores`] do what must not hold up a commit, the [`Reader`] reads. Threads only loop around them
//! ([`JournalEngine`]), and the simulator calls them from one thread.

pub mod disk;

mod block;
mod chores;
pub mod crypt;
mod engine;
mod filling;
mod format;
mod image;
pub mod inspect;
mod mark;
mod reader;
pub mod recorded;
mod recovery;
mod segment;
mod shared;
mod space;
mod unfinished;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::types::{Epoch, Position, ShardId, Timestamp};

pub use self::chores::{Chores, Scrubbed};
pub use self::engine::JournalEngine;
pub use self::reader::Reader;
pub use self::writer::Writer;

use self::block::{BLOCK_HEADER, FRAME_HEADER, JournalId, PAGE};
pub use self::crypt::Keyring;
use self::crypt::{KeyId, KeyUse};
use self::disk::{Disk, DiskFile, Stage};
use self::format::{Format, Layout};
use self::image::Catalog;
use self::mark::Mark;
use self::shared::Shared;
pub(crate) use self::shared::is_passing;
use self::unfinished::Maker;
use crate::engine::{Claim, Tenure};

/// How a journal is kept.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// The shard whose log this is. Written down when the folder is new, and decisive from then on.
    pub shard: ShardId,
    /// Size of a segment file. Written down when the folder is new, and decisive from then on.
    pub segment_bytes: u64,
    /// Largest size of a block. Written down when the folder is new, and decisive from then on.
    pub block_bytes_max: u32,
    /// How many frames one block takes.
    pub block_frames_max: usize,
    /// Entries and payload of one frame together; less if blocks are too small for that.
    pub frame_bytes_max: usize,
    /// How many frames may be on their way at once.
    pub frames_max: usize,
    /// How long a segment is that is needed at once, because none was made ready: as much as can be
    /// filled with zeros while someone waits.
    pub hurried_bytes: u64,
    /// Space set aside, so that freeing space never needs space. Four segments at least, whatever this
    /// says: two for settling, two for reclaim.
    pub reserve_bytes: u64,
    /// The journal says that it is full when less than this is free, and that it is no longer full once
    /// twice as much is.
    pub free_bytes_min: u64,
    /// How many bytes the whole folder may take, the reserve included. `None`: as many as the disk has.
    pub folder_bytes_max: Option<u64>,
    /// Segment files that readers keep open.
    pub files_open_max: usize,
    /// Every owner's epoch lies above this one. Written down when the folder is new, and decisive from then
    /// on.
    pub epoch_floor: Epoch,
    /// A random number, which becomes the journal's id when the folder is new.
    pub new_id: u128,
    /// The time, for the headers of segments.
    pub opened_at: Timestamp,
    /// Measures how long syncs take.
    pub stopwatch: Stopwatch,
    /// The keys of an encrypted folder. A new folder is encrypted if there are any.
    pub keys: Option<Keyring>,
}

/// Tells the time for measuring how long something takes. The default tells none: the journal reads no clock.
#[derive(Clone, Default)]
pub struct Stopwatch(Option<Arc<dyn Fn() -> Timestamp + Send + Sync>>);

impl Stopwatch {
    /// By a clock that never goes back.
    pub fn new(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Stopwatch {
        Stopwatch(Some(Arc::new(clock)))
    }

    /// Does something, and says how long it took.
    fn time<T>(&self, work: impl FnOnce() -> T) -> (T, Option<Duration>) {
        let Some(clock) = &self.0 else { return (work(), None) };
        let begun = clock();
        let done = work();
        (done, Some(clock().since(begun)))
    }
}

impl std::fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stopwatch").field(&self.0.is_some()).finish()
    }
}

const SEGMENT_BYTES: u64 = 64 << 20;
const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// Written and synced within a few milliseconds.
const HURRIED_BYTES: u64 = 4 << 20;
const RESERVE_BYTES: u64 = 256 << 20;
const _: () = assert!(RESERVE_BYTES >= space::SEGMENTS_MIN * SEGMENT_BYTES);

impl JournalConfig {
    /// The ordinary settings, with a random number for a journal that is yet to be made.
    pub fn new(new_id: u128) -> JournalConfig {
        JournalConfig {
            shard: ShardId(0),
            segment_bytes: SEGMENT_BYTES,
            block_bytes_max: BLOCK_BYTES_MAX,
            block_frames_max: 1024,
            frame_bytes_max: 8 << 20,
            frames_max: 1024,
            hurried_bytes: HURRIED_BYTES,
            reserve_bytes: RESERVE_BYTES,
            free_bytes_min: 2 * SEGMENT_BYTES,
            folder_bytes_max: None,
            files_open_max: 32,
            epoch_floor: Epoch(0),
            new_id,
            opened_at: Timestamp::ZERO,
            stopwatch: Stopwatch::default(),
            keys: None,
        }
    }

    /// Small segments of 64 KiB and blocks of 16 KiB, for tests and simulations.
    pub fn small(new_id: u128) -> JournalConfig {
        JournalConfig {
            segment_bytes: 64 << 10,
            block_bytes_max: 16 << 10,
            block_frames_max: 64,
            frame_bytes_max: 12 << 10,
            frames_max: 64,
            hurried_bytes: 40 << 10,
            reserve_bytes: 256 << 10,
            free_bytes_min: 128 << 10,
            files_open_max: 4,
            ..JournalConfig::new(new_id)
        }
    }
}

/// An embedded journal; see [`Journal::open`].
#[derive(Debug)]
pub struct Journal;

/// The parts of an opened journal. They may live on different threads.
pub struct Opened<D: Disk> {
    pub writer: Writer<D>,
    pub chores: Chores<D>,
    pub reader: Reader<D>,
    pub claim: Claim,
}

impl Journal {
    /// Opens the journal in this folder, or makes one, and starts a new epoch.
    ///
    /// Nothing is changed before everything has been judged. Whatever is found damaged refuses to open
    /// rather than be repaired in place. Opening may be interrupted anywhere and tried again.
    pub fn open<D: Disk>(disk: D, config: &JournalConfig) -> Result<Opened<D>, OpenError> {
        disk.at(Stage::Recovering);
        let (lock, names) = take(&disk)?;
        unfinished::check(&disk, &names)?;
        Journal::open_taken(disk, lock, &names, config)
    }

    /// Makes a journal in an empty folder, for contents from another one. Nothing opens the folder before
    /// [`Journal::finish`], so that an interrupted salvage is never taken for a whole one.
    pub fn begin<D: Disk>(disk: D, config: &JournalConfig) -> Result<Opened<D>, OpenError> {
        unfinished::begin(&disk, Maker::Salvage)
            .map_err(|source| OpenError::io("mark the folder", source))?;
        let (lock, names) = take(&disk)?;
        Journal::open_taken(disk, lock, &names, config)
    }

    /// Makes a journal in an empty folder that is to become a copy of another log, or goes on with one. Nothing else
    /// opens the folder before [`Journal::finish`].
    pub fn begin_copy<D: Disk>(disk: D, config: &JournalConfig, of: &str) -> Result<Opened<D>, OpenError> {
        let (lock, names) = take(&disk)?;
        let is_ours = unfinished::begin_copy(&disk, &names, of)
            .map_err(|source| OpenError::io("mark the folder", source))?;
        if !is_ours {
            return Err(OpenError::NotEmpty);
        }
        Journal::open_taken(disk, lock, &names, config)
    }

    /// All contents of a folder that was begun are durable.
    pub fn finish<D: Disk>(disk: &D) -> Result<(), OpenError> {
        unfinished::end(disk).map_err(|source| OpenError::io("finish the folder", source))
    }

    fn open_taken<D: Disk>(
        disk: D,
        lock: D::Lock,
        names: &[String],
        config: &JournalConfig,
    ) -> Result<Opened<D>, OpenError> {
        let (format, mark) = match load_format(&disk, names)? {
            Some(format) if format.is_backup => return Err(OpenError::Backup),
            Some(format) => (format, load_mark(&disk, names, format.id)?),
            None => make(&disk, config, names)?,
        };
        keys_wanted(&disk, &format, names).check(config.keys.as_ref())?;
        let keys = config.keys.as_ref();
        let needed = space::Space::<D>::folder_bytes_needed(config, &format.layout);
        if let Some(max) = config.folder_bytes_max.filter(|max| *max < needed) {
            return Err(OpenError::FolderTooSmall { max, needed });
        }
        let slot = mark.now();
        let examined = recovery::examine(&disk, &format, slot, names, keys)?;
        let images = Catalog::load(&disk, &format, names, slot, examined.end(), keys)?;

        let mut remarks: Vec<String> = disk.remark().into_iter().collect();
        remarks.extend(examined.remarks.iter().cloned());
        remarks.extend(images.remarks.iter().cloned());
        recovery::repair(&disk, &examined, &images.unusable)
            .map_err(|source| OpenError::io("cut the torn tail", source))?;
        // First of all, since its space may be what the next segment lacks.
        filling::clear(&disk, names).map_err(|source| OpenError::io("delete leftover files", source))?;

        let epoch = next_epoch(&format, &examined);
        let runs = examined.runs;
        let shared = Shared::new(disk, lock, config, &format, mark, examined.segments, names)
            .map_err(|source| OpenError::io("open the space reserve", source))?;
        let writer = Writer::start(shared.clone(), examined.last, examined.spare, epoch, config)
            .map_err(|source| OpenError::io("start the first segment of the epoch", source))?;
        let reader = Reader::new(shared.clone(), config.files_open_max);
        let chores = Chores::new(shared.clone(), reader.clone(), images.catalog);
        chores.clear(&examined.leftovers).map_err(|source| OpenError::io("delete leftover files", source))?;
        shared.space.check().map_err(|source| OpenError::io("keep space in reserve", source))?;

        let end = Position(shared.durable_end());
        let claim = Claim {
            epoch,
            start: Position(format.layout.base(slot.first)),
            end,
            parts: images.parts,
            covered: chores.covered(),
            runs,
            indexed: end,
            index_stride: segment::RUN_SPAN,
            trim_unit: format.layout.segment_bytes,
            frames_max: config.frames_max,
            frame_bytes_max: shared.frame_bytes_max,
            space: shared.space.gauge.clone(),
            tenure: Tenure::default(),
            elapsed: None,
            remarks,
        };
        shared.disk.at(Stage::Idle);
        tracing::debug!(
            epoch = epoch.0,
            start = claim.start.0,
            end = end.0,
            segments = shared.segments().len(),
            parts = claim.parts.len(),
            remarks = claim.remarks.len(),
            "journal opened"
        );
        Ok(Opened { writer, chores, reader, claim })
    }
}

/// Takes the folder for this process, and lists its files.
fn take<D: Disk>(disk: &D) -> Result<(D::Lock, Vec<String>), OpenError> {
    let lock = disk.lock("LOCK").map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse,
        _ => OpenError::io("take the lock of the data folder", source),
    })?;
    let names = disk.list().map_err(|source| OpenError::io("list the data folder", source))?;
    Ok((lock, names))
}

/// The epoch of the next owner.
fn next_epoch(format: &Format, examined: &recovery::Examined) -> Epoch {
    Epoch(examined.last.epoch.max(format.epoch_floor).0 + 1)
}

/// The largest frame that fits in a block by itself. An eighth is left for runs and checksums.
fn frame_bytes_max(config: &JournalConfig, layout: &Layout) -> usize {
    let body = layout.block_bytes_max as usize - BLOCK_HEADER - FRAME_HEADER;
    config.frame_bytes_max.min(body - body / 8)
}

fn load_format<D: Disk>(disk: &D, names: &[String]) -> Result<Option<Format>, OpenError> {
    if !names.iter().any(|name| name == format::NAME) {
        return Ok(None);
    }
    let unreadable = |error: io::Error| OpenError::unreadable(format::NAME, 0, &error);
    let file = disk.open(format::NAME).map_err(unreadable)?;
    let mut bytes = [0; PAGE as usize];
    let len = file.read_at(&mut bytes, 0).map_err(unreadable)?;
    Format::decode(&bytes[..len]).map(Some)
}

fn load_mark<D: Disk>(disk: &D, names: &[String], id: JournalId) -> Result<Mark<D::File>, OpenError> {
    if !names.iter().any(|name| name == mark::NAME) {
        return Err(OpenError::refused("R6", mark::NAME, 0, "the file is missing"));
    }
    let unreadable = |error: io::Error| OpenError::unreadable(mark::NAME, 0, &error);
    let file = disk.open(mark::NAME).map_err(unreadable)?;
    Mark::load(file, id)
        .map_err(unreadable)?
        .ok_or_else(|| OpenError::refused("R6", mark::NAME, 0, "neither slot is valid"))
}

/// The master keys that the files of a folder need.
struct KeysWanted {
    is_encrypted: bool,
    /// By file.
    files: Vec<(String, KeyId)>,
}

/// Reads the header of each segment and image. One that cannot be read is left to recovery.
fn keys_wanted<D: Disk>(disk: &D, format: &Format, names: &[String]) -> KeysWanted {
    let mut files = Vec::new();
    let key_of = |name: &String| {
        let file = disk.open(name).ok()?;
        let wrapped = if let Some(number) = segment::number(name) {
            let mut page = [0; PAGE as usize];
            let len = file.read_at(&mut page, 0).ok()?;
            let head = segment::Head::decode(&page[..len], format.id, format.layout.base(number)).ok();
            head.map_or_else(|| segment::Head::key_copy(&page[..len]), |head| head.key)
        } else {
            image::number(name)?;
            image::key_of(&file).ok()?.ok()?
        };
        wrapped.map(|wrapped| (name.clone(), wrapped.id()))
    };
    if format.is_encrypted {
        files.extend(names.iter().filter_map(key_of));
    }
    KeysWanted { is_encrypted: format.is_encrypted, files }
}

impl KeysWanted {
    /// Whether the keys are those of the folder.
    fn check(&self, keys: Option<&Keyring>) -> Result<(), OpenError> {
        match (self.is_encrypted, keys) {
            (false, None) => Ok(()),
            (false, Some(keys)) => Err(OpenError::NotEncrypted { given: keys.ids().collect() }),
            (true, None) => {
                Err(OpenError::NoKey { keys: self.used().into_iter().map(|used| used.key).collect() })
            }
            (true, Some(keys)) => match self.files.iter().find(|(_, key)| !keys.has(*key)) {
                None => Ok(()),
                Some((file, key)) => {
                    let given = keys.ids().collect();
                    Err(OpenError::WrongKey { file: file.clone(), key: *key, given })
                }
            },
        }
    }

    /// Each key once, with the number of its files.
    fn used(&self) -> Vec<KeyUse> {
        let mut used: Vec<KeyUse> = Vec::new();
        for (name, key) in &self.files {
            let at = used.iter().position(|other| other.key == *key).unwrap_or_else(|| {
                used.push(KeyUse { key: *key, segments: 0, images: 0 });
                used.len() - 1
            });
            match segment::number(name) {
                Some(_) => used[at].segments += 1,
                None => used[at].images += 1,
            }
        }
        used
    }
}

/// Makes a journal in an empty folder. FORMAT comes last, so that a folder has one only once the rest is
/// there; what an interrupted attempt left behind is made anew.
fn make<D: Disk>(
    disk: &D,
    config: &JournalConfig,
    names: &[String],
) -> Result<(Format, Mark<D::File>), OpenError> {
    if let Some(data) =
        names.iter().find(|name| segment::number(name).is_some() || image::number(name).is_some())
    {
        return Err(OpenError::refused(
            "FORMAT",
            data,
            0,
            "there is data here, but the FORMAT file is missing",
        ));
    }
    let layout =
        Layout { segment_bytes: config.segment_bytes, block_bytes_max: u64::from(config.block_bytes_max) };
    layout.check().map_err(|text| OpenError::Config { text })?;
    let format = Format {
        id: JournalId::new(config.new_id),
        shard: config.shard,
        layout,
        epoch_floor: config.epoch_floor,
        is_backup: false,
        is_encrypted: config.keys.is_some(),
    };
    let made = || {
        let file = shared::create_anew(disk, mark::NAME)?;
        let mark = Mark::create(file, format.id)?;
        disk.sync_folder()?;
        shared::replace_file(disk, format::NAME, &[&format.encode()])?;
        Ok(mark)
    };
    made().map(|mark| (format, mark)).map_err(|source| OpenError::io("make a new journal", source))
}

/// Why a journal was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("the data folder is in use by another process")]
    InUse,
    #[error("the data folder was written by a newer release. version=`{version}` known=`{known}`")]
    TooNew { version: u32, known: u32 },
    #[error("the data folder needs features that this release does not have. features=`{features:#x}`")]
    UnknownFeatures { features: u32 },
    #[error("the journal's settings do not fit together: {text}")]
    Config { text: &'static str },
    #[error(
        "the data folder may take too little for its reserve, two segments and room to publish. max=`{max}` \
         needed=`{needed}`"
    )]
    FolderTooSmall { max: u64, needed: u64 },
    /// The folder was being made from another one, and is not whole.
    #[error(
        "the folder is the unfinished result of an interrupted `{maker}`, and messages are missing from it. \
         {advice}. file=`{}`",
        unfinished::NAME
    )]
    Unfinished { maker: &'static str, advice: &'static str },
    /// The folder is no place for a copy.
    #[error("the target is not empty and not an unfinished copy of this source, and was not changed")]
    NotEmpty,
    /// The folder is a backup, which nothing may change.
    #[error(
        "the folder is a backup, and a server would change it. Make a data folder from it with `forebay restore \
         --from BACKUP --data FOLDER`, and start the server on that folder"
    )]
    Backup,
    #[error(
        "the data folder is encrypted, and no key was given. --encryption-key-file and --encryption-key-command \
         name one. keys=`{}`",
        listed(keys)
    )]
    NoKey { keys: Vec<KeyId> },
    #[error(
        "a file of the data folder is encrypted with a key that was not given. file=`{file}` key=`{key}` given=`{}`",
        listed(given)
    )]
    WrongKey { file: String, key: KeyId, given: Vec<KeyId> },
    #[error(
        "a key was given, but the data folder is not encrypted. Start the server without the key, or write an \
         encrypted copy of the folder with `forebay doctor --data FOLDER --salvage NEWFOLDER` and the key. given=`{}`",
        listed(given)
    )]
    NotEncrypted { given: Vec<KeyId> },
    /// The journal is damaged. Nothing was changed.
    #[error(
        "the journal is damaged and was left as it is: {text}. Restore a backup, or salvage what can be \
         read into a new folder. rule=`{rule}` file=`{file}` offset=`{offset}` sequence=`{}-{}`",
        sequences.0, sequences.1
    )]
    Refused {
        /// The row of the decision table, or the file that the decision is about.
        rule: &'static str,
        file: String,
        offset: u64,
        /// The sequence that was expected there, and the last one that is known to have been durable;
        /// zero where nothing is known.
        sequences: (u64, u64),
        text: String,
    },
    #[error("cannot {doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

fn listed(keys: &[KeyId]) -> String {
    keys.iter().map(KeyId::to_string).collect::<Vec<_>>().join(",")
}

impl OpenError {
    fn refused(rule: &'static str, file: &str, offset: u64, text: &str) -> OpenError {
        OpenError::Refused { rule, file: file.to_owned(), offset, sequences: (0, 0), text: text.to_owned() }
    }

    /// Unreadable is never the same as absent.
    fn unreadable(file: &str, offset: u64, error: &io::Error) -> OpenError {
        OpenError::refused("R1", file, offset, &format!("it cannot be read ({error})"))
    }

    fn io(doing: &'static str, source: io::Error) -> OpenError {
        OpenError::Io { doing, source }
    }

    /// The same refusal once more.
    fn again(&self) -> OpenError {
        match self {
            OpenError::Refused { rule, file, offset, sequences, text } => OpenError::Refused {
                rule,
                file: file.clone(),
                offset: *offset,
                sequences: *sequences,
                text: text.clone(),
            },
            other => OpenError::Refused {
                rule: "R1",
                file: String::new(),
                offset: 0,
                sequences: (0, 0),
                text: other.to_string(),
            },
        }
    }
}
