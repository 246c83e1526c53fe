//! Contents near the tail and contents that were read back lately, within a byte budget.
//!
//! Live traffic is delivered from here and never touches the disk. A message that is not here is read again
//! from the engine, so dropping one is always allowed and only costs time.
//!
//! Chunks do not overlap. A message may come again in other company, as a copy or with the batch that it was
//! published in; the older chunk is then cut to the messages that the new one does not have.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::entry::{MessageMeta, Messages, MoveTrail, Origin};
use forebay_core::fault::{Fault, planted};
use forebay_core::types::{KeyHash, Ordinal, Seq, SeqRange, StreamId, Timestamp};

use crate::reader::{Direction, Most, Sizes, Stretch};

/// The rough memory cost of a chunk beside its bytes.
const OVERHEAD: usize = 160;
/// How many chunks are looked at to find how far the window's messages reach: with chunks of one message each
/// there may be many.
const PIECES_LOOKED_AT: usize = 64;

#[derive(Debug)]
pub struct Window {
    chunks: BTreeMap<(StreamId, Seq), Chunk>,
    /// In the order in which they came, each with its number. An entry whose chunk was dropped early, or
    /// has come again since, is skipped when it gets to the front.
    order: VecDeque<((StreamId, Seq), u64)>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

/// Messages that were published together: their positions in the stream are consecutive, and so are those in the shard.
#[derive(Debug)]
struct Chunk {
    number: u64,
    last: Seq,
    /// Of the first message.
    ordinal: Ordinal,
    at: Timestamp,
    sizes: Sizes,
    /// The special properties of the messages, unless all of them are plain.
    extras: Option<Arc<[Extra]>>,
    contents: Bytes,
    /// Bytes that are kept in memory because of the contents, which may be a part of them.
    held: usize,
}

/// Where a message is: its position in its stream, and the one in the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub seq: Seq,
    pub ordinal: Ordinal,
}

/// The properties of a message beside its content, as far as they matter once it is published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extra {
    pub key: Option<KeyHash>,
    pub priority: u8,
    pub expires: Option<Timestamp>,
    /// Boxed, since few messages were ever moved.
    pub origin: Option<Box<Origin>>,
}

impl Extra {
    fn of(meta: &MessageMeta) -> Extra {
        Extra {
            key: meta.key,
            priority: meta.priority,
            expires: meta.expires,
            origin: meta.origin.map(Box::new),
        }
    }

    /// The special properties of the messages, if any of them has some.
    pub(crate) fn of_all(messages: impl Iterator<Item = MessageMeta> + Clone) -> Option<Arc<[Extra]>> {
        let plain = |meta: MessageMeta| {
            meta.key.is_none() && meta.priority == 0 && meta.expires.is_none() && meta.origin.is_none()
        };
        (!messages.clone().all(plain)).then(|| messages.map(|meta| Extra::of(&meta)).collect())
    }
}

impl Chunk {
    /// All of it, for a reader. It begins with `first`.
    fn stretch(&self, stream: StreamId, first: Seq) -> Stretch {
        let len = SeqRange::new(first, self.last).count() as usize;
        let place = Place { seq: first, ordinal: self.ordinal };
        Stretch::new(
            stream,
            place,
            self.at,
            len,
            self.sizes.clone(),
            self.extras.clone(),
            self.contents.clone(),
        )
    }

    /// The memory it takes.
    fn cost(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |extras| extras.len() * size_of::<Extra>());
        self.contents.len() + OVERHEAD + extras
    }

    /// The part of a chunk that begins with `first` which lies in the range. It keeps the number.
    fn part(&self, first: Seq, range: SeqRange) -> Chunk {
        let from = (range.first.0 - first.0) as usize;
        let to = (range.last.0 - first.0) as usize;
        let (start, end) = (self.sizes.stretch(from).0, self.sizes.stretch(to).1);
        let sizes = match &self.sizes {
            Sizes::Uniform(size) => Sizes::Uniform(*size),
            Sizes::Ends(ends) => Sizes::Ends(ends[from..=to].iter().map(|end| end - start as u32).collect()),
        };
        let contents = self.contents.slice(start..end);
        // A small part would keep all of it in memory.
        let alone = contents.len() * 2 < self.held;
        let held = if alone { contents.len() } else { self.held };
        let contents = if alone { Bytes::copy_from_slice(&contents) } else { contents };
        let extras = self.extras.as_ref().map(|extras| extras[from..=to].into());
        let ordinal = self.ordinal.plus(from as u64);
        Chunk { number: self.number, last: range.last, ordinal, at: self.at, sizes, extras, contents, held }
    }
}

