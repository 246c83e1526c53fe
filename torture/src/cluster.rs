//! A cluster: three NATS servers and three nodes. Every connection from a node to a NATS server, and between NATS
//! servers, goes through a proxy of its own, so that any of them can be cut, hang and be slow.
//!
//! One fault follows the other, each from a cluster that is well to a cluster that is well. A run of the history is a
//! term of an owner. The history says which fault ended each term; a term that none ended is a broken promise.

mod daemon;
mod proxy;
mod servers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_wire::json::{ClusterReport, NodeRole};
use rustix::process::Signal;
use tokio::sync::watch;

use crate::dice::Dice;
use crate::history::Phase;
use crate::http::Connection;
use crate::inspect::Inspector;
use crate::run::{Options, TORMENTOR, Victim};
use crate::server::Addresses;
use crate::world::{Place, Server, World, at_node};
use daemon::{Daemon, free_port};
use proxy::Mode;
use servers::Nats;

pub(crate) const COUNT: usize = 3;
const NAMES: [&str; COUNT] = ["a", "b", "c"];
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// A cluster that is not well after so long stays unwell.
const CALM_WITHIN: Duration = Duration::from_secs(120);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// Something that is done to a process or its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    OwnerKilled,
    OwnerStopped,
    /// Held still for longer than a takeover takes.
    OwnerSuspended,
    /// Its connections to NATS end, and it gets no new ones.
    OwnerCut,
    /// Its connections to NATS pass nothing on.
    OwnerHung,
    StandbyKilled,
    NatsLeaderKilled,
    NatsLeaderSuspended,
    NatsLeaderSlowed,
    /// Neither nodes nor other NATS servers reach it.
    NatsLeaderCut,
    /// Nodes reach it, and other NATS servers do not.
    NatsLeaderSplit,
}

impl Fault {
    /// How often each happens, in a round of all of them.
    const ROUND: [(Fault, usize); 11] = [
        (Fault::OwnerKilled, 5),
        (Fault::OwnerStopped, 5),
        (Fault::OwnerSuspended, 3),
        (Fault::OwnerCut, 3),
        (Fault::OwnerHung, 3),
        (Fault::StandbyKilled, 1),
        (Fault::NatsLeaderKilled, 2),
        (Fault::NatsLeaderSuspended, 2),
        (Fault::NatsLeaderSlowed, 1),
        (Fault::NatsLeaderCut, 1),
        (Fault::NatsLeaderSplit, 1),
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::OwnerKilled => "owner-killed",
            Fault::OwnerStopped => "owner-stopped",
            Fault::OwnerSuspended => "owner-suspended",
            Fault::OwnerCut => "owner-cut",
            Fault::OwnerHung => "owner-hung",
            Fault::StandbyKilled => "standby-killed",
            Fault::NatsLeaderKilled => "nats-leader-killed",
            Fault::NatsLeaderSuspended => "nats-leader-suspended",
            Fault::NatsLeaderSlowed => "nats-leader-slowed",
            Fault::NatsLeaderCut => "nats-leader-cut",
            Fault::NatsLeaderSplit => "nats-leader-split",
        }
    }

    /// Whether another node must own the log afterwards. After any other fault the owner must be the same.
    fn changes_owner(self) -> bool {
        use Fault::{OwnerCut, OwnerHung, OwnerKilled, OwnerStopped, OwnerSuspended};
        matches!(self, OwnerKilled | OwnerStopped | OwnerSuspended | OwnerCut | OwnerHung)
    }

    /// All faults of a round, in an order that the dice choose.
    fn round(dice: &mut Dice) -> Vec<Fault> {
        let all = Fault::ROUND.iter().flat_map(|&(fault, times)| std::iter::repeat_n(fault, times));
        let mut all: Vec<Fault> = all.collect();
        for index in (1..all.len()).rev() {
            all.swap(index, dice.between(0, index as u64) as usize);
        }
        all
    }
}

/// A cluster of which all parts are well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    owner: usize,
    term: u32,
    /// The NATS server that leads the log's stream.
    leader: usize,
}

/// What to start, and what runs of it.
pub(crate) struct Cluster {
    world: Arc<World>,
    tell_place: watch::Sender<Option<Place>>,
    dice: Dice,
    program: PathBuf,
    nats_program: PathBuf,
    folder: PathBuf,
    with_sqs: bool,
    with_kurrent: bool,
    words: Vec<String>,
    nats: Option<Nats>,
    nodes: Vec<Node>,
    /// The last term that the history tells of.
    term: u32,
    faults: Vec<Fault>,
}

