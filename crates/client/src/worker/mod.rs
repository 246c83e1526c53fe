//! A pool of handlers for the messages of one group.
//!
//! ```
//! # use forebay_test::TestServer;
//! use forebay_client::{Client, Fault, Job, Payload, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! impl Payload for SendEmail {
//!     const TYPE: &'static str = "email.send";
//! }
//!
//! /// What handlers share. Cloned for each job.
//! #[derive(Clone)]
//! struct App {
//!     from: &'static str,
//! }
//!
//! async fn send_email(app: App, job: Job<SendEmail>) -> Result<(), Fault> {
//!     if !job.to.contains('@') {
//!         return Err(Fault::permanent("that is no address"));
//!     }
//!     println!("from {} to {}", app.from, job.to);
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = TestServer::start().await?;
//! # let client = Client::connect(server.url()).await?;
//! let worker = Worker::new(client.clone(), "emails", "senders", App { from: "me@example.com" })
//!     .ensure_group(Default::default())
//!     .concurrency(8)
//!     .on(send_email)
//!     .start()
//!     .await?;
//!
//! client.publish("emails", &SendEmail { to: "you@example.com".into() }).await?;
//! # server.until_settled("emails", "senders").await?;
//!
//! let stats = worker.shutdown().await?;
//! assert_eq!(stats.acked, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What becomes of a message
//!
//! | The handler | The message |
//! | --- | --- |
//! | returns `Ok(())` | is acked |
//! | returns an error by `?` | goes through [`Worker::classify`]; transient if nobody says otherwise |
//! | returns [`Fault::transient`], panics, or takes too long | is offered again by the group's retry policy |
//! | returns [`Fault::retry_after`] | likewise, after that long |
//! | returns [`Fault::permanent`] | is parked |
//! | returns [`Fault::skip`] | is settled without being done |
//! | returns [`Fault::snooze`] | is offered again after that long; the attempt does not count |
//! | returns [`Fault::throttled`] | likewise; and this worker and the whole group rest for as long |
//! | cannot be found, or the payload cannot be decoded | is parked |
//!
//! While a message is in hand its lease is renewed. If it is lost all the same, [`JobInfo::cancelled`] says so.
//!
//! [`Fault::permanent`]: crate::Fault::permanent
//! [`Fault::retry_after`]: crate::Fault::retry_after
//! [`Fault::skip`]: crate::Fault::skip
//! [`Fault::snooze`]: crate::Fault::snooze
//! [`Fault::throttled`]: crate::Fault::throttled
//! [`Fault::transient`]: crate::Fault::transient

mod around;
mod breaker;
mod desk;
mod event;
mod lane;
mod pace;
mod pump;
mod route;
mod scale;
mod stats;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::admin::settings::GroupSettings;
use crate::client::Client;
use crate::clock;
use crate::error::CallError;
use crate::fault::Class;
use crate::idempotency::IdempotencyStore;
use crate::job::{Job, JobInfo};
use crate::message::Payload;
use around::Around;
use breaker::Breaker;
use desk::{Desk, RouteTerms};
use pace::Pace;
use pump::{Pump, Terms};
use route::{Handler, Table};
use stats::Counters;

pub use around::Next;
pub use breaker::{BreakerPolicy, BreakerState};
pub use event::WorkerEvent;
pub use route::{JobResult, Route};
pub use scale::Concurrency;
pub use stats::WorkerStats;

