//! One call of a consumer: events out, answers in. The consumer is a member of its group for as long as the call lives.
//!
//! The call never ends as if it were complete, since clients take that for a fault of theirs.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_broker::api::{
    CallError, Caller, Clock, Consumer, Delivered, Event, LeaseRun, SettleRequest, Settlement,
};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::kurrent::client::{RecordedEvent, SubscriptionConfirmation, Uuid};
use forebay_wire::kurrent::persistent_subscriptions as wire;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use wire::read_req::nack;
use wire::read_resp::read_event::{Count, Position};
use wire::{read_req, read_resp};

use super::super::event::Stored;
use super::super::ids::{EventId, Form};
use super::super::{KurrentDoor, places, status};
use super::calls::{Answered, Answers, Call, GroupCalls, Names};
use super::held::{HeldEvent, Proof};
use super::info::ANONYMOUS;
use super::service::{ALL, Action, Refusal};
use super::{refused, text_of};

/// Requests that are taken in before an event leaves.
const REQUESTS_AT_A_TIME: usize = 64;
/// Events of the consumer that are taken at a time.
const EVENTS_AT_A_TIME: usize = 256;
/// Shown for a connection without a name.
const UNNAMED: &str = "<unknown>";
/// The longest name of a connection that is kept.
const NAME_BYTES_MAX: usize = 255;

/// The event that a link leads to. `None` if it is gone.
type Target = Pin<Box<dyn Future<Output = Result<Option<RecordedEvent>, Status>> + Send>>;

pub(super) struct Consume {
    door: KurrentDoor,
    caller: Caller,
    names: Names,
    requests: Streaming<wire::ReadReq>,
    /// The client has closed its side. Events go on.
    requests_ended: bool,
    consumer: Option<Consumer>,
    group: Arc<GroupCalls>,
    call: Arc<Call>,
    /// Answers that came another way for events of this call.
    answers: mpsc::UnboundedReceiver<Answers>,
    dropped: oneshot::Receiver<()>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    clock: Clock,
    form: Form,
    /// Links are followed.
    resolve_links: bool,
    confirmation: Option<wire::ReadResp>,
    /// A link, while the event that it leads to is read.
    resolving: Option<(Delivered, Target)>,
    /// Messages that were delivered to the consumer and not sent yet, and what it is told after them.
    sending: VecDeque<Delivered>,
    events: VecDeque<Event>,
    fresh: Vec<Event>,
}

/// Reads the first request and joins the group that it names.
pub(super) async fn open(
    door: &KurrentDoor,
    request: Request<Streaming<wire::ReadReq>>,
) -> Result<Consume, Status> {
    use read_req::options::StreamOption;
    let caller = door.caller(&request);
    let (connection_name, user) = who(request.metadata());
    let mut requests = request.into_inner();
    let first = requests.message().await?.and_then(|request| request.content);
    let Some(read_req::Content::Options(options)) = first else {
        return Err(status::invalid("the first request must have options"));
    };
    let stream = match &options.stream_option {
        Some(StreamOption::StreamIdentifier(stream)) => text_of(Some(stream)),
        Some(StreamOption::All(_)) => ALL,
        None => "",
    };
    let refused = |refusal| refused(refusal, stream, &options.group_name);
    let names = Names::existing(stream, &options.group_name).map_err(refused)?;
    let limit = caller.broker().limits().credit_max;
    let credit = match u32::try_from(options.buffer_size) {
        Ok(credit @ 1..) => credit.min(limit),
        _ => {
            let value = options.buffer_size;
            return Err(status::invalid(format!("buffer_size must be at least 1. value=`{value}`")));
        }
    };
    // Events come only after the consumer is known here, so that an answer always finds its event.
    let joined = caller.subscribe(names.stream.clone(), names.group.clone(), &connection_name, 0).await;
    let consumer = joined.map_err(|error| refused(Refusal::from(error)))?;
    // The client is allowed in, and the rest is for the door to know.
    let found = door.persistent.own().group(names.stream.clone(), names.group.clone()).await;
    let extra_statistics = found.map_err(|error| refused(error.into()))?.settings.extra_statistics;
    let noted = door.persistent.noted(&names).await.map_err(refused)?;
    let clock = caller.broker().clock();
    let (sender, answers) = mpsc::unbounded_channel();
    let call = Arc::new(Call {
        connection_name,
        user,
        since: clock.now(),
        extra_statistics,
        answers: Some(sender),
        ..Call::default()
    });
    let group = door.persistent.calls.of(&names);
    let dropped = group.enter(consumer.id(), call.clone());
    let subscription_id = format!("{}::{}", names.stream, names.group);
    let confirmation = SubscriptionConfirmation { subscription_id };
    let content = Some(read_resp::Content::SubscriptionConfirmation(confirmation));
    let opened = Consume {
        door: door.clone(),
        stopping: Box::pin(caller.broker().stopping()),
        caller,
        names: names.clone(),
        requests,
        requests_ended: false,
        consumer: Some(consumer),
        group,
        call,
        answers,
        dropped,
        clock,
        form: Form::wanted(options.uuid_option.as_ref()).unwrap_or(Form::Structured),
        resolve_links: noted.is_some_and(|noted| noted.settings.resolve_links),
        confirmation: Some(wire::ReadResp { content }),
        resolving: None,
        sending: VecDeque::new(),
        events: VecDeque::new(),
        fresh: Vec::new(),
    };
    if let Some(consumer) = &opened.consumer {
        consumer.credit(credit).map_err(|error| refused(error.into()))?;
    }
    Ok(opened)
}

