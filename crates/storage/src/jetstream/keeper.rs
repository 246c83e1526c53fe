//! The task that writes the log: it carries out what the [`Pipeline`] says, and answers appends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::types::{Position, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Durable, EngineFigures, Frame, Run, StorageError, Tenure};
use crate::jetstream::index::{IndexBuilder, Known};
use crate::jetstream::link::{CallError, Link, acknowledged};
use crate::jetstream::pipeline::{Counted, Pipeline, State, Token};
use crate::jetstream::record::{Claimant, Ending, Header, Kind, Place, Scribe, Term, put_frame};
use crate::jetstream::tenure::SentTimes;
use crate::jetstream::wire::{Letter, Letters};

/// An answer that takes longer is not waited for: a proposal that is lost with its leader is never answered.
const ANSWER_DEADLINE: Duration = Duration::from_millis(800);
/// How often the deadline is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Before a message that was refused for another reason than its sequence is sent again.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// A former leader may answer with an old end of the stream for a while.
pub(crate) const WENT_BACK_AFTER: Duration = Duration::from_secs(15);
/// Reading the end of the log again takes no longer, or is tried again. A question that is lost with a leader must not
/// keep the owner waiting for longer than a standby does, once there is a leader.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// An owner that has not been answered for so long tries another server, and again after as long.
const CHANGE_SERVER_AFTER: Duration = Duration::from_millis(1_500);
/// How long a clean stop waits for its last records.
const STOPS_WITHIN: Duration = Duration::from_secs(3);
/// The stream does not end with the sequence that the message names.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10_071, 10_164];

pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
pub(crate) type Answer = oneshot::Sender<Result<Durable<Position>, StorageError>>;
pub(crate) type Reply = oneshot::Sender<Result<(), StorageError>>;

pub(crate) enum Order {
    Append(Frame, Answer),
    /// A record of another kind.
    Record(Kind, Vec<u8>, Reply),
    /// An index record of all frames so far.
    Index(Reply),
    /// States the owner again, so that older statements may go.
    Term(Reply),
    Stop(oneshot::Sender<()>),
}

/// State that the engine shares with its keeper.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Held for the length of one look, during which nothing waits.
    known: Mutex<Known>,
    figures: Mutex<EngineFigures>,
}

