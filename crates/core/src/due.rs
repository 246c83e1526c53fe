//! Positions by the time at which they are due, at a few bytes each.
//!
//! Positions that are due soon are kept in a sorted set. Positions that are due later are appended to a
//! bucket of eight seconds, as bytes in the order in which they came, and sorted only when their time
//! nears. A bucket consists of segments of some hundred positions, so that neither opening one nor dropping
//! forgotten positions makes a long turn, even if a million positions are due in the same second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint, unzigzag, zigzag};
use crate::types::{Seq, Timestamp};

/// Time that a bucket covers, in microseconds.
const WIDTH: u64 = 8_000_000;
/// Positions in a segment.
const SEGMENT: u32 = 256;
/// Positions that one call sorts, or passes over because they are forgotten.
const SLICE: usize = 512;
/// Segments that one call looks at to see whether all their positions are forgotten.
const SWEEP: usize = 32;
/// Bytes by which a segment grows: twice as much each time would waste a third of all memory.
const GROWTH: usize = 64;

/// Number of a bucket, which is that of the eight seconds since 1970, and of a segment in it.
type SegmentKey = (u64, u32);

#[derive(Debug, Clone, Default)]
pub(crate) struct Due {
    near: BTreeSet<(Timestamp, Seq)>,
    far: BTreeMap<SegmentKey, Segment>,
    /// Positions in `far`.
    far_count: u64,
    /// Bytes that its segments have allocated.
    far_bytes: usize,
    /// Buckets up to this one are open: their remaining positions in `far` move to `near`, and new
    /// positions go there at once.
    open: u64,
    /// Positions up to here are not wanted any more.
    forgotten: Seq,
    /// Highest position ever inserted.
    highest: Seq,
    /// Where to look next for forgotten segments.
    swept: SegmentKey,
}

#[derive(Debug, Clone, Default)]
struct Segment {
    /// For each position the time within the bucket and the distance from the position before.
    bytes: Vec<u8>,
    last: Seq,
    highest: Seq,
    count: u32,
}

impl Due {
    /// Adds a position. It may be there for several times, and once for each of them.
    pub(crate) fn insert(&mut self, seq: Seq, at: Timestamp) {
        if seq <= self.forgotten {
            return;
        }
        self.highest = self.highest.max(seq);
        let bucket = at.0 / WIDTH;
        if bucket <= self.open {
            self.near.insert((at, seq));
            return;
        }
        let youngest = self.far.range_mut((bucket, 0)..=(bucket, u32::MAX)).next_back();
        let (segment, number) = match youngest {
            Some((&(_, number), segment)) => (Some(segment), number),
            None => (None, 0),
        };
        let segment = match segment.filter(|segment| segment.count < SEGMENT) {
            Some(segment) => segment,
            None => self.far.entry((bucket, number + 1)).or_default(),
        };
        let before = segment.bytes.capacity();
        segment.push(at.0 % WIDTH, seq);
        self.far_bytes += segment.bytes.capacity() - before;
        self.far_count += 1;
    }

