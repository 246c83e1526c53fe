//! How large a stream's messages are and when they were published, in a bounded number of buckets.
//!
//! A bucket covers neighbouring positions: up to 256 of them, published within a tenth of a second, or
//! more if they came in one batch. Of each it keeps the first position, the bytes of everything before it,
//! and the latest time; the rest follows from its neighbour. So a question costs a binary search and a
//! publish some nanoseconds. When there are too many buckets, the older half is merged in pairs, a few at
//! a time: old messages are then known less finely, and nothing is ever known wrongly.
//!
//! Times never go back: where the clock did, between two runs of a server, messages count as published at
//! the latest time seen so far.

use std::collections::VecDeque;
use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::types::{Seq, SeqRange, Timestamp};

/// Messages in a bucket, if they did not come in one batch.
const COUNT_MAX: u64 = 256;
/// From the first time in a bucket to the last.
const SPAN_MAX: Duration = Duration::from_millis(100);
const BUCKETS_MAX: usize = 65_536;
/// Pairs merged or buckets moved back when a new one is opened. With four of them a round of both ends with
/// an eighth fewer buckets than it began with, and a publish is held up by some ten nanoseconds.
const STEPS: usize = 4;

#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    /// The buckets are `older` followed by `newer`. Buckets are merged where these two meet, and nowhere
    /// else, because only there a bucket can vanish without all others moving up.
    older: VecDeque<Bucket>,
    newer: VecDeque<Bucket>,
    merging: Merging,
    /// Positions before this are forgotten. Within the first bucket, or at its beginning.
    start: Seq,
    /// The position that comes next, which is the end of the last bucket.
    next: Seq,
    /// Bytes of everything ever pushed, and so the end of the last bucket.
    bytes: u64,
    /// Latest time ever pushed.
    latest: Timestamp,
    /// First time in the last bucket.
    begun: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    first: Seq,
    /// Of everything before it.
    bytes: u64,
    latest: Timestamp,
}

/// The state of merging when there are too many buckets.
#[derive(Debug, Clone, Copy, Default)]
enum Merging {
    #[default]
    Not,
    /// So many pairs move, as one bucket each, from `newer` to `older`.
    Pairs(usize),
    /// The buckets of `older` move back, so that the next round begins with the oldest again.
    Back,
}

impl Timeline {
    /// Adds messages that were published together; each push begins where the one before it ended.
    pub(crate) fn push(&mut self, first: Seq, count: u64, bytes: u64, at: Timestamp) {
        if count == 0 {
            return;
        }
        if self.is_empty() {
            self.start = first;
        } else {
            assert!(first == self.next, "messages come in the order of their positions");
        }
        self.latest = self.latest.max(at);
        match self.newer.back_mut() {
            Some(open)
                if first.0 - open.first.0 + count <= COUNT_MAX
                    && self.latest.since(self.begun) <= SPAN_MAX =>
            {
                open.latest = self.latest;
            }
            _ => self.open(first),
        }
        self.next = first.plus(count);
        self.bytes += bytes;
    }

    fn open(&mut self, first: Seq) {
        self.begun = self.latest;
        self.newer.push_back(Bucket { first, bytes: self.bytes, latest: self.latest });
        if self.len() >= BUCKETS_MAX && matches!(self.merging, Merging::Not) {
            self.merging = Merging::Pairs(BUCKETS_MAX / 4);
        }
        for _ in 0..STEPS {
            self.merge_step();
        }
    }

    fn merge_step(&mut self) {
        match self.merging {
            Merging::Not => {}
            // The newest bucket may still grow, and stays where it is.
            Merging::Pairs(left) if left > 0 && self.newer.len() > 2 => {
                let first = self.newer.pop_front().expect("there are more than two");
                let second = self.newer.pop_front().expect("there are more than two");
                self.older.push_back(Bucket { latest: second.latest, ..first });
                self.merging = Merging::Pairs(left - 1);
            }
            Merging::Pairs(_) => self.merging = Merging::Back,
            Merging::Back => match self.older.pop_back() {
                Some(bucket) => self.newer.push_front(bucket),
                None => {
                    self.older = VecDeque::new();
                    self.merging = Merging::Not;
                }
            },
        }
    }

    /// Forgets everything before `seq`.
    pub(crate) fn forget_before(&mut self, seq: Seq) {
        if self.is_empty() || seq <= self.start {
            return;
        }
        self.start = seq.min(self.next);
        while self.get(0).is_some() && self.get(1).map_or(self.next, |second| second.first) <= self.start {
            if self.older.pop_front().is_none() {
                self.newer.pop_front();
            }
        }
        for half in [&mut self.older, &mut self.newer] {
            if half.len() < half.capacity() / 4 {
                half.shrink_to(half.len() * 2);
            }
        }
    }

