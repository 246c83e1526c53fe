//! What operators and doors do: change, delete, pause, reset, purge, work on parked messages, notes, readers.
//! Each is a decision of the core; here it gets its frame and its answer.

use forebay_core::entry::{Selection, Work};
use forebay_core::group::{Extension, JobRefusal, Lease, Settled};
use forebay_core::notes::{Expected, NoteRefusal};
use forebay_core::pace::Rate;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{ChangeRefusal, PublishRefusal, Purge, ResetTo, ResubmitRefusal};
use forebay_core::types::{GroupId, GroupName, JobId, Seq, StreamId, Timestamp};

use crate::batch::Batch;
use crate::driver::{Answer, Driver, Ticket};

/// Why an edited copy was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResubmitError {
    #[error(transparent)]
    Refused(#[from] ResubmitRefusal),
    #[error("storage is full, and only settling goes on")]
    StorageFull,
}

/// A note that is to be written or, without a value, removed.
#[derive(Debug, Clone, Copy)]
pub struct NoteChange<'a> {
    pub door: u8,
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub expected: Expected,
    pub expires: Option<Timestamp>,
}

impl<'a> NoteChange<'a> {
    /// What has to be checked of it.
    pub(super) fn as_checked(&self) -> (u8, &'a [u8], Expected, usize) {
        (self.door, self.key, self.expected, self.value.map_or(0, <[u8]>::len))
    }
}

impl Driver {
    /// Puts what was decided into the frame, and answers when it is durable.
    fn decided(&mut self, answer: Answer, ticket: Ticket) {
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.frames.answer(ticket, answer, &mut self.outbox);
    }

    pub fn change_stream(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        settings: &StreamSettings,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        self.shard.change_stream(now, stream, settings)?;
        self.decided(Answer::Done, ticket);
        Ok(())
    }

    pub fn change_group(
        &mut self,
        now: Timestamp,
        group: GroupId,
        settings: &GroupSettings,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        self.shard.change_group(now, group, settings)?;
        self.decided(Answer::Done, ticket);
        Ok(())
    }

    pub fn delete_stream(
        &mut self,
        stream: StreamId,
        force: bool,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        self.shard.delete_stream(stream, force)?;
        self.decided(Answer::Done, ticket);
        self.payloads.drop_stream(stream);
        Ok(())
    }

    pub fn delete_group(&mut self, group: GroupId, ticket: Ticket) -> Result<(), ChangeRefusal> {
        self.shard.delete_group(group)?;
        self.decided(Answer::Done, ticket);
        self.payloads.drop_group(group);
        Ok(())
    }

    pub fn pause(
        &mut self,
        now: Timestamp,
        group: GroupId,
        paused: bool,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        self.shard.pause(now, group, paused)?;
        self.decided(Answer::Done, ticket);
        Ok(())
    }

    pub fn reset(
        &mut self,
        now: Timestamp,
        group: GroupId,
        to: ResetTo,
        parked: bool,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        let floor = self.shard.reset(now, group, to, parked)?;
        self.decided(Answer::Reset { floor }, ticket);
        Ok(())
    }

    pub fn purge(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        purge: Purge,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        let messages = self.shard.purge(now, stream, purge)?;
        self.decided(Answer::Purged { messages }, ticket);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "each is a thing that a job is told")]
    pub fn start_job(
        &mut self,
        now: Timestamp,
        group: GroupId,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
        ticket: Ticket,
    ) -> Result<(), JobRefusal> {
        let (job, matched) = self.shard.start_job(now, group, work, selection, limit, rate)?;
        tracing::info!(group = super::group_label(&self.shard, group), job = job.0, matched, "job started");
        self.decided(Answer::JobStarted { job, matched }, ticket);
        Ok(())
    }

    pub fn cancel_job(
        &mut self,
        now: Timestamp,
        group: GroupId,
        job: JobId,
        ticket: Ticket,
    ) -> Result<(), JobRefusal> {
        self.shard.cancel_job(now, group, job)?;
        self.decided(Answer::Done, ticket);
        Ok(())
    }

    /// Publishes an edited copy of a parked message and lets go of the message, in one frame. The batch has
    /// one message.
    pub fn resubmit(
        &mut self,
        now: Timestamp,
        group: GroupId,
        seq: Seq,
        batch: &Batch,
        ticket: Ticket,
    ) -> Result<(), ResubmitError> {
        if self.storage_full {
            return Err(ResubmitError::StorageFull);
        }
        let stream = self.shard.stream_of(group).ok_or(ResubmitRefusal::Job(JobRefusal::NoSuchGroup))?;
        let message = batch.metas.first().ok_or(ResubmitRefusal::Publish(PublishRefusal::Empty))?;
        self.shard.write_down(now, group);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.frames.make_room(batch.contents.len(), &mut self.outbox);
        self.admissions.clear();
        let stored = self.shard.resubmit(now, group, seq, message, &mut self.admissions)?;
        let published = self.put_away(now, stream, batch, stored);
        self.decided(Answer::Published(published), ticket);
        Ok(())
    }

    pub fn put_note(
        &mut self,
        now: Timestamp,
        note: NoteChange<'_>,
        ticket: Ticket,
    ) -> Result<(), NoteRefusal> {
        if self.storage_full && note.value.is_some() {
            return Err(NoteRefusal::Full);
        }
        let answer = self.change_note(now, note)?;
        self.decided(answer, ticket);
        Ok(())
    }

    /// Writes or removes a note, and says what there is to be answered.
    pub(super) fn change_note(
        &mut self,
        now: Timestamp,
        note: NoteChange<'_>,
    ) -> Result<Answer, NoteRefusal> {
        let NoteChange { door, key, expected, expires, .. } = note;
        Ok(match note.value {
            Some(value) => {
                let version = self.shard.put_note(now, door, key, value, expected, expires)?;
                Answer::NotePut { version }
            }
            None => {
                self.shard.remove_note(now, door, key, expected)?;
                Answer::Done
            }
        })
    }

    pub fn move_reader(
        &mut self,
        stream: StreamId,
        name: &GroupName,
        seq: Option<Seq>,
        ticket: Ticket,
    ) -> Result<(), ChangeRefusal> {
        self.shard.move_reader(stream, name, seq)?;
        self.decided(Answer::Done, ticket);
        Ok(())
    }

    /// Gives leases more time, counted from now. The entry goes with the next frame.
    pub fn extend(
        &mut self,
        now: Timestamp,
        group: GroupId,
        leases: &[Lease],
        extension: Extension,
        results: &mut Vec<Settled>,
    ) {
        self.shard.extend(now, group, leases, extension, results);
    }
}
