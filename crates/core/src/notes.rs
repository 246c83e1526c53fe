//! Small durable values that doors keep for their clients, such as sessions and subscriptions.
//!
//! A note belongs to a door and has a key. Every change gives it a new version, drawn from one counter for
//! all notes, so that a door that saw a note once can tell that it has changed, also after it was removed
//! and made anew. A note may expire. For images the notes are spread over a fixed number of buckets by a
//! hash of their key, and only buckets that changed are written again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::types::Timestamp;

pub const NOTE_KEY_BYTES_MAX: usize = 512;
pub const NOTE_VALUE_BYTES_MAX: usize = 64 << 10;
/// All notes of a shard.
const NOTES_MAX: usize = 100_000;
/// Keys and values of all notes together.
const BYTES_MAX: usize = 64 << 20;
/// Parts of an image.
pub(crate) const BUCKETS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The first is 1.
    pub version: u64,
    pub value: Vec<u8>,
    /// From this time on the note is absent.
    pub expires: Option<Timestamp>,
}

impl Note {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The state that a change expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Any,
    Absent,
    Version(u64),
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
    /// The parts of the note that are checked.
    pub(crate) fn as_checked(&self) -> (u8, &'a [u8], Expected, usize) {
        (self.door, self.key, self.expected, self.value.map_or(0, <[u8]>::len))
    }
}

/// Why a note was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteRefusal {
    #[error("the note does not have the expected version. version=`{}`", version.unwrap_or(0))]
    Mismatch {
        /// `None` if there is no such note.
        version: Option<u64>,
    },
    #[error(
        "key or value is too large. key_limit=`{}` value_limit=`{}`",
        NOTE_KEY_BYTES_MAX,
        NOTE_VALUE_BYTES_MAX
    )]
    TooLarge,
    #[error("there can be no more notes. limit=`{}`", NOTES_MAX)]
    TooMany,
    #[error("all notes together are too large. limit=`{}`", BYTES_MAX)]
    Full,
}

/// Shared by everything that finds notes.
type Key = Arc<[u8]>;

#[derive(Debug)]
pub(crate) struct Notes {
    doors: BTreeMap<u8, BTreeMap<Key, Note>>,
    by_expiry: BTreeSet<(Timestamp, u8, Key)>,
    buckets: [Bucket; BUCKETS],
    count: usize,
    /// Of keys and values.
    bytes: usize,
    /// The last one given.
    version: u64,
}

#[derive(Debug, Default)]
struct Bucket {
    keys: BTreeSet<(u8, Key)>,
    /// Since an image took it.
    changed: bool,
    /// There was a note in it once. It stays in every image then, with the last version that was given.
    used: bool,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes {
            doors: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            buckets: std::array::from_fn(|_| Bucket::default()),
            count: 0,
            bytes: 0,
            version: 0,
        }
    }
}

impl Notes {
    pub(crate) fn get(&self, now: Timestamp, door: u8, key: &[u8]) -> Option<&Note> {
        self.find(door, key).filter(|note| !note.is_expired(now))
    }

    fn find(&self, door: u8, key: &[u8]) -> Option<&Note> {
        self.doors.get(&door)?.get(key)
    }

    /// Whether all of these could be written one after the other. None may come twice.
    pub(crate) fn check_all<'a>(
        &self,
        now: Timestamp,
        notes: impl Iterator<Item = (u8, &'a [u8], Expected, usize)>,
    ) -> Result<(), NoteRefusal> {
        let (mut count, mut bytes) = (self.count, self.bytes);
        for (door, key, expected, len) in notes {
            self.check(now, door, key, expected, len)?;
            let before = self.find(door, key).map(|note| key.len() + note.value.len());
            count += usize::from(before.is_none());
            bytes = (bytes + key.len() + len).saturating_sub(before.unwrap_or(0));
        }
        // A change that takes no more room than before is never refused.
        match () {
            () if count > NOTES_MAX.max(self.count) => Err(NoteRefusal::TooMany),
            () if bytes > BYTES_MAX.max(self.bytes) => Err(NoteRefusal::Full),
            () => Ok(()),
        }
    }

