//! Examines the state that the last stop left behind, and decides what to do about it.
//!
//! A crash can leave at most one torn block at the very end of the log, because no more than one is ever
//! unsynced. Everything else that does not verify is damage, and damage in the durable range is refused
//! rather than skipped. The rules R1 to R10 are those of the storage rules; each is named where it is
//! applied. [`examine`] only reads; [`repair`] then cuts.
//!
//! Of older segments only header and footer are read: the header of the next one says where a segment
//! ends and with which block, so the chain is followed without reading what lies between.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::engine::IndexRun;
use crate::journal::OpenError;
use crate::journal::block::{BLOCK_HEADER, BlockHeader, Flaw, PAGE};
use crate::journal::crypt::{DataKey, KeyedFile, Keyring};
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::format::Format;
use crate::journal::mark::Slot;
use crate::journal::segment::{self, Footer, Head, Link, RunJoiner, Stop, Walk, Window};
use crate::journal::shared::{self, Segment};

/// How much a scan reads at once.
const READ_AHEAD: u64 = 1 << 20;
/// Footers are mostly small.
const READ_FOOTER: u64 = 64 << 10;

/// The findings in the log.
pub(crate) struct Examined {
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// The last good block.
    pub(crate) last: Link,
    /// A next segment that was made ready and holds nothing.
    pub(crate) spare: Option<u64>,
    pub(crate) torn: Option<Torn>,
    pub(crate) runs: Vec<IndexRun>,
    /// Files that an interrupted trim or save left behind.
    pub(crate) leftovers: Vec<String>,
    pub(crate) remarks: Vec<String>,
}

impl Examined {
    /// Where the log ends.
    pub(crate) fn end(&self) -> u64 {
        self.last.end
    }
}

/// A block that was being written when everything stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Torn {
    pub(crate) file: String,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The header in the first block of a segment, or its damage.
type First = Result<Head, Flaw>;

struct Examiner<'a, D: Disk> {
    disk: &'a D,
    format: &'a Format,
    mark: Slot,
    keys: Option<&'a Keyring>,
}

/// Looks at the whole journal and decides whether it may be opened. Changes nothing.
pub(crate) fn examine<D: Disk>(
    disk: &D,
    format: &Format,
    mark: Slot,
    names: &[String],
    keys: Option<&Keyring>,
) -> Result<Examined, OpenError> {
    Examiner { disk, format, mark, keys }.run(names)
}

