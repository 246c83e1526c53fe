//! Clients of SQS: send, receive and delete, beside another server that speaks SQS.
//!
//! All servers are there for the whole run and take turns, so that each meets the same noise; a figure is the median
//! of the rounds. Each measurement has a queue of its own. Clients are in this process, on one thread, and speak plain
//! HTTP, so that they cost little: their processor time is printed beside the server's. Nothing is signed. Below each
//! row stands what a bare write and sync took meanwhile, since that is what Forebay waits for and the others do not.

pub(crate) mod client;
pub(crate) mod contenders;
mod http;
mod latency;
mod workloads;

use std::error::Error;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::measure::{median, quantile};
use crate::server;
use client::Outcome;
use contenders::{Contender, Peers};
use latency::Latency;
use workloads::{BATCH, Figure, Plan, Work};

/// How long a server does each kind of work before anything is measured: a JVM has to find its hot code.
const WARM_UP: Duration = Duration::from_secs(6);
const DRAINED: u64 = 50_000;
const BACKLOG_SMALL: u64 = 1_000;
const WIDTH: usize = 30;
const SYNCS: usize = 50;
const SYNC_BYTES: usize = 4 << 10;
const SYNC_FILE_BYTES: usize = 1 << 20;

struct Settings {
    folder: PathBuf,
    rounds: u64,
    lasts: Duration,
    connections: usize,
    sizes: Vec<usize>,
    only: Option<String>,
    backlog: u64,
}

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let settings = Settings {
        folder: arguments.folder()?,
        rounds: arguments.number("rounds", 3)?,
        lasts: Duration::from_secs_f64(arguments.seconds(3.0)?),
        connections: arguments.number("connections", 16)? as usize,
        sizes: arguments.take("body")?.map_or(vec![100, 1_024], |size| vec![size]),
        only: arguments.take("only")?,
        backlog: arguments.number("backlog", 200_000)?,
    };
    let peers = Peers::take(&mut arguments)?;
    let program = server::program(&mut arguments)?;
    arguments.finish()?;
    let folder = &settings.folder;
    let _ = std::fs::remove_dir_all(folder);
    // One thread is enough for the clients, and leaves the rest to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let mut all = vec![Contender::forebay(&program, folder)?, Contender::forebay_in_memory(&program)?];
        all.extend(peers.start().await?);
        measure(&all, &settings).await
    });
    let _ = std::fs::remove_dir_all(folder);
    measured.map_err(|error| -> Box<dyn Error> { error })
}

async fn measure(all: &[Contender], settings: &Settings) -> Outcome<()> {
    for contender in all {
        println!("{}: {}", contender.name, contender.keeps);
    }
    let mut run = Run { all, settings, queues: 0 };
    run.warm_up().await?;
    for &size in &settings.sizes {
        run.rates(size).await?;
    }
    for &size in &settings.sizes {
        run.latencies(size).await?;
    }
    println!("\nmemory at the end, and at most");
    for contender in all {
        if let Some(memory) = contender.memory() {
            println!("{:>18} {:>6} MiB {:>6} MiB", contender.name, memory.resident >> 10, memory.peak >> 10);
        }
    }
    Ok(())
}

/// The speed of the disk meanwhile: overwrites of a page, each synced, in milliseconds.
fn bare_syncs(folder: &Path, took: &mut Vec<f64>) -> Outcome<()> {
    let path = folder.with_extension("syncs");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&vec![0; SYNC_FILE_BYTES])?;
    file.sync_all()?;
    for _ in 0..SYNCS {
        let started = Instant::now();
        file.rewind()?;
        file.write_all(&[1; SYNC_BYTES])?;
        file.sync_data()?;
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

struct Run<'a> {
    all: &'a [Contender],
    settings: &'a Settings,
    /// So many have been made. Each has a name of its own.
    queues: u64,
}

/// One kind of work: the measurements of each server, and the time of a sync meanwhile.
struct Row {
    name: String,
    work: Work,
    figures: Vec<Vec<Figure>>,
    syncs: Vec<f64>,
}

