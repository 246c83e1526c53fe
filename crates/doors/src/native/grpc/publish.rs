//! One `Publish`: batches in, confirmations out, in order.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_broker::api::{Batch, Caller, Confirmation, PublishError, PublishOptions, Room, Stage};
use forebay_core::types::StreamName;
use forebay_wire::v1;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::{convert, status};
use crate::native::problem::Refusal;
use crate::native::service::{Answer, Service, stream_name};
use crate::native::trace::Trace;

/// Batches of one call that may wait for their confirmation.
const UNCONFIRMED_MAX: usize = 8_192;
/// Confirmations that go into one reply.
const CONFIRMATIONS_PER_REPLY: usize = 1_024;

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(super) struct Publish {
    caller: Caller,
    /// The trace of messages without one of their own.
    trace: Trace,
    requests: Streaming<v1::PublishRequest>,
    /// The stream that an empty name means.
    stream: Option<Arc<StreamName>>,
    /// A batch that cannot go on yet. Nothing more is read until it can.
    held_up: Option<HeldUp>,
    /// In the order of the batches.
    unconfirmed: VecDeque<Unconfirmed>,
    stopping: Later<()>,
    /// The client sends nothing more, or nothing more is taken from it.
    ended: Option<Result<(), Status>>,
}

struct HeldUp {
    stream: Arc<StreamName>,
    sent: Sent,
    room: Later<Room>,
}

/// A batch, with what its client says of it.
struct Sent {
    ticket: u64,
    batch: Batch,
    options: PublishOptions,
}

enum Unconfirmed {
    OnItsWay(u64, Arc<StreamName>, Confirmation),
    Known(v1::Confirmation),
}

impl Publish {
    pub(super) fn new(service: Service, trace: Trace, requests: Streaming<v1::PublishRequest>) -> Publish {
        let caller = service.caller().clone();
        let stopping = Box::pin(caller.broker().reached(Stage::Draining));
        let unconfirmed = VecDeque::new();
        Publish { caller, trace, requests, stream: None, held_up: None, unconfirmed, stopping, ended: None }
    }

