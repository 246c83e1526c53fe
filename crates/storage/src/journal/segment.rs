//! Segment files: their names, their first block, their footer, and the walk over the blocks between.
//!
//! A segment is a header block, commit blocks, and, some time after the next segment was begun, a footer
//! with index runs and a BLAKE3 sum of everything before it. The header names the end of the segment
//! before it, so a footer is found without searching, and a half-written footer is never mistaken for a
//! damaged commit block.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use forebay_core::types::{Epoch, Position, Seq, StreamId};

use crate::engine::IndexRun;
use crate::journal::block::{
    BLOCK_HEADER, BlockHeader, FRAME_HEADER, Flaw, FrameHeader, JournalId, Kind, PAGE, Tag, encode_plain,
    u32_at, u64_at,
};
use crate::journal::crypt::{WRAPPED, WrappedKey};
use crate::journal::disk::DiskFile;
use crate::journal::format::Layout;
use crate::journal::is_passing;

/// Runs of one stream are joined while they lie within this much log.
pub(crate) const RUN_SPAN: u64 = 64 * 1024;
const PREFIX: &str = "segment-";

pub(crate) fn name(number: u64) -> String {
    format!("{PREFIX}{number:010}")
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}

/// The last block of a chain, which the next one has to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Link {
    pub(crate) sequence: u64,
    pub(crate) tag: Tag,
    pub(crate) epoch: Epoch,
    /// Where the block ends.
    pub(crate) end: u64,
}

/// The first block of a segment. Its body, little endian: end of the block before (8), time of creation
/// in microseconds (8), and room for a wrapped data key (128). All of it is within one sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The block before this one.
    pub(crate) previous: Link,
    /// This block.
    pub(crate) link: Link,
    /// The data key of the segment, if it is encrypted.
    pub(crate) key: Option<WrappedKey>,
}

const HEAD_FIXED: usize = 16;
const HEAD_BODY: usize = HEAD_FIXED + WRAPPED;
/// Where in its block the header has the data key once more, in another sector: a damaged sector must not cost the
/// contents of a whole segment.
const KEY_COPY: usize = 2048;
const _: () = assert!(BLOCK_HEADER + HEAD_BODY <= 512, "a segment header is written whole or not at all");

impl Head {
    /// The header block of a segment that begins at `base` and follows `previous`.
    pub(crate) fn encode(
        id: JournalId,
        base: u64,
        previous: Link,
        epoch: Epoch,
        created: u64,
        key: Option<&WrappedKey>,
    ) -> (Bytes, Link) {
        let mut body = [0; HEAD_BODY];
        body[0..8].copy_from_slice(&previous.end.to_le_bytes());
        body[8..16].copy_from_slice(&created.to_le_bytes());
        if let Some(key) = key {
            body[HEAD_FIXED..].copy_from_slice(key.bytes());
        }
        let header = BlockHeader {
            kind: Kind::SegmentHeader,
            position: base,
            sequence: previous.sequence + 1,
            durable_end: previous.end,
            previous: previous.tag,
            epoch,
            frames: 0,
            body_len: 0,
            body_crc: 0,
            key: key.map_or(0, |key| key.id().0),
        };
        let (mut bytes, tag) = encode_plain(id, header, &body);
        if let Some(key) = key {
            let mut copied = bytes.to_vec();
            copied[KEY_COPY..KEY_COPY + WRAPPED].copy_from_slice(key.bytes());
            bytes = copied.into();
        }
        let end = base + bytes.len() as u64;
        (bytes, Link { sequence: header.sequence, tag, epoch, end })
    }

    /// The second copy of the data key in the first block of a segment.
    pub(crate) fn key_copy(page: &[u8]) -> Option<WrappedKey> {
        WrappedKey::decode(page.get(KEY_COPY..KEY_COPY + WRAPPED)?).ok()
    }

