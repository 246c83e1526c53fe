//! A node of a cluster: a standby until it owns the log, and a server until it stops or loses the log.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_broker::broker::{Broker, BrokerConfig};
use forebay_broker::clock::Clock;
use forebay_broker::driver::DriverConfig;
use forebay_broker::error::OpenError as BrokerError;
use forebay_broker::recovery::RecoveryError;
use forebay_doors::kit::identity::Anonymous;
use forebay_doors::native::{self, ClusterReporter, Owner, StandbyPort, Standing};
use forebay_storage::engine::StorageError;
use forebay_storage::jetstream::{
    Claimant, JetStreamConfig, JetStreamEngine, JetStreamError, Ownership, Server, Survey,
};
use forebay_wire::json::{ClusterLog, ClusterNode, ClusterReport, NatsServer, NodeRole};
use tokio::sync::watch;

use super::doors::Row;
use super::{Doors, Signals, Started, broker_config, random, serve_broker};
use crate::exit::Exit;
use crate::log;
use crate::log::Level;
use crate::settings::Settings;

/// Frames on their way to the servers. A round trip takes a millisecond or more, so more than two keep them busy.
const FRAMES_ON_THEIR_WAY: usize = 8;
/// A frame that no client waits for may wait this long: each one costs three servers a sync.
const LAZY_DELAY: Duration = Duration::from_millis(25);
/// Between two attempts to reach the servers again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// How a term of office ended.
enum Over {
    Stopped,
    Lost,
}

/// Serves whenever this node owns the log, until it is told to stop.
pub(super) async fn serve(settings: &Settings, started: Started, mut doors: Doors) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut config = config(settings, started, &doors)?;
    // Settings that are wrong are told at once; what fails later may pass.
    let mut engine = Some(Arc::new(JetStreamEngine::open(config.clone()).await.map_err(refused)?));
    let (present, engines) = watch::channel(engine.clone());
    doors.cluster = Some(reporter(&config, engines));
    let mut epoch = 0;
    loop {
        let reason = "this node is a standby and looks for the owner of the log".to_owned();
        let (said, standing) = watch::channel(Standing { reason, owner: None });
        let engine = tokio::select! {
            () = signals.any() => return Ok(()),
            waited = wait_for_log(engine.take(), &config, epoch, (&said, &present)) => waited?,
            never = stand_by(&doors, settings, standing) => match never {},
        };
        let over = term(engine.clone(), settings, started, doors.again()?, &mut signals).await?;
        epoch = epoch.max(engine.epoch().unwrap_or_default());
        config.terms_before += u64::from(engine.epoch().is_some());
        match over {
            Over::Stopped => return Ok(()),
            Over::Lost => tracing::warn!("this node has lost the log and stands by"),
        }
    }
}

fn config(settings: &Settings, started: Started, doors: &Doors) -> anyhow::Result<JetStreamConfig> {
    if settings.memory {
        let error = anyhow::anyhow!("memory must be `false` if engine is `jetstream`. value=`true`");
        return Err(error.context(Exit::NotUnderstood));
    }
    check_needed(settings)?;
    let node = settings.node.clone().ok_or_else(|| needed("node"))?;
    let native = doors.native.local_addr().context("cannot tell the address")?;
    let others = doors.addresses().into_iter().filter_map(|(row, at)| Some((row.setting, at?)));
    let others: Vec<(&str, SocketAddr)> = others.collect();
    let (address, others) = addresses(settings.advertise.as_deref(), native, &others)
        .map_err(|error| error.context(Exit::NotUnderstood))?;
    let claimant = Claimant { node, address, others, start: u64::from_le_bytes(random()?) };
    log_config(settings, claimant, started.clock)
}

fn needed(name: &str) -> anyhow::Error {
    let error = anyhow::anyhow!("{name} must be set if engine is `jetstream`. value=`none`");
    error.context(Exit::NotUnderstood)
}

/// The name of the cluster, if the settings name servers and a cluster.
fn check_needed(settings: &Settings) -> anyhow::Result<&str> {
    if settings.nats.is_empty() {
        return Err(needed("nats"));
    }
    settings.cluster.as_deref().ok_or_else(|| needed("cluster"))
}

/// The log that the settings name.
pub(crate) fn log_config(
    settings: &Settings,
    claimant: Claimant,
    clock: Clock,
) -> anyhow::Result<JetStreamConfig> {
    let cluster = check_needed(settings)?;
    Ok(JetStreamConfig {
        root_certificates: settings.nats_ca.clone(),
        user: settings.nats_user_file.as_deref().map(read_user).transpose()?,
        monitors: settings.nats_monitors.clone(),
        accept_loss: settings.nats_accept_loss,
        replicas: settings.nats_replicas,
        bytes_max: settings.nats_max_bytes,
        reserve_bytes: settings.reserve_bytes,
        frame_bytes_max: super::FRAME_BYTES_MAX,
        tenure: settings.tenure,
        ..JetStreamConfig::new(settings.nats.clone(), cluster, claimant, move || clock.now())
    })
}

