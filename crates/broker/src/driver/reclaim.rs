//! Reclaim: copies messages that are still wanted out of the front of the log, so that the front can go.
//!
//! The log is trimmed from the front, and one parked message there would hold on to everything behind it.
//! So when enough of the log is dead, the front stretch of it (a segment's worth) is read, and the messages
//! that are still wanted are appended once more, a slice a turn. When the copies are durable the index finds
//! the messages there, and the next image lets the stretch go. Only then does the next stretch begin, so
//! that copies never take more space than one stretch at a time: that is what the reserve is made for.
//!
//! The trim position does not depend on reclaim's record of its copies. It is computed when an image is
//! begun, from the wanted messages and their places in the index ([`Reclaim::pin`]). A stretch that was not
//! copied whole, or copied twice, costs space and nothing else.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use forebay_core::entry::{CopiedMessage, Entry, entries};
use forebay_core::fault::{Fault, planted};
use forebay_core::shard::Shard;
use forebay_core::types::{Ordinal, Position, Seq, SeqRange, StreamId, Timestamp};
use forebay_storage::engine::{ReadBudget, StoredFrame};

use crate::driver::frames::Frames;
use crate::driver::{DriverConfig, Outbox, Read};
use crate::index::Index;
use crate::recovery::RecoveryError;

/// The number of reclaim's reads. There is one at a time, and those for contents begin with 1.
pub(super) const READ: u64 = 0;

/// Unwanted messages between two wanted ones are copied along if they are no larger than this together: to
/// name the second one apart would take as much.
const GAP_BYTES: u64 = 32;

/// A copied message takes at most this much of a frame beside its content, run included, by rough count.
const MESSAGE_OVERHEAD: usize = 1 << 10;
const MESSAGES_MAX: usize = 4_096;

/// What a copied message takes beside its content, and what a slice takes beside its messages, for an estimate.
const ENTRY_BYTES: u64 = 40;
const PADDING_BYTES: u64 = 4_096;

/// The counts of reclaim since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReclaimFigures {
    /// Stretches of the log out of which everything wanted was copied.
    pub stretches: u64,
    pub messages: u64,
    /// Of their contents.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Reclaim {
    state: State,
    /// Space returns in whole units of this size.
    unit: u64,
    /// For each stream: wanted messages before this one have been copied.
    copied_to: BTreeMap<StreamId, Seq>,
    /// Whether to look for something to do at the end of the turn, and when to look again at the latest
    /// while the disk is full.
    look: bool,
    look_at: Timestamp,
    /// The server is stopping.
    halted: bool,
    /// The stretch that begins here has something that cannot be read.
    stuck_at: Option<Position>,
    ranges: Vec<SeqRange>,
    pub(super) figures: ReclaimFigures,
}

#[derive(Debug)]
enum State {
    Idle,
    Copying(Stretch),
    /// Everything wanted is copied, and the image is awaited that lets the stretch go.
    Freeing {
        begun: bool,
    },
}

/// The part of the log that is being copied.
#[derive(Debug)]
struct Stretch {
    /// Where the stretch begins, where to read on, and where it ends.
    begin: Position,
    next: Position,
    end: Position,
    reading: bool,
    /// Read, and still to be copied. Never more than one read brings.
    found: VecDeque<Found>,
    /// The frame with the copies that were made last.
    frame: u64,
}

/// A message that is wanted, as it was read.
#[derive(Debug)]
struct Found {
    stream: StreamId,
    message: CopiedMessage,
    content: Bytes,
}

/// The parts of the driver that reclaim needs.
pub(super) struct Context<'a> {
    pub(super) config: &'a DriverConfig,
    pub(super) shard: &'a mut Shard,
    pub(super) index: &'a mut Index,
    pub(super) frames: &'a mut Frames,
    pub(super) outbox: &'a mut Outbox,
    /// The positions up to which the older image covers the log, and up to which it has been trimmed.
    pub(super) covered: Position,
    pub(super) trimmed: Position,
    pub(super) storage_full: bool,
    /// Nothing is handed out until space has been freed.
    pub(super) is_scarce: bool,
}

