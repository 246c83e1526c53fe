//! A disk in memory that does what disks do when the power fails.
//!
//! Reads see every write at once, as they do through a page cache. What a loss of power leaves is another
//! matter: contents are durable after a sync of the file, names after a sync of the folder, and of unsynced
//! writes any subset may be there, sector by sector and name by name. Killing the process is gentler: the
//! page cache survives, and only locks are gone.
//!
//! A fuse stops the process at a chosen call, so that a sweep can stop it at each. Single calls can be
//! made to fail, space can run out, and the stage that the journal says it is in is remembered, so that
//! a simulator can count where its crashes fell.

mod calls;
mod content;
mod inode;
mod survival;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_storage::journal::crypt::{Keyring, MasterKey};
use forebay_storage::journal::disk::Stage;

use crate::dice::Dice;
pub use calls::{SimFile, SimLock};
use content::{Content, FILE_BYTES_MAX};
use inode::Inode;
use survival::Chooser;
pub use survival::Survival;

/// A folder on a simulated disk, as one process sees it. Clones are the same disk and the same process.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    /// Which process this handle belongs to. A handle of a process that was killed can do nothing more,
    /// so that a journal that is dropped late cannot write into its successor's files.
    process: u64,
}

static ENCRYPT: AtomicBool = AtomicBool::new(false);

/// From now on, the folder of every new disk is encrypted.
pub fn encrypt_all() {
    ENCRYPT.store(true, Ordering::Relaxed);
}

/// Which calls a fuse or a planted error counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Count {
    /// Calls that change something or sync it. A crash at any other call leaves the same disk as a
    /// crash at the next of these.
    Changes,
    /// Every call.
    All,
}

/// How many calls there have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    pub changes: u64,
    pub all: u64,
}

impl Calls {
    pub fn get(self, count: Count) -> u64 {
        match count {
            Count::Changes => self.changes,
            Count::All => self.all,
        }
    }
}

/// Where a fuse blew or a planted error struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struck {
    pub stage: Stage,
    /// The call in progress, with the file it was for.
    pub call: String,
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.stage, self.call)
    }
}

/// The content of a file, set aside to be put back later.
#[derive(Debug, Clone)]
pub struct SavedFile(Content);

type InodeId = u64;

#[derive(Clone)]
struct State {
    inodes: BTreeMap<InodeId, Inode>,
    inodes_made: u64,
    /// Names as the process sees them.
    names: BTreeMap<String, InodeId>,
    /// Names as they are certain to be after a loss of power.
    names_durable: BTreeMap<String, InodeId>,
    names_pending: Vec<NameChange>,
    locks: BTreeSet<String>,
    process: u64,
    capacity: u64,
    calls: Calls,
    stage: Stage,
    fuse: Option<(Count, u64)>,
    blown: Option<Struck>,
    error: Option<(Count, u64, ErrorKind)>,
    error_struck: Option<Struck>,
    read_bytes_max: usize,
    bad_reads: BadReads,
    /// The state of the source of random numbers for the keys of an encrypted folder; `None` if it is not encrypted.
    entropy: Option<u64>,
}

/// Reads that fail while frames are read in service.
#[derive(Debug, Clone, Default)]
struct BadReads {
    /// Only then do they fail.
    serving: bool,
    /// So many of the next calls find no free descriptor.
    no_descriptor: u32,
    /// So many of the next new files find no free descriptor.
    no_file: u32,
    /// The next read of a file fails once.
    once: bool,
    /// One has failed.
    failed: bool,
    /// Places that cannot be read any more, by file and page.
    places: BTreeSet<(String, u64)>,
}

/// Bytes that a bad place takes along.
const PAGE: u64 = 4 << 10;

#[derive(Debug, Clone)]
enum NameChange {
    Create { name: String, inode: InodeId },
    Rename { from: String, to: String },
    Delete { name: String },
}

impl Default for SimDisk {
    fn default() -> SimDisk {
        SimDisk::new()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let files: Vec<_> =
            state.names.iter().map(|(name, id)| (name, state.inodes[id].live.size())).collect();
        f.debug_struct("SimDisk").field("files", &files).field("blown", &state.blown).finish()
    }
}

