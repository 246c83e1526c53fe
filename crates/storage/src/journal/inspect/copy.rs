//! A consistent copy of a journal's folder, also while a server writes to it.
//!
//! The server need not stop writing. The copy is consistent because of the order of its own steps, and
//! because of the order in which the journal writes:
//!
//! 1. Segments, from the front. Bytes before the durable end in MARK never change again. A segment that is
//!    gone when its turn comes was trimmed, and MARK said so before.
//! 2. MARK is read (*front*). All segments from its first one on have been copied by now; segments that are
//!    trimmed from here on stay in the copy all the same.
//! 3. Images. They are at least as new as the front, so the copied log reaches back as far as they need.
//! 4. MARK is read again (*end*), and the log is copied up to there, at least. An image is saved only once
//!    the log that it covers is durable, so the copied log also reaches as far as the images do.
//! 5. MARK is written with the first segment of the front and the durable end of the end; FORMAT comes last.
//!
//! Nothing opens the copy before all of that is durable, because UNFINISHED is in it until then.
//!
//! Every publish that was answered before the copy began is in it, because MARK is written before the answer.
//!
//! If no server uses the folder, none may start on it: the copy holds the lock. MARK may then lag behind
//! after a loss of power, so the last segment is copied whole, with its torn tail. If a server uses the
//! folder, bytes beyond MARK may change during the copy; as many of them are kept as are whole blocks.

use std::collections::BTreeMap;
use std::io;
use std::io::IoSlice;

use forebay_core::types::{Epoch, Position};

use super::fingerprint;
use crate::journal::block::PAGE;
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::format::{self, Format};
use crate::journal::mark::{self, Mark, Slot};
use crate::journal::segment::{self, Head, RunJoiner, Walk, Window, is_zero};
use crate::journal::unfinished::Maker;
use crate::journal::{OpenError, image, load_format, load_mark, shared, unfinished};

/// How much is copied at once.
const CHUNK: usize = 1 << 20;
const READ_AHEAD: u64 = 1 << 20;
/// How often a copy is begun anew because the front of the log went faster than the copy came along.
const ATTEMPTS_MAX: usize = 10;
/// How often one look at a file that changes is repeated.
const LOOKS_MAX: usize = 100;

