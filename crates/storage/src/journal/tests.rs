//! The journal on the real file system. [`Bench`] knows the API; the tests tell stories with it.

mod crypt;
mod encrypted;
mod engine;
mod faults;
mod golden;
mod inspect;
mod property;
mod recovery;
mod service;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forebay_core::types::{Position, Seq, ShardId, StreamId};

use super::disk::{Disk, FolderDisk};
use super::inspect::Inspection;
use super::{Journal, JournalConfig, OpenError, Opened};
use crate::engine::{Frame, Image, ImagePart, ReadBudget, Run, StorageError, StoredFrame};

pub(crate) const ID: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
pub(crate) const SEGMENT: u64 = 64 << 10;

/// A folder that is gone when the test is over.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> TempFolder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("forebay-storage-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        TempFolder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        let disk = FolderDisk::new(&self.0).expect("the folder is there");
        disk.list()
            .expect("the folder can be listed")
            .into_iter()
            .filter(|name| name.starts_with(prefix))
            .collect()
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.file(name)).expect("the file can be read");
        change(&mut bytes);
        std::fs::write(self.file(name), bytes).expect("the file can be written");
    }

    pub(crate) fn copy(&self) -> TempFolder {
        let copy = TempFolder::new();
        for entry in std::fs::read_dir(&self.0).expect("the folder can be listed") {
            let entry = entry.expect("the folder can be listed");
            std::fs::copy(entry.path(), copy.file(&entry.file_name().to_string_lossy()))
                .expect("a file can be copied");
        }
        copy
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A frame that publishes message `seq` of stream 1, with a payload of `len` bytes.
pub(crate) fn frame(seq: u64, len: usize) -> Frame {
    Frame {
        shard: ShardId(0),
        entries: Bytes::from(format!("entry {seq}")),
        payload: payload(seq, len),
        runs: vec![Run { stream: StreamId(1), first: Seq(seq), count: 1, copied: false }],
    }
}

pub(crate) fn payload(seq: u64, len: usize) -> Bytes {
    (0..len).map(|index| (seq as usize * 31 + index) as u8).collect::<Vec<_>>().into()
}

pub(crate) const ALL: ReadBudget =
    ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };

/// A journal in a temporary folder.
pub(crate) struct Bench<D: Disk = FolderDisk> {
    pub(crate) journal: Opened<D>,
    pub(crate) next: u64,
}

/// Bytes from one flipped byte to the next one, where all of a folder is tried.
pub(super) const FLIP_STEP: usize = 997;

/// Segments are whole, also where they are made in a hurry, so that a story knows where things are.
pub(crate) fn config() -> JournalConfig {
    JournalConfig { hurried_bytes: SEGMENT, ..JournalConfig::small(ID) }
}

pub(crate) fn try_open(folder: &TempFolder) -> Result<Bench, OpenError> {
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    Bench::open(disk, &config())
}

#[track_caller]
pub(crate) fn open(folder: &TempFolder) -> Bench {
    try_open(folder).unwrap_or_else(|error| panic!("the journal opens: {error}"))
}

impl<D: Disk> Bench<D> {
    pub(crate) fn open(disk: D, config: &JournalConfig) -> Result<Bench<D>, OpenError> {
        let journal = Journal::open(disk, config)?;
        let kept = journal.reader.read(Position::START, ALL).unwrap_or_default();
        let next = kept.last().and_then(|frame| frame.runs.first()).map_or(1, |run| run.first.0 + 1);
        Ok(Bench { journal, next })
    }

    /// Commits one block with one frame and says where the frame is.
    pub(crate) fn try_put(&mut self, len: usize) -> Result<Position, StorageError> {
        let mut out = Vec::new();
        self.journal.writer.commit(&mut vec![frame(self.next, len)], &mut out)?;
        self.next += 1;
        Ok(out[0].get())
    }

    #[track_caller]
    pub(crate) fn put(&mut self, len: usize) -> Position {
        self.try_put(len).expect("the commit succeeds")
    }

    #[track_caller]
    pub(crate) fn puts(&mut self, count: usize, len: usize) -> Vec<Position> {
        (0..count).map(|_| self.put(len)).collect()
    }

    #[track_caller]
    pub(crate) fn save(&mut self, parts: Vec<ImagePart>) {
        self.journal.chores.save(Image { parts }).expect("it is saved");
    }

    #[track_caller]
    pub(crate) fn read_all(&self) -> Vec<StoredFrame> {
        self.journal.reader.read(Position::START, ALL).expect("the log can be read")
    }

    /// Every message from the first that is kept to the last is there, in order and unchanged.
    #[track_caller]
    pub(crate) fn check_all(&self) {
        let frames = self.read_all();
        let last = frames.last().map_or(0, |frame| frame.runs[0].first.0);
        assert_eq!(last + 1, self.next, "the last message is there");
        check_frames(&frames);
    }
}

#[track_caller]
pub(crate) fn check_frames(frames: &[StoredFrame]) {
    let first = frames.first().map_or(1, |frame| frame.runs[0].first.0);
    for (frame, seq) in frames.iter().zip(first..) {
        assert_eq!(frame.runs[0].first, Seq(seq));
        assert_eq!(frame.entries, format!("entry {seq}"));
        assert_eq!(frame.payload, payload(seq, frame.payload.len()));
    }
}

#[track_caller]
pub(crate) fn refused_by(rule: &str, folder: &TempFolder) -> String {
    match try_open(folder) {
        Err(error @ OpenError::Refused { rule: found, .. }) => {
            assert_eq!(found, rule, "{error}");
            error.to_string()
        }
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Takes a folder to look at it.
pub(crate) fn look_into<D: Disk>(disk: D) -> Result<Inspection<D>, OpenError> {
    Inspection::open(disk)
}
