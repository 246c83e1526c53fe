//! `forebay bench`: load for a server, and what it does to it.
//!
//! | Module | Has |
//! | --- | --- |
//! | `plan` | what to do: options, their defaults and what does not go together |
//! | `stage` | a run from its beginning to its end: who starts when, what is measured, how it is told meanwhile |
//! | `pace` | when messages are due, and the thread that tells producers |
//! | `native`, `sqs` | producers and consumers of the two doors |
//! | `stamp` | what a message says of itself |
//! | `tally`, `ledger`, `histogram` | what is written down: counts, what became of each message, how long it took |
//! | `process` | what the kernel says of the server |
//! | `report` | what is printed at the end |

mod histogram;
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
use crate::settings::values::{duration, size};

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
  forebay bench --door sqs --producers 16 --consumers 32
  forebay bench --sqs http://127.0.0.1:9324 --keys 100 --group FifoQueue=true
  forebay bench -o json | jq '{published_per_second, p99: .end_to_end_latency.p99}'";

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[arg(value_enum, default_value = "steady", hide_default_value = true)]
    mode: Mode,
    /// The way into the server. Default: native, or sqs where --sqs is given.
    #[arg(long, value_enum, value_name = "native|sqs", hide_possible_values = true)]
    door: Option<Door>,
    /// Where the server speaks SQS. Default: http://127.0.0.1:9324, for a server on this machine.
    #[arg(long, value_name = "URL")]
    sqs: Option<String>,
    /// The stream, or the queue, which must not be there yet. Default: bench- and a few digits.
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Leave the stream as it is at the end.
    #[arg(long)]
    keep: bool,
    /// Default: 2; 1 for latency; 8 over SQS.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    producers: Option<u16>,
    /// Messages of a producer that are not confirmed yet, at most. Default: 1024. Not over SQS.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    window: Option<u64>,
    /// Messages that go together, at most. Default: 64; 1 for latency; 10 over SQS, which takes no more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: Option<u64>,
    /// Default: 4; 1 for latency; 16 over SQS.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    consumers: Option<u16>,
    /// Messages that a consumer may hold. Default: 256; over SQS what it asks for at once, 10.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    credit: Option<u32>,
    /// Bytes of a message, with or without a unit.
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = size)]
    size: u64,
    /// How many keys messages have, in turn. 0: none. Over SQS these are message groups.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    keys: u64,
    /// Messages a second that are due, of all producers. Default: none, and 1000 for latency.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// For how long to measure. Default: 10s, unless --messages is given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Send this many, and end when they are through. For drain: how many wait at the beginning; default 500000, and
    /// 20000 over SQS.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    messages: Option<u64>,
    /// What is not measured, at the beginning. Default: 1s, or nothing where --messages is given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warmup: Option<Duration>,
    /// A setting of the group, as for `forebay group create`. May be given several times.
    #[arg(long = "group", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// The server's process, if it is on this machine, for its CPU, what it writes and its memory.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Producers and consumers, as fast as they can or at a rate.
    Steady,
    /// Producers alone.
    Publish,
    /// Consumers alone: what was published before is worked through.
    Drain,
    /// How long a message takes, at a rate that is no trouble.
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
    // Nobody waits for a connection that is still open.
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
        "there is one of that name already, and a bench wants a stream of its own. stream=`{}`",
        printable(stream)
    ))
}

fn no_sqs_address(url: &str) -> String {
    format!("that is no address for SQS; expected http://HOST:PORT. sqs=`{}`", printable(url))
}

/// What the person should know, but is no result.
fn warn(text: &str) {
    say(&format!("forebay: {text}"));
}
