//! Images of the state: when to make one, a slice a turn, and what may be trimmed once it is kept.

use bytes::Bytes;
use forebay_core::fault::{Fault, planted};
use forebay_core::image::Taking;
use forebay_core::shard::Shard;
use forebay_core::types::{PartKey, Position};
use forebay_storage::engine::{Image, ImagePart, Saved};

use crate::driver::frames::Frames;
use crate::driver::{DriverConfig, Outbox};

/// The cost of looking at a part, counted as this many written bytes.
const PART_COST: usize = 64;

#[derive(Debug)]
pub(super) struct Images {
    making: Option<Making>,
    saving: bool,
    /// Where the newest image covers to, and where the older one does.
    newest: Position,
    covered: Position,
    trimmed: Position,
    pinned: Option<Position>,
    /// How much log there has been since the last image was begun: by frames, and by position, which in a
    /// journal counts padding too.
    log_bytes: u64,
    log_begin: Option<Position>,
    log_end: Position,
    frames: u64,
    /// An image is to be made as soon as it can be.
    wanted: bool,
}

/// An image that is being made.
#[derive(Debug)]
struct Making {
    /// Still to be taken, the next one last. Some are taken as they were when another was: which of `taken`.
    left: Vec<(PartKey, Option<usize>)>,
    taken: Vec<Taken>,
}

#[derive(Debug)]
struct Taken {
    key: PartKey,
    bytes: Option<Bytes>,
    /// The newest frame whose entries are in it.
    frame: u64,
    /// Where that frame is, once it is durable.
    through: Option<Position>,
}

impl Images {
    /// `log_since` is how much log the last image does not cover, so that a server that is often restarted
    /// makes images all the same.
    pub(super) fn new(covered: Position, log_since: u64) -> Images {
        Images {
            making: None,
            saving: false,
            newest: covered,
            covered,
            trimmed: Position::START,
            pinned: None,
            log_bytes: log_since,
            log_begin: None,
            log_end: Position::START,
            frames: 0,
            wanted: false,
        }
    }

    /// An image is made without waiting for more log.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// The position up to which the older image covers the log.
    pub(super) fn covered(&self) -> Position {
        self.covered
    }

    /// The position up to which the log may have been trimmed.
    pub(super) fn trimmed(&self) -> Position {
        self.trimmed
    }

    pub(super) fn log_grew(&mut self, to: Position, bytes: u64) {
        self.log_begin.get_or_insert(to);
        self.log_end = to;
        self.log_bytes += bytes;
        self.frames += 1;
    }

    pub(super) fn is_due(&self, config: &DriverConfig) -> bool {
        let passed = self.log_begin.map_or(0, |begin| self.log_end.0 - begin.0);
        let due = self.log_bytes.max(passed) >= config.image_log_bytes || self.frames >= config.image_frames;
        (due || self.wanted) && self.making.is_none() && !self.saving
    }

    /// Whether an image is being made that goes on at once.
    pub(super) fn has_parts_left(&self) -> bool {
        self.making.as_ref().is_some_and(|making| !making.left.is_empty())
    }

    /// Begins an image. `pinned` is the lowest position from which the content of a message is wanted.
    ///
    /// It is computed now and not when the image is kept, because settlements since then may be forgotten
    /// in a crash, and then contents are wanted again. Settlements in the image are permanent.
    pub(super) fn begin(&mut self, shard: &Shard, pinned: Option<Position>) {
        self.wanted = false;
        self.log_bytes = 0;
        self.log_begin = None;
        self.frames = 0;
        self.pinned = pinned;
        let left: Vec<_> = shard.parts().into_iter().rev().map(|key| (key, None)).collect();
        tracing::debug!(parts = left.len(), pinned = pinned.map(|pinned| pinned.0), "image begun");
        self.making = Some(Making { left, taken: Vec::new() });
    }

    /// Goes on with an image, or finishes it.
    pub(super) fn step(
        &mut self,
        config: &DriverConfig,
        shard: &mut Shard,
        frames: &mut Frames,
        outbox: &mut Outbox,
    ) {
        let Some(making) = &mut self.making else { return };
        if !making.left.is_empty() {
            making.take_slice(config.image_slice_bytes, shard, frames, outbox);
        }
        if making.left.is_empty() && making.taken.iter().all(|part| part.through.is_some()) {
            let parts = making.taken.drain(..).map(|part| ImagePart {
                key: part.key,
                through: part.through.expect("every part's frame is durable"),
                bytes: part.bytes,
            });
            let image = Image { parts: parts.collect() };
            let through = image.parts.iter().map(|part| part.through).min();
            self.newest = through.unwrap_or(self.newest);
            outbox.image = Some(image);
            self.making = None;
            self.saving = true;
        }
    }

    /// A frame is durable, so parts that were waiting for it know what they cover.
    pub(super) fn durable(&mut self, number: u64, position: Position) {
        let Some(making) = &mut self.making else { return };
        for part in &mut making.taken {
            if part.frame == number {
                part.through = Some(position);
            }
        }
    }

    /// The image is not kept. Another one is made at once.
    pub(super) fn failed(&mut self) {
        self.saving = false;
        self.wanted = true;
    }

    /// The image is kept. Returns where the log may now be trimmed to, if that is further than before.
    pub(super) fn saved(&mut self, saved: Saved) -> Option<Position> {
        self.saving = false;
        self.covered = saved.covered;
        let covered = if planted(Fault::TrimPastOlderImage) { self.newest } else { self.covered };
        // A frame that holds something wanted must stay, and so must all after it.
        let through = self.pinned.map_or(covered, |pinned| covered.min(Position(pinned.0.saturating_sub(1))));
        tracing::debug!(covered = self.covered.0, through = through.0, "image kept");
        let further = through > self.trimmed;
        self.trimmed = self.trimmed.max(through);
        further.then_some(through)
    }
}

impl Making {
    /// Takes parts until a turn's worth of bytes is taken.
    fn take_slice(&mut self, bytes_max: usize, shard: &mut Shard, frames: &mut Frames, outbox: &mut Outbox) {
        // A part has all entries of a frame or none, so it is taken between two frames, and what it has is
        // in one of those before it.
        shard.write_down_all(shard.latest());
        frames.take_entries(shard.entries(), outbox);
        frames.close(outbox);
        let mut bytes = 0;
        let frame = frames.last();
        let through = (frame <= frames.durable_number()).then(|| frames.durable_position());
        while let Some((key, along)) = self.left.pop() {
            let mut out = Vec::new();
            let taken = match shard.take_part(key, &mut out) {
                Taking::Gone => continue,
                Taking::Unchanged => None,
                Taking::Taken => Some(Bytes::from(out)),
            };
            bytes += PART_COST + taken.as_ref().map_or(0, Bytes::len);
            let parent = self.taken.len();
            let along_with = |key| Shard::is_taken_along(key).then_some(parent);
            self.left.extend(shard.parts_of(key).into_iter().map(|key| (key, along_with(key))));
            // A part that was frozen with another covers the same entries as that one, however late it is
            // taken.
            let (frame, through) = match along {
                Some(parent) => (self.taken[parent].frame, self.taken[parent].through),
                None => (frame, through),
            };
            self.taken.push(Taken { key, bytes: taken, frame, through });
            if bytes >= bytes_max {
                break;
            }
        }
    }
}
