//! Clients of KurrentDB: append, catch up with a log, and work off a persistent subscription; beside the same over the
//! native gRPC API of the same server.
//!
//! Both doors take turns, and with `--beside` so does another build of the server, so that all meet the same noise; a
//! figure is the median of the rounds. Clients are in this process. Events have an id, a type and a body; native
//! messages have the same without the id, which the native API would use to find duplicates. By its protocol the
//! Kurrent door sends one event in a message, where the native one sends as many as there are.

mod clients;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::measure::median;
use crate::server::{self, Server};
use clients::{Door, Outcome};

/// Events of a log that is read and worked off.
const EVENTS: u64 = 200_000;
const WIDTH: usize = 26;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Append on one call, so many events at a time.
    Append { batch: u64 },
    /// Append one event with each call, many calls at a time.
    Calls,
    /// Read a log from its first event to its last, and wait for more.
    CatchUp,
    /// Consume and ack all events of a log.
    Subscription { consumers: usize },
}

const WORKS: [(&str, Work); 7] = [
    ("calls of one event", Work::Calls),
    ("append by 1", Work::Append { batch: 1 }),
    ("append by 8", Work::Append { batch: 8 }),
    ("append by 64", Work::Append { batch: 64 }),
    ("catch up", Work::CatchUp),
    ("subscription, 1 consumer", Work::Subscription { consumers: 1 }),
    ("subscription, 10 consumers", Work::Subscription { consumers: 10 }),
];

struct Settings {
    rounds: u64,
    lasts: Duration,
    size: usize,
    events: u64,
    only: Option<String>,
}

/// The measurements of one door of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Events a second.
    pub(crate) rate: f64,
    /// Microseconds of processor time of the server for each event.
    pub(crate) cpu: f64,
}

impl Figure {
    fn median(of: &[Figure]) -> Figure {
        let middle = |value: fn(&Figure) -> f64| median(&mut of.iter().map(value).collect::<Vec<_>>());
        Figure { rate: middle(|of| of.rate), cpu: middle(|of| of.cpu) }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.0}/s {:.2} µs", self.rate, self.cpu))
    }
}

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let settings = Settings {
        rounds: arguments.number("rounds", 3)?,
        lasts: Duration::from_secs_f64(arguments.seconds(2.0)?),
        size: arguments.number("body", 100)? as usize,
        events: arguments.number("messages", EVENTS)?,
        only: arguments.take("only")?,
    };
    let beside: Option<PathBuf> = arguments.take("beside")?;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let _ = std::fs::remove_dir_all(&folder);
    let mut servers = Vec::new();
    for (name, program) in std::iter::once(("", program)).chain(beside.map(|program| (" beside", program))) {
        let data = folder.join(format!("data{}", name.trim()));
        let data = data.to_str().ok_or("the folder's name is not text")?;
        let words =
            ["serve", "--listen", "127.0.0.1:0", "--sqs", "none", "--kurrent", "127.0.0.1:0", "--data", data];
        servers.push((name, Server::start(&program, &words)?));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measured = runtime.block_on(measure(&servers, &settings));
    runtime.shutdown_background();
    drop(servers);
    let _ = std::fs::remove_dir_all(&folder);
    measured.map_err(|error| -> Box<dyn Error> { error })
}

async fn measure(servers: &[(&str, Server)], settings: &Settings) -> Outcome<()> {
    let Settings { size, events, .. } = settings;
    println!("{size} bytes, {events} events in a log: events a second; server CPU for each");
    let contenders: Vec<(String, &Server, Door)> = servers
        .iter()
        .flat_map(|(name, server)| {
            [(Door::Kurrent, "Kurrent"), (Door::Native, "native")]
                .map(|(door, of)| (format!("{of}{name}"), server, door))
        })
        .collect();
    let names: Vec<String> = contenders.iter().map(|(name, ..)| format!("{name:>WIDTH$}")).collect();
    println!("{:>WIDTH$} {} {:>8}", "", names.join(" "), "ratio");
    for (_, server) in servers {
        clients::fill(server, settings.size, settings.events).await?;
    }
    for (name, work) in WORKS {
        if settings.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut figures = vec![Vec::new(); contenders.len()];
        for _ in 0..settings.rounds {
            for ((_, server, door), figures) in contenders.iter().zip(&mut figures) {
                figures.push(match work {
                    Work::Append { batch } => {
                        clients::append(server, *door, settings.size, batch, settings.lasts).await?
                    }
                    Work::Calls => clients::calls(server, *door, settings.size, settings.lasts).await?,
                    Work::CatchUp => clients::catch_up(server, *door, settings.events).await?,
                    Work::Subscription { consumers } => {
                        clients::work_off(server, *door, consumers, settings.events).await?
                    }
                });
            }
        }
        let middles: Vec<Figure> = figures.iter().map(|figures| Figure::median(figures)).collect();
        let ratio = middles[0].rate / middles[1].rate;
        let row: Vec<String> = middles.iter().map(|figure| format!("{figure:>WIDTH$}")).collect();
        println!("{name:>WIDTH$} {} {ratio:>8.2}", row.join(" "));
    }
    Ok(())
}
