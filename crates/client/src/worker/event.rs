//! Events of a worker.

use std::time::Duration;

use super::breaker::BreakerState;
use crate::error::CallError;

/// Something out of the ordinary. Every event is also a `tracing` event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// The worker has joined its group.
    Connected,
    /// The connection is lost. Messages in hand are delivered to other workers, and this one reconnects.
    Disconnected {
        /// Why it was lost.
        error: CallError,
        /// The wait before the next try.
        again_in: Duration,
    },
    /// The lease of a message was lost while the worker had it: the group was reset, or the renewal came too late.
    LeaseLost {
        /// The message's position.
        seq: u64,
        /// The attempt.
        attempt: u32,
    },
    /// A job succeeded after its lease had run out. The message may be done again.
    LateAnswer {
        /// The message's position.
        seq: u64,
    },
    /// The connection broke before these acks were answered. They may or may not have taken effect.
    Unanswered {
        /// How many acks.
        acks: u64,
    },
    /// A job failed, and its message will be delivered again, is parked, or is moved to another stream.
    Failed {
        /// The message's position.
        seq: u64,
        /// The attempt.
        attempt: u32,
        /// The reason.
        reason: String,
        /// Whether the message is parked or moved, and not delivered again.
        parked: bool,
    },
    /// The circuit breaker has changed its state.
    Breaker(BreakerState),
    /// The number of jobs that may run at a time has changed.
    Concurrency(usize),
    /// The idempotency store failed. Messages wait until it works again.
    StoreFailed {
        /// The error, as text.
        error: String,
    },
}
