//! Link streams: streams of small messages that lead to messages of other streams, fed from the whole log.
//!
//! A feeder reads the log in order, and for each message that passes its filter it publishes a link to the stream. Its
//! place in the log is a note, written in the frame of the links up to that place, so a crash neither loses nor doubles
//! a link. A link stream that is made later is fed with the history first. A message that was let go before the feeder
//! came to it has no link.
//!
//! A door keeps its terms in the note: what the filter and the form of the links follow from. It starts the feeders of
//! its link streams when it opens, and may ask how far they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::fault::{Fault, planted};
use forebay_core::notes::{Expected, Note, NoteRefusal};
use forebay_core::shard::{PublishOptions, PublishRefusal};
use forebay_core::types::{Ordinal, StreamName};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::{Bundle, Caller, LogFilter, LogMessage, NoteWish};
use crate::access::{Principal, Resource, Right};
use crate::batch::{Batch, BatchBuilder};
use crate::door::Door;
use crate::error::{CallError, PublishError};
use crate::reader::{Direction, Most};

/// Messages that a feeder takes at a time.
const PAGE: Most = Most { messages: PAGE_MESSAGES, bytes: 1 << 20 };
const PAGE_MESSAGES: u64 = 500;
/// A place without new links is written down when it is so far from the last one. A restart reads these messages again.
const IDLE_STRIDE: u64 = 10_000;
/// After a refusal, as of a full disk, a feeder waits so long.
const PAUSE: Duration = Duration::from_secs(1);
/// Notes that are asked for at a time.
const NOTES_AT_A_TIME: usize = 1_000;
/// The bytes of a place in a note. The door's terms follow.
const PLACE_BYTES: usize = 8;

/// Adds a link to a batch.
pub type WriteLink = dyn Fn(&LogMessage, &mut BatchBuilder) + Send + Sync;

/// What a link stream is fed with.
#[derive(Clone)]
pub struct LinkFeed {
    /// The messages that are linked. The stream itself must not pass, nor another one that is fed from it.
    pub filter: LogFilter,
    /// Adds the link to a message. One that adds nothing leaves the message out.
    pub write: Arc<WriteLink>,
}

/// A link stream, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStream {
    pub stream: StreamName,
    /// The links of all messages up to it are there.
    pub place: Ordinal,
    /// As the door gave them.
    pub terms: Vec<u8>,
    version: u64,
}

impl LinkStream {
    fn read(stream: &str, note: &Note) -> Option<LinkStream> {
        let (place, terms) = note.value.split_first_chunk::<PLACE_BYTES>()?;
        Some(LinkStream {
            stream: StreamName::stored(stream),
            place: Ordinal(u64::from_le_bytes(*place)),
            terms: terms.to_vec(),
            version: note.version,
        })
    }
}

fn key(door: Door, stream: &str) -> Vec<u8> {
    [&[door.number()], stream.as_bytes()].concat()
}

fn note(door: Door, stream: &StreamName, value: Option<Vec<u8>>, expected: Expected) -> NoteWish {
    NoteWish { door: Door::LINKS, key: key(door, stream.as_str()), value, expected, expires: None }
}

fn value(place: Ordinal, terms: &[u8]) -> Vec<u8> {
    [&place.0.to_le_bytes(), terms].concat()
}

impl Bundle {
    /// Makes a stream a link stream, or lets it be fed from another place. Messages up to `seen` are not linked.
    /// `before` is the link stream as it was found, so that of two callers that make it at a time one is refused.
    pub fn links(
        self,
        door: Door,
        stream: &StreamName,
        seen: Ordinal,
        terms: &[u8],
        before: Option<&LinkStream>,
    ) -> Bundle {
        let expected = before.map_or(Expected::Absent, |before| Expected::Version(before.version));
        self.note(note(door, stream, Some(value(seen, terms)), expected))
    }

    /// The stream is no link stream any more.
    pub fn no_links(self, door: Door, stream: &StreamName) -> Bundle {
        self.note(note(door, stream, None, Expected::Any))
    }
}

