//! Several changes of one call, in one frame: all of them are there after a crash, or none.

use std::collections::BTreeSet;

use forebay_core::entry::{note_bytes_max, published_bytes_max};
use forebay_core::notes::NoteRefusal;
use forebay_core::shard::{Arrangement, ChangeRefusal, CreateRefusal, PublishOptions, PublishRefusal};
use forebay_core::types::{GroupId, StreamId, Timestamp};

use crate::batch::Batch;
use crate::driver::{Driver, NoteChange, Published};

/// More than the entries of a stream and a group take: names, settings, and the name of another stream in them.
const SETTINGS_BYTES_MAX: usize = 8 << 10;

/// Why changes that belong together were not made. None of them was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrangeError {
    #[error(transparent)]
    Create(#[from] CreateRefusal),
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    #[error(transparent)]
    Note(#[from] NoteRefusal),
    #[error("a note comes twice")]
    Twice,
    #[error("all of it together is too large. bytes=`{bytes}` limit=`{limit}`")]
    TooLarge { bytes: usize, limit: usize },
}

/// Why several batches, and notes with them, were not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishAllError {
    #[error(transparent)]
    Publish(#[from] PublishRefusal),
    #[error(transparent)]
    Note(#[from] NoteRefusal),
    #[error("a stream or a note comes twice")]
    Twice,
    /// A bundle that is stored all or not at all has to fit in one frame.
    #[error("all of it together is too large. bytes=`{bytes}` limit=`{limit}`")]
    TooLarge { bytes: usize, limit: usize },
}

/// The result of changes that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arranged {
    /// The stream, if there was one among them.
    pub stream: Option<StreamId>,
    /// Whether the stream was not there before.
    pub new: bool,
    /// Of each note, in order; none of those that were removed.
    pub versions: Vec<Option<u64>>,
}

impl Driver {
    /// Creates or changes a stream and a group of it, and writes or removes notes, in one frame: all or nothing.
    pub fn arrange(
        &mut self,
        now: Timestamp,
        arrangement: Option<Arrangement<'_>>,
        notes: &[NoteChange<'_>],
    ) -> Result<Arranged, ArrangeError> {
        self.check_together(now, notes)?;
        if let Some(arrangement) = arrangement {
            self.shard.check_arrangement(arrangement)?;
            let Arrangement { stream: (stream, _), group } = arrangement;
            let stream = self.shard.stream_named(stream);
            let group =
                stream.zip(group).and_then(|(stream, (name, _))| self.shard.group_named(stream, name));
            self.write_before(now, group);
        } else {
            self.write_before(now, None);
        }
        let mut arranged = Arranged::default();
        if let Some(arrangement) = arrangement {
            let (stream, new) = self.shard.arrange(now, arrangement).expect("it was checked just now");
            arranged = Arranged { stream: Some(stream), new, ..arranged };
        }
        self.note_together(now, notes, &mut arranged);
        self.frames.take_together(self.shard.entries(), &mut self.outbox);
        Ok(arranged)
    }

    /// Deletes a stream with its groups, even if they have consumers, and writes or removes notes, in one frame:
    /// all or nothing.
    pub fn dissolve(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        notes: &[NoteChange<'_>],
    ) -> Result<Arranged, ArrangeError> {
        self.check_together(now, notes)?;
        self.write_before(now, None);
        self.shard.delete_stream(stream, true)?;
        let mut arranged = Arranged { stream: Some(stream), ..Arranged::default() };
        self.note_together(now, notes, &mut arranged);
        self.frames.take_together(self.shard.entries(), &mut self.outbox);
        self.payloads.drop_stream(stream);
        Ok(arranged)
    }

    fn check_together(&self, now: Timestamp, notes: &[NoteChange<'_>]) -> Result<(), ArrangeError> {
        if self.storage_full && notes.iter().any(|note| note.value.is_some()) {
            return Err(NoteRefusal::Full.into());
        }
        // Each note is checked by itself, so no two of them may have the same key.
        let keys: BTreeSet<(u8, &[u8])> = notes.iter().map(|note| (note.door, note.key)).collect();
        if keys.len() < notes.len() {
            return Err(ArrangeError::Twice);
        }
        self.shard.check_notes(now, notes.iter().map(NoteChange::as_checked))?;
        let bytes: usize = notes.iter().map(|note| note_bytes_max(note.key, note.value)).sum();
        let (bytes, limit) = (bytes + SETTINGS_BYTES_MAX, self.frames.frame_bytes_max());
        if bytes > limit { Err(ArrangeError::TooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Takes earlier entries, and those that a group has to write before its settings change, into frames. They
    /// need not be in the frame of the change.
    fn write_before(&mut self, now: Timestamp, group: Option<GroupId>) {
        if let Some(group) = group {
            self.shard.check_point(now, group);
        }
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
    }

    fn note_together(&mut self, now: Timestamp, notes: &[NoteChange<'_>], arranged: &mut Arranged) {
        for note in notes {
            let version = self.change_note(now, *note).expect("it was checked just now");
            arranged.versions.push(version);
        }
    }

    /// Stores batches in several streams, and notes with them, in one frame: all or nothing.
    pub fn publish_all(
        &mut self,
        now: Timestamp,
        batches: &[(StreamId, &Batch, PublishOptions)],
        notes: &[NoteChange<'_>],
    ) -> Result<Vec<Published>, PublishAllError> {
        if self.storage_full {
            return Err(PublishRefusal::StorageFull.into());
        }
        let bytes: usize = batches.iter().map(|(_, batch, _)| batch.contents.len()).sum();
        let limit = self.shard.limits().batch_bytes_max;
        if bytes > limit as usize {
            return Err(PublishRefusal::BatchTooLarge { bytes: bytes as u64, limit }.into());
        }
        // Each part is checked by itself, which is enough only if no part changes what another was checked against.
        let streams: BTreeSet<StreamId> = batches.iter().map(|&(stream, ..)| stream).collect();
        let keys: BTreeSet<(u8, &[u8])> = notes.iter().map(|note| (note.door, note.key)).collect();
        if streams.len() < batches.len() || keys.len() < notes.len() {
            return Err(PublishAllError::Twice);
        }
        self.shard.check_notes(now, notes.iter().map(NoteChange::as_checked))?;
        for &(stream, batch, options) in batches {
            self.shard.check_admissible(now, stream, &batch.metas, options)?;
        }
        let entries: usize = batches.iter().map(|(_, batch, _)| published_bytes_max(&batch.metas)).sum();
        let notes_bytes: usize = notes.iter().map(|note| note_bytes_max(note.key, note.value)).sum();
        let (whole, limit) = (bytes + entries + notes_bytes, self.frames.frame_bytes_max());
        if whole > limit {
            return Err(PublishAllError::TooLarge { bytes: whole, limit });
        }
        // Earlier decisions do not take the room.
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.frames.make_room(whole, &mut self.outbox);
        let mut published = Vec::with_capacity(batches.len());
        for &(stream, batch, options) in batches {
            let stored = self.store(now, stream, batch, options);
            published.push(stored.expect("it was found admissible just now"));
        }
        for note in notes {
            self.change_note(now, *note).expect("it was checked just now");
        }
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        Ok(published)
    }
}
