//! Where a reader is in one stream, and what it does next.
//!
//! A cursor asks the driver where its next messages are ([`Driver::locate`](crate::driver::Driver::locate)), and is
//! given stretches that are in memory or a [`Spot`] of the log. It says which frames to read, takes them, and finds its
//! messages in them.
//!
//! The log changes meanwhile: messages are let go and trimmed away, or copied forward. So a message that is not at its
//! spot is asked for a second time. If the driver then names the same spot, the message cannot be read, and the cursor
//! goes on without it and counts it as lost.

use forebay_core::fault::{Fault, planted};
use forebay_core::types::{Position, Seq, SeqRange, StreamId};
use forebay_storage::engine::{ReadBudget, Readout};

use super::decode::{Piece, Wanted, pieces};
use super::{Direction, Most, Stretch};
use crate::recovery::RecoveryError;

/// A question to the driver: where the next messages of a reader are.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub stream: StreamId,
    /// The next message. Backwards, the first one of it and those before it that is there.
    pub next: Seq,
    pub direction: Direction,
    pub most: Most,
}

/// The answer to a [`Wish`].
#[derive(Debug)]
pub struct Located {
    /// The last durable message of the stream.
    pub last: Seq,
    /// The messages that can be read.
    pub readable: Option<SeqRange>,
    /// Messages that are in memory, from the wanted one on, in the order of reading.
    pub hot: Vec<Stretch>,
    /// Where the wanted message is if it is not in memory.
    pub spot: Option<Spot>,
}

/// A place of the log where messages of a stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub seqs: SeqRange,
    /// The first message is in a frame from here to just before `until`.
    pub from: Position,
    pub until: Position,
    /// If the first message cannot be read, neither can those up to here: the log has none of them before `until`.
    pub bound: Seq,
    /// They are copies, all of them in the frame at `from`.
    pub copied: bool,
}

/// The next thing that a reader has to do.
#[derive(Debug)]
pub enum Step {
    /// Messages, in the order of reading.
    Found(Vec<Stretch>),
    /// Frames have to be read, and given to [`Cursor::take`].
    Read(Position, ReadBudget),
    /// The driver has to be asked, and its answer given to [`Cursor::plan`].
    Ask,
    /// There are no more messages.
    End,
}

#[derive(Debug)]
pub struct Cursor {
    stream: StreamId,
    direction: Direction,
    next: Seq,
    /// Forwards: no frame before this position has a message that was published as `next` or later.
    read_to: Position,
    walk: Option<Walk>,
    /// A message was not found at this spot, and has been asked for again.
    sought: Option<Spot>,
    /// Messages that cannot be read, and that the reader has left out.
    lost: u64,
}

/// Frames that are being read for a spot.
#[derive(Debug)]
struct Walk {
    spot: Spot,
    /// The next message of the spot.
    next: Seq,
    /// Where the next read begins.
    at: Position,
    bytes_max: usize,
    /// The spot is looked through for the second time: a message that is not there is passed over.
    again: bool,
    found: Vec<Stretch>,
    lost: u64,
}

/// The result of looking through some frames.
enum Walked {
    /// There is more of the spot.
    More,
    /// Messages of the spot were found, or passed over.
    Enough,
    /// The next message is not there.
    Missing,
}

impl Spot {
    /// Whether it is where a message was looked for before. The stream may have grown since.
    fn is_as(&self, before: &Spot) -> bool {
        (self.seqs.first, self.from, self.copied) == (before.seqs.first, before.from, before.copied)
    }
}

impl Cursor {
    /// A reader of a stream from `next` on. It comes first, or the first message after it that is there; backwards, the
    /// last one before it.
    pub fn new(stream: StreamId, next: Seq, direction: Direction) -> Cursor {
        let read_to = Position::START;
        Cursor { stream, direction, next, read_to, walk: None, sought: None, lost: 0 }
    }

    pub fn stream(&self) -> StreamId {
        self.stream
    }

    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The next message.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Messages that were left out because they cannot be read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Goes on with another message. Messages that were read ahead have been dropped.
    pub fn seek(&mut self, next: Seq) {
        *self = Cursor { lost: self.lost, ..Cursor::new(self.stream, next, self.direction) };
    }

    pub fn wish(&self, most: Most) -> Wish {
        Wish { stream: self.stream, next: self.next, direction: self.direction, most }
    }

    /// Takes the answer of the driver. `bytes_max` is how much one read may bring.
    pub fn plan(&mut self, located: Located, bytes_max: usize) -> Step {
        let Located { readable, hot, spot, .. } = located;
        let Some(readable) = readable else { return Step::End };
        match self.direction {
            // Messages before it are gone.
            Direction::Forwards => self.next = self.next.max(readable.first),
            Direction::Backwards => self.next = self.next.min(readable.last),
        }
        if let Some(last) = hot.last() {
            self.next = match self.direction {
                Direction::Forwards => last.seqs().last.next(),
                Direction::Backwards => Seq(last.seqs().first.0 - 1),
            };
            self.read_to = Position::START;
            return Step::Found(hot);
        }
        let Some(spot) = spot else { return Step::End };
        let is_behind = self.direction == Direction::Forwards && !spot.copied;
        let at = if is_behind { spot.from.max(self.read_to) } else { spot.from };
        let again = self.sought.is_some_and(|before| spot.is_as(&before)) || planted(Fault::ReaderPassesGap);
        let walk = Walk { spot, next: spot.seqs.first, at, bytes_max, again, found: Vec::new(), lost: 0 };
        let step = walk.read();
        self.walk = Some(walk);
        step
    }

