//! The server as a process: started, killed, held still, stopped.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

/// Lines of what it says that are kept for a report.
const SAID_MAX: usize = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How to start one.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) data: PathBuf,
    /// A promise that the server is to break, if it was built so that it can.
    pub(crate) fault: Option<String>,
    /// Where the server writes down its calls on the disk, if it does.
    pub(crate) recording: Option<PathBuf>,
    /// Whether it serves SQS.
    pub(crate) with_sqs: bool,
    /// The master key of the data folder. None: it is not encrypted.
    pub(crate) key: Option<String>,
    /// Whether it serves KurrentDB clients.
    pub(crate) with_kurrent: bool,
    /// Further words for `serve`.
    pub(crate) words: Vec<String>,
}

/// Killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) run: u32,
    said: Arc<Mutex<VecDeque<String>>>,
    listening: Option<oneshot::Receiver<Addresses>>,
}

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) native: SocketAddr,
    pub(crate) sqs: Option<SocketAddr>,
    pub(crate) kurrent: Option<SocketAddr>,
}

impl Addresses {
    /// The addresses in a line of the server's log, if it is the one that tells them.
    fn read(line: &str) -> Option<Addresses> {
        let native = address_in(line, "listening on ")?;
        let (sqs, kurrent) = (address_in(line, ", SQS on "), address_in(line, ", Kurrent on "));
        Some(Addresses { native, sqs, kurrent })
    }
}

impl Process {
    pub(crate) fn start(how: &Launch, run: u32) -> anyhow::Result<Process> {
        let mut command = Command::new(&how.program);
        let port = |is_served: bool| if is_served { "127.0.0.1:0" } else { "none" };
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--sqs", port(how.with_sqs), "--kurrent", port(how.with_kurrent), "--data"])
            .arg(&how.data)
            .args(&how.words);
        if let Some(key) = &how.key {
            command.env("FOREBAY_ENCRYPTION_KEY", key);
        }
        if let Some(fault) = &how.fault {
            command.env("FOREBAY_PLANTED_FAULT", fault);
        }
        if let Some(recording) = &how.recording {
            command.env("FOREBAY_DISK_RECORDING", recording);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", how.program.display()))?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (tell, listening) = oneshot::channel();
        let heard = said.clone();
        // Ends with the process. Whatever the server says must not fill the pipe.
        std::thread::spawn(move || {
            let mut tell = Some(tell);
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(addresses) = Addresses::read(&line)
                    && let Some(tell) = tell.take()
                {
                    let _ = tell.send(addresses);
                }
                let mut said = heard.lock().expect("whoever keeps a line does not panic");
                if said.len() == SAID_MAX {
                    said.pop_front();
                }
                said.push_back(line);
            }
        });
        Ok(Process { child, run, said, listening: Some(listening) })
    }

    /// Waits until it says where it listens.
    pub(crate) async fn listening(&mut self, patience: Duration) -> anyhow::Result<Addresses> {
        let listening = self.listening.take().context("it has been asked before")?;
        match tokio::time::timeout(patience, listening).await {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(_)) => {
                let status = self.child.wait().context("cannot wait for the server")?;
                bail!("the server did not start ({status}): {}", self.said());
            }
            Err(_) => bail!("the server does not listen after {patience:?}: {}", self.said()),
        }
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn said(&self) -> String {
        let said = self.said.lock().expect("whoever keeps a line does not panic");
        said.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }

    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the server")?;
        self.child.wait().context("cannot wait for the server")?;
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("the server has no process id")?;
        kill_process(pid, signal).context("cannot signal the server")
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let waited = tokio::time::timeout(patience, async {
            loop {
                if let Some(status) = self.ended() {
                    return status;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        });
        waited.await.ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address_in(line: &str, after: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(after)?;
    rest.split([',', ' ']).next()?.parse().ok()
}

/// The server that was built together with this program.
pub(crate) fn beside_us() -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = us.parent().unwrap_or(Path::new("."));
    Ok(folder.join("forebay"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_the_server_says() {
        let line = "forebay: listening on 127.0.0.1:4711, data in somewhere";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let native = at(4711);
        assert_eq!(Addresses::read(line), Some(Addresses { native, sqs: None, kurrent: None }));
        let line = "forebay: listening on 127.0.0.1:4711, SQS on 127.0.0.1:9324, Kurrent on 127.0.0.1:2113, data in x";
        let (sqs, kurrent) = (Some(at(9324)), Some(at(2113)));
        assert_eq!(Addresses::read(line), Some(Addresses { native, sqs, kurrent }));
        assert_eq!(Addresses::read("forebay: stopping"), None);
    }
}
