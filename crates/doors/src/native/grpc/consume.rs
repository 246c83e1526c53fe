//! One `Consume`: deliveries out, settlements in. The consumer is a member of its group for as long as
//! the call lives; dropping the call is losing the consumer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_broker::api::{
    Bundle, CallError, Caller, Clock, Committed, Consumer, ConsumerTerms, Event, Hold, OutcomeRun, Room,
    RunMessage, Settled, Share,
};
use forebay_core::types::{Limits, StreamName, Timestamp};
use forebay_wire::v1;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::request::names;
use super::{convert, status, transact};
use crate::native::problem::Refusal;
use crate::native::service::{Answer, Service, check_consumer, check_some_duration, not_committed};
use crate::native::trace::Trace;

/// Events that go into one reply.
const EVENTS_PER_REPLY: usize = 256;
/// Bytes of content that go into one reply, so that a client with the usual limit of 4 MiB can read it.
const REPLY_BYTES: usize = 3 << 20;
/// Bytes of transactions that may wait for room while other requests are read on, so that settling does not wait.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Requests that are taken in before a reply leaves.
const REQUESTS_PER_REPLY: usize = 256;

pub(super) struct Consume {
    requests: Streaming<v1::ConsumeRequest>,
    caller: Caller,
    /// The stream of the group.
    stream: StreamName,
    /// The trace of published messages without one of their own.
    trace: Trace,
    transactions: Transactions,
    /// `None` once the consumer has left.
    consumer: Option<Consumer>,
    limits: Limits,
    clock: Clock,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The client has said goodbye. The consumer leaves when no transaction waits for room.
    goodbye: bool,
    /// The consumer has said goodbye, and only answers are still sent.
    leaving: bool,
    /// What leaves next.
    reply: v1::ConsumeReply,
    /// The status that the call ends with, after the reply.
    end: Option<Status>,
    /// Events of the consumer that did not fit into the last reply, and those that have just come.
    events: VecDeque<Event>,
    fresh: Vec<Event>,
    share: Share,
    /// Room for a message that is larger than the room there was.
    room: Option<Pin<Box<dyn Future<Output = Hold> + Send>>>,
}

/// Transactions that are not answered.
#[derive(Default)]
struct Transactions {
    /// Waiting for room, in their order.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Room for the first of them.
    room: Option<Pin<Box<dyn Future<Output = Room> + Send>>>,
    /// The streams that each one publishes to which the broker has not answered, in their order.
    entered: VecDeque<Vec<Arc<StreamName>>>,
}

struct Waiting {
    ticket: u64,
    bundle: Bundle,
    streams: Vec<Arc<StreamName>>,
}

/// How many messages go into a reply that has this much room, and how many bytes they have. One always does, if it is
/// the first.
fn fitting(messages: &[RunMessage], room: &mut usize, is_first: bool) -> (usize, usize) {
    let (mut fit, mut bytes) = (0, 0);
    for message in messages {
        let left = room.checked_sub(message.content.len());
        match left {
            None if fit > 0 || !is_first => break,
            left => *room = left.unwrap_or(0),
        }
        fit += 1;
        bytes += message.content.len();
    }
    (fit, bytes)
}

impl Consume {
    /// Reads the first request and joins the group that it names.
    pub(super) async fn open(
        service: &Service,
        trace: Trace,
        mut requests: Streaming<v1::ConsumeRequest>,
    ) -> Result<Consume, Status> {
        let first = requests.message().await.map_err(status::of_wire)?.unwrap_or_default();
        let opened = Consume::join(service, trace, requests, first).await;
        opened.map_err(|refusal| status::refused(&refusal))
    }