impl SimDisk {
    pub fn new() -> SimDisk {
        let state = State {
            inodes: BTreeMap::new(),
            inodes_made: 0,
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            names_pending: Vec::new(),
            locks: BTreeSet::new(),
            process: 0,
            capacity: u64::MAX,
            calls: Calls::default(),
            stage: Stage::Idle,
            fuse: None,
            blown: None,
            error: None,
            error_struck: None,
            read_bytes_max: 0,
            bad_reads: BadReads::default(),
            entropy: ENCRYPT.load(Ordering::Relaxed).then_some(1),
        };
        SimDisk { state: Arc::new(Mutex::new(state)), process: 0 }
    }

    /// A disk whose folder is encrypted. Its keys follow from its history, as everything else does.
    pub fn encrypted() -> SimDisk {
        let disk = SimDisk::new();
        disk.state().entropy = Some(1);
        disk
    }

    /// The keys of the folder, if it is encrypted.
    pub fn keys(&self) -> Option<Keyring> {
        self.state().entropy?;
        let state = self.state.clone();
        let entropy = move |bytes: &mut [u8]| {
            let mut state = state.lock().expect("no call on the disk panics half way");
            let next = state.entropy.map_or(1, |last| last + 1);
            state.entropy = Some(next);
            let mut dice = Dice::from(next);
            bytes.fill_with(|| dice.u64() as u8);
            Ok(())
        };
        Some(Keyring::new(vec![MasterKey::new(&[7; 32])], entropy).expect("there is one key"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call on the disk panics half way")
    }

    /// A copy that from now on has a history of its own. It has no open handles or locks yet, so it is as
    /// if the process had been killed there; only unsynced writes are still unsynced.
    pub fn fork(&self) -> SimDisk {
        let state = self.state().clone();
        let mut copy = SimDisk { process: state.process, state: Arc::new(Mutex::new(state)) };
        copy.kill();
        copy.defuse();
        copy
    }

    /// The process dies. What it wrote is still in the page cache, and unsynced; its locks are released,
    /// and no handle but this one, and clones made of it from now on, works any more. A fuse that has not
    /// blown yet waits for the next process.
    pub fn kill(&mut self) {
        let mut state = self.state.lock().expect("no call on the disk panics half way");
        state.process += 1;
        state.locks.clear();
        if state.blown.take().is_some() {
            state.fuse = None;
        }
        state.stage = Stage::Idle;
        state.bad_reads.no_file = 0;
        self.process = state.process;
        let named: BTreeSet<InodeId> = state
            .names
            .values()
            .chain(state.names_durable.values())
            .copied()
            .chain(state.pending_inodes())
            .collect();
        state.inodes.retain(|id, _| named.contains(id));
    }

    /// Power fails, and dice decide which unsynced writes survive.
    pub fn power_loss(&mut self, dice: &mut Dice) {
        self.lose_power(Survival::Random(dice.u64()));
    }

    /// Power fails, and `survival` decides which unsynced writes survive.
    pub fn lose_power(&mut self, survival: Survival) {
        let mut chooser = Chooser::new(survival);
        {
            let mut state = self.state();
            state.lose_names(&mut chooser);
            for inode in state.inodes.values_mut() {
                inode.lose_power(&mut chooser);
            }
        }
        self.kill();
    }

    /// From now on the `n`-th call that is counted does not happen, or, if it is a write, only in part;
    /// it and every later call fail until the process is killed or power is lost. The next call is 1.
    pub fn crash_at(&self, count: Count, n: u64) {
        assert!(n > 0, "the next call is the first");
        let mut state = self.state();
        state.fuse = Some((count, state.calls.get(count) + n));
    }

    /// Takes out the fuse and the planted error.
    pub fn defuse(&self) {
        let mut state = self.state();
        state.fuse = None;
        state.error = None;
        state.error_struck = None;
        state.bad_reads.no_file = 0;
    }

    /// Where the fuse blew, if it did.
    pub fn crashed(&self) -> Option<Struck> {
        self.state().blown.clone()
    }

    /// From now on the `n`-th call that is counted fails once with this error. A failed sync has lost
    /// what it should have written: reads still see it, a second sync succeeds, and it is not there
    /// after a loss of power. A failed write may have happened in part; any other call has not happened.
    pub fn fail_at(&self, count: Count, n: u64, kind: ErrorKind) {
        assert!(n > 0, "the next call is the first");
        let mut state = self.state();
        state.error = Some((count, state.calls.get(count) + n, kind));
        state.error_struck = None;
    }

    /// Where the planted error struck, if it did.
    pub fn failed(&self) -> Option<Struck> {
        self.state().error_struck.clone()
    }

    /// Frames are read in service from now on, or not any more. Only those reads fail.
    pub fn serve_reads(&self, serving: bool) {
        self.state().bad_reads.serving = serving;
    }

    /// So many of the next calls find no free descriptor.
    pub fn exhaust_descriptors(&self, calls: u32) {
        self.state().bad_reads.no_descriptor = calls;
    }

    /// So many of the next new files find no free descriptor, until the process dies.
    pub fn exhaust_files(&self, files: u32) {
        self.state().bad_reads.no_file = files;
    }

    /// The next read fails.
    pub fn fail_read_once(&self) {
        self.state().bad_reads.once = true;
    }

    /// Whether a read failed in service, or a page of a file cannot be read.
    pub fn is_spoiled(&self) -> bool {
        let bad = &self.state().bad_reads;
        bad.failed || !bad.places.is_empty()
    }

    /// A page of a file cannot be read any more.
    pub fn spoil_page(&self, name: &str, page: u64) {
        self.state().bad_reads.places.insert((name.to_owned(), page));
    }

    pub fn calls(&self) -> Calls {
        self.state().calls
    }

    /// What the journal said last that it was about to do.
    pub fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Bytes that all files take together.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// How many bytes all files together may have. Files that are larger already stay as they are.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// The largest buffer that anyone asked to have filled. A reader that believes a damaged length shows
    /// here.
    pub fn read_bytes_max(&self) -> usize {
        self.state().read_bytes_max
    }

    /// Whether a loss of power now would change nothing.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        state.names_pending.is_empty() && state.inodes.values().all(Inode::is_settled)
    }
}

/// Access from outside, for sweeps that damage files. None of it counts as a call, and all of it is
/// durable at once.
impl SimDisk {
    pub fn files(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).map(|id| state.inodes[id].live.to_bytes())
    }

