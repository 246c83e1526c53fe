//! The processes of the trial: three NATS servers and three nodes.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use forebay_wire::json::ClusterReport;
use http_body_util::Full;
use hyper::Request;
use hyper::header::HOST;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::keeper::Keeper;
use crate::demo::server::own_command;
use crate::http::Connection;

pub(super) const COUNT: usize = 3;
/// How long NATS servers and nodes may take until they answer.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A node that is stopped finishes its work first.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Another process may take a port in between.
const PORT_TRIES: usize = 3;

/// A process that can be started again.
struct Process {
    name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    fn pid(&self) -> anyhow::Result<Pid> {
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        id.and_then(Pid::from_raw).with_context(|| format!("{} does not run", self.name))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid()?, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    async fn keep(&mut self, child: Child, keeper: &mut Keeper) -> anyhow::Result<()> {
        let id = child.id();
        self.child = Some(child);
        match id {
            Some(id) => keeper.started(id).await,
            None => Ok(()),
        }
    }

    /// Waits until it has ended, after a signal that ends it.
    async fn gone(&mut self, keeper: &mut Keeper) -> anyhow::Result<std::process::ExitStatus> {
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        let id = child.id();
        let ended = tokio::time::timeout(STOP_MAX, child.wait()).await;
        let status = ended.with_context(|| format!("{} does not stop", self.name))??;
        if let Some(id) = id {
            keeper.ended(id).await?;
        }
        Ok(status)
    }

    fn check_runs(&mut self) -> anyhow::Result<()> {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let Some(status) = ended else { return Ok(()) };
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        bail!("{} has ended by itself ({status}): {last}", self.name)
    }
}

/// Three of a kind.
pub(super) struct Nats {
    program: PathBuf,
    servers: Vec<(Process, PathBuf)>,
    ports: Vec<[u16; 3]>,
}

impl Nats {
    pub(super) async fn start(program: &Path, folder: &Path, keeper: &mut Keeper) -> anyhow::Result<Nats> {
        for attempt in 1.. {
            let folder = folder.join(format!("nats-{attempt}"));
            std::fs::create_dir_all(&folder).context("cannot make a folder for NATS")?;
            let mut nats = Nats::configure(program, &folder)?;
            for index in 0..COUNT {
                nats.spawn(index, keeper).await?;
            }
            match nats.answer().await {
                Ok(()) => return Ok(nats),
                Err(error) if attempt == PORT_TRIES => return Err(error),
                Err(_) => {
                    for (process, _) in &mut nats.servers {
                        if process.signal(Signal::KILL).is_ok() {
                            process.gone(keeper).await?;
                        }
                    }
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    fn configure(program: &Path, folder: &Path) -> anyhow::Result<Nats> {
        let ports: Vec<[u16; 3]> = (0..COUNT).map(|_| free_ports()).collect::<anyhow::Result<_>>()?;
        let routes: Vec<String> =
            ports.iter().map(|[.., route]| format!("nats://127.0.0.1:{route}")).collect();
        let routes = routes.join(", ");
        let mut servers = Vec::new();
        for (index, [port, monitor, route]) in (1..).zip(&ports) {
            let name = format!("n{index}");
            let text = format!(
                "server_name: {name}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
                 cluster {{ name: try, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n",
                folder.join(&name).display()
            );
            let configuration = folder.join(format!("{name}.conf"));
            std::fs::write(&configuration, text).context("cannot write the configuration of NATS")?;
            let log = folder.join(format!("{name}.log"));
            servers.push((Process { name: format!("NATS server {name}"), log, child: None }, configuration));
        }
        Ok(Nats { program: program.to_owned(), servers, ports })
    }

    async fn spawn(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        let (process, configuration) = &mut self.servers[index];
        let log =
            File::options().create(true).append(true).open(&process.log).context("cannot write a log")?;
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(&*configuration)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        process.keep(child, keeper).await
    }

    /// Waits until each server answers and has caught up with the others.
    async fn answer(&mut self) -> anyhow::Result<()> {
        let asked = async {
            for index in 0..COUNT {
                let address = format!("127.0.0.1:{}", self.ports[index][1]);
                while get(&address, "/healthz").await.is_none_or(|(status, _)| status != 200) {
                    self.servers[index].0.check_runs()?;
                    tokio::time::sleep(LOOK).await;
                }
            }
            Ok(())
        };
        tokio::time::timeout(START_MAX, asked).await.context("the NATS servers do not answer")?
    }

    fn addresses(&self, scheme: &str, which: usize) -> String {
        let address = |ports: &[u16; 3]| format!("{scheme}://127.0.0.1:{}", ports[which]);
        self.ports.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// The index of the server with this name.
    pub(super) fn index_of(name: &str) -> Option<usize> {
        let index = name.strip_prefix('n')?.parse::<usize>().ok()?;
        index.checked_sub(1).filter(|index| *index < COUNT)
    }

    pub(super) async fn kill(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        let (process, _) = &mut self.servers[index];
        process.signal(Signal::KILL)?;
        process.gone(keeper).await.map(drop)
    }

    pub(super) fn suspend(&self, index: usize) -> anyhow::Result<()> {
        self.servers[index].0.signal(Signal::STOP)
    }

    pub(super) fn resume(&self, index: usize) -> anyhow::Result<()> {
        self.servers[index].0.signal(Signal::CONT)
    }

    pub(super) async fn restart(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        self.spawn(index, keeper).await?;
        self.answer().await
    }
}

/// The nodes `a`, `b` and `c`.
pub(super) struct Nodes {
    nodes: Vec<Process>,
    addresses: Vec<String>,
    words: Vec<String>,
}

impl Nodes {
    pub(super) async fn start(nats: &Nats, folder: &Path, keeper: &mut Keeper) -> anyhow::Result<Nodes> {
        let words = [
            ("--engine", "jetstream".to_owned()),
            ("--cluster", "try".to_owned()),
            ("--nats", nats.addresses("nats", 0)),
            ("--nats-monitors", nats.addresses("http", 1)),
            ("--sqs", "none".to_owned()),
            ("--kurrent", "none".to_owned()),
            ("--log", "json".to_owned()),
        ];
        let words = words.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let mut nodes = Nodes { nodes: Vec::new(), addresses: Vec::new(), words };
        for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
            let log = folder.join(format!("node-{name}.log"));
            nodes.nodes.push(Process { name: format!("node {name}"), log, child: None });
            let [port, ..] = free_ports()?;
            nodes.addresses.push(format!("127.0.0.1:{port}"));
            nodes.spawn(index, keeper).await?;
        }
        Ok(nodes)
    }

    pub(super) async fn spawn(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        let process = &mut self.nodes[index];
        let child = own_command("demo-server", &process.log)?
            .args(&self.words)
            .args(["--node", name_of(index), "--listen", &self.addresses[index]])
            .spawn()
            .with_context(|| format!("cannot start {}", process.name))?;
        process.keep(child, keeper).await
    }

    /// The addresses of all nodes, beginning with this one.
    pub(super) fn addresses_from(&self, first: usize) -> String {
        let order = (0..COUNT).map(|nth| self.addresses[(first + nth) % COUNT].clone());
        order.collect::<Vec<_>>().join(",")
    }

    pub(super) fn index_of(name: &str) -> Option<usize> {
        (0..COUNT).find(|index| name_of(*index) == name)
    }

    pub(super) async fn kill(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        self.nodes[index].signal(Signal::KILL)?;
        self.nodes[index].gone(keeper).await.map(drop)
    }

    /// Asks it to stop, and does not wait until it has.
    pub(super) fn terminate(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].signal(Signal::TERM)
    }

    /// Waits until it has stopped.
    pub(super) async fn stopped(&mut self, index: usize, keeper: &mut Keeper) -> anyhow::Result<()> {
        let status = self.nodes[index].gone(keeper).await?;
        if status.success() { Ok(()) } else { bail!("{} stopped badly ({status})", self.nodes[index].name) }
    }

    pub(super) fn suspend(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].signal(Signal::STOP)
    }

    pub(super) fn resume(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].signal(Signal::CONT)
    }

    pub(super) fn check_run(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(Process::check_runs)
    }

    /// How the cluster stands, as the first node says that answers.
    pub(super) async fn report(&self) -> Option<ClusterReport> {
        for address in &self.addresses {
            if let Some((200, body)) = get(address, "/cluster").await
                && let Ok(report) = serde_json::from_slice(&body)
            {
                return Some(report);
            }
        }
        None
    }
}

pub(super) fn name_of(node: usize) -> &'static str {
    ["a", "b", "c"][node]
}

/// Ports that are free now.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let mut ports = [0; 3];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
        *port = listener.local_addr().context("no port is free")?.port();
        held.push(listener);
    }
    Ok(ports)
}

async fn get(address: &str, path: &str) -> Option<(u16, Bytes)> {
    let asked = async {
        let request = Request::get(path).header(HOST, address).body(Full::new(Bytes::new())).ok()?;
        Connection::open(address).await.ok()?.exchange(request).await.ok()
    };
    tokio::time::timeout(ANSWER_MAX, asked).await.ok().flatten()
}