type Classify = Arc<dyn Fn(&(dyn Error + Send + Sync + 'static)) -> Class + Send + Sync>;
type OnEvent = Arc<dyn Fn(&WorkerEvent) + Send + Sync>;
type KeyOf = Arc<dyn Fn(&JobInfo) -> String + Send + Sync>;

/// How long running jobs may take to finish when the worker is told to stop.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(25);
const TARGET_DRAIN: Duration = Duration::from_secs(60);
/// What a rate can be.
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e9;
/// A claim lasts at least this long without being renewed.
const CLAIM_MIN: Duration = Duration::from_secs(1);

/// A pool of handlers for one group, being built.
pub struct Worker<S> {
    client: Client,
    stream: String,
    group: String,
    state: S,
    routes: Vec<Route<S>>,
    name: String,
    concurrency: Concurrency,
    target_drain: Duration,
    prefetch: Option<usize>,
    rate: Option<(f64, u32)>,
    bulkheads: Vec<(String, usize)>,
    breaker: Option<BreakerPolicy>,
    timeout: Option<Duration>,
    classify: Classify,
    around: Around,
    idempotency: Option<(Arc<dyn IdempotencyStore>, Duration)>,
    idempotency_key: KeyOf,
    on_event: Option<OnEvent>,
    create: Option<GroupSettings>,
    shutdown_within: Duration,
}

#[derive(Clone)]
struct Idempotency {
    store: Arc<dyn IdempotencyStore>,
    keep: Duration,
    key: KeyOf,
}

/// Why a worker does not work, or not any more.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    #[error("there are two routes for one type. type=`{of}`")]
    TwoRoutes { of: String },
    #[error("a worker needs a handler: `on`, `on_batch` or `on_any`")]
    NoRoutes,
    #[error("a route names a bulkhead that the worker does not have. bulkhead=`{name}`")]
    NoSuchBulkhead { name: String },
    #[error("there are two bulkheads of one name. bulkhead=`{name}`")]
    TwoBulkheads { name: String },
    #[error(
        "a rate is a number above zero: from one in a million seconds to a billion a second. per_second=`{per_second}`"
    )]
    InvalidRate { per_second: String },
    /// The server will not have this worker, since there is no such group or it may not; or it cannot be reached, and
    /// the worker was to be [started](Worker::start).
    #[error("the worker cannot join its group")]
    Refused(#[source] CallError),
    /// The task that works is gone without a word.
    #[error("the worker broke off")]
    Broken,
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    /// A worker for the group `group` of the stream `stream`. Handlers get a clone of the state for each job.
    pub fn new(client: Client, stream: impl Into<String>, group: impl Into<String>, state: S) -> Worker<S> {
        Worker {
            client,
            stream: stream.into(),
            group: group.into(),
            state,
            routes: Vec::new(),
            name: default_name(),
            concurrency: Concurrency::from(1..=32),
            target_drain: TARGET_DRAIN,
            prefetch: None,
            rate: None,
            bulkheads: Vec::new(),
            breaker: None,
            timeout: None,
            classify: Arc::new(|_| Class::Transient),
            around: Around::default(),
            idempotency: None,
            idempotency_key: Arc::new(identity),
            on_event: None,
            create: None,
            shutdown_within: SHUTDOWN_WITHIN,
        }
    }

    /// Handles messages of one type. See [`Route::new`].
    #[must_use]
    pub fn on<T, F, R>(self, handler: F) -> Worker<S>
    where
        T: Payload,
        F: Fn(S, Job<T>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.route(Route::new(handler))
    }

    /// Handles messages of one type several at a time. See [`Route::batch`].
    #[must_use]
    pub fn on_batch<T, F, R>(self, max: usize, linger: Duration, handler: F) -> Worker<S>
    where
        T: Payload,
        F: Fn(S, Vec<Job<T>>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<JobResult>> + Send + 'static,
    {
        self.route(Route::batch(max, linger, handler))
    }

    /// Handles what has no route of its own. See [`Route::any`].
    #[must_use]
    pub fn on_any<F, R>(self, handler: F) -> Worker<S>
    where
        F: Fn(S, Job<Bytes>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.route(Route::any(handler))
    }

    /// Adds a handler with terms of its own.
    #[must_use]
    pub fn route(mut self, route: Route<S>) -> Worker<S> {
        self.routes.push(route);
        self
    }

    /// What the worker is called in figures and failures.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Worker<S> {
        self.name = name.into();
        self
    }

    /// How many jobs run at a time: a number, or a range within which the worker follows the backlog and its age.
    /// `1..=32` if not said.
    #[must_use]
    pub fn concurrency(mut self, concurrency: impl Into<Concurrency>) -> Worker<S> {
        self.concurrency = concurrency.into();
        self
    }

    /// How long a backlog may take to be worked off, where the number of jobs follows it. One minute if not said.
    #[must_use]
    pub fn target_drain(mut self, target: Duration) -> Worker<S> {
        self.target_drain = target;
        self
    }

    /// How many messages to hold ready beside those that are being worked on. If not said, it follows how long jobs
    /// take: many where they are short, none where they are long.
    #[must_use]
    pub fn prefetch(mut self, messages: usize) -> Worker<S> {
        self.prefetch = Some(messages);
        self
    }

    /// No more jobs begin each second than this, beside a burst after a rest. For a limit over all workers, give the
    /// group a `rate` instead.
    #[must_use]
    pub fn rate(mut self, per_second: f64, burst: u32) -> Worker<S> {
        self.rate = Some((per_second, burst));
        self
    }

    /// A limit inside this process, for all routes that name it: no more of their jobs run at a time, and the other
    /// routes go on.
    #[must_use]
    pub fn bulkhead(mut self, name: impl Into<String>, limit: usize) -> Worker<S> {
        self.bulkheads.push((name.into(), limit.max(1)));
        self
    }

    /// Stops taking messages while everything fails.
    #[must_use]
    pub fn breaker(mut self, policy: BreakerPolicy) -> Worker<S> {
        self.breaker = Some(policy);
        self
    }

    /// How long a job may take, where its route does not say otherwise. Without a limit if not said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Worker<S> {
        self.timeout = Some(timeout);
        self
    }

    /// Says what errors mean that came by `?`. All are transient if not said.
    ///
    /// ```
    /// # use forebay_client::{Class, Client, Worker};
    /// # fn example(worker: Worker<()>) -> Worker<()> {
    /// worker.classify(|error| match error.downcast_ref::<std::num::ParseIntError>() {
    ///     Some(_) => Class::Permanent,
    ///     None => Class::Transient,
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(&(dyn Error + Send + Sync + 'static)) -> Class + Send + Sync + 'static,
    ) -> Worker<S> {
        self.classify = Arc::new(classify);
        self
    }

    /// Does something around every job that is handled by itself: before, after, or instead. The first one added is
    /// the outermost. Batches have none around them.
    ///
    /// ```
    /// # use forebay_client::Worker;
    /// # fn example(worker: Worker<()>) -> Worker<()> {
    /// worker.around(|job, next| async move {
    ///     println!("{} begins", job.seq());
    ///     let result = next.run().await;
    ///     println!("{} ended: {result:?}", job.seq());
    ///     result
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn around<F, R>(mut self, hook: F) -> Worker<S>
    where
        F: Fn(JobInfo, Next) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.around.add(hook);
        self
    }

    /// Works on no message twice: what the store knows as done is acked without running. Marks are kept for `keep`,
    /// which should be longer than a message can come again.
    #[must_use]
    pub fn idempotency(mut self, store: impl IdempotencyStore, keep: Duration) -> Worker<S> {
        self.idempotency = Some((Arc::new(store), keep));
        self
    }

    /// What a message is known by in the store, instead of its group and its id, or its position and time.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Fn(&JobInfo) -> String + Send + Sync + 'static) -> Worker<S> {
        self.idempotency_key = Arc::new(key);
        self
    }

    /// Hears of what is out of the ordinary. Called from the worker's own tasks, so it must not wait.
    #[must_use]
    pub fn on_event(mut self, hear: impl Fn(&WorkerEvent) + Send + Sync + 'static) -> Worker<S> {
        self.on_event = Some(Arc::new(hear));
        self
    }

    /// Creates the group, and its stream, if there is none. One that is there already is left as it is.
    #[must_use]
    pub fn ensure_group(mut self, settings: GroupSettings) -> Worker<S> {
        self.create = Some(settings);
        self
    }

    /// How long running jobs may take to finish once the worker is told to stop. What is not done by then goes back
    /// without costing it an attempt. 25 seconds if not said.
    #[must_use]
    pub fn shutdown_within(mut self, time: Duration) -> Worker<S> {
        self.shutdown_within = time;
        self
    }

    /// Begins to work, in the background. Returns once the worker has joined its group, and fails if it cannot.
    /// From then on it comes back by itself whenever the connection breaks.
    pub async fn start(self) -> Result<RunningWorker, WorkerError> {
        let (ready, is_ready) = oneshot::channel();
        let worker = self.spawn(Some(ready))?;
        match is_ready.await {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(error)) => Err(error),
            Err(_) => worker.wait().await.and(Err(WorkerError::Broken)),
        }
    }

    /// Works until `stop` resolves, then shuts down.
    ///
    /// Unlike [`start`](Worker::start), it goes on trying if the server cannot be reached at first.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<WorkerStats, WorkerError> {
        self.spawn(None)?.run_until(stop).await
    }

    fn spawn(
        mut self,
        ready: Option<oneshot::Sender<Result<(), WorkerError>>>,
    ) -> Result<RunningWorker, WorkerError> {
        if self.routes.is_empty() {
            return Err(WorkerError::NoRoutes);
        }
        let table = Table::new(&mut self.routes).map_err(|of| WorkerError::TwoRoutes { of })?;
        let mut desk = self.desk()?;
        if let Some((per_second, burst)) = self.rate {
            if !(RATE_MIN..=RATE_MAX).contains(&per_second) {
                return Err(WorkerError::InvalidRate { per_second: per_second.to_string() });
            }
            desk.set_pace(Pace::new(clock::now(), per_second, burst));
        }
        if let Some(policy) = self.breaker {
            desk.set_breaker(Breaker::new(policy));
        }
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            desk: Mutex::new(desk),
            bell: Notify::new(),
            verdicts: Notify::new(),
            routes: self.routes,
            state: self.state,
            around: self.around,
            idempotency: self.idempotency.map(|(store, keep)| Idempotency {
                store,
                keep,
                key: self.idempotency_key,
            }),
            classify: self.classify,
            timeout: self.timeout,
            on_event: self.on_event,
            counters: Arc::new(Counters::default()),
            lease_us: AtomicU64::new(0),
        });
        let terms = Terms {
            client: self.client,
            stream: self.stream.into(),
            group: self.group.into(),
            name: self.name,
            concurrency: self.concurrency,
            target_drain: self.target_drain,
            prefetch: self.prefetch,
            rate: self.rate.map(|(per_second, _)| per_second),
            create: self.create,
            shutdown_within: self.shutdown_within,
        };
        let figures = shared.clone();
        let task = tokio::spawn(Pump::new(shared, terms, table, stopped).run(ready));
        Ok(RunningWorker { stop, task, stats: Arc::new(move || figures.stats()) })
    }

    fn desk(&self) -> Result<Desk, WorkerError> {
        let mut named: HashMap<&str, usize> = HashMap::new();
        for (index, (name, _)) in self.bulkheads.iter().enumerate() {
            if named.insert(name, index).is_some() {
                return Err(WorkerError::TwoBulkheads { name: name.clone() });
            }
        }
        let mut routes = Vec::with_capacity(self.routes.len());
        for route in &self.routes {
            let bulkhead = match &route.bulkhead {
                None => None,
                Some(name) => {
                    let index = named.get(&name[..]).copied();
                    Some(index.ok_or_else(|| WorkerError::NoSuchBulkhead { name: name.clone() })?)
                }
            };
            let batch = match &route.handler {
                Handler::One(_) => None,
                Handler::Many { max, linger, .. } => Some((*max, *linger)),
            };
            routes.push(RouteTerms { bulkhead, batch });
        }
        let limits = self.bulkheads.iter().map(|(_, limit)| *limit).collect();
        Ok(Desk::new(routes, limits, self.concurrency.min))
    }
}

