//! The commands of the task, and the callers that wait for its answers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_core::fault::{Fault, planted};
use forebay_core::group::{Credit, Departure, LeaseRun, OutcomeRun, Settlement};
use forebay_core::shard::PublishOptions;
use forebay_core::types::{ConsumerId, GroupId, StreamName};
use forebay_storage::engine::Durable;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::ShardTask;
use crate::batch::Batch;
use crate::caller::Absent;
use crate::driver::{Committed, Delivery, Published, Ticket};
use crate::error::{CallError, PublishError};
use crate::memory::Memory;
use crate::stats::Histogram;
use crate::window::Found;

type PublishReply = oneshot::Sender<Result<Durable<Published>, PublishError>>;

pub(crate) enum Command {
    Publish {
        stream: Arc<StreamName>,
        batch: Batch,
        options: PublishOptions,
        /// What becomes of the batch if the stream does not exist.
        absent: Absent,
        /// Given back after the sync.
        room: OwnedSemaphorePermit,
        reply: PublishReply,
    },
    Settle {
        consumer: ConsumerId,
        requests: Vec<SettleRequest>,
    },
    Credit {
        consumer: ConsumerId,
        credit: u32,
        bytes: Option<u64>,
    },
    /// The queue of a consumer that was held back has become short.
    GoOn {
        consumer: ConsumerId,
    },
    Leave {
        consumer: ConsumerId,
        departure: Departure,
    },
    /// Anything that is not asked for with every message.
    Call(Box<dyn FnOnce(&mut ShardTask) + Send>),
    Drain,
    Stop,
}

/// Leases that a consumer wants to end, or to prolong, in the same way.
#[derive(Debug)]
pub struct SettleRequest {
    /// Comes back with the answer.
    pub ticket: u64,
    pub leases: Vec<LeaseRun>,
    pub settlement: Settlement,
}

/// The outcomes of the leases of one request, in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled {
    pub ticket: u64,
    pub outcomes: Vec<OutcomeRun>,
}

/// The events that a consumer receives.
#[derive(Debug)]
pub enum Event {
    Delivery(Delivery),
    Settled(Vec<Settled>),
    /// The answer to a bundle, with its ticket.
    Committed(u64, Box<Result<Committed, CallError>>),
    /// The last event: the consumer left messages lying until their leases lapsed, and has been taken
    /// for lost.
    CutOff,
    /// The last event: the group has been deleted.
    GroupGone,
    /// The last event: the server cannot show that it owns the log, so another node may hand out what the consumer
    /// holds.
    LogUnsure,
}

/// A consumer, as the task sees it.
pub(crate) struct Session {
    pub(crate) consumer: ConsumerId,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) queued: Arc<Queued>,
    pub(crate) address: Option<SocketAddr>,
}

/// The contents in the queue of a consumer.
#[derive(Debug)]
pub(crate) struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// The queue is longer than its share, and the consumer is given nothing more until it has become short.
    is_held_back: AtomicBool,
    memory: Arc<Memory>,
}

impl Queued {
    pub(crate) fn new(memory: Arc<Memory>) -> Queued {
        let (messages, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Queued { messages, bytes, is_held_back: AtomicBool::new(false), memory }
    }

    /// Returns how many messages are in the queue now.
    fn add(&self, messages: usize, bytes: usize) -> usize {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.hand_out(bytes);
        self.messages.fetch_add(messages, Ordering::Relaxed) + messages
    }

    /// Messages were taken out. Their contents count until they are done with.
    pub(crate) fn take_out(&self, messages: usize) {
        self.messages.fetch_sub(messages, Ordering::Relaxed);
    }

    /// Contents were encoded or dropped. True if the consumer was held back, and may be given more now.
    pub(crate) fn done_with(&self, bytes: usize) -> bool {
        let left = self.bytes.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        self.memory.hand_in(bytes);
        self.is_held_back.load(Ordering::SeqCst)
            && left <= self.memory.queue_max() / 2
            && self.is_held_back.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.is_held_back.load(Ordering::Relaxed)
    }

    /// Whether so many bytes may be added. If not, the consumer is held back from now on.
    pub(super) fn admits(&self, bytes: usize) -> bool {
        let admits = !self.is_held_back() && self.memory.may_hand_out(bytes);
        if !admits {
            self.is_held_back.store(true, Ordering::Relaxed);
        }
        admits
    }

    /// The consumer is not held back any more, if the queue has become so short that more may be added.
    pub(super) fn let_go(&self) -> bool {
        // In this order, and the consumer does both in the other order: so either the task sees that the queue has
        // become short, or the consumer sees that it has to say so.
        self.is_held_back.store(true, Ordering::SeqCst);
        let is_short = self.bytes.load(Ordering::SeqCst) <= self.memory.queue_max() / 2;
        if is_short {
            self.is_held_back.store(false, Ordering::SeqCst);
        }
        is_short
    }

    /// True if the queue has just become longer than its share.
    pub(super) fn becomes_too_long(&self) -> bool {
        let is_too_long = self.bytes.load(Ordering::Relaxed) > self.memory.queue_max();
        is_too_long && !self.is_held_back.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if planted(Fault::HandedOutForgotten) {
            return;
        }
        // The consumer and the task have gone, and the rest of the queue with them.
        self.memory.hand_in(self.bytes.load(Ordering::Relaxed));
    }
}

/// A consumer that has joined.
pub(super) struct Member {
    pub(super) session: Session,
    pub(super) group: GroupId,
    pub(super) credit: u32,
    /// What it asked for last. The group knows nothing of it while the consumer is held back.
    pub(super) wish: Credit,
    /// The largest credit that it has had. Messages that were leased on credit which it has since taken back may
    /// still be on their way from the disk.
    pub(super) credit_most: u32,
    /// How long it takes for a message, made when it first answers.
    pub(super) processing: Option<Box<Histogram>>,
}

impl Member {
    /// Hands messages over without waiting. The queue is as long as the credit was at most, and once more where a
    /// reset or a purge ended leases whose messages still lie in it. More than that can only be in it if leases
    /// lapsed there, which means that the consumer does not take them out. False if that is so.
    pub(super) fn hand_over(&self, delivery: Delivery) -> bool {
        let count = delivery.messages.len();
        let queued = self.session.queued.add(count, delivery.bytes());
        // A consumer that is gone says so by itself.
        let _ = self.session.events.send(Event::Delivery(delivery));
        queued <= 2 * self.credit_most as usize
    }

