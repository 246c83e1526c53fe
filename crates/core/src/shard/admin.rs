//! What operators and doors do to streams and groups: create, change, delete, reset, purge, work on parked
//! messages, notes, readers.

use crate::entry::{Entry, JobEnd, MessageMeta, Selection, Work};
use crate::fault::{Fault, planted};
use crate::group::JobRefusal;
use crate::notes::{Expected, NoteRefusal};
use crate::pace::Rate;
use crate::settings::{GroupSettings, SettingsError, StreamSettings};
use crate::shard::{PublishOptions, PublishRefusal, Shard, Start};
use crate::stream::{Admission, Stream};
use crate::types::{GroupId, GroupName, JobId, Seq, SeqRange, StreamId, StreamName, Timestamp};

/// Why something was not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateRefusal {
    #[error("a stream of that name exists. stream=`{name}`")]
    StreamExists { name: StreamName, stream: StreamId },
    #[error("a group of that name exists. group=`{name}`")]
    GroupExists { name: GroupName, group: GroupId },
    #[error("no such stream")]
    NoSuchStream,
    #[error("too many streams or groups. limit=`{limit}`")]
    TooMany { limit: u32 },
    #[error(transparent)]
    Settings(SettingsError),
}

/// Why something was not changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeRefusal {
    #[error("no such stream")]
    NoSuchStream,
    #[error("no such group")]
    NoSuchGroup,
    #[error(
        "groups of the stream have consumers; `force` deletes it nevertheless. A consumer that polls counts for 30 \
         seconds after its last receive. consumers=`{consumers}`"
    )]
    InUse { consumers: usize },
    #[error("the stream is not empty. messages=`{messages}`")]
    NotEmpty { messages: u64 },
    #[error("the limit of readers is reached. limit=`{limit}`")]
    TooMany { limit: usize },
    #[error("the position lies beyond the end of the stream. position=`{seq}` last=`{last}`")]
    Beyond { seq: Seq, last: Seq },
    #[error(transparent)]
    Settings(SettingsError),
}

/// What a purge takes along, beside everything ready, delayed and leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purge {
    /// Parked messages.
    pub parked: bool,
    /// The ids by which duplicates are known: earlier messages may then be published again.
    pub ids: bool,
}

/// The conditions under which a stream is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteIf {
    /// No group has a consumer.
    pub unused: bool,
    /// No group has a message to do or parked; without groups, and where a log is kept, the stream has no message.
    pub empty: bool,
}

/// Where a group's progress begins anew.
pub type ResetTo = Start;

/// The floor of a group that begins at `start`: messages up to it count as settled.
fn floor_of(stream: &Stream, start: Start) -> Seq {
    // Messages that are not kept any more cannot be promised to a group.
    let before_first = Seq(stream.first.0 - 1).max(stream.gone);
    match start {
        Start::Beginning => before_first,
        Start::End => stream.last,
        Start::Seq(seq) => Seq(seq.0.saturating_sub(1)),
        Start::Time(time) => {
            stream.timeline.first_at_or_after(time).map_or(stream.last, |first| Seq(first.0 - 1))
        }
    }
    .clamp(before_first, stream.last.max(before_first))
}

