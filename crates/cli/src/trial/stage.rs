//! The faults, one after the other, and when the cluster is well again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use forebay_client::GroupSettings;
use forebay_wire::json::{ClusterReport, NodeRole};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Fault;
use super::keeper::Keeper;
use super::ledger::Ledger;
use super::load::{connect, consume, produce, publish_backlog};
use super::processes::{COUNT, Nats, Nodes, name_of};
use super::report::{Accounts, Event};
use crate::clock::{Clock, Timestamp};
use crate::print::{Output, print};
use crate::units;

pub(super) const STREAM: &str = "orders";
pub(super) const GROUP: &str = "billing";
/// Messages of this stream wait and are never consumed.
const BACKLOG: &str = "backlog";
const PRODUCERS: usize = 2;
/// How often the cluster and the ledger are looked at.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_AT_LEDGER: Duration = Duration::from_millis(5);
/// A cluster that is not well again after so long stays unwell.
const CALM_MAX: Duration = Duration::from_secs(90);
const FELT_MAX: Duration = Duration::from_secs(90);
/// How long the last confirmations and deliveries may take.
const END_MAX: Duration = Duration::from_secs(120);
/// How long processes are suspended: longer than a takeover, and than an election among the NATS servers.
const OWNER_SUSPENDED: Duration = Duration::from_secs(8);
const NATS_SUSPENDED: Duration = Duration::from_secs(10);

pub(super) struct Stage {
    output: Output,
    keeper: Keeper,
    nats: Nats,
    nodes: Nodes,
    ledger: Ledger,
    clock: Clock,
    began: Timestamp,
    /// Producers and consumers end with the stage.
    load: JoinSet<()>,
    events: Vec<Event>,
    problems: Vec<String>,
}

/// A cluster of which all parts are well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    owner: usize,
    term: u32,
    /// The NATS server that leads the log's stream.
    leader: usize,
}

impl Stage {
    /// Starts servers and nodes, and waits until all of them are well.
    pub(super) async fn set(
        program: &Path,
        folder: &Path,
        output: Output,
        backlog: u32,
    ) -> anyhow::Result<Stage> {
        let mut keeper = Keeper::start(folder)?;
        let nats = Nats::start(program, folder, &mut keeper).await?;
        let nodes = Nodes::start(&nats, folder, &mut keeper).await?;
        let clock = Clock::start();
        let mut stage = Stage {
            output,
            keeper,
            nats,
            nodes,
            ledger: Ledger::default(),
            began: clock.now(),
            clock,
            load: JoinSet::new(),
            events: Vec::new(),
            problems: Vec::new(),
        };
        let standing = stage.calm().await?;
        stage.tell(format!(
            "three NATS servers and three nodes run on 127.0.0.1, and node {} owns the log",
            name_of(standing.owner)
        ))?;
        let client = connect(&stage.nodes.addresses_from(standing.owner)).await;
        for (stream, group) in [(STREAM, GROUP), (BACKLOG, GROUP)] {
            client
                .create_group(stream, group, GroupSettings::new())
                .await
                .context("cannot create a group")?;
        }
        if backlog > 0 {
            publish_backlog(&client, BACKLOG, backlog).await.context("cannot publish the backlog")?;
            stage.tell(format!("{} wait in another group", units::of(backlog.into(), "message")))?;
        }
        Ok(stage)
    }

