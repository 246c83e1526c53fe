//! A set of positions that is small whether its members come in long runs or scattered.
//!
//! Positions are kept in chunks of 4,096. A chunk holds a few runs as a sorted list and becomes a bitmap
//! once there are too many of them, so ten million positions in one run take some hundred kilobytes, a
//! lone position a few dozen bytes, and the worst pattern a bit per position and nothing more.

use std::collections::BTreeMap;

use crate::types::{Seq, SeqRange};

const CHUNK_BITS: u32 = 12;
const CHUNK_LAST: u16 = (1 << CHUNK_BITS) - 1;
const WORDS: usize = 1 << (CHUNK_BITS - 6);
/// A list of runs takes four bytes each and a bitmap 512 in all, so this many cost the same.
const RUNS_MAX: usize = 512 / 4;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeqSet {
    chunks: BTreeMap<u64, Chunk>,
    count: u64,
}

impl SeqSet {
    pub fn new() -> SeqSet {
        SeqSet::default()
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn contains(&self, seq: Seq) -> bool {
        let (chunk, bit) = split(seq);
        self.chunks.get(&chunk).is_some_and(|chunk| chunk.contains(bit))
    }

    /// Adds the range and says how many of its positions were not there before.
    pub fn insert(&mut self, range: SeqRange) -> u64 {
        let mut added = 0;
        for (number, first, last) in pieces(range) {
            added += u64::from(self.chunks.entry(number).or_default().insert(first, last));
        }
        self.count += added;
        added
    }

    /// Takes the range out and says how many of its positions were there.
    pub fn remove(&mut self, range: SeqRange) -> u64 {
        let mut removed = 0;
        // Chunks that are absent have nothing to remove, and a range may be far longer than the set.
        let mut next = split(range.first).0;
        let end = split(range.last).0;
        while next <= end {
            let Some((&number, chunk)) = self.chunks.range_mut(next..=end).next() else { break };
            let (first, last) = piece(range, number);
            removed += u64::from(chunk.remove(first, last));
            if chunk.is_empty() {
                self.chunks.remove(&number);
            }
            next = number + 1;
        }
        self.count -= removed;
        removed
    }

    /// How many positions of the range are in the set. Looks at the chunks beyond it.
    pub fn count_in(&self, range: SeqRange) -> u64 {
        let (begin, end) = (split(range.first).0, split(range.last).0);
        let beyond = self.chunks.range(..begin).chain(self.chunks.range(end.saturating_add(1)..));
        let beyond: u64 = beyond.map(|(_, chunk)| u64::from(chunk.count_in(0, CHUNK_LAST))).sum();
        let mut edges = 0;
        for number in [begin, end].into_iter().take(if begin == end { 1 } else { 2 }) {
            if let Some(chunk) = self.chunks.get(&number) {
                let (first, last) = piece(range, number);
                edges += u64::from(chunk.count_in(0, CHUNK_LAST) - chunk.count_in(first, last));
            }
        }
        self.count - beyond - edges
    }

    pub fn first(&self) -> Option<Seq> {
        let (&number, chunk) = self.chunks.first_key_value()?;
        let (first, _) = chunk.run_from(0).expect("a kept chunk is never empty");
        Some(join(number, first))
    }

    /// The first position at `seq` or after it.
    pub fn first_from(&self, seq: Seq) -> Option<Seq> {
        let (number, bit) = split(seq);
        // Only the chunk of `seq` itself can have nothing from there on.
        self.chunks.range(number..).take(2).find_map(|(&at, chunk)| {
            let (first, _) = chunk.run_from(if at == number { bit } else { 0 })?;
            Some(join(at, first))
        })
    }

    /// The first run that ends at `seq` or after it, cut to begin no earlier than `seq`.
    pub fn run_from(&self, seq: Seq) -> Option<SeqRange> {
        let (number, bit) = split(seq);
        let mut found: Option<SeqRange> = None;
        for (&at, chunk) in self.chunks.range(number..) {
            let from = if at == number { bit } else { 0 };
            let Some((first, last)) = chunk.run_from(from) else { continue };
            let piece = SeqRange::new(join(at, first), join(at, last));
            match &mut found {
                None => found = Some(piece),
                Some(run) if run.last.next() == piece.first => run.last = piece.last,
                Some(_) => break,
            }
            if last != CHUNK_LAST {
                break;
            }
        }
        found
    }

    /// The first position at `seq` or after it that is not in the set.
    pub fn gap_from(&self, seq: Seq) -> Seq {
        // Usually the position is not in the set, and a run may be ten million long.
        if !self.contains(seq) {
            return seq;
        }
        self.run_from(seq).map_or(seq, |run| run.last.next())
    }

    /// All runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = SeqRange> + '_ {
        self.runs_from(Seq::START)
    }