    /// Takes in everything that has come and can go on.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        while self.ended.is_none() && self.unconfirmed.len() < UNCONFIRMED_MAX {
            if self.held_up.is_some() {
                if self.poll_held_up(cx).is_pending() {
                    return;
                }
                continue;
            }
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => self.on_request(request),
                // Messages of a client that is gone are stored all the same; their confirmations are dropped.
                Poll::Ready(Some(Err(error))) => self.ended = Some(Err(error)),
                Poll::Ready(None) => self.ended = Some(Ok(())),
            }
        }
    }

    fn on_request(&mut self, request: v1::PublishRequest) {
        let ticket = request.ticket;
        let moment = self.caller.broker().clock().moment();
        let batch = match convert::batch(moment, &request.messages, &self.trace) {
            Ok(batch) => batch,
            Err(refusal) => return self.refuse(ticket, &refusal),
        };
        let sent = Sent { ticket, batch, options: convert::publish_options(&request) };
        match self.name(&request.stream) {
            Ok(stream) => self.enter(stream, sent),
            Err(refusal) => self.refuse(ticket, &refusal),
        }
    }

    /// The stream that a request means.
    fn name(&mut self, text: &str) -> Answer<Arc<StreamName>> {
        match &self.stream {
            Some(name) if text.is_empty() || text == name.as_str() => Ok(name.clone()),
            _ => Ok(self.stream.insert(Arc::new(stream_name(text)?)).clone()),
        }
    }

    fn enter(&mut self, stream: Arc<StreamName>, sent: Sent) {
        match self.caller.broker().try_room(&stream, &sent.batch) {
            Some(room) => self.publish(room, stream, sent),
            None => {
                let room = Box::pin(self.caller.broker().room(&stream, &sent.batch));
                self.held_up = Some(HeldUp { stream, sent, room });
            }
        }
    }

    fn publish(&mut self, room: Room, stream: Arc<StreamName>, sent: Sent) {
        let Sent { ticket, batch, options } = sent;
        let confirmation = self.caller.publish(room, stream.clone(), batch, options);
        self.unconfirmed.push_back(Unconfirmed::OnItsWay(ticket, stream, confirmation));
    }

    /// Ready when what held the batch up is over.
    fn poll_held_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut held) = self.held_up.take() else { return Poll::Ready(()) };
        match held.room.as_mut().poll(cx) {
            Poll::Ready(room) => {
                self.publish(room, held.stream, held.sent);
                Poll::Ready(())
            }
            Poll::Pending => {
                self.held_up = Some(held);
                Poll::Pending
            }
        }
    }

    fn refuse(&mut self, ticket: u64, refusal: &Refusal) {
        self.unconfirmed.push_back(Unconfirmed::Known(refused(ticket, refusal)));
    }

    /// The confirmation of a batch that was not stored, or may not have been.
    fn failed(&self, ticket: u64, stream: &StreamName, error: &PublishError) -> v1::Confirmation {
        let refusal = Refusal::of_publish(self.caller.broker().clock().now(), error);
        refused(ticket, &refusal.in_stream(stream))
    }

    /// Everything from the front that is known by now.
    fn poll_confirmations(&mut self, cx: &mut Context<'_>) -> Vec<v1::Confirmation> {
        let mut known = Vec::new();
        while known.len() < CONFIRMATIONS_PER_REPLY
            && let Some(first) = self.unconfirmed.front_mut()
        {
            let confirmation = match first {
                Unconfirmed::Known(confirmation) => std::mem::take(confirmation),
                Unconfirmed::OnItsWay(ticket, stream, on_its_way) => match Pin::new(on_its_way).poll(cx) {
                    Poll::Ready(Ok(published)) => convert::confirmation(*ticket, published.get()),
                    Poll::Ready(Err(error)) => {
                        let (ticket, stream) = (*ticket, stream.clone());
                        self.failed(ticket, &stream, &error)
                    }
                    Poll::Pending => break,
                },
            };
            self.unconfirmed.pop_front();
            known.push(confirmation);
        }
        known
    }
}

impl Stream for Publish {
    type Item = Result<v1::PublishReply, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let call = self.get_mut();
        call.poll_requests(cx);
        let confirmations = call.poll_confirmations(cx);
        if !confirmations.is_empty() {
            return Poll::Ready(Some(Ok(v1::PublishReply { confirmations })));
        }
        if call.ended.is_none() && call.stopping.as_mut().poll(cx).is_ready() {
            if let Some(held) = call.held_up.take() {
                let confirmation = call.failed(held.sent.ticket, &held.stream, &PublishError::Stopping);
                call.unconfirmed.push_back(Unconfirmed::Known(confirmation));
            }
            call.ended = Some(Err(status::stopping()));
            cx.waker().wake_by_ref();
        }
        match &call.ended {
            Some(end) if call.unconfirmed.is_empty() && call.held_up.is_none() => {
                let end = end.clone();
                call.ended = Some(Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            _ => Poll::Pending,
        }
    }
}

/// Stores one batch. Unlike in a stream of batches, a refusal is the answer to the call.
pub(super) async fn once(
    service: Service,
    request: v1::PublishRequest,
    trace: Trace,
) -> Answer<v1::Confirmation> {
    let stream = stream_name(&request.stream)?;
    let batch = convert::batch(service.broker().clock().moment(), &request.messages, &trace)?;
    let published = service.publish(stream, batch, convert::publish_options(&request)).await?;
    Ok(convert::confirmation(request.ticket, published))
}

fn refused(ticket: u64, refusal: &Refusal) -> v1::Confirmation {
    v1::Confirmation { ticket, problem: Some(status::problem(refusal)), ..Default::default() }
}
