//! A message and its payload, as a handler gets it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_wire::v1;
use tokio::sync::Notify;

use crate::idempotency::Claim;
use crate::message::StoredMessage;

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
