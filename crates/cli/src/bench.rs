//! `forebay bench`: puts load on a server and measures it.
//!
//! | Module | Has |
//! | --- | --- |
//! | `plan` | options, their defaults and their conflicts |
//! | `stage` | a run from its beginning to its end: when each part starts, the measured window, progress output |
//! | `pace` | when messages are due, and the thread that tells producers |
//! | `native`, `sqs` | producers and consumers of the two doors |
//! | `channel` | connections of the native door, with or without TLS and a token |
//! | `stamp` | the stamp in each message |
//! | `tally`, `ledger` | records: counts, the fate of each message, latencies |
//! | `process` | the kernel's statistics of the server |
//! | `report` | the final report |

mod channel;
mod ledger;
mod native;
mod pace;
mod plan;
mod process;
mod report;
mod sqs;
mod stage;
mod stamp;
mod tally;

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;

use self::plan::Plan;
use self::stage::{End, Stage};
use crate::connect::Server;
use crate::exit::{Exit, say};
use crate::print::Output;
use crate::safe::printable;
use crate::settings::values::{duration, size, whole};

pub(crate) const EXAMPLES: &str = "\
Without --rate producers send as fast as their windows let them (a closed loop), which finds out how much the server can
do; latencies are then those of a server with full hands. With --rate every message has a time at which it is due (an
open loop), and its latency counts from there, so a stall counts for everything that should have been sent meanwhile.

Messages go to a stream of its own, which is deleted at the end, also after ^C. Every message that was confirmed must
come to a consumer; if one does not, the exit code is 1.

The CPU, the bytes written and the memory of the server are told with --pid, for a server on this machine.

Over SQS a producer or consumer is one connection with one request at a time; --group takes attributes of the queue.

Examples:
  forebay bench                          2 producers, 4 consumers, 100 bytes, for 10 seconds
  forebay bench latency --rate 2000      how long a message takes, at 2,000 a second
  forebay bench steady --rate 50000 --duration 1m --pid $(pgrep -x forebay)
  forebay bench publish --size 1KiB --batch 100
  forebay bench drain --messages 2000000 --consumers 8 --credit 1000
  forebay bench --keys 1000 --group strategy=ordered --group acks=durable
  forebay bench --server https://queue.example.com:7070 --ca cert.pem --token-file bench.token
  forebay bench --door sqs --producers 16 --consumers 32
  forebay bench --sqs http://127.0.0.1:9324 --keys 100 --group FifoQueue=true
  forebay bench -o json | jq '{published_per_second, p99: .end_to_end_latency.p99}'";

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to measure. Default: steady.
    #[arg(value_enum, default_value = "steady", hide_default_value = true)]
    mode: Mode,
    /// The protocol. Default: native, or sqs if --sqs is given.
    #[arg(long, value_enum, value_name = "native|sqs", hide_possible_values = true)]
    door: Option<Door>,
    /// Address of the server's SQS endpoint. Default: http://127.0.0.1:9324, for a server on this machine.
    #[arg(long, value_name = "URL")]
    sqs: Option<String>,
    /// Name of the stream or queue, which must not exist. Default: bench- and a few digits.
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Do not delete the stream at the end.
    #[arg(long)]
    keep: bool,
    /// Number of producers. Default: 2; 1 for latency; 8 over SQS.
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1_000))]
    producers: Option<u16>,
    /// Most unconfirmed messages of a producer. Default: 1024. Not over SQS.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1_000_000))]
    window: Option<u64>,
    /// Most messages in a batch. Default: 64; 1 for latency; 10 over SQS, which allows no more.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=10_000))]
    batch: Option<u64>,
    /// Number of consumers. Default: 4; 1 for latency; 16 over SQS.
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1_000))]
    consumers: Option<u16>,
    /// Messages that a consumer may hold (prefetch). Default: 256; over SQS 10, the size of a receive.
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=100_000))]
    credit: Option<u32>,
    /// Size of a message, with or without a unit.
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = size)]
    size: u64,
    /// Number of different keys. 0: messages have no key. Over SQS keys are message groups.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0..=10_000_000))]
    keys: u64,
    /// Messages per second of all producers together. Default: no limit; 1000 for latency.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// How long to measure. Default: 10s, unless --messages is given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Send this many messages, and end when they are processed. For drain: the backlog at the beginning; default
    /// 500000, and 20000 over SQS.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1_000_000_000_000))]
    messages: Option<u64>,
    /// Time before the measurement. Default: 1s, or nothing if --messages is given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
    /// Setting of the group, as for `forebay group create`. Can be given several times.
    #[arg(long = "group", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Process id of the server, if it is on this machine, to measure its CPU, its writes and its memory.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Producers and consumers, as fast as they can or at a rate.
    Steady,
    /// Producers only.
    Publish,
    /// Consumers only: a backlog is worked off.
    Drain,
    /// The latency of messages at a moderate rate.
    Latency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Door {
    Native,
    Sqs,
}

const RATE_MIN: f64 = 0.1;
const RATE_MAX: f64 = 10_000_000.0;

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err("expected messages a second, from 0.1 to 10000000".to_owned()),
    }
}

pub(crate) fn run(options: &Bench, output: Output) -> anyhow::Result<()> {
    let plan = Plan::of(options, crate::serve::random_id()? as u32)?;
    if let Some(pid) = plan.pid {
        process::usage(Some(pid)).context(Exit::NotUnderstood).with_context(|| {
            format!("--pid names no process of this machine that can be looked at. pid=`{pid}`")
        })?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads())
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let measured = runtime.block_on(async {
        let stage = Stage::set(plan).await?;
        stage.play().await
    });
    // Connections that are still open are not waited for.
    runtime.shutdown_background();
    let (plan, Some(outcome)) = measured? else {
        warn("stopped before anything was measured");
        return Ok(());
    };
    report::print(&plan, &outcome, output)?;
    match (outcome.lost, outcome.end) {
        (Some(lost), _) if lost > 0 => {
            Err(anyhow!("messages were lost: confirmed, and never delivered. lost=`{lost}`"))
        }
        (_, End::Stalled) => Err(anyhow!("it did not come to its end")),
        _ => Ok(()),
    }
}

/// As many as there are processors, up to a few: the server may need them more.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

/// The key of a message, if it has one.
fn key(keys: u64, producer: u16, number: u64) -> Option<String> {
    (keys > 0).then(|| format!("key-{}", (number + u64::from(producer)) % keys))
}

fn is_there_already(stream: &str) -> anyhow::Error {
    anyhow!(Exit::Conflict).context(format!(
        "there is one of that name already; a bench needs a stream of its own. stream=`{}`",
        printable(stream)
    ))
}

fn no_sqs_address(url: &str) -> String {
    format!("the address of SQS must be http://HOST:PORT. sqs=`{}`", printable(url))
}

/// Remarks for the user that are not results.
fn warn(text: &str) {
    say(&format!("forebay: {text}"));
}
