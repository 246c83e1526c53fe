//! Calls of the engine that wait out errors which pass: a lack of descriptors, of memory or of space says nothing about
//! the stored data, and the same call succeeds later. A log that failed is another matter, and ends the task.

use std::time::Duration;

use forebay_core::types::{Position, ShardId};
use forebay_storage::engine::{Damage, Engine, Image, ReadBudget, Readout, Saved, StorageError};

use crate::driver::Read;

/// How long a call that failed waits for its next attempt.
const READ_PAUSE: Duration = Duration::from_millis(100);
const SAVE_PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn read(engine: &dyn Engine, shard: ShardId, read: Read) -> Result<Readout, StorageError> {
    let mut attempts: u64 = 0;
    loop {
        match engine.read_around(shard, read.from, read.budget).await {
            Err(error) if error.is_passing() => pause(&mut attempts, &error, READ_PAUSE).await,
            other => return other,
        }
    }
}

/// Reads for a reader of the log, beside the reads for consumers. None if nothing of it can be read.
pub(crate) async fn read_beside(
    engine: &dyn Engine,
    shard: ShardId,
    from: Position,
    budget: ReadBudget,
) -> Result<Option<Readout>, StorageError> {
    let mut attempts: u64 = 0;
    loop {
        match engine.read_beside(shard, from, budget).await {
            Ok(readout) => {
                report(&readout.damage);
                return Ok(Some(readout));
            }
            Err(error) if error.is_passing() => pause(&mut attempts, &error, READ_PAUSE).await,
            Err(error @ (StorageError::Damaged { .. } | StorageError::Io { .. })) => {
                tracing::error!(%error, "ALARM: stored data is damaged and not shown");
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The image is complete and stays in memory, so it is kept as it is for the next attempt.
pub(super) async fn save(engine: &dyn Engine, shard: ShardId, image: Image) -> Result<Saved, StorageError> {
    let mut attempts: u64 = 0;
    loop {
        match engine.save(shard, image.clone()).await {
            Err(error) if error.is_passing() => pause(&mut attempts, &error, SAVE_PAUSE).await,
            other => return other,
        }
    }
}

/// Says so at the first attempt, and less and less often from then on.
async fn pause(attempts: &mut u64, error: &StorageError, pause: Duration) {
    *attempts += 1;
    if attempts.is_power_of_two() {
        let error: &dyn std::error::Error = error;
        tracing::warn!(error, attempts, "storage is short of something and tries again");
    }
    tokio::time::sleep(pause).await;
}

/// Alarms of each damaged place once.
pub(super) fn report(damage: &[Damage]) {
    for Damage { what, file, offset, .. } in damage.iter().filter(|place| place.is_new) {
        tracing::error!(what, file, offset, "ALARM: stored data is damaged and not delivered");
    }
}
