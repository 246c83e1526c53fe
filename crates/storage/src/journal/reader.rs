//! Reading durable frames.
//!
//! A position is the address of a frame header: the number of its segment times the size of segments,
//! plus its offset in the file. So a frame is found with no index at all, and reading in order needs only to
//! know where blocks begin, which the reader remembers of the segments it has open.
//! Everything is verified before it is handed out.
//!
//! A place that cannot be read, because its bytes changed or because the disk reports an error, costs as little as
//! the checksums allow: a chunk of a payload, else a frame, else the rest of a block. Behind a broken block
//! header the log goes on at the next page with a good header for its own position.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forebay_core::types::{Epoch, Position, ShardId};

use crate::engine::{Damage, ReadBudget, Readout, StorageError, StoredFrame};
use crate::journal::block::{
    BLOCK_HEADER, BlockHeader, CHUNK, FRAME_HEADER, Flaw, FrameHeader, Kind, PAGE, Tag, decode_runs,
};
use crate::journal::chores::unreadable;
use crate::journal::crypt::{DataKey, PLAIN_CHUNK};
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::segment::{self, Head, Link, Window, follows};
use crate::journal::shared::{Shared, is_passing};

/// How much reading in order brings in at once where payloads are passed over.
const READ_AHEAD: u64 = 64 << 10;
/// And where they are wanted. Whatever lies beyond the front of a large frame is read twice, once more with
/// its payload; small frames come together.
const READ_AHEAD_WITH_PAYLOADS: u64 = 16 << 10;

/// Reads frames. Cheap to clone; clones share the files they have open.
pub struct Reader<D: Disk> {
    shared: Arc<Shared<D>>,
    files: Arc<Mutex<Files<D::File>>>,
}

impl<D: Disk> Clone for Reader<D> {
    fn clone(&self) -> Reader<D> {
        Reader { shared: self.shared.clone(), files: self.files.clone() }
    }
}

/// Segment files that are open, the least recently used to be closed first.
struct Files<F> {
    open: HashMap<u64, (Arc<OpenSegment<F>>, u64)>,
    clock: u64,
    open_max: usize,
}

struct OpenSegment<F> {
    name: String,
    number: u64,
    file: F,
    key: Option<Arc<DataKey>>,
    blocks: Mutex<Blocks>,
}

/// Where blocks lie, as far as it has been needed.
struct Blocks {
    /// In order, without gaps. One whose header is broken reaches to the next good one.
    known: Vec<BlockPlace>,
    /// The last block that was walked over.
    last: Link,
    /// Whether the next block has to name that one. Not so behind a broken header.
    is_chained: bool,
}

#[derive(Debug, Clone, Copy)]
struct BlockPlace {
    start: u64,
    end: u64,
}

/// The readable stretch of a segment.
struct Stretch {
    number: u64,
    from: u64,
    end: u64,
}

