//! A node of a cluster: a standby until it owns the log, and a server until it stops or loses the log.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_broker::broker::{Broker, BrokerConfig};
use forebay_broker::driver::DriverConfig;
use forebay_broker::error::OpenError as BrokerError;
use forebay_broker::recovery::RecoveryError;
use forebay_doors::native;
use forebay_storage::engine::StorageError;
use forebay_storage::jetstream::{Claimant, JetStreamConfig, JetStreamEngine, JetStreamError, Ownership};
use tokio::sync::watch;

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
pub(super) async fn serve(settings: &Settings, started: Started, doors: Doors) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let config = config(settings, started, &doors)?;
    // Settings that are wrong are told at once; what fails later may pass.
    let mut engine = Some(JetStreamEngine::open(config.clone()).await.map_err(refused)?);
    loop {
        let (said, reason) = watch::channel("this node looks for the owner of the log".to_owned());
        let engine = tokio::select! {
            () = signals.any() => return Ok(()),
            waited = wait_for_log(engine.take(), &config, &said) => waited?,
            never = stand_by(&doors, reason) => match never {},
        };
        match term(engine, settings, started, doors.again()?, &mut signals).await? {
            Over::Stopped => return Ok(()),
            Over::Lost => tracing::warn!("this node has lost the log and stands by"),
        }
    }
}

fn config(settings: &Settings, started: Started, doors: &Doors) -> anyhow::Result<JetStreamConfig> {
    let needed = |name: &str| {
        let error = anyhow::anyhow!("{name} must be set if engine is `jetstream`. value=`none`");
        error.context(Exit::NotUnderstood)
    };
    if settings.memory {
        let error = anyhow::anyhow!("memory must be `false` if engine is `jetstream`. value=`true`");
        return Err(error.context(Exit::NotUnderstood));
    }
    if settings.nats.is_empty() {
        return Err(needed("nats"));
    }
    let cluster = settings.cluster.as_ref().ok_or_else(|| needed("cluster"))?;
    let node = settings.node.clone().ok_or_else(|| needed("node"))?;
    let listens = doors.native.local_addr().context("cannot tell the address")?.to_string();
    let claimant = Claimant {
        node,
        address: settings.advertise.clone().unwrap_or(listens),
        start: u64::from_le_bytes(random()?),
    };
    let clock = started.clock;
    Ok(JetStreamConfig {
        root_certificates: settings.nats_ca.clone(),
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

/// Servers or streams that were refused, with the exit code.
fn refused(error: JetStreamError) -> anyhow::Error {
    let code = match &error {
        JetStreamError::Unreachable { .. } => Exit::Unreachable,
        JetStreamError::BadName { .. } => Exit::NotUnderstood,
        _ => Exit::DataRefused,
    };
    anyhow::Error::new(error).context(code).context("the log on NATS cannot be used")
}

/// Resolves when the log may be claimed.
async fn wait_for_log(
    opened: Option<JetStreamEngine>,
    config: &JetStreamConfig,
    said: &watch::Sender<String>,
) -> anyhow::Result<Arc<JetStreamEngine>> {
    let engine = match opened {
        Some(engine) => engine,
        None => open_again(config, said).await?,
    };
    let own = &config.claimant;
    let tell = |ownership: &Ownership| {
        let Some(owner) = &ownership.owner else { return };
        let (node, address) = (&owner.node, &owner.address);
        said.send_replace(format!(
            "this node is a standby: node {node} owns the log. node=`{}` owner=`{address}`",
            own.node
        ));
        let facts = [("owner", node.clone().into()), ("address", address.clone().into())];
        log::line(Level::Info, &format!("standing by: node {node} at {address} owns the log"), &facts);
    };
    engine.stand_by(tell).await.map_err(failed)?;
    Ok(Arc::new(engine))
}

/// Connects again after a term that was lost, which may have been lost because no server could be reached.
async fn open_again(
    config: &JetStreamConfig,
    said: &watch::Sender<String>,
) -> anyhow::Result<JetStreamEngine> {
    loop {
        match JetStreamEngine::open(config.clone()).await {
            Ok(engine) => return Ok(engine),
            Err(
                error @ (JetStreamError::Unreachable { .. }
                | JetStreamError::Refused { .. }
                | JetStreamError::NoMonitor { .. }),
            ) => {
                said.send_replace(format!("this node is a standby and cannot reach the log: {error}"));
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// Tells clients that this node does not own the log.
async fn stand_by(doors: &Doors, reason: watch::Receiver<String>) -> Infallible {
    let mut standing: Vec<_> = doors
        .listeners()
        .map(|listener| Box::pin(native::stand_by(listener, doors.tls.clone(), reason.clone())))
        .collect();
    std::future::poll_fn(|context| {
        for one in &mut standing {
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
    let (broker, running) = match Broker::open(engine.clone(), started.clock, config).await {
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