impl Reclaim {
    pub(super) fn new(unit: u64) -> Reclaim {
        Reclaim {
            state: State::Idle,
            unit: unit.max(1),
            copied_to: BTreeMap::new(),
            look: false,
            look_at: Timestamp::ZERO,
            halted: false,
            stuck_at: None,
            ranges: Vec::new(),
            figures: ReclaimFigures::default(),
        }
    }

    /// The space that must be left to free some: two units for the copies, and one at most for settlements meanwhile.
    /// If there was less, a little more, so that it is not too little again at once.
    pub(super) fn space_needed(&self, settling: u64, was_less: bool) -> u64 {
        2 * self.unit + settling.min(self.unit) + if was_less { self.unit / 4 } else { 0 }
    }

    pub(super) fn is_copying(&self) -> bool {
        matches!(self.state, State::Copying(_))
    }

    /// Something has changed that may give reclaim a reason to begin.
    pub(super) fn look(&mut self) {
        self.look = true;
    }

    /// Begins nothing any more, and leaves what it is at: a clean stop should not take long.
    pub(super) fn halt(&mut self) {
        self.halted = true;
        self.state = State::Idle;
    }

    /// When to be called again, if nothing happens before.
    pub(super) fn wake_at(&self, frames: &Frames, storage_full: bool) -> Option<Timestamp> {
        match &self.state {
            _ if self.halted => None,
            State::Copying(stretch) => {
                let ready = !stretch.found.is_empty() && stretch.frame <= frames.durable_number();
                ready.then_some(Timestamp::ZERO)
            }
            State::Idle if self.look => Some(Timestamp::ZERO),
            State::Idle => storage_full.then_some(self.look_at),
            State::Freeing { .. } => None,
        }
    }

    /// The lowest position from which something is wanted; `None` if nothing is.
    ///
    /// If the kept messages of a stream would have a gap from then on, the stream releases the messages
    /// before the gap. The entries that say so have to be durable before anything is trimmed.
    pub(super) fn pin(&mut self, shard: &mut Shard, index: &mut Index) -> Option<Position> {
        let mut pin = None;
        let mut lower =
            |position: Position| pin = Some(pin.map_or(position, |pin: Position| pin.min(position)));
        let streams: Vec<StreamId> = shard.stream_ids().collect();
        self.copied_to.retain(|stream, _| shard.kept(*stream).is_some());
        for stream in streams {
            let (first, durable) = shard.kept(stream).expect("the stream was listed just now");
            let mut from = self.copied_to.get(&stream).copied().unwrap_or(Seq(1));
            let uncopied = loop {
                let Some(wanted) = shard.first_wanted(stream, from) else { break None };
                let Some((run, _)) = index.moved(stream, wanted) else { break Some(wanted) };
                from = run.last.next();
            };
            let copied_to = uncopied.unwrap_or(durable.next());
            if first < copied_to {
                let before = SeqRange::new(first, Seq(copied_to.0 - 1));
                self.ranges.clear();
                shard.wanted(stream, before, &mut self.ranges);
                if self.ranges != [before] {
                    // Only up to the last gap: copies behind it may be of messages that a reader has not read, and a
                    // stream that releases those wants them no more.
                    let behind = self.ranges.last().filter(|range| range.last == before.last);
                    shard.let_go(stream, behind.map_or(copied_to, |range| range.first));
                }
            }
            self.copied_to.insert(stream, copied_to);
            if let Some(seq) = uncopied {
                lower(index.find(stream, seq).expect("a message that is wanted is in the index"));
            }
        }
        while let Some((position, stream, run)) = index.first_moved() {
            self.ranges.clear();
            shard.wanted(stream, run, &mut self.ranges);
            if !self.ranges.is_empty() {
                lower(position);
                break;
            }
            index.forget_first_moved();
        }
        pin
    }