    /// The runs from a position on, in order; the first is cut to begin no earlier.
    pub fn runs_from(&self, seq: Seq) -> impl Iterator<Item = SeqRange> + '_ {
        let mut next = Some(seq);
        std::iter::from_fn(move || {
            let run = self.run_from(next?)?;
            next = Some(run.last.next());
            Some(run)
        })
    }

    /// Takes out and returns up to `max` positions from the lowest run.
    pub fn pop_run(&mut self, max: u64) -> Option<SeqRange> {
        let run = self.run_from(Seq::START)?;
        let run = SeqRange::starting(run.first, run.count().min(max));
        self.remove(run);
        Some(run)
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
        self.count = 0;
    }

    /// Bytes on the heap, about. Looks at every chunk.
    pub fn memory(&self) -> usize {
        // The nodes of a tree are two thirds full on average, and one node has room for eleven chunks.
        let entry = size_of::<(u64, Chunk)>();
        let nodes = if self.chunks.is_empty() { 0 } else { (self.chunks.len() * 3 / 2).max(11) * entry };
        nodes + self.chunks.values().map(Chunk::memory).sum::<usize>()
    }
}

impl FromIterator<SeqRange> for SeqSet {
    fn from_iter<I: IntoIterator<Item = SeqRange>>(ranges: I) -> SeqSet {
        let mut set = SeqSet::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

fn split(seq: Seq) -> (u64, u16) {
    (seq.0 >> CHUNK_BITS, (seq.0 & u64::from(CHUNK_LAST)) as u16)
}

fn join(chunk: u64, bit: u16) -> Seq {
    Seq(chunk << CHUNK_BITS | u64::from(bit))
}

/// The part of `range` that falls into the chunk.
fn piece(range: SeqRange, number: u64) -> (u16, u16) {
    let (first_chunk, first) = split(range.first);
    let (last_chunk, last) = split(range.last);
    (if number == first_chunk { first } else { 0 }, if number == last_chunk { last } else { CHUNK_LAST })
}

fn pieces(range: SeqRange) -> impl Iterator<Item = (u64, u16, u16)> {
    (split(range.first).0..=split(range.last).0).map(move |number| {
        let (first, last) = piece(range, number);
        (number, first, last)
    })
}

#[derive(Debug, Clone, PartialEq)]
enum Chunk {
    /// Sorted, never touching each other.
    Runs(Vec<(u16, u16)>),
    Bits(Box<[u64; WORDS]>),
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk::Runs(Vec::new())
    }
}

impl Chunk {
    fn is_empty(&self) -> bool {
        match self {
            Chunk::Runs(runs) => runs.is_empty(),
            Chunk::Bits(words) => words.iter().all(|&word| word == 0),
        }
    }

    fn contains(&self, bit: u16) -> bool {
        match self {
            Chunk::Runs(runs) => {
                let at = runs.partition_point(|&(_, last)| last < bit);
                runs.get(at).is_some_and(|&(first, _)| first <= bit)
            }
            Chunk::Bits(words) => words[usize::from(bit / 64)] & (1 << (bit % 64)) != 0,
        }
    }

    fn count_in(&self, first: u16, last: u16) -> u16 {
        match self {
            Chunk::Runs(runs) => runs.iter().map(|&run| overlap_len(run, (first, last))).sum(),
            Chunk::Bits(words) => (first / 64..=last / 64)
                .map(|at| (words[usize::from(at)] & mask_of(at, first, last)).count_ones() as u16)
                .sum(),
        }
    }

