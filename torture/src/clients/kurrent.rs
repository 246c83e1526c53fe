//! Clients of KurrentDB: writers that append with ids of events and expected revisions, consumers of persistent
//! subscriptions, and readers that catch up. They speak the protocol of KurrentDB, and know nothing of groups.

mod append;
mod consume;
mod follow;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_wire::kurrent::client::filter_options::{Expression, Filter, Window};
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::uuid::{Structured, Value};
use forebay_wire::kurrent::client::uuid_option::Content as Form;
use forebay_wire::kurrent::client::{
    AllStreamPosition, Empty, FilterOptions, MetadataEntry, RecordedEvent, StreamIdentifier, StreamOptions,
    Uuid, UuidOption,
};
use forebay_wire::kurrent::persistent_subscriptions as subscriptions;
use forebay_wire::kurrent::persistent_subscriptions::persistent_subscriptions_client::PersistentSubscriptionsClient;
use forebay_wire::kurrent::streams::read_req::Options as ReadOptions;
use forebay_wire::kurrent::streams::read_req::options::all_options::AllOption;
use forebay_wire::kurrent::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, ReadDirection, StreamOption,
};
use forebay_wire::kurrent::streams::read_resp::Content as Reply;
use forebay_wire::kurrent::streams::streams_client::StreamsClient;
use forebay_wire::kurrent::streams::{ReadReq, ReadResp};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::{ANSWER_WITHIN, CONNECT_WITHIN};
use crate::content::Content;
use crate::plan::{LOGS, Source, SubscriptionPlan};

pub(crate) use append::append;
pub(crate) use consume::consume;
pub(crate) use follow::{follow, name_of as name_of_reader};

/// The first eight bytes of the id of each event. The last eight are its number.
const ID_PREFIX: i64 = 0x4b75_7272_656e_7400;
/// The longest time that the server may take for one message of a read.
const READ_WITHIN: Duration = ANSWER_WITHIN;

/// A connection to the door of KurrentDB clients.
#[derive(Clone)]
pub(crate) struct Link {
    streams: StreamsClient<Channel>,
    subscriptions: PersistentSubscriptionsClient<Channel>,
}

/// What a subscription says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Events that wait for a consumer, or are with one.
    pub(crate) open: u64,
    pub(crate) parked: u64,
}

/// An event of a log, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) log: String,
    pub(crate) revision: u64,
    pub(crate) position: u64,
    pub(crate) number: u64,
    pub(crate) digest: u64,
}

impl Event {
    /// `None` if it is no event of this run.
    fn read(record: &RecordedEvent) -> Option<Event> {
        let log = &record.stream_identifier.as_ref()?.stream_name;
        let text = |name: &str| MetadataEntry::find(&record.metadata, name);
        Some(Event {
            log: std::str::from_utf8(log).ok()?.to_owned(),
            revision: record.stream_revision,
            position: record.commit_position,
            number: number_of(record.id.as_ref()?)?,
            digest: digest(
                record.id.as_ref()?,
                text("type")?,
                text("content-type")?,
                &record.custom_metadata,
                &record.data,
            )?,
        })
    }
}

fn id_of(number: u64) -> Uuid {
    let least_significant_bits = number as i64;
    Uuid {
        value: Some(Value::Structured(Structured {
            most_significant_bits: ID_PREFIX,
            least_significant_bits,
        })),
    }
}

fn number_of(id: &Uuid) -> Option<u64> {
    match id.value.as_ref()? {
        Value::Structured(id) if id.most_significant_bits == ID_PREFIX => {
            Some(id.least_significant_bits as u64)
        }
        _ => None,
    }
}

/// Of all that a reader sees of an event, byte for byte.
fn digest(id: &Uuid, kind: &str, content_type: &str, metadata: &[u8], data: &[u8]) -> Option<u64> {
    let header = |name: &str, value: String| (name.to_owned(), value);
    // A byte that no JSON begins with: data that is written in another way is not the same.
    let body = std::iter::once(0xFF).chain(data.iter().copied()).collect();
    let content = Content {
        id: number_of(id)?.to_string(),
        kind: kind.to_owned(),
        headers: vec![
            header("content-type", content_type.to_owned()),
            header("metadata", format!("{metadata:?}")),
        ],
        body,
        ..Content::default()
    };
    Some(content.digest())
}

fn identifier(stream: &str) -> StreamIdentifier {
    StreamIdentifier { stream_name: stream.as_bytes().to_vec().into() }
}

fn structured() -> Option<UuidOption> {
    Some(UuidOption { content: Some(Form::Structured(Empty {})) })
}

/// Events of all logs.
fn of_logs() -> FilterOptions {
    let expression = Expression { regex: String::new(), prefix: vec![LOGS.to_owned()] };
    FilterOptions {
        filter: Some(Filter::StreamIdentifier(expression)),
        window: Some(Window::Max(32)),
        checkpoint_interval_multiplier: 1,
    }
}

/// Whether a server that goes, or a connection that breaks, ends a call so. Any other end is a refusal.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Aborted
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Internal
    )
}

