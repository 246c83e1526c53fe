//! Notes of doors, readers of streams, and the deletion of groups and streams.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_broker::driver::Ticket;
use forebay_core::notes::{Expected, NoteChange, NoteRefusal};
use forebay_core::shard::Shard;
use forebay_core::types::{GroupId, GroupName, Seq, StreamId, StreamName, Timestamp};

use crate::model::StreamModel;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::{Following, World};

/// The door whose notes these are.
pub(super) const DOOR: u8 = 7;

/// A value that changes, with the frame that makes each change durable. The last one is the present one.
type Changes<T> = Vec<(u64, T)>;

#[derive(Debug, Clone, PartialEq)]
struct KnownNote {
    version: u64,
    value: Vec<u8>,
    expires: Option<Timestamp>,
}

/// Where a reader is, and the first position that is kept for it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    read: Seq,
    keeps: Seq,
}

/// Deleted groups and streams. They may be back after a crash if the deletion is not durable.
#[derive(Default)]
pub(super) struct Deleted {
    pub(super) groups: BTreeMap<GroupId, (u64, Following)>,
    pub(super) streams: BTreeMap<StreamId, (u64, StreamModel)>,
    /// Streams that were created late, and the frame that makes each durable.
    created: BTreeMap<StreamId, u64>,
}

#[derive(Default)]
pub(super) struct Side {
    notes: BTreeMap<Vec<u8>, Changes<Option<KnownNote>>>,
    readers: BTreeMap<(StreamId, GroupName), Changes<Option<Place>>>,
    pub(super) deleted: Deleted,
}

/// The states that may be there after a crash: the last durable one, and every later one.
fn possible<T>(changes: &Changes<T>, durable: u64) -> &[(u64, T)] {
    let sure = changes.iter().rposition(|(frame, _)| *frame <= durable).unwrap_or(0);
    &changes[sure..]
}

impl World {
    /// A door changes a note.
    pub(super) fn change_note(&mut self) {
        let key = format!("note-{}", self.dice.roll(4)).into_bytes();
        let (now, latest) = (self.now, self.latest.max(self.now));
        let known =
            self.side.notes.get(&key).and_then(|changes| changes.last()).and_then(|(_, note)| note.clone());
        // A note whose time has come may have been removed, although the clock was set back since.
        let is_moot = known.as_ref().is_some_and(|note| note.expires.is_some_and(|at| at <= latest));
        let version = known.as_ref().map(|note| note.version);
        let expected = match (self.dice.roll(4), version) {
            (0, _) => Expected::Any,
            (1, _) => Expected::Absent,
            (2, Some(version)) => Expected::Version(version),
            _ => Expected::Version(self.dice.roll(50)),
        };
        let length = self.dice.roll(30) as usize;
        let value = self.dice.chance(2, 3).then(|| self.dice.bytes(length));
        let life = Duration::from_millis(100 + self.dice.roll(6_000));
        let expires = self.dice.chance(1, 3).then_some(now + life);
        let change = NoteChange { door: DOOR, key: &key, value: value.as_deref(), expected, expires };
        let changed = self.driver().put_note(now, change);
        tell(|| format!("note {key:?} {expected:?} {value:?}: {changed:?}"));
        let fits = match expected {
            Expected::Any => true,
            Expected::Absent => version.is_none(),
            Expected::Version(wanted) => version == Some(wanted),
        };
        let written = match changed {
            Ok(written) => written,
            Err(NoteRefusal::Mismatch { .. }) => {
                assert!(!fits || is_moot, "a note that is as expected is refused: {known:?} {expected:?}");
                return;
            }
            // Only settling goes on while the disk is full.
            Err(NoteRefusal::Full) => return,
            Err(error) => panic!("a good note was refused: {error}"),
        };
        assert!(fits || is_moot, "a note that is not as expected is changed: {known:?} {expected:?}");
        let note = value.map(|value| {
            let version = written.expect("a note that is written has a version");
            let before = known.map_or(0, |note| note.version);
            assert!(version > before, "the version of a note goes from {before} to {version}");
            KnownNote { version, value, expires }
        });
        self.situations.reached(Situation::NoteChanged);
        let (frame, _) = self.server().driver.frame_numbers();
        self.side.notes.entry(key).or_insert_with(|| vec![(0, None)]).push((frame, note));
    }

