//! The state that the tasks of a worker share.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::desk::Desk;
use super::event::WorkerEvent;
use super::middleware::Middleware;
use super::route::Route;
use super::stats::{Counters, WorkerStats};
use crate::fault::Class;
use crate::idempotency::IdempotencyStore;
use crate::job::JobInfo;

pub(super) type Classify = Arc<dyn Fn(&(dyn Error + Send + Sync + 'static)) -> Class + Send + Sync>;
pub(super) type OnEvent = Arc<dyn Fn(&WorkerEvent) + Send + Sync>;
pub(super) type KeyOf = Arc<dyn Fn(&JobInfo) -> String + Send + Sync>;

/// A claim lasts at least this long without being renewed.
const CLAIM_MIN: Duration = Duration::from_secs(1);

/// The state that the pump and the runners share.
pub(super) struct Shared<S> {
    /// The messages in hand. Locked for a few instructions at a time and never across an await.
    pub(super) desk: Mutex<Desk>,
    /// Wakes a runner: there is work.
    pub(super) work: Notify,
    /// Wakes the pump: there are verdicts.
    pub(super) verdicts: Notify,
    pub(super) routes: Vec<Route<S>>,
    pub(super) state: S,
    pub(super) middleware: Middleware,
    pub(super) idempotency: Option<Idempotency>,
    pub(super) classify: Classify,
    pub(super) timeout: Option<Duration>,
    pub(super) on_event: Option<OnEvent>,
    pub(super) counters: Counters,
    /// How long leases last, in microseconds.
    pub(super) lease_us: AtomicU64,
}

impl<S> Shared<S> {
    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        // The desk does not panic halfway through a change.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims last as long as leases, because they are renewed together.
    pub(super) fn claim_lasts(&self) -> Duration {
        Duration::from_micros(self.lease_us.load(Ordering::Relaxed)).max(CLAIM_MIN)
    }

    pub(super) fn stats(&self) -> WorkerStats {
        let desk = self.desk();
        WorkerStats {
            running: desk.running(),
            waiting: desk.waiting(),
            concurrency: desk.limit(),
            breaker: desk.breaker_state(),
            ..self.counters.read()
        }
    }

    pub(super) fn emit(&self, event: WorkerEvent) {
        match &event {
            WorkerEvent::Connected => tracing::info!("connected"),
            WorkerEvent::Disconnected { error, again_in } => {
                tracing::warn!(error = crate::error::in_words(error), ?again_in, "disconnected");
            }
            WorkerEvent::LeaseLost { seq, attempt } => tracing::warn!(seq, attempt, "lease lost"),
            WorkerEvent::LateAnswer { seq } => tracing::warn!(seq, "done too late: the lease was over"),
            WorkerEvent::Unanswered { acks } => tracing::warn!(acks, "acks without an answer"),
            WorkerEvent::Failed { seq, attempt, reason, parked } => {
                tracing::info!(seq, attempt, reason, parked, "job failed");
            }
            WorkerEvent::Breaker(state) => tracing::warn!(?state, "circuit breaker"),
            WorkerEvent::Concurrency(jobs) => tracing::debug!(jobs, "concurrency"),
            WorkerEvent::StoreFailed { error } => tracing::warn!(error, "idempotency store"),
        }
        if let Some(on_event) = &self.on_event {
            // A panic in a user's function must not end the worker.
            let _ = catch_unwind(AssertUnwindSafe(|| on_event(&event)));
        }
    }
}

#[derive(Clone)]
pub(super) struct Idempotency {
    pub(super) store: Arc<dyn IdempotencyStore>,
    pub(super) keep: Duration,
    pub(super) key: KeyOf,
}
