//! UNFINISHED: a folder that is being made from another one, by a salvage, a backup or a restore.
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
}

impl Maker {
    const ALL: [Maker; 3] = [Maker::Salvage, Maker::Backup, Maker::Restore];

    fn command(self) -> &'static str {
        match self {
            Maker::Salvage => "forebay doctor --salvage",
            Maker::Backup => "forebay backup",
            Maker::Restore => "forebay restore",
        }
    }
}

/// Marks an empty folder. `AlreadyExists` if it is marked.
pub(crate) fn begin<D: Disk>(disk: &D, maker: Maker) -> io::Result<()> {
    let file = disk.create(NAME)?;
    file.write_at(&[io::IoSlice::new(maker.command().as_bytes())], 0)?;
    file.sync_all()?;
    disk.sync_folder()
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
    let maker = maker(disk).map_or("forebay doctor --salvage, backup or restore", Maker::command);
    Err(OpenError::Unfinished { maker })
}

/// The command that began it. A loss of power may have left the file empty.
fn maker<D: Disk>(disk: &D) -> Option<Maker> {
    let mut bytes = [0; 64];
    let len = disk.open(NAME).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
    Maker::ALL.into_iter().find(|maker| maker.command().as_bytes() == &bytes[..len])
}