struct Node {
    daemon: Daemon,
    addresses: Addresses,
}

impl Cluster {
    pub(crate) fn new(
        options: &Options,
        nats: &Path,
        world: Arc<World>,
        tell_place: watch::Sender<Option<Place>>,
        dice: Dice,
    ) -> Cluster {
        Cluster {
            world,
            tell_place,
            dice,
            program: options.program.clone(),
            nats_program: nats.to_owned(),
            folder: options.folder.clone(),
            with_sqs: options.with_sqs,
            with_kurrent: options.with_kurrent,
            words: options.words.clone(),
            nats: None,
            nodes: Vec::new(),
            term: 0,
            faults: Vec::new(),
        }
    }

    /// Starts NATS servers and nodes.
    async fn launch(&mut self) -> anyhow::Result<()> {
        // Not those of the seed, with which several runs may be made at once.
        let mut ports = Dice::from(u64::from(std::process::id()) << 20 | u64::from(self.term));
        let nats = Nats::start(&self.nats_program, &self.folder, &mut ports).await?;
        for (index, name) in NAMES.into_iter().enumerate() {
            let mut port = || free_port(&mut ports).map(|port| format!("127.0.0.1:{port}"));
            let listen = port()?;
            let other = |is_served: bool, at: String| if is_served { at } else { "none".to_owned() };
            let (sqs, kurrent) = (other(self.with_sqs, port()?), other(self.with_kurrent, port()?));
            let addresses =
                Addresses { native: listen.parse()?, sqs: sqs.parse().ok(), kurrent: kurrent.parse().ok() };
            let pairs = [
                ("--engine", "jetstream".to_owned()),
                ("--cluster", "torture".to_owned()),
                ("--node", name.to_owned()),
                ("--nats", nats.addresses_for(index)),
                ("--nats-monitors", nats.monitors()),
                ("--listen", listen),
                ("--sqs", sqs),
                ("--kurrent", kurrent),
                ("--log", "text".to_owned()),
            ];
            let pairs = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
            let words = std::iter::once("serve".to_owned()).chain(pairs).chain(self.words.iter().cloned());
            let log = self.folder.join(format!("node-{name}.log"));
            let mut daemon = Daemon::new(format!("node {name}"), self.program.clone(), words.collect(), log);
            daemon.start()?;
            self.nodes.push(Node { daemon, addresses });
        }
        self.nats = Some(nats);
        Ok(())
    }

    fn nats(&mut self) -> anyhow::Result<&mut Nats> {
        self.nats.as_mut().context("no NATS server runs")
    }

    /// Sees to it that no process has ended by itself.
    fn check(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(|node| node.daemon.check())?;
        self.nats.iter_mut().try_for_each(Nats::check)
    }

    /// How the cluster stands, as its nodes say that answer.
    async fn reports(&self) -> Vec<ClusterReport> {
        let mut reports = Vec::new();
        for node in &self.nodes {
            let asked = async {
                let mut connection = Connection::open(node.addresses.native).await.ok()?;
                let answer = connection.request("GET", "/cluster", None).await.ok()?;
                serde_json::from_value::<ClusterReport>(answer.body).ok()
            };
            reports.extend(tokio::time::timeout(ANSWERS_WITHIN, asked).await.ok().flatten());
        }
        reports
    }