    fn check_notes(&self, shard: &Shard, durable: Option<u64>) -> BTreeMap<Vec<u8>, Option<KnownNote>> {
        let mut found = BTreeMap::new();
        for (key, changes) in &self.side.notes {
            // Also one whose time has come and that was not removed yet: it is there again when the clock is set back.
            let stored = shard.note(Timestamp(0), DOOR, key);
            let note = stored.map(|note| KnownNote {
                version: note.version,
                value: note.value.clone(),
                expires: note.expires,
            });
            let is_due = stored.is_some_and(|note| note.expires.is_some_and(|at| at <= self.now));
            let shown = shard.note(self.now, DOOR, key).is_some();
            assert_eq!(shown, stored.is_some() && !is_due, "a note is shown until its time has come");
            let last = changes.len() - 1;
            let may_be = durable.map_or(&changes[last..], |durable| possible(changes, durable));
            let is_over = |known: &KnownNote| known.expires.is_some_and(|at| at <= self.latest.max(self.now));
            let fits = may_be
                .iter()
                .any(|(_, known)| *known == note || (note.is_none() && known.as_ref().is_some_and(is_over)));
            assert!(fits, "a note is {note:?} and can only be one of {may_be:?}");
            found.insert(key.clone(), note);
        }
        found
    }

    /// A reader goes on, goes back, or ends.
    pub(super) fn move_reader(&mut self) {
        // A purge takes messages away from readers too, so readers are where no purge comes.
        if self.wild {
            return;
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let stream = *self.dice.pick(&streams);
        let name = GroupName::parse(&format!("reader-{}", self.dice.roll(2))).expect("a good name");
        let shard = self.server().driver.shard();
        let last = shard.last_seq(stream).expect("the stream exists");
        let first = shard.readable(stream).map_or(last.next(), |kept| kept.first);
        let at = self.dice.chance(4, 5).then(|| {
            // Most of them keep up, since what they have not read holds up the log.
            let back = if self.dice.chance(2, 3) { self.dice.roll(8) } else { self.dice.roll(last.0 + 1) };
            Seq(last.0.saturating_sub(back))
        });
        self.decide(|shard, _| shard.move_reader(stream, &name, at));
        tell(|| format!("{name} of {stream:?} has read up to {at:?}"));
        let key = (stream, name);
        let before =
            self.side.readers.get(&key).and_then(|changes| changes.last()).and_then(|(_, place)| *place);
        let place = at.map(|read| {
            // It is promised the messages that are there now, and those that were kept for it.
            let keeps = first.min(before.map_or(first, |before| before.keeps));
            Place { read, keeps: read.next().max(keeps) }
        });
        let (frame, _) = self.server().driver.frame_numbers();
        self.side.readers.entry(key).or_insert_with(|| vec![(0, None)]).push((frame, place));
        self.situations.reached(Situation::ReaderMoved);
    }

    /// What readers have not read is there.
    fn check_readers(&self, shard: &Shard) {
        for ((stream, name), changes) in &self.side.readers {
            let Some((_, place)) = changes.last() else { continue };
            let found = shard.reader(*stream, name);
            assert_eq!(
                found,
                place.map(|place| place.read),
                "a reader is where it says: {name} of {stream:?}"
            );
            let (Some(place), Some(last)) = (place, shard.last_seq(*stream)) else { continue };
            let first = shard.readable(*stream).map_or(last.next(), |kept| kept.first);
            let keeps = place.keeps;
            assert!(
                first <= keeps.min(last.next()),
                "messages from {keeps} on are not read, and {first} is first"
            );
        }
    }

    /// After every turn.
    pub(super) fn check_side(&self) {
        let shard = self.server.as_ref().expect("the server is up between steps").driver.shard();
        self.check_notes(shard, None);
        self.check_readers(shard);
    }

    /// The first message of a stream that a reader has not read, as far as one is promised.
    pub(super) fn kept_for_readers(&self, stream: StreamId) -> Option<Seq> {
        let of = self.side.readers.iter().filter(|((of, _), _)| *of == stream);
        of.filter_map(|(_, changes)| changes.last()?.1).map(|place| place.keeps).min()
    }

    /// An operator deletes a group, or a stream with its groups.
    pub(super) fn delete_something(&mut self) {
        if self.plain {
            return;
        }
        if self.streams.len() > 1 && self.dice.chance(1, 3) {
            return self.delete_stream();
        }
        if self.groups.len() < 2 {
            return;
        }
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        let group = *self.dice.pick(&groups);
        tell(|| format!("{group:?} is deleted"));
        self.driver().delete_group(group).expect("the group exists");
        self.confirm_unwatched();
        self.group_deleted(group);
        self.situations.reached(Situation::GroupDeleted);
    }

    fn delete_stream(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let stream = *self.dice.pick(&streams);
        tell(|| format!("{stream:?} is deleted"));
        let name = self.server().driver.shard().stream_name(stream).expect("the stream exists").clone();
        self.driver().delete_stream(stream, true).expect("the stream exists");
        self.confirm_unwatched();
        let of = self.groups.iter().filter(|(_, following)| following.stream == stream);
        for group in of.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.group_deleted(group);
        }
        let (frame, _) = self.server().driver.frame_numbers();
        let model = self.streams.remove(&stream).expect("it was picked from those there");
        self.side.deleted.streams.insert(stream, (frame, model));
        self.side.readers.retain(|(of, _), _| *of != stream);
        self.numbered.remove(&stream);
        self.forget_outputs(stream);
        self.publishes.retain(|ticket, (of, ..)| {
            let is_of = *of == stream;
            if is_of {
                self.unwatched.insert(*ticket);
            }
            !is_of
        });
        self.situations.reached(Situation::StreamDeleted);
        if self.dice.chance(1, 2) {
            self.create_again(&name);
        }
    }

