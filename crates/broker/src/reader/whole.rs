//! Where a reader of the whole log is, and what it does next: the messages of all streams, by their ordinals.
//!
//! The log has messages in the order of their ordinals, one after the other, from the place where it was trimmed to
//! its end. Messages before that are copies, further on in the log and in any order. So the cursor reads frames in
//! their order. If these begin behind the next message, the messages between are not there as they were published (a
//! *hole*), and the cursor asks which frames may have copies of them, and puts them in order.
//!
//! Messages of streams that were deleted, and messages that were let go, are found as well. The caller leaves them out.

use std::collections::{BTreeMap, VecDeque};

use forebay_core::fault::{Fault, planted};
use forebay_core::types::{Ordinal, Position};
use forebay_storage::engine::{ReadBudget, Readout};

use super::decode::{Piece, Wanted, pieces};
use super::{Direction, Step, Stretch};
use crate::index::{Copies, CopyFrame};
use crate::recovery::RecoveryError;

/// The memory that a message takes beside its content while copies are put in order.
const MESSAGE_OVERHEAD: usize = 160;

/// A question to the driver: where the next messages of a reader of the whole log are.
#[derive(Debug, Clone, Copy)]
pub struct WholeWish {
    pub next: Ordinal,
    pub direction: Direction,
    /// The messages with these ordinals, from the next one on, are not there as they were published.
    pub hole: Option<(Ordinal, Ordinal)>,
    /// How much is wanted, in bytes.
    pub bytes: usize,
}

/// The answer to a [`WholeWish`].
#[derive(Debug)]
pub struct WholeLocated {
    /// The ordinal of the last durable message.
    pub last: Ordinal,
    pub spot: WholeSpot,
}

#[derive(Debug)]
pub enum WholeSpot {
    /// The message is not before this position, nor are those between it and `first`. If it cannot be read, neither can
    /// those after it up to `bound`.
    Log {
        from: Position,
        first: Ordinal,
        bound: Ordinal,
    },
    Copies(Copies),
}

#[derive(Debug)]
pub struct WholeCursor {
    direction: Direction,
    next: Ordinal,
    /// Messages after it are not durable, as far as is known.
    last: Ordinal,
    /// Forwards: the next message is not before this position, copies aside.
    read_to: Position,
    hole: Option<(Ordinal, Ordinal)>,
    walk: Walk,
    /// A frame of copies was not there, and has been asked for again.
    sought: Option<Position>,
    /// Messages that cannot be read, and that the reader has left out.
    lost: u64,
}

/// Frames that are being read.
#[derive(Debug)]
enum Walk {
    Nothing,
    Log(LogWalk),
    Copies(CopiesWalk),
}

#[derive(Debug)]
struct LogWalk {
    at: Position,
    /// As the driver has said. Not known if it was not asked.
    within: Option<(Ordinal, Ordinal)>,
    bytes_max: usize,
    /// Messages without a gap, and the ordinals that they and lost messages among them have.
    found: VecDeque<Stretch>,
    bytes: usize,
    covers: Option<(Ordinal, Ordinal)>,
}

#[derive(Debug)]
struct CopiesWalk {
    frames: VecDeque<CopyFrame>,
    /// The ordinals that the copies are looked for of.
    low: Ordinal,
    high: Ordinal,
    bytes_max: usize,
    found: BTreeMap<Ordinal, Stretch>,
    bytes: usize,
}

/// The result of looking through frames in the order of the log.
enum Walked {
    More,
    Enough,
    /// The next message comes later in the log, if at all: those of this range are not there.
    Hole(Ordinal, Ordinal),
}

impl WholeCursor {
    /// A reader of all messages from `next` on. It comes first, or the first message after it that is there; backwards,
    /// the last one before it.
    pub fn new(next: Ordinal, direction: Direction) -> WholeCursor {
        WholeCursor {
            direction,
            next: next.max(Ordinal(u64::from(direction == Direction::Forwards))),
            last: Ordinal(0),
            read_to: Position::START,
            hole: None,
            walk: Walk::Nothing,
            sought: None,
            lost: 0,
        }
    }

    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The next message. Backwards, zero at the beginning of the log.
    pub fn next(&self) -> Ordinal {
        self.next
    }

