//! Deliveries that are being put together, or wait for the entry of their leases to become durable, and how many
//! each poller still has coming.

use std::collections::{BTreeMap, HashMap};

use forebay_core::group::{Bound, Deliver, Lease, LeaseRun};
use forebay_core::shard::Shard;
use forebay_core::types::{ConsumerId, Epoch, GroupId, Seq, SeqRange};

use crate::driver::payloads::Context;
use crate::driver::{Delivery, Outbox, Past, RunMessage};
use crate::window::Window;

/// A delivery whose contents have to be read leaves in pieces of about this many bytes, so that a large one is not
/// gathered whole.
const PIECE_BYTES: usize = 4 << 20;

/// A delivery that is being put together.
#[derive(Debug)]
pub(super) struct PendingDelivery {
    epoch: Epoch,
    pub(super) deliver: Deliver,
    /// Leaves no earlier than this frame is durable.
    frame: Option<u64>,
    messages: Vec<RunMessage>,
    /// Bytes of their contents.
    bytes: usize,
}

impl PendingDelivery {
    pub(super) fn new(epoch: Epoch, deliver: Deliver, frame: Option<u64>) -> PendingDelivery {
        let messages = Vec::with_capacity(deliver.seqs.count() as usize);
        PendingDelivery { epoch, deliver, frame, messages, bytes: 0 }
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let Deliver { seqs, grant, consumer, .. } = self.deliver;
        let lease = move |seq: Seq| Lease { epoch: self.epoch, seq, grant: grant.plus(seq.0 - seqs.first.0) };
        seqs.seqs().map(move |seq| (consumer, lease(seq)))
    }

    /// Takes the delivery apart around messages that cannot be read, of which the first is the next that it lacks: the
    /// part before them, which is whole, their leases, and the part after them.
    pub(super) fn without(
        self,
        lost: SeqRange,
    ) -> (Option<PendingDelivery>, LeaseRun, Option<PendingDelivery>) {
        let PendingDelivery { epoch, deliver, frame, messages, bytes } = self;
        let (first, last) = (deliver.seqs.first, deliver.seqs.last);
        let nth = |seq: Seq| deliver.grant.plus(seq.0 - first.0);
        let lost = SeqRange::new(lost.first, lost.last.min(last));
        let lease = Lease { epoch, seq: lost.first, grant: nth(lost.first) };
        let leases = LeaseRun { first: lease, count: lost.count() as u32 };
        let before = (lost.first > first).then(|| {
            let seqs = SeqRange::new(first, Seq(lost.first.0 - 1));
            PendingDelivery { epoch, deliver: Deliver { seqs, ..deliver }, frame, messages, bytes }
        });
        let after = (lost.last < last).then(|| {
            let seqs = SeqRange::new(lost.last.next(), last);
            PendingDelivery::new(epoch, Deliver { seqs, grant: nth(seqs.first), ..deliver }, frame)
        });
        (before, leases, after)
    }

    /// How many messages have their contents.
    pub(super) fn len(&self) -> u64 {
        self.messages.len() as u64
    }

    /// Adds what the window has and returns the first message that it has not.
    pub(super) fn collect(&mut self, window: &Window, shard: &Shard) -> Seq {
        let deliver = self.deliver;
        let next = deliver.seqs.first.plus(self.messages.len() as u64);
        if next > deliver.seqs.last {
            return next;
        }
        window.collect(deliver.stream, SeqRange::new(next, deliver.seqs.last), |found| {
            let past = found.extra.origin.as_ref().map(|origin| {
                let name = |id| shard.stream_name(id).cloned();
                Box::new(Past {
                    receives: origin.receives,
                    home: origin.trail.map(|trail| (trail.home, trail.seq)),
                    from: origin.trail.and_then(|trail| name(trail.from)),
                })
            });
            self.bytes += found.content.len();
            self.messages.push(RunMessage {
                ordinal: found.ordinal,
                published: found.published(),
                priority: found.extra.priority,
                past,
                content: found.content,
            });
        })
    }

    /// The messages that have their contents, as a delivery of their own, if they are a piece that is worth it.
    pub(super) fn take_piece(&mut self) -> Option<PendingDelivery> {
        if self.bytes < PIECE_BYTES {
            return None;
        }
        let PendingDelivery { epoch, deliver, frame, .. } = *self;
        let (messages, bytes) = (std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes));
        let seqs = SeqRange::starting(deliver.seqs.first, messages.len() as u64);
        self.deliver.seqs = SeqRange::new(seqs.last.next(), deliver.seqs.last);
        self.deliver.grant = deliver.grant.plus(seqs.count());
        Some(PendingDelivery { epoch, deliver: Deliver { seqs, ..deliver }, frame, messages, bytes })
    }

    /// Whether it is worth reading on for it. `unwanted`: the message that it lacks may be gone from the log.
    pub(super) fn may_leave(&self, shard: &Shard, unwanted: bool) -> bool {
        if self.deliver.is_fleeting() {
            return !unwanted;
        }
        self.leases().any(|(_, lease)| shard.is_current(self.deliver.group, lease))
    }

    fn into_delivery(self) -> Delivery {
        let Deliver { group, consumer, seqs, grant, attempt, redelivered, first_received, deadline, .. } =
            self.deliver;
        let lease = Lease { epoch: self.epoch, seq: seqs.first, grant };
        let messages = self.messages;
        Delivery { group, consumer, lease, attempt, redelivered, first_received, deadline, messages }
    }
}