/// What a message is known by. One without an id is known by its position, and by its time: a stream that is made anew
/// begins with the same positions.
fn identity(job: &JobInfo) -> String {
    match job.id() {
        Some(id) => format!("{}/{}/id/{id}", job.stream(), job.group()),
        None => {
            let at = job.published_at().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{}/{}/seq/{}@{}", job.stream(), job.group(), job.seq(), at.as_micros())
        }
    }
}

/// Told from other workers, also from those with the same process id in another container.
fn default_name() -> String {
    // Without random numbers the name is merely less telling.
    let random = getrandom::u32().unwrap_or_default();
    format!("worker-{}-{random:08x}", std::process::id())
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// A worker at work.
///
/// Dropping it is losing it: what it holds goes to others, and counts as tried. [`RunningWorker::shutdown`] is
/// how to end it well.
pub struct RunningWorker {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), WorkerError>>,
    stats: Arc<dyn Fn() -> WorkerStats + Send + Sync>,
}

impl RunningWorker {
    /// What it has done so far.
    pub fn stats(&self) -> WorkerStats {
        (self.stats)()
    }

    /// The same, for whoever exports metrics elsewhere.
    pub fn stats_handle(&self) -> impl Fn() -> WorkerStats + Send + Sync + Clone + use<> {
        let stats = self.stats.clone();
        move || stats()
    }