    /// Sets a file's content, and makes the file if it does not exist.
    pub fn replace(&self, name: &str, bytes: &[u8]) {
        self.restore(name, &SavedFile(Content::from_bytes(bytes)));
    }

    /// Changes some bytes of a file, which grows if they do not fit.
    pub fn patch(&self, name: &str, offset: u64, bytes: &[u8]) {
        let mut saved = self.save(name).expect("only a file that is there is patched");
        saved.0.resize(saved.0.size().max(offset + bytes.len() as u64));
        saved.0.write(offset, bytes);
        self.restore(name, &saved);
    }

    pub fn cut(&self, name: &str, len: u64) {
        let mut saved = self.save(name).expect("only a file that is there is cut");
        saved.0.resize(len);
        self.restore(name, &saved);
    }

    pub fn remove(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name).expect("only a file that is there is removed");
        state.settle_names();
    }

    pub fn copy(&self, from: &str, to: &str) {
        let saved = self.save(from).expect("only a file that is there is copied");
        self.restore(to, &saved);
    }

    /// A file's content, to be put back by [`SimDisk::restore`], here or in a fork.
    pub fn save(&self, name: &str) -> Option<SavedFile> {
        let state = self.state();
        state.names.get(name).map(|id| SavedFile(state.inodes[id].live.clone()))
    }

    /// Sets a file's content to one that was saved, and makes the file if it does not exist.
    pub fn restore(&self, name: &str, saved: &SavedFile) {
        let mut state = self.state();
        let id = match state.names.get(name) {
            Some(id) => *id,
            None => state.link(name),
        };
        state.inodes.insert(id, Inode::settled(saved.0.clone()));
        state.settle_names();
    }
}

impl SavedFile {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }
}

/// What a call on the disk comes to once fuse and planted errors have been looked at.
enum Verdict {
    Go,
    /// The fuse blows here: a write may happen in part.
    Blow(io::Error),
    /// This call fails: a write may happen in part, and a sync loses what it should have written.
    Fail(io::Error),
}

