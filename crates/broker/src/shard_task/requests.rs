//! The task's answers to requests: settling, joining, creating, deleting.

use std::time::Duration;

use forebay_core::group::{
    Bound, ConsumerTerms, Credit, Departure, Lease, LeaseRun, NotYours, Outcome, OutcomeRun, Settlement,
    Verb, each_outcome,
};
use forebay_core::notes::{Expected, NoteChange};
use forebay_core::settings::{Acks, GroupSettings, StreamSettings};
use forebay_core::shard::{CreateRefusal, DeleteIf, PublishOptions, PublishRefusal, Shard};
use forebay_core::types::{ConsumerId, Epoch, GroupId, GroupName, Seq, StreamId, StreamName, Timestamp};
use tokio::sync::oneshot;

use super::commands::{Event, Member, Session, SettleRequest, Settled, Waiting, answer};
use super::{CONSUMER_BYTES_MAX, ShardTask, Stage};
use crate::batch::Batch;
use crate::broker::Created;
use crate::caller::{Absent, Reply, Signal};
use crate::door::OWN_NOTES;
use crate::driver::Driver;
use crate::error::{CallError, PublishError};
use crate::receipt::Receipts;
use crate::recovery::{self, BEHIND_KEY};

/// Under which key the broker keeps what receipts are sealed with.
const SECRET_KEY: &[u8] = b"receipts";

impl ShardTask {
    /// Does `then` once everything that was decided until the end of this turn is durable.
    pub(crate) fn when_durable(&mut self, then: impl FnOnce() + Send + 'static) {
        self.driver.confirm(self.waiting.next());
        self.waiting.enter(Waiting::Call(Box::new(then)));
    }