    /// When to call `take_due` next: the time of the first position, or an earlier one, at which a bucket is
    /// to be opened. `None` if there is nothing.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        let near = self.near.first().map(|&(at, _)| at);
        // A bucket is opened while the one before it is still due, and then all at once: in its own time
        // the positions would have to wait for each other, since they come out in order.
        let far =
            self.far.first_key_value().map(|(&(bucket, _), _)| Timestamp(bucket.saturating_sub(1) * WIDTH));
        near.into_iter().chain(far).min()
    }

    /// Takes out up to `max` of the positions that are due, in the order of time and position. There may be
    /// more due: while `next_at` is not after `now`, call again. Returns how many positions were sorted on
    /// the way, which is work too.
    pub(crate) fn take_due(&mut self, now: Timestamp, max: usize, out: &mut Vec<(Timestamp, Seq)>) -> usize {
        self.open = self.open.max(now.0 / WIDTH + 1);
        let sorted_now = self.open_slice();
        self.sweep();
        // The positions of a bucket come out only once all of it is sorted.
        let sorted = match self.far.first_key_value() {
            Some((&(bucket, _), _)) if bucket <= self.open => bucket * WIDTH,
            _ => u64::MAX,
        };
        let mut taken = 0;
        let mut forgotten = 0;
        while taken < max && forgotten < SLICE {
            let Some(&(at, seq)) = self.near.first() else { break };
            if at > now || at.0 >= sorted {
                break;
            }
            self.near.pop_first();
            if seq > self.forgotten {
                out.push((at, seq));
                taken += 1;
            } else {
                forgotten += 1;
            }
        }
        sorted_now + forgotten
    }

    /// Sorts some of the positions in open buckets, and returns how many.
    fn open_slice(&mut self) -> usize {
        let mut count = 0;
        while let Some((&key, segment)) = self.far.first_key_value() {
            let more = segment.count as usize;
            if key.0 > self.open || count + more > SLICE {
                break;
            }
            count += more;
            let segment = self.remove_segment(key).expect("it is the first");
            segment.each(|within, seq| {
                if seq > self.forgotten {
                    self.near.insert((Timestamp(key.0 * WIDTH + within), seq));
                }
            });
        }
        count
    }

    /// Drops all positions up to this one. They are never taken any more, and their memory is given back
    /// when their time comes or, a few segments with each call, when a whole segment is forgotten.
    pub(crate) fn forget_through(&mut self, seq: Seq) {
        self.forgotten = self.forgotten.max(seq);
        if self.forgotten >= self.highest {
            self.near.clear();
            self.far.clear();
            (self.far_count, self.far_bytes) = (0, 0);
        }
        self.sweep();
    }

    /// Positions that are due after `now` become due later by as much as `to` is more than `from`, or earlier. A
    /// position that is due already stays due, even if it has not been taken yet.
    pub(crate) fn shift(&mut self, now: Timestamp, from: Duration, to: Duration) {
        let all = std::mem::take(self);
        self.open = all.open;
        self.forgotten = all.forgotten;
        let mut put = |at: Timestamp, seq: Seq| {
            let at = if at <= now { at } else { at - from + to };
            self.insert(seq, at);
        };
        for &(at, seq) in &all.near {
            put(at, seq);
        }
        for (&(bucket, _), segment) in &all.far {
            segment.each(|within, seq| put(Timestamp(bucket * WIDTH + within), seq));
        }
    }

    fn sweep(&mut self) {
        for _ in 0..SWEEP.min(self.far.len()) {
            let found = self.far.range(self.swept..).next();
            let Some((&key, segment)) = found else {
                self.swept = (0, 0);
                return;
            };
            self.swept = (key.0, key.1 + 1);
            if segment.highest <= self.forgotten {
                self.remove_segment(key);
            }
        }
    }

    fn remove_segment(&mut self, key: SegmentKey) -> Option<Segment> {
        let segment = self.far.remove(&key)?;
        self.far_count -= u64::from(segment.count);
        self.far_bytes -= segment.bytes.capacity();
        Some(segment)
    }

    /// How many positions are kept: all that are wanted, and those forgotten of which the memory has not yet
    /// been given back. Zero at once if everything is forgotten.
    pub(crate) fn count(&self) -> u64 {
        self.far_count + self.near.len() as u64
    }

    #[cfg(test)]
    /// Bytes on the heap, about.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        // The nodes of a tree are two thirds full on average.
        let node = |len: usize, size: usize| len * size * 3 / 2;
        node(self.near.len(), size_of::<(Timestamp, Seq)>())
            + node(self.far.len(), size_of::<(SegmentKey, Segment)>())
            + self.far_bytes
    }

    /// `forgotten | near | segments`: of the near positions `count`, then `at | seq` as distances; of the
    /// segments `count`, then `bucket | bytes`, the bucket as the distance from the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.forgotten.0);
        put_varint(out, self.near.len() as u64);
        let mut from = (0u64, 0u64);
        for &(at, seq) in &self.near {
            put_varint(out, at.0 - from.0);
            put_varint(out, zigzag(seq.0.wrapping_sub(from.1) as i64));
            from = (at.0, seq.0);
        }
        put_varint(out, self.far.len() as u64);
        let mut from = 0;
        for (&(bucket, _), segment) in &self.far {
            put_varint(out, bucket - from);
            put_bytes(out, &segment.bytes);
            from = bucket;
        }
    }

    /// Everything is in its bucket again; `take_due` opens those that are near.
    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Due, DecodeError> {
        let overflow = || DecodeError::OutOfRange("time at which something is due");
        let mut due = Due { forgotten: Seq(cursor.varint()?), ..Due::default() };
        let mut from = (0u64, 0u64);
        for _ in 0..cursor.count()? {
            from.0 = from.0.checked_add(cursor.varint()?).ok_or_else(overflow)?;
            from.1 = from.1.wrapping_add_signed(unzigzag(cursor.varint()?));
            due.insert(Seq(from.1), Timestamp(from.0));
        }
        let mut bucket = 0u64;
        for _ in 0..cursor.count()? {
            bucket = bucket.checked_add(cursor.varint()?).ok_or_else(overflow)?;
            let begin = bucket.checked_mul(WIDTH).ok_or_else(overflow)?;
            let mut entries = Cursor::new(cursor.bytes()?);
            let mut seq = 0u64;
            while !entries.is_at_end() {
                let at = begin.checked_add(entries.varint()?).ok_or_else(overflow)?;
                seq = seq.wrapping_add_signed(unzigzag(entries.varint()?));
                due.insert(Seq(seq), Timestamp(at));
            }
        }
        Ok(due)
    }
}

