//! The way over the whole log, around whatever is damaged.
//!
//! Blocks name their own position, and so do frames, by the seed of their checksums. So behind a damaged
//! stretch the way is found again: at the next page that begins with a good block, and within the stretch
//! at every frame whose header proves good. A flipped bit costs what it lies in, and no more.
//!
//! One segment is read at a time, and of that a block; only where a stretch is damaged, all of the stretch.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::types::{Epoch, Position};

use super::{Damage, DamageKind, Inspection};
use crate::engine::{IndexRun, Run};
use crate::journal::block::{
    BLOCK_HEADER, BlockHeader, CHUNK, FRAME_HEADER, FRAME_MAGIC, Flaw, FrameHeader, Kind, PAGE, Tag,
    decode_runs,
};
use crate::journal::chores;
use crate::journal::crypt::{DataKey, KeyedFile, PLAIN_CHUNK};
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::reader::unlocked;
use crate::journal::segment::{self, Footer, Head, Link, RunJoiner, Window, follows};

/// How much is read at once.
const READ_AHEAD: u64 = 1 << 20;
/// Footers are mostly small.
const READ_FOOTER: u64 = 64 << 10;

/// The findings of the scan, in the order of the log.
#[derive(Debug)]
pub enum Found<'a> {
    Frame(ScannedFrame<'a>),
    Damage(Damage),
    /// So many bytes of segment files are behind us.
    Passed(u64),
}

/// A frame whose entries are as they were written. Its contents may not all be.
#[derive(Debug)]
pub struct ScannedFrame<'a> {
    pub position: Position,
    /// The epoch of the owner that wrote it; 0 where the block around it is damaged.
    pub epoch: Epoch,
    pub entries: &'a [u8],
    pub runs: Vec<Run>,
    /// Ends early where the file does.
    pub payload: &'a [u8],
    /// Which stretches of the payload are not as they were written, in order.
    pub damaged: Vec<Range<usize>>,
}

/// The totals of a scan.
#[derive(Debug, Clone, Default)]
pub struct Scanned {
    pub blocks: u64,
    pub frames: u64,
    /// Frames that are encrypted with a key that was not given. They are not handed out.
    pub locked: u64,
    /// Segments with a good footer.
    pub sealed: u64,
    /// Where the first segment begins, and where the last good block ends.
    pub start: Position,
    pub end: Position,
    pub remarks: Vec<String>,
}

type Visit<'v, E> = &'v mut dyn FnMut(Found<'_>) -> Result<(), E>;

impl<D: Disk> Inspection<D> {
    /// Goes over the whole log and hands out its frames and its damage.
    pub fn scan<E>(&self, visit: Visit<'_, E>) -> Result<Scanned, E> {
        let numbers = self.segment_numbers();
        let firsts = numbers.into_iter().map(|number| First::of(self, number)).collect();
        let scan = Scan {
            of: self,
            visit,
            scanned: Scanned::default(),
            last: None,
            runs: RunJoiner::default(),
            flawed: false,
        };
        scan.run(firsts)
    }
}

/// The facts about a segment that are known before its blocks are read.
struct First {
    number: u64,
    size: u64,
    head: Result<Head, String>,
    /// Whether there is anything in it.
    begun: bool,
}

impl First {
    fn of<D: Disk>(inspection: &Inspection<D>, number: u64) -> First {
        let head = inspection.head(number);
        let name = segment::name(number);
        let size = inspection.size(&name).unwrap_or(0);
        let begun = head.is_ok()
            || inspection.disk.open(&name).is_ok_and(|file| {
                // Unreadable bytes do not count as zeros.
                Window::new(&file, size, READ_AHEAD).last_nonzero(0).map_or(true, |last| last.is_some())
            });
        First { number, size, head, begun }
    }
}

struct Scan<'a, D: Disk, E> {
    of: &'a Inspection<D>,
    visit: Visit<'a, E>,
    scanned: Scanned,
    /// The block that the next one has to follow; none behind damage.
    last: Option<Link>,
    /// The runs of the segment that is being read, and whether something is wrong with it.
    runs: RunJoiner,
    flawed: bool,
}