    pub(crate) fn decode(page: &[u8], id: JournalId, base: u64) -> Result<Head, Flaw> {
        let (header, tag) = BlockHeader::decode(page, id, base, PAGE)?;
        if header.kind != Kind::SegmentHeader || (header.body_len as usize) < 16 {
            return Err("a segment begins with a block of another kind");
        }
        let body = page
            .get(BLOCK_HEADER..BLOCK_HEADER + header.body_len as usize)
            .ok_or("the file ends within the segment header")?;
        if crc32c::crc32c(body) != header.body_crc {
            return Err("the segment header does not match its checksum");
        }
        let sequence = header.sequence.checked_sub(1).ok_or("the segment header has no sequence")?;
        let key = match header.key {
            0 => None,
            id => {
                let key = WrappedKey::decode(body.get(HEAD_FIXED..HEAD_BODY).unwrap_or(&[]))?;
                if key.id().0 != id {
                    return Err("the segment header names two keys");
                }
                Some(key)
            }
        };
        Ok(Head {
            key,
            previous: Link { sequence, tag: header.previous, epoch: Epoch(0), end: u64_at(body, 0) },
            link: Link {
                sequence: header.sequence,
                tag,
                epoch: header.epoch,
                end: base + header.block_len(),
            },
        })
    }
}

/// The end of a sealed segment. Its body, little endian: offset of the last frame, 0 without frames (8),
/// run count (4), flags (4; 1: the runs did not fit), BLAKE3 (32), then the runs: stream (4), offset of the
/// frame (4), first (8), count (8; the top bit says that they are copies).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) last_frame: u64,
    pub(crate) hash: [u8; 32],
    /// `None` where they did not fit; the segment then has to be walked.
    pub(crate) runs: Option<Vec<IndexRun>>,
}

const FOOTER_FIXED: usize = 48;
const FOOTER_RUN: usize = 24;
const FOOTER_NO_RUNS: u32 = 1;
const FOOTER_COPIED: u64 = 1 << 63;

impl Footer {
    /// How many runs fit in the room that a segment keeps for its footer.
    pub(crate) fn runs_max(layout: &Layout) -> usize {
        (layout.footer_room() as usize - BLOCK_HEADER - FOOTER_FIXED) / FOOTER_RUN
    }

    /// The footer block after `last`, the segment's last block.
    pub(crate) fn encode(&self, id: JournalId, layout: &Layout, last: Link) -> Bytes {
        let runs = self.runs.as_deref().unwrap_or(&[]);
        assert!(runs.len() <= Footer::runs_max(layout), "a footer fits in its room");
        let mut body = Vec::with_capacity(FOOTER_FIXED + FOOTER_RUN * runs.len());
        body.extend_from_slice(&self.last_frame.to_le_bytes());
        body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        body.extend_from_slice(&(if self.runs.is_none() { FOOTER_NO_RUNS } else { 0 }).to_le_bytes());
        body.extend_from_slice(&self.hash);
        for run in runs {
            body.extend_from_slice(&run.stream.0.to_le_bytes());
            body.extend_from_slice(&(layout.offset_of(run.position.0) as u32).to_le_bytes());
            body.extend_from_slice(&run.first.0.to_le_bytes());
            let count = if run.copied { run.count | FOOTER_COPIED } else { run.count };
            body.extend_from_slice(&count.to_le_bytes());
        }
        let header = BlockHeader {
            kind: Kind::Footer,
            position: last.end,
            sequence: last.sequence,
            durable_end: last.end,
            previous: last.tag,
            epoch: last.epoch,
            frames: 0,
            body_len: 0,
            body_crc: 0,
            // Its contents are positions in the log, which are not encrypted.
            key: 0,
        };
        encode_plain(id, header, &body).0
    }

