//! The loop around the cursors of a reader: it asks the shard's task where messages are, reads them from the engine,
//! and waits until there are more.
//!
//! Everything that a reader has read and its caller has not taken counts against the bytes that all readers share
//! ([`Memory`](crate::memory::Memory)). If there is no room for it, it is dropped, and read again when its turn comes.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_core::types::{Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::ReadBudget;
use tokio::sync::watch;

use crate::error::CallError;
use crate::memory::{Hold, Share};
use crate::reader::{Cursor, Direction, Most, Step, Stretch, Wish};
use crate::shard_handle::ShardHandle;

/// Tells a reader that one of its streams has grown, or is gone.
pub(crate) type Signal = Arc<watch::Sender<()>>;

/// Reads messages of one stream or several, in order, without disturbing anything. Each method may be dropped before it
/// is done, and called again.
pub struct Reader {
    shard: ShardHandle,
    lanes: Vec<Lane>,
    /// The lane that comes first on the next page.
    turn: usize,
    share: Share,
    /// Room for the messages that were read ahead.
    hold: Option<Hold>,
    tail: watch::Receiver<()>,
    /// Taken by the shard's task when the reader first waits.
    signal: Option<Signal>,
}

/// A reader's place in one stream.
struct Lane {
    cursor: Cursor,
    /// Messages that were read and not taken yet, in the order of reading.
    ahead: VecDeque<Stretch>,
    /// The last message that the stream had when the task was asked.
    last: Seq,
    /// The stream is gone.
    is_gone: bool,
}

impl Lane {
    /// The first message that was not taken.
    fn next(&self) -> Seq {
        self.ahead.front().map_or(self.cursor.next(), |first| match self.cursor.direction() {
            Direction::Forwards => first.seqs().first,
            Direction::Backwards => first.seqs().last,
        })
    }

    fn drop_ahead(&mut self) {
        if !self.ahead.is_empty() {
            self.cursor.seek(self.next());
            self.ahead.clear();
        }
    }

    /// Messages that can no longer be read are not shown, although they were read.
    fn keep(&mut self, readable: Option<SeqRange>) {
        let Some(readable) = readable else { return self.drop_ahead() };
        let goes = |stretch: &Stretch| stretch.seqs().first < readable.first;
        if self.ahead.iter().any(goes) {
            let kept = self.ahead.drain(..).filter_map(|stretch| stretch.part(readable)).collect();
            self.ahead = kept;
        }
    }

    /// Moves messages to a page, as many as fit. False once it is full.
    fn take(
        &mut self,
        most: Most,
        page: &mut Vec<Stretch>,
        (messages, bytes): (&mut u64, &mut usize),
    ) -> bool {
        while let Some(stretch) = self.ahead.pop_front() {
            if !most.has_room(*messages, *bytes) {
                self.ahead.push_front(stretch);
                return false;
            }
            let (left, room) = (most.messages - *messages, most.bytes - *bytes);
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let count = match self.cursor.direction() {
                Direction::Forwards => stretch.fitting(room),
                Direction::Backwards => stretch.fitting_back(room),
            };
            let (part, rest) = match self.cursor.direction() {
                Direction::Forwards => stretch.clone().split(count.min(left)),
                Direction::Backwards => stretch.clone().split_back(count.min(left)),
            };
            // A message that is larger than the rest of the page begins the next one.
            if part.bytes() > room && !page.is_empty() {
                self.ahead.push_front(stretch);
                return false;
            }
            *messages += part.len() as u64;
            *bytes += part.bytes();
            page.push(part);
            if let Some(rest) = rest {
                self.ahead.push_front(rest);
                return false;
            }
        }
        true
    }
}

impl Reader {
    pub(super) fn new(
        shard: ShardHandle,
        share: Share,
        streams: impl IntoIterator<Item = (StreamId, Seq)>,
        direction: Direction,
    ) -> Reader {
        let lane = |(stream, next)| Lane {
            cursor: Cursor::new(stream, next, direction),
            ahead: VecDeque::new(),
            last: Seq::START,
            is_gone: false,
        };
        let (signal, tail) = watch::channel(());
        let lanes = streams.into_iter().map(lane).collect();
        Reader { shard, lanes, turn: 0, share, hold: None, tail, signal: Some(Arc::new(signal)) }
    }

    /// The next messages, up to `most`, in the order of reading; none if there are no more at this moment. Fails if the
    /// stream has been deleted, or all of several.
    pub async fn next(&mut self, most: Most) -> Result<Vec<Stretch>, CallError> {
        self.tail.mark_unchanged();
        loop {
            let reads = self.ask(most).await?;
            let mut asks_again = false;
            let mut bytes: usize = self.lanes.iter().flat_map(|lane| &lane.ahead).map(Stretch::bytes).sum();
            for (n, from, budget) in reads {
                if !asks_again && bytes < most.bytes {
                    asks_again = self.read(n, from, budget).await?;
                    bytes += self.lanes[n].ahead.iter().map(Stretch::bytes).sum::<usize>();
                }
            }
            let page = self.page(most);
            if !page.is_empty() || !asks_again {
                return Ok(page);
            }
        }
    }

