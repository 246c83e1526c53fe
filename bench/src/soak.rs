//! The server at a steady rate for a long time: memory, open files and disk must stay flat.
//!
//! Producers publish at a fixed rate, some of it with ids, keys, delays and priorities; consumers ack most of
//! it, fail some and park a little, which is replayed now and then. Every few seconds the server is looked at.
//! In the end the last quarter is compared with the second one: whatever grows, shows.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_wire::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::arguments::Arguments;
use crate::e2e::clients::{connect, open};
use crate::measure::median;
use crate::server::{self, Server, folder_bytes};

const CONSUMERS: usize = 4;
const CREDIT: u32 = 256;
/// A producer's batches in a second.
const BEATS: u64 = 50;
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// One message in so many fails at its first attempt, and at every attempt.
const FAILS: u64 = 97;
/// How much a figure may grow from the second quarter to the last, beside a little for noise.
const GROWTH_MAX: f64 = 1.10;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let minutes = arguments.number("minutes", 60)?;
    let rate = arguments.number("rate", 5_000)?;
    let size = arguments.number("body", 256)? as usize;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let _ = std::fs::remove_dir_all(&folder);
    let server = Server::serve(&program, &folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let counts = Arc::new(Counts::default());
    runtime.block_on(start(&server.address, rate, size, &counts))?;
    println!("{rate} messages a second of {size} bytes for {minutes} minutes");
    println!(
        "{:>8} {:>10} {:>8} {:>8} {:>10} {:>10} {:>8}",
        "minute", "acked/s", "lag", "files", "memory", "disk", "CPU"
    );
    let mut samples: Vec<Sample> = Vec::new();
    let (began, mut last) = (Instant::now(), (0, server.cpu_seconds()));
    while began.elapsed() < Duration::from_secs(minutes * 60) {
        std::thread::sleep(LOOK_EVERY);
        let (acked, published) =
            (counts.acked.load(Ordering::Relaxed), counts.published.load(Ordering::Relaxed));
        let cpu = server.cpu_seconds();
        let sample = Sample {
            rate: (acked - last.0) as f64 / LOOK_EVERY.as_secs_f64(),
            lag: published.saturating_sub(acked) as f64,
            files: server.open_files() as f64,
            memory: (server.memory()?.resident >> 10) as f64,
            disk: (folder_bytes(&folder) >> 20) as f64,
            cpu: (cpu - last.1) / LOOK_EVERY.as_secs_f64() * 100.0,
        };
        last = (acked, cpu);
        if samples.len().is_multiple_of(6) {
            sample.print(began.elapsed().as_secs_f64() / 60.0);
        }
        samples.push(sample);
        if counts.failed.load(Ordering::Relaxed) > 0 {
            return Err("a client lost its call".into());
        }
    }
    verdict(&samples)?;
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

#[derive(Default)]
struct Counts {
    published: AtomicU64,
    acked: AtomicU64,
    /// Calls that ended by themselves.
    failed: AtomicU64,
}

struct Sample {
    rate: f64,
    lag: f64,
    files: f64,
    /// Mebibytes.
    memory: f64,
    disk: f64,
    /// Percent of a core.
    cpu: f64,
}

impl Sample {
    fn print(&self, minute: f64) {
        println!(
            "{minute:>8.1} {:>10.0} {:>8.0} {:>8.0} {:>10} {:>10} {:>8}",
            self.rate,
            self.lag,
            self.files,
            format!("{:.0} MiB", self.memory),
            format!("{:.0} MiB", self.disk),
            format!("{:.1} %", self.cpu)
        );
    }
}

type Figure = fn(&Sample) -> f64;

/// Compares the last quarter with the second: by then everything has been made that is made once.
fn verdict(samples: &[Sample]) -> Result<(), Box<dyn Error>> {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        return Err("too short to tell".into());
    }
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    let figures: [(&str, Figure, f64); 4] = [
        ("memory, MiB", |sample| sample.memory, 8.0),
        ("open files", |sample| sample.files, 4.0),
        ("disk, MiB", |sample| sample.disk, 192.0),
        ("lag", |sample| sample.lag, 5_000.0),
    ];
    let mut grown = Vec::new();
    println!("{:>12} {:>12} {:>12}", "", "2nd quarter", "last quarter");
    for (name, figure, noise) in figures {
        let of = |samples: &[Sample]| median(&mut samples.iter().map(figure).collect::<Vec<f64>>());
        let (before, after) = (of(early), of(late));
        println!("{name:>12} {before:>12.0} {after:>12.0}");
        if after > before * GROWTH_MAX + noise {
            grown.push(name);
        }
    }
    if grown.is_empty() { Ok(()) } else { Err(format!("not flat: {}", grown.join("; ")).into()) }
}