    /// The positions that are kept, or `None` if there are none.
    pub(crate) fn range(&self) -> Option<SeqRange> {
        (!self.is_empty()).then(|| SeqRange::new(self.start, Seq(self.next.0 - 1)))
    }

    /// Bytes of the messages in the range, as far as they are kept. Exact from bucket to bucket; inside one
    /// all messages count as equally large.
    pub(crate) fn bytes(&self, range: SeqRange) -> u64 {
        let Some(range) = self.range().and_then(|kept| kept.overlap(range)) else { return 0 };
        self.bytes_before(range.last.next()) - self.bytes_before(range.first)
    }

    #[cfg(test)]
    /// Bytes of everything that is kept.
    #[cfg(test)]
    pub(crate) fn total_bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { self.bytes - self.bytes_before(self.start) }
    }

    /// When the message was published, or somewhat later, never earlier: the latest time in its bucket, so
    /// that nothing expires early.
    pub(crate) fn at(&self, seq: Seq) -> Option<Timestamp> {
        self.range()?.contains(seq).then(|| self.holding(seq).0.latest)
    }

    /// The same, with the first position after it of which it need not be so.
    pub(crate) fn around(&self, seq: Seq) -> Option<(Timestamp, Seq)> {
        self.range()?.contains(seq).then(|| {
            let (bucket, end, _) = self.holding(seq);
            (bucket.latest, end)
        })
    }

    /// A position with no message before it that was published at `time` or later, and few earlier messages
    /// after it.
    pub(crate) fn first_at_or_after(&self, time: Timestamp) -> Option<Seq> {
        let index = self.partition_point(|bucket| bucket.latest < time);
        self.get(index).map(|bucket| bucket.first.max(self.start))
    }

    /// The last kept position of which it is certain that it was published before `time`, and so was
    /// everything before it.
    pub(crate) fn last_before(&self, time: Timestamp) -> Option<Seq> {
        let index = self.partition_point(|bucket| bucket.latest < time);
        let end = self.get(index).map_or(self.next, |bucket| bucket.first);
        (index > 0).then(|| Seq(end.0 - 1))
    }

    #[cfg(test)]
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        (self.older.capacity() + self.newer.capacity()) * size_of::<Bucket>()
    }

    fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    fn len(&self) -> usize {
        self.older.len() + self.newer.len()
    }

    fn get(&self, index: usize) -> Option<&Bucket> {
        match index.checked_sub(self.older.len()) {
            Some(index) => self.newer.get(index),
            None => self.older.get(index),
        }
    }

    fn partition_point(&self, mut before: impl FnMut(&Bucket) -> bool) -> usize {
        match self.newer.front() {
            Some(newer) if before(newer) => self.older.len() + self.newer.partition_point(before),
            _ => self.older.partition_point(before),
        }
    }

    /// The bucket that holds a position which is kept, and what follows: its end and the bytes before that.
    fn holding(&self, seq: Seq) -> (&Bucket, Seq, u64) {
        let index = self.partition_point(|bucket| bucket.first <= seq);
        let bucket = index.checked_sub(1).and_then(|index| self.get(index)).expect("the position is kept");
        match self.get(index) {
            Some(following) => (bucket, following.first, following.bytes),
            None => (bucket, self.next, self.bytes),
        }
    }

    /// Bytes of everything before a position that is kept or comes next.
    fn bytes_before(&self, seq: Seq) -> u64 {
        if seq == self.next {
            return self.bytes;
        }
        let (bucket, end, bytes) = self.holding(seq);
        let (part, whole) = (seq.0 - bucket.first.0, end.0 - bucket.first.0);
        let share = u128::from(bytes - bucket.bytes) * u128::from(part) / u128::from(whole);
        bucket.bytes + share as u64
    }

    /// `count | bytes | latest | begun | next`, and if there are buckets `first | bytes | start` of the first
    /// one, where the bytes are those before it and the start counts from its first position; then
    /// `count | bytes | latest` of each, the time as the distance from the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        for number in [self.bytes, self.latest.0, self.begun.0, self.next.0] {
            put_varint(out, number);
        }
        let Some(front) = self.get(0) else { return };
        for number in [front.first.0, front.bytes, self.start.0 - front.first.0] {
            put_varint(out, number);
        }
        let mut latest = 0;
        let mut buckets = self.older.iter().chain(&self.newer).peekable();
        while let Some(bucket) = buckets.next() {
            let (end, bytes) = buckets
                .peek()
                .map_or((self.next, self.bytes), |following| (following.first, following.bytes));
            put_varint(out, end.0 - bucket.first.0);
            put_varint(out, bytes - bucket.bytes);
            put_varint(out, bucket.latest.0 - latest);
            latest = bucket.latest.0;
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Timeline, DecodeError> {
        let overflow = || DecodeError::OutOfRange("timeline");
        let count = cursor.count()?;
        if count > BUCKETS_MAX {
            return Err(overflow());
        }
        let mut timeline = Timeline {
            bytes: cursor.varint()?,
            latest: Timestamp(cursor.varint()?),
            begun: Timestamp(cursor.varint()?),
            next: Seq(cursor.varint()?),
            ..Timeline::default()
        };
        timeline.start = timeline.next;
        if count == 0 {
            return Ok(timeline);
        }
        let (mut next, mut bytes, mut latest) = (cursor.varint()?, cursor.varint()?, 0u64);
        let start = next.checked_add(cursor.varint()?).ok_or_else(overflow)?;
        timeline.newer.reserve(count);
        for index in 0..count {
            let (first, before) = (Seq(next), bytes);
            next = next.checked_add(cursor.varint()?.max(1)).ok_or_else(overflow)?;
            bytes = bytes.checked_add(cursor.varint()?).ok_or_else(overflow)?;
            latest = latest.checked_add(cursor.varint()?).ok_or_else(overflow)?;
            timeline.newer.push_back(Bucket { first, bytes: before, latest: Timestamp(latest) });
            if index == 0 && start >= next {
                return Err(DecodeError::Contradiction("a timeline begins in its first bucket"));
            }
        }
        if (next, bytes) != (timeline.next.0, timeline.bytes) || latest > timeline.latest.0 {
            return Err(DecodeError::Contradiction("a timeline ends where its last bucket ends"));
        }
        timeline.start = Seq(start);
        Ok(timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Push { count: u64, size: u64, wait: i64 },
        Forget(u64),
        Copy,
    }

    fn op() -> impl Strategy<Value = Op> {
        let count = prop_oneof![4 => Just(1u64), 2 => 1u64..40, 1 => 200u64..600];
        let wait = prop_oneof![4 => 0i64..2_000, 1 => 0i64..200_000, 1 => -3_000_000i64..0];
        prop_oneof![
            20 => (count, 0u64..5_000, wait).prop_map(|(count, size, wait)| Op::Push { count, size, wait }),
            2 => (0u64..700).prop_map(Op::Forget),
            1 => Just(Op::Copy),
        ]
    }

    fn copied(timeline: &Timeline) -> Timeline {
        let mut bytes = Vec::new();
        timeline.encode(&mut bytes);
        let mut cursor = Cursor::new(&bytes);
        let copy = Timeline::decode(&mut cursor).expect("what was written can be read");
        assert!(cursor.is_at_end());
        let mut again = Vec::new();
        copy.encode(&mut again);
        assert_eq!(again, bytes);
        copy
    }

    /// The kept messages, one by one: position, size, true time, and the latest time up to there.
    struct Plain(VecDeque<(u64, u64, u64, u64)>);

    impl Plain {
        fn compare(&self, timeline: &Timeline) -> Result<(), TestCaseError> {
            prop_assert_eq!(
                timeline.range().map(|range| (range.first.0, range.last.0)),
                self.0.front().zip(self.0.back()).map(|(first, last)| (first.0, last.0))
            );
            // From bucket to bucket the bytes are exact.
            let buckets: Vec<Bucket> = timeline.older.iter().chain(&timeline.newer).copied().collect();
            for bucket in buckets.iter().skip(1) {
                let range = SeqRange::new(bucket.first, Seq(u64::MAX - 1));
                let sum = self.0.iter().filter(|one| one.0 >= bucket.first.0).map(|one| one.1).sum::<u64>();
                prop_assert_eq!(timeline.bytes(range), sum);
            }
            for (at, one) in self.0.iter().enumerate().step_by(7) {
                let told = timeline.at(Seq(one.0)).expect("it is kept").0;
                prop_assert!(told >= one.3);
                // It is late by a tenth of a second at most, or by the rest of the same batch.
                prop_assert!(told <= one.3 + 100_000);
                for time in [one.2, one.3, one.3 + 1, one.3.saturating_sub(50_000)] {
                    let first = timeline.first_at_or_after(Timestamp(time));
                    let begin = first.map_or(u64::MAX, |first| first.0);
                    prop_assert!(self.0.iter().all(|other| other.2 < time || other.0 >= begin));
                    let last = timeline.last_before(Timestamp(time)).map_or(0, |last| last.0);
                    prop_assert!(self.0.iter().all(|other| other.2 < time || other.0 > last));
                }
                let (head, tail) = (self.0[0].0, self.0[self.0.len() - 1].0);
                let middle = self.0[at].0;
                let parts = timeline.bytes(SeqRange::new(Seq(head), Seq(middle)))
                    + if middle < tail {
                        timeline.bytes(SeqRange::new(Seq(middle + 1), Seq(tail)))
                    } else {
                        0
                    };
                prop_assert_eq!(parts, timeline.total_bytes());
            }
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_plain_messages(ops in prop::collection::vec(op(), 1..150)) {
            let mut timeline = Timeline::default();
            let mut plain = Plain(VecDeque::new());
            let (mut next, mut clock, mut latest) = (1, 5_000_000u64, 0);
            for op in ops {
                match op {
                    Op::Push { count, size, wait } => {
                        clock = clock.saturating_add_signed(wait);
                        latest = clock.max(latest);
                        // Sizes differ inside a batch, of which only the sum is told.
                        let sizes: Vec<u64> = (0..count).map(|n| size + n % 3).collect();
                        timeline.push(Seq(next), count, sizes.iter().sum(), Timestamp(clock));
                        for size in sizes {
                            plain.0.push_back((next, size, clock, latest));
                            next += 1;
                        }
                    }
                    Op::Forget(count) => {
                        let before = plain.0.front().map_or(0, |one| one.0) + count;
                        timeline.forget_before(Seq(before));
                        plain.0.retain(|one| one.0 >= before);
                    }
                    Op::Copy => timeline = copied(&timeline),
                }
            }
            plain.compare(&timeline)?;
        }

        #[test]
        fn bytes_of_equal_messages_are_exact(
            batches in prop::collection::vec((1u64..400, 0u64..50_000), 1..60),
            size in 0u64..100_000,
            forget in 0u64..2_000,
            probes in prop::collection::vec((1u64..10_000, 0u64..3_000), 20),
        ) {
            let mut timeline = Timeline::default();
            let (mut next, mut clock) = (1, 0);
            for (count, wait) in batches {
                clock += wait;
                timeline.push(Seq(next), count, count * size, Timestamp(clock));
                next += count;
            }
            timeline.forget_before(Seq(forget));
            let start = forget.clamp(1, next);
            prop_assert_eq!(timeline.total_bytes(), (next - start) * size);
            for (first, more) in probes {
                let count = (first + more + 1).min(next).saturating_sub(first.max(start));
                prop_assert_eq!(timeline.bytes(SeqRange::new(Seq(first), Seq(first + more))), count * size);
            }
        }

        #[test]
        fn damaged_bytes_are_refused_or_make_some_timeline(bytes in prop::collection::vec(0u8..20, 0..60)) {
            if let Ok(timeline) = Timeline::decode(&mut Cursor::new(&bytes)) {
                let _ = (timeline.total_bytes(), timeline.range().map(|range| timeline.bytes(range)));
            }
        }
    }

    #[test]
    fn the_number_of_buckets_is_bounded_and_old_ones_become_coarse() {
        let mut timeline = Timeline::default();
        let count = 400_000u64;
        for n in 0..count {
            timeline.push(Seq(n + 1), 1, 100, Timestamp(n * 200_000));
            assert!(timeline.len() <= BUCKETS_MAX);
            if n % 9_973 == 0 {
                assert_eq!(timeline.total_bytes(), (n + 1) * 100);
                assert_eq!(timeline.bytes(SeqRange::new(Seq(n / 2 + 1), Seq(n + 1))), (n + 1 - n / 2) * 100);
                assert_eq!(timeline.at(Seq(n + 1)), Some(Timestamp(n * 200_000)));
                let old = timeline.at(Seq(n / 3 + 1)).expect("it is kept").0;
                assert!(old >= n / 3 * 200_000);
            }
        }
        assert!(timeline.memory() <= BUCKETS_MAX * 2 * 32, "{} bytes", timeline.memory());
        let firsts: Vec<Seq> =
            timeline.older.iter().chain(&timeline.newer).map(|bucket| bucket.first).collect();
        assert!(firsts.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(
            firsts.windows(2).rev().take(30_000).all(|pair| pair[0].next() == pair[1]),
            "new ones are fine"
        );
        let copy = copied(&timeline);
        assert_eq!(copy.first_at_or_after(Timestamp(count * 199_999)), Some(Seq(count - 1)));
        timeline.forget_before(Seq(count - 10));
        assert_eq!(timeline.total_bytes(), 1_100);
        assert!(timeline.memory() < 4_096, "{} bytes", timeline.memory());
    }
}
