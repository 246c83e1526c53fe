//! The demo's server: the real one, in a process of its own, so that it can be killed.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_client::Client;
use tokio::process::{Child, Command};

use crate::serve;
use crate::settings::Sources;

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// Another process may take the port in between.
const PORT_TRIES: usize = 5;

/// `forebay demo-server`: `forebay serve`, which ends when the demo does, however that ends.
pub(crate) fn run(sources: &Sources) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        // Nothing ever comes, until the other side is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    serve::run(sources)
}

pub(super) struct ServerProcess {
    folder: PathBuf,
    pub(super) address: SocketAddr,
    child: Option<Child>,
}

impl ServerProcess {
    /// Starts a server on a port that is free, with its data in this folder.
    pub(super) async fn start(folder: &Path) -> anyhow::Result<(ServerProcess, Client)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let free = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
            let address = free.local_addr().context("no port is free")?;
            drop(free);
            let mut server = ServerProcess { folder: folder.to_owned(), address, child: None };
            server.spawn()?;
            match server.answers().await {
                Ok(client) => return Ok((server, client)),
                Err(error) if tries == PORT_TRIES => return Err(error),
                Err(_) => server.kill().await,
            }
        }
    }

    /// Starts it, or starts it again on the same port.
    pub(super) fn spawn(&mut self) -> anyhow::Result<()> {
        let data = self.folder.join("data");
        let child = own_command("demo-server", &self.folder.join("server.log"))?
            .args(["--listen", &self.address.to_string(), "--log", "json"])
            .arg("--data")
            .arg(data)
            // A small folder, since it is soon gone.
            .args(["--segment-bytes", "32MiB", "--reserve-bytes", "128MiB", "--free-bytes-min", "16MiB"])
            .spawn()
            .context("cannot start the server")?;
        self.child = Some(child);
        Ok(())
    }

    /// Kills without warning, as the kernel does when memory is short, or as a power cut would.
    pub(super) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().await;
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.child.is_some()
    }

    async fn answers(&mut self) -> anyhow::Result<Client> {
        let address = self.address.to_string();
        let asked = async {
            loop {
                if let Ok(client) = Client::connect(&address).await {
                    return Ok(client);
                }
                if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                    let said = std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
                    bail!("the server did not start: {status}: {}", said.trim());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(START_MAX, asked).await.context("the server does not answer")?
    }
}

/// This same program, as one of the demo's processes: it inherits no settings from the environment and no standard
/// input, and it is killed when it is dropped.
pub(crate) fn own_command(command: &str, log: &Path) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let log = File::options().create(true).append(true).open(log).context("cannot write a log")?;
    let mut own = Command::new(program);
    own.arg(command);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            own.env_remove(name);
        }
    }
    own.process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .kill_on_drop(true);
    Ok(own)
}
