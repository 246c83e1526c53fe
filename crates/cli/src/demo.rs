//! `forebay demo`: a burst comes in, is absorbed and worked off at a steady pace, while workers and the server itself
//! are killed; and at the end the accounts show that nothing was lost.
//!
//! | Module | Has |
//! | --- | --- |
//! | `plan` | the timetable, and the trouble planned for each order |
//! | `server`, `worker` | the processes, and how the demo starts and kills them |
//! | `producer` | who sends orders |
//! | `ledger` | the fate of every order |
//! | `view` | the live picture |
//! | `film` | the same as an animated SVG |

mod film;
mod ledger;
mod plan;
mod producer;
pub(crate) mod server;
mod stage;
mod view;
pub(crate) mod worker;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::ledger::Accounts;
use self::plan::Plan;
use self::stage::Stage;
use crate::connect::runtime;
use crate::exit::say;
use crate::print::{Colour, Output, PipeClosed, colours, print};
use crate::screen::{Screen, read_keys};

pub(crate) const EXAMPLES: &str = "\
It starts its own server on a free port, with its data in a temporary folder, producers and workers, kills a worker
and the server on the way, and accounts for every message at the end. It leaves nothing behind. If the accounts do
not add up, it reports that, keeps the folder and exits with 1.

Examples:
  forebay demo
  forebay demo --quick                   in a few seconds
  forebay demo --keep                    keeps the server running until ^C
  forebay demo --svg demo.svg            writes an animated picture of it
  forebay demo --quick -o json | tail -1 | jq .lost";

/// The stream of the demo.
const STREAM: &str = "orders";
const GROUP: &str = "billing";

/// The id under which an order is published, and its number again.
fn id_of(order: u64) -> String {
    format!("order-{order}")
}

fn order_of(id: &str) -> Option<u64> {
    id.strip_prefix("order-")?.parse().ok()
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Take a few seconds instead of half a minute.
    #[arg(long)]
    quick: bool,
    /// Keep the server running at the end, until ^C.
    #[arg(long)]
    keep: bool,
    /// Also write an animated picture of the demo to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Demo, output: Output) -> anyhow::Result<()> {
    let plan = if options.quick { Plan::quick() } else { Plan::full() };
    if let Some(path) = &options.svg {
        // Half a minute later would be too late to learn this.
        std::fs::write(path, "")
            .with_context(|| format!("cannot write the picture to {}", path.display()))?;
    }
    let folder = Folder::new("demo")?;
    let told = runtime()?.block_on(tell(options, plan, output, folder.path()));
    if let Err(error) = told {
        if error.downcast_ref::<PipeClosed>().is_some() {
            return Err(error);
        }
        let folder = folder.keep();
        return Err(error.context(format!("the demo failed; its data and logs are in {}", folder.display())));
    }
    told
}

async fn tell(options: &Demo, plan: Plan, output: Output, folder: &Path) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let on_terminal =
        output == Output::Text && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut stage = tokio::select! {
        stage = Stage::set(plan, folder, output, on_terminal, options.svg.as_deref()) => stage?,
        () = stop.wanted() => return Ok(()),
    };
    let accounts = {
        let screen = if on_terminal { Some(Screen::enter()?) } else { None };
        stop.keys = screen.as_ref().map(|_| read_keys());
        tokio::select! {
            accounts = stage.play(screen.as_ref()) => accounts?,
            () = stop.wanted() => {
                drop(screen);
                say("stopped before the end");
                return Ok(());
            }
        }
    };
    stage.finish_film(closing(&accounts, &stage))?;
    report(&accounts, &stage, on_terminal, output)?;
    if options.keep {
        say(&format!(
            "the server is still there: forebay top --server {}; ^C stops it and removes its data",
            stage.address()
        ));
        stop.wanted().await;
    }
    let problems = accounts.problems();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(anyhow!("the accounts do not add up: {}", problems.join(", ")))
    }
}

fn report(accounts: &Accounts, stage: &Stage, on_terminal: bool, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print(&format!("{}\n", accounts.json()));
    }
    let mut text = String::new();
    if on_terminal {
        // The picture is gone; the story stays.
        for (at, line) in stage.story() {
            text.push_str(&format!("{:>3}s  {line}\n", at.as_secs()));
        }
        text.push('\n');
    }
    for (colour, line) in closing(accounts, stage) {
        text.push_str(&format!("{}\n", colour.paint(&line, colours())));
    }
    print(&text)
}

/// The accounts, and what they show.
fn closing(accounts: &Accounts, stage: &Stage) -> Vec<(Colour, String)> {
    let moral = [String::new(), stage.moral()];
    let mut lines: Vec<_> =
        accounts.lines().into_iter().chain(moral).map(|line| (Colour::Plain, line)).collect();
    if accounts.problems().is_empty() {
        lines.push((Colour::Green, "Nothing was lost.".to_owned()));
    }
    lines
}

/// Ends a demo or trial early: a signal, or a key where keys are read one by one.
pub(crate) struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    keys: Option<mpsc::Receiver<u8>>,
}

impl Stop {
    pub(crate) fn new() -> anyhow::Result<Stop> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Stop { interrupt, terminate, keys: None })
    }

    pub(crate) async fn wanted(&mut self) {
        let key = async {
            match &mut self.keys {
                Some(keys) => while !matches!(keys.recv().await, Some(b'q' | b'Q' | 3 | 4) | None) {},
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = key => {}
        }
    }
}

const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// Where everything lies. Goes when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Folder(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() {
            return;
        }
        // A process that was killed just now may still be writing.
        for _ in 0..REMOVE_TRIES {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(REMOVE_PAUSE);
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_found_by_its_id() {
        assert_eq!(order_of(&id_of(4_711)), Some(4_711));
        assert_eq!(order_of("order-"), None);
        assert_eq!(order_of("4711"), None);
    }
}
