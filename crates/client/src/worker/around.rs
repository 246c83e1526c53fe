//! What is done around every job: the plain form of middleware.

use std::future::Future;
use std::sync::Arc;

use super::route::{JobResult, One};
use crate::idempotency::BoxFuture;
use crate::job::JobInfo;

type Hook = Arc<dyn Fn(JobInfo, Next) -> BoxFuture<'static, JobResult> + Send + Sync>;

/// The rest of what is done for a job: the hooks that were added later, and the handler.
pub struct Next(BoxFuture<'static, JobResult>);

impl Next {
    /// Does it. A hook that does not call this answers for the job itself.
    pub async fn run(self) -> JobResult {
        self.0.await
    }
}

/// Hooks, the outermost first.
#[derive(Clone, Default)]
pub(super) struct Around(Vec<Hook>);

impl Around {
    pub(super) fn add<F, R>(&mut self, hook: F)
    where
        F: Fn(JobInfo, Next) -> R + Send + Sync + 'static,
        R: Future<Output = JobResult> + Send + 'static,
    {
        self.0.push(Arc::new(move |info, next| Box::pin(hook(info, next))));
    }

    /// The handler is called when the innermost hook says so, and not before.
    pub(super) fn run<S: Send + 'static>(
        &self,
        handle: &One<S>,
        state: S,
        info: JobInfo,
    ) -> BoxFuture<'static, JobResult> {
        if self.0.is_empty() {
            return handle(state, info);
        }
        let (handle, of) = (handle.clone(), info.clone());
        let mut job: BoxFuture<'static, JobResult> = Box::pin(async move { handle(state, of).await });
        for hook in self.0.iter().rev() {
            job = hook(info.clone(), Next(job));
        }
        job
    }
}
