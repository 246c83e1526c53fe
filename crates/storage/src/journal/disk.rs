//! The only place that opens files. The journal sees a flat folder of files through [`Disk`]; the simulator
//! supplies another one that tears writes and loses unsynced data.
//!
//! Each error names the call and the file, because the system's text names neither.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::io::IoSlice;
use std::os::unix::fs::{DirBuilderExt as _, FileExt, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

/// A folder of files. Names are plain file names, no folders inside.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;
    type Lock: Send + Sync;

    /// Takes the folder for this process, for as long as the lock lives. `WouldBlock` if another has it.
    fn lock(&self, name: &str) -> io::Result<Self::Lock>;

    /// Makes a new, empty file. It is an error if there is one already.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for writes that do not stay in the system's cache, from and to multiples of a page.
    /// `None` where that cannot be had.
    fn open_direct(&self, name: &str) -> io::Result<Option<Self::File>> {
        let _ = name;
        Ok(None)
    }

    /// The names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Renames a file, replacing one of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn delete(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and deletions durable.
    fn sync_folder(&self) -> io::Result<()>;

    /// Bytes that may still be allocated.
    fn free_space(&self) -> io::Result<u64>;

    /// Bytes that the folder's files take.
    fn used_space(&self) -> io::Result<u64> {
        let mut used = 0;
        for name in self.list()? {
            match self.open(&name).and_then(|file| file.size()) {
                Ok(size) => used += size,
                // Deleted since the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }

    /// Whether preallocating makes sense here (not on copy-on-write file systems).
    fn preallocates(&self) -> bool;

    /// A remark for the operator about the folder's place, if there is reason for one.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Says what the journal is about to do. The simulator counts where its crashes fall.
    fn at(&self, _stage: Stage) {}
}

pub trait DiskFile: Send + Sync + 'static {
    /// Writes all of the buffers, one after the other, beginning at `offset`.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fills as much of the buffer as the file has from `offset` on, and says how much that was.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The next `len` bytes from `offset` on, or as many as the file has.
    fn read_vec(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.read_at(&mut bytes, offset)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn size(&self) -> io::Result<u64>;

    /// Makes sure that writing in this stretch will not run out of space; the file grows to hold it and
    /// reads as zeros there.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Makes contents (and a size that is needed to read them) durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes contents and all metadata durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Makes the next read come from the disk itself. After a failed sync the system may show bytes that
    /// never reached the disk.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The operation that the journal is performing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Opening: reading, deciding, cutting a torn tail, starting the epoch's first segment.
    Recovering,
    /// Writing and syncing a commit block.
    Committing,
    /// The block is synced; MARK is not written yet.
    Marking,
    /// Moving on to the next segment.
    Rotating,
    /// Writing the footer of a finished segment.
    Sealing,
    /// Making the next segment ready.
    Preparing,
    /// Writing an image of the state.
    Saving,
    /// Letting go of old segments or images.
    Trimming,
    /// Nothing in particular: between calls.
    Idle,
}

/// How many buffers the system takes in one call.
const BUFFERS_MAX: usize = 1024;

/// A folder of the real file system.
#[derive(Debug, Clone)]
pub struct FolderDisk {
    path: Arc<Path>,
    /// Kept open, so that the folder can be synced even when there are no descriptors left.
    folder: Arc<File>,
    preallocates: bool,
    network: bool,
    read_only: bool,
}

impl FolderDisk {
    /// Takes the folder at `path`, and creates it if it does not exist.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<FolderDisk> {
        let path: PathBuf = path.into();
        if !path.is_dir() {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            // Messages, and the secret that seals receipts, are the owner's.
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                other => other?,
            }
            // The folder's own name has to be durable too, or everything in it is not.
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        FolderDisk::at(path, false)
    }

    /// Takes the folder at `path` to look at it: whatever would change something fails.
    pub fn read_only(path: impl Into<PathBuf>) -> io::Result<FolderDisk> {
        FolderDisk::at(path.into(), true)
    }

    fn at(path: PathBuf, read_only: bool) -> io::Result<FolderDisk> {
        let kind = rustix::fs::statfs(&path)?.f_type as u64 & 0xffff_ffff;
        Ok(FolderDisk {
            folder: Arc::new(File::open(&path)?),
            path: path.into(),
            preallocates: !COPY_ON_WRITE.contains(&kind),
            network: NETWORK.contains(&kind),
            read_only,
        })
    }

    /// Locks the folder itself, so that the lock holds even if the file in it is deleted. Nothing where the file
    /// system cannot lock a folder.
    fn lock_folder(&self) -> io::Result<Option<File>> {
        let folder = File::open(&self.path)?;
        match folder.try_lock() {
            Ok(()) => Ok(Some(folder)),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn entries(&self) -> io::Result<std::fs::ReadDir> {
        std::fs::read_dir(&self.path).map_err(list_failed)
    }

    /// The mode of the folder, if every user of the machine may look into it.
    pub fn mode_for_all(&self) -> io::Result<Option<u32>> {
        let mode = self.folder.metadata()?.mode() & 0o777;
        Ok((mode & 0o007 != 0).then_some(mode))
    }
}

/// A folder that is taken: its lock file, and the folder itself.
#[derive(Debug)]
pub struct FolderLock {
    _file: Option<File>,
    _folder: Option<File>,
}

/// btrfs, zfs, bcachefs: a block that was preallocated is written elsewhere all the same.
const COPY_ON_WRITE: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];
/// nfs, smb, smb2, cifs, ceph, 9p, fuse, afs: a sync may promise less than it does on a local disk.
const NETWORK: [u64; 8] =
    [0x6969, 0x517b, 0xfe53_4d42, 0xff53_4d42, 0x00c3_6400, 0x0102_1997, 0x6573_5546, 0x5346_414f];

impl Disk for FolderDisk {
    type File = FolderFile;
    type Lock = FolderLock;

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        let folder = self.lock_folder()?;
        let path = self.path.join(name);
        let opened = if self.read_only {
            File::open(path)
        } else {
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
        };
        let file = match opened {
            // The folder itself is taken, and no more can be.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.read_only && folder.is_some() => {
                None
            }
            other => Some(other.map_err(|error| named(error, format_args!("open {name}")))?),
        };
        match file.as_ref().map_or(Ok(()), File::try_lock) {
            Ok(()) => Ok(FolderLock { _file: file, _folder: folder }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(named(error, format_args!("lock {name}"))),
        }
    }

    fn create(&self, name: &str) -> io::Result<FolderFile> {
        self.check_writable()?;
        let made =
            OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(self.path.join(name));
        made.map(|file| FolderFile::new(file, name))
            .map_err(|error| named(error, format_args!("create {name}")))
    }

    fn open(&self, name: &str) -> io::Result<FolderFile> {
        let opened = OpenOptions::new().read(true).write(!self.read_only).open(self.path.join(name));
        opened
            .map(|file| FolderFile::new(file, name))
            .map_err(|error| named(error, format_args!("open {name}")))
    }

    fn open_direct(&self, name: &str) -> io::Result<Option<FolderFile>> {
        let flags = OFlags::DIRECT.bits() as i32;
        match OpenOptions::new().write(true).custom_flags(flags).open(self.path.join(name)) {
            Ok(file) => Ok(Some(FolderFile::new(file, name))),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(named(error, format_args!("open {name}"))),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in self.entries()? {
            // A name that is not text is not a file of the journal.
            if let Ok(name) = entry.map_err(list_failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        std::fs::rename(self.path.join(from), self.path.join(to))
            .map_err(|error| named(error, format_args!("rename {from} to {to}")))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        std::fs::remove_file(self.path.join(name))
            .map_err(|error| named(error, format_args!("delete {name}")))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_all().map_err(|error| named(error, format_args!("sync the data folder")))
    }

    fn free_space(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&*self.path).map_err(|error| {
            named(error.into(), format_args!("ask for the free space of the data folder"))
        })?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Without opening the files; listing them takes one descriptor.
    fn used_space(&self) -> io::Result<u64> {
        let mut used = 0;
        for entry in self.entries()? {
            match entry.map_err(list_failed)?.metadata() {
                Ok(metadata) if metadata.is_file() => used += metadata.len(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(list_failed(error)),
            }
        }
        Ok(used)
    }

    fn preallocates(&self) -> bool {
        self.preallocates
    }

    fn remark(&self) -> Option<String> {
        self.network.then(|| {
            format!(
                "the data folder is on a network file system, where a sync may promise less than on a local \
                 disk. folder=`{}`",
                self.path.display()
            )
        })
    }
}

/// A file of a [`FolderDisk`], with its name for errors.
#[derive(Debug)]
pub struct FolderFile {
    file: File,
    name: Arc<str>,
}

impl FolderFile {
    fn new(file: File, name: &str) -> FolderFile {
        FolderFile { file, name: name.into() }
    }

    fn write(&self, buffers: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for some in buffers.chunks(BUFFERS_MAX) {
            let whole: usize = some.iter().map(|buffer| buffer.len()).sum();
            let written = loop {
                match rustix::io::pwritev(&self.file, some, offset) {
                    Err(Errno::INTR) => {}
                    other => break other?,
                }
            };
            if written < whole {
                write_rest(&self.file, some, written, offset)?;
            }
            offset += whole as u64;
        }
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(&self.file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// The error, with the call and this file.
    fn named(&self, error: impl Into<io::Error>, call: &str) -> io::Error {
        named(error.into(), format_args!("{call} {}", self.name))
    }
}

impl DiskFile for FolderFile {
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(buffers, offset).map_err(|error| {
            let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
            self.named(error, &format!("write {len} bytes at {offset} of"))
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buffer.len();
        self.read(buffer, offset)
            .map_err(|error| self.named(error, &format!("read {len} bytes at {offset} of")))
    }

    /// The memory is not filled with zeros before. That would be a good part of what a read from the kernel's cache
    /// costs.
    fn read_vec(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let from = offset + bytes.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), from) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(self.named(error, &format!("read {len} bytes at {offset} of"))),
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn size(&self) -> io::Result<u64> {
        let metadata = self.file.metadata().map_err(|error| self.named(error, "ask for the size of"))?;
        Ok(metadata.len())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len) {
            // The file system cannot do it; writing zeros, which follows where it matters, has to do.
            Err(Errno::OPNOTSUPP) => self.truncate(self.size()?.max(offset + len)),
            other => {
                other.map_err(|error| self.named(error, &format!("allocate {len} bytes at {offset} of")))
            }
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(|error| self.named(error, "set the size of"))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(|error| self.named(error, "sync"))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all().map_err(|error| self.named(error, "sync"))
    }

    fn forget_cached(&self) -> io::Result<()> {
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| self.named(error, "drop the cache of"))
    }
}

/// Goes on buffer by buffer where the system took only a part.
fn write_rest(file: &File, buffers: &[IoSlice<'_>], mut written: usize, mut offset: u64) -> io::Result<()> {
    for buffer in buffers {
        let skip = written.min(buffer.len());
        file.write_all_at(&buffer[skip..], offset + skip as u64)?;
        written -= skip;
        offset += buffer.len() as u64;
    }
    Ok(())
}

/// An error of the file system with the call that failed, in words.
#[derive(Debug)]
struct FailedCall {
    call: String,
    source: io::Error,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.call, self.source)
    }
}

/// The text has the cause in it, since many places show an error without its sources.
impl std::error::Error for FailedCall {}

/// The same error, of the same kind, with the call that failed.
fn named(source: io::Error, call: fmt::Arguments<'_>) -> io::Error {
    io::Error::new(source.kind(), FailedCall { call: call.to_string(), source })
}

fn list_failed(error: io::Error) -> io::Error {
    named(error, format_args!("list the data folder"))
}

/// The number that the system gave for an error, if the error came from the system.
pub(crate) fn os_code(error: &io::Error) -> Option<i32> {
    let inner = || error.get_ref()?.downcast_ref::<FailedCall>()?.source.raw_os_error();
    error.raw_os_error().or_else(inner)
}