    /// Plays the faults one after the other, with load all the time.
    pub(super) async fn play(
        &mut self,
        faults: impl Iterator<Item = Fault>,
        rate: u32,
    ) -> anyhow::Result<Accounts> {
        let first = self.calm().await?;
        let (over, is_over) = watch::channel(false);
        let mut producers = JoinSet::new();
        for nth in 0..PRODUCERS {
            let nodes = self.nodes.addresses_from(nth);
            let rate = f64::from(rate) / PRODUCERS as f64;
            producers.spawn(produce(nodes, rate, self.ledger.clone(), self.clock, is_over.clone()));
        }
        // Each prefers another node, so that some come to the owner by way of a standby.
        for nth in 0..COUNT {
            let nodes = self.nodes.addresses_from(nth);
            self.load.spawn(consume(nodes, self.ledger.clone(), self.clock));
        }
        let mut last = first;
        for fault in faults {
            last = self.suffer(fault).await?;
        }
        over.send_replace(true);
        let ends = async {
            while producers.join_next().await.is_some() {}
            while !self.ledger.is_complete() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(END_MAX, ends).await.is_err() {
            self.problems.push(format!("messages are missing after {} s", END_MAX.as_secs()));
        }
        self.close(first, last).await
    }

    /// One fault, from a cluster that is well to a cluster that is well.
    async fn suffer(&mut self, fault: Fault) -> anyhow::Result<Standing> {
        let before = self.calm().await?;
        self.ledger.mark(self.clock.now(), false);
        self.felt().await.context("the load does not flow")?;
        let target = match fault {
            fault if fault.changes_owner() => format!("node {}", name_of(before.owner)),
            Fault::NatsReplicaKilled => format!("NATS server n{}", replica_of(before.leader) + 1),
            _ => format!("NATS server n{}", before.leader + 1),
        };
        self.tell(format!("{}: {target}", fault.name()))?;
        let at = self.clock.now();
        self.ledger.mark(at, fault.changes_owner());
        self.strike(fault, before).await?;
        let (delivery, confirmation) = self.felt().await.with_context(|| {
            format!(
                "no message was confirmed and delivered in the {} s after {}",
                FELT_MAX.as_secs(),
                fault.name()
            )
        })?;
        self.repair(fault, before).await?;
        let after = self.calm().await?;
        let event = Event {
            at: at.since(self.began),
            fault,
            target,
            owners: (name_of(before.owner), name_of(after.owner)),
            terms: (before.term, after.term),
            delivery,
            confirmation,
        };
        self.problems.extend(event.problem());
        let owner = match before.term == after.term {
            true => format!("node {} still owns the log", name_of(after.owner)),
            false => format!("node {} owns the log", name_of(after.owner)),
        };
        let seconds = |time: Duration| format!("{:.2}s", time.as_secs_f64());
        self.tell(format!(
            "{owner}; first delivery after {}, first confirmation after {}",
            seconds(delivery),
            seconds(confirmation)
        ))?;
        if self.output == Output::Json {
            print(&format!("{}\n", event.json()))?;
        }
        self.events.push(event);
        Ok(after)
    }

    async fn strike(&mut self, fault: Fault, before: Standing) -> anyhow::Result<()> {
        let Standing { owner, leader, .. } = before;
        match fault {
            Fault::OwnerKilled => self.nodes.kill(owner, &mut self.keeper).await,
            Fault::OwnerStopped => self.nodes.terminate(owner),
            Fault::OwnerSuspended => {
                self.nodes.suspend(owner)?;
                tokio::time::sleep(OWNER_SUSPENDED).await;
                self.nodes.resume(owner)
            }
            Fault::NatsLeaderKilled => self.nats.kill(leader, &mut self.keeper).await,
            Fault::NatsReplicaKilled => self.nats.kill(replica_of(leader), &mut self.keeper).await,
            Fault::NatsLeaderSuspended => {
                self.nats.suspend(leader)?;
                tokio::time::sleep(NATS_SUSPENDED).await;
                self.nats.resume(leader)
            }
        }
    }

    async fn repair(&mut self, fault: Fault, before: Standing) -> anyhow::Result<()> {
        let Standing { owner, leader, .. } = before;
        match fault {
            Fault::OwnerKilled => self.nodes.spawn(owner, &mut self.keeper).await,
            Fault::OwnerStopped => {
                self.nodes.stopped(owner, &mut self.keeper).await?;
                self.nodes.spawn(owner, &mut self.keeper).await
            }
            Fault::NatsLeaderKilled => self.nats.restart(leader, &mut self.keeper).await,
            Fault::NatsReplicaKilled => self.nats.restart(replica_of(leader), &mut self.keeper).await,
            Fault::OwnerSuspended | Fault::NatsLeaderSuspended => Ok(()),
        }
    }

    /// Waits until messages are delivered and confirmed after the last mark, and says how long each took.
    async fn felt(&self) -> anyhow::Result<(Duration, Duration)> {
        let both = async {
            loop {
                if let (Some(delivery), Some(confirmation)) = self.ledger.after_mark() {
                    return (delivery, confirmation);
                }
                tokio::time::sleep(LOOK_AT_LEDGER).await;
            }
        };
        tokio::time::timeout(FELT_MAX, both).await.map_err(|_| anyhow!("nothing came in time"))
    }

    /// Waits until one node owns the log, the others stand by, and all NATS servers have all of it.
    async fn calm(&mut self) -> anyhow::Result<Standing> {
        let until = self.clock.now() + CALM_MAX;
        let mut last = None;
        while self.clock.now() < until {
            self.nodes.check_run()?;
            last = self.nodes.report().await.or(last);
            if let Some(standing) = last.as_ref().and_then(standing) {
                return Ok(standing);
            }
            tokio::time::sleep(LOOK).await;
        }
        let last = last.map(|report| serde_json::to_string(&report).unwrap_or_default());
        Err(anyhow!("the cluster is not well after {} s: {}", CALM_MAX.as_secs(), last.unwrap_or_default()))
    }

    fn tell(&self, text: String) -> anyhow::Result<()> {
        let at = self.clock.now().since(self.began);
        match self.output {
            Output::Json => print(&format!("{}\n", json!({ "elapsed": at.as_secs_f64(), "story": text }))),
            Output::Text => print(&format!("{:>4}s  {text}\n", at.as_secs())),
        }
    }

    /// The server is asked for its figures.
    async fn close(&mut self, first: Standing, last: Standing) -> anyhow::Result<Accounts> {
        let asked = async {
            let client = connect(&self.nodes.addresses_from(last.owner)).await;
            let stored = client.stream(STREAM).await?.last_seq;
            // The last acks may be on their way.
            loop {
                let waiting = client.group(STREAM, GROUP).await?.lag;
                if waiting == 0 {
                    return anyhow::Ok((stored, waiting));
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let asked = tokio::time::timeout(END_MAX, asked).await;
        let (stored, waiting) =
            asked.context("messages stay unsettled")?.context("the owner does not report")?;
        self.load.shutdown().await;
        Ok(Accounts {
            counts: self.ledger.counts(),
            unknown: self.ledger.unknown(),
            stored,
            waiting,
            terms: (first.term, last.term),
            events: std::mem::take(&mut self.events),
            problems: Vec::new(),
        }
        .with(std::mem::take(&mut self.problems)))
    }
}

/// A NATS server that does not lead the stream.
fn replica_of(leader: usize) -> usize {
    (leader + 1) % COUNT
}

fn standing(report: &ClusterReport) -> Option<Standing> {
    let owners: Vec<_> = report.nodes.iter().filter(|node| node.role == NodeRole::Owner).collect();
    let [owner] = owners[..] else { return None };
    let log = report.log.as_ref()?;
    let is_well = report.nodes.len() == COUNT
        && report.owner.as_ref() == Some(&owner.node)
        && log.servers.len() == COUNT
        && log.servers.iter().all(|server| server.online && server.current);
    let leader = log.servers.iter().find(|server| server.leader)?;
    let standing = Standing {
        owner: Nodes::index_of(&owner.node)?,
        term: report.term,
        leader: Nats::index_of(&leader.name)?,
    };
    is_well.then_some(standing)
}

#[cfg(test)]
mod tests {
    use forebay_wire::json::{ClusterLog, ClusterNode, NatsServer};

    use super::*;

    #[test]
    fn a_cluster_is_well_if_all_of_its_parts_are() {
        let node = |name: &str, role| ClusterNode { node: name.to_owned(), role, ..ClusterNode::default() };
        let server = |name: &str, leader| NatsServer {
            name: name.to_owned(),
            leader,
            online: true,
            current: true,
            ..NatsServer::default()
        };
        let well = ClusterReport {
            owner: Some("b".to_owned()),
            term: 7,
            nodes: vec![
                node("a", NodeRole::Standby),
                node("b", NodeRole::Owner),
                node("c", NodeRole::Standby),
            ],
            log: Some(ClusterLog {
                servers: vec![server("n3", true), server("n1", false), server("n2", false)],
                ..ClusterLog::default()
            }),
            ..ClusterReport::default()
        };
        assert_eq!(standing(&well), Some(Standing { owner: 1, term: 7, leader: 2 }));
        let spoilt: [fn(&mut ClusterReport); 4] = [
            |report| drop(report.nodes.pop()),
            |report| report.nodes[0].role = NodeRole::Owner,
            |report| report.owner = Some("a".to_owned()),
            |report| report.log.as_mut().expect("a log").servers[1].current = false,
        ];
        for spoil in spoilt {
            let mut report = well.clone();
            spoil(&mut report);
            assert_eq!(standing(&report), None, "{report:?}");
        }
    }
}
