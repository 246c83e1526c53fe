//! What the task does when it is asked: settling, joining, creating.

use forebay_core::group::{self, Bound, Credit, Departure, Outcome};
use forebay_core::settings::{Acks, GroupSettings, StreamSettings};
use forebay_core::shard::{CreateRefusal, Start};
use forebay_core::types::{ConsumerId, GroupId, GroupName, StreamName, Timestamp};
use tokio::sync::oneshot;

use super::ShardTask;
use super::commands::{Action, Event, Joined, Member, Session, Settlement, Settlements, Waiting};
use crate::broker::{CreateError, Created, GroupError, SubscribeError};
use crate::driver::Answer;

impl ShardTask {
    pub(super) fn settle(&mut self, now: Timestamp, consumer: ConsumerId, settlements: Vec<Settlement>) {
        let Some(member) = self.members.get(&consumer) else { return };
        let group = member.group;
        let settled = settlements.into_iter().map(|Settlement { ticket, leases, action, reason }| {
            let mut results = Vec::with_capacity(leases.len());
            let outcome = match &action {
                Action::Ack => Outcome::Ack,
                Action::Retry { delay } => Outcome::Retry { delay: *delay },
                Action::Park => Outcome::Park,
                Action::Skip => Outcome::Skip,
                Action::Move(to) => Outcome::Move(to),
                Action::Extend { by } => {
                    self.driver.extend(now, group, &leases, *by, &mut results);
                    return Settlements { ticket, results };
                }
            };
            let settlement = group::Settlement { outcome, reason: reason.as_deref(), late: false };
            self.driver.settle(now, group, &leases, settlement, &mut results);
            Settlements { ticket, results }
        });
        let settled: Vec<Settlements> = settled.collect();
        let durable = self.driver.shard().group_settings(group).is_some_and(|of| of.acks == Acks::Durable);
        if durable {
            // Answered after the sync, so that nothing that was said to be acked is ever delivered again.
            let events = member.session.events.clone();
            self.driver.confirm(Answer::Done, self.waiting.next());
            self.waiting.enter(Waiting::Settled(events, settled));
        } else {
            let _ = member.session.events.send(Event::Settled(settled));
        }
    }

    pub(super) fn join(
        &mut self,
        now: Timestamp,
        (stream, group): (&StreamName, &GroupName),
        name: &str,
        credit: u32,
        session: Session,
    ) -> Result<Joined, SubscribeError> {
        if self.stopping {
            return Err(SubscribeError::Group(GroupError::Stopping));
        }
        let group = self.find_group(stream, group)?;
        let consumer = session.consumer;
        self.driver.join(now, group, consumer, name, Bound::Connection)?;
        if let Err(refusal) = self.driver.credit(now, group, consumer, Credit::slots(credit)) {
            self.driver.leave(group, consumer, Departure::Goodbye);
            return Err(refusal.into());
        }
        self.members.insert(consumer, Member { session, group, credit });
        Ok(Joined { epoch: self.driver.shard().epoch() })
    }

    pub(super) fn find_group(&self, stream: &StreamName, group: &GroupName) -> Result<GroupId, GroupError> {
        let shard = self.driver.shard();
        let found = shard.stream_named(stream).ok_or(GroupError::NoSuchStream)?;
        shard.group_named(found, group).ok_or(GroupError::NoSuchGroup)
    }

    /// Creates a stream, or finds one that agrees with what was asked for. Either way the answer comes
    /// when the stream is durable.
    pub(super) fn create_stream(
        &mut self,
        now: Timestamp,
        name: &StreamName,
        change: &dyn Fn(&mut StreamSettings),
    ) -> Result<Created, CreateError> {
        let mut settings = StreamSettings::default();
        change(&mut settings);
        let ticket = self.waiting.next();
        match self.driver.create_stream(now, name, &settings, ticket) {
            Ok(()) => {
                let stream = self.driver.shard().stream_named(name).expect("the stream was just created");
                Ok(Created { stream, new: true })
            }
            Err(CreateRefusal::StreamExists { stream, .. }) => {
                let existing = self.driver.shard().stream_settings(stream).expect("the stream exists");
                agree(existing, change)?;
                self.driver.confirm(Answer::StreamCreated(stream), ticket);
                Ok(Created { stream, new: false })
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    pub(super) fn create_group(
        &mut self,
        now: Timestamp,
        stream: &StreamName,
        name: &GroupName,
        change: &dyn Fn(&mut GroupSettings),
        start: Start,
    ) -> Result<Created, CreateError> {
        let stream = match self.driver.shard().stream_named(stream) {
            Some(stream) => stream,
            None => {
                let (reply, _) = oneshot::channel();
                let created = self.create_stream(now, stream, &|_: &mut StreamSettings| {})?;
                self.waiting.enter(Waiting::Create(reply, created));
                created.stream
            }
        };
        let mut settings = GroupSettings::default();
        change(&mut settings);
        let ticket = self.waiting.next();
        match self.driver.create_group(now, stream, name, &settings, start, ticket) {
            Ok(()) => Ok(Created { stream, new: true }),
            Err(CreateRefusal::GroupExists { group, .. }) => {
                let existing = self.driver.shard().group_settings(group).expect("the group exists");
                agree(existing, change)?;
                self.driver.confirm(Answer::GroupCreated(group), ticket);
                Ok(Created { stream, new: false })
            }
            Err(refusal) => Err(refusal.into()),
        }
    }
}

fn agree<S: Clone + PartialEq>(existing: &S, change: &dyn Fn(&mut S)) -> Result<(), CreateError> {
    let mut wanted = existing.clone();
    change(&mut wanted);
    if wanted == *existing { Ok(()) } else { Err(CreateError::Different) }
}