    /// Answers once everything that was decided until now is durable. That holds for errors too, since they
    /// state facts about the log.
    pub(crate) fn answer_durably<T: Send + 'static>(&mut self, reply: Reply<T>, value: Result<T, CallError>) {
        self.when_durable(move || answer(reply, value));
    }

    /// Lets the driver decide, and answers with the decision when it is durable.
    pub(crate) fn decide<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        decide: impl FnOnce(&mut Driver, Timestamp) -> Result<T, CallError>,
    ) {
        let running = self.stage == Stage::Running;
        let decided = if running { decide(&mut self.driver, self.now) } else { Err(CallError::Stopping) };
        self.answer_durably(reply, decided);
    }

    pub(crate) fn find_stream(&self, stream: &StreamName) -> Result<StreamId, CallError> {
        find_stream(self.driver.shard(), stream)
    }

    pub(crate) fn find_group(&self, stream: &StreamName, group: &GroupName) -> Result<GroupId, CallError> {
        find_group(self.driver.shard(), stream, group)
    }

    /// The stream that a batch is for. A missing stream is created in the frame of the batch.
    pub(super) fn stream_to_publish(
        &mut self,
        name: &StreamName,
        batch: &Batch,
        options: PublishOptions,
        absent: &Absent,
    ) -> Result<StreamId, PublishError> {
        if let Some(stream) = self.driver.shard().stream_named(name) {
            return Ok(stream);
        }
        let settings = match absent {
            Absent::AsConfigured => self.config.stream_of_first_publish.clone(),
            Absent::Refuse => None,
            Absent::Create(settings) => Some(StreamSettings::clone(settings)),
        };
        let Some(settings) = settings else {
            return Err(PublishRefusal::NoSuchStream.into());
        };
        if self.space.is_full() {
            return Err(PublishRefusal::StorageFull.into());
        }
        // A batch that is refused anyway must not leave a stream behind.
        self.driver.shard().check_batch(self.now, &batch.metas)?;
        if options.expect_last.is_some_and(|last| last != Seq::START) {
            return Err(PublishRefusal::WrongLastSeq { last: Seq::START }.into());
        }
        let now = self.now;
        Ok(self.driver.decide(|shard| shard.create_stream(now, name, &settings))?)
    }

    pub(super) fn settle(&mut self, consumer: ConsumerId, requests: Vec<SettleRequest>) {
        let now = self.now;
        let Some(member) = self.members.get_mut(&consumer) else { return };
        let group = member.group;
        let mut settled = Vec::with_capacity(requests.len());
        let keeps_times = keeps_times(&self.driver, group);
        for SettleRequest { ticket, leases, settlement } in requests {
            let mut outcomes = Vec::with_capacity(leases.len());
            self.driver.settle(now, group, &leases, &settlement, &mut outcomes);
            self.traces.settled(now, self.driver.shard(), group, &leases, &outcomes);
            if keeps_times && !matches!(settlement.verb, Verb::Extend { .. }) {
                let times = self.statistics.settled(now, self.driver.shard(), group, &leases, &outcomes);
                let own = member.processing.get_or_insert_default();
                times.into_iter().for_each(|(time, count)| own.record_n(time, count));
            }
            settled.push(Settled { ticket, outcomes });
        }
        if is_durable(&self.driver, group) || !self.tenure.may_serve() {
            // Answered after the sync, so that nothing that was said to be acked is ever delivered again.
            let events = member.session.events.clone();
            self.driver.confirm(self.waiting.next());
            self.waiting.enter(Waiting::Settled(events, settled));
        } else {
            let _ = member.session.events.send(Event::Settled(settled));
        }
    }

    /// Settles by receipts. A receipt that was not written here, or for another group, is unknown.
    pub(crate) fn settle_receipts(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        receipts: &[Option<(GroupId, Lease)>],
        settlement: &Settlement,
        reply: Reply<Vec<Outcome>>,
    ) {
        let now = self.now;
        let group = match self.find_group(stream, group) {
            Ok(group) => group,
            Err(error) => return self.answer_durably(reply, Err(error)),
        };
        let ours = receipts.iter().flatten().filter(|(of, _)| *of == group);
        let leases: Vec<Lease> = ours.map(|(_, lease)| *lease).collect();
        let holders: Vec<Option<ConsumerId>> =
            leases.iter().map(|lease| self.driver.shard().holder(group, *lease)).collect();
        let mut outcomes = Vec::new();
        let runs = LeaseRun::join(leases.iter().copied());
        self.driver.settle(now, group, &runs, settlement, &mut outcomes);
        self.traces.settled(now, self.driver.shard(), group, &runs, &outcomes);
        if keeps_times(&self.driver, group) && !matches!(settlement.verb, Verb::Extend { .. }) {
            self.keep_times(group, &leases, &holders, &outcomes);
        }
        let mut outcomes = each_outcome(&outcomes);
        let all = receipts.iter().map(|receipt| match receipt {
            Some((of, _)) if *of == group => outcomes.next().expect("each lease has an outcome"),
            _ => Outcome::NotYours(NotYours::Unknown),
        });
        let all: Vec<Outcome> = all.collect();
        if is_durable(&self.driver, group) || !self.tenure.may_serve() {
            self.answer_durably(reply, Ok(all));
        } else {
            answer(reply, Ok(all));
        }
    }

    pub(super) fn keep_times(
        &mut self,
        group: GroupId,
        leases: &[Lease],
        holders: &[Option<ConsumerId>],
        outcomes: &[OutcomeRun],
    ) {
        for ((lease, holder), outcome) in leases.iter().zip(holders).zip(each_outcome(outcomes)) {
            let run = [LeaseRun::one(*lease)];
            for (time, count) in
                self.statistics.settled(self.now, self.driver.shard(), group, &run, &[(outcome, 1)])
            {
                let Some(holder) = *holder else { continue };
                if let Some(member) = self.members.get_mut(&holder) {
                    member.processing.get_or_insert_default().record_n(time, count);
                } else if let Some(poller) = self.pollers.get_mut(holder) {
                    poller.processing.get_or_insert_default().record_n(time, count);
                }
            }
        }
    }

    /// Gives messages back that were not taken out of an answer, and so were not tried.
    pub(crate) fn give_back(&mut self, group: GroupId, leases: &[LeaseRun]) {
        let settlement = Verb::Return { delay: None }.into();
        self.driver.settle(self.now, group, leases, &settlement, &mut Vec::new());
    }

    pub(crate) fn join(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        name: &str,
        credit: u32,
        terms: ConsumerTerms,
        session: Session,
    ) -> Result<Epoch, CallError> {
        if self.stage != Stage::Running {
            return Err(CallError::Stopping);
        }
        let group = self.find_group(stream, group)?;
        let consumer = session.consumer;
        self.driver.join_on(self.now, group, consumer, name, Bound::Connection, terms)?;
        let slots = Credit::Slots { messages: credit, bytes: Some(CONSUMER_BYTES_MAX) };
        if let Err(refusal) = self.driver.credit(self.now, group, consumer, slots) {
            self.driver.leave(group, consumer, Departure::Goodbye);
            return Err(refusal.into());
        }
        let wish = Credit::slots(credit);
        let member = Member { session, group, credit, wish, credit_most: credit, processing: None };
        self.members.insert(consumer, member);
        Ok(self.driver.shard().epoch())
    }

    /// Creates a stream, or finds one that agrees with the request. Either way the answer comes when the
    /// stream is durable.
    pub(crate) fn create_stream(
        &mut self,
        name: &StreamName,
        change: &dyn Fn(&mut StreamSettings),
        reply: Reply<Created>,
    ) {
        let mut settings = StreamSettings::default();
        change(&mut settings);
        let existing = self.driver.shard().stream_named(name);
        if let Some(stream) = existing {
            let settings = self.driver.shard().stream_settings(stream).expect("the stream exists");
            let agreed = agree(settings, change).map(|()| Created { stream, new: false });
            return self.answer_durably(reply, agreed);
        }
        self.decide(reply, |driver, now| {
            let stream = driver.decide(|shard| shard.create_stream(now, name, &settings))?;
            Ok(Created { stream, new: true })
        });
    }

    pub(crate) fn create_group(
        &mut self,
        stream: &StreamName,
        name: &GroupName,
        change: &dyn Fn(&mut GroupSettings),
        reply: Reply<Created>,
    ) {
        let mut settings = GroupSettings::default();
        change(&mut settings);
        let shard = self.driver.shard();
        let found = shard.stream_named(stream);
        if let Some(stream) = found
            && let Some(group) = shard.group_named(stream, name)
        {
            let agreed = agree(shard.group_settings(group).expect("the group exists"), change);
            return self.answer_durably(reply, agreed.map(|()| Created { stream, new: false }));
        }
        // Looked at first, so that a group that cannot be does not leave a stream behind.
        if let Err(refusal) = settings.check().and_then(|()| settings.check_source(stream)) {
            return self.answer_durably(reply, Err(CreateRefusal::Settings(refusal).into()));
        }
        self.decide(reply, |driver, now| {
            driver.decide(|shard| {
                let stream = match found {
                    Some(stream) => stream,
                    None => shard.create_stream(now, stream, &StreamSettings::default())?,
                };
                shard.create_group(now, stream, name, &settings, settings.start)?;
                Ok(Created { stream, new: true })
            })
        });
    }

    pub(crate) fn delete_stream(&mut self, name: &StreamName, condition: DeleteIf, reply: Reply<()>) {
        let found = self.find_stream(name);
        let stream = found.clone().ok();
        let groups = stream.map(|stream| self.groups_of(stream)).unwrap_or_default();
        self.decide(reply, |driver, _| Ok(driver.delete_stream_if(found?, condition)?));
        if let Some(stream) = stream.filter(|stream| self.driver.shard().stream_name(*stream).is_none()) {
            self.stream_deleted(stream, &groups);
        }
    }

    pub(super) fn groups_of(&self, stream: StreamId) -> Vec<GroupId> {
        self.driver.shard().groups_of(stream).map(|(_, group)| group).collect()
    }

    /// Tells everyone who takes part in a stream that it is gone.
    pub(super) fn stream_deleted(&mut self, stream: StreamId, groups: &[GroupId]) {
        let readers = self.tails.remove(stream);
        self.statistics.forget_stream(stream);
        self.dismiss(groups, readers);
    }

    pub(crate) fn delete_group(&mut self, stream: &StreamName, group: &GroupName, reply: Reply<()>) {
        let found = self.find_group(stream, group);
        let group = found.clone().ok();
        self.decide(reply, |driver, _| Ok(driver.delete_group(found?)?));
        if let Some(group) = group.filter(|group| self.driver.shard().stream_of(*group).is_none()) {
            self.dismiss(&[group], Vec::new());
        }
    }

    /// The groups are gone, and the stream with them if it had readers. Consumers get nothing more. They and the
    /// readers are told when the deletion is durable: a server that dies before that starts with the groups.
    fn dismiss(&mut self, groups: &[GroupId], readers: Vec<Signal>) {
        let gone = self.members.extract_if(|_, member| groups.contains(&member.group));
        let consumers: Vec<_> = gone.map(|(_, member)| member.session.events).collect();
        let receives = self.pollers.dismiss(groups);
        for group in groups {
            self.statistics.forget_group(*group);
        }
        self.when_durable(move || {
            for reader in readers {
                reader.send_replace(());
            }
            for events in consumers {
                let _ = events.send(Event::GroupGone);
            }
            for reply in receives {
                answer(reply, Err(CallError::GroupGone));
            }
        });
    }

    /// Answers with the secret that seals receipts. It comes from the log; the first start puts it there. If the log
    /// has no room for it, receipts are good until the next start.
    pub(crate) fn keep_secret(&mut self, reply: oneshot::Sender<[u8; 32]>) {
        let offered = self.config.secret;
        let kept = self.driver.shard().note(self.now, OWN_NOTES, SECRET_KEY);
        if let Some(secret) = kept.and_then(|note| note.value.as_slice().try_into().ok()) {
            self.receipts = Receipts::new(self.driver.id(), secret);
            return answer(reply, secret);
        }
        let note = NoteChange {
            door: OWN_NOTES,
            key: SECRET_KEY,
            value: Some(&offered),
            expected: Expected::Any,
            expires: None,
        };
        // If it is refused there is nothing to wait for.
        let _ = self.driver.put_note(self.now, note);
        self.when_durable(move || answer(reply, offered));
    }

    /// Writes down by how much the clock is behind the date, before anything is handed out by that clock. The next
    /// owner knows its date only, and goes on from as much before it.
    pub(crate) fn keep_behind(&mut self, behind: Duration) {
        if behind == recovery::behind(self.driver.shard()) {
            return;
        }
        let micros = u64::try_from(behind.as_micros()).unwrap_or(u64::MAX);
        let note = NoteChange {
            door: OWN_NOTES,
            key: BEHIND_KEY,
            value: Some(&micros.to_le_bytes()),
            expected: Expected::Any,
            expires: None,
        };
        if let Err(error) = self.driver.put_note(self.now, note) {
            tracing::warn!(
                ?error,
                seconds = behind.as_secs_f64(),
                "the log has no room for a note on how far the clock is behind the date, and deadlines may come early \
                 by as much after the next change of owner"
            );
        }
    }
}

