//! Where a log is copied from and to: a data folder, or streams of NATS.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use forebay_broker::clock::Clock;
use forebay_core::types::Epoch;
use forebay_storage::engine::{Engine, SavedPart, StorageError, StoredFrame};
use forebay_storage::jetstream::{Claimant, JetStreamConfig, JetStreamEngine, JetStreamError, JetStreamLog};
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::inspect::{Found, Inspection};
use forebay_storage::journal::{Journal, JournalConfig, JournalEngine, Keyring};
use tokio::sync::mpsc;

use crate::doctor::{self, epoch_jump};
use crate::encryption::Keys;
use crate::exit::Exit;
use crate::serve::{FRAME_BYTES_MAX, log_config, open_error, random_id, refused};
use crate::settings::Settings;

/// Frames of a folder that were read and wait to be copied.
const FRAMES_AHEAD: usize = 64;
/// Epochs stay well below the largest number.
const EPOCH_MAX: u32 = u32::MAX >> 1;

#[derive(Debug, Clone)]
pub(super) enum Place {
    Folder(PathBuf),
    Nats,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Folder(folder) => folder.display().fmt(f),
            Place::Nats => f.write_str("nats"),
        }
    }
}

impl Place {
    pub(super) fn shown(&self, settings: &Settings) -> String {
        match (self, &settings.cluster) {
            (Place::Nats, Some(cluster)) => format!("the NATS streams of cluster {cluster}"),
            _ => self.to_string(),
        }
    }
}

/// A log that is only read.
pub(super) enum Source {
    Folder(Box<FolderSource>),
    Nats { log: Box<JetStreamLog>, frames: std::vec::IntoIter<StoredFrame> },
}

pub(super) struct FolderSource {
    id: String,
    epoch: Epoch,
    parts: Vec<SavedPart>,
    /// Ends with `None`, so that a reader that fails is not taken for the end of the log.
    frames: mpsc::Receiver<anyhow::Result<Option<StoredFrame>>>,
    /// Keeps the folder locked.
    _inspection: Arc<Inspection<FolderDisk>>,
}

impl Source {
    pub(super) async fn open(place: &Place, settings: &Settings, clock: Clock) -> anyhow::Result<Source> {
        match place {
            Place::Folder(folder) => {
                let keys = Keys::of(settings).read()?;
                let inspection = doctor::inspect(folder, keys.as_ref())?;
                Source::folder(inspection, &place.to_string())
            }
            Place::Nats => {
                let config = nats(settings, clock)?;
                let log = JetStreamLog::open(config).await.map_err(unreadable)?;
                let Some(log) = log else { return Err(in_use()) };
                for remark in log.remarks() {
                    crate::exit::say(&format!("forebay: {remark}"));
                }
                Ok(Source::Nats { log: Box::new(log), frames: Vec::new().into_iter() })
            }
        }
    }

    fn folder(inspection: Inspection<FolderDisk>, folder: &str) -> anyhow::Result<Source> {
        let cannot = || format!("cannot copy {folder}");
        let claim = inspection.claim().map_err(open_error).with_context(cannot)?;
        for remark in &claim.remarks {
            crate::exit::say(&format!("forebay: {remark}"));
        }
        let id = format!("journal {}", inspection.facts().fingerprint);
        let epoch = inspection.last_epoch();
        let (sender, frames) = mpsc::channel(FRAMES_AHEAD);
        let (end, folder) = (claim.end, folder.to_owned());
        let inspection = Arc::new(inspection);
        let scanned = inspection.clone();
        let read = move || {
            // The scan ends when the copy does.
            let whole = scanned.scan(&mut |found| {
                let sent = match found {
                    Found::Frame(frame) if frame.position >= end => return Ok(()),
                    Found::Frame(frame) if frame.damaged.is_empty() => Ok(Some(StoredFrame {
                        position: frame.position,
                        epoch: frame.epoch,
                        entries: bytes::Bytes::copy_from_slice(frame.entries),
                        payload: bytes::Bytes::copy_from_slice(frame.payload),
                        runs: frame.runs,
                    })),
                    Found::Damage(damage) if damage.kind.is_harmless() => return Ok(()),
                    Found::Passed(_) => return Ok(()),
                    Found::Frame(_) => Err(damaged(&folder, "a message is damaged")),
                    Found::Damage(damage) => Err(damaged(&folder, &damage.what)),
                };
                sender.blocking_send(sent)
            });
            if whole.is_ok() {
                let _ = sender.blocking_send(Ok(None));
            }
        };
        std::thread::Builder::new()
            .name("copy-reader".to_owned())
            .spawn(read)
            .context("cannot start a thread")?;
        let parts = claim.parts;
        Ok(Source::Folder(Box::new(FolderSource { id, epoch, parts, frames, _inspection: inspection })))
    }

    /// Names the log, and no other one.
    fn id(&self) -> String {
        match self {
            Source::Folder(folder) => folder.id.clone(),
            Source::Nats { log, .. } => log.id(),
        }
    }

    /// Of its last owner.
    pub(super) fn epoch(&self) -> Epoch {
        match self {
            Source::Folder(folder) => folder.epoch,
            Source::Nats { log, .. } => log.epoch(),
        }
    }

