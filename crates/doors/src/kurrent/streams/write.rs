//! Every write of events, whichever call it came by.
//!
//! A write begins ([`begin`]) when it is handed to the broker, so writes of one connection are stored in the order in
//! which they begin; and is over when it is durable or refused. A write that has begun is carried to its end if its
//! client goes away, so that the server knows its events when the client repeats it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_broker::api::{
    Absent, Batch, BatchBuilder, Bundle, CallError, Caller, PublishError, PublishOptions, PublishRefusal,
    Published, Retention, Right, StreamSettings,
};
use forebay_core::types::{Ordinal, Seq, StreamName};
use tonic::{Code, Status};

use super::expected::Expected;
use super::metadata::{self, Metadata};
use super::recent::Known;
use crate::kurrent::event::{Proposed, Stored};
use crate::kurrent::ids::EventId;
use crate::kurrent::marks::{self, Mark};
use crate::kurrent::{KurrentDoor, links, places, status};

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kurrent) enum Written {
    /// Where the last event is now; nowhere if the stream has none.
    Done { last: Seq, position: Option<Ordinal> },
    /// The stream is not in the state that the client expected.
    Conflict { last: Seq },
}

/// Why nothing was written, or nothing is known of it.
#[derive(Debug)]
pub(in crate::kurrent) enum Refused {
    /// The stream has a tombstone.
    Deleted(StreamName),
    AppendTooLarge {
        limit: u64,
    },
    EventTooLarge {
        id: EventId,
        bytes: u64,
        limit: u64,
    },
    /// The client did not want to wait any longer.
    Timeout,
    Other(Status),
}

impl Refused {
    pub(in crate::kurrent) fn status(self) -> Status {
        match self {
            Refused::Deleted(stream) => status::stream_deleted(stream.as_str()),
            Refused::AppendTooLarge { limit } => status::append_too_large(limit),
            Refused::EventTooLarge { id, bytes, limit } => {
                status::event_too_large(&id.to_string(), bytes, limit)
            }
            Refused::Timeout => Status::new(Code::DeadlineExceeded, "Timeout"),
            Refused::Other(status) => status,
        }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Other(status)
    }
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Refused {
        Refused::Other(status::of_call(&error))
    }
}

type Outcome = Result<Written, Refused>;
/// The rest of a write that has begun.
pub(in crate::kurrent) type Rest = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Goes on by itself if it is dropped before its end.
struct ToItsEnd(Option<Rest>);

impl Future for ToItsEnd {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(rest) = &mut self.0 else { return Poll::Pending };
        let outcome = std::task::ready!(rest.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(outcome)
    }
}

