//! The server of a history: the real driver and the real journal, with the simulator in place of the
//! threads between them. Nothing happens by itself: frames wait until the history says that the disk has
//! time for them, and so do reads, images and trims.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::driver::{Driver, DriverConfig, Read};
use forebay_broker::recovery::{Recovery, RecoveryError};
use forebay_core::entry::{CopiedMessage, Entry, MessageMeta, entries};
use forebay_core::types::{Limits, Ordinal, Position, Seq, StreamId, Timestamp};
use forebay_storage::engine::{Frame, Image, ReadBudget, Readout, SpaceGauge, StorageError};
use forebay_storage::journal::{Chores, Journal, JournalConfig, OpenError, Opened, Reader, Writer};

use crate::disk::SimDisk;
use crate::tale::tell;

pub(crate) struct Server {
    pub(crate) driver: Driver,
    disk: SimDisk,
    writer: Writer<SimDisk>,
    chores: Chores<SimDisk>,
    reader: Reader<SimDisk>,
    pub(crate) space: SpaceGauge,
    /// The gauge as the driver was last told of it.
    told: (bool, u64),
    /// What the frames so far publish.
    pub(crate) published: Vec<(StreamId, Seq, MessageMeta, Timestamp)>,
    /// Appended, and waiting for the disk.
    frames: Vec<Frame>,
    reads: VecDeque<Read>,
    image: Option<Image>,
    trim: Option<Position>,
    pub(crate) remarks: Vec<String>,
    /// Receipts, reads, images and trims that are done: each is followed by a turn.
    pub(crate) done: u64,
    /// Reads that are tried again, and places that could not be read.
    pub(crate) tried_again: u64,
    pub(crate) unreadable: u64,
    /// Commits that found no descriptor for the next segment, and wait.
    pub(crate) waited: u64,
    /// Deliveries whose contents had to be read back.
    pub(crate) read_back: u64,
    /// Messages that were read back from a copy.
    pub(crate) read_from_copy: u64,
    /// The time at which it began to serve: no earlier than anything that is in its log.
    pub(crate) started: Timestamp,
}

/// A message as it lies in the log.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) position: Position,
    pub(crate) copied: bool,
    pub(crate) message: CopiedMessage,
    pub(crate) content: Bytes,
}

/// Why the server is no more: the disk stopped answering, a write failed, or something that was read
/// makes no sense.
#[derive(Debug)]
pub(crate) struct Down(pub(crate) String);

impl From<StorageError> for Down {
    fn from(error: StorageError) -> Down {
        Down(format!("{error:?}"))
    }
}

impl From<RecoveryError> for Down {
    fn from(error: RecoveryError) -> Down {
        Down(format!("{error:?}"))
    }
}

impl From<OpenError> for Down {
    fn from(error: OpenError) -> Down {
        Down(format!("{error:?}"))
    }
}

/// So small that a history of some hundred steps goes through several of them.
const SEGMENT_BYTES: u64 = 32 << 10;

/// How often a stop tries to write the frames that are left.
const STOP_ATTEMPTS: u32 = 1_000;

pub(crate) fn driver_config() -> DriverConfig {
    DriverConfig {
        // Small, so that deliveries have to be read back, images are frequent and take several turns.
        window_bytes_max: 6 << 10,
        image_log_bytes: 40 << 10,
        image_frames: 16,
        unwritten_bytes_max: 6 << 10,
        image_slice_bytes: 256,
        read_bytes_max: 8 << 10,
        // One segment at a time, as soon as one is dead, in several slices.
        reclaim_dead_bytes_min: SEGMENT_BYTES,
        reclaim_stretch_bytes: SEGMENT_BYTES,
        reclaim_slice_bytes: 1 << 10,
        reclaim_interval: Duration::from_millis(20),
        ..DriverConfig::default()
    }
}

/// So few bytes for positions that are read past that a stuck key fills them.
fn limits() -> Limits {
    Limits { key_scan_bytes_max: 1_600, ..Limits::DEFAULT }
}

fn journal_config(new_id: u128, now: Timestamp) -> JournalConfig {
    JournalConfig {
        opened_at: now,
        segment_bytes: SEGMENT_BYTES,
        block_bytes_max: 12 << 10,
        hurried_bytes: 20 << 10,
        reserve_bytes: 512 << 10,
        ..JournalConfig::small(new_id)
    }
}

impl Server {
    pub(crate) fn open(disk: &SimDisk, new_id: u128, now: Timestamp) -> Result<Server, Down> {
        let config = JournalConfig { keys: disk.keys(), ..journal_config(new_id, now) };
        Server::open_with(disk, &config, driver_config(), now)
    }