    /// Looks whether there is something to do, or goes on with it. Says whether an image is wanted, to let
    /// go of what can go.
    pub(super) fn step(&mut self, now: Timestamp, context: &mut Context<'_>) -> bool {
        let due = self.look || context.storage_full && now >= self.look_at;
        match &mut self.state {
            _ if self.halted => false,
            State::Idle if due => {
                self.look = false;
                self.look_at = now + context.config.reclaim_interval;
                self.begin(context)
            }
            State::Copying(_) => self.copy(now, context),
            _ => false,
        }
    }

    /// Begins with the stretch at the front, if that is worth it.
    fn begin(&mut self, context: &mut Context<'_>) -> bool {
        let config = context.config;
        let end = context.frames.durable_position();
        let pin = self.pin(context.shard, context.index).unwrap_or(end).min(end);
        context.frames.take_entries(context.shard.entries(), context.outbox);
        let slice = Slice::of(config, context.frames);
        let (live, dead) = estimate(context.shard, context.index, pin, end, &slice);
        let low = context.storage_full;
        let floor = match low {
            // Whatever can be freed counts now.
            true if context.is_scarce => config.reclaim_stretch_bytes / 2,
            true => config.reclaim_stretch_bytes,
            false => live.max(config.reclaim_dead_bytes_min),
        };
        // Messages that are not wanted go by themselves, with the next image.
        let image = low && pin.0 - context.trimmed.0.min(pin.0) > config.reclaim_stretch_bytes.max(self.unit);
        let until = stretch_end(pin, config.reclaim_stretch_bytes, self.unit);
        if dead < floor || until > end || self.stuck_at == Some(pin) {
            return image;
        }
        // The older image has to cover the stretch, or it could not go.
        if until.0 > context.covered.0 + 1 {
            return true;
        }
        let (from, full) = (pin.0, context.storage_full);
        tracing::debug!(from, until = until.0, live, dead, full, "reclaim begun");
        self.state = State::Copying(Stretch {
            begin: pin,
            next: pin,
            end: until,
            reading: false,
            found: VecDeque::new(),
            frame: 0,
        });
        self.copy(Timestamp::ZERO, context)
    }

    /// Copies a slice of the messages found, once the slice before is durable, and reads on.
    fn copy(&mut self, now: Timestamp, context: &mut Context<'_>) -> bool {
        let State::Copying(stretch) = &mut self.state else { return false };
        if !stretch.found.is_empty() && stretch.frame <= context.frames.durable_number() {
            let mut left = Slice::of(context.config, context.frames);
            while let Some(stream) = stretch.found.front().map(|found| found.stream) {
                let Some((mut messages, contents)) = take(&mut stretch.found, stream, &mut left) else {
                    break;
                };
                if planted(Fault::CopyLosesTime) {
                    messages.iter_mut().for_each(|message| message.at = now);
                }
                self.figures.messages += messages.len() as u64;
                self.figures.bytes += contents.len() as u64;
                context.frames.copy(stream, &messages, &contents, context.outbox);
                stretch.frame = context.frames.last();
            }
        }
        if stretch.found.is_empty() && !stretch.reading {
            if stretch.next < stretch.end {
                let bytes_max = context.config.reclaim_slice_bytes;
                let budget = ReadBudget { bytes_max, frames_max: usize::MAX, payloads: true };
                context.outbox.reads.push(Read { id: READ, from: stretch.next, budget });
                stretch.reading = true;
            } else if stretch.frame <= context.frames.durable_number() {
                self.figures.stretches += 1;
                let ReclaimFigures { stretches, messages, bytes } = self.figures;
                tracing::debug!(stretches, messages, bytes, "reclaim ended");
                self.state = State::Freeing { begun: false };
                return true;
            }
        }
        false
    }

