//! The events that consumers of a group hold, by event id. Clients answer with ids, and any consumer of a group may
//! answer for an event that another one was sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::Lease;
use forebay_core::types::{Seq, Timestamp};

use super::calls::Call;

/// How long after its deadline an event is still known by its id: a late answer counts until the event is sent again.
const GRACE: Duration = Duration::from_secs(60);
/// The least number of events at which the table looks for events that are past that.
const SWEEP_MIN: usize = 1_024;

/// What proves that a consumer holds an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Of a consumer with a connection.
    Lease(Lease),
    /// Of an event that was pulled over HTTP.
    Receipt(String),
}

/// An event that is held.
#[derive(Debug, Clone)]
pub(crate) struct HeldEvent {
    pub(crate) seq: Seq,
    pub(crate) proof: Proof,
    pub(crate) deadline: Timestamp,
    pub(crate) sent: Timestamp,
    /// The call that it was sent to. None for one that was pulled over HTTP.
    pub(crate) call: Option<Arc<Call>>,
}

/// All events of a group that are held, by id. Usually an id has one event. A producer may give one id to several.
#[derive(Debug, Default)]
pub(crate) struct Held {
    by_id: HashMap<[u8; 16], Vec<HeldEvent>>,
    count: usize,
    /// The table is looked through when it has so many events.
    sweep_at: usize,
}

impl Held {
    /// An event was sent. It takes the place of an earlier time that it was sent.
    pub(crate) fn add(&mut self, now: Timestamp, id: [u8; 16], event: HeldEvent) {
        if self.count >= self.sweep_at.max(SWEEP_MIN) {
            self.keep(|held| held.deadline + GRACE > now);
            self.sweep_at = self.count * 2;
        }
        let events = self.by_id.entry(id).or_default();
        match events.iter_mut().find(|held| held.seq == event.seq) {
            Some(before) => *before = event,
            None => {
                events.push(event);
                self.count += 1;
            }
        }
    }

    /// Takes out the event with this id that was sent first. None if no consumer holds one.
    pub(crate) fn take(&mut self, id: &[u8; 16]) -> Option<HeldEvent> {
        let events = self.by_id.get_mut(id)?;
        let event = events.remove(0);
        if events.is_empty() {
            self.by_id.remove(id);
        }
        self.count -= 1;
        Some(event)
    }

    /// A call has ended, so the group has its events back.
    pub(crate) fn forget(&mut self, call: &Arc<Call>) {
        self.keep(|held| held.call.as_ref().is_none_or(|of| !Arc::ptr_eq(of, call)));
    }

    fn keep(&mut self, wanted: impl Fn(&HeldEvent) -> bool) {
        self.by_id.retain(|_, events| {
            events.retain(&wanted);
            !events.is_empty()
        });
        self.count = self.by_id.values().map(Vec::len).sum();
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::types::{Epoch, Grant};

    const A: [u8; 16] = [1; 16];
    const B: [u8; 16] = [2; 16];

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn sent(seq: u64, grant: u64, call: Option<&Arc<Call>>) -> HeldEvent {
        let lease = Lease { epoch: Epoch(1), seq: Seq(seq), grant: Grant(grant) };
        HeldEvent {
            seq: Seq(seq),
            proof: Proof::Lease(lease),
            deadline: at(30),
            sent: at(0),
            call: call.cloned(),
        }
    }

    fn grant(event: Option<HeldEvent>) -> Option<u64> {
        event.map(|event| match event.proof {
            Proof::Lease(lease) => lease.grant.0,
            Proof::Receipt(_) => 0,
        })
    }

    #[test]
    fn an_answer_counts_once_and_for_the_last_time_that_an_event_was_sent() {
        let mut held = Held::default();
        held.add(at(0), A, sent(1, 1, None));
        held.add(at(0), B, sent(2, 2, None));
        held.add(at(1), A, sent(1, 3, None));
        assert_eq!(held.len(), 2);
        assert_eq!(grant(held.take(&A)), Some(3));
        assert_eq!(grant(held.take(&A)), None);
        assert_eq!(grant(held.take(&B)), Some(2));
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn two_events_with_one_id_take_two_answers() {
        let mut held = Held::default();
        held.add(at(0), A, sent(1, 1, None));
        held.add(at(0), A, sent(2, 2, None));
        assert_eq!(grant(held.take(&A)), Some(1));
        assert_eq!(grant(held.take(&A)), Some(2));
        assert_eq!(grant(held.take(&A)), None);
    }

    #[test]
    fn the_events_of_a_call_are_forgotten_with_it() {
        let mut held = Held::default();
        let (one, other) = (Arc::new(Call::default()), Arc::new(Call::default()));
        held.add(at(0), A, sent(1, 1, Some(&one)));
        held.add(at(0), B, sent(2, 2, Some(&other)));
        held.forget(&one);
        assert_eq!(grant(held.take(&A)), None);
        assert_eq!(grant(held.take(&B)), Some(2));
    }

    #[test]
    fn events_without_an_answer_do_not_stay() {
        let mut held = Held::default();
        let id = |n: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            id
        };
        for n in 0..SWEEP_MIN as u64 {
            held.add(at(0), id(n), sent(n + 1, n + 1, None));
        }
        held.add(at(89), id(5_000), HeldEvent { deadline: at(119), ..sent(5_000, 1, None) });
        assert_eq!(held.len(), SWEEP_MIN + 1, "a late answer may still come");
        for n in 0..=SWEEP_MIN as u64 {
            held.add(at(90), id(10_000 + n), HeldEvent { deadline: at(120), ..sent(10_000 + n, 1, None) });
        }
        assert_eq!(held.len(), SWEEP_MIN + 2);
        assert!(held.take(&id(5_000)).is_some());
    }
}
