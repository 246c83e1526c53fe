//! Reading a stream without taking anything from it, and following it.

use forebay_broker::api::{Direction, Filter, Hold, Life, Most, ReadPage, Reader, Stretch};
use forebay_core::types::{GroupName, Seq, StreamName};
use forebay_wire::problem::Kind;

use super::{Answer, MESSAGE_BYTES, Service, content_bytes, page, position, reply_bytes};
use crate::native::limits::{FOLLOW_PAGE, FOLLOW_PAGE_BYTES, PAGE_BYTES_MAX, POSITION_MAX};
use crate::native::problem::Refusal;

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
    /// What became of a message in each group of its stream.
    pub(in crate::native) async fn lives(
        &self,
        stream: StreamName,
        seq: u64,
    ) -> Answer<Vec<(GroupName, Life)>> {
        let kept = self.answer(self.caller.stream(stream.clone()).await)?.figures;
        if seq == 0 || seq > kept.last.0 {
            let text = format!("no message has this position yet. position=`{seq}` last=`{}`", kept.last.0);
            let mut refusal = Refusal::new(Kind::NoSuchPosition, text);
            refusal.last_seq = Some(kept.last.0);
            return Err(refusal);
        }
        self.answer(self.caller.lives(stream, Seq(seq)).await)
    }

    /// A page of messages: from a position on, or from there back.
    pub(in crate::native) async fn read(
        &self,
        stream: StreamName,
        from: Option<u64>,
        direction: Direction,
        limit: Option<u64>,
        filter: &Filter,
    ) -> Answer<(ReadPage, Hold)> {
        let limit = page(limit)? as u64;
        let from = match direction {
            Direction::Forwards => from.unwrap_or(1),
            Direction::Backwards => from.unwrap_or(POSITION_MAX),
        };
        // Room is taken first, and the page is as large as the room.
        let mut hold = self.share.take_up_to(PAGE_BYTES_MAX);
        let most = Most { messages: limit, bytes: content_bytes(hold.bytes()) };
        let read = self.caller.browse_within(stream, position(from), direction, most, filter).await;
        let page = self.answer(read)?;
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

    /// Follows a stream from this position on.
    pub(in crate::native) async fn follow(
        &self,
        stream: StreamName,
        from: Seq,
        filter: Filter,
    ) -> Answer<Following> {
        let reader = self.answer(self.caller.reader(stream, from, Direction::Forwards).await)?;
        Ok(Following { service: self.clone(), reader, filter })
    }
}

/// A client that follows a stream: the messages that are there, and then new ones as they come. One loop for both
/// protocols.
pub(in crate::native) struct Following {
    service: Service,
    reader: Reader,
    filter: Filter,
}

impl Following {
    /// The next messages, with room for them. Waits until there are some, and until there is room. May be dropped and
    /// called again.
    pub(in crate::native) async fn next(&mut self) -> Answer<(ReadPage, Hold)> {
        let share = self.service.share.clone();
        let mut hold = share.take_up_to(FOLLOW_PAGE_BYTES);
        loop {
            let messages = FOLLOW_PAGE.min((hold.bytes() / MESSAGE_BYTES) as u64).max(1);
            let most = Most { messages, bytes: content_bytes(hold.bytes()) };
            let found = self.service.answer(self.reader.next(most).await)?;
            let Some(first) = found.first().map(|stretch| stretch.first.seq) else {
                // A follower without messages needs no room.
                hold.set(0);
                self.service.answer(self.reader.grown().await)?;
                hold = share.take_up_to(FOLLOW_PAGE_BYTES);
                continue;
            };
            let page = self.page(&found);
            if page.messages.is_empty() {
                continue;
            }
            let size = size_of(&page);
            if hold.try_grow(size) {
                hold.set(size);
                return Ok((page, hold));
            }
            // One message is larger than the room. Others read on meanwhile, so it is not kept in memory.
            self.reader.seek(first);
            drop((page, hold, found));
            hold = share.wait(size).await;
        }
    }

    fn page(&self, found: &[Stretch]) -> ReadPage {
        let mut messages = Vec::with_capacity(found.iter().map(Stretch::len).sum());
        for stretch in found {
            let wanted = |n: &usize| self.filter.passes(stretch.content_bytes(*n));
            messages.extend((0..stretch.len()).filter(wanted).map(|n| stretch.get(n)));
        }
        ReadPage { messages, next: self.reader.position(), last: self.reader.last() }
    }

    /// Goes back to a message that did not fit into a reply.
    pub(in crate::native) fn seek(&mut self, next: Seq) {
        self.reader.seek(next);
    }
}