    /// Whether a value of `len` bytes may be put there, and with which version. The
    /// removal of a note that is there is checked as a value of no bytes.
    pub(crate) fn check(
        &self,
        now: Timestamp,
        door: u8,
        key: &[u8],
        expected: Expected,
        len: usize,
    ) -> Result<u64, NoteRefusal> {
        if key.len() > NOTE_KEY_BYTES_MAX || len > NOTE_VALUE_BYTES_MAX {
            return Err(NoteRefusal::TooLarge);
        }
        let version = self.get(now, door, key).map(|note| note.version);
        let fits = match expected {
            Expected::Any => true,
            Expected::Absent => version.is_none(),
            Expected::Version(expected) => version == Some(expected),
        };
        if !fits {
            return Err(NoteRefusal::Mismatch { version });
        }
        // An expired note that is still there makes room for the new one.
        let freed = match self.find(door, key) {
            None if self.count >= NOTES_MAX => return Err(NoteRefusal::TooMany),
            None => 0,
            Some(note) => key.len() + note.value.len(),
        };
        // A change that makes a note smaller is never refused.
        let added = key.len() + len;
        if added > freed && self.bytes - freed + added > BYTES_MAX {
            return Err(NoteRefusal::Full);
        }
        Ok(self.version + 1)
    }

    /// Puts a note that was checked, or that the log vouches for.
    pub(crate) fn put(&mut self, door: u8, key: &[u8], note: Note) {
        self.remove(door, key);
        let key: Key = key.into();
        self.version = self.version.max(note.version);
        self.count += 1;
        self.bytes += key.len() + note.value.len();
        if let Some(expires) = note.expires {
            self.by_expiry.insert((expires, door, key.clone()));
        }
        let bucket = &mut self.buckets[bucket_of(door, &key)];
        bucket.keys.insert((door, key.clone()));
        bucket.changed = true;
        bucket.used = true;
        self.doors.entry(door).or_default().insert(key, note);
    }

    /// Takes a note out, expired or not.
    pub(crate) fn remove(&mut self, door: u8, key: &[u8]) -> Option<Note> {
        let notes = self.doors.get_mut(&door)?;
        let (key, note) = notes.remove_entry(key)?;
        if notes.is_empty() {
            self.doors.remove(&door);
        }
        self.count -= 1;
        self.bytes -= key.len() + note.value.len();
        let bucket = &mut self.buckets[bucket_of(door, &key)];
        bucket.changed = true;
        bucket.used = true;
        let entry = (door, key);
        bucket.keys.remove(&entry);
        if let Some(expires) = note.expires {
            self.by_expiry.remove(&(expires, entry.0, entry.1));
        }
        Some(note)
    }

    /// Up to `limit` notes of a door whose keys begin with `prefix`, in the order of their keys, from the
    /// first one after `after` on.
    pub(crate) fn list(
        &self,
        now: Timestamp,
        door: u8,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Vec<(&[u8], &Note)> {
        let Some(notes) = self.doors.get(&door) else { return Vec::new() };
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        notes
            .range::<[u8], _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, note)| !note.is_expired(now))
            .take(limit)
            .map(|(key, note)| (&**key, note))
            .collect()
    }

    /// When the first note expires.
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.by_expiry.first().map(|&(at, _, _)| at)
    }

    /// Up to `max` notes that have expired.
    pub(crate) fn expired(&self, now: Timestamp, max: usize) -> Vec<(u8, Key)> {
        let expired = self.by_expiry.iter().take_while(|(at, _, _)| *at <= now);
        expired.take(max).map(|(_, door, key)| (*door, key.clone())).collect()
    }

    /// Whether a bucket belongs into an image.
    pub(crate) fn bucket_used(&self, number: usize) -> bool {
        self.buckets[number].used
    }

    /// No image has any of the buckets.
    pub(crate) fn forget_taken(&mut self) {
        self.buckets.iter_mut().for_each(|bucket| bucket.changed = bucket.used);
    }

    /// Whether a bucket has changed since an image took it.
    pub(crate) fn bucket_changed(&self, number: usize) -> bool {
        self.buckets[number].changed
    }

    /// `version | count`, then `door | key | version | expires | value` with 0 for a note that does not expire.
    /// The first version is the last one given to any note: it stands in every bucket, so that the bucket
    /// that was written last has it, also if its own notes were removed.
    pub(crate) fn encode_bucket(&mut self, number: usize, out: &mut Vec<u8>) {
        put_varint(out, self.version);
        put_varint(out, self.buckets[number].keys.len() as u64);
        for (door, key) in &self.buckets[number].keys {
            let note = self.find(*door, key).expect("a key in a bucket is that of a note");
            out.push(*door);
            put_bytes(out, key);
            put_varint(out, note.version);
            put_varint(out, note.expires.map_or(0, |expires| expires.0.saturating_add(1)));
            put_bytes(out, &note.value);
        }
        self.buckets[number].changed = false;
    }

    /// Takes in a bucket from an image; they come in any order.
    pub(crate) fn decode_bucket(&mut self, number: usize, bytes: &[u8]) -> Result<(), DecodeError> {
        let bucket = self.buckets.get_mut(number);
        bucket.ok_or(DecodeError::OutOfRange("number of a bucket of notes"))?.used = true;
        let mut cursor = Cursor::new(bytes);
        self.version = self.version.max(cursor.varint()?);
        for _ in 0..cursor.count()? {
            let door = cursor.byte()?;
            let key = cursor.bytes()?;
            let version = cursor.varint()?;
            let expires = cursor.varint()?.checked_sub(1).map(Timestamp);
            let value = cursor.bytes()?;
            if key.len() > NOTE_KEY_BYTES_MAX || value.len() > NOTE_VALUE_BYTES_MAX {
                return Err(DecodeError::OutOfRange("size of a note"));
            }
            if self.find(door, key).is_some() {
                return Err(DecodeError::Contradiction("a note is there once"));
            }
            self.put(door, key, Note { version, value: value.into(), expires });
            self.buckets[bucket_of(door, key)].changed = false;
        }
        Ok(())
    }
}

