//! Taking messages out of a group: as a connected member, or by asking again and again.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_core::fault::{Fault, planted};
use forebay_core::group::{ConsumerTerms, Departure, LeaseRun, Outcome, Settlement};
use forebay_core::shard::MemberRefusal;
use forebay_core::types::{ConsumerId, Epoch, GroupId, GroupName, StreamName};
use tokio::sync::{mpsc, oneshot};

use super::{Caller, Reply, may_settle};
use crate::access::{Principal, Right};
use crate::driver::{Delivered, Delivery};
use crate::error::CallError;
use crate::memory::Memory;
use crate::receipt::Receipts;
use crate::shard_task::{Command, Event, Queued, Session, SettleRequest};
use crate::stats::connections::Consuming;

/// Requests to settle that a consumer may send before it takes the answers.
const SETTLEMENTS_UNANSWERED_MAX: usize = 1_024;
/// How long a receive without a waiting time still waits for messages that have to be read from the disk
/// first.
const READING_MAX: Duration = Duration::from_secs(1);

/// A request for messages from a client without a lasting connection.
#[derive(Debug, Clone, Default)]
pub struct Receive {
    /// Who asks. Receives with the same name are one consumer's.
    pub consumer: String,
    /// At least one.
    pub max: u32,
    /// How many bytes of content at most, though one message always fits: as much as the answer may have.
    pub bytes: Option<u64>,
    /// How long to wait for the first message.
    pub wait: Duration,
    /// How long the leases last, if not as long as the group says.
    pub timeout: Option<Duration>,
    /// A group that holds as many leases as it may refuses, with [`CallError::InFlightFull`], instead of letting one
    /// wait until others have settled.
    pub refuse_when_full: bool,
}

/// The messages of a receive, with the receipts of their leases. A message that is not taken out goes back
/// to the group, as if it had never been handed out.
pub struct Receiving {
    messages: Vec<Delivered>,
    group: GroupId,
    commands: mpsc::UnboundedSender<Command>,
    receipts: Receipts,
    /// The contents that count as handed out.
    bytes: usize,
    memory: Arc<Memory>,
    /// Ends when the messages that leave the group for another stream are there, if some are on their way.
    moves: Option<oneshot::Receiver<()>>,
}

impl Receiving {
    pub(crate) fn new(
        deliveries: Vec<Delivery>,
        group: GroupId,
        commands: mpsc::UnboundedSender<Command>,
        receipts: Receipts,
        memory: Arc<Memory>,
        moves: Option<oneshot::Receiver<()>>,
    ) -> Receiving {
        let bytes = deliveries.iter().map(Delivery::bytes).sum();
        memory.hand_out(bytes);
        let messages = deliveries.into_iter().flat_map(Delivery::into_each).collect();
        Receiving { messages, group, commands, receipts, bytes, memory, moves }
    }

    /// The contents of all messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The contents of the messages that [`Receiving::take_within`] would take.
    pub fn bytes_within(&self, bytes: usize) -> usize {
        let taken = self.fitting(bytes);
        self.messages[..taken].iter().map(|message| message.content.len()).sum()
    }

    fn fitting(&self, bytes: usize) -> usize {
        let mut sum = 0usize;
        let fits = |message: &&Delivered| {
            sum = sum.saturating_add(message.content.len());
            sum <= bytes
        };
        self.messages.iter().take_while(fits).count().max(1).min(self.messages.len())
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes the messages, each with the receipt that settles it.
    pub fn take(self) -> Vec<(String, Delivered)> {
        self.take_within(usize::MAX)
    }

    /// As [`Receiving::take`], but only as many as have no more than so many bytes together, and at least one.
    pub fn take_within(mut self, bytes: usize) -> Vec<(String, Delivered)> {
        let rest = self.messages.split_off(self.fitting(bytes));
        let messages = std::mem::replace(&mut self.messages, rest);
        let receipt = |message: &Delivered| self.receipts.write(self.group, message.lease);
        messages.into_iter().map(|message| (receipt(&message), message)).collect()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.memory.hand_in(self.bytes);
        if !self.messages.is_empty() && !planted(Fault::UntakenKept) {
            let group = self.group;
            let leases = LeaseRun::join(self.messages.iter().map(|message| message.lease));
            let give_back = Command::Call(Box::new(move |task| task.give_back(group, &leases)));
            let _ = self.commands.send(give_back);
        }
    }
}

/// Calls off a receive when its caller does not wait for it any more.
struct CallOff {
    /// None once it has its answer.
    id: Option<u64>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Drop for CallOff {
    fn drop(&mut self) {
        if let Some(id) = self.id.filter(|_| !planted(Fault::CallOffLost)) {
            let _ = self.commands.send(Command::Call(Box::new(move |task| task.call_off(id))));
        }
    }
}

impl Caller {
    /// Joins a group. The consumer is a member until it says goodbye or is dropped.
    pub async fn subscribe(
        &self,
        stream: StreamName,
        group: GroupName,
        name: &str,
        credit: u32,
    ) -> Result<Consumer, CallError> {
        self.subscribe_on(stream, group, name, credit, ConsumerTerms::default()).await
    }

