//! Streams: creating, changing and reading them.

use std::time::{Duration, SystemTime};

use forebay_wire::v1;

use super::groups::Rates;
use super::settings::StreamSettings;
use super::{Created, Items, Page, convert};
use crate::client::Client;
use crate::error::CallError;
use crate::message::StoredMessage;

impl Client {
    /// Creates a stream. Succeeds if the stream exists with the same settings; fails with
    /// [`ProblemKind::SettingsDiffer`](crate::error::ProblemKind) if one of the given settings differs.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::StreamSettings;
    /// use forebay_client::admin::settings::StreamLimits;
    ///
    /// let limits = StreamLimits::new().max_messages(1_000_000);
    /// client.create_stream("emails", StreamSettings::new().limits(limits)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_stream(&self, stream: &str, settings: StreamSettings) -> Result<Created, CallError> {
        let request = v1::CreateStreamRequest { stream: stream.into(), settings: Some((&settings).into()) };
        Ok(Created::from_wire(self.grpc().create_stream(request).await?.into_inner().created))
    }

    /// Changes settings of a stream. Settings that are not set stay as they are. Settings named in `clear`, such as
    /// `ingress_rate` or `limits.max_age_ms`, go back to their defaults first.
    pub async fn update_stream(
        &self,
        stream: &str,
        settings: StreamSettings,
        clear: &[&str],
    ) -> Result<(), CallError> {
        let clear = clear.iter().map(ToString::to_string).chain(settings.cleared()).collect();
        let request =
            v1::UpdateStreamRequest { stream: stream.into(), settings: Some((&settings).into()), clear };
        self.grpc().update_stream(request).await?;
        Ok(())
    }

    /// The state of a stream.
    pub async fn stream(&self, stream: &str) -> Result<StreamReport, CallError> {
        let request = v1::GetStreamRequest { stream: stream.into() };
        Ok(self.grpc().get_stream(request).await?.into_inner().into())
    }

    /// All streams, ordered by name.
    pub fn streams(&self) -> Items<StreamReport> {
        let client = self.clone();
        Items::of(move |after: Option<String>| {
            let client = client.clone();
            async move { client.streams_after(after.as_deref()).await }
        })
    }

    /// Streams, ordered by name: up to a hundred after the given one.
    pub async fn streams_after(&self, after: Option<&str>) -> Result<Page<StreamReport, String>, CallError> {
        let request = v1::ListStreamsRequest { after: after.unwrap_or_default().into(), limit: 0 };
        let reply = self.grpc().list_streams(request).await?.into_inner();
        let items = reply.streams.into_iter().map(StreamReport::from).collect();
        Ok(Page { items, next: convert::some_text(reply.next) })
    }

    /// Deletes a stream with its groups. If a group has consumers, it fails unless `force` is set.
    pub async fn delete_stream(&self, stream: &str, force: bool) -> Result<(), CallError> {
        self.grpc()
            .delete_stream(v1::DeleteStreamRequest { stream: stream.into(), force, if_empty: false })
            .await?;
        Ok(())
    }

    /// Deletes a stream with its groups if it has no messages, parked ones included. If it has some, or if a group has
    /// consumers and `force` is not set, it fails.
    pub async fn delete_stream_if_empty(&self, stream: &str, force: bool) -> Result<(), CallError> {
        self.grpc()
            .delete_stream(v1::DeleteStreamRequest { stream: stream.into(), force, if_empty: true })
            .await?;
        Ok(())
    }

    /// Drops all messages that are ready, delayed or in flight, in all groups of the stream, and parked messages too if
    /// `parked` is set. Returns how many messages were dropped.
    pub async fn purge_stream(&self, stream: &str, parked: bool) -> Result<u64, CallError> {
        let request = v1::PurgeStreamRequest { stream: stream.into(), parked, ready_only: false };
        Ok(self.grpc().purge_stream(request).await?.into_inner().messages)
    }

    /// Drops the messages that no consumer holds, in all groups of the stream. Messages that are in flight or parked
    /// stay. Returns how many messages were dropped.
    pub async fn purge_ready(&self, stream: &str) -> Result<u64, CallError> {
        let request = v1::PurgeStreamRequest { stream: stream.into(), parked: false, ready_only: true };
        Ok(self.grpc().purge_stream(request).await?.into_inner().messages)
    }

    /// Drops every message before this position, in all groups of the stream and for readers. Parked messages stay.
    /// Returns how many messages were dropped.
    pub async fn truncate_stream(&self, stream: &str, before: u64) -> Result<u64, CallError> {
        let request = v1::TruncateStreamRequest { stream: stream.into(), before };
        Ok(self.grpc().truncate_stream(request).await?.into_inner().messages)
    }

    /// Messages of a stream, without consuming them, up to the one that is the last when its page is read.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::admin::streams::ReadQuery;
    ///
    /// let mut messages = client.messages("emails", ReadQuery::default());
    /// while let Some(message) = messages.next().await {
    ///     let message = message?;
    ///     println!("{} of {:?}: {} bytes", message.seq(), message.key(), message.body().len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn messages(&self, stream: &str, query: ReadQuery) -> Items<StoredMessage> {
        let (client, stream) = (self.clone(), stream.to_owned());
        Items::of(move |from: Option<u64>| {
            let (client, stream) = (client.clone(), stream.clone());
            let query = ReadQuery { from: from.unwrap_or(query.from), ..query.clone() };
            async move {
                let is_backwards = query.newest_first;
                let page = client.read_messages(&stream, query).await?;
                let is_last = if is_backwards { page.next == 0 } else { page.next > page.last_seq };
                Ok(Page { items: page.messages, next: (!is_last).then_some(page.next) })
            }
        })
    }

    /// A page of messages of a stream, without consuming them.
    pub async fn read_messages(&self, stream: &str, query: ReadQuery) -> Result<ReadPage, CallError> {
        let request = v1::ReadMessagesRequest {
            stream: stream.into(),
            from: query.from,
            limit: query.limit,
            key: query.key.unwrap_or_default(),
            r#type: query.kind.unwrap_or_default(),
            newest_first: query.newest_first,
        };
        let reply = self.grpc().read_messages(request).await?.into_inner();
        Ok(ReadPage {
            messages: reply.messages.into_iter().map(StoredMessage::from).collect(),
            next: reply.next,
            last_seq: reply.last_seq,
        })
    }
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StreamReport {
    /// The stream's name.
    pub stream: String,
    /// The settings, with defaults filled in.
    pub settings: StreamSettings,
    /// When it was created.
    pub created_at: SystemTime,
    /// The position of the oldest message that is kept.
    pub first_seq: u64,
    /// The position of the last message. Zero: the stream never had one.
    pub last_seq: u64,
    /// Messages that count against the limits.
    pub messages: u64,
    /// Bytes that count against the limits.
    pub bytes: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// The age of the oldest message.
    pub oldest_age: Option<Duration>,
    /// Messages published.
    pub published: Rates,
    /// The names of the stream's groups.
    pub groups: Vec<String>,
}

