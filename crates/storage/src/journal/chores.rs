//! The work that must not hold up a commit: making the next segment ready, sealing finished ones, saving
//! images, trimming, keeping space in reserve, and stopping cleanly.
//!
//! Each is a method that does one piece of it. In production a second thread calls them; the simulator
//! calls them between commits. None of them is needed for a commit to succeed.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use forebay_core::types::Position;

use crate::engine::{Image, Saved, StorageError};
use crate::journal::block::PAGE;
use crate::journal::disk::{Disk, DiskFile, Stage};
use crate::journal::filling::Filling;
use crate::journal::image::{self, Catalog};
use crate::journal::reader::Reader;
use crate::journal::segment::{self, Footer, Head, RunJoiner, Stop, Walk, Window};
use crate::journal::shared::{Shared, is_passing};

/// How much is read at once where a whole segment is.
const READ_AHEAD: u64 = 1 << 20;

/// Finished segments that need not be sealed while there is much to do. After a crash each of them is read
/// once more, so they are few.
const UNSEALED_MAX: usize = 2;

/// Does the journal's chores.
pub struct Chores<D: Disk> {
    shared: Arc<Shared<D>>,
    reader: Reader<D>,
    catalog: Catalog,
    /// MARK as it was last synced, by its counter.
    synced: u64,
    /// The segment, and the file of images, that was scrubbed last.
    scrubbed: u64,
    scrubbed_image: u64,
    /// Segments that turned out damaged when they were to be sealed.
    damaged: Vec<u64>,
    /// The next segment, until it is ready.
    filling: Option<Filling<D::File>>,
}

/// Whether the next segment will be ready when the active one is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    OnTime,
    Late,
}

/// The result of one step of the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scrubbed {
    /// This segment is as it was when it was sealed.
    Good { segment: u64 },
    /// All that the kept images have in this file is as it was written.
    GoodImage { image: u64 },
    /// There is nothing after the file before; the next step begins again at the front.
    Done,
}

