//! Admission: what a stream takes, and what it says when it does not.

use std::collections::BTreeSet;

use forebay_model::limits::PRIORITY_MAX;

use crate::entry::{self, Cause, JobEnd, JobFailure, MessageMeta, MoveReason, MoveTrail, Origin, Route};
use crate::fault::{Fault, planted};
use crate::group::{Group, Hold, Job};
use crate::producers::{ProducerRefusal, ProducerStamp, Verdict};
use crate::settings::{OnFull, Retention, StreamLimits, StreamSettings, YEAR};
use crate::shard::Shard;
use crate::stream::{Admission, Stream};
use crate::types::{GroupId, JobId, Ordinal, Seq, SeqRange, StreamId, Timestamp};

/// What a batch asks for beside being stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishOptions {
    /// Only if the stream ends here.
    pub expect_last: Option<Seq>,
    /// The batch's number among those of its producer, so that sending it again stores nothing.
    pub stamp: Option<ProducerStamp>,
}

/// Why a batch was refused. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishRefusal {
    #[error("no such stream")]
    NoSuchStream,
    #[error("messages must have at least one message")]
    Empty,
    #[error("too many messages in one batch. messages=`{messages}` limit=`{limit}`")]
    TooMany { messages: usize, limit: u32 },
    #[error("message is too large. bytes=`{bytes}` limit=`{limit}`")]
    MessageTooLarge { bytes: u32, limit: u32 },
    #[error("batch is too large. bytes=`{bytes}` limit=`{limit}`")]
    BatchTooLarge { bytes: u64, limit: u32 },
    #[error("must be between 0 and 9. priority=`{priority}`")]
    Priority { priority: u8 },
    #[error("a delay or a time to live is longer than a year")]
    TooFar,
    #[error("the stream does not end at expect_last_seq. last=`{last}`")]
    WrongLastSeq { last: Seq },
    #[error("the stream is full. messages=`{messages}` bytes=`{bytes}`")]
    Full { messages: u64, bytes: u64 },
    /// The disk has no room for more messages. Stored messages can still be worked through, which makes room.
    #[error("storage is full; settling messages makes room")]
    StorageFull,
    #[error("the stream's ingress_rate is exceeded")]
    TooFast { retry_at: Timestamp },
    #[error(transparent)]
    Producer(#[from] ProducerRefusal),
}

/// Where a message is that was moved, and what the core knows of it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub stream: StreamId,
    pub seq: Seq,
    pub meta: MessageMeta,
}

/// Why a message could not be moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoveRefusal {
    /// It was settled, or was never to be moved.
    #[error("the message is not to be moved")]
    NotMoving,
    /// It will be asked for again.
    #[error("the stream has no room just now")]
    Later,
    /// It was parked.
    #[error("the stream cannot take the message")]
    Parked,
    /// It stays in its group and is offered again.
    #[error("the stream cannot take the message, which stays")]
    Kept,
}

impl Shard {
    /// Stores a batch, whole or not at all, without messages that were stored before under the same ids.
    /// Reports the position of each message, and returns the positions of the new ones.
    pub fn publish(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        messages: &[MessageMeta],
        options: PublishOptions,
        admissions: &mut Vec<Admission>,
    ) -> Result<Option<SeqRange>, PublishRefusal> {
        let id = stream;
        let delayed = self.delayed(now, id, messages);
        let messages = delayed.as_deref().unwrap_or(messages);
        if let Some(seqs) = self.admit(now, id, messages, options)? {
            admissions.extend(seqs.into_iter().map(|seq| Admission { seq, duplicate: true }));
            return Ok(None);
        }
        Ok(self.store(now, id, messages, options.stamp, admissions))
    }

    /// The messages with the delay of their stream, where it has one.
    fn delayed(&self, now: Timestamp, id: StreamId, messages: &[MessageMeta]) -> Option<Vec<MessageMeta>> {
        let delay = self.streams.get(&id)?.settings.delay;
        if delay.is_zero() || planted(Fault::StreamDelayIgnored) {
            return None;
        }
        let delayed = |message: &MessageMeta| {
            let not_before = message.not_before.or(Some(now + delay));
            MessageMeta { not_before, ..*message }
        };
        Some(messages.iter().map(delayed).collect())
    }