    async fn join(
        service: &Service,
        trace: Trace,
        requests: Streaming<v1::ConsumeRequest>,
        mut first: v1::ConsumeRequest,
    ) -> Answer<Consume> {
        let caller = service.caller();
        let Some(open) = first.open.take() else {
            return Err(Refusal::field("open", "must be given in the first request"));
        };
        let (stream, group) = names(&open.stream, &open.group)?;
        check_consumer(&open.consumer)?;
        let credit = first.credit.take().unwrap_or(open.credit);
        // A limit in bytes comes with the next credit, so no credit is given before it.
        let at_once = if first.credit_bytes.is_some() { 0 } else { credit };
        first.credit = first.credit_bytes.map(|_| credit);
        let lease = check_some_duration("open.lease_ms", open.lease_ms.map(Duration::from_millis))?;
        let terms = ConsumerTerms { lease, rank: open.rank };
        let consumer = caller
            .subscribe_on(stream.clone(), group, &open.consumer, at_once, terms)
            .await
            .map_err(|error| Refusal::of_call(service.now(), &error))?;
        let limits = caller.broker().limits().clone();
        let opened = v1::Opened { epoch: consumer.epoch().0, credit_max: limits.credit_max };
        let mut call = Consume {
            requests,
            caller: caller.clone(),
            stream,
            trace,
            transactions: Transactions::default(),
            consumer: Some(consumer),
            limits,
            clock: caller.broker().clock(),
            stopping: Box::pin(caller.broker().stopping()),
            goodbye: false,
            leaving: false,
            reply: v1::ConsumeReply { opened: Some(opened), ..v1::ConsumeReply::default() },
            end: None,
            events: VecDeque::new(),
            fresh: Vec::new(),
            share: service.share().clone(),
            room: None,
        };
        call.on_request(first)?;
        Ok(call)
    }

    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..REQUESTS_PER_REPLY {
            self.poll_transactions(cx);
            // Answers that the client does not read must not pile up.
            if self.goodbye || !self.consumer.as_ref().is_some_and(Consumer::may_settle) {
                return Ok(());
            }
            // Nor must transactions for which there is no room.
            if self.transactions.waiting_bytes > WAITING_BYTES_MAX {
                return Ok(());
            }
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(request))) => {
                    self.on_request(request).map_err(|refusal| status::refused(&refusal))?;
                }
                Poll::Ready(Some(Err(error))) => return Err(status::of_wire(error)),
                // A client that only closes its side has not said goodbye.
                Poll::Ready(None) => {
                    self.consumer = None;
                    return Ok(());
                }
            }
        }
        // There may be more.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn on_request(&mut self, request: v1::ConsumeRequest) -> Answer<()> {
        let Some(consumer) = &mut self.consumer else { return Ok(()) };
        if request.open.is_some() {
            return Err(Refusal::field("open", "must be given in the first request only"));
        }
        if request.credit_bytes.is_some() && request.credit.is_none() {
            return Err(Refusal::field("credit_bytes", "must be given together with credit"));
        }
        if let Some(credit) = request.credit {
            let given = consumer.credit_within(credit, request.credit_bytes);
            given.map_err(|error| Refusal::of_call(self.clock.now(), &error))?;
        }
        let mut settlements = Vec::with_capacity(request.settlements.len());
        for wire in request.settlements {
            let ticket = wire.ticket;
            let settlement = convert::settlement(wire, &self.limits).and_then(|request| {
                let may = consumer.check(&request.settlement);
                may.map(|()| request).map_err(|error| Refusal::of_call(self.clock.now(), &error))
            });
            match settlement {
                Ok(settlement) => settlements.push(settlement),
                Err(refusal) => {
                    let problem = Some(status::problem(&refusal));
                    self.reply.settled.push(v1::Settled { ticket, problem, ..Default::default() });
                }
            }
        }
        if !settlements.is_empty() {
            consumer.settle(settlements).map_err(|error| Refusal::of_call(self.clock.now(), &error))?;
        }
        for commit in request.commits {
            self.on_commit(commit);
        }
        self.goodbye = request.goodbye;
        Ok(())
    }

    fn on_commit(&mut self, request: v1::Commit) {
        let Some(consumer) = &self.consumer else { return };
        let (ticket, moment) = (request.ticket, self.clock.moment());
        let read = transact::of_consumer(request, &self.stream, consumer, &self.limits, moment, &self.trace);
        match read.and_then(crate::native::service::Transaction::finish) {
            Ok((bundle, streams)) => {
                self.transactions.waiting_bytes += bundle.bytes();
                self.transactions.waiting.push_back(Waiting { ticket, bundle, streams });
            }
            Err(refusal) => self.refuse(ticket, &refusal),
        }
    }

    fn refuse(&mut self, ticket: u64, refusal: &Refusal) {
        self.reply.committed.push(refused(ticket, refusal));
    }

    /// Hands transactions to the broker as far as there is room, and then says goodbye if the client has.
    fn poll_transactions(&mut self, cx: &mut Context<'_>) {
        while let Some(consumer) = &mut self.consumer {
            let Transactions { waiting, waiting_bytes, room, entered } = &mut self.transactions;
            let Some(first) = waiting.front() else { break };
            if !consumer.may_settle() {
                return;
            }
            let broker = self.caller.broker();
            let taken = match room {
                None => broker.try_bundle_room(&first.bundle),
                Some(_) => None,
            };
            let taken = match taken {
                Some(taken) => taken,
                None => {
                    let waits = room.get_or_insert_with(|| Box::pin(broker.bundle_room(&first.bundle)));
                    let Poll::Ready(taken) = waits.as_mut().poll(cx) else { return };
                    taken
                }
            };
            *room = None;
            let Some(Waiting { ticket, bundle, streams }) = waiting.pop_front() else { break };
            *waiting_bytes -= bundle.bytes();
            match self.caller.commit_for(consumer, ticket, taken, bundle) {
                Ok(()) => entered.push_back(streams),
                Err(error) => {
                    let refusal = not_committed(self.clock.now(), &error, &streams);
                    self.refuse(ticket, &refusal);
                }
            }
        }
        if self.goodbye && !self.leaving {
            if let Some(consumer) = &mut self.consumer {
                consumer.goodbye();
            }
            self.leaving = true;
        }
    }

    /// Puts into the reply what the consumer is told.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        // What a consumer is told after its goodbye may give no reply at all.
        while self.reply.deliveries.is_none()
            && self.reply.settled.len() + self.reply.committed.len() < EVENTS_PER_REPLY
        {
            let Some(consumer) = &mut self.consumer else { return Ok(()) };
            if self.events.is_empty() {
                if consumer.poll_unencoded(cx, &mut self.fresh, EVENTS_PER_REPLY).is_pending() {
                    return Ok(());
                }
                if self.fresh.is_empty() {
                    self.consumer = None;
                    return if self.leaving { Ok(()) } else { Err(status::stopping()) };
                }
                self.events.extend(self.fresh.drain(..));
            }
            // The reply is encoded, and counted, as soon as it has been returned.
            let hold = match &mut self.room {
                Some(room) => match room.as_mut().poll(cx) {
                    Poll::Ready(hold) => hold,
                    Poll::Pending => return Ok(()),
                },
                None => self.share.take_up_to(REPLY_BYTES),
            };
            self.room = None;
            let mut room = hold.bytes().min(REPLY_BYTES);
            let mut may_exceed = hold.bytes() >= REPLY_BYTES;
            while let Some(event) = self.events.pop_front() {
                match event {
                    // It was given back with the rest.
                    Event::Delivery(delivery) if self.leaving => consumer.encoded(delivery.bytes()),
                    Event::Delivery(mut delivery) => {
                        let first = delivery.messages.first().map_or(0, |message| message.content.len());
                        if first > room && !may_exceed && self.reply.deliveries.is_none() {
                            let share = self.share.clone();
                            let mut waits = Box::pin(async move { share.wait(first).await });
                            may_exceed = match waits.as_mut().poll(cx) {
                                Poll::Ready(_) => true,
                                Poll::Pending => {
                                    self.room = Some(waits);
                                    self.events.push_front(Event::Delivery(delivery));
                                    return Ok(());
                                }
                            };
                        }
                        let out = self.reply.deliveries.get_or_insert_default();
                        let (fit, bytes) = fitting(&delivery.messages, &mut room, out.encoded.is_empty());
                        if fit > 0 {
                            convert::deliver(&delivery, fit, out)
                                .map_err(|refusal| status::refused(&refusal))?;
                            consumer.encoded(bytes);
                        }
                        if fit < delivery.messages.len() {
                            delivery.skip(fit);
                            self.events.push_front(Event::Delivery(delivery));
                            return Ok(());
                        }
                    }
                    Event::Settled(settled) => {
                        self.reply.settled.extend(settled.iter().map(convert::settled));
                    }
                    Event::Committed(ticket, done) => {
                        let streams = self.transactions.entered.pop_front().unwrap_or_default();
                        self.reply.committed.push(committed(self.clock.now(), ticket, *done, &streams));
                    }
                    Event::CutOff => return Err(status::cut_off()),
                    Event::LogUnsure => return Err(status::log_unsure()),
                    Event::GroupGone => {
                        let gone = Refusal::of_call(self.clock.now(), &CallError::GroupGone);
                        return Err(status::refused(&gone));
                    }
                }
            }
        }
        Ok(())
    }

    fn has_reply(&self) -> bool {
        let v1::ConsumeReply { opened, deliveries, settled, committed } = &self.reply;
        opened.is_some() || deliveries.is_some() || !settled.is_empty() || !committed.is_empty()
    }
}

