//! Ways in which a disk, or a person with a file manager, can spoil one file.

use std::fmt;

use super::folders::Folder;
use crate::dice::Dice;
use crate::disk::{SavedFile, SimDisk};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    FlipHeader,
    FlipBody,
    ZeroSector,
    ZeroPage,
    CopyBlock,
    SwapBlocks,
    SwapFiles,
    Cut,
    Delete,
    Duplicate,
    RestoreOld,
    Append,
    /// No damage to the file: a call fails once, and works the next time.
    Unreadable,
}

/// One thing done to one file, or to two where the kind says so: the files to put in place of theirs,
/// `None` for one that is gone.
pub(crate) struct Damage {
    pub(crate) kind: Kind,
    what: String,
    files: Vec<(String, Option<SavedFile>)>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.what)
    }
}

impl Damage {
    /// Whether the journal must start all the same: there is a second copy by design, of the state in another image,
    /// and of MARK in its other slot, or nothing is stored there.
    pub(crate) fn leaves_a_copy(&self, folder: &Folder) -> bool {
        let [(name, Some(_))] = &self.files[..] else { return false };
        let is_flip = matches!(self.kind, Kind::FlipHeader | Kind::FlipBody);
        match name.split('-').next() {
            Some("image") => is_flip && folder.witness.has_two_images(),
            Some("MARK") => is_flip || self.kind == Kind::ZeroSector,
            Some("RESERVE") => is_flip,
            _ => false,
        }
    }

    pub(crate) fn apply(&self, disk: &SimDisk) {
        for (name, content) in &self.files {
            match content {
                Some(content) => disk.restore(name, content),
                None => disk.remove(name),
            }
        }
    }
}

/// Tries all damage on a folder, one after the other. What would change nothing is left out.
pub(crate) fn each(folder: &Folder, dice: &mut Dice, one_in: u64, trial: &mut dyn FnMut(&Damage)) {
    let mut plan = Plan { folder, scratch: folder.disk.fork(), dice, one_in, trial };
    for name in folder.disk.files() {
        plan.flips(&name);
        plan.zeros(&name);
        plan.cuts(&name);
        plan.appends(&name);
        plan.blocks(&name);
        plan.whole_file(&name);
    }
    plan.swapped_files();
}

struct Plan<'a> {
    folder: &'a Folder,
    /// Where single damages are made and taken back, so that the kept copies share all other pages.
    scratch: SimDisk,
    dice: &'a mut Dice,
    one_in: u64,
    trial: &'a mut dyn FnMut(&Damage),
}

