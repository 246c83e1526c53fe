//! What a worker has done so far, for metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::breaker::BreakerState;

/// What a worker has done since it started, and what it is at now.
///
/// All but the last five only ever grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Messages that came.
    pub received: u64,
    /// Done, and acked.
    pub acked: u64,
    /// Failed, and offered again.
    pub retried: u64,
    /// Set aside: for good reason, or since their retries were used up.
    pub parked: u64,
    pub skipped: u64,
    /// Put off without costing an attempt.
    pub snoozed: u64,
    /// Put off because somebody was overloaded.
    pub throttled: u64,
    /// Given back untouched.
    pub returned: u64,
    /// Found done already, and acked without running.
    pub duplicates: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Handlers that took too long.
    pub timed_out: u64,
    /// Leases that were lost while the message was in hand.
    pub lost: u64,
    /// Answers that came too late, and changed nothing.
    pub late: u64,
    /// Used up their retries, and went to another stream.
    pub moved: u64,
    /// Acks whose answer never came, since the connection broke: they may or may not count.
    pub unanswered: u64,
    /// How often the connection was lost.
    pub disconnected: u64,
    /// Time that handlers took, in microseconds.
    pub busy_us: u64,
    /// Jobs that run now.
    pub running: usize,
    /// Messages in hand that have not begun.
    pub waiting: usize,
    /// How many jobs may run at a time now.
    pub concurrency: usize,
    pub connected: bool,
    pub breaker: BreakerState,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// The growing ones, as they are counted.
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
