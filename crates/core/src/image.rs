//! The shard's state as a set of parts, so that only changed parts are written again.
//!
//! | part | key | holds |
//! | --- | --- | --- |
//! | registry | kind 1 | epoch, next numbers, every stream and group with name and settings |
//! | stream | kind 2, stream | positions, times, priorities, producers, readers |
//! | dedupe generation | kind 3, stream, generation | ids |
//! | group | kind 4, group | progress, standing, failures, jobs |
//! | parked | kind 5, group, chunk | messages that were set aside |
//! | notes | kind 6, bucket | small values of doors |
//!
//! Parts may be taken at different times. Each is loaded with the position it covers, and entries up to
//! there are not applied to it again. The registry is taken first: streams and groups that are created
//! later are not in the image and come from the log. A parked list may be long, so it is taken a chunk at a
//! time, but as it was when its group was taken.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::group::parked::{Chunk, encode_chunk};
use crate::group::{Group, ledger::Ledger};
use crate::notes;
use crate::settings::{GroupSettings, Logged, StreamSettings};
use crate::shard::Shard;
use crate::stream::Stream;
use crate::types::{
    Epoch, GroupId, GroupName, Ordinal, PartKey, Position, Seq, StreamId, StreamName, Timestamp,
};

pub(crate) const REGISTRY: u8 = 1;
pub(crate) const STREAM: u8 = 2;
pub(crate) const DEDUPE: u8 = 3;
pub(crate) const GROUP: u8 = 4;
pub(crate) const PARKED: u8 = 5;
const NOTES: u8 = 6;

/// The first byte of every part, so that a later form can be told from this one. The latest time that
/// anything was decided at follows, so that time does not go back with a restart.
const VERSION: u8 = 1;

/// A chunk of parked messages as it was when its group was taken.
#[derive(Debug)]
pub(crate) struct FrozenChunk {
    chunk: Arc<Chunk>,
    changed: bool,
}

/// The result of taking a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    Taken,
    /// It is as it was when it was last taken; nothing was written.
    Unchanged,
    /// It has gone since it was listed.
    Gone,
}

impl Shard {
    /// Every part of the state but those that [`Shard::parts_of`] adds, in the order in which they are to
    /// be taken.
    pub fn parts(&self) -> Vec<PartKey> {
        let mut parts = vec![PartKey { kind: REGISTRY, id: 0, sub: 0 }];
        parts.extend(self.streams.keys().map(|id| PartKey { kind: STREAM, id: id.0, sub: 0 }));
        parts.extend(self.groups.keys().map(|id| PartKey { kind: GROUP, id: id.0, sub: 0 }));
        let used = (0..notes::BUCKETS as u32).filter(|&id| self.notes.bucket_used(id as usize));
        parts.extend(used.map(|id| PartKey { kind: NOTES, id, sub: 0 }));
        parts
    }

