//! The messages of all streams, in the order in which they were published.

use forebay_wire::v1;
use tonic::Streaming;

use crate::client::Client;
use crate::error::CallError;
use crate::message::StoredMessage;

impl Client {
    /// Reads messages of all streams, in the order in which they were published, without consuming them.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::admin::log::LogQuery;
    ///
    /// let newest = LogQuery { stream_prefix: "orders-".into(), newest_first: true, limit: 10, ..LogQuery::default() };
    /// for logged in client.read_log(newest).await?.messages {
    ///     println!("{} {}: {} bytes", logged.stream, logged.message.seq(), logged.message.body().len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_log(&self, query: LogQuery) -> Result<LogPage, CallError> {
        let request = v1::ReadLogRequest {
            from: query.from,
            limit: query.limit,
            stream_prefix: query.stream_prefix,
            type_prefix: query.kind_prefix,
            key: query.key.unwrap_or_default(),
            r#type: query.kind.unwrap_or_default(),
            newest_first: query.newest_first,
        };
        let reply = self.grpc().read_log(request).await?.into_inner();
        Ok(LogPage {
            messages: reply.messages.into_iter().map(LogMessage::from).collect(),
            next: reply.next,
            last_log_position: reply.last_log_position,
        })
    }

    /// Follows all streams, or those whose names begin with a prefix: the messages that are there, in the order in
    /// which they were published, and then new ones as they arrive. Every follower gets every message. Streams that are
    /// created later are followed too. `limit` and `newest_first` of the query do not matter.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::admin::log::LogQuery;
    ///
    /// let orders = LogQuery { stream_prefix: "orders-".into(), ..LogQuery::default() };
    /// let mut follower = client.follow_log(orders).await?;
    /// while let Some(messages) = follower.next().await? {
    ///     for logged in &messages {
    ///         println!("{} {}", logged.stream, logged.message.seq());
    ///     }
    ///     // A program that stores this position goes on from there after a restart.
    ///     println!("next: {}", follower.position());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn follow_log(&self, query: LogQuery) -> Result<LogFollower, CallError> {
        self.follow(query, false).await
    }

    /// As [`Client::follow_log`], beginning with the next message that is published. `from` of the query does not
    /// matter.
    pub async fn follow_log_from_end(&self, query: LogQuery) -> Result<LogFollower, CallError> {
        self.follow(query, true).await
    }

    async fn follow(&self, query: LogQuery, new_only: bool) -> Result<LogFollower, CallError> {
        let from = if new_only { 0 } else { query.from };
        let request = v1::FollowLogRequest {
            from,
            new_only,
            stream_prefix: query.stream_prefix,
            type_prefix: query.kind_prefix,
            key: query.key.unwrap_or_default(),
            r#type: query.kind.unwrap_or_default(),
        };
        let replies = self.grpc().follow_log(request).await?.into_inner();
        Ok(LogFollower { replies, position: from })
    }
}

/// Which messages of all streams to read. All conditions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// The first position in the log to read. Zero: the oldest message that is kept, or the newest with `newest_first`.
    pub from: u64,
    /// Whether to read from `from` back to older messages.
    pub newest_first: bool,
    /// The most messages of a page, up to 1,000. Zero means 100. A page has fewer if they are large or few match.
    pub limit: u32,
    /// Only messages of streams whose names begin with this. Empty: of all streams but those of the system, whose names
    /// begin with `$`.
    pub stream_prefix: String,
    /// Only messages whose types begin with this.
    pub kind_prefix: String,
    /// Only messages with this key.
    pub key: Option<String>,
    /// Only messages of this type.
    pub kind: Option<String>,
}

/// A message, and the stream that it is in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LogMessage {
    /// The name of the stream.
    pub stream: String,
    /// The message.
    pub message: StoredMessage,
}

impl From<v1::StoredMessage> for LogMessage {
    fn from(mut of: v1::StoredMessage) -> LogMessage {
        LogMessage { stream: std::mem::take(&mut of.stream), message: StoredMessage::from(of) }
    }
}

/// Messages of all streams.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LogPage {
    /// The messages, by their positions in the log.
    pub messages: Vec<LogMessage>,
    /// Where the next page begins. Beyond `last_log_position`: there are no more messages yet. With
    /// [`newest_first`](LogQuery::newest_first), zero: there are no older messages.
    pub next: u64,
    /// The position in the log of the last message of all streams.
    pub last_log_position: u64,
}

/// A call that follows all streams. Ends when it is dropped.
#[derive(Debug)]
pub struct LogFollower {
    replies: Streaming<v1::FollowLogReply>,
    position: u64,
}

impl LogFollower {
    /// The next messages, as soon as there are some. `None` when the server has ended the call. May be dropped and
    /// called again.
    pub async fn next(&mut self) -> Result<Option<Vec<LogMessage>>, CallError> {
        let Some(reply) = self.replies.message().await? else { return Ok(None) };
        self.position = reply.next;
        Ok(Some(reply.messages.into_iter().map(LogMessage::from).collect()))
    }

    /// The position in the log to go on from after a break: [`from`](LogQuery::from) of another call.
    pub fn position(&self) -> u64 {
        self.position
    }
}