    /// Waits until one node owns the log, the others stand by, and all NATS servers have all of it.
    async fn calm(&mut self) -> anyhow::Result<Standing> {
        let until = Instant::now() + CALM_WITHIN;
        let mut last = Vec::new();
        while Instant::now() < until {
            self.check()?;
            last = self.reports().await;
            // All say the same, so that none of them sends clients elsewhere.
            let standings: Vec<Standing> = last.iter().filter_map(standing).collect();
            if let [first, second, third] = standings[..]
                && first == second
                && second == third
            {
                return Ok(first);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let said = self.nodes.iter().map(|node| node.daemon.said()).collect::<Vec<_>>().join("\n");
        bail!("the cluster is not well after {CALM_WITHIN:?}: {last:?}\n{said}")
    }

    /// Waits until another node owns the log.
    async fn changed(&mut self, before: Standing) -> anyhow::Result<()> {
        let until = Instant::now() + CALM_WITHIN;
        while Instant::now() < until {
            self.check()?;
            let reports = self.reports().await;
            let is_other = |report: &ClusterReport| {
                report.term > before.term && report.owner.as_deref() != Some(NAMES[before.owner])
            };
            if reports.iter().any(is_other) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        bail!("no other node owns the log after {CALM_WITHIN:?}")
    }

    /// Tells the history of the terms since it was last told. The first of them is explained by the fault.
    fn tell_terms(&mut self, term: u32, mut cause: Option<Fault>) {
        while self.term < term {
            self.term += 1;
            let run = ("run", self.term.to_string());
            self.world.write(TORMENTOR, Phase::Invoke, "start", std::slice::from_ref(&run));
            if self.term > 1 {
                let cause = cause.take().map_or("none", Fault::name).to_owned();
                self.world.write(TORMENTOR, Phase::Info, "term", &[run, ("cause", cause)]);
            }
        }
    }

    /// One fault, from a cluster that is well to a cluster that is well.
    async fn strike(&mut self, fault: Fault, inspector: &Inspector) -> anyhow::Result<()> {
        let before = self.calm().await?;
        self.tell_terms(before.term, None);
        let name = ("fault", fault.name().to_owned());
        let run = ("run", before.term.to_string());
        self.world.write(TORMENTOR, Phase::Invoke, "fault", &[name.clone(), run.clone()]);
        // The server is slow from now on, or not there.
        self.world.write(TORMENTOR, Phase::Info, "pause", std::slice::from_ref(&run));
        if fault.changes_owner() {
            let how = if fault == Fault::OwnerStopped { "stop" } else { "kill" };
            self.world.write(TORMENTOR, Phase::Invoke, how, &[run.clone(), ("by", fault.name().to_owned())]);
        }
        self.act(fault, before).await.with_context(|| format!("{} in term {}", fault.name(), before.term))?;
        let after = self.calm().await.with_context(|| format!("after {}", fault.name()))?;
        self.world.write(TORMENTOR, Phase::Info, "resume", std::slice::from_ref(&run));
        self.world.write(TORMENTOR, Phase::Ok, "fault", &[name, run]);
        if fault.changes_owner() && before.term == after.term {
            self.world.trouble(TORMENTOR, format!("{} did not change the owner", fault.name()));
        }
        self.tell_terms(after.term, Some(fault).filter(|fault| fault.changes_owner()));
        if before.term != after.term {
            let server = self.server().await?;
            inspector.look_for_all(server).await.with_context(|| format!("after {}", fault.name()))?;
        }
        Ok(())
    }

    async fn act(&mut self, fault: Fault, before: Standing) -> anyhow::Result<()> {
        let Standing { owner, leader, .. } = before;
        let some = |dice: &mut Dice, from, to| Duration::from_millis(dice.between(from, to));
        match fault {
            Fault::OwnerKilled => {
                self.nodes[owner].daemon.kill()?;
                // Sometimes it is there again before another node notices.
                if self.dice.permille(600) {
                    self.changed(before).await?;
                }
                self.nodes[owner].daemon.start()
            }
            Fault::OwnerStopped => {
                let daemon = &mut self.nodes[owner].daemon;
                daemon.signal(Signal::TERM)?;
                let status = daemon.gone(STOP_WITHIN).await?;
                if !status.success() {
                    bail!("{} stopped badly ({status}): {}", daemon.name, daemon.said());
                }
                daemon.start()
            }
            Fault::OwnerSuspended => {
                self.nodes[owner].daemon.signal(Signal::STOP)?;
                self.changed(before).await?;
                tokio::time::sleep(some(&mut self.dice, 0, 3_000)).await;
                self.nodes[owner].daemon.signal(Signal::CONT)
            }
            Fault::OwnerCut | Fault::OwnerHung => {
                let mode = if fault == Fault::OwnerCut { Mode::Cut } else { Mode::Hang };
                self.nats()?.treat_node(owner, mode);
                self.changed(before).await?;
                tokio::time::sleep(some(&mut self.dice, 0, 3_000)).await;
                self.nats()?.treat_node(owner, Mode::Pass);
                Ok(())
            }
            Fault::StandbyKilled => {
                let standby = (owner + self.dice.between(1, 2) as usize) % COUNT;
                self.nodes[standby].daemon.kill()?;
                tokio::time::sleep(some(&mut self.dice, 200, 2_000)).await;
                self.nodes[standby].daemon.start()
            }
            Fault::NatsLeaderKilled => {
                self.nats()?.server(leader).kill()?;
                tokio::time::sleep(some(&mut self.dice, 0, 7_000)).await;
                self.nats()?.server(leader).start()
            }
            Fault::NatsLeaderSuspended => {
                self.nats()?.server(leader).signal(Signal::STOP)?;
                tokio::time::sleep(some(&mut self.dice, 3_000, 12_000)).await;
                self.nats()?.server(leader).signal(Signal::CONT)
            }
            Fault::NatsLeaderSlowed => {
                let late = some(&mut self.dice, 20, 100);
                self.nats()?.treat_server(leader, Mode::Slow(late), true);
                tokio::time::sleep(some(&mut self.dice, 3_000, 8_000)).await;
                self.nats()?.treat_server(leader, Mode::Pass, true);
                Ok(())
            }
            Fault::NatsLeaderCut | Fault::NatsLeaderSplit => {
                let mode = if self.dice.permille(500) { Mode::Cut } else { Mode::Hang };
                self.nats()?.treat_server(leader, mode, fault == Fault::NatsLeaderCut);
                tokio::time::sleep(some(&mut self.dice, 3_000, 12_000)).await;
                self.nats()?.treat_server(leader, Mode::Pass, true);
                Ok(())
            }
        }
    }
}

impl Victim for Cluster {
    async fn start(&mut self, inspector: &Inspector) -> anyhow::Result<()> {
        self.launch().await?;
        let standing = self.calm().await?;
        self.tell_terms(standing.term, None);
        let server = self.server().await?;
        inspector.look_for_all(server).await?;
        let nodes: Vec<Addresses> = self.nodes.iter().map(|node| node.addresses).collect();
        self.tell_place.send_replace(Some(Place::Nodes(nodes.into())));
        Ok(())
    }

    async fn suffer(&mut self, inspector: &Inspector, lasts: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            let pause = Duration::from_millis(self.dice.between(300, 2_500));
            self.wait(pause.min(until.saturating_duration_since(Instant::now()))).await?;
            if self.faults.is_empty() {
                self.faults = Fault::round(&mut self.dice);
            }
            if let Some(fault) = self.faults.pop() {
                self.strike(fault, inspector).await?;
            }
        }
        Ok(())
    }

    async fn wait(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    async fn server(&mut self) -> anyhow::Result<Server> {
        let until = Instant::now() + CALM_WITHIN;
        while Instant::now() < until {
            self.check()?;
            let node = self.dice.between(0, COUNT as u64 - 1) as usize;
            if let Some(server) = at_node(self.nodes[node].addresses).await {
                return Ok(server);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        bail!("no node serves within {CALM_WITHIN:?}")
    }

    async fn change_cleanly(&mut self, inspector: &Inspector) -> anyhow::Result<()> {
        self.strike(Fault::OwnerStopped, inspector).await
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        let standing = self.calm().await?;
        self.tell_terms(standing.term, None);
        self.tell_place.send_replace(None);
        // The owner last, so that no other node takes over.
        for index in (1..=COUNT).map(|nth| (standing.owner + nth) % COUNT) {
            let daemon = &mut self.nodes[index].daemon;
            daemon.signal(Signal::TERM)?;
            let status = daemon.gone(STOP_WITHIN).await?;
            if !status.success() {
                bail!("{} stopped badly ({status}): {}", daemon.name, daemon.said());
            }
        }
        Ok(())
    }
}

fn standing(report: &ClusterReport) -> Option<Standing> {
    let mut owners = report.nodes.iter().filter(|node| node.role == NodeRole::Owner);
    let owner = owners.next().filter(|_| owners.next().is_none())?;
    let log = report.log.as_ref()?;
    let is_well = report.nodes.len() == COUNT
        && report.owner.as_ref() == Some(&owner.node)
        && log.servers.len() == COUNT
        && log.servers.iter().all(|server| server.online && server.current);
    let leader = log.servers.iter().find(|server| server.leader)?;
    let standing = Standing {
        owner: NAMES.iter().position(|name| *name == owner.node)?,
        term: report.term,
        leader: servers::index_of(&leader.name)?,
    };
    is_well.then_some(standing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_three_faults_of_owners_for_one_of_nats() {
        let round = Fault::round(&mut Dice::from(1));
        let of_owners = round.iter().filter(|fault| fault.changes_owner()).count();
        let of_nats = round.iter().filter(|fault| fault.name().starts_with("nats-")).count();
        assert_eq!((of_owners, of_nats, round.len()), (19, 7, 27));
        assert_ne!(round, Fault::round(&mut Dice::from(2)));
    }
}
