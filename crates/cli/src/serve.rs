//! `forebay serve`: opens the data folder, listens, and stops cleanly when it is told to.

pub(crate) mod alerts;
mod audit;
#[cfg(feature = "jetstream")]
mod cluster;
#[cfg(not(feature = "jetstream"))]
#[path = "serve/no_cluster.rs"]
mod cluster;
mod doors;
mod ending;
mod identity;
pub(crate) mod jwt;
#[cfg(feature = "kurrent")]
mod kurrent;
mod limits;
mod node;
pub(crate) mod otlp;
mod process;
#[cfg(feature = "sqs")]
mod sqs;
mod tls;

#[cfg(feature = "jetstream")]
pub(crate) use self::cluster::{log_config, refused};

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_broker::access::Principal;
use forebay_broker::broker::{Broker, BrokerConfig, Running};
use forebay_broker::clock::Clock;
use forebay_broker::driver::DriverConfig;
use forebay_broker::error::OpenError as BrokerError;
use forebay_core::group::Bound;
use forebay_core::settings::{StreamLimits, StreamSettings};
use forebay_core::types::{ShardId, Timestamp};
use forebay_doors::native::NativeConfig;
use forebay_storage::engine::Engine;
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::recorded::{Recorded, Recorder};
use forebay_storage::journal::{JournalConfig, JournalEngine, Keyring, OpenError, Stopwatch};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use tokio::net::TcpListener;

use crate::encryption::Keys;
use crate::exit::Exit;
use crate::log;
use crate::log::Level;
use crate::settings::{self, EngineKind, Origin, Settings, Sources};
use crate::signals::Signals;
use crate::units;
use doors::{Doors, Row};
use ending::End;
use identity::Identity;
pub(crate) use identity::check_private;

/// Entries and contents of one frame. The largest batch fits with room for entries beside it.
pub(crate) const FRAME_BYTES_MAX: usize = 12 << 20;
/// How long clients have to take the last answers when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often the log says why the server has not stopped yet.
const DRAIN_REPORT: Duration = Duration::from_secs(2);
/// Groups that are asked about at once.
const GROUPS_PER_PAGE: usize = 1_000;

pub(crate) const EXAMPLES: &str = "\
Every setting may also be given in the environment, as FOREBAY_ and its name in capitals, and in a TOML file;
`forebay config show` says which value counts and why.

SIGTERM or SIGINT stops it: nothing more is taken in or handed out, and consumers may finish what they hold. A
second signal stops it at once.

Examples:
  forebay serve
  forebay serve --data /var/lib/forebay --listen 127.0.0.1:7171
  forebay serve --config /etc/forebay.toml --log json
  forebay serve --memory                 keep nothing; for trying things out";

/// When the command began.
#[derive(Clone, Copy)]
struct Started {
    clock: Clock,
    at: Timestamp,
}

