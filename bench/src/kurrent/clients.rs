//! The same work over both doors. Each client has a connection of its own.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::uuid::{Structured, Value};
use forebay_wire::kurrent::client::uuid_option::Content as Form;
use forebay_wire::kurrent::client::{
    Empty, MetadataEntry, StreamIdentifier, StreamOptions, Uuid, UuidOption,
};
use forebay_wire::kurrent::persistent_subscriptions as subscriptions;
use forebay_wire::kurrent::persistent_subscriptions::persistent_subscriptions_client::PersistentSubscriptionsClient;
use forebay_wire::kurrent::streams::append_req::Content as AppendContent;
use forebay_wire::kurrent::streams::append_resp::Result as AppendResult;
use forebay_wire::kurrent::streams::batch_append_resp::Result as Appended;
use forebay_wire::kurrent::streams::read_req::Options as ReadOptions;
use forebay_wire::kurrent::streams::read_req::options::{CountOption, StreamOption};
use forebay_wire::kurrent::streams::read_resp::Content;
use forebay_wire::kurrent::streams::streams_client::StreamsClient;
use forebay_wire::kurrent::streams::write_options::Expected;
use forebay_wire::kurrent::streams::{AppendReq, BatchAppendReq, ProposedMessage, ReadReq, WriteOptions};
use forebay_wire::v1;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

use super::Figure;
use crate::e2e::clients::connect;
use crate::server::Server;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The log that is read and worked off.
const LOG: &str = "bench-log";
const KIND: &str = "OrderPlaced";
const PRODUCERS: usize = 2;
/// Events that a producer has sent and not yet got confirmed.
const WINDOW: u64 = 1_024;
/// Calls of one event that a producer has at a time.
const CALLS: usize = 256;
/// Events that a consumer holds.
const BUFFER: u32 = 2_048;
/// Events that a Kurrent consumer acks at a time.
const ACKED: usize = 64;
/// Time at the beginning that is not measured.
const WARM_UP: Duration = Duration::from_millis(300);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Kurrent,
    Native,
}

/// Numbers that are given once: of events, streams and groups.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

async fn channel(server: &Server) -> Outcome<Channel> {
    let address = server.kurrent.as_ref().ok_or("the server does not serve Kurrent")?;
    let endpoint = Channel::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(256 << 10);
    Ok(endpoint.connect().await?)
}

async fn native(server: &Server) -> Outcome<v1::forebay_client::ForebayClient<Channel>> {
    connect(&server.address).await.map_err(|error| error.to_string().into())
}

fn identifier(stream: &str) -> StreamIdentifier {
    StreamIdentifier { stream_name: Bytes::copy_from_slice(stream.as_bytes()) }
}

fn uuid(number: u64) -> Uuid {
    let value = Structured { most_significant_bits: 7, least_significant_bits: number as i64 };
    Uuid { value: Some(Value::Structured(value)) }
}

fn structured() -> Option<UuidOption> {
    Some(UuidOption { content: Some(Form::Structured(Empty {})) })
}

fn event(body: &Bytes) -> ProposedMessage {
    ProposedMessage {
        id: Some(uuid(number())),
        metadata: vec![
            MetadataEntry::new("type", KIND),
            MetadataEntry::new("content-type", "application/json"),
        ],
        custom_metadata: Bytes::new(),
        data: body.clone(),
    }
}

fn body(size: usize) -> Bytes {
    Bytes::from(vec![b'x'; size])
}

/// Appends events to the log that is read and worked off.
pub(crate) async fn fill(server: &Server, size: usize, events: u64) -> Outcome<()> {
    let done = Arc::new(AtomicU64::new(0));
    append_by(server, LOG.to_owned(), body(size), 64, Some(events), done.clone()).await?;
    let left = events - done.load(Ordering::Relaxed);
    if left > 0 {
        return Err(format!("{left} events are missing in the log").into());
    }
    Ok(())
}

