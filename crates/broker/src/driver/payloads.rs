//! Attaching contents to deliveries: from the window, or else from the engine.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use forebay_core::Admission;
use forebay_core::entry::{Entry, entries};
use forebay_core::group::{Deliver, Lease, ReadAhead};
use forebay_core::shard::Shard;
use forebay_core::types::{ConsumerId, Epoch, GroupId, Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::{ReadBudget, StoredFrame};

use crate::batch::Batch;
use crate::driver::{Delivered, Delivery, Outbox, Read};
use crate::index::Index;
use crate::recovery::RecoveryError;
use crate::window::Window;

#[derive(Debug)]
pub(super) struct Payloads {
    pub(super) window: Window,
    /// Whole, but the entry of their leases is not durable yet. Oldest frame first.
    held: VecDeque<(u64, Delivery)>,
    /// Reads on their way, each for one group's read-ahead or one delivery.
    reads: Vec<Reading>,
    next_read: u64,
    /// Groups that have settled something this turn.
    settled: Vec<GroupId>,
}

#[derive(Debug)]
struct Reading {
    id: u64,
    stream: StreamId,
    /// What is still wanted.
    wanted: SeqRange,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// How far the group may look: up to before this message.
    ReadAhead(GroupId, Seq),
    Deliver(Partial),
}

/// A delivery that is being put together.
#[derive(Debug)]
struct Partial {
    epoch: Epoch,
    deliver: Deliver,
    /// Leaves no earlier than this frame is durable.
    frame: Option<u64>,
    messages: Vec<Delivered>,
}

/// What attaching contents needs of the rest of the driver.
pub(super) struct Around<'a> {
    pub(super) index: &'a Index,
    /// What one read may bring.
    pub(super) read_bytes_max: usize,
    /// The newest frame that is durable.
    pub(super) durable: u64,
    pub(super) outbox: &'a mut Outbox,
}

impl Partial {
    fn leases(&self) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let Deliver { seqs, grant, consumer, .. } = self.deliver;
        seqs.seqs().map(move |seq| {
            (consumer, Lease { epoch: self.epoch, seq, grant: grant.plus(seq.0 - seqs.first.0) })
        })
    }
}

impl Payloads {
    pub(super) fn new(window: Window) -> Payloads {
        Payloads { window, held: VecDeque::new(), reads: Vec::new(), next_read: 1, settled: Vec::new() }
    }

    /// Attaches contents to a delivery. It leaves now, or when `frame` is durable, or when what is missing
    /// has been read.
    pub(super) fn deliver(
        &mut self,
        epoch: Epoch,
        deliver: Deliver,
        frame: Option<u64>,
        around: &mut Around<'_>,
    ) {
        let messages = Vec::with_capacity(deliver.seqs.count() as usize);
        let mut partial = Partial { epoch, deliver, frame, messages };
        match self.collect(&mut partial) {
            None => self.complete(partial, around),
            Some(missing) => self.start_read(deliver.stream, missing, Purpose::Deliver(partial), around),
        }
    }

    /// Adds what the window has and returns what it has not.
    fn collect(&self, partial: &mut Partial) -> Option<SeqRange> {
        let deliver = partial.deliver;
        let have = partial.messages.len() as u64;
        if have == deliver.seqs.count() {
            return None;
        }
        let rest = SeqRange::new(deliver.seqs.first.plus(have), deliver.seqs.last);
        let missing = self.window.collect(deliver.stream, rest, |found| {
            let grant = deliver.grant.plus(found.seq.0 - deliver.seqs.first.0);
            partial.messages.push(Delivered {
                lease: Lease { epoch: partial.epoch, seq: found.seq, grant },
                attempt: deliver.attempt,
                deadline: deliver.deadline,
                published: found.published,
                content: found.content,
            });
        });
        (missing <= rest.last).then(|| SeqRange::new(missing, rest.last))
    }