    /// Asks the shard's task where the next messages are, for every stream at once. Takes those that are in memory, and
    /// returns the reads for the others.
    async fn ask(&mut self, most: Most) -> Result<Vec<(usize, Position, ReadBudget)>, CallError> {
        // Of a stream that messages are here of, it matters only which of them are still kept.
        let nothing = Most { messages: 0, bytes: 0 };
        let most_of = |lane: &Lane| if lane.ahead.is_empty() { most } else { nothing };
        let wishes: Vec<Wish> = self.lanes.iter().map(|lane| lane.cursor.wish(most_of(lane))).collect();
        let answers = self.shard.ask(move |task, reply| task.locate(&wishes, reply)).await?;
        let count = self.lanes.len();
        let first = self.turn;
        self.turn = (first + 1) % count.max(1);
        let mut reads = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            let lane = &mut self.lanes[n];
            let Some(located) = answer else {
                lane.is_gone = true;
                lane.ahead.clear();
                continue;
            };
            lane.last = located.last;
            lane.keep(located.readable);
            if lane.ahead.is_empty() {
                match lane.cursor.plan(located, self.shard.reader_bytes_max) {
                    Step::Found(found) => lane.ahead.extend(found),
                    Step::Read(from, budget) => reads.push((n, from, budget)),
                    Step::Ask | Step::End => {}
                }
            }
        }
        if self.lanes.iter().all(|lane| lane.is_gone) {
            return Err(CallError::StreamGone);
        }
        reads.sort_by_key(|(n, ..)| (n + count - first) % count);
        Ok(reads)
    }

    /// Reads for a stream until something is found. True if the task has to be asked again first.
    async fn read(&mut self, n: usize, from: Position, budget: ReadBudget) -> Result<bool, CallError> {
        let (mut from, mut budget) = (from, budget);
        loop {
            // Room is taken first, and the read is as large as the room.
            let hold = self.share.take_up_to(budget.bytes_max);
            budget.bytes_max = hold.bytes();
            let readout = self.shard.read_frames(from, budget).await?;
            let cursor = &mut self.lanes[n].cursor;
            let lost = cursor.lost();
            let step = match readout {
                Some(readout) => cursor.take(&readout).unwrap_or_else(|error| {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(error, "ALARM: stored messages cannot be decoded and are not shown");
                    cursor.unreadable()
                }),
                None => cursor.unreadable(),
            };
            if cursor.lost() > lost {
                let (stream, messages) = (cursor.stream().0, cursor.lost() - lost);
                tracing::error!(stream, messages, "ALARM: stored messages cannot be read and are not shown");
            }
            match step {
                Step::Found(found) => {
                    self.lanes[n].ahead.extend(found);
                    return Ok(false);
                }
                Step::End => return Ok(false),
                Step::Ask => return Ok(true),
                Step::Read(on, more) => (from, budget) = (on, more),
            }
        }
    }

    /// The messages that are here, as many as fit on a page. The rest stays only if there is room for it.
    fn page(&mut self, most: Most) -> Vec<Stretch> {
        let (mut page, mut messages, mut bytes) = (Vec::new(), 0, 0);
        let count = self.lanes.len();
        let first = (self.turn + count - 1) % count.max(1);
        for n in 0..count {
            let lane = &mut self.lanes[(first + n) % count];
            if !lane.take(most, &mut page, (&mut messages, &mut bytes)) {
                break;
            }
        }
        let ahead: usize = self.lanes.iter().flat_map(|lane| &lane.ahead).map(Stretch::bytes).sum();
        let hold = self.hold.get_or_insert_with(|| self.share.count(0));
        if ahead <= hold.bytes() || hold.try_grow(ahead) {
            hold.set(ahead);
        } else {
            self.lanes.iter_mut().for_each(Lane::drop_ahead);
            hold.set(0);
        }
        page
    }

    /// Waits until one of the streams has grown or is gone.
    pub async fn grown(&mut self) -> Result<(), CallError> {
        let Some(signal) = self.signal.clone() else {
            // The senders go with the task.
            return self.tail.changed().await.map_err(|_| CallError::Stopping);
        };
        let streams: Vec<StreamId> = self.lanes.iter().map(|lane| lane.cursor.stream()).collect();
        self.shard.ask(move |task, reply| task.watch(&streams, &signal, reply)).await?;
        self.signal = None;
        // A stream may have grown before the task knew of the reader.
        Ok(())
    }

    pub fn direction(&self) -> Direction {
        self.lanes.first().map_or(Direction::Forwards, |lane| lane.cursor.direction())
    }

    /// The next message of the only stream, or of the first of several.
    pub fn position(&self) -> Seq {
        self.lanes.first().map_or(Seq::START, Lane::next)
    }

    /// The next message of each stream, in the order in which they were named.
    pub fn positions(&self) -> impl Iterator<Item = (StreamId, Seq)> + '_ {
        self.lanes.iter().map(|lane| (lane.cursor.stream(), lane.next()))
    }

    /// The last message of the first stream, when the task was last asked.
    pub fn last(&self) -> Seq {
        self.lanes.first().map_or(Seq::START, |lane| lane.last)
    }

    /// Messages that were left out because they cannot be read.
    pub fn lost(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.cursor.lost()).sum()
    }

    /// Goes to another position of the first stream.
    pub fn seek(&mut self, next: Seq) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.ahead.clear();
            lane.cursor.seek(next);
        }
    }
}
