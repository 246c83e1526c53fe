//! A message and its payload, as a handler gets it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::problem::Code;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::consumer::Lease;
use crate::error::Advice;
use crate::fault::Fault;
use crate::idempotency::Claim;
use crate::message::StoredMessage;
use crate::transaction::MessageSet;

/// The wait before a transaction is tried again for which the server had no room: twice as long each time.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// A message that a handler works on: its payload, and everything else that is known about it.
///
/// Dereferences to the payload.
#[derive(Debug, Clone)]
pub struct Job<T> {
    /// The decoded body.
    pub payload: T,
    /// Everything else: position, attempt, id, key, headers.
    pub info: JobInfo,
}

impl<T> Deref for Job<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.payload
    }
}

impl<T> Job<T> {
    /// Acknowledges the message and publishes these messages, in one transaction: see [`JobInfo::finish_with`].
    pub async fn finish_with(&self, messages: MessageSet) -> Result<(), Fault> {
        self.info.finish_with(messages).await
    }
}

impl<T> AsRef<JobInfo> for Job<T> {
    fn as_ref(&self) -> &JobInfo {
        &self.info
    }
}

impl AsRef<JobInfo> for JobInfo {
    fn as_ref(&self) -> &JobInfo {
        self
    }
}

/// Everything that is known about a message except its payload. Cheap to clone.
///
/// Dereferences to the [`StoredMessage`], which has the id, the key, the headers and so on.
#[derive(Debug, Clone)]
pub struct JobInfo(Arc<Facts>);

#[derive(Debug)]
struct Facts {
    stream: Arc<str>,
    group: Arc<str>,
    attempt: u32,
    message: StoredMessage,
    cancelled: Cancelled,
    /// The claim on the work, if the worker has an idempotency store.
    claim: OnceLock<Claim>,
    /// The handler has written the mark itself.
    marked: AtomicBool,
    /// How the job is finished with messages. `None` if it does not come from a worker.
    finisher: OnceLock<Finisher>,
    /// The message is acknowledged.
    finished: AtomicBool,
}

/// The way from a job to the connection of its worker.
#[derive(Debug, Clone)]
pub(crate) struct Finisher {
    pub(crate) lease: Lease,
    pub(crate) requests: mpsc::UnboundedSender<Finish>,
}

/// A lease to acknowledge, with messages to publish.
#[derive(Debug)]
pub(crate) struct Finish {
    pub(crate) lease: Lease,
    pub(crate) publish: Vec<v1::Publication>,
    pub(crate) reply: oneshot::Sender<Result<(), v1::Problem>>,
}

/// A signal that is given once. It lies in the job, so that a job costs one allocation.
#[derive(Debug, Default)]
struct Cancelled {
    is: AtomicBool,
    told: Notify,
}

impl JobInfo {
    pub(crate) fn new(
        stream: Arc<str>,
        group: Arc<str>,
        seq: u64,
        attempt: u32,
        message: v1::Message,
    ) -> JobInfo {
        JobInfo(Arc::new(Facts {
            stream,
            group,
            attempt,
            message: StoredMessage::new(seq, message),
            cancelled: Cancelled::default(),
            claim: OnceLock::new(),
            marked: AtomicBool::new(false),
            finisher: OnceLock::new(),
            finished: AtomicBool::new(false),
        }))
    }

    /// The stream that the message is in.
    pub fn stream(&self) -> &str {
        &self.0.stream
    }

