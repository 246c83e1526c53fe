//! Which message ids a stream has seen lately.
//!
//! Ids are kept as hashes, and in the order in which they came in generations of a few thousand. A full
//! generation never changes again, so that an image writes it once, and is dropped whole when its
//! youngest id is older than the window, by a timer, or when there are too many ids, in which case the window
//! is shorter than asked for. A generation is small, so that neither writing nor dropping one makes a long
//! turn.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::codec::{Cursor, DecodeError, put_varint, unzigzag, zigzag};
use crate::fault::{Fault, planted};
use crate::settings::StreamSettings;
use crate::types::{IdHash, Seq, Timestamp};

/// Ids in one generation.
const GENERATION: usize = 2_048;
/// Ids that a table may still have when it is made smaller.
const SHRINK_MAX: usize = 16 * GENERATION;

#[derive(Debug, Default)]
pub(crate) struct Dedupe {
    seen: HashMap<IdHash, Sighting, BuildHasherDefault<TakeBits>>,
    generations: VecDeque<Generation>,
    /// Number of the next generation, which names its part in an image.
    next: u32,
}

#[derive(Debug)]
struct Generation {
    number: u32,
    /// In the order in which they came.
    ids: Vec<IdHash>,
    /// The latest of the times at which they came.
    youngest: Timestamp,
    /// Whether an image has it as it is now.
    saved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let seen = self.seen.get(&id)?;
        (now.since(seen.at) < settings.dedupe_window).then_some(seen.seq)
    }

    /// Remembers an id, unless it is remembered already: after an image that was taken in several turns,
    /// recovery may meet entries whose ids are in it.
    pub(crate) fn remember(&mut self, at: Timestamp, id: IdHash, seq: Seq, settings: &StreamSettings) {
        let sighting = Sighting { seq, at };
        if self.seen.insert(id, sighting) == Some(sighting) {
            return;
        }
        if self.generations.back().is_none_or(|youngest| youngest.ids.len() >= GENERATION) {
            self.open_generation();
        }
        let youngest = self.generations.back_mut().expect("there is a generation for new ids");
        youngest.ids.push(id);
        youngest.youngest = youngest.youngest.max(at);
        youngest.saved = false;
        self.drop_old(at, settings);
    }

    /// The id is another message's from now on, and about to be remembered with that one.
    pub(crate) fn forget(&mut self, id: IdHash) {
        self.seen.remove(&id);
    }

    /// Forgets all ids. Numbers of generations are not used again, so that a new generation is not taken for one that
    /// an image has.
    pub(crate) fn clear(&mut self) {
        *self = Dedupe { next: self.next, ..Dedupe::default() };
    }

    fn open_generation(&mut self) {
        let number = self.next;
        self.next += 1;
        let youngest = Timestamp::ZERO;
        self.generations.push_back(Generation { number, ids: Vec::new(), youngest, saved: false });
    }

    /// Drops at most one generation, since more than one does not become old with one new id.
    fn drop_old(&mut self, now: Timestamp, settings: &StreamSettings) {
        let too_many = self.generations.len() > 1 && self.seen.len() > settings.dedupe_max as usize;
        if too_many || self.drop_at(settings).is_some_and(|at| at <= now) {
            self.drop_oldest();
        }
    }

    /// When the oldest generation is out of the window, if there is one.
    pub(crate) fn drop_at(&self, settings: &StreamSettings) -> Option<Timestamp> {
        let early = if planted(Fault::IdsForgottenEarly) { 2 } else { 1 };
        self.generations.front().map(|oldest| oldest.youngest + settings.dedupe_window / early)
    }

    /// Drops the oldest generation, and says how many ids it had.
    pub(crate) fn drop_oldest(&mut self) -> usize {
        let Some(oldest) = self.generations.pop_front() else { return 0 };
        let count = oldest.ids.len();
        // An id that has come again since is in a younger generation too, and stays.
        for id in oldest.ids {
            if self.seen.get(&id).is_some_and(|seen| seen.at <= oldest.youngest) {
                self.seen.remove(&id);
            }
        }
        // The table keeps its size when it is emptied. A large one is not made anew, which would take long.
        if self.seen.len() <= SHRINK_MAX && self.seen.capacity() > 4 * self.seen.len() + GENERATION {
            self.seen.shrink_to(2 * self.seen.len());
        }
        count
    }

    /// Numbers of the generations, and whether each has changed since an image took it.
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.generations.iter().map(|generation| (generation.number, !generation.saved))
    }

    /// No image has any of it.
    pub(crate) fn forget_taken(&mut self) {
        self.generations.iter_mut().for_each(|generation| generation.saved = false);
    }

    /// Whether a generation has changed since an image took it; `None` if there is no such one.
    pub(crate) fn changed(&self, number: u32) -> Option<bool> {
        let at = self.generations.binary_search_by_key(&number, |generation| generation.number).ok()?;
        Some(!self.generations[at].saved)
    }

    /// `count`, then `seq | at | id` in the order in which they came, the first two as distances. A generation that was
    /// dropped has no ids.
    pub(crate) fn encode(&mut self, number: u32, out: &mut Vec<u8>) {
        let Ok(at) = self.generations.binary_search_by_key(&number, |generation| generation.number) else {
            return put_varint(out, 0);
        };
        let generation = &mut self.generations[at];
        // An id that came again at the very time of the youngest one of a generation was dropped with that one.
        let known = || generation.ids.iter().filter_map(|id| Some((id, *self.seen.get(id)?)));
        put_varint(out, known().count() as u64);
        let mut from = Sighting { seq: Seq::START, at: Timestamp::ZERO };
        for (id, seen) in known() {
            put_varint(out, zigzag(seen.seq.0.wrapping_sub(from.seq.0) as i64));
            put_varint(out, zigzag(seen.at.0.wrapping_sub(from.at.0) as i64));
            out.extend_from_slice(&id.0.to_le_bytes());
            from = seen;
        }
        generation.saved = true;
    }

    /// Takes in a generation from an image; they come in any order.
    pub(crate) fn decode(&mut self, number: u32, bytes: &[u8]) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let mut generation = Generation { number, ids: Vec::new(), youngest: Timestamp::ZERO, saved: true };
        let mut from = (0u64, 0u64);
        let overflow = || DecodeError::OutOfRange("id in a dedupe window");
        for _ in 0..cursor.count()? {
            from.0 = from.0.checked_add_signed(unzigzag(cursor.varint()?)).ok_or_else(overflow)?;
            from.1 = from.1.checked_add_signed(unzigzag(cursor.varint()?)).ok_or_else(overflow)?;
            let seen = Sighting { seq: Seq(from.0), at: Timestamp(from.1) };
            let id = IdHash(cursor.u128()?);
            let newest = self.seen.entry(id).or_insert(seen);
            // Of two at the same time the later message took the id over.
            if (newest.at, newest.seq) < (seen.at, seen.seq) {
                *newest = seen;
            }
            generation.youngest = generation.youngest.max(seen.at);
            generation.ids.push(id);
        }
        let at = self.generations.partition_point(|other| other.number < number);
        if self.generations.get(at).is_some_and(|other| other.number == number) {
            return Err(DecodeError::Contradiction("a generation of ids is there once"));
        }
        self.generations.insert(at, generation);
        self.next = self.next.max(number.checked_add(1).ok_or_else(overflow)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn settings(seconds: u64, max: u32) -> StreamSettings {
        StreamSettings {
            dedupe_window: Duration::from_secs(seconds),
            dedupe_max: max,
            ..StreamSettings::default()
        }
    }

    #[test]
    fn an_id_is_known_for_exactly_its_window() {
        let settings = settings(600, 1_000_000);
        let mut dedupe = Dedupe::default();
        for n in 0..100_000u64 {
            dedupe.remember(Timestamp(n * 10_000), IdHash(n.into()), Seq(n + 1), &settings);
        }
        let now = at(1_000);
        assert_eq!(dedupe.find(now, IdHash(99_999), &settings), Some(Seq(100_000)));
        assert_eq!(dedupe.find(now, IdHash(40_001), &settings), Some(Seq(40_002)));
        assert_eq!(dedupe.find(now, IdHash(40_000), &settings), None, "600 s after");
        assert!(dedupe.seen.len() < 60_000 + 2 * GENERATION, "old ids are dropped: {}", dedupe.seen.len());
        assert_eq!(dedupe.find(now, IdHash(1_000_000), &settings), None);
    }

    #[test]
    fn too_many_ids_shorten_the_window() {
        let settings = settings(600, 10_000);
        let mut dedupe = Dedupe::default();
        for n in 0..100_000u64 {
            dedupe.remember(at(1), IdHash(n.into()), Seq(n + 1), &settings);
            assert!(dedupe.seen.len() <= 10_000 + GENERATION, "the bound is kept to within a generation");
        }
        assert_eq!(dedupe.find(at(2), IdHash(99_999), &settings), Some(Seq(100_000)));
        assert_eq!(dedupe.find(at(2), IdHash(92_500), &settings), Some(Seq(92_501)));
        assert_eq!(dedupe.find(at(2), IdHash(80_000), &settings), None);
    }

    #[test]
    fn an_id_that_comes_again_after_its_window_is_kept_for_its_second_time() {
        let settings = settings(10, 1_000_000);
        let mut dedupe = Dedupe::default();
        dedupe.remember(at(0), IdHash(7), Seq(1), &settings);
        for n in 0..GENERATION as u64 {
            dedupe.remember(at(11), IdHash(u128::from(n) + 100), Seq(n + 2), &settings);
        }
        dedupe.remember(at(12), IdHash(7), Seq(9_000), &settings);
        for n in 0..GENERATION as u64 {
            dedupe.remember(at(13), IdHash(u128::from(n) + 9_000), Seq(n + 9_001), &settings);
        }
        assert_eq!(dedupe.find(at(14), IdHash(7), &settings), Some(Seq(9_000)));
    }

    #[test]
    fn an_id_that_was_dropped_is_not_taken_for_its_neighbour_after_a_restart() {
        let settings = settings(10, GENERATION as u32);
        let mut dedupe = Dedupe::default();
        dedupe.remember(at(0), IdHash(7), Seq(1), &settings);
        let others = GENERATION as u64;
        for n in 0..others {
            dedupe.remember(at(11), IdHash(u128::from(n) + 100), Seq(n + 2), &settings);
        }
        // It comes again at the time of the youngest id of the first generation, which is dropped for lack of room.
        dedupe.remember(at(11), IdHash(7), Seq(others + 2), &settings);
        assert_eq!(dedupe.generations.len(), 1, "the first generation is dropped");
        let copy = copied(&mut dedupe);
        assert_eq!(copy.seen, dedupe.seen, "an image has the ids that are remembered");
        let known = copy.find(at(12), IdHash(7), &settings);
        assert!(known.is_none_or(|seq| seq == Seq(others + 2)), "{known:?}");
    }

    /// A copy made of parts of an image, with the ids of the last `again` met once more.
    fn copied(dedupe: &mut Dedupe) -> Dedupe {
        let numbers: Vec<u32> = dedupe.generations().map(|(number, _)| number).collect();
        let mut copy = Dedupe::default();
        for &number in numbers.iter().rev() {
            let mut bytes = Vec::new();
            dedupe.encode(number, &mut bytes);
            copy.decode(number, &bytes).expect("what was written can be read");
        }
        copy
    }

    #[test]
    fn an_image_brings_every_id_back() {
        let settings = settings(600, 1_000_000);
        let mut dedupe = Dedupe::default();
        let count = GENERATION as u64 * 3 + 5;
        for n in 0..count {
            // Time may step back between two runs of a server.
            let when = at(if n % 1_000 == 0 { 1 } else { 2 });
            dedupe.remember(when, IdHash(u128::from(n) << 70), Seq(n + 1), &settings);
        }
        let mut copy = copied(&mut dedupe);
        assert!(dedupe.generations().all(|(_, changed)| !changed));
        assert_eq!(copy.seen, dedupe.seen);
        assert_eq!(copy.next, dedupe.next);
        for n in count - 10..count {
            let when = at(if n % 1_000 == 0 { 1 } else { 2 });
            copy.remember(when, IdHash(u128::from(n) << 70), Seq(n + 1), &settings);
        }
        let lengths =
            |dedupe: &Dedupe| dedupe.generations.iter().map(|one| one.ids.len()).collect::<Vec<_>>();
        assert_eq!(lengths(&copy), lengths(&dedupe), "what is there is not remembered twice");
    }
}