/// User and password of NATS, from a file.
fn read_user(path: &Path) -> anyhow::Result<(String, String)> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("nats_user_file cannot be read. file=`{}`", path.display()))
        .context(Exit::NotUnderstood)?;
    user_in(&text).ok_or_else(|| {
        let error = anyhow::anyhow!(
            "nats_user_file must have one line of the form USER:PASSWORD. file=`{}`",
            path.display()
        );
        error.context(Exit::NotUnderstood)
    })
}

fn user_in(text: &str) -> Option<(String, String)> {
    let (user, password) = text.trim_end_matches(['\r', '\n']).split_once(':')?;
    let is_good = !user.is_empty() && !password.is_empty() && !password.contains('\n');
    is_good.then(|| (user.to_owned(), password.to_owned()))
}

/// Describes the cluster through the engine that this node has now.
fn reporter(
    config: &JetStreamConfig,
    engines: watch::Receiver<Option<Arc<JetStreamEngine>>>,
) -> ClusterReporter {
    let (cluster, node) = (config.cluster.clone(), config.claimant.node.clone());
    ClusterReporter::new(move || {
        let engine = engines.borrow().clone();
        let (cluster, node) = (cluster.clone(), node.clone());
        async move {
            let survey = match engine {
                Some(engine) => engine.survey().await,
                None => {
                    let problem = Some("this node connects to NATS again".to_owned());
                    Survey { problem, ..Survey::default() }
                }
            };
            report(cluster, node, survey)
        }
    })
}

fn report(cluster: String, own: String, survey: Survey) -> ClusterReport {
    let role = |is_owner| if is_owner { NodeRole::Owner } else { NodeRole::Standby };
    let last = survey.log.as_ref().map_or(0, |log| log.last);
    let nodes = survey.nodes.into_iter().map(|node| ClusterNode {
        role: role(node.is_owner),
        term: node.epoch,
        tenure_left: node.tenure_left.map(|left| left.as_secs_f64()),
        records_behind: last.saturating_sub(node.seen),
        node: node.node,
        address: node.address,
        version: node.version,
    });
    let nodes: Vec<ClusterNode> = nodes.collect();
    let is_owner = nodes.iter().any(|node| node.node == own && node.role == NodeRole::Owner);
    let server = |server: Server| NatsServer {
        name: server.name,
        leader: server.is_leader,
        online: server.is_online,
        current: server.is_current,
        records_behind: server.lag,
        silent_for: server.silent_for.map(|silent| silent.as_secs_f64()),
    };
    let log = survey.log.map(|log| ClusterLog {
        stream: log.stream,
        last_record: log.last,
        bytes: log.bytes,
        max_bytes: log.bytes_max,
        servers: log.servers.into_iter().map(server).collect(),
    });
    let (owner, owner_address) = survey.ownership.owner.map(|owner| (owner.node, owner.address)).unzip();
    ClusterReport {
        cluster: Some(cluster),
        node: Some(own),
        role: role(is_owner),
        owner,
        owner_address,
        term: survey.ownership.epoch,
        nodes,
        log,
        problem: survey.problem,
    }
}

type Named = Vec<(String, String)>;

/// The addresses at which other nodes reach the ports of this one: the native one, and others by name. A port that only
/// this machine reaches is not named to others, unless all of them are of this machine.
fn addresses(
    advertise: Option<&str>,
    native: SocketAddr,
    others: &[(&str, SocketAddr)],
) -> anyhow::Result<(String, Named)> {
    let Some(advertise) = advertise else {
        if native.ip().is_unspecified() {
            bail!(
                "advertise must be set if listen is not the address of one interface: other nodes reach this one \
                 there. listen=`{native}`"
            );
        }
        let others = others.iter().map(|(name, at)| {
            let host = if at.ip().is_unspecified() { native.ip() } else { at.ip() };
            ((*name).to_owned(), SocketAddr::new(host, at.port()).to_string())
        });
        return Ok((native.to_string(), others.collect()));
    };
    let host =
        advertise.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let Some((host, _)) = host else {
        bail!("advertise must be a host and a port, such as 10.0.0.1:7070. value=`{advertise}`")
    };
    let reached = others.iter().filter(|(_, at)| native.ip().is_loopback() || !at.ip().is_loopback());
    let others = reached.map(|(name, at)| ((*name).to_owned(), format!("{host}:{}", at.port())));
    Ok((advertise.to_owned(), others.collect()))
}

