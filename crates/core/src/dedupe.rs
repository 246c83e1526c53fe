//! Which message ids a stream has seen lately.
//!
//! Ids are kept as hashes in generations. New ids go into the youngest; when it is full or old it is
//! closed and never changes again, so that a snapshot writes it once. The oldest generation is dropped
//! whole when its window is over, or when there are too many ids, in which case the window is shorter
//! than asked for, and says so.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::settings::StreamSettings;
use crate::types::{IdHash, Seq, Timestamp};

/// The window is made of this many generations, and a closed one is at most this part of all ids.
const GENERATIONS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Dedupe {
    generations: VecDeque<Generation>,
    /// Number of the next generation, which names its part in a snapshot.
    next: u32,
}

#[derive(Debug)]
struct Generation {
    number: u32,
    opened: Timestamp,
    ids: HashMap<IdHash, Sighting, BuildHasherDefault<TakeBits>>,
    /// Whether a snapshot has it as it is now.
    saved: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    seq: Seq,
    at: Timestamp,
}

/// The id is a hash already; hashing it again would only cost time. Iteration order is never used.
#[derive(Default)]
struct TakeBits(u64);

impl Hasher for TakeBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("ids are hashed as one number");
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64 ^ (id >> 64) as u64;
    }
}

impl Dedupe {
    /// The message that was published with this id within the window.
    pub(crate) fn find(&self, now: Timestamp, id: IdHash, settings: &StreamSettings) -> Option<Seq> {
        let seen = self.generations.iter().rev().find_map(|generation| generation.ids.get(&id))?;
        (now.since(seen.at) < settings.dedupe_window).then_some(seen.seq)
    }

    /// Remembers an id. Opens and drops generations by `at`, which is in the log, so that recovery
    /// arrives at the same ones.
    pub(crate) fn remember(&mut self, at: Timestamp, id: IdHash, seq: Seq, settings: &StreamSettings) {
        let share = (settings.dedupe_max / GENERATIONS).max(1) as usize;
        let span = settings.dedupe_window / GENERATIONS;
        let stale = self.generations.back().is_none_or(|youngest| {
            youngest.ids.len() >= share || at.since(youngest.opened) >= span.max(Duration::from_micros(1))
        });
        if stale {
            self.drop_old(at, settings);
            self.generations.push_back(Generation {
                number: self.next,
                opened: at,
                ids: HashMap::default(),
                saved: false,
            });
            self.next += 1;
        }
        let youngest = self.generations.back_mut().expect("there is a generation for new ids");
        youngest.ids.insert(id, Sighting { seq, at });
        youngest.saved = false;
    }

    /// A generation is over when the one after it was opened a window ago: its youngest id is older.
    fn drop_old(&mut self, now: Timestamp, settings: &StreamSettings) {
        while self.generations.len() > GENERATIONS as usize
            || self.generations.get(1).is_some_and(|next| now.since(next.opened) >= settings.dedupe_window)
        {
            self.generations.pop_front();
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.generations.iter().map(|generation| generation.ids.len()).sum()
    }

    /// Numbers of the generations, and whether each has changed since a snapshot took it.
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.generations.iter().map(|generation| (generation.number, !generation.saved))
    }

    /// `next generation | opened | count | (seq, at, id) by position`, as distances where they grow.
    pub(crate) fn encode(&mut self, number: u32, out: &mut Vec<u8>) {
        let generation = self
            .generations
            .iter_mut()
            .find(|generation| generation.number == number)
            .expect("a snapshot asks for a generation that exists");
        put_varint(out, generation.opened.0);
        put_varint(out, generation.ids.len() as u64);
        let mut ids: Vec<(Sighting, IdHash)> = generation.ids.iter().map(|(&id, &seen)| (seen, id)).collect();
        ids.sort_unstable_by_key(|(seen, _)| seen.seq);
        let mut from = (0, generation.opened.0);
        for (seen, id) in ids {
            put_varint(out, seen.seq.0 - from.0);
            put_varint(out, seen.at.0 - from.1);
            out.extend_from_slice(&id.0.to_le_bytes());
            from = (seen.seq.0, seen.at.0);
        }
        generation.saved = true;
    }

    /// Takes in a generation from a snapshot; they come in any order.
    pub(crate) fn decode(&mut self, number: u32, bytes: &[u8]) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let opened = Timestamp(cursor.varint()?);
        let mut generation = Generation { number, opened, ids: HashMap::default(), saved: true };
        let mut from = (0, opened.0);
        for _ in 0..cursor.count()? {
            let overflow = DecodeError::OutOfRange("id in a dedupe window");
            from.0 = cursor.varint()?.checked_add(from.0).ok_or(overflow.clone())?;
            from.1 = cursor.varint()?.checked_add(from.1).ok_or(overflow)?;
            let seen = Sighting { seq: Seq(from.0), at: Timestamp(from.1) };
            generation.ids.insert(IdHash(cursor.u128()?), seen);
        }
        let at = self.generations.partition_point(|other| other.number < number);
        self.generations.insert(at, generation);
        self.next = self.next.max(number + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn settings(seconds: u64, max: u32) -> StreamSettings {
        StreamSettings { dedupe_window: Duration::from_secs(seconds), dedupe_max: max }
    }

    #[test]
    fn an_id_is_known_for_exactly_its_window() {
        let settings = settings(600, 1000);
        let mut dedupe = Dedupe::default();
        for n in 0..100 {
            dedupe.remember(at(n * 10), IdHash(n.into()), Seq(n + 1), &settings);
        }
        assert_eq!(dedupe.find(at(1_000), IdHash(99), &settings), Some(Seq(100)));
        assert_eq!(dedupe.find(at(1_000), IdHash(41), &settings), Some(Seq(42)));
        assert_eq!(dedupe.find(at(1_000), IdHash(40), &settings), None, "600 s after");
        assert_eq!(dedupe.find(at(1_000), IdHash(1_000), &settings), None);
    }

    #[test]
    fn too_many_ids_shorten_the_window() {
        let settings = settings(600, 100);
        let mut dedupe = Dedupe::default();
        for n in 0..1_000u64 {
            dedupe.remember(at(1), IdHash(n.into()), Seq(n + 1), &settings);
            assert!(dedupe.count() <= 125, "the bound is kept to within a generation");
        }
        assert_eq!(dedupe.find(at(2), IdHash(999), &settings), Some(Seq(1_000)));
        assert_eq!(dedupe.find(at(2), IdHash(900), &settings), Some(Seq(901)));
        assert_eq!(dedupe.find(at(2), IdHash(100), &settings), None);
    }

    #[test]
    fn a_snapshot_brings_every_id_back() {
        let settings = settings(600, 40);
        let mut dedupe = Dedupe::default();
        for n in 0..35u64 {
            dedupe.remember(at(n), IdHash(u128::from(n) << 70), Seq(n + 1), &settings);
        }
        let numbers: Vec<u32> = dedupe.generations().map(|(number, _)| number).collect();
        let mut copy = Dedupe::default();
        for &number in numbers.iter().rev() {
            let mut bytes = Vec::new();
            dedupe.encode(number, &mut bytes);
            copy.decode(number, &bytes).expect("what was written can be read");
        }
        for n in 0..35u64 {
            let id = IdHash(u128::from(n) << 70);
            assert_eq!(copy.find(at(35), id, &settings), dedupe.find(at(35), id, &settings));
        }
        assert_eq!(copy.next, dedupe.next);
        assert!(dedupe.generations().all(|(_, changed)| !changed));
    }
}