    pub(super) fn store(
        &mut self,
        now: Timestamp,
        id: StreamId,
        messages: &[MessageMeta],
        stamp: Option<ProducerStamp>,
        admissions: &mut Vec<Admission>,
    ) -> Option<SeqRange> {
        let stream = self.streams.get_mut(&id).expect("the batch was admitted to a stream");
        self.fresh.clear();
        let ordinal = self.next_ordinal;
        let stored = stream.publish(now, ordinal, messages, &mut self.fresh, admissions);
        let count = messages.len() as u64;
        if let Some(stamp) = stamp.filter(|_| stored.is_none_or(|range| range.count() < count)) {
            // The number covers those that were known by their ids as well.
            self.store_numbered(now, id, ordinal, stamp, messages, stored);
            return stored;
        }
        let range = stored?;
        if let Some(stamp) = stamp {
            stream.producers.remember(now, stamp, count, Some(range));
        }
        self.write_published(now, id, range, ordinal, stamp, messages);
        Some(range)
    }

    /// Writes the messages of a batch that are new, which are all of them unless `fresh` says which.
    fn write_published(
        &mut self,
        now: Timestamp,
        id: StreamId,
        range: SeqRange,
        ordinal: Ordinal,
        stamp: Option<ProducerStamp>,
        messages: &[MessageMeta],
    ) {
        self.next_ordinal = Ordinal(ordinal.0 + range.count());
        let new = if self.fresh.is_empty() { messages } else { &self.fresh };
        assert_eq!(new.len() as u64, range.count(), "every new message has a position");
        entry::put_published(&mut self.entries, id, range.first, ordinal, now, stamp, new);
        let stream = &self.streams[&id];
        let timed = !stream.undue.is_empty()
            || stream.expiring.next_at().is_some()
            || stream.ids_at.is_none() && stream.dedupe.drop_at(&stream.settings).is_some();
        if timed || stream.settings.retention != Retention::Work || stream.settings.max_age().is_some() {
            self.touch_stream(id);
        }
    }

    fn store_numbered(
        &mut self,
        now: Timestamp,
        id: StreamId,
        ordinal: Ordinal,
        stamp: ProducerStamp,
        messages: &[MessageMeta],
        stored: Option<SeqRange>,
    ) {
        if let Some(range) = stored {
            self.write_published(now, id, range, ordinal, None, messages);
        }
        let count = messages.len() as u64;
        self.commit(&entry::Entry::Numbered { stream: id, at: now, stamp, count, seqs: stored });
    }

    /// Whether a batch would be stored now, for a bundle that stores several together. Changes nothing. Returns how
    /// many stretches of older messages would be dropped for it.
    pub(super) fn check_admissible(
        &self,
        now: Timestamp,
        id: StreamId,
        messages: &[MessageMeta],
        options: PublishOptions,
    ) -> Result<usize, PublishRefusal> {
        self.plan(now, id, messages, options).map(|plan| plan.stretches())
    }

    /// The same for a stream that would be created for it.
    pub(super) fn check_admissible_to(
        &self,
        now: Timestamp,
        stream: &Stream,
        messages: &[MessageMeta],
        options: PublishOptions,
    ) -> Result<usize, PublishRefusal> {
        self.check_batch(now, messages)?;
        self.plan_for(now, stream, messages, options).map(|plan| plan.stretches())
    }

