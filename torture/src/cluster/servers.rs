//! The NATS servers, and the proxies before them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::COUNT;
use super::daemon::{Daemon, free_port};
use super::proxy::{Mode, Proxy};
use crate::dice::Dice;
use crate::http::Connection;

const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Nats {
    servers: Vec<Daemon>,
    monitors: Vec<u16>,
    /// By node and by server.
    from_nodes: Vec<Vec<Proxy>>,
    routes: Vec<Route>,
}

/// The way from one server to another, or from any server that learns of it from a third.
struct Route {
    from: Option<usize>,
    to: usize,
    proxy: Proxy,
}

fn name_of(server: usize) -> String {
    format!("n{}", server + 1)
}

pub(crate) fn index_of(name: &str) -> Option<usize> {
    (0..COUNT).find(|index| name_of(*index) == name)
}

impl Nats {
    pub(crate) async fn start(program: &Path, folder: &Path, dice: &mut Dice) -> anyhow::Result<Nats> {
        let mut ports = || (0..COUNT).map(|_| free_port(dice)).collect::<anyhow::Result<Vec<u16>>>();
        let (clients, monitors, routes) = (ports()?, ports()?, ports()?);
        let mut nats = Nats { servers: Vec::new(), monitors, from_nodes: Vec::new(), routes: Vec::new() };
        for _ in 0..COUNT {
            let mut proxies = Vec::new();
            for &port in &clients {
                proxies.push(Proxy::open(port).await?);
            }
            nats.from_nodes.push(proxies);
        }
        for (to, &port) in routes.iter().enumerate() {
            let others = (0..COUNT).filter(|from| *from != to).map(Some);
            for from in others.chain([None]) {
                nats.routes.push(Route { from, to, proxy: Proxy::open(port).await? });
            }
        }
        for server in 0..COUNT {
            let name = name_of(server);
            let text = nats.configuration(server, (clients[server], routes[server]), folder)?;
            let file = folder.join(format!("{name}.conf"));
            std::fs::write(&file, text).context("cannot write the configuration of NATS")?;
            let words = vec!["-c".to_owned(), file.display().to_string()];
            let log = folder.join(format!("{name}.log"));
            let mut daemon = Daemon::new(format!("NATS server {name}"), program.to_owned(), words, log);
            daemon.start()?;
            nats.servers.push(daemon);
        }
        nats.healthy().await?;
        Ok(nats)
    }

    /// Servers do not tell clients of each other, or clients would go around the proxies.
    fn configuration(
        &self,
        server: usize,
        (client, route): (u16, u16),
        folder: &Path,
    ) -> anyhow::Result<String> {
        let to_others = self.routes.iter().filter(|way| way.from == Some(server));
        let routes: Vec<String> =
            to_others.map(|way| format!("nats://127.0.0.1:{}", way.proxy.port)).collect();
        let known = self.routes.iter().find(|way| way.from.is_none() && way.to == server);
        let known = known.context("every server has a way that others learn of")?.proxy.port;
        let (name, monitor) = (name_of(server), self.monitors[server]);
        Ok(format!(
            "server_name: {name}\nlisten: 127.0.0.1:{client}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
             cluster {{ name: torture, listen: 127.0.0.1:{route}, advertise: \"127.0.0.1:{known}\", \
             no_advertise: true, routes: [{}] }}\n",
            folder.join(&name).display(),
            routes.join(", ")
        ))
    }

    async fn healthy(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + HEALTHY_WITHIN;
        for index in 0..COUNT {
            let address = ([127, 0, 0, 1], self.monitors[index]).into();
            let is_healthy = async || {
                let mut connection = Connection::open(address).await.ok()?;
                let answer = connection.request("GET", "/healthz", None).await.ok()?;
                (answer.status == 200).then_some(())
            };
            while is_healthy().await.is_none() {
                self.check()?;
                if Instant::now() > until {
                    bail!("the NATS servers do not answer: {}", self.servers[index].said());
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        Ok(())
    }

    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.servers.iter_mut().try_for_each(Daemon::check)
    }

    pub(crate) fn server(&mut self, index: usize) -> &mut Daemon {
        &mut self.servers[index]
    }

    /// Where a node reaches the servers.
    pub(crate) fn addresses_for(&self, node: usize) -> String {
        let address = |proxy: &Proxy| format!("nats://127.0.0.1:{}", proxy.port);
        self.from_nodes[node].iter().map(address).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn monitors(&self) -> String {
        let address = |port: &u16| format!("http://127.0.0.1:{port}");
        self.monitors.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Treats all connections of a node to the servers.
    pub(crate) fn treat_node(&self, node: usize, mode: Mode) {
        self.from_nodes[node].iter().for_each(|proxy| proxy.set(mode));
    }

    /// Treats all connections of a server: those to other servers, and those of nodes if that is wanted.
    pub(crate) fn treat_server(&self, server: usize, mode: Mode, with_nodes: bool) {
        for way in self.routes.iter().filter(|way| way.from == Some(server) || way.to == server) {
            way.proxy.set(mode);
        }
        for proxies in self.from_nodes.iter().filter(|_| with_nodes) {
            proxies[server].set(mode);
        }
    }
}