    /// The last durable message, as far as is known.
    pub fn last(&self) -> Ordinal {
        self.last
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Goes on with another message. Messages that were read ahead have been dropped.
    pub fn seek(&mut self, next: Ordinal) {
        *self = WholeCursor { last: self.last, lost: self.lost, ..WholeCursor::new(next, self.direction) };
    }

    pub fn wish(&self, bytes: usize) -> WholeWish {
        WholeWish { next: self.next, direction: self.direction, hole: self.hole, bytes }
    }

    /// Messages up to this one are durable.
    pub fn grown_to(&mut self, last: Ordinal) {
        self.last = self.last.max(last);
    }

    /// The next step if the cursor knows where the next message is, and else to ask.
    pub fn go_on(&mut self, bytes_max: usize) -> Step {
        let is_known = self.direction == Direction::Forwards && self.hole.is_none();
        match is_known && self.read_to > Position::START && self.next <= self.last {
            true => self.walk_log(self.read_to, None, bytes_max),
            false => Step::Ask,
        }
    }

    /// Takes the answer of the driver. `bytes_max` is how much one read may bring.
    pub fn plan(&mut self, located: WholeLocated, bytes_max: usize) -> Step {
        self.last = self.last.max(located.last);
        if self.direction == Direction::Backwards {
            self.next = self.next.min(self.last);
        }
        if self.next > self.last || self.next == Ordinal(0) {
            return Step::End;
        }
        match located.spot {
            WholeSpot::Log { from, first, bound } => {
                self.walk_log(from.max(self.read_to), Some((first, bound)), bytes_max)
            }
            WholeSpot::Copies(Copies { mut frames, low, high }) => {
                if planted(Fault::WholeReaderPassesCopies) {
                    frames.clear();
                }
                let walk = CopiesWalk {
                    frames: frames.into(),
                    low,
                    high,
                    bytes_max,
                    found: BTreeMap::new(),
                    bytes: 0,
                };
                self.go_through(walk)
            }
        }
    }

    fn walk_log(&mut self, at: Position, within: Option<(Ordinal, Ordinal)>, bytes_max: usize) -> Step {
        let walk = LogWalk { at, within, bytes_max, found: VecDeque::new(), bytes: 0, covers: None };
        let step = walk.read();
        self.walk = Walk::Log(walk);
        step
    }

    /// Takes frames that were read as [`Step::Read`] says.
    pub fn take(&mut self, readout: &Readout) -> Result<Step, RecoveryError> {
        match std::mem::replace(&mut self.walk, Walk::Nothing) {
            Walk::Nothing => Ok(Step::Ask),
            Walk::Log(mut walk) => {
                let walked = match self.direction {
                    Direction::Forwards => walk.forwards(self.next, self.last, readout, &mut self.lost)?,
                    Direction::Backwards => walk.backwards(self.next, readout, &mut self.lost)?,
                };
                Ok(self.after(walk, walked))
            }
            Walk::Copies(walk) => self.take_copies(walk, readout),
        }
    }

    fn after(&mut self, walk: LogWalk, walked: Walked) -> Step {
        match (walked, self.direction) {
            (Walked::More, _) => {
                let step = walk.read();
                self.walk = Walk::Log(walk);
                step
            }
            (Walked::Hole(low, high), _) => {
                self.hole = Some((low, high));
                self.read_to = Position::START;
                Step::Ask
            }
            (Walked::Enough, direction) => {
                let (low, high) = walk.covers.unwrap_or((self.next, self.next));
                match direction {
                    Direction::Forwards => {
                        self.next = high.plus(1);
                        self.read_to = walk.at;
                    }
                    Direction::Backwards => self.next = Ordinal(low.0 - 1),
                }
                found(walk.found.into_iter(), direction)
            }
        }
    }

    /// The next frame of copies that may have something, or the messages of all that were read, in order.
    fn go_through(&mut self, mut walk: CopiesWalk) -> Step {
        while let Some(frame) = walk.frames.front() {
            if frame.low <= walk.high && frame.high >= walk.low {
                let budget = ReadBudget { bytes_max: walk.bytes_max, frames_max: 1, payloads: true };
                let step = Step::Read(frame.position, budget);
                self.walk = Walk::Copies(walk);
                return step;
            }
            walk.frames.pop_front();
        }
        self.sought = None;
        self.next = match self.direction {
            Direction::Forwards => walk.high.plus(1),
            Direction::Backwards => Ordinal(walk.low.0 - 1),
        };
        let is_in = |(low, high): &(Ordinal, Ordinal)| (*low..=*high).contains(&self.next);
        self.hole = self.hole.filter(is_in);
        found(walk.found.into_values(), self.direction)
    }

    fn take_copies(&mut self, mut walk: CopiesWalk, readout: &Readout) -> Result<Step, RecoveryError> {
        let Some(CopyFrame { position, .. }) = walk.frames.front().copied() else {
            return Ok(self.go_through(walk));
        };
        match readout.frames.first().filter(|frame| frame.position == position) {
            Some(frame) => {
                let direction = self.direction;
                pieces(frame, &readout.damage, Wanted::AllCopied, |piece| walk.put(&piece, direction))?;
            }
            None => {
                let is_damaged =
                    readout.damage.iter().any(|place| (place.from..place.until).contains(&position));
                // It may have been trimmed away since, and its messages copied once more.
                if !is_damaged && self.sought != Some(position) {
                    self.sought = Some(position);
                    return Ok(Step::Ask);
                }
            }
        }
        walk.frames.pop_front();
        Ok(self.go_through(walk))
    }

    /// Nothing of a read can be had: goes on without it.
    pub fn unreadable(&mut self) -> Step {
        match std::mem::replace(&mut self.walk, Walk::Nothing) {
            Walk::Nothing => Step::Ask,
            Walk::Copies(mut walk) => {
                walk.frames.pop_front();
                self.go_through(walk)
            }
            Walk::Log(walk) => {
                self.read_to = Position::START;
                let Some((first, bound)) = walk.within else { return Step::Ask };
                let (low, high) = match self.direction {
                    Direction::Forwards => (self.next, bound.min(self.last).max(self.next)),
                    Direction::Backwards => (first.min(self.next), self.next),
                };
                self.after(walk, Walked::Hole(low, high))
            }
        }
    }
}

/// Messages that were found, in the order of reading.
fn found(stretches: impl DoubleEndedIterator<Item = Stretch>, direction: Direction) -> Step {
    let found: Vec<Stretch> = match direction {
        Direction::Forwards => stretches.collect(),
        Direction::Backwards => stretches.rev().collect(),
    };
    if found.is_empty() { Step::Ask } else { Step::Found(found) }
}

impl LogWalk {
    fn read(&self) -> Step {
        Step::Read(self.at, ReadBudget { bytes_max: self.bytes_max, frames_max: usize::MAX, payloads: true })
    }

