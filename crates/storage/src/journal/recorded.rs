//! A disk that writes down each call that changes it, so that a loss of power can be played to the real server.
//!
//! Killing a process loses nothing that it wrote: the system's cache survives. The torture test therefore lets the
//! server write down its calls outside of the folder, kills it, plays the calls on the simulator's disk, lets that one
//! lose power, and puts the result into the folder ([`Recorder`], [`read`]).
//!
//! The calls are written down one at a time and in the order in which they take effect. A write is recorded before it
//! is made, because it may be on the platter from then on; a sync is recorded when it has succeeded, because it
//! promises nothing before. Calls that only read are not recorded.
//!
//! Without a recorder each call goes straight to the disk.
//!
//! ```text
//! record    length (u32) | kind (1 byte) | fields; a name is the rest of its record
//! 1 create  file (u32) | name           2 open    file (u32) | name          3 lock   name
//! 4 write   file | offset (u64) | bytes 5 zeros   file | offset | count (u64)
//! 6 grow    file | offset | count       7 size    file | size (u64)          8 sync   file
//! 9 rename  length of the first name (u32) | both names      10 delete  name   11 sync the folder
//! ```

use std::fmt;
use std::io::{self, IoSlice, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile, Stage};

/// A call that changed a disk. Files are named by the number that their handle has in this recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Create { file: u32, name: String },
    Open { file: u32, name: String },
    Lock { name: String },
    Write { file: u32, offset: u64, bytes: Vec<u8> },
    Zeros { file: u32, offset: u64, count: u64 },
    Grow { file: u32, offset: u64, count: u64 },
    Size { file: u32, size: u64 },
    Sync { file: u32 },
    Rename { from: String, to: String },
    Delete { name: String },
    SyncFolder,
}

mod kind {
    pub(super) const CREATE: u8 = 1;
    pub(super) const OPEN: u8 = 2;
    pub(super) const LOCK: u8 = 3;
    pub(super) const WRITE: u8 = 4;
    pub(super) const ZEROS: u8 = 5;
    pub(super) const GROW: u8 = 6;
    pub(super) const SIZE: u8 = 7;
    pub(super) const SYNC: u8 = 8;
    pub(super) const RENAME: u8 = 9;
    pub(super) const DELETE: u8 = 10;
    pub(super) const SYNC_FOLDER: u8 = 11;
}

/// Where calls are written to. Each record is one write.
type Out = Box<dyn Write + Send>;

/// Writes down calls, without a buffer of its own, so that each survives the end of this process.
pub struct Recorder {
    out: Mutex<Out>,
    files: AtomicU32,
}

impl Recorder {
    pub fn new(out: impl Write + Send + 'static) -> Recorder {
        Recorder { out: Mutex::new(Box::new(out)), files: AtomicU32::new(0) }
    }

    /// Holds up every other call until the guard is dropped.
    fn begin(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_file(&self) -> u32 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("files", &self.files).finish_non_exhaustive()
    }
}

fn put(out: &mut Out, kind: u8, fields: &[&[u8]]) -> io::Result<()> {
    let len = 1 + fields.iter().map(|field| field.len()).sum::<usize>();
    let mut record = Vec::with_capacity(4 + len);
    let len = u32::try_from(len).map_err(|_| io::Error::other("a call is too large to be recorded"))?;
    record.extend_from_slice(&len.to_le_bytes());
    record.push(kind);
    for field in fields {
        record.extend_from_slice(field);
    }
    out.write_all(&record)
}

/// Reads a recording. A call that was cut off by the end of the process was not made.
pub fn read(recording: &[u8]) -> io::Result<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = recording;
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let Some((record, after)) = after.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        let call = parse(record).ok_or_else(|| {
            let at = recording.len() - rest.len();
            io::Error::new(io::ErrorKind::InvalidData, format!("not a recording of calls. offset=`{at}`"))
        })?;
        calls.push(call);
        rest = after;
    }
    Ok(calls)
}

