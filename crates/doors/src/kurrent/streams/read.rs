//! `Read`: events of a stream, once or as they come.
//!
//! A call is polled by its connection. It reads a page beside the shard's task, hands out one event after the other,
//! and reads the next page when the client has taken them.

use std::collections::VecDeque;
use std::pin::Pin;

use forebay_broker::api::{
    CallError, Caller, Direction, Hold, Most, Reader, Retention, Right, Share, Stage, StreamSettings,
};
use forebay_core::types::{Seq, StreamName, Timestamp};
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::{RecordedEvent, StreamOptions, SubscriptionConfirmation};
use forebay_wire::kurrent::streams::read_req::Options;
use forebay_wire::kurrent::streams::read_req::options::{
    CountOption, FilterOption, ReadDirection, StreamOption,
};
use forebay_wire::kurrent::streams::read_resp::{CaughtUp, Content, ReadEvent, StreamNotFound, read_event};
use forebay_wire::kurrent::streams::{ReadReq, ReadResp};
use tonic::Status;

use super::all;
use crate::kurrent::event::{self, Stored};
use crate::kurrent::ids::{EventId, Form};
use crate::kurrent::marks::Mark;
use crate::kurrent::persistent::{self, ParkedRead};
use crate::kurrent::{KurrentDoor, Replies, links, places, status};

/// Events that are read at a time, if there is room for them.
pub(super) const PAGE: Most = Most { messages: 500, bytes: 1 << 20 };

pub(super) async fn read(
    door: KurrentDoor,
    caller: Caller,
    share: Share,
    request: ReadReq,
) -> Result<Replies<ReadResp>, Status> {
    let options = request.options.ok_or_else(|| status::invalid("options must be set"))?;
    let form = Form::wanted(options.uuid_option.as_ref());
    let form = form.ok_or_else(|| status::invalid("uuid_option must be set"))?;
    let direction = match options.read_direction() {
        ReadDirection::Forwards => Direction::Forwards,
        ReadDirection::Backwards => Direction::Backwards,
    };
    let compatibility = options.control_option.as_ref().map_or(0, |control| control.compatibility);
    let Options { stream_option, resolve_links, count_option, filter_option, .. } = options;
    let filter = match filter_option {
        Some(FilterOption::Filter(filter)) => Some(filter),
        Some(FilterOption::NoFilter(_)) | None => None,
    };
    let view = View { caller, share, form, resolve_links };
    match (stream_option, count_option) {
        (Some(StreamOption::Stream(of)), Some(CountOption::Count(count))) if persistent::is_parked(&of) => {
            ParkedRead { form, resolve_links, direction, of, count }.replies(&view.caller).await
        }
        (Some(StreamOption::Stream(_)), _) if filter.is_some() => {
            Err(status::invalid("a filter must be given with $all only"))
        }
        (Some(StreamOption::Stream(of)), Some(CountOption::Count(count))) => {
            Once::open(door, view, of, direction, count, compatibility).await
        }
        (_, Some(CountOption::Subscription(_))) if direction == Direction::Backwards => {
            Err(status::invalid("a subscription must read forwards"))
        }
        (Some(StreamOption::Stream(of)), Some(CountOption::Subscription(_))) => {
            Follow::open(door, view, of).await
        }
        (Some(StreamOption::All(of)), Some(CountOption::Count(count))) => {
            all::Once::open(view, of, direction, count, filter.as_ref()).await
        }
        (Some(StreamOption::All(of)), Some(CountOption::Subscription(_))) => {
            all::Follow::open(door, view, of, filter.as_ref()).await
        }
        (None, _) => Err(status::invalid("stream or all must be set")),
        (_, None) => Err(status::invalid("count or subscription must be set")),
    }
}

pub(super) fn reply(content: Content) -> ReadResp {
    ReadResp { content: Some(content) }
}

pub(super) fn timestamp(time: Timestamp) -> forebay_wire::kurrent::Timestamp {
    forebay_wire::kurrent::Timestamp {
        seconds: (time.0 / 1_000_000) as i64,
        nanos: (time.0 % 1_000_000) as i32 * 1_000,
    }
}

/// How a client wants to see events.
pub(super) struct View {
    pub(super) caller: Caller,
    /// The room that answers of the connection have.
    pub(super) share: Share,
    pub(super) form: Form,
    pub(super) resolve_links: bool,
}

