//! One message in a group, for a person who asks what became of it. Nothing here changes anything.

use std::sync::Arc;

use super::{Bound, Group};
use crate::entry::Failure;
use crate::group::standing::State;
use crate::types::{Seq, Timestamp};

/// A message in a group, as far as the group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    pub state: LifeState,
    /// How often it was handed out. Not known of a message that is settled.
    pub attempts: u32,
    /// When it was first handed out, where that is known.
    pub first: Option<Timestamp>,
    /// Its last failures, the oldest first. Forgotten when it is settled.
    pub failures: Vec<Failure>,
}

/// Where a message stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifeState {
    /// It was not handed out yet.
    Untouched,
    /// It was handed out before, and may be again now.
    Ready,
    /// It failed, and may be handed out again from then on.
    Waiting {
        until: Timestamp,
    },
    Leased {
        /// None: the consumer is not known, since the server started anew.
        consumer: Option<Arc<str>>,
        granted: Timestamp,
        deadline: Timestamp,
        bound: Bound,
    },
    /// On its way to another stream.
    Moving,
    Parked {
        at: Timestamp,
    },
    /// Acked, skipped, moved, expired or discarded.
    Settled,
}

impl Group {
    /// What became of a message, which has been published.
    pub(crate) fn life(&self, seq: Seq) -> Life {
        if let Some(parked) = self.ledger.parked().get(seq) {
            return Life {
                state: LifeState::Parked { at: parked.at() },
                attempts: parked.attempts,
                first: None,
                failures: parked.failures.to_vec(),
            };
        }
        if let Some((_, attempts)) = self.ledger.outgoing().get(seq) {
            return Life { state: LifeState::Moving, attempts, first: None, failures: Vec::new() };
        }
        if self.ledger.is_settled(seq) {
            return Life { state: LifeState::Settled, attempts: 0, first: None, failures: Vec::new() };
        }
        let failures = self.ledger.failures().get(&seq).cloned().unwrap_or_default();
        let Some((_, state)) = self.ledger.standing().run_at(seq) else {
            return Life { state: LifeState::Untouched, attempts: 0, first: None, failures };
        };
        let (attempts, first) = (state.attempts(), state.first());
        let state = match state {
            State::Ready { attempts: 0, .. } => LifeState::Untouched,
            State::Ready { .. } => LifeState::Ready,
            State::Waiting { until, .. } => LifeState::Waiting { until },
            State::Leased(lease) => LifeState::Leased {
                consumer: lease.holder.and_then(|holder| self.members.name(holder)),
                granted: lease.granted,
                deadline: lease.deadline,
                bound: lease.bound,
            },
            State::Moving { .. } => LifeState::Moving,
        };
        Life { state, attempts, first, failures }
    }
}
