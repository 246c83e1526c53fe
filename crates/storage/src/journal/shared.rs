//! The state that the writer, the chores and the readers of one journal share.
//!
//! Each lock protects one small thing and is held for one short step, with one exception: a thread that makes
//! or takes the next segment holds [`Spare`] until that is done, because no other thread could go on anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use forebay_core::types::ShardId;

use crate::engine::{EngineFigures, StorageError};
use crate::journal::block::{JournalId, PAGE, padded};
use crate::journal::crypt::{DataKey, Keyring};
use crate::journal::disk::{Disk, DiskFile, Stage, os_code};
use crate::journal::filling::Filling;
use crate::journal::format::{Format, Layout};
use crate::journal::mark::Mark;
use crate::journal::segment;
use crate::journal::space::Space;
use crate::journal::{JournalConfig, Stopwatch, frame_bytes_max};

const TEMPORARY: &str = ".tmp";
/// Damaged places that are remembered.
const PLACES_MAX: usize = 10_000;
/// How much is zero-filled with one write in a hurry. The system may keep bytes of one write in one piece of
/// its cache, and a commit into it then searches all of that piece for changes: on ext4, commits of 8 KiB took
/// 7 % longer after filling a mebibyte at a time, and no less time after filling by 4 KiB.
const FILL_BYTES: usize = 64 << 10;

/// A segment file that holds part of the log.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// Offset at which its blocks end; of the active segment, when it was begun.
    pub(crate) end: u64,
    /// Offset of its last frame, 0 without frames.
    pub(crate) last_frame: u64,
    pub(crate) sealed: bool,
    /// Its data key, if it is encrypted. Kept here, so that damage to its header does not cost its contents while the
    /// journal is open.
    pub(crate) key: Option<Arc<DataKey>>,
}

/// The segments that belong to the journal, by number. The last one is active.
pub(crate) type Segments = BTreeMap<u64, Segment>;

/// A segment file that holds nothing yet.
pub(crate) struct EmptySegment<F> {
    pub(crate) file: F,
    /// Commit blocks end at or before this offset.
    pub(crate) data_max: u64,
}

/// The segment after the active one.
pub(crate) struct Spare<F> {
    pub(crate) active: u64,
    /// The active one was made in a hurry, and will soon be used up.
    pub(crate) is_short: bool,
    pub(crate) ready: Option<EmptySegment<F>>,
}

impl<F> Spare<F> {
    pub(crate) fn begun(&mut self, active: u64, is_short: bool) {
        self.active = active;
        self.is_short = is_short;
    }
}

pub(crate) struct Shared<D: Disk> {
    pub(crate) disk: D,
    pub(crate) id: JournalId,
    pub(crate) shard: ShardId,
    pub(crate) layout: Layout,
    pub(crate) frame_bytes_max: usize,
    /// Where the folder is encrypted.
    pub(crate) keys: Option<Keyring>,
    pub(crate) space: Space<D>,
    hurried_bytes: u64,
    durable_end: AtomicU64,
    mark: Mutex<Mark<D::File>>,
    segments: Mutex<Segments>,
    spare: Mutex<Spare<D::File>>,
    pub(crate) stopwatch: Stopwatch,
    /// Counters. Fields that can be computed when they are asked for stay zero.
    counted: Mutex<EngineFigures>,
    /// Places that were found damaged, by file and offset, so that each is reported once.
    damaged: Mutex<BTreeSet<(String, u64)>>,
    poison: OnceLock<Arc<io::Error>>,
    stopped: AtomicBool,
    /// Held for as long as any part of the journal lives.
    _lock: D::Lock,
}

