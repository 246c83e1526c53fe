//! Producers and consumers, each on a connection of its own.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

const PRODUCERS: usize = 2;
const CONSUMERS: usize = 4;
/// Messages that a producer has sent and not yet got confirmed.
const WINDOW: usize = 1_024;
/// Time at the beginning that is not measured.
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) struct Workload {
    pub(crate) size: usize,
    pub(crate) batch: usize,
    pub(crate) credit: u32,
    pub(crate) lasts: Duration,
}

pub(crate) struct Measured {
    pub(crate) acked: u64,
    pub(crate) took: Duration,
    /// Seconds of processor time of the server.
    pub(crate) cpu: f64,
}

pub(crate) fn run(
    address: &str,
    workload: &Workload,
    cpu_seconds: impl Fn() -> f64,
) -> Result<Measured, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measured = runtime.block_on(async {
        let mut first = connect(address).await?;
        let group = v1::CreateGroupRequest {
            stream: "bench".to_owned(),
            group: "bench".to_owned(),
            ..Default::default()
        };
        first.create_group(group).await?;
        let acked = Arc::new(AtomicU64::new(0));
        for _ in 0..CONSUMERS {
            // Every consumer is there before the first message is.
            let (requests, replies) = open(connect(address).await?, workload.credit).await?;
            tokio::spawn(consume(requests, replies, acked.clone()));
        }
        for _ in 0..PRODUCERS {
            let client = connect(address).await?;
            tokio::spawn(produce(client, workload.size, workload.batch));
        }
        tokio::time::sleep(WARM_UP).await;
        let (before, cpu, started) = (acked.load(Ordering::Relaxed), cpu_seconds(), Instant::now());
        tokio::time::sleep(workload.lasts).await;
        let acked = acked.load(Ordering::Relaxed) - before;
        if acked == 0 {
            return Err("nothing came through".into());
        }
        Ok(Measured { acked, took: started.elapsed(), cpu: cpu_seconds() - cpu })
    });
    runtime.shutdown_background();
    measured
}

pub(crate) async fn connect(address: &str) -> Result<ForebayClient<Channel>, Box<dyn Error>> {
    let endpoint = Channel::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(256 << 10);
    Ok(ForebayClient::new(endpoint.connect().await?).max_decoding_message_size(64 << 20))
}

async fn produce(mut client: ForebayClient<Channel>, size: usize, batch: usize) {
    let (requests, sent) = mpsc::unbounded_channel();
    let message = v1::Message { body: Bytes::from(vec![b'x'; size]), ..Default::default() };
    let messages = vec![message; batch];
    let mut ticket = 0;
    let mut send = || {
        ticket += 1;
        let stream = if ticket == 1 { "bench".to_owned() } else { String::new() };
        requests
            .send(v1::PublishRequest { stream, messages: messages.clone(), ticket, ..Default::default() })
            .is_ok()
    };
    for _ in 0..(WINDOW / batch).max(1) {
        send();
    }
    let Ok(replies) = client.publish(UnboundedReceiverStream::new(sent)).await else { return };
    let mut replies = replies.into_inner();
    while let Ok(Some(reply)) = replies.message().await {
        for confirmation in reply.confirmations {
            if let Some(problem) = confirmation.problem {
                eprintln!("refused: {}", problem.detail);
                return;
            }
            if !send() {
                return;
            }
        }
    }
}

pub(crate) type Requests = mpsc::UnboundedSender<v1::ConsumeRequest>;

pub(crate) async fn open(
    mut client: ForebayClient<Channel>,
    credit: u32,
) -> Result<(Requests, Streaming<v1::ConsumeReply>), Box<dyn Error>> {
    let (requests, sent) = mpsc::unbounded_channel();
    let (stream, group) = ("bench".to_owned(), "bench".to_owned());
    let open = v1::Open { stream, group, consumer: "bench".to_owned(), credit, ..Default::default() };
    requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() })?;
    let replies = client.consume(UnboundedReceiverStream::new(sent)).await?.into_inner();
    Ok((requests, replies))
}

async fn consume(requests: Requests, mut replies: Streaming<v1::ConsumeReply>, acked: Arc<AtomicU64>) {
    while let Ok(Some(reply)) = replies.message().await {
        let done = reply.settled.iter().flat_map(|settled| &settled.outcomes);
        let done = done.filter(|run| run.outcome() == v1::outcome_run::Outcome::Acked);
        acked.fetch_add(done.map(|run| u64::from(run.count)).sum(), Ordering::Relaxed);
        let Some(deliveries) = reply.deliveries else { continue };
        let leases = deliveries.runs.iter().map(|run| v1::LeaseRun {
            first_seq: run.first_seq,
            first_grant: run.first_grant,
            count: run.count,
        });
        let settlement = v1::Settlement {
            action: v1::settlement::Action::Ack.into(),
            epoch: deliveries.epoch,
            leases: leases.collect(),
            ..Default::default()
        };
        let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
        if requests.send(request).is_err() {
            return;
        }
    }
}
