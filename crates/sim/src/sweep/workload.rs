//! The work that sweeps interrupt and then look at: a short scripted life of one journal.
//!
//! A script is made from a seed and covers all that the journal does to files: commits of one byte and
//! of nearly a whole block, several frames in one block, new segments, sealing, images, trimming, clean
//! stops, and processes that die and come back.

use std::fmt;

use bytes::Bytes;
use forebay_core::types::{PartKey, Position, Seq, StreamId};
use forebay_storage::engine::{Frame, Image, ImagePart, Run};

use super::rig::{Rig, SHARD, Trouble};
use super::witness::{Fallback, Outcome, Witness};
use crate::dice::Dice;
use crate::disk::SimDisk;

/// One thing that is done to the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Commits this many frames together.
    Commit {
        frames: u32,
    },
    /// Commits one frame as large as frames may be.
    CommitLargest,
    /// Does what the journal's own chores are: sealing, preparing the next segment, syncing MARK.
    Chores,
    Save,
    /// Trims to what the older image covers, or to some place before it.
    Trim,
    /// Stops cleanly and opens again.
    Stop,
    /// Dies and opens again, with the page cache as it was.
    Die,
}

/// How every script ends: with enough segments and images that the beginning can be let go of.
const ENDING: [Step; 13] = [
    Step::CommitLargest,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Commit { frames: 3 },
    Step::Save,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Chores,
    Step::Save,
    Step::Trim,
    Step::Commit { frames: 2 },
    Step::Trim,
    Step::Die,
];

/// A script of `len` steps by dice, and an ending that makes sure that nothing is left out.
pub(crate) fn script(dice: &mut Dice, len: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..len {
        steps.push(match dice.roll(20) {
            0..8 => Step::Commit { frames: 1 + dice.roll(4) as u32 },
            8..12 => Step::CommitLargest,
            12..15 => Step::Chores,
            15..17 => Step::Save,
            17 => Step::Trim,
            18 => Step::Stop,
            _ => Step::Die,
        });
    }
    steps.extend(ENDING);
    steps
}

/// Why a history came to a halt.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The journal refused, or could not go on.
    Failed(Trouble),
    /// The journal went on, and what it shows cannot be.
    Impossible(String),
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Halt {
        Halt::Failed(trouble)
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halt::Failed(trouble) => write!(f, "refused: {trouble}"),
            Halt::Impossible(wrong) => f.write_str(wrong),
        }
    }
}

/// Plays steps on a disk, and witnesses what comes of them.
pub(crate) struct Player {
    pub(crate) disk: SimDisk,
    pub(crate) witness: Witness,
    rig: Option<Rig>,
    dice: Dice,
    saves: u64,
    covered: Position,
}

impl Player {
    /// On a disk where nothing is open, after a history that `witness` saw.
    pub(crate) fn new(disk: SimDisk, witness: Witness, seed: u64) -> Player {
        let dice = Dice::from(seed);
        Player { disk, witness, rig: None, dice, saves: 0, covered: Position::START }
    }

    /// Opens the journal, and checks all that it shows.
    pub(crate) fn open(&mut self, fallback: Fallback) -> Result<Outcome, Halt> {
        let (rig, found) = Rig::open(&self.disk)?;
        let outcome = self.witness.check(&found, fallback).map_err(Halt::Impossible)?;
        self.witness.settle(&found);
        self.covered = found.claim.covered;
        self.rig = Some(rig);
        Ok(outcome)
    }

    /// Plays all steps, or up to the first that fails.
    pub(crate) fn play(&mut self, script: &[Step]) -> Result<(), Halt> {
        script.iter().try_for_each(|step| self.step(*step))
    }

    fn step(&mut self, step: Step) -> Result<(), Halt> {
        match step {
            Step::Commit { frames } => Ok(self.commit_some(frames)?),
            Step::CommitLargest => Ok(self.commit_largest()?),
            Step::Chores => Ok(self.rig().chores()?),
            Step::Save => Ok(self.save()?),
            Step::Trim => Ok(self.trim()?),
            Step::Stop => {
                self.stop()?;
                self.open(Fallback::Never).map(drop)
            }
            Step::Die => {
                self.die();
                self.open(Fallback::Never).map(drop)
            }
        }
    }

