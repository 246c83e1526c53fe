//! The description of a message for a handler outside of this process.

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use forebay_client::Job;
use forebay_wire::json::Time;
use forebay_wire::json::body::to_base64;

/// A message with all its fields, borrowed from the job that it is.
#[derive(Debug, Clone)]
pub(crate) struct Task<'a> {
    pub(crate) stream: &'a str,
    pub(crate) group: &'a str,
    pub(crate) seq: u64,
    pub(crate) attempt: u32,
    pub(crate) id: Option<&'a str>,
    pub(crate) key: Option<&'a str>,
    /// The key in base64, if it is not text.
    pub(crate) key_base64: Option<String>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) schema: Option<u64>,
    pub(crate) priority: u8,
    pub(crate) published_at: Time,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) body: &'a Bytes,
    pub(crate) content_type: Option<&'a str>,
}

impl<'a> Task<'a> {
    pub(crate) fn of(job: &'a Job<Bytes>) -> Task<'a> {
        let info = &job.info;
        let published = info.published_at().duration_since(UNIX_EPOCH).unwrap_or_default();
        Task {
            stream: info.stream(),
            group: info.group(),
            seq: info.seq(),
            attempt: info.attempt(),
            id: info.id(),
            key: info.key(),
            key_base64: info.key_bytes().filter(|_| info.key().is_none()).map(to_base64),
            kind: info.kind(),
            schema: info.schema(),
            priority: info.priority(),
            published_at: Time(u64::try_from(published.as_micros()).unwrap_or(u64::MAX)),
            headers: info.headers().collect(),
            body: &job.payload,
            content_type: info.content_type(),
        }
    }

    /// The first header of this name, in capitals or not.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }
}

#[cfg(test)]
impl Task<'_> {
    /// A plain message, for tests.
    pub(crate) fn plain(body: &Bytes) -> Task<'_> {
        Task {
            stream: "emails",
            group: "senders",
            seq: 12,
            attempt: 1,
            id: None,
            key: None,
            key_base64: None,
            kind: None,
            schema: None,
            priority: 0,
            published_at: Time(1_700_000_000_000_000),
            headers: Vec::new(),
            body,
            content_type: None,
        }
    }
}
