//! Entries: applied when they are read from the log, and when they are decided.

use crate::codec::DecodeError;
use crate::entry::Entry;
use crate::fault::{Fault, planted};
use crate::group::{Group, decision::Decision};
use crate::notes::Note;
use crate::settings::Retention;
use crate::shard::Shard;
use crate::stream::Stream;
use crate::types::{GroupId, Ordinal, Position, Seq, StreamId, Timestamp};

impl Shard {
    /// A decision, once made, is an entry: applied here now, and again from the log after a restart.
    pub(crate) fn commit(&mut self, entry: &Entry) {
        self.apply_known(None, entry).expect("a decision fits the state it was made in");
        entry.encode(&mut self.entries);
    }

    /// As `commit`, for a decision about a group: what the turn has changed in it before comes first.
    pub(super) fn commit_after(&mut self, now: Timestamp, entry: &Entry) {
        self.happened_at(now);
        if let Some(group) = entry.group().and_then(|group| self.groups.get_mut(&group)) {
            group.write_down(&mut self.entries);
        }
        self.commit(entry);
    }

    /// Applies an entry of the frame at `position`, except to parts that were loaded with it in them.
    pub fn apply(&mut self, position: Position, entry: &Entry) -> Result<(), DecodeError> {
        self.happened_at(entry.at().unwrap_or(self.latest));
        // Also if the stream is gone by now: a position in the log is never given twice.
        if let Entry::Published { ordinal, messages, .. } = entry {
            let end = Ordinal(ordinal.0.saturating_add(messages.count()));
            self.next_ordinal = self.next_ordinal.max(end);
        }
        let of_stream = |stream: &StreamId| {
            let known = self.streams.get(stream);
            self.part_of(position, self.doomed_streams.contains(stream), known.map(|stream| stream.through))
        };
        let covered = match entry {
            Entry::Published { stream, .. }
            | Entry::Numbered { stream, .. }
            | Entry::Released { stream, .. }
            | Entry::Redelayed { stream, .. }
            | Entry::ReaderMoved { stream, .. } => of_stream(stream)?,
            // It changes several parts, each of which may have been taken at another time, so those are asked
            // one by one. Of a stream that is gone there is nothing to ask.
            Entry::Purged { stream, .. } => {
                of_stream(stream)?;
                !self.streams.contains_key(stream) || self.doomed_streams.contains(stream)
            }
            // The last one wins, and all that come after the loaded image are applied.
            Entry::NotePut { .. } | Entry::NoteRemoved { .. } | Entry::Copied { .. } => false,
            _ => match entry.group() {
                Some(group) => {
                    let known = self.groups.get(&group);
                    // The state of a stream that is being deleted says nothing about its groups.
                    let doomed = self.doomed_groups.contains(&group)
                        || known.is_some_and(|group| self.doomed_streams.contains(&group.stream));
                    self.part_of(position, doomed, known.map(|group| group.through))?
                }
                None => position <= self.through,
            },
        };
        if covered { Ok(()) } else { self.apply_known(Some(position), entry) }
    }

    /// Whether an entry at `position` is in a part already, or about something that is gone.
    fn part_of(
        &self,
        position: Position,
        doomed: bool,
        through: Option<Position>,
    ) -> Result<bool, DecodeError> {
        match through {
            Some(through) => Ok(doomed || position <= through),
            // It was deleted before the registry was taken.
            None if position <= self.through => Ok(true),
            None => Err(DecodeError::Contradiction("a stream or a group exists")),
        }
    }

