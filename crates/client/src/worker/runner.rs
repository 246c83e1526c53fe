//! Runs jobs, one after the other.
//!
//! A runner is a task that takes work from the desk, runs the handler, and brings back a verdict. Runners stay, so a
//! job costs no task of its own, and a runner that finds the next job waiting goes on without waking another task.

use std::any::Any;
use std::error::Error;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::desk::{Parcel, Taken, Verdict, Work};
use super::event::WorkerEvent;
use super::route::{Handler, JobResult};
use super::shared::Shared;
use crate::clock;
use crate::error::in_words;
use crate::fault::{Class, Fault};
use crate::idempotency::{Begun, StoreError};
use crate::job::JobInfo;
use forebay_model::limits::YEAR;

/// The delay of a message that another worker has claimed, or whose store does not answer.
const BUSY_MIN: Duration = Duration::from_millis(200);
const BUSY_MAX: Duration = Duration::from_secs(5);
/// The pause after a service was overloaded that did not say for how long.
const THROTTLED: Duration = Duration::from_secs(1);
/// How often a failed write of a mark is retried after the work is done, and the wait in between.
const MARK_TRIES: u32 = 5;
const MARK_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause of a group.
const REST_MAX: Duration = Duration::from_secs(300);
/// How many bytes of a reason are sent.
const REASON_BYTES_MAX: usize = 2_000;

pub(super) async fn run<S: Clone + Send + Sync + 'static>(shared: Arc<Shared<S>>) {
    let mut finished: Option<(Work, Vec<Verdict>, Duration)> = None;
    loop {
        let woken = shared.work.notified();
        let now = clock::now();
        let taken = {
            let mut desk = shared.desk();
            if let Some((work, verdicts, took)) = finished.take() {
                let first = !desk.has_done();
                desk.finish(now, work, verdicts, took);
                if first {
                    shared.verdicts.notify_one();
                }
            }
            let taken = desk.take(now);
            // A runner that gets work wakes the next one if there is more.
            if matches!(taken, Taken::Work(_)) && desk.may_take() {
                shared.work.notify_one();
            }
            taken
        };
        match taken {
            Taken::Work(work) => {
                let verdicts = do_work(&shared, &work).await;
                finished = Some((work, verdicts, now.elapsed()));
            }
            Taken::Later(Some(at)) => {
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep_until(at) => {}
                }
            }
            Taken::Later(None) => woken.await,
        }
    }
}

async fn do_work<S: Clone + Send + Sync + 'static>(shared: &Shared<S>, work: &Work) -> Vec<Verdict> {
    let route = &shared.routes[work.route];
    match &route.handler {
        Handler::One(handle) => {
            let [parcel] = &work.parcels[..] else { unreachable!("a batch goes to a batch handler") };
            if let Some(verdict) = claim(shared, parcel).await {
                return vec![verdict];
            }
            let info = &parcel.info;
            // Inside the async block, so that a handler that panics before its first await is caught as well.
            let job = async { shared.middleware.run(handle, shared.state.clone(), info.clone()).await };
            let result = guard(shared, route.timeout, std::slice::from_ref(parcel), job).await;
            let result = result.unwrap_or_else(Err);
            vec![conclude(shared, parcel, result).await]
        }
        Handler::Many { handle, .. } => {
            let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(work.parcels.len());
            for parcel in &work.parcels {
                verdicts.push(claim(shared, parcel).await);
            }
            let ours = work.parcels.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_none());
            let ours: Vec<JobInfo> = ours.map(|(parcel, _)| parcel.info.clone()).collect();
            if ours.is_empty() {
                return verdicts.into_iter().flatten().collect();
            }
            let count = ours.len();
            let jobs = async { handle(shared.state.clone(), ours).await };
            let mut results = match guard(shared, route.timeout, &work.parcels, jobs).await {
                Ok(results) => results,
                // All of them failed together, for one reason.
                Err(fault) => (0..count).map(|_| Err(fault.again())).collect(),
            }
            .into_iter();
            let mut concluded = Vec::with_capacity(verdicts.len());
            for (parcel, verdict) in work.parcels.iter().zip(verdicts) {
                concluded.push(match verdict {
                    Some(verdict) => verdict,
                    None => {
                        let result = results.next().expect("there is a result for each job");
                        conclude(shared, parcel, result).await
                    }
                });
            }
            concluded
        }
    }
}