    /// As [`Caller::subscribe`], on terms of its own.
    pub async fn subscribe_on(
        &self,
        stream: StreamName,
        group: GroupName,
        name: &str,
        credit: u32,
        terms: ConsumerTerms,
    ) -> Result<Consumer, CallError> {
        self.may_in(Right::Consume, &stream, &group)?;
        let shard = self.shard_of(&stream);
        let id = shard.next_consumer();
        let (events, queue) = mpsc::unbounded_channel();
        let queued = Arc::new(Queued::new(self.broker.memory().clone()));
        let session = Session { consumer: id, events, queued: queued.clone(), address: self.address };
        // Made before the call, so that a caller that goes away meanwhile leaves nothing behind.
        let mut consumer = Consumer {
            id,
            epoch: Epoch(0),
            commands: shard.commands().clone(),
            queue,
            queued,
            unanswered: 0,
            credit_max: self.broker.limits().credit_max,
            who: self.principal.clone(),
            _consuming: self.broker.doors().table().consume(self.address),
        };
        let name = name.to_owned();
        let join = move |task: &mut crate::shard_task::ShardTask, reply: Reply<Epoch>| {
            let joined = task.join((&stream, &group), &name, credit, terms, session);
            match joined {
                Ok(epoch) => drop(reply.send(Ok(epoch))),
                // Why not is true once it is durable.
                Err(error) => task.answer_durably(reply, Err(error)),
            }
        };
        consumer.epoch = shard.ask(join).await?;
        Ok(consumer)
    }

    /// Takes messages on leases that last until their deadline, whatever becomes of the connection or the
    /// server. Waits for the first one as long as it was told to.
    pub async fn receive(
        &self,
        stream: StreamName,
        group: GroupName,
        request: Receive,
    ) -> Result<Receiving, CallError> {
        self.may_in(Right::Consume, &stream, &group)?;
        let shard = self.shard_of(&stream);
        let _permit = shard.receive_permit()?;
        let id = shard.next_consumer().0;
        let (reply, mut answer) = oneshot::channel();
        let (wait, address) = (request.wait, self.address);
        let receive = move |task: &mut crate::shard_task::ShardTask| {
            task.receive((&stream, &group), id, &request, address, reply);
        };
        shard.send(Command::Call(Box::new(receive))).map_err(|_| CallError::Stopping)?;
        let mut call_off = CallOff { id: Some(id), commands: shard.commands().clone() };
        let answered = tokio::select! {
            biased;
            answered = &mut answer => {
                call_off.id = None;
                answered
            }
            () = self.run_out_of_patience(wait) => {
                // Messages that were leased to it meanwhile still come.
                drop(call_off);
                answer.await
            }
        };
        let mut received = answered.unwrap_or(Err(CallError::Stopping))?;
        if let Some(moves) = received.moves.take() {
            // A dead letter is where it belongs by the time a receive has not found it here. Many may be on their way,
            // and the disk may be slow, so there is a limit to the wait.
            let _ = tokio::time::timeout(READING_MAX, moves).await;
        }
        Ok(received)
    }

    /// A disk needs its time also where a test has stopped the clock.
    async fn run_out_of_patience(&self, wait: Duration) {
        let clock = self.broker.clock();
        if wait.is_zero() {
            tokio::time::sleep(READING_MAX).await;
        } else {
            clock.reaches(clock.now() + wait).await;
        }
    }

