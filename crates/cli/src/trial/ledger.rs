//! The fate of every message, and when the first one came after a fault.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Timestamp;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    is_confirmed: bool,
    delivered: u32,
}

/// The counts at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) published: u64,
    pub(super) confirmed: u64,
    /// Messages that the client library gave up.
    pub(super) given_up: u64,
    pub(super) delivered: u64,
    /// Further deliveries of messages that had been delivered before.
    pub(super) again: u64,
    /// Messages that were confirmed and never delivered.
    pub(super) lost: u64,
}

/// A fault, and what came first after it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Timestamp,
    /// The first message that was sent after it.
    next: u64,
    /// Whether deliveries count only over connections that were made after it.
    is_for_owner: bool,
    delivery: Option<Duration>,
    confirmation: Option<Duration>,
}

#[derive(Debug, Default)]
struct Book {
    entries: Vec<Entry>,
    given_up: u64,
    unknown: u64,
    mark: Option<Mark>,
}

/// Written by producers and consumers. The lock protects lists and counts, and is held for a few instructions.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Book>>);

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new message, which is about to be sent.
    pub(super) fn open(&self) -> u64 {
        let mut book = self.book();
        book.entries.push(Entry::default());
        book.entries.len() as u64 - 1
    }

    pub(super) fn confirmed(&self, now: Timestamp, number: u64) {
        let mut book = self.book();
        if let Some(entry) = book.entries.get_mut(number as usize) {
            entry.is_confirmed = true;
        }
        if let Some(mark) = book.mark.as_mut().filter(|mark| number >= mark.next) {
            mark.confirmation.get_or_insert(now.since(mark.at));
        }
    }

    pub(super) fn given_up(&self) {
        self.book().given_up += 1;
    }

    /// A message came over a connection that was made at this time. `None`: its body has no number.
    pub(super) fn delivered(&self, now: Timestamp, connected: Timestamp, number: Option<u64>) {
        let mut book = self.book();
        let book = &mut *book;
        let entry = number.and_then(|number| Some((number, book.entries.get_mut(number as usize)?)));
        let Some((number, entry)) = entry else {
            book.unknown += 1;
            return;
        };
        entry.delivered += 1;
        if let Some(mark) = &mut book.mark {
            let is_after = if mark.is_for_owner { connected > mark.at } else { number >= mark.next };
            if is_after {
                mark.delivery.get_or_insert(now.since(mark.at));
            }
        }
    }

    /// A fault happens now.
    pub(super) fn mark(&self, at: Timestamp, is_for_owner: bool) {
        let mut book = self.book();
        let next = book.entries.len() as u64;
        book.mark = Some(Mark { at, next, is_for_owner, delivery: None, confirmation: None });
    }

    /// The times from the last fault to the first delivery and to the first confirmation.
    pub(super) fn after_mark(&self) -> (Option<Duration>, Option<Duration>) {
        self.book().mark.map_or((None, None), |mark| (mark.delivery, mark.confirmation))
    }

    /// Whether every message that was published was confirmed and delivered, or given up.
    pub(super) fn is_complete(&self) -> bool {
        let Counts { published, confirmed, given_up, lost, .. } = self.counts();
        confirmed + given_up == published && lost == 0
    }

    pub(super) fn counts(&self) -> Counts {
        let book = self.book();
        let number = |is: fn(&Entry) -> bool| book.entries.iter().filter(|entry| is(entry)).count() as u64;
        let deliveries: u64 = book.entries.iter().map(|entry| u64::from(entry.delivered)).sum();
        let delivered = number(|entry| entry.delivered > 0);
        Counts {
            published: book.entries.len() as u64,
            confirmed: number(|entry| entry.is_confirmed),
            given_up: book.given_up,
            delivered,
            again: deliveries - delivered,
            lost: number(|entry| entry.is_confirmed && entry.delivered == 0),
        }
    }

    /// Deliveries of messages that were never sent.
    pub(super) fn unknown(&self) -> u64 {
        self.book().unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_confirmed_and_never_delivered_is_lost() {
        let ledger = Ledger::default();
        let at = Timestamp;
        for _ in 0..3 {
            ledger.open();
        }
        ledger.confirmed(at(1), 0);
        ledger.confirmed(at(2), 1);
        ledger.delivered(at(3), at(0), Some(0));
        ledger.delivered(at(4), at(0), Some(0));
        ledger.delivered(at(5), at(0), Some(9));
        let expected = Counts { published: 3, confirmed: 2, given_up: 0, delivered: 1, again: 1, lost: 1 };
        assert_eq!((ledger.counts(), ledger.unknown(), ledger.is_complete()), (expected, 1, false));
        ledger.delivered(at(6), at(0), Some(1));
        ledger.given_up();
        assert!(ledger.is_complete());
    }

    #[test]
    fn after_a_change_of_owner_only_new_connections_count() {
        let ledger = Ledger::default();
        let at = |millis: u64| Timestamp(millis * 1_000);
        ledger.open();
        ledger.mark(at(100), true);
        ledger.open();
        ledger.delivered(at(101), at(50), Some(0));
        ledger.confirmed(at(102), 0);
        assert_eq!(ledger.after_mark(), (None, None), "these are answers of the former owner");
        ledger.delivered(at(300), at(250), Some(0));
        ledger.confirmed(at(400), 1);
        ledger.confirmed(at(500), 1);
        let times = (Some(Duration::from_millis(200)), Some(Duration::from_millis(300)));
        assert_eq!(ledger.after_mark(), times);
        ledger.mark(at(600), false);
        ledger.open();
        ledger.delivered(at(700), at(650), Some(1));
        assert_eq!(ledger.after_mark().0, None, "it was sent before");
        ledger.delivered(at(800), at(50), Some(2));
        assert_eq!(ledger.after_mark().0, Some(Duration::from_millis(200)));
    }
}