    /// The newest image of the state.
    pub(super) fn parts(&self) -> &[SavedPart] {
        match self {
            Source::Folder(folder) => &folder.parts,
            Source::Nats { log, .. } => log.parts(),
        }
    }

    pub(super) async fn next(&mut self) -> anyhow::Result<Option<StoredFrame>> {
        match self {
            Source::Folder(folder) => match folder.frames.recv().await {
                Some(next) => next,
                None => bail!("the source could not be read to its end"),
            },
            Source::Nats { log, frames } => {
                if frames.len() == 0 {
                    let next = log.next_frames().await;
                    *frames = next.map_err(|error| failed(&Place::Nats, error))?.into_iter();
                }
                Ok(frames.next())
            }
        }
    }

    /// A folder is locked, but another node may have claimed a log on NATS meanwhile.
    pub(super) async fn check_unchanged(&self, place: &Place) -> anyhow::Result<()> {
        if let Source::Nats { log, .. } = self
            && !log.is_unchanged().await.map_err(|error| failed(place, error))?
        {
            return Err(in_use());
        }
        Ok(())
    }
}

/// A log that becomes a copy.
pub(super) enum Target {
    Folder { disk: FolderDisk, engine: Box<JournalEngine> },
    Nats(Arc<JetStreamEngine>),
}

impl Target {
    /// Opens a new log, or an unfinished copy of the source.
    pub(super) async fn open(
        place: &Place,
        settings: &Settings,
        clock: Clock,
        source: &Source,
    ) -> anyhow::Result<Target> {
        let last = source.epoch().0;
        let epoch_floor = Epoch(last.saturating_add(epoch_jump()?).min(EPOCH_MAX).max(last));
        match place {
            Place::Folder(folder) => {
                let disk = FolderDisk::new(folder)
                    .with_context(|| format!("cannot use the folder {}", folder.display()))?;
                let keys: Option<Keyring> = Keys::of(settings).read()?;
                let config = JournalConfig {
                    frame_bytes_max: FRAME_BYTES_MAX,
                    segment_bytes: settings.segment_bytes,
                    reserve_bytes: settings.reserve_bytes,
                    epoch_floor,
                    opened_at: clock.now(),
                    keys,
                    ..JournalConfig::new(random_id()?)
                };
                let engine = JournalEngine::open_copy(disk.clone(), &config, &source.id())
                    .map_err(|error| open_error(error).context(format!("cannot copy to {place}")))?;
                Ok(Target::Folder { disk, engine: Box::new(engine) })
            }
            Place::Nats => {
                let config =
                    JetStreamConfig { epoch_floor, copy_of: Some(source.id()), ..nats(settings, clock)? };
                Ok(Target::Nats(Arc::new(JetStreamEngine::open(config).await.map_err(refused)?)))
            }
        }
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        match self {
            Target::Folder { engine, .. } => &**engine,
            Target::Nats(engine) => &**engine,
        }
    }

    /// All of it is durable and was read back: it may be served.
    pub(super) async fn finish(self, place: &Place) -> anyhow::Result<()> {
        match self {
            Target::Folder { disk, engine } => {
                engine.close().map_err(|error| failed(place, error))?;
                Journal::finish(&disk).map_err(open_error)
            }
            Target::Nats(engine) => {
                engine.close().await;
                engine.finish_copy().await.map_err(|error| failed(place, error))
            }
        }
    }
}

/// The log that the settings name, for a node that never serves.
fn nats(settings: &Settings, clock: Clock) -> anyhow::Result<JetStreamConfig> {
    let claimant = Claimant {
        node: "copy".to_owned(),
        address: "127.0.0.1:0".to_owned(),
        others: Vec::new(),
        start: random_id()? as u64,
    };
    log_config(settings, claimant, clock)
}

fn unreadable(error: JetStreamError) -> anyhow::Error {
    match error {
        JetStreamError::Unreadable { error: StorageError::WentBack { known, found }, .. } => {
            failed(&Place::Nats, StorageError::WentBack { known, found })
        }
        error => refused(error),
    }
}

fn in_use() -> anyhow::Error {
    let error =
        "the log on NATS is in use: its owner adds records to it. Stop all nodes of the cluster first";
    anyhow::Error::new(Exit::DataInUse).context(error)
}

fn damaged(folder: &str, what: &str) -> anyhow::Error {
    let error = format!(
        "the source is damaged, and the copy is not finished: {what}. `forebay doctor --data {folder} --salvage NEW` \
         writes a folder that can be copied"
    );
    anyhow::Error::new(Exit::DataRefused).context(error)
}

/// An error of the log at this place, with its exit code.
pub(super) fn failed(place: &Place, error: StorageError) -> anyhow::Error {
    let code = match error {
        StorageError::WentBack { .. } => Exit::WentBack,
        StorageError::Fenced { .. } => Exit::DataInUse,
        StorageError::Damaged { .. } => Exit::DataRefused,
        _ => Exit::StorageFailed,
    };
    anyhow::Error::new(error).context(code).context(format!("the copy is not finished. log=`{place}`"))
}