    /// Takes in frames of the stretch.
    pub(super) fn read(
        &mut self,
        frames: &[StoredFrame],
        shard: &Shard,
        index: &Index,
    ) -> Result<(), RecoveryError> {
        // It may have been halted meanwhile.
        let State::Copying(stretch) = &mut self.state else { return Ok(()) };
        stretch.reading = false;
        for frame in frames.iter().take_while(|frame| frame.position < stretch.end) {
            let mut gather = Gather { shard, index, frame, offset: 0, ranges: &mut self.ranges };
            for entry in entries(&frame.entries) {
                let position = frame.position;
                let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
                gather.entry(&entry, &mut stretch.found)?;
            }
        }
        let last = frames.last().map(|frame| Position(frame.position.0 + 1));
        stretch.next = last.map_or(stretch.end, |next| next.max(stretch.next));
        Ok(())
    }

    /// Something in the stretch cannot be read, so nothing of it may go. The front stays as it is until something
    /// changes about the messages that are wanted there.
    pub(super) fn unreadable(&mut self) {
        let State::Copying(stretch) = &self.state else { return };
        tracing::warn!(
            from = stretch.begin.0,
            "reclaim leaves the front of the log: part of it cannot be read"
        );
        self.stuck_at = Some(stretch.begin);
        self.state = State::Idle;
    }

    pub(super) fn image_begun(&mut self) {
        if let State::Freeing { begun } = &mut self.state {
            *begun = true;
        }
    }

    pub(super) fn image_saved(&mut self) {
        if matches!(self.state, State::Freeing { begun: true }) {
            self.state = State::Idle;
        }
        self.look = true;
    }
}

/// Where the stretch that begins at `pin` ends: at the end of a unit, since that is what can go.
fn stretch_end(pin: Position, bytes: u64, unit: u64) -> Position {
    let whole = (pin.0 + bytes) / unit * unit;
    Position(whole.max((pin.0 / unit + 1) * unit))
}

/// How much of the log between two positions is live, and how much is dead, padding included: as the
/// messages in it are wanted or not, or as much as the wanted ones would take if they were copied in these slices,
/// whichever is less. Where a log is full of leases and retries, most of it is dead although every message is
/// wanted. Copies must not look dead: they would be copied again for ever.
fn estimate(shard: &Shard, index: &Index, from: Position, to: Position, slice: &Slice) -> (u64, u64) {
    let mut all = index.moved_messages();
    let (mut wanted, mut bytes) = (0, 0);
    for stream in shard.stream_ids() {
        let (_, durable) = shard.kept(stream).expect("the stream was listed just now");
        all += index.first_from(stream, from).map_or(0, |first| (durable.0 + 1).saturating_sub(first.0));
        wanted += shard.wanted_count(stream);
        bytes += shard.wanted_bytes(stream);
    }
    let span = to.0 - from.0;
    let live = u128::from(span) * u128::from(wanted.min(all)) / u128::from(all.max(1));
    let copied = u128::from(bytes) + u128::from(wanted) * u128::from(ENTRY_BYTES);
    let by_bytes = copied / slice.bytes.max(1) as u128;
    let by_messages = u128::from(wanted) / slice.messages.max(1) as u128;
    let copied = copied + by_bytes.max(by_messages) * u128::from(PADDING_BYTES);
    let live = u64::try_from(live.min(copied)).unwrap_or(span);
    (live, span - live)
}

/// The budget left for copying in this turn.
struct Slice {
    bytes: usize,
    messages: usize,
    /// Nothing has been taken yet, so that one message goes whatever its size.
    first: bool,
}

impl Slice {
    /// As much as one turn copies.
    fn of(config: &DriverConfig, frames: &Frames) -> Slice {
        let room = frames.frame_bytes_max();
        let bytes = config.reclaim_slice_bytes.min(room / 2);
        Slice { bytes, messages: (room / MESSAGE_OVERHEAD).clamp(1, MESSAGES_MAX), first: true }
    }
}