/// How this node stands while another one owns the log.
fn standing(own: &Claimant, owner: &Claimant) -> Standing {
    let Claimant { node, address, others, .. } = owner;
    let is_own = |at: &str| own.address == at || own.others.iter().any(|(_, own)| own == at);
    if *node == own.node {
        let reason =
            format!("this node is a standby, and no node has claimed the log after it. node=`{}`", own.node);
        return Standing { reason, owner: None };
    }
    if is_own(address) {
        let reason = format!(
            "this node is a standby: node {node} owns the log, and names the address of this node for its own; \
             `advertise` must differ from node to node. node=`{}` owner=`{address}`",
            own.node
        );
        return Standing { reason, owner: None };
    }
    let reason =
        format!("this node is a standby: node {node} owns the log. node=`{}` owner=`{address}`", own.node);
    let others = others.iter().filter(|(_, at)| !is_own(at)).cloned().collect();
    Standing { reason, owner: Some(Owner { node: node.clone(), address: address.clone(), others }) }
}

/// Servers or streams that were refused, with the exit code.
pub(crate) fn refused(error: JetStreamError) -> anyhow::Error {
    let code = match &error {
        JetStreamError::Unreachable { .. } => Exit::Unreachable,
        JetStreamError::BadName { .. } => Exit::NotUnderstood,
        _ => Exit::DataRefused,
    };
    anyhow::Error::new(error).context(code).context("the log on NATS cannot be used")
}

/// Resolves when the log may be claimed. Claims before `epoch` are old news, which a replica of NATS may still tell: a
/// node that believed them could send a client back to where it came from.
async fn wait_for_log(
    opened: Option<Arc<JetStreamEngine>>,
    config: &JetStreamConfig,
    epoch: u32,
    (said, present): (&watch::Sender<Standing>, &watch::Sender<Option<Arc<JetStreamEngine>>>),
) -> anyhow::Result<Arc<JetStreamEngine>> {
    let engine = match opened {
        Some(engine) => engine,
        None => {
            // The one of the lost term goes, with its connection.
            present.send_replace(None);
            Arc::new(open_again(config, said).await?)
        }
    };
    present.send_replace(Some(engine.clone()));
    let newest = Cell::new(epoch);
    let tell = |ownership: &Ownership| {
        let Some(owner) = ownership.owner.as_ref().filter(|_| ownership.epoch >= newest.get()) else {
            return;
        };
        newest.set(ownership.epoch);
        said.send_replace(standing(&config.claimant, owner));
        let (node, address) = (&owner.node, &owner.address);
        let facts = [("owner", node.clone().into()), ("address", address.clone().into())];
        log::line(Level::Info, &format!("standing by: node {node} at {address} owns the log"), &facts);
    };
    engine.stand_by(tell).await.map_err(failed)?;
    Ok(engine)
}

