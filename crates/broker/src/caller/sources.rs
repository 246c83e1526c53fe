//! Streams that are fed with copies of messages of other streams, because of their setting `source`.
//!
//! The feeders are those of link streams (`links.rs`): each reads the log in order and stores copies together with its
//! place in the log, in one bundle, so that a crash neither loses nor doubles a copy. A copy names the stream and the
//! position that it was copied from, and is not copied again: so no stream feeds itself, by whatever way.
//!
//! [`Entrance::feed_sources`] has the feeders that the settings ask for: it looks through them when the server starts,
//! and whenever the setting of a stream has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::settings::Source;
use forebay_core::types::{Ordinal, StreamId, StreamName};

use super::links::{LinkFeed, LinkStream};
use super::{Bundle, Caller, Choice, Filter, LogFilter, LogMessage};
use crate::access::Principal;
use crate::batch::{BatchBuilder, Message, parse_content};
use crate::broker::Entrance;
use crate::door::Door;
use crate::error::CallError;

/// Streams whose settings are looked at in one turn.
const STREAMS_PER_TURN: usize = 1_000;
/// After a failure the settings are looked through again.
const PAUSE: Duration = Duration::from_secs(1);
/// The bytes that a copy has more than the message: the name of its stream, its position, their lengths.
const COPY_BYTES: usize = 272;

/// Streams that are fed, of a part of all streams.
pub(crate) struct FedStreams {
    pub(crate) streams: Vec<(StreamName, StreamId, Source)>,
    /// Where to go on. `None` at the end.
    pub(crate) next: Option<StreamName>,
}

impl Entrance {
    /// Feeds the streams that have a setting `source`, until the server stops. One caller is enough.
    pub async fn feed_sources(self) {
        let caller = self.enter(Principal::owner_as("sources"), None);
        let changed = self.feeders().changed();
        let mut fed: Option<BTreeMap<StreamName, (StreamId, Source)>> = None;
        loop {
            match caller.reconcile_sources(&mut fed).await {
                Ok(()) => changed.notified().await,
                Err(CallError::Stopping | CallError::Unknown) => return,
                Err(error) => {
                    tracing::warn!(%error, "streams cannot be fed from their sources, and are tried again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Caller {
    /// Ends the feeders that the settings do not ask for any more, and starts those that they ask for.
    async fn reconcile_sources(
        &self,
        fed: &mut Option<BTreeMap<StreamName, (StreamId, Source)>>,
    ) -> Result<(), CallError> {
        if fed.is_none() {
            // Streams may have been deleted shortly before the last stop.
            for links in self.link_streams(Door::SOURCES).await? {
                self.forget_source(&links.stream).await?;
            }
        }
        let fed = fed.get_or_insert_default();
        let wanted = self.fed_streams().await?;
        let ended: Vec<StreamName> = fed
            .iter()
            .filter(|(name, as_fed)| wanted.get(*name) != Some(*as_fed))
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            self.stop_links(&name).await?;
            fed.remove(&name);
            self.forget_source(&name).await?;
        }
        for (name, (id, source)) in wanted {
            if fed.contains_key(&name) && self.broker.feeders().is_fed(&name) {
                continue;
            }
            self.place_source(&name, id).await?;
            let bytes_max = self.broker.limits().message_bytes_max as usize;
            self.feed_links(Door::SOURCES, name.clone(), feed(&source, bytes_max))?;
            fed.insert(name, (id, source));
        }
        Ok(())
    }

    /// Forgets how far a stream was fed, if it is gone. A stream that is there may be fed again, and goes on there.
    async fn forget_source(&self, name: &StreamName) -> Result<(), CallError> {
        match self.stream(name.clone()).await {
            Ok(_) => Ok(()),
            Err(CallError::NoSuchStream { .. }) => {
                self.commit(Bundle::beside(name.clone()).no_links(Door::SOURCES, name)).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// A stream that was not fed before begins with the oldest message.
    async fn place_source(&self, name: &StreamName, id: StreamId) -> Result<(), CallError> {
        let before = self.link_stream(Door::SOURCES, name).await?;
        let terms = id.0.to_le_bytes();
        if before.as_ref().is_some_and(|before: &LinkStream| before.terms == terms) {
            return Ok(());
        }
        let bundle =
            Bundle::beside(name.clone()).links(Door::SOURCES, name, Ordinal(0), &terms, before.as_ref());
        self.commit(bundle).await.map(drop)
    }

    async fn fed_streams(&self) -> Result<BTreeMap<StreamName, (StreamId, Source)>, CallError> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let from: Option<StreamName> = after.take();
            let page = self
                .broker
                .whole()
                .query(move |task| Ok(task.fed_streams(from.as_ref(), STREAMS_PER_TURN)))
                .await?;
            all.extend(page.streams.into_iter().map(|(name, id, source)| (name, (id, source))));
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }
}

/// Copies the messages that a source names.
fn feed(source: &Source, bytes_max: usize) -> LinkFeed {
    let streams = match source.prefix.as_str() {
        "" => Choice::Test(Arc::new(|name: &str| !name.starts_with('$'))),
        prefix => Choice::prefix(prefix),
    };
    let messages = Filter { kind: source.kind.clone(), ..Filter::default() };
    let filter = LogFilter { streams, messages, ..LogFilter::default() };
    let header = source.header_parts().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let write = move |of: &LogMessage, builder: &mut BatchBuilder| {
        let Ok(message) = parse_content(&of.message.content) else {
            let (stream, seq) = (&of.stream, of.message.seq);
            return tracing::error!(%stream, %seq, "ALARM: a stored message cannot be decoded and is not copied");
        };
        let has_header = header.as_ref().is_none_or(|(name, value)| {
            message.headers.iter().any(|(of, is)| of == name && *is == value.as_bytes())
        });
        if message.copied_from.is_some() || !has_header {
            return;
        }
        if of.message.content.len() + COPY_BYTES > bytes_max {
            let (stream, seq) = (&of.stream, of.message.seq);
            return tracing::warn!(%stream, %seq, "a message is not copied: the copy would be too large");
        }
        let copy =
            Message { priority: of.message.extra.priority, expires: of.message.extra.expires, ..message };
        builder.push_copy(&copy, of.stream.as_str(), of.message.seq);
    };
    LinkFeed { filter, write: Arc::new(write) }
}
