//! A disk that fails at a chosen call, and one that is small.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};

use forebay_core::types::PartKey;

use super::*;
use crate::engine::{Image, ImagePart};
use crate::journal::disk::{DiskFile, FolderFile, FolderLock};

/// What the disk still does before it begins to fail, and how much room it has.
pub(super) struct State {
    /// How many more changes succeed; negative while there is no limit.
    pub(super) changes: AtomicI64,
    capacity: AtomicU64,
    path: PathBuf,
    /// A page of a file that cannot be read.
    bad_page: Mutex<Option<(String, u64)>>,
    /// No file can be opened or listed.
    pub(super) no_descriptors: AtomicBool,
}

impl State {
    fn read(&self, name: &str, offset: u64, len: usize) -> io::Result<()> {
        match &*self.bad_page.lock().expect("no test panics in between") {
            Some((file, page)) if file == name && offset < page + 4096 && *page < offset + len as u64 => {
                Err(io::Error::from_raw_os_error(5))
            }
            _ => Ok(()),
        }
    }

    fn descriptor(&self) -> io::Result<()> {
        if self.no_descriptors.load(Ordering::Relaxed) {
            Err(io::Error::from_raw_os_error(24))
        } else {
            Ok(())
        }
    }

    fn change(&self) -> io::Result<()> {
        match self.changes.load(Ordering::Relaxed) {
            left if left < 0 => Ok(()),
            0 => Err(io::Error::other("the disk is broken")),
            _ => {
                self.changes.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn used(&self) -> u64 {
        let entries = std::fs::read_dir(&self.path).expect("the folder can be listed");
        entries.map(|entry| entry.and_then(|entry| entry.metadata()).map_or(0, |data| data.len())).sum()
    }

    fn room(&self, size: u64, wanted: u64) -> io::Result<()> {
        let more = wanted.saturating_sub(size);
        if self.used() + more > self.capacity.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct FaultyDisk {
    folder: FolderDisk,
    pub(super) state: Arc<State>,
}

pub(super) struct FaultyFile {
    file: FolderFile,
    name: String,
    state: Arc<State>,
}

impl FaultyDisk {
    pub(super) fn new(folder: &TempFolder) -> FaultyDisk {
        let state = State {
            changes: AtomicI64::new(-1),
            capacity: AtomicU64::new(u64::MAX),
            path: folder.path().to_owned(),
            bad_page: Mutex::new(None),
            no_descriptors: AtomicBool::new(false),
        };
        let folder = FolderDisk::new(folder.path()).expect("the folder is there");
        FaultyDisk { folder, state: Arc::new(state) }
    }

    fn file(&self, file: FolderFile, name: &str) -> FaultyFile {
        FaultyFile { file, name: name.to_owned(), state: self.state.clone() }
    }

    pub(super) fn break_page(&self, file: &str, page: u64) {
        *self.state.bad_page.lock().expect("no test panics in between") = Some((file.to_owned(), page));
    }
}

impl Disk for FaultyDisk {
    type File = FaultyFile;
    type Lock = FolderLock;

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        self.folder.lock(name)
    }

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        self.state.change()?;
        self.state.descriptor()?;
        self.folder.create(name).map(|file| self.file(file, name))
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        self.state.descriptor()?;
        self.folder.open(name).map(|file| self.file(file, name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.state.descriptor()?;
        self.folder.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.state.change()?;
        self.folder.rename(from, to)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.state.change()?;
        self.folder.delete(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.state.change()
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(self.state.capacity.load(Ordering::Relaxed).saturating_sub(self.state.used()))
    }

    fn preallocates(&self) -> bool {
        true
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.state.change()?;
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.state.room(self.file.size()?, offset + len as u64)?;
        self.file.write_at(buffers, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.state.read(&self.name, offset, buffer.len())?;
        self.file.read_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.state.change()?;
        self.state.room(self.file.size()?, offset + len)?;
        self.file.allocate(offset, len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.state.change()?;
        self.file.truncate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state.change()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.state.change()
    }
}

fn open_on(disk: &FaultyDisk) -> Result<Bench<FaultyDisk>, OpenError> {
    Bench::open(disk.clone(), &config())
}

#[test]
fn a_failed_write_sync_or_mark_ends_the_journal_and_what_was_acknowledged_stays() {
    // A commit is one write, one sync and one write of MARK.
    for working in 0..3 {
        let folder = TempFolder::new();
        let disk = FaultyDisk::new(&folder);
        let mut bench = open_on(&disk).expect("it opens");
        bench.puts(5, 1000);
        disk.state.changes.store(working, Ordering::Relaxed);
        let error = bench.try_put(1000);
        assert!(matches!(error, Err(StorageError::Poisoned(_))), "{error:?}");
        disk.state.changes.store(-1, Ordering::Relaxed);
        let error = bench.try_put(1000);
        assert!(matches!(error, Err(StorageError::Poisoned(_))), "never tried again: {error:?}");
        assert_eq!(bench.read_all().len(), 5, "what was not acknowledged is not served");
        assert!(matches!(bench.journal.chores.stop(), Err(StorageError::Poisoned(_))));
        drop(bench);
        let bench = open(&folder);
        assert!(bench.next == 6 || bench.next == 7);
        bench.check_all();
    }
}

#[test]
fn opening_may_fail_at_any_call_and_be_tried_again() {
    let torn = TempFolder::new();
    let mut bench = open(&torn);
    bench.puts(20, 3000);
    bench.journal.chores.tidy().expect("the chores are done");
    let last = (bench.journal.reader.end().0 % SEGMENT) as usize;
    let tail = format!("segment-{:010}", bench.journal.reader.end().0 / SEGMENT);
    drop(bench);
    torn.change(&tail, |bytes| bytes[last + 700] = 9);
    let fresh = TempFolder::new();
    for folder in [&fresh, &torn] {
        let mut opened = false;
        for working in 0.. {
            let copy = folder.copy();
            let disk = FaultyDisk::new(&copy);
            disk.state.changes.store(working, Ordering::Relaxed);
            opened = match open_on(&disk) {
                Ok(_) => true,
                Err(OpenError::Io { .. }) => false,
                Err(OpenError::Refused { rule: "R1", .. }) => false,
                Err(error) => panic!("call {working}: {error}"),
            };
            let bench = open(&copy);
            bench.check_all();
            if opened {
                break;
            }
            assert!(working < 100, "opening takes a bounded number of calls");
        }
        assert!(opened);
    }
}

#[test]
fn a_failed_rotation_loses_nothing_that_was_acknowledged() {
    for working in 0..12 {
        let folder = TempFolder::new();
        let disk = FaultyDisk::new(&folder);
        let mut bench = open_on(&disk).expect("it opens");
        bench.puts(7, 5000);
        assert_eq!(folder.names("segment-").len(), 1);
        disk.state.changes.store(working, Ordering::Relaxed);
        let failed = bench.try_put(5000).is_err();
        drop(bench);
        let bench = open(&folder);
        assert!(bench.next >= if failed { 8 } else { 9 });
        bench.check_all();
    }
}

#[test]
fn a_full_disk_stops_publishing_but_not_committing_and_recovers_by_itself() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let mut bench = open_on(&disk).expect("it opens");
    let gauge = bench.journal.claim.space.clone();
    assert!(!gauge.is_full());
    disk.state.capacity.store(disk.state.used() + SEGMENT + 1000, Ordering::Relaxed);
    let mut at = Vec::new();
    while !gauge.is_full() {
        at.push(bench.put(5000));
        bench.journal.chores.prepare_next().expect("running out of space is no failure");
    }
    // The reserve is four segments. Two are for settling, so at least seven more blocks can be written;
    // and then all that one segment holds once more, as when it is copied.
    at.extend(bench.puts(7, 5000));
    at.extend(bench.puts(SEGMENT as usize / 8192, 5000));
    bench.check_all();
    bench.journal.chores.check_space().expect("it can be looked at");
    assert!(gauge.is_full());

    // Without the reserve, nothing is written and nothing breaks.
    while let Ok(position) = bench.try_put(5000) {
        at.push(position);
    }
    let error = bench.try_put(5000);
    assert!(matches!(error, Err(StorageError::Io { .. })), "{error:?}");

    let through = at[at.len() - 2];
    let key = PartKey { kind: 1, id: 1, sub: 1 };
    disk.state.capacity.fetch_add(4096, Ordering::Relaxed);
    let image = Image { parts: vec![ImagePart { key, through, bytes: Some(Bytes::from_static(b"state")) }] };
    bench.journal.chores.save(image).expect("a small image finds room");
    bench.journal.chores.trim(through).expect("it is trimmed");
    bench.put(5000);
    bench.journal.chores.check_space().expect("it can be looked at");
    assert!(gauge.is_full(), "the reserve comes first");
    disk.state.capacity.fetch_add(6 * SEGMENT, Ordering::Relaxed);
    bench.journal.chores.tidy().expect("the chores are done");
    assert!(!gauge.is_full());
    drop(bench);
    open(&folder).check_all();
}

#[test]
fn a_folder_keeps_to_the_size_it_may_have_and_publishing_resumes_once_it_is_raised() {
    let folder = TempFolder::new();
    let limited = |max| JournalConfig { folder_bytes_max: Some(max), ..config() };
    let open = |config: &JournalConfig| {
        Bench::open(FolderDisk::new(folder.path()).expect("the folder is there"), config)
    };
    let error = open(&limited(10 * SEGMENT - 1)).err();
    let needed = 10 * SEGMENT;
    assert!(matches!(error, Some(OpenError::FolderTooSmall { needed: found, .. }) if found == needed));

    let max = 12 * SEGMENT;
    let mut bench = open(&limited(max)).expect("it opens");
    let used = || FolderDisk::new(folder.path()).and_then(|disk| disk.used_space()).expect("it can be asked");
    let gauge = bench.journal.claim.space.clone();
    assert!(!gauge.is_full() && used() >= 4 * SEGMENT, "the reserve is part of the folder");
    let mut count = 0;
    while !gauge.is_full() {
        bench.put(5000);
        bench.journal.chores.tidy().expect("running out of space is no failure");
        assert!(used() <= max, "{} of {max}", used());
        count += 1;
        assert!(count < 1_000, "the folder grows beyond its size");
    }
    // The log itself goes on from the reserve, and stays within the size even so.
    bench.puts(7, 5000);
    while bench.try_put(5000).is_ok() {
        assert!(used() <= max, "{} of {max}", used());
    }
    assert!(matches!(bench.try_put(5000), Err(StorageError::Io { .. })));
    bench.check_all();
    drop(bench);

    let mut bench = open(&limited(2 * max)).expect("it opens");
    assert!(!bench.journal.claim.space.is_full());
    bench.put(5000);
    bench.check_all();
}

#[test]
fn an_error_names_the_call_and_the_file() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let text = disk.open("segment-0000000007").expect_err("the file is missing").to_string();
    assert_eq!(text, "cannot open segment-0000000007: No such file or directory (os error 2)");
    std::fs::create_dir(folder.file("folder")).expect("a folder can be made");
    let read_only = FolderDisk::read_only(folder.path()).expect("the folder is there");
    let file = read_only.open("folder").expect("a folder can be opened");
    let error = file.read_at(&mut [0; 100], 4096).expect_err("a folder cannot be read");
    let text = "cannot read 100 bytes at 4096 of folder: Is a directory (os error 21)";
    assert_eq!((error.to_string().as_str(), error.kind()), (text, io::ErrorKind::IsADirectory));
}

#[test]
fn a_page_that_cannot_be_read_costs_what_lies_on_it() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let mut bench = open_on(&disk).expect("it opens");
    let positions = bench.puts(40, 5000);
    let victim = (0..40).filter(|n| positions[*n].0 / SEGMENT == 2).nth(3).expect("it holds several");
    // The second page of a block of two: the end of a payload.
    let page = (positions[victim].0 % SEGMENT) / 4096 * 4096 + 4096;
    disk.break_page("segment-0000000002", page);
    let found = bench.journal.reader.read_around(Position::START, ALL).expect("it reads around");
    assert_eq!(found.frames.len(), 40);
    let [place] = &found.damage[..] else { panic!("one place: {:?}", found.damage) };
    assert_eq!((place.from, place.payload.clone()), (positions[victim], Some(0..5000)));
    assert!(place.what.contains("os error 5"), "{place:?}");
    // The first page: the headers of block and frame.
    disk.break_page("segment-0000000002", page - 4096);
    let found = bench.journal.reader.read_around(Position::START, ALL).expect("it reads around");
    let seqs: Vec<u64> = found.frames.iter().map(|frame| frame.runs[0].first.0).collect();
    assert_eq!(seqs, (1..=40).filter(|seq| *seq != victim as u64 + 1).collect::<Vec<_>>());
    // Sealing and scrubbing report it, and the log goes on.
    let error = bench.journal.chores.tidy();
    let at = page - 4096;
    assert!(
        matches!(&error, Err(StorageError::Damaged { file, offset, .. })
            if file == "segment-0000000002" && *offset <= at && at < offset + 8192),
        "{error:?}"
    );
    bench.journal.chores.tidy().expect("the others are sealed");
    bench.puts(20, 5000);
}

/// The read begins with the frame that cannot be read, behind the header of its block.
#[test]
fn a_block_of_one_page_that_cannot_be_read_is_reported_to_every_read() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let mut bench = open_on(&disk).expect("it opens");
    let positions = bench.puts(20, 100);
    let victim = 7;
    let (segment, offset) = (positions[victim].0 / SEGMENT, positions[victim].0 % SEGMENT);
    disk.break_page(&format!("segment-{segment:010}"), offset / 4096 * 4096);
    for from in [Position::START, positions[victim]] {
        let found = bench.journal.reader.read_around(from, ALL).expect("it reads around");
        let before = if from == Position::START { victim } else { 0 };
        assert_eq!(found.frames.len(), before + 20 - victim - 1);
        let is_in = |place: &crate::engine::Damage| {
            place.from <= positions[victim] && positions[victim] < place.until
        };
        assert!(found.damage.iter().any(is_in), "{:?}", found.damage);
    }
}

#[test]
fn a_lack_of_descriptors_passes_and_ends_nothing() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let limited = JournalConfig { folder_bytes_max: Some(64 * SEGMENT), files_open_max: 1, ..config() };
    let mut bench = Bench::open(disk.clone(), &limited).expect("it opens");
    let at = bench.puts(40, 5000);
    bench.journal.chores.prepare_next().expect("the next segment is made");
    disk.state.no_descriptors.store(true, Ordering::Relaxed);
    let key = PartKey { kind: 1, id: 1, sub: 1 };
    let image = || Image {
        parts: vec![ImagePart { key, through: at[30], bytes: Some(Bytes::from_static(b"state")) }],
    };
    bench.journal.chores.check_space().expect("it is looked at later");
    bench.journal.chores.tidy().expect("it is done later");
    let error = bench.journal.chores.save(image()).expect_err("there is no descriptor");
    assert!(error.is_passing(), "{error:?}");
    let error = bench.journal.reader.read(at[0], ALL).expect_err("there is no descriptor");
    assert!(error.is_passing(), "{error:?}");
    bench.put(5000);
    disk.state.no_descriptors.store(false, Ordering::Relaxed);
    bench.journal.chores.save(image()).expect("it is saved");
    bench.journal.chores.tidy().expect("the chores are done");
    bench.check_all();
}