/// A segment that is being read.
struct Place<'a, F> {
    file: &'a F,
    number: u64,
    name: String,
    base: u64,
    /// Where its blocks end, if the next segment says so.
    until: Option<u64>,
    /// Its blocks lie before this offset, as far as the file goes.
    data_end: u64,
    /// Whether nothing was begun after it.
    is_tail: bool,
    lock: Lock,
}

/// The data key of a segment.
enum Lock {
    /// It is not encrypted.
    None,
    Open(Arc<DataKey>),
    /// Its master key was not given.
    NotGiven,
    /// Both copies of it are damaged.
    Lost,
}

impl<D: Disk, E> Scan<'_, D, E> {
    fn run(mut self, firsts: Vec<First>) -> Result<Scanned, E> {
        let layout = self.of.format.layout;
        let mark = self.of.mark;
        let mut expected = mark.map(|mark| mark.first).or(firsts.first().map(|first| first.number));
        self.scanned.start = Position(layout.base(expected.unwrap_or(0)));
        let begun = firsts.iter().rposition(|first| first.begun).map_or(0, |tail| tail + 1);
        for (index, first) in firsts[..begun].iter().enumerate() {
            if let Some(expected) = expected.filter(|&expected| expected < first.number) {
                self.missing(expected, first.number)?;
            }
            expected = Some(first.number + 1);
            let next = firsts.get(index + 1).filter(|next| next.number == first.number + 1);
            let until = next.and_then(|next| next.head.as_ref().ok()).map(|head| head.previous.end);
            self.segment(first, until, index + 1 == begun)?;
            (self.visit)(Found::Passed(first.size))?;
        }
        for first in &firsts[begun..] {
            (self.visit)(Found::Passed(first.size))?;
        }
        if let Some(mark) = mark.filter(|mark| self.scanned.end.0 < mark.durable_end) {
            let lost_from = self.scanned.end.0.max(layout.base(mark.first));
            self.damage(Damage {
                kind: DamageKind::Missing,
                file: segment::name(layout.segment_of(lost_from)),
                offset: layout.offset_of(lost_from),
                len: mark.durable_end - lost_from,
                position: Some(Position(lost_from)),
                what: "the log ends here, but it was durable further than that".to_owned(),
            })?;
        }
        Ok(self.scanned)
    }

    fn damage(&mut self, damage: Damage) -> Result<(), E> {
        self.flawed |= !damage.kind.is_harmless();
        (self.visit)(Found::Damage(damage))
    }

    fn missing(&mut self, from: u64, to: u64) -> Result<(), E> {
        self.last = None;
        let layout = self.of.format.layout;
        for number in from..to {
            self.damage(Damage {
                kind: DamageKind::Missing,
                file: segment::name(number),
                offset: 0,
                len: layout.data_max(),
                position: Some(Position(layout.base(number))),
                what: "the segment is missing".to_owned(),
            })?;
        }
        Ok(())
    }

    fn segment(&mut self, first: &First, until: Option<u64>, is_tail: bool) -> Result<(), E> {
        let layout = self.of.format.layout;
        let base = layout.base(first.number);
        let name = segment::name(first.number);
        // A header that says something impossible says nothing.
        let until = until.filter(|end| (base + PAGE..=base + layout.data_max()).contains(end));
        let until = until.map(|end| end - base);
        self.runs = RunJoiner::default();
        self.flawed = false;
        let file = match self.of.disk.open(&name) {
            Ok(file) => file,
            Err(error) => {
                self.last = None;
                return self.damage(Damage {
                    kind: DamageKind::Block,
                    file: name,
                    offset: 0,
                    len: first.size,
                    position: Some(Position(base)),
                    what: format!("it cannot be read ({error})"),
                });
            }
        };
        let place = Place {
            file: &file,
            number: first.number,
            base,
            until,
            data_end: until.unwrap_or(first.size).min(first.size),
            is_tail,
            lock: self.lock_of(first),
            name,
        };
        match &first.head {
            Ok(head) => {
                self.check_link(&place, head)?;
                if head.key.is_some() && head.key != self.of.key_copy(first.number) {
                    let what = "the second copy of the segment's data key is damaged; the first one is good";
                    self.damage(place.damage(DamageKind::Key, 0, PAGE, what))?;
                }
                self.last = Some(head.link);
                self.came_to(head.link.end);
            }
            Err(flaw) => {
                let torn = self.is_torn(&place, 0, None, PAGE);
                self.damage(place.damage(kind(torn), 0, PAGE, flaw))?;
                self.last = None;
            }
        }
        self.blocks(&place)?;
        match until {
            Some(end) if !self.flawed => self.footer(&place, first.size, end),
            _ => Ok(()),
        }
    }

    fn lock_of(&self, first: &First) -> Lock {
        if !self.of.format.is_encrypted {
            return Lock::None;
        }
        if self.of.locked().is_some() {
            return Lock::NotGiven;
        }
        let wrapped = match &first.head {
            Ok(head) => head.key,
            Err(_) => self.of.key_copy(first.number),
        };
        let key = wrapped.zip(self.of.keys.as_ref()).and_then(|(wrapped, keys)| {
            keys.unwrap(&wrapped, self.of.format.id, KeyedFile::Segment(first.number)).ok()
        });
        key.map_or(Lock::Lost, |key| Lock::Open(Arc::new(key)))
    }

    fn came_to(&mut self, end: u64) {
        self.scanned.end = self.scanned.end.max(Position(end));
    }

    fn check_link(&mut self, place: &Place<'_, D::File>, head: &Head) -> Result<(), E> {
        let Some(last) = self.last else { return Ok(()) };
        let previous = head.previous;
        let what = if (previous.sequence, previous.tag, previous.end) != (last.sequence, last.tag, last.end) {
            "the segment does not continue the one before it"
        } else if head.link.epoch < last.epoch {
            "the epoch goes backwards"
        } else {
            return Ok(());
        };
        self.damage(place.damage(DamageKind::Chain, 0, PAGE, what))
    }

    /// Everything between the header of a segment and its end.
    fn blocks(&mut self, place: &Place<'_, D::File>) -> Result<(), E> {
        let layout = self.of.format.layout;
        let mut window = Window::new(place.file, place.data_end, READ_AHEAD);
        let mut at = PAGE;
        // Without a next segment all of the file counts, since nothing may lie behind the last block.
        let end = place.until.unwrap_or(place.data_end);
        while at < end {
            let header = match window.get(at, BLOCK_HEADER as u64) {
                Ok(Some(bytes)) => {
                    let position = place.base + at;
                    BlockHeader::decode(bytes, self.of.format.id, position, layout.segment_bytes)
                        .and_then(|found| fits(found, at, place.until.unwrap_or(layout.data_max())))
                }
                Ok(None) => Err("the file ends here"),
                Err(error) => {
                    let what = format!("it cannot be read ({error})");
                    self.damage(place.damage(DamageKind::Block, at, PAGE, &what))?;
                    self.last = None;
                    at += PAGE;
                    // The bytes beside it may be readable by themselves.
                    window = Window::new(place.file, place.data_end, PAGE);
                    continue;
                }
            };
            match header {
                Ok((header, tag)) if header.kind == Kind::Commit => {
                    if !self.block(place, &mut window, at, &header, tag)? {
                        return Ok(());
                    }
                    at += header.block_len();
                }
                // The segment after this one is missing, or it would say where this one ends.
                Ok((header, _)) if header.kind == Kind::Footer && place.until.is_none() => return Ok(()),
                Ok(_) => {
                    let what = "a block of another kind lies among commit blocks";
                    self.damage(place.damage(DamageKind::Block, at, PAGE, what))?;
                    self.last = None;
                    at += PAGE;
                }
                Err(flaw) => match self.stretch(place, &mut window, at, end, flaw)? {
                    Some(next) => at = next,
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// A block whose header is good. False if it is the torn tail.
    fn block(
        &mut self,
        place: &Place<'_, D::File>,
        window: &mut Window<'_, D::File>,
        at: u64,
        header: &BlockHeader,
        tag: Tag,
    ) -> Result<bool, E> {
        let len = header.block_len();
        let have = len.min(place.data_end - at);
        let (pages, mut unreadable) = (&mut Vec::new(), Vec::new());
        let bytes = match window.get(at, have) {
            Ok(bytes) => bytes.unwrap_or(&[]),
            Err(_) => {
                (*pages, unreadable) = read_pages(place.file, at, have);
                pages
            }
        };
        let body_end = BLOCK_HEADER + header.body_len as usize;
        let mut found = self.frames_in(place, bytes, at, BLOCK_HEADER..body_end);
        for (offset, error) in unreadable {
            found.cannot_be_read(place, offset, &error);
        }
        let whole = found.damages.is_empty()
            && found.pieces.len() == header.frames as usize
            && found.heads_crc == header.body_crc
            && have == len;
        if !whole && self.is_torn(place, at, next_block(self.of, place, at + PAGE), len) {
            let what =
                "a block was being written when the server stopped; no client was told that it was stored";
            self.damage(place.damage(DamageKind::TornTail, at, len, what))?;
            return Ok(false);
        }
        if let Some(last) = self.last
            && let Err(flaw) = follows(header, last)
        {
            self.damage(place.damage(DamageKind::Chain, at, len, flaw))?;
        }
        if !whole && found.damages.is_empty() {
            let what = "the frames of a block do not match its checksum";
            self.damage(place.damage(DamageKind::Chain, at, len, what))?;
        }
        self.scanned.blocks += 1;
        let end = place.base + at + len;
        self.last = Some(Link { sequence: header.sequence, tag, epoch: header.epoch, end });
        self.came_to(end);
        self.hand_out(place, at, bytes, found, header.epoch, whole)?;
        Ok(true)
    }

    /// Something that no good block begins. Where to go on, if there is anything to go on with.
    fn stretch(
        &mut self,
        place: &Place<'_, D::File>,
        window: &mut Window<'_, D::File>,
        at: u64,
        end: u64,
        flaw: Flaw,
    ) -> Result<Option<u64>, E> {
        let last = window.last_nonzero(at).unwrap_or(Some(place.data_end.max(at + 1) - 1));
        let next = next_block(self.of, place, at + PAGE);
        let Some(last) = last else {
            // Nothing but zeros, or nothing at all. That is the end, unless more was there once.
            if let Some(until) = place.until {
                let what = format!("{flaw}, and the log goes on after it");
                self.damage(place.damage(DamageKind::Missing, at, until - at, &what))?;
                self.last = None;
            }
            return Ok(None);
        };
        let len = next.unwrap_or(if place.until.is_some() { end } else { last + 1 }) - at;
        if self.is_torn(place, at, next, len) {
            let what =
                "a block was being written when the server stopped; no client was told that it was stored";
            self.damage(place.damage(DamageKind::TornTail, at, len, what))?;
            return Ok(None);
        }
        self.damage(place.damage(DamageKind::Block, at, len, flaw))?;
        self.last = None;
        let have = len.min(place.data_end.saturating_sub(at));
        let mut window = Window::new(place.file, place.data_end, 0);
        if let Ok(Some(bytes)) = window.get(at, have) {
            let mut found = self.frames_in(place, bytes, at, 0..bytes.len());
            // The bytes between the frames are part of the stretch, which has been reported.
            found.damages.retain(|damage| damage.kind != DamageKind::Block);
            self.hand_out(place, at, bytes, found, Epoch(0), false)?;
        }
        Ok(next)
    }

    /// Whether what begins at `at` can be the block that was being written at the last stop.
    fn is_torn(&self, place: &Place<'_, D::File>, at: u64, next: Option<u64>, len: u64) -> bool {
        let durable = self.of.mark.is_none_or(|mark| place.base + at < mark.durable_end);
        place.is_tail
            && place.until.is_none()
            && next.is_none()
            && !durable
            && len <= self.of.format.layout.block_bytes_max
    }

    fn hand_out(
        &mut self,
        place: &Place<'_, D::File>,
        at: u64,
        bytes: &[u8],
        found: Frames,
        epoch: Epoch,
        whole: bool,
    ) -> Result<(), E> {
        for damage in found.damages {
            self.damage(damage)?;
        }
        for piece in found.pieces {
            let position = Position(place.base + at + piece.at as u64);
            let runs: Vec<Run> = decode_runs(&bytes[piece.runs]).collect();
            if whole {
                for run in &runs {
                    self.runs.push(IndexRun {
                        stream: run.stream,
                        first: run.first,
                        count: u64::from(run.count),
                        position,
                        copied: run.copied,
                    });
                }
            }
            self.scanned.frames += 1;
            let (entries, payload) = match &piece.content {
                Content::Plain => (&bytes[piece.entries], &bytes[piece.payload]),
                Content::Opened { entries, payload } => (&entries[..], &payload[..]),
                Content::Locked => {
                    self.scanned.locked += 1;
                    continue;
                }
            };
            let damaged = piece.damaged;
            (self.visit)(Found::Frame(ScannedFrame { position, epoch, entries, runs, payload, damaged }))?;
        }
        Ok(())
    }

    /// Every good frame in a stretch of bytes that lies at `at`, and the damage of the others.
    fn frames_in(&self, place: &Place<'_, D::File>, bytes: &[u8], at: u64, range: Range<usize>) -> Frames {
        let id = self.of.format.id;
        let mut found = Frames::default();
        let mut next = range.start;
        let position = |offset: usize| place.base + at + offset as u64;
        while next < range.end {
            let rest = bytes.get(next..range.end.min(bytes.len())).unwrap_or(&[]);
            match FrameHeader::decode(rest, id, position(next), (range.end - next) as u64) {
                Ok(head) => {
                    found.heads_crc = crc32c::crc32c_append(found.heads_crc, &rest[..FRAME_HEADER]);
                    self.take_frame(place, &head, bytes, at, next, &mut found);
                    next += head.len() as usize;
                }
                Err(flaw) => {
                    let again = find_frame(bytes, next + 1..range.end.min(bytes.len()), |offset, rest| {
                        FrameHeader::decode(rest, id, position(offset), (range.end - offset) as u64).is_ok()
                    });
                    let to = again.unwrap_or(range.end);
                    let (from, len) = (at + next as u64, (to - next) as u64);
                    found.damages.push(place.damage(DamageKind::Block, from, len, flaw));
                    next = to;
                }
            }
        }
        found
    }

    fn take_frame(
        &self,
        place: &Place<'_, D::File>,
        head: &FrameHeader,
        bytes: &[u8],
        at: u64,
        next: usize,
        found: &mut Frames,
    ) {
        let id = self.of.format.id;
        let position = place.base + at + next as u64;
        let damage = |kind, len: u64, flaw| place.damage(kind, at + next as u64, len, flaw);
        let table = next + FRAME_HEADER;
        let runs = table + head.table_len() as usize;
        let payload = next + head.payload_offset() as usize;
        let Some(front) = bytes.get(runs..payload) else {
            found.damages.push(damage(DamageKind::Entries, head.len(), "the file ends within a frame"));
            return;
        };
        let entries = match head.runs_and_entries(front, id, position) {
            Ok((_, entries)) => payload - entries.len()..payload,
            Err(flaw) => {
                found.damages.push(damage(DamageKind::Entries, head.len(), flaw));
                return;
            }
        };
        let len = head.payload_len as usize;
        let have = bytes.len().saturating_sub(payload).min(len);
        let contents = &bytes[payload.min(bytes.len())..][..have];
        let mut damaged: Vec<Range<usize>> = Vec::new();
        let mut flaw = "";
        match head.table(&bytes[table..runs], id, position) {
            Ok(table) => {
                for (chunk, start) in (0..len).step_by(CHUNK).enumerate() {
                    let end = (start + CHUNK).min(len);
                    let checked = match contents.get(start..end) {
                        Some(bytes) => table.check(bytes, chunk, id, position),
                        None => Err("the file ends within a frame"),
                    };
                    if let Err(what) = checked {
                        flaw = what;
                        match damaged.last_mut() {
                            Some(last) if last.end == start => last.end = end,
                            _ => damaged.push(start..end),
                        }
                    }
                }
            }
            // Without it nothing can be said about the contents.
            Err(what) => {
                flaw = what;
                damaged.extend((len > 0).then_some(0..len));
                if len == 0 {
                    found.damages.push(damage(DamageKind::Chain, head.len(), what));
                }
            }
        }
        let runs = runs..entries.start;
        let sections = [&bytes[runs.clone()], &bytes[entries.clone()], contents];
        let content = match self.open(place, head, position, sections, &mut damaged) {
            Ok((content, what)) => {
                flaw = what.unwrap_or(flaw);
                content
            }
            Err(flaw) => {
                found.damages.push(damage(DamageKind::Entries, head.len(), flaw));
                return;
            }
        };
        for range in &damaged {
            let from = at + (payload + range.start) as u64;
            found.damages.push(place.damage(DamageKind::Payload, from, range.len() as u64, flaw));
        }
        let payload = payload.min(bytes.len());
        if let Content::Opened { payload, .. } = &content {
            for range in &mut damaged {
                let plain = |at: usize| (at / CHUNK * PLAIN_CHUNK + at % CHUNK).min(payload.len());
                *range = plain(range.start)..plain(range.end);
            }
        }
        found.pieces.push(Piece {
            at: next,
            runs,
            entries,
            payload: payload..payload + have,
            damaged,
            content,
        });
    }

    /// Decrypts a frame by its runs, entries and payload on disk, where that is due. Chunks of its payload that do
    /// not decrypt are added to `damaged`.
    fn open(
        &self,
        place: &Place<'_, D::File>,
        head: &FrameHeader,
        position: u64,
        [runs, entries, contents]: [&[u8]; 3],
        damaged: &mut Vec<Range<usize>>,
    ) -> Result<(Content, Option<Flaw>), Flaw> {
        let key = match &place.lock {
            Lock::NotGiven => return Ok((Content::Locked, None)),
            Lock::Lost => return Err("both copies of the segment's data key are damaged"),
            Lock::None => unlocked(None, head)?,
            Lock::Open(key) => unlocked(Some(key.clone()), head)?,
        };
        let Some(key) = key else { return Ok((Content::Plain, None)) };
        let place = head.place(self.of.format.id, position);
        let entries = key.open_entries(&place, runs, entries)?;
        let mut payload = contents.to_vec();
        payload.resize(head.payload_len as usize, 0);
        let len = payload.len();
        let is_damaged = |chunk: usize| damaged.iter().any(|range| range.contains(&(chunk * CHUNK)));
        let flaws = key.open_payload(&place, &mut payload, is_damaged);
        for (chunk, _) in &flaws {
            damaged.push(chunk * CHUNK..len.min((chunk + 1) * CHUNK));
        }
        damaged.sort_unstable_by_key(|range| range.start);
        Ok((Content::Opened { entries, payload }, flaws.first().map(|(_, flaw)| *flaw)))
    }

    /// The footer of a segment that has none but good blocks.
    fn footer(&mut self, place: &Place<'_, D::File>, size: u64, end: u64) -> Result<(), E> {
        let Some(last) = self.last.filter(|last| last.end == place.base + end) else { return Ok(()) };
        let format = &self.of.format;
        let mut window = Window::new(place.file, size, READ_FOOTER);
        let footer = Footer::read(&mut window, format.id, &format.layout, place.number, last);
        let what = match footer {
            Ok(Some(footer)) => {
                let runs = std::mem::take(&mut self.runs);
                let runs = runs.within(Footer::runs_max(&format.layout), &format.layout);
                if footer.runs != runs {
                    "the index at the end of the segment does not match the segment's contents".to_owned()
                } else {
                    match chores::hash(place.file, end) {
                        Ok(hash) if hash == footer.hash => {
                            self.scanned.sealed += 1;
                            return Ok(());
                        }
                        Ok(_) => "the segment has changed since it was sealed".to_owned(),
                        Err((error, _)) => format!("it cannot be read ({error})"),
                    }
                }
            }
            Ok(None) => {
                if let Ok(Some(_)) = window.last_nonzero(end) {
                    self.scanned.remarks.push(format!(
                        "{} has no good index at its end. The server then reads the segment instead, so this \
                         is harmless",
                        place.name
                    ));
                }
                return Ok(());
            }
            Err(error) => format!("it cannot be read ({error})"),
        };
        self.damage(place.damage(DamageKind::Footer, end, size.saturating_sub(end), &what))
    }
}

impl<F> Place<'_, F> {
    fn damage(&self, kind: DamageKind, offset: u64, len: u64, what: &str) -> Damage {
        Damage {
            kind,
            file: self.name.clone(),
            offset,
            len,
            position: Some(Position(self.base + offset)),
            what: what.to_owned(),
        }
    }
}

/// Reads a stretch page by page. Pages that cannot be read are zeros, and are returned with their errors.
fn read_pages<F: DiskFile>(file: &F, at: u64, len: u64) -> (Vec<u8>, Vec<(u64, io::Error)>) {
    let (mut bytes, mut unreadable) = (vec![0; len as usize], Vec::new());
    for (page, offset) in bytes.chunks_mut(PAGE as usize).zip((at..).step_by(PAGE as usize)) {
        // Each is tried twice, as the server does.
        if let Err(error) = file.read_at(page, offset).or_else(|_| file.read_at(page, offset)) {
            page.fill(0);
            unreadable.push((offset, error));
        }
    }
    (bytes, unreadable)
}

fn kind(torn: bool) -> DamageKind {
    if torn { DamageKind::TornTail } else { DamageKind::Block }
}

/// Whether a commit block that begins at `at` ends where blocks may end.
fn fits(found: (BlockHeader, Tag), at: u64, end: u64) -> Result<(BlockHeader, Tag), Flaw> {
    let is_commit = found.0.kind == Kind::Commit;
    if is_commit && at + found.0.block_len() > end {
        return Err("the block claims to be larger than blocks may be");
    }
    Ok(found)
}

/// Frames within a stretch of bytes.
#[derive(Default)]
struct Frames {
    pieces: Vec<Piece>,
    damages: Vec<Damage>,
    heads_crc: u32,
}

impl Frames {
    /// A page cannot be read: the damage that this did says so.
    fn cannot_be_read<F>(&mut self, place: &Place<'_, F>, offset: u64, error: &io::Error) {
        let what = format!("it cannot be read at offset {offset} ({error})");
        let here =
            |damage: &&mut Damage| damage.offset < offset + PAGE && offset < damage.offset + damage.len;
        let mut named = false;
        for damage in self.damages.iter_mut().filter(here) {
            (damage.what, named) = (what.clone(), true);
        }
        if !named {
            self.damages.push(place.damage(DamageKind::Block, offset, PAGE, &what));
        }
    }
}

/// Where the sections of a frame lie within a stretch of bytes.
struct Piece {
    at: usize,
    runs: Range<usize>,
    entries: Range<usize>,
    payload: Range<usize>,
    damaged: Vec<Range<usize>>,
    content: Content,
}

/// Where the content of a frame is.
enum Content {
    /// In the stretch.
    Plain,
    Opened {
        entries: Bytes,
        payload: Vec<u8>,
    },
    /// It cannot be read without its key.
    Locked,
}

/// The first place in the range at which a frame begins that `is_good` says is one.
fn find_frame(bytes: &[u8], range: Range<usize>, is_good: impl Fn(usize, &[u8]) -> bool) -> Option<usize> {
    let magic = FRAME_MAGIC.to_le_bytes();
    let mut at = range.start;
    while at + magic.len() <= range.end {
        // Most bytes are not the first of a magic, so those are passed over quickly.
        let step = bytes[at..range.end].iter().position(|&byte| byte == magic[0])?;
        at += step;
        let rest = &bytes[at..range.end];
        if rest.starts_with(&magic) && is_good(at, rest) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The first page from `at` on that begins with a good block for that very position.
fn next_block<D: Disk>(of: &Inspection<D>, place: &Place<'_, D::File>, mut at: u64) -> Option<u64> {
    let mut window = Window::new(place.file, place.data_end, READ_AHEAD);
    while at + BLOCK_HEADER as u64 <= place.data_end {
        let found: io::Result<bool> = window.get(at, BLOCK_HEADER as u64).map(|bytes| {
            bytes.is_some_and(|bytes| {
                let len_max = of.format.layout.segment_bytes;
                BlockHeader::decode(bytes, of.format.id, place.base + at, len_max)
                    .is_ok_and(|(header, _)| header.kind == Kind::Commit)
            })
        });
        if let Ok(true) = found {
            return Some(at);
        }
        at += PAGE;
    }
    None
}