#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// Whole, but the entry of their leases is not durable yet. By frame.
    held: BTreeMap<u64, Vec<PendingDelivery>>,
    /// Deliveries to consumers without a connection that have not left. By consumer.
    undelivered_to: HashMap<ConsumerId, u32>,
    /// Consumers to whom all deliveries have left, with their groups.
    served: Vec<(GroupId, ConsumerId)>,
}

impl Deliveries {
    /// Whether a delivery to a consumer without a connection has not left yet.
    pub(super) fn is_owed(&self, consumer: ConsumerId) -> bool {
        self.undelivered_to.contains_key(&consumer)
    }

    /// Consumers to whom all deliveries have left. Until they are taken from here their messages are still on the
    /// way to them, and they must not be told that there were none.
    pub(super) fn take_served(&mut self, shard: &mut Shard, out: &mut Vec<ConsumerId>) {
        for (group, consumer) in self.served.drain(..) {
            if self.undelivered_to.get(&consumer) == Some(&0) {
                self.undelivered_to.remove(&consumer);
                shard.served(group, consumer);
            }
            out.push(consumer);
        }
    }

    /// A delivery begins to be put together.
    pub(super) fn begin(&mut self, deliver: &Deliver) {
        if deliver.bound == Bound::Clock {
            *self.undelivered_to.entry(deliver.consumer).or_default() += 1;
        }
    }

    /// A delivery has left, or never will.
    pub(super) fn ended(&mut self, group: GroupId, consumer: ConsumerId) {
        if let Some(left) = self.undelivered_to.get_mut(&consumer) {
            *left -= 1;
            if *left == 0 {
                self.served.push((group, consumer));
            }
        }
    }

    /// A delivery that found all contents in the turn in which it was decided leaves, or waits for its frame.
    pub(super) fn send(&mut self, pending: PendingDelivery, context: &mut Context<'_>) {
        if let Some(pending) = self.hold(pending, context.durable) {
            let Deliver { group, consumer, .. } = pending.deliver;
            context.outbox.deliveries.push(pending.into_delivery());
            self.ended(group, consumer);
        }
    }

    /// A delivery that had to wait for a read leaves, or waits for its frame.
    pub(super) fn send_late(&mut self, pending: PendingDelivery, shard: &Shard, context: &mut Context<'_>) {
        if let Some(pending) = self.hold(pending, context.durable) {
            self.send_current(pending, shard, context.outbox);
        }
    }

    /// Keeps a delivery whose frame is not durable. Gives back one that may leave.
    fn hold(&mut self, pending: PendingDelivery, durable: u64) -> Option<PendingDelivery> {
        match pending.frame.filter(|&frame| frame > durable) {
            Some(frame) => {
                self.held.entry(frame).or_default().push(pending);
                None
            }
            None => Some(pending),
        }
    }

    /// A delivery that had to wait may have lapsed meanwhile, and its messages may be with others.
    fn send_current(&mut self, pending: PendingDelivery, shard: &Shard, outbox: &mut Outbox) {
        let (consumer, fleeting) = (pending.deliver.consumer, pending.deliver.is_fleeting());
        let delivery = pending.into_delivery();
        let group = delivery.group;
        let is_kept = |lease| fleeting || shard.is_current(group, lease);
        delivery.keep(is_kept, |delivery| outbox.deliveries.push(delivery));
        self.ended(group, consumer);
    }

    /// Deliveries whose leases are durable now may leave.
    pub(super) fn durable(&mut self, number: u64, shard: &Shard, outbox: &mut Outbox) {
        while let Some(frame) = self.held.first_entry().filter(|frame| *frame.key() <= number) {
            for pending in frame.remove() {
                self.send_current(pending, shard, outbox);
            }
        }
    }

    /// Deliveries that wait for their frame.
    pub(super) fn held(&self) -> impl Iterator<Item = &PendingDelivery> + '_ {
        self.held.values().flatten()
    }

    /// Drops deliveries that wait for their frame, of a group or of one consumer of it.
    pub(super) fn drop_held(&mut self, group: GroupId, consumer: Option<ConsumerId>) {
        let mut dropped = Vec::new();
        for held in self.held.values_mut() {
            let gone = held.extract_if(.., |pending| is_for(&pending.deliver, group, consumer));
            dropped.extend(gone.map(|pending| pending.deliver.consumer));
        }
        for consumer in dropped {
            self.ended(group, consumer);
        }
    }
}

/// Whether a delivery is for a group, and for one consumer of it if one is named.
pub(super) fn is_for(deliver: &Deliver, group: GroupId, consumer: Option<ConsumerId>) -> bool {
    deliver.group == group && consumer.is_none_or(|consumer| deliver.consumer == consumer)
}
