//! The workloads that are run on every server, one after another, each on its own queue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::contender::{Contender, Failure, Running, Shape};
use super::load::{self, CONSUMERS, Load, PREFETCH, Pace};
use super::processes::{Processes, Segments, disk_written};
use crate::measure::quantile;

/// Figures of one measurement, by name: `rate` (messages a second), `cpu_us` and `client_us` (processor time
/// for each message, of the server and of the clients), and what else the workload tells.
pub(crate) type Sample = BTreeMap<String, f64>;

/// The workloads in the order in which they run.
pub(crate) const ALL: [&str; 13] = [
    "publish-64",
    "publish-1024",
    "drain",
    "steady-100",
    "steady-1k",
    "window-1",
    "latency",
    "ordered",
    "groups-10",
    "backlog-10k",
    "backlog-1m",
    "backlog-5m",
    "restart",
];
/// Those that fill a queue with a million messages or more: measured again only where that is quick.
pub(crate) const HEAVY: [&str; 3] = ["backlog-1m", "backlog-5m", "restart"];

const RATE: u64 = 5_000;
/// At least this part of the due messages must have come, or the server does not keep up. A missing message counts
/// as late as possible.
const KEEPS_UP: f64 = 0.95;
/// How long published messages may take to be acked once nothing more is published.
const TRAIL_MAX: Duration = Duration::from_secs(30);
const FILL_MAX: Duration = Duration::from_secs(60);
/// When it is looked at how far filling has come.
const FILL_LOOK: Duration = Duration::from_secs(6);
/// How long a drain is measured at most, and how long it may go on after that.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Small backlogs are drained this often for one figure.
const DRAINS: usize = 15;
/// A server is quiet when it has written nothing for so long. Some never are.
const QUIET: Duration = Duration::from_millis(150);
const QUIET_TRIES: usize = 10;
/// And when it is filling no file with zeros, which it may do for so long.
const FILLING_TRIES: usize = 70;
/// How long a full server has to itself before it is killed: what it writes down now and then is then written.
const REST: Duration = Duration::from_secs(5);
/// How long a server that was killed may take until it delivers.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(60);

/// What became of one workload.
pub(crate) enum Outcome {
    Measured(Sample),
    /// Why there is no figure.
    Without(String),
}

/// One server in one round.
pub(crate) struct Bench<'a> {
    contender: &'a dyn Contender,
    folder: PathBuf,
    running: Option<Box<dyn Running>>,
    warm: Duration,
    lasts: Duration,
    queues: u64,
    /// What publishing left behind, to be drained.
    left: Option<(Shape, u64)>,
    /// How long a million messages took to publish.
    million: Option<Duration>,
}