/// Appends to a stream until so many events are confirmed, or for ever.
async fn append_by(
    server: &Server,
    stream: String,
    body: Bytes,
    batch: u64,
    most: Option<u64>,
    done: Arc<AtomicU64>,
) -> Outcome<()> {
    let mut client = StreamsClient::new(channel(server).await?);
    let (requests, sent) = mpsc::unbounded_channel();
    let mut left = most.unwrap_or(u64::MAX);
    let mut counts = std::collections::HashMap::new();
    let mut send = |counts: &mut std::collections::HashMap<u64, u64>| {
        let count = batch.min(left);
        if count == 0 {
            return;
        }
        left -= count;
        let options = WriteOptions {
            stream_identifier: Some(identifier(&stream)),
            expected: Some(Expected::Any(Empty {})),
            deadline_option: None,
        };
        let write = number();
        counts.insert(write, count);
        let _ = requests.send(BatchAppendReq {
            correlation_id: Some(uuid(write)),
            options: Some(options),
            proposed_messages: (0..count).map(|_| event(&body)).collect(),
            is_final: true,
        });
    };
    for _ in 0..(WINDOW / batch).max(1) {
        send(&mut counts);
    }
    let mut replies = client.batch_append(UnboundedReceiverStream::new(sent)).await?.into_inner();
    while !counts.is_empty()
        && let Some(reply) = replies.message().await?
    {
        let Some(Appended::Success(_)) = reply.result else {
            return Err(format!("an append was answered {reply:?}").into());
        };
        let write = match reply.correlation_id.and_then(|id| id.value) {
            Some(Value::Structured(id)) => id.least_significant_bits as u64,
            _ => return Err("an answer without a name".into()),
        };
        done.fetch_add(counts.remove(&write).unwrap_or(0), Ordering::Relaxed);
        send(&mut counts);
    }
    Ok(())
}

async fn publish_by(
    server: &Server,
    stream: String,
    body: Bytes,
    batch: u64,
    done: Arc<AtomicU64>,
) -> Outcome<()> {
    let mut client = native(server).await?;
    let (requests, sent) = mpsc::unbounded_channel();
    let message = v1::Message { body, r#type: KIND.to_owned(), ..Default::default() };
    let messages = vec![message; batch as usize];
    let mut ticket = 0;
    let mut send = || {
        ticket += 1;
        let stream = if ticket == 1 { stream.clone() } else { String::new() };
        let request = v1::PublishRequest { stream, messages: messages.clone(), ticket, ..Default::default() };
        requests.send(request).is_ok()
    };
    for _ in 0..(WINDOW / batch).max(1) {
        send();
    }
    let mut replies = client.publish(UnboundedReceiverStream::new(sent)).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        for confirmation in reply.confirmations {
            if let Some(problem) = confirmation.problem {
                return Err(problem.detail.into());
            }
            done.fetch_add(batch, Ordering::Relaxed);
            send();
        }
    }
    Ok(())
}

/// Appends with one call for each event, many calls at a time on one connection.
async fn append_calls(server: &Server, stream: String, body: Bytes, done: Arc<AtomicU64>) -> Outcome<()> {
    let client = StreamsClient::new(channel(server).await?);
    let options = WriteOptions {
        stream_identifier: Some(identifier(&stream)),
        expected: Some(Expected::Any(Empty {})),
        deadline_option: None,
    };
    many_calls(done, || {
        let (mut client, options, body) = (client.clone(), options.clone(), body.clone());
        async move {
            let requests = [AppendContent::Options(options), AppendContent::ProposedMessage(event(&body))];
            let requests = requests.map(|content| AppendReq { content: Some(content) });
            let reply = client.append(tokio_stream::iter(requests)).await?.into_inner();
            match reply.result {
                Some(AppendResult::Success(_)) => Ok(()),
                _ => Err(format!("an append was answered {reply:?}").into()),
            }
        }
    })
    .await
}

