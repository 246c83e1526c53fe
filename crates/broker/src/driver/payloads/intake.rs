//! Frames that were read: their keys, their messages, and the requests that waited for them.

use bytes::Bytes;
use forebay_core::entry::{Entry, MessageMeta, copied_runs, entries};
use forebay_core::shard::{KeyRun, Shard};
use forebay_core::types::{KeyHash, Seq, SeqRange, StreamId, Timestamp};
use forebay_storage::engine::{Damage, StoredFrame};

use crate::driver::payloads::{Context, Payloads, Purpose, Request};
use crate::driver::reads::Brought;
use crate::recovery::RecoveryError;
use crate::window::Place;

impl Payloads {
    /// Takes in frames that were read for one request, and reads on if that was not enough.
    pub(in crate::driver) fn read(
        &mut self,
        id: u64,
        frames: &[StoredFrame],
        damage: &[Damage],
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) -> Result<(), RecoveryError> {
        let brought = Brought { frames, damage };
        let reading = self.reads.ended(id).expect("a finished read was requested");
        if !reading.contents {
            for frame in frames {
                if self.reads.get(id).is_some() {
                    self.take_keys(id, frame)?;
                }
            }
            if self.reads.get(id).is_some_and(Request::is_complete) {
                self.finish(id, shard, context);
            }
        } else {
            // A group goes on where it is, and will want what lies ahead of it: that has been read now.
            let ahead = self.reads.get(id).filter(|request| request.is_ahead());
            let ahead = ahead.map(|request| (request.stream, request.next));
            for frame in frames {
                self.take_in(frame, brought, ahead, shard, context)?;
            }
        }
        // A message may have gone meanwhile, and those that come after it may be here.
        if self.reads.get(id).is_some_and(Request::is_fetch) && self.take_more(id, shard) {
            self.finish(id, shard, context);
        }
        if let Some(stream) = self.reads.get(id).map(|request| request.stream)
            && let Some(lost) = self.reads.change(id, |request| request.lost_in_hole(brought, context))
        {
            self.lose(stream, lost, KeyRun::Plain, shard, context);
        }
        if let Some(request) = self.reads.get(id) {
            let unwanted = shard.first_wanted(request.stream, request.next) != Some(request.next);
            match &request.purpose {
                Purpose::ReadAhead(look) if request.next > look.asked => self.finish(id, shard, context),
                // The group has settled it meanwhile, and it may be gone. The group asks again.
                Purpose::ReadAhead(_) if unwanted => self.finish(id, shard, context),
                // It was a guess.
                Purpose::Prefetch(_) => self.finish(id, shard, context),
                // Messages that no group wants any more cannot be shown.
                Purpose::Fetch(..) | Purpose::Move(..) if unwanted && brought.is_nothing() => {
                    self.finish(id, shard, context);
                }
                // It may have lapsed while it waited, and its messages may be settled and trimmed by now.
                Purpose::Deliver(pending) if !pending.may_leave(shard, unwanted) => self.forget(id),
                _ => {
                    let (stream, seq) = (request.stream, request.next);
                    let nowhere = request.is_nowhere(brought, context);
                    let shows = matches!(request.purpose, Purpose::Fetch(..) | Purpose::Move(..));
                    if nowhere && unwanted && shows {
                        self.finish(id, shard, context);
                    } else if nowhere {
                        return Err(RecoveryError::MessageMissing { stream, seq });
                    } else {
                        self.reads.change(id, |request| request.search_after(brought));
                        self.reads.queue_last(id);
                    }
                }
            }
        }
        self.send_in_line(shard, context);
        self.reads.start_reads(context);
        Ok(())
    }