impl View {
    /// An event, and the one that it leads to if it is a link and links are followed.
    pub(super) async fn show(&self, stored: Stored<'_>) -> Result<ReadResp, Status> {
        let record = stored.recorded(self.form)?;
        let position = Some(read_event::Position::CommitPosition(record.commit_position));
        let target = if self.resolve_links { stored.link() } else { None };
        let (event, link) = match target {
            None => (Some(record), None),
            Some((seq, stream)) => (self.target(stream, seq).await?, Some(record)),
        };
        Ok(reply(Content::Event(ReadEvent { event, link, position })))
    }

    /// The event that a link leads to. `None` if it is gone.
    async fn target(&self, stream: StreamName, seq: Seq) -> Result<Option<RecordedEvent>, Status> {
        let page = match self.caller.read(stream.clone(), seq, 1).await {
            Ok(page) => page,
            Err(CallError::NoSuchStream { .. } | CallError::StreamGone) => return Ok(None),
            Err(error) => return Err(status::of_call(&error)),
        };
        let found = page.messages.first().filter(|found| found.seq == seq);
        found.map(|found| Stored::found(&stream, found).recorded(self.form)).transpose()
    }
}

/// Polls a call until it has no more to say. Replies that are there already are taken without its future, which would
/// be one on the heap for each event.
pub(super) fn replies<T: Send + 'static>(
    call: T,
    ready: fn(&mut T) -> &mut Ready,
    next: impl for<'a> Fn(
        &'a mut T,
    ) -> Pin<Box<dyn Future<Output = Option<Result<ReadResp, Status>>> + Send + 'a>>
    + Send
    + Copy
    + 'static,
) -> Replies<ReadResp> {
    Box::pin(futures_util::stream::unfold(Some(Box::new(call)), move |call| async move {
        let mut call = call?;
        if let Some(reply) = ready(&mut call).pop() {
            return Some((Ok(reply), Some(call)));
        }
        let reply = next(&mut call).await?;
        // Nothing follows an error.
        let call = if reply.is_ok() { Some(call) } else { None };
        Some((reply, call))
    }))
}

/// Events that were read and not handed out, and the room that they take.
#[derive(Default)]
pub(super) struct Ready {
    replies: VecDeque<ReadResp>,
    hold: Option<Hold>,
}

impl Ready {
    pub(super) fn pop(&mut self) -> Option<ReadResp> {
        let reply = self.replies.pop_front();
        if reply.is_none() {
            self.hold = None;
        }
        reply
    }

    pub(super) fn push(&mut self, reply: ReadResp) {
        self.replies.push_back(reply);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// As much of a page as there is room for. One event always fits.
    pub(super) fn room(&mut self, share: &Share, most: Most) -> Most {
        let hold = share.take_up_to(most.bytes);
        let bytes = hold.bytes();
        self.hold = Some(hold);
        Most { bytes, ..most }
    }
}

/// A read that ends.
struct Once {
    view: View,
    stream: StreamName,
    ready: Ready,
    /// `None` once everything was read.
    reader: Option<Reader>,
    /// Events that the client may still be given.
    left: u64,
    /// Said after the last event.
    ending: Vec<ReadResp>,
}

impl Once {
    async fn open(
        door: KurrentDoor,
        view: View,
        of: StreamOptions,
        direction: Direction,
        count: u64,
        compatibility: u32,
    ) -> Result<Replies<ReadResp>, Status> {
        let stream = event::stream_name(of.stream_identifier.as_ref())?;
        // Before anything is said of the stream.
        view.caller.check_stream(Right::Read, &stream).map_err(|error| status::of_call(&error))?;
        let mark = door.marks.of(&stream);
        if mark == Some(Mark::Tombstone) {
            return Err(status::stream_deleted(stream.as_str()));
        }
        ready(&door, &view.caller, &stream).await?;
        let report = match view.caller.stream(stream.clone()).await {
            Ok(report) if report.figures.last > Seq::START && mark.is_none() => report,
            Ok(_) | Err(CallError::NoSuchStream { .. }) => {
                let missing = StreamNotFound { stream_identifier: Some(event::identifier(&stream)) };
                let missing = reply(Content::StreamNotFound(missing));
                return Ok(Box::pin(tokio_stream::once(Ok(missing))));
            }
            Err(error) => return Err(status::of_call(&error)),
        };
        let (first, last) = (report.figures.first, report.figures.last);
        let from = match (of.revision_option, direction) {
            (Some(RevisionOption::Revision(revision)), Direction::Forwards) => places::seq(revision),
            (Some(RevisionOption::Revision(revision)), Direction::Backwards) => {
                places::seq(revision).min(last)
            }
            (Some(RevisionOption::Start(_)), _) => Seq(1),
            (Some(RevisionOption::End(_)), Direction::Forwards) => last.next(),
            (Some(RevisionOption::End(_)), Direction::Backwards) => last,
            (None, _) => return Err(status::invalid("revision, start or end must be set")),
        };
        // Events that come meanwhile are for the next read.
        let there = match direction {
            Direction::Forwards => (last.0 + 1).saturating_sub(from.max(first).0),
            Direction::Backwards => (from.0 + 1).saturating_sub(first.0),
        };
        let left = count.min(there);
        let mut ending = Vec::new();
        if compatibility >= 1 {
            let is_before = direction == Direction::Forwards && count > 0 && left == 0 && from < first;
            let first = places::revision(first).filter(|_| is_before);
            ending.extend(first.map(|revision| reply(Content::FirstStreamPosition(revision))));
            ending
                .extend(places::revision(last).map(|revision| reply(Content::LastStreamPosition(revision))));
        }
        let reader = match left {
            0 => None,
            _ => {
                let from = if direction == Direction::Forwards { from.max(first) } else { from };
                let reader = view.caller.reader(stream.clone(), from, direction).await;
                Some(reader.map_err(|error| status::of_call(&error))?)
            }
        };
        let call = Once { view, stream, ready: Ready::default(), reader, left, ending };
        Ok(replies(call, |call| &mut call.ready, |call| Box::pin(call.next())))
    }