    /// Takes a piece that follows those before it.
    fn put(&mut self, piece: Piece, (low, high): (Ordinal, Ordinal), lost: &mut u64) {
        match piece {
            Piece::Found(stretch) => {
                if let Some(part) = stretch.part_by_ordinal(low, high) {
                    self.bytes += part.bytes();
                    self.found.push_back(part);
                }
            }
            Piece::Lost { .. } => *lost += high.0 - low.0 + 1,
        }
        let begun = self.covers.map_or(low, |(begun, _)| begun);
        self.covers = Some((begun, high));
    }

    fn passed(&mut self, readout: &Readout) {
        let holes = readout.damage.iter().filter(|place| place.payload.is_none());
        self.at = holes.map(|hole| hole.until).fold(self.at, Position::max);
    }

    /// From `next` on, as far as there is no gap.
    fn forwards(
        &mut self,
        next: Ordinal,
        last: Ordinal,
        readout: &Readout,
        lost: &mut u64,
    ) -> Result<Walked, RecoveryError> {
        for frame in &readout.frames {
            let mut here = Vec::new();
            pieces(frame, &readout.damage, Wanted::AllPublished, |piece| here.push(piece))?;
            for piece in here {
                let wanted = self.covers.map_or(next, |(_, high)| high.plus(1));
                let (low, high) = piece.ordinals();
                if high < wanted || low == Ordinal(0) {
                    continue;
                }
                if wanted > last {
                    // Not known to be durable. It comes next time.
                    self.at = frame.position;
                    return Ok(Walked::Enough);
                }
                if low > wanted {
                    self.at = frame.position;
                    return Ok(match self.covers {
                        Some(_) => Walked::Enough,
                        None => Walked::Hole(wanted, Ordinal(low.0 - 1).min(last)),
                    });
                }
                self.put(piece, (wanted, high.min(last)), lost);
            }
            self.at = Position(frame.position.0 + 1);
        }
        self.passed(readout);
        let is_end = readout.frames.is_empty() && readout.damage.is_empty();
        Ok(match self.covers {
            Some(_) => Walked::Enough,
            None if is_end => Walked::Hole(next, last),
            None => Walked::More,
        })
    }

