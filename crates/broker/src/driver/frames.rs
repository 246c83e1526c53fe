//! The frame being filled, the frames on their way, and the tickets that wait for them.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use forebay_core::entry::{CopiedMessage, each_encoded, put_copied};
use forebay_core::fault::{Fault, planted};
use forebay_core::types::{KeyHash, Ordinal, Position, SeqRange, ShardId, StreamId, Timestamp};
use forebay_storage::engine::{Durable, Frame, Run};

use crate::driver::{DriverConfig, Outbox, Ticket};
use crate::index::Ordinals;

/// Room that is left in a frame for entries beside the contents of a batch.
const ENTRIES_ROOM: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Frames {
    shard: ShardId,
    frames_max: usize,
    frame_bytes_max: usize,
    filling: Filling,
    /// Number of the frame being filled. The first is 1.
    number: u64,
    /// Closed, but more than the engine wants at once are on their way.
    closed: VecDeque<Frame>,
    /// Bytes of their entries.
    closed_bytes: usize,
    /// Oldest first; the closed ones are the last of them.
    on_their_way: VecDeque<OnItsWay>,
    /// The newest receipt, and which frame it was for.
    durable: Option<Durable<Position>>,
    durable_number: u64,
    spare: Vec<OnItsWay>,
}

/// The contents of the frame being filled.
#[derive(Debug, Default)]
struct Filling {
    entries: Vec<u8>,
    payload: Payload,
    way: OnItsWay,
    ordinals: Ordinals,
    /// When the first entry came that no reply waits for.
    since: Option<Timestamp>,
    /// A reply or a delivery waits for this frame.
    wanted: bool,
}

/// Contents of a frame. Most frames carry one batch, whose bytes are then not copied again.
#[derive(Debug, Default)]
enum Payload {
    #[default]
    Empty,
    One(Bytes),
    Many(BytesMut),
}

/// Messages that groups are told of once they are durable, with their keys if any of them has one.
pub(super) type Arrival = (StreamId, SeqRange, Option<Box<[KeyHash]>>);

/// The work to do when a frame is durable.
#[derive(Debug, Default)]
pub(super) struct OnItsWay {
    pub(super) number: u64,
    pub(super) published: Vec<Arrival>,
    pub(super) runs: Vec<Run>,
    /// Size of the frame.
    pub(super) bytes: u64,
    tickets: Vec<Ticket>,
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Payload::Empty => 0,
            Payload::One(bytes) => bytes.len(),
            Payload::Many(bytes) => bytes.len(),
        }
    }

    fn push(&mut self, contents: &Bytes) {
        match self {
            Payload::Empty => *self = Payload::One(contents.clone()),
            Payload::One(first) => {
                let mut bytes = BytesMut::with_capacity((first.len() + contents.len()) * 4);
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(contents);
                *self = Payload::Many(bytes);
            }
            Payload::Many(bytes) => bytes.extend_from_slice(contents),
        }
    }

    fn take(&mut self) -> Bytes {
        match std::mem::take(self) {
            Payload::Empty => Bytes::new(),
            Payload::One(bytes) => bytes,
            Payload::Many(bytes) => bytes.freeze(),
        }
    }
}

impl Frames {
    pub(super) fn new(shard: ShardId, frames_max: usize, frame_bytes_max: usize) -> Frames {
        Frames {
            shard,
            frames_max,
            frame_bytes_max,
            filling: Filling::default(),
            number: 1,
            closed: VecDeque::new(),
            closed_bytes: 0,
            on_their_way: VecDeque::new(),
            durable: None,
            durable_number: 0,
            spare: Vec::new(),
        }
    }

    /// Number of the newest frame that has something in it: when it is durable, so is all that was
    /// decided until now.
    pub(super) fn last(&self) -> u64 {
        if self.filling.entries.is_empty() { self.number - 1 } else { self.number }
    }

