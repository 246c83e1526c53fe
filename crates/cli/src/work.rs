//! `forebay work`: works through a group with handlers in any language, each a process or an HTTP service.
//!
//! The SDK's worker takes messages, renews their leases, settles them and shuts down. This module runs handlers and
//! prints events.

mod console;
mod event_printer;
mod exec;
mod push;
mod rate;
mod reason;
mod task;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use bytes::Bytes;
use clap::{ArgGroup, Args};
use forebay_client::worker::{BreakerPolicy, Concurrency, WorkerError, WorkerStats};
use forebay_client::{Client, Fault, Job, Worker};
use hyper::Uri;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use self::console::Console;
use self::event_printer::EventPrinter;
use self::exec::Exec;
use self::push::{Headers, Push};
use self::rate::PerSecond;
use crate::clock::{Clock, Timestamp};
use crate::commands::GroupPath;
use crate::connect::{self, Server};
use crate::exit::Exit;
use crate::failure;
use crate::log::{self, Format, Level};
use crate::print::{Output, print};
use crate::settings::values::{duration, or_none, whole};
use crate::signals::Signals;
use crate::subscribe::{create_group, not_opened};

pub(crate) const EXAMPLES: &str = "\
--exec runs CMD with `sh -c` for each message, with the body on its standard input. Its exit code decides what
happens to the message:
   0  it is acked
  75  it is retried, by the group's settings; the same for any other code, a signal, or a timeout
  65  it is parked as a dead letter
  99  it is skipped: settled without being processed
The end of its standard error is stored as the reason. Its environment has FOREBAY_STREAM, _GROUP,
_SEQ, _ATTEMPT (1 at first), _ID, _KEY, _TYPE, _SCHEMA, _PRIORITY, _PUBLISHED_AT and, for each header of the message,
FOREBAY_HEADER_NAME; and FOREBAY_SERVER, so that `forebay pub` finds the same server.

--push sends each message as an HTTP POST, with the same fields in headers (Forebay-Seq and so on), and an
Idempotency-Key. The response decides:
  2xx                  it is acked
  429, with a pause    it is offered again after the pause; this costs no attempt, and the group rests meanwhile
  503 with a pause     it is retried after the pause
  408, any 5xx, none   it is retried, by the group's settings
  any other            it is parked; redirects are not followed
A pause is a header Retry-After, in seconds or as a date.

A group that does not exist is an error, so that a mistyped name does not create one; --create creates it.

While most messages fail, the worker receives fewer, so that they do not use up their retries (--no-breaker turns
this off). SIGINT or SIGTERM stops it: it receives nothing more, and running handlers may finish. A second signal
stops it at once.

Examples:
  forebay work emails/senders --exec ./send.sh
  forebay work emails/senders --create --exec ./send.sh     create the group with the default settings first
  forebay work emails/senders --exec 'python3 send.py --fast' --concurrency 8 --timeout 2m
  forebay work images/thumbs --exec 'convert - -resize 200 \"out/$FOREBAY_ID.png\"'
  forebay work emails/senders --push http://127.0.0.1:8000/send --rate 10/s
  forebay work emails/senders --push https://example.com/hook --header @secret.txt --min 1 --max 32 --drain 5m
  forebay work emails/senders --exec 'cat >> all.txt' --concurrency 1 --idle 5s     until nothing is left

A handler in sh, send.sh:
  #!/bin/sh
  to=$(jq -er .to) || { echo 'no address' >&2; exit 65; }
  echo \"hello, try $FOREBAY_ATTEMPT\" | mail -s hello \"$to\" || exit 75

A handler in Python, send.py:
  import json, os, sys
  message = json.load(sys.stdin)
  if '@' not in message['to']:
      sys.exit(65)            # sys.exit('text') exits with 1, which is retried
  print('sent to', message['to'], 'try', os.environ['FOREBAY_ATTEMPT'])";