pub(crate) fn find_stream(shard: &Shard, stream: &StreamName) -> Result<StreamId, CallError> {
    shard.stream_named(stream).ok_or_else(|| CallError::NoSuchStream { stream: stream.clone() })
}

pub(crate) fn find_group(
    shard: &Shard,
    stream: &StreamName,
    group: &GroupName,
) -> Result<GroupId, CallError> {
    let found = shard.group_named(find_stream(shard, stream)?, group);
    found.ok_or_else(|| CallError::NoSuchGroup { stream: stream.clone(), group: group.clone() })
}

fn is_durable(driver: &Driver, group: GroupId) -> bool {
    driver.shard().group_settings(group).is_some_and(|of| of.acks == Acks::Durable)
}

pub(super) fn keeps_times(driver: &Driver, group: GroupId) -> bool {
    driver.shard().group_settings(group).is_some_and(|of| of.extra_statistics)
}

fn agree<S: Clone + PartialEq>(existing: &S, change: &dyn Fn(&mut S)) -> Result<(), CallError> {
    let mut wanted = existing.clone();
    change(&mut wanted);
    if wanted == *existing { Ok(()) } else { Err(CallError::Different) }
}

/// How long a drain waits between two checks of the consumers that still hold messages.
pub(super) const DRAIN_LOOK: Duration = Duration::from_millis(20);