    /// The parts that belong to one that has just been taken, and are to be taken after it. Listed then and
    /// not before, since there may be others by then.
    ///
    /// The ids of a stream may be taken at any time after it. The parked messages of a group are taken as
    /// they were when the group was taken: these parts cover the same entries as the group's part, and no
    /// later ones.
    pub fn parts_of(&mut self, key: PartKey) -> Vec<PartKey> {
        match key.kind {
            STREAM => {
                let stream = self.streams.get(&StreamId(key.id));
                let generations = stream.into_iter().flat_map(|stream| stream.dedupe.generations());
                generations.map(|(sub, _)| PartKey { kind: DEDUPE, id: key.id, sub }).collect()
            }
            GROUP => {
                let Some(group) = self.groups.get_mut(&GroupId(key.id)) else { return Vec::new() };
                let chunks = group.ledger.freeze_parked().into_iter();
                let parts = chunks.map(|(sub, chunk, changed)| {
                    let part = PartKey { kind: PARKED, id: key.id, sub };
                    self.frozen.insert(part, FrozenChunk { chunk, changed });
                    part
                });
                parts.collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether a part covers the same entries as the last part before it for which this is false.
    pub fn is_taken_along(key: PartKey) -> bool {
        key.kind == PARKED
    }

    /// Writes one part as it is now, if it has changed since it was last taken. For the time after
    /// [`Shard::write_down_all`].
    pub fn take_part(&mut self, key: PartKey, out: &mut Vec<u8>) -> Taking {
        match self.part_changed(key) {
            None => return Taking::Gone,
            Some(false) => {
                self.frozen.remove(&key);
                return Taking::Unchanged;
            }
            Some(true) => {}
        }
        out.push(VERSION);
        put_varint(out, self.latest().0);
        match key.kind {
            REGISTRY => self.take_registry(out),
            STREAM | DEDUPE => {
                let stream = self.streams.get_mut(&StreamId(key.id)).expect("a part that changed is there");
                if key.kind == STREAM {
                    stream.encode(out);
                    stream.changed = false;
                } else {
                    stream.dedupe.encode(key.sub, out);
                }
            }
            PARKED => {
                let frozen = self.frozen.remove(&key).expect("a part that changed is there");
                encode_chunk(key.sub, &frozen.chunk, out);
            }
            NOTES => self.notes.encode_bucket(key.id as usize, out),
            _ => {
                let group = self.groups.get_mut(&GroupId(key.id)).expect("a part that changed is there");
                // Recovery would apply entries that come later in the log than the part once more.
                assert!(!group.is_unwritten(), "the log holds everything that a part contains");
                group.ledger.take(out);
            }
        }
        Taking::Taken
    }

    /// The next image takes every part anew: the image that took them last was not kept, or a stored part is
    /// damaged.
    pub fn forget_taken(&mut self) {
        self.changed = true;
        for stream in self.streams.values_mut() {
            stream.changed = true;
            stream.dedupe.forget_taken();
        }
        for group in self.groups.values_mut() {
            group.ledger.forget_taken();
        }
        self.notes.forget_taken();
    }

    /// Whether a part has changed since it was last taken; `None` if there is no such part.
    fn part_changed(&self, key: PartKey) -> Option<bool> {
        match key.kind {
            REGISTRY => Some(self.changed),
            STREAM => self.streams.get(&StreamId(key.id)).map(|stream| stream.changed),
            // A generation that was dropped since its stream was taken is written without ids, for its time: the window
            // was over then, and must not be open again after a restart.
            DEDUPE => Some(self.streams.get(&StreamId(key.id))?.dedupe.changed(key.sub).unwrap_or(true)),
            GROUP => self.groups.get(&GroupId(key.id)).map(|group| group.ledger.is_changed()),
            PARKED => self.frozen.get(&key).map(|frozen| frozen.changed),
            NOTES => Some(self.notes.bucket_changed(key.id as usize)),
            _ => None,
        }
    }

    /// `epoch | next stream | next group | next ordinal | streams | groups`.
    fn take_registry(&mut self, out: &mut Vec<u8>) {
        put_varint(out, self.epoch.0.into());
        put_varint(out, self.next_stream.0.into());
        put_varint(out, self.next_group.0.into());
        put_varint(out, self.next_ordinal.0);
        put_varint(out, self.streams.len() as u64);
        let mut settings = Vec::new();
        for stream in self.streams.values() {
            put_varint(out, stream.id.0.into());
            put_bytes(out, stream.name.as_str().as_bytes());
            put_varint(out, stream.created.0);
            settings.clear();
            stream.settings.encode(&mut settings);
            put_bytes(out, &settings);
        }
        put_varint(out, self.groups.len() as u64);
        for group in self.groups.values() {
            put_varint(out, group.id.0.into());
            put_varint(out, group.stream.0.into());
            put_bytes(out, group.name.as_str().as_bytes());
            put_varint(out, group.created.0);
            settings.clear();
            group.settings.encode(&mut settings);
            put_bytes(out, &settings);
        }
        self.changed = false;
    }

    /// Loads the parts of an image, in any order. To be called on a new shard, before any entry. Each part is dropped
    /// as soon as it is loaded, so that a large image and the state that it becomes are not both in memory.
    pub fn load<B: AsRef<[u8]>>(
        &mut self,
        parts: impl IntoIterator<Item = (PartKey, Position, B)>,
    ) -> Result<(), DecodeError> {
        let mut parts: Vec<_> = parts.into_iter().collect();
        // The registry has the lowest kind, and what it lists must be there for the others.
        parts.sort_by_key(|(key, ..)| *key);
        let keys: BTreeSet<PartKey> = parts.iter().map(|(key, ..)| *key).collect();
        for (key, through, bytes) in parts {
            self.load_part(key, through, bytes.as_ref())?;
        }
        // A stream or group that is listed and has no part was deleted while the image was made.
        let has = |kind: u8, id: u32| keys.contains(&PartKey { kind, id, sub: 0 });
        self.doomed_streams.extend(self.streams.keys().filter(|id| !has(STREAM, id.0)));
        self.doomed_groups.extend(self.groups.keys().filter(|id| !has(GROUP, id.0)));
        Ok(())
    }

    pub(crate) fn load_part(
        &mut self,
        key: PartKey,
        through: Position,
        bytes: &[u8],
    ) -> Result<(), DecodeError> {
        let (&version, bytes) = bytes.split_first().ok_or(DecodeError::Short)?;
        if version != VERSION {
            return Err(DecodeError::OutOfRange("version of a part"));
        }
        let mut header = Cursor::new(bytes);
        self.happened_at(Timestamp(header.varint()?));
        let bytes = header.take(header.remaining())?;
        let unlisted = DecodeError::Contradiction("a part belongs to something in the registry");
        match key.kind {
            REGISTRY => self.load_registry(through, bytes),
            STREAM => self.streams.get_mut(&StreamId(key.id)).ok_or(unlisted)?.decode(bytes, through),
            DEDUPE => self.streams.get_mut(&StreamId(key.id)).ok_or(unlisted)?.dedupe.decode(key.sub, bytes),
            GROUP => {
                let group = self.groups.get_mut(&GroupId(key.id)).ok_or(unlisted)?;
                group.ledger = Ledger::decode(&mut Cursor::new(bytes), &mut group.texts)?;
                group.through = through;
                Ok(())
            }
            PARKED => {
                let group = self.groups.get_mut(&GroupId(key.id)).ok_or(unlisted)?;
                group.ledger.load_parked(key.sub, bytes, &mut group.texts)
            }
            NOTES => self.notes.decode_bucket(key.id as usize, bytes),
            kind => Err(DecodeError::UnknownKind { kind }),
        }
    }

    fn load_registry(&mut self, through: Position, bytes: &[u8]) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        self.epoch = Epoch(cursor.varint_u32()?);
        self.next_stream = StreamId(cursor.varint_u32()?);
        self.next_group = GroupId(cursor.varint_u32()?);
        self.next_ordinal = Ordinal(cursor.varint()?);
        for _ in 0..cursor.count()? {
            let id = StreamId(cursor.varint_u32()?);
            let name = StreamName::stored(cursor.text()?);
            let created = Timestamp(cursor.varint()?);
            let settings = StreamSettings::decode(cursor.bytes()?)?;
            self.add_stream(Stream::new(id, name, settings, created))?;
        }
        for _ in 0..cursor.count()? {
            let id = GroupId(cursor.varint_u32()?);
            let stream = StreamId(cursor.varint_u32()?);
            let name = GroupName::stored(cursor.text()?);
            let created = Timestamp(cursor.varint()?);
            let settings = GroupSettings::decode(cursor.bytes()?)?;
            self.add_group(Group::new(id, stream, name, settings, Seq::START, created))?;
        }
        self.through = through;
        self.changed = false;
        Ok(())
    }
}