pub(crate) fn run(sources: &Sources) -> anyhow::Result<()> {
    #[cfg(feature = "planted-faults")]
    plant_fault()?;
    let given = settings::gather(sources, |name| std::env::var(name).ok())?;
    let settings = settings::settle(&given)?;
    let clock = Clock::start();
    let started = Started { clock, at: clock.now() };
    log::start(settings.log, settings.log_level, clock);
    log::follow_events();
    for one in given.iter().filter(|one| one.origin != Origin::Default) {
        let (setting, text) = (one.setting, one.setting.shown(&one.text));
        tracing::debug!("setting {} is {text}, from {}", setting.name, one.origin);
    }
    for doubt in doubtful_variables() {
        tracing::warn!("{doubt}");
    }
    jwt::check(&settings)?;
    limits::check(&settings)?;
    let tls = tls::read(&settings)?;
    let identity = Identity::read(&settings, |name| std::env::var(name).ok())?;
    identity.check_before(&settings, identity::LISTEN, settings.listen)?;
    let alerts = alerts::read(&settings)?;
    let keys = Keys::of(&settings).read()?;
    if keys.is_some() && (settings.memory || settings.engine == EngineKind::JetStream) {
        return Err(anyhow::Error::new(Exit::NotUnderstood).context(
            "encryption keys are for a log in a data folder, and this server has none: NATS encrypts its own files",
        ));
    }
    let connections_max = process::raise_open_files(settings.max_connections);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    // First the port: a server that cannot listen has no business with the data folder.
    let listener = runtime.block_on(listen(settings.listen))?;
    let is_default =
        |name: &str| given.iter().any(|one| one.setting.name == name && one.origin == Origin::Default);
    let mut doors = runtime.block_on(Doors::open(listener, &settings, identity, tls, is_default))?;
    doors.connections_max = connections_max;
    doors.alerts = alerts;
    doors.node = Arc::new(node::facts(&given, started.at));
    if settings.engine == EngineKind::JetStream {
        let served = runtime.block_on(cluster::serve(&settings, started, doors));
        runtime.shutdown_timeout(FAREWELL);
        if served.is_ok() {
            tracing::info!("stopped");
        }
        return served;
    }
    if settings.memory {
        let engine = MemoryEngine::new(MemoryLog::new(ShardId(0), FRAME_BYTES_MAX));
        let served = runtime.block_on(serve(Arc::new(engine), &settings, started, doors));
        if served.is_ok() {
            tracing::info!("stopped");
        }
        return served;
    }
    let engine = Arc::new(open_journal(&settings, clock, keys)?);
    let served = runtime.block_on(serve(engine.clone(), &settings, started, doors));
    // Ends background tasks that are still running, which may hold on to the engine.
    runtime.shutdown_timeout(FAREWELL);
    if let Some(engine) = Arc::into_inner(engine) {
        let closed = engine.close();
        if served.is_ok() {
            closed.context(Exit::StorageFailed).context("the journal did not stop cleanly")?;
        }
    }
    if served.is_ok() {
        tracing::info!("stopped");
    }
    served
}

/// Variables of the environment that are nearly settings.
fn doubtful_variables() -> Vec<String> {
    settings::doubtful_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

/// Checks settings and the files that they name, as far as that can be done without starting. The answer has remarks
/// for the operator.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<Vec<String>> {
    jwt::check(settings)?;
    limits::check(settings)?;
    let has_tls = tls::read(settings)?.is_some();
    let identity = Identity::read(settings, |name| std::env::var(name).ok())?;
    identity.check_before(settings, identity::LISTEN, settings.listen)?;
    doors::check(settings, &identity)?;
    alerts::read(settings)?;
    let keys = Keys::of(settings);
    keys.check()?;
    let others = doors::ROWS.iter().filter_map(|row| (row.address)(settings));
    let is_reached = others.chain([settings.listen]).any(|address| !address.ip().is_loopback());
    let mut remarks = doubtful_variables();
    let mut remark = |is_so: bool, text: &str| remarks.extend(is_so.then(|| text.to_owned()));
    remark(
        is_reached && settings.allow_anyone,
        "allow_anyone: anyone who can reach the ports can do everything",
    );
    remark(is_reached && !has_tls, "tls_cert is not set: tokens and messages are sent unencrypted");
    remark(
        is_reached && settings.audit_file.is_none() && !settings.audit_stream,
        "audit_file and audit_stream are not set: administrative calls leave no record",
    );
    remark(
        !settings.alert_webhooks.is_empty() && settings.alert_secret_file.is_none(),
        "alert_secret_file is not set: receivers of alerts cannot tell who sent them",
    );
    remark(
        is_reached && !keys.is_given() && !settings.memory && settings.engine == EngineKind::Journal,
        "encryption_key_file is not set: the data folder is not encrypted",
    );
    remark(
        settings.jwt_allow_http,
        "jwt_allow_http: anyone who can change packets on the way to the issuer can sign tokens",
    );
    remark(settings.memory, "memory: all data is lost when the server exits");
    remark(
        !settings.require_auth && !is_reached && !settings.memory,
        "require_auth is off: every user of this machine can do everything",
    );
    Ok(remarks)
}