    /// Lets a batch in, and makes room for it where that is the stream's way. Returns where the batch is, if
    /// it was stored before.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        id: StreamId,
        messages: &[MessageMeta],
        options: PublishOptions,
    ) -> Result<Option<Vec<Seq>>, PublishRefusal> {
        match self.plan(now, id, messages, options)? {
            Plan::StoredBefore(seqs) => return Ok(Some(seqs)),
            Plan::Store { fresh, room } => {
                self.make_room(now, id, room);
                if let Some(pace) = self.streams.get_mut(&id).and_then(|stream| stream.ingress.as_mut()) {
                    pace.spend(now, fresh);
                }
            }
        }
        Ok(None)
    }

    /// What it would take to store a batch.
    fn plan(
        &self,
        now: Timestamp,
        id: StreamId,
        messages: &[MessageMeta],
        options: PublishOptions,
    ) -> Result<Plan, PublishRefusal> {
        self.check_batch(now, messages)?;
        let stream = self.streams.get(&id).ok_or(PublishRefusal::NoSuchStream)?;
        self.plan_for(now, stream, messages, options)
    }

    fn plan_for(
        &self,
        now: Timestamp,
        stream: &Stream,
        messages: &[MessageMeta],
        options: PublishOptions,
    ) -> Result<Plan, PublishRefusal> {
        if let Some(stamp) = options.stamp
            && let Verdict::Duplicate(seqs) = stream.producers.admit(stamp, messages.len() as u64)?
        {
            // If a position is missing, the batch is older than the remembered ids.
            let places = stream.places(now, messages, seqs);
            return places.map(Plan::StoredBefore).ok_or_else(|| {
                ProducerRefusal::TooOld { oldest: stamp.number.saturating_add(messages.len() as u64) }.into()
            });
        }
        if options.expect_last.is_some_and(|expected| expected != stream.last) {
            return Err(PublishRefusal::WrongLastSeq { last: stream.last });
        }
        let settings = &stream.settings;
        let limited = settings.limits.max_messages.is_some() || settings.limits.max_bytes.is_some();
        if stream.ingress.is_none() && !limited {
            return Ok(Plan::Store { fresh: 0, room: Room::Enough });
        }
        // An id that comes twice in a batch is stored once.
        let mut met = BTreeSet::new();
        let is_new = |message: &&MessageMeta| {
            let known = |id| stream.dedupe.find(now, id, &stream.settings).is_some() || !met.insert(id);
            !message.id.is_some_and(known)
        };
        let (mut fresh, mut bytes) = (0, 0);
        for message in messages.iter().filter(is_new) {
            fresh += 1;
            bytes += u64::from(message.size);
        }
        if fresh == 0 {
            return Ok(Plan::Store { fresh: 0, room: Room::Enough });
        }
        if let Some(pace) = &stream.ingress {
            // A batch that is larger than the burst goes when the whole burst is there, and is paid off.
            if pace.available(now) < fresh.min(u64::from(pace.rate().burst)) {
                let more = pace.next_at().max(Timestamp(now.0 + 1));
                return Err(PublishRefusal::TooFast { retry_at: more });
            }
        }
        let room = if limited { self.find_room(stream, fresh, bytes)? } else { Room::Enough };
        Ok(Plan::Store { fresh, room })
    }

    /// Whether a batch could be stored anywhere.
    pub fn check_batch(&self, now: Timestamp, messages: &[MessageMeta]) -> Result<(), PublishRefusal> {
        let limits = &self.limits;
        if messages.is_empty() {
            return Err(PublishRefusal::Empty);
        }
        if messages.len() > limits.batch_messages_max as usize {
            return Err(PublishRefusal::TooMany {
                messages: messages.len(),
                limit: limits.batch_messages_max,
            });
        }
        let mut bytes: u64 = 0;
        for message in messages {
            if message.size > limits.message_bytes_max {
                let limit = limits.message_bytes_max;
                return Err(PublishRefusal::MessageTooLarge { bytes: message.size, limit });
            }
            if message.priority > PRIORITY_MAX {
                return Err(PublishRefusal::Priority { priority: message.priority });
            }
            if [message.not_before, message.expires].into_iter().flatten().any(|at| at > now + YEAR) {
                return Err(PublishRefusal::TooFar);
            }
            bytes += u64::from(message.size);
        }
        if bytes > u64::from(limits.batch_bytes_max) {
            return Err(PublishRefusal::BatchTooLarge { bytes, limit: limits.batch_bytes_max });
        }
        Ok(())
    }

    /// The messages and bytes of a stream that count against its limits: messages that a group has not
    /// settled, or that are kept regardless of the groups. Of several groups the one with most to do
    /// counts.
    pub(crate) fn held(&self, stream: &Stream) -> (u64, u64) {
        if stream.groups.is_empty() || stream.settings.retention != Retention::Work {
            let first = stream.first.max(stream.gone.next());
            let kept = (first <= stream.last).then(|| SeqRange::new(first, stream.last));
            return kept.map_or((0, 0), |kept| (kept.count(), stream.timeline.bytes(kept)));
        }
        let groups = stream.groups.iter().map(|(_, id)| held_by(stream, &self.groups[id]));
        groups.fold((0, 0), |most, held| (most.0.max(held.0), most.1.max(held.1)))
    }

    /// Where room for so much more would come from, if there is any.
    fn find_room(&self, stream: &Stream, messages: u64, bytes: u64) -> Result<Room, PublishRefusal> {
        let limits = &stream.settings.limits;
        let held = self.held(stream);
        let over = excess(limits, held, (messages, bytes));
        if over == (0, 0) || planted(Fault::StreamLimitIgnored) {
            return Ok(Room::Enough);
        }
        // What could never fit is refused before anything else is let go for it.
        let fits = limits.max_messages.is_none_or(|most| messages <= most)
            && limits.max_bytes.is_none_or(|most| bytes <= most);
        let droppable = (limits.on_full == OnFull::DropOldest && fits)
            .then(|| self.find_oldest(stream, (messages, bytes)));
        droppable.flatten().ok_or(PublishRefusal::Full { messages: held.0, bytes: held.1 })
    }

    /// The oldest that are neither leased nor parked, if dropping them makes room for so much more in every group. A
    /// message that only groups with room still want is not among them.
    fn find_oldest(&self, stream: &Stream, more: (u64, u64)) -> Option<Room> {
        let limits = &stream.settings.limits;
        if stream.groups.is_empty() || stream.settings.retention != Retention::Work {
            // Messages are kept whatever the groups did, so the front goes.
            return stream.front_of(excess(limits, self.held(stream), more)).map(Room::Front);
        }
        let mut next = self.oldest_wanted(stream.id).expect("the stream exists");
        let mut chosen: Vec<SeqRange> = Vec::new();
        let groups = stream.groups.iter().map(|(_, group)| &self.groups[group]);
        let mut groups: Vec<Excess<'_>> = groups
            .map(|group| {
                let over = excess(limits, held_by(stream, group), more);
                Excess { group, over, dropped: 0, wants: false }
            })
            .collect();
        for _ in 0..DROP_STRETCHES_MAX {
            let (mut last, mut held, mut gain) = (stream.last, None, (0, 0));
            if next > last || groups.iter().all(|of| of.over == (0, 0)) {
                break;
            }
            for Excess { group, over, wants, .. } in &mut groups {
                let (hold, until) = group.hold(next);
                *wants = hold == Hold::Wanted;
                match hold {
                    Hold::Held => held = held.max(Some(until)),
                    Hold::Wanted | Hold::Done => last = last.min(until),
                }
                if *wants {
                    gain = (gain.0.max(over.0), gain.1.max(over.1));
                }
            }
            if held.is_none() && gain != (0, 0) {
                let some = enough_of(stream, SeqRange::new(next, last), gain);
                let bytes = stream.timeline.bytes(some);
                for Excess { over, dropped, .. } in groups.iter_mut().filter(|of| of.wants) {
                    *over = (over.0.saturating_sub(some.count()), over.1.saturating_sub(bytes));
                    *dropped += some.count();
                }
                crate::types::push_range(&mut chosen, some);
            }
            next = held.unwrap_or(last).next();
        }
        groups.iter().all(|of| of.over == (0, 0) && of.can_drop()).then_some(Room::Drop(chosen))
    }

    /// Lets go of what room was found in.
    fn make_room(&mut self, now: Timestamp, id: StreamId, room: Room) {
        match room {
            Room::Enough => return,
            Room::Drop(chosen) => {
                let stream = &self.streams[&id];
                for (_, group) in &stream.groups {
                    let of = self.groups.get_mut(group).expect("a stream lists groups that exist");
                    for &range in &chosen {
                        of.drop_messages(now, stream, range);
                    }
                }
            }
            Room::Front(gone) => {
                self.streams.get_mut(&id).expect("the stream exists").gone = gone;
                self.commit(&entry::Entry::Released { stream: id, first: gone.next() });
            }
        }
        let groups: Vec<GroupId> = self.streams[&id].groups.iter().map(|&(_, group)| group).collect();
        for group in groups {
            self.touch(group);
        }
    }

    /// Brings a message that is to be moved to its new stream: published there and settled here by entries that
    /// follow each other, so that the shell can put them into one frame. It keeps its key, priority and publish
    /// time, is not taken for a duplicate, and neither waits nor expires any more, unless its age is kept: it has
    /// been tried, and an operator may take time to look after moved messages.
    pub fn complete_move(
        &mut self,
        now: Timestamp,
        group: GroupId,
        seq: Seq,
        meta: &MessageMeta,
        published: Timestamp,
    ) -> Result<Moved, MoveRefusal> {
        let of = self.groups.get(&group).ok_or(MoveRefusal::NotMoving)?;
        let from = of.stream;
        let (route, attempts) = of.moving(seq).ok_or(MoveRefusal::NotMoving)?;
        let target = self.find_target(now, &route, meta);
        let known = meta.origin;
        let published = known.map_or(published, |origin| origin.published);
        let why = route.why();
        let receives = match route {
            Route::Alone { .. } => known.map_or(0, |origin| origin.receives).saturating_add(attempts),
            // It begins anew.
            Route::Job { .. } => 0,
        };
        let known = known.and_then(|origin| origin.trail);
        // Two streams that send expired or dropped messages to each other would pass them around for ever.
        let came_from = known.filter(|trail| trail.why.is_end()).map(|trail| trail.from);
        let returns = |target: &StreamId| why.is_end() && attempts == 0 && came_from == Some(*target);
        let target = target.and_then(|target| match returns(&target) {
            true => Err(Obstacle::Lasting(JobFailure::Refused(RETURNS.into()))),
            false => Ok(target),
        });
        let (home, first) = known.map_or((from, seq), |trail| (trail.home, trail.seq));
        let origin =
            Some(Origin { published, receives, trail: Some(MoveTrail { home, seq: first, from, why }) });
        let age_max = target.as_ref().ok().and_then(|target| self.streams[target].settings.max_age());
        let keeps_age = matches!(route, Route::Alone { terms, .. } if terms.keep_age);
        let over = age_max.filter(|_| keeps_age).map(|age| published + age);
        // An expiry that is further away than a message may ask for counts as never.
        let expires = over.filter(|over| *over <= now + YEAR);
        let moved = MessageMeta { id: None, not_before: None, expires, origin, ..*meta };
        let admitted = target.and_then(|target| {
            // Two full streams that drop to each other would pass their messages around for ever.
            if why == MoveReason::Dropped && self.would_drop(now, target, &moved) {
                return Err(Obstacle::Passing);
            }
            let admitted = self.admit(now, target, &[moved], PublishOptions::default());
            admitted.map(|_| target).map_err(|refusal| match refusal {
                PublishRefusal::Full { .. } | PublishRefusal::TooFast { .. } => Obstacle::Passing,
                other => Obstacle::Lasting(JobFailure::Refused(other.to_string().into())),
            })
        });
        let target = match admitted {
            Ok(target) => target,
            Err(obstacle) => return Err(self.stop_move(now, group, seq, &route, obstacle)),
        };
        let of = self.groups.get_mut(&group).expect("it was there just now");
        let stream = self.streams.get(&from).expect("a group's stream exists");
        of.moved(now, stream, seq);
        // What the turn has changed before is written before, and the end of the move right after it.
        of.write_down(&mut self.entries);
        self.touch(group);
        let job_loses = planted(Fault::MoveJobLoses) && seq.0.is_multiple_of(3);
        if planted(Fault::MoveLoses) || (job_loses && route.job().is_some()) {
            return Err(MoveRefusal::NotMoving);
        }
        let range = self.store(now, target, &[moved], None, &mut Vec::new());
        let seq = range.expect("a message without an id is new").first;
        Ok(Moved { stream: target, seq, meta: moved })
    }

    /// Whether a stream would have to drop messages for this one, and they would go to another stream in turn.
    fn would_drop(&self, now: Timestamp, target: StreamId, message: &MessageMeta) -> bool {
        let mut groups = self.streams[&target].groups.iter().map(|(_, group)| &self.groups[group]);
        groups.any(|group| group.settings.on_dropped.destination().is_some())
            && self
                .check_admissible(now, target, std::slice::from_ref(message), PublishOptions::default())
                .is_ok_and(|stretches| stretches > 0)
    }

    /// The stream that a message goes to. One that is not there is created if that is how it goes.
    fn find_target(
        &mut self,
        now: Timestamp,
        route: &Route,
        meta: &MessageMeta,
    ) -> Result<StreamId, Obstacle> {
        let lasting = |why: JobFailure| Err(Obstacle::Lasting(why));
        if let Some(to) = route.to() {
            let creates = matches!(route, Route::Alone { terms, .. } if terms.create);
            return match self.streams_by_name.get(to) {
                Some(&target) => Ok(target),
                None if creates => self
                    .create_stream(now, to, &StreamSettings::unasked())
                    .or_else(|refusal| lasting(JobFailure::Refused(refusal.to_string().into()))),
                None => lasting(JobFailure::NoDestination),
            };
        }
        match meta.origin.and_then(|origin| origin.trail) {
            Some(trail) if self.streams.contains_key(&trail.from) => Ok(trail.from),
            Some(_) => lasting(JobFailure::NoDestination),
            None => lasting(JobFailure::NoOrigin),
        }
    }

    /// A message cannot go where it should: not now, or never.
    fn stop_move(
        &mut self,
        now: Timestamp,
        group: GroupId,
        seq: Seq,
        route: &Route,
        obstacle: Obstacle,
    ) -> MoveRefusal {
        let of = self.groups.get_mut(&group).expect("a message is moved out of a group");
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        let is_over = |job: &JobId| !of.job(*job).is_some_and(Job::is_running);
        let refusal = match (route, obstacle) {
            // The job is over, so the message does not go there any more.
            (Route::Job { job, .. }, Obstacle::Passing) if is_over(job) => {
                of.stay(now, stream, seq);
                MoveRefusal::Kept
            }
            (_, Obstacle::Passing) => {
                of.put_off_move(now, seq);
                MoveRefusal::Later
            }
            (Route::Alone { to, terms, .. }, Obstacle::Lasting(why)) => {
                let why = match why {
                    JobFailure::Refused(why) => why,
                    _ => "no such stream".into(),
                };
                let why = format!("cannot be moved to {to}: {why}");
                if terms.create {
                    of.park_instead(now, stream, seq, Cause::Nack, &why);
                    MoveRefusal::Parked
                } else {
                    of.keep_instead(now, stream, seq, &why);
                    MoveRefusal::Kept
                }
            }
            (Route::Job { job, .. }, Obstacle::Lasting(why)) => {
                of.stay(now, stream, seq);
                if of.job(*job).is_some_and(Job::is_running) {
                    self.end_job(now, group, *job, JobEnd::Failed(why));
                }
                MoveRefusal::Kept
            }
        };
        self.touch(group);
        refusal
    }

    /// There is no room for the content of a message that is to be moved. It is asked for again later.
    pub fn put_off_move(&mut self, now: Timestamp, group: GroupId, seq: Seq) {
        let Some(route) = self.groups.get(&group).and_then(|of| of.moving(seq)).map(|(route, _)| route)
        else {
            return;
        };
        self.stop_move(now, group, seq, &route, Obstacle::Passing);
    }

    /// Writes down the turn's changes of a group so far, so that the next decisions can be kept together in
    /// one frame.
    pub fn write_down(&mut self, now: Timestamp, group: GroupId) {
        self.happened_at(now);
        if let Some(of) = self.groups.get_mut(&group) {
            of.write_down(&mut self.entries);
        }
    }

    /// As [`Shard::write_down`], with acks that the group keeps back for a checkpoint.
    pub fn check_point(&mut self, now: Timestamp, group: GroupId) {
        self.happened_at(now);
        if let Some(of) = self.groups.get_mut(&group) {
            of.make_checkpoint();
            of.write_down(&mut self.entries);
        }
    }

    /// The content of a message that is to be moved cannot be read. It is set aside, since it would be lost
    /// otherwise.
    pub fn abandon_move(&mut self, now: Timestamp, group: GroupId, seq: Seq, why: &str) {
        let Some(of) = self.groups.get_mut(&group) else { return };
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        // A job leaves it in its group, where it was before.
        match of.moving(seq).and_then(|(route, _)| route.job()) {
            Some(_) => of.stay(now, stream, seq),
            None => of.park_instead(now, stream, seq, Cause::Damaged, why),
        }
        self.touch(group);
    }
}

