//! The calls that a simulated process makes: the journal's view of the disk.
//!
//! Each first asks the state what becomes of it, because any call may be the one at which the process
//! crashes or an error was planted.

use std::io::{self, ErrorKind, IoSlice};

use forebay_storage::journal::disk::{Disk, DiskFile, Stage};

use super::content::SECTOR;
use super::{BadReads, InodeId, NameChange, PAGE, SimDisk, Verdict};
use crate::dice::Dice;

impl Disk for SimDisk {
    type File = SimFile;
    type Lock = SimLock;

    fn lock(&self, name: &str) -> io::Result<SimLock> {
        let mut state = self.state();
        state.whole_call(self.process, false, || format!("lock {name}"))?;
        if !state.locks.insert(name.to_string()) {
            return Err(io::Error::new(ErrorKind::WouldBlock, "another process has the folder"));
        }
        if !state.names.contains_key(name) {
            state.link(name);
        }
        Ok(SimLock { disk: self.clone(), name: name.to_string() })
    }

    fn create(&self, name: &str) -> io::Result<SimFile> {
        let mut state = self.state();
        state.whole_call(self.process, true, || format!("create {name}"))?;
        if state.bad_reads.no_file > 0 {
            state.bad_reads.no_file -= 1;
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        if state.names.contains_key(name) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, format!("there is a file {name} already")));
        }
        let inode = state.link(name);
        Ok(SimFile { disk: self.clone(), inode, name: name.to_string() })
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        let mut state = self.state();
        state.whole_call(self.process, false, || format!("open {name}"))?;
        let inode = state.find(name)?;
        Ok(SimFile { disk: self.clone(), inode, name: name.to_string() })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.whole_call(self.process, false, || "list".to_string())?;
        Ok(state.names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call(self.process, true, || format!("rename {from} to {to}"))?;
        let inode = state.find(from)?;
        state.names.remove(from);
        state.names.insert(to.to_string(), inode);
        state.names_pending.push(NameChange::Rename { from: from.to_string(), to: to.to_string() });
        Ok(())
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call(self.process, true, || format!("delete {name}"))?;
        state.find(name)?;
        state.names.remove(name);
        state.names_pending.push(NameChange::Delete { name: name.to_string() });
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.call(self.process, true, || "sync the folder".to_string())? {
            Verdict::Go => {
                state.settle_names();
                Ok(())
            }
            // Unlike pages, names that a failed sync did not write stay pending: a journal of a file
            // system that could not be written takes the whole file system down, not single names.
            Verdict::Blow(error) | Verdict::Fail(error) => Err(error),
        }
    }

    fn free_space(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.whole_call(self.process, false, || "ask for free space".to_string())?;
        Ok(state.capacity.saturating_sub(state.used()))
    }

    fn preallocates(&self) -> bool {
        true
    }

    fn at(&self, stage: Stage) {
        let mut state = self.state();
        if state.process == self.process && state.blown.is_none() {
            state.stage = stage;
        }
    }
}

/// A file that a simulated process has open. Works on after the file was renamed or deleted.
pub struct SimFile {
    disk: SimDisk,
    inode: InodeId,
    name: String,
}

impl SimFile {
    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let verdict = state.call(self.disk.process, true, || format!("sync {}", self.name))?;
        let inode = state.inode(self.inode);
        match verdict {
            Verdict::Go => {
                inode.sync();
                Ok(())
            }
            Verdict::Fail(error) => {
                inode.forget_pending();
                Err(error)
            }
            Verdict::Blow(error) => Err(error),
        }
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(buffers.iter().map(|buffer| buffer.len()).sum());
        buffers.iter().for_each(|buffer| bytes.extend_from_slice(buffer));
        let mut state = self.disk.state();
        let verdict = state.call(self.disk.process, true, || {
            format!("write {} bytes at {offset} of {}", bytes.len(), self.name)
        })?;
        match verdict {
            Verdict::Go => {
                state.room_to_grow(self.inode, offset + bytes.len() as u64)?;
                state.inode(self.inode).write(offset, &bytes);
                Ok(())
            }
            Verdict::Blow(error) | Verdict::Fail(error) => {
                if state.room_to_grow(self.inode, offset + bytes.len() as u64).is_ok() {
                    let sectors = bytes.len().div_ceil(SECTOR) as u64;
                    let landed = Dice::from(state.calls.all).roll(sectors + 1) as usize * SECTOR;
                    state.inode(self.inode).write(offset, &bytes[..landed.min(bytes.len())]);
                }
                Err(error)
            }
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        state.whole_call(self.disk.process, false, || {
            format!("read {} bytes at {offset} of {}", buffer.len(), self.name)
        })?;
        state.bad_reads.check(&self.name, offset, buffer.len() as u64)?;
        state.read_bytes_max = state.read_bytes_max.max(buffer.len());
        Ok(state.inode(self.inode).live.read(offset, buffer))
    }

    fn size(&self) -> io::Result<u64> {
        let mut state = self.disk.state();
        state.whole_call(self.disk.process, false, || format!("ask for the size of {}", self.name))?;
        Ok(state.inode(self.inode).live.size())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.whole_call(self.disk.process, true, || {
            format!("allocate {len} bytes at {offset} of {}", self.name)
        })?;
        state.room_to_grow(self.inode, offset + len)?;
        state.inode(self.inode).grow(offset + len);
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.whole_call(self.disk.process, true, || format!("truncate {} to {len}", self.name))?;
        state.room_to_grow(self.inode, len)?;
        state.inode(self.inode).truncate(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn forget_cached(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.whole_call(self.disk.process, false, || format!("forget what is cached of {}", self.name))?;
        state.inode(self.inode).forget_cached();
        Ok(())
    }
}

/// The folder, taken by one simulated process.
pub struct SimLock {
    disk: SimDisk,
    name: String,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.process == self.disk.process {
            state.locks.remove(&self.name);
        }
    }
}

impl BadReads {
    fn check(&mut self, name: &str, offset: u64, len: u64) -> io::Result<()> {
        if !self.serving {
            return Ok(());
        }
        if self.no_descriptor > 0 {
            self.no_descriptor -= 1;
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        let pages = offset / PAGE..=(offset + len.max(1) - 1) / PAGE;
        let is_bad = self.places.iter().any(|(of, page)| of == name && pages.contains(page));
        if is_bad || std::mem::take(&mut self.once) {
            self.failed = true;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    }
}

const EIO: i32 = 5;
const EMFILE: i32 = 24;