    /// Ends leases, or prolongs them, by their receipts. Says of each, in order, what became of it.
    pub async fn settle(
        &self,
        stream: StreamName,
        group: GroupName,
        receipts: &[String],
        settlement: Settlement,
    ) -> Result<Vec<Outcome>, CallError> {
        self.may_in(Right::Consume, &stream, &group)?;
        may_settle(&self.principal, &settlement)?;
        let shard = self.shard_of(&stream);
        let leases: Vec<_> = receipts.iter().map(|text| shard.receipts.read(text)).collect();
        shard
            .ask_at_once(move |task, reply| {
                task.settle_receipts((&stream, &group), &leases, &settlement, reply);
            })
            .await
    }
}

/// A member of a group, with the queue of what it is told.
#[derive(Debug)]
pub struct Consumer {
    id: ConsumerId,
    epoch: Epoch,
    commands: mpsc::UnboundedSender<Command>,
    queue: mpsc::UnboundedReceiver<Event>,
    queued: Arc<Queued>,
    unanswered: usize,
    credit_max: u32,
    /// In whose name it is a member.
    who: Arc<Principal>,
    /// It counts for its connection.
    _consuming: Option<Consuming>,
}

impl Consumer {
    /// The number under which reports name it.
    pub fn id(&self) -> ConsumerId {
        self.id
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes what there is, up to `max` events. Ready with none when the consumer has
    /// left or the server has stopped.
    pub fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<Event>, max: usize) -> Poll<()> {
        let before = out.len();
        ready!(self.poll_unencoded(cx, out, max));
        let deliveries = out[before..].iter().filter_map(|event| match event {
            Event::Delivery(delivery) => Some(delivery.bytes()),
            _ => None,
        });
        self.encoded(deliveries.sum());
        Poll::Ready(())
    }

    /// As [`Consumer::poll_events`], for a caller that keeps deliveries for a while: their contents count as handed out
    /// until it says that they are [`Consumer::encoded`].
    pub fn poll_unencoded(&mut self, cx: &mut Context<'_>, out: &mut Vec<Event>, max: usize) -> Poll<()> {
        let before = out.len();
        ready!(self.queue.poll_recv_many(cx, out, max));
        for event in &out[before..] {
            match event {
                Event::Delivery(delivery) => {
                    self.queued.take_out(delivery.messages.len());
                }
                Event::Settled(_) | Event::Committed(..) => self.unanswered -= 1,
                Event::CutOff | Event::GroupGone | Event::LogUnsure => {}
            }
        }
        Poll::Ready(())
    }

    /// Contents of deliveries were encoded, or are not needed any more.
    pub fn encoded(&self, bytes: usize) {
        if bytes > 0 && self.queued.done_with(bytes) && !planted(Fault::HeldBackForGood) {
            let _ = self.commands.send(Command::GoOn { consumer: self.id });
        }
    }

    /// Whether another request to settle may be sent before the answers to earlier ones are taken.
    pub fn may_settle(&self) -> bool {
        self.unanswered < SETTLEMENTS_UNANSWERED_MAX
    }

    /// Refuses a settlement that the consumer may not make: one that moves messages to a stream that it may not publish
    /// to.
    pub fn check(&self, settlement: &Settlement) -> Result<(), CallError> {
        Ok(may_settle(&self.who, settlement)?)
    }

    /// Ends leases. The answer comes as an event. Never waits, and takes no room. Refuses all of the requests if one of
    /// them may not be made.
    pub fn settle(&mut self, requests: Vec<SettleRequest>) -> Result<(), CallError> {
        requests.iter().try_for_each(|request| self.check(&request.settlement))?;
        self.ask(|consumer| Command::Settle { consumer, requests });
        Ok(())
    }

    /// Sends a request that is answered by an event.
    pub(super) fn ask(&mut self, request: impl FnOnce(ConsumerId) -> Command) {
        assert!(self.may_settle(), "answers are taken before more is asked");
        self.unanswered += 1;
        let _ = self.commands.send(request(self.id));
    }

    /// From now on the consumer is willing to hold this many messages.
    pub fn credit(&self, credit: u32) -> Result<(), CallError> {
        self.credit_within(credit, None)
    }

    /// As [`Consumer::credit`], and no more than so many bytes of content, though one message always fits.
    pub fn credit_within(&self, credit: u32, bytes: Option<u64>) -> Result<(), CallError> {
        if credit > self.credit_max {
            return Err(MemberRefusal::CreditTooLarge { credit, limit: self.credit_max }.into());
        }
        let _ = self.commands.send(Command::Credit { consumer: self.id, credit, bytes });
        Ok(())
    }

    /// Leaves, and gives back what it holds; those attempts do not count. Answers to what came before
    /// still come, and then the events end.
    pub fn goodbye(&mut self) {
        let _ = self.commands.send(Command::Leave { consumer: self.id, departure: Departure::Goodbye });
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if planted(Fault::DepartureLost) {
            return;
        }
        // After a goodbye the consumer has left already, and this does nothing.
        let _ = self.commands.send(Command::Leave { consumer: self.id, departure: Departure::Lost });
    }
}