impl Run<'_> {
    fn queue(&mut self) -> String {
        self.queues += 1;
        format!("bench-{}-{}", std::process::id(), self.queues)
    }

    fn wants(&self, name: &str) -> bool {
        self.settings.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    async fn warm_up(&mut self) -> Outcome<()> {
        let kinds = [
            Work::Send { batch: 1 },
            Work::Send { batch: BATCH },
            Work::Pass { batch: 1, backlog: 0 },
            Work::Pass { batch: BATCH, backlog: 0 },
            Work::Fifo,
        ];
        for contender in self.all {
            for work in kinds {
                let connections = self.settings.connections;
                let plan = Plan { work, size: 100, connections, lasts: WARM_UP };
                workloads::run(contender, &self.queue(), &plan).await?;
            }
        }
        Ok(())
    }

    async fn rates(&mut self, size: usize) -> Outcome<()> {
        let backlog = self.settings.backlog;
        let works = [
            ("send 1".to_owned(), Work::Send { batch: 1 }),
            ("send 10".to_owned(), Work::Send { batch: BATCH }),
            ("receive 10, delete 10".to_owned(), Work::Drain { backlog: DRAINED }),
            ("all three by 1".to_owned(), Work::Pass { batch: 1, backlog: 0 }),
            ("all three by 10".to_owned(), Work::Pass { batch: BATCH, backlog: 0 }),
            ("fifo, 1000 groups".to_owned(), Work::Fifo),
            (format!("backlog {BACKLOG_SMALL}"), Work::Pass { batch: BATCH, backlog: BACKLOG_SMALL }),
            (format!("backlog {backlog}"), Work::Pass { batch: BATCH, backlog }),
        ];
        println!(
            "\n{size} bytes, {0} connections that send and {0} that receive: messages a second; processor time of the \
             server and of the clients for each",
            self.settings.connections
        );
        self.headline("ratio of rates");
        let mut rows: Vec<Row> = works
            .into_iter()
            .filter(|(name, _)| self.wants(name))
            .map(|(name, work)| Row {
                name,
                work,
                figures: vec![Vec::new(); self.all.len()],
                syncs: Vec::new(),
            })
            .collect();
        // All rows take turns, so that they can be compared with each other as well.
        for _ in 0..self.settings.rounds {
            for row in &mut rows {
                bare_syncs(&self.settings.folder, &mut row.syncs)?;
                self.measure(row, size).await?;
            }
        }
        for row in &mut rows {
            let middles: Vec<Figure> = row.figures.iter().map(|figures| Figure::median(figures)).collect();
            let rates: Vec<f64> = middles.iter().map(|figure| figure.rate).collect();
            self.row(&row.name, &middles, &rates);
            let (half, most) = (quantile(&mut row.syncs, 0.5), quantile(&mut row.syncs, 0.9));
            println!("{:>22} (a bare write and sync: {half:.2} ms, 90 % of them {most:.2} ms at most)", "");
            self.say_which_were_smaller(row);
        }
        Ok(())
    }

    async fn measure(&mut self, row: &mut Row, size: usize) -> Outcome<()> {
        let Settings { connections, lasts, .. } = *self.settings;
        let plan = Plan { work: row.work, size, connections, lasts };
        for (contender, figures) in self.all.iter().zip(&mut row.figures) {
            let figure = workloads::run(contender, &self.queue(), &plan).await;
            figures.push(figure.map_err(|error| format!("{}: {}: {error}", contender.name, row.name))?);
        }
        Ok(())
    }

    fn say_which_were_smaller(&self, row: &Row) {
        let (Work::Pass { backlog: wanted, .. } | Work::Drain { backlog: wanted }) = row.work else { return };
        for (contender, figures) in self.all.iter().zip(&row.figures) {
            let least = figures.iter().map(|figure| figure.backlog).min().unwrap_or(wanted);
            if least < wanted {
                println!("{:>22} ({}: {least}, since more took over a minute to send)", "", contender.name);
            }
        }
    }

    async fn latencies(&mut self, size: usize) -> Outcome<()> {
        println!("\n{size} bytes: time of half, 90 % and 99 % of all at most");
        self.headline("");
        let many = self.settings.connections;
        let names = [
            "latency of send, alone".to_owned(),
            format!("send, {many} at once"),
            "latency of wake-up".to_owned(),
        ];
        for (n, name) in names.iter().enumerate() {
            if !self.wants("latency") {
                continue;
            }
            let mut took = vec![Vec::new(); self.all.len()];
            for _ in 0..self.settings.rounds {
                for (contender, took) in self.all.iter().zip(&mut took) {
                    let (queue, lasts) = (self.queue(), self.settings.lasts);
                    let latency = match n {
                        0 => latency::of_sends(contender, &queue, size, 1, lasts).await,
                        1 => latency::of_sends(contender, &queue, size, many, lasts).await,
                        _ => latency::of_wake_ups(contender, &queue, size, lasts).await,
                    };
                    took.push(latency.map_err(|error| format!("{}: {name}: {error}", contender.name))?);
                }
            }
            let middles: Vec<Latency> = took.iter().map(|took| Latency::median(took)).collect();
            self.row(name, &middles, &[]);
        }
        Ok(())
    }

    fn headline(&self, ratio: &str) {
        let names: Vec<String> = self.all.iter().map(|of| format!("{:>WIDTH$}", of.name)).collect();
        println!("{:>22} {} {ratio:>16}", "", names.join(" "));
    }

    /// One figure for each server, and the first one's rate as a part of each other's.
    fn row(&self, name: &str, figures: &[impl std::fmt::Display], rates: &[f64]) {
        let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:>WIDTH$}")).collect();
        let others = rates.iter().skip(1);
        let ratios: Vec<String> = others.map(|rate| format!("{:.2}", rates[0] / rate)).collect();
        println!("{name:>22} {} {:>16}", figures.join(" "), ratios.join(" "));
    }
}

impl Figure {
    fn median(of: &[Figure]) -> Figure {
        let middle = |value: fn(&Figure) -> f64| median(&mut of.iter().map(value).collect::<Vec<_>>());
        Figure {
            rate: middle(|of| of.rate),
            server: middle(|of| of.server),
            client: middle(|of| of.client),
            backlog: of.iter().map(|of| of.backlog).min().unwrap_or(0),
        }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.0}/s {:.1} + {:.1} µs", self.rate, self.server, self.client))
    }
}
