//! The frames of a new log: those of the old one without the damage.
//!
//! A frame that is whole is taken as it is. Of a frame whose contents are damaged in places the good messages
//! are taken. A lost message that is still wanted becomes a placeholder without content, of type
//! `forebay.lost`, at its position: readers of the stream find it there. It is never handed out, since it
//! counts as expired.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_core::entry::{
    CopiedMessage, Entry, MessageMeta, Messages, copied_runs, each_encoded, entries, put_copied,
};
use forebay_core::seqset::SeqSet;
use forebay_core::types::{Ordinal, Seq, SeqRange, ShardId, StreamId, Timestamp};
use forebay_storage::engine::{Frame, Run};
use forebay_storage::journal::inspect::ScannedFrame;

use super::survivors::is_good;
use crate::batch::{BatchBuilder, Message};
use crate::index::Ordinals;

/// Placeholders in one frame at most.
const PLACEHOLDERS_MAX: u64 = 1_000;
/// The type of a placeholder.
const LOST: &str = "forebay.lost";

pub struct Rewriter {
    shard: ShardId,
    /// Lost messages that have no placeholder yet.
    lost: BTreeMap<StreamId, SeqSet>,
    placeholder: (MessageMeta, Bytes),
}

/// A frame that is being put together anew.
#[derive(Default)]
struct Anew {
    entries: Vec<u8>,
    payload: Vec<u8>,
    runs: Vec<Run>,
    ordinals: Ordinals,
}

impl Rewriter {
    pub fn new(shard: ShardId, lost: BTreeMap<StreamId, SeqSet>) -> Rewriter {
        let mut batch = BatchBuilder::default();
        batch.push(&Message { kind: Some(LOST), expires: Some(Timestamp(1)), ..Message::default() });
        let contents = batch.build().contents().clone();
        let size = contents.len() as u32;
        let meta = MessageMeta { expires: Some(Timestamp(1)), ..MessageMeta::plain(size) };
        Rewriter { shard, lost, placeholder: (meta, contents) }
    }

    /// Writes the frames that take the place of the next frame of the old log.
    pub fn take<E>(
        &mut self,
        frame: &ScannedFrame<'_>,
        write: &mut dyn FnMut(Frame) -> Result<(), E>,
    ) -> Result<(), E> {
        for run in frame.runs.iter().filter(|run| !run.copied) {
            self.fill_before(run.stream, run.first, write)?;
        }
        let all = 0..contents_len(frame);
        let whole = is_good(frame, &all);
        write(if whole { self.as_it_is(frame) } else { self.anew(frame) })
    }

    /// Writes the remaining frames when the old log has come to its end.
    pub fn finish<E>(&mut self, write: &mut dyn FnMut(Frame) -> Result<(), E>) -> Result<(), E> {
        let streams: Vec<StreamId> = self.lost.keys().copied().collect();
        for stream in streams {
            self.fill_before(stream, Seq(u64::MAX), write)?;
        }
        Ok(())
    }

    fn as_it_is(&self, frame: &ScannedFrame<'_>) -> Frame {
        Frame {
            shard: self.shard,
            entries: Bytes::copy_from_slice(frame.entries),
            payload: Bytes::copy_from_slice(frame.payload),
            runs: frame.runs.clone(),
        }
    }

    /// Placeholders for lost messages of the stream before `first`.
    fn fill_before<E>(
        &mut self,
        stream: StreamId,
        first: Seq,
        write: &mut dyn FnMut(Frame) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(lost) = self.lost.get_mut(&stream) else { return Ok(()) };
        let mut gaps = Vec::new();
        while let Some(run) = lost.run_from(Seq(1)).filter(|run| run.first < first) {
            let last = run.last.min(Seq(first.0 - 1));
            let count = (last.0 + 1 - run.first.0).min(PLACEHOLDERS_MAX);
            let gap = SeqRange::starting(run.first, count);
            lost.remove(gap);
            gaps.push(gap);
        }
        for gap in gaps {
            let mut anew = Anew::default();
            self.put_placeholders(&mut anew, stream, gap);
            write(anew.into_frame(self.shard))?;
        }
        Ok(())
    }

    fn put_placeholders(&self, anew: &mut Anew, stream: StreamId, range: SeqRange) {
        let (meta, content) = &self.placeholder;
        let messages = vec![*meta; range.count() as usize];
        anew.put_published(stream, range.first, Ordinal(0), Timestamp(1), messages);
        for _ in 0..range.count() {
            anew.payload.extend_from_slice(content);
        }
    }