async fn start(address: &str, rate: u64, size: usize, counts: &Arc<Counts>) -> Result<(), Box<dyn Error>> {
    let mut client = connect(address).await?;
    let settings = v1::GroupSettings {
        max_retries: Some(v1::Retries { retries: Some(v1::retries::Retries::AtMost(2)) }),
        on_exhausted: Some(v1::OnExhausted { then: Some(v1::on_exhausted::Then::Skip(true)) }),
        ..Default::default()
    };
    let (stream, group) = ("bench".to_owned(), "bench".to_owned());
    let create = v1::CreateGroupRequest { stream, group, settings: Some(settings), ..Default::default() };
    client.create_group(create).await?;
    for _ in 0..CONSUMERS {
        let (requests, replies) = open(connect(address).await?, CREDIT).await?;
        let counts = counts.clone();
        tokio::spawn(async move {
            let ended = consume(requests, replies, &counts).await;
            eprintln!("soak: a consumer ended: {ended:?}");
            counts.failed.fetch_add(1, Ordering::Relaxed);
        });
    }
    let client = connect(address).await?;
    let counts = counts.clone();
    tokio::spawn(async move {
        let ended = produce(client, rate, size, &counts).await;
        eprintln!("soak: the producer ended: {ended:?}");
        counts.failed.fetch_add(1, Ordering::Relaxed);
    });
    Ok(())
}

type Client = v1::forebay_client::ForebayClient<tonic::transport::Channel>;

async fn produce(
    mut client: Client,
    rate: u64,
    size: usize,
    counts: &Counts,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (requests, sent) = mpsc::unbounded_channel();
    let body = Bytes::from(vec![b'x'; size]);
    let confirmed = async {
        let mut replies = client.publish(UnboundedReceiverStream::new(sent)).await?.into_inner();
        while let Some(reply) = replies.message().await? {
            for confirmation in reply.confirmations {
                if let Some(problem) = confirmation.problem {
                    return Err(problem.detail.into());
                }
                counts.published.fetch_add(confirmation.count.into(), Ordering::Relaxed);
            }
        }
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    };
    let send = async {
        let mut beat = tokio::time::interval(Duration::from_secs(1) / BEATS as u32);
        let mut number = 0;
        loop {
            beat.tick().await;
            let message = |number: u64| v1::Message {
                body: body.clone(),
                id: if number.is_multiple_of(2) { format!("id-{number}") } else { String::new() },
                key: format!("key-{}", number % 1_000),
                priority: u32::from(number.is_multiple_of(50)),
                delay_ms: if number.is_multiple_of(100) { 500 } else { 0 },
                ..Default::default()
            };
            let messages = (number..number + rate / BEATS).map(message).collect();
            number += rate / BEATS;
            let request = v1::PublishRequest { stream: "bench".to_owned(), messages, ..Default::default() };
            if requests.send(request).is_err() {
                return;
            }
        }
    };
    tokio::select! {
        ended = confirmed => ended,
        () = send => Err("the call ended".into()),
    }
}

async fn consume(
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    mut replies: tonic::Streaming<v1::ConsumeReply>,
    counts: &Counts,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    use v1::settlement::Action;
    while let Some(reply) = replies.message().await? {
        let done = reply.settled.iter().flat_map(|settled| &settled.outcomes);
        // Those whose retries are used up are skipped, and done with as well.
        let done = done.filter(|run| {
            matches!(run.outcome(), v1::outcome_run::Outcome::Acked | v1::outcome_run::Outcome::Skipped)
        });
        counts.acked.fetch_add(done.map(|run| u64::from(run.count.max(1))).sum(), Ordering::Relaxed);
        let Some(deliveries) = reply.deliveries else { continue };
        let (mut acked, mut failed) = (Vec::new(), Vec::new());
        for run in &deliveries.runs {
            for n in 0..u64::from(run.count.max(1)) {
                let (seq, grant) = (run.first_seq + n, run.first_grant + n);
                let lease = v1::LeaseRun { first_seq: seq, first_grant: grant, count: 1 };
                if seq % FAILS == 0 { failed.push(lease) } else { acked.push(lease) }
            }
        }
        let epoch = deliveries.epoch;
        let settle = |action: Action, leases: Vec<v1::LeaseRun>| v1::Settlement {
            action: action.into(),
            epoch,
            leases,
            reason: if action == Action::Ack { String::new() } else { "soaked".to_owned() },
            ..Default::default()
        };
        let mut settlements = vec![settle(Action::Ack, acked)];
        if !failed.is_empty() {
            settlements.push(settle(Action::Retry, failed));
        }
        requests.send(v1::ConsumeRequest { settlements, ..Default::default() })?;
    }
    Ok(())
}