impl<D: Disk> Shared<D> {
    pub(crate) fn new(
        disk: D,
        lock: D::Lock,
        config: &JournalConfig,
        format: &Format,
        mark: Mark<D::File>,
        segments: Segments,
        names: &[String],
    ) -> io::Result<Arc<Shared<D>>> {
        let space = Space::open(&disk, config, &format.layout, names)?;
        Ok(Arc::new(Shared {
            id: format.id,
            shard: format.shard,
            layout: format.layout,
            frame_bytes_max: frame_bytes_max(config, &format.layout),
            keys: config.keys.clone(),
            space,
            hurried_bytes: config.hurried_bytes,
            durable_end: AtomicU64::new(0),
            mark: Mutex::new(mark),
            spare: Mutex::new(Spare { active: 0, is_short: false, ready: None }),
            segments: Mutex::new(segments),
            stopwatch: config.stopwatch.clone(),
            counted: Mutex::default(),
            damaged: Mutex::default(),
            poison: OnceLock::new(),
            stopped: AtomicBool::new(false),
            _lock: lock,
            disk,
        }))
    }

    /// Everything before this position may be read.
    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable_end(&self, end: u64) {
        self.durable_end.store(end, Ordering::Release);
    }

    pub(crate) fn mark(&self) -> MutexGuard<'_, Mark<D::File>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes MARK durable, at least as it was when this was called. A commit need not wait for it.
    pub(crate) fn sync_mark(&self) -> io::Result<()> {
        let file = self.mark().file();
        file.sync_data()
    }

