//! Reading the whole log: the messages of all streams in the order in which they were published.
//!
//! For each page the shard's task is asked one short question: which of the streams of the messages that were read are
//! still there, what they are called, and which of their messages can be read.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use forebay_core::types::{Ordinal, Position, SeqRange, StreamId, StreamName};
use forebay_storage::engine::ReadBudget;
use tokio::sync::watch;

use super::reader::Signal;
use super::{Caller, Filter};
use crate::access::{Resource, Right, authorize_list};
use crate::batch::parse_content;
use crate::error::CallError;
use crate::memory::{Hold, Share};
use crate::reader::{Direction, Most, Step, Stretch, WholeCursor};
use crate::shard_task::ShardTask;
use crate::window::Found;

/// Messages that are looked at for one page, at most. If few pass the filter, the page has fewer than asked for, and
/// says where to go on.
const LOOKED_AT_MAX: u64 = 10_000;
/// Names of streams that a reader remembers.
const NAMES_MAX: usize = 10_000;

/// Chooses texts: names of streams, or types of messages.
#[derive(Clone, Default)]
pub enum Choice {
    #[default]
    All,
    /// Those that begin with one of these.
    Prefixes(Vec<String>),
    /// Those with a `-` and this before the first one: names of streams by category.
    Category(String),
    /// Those for which this holds, for doors with patterns of their own.
    Test(Arc<dyn Fn(&str) -> bool + Send + Sync>),
}

impl Choice {
    pub fn prefix(prefix: &str) -> Choice {
        if prefix.is_empty() { Choice::All } else { Choice::Prefixes(vec![prefix.to_owned()]) }
    }

    pub fn is_all(&self) -> bool {
        matches!(self, Choice::All)
    }

    pub fn passes(&self, text: &str) -> bool {
        match self {
            Choice::All => true,
            Choice::Prefixes(prefixes) => prefixes.iter().any(|prefix| text.starts_with(prefix)),
            Choice::Category(category) => {
                text.split_once('-').is_some_and(|(before, _)| before == category.as_str())
            }
            Choice::Test(test) => test(text),
        }
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::All => f.write_str("All"),
            Choice::Prefixes(prefixes) => f.debug_tuple("Prefixes").field(prefixes).finish(),
            Choice::Category(category) => f.debug_tuple("Category").field(category).finish(),
            Choice::Test(_) => f.write_str("Test"),
        }
    }
}

/// Which messages of the whole log are wanted. All conditions hold.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// By the name of their stream.
    pub streams: Choice,
    /// By their type. A message without one counts as having an empty one.
    pub kinds: Choice,
    /// By their exact key and type.
    pub messages: Filter,
}

impl LogFilter {
    fn passes(&self, content: &[u8]) -> bool {
        let of_kind =
            || parse_content(content).is_ok_and(|message| self.kinds.passes(message.kind.unwrap_or("")));
        (self.kinds.is_all() || of_kind()) && self.messages.passes(content)
    }
}

/// A message, and the stream that it is in.
#[derive(Debug, Clone)]
pub struct LogMessage {
    pub stream: Arc<StreamName>,
    pub stream_id: StreamId,
    pub message: Found,
}

/// Messages of all streams, in the order of reading.
#[derive(Debug, Clone)]
pub struct LogPage {
    pub messages: Vec<LogMessage>,
    /// Where to read on. Backwards, zero when there are no more messages.
    pub next: Ordinal,
    /// The last message that was there.
    pub last: Ordinal,
    /// The reader has come to the end, or backwards to the beginning.
    pub is_end: bool,
}

/// What the shard's task says of a stream.
pub(crate) struct Standing {
    pub(crate) name: StreamName,
    pub(crate) readable: Option<SeqRange>,
}

/// Reads the messages of all streams, in the order of the log or from its end back, without disturbing anything. Each
/// method may be dropped before it is done, and called again.
pub struct LogReader {
    caller: Caller,
    cursor: WholeCursor,
    filter: LogFilter,
    /// Messages that were read and not taken yet, in the order of reading. Those of streams that are gone are among
    /// them.
    ahead: VecDeque<Stretch>,
    /// The streams that were met, those that are not wanted without a name.
    names: HashMap<StreamId, Option<Arc<StreamName>>>,
    share: Share,
    /// Room for the messages that were read ahead.
    hold: Option<Hold>,
    tail: watch::Receiver<()>,
    /// Taken by the shard's task when the reader first waits.
    signal: Option<Signal>,
}