/// The most handlers at a time.
const CONCURRENCY_MAX: u64 = 1_000;
const PREFETCH_MAX: u64 = 10_000;
/// The breaker opens when nearly all messages fail. A few bad messages among good ones are no reason to stop.
const FAILURE_RATIO: f64 = 0.9;
/// How often the counts and the idle time are checked.
const CHECK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("handler").required(true).args(["exec", "push"]))]
pub(crate) struct Work {
    /// The group, as STREAM/GROUP.
    #[arg(value_name = "STREAM/GROUP")]
    group: GroupPath,
    /// Create the group, and its stream, if it does not exist.
    #[arg(long)]
    create: bool,
    /// Run this command for each message.
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Send each message to this address.
    #[arg(long, value_name = "URL", value_parser = push::target)]
    push: Option<Uri>,
    /// Number of messages to process at a time.
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with_all = ["min", "max"],
          value_parser = whole::<u16>(1..=CONCURRENCY_MAX))]
    concurrency: u16,
    /// Follow the backlog instead, with at least this many at a time.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "max",
          value_parser = whole::<u16>(1..=CONCURRENCY_MAX))]
    min: u16,
    /// Follow the backlog, with at most this many at a time.
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=CONCURRENCY_MAX))]
    max: Option<u16>,
    /// Time within which the backlog should be worked off, with --min and --max.
    #[arg(long, value_name = "TIME", default_value = "1m", requires = "max", value_parser = duration)]
    drain: Duration,
    /// How long a handler may take, or `none`.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    timeout: Timeout,
    /// Maximum rate at which messages begin, such as 10/s, 100/m, or 10 (per second).
    #[arg(long, value_name = "RATE")]
    rate: Option<PerSecond>,
    /// A header of every request, as `NAME: VALUE`; or @FILE with one header on each line, for secrets.
    #[arg(long = "header", value_name = "HEADER", conflicts_with = "exec")]
    headers: Vec<String>,
    /// Exit after this time without work.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Name of the worker in statistics and failures. Default: host name and process id.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of messages to prefetch beside those being processed. Default: follows the time that messages take.
    #[arg(long, value_name = "N", value_parser = whole::<u16>(0..=PREFETCH_MAX))]
    prefetch: Option<u16>,
    /// How long running handlers may finish when the command is told to stop. Other messages are returned.
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = duration)]
    drain_timeout: Duration,
    /// Do not slow down if nearly every message fails.
    #[arg(long)]
    no_breaker: bool,
    #[command(flatten)]
    server: Server,
}

/// A type of its own, because clap reads `Option<Option<_>>` differently.
#[derive(Debug, Clone, Copy)]
struct Timeout(Option<Duration>);

fn timeout(text: &str) -> Result<Timeout, String> {
    match or_none(text, duration)? {
        Some(time) if time.is_zero() => {
            Err("the timeout must be greater than zero; `none` is no limit".to_owned())
        }
        time => Ok(Timeout(time)),
    }
}

/// The handler of the messages.
enum Runner {
    Exec(Exec),
    Push(Box<Push>),
}

impl Runner {
    async fn run(&self, job: &Job<Bytes>) -> Result<(), Fault> {
        match self {
            Runner::Exec(exec) => exec.run(job).await,
            Runner::Push(push) => push.run(job).await,
        }
    }
}

pub(crate) fn run(options: &Work, output: Output) -> anyhow::Result<()> {
    if let Some(max) = options.max.filter(|max| *max < options.min) {
        return Err(anyhow!(Exit::NotUnderstood)
            .context(format!("--max must be at least --min. min=`{}` max=`{max}`", options.min)));
    }
    if output == Output::Json {
        log::start(Some(Format::Json), Level::Info, forebay_broker::clock::Clock::start());
    }
    let (console, written) = Console::start(output);
    let runtime = connect::runtime()?;
    let done = runtime.block_on(work(options, output, console));
    // Ends every handler that is still there.
    drop(runtime);
    written.wait();
    done
}

async fn work(options: &Work, output: Output, console: Console) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let (hurry, hurried) = watch::channel(false);
    let runner = match (&options.exec, &options.push) {
        (Some(command), _) => {
            Runner::Exec(Exec::new(command, options.timeout.0, &options.server, console.clone(), hurried)?)
        }
        (None, Some(target)) => {
            let headers = Headers::read(&options.headers)?;
            Runner::Push(Box::new(Push::new(target.clone(), headers, options.timeout.0)))
        }
        (None, None) => unreachable!("one of them is required"),
    };
    let client = options.server.client("forebay-work").await?;
    if options.create && create_group(&client, &options.group).await? {
        console.say(format!("created the group {}", options.group));
    }
    let printer = Arc::new(EventPrinter::new(console, output));
    let worker = tokio::select! {
        worker = start(client, options, runner, printer.clone()) => worker?,
        () = signals.any() => return Ok(()),
    };
    printer.say(format!("working on {}; ^C stops", options.group));
    let stats = worker.stats_handle();
    let ended = watch_over(worker, options, &mut signals, &hurry, &printer).await;
    summary(options, output, &stats(), &printer)?;
    ended
}