    fn open_with(
        disk: &SimDisk,
        config: &JournalConfig,
        driver_config: DriverConfig,
        now: Timestamp,
    ) -> Result<Server, Down> {
        let Opened { writer, chores, reader, mut claim } = Journal::open(disk.clone(), config)?;
        tell(|| {
            let parts: Vec<_> = claim.parts.iter().map(|part| (part.key, part.through.0)).collect();
            format!("  claim from {} to {}: {parts:?}, {:?}", claim.start.0, claim.end.0, claim.remarks)
        });
        let mut recovery = Recovery::begin(&mut claim, limits())?;
        while let Some((from, budget)) = recovery.next_read() {
            let frames = reader.read(from, budget)?;
            tell(|| {
                let found: Vec<_> = frames.iter().map(|frame| (frame.position.0, &frame.runs)).collect();
                format!("  recover from {}: {found:?}", from.0)
            });
            recovery.feed(&frames)?;
        }
        let started = now.max(recovery.latest());
        let driver = recovery.finish(started, driver_config);
        Ok(Server {
            disk: disk.clone(),
            driver,
            writer,
            chores,
            reader,
            space: claim.space,
            told: (false, 0),
            published: Vec::new(),
            frames: Vec::new(),
            reads: VecDeque::new(),
            image: None,
            trim: None,
            remarks: claim.remarks,
            done: 0,
            tried_again: 0,
            unreadable: 0,
            waited: 0,
            read_back: 0,
            read_from_copy: 0,
            started,
        })
    }

    /// Ends the turn and moves its disk operations to the list where they wait.
    pub(crate) fn finish_turn(&mut self, now: Timestamp) {
        self.told = (self.space.is_full(), self.space.left());
        self.driver.set_storage_full(self.told.0);
        self.driver.set_space_left(self.told.1);
        self.driver.finish_turn(now);
        self.driver.shard().check();
        self.gather();
    }

