//! The decisions of a pipeline: which messages go into which batch, which batches are sent again, and who is told what.
//!
//! The pipeline does no I/O. It is told of messages, answers, broken calls and the time; it returns the next
//! requests to send and the time of the next call. So a test can take it through any history.
//!
//! Exactness rests on the server's memory of producers. Every batch carries a number, and the server stores a batch
//! only right behind the one numbered before it. So a batch that is sent again is stored once, and while one batch is
//! missing nothing behind it is stored. The server remembers the last five batches of a producer, hence no more
//! than five are in flight.
//!
//! The content of a number never changes while a copy of the batch may be under way. A batch whose answer was lost
//! is in doubt, and is sent again unchanged. Once no answer is missing, the remaining messages may be put into new
//! batches under the next epoch, so that the server refuses late copies from before.
//!
//! A producer, or an epoch, that the server does not know may begin with any number. If the second batch became
//! the first one stored, the first could never be stored. So until a batch has been confirmed, on every call and in
//! every epoch, one batch goes alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::problem::Code;
use tokio::sync::oneshot;

use super::Published;
use crate::clock::Instant;
use crate::error::{Advice, PublishError, Refusal};

/// Batches in flight at a time: as many as the server remembers of a producer.
const IN_FLIGHT_MAX: usize = 5;
/// The wait before a retry, unless the server says how long: twice as long each time, less a part that differs from one
/// pipeline to the next.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// If the server says to wait longer, it is asked again after this.
const AFTER_MAX: Duration = Duration::from_secs(60);

/// The identity of a producer: a unique id, and the epochs that it has not used yet. The server remembers every id, so
/// one identity serves all pipelines of a client to one stream, one after the other.
#[derive(Debug)]
pub(super) struct Identity {
    id: u64,
    used: AtomicU64,
}

impl Identity {
    pub(super) fn new(id: u64) -> Identity {
        Identity { id, used: AtomicU64::new(0) }
    }

    /// A producer's id, and an epoch later than any before. Should they run out, the id changes.
    fn next(&self) -> (u64, u32) {
        let n = self.used.fetch_add(1, Ordering::Relaxed);
        let (round, epoch) = (n >> 32, n as u32);
        (if round == 0 { self.id } else { mixed(self.id, round) }, epoch)
    }
}

/// How a pipeline decides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) batch_max: BatchMax,
    /// After the first message that the server refuses, nothing behind it is stored.
    pub(super) stops_at_failure: bool,
    /// Gives up when nothing was stored for this long, however old a message is.
    pub(super) stall_timeout: Option<Duration>,
}

