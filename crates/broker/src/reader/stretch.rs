//! Consecutive messages as they are stored: one buffer, and where each message ends in it.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::entry::MessageMeta;
use forebay_core::types::{Ordinal, Seq, SeqRange, StreamId, Timestamp};

use super::Direction;
use crate::window::{Extra, Found, Place};

/// Messages of a stream that were published together. Their positions in the stream are consecutive, and so are those
/// in the shard's log. A part of a stretch shares its memory.
#[derive(Debug, Clone)]
pub struct Stretch {
    pub stream: StreamId,
    /// Where the first message is.
    pub first: Place,
    /// When they were published.
    pub at: Timestamp,
    /// Messages at the beginning of `sizes`, `extras` and `contents` that do not belong to it, and the number of those
    /// that do.
    skip: usize,
    len: usize,
    sizes: Sizes,
    extras: Option<Arc<[Extra]>>,
    contents: Bytes,
}

/// How long each of several contents is that lie one after the other.
#[derive(Debug, Clone)]
pub enum Sizes {
    Uniform(u32),
    /// Where each content ends.
    Ends(Arc<[u32]>),
}

impl Sizes {
    pub(crate) fn of(messages: impl ExactSizeIterator<Item = MessageMeta> + Clone) -> Sizes {
        let size = messages.clone().next().map_or(0, |message| message.size);
        if messages.clone().all(|message| message.size == size) {
            return Sizes::Uniform(size);
        }
        let mut end = 0;
        Sizes::Ends(
            messages
                .map(|message| {
                    end += message.size;
                    end
                })
                .collect(),
        )
    }

    /// Where the `n`-th content lies.
    pub(crate) fn stretch(&self, n: usize) -> (usize, usize) {
        match self {
            Sizes::Uniform(size) => (n * *size as usize, (n + 1) * *size as usize),
            Sizes::Ends(ends) => {
                (n.checked_sub(1).map_or(0, |before| ends[before] as usize), ends[n] as usize)
            }
        }
    }
}

impl Stretch {
    /// All messages of a buffer, which has `len` of them.
    pub(crate) fn new(
        stream: StreamId,
        first: Place,
        at: Timestamp,
        len: usize,
        sizes: Sizes,
        extras: Option<Arc<[Extra]>>,
        contents: Bytes,
    ) -> Stretch {
        Stretch { stream, first, at, skip: 0, len, sizes, extras, contents }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The positions of the messages. A stretch has at least one.
    pub fn seqs(&self) -> SeqRange {
        SeqRange::starting(self.first.seq, self.len as u64)
    }

    /// The position in the shard's log of the last message.
    pub fn last_ordinal(&self) -> Ordinal {
        self.first.ordinal.plus(self.len as u64 - 1)
    }

    /// The contents of the messages together, in bytes.
    pub fn bytes(&self) -> usize {
        let (from, to) = (self.sizes.stretch(self.skip).0, self.sizes.stretch(self.skip + self.len - 1).1);
        to - from
    }

    /// The content of the `n`-th message.
    pub fn content(&self, n: usize) -> Bytes {
        let (from, to) = self.sizes.stretch(self.skip + n);
        self.contents.slice(from..to)
    }

    /// The bytes of the `n`-th message's content, without sharing them.
    pub fn content_bytes(&self, n: usize) -> &[u8] {
        let (from, to) = self.sizes.stretch(self.skip + n);
        &self.contents[from..to]
    }

    /// The `n`-th message by itself.
    pub fn get(&self, n: usize) -> Found {
        let extra = self.extras.as_ref().map_or_else(Extra::default, |extras| extras[self.skip + n].clone());
        Found {
            seq: self.first.seq.plus(n as u64),
            ordinal: self.first.ordinal.plus(n as u64),
            published: self.at,
            extra,
            content: self.content(n),
        }
    }

    /// Each message by itself, in order.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = Found> + ExactSizeIterator + '_ {
        (0..self.len).map(|n| self.get(n))
    }