/// The name of the connection and of the user.
fn who(metadata: &MetadataMap) -> (String, String) {
    let text = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
    let mut name = text("connection-name").filter(|name| !name.is_empty()).unwrap_or(UNNAMED).to_owned();
    let end = (0..=name.len().min(NAME_BYTES_MAX)).rev().find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or_default());
    let user = text("authorization").and_then(|value| {
        let (scheme, credentials) = value.split_once(' ')?;
        let decoded =
            scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(credentials.trim()).ok())??;
        let (user, _) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
        Some(user.to_owned()).filter(|user| !user.is_empty())
    });
    (name, user.unwrap_or_else(|| ANONYMOUS.to_owned()))
}

impl Consume {
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..REQUESTS_AT_A_TIME {
            // Outcomes that were not taken yet must not pile up.
            if self.requests_ended || !self.consumer.as_ref().is_some_and(Consumer::may_settle) {
                return Ok(());
            }
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(request))) => self.on_request(request)?,
                Poll::Ready(Some(Err(error))) => return Err(error),
                Poll::Ready(None) => self.requests_ended = true,
            }
        }
        // There may be more.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn on_request(&mut self, request: wire::ReadReq) -> Result<(), Status> {
        match request.content {
            Some(read_req::Content::Ack(ack)) => self.answer(&ack.ids, &Action::Ack.settlement("")),
            Some(read_req::Content::Nack(nack)) => {
                let action = match nack.action() {
                    nack::Action::Unknown => Action::Unknown,
                    nack::Action::Park => Action::Park,
                    nack::Action::Retry => Action::Retry,
                    nack::Action::Skip => Action::Skip,
                    nack::Action::Stop => Action::Stop,
                };
                self.answer(&nack.ids, &action.settlement(&nack.reason))
            }
            Some(read_req::Content::Options(_)) => {
                Err(status::invalid("options must be given in the first request only"))
            }
            None => Err(status::invalid("a request must have an ack or a nack")),
        }
    }

    fn answer(&mut self, ids: &[Uuid], settlement: &Settlement) -> Result<(), Status> {
        let read = |id| EventId::read(Some(id)).ok_or_else(|| status::invalid("an id must be a UUID"));
        let ids: Vec<EventId> = ids.iter().map(read).collect::<Result<_, _>>()?;
        let Answered { leases, receipts } =
            self.group.answered(self.clock.now(), ids.into_iter().map(|id| id.0));
        self.settle(LeaseRun::join(leases.into_iter().map(|(lease, _)| lease)), settlement);
        if !receipts.is_empty() {
            // Pulled over HTTP. Clients are not told what becomes of an answer.
            let (caller, names) = (self.caller.clone(), self.names.clone());
            let settlement = settlement.clone();
            tokio::spawn(async move {
                let _ = caller.settle(names.stream, names.group, &receipts, settlement).await;
            });
        }
        Ok(())
    }

    fn settle(&mut self, leases: Vec<LeaseRun>, settlement: &Settlement) {
        if let Some(consumer) = &mut self.consumer
            && !leases.is_empty()
        {
            let requests = vec![SettleRequest { ticket: 0, leases, settlement: settlement.clone() }];
            // Only a move to another stream can be refused, and Kurrent has none.
            let _ = consumer.settle(requests);
        }
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>) {
        while self.consumer.as_ref().is_some_and(Consumer::may_settle)
            && let Poll::Ready(Some((leases, settlement))) = self.answers.poll_recv(cx)
        {
            self.settle(LeaseRun::join(leases), &settlement);
        }
    }

    /// The next event, as soon as there is one.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<wire::ReadResp, Status>> {
        loop {
            let Some(consumer) = &mut self.consumer else { return Poll::Ready(Err(status::stopping())) };
            if let Some((message, target)) = &mut self.resolving {
                let found = ready!(target.as_mut().poll(cx));
                consumer.encoded(message.content.len());
                let resolved = self.resolving.take();
                return Poll::Ready(found.and_then(|event| match resolved {
                    Some((link, _)) => self.send(&link, Some(event)),
                    None => Err(status::stopping()),
                }));
            }
            if let Some(message) = self.sending.pop_front() {
                if self.resolve_links
                    && let Some((seq, stream)) = stored(&self.names, &message).link()
                {
                    let target = target(self.caller.clone(), stream, seq, self.form);
                    self.resolving = Some((message, Box::pin(target)));
                    continue;
                }
                consumer.encoded(message.content.len());
                return Poll::Ready(self.send(&message, None));
            }
            if self.events.is_empty() {
                if consumer.poll_unencoded(cx, &mut self.fresh, EVENTS_AT_A_TIME).is_pending() {
                    return Poll::Pending;
                }
                if self.fresh.is_empty() {
                    return Poll::Ready(Err(status::stopping()));
                }
                self.events.extend(self.fresh.drain(..));
            }
            match self.events.pop_front() {
                Some(Event::Delivery(delivery)) => self.sending.extend(delivery.into_each()),
                Some(Event::CutOff) => return Poll::Ready(Err(Status::aborted("Consumer too slow"))),
                Some(Event::GroupGone) => {
                    let Names { stream, group } = &self.names;
                    return Poll::Ready(Err(status::group_dropped(stream.as_str(), group.as_str())));
                }
                // Clients are not told what becomes of an answer.
                Some(Event::Settled(_) | Event::Committed(..)) | None => {}
            }
        }
    }

    /// A message as an event, which the call holds from now on. If it is a link that was followed, with the event that
    /// it leads to; clients answer for the link.
    fn send(
        &self,
        message: &Delivered,
        target: Option<Option<RecordedEvent>>,
    ) -> Result<wire::ReadResp, Status> {
        let record = stored(&self.names, message).recorded(self.form)?;
        let id = EventId::read(record.id.as_ref()).unwrap_or_default();
        let now = self.clock.now();
        let held = HeldEvent {
            seq: message.lease.seq,
            proof: Proof::Lease(message.lease),
            deadline: message.deadline,
            sent: now,
            call: Some(self.call.clone()),
        };
        self.group.sent(now, id.0, held);
        let retries = i32::try_from(message.attempt.0.saturating_sub(1)).unwrap_or(i32::MAX);
        let (event, link) = match target {
            None => (Some(record), None),
            Some(event) => (event, Some(record)),
        };
        let event = read_resp::ReadEvent {
            event,
            link,
            position: Some(Position::CommitPosition(places::commit(message.ordinal))),
            count: Some(Count::RetryCount(retries)),
        };
        Ok(wire::ReadResp { content: Some(read_resp::Content::Event(event)) })
    }

    fn leave(&mut self) {
        if let Some(mut consumer) = self.consumer.take() {
            self.group.leave(consumer.id());
            // The protocol has no goodbye. A client that stops, crashes or loses its connection gives back events that
            // it may never have looked at, so these attempts do not count.
            consumer.goodbye();
        }
    }
}