/// Claims the work at the idempotency store. Returns a verdict if the handler must not run.
async fn claim<S>(shared: &Shared<S>, parcel: &Parcel) -> Option<Verdict> {
    if parcel.info.is_cancelled() {
        return Some(Verdict::Lost);
    }
    let store = shared.idempotency.as_ref()?;
    // A panic in a user's function must not end the worker.
    let Ok(key) = catch_unwind(AssertUnwindSafe(|| (store.key)(&parcel.info))) else {
        return Some(Verdict::Park { reason: "the function for the idempotency key panicked".to_owned() });
    };
    match store.store.begin(&key, shared.claim_lasts()).await {
        Ok(Begun::New(claim)) => {
            parcel.info.set_claim(claim);
            None
        }
        Ok(Begun::Done) => Some(Verdict::Duplicate),
        Ok(Begun::Busy(left)) => Some(Verdict::Return { after: Some(left.clamp(BUSY_MIN, BUSY_MAX)) }),
        Err(error) => {
            // Not a failure of the message, so it must not use up its retries.
            shared.emit(WorkerEvent::StoreFailed { error: in_words(&error) });
            Some(Verdict::NoStore { after: BUSY_MAX })
        }
    }
}

/// Runs a handler in its span, with its timeout, and catches its panics.
async fn guard<S, R>(
    shared: &Shared<S>,
    timeout: Option<Duration>,
    parcels: &[Parcel],
    job: impl Future<Output = R>,
) -> Result<R, Fault> {
    let started = clock::now();
    let job = AssertUnwindSafe(job).catch_unwind().instrument(span(&parcels[0].info, parcels.len()));
    let ended = match timeout.or(shared.timeout) {
        Some(timeout) => match tokio::time::timeout(timeout, job).await {
            Ok(ended) => ended,
            Err(_) => {
                shared.counters.timed_out.add(1);
                let seconds = timeout.as_secs_f64();
                return Err(Fault::transient(format!("timed out after {seconds} seconds")));
            }
        },
        None => job.await,
    };
    let took = started.elapsed();
    shared.counters.busy_us.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    ended.map_err(|panic| {
        shared.counters.panicked.add(1);
        Fault::transient(format!("panicked: {}", panic_text(&*panic)))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The span of a job, with the trace that the message was published in.
fn span(info: &JobInfo, jobs: usize) -> tracing::Span {
    let span = tracing::info_span!(
        "job",
        stream = info.stream(),
        group = info.group(),
        seq = info.seq(),
        attempt = info.attempt(),
        r#type = info.kind(),
        key = info.key(),
        id = info.id(),
        jobs,
        trace_id = tracing::field::Empty,
        parent_id = tracing::field::Empty,
    );
    if !span.is_disabled()
        && let Some((trace, parent)) = info.header("traceparent").and_then(trace_of)
    {
        span.record("trace_id", trace).record("parent_id", parent);
    }
    span
}

/// Trace and parent of a `traceparent` header: `00-<32 hex digits>-<16 hex digits>-<flags>`.
fn trace_of(header: &str) -> Option<(&str, &str)> {
    let mut parts = header.split('-').skip(1);
    let (trace, parent) = (parts.next()?, parts.next()?);
    (trace.len() == 32 && parent.len() == 16).then_some((trace, parent))
}

/// The verdict on a message whose handler has ended.
async fn conclude<S>(shared: &Shared<S>, parcel: &Parcel, result: JobResult) -> Verdict {
    if parcel.info.is_finished() {
        if let Err(fault) = &result {
            tracing::warn!(
                seq = parcel.info.seq(),
                reason = fault.reason(),
                "a finished job failed afterwards"
            );
        }
        // The message is settled. Without the mark nothing is done twice, since it does not come again.
        if let Err(fault) = mark(shared, &parcel.info).await {
            shared.emit(WorkerEvent::StoreFailed { error: fault.reason().to_owned() });
        }
        return Verdict::Finished;
    }
    let was_done = result.is_ok();
    let fault = match result {
        Ok(()) => match mark(shared, &parcel.info).await {
            Ok(()) => return Verdict::Ack,
            Err(fault) => fault,
        },
        Err(fault) => fault,
    };
    if is_taken(&fault) {
        if was_done {
            shared.counters.late.add(1);
            shared.emit(WorkerEvent::LateAnswer { seq: parcel.info.seq() });
        }
        // Another worker has done it, or works on it. The next delivery finds out which.
        return Verdict::Return { after: Some(BUSY_MIN) };
    }
    if let (Some(store), Some(claim)) = (&shared.idempotency, parcel.info.claim())
        && let Err(error) = store.store.abandon(claim).await
    {
        // The claim lapses by itself, only later.
        shared.emit(WorkerEvent::StoreFailed { error: in_words(&error) });
    }
    if parcel.info.is_cancelled() {
        // The worker is out of time, or the lease was lost: not a failure of the message.
        return Verdict::Return { after: None };
    }
    verdict(shared, fault)
}

/// Whether another worker has taken the work over, by any error in the chain.
fn is_taken(fault: &Fault) -> bool {
    let mut error: Option<&(dyn Error + 'static)> = fault.error().map(|error| error as _);
    while let Some(cause) = error {
        if let Some(StoreError::Taken { .. }) = cause.downcast_ref() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// Writes the mark, unless the handler has written it.
async fn mark<S>(shared: &Shared<S>, info: &JobInfo) -> Result<(), Fault> {
    let (Some(store), Some(claim)) = (&shared.idempotency, info.claim()) else { return Ok(()) };
    if info.is_marked() {
        return Ok(());
    }
    let mut tries = 0;
    loop {
        let error = match store.store.finish(claim, store.keep).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        tries += 1;
        if matches!(error, StoreError::Taken { .. }) || tries == MARK_TRIES {
            return Err(error.into());
        }
        shared.emit(WorkerEvent::StoreFailed { error: in_words(&error) });
        tokio::time::sleep(MARK_PAUSE * tries).await;
    }
}

fn verdict<S>(shared: &Shared<S>, fault: Fault) -> Verdict {
    let class = fault.class().unwrap_or_else(|| match fault.error() {
        Some(error) => {
            let classify = AssertUnwindSafe(|| (shared.classify)(error));
            catch_unwind(classify).unwrap_or(Class::Transient)
        }
        None => Class::Transient,
    });
    let reason = cut(fault.reason());
    match class {
        Class::Transient => Verdict::Retry { after: None, reason },
        Class::RetryAfter(after) => Verdict::Retry { after: Some(after.min(YEAR)), reason },
        Class::Permanent => Verdict::Park { reason },
        Class::Skip => Verdict::Skip { reason },
        Class::Snooze(after) => Verdict::Return { after: Some(after.min(YEAR)) },
        Class::Throttled(after) => {
            Verdict::Throttled { after: after.unwrap_or(THROTTLED).min(REST_MAX), reason }
        }
    }
}

fn cut(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_from_its_header() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(trace_of(header), Some(("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")));
        for other in ["", "00", "00-12-34-01", "00-0af7651916cd43dd8448eb211c80319c"] {
            assert_eq!(trace_of(other), None);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let cut = cut(&"ä".repeat(2_000));
        assert!(cut.len() <= REASON_BYTES_MAX && cut.chars().all(|char| char == 'ä'));
    }
}
