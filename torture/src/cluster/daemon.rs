//! A process of the cluster: a NATS server or a node, which can be started again.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::dice::Dice;

const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Lines of its log that are kept for a report.
const SAID_LINES: usize = 12;
/// Below the ports that the system gives to connections: a port of a process that is down for a while must stay free.
const PORTS: (u64, u64) = (12_000, 32_000);

/// Killed when it is dropped.
pub(crate) struct Daemon {
    pub(crate) name: String,
    program: PathBuf,
    words: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    pub(crate) fn new(name: String, program: PathBuf, words: Vec<String>, log: PathBuf) -> Daemon {
        Daemon { name, program, words, log, child: None }
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log).context("cannot write a log")?;
        let child = Command::new(&self.program)
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        kill_process(Pid::from_child(child), signal).with_context(|| format!("cannot signal {}", self.name))
    }

    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn gone(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let ended = tokio::time::timeout(patience, async {
            loop {
                let child = self.child.as_mut().with_context(|| format!("{} does not run", self.name))?;
                if let Some(status) = child.try_wait()? {
                    return anyhow::Ok(status);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        });
        match ended.await {
            Ok(status) => {
                self.child = None;
                status
            }
            Err(_) => bail!("{} does not stop within {patience:?}: {}", self.name, self.said()),
        }
    }

    /// Fails if it ended without being asked to.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        match ended {
            Some(status) => bail!("{} ended by itself ({status}): {}", self.name, self.said()),
            None => Ok(()),
        }
    }

    pub(crate) fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SAID_LINES)..].join(" | ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that is free now.
pub(crate) fn free_port(dice: &mut Dice) -> anyhow::Result<u16> {
    for _ in 0..1_000 {
        let port = u16::try_from(dice.between(PORTS.0, PORTS.1))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}
