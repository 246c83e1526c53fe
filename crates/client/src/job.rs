//! A message in the hands of a handler.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_wire::v1;
use tokio::sync::Notify;

use crate::idempotency::Claim;

/// A message in the hands of a handler: its payload, and what is known about it.
///
/// Dereferences to the payload.
#[derive(Debug, Clone)]
pub struct Job<T> {
    pub payload: T,
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

/// What is known about a message beside its payload. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobInfo(Arc<Facts>);

#[derive(Debug)]
struct Facts {
    stream: Arc<str>,
    group: Arc<str>,
    seq: u64,
    attempt: u32,
    /// As it was delivered.
    message: v1::Message,
    cancelled: Cancelled,
    /// The right to do the work, if there is an idempotency store.
    claim: OnceLock<Claim>,
    /// The handler has written the mark itself.
    marked: AtomicBool,
}

/// Told once, to whoever asks. Lies in the job, so that a job costs one allocation.
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
            seq,
            attempt,
            message,
            cancelled: Cancelled::default(),
            claim: OnceLock::new(),
            marked: AtomicBool::new(false),
        }))
    }

    pub fn stream(&self) -> &str {
        &self.0.stream
    }

    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// The message's position in its stream.
    pub fn seq(&self) -> u64 {
        self.0.seq
    }

    /// How often the message has been handed out. The first time is 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    pub fn id(&self) -> Option<&str> {
        given(&self.0.message.id)
    }

    pub fn key(&self) -> Option<&str> {
        given(&self.0.message.key)
    }

    /// What the message is called.
    pub fn kind(&self) -> Option<&str> {
        given(&self.0.message.r#type)
    }

    /// Version of the message's type.
    pub fn schema(&self) -> Option<u64> {
        self.0.message.schema
    }

    pub fn priority(&self) -> u8 {
        u8::try_from(self.0.message.priority).unwrap_or(u8::MAX)
    }

    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.message.headers.iter().map(|header| (&*header.name, &*header.value))
    }

    /// When the message was published, as the server's clock told it.
    pub fn published_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.message.published_at_us)
    }

    /// The lease was lost, or the worker has run out of time: what is done from now on may be done by another as
    /// well, and will not be acked.
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

    /// The message's body, as it was published.
    pub fn body(&self) -> &Bytes {
        &self.0.message.body
    }

    /// The right to do the work, which a store of marks has given. Without a store there is none.
    pub fn claim(&self) -> Option<&Claim> {
        self.0.claim.get()
    }

    pub(crate) fn set_claim(&self, claim: Claim) {
        // A job is claimed once, before its handler runs.
        let _ = self.0.claim.set(claim);
    }

    /// The mark is written, or will be when the handler's transaction is committed; the worker need not do it. For
    /// stores that write marks in a handler's transaction.
    pub fn set_marked(&self) {
        self.0.marked.store(true, Ordering::Release);
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.0.marked.load(Ordering::Acquire)
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
