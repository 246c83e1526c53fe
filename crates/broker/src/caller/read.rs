//! Seeing messages without taking them.

mod log;
mod reader;

use forebay_core::types::{Seq, StreamName};

use super::Caller;
use crate::access::{Resource, Right};
use crate::batch::{Message, parse_content};
use crate::error::CallError;
use crate::reader::{Direction, Most};
use crate::report::ReadPage;

pub(crate) use log::Standing;
pub use log::{Choice, LogFilter, LogMessage, LogPage, LogReader};
pub use reader::Reader;
pub(crate) use reader::Signal;

/// Messages that one call looks at, at most. A filter that few pass then answers with fewer than asked for,
/// and says where to go on.
const LOOKED_AT_MAX: u64 = 10_000;
/// Messages that are looked at in one go, where a filter chooses among them.
const AT_A_TIME: u64 = 1_000;
/// Streams that one reader may read.
const STREAMS_MAX: usize = 10_000;

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

    /// Whether a message with this content is wanted.
    pub fn passes(&self, content: &[u8]) -> bool {
        self.is_empty() || parse_content(content).is_ok_and(|message| self.passes_message(&message))
    }

    fn passes_message(&self, message: &Message<'_>) -> bool {
        let agrees = |wanted: &Option<String>, has: Option<&[u8]>| {
            wanted.as_ref().is_none_or(|wanted| has == Some(wanted.as_bytes()))
        };
        agrees(&self.key, message.key) && agrees(&self.kind, message.kind.map(str::as_bytes))
    }
}

impl Caller {
    /// A reader of a stream from `next` on, or from there back.
    pub async fn reader(
        &self,
        stream: StreamName,
        next: Seq,
        direction: Direction,
    ) -> Result<Reader, CallError> {
        self.reader_of(vec![(stream, next)], direction).await
    }

    /// A reader of several streams, each from a position of its own. Messages of one stream come in order; streams take
    /// turns.
    pub async fn reader_of(
        &self,
        streams: Vec<(StreamName, Seq)>,
        direction: Direction,
    ) -> Result<Reader, CallError> {
        if streams.is_empty() || streams.len() > STREAMS_MAX {
            return Err(CallError::TooManyStreams { streams: streams.len(), limit: STREAMS_MAX });
        }
        for (stream, _) in &streams {
            self.may(Right::Read, Resource::Stream(stream))?;
        }
        let shard = self.broker.whole().clone();
        let (names, positions): (Vec<StreamName>, Vec<Seq>) = streams.into_iter().unzip();
        let ids = shard.ask(move |task, reply| task.find_streams(&names, reply)).await?;
        let share = self.broker.memory().reader();
        Ok(Reader::new(shard, share, ids.into_iter().zip(positions), direction))
    }

    /// Messages of a stream from `from` on, in order, without disturbing anything. Stops after `limit`
    /// messages, or when enough bytes have come together.
    pub async fn read(&self, stream: StreamName, from: Seq, limit: u64) -> Result<ReadPage, CallError> {
        self.browse(stream, from, limit, &Filter::default()).await
    }

    /// As [`Caller::read`], of those that pass the filter.
    pub async fn browse(
        &self,
        stream: StreamName,
        from: Seq,
        limit: u64,
        filter: &Filter,
    ) -> Result<ReadPage, CallError> {
        let most = Most { messages: limit, bytes: usize::MAX };
        self.browse_within(stream, from, Direction::Forwards, most, filter).await
    }

    /// As [`Caller::browse`], in either direction, and no more than so many bytes of content, though one message always
    /// fits. Backwards, `next` of the page is zero when there are no more messages.
    pub async fn browse_within(
        &self,
        stream: StreamName,
        from: Seq,
        direction: Direction,
        most: Most,
        filter: &Filter,
    ) -> Result<ReadPage, CallError> {
        let bytes_max = most.bytes.min(self.shard_of(&stream).read_bytes_max);
        let mut reader = self.reader(stream, from, direction).await?;
        let mut page = ReadPage { messages: Vec::new(), next: from, last: Seq::START };
        let (mut looked_at, mut bytes) = (0, 0);
        while most.messages > page.messages.len() as u64 && bytes < bytes_max {
            let some = match filter.is_empty() {
                true => {
                    Most { messages: most.messages - page.messages.len() as u64, bytes: bytes_max - bytes }
                }
                false if looked_at >= LOOKED_AT_MAX => break,
                false => Most { messages: AT_A_TIME, bytes: bytes_max },
            };
            let stretches = reader.next(some).await?;
            page.last = reader.last();
            if stretches.is_empty() {
                page.next = match direction {
                    Direction::Forwards => page.next.max(page.last.next()),
                    Direction::Backwards => Seq::START,
                };
                break;
            }
            for stretch in &stretches {
                for n in 0..stretch.len() {
                    let n = match direction {
                        Direction::Forwards => n,
                        Direction::Backwards => stretch.len() - 1 - n,
                    };
                    let seq = stretch.first.seq.plus(n as u64);
                    let content = stretch.content_bytes(n);
                    looked_at += 1;
                    if filter.passes(content) {
                        if bytes > 0 && bytes + content.len() > bytes_max {
                            page.next = seq;
                            return Ok(page);
                        }
                        bytes += content.len();
                        page.messages.push(stretch.get(n));
                    }
                    page.next = match direction {
                        Direction::Forwards => seq.next(),
                        Direction::Backwards => Seq(seq.0 - 1),
                    };
                    if page.messages.len() as u64 == most.messages {
                        return Ok(page);
                    }
                }
            }
        }
        Ok(page)
    }

    /// Resolves when a stream has a message after `seen`, with the last one that it has then.
    pub async fn grown(&self, stream: StreamName, seen: Seq) -> Result<Seq, CallError> {
        let mut reader = self.reader(stream, seen.next(), Direction::Forwards).await?;
        loop {
            let found = reader.next(Most { messages: 1, bytes: 1 }).await?;
            if !found.is_empty() || reader.last() > seen {
                return Ok(reader.last());
            }
            reader.grown().await?;
        }
    }
}