/// A message that is in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub seq: Seq,
    pub ordinal: Ordinal,
    pub published: Timestamp,
    pub extra: Extra,
    pub content: Bytes,
}

impl Found {
    /// When it was published, before it was moved here if it was.
    pub fn published(&self) -> Timestamp {
        self.extra.origin.as_ref().map_or(self.published, |origin| origin.published)
    }

    /// The streams that it comes from, if it was moved here.
    pub fn trail(&self) -> Option<MoveTrail> {
        self.extra.origin.as_ref().and_then(|origin| origin.trail)
    }

    pub(crate) fn meta(&self) -> MessageMeta {
        MessageMeta {
            size: self.content.len() as u32,
            id: None,
            key: self.extra.key,
            priority: self.extra.priority,
            not_before: None,
            expires: self.extra.expires,
            origin: self.extra.origin.as_deref().copied(),
        }
    }
}

impl Window {
    pub fn new(bytes_max: usize) -> Window {
        Window { chunks: BTreeMap::new(), order: VecDeque::new(), next: 0, bytes: 0, bytes_max }
    }

    /// Takes in messages from `first` on whose contents follow each other in `contents`.
    pub fn insert(
        &mut self,
        stream: StreamId,
        first: Place,
        at: Timestamp,
        messages: impl ExactSizeIterator<Item = MessageMeta> + Clone,
        contents: Bytes,
    ) {
        let count = messages.len() as u64;
        let extras = Extra::of_all(messages.clone());
        let sizes = Sizes::of(messages);
        self.add(stream, first, count, at, sizes, extras, contents);
    }