impl Link {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Link> {
        let endpoint = Channel::from_shared(format!("http://{address}")).context("no address")?;
        let channel = endpoint.tcp_nodelay(true).connect_timeout(CONNECT_WITHIN).connect().await?;
        let streams = StreamsClient::new(channel.clone()).max_decoding_message_size(17 << 20);
        Ok(Link { streams, subscriptions: PersistentSubscriptionsClient::new(channel) })
    }

    /// Reads a stream from one of its ends.
    async fn read(
        &mut self,
        stream: &str,
        direction: ReadDirection,
        count: CountOption,
    ) -> anyhow::Result<Streaming<ReadResp>> {
        let from = match direction {
            ReadDirection::Forwards => RevisionOption::Start(Empty {}),
            ReadDirection::Backwards => RevisionOption::End(Empty {}),
        };
        let of = StreamOptions { stream_identifier: Some(identifier(stream)), revision_option: Some(from) };
        let options = ReadOptions {
            read_direction: direction.into(),
            stream_option: Some(StreamOption::Stream(of)),
            count_option: Some(count),
            uuid_option: structured(),
            ..ReadOptions::default()
        };
        let asked = self.streams.read(ReadReq { options: Some(options) });
        let replies = tokio::time::timeout(READ_WITHIN, asked).await.context("no answer to a read")??;
        Ok(replies.into_inner())
    }

    /// All events of a log, read forwards, and the same events read backwards.
    pub(crate) async fn read_log(&mut self, log: &str) -> anyhow::Result<Vec<Event>> {
        let forwards = self.events(log, ReadDirection::Forwards, u64::MAX).await?;
        let mut backwards = self.events(log, ReadDirection::Backwards, u64::MAX).await?;
        backwards.reverse();
        if forwards != backwards {
            let (forwards, backwards) = (forwards.len(), backwards.len());
            bail!("{log} has {forwards} events forwards and not the same {backwards} backwards");
        }
        Ok(forwards)
    }

    /// How many events a log has.
    pub(crate) async fn length(&mut self, log: &str) -> anyhow::Result<u64> {
        let last = self.events(log, ReadDirection::Backwards, 1).await?;
        Ok(last.first().map_or(0, |event| event.revision + 1))
    }

    async fn events(
        &mut self,
        log: &str,
        direction: ReadDirection,
        count: u64,
    ) -> anyhow::Result<Vec<Event>> {
        let mut replies = self.read(log, direction, CountOption::Count(count)).await?;
        let mut events = Vec::new();
        loop {
            let reply = tokio::time::timeout(READ_WITHIN, replies.message()).await;
            let Some(reply) = reply.with_context(|| format!("a read of {log} does not get on"))?? else {
                return Ok(events);
            };
            if let Some(Reply::Event(read)) = reply.content {
                let event = read.event.as_ref().and_then(Event::read);
                events.push(event.with_context(|| format!("{log} has an event of no writer: {read:?}"))?);
            }
        }
    }