    fn gather(&mut self) {
        let outbox = self.driver.outbox();
        for frame in &outbox.frames {
            for entry in entries(&frame.entries) {
                if let Ok(Entry::Published { stream, first, at, messages, .. }) = entry {
                    let metas = messages.iter().zip(0..);
                    self.published.extend(metas.map(|(meta, n)| (stream, first.plus(n), meta, at)));
                }
            }
        }
        self.frames.append(&mut outbox.frames);
        self.reads.extend(outbox.reads.drain(..));
        self.image = outbox.image.take().or(self.image.take());
        self.trim = outbox.trim.take().or(self.trim.take());
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    pub(crate) fn has_image(&self) -> bool {
        self.image.is_some()
    }

    pub(crate) fn has_trim(&self) -> bool {
        self.trim.is_some()
    }

    /// Whether a read is under way that is not reclaim's own, which has the number 0.
    pub(crate) fn has_reads_for_groups(&self) -> bool {
        self.reads.iter().any(|read| read.id != 0)
    }

    /// Whether there is more or less space than the driver was told in its last turn.
    pub(crate) fn has_news_of_space(&self) -> bool {
        self.told != (self.space.is_full(), self.space.left())
    }

    pub(crate) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// The disk has time for one block, and finds only the oldest frame: the others have not reached the journal's
    /// thread yet.
    pub(crate) fn commit_one(&mut self) -> Result<(), Down> {
        self.commit_some(1)
    }

    /// The disk has time for one block.
    pub(crate) fn commit(&mut self) -> Result<(), Down> {
        self.commit_some(usize::MAX)
    }

    fn commit_some(&mut self, most: usize) -> Result<(), Down> {
        if self.frames.is_empty() {
            return Ok(());
        }
        let mut others = self.frames.split_off(most.min(self.frames.len()));
        let mut durable = Vec::new();
        let done = self.writer.commit(&mut self.frames, &mut durable);
        // Frames that were not written stay before the others.
        self.frames.append(&mut others);
        match done {
            // As in the product: nothing was written, and the frames wait.
            Err(error) if error.is_passing() => self.waited += 1,
            done => drop(done?),
        }
        for position in durable {
            self.driver.on_durable(position);
            self.done += 1;
        }
        self.gather();
        Ok(())
    }

    pub(crate) fn tidy(&mut self) -> Result<(), Down> {
        // As in the product: what can wait waits for a quiet moment.
        let done = if self.writer.take_rotated() { self.chores.keep_up() } else { self.chores.tidy() };
        Ok(done?)
    }

    pub(crate) fn sync_mark(&mut self) -> Result<(), Down> {
        Ok(self.chores.sync_mark()?)
    }

    pub(crate) fn check_space(&mut self) -> Result<(), Down> {
        Ok(self.chores.check_space()?)
    }

    pub(crate) fn read(&mut self) -> Result<(), Down> {
        if let Some(read) = self.reads.pop_front() {
            self.disk.serve_reads(true);
            let read_around = self.reader.read_around(read.from, read.budget);
            self.disk.serve_reads(false);
            let copies = self.driver.copies_read();
            // As the shell does.
            match read_around {
                Err(error) if error.is_passing() => {
                    tell(|| format!("  read {} from {} fails for now: {error}", read.id, read.from.0));
                    self.tried_again += 1;
                    self.reads.push_back(read);
                    return Ok(());
                }
                Err(error @ (StorageError::Damaged { .. } | StorageError::Io { .. }))
                    if self.is_spoiled() =>
                {
                    tell(|| format!("  read {} from {} fails: {error}", read.id, read.from.0));
                    self.unreadable += 1;
                    self.driver.on_unreadable(read.id);
                }
                other => {
                    let Readout { frames, damage } = other?;
                    tell(|| {
                        let found: Vec<_> =
                            frames.iter().map(|frame| (frame.position.0, &frame.runs)).collect();
                        format!("  read {} from {}: {found:?}, {damage:?}", read.id, read.from.0)
                    });
                    assert!(damage.is_empty() || self.is_spoiled(), "nothing was damaged: {damage:?}");
                    self.unreadable += damage.len() as u64;
                    self.driver.on_read_around(read.id, &frames, &damage)?;
                }
            }
            self.done += 1;
            self.read_from_copy += self.driver.copies_read() - copies;
            self.read_back += self.driver.outbox().deliveries.len() as u64;
            self.gather();
        }
        Ok(())
    }

    /// Frames for a reader of the log, which reads them by itself.
    pub(crate) fn read_beside(&self, from: Position, budget: ReadBudget) -> Result<Readout, StorageError> {
        self.reader.read_around(from, budget)
    }

    /// Whether reads have failed other than for a while.
    fn is_spoiled(&self) -> bool {
        self.disk.is_spoiled()
    }

    pub(crate) fn save(&mut self) -> Result<(), Down> {
        if let Some(image) = self.image.take() {
            tell(|| {
                let parts = image.parts.iter();
                let parts: Vec<_> =
                    parts.map(|part| (part.key, part.through.0, part.bytes.is_some())).collect();
                format!("  save {parts:?}")
            });
            match self.chores.save(image.clone()) {
                Err(error) if error.is_passing() => {
                    self.image = Some(image);
                    return Ok(());
                }
                saved => self.driver.on_saved(saved?),
            }
            self.done += 1;
            self.gather();
        }
        Ok(())
    }

    pub(crate) fn trim(&mut self) -> Result<(), Down> {
        if let Some(through) = self.trim.take() {
            tell(|| format!("  trim to {}", through.0));
            self.chores.trim(through)?;
            self.done += 1;
        }
        Ok(())
    }

    /// Every message that the log has, as it was published and as it was copied, in the order of the log.
    pub(crate) fn stored(&self) -> Result<BTreeMap<(StreamId, Seq), Vec<Stored>>, Down> {
        let all = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };
        let mut found: BTreeMap<_, Vec<Stored>> = BTreeMap::new();
        for frame in self.reader.read(Position::START, all)? {
            let (position, mut payload) = (frame.position, frame.payload);
            for entry in entries(&frame.entries) {
                let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
                let (stream, copied, messages) = match entry {
                    Entry::Published { stream, first, ordinal, at, messages, .. } => {
                        let one = |(meta, n)| CopiedMessage {
                            seq: first.plus(n),
                            ordinal: Ordinal(ordinal.0 + n),
                            at,
                            meta,
                        };
                        (stream, false, messages.iter().zip(0..).map(one).collect())
                    }
                    Entry::Copied { stream, messages } => (stream, true, messages),
                    _ => continue,
                };
                for message in messages {
                    let content = payload.split_to(message.meta.size as usize);
                    let stored = Stored { position, copied, message, content };
                    found.entry((stream, message.seq)).or_default().push(stored);
                }
            }
        }
        Ok(found)
    }

    pub(crate) fn stop(&mut self, now: Timestamp) -> Result<(), Down> {
        self.driver.flush(now);
        self.gather();
        for _ in 0..STOP_ATTEMPTS {
            self.commit()?;
        }
        if self.has_frames() {
            return Err(Down("frames could not be written before the stop".to_owned()));
        }
        Ok(self.chores.stop()?)
    }
}

#[cfg(test)]
mod tests;
