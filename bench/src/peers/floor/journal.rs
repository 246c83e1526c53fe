//! The floor's log: files of zeros that are written over, with one sync for each batch.
//!
//! A file is used again once no group waits for anything in it or before it. While no file can be used again, a
//! thread fills new ones with zeros.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::io::pwritev;

/// Not more at a time: the kernel keeps bytes that are written at once as one piece of its cache, and counts the whole
/// piece as written whenever a part of it is.
const FILL_BYTES: usize = 64 << 10;
/// Files that are ready before they are needed, beside the one that waits to be put there.
const READY: usize = 1;

pub(super) struct Journal {
    /// Oldest first; the last is being written.
    segments: VecDeque<Segment>,
    free: Vec<File>,
    ready: Receiver<std::io::Result<File>>,
    segment_bytes: u64,
    offset: u64,
}

struct Segment {
    file: File,
    /// The last message in it, counted over all queues.
    last: u64,
    /// Messages in it that some group still waits for, once for each group.
    live: u64,
}

impl Journal {
    pub(super) fn open(folder: &Path, segment_bytes: u64) -> std::io::Result<Journal> {
        std::fs::create_dir_all(folder)?;
        let (sender, ready) = sync_channel(READY);
        let folder = folder.to_owned();
        std::thread::spawn(move || prepare(&folder, segment_bytes, &sender));
        let (segments, free) = (VecDeque::new(), Vec::new());
        let mut journal = Journal { segments, free, ready, segment_bytes, offset: 0 };
        journal.roll(0)?;
        Ok(journal)
    }

    /// Makes a batch durable. It holds the messages up to `last`, `live` of them for all groups together.
    pub(super) fn commit(&mut self, parts: [&[u8]; 2], last: u64, live: u64) -> std::io::Result<()> {
        let len = (parts[0].len() + parts[1].len()) as u64;
        if self.offset + len > self.segment_bytes {
            self.roll(last)?;
        }
        let segment = self.segments.back_mut().expect("one segment is being written");
        segment.last = last;
        segment.live += live;
        let written = pwritev(&segment.file, &parts.map(IoSlice::new), self.offset)?;
        if written as u64 != len {
            return Err(std::io::Error::other("the disk took only a part of a batch"));
        }
        segment.file.sync_data()?;
        self.offset += len;
        Ok(())
    }

    /// A group is done with these messages, all of one batch.
    pub(super) fn release(&mut self, first: u64, count: u64) {
        let at = self.segments.partition_point(|segment| segment.last < first);
        self.segments[at].live -= count;
        while self.segments.len() > 1 && self.segments[0].live == 0 {
            self.free.extend(self.segments.pop_front().map(|segment| segment.file));
        }
    }

    fn roll(&mut self, last: u64) -> std::io::Result<()> {
        let file = match self.free.pop() {
            Some(file) => file,
            None => self.ready.recv().map_err(std::io::Error::other)??,
        };
        self.segments.push_back(Segment { file, last, live: 0 });
        self.offset = 0;
        Ok(())
    }
}

fn prepare(folder: &Path, len: u64, ready: &SyncSender<std::io::Result<File>>) {
    for number in 1_u64.. {
        if ready.send(fill(folder.join(format!("segment-{number:010}")), len)).is_err() {
            return;
        }
    }
}

fn fill(path: PathBuf, len: u64) -> std::io::Result<File> {
    let mut file = File::create(path)?;
    let zeros = vec![0; FILL_BYTES];
    for _ in 0..len.div_ceil(FILL_BYTES as u64) {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}