impl Shared {
    pub(crate) fn new(known: Known) -> Shared {
        Shared { known: Mutex::new(known), figures: Mutex::default() }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, EngineFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records by sequence. `None`: no record of ours.
type Found = Vec<(u64, Option<Header>)>;

/// A record that does not count yet.
struct Pending {
    number: u64,
    since: Timestamp,
    what: Record,
}

enum Record {
    Frame { place: Place, until: Place, runs: Vec<Run>, bytes: u64, answer: Answer },
    Index { until: Position, reply: Option<Reply> },
    Term(Option<Reply>),
    Other(Option<Reply>),
}

pub(crate) struct Keeper {
    pub(crate) link: Link,
    /// The id of the stream.
    pub(crate) id: String,
    pub(crate) owner: Claimant,
    pub(crate) ending: Ending,
    pub(crate) pipeline: Pipeline,
    pub(crate) scribe: Scribe,
    pub(crate) index: IndexBuilder,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tenure: Tenure,
    pub(crate) tenure_length: Duration,
    pub(crate) unreachable_max: Duration,
    pub(crate) clock: Clock,
    /// The last frame that was given a position.
    pub(crate) last_frame: Position,
    pub(crate) inbox: String,
    pub(crate) answers: Box<dyn Letters>,
    pub(crate) orders: mpsc::Receiver<Order>,
    pub(crate) state: KeeperState,
}

/// What changes while the keeper runs.
#[derive(Default)]
pub(crate) struct KeeperState {
    pending: VecDeque<Pending>,
    sent: SentTimes,
    last_sent: Timestamp,
    until: Timestamp,
    behind_since: Option<Timestamp>,
    /// When another server was tried last.
    changed_server: Timestamp,
    stopping: Option<Stopping>,
}

struct Stopping {
    by: Timestamp,
    released: bool,
    done: Option<oneshot::Sender<()>>,
}

impl Keeper {
    pub(crate) async fn run(mut self) {
        let now = (self.clock)();
        self.state.until = now + self.tenure_length;
        self.write_term(None);
        let error = loop {
            match self.pipeline.state() {
                State::Fenced(epoch) => break StorageError::Fenced { epoch },
                State::Reading => {
                    if let Err(error) = self.read_again().await {
                        break error;
                    }
                }
                State::Flowing => self.send_all().await,
            }
            let now = (self.clock)();
            // Nothing is handed out meanwhile. If no other node has claimed the log, this one goes on.
            if now > self.state.until + self.tenure_length / 2 + self.unreachable_max {
                break StorageError::TenureOver;
            }
            self.tenure.set_waits_since(self.state.pending.front().map(|first| first.since));
            if self.has_stopped(now) {
                self.tenure.end(StorageError::Stopped);
                return;
            }
            let is_busy = self.pipeline.is_waiting() || self.pipeline.state() == State::Reading;
            let pause = if is_busy { LOOK_EVERY } else { self.tenure_length / 6 };
            let takes_orders = self.state.stopping.is_none();
            tokio::select! {
                biased;
                Some(answer) = self.answers.next() => self.on_answer(&answer).await,
                order = self.orders.recv(), if takes_orders => match order {
                    Some(order) => self.on_order(order),
                    None => self.stop(None),
                },
                () = tokio::time::sleep(pause) => self.on_time(),
            }
        };
        self.fail(error).await;
    }

    fn on_order(&mut self, order: Order) {
        match order {
            Order::Append(frame, answer) => self.append(&frame, answer),
            Order::Record(kind, body, reply) => self.write(kind, &body, Record::Other(Some(reply))),
            Order::Index(reply) => self.write_index(Some(reply)),
            Order::Term(reply) => self.write_term(Some(reply)),
            Order::Stop(done) => self.stop(Some(done)),
        }
    }

    fn append(&mut self, frame: &Frame, answer: Answer) {
        let (number, chain, position) = (self.scribe.number, self.scribe.chain, self.scribe.end);
        let before = std::mem::replace(&mut self.last_frame, position);
        let epoch = self.scribe.epoch;
        let place = Place { position, before, sequence: 0, epoch, number, chain };
        let body = put_frame(frame);
        let messages = self.scribe.write(Kind::Frame, &body);
        let until = Place {
            position: self.scribe.end,
            before: position,
            sequence: 0,
            epoch,
            number: self.scribe.number,
            chain: self.scribe.chain,
        };
        let bytes = until.position.0 - position.0;
        self.pipeline.push(messages);
        let what = Record::Frame { place, until, runs: frame.runs.clone(), bytes, answer };
        self.expect(what);
    }

    fn write(&mut self, kind: Kind, body: &[u8], what: Record) {
        let messages = self.scribe.write(kind, body);
        self.pipeline.push(messages);
        self.expect(what);
    }

    fn expect(&mut self, what: Record) {
        let (number, since) = (self.scribe.number, (self.clock)());
        self.state.pending.push_back(Pending { number, since, what });
    }

    fn write_term(&mut self, reply: Option<Reply>) {
        let term = Term { owner: self.owner.clone(), before: self.ending };
        self.write(Kind::Term, &term.encode(), Record::Term(reply));
    }

    /// Writes an index record of the frames since the last one. Without any the caller is answered at once.
    fn write_index(&mut self, reply: Option<Reply>) {
        let Some(body) = self.index.take() else {
            reply.map(|reply| reply.send(Ok(())));
            return;
        };
        let until = body.until.map_or(body.from, |until| until.position);
        self.write(Kind::Index, &body.encode(), Record::Index { until, reply });
    }

    async fn send_all(&mut self) {
        while let Some(sending) = self.pipeline.next_send() {
            let Token { attempt, nth } = sending.token;
            let reply = format!("{}.{attempt}.{nth}", self.inbox);
            let message = sending.message;
            let now = (self.clock)();
            self.state.sent.sent(nth, now);
            self.state.last_sent = now;
            if let Err(error) = self.link.send(message.kind, sending.after, reply, message.bytes).await {
                tracing::debug!(%error, "a message for the log was not sent");
                return self.interrupt();
            }
        }
    }

    fn interrupt(&mut self) {
        self.pipeline.interrupt();
        self.state.sent.clear();
    }

    async fn on_answer(&mut self, answer: &Letter) {
        let mut tokens = answer.subject.rsplit('.');
        let nth = tokens.next().and_then(|nth| nth.parse().ok());
        let attempt = tokens.next().and_then(|attempt| attempt.parse().ok());
        let (Some(nth), Some(attempt)) = (nth, attempt) else { return };
        let stored = acknowledged(answer);
        if let Err(error) = &stored {
            tracing::debug!(%error, "a message for the log was refused");
        }
        let is_about_sequence = |error: &CallError| match error {
            CallError::Refused { code, .. } => WRONG_LAST_SEQUENCE.contains(code),
            CallError::Passing(_) => false,
        };
        if stored.as_ref().is_err_and(|error| !is_about_sequence(error)) {
            // No leader, or no space: it may pass.
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
        let counted = self.pipeline.answered(Token { attempt, nth }, stored.ok());
        if self.pipeline.state() != State::Flowing {
            self.state.sent.clear();
        }
        if !counted.is_empty() {
            // The acknowledgement shows that there was no newer claim when its message was sent.
            if let Some(at) = self.state.sent.counted(nth) {
                self.state.until = self.state.until.max(at + self.tenure_length);
                self.tenure.extend(at + self.tenure_length);
            }
        }
        self.on_counted(counted);
    }

    fn on_counted(&mut self, counted: Vec<Counted>) {
        for Counted { number, from, sequence } in counted {
            let Some(pending) = self.take_pending(number) else { continue };
            self.shared.known().last = sequence;
            match pending.what {
                Record::Frame { place, until, runs, bytes, answer } => {
                    let place = Place { sequence: from, ..place };
                    let until = Place { sequence: sequence + 1, ..until };
                    let is_kept = self.index.add(place, &runs, until);
                    {
                        let mut known = self.shared.known();
                        known.end = until.position;
                        if is_kept {
                            known.insert(place);
                        }
                    }
                    {
                        let mut figures = self.shared.figures();
                        figures.syncs += 1;
                        figures.synced_frames += 1;
                        figures.synced_bytes += bytes;
                        figures.sync_times.record((self.clock)().since(pending.since));
                    }
                    // The task that asked may have ended.
                    let _ = answer.send(Ok(Durable::after_sync(place.position)));
                    if self.index.is_due() {
                        self.write_index(None);
                    }
                }
                Record::Index { until, reply } => {
                    let mut known = self.shared.known();
                    known.indexed = known.indexed.max(until);
                    drop(known);
                    reply.map(|reply| reply.send(Ok(())));
                }
                Record::Term(reply) => {
                    self.shared.known().term = from;
                    reply.map(|reply| reply.send(Ok(())));
                }
                Record::Other(reply) => {
                    reply.map(|reply| reply.send(Ok(())));
                }
            }
        }
    }

    /// The record that counts now. Records count in order.
    fn take_pending(&mut self, number: u64) -> Option<Pending> {
        if self.pipeline.believes() {
            let index = self.state.pending.iter().position(|pending| pending.number == number)?;
            return self.state.pending.remove(index);
        }
        let pending = self.state.pending.pop_front().expect("a record that counts was waited for");
        assert_eq!(pending.number, number, "records count in order");
        Some(pending)
    }

    fn on_time(&mut self) {
        let now = (self.clock)();
        let is_late = self.state.sent.oldest().is_some_and(|at| now.since(at) > ANSWER_DEADLINE);
        if is_late && self.pipeline.is_waiting() {
            self.interrupt();
        }
        let is_idle = now.since(self.state.last_sent) >= self.tenure_length / 3;
        if is_idle && self.pipeline.is_empty() && self.state.stopping.is_none() {
            self.write(Kind::Beat, b"", Record::Other(None));
        }
    }

    /// Reads the stream from the last known record on, once. It is tried again if the stream cannot be read now.
    async fn read_again(&mut self) -> Result<(), StorageError> {
        let read = tokio::time::timeout(READ_WITHIN, self.read_to_end()).await;
        let read = read.unwrap_or_else(|_| Err(CallError::Passing("a read was not answered".to_owned())));
        match read {
            Ok(Some((found, end))) => match self.pipeline.on_read(found, end) {
                Ok(counted) => {
                    self.state.behind_since = None;
                    self.on_counted(counted);
                }
                Err(went_back) => {
                    let now = (self.clock)();
                    let since = *self.state.behind_since.get_or_insert(now);
                    if now.since(since) > WENT_BACK_AFTER {
                        let (known, found) = (Position(went_back.known), Position(went_back.found));
                        return Err(StorageError::WentBack { known, found });
                    }
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            },
            Ok(None) => {
                let known = Position(self.pipeline.known());
                return Err(StorageError::WentBack { known, found: Position::START });
            }
            Err(CallError::Passing(why)) => {
                tracing::debug!(why, "the log cannot be read now");
                let now = (self.clock)();
                // The end of the tenure tells when the last message was sent that was answered.
                let answered = self.state.until.max(self.state.changed_server + self.tenure_length);
                if now + self.tenure_length > answered + CHANGE_SERVER_AFTER {
                    self.state.changed_server = now;
                    self.link.wire().change_server().await;
                }
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            Err(error) => return Err(error.into_storage("read the log")),
        }
        Ok(())
    }

    /// The records behind the last known one, and the end of the stream. `None`: it is another stream.
    async fn read_to_end(&mut self) -> Result<Option<(Found, u64)>, CallError> {
        let info = self.link.info(&self.link.log).await?;
        if info.id != self.id {
            return Ok(None);
        }
        let mut found = Vec::new();
        let mut next = self.pipeline.known() + 1;
        while next <= info.last {
            let some = self.link.read(&self.link.log, &self.link.all_log_subjects(), next).await?;
            let Some(last) = some.last() else {
                return Err(CallError::Passing("the replica that answers is behind".to_owned()));
            };
            next = last.sequence + 1;
            found.extend(some.iter().map(|stored| (stored.sequence, Header::decode(&stored.bytes))));
        }
        // More may have arrived while it was read.
        let end = found.last().map_or(info.last, |(sequence, _)| info.last.max(*sequence));
        Ok(Some((found, end)))
    }

    fn stop(&mut self, done: Option<oneshot::Sender<()>>) {
        let by = (self.clock)() + STOPS_WITHIN;
        self.state.stopping = Some(Stopping { by, released: false, done });
    }

    /// Writes down that the owner has stopped, once everything else counts.
    fn has_stopped(&mut self, now: Timestamp) -> bool {
        let is_empty = self.pipeline.is_empty();
        let Some(stopping) = &mut self.state.stopping else { return false };
        if (is_empty && stopping.released) || now > stopping.by {
            if let Some(done) = stopping.done.take() {
                let _ = done.send(());
            }
            return true;
        }
        if is_empty {
            stopping.released = true;
            self.write(Kind::Released, b"", Record::Other(None));
        }
        false
    }

    /// Says why nothing is taken any more, until the engine is dropped.
    async fn fail(mut self, error: StorageError) {
        tracing::warn!(%error, "this node does not own the log any more");
        self.tenure.end(error.clone());
        for pending in self.state.pending.drain(..) {
            match pending.what {
                Record::Frame { answer, .. } => drop(answer.send(Err(error.clone()))),
                Record::Index { reply, .. } | Record::Term(reply) | Record::Other(reply) => {
                    reply.map(|reply| reply.send(Err(error.clone())));
                }
            }
        }
        if let Some(Stopping { done: Some(done), .. }) = self.state.stopping.take() {
            let _ = done.send(());
            return;
        }
        while let Some(order) = self.orders.recv().await {
            match order {
                Order::Append(_, answer) => drop(answer.send(Err(error.clone()))),
                Order::Record(_, _, reply) | Order::Index(reply) | Order::Term(reply) => {
                    let _ = reply.send(Err(error.clone()));
                }
                Order::Stop(done) => {
                    let _ = done.send(());
                    return;
                }
            }
        }
    }
}
