//! Requests that have what they asked for: deliveries leave in their turn, and the requests end.

use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{Seq, SeqRange};

use crate::driver::Outbox;
use crate::driver::deliveries::PendingDelivery;
use crate::driver::payloads::{Context, Payloads, Purpose, Request, key_run};

impl Payloads {
    /// A fetch or a move has what it needs.
    pub(super) fn complete(&mut self, request: Request, context: &mut Context<'_>) {
        match request.purpose {
            Purpose::Fetch(id, found) => self.fetches.found(id, found, context.outbox),
            Purpose::Move(moved, found) => self.moves.push_back((moved, found)),
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Deliver(_) => {
                unreachable!("a group waits for it")
            }
        }
    }

    /// The part of a delivery that has its contents leaves, if it is large.
    pub(super) fn send_piece(&mut self, id: u64, shard: &Shard, context: &mut Context<'_>) {
        let piece = self.reads.change(id, |request| match &mut request.purpose {
            Purpose::Deliver(pending) => pending.take_piece(),
            _ => None,
        });
        if let Some(piece) = piece {
            self.deliveries.begin(&piece.deliver);
            self.send_read(piece, shard, context);
        }
    }

    /// A delivery that had to be read, or a part of it, leaves or stands in line.
    pub(super) fn send_read(&mut self, pending: PendingDelivery, shard: &Shard, context: &mut Context<'_>) {
        let may_leave = if pending.deliver.in_order { self.lines.ready(pending) } else { Some(pending) };
        if let Some(pending) = may_leave {
            self.deliveries.send_late(pending, shard, context);
        }
    }

    /// Deliveries that stood in line leave, as far as the ones before them have their contents.
    pub(super) fn send_in_line(&mut self, shard: &Shard, context: &mut Context<'_>) {
        while let Some(pending) = self.lines.next() {
            self.deliveries.send_late(pending, shard, context);
        }
    }

    /// A request takes the messages that the window has by now. True when none is missing any more.
    pub(super) fn take_more(&mut self, id: u64, shard: &Shard) -> bool {
        self.reads.change(id, |request| {
            request.take_from(&self.window, shard);
            request.is_complete()
        })
    }

    /// A request has what it needs, or as much as it takes.
    pub(super) fn finish(&mut self, id: u64, shard: &mut Shard, context: &mut Context<'_>) {
        let Some(request) = self.remove(id) else { return };
        match request.purpose {
            Purpose::ReadAhead(look) if request.next > look.asked => {
                let range = SeqRange::new(look.asked, Seq(request.next.0 - 1));
                let keys = match &look.keys {
                    Some(keys) if !look.unreadable.is_empty() => {
                        KeyRun::Partly { keys, unreadable: &look.unreadable }
                    }
                    keys => key_run(keys.as_ref()),
                };
                shard.read_ahead(look.group, range, keys);
            }
            Purpose::ReadAhead(look) => shard.read_nothing(look.group),
            Purpose::Prefetch(_) => {}
            Purpose::Fetch(..) | Purpose::Move(..) => self.complete(request, context),
            Purpose::Deliver(pending) => {
                let part = pending.deliver;
                self.send_read(pending, shard, context);
                self.lines.close(&part);
            }
        }
    }

    /// Drops a request. A delivery that it was for never leaves.
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(Request { purpose: Purpose::Deliver(pending), .. }) = self.remove(id) {
            self.lines.close(&pending.deliver);
            self.deliveries.ended(pending.deliver.group, pending.deliver.consumer);
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Request> {
        let request = self.reads.remove(id)?;
        if matches!(request.purpose, Purpose::Prefetch(_)) {
            self.prefetched.remove(&request.stream);
        }
        Some(request)
    }

    /// Deliveries whose leases are durable now may leave.
    pub(in crate::driver) fn durable(&mut self, number: u64, shard: &Shard, outbox: &mut Outbox) {
        self.deliveries.durable(number, shard, outbox);
    }
}
