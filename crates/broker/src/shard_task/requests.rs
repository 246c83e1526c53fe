//! What the task does when it is asked: settling, joining, creating, deleting.

use std::time::Duration;

use forebay_core::group::{self, Bound, Credit, Departure, Extension, Lease, NotYours, Outcome, Settled};
use forebay_core::notes::Expected;
use forebay_core::settings::{Acks, GroupSettings, StreamSettings};
use forebay_core::shard::{CreateRefusal, PublishOptions, PublishRefusal};
use forebay_core::types::{ConsumerId, Epoch, GroupId, GroupName, Seq, StreamId, StreamName, Timestamp};
use tokio::sync::{oneshot, watch};

use super::commands::{Action, Event, Member, Session, Settlement, Settlements, Waiting, answer};
use super::{ShardTask, Stage};
use crate::batch::Batch;
use crate::broker::Created;
use crate::caller::{OWN_NOTES, Reply, Verdict};
use crate::driver::{Answer, Driver, NoteChange, PublishError as DriverRefusal, Ticket};
use crate::error::{CallError, PublishError};
use crate::receipt::Receipts;

/// Under which key the broker keeps what receipts are sealed with.
const SECRET_KEY: &[u8] = b"receipts";

impl ShardTask {
    /// Answers once everything that was decided until now is durable: an error, too, states what is true.
    pub(crate) fn answer_durably<T: Send + 'static>(&mut self, reply: Reply<T>, value: Result<T, CallError>) {
        self.driver.confirm(Answer::Done, self.waiting.next());
        self.waiting.enter(Waiting::Call(Box::new(move |_| answer(reply, value))));
    }

    /// Lets the driver decide, and answers with what `finish` makes of it when it is durable.
    pub(crate) fn decide<T: Send + 'static, F>(
        &mut self,
        reply: Reply<T>,
        found: Result<F, CallError>,
        finish: impl FnOnce(Answer) -> T + Send + 'static,
        decide: impl FnOnce(&mut Driver, Timestamp, F, Ticket) -> Result<(), CallError>,
    ) {
        let ticket = self.waiting.next();
        let allowed = if self.stage == Stage::Running { found } else { Err(CallError::Stopping) };
        match allowed.and_then(|found| decide(&mut self.driver, self.now, found, ticket)) {
            Ok(()) => {
                let tell = move |what: forebay_storage::engine::Durable<Answer>| {
                    answer(reply, Ok(finish(what.get())));
                };
                self.waiting.enter(Waiting::Call(Box::new(tell)));
            }
            Err(error) => self.answer_durably(reply, Err(error)),
        }
    }

    pub(crate) fn find_stream(&self, stream: &StreamName) -> Result<StreamId, CallError> {
        self.driver.shard().stream_named(stream).ok_or(CallError::NoSuchStream)
    }

    pub(crate) fn find_group(&self, stream: &StreamName, group: &GroupName) -> Result<GroupId, CallError> {
        let shard = self.driver.shard();
        shard.group_named(self.find_stream(stream)?, group).ok_or(CallError::NoSuchGroup)
    }

    /// The stream that a batch is for. One that is not there is created in the frame of the batch.
    pub(super) fn stream_to_publish(
        &mut self,
        name: &StreamName,
        batch: &Batch,
        options: PublishOptions,
        may_create: bool,
    ) -> Result<StreamId, PublishError> {
        if let Some(stream) = self.driver.shard().stream_named(name) {
            return Ok(stream);
        }
        let Some(settings) = self.config.stream_of_first_publish.clone().filter(|_| may_create) else {
            return Err(DriverRefusal::from(PublishRefusal::NoSuchStream).into());
        };
        if self.space.is_full() {
            return Err(DriverRefusal::StorageFull.into());
        }
        // A batch that is refused anyway must not leave a stream behind.
        self.driver.shard().check_batch(self.now, &batch.metas).map_err(DriverRefusal::from)?;
        if options.expect_last.is_some_and(|last| last != Seq::START) {
            return Err(DriverRefusal::from(PublishRefusal::WrongLastSeq { last: Seq::START }).into());
        }
        self.driver.create_stream(self.now, name, &settings, self.waiting.next())?;
        self.waiting.enter(Waiting::Nobody);
        Ok(self.driver.shard().stream_named(name).expect("the stream was just created"))
    }

    pub(super) fn settle(&mut self, consumer: ConsumerId, settlements: Vec<Settlement>) {
        let now = self.now;
        let Some(member) = self.members.get_mut(&consumer) else { return };
        let group = member.group;
        let mut settled = Vec::with_capacity(settlements.len());
        let keeps_times = keeps_times(&self.driver, group);
        for Settlement { ticket, leases, action, reason, rest } in settlements {
            let mut results = Vec::with_capacity(leases.len());
            let with = With { reason: reason.as_deref(), late: false, rest };
            settle_some(&mut self.driver, now, group, &leases, &action, with, &mut results);
            if keeps_times && !matches!(action, Action::Extend { .. }) {
                let times = self.statistics.times(now, self.driver.shard().epoch(), &leases, &results);
                let own = member.processing.get_or_insert_default();
                let all = self.statistics.processing_of(group);
                for (time, count) in times {
                    own.record_n(time, count);
                    all.record_n(time, count);
                }
            }
            settled.push(Settlements { ticket, results });
        }
        if is_durable(&self.driver, group) {
            // Answered after the sync, so that nothing that was said to be acked is ever delivered again.
            let events = member.session.events.clone();
            self.driver.confirm(Answer::Done, self.waiting.next());
            self.waiting.enter(Waiting::Settled(events, settled));
        } else {
            let _ = member.session.events.send(Event::Settled(settled));
        }
    }

    /// Settles by receipts. Those that were not written here, or for another group, are nobody's.
    pub(crate) fn settle_held(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        leases: &[Option<(GroupId, Lease)>],
        verdict: &Verdict,
        reply: Reply<Vec<Settled>>,
    ) {
        let now = self.now;
        let group = match self.find_group(stream, group) {
            Ok(group) => group,
            Err(error) => return self.answer_durably(reply, Err(error)),
        };
        let ours: Vec<Lease> =
            leases.iter().flatten().filter(|(of, _)| *of == group).map(|(_, lease)| *lease).collect();
        let holders: Vec<Option<ConsumerId>> =
            ours.iter().map(|lease| self.driver.shard().holder(group, *lease)).collect();
        let mut results = Vec::with_capacity(ours.len());
        let Verdict { action, reason, late, rest } = verdict;
        let with = With { reason: reason.as_deref(), late: *late, rest: *rest };
        settle_some(&mut self.driver, now, group, &ours, action, with, &mut results);
        if keeps_times(&self.driver, group) && !matches!(action, Action::Extend { .. }) {
            self.keep_times(group, &ours, &holders, &results);
        }
        let mut settled = results.into_iter();
        let all = leases.iter().map(|lease| match lease {
            Some((of, _)) if *of == group => settled.next().expect("each lease has a result"),
            _ => Settled::NotYours(NotYours::Unknown),
        });
        let all: Vec<Settled> = all.collect();
        if is_durable(&self.driver, group) {
            self.answer_durably(reply, Ok(all));
        } else {
            answer(reply, Ok(all));
        }
    }

    fn keep_times(
        &mut self,
        group: GroupId,
        leases: &[Lease],
        holders: &[Option<ConsumerId>],
        results: &[Settled],
    ) {
        let epoch = self.driver.shard().epoch();
        for ((lease, holder), result) in leases.iter().zip(holders).zip(results) {
            let times = self.statistics.times(self.now, epoch, &[*lease], &[*result]);
            for (time, count) in times {
                self.statistics.processing_of(group).record_n(time, count);
                if let Some(poller) = holder.and_then(|holder| self.pollers.get_mut(holder)) {
                    poller.processing.get_or_insert_default().record_n(time, count);
                }
            }
        }
    }

    /// Nobody took these messages, so nobody has tried them.
    pub(crate) fn give_back(&mut self, group: GroupId, leases: &[Lease]) {
        let settlement = group::Settlement::from(Outcome::Return { delay: None });
        self.driver.settle(self.now, group, leases, settlement, &mut Vec::new());
    }

    pub(crate) fn join(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        name: &str,
        credit: u32,
        session: Session,
    ) -> Result<Epoch, CallError> {
        if self.stage != Stage::Running {
            return Err(CallError::Stopping);
        }
        let group = self.find_group(stream, group)?;
        let consumer = session.consumer;
        self.driver.join(self.now, group, consumer, name, Bound::Connection)?;
        if let Err(refusal) = self.driver.credit(self.now, group, consumer, Credit::slots(credit)) {
            self.driver.leave(group, consumer, Departure::Goodbye);
            return Err(refusal.into());
        }
        self.members
            .insert(consumer, Member { session, group, credit, credit_most: credit, processing: None });
        Ok(self.driver.shard().epoch())
    }

    /// Creates a stream, or finds one that agrees with what was asked for. Either way the answer comes
    /// when the stream is durable.
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
        let created = |answer| match answer {
            Answer::StreamCreated(stream) => Created { stream, new: true },
            other => unreachable!("a creation is answered as one, not with {other:?}"),
        };
        self.decide(reply, Ok(()), created, |driver, now, (), ticket| {
            Ok(driver.create_stream(now, name, &settings, ticket)?)
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
        if let Err(refusal) = settings.check().and_then(|()| settings.on_exhausted.check_source(stream)) {
            return self.answer_durably(reply, Err(CreateRefusal::Settings(refusal).into()));
        }
        let stream = match found {
            Some(stream) => stream,
            None if self.stage != Stage::Running => {
                return self.answer_durably(reply, Err(CallError::Stopping));
            }
            None => {
                let created = self.driver.create_stream(
                    self.now,
                    stream,
                    &StreamSettings::default(),
                    self.waiting.next(),
                );
                if let Err(refusal) = created {
                    return self.answer_durably(reply, Err(refusal.into()));
                }
                self.waiting.enter(Waiting::Nobody);
                self.driver.shard().stream_named(stream).expect("the stream was just created")
            }
        };
        let created = move |_| Created { stream, new: true };
        self.decide(reply, Ok(stream), created, |driver, now, stream, ticket| {
            Ok(driver.create_group(now, stream, name, &settings, settings.start, ticket)?)
        });
    }

    pub(crate) fn delete_stream(&mut self, name: &StreamName, force: bool, reply: Reply<()>) {
        self.remove_stream(name, reply, |driver, _, stream, ticket| {
            Ok(driver.delete_stream(stream, force, ticket)?)
        });
    }

    /// Lets `delete` delete a stream, and tells those who have to do with it.
    pub(crate) fn remove_stream(
        &mut self,
        name: &StreamName,
        reply: Reply<()>,
        delete: impl FnOnce(&mut Driver, Timestamp, StreamId, Ticket) -> Result<(), CallError>,
    ) {
        let found = self.find_stream(name);
        let groups: Vec<GroupId> = found
            .iter()
            .flat_map(|stream| self.driver.shard().groups_of(*stream))
            .map(|(_, id)| id)
            .collect();
        let stream = found.clone().ok();
        self.decide(reply, found, |_| (), delete);
        if let Some(stream) = stream.filter(|stream| self.driver.shard().stream_name(*stream).is_none()) {
            self.tails.remove(&stream);
            self.statistics.forget_stream(stream);
            self.dismiss(&groups);
        }
    }

    pub(crate) fn delete_group(&mut self, stream: &StreamName, group: &GroupName, reply: Reply<()>) {
        let found = self.find_group(stream, group);
        let group = found.clone().ok();
        self.decide(reply, found, |_| (), |driver, _, group, ticket| Ok(driver.delete_group(group, ticket)?));
        if let Some(group) = group.filter(|group| self.driver.shard().stream_of(*group).is_none()) {
            self.dismiss(&[group]);
        }
    }

    /// The groups are gone, and those who take part in them are told.
    fn dismiss(&mut self, groups: &[GroupId]) {
        self.members.retain(|_, member| {
            let stays = !groups.contains(&member.group);
            if !stays {
                let _ = member.session.events.send(Event::GroupGone);
            }
            stays
        });
        self.pollers.dismiss(groups);
        for group in groups {
            self.statistics.forget_group(*group);
        }
    }

    /// Tells of the last message of a stream, again whenever there are more.
    pub(crate) fn watch(&mut self, stream: &StreamName, reply: Reply<watch::Receiver<Seq>>) {
        let found = self.find_stream(stream);
        let tail = found.map(|stream| {
            let last = self.driver.shard().last_seq(stream).expect("the stream was found");
            self.tails.entry(stream).or_insert_with(|| watch::channel(last).0).subscribe()
        });
        match tail {
            Ok(tail) => answer(reply, Ok(tail)),
            Err(error) => self.answer_durably(reply, Err(error)),
        }
    }

    /// What receipts are sealed with, from the log, where it is put the first time. If there is no room for it,
    /// receipts are good until the next start.
    pub(crate) fn keep_secret(&mut self, offered: [u8; 32], reply: oneshot::Sender<[u8; 32]>) {
        let kept = self.driver.shard().note(self.now, OWN_NOTES, SECRET_KEY);
        if let Some(secret) = kept.and_then(|note| note.value.as_slice().try_into().ok()) {
            self.receipts = Receipts::new(secret);
            return answer(reply, secret);
        }
        self.receipts = Receipts::new(offered);
        let note = NoteChange {
            door: OWN_NOTES,
            key: SECRET_KEY,
            value: Some(&offered),
            expected: Expected::Any,
            expires: None,
        };
        match self.driver.put_note(self.now, note, self.waiting.next()) {
            Ok(()) => self.waiting.enter(Waiting::Call(Box::new(move |_| answer(reply, offered)))),
            Err(_) => answer(reply, offered),
        }
    }
}