impl Drop for ToItsEnd {
    fn drop(&mut self) {
        if let (Some(rest), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

/// Events for a stream, on their way.
struct Write {
    door: KurrentDoor,
    caller: Caller,
    stream: Arc<StreamName>,
    expected: Expected,
    events: Vec<Proposed>,
}

/// Writes events, all of them or none.
pub(in crate::kurrent) async fn write(
    door: &KurrentDoor,
    caller: &Caller,
    stream: StreamName,
    expected: Expected,
    events: Vec<Proposed>,
) -> Outcome {
    begin(door, caller, stream, expected, events).await?.await
}

/// Begins to write events. Waits until there is room.
pub(in crate::kurrent) async fn begin(
    door: &KurrentDoor,
    caller: &Caller,
    stream: StreamName,
    expected: Expected,
    events: Vec<Proposed>,
) -> Result<Rest, Refused> {
    if stream.as_str() == "$all" {
        return Err(status::invalid("events cannot be appended to $all").into());
    }
    if links::is_fed(&stream) {
        let problem = format!("events cannot be appended to a stream of links. stream=`{stream}`");
        return Err(status::invalid(problem).into());
    }
    // Before anything is said of the stream.
    caller.check_stream(Right::Publish, &stream)?;
    let mark = door.marks.of(&stream);
    if mark == Some(Mark::Tombstone) {
        return Err(Refused::Deleted(stream));
    }
    let stream = Arc::new(stream);
    let write = Write { door: door.clone(), caller: caller.clone(), stream, expected, events };
    if write.events.is_empty() {
        return Ok(Box::pin(async move { write.nothing().await }));
    }
    let batch = write.batch()?;
    if metadata::is_metadata(&write.stream) {
        return Ok(Box::pin(async move { write.metadata(batch).await }));
    }
    if mark == Some(Mark::Deleted) {
        return Ok(Box::pin(async move { write.revive(batch).await }));
    }
    if expected == Expected::Exists && !write.exists().await? {
        let last = write.last().await?;
        return Ok(Box::pin(std::future::ready(Ok(Written::Conflict { last }))));
    }
    let mut claim = None;
    if expected.last().is_none() {
        match door.recent.look(&write.stream, write.ids()) {
            Known::Nothing(claimed) => claim = Some(claimed),
            Known::Coming(mut over) => {
                return Ok(Box::pin(async move {
                    // Closed by the first write of these events, when its outcome is known.
                    while over.changed().await.is_ok() {}
                    write.again().await?.await
                }));
            }
            Known::All(last, ordinal) => {
                let done = Written::Done { last, position: Some(ordinal) };
                return Ok(Box::pin(std::future::ready(Ok(done))));
            }
            Known::Some => {
                let last = write.last().await?;
                return Ok(Box::pin(std::future::ready(Ok(Written::Conflict { last }))));
            }
        }
    }
    let room = door.broker.room(&write.stream, &batch).await;
    let options = PublishOptions { expect_last: expected.last(), stamp: None };
    let create = Absent::Create(door.new_stream.clone());
    let confirmed = caller.publish_or(room, write.stream.clone(), batch, options, create);
    let rest: Rest = Box::pin(async move {
        let outcome = match confirmed.await {
            Ok(published) => write.stored(&published.get()),
            Err(PublishError::Denied(_)) => write.to_existing().await,
            Err(error) => write.refused(error).await,
        };
        drop(claim);
        outcome
    });
    // A write that expects a revision is recognised by its place.
    Ok(if expected.last().is_none() { Box::pin(ToItsEnd(Some(rest))) } else { rest })
}

impl Write {
    fn ids(&self) -> impl ExactSizeIterator<Item = EventId> + '_ {
        self.events.iter().map(|event| event.id)
    }

    /// Begins anew.
    fn again(self) -> Pin<Box<dyn Future<Output = Result<Rest, Refused>> + Send>> {
        Box::pin(async move {
            let Write { door, caller, stream, expected, events } = self;
            begin(&door, &caller, (*stream).clone(), expected, events).await
        })
    }

    fn batch(&self) -> Result<Batch, Refused> {
        let limits = self.door.broker.limits();
        let bytes: usize = self.events.iter().map(Proposed::bytes).sum();
        let too_many = self.events.len() > limits.batch_messages_max as usize;
        if too_many || bytes > limits.batch_bytes_max as usize {
            return Err(Refused::AppendTooLarge { limit: limits.batch_bytes_max.into() });
        }
        let limit = limits.message_bytes_max as usize;
        if let Some(event) = self.events.iter().find(|event| event.bytes() > limit) {
            let (bytes, limit) = (event.bytes() as u64, limit as u64);
            return Err(Refused::EventTooLarge { id: event.id, bytes, limit });
        }
        let mut builder = BatchBuilder::with_capacity(self.events.len(), bytes);
        self.events.iter().for_each(|event| event.push(&mut builder));
        Ok(builder.build())
    }

    /// Where the stream ends. A stream that does not exist ends before its first event.
    async fn last(&self) -> Result<Seq, Refused> {
        end_of(&self.door.own, &self.stream).await.map_err(Refused::from)
    }

    /// Whether the stream has, or had, an event, or has metadata.
    async fn exists(&self) -> Result<bool, Refused> {
        if self.last().await? > Seq::START {
            return Ok(true);
        }
        match metadata::stream_of(&self.stream) {
            Some(name) => Ok(end_of(&self.door.own, &name).await? > Seq::START),
            None => Ok(false),
        }
    }

    /// A write without events says where the stream ends.
    async fn nothing(self) -> Outcome {
        let last = end_of(&self.caller, &self.stream).await?;
        let is_deleted = self.door.marks.of(&self.stream) == Some(Mark::Deleted);
        let is_expected = match self.expected {
            Expected::Any => true,
            Expected::Exists => last > Seq::START && !is_deleted,
            Expected::NoStream => last == Seq::START || is_deleted,
            Expected::Revision(_) => self.expected.last() == Some(last),
        };
        match is_expected {
            true => Ok(Written::Done { last, position: None }),
            false => Ok(Written::Conflict { last }),
        }
    }

    fn stored(&self, published: &Published) -> Outcome {
        let count = self.events.len() as u64;
        let (first, ordinal) = match published {
            Published::Stored { seqs, ordinal } => (seqs.first, *ordinal),
            // No event of this door is recognised by its id, so this does not happen.
            Published::Mixed { .. } => return Err(status::unknown_outcome().into()),
        };
        if self.expected.last().is_none() {
            self.door.recent.add(&self.stream, self.ids(), (first, ordinal));
        }
        let (last, position) = (first.plus(count - 1), Some(ordinal.plus(count - 1)));
        Ok(Written::Done { last, position })
    }

    /// A client that may publish and not create can write to a stream that exists.
    async fn to_existing(&self) -> Outcome {
        let batch = self.batch()?;
        let room = self.door.broker.room(&self.stream, &batch).await;
        let options = PublishOptions { expect_last: self.expected.last(), stamp: None };
        let confirmed = self.caller.publish_or(room, self.stream.clone(), batch, options, Absent::Refuse);
        match confirmed.await {
            Ok(published) => self.stored(&published.get()),
            Err(PublishError::Refused(PublishRefusal::NoSuchStream)) => Err(status::access_denied().into()),
            Err(error) => self.refused(error).await,
        }
    }

    async fn refused(&self, error: PublishError) -> Outcome {
        match error {
            PublishError::Refused(PublishRefusal::WrongLastSeq { last }) => self.repeated(last).await,
            error => Err(Refused::Other(status::of_publish(&error))),
        }
    }

    /// The stream does not end where it should. If the events after that place are the same ones, the write was done
    /// before, and its client did not see the answer.
    async fn repeated(&self, last: Seq) -> Outcome {
        let conflict = Ok(Written::Conflict { last });
        let count = self.events.len() as u64;
        let Some(first) = self.expected.last().map(Seq::next) else { return conflict };
        if last.0 < first.0.saturating_add(count - 1) {
            return conflict;
        }
        let mut next = first;
        let mut position = None;
        while next.0 < first.0 + count {
            let left = first.0 + count - next.0;
            let page = match self.door.own.read((*self.stream).clone(), next, left).await {
                Ok(page) if !page.messages.is_empty() => page,
                Ok(_) | Err(CallError::NoSuchStream { .. }) => return conflict,
                Err(error) => return Err(error.into()),
            };
            for found in &page.messages {
                let event = &self.events[(next.0 - first.0) as usize];
                let is_same = found.seq == next
                    && Stored::found(&self.stream, found).id().is_ok_and(|id| id == event.id);
                if !is_same {
                    return conflict;
                }
                position = Some(found.ordinal);
                next = next.next();
            }
        }
        Ok(Written::Done { last: Seq(next.0 - 1), position })
    }

    /// A deleted stream that is written again goes on with its numbers. Events before the first new one stay away.
    async fn revive(self, batch: Batch) -> Outcome {
        let last = self.last().await?;
        let expects = match self.expected {
            Expected::Exists => return Ok(Written::Conflict { last }),
            Expected::Revision(_) if self.expected.last() != Some(last) => {
                return Ok(Written::Conflict { last });
            }
            _ => last,
        };
        let Some(of_metadata) = metadata::stream_of(&self.stream) else {
            return Err(status::invalid("the name of the stream is too long").into());
        };
        if last > Seq::START {
            self.caller.truncate((*self.stream).clone(), last.next()).await?;
        }
        let first_revision = places::revision(last.next()).unwrap_or_default();
        let metadata = Metadata::of(&self.door.own, &self.stream).await?.with_truncate_before(first_revision);
        self.create_metadata_stream(&of_metadata).await?;
        let options = PublishOptions { expect_last: Some(expects), stamp: None };
        let bundle = Bundle::beside((*self.stream).clone())
            .publish(self.stream.clone(), batch, options)
            .publish(Arc::new(of_metadata), metadata_batch(&metadata), PublishOptions::default())
            .note(marks::note(&self.stream, None));
        match self.caller.commit(bundle).await {
            Ok(committed) => {
                self.door.marks.set(&self.stream, None);
                let published = committed.published.first().ok_or_else(status::unknown_outcome)?;
                self.stored(published)
            }
            Err(CallError::NotStored { error, .. }) => self.refused(*error).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn create_metadata_stream(&self, name: &StreamName) -> Result<(), Refused> {
        match self.caller.create_stream(name.clone(), metadata::settings).await {
            // One that an operator changed is as good.
            Ok(_) | Err(CallError::Different) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Events of a metadata stream. The limits in the last one become settings of its stream, in the same frame.
    async fn metadata(self, batch: Batch) -> Outcome {
        let Some(subject) = metadata::subject(&self.stream) else {
            return Err(status::invalid("a metadata stream has no metadata of its own").into());
        };
        let data = self.events.last().map(|event| event.data.clone()).unwrap_or_default();
        let metadata = Metadata::parse(&data);
        self.create_metadata_stream(&self.stream).await?;
        let found = self.door.own.stream(subject.clone()).await;
        let is_new = matches!(found, Err(CallError::NoSuchStream { .. }));
        let new_stream = self.door.new_stream.clone();
        let limits = metadata.clone();
        let mark = metadata.is_deleted().then_some(Mark::Deleted);
        let options = PublishOptions { expect_last: self.expected.last(), stamp: None };
        let bundle = Bundle::beside(subject.clone())
            .publish(self.stream.clone(), batch, options)
            .stream(subject.clone(), move |settings| {
                // The settings of a stream that is created begin with those of the server.
                if is_new {
                    settings.clone_from(&new_stream);
                }
                limits.apply(settings);
            })
            .note(marks::note(&subject, mark));
        let written = match self.caller.commit(bundle).await {
            Ok(committed) => {
                self.door.marks.set(&subject, mark);
                let published = committed.published.first().ok_or_else(status::unknown_outcome)?;
                self.stored(published)?
            }
            Err(CallError::NotStored { error, .. }) => match self.refused(*error).await? {
                done @ Written::Done { .. } => done,
                conflict => return Ok(conflict),
            },
            Err(error) => return Err(error.into()),
        };
        // The cut is repeated with the write, so a crash in between leaves nothing behind.
        if let Some(revision) = metadata.truncate_before() {
            let last = end_of(&self.door.own, &subject).await?;
            self.caller.truncate(subject, metadata::first_kept(revision, last)).await?;
        }
        Ok(written)
    }
}

/// Where a stream ends. One that does not exist ends before its first event.
pub(in crate::kurrent) async fn end_of(caller: &Caller, stream: &StreamName) -> Result<Seq, CallError> {
    match caller.stream(stream.clone()).await {
        Ok(report) => Ok(report.figures.last),
        Err(CallError::NoSuchStream { .. }) => Ok(Seq::START),
        Err(error) => Err(error),
    }
}

/// One event with metadata. Its id follows from its contents.
pub(in crate::kurrent) fn metadata_batch(metadata: &Metadata) -> Batch {
    let data = Bytes::from(metadata.to_vec());
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::hash(&data).as_bytes()[..16]);
    let mut builder = BatchBuilder::default();
    let kind = metadata::TYPE.to_owned();
    Proposed { id: EventId(id), kind, is_json: true, metadata: Bytes::new(), data }.push(&mut builder);
    builder.build()
}

/// The settings of streams that come about with their first event: nothing is dropped.
pub(in crate::kurrent) fn new_stream() -> StreamSettings {
    StreamSettings {
        retention: Retention::Log { max_age: None, max_bytes: None, max_messages: None },
        ..StreamSettings::default()
    }
}