/// Breaks the promise that the environment names, so that the torture test can show that it would notice.
#[cfg(feature = "planted-faults")]
fn plant_fault() -> anyhow::Result<()> {
    use forebay_core::fault::{Fault, plant_everywhere};
    let Ok(name) = std::env::var("FOREBAY_PLANTED_FAULT") else { return Ok(()) };
    let fault = Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == name);
    let fault = fault.with_context(|| format!("no such fault. fault=`{name}`"))?;
    crate::exit::say(&format!("forebay: breaks a promise on purpose: {name}"));
    plant_everywhere(fault);
    Ok(())
}

/// The variable that names the file for a recording of all calls that change the data folder. The torture test sets it,
/// to play a loss of power.
const DISK_RECORDING: &str = "FOREBAY_DISK_RECORDING";

fn open_journal(
    settings: &Settings,
    clock: Clock,
    keys: Option<Keyring>,
) -> anyhow::Result<JournalEngine<Recorded<FolderDisk>>> {
    let folder = &settings.data;
    let disk = FolderDisk::new(folder).with_context(|| {
        format!("cannot use the data folder {}. To use another, give --data", folder.display())
    })?;
    let open_to_all = disk
        .mode_for_all()
        .with_context(|| format!("cannot look at the data folder {}", folder.display()))?;
    if let Some(mode) = open_to_all {
        tracing::warn!(
            folder = %folder.display(),
            mode = format!("{mode:o}"),
            "every user of the machine may look into the data folder; chmod 700 keeps messages and secrets private"
        );
    }
    let recorder = match std::env::var_os(DISK_RECORDING) {
        Some(file) => {
            let out = std::fs::File::create(&file)
                .with_context(|| format!("cannot write the file that {DISK_RECORDING} names"))?;
            Some(Recorder::new(out))
        }
        None => None,
    };
    let disk = Recorded::new(disk, recorder);
    let config = JournalConfig {
        frame_bytes_max: FRAME_BYTES_MAX,
        segment_bytes: settings.segment_bytes,
        reserve_bytes: settings.reserve_bytes,
        free_bytes_min: settings.free_bytes_min,
        folder_bytes_max: settings.disk_max_bytes,
        opened_at: clock.now(),
        stopwatch: Stopwatch::new(move || clock.now()),
        keys,
        ..JournalConfig::new(random_id()?)
    };
    JournalEngine::open(disk, &config).map_err(|error| {
        open_error(error).context(format!("cannot open the data folder {}", folder.display()))
    })
}

/// The error with the exit code that it has.
pub(crate) fn open_error(error: OpenError) -> anyhow::Error {
    let code = match &error {
        OpenError::InUse => Some(Exit::DataInUse),
        OpenError::Refused { .. }
        | OpenError::Unfinished { .. }
        | OpenError::NotEmpty
        | OpenError::Backup
        | OpenError::NoKey { .. }
        | OpenError::WrongKey { .. }
        | OpenError::NotEncrypted { .. }
        | OpenError::TooNew { .. }
        | OpenError::UnknownFeatures { .. } => Some(Exit::DataRefused),
        OpenError::FolderTooSmall { .. } => Some(Exit::NotUnderstood),
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match code {
        Some(code) => error.context(code),
        None => error,
    }
}

/// Names a new journal. The id must not be guessable from outside, or a payload could imitate a block.
pub(crate) fn random_id() -> anyhow::Result<u128> {
    Ok(u128::from_le_bytes(random()?))
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).context("cannot read random numbers")?;
    Ok(bytes)
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.context(Exit::CannotListen).with_context(|| {
        format!(
            "the native API cannot listen on port {}. To use another address, give --listen. address=`{address}`",
            address.port()
        )
    })
}