fn parse(record: &[u8]) -> Option<Call> {
    let (&kind, mut rest) = record.split_first()?;
    let small = |rest: &mut &[u8]| {
        let (number, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        Some(u32::from_le_bytes(*number))
    };
    let large = |rest: &mut &[u8]| {
        let (number, after) = rest.split_first_chunk::<8>()?;
        *rest = after;
        Some(u64::from_le_bytes(*number))
    };
    let text = |rest: &[u8]| String::from_utf8(rest.to_vec()).ok();
    Some(match kind {
        kind::CREATE => Call::Create { file: small(&mut rest)?, name: text(rest)? },
        kind::OPEN => Call::Open { file: small(&mut rest)?, name: text(rest)? },
        kind::LOCK => Call::Lock { name: text(rest)? },
        kind::WRITE => {
            Call::Write { file: small(&mut rest)?, offset: large(&mut rest)?, bytes: rest.to_vec() }
        }
        kind::ZEROS => {
            Call::Zeros { file: small(&mut rest)?, offset: large(&mut rest)?, count: large(&mut rest)? }
        }
        kind::GROW => {
            Call::Grow { file: small(&mut rest)?, offset: large(&mut rest)?, count: large(&mut rest)? }
        }
        kind::SIZE => Call::Size { file: small(&mut rest)?, size: large(&mut rest)? },
        kind::SYNC => Call::Sync { file: small(&mut rest)? },
        kind::RENAME => {
            let (from, to) = {
                let len = small(&mut rest)? as usize;
                rest.split_at_checked(len)?
            };
            Call::Rename { from: text(from)?, to: text(to)? }
        }
        kind::DELETE => Call::Delete { name: text(rest)? },
        kind::SYNC_FOLDER => Call::SyncFolder,
        _ => return None,
    })
}

/// A disk whose calls are written down, if there is a recorder.
#[derive(Debug, Clone)]
pub struct Recorded<D> {
    disk: D,
    recorder: Option<Arc<Recorder>>,
}

impl<D: Disk> Recorded<D> {
    pub fn new(disk: D, recorder: Option<Recorder>) -> Recorded<D> {
        Recorded { disk, recorder: recorder.map(Arc::new) }
    }

    /// Makes a call and then writes it down. It happened for certain only once it is written down.
    fn then_recorded<T>(
        &self,
        kind: u8,
        fields: &[&[u8]],
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(recorder) = &self.recorder else { return call() };
        let mut out = recorder.begin();
        let made = call()?;
        put(&mut out, kind, fields)?;
        Ok(made)
    }

    fn opened(
        &self,
        kind: u8,
        name: &str,
        open: impl FnOnce() -> io::Result<D::File>,
    ) -> io::Result<RecordedFile<D::File>> {
        let number = self.recorder.as_ref().map_or(0, |recorder| recorder.next_file());
        let file = self.then_recorded(kind, &[&number.to_le_bytes(), name.as_bytes()], open)?;
        Ok(RecordedFile { file, number, recorder: self.recorder.clone() })
    }
}

impl<D: Disk> Disk for Recorded<D> {
    type File = RecordedFile<D::File>;
    type Lock = D::Lock;

    fn lock(&self, name: &str) -> io::Result<D::Lock> {
        self.then_recorded(kind::LOCK, &[name.as_bytes()], || self.disk.lock(name))
    }

    fn create(&self, name: &str) -> io::Result<Self::File> {
        self.opened(kind::CREATE, name, || self.disk.create(name))
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        self.opened(kind::OPEN, name, || self.disk.open(name))
    }

    fn open_direct(&self, name: &str) -> io::Result<Option<Self::File>> {
        let Some(file) = self.disk.open_direct(name)? else { return Ok(None) };
        self.opened(kind::OPEN, name, || Ok(file)).map(Some)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let len = u32::try_from(from.len()).unwrap_or(u32::MAX).to_le_bytes();
        let fields = [&len[..], from.as_bytes(), to.as_bytes()];
        self.then_recorded(kind::RENAME, &fields, || self.disk.rename(from, to))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.then_recorded(kind::DELETE, &[name.as_bytes()], || self.disk.delete(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.then_recorded(kind::SYNC_FOLDER, &[], || self.disk.sync_folder())
    }

    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }

    fn used_space(&self) -> io::Result<u64> {
        self.disk.used_space()
    }

    fn preallocates(&self) -> bool {
        self.disk.preallocates()
    }

    fn remark(&self) -> Option<String> {
        self.disk.remark()
    }

    fn at(&self, stage: Stage) {
        self.disk.at(stage);
    }
}

/// A file of a [`Recorded`] disk.
#[derive(Debug)]
pub struct RecordedFile<F> {
    file: F,
    number: u32,
    recorder: Option<Arc<Recorder>>,
}

impl<F: DiskFile> RecordedFile<F> {
    /// Writes a call down and then makes it: parts of it may survive even if it does not come to its end.
    fn recorded_then(
        &self,
        record: impl FnOnce(&mut Out, [u8; 4]) -> io::Result<()>,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(recorder) = &self.recorder else { return call() };
        let mut out = recorder.begin();
        record(&mut out, self.number.to_le_bytes())?;
        call()
    }

    fn synced(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(recorder) = &self.recorder else { return sync() };
        let mut out = recorder.begin();
        sync()?;
        put(&mut out, kind::SYNC, &[&self.number.to_le_bytes()])
    }
}

impl<F: DiskFile> DiskFile for RecordedFile<F> {
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let record = |out: &mut Out, number: [u8; 4]| {
            let at = offset.to_le_bytes();
            // A segment is filled with zeros before it is used; they are counted and not copied.
            if buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)) {
                let count: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                return put(out, kind::ZEROS, &[&number, &at, &(count as u64).to_le_bytes()]);
            }
            let head: [&[u8]; 2] = [&number, &at];
            let fields: Vec<&[u8]> = head.into_iter().chain(buffers.iter().map(|buffer| &**buffer)).collect();
            put(out, kind::WRITE, &fields)
        };
        self.recorded_then(record, || self.file.write_at(buffers, offset))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let record = |out: &mut Out, number: [u8; 4]| {
            put(out, kind::GROW, &[&number, &offset.to_le_bytes(), &len.to_le_bytes()])
        };
        self.recorded_then(record, || self.file.allocate(offset, len))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let record = |out: &mut Out, number: [u8; 4]| put(out, kind::SIZE, &[&number, &len.to_le_bytes()]);
        self.recorded_then(record, || self.file.truncate(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.synced(|| self.file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.synced(|| self.file.sync_all())
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }
}
