//! Decisions of the shard that the driver has a part in: contents that are stored or dropped with them, and storage
//! that may be full. All others go through [`Driver::decide`].

use forebay_core::group::JobRefusal;
use forebay_core::notes::{Expected, NoteRefusal};
use forebay_core::shard::{ChangeRefusal, DeleteIf, PublishRefusal, ResubmitRefusal};
use forebay_core::types::{GroupId, Seq, StreamId, Timestamp};

use crate::batch::Batch;
use crate::driver::{Driver, Published};

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
    /// The parts of the note that the shard checks.
    pub(super) fn as_checked(&self) -> (u8, &'a [u8], Expected, usize) {
        (self.door, self.key, self.expected, self.value.map_or(0, <[u8]>::len))
    }
}

impl Driver {
    pub fn delete_stream(&mut self, stream: StreamId, force: bool) -> Result<(), ChangeRefusal> {
        self.delete_stream_if(stream, DeleteIf { unused: !force, empty: false })
    }

    pub fn delete_stream_if(&mut self, stream: StreamId, condition: DeleteIf) -> Result<(), ChangeRefusal> {
        self.decide(|shard| shard.delete_stream_if(stream, condition))?;
        self.payloads.drop_stream(stream);
        Ok(())
    }

    pub fn delete_group(&mut self, group: GroupId) -> Result<(), ChangeRefusal> {
        self.decide(|shard| shard.delete_group(group))?;
        self.payloads.drop_group(group);
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
    ) -> Result<Published, ResubmitRefusal> {
        if self.storage_full {
            return Err(ResubmitRefusal::Publish(PublishRefusal::StorageFull));
        }
        let stream = self.shard.stream_of(group).ok_or(ResubmitRefusal::Job(JobRefusal::NoSuchGroup))?;
        let message = batch.metas.first().ok_or(ResubmitRefusal::Publish(PublishRefusal::Empty))?;
        self.shard.write_down(now, group);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.frames.make_room(batch.contents.len(), &mut self.outbox);
        self.admissions.clear();
        let ordinal = self.shard.next_ordinal();
        let stored = self.shard.resubmit(now, group, seq, message, &mut self.admissions)?;
        Ok(self.put_away(now, stream, batch, stored, ordinal))
    }

    /// Writes a note, or removes it. Answers with the version of a note that was written.
    pub fn put_note(&mut self, now: Timestamp, note: NoteChange<'_>) -> Result<Option<u64>, NoteRefusal> {
        if self.storage_full && note.value.is_some() {
            return Err(NoteRefusal::Full);
        }
        let version = self.change_note(now, note)?;
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        Ok(version)
    }

    pub(super) fn change_note(
        &mut self,
        now: Timestamp,
        note: NoteChange<'_>,
    ) -> Result<Option<u64>, NoteRefusal> {
        let NoteChange { door, key, expected, expires, .. } = note;
        match note.value {
            Some(value) => self.shard.put_note(now, door, key, value, expected, expires).map(Some),
            None => self.shard.remove_note(now, door, key, expected).map(|()| None),
        }
    }
}
