//! The accounts: the fate of every single order.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::plan::Trouble;
use crate::units;

/// The record of one order. Orders are numbered from 0.
#[derive(Debug, Clone, Copy, Default)]
struct Order {
    /// The server has answered that it is stored.
    stored: bool,
    /// How often a worker has said that it is billed.
    billed: u32,
}

/// The counts so far, for the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Orders that are stored.
    pub(super) published: u64,
    /// Of which some were sent twice.
    pub(super) copies: u64,
    /// Orders that were billed.
    pub(super) processed: u64,
    /// Billed once more.
    pub(super) again: u64,
    pub(super) retried: u64,
    /// Orders that workers have set aside.
    pub(super) refused: u64,
    /// Orders, or copies, that could not be published.
    pub(super) not_stored: u64,
    /// Workers have spoken of orders that were never sent.
    pub(super) unknown: u64,
}

#[derive(Debug, Default)]
struct Book {
    orders: Vec<Order>,
    counts: Counts,
}

/// Written by producers and by the tasks that listen to workers. The lock protects counts and a list, and is held
/// for a few instructions.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Book>>);

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new order, which is about to be sent.
    pub(super) fn open(&self) -> u64 {
        let mut book = self.book();
        book.orders.push(Order::default());
        book.orders.len() as u64 - 1
    }

    /// The server has it.
    pub(super) fn stored(&self, order: u64) {
        let mut book = self.book();
        let book = &mut *book;
        let Some(of) = book.orders.get_mut(order as usize) else { return };
        match std::mem::replace(&mut of.stored, true) {
            false => book.counts.published += 1,
            true => book.counts.copies += 1,
        }
    }

    pub(super) fn not_stored(&self) {
        self.book().counts.not_stored += 1;
    }

    /// A worker has billed it, and will ack it next.
    pub(super) fn billed(&self, order: u64) {
        let mut book = self.book();
        let book = &mut *book;
        let Some(of) = book.orders.get_mut(order as usize) else {
            book.counts.unknown += 1;
            return;
        };
        of.billed += 1;
        match of.billed {
            1 => book.counts.processed += 1,
            _ => book.counts.again += 1,
        }
    }

    pub(super) fn retried(&self) {
        self.book().counts.retried += 1;
    }

    pub(super) fn refused(&self) {
        self.book().counts.refused += 1;
    }

    pub(super) fn counts(&self) -> Counts {
        self.book().counts
    }

    /// Closes the accounts with the server's figures at the end.
    pub(super) fn close(&self, last_seq: u64, waiting: u64, parked: &BTreeSet<u64>) -> Accounts {
        let book = self.book();
        let stored = || (0..).zip(&book.orders).filter(|(_, order)| order.stored);
        let missing = |number: &u64, order: &Order| order.billed == 0 && !parked.contains(number);
        let is_poison = |number: &u64| Trouble::of(*number).poison;
        Accounts {
            counts: book.counts,
            last_seq,
            waiting,
            parked: parked.len() as u64,
            lost: stored().filter(|(number, order)| missing(number, order)).count() as u64,
            poison: stored().filter(|(number, _)| is_poison(number)).count() as u64,
            parked_for_nothing: parked.iter().filter(|number| !is_poison(number)).count() as u64,
        }
    }
}

/// The totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accounts {
    pub(super) counts: Counts,
    /// Messages that the stream holds, or held.
    last_seq: u64,
    /// Messages that are neither settled nor parked.
    waiting: u64,
    parked: u64,
    /// Stored, but neither billed nor parked.
    lost: u64,
    poison: u64,
    parked_for_nothing: u64,
}

impl Accounts {
    /// Copies that the server recognised and did not store.
    fn dropped(&self) -> u64 {
        (self.counts.published + self.counts.copies).saturating_sub(self.last_seq)
    }