    fn insert(&mut self, first: u16, last: u16) -> u16 {
        let runs = match self {
            Chunk::Bits(words) => return set_bits(words, first, last),
            Chunk::Runs(runs) => runs,
        };
        // All runs that overlap or touch the new one melt into it.
        let from = runs.partition_point(|&(_, l)| u32::from(l) + 1 < u32::from(first));
        let to = runs.partition_point(|&(f, _)| u32::from(f) <= u32::from(last) + 1);
        let covered: u16 = runs[from..to].iter().map(|&(f, l)| overlap_len((f, l), (first, last))).sum();
        let (mut low, mut high) = (first, last);
        if from < to {
            low = low.min(runs[from].0);
            high = high.max(runs[to - 1].1);
        }
        if to - from == 1 {
            runs[from] = (low, high);
        } else {
            runs.splice(from..to, [(low, high)]);
        }
        if runs.len() > RUNS_MAX {
            self.become_bits();
        }
        last - first + 1 - covered
    }

    fn remove(&mut self, first: u16, last: u16) -> u16 {
        let runs = match self {
            Chunk::Bits(words) => return clear_bits(words, first, last),
            Chunk::Runs(runs) => runs,
        };
        let from = runs.partition_point(|&(_, l)| l < first);
        let to = runs.partition_point(|&(f, _)| f <= last);
        if from >= to {
            return 0;
        }
        let covered: u16 = runs[from..to].iter().map(|&(f, l)| overlap_len((f, l), (first, last))).sum();
        let left = (runs[from].0 < first).then(|| (runs[from].0, first - 1));
        let right = (runs[to - 1].1 > last).then(|| (last + 1, runs[to - 1].1));
        runs.splice(from..to, left.into_iter().chain(right));
        if runs.len() > RUNS_MAX {
            self.become_bits();
        }
        covered
    }

    /// The first run that ends at `bit` or after it, cut to begin no earlier than `bit`.
    fn run_from(&self, bit: u16) -> Option<(u16, u16)> {
        match self {
            Chunk::Runs(runs) => {
                let at = runs.partition_point(|&(_, last)| last < bit);
                runs.get(at).map(|&(first, last)| (first.max(bit), last))
            }
            Chunk::Bits(words) => {
                let first = next_bit(words, bit, true)?;
                let last = next_bit(words, first, false).map_or(CHUNK_LAST, |gap| gap - 1);
                Some((first, last))
            }
        }
    }

    fn memory(&self) -> usize {
        match self {
            Chunk::Runs(runs) => runs.capacity() * size_of::<(u16, u16)>(),
            Chunk::Bits(words) => size_of_val(&**words),
        }
    }

