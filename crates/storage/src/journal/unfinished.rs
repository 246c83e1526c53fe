//! UNFINISHED: a folder that is being made from another log, by a salvage, a backup, a restore or a copy.
//!
//! The file is durable before anything else is written to the folder, and deleted after all of the rest is
//! durable. A folder that has it lacks messages, whatever else it looks like, so nothing opens it.

use std::io;

use crate::journal::OpenError;
use crate::journal::disk::{Disk, DiskFile};

pub(crate) const NAME: &str = "UNFINISHED";

/// The command that makes a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Salvage,
    Backup,
    Restore,
    Copy,
}

impl Maker {
    const ALL: [Maker; 4] = [Maker::Salvage, Maker::Backup, Maker::Restore, Maker::Copy];

    fn command(self) -> &'static str {
        match self {
            Maker::Salvage => "forebay doctor --salvage",
            Maker::Backup => "forebay backup",
            Maker::Restore => "forebay restore",
            Maker::Copy => "forebay copy",
        }
    }
}

/// Marks an empty folder. `AlreadyExists` if it is marked.
pub(crate) fn begin<D: Disk>(disk: &D, maker: Maker) -> io::Result<()> {
    write(disk, maker.command())
}

fn write<D: Disk>(disk: &D, text: &str) -> io::Result<()> {
    let file = disk.create(NAME)?;
    file.write_at(&[io::IoSlice::new(text.as_bytes())], 0)?;
    file.sync_all()?;
    disk.sync_folder()
}

/// Marks an empty folder as a copy of a log, or goes on with one that is marked so. False if it is neither.
pub(crate) fn begin_copy<D: Disk>(disk: &D, names: &[String], of: &str) -> io::Result<bool> {
    let text = format!("{}\n{of}", Maker::Copy.command());
    if !names.iter().any(|name| name == NAME) {
        let is_empty = names.iter().all(|name| name == "LOCK");
        return if is_empty { write(disk, &text).map(|()| true) } else { Ok(false) };
    }
    let found = read(disk)?;
    if found.is_empty() && names.iter().all(|name| name == NAME || name == "LOCK") {
        // A loss of power left the mark empty, before anything else was written.
        disk.delete(NAME)?;
        return write(disk, &text).map(|()| true);
    }
    Ok(found == text.as_bytes())
}

fn read<D: Disk>(disk: &D) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 512];
    let len = disk.open(NAME).and_then(|file| file.read_at(&mut bytes, 0))?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Everything that belongs to the folder is durable.
pub(crate) fn end<D: Disk>(disk: &D) -> io::Result<()> {
    disk.sync_folder()?;
    disk.delete(NAME)?;
    disk.sync_folder()
}

/// Refuses a folder that is marked.
pub(crate) fn check<D: Disk>(disk: &D, names: &[String]) -> Result<(), OpenError> {
    if !names.iter().any(|name| name == NAME) {
        return Ok(());
    }
    let maker = maker(disk);
    let advice = match maker {
        Some(Maker::Copy) => "Run the same command again, and it goes on",
        _ => "Delete the folder, and run the command again",
    };
    let maker = maker.map_or("forebay doctor --salvage, backup, restore or copy", Maker::command);
    Err(OpenError::Unfinished { maker, advice })
}

/// The command that began it. A loss of power may have left the file empty.
fn maker<D: Disk>(disk: &D) -> Option<Maker> {
    let bytes = read(disk).ok()?;
    let command = bytes.split(|byte| *byte == b'\n').next()?;
    Maker::ALL.into_iter().find(|maker| maker.command().as_bytes() == command)
}