impl From<v1::StreamReport> for StreamReport {
    fn from(of: v1::StreamReport) -> StreamReport {
        StreamReport {
            stream: of.stream,
            settings: forebay_wire::settings::reported(&of.settings.unwrap_or_default()),
            created_at: convert::time(of.created_at_us),
            first_seq: of.first_seq,
            last_seq: of.last_seq,
            messages: of.messages,
            bytes: of.bytes,
            delayed: of.delayed,
            oldest_age: convert::duration(of.oldest_age_ms),
            published: of.published.unwrap_or_default().into(),
            groups: of.groups,
        }
    }
}

/// Which messages of a stream to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadQuery {
    /// The first position to read. Zero: the oldest message that is kept, or the newest with `newest_first`.
    pub from: u64,
    /// Whether to read from `from` back to older messages.
    pub newest_first: bool,
    /// The most messages of a page, up to 1,000. Zero means 100. A page has fewer if they are large or few match.
    pub limit: u32,
    /// Only messages with this key.
    pub key: Option<String>,
    /// Only messages of this type.
    pub kind: Option<String>,
}

/// Messages of a stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadPage {
    /// The messages.
    pub messages: Vec<StoredMessage>,
    /// Where the next page begins. Beyond `last_seq`: there are no more messages yet. With
    /// [`newest_first`](ReadQuery::newest_first), zero: there are no older messages.
    pub next: u64,
    /// The position of the stream's last message.
    pub last_seq: u64,
}
