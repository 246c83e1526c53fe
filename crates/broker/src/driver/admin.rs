//! Decisions of the shard that the driver has a part in: contents that are stored or dropped with them, and storage
//! that may be full. All others go through [`Driver::decide`].

use forebay_core::notes::{NoteChange, NoteRefusal};
use forebay_core::shard::{ChangeRefusal, DeleteIf};
use forebay_core::types::{GroupId, StreamId, Timestamp};

use crate::driver::Driver;

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