    async fn next(&mut self) -> Option<Result<ReadResp, Status>> {
        loop {
            if let Some(ready) = self.ready.pop() {
                return Some(Ok(ready));
            }
            let Some(reader) = &mut self.reader else {
                return (!self.ending.is_empty()).then(|| Ok(self.ending.remove(0)));
            };
            let most = Most { messages: PAGE.messages.min(self.left), ..PAGE };
            let read = read_page(reader, most, &self.view, &self.stream, &mut self.ready).await;
            match read {
                Ok(0) => self.reader = None,
                Ok(count) => {
                    self.left -= count.min(self.left);
                    if self.left == 0 {
                        self.reader = None;
                    }
                }
                // The stream was deleted meanwhile: there are no more.
                Err(Failed::Call(CallError::StreamGone)) => self.reader = None,
                Err(failed) => return Some(Err(failed.status())),
            }
        }
    }
}

enum Failed {
    Call(CallError),
    Status(Status),
}

impl Failed {
    fn status(self) -> Status {
        match self {
            Failed::Call(error) => status::of_call(&error),
            Failed::Status(status) => status,
        }
    }
}

/// Reads the next events of a stream. Returns how many there were.
async fn read_page(
    reader: &mut Reader,
    most: Most,
    view: &View,
    stream: &StreamName,
    out: &mut Ready,
) -> Result<u64, Failed> {
    let most = out.room(&view.share, most);
    let is_back = reader.direction() == Direction::Backwards;
    let stretches = reader.next(most).await.map_err(Failed::Call)?;
    let mut count = 0;
    for stretch in &stretches {
        for n in 0..stretch.len() {
            let n = if is_back { stretch.len() - 1 - n } else { n };
            let found = stretch.get(n);
            let shown = view.show(Stored::found(stream, &found)).await.map_err(Failed::Status)?;
            out.push(shown);
            count += 1;
        }
    }
    Ok(count)
}

/// A subscription to a stream. It never ends by itself: clients take that for an error of their own.
struct Follow {
    door: KurrentDoor,
    view: View,
    stream: StreamName,
    reader: Reader,
    ready: Ready,
    is_caught_up: bool,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Follow {
    async fn open(door: KurrentDoor, view: View, of: StreamOptions) -> Result<Replies<ReadResp>, Status> {
        let stream = event::stream_name(of.stream_identifier.as_ref())?;
        // Before anything is said of the stream.
        view.caller.check_stream(Right::Read, &stream).map_err(|error| status::of_call(&error))?;
        if door.marks.of(&stream) == Some(Mark::Tombstone) {
            return Err(status::stream_deleted(stream.as_str()));
        }
        ready(&door, &view.caller, &stream).await?;
        let last = last_of(&view.caller, &stream).await?;
        let next = match of.revision_option {
            Some(RevisionOption::Revision(revision)) => Seq(places::seq(revision).0.saturating_add(1)),
            Some(RevisionOption::Start(_)) => Seq(1),
            Some(RevisionOption::End(_)) => last.next(),
            None => return Err(status::invalid("revision, start or end must be set")),
        };
        let reader = view.caller.reader(stream.clone(), next, Direction::Forwards).await;
        let reader = reader.map_err(|error| status::of_call(&error))?;
        let confirmation = SubscriptionConfirmation { subscription_id: door.next_id().to_string() };
        let mut ready = Ready::default();
        ready.push(reply(Content::Confirmation(confirmation)));
        let stopping = Box::pin(door.broker.reached(Stage::Draining));
        let call = Follow { door, view, stream, reader, ready, is_caught_up: false, stopping };
        Ok(replies(call, |call| &mut call.ready, |call| Box::pin(call.next())))
    }

    async fn next(&mut self) -> Option<Result<ReadResp, Status>> {
        loop {
            if let Some(ready) = self.ready.pop() {
                return Some(Ok(ready));
            }
            let read = tokio::select! {
                biased;
                // Looked at first, since a server that has gone looks like a stream that has.
                () = self.stopping.as_mut() => return Some(Err(status::stopping())),
                read = read_page(&mut self.reader, PAGE, &self.view, &self.stream, &mut self.ready) => read,
            };
            match read {
                Ok(0) if !self.is_caught_up => {
                    self.is_caught_up = true;
                    let revision = places::revision(self.reader.last());
                    return Some(Ok(reply(Content::CaughtUp(CaughtUp {
                        timestamp: Some(timestamp(self.door.broker.clock().now())),
                        stream_revision: revision.and_then(|revision| i64::try_from(revision).ok()),
                        position: None,
                    }))));
                }
                Ok(0) => {
                    self.ready = Ready::default();
                    let grown = tokio::select! {
                        biased;
                        () = self.stopping.as_mut() => return Some(Err(status::stopping())),
                        grown = self.reader.grown() => grown,
                    };
                    if let Err(error) = grown {
                        return Some(Err(self.ended(error)));
                    }
                }
                Ok(_) => {}
                Err(Failed::Call(error)) => return Some(Err(self.ended(error))),
                Err(Failed::Status(status)) => return Some(Err(status)),
            }
        }
    }

    fn ended(&self, error: CallError) -> Status {
        match self.door.marks.of(&self.stream) {
            Some(Mark::Tombstone) => status::stream_deleted(self.stream.as_str()),
            _ => status::of_call(&error),
        }
    }
}

/// A stream of a category or a type comes about when a client that may know of it first reads it.
async fn ready(door: &KurrentDoor, caller: &Caller, stream: &StreamName) -> Result<(), Status> {
    if !links::is_named(stream) || !caller.sees_stream(stream) {
        return Ok(());
    }
    links::ready(&door.own, stream).await.map_err(|error| status::of_call(&error))
}

/// Where the stream ends. A stream that does not exist is created, without events, so that its first one can be waited
/// for.
async fn last_of(caller: &Caller, stream: &StreamName) -> Result<Seq, Status> {
    match caller.stream(stream.clone()).await {
        Ok(report) => return Ok(report.figures.last),
        Err(CallError::NoSuchStream { .. }) => {}
        Err(error) => return Err(status::of_call(&error)),
    }
    let is_metadata = super::metadata::is_metadata(stream);
    let settings = move |settings: &mut StreamSettings| match is_metadata {
        true => super::metadata::settings(settings),
        false => settings.retention = Retention::Log { max_age: None, max_bytes: None, max_messages: None },
    };
    match caller.create_stream(stream.clone(), settings).await {
        Ok(_) | Err(CallError::Different) => Ok(Seq::START),
        Err(error) => Err(status::of_call(&error)),
    }
}

/// The id of a subscription.
impl KurrentDoor {
    pub(super) fn next_id(&self) -> EventId {
        let number = self.subscriptions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut id = self.instance;
        id.0[8..].copy_from_slice(&number.to_be_bytes());
        id
    }
}
