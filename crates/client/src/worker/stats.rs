//! Counters of a worker, for metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::breaker::BreakerState;

/// Counters since a worker started, and its present state.
///
/// All but the last five only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Messages that were delivered.
    pub received: u64,
    /// Messages that were done and acked.
    pub acked: u64,
    /// Messages that failed and are delivered again.
    pub retried: u64,
    /// Messages that were parked: by a permanent fault, or because their retries were used up.
    pub parked: u64,
    /// Messages that were skipped or had expired.
    pub skipped: u64,
    /// Messages that were put off without counting as an attempt.
    pub snoozed: u64,
    /// Messages that were put off because a service was overloaded.
    pub throttled: u64,
    /// Messages that were given back.
    pub returned: u64,
    /// Messages that the idempotency store had marked as done, acked without running.
    pub duplicates: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Handlers that took too long.
    pub timed_out: u64,
    /// Leases that were lost while the worker had the message.
    pub lost: u64,
    /// Answers that came after the lease had run out, and changed nothing.
    pub late: u64,
    /// Messages whose retries were used up and that went to another stream.
    pub moved: u64,
    /// Acks without an answer, because the connection broke. They may or may not have taken effect.
    pub unanswered: u64,
    /// How often the connection was lost.
    pub disconnected: u64,
    /// The time that handlers took, in microseconds.
    pub busy_us: u64,
    /// Jobs that run now.
    pub running: usize,
    /// Messages that the worker holds and that have not begun.
    pub waiting: usize,
    /// How many jobs may run at a time now.
    pub concurrency: usize,
    /// Whether the worker is connected.
    pub connected: bool,
    /// The state of the circuit breaker.
    pub breaker: BreakerState,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// The counters that only grow.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
            pub(super) connected: AtomicUsize,
        }

        impl Counters {
            pub(super) fn read(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.0.load(Ordering::Relaxed),)*
                    connected: self.connected.load(Ordering::Relaxed) > 0,
                    ..WorkerStats::default()
                }
            }
        }
    };
}

counters!(
    received,
    acked,
    retried,
    parked,
    skipped,
    snoozed,
    throttled,
    returned,
    duplicates,
    panicked,
    timed_out,
    lost,
    late,
    moved,
    unanswered,
    disconnected,
    busy_us
);

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}