impl<D: Disk> Reader<D> {
    pub(crate) fn new(shared: Arc<Shared<D>>, open_max: usize) -> Reader<D> {
        let files = Files { open: HashMap::new(), clock: 0, open_max: open_max.max(1) };
        Reader { shared, files: Arc::new(Mutex::new(files)) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<D>> {
        &self.shared
    }

    /// The shard whose log this is.
    pub fn shard(&self) -> ShardId {
        self.shared.shard
    }

    /// Every frame before this position is durable and can be read.
    pub fn end(&self) -> Position {
        Position(self.shared.durable_end())
    }

    /// Reads frames in order, beginning with the first one at or after `from`; at least one if there is
    /// one. Ends before damage, and fails where it begins with damage.
    pub fn read(&self, from: Position, budget: ReadBudget) -> Result<Vec<StoredFrame>, StorageError> {
        self.read_around(from, budget)?.until_damage()
    }

    /// Reads frames in order, around places that cannot be read. Fails only if a later attempt may succeed.
    pub fn read_around(&self, from: Position, budget: ReadBudget) -> Result<Readout, StorageError> {
        let mut out = Readout::default();
        let mut room = budget;
        let mut from = from.0;
        let end = self.shared.durable_end();
        while let Some(stretch) = self.stretch(from, end) {
            match self.segment(stretch.number)? {
                // It was trimmed just now. The kept log begins further on.
                Ok(None) => continue,
                Ok(Some(segment)) => {
                    if !self.read_segment(&segment, &stretch, &mut room, &mut out)? {
                        break;
                    }
                }
                Err(what) => {
                    let hole = BlockPlace { start: stretch.from, end: stretch.end };
                    out.damage.push(self.damage(stretch.number, hole, 0, what));
                }
            }
            from = self.shared.layout.base(stretch.number + 1);
        }
        let bytes: usize = out.frames.iter().map(|frame| frame.entries.len() + frame.payload.len()).sum();
        self.shared.count(|figures| {
            figures.reads += 1;
            figures.read_bytes += bytes as u64;
        });
        Ok(out)
    }

    /// The first frame that is kept is at this position or after it.
    pub fn start(&self) -> Position {
        let first = self.shared.segments().first_key_value().map_or(0, |(&number, _)| number);
        Position(self.shared.layout.base(first))
    }

    /// Closes the files of segments that are no longer kept: an open file takes space even when deleted.
    pub(crate) fn close_trimmed(&self, first: u64) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.open.retain(|&number, _| number >= first);
    }

    /// Where to go on reading, if there is anything at or after `from` and before `end`.
    fn stretch(&self, from: u64, end: u64) -> Option<Stretch> {
        let layout = &self.shared.layout;
        let segments = self.shared.segments();
        for (&number, segment) in segments.range(layout.segment_of(from)..) {
            let base = layout.base(number);
            // Only the last one grows, and of that only the durable part may be read.
            let last = segments.range(number + 1..).next().is_none();
            let stop =
                if last { end.saturating_sub(base) } else { segment.end.min(end.saturating_sub(base)) };
            let from = from.saturating_sub(base);
            if from < stop {
                return Some(Stretch { number, from, end: stop });
            }
        }
        None
    }

    /// The file of a segment; `None` if it is no longer kept, and the reason if it cannot be opened.
    fn segment(&self, number: u64) -> Result<Result<Option<Opened<D>>, String>, StorageError> {
        let Some(key) = self.shared.segments().get(&number).map(|segment| segment.key.clone()) else {
            return Ok(Ok(None));
        };
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.clock += 1;
        let clock = files.clock;
        if let Some((segment, used)) = files.open.get_mut(&number) {
            *used = clock;
            return Ok(Ok(Some(segment.clone())));
        }
        let name = segment::name(number);
        let file = match self.shared.disk.open(&name) {
            Ok(file) => file,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !self.shared.segments().contains_key(&number) =>
            {
                return Ok(Ok(None));
            }
            Err(error) => return flaw_of(&name, error).map(Err),
        };
        let base = self.shared.layout.base(number);
        let mut page = [0; PAGE as usize];
        let read = file.read_at(&mut page, 0);
        let head = match read {
            Ok(len) => Head::decode(&page[..len], self.shared.id, base).ok(),
            Err(error) => flaw_of(&name, error).map(|_| None)?,
        };
        // Without its first block a segment has no chain to follow, and all of its blocks nevertheless.
        let unknown = Link { end: base + PAGE, ..Link::default() };
        let last = head.map_or(unknown, |head| head.link);
        let blocks = Mutex::new(Blocks { known: Vec::new(), last, is_chained: head.is_some() });
        let segment = Arc::new(OpenSegment { name, number, file, key, blocks });
        files.open.insert(number, (segment.clone(), clock));
        if files.open.len() > files.open_max {
            let oldest = files.open.iter().min_by_key(|(_, (_, used))| *used).map(|(&number, _)| number);
            oldest.and_then(|oldest| files.open.remove(&oldest));
        }
        Ok(Ok(Some(segment)))
    }

    /// Reads what a segment has in the stretch. False once the budget is spent.
    fn read_segment(
        &self,
        segment: &OpenSegment<D::File>,
        stretch: &Stretch,
        room: &mut ReadBudget,
        out: &mut Readout,
    ) -> Result<bool, StorageError> {
        let ahead = if room.payloads { READ_AHEAD_WITH_PAYLOADS } else { READ_AHEAD };
        let mut file = Cursor { segment, window: Window::new(&segment.file, stretch.end, ahead) };
        // The header block takes one page.
        let mut offset = stretch.from.max(PAGE);
        while offset < stretch.end {
            let Some(block) = self.block_at(&mut file, offset, stretch.end)? else { return Ok(true) };
            if !self.read_block(&mut file, block, offset, room, out)? {
                return Ok(false);
            }
            offset = block.end;
        }
        Ok(true)
    }

    /// Reads the frames of a block that begin at `offset` or after it. False once the budget is spent.
    fn read_block(
        &self,
        file: &mut Cursor<'_, D::File>,
        block: BlockPlace,
        offset: u64,
        room: &mut ReadBudget,
        out: &mut Readout,
    ) -> Result<bool, StorageError> {
        let number = file.segment.number;
        let first = block.start + BLOCK_HEADER as u64;
        let mut at = first;
        let header = self.block_header(file, block.start, block.end)?;
        // Frames verify themselves, so those behind a broken header can be had as long as one follows the other.
        let (mut left, body_end, epoch) = match &header {
            Ok((header, _)) => (header.frames, at + u64::from(header.body_len), header.epoch),
            Err(_) => (u32::MAX, block.end, lock(&file.segment.blocks).last.epoch),
        };
        if let Err(what) = &header
            && offset <= block.start
        {
            let header = BlockPlace { start: block.start, end: first };
            out.damage.push(self.damage(number, header, block.start, what.clone()));
        }
        while left > 0 {
            let head = match self.frame_header(file, at, body_end.saturating_sub(at))? {
                Ok(head) => head,
                // The padding of a block whose number of frames is not known.
                Err(_) if header.is_err() && at > first && file.is_padding(at, block.end)? => break,
                Err(what) => {
                    out.damage.push(self.damage(number, BlockPlace { start: at, end: block.end }, at, what));
                    break;
                }
            };
            let end = at + head.len();
            if at >= offset {
                if room.frames_max == 0 || (room.bytes_max == 0 && !out.frames.is_empty()) {
                    return Ok(false);
                }
                match self.frame(file, at, &head, epoch, room.payloads, &mut out.damage)? {
                    Ok(frame) => {
                        let bytes = frame.entries.len() + frame.payload.len();
                        room.frames_max -= 1;
                        room.bytes_max = room.bytes_max.saturating_sub(bytes);
                        out.frames.push(frame);
                    }
                    Err(what) => {
                        out.damage.push(self.damage(number, BlockPlace { start: at, end }, at, what));
                    }
                }
            }
            at = end;
            left -= 1;
        }
        Ok(true)
    }

    /// The first block that ends after `offset`.
    fn block_at(
        &self,
        file: &mut Cursor<'_, D::File>,
        offset: u64,
        end: u64,
    ) -> Result<Option<BlockPlace>, StorageError> {
        let base = self.shared.layout.base(file.segment.number);
        let mut blocks = lock(&file.segment.blocks);
        while blocks.last.end - base <= offset {
            let start = blocks.last.end - base;
            if start >= end {
                return Ok(None);
            }
            let len_max = (end - start).min(self.shared.layout.block_bytes_max);
            let found = self.block_header(file, start, start + len_max)?;
            let previous = blocks.last;
            let continues = |header: &BlockHeader| match blocks.is_chained {
                true => follows(header, previous).is_ok(),
                false => header.kind == Kind::Commit && header.sequence > previous.sequence,
            };
            match found {
                Ok((header, tag)) if continues(&header) => {
                    let end = start + header.block_len();
                    blocks.known.push(BlockPlace { start, end });
                    let BlockHeader { sequence, epoch, .. } = header;
                    blocks.last = Link { sequence, tag, epoch, end: base + end };
                    blocks.is_chained = true;
                }
                _ => {
                    let end = self.next_block(file, start, end)?;
                    blocks.known.push(BlockPlace { start, end });
                    blocks.last.end = base + end;
                    blocks.is_chained = false;
                }
            }
        }
        let after = blocks.known.partition_point(|block| block.start <= offset);
        Ok(after.checked_sub(1).map(|index| blocks.known[index]))
    }

    /// The first page after `start` that begins with a good header for its own position, or `end`.
    fn next_block(&self, file: &mut Cursor<'_, D::File>, start: u64, end: u64) -> Result<u64, StorageError> {
        let mut at = start + PAGE;
        while at < end {
            if self.block_header(file, at, end)?.is_ok() {
                return Ok(at);
            }
            at += PAGE;
        }
        Ok(end)
    }

    fn block_header(
        &self,
        file: &mut Cursor<'_, D::File>,
        start: u64,
        end: u64,
    ) -> Result<Result<(BlockHeader, Tag), String>, StorageError> {
        let position = self.shared.layout.base(file.segment.number) + start;
        let decode = |bytes: &[u8]| BlockHeader::decode(bytes, self.shared.id, position, end - start);
        Ok(file.get(start, BLOCK_HEADER as u64)?.and_then(|bytes| decode(bytes).map_err(str::to_owned)))
    }

    fn frame_header(
        &self,
        file: &mut Cursor<'_, D::File>,
        at: u64,
        room: u64,
    ) -> Result<Result<FrameHeader, String>, StorageError> {
        let position = self.shared.layout.base(file.segment.number) + at;
        let decode = |bytes: &[u8]| FrameHeader::decode(bytes, self.shared.id, position, room);
        Ok(file.get(at, FRAME_HEADER as u64)?.and_then(|bytes| decode(bytes).map_err(str::to_owned)))
    }

    /// A frame, with zeros in place of chunks of its payload that cannot be read, which are added to `damage`.
    fn frame(
        &self,
        file: &mut Cursor<'_, D::File>,
        at: u64,
        head: &FrameHeader,
        epoch: Epoch,
        payloads: bool,
        damage: &mut Vec<Damage>,
    ) -> Result<Result<StoredFrame, String>, StorageError> {
        let (id, number) = (self.shared.id, file.segment.number);
        let position = self.shared.layout.base(number) + at;
        let len = if payloads { head.payload_len as usize } else { 0 };
        let payload_at = at + head.payload_offset();
        let key = match unlocked(file.segment.key.clone(), head) {
            Ok(key) => key,
            Err(flaw) => return Ok(Err(flaw.to_owned())),
        };
        let mut missing = Vec::new();
        let mut payload = file.payload(payload_at, len, &mut missing)?;
        let front = match file.get(at + FRAME_HEADER as u64, head.front_len())? {
            Ok(front) => front,
            Err(what) => return Ok(Err(what)),
        };
        let (table, rest) = front.split_at(head.table_len() as usize);
        let (runs, entries) = match head.runs_and_entries(rest, id, position) {
            Ok(found) => found,
            Err(flaw) => return Ok(Err(flaw.to_owned())),
        };
        match head.table(table, id, position) {
            Ok(table) => {
                for (index, chunk) in payload.chunks(CHUNK).enumerate() {
                    let is_read = missing.iter().all(|(of, _)| *of != index);
                    if let (true, Err(flaw)) = (is_read, table.check(chunk, index, id, position)) {
                        missing.push((index, flaw.to_owned()));
                    }
                }
            }
            Err(flaw) => missing = (0..len.div_ceil(CHUNK)).map(|index| (index, flaw.to_owned())).collect(),
        }
        let entries = match &key {
            None => Bytes::copy_from_slice(entries),
            Some(key) => {
                let place = head.place(id, position);
                let entries = match key.open_entries(&place, runs, entries) {
                    Ok(entries) => entries,
                    Err(flaw) => return Ok(Err(flaw.to_owned())),
                };
                let is_missing = |index| missing.iter().any(|(of, _)| *of == index);
                let flaws = key.open_payload(&place, &mut payload, is_missing);
                missing.extend(flaws.into_iter().map(|(index, flaw)| (index, flaw.to_owned())));
                entries
            }
        };
        missing.sort_unstable();
        let stride = if key.is_some() { PLAIN_CHUNK } else { CHUNK };
        for (index, what) in missing {
            let bytes = index * stride..payload.len().min((index + 1) * stride);
            payload[bytes.clone()].fill(0);
            let whole = BlockPlace { start: at, end: at + head.len() };
            let place = self.damage(number, whole, payload_at + (index * CHUNK) as u64, what);
            damage.push(Damage { payload: Some(bytes), ..place });
        }
        Ok(Ok(StoredFrame {
            position: Position(position),
            epoch,
            entries,
            payload: payload.into(),
            runs: decode_runs(runs).collect(),
        }))
    }

    fn damage(&self, number: u64, place: BlockPlace, offset: u64, what: String) -> Damage {
        let (base, file) = (self.shared.layout.base(number), segment::name(number));
        let is_new = self.shared.is_new_place(&file, offset);
        let (from, until) = (Position(base + place.start), Position(base + place.end));
        Damage { from, until, payload: None, what, file, offset, is_new }
    }
}

type Opened<D> = Arc<OpenSegment<<D as Disk>::File>>;

/// A segment that is being read in order. What cannot be read is a flaw, unless the error passes.
struct Cursor<'s, F> {
    segment: &'s OpenSegment<F>,
    window: Window<'s, F>,
}