/// Connects again after a term that was lost, which may have been lost because no server could be reached.
async fn open_again(
    config: &JetStreamConfig,
    said: &watch::Sender<Standing>,
) -> anyhow::Result<JetStreamEngine> {
    loop {
        match JetStreamEngine::open(config.clone()).await {
            Ok(engine) => return Ok(engine),
            Err(
                error @ (JetStreamError::Unreachable { .. }
                | JetStreamError::Refused { .. }
                | JetStreamError::NoMonitor { .. }),
            ) => {
                let reason = format!("this node is a standby and cannot reach the log: {error}");
                said.send_replace(Standing { reason, owner: None });
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// Carries clients to the owner of the log, or tells them that none is known.
async fn stand_by(doors: &Doors, settings: &Settings, standing: watch::Receiver<Standing>) -> Infallible {
    // A connection that is carried on has two sockets.
    let sockets = doors.connections_max.map_or(usize::MAX, |most| (most / 2).max(1));
    let connections_max = settings.max_connections.min(sockets);
    let is_open = doors.identity.anonymous(settings.listen) == Anonymous::Owner;
    let at = |(row, listener): (Option<&'static Row>, _)| {
        let cluster = doors.cluster.clone().filter(|_| is_open);
        let api = row.map(|row| row.setting);
        let port = StandbyPort { api, tls: doors.tls.clone(), connections_max, cluster };
        Box::pin(native::stand_by(listener, port, standing.clone()))
    };
    let mut ports: Vec<_> = doors.listeners().map(at).collect();
    std::future::poll_fn(|context| {
        for one in &mut ports {
            if let Poll::Ready(never) = one.as_mut().poll(context) {
                match never {}
            }
        }
        Poll::Pending
    })
    .await
}

/// Claims the log and serves.
async fn term(
    engine: Arc<JetStreamEngine>,
    settings: &Settings,
    started: Started,
    doors: Doors,
    signals: &mut Signals,
) -> anyhow::Result<Over> {
    let usual = broker_config(settings)?;
    let config = BrokerConfig {
        frames_on_their_way: FRAMES_ON_THEIR_WAY,
        driver: DriverConfig { lazy_delay: LAZY_DELAY, ..usual.driver },
        ..usual
    };
    // Claiming and reading the log may take as long as the servers cannot be reached.
    let opened = tokio::select! {
        () = signals.any() => {
            engine.close().await;
            return Ok(Over::Stopped);
        }
        opened = Broker::open(engine.clone(), started.clock, config) => opened,
    };
    let (broker, running) = match opened {
        Ok(opened) => opened,
        Err(BrokerError::Recovery(RecoveryError::Storage(error))) if is_lost(&error) => {
            return Ok(Over::Lost);
        }
        Err(BrokerError::Recovery(RecoveryError::Storage(error))) => return Err(failed(error)),
        Err(error) => {
            bail!(anyhow::Error::new(error).context(Exit::DataRefused).context("cannot bring back the log"))
        }
    };
    let served = serve_broker(broker, running, doors, signals, (settings, started)).await;
    let Err(error) = served else {
        engine.close().await;
        return Ok(Over::Stopped);
    };
    match error.downcast_ref::<RecoveryError>() {
        Some(RecoveryError::Storage(error)) if is_lost(error) => Ok(Over::Lost),
        Some(RecoveryError::Storage(StorageError::WentBack { .. })) => Err(error.context(Exit::WentBack)),
        _ => Err(error),
    }
}

/// Whether another node may own the log now.
fn is_lost(error: &StorageError) -> bool {
    matches!(error, StorageError::Fenced { .. } | StorageError::TenureOver)
}

fn failed(error: StorageError) -> anyhow::Error {
    let code = match error {
        StorageError::WentBack { .. } => Exit::WentBack,
        _ => Exit::StorageFailed,
    };
    anyhow::Error::new(error).context(code).context("the log on NATS cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQS: &str = "sqs";
    const KURRENT: &str = "kurrent";

    fn at(address: &str) -> SocketAddr {
        address.parse().expect("an address")
    }

    fn node(node: &str, address: &str, sqs: &str) -> Claimant {
        let others = vec![(SQS.to_owned(), sqs.to_owned())];
        Claimant { node: node.to_owned(), address: address.to_owned(), others, start: 1 }
    }

    #[test]
    fn addresses_are_those_that_other_nodes_reach() {
        let others = [(SQS, at("0.0.0.0:9324")), (KURRENT, at("127.0.0.1:2113"))];
        let (address, named) =
            addresses(Some("a.example:7070"), at("0.0.0.0:7070"), &others).expect("they are good");
        assert_eq!(address, "a.example:7070");
        assert_eq!(
            named,
            [(SQS.to_owned(), "a.example:9324".to_owned())],
            "only this machine reaches the other"
        );
        let (address, named) = addresses(None, at("10.0.0.1:7070"), &others[..1]).expect("they are good");
        assert_eq!((&*address, &*named[0].1), ("10.0.0.1:7070", "10.0.0.1:9324"));
        for (advertise, listen, word) in [
            (None, "0.0.0.0:7070", "advertise must be set"),
            (Some("a.example"), "0.0.0.0:7070", "advertise must be a host and a port"),
            (Some(":7070"), "10.0.0.1:7070", "value=`:7070`"),
            (Some("a:70700"), "10.0.0.1:7070", "value=`a:70700`"),
        ] {
            let error = addresses(advertise, at(listen), &[]).expect_err("it is refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn user_and_password_come_from_one_line() {
        let user = Some(("forebay".to_owned(), "p:1 2".to_owned()));
        assert_eq!(user_in("forebay:p:1 2\r\n"), user);
        for wrong in ["", "forebay", ":p", "forebay:\n", "forebay:p\nmore"] {
            assert_eq!(user_in(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_standby_never_carries_connections_to_itself() {
        let own = node("a", "10.0.0.1:7070", "10.0.0.1:9324");
        assert_eq!(standing(&own, &own).owner, None);
        let twin = standing(&own, &node("b", "10.0.0.1:7070", "10.0.0.2:9324"));
        assert!(twin.owner.is_none() && twin.reason.contains("`advertise` must differ"), "{twin:?}");
        let half = standing(&own, &node("b", "10.0.0.2:7070", "10.0.0.1:9324")).owner.expect("another node");
        assert!(half.others.is_empty(), "{half:?}");
        let other = standing(&own, &node("b", "10.0.0.2:7070", "10.0.0.2:9324"));
        assert!(other.reason.contains("owner=`10.0.0.2:7070`"), "{other:?}");
        assert_eq!(other.owner.map(|owner| owner.others.len()), Some(1));
    }
}
