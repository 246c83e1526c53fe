//! Reading durable frames.
//!
//! A position is the address of a frame header: the number of its segment times the size of segments,
//! plus its offset in the file. So a frame is found with no index at all, and reading in order needs only to
//! know where blocks begin, which the reader remembers of the segments it has open.
//! Everything is verified before it is handed out.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forebay_core::types::{Epoch, Position, ShardId};

use crate::engine::{ReadBudget, StorageError, StoredFrame};
use crate::journal::block::{BLOCK_HEADER, BlockHeader, FRAME_HEADER, Flaw, FrameHeader, PAGE};
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::segment::{self, Head, Link, Window, follows};
use crate::journal::shared::Shared;

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
    blocks: Mutex<Blocks>,
}

/// Where blocks begin, as far as it has been needed.
struct Blocks {
    starts: Vec<u64>,
    /// The last block that was walked over.
    last: Link,
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
    /// one.
    pub fn read(&self, from: Position, budget: ReadBudget) -> Result<Vec<StoredFrame>, StorageError> {
        let mut frames = Vec::new();
        let mut room = budget;
        let mut from = from.0;
        let end = self.shared.durable_end();
        while let Some(stretch) = self.stretch(from, end) {
            let Some(segment) = self.segment(stretch.number)? else {
                // It was trimmed just now. The kept log begins further on.
                continue;
            };
            match self.read_segment(&segment, &stretch, &mut room, &mut frames) {
                Ok(true) => {}
                Ok(false) => break,
                // The frames before the damage are good. A read that begins at the damage fails.
                Err(StorageError::Damaged { .. }) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            }
            from = self.shared.layout.base(stretch.number + 1);
        }
        let bytes: usize = frames.iter().map(|frame| frame.entries.len() + frame.payload.len()).sum();
        self.shared.count(|figures| {
            figures.reads += 1;
            figures.read_bytes += bytes as u64;
        });
        Ok(frames)
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

    /// The file of a segment; `None` if it is no longer kept.
    fn segment(&self, number: u64) -> Result<Option<Arc<OpenSegment<D::File>>>, StorageError> {
        if !self.shared.segments().contains_key(&number) {
            return Ok(None);
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.clock += 1;
        let clock = files.clock;
        if let Some((segment, used)) = files.open.get_mut(&number) {
            *used = clock;
            return Ok(Some(segment.clone()));
        }
        let name = segment::name(number);
        let file = match self.shared.disk.open(&name) {
            Ok(file) => file,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !self.shared.segments().contains_key(&number) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(unreadable(&name, error)),
        };
        let mut page = [0; PAGE as usize];
        let len = file.read_at(&mut page, 0).map_err(|error| unreadable(&name, error))?;
        let head = Head::decode(&page[..len], self.shared.id, self.shared.layout.base(number))
            .map_err(|flaw| damaged(&name, 0, flaw))?;
        let blocks = Mutex::new(Blocks { starts: Vec::new(), last: head.link });
        let segment = Arc::new(OpenSegment { name, number, file, blocks });
        files.open.insert(number, (segment.clone(), clock));
        if files.open.len() > files.open_max {
            let oldest = files.open.iter().min_by_key(|(_, (_, used))| *used).map(|(&number, _)| number);
            oldest.and_then(|oldest| files.open.remove(&oldest));
        }
        Ok(Some(segment))
    }

    /// Reads what a segment has in the stretch. False once the budget is spent.
    fn read_segment(
        &self,
        segment: &OpenSegment<D::File>,
        stretch: &Stretch,
        room: &mut ReadBudget,
        frames: &mut Vec<StoredFrame>,
    ) -> Result<bool, StorageError> {
        let ahead = if room.payloads { READ_AHEAD_WITH_PAYLOADS } else { READ_AHEAD };
        let mut window = Window::new(&segment.file, stretch.end, ahead);
        // The header block takes one page.
        let mut offset = stretch.from.max(PAGE);
        while offset < stretch.end {
            let start = self.block_at(segment, &mut window, offset, stretch.end)?;
            let Some(start) = start else { return Ok(true) };
            let header = self.block_header(segment, &mut window, start, stretch.end)?;
            let mut at = start + BLOCK_HEADER as u64;
            let body_end = at + u64::from(header.body_len);
            for _ in 0..header.frames {
                let head = self.frame_header(segment, &mut window, at, body_end - at)?;
                if at >= offset {
                    if room.frames_max == 0 || (room.bytes_max == 0 && !frames.is_empty()) {
                        return Ok(false);
                    }
                    let frame = self.frame(segment, &mut window, at, &head, header.epoch, room.payloads)?;
                    let bytes = frame.entries.len() + frame.payload.len();
                    room.frames_max -= 1;
                    room.bytes_max = room.bytes_max.saturating_sub(bytes);
                    frames.push(frame);
                }
                at += head.len();
            }
            offset = start + header.block_len();
        }
        Ok(true)
    }

    /// Where the first block begins that ends after `offset`.
    fn block_at(
        &self,
        segment: &OpenSegment<D::File>,
        window: &mut Window<'_, D::File>,
        offset: u64,
        end: u64,
    ) -> Result<Option<u64>, StorageError> {
        let base = self.shared.layout.base(segment.number);
        let mut blocks = lock(&segment.blocks);
        while blocks.last.end - base <= offset {
            let start = blocks.last.end - base;
            if start >= end {
                return Ok(None);
            }
            let bytes =
                window.get(start, BLOCK_HEADER as u64).map_err(|error| unreadable(&segment.name, error))?;
            let len_max = (end - start).min(self.shared.layout.block_bytes_max);
            let found = bytes
                .ok_or("the file ends within a block header")
                .and_then(|bytes| BlockHeader::decode(bytes, self.shared.id, base + start, len_max))
                .and_then(|(header, tag)| follows(&header, blocks.last).map(|()| (header, tag)));
            let (header, tag) = found.map_err(|flaw| damaged(&segment.name, start, flaw))?;
            blocks.starts.push(start);
            let end = blocks.last.end + header.block_len();
            blocks.last = Link { sequence: header.sequence, tag, epoch: header.epoch, end };
        }
        let after = blocks.starts.partition_point(|&start| start <= offset);
        Ok(after.checked_sub(1).map(|index| blocks.starts[index]))
    }

    fn block_header(
        &self,
        segment: &OpenSegment<D::File>,
        window: &mut Window<'_, D::File>,
        start: u64,
        end: u64,
    ) -> Result<BlockHeader, StorageError> {
        let position = self.shared.layout.base(segment.number) + start;
        let bytes =
            window.get(start, BLOCK_HEADER as u64).map_err(|error| unreadable(&segment.name, error))?;
        bytes
            .ok_or("the file ends within a block header")
            .and_then(|bytes| BlockHeader::decode(bytes, self.shared.id, position, end - start))
            .map(|(header, _)| header)
            .map_err(|flaw| damaged(&segment.name, start, flaw))
    }

    fn frame_header(
        &self,
        segment: &OpenSegment<D::File>,
        window: &mut Window<'_, D::File>,
        at: u64,
        room: u64,
    ) -> Result<FrameHeader, StorageError> {
        let position = self.shared.layout.base(segment.number) + at;
        let bytes = window.get(at, FRAME_HEADER as u64).map_err(|error| unreadable(&segment.name, error))?;
        bytes
            .ok_or("the file ends within a frame header")
            .and_then(|bytes| FrameHeader::decode(bytes, self.shared.id, position, room))
            .map_err(|flaw| damaged(&segment.name, at, flaw))
    }

    fn frame(
        &self,
        segment: &OpenSegment<D::File>,
        window: &mut Window<'_, D::File>,
        at: u64,
        head: &FrameHeader,
        epoch: Epoch,
        payloads: bool,
    ) -> Result<StoredFrame, StorageError> {
        let id = self.shared.id;
        let position = self.shared.layout.base(segment.number) + at;
        let len = if payloads { head.payload_len } else { 0 };
        let payload = match window.held(at + head.payload_offset(), u64::from(len)) {
            Some(bytes) => bytes.to_vec(),
            None => read_exactly(segment, at + head.payload_offset(), len as usize)?,
        };
        let front = window
            .get(at + FRAME_HEADER as u64, head.front_len())
            .map_err(|error| unreadable(&segment.name, error))?;
        let front = front
            .ok_or("the file ends within a frame")
            .and_then(|bytes| head.front(bytes, id, position))
            .map_err(|flaw| damaged(&segment.name, at, flaw))?;
        front.table.check(&payload, 0, id, position).map_err(|flaw| damaged(&segment.name, at, flaw))?;
        Ok(StoredFrame {
            position: Position(position),
            epoch,
            entries: Bytes::copy_from_slice(front.entries),
            payload: payload.into(),
            runs: front.runs().collect(),
        })
    }
}

fn read_exactly<F: DiskFile>(segment: &OpenSegment<F>, at: u64, len: usize) -> Result<Vec<u8>, StorageError> {
    let mut bytes = vec![0; len];
    let read = segment.file.read_at(&mut bytes, at).map_err(|error| unreadable(&segment.name, error))?;
    if read < len {
        return Err(damaged(&segment.name, at, "the file ends within a frame"));
    }
    Ok(bytes)
}

fn lock(blocks: &Mutex<Blocks>) -> MutexGuard<'_, Blocks> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreadable(name: &str, error: io::Error) -> StorageError {
    StorageError::Io { doing: format!("read {name}"), source: Arc::new(error) }
}

fn damaged(name: &str, offset: u64, flaw: Flaw) -> StorageError {
    StorageError::Damaged { what: flaw.to_owned(), file: name.to_owned(), offset }
}