    /// The messages up to `next`, as far back as there is no gap and memory for them.
    fn backwards(
        &mut self,
        next: Ordinal,
        readout: &Readout,
        lost: &mut u64,
    ) -> Result<Walked, RecoveryError> {
        let mut is_end = readout.frames.is_empty() && readout.damage.is_empty();
        'frames: for frame in &readout.frames {
            let mut here = Vec::new();
            pieces(frame, &readout.damage, Wanted::AllPublished, |piece| here.push(piece))?;
            for piece in here {
                let (low, high) = piece.ordinals();
                if low > next {
                    is_end = true;
                    break 'frames;
                }
                let wanted = self.covers.map_or(Ordinal(1), |(_, high)| high.plus(1));
                if high < wanted || low == Ordinal(0) {
                    continue;
                }
                if low > wanted {
                    self.found.clear();
                    (self.bytes, self.covers) = (0, None);
                }
                self.put(piece, (low.max(wanted), high.min(next)), lost);
                self.forget_front();
                if high >= next {
                    is_end = true;
                    break 'frames;
                }
            }
            self.at = Position(frame.position.0 + 1);
        }
        self.passed(readout);
        if !is_end {
            return Ok(Walked::More);
        }
        Ok(match self.covers {
            Some((_, high)) if high == next => Walked::Enough,
            Some((_, high)) => Walked::Hole(high.plus(1), next),
            None => Walked::Hole(self.within.map_or(next, |(first, _)| first.min(next)), next),
        })
    }

    /// A log that is looked through from far back has more than fits in memory, and the end of it is wanted.
    fn forget_front(&mut self) {
        while self.bytes > self.bytes_max && self.found.len() > 1 {
            if let (Some(front), Some((_, high))) = (self.found.pop_front(), self.covers) {
                self.bytes -= front.bytes();
                self.covers = Some((front.last_ordinal().plus(1), high));
            }
        }
    }
}

impl CopiesWalk {
    /// Takes the messages of a piece that are looked for. If they become too many, those that come last are left for
    /// the next time.
    fn put(&mut self, piece: &Piece, direction: Direction) {
        let Piece::Found(stretch) = piece else { return };
        let Some(part) = stretch.part_by_ordinal(self.low, self.high) else { return };
        for n in 0..part.len() {
            let message = part.single(n);
            self.bytes += message.bytes() + MESSAGE_OVERHEAD;
            if let Some(before) = self.found.insert(message.first.ordinal, message) {
                self.bytes -= before.bytes() + MESSAGE_OVERHEAD;
            }
        }
        while self.bytes > self.bytes_max && self.found.len() > 1 {
            let left = match direction {
                Direction::Forwards => self.found.pop_last(),
                Direction::Backwards => self.found.pop_first(),
            };
            let Some((ordinal, message)) = left else { return };
            self.bytes -= message.bytes() + MESSAGE_OVERHEAD;
            match direction {
                Direction::Forwards => self.high = Ordinal(ordinal.0 - 1),
                Direction::Backwards => self.low = ordinal.plus(1),
            }
        }
    }
}