/// Takes messages of the stream from the front, as many as there is room for.
fn take(
    found: &mut VecDeque<Found>,
    stream: StreamId,
    left: &mut Slice,
) -> Option<(Vec<CopiedMessage>, Bytes)> {
    let mut messages = Vec::new();
    let mut contents = BytesMut::new();
    while let Some(next) = found.pop_front_if(|next| {
        next.stream == stream && left.messages > 0 && (next.content.len() <= left.bytes || left.first)
    }) {
        left.first = false;
        messages.push(next.message);
        contents.extend_from_slice(&next.content);
        left.messages -= 1;
        left.bytes = left.bytes.saturating_sub(next.content.len());
    }
    (!messages.is_empty()).then(|| (messages, contents.freeze()))
}

/// Picks the wanted messages out of one frame.
struct Gather<'a> {
    shard: &'a Shard,
    index: &'a Index,
    frame: &'a StoredFrame,
    /// Where the contents of the next message begin.
    offset: usize,
    ranges: &'a mut Vec<SeqRange>,
}

impl Gather<'_> {
    fn entry(&mut self, entry: &Entry, found: &mut VecDeque<Found>) -> Result<(), RecoveryError> {
        match entry {
            Entry::Published { stream, first, ordinal, at, messages, .. } => {
                // Mostly nothing is wanted.
                let all = SeqRange::starting(*first, messages.count());
                if !self.is_wanted(*stream, all) {
                    self.offset += messages.bytes() as usize;
                    return Ok(());
                }
                let messages = messages.iter().zip(0..).map(|(meta, n)| CopiedMessage {
                    seq: first.plus(n),
                    ordinal: Ordinal(ordinal.0 + n),
                    at: *at,
                    meta,
                });
                self.run(*stream, &messages.collect::<Vec<_>>(), None, found)
            }
            Entry::Copied { stream, messages } => {
                for run in messages.chunk_by(|one, next| one.seq.next() == next.seq) {
                    self.run(*stream, run, Some(self.frame.position), found)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_wanted(&mut self, stream: StreamId, range: SeqRange) -> bool {
        self.ranges.clear();
        self.shard.wanted(stream, range, self.ranges);
        !self.ranges.is_empty()
    }

    /// Takes those of consecutive messages that are wanted and for which this frame is the place: `None`
    /// for the place where they were published, else the one that the index names.
    fn run(
        &mut self,
        stream: StreamId,
        messages: &[CopiedMessage],
        place: Option<Position>,
        found: &mut VecDeque<Found>,
    ) -> Result<(), RecoveryError> {
        self.is_wanted(stream, SeqRange::starting(messages[0].seq, messages.len() as u64));
        let is_here = |seq: Seq| self.index.moved(stream, seq).map(|(_, position)| position) == place;
        let mut wanted = self.ranges.iter().copied().peekable();
        // Unwanted ones since the last that was taken.
        let mut gap: Option<Vec<Found>> = None;
        let mut gap_bytes = 0;
        for &message in messages {
            let end = self.offset + message.meta.size as usize;
            if end > self.frame.payload.len() {
                return Err(RecoveryError::PayloadShort { position: self.frame.position });
            }
            let content = self.frame.payload.slice(self.offset..end);
            self.offset = end;
            while wanted.next_if(|range| range.last < message.seq).is_some() {}
            let is_wanted = wanted.peek().is_some_and(|range| range.contains(message.seq));
            let this = Found { stream, message, content };
            if is_wanted && is_here(message.seq) {
                found.extend(gap.replace(Vec::new()).into_iter().flatten());
                found.push_back(this);
                gap_bytes = 0;
            } else if let Some(between) = &mut gap {
                gap_bytes += u64::from(message.meta.size);
                if gap_bytes > GAP_BYTES {
                    gap = None;
                } else {
                    between.push(this);
                }
            }
        }
        Ok(())
    }
}