impl<D: Disk> Examiner<'_, D> {
    fn run(&self, names: &[String]) -> Result<Examined, OpenError> {
        let mut found = Examined {
            segments: BTreeMap::new(),
            last: Link::default(),
            spare: None,
            torn: None,
            runs: Vec::new(),
            leftovers: names.iter().filter(|name| shared::is_temporary(name)).cloned().collect(),
            remarks: Vec::new(),
        };
        let numbers = self.segment_set(names, &mut found.leftovers)?;
        self.flush(&numbers)?;
        let firsts = numbers.iter().map(|&number| self.first_block(number)).collect::<Result<Vec<_>, _>>()?;
        let tail = firsts.iter().rposition(First::is_ok);
        let begun = tail.map_or(0, |tail| tail + 1);
        for index in 0..begun {
            let head = self.good(numbers[index], &firsts[index])?;
            if index > 0 {
                self.check_link(numbers[index], head, &found.last)?;
            }
            match firsts[..begun].get(index + 1) {
                Some(next) => {
                    let next = self.good(numbers[index + 1], next)?;
                    self.examine_closed(numbers[index], head, next, &mut found)?;
                }
                None => self.examine_tail(numbers[index], head, numbers.get(index + 1), &mut found)?,
            }
        }
        self.examine_spare(&numbers[begun..], &firsts[begun..], &mut found)?;
        if found.end() < self.mark.durable_end {
            let number = tail.map_or(self.mark.first, |tail| numbers[tail]);
            let offset = found.end().saturating_sub(self.format.layout.base(number));
            let text = "the log ends here, but it was durable further than that";
            return Err(self.refused("R9", number, offset, found.last.sequence + 1, text));
        }
        Ok(found)
    }

    /// The numbers of the segments that belong to the journal, without a gap.
    fn segment_set(&self, names: &[String], leftovers: &mut Vec<String>) -> Result<Vec<u64>, OpenError> {
        let mut numbers = Vec::new();
        for name in names.iter().filter(|name| name.starts_with("segment-") && !shared::is_temporary(name)) {
            match segment::number(name) {
                Some(number) if number < self.mark.first => leftovers.push(name.clone()),
                Some(number) => numbers.push(number),
                None => return Err(OpenError::refused("R7", name, 0, "it is no segment of this journal")),
            }
        }
        numbers.sort_unstable();
        let nothing_yet = numbers.is_empty() && self.mark.durable_end == 0;
        let last = numbers.last().copied().unwrap_or(self.mark.first);
        for (number, expected) in numbers.iter().copied().map(Some).chain([None]).zip(self.mark.first..=last)
        {
            if number != Some(expected) && !nothing_yet {
                return Err(self.refused("R7", expected, 0, 0, "the segment is missing"));
            }
        }
        Ok(numbers)
    }

    /// Syncs the last files, and makes sure that reads from here on see the contents of the disk: after a
    /// failed sync the page cache may show more than the disk has.
    ///
    /// After a clean stop too. An attempt to open the journal may have failed since, and left a segment
    /// header that was never synced; a chain that is built on it would break with the next loss of power.
    fn flush(&self, numbers: &[u64]) -> Result<(), OpenError> {
        for &number in numbers.iter().rev().take(2) {
            let name = segment::name(number);
            let flushed = self.disk.open(&name).and_then(|file| {
                file.sync_data()?;
                file.forget_cached()
            });
            flushed.map_err(|error| OpenError::unreadable(&name, 0, &error))?;
        }
        Ok(())
    }

    fn first_block(&self, number: u64) -> Result<First, OpenError> {
        let name = segment::name(number);
        let unreadable = |error: io::Error| OpenError::unreadable(&name, 0, &error);
        let file = self.disk.open(&name).map_err(unreadable)?;
        let mut page = [0; PAGE as usize];
        let len = file.read_at(&mut page, 0).map_err(unreadable)?;
        Ok(Head::decode(&page[..len], self.format.id, self.format.layout.base(number)))
    }

    /// The header of a segment that others follow, or that the log goes on in.
    fn good<'f>(&self, number: u64, first: &'f First) -> Result<&'f Head, OpenError> {
        first.as_ref().map_err(|flaw| self.broken_before_another(number, 0, 0, flaw))
    }

    /// The data key of a segment, where the folder is encrypted. That its master key was given has been seen to.
    fn key(&self, number: u64, head: &Head) -> Result<Option<Arc<DataKey>>, OpenError> {
        let key = match (self.keys, &head.key) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err("the segment is encrypted, but the folder is not"),
            (Some(_), None) => Err("the segment is not encrypted, but the folder is"),
            (Some(keys), Some(wrapped)) => {
                keys.unwrap(wrapped, self.format.id, KeyedFile::Segment(number)).map(Some)
            }
        };
        match key {
            Ok(key) => Ok(key.map(Arc::new)),
            Err(flaw) => Err(OpenError::refused("key", &segment::name(number), 0, flaw)),
        }
    }

    /// R8: the chain of blocks goes on from one segment to the next.
    fn check_link(&self, number: u64, head: &Head, last: &Link) -> Result<(), OpenError> {
        let same = head.previous.sequence == last.sequence
            && head.previous.tag == last.tag
            && head.previous.end == last.end;
        if !same {
            let text = "the segment does not continue the one before it";
            return Err(self.refused("R8", number, 0, last.sequence + 1, text));
        }
        if head.link.epoch < last.epoch {
            return Err(self.refused("R8", number, 0, last.sequence + 1, "the epoch goes backwards"));
        }
        Ok(())
    }

    /// A segment that another one follows: its footer is enough, or else its blocks without payloads.
    fn examine_closed(
        &self,
        number: u64,
        head: &Head,
        next: &Head,
        found: &mut Examined,
    ) -> Result<(), OpenError> {
        let layout = &self.format.layout;
        let base = layout.base(number);
        let key = self.key(number, head)?;
        let end = next.previous.end;
        if end < head.link.end || end > base + layout.data_max() {
            let text = "the segment does not continue the one before it";
            return Err(self.refused("R8", number + 1, 0, next.link.sequence, text));
        }
        let name = segment::name(number);
        let unreadable = |error: io::Error| OpenError::unreadable(&name, 0, &error);
        let file = self.disk.open(&name).map_err(unreadable)?;
        let size = file.size().map_err(unreadable)?;
        let mut window = Window::new(&file, size, READ_FOOTER);
        let last = Link { epoch: head.link.epoch, ..next.previous };
        let footer = Footer::read(&mut window, self.format.id, layout, number, last).map_err(unreadable)?;
        let sealed = footer.is_some();
        if let Some(Footer { runs: Some(runs), last_frame, .. }) = footer {
            found.runs.extend(runs);
            found.segments.insert(number, Segment { end: end - base, last_frame, sealed, key });
            found.last = last;
            return Ok(());
        }
        let mut window = Window::new(&file, size, READ_AHEAD);
        let mut runs = RunJoiner::default();
        let walk =
            Walk { id: self.format.id, layout, segment: number, until: Some(end - base), payloads: false };
        let walked = walk.run(&mut window, head, &mut runs).map_err(unreadable)?;
        let offset = walked.last.end - base;
        let expected = walked.last.sequence + 1;
        match walked.stop {
            Stop::Clean => {}
            Stop::Broken(flaw) => return Err(self.broken_before_another(number, offset, expected, flaw)),
            Stop::Unchained(flaw) => return Err(self.refused("R8", number, offset, expected, flaw)),
        }
        found.runs.extend(runs.runs);
        let last_frame = walked.last_frame;
        found.segments.insert(number, Segment { end: end - base, last_frame, sealed, key });
        found.last = walked.last;
        Ok(())
    }

    /// The last segment that has begun: every block of it is verified, payloads included.
    fn examine_tail(
        &self,
        number: u64,
        head: &Head,
        next: Option<&u64>,
        found: &mut Examined,
    ) -> Result<(), OpenError> {
        let layout = &self.format.layout;
        let base = layout.base(number);
        let name = segment::name(number);
        let unreadable = |error: io::Error| OpenError::unreadable(&name, 0, &error);
        let file = self.disk.open(&name).map_err(unreadable)?;
        let size = file.size().map_err(unreadable)?;
        let mut window = Window::new(&file, size, READ_AHEAD);
        let mut runs = RunJoiner::default();
        let walk = Walk { id: self.format.id, layout, segment: number, until: None, payloads: true };
        let walked = walk.run(&mut window, head, &mut runs).map_err(unreadable)?;
        let offset = walked.last.end - base;
        match walked.stop {
            Stop::Clean => {}
            Stop::Unchained(flaw) => {
                return Err(self.refused("R8", number, offset, walked.last.sequence + 1, flaw));
            }
            Stop::Broken(flaw) => {
                let expected = walked.last.sequence + 1;
                found.torn = Some(self.judge(number, offset, expected, flaw, next.copied())?);
            }
        }
        found.runs.extend(runs.runs);
        let last_frame = walked.last_frame;
        let key = self.key(number, head)?;
        found.segments.insert(number, Segment { end: offset, last_frame, sealed: false, key });
        found.last = walked.last;
        if let Some(torn) = &found.torn {
            found.remarks.push(remark(torn));
        }
        Ok(())
    }

    /// Examines the segment after the last one that has begun: it is missing, or was made ready.
    fn examine_spare(
        &self,
        numbers: &[u64],
        firsts: &[First],
        found: &mut Examined,
    ) -> Result<(), OpenError> {
        let (Some(&number), Some(Err(flaw))) = (numbers.first(), firsts.first()) else {
            return Ok(());
        };
        if let Some(&unknown) = numbers.get(1) {
            let text = "no more than one segment is ever made ready ahead";
            return Err(self.refused("R7", unknown, 0, found.last.sequence + 1, text));
        }
        found.spare = Some(number);
        let name = segment::name(number);
        let unreadable = |error: io::Error| OpenError::unreadable(&name, 0, &error);
        let file = self.disk.open(&name).map_err(unreadable)?;
        let size = file.size().map_err(unreadable)?;
        if Window::new(&file, size, READ_AHEAD).last_nonzero(0).map_err(unreadable)?.is_none() {
            return Ok(());
        }
        // Where the log before it is torn too, `judge` has refused already.
        let torn = self.judge(number, 0, found.last.sequence + 1, flaw, None)?;
        found.remarks.push(remark(&torn));
        found.torn = Some(torn);
        Ok(())
    }

    /// The decision table, for a block that is not what it should be at the end of all that is good.
    fn judge(
        &self,
        number: u64,
        offset: u64,
        expected: u64,
        flaw: Flaw,
        next: Option<u64>,
    ) -> Result<Torn, OpenError> {
        let layout = &self.format.layout;
        let position = layout.base(number) + offset;
        if position < self.mark.durable_end {
            let text = format!("{flaw}, and this block was durable");
            return Err(self.refused("R2", number, offset, expected, &text));
        }
        if let Some(next) = next
            && let (_, Some(at)) = self.content(next, 0)?
        {
            let text = format!("{flaw}, and a later segment holds a good block at offset {at}");
            return Err(self.refused("R3", number, offset, expected, &text));
        }
        let (last_nonzero, valid) = self.content(number, offset)?;
        if let Some(at) = valid {
            let text = format!("{flaw}, and a good block follows at offset {at}");
            return Err(self.refused("R4", number, offset, expected, &text));
        }
        let beyond = match next {
            Some(next) => self.content(next, 0)?.0.is_some(),
            None => false,
        };
        let last = last_nonzero.unwrap_or(offset);
        if beyond || last >= offset + layout.block_bytes_max {
            let text = format!("{flaw}, and there is more after it than one block can leave behind");
            return Err(self.refused("R5", number, offset, expected, &text));
        }
        Ok(Torn { file: segment::name(number), offset, len: last + 1 - offset })
    }

    /// The last byte from `offset` on that is not zero, and the first page after it that begins with a
    /// good header for that very position.
    fn content(&self, number: u64, offset: u64) -> Result<(Option<u64>, Option<u64>), OpenError> {
        let layout = &self.format.layout;
        let name = segment::name(number);
        let unreadable = |error: io::Error| OpenError::unreadable(&name, offset, &error);
        let file = self.disk.open(&name).map_err(unreadable)?;
        let size = file.size().map_err(unreadable)?;
        let mut window = Window::new(&file, size, READ_AHEAD);
        let mut at = offset + PAGE;
        let mut valid = None;
        while let Some(bytes) = window.get(at, BLOCK_HEADER as u64).map_err(unreadable)? {
            let position = layout.base(number) + at;
            if BlockHeader::decode(bytes, self.format.id, position, layout.segment_bytes).is_ok() {
                valid = Some(at);
                break;
            }
            at += PAGE;
        }
        Ok((window.last_nonzero(offset).map_err(unreadable)?, valid))
    }

    /// R2 or R3: a block is broken, and the log goes on after it.
    fn broken_before_another(&self, number: u64, offset: u64, expected: u64, flaw: Flaw) -> OpenError {
        let durable = self.format.layout.base(number) + offset < self.mark.durable_end;
        let rule = if durable { "R2" } else { "R3" };
        self.refused(rule, number, offset, expected, &format!("{flaw}, and the log goes on after it"))
    }

    fn refused(&self, rule: &'static str, number: u64, offset: u64, expected: u64, text: &str) -> OpenError {
        OpenError::Refused {
            rule,
            file: segment::name(number),
            offset,
            sequences: (expected, self.mark.sequence.max(expected)),
            text: text.to_owned(),
        }
    }
}

fn remark(torn: &Torn) -> String {
    format!(
        "a block was being written when the server stopped; no client was told that it was stored. Its bytes \
         are kept. file=`{}` offset=`{}` kept_in=`{}`",
        torn.file,
        torn.offset,
        quarantine(torn)
    )
}

fn quarantine(torn: &Torn) -> String {
    format!("quarantine-{}-{}", torn.file, torn.offset)
}

/// R10: keeps the torn bytes in a file of their own, cuts them off, and makes all of it durable. Images
/// that could not be used are set aside by another name.
pub(crate) fn repair<D: Disk>(disk: &D, examined: &Examined, unusable: &[String]) -> io::Result<()> {
    if let Some(torn) = &examined.torn {
        let file = disk.open(&torn.file)?;
        let mut bytes = vec![0; torn.len as usize];
        let len = file.read_at(&mut bytes, torn.offset)?;
        shared::replace_file(disk, &quarantine(torn), &[&bytes[..len]])?;
        file.truncate(torn.offset)?;
        file.sync_all()?;
    }
    for name in unusable {
        disk.rename(name, &format!("quarantine-{name}"))?;
    }
    // The names of the last files have to be durable before anything that is in them is served.
    disk.sync_folder()
}