/// The feeders that run, by the streams that they feed.
#[derive(Default)]
pub(crate) struct Feeders {
    running: Mutex<HashMap<StreamName, Feeder>>,
    /// The setting `source` of a stream has changed.
    changed: Arc<Notify>,
}

struct Feeder {
    /// How far the log was looked through, and the links are durable.
    place: watch::Receiver<Ordinal>,
    task: JoinHandle<()>,
}

impl Feeders {
    fn lock(&self) -> MutexGuard<'_, HashMap<StreamName, Feeder>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is told when the setting `source` of a stream has changed.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// A stream that was fed is gone. Its feeder ends before another stream of this name may be there.
    pub(crate) fn end(&self, stream: &StreamName) {
        if let Some(feeder) = self.lock().remove(stream) {
            feeder.task.abort();
        }
        self.changed.notify_one();
    }

    /// Whether the stream is fed now.
    pub(super) fn is_fed(&self, stream: &StreamName) -> bool {
        self.lock().get(stream).is_some_and(|feeder| !feeder.task.is_finished())
    }
}

impl Caller {
    /// The link streams of a door.
    pub async fn link_streams(&self, door: Door) -> Result<Vec<LinkStream>, CallError> {
        let prefix = vec![door.number()];
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.notes(Door::LINKS, prefix.clone(), after, NOTES_AT_A_TIME).await?;
            found.extend(
                page.items.iter().filter_map(|(key, note)| {
                    LinkStream::read(std::str::from_utf8(key.get(1..)?).ok()?, note)
                }),
            );
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// One link stream of a door.
    pub async fn link_stream(
        &self,
        door: Door,
        stream: &StreamName,
    ) -> Result<Option<LinkStream>, CallError> {
        let found = self.note(stream, Door::LINKS, key(door, stream.as_str())).await?;
        Ok(found.and_then(|note| LinkStream::read(stream.as_str(), &note)))
    }

    /// Feeds a link stream from now on, if it is not fed already. A feeder ends with its stream or its note, and with
    /// the server.
    pub fn feed_links(&self, door: Door, stream: StreamName, feed: LinkFeed) -> Result<(), CallError> {
        self.may(Right::Change, Resource::Stream(&stream))?;
        let mut feeders = self.broker.feeders().lock();
        if feeders.get(&stream).is_some_and(|feeder| !feeder.task.is_finished()) {
            return Ok(());
        }
        feeders.retain(|_, feeder| !feeder.task.is_finished());
        let (told, place) = watch::channel(Ordinal(0));
        let caller = self.broker.enter(Principal::owner_as("links"), None);
        let feeding = Feeding { caller, door, stream: Arc::new(stream.clone()), feed, told };
        feeders.insert(stream, Feeder { place, task: tokio::spawn(feeding.run()) });
        Ok(())
    }

    /// Ends the feeder of a stream. Nothing comes from it after this.
    pub async fn stop_links(&self, stream: &StreamName) -> Result<(), CallError> {
        self.may(Right::Change, Resource::Stream(stream))?;
        let feeder = self.broker.feeders().lock().remove(stream);
        if let Some(Feeder { task, .. }) = feeder {
            task.abort();
            // It was told to end, or has panicked. Both ways it has ended.
            let _ = task.await;
        }
        Ok(())
    }

    /// How far the feeder of a stream is in the log. `None` if the stream is not fed.
    pub fn links_fed(&self, stream: &StreamName) -> Option<Ordinal> {
        let feeders = self.broker.feeders().lock();
        let feeder = feeders.get(stream).filter(|feeder| !feeder.task.is_finished());
        feeder.map(|feeder| *feeder.place.borrow())
    }

    /// Waits until the links to all messages up to this one are there, or the stream is not fed any more.
    pub async fn links_reach(&self, stream: &StreamName, through: Ordinal) {
        let place = self.broker.feeders().lock().get(stream).map(|feeder| feeder.place.clone());
        if let Some(mut place) = place {
            // An error means that the feeder has ended.
            let _ = place.wait_for(|place| *place >= through).await;
        }
    }
}

/// One feeder.
struct Feeding {
    caller: Caller,
    door: Door,
    stream: Arc<StreamName>,
    feed: LinkFeed,
    told: watch::Sender<Ordinal>,
}

impl Feeding {
    async fn run(self) {
        let mut most = PAGE;
        loop {
            let stream = &self.stream;
            match self.feed(&mut most).await {
                Ok(()) | Err(CallError::Stopping | CallError::Unknown) => return,
                // The door has moved the place, or removed the note.
                Err(CallError::Note(NoteRefusal::Mismatch { .. })) => {}
                Err(CallError::NotStored { error, .. })
                    if *error == PublishError::Refused(PublishRefusal::NoSuchStream) =>
                {
                    return self.remove().await;
                }
                Err(error) => {
                    tracing::warn!(%stream, %error, "a stream cannot be fed, and is tried again");
                    // A stream with little room may take fewer messages.
                    most.messages = (most.messages / 2).max(1);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Feeds the stream from the place that is written down. Returns when it is no link stream any more.
    async fn feed(&self, most: &mut Most) -> Result<(), CallError> {
        let Some(links) = self.caller.link_stream(self.door, &self.stream).await? else { return Ok(()) };
        let (mut version, mut durable) = (links.version, links.place);
        self.told.send_replace(durable);
        let filter = self.feed.filter.clone();
        let mut reader = self.caller.log_reader(durable.plus(1), Direction::Forwards, filter)?;
        loop {
            let page = reader.next(*most).await?;
            let seen = Ordinal(page.next.0.saturating_sub(1)).max(durable);
            let batch = self.links_to(&page.messages);
            if !batch.is_empty() || seen.0 - durable.0 >= IDLE_STRIDE {
                let ahead = u64::from(planted(Fault::FeedPlaceAhead));
                version = self.store(batch, version, value(seen.plus(ahead), &links.terms)).await?;
                durable = seen;
                most.messages = (most.messages * 2).min(PAGE_MESSAGES);
            }
            self.told.send_replace(seen);
            if page.is_end {
                reader.grown().await?;
            }
        }
    }

    fn links_to(&self, messages: &[LogMessage]) -> Batch {
        let mut builder = BatchBuilder::default();
        messages.iter().for_each(|message| (self.feed.write)(message, &mut builder));
        builder.build()
    }

    /// Stores links together with the place that they reach to. Returns the new version of the note.
    async fn store(&self, batch: Batch, version: u64, value: Vec<u8>) -> Result<u64, CallError> {
        let wish = note(self.door, &self.stream, Some(value), Expected::Version(version));
        let beside = || Bundle::beside((*self.stream).clone());
        let mut bundle = beside().note(wish);
        if !batch.is_empty() {
            let publish = |bundle: Bundle| {
                bundle.publish_to_existing(self.stream.clone(), batch, PublishOptions::default())
            };
            if planted(Fault::FeedPlaceApart) {
                let apart = publish(beside());
                let room = self.caller.broker.bundle_room(&apart).await;
                self.caller.commit_allowed(room, apart).await?;
            } else {
                bundle = publish(bundle);
            }
        }
        let room = self.caller.broker.bundle_room(&bundle).await;
        let committed = self.caller.commit_allowed(room, bundle).await?;
        committed.versions.first().copied().flatten().ok_or(CallError::Unknown)
    }

    /// The stream was deleted, so its place means nothing.
    async fn remove(&self) {
        let bundle = Bundle::beside((*self.stream).clone()).no_links(self.door, &self.stream);
        let room = self.caller.broker.bundle_room(&bundle).await;
        if let Err(error) = self.caller.commit_allowed(room, bundle).await {
            let stream = &self.stream;
            tracing::warn!(%stream, %error, "the note of a deleted link stream stays until the next start");
        }
    }
}
