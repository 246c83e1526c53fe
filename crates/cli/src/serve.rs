//! `forebay serve`: opens the data folder, listens, and stops cleanly when it is told to.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_broker::broker::{Broker, BrokerConfig, Running};
use forebay_broker::clock::Clock;
use forebay_core::types::ShardId;
use forebay_storage::engine::Engine;
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::{JournalConfig, JournalEngine, OpenError};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Serve;
use crate::exit::{Exit, say};

/// Entries and contents of one frame. The largest batch fits with room for entries beside it.
const FRAME_BYTES_MAX: usize = 12 << 20;
/// How long clients have to take the last answers when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

pub(crate) fn run(options: &Serve) -> anyhow::Result<()> {
    if !options.listen.ip().is_loopback() {
        bail!(
            "there is no authentication yet, so the server listens on addresses of this machine only. Give \
             --listen an address such as 127.0.0.1:7070. address=`{}`",
            options.listen
        );
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let clock = Clock::start();
    // First the port: a server that cannot listen has no business with the data folder.
    let listener = runtime.block_on(listen(options.listen))?;
    if options.memory {
        let engine = MemoryEngine::new(MemoryLog::new(ShardId(0), FRAME_BYTES_MAX));
        return runtime.block_on(serve(Arc::new(engine), clock, listener, "memory"));
    }
    let engine = Arc::new(open_journal(&options.data, clock)?);
    let place = options.data.display().to_string();
    let served = runtime.block_on(serve(engine.clone(), clock, listener, &place));
    // Ends what is still running in the background, which may hold on to the engine.
    runtime.shutdown_timeout(FAREWELL);
    if let Some(engine) = Arc::into_inner(engine) {
        let closed = engine.close();
        if served.is_ok() {
            closed.context(Exit::StorageFailed).context("the journal did not stop cleanly")?;
        }
    }
    served
}

fn open_journal(folder: &Path, clock: Clock) -> anyhow::Result<JournalEngine> {
    let disk = FolderDisk::new(folder)
        .with_context(|| format!("cannot use the data folder {}", folder.display()))?;
    let config = JournalConfig {
        frame_bytes_max: FRAME_BYTES_MAX,
        opened_at: clock.now(),
        ..JournalConfig::new(random_id()?)
    };
    JournalEngine::open(disk, &config).map_err(|error| {
        let code = match &error {
            OpenError::InUse => Some(Exit::DataInUse),
            OpenError::Refused { .. } | OpenError::TooNew { .. } | OpenError::UnknownFeatures { .. } => {
                Some(Exit::DataRefused)
            }
            _ => None,
        };
        let error = anyhow::Error::new(error);
        let error = match code {
            Some(code) => error.context(code),
            None => error,
        };
        error.context(format!("cannot open the data folder {}", folder.display()))
    })
}

/// Names a new journal. Nobody outside may be able to guess it, or a payload could imitate a block.
fn random_id() -> anyhow::Result<u128> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("cannot read random numbers")?;
    Ok(u128::from_le_bytes(bytes))
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.context(Exit::CannotListen).with_context(|| {
        format!("cannot listen on port {}; --listen takes another. address=`{address}`", address.port())
    })
}

async fn serve(
    engine: Arc<dyn Engine>,
    clock: Clock,
    listener: TcpListener,
    place: &str,
) -> anyhow::Result<()> {
    let signals = Signals::new()?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let alarm = |text: &str| say(&format!("forebay: ALARM: {text}"));
    let opened = Broker::open(engine, clock, BrokerConfig { alarm, ..BrokerConfig::default() }).await;
    let (broker, running) = opened.context(Exit::DataRefused).context("cannot bring back the log")?;
    for remark in broker.remarks() {
        say(&format!("forebay: {remark}"));
    }
    say(&format!("forebay: listening on {address}, data in {place}"));
    until_told(broker, running, listener, signals).await
}

/// Serves until a signal comes or storage fails.
async fn until_told(
    broker: Broker,
    mut running: Running,
    listener: TcpListener,
    mut signals: Signals,
) -> anyhow::Result<()> {
    let mut door = tokio::spawn(forebay_doors::native::serve(broker.clone(), listener, broker.stopping()));
    let ended = tokio::select! {
        ended = &mut running => ended,
        served = &mut door => {
            served.context("the door broke")?.context("the door closed by itself")?;
            bail!("the door closed by itself");
        }
        () = signals.any() => {
            say("forebay: stopping");
            broker.stop();
            tokio::select! {
                ended = &mut running => ended,
                () = signals.any() => bail!("stopped at once, by a second signal"),
            }
        }
    };
    // Clients are told before the process goes: the last confirmations, or that an outcome is unknown.
    let _ = tokio::time::timeout(FAREWELL, &mut door).await;
    door.abort();
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(anyhow::Error::new(error).context(Exit::StorageFailed).context(
            "storage failed; what was on its way may or may not be stored, and the next start will tell",
        )),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
