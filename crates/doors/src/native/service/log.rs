//! Reading the messages of all streams in the order in which they were published, and following them.

use std::sync::Arc;

use forebay_broker::api::{Choice, Direction, Hold, LogFilter, LogPage, LogReader, Most};
use forebay_core::types::Ordinal;

use super::{Answer, From, MESSAGE_BYTES, Service, content_bytes, filter, page, position, reply_bytes};
use crate::native::limits::{FOLLOW_PAGE, FOLLOW_PAGE_BYTES, PAGE_BYTES_MAX, POSITION_MAX};

/// How often one page reads on where few messages pass the filter.
const READS_MAX: usize = 10;

/// Which messages are wanted. Streams of the system are left out unless the prefix names them.
pub(in crate::native) fn log_filter(
    stream_prefix: Option<String>,
    type_prefix: Option<String>,
    key: Option<String>,
    kind: Option<String>,
) -> LogFilter {
    let streams = match stream_prefix.filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => Choice::prefix(&prefix),
        None => Choice::Test(Arc::new(|name| !name.starts_with('$'))),
    };
    LogFilter {
        streams,
        kinds: Choice::prefix(&type_prefix.unwrap_or_default()),
        messages: filter(key, kind),
    }
}

/// The size of the reply that a page becomes.
fn size_of(page: &LogPage) -> usize {
    let contents = page.messages.iter().map(|logged| logged.message.content.len()).sum();
    let names: usize = page.messages.iter().map(|logged| logged.stream.as_str().len()).sum();
    reply_bytes(page.messages.len(), contents) + names
}

fn ordinal(number: u64) -> Ordinal {
    Ordinal(position(number).0)
}

impl Service {
    /// A page of messages of all streams: from a position in the log on, or from there back.
    pub(in crate::native) async fn read_log(
        &self,
        from: Option<u64>,
        direction: Direction,
        limit: Option<u64>,
        filter: LogFilter,
    ) -> Answer<(LogPage, Hold)> {
        let limit = page(limit)? as u64;
        let from = match direction {
            Direction::Forwards => from.unwrap_or(1),
            Direction::Backwards => from.unwrap_or(POSITION_MAX),
        };
        // Room is taken first, and the page is as large as the room.
        let mut hold = self.share.take_up_to(PAGE_BYTES_MAX);
        let bytes_max = content_bytes(hold.bytes());
        let mut reader = self.answer(self.caller.log_reader(ordinal(from), direction, filter))?;
        let mut page = self.answer(reader.next(Most { messages: limit, bytes: bytes_max }).await)?;
        for _ in 1..READS_MAX {
            let bytes: usize = page.messages.iter().map(|logged| logged.message.content.len()).sum();
            let most = Most {
                messages: limit.saturating_sub(page.messages.len() as u64),
                bytes: bytes_max.saturating_sub(bytes),
            };
            // A reader brings at least one message, which may not fit any more.
            if page.is_end || !most.has_room(0, 0) || !page.messages.is_empty() && most.bytes < bytes_max / 2
            {
                break;
            }
            let more = self.answer(reader.next(most).await)?;
            page.messages.extend(more.messages);
            (page.next, page.last, page.is_end) = (more.next, more.last, more.is_end);
        }
        let size = size_of(&page);
        if !hold.try_grow(size) {
            drop(hold);
            hold = self.room(page.messages.len(), content_bytes(size)).await?;
        }
        hold.set(size);
        Ok((page, hold))
    }

    /// Follows all streams from this position in the log on.
    pub(in crate::native) async fn follow_log(&self, from: From, filter: LogFilter) -> Answer<FollowingLog> {
        let from = match from {
            From::Seq(number) => ordinal(number),
            From::End => self.answer(self.caller.log_end().await)?.plus(1),
        };
        let reader = self.answer(self.caller.log_reader(from, Direction::Forwards, filter))?;
        Ok(FollowingLog { service: self.clone(), reader })
    }
}

/// A client that follows all streams: the messages that are there, and then new ones as they come. One loop for both
/// protocols.
pub(in crate::native) struct FollowingLog {
    service: Service,
    reader: LogReader,
}

impl FollowingLog {
    /// The next messages, with room for them. Waits until there are some, and until there is room. May be dropped and
    /// called again.
    pub(in crate::native) async fn next(&mut self) -> Answer<(LogPage, Hold)> {
        let share = self.service.share.clone();
        let mut hold = share.take_up_to(FOLLOW_PAGE_BYTES);
        loop {
            let messages = FOLLOW_PAGE.min((hold.bytes() / MESSAGE_BYTES) as u64).max(1);
            let most = Most { messages, bytes: content_bytes(hold.bytes()) };
            let page = self.service.answer(self.reader.next(most).await)?;
            let Some(first) = page.messages.first().map(|logged| logged.message.ordinal) else {
                if page.is_end {
                    // A follower without messages needs no room.
                    hold.set(0);
                    self.service.answer(self.reader.grown().await)?;
                    hold = share.take_up_to(FOLLOW_PAGE_BYTES);
                }
                continue;
            };
            let size = size_of(&page);
            if hold.try_grow(size) {
                hold.set(size);
                return Ok((page, hold));
            }
            // One message is larger than the room. Others read on meanwhile, so it is not kept in memory.
            self.reader.seek(first);
            drop((page, hold));
            hold = share.wait(size).await;
        }
    }

    /// Goes back to a message that did not fit into a reply.
    pub(in crate::native) fn seek(&mut self, next: Ordinal) {
        self.reader.seek(next);
    }
}
