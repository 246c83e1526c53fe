//! Reading a stream without taking anything from it, and following it.

use forebay_broker::api::{Filter, ReadPage};
use forebay_core::types::{Seq, StreamName};

use super::{Answer, Service, page, position};
use crate::native::limits::FOLLOW_PAGE;

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
    ) -> Answer<ReadPage> {
        let limit = page(limit)? as u64;
        self.answer(self.caller.browse(stream, position(from), limit, filter).await)
    }

    /// The first position for a reader that follows a stream. The stream must exist.
    pub(in crate::native) async fn follow_from(&self, stream: StreamName, from: From) -> Answer<Seq> {
        let last = self.stream(stream).await?.figures.last;
        Ok(match from {
            From::Seq(seq) => position(seq),
            From::End => last.next(),
        })
    }

    /// The next messages of a stream. Waits until there are some. May be dropped and called again.
    pub(in crate::native) async fn next_messages(
        &self,
        stream: &StreamName,
        mut from: Seq,
        filter: &Filter,
    ) -> Answer<ReadPage> {
        loop {
            let found = self.answer(self.caller.browse(stream.clone(), from, FOLLOW_PAGE, filter).await)?;
            if !found.messages.is_empty() {
                return Ok(found);
            }
            from = found.next;
            if from > found.last {
                self.answer(self.caller.grown(stream.clone(), Seq(from.0.saturating_sub(1))).await)?;
            }
        }
    }
}