    /// Reads the footer that follows `last`. The epoch of `last` is not compared.
    pub(crate) fn read<F: DiskFile>(
        window: &mut Window<'_, F>,
        id: JournalId,
        layout: &Layout,
        segment: u64,
        last: Link,
    ) -> io::Result<Option<Footer>> {
        let base = layout.base(segment);
        let offset = last.end - base;
        let Some(bytes) = window.get(offset, BLOCK_HEADER as u64)? else { return Ok(None) };
        let Ok((header, _)) = BlockHeader::decode(bytes, id, last.end, layout.footer_room()) else {
            return Ok(None);
        };
        let fits = header.kind == Kind::Footer
            && header.sequence == last.sequence
            && header.previous == last.tag
            && header.body_len as usize >= FOOTER_FIXED;
        if !fits {
            return Ok(None);
        }
        let Some(body) = window.get(offset + BLOCK_HEADER as u64, u64::from(header.body_len))? else {
            return Ok(None);
        };
        let count = u32_at(body, 8) as usize;
        if crc32c::crc32c(body) != header.body_crc || body.len() != FOOTER_FIXED + count * FOOTER_RUN {
            return Ok(None);
        }
        let runs = body[FOOTER_FIXED..].chunks_exact(FOOTER_RUN).map(|run| IndexRun {
            stream: StreamId(u32_at(run, 0)),
            first: Seq(u64_at(run, 8)),
            count: u64_at(run, 16) & !FOOTER_COPIED,
            position: Position(base + u64::from(u32_at(run, 4))),
            copied: u64_at(run, 16) & FOOTER_COPIED != 0,
        });
        Ok(Some(Footer {
            last_frame: u64_at(body, 0),
            hash: body[16..48].try_into().expect("thirty-two bytes"),
            runs: (u32_at(body, 12) & FOOTER_NO_RUNS == 0).then(|| runs.collect()),
        }))
    }
}

/// Joins runs that lie close together as they come, so that an index of many messages is small.
pub(crate) struct RunJoiner {
    span: u64,
    pub(crate) runs: Vec<IndexRun>,
    /// The last run of each stream.
    open: HashMap<StreamId, usize>,
}

impl Default for RunJoiner {
    fn default() -> RunJoiner {
        RunJoiner { span: RUN_SPAN, runs: Vec::new(), open: HashMap::new() }
    }
}

impl RunJoiner {
    pub(crate) fn push(&mut self, run: IndexRun) {
        // A copy lies where no other message of its stream would be looked for, so it stands for itself.
        if run.copied {
            self.runs.push(run);
            return;
        }
        if let Some(&index) = self.open.get(&run.stream) {
            let last = &mut self.runs[index];
            let follows = last.first.0 + last.count == run.first.0;
            if follows && run.position.0 - last.position.0 <= self.span {
                last.count += run.count;
                return;
            }
        }
        self.open.insert(run.stream, self.runs.len());
        self.runs.push(run);
    }

    /// At most `runs_max` runs, coarser if need be; `None` if even the coarsest are too many.
    pub(crate) fn within(self, runs_max: usize, layout: &Layout) -> Option<Vec<IndexRun>> {
        let mut runs = self.runs;
        let mut span = RUN_SPAN;
        while runs.len() > runs_max && span < layout.segment_bytes {
            span *= 4;
            let mut coarser = RunJoiner { span, ..RunJoiner::default() };
            runs.into_iter().for_each(|run| coarser.push(run));
            runs = coarser.runs;
        }
        (runs.len() <= runs_max).then_some(runs)
    }
}

/// Reads a file front to back through one buffer. Asking for a stretch further on skips what lies
/// between.
pub(crate) struct Window<'f, F> {
    file: &'f F,
    pub(crate) size: u64,
    bytes: Vec<u8>,
    start: u64,
    ahead: u64,
}

