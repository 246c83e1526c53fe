//! What the journal was given, what it answered, and therefore what it must still know.
//!
//! The witness stands beside the journal while a history runs. After a crash it is asked whether the
//! recovered log is possible: every acknowledged frame that was not trimmed is there, byte for byte and in
//! order; of the frames under way when the crash came, a beginning may be there; nothing else is.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_core::types::{Epoch, PartKey, Position, Seq, ShardId, StreamId};
use forebay_storage::engine::{Claim, Frame, Image, SavedPart, StoredFrame};

use super::rig::SHARD;

/// Everything that an open journal shows.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) shard: ShardId,
    pub(crate) claim: Claim,
    /// All frames from the claim's start on, with payloads.
    pub(crate) frames: Vec<StoredFrame>,
}

/// Remembers one history on one folder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Witness {
    /// Frames in the order in which they were sent, without those that a crash is known to have lost.
    sent: Vec<Sent>,
    /// Frames at or before this may have been let go.
    trimmed: Position,
    /// The images of all saves that were answered, the last one last.
    images: Vec<Parts>,
    /// A save that was begun and never answered.
    image_on_its_way: Option<Parts>,
    epoch: Epoch,
}

#[derive(Debug, Clone)]
struct Sent {
    frame: Frame,
    /// `None` until the frame is acknowledged, or found after a crash.
    position: Option<Position>,
}

/// A whole image: where each part is up to date to, and its bytes.
pub(crate) type Parts = BTreeMap<PartKey, (Position, Bytes)>;

/// Whether an older image may be found in place of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// Never: only a crash happened, and a crash damages no image that was saved.
    Never,
    /// If the claim remarks on it: an image was damaged.
    WithRemark,
    /// Without a word: the image is gone altogether, or was set aside by an earlier recovery, and there is
    /// nothing left to remark on. The log still holds all that came after the older one.
    Silently,
}

/// How a state that can be differs from the one before the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outcome {
    /// Frames on their way that were kept, and that were lost.
    pub(crate) kept: u64,
    pub(crate) lost: u64,
    pub(crate) fell_back: bool,
}

impl Witness {
    pub(crate) fn sending(&mut self, frame: &Frame) {
        self.sent.push(Sent { frame: frame.clone(), position: None });
    }

    /// The position that the next message of a stream gets. What a crash lost was never published.
    pub(crate) fn next_seq(&self, stream: StreamId) -> Seq {
        let runs = self.sent.iter().rev().flat_map(|sent| &sent.frame.runs);
        let last = runs
            .filter(|run| run.stream == stream && !run.copied)
            .map(|run| run.first.plus(u64::from(run.count)))
            .next();
        last.unwrap_or(Seq(1))
    }

    /// The next frames on their way were acknowledged at these positions.
    pub(crate) fn acknowledged(&mut self, positions: &[Position]) {
        let waiting = self.sent.iter_mut().filter(|sent| sent.position.is_none());
        for (sent, position) in waiting.zip(positions) {
            sent.position = Some(*position);
        }
    }

    pub(crate) fn saving(&mut self, image: &Image) {
        let old = self.image().cloned().unwrap_or_default();
        let parts = image.parts.iter().map(|part| {
            let bytes = part.bytes.clone().unwrap_or_else(|| old[&part.key].1.clone());
            (part.key, (part.through, bytes))
        });
        self.image_on_its_way = Some(parts.collect());
    }

    pub(crate) fn saved(&mut self) {
        self.images.extend(self.image_on_its_way.take());
    }

    pub(crate) fn trimming(&mut self, through: Position) {
        self.trimmed = self.trimmed.max(through);
    }

    /// Whether two images are kept.
    pub(crate) fn has_two_images(&self) -> bool {
        self.images.len() >= 2
    }

    /// The image that the next save builds on.
    pub(crate) fn image(&self) -> Option<&Parts> {
        self.images.last()
    }