    /// Where they do not add up.
    pub(super) fn problems(&self) -> Vec<String> {
        let counts = &self.counts;
        let mut problems = Vec::new();
        let mut check = |fine: bool, problem: String| {
            if !fine {
                problems.push(problem);
            }
        };
        let orders = |count| units::of(count, "order");
        check(self.lost == 0, format!("{} lost", orders(self.lost)));
        check(self.waiting == 0, format!("{} never came to an end", orders(self.waiting)));
        check(
            self.dropped() == counts.copies,
            format!("{} were sent twice, and {} were dropped", counts.copies, self.dropped()),
        );
        check(
            self.poison == self.parked && self.parked_for_nothing == 0,
            format!("{} poisoned, and {} parked", orders(self.poison), self.parked),
        );
        check(counts.not_stored == 0, format!("{} could not be published", orders(counts.not_stored)));
        check(counts.unknown == 0, format!("{} came from nowhere", orders(counts.unknown)));
        problems
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let counts = &self.counts;
        [
            ("published", counts.published, "orders, each with an id of its own"),
            ("duplicates dropped", self.dropped(), "sent twice, stored once"),
            ("processed", counts.processed, ""),
            ("processed again", counts.again, "done, but the ack did not survive a kill"),
            ("retried", counts.retried, "failed at first, went well later"),
            ("parked", self.parked, "poison, set aside with the reason"),
            ("lost", self.lost, ""),
        ]
        .map(|(name, count, about)| {
            format!("{name:>18}  {:>8}  {about}", units::count(count)).trim_end().to_owned()
        })
        .into()
    }

    pub(super) fn json(&self) -> Value {
        let counts = &self.counts;
        json!({
            "published": counts.published,
            "duplicates_dropped": self.dropped(),
            "processed": counts.processed,
            "processed_again": counts.again,
            "retried": counts.retried,
            "parked": self.parked,
            "lost": self.lost,
            "problems": self.problems(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run without any mistake: the 17th order is poison, the 7th and the 57th are sent twice.
    fn good() -> (Ledger, BTreeSet<u64>) {
        let ledger = Ledger::default();
        for _ in 0..100 {
            let order = ledger.open();
            ledger.stored(order);
            let trouble = Trouble::of(order);
            if trouble.copied {
                ledger.stored(order);
            }
            if !trouble.poison {
                ledger.billed(order);
            }
        }
        (ledger, BTreeSet::from([17]))
    }

    #[test]
    fn a_good_run_adds_up() {
        let (ledger, parked) = good();
        ledger.billed(3);
        let accounts = ledger.close(100, 0, &parked);
        assert_eq!(accounts.problems(), Vec::<String>::new());
        let expected = json!({"published": 100, "duplicates_dropped": 2, "processed": 99, "processed_again": 1,
                              "retried": 0, "parked": 1, "lost": 0, "problems": []});
        assert_eq!(accounts.json(), expected);
    }

    #[test]
    fn whatever_is_missing_or_too_much_is_noticed() {
        let problems = |change: &dyn Fn(&Ledger), last_seq, waiting, parked: &[u64]| {
            let (ledger, _) = good();
            change(&ledger);
            ledger.close(last_seq, waiting, &parked.iter().copied().collect()).problems()
        };
        let nothing = |_: &Ledger| {};
        let one_more = |ledger: &Ledger| ledger.stored(ledger.open());
        assert_eq!(problems(&one_more, 101, 0, &[17]), ["1 order lost"]);
        assert_eq!(problems(&nothing, 100, 0, &[]), ["1 order lost", "1 order poisoned, and 0 parked"]);
        assert_eq!(problems(&nothing, 100, 0, &[17, 18]), ["1 order poisoned, and 2 parked"]);
        assert_eq!(problems(&nothing, 100, 3, &[17]), ["3 orders never came to an end"]);
        assert_eq!(problems(&nothing, 102, 0, &[17]), ["2 were sent twice, and 0 were dropped"]);
        assert_eq!(problems(&|ledger| ledger.billed(4_711), 100, 0, &[17]), ["1 order came from nowhere"]);
        assert_eq!(problems(&Ledger::not_stored, 100, 0, &[17]), ["1 order could not be published"]);
    }
}
