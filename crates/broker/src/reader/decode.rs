//! Stretches out of frames.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::entry::{Entry, MessageMeta, Messages, copied_runs, entries};
use forebay_core::types::{Ordinal, SeqRange, StreamId, Timestamp};
use forebay_storage::engine::{Damage, StoredFrame};

use super::stretch::{Sizes, Stretch};
use crate::recovery::RecoveryError;
use crate::window::{Extra, Place};

/// A part of a frame.
#[derive(Debug)]
pub(crate) enum Piece {
    Found(Stretch),
    /// The contents of these messages cannot be read.
    Lost {
        first: Place,
        count: u64,
    },
}

impl Piece {
    pub(crate) fn seqs(&self) -> SeqRange {
        match self {
            Piece::Found(stretch) => stretch.seqs(),
            Piece::Lost { first, count } => SeqRange::starting(first.seq, *count),
        }
    }

    /// The positions in the log of the first and the last message.
    pub(crate) fn ordinals(&self) -> (Ordinal, Ordinal) {
        match self {
            Piece::Found(stretch) => (stretch.first.ordinal, stretch.last_ordinal()),
            Piece::Lost { first, count } => (first.ordinal, first.ordinal.plus(count - 1)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Piece::Found(stretch) => stretch.bytes(),
            Piece::Lost { .. } => 0,
        }
    }
}

/// Which messages of a frame are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Those of a stream that the frame publishes.
    Published(StreamId),
    /// Those of a stream that were published earlier, and of which the frame has copies.
    Copied(StreamId),
    /// Those of all streams that the frame publishes, and those of which it has copies.
    AllPublished,
    AllCopied,
}

impl Wanted {
    fn has(self, of: StreamId, is_copied: bool) -> bool {
        match self {
            Wanted::Published(stream) => !is_copied && stream == of,
            Wanted::Copied(stream) => is_copied && stream == of,
            Wanted::AllPublished => !is_copied,
            Wanted::AllCopied => is_copied,
        }
    }
}

/// Messages of one entry, one after the other.
struct Batch<'a> {
    frame: &'a StoredFrame,
    stream: StreamId,
    first: Place,
    at: Timestamp,
    /// Where the contents lie in the payload of the frame.
    bytes: Range<usize>,
}

/// Gives `each` the wanted messages of a frame, in order. `damage` is that of the read.
pub(crate) fn pieces(
    frame: &StoredFrame,
    damage: &[Damage],
    wanted: Wanted,
    mut each: impl FnMut(Piece),
) -> Result<(), RecoveryError> {
    let position = frame.position;
    // Most frames of a busy log have nothing of one stream.
    if !frame.runs.iter().any(|run| wanted.has(run.stream, run.copied)) {
        return Ok(());
    }
    let missing: Vec<Range<usize>> = damage
        .iter()
        .filter(|place| place.from == position)
        .filter_map(|place| place.payload.clone())
        .collect();
    let mut offset = 0;
    let mut found = Vec::new();
    for entry in entries(&frame.entries) {
        match entry.map_err(|error| RecoveryError::Entry { position, error })? {
            Entry::Published { stream, first, ordinal, at, messages, .. } => {
                let bytes = next_bytes(frame, &mut offset, messages.bytes())?;
                if wanted.has(stream, false) {
                    let first = Place { seq: first, ordinal };
                    Batch { frame, stream, first, at, bytes }.pieces(&messages, &missing, &mut found);
                }
            }
            Entry::Copied { stream, messages } => {
                for run in copied_runs(&messages) {
                    let size = run.iter().map(|message| u64::from(message.meta.size)).sum();
                    let bytes = next_bytes(frame, &mut offset, size)?;
                    if wanted.has(stream, true) {
                        let first = Place { seq: run[0].seq, ordinal: run[0].ordinal };
                        let metas = Messages::Each(run.iter().map(|message| message.meta).collect());
                        Batch { frame, stream, first, at: run[0].at, bytes }
                            .pieces(&metas, &missing, &mut found);
                    }
                }
            }
            _ => {}
        }
    }
    let ours: usize = found.iter().map(Piece::bytes).sum();
    // A small part of a large frame would keep all of it in memory.
    let is_small = ours * 2 < frame.payload.len();
    for piece in found {
        each(match piece {
            Piece::Found(stretch) if is_small => Piece::Found(stretch.alone()),
            piece => piece,
        });
    }
    Ok(())
}

fn next_bytes(frame: &StoredFrame, offset: &mut usize, bytes: u64) -> Result<Range<usize>, RecoveryError> {
    let begin = *offset;
    let end = begin + bytes as usize;
    if end > frame.payload.len() {
        return Err(RecoveryError::PayloadShort { position: frame.position });
    }
    *offset = end;
    Ok(begin..end)
}

impl Batch<'_> {
    fn pieces(&self, messages: &Messages, missing: &[Range<usize>], out: &mut Vec<Piece>) {
        let is_missing =
            |range: &Range<usize>| missing.iter().any(|gap| gap.start < range.end && range.start < gap.end);
        if !is_missing(&self.bytes) {
            let stretch = match messages {
                Messages::Uniform { count, size } => {
                    self.stretch(self.first, *count as usize, Sizes::Uniform(*size), None, self.bytes.clone())
                }
                Messages::Each(metas) => self.of_metas(self.first, metas, self.bytes.clone()),
            };
            return out.push(Piece::Found(stretch));
        }
        // Message by message: the lost ones are left out, and the others come in as many stretches as they are then.
        let metas: Vec<MessageMeta> = messages.iter().collect();
        let mut start = self.bytes.start;
        let places: Vec<(Range<usize>, bool)> = metas
            .iter()
            .map(|meta| {
                let range = start..start + meta.size as usize;
                start = range.end;
                let is_lost = is_missing(&range);
                (range, is_lost)
            })
            .collect();
        let mut from = 0;
        for run in places.chunk_by(|(_, one), (_, other)| one == other) {
            let (to, before) = (from + run.len(), from as u64);
            let first = Place { seq: self.first.seq.plus(before), ordinal: self.first.ordinal.plus(before) };
            if run[0].1 {
                out.push(Piece::Lost { first, count: run.len() as u64 });
            } else {
                let bytes = run[0].0.start..run[run.len() - 1].0.end;
                out.push(Piece::Found(self.of_metas(first, &metas[from..to], bytes)));
            }
            from = to;
        }
    }

    fn of_metas(&self, first: Place, metas: &[MessageMeta], bytes: Range<usize>) -> Stretch {
        let metas = metas.iter().copied();
        let extras = Extra::of_all(metas.clone());
        self.stretch(first, metas.len(), Sizes::of(metas), extras, bytes)
    }

    fn stretch(
        &self,
        first: Place,
        len: usize,
        sizes: Sizes,
        extras: Option<Arc<[Extra]>>,
        bytes: Range<usize>,
    ) -> Stretch {
        let contents = self.frame.payload.slice(bytes);
        Stretch::new(self.stream, first, self.at, len, sizes, extras, contents)
    }
}