impl Segment {
    fn push(&mut self, within: u64, seq: Seq) {
        // Two numbers take at most twenty bytes.
        if self.bytes.capacity() - self.bytes.len() < 20 {
            self.bytes.reserve_exact(GROWTH);
        }
        put_varint(&mut self.bytes, within);
        put_varint(&mut self.bytes, zigzag(seq.0.wrapping_sub(self.last.0) as i64));
        self.last = seq;
        self.highest = self.highest.max(seq);
        self.count += 1;
    }

    fn each(&self, mut take: impl FnMut(u64, Seq)) {
        let mut cursor = Cursor::new(&self.bytes);
        let mut last = 0u64;
        for _ in 0..self.count {
            let mut number = || cursor.varint().expect("a segment holds all its entries");
            let within = number();
            last = last.wrapping_add_signed(unzigzag(number()));
            take(within, Seq(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        /// From now, in microseconds.
        Insert(u64),
        /// So many that are due within the same bucket.
        Burst(u64, u64),
        Late,
        Wait(u64),
        Take(usize),
        Forget(u64),
        Copy,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => (0u32..40).prop_map(|bits| Op::Insert((1 << bits) + 17)),
            2 => (0u64..60_000_000, 1u64..1_500).prop_map(|(wait, count)| Op::Burst(wait, count)),
            1 => Just(Op::Late),
            5 => (0u64..20_000_000).prop_map(Op::Wait),
            5 => (0usize..700).prop_map(Op::Take),
            2 => (0u64..900).prop_map(Op::Forget),
            1 => Just(Op::Copy),
        ]
    }

    fn copied(due: &Due) -> Due {
        let mut bytes = Vec::new();
        due.encode(&mut bytes);
        let mut cursor = Cursor::new(&bytes);
        let copy = Due::decode(&mut cursor).expect("what was written can be read");
        assert!(cursor.is_at_end());
        copy
    }

    type Plain = BTreeSet<(Timestamp, Seq)>;

    /// Takes as the caller is meant to: until nothing is due at this time.
    fn take_all(due: &mut Due, now: Timestamp, max: usize) -> Vec<(Timestamp, Seq)> {
        let mut out = Vec::new();
        while due.next_at().is_some_and(|at| at <= now) && out.len() < max {
            let before = (due.near.len(), due.far.len());
            due.take_due(now, max - out.len(), &mut out);
            assert_ne!((due.near.len(), due.far.len()), before, "every call gets something done");
        }
        out
    }

    fn compare(due: &Due, plain: &Plain) -> Result<(), TestCaseError> {
        let next = due.next_at();
        prop_assert!(plain.first().is_none_or(|first| next.is_some_and(|next| next <= first.0)));
        prop_assert!(due.count() >= plain.len() as u64);
        let bytes: usize = due.far.values().map(|segment| segment.bytes.capacity()).sum();
        prop_assert_eq!(due.far_bytes, bytes);
        let count: u64 = due.far.values().map(|segment| u64::from(segment.count)).sum();
        prop_assert_eq!(due.far_count, count);
        prop_assert!(due.far.values().all(|segment| segment.count <= SEGMENT && segment.count > 0));
        Ok(())
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(ops in prop::collection::vec(op(), 1..80), start in 0u64..100_000_000) {
            let mut due = Due::default();
            let mut plain = Plain::new();
            let mut now = Timestamp(start);
            let mut next = 1u64;
            let mut forgotten = 0;
            for op in ops {
                let mut insert = |due: &mut Due, at: u64| {
                    // Positions come neither in order nor without gaps.
                    let seq = Seq(next ^ 5);
                    next += 1;
                    due.insert(seq, Timestamp(at));
                    if seq.0 > forgotten {
                        plain.insert((Timestamp(at), seq));
                    }
                };
                match op {
                    Op::Insert(wait) => insert(&mut due, now.0 + wait),
                    Op::Burst(wait, count) => (0..count).for_each(|n| insert(&mut due, now.0 + wait + n * 7 % 1_000)),
                    Op::Late => insert(&mut due, now.0 / 2),
                    Op::Wait(wait) => now.0 += wait,
                    Op::Take(max) => {
                        let expected: Vec<_> =
                            plain.iter().copied().take_while(|&(at, _)| at <= now).take(max).collect();
                        prop_assert_eq!(take_all(&mut due, now, max), expected.clone());
                        expected.iter().for_each(|one| {
                            plain.remove(one);
                        });
                    }
                    Op::Forget(back) => {
                        forgotten = forgotten.max(next.saturating_sub(back));
                        due.forget_through(Seq(forgotten));
                        plain.retain(|&(_, seq)| seq.0 > forgotten);
                    }
                    Op::Copy => due = copied(&due),
                }
                compare(&due, &plain)?;
            }
            let end = Timestamp(u64::MAX / 2);
            prop_assert_eq!(take_all(&mut due, end, usize::MAX), plain.into_iter().collect::<Vec<_>>());
            prop_assert_eq!((due.count(), due.next_at()), (0, None));
        }

        #[test]
        fn damaged_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(mut due) = Due::decode(&mut Cursor::new(&bytes)) {
                due.take_due(Timestamp(u64::MAX / 2), 10, &mut Vec::new());
            }
        }
    }

    #[test]
    fn a_million_positions_over_a_day_take_less_than_ten_megabytes() {
        let mut due = Due::default();
        let day = 86_400_000_000u64;
        for n in 1..=1_000_000u64 {
            due.insert(Seq(n), Timestamp(day * 20_000 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % day));
        }
        assert_eq!(due.count(), 1_000_000);
        assert!(due.memory() < 10_000_000, "{} bytes", due.memory());
    }

    #[test]
    fn a_million_positions_due_at_once_are_sorted_in_slices() {
        let mut due = Due::default();
        for n in 1..=1_000_000u64 {
            due.insert(Seq(n), Timestamp(80_000_000 + n % 1_000));
        }
        let now = Timestamp(80_000_000);
        let (mut out, mut calls) = (Vec::new(), 0);
        while due.next_at().is_some_and(|at| at <= now) {
            let before = due.near.len() + out.len();
            due.take_due(now, 100, &mut out);
            assert!(due.near.len() + out.len() - before <= SLICE);
            calls += 1;
        }
        assert!(calls < 2_100, "{calls} calls");
        assert_eq!(out.len(), 1_000);
        assert!(out.iter().zip(1..).all(|(&(at, seq), n)| at == now && seq == Seq(n * 1_000)));
    }

    #[test]
    fn everything_may_become_due_earlier_or_later() {
        let mut due = Due::default();
        let seconds = Duration::from_secs;
        for n in 1..=1_000u64 {
            due.insert(Seq(n), Timestamp(900_000_000 + n * 100_000));
        }
        due.forget_through(Seq(10));
        let mut out = Vec::new();
        due.shift(Timestamp(0), seconds(900), seconds(2));
        due.take_due(Timestamp(2_000_000 + 20 * 100_000), 100, &mut out);
        assert_eq!(out.iter().map(|(_, seq)| seq.0).collect::<Vec<_>>(), (11..=20).collect::<Vec<_>>());
        due.shift(Timestamp(4_000_000), seconds(2), seconds(30));
        out.clear();
        due.take_due(Timestamp(20_000_000), 100, &mut out);
        assert!(out.is_empty(), "what waits waits longer");
        while due.next_at().is_some_and(|at| at <= Timestamp(200_000_000)) {
            due.take_due(Timestamp(200_000_000), 100, &mut out);
        }
        assert_eq!(out.len(), 980);
        assert_eq!(out[0], (Timestamp(30_000_000 + 21 * 100_000), Seq(21)));
    }

    #[test]
    fn what_is_forgotten_gives_its_memory_back() {
        let mut due = Due::default();
        for n in 1..=100_000u64 {
            due.insert(Seq(n), Timestamp(1_000_000_000 + n * 10_000));
        }
        due.forget_through(Seq(99_000));
        for _ in 0..100 {
            due.forget_through(Seq(99_000));
        }
        assert!(due.count() < 2_000 && due.memory() < 40_000, "{} in {} bytes", due.count(), due.memory());
        due.forget_through(Seq(100_000));
        assert_eq!((due.count(), due.memory(), due.next_at()), (0, 0, None));
    }
}