const RETURNS: &str = "it came from there, and no consumer has had it since";

/// Why a message cannot go to another stream.
enum Obstacle {
    /// The stream has no room just now.
    Passing,
    Lasting(JobFailure),
}

/// What it takes to store a batch.
enum Plan {
    /// It is there already.
    StoredBefore(Vec<Seq>),
    Store {
        /// Messages that count against the rate.
        fresh: u64,
        room: Room,
    },
}

impl Plan {
    /// How many stretches of older messages are dropped.
    fn stretches(&self) -> usize {
        match self {
            Plan::Store { room: Room::Drop(chosen), .. } => chosen.len(),
            _ => 0,
        }
    }
}

/// A group that has too much for the limits of its stream.
struct Excess<'a> {
    group: &'a Group,
    /// Messages and bytes that are too much.
    over: (u64, u64),
    /// Messages that are dropped in this group.
    dropped: u64,
    /// Whether it wants the messages that are looked at.
    wants: bool,
}

impl Excess<'_> {
    /// Dropping makes no room where dropped messages go to another stream and too many wait for that.
    fn can_drop(&self) -> bool {
        let sent = self.group.ledger.outgoing().count() + self.dropped;
        self.group.settings.on_dropped.destination().is_none() || self.dropped == 0 || sent <= OUTGOING_FREE
    }
}