    fn become_bits(&mut self) {
        let Chunk::Runs(runs) = self else { return };
        let mut words = Box::new([0; WORDS]);
        for &(first, last) in runs.iter() {
            set_bits(&mut words, first, last);
        }
        *self = Chunk::Bits(words);
    }
}

fn overlap_len(a: (u16, u16), b: (u16, u16)) -> u16 {
    let (first, last) = (a.0.max(b.0), a.1.min(b.1));
    if first <= last { last - first + 1 } else { 0 }
}

/// Calls `change` with each word that the bits fall into and the mask of those bits.
fn each_word(words: &mut [u64; WORDS], first: u16, last: u16, mut change: impl FnMut(&mut u64, u64)) {
    for at in first / 64..=last / 64 {
        change(&mut words[usize::from(at)], mask_of(at, first, last));
    }
}

/// Those of the bits that are in the word `at`.
fn mask_of(at: u16, first: u16, last: u16) -> u64 {
    let low = if at == first / 64 { first % 64 } else { 0 };
    let high = if at == last / 64 { last % 64 } else { 63 };
    (u64::MAX >> (63 - (high - low))) << low
}

fn set_bits(words: &mut [u64; WORDS], first: u16, last: u16) -> u16 {
    let mut added = 0;
    each_word(words, first, last, |word, mask| {
        added += (mask & !*word).count_ones() as u16;
        *word |= mask;
    });
    added
}

fn clear_bits(words: &mut [u64; WORDS], first: u16, last: u16) -> u16 {
    let mut removed = 0;
    each_word(words, first, last, |word, mask| {
        removed += (mask & *word).count_ones() as u16;
        *word &= !mask;
    });
    removed
}

/// The first bit at `from` or after it that is set (or clear).
fn next_bit(words: &[u64; WORDS], from: u16, set: bool) -> Option<u16> {
    let mut at = usize::from(from / 64);
    let mut mask = u64::MAX << (from % 64);
    while at < WORDS {
        let word = if set { words[at] } else { !words[at] } & mask;
        if word != 0 {
            return Some(at as u16 * 64 + word.trailing_zeros() as u16);
        }
        mask = u64::MAX;
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u64, u64),
        Remove(u64, u64),
        Pop(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let start = 1u64..12_000;
        prop_oneof![
            4 => (start.clone(), 0u64..3).prop_map(|(a, n)| Op::Insert(a, a + n)),
            2 => (start.clone(), 0u64..6_000).prop_map(|(a, n)| Op::Insert(a, a + n)),
            2 => (start.clone(), 0u64..3).prop_map(|(a, n)| Op::Remove(a, a + n)),
            1 => (start, 0u64..6_000).prop_map(|(a, n)| Op::Remove(a, a + n)),
            1 => (1u64..50).prop_map(Op::Pop),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_a_plain_set(ops in prop::collection::vec(op(), 1..120), scatter in 0u64..3) {
            let mut set = SeqSet::new();
            let mut plain = BTreeSet::new();
            // Many lone positions drive chunks into their bitmap form.
            for n in 0..scatter * 900 {
                set.insert(SeqRange::one(Seq(1 + n * 2)));
                plain.insert(1 + n * 2);
            }
            for op in ops {
                match op {
                    Op::Insert(a, b) => {
                        let added = set.insert(SeqRange::new(Seq(a), Seq(b)));
                        prop_assert_eq!(added, (a..=b).filter(|&n| plain.insert(n)).count() as u64);
                    }
                    Op::Remove(a, b) => {
                        let removed = set.remove(SeqRange::new(Seq(a), Seq(b)));
                        prop_assert_eq!(removed, (a..=b).filter(|n| plain.remove(n)).count() as u64);
                    }
                    Op::Pop(max) => {
                        if let Some(run) = set.pop_run(max) {
                            prop_assert!(run.count() <= max);
                            for seq in run.seqs() {
                                prop_assert_eq!(plain.pop_first(), Some(seq.0));
                            }
                        }
                    }
                }
                prop_assert_eq!(set.count(), plain.len() as u64);
                prop_assert_eq!(set.first().map(|seq| seq.0), plain.first().copied());
            }
            let members: Vec<u64> = set.runs().flat_map(|run| run.seqs()).map(|seq| seq.0).collect();
            prop_assert_eq!(members, plain.iter().copied().collect::<Vec<_>>());
            let runs: Vec<SeqRange> = set.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].last.next() < pair[1].first));
            for probe in [1u64, 5, 4_095, 4_096, 8_191, 8_192, 11_999] {
                prop_assert_eq!(set.contains(Seq(probe)), plain.contains(&probe));
                let first = set.first_from(Seq(probe)).map(|seq| seq.0);
                prop_assert_eq!(first, plain.range(probe..).next().copied());
                let gap = (probe..).find(|n| !plain.contains(n)).expect("the set is finite");
                prop_assert_eq!(set.gap_from(Seq(probe)), Seq(gap));
                for last in [probe, probe + 70, 9_000, 20_000].into_iter().filter(|last| *last >= probe) {
                    let counted = set.count_in(SeqRange::new(Seq(probe), Seq(last)));
                    prop_assert_eq!(counted, plain.range(probe..=last).count() as u64);
                }
            }
        }
    }

    #[test]
    fn memory_follows_what_is_kept() {
        let mut set = SeqSet::new();
        assert_eq!(set.memory(), 0);
        set.insert(SeqRange::one(Seq(5)));
        assert!(set.memory() < 512, "{} bytes", set.memory());
        set.insert(SeqRange::new(Seq(1), Seq(10_000_000)));
        assert!(set.memory() < 200_000, "{} bytes", set.memory());
        let scattered: SeqSet = (0..500_000).map(|n| SeqRange::one(Seq(n * 2))).collect();
        assert!((125_000..160_000).contains(&scattered.memory()), "{} bytes", scattered.memory());
    }
}
