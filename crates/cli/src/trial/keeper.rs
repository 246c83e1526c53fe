//! A process that ends the others if the trial is killed and cannot do so itself. NATS servers do not notice that their
//! parent is gone, and neither does a suspended node.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::path::Path;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};

use crate::demo::server::own_command;

/// `forebay cluster-try-keeper`: reads `+ID` and `-ID`, and kills the processes that are left at the end of its input.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut processes = BTreeSet::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("cannot hear the trial")?;
        let id = line.get(1..).and_then(|id| id.parse::<i32>().ok());
        match (line.bytes().next(), id) {
            (Some(b'+'), Some(id)) => drop(processes.insert(id)),
            (Some(b'-'), Some(id)) => drop(processes.remove(&id)),
            _ => {}
        }
    }
    for process in processes.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(process, Signal::KILL);
    }
    Ok(())
}

/// The keeper, as the trial sees it. Dropped, it is killed and does nothing.
pub(super) struct Keeper {
    _process: Child,
    told: ChildStdin,
}

impl Keeper {
    pub(super) fn start(folder: &Path) -> anyhow::Result<Keeper> {
        let mut process = own_command("cluster-try-keeper", &folder.join("keeper.log"))?
            .spawn()
            .context("cannot start the keeper of the processes")?;
        let told = process.stdin.take().context("cannot reach the keeper of the processes")?;
        Ok(Keeper { _process: process, told })
    }

    pub(super) async fn started(&mut self, process: u32) -> anyhow::Result<()> {
        self.tell('+', process).await
    }

    pub(super) async fn ended(&mut self, process: u32) -> anyhow::Result<()> {
        self.tell('-', process).await
    }

    async fn tell(&mut self, what: char, process: u32) -> anyhow::Result<()> {
        let line = format!("{what}{process}\n");
        self.told.write_all(line.as_bytes()).await.context("the keeper of the processes is gone")
    }
}