    pub(super) fn set_credit(&mut self, credit: u32) {
        self.credit = credit;
        self.credit_most = self.credit_most.max(credit);
    }
}

/// An answer that waits for its ticket. The values are known; only what they speak of is not durable yet.
pub(super) enum Waiting {
    Publish(PublishReply, Published, OwnedSemaphorePermit),
    /// To a consumer of a group with durable acks.
    Settled(mpsc::UnboundedSender<Event>, Vec<Settled>),
    Call(Box<dyn FnOnce() + Send>),
    /// Waits for messages to be read.
    Fetch(Box<dyn FnOnce(Vec<Found>) + Send>),
}

/// Answers that wait, by ticket. Tickets are given in order and come back nearly so.
#[derive(Default)]
pub(super) struct WaitingRoom {
    first: u64,
    waiting: VecDeque<Option<Waiting>>,
}

impl WaitingRoom {
    pub(super) fn next(&self) -> Ticket {
        Ticket(self.first + self.waiting.len() as u64)
    }

    pub(super) fn enter(&mut self, waiting: Waiting) {
        self.waiting.push_back(Some(waiting));
    }

    pub(super) fn leave(&mut self, ticket: Ticket) -> Waiting {
        let place = &mut self.waiting[(ticket.0 - self.first) as usize];
        let waiting = place.take().expect("a ticket is answered once");
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.first += 1;
        }
        waiting
    }
}

impl Waiting {
    /// Everything that the answer speaks of is durable.
    pub(super) fn send(self, durable: Durable<()>) {
        match self {
            Waiting::Publish(reply, published, room) => {
                if planted(Fault::RoomKept) && reply.is_closed() {
                    room.forget();
                } else {
                    drop(room);
                }
                answer(reply, Ok(durable.map(|()| published)));
            }
            Waiting::Settled(events, settled) => {
                let _ = events.send(Event::Settled(settled));
            }
            Waiting::Call(call) => call(),
            Waiting::Fetch(_) => unreachable!("messages that are fetched do not wait for a frame"),
        }
    }
}

/// Answers a caller, who may have gone.
pub(super) fn answer<T>(reply: oneshot::Sender<T>, what: T) {
    let _ = reply.send(what);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use forebay_core::group::Lease;
    use forebay_core::types::{Attempt, Epoch, Grant, Ordinal, Seq, Timestamp};

    use super::*;
    use crate::driver::RunMessage;

    fn messages(count: usize) -> Delivery {
        let content = Bytes::new();
        let ordinal = Ordinal(1);
        let message = RunMessage { ordinal, published: Timestamp::ZERO, priority: 0, past: None, content };
        Delivery {
            group: GroupId(1),
            consumer: ConsumerId(1),
            lease: Lease { epoch: Epoch(1), seq: Seq(1), grant: Grant(1) },
            attempt: Attempt(1),
            redelivered: false,
            first_received: Timestamp::ZERO,
            deadline: Timestamp::ZERO,
            messages: vec![message; count],
        }
    }

    /// The worker that shuts down, or whose breaker opens: messages leased to it come from the disk only then.
    #[test]
    fn one_that_takes_credit_back_still_gets_what_was_leased_on_it() {
        let (events, _received) = mpsc::unbounded_channel();
        let queued = Arc::new(Queued::new(Memory::new(1 << 20)));
        let session = Session { consumer: ConsumerId(1), events, queued, address: None };
        let mut member = Member {
            session,
            group: GroupId(1),
            credit: 8,
            wish: Credit::slots(8),
            credit_most: 8,
            processing: None,
        };
        member.set_credit(0);
        assert!(member.hand_over(messages(8)), "it had credit for eight");
        assert!(member.hand_over(messages(8)), "and once more, after a reset");
        assert!(!member.hand_over(messages(1)), "nobody takes anything out");
    }
}