/// Where a stream has room for more.
enum Room {
    Enough,
    /// If these are dropped.
    Drop(Vec<SeqRange>),
    /// If everything up to here is let go.
    Front(Seq),
}

/// Stretches of messages that are looked at for dropping: leased here, parked there, settled or ready.
const DROP_STRETCHES_MAX: usize = 4_096;

/// By how many messages and bytes a stream or a group that holds so much would be over the limits with so much more.
fn excess(limits: &StreamLimits, held: (u64, u64), more: (u64, u64)) -> (u64, u64) {
    let over = |held: u64, more: u64, most: Option<u64>| {
        most.map_or(0, |most| held.saturating_add(more).saturating_sub(most))
    };
    (over(held.0, more.0, limits.max_messages), over(held.1, more.1, limits.max_bytes))
}

/// As many messages from the start of the stretch as it takes to gain this many messages and bytes, or all of
/// it.
fn enough_of(stream: &Stream, stretch: SeqRange, (messages, bytes): (u64, u64)) -> SeqRange {
    let (mut low, mut high) = (messages.clamp(1, stretch.count()), stretch.count());
    while low < high {
        let middle = low + (high - low) / 2;
        let is_enough = stream.timeline.bytes(SeqRange::starting(stretch.first, middle)) >= bytes;
        if is_enough { high = middle } else { low = middle + 1 }
    }
    SeqRange::starting(stretch.first, low)
}

