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
    CallError, Caller, Clock, Consumer, Delivered, Event, Found, LeaseRun, SettleRequest, Settlement,
};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::kurrent::client::{RecordedEvent, SubscriptionConfirmation, Uuid};
use forebay_wire::kurrent::persistent_subscriptions as wire;
use futures_util::stream::FuturesOrdered;
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

/// Links whose events are read at a time.
const RESOLVING_MAX: usize = 16;

/// What a client is shown of a message.
struct Shown {
    /// `None` if the event that a link leads to is gone.
    event: Option<RecordedEvent>,
    link: Option<RecordedEvent>,
}

impl Shown {
    /// The record that the client answers for.
    fn original(&self) -> Option<&RecordedEvent> {
        self.link.as_ref().or(self.event.as_ref())
    }
}

/// A message, while the event that it leads to is read. `None` if there is nothing to show.
type Resolving = Pin<Box<dyn Future<Output = (Delivered, Result<Option<Shown>, Status>)> + Send>>;

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
    /// Messages whose events are being read, in order.
    resolving: FuturesOrdered<Resolving>,
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
    let subscription_id = format!("{}::{}", names.source(), names.group);
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
        resolving: FuturesOrdered::new(),
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
            if self.resolve_links || self.names.is_all() {
                while self.resolving.len() < RESOLVING_MAX
                    && let Some(message) = self.sending.pop_front()
                {
                    let resolver = Resolver {
                        caller: self.caller.clone(),
                        names: self.names.clone(),
                        form: self.form,
                        resolve_links: self.resolve_links,
                    };
                    self.resolving.push_back(Box::pin(resolver.resolve(message)));
                }
                if !self.resolving.is_empty() {
                    let Some((message, shown)) = ready!(Pin::new(&mut self.resolving).poll_next(cx)) else {
                        continue;
                    };
                    consumer.encoded(message.content.len());
                    match shown {
                        Ok(Some(shown)) => return Poll::Ready(Ok(self.send(&message, shown))),
                        Ok(None) => self.pass_over(&message),
                        Err(status) => return Poll::Ready(Err(status)),
                    }
                    continue;
                }
            }
            if let Some(message) = self.sending.pop_front() {
                consumer.encoded(message.content.len());
                let record = stored(&self.names, &message).recorded(self.form);
                return Poll::Ready(
                    record.map(|event| self.send(&message, Shown { event: Some(event), link: None })),
                );
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
                Some(Event::LogUnsure) => return Poll::Ready(Err(status::stopping())),
                Some(Event::GroupGone) => {
                    let names = &self.names;
                    return Poll::Ready(Err(status::group_dropped(names.source(), names.group.as_str())));
                }
                // Clients are not told what becomes of an answer.
                Some(Event::Settled(_) | Event::Committed(..)) | None => {}
            }
        }
    }

    /// The event that a message of a subscription to `$all` leads to is gone, so there is nothing to do for it.
    fn pass_over(&self, message: &Delivered) {
        if let Some(answers) = &self.call.answers {
            let _ = answers.send((vec![message.lease], Action::Skip.settlement("")));
        }
    }

    /// A message as an event, which the call holds from now on.
    fn send(&self, message: &Delivered, shown: Shown) -> wire::ReadResp {
        let original = shown.original();
        let id = EventId::read(original.and_then(|record| record.id.as_ref())).unwrap_or_default();
        let commit = original.map_or(places::commit(message.ordinal), |record| record.commit_position);
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
        let event = read_resp::ReadEvent {
            event: shown.event,
            link: shown.link,
            position: Some(Position::CommitPosition(commit)),
            count: Some(Count::RetryCount(retries)),
        };
        wire::ReadResp { content: Some(read_resp::Content::Event(event)) }
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

/// Reads the events that links lead to.
struct Resolver {
    caller: Caller,
    names: Names,
    form: Form,
    /// Links are followed.
    resolve_links: bool,
}

/// An event that a link leads to.
enum Target {
    There(StreamName, Box<Found>),
    Gone,
    /// The client may not read it.
    Denied,
}

impl Resolver {
    async fn resolve(self, message: Delivered) -> (Delivered, Result<Option<Shown>, Status>) {
        let shown = match self.names.is_all() {
            true => self.of_all(&message).await,
            false => self.show(stored(&self.names, &message)).await.map(Some),
        };
        (message, shown)
    }

    /// A subscription to `$all` has links to its events, and shows the events. One that the client may not read is
    /// shown as the link alone.
    async fn of_all(&self, message: &Delivered) -> Result<Option<Shown>, Status> {
        let link = stored(&self.names, message);
        let Some((seq, stream)) = link.link() else { return Ok(None) };
        match self.target(stream, seq).await? {
            Target::There(stream, found) => self.show(Stored::found(&stream, &found)).await.map(Some),
            Target::Gone => Ok(None),
            Target::Denied => Ok(Some(Shown { event: None, link: Some(link.recorded(self.form)?) })),
        }
    }

    /// An event, and the one that it leads to if it is a link and links are followed.
    async fn show(&self, stored: Stored<'_>) -> Result<Shown, Status> {
        let record = stored.recorded(self.form)?;
        let link = if self.resolve_links { stored.link() } else { None };
        let Some((seq, stream)) = link else { return Ok(Shown { event: Some(record), link: None }) };
        let event = match self.target(stream, seq).await? {
            Target::There(stream, found) => Some(Stored::found(&stream, &found).recorded(self.form)?),
            Target::Gone | Target::Denied => None,
        };
        Ok(Shown { event, link: Some(record) })
    }

    async fn target(&self, stream: StreamName, seq: Seq) -> Result<Target, Status> {
        let page = match self.caller.read(stream.clone(), seq, 1).await {
            Ok(page) => page,
            Err(CallError::NoSuchStream { .. } | CallError::StreamGone) => return Ok(Target::Gone),
            Err(CallError::Denied(_)) => return Ok(Target::Denied),
            Err(error) => return Err(status::of_call(&error)),
        };
        let found = page.messages.into_iter().next().filter(|found| found.seq == seq);
        Ok(found.map_or(Target::Gone, |found| Target::There(stream, Box::new(found))))
    }
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
            Poll::Ready(_) => Some(status::group_dropped(call.names.source(), call.names.group.as_str())),
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