/// The extent of a finished copy.
#[derive(Debug, Clone)]
pub struct Copied {
    pub bytes: u64,
    pub segments: u64,
    pub images: u64,
    /// Everything before this position is in the copy.
    pub end: Position,
    pub fingerprint: String,
    /// Whether a server used the folder meanwhile.
    pub online: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    #[error("the folder to copy to is not empty, and nothing in it was touched")]
    NotEmpty,
    #[error("there is no journal to copy")]
    NoJournal,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the log was trimmed faster than it could be copied. Try again when less is going on")]
    TooBusy,
    #[error("cannot {doing}")]
    Io {
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl CopyError {
    fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> CopyError {
        let doing = doing.into();
        move |source| CopyError::Io { doing, source }
    }
}

/// Copies a folder that may be in use. `passed` is told how many bytes have been written.
pub fn back_up<S: Disk, T: Disk>(from: &S, to: &T, passed: &mut dyn FnMut(u64)) -> Result<Copied, CopyError> {
    let lock = match from.lock("LOCK") {
        Ok(lock) => Some(lock),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => return Err(CopyError::io("take the lock of the data folder")(error)),
    };
    let names = from.list().map_err(CopyError::io("list the data folder"))?;
    let online = lock.is_none() && names.iter().any(|name| name == "LOCK");
    unfinished::check(from, &names)?;
    let format = load_format(from, &names)?.ok_or(CopyError::NoJournal)?;
    begin(to, Maker::Backup)?;
    let mut copy = Copy { from, to, format, online, segments: BTreeMap::new(), passed };
    for _ in 0..ATTEMPTS_MAX {
        if let Some(copied) = copy.run()? {
            return Ok(copied);
        }
    }
    Err(CopyError::TooBusy)
}

/// Makes a new folder from a copy that no server uses. A server that opens it gets an epoch that is more than
/// `jump` above all epochs in the copy: since the copy was made there may have been owners that it does not
/// know of, and their leases are not ours.
pub fn restore<S: Disk, T: Disk>(
    from: &S,
    to: &T,
    jump: u32,
    passed: &mut dyn FnMut(u64),
) -> Result<Copied, CopyError> {
    let _lock = match from.lock("LOCK") {
        Ok(lock) => Some(lock),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(OpenError::InUse.into()),
        Err(error) => return Err(CopyError::io("take the lock of the backup")(error)),
    };
    let names = from.list().map_err(CopyError::io("list the backup"))?;
    unfinished::check(from, &names)?;
    let mut format = load_format(from, &names)?.ok_or(CopyError::NoJournal)?;
    let mark = load_mark(from, &names, format.id)?.now();
    begin(to, Maker::Restore)?;
    let mut copy = Copy { from, to, format, online: false, segments: BTreeMap::new(), passed };
    let mut epoch = format.epoch_floor;
    let numbers = names.iter().filter_map(|name| segment::number(name));
    for number in numbers.filter(|&number| number >= mark.first) {
        copy.copy_segment(number, None)?;
        epoch = epoch.max(copy.epoch_of(number));
    }
    let images = copy.copy_images()?;
    format.epoch_floor = Epoch(epoch.0.saturating_add(jump).min(u32::MAX >> 1).max(epoch.0));
    format.is_backup = false;
    copy.finish(&format, mark)?;
    copy.copied(images, Position(mark.durable_end))
}

/// Takes an empty folder for the copy.
fn begin<T: Disk>(to: &T, maker: Maker) -> Result<(), CopyError> {
    let names = to.list().map_err(CopyError::io("list the folder to copy to"))?;
    if !names.is_empty() {
        return Err(CopyError::NotEmpty);
    }
    unfinished::begin(to, maker).map_err(CopyError::io("mark the folder to copy to"))
}

struct Copy<'a, S: Disk, T: Disk> {
    from: &'a S,
    to: &'a T,
    format: Format,
    online: bool,
    /// The part of each segment that has been copied and will not change.
    segments: BTreeMap<u64, Kept>,
    passed: &'a mut dyn FnMut(u64),
}

#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    bytes: u64,
    /// Nothing more will be written to it.
    finished: bool,
}

