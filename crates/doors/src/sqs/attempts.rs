//! The answers to receives with an attempt id, kept so that a client that lost an answer can ask for it
//! again.
//!
//! A memory, not a promise: it is small and does not outlive the server. An attempt that is not remembered is a new
//! receive, which is what SQS does with one that came too late.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::Delivered;
use forebay_core::types::{StreamId, Timestamp};

/// How long an attempt is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// The limit of the bytes of remembered attempts and their messages.
const BYTES_MAX: usize = 32 << 20;
const ATTEMPTS_MAX: usize = 10_000;

/// Messages with their receipts.
pub(super) type Given = Vec<(String, Delivered)>;

type Key = (StreamId, String);

#[derive(Default)]
pub(super) struct Attempts(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    given: HashMap<Key, (Timestamp, Given)>,
    /// The oldest first. An attempt that was given anew is in here twice.
    order: VecDeque<(Timestamp, Key)>,
    bytes: usize,
}

impl Attempts {
    pub(super) fn find(&self, now: Timestamp, queue: StreamId, attempt: &str) -> Option<Given> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.forget(now);
        memory.given.get(&(queue, attempt.to_owned())).map(|(_, given)| given.clone())
    }

    pub(super) fn remember(&self, now: Timestamp, queue: StreamId, attempt: String, given: &Given) {
        if given.is_empty() {
            return;
        }
        // A message is a slice of a larger buffer that was read or sent at once, and must not keep all of it
        // in memory.
        let alone = |(receipt, message): &(String, Delivered)| {
            let content = Bytes::copy_from_slice(&message.content);
            (receipt.clone(), Delivered { content, ..message.clone() })
        };
        let given: Given = given.iter().map(alone).collect();
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (queue, attempt);
        memory.bytes += bytes_of(&given);
        if let Some((_, before)) = memory.given.insert(key.clone(), (now, given)) {
            memory.bytes -= bytes_of(&before);
        }
        memory.order.push_back((now, key));
        memory.forget(now);
    }
}

impl Memory {
    fn forget(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.order.front() {
            let is_over = *at + REMEMBERED <= now;
            if !is_over && self.bytes <= BYTES_MAX && self.order.len() <= ATTEMPTS_MAX {
                return;
            }
            let Some((at, key)) = self.order.pop_front() else { return };
            if self.given.get(&key).is_some_and(|(given_at, _)| *given_at == at)
                && let Some((_, given)) = self.given.remove(&key)
            {
                self.bytes -= bytes_of(&given);
            }
        }
    }
}

fn bytes_of(given: &Given) -> usize {
    given.iter().map(|(receipt, message)| receipt.len() + message.content.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_broker::api::Lease;
    use forebay_core::types::{Attempt, Epoch, Grant, Ordinal, Seq};

    fn one() -> Given {
        let lease = Lease { epoch: Epoch(1), seq: Seq(1), grant: Grant(1) };
        let message = Delivered {
            lease,
            ordinal: Ordinal(1),
            attempt: Attempt(1),
            redelivered: false,
            first_received: at(1),
            deadline: at(1),
            published: at(1),
            priority: 0,
            past: None,
            content: Bytes::from_static(b"x"),
        };
        vec![("receipt".to_owned(), message)]
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[test]
    fn an_attempt_is_remembered_for_five_minutes_and_by_its_queue() {
        let attempts = Attempts::default();
        attempts.remember(at(10), StreamId(1), "a".to_owned(), &one());
        assert!(attempts.find(at(11), StreamId(1), "a").is_some());
        assert!(attempts.find(at(11), StreamId(2), "a").is_none(), "another queue's");
        assert!(attempts.find(at(11), StreamId(1), "b").is_none());
        attempts.remember(at(11), StreamId(1), "empty".to_owned(), &Given::new());
        assert!(attempts.find(at(11), StreamId(1), "empty").is_none(), "nothing is not worth remembering");
        // Given anew, its time begins anew.
        attempts.remember(at(200), StreamId(1), "a".to_owned(), &one());
        assert!(attempts.find(at(311), StreamId(1), "a").is_some());
        assert!(attempts.find(at(500), StreamId(1), "a").is_none());
        assert_eq!(attempts.0.lock().expect("nobody panicked").order.len(), 0);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let attempts = Attempts::default();
        for n in 0..ATTEMPTS_MAX as u64 + 5 {
            attempts.remember(at(1), StreamId(1), n.to_string(), &one());
        }
        assert!(attempts.find(at(1), StreamId(1), "4").is_none());
        assert!(attempts.find(at(1), StreamId(1), "5").is_some());
    }
}
