//! Contents near the tail and contents that were read back lately, within a byte budget.
//!
//! Live traffic is delivered from here and never touches the disk. What is not here is read again from
//! the engine, so dropping something is always allowed and only ever costs time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use forebay_core::entry::{MessageMeta, Messages};
use forebay_core::types::{Seq, SeqRange, StreamId, Timestamp};

/// What a chunk costs beside its bytes, by rough count.
const OVERHEAD: usize = 160;

#[derive(Debug)]
pub struct Window {
    chunks: BTreeMap<(StreamId, Seq), Chunk>,
    /// In the order in which they came, each with its number. What was dropped early, or has come again
    /// since, is skipped when it gets to the front.
    order: VecDeque<((StreamId, Seq), u64)>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

/// Messages that were published together.
#[derive(Debug)]
struct Chunk {
    number: u64,
    last: Seq,
    at: Timestamp,
    sizes: Sizes,
    contents: Bytes,
}

#[derive(Debug)]
enum Sizes {
    Uniform(u32),
    /// Where each content ends.
    Ends(Box<[u32]>),
}

impl Sizes {
    /// Where the `n`-th content lies.
    fn stretch(&self, n: usize) -> (usize, usize) {
        match self {
            Sizes::Uniform(size) => (n * *size as usize, (n + 1) * *size as usize),
            Sizes::Ends(ends) => {
                (n.checked_sub(1).map_or(0, |before| ends[before] as usize), ends[n] as usize)
            }
        }
    }
}

/// A message that is in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub seq: Seq,
    pub published: Timestamp,
    pub content: Bytes,
}

impl Window {
    pub fn new(bytes_max: usize) -> Window {
        Window { chunks: BTreeMap::new(), order: VecDeque::new(), next: 0, bytes: 0, bytes_max }
    }

    /// Takes in messages from `first` on whose contents follow each other in `contents`.
    pub fn insert(
        &mut self,
        stream: StreamId,
        first: Seq,
        at: Timestamp,
        messages: impl ExactSizeIterator<Item = MessageMeta> + Clone,
        contents: Bytes,
    ) {
        let count = messages.len() as u64;
        let size = messages.clone().next().map_or(0, |message| message.size);
        let sizes = if messages.clone().all(|message| message.size == size) {
            Sizes::Uniform(size)
        } else {
            let mut end = 0;
            Sizes::Ends(
                messages
                    .map(|message| {
                        end += message.size;
                        end
                    })
                    .collect(),
            )
        };
        self.add(stream, first, Chunk { number: 0, last: Seq(first.0 + count - 1), at, sizes, contents });
    }

    /// As [`Window::insert`], from an entry that was read back.
    pub fn insert_read(
        &mut self,
        stream: StreamId,
        first: Seq,
        at: Timestamp,
        messages: &Messages,
        contents: Bytes,
    ) {
        match messages {
            Messages::Uniform { count, size } => {
                let last = Seq(first.0 + u64::from(*count) - 1);
                self.add(
                    stream,
                    first,
                    Chunk { number: 0, last, at, sizes: Sizes::Uniform(*size), contents },
                );
            }
            Messages::Each(messages) => self.insert(stream, first, at, messages.iter().copied(), contents),
        }
    }

    fn add(&mut self, stream: StreamId, first: Seq, mut chunk: Chunk) {
        chunk.number = self.next;
        self.next += 1;
        self.bytes += chunk.contents.len() + OVERHEAD;
        self.order.push_back(((stream, first), chunk.number));
        if let Some(before) = self.chunks.insert((stream, first), chunk) {
            self.bytes -= before.contents.len() + OVERHEAD;
        }
        // The newest always stays: whoever put it here is about to use it.
        while self.bytes > self.bytes_max && self.order.len() > 1 {
            self.evict_oldest();
        }
        // Names of chunks that were dropped early must not pile up.
        if self.order.len() > 2 * self.chunks.len() + 64 {
            let chunks = &self.chunks;
            self.order.retain(|(key, number)| chunks.get(key).is_some_and(|chunk| chunk.number == *number));
        }
    }

    fn evict_oldest(&mut self) {
        let Some((key, number)) = self.order.pop_front() else { return };
        if let Entry::Occupied(chunk) = self.chunks.entry(key)
            && chunk.get().number == number
        {
            self.bytes -= chunk.remove().contents.len() + OVERHEAD;
        }
    }

    /// Appends the messages of the range that are here, from its start without a gap, and returns the
    /// first one that is not.
    pub fn collect(&self, stream: StreamId, range: SeqRange, mut take: impl FnMut(Found)) -> Seq {
        let mut next = range.first;
        while next <= range.last {
            let Some((first, chunk)) = self.chunk_with(stream, next) else { break };
            let last = chunk.last.min(range.last);
            for seq in SeqRange::new(next, last).seqs() {
                let (from, to) = chunk.sizes.stretch((seq.0 - first.0) as usize);
                take(Found { seq, published: chunk.at, content: chunk.contents.slice(from..to) });
            }
            next = last.next();
        }
        next
    }

    /// The first message from the range's start on that is not here.
    pub fn reaches(&self, stream: StreamId, range: SeqRange) -> Seq {
        let mut next = range.first;
        while next <= range.last {
            let Some((_, chunk)) = self.chunk_with(stream, next) else { break };
            next = chunk.last.next();
        }
        next.min(range.last.next())
    }

    fn chunk_with(&self, stream: StreamId, seq: Seq) -> Option<(Seq, &Chunk)> {
        let (&(of, first), chunk) = self.chunks.range(..=(stream, seq)).next_back()?;
        (of == stream && seq <= chunk.last).then_some((first, chunk))
    }

    /// Drops messages of the stream before `wanted`: every group has settled them.
    pub fn forget_before(&mut self, stream: StreamId, wanted: Seq) {
        while let Some((&key, chunk)) =
            self.chunks.range((stream, Seq::START)..=(stream, Seq(u64::MAX))).next()
        {
            if chunk.last >= wanted {
                break;
            }
            self.bytes -= chunk.contents.len() + OVERHEAD;
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
    use super::*;

    fn put(window: &mut Window, first: u64, sizes: &[u32]) {
        let metas: Vec<MessageMeta> = sizes.iter().map(|&size| MessageMeta::plain(size)).collect();
        let mut contents = Vec::new();
        for (n, &size) in sizes.iter().enumerate() {
            contents.extend(std::iter::repeat_n((first + n as u64) as u8, size as usize));
        }
        window.insert(StreamId(1), Seq(first), Timestamp(7), metas.iter().copied(), contents.into());
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
}
