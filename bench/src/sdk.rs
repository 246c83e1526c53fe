//! What the SDK costs: a worker whose handler does nothing, beside a bare consumer that acks what it gets.
//!
//! A backlog is published, and then drained: by a worker, and by one call of `Consume` that sends the runs back as
//! they came. Both have the same credit, and take turns on the same server. The distance between the two is what
//! typed handlers, lanes, leases and the desk cost; processor time is that of this process, which is the client's.

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_client::{Client, Fault, GroupSettings, Job, Payload, Strategy, Worker};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::arguments::Arguments;
use crate::measure::median;
use crate::server::{self, Server};

const BATCH: u64 = 500;
const KEYS: u64 = 100_000;
/// What a worker holds at most for handlers that take no time at all.
const CREDIT: u32 = 2_048;
const STREAM: &str = "bench";

/// A message of about a hundred bytes.
#[derive(Serialize, Deserialize)]
struct Empty {
    n: u64,
    padding: String,
}

impl Payload for Empty {
    const TYPE: &'static str = "empty";
}

async fn handle(_: (), _: Job<Empty>) -> Result<(), Fault> {
    Ok(())
}

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let messages = arguments.number("messages", 400_000)?;
    let rounds = arguments.number("rounds", 3)?;
    let concurrency = arguments.number("concurrency", 8)? as usize;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!(
        "{messages} messages of 100 bytes drained; processor time of the client and of the server for each"
    );
    println!("{:>10} {:>30} {:>30} {:>7}", "group", "worker", "bare consumer", "ratio");
    for ordered in [false, true] {
        let (mut workers, mut bares) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for by_worker in [true, false] {
                let _ = std::fs::remove_dir_all(&folder);
                let server = Server::serve(&program, &folder)?;
                let figure = runtime.block_on(async {
                    let client = Client::connect(&*server.address).await?;
                    fill(&client, messages, ordered).await?;
                    let before = Before::now(&server);
                    match by_worker {
                        true => work(&client, messages, concurrency).await?,
                        false => consume(&client, messages).await?,
                    }
                    Ok::<Figure, Box<dyn Error>>(before.until_now(&server, messages))
                })?;
                if by_worker { &mut workers } else { &mut bares }.push(figure);
            }
        }
        let (worker, bare) = (Figure::median(&workers), Figure::median(&bares));
        let group = if ordered { "ordered" } else { "unordered" };
        println!("{group:>10} {worker:>30} {bare:>30} {:>7.2}", worker.rate / bare.rate);
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

struct Before {
    at: Instant,
    client: f64,
    server: f64,
}

impl Before {
    fn now(server: &Server) -> Before {
        let client = server::cpu_seconds(std::process::id());
        Before { at: Instant::now(), client, server: server.cpu_seconds() }
    }

    fn until_now(&self, server: &Server, messages: u64) -> Figure {
        let each = |seconds: f64| seconds * 1e6 / messages as f64;
        Figure {
            rate: messages as f64 / self.at.elapsed().as_secs_f64(),
            client: each(server::cpu_seconds(std::process::id()) - self.client),
            server: each(server.cpu_seconds() - self.server),
        }
    }
}

struct Figure {
    rate: f64,
    /// Microseconds of processor time for each message.
    client: f64,
    server: f64,
}

impl Figure {
    fn median(of: &[Figure]) -> Figure {
        let middle = |value: fn(&Figure) -> f64| median(&mut of.iter().map(value).collect::<Vec<_>>());
        Figure { rate: middle(|of| of.rate), client: middle(|of| of.client), server: middle(|of| of.server) }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.0}/s {:.2} + {:.2} µs", self.rate, self.client, self.server))
    }
}

async fn fill(client: &Client, messages: u64, ordered: bool) -> Result<(), Box<dyn Error>> {
    let settings = GroupSettings::new();
    let settings = if ordered { settings.strategy(Strategy::Ordered) } else { settings };
    client.create_group(STREAM, STREAM, settings).await?;
    let message = move |n: u64| {
        let empty = Empty { n, padding: "x".repeat(80) };
        let body = Bytes::from(serde_json::to_vec(&empty).expect("it is plain"));
        let key = if ordered { format!("key-{}", n % KEYS) } else { String::new() };
        v1::Message { body, key, r#type: Empty::TYPE.to_owned(), ..Default::default() }
    };
    let (requests, sent) = mpsc::channel(16);
    tokio::spawn(async move {
        for ticket in 0..messages.div_ceil(BATCH) {
            let of = ticket * BATCH..((ticket + 1) * BATCH).min(messages);
            let messages = of.map(message).collect();
            let request =
                v1::PublishRequest { stream: STREAM.to_owned(), messages, ticket, ..Default::default() };
            if requests.send(request).await.is_err() {
                return;
            }
        }
    });
    let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
    let mut replies = bare(client).await?.publish(sent).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        if let Some(problem) = reply.confirmations.into_iter().find_map(|of| of.problem) {
            return Err(problem.detail.into());
        }
    }
    Ok(())
}

/// The generated client, without the SDK.
async fn bare(client: &Client) -> Result<ForebayClient<Channel>, Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", client.server()))?;
    let endpoint = endpoint
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(256 << 10);
    Ok(ForebayClient::new(endpoint.connect().await?).max_decoding_message_size(64 << 20))
}

async fn work(client: &Client, messages: u64, concurrency: usize) -> Result<(), Box<dyn Error>> {
    let prefetch = CREDIT as usize - concurrency;
    let worker =
        Worker::builder(client.clone(), STREAM, STREAM, ()).concurrency(concurrency).prefetch(prefetch);
    let worker = worker.on(handle).start().await?;
    while worker.stats().acked < messages {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.shutdown().await?;
    Ok(())
}

async fn consume(client: &Client, messages: u64) -> Result<(), Box<dyn Error>> {
    let (requests, sent) = mpsc::unbounded_channel();
    let (stream, group) = (STREAM.to_owned(), STREAM.to_owned());
    let open = v1::Open { stream, group, consumer: "bare".to_owned(), credit: CREDIT, ..Default::default() };
    requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() })?;
    let mut replies = bare(client).await?.consume(UnboundedReceiverStream::new(sent)).await?.into_inner();
    let mut acked = 0;
    while acked < messages {
        let reply = replies.message().await?.ok_or("the server closed the call")?;
        let outcomes = reply.settled.iter().flat_map(|settled| &settled.outcomes);
        acked += outcomes.map(|run| u64::from(run.count.max(1))).sum::<u64>();
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
        requests.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() })?;
    }
    Ok(())
}