impl Caller {
    /// A reader of the messages of all streams by their positions in the log, from `next` on or from there back.
    /// Messages of streams that the caller may not read are left out.
    pub fn log_reader(
        &self,
        next: Ordinal,
        direction: Direction,
        filter: LogFilter,
    ) -> Result<LogReader, CallError> {
        authorize_list(&self.principal, Resource::Server)?;
        let (signal, tail) = watch::channel(());
        Ok(LogReader {
            caller: self.clone(),
            cursor: WholeCursor::new(next, direction),
            filter,
            ahead: VecDeque::new(),
            names: HashMap::new(),
            share: self.broker.memory().reader(),
            hold: None,
            tail,
            signal: Some(Arc::new(signal)),
        })
    }

    /// The position in the log of the last message.
    pub async fn log_end(&self) -> Result<Ordinal, CallError> {
        authorize_list(&self.principal, Resource::Server)?;
        self.broker.whole().ask(ShardTask::log_end).await
    }
}

impl LogReader {
    /// The next messages, up to `most`, in the order of reading; perhaps none, also before the end, if few pass the
    /// filter.
    pub async fn next(&mut self, most: Most) -> Result<LogPage, CallError> {
        self.tail.mark_unchanged();
        let mut page =
            LogPage { messages: Vec::new(), next: self.position(), last: self.last(), is_end: false };
        let (mut looked_at, mut bytes) = (0, 0);
        loop {
            if self.ahead.is_empty() && !self.fill().await? {
                (page.is_end, page.next, page.last) = (true, self.position(), self.last());
                return Ok(page);
            }
            let standings = self.sift().await?;
            let is_full = self.take(most, &standings, &mut page, (&mut looked_at, &mut bytes));
            self.keep_ahead();
            (page.next, page.last) = (self.position(), self.last());
            if is_full || !page.messages.is_empty() || looked_at >= LOOKED_AT_MAX {
                return Ok(page);
            }
        }
    }

    /// Reads until something is found. False at the end.
    async fn fill(&mut self) -> Result<bool, CallError> {
        let shard = self.caller.broker.whole().clone();
        let bytes_max = shard.reader_bytes_max;
        let mut step = self.cursor.go_on(bytes_max);
        loop {
            step = match step {
                Step::Found(found) => {
                    self.ahead.extend(found);
                    return Ok(true);
                }
                Step::End => return Ok(false),
                Step::Ask => {
                    let wish = self.cursor.wish(bytes_max);
                    let located = shard.ask(move |task, reply| task.locate_whole(&wish, reply)).await?;
                    self.cursor.plan(located, bytes_max)
                }
                Step::Read(from, budget) => self.read(from, budget).await?,
            };
        }
    }

