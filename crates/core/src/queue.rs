//! The positions of one key, in order.
//!
//! Most keys have one or two messages waiting and a few have a million, and there may be millions of keys.
//! So up to four positions are kept in the queue itself, which then has nothing on the heap, and more of
//! them in a set of positions, at a few bytes for a run or a bit each.

use crate::seqset::SeqSet;
use crate::types::{Seq, SeqRange};

const INLINE_MAX: usize = 4;
/// A set that has become as small as this is given up. Less than fit inline, so that a queue whose length
/// goes up and down by one does not change its form each time.
const SET_MIN: u64 = 2;

#[derive(Debug, Clone)]
pub(crate) enum Queue {
    /// The first `len` are the positions, sorted.
    Inline {
        len: u8,
        seqs: [Seq; INLINE_MAX],
    },
    Set(Box<SeqSet>),
}

const _: () = assert!(size_of::<Queue>() <= 40);
const _: () = assert!(SET_MIN < INLINE_MAX as u64);

impl Default for Queue {
    fn default() -> Queue {
        Queue::Inline { len: 0, seqs: [Seq::START; INLINE_MAX] }
    }
}

impl Queue {
    /// Adds a position and says whether it was not there before.
    pub(crate) fn insert(&mut self, seq: Seq) -> bool {
        let (len, seqs) = match self {
            Queue::Set(set) => return set.insert(SeqRange::one(seq)) > 0,
            Queue::Inline { len, seqs } => (len, seqs),
        };
        let count = usize::from(*len);
        let Err(at) = seqs[..count].binary_search(&seq) else { return false };
        if count < INLINE_MAX {
            seqs.copy_within(at..count, at + 1);
            seqs[at] = seq;
            *len += 1;
        } else {
            let all = seqs.iter().copied().chain([seq]).map(SeqRange::one);
            *self = Queue::Set(Box::new(all.collect()));
        }
        true
    }

    /// Takes a position out and says whether it was there.
    pub(crate) fn remove(&mut self, seq: Seq) -> bool {
        match self {
            Queue::Inline { len, seqs } => {
                let count = usize::from(*len);
                let Ok(at) = seqs[..count].binary_search(&seq) else { return false };
                seqs.copy_within(at + 1..count, at);
                *len -= 1;
                true
            }
            Queue::Set(set) => {
                let removed = set.remove(SeqRange::one(seq)) > 0;
                self.give_up_small_set();
                removed
            }
        }
    }

    /// Takes out all positions before this one.
    pub(crate) fn remove_before(&mut self, seq: Seq) {
        if let Queue::Set(set) = self {
            if let Some(before) = seq.0.checked_sub(1) {
                set.remove(SeqRange::new(Seq::START, Seq(before)));
            }
            self.give_up_small_set();
            return;
        }
        while let Some(first) = self.first().filter(|&first| first < seq) {
            self.remove(first);
        }
    }

    fn give_up_small_set(&mut self) {
        if let Queue::Set(set) = self
            && set.count() <= SET_MIN
        {
            let mut small = Queue::default();
            for seq in set.runs().flat_map(|run| run.seqs()) {
                small.insert(seq);
            }
            *self = small;
        }
    }

    pub(crate) fn contains(&self, seq: Seq) -> bool {
        match self {
            Queue::Inline { .. } => self.inline().binary_search(&seq).is_ok(),
            Queue::Set(set) => set.contains(seq),
        }
    }

    pub(crate) fn first(&self) -> Option<Seq> {
        match self {
            Queue::Inline { .. } => self.inline().first().copied(),
            Queue::Set(set) => set.first(),
        }
    }

    /// The first position after `seq`, which need not be in the queue itself.
    pub(crate) fn next_after(&self, seq: Seq) -> Option<Seq> {
        match self {
            Queue::Inline { .. } => self.inline().iter().copied().find(|&other| other > seq),
            Queue::Set(set) => set.first_from(seq.next()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Queue::Inline { len, .. } => u64::from(*len),
            Queue::Set(set) => set.count(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[cfg(test)]
    /// Bytes on the heap, about, on top of the queue itself.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        match self {
            Queue::Inline { .. } => 0,
            Queue::Set(set) => size_of::<SeqSet>() + set.memory(),
        }
    }

    fn inline(&self) -> &[Seq] {
        match self {
            Queue::Inline { len, seqs } => &seqs[..usize::from(*len)],
            Queue::Set(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(ops in prop::collection::vec((0u8..8, 0u64..12, 0u64..2), 1..200)) {
            let mut queue = Queue::default();
            let mut plain = BTreeSet::new();
            for (what, seq, far) in ops {
                let seq = Seq(seq + far * 4_090);
                match what {
                    0..4 => prop_assert_eq!(queue.insert(seq), plain.insert(seq)),
                    4..7 => prop_assert_eq!(queue.remove(seq), plain.remove(&seq)),
                    _ => {
                        queue.remove_before(seq);
                        plain = plain.split_off(&seq);
                    }
                }
                prop_assert_eq!(queue.first(), plain.first().copied());
                prop_assert_eq!(queue.next_after(seq), plain.range(seq.next()..).next().copied());
                prop_assert_eq!(queue.next_after(Seq(6)), plain.range(Seq(7)..).next().copied());
                prop_assert_eq!(queue.contains(seq), plain.contains(&seq));
                prop_assert_eq!((queue.len(), queue.is_empty()), (plain.len() as u64, plain.is_empty()));
                prop_assert!(queue.memory() == 0 || queue.len() > SET_MIN);
                prop_assert!(queue.memory() > 0 || queue.len() <= INLINE_MAX as u64);
            }
        }
    }

    #[test]
    fn a_long_queue_is_a_set_and_becomes_small_again() {
        let mut queue = Queue::default();
        (1..=100_000).for_each(|n| assert!(queue.insert(Seq(n * 3))));
        assert!((30_000..80_000).contains(&queue.memory()), "{} bytes", queue.memory());
        assert_eq!(queue.next_after(Seq(3)), Some(Seq(6)));
        (1..=100_000).for_each(|n| assert!(queue.remove(Seq(n * 3))));
        assert_eq!((queue.memory(), queue.first()), (0, None));
    }
}