impl State {
    /// Counts a call and decides what becomes of it.
    fn call(&mut self, process: u64, changes: bool, what: impl FnOnce() -> String) -> io::Result<Verdict> {
        if process != self.process {
            return Err(io::Error::other("the process that opened this has been killed"));
        }
        if self.blown.is_some() {
            return Err(io::Error::other("the simulated process has crashed"));
        }
        self.calls.all += 1;
        self.calls.changes += u64::from(changes);
        let due = |count: Count, at: u64| (changes || count == Count::All) && self.calls.get(count) == at;
        if self.fuse.is_some_and(|(count, at)| due(count, at)) {
            self.blown = Some(Struck { stage: self.stage, call: what() });
            return Ok(Verdict::Blow(io::Error::other("the simulated process crashes here")));
        }
        if let Some((count, at, kind)) = self.error
            && due(count, at)
        {
            self.error = None;
            self.error_struck = Some(Struck { stage: self.stage, call: what() });
            return Ok(Verdict::Fail(io::Error::new(kind, "a planted error")));
        }
        Ok(Verdict::Go)
    }

    /// Counts a call that happens whole or not at all.
    fn whole_call(&mut self, process: u64, changes: bool, what: impl FnOnce() -> String) -> io::Result<()> {
        match self.call(process, changes, what)? {
            Verdict::Go => Ok(()),
            Verdict::Blow(error) | Verdict::Fail(error) => Err(error),
        }
    }

    fn link(&mut self, name: &str) -> InodeId {
        self.inodes_made += 1;
        let inode = self.inodes_made;
        self.inodes.insert(inode, Inode::default());
        self.names.insert(name.to_string(), inode);
        self.names_pending.push(NameChange::Create { name: name.to_string(), inode });
        inode
    }

    fn settle_names(&mut self) {
        self.names_pending.clear();
        self.names_durable = self.names.clone();
    }

    fn pending_inodes(&self) -> impl Iterator<Item = InodeId> {
        self.names_pending.iter().filter_map(|change| match change {
            NameChange::Create { inode, .. } => Some(*inode),
            NameChange::Rename { .. } | NameChange::Delete { .. } => None,
        })
    }

    /// Loses any of the changes of names, except that a change never survives one to the same name that
    /// came before it and was lost. A rename is one change of two names.
    fn lose_names(&mut self, chooser: &mut Chooser) {
        let mut lost: BTreeSet<String> = BTreeSet::new();
        for change in std::mem::take(&mut self.names_pending) {
            let (first, second) = change.names();
            let builds_on_lost = lost.contains(first) || second.is_some_and(|name| lost.contains(name));
            if builds_on_lost || !chooser.name_kept() {
                lost.insert(first.to_string());
                lost.extend(second.map(str::to_string));
                continue;
            }
            match change {
                NameChange::Create { name, inode } => {
                    self.names_durable.insert(name, inode);
                }
                NameChange::Rename { from, to } => {
                    let inode =
                        self.names_durable.remove(&from).expect("a rename builds on a name that is there");
                    self.names_durable.insert(to, inode);
                }
                NameChange::Delete { name } => {
                    self.names_durable.remove(&name);
                }
            }
        }
        self.names = self.names_durable.clone();
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.inodes[id].live.size()).sum()
    }

    /// Refuses to let a file grow to `size` if there is no space for that.
    fn room_to_grow(&self, inode: InodeId, size: u64) -> io::Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "no file of a history is that large"));
        }
        let growth = size.saturating_sub(self.inodes[&inode].live.size());
        if growth > 0 && self.used().saturating_add(growth) > self.capacity {
            return Err(io::Error::new(ErrorKind::StorageFull, "no space left on the simulated disk"));
        }
        Ok(())
    }

    fn inode(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("a file that this process has open is kept")
    }

    fn find(&self, name: &str) -> io::Result<InodeId> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no file {name}")))
    }
}

impl NameChange {
    fn names(&self) -> (&str, Option<&str>) {
        match self {
            NameChange::Create { name, .. } | NameChange::Delete { name } => (name, None),
            NameChange::Rename { from, to } => (from, Some(to)),
        }
    }
}