    fn complete(&mut self, partial: Partial, around: &mut Around<'_>) {
        let Deliver { group, consumer, .. } = partial.deliver;
        let delivery = Delivery { group, consumer, messages: partial.messages };
        match partial.frame.filter(|&frame| frame > around.durable) {
            Some(frame) => self.held.push_back((frame, delivery)),
            None => around.outbox.deliveries.push(delivery),
        }
    }

    /// As `complete`, for a delivery that had to wait for its contents.
    fn complete_late(&mut self, partial: Partial, shard: &Shard, around: &mut Around<'_>) {
        let Deliver { group, consumer, .. } = partial.deliver;
        match partial.frame.filter(|&frame| frame > around.durable) {
            Some(_) => self.complete(partial, around),
            None => {
                send_current(Delivery { group, consumer, messages: partial.messages }, shard, around.outbox);
            }
        }
    }

    /// Deliveries whose leases are durable now may leave.
    pub(super) fn durable(&mut self, number: u64, shard: &Shard, outbox: &mut Outbox) {
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].0 <= number {
                let (_, delivery) = self.held.remove(at).expect("the place was there just now");
                send_current(delivery, shard, outbox);
            } else {
                at += 1;
            }
        }
    }

    /// What is leased and has not left, because its content or its entry is not here yet.
    pub(super) fn undelivered(&self, group: GroupId) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let held = self.held.iter().filter(move |(_, delivery)| delivery.group == group).flat_map(
            |(_, delivery)| delivery.messages.iter().map(|message| (delivery.consumer, message.lease)),
        );
        let reading = self.reads.iter().filter_map(move |read| match &read.purpose {
            Purpose::Deliver(partial) if partial.deliver.group == group => Some(partial),
            _ => None,
        });
        held.chain(reading.flat_map(Partial::leases))
    }

    /// What was on its way to a consumer that has left is not sent.
    pub(super) fn drop_consumer(&mut self, group: GroupId, consumer: ConsumerId) {
        self.held.retain(|(_, delivery)| delivery.group != group || delivery.consumer != consumer);
        self.reads.retain(|read| match &read.purpose {
            Purpose::Deliver(partial) => {
                partial.deliver.group != group || partial.deliver.consumer != consumer
            }
            Purpose::ReadAhead(..) => true,
        });
    }

    /// A group wants to know of messages it has not seen. If their contents are here, it knows them now.
    pub(super) fn read_ahead(&mut self, read: ReadAhead, shard: &mut Shard, around: &mut Around<'_>) {
        let gap = self.window.reaches(read.stream, read.seqs);
        if gap > read.seqs.first {
            shard.read_ahead(read.group, Seq(gap.0 - 1));
        } else {
            let purpose = Purpose::ReadAhead(read.group, read.seqs.first);
            self.start_read(read.stream, read.seqs, purpose, around);
        }
    }

    fn start_read(&mut self, stream: StreamId, wanted: SeqRange, purpose: Purpose, around: &mut Around<'_>) {
        let from = around.index.find(stream, wanted.first).expect("a durable message is in the index");
        let reading = Reading { id: self.next_read, stream, wanted, purpose };
        self.next_read += 1;
        self.read_on(reading, from, around);
    }

    fn read_on(&mut self, reading: Reading, from: Position, around: &mut Around<'_>) {
        let budget = ReadBudget { bytes_max: around.read_bytes_max, frames_max: usize::MAX, payloads: true };
        around.outbox.reads.push(Read { id: reading.id, from, budget });
        self.reads.push(reading);
    }

    /// Takes in frames that were read for one purpose, and reads on if that was not enough.
    pub(super) fn read(
        &mut self,
        id: u64,
        frames: &[StoredFrame],
        shard: &mut Shard,
        around: &mut Around<'_>,
    ) -> Result<(), RecoveryError> {
        // Whoever asked may have left.
        let Some(at) = self.reads.iter().position(|reading| reading.id == id) else { return Ok(()) };
        let mut reading = self.reads.swap_remove(at);
        // A delivery may have lapsed while it waited, and its messages may be settled and trimmed by now.
        if let Purpose::Deliver(partial) = &reading.purpose {
            let group = partial.deliver.group;
            if !partial.leases().any(|(_, lease)| shard.is_current(group, lease)) {
                return Ok(());
            }
        }
        let Some(last) = frames.last() else {
            return Err(RecoveryError::MessageMissing { stream: reading.stream, seq: reading.wanted.first });
        };
        let next = Position(last.position.0 + 1);
        for frame in frames {
            self.keep_published(frame, &mut reading)?;
        }
        match reading.purpose {
            Purpose::Deliver(partial) if partial.messages.len() as u64 == partial.deliver.seqs.count() => {
                self.complete_late(partial, shard, around);
                return Ok(());
            }
            Purpose::ReadAhead(group, reached) if reached > reading.wanted.first => {
                shard.read_ahead(group, Seq(reached.0 - 1));
                return Ok(());
            }
            _ => {}
        }
        self.read_on(reading, next, around);
        Ok(())
    }

    /// Puts the stream's messages of a frame into the window and takes what is wanted from there.
    fn keep_published(&mut self, frame: &StoredFrame, reading: &mut Reading) -> Result<(), RecoveryError> {
        let mut offset = 0;
        for entry in entries(&frame.entries) {
            let entry = entry.map_err(|error| RecoveryError::Entry { position: frame.position, error })?;
            let Entry::Published { stream, first, at, messages, .. } = entry else { continue };
            let end = offset + messages.bytes() as usize;
            if end > frame.payload.len() {
                return Err(RecoveryError::PayloadShort { position: frame.position });
            }
            if stream == reading.stream {
                self.window.insert_read(stream, first, at, &messages, frame.payload.slice(offset..end));
                // At once, since the window may be smaller than what was read.
                self.advance(reading);
            }
            offset = end;
        }
        Ok(())
    }

    fn advance(&self, reading: &mut Reading) {
        match &mut reading.purpose {
            Purpose::Deliver(partial) => {
                if let Some(missing) = self.collect(partial) {
                    reading.wanted = missing;
                }
            }
            Purpose::ReadAhead(_, reached) if *reached <= reading.wanted.last => {
                let rest = SeqRange::new(*reached, reading.wanted.last);
                *reached = self.window.reaches(reading.stream, rest);
            }
            Purpose::ReadAhead(..) => {}
        }
    }

    pub(super) fn settled(&mut self, group: GroupId) {
        if self.settled.last() != Some(&group) {
            self.settled.push(group);
        }
    }

    /// Lets go of contents that no group of the stream will ask for again.
    pub(super) fn forget_settled(&mut self, shard: &Shard) {
        for group in self.settled.drain(..) {
            if let Some((stream, wanted)) = shard.oldest_wanted_beside(group) {
                self.window.forget_before(stream, wanted);
            }
        }
    }
}

/// A delivery that had to wait may have lapsed meanwhile, and its messages may be with others.
fn send_current(mut delivery: Delivery, shard: &Shard, outbox: &mut Outbox) {
    delivery.messages.retain(|message| shard.is_current(delivery.group, message.lease));
    if !delivery.messages.is_empty() {
        outbox.deliveries.push(delivery);
    }
}

/// The contents of those messages of a batch that are not duplicates.
pub(super) fn fresh_contents(batch: &Batch, admissions: &[Admission]) -> Bytes {
    let mut fresh = BytesMut::with_capacity(batch.contents.len());
    let mut offset = 0;
    for (meta, admission) in batch.metas.iter().zip(admissions) {
        let end = offset + meta.size as usize;
        if !admission.duplicate {
            fresh.extend_from_slice(&batch.contents[offset..end]);
        }
        offset = end;
    }
    fresh.freeze()
}