/// What a consumer says beside its action.
struct With<'a> {
    reason: Option<&'a str>,
    late: bool,
    rest: Option<Duration>,
}

fn settle_some(
    driver: &mut Driver,
    now: Timestamp,
    group: GroupId,
    leases: &[Lease],
    action: &Action,
    With { reason, late, rest }: With<'_>,
    results: &mut Vec<Settled>,
) {
    let outcome = match action {
        Action::Ack => Outcome::Ack,
        Action::Retry { delay } => Outcome::Retry { delay: *delay },
        Action::Park => Outcome::Park,
        Action::Skip => Outcome::Skip,
        Action::Return { delay } => Outcome::Return { delay: *delay },
        Action::Move(to) => Outcome::Move(to),
        &Action::Extend { by, total_max } => {
            return driver.extend(now, group, leases, Extension { by, total_max }, results);
        }
    };
    driver.settle(now, group, leases, group::Settlement { outcome, reason, late, rest }, results);
}

fn is_durable(driver: &Driver, group: GroupId) -> bool {
    driver.shard().group_settings(group).is_some_and(|of| of.acks == Acks::Durable)
}

fn keeps_times(driver: &Driver, group: GroupId) -> bool {
    driver.shard().group_settings(group).is_some_and(|of| of.extra_statistics)
}

fn agree<S: Clone + PartialEq>(existing: &S, change: &dyn Fn(&mut S)) -> Result<(), CallError> {
    let mut wanted = existing.clone();
    change(&mut wanted);
    if wanted == *existing { Ok(()) } else { Err(CallError::Different) }
}

/// How long those who hold messages have had to finish them, at least, before they are looked at again.
pub(super) const DRAIN_LOOK: Duration = Duration::from_millis(20);