fn stored<'a>(names: &'a Names, message: &'a Delivered) -> Stored<'a> {
    Stored {
        stream: &names.stream,
        seq: message.lease.seq,
        ordinal: message.ordinal,
        published: message.published,
        content: &message.content,
    }
}

async fn target(
    caller: Caller,
    stream: StreamName,
    seq: Seq,
    form: Form,
) -> Result<Option<RecordedEvent>, Status> {
    let page = match caller.read(stream.clone(), seq, 1).await {
        Ok(page) => page,
        // A client that may not read the event gets the link alone.
        Err(CallError::NoSuchStream { .. } | CallError::StreamGone | CallError::Denied(_)) => {
            return Ok(None);
        }
        Err(error) => return Err(status::of_call(&error)),
    };
    let found = page.messages.first().filter(|found| found.seq == seq);
    found.map(|found| Stored::found(&stream, found).recorded(form)).transpose()
}

impl Stream for Consume {
    type Item = Result<wire::ReadResp, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let call = self.get_mut();
        if let Some(confirmation) = call.confirmation.take() {
            return Poll::Ready(Some(Ok(confirmation)));
        }
        if call.consumer.is_none() {
            return Poll::Ready(None);
        }
        let end = match Pin::new(&mut call.dropped).poll(cx) {
            Poll::Ready(_) => {
                let Names { stream, group } = &call.names;
                Some(status::group_dropped(stream.as_str(), group.as_str()))
            }
            Poll::Pending => call.poll_requests(cx).err(),
        };
        let polled = match end {
            Some(end) => Poll::Ready(Err(end)),
            None => {
                call.poll_answers(cx);
                call.poll_event(cx)
            }
        };
        match polled {
            Poll::Ready(Ok(event)) => Poll::Ready(Some(Ok(event))),
            Poll::Ready(Err(end)) => {
                call.leave();
                Poll::Ready(Some(Err(end)))
            }
            Poll::Pending if call.stopping.as_mut().poll(cx).is_ready() => {
                call.leave();
                Poll::Ready(Some(Err(status::stopping())))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Consume {
    fn drop(&mut self) {
        self.leave();
        self.door.persistent.calls.tidy(&self.names);
    }
}
