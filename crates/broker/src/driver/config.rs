//! The limits of the driver, and its counts.

use std::time::Duration;

use forebay_core::types::ShardId;

use crate::driver::ReclaimFigures;

/// The limits of the driver, and when it acts by itself.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    pub shard: ShardId,
    /// Contents that are kept in memory.
    pub window_bytes_max: usize,
    /// A frame that no reply waits for is written after this long, or once it has `lazy_bytes_max`.
    pub lazy_delay: Duration,
    pub lazy_bytes_max: usize,
    /// Nothing is handed out while more bytes of entries than this wait for an engine that cannot write.
    pub unwritten_bytes_max: usize,
    /// An image is made after this much log, or this many frames.
    pub image_log_bytes: u64,
    pub image_frames: u64,
    /// How much of an image one turn may take.
    pub image_slice_bytes: usize,
    /// How many bytes one read from the engine may bring.
    pub read_bytes_max: usize,
    /// Wanted messages are copied out of the front of the log once more bytes than this are dead, and more
    /// than are live.
    pub reclaim_dead_bytes_min: u64,
    /// How much of the log is copied before it is let go: what the engine frees at once, a segment. The
    /// engine's reserve has room for twice as much.
    pub reclaim_stretch_bytes: u64,
    /// How much one turn may copy, and one read of reclaim may bring. Each slice is a block of its own in a
    /// journal, so it should be far more than what a block is padded to.
    pub reclaim_slice_bytes: usize,
    /// While the disk is full: how often to look whether something can be freed.
    pub reclaim_interval: Duration,
}

impl Default for DriverConfig {
    fn default() -> DriverConfig {
        DriverConfig {
            shard: ShardId(0),
            window_bytes_max: 32 << 20,
            lazy_delay: Duration::from_millis(5),
            lazy_bytes_max: 64 << 10,
            unwritten_bytes_max: 16 << 20,
            image_log_bytes: 64 << 20,
            image_frames: 250_000,
            image_slice_bytes: 256 << 10,
            read_bytes_max: 1 << 20,
            reclaim_dead_bytes_min: 1 << 30,
            reclaim_stretch_bytes: 64 << 20,
            reclaim_slice_bytes: 256 << 10,
            reclaim_interval: Duration::from_secs(1),
        }
    }
}

/// The counts of a driver since the start, and its present state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverFigures {
    /// Frames that became durable, with the bytes of their entries and contents.
    pub frames: u64,
    pub frame_bytes: u64,
    /// Messages handed out whose contents were in memory, and those that had to be read.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Messages that were parked because their contents cannot be read.
    pub damaged: u64,
    /// Reads for contents and keys: begun, on their way now, and those that wait for their turn.
    pub reads: u64,
    pub reads_in_flight: u64,
    pub reads_waiting: u64,
    /// Images that were kept.
    pub images: u64,
    pub reclaim: ReclaimFigures,
}
