//! A log that is only read: for a copy of it, or to verify it. Nothing is claimed and nothing is written.

use std::time::Duration;

use forebay_core::types::{Epoch, Position, Timestamp};

use crate::engine::{SavedPart, StorageError, StoredFrame};
use crate::jetstream::JetStreamConfig;
use crate::jetstream::claim::{self, Claimed};
use crate::jetstream::link::{Link, Server};
use crate::jetstream::open::{self, JetStreamError};
use crate::jetstream::walk::{Step, Walk, WalkedFrame, damaged};

/// How often a log is looked at that may have an owner.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A log on JetStream, as it was when it was opened.
pub struct JetStreamLog {
    link: Link,
    id: String,
    /// The last record.
    last: u64,
    claimed: Claimed,
    walk: Walk,
    next: u64,
}

impl JetStreamLog {
    /// Connects and finds the log. `Ok(None)` if an owner uses it: a record was added while it was watched.
    pub async fn open(config: JetStreamConfig) -> Result<Option<JetStreamLog>, JetStreamError> {
        let (link, info) = open::open_to_read(&config).await?;
        let refused = |error: StorageError| JetStreamError::Unreadable { stream: link.log.clone(), error };
        let last = match watch(&link, &config).await.map_err(refused)? {
            Some(last) => last,
            None => return Ok(None),
        };
        let claimed = claim::read_log(&link, &config, last, None).await.map_err(refused)?;
        let claimed = claimed.expect("without a claim the log is read as it is");
        let start = claimed.known.start();
        let walk = Walk::from(&link.log, &start);
        Ok(Some(JetStreamLog { id: info.id, last, claimed, walk, next: start.sequence, link }))
    }

    /// Names the log, and no other one.
    pub fn id(&self) -> String {
        format!("{} {}", self.link.log, self.id)
    }

    /// The last owner's epoch.
    pub fn epoch(&self) -> Epoch {
        self.claimed.epoch
    }

    /// The newest image of the state.
    pub fn parts(&self) -> &[SavedPart] {
        self.claimed.image.as_ref().map_or(&[], |(_, parts)| parts)
    }

    pub fn remarks(&self) -> &[String] {
        &self.claimed.remarks
    }

    /// The next frames, in order; none at the end. Every record is checked on the way.
    pub async fn next_frames(&mut self) -> Result<Vec<StoredFrame>, StorageError> {
        let mut frames = Vec::new();
        let subjects = self.link.all_log_subjects();
        while frames.is_empty() && self.next <= self.last {
            for stored in claim::read_some(&self.link, &subjects, self.next, self.last).await? {
                if stored.sequence > self.last {
                    break;
                }
                self.next = stored.sequence + 1;
                let Step::Frame(frame) = self.walk.step(&stored)? else { continue };
                let WalkedFrame { position, epoch, runs, entries, payload, .. } = frame;
                frames.push(StoredFrame { position, epoch, entries, payload, runs });
            }
        }
        Ok(frames)
    }

    /// Whether the log is as it was when it was opened.
    pub async fn is_unchanged(&self) -> Result<bool, StorageError> {
        let info = self.link.persist("read the log", || self.link.info(&self.link.log)).await?;
        Ok(info.last == self.last && info.id == self.id)
    }
}

/// The last record of a log without an owner: nothing was ever claimed, the owner has stopped, or nothing was written
/// for longer than an owner is silent. `None` if a record comes meanwhile.
async fn watch(link: &Link, config: &JetStreamConfig) -> Result<Option<u64>, StorageError> {
    let doing = "look at the log";
    let info = link.persist(doing, || link.info(&link.log)).await?;
    let seen = link.persist(doing, || claim::look(link)).await?;
    if seen.epoch == Epoch(0) || seen.released == Some(info.last) {
        return Ok(Some(info.last));
    }
    let since: Timestamp = (config.clock)();
    while (config.clock)().since(since) < config.tenure + config.tenure / 4 {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = link.persist(doing, || link.info(&link.log)).await?;
        if now.last != info.last {
            return Ok(None);
        }
    }
    Ok(Some(info.last))
}

/// The findings in a log. It may have an owner meanwhile: then it is the log up to the record that was the last one.
#[derive(Debug, Clone, Default)]
pub struct LogDiagnosis {
    pub stream: String,
    /// The first and the last record, by sequence.
    pub first: u64,
    pub last: u64,
    pub bytes: u64,
    /// The last term, its node, and whether that has stopped cleanly.
    pub epoch: Epoch,
    pub owner: Option<String>,
    pub is_released: bool,
    /// Records that were read and verified, and the frames among them.
    pub records: u64,
    pub frames: u64,
    /// Terms that begin in the part that was read.
    pub claims: u64,
    /// Records of former owners behind the claim of their successor.
    pub void: u64,
    pub start: Position,
    pub end: Position,
    /// Parts of the newest image that can be read, and how far it reaches. `None` without an image.
    pub image: Option<(usize, Position)>,
    pub servers: Vec<Server>,
    /// How many servers should keep the log.
    pub replicas: usize,
    /// Records or images that are damaged or missing. A node does not take this log over.
    pub damage: Vec<String>,
    pub remarks: Vec<String>,
}