    /// Stops taking, lets running jobs finish for as long as they may, gives the rest back, and leaves.
    pub async fn shutdown(mut self) -> Result<WorkerStats, WorkerError> {
        let _ = self.stop.send(true);
        let ended = (&mut self.task).await;
        self.ended(ended)
    }

    /// Works until `stop` resolves, then shuts down.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<WorkerStats, WorkerError> {
        tokio::select! {
            () = stop => self.shutdown().await,
            ended = &mut self.task => self.ended(ended),
        }
    }

    /// Resolves if it ends by itself, which it does only if the server will not have it any more.
    pub async fn wait(mut self) -> Result<WorkerStats, WorkerError> {
        let ended = (&mut self.task).await;
        self.ended(ended)
    }

    fn ended(
        &self,
        ended: Result<Result<(), WorkerError>, tokio::task::JoinError>,
    ) -> Result<WorkerStats, WorkerError> {
        match ended {
            Ok(outcome) => outcome.map(|()| self.stats()),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(WorkerError::Broken),
        }
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for RunningWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningWorker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// What the pump and the lanes share.
struct Shared<S> {
    /// What is in hand. Held for a few instructions at a time and never across a wait.
    desk: Mutex<Desk>,
    /// Wakes a lane.
    bell: Notify,
    /// Wakes the pump: there are verdicts.
    verdicts: Notify,
    routes: Vec<Route<S>>,
    state: S,
    around: Around,
    idempotency: Option<Idempotency>,
    classify: Classify,
    timeout: Option<Duration>,
    on_event: Option<OnEvent>,
    counters: Arc<Counters>,
    /// How long leases last, in microseconds.
    lease_us: AtomicU64,
}

impl<S> Shared<S> {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing in there panics halfway, and if it did, the next one to ask would find out.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters_of(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Claims last as long as leases do, since they are renewed together.
    fn claim_lasts(&self) -> Duration {
        Duration::from_micros(self.lease_us.load(Ordering::Relaxed)).max(CLAIM_MIN)
    }

    fn stats(&self) -> WorkerStats {
        let desk = self.desk();
        WorkerStats {
            running: desk.running(),
            waiting: desk.waiting(),
            concurrency: desk.limit(),
            breaker: desk.breaker_state(),
            ..self.counters.read()
        }
    }

    fn tell(&self, event: WorkerEvent) {
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
        if let Some(hear) = &self.on_event {
            // What a user's function does must not end the worker.
            let _ = catch_unwind(AssertUnwindSafe(|| hear(&event)));
        }
    }
}