impl<'f, F: DiskFile> Window<'f, F> {
    /// `ahead` is how much is read at least, so that many small requests are one.
    pub(crate) fn new(file: &'f F, size: u64, ahead: u64) -> Window<'f, F> {
        Window { file, size, bytes: Vec::new(), start: 0, ahead }
    }

    /// The bytes from `offset` on; `None` if the file ends before them.
    pub(crate) fn get(&mut self, offset: u64, len: u64) -> io::Result<Option<&[u8]>> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        if self.held(offset, len).is_none() {
            let want = len.max(self.ahead).min(self.size - offset);
            let read = match self.fill(offset, want) {
                // A page that cannot be read must not take those behind it along. This also tries once more.
                Err(error) if !is_passing(&error) => self.fill(offset, len)?,
                other => other?,
            };
            if read < len {
                return Ok(None);
            }
        }
        Ok(self.held(offset, len))
    }

    fn fill(&mut self, offset: u64, len: u64) -> io::Result<u64> {
        self.bytes.resize(len as usize, 0);
        self.start = offset;
        let read = self.file.read_at(&mut self.bytes, offset);
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        read.map(|read| read as u64)
    }

    /// Where the last read began. After an error, that is the place that cannot be read.
    pub(crate) fn read_from(&self) -> u64 {
        self.start
    }

    /// The bytes from `offset` on, if they were read before.
    pub(crate) fn held(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..)?.get(..len as usize)
    }

    /// Where the last byte that is not zero lies, from `offset` on.
    pub(crate) fn last_nonzero(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let mut last = None;
        let mut at = offset;
        while at < self.size {
            let len = self.ahead.max(PAGE).min(self.size - at);
            let Some(bytes) = self.get(at, len)? else { break };
            if !is_zero(bytes) {
                let index = bytes.iter().rposition(|&byte| byte != 0).expect("some byte is not zero");
                last = Some(at + index as u64);
            }
            at += len;
        }
        Ok(last)
    }
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// How a walk over the blocks of a segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the offset where it was to end, or where nothing but zeros follow.
    Clean,
    /// At a block that is not what it should be.
    Broken(Flaw),
    /// At a block that is whole but does not follow the one before it.
    Unchained(Flaw),
}

/// The findings of a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walked {
    pub(crate) last: Link,
    /// Offset of the last frame, 0 without frames.
    pub(crate) last_frame: u64,
    pub(crate) stop: Stop,
}

/// How to walk.
pub(crate) struct Walk<'a> {
    pub(crate) id: JournalId,
    pub(crate) layout: &'a Layout,
    pub(crate) segment: u64,
    /// Offset at which the walk ends; it ends by itself if not given.
    pub(crate) until: Option<u64>,
    /// Whether payloads are compared with their checksums.
    pub(crate) payloads: bool,
}

