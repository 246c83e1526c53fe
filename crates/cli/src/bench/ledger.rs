//! The fate of every message of one producer, in two bits each: whether it was confirmed, and whether it was
//! delivered.
//!
//! Finished messages are forgotten from the front, so the ledger is as long as the range of messages under way, not
//! as long as the run.

use std::collections::VecDeque;

const BITS: u64 = u64::BITS as u64;

/// The kind of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    First,
    Again,
    /// It was never sent.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// How many messages were sent. They are numbered from 0.
    sent: u64,
    /// Words that were forgotten: all of their messages are done with.
    forgotten: u64,
    words: VecDeque<Word>,
}

/// 64 messages.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    confirmed: u64,
    delivered: u64,
}

impl Ledger {
    /// The next so many messages are about to be sent.
    pub(super) fn send(&mut self, count: u64) {
        self.sent += count;
    }

    pub(super) fn confirm(&mut self, first: u64, count: u64) {
        self.mark(first, count, |word, bits| word.confirmed |= bits);
    }

    /// These were not stored and will not come.
    pub(super) fn refuse(&mut self, first: u64, count: u64) {
        self.mark(first, count, |word, bits| {
            word.confirmed |= bits;
            word.delivered |= bits;
        });
    }

    pub(super) fn deliver(&mut self, number: u64) -> Delivery {
        if number >= self.sent {
            return Delivery::Unknown;
        }
        let Some(index) = (number / BITS).checked_sub(self.forgotten) else { return Delivery::Again };
        let bit = 1 << (number % BITS);
        let word = self.word(index);
        if word.delivered & bit != 0 {
            return Delivery::Again;
        }
        word.delivered |= bit;
        self.forget();
        Delivery::First
    }

    /// Messages that were confirmed and never came.
    pub(super) fn missing(&self) -> u64 {
        self.words.iter().map(|word| u64::from((word.confirmed & !word.delivered).count_ones())).sum()
    }

    fn mark(&mut self, first: u64, count: u64, set: impl Fn(&mut Word, u64)) {
        assert!(first + count <= self.sent, "only sent messages are confirmed");
        for index in first / BITS..(first + count).div_ceil(BITS) {
            let (from, to) = (first.max(index * BITS), (first + count).min((index + 1) * BITS));
            if let Some(index) = index.checked_sub(self.forgotten).filter(|_| from < to) {
                let bits = u64::MAX >> (BITS - (to - from)) << (from % BITS);
                set(self.word(index), bits);
            }
        }
        self.forget();
    }

    fn word(&mut self, index: u64) -> &mut Word {
        let index = index as usize;
        if self.words.len() <= index {
            self.words.resize(index + 1, Word::default());
        }
        &mut self.words[index]
    }

    fn forget(&mut self) {
        while self.words.front().is_some_and(|word| word.confirmed & word.delivered == u64::MAX) {
            self.words.pop_front();
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: u64) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.send(count);
        ledger
    }

    #[test]
    fn what_comes_once_is_forgotten_and_what_comes_again_is_not_taken_for_new() {
        let mut ledger = sent(1_000);
        for number in (0..1_000).rev() {
            assert_eq!(ledger.deliver(number), Delivery::First);
        }
        for batch in 0..10 {
            ledger.confirm(batch * 100, 100);
        }
        assert_eq!((ledger.missing(), ledger.words.len()), (0, 1), "the last word is not full");
        assert_eq!(ledger.deliver(3), Delivery::Again);
        assert_eq!(ledger.deliver(999), Delivery::Again);
        assert_eq!(ledger.deliver(1_000), Delivery::Unknown);
        assert_eq!(ledger.deliver(u64::MAX), Delivery::Unknown);
    }

    #[test]
    fn exactly_what_was_confirmed_and_did_not_come_is_missing() {
        let mut ledger = sent(300);
        ledger.confirm(0, 200);
        for number in (0..200).filter(|number| *number != 70) {
            ledger.deliver(number);
        }
        assert_eq!(ledger.missing(), 1);
        // It is unknown whether these were stored; one that is delivered does not make up for another.
        ledger.deliver(250);
        assert_eq!(ledger.missing(), 1);
        ledger.deliver(70);
        assert_eq!(ledger.missing(), 0);
    }

    #[test]
    fn what_was_refused_is_not_missing_and_must_not_come() {
        let mut ledger = sent(128);
        ledger.refuse(10, 100);
        assert_eq!(ledger.missing(), 0);
        assert_eq!(ledger.deliver(50), Delivery::Again);
        ledger.confirm(0, 10);
        assert_eq!(ledger.missing(), 10);
    }
}