/// Messages that a group is done with and that still have to be brought to another stream do not count against the
/// limits of theirs, up to this many. More of them do, so that a stream whose messages find no room in the other one
/// does not grow without bound.
pub(crate) const OUTGOING_FREE: u64 = 10_000;

pub(crate) fn held_by(stream: &Stream, group: &Group) -> (u64, u64) {
    held_with(stream, group, group.ledger.outgoing().count().saturating_sub(OUTGOING_FREE))
}

/// What a group holds, with so many of the messages that it is done with and has to bring to another stream.
pub(crate) fn held_with(stream: &Stream, group: &Group, outgoing: u64) -> (u64, u64) {
    let progress = &group.ledger.progress();
    let floor = progress.floor();
    let span = stream.last.0.saturating_sub(floor.0);
    let unsettled = span.saturating_sub(progress.above().count());
    let above = (span > 0).then(|| stream.timeline.bytes(SeqRange::new(floor.next(), stream.last)));
    let unsettled_bytes = above.unwrap_or(0) as u128 * u128::from(unsettled) / u128::from(span.max(1));
    let aside = group.ledger.parked().count() + group.ledger.replayed_count() + outgoing;
    // Those that lie behind are taken to be as large as the rest.
    let kept = (stream.first <= stream.last).then(|| SeqRange::new(stream.first, stream.last));
    let aside_bytes = kept.map_or(0, |kept| {
        u128::from(stream.timeline.bytes(kept)) * u128::from(aside) / u128::from(kept.count())
    });
    (unsettled + aside, (unsettled_bytes + aside_bytes) as u64)
}