impl LogDiagnosis {
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }

    /// Verifies every record of the log, the chain of their hashes, and the newest image. An owner may use the log
    /// meanwhile. Tells of bytes that were read, and of how many there are.
    pub async fn of(
        config: JetStreamConfig,
        mut tell: impl FnMut(u64, u64),
    ) -> Result<LogDiagnosis, JetStreamError> {
        let (link, info) = open::open_to_read(&config).await?;
        let refused = |error: StorageError| JetStreamError::Unreadable { stream: link.log.clone(), error };
        let seen = link.persist("look at the log", || claim::look(&link)).await.map_err(refused)?;
        let mut found = LogDiagnosis {
            stream: link.log.clone(),
            first: info.first,
            last: info.last,
            bytes: info.bytes,
            epoch: seen.epoch,
            owner: seen.owner.map(|owner| owner.node),
            is_released: seen.released == Some(info.last),
            replicas: info.config["num_replicas"].as_u64().unwrap_or(1) as usize,
            servers: info.servers,
            ..LogDiagnosis::default()
        };
        found.look_at_copies();
        // The way of a node that takes the log over: index records, the records behind them, and the newest image.
        let walk = match claim::read_log(&link, &config, info.last, None).await {
            Ok(claimed) => {
                let claimed = claimed.expect("without a claim the log is read as it is");
                found.remarks.extend(claimed.remarks);
                found.image = claimed.image.map(|(manifest, parts)| (parts.len(), manifest.through()));
                Some(claimed.known.start())
            }
            Err(error) => {
                found.note(error, &link, info.first).await?;
                None
            }
        };
        if let Some(start) = walk.filter(|_| info.last > 0) {
            (found.start, found.end) = (start.position, start.position);
            let mut walk = Walk::from(&link.log, &start);
            let mut next = start.sequence;
            let subjects = link.all_log_subjects();
            'log: while next <= info.last {
                let some = claim::read_some(&link, &subjects, next, info.last).await.map_err(refused)?;
                for stored in some.iter().take_while(|stored| stored.sequence <= info.last) {
                    let step = match stored.sequence == next {
                        true => walk.step(stored),
                        false => Err(damaged(&link.log, next, "records are missing")),
                    };
                    match step {
                        Ok(step) => found.count(&step),
                        Err(error) => {
                            found.note(error, &link, next).await?;
                            break 'log;
                        }
                    }
                    next = stored.sequence + 1;
                }
                if some.iter().any(|stored| stored.sequence > info.last) {
                    break;
                }
                tell(some.iter().map(|stored| stored.bytes.len() as u64).sum(), info.bytes);
            }
            found.end = walk.end;
        }
        Ok(found)
    }

    fn count(&mut self, step: &Step) {
        self.records += 1;
        match step {
            Step::Frame(_) => self.frames += 1,
            Step::Claim => self.claims += 1,
            Step::Void => self.void += 1,
            Step::Record | Step::Image | Step::Part => {}
        }
    }

    /// Writes damage down, unless the log was trimmed while it was read.
    async fn note(&mut self, error: StorageError, link: &Link, at: u64) -> Result<(), JetStreamError> {
        let info = link.persist("look at the log", || link.info(&link.log)).await;
        let info = info.map_err(|error| JetStreamError::Unreadable { stream: link.log.clone(), error })?;
        if info.first > at.max(self.first) {
            self.remarks.push(
                "the log was trimmed while it was read, so that not all of it was verified. Run the command again"
                    .to_owned(),
            );
        } else {
            self.damage.push(error.to_string());
        }
        Ok(())
    }

    fn look_at_copies(&mut self) {
        for server in self.servers.iter().filter(|server| !server.is_online || !server.is_current) {
            let state = if server.is_online { "is behind" } else { "is offline" };
            self.remarks.push(format!("NATS server {} {state}. records=`{}`", server.name, server.lag));
        }
        // A server without a cluster does not name itself.
        let keep = self.servers.len().max(1);
        if keep < self.replicas {
            self.remarks.push(format!(
                "fewer NATS servers keep the log than they should. servers=`{keep}` replicas=`{}`",
                self.replicas
            ));
        }
    }
}
