//! Reads of messages: of a stream, or parked in a group.

use std::collections::BTreeMap;

use forebay_core::group::Parked;
use forebay_core::types::{GroupName, Seq, SeqRange, StreamName};

use super::ShardTask;
use super::commands::{Waiting, answer};
use crate::caller::Reply;
use crate::error::CallError;
use crate::report::{Page, ParkedReport, ReadPage};
use crate::window::Found;

impl ShardTask {
    /// Answers with messages from `from` on, up to `limit` of them or as many as fit into `bytes`, and at least one.
    pub(crate) fn read(
        &mut self,
        stream: &StreamName,
        from: Seq,
        (limit, bytes): (u64, usize),
        reply: Reply<ReadPage>,
    ) {
        let bytes = bytes.min(self.config.read_bytes_max) as u64;
        let stream = match self.find_stream(stream) {
            Ok(stream) => stream,
            Err(error) => return self.answer_durably(reply, Err(error)),
        };
        let shard = self.driver.shard();
        let last = shard.last_seq(stream).expect("the stream was found");
        let kept = shard.readable(stream).filter(|kept| from <= kept.last && limit > 0);
        let Some(kept) = kept else {
            let next = from.max(last.next());
            return answer(reply, Ok(ReadPage { messages: Vec::new(), next, last }));
        };
        let first = from.max(kept.first);
        let mut range = SeqRange::starting(first, limit.min(kept.last.0 - first.0 + 1));
        while range.count() > 1 && shard.bytes_of(stream, range) > bytes {
            range = SeqRange::starting(first, range.count() / 2);
        }
        let next = range.last.next();
        let page = move |messages: Vec<Found>| answer(reply, Ok(ReadPage { messages, next, last }));
        self.driver.fetch(stream, &[range], self.waiting.next());
        self.waiting.enter(Waiting::Fetch(Box::new(page)));
    }

    /// Answers with parked messages after `after`, with their contents. Looks at no more than `looked_at_max`.
    pub(crate) fn read_parked(
        &mut self,
        (stream, group): (&StreamName, &GroupName),
        after: Seq,
        limit: usize,
        looked_at_max: usize,
        reason: Option<&str>,
        reply: Reply<Page<ParkedReport, Seq>>,
    ) {
        let group = match self.find_group(stream, group) {
            Ok(group) => group,
            Err(error) => return self.answer_durably(reply, Err(error)),
        };
        let shard = self.driver.shard();
        let stream = shard.stream_of(group).expect("a group has a stream");
        let mut chosen: Vec<(Seq, Parked)> = Vec::new();
        let (mut next, mut bytes) = (None, 0);
        for (n, (seq, parked)) in shard.parked_after(group, after).enumerate() {
            let is_full = chosen.len() >= limit || bytes >= self.config.read_bytes_max as u64;
            if n >= looked_at_max || is_full {
                break;
            }
            next = Some(seq);
            if reason.is_none_or(|reason| parked.reason() == reason) {
                bytes += shard.bytes_of(stream, SeqRange::one(seq));
                chosen.push((seq, parked.clone()));
            }
        }
        let next = next.filter(|last| shard.parked_after(group, *last).next().is_some());
        let ranges: Vec<SeqRange> = chosen.iter().map(|(seq, _)| SeqRange::one(*seq)).collect();
        let page = move |found: Vec<Found>| {
            let mut found: BTreeMap<Seq, Found> = found.into_iter().map(|found| (found.seq, found)).collect();
            let report = |(seq, parked)| ParkedReport { seq, parked, message: found.remove(&seq) };
            answer(reply, Ok::<_, CallError>(Page { items: chosen.into_iter().map(report).collect(), next }));
        };
        self.driver.fetch(stream, &ranges, self.waiting.next());
        self.waiting.enter(Waiting::Fetch(Box::new(page)));
    }
}
