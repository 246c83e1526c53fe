//! Messages that cannot be read: reads that are given up, and groups that go on without the messages.

use forebay_core::group::Deliver;
use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{KeyHash, Seq, SeqRange, StreamId};

use crate::driver::deliveries::PendingDelivery;
use crate::driver::payloads::{Context, Lookahead, Payloads, Purpose, Request};

impl Payloads {
    /// Ends requests for messages that have gone because every group was done with them: a fetch that came too
    /// late, a message that was purged while it was on its way.
    pub(in crate::driver) fn give_up(&mut self, shard: &mut Shard, context: &mut Context<'_>) {
        for id in self.reads.take_nowhere() {
            let Some(request) = self.reads.get(id) else { continue };
            let (stream, seq) = (request.stream, request.next);
            let unwanted = shard.first_wanted(stream, seq) != Some(seq);
            assert!(unwanted, "a message that is wanted is in the index: {seq} of {stream:?}");
            let delivers = matches!(request.purpose, Purpose::Deliver(_));
            if delivers {
                self.forget(id);
            } else if request.is_fetch()
                && !self.take_more(id, shard)
                && self.reads.get(id).is_some_and(|request| request.next > seq)
            {
                self.reads.queue_last(id);
            } else {
                self.finish(id, shard, context);
            }
        }
        self.send_in_line(shard, context);
        self.reads.start_reads(context);
    }

    /// Messages of this read cannot be read: gives up the requests that need them.
    pub(in crate::driver) fn unreadable(&mut self, id: u64, shard: &mut Shard, context: &mut Context<'_>) {
        self.reads.ended(id);
        let Some(request) = self.reads.get(id) else { return self.reads.start_reads(context) };
        let (stream, rest) = (request.stream, SeqRange::new(request.next, request.last));
        match &request.purpose {
            Purpose::Deliver(_) => {
                self.lose_for(id, stream, rest, KeyRun::Plain, shard, context);
                // Part of it was in memory.
                if self.reads.get(id).is_some() {
                    self.reads.queue_last(id);
                }
            }
            Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => self.finish(id, shard, context),
            // The keys may be readable where the content is not.
            Purpose::ReadAhead(look) if look.keys.is_some() && request.contents => {
                self.reads.change(id, |request| {
                    request.contents = false;
                    request.search_again();
                });
                self.reads.start_read(id, context);
            }
            // The order of the keys is unknown, and must not be guessed: the group stays where it is.
            Purpose::ReadAhead(look) if look.keys.is_some() => {}
            // It is found damaged once more when it is handed out, and parked in the end.
            Purpose::ReadAhead(_) => {
                self.reads.change(id, |request| request.next = request.last.next());
                self.finish(id, shard, context);
            }
        }
        self.reads.start_reads(context);
    }

    /// These messages cannot be read: the requests that lack one of them go on without them. Keys that are not known
    /// are named to a group that asked for keys. An ordered group never delivers these messages.
    pub(super) fn lose(
        &mut self,
        stream: StreamId,
        lost: SeqRange,
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        for id in self.reads.lacking(stream, lost) {
            self.lose_for(id, stream, lost, keys, shard, context);
        }
    }

    fn lose_for(
        &mut self,
        id: u64,
        stream: StreamId,
        lost: SeqRange,
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let Some(request) = self.reads.get(id) else { return };
        let first = request.next;
        let mut last = lost.last.min(request.last);
        // Some of them may be in memory, with their keys, and need not be read.
        if let Some(held) = self.window.first_from(stream, first).filter(|held| *held <= last) {
            if held == first {
                return self.go_on_behind(id, stream, (first, lost), keys, shard, context);
            }
            last = Seq(held.0 - 1);
        }
        let here = SeqRange::new(first, last);
        match &request.purpose {
            Purpose::Deliver(_) => {
                let Some(Request { purpose: Purpose::Deliver(pending), .. }) = self.remove(id) else {
                    return;
                };
                return self.deliver_without(stream, pending, here, shard, context);
            }
            Purpose::Move(..) | Purpose::Prefetch(_) => return self.finish(id, shard, context),
            Purpose::ReadAhead(_) | Purpose::Fetch(..) => {}
        }
        let whole = self.reads.change(id, |request| {
            if let Purpose::ReadAhead(Lookahead { keys: Some(found), unreadable, .. }) = &mut request.purpose
            {
                if matches!(keys, KeyRun::Plain) {
                    unreadable.push(here);
                }
                let skipped = (first.0 - lost.first.0) as usize;
                let key = |n: usize| match keys {
                    KeyRun::Plain => KeyHash(0),
                    KeyRun::Each(keys) | KeyRun::Partly { keys, .. } => {
                        keys.get(skipped + n).copied().unwrap_or(KeyHash(0))
                    }
                };
                found.extend((0..here.count() as usize).map(key));
            }
            request.next = here.last.next();
            request.is_complete()
        });
        if whole {
            self.finish(id, shard, context);
        } else {
            self.go_on_behind(id, stream, (first, lost), keys, shard, context);
        }
    }

    /// Takes messages from `from` on that are in memory, and loses those behind them that cannot be read.
    fn go_on_behind(
        &mut self,
        id: u64,
        stream: StreamId,
        (from, lost): (Seq, SeqRange),
        keys: KeyRun<'_>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        if self.take_more(id, shard) {
            self.finish(id, shard, context);
        } else if self.reads.get(id).is_some_and(|request| (from.next()..=lost.last).contains(&request.next))
        {
            self.lose_for(id, stream, lost, keys, shard, context);
        }
    }

    /// Parks those messages of a delivery that cannot be read, and delivers the others.
    fn deliver_without(
        &mut self,
        stream: StreamId,
        pending: PendingDelivery,
        lost: SeqRange,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let Deliver { group, consumer, .. } = pending.deliver;
        let part = pending.deliver;
        let (before, leases, after) = pending.without(lost);
        self.damaged += shard.park_damaged(shard.latest(), group, leases);
        if let Some(after) = &after {
            self.deliveries.begin(&after.deliver);
        }
        match before {
            Some(before) => self.send_read(before, shard, context),
            None => self.deliveries.ended(group, consumer),
        }
        let Some(mut after) = after else { return self.lines.close(&part) };
        let (next, last) = (after.collect(&self.window, shard), after.deliver.seqs.last);
        if next > last {
            self.send_read(after, shard, context);
            self.lines.close(&part);
        } else {
            let lacking = SeqRange::new(next, last);
            self.reads.request(Request::new(stream, lacking, true, Purpose::Deliver(after)), context);
        }
    }
}