    /// Takes frames that were read as [`Step::Read`] says. After an error nothing of them has been taken, and
    /// [`Cursor::unreadable`] goes on without them.
    pub fn take(&mut self, readout: &Readout) -> Result<Step, RecoveryError> {
        let Some(mut walk) = self.walk.take() else { return Ok(Step::Ask) };
        match walk.take(self.stream, self.direction, readout) {
            Ok(Walked::More) => {
                let step = walk.read();
                self.walk = Some(walk);
                Ok(step)
            }
            Ok(Walked::Enough) => Ok(self.finish(walk)),
            Ok(Walked::Missing) => {
                self.sought = Some(walk.spot);
                self.read_to = Position::START;
                Ok(Step::Ask)
            }
            Err(error) => {
                self.walk = Some(walk);
                Err(error)
            }
        }
    }

    /// Nothing of a read can be had: goes on without the messages that it was for.
    pub fn unreadable(&mut self) -> Step {
        let Some(mut walk) = self.walk.take() else { return Step::Ask };
        walk.pass_to(match self.direction {
            Direction::Forwards => walk.spot.bound.min(walk.spot.seqs.last).next(),
            Direction::Backwards => walk.spot.seqs.last.next(),
        });
        walk.at = Position::START;
        self.finish(walk)
    }

    /// A walk has found something, or passed over something.
    fn finish(&mut self, mut walk: Walk) -> Step {
        self.sought = None;
        self.lost += walk.lost;
        match self.direction {
            Direction::Forwards => {
                self.next = walk.next;
                self.read_to = if walk.spot.copied { Position::START } else { walk.at };
            }
            Direction::Backwards => {
                self.next = Seq(walk.spot.seqs.first.0 - 1);
                walk.found.reverse();
            }
        }
        if walk.found.is_empty() { Step::Ask } else { Step::Found(walk.found) }
    }
}

impl Walk {
    fn read(&self) -> Step {
        let frames_max = if self.spot.copied { 1 } else { usize::MAX };
        Step::Read(self.at, ReadBudget { bytes_max: self.bytes_max, frames_max, payloads: true })
    }

    /// The messages before this one are lost.
    fn pass_to(&mut self, next: Seq) {
        self.lost += next.0 - self.next.0;
        self.next = next;
    }

    fn take(
        &mut self,
        stream: StreamId,
        direction: Direction,
        readout: &Readout,
    ) -> Result<Walked, RecoveryError> {
        let Spot { seqs, until, bound, copied, .. } = self.spot;
        let wanted = if copied { Wanted::Copied(stream) } else { Wanted::Published(stream) };
        let begun = self.next;
        for frame in &readout.frames {
            let mut here = Vec::new();
            pieces(frame, &readout.damage, wanted, |piece| here.push(piece))?;
            for piece in here {
                let range = piece.seqs();
                // Copies of other messages may lie before the wanted ones, in any order.
                let Some(part) = range.overlap(SeqRange::new(self.next, seqs.last)) else { continue };
                if part.first > self.next {
                    // Messages before it are not there. If there is something to show, that comes first.
                    match (direction, self.again) {
                        (Direction::Forwards, _) if self.next > begun => return Ok(Walked::Enough),
                        (_, true) => self.pass_to(part.first),
                        (_, false) => return Ok(Walked::Missing),
                    }
                }
                match piece {
                    Piece::Found(stretch) => {
                        self.found.extend(stretch.part(part));
                        self.next = part.last.next();
                    }
                    Piece::Lost { .. } => self.pass_to(part.last.next()),
                }
                if self.next > seqs.last {
                    // The frame may have more, which could not be read when the driver was asked.
                    self.at = frame.position;
                    return Ok(Walked::Enough);
                }
            }
            self.at = Position(frame.position.0 + 1);
        }
        let holes = readout.damage.iter().filter(|place| place.payload.is_none());
        self.at = holes.map(|hole| hole.until).fold(self.at, Position::max);
        if self.next > begun && direction == Direction::Forwards {
            return Ok(Walked::Enough);
        }
        let is_end = copied || (readout.frames.is_empty() && readout.damage.is_empty());
        let is_past = self.next == seqs.first && self.at >= until;
        match (is_end || is_past, self.again) {
            (false, _) => Ok(Walked::More),
            (true, false) => Ok(Walked::Missing),
            (true, true) => {
                let end = if is_end { seqs.last } else { bound.min(seqs.last) };
                self.pass_to(end.next());
                let is_done = direction == Direction::Forwards || self.next > seqs.last;
                Ok(if is_done { Walked::Enough } else { Walked::More })
            }
        }
    }
}