    /// The group that delivered the message.
    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// How often the message has been delivered. The first delivery is 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Whether the job was cancelled: the lease was lost, or the worker has run out of time to shut down. The message
    /// may be with another worker by now, and an ack will have no effect.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is.load(Ordering::Acquire)
    }

    /// Resolves when the job is cancelled, for `select!`.
    pub async fn cancelled(&self) {
        let told = self.0.cancelled.told.notified();
        if !self.is_cancelled() {
            told.await;
        }
    }

    pub(crate) fn cancel(&self) {
        self.0.cancelled.is.store(true, Ordering::Release);
        self.0.cancelled.told.notify_waiters();
    }

    /// The claim on the work that the idempotency store has given. `None` if the worker has no store.
    pub fn claim(&self) -> Option<&Claim> {
        self.0.claim.get()
    }

    pub(crate) fn set_claim(&self, claim: Claim) {
        // A job is claimed once, before its handler runs.
        let _ = self.0.claim.set(claim);
    }

    /// Acknowledges the message and publishes these messages, in one transaction: all of it is done and durable when
    /// this returns, or nothing is. The handler returns after it; a failure that it returns then changes nothing.
    ///
    /// This is how a worker that reads from one stream and writes to others does so exactly once. The transaction is
    /// done only if this worker still holds the message. If the connection breaks, the call fails and it is not known
    /// whether the transaction was done; but either it was, and the message does not come again, or it was not, and
    /// the message is delivered again, to this worker or another. So no message is published twice, and none is
    /// missing. Everything else that a handler does may happen more than once.
    ///
    /// While the server has no room for the messages, the transaction is tried again as long as the job holds its
    /// message. A transaction that can never succeed is a permanent fault: the message is parked.
    ///
    /// ```
    /// use forebay_client::{Fault, Job, MessageSet, Payload};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Order { number: u64 }
    /// impl Payload for Order { const TYPE: &'static str = "order"; }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Invoice { order: u64 }
    /// impl Payload for Invoice { const TYPE: &'static str = "invoice"; }
    ///
    /// async fn bill(_state: (), job: Job<Order>) -> Result<(), Fault> {
    ///     let invoice = Invoice { order: job.number };
    ///     job.finish_with(MessageSet::new().add("invoices", &invoice)?).await
    /// }
    /// # let _ = bill;
    /// ```
    pub async fn finish_with(&self, messages: MessageSet) -> Result<(), Fault> {
        let Some(Finisher { lease, requests }) = self.0.finisher.get() else {
            return Err(Fault::permanent("only a job of a worker can be finished with messages"));
        };
        if self.is_finished() {
            return Err(Fault::permanent("the job is finished already"));
        }
        let publish = messages.into_wire();
        let mut wait = AGAIN_MIN;
        while !self.is_cancelled() {
            let (reply, answer) = oneshot::channel();
            let finish = Finish { lease: *lease, publish: publish.clone(), reply };
            let _ = requests.send(finish);
            let answered = tokio::select! {
                biased;
                answered = answer => answered,
                () = self.cancelled() => break,
            };
            let problem = match answered {
                Ok(Ok(())) => {
                    self.0.finished.store(true, Ordering::Release);
                    return Ok(());
                }
                Ok(Err(problem)) => problem,
                // The connection is gone: it was done, or the message comes again.
                Err(_) => break,
            };
            match Advice::from_wire(problem.retry()) {
                Advice::RetryLater => {
                    let pause = problem.retry_after_ms.map_or(wait, Duration::from_millis);
                    tokio::select! {
                        () = tokio::time::sleep(pause.min(AGAIN_MAX)) => {}
                        () = self.cancelled() => {}
                    }
                    wait = (wait * 2).min(AGAIN_MAX);
                }
                Advice::FixRequest if problem.code() != Code::LeaseNotCurrent => {
                    return Err(Fault::permanent(problem.detail));
                }
                Advice::FixRequest | Advice::RetryWithSameId => break,
            }
        }
        Err(Fault::transient("the message was lost before the transaction was known to be done"))
    }

    pub(crate) fn set_finisher(&self, finisher: Finisher) {
        // A job comes from one worker.
        let _ = self.0.finisher.set(finisher);
    }

    /// Whether the message is acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.finished.load(Ordering::Acquire)
    }

    /// The mark is written, or will be when the handler's transaction is committed.
    pub(crate) fn set_marked(&self) {
        self.0.marked.store(true, Ordering::Release);
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.0.marked.load(Ordering::Acquire)
    }
}

impl Deref for JobInfo {
    type Target = StoredMessage;

    fn deref(&self) -> &StoredMessage {
        &self.0.message
    }
}