    /// Number of the frame being filled.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn durable_number(&self) -> u64 {
        self.durable_number
    }

    /// Where the newest durable frame is.
    pub(super) fn durable_position(&self) -> Position {
        self.durable.map_or(Position::START, Durable::get)
    }

    /// Bytes of entries that the engine does not want yet. Contents come with room of their own.
    pub(super) fn unwritten(&self) -> usize {
        self.closed_bytes + self.filling.entries.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.filling.entries.is_empty() && self.on_their_way.is_empty()
    }

    /// Takes in the entries of decisions. An engine takes frames up to a size, and entries that were
    /// collected while it was slow may be more, so they go into as many frames as they need, cut between
    /// entries.
    pub(super) fn take_entries(&mut self, entries: &mut Vec<u8>, outbox: &mut Outbox) {
        if self.fits(entries.len()) {
            self.filling.entries.append(entries);
            return;
        }
        for entry in each_encoded(entries) {
            if !self.fits(entry.len()) {
                self.close(outbox);
            }
            self.filling.entries.extend_from_slice(entry);
        }
        entries.clear();
    }

    fn fits(&self, bytes: usize) -> bool {
        self.filling.entries.len() + self.filling.payload.len() + bytes <= self.frame_bytes_max
    }

    /// The frame being filled is to be written at the end of the turn.
    pub(super) fn want(&mut self) {
        self.filling.wanted = true;
    }

    /// Closes the frame being filled if this much more would not fit.
    pub(super) fn make_room(&mut self, bytes: usize, outbox: &mut Outbox) {
        if !self.fits(bytes + ENTRIES_ROOM.min(self.frame_bytes_max / 8)) {
            self.close(outbox);
        }
    }

    pub(super) fn publish(
        &mut self,
        stream: StreamId,
        (range, ordinal): (SeqRange, Ordinal),
        contents: &Bytes,
        keys: Option<Box<[KeyHash]>>,
    ) {
        self.filling.payload.push(contents);
        self.filling.ordinals.publish(ordinal, range.count());
        let way = &mut self.filling.way;
        way.published.push((stream, range, keys));
        match way.runs.last_mut() {
            Some(run) if run.stream == stream && !run.copied => run.count += range.count() as u32,
            _ => {
                let (first, count) = (range.first, range.count() as u32);
                way.runs.push(Run { stream, first, count, copied: false });
            }
        }
    }

    /// Adds copies of messages that were published earlier. No reply waits for them, and no client is told.
    pub(super) fn copy(
        &mut self,
        stream: StreamId,
        messages: &[CopiedMessage],
        contents: &Bytes,
        outbox: &mut Outbox,
    ) {
        let mut entry = Vec::new();
        put_copied(&mut entry, stream, messages);
        self.make_room(contents.len() + entry.len(), outbox);
        self.filling.entries.append(&mut entry);
        self.filling.payload.push(contents);
        for run in messages.chunk_by(|one, next| one.seq.next() == next.seq) {
            let (first, count) = (run[0].seq, run.len() as u32);
            self.filling.way.runs.push(Run { stream, first, count, copied: true });
        }
        messages.iter().for_each(|message| self.filling.ordinals.copy(message.ordinal));
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Gives the ticket back as soon as everything that was decided until now is durable.
    pub(super) fn confirm(&mut self, ticket: Ticket, outbox: &mut Outbox) {
        if planted(Fault::AnswerBeforeReceipt)
            && let Some(durable) = self.durable
        {
            self.want();
            outbox.durable.push((ticket, durable.map(drop)));
            return;
        }
        if !self.filling.entries.is_empty() {
            self.want();
            self.filling.way.tickets.push(ticket);
            return;
        }
        match (self.on_their_way.back_mut(), self.durable) {
            (Some(last), _) => last.tickets.push(ticket),
            (None, Some(durable)) => outbox.durable.push((ticket, durable.map(drop))),
            // Nothing is served before the first frame of the epoch, so there is one being filled.
            (None, None) => self.filling.way.tickets.push(ticket),
        }
    }

    pub(super) fn close_if_due(&mut self, now: Timestamp, config: &DriverConfig, outbox: &mut Outbox) {
        if !self.filling.entries.is_empty() {
            let since = *self.filling.since.get_or_insert(now);
            let lazy = since + config.lazy_delay > now && self.filling.entries.len() < config.lazy_bytes_max;
            // Frames that wait for the engine grow meanwhile instead of becoming more.
            if (self.filling.wanted || !lazy) && self.on_their_way.len() < self.frames_max {
                self.close(outbox);
            }
        }
    }

    pub(super) fn lazy_deadline(&self, config: &DriverConfig) -> Option<Timestamp> {
        let waits = self.on_their_way.len() < self.frames_max && !self.filling.wanted;
        self.filling.since.filter(|_| waits).map(|since| since + config.lazy_delay)
    }

    /// Closes the frame being filled, if there is anything in it.
    pub(super) fn close(&mut self, outbox: &mut Outbox) {
        let filling = &mut self.filling;
        if filling.entries.is_empty() {
            return;
        }
        let entries = Bytes::copy_from_slice(&filling.entries);
        filling.entries.clear();
        let mut way = std::mem::replace(&mut filling.way, self.spare.pop().unwrap_or_default());
        way.number = self.number;
        way.runs.extend(filling.ordinals.take_runs());
        way.bytes = (entries.len() + filling.payload.len()) as u64;
        let frame =
            Frame { shard: self.shard, entries, payload: filling.payload.take(), runs: way.runs.clone() };
        filling.since = None;
        filling.wanted = false;
        self.number += 1;
        if self.on_their_way.len() < self.frames_max {
            outbox.frames.push(frame);
        } else {
            self.closed_bytes += frame.entries.len();
            self.closed.push_back(frame);
        }
        self.on_their_way.push_back(way);
    }

    /// The oldest frame on its way has arrived: its tickets are given back, and the caller sees to the rest.
    pub(super) fn durable(&mut self, position: Durable<Position>, outbox: &mut Outbox) -> OnItsWay {
        let mut way = self.on_their_way.pop_front().expect("a receipt is for a frame that was appended");
        self.durable = Some(position);
        self.durable_number = way.number;
        outbox.durable.extend(way.tickets.drain(..).map(|ticket| (ticket, position.map(drop))));
        if let Some(frame) = self.closed.pop_front() {
            self.closed_bytes -= frame.entries.len();
            outbox.frames.push(frame);
        }
        way
    }

    /// Keeps the lists of a finished frame for a later one.
    pub(super) fn recycle(&mut self, mut way: OnItsWay) {
        way.published.clear();
        way.runs.clear();
        if self.spare.len() < 16 {
            self.spare.push(way);
        }
    }
}