impl<'a> Bench<'a> {
    pub(crate) async fn start(
        contender: &'a dyn Contender,
        folder: &Path,
        lasts: Duration,
    ) -> Result<Bench<'a>, Failure> {
        let warm = (lasts / 5).max(Duration::from_millis(300));
        let running = Some(contender.start(folder).await?);
        let folder = folder.to_owned();
        let mut bench =
            Bench { contender, folder, running, warm, lasts, queues: 0, left: None, million: None };
        bench.steady(100, bench.shape_of(1, false), CONSUMERS).await?;
        Ok(bench)
    }

    /// Whether it can have a part in this. Nothing is measured if not.
    pub(crate) async fn run(&mut self, workload: &str) -> Result<Outcome, Failure> {
        if self.running.is_none() {
            return Err("it did not come back from its restart".into());
        }
        if let Some(reason) = self.contender.skips(workload) {
            return Ok(Outcome::Without(reason.to_owned()));
        }
        let (groups, is_ordered) = (if workload == "groups-10" { 10 } else { 1 }, workload == "ordered");
        let shape = self.shape_of(groups, is_ordered);
        if let Some(reason) = self.contender.lacks(&shape) {
            return Ok(Outcome::Without(reason.to_owned()));
        }
        // What others have left in memory for the disk is not this one's to wait for.
        tokio::task::spawn_blocking(rustix::fs::sync).await?;
        match workload {
            "publish-64" => self.publish(shape, 64).await,
            "publish-1024" => self.publish(shape, load::WINDOW).await,
            "drain" => self.drain_what_is_left().await,
            "steady-1k" => self.steady(1_024, shape, CONSUMERS).await,
            "steady-100" | "ordered" => self.steady(100, shape, CONSUMERS).await,
            "groups-10" => self.steady(100, shape, 1).await,
            "window-1" => self.one_at_a_time(shape).await,
            "latency" => self.latency(shape).await,
            "backlog-10k" => self.small_backlog(10_000).await,
            "backlog-1m" => self.backlog(shape, 1_000_000).await,
            "backlog-5m" => self.backlog(shape, 5_000_000).await,
            "restart" => self.restart(shape, 1_000_000).await,
            other => Err(format!("no such workload. workload=`{other}`").into()),
        }
    }

    fn shape_of(&self, groups: usize, is_ordered: bool) -> Shape {
        Shape { queue: format!("bench-{}-{}", std::process::id(), self.queues), groups, is_ordered }
    }

    fn running(&self) -> &dyn Running {
        self.running.as_deref().expect("nothing runs on a server that did not come back")
    }

    async fn prepare(&mut self, mut shape: Shape) -> Result<Shape, Failure> {
        self.queues += 1;
        shape.queue = format!("bench-{}-{}", std::process::id(), self.queues);
        self.running().prepare(&shape).await?;
        Ok(shape)
    }

    fn processes(&self) -> Processes {
        Processes::of(&self.running().processes())
    }

    /// Counts for a while, once it is warm.
    async fn count(
        &self,
        load: &mut Load<'_>,
        counter: impl Fn(&load::Tally) -> u64,
    ) -> Result<Sample, Failure> {
        tokio::time::sleep(self.warm).await;
        load.check().await?;
        let meter = Meter::start(self.running().processes(), &self.processes(), counter(&load.tally));
        tokio::time::sleep(self.lasts).await;
        let sample = meter.stop(counter(&load.tally));
        load.check().await?;
        if sample["messages"] == 0.0 {
            return Err("nothing came through".into());
        }
        Ok(sample)
    }

    async fn publish(&mut self, shape: Shape, window: usize) -> Result<Outcome, Failure> {
        let shape = self.prepare(shape).await?;
        let mut load = Load::new(self.running(), &shape);
        load.produce(Pace { window, waits: false, ..Pace::standard(100) }).await?;
        let sample = self.count(&mut load, load::Tally::confirmed).await?;
        load.stop_producing().await?;
        let published = load.tally.confirmed();
        drop(load);
        let earlier = self.left.replace((shape, published));
        if let (Some((shape, count)), None) = (earlier, self.contender.skips("drain")) {
            self.drain(&shape, count).await?;
        }
        Ok(Outcome::Measured(sample))
    }

    async fn drain_what_is_left(&mut self) -> Result<Outcome, Failure> {
        let (shape, count) = match self.left.take() {
            Some(left) => left,
            // Nothing was published before, since only this was asked for.
            None => {
                let shape = self.prepare(self.shape_of(1, false)).await?;
                let mut load = Load::new(self.running(), &shape);
                load.produce(Pace { waits: false, ..Pace::standard(100) }).await?;
                tokio::time::sleep(self.warm + self.lasts).await;
                load.stop_producing().await?;
                let count = load.tally.confirmed();
                drop(load);
                (shape, count)
            }
        };
        Ok(Outcome::Measured(self.drain(&shape, count).await?))
    }

    /// Takes all messages, until all are gone and acked. The clock runs from when all consumers are there.
    async fn drain(&self, shape: &Shape, count: u64) -> Result<Sample, Failure> {
        let mut load = Load::new(self.running(), shape);
        let processes = self.processes();
        load.consume_together(CONSUMERS).await?;
        let meter = Meter::start(self.running().processes(), &processes, 0);
        let is_empty = load.tally.reach(count, DRAIN_MAX).await;
        if is_empty {
            load.stop_consuming().await?;
            return Ok(meter.stop(count));
        }
        let sample = meter.stop(load.tally.acked());
        load.check().await?;
        let came = load.tally.reach(count, TRAIL_MAX).await;
        let acked = load.tally.acked();
        load.stop_consuming().await?;
        if came { Ok(sample) } else { Err(format!("of {count} messages only {acked} came").into()) }
    }

    async fn steady(&mut self, size: usize, shape: Shape, each: usize) -> Result<Outcome, Failure> {
        let shape = self.prepare(shape).await?;
        let written = self.quiet().await;
        let disk = disk_written(&self.folder);
        let segments = self.contender.segments(&self.folder);
        let before = segments.as_deref().map(Segments::read).unwrap_or_default();
        let is_over = Arc::new(AtomicBool::new(false));
        let watch = tokio::spawn(Segments::watch(segments, is_over.clone()));
        let mut load = Load::new(self.running(), &shape);
        load.consume(each).await?;
        load.produce(Pace { has_keys: shape.is_ordered, ..Pace::standard(size) }).await?;
        let mut sample = self.count(&mut load, load::Tally::acked).await?;
        load.stop_producing().await?;
        let published = load.tally.confirmed();
        let expected = published * shape.groups as u64;
        if !load.tally.reach(expected, TRAIL_MAX).await {
            return Err(format!("of {expected} messages only {} came", load.tally.acked()).into());
        }
        let after = self.quiet().await;
        load.stop_consuming().await?;
        is_over.store(true, Ordering::Relaxed);
        let zeros = watch.await?.since(&before) as f64;
        let each = |bytes: f64| bytes / published as f64;
        sample.insert("bytes".to_owned(), each(after - written - zeros));
        sample.insert("bytes_with_zeros".to_owned(), each(after - written));
        tokio::task::spawn_blocking(rustix::fs::sync).await?;
        if let Some((after, before)) = disk_written(&self.folder).zip(disk) {
            sample.insert("disk_bytes".to_owned(), each(after - before - zeros));
        }
        sample.insert("memory_mb".to_owned(), self.processes().memory() / 1e6);
        Ok(Outcome::Measured(sample))
    }

    /// Waits until the server writes nothing, and says how much it has written so far. Files are made ready in
    /// the background, and can only be told apart as a whole.
    async fn quiet(&self) -> f64 {
        if let Some(folder) = self.contender.segments(&self.folder) {
            for _ in 0..FILLING_TRIES {
                if !folder.join("segment.tmp").exists() {
                    break;
                }
                tokio::time::sleep(QUIET).await;
            }
        }
        let processes = self.processes();
        let mut written = processes.written();
        for _ in 0..QUIET_TRIES {
            tokio::time::sleep(QUIET).await;
            let now = processes.written();
            if std::mem::replace(&mut written, now) == now {
                break;
            }
        }
        written
    }

    async fn one_at_a_time(&mut self, shape: Shape) -> Result<Outcome, Failure> {
        let shape = self.prepare(shape).await?;
        let mut load = Load::new(self.running(), &shape);
        load.produce(Pace { producers: 1, window: 1, waits: false, ..Pace::standard(100) }).await?;
        let mut sample = self.count(&mut load, load::Tally::confirmed).await?;
        load.stop_producing().await?;
        sample.insert("us".to_owned(), 1e6 / sample["rate"]);
        Ok(Outcome::Measured(sample))
    }

    async fn latency(&mut self, shape: Shape) -> Result<Outcome, Failure> {
        let shape = self.prepare(shape).await?;
        let mut delays = load::at_a_rate(self.running(), &shape, RATE, self.warm, self.lasts).await?;
        if (delays.received.len() as f64) < delays.due as f64 * KEEPS_UP || delays.confirmed.is_empty() {
            return Ok(Outcome::Without(format!("does not keep up with {RATE} a second")));
        }
        // It is unknown how late they would have been; the rest of the run is the least.
        let missing = delays.due.saturating_sub(delays.received.len());
        delays.received.extend(std::iter::repeat_n(self.lasts.as_secs_f64() * 1e3, missing));
        let mut sample = Sample::new();
        for (name, share) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("max_ms", 1.0)] {
            sample.insert(name.to_owned(), quantile(&mut delays.received, share));
            sample.insert(format!("confirm_{name}"), quantile(&mut delays.confirmed, share));
        }
        Ok(Outcome::Measured(sample))
    }

    /// So little is gone so soon that it is drained again and again, and the middle one counts.
    async fn small_backlog(&mut self, count: u64) -> Result<Outcome, Failure> {
        let mut samples = Vec::new();
        let started = Instant::now();
        while samples.len() < DRAINS && (samples.is_empty() || started.elapsed() < DRAIN_MAX) {
            let shape = self.prepare(self.shape_of(1, false)).await?;
            if !self.fill(&shape, 100, count).await? {
                return Ok(Outcome::Without(cannot_be_filled(count)));
            }
            samples.push(self.drain(&shape, count).await?);
        }
        // Each is too short for the clock of processor time.
        let mean = |name: &str| samples.iter().map(|sample| sample[name]).sum::<f64>() / samples.len() as f64;
        let (server, client) = (mean("cpu_us"), mean("client_us"));
        samples.sort_by(|a, b| a["rate"].total_cmp(&b["rate"]));
        let mut middle = samples.swap_remove(samples.len() / 2);
        middle.extend([("cpu_us".to_owned(), server), ("client_us".to_owned(), client)]);
        Ok(Outcome::Measured(middle))
    }

    async fn backlog(&mut self, shape: Shape, count: u64) -> Result<Outcome, Failure> {
        // Five million take five times as long as one did.
        if self.million.is_some_and(|took| took.mul_f64(count as f64 / 1e6) > FILL_MAX) {
            return Ok(Outcome::Without(cannot_be_filled(count)));
        }
        let shape = self.prepare(shape).await?;
        let started = Instant::now();
        let is_full = self.fill(&shape, 100, count).await?;
        if count == 1_000_000 {
            self.million = Some(if is_full { started.elapsed() } else { FILL_MAX });
        }
        if !is_full {
            return Ok(Outcome::Without(cannot_be_filled(count)));
        }
        Ok(Outcome::Measured(self.drain(&shape, count).await?))
    }

    async fn fill(&self, shape: &Shape, size: usize, count: u64) -> Result<bool, Failure> {
        let mut load = Load::new(self.running(), shape);
        load.produce(Pace::fill(size, count)).await?;
        if load.filled(FILL_LOOK).await? {
            return Ok(true);
        }
        // A server without a chance need not continue.
        let has_chance =
            load.tally.confirmed() as f64 * (FILL_MAX.as_secs_f64() / FILL_LOOK.as_secs_f64()) > count as f64;
        let is_full = has_chance && load.filled(FILL_MAX - FILL_LOOK).await?;
        load.stop_producing().await?;
        Ok(is_full)
    }

    /// Memory with a million messages waiting; then the server is killed, and the clock runs until the new one
    /// has delivered a message.
    async fn restart(&mut self, shape: Shape, count: u64) -> Result<Outcome, Failure> {
        // Some servers keep acked messages. No server is to bring back messages of other workloads.
        drop(self.running.take());
        std::fs::remove_dir_all(&self.folder)?;
        std::fs::create_dir_all(&self.folder)?;
        self.running = Some(self.contender.start(&self.folder).await?);
        let shape = self.prepare(shape).await?;
        if !self.fill(&shape, 1_024, count).await? {
            return Ok(Outcome::Without(cannot_be_filled(count)));
        }
        tokio::time::sleep(REST).await;
        let full = self.processes().memory();
        drop(self.running.take());
        let started = Instant::now();
        let back = async {
            let running = self.contender.start(&self.folder).await?;
            let answered = started.elapsed();
            let mut consumer = running.consumer(&shape, 0, PREFETCH).await?;
            let bodies = consumer.receive().await?;
            Ok::<_, Failure>((running, answered, consumer, bodies, started.elapsed()))
        };
        let Ok(back) = tokio::time::timeout(COMES_BACK_WITHIN, back).await else {
            let patience = COMES_BACK_WITHIN.as_secs();
            return Ok(Outcome::Without(format!("delivers nothing within {patience} s of its restart")));
        };
        let (running, answered, mut consumer, bodies, first) = back?;
        self.running = Some(running);
        if bodies.iter().any(|body| body.len() != 1_024) {
            return Err("after the restart something else was delivered".into());
        }
        consumer.ack().await?;
        consumer.settle().await?;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Outcome::Measured(Sample::from([
            ("memory_mb".to_owned(), full / 1e6),
            ("memory_after_mb".to_owned(), self.processes().memory() / 1e6),
            ("start_ms".to_owned(), milliseconds(answered)),
            ("first_ms".to_owned(), milliseconds(first)),
        ])))
    }
}