fn broker_config(settings: &Settings) -> anyhow::Result<BrokerConfig> {
    let usual = BrokerConfig::new(random()?);
    let max_bytes = Some(settings.auto_create_max_bytes);
    let first = StreamSettings {
        limits: StreamLimits { max_bytes, ..StreamLimits::default() },
        ..StreamSettings::default()
    };
    Ok(BrokerConfig {
        driver: DriverConfig {
            window_bytes_max: settings.window_bytes as usize,
            reclaim_stretch_bytes: settings.segment_bytes,
            ..usual.driver
        },
        room_bytes: u32::try_from(settings.room_bytes).unwrap_or(u32::MAX),
        reply_bytes: settings.reply_bytes as usize,
        stream_of_first_publish: settings.auto_create.then_some(first),
        drain_max: settings.drain_timeout,
        date_jump_max: settings.date_jump_max,
        ..usual
    })
}

async fn serve(
    engine: Arc<dyn Engine>,
    settings: &Settings,
    started: Started,
    doors: Doors,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let opened = Broker::open(engine, started.clock, broker_config(settings)?).await;
    let (broker, running) = opened.map_err(|error| match error {
        error @ BrokerError::DateJump { .. } => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context(Exit::DataRefused).context("cannot bring back the log"),
    })?;
    serve_broker(broker, running, doors, &mut signals, (settings, started)).await
}

/// Serves with a broker that is open, until it is told to stop or storage fails.
async fn serve_broker(
    broker: Broker,
    running: Running,
    doors: Doors,
    signals: &mut Signals,
    (settings, started): (&Settings, Started),
) -> anyhow::Result<()> {
    let address = doors.native.local_addr().context("cannot tell the address")?;
    let begun = jwt::begin(&broker, settings).and_then(|tasks| {
        doors.identity.begin(&broker, address)?;
        doors.check_reach(&broker)?;
        Ok(tasks)
    });
    // They end with this function.
    let _issuer_tasks = match begun {
        Ok(tasks) => tasks,
        Err(error) => {
            broker.stop();
            let _ = running.await;
            return Err(error);
        }
    };
    limits::begin(&broker, settings).await?;
    tls::begin(settings, doors.tls.as_ref(), address);
    audit::begin(&broker, settings.audit_file.as_deref())?;
    audit::begin_stream(&broker, settings.audit_stream).await?;
    for remark in broker.remarks() {
        tracing::warn!("{remark}");
    }
    if let Some(max) = doors.connections_max {
        broker.doors().limit_connections(max);
    }
    say_that_it_listens(&broker, settings, started, address, &doors.addresses()).await;
    for remark in &doors.remarks {
        tracing::warn!("{remark}");
    }
    until_told(broker, running, doors, signals, settings).await
}

