//! The demo's workers: processes with the SDK's worker, written as a user would write them. Each reports its steps
//! on its standard output, which the demo reads: an order is reported as billed before it is acked, so none can be
//! acked unreported.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_client::{Client, Fault, Job, Payload, Worker};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::ledger::Ledger;
use super::{GROUP, STREAM};
use crate::connect::{self, Server};

/// How long it takes to bill an order.
const BILLING: Duration = Duration::from_millis(8);
/// Orders that a worker bills at a time. Enough for more than the pace, so that the pace is the limit.
const CONCURRENCY: usize = 8;
/// How long a worker looks for its server.
const CONNECT_MAX: Duration = Duration::from_secs(30);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long a worker may take to leave.
const LEAVE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) fails: u32,
    pub(super) poison: bool,
}

impl Payload for Order {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, Args)]
pub(crate) struct DemoWorker {
    #[arg(long)]
    name: String,
    #[command(flatten)]
    server: Server,
}

/// `forebay demo-worker`.
pub(crate) fn run(options: &DemoWorker) -> anyhow::Result<()> {
    let address = options.server.first()?.authority;
    connect::runtime()?.block_on(async {
        let connecting = async {
            loop {
                match Client::connect(&address).await {
                    Ok(client) => return client,
                    Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
                }
            }
        };
        let client = tokio::time::timeout(CONNECT_MAX, connecting).await.context("there is no server")?;
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            // Nothing ever comes, until the other side wants it to end, or is gone.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = stop.send(());
        });
        Worker::builder(client, STREAM, GROUP, ())
            .name(&options.name)
            .concurrency(CONCURRENCY)
            .on(bill)
            .run_until(async { drop(stopped.await) })
            .await?;
        Ok(())
    })
}

async fn bill((): (), job: Job<Order>) -> Result<(), Fault> {
    if job.poison {
        say("refused", job.number)?;
        return Err(Fault::permanent("the amount is no number"));
    }
    tokio::time::sleep(BILLING).await;
    if job.info.attempt() <= job.fails {
        say("failed", job.number)?;
        return Err(Fault::transient("the bank did not answer"));
    }
    say("billed", job.number)?;
    Ok(())
}

/// A line is so short that it is written whole or not at all.
fn say(what: &str, order: u64) -> std::io::Result<()> {
    std::io::stdout().write_all(format!("{what} {order}\n").as_bytes())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    AtWork,
    Killed,
    Left,
}

/// A worker, as the demo sees it.
pub(super) struct WorkerProcess {
    pub(super) name: String,
    pub(super) state: State,
    child: Child,
    billed: Arc<AtomicU64>,
    listening: Option<JoinHandle<()>>,
}

impl WorkerProcess {
    pub(super) fn start(
        name: String,
        server: &str,
        folder: &Path,
        ledger: Ledger,
    ) -> anyhow::Result<WorkerProcess> {
        let mut child = super::server::own_command("demo-worker", &folder.join("workers.log"))?
            .args(["--name", &name, "--server", server])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let Some(stdout) = child.stdout.take() else { bail!("cannot hear a worker") };
        let billed = Arc::new(AtomicU64::new(0));
        let counted = billed.clone();
        let listening = tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                hear(&line, &ledger, &counted);
            }
        });
        Ok(WorkerProcess { name, state: State::AtWork, child, billed, listening: Some(listening) })
    }

    /// Orders that it has billed.
    pub(super) fn billed(&self) -> u64 {
        self.billed.load(Ordering::Relaxed)
    }

    pub(super) async fn kill(&mut self) {
        let _ = self.child.kill().await;
        self.state = State::Killed;
    }

    /// Tells the worker to finish its jobs and leave, without waiting for it.
    pub(super) fn leave(&mut self) {
        drop(self.child.stdin.take());
        self.state = State::Left;
    }

    /// Waits until it has gone, and everything that it said is written down.
    pub(super) async fn gone(&mut self) -> anyhow::Result<()> {
        if self.state == State::AtWork {
            self.leave();
        }
        if tokio::time::timeout(LEAVE_MAX, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        match self.listening.take() {
            Some(listening) => listening.await.context("a worker was not understood"),
            None => Ok(()),
        }
    }
}

fn hear(line: &str, ledger: &Ledger, billed: &AtomicU64) {
    let Some((what, order)) =
        line.split_once(' ').and_then(|(what, order)| Some((what, order.parse().ok()?)))
    else {
        return;
    };
    match what {
        "billed" => {
            billed.fetch_add(1, Ordering::Relaxed);
            ledger.billed(order);
        }
        "failed" => ledger.retried(),
        "refused" => ledger.refused(),
        _ => {}
    }
}
