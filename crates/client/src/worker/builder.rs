//! Handlers and settings of a worker, and how it starts.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot, watch};

use super::breaker::{Breaker, BreakerPolicy};
use super::desk::{Desk, RouteTerms};
use super::event::WorkerEvent;
use super::middleware::{Middleware, Next};
use super::pace::Pace;
use super::pump::{Pump, Terms};
use super::route::{Handler, JobResult, Route, Table};
use super::scale::Concurrency;
use super::shared::{Classify, Idempotency, KeyOf, OnEvent, Shared};
use super::stats::{Counters, WorkerStats};
use super::{Worker, WorkerError};
use crate::admin::settings::GroupSettings;
use crate::client::Client;
use crate::clock;
use crate::fault::Class;
use crate::idempotency::IdempotencyStore;
use crate::job::{Job, JobInfo};
use crate::message::Payload;

/// How long running jobs may take to finish when the worker shuts down.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(25);
const TARGET_DRAIN: Duration = Duration::from_secs(60);
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e9;

/// Handlers and settings of a [`Worker`]. Made by [`Worker::builder`].
#[must_use = "a builder does nothing until `start` or `run_until` is called"]
pub struct WorkerBuilder<S> {
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
    middleware: Middleware,
    idempotency: Option<(Arc<dyn IdempotencyStore>, Duration)>,
    idempotency_key: KeyOf,
    on_event: Option<OnEvent>,
    create: Option<GroupSettings>,
    shutdown_within: Duration,
}

