//! Reading a stream without taking anything from it, and following it.

use forebay_broker::api::{Filter, Hold, ReadPage};
use forebay_core::types::{Seq, StreamName};

use super::{Answer, Service, content_bytes, page, position, reply_bytes};
use crate::native::limits::{FOLLOW_PAGE, FOLLOW_PAGE_BYTES, PAGE_BYTES_MAX};

/// The size of the reply that a page becomes.
fn size_of(page: &ReadPage) -> usize {
    reply_bytes(page.messages.len(), page.messages.iter().map(|found| found.content.len()).sum())
}

/// Where following a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::native) enum From {
    /// With this position, or the first message after it.
    Seq(u64),
    /// After the last message that is there now.
    End,
}

impl Service {
    pub(in crate::native) async fn read(
        &self,
        stream: StreamName,
        from: u64,
        limit: Option<u64>,
        filter: &Filter,
    ) -> Answer<(ReadPage, Hold)> {
        let limit = page(limit)? as u64;
        // Room is taken first, and the page is as large as the room.
        let mut hold = self.share.take_up_to(PAGE_BYTES_MAX);
        let most = (limit, content_bytes(hold.bytes()));
        let page = self.answer(self.caller.browse_within(stream, position(from), most, filter).await)?;
        if !hold.try_grow(size_of(&page)) {
            drop(hold);
            hold = self.room(page.messages.len(), content_bytes(size_of(&page))).await?;
        }
        hold.set(size_of(&page));
        Ok((page, hold))
    }

    /// The first position for a reader that follows a stream. The stream must exist.
    pub(in crate::native) async fn follow_from(&self, stream: StreamName, from: From) -> Answer<Seq> {
        let last = self.stream(stream).await?.figures.last;
        Ok(match from {
            From::Seq(seq) => position(seq),
            From::End => last.next(),
        })
    }

    /// The next messages of a stream, with room for them. Waits until there are some, and until there is room. May be
    /// dropped and called again.
    pub(in crate::native) async fn next_messages(
        &self,
        stream: &StreamName,
        mut from: Seq,
        filter: &Filter,
    ) -> Answer<(ReadPage, Hold)> {
        let mut hold = self.share.take_up_to(FOLLOW_PAGE_BYTES);
        loop {
            let most = (FOLLOW_PAGE, content_bytes(hold.bytes()));
            let found = self.answer(self.caller.browse_within(stream.clone(), from, most, filter).await)?;
            if !found.messages.is_empty() {
                let size = size_of(&found);
                if hold.try_grow(size) {
                    hold.set(size);
                    return Ok((found, hold));
                }
                // One message is larger than the room. Others read on meanwhile, so it is not kept in memory.
                drop((found, hold));
                hold = self.share.wait(size).await;
                continue;
            }
            // A follower without messages needs no room.
            hold.set(0);
            from = found.next;
            if from > found.last {
                self.answer(self.caller.grown(stream.clone(), Seq(from.0.saturating_sub(1))).await)?;
            }
            hold = self.share.take_up_to(FOLLOW_PAGE_BYTES);
        }
    }
}
