//! Middleware: functions that run around every job.

use std::future::Future;
use std::sync::Arc;

use super::route::{JobResult, One};
use crate::idempotency::BoxFuture;
use crate::job::JobInfo;

type Layer = Arc<dyn Fn(JobInfo, Next) -> BoxFuture<'static, JobResult> + Send + Sync>;

/// The rest of a job: the middleware that was added later, and the handler.
pub struct Next(BoxFuture<'static, JobResult>);

impl Next {
    /// Runs the rest. Middleware that does not call this decides the result of the job itself.
    pub async fn run(self) -> JobResult {
        self.0.await
    }
}

/// Layers, the outermost first.
#[derive(Clone, Default)]
pub(super) struct Middleware(Vec<Layer>);

impl Middleware {
    pub(super) fn add<F, R>(&mut self, layer: F)
    where
        F: Fn(JobInfo, Next) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.0.push(Arc::new(move |info, next| Box::pin(layer(info, next))));
    }

    /// The handler is called when the innermost layer calls it, and not before.
    pub(super) fn run<S: Send + 'static>(
        &self,
        handle: &One<S>,
        state: S,
        info: JobInfo,
    ) -> BoxFuture<'static, JobResult> {
        if self.0.is_empty() {
            return handle(state, info);
        }
        let (handle, job_info) = (handle.clone(), info.clone());
        let mut job: BoxFuture<'static, JobResult> = Box::pin(async move { handle(state, job_info).await });
        for layer in self.0.iter().rev() {
            job = layer(info.clone(), Next(job));
        }
        job
    }
}
