//! A message in the hands of a handler.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_wire::v1;
use tokio_util::sync::CancellationToken;

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

/// What is known about a message beside its payload. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobInfo(Arc<Facts>);

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) stream: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) seq: u64,
    pub(crate) attempt: u32,
    /// As it was delivered.
    pub(crate) message: v1::Message,
    pub(crate) cancelled: CancellationToken,
    /// The right to do the work, if there is an idempotency store.
    pub(crate) claim: Option<Claim>,
    /// The handler has written the mark itself.
    pub(crate) marked: AtomicBool,
}

impl JobInfo {
    pub(crate) fn new(facts: Facts) -> JobInfo {
        JobInfo(Arc::new(facts))
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
        self.0.cancelled.is_cancelled()
    }

    /// Resolves when the job is cancelled, for `select!`.
    pub async fn cancelled(&self) {
        self.0.cancelled.cancelled().await;
    }

    /// The right to do the work, which a store of marks has given. Without a store there is none.
    pub fn claim(&self) -> Option<&Claim> {
        self.0.claim.as_ref()
    }

    /// The mark is written, or will be when the handler's transaction is committed; the worker need not do it.
    pub(crate) fn set_marked(&self) {
        self.0.marked.store(true, Ordering::Release);
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.0.marked.load(Ordering::Acquire)
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.0
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