    /// Stops cleanly, and stays closed.
    pub(crate) fn stop(&mut self) -> Result<(), Trouble> {
        self.rig.take().expect("a journal is open between steps").stop()
    }

    /// Dies, and stays dead.
    pub(crate) fn die(&mut self) {
        self.disk.kill();
        self.rig = None;
    }

    fn rig(&mut self) -> &mut Rig {
        self.rig.as_mut().expect("a journal is open between steps")
    }

    /// Sizes near every edge that the format has: nothing, a byte, a sector, a page.
    fn commit_some(&mut self, count: u32) -> Result<(), Trouble> {
        let mut frames = Vec::new();
        for _ in 0..count {
            let entries = *self.dice.pick(&[1, 7, 60, 300, 900]);
            let payload = *self.dice.pick(&[0, 0, 1, 100, 511, 1_500, 2_900]);
            let frame = self.frame(entries, payload);
            self.witness.sending(&frame);
            frames.push(frame);
        }
        self.commit(frames)
    }

    fn commit_largest(&mut self) -> Result<(), Trouble> {
        let bytes = self.rig().frame_bytes_max();
        let short = self.dice.roll(3) as usize;
        let frame = self.frame(200, bytes - 200 - short);
        self.witness.sending(&frame);
        self.commit(vec![frame])
    }

    /// Commits until all are durable. Those of a block that made it count, also if a later one did not.
    fn commit(&mut self, frames: Vec<Frame>) -> Result<(), Trouble> {
        let (positions, committed) = self.rig().commit(frames);
        self.witness.acknowledged(&positions);
        committed
    }

    fn frame(&mut self, entries: usize, payload: usize) -> Frame {
        let stream = StreamId(1 + self.dice.roll(2) as u32);
        let count = if payload == 0 { 0 } else { 1 + self.dice.roll(3) as u32 };
        let first = self.witness.next_seq(stream);
        let mut runs = Vec::new();
        if count > 0 {
            runs.push(Run { stream, first, count, copied: false });
        }
        // Now and then a frame holds copies too: two runs that would be joined if they were none.
        if count > 0 && first.0 > 3 && self.dice.chance(1, 4) {
            let copied = Seq(1 + self.dice.roll(first.0 - 3));
            runs.extend([copied, copied.next()].map(|first| Run { stream, first, count: 1, copied: true }));
        }
        Frame {
            shard: SHARD,
            entries: Bytes::from(self.dice.bytes(entries)),
            payload: Bytes::from(self.dice.bytes(payload)),
            runs,
        }
    }

    /// An image of three parts, of which one has changed since the last.
    fn save(&mut self) -> Result<(), Trouble> {
        let through = self.witness.positions().last().unwrap_or(Position::START);
        let old = self.witness.image().cloned().unwrap_or_default();
        self.saves += 1;
        let parts = (0..3).map(|id| {
            let key = PartKey { kind: 1, id, sub: 0 };
            let unchanged = old.contains_key(&key) && u64::from(id) != self.saves % 3;
            let len = *self.dice.pick(&[0, 40, 3_000, 9_000]);
            ImagePart { key, through, bytes: (!unchanged).then(|| Bytes::from(self.dice.bytes(len))) }
        });
        let image = Image { parts: parts.collect() };
        self.witness.saving(&image);
        let saved = self.rig().save(image)?;
        self.witness.saved();
        self.covered = saved.covered;
        Ok(())
    }

    fn trim(&mut self) -> Result<(), Trouble> {
        let covered = self.covered;
        let places: Vec<Position> =
            self.witness.positions().filter(|position| *position <= covered).collect();
        let through =
            if places.is_empty() || self.dice.chance(2, 3) { covered } else { *self.dice.pick(&places) };
        self.witness.trimming(through);
        self.rig().trim(through)
    }
}
