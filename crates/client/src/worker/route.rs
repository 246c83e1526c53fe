//! Routes: which handler a message goes to, and its settings.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::fault::Fault;
use crate::idempotency::BoxFuture;
use crate::job::{Job, JobInfo};
use crate::message::Payload;

/// The result of a handler.
pub type JobResult = Result<(), Fault>;

pub(super) type One<S> = Arc<dyn Fn(S, JobInfo) -> BoxFuture<'static, JobResult> + Send + Sync>;
/// The longest time that a batch waits for more messages.
const LINGER_MAX: Duration = Duration::from_secs(86_400);

type Many<S> = Arc<dyn Fn(S, Vec<JobInfo>) -> BoxFuture<'static, Vec<JobResult>> + Send + Sync>;

/// A handler and its settings.
///
/// ```
/// use std::time::Duration;
/// use forebay_client::worker::Route;
/// use forebay_client::{Fault, Job, Payload};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendEmail { to: String }
/// # impl Payload for SendEmail { const TYPE: &'static str = "email.send"; }
///
/// async fn send_email(state: (), job: Job<SendEmail>) -> Result<(), Fault> {
///     println!("to {}", job.to);
///     Ok(())
/// }
///
/// let route = Route::new(send_email).bulkhead("smtp").timeout(Duration::from_secs(10));
/// # let _ = route;
/// ```
pub struct Route<S> {
    /// Name and version of the type. `None`: every message without a route of its own.
    pub(super) of: Option<(&'static str, u64)>,
    pub(super) handler: Handler<S>,
    pub(super) bulkhead: Option<String>,
    pub(super) timeout: Option<Duration>,
}

pub(super) enum Handler<S> {
    One(One<S>),
    Many { max: usize, linger: Duration, handle: Many<S> },
}

impl<S> Clone for Handler<S> {
    fn clone(&self) -> Handler<S> {
        match self {
            Handler::One(handle) => Handler::One(handle.clone()),
            Handler::Many { max, linger, handle } => {
                Handler::Many { max: *max, linger: *linger, handle: handle.clone() }
            }
        }
    }
}

impl<S: Send + 'static> Route<S> {
    /// A handler of single jobs, for messages of its payload's type and version.
    pub fn new<T, F, R>(handler: F) -> Route<S>
    where
        T: Payload,
        F: Fn(S, Job<T>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        let handle = move |state, info: JobInfo| -> BoxFuture<'static, JobResult> {
            match decode(&info) {
                Ok(payload) => Box::pin(handler(state, Job { payload, info })),
                Err(fault) => Box::pin(std::future::ready(Err(fault))),
            }
        };
        Route::with(Some((T::TYPE, T::SCHEMA)), Handler::One(Arc::new(handle)))
    }

    /// A handler of up to `max` jobs at once, for messages of its payload's type and version. The first job waits for
    /// the others for `linger` at most. The handler returns a result for each job, in their order.
    pub fn batch<T, F, R>(max: usize, linger: Duration, handler: F) -> Route<S>
    where
        T: Payload,
        F: Fn(S, Vec<Job<T>>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<JobResult>> + Send + 'static,
    {
        let handle = move |state, infos: Vec<JobInfo>| -> BoxFuture<'static, Vec<JobResult>> {
            let mut jobs = Vec::with_capacity(infos.len());
            let decoded: Vec<JobResult> = infos
                .into_iter()
                .map(|info| decode(&info).map(|payload| jobs.push(Job { payload, info })))
                .collect();
            let count = jobs.len();
            if count == 0 {
                return Box::pin(std::future::ready(decoded));
            }
            let handled = handler(state, jobs);
            Box::pin(async move {
                let handled = handled.await;
                let said = handled.len();
                let mut handled = handled.into_iter();
                let wrong = || {
                    Fault::transient(format!("the handler answered for {said} jobs, and there were {count}"))
                };
                decoded
                    .into_iter()
                    .map(|decoded| match decoded {
                        Err(fault) => Err(fault),
                        Ok(()) if said != count => Err(wrong()),
                        Ok(()) => handled.next().unwrap_or_else(|| Err(wrong())),
                    })
                    .collect()
            })
        };
        let (handle, linger) = (Arc::new(handle), linger.min(LINGER_MAX));
        Route::with(Some((T::TYPE, T::SCHEMA)), Handler::Many { max: max.max(1), linger, handle })
    }

    /// A handler of every message that has no other route. It gets the body as bytes.
    pub fn any<F, R>(handler: F) -> Route<S>
    where
        F: Fn(S, Job<Bytes>) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        let handle = move |state, info: JobInfo| -> BoxFuture<'static, JobResult> {
            let payload = info.body().clone();
            Box::pin(handler(state, Job { payload, info }))
        };
        Route::with(None, Handler::One(Arc::new(handle)))
    }

    fn with(of: Option<(&'static str, u64)>, handler: Handler<S>) -> Route<S> {
        Route { of, handler, bulkhead: None, timeout: None }
    }

    /// Runs the handler within one of the worker's [bulkheads](crate::worker::WorkerBuilder::bulkhead).
    #[must_use]
    pub fn bulkhead(mut self, name: impl Into<String>) -> Route<S> {
        self.bulkhead = Some(name.into());
        self
    }

    /// Sets how long a job may take. A job that takes longer has failed, and its handler is dropped at its await.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Route<S> {
        self.timeout = Some(timeout);
        self
    }
}