impl<F: DiskFile> Cursor<'_, F> {
    fn get(&mut self, offset: u64, len: u64) -> Result<Result<&[u8], String>, StorageError> {
        match self.window.get(offset, len) {
            Ok(Some(bytes)) => Ok(Ok(bytes)),
            Ok(None) => Ok(Err("the file ends within a block".to_owned())),
            Err(error) => flaw_of(&self.segment.name, error).map(Err),
        }
    }

    /// Whether these bytes can be read and hold nothing.
    fn is_padding(&mut self, from: u64, to: u64) -> Result<bool, StorageError> {
        Ok(self.get(from, to.saturating_sub(from))?.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)))
    }

    /// A payload, with the numbers of the chunks that cannot be read, which are zeros.
    fn payload(
        &mut self,
        at: u64,
        len: usize,
        missing: &mut Vec<(usize, String)>,
    ) -> Result<Vec<u8>, StorageError> {
        if let Some(bytes) = self.window.held(at, len as u64) {
            return Ok(bytes.to_vec());
        }
        if let Ok(bytes) = self.segment.file.read_vec(len, at)
            && bytes.len() == len
        {
            return Ok(bytes);
        }
        let mut bytes = vec![0; len];
        for (index, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
            match self.segment.file.read_at(chunk, at + (index * CHUNK) as u64) {
                Ok(read) if read == chunk.len() => {}
                Ok(_) => missing.push((index, "the file ends within a frame".to_owned())),
                Err(error) => missing.push((index, flaw_of(&self.segment.name, error)?)),
            }
        }
        Ok(bytes)
    }
}

/// The key for a frame, where it is encrypted. In an encrypted segment all frames are: one that is not was put there
/// by another program.
pub(crate) fn unlocked(key: Option<Arc<DataKey>>, head: &FrameHeader) -> Result<Option<Arc<DataKey>>, Flaw> {
    match (&key, head.is_sealed) {
        (Some(_), true) | (None, false) => Ok(key),
        (Some(_), false) => Err("the frame is not encrypted, but its segment is"),
        (None, true) => Err("the frame is encrypted, and the key of its segment is not known"),
    }
}

fn lock(blocks: &Mutex<Blocks>) -> MutexGuard<'_, Blocks> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lasting error of the disk as a flaw of the place; one that passes is an error of the read.
fn flaw_of(name: &str, error: io::Error) -> Result<String, StorageError> {
    if is_passing(&error) {
        return Err(StorageError::Io { doing: format!("read {name}"), source: Arc::new(error) });
    }
    Ok(unreadable(&error))
}
