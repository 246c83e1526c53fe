//! A log that is only read: for a copy of it. Nothing is claimed and nothing is written.

use std::time::Duration;

use forebay_core::types::{Epoch, Timestamp};

use crate::engine::{SavedPart, StorageError, StoredFrame};
use crate::jetstream::JetStreamConfig;
use crate::jetstream::claim::{self, Claimed};
use crate::jetstream::link::Link;
use crate::jetstream::open::{self, JetStreamError};
use crate::jetstream::walk::{Step, Walk, WalkedFrame};

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
