//! Answers to readers of streams, and reads of messages that are parked in a group.

use std::collections::BTreeMap;

use forebay_core::group::Parked;
use forebay_core::types::{GroupName, Ordinal, Seq, SeqRange, StreamId, StreamName};

use super::ShardTask;
use super::commands::{Waiting, answer};
use crate::caller::{Reply, Signal, Standing};
use crate::error::CallError;
use crate::reader::{Located, WholeLocated, WholeWish, Wish};
use crate::report::{Page, ParkedReport};
use crate::window::Found;

impl ShardTask {
    /// Answers with the streams of these names.
    pub(crate) fn find_streams(&mut self, names: &[StreamName], reply: Reply<Vec<StreamId>>) {
        match names.iter().map(|name| self.find_stream(name)).collect::<Result<Vec<_>, _>>() {
            Ok(streams) => answer(reply, Ok(streams)),
            Err(error) => self.answer_durably(reply, Err(error)),
        }
    }

    /// Answers with the places of the next messages of a reader; none for a stream that is gone.
    pub(crate) fn locate(&mut self, wishes: &[Wish], reply: Reply<Vec<Option<Located>>>) {
        let located: Vec<Option<Located>> = wishes.iter().map(|wish| self.driver.locate(wish)).collect();
        if located.iter().all(Option::is_some) {
            answer(reply, Ok(located));
        } else {
            // The deletion may not be durable yet, and must not be told before.
            self.answer_durably(reply, Ok(located));
        }
    }

    /// Tells a reader from now on when one of these streams grows. Readers of streams that are gone are told at once.
    pub(crate) fn watch(&mut self, streams: &[StreamId], reader: &Signal, reply: Reply<()>) {
        for &stream in streams.iter().filter(|stream| self.driver.shard().stream_name(**stream).is_some()) {
            self.tails.watch(stream, reader.clone());
        }
        answer(reply, Ok(()));
    }

    /// Answers with the place of the next messages of a reader of the whole log.
    pub(crate) fn locate_whole(&mut self, wish: &WholeWish, reply: Reply<WholeLocated>) {
        answer(reply, Ok(self.driver.locate_whole(wish)));
    }

    /// Answers with the position in the log of the last durable message.
    pub(crate) fn log_end(&mut self, reply: Reply<Ordinal>) {
        answer(reply, Ok(self.driver.last_ordinal()));
    }

    /// Answers with the names of streams and the messages that can be read; none for a stream that is gone. Comes with
    /// the position in the log of the last durable message.
    pub(crate) fn stand(&mut self, streams: &[StreamId], reply: Reply<(Ordinal, Vec<Option<Standing>>)>) {
        let shard = self.driver.shard();
        let standing = |stream: &StreamId| {
            let name = shard.stream_name(*stream)?.clone();
            Some(Standing { name, readable: shard.readable(*stream) })
        };
        let standings: Vec<Option<Standing>> = streams.iter().map(standing).collect();
        let last = self.driver.last_ordinal();
        if standings.iter().all(Option::is_some) {
            answer(reply, Ok((last, standings)));
        } else {
            // The deletion may not be durable yet, and must not be told before.
            self.answer_durably(reply, Ok((last, standings)));
        }
    }

    /// Tells a reader from now on when the log has more messages.
    pub(crate) fn watch_whole(&mut self, reader: &Signal, reply: Reply<()>) {
        self.tails.watch_whole(reader.clone());
        answer(reply, Ok(()));
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