impl Walk<'_> {
    /// Walks over the commit blocks after the segment's header and gathers their runs.
    pub(crate) fn run<F: DiskFile>(
        &self,
        window: &mut Window<'_, F>,
        head: &Head,
        runs: &mut RunJoiner,
    ) -> io::Result<Walked> {
        let base = self.layout.base(self.segment);
        let mut walked = Walked { last: head.link, last_frame: 0, stop: Stop::Clean };
        loop {
            let offset = walked.last.end - base;
            if self.until == Some(offset) {
                return Ok(walked);
            }
            let end = self.until.unwrap_or(self.layout.data_max());
            match self.block(window, walked.last, end - offset, runs, &mut walked.last_frame)? {
                Ok(link) => walked.last = link,
                Err(stop) => {
                    // Where the walk has a given end, zeros before it are a hole rather than the end.
                    let empty = self.until.is_none() && window.last_nonzero(offset)?.is_none();
                    walked.stop = if empty { Stop::Clean } else { stop };
                    return Ok(walked);
                }
            }
        }
    }

    fn block<F: DiskFile>(
        &self,
        window: &mut Window<'_, F>,
        previous: Link,
        room: u64,
        runs: &mut RunJoiner,
        last_frame: &mut u64,
    ) -> io::Result<Result<Link, Stop>> {
        let base = self.layout.base(self.segment);
        let offset = previous.end - base;
        let len_max = room.min(self.layout.block_bytes_max);
        let Some(bytes) = window.get(offset, BLOCK_HEADER as u64)? else {
            return Ok(Err(Stop::Broken("the file ends within a block header")));
        };
        let (header, tag) = match BlockHeader::decode(bytes, self.id, previous.end, len_max) {
            Ok(found) => found,
            Err(flaw) => return Ok(Err(Stop::Broken(flaw))),
        };
        if let Err(flaw) = follows(&header, previous) {
            return Ok(Err(Stop::Unchained(flaw)));
        }
        // The runs of a block count only once all of it has proved good.
        let mut found = Vec::new();
        let block = Extent { base, offset, header: &header };
        match self.frames(window, &block, &mut found, last_frame)? {
            Ok(()) => found.into_iter().for_each(|run| runs.push(run)),
            Err(flaw) => return Ok(Err(Stop::Broken(flaw))),
        }
        let end = previous.end + header.block_len();
        Ok(Ok(Link { sequence: header.sequence, tag, epoch: header.epoch, end }))
    }

    fn frames<F: DiskFile>(
        &self,
        window: &mut Window<'_, F>,
        block: &Extent<'_>,
        runs: &mut Vec<IndexRun>,
        last_frame: &mut u64,
    ) -> io::Result<Result<(), Flaw>> {
        const SHORT: Flaw = "the file ends within a block";
        let end = block.offset + BLOCK_HEADER as u64 + u64::from(block.header.body_len);
        let mut at = block.offset + BLOCK_HEADER as u64;
        let mut body_crc = 0;
        let mut last = *last_frame;
        for number in 0..block.header.frames {
            let position = block.base + at;
            let Some(bytes) = window.get(at, FRAME_HEADER as u64)? else { return Ok(Err(SHORT)) };
            let head = match FrameHeader::decode(bytes, self.id, position, end.saturating_sub(at)) {
                Ok(head) => head,
                Err(flaw) => return Ok(Err(flaw)),
            };
            body_crc = crc32c::crc32c_append(body_crc, bytes);
            if head.number != number || u64::from(head.block_offset) != at - block.offset {
                return Ok(Err("a frame is not where it was written"));
            }
            let wanted = if self.payloads { head.len() - FRAME_HEADER as u64 } else { head.front_len() };
            let Some(bytes) = window.get(at + FRAME_HEADER as u64, wanted)? else { return Ok(Err(SHORT)) };
            let (front, payload) = bytes.split_at(head.front_len() as usize);
            let front = match head.front(front, self.id, position) {
                Ok(front) => front,
                Err(flaw) => return Ok(Err(flaw)),
            };
            if let Err(flaw) = front.table.check(payload, 0, self.id, position) {
                return Ok(Err(flaw));
            }
            runs.extend(front.runs().map(|run| IndexRun {
                stream: run.stream,
                first: run.first,
                count: u64::from(run.count),
                position: Position(position),
                copied: run.copied,
            }));
            last = at;
            at += head.len();
        }
        if at != end || body_crc != block.header.body_crc {
            return Ok(Err("the frames of a block do not match its checksum"));
        }
        // A skipped payload at the very end has to be there nonetheless.
        if block.offset + block.header.block_len() > window.size {
            return Ok(Err(SHORT));
        }
        *last_frame = last;
        Ok(Ok(()))
    }
}

/// A block within its segment.
struct Extent<'h> {
    base: u64,
    offset: u64,
    header: &'h BlockHeader,
}

/// Whether a commit block continues the chain that ends with `previous`.
pub(crate) fn follows(header: &BlockHeader, previous: Link) -> Result<(), Flaw> {
    if header.kind != Kind::Commit {
        return Err("a block of another kind lies among commit blocks");
    }
    if header.sequence != previous.sequence + 1 {
        return Err("the sequence has a gap");
    }
    if header.previous != previous.tag {
        return Err("the block does not name the one before it");
    }
    if header.epoch != previous.epoch {
        return Err("the epoch changes within a segment");
    }
    Ok(())
}