/// How large a batch may become.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchMax {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// A message or a batch to publish.
pub(super) struct Item {
    pub(super) content: Content,
    /// When to give up.
    pub(super) deadline: Instant,
    /// Its room in the window.
    pub(super) room: Room,
    pub(super) reply: Reply,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
pub(super) enum Content {
    One(v1::Message),
    /// Stored whole or not at all, and only behind a certain message if one is named.
    Whole {
        messages: Vec<v1::Message>,
        expect_last_seq: Option<u64>,
    },
}

/// Room in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// The channel for the answer.
pub(super) enum Reply {
    One(oneshot::Sender<Result<Published, PublishError>>),
    Whole(oneshot::Sender<Result<Vec<Published>, PublishError>>),
}

pub(super) struct Pipeline {
    stream: String,
    rules: Rules,
    identity: Arc<Identity>,
    producer: u64,
    epoch: u32,
    /// Of the next message.
    number: u64,
    ticket: u64,
    queue: VecDeque<Item>,
    /// In the order of their numbers. Batches of the present call come first, unless one was refused.
    on_their_way: VecDeque<Batch>,
    /// One batch goes at a time, until it is confirmed.
    alone: bool,
    /// Messages that a batch may have at present: fewer than usual after a batch was refused that might be stored in
    /// parts, or was lost on a connection that may not last for a large one; then more again.
    messages_max: usize,
    /// The server's refusal of the first batch. It is acted on once the batches behind it are answered.
    refused: Option<v1::Problem>,
    /// A batch was stored although one before it was refused, so the numbers cannot be used any more.
    out_of_order: bool,
    pause: Duration,
    /// How many waits there were, so that each differs.
    waits: u64,
    retry_at: Option<Instant>,
    /// What stood in the way last, for messages whose time is over.
    trouble: Trouble,
    /// With a stall timeout: nothing is given up before.
    patient_until: Option<Instant>,
    /// A message failed in a pipeline that stops at the first failure.
    has_failed: bool,
    /// Of the last item. Later items do not give up earlier.
    deadline: Option<Instant>,
    accepted: u64,
    answered: u64,
    released: Room,
    flushes: VecDeque<Flush>,
    /// The first failure since the last flush.
    failure: Option<PublishError>,
}

struct Trouble {
    text: String,
    /// There was no connection, or it broke.
    is_disconnected: bool,
}

/// A caller that waits until every message before it is answered.
struct Flush {
    after: u64,
    reply: oneshot::Sender<Result<(), PublishError>>,
}

struct Batch {
    request: Arc<v1::PublishRequest>,
    /// One for each message, or one for the whole batch.
    waiters: Vec<Waiter>,
    in_the_air: bool,
    /// Its answer was lost, so that a copy of it may be stored, or may yet be.
    in_doubt: bool,
}

struct Waiter {
    deadline: Instant,
    room: Room,
    /// Absent once it has been answered.
    reply: Option<Reply>,
}

impl Batch {
    fn is_waited_for(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.reply.is_some())
    }

    /// At least one of its messages was given up.
    fn has_answered(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.reply.is_none())
    }

    /// Whether it may be sent in parts.
    fn can_be_cut(&self) -> bool {
        self.waiters.len() > 1
    }
}

impl Pipeline {
    /// No other pipeline to the same stream may have this identity at the same time.
    pub(super) fn new(stream: String, identity: Arc<Identity>, rules: Rules) -> Pipeline {
        let (producer, epoch) = identity.next();
        Pipeline {
            stream,
            rules,
            identity,
            producer,
            epoch,
            number: 1,
            ticket: 0,
            queue: VecDeque::new(),
            on_their_way: VecDeque::new(),
            alone: true,
            messages_max: rules.batch_max.messages,
            refused: None,
            out_of_order: false,
            pause: PAUSE_MIN,
            waits: 0,
            retry_at: None,
            trouble: Trouble { text: "it was not its turn yet".to_owned(), is_disconnected: false },
            patient_until: None,
            has_failed: false,
            deadline: None,
            accepted: 0,
            answered: 0,
            released: Room::default(),
            flushes: VecDeque::new(),
            failure: None,
        }
    }

    pub(super) fn accept(&mut self, mut item: Item) {
        if self.has_failed {
            self.accepted += 1;
            return self.fail(Some(item.reply), item.room, &PublishError::Aborted);
        }
        let deadline = self.deadline.map_or(item.deadline, |last| last.max(item.deadline));
        self.deadline = Some(deadline);
        item.deadline = deadline;
        self.accepted += 1;
        self.queue.push_back(item);
    }

    /// Answers when every message accepted before is answered, with the first failure since the last flush.
    pub(super) fn flush(&mut self, reply: oneshot::Sender<Result<(), PublishError>>) {
        self.flushes.push_back(Flush { after: self.accepted, reply });
        self.answer_flushes();
    }

    /// Whether every message is answered.
    pub(super) fn is_idle(&self) -> bool {
        self.accepted == self.answered
    }

    /// Whether a call is of use now.
    pub(super) fn wants_call(&self, now: Instant) -> bool {
        !self.is_idle() && self.retry_at.is_none_or(|at| at <= now)
    }