    /// A stream of the same name, which has nothing to do with the one before.
    fn create_again(&mut self, name: &StreamName) {
        let settings = self.stream_settings();
        let (id, _) = self.decide(|shard, now| shard.create_stream(now, name, &settings));
        tell(|| format!("{id:?} has {settings:?}"));
        self.streams.insert(id, StreamModel::new(settings));
        let (frame, _) = self.server().driver.frame_numbers();
        self.side.deleted.created.insert(id, frame);
        self.create_group(id, "group-0");
    }

    fn confirm_unwatched(&mut self) {
        let ticket = Ticket(self.number());
        self.driver().confirm(ticket);
        self.unwatched.insert(ticket);
    }

    fn group_deleted(&mut self, group: GroupId) {
        let (frame, _) = self.server().driver.frame_numbers();
        let following = self.groups.remove(&group).expect("a group that exists is deleted");
        self.side.deleted.groups.insert(group, (frame, following));
        self.forget_inputs(group);
        self.consumers.retain(|_, consumer| consumer.group != group);
        self.stale.retain(|(of, _)| *of != group);
        self.acked_this_turn.retain(|of| *of != group);
        self.new_leases.retain(|(of, ..)| *of != group);
        let gone = self.creations.extract_if(.., |_, of| *of == group);
        self.unwatched.extend(gone.map(|(ticket, _)| ticket));
    }

    /// The server stopped: a deletion that is not durable may not have happened.
    pub(super) fn doubt_deletions(&mut self, durable: u64) {
        let deleted = &mut self.side.deleted;
        for (id, (_, model)) in deleted.streams.extract_if(.., |_, (frame, _)| *frame > durable) {
            self.streams.insert(id, model);
            deleted.created.insert(id, frame_of_doubt());
        }
        for (id, (_, mut following)) in deleted.groups.extract_if(.., |_, (frame, _)| *frame > durable) {
            following.answered = false;
            self.groups.insert(id, following);
        }
    }

    /// The server is back. Deletions that were durable are final, and the log says whether the others happened.
    pub(super) fn check_side_recovered(&mut self) {
        let server = self.server.as_ref().expect("the server has just started");
        let (shard, durable) = (server.driver.shard(), self.durable_at_crash);
        for id in self.side.deleted.groups.keys() {
            assert!(shard.stream_of(*id).is_none(), "a deleted group is back: {id:?}");
        }
        for id in self.side.deleted.streams.keys() {
            assert!(shard.stream_name(*id).is_none(), "a deleted stream is back: {id:?}");
        }
        let mut doubtful = std::mem::take(&mut self.side.deleted.created);
        doubtful.retain(|_, frame| *frame > durable);
        let is_gone = |id: &StreamId| doubtful.contains_key(id) && shard.stream_name(*id).is_none();
        for (id, model) in self.streams.extract_if(.., |id, _| is_gone(id)) {
            // A creation that is forgotten leaves nothing behind, and its number is given again.
            if doubtful[&id] == frame_of_doubt() {
                self.side.deleted.streams.insert(id, (0, model));
            }
        }
        self.groups.retain(|_, following| self.streams.contains_key(&following.stream));
        self.numbered.retain(|id, _| self.streams.contains_key(id));
        let notes = self.check_notes(shard, Some(durable));
        for (key, note) in notes {
            self.side.notes.insert(key, vec![(0, note)]);
        }
        self.side.readers.retain(|(id, _), _| self.streams.contains_key(id));
        for ((stream, name), changes) in &mut self.side.readers {
            let found = shard.reader(*stream, name);
            let may_be = possible(changes, durable);
            let place = may_be.iter().find(|(_, place)| place.map(|place| place.read) == found);
            let place =
                place.unwrap_or_else(|| panic!("{name} is at {found:?} and can only be one of {may_be:?}")).1;
            *changes = vec![(0, place)];
        }
        self.check_readers(shard);
    }
}

/// Later than any frame: whether the stream is there is for the log to say.
fn frame_of_doubt() -> u64 {
    u64::MAX
}