    /// The good messages of a frame, and all else that it says.
    fn anew(&mut self, frame: &ScannedFrame<'_>) -> Frame {
        let mut anew = Anew::default();
        let mut offset = 0;
        for raw in each_encoded(frame.entries) {
            match entries(raw).next() {
                Some(Ok(Entry::Published { stream, first, ordinal, at, messages, .. })) => {
                    let metas: Vec<(u64, MessageMeta)> = (0..).zip(messages.iter()).collect();
                    let stretches = place(&metas, |(_, meta)| meta, &mut offset, frame);
                    for (good, own, some) in stretches {
                        let (n, _) = some[0];
                        let (first, ordinal) = (first.plus(n), Ordinal(ordinal.0 + n));
                        let range = SeqRange::starting(first, some.len() as u64);
                        if good {
                            let metas = some.iter().map(|(_, meta)| *meta).collect();
                            anew.put_published(stream, first, ordinal, at, metas);
                            anew.payload.extend_from_slice(&frame.payload[own]);
                        } else {
                            self.put_lost(&mut anew, stream, range);
                        }
                    }
                }
                Some(Ok(Entry::Copied { stream, messages })) => {
                    for (good, own, some) in place(&messages, |copy| &copy.meta, &mut offset, frame) {
                        if good {
                            anew.put_copied(stream, some);
                            anew.payload.extend_from_slice(&frame.payload[own]);
                        }
                    }
                }
                _ => anew.entries.extend_from_slice(raw),
            }
        }
        anew.into_frame(self.shard)
    }

    /// Those of a range that are nowhere else become placeholders here.
    fn put_lost(&mut self, anew: &mut Anew, stream: StreamId, range: SeqRange) {
        let mut next = range.first;
        while let Some(run) =
            self.lost.get(&stream).and_then(|lost| lost.run_from(next)).and_then(|run| run.overlap(range))
        {
            self.put_placeholders(anew, stream, run);
            if let Some(lost) = self.lost.get_mut(&stream) {
                lost.remove(run);
            }
            next = run.last.next();
        }
    }
}

impl Anew {
    fn put_published(
        &mut self,
        stream: StreamId,
        first: Seq,
        ordinal: Ordinal,
        at: Timestamp,
        messages: Vec<MessageMeta>,
    ) {
        self.run(stream, first, messages.len(), false);
        self.ordinals.publish(ordinal, messages.len() as u64);
        let messages = Messages::Each(messages);
        Entry::Published { stream, first, ordinal, at, stamp: None, messages }.encode(&mut self.entries);
    }

    fn put_copied(&mut self, stream: StreamId, messages: &[CopiedMessage]) {
        put_copied(&mut self.entries, stream, messages);
        for run in copied_runs(messages) {
            self.run(stream, run[0].seq, run.len(), true);
        }
        messages.iter().for_each(|message| self.ordinals.copy(message.ordinal));
    }

    fn run(&mut self, stream: StreamId, first: Seq, count: usize, copied: bool) {
        let count = u32::try_from(count).expect("a frame has a bounded number of messages");
        self.runs.push(Run { stream, first, count, copied });
    }

    fn into_frame(mut self, shard: ShardId) -> Frame {
        self.runs.extend(self.ordinals.take_runs());
        Frame { shard, entries: self.entries.into(), payload: self.payload.into(), runs: self.runs }
    }
}

/// How many bytes of contents a frame should have.
fn contents_len(frame: &ScannedFrame<'_>) -> usize {
    let last = frame.damaged.last().map_or(0, |damaged| damaged.end);
    frame.payload.len().max(last)
}

type Stretch<'m, T> = (bool, std::ops::Range<usize>, &'m [T]);

/// Messages in a row that are all good or all damaged, and where their contents are.
fn place<'m, T>(
    messages: &'m [T],
    meta: impl Fn(&T) -> &MessageMeta,
    offset: &mut usize,
    frame: &ScannedFrame<'_>,
) -> Vec<Stretch<'m, T>> {
    let mut stretches: Vec<(bool, std::ops::Range<usize>, std::ops::Range<usize>)> = Vec::new();
    for (n, message) in messages.iter().enumerate() {
        let own = *offset..*offset + meta(message).size as usize;
        *offset = own.end;
        let good = is_good(frame, &own);
        match stretches.last_mut() {
            Some((before, stretch, of)) if *before == good => {
                stretch.end = own.end;
                of.end = n + 1;
            }
            _ => stretches.push((good, own, n..n + 1)),
        }
    }
    stretches.into_iter().map(|(good, own, of)| (good, own, &messages[of])).collect()
}