async fn start(
    client: Client,
    options: &Work,
    runner: Runner,
    printer: Arc<EventPrinter>,
) -> anyhow::Result<Worker> {
    let GroupPath { stream, group } = options.group.clone();
    let concurrency: Concurrency = match options.max {
        Some(max) => (options.min.into()..=max.into()).into(),
        None => usize::from(options.concurrency).into(),
    };
    let mut worker = Worker::builder(client, stream, group, Arc::new(runner))
        .name(options.name.clone().unwrap_or_else(own_name))
        .concurrency(concurrency)
        .target_drain(options.drain)
        .shutdown_within(options.drain_timeout)
        .on_event(move |event| printer.print_event(event))
        .on_any(|runner: Arc<Runner>, job| async move { runner.run(&job).await });
    if let Some(PerSecond { rate, burst }) = options.rate {
        worker = worker.rate(rate, burst);
    }
    if let Some(prefetch) = options.prefetch {
        worker = worker.prefetch(prefetch.into());
    }
    if !options.no_breaker {
        worker = worker.breaker(BreakerPolicy { failure_ratio: FAILURE_RATIO, ..Default::default() });
    }
    worker.start().await.map_err(|error| match &error {
        WorkerError::Refused(refused) => not_opened(&options.group, refused),
        _ => failure::from_worker(&error),
    })
}

fn own_name() -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{machine}-{}", std::process::id())
}

/// Runs until a signal comes, the group was idle for long enough, or the server refuses the worker.
async fn watch_over(
    worker: Worker,
    options: &Work,
    signals: &mut Signals,
    hurry: &watch::Sender<bool>,
    printer: &EventPrinter,
) -> anyhow::Result<()> {
    let clock = Clock::start();
    let stats = worker.stats_handle();
    let mut lull = Lull { since: clock.now(), received: 0 };
    let mut look = tokio::time::interval(CHECK);
    let (stop, stopped) = oneshot::channel::<()>();
    let mut stop = Some(stop);
    let mut hurry_at = None;
    let mut ended = pin!(worker.run_until(async { drop(stopped.await) }));
    loop {
        let told = tokio::select! {
            ended = &mut ended => return ended.map(drop).map_err(|error| failure::from_worker(&error)),
            () = signals.any() => true,
            _ = look.tick() => {
                let (now, stats) = (clock.now(), stats());
                if hurry_at.is_some_and(|at| now >= at) {
                    let _ = hurry.send(true);
                }
                printer.print_counts(now, &stats);
                options.idle.is_some_and(|idle| stop.is_some() && lull.lasts(now, &stats) >= idle)
            }
        };
        if !told {
            continue;
        }
        let Some(stop) = stop.take() else {
            bail!(
                "stopped at once, by a second signal; messages in process go to other workers, and the attempt counts"
            );
        };
        let _ = stop.send(());
        let (running, time) = (stats().running, options.drain_timeout);
        if running > 0 {
            printer.stopping(running, time);
        }
        // Handlers are asked to end a little before their time is over, rather than killed when it is.
        hurry_at = Some(clock.now() + time.saturating_sub(exec::GRACE).max(time * 3 / 4));
    }
}

/// Since when the worker is idle.
struct Lull {
    since: Timestamp,
    received: u64,
}

impl Lull {
    fn lasts(&mut self, now: Timestamp, stats: &WorkerStats) -> Duration {
        if stats.running > 0 || stats.waiting > 0 || stats.received != self.received || !stats.connected {
            *self = Lull { since: now, received: stats.received };
        }
        now.since(self.since)
    }
}

/// Prints the counts at the end.
fn summary(
    options: &Work,
    output: Output,
    stats: &WorkerStats,
    printer: &EventPrinter,
) -> anyhow::Result<()> {
    if output == Output::Text {
        printer.say(event_printer::counts(stats));
        return Ok(());
    }
    let GroupPath { stream, group } = &options.group;
    let facts = json!({
        "stream": stream, "group": group, "done": stats.acked, "retried": stats.retried, "parked": stats.parked,
        "skipped": stats.skipped, "throttled": stats.throttled, "given_back": stats.returned + stats.snoozed,
        "late": stats.late,
    });
    print(&format!("{facts}\n"))
}