impl Shard {
    pub fn create_stream(
        &mut self,
        now: Timestamp,
        name: &StreamName,
        settings: &StreamSettings,
    ) -> Result<StreamId, CreateRefusal> {
        if let Some(&stream) = self.streams_by_name.get(name) {
            return Err(CreateRefusal::StreamExists { name: name.clone(), stream });
        }
        if self.streams.len() >= self.limits.streams_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.streams_max });
        }
        settings.check().map_err(CreateRefusal::Settings)?;
        let stream = self.next_stream;
        let settings = Box::new(settings.clone());
        self.commit(&Entry::StreamCreated { stream, name: name.clone(), settings, at: now });
        self.streams.get_mut(&stream).expect("it was created just now").created(now);
        Ok(stream)
    }

    pub fn create_group(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        name: &GroupName,
        settings: &GroupSettings,
        start: Start,
    ) -> Result<GroupId, CreateRefusal> {
        let Some(of) = self.streams.get(&stream) else { return Err(CreateRefusal::NoSuchStream) };
        if let Some(&(_, group)) = of.groups.iter().find(|(other, _)| other == name) {
            return Err(CreateRefusal::GroupExists { name: name.clone(), group });
        }
        if of.groups.len() >= self.limits.groups_per_stream_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.groups_per_stream_max });
        }
        check_group(&of.name, settings).map_err(CreateRefusal::Settings)?;
        let floor = floor_of(of, start);
        let group = self.next_group;
        self.commit(&Entry::GroupCreated {
            group,
            stream,
            name: name.clone(),
            settings: settings.clone().into(),
            floor,
            at: now,
        });
        let of = self.groups.get_mut(&group).expect("it was created just now");
        // The group did not see the arrival of messages that are durable already; it reads them when a
        // consumer joins.
        of.created(now, &self.streams[&stream]);
        self.touch(group);
        Ok(group)
    }

    pub fn change_stream(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        settings: &StreamSettings,
    ) -> Result<(), ChangeRefusal> {
        if !self.streams.contains_key(&stream) {
            return Err(ChangeRefusal::NoSuchStream);
        }
        settings.check().map_err(ChangeRefusal::Settings)?;
        let (from, to) = (self.streams[&stream].settings.delay, settings.delay);
        self.commit(&Entry::StreamChanged { stream, settings: settings.clone().into(), at: now });
        if from != to {
            self.commit(&Entry::Redelayed { stream, at: now, from, to });
        }
        let of = self.streams.get_mut(&stream).expect("it was there just now");
        of.change(now, settings.clone());
        self.touch_stream(stream);
        Ok(())
    }

    /// Changes a group's settings while consumers stay connected.
    pub fn change_group(
        &mut self,
        now: Timestamp,
        group: GroupId,
        settings: &GroupSettings,
    ) -> Result<(), ChangeRefusal> {
        let of = self.groups.get_mut(&group).ok_or(ChangeRefusal::NoSuchGroup)?;
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        check_group(&stream.name, settings).map_err(ChangeRefusal::Settings)?;
        of.change(now, stream, settings.clone());
        of.write_down(&mut self.entries);
        self.commit(&Entry::GroupChanged { group, settings: settings.clone().into(), at: now });
        self.touch(group);
        Ok(())
    }

    /// Deletes a stream with its groups, unless they have consumers and `force` is not given.
    pub fn delete_stream(&mut self, stream: StreamId, force: bool) -> Result<(), ChangeRefusal> {
        self.delete_stream_if(stream, DeleteIf { unused: !force, empty: false })
    }

    /// Deletes a stream with its groups, under conditions.
    pub fn delete_stream_if(&mut self, stream: StreamId, condition: DeleteIf) -> Result<(), ChangeRefusal> {
        let of = self.streams.get(&stream).ok_or(ChangeRefusal::NoSuchStream)?;
        let consumers = of.groups.iter().map(|(_, group)| self.groups[group].consumers()).sum();
        if consumers > 0 && condition.unused {
            return Err(ChangeRefusal::InUse { consumers });
        }
        let outgoing = of.groups.iter().map(|(_, group)| self.groups[group].ledger.outgoing().count());
        let messages = self.held(of).0.max(outgoing.sum());
        if messages > 0 && condition.empty && !planted(Fault::DeletedThoughNotEmpty) {
            return Err(ChangeRefusal::NotEmpty { messages });
        }
        let last = of.ordinal;
        self.commit(&Entry::StreamDeleted { stream, last });
        Ok(())
    }

    pub fn delete_group(&mut self, group: GroupId) -> Result<(), ChangeRefusal> {
        if !self.groups.contains_key(&group) {
            return Err(ChangeRefusal::NoSuchGroup);
        }
        self.commit(&Entry::GroupDeleted { group });
        Ok(())
    }

    /// Stops handing out, or goes on with it. Leases stay.
    pub fn pause(&mut self, now: Timestamp, group: GroupId, paused: bool) -> Result<(), ChangeRefusal> {
        let of = self.groups.get(&group).ok_or(ChangeRefusal::NoSuchGroup)?;
        if of.ledger.is_paused() != paused {
            self.commit_after(now, &Entry::GroupPaused { group, paused });
            self.touch(group);
        }
        Ok(())
    }

    /// Begins anew from somewhere: leases end, attempts and settled messages are forgotten. Parked messages
    /// stay, unless they are to go as well. Returns the position before the first that will be offered.
    ///
    /// A position beyond the next message is refused: it would settle every message, which is more likely a typing
    /// mistake than a wish. `Start::End` says the same on purpose.
    pub fn reset(
        &mut self,
        now: Timestamp,
        group: GroupId,
        to: ResetTo,
        parked: bool,
    ) -> Result<Seq, ChangeRefusal> {
        let of = self.groups.get_mut(&group).ok_or(ChangeRefusal::NoSuchGroup)?;
        let stream = self.streams.get(&of.stream).expect("a group's stream exists");
        if let Start::Seq(seq) = to
            && seq > stream.last.next()
        {
            return Err(ChangeRefusal::Beyond { seq, last: stream.last });
        }
        let floor = floor_of(stream, to);
        // Acks that were kept back are of the time before the reset.
        of.make_checkpoint();
        self.commit_after(now, &Entry::Reset { group, floor, parked });
        let of = self.groups.get_mut(&group).expect("it was there just now");
        of.begin_sweep();
        self.touch(group);
        Ok(floor)
    }

    /// Drops everything ready, delayed and leased, and what it takes along. Returns how many messages that were.
    pub fn purge(&mut self, now: Timestamp, stream: StreamId, purge: Purge) -> Result<u64, ChangeRefusal> {
        let of = self.streams.get(&stream).ok_or(ChangeRefusal::NoSuchStream)?;
        let (held, _) = self.held(of);
        let parked = of.groups.iter().map(|(_, group)| self.groups[group].ledger.parked().count());
        let kept = if purge.parked { 0 } else { parked.max().unwrap_or(0) };
        self.purge_through(now, stream, of.last, purge);
        Ok(held.saturating_sub(kept))
    }

    /// Drops every message before this position: groups are done with those that are ready, delayed or leased, and
    /// readers do not see them any more. Parked messages stay. Returns how many messages were dropped.
    pub fn truncate(&mut self, now: Timestamp, stream: StreamId, before: Seq) -> Result<u64, ChangeRefusal> {
        let of = self.streams.get(&stream).ok_or(ChangeRefusal::NoSuchStream)?;
        if before > of.last.next() {
            return Err(ChangeRefusal::Beyond { seq: before, last: of.last });
        }
        let through = Seq(before.0.saturating_sub(1));
        if through == Seq::START {
            return Ok(0);
        }
        let (held, _) = self.held(of);
        let through = if planted(Fault::CutTooFar) { through.next().min(of.last) } else { through };
        self.purge_through(now, stream, through, Purge::default());
        let (left, _) = self.held(&self.streams[&stream]);
        Ok(held.saturating_sub(left))
    }

    /// Drops the messages that no consumer holds: those that are ready, wait for a retry or are delayed. Leased and
    /// parked messages stay, and so do those that are on their way to another stream. Returns how many messages were
    /// dropped, of the group that had the most.
    pub fn purge_ready(&mut self, now: Timestamp, stream: StreamId) -> Result<u64, ChangeRefusal> {
        let of = self.streams.get(&stream).ok_or(ChangeRefusal::NoSuchStream)?;
        if of.groups.is_empty() || planted(Fault::PurgeTakesLeased) {
            return self.purge(now, stream, Purge::default());
        }
        let groups: Vec<GroupId> = of.groups.iter().map(|&(_, group)| group).collect();
        self.happened_at(now);
        let mut most = 0;
        for id in groups {
            let of = self.groups.get_mut(&id).expect("a stream lists groups that exist");
            most = most.max(of.drop_ready(now, &self.streams[&stream]));
            self.touch(id);
        }
        Ok(most)
    }

    fn purge_through(&mut self, now: Timestamp, stream: StreamId, through: Seq, purge: Purge) {
        self.happened_at(now);
        let Purge { parked, ids } = purge;
        let of = &self.streams[&stream];
        let groups: Vec<GroupId> = of.groups.iter().map(|&(_, group)| group).collect();
        for group in &groups {
            let of = self.groups.get_mut(group).expect("a stream lists groups that exist");
            of.make_checkpoint();
            of.write_down(&mut self.entries);
        }
        self.commit(&Entry::Purged { stream, through, parked, ids });
        for group in groups {
            self.groups.get_mut(&group).expect("a stream lists groups that exist").begin_sweep();
            self.touch(group);
        }
        // Without a group no message is settled, so the messages are released by position.
        self.release_stream(stream, through);
    }

    fn release_stream(&mut self, stream: StreamId, through: Seq) {
        let of = &self.streams[&stream];
        let keeps = of.groups.iter().any(|(_, group)| !self.groups[group].ledger.parked().is_empty());
        if !keeps && through.next() > of.first {
            self.commit(&Entry::Released { stream, first: through.next() });
        }
    }

    /// Whether the stream that a job moves messages to is there, and is another one than theirs.
    pub fn check_destination(&self, group: GroupId, work: &Work) -> Result<(), JobRefusal> {
        let of = self.groups.get(&group).ok_or(JobRefusal::NoSuchGroup)?;
        let own = &self.streams[&of.stream].name;
        let goes = |to: &StreamName| to != own && self.streams_by_name.contains_key(to);
        if work.to().is_none_or(goes) { Ok(()) } else { Err(JobRefusal::NoDestination) }
    }

    /// Starts to replay, discard or move parked messages, or to move those that wait. Small jobs are done within the
    /// turn.
    pub fn start_job(
        &mut self,
        now: Timestamp,
        group: GroupId,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
    ) -> Result<(JobId, u64), JobRefusal> {
        self.check_destination(group, &work)?;
        let of = self.groups.get_mut(&group).ok_or(JobRefusal::NoSuchGroup)?;
        let jobs_max = self.limits.jobs_max;
        let stream = &self.streams[&of.stream];
        let parked = work.is_about_parked();
        // A message that is not durable yet has no content that could be moved.
        let last = if parked { stream.last } else { stream.durable };
        let (job, matched, entry) = of.plan_job(now, last, work, selection, limit, rate, jobs_max)?;
        if !parked {
            // Messages whose acks are kept back are not meant after a restart either.
            of.make_checkpoint();
        }
        self.commit_after(now, &entry);
        self.groups.get_mut(&group).expect("it was there just now").start_job_pace(now, job);
        self.touch(group);
        Ok((job, matched))
    }

    /// Ends a job early. Messages that it has handled stay as they are.
    pub fn cancel_job(&mut self, now: Timestamp, group: GroupId, job: JobId) -> Result<(), JobRefusal> {
        let of = self.groups.get(&group).ok_or(JobRefusal::NoSuchGroup)?;
        if !of.job(job).is_some_and(super::super::group::jobs::Job::is_running) {
            return Err(JobRefusal::NoSuchJob { job });
        }
        self.end_job(now, group, job, JobEnd::Cancelled);
        self.touch(group);
        Ok(())
    }

    pub(super) fn end_job(&mut self, now: Timestamp, group: GroupId, job: JobId, how: JobEnd) {
        self.commit_after(now, &Entry::JobEnded { group, job, at: now, how });
        self.groups.get_mut(&group).expect("a job belongs to a group").job_ended(job);
        self.ended_jobs.push((group, job));
    }

    /// Jobs that ended since this was last asked, for the shell to report.
    pub fn take_ended_jobs(&mut self) -> Vec<(GroupId, JobId)> {
        std::mem::take(&mut self.ended_jobs)
    }

    /// Publishes an edited copy of a parked message and lets go of the message itself, by entries that follow
    /// each other.
    pub fn resubmit(
        &mut self,
        now: Timestamp,
        group: GroupId,
        seq: Seq,
        message: &MessageMeta,
        admissions: &mut Vec<Admission>,
    ) -> Result<Option<SeqRange>, ResubmitRefusal> {
        let id = self.check_resubmit(now, group, seq, message)?;
        let fresh = MessageMeta { id: None, ..*message };
        self.admit(now, id, &[fresh], PublishOptions::default())?;
        // From here on the id is the copy's.
        if let Some(taken_over) = message.id {
            self.streams.get_mut(&id).expect("a group's stream exists").dedupe.forget(taken_over);
        }
        let stored = self.store(now, id, &[*message], None, admissions);
        assert!(stored.is_some(), "a message whose id is not known is stored");
        let stream = id;
        let of = self.groups.get_mut(&group).expect("it was there just now");
        of.discard(&self.streams[&stream], SeqRange::one(seq), JobId(0));
        of.write_down(&mut self.entries);
        self.touch(group);
        Ok(stored)
    }

    /// Whether [`Shard::resubmit`] would succeed. Changes nothing. Returns the stream of the group.
    pub(super) fn check_resubmit(
        &self,
        now: Timestamp,
        group: GroupId,
        seq: Seq,
        message: &MessageMeta,
    ) -> Result<StreamId, ResubmitRefusal> {
        let of = self.groups.get(&group).ok_or(JobRefusal::NoSuchGroup)?;
        if of.ledger.parked().get(seq).is_none() {
            return Err(JobRefusal::NotParked { seq }.into());
        }
        let id = of.stream;
        let stream = self.streams.get(&id).expect("a group's stream exists");
        // The copy may have the id of what it replaces, and of nothing else.
        let known = message.id.and_then(|id| stream.dedupe.find(now, id, &stream.settings));
        if let Some(other) = known.filter(|&known| known != seq) {
            return Err(JobRefusal::IdTaken { seq: other }.into());
        }
        let fresh = MessageMeta { id: None, ..*message };
        self.check_admissible(now, id, &[fresh], PublishOptions::default())?;
        Ok(id)
    }

    /// Keeps a small value for a door. Returns its version.
    pub fn put_note(
        &mut self,
        now: Timestamp,
        door: u8,
        key: &[u8],
        value: &[u8],
        expected: Expected,
        expires: Option<Timestamp>,
    ) -> Result<u64, NoteRefusal> {
        let version = self.notes.check(now, door, key, expected, value.len())?;
        self.commit(&Entry::NotePut { door, key: key.to_vec(), version, value: value.to_vec(), expires });
        self.schedule_notes();
        Ok(version)
    }

    pub fn remove_note(
        &mut self,
        now: Timestamp,
        door: u8,
        key: &[u8],
        expected: Expected,
    ) -> Result<(), NoteRefusal> {
        self.notes.check(now, door, key, expected, 0)?;
        self.commit(&Entry::NoteRemoved { door, key: key.to_vec() });
        self.schedule_notes();
        Ok(())
    }

    /// Remembers how far a reader has come. What it has not read is kept for it.
    pub fn move_reader(
        &mut self,
        stream: StreamId,
        name: &GroupName,
        seq: Option<Seq>,
    ) -> Result<(), ChangeRefusal> {
        let of = self.streams.get(&stream).ok_or(ChangeRefusal::NoSuchStream)?;
        if let Some(seq) = seq.filter(|seq| *seq > of.durable) {
            return Err(ChangeRefusal::Beyond { seq, last: of.durable });
        }
        let limit = self.limits.readers_per_stream_max;
        if seq.is_some() && !of.readers.contains_key(name) && of.readers.len() >= limit {
            return Err(ChangeRefusal::TooMany { limit });
        }
        self.commit(&Entry::ReaderMoved { stream, name: name.clone(), seq });
        Ok(())
    }
}

/// Why an edited copy was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResubmitRefusal {
    #[error(transparent)]
    Job(#[from] JobRefusal),
    #[error(transparent)]
    Publish(#[from] PublishRefusal),
}

/// Whether a stream of that name may have a group with these settings.
pub(super) fn check_group(stream: &StreamName, settings: &GroupSettings) -> Result<(), SettingsError> {
    settings.check()?;
    settings.check_source(stream)
}