/// FNV-1a. Written down in images by what it decides, so it never changes.
fn bucket_of(door: u8, key: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &byte in [door].iter().chain(key) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // The lowest bits of a short key depend on few of its bits.
    ((hash ^ (hash >> 32)) % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Put { door: u8, key: Vec<u8>, expected: u8, len: usize, lasts: Option<u64> },
        Remove(u8, Vec<u8>),
        List { door: u8, prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize },
        Wait(u64),
        TakeExpired(usize),
        Snapshot,
        Recover,
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(0xff)], 0..4)
    }

    fn op() -> impl Strategy<Value = Op> {
        let lasts = prop::option::of(0u64..50);
        prop_oneof![
            10 => (0u8..2, key(), 0u8..5, 0usize..20, lasts)
                .prop_map(|(door, key, expected, len, lasts)| Op::Put { door, key, expected, len, lasts }),
            3 => (0u8..2, key()).prop_map(|(door, key)| Op::Remove(door, key)),
            3 => (0u8..2, key(), prop::option::of(key()), 0usize..10)
                .prop_map(|(door, prefix, after, limit)| Op::List { door, prefix, after, limit }),
            3 => (0u64..20).prop_map(Op::Wait),
            2 => (0usize..5).prop_map(Op::TakeExpired),
            1 => Just(Op::Snapshot),
            1 => Just(Op::Recover),
        ]
    }

    type Plain = BTreeMap<(u8, Vec<u8>), Note>;

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(ops in prop::collection::vec(op(), 1..150)) {
            let mut notes = Notes::default();
            let mut plain = Plain::new();
            let mut parts: Vec<Vec<u8>> = vec![vec![0, 0]; BUCKETS];
            let mut now = Timestamp(1_000);
            let mut last = 0;
            for op in ops {
                match op {
                    Op::Put { door, key, expected, len, lasts } => {
                        let seen = plain.get(&(door, key.clone())).filter(|note| !note.is_expired(now));
                        let seen = seen.map(|note| note.version);
                        let (expected, fits) = match expected {
                            0 => (Expected::Absent, seen.is_none()),
                            1 => (Expected::Version(seen.unwrap_or(7)), seen.is_some()),
                            2 => (Expected::Version(last + 1), false),
                            _ => (Expected::Any, true),
                        };
                        let checked = notes.check(now, door, &key, expected, len);
                        prop_assert_eq!(checked.is_ok(), fits);
                        let Ok(version) = checked else {
                            prop_assert_eq!(checked, Err(NoteRefusal::Mismatch { version: seen }));
                            continue;
                        };
                        prop_assert!(version > last, "a version is never given twice");
                        last = version;
                        let expires = lasts.map(|lasts| Timestamp(now.0 + lasts));
                        let note = Note { version, value: vec![3; len], expires };
                        notes.put(door, &key, note.clone());
                        plain.insert((door, key), note);
                    }
                    Op::Remove(door, key) => {
                        prop_assert_eq!(notes.remove(door, &key), plain.remove(&(door, key)));
                    }
                    Op::List { door, prefix, after, limit } => {
                        let listed = notes.list(now, door, &prefix, after.as_deref(), limit);
                        let expected: Vec<(&[u8], &Note)> = plain
                            .iter()
                            .filter(|((of, key), _)| *of == door && key.starts_with(&prefix))
                            .filter(|((_, key), _)| after.as_ref().is_none_or(|after| key > after))
                            .filter(|(_, note)| !note.is_expired(now))
                            .map(|((_, key), note)| (&key[..], note))
                            .take(limit)
                            .collect();
                        prop_assert_eq!(listed, expected);
                    }
                    Op::Wait(wait) => now.0 += wait,
                    Op::TakeExpired(max) => {
                        let expired = |plain: &Plain| plain.values().filter(|note| note.is_expired(now)).count();
                        let due = expired(&plain);
                        let out = notes.expired(now, max);
                        for (door, key) in &out {
                            notes.remove(*door, key);
                            plain.remove(&(*door, key.to_vec()));
                        }
                        prop_assert_eq!(out.len(), due.min(max));
                        prop_assert_eq!(expired(&plain), due - out.len());
                    }
                    Op::Snapshot | Op::Recover => {
                        for (number, part) in parts.iter_mut().enumerate() {
                            if notes.bucket_changed(number) {
                                part.clear();
                                notes.encode_bucket(number, part);
                            }
                        }
                        if matches!(op, Op::Recover) {
                            notes = Notes::default();
                            for (number, part) in parts.iter().enumerate().rev() {
                                notes.decode_bucket(number, part).expect("what was written can be read");
                            }
                            prop_assert!((0..BUCKETS).all(|number| !notes.bucket_changed(number)));
                        }
                    }
                }
                prop_assert_eq!(notes.count, plain.len());
                prop_assert_eq!(notes.buckets.iter().map(|bucket| bucket.keys.len()).sum::<usize>(), plain.len());
                prop_assert_eq!(notes.next_expiry(), plain.values().filter_map(|note| note.expires).min());
                let bytes: usize = plain.iter().map(|((_, key), note)| key.len() + note.value.len()).sum();
                prop_assert_eq!(notes.bytes, bytes);
            }
            for ((door, key), note) in &plain {
                prop_assert_eq!(notes.get(now, *door, key), Some(note).filter(|note| !note.is_expired(now)));
            }
        }

        #[test]
        fn damaged_bytes_do_no_harm(bytes in prop::collection::vec(0u8..10, 0..60)) {
            let _ = Notes::default().decode_bucket(0, &bytes);
        }
    }

    fn note(version: u64, len: usize) -> Note {
        Note { version, value: vec![0; len], expires: None }
    }

    #[test]
    fn what_is_too_large_or_too_much_is_refused() {
        let mut notes = Notes::default();
        let check = |notes: &Notes, key: &[u8], len| notes.check(Timestamp(1), 1, key, Expected::Any, len);
        assert_eq!(check(&notes, &[0; 513], 0), Err(NoteRefusal::TooLarge));
        assert_eq!(check(&notes, b"a", NOTE_VALUE_BYTES_MAX + 1), Err(NoteRefusal::TooLarge));
        let many = BYTES_MAX / (NOTE_VALUE_BYTES_MAX + 4);
        for n in 0..many {
            notes.put(1, &(n as u32).to_be_bytes(), note(n as u64 + 1, NOTE_VALUE_BYTES_MAX));
        }
        assert_eq!(check(&notes, b"a", NOTE_VALUE_BYTES_MAX), Err(NoteRefusal::Full));
        let last = many as u64;
        assert_eq!(check(&notes, &[0; 4], NOTE_VALUE_BYTES_MAX), Ok(last + 1), "in the place of another");

        let mut notes = Notes::default();
        for n in 0..NOTES_MAX as u64 {
            notes.put(1, &n.to_be_bytes(), note(n + 1, 0));
        }
        assert_eq!(check(&notes, b"a", 0), Err(NoteRefusal::TooMany));
        assert_eq!(check(&notes, &[0; 8], 1), Ok(NOTES_MAX as u64 + 1));
        let largest = notes.buckets.iter().map(|bucket| bucket.keys.len()).max();
        assert!(largest < Some(2 * NOTES_MAX / BUCKETS), "no bucket makes a long turn: {largest:?}");
    }

    #[test]
    fn the_bucket_of_a_key_never_changes() {
        assert_eq!([bucket_of(0, b""), bucket_of(1, b"a"), bucket_of(2, b"session/7")], [19, 16, 5]);
    }
}