fn refused(ticket: u64, refusal: &Refusal) -> v1::Committed {
    v1::Committed { ticket, problem: Some(status::problem(refusal)), ..Default::default() }
}

/// The answer to a transaction that publishes to these streams.
fn committed(
    now: Timestamp,
    ticket: u64,
    done: Result<Committed, CallError>,
    streams: &[Arc<StreamName>],
) -> v1::Committed {
    let done = match done {
        Ok(done) => done,
        Err(error) => return refused(ticket, &not_committed(now, &error, streams)),
    };
    let settled =
        |outcomes: &Vec<OutcomeRun>| convert::settled(&Settled { ticket: 0, outcomes: outcomes.clone() });
    v1::Committed {
        ticket,
        settled: done.outcomes.iter().map(settled).collect(),
        already_committed: done.again,
        published: transact::published(done),
        problem: None,
    }
}

impl Stream for Consume {
    type Item = Result<v1::ConsumeReply, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let call = self.get_mut();
        if call.end.is_none() {
            let polled = call.poll_requests(cx).and_then(|()| call.poll_events(cx));
            if let Err(end) = polled {
                // The consumer leaves here and not when the client has taken notice.
                call.consumer = None;
                call.end = Some(end);
            }
        }
        if call.has_reply() {
            if let Some(deliveries) = &mut call.reply.deliveries {
                deliveries.now_us = call.clock.now().0;
            }
            return Poll::Ready(Some(Ok(std::mem::take(&mut call.reply))));
        }
        if let Some(end) = call.end.take() {
            return Poll::Ready(Some(Err(end)));
        }
        if call.consumer.is_none() {
            return Poll::Ready(None);
        }
        if call.stopping.as_mut().poll(cx).is_ready() {
            call.consumer = None;
            return Poll::Ready(Some(Err(status::stopping())));
        }
        Poll::Pending
    }
}