    /// Subscribes to events after those that the reader has seen.
    async fn subscribe(&mut self, source: Source, after: After) -> Result<Streaming<ReadResp>, Status> {
        let stream = match (source, after) {
            (Source::Log(_) | Source::Category, after) => {
                let from = match after {
                    After::Nothing => RevisionOption::Start(Empty {}),
                    After::Place(revision) => RevisionOption::Revision(revision),
                };
                let stream_identifier = Some(identifier(source.stream()));
                StreamOption::Stream(StreamOptions { stream_identifier, revision_option: Some(from) })
            }
            (Source::All, after) => {
                let from = match after {
                    After::Nothing => AllOption::Start(Empty {}),
                    After::Place(at) => {
                        AllOption::Position(AllStreamPosition { commit_position: at, prepare_position: at })
                    }
                };
                StreamOption::All(AllOptions { all_option: Some(from) })
            }
        };
        let filter = match source {
            Source::All => FilterOption::Filter(of_logs()),
            Source::Log(_) | Source::Category => FilterOption::NoFilter(Empty {}),
        };
        let options = ReadOptions {
            stream_option: Some(stream),
            resolve_links: source == Source::Category,
            count_option: Some(CountOption::Subscription(Empty {})),
            filter_option: Some(filter),
            uuid_option: structured(),
            ..ReadOptions::default()
        };
        let asked = self.streams.read(ReadReq { options: Some(options) });
        let replies = tokio::time::timeout(READ_WITHIN, asked).await;
        replies
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))
            .map(tonic::Response::into_inner)
    }

    /// Creates a subscription if it is not there, and says how it was found: `new`, `same` or `different`.
    pub(crate) async fn look_for(&mut self, plan: &SubscriptionPlan) -> anyhow::Result<&'static str> {
        use subscriptions::create_req;
        let (timeout_ms, retries) = (i32::try_from(plan.timeout_ms)?, i32::try_from(plan.retries)?);
        let settings = create_req::Settings {
            resolve_links: plan.source == Source::Category,
            max_retry_count: retries,
            min_checkpoint_count: 10,
            max_checkpoint_count: 1_000,
            live_buffer_size: 500,
            read_batch_size: 20,
            history_buffer_size: 500,
            message_timeout: Some(create_req::settings::MessageTimeout::MessageTimeoutMs(timeout_ms)),
            checkpoint_after: Some(create_req::settings::CheckpointAfter::CheckpointAfterMs(2_000)),
            consumer_strategy: plan.strategy.to_owned(),
            ..create_req::Settings::default()
        };
        let stream = match plan.source {
            Source::All => create_req::options::StreamOption::All(create_req::AllOptions {
                all_option: Some(create_req::all_options::AllOption::Start(Empty {})),
                filter_option: Some(create_req::all_options::FilterOption::Filter(of_logs())),
            }),
            Source::Log(_) | Source::Category => create_req::options::StreamOption::Stream(StreamOptions {
                stream_identifier: Some(identifier(plan.source.stream())),
                revision_option: Some(RevisionOption::Start(Empty {})),
            }),
        };
        let options = create_req::Options {
            stream_option: Some(stream),
            stream_identifier: None,
            group_name: plan.group.to_owned(),
            settings: Some(settings),
        };
        let asked = self.subscriptions.create(subscriptions::CreateReq { options: Some(options) });
        match tokio::time::timeout(ANSWER_WITHIN, asked).await.context("no answer to a create")? {
            Ok(_) => return Ok("new"),
            Err(status) if status.code() == Code::AlreadyExists => {}
            Err(status) => return Err(status).with_context(|| format!("cannot create {}", plan.name())),
        }
        let info = self.info(plan).await?;
        let is_same = info.message_timeout_milliseconds == timeout_ms
            && info.max_retry_count == retries
            && info.named_consumer_strategy == plan.strategy
            && info.resolve_link_tos == (plan.source == Source::Category);
        Ok(if is_same { "same" } else { "different" })
    }

    async fn info(&mut self, plan: &SubscriptionPlan) -> anyhow::Result<subscriptions::SubscriptionInfo> {
        use subscriptions::get_info_req::{Options, options::StreamOption};
        let stream_option = Some(match plan.source {
            Source::All => StreamOption::All(Empty {}),
            Source::Log(_) | Source::Category => {
                StreamOption::StreamIdentifier(identifier(plan.source.stream()))
            }
        });
        let options = Some(Options { group_name: plan.group.to_owned(), stream_option });
        let asked = self.subscriptions.get_info(subscriptions::GetInfoReq { options });
        let answer =
            tokio::time::timeout(ANSWER_WITHIN, asked).await.context("no answer about a group")??;
        answer.into_inner().subscription_info.with_context(|| format!("no info about {}", plan.name()))
    }

    /// How a subscription stands.
    pub(crate) async fn standing(&mut self, plan: &SubscriptionPlan) -> anyhow::Result<Standing> {
        let info = self.info(plan).await?;
        let counts = [info.read_buffer_count, info.retry_buffer_count, info.outstanding_messages_count];
        let open = counts.into_iter().map(|count| u64::try_from(count).unwrap_or_default()).sum();
        Ok(Standing { open, parked: u64::try_from(info.parked_message_count)? })
    }

    /// Asks for all parked events to be delivered again.
    pub(crate) async fn replay_parked(&mut self, plan: &SubscriptionPlan) -> anyhow::Result<()> {
        use subscriptions::replay_parked_req::options::{StopAtOption, StreamOption};
        let stream_option = Some(match plan.source {
            Source::All => StreamOption::All(Empty {}),
            Source::Log(_) | Source::Category => {
                StreamOption::StreamIdentifier(identifier(plan.source.stream()))
            }
        });
        let options = subscriptions::replay_parked_req::Options {
            group_name: plan.group.to_owned(),
            stream_option,
            stop_at_option: Some(StopAtOption::NoLimit(Empty {})),
        };
        let asked =
            self.subscriptions.replay_parked(subscriptions::ReplayParkedReq { options: Some(options) });
        tokio::time::timeout(ANSWER_WITHIN, asked).await.context("no answer to a replay")??;
        Ok(())
    }
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Nothing,
    /// A revision of a stream, or a position in `$all`.
    Place(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_recognised_by_all_that_a_reader_sees() {
        let whole = |number| digest(&id_of(number), "work", "application/json", b"{}", b"{\"a\":1}");
        assert_eq!(whole(7), whole(7));
        for other in [
            whole(8),
            digest(&id_of(7), "other", "application/json", b"{}", b"{\"a\":1}"),
            digest(&id_of(7), "work", "application/octet-stream", b"{}", b"{\"a\":1}"),
            digest(&id_of(7), "work", "application/json", b"", b"{\"a\":1}"),
            // The same JSON, and not the same bytes.
            digest(&id_of(7), "work", "application/json", b"{}", b"{\"a\": 1}"),
        ] {
            assert_ne!(other, whole(7));
        }
        assert_eq!(number_of(&id_of(7)), Some(7));
        assert_eq!(number_of(&Uuid { value: Some(Value::String("7".to_owned())) }), None);
    }
}