async fn publish_calls(server: &Server, stream: String, body: Bytes, done: Arc<AtomicU64>) -> Outcome<()> {
    let client = native(server).await?;
    let message = v1::Message { body, r#type: KIND.to_owned(), ..Default::default() };
    let request = v1::PublishRequest { stream, messages: vec![message], ..Default::default() };
    many_calls(done, || {
        let (mut client, request) = (client.clone(), request.clone());
        async move {
            client.publish_once(request).await?;
            Ok(())
        }
    })
    .await
}

/// Makes calls, so many at a time, until one fails.
async fn many_calls<F>(done: Arc<AtomicU64>, call: impl Fn() -> F) -> Outcome<()>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let mut calls = JoinSet::new();
    loop {
        while calls.len() < CALLS {
            calls.spawn(call());
        }
        if let Some(ended) = calls.join_next().await {
            ended??;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Appends for a while, to a stream of its own.
pub(crate) async fn append(
    server: &Server,
    door: Door,
    size: usize,
    batch: u64,
    lasts: Duration,
) -> Outcome<Figure> {
    producing(server, size, lasts, async |stream, body, done| match door {
        Door::Kurrent => append_by(server, stream, body, batch, None, done).await,
        Door::Native => publish_by(server, stream, body, batch, done).await,
    })
    .await
}

/// Appends for a while, one event with each call.
pub(crate) async fn calls(server: &Server, door: Door, size: usize, lasts: Duration) -> Outcome<Figure> {
    producing(server, size, lasts, async |stream, body, done| match door {
        Door::Kurrent => append_calls(server, stream, body, done).await,
        Door::Native => publish_calls(server, stream, body, done).await,
    })
    .await
}

/// Lets producers work for a while, on a stream of their own.
async fn producing(
    server: &Server,
    size: usize,
    lasts: Duration,
    one: impl AsyncFn(String, Bytes, Arc<AtomicU64>) -> Outcome<()>,
) -> Outcome<Figure> {
    let stream = format!("bench-{}", number());
    // The stream keeps every event, whichever door it is written through.
    append_by(server, stream.clone(), body(size), 1, Some(1), Arc::default()).await?;
    let done = Arc::new(AtomicU64::new(0));
    let work = async {
        let one = || one(stream.clone(), body(size), done.clone());
        const { assert!(PRODUCERS == 2, "as many as are joined here") };
        tokio::try_join!(one(), one()).map(|_| ())
    };
    let watch = async {
        tokio::time::sleep(WARM_UP).await;
        let (before, cpu, started) = (done.load(Ordering::Relaxed), server.cpu_seconds(), Instant::now());
        tokio::time::sleep(lasts).await;
        figure(server, done.load(Ordering::Relaxed) - before, cpu, started)
    };
    tokio::select! {
        ended = work => ended.and(Err("the producers came to an end".into())),
        figure = watch => Ok(figure),
    }
}

fn figure(server: &Server, events: u64, cpu: f64, started: Instant) -> Figure {
    let took = started.elapsed().as_secs_f64();
    Figure { rate: events as f64 / took, cpu: (server.cpu_seconds() - cpu) * 1e6 / events as f64 }
}

/// Reads the log from its first event, as a reader that then waits for more.
pub(crate) async fn catch_up(server: &Server, door: Door, events: u64) -> Outcome<Figure> {
    let mut seen = 0;
    match door {
        Door::Kurrent => {
            let mut client = StreamsClient::new(channel(server).await?).max_decoding_message_size(17 << 20);
            let of = StreamOptions {
                stream_identifier: Some(identifier(LOG)),
                revision_option: Some(RevisionOption::Start(Empty {})),
            };
            let options = ReadOptions {
                stream_option: Some(StreamOption::Stream(of)),
                count_option: Some(CountOption::Subscription(Empty {})),
                uuid_option: structured(),
                ..ReadOptions::default()
            };
            let (cpu, started) = (server.cpu_seconds(), Instant::now());
            let mut replies = client.read(ReadReq { options: Some(options) }).await?.into_inner();
            while seen < events
                && let Some(reply) = replies.message().await?
            {
                seen += u64::from(matches!(reply.content, Some(Content::Event(_))));
            }
            ended(server, seen, events, cpu, started)
        }
        Door::Native => {
            let mut client = native(server).await?;
            let request = v1::FollowStreamRequest { stream: LOG.to_owned(), ..Default::default() };
            let (cpu, started) = (server.cpu_seconds(), Instant::now());
            let mut replies = client.follow_stream(request).await?.into_inner();
            while seen < events
                && let Some(reply) = replies.message().await?
            {
                seen += reply.messages.len() as u64;
            }
            ended(server, seen, events, cpu, started)
        }
    }
}

fn ended(server: &Server, seen: u64, events: u64, cpu: f64, started: Instant) -> Outcome<Figure> {
    if seen < events {
        return Err(format!("{seen} of {events} events came").into());
    }
    Ok(figure(server, events, cpu, started))
}

/// Consumes and acks all events of the log, as a new group.
pub(crate) async fn work_off(server: &Server, door: Door, consumers: usize, events: u64) -> Outcome<Figure> {
    let group = format!("group-{}", number());
    create(server, door, &group).await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut all = JoinSet::new();
    let (cpu, started) = (server.cpu_seconds(), Instant::now());
    for _ in 0..consumers {
        match door {
            Door::Kurrent => {
                let client = PersistentSubscriptionsClient::new(channel(server).await?);
                all.spawn(consume(client, group.clone(), done.clone()));
            }
            Door::Native => {
                let client = native(server).await?;
                all.spawn(consume_natively(client, group.clone(), done.clone()));
            }
        }
    }
    while done.load(Ordering::Relaxed) < events {
        if let Some(ended) = all.try_join_next() {
            ended??;
            return Err("a consumer came to an end".into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let figure = figure(server, events, cpu, started);
    all.shutdown().await;
    let mut client = native(server).await?;
    client.delete_group(v1::DeleteGroupRequest { stream: LOG.to_owned(), group }).await?;
    Ok(figure)
}

async fn create(server: &Server, door: Door, group: &str) -> Outcome<()> {
    use subscriptions::create_req::settings::{CheckpointAfter, MessageTimeout};
    use subscriptions::create_req::{Options, Settings, options::StreamOption};
    if door == Door::Native {
        let request =
            v1::CreateGroupRequest { stream: LOG.to_owned(), group: group.to_owned(), ..Default::default() };
        native(server).await?.create_group(request).await?;
        return Ok(());
    }
    let of = StreamOptions {
        stream_identifier: Some(identifier(LOG)),
        revision_option: Some(RevisionOption::Start(Empty {})),
    };
    let settings = Settings {
        max_retry_count: 10,
        min_checkpoint_count: 10,
        max_checkpoint_count: 1_000,
        live_buffer_size: 500,
        read_batch_size: 20,
        history_buffer_size: 20_000,
        message_timeout: Some(MessageTimeout::MessageTimeoutMs(30_000)),
        checkpoint_after: Some(CheckpointAfter::CheckpointAfterMs(2_000)),
        consumer_strategy: "RoundRobin".to_owned(),
        ..Settings::default()
    };
    let options = Options {
        stream_option: Some(StreamOption::Stream(of)),
        group_name: group.to_owned(),
        settings: Some(settings),
        stream_identifier: None,
    };
    let mut client = PersistentSubscriptionsClient::new(channel(server).await?);
    client.create(subscriptions::CreateReq { options: Some(options) }).await?;
    Ok(())
}

async fn consume(
    mut client: PersistentSubscriptionsClient<Channel>,
    group_name: String,
    done: Arc<AtomicU64>,
) -> Outcome<()> {
    use subscriptions::read_req::{self, Ack, Options, options::StreamOption};
    use subscriptions::{ReadReq, read_resp};
    let (requests, sent) = mpsc::unbounded_channel();
    let options = Options {
        group_name,
        buffer_size: i32::try_from(BUFFER)?,
        uuid_option: structured(),
        stream_option: Some(StreamOption::StreamIdentifier(identifier(LOG))),
    };
    requests.send(ReadReq { content: Some(read_req::Content::Options(options)) })?;
    let mut replies = client.read(UnboundedReceiverStream::new(sent)).await?.into_inner();
    let mut ids = Vec::new();
    while let Some(reply) = replies.message().await? {
        let Some(read_resp::Content::Event(read)) = reply.content else { continue };
        ids.extend(read.event.and_then(|event| event.id));
        done.fetch_add(1, Ordering::Relaxed);
        if ids.len() >= ACKED {
            let ack = Ack { ids: std::mem::take(&mut ids), ..Ack::default() };
            requests.send(ReadReq { content: Some(read_req::Content::Ack(ack)) })?;
        }
    }
    Ok(())
}

async fn consume_natively(
    mut client: v1::forebay_client::ForebayClient<Channel>,
    group: String,
    done: Arc<AtomicU64>,
) -> Outcome<()> {
    let (requests, sent) = mpsc::unbounded_channel();
    let open = v1::Open {
        stream: LOG.to_owned(),
        group,
        consumer: "bench".to_owned(),
        credit: BUFFER,
        ..Default::default()
    };
    requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() })?;
    let mut replies = client.consume(UnboundedReceiverStream::new(sent)).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        let Some(deliveries) = reply.deliveries else { continue };
        let leases: Vec<v1::LeaseRun> = deliveries
            .runs
            .iter()
            .map(|run| v1::LeaseRun {
                first_seq: run.first_seq,
                first_grant: run.first_grant,
                count: run.count,
            })
            .collect();
        let count: u64 = leases.iter().map(|run| u64::from(run.count)).sum();
        done.fetch_add(count, Ordering::Relaxed);
        let settlement = v1::Settlement {
            action: v1::settlement::Action::Ack.into(),
            epoch: deliveries.epoch,
            leases,
            ..Default::default()
        };
        requests.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() })?;
    }
    Ok(())
}