    /// The messages of the range that are in it.
    #[must_use]
    pub fn part(&self, range: SeqRange) -> Option<Stretch> {
        let kept = self.seqs().overlap(range)?;
        let before = kept.first.0 - self.first.seq.0;
        let first = Place { seq: kept.first, ordinal: self.first.ordinal.plus(before) };
        let (skip, len) = (self.skip + before as usize, kept.count() as usize);
        Some(Stretch { first, skip, len, ..self.clone() })
    }

    /// The messages that have these positions in the log.
    #[must_use]
    pub fn part_by_ordinal(&self, low: Ordinal, high: Ordinal) -> Option<Stretch> {
        let (first, last) = (self.first.ordinal.max(low), self.last_ordinal().min(high));
        let before = first.0 - self.first.ordinal.0;
        (first <= last)
            .then(|| SeqRange::starting(self.first.seq.plus(before), last.0 - first.0 + 1))
            .and_then(|range| self.part(range))
    }

    /// The `n`-th message in memory of its own.
    #[must_use]
    pub(crate) fn single(&self, n: usize) -> Stretch {
        let n = n as u64;
        let first = Place { seq: self.first.seq.plus(n), ordinal: self.first.ordinal.plus(n) };
        let content = Bytes::copy_from_slice(self.content_bytes(n as usize));
        let extras = self.extras.as_ref().map(|extras| Arc::from([extras[self.skip + n as usize].clone()]));
        Stretch::new(self.stream, first, self.at, 1, Sizes::Uniform(content.len() as u32), extras, content)
    }

    /// The messages that are left after `n` of them were taken in this direction. At least one is.
    #[must_use]
    pub(crate) fn rest(&self, n: usize, direction: Direction) -> Option<Stretch> {
        let seqs = self.seqs();
        self.part(match direction {
            Direction::Forwards => SeqRange::new(seqs.first.plus(n as u64), seqs.last),
            Direction::Backwards => SeqRange::new(seqs.first, Seq(seqs.last.0 - n as u64)),
        })
    }

    /// The same messages in memory of their own.
    #[must_use]
    pub(crate) fn alone(self) -> Stretch {
        Stretch { contents: Bytes::copy_from_slice(&self.contents), ..self }
    }

    /// How many of its messages, from the first on, have no more bytes than this together; at least one.
    pub fn fitting(&self, bytes: usize) -> usize {
        let base = self.sizes.stretch(self.skip).0;
        let fits = |n: usize| self.sizes.stretch(self.skip + n).1 - base <= bytes;
        let (mut low, mut high) = (1, self.len);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle - 1) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// As [`Stretch::fitting`], from the last message back.
    pub fn fitting_back(&self, bytes: usize) -> usize {
        let end = self.sizes.stretch(self.skip + self.len - 1).1;
        let fits = |n: usize| end - self.sizes.stretch(self.skip + self.len - n).0 <= bytes;
        let (mut low, mut high) = (1, self.len);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// The first `count` messages, and the rest if there is one.
    #[must_use]
    pub fn split(self, count: usize) -> (Stretch, Option<Stretch>) {
        let count = count.clamp(1, self.len);
        let at = Seq(self.first.seq.0 + count as u64);
        let rest = (count < self.len).then(|| SeqRange::new(at, self.seqs().last));
        let rest = rest.and_then(|range| self.part(range));
        (Stretch { len: count, ..self }, rest)
    }

    /// The last `count` messages, and the rest if there is one.
    #[must_use]
    pub fn split_back(self, count: usize) -> (Stretch, Option<Stretch>) {
        let count = count.clamp(1, self.len);
        if count == self.len {
            return (self, None);
        }
        let (rest, last) = {
            let len = self.len;
            self.split(len - count)
        };
        (last.expect("the rest is not all of it"), Some(rest))
    }
}