    /// Positions of all acknowledged frames.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> {
        self.sent.iter().filter_map(|sent| sent.position)
    }

    /// How many frames are owed: acknowledged, and not let go.
    pub(crate) fn owed(&self) -> usize {
        self.positions().filter(|position| *position > self.trimmed).count()
    }

    /// Checks whether the found log is possible. The error says why not.
    pub(crate) fn check(&self, found: &Found, fallback: Fallback) -> Result<Outcome, String> {
        let mut outcome = self.check_frames(found)?;
        check_order(found)?;
        check_index(found)?;
        outcome.fell_back = self.check_image(found, fallback)?;
        if found.shard != SHARD {
            return Err(format!("the log is that of another shard. shard=`{}`", found.shard.0));
        }
        if found.claim.epoch <= self.epoch {
            return Err(format!("epoch {:?} was claimed before", found.claim.epoch));
        }
        Ok(outcome)
    }

    /// Takes the found log as the truth from now on.
    pub(crate) fn settle(&mut self, found: &Found) {
        self.epoch = found.claim.epoch;
        let acknowledged = self.positions().count();
        let first = self.first_found(found).unwrap_or(acknowledged);
        self.sent.truncate(first + found.frames.len());
        for (sent, stored) in self.sent[first..].iter_mut().zip(&found.frames) {
            sent.position = Some(stored.position);
        }
        if let Some(coming) = self.image_on_its_way.take()
            && parts_of(&found.claim.parts) == coming
        {
            self.images.push(coming);
        }
    }

    /// Which of the frames sent is the first one found: the one acknowledged at its position, or else the
    /// first of those on their way, since no other frame can be without an acknowledged one before it.
    fn first_found(&self, found: &Found) -> Option<usize> {
        let first = found.frames.first()?;
        let acknowledged = self.sent.iter().position(|sent| sent.position == Some(first.position));
        acknowledged.or_else(|| self.sent.iter().position(|sent| sent.position.is_none()))
    }

    fn check_frames(&self, found: &Found) -> Result<Outcome, String> {
        let owed_first = self.sent.iter().position(|sent| sent.position.is_some_and(|at| at > self.trimmed));
        let owed_last = self.sent.iter().rposition(|sent| sent.position.is_some_and(|at| at > self.trimmed));
        let on_their_way = self.sent.iter().filter(|sent| sent.position.is_none()).count() as u64;
        if found.frames.is_empty() {
            return match owed_first {
                Some(first) => Err(format!("all frames are lost, from {} on", self.describe(first))),
                None => Ok(Outcome { lost: on_their_way, ..Outcome::default() }),
            };
        }
        let Some(first) = self.first_found(found) else {
            return Err(format!("the first frame was never sent. position=`{}`", found.frames[0].position.0));
        };
        if owed_first.is_some_and(|owed| owed < first) {
            return Err(format!("the beginning is lost: {}", self.describe(owed_first.unwrap_or(first))));
        }
        for (at, stored) in (first..).zip(&found.frames) {
            let Some(sent) = self.sent.get(at) else {
                return Err(format!("a frame too many. position=`{}`", stored.position.0));
            };
            if sent.position.is_some_and(|position| position != stored.position) {
                return Err(format!("found at {} instead: {}", stored.position.0, self.describe(at)));
            }
            let same = sent.frame.entries == stored.entries
                && sent.frame.payload == stored.payload
                && sent.frame.runs == stored.runs;
            if !same {
                return Err(format!("not what was sent: {}", self.describe(at)));
            }
        }
        let end = first + found.frames.len();
        if let Some(last) = owed_last
            && last >= end
        {
            return Err(format!("the end is lost, up to {}", self.describe(last)));
        }
        let lost = (self.sent.len() - end) as u64;
        Ok(Outcome { kept: on_their_way - lost, lost, fell_back: false })
    }

    /// The image is that of the last save. If that was damaged, any earlier one will do, or none at all,
    /// as long as the log still holds everything that came after it.
    fn check_image(&self, found: &Found, fallback: Fallback) -> Result<bool, String> {
        let claim = &found.claim;
        let parts = parts_of(&claim.parts);
        let none = Parts::new();
        if parts == *self.image().unwrap_or(&none) || Some(&parts) == self.image_on_its_way.as_ref() {
            return Ok(false);
        }
        if parts != none && !self.images.contains(&parts) {
            return Err("the image is none of those that were saved".to_string());
        }
        let covered = parts.values().map(|(through, _)| *through).min().unwrap_or(Position::START);
        let needed = self.positions().find(|position| *position > covered);
        if needed.is_some_and(|needed| found.frames.first().is_none_or(|first| first.position > needed)) {
            return Err("an older image is used, and the log does not reach back to it".to_string());
        }
        if fallback == Fallback::Never {
            return Err("the image of the last save is lost".to_string());
        }
        if fallback == Fallback::WithRemark && claim.remarks.is_empty() {
            return Err("an older image is used without a remark".to_string());
        }
        Ok(true)
    }

    fn describe(&self, at: usize) -> String {
        let sent = &self.sent[at];
        let position =
            sent.position.map_or("on its way".to_string(), |position| format!("position {}", position.0));
        let bytes = sent.frame.entries.len() + sent.frame.payload.len();
        format!("frame {} of {}, {position}, {bytes} bytes", at + 1, self.sent.len())
    }
}

fn parts_of(parts: &[SavedPart]) -> Parts {
    parts.iter().map(|part| (part.key, (part.through, part.bytes.clone()))).collect()
}

/// Positions grow, epochs do not go back, and all of it lies where the claim says.
fn check_order(found: &Found) -> Result<(), String> {
    let claim = &found.claim;
    for pair in found.frames.windows(2) {
        if pair[0].position >= pair[1].position || pair[0].epoch > pair[1].epoch {
            return Err(format!("frames out of order. position=`{}`", pair[1].position.0));
        }
    }
    for frame in &found.frames {
        if frame.position < claim.start || frame.position >= claim.end || frame.epoch >= claim.epoch {
            return Err(format!("a frame lies outside the claim. position=`{}`", frame.position.0));
        }
    }
    Ok(())
}

/// Every message before `indexed` is in the run of its stream that begins last at or before it, and that
/// run points at or before the message's frame. Copies are named one by one, and nothing else is named so.
fn check_index(found: &Found) -> Result<(), String> {
    let claim = &found.claim;
    let indexed = || found.frames.iter().filter(|frame| frame.position < claim.indexed);
    let copies = indexed().flat_map(|frame| {
        let copies = frame.runs.iter().filter(|run| run.copied);
        copies.map(|run| (run.stream, run.first, u64::from(run.count), frame.position))
    });
    let named = claim.runs.iter().filter(|index| index.copied);
    if !copies.eq(named.map(|index| (index.stream, index.first, index.count, index.position))) {
        return Err("the index does not name the copies that there are".to_owned());
    }
    for frame in indexed() {
        for run in frame.runs.iter().filter(|run| !run.copied) {
            let covered = claim.runs.iter().any(|index| {
                index.stream == run.stream
                    && !index.copied
                    && index.first <= run.first
                    && run.first.0 + u64::from(run.count) <= index.first.0 + index.count
                    && index.position <= frame.position
            });
            if !covered {
                return Err(format!("the index misses a frame. position=`{}`", frame.position.0));
            }
        }
    }
    Ok(())
}
