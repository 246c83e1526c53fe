//! One simulated file apart from its name: what reads see, what the platter holds, and what lies between.
//!
//! A write is seen by reads at once and is durable after a sync. Until then each of its sectors may or
//! may not reach the platter, whatever its neighbours do, and so may each change of the size.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Content, SECTOR};
use super::survival::Chooser;

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    /// The page cache: what reads see.
    pub(super) live: Content,
    /// The content that is certain to be there after a loss of power.
    durable: Content,
    /// The operations since the last sync, in order.
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum Pending {
    /// Whole sectors, as they read after the write.
    Write {
        first: u64,
        sectors: Arc<Vec<u8>>,
    },
    Grow {
        size: u64,
    },
    /// A cut, and the sector it went through as it reads after.
    Cut {
        size: u64,
        edge: Box<[u8; SECTOR]>,
    },
}

impl Inode {
    pub(super) fn settled(content: Content) -> Inode {
        Inode { live: content.clone(), durable: content, pending: Vec::new() }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        self.grow(end);
        self.live.write(offset, bytes);
        let first = offset / SECTOR as u64;
        let count = end.div_ceil(SECTOR as u64) - first;
        let mut sectors = vec![0; count as usize * SECTOR];
        self.live.read(first * SECTOR as u64, &mut sectors);
        self.pending.push(Pending::Write { first, sectors: Arc::new(sectors) });
    }

    pub(super) fn grow(&mut self, size: u64) {
        if size > self.live.size() {
            self.live.resize(size);
            self.pending.push(Pending::Grow { size });
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size > self.live.size() {
            self.grow(size);
        } else if size < self.live.size() {
            self.live.resize(size);
            self.pending.push(Pending::Cut { size, edge: Box::new(self.live.sector(size / SECTOR as u64)) });
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Pending::Write { first, sectors } => {
                    for (at, sector) in (first..).zip(sectors.chunks(SECTOR)) {
                        self.durable.write_sector(at, sector);
                    }
                }
                Pending::Grow { size } | Pending::Cut { size, .. } => self.durable.resize(size),
            }
        }
    }

    /// A sync that failed. The kernel has marked the pages clean without writing them, so that a second
    /// sync has nothing to write and succeeds, while reads go on seeing what will not be there later.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// From now on reads see the content of the platter and of writes still waiting to be written there,
    /// which is less than before if a sync has failed.
    pub(super) fn forget_cached(&mut self) {
        let mut written = self.clone();
        written.sync();
        self.live = written.durable;
    }

    /// Loses power: each sector keeps its durable content or one of the versions written since, and the
    /// size is the durable one or one of those since.
    ///
    /// A cut that survives takes effect on every sector behind it, so that a file that was cut and has
    /// grown again does not show from under the cut what no file system would show.
    pub(super) fn lose_power(&mut self, chooser: &mut Chooser) {
        let pending = std::mem::take(&mut self.pending);
        let resizes: Vec<usize> =
            (0..pending.len()).filter(|at| !matches!(pending[*at], Pending::Write { .. })).collect();
        let kept = chooser.sizes_kept(resizes.len());
        let resized_by = kept.checked_sub(1).map(|last| resizes[last]);

        let mut versions: BTreeMap<u64, Vec<Version<'_>>> = BTreeMap::new();
        for (at, change) in pending.iter().enumerate() {
            match change {
                Pending::Write { first, sectors } => {
                    let count = sectors.len() / SECTOR;
                    for index in 0..count {
                        let bytes = &sectors[index * SECTOR..(index + 1) * SECTOR];
                        versions.entry(first + index as u64).or_default().push(Version {
                            index,
                            count,
                            bytes,
                        });
                    }
                }
                Pending::Grow { size } if resized_by.is_some_and(|last| at <= last) => {
                    self.durable.resize(*size);
                }
                Pending::Cut { size, edge } if resized_by.is_some_and(|last| at <= last) => {
                    self.durable.resize(*size);
                    let cut_at = size / SECTOR as u64;
                    versions.split_off(&cut_at);
                    self.durable.write_sector(cut_at, &edge[..]);
                }
                Pending::Grow { .. } | Pending::Cut { .. } => {}
            }
        }
        for (sector, versions) in versions {
            if let Some(version) = chooser.version(&versions) {
                self.durable.write_sector(sector, version.bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

/// One content that a sector may have after a loss of power.
pub(super) struct Version<'a> {
    /// Which sector of its write this is, and of how many.
    pub(super) index: usize,
    pub(super) count: usize,
    bytes: &'a [u8],
}
