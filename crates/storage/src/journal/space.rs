//! Space that is set aside, and the gauge that says when there is no space for more messages.
//!
//! RESERVE is a file whose only content is the space it takes. When a new segment or an image finds the
//! disk full, the reserve gives up as much as that needs, and the gauge says *full*: publishing stops,
//! settling and trimming go on. Once enough space is free again the reserve is made whole first, and
//! only then does publishing resume.
//!
//! A folder may be given a limit of its own. The space left under that limit then counts as the free space
//! of the disk.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::engine::SpaceGauge;
use crate::journal::JournalConfig;
use crate::journal::disk::{Disk, DiskFile};
use crate::journal::format::Layout;
use crate::journal::shared::is_full;

pub(crate) const NAME: &str = "RESERVE";

/// The least size of the reserve, in segments, so that freeing space never needs space.
///
/// Two for settling: the segment that is begun while the disk is full, and the one that is made ready after
/// it. Two for reclaim, which copies the wanted messages out of one segment and then waits until that one
/// is gone: the copies take less than two segments, padding included, so from wherever they begin they
/// reach into no more than two further ones, and for each of those another is made ready.
pub(crate) const SEGMENTS_MIN: u64 = 2 + 2;

pub(crate) struct Space<D: Disk> {
    disk: D,
    pub(crate) gauge: SpaceGauge,
    reserve: Mutex<Reserve<D::File>>,
    /// Less free space than this is full; twice as much is not.
    free_min: u64,
    /// How many bytes the whole folder may take.
    folder_max: Option<u64>,
    /// Free space at the last check; `UNKNOWN` before the first.
    last_free: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

struct Reserve<F> {
    file: F,
    size: u64,
    wanted: u64,
}

impl<D: Disk> Space<D> {
    pub(crate) fn open(
        disk: &D,
        config: &JournalConfig,
        layout: &Layout,
        names: &[String],
    ) -> io::Result<Space<D>> {
        // So much whatever was asked for, and what the folder says about the size of segments is decisive.
        let reserve_bytes = config.reserve_bytes.max(SEGMENTS_MIN * layout.segment_bytes);
        let present = names.iter().any(|name| name == NAME);
        let file = if present { disk.open(NAME)? } else { disk.create(NAME)? };
        // Where space cannot be allocated ahead of use, the free space is watched instead.
        let (wanted, free_min) = if disk.preallocates() {
            (reserve_bytes, config.free_bytes_min)
        } else {
            (0, config.free_bytes_min.max(reserve_bytes))
        };
        let size = file.size()?;
        Ok(Space {
            disk: disk.clone(),
            gauge: SpaceGauge::default(),
            reserve: Mutex::new(Reserve { file, size, wanted }),
            free_min,
            folder_max: config.folder_bytes_max,
            last_free: AtomicU64::new(UNKNOWN),
        })
    }

    /// Free space at the last check.
    pub(crate) fn last_free(&self) -> Option<u64> {
        Some(self.last_free.load(Ordering::Relaxed)).filter(|free| *free != UNKNOWN)
    }

    /// The least limit that a folder may be given: its reserve, a segment and the one that is made ready
    /// after it, and as much as has to be free for publishing to go on again.
    pub(crate) fn folder_bytes_needed(config: &JournalConfig, layout: &Layout) -> u64 {
        let reserve = config.reserve_bytes.max(SEGMENTS_MIN * layout.segment_bytes);
        reserve
            .saturating_add(2 * layout.segment_bytes)
            .saturating_add(config.free_bytes_min.saturating_mul(2))
    }

    /// Space that may still be taken: of the disk, and within the folder's limit.
    fn free(&self) -> io::Result<u64> {
        let free = self.disk.free_space()?;
        Ok(match self.folder_max {
            Some(max) => free.min(max.saturating_sub(self.disk.used_space()?)),
            None => free,
        })
    }

    /// Refuses as a full disk would, where the folder may not take as much.
    fn within_folder_max(&self, bytes: u64) -> io::Result<()> {
        match self.folder_max {
            Some(max) if self.disk.used_space()?.saturating_add(bytes) > max => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    /// Does what needs up to `bytes` of space. As long as the disk is full, the reserve gives up some of
    /// its own and it is tried again.
    pub(crate) fn with_reserve<T>(
        &self,
        bytes: u64,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match self.within_folder_max(bytes).and_then(|()| attempt()) {
                Err(error) if is_full(&error) => {
                    self.set_full(true, None);
                    if !self.release(bytes)? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// Makes the reserve smaller. False if there is nothing left to give.
    fn release(&self, bytes: u64) -> io::Result<bool> {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.size == 0 {
            return Ok(false);
        }
        let size = reserve.size.saturating_sub(bytes);
        reserve.file.truncate(size)?;
        reserve.file.sync_all()?;
        reserve.size = size;
        // The rest is taken at once, by the work that lacked it.
        self.gauge.set_left(size);
        Ok(true)
    }

    /// Checks the free space, makes the reserve whole if it can, and sets the gauge.
    pub(crate) fn check(&self) -> io::Result<()> {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.free()?;
        let missing = reserve.wanted.saturating_sub(reserve.size);
        if missing > 0 && free >= missing {
            match reserve.file.allocate(reserve.size, missing) {
                Ok(()) => {
                    reserve.file.sync_all()?;
                    reserve.size += missing;
                    free = self.free()?;
                }
                // Another process took the space first. The next check will tell.
                Err(error) if is_full(&error) => reserve.size = reserve.file.size()?,
                Err(error) => return Err(error),
            }
        }
        self.last_free.store(free, Ordering::Relaxed);
        let whole = reserve.size >= reserve.wanted;
        let enough = if self.gauge.is_full() { 2 * self.free_min } else { self.free_min };
        self.gauge.set_left(reserve.size.saturating_add(free));
        self.set_full(!whole || free < enough, Some(free));
        Ok(())
    }

    /// Sets the gauge, and says so when that stops publishing or lets it go on.
    fn set_full(&self, full: bool, free: Option<u64>) {
        if full == self.gauge.is_full() {
            return;
        }
        self.gauge.set_full(full);
        let needed = self.free_min;
        if full {
            tracing::warn!(
                free,
                needed,
                "storage is full: publishing is refused until there is room; settling goes on"
            );
        } else {
            tracing::info!(free, needed, "storage has room again: publishing goes on");
        }
    }
}