impl<S: Disk, T: Disk> Copy<'_, S, T> {
    /// One attempt. Nothing if a segment was trimmed before it could be copied.
    fn run(&mut self) -> Result<Option<Copied>, CopyError> {
        let bulk = self.mark()?;
        // Whatever is missing here was trimmed meanwhile, and the next look at MARK will say so.
        self.copy_log(bulk.first, bulk)?;
        let front = self.mark()?;
        if !self.copy_log(front.first, front)? {
            return Ok(None);
        }
        let images = self.copy_images()?;
        let last = self.mark()?;
        if !self.copy_log(front.first, last)? {
            return Ok(None);
        }
        let Some((end, sequence)) = self.copy_tail(last)? else { return Ok(None) };
        let gone: Vec<u64> = self.segments.range(..front.first).map(|(&number, _)| number).collect();
        for number in gone {
            self.segments.remove(&number);
            let name = segment::name(number);
            self.to.delete(&name).map_err(CopyError::io(format!("delete {name}")))?;
        }
        // All of it is verified, and about to be durable here.
        let (first, trimmed) = (front.first, front.trimmed);
        let mark = Slot { first, trimmed, durable_end: end, sequence, ..last };
        let format = Format { is_backup: true, ..self.format };
        self.finish(&format, mark)?;
        self.copied(images, Position(end)).map(Some)
    }

    fn copied(&self, images: u64, end: Position) -> Result<Copied, CopyError> {
        let mut bytes = 0;
        for name in self.to.list().map_err(CopyError::io("list the copy"))? {
            bytes +=
                self.to.open(&name).and_then(|file| file.size()).map_err(CopyError::io("read the copy"))?;
        }
        Ok(Copied {
            bytes,
            segments: self.segments.len() as u64,
            images,
            end,
            fingerprint: fingerprint(self.format.id),
            online: self.online,
        })
    }

    /// The present content of MARK. A slot that is being written may be read half, and then the other one
    /// is good; between the two reads each may be written in turn.
    fn mark(&self) -> Result<Slot, CopyError> {
        let names = [mark::NAME.to_owned()];
        for _ in 0..LOOKS_MAX {
            match load_mark(self.from, &names, self.format.id) {
                Ok(mark) => return Ok(mark.now()),
                Err(error) if !self.online => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(load_mark(self.from, &names, self.format.id)?.now())
    }

    /// Copies the log from segment `first` up to the durable end of `mark`. False if a segment is gone.
    fn copy_log(&mut self, first: u64, mark: Slot) -> Result<bool, CopyError> {
        let layout = self.format.layout;
        let active = layout.segment_of(mark.durable_end);
        let mut whole = true;
        for number in first..=active {
            if self.segments.get(&number).is_some_and(|kept| kept.finished) {
                continue;
            }
            let end = (number == active).then(|| layout.offset_of(mark.durable_end));
            whole &= mark.durable_end == 0 || self.copy_segment(number, end)?;
        }
        Ok(whole)
    }

    /// Copies the part of a segment that is not copied yet: all of it, or up to `end`. False if it is gone.
    fn copy_segment(&mut self, number: u64, end: Option<u64>) -> Result<bool, CopyError> {
        let name = segment::name(number);
        let file = match self.from.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.online => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::refused("R7", &name, 0, "the segment is missing").into());
            }
            Err(error) => return Err(CopyError::io(format!("read {name}"))(error)),
        };
        let kept = self.segments.get(&number).copied().unwrap_or_default();
        let size = file.size().map_err(CopyError::io(format!("read {name}")))?;
        let to = end.unwrap_or(size).min(size);
        let target = match kept.bytes {
            0 => shared::create_anew(self.to, &name),
            _ => self.to.open(&name),
        };
        let target = target.map_err(CopyError::io(format!("make {name}")))?;
        self.copy_range(&file, &target, &name, kept.bytes..to.max(kept.bytes))?;
        self.segments.insert(number, Kept { bytes: to.max(kept.bytes), finished: end.is_none() });
        Ok(true)
    }

    fn copy_range(
        &mut self,
        file: &S::File,
        target: &T::File,
        name: &str,
        range: std::ops::Range<u64>,
    ) -> Result<(), CopyError> {
        let mut buffer = vec![0; CHUNK];
        let mut at = range.start;
        while at < range.end {
            let len = CHUNK.min((range.end - at) as usize);
            let read = file.read_at(&mut buffer[..len], at).map_err(CopyError::io(format!("read {name}")))?;
            // It may have been cut behind its last block since its size was asked for.
            if read == 0 {
                break;
            }
            let bytes = &buffer[..read];
            if !is_zero(bytes) {
                target
                    .write_at(&[IoSlice::new(bytes)], at)
                    .map_err(CopyError::io(format!("write {name}")))?;
            }
            at += read as u64;
            (self.passed)(read as u64);
        }
        // Zeros at the end were not written.
        target.truncate(at).map_err(CopyError::io(format!("write {name}")))
    }

    /// Copies what comes after the durable end in the last segment. Says where the log in the copy ends then,
    /// and with which block.
    fn copy_tail(&mut self, mark: Slot) -> Result<Option<(u64, u64)>, CopyError> {
        if mark.durable_end == 0 {
            return Ok(Some((0, 0)));
        }
        let layout = self.format.layout;
        let number = layout.segment_of(mark.durable_end);
        if !self.copy_segment(number, None)? {
            return Ok(None);
        }
        let name = segment::name(number);
        let io = |source| CopyError::Io { doing: format!("read {name}"), source };
        let file = self.to.open(&name).map_err(io)?;
        let mut page = [0; PAGE as usize];
        let len = file.read_at(&mut page, 0).map_err(io)?;
        let head = match Head::decode(&page[..len], self.format.id, layout.base(number)) {
            Ok(head) => head,
            Err(flaw) => return Err(OpenError::refused("R2", &name, 0, flaw).into()),
        };
        let walk = Walk { id: self.format.id, layout: &layout, segment: number, until: None, payloads: true };
        let mut window = Window::new(&file, file.size().map_err(io)?, READ_AHEAD);
        let walked = walk.run(&mut window, &head, &mut RunJoiner::default()).map_err(io)?;
        if walked.last.end < mark.durable_end {
            let text = "a block that was durable is damaged";
            return Err(OpenError::refused("R2", &name, walked.last.end - layout.base(number), text).into());
        }
        if self.online {
            file.truncate(walked.last.end - layout.base(number)).map_err(io)?;
        } else {
            self.copy_spare(number + 1)?;
        }
        Ok(Some((walked.last.end, walked.last.sequence)))
    }

    /// A segment after the last one holds nothing, or what a crash left of its header: recovery wants to
    /// see that.
    fn copy_spare(&mut self, number: u64) -> Result<(), CopyError> {
        let Ok(file) = self.from.open(&segment::name(number)) else { return Ok(()) };
        let size = file.size().map_err(CopyError::io("read the last segment"))?;
        let blank = Window::new(&file, size, READ_AHEAD).last_nonzero(0);
        if blank.map_err(CopyError::io("read the last segment"))?.is_some() {
            self.copy_segment(number, None)?;
        }
        Ok(())
    }

    /// Copies all images as they were at one moment: opened between two looks at the folder that agree, none
    /// can be gone before it is copied.
    fn copy_images(&mut self) -> Result<u64, CopyError> {
        let list = |disk: &S| -> Result<Vec<String>, CopyError> {
            let names = disk.list().map_err(CopyError::io("list the data folder"))?;
            Ok(names.into_iter().filter(|name| image::number(name).is_some()).collect())
        };
        let stale = self.to.list().map_err(CopyError::io("list the folder to copy to"))?;
        for name in stale.iter().filter(|name| image::number(name).is_some()) {
            self.to.delete(name).map_err(CopyError::io(format!("delete {name}")))?;
        }
        for _ in 0..LOOKS_MAX {
            let names = list(self.from)?;
            let files: io::Result<Vec<S::File>> = names.iter().map(|name| self.from.open(name)).collect();
            let files = match files {
                Ok(files) => files,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(CopyError::io("open an image")(error)),
            };
            if list(self.from)? != names {
                continue;
            }
            for (name, file) in names.iter().zip(&files) {
                let size = file.size().map_err(CopyError::io(format!("read {name}")))?;
                let target =
                    shared::create_anew(self.to, name).map_err(CopyError::io(format!("make {name}")))?;
                self.copy_range(file, &target, name, 0..size)?;
                target.sync_all().map_err(CopyError::io(format!("sync {name}")))?;
            }
            return Ok(names.len() as u64);
        }
        Err(CopyError::TooBusy)
    }

    /// Makes all of it durable, with MARK and then FORMAT, without which it is no journal.
    fn finish(&mut self, format: &Format, mark: Slot) -> Result<(), CopyError> {
        for &number in self.segments.keys() {
            let name = segment::name(number);
            let synced = self.to.open(&name).and_then(|file| file.sync_all());
            synced.map_err(CopyError::io(format!("sync {name}")))?;
        }
        let written = || {
            let mut copy = Mark::create(shared::create_anew(self.to, mark::NAME)?, format.id)?;
            // Both slots, so that losing one of them later loses nothing.
            for _ in 0..2 {
                copy.write(|slot| *slot = Slot { counter: slot.counter, ..mark })?;
            }
            copy.file().sync_all()?;
            self.to.sync_folder()?;
            shared::replace_file(self.to, format::NAME, &[&format.encode()])?;
            unfinished::end(self.to)
        };
        written().map_err(CopyError::io("finish the copy"))
    }

    fn epoch_of(&self, number: u64) -> Epoch {
        let mut page = [0; PAGE as usize];
        let read = self.to.open(&segment::name(number)).and_then(|file| file.read_at(&mut page, 0));
        let base = self.format.layout.base(number);
        let head = read.ok().and_then(|len| Head::decode(&page[..len], self.format.id, base).ok());
        head.map(|head| head.link.epoch).unwrap_or_default()
    }
}