    async fn read(&mut self, from: Position, mut budget: ReadBudget) -> Result<Step, CallError> {
        // Room is taken first, and the read is as large as the room.
        let hold = self.share.take_up_to(budget.bytes_max);
        budget.bytes_max = hold.bytes();
        let readout = self.caller.broker.whole().read_frames(from, budget).await?;
        let lost = self.cursor.lost();
        let step = match readout {
            Some(readout) => self.cursor.take(&readout).unwrap_or_else(|error| {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "ALARM: stored messages cannot be decoded and are not shown");
                self.cursor.unreadable()
            }),
            None => self.cursor.unreadable(),
        };
        if self.cursor.lost() > lost {
            let messages = self.cursor.lost() - lost;
            tracing::error!(messages, "ALARM: stored messages cannot be read and are not shown");
        }
        Ok(step)
    }

    /// Asks which of the messages that were read can be read now.
    async fn sift(&mut self) -> Result<HashMap<StreamId, Option<SeqRange>>, CallError> {
        let mut streams: Vec<StreamId> = self.ahead.iter().map(|stretch| stretch.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        // Streams that are not wanted need not be asked about.
        streams.retain(|stream| self.names.get(stream).is_none_or(Option::is_some));
        let asked = streams.clone();
        let shard = self.caller.broker.whole();
        let (last, standings) = shard.ask(move |task, reply| task.stand(&asked, reply)).await?;
        self.cursor.grown_to(last);
        if self.names.len() + streams.len() > NAMES_MAX {
            self.names.clear();
        }
        let mut readable = HashMap::with_capacity(streams.len());
        for (stream, standing) in streams.into_iter().zip(standings) {
            let Some(Standing { name, readable: range }) = standing else {
                // Its number is not given again.
                self.names.insert(stream, None);
                continue;
            };
            let (caller, filter) = (&self.caller, &self.filter);
            self.names.entry(stream).or_insert_with(|| {
                let is_allowed = caller.may(Right::Read, Resource::Stream(&name)).is_ok();
                (is_allowed && filter.streams.passes(name.as_str())).then(|| Arc::new(name))
            });
            readable.insert(stream, range);
        }
        Ok(readable)
    }

    /// Moves messages to a page, as many as fit. True once it is full.
    fn take(
        &mut self,
        most: Most,
        readable: &HashMap<StreamId, Option<SeqRange>>,
        page: &mut LogPage,
        (looked_at, bytes): (&mut u64, &mut usize),
    ) -> bool {
        let direction = self.cursor.direction();
        while let Some(stretch) = self.ahead.pop_front() {
            let name = self.names.get(&stretch.stream).cloned().flatten();
            let kept = readable.get(&stretch.stream).copied().flatten();
            let Some((stream, kept)) = name.zip(kept) else {
                *looked_at += stretch.len() as u64;
                continue;
            };
            for n in 0..stretch.len() {
                let at = match direction {
                    Direction::Forwards => n,
                    Direction::Backwards => stretch.len() - 1 - n,
                };
                let seq = stretch.first.seq.plus(at as u64);
                let is_kept = kept.first <= seq && seq <= kept.last;
                let content = stretch.content_bytes(at);
                if is_kept && self.filter.passes(content) {
                    let (count, size) = (page.messages.len() as u64, content.len());
                    if !most.has_room(count, *bytes) || (*bytes > 0 && *bytes + size > most.bytes) {
                        self.ahead.extend(stretch.rest(n, direction));
                        self.ahead.rotate_right(1);
                        return true;
                    }
                    *bytes += size;
                    page.messages.push(LogMessage {
                        stream: stream.clone(),
                        stream_id: stretch.stream,
                        message: stretch.get(at),
                    });
                }
                *looked_at += 1;
            }
        }
        false
    }

    /// The messages that were not taken stay only if there is room for them.
    fn keep_ahead(&mut self) {
        let ahead: usize = self.ahead.iter().map(Stretch::bytes).sum();
        let hold = self.hold.get_or_insert_with(|| self.share.count(0));
        if ahead <= hold.bytes() || hold.try_grow(ahead) {
            hold.set(ahead);
        } else {
            hold.set(0);
            self.seek(self.position());
        }
    }

    /// Waits until there are more messages in the log.
    pub async fn grown(&mut self) -> Result<(), CallError> {
        let Some(signal) = self.signal.clone() else {
            // The senders go with the task.
            return self.tail.changed().await.map_err(|_| CallError::Stopping);
        };
        self.caller.broker.whole().ask(move |task, reply| task.watch_whole(&signal, reply)).await?;
        self.signal = None;
        // The log may have grown before the task knew of the reader.
        Ok(())
    }

    pub fn direction(&self) -> Direction {
        self.cursor.direction()
    }

    /// Where the reader goes on: the next message, or one that is not wanted. Backwards, zero at the beginning.
    pub fn position(&self) -> Ordinal {
        self.ahead.front().map_or(self.cursor.next(), |first| match self.cursor.direction() {
            Direction::Forwards => first.first.ordinal,
            Direction::Backwards => first.last_ordinal(),
        })
    }

    /// The position of the last message in the log, when the task was last asked.
    pub fn last(&self) -> Ordinal {
        self.cursor.last()
    }

    /// Goes to another position.
    pub fn seek(&mut self, next: Ordinal) {
        self.ahead.clear();
        self.cursor.seek(next);
    }

    /// Messages that were left out because they cannot be read.
    pub fn lost(&self) -> u64 {
        self.cursor.lost()
    }
}
