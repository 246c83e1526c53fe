//! The calls of a real server, played on the simulated disk, so that a loss of power can be played to that server.
//!
//! The server runs on a real folder and writes down each call that changes it
//! ([`forebay_storage::journal::recorded`]). When it has been killed, a [`Twin`] of its folder takes the calls in,
//! loses power, and is put in the place of the folder.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

use forebay_storage::journal::disk::{Disk as _, DiskFile as _, FolderDisk};
use forebay_storage::journal::recorded::{self, Call};

use crate::dice::Dice;
use crate::disk::{SimDisk, SimFile, Survival};

/// Zeros are written in pieces of this size.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
/// Stretches of zeros of this size are left out of the folder's files, as they are on a disk that was only asked to
/// grow them.
const PAGE: usize = 4096;

/// A folder as a disk with a volatile cache has it.
#[derive(Debug, Default)]
pub struct Twin {
    disk: SimDisk,
}

impl Twin {
    /// The twin of an empty folder.
    pub fn new() -> Twin {
        Twin::default()
    }

    /// Takes in the calls of one server that has ended.
    pub fn take_in(&mut self, recording: &[u8]) -> io::Result<()> {
        let mut files: BTreeMap<u32, SimFile> = BTreeMap::new();
        let mut locks = Vec::new();
        for (number, call) in recorded::read(recording)?.into_iter().enumerate() {
            self.make(&call, &mut files, &mut locks).map_err(|error| {
                let text = format!(
                    "a recorded call cannot be made again. number=`{number}` call=`{}`",
                    short(&call)
                );
                io::Error::new(error.kind(), format!("{text}: {error}"))
            })?;
        }
        drop((files, locks));
        self.disk.kill();
        Ok(())
    }

    fn make(
        &self,
        call: &Call,
        files: &mut BTreeMap<u32, SimFile>,
        locks: &mut Vec<<SimDisk as forebay_storage::journal::disk::Disk>::Lock>,
    ) -> io::Result<()> {
        let open = |files: &BTreeMap<u32, SimFile>, file: u32| {
            if files.contains_key(&file) { Ok(file) } else { Err(io::Error::from(ErrorKind::NotFound)) }
        };
        match call {
            Call::Create { file, name } => {
                files.insert(*file, self.disk.create(name)?);
            }
            Call::Open { file, name } => {
                files.insert(*file, self.disk.open(name)?);
            }
            Call::Lock { name } => locks.push(self.disk.lock(name)?),
            Call::Write { file, offset, bytes } => {
                files[&open(files, *file)?].write_at(&[IoSlice::new(bytes)], *offset)?;
            }
            Call::Zeros { file, offset, count } => {
                let (mut at, end) = (*offset, offset + count);
                while at < end {
                    let len = usize::try_from(end - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
                    files[&open(files, *file)?].write_at(&[IoSlice::new(&ZEROS[..len])], at)?;
                    at += len as u64;
                }
            }
            Call::Grow { file, offset, count } => files[&open(files, *file)?].allocate(*offset, *count)?,
            Call::Size { file, size } => files[&open(files, *file)?].truncate(*size)?,
            Call::Sync { file } => files[&open(files, *file)?].sync_data()?,
            Call::Rename { from, to } => self.disk.rename(from, to)?,
            Call::Delete { name } => self.disk.delete(name)?,
            Call::SyncFolder => self.disk.sync_folder()?,
        }
        Ok(())
    }

    /// Loses power in one of the ways that a sweep knows, or in any other.
    pub fn lose_power(&mut self, seed: u64) -> Survival {
        let mut dice = Dice::from(seed);
        let survival =
            if dice.roll(2) == 0 { *dice.pick(&Survival::SHAPES) } else { Survival::Random(dice.u64()) };
        self.disk.lose_power(survival);
        survival
    }

    /// Puts this in the place of the files of a folder.
    pub fn put_into(&self, folder: &Path) -> io::Result<()> {
        let folder = FolderDisk::new(folder)?;
        for name in folder.list()? {
            folder.delete(&name)?;
        }
        for name in self.disk.files() {
            let bytes = self.disk.contents(&name).unwrap_or_default();
            let file = folder.create(&name)?;
            file.truncate(bytes.len() as u64)?;
            for (at, page) in (0u64..).step_by(PAGE).zip(bytes.chunks(PAGE)) {
                if page.iter().any(|byte| *byte != 0) {
                    file.write_at(&[IoSlice::new(page)], at)?;
                }
            }
        }
        Ok(())
    }

    /// The first difference from a folder whose server ended by itself. There must not be one, or a call was not
    /// recorded.
    pub fn difference(&self, folder: &Path) -> io::Result<Option<String>> {
        let folder = FolderDisk::read_only(folder)?;
        let names = folder.list()?;
        let files = self.disk.files();
        if names != files {
            return Ok(Some(format!("the folder has {names:?}, the recording {files:?}")));
        }
        for name in files {
            let file = folder.open(&name)?;
            let mut real = vec![0; usize::try_from(file.size()?).unwrap_or(usize::MAX)];
            file.read_at(&mut real, 0)?;
            let twin = self.disk.contents(&name).unwrap_or_default();
            if real.len() != twin.len() {
                return Ok(Some(format!("{name} has {} bytes, in the recording {}", real.len(), twin.len())));
            }
            if let Some(at) = real.iter().zip(&twin).position(|(real, twin)| real != twin) {
                return Ok(Some(format!("{name} differs from the recording at byte {at}")));
            }
        }
        Ok(None)
    }
}

fn short(call: &Call) -> String {
    match call {
        Call::Write { file, offset, bytes } => format!("write {} bytes at {offset} of {file}", bytes.len()),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests;
