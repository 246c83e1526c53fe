//! Seeing messages without taking them.

use forebay_core::types::{Seq, StreamName};

use super::Caller;
use crate::access::{Resource, Right};
use crate::batch::{Message, parse_content};
use crate::error::CallError;
use crate::report::{Found, ReadPage};

/// Messages that one call looks at, at most. A filter that few pass then answers with fewer than asked for,
/// and says where to go on.
const LOOKED_AT_MAX: u64 = 10_000;
/// Messages that are asked for at a time.
const AT_A_TIME: u64 = 1_000;

/// Which messages are wanted, by what their producers said of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub key: Option<String>,
    pub kind: Option<String>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        self.key.is_none() && self.kind.is_none()
    }

    pub fn passes(&self, found: &Found) -> bool {
        self.is_empty() || parse_content(&found.content).is_ok_and(|message| self.passes_message(&message))
    }

    fn passes_message(&self, message: &Message<'_>) -> bool {
        let agrees = |wanted: &Option<String>, has: Option<&[u8]>| {
            wanted.as_ref().is_none_or(|wanted| has == Some(wanted.as_bytes()))
        };
        agrees(&self.key, message.key) && agrees(&self.kind, message.kind.map(str::as_bytes))
    }
}

impl Caller {
    /// Messages of a stream from `from` on, in order, without disturbing anything. Stops after `limit`
    /// messages, or when enough bytes have come together.
    pub async fn read(&self, stream: StreamName, from: Seq, limit: u64) -> Result<ReadPage, CallError> {
        self.read_within(stream, from, limit, usize::MAX).await
    }

    async fn read_within(
        &self,
        stream: StreamName,
        from: Seq,
        limit: u64,
        bytes: usize,
    ) -> Result<ReadPage, CallError> {
        self.may(Right::Read, Resource::Stream(&stream))?;
        let shard = self.shard_of(&stream);
        let _permit = shard.read_permit().await;
        shard.ask(move |task, reply| task.read(&stream, from, (limit, bytes), reply)).await
    }

    /// As [`Caller::read`], of those that pass the filter.
    pub async fn browse(
        &self,
        stream: StreamName,
        from: Seq,
        limit: u64,
        filter: &Filter,
    ) -> Result<ReadPage, CallError> {
        self.browse_within(stream, from, (limit, usize::MAX), filter).await
    }

    /// As [`Caller::browse`], and no more than so many bytes of content, though one message always fits.
    pub async fn browse_within(
        &self,
        stream: StreamName,
        from: Seq,
        (limit, bytes_max): (u64, usize),
        filter: &Filter,
    ) -> Result<ReadPage, CallError> {
        let bytes_max = bytes_max.min(self.shard_of(&stream).read_bytes_max);
        if filter.is_empty() {
            return self.read_within(stream, from, limit, bytes_max).await;
        }
        let mut page = ReadPage { messages: Vec::new(), next: from, last: Seq::START };
        let (mut looked_at, mut bytes) = (0, 0);
        while looked_at < LOOKED_AT_MAX && bytes < bytes_max {
            let read = self.read(stream.clone(), page.next, AT_A_TIME).await?;
            (page.next, page.last) = (read.next, read.last);
            looked_at += AT_A_TIME;
            for found in read.messages {
                if filter.passes(&found) {
                    if bytes > 0 && bytes + found.content.len() > bytes_max {
                        page.next = found.seq;
                        return Ok(page);
                    }
                    bytes += found.content.len();
                    page.next = found.seq.next();
                    page.messages.push(found);
                    if page.messages.len() as u64 == limit {
                        return Ok(page);
                    }
                }
            }
            page.next = page.next.max(read.next);
            if page.next > page.last {
                break;
            }
        }
        Ok(page)
    }
}