    pub(crate) fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spare(&self) -> MutexGuard<'_, Spare<D::File>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts something, in one short step.
    pub(crate) fn count(&self, add: impl FnOnce(&mut EngineFigures)) {
        add(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn figures(&self) -> EngineFigures {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let segments = self.segments().len() as u64;
        EngineFigures { segments, free_bytes: self.space.last_free(), ..counted }
    }

    /// Takes note of a damaged place, and says whether it was unknown. Beyond [`PLACES_MAX`] none is news.
    pub(crate) fn is_new_place(&self, file: &str, offset: u64) -> bool {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = damaged.len() < PLACES_MAX && damaged.insert((file.to_owned(), offset));
        if is_new {
            self.count(|figures| figures.damaged_places += 1);
        }
        is_new
    }

    /// Whether commits are still taken.
    pub(crate) fn check_open(&self) -> Result<(), StorageError> {
        if let Some(error) = self.poison.get() {
            return Err(StorageError::Poisoned(error.clone()));
        }
        if self.stopped.load(Ordering::Acquire) { Err(StorageError::Stopped) } else { Ok(()) }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Ends the journal's life after a failed write or sync: what the system dropped cannot be synced
    /// again, and a second try would report a success that did not happen.
    pub(crate) fn poison(&self, error: io::Error) -> StorageError {
        let first = self.poison.get_or_init(|| {
            tracing::error!(%error, "the journal failed and takes nothing more");
            Arc::new(error)
        });
        StorageError::Poisoned(first.clone())
    }

    /// Begins to make a segment that will be needed later.
    pub(crate) fn begin_segment(&self) -> io::Result<Filling<D::File>> {
        self.disk.at(Stage::Preparing);
        let len = self.layout.segment_bytes;
        self.space.with_reserve(len, || Filling::begin(&self.disk, len))
    }

    /// Makes it segment `number`, once it is filled.
    pub(crate) fn finish_segment(
        &self,
        filling: Filling<D::File>,
        number: u64,
    ) -> io::Result<EmptySegment<D::File>> {
        self.disk.at(Stage::Preparing);
        let file = filling.finish(&self.disk, &segment::name(number))?;
        Ok(self.empty_segment(file, self.layout.segment_bytes))
    }

    /// Makes the file of segment `number` for a commit that waits for it, with room for a block of `block`
    /// bytes at least.
    ///
    /// It is a short one. Filling a whole segment would take too long, and a commit into space that was
    /// merely allocated takes up to twice as long as one into zeros. By the time the short one is used
    /// up, the chores have made a whole one.
    pub(crate) fn make_short(&self, number: u64, block: u64) -> io::Result<EmptySegment<D::File>> {
        self.make_filled(number, self.short_len(block))
    }

    /// Makes a segment file with `len` bytes of zeros. Takes missing space from the reserve.
    fn make_filled(&self, number: u64, len: u64) -> io::Result<EmptySegment<D::File>> {
        self.disk.at(Stage::Preparing);
        let name = segment::name(number);
        let temporary = format!("{name}{TEMPORARY}");
        let file = self.space.with_reserve(len, || {
            let file = create_anew(&self.disk, &temporary)?;
            let made = self.fill(&file, 0, len).and_then(|()| file.sync_all());
            if made.is_err() {
                self.disk.delete(&temporary)?;
            }
            made.map(|()| file)
        })?;
        self.disk.rename(&temporary, &name)?;
        self.disk.sync_folder()?;
        Ok(self.empty_segment(file, len))
    }

    /// Takes a segment that was made ready before the journal was opened, and holds nothing. Its missing
    /// part is filled.
    pub(crate) fn reuse_segment(&self, number: u64) -> io::Result<EmptySegment<D::File>> {
        let file = self.disk.open(&segment::name(number))?;
        let size = file.size()?;
        let len = self.short_len(0);
        if size < len {
            self.space.with_reserve(len, || self.fill(&file, size, len))?;
            file.sync_all()?;
        }
        Ok(self.empty_segment(file, size.max(len)))
    }

    /// Size of a segment that is made in a hurry and has room for a block of `block` bytes.
    fn short_len(&self, block: u64) -> u64 {
        let len = padded(self.hurried_bytes).max(PAGE + block);
        if len < self.layout.data_max() { len } else { self.layout.segment_bytes }
    }

    fn empty_segment(&self, file: D::File, filled: u64) -> EmptySegment<D::File> {
        let whole = self.layout.data_max();
        let data_max = if self.disk.preallocates() { whole.min(filled) } else { whole };
        EmptySegment { file, data_max }
    }

    /// Fills a file with zeros from `offset` to `end`, where preallocating makes sense.
    fn fill(&self, file: &D::File, mut offset: u64, end: u64) -> io::Result<()> {
        if !self.disk.preallocates() {
            return Ok(());
        }
        // In one piece on the disk, and known to fit before much is written.
        file.allocate(offset, end - offset)?;
        let zeros = vec![0; FILL_BYTES];
        while offset < end {
            let len = zeros.len().min((end - offset) as usize);
            file.write_at(&[IoSlice::new(&zeros[..len])], offset)?;
            offset += len as u64;
        }
        Ok(())
    }
}

/// Whether an error says that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error will pass by itself and says nothing about the contents of the disk: no space, no file
/// descriptor or no memory to be had just now, or a call that was interrupted.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const SCARCE: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    let is_scarce = |code: i32| SCARCE.iter().any(|errno| errno.raw_os_error() == code);
    let kind = matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
    );
    is_full(error) || kind || os_code(error).is_some_and(is_scarce)
}

pub(crate) fn is_temporary(name: &str) -> bool {
    name.ends_with(TEMPORARY)
}

/// A new, empty file, in place of what an interrupted attempt may have left there.
pub(crate) fn create_anew<D: Disk>(disk: &D, name: &str) -> io::Result<D::File> {
    match disk.create(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.delete(name)?;
            disk.create(name)
        }
        other => other,
    }
}

/// Writes a file so that it is there whole or not at all, and durable on return.
pub(crate) fn replace_file<D: Disk>(disk: &D, name: &str, content: &[&[u8]]) -> io::Result<()> {
    let temporary = format!("{name}{TEMPORARY}");
    let file = create_anew(disk, &temporary)?;
    let slices: Vec<_> = content.iter().map(|bytes| IoSlice::new(bytes)).collect();
    let written = file.write_at(&slices, 0).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // The file is of no use, and its space may be needed. A failure to delete it does not matter: the
        // next attempt, or the next start, removes it.
        let _ = disk.delete(&temporary);
        return Err(error);
    }
    disk.rename(&temporary, name)?;
    disk.sync_folder()
}