    /// `position` is where a recovered entry lies, and none for a decision.
    fn apply_known(&mut self, position: Option<Position>, entry: &Entry) -> Result<(), DecodeError> {
        match entry {
            Entry::Opened { epoch, .. } => {
                if *epoch <= self.epoch {
                    return Err(DecodeError::Contradiction("epochs grow"));
                }
                self.epoch = *epoch;
                self.changed = true;
            }
            Entry::StreamCreated { stream, name, settings, at } => {
                self.add_stream(Stream::new(*stream, name.clone(), (**settings).clone(), *at))?;
            }
            Entry::GroupCreated { group, stream, name, settings, floor, at } => {
                self.add_group(Group::new(*group, *stream, name.clone(), (**settings).clone(), *floor, *at))?;
            }
            Entry::Published { stream, first, ordinal, at, stamp, messages } => {
                self.known_stream(*stream)?.apply_published(*first, *ordinal, *at, *stamp, messages)?;
            }
            Entry::Numbered { stream, at, stamp, count, seqs } => {
                let stream = self.known_stream(*stream)?;
                stream.changed = true;
                stream.producers.remember(*at, *stamp, *count, *seqs);
            }
            Entry::Released { stream, first } => {
                let stream =
                    self.streams.get_mut(stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
                if *first > stream.last.next() {
                    return Err(DecodeError::Contradiction("only published messages are released"));
                }
                stream.release(*first);
                // If the groups decide which messages are kept, one of them may want earlier messages.
                if stream.settings.retention != Retention::Work || stream.groups.is_empty() {
                    stream.gone = stream.gone.max(Seq(first.0.saturating_sub(1)));
                }
                // A group may want earlier messages, and then their due times and priorities still matter.
                let groups = stream.groups.iter().filter_map(|(_, group)| self.groups.get(group));
                let asked = groups.map(|group| group.ledger.oldest_wanted()).fold(*first, Seq::min);
                stream.forget_before(asked.max(stream.gone.next()).min(*first));
            }
            Entry::Redelayed { stream, at, from, to } => {
                let stream = self.known_stream(*stream)?;
                stream.changed = true;
                stream.delayed.shift(*at, *from, *to);
            }
            Entry::Copied { stream, .. } => self.check_copied(*stream)?,
            Entry::ReaderMoved { stream, name, seq } => {
                let stream = self.known_stream(*stream)?;
                stream.changed = true;
                match seq {
                    Some(seq) => stream.readers.insert(name.clone(), *seq),
                    None => stream.readers.remove(name),
                };
            }
            Entry::Purged { stream, through, parked, ids } => {
                self.apply_purged(position, *stream, *through, *parked, *ids)?;
            }
            Entry::GroupChanged { group, settings, .. } => {
                if planted(Fault::SettingsLeak) {
                    for group in self.groups.values_mut() {
                        group.settings.backoff = settings.backoff.clone();
                        group.settings.max_retries = settings.max_retries;
                    }
                }
                let of = self.groups.get_mut(group).ok_or(DecodeError::Contradiction("a group exists"))?;
                of.settings = (**settings).clone();
                self.changed = true;
            }
            Entry::StreamChanged { stream, settings, .. } => {
                self.known_stream(*stream)?.settings = (**settings).clone();
                self.changed = true;
            }
            Entry::GroupDeleted { .. } | Entry::StreamDeleted { .. }
                if planted(Fault::DeletedBack) && position.is_some() => {}
            Entry::GroupDeleted { group } => {
                self.remove_group(*group);
                self.changed = true;
            }
            Entry::StreamDeleted { stream, last } => {
                let gone =
                    self.streams.remove(stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
                self.streams_by_name.remove(&gone.name);
                let last = gone.ordinal.max(*last);
                self.next_ordinal = self.next_ordinal.max(Ordinal(last.0.saturating_add(1)));
                for (_, group) in gone.groups {
                    if let Some(group) = self.groups.remove(&group) {
                        self.dead.push(group);
                    }
                }
                self.changed = true;
            }
            Entry::NotePut { door, key, version, value, expires } => {
                let note = Note { version: *version, value: value.clone(), expires: *expires };
                self.notes.put(*door, key, note);
            }
            Entry::NoteRemoved { .. } if planted(Fault::RemovedNoteBack) && position.is_some() => {}
            Entry::NoteRemoved { door, key } => {
                self.notes.remove(*door, key);
            }
            of_group => self.apply_to_group(of_group, position.is_some())?,
        }
        Ok(())
    }

    fn known_stream(&mut self, stream: StreamId) -> Result<&mut Stream, DecodeError> {
        self.streams.get_mut(&stream).ok_or(DecodeError::Contradiction("a stream exists"))
    }

    /// Forgets a group; what it leaves behind goes a slice a turn.
    pub(super) fn remove_group(&mut self, id: GroupId) {
        if let Some(group) = self.groups.remove(&id) {
            if let Some(stream) = self.streams.get_mut(&group.stream) {
                stream.groups.retain(|&(_, other)| other != id);
            }
            self.dead.push(group);
        }
    }

    fn apply_purged(
        &mut self,
        position: Option<Position>,
        id: StreamId,
        through: Seq,
        parked: bool,
        ids: bool,
    ) -> Result<(), DecodeError> {
        let is_new = |part: Position| position.is_none_or(|position| position > part);
        let stream = self.streams.get_mut(&id).ok_or(DecodeError::Contradiction("a stream exists"))?;
        if is_new(stream.through) {
            if through > stream.last {
                return Err(DecodeError::Contradiction("only published messages are purged"));
            }
            stream.forget_through(through);
            // A group that begins later, or anew, is not promised purged messages.
            stream.gone = stream.gone.max(through);
            // Generations of ids in an image may be younger than the stream's part of it. What they have of later
            // messages is met again in the log.
            if ids {
                stream.dedupe.clear();
            }
        }
        for &(_, group) in &stream.groups {
            let of = self.groups.get_mut(&group).ok_or(DecodeError::Contradiction("a group exists"))?;
            if is_new(of.through) {
                of.ledger.apply(&Decision::Purged { through, parked });
                if position.is_some() {
                    of.ledger.finish_sweep();
                }
            }
        }
        Ok(())
    }

    /// Entries that change the ledger of a group.
    fn apply_to_group(&mut self, entry: &Entry, recovering: bool) -> Result<(), DecodeError> {
        let id = entry.group().expect("all others have been seen to");
        let of = self.groups.get_mut(&id).ok_or(DecodeError::Contradiction("a group exists"))?;
        let last = self.streams.get(&of.stream).map_or(Seq::START, |stream| stream.last);
        of.ledger.apply_entry(self.epoch, last, entry, &mut of.texts)?;
        if recovering && matches!(entry, Entry::Reset { .. }) {
            of.ledger.finish_sweep();
        }
        Ok(())
    }

    pub(crate) fn add_stream(&mut self, stream: Stream) -> Result<(), DecodeError> {
        if self.streams.contains_key(&stream.id) || self.streams_by_name.contains_key(&stream.name) {
            return Err(DecodeError::Contradiction("a stream is created once"));
        }
        let next = stream.id.0.checked_add(1).ok_or(DecodeError::OutOfRange("number of a stream"))?;
        self.next_stream = self.next_stream.max(StreamId(next));
        self.streams_by_name.insert(stream.name.clone(), stream.id);
        self.streams.insert(stream.id, stream);
        self.changed = true;
        Ok(())
    }

    pub(crate) fn add_group(&mut self, group: Group) -> Result<(), DecodeError> {
        let stream =
            self.streams.get_mut(&group.stream).ok_or(DecodeError::Contradiction("a stream exists"))?;
        let at = stream.groups.partition_point(|(name, _)| *name < group.name);
        let taken = stream.groups.get(at).is_some_and(|(name, _)| *name == group.name);
        if taken || self.groups.contains_key(&group.id) {
            return Err(DecodeError::Contradiction("a group is created once"));
        }
        let next = group.id.0.checked_add(1).ok_or(DecodeError::OutOfRange("number of a group"))?;
        stream.groups.insert(at, (group.name.clone(), group.id));
        self.next_group = self.next_group.max(GroupId(next));
        self.groups.insert(group.id, group);
        self.changed = true;
        Ok(())
    }
}