    /// As [`Window::insert`], from an entry that was read back.
    pub fn insert_read(
        &mut self,
        stream: StreamId,
        first: Place,
        at: Timestamp,
        messages: &Messages,
        contents: Bytes,
    ) {
        match messages {
            Messages::Uniform { count, size } => {
                self.add(stream, first, u64::from(*count), at, Sizes::Uniform(*size), None, contents);
            }
            Messages::Each(messages) => self.insert(stream, first, at, messages.iter().copied(), contents),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a chunk, once")]
    fn add(
        &mut self,
        stream: StreamId,
        Place { seq, ordinal }: Place,
        count: u64,
        at: Timestamp,
        sizes: Sizes,
        extras: Option<Arc<[Extra]>>,
        contents: Bytes,
    ) {
        let range = SeqRange::starting(seq, count);
        self.cut(stream, range);
        let held = contents.len();
        self.put(
            stream,
            range.first,
            Chunk { number: self.next, last: range.last, ordinal, at, sizes, extras, contents, held },
        );
        self.order.push_back(((stream, range.first), self.next));
        self.next += 1;
        // The newest always stays: it was put here to be used at once.
        while self.bytes > self.bytes_max && self.order.len() > 1 {
            self.evict_oldest();
        }
        // Names of chunks that were dropped early must not pile up.
        if self.order.len() > 2 * self.chunks.len() + 64 {
            let chunks = &self.chunks;
            self.order.retain(|(key, number)| chunks.get(key).is_some_and(|chunk| chunk.number == *number));
        }
    }

    fn put(&mut self, stream: StreamId, first: Seq, chunk: Chunk) {
        self.bytes += chunk.cost();
        let before = self.chunks.insert((stream, first), chunk);
        assert!(before.is_none(), "room was made for the chunk");
    }

    /// Takes the range out of the chunks that have something of it.
    fn cut(&mut self, stream: StreamId, range: SeqRange) {
        while let Some((first, _)) = self.chunk_within(stream, range) {
            let chunk = self.chunks.remove(&(stream, first)).expect("the chunk was found just now");
            self.bytes -= chunk.cost();
            if first < range.first {
                let left = chunk.part(first, SeqRange::new(first, Seq(range.first.0 - 1)));
                self.put(stream, first, left);
            }
            if chunk.last > range.last {
                let next = range.last.next();
                let mut right = chunk.part(first, SeqRange::new(next, chunk.last));
                right.number = self.next;
                self.order.push_back(((stream, next), self.next));
                self.next += 1;
                self.put(stream, next, right);
            }
        }
    }

    /// The last chunk that has something of the range.
    fn chunk_within(&self, stream: StreamId, range: SeqRange) -> Option<(Seq, &Chunk)> {
        let (&(of, first), chunk) = self.chunks.range(..=(stream, range.last)).next_back()?;
        (of == stream && range.first <= chunk.last).then_some((first, chunk))
    }

    fn evict_oldest(&mut self) {
        let Some((key, number)) = self.order.pop_front() else { return };
        if let Entry::Occupied(chunk) = self.chunks.entry(key)
            && chunk.get().number == number
        {
            self.bytes -= chunk.remove().cost();
        }
    }

    /// Appends the messages of the range that are here, from its start without a gap, and returns the
    /// first one that is not.
    pub fn collect(&self, stream: StreamId, range: SeqRange, mut take: impl FnMut(Found)) -> Seq {
        let mut next = range.first;
        while next <= range.last {
            let Some((first, chunk)) = self.chunk_within(stream, SeqRange::one(next)) else { break };
            let last = chunk.last.min(range.last);
            for seq in SeqRange::new(next, last).seqs() {
                let n = (seq.0 - first.0) as usize;
                let (from, to) = chunk.sizes.stretch(n);
                let extra = chunk.extras.as_ref().map_or_else(Extra::default, |extras| extras[n].clone());
                let shift = if planted(Fault::PositionInLogNotCounted) { 0 } else { n as u64 };
                let ordinal = chunk.ordinal.plus(shift);
                let content = chunk.contents.slice(from..to);
                take(Found { seq, ordinal, published: chunk.at, extra, content });
            }
            next = last.next();
        }
        next
    }

    /// Adds the messages of the range that are here, from its start without a gap, or from its end back, as stretches
    /// that share their memory.
    pub(crate) fn stretches(
        &self,
        stream: StreamId,
        range: SeqRange,
        direction: Direction,
        most: Most,
        out: &mut Vec<Stretch>,
    ) {
        let (mut left, mut messages, mut bytes) = (Some(range), 0, 0);
        while let Some(range) = left.filter(|_| most.has_room(messages, bytes)) {
            let wanted = match direction {
                Direction::Forwards => range.first,
                Direction::Backwards => range.last,
            };
            let Some((first, chunk)) = self.chunk_within(stream, SeqRange::one(wanted)) else { break };
            let Some(stretch) = chunk.stretch(stream, first).part(range) else { break };
            let seqs = stretch.seqs();
            left = match direction {
                Direction::Forwards => range.overlap(SeqRange { first: seqs.last.next(), last: range.last }),
                Direction::Backwards => {
                    range.overlap(SeqRange { first: range.first, last: Seq(seqs.first.0 - 1) })
                }
            };
            messages += seqs.count();
            bytes += stretch.bytes();
            out.push(stretch);
        }
    }

    /// The keys of the messages of the range, in order; none for those that are not here.
    pub fn keys(&self, stream: StreamId, range: SeqRange, keys: &mut Vec<KeyHash>) {
        keys.reserve(range.count() as usize);
        let mut next = range.first;
        while next <= range.last {
            let here = self.chunk_within(stream, SeqRange::one(next));
            let last = here.map_or(next, |(_, chunk)| chunk.last.min(range.last));
            match here.and_then(|(first, chunk)| chunk.extras.as_ref().map(|extras| (first, extras))) {
                Some((first, extras)) => {
                    let of = &extras[(next.0 - first.0) as usize..=(last.0 - first.0) as usize];
                    keys.extend(of.iter().map(|extra| extra.key.unwrap_or(KeyHash(0))));
                }
                None => keys.resize(keys.len() + SeqRange::new(next, last).count() as usize, KeyHash(0)),
            }
            next = last.next();
        }
    }

    /// The first message from the range's start on that is not here.
    pub fn reaches(&self, stream: StreamId, range: SeqRange) -> Seq {
        let mut next = range.first;
        while next <= range.last {
            let Some((_, chunk)) = self.chunk_within(stream, SeqRange::one(next)) else { break };
            next = chunk.last.next();
        }
        next.min(range.last.next())
    }

    /// The first message from `seq` on that is here.
    pub fn first_from(&self, stream: StreamId, seq: Seq) -> Option<Seq> {
        if self.chunk_within(stream, SeqRange::one(seq)).is_some() {
            return Some(seq);
        }
        let (&(of, first), _) = self.chunks.range((stream, seq)..).next()?;
        (of == stream).then_some(first)
    }

    /// The first message from `next` on that is not here, unless more than `bytes` of contents come before it, or
    /// more pieces than one cares to look at.
    pub fn runs_out(&self, stream: StreamId, mut next: Seq, bytes: usize) -> Option<Seq> {
        let mut held = 0;
        for _ in 0..PIECES_LOOKED_AT {
            let Some((_, chunk)) = self.chunk_within(stream, SeqRange::one(next)) else { return Some(next) };
            held += chunk.held;
            if held > bytes {
                return None;
            }
            next = chunk.last.next();
        }
        None
    }

    /// Drops messages of the stream before `wanted`: every group has settled them.
    pub fn forget_before(&mut self, stream: StreamId, wanted: Seq) {
        while let Some((&key, chunk)) =
            self.chunks.range((stream, Seq::START)..=(stream, Seq(u64::MAX))).next()
        {
            if chunk.last >= wanted {
                break;
            }
            self.bytes -= chunk.cost();
            let named = (key, chunk.number);
            self.chunks.remove(&key);
            if self.order.front() == Some(&named) {
                self.order.pop_front();
            }
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// In these tests the position in the shard follows from the position.
    fn place(seq: u64) -> Place {
        Place { seq: Seq(seq), ordinal: Ordinal(seq + 1_000) }
    }

    fn put(window: &mut Window, first: u64, sizes: &[u32]) {
        let metas: Vec<MessageMeta> = sizes.iter().map(|&size| MessageMeta::plain(size)).collect();
        let mut contents = Vec::new();
        for (n, &size) in sizes.iter().enumerate() {
            contents.extend(std::iter::repeat_n((first + n as u64) as u8, size as usize));
        }
        window.insert(StreamId(1), place(first), Timestamp(7), metas.iter().copied(), contents.into());
    }

    fn range(first: u64, last: u64) -> SeqRange {
        SeqRange::new(Seq(first), Seq(last))
    }

    #[test]
    fn messages_are_found_across_chunks_until_the_first_gap() {
        let mut window = Window::new(1 << 20);
        put(&mut window, 1, &[3, 3, 3]);
        put(&mut window, 4, &[1, 0, 5]);
        put(&mut window, 8, &[2]);
        let mut found = Vec::new();
        let gap = window.collect(StreamId(1), range(2, 8), |message| found.push(message));
        assert_eq!(gap, Seq(7));
        let seen: Vec<(u64, &[u8])> = found.iter().map(|found| (found.seq.0, &found.content[..])).collect();
        assert_eq!(seen, [(2, &[2u8; 3][..]), (3, &[3; 3]), (4, &[4; 1]), (5, &[]), (6, &[6; 5])]);
        assert_eq!(window.reaches(StreamId(1), range(1, 9)), Seq(7));
        assert_eq!(window.reaches(StreamId(2), range(1, 9)), Seq(1));
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let mut window = Window::new(3 * (100 + OVERHEAD));
        for n in 1..=5 {
            put(&mut window, n, &[100]);
        }
        assert_eq!(window.reaches(StreamId(1), range(1, 5)), Seq(1));
        assert_eq!(window.reaches(StreamId(1), range(3, 5)), Seq(6));
        put(&mut window, 6, &[5_000]);
        assert_eq!(window.reaches(StreamId(1), range(6, 6)), Seq(7), "the newest stays whatever its size");
        assert_eq!(window.bytes(), 5_000 + OVERHEAD);
    }

    #[test]
    fn what_comes_again_is_new() {
        let mut window = Window::new(3 * (100 + OVERHEAD));
        for n in [1, 2, 3, 1] {
            put(&mut window, n, &[100]);
        }
        put(&mut window, 4, &[100]);
        assert_eq!(window.reaches(StreamId(1), range(1, 1)), Seq(2), "it came after 2 and 3");
        assert_eq!(window.reaches(StreamId(1), range(2, 2)), Seq(2));
        assert_eq!(window.reaches(StreamId(1), range(3, 4)), Seq(5));
    }

    #[test]
    fn what_every_group_has_settled_is_forgotten() {
        let mut window = Window::new(1 << 20);
        for n in 0..1_000 {
            put(&mut window, n * 2 + 1, &[10, 10]);
            window.forget_before(StreamId(1), Seq(n * 2 + 2));
        }
        assert_eq!(window.chunks.len(), 1, "a chunk with one unsettled message stays");
        assert!(window.order.len() < 200, "no names pile up: {}", window.order.len());
        assert_eq!(window.bytes(), 20 + OVERHEAD);
    }

    #[test]
    fn a_message_that_comes_again_hides_nothing_around_it() {
        let mut window = Window::new(1 << 20);
        put(&mut window, 1, &[10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        put(&mut window, 5, &[50]);
        put(&mut window, 9, &[90, 100, 110]);
        let mut found = Vec::new();
        let gap = window.collect(StreamId(1), range(1, 12), |message| found.push(message));
        assert_eq!(gap, Seq(12));
        for message in found {
            assert_eq!(message.content, vec![message.seq.0 as u8; message.seq.0 as usize * 10]);
        }
    }

    #[test]
    fn a_small_rest_does_not_keep_a_large_buffer() {
        let mut window = Window::new(1 << 20);
        put(&mut window, 1, &[1_000; 100]);
        put(&mut window, 2, &[1_000; 98]);
        let kept: Vec<_> = window.chunks.values().map(|chunk| (chunk.contents.len(), chunk.held)).collect();
        assert_eq!(kept, [(1_000, 1_000), (98_000, 98_000), (1_000, 1_000)]);
        assert_eq!(window.bytes(), 100_000 + 3 * OVERHEAD);
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_plain_map(
            chunks in prop::collection::vec((1u64..60, prop::collection::vec(0u32..5, 1..20), any::<bool>()), 1..40),
            forgotten in 1u64..80,
        ) {
            let mut window = Window::new(1 << 20);
            let mut plain: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
            // A message is always the same: its size and time follow from its position.
            let of = |seq: u64| ((seq / 7) * 1_000, (seq * seq % 5) as u32);
            for (first, sizes, whole) in chunks {
                // Messages that were published together have one time.
                let last = if whole { first + sizes.len() as u64 - 1 } else { first };
                let seqs: Vec<u64> = (first..=last).take_while(|seq| of(*seq).0 == of(first).0).collect();
                let metas: Vec<_> = seqs.iter().map(|&seq| MessageMeta::plain(of(seq).1)).collect();
                let contents: Vec<u8> =
                    seqs.iter().flat_map(|&seq| vec![seq as u8; of(seq).1 as usize]).collect();
                let at = Timestamp(of(first).0);
                window.insert(StreamId(1), place(first), at, metas.iter().copied(), contents.into());
                plain.extend(seqs.iter().map(|&seq| (seq, of(seq))));
            }
            for first in 1..100 {
                let mut found = Vec::new();
                let gap = window.collect(StreamId(1), range(first, 100), |message| found.push(message));
                let expected = (first..).find(|seq| !plain.contains_key(seq)).expect("the map is finite");
                prop_assert_eq!(gap, Seq(expected));
                prop_assert_eq!(window.reaches(StreamId(1), range(first, 100)), gap);
                for (message, seq) in found.iter().zip(first..) {
                    let (at, size) = plain[&seq];
                    prop_assert_eq!((message.seq, message.published), (Seq(seq), Timestamp(at)));
                    prop_assert_eq!(message.ordinal, place(seq).ordinal);
                    prop_assert_eq!(&message.content[..], &vec![seq as u8; size as usize][..]);
                }
            }
            let bytes: usize =
                window.chunks.values().map(|chunk| chunk.contents.len() + OVERHEAD).sum();
            prop_assert_eq!(window.bytes(), bytes);
            window.forget_before(StreamId(1), Seq(forgotten));
            for &seq in plain.keys().filter(|seq| **seq >= forgotten) {
                prop_assert_eq!(window.reaches(StreamId(1), range(seq, seq)), Seq(seq + 1));
            }
        }
    }
}
