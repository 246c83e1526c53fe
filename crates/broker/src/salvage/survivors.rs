//! Which messages are in the log with contents that are as they were written.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::entry::{Entry, entries};
use forebay_core::seqset::SeqSet;
use forebay_core::shard::Shard;
use forebay_core::types::{Seq, SeqRange, StreamId};
use forebay_storage::journal::inspect::ScannedFrame;

#[derive(Debug, Default)]
pub struct Survivors {
    streams: BTreeMap<StreamId, SeqSet>,
}

impl Survivors {
    /// Takes note of the messages of a frame, and returns those whose contents are damaged there.
    pub fn take(&mut self, frame: &ScannedFrame<'_>) -> Vec<(StreamId, SeqRange)> {
        let mut damaged: Vec<(StreamId, SeqRange)> = Vec::new();
        let mut offset: usize = 0;
        for entry in entries(frame.entries).flatten() {
            match entry {
                Entry::Published { stream, first, messages, .. } => {
                    let len = usize::try_from(messages.bytes()).unwrap_or(usize::MAX);
                    let all = offset..offset.saturating_add(len);
                    if is_good(frame, &all) {
                        self.insert(stream, SeqRange::starting(first, messages.count().max(1)));
                        offset = all.end;
                        continue;
                    }
                    for (n, meta) in messages.iter().enumerate() {
                        let own = offset..offset + meta.size as usize;
                        let seq = first.plus(n as u64);
                        offset = own.end;
                        self.one(stream, seq, is_good(frame, &own), &mut damaged);
                    }
                }
                Entry::Copied { stream, messages } => {
                    for message in messages {
                        let own = offset..offset + message.meta.size as usize;
                        offset = own.end;
                        self.one(stream, message.seq, is_good(frame, &own), &mut damaged);
                    }
                }
                _ => {}
            }
        }
        damaged
    }

    fn one(&mut self, stream: StreamId, seq: Seq, good: bool, damaged: &mut Vec<(StreamId, SeqRange)>) {
        if good {
            self.insert(stream, SeqRange::one(seq));
            return;
        }
        match damaged.last_mut() {
            Some((of, range)) if *of == stream && range.last.next() == seq => range.last = seq,
            _ => damaged.push((stream, SeqRange::one(seq))),
        }
    }

    fn insert(&mut self, stream: StreamId, range: SeqRange) {
        self.streams.entry(stream).or_default().insert(range);
    }

    /// Messages of the range that are nowhere.
    pub(super) fn gaps(&self, stream: StreamId, range: SeqRange) -> SeqSet {
        let mut gaps = SeqSet::new();
        gaps.insert(range);
        for run in self.streams.get(&stream).into_iter().flat_map(SeqSet::runs) {
            gaps.remove(run);
        }
        gaps
    }

    /// Messages of a stream that are still wanted and were found nowhere.
    pub fn missing(&self, shard: &Shard, stream: StreamId) -> SeqSet {
        let mut missing = SeqSet::new();
        let last = shard.last_given(stream).unwrap_or(Seq::START);
        if last == Seq::START {
            return missing;
        }
        let mut wanted = Vec::new();
        shard.wanted(stream, SeqRange::new(Seq(1), last), &mut wanted);
        for range in wanted {
            missing.insert(range);
        }
        for run in self.streams.get(&stream).into_iter().flat_map(SeqSet::runs) {
            missing.remove(run);
        }
        missing
    }
}

/// Whether a stretch of a frame's payload is there and as it was written.
pub(super) fn is_good(frame: &ScannedFrame<'_>, own: &Range<usize>) -> bool {
    let hit = |damaged: &Range<usize>| damaged.start < own.end && own.start < damaged.end;
    own.end <= frame.payload.len() && !frame.damaged.iter().any(hit) || own.is_empty()
}
