//! What a worker tells those who want to know, beside its counters.

use std::time::Duration;

use super::breaker::BreakerState;
use crate::error::CallError;

/// Something out of the ordinary. Every event is also a `tracing` event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WorkerEvent {
    Connected,
    /// The connection is lost. What was in hand goes to others; the worker tries again after this long.
    Disconnected {
        error: CallError,
        again_in: Duration,
    },
    /// The lease of a message was lost while it was in hand: it took too long, or somebody reset the group.
    LeaseLost {
        seq: u64,
        attempt: u32,
    },
    /// The job was done, but its lease was over by then. The message may be done again.
    LateAnswer {
        seq: u64,
    },
    /// The connection broke before these were answered: they may or may not count.
    Unanswered {
        acks: u64,
    },
    /// A job failed and will be offered again; or it is parked, or moved to another stream.
    Failed {
        seq: u64,
        attempt: u32,
        reason: String,
        parked: bool,
    },
    Breaker(BreakerState),
    /// How many jobs may run at a time from now on.
    Concurrency(usize),
    /// The store of marks does not do what it should. Messages wait for it.
    StoreFailed {
        error: String,
    },
}
