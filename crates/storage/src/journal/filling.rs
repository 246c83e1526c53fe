//! A segment in the making: a file that is filled with zeros, a piece at a time.
//!
//! A commit into zeros takes half as long as one into a file that grows. But filling a whole segment at once
//! is a burst that commits have to share the disk with, so it is spread over the time in which the segment
//! before it is used.

use std::io;
use std::io::IoSlice;

use crate::journal::block::PAGE;
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::shared::create_anew;

/// The name of the file until it is a segment.
const NAME: &str = "segment.tmp";
/// Bytes of one write while preparation is on time, and while it is late.
const PIECE: usize = 64 << 10;
const LARGE_PIECE: usize = 1 << 20;
/// Filling stays ahead of the use of the previous segment by this many bytes, plus a quarter of the bytes
/// used.
const LEAD: u64 = 4 << 20;

pub(crate) struct Filling<F> {
    file: F,
    /// Zeros are written through this, past the system's cache if that can be had: they are never read.
    direct: Option<F>,
    zeros: Zeros,
    filled: u64,
    len: u64,
}

impl<F: DiskFile> Filling<F> {
    /// Begins with a file of this length that holds nothing.
    pub(crate) fn begin<D: Disk<File = F>>(disk: &D, len: u64) -> io::Result<Filling<F>> {
        let file = create_anew(disk, NAME)?;
        if !disk.preallocates() {
            return Ok(Filling { file, direct: None, zeros: Zeros::new(0), filled: len, len });
        }
        // In one piece on the disk, and known to fit before anything is written.
        if let Err(error) = file.allocate(0, len) {
            disk.delete(NAME)?;
            return Err(error);
        }
        // Without it, it goes through the cache.
        let direct = disk.open_direct(NAME).ok().flatten();
        Ok(Filling { file, direct, zeros: Zeros::new(LARGE_PIECE), filled: 0, len })
    }

    /// Whether it may not be whole by the time it is needed, when so much of the segment before is used.
    pub(crate) fn is_late(&self, used: u64) -> bool {
        self.filled < (used + used / 4 + LEAD).min(self.len)
    }

    /// Fills on. True when it is whole.
    pub(crate) fn fill(&mut self, is_late: bool) -> io::Result<bool> {
        let piece = if is_late { LARGE_PIECE } else { PIECE } as u64;
        let len = piece.min(self.len - self.filled);
        let zeros = [IoSlice::new(&self.zeros.aligned()[..len as usize])];
        if len > 0 {
            let done = self.direct.as_ref().unwrap_or(&self.file).write_at(&zeros, self.filled);
            match done {
                // Some file systems say so only now.
                Err(error) if is_unsupported(&error) && self.direct.is_some() => {
                    self.direct = None;
                    return Ok(false);
                }
                other => other?,
            }
            self.filled += len;
        }
        Ok(self.filled == self.len)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives the file, which is synced, a name of its own, and makes that durable too.
    pub(crate) fn finish<D: Disk<File = F>>(self, disk: &D, name: &str) -> io::Result<F> {
        disk.rename(NAME, name)?;
        disk.sync_folder()?;
        Ok(self.file)
    }

    pub(crate) fn give_up<D: Disk<File = F>>(self, disk: &D) -> io::Result<()> {
        disk.delete(NAME)
    }
}

/// Deletes what a crash left.
pub(crate) fn clear<D: Disk>(disk: &D, names: &[String]) -> io::Result<()> {
    if names.iter().any(|name| name == NAME) { disk.delete(NAME) } else { Ok(()) }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Zeros at an address that suits writes past the cache.
struct Zeros {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Zeros {
    fn new(len: usize) -> Zeros {
        let bytes = vec![0; len + PAGE as usize];
        let from = bytes.as_ptr().align_offset(PAGE as usize).min(PAGE as usize);
        Zeros { bytes, from, len }
    }

    fn aligned(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::disk::FolderDisk;
    use crate::journal::tests::TempFolder;

    #[test]
    fn a_piece_at_a_time_or_in_a_hurry_the_file_is_all_zeros() {
        let folder = TempFolder::new();
        let disk = FolderDisk::new(folder.path()).expect("the folder is there");
        for late in [false, true] {
            let len = 3 * LARGE_PIECE as u64 + 2 * PAGE;
            let mut filling = Filling::begin(&disk, len).expect("there is room");
            let mut pieces = 1;
            while !filling.fill(late).expect("it is filled") {
                pieces += 1;
            }
            assert_eq!(pieces, if late { 4 } else { 49 });
            filling.sync().expect("it is synced");
            let file = filling.finish(&disk, "segment-0000000001").expect("it is durable");
            let mut bytes = vec![1; len as usize + 1];
            assert_eq!(DiskFile::read_at(&file, &mut bytes, 0).expect("it can be read"), len as usize);
            assert!(bytes[..len as usize].iter().all(|&byte| byte == 0));
            assert_eq!(disk.list().expect("a list"), ["segment-0000000001"]);
        }
    }

    #[test]
    fn it_keeps_ahead_of_what_is_used() {
        let folder = TempFolder::new();
        let disk = FolderDisk::new(folder.path()).expect("the folder is there");
        let mut filling = Filling::begin(&disk, 64 << 20).expect("there is room");
        assert!(filling.is_late(0), "some of it at once");
        filling.filled = LEAD;
        assert!(!filling.is_late(0));
        assert!(filling.is_late(1 << 20));
        filling.filled = 64 << 20;
        assert!(!filling.is_late(64 << 20));
        filling.give_up(&disk).expect("it is deleted");
        assert_eq!(disk.list().expect("a list"), [""; 0]);
    }

    #[test]
    fn zeros_are_where_they_have_to_be() {
        for len in [0, PIECE, LARGE_PIECE] {
            let zeros = Zeros::new(len);
            assert_eq!(zeros.aligned().len(), len);
            assert_eq!(zeros.aligned().as_ptr() as usize % PAGE as usize, 0);
        }
    }
}