impl<S: Clone + Send + Sync + 'static> WorkerBuilder<S> {
    pub(super) fn new(client: Client, stream: String, group: String, state: S) -> WorkerBuilder<S> {
        WorkerBuilder {
            client,
            stream,
            group,
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
            middleware: Middleware::default(),
            idempotency: None,
            idempotency_key: Arc::new(identity),
            on_event: None,
            create: None,
            shutdown_within: SHUTDOWN_WITHIN,
        }
    }

    /// Handles messages of one type. See [`Route::new`].
    pub fn on<T, F, R>(self, handler: F) -> WorkerBuilder<S>
    where
        T: Payload,
        F: Fn(S, Job<T>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.route(Route::new(handler))
    }

    /// Handles messages of one type several at a time. See [`Route::batch`].
    pub fn on_batch<T, F, R>(self, max: usize, linger: Duration, handler: F) -> WorkerBuilder<S>
    where
        T: Payload,
        F: Fn(S, Vec<Job<T>>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<JobResult>> + Send + 'static,
    {
        self.route(Route::batch(max, linger, handler))
    }

    /// Handles every message that no other handler is for. See [`Route::any`].
    pub fn on_any<F, R>(self, handler: F) -> WorkerBuilder<S>
    where
        F: Fn(S, Job<Bytes>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.route(Route::any(handler))
    }

    /// Adds a handler with settings of its own.
    pub fn route(mut self, route: Route<S>) -> WorkerBuilder<S> {
        self.routes.push(route);
        self
    }

    /// Sets the name that statistics and failures show. The default has the process id and a random number.
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder<S> {
        self.name = name.into();
        self
    }

    /// Sets how many jobs run at a time: a number, or a range within which the worker follows the size and the age of
    /// the backlog. The default is `1..=32`.
    pub fn concurrency(mut self, concurrency: impl Into<Concurrency>) -> WorkerBuilder<S> {
        self.concurrency = concurrency.into();
        self
    }

    /// Sets how long a backlog may take to be worked off, where the number of jobs follows it. The default is one
    /// minute.
    pub fn target_drain(mut self, target: Duration) -> WorkerBuilder<S> {
        self.target_drain = target;
        self
    }

    /// Sets how many messages to fetch ahead of the running jobs. The default follows how long jobs take: many messages
    /// for short jobs, none for long ones.
    pub fn prefetch(mut self, messages: usize) -> WorkerBuilder<S> {
        self.prefetch = Some(messages);
        self
    }

    /// Limits how many jobs begin each second in this worker, with a burst after a pause. For a limit over all workers,
    /// set the group's `rate` instead.
    pub fn rate(mut self, per_second: f64, burst: u32) -> WorkerBuilder<S> {
        self.rate = Some((per_second, burst));
        self
    }

    /// Adds a bulkhead: a limit on the jobs that run at a time, for all routes that name it. Other routes are not held
    /// up.
    pub fn bulkhead(mut self, name: impl Into<String>, limit: usize) -> WorkerBuilder<S> {
        self.bulkheads.push((name.into(), limit.max(1)));
        self
    }

    /// Adds a circuit breaker, which stops taking messages while most jobs fail.
    pub fn breaker(mut self, policy: BreakerPolicy) -> WorkerBuilder<S> {
        self.breaker = Some(policy);
        self
    }

    /// Sets how long a job may take, unless its route has a timeout of its own. The default is no limit.
    pub fn timeout(mut self, timeout: Duration) -> WorkerBuilder<S> {
        self.timeout = Some(timeout);
        self
    }

    /// Decides the class of errors that a handler returned by `?`. The default is [`Class::Transient`].
    ///
    /// ```
    /// # use forebay_client::Class;
    /// # use forebay_client::worker::WorkerBuilder;
    /// # fn example(worker: WorkerBuilder<()>) -> WorkerBuilder<()> {
    /// worker.classify(|error| match error.downcast_ref::<std::num::ParseIntError>() {
    ///     Some(_) => Class::Permanent,
    ///     None => Class::Transient,
    /// })
    /// # }
    /// ```
    pub fn classify(
        mut self,
        classify: impl Fn(&(dyn Error + Send + Sync + 'static)) -> Class + Send + Sync + 'static,
    ) -> WorkerBuilder<S> {
        self.classify = Arc::new(classify);
        self
    }

    /// Adds middleware, which runs around every job that is handled by itself: before it, after it, or instead of it.
    /// The first one added is the outermost. Batches have no middleware.
    ///
    /// ```
    /// # use forebay_client::worker::WorkerBuilder;
    /// # fn example(worker: WorkerBuilder<()>) -> WorkerBuilder<()> {
    /// worker.middleware(|job, next| async move {
    ///     println!("{} begins", job.seq());
    ///     let result = next.run().await;
    ///     println!("{} ended: {result:?}", job.seq());
    ///     result
    /// })
    /// # }
    /// ```
    pub fn middleware<F, R>(mut self, middleware: F) -> WorkerBuilder<S>
    where
        F: Fn(JobInfo, Next) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.middleware.add(middleware);
        self
    }

    /// Makes handlers idempotent: a message that the store has marked as done is acked without running its handler.
    /// Marks are kept for `keep`, which should be longer than a message can be delivered or published again.
    pub fn idempotency(mut self, store: impl IdempotencyStore, keep: Duration) -> WorkerBuilder<S> {
        self.idempotency = Some((Arc::new(store), keep));
        self
    }

    /// Sets the key of a message in the store. The default is made from the group and the message id, or the position
    /// and time of a message without an id.
    pub fn idempotency_key(
        mut self,
        key: impl Fn(&JobInfo) -> String + Send + Sync + 'static,
    ) -> WorkerBuilder<S> {
        self.idempotency_key = Arc::new(key);
        self
    }

    /// Calls a function for every event. It runs on the worker's own tasks and must not block.
    pub fn on_event(mut self, hear: impl Fn(&WorkerEvent) + Send + Sync + 'static) -> WorkerBuilder<S> {
        self.on_event = Some(Arc::new(hear));
        self
    }

    /// Creates the group and its stream if they do not exist. An existing group keeps its settings.
    pub fn ensure_group(mut self, settings: GroupSettings) -> WorkerBuilder<S> {
        self.create = Some(settings);
        self
    }

    /// Sets how long running jobs may take to finish after a shutdown began. Messages that are not done by then are
    /// given back, and their delivery does not count as an attempt. The default is 25 seconds.
    pub fn shutdown_within(mut self, time: Duration) -> WorkerBuilder<S> {
        self.shutdown_within = time;
        self
    }

    /// Starts the worker in the background. Returns once it has joined its group, and fails if it cannot. From then on
    /// it reconnects by itself.
    pub async fn start(self) -> Result<Worker, WorkerError> {
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
    /// Unlike [`start`](WorkerBuilder::start) it keeps trying if the server cannot be reached at first.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<WorkerStats, WorkerError> {
        self.spawn(None)?.run_until(stop).await
    }

    fn spawn(
        mut self,
        ready: Option<oneshot::Sender<Result<(), WorkerError>>>,
    ) -> Result<Worker, WorkerError> {
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
            work: Notify::new(),
            verdicts: Notify::new(),
            routes: self.routes,
            state: self.state,
            middleware: self.middleware,
            idempotency: self.idempotency.map(|(store, keep)| Idempotency {
                store,
                keep,
                key: self.idempotency_key,
            }),
            classify: self.classify,
            timeout: self.timeout,
            on_event: self.on_event,
            counters: Counters::default(),
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
        let for_stats = shared.clone();
        let task = tokio::spawn(Pump::new(shared, terms, table, stopped).run(ready));
        Ok(Worker { stop, task, stats: Arc::new(move || for_stats.stats()) })
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

impl<S> fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// The default key of a message in the store. Without an id it has the position and the time: a stream that is created
/// again begins with the same positions.
fn identity(job: &JobInfo) -> String {
    match job.id() {
        Some(id) => format!("{}/{}/id/{id}", job.stream(), job.group()),
        None => {
            let at = job.published_at().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{}/{}/seq/{}@{}", job.stream(), job.group(), job.seq(), at.as_micros())
        }
    }
}

/// Differs from other workers, also from one with the same process id in another container.
fn default_name() -> String {
    // Without random numbers the name is only less distinct.
    let random = getrandom::u32().unwrap_or_default();
    format!("worker-{}-{random:08x}", std::process::id())
}