impl Plan<'_> {
    fn bytes(&self, name: &str) -> Vec<u8> {
        self.folder.disk.contents(name).expect("the folder lists it")
    }

    fn sampled(&mut self) -> bool {
        self.dice.chance(1, self.one_in)
    }

    /// Remembers what `change` makes of a file.
    fn change(&mut self, kind: Kind, name: &str, what: &str, change: impl FnOnce(&SimDisk)) {
        let before = self.scratch.save(name).expect("the folder lists it");
        change(&self.scratch);
        let after = self.scratch.save(name);
        self.scratch.restore(name, &before);
        let what = format!("{what} of {name}");
        (self.trial)(&Damage { kind, what, files: vec![(name.to_string(), after)] });
    }

    fn flips(&mut self, name: &str) {
        let bytes = self.bytes(name);
        let headers = header_bytes(&bytes);
        for (at, header) in headers.into_iter().enumerate() {
            let kind = if header { Kind::FlipHeader } else { Kind::FlipBody };
            // Empty space is much of a segment and all alike, so it is sampled more thinly.
            let chosen = match header {
                true => self.one_in < 8 || self.dice.chance(1, 4),
                false => self.sampled() && (bytes[at] != 0 || self.dice.chance(1, 20)),
            };
            if chosen {
                let bit = self.dice.roll(8);
                let flipped = bytes[at] ^ (1 << bit);
                self.change(kind, name, &format!("bit {bit} at {at}"), |disk| {
                    disk.patch(name, at as u64, &[flipped]);
                });
            }
        }
    }

    fn zeros(&mut self, name: &str) {
        let bytes = self.bytes(name);
        for (kind, unit) in [(Kind::ZeroSector, SECTOR), (Kind::ZeroPage, PAGE)] {
            for (index, part) in bytes.chunks(unit).enumerate() {
                if part.iter().any(|byte| *byte != 0)
                    && (unit == PAGE || self.one_in < 8 || self.dice.chance(1, 4))
                {
                    let at = (index * unit) as u64;
                    let zeros = vec![0; part.len()];
                    self.change(kind, name, &format!("{unit} bytes at {at}"), |disk| {
                        disk.patch(name, at, &zeros);
                    });
                }
            }
        }
    }

    fn cuts(&mut self, name: &str) {
        let len = self.bytes(name).len();
        for at in (0..len).step_by(SECTOR) {
            if at % PAGE == 0 || self.sampled() {
                self.change(Kind::Cut, name, &format!("at {at}"), |disk| disk.cut(name, at as u64));
            }
        }
        if len > 0 {
            self.change(Kind::Cut, name, &format!("at {}", len - 1), |disk| disk.cut(name, len as u64 - 1));
        }
    }

    fn appends(&mut self, name: &str) {
        let len = self.bytes(name).len() as u64;
        for count in [1, SECTOR, PAGE, 20 * PAGE] {
            let garbage = self.dice.bytes(count);
            self.change(Kind::Append, name, &format!("{count} bytes of garbage at the end"), |disk| {
                disk.patch(name, len, &garbage);
            });
        }
        self.change(Kind::Append, name, "a page of zeros at the end", |disk| {
            disk.patch(name, len, &[0; PAGE]);
        });
    }

    /// Blocks of this file over blocks of the same file, and over those of others.
    fn blocks(&mut self, name: &str) {
        let bytes = self.bytes(name);
        let here = blocks(&bytes);
        for from in &here {
            for to in here.iter().filter(|to| *to != from) {
                let (source, target) = (&bytes[from.clone()], &bytes[to.clone()]);
                let what = format!("{from:?} over {to:?}");
                self.change(Kind::CopyBlock, name, &what, |disk| disk.patch(name, to.start as u64, source));
                if from.start < to.start {
                    let len = source.len().min(target.len());
                    let what = format!("{len} bytes at {} and {}", from.start, to.start);
                    self.change(Kind::SwapBlocks, name, &what, |disk| {
                        disk.patch(name, from.start as u64, &target[..len]);
                        disk.patch(name, to.start as u64, &source[..len]);
                    });
                }
            }
        }
        for other in self.folder.disk.files().iter().filter(|other| *other != name) {
            let theirs = self.bytes(other);
            for from in blocks(&theirs) {
                for to in &here {
                    if self.one_in < 8 || self.dice.chance(1, 4) {
                        let what = format!("{from:?} of {other} over {to:?}");
                        let source = &theirs[from.clone()];
                        self.change(Kind::CopyBlock, name, &what, |disk| {
                            disk.patch(name, to.start as u64, source);
                        });
                    }
                }
            }
        }
    }

    fn whole_file(&mut self, name: &str) {
        self.change(Kind::Delete, name, "all", |disk| disk.remove(name));
        let now = self.folder.disk.save(name).expect("the folder lists it");
        let bytes = now.bytes();
        for next in next_names(name, &self.folder.disk.files()) {
            let what = format!("{name} as {next}");
            (self.trial)(&Damage { kind: Kind::Duplicate, what, files: vec![(next, Some(now.clone()))] });
        }
        let mut tried = vec![bytes];
        for (moment, past) in self.folder.past.iter().enumerate() {
            let Some(old) = past.save(name) else { continue };
            let old_bytes = old.bytes();
            if !tried.contains(&old_bytes) {
                tried.push(old_bytes);
                self.change(Kind::RestoreOld, name, &format!("as at step {moment}"), |disk| {
                    disk.restore(name, &old);
                });
            }
        }
    }

    fn swapped_files(&mut self) {
        let names = self.folder.disk.files();
        for (at, first) in names.iter().enumerate() {
            for second in &names[at + 1..] {
                let (one, two) = (self.folder.disk.save(first), self.folder.disk.save(second));
                if self.bytes(first) != self.bytes(second) {
                    let what = format!("{first} and {second}");
                    let files = vec![(first.clone(), two), (second.clone(), one)];
                    (self.trial)(&Damage { kind: Kind::SwapFiles, what, files });
                }
            }
        }
    }
}

/// Which bytes of a file belong to headers: the first sector of the file and of its second page, where
/// MARK has its slots, and whatever follows the magic of a block or of a frame.
fn header_bytes(bytes: &[u8]) -> Vec<bool> {
    let mut headers = vec![false; bytes.len()];
    let mut mark = |from: usize, len: usize| {
        let end = bytes.len().min(from + len);
        if from < end {
            headers[from..end].fill(true);
        }
    };
    mark(0, 64);
    if bytes.len() <= 2 * PAGE {
        mark(0, SECTOR);
        mark(PAGE, SECTOR);
    }
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(b"FBYBLOCK") {
            mark(at, 128);
        } else if bytes[at..].starts_with(b"FRAM") {
            mark(at, 48);
        }
    }
    headers
}

/// Where the blocks of a file lie, each up to the next or to the last byte that is not zero.
fn blocks(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(PAGE));
    let end = end.min(bytes.len());
    let starts: Vec<usize> =
        (0..end).step_by(PAGE).filter(|at| bytes[*at..].starts_with(b"FBYBLOCK")).collect();
    let ends = starts.iter().skip(1).copied().chain([end]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// The name with its number one higher, and the first name of this kind that no file has. A file without a
/// number gets one.
fn next_names(name: &str, names: &[String]) -> Vec<String> {
    let digits = name.find(|letter: char| letter.is_ascii_digit());
    let numbered = |step: u64| match digits {
        Some(start) => {
            let len =
                name[start..].find(|letter: char| !letter.is_ascii_digit()).unwrap_or(name.len() - start);
            let number: u64 = name[start..start + len].parse().unwrap_or(0);
            format!("{}{:0len$}{}", &name[..start], number + step, &name[start + len..])
        }
        None => format!("{name}{step}"),
    };
    let mut next = vec![numbered(1)];
    let free = (1..).map(numbered).find(|name| !names.contains(name));
    next.extend(free.filter(|free| *free != next[0]));
    next
}