fn cannot_be_filled(count: u64) -> String {
    format!("{count} messages would take over {} s to publish", FILL_MAX.as_secs())
}

/// Resources used between two moments.
struct Meter {
    /// What the server began with. Some have a process for each client, so they are looked for again at the end.
    roots: Vec<u32>,
    counted: u64,
    server: f64,
    client: f64,
    started: Instant,
}

impl Meter {
    fn start(roots: Vec<u32>, processes: &Processes, counted: u64) -> Meter {
        let server = processes.cpu_seconds();
        let client = crate::server::cpu_seconds(std::process::id());
        Meter { roots, counted, server, client, started: Instant::now() }
    }

    fn stop(&self, counted: u64) -> Sample {
        let took = self.started.elapsed().as_secs_f64();
        let messages = (counted - self.counted) as f64;
        let client = crate::server::cpu_seconds(std::process::id()) - self.client;
        // After the clock: to look for processes takes a while.
        let server = Processes::of(&self.roots).cpu_seconds() - self.server;
        let each = |seconds: f64| if messages > 0.0 { seconds * 1e6 / messages } else { 0.0 };
        Sample::from([
            ("messages".to_owned(), messages),
            ("rate".to_owned(), messages / took),
            ("cpu_us".to_owned(), each(server)),
            ("client_us".to_owned(), each(client)),
        ])
    }
}
