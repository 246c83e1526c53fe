//! Requests and contents of consumers, groups and streams that are gone, and of messages that are settled.

use forebay_core::group::Lease;
use forebay_core::shard::Shard;
use forebay_core::types::{ConsumerId, GroupId, Seq, StreamId};

use crate::driver::deliveries::{PendingDelivery, is_for};
use crate::driver::payloads::{Payloads, Purpose, Request};

impl Payloads {
    /// Messages that are leased and have not left, because their contents or their entry is not here yet.
    pub(in crate::driver) fn undelivered(
        &self,
        group: GroupId,
    ) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        let reading = self.reads.requests().filter_map(|request| match &request.purpose {
            Purpose::Deliver(pending) => Some(pending),
            _ => None,
        });
        let all = self.deliveries.held().chain(reading).chain(self.lines.waiting());
        all.filter(move |pending| pending.deliver.group == group).flat_map(PendingDelivery::leases)
    }

    /// Deliveries to a consumer that has left are not sent.
    pub(in crate::driver) fn drop_consumer(&mut self, group: GroupId, consumer: ConsumerId) {
        self.deliveries.drop_held(group, Some(consumer));
        self.lines.drop(group, Some(consumer));
        self.drop_requests(|request| match &request.purpose {
            Purpose::Deliver(pending) => is_for(&pending.deliver, group, Some(consumer)),
            Purpose::ReadAhead(_) | Purpose::Prefetch(_) | Purpose::Fetch(..) | Purpose::Move(..) => false,
        });
    }

    /// Nothing is read or delivered for the group any more.
    pub(in crate::driver) fn drop_group(&mut self, group: GroupId) {
        self.drop_requests(|request| match &request.purpose {
            Purpose::Deliver(pending) => is_for(&pending.deliver, group, None),
            Purpose::ReadAhead(look) => look.group == group,
            Purpose::Prefetch(of) => *of == group,
            Purpose::Move(moved, _) => moved.group == group,
            Purpose::Fetch(..) => false,
        });
        self.deliveries.drop_held(group, None);
        self.lines.drop(group, None);
    }

    /// The stream is gone. Fetches return the messages found of it so far.
    pub(in crate::driver) fn drop_stream(&mut self, stream: StreamId) {
        self.drop_requests(|request| request.stream == stream && !request.is_fetch());
        self.window.forget_before(stream, Seq(u64::MAX));
    }

    fn drop_requests(&mut self, which: impl Fn(&Request) -> bool) {
        for id in self.reads.ids(which) {
            self.forget(id);
        }
    }

    pub(in crate::driver) fn settled(&mut self, stream: StreamId) {
        if self.settled.last() != Some(&stream) {
            self.settled.push(stream);
        }
    }

    /// Lets go of contents that no group of the stream will ask for again.
    pub(in crate::driver) fn forget_settled(&mut self, shard: &Shard) {
        self.settled.sort_unstable();
        self.settled.dedup();
        for stream in self.settled.drain(..) {
            if let Some((_, durable)) = shard.kept(stream) {
                let wanted = shard.first_wanted(stream, Seq(1)).unwrap_or(durable.next());
                self.window.forget_before(stream, wanted);
            }
        }
    }
}