    /// When to be called again at the latest.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let retry_at = self.retry_at.filter(|_| !self.is_idle());
        [retry_at, self.next_deadline()].into_iter().flatten().min()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let mut waiters = self.on_their_way.iter().flat_map(|batch| &batch.waiters);
        let waiting = waiters.find(|waiter| waiter.reply.is_some()).map(|waiter| waiter.deadline);
        let deadline = waiting.or_else(|| self.queue.front().map(|item| item.deadline))?;
        Some(self.patient_until.map_or(deadline, |until| until.max(deadline)))
    }

    /// Room in the window that became free since this was asked last.
    pub(super) fn take_released(&mut self) -> Room {
        std::mem::take(&mut self.released)
    }

    /// The next batch to send on the present call, if one may go.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Arc<v1::PublishRequest>> {
        if self.refused.is_some() || self.retry_at.is_some_and(|at| at > now) {
            return None;
        }
        self.retry_at = None;
        let in_the_air = self.on_their_way.iter().filter(|batch| batch.in_the_air).count();
        if in_the_air == 0 {
            self.leave_behind();
        }
        let careful = self.alone || self.messages_max < self.rules.batch_max.messages;
        let most = if careful { 1 } else { IN_FLIGHT_MAX };
        if in_the_air >= most {
            return None;
        }
        if in_the_air == self.on_their_way.len() {
            let batch = self.next_batch()?;
            self.on_their_way.push_back(batch);
        }
        let batch = &mut self.on_their_way[in_the_air];
        batch.in_the_air = true;
        Some(batch.request.clone())
    }

    /// Puts waiting messages into a batch.
    fn next_batch(&mut self) -> Option<Batch> {
        let first = self.queue.pop_front()?;
        let mut waiters =
            vec![Waiter { deadline: first.deadline, room: first.room, reply: Some(first.reply) }];
        let (messages, expect_last_seq) = match first.content {
            Content::Whole { messages, expect_last_seq } => (messages, expect_last_seq),
            Content::One(message) => {
                let more = self.queue.len().min(self.messages_max - 1);
                let mut messages = Vec::with_capacity(1 + more);
                messages.push(message);
                let mut bytes = first.room.bytes;
                waiters.reserve(more);
                while messages.len() < self.messages_max
                    && let Some(item) = self.queue.pop_front_if(|item| {
                        matches!(item.content, Content::One(_))
                            && bytes + item.room.bytes <= self.rules.batch_max.bytes
                    })
                {
                    let Content::One(message) = item.content else {
                        unreachable!("only single messages match")
                    };
                    bytes += item.room.bytes;
                    messages.push(message);
                    waiters.push(Waiter {
                        deadline: item.deadline,
                        room: item.room,
                        reply: Some(item.reply),
                    });
                }
                (messages, None)
            }
        };
        self.ticket += 1;
        let producer = v1::Producer { id: self.producer, epoch: self.epoch, counter: self.number };
        self.number += messages.len() as u64;
        let request = v1::PublishRequest {
            stream: self.stream.clone(),
            messages,
            ticket: self.ticket,
            expect_last_seq,
            producer: Some(producer),
        };
        Some(Batch { request: Arc::new(request), waiters, in_the_air: false, in_doubt: false })
    }

    /// The server's answer to the oldest batch in flight. Fails if it names another batch.
    pub(super) fn on_confirmation(
        &mut self,
        now: Instant,
        confirmation: v1::Confirmation,
    ) -> Result<(), OutOfStep> {
        let at = self.on_their_way.iter().position(|batch| batch.in_the_air).ok_or(OutOfStep)?;
        if self.on_their_way[at].request.ticket != confirmation.ticket {
            return Err(OutOfStep);
        }
        match confirmation.problem {
            None => {
                let batch = self.on_their_way.remove(at).expect("it was there just now");
                self.patient_until = self.rules.stall_timeout.map(|timeout| now + timeout);
                self.on_stored(batch, &confirmation);
                self.out_of_order |= at > 0;
            }
            Some(problem) => {
                let batch = &mut self.on_their_way[at];
                batch.in_the_air = false;
                batch.in_doubt |= problem.retry() == v1::Retry::SameId;
                // Refusals of the batches behind it follow from this one, or will be repeated.
                if at == 0 {
                    self.refused = Some(problem);
                }
            }
        }
        self.on_answered(now);
        Ok(())
    }

    fn on_stored(&mut self, batch: Batch, confirmation: &v1::Confirmation) {
        self.alone = false;
        self.pause = PAUSE_MIN;
        self.messages_max = (self.messages_max * 2).min(self.rules.batch_max.messages);
        let ids = match Arc::try_unwrap(batch.request) {
            Ok(request) => request.messages.into_iter().map(|message| message.id).collect(),
            Err(shared) => Vec::from_iter(shared.messages.iter().map(|message| message.id.clone())),
        };
        let mut known = confirmation.duplicates.iter().peekable();
        let (mut next, mut in_log) = (confirmation.first_seq, confirmation.first_log_position);
        let mut published = (0u32..).zip(ids).map(|(index, id)| {
            let id = Some(id).filter(|id| !id.is_empty());
            match known.next_if(|known| known.index == index) {
                // One without an id is known because the batch came before.
                Some(known) => Published { seq: known.seq, duplicate: id.is_some(), id, log_position: None },
                None => {
                    let log_position = Some(in_log).filter(|position| *position > 0);
                    let published = Published { seq: next, duplicate: false, id, log_position };
                    (next, in_log) = (next + 1, in_log + 1);
                    published
                }
            }
        });
        for waiter in batch.waiters {
            match waiter.reply {
                Some(Reply::One(reply)) => {
                    let _ = reply.send(Ok(published.next().expect("every message has a place")));
                }
                Some(Reply::Whole(reply)) => {
                    let _ = reply.send(Ok(published.by_ref().collect()));
                }
                None => {
                    published.next();
                    continue;
                }
            }
            self.answered += 1;
            self.released.messages += waiter.room.messages;
            self.released.bytes += waiter.room.bytes;
        }
        self.answer_flushes();
    }

    /// Acts on a refusal, once every batch behind it is answered.
    fn on_answered(&mut self, now: Instant) {
        if self.on_their_way.iter().any(|batch| batch.in_the_air) {
            return;
        }
        let Some(problem) = self.refused.take() else { return };
        self.alone = true;
        let Some(first) = self.on_their_way.front() else { return };
        let (in_doubt, messages, can_be_cut) = (first.in_doubt, first.waiters.len(), first.can_be_cut());
        self.trouble = Trouble { text: problem.detail.clone(), is_disconnected: false };
        match (Advice::from_wire(problem.retry()), problem.code()) {
            // A part of it may find room. A batch larger than the stream never will.
            (Advice::RetryLater, Code::StreamFull) if can_be_cut && !in_doubt => self.halve(messages),
            (Advice::RetryLater, _) => self.wait(now, problem.retry_after_ms.map(Duration::from_millis)),
            (Advice::RetryWithSameId, _) => self.wait(now, None),
            // The server has forgotten the batch before. It has not stored this one, which it would remember.
            (Advice::FixRequest, Code::ProducerGap) => {
                self.start_over();
                self.wait(now, None);
            }
            // The server does not say which message is wrong, so halving finds it.
            (Advice::FixRequest, code)
                if is_about_content(code) && can_be_cut && !is_about_stream(&problem) =>
            {
                self.halve(messages);
            }
            // It was stored before, but the server no longer knows where. The batches behind it may be stored too.
            (Advice::FixRequest, Code::ProducerTooOld) => {
                self.fail_first(&PublishError::Unknown { detail: problem.detail, is_disconnected: false });
            }
            // Another copy of it may have been stored.
            (Advice::FixRequest, code) if in_doubt && !is_about_content(code) => self.wait(now, None),
            (Advice::FixRequest, code) => {
                let error = match code {
                    Code::WrongLastSeq => {
                        PublishError::WrongLastSeq { last_seq: problem.last_seq.unwrap_or_default() }
                    }
                    code => {
                        PublishError::Refused { refusal: Refusal::from_code(code), detail: problem.detail }
                    }
                };
                self.fail_first(&error);
                self.start_over();
            }
        }
    }

    /// Sends the messages of a batch in two parts.
    fn halve(&mut self, messages: usize) {
        self.messages_max = (messages / 2).max(1);
        self.start_over();
    }

    fn fail_first(&mut self, error: &PublishError) {
        let batch = self.on_their_way.pop_front();
        for waiter in batch.into_iter().flat_map(|batch| batch.waiters) {
            self.fail(waiter.reply, waiter.room, error);
        }
        if self.rules.stops_at_failure {
            self.abort();
        }
    }

    /// Fails everything that is left, since a message before it was refused.
    fn abort(&mut self) {
        self.has_failed = true;
        let unknown = PublishError::Unknown {
            detail: "a message before it was refused".to_owned(),
            is_disconnected: false,
        };
        for batch in std::mem::take(&mut self.on_their_way) {
            let error = if batch.in_doubt || batch.in_the_air { &unknown } else { &PublishError::Aborted };
            for waiter in batch.waiters {
                self.fail(waiter.reply, waiter.room, error);
            }
        }
        while let Some(item) = self.queue.pop_front() {
            self.fail(Some(item.reply), item.room, &PublishError::Aborted);
        }
    }

    /// The call has ended. Nothing of it was sent if there was never a connection.
    pub(super) fn on_call_ended(&mut self, now: Instant, was_sent: bool, why: String) {
        if was_sent && self.on_their_way.iter().any(|batch| batch.in_the_air) {
            self.messages_max = (self.messages_max / 2).max(1);
        }
        for batch in &mut self.on_their_way {
            batch.in_doubt |= batch.in_the_air && was_sent;
            batch.in_the_air = false;
        }
        self.alone = true;
        self.retry_at = None;
        if self.refused.is_some() {
            self.on_answered(now);
        } else {
            self.trouble = Trouble { text: why, is_disconnected: true };
        }
        if self.retry_at.is_none() {
            self.wait(now, None);
        }
    }

    /// The call was ended from this side, because every message is answered.
    pub(super) fn on_call_left(&mut self) {
        for batch in &mut self.on_their_way {
            batch.in_doubt |= batch.in_the_air;
            batch.in_the_air = false;
        }
        self.refused = None;
        self.alone = true;
    }

    /// The server refused the call for good. Batches in doubt may have been stored.
    pub(super) fn on_call_refused(&mut self, error: &PublishError) {
        self.refused = None;
        self.has_failed |= self.rules.stops_at_failure;
        for batch in std::mem::take(&mut self.on_their_way) {
            let detail = error.to_string();
            let unknown = PublishError::Unknown { detail, is_disconnected: false };
            let error = if batch.in_doubt || batch.in_the_air { &unknown } else { error };
            for waiter in batch.waiters {
                self.fail(waiter.reply, waiter.room, error);
            }
        }
        while let Some(item) = self.queue.pop_front() {
            self.fail(Some(item.reply), item.room, error);
        }
        self.start_over();
    }

    /// Gives up messages whose time is over.
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.patient_until.is_some_and(|until| now < until) {
            return;
        }
        let mut over = Vec::new();
        'all: for batch in &mut self.on_their_way {
            for waiter in &mut batch.waiters {
                if waiter.deadline > now {
                    break 'all;
                }
                let may_be_stored = batch.in_the_air || batch.in_doubt;
                over.extend(waiter.reply.take().map(|reply| (reply, waiter.room, may_be_stored)));
            }
        }
        while let Some(item) = self.queue.pop_front_if(|item| item.deadline <= now) {
            over.push((item.reply, item.room, false));
        }
        for (reply, room, may_be_stored) in over {
            let Trouble { text, is_disconnected } = &self.trouble;
            let (detail, is_disconnected) = (text.clone(), *is_disconnected);
            let error = match may_be_stored {
                true => PublishError::Unknown { detail, is_disconnected },
                false => PublishError::NotInTime { detail, is_disconnected },
            };
            self.fail(Some(reply), room, &error);
            self.has_failed |= self.rules.stops_at_failure;
        }
        if self.has_failed {
            self.abort();
        }
    }

    /// With nothing in flight, decides whether to go on with the present numbers.
    ///
    /// While a caller waits for one of the first batches in doubt, all are sent again unchanged. The next batch after
    /// those has no copy anywhere, so nothing behind it was stored; and nothing will be, if its number is never sent.
    fn leave_behind(&mut self) {
        let in_doubt = self.on_their_way.iter().take_while(|batch| batch.in_doubt);
        let (first, waited_for) =
            in_doubt.fold((0, false), |(n, any), it| (n + 1, any || it.is_waited_for()));
        let mut batches = self.on_their_way.iter();
        if !waited_for && (self.out_of_order || batches.any(|batch| batch.in_doubt || batch.has_answered())) {
            self.on_their_way.drain(..first);
            self.start_over();
        }
    }

    /// Takes back every message that a caller waits for, to number it anew. None of them is stored, nor will they be
    /// under their old numbers.
    fn start_over(&mut self) {
        while let Some(batch) = self.on_their_way.pop_back() {
            let mut messages = Arc::unwrap_or_clone(batch.request);
            for waiter in batch.waiters.into_iter().rev() {
                let content = match &waiter.reply {
                    Some(Reply::Whole(_)) => Content::Whole {
                        messages: std::mem::take(&mut messages.messages),
                        expect_last_seq: messages.expect_last_seq,
                    },
                    _ => match messages.messages.pop() {
                        Some(message) => Content::One(message),
                        None => continue,
                    },
                };
                let Some(reply) = waiter.reply else { continue };
                let (deadline, room) = (waiter.deadline, waiter.room);
                self.queue.push_front(Item { content, deadline, room, reply });
            }
        }
        self.out_of_order = false;
        self.alone = true;
        self.number = 1;
        (self.producer, self.epoch) = self.identity.next();
    }

    fn wait(&mut self, now: Instant, after: Option<Duration>) {
        // Pipelines that failed together should not retry together.
        self.waits += 1;
        let part = (mixed(self.producer, self.waits) >> 40) as f64 / (1u64 << 24) as f64;
        let pause = match after {
            Some(after) => after.min(AFTER_MAX) + PAUSE_MIN.mul_f64(part / 2.0),
            None => {
                let pause = self.pause.mul_f64(0.5 + part / 2.0);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                pause
            }
        };
        self.retry_at = Some(now + pause);
    }

    fn fail(&mut self, reply: Option<Reply>, room: Room, error: &PublishError) {
        match reply {
            Some(Reply::One(reply)) => drop(reply.send(Err(error.clone()))),
            Some(Reply::Whole(reply)) => drop(reply.send(Err(error.clone()))),
            None => return,
        }
        self.failure.get_or_insert_with(|| error.clone());
        self.answered += 1;
        self.released.messages += room.messages;
        self.released.bytes += room.bytes;
        self.answer_flushes();
    }

    fn answer_flushes(&mut self) {
        while let Some(flush) = self.flushes.pop_front_if(|flush| flush.after <= self.answered) {
            let _ = flush.reply.send(self.failure.take().map_or(Ok(()), Err));
        }
    }
}

/// Whether a message is wrong, and will be whenever it is sent.
fn is_about_content(code: Code) -> bool {
    matches!(code, Code::Invalid | Code::TooLarge | Code::WrongLastSeq | Code::Unspecified)
}

/// Whether the stream's name is wrong.
fn is_about_stream(problem: &v1::Problem) -> bool {
    problem.field == "stream"
}

/// The server answered for a batch that it was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfStep;

/// A well mixed number from two that are known (splitmix64).
fn mixed(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
