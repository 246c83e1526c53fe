//! Streams: what they are like, and what is in them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_wire::v1;

use super::settings::StreamSettings;
use super::{Created, Page, convert};
use crate::client::Client;
use crate::error::CallError;
use crate::message::Payload;

impl Client {
    /// Creates a stream. If there is one already whose settings agree with the given ones, that will do; if one
    /// differs, it fails with `ProblemKind::SettingsDiffer`.
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
        Ok(Created::of(self.grpc().create_stream(request).await?.into_inner().created))
    }

    /// Changes settings of a stream. Those that are not set stay as they are; those named in `clear`, as in
    /// `ingress_rate` or `limits.max_age_ms`, go back to their defaults before.
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

    /// What a stream says about itself.
    pub async fn stream(&self, stream: &str) -> Result<StreamReport, CallError> {
        let request = v1::GetStreamRequest { stream: stream.into() };
        Ok(self.grpc().get_stream(request).await?.into_inner().into())
    }

    /// Streams by name, up to a hundred that come after the given one.
    pub async fn streams_after(&self, after: Option<&str>) -> Result<Page<StreamReport, String>, CallError> {
        let request = v1::ListStreamsRequest { after: after.unwrap_or_default().into(), limit: 0 };
        let reply = self.grpc().list_streams(request).await?.into_inner();
        let items = reply.streams.into_iter().map(StreamReport::from).collect();
        Ok(Page { items, next: convert::some_text(reply.next) })
    }

    /// Deletes a stream with its groups; even while these have consumers, if forced.
    pub async fn delete_stream(&self, stream: &str, force: bool) -> Result<(), CallError> {
        self.grpc().delete_stream(v1::DeleteStreamRequest { stream: stream.into(), force }).await?;
        Ok(())
    }

    /// Drops everything that is ready, delayed or leased, in all groups of the stream, and what is parked too if that
    /// is said. Answers how many messages.
    pub async fn purge_stream(&self, stream: &str, parked: bool) -> Result<u64, CallError> {
        let request = v1::PurgeStreamRequest { stream: stream.into(), parked };
        Ok(self.grpc().purge_stream(request).await?.into_inner().messages)
    }

    /// Messages of a stream, without disturbing anything.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::admin::streams::ReadQuery;
    ///
    /// let mut query = ReadQuery::default();
    /// loop {
    ///     let page = client.read_messages("emails", query.clone()).await?;
    ///     for message in &page.messages {
    ///         println!("{} of {:?}: {} bytes", message.seq(), message.key(), message.body().len());
    ///     }
    ///     if page.next > page.last_seq {
    ///         break;
    ///     }
    ///     query.from = page.next;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_messages(&self, stream: &str, query: ReadQuery) -> Result<ReadPage, CallError> {
        let request = v1::ReadMessagesRequest {
            stream: stream.into(),
            from: query.from,
            limit: query.limit,
            key: query.key.unwrap_or_default(),
            r#type: query.kind.unwrap_or_default(),
        };
        let reply = self.grpc().read_messages(request).await?.into_inner();
        Ok(ReadPage {
            messages: reply.messages.into_iter().map(StoredMessage::from).collect(),
            next: reply.next,
            last_seq: reply.last_seq,
        })
    }
}

/// What a stream says about itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StreamReport {
    pub stream: String,
    pub settings: StreamSettings,
    pub created_at: SystemTime,
    /// The oldest message that is kept.
    pub first_seq: u64,
    /// The last message. Zero: there never was one.
    pub last_seq: u64,
    /// Messages and bytes that count against the limits.
    pub messages: u64,
    pub bytes: u64,
    /// Messages whose time has not come.
    pub delayed: u64,
    pub oldest_age: Option<Duration>,
    /// Messages published, for each second.
    pub published: v1::Rates,
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
            published: of.published.unwrap_or_default(),
            groups: of.groups,
        }
    }
}

/// Which messages of a stream to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadQuery {
    /// The first position that is wanted. Zero: the first message that is kept.
    pub from: u64,
    /// Zero means 100; at most 1000. There may be fewer, if they are large or few pass the filter.
    pub limit: u32,
    /// Only messages of this key.
    pub key: Option<String>,
    /// Only messages of this type.
    pub kind: Option<String>,
}

/// Messages of a stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadPage {
    pub messages: Vec<StoredMessage>,
    /// Where to read on. After `last_seq`: there is nothing more yet.
    pub next: u64,
    /// The last message of the stream.
    pub last_seq: u64,
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    seq: u64,
    message: v1::Message,
}

impl StoredMessage {
    pub(super) fn new(seq: u64, message: v1::Message) -> StoredMessage {
        StoredMessage { seq, message }
    }

    /// The message's position in its stream.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn body(&self) -> &Bytes {
        &self.message.body
    }

    /// The body as a payload.
    pub fn payload<T: Payload>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.message.body)
    }

    pub fn id(&self) -> Option<&str> {
        given(&self.message.id)
    }

    pub fn key(&self) -> Option<&str> {
        given(&self.message.key)
    }

    /// What the message is called.
    pub fn kind(&self) -> Option<&str> {
        given(&self.message.r#type)
    }

    /// Version of the message's type.
    pub fn schema(&self) -> Option<u64> {
        self.message.schema
    }

    pub fn priority(&self) -> u8 {
        u8::try_from(self.message.priority).unwrap_or(u8::MAX)
    }

    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.message.headers.iter().map(|header| (&*header.name, &*header.value))
    }

    /// When the message was published, as the server's clock told it.
    pub fn published_at(&self) -> SystemTime {
        convert::time(self.message.published_at_us)
    }

    /// The same as a message to publish, with nothing of when it is due.
    pub fn to_message(&self) -> crate::Message {
        crate::Message(v1::Message { published_at_us: 0, ..self.message.clone() })
    }
}

impl From<v1::StoredMessage> for StoredMessage {
    fn from(of: v1::StoredMessage) -> StoredMessage {
        StoredMessage::new(of.seq, of.message.unwrap_or_default())
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
