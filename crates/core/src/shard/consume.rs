//! Members, credit, and the end of leases.

use crate::group::scan::KeyRun;
use crate::group::{
    Bound, ConsumerTerms, Credit, Departure, LeaseRun, NotYours, Outcome, OutcomeRun, Settlement,
};
use crate::settings::Retention;
use crate::shard::Shard;
use crate::types::{ConsumerId, GroupId, SeqRange, StreamId, Timestamp};

/// Why a consumer was not let in, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberRefusal {
    #[error("no such group")]
    NoSuchGroup,
    #[error("not a member of the group")]
    NotAMember,
    #[error("already a member of the group")]
    AlreadyAMember,
    #[error("must be at most {limit}. value=`{credit}`")]
    CreditTooLarge { credit: u32, limit: u32 },
    #[error("the limit of consumers of a group is reached. limit=`{limit}`")]
    TooManyConsumers { limit: u32 },
}

impl Shard {
    /// These messages are durable, and so is everything before them.
    pub fn arrived(&mut self, stream: StreamId, range: SeqRange, keys: KeyRun<'_>) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        assert_eq!(stream.durable.next(), range.first, "messages become durable in order");
        stream.durable = range.last;
        // Only durable messages are let go, and these may be more than the stream keeps, or the first that grow old.
        let lets_go = stream.settings.retention != Retention::Work || stream.settings.max_age().is_some();
        if lets_go && !std::mem::replace(&mut stream.touched, true) {
            self.touched_streams.push(stream.id);
        }
        for (_, id) in &stream.groups {
            let group = self.groups.get_mut(id).expect("a stream lists groups that exist");
            let to_do = group.arrived(stream, range, keys, self.limits.key_scan_bytes_max);
            if to_do && !group.touched {
                group.touched = true;
                self.touched.push(*id);
            }
            if group.is_unwritten() && !std::mem::replace(&mut group.listed, true) {
                self.unwritten.push(*id);
            }
        }
    }

    /// What a group asked to read ahead has been read, or as much of it as came from its start on.
    pub fn read_ahead(&mut self, group: GroupId, range: SeqRange, keys: KeyRun<'_>) {
        if let Some(of) = self.groups.get_mut(&group) {
            let stream = self.streams.get(&of.stream).expect("a group's stream exists");
            of.read_ahead(stream, range, keys);
            self.touch(group);
        }
    }

    /// What a group asked to read ahead is not there any more: everybody is done with it. It asks again for
    /// what comes after.
    pub fn read_nothing(&mut self, group: GroupId) {
        if let Some(of) = self.groups.get_mut(&group) {
            of.read_nothing();
            self.touch(group);
        }
    }

    /// All messages that were leased to a consumer without a connection have left the server, or never will. Until then
    /// it stays a member: its receive is not answered.
    pub fn served(&mut self, group: GroupId, consumer: ConsumerId) {
        let now = self.latest;
        if let Some(of) = self.groups.get_mut(&group) {
            of.served(now, consumer);
        }
    }

    pub fn join(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        name: &str,
        bound: Bound,
    ) -> Result<(), MemberRefusal> {
        self.join_on(now, group, consumer, name, bound, ConsumerTerms::default())
    }

    /// Joins on terms of its own.
    pub fn join_on(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        name: &str,
        bound: Bound,
        terms: ConsumerTerms,
    ) -> Result<(), MemberRefusal> {
        let of = self.groups.get_mut(&group).ok_or(MemberRefusal::NoSuchGroup)?;
        if of.has_member(consumer) {
            return Err(MemberRefusal::AlreadyAMember);
        }
        let own = Some(of.settings.max_consumers).filter(|&most| most > 0);
        let limit = own.unwrap_or(u32::MAX).min(self.limits.consumers_per_group_max);
        if of.consumers() >= limit as usize {
            return Err(MemberRefusal::TooManyConsumers { limit });
        }
        of.join(now, consumer, name, bound, terms);
        self.touch(group);
        Ok(())
    }

    pub fn credit(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        credit: Credit,
    ) -> Result<(), MemberRefusal> {
        let messages = credit.messages();
        if messages > self.limits.credit_max {
            return Err(MemberRefusal::CreditTooLarge { credit: messages, limit: self.limits.credit_max });
        }
        let of = self.groups.get_mut(&group).ok_or(MemberRefusal::NoSuchGroup)?;
        if !of.has_member(consumer) {
            return Err(MemberRefusal::NotAMember);
        }
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        of.set_credit(now, stream, consumer, credit);
        self.touch(group);
        Ok(())
    }

    /// A consumer may leave twice, or leave a group that is gone: that does nothing.
    pub fn leave(&mut self, group: GroupId, consumer: ConsumerId, departure: Departure) {
        if let Some(of) = self.groups.get_mut(&group) {
            of.leave(consumer, departure);
            self.touch(group);
        }
    }

    /// The contents of messages that were to be delivered cannot be read. They are parked, and the number of them is
    /// returned.
    pub fn park_damaged(&mut self, now: Timestamp, group: GroupId, leases: LeaseRun) -> u64 {
        let Some(of) = self.groups.get_mut(&group) else { return 0 };
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        let parked = of.park_damaged(now, stream, leases);
        self.touch(group);
        parked
    }

    /// Ends leases, or prolongs them, and says in their order what became of them.
    pub fn settle(
        &mut self,
        now: Timestamp,
        group: GroupId,
        leases: &[LeaseRun],
        settlement: &Settlement,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        match self.groups.get_mut(&group) {
            Some(of) => {
                let stream = self.streams.get(&of.stream).expect("a group's stream exists");
                of.settle(now, stream, leases, settlement, outcomes);
                self.touch(group);
            }
            None => {
                let count = leases.iter().map(|run| run.count).sum();
                outcomes.push((Outcome::NotYours(NotYours::Unknown), count));
            }
        }
    }
}