async fn say_that_it_listens(
    broker: &Broker,
    settings: &Settings,
    started: Started,
    address: SocketAddr,
    others: &[(&'static Row, Option<SocketAddr>)],
) {
    let also: String =
        others.iter().filter_map(|(row, at)| at.map(|at| format!(", {} on {at}", row.name))).collect();
    let place = match (settings.engine, &settings.cluster) {
        (EngineKind::JetStream, Some(cluster)) => format!("the NATS streams of cluster {cluster}"),
        _ if settings.memory => "memory".to_owned(),
        _ => settings.data.display().to_string(),
    };
    let opened_in = started.clock.now().since(started.at).as_secs_f64();
    let report = broker.enter(Principal::owner(), None).server().await.unwrap_or_default();
    let (version, epoch) = (env!("CARGO_PKG_VERSION"), report.epoch);
    let text = format!(
        "listening on {address}{also}, data in {place}, {} and {}, version {version}, epoch {epoch}, opened in {}",
        units::of(report.streams as u64, "stream"),
        units::of(report.groups as u64, "group"),
        units::age(opened_in),
    );
    let mut facts = vec![("address", address.to_string().into())];
    facts.extend(others.iter().map(|(row, at)| (row.setting, at.map(|at| at.to_string()).into())));
    facts.extend([
        ("data", place.into()),
        ("streams", report.streams.into()),
        ("groups", report.groups.into()),
        ("version", version.into()),
        ("epoch", epoch.into()),
        ("opened_in", opened_in.into()),
    ]);
    log::line(Level::Info, &text, &facts);
}

/// Serves until a signal comes or storage fails.
async fn until_told(
    broker: Broker,
    mut running: Running,
    doors: Doors,
    signals: &mut Signals,
    settings: &Settings,
) -> anyhow::Result<()> {
    // The tasks end with this function.
    let begun = doors.alerts.clone().map(|plan| plan.begin(broker.clock()));
    let (alerts, _senders) = begun.unzip();
    let (exports, _exporting) = otlp::begin(settings, &broker).unzip();
    let config = NativeConfig {
        connections_max: settings.max_connections,
        connections_per_address: settings.max_connections_per_address,
        host_names: settings.host_names.clone(),
        anonymous: doors.identity.anonymous(settings.listen),
        tls: doors.tls.clone(),
        body_bytes_max: settings.request_bytes as usize,
        process: process::figures,
        history: true,
        cluster: doors.cluster.clone(),
        alerts,
        metrics_series_max: settings.metrics_series_max,
        exports,
        node: doors.node.clone(),
        sqs: doors.address_of("sqs"),
    };
    let mut door = tokio::spawn(doors.serve(broker.entrance(), config));
    let ended = tokio::select! {
        end = ending::end(&mut running, &mut door, FAREWELL) => match end {
            End::Task(ended) => ended,
            End::Doors(served) => {
                served.context("the door broke")?.context("the door closed by itself")?;
                bail!("the door closed by itself");
            }
        },
        () = signals.any() => {
            tracing::info!("stopping: nothing more is taken in or handed out");
            broker.drain();
            tokio::select! {
                ended = &mut running => ended,
                never = say_why_it_waits(&broker, settings.drain_timeout) => match never {},
                () = signals.any() => bail!(
                    "stopped at once, by a second signal; messages that consumers hold are handed out again after \
                     the next start"
                ),
            }
        }
    };
    // Clients are told before the process goes: the last confirmations, or that an outcome is unknown.
    if !door.is_finished() {
        let _ = tokio::time::timeout(FAREWELL, &mut door).await;
        door.abort();
    }
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(anyhow::Error::new(error)
            .context(Exit::StorageFailed)
            .context("storage failed; unconfirmed messages may or may not be stored")),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Says every now and then what the server waits for.
async fn say_why_it_waits(broker: &Broker, drain_timeout: Duration) -> Infallible {
    let began = broker.clock().now();
    loop {
        let waited = broker.clock().now().since(began);
        let left = units::age(drain_timeout.saturating_sub(waited).as_secs_f64());
        if let Some(held) = held(broker).await.filter(|held| *held > 0) {
            let text = format!(
                "stopping: waits for {} in the hands of consumers, {left} more at most; a second signal stops at once",
                units::of(held, "message")
            );
            log::line(Level::Info, &text, &[("in_flight", held.into())]);
        }
        tokio::time::sleep(DRAIN_REPORT).await;
    }
}

/// The messages that connected consumers hold. A draining server waits for them.
async fn held(broker: &Broker) -> Option<u64> {
    let caller = broker.enter(Principal::owner(), None);
    let (mut held, mut after) = (0, None);
    loop {
        let page = caller.groups(None, after, GROUPS_PER_PAGE).await.ok()?;
        let consumers = page.items.iter().flat_map(|group| &group.consumers);
        let connected = consumers.filter(|consumer| consumer.bound == Bound::Connection);
        held += connected.map(|consumer| consumer.in_flight).sum::<u64>();
        match page.next {
            Some(next) => after = Some(next),
            None => return Some(held),
        }
    }
}