/// A payload that cannot be decoded is a permanent fault.
fn decode<T: Payload>(info: &JobInfo) -> Result<T, Fault> {
    serde_json::from_slice(info.body()).map_err(|error| {
        Fault::permanent(format!("cannot be decoded as {} version {}: {error}", T::TYPE, T::SCHEMA))
    })
}

/// A message without a handler is parked. It takes the same way as all others, so that later messages of its key wait.
fn unknown(known: &HashSet<&'static str>, info: &JobInfo) -> Fault {
    Fault::permanent(match info.kind() {
        None => "no handler for a message without a type".to_owned(),
        Some(kind) if known.contains(kind) => {
            format!("no handler for version {} of type {kind}", info.schema().unwrap_or(1))
        }
        Some(kind) => format!("no handler for type {kind}"),
    })
}

/// Finds the route of a message.
pub(super) struct Table {
    /// By name, then by version.
    by_type: HashMap<&'static str, Vec<(u64, usize)>>,
    any: usize,
}

impl Table {
    /// Adds a route for messages without a handler, unless there is one. Fails with the type that has two handlers.
    pub(super) fn new<S: Send + 'static>(routes: &mut Vec<Route<S>>) -> Result<Table, String> {
        let mut by_type: HashMap<&'static str, Vec<(u64, usize)>> = HashMap::new();
        let mut any = None;
        for (index, route) in routes.iter().enumerate() {
            let Some((name, schema)) = route.of else {
                if any.replace(index).is_some() {
                    return Err("any other".to_owned());
                }
                continue;
            };
            let versions = by_type.entry(name).or_default();
            if versions.iter().any(|(version, _)| *version == schema) {
                return Err(format!("{name} version {schema}"));
            }
            versions.push((schema, index));
        }
        let any = any.unwrap_or_else(|| {
            let known = by_type.keys().copied().collect();
            routes.push(Route::any(move |_, job| std::future::ready(Err(unknown(&known, &job.info)))));
            routes.len() - 1
        });
        Ok(Table { by_type, any })
    }

    /// A message without a version has version 1.
    pub(super) fn find(&self, kind: &str, schema: Option<u64>) -> usize {
        let versions = self.by_type.get(kind);
        let wanted = schema.unwrap_or(1);
        let found = versions.into_iter().flatten().find(|(version, _)| *version == wanted);
        found.map_or(self.any, |(_, index)| *index)
    }
}