    /// Tells a group that only asks for keys those that a frame has.
    fn take_keys(&mut self, id: u64, frame: &StoredFrame) -> Result<(), RecoveryError> {
        let position = frame.position;
        self.reads.change(id, |request| {
            for entry in entries(&frame.entries) {
                match entry.map_err(|error| RecoveryError::Entry { position, error })? {
                    Entry::Published { stream, first, messages, .. } if stream == request.stream => {
                        for (n, meta) in messages.iter().enumerate() {
                            request.take_key(first.plus(n as u64), &meta);
                        }
                    }
                    Entry::Copied { stream, messages } if stream == request.stream => {
                        for message in messages {
                            request.take_key(message.seq, &message.meta);
                        }
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Puts those messages of a frame that requests lack into the window, and gives them to the requests.
    /// Messages of the stream in `ahead`, from that place on, are kept in any case.
    fn take_in(
        &mut self,
        frame: &StoredFrame,
        brought: Brought<'_>,
        ahead: Option<(StreamId, Seq)>,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) -> Result<(), RecoveryError> {
        let position = frame.position;
        let mut offset = 0;
        let missing = brought.missing_in(frame);
        let is_missing = |from: usize, to: usize| missing.clone().any(|gap| gap.start < to && from < gap.end);
        for entry in entries(&frame.entries) {
            let entry = entry.map_err(|error| RecoveryError::Entry { position, error })?;
            match entry {
                Entry::Published { stream, first, ordinal, at, messages, .. } => {
                    let range = SeqRange::starting(first, messages.count());
                    let begin = offset;
                    let contents = contents(frame, &mut offset, messages.bytes())?;
                    let is_ahead = ahead.is_some_and(|(of, next)| of == stream && next <= range.last);
                    let is_wanted = is_ahead || self.reads.is_lacking(stream, range);
                    if is_wanted && is_missing(begin, offset) {
                        let metas: Vec<MessageMeta> = messages.iter().collect();
                        let first = Place { seq: first, ordinal };
                        let batch = ReadBatch { stream, first, at, contents: &contents, begin };
                        self.take_in_parts(&batch, &metas, &is_missing, shard, context);
                    } else if is_wanted {
                        let contents = alone(contents, frame);
                        let first = Place { seq: first, ordinal };
                        self.window.insert_read(stream, first, at, &messages, contents);
                        self.give(stream, range, shard, context);
                    }
                }
                Entry::Copied { stream, messages } => {
                    for run in copied_runs(&messages) {
                        let metas = run.iter().map(|message| message.meta);
                        let bytes = metas.clone().map(|meta| u64::from(meta.size)).sum();
                        let begin = offset;
                        let contents = contents(frame, &mut offset, bytes)?;
                        let range = SeqRange::starting(run[0].seq, run.len() as u64);
                        let (first, at) = (Place { seq: run[0].seq, ordinal: run[0].ordinal }, run[0].at);
                        let is_ahead = ahead.is_some_and(|(of, next)| of == stream && next <= range.last);
                        let is_wanted = is_ahead || self.reads.is_lacking(stream, range);
                        if is_wanted && is_missing(begin, offset) {
                            let metas: Vec<MessageMeta> = metas.collect();
                            let batch = ReadBatch { stream, first, at, contents: &contents, begin };
                            self.take_in_parts(&batch, &metas, &is_missing, shard, context);
                        } else if is_wanted {
                            let contents = alone(contents, frame);
                            self.window.insert(stream, first, at, metas, contents);
                            self.copies_read += range.count();
                            self.give(stream, range, shard, context);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts those messages of a batch into the window that can be read, and loses the others.
    fn take_in_parts(
        &mut self,
        batch: &ReadBatch<'_>,
        metas: &[MessageMeta],
        is_missing: &impl Fn(usize, usize) -> bool,
        shard: &mut Shard,
        context: &mut Context<'_>,
    ) {
        let (mut next, mut from) = (batch.first.seq, 0);
        let mut ends = Vec::with_capacity(metas.len());
        for meta in metas {
            let start = ends.last().copied().unwrap_or(0);
            ends.push(start + meta.size as usize);
        }
        let lost: Vec<bool> = (0..metas.len())
            .map(|n| {
                let start = if n == 0 { 0 } else { ends[n - 1] };
                is_missing(batch.begin + start, batch.begin + ends[n])
            })
            .collect();
        for run in lost.chunk_by(|one, other| one == other) {
            let metas = &metas[from..from + run.len()];
            let range = SeqRange::starting(next, run.len() as u64);
            let start = if from == 0 { 0 } else { ends[from - 1] };
            from += run.len();
            next = range.last.next();
            if run[0] {
                let keys: Vec<KeyHash> = metas.iter().map(|meta| meta.key.unwrap_or(KeyHash(0))).collect();
                self.lose(batch.stream, range, KeyRun::Each(&keys), shard, context);
            } else {
                let contents = Bytes::copy_from_slice(&batch.contents[start..ends[from - 1]]);
                let ordinal = batch.first.ordinal.plus(range.first.0 - batch.first.seq.0);
                let first = Place { seq: range.first, ordinal };
                self.window.insert(batch.stream, first, batch.at, metas.iter().copied(), contents);
                self.give(batch.stream, range, shard, context);
            }
        }
    }

    /// Requests that lack one of these messages take them from the window: at once, since the window may be
    /// smaller than the read.
    fn give(&mut self, stream: StreamId, range: SeqRange, shard: &mut Shard, context: &mut Context<'_>) {
        for id in self.reads.lacking(stream, range) {
            if self.take_more(id, shard) {
                self.finish(id, shard, context);
            } else {
                self.send_piece(id, shard, context);
            }
        }
    }
}

/// Messages of one entry as they were read.
struct ReadBatch<'a> {
    stream: StreamId,
    first: Place,
    at: Timestamp,
    contents: &'a Bytes,
    /// Where the contents begin in the payload of their frame.
    begin: usize,
}

/// The contents that follow in the payload of a frame.
fn contents(frame: &StoredFrame, offset: &mut usize, bytes: u64) -> Result<Bytes, RecoveryError> {
    let end = *offset + bytes as usize;
    if end > frame.payload.len() {
        return Err(RecoveryError::PayloadShort { position: frame.position });
    }
    let contents = frame.payload.slice(*offset..end);
    *offset = end;
    Ok(contents)
}

/// A small part of a large frame would keep all of it in memory.
fn alone(contents: Bytes, frame: &StoredFrame) -> Bytes {
    if contents.len() * 2 < frame.payload.len() { Bytes::copy_from_slice(&contents) } else { contents }
}