impl<D: Disk> Chores<D> {
    pub(crate) fn new(shared: Arc<Shared<D>>, reader: Reader<D>, catalog: Catalog) -> Chores<D> {
        Chores {
            shared,
            reader,
            catalog,
            synced: 0,
            scrubbed: 0,
            scrubbed_image: 0,
            damaged: Vec::new(),
            filling: None,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<D>> {
        &self.shared
    }

    /// Does all there is to do.
    pub fn tidy(&mut self) -> Result<(), StorageError> {
        self.prepare_next()?;
        self.check_space()?;
        self.seal_all()
    }

    /// Writes the footers of all finished segments that have none.
    pub fn seal_all(&mut self) -> Result<(), StorageError> {
        while self.seal_next()? {}
        Ok(())
    }

    /// Does what there is to do after a segment was begun. The next one is begun to be made ready, which is up to
    /// [`fill_next`](Chores::fill_next) from then on. The newest finished segments are not sealed yet:
    /// where messages are settled as fast as they come they are trimmed before long, and reading all of them
    /// once more, for their sums, would have been for nothing.
    pub fn keep_up(&mut self) -> Result<(), StorageError> {
        self.begin_next()?;
        self.check_space()?;
        while self.filling() != Some(Preparation::Late)
            && self.unsealed() > UNSEALED_MAX
            && self.seal_next()?
        {}
        Ok(())
    }

    /// Finished segments without a footer, other than damaged ones, which never get one.
    fn unsealed(&self) -> usize {
        let segments = self.shared.segments();
        let finished = segments.iter().rev().skip(1);
        finished.filter(|(number, segment)| !segment.sealed && !self.damaged.contains(number)).count()
    }

    /// Makes the next segment ready, if it is not. Says whether it did.
    pub fn prepare_next(&mut self) -> Result<bool, StorageError> {
        self.begin_next()?;
        while self.filling.is_some() {
            if self.fill_next()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins to make the next segment ready, if none is.
    fn begin_next(&mut self) -> Result<(), StorageError> {
        self.shared.check_open()?;
        if self.filling.is_some() || self.shared.spare().ready.is_some() {
            return Ok(());
        }
        let begun = self.shared.begin_segment();
        self.shared.disk.at(Stage::Idle);
        match begun {
            Ok(filling) => self.filling = Some(filling),
            // It is tried again, at the latest by the commit that needs the segment.
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(self.shared.poison(error)),
        }
        Ok(())
    }

    /// How the next segment is coming along. `None` if none is being made.
    pub fn filling(&self) -> Option<Preparation> {
        let filling = self.filling.as_ref()?;
        let (active, is_short) = {
            let spare = self.shared.spare();
            (spare.active, spare.is_short)
        };
        let used = self.shared.durable_end().saturating_sub(self.shared.layout.base(active));
        Some(if is_short || filling.is_late(used) { Preparation::Late } else { Preparation::OnTime })
    }

    /// Fills a piece of the next segment. True if that made it ready.
    pub fn fill_next(&mut self) -> Result<bool, StorageError> {
        let late = self.filling() == Some(Preparation::Late);
        // Once the journal takes nothing more there is nothing to make ready for.
        let Some(mut filling) = self.filling.take() else { return Ok(false) };
        self.shared.check_open()?;
        self.shared.disk.at(Stage::Preparing);
        let filled = match filling.fill(late).and_then(|whole| whole.then(|| filling.sync()).transpose()) {
            Ok(Some(())) => {
                // No other segment is begun while this one gets its name, so that recovery never meets two that
                // are empty.
                let mut spare = self.shared.spare();
                let made = self.shared.finish_segment(filling, spare.active + 1);
                made.map(|made| spare.ready = Some(made)).map(|()| true)
            }
            Ok(None) => {
                self.filling = Some(filling);
                Ok(false)
            }
            Err(error) => filling.give_up(&self.shared.disk).and(Err(error)),
        };
        self.shared.disk.at(Stage::Idle);
        match filled {
            Err(error) if is_passing(&error) => Ok(false),
            other => other.map_err(|error| self.shared.poison(error)),
        }
    }

    /// Writes the footer of the oldest finished segment that has none. Says whether there was one.
    ///
    /// The segment is read and verified from front to back once more, so that the sum in its footer is
    /// never that of damaged data. Damage is reported once, and the segment stays without a footer.
    pub fn seal_next(&mut self) -> Result<bool, StorageError> {
        self.shared.check_open()?;
        let found = {
            let segments = self.shared.segments();
            let active = segments.last_key_value().map(|(&number, _)| number);
            let unsealed = segments.iter().find(|(number, segment)| {
                !segment.sealed && Some(**number) != active && !self.damaged.contains(number)
            });
            unsealed.map(|(&number, segment)| (number, segment.end))
        };
        let Some((number, end)) = found else { return Ok(false) };
        self.shared.disk.at(Stage::Sealing);
        let sealed = self.seal(number, end);
        self.shared.disk.at(Stage::Idle);
        match sealed {
            Ok(()) => {}
            Err(SealError::Damaged(what, offset)) => {
                self.damaged.push(number);
                return Err(StorageError::Damaged { what, file: segment::name(number), offset });
            }
            Err(SealError::Passing) => return Ok(false),
            Err(SealError::Write(error)) => return Err(self.shared.poison(error)),
        }
        if let Some(segment) = self.shared.segments().get_mut(&number) {
            segment.sealed = true;
        }
        tracing::debug!(segment = number, bytes = end, "segment sealed");
        Ok(true)
    }

    /// A segment that cannot be read stays without a footer. Only an error of a write says something about the log's
    /// promises, and ends the journal.
    fn seal(&self, number: u64, end: u64) -> Result<(), SealError> {
        let shared = &self.shared;
        let file = shared.disk.open(&segment::name(number)).map_err(|error| SealError::read(&error, 0))?;
        let mut window = Window::new(&file, end, READ_AHEAD);
        let page = window.get(0, PAGE).map_err(|error| SealError::read(&error, 0))?.unwrap_or(&[]);
        let head = Head::decode(page, shared.id, shared.layout.base(number))
            .map_err(|flaw| SealError::Damaged(flaw.to_owned(), 0))?;
        let mut runs = RunJoiner::default();
        let walk =
            Walk { id: shared.id, layout: &shared.layout, segment: number, until: Some(end), payloads: true };
        let walked = walk.run(&mut window, &head, &mut runs);
        let walked = walked.map_err(|error| SealError::read(&error, window.read_from()))?;
        match walked.stop {
            Stop::Clean => {}
            Stop::Broken(flaw) | Stop::Unchained(flaw) => {
                let offset = walked.last.end - shared.layout.base(number);
                return Err(SealError::Damaged(flaw.to_owned(), offset));
            }
        }
        let footer = Footer {
            last_frame: walked.last_frame,
            hash: hash(&file, end).map_err(|(error, offset)| SealError::read(&error, offset))?,
            runs: runs.within(Footer::runs_max(&shared.layout), &shared.layout),
        };
        let bytes = footer.encode(shared.id, &shared.layout, walked.last);
        let written = file
            .write_at(&[IoSlice::new(&bytes)], end)
            .and_then(|()| file.truncate(end + bytes.len() as u64))
            .and_then(|()| file.sync_all());
        written.map_err(|error| if is_passing(&error) { SealError::Passing } else { SealError::Write(error) })
    }

    /// Rereads one sealed segment and compares it with the sum in its footer, or one file of the images and
    /// compares its parts with their sums.
    pub fn scrub_next(&mut self) -> Result<Scrubbed, StorageError> {
        let next = {
            let segments = self.shared.segments();
            let mut later = segments.range(self.scrubbed + 1..).filter(|(_, segment)| segment.sealed);
            later.next().map(|(&number, segment)| (number, segment.end))
        };
        let Some((number, end)) = next else { return self.scrub_images() };
        self.scrubbed = number;
        let file = segment::name(number);
        match self.matches_footer(number, end) {
            Ok(true) => {
                tracing::debug!(segment = number, "segment verified");
                Ok(Scrubbed::Good { segment: number })
            }
            Ok(false) => {
                let what = "the segment has changed since it was sealed".to_owned();
                Err(StorageError::Damaged { what, file, offset: 0 })
            }
            Err((error, _)) if is_passing(&error) => {
                Err(StorageError::Io { doing: format!("read {file}"), source: Arc::new(error) })
            }
            Err((error, offset)) => Err(StorageError::Damaged { what: unreadable(&error), file, offset }),
        }
    }

    fn scrub_images(&mut self) -> Result<Scrubbed, StorageError> {
        let scrubbed = self.catalog.scrub(&self.shared.disk, self.shared.id, self.scrubbed_image);
        let scrubbed = scrubbed.map_err(|error| {
            let doing = "read an image".to_owned();
            StorageError::Io { doing, source: Arc::new(error) }
        });
        let Some((image, found)) = scrubbed? else {
            (self.scrubbed, self.scrubbed_image) = (0, 0);
            return Ok(Scrubbed::Done);
        };
        self.scrubbed_image = image;
        match found {
            Ok(()) => Ok(Scrubbed::GoodImage { image }),
            Err((what, offset)) => Err(StorageError::Damaged { what, file: image::name(image), offset }),
        }
    }

    /// An error comes with the offset of the read that failed.
    fn matches_footer(&self, number: u64, end: u64) -> Result<bool, (io::Error, u64)> {
        let shared = &self.shared;
        let file = shared.disk.open(&segment::name(number)).map_err(|error| (error, 0))?;
        let size = file.size().map_err(|error| (error, 0))?;
        let mut window = Window::new(&file, size, READ_AHEAD);
        let Some(page) = window.get(0, PAGE).map_err(|error| (error, 0))? else { return Ok(false) };
        let Ok(head) = Head::decode(page, shared.id, shared.layout.base(number)) else { return Ok(false) };
        let walk = Walk {
            id: shared.id,
            layout: &shared.layout,
            segment: number,
            until: Some(end),
            payloads: false,
        };
        let walked = walk.run(&mut window, &head, &mut RunJoiner::default());
        let walked = walked.map_err(|error| (error, window.read_from()))?;
        if walked.stop != Stop::Clean {
            return Ok(false);
        }
        let footer = Footer::read(&mut window, shared.id, &shared.layout, number, walked.last);
        match footer.map_err(|error| (error, window.read_from()))? {
            Some(footer) => Ok(hash(&file, end)? == footer.hash),
            None => Ok(false),
        }
    }

    /// Keeps an image of the shard's state and lets go of all but the one before it.
    pub fn save(&mut self, image: Image) -> Result<Saved, StorageError> {
        self.shared.check_open()?;
        let end = self.shared.durable_end();
        if let Some(part) = image.parts.iter().find(|part| part.through.0 >= end) {
            return Err(StorageError::NoSuchFrame { position: part.through });
        }
        let shared = &self.shared;
        let saved = self.catalog.save(&shared.disk, &shared.space, shared.id, image);
        let bytes = saved.map_err(|error| {
            error.into_storage_error(|error| {
                if is_passing(&error) {
                    StorageError::Io { doing: "save an image".to_owned(), source: Arc::new(error) }
                } else {
                    shared.poison(error)
                }
            })
        })?;
        shared.count(|figures| {
            figures.images += 1;
            figures.image_bytes += bytes;
        });
        Ok(Saved { covered: self.catalog.covered() })
    }

    /// The position up to which the older of the two kept images covers the log.
    pub fn covered(&self) -> Position {
        self.catalog.covered()
    }

    /// Lets go of whole segments all of whose frames lie at or before `through`. As long as there is no
    /// image, the log is all there is, and nothing goes.
    pub fn trim(&mut self, through: Position) -> Result<(), StorageError> {
        self.shared.check_open()?;
        if self.catalog.is_empty() {
            return Ok(());
        }
        let Some((first, trimmed)) = self.trimmable(through) else { return Ok(()) };
        self.shared.disk.at(Stage::Trimming);
        let done = self.trim_to(first, trimmed);
        self.shared.disk.at(Stage::Idle);
        done.map_err(|error| self.shared.poison(error))
    }

    /// The segment that would be the first, and the last frame that would go.
    fn trimmable(&self, through: Position) -> Option<(u64, u64)> {
        let layout = &self.shared.layout;
        let segments = self.shared.segments();
        let (&active, _) = segments.last_key_value()?;
        let mut last = self.shared.mark().now().trimmed;
        let mut first = None;
        for (&number, segment) in segments.range(..active) {
            if segment.last_frame > 0 {
                let frame = layout.base(number) + segment.last_frame;
                if frame > through.0 {
                    break;
                }
                last = frame;
            }
            first = Some(number + 1);
        }
        first.map(|first| (first, last))
    }

    fn trim_to(&mut self, first: u64, trimmed: u64) -> io::Result<()> {
        // Both slots, so that losing one of them later does not bring back the old front.
        for _ in 0..2 {
            self.shared.mark().write(|mark| {
                mark.first = first;
                mark.trimmed = trimmed;
            })?;
        }
        self.shared.sync_mark()?;
        let gone: Vec<u64> = {
            let mut segments = self.shared.segments();
            let kept = segments.split_off(&first);
            std::mem::replace(&mut *segments, kept).into_keys().collect()
        };
        self.reader.close_trimmed(first);
        for number in &gone {
            self.shared.disk.delete(&segment::name(*number))?;
        }
        self.shared.disk.sync_folder()?;
        self.shared.count(|figures| figures.segments_deleted += gone.len() as u64);
        tracing::debug!(segments = gone.len(), first, "segments deleted");
        Ok(())
    }

    /// Looks at what space is free, makes the reserve whole if it can, and sets the gauge.
    pub fn check_space(&mut self) -> Result<(), StorageError> {
        match self.shared.space.check() {
            // It is looked at again soon.
            Err(error) if is_passing(&error) => Ok(()),
            other => other.map_err(|error| self.shared.poison(error)),
        }
    }

    /// Makes MARK durable as it is. Called when nothing has been committed for a moment.
    pub fn sync_mark(&mut self) -> Result<(), StorageError> {
        self.shared.check_open()?;
        let counter = self.shared.mark().now().counter;
        if counter != self.synced {
            self.shared.sync_mark().map_err(|error| self.shared.poison(error))?;
            self.synced = counter;
        }
        Ok(())
    }

    /// How often MARK has been written: as long as this does not change, nothing is committed.
    pub fn mark_counter(&self) -> u64 {
        self.shared.mark().now().counter
    }

    /// Takes no more commits, and writes down that this was a clean stop.
    pub fn stop(&mut self) -> Result<(), StorageError> {
        self.shared.check_open()?;
        self.shared.stop();
        if let Some(filling) = self.filling.take() {
            filling.give_up(&self.shared.disk).map_err(|error| self.shared.poison(error))?;
        }
        let written = self.shared.mark().write(|mark| mark.clean = true);
        written.and_then(|()| self.shared.sync_mark()).map_err(|error| self.shared.poison(error))
    }

    /// Deletes what an interrupted trim or save left behind.
    pub(crate) fn clear(&self, leftovers: &[String]) -> io::Result<()> {
        for name in leftovers {
            match self.shared.disk.delete(name) {
                // A temporary file may have been made anew and renamed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        self.catalog.clean(&self.shared.disk)?;
        self.shared.disk.sync_folder()
    }
}

/// BLAKE3 of the first `end` bytes of a file. An error comes with the offset of the read that failed.
pub(crate) fn hash<F: DiskFile>(file: &F, end: u64) -> Result<[u8; 32], (io::Error, u64)> {
    let mut window = Window::new(file, end, READ_AHEAD);
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < end {
        let len = READ_AHEAD.min(end - at);
        let bytes = window.get(at, len).map_err(|error| (error, at))?;
        hasher.update(bytes.ok_or((io::ErrorKind::UnexpectedEof.into(), at))?);
        at += len;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Why a finished segment got no footer.
enum SealError {
    Damaged(String, u64),
    /// It is tried again.
    Passing,
    Write(io::Error),
}

impl SealError {
    fn read(error: &io::Error, offset: u64) -> SealError {
        if is_passing(error) { SealError::Passing } else { SealError::Damaged(unreadable(error), offset) }
    }
}

/// A lasting error of a read, as a flaw of what lies there.
pub(crate) fn unreadable(error: &io::Error) -> String {
    format!("it cannot be read ({error})")
}
