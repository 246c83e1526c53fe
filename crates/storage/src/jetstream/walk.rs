//! The reader's rule: which records of a log are valid.
//!
//! Going through the log in order, the first claim is valid, a claim of epoch e+1 is valid after epoch e, and any
//! other claim is void. Every other record is valid if its epoch is the current one and its number is the next. The
//! rest is void: skipped and counted. An owner that lost the log has had frames on their way, and JetStream may have
//! stored them behind the claim of the next owner; so void records are ordinary.
//!
//! A [`Walk`] is a plain value: it is fed messages in order and says what each of them is.

use bytes::{Bytes, BytesMut};
use forebay_core::fault::{Fault, planted};
use forebay_core::types::{Epoch, Position, Timestamp};

use crate::engine::{Run, StorageError};
use crate::jetstream::record::{Ending, HEADER_BYTES, Hash, Header, Kind, Place, Term, end_of, take_frame};

/// A message of the stream, as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    /// When it was stored, by the clock of a server.
    pub(crate) stamp: Option<Timestamp>,
    pub(crate) bytes: Bytes,
}

/// One message after the other, from a [`Place`] on.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    stream: String,
    pub(crate) epoch: Epoch,
    /// Of the last valid record of the epoch.
    pub(crate) number: u64,
    pub(crate) chain: Hash,
    /// The position of the next frame.
    pub(crate) end: Position,
    /// Of the last valid frame, or zero.
    pub(crate) last: Position,
    /// How the epoch before this one ended. `None` if the walk began in this epoch.
    before: Option<Ending>,
    /// Whether the epoch was ended by its owner.
    pub(crate) released: bool,
    /// Parts of the next record, and the sequence of the first.
    parts: Vec<Bytes>,
    parts_from: u64,
    pub(crate) void: u64,
}

/// What a message is.
#[derive(Debug)]
pub(crate) enum Step {
    Frame(WalkedFrame),
    /// A valid record of another kind.
    Record,
    Image,
    /// A new epoch.
    Claim,
    /// Part of a record that follows.
    Part,
    Void,
}

#[derive(Debug)]
pub(crate) struct WalkedFrame {
    pub(crate) position: Position,
    pub(crate) epoch: Epoch,
    pub(crate) runs: Vec<Run>,
    pub(crate) entries: Bytes,
    pub(crate) payload: Bytes,
    /// Where reading may begin for this frame.
    pub(crate) place: Place,
}

impl Walk {
    /// From the beginning of a log of which nothing was let go.
    pub(crate) fn new(stream: &str) -> Walk {
        Walk {
            stream: stream.to_owned(),
            epoch: Epoch(0),
            number: 0,
            chain: Hash::default(),
            end: Position(1),
            last: Position::START,
            before: None,
            released: false,
            parts: Vec::new(),
            parts_from: 0,
            void: 0,
        }
    }

    pub(crate) fn from(stream: &str, place: &Place) -> Walk {
        Walk {
            epoch: place.epoch,
            number: place.number,
            chain: place.chain,
            end: place.position,
            last: place.before,
            ..Walk::new(stream)
        }
    }

    /// How the current epoch stands.
    pub(crate) fn ending(&self) -> Ending {
        Ending { epoch: self.epoch, number: self.number, chain: self.chain }
    }

    /// The next message. An error means that stored records are damaged or lost.
    pub(crate) fn step(&mut self, stored: &Stored) -> Result<Step, StorageError> {
        let Some(header) = Header::decode(&stored.bytes) else { return Ok(self.skip()) };
        let body = stored.bytes.slice(HEADER_BYTES..);
        match header.kind {
            Kind::Claim => self.on_claim(stored, &header, &body),
            Kind::Part => self.on_part(stored, &header, body),
            Kind::Frame if planted(Fault::StraysRead) && header.epoch < self.epoch && header.parts == 0 => {
                Ok(self.believe(stored, &header, &body))
            }
            _ if header.epoch != self.epoch || header.number != self.number + 1 => Ok(self.skip()),
            kind => self.on_record(stored, kind, &header, body),
        }
    }

    fn on_claim(&mut self, stored: &Stored, header: &Header, body: &Bytes) -> Result<Step, StorageError> {
        // The first claim of a log that was copied has a later epoch than all owners of the log it was copied from.
        let is_next = self.epoch == Epoch(0) || header.epoch.0 == self.epoch.0 + 1;
        if !is_next {
            return Ok(self.skip());
        }
        self.check(stored, header.crc == crc32c::crc32c(body), "the checksum of a claim is wrong")?;
        self.before = Some(self.ending());
        (self.epoch, self.number, self.chain) = (header.epoch, 0, header.hash());
        self.released = false;
        self.parts.clear();
        Ok(Step::Claim)
    }

    fn on_part(&mut self, stored: &Stored, header: &Header, body: Bytes) -> Result<Step, StorageError> {
        // A part may be there twice. The copies are equal, and the first one counts.
        let is_next = header.epoch == self.epoch
            && header.number == self.number + 1
            && usize::from(header.parts) == self.parts.len();
        if !is_next {
            return Ok(self.skip());
        }
        self.check(stored, header.crc == crc32c::crc32c(&body), "the checksum of a part is wrong")?;
        if self.parts.is_empty() {
            self.parts_from = stored.sequence;
        }
        self.parts.push(body);
        Ok(Step::Part)
    }

    fn on_record(
        &mut self,
        stored: &Stored,
        kind: Kind,
        header: &Header,
        rest: Bytes,
    ) -> Result<Step, StorageError> {
        if usize::from(header.parts) != self.parts.len() {
            // It arrived without its parts. The owner sends all of them again.
            return Ok(self.skip());
        }
        let sequence = if self.parts.is_empty() { stored.sequence } else { self.parts_from };
        let body = if self.parts.is_empty() {
            rest
        } else {
            let mut whole = BytesMut::with_capacity(header.length as usize);
            for part in self.parts.drain(..) {
                whole.extend_from_slice(&part);
            }
            whole.extend_from_slice(&rest);
            whole.freeze()
        };
        self.check(stored, header.crc == crc32c::crc32c(&body), "the checksum of a record is wrong")?;
        self.check(stored, header.chain == self.chain, "a record is missing: the chain is broken")?;
        self.check(stored, header.position == self.end, "a record is missing: the position is wrong")?;
        let place = Place {
            position: self.end,
            before: self.last,
            sequence,
            epoch: self.epoch,
            number: self.number,
            chain: self.chain,
        };
        (self.number, self.chain) = (header.number, header.hash());
        match kind {
            Kind::Frame => {
                let frame = take_frame(&body);
                let (runs, entries, payload) =
                    frame.ok_or_else(|| self.damaged(stored, "a frame cannot be understood"))?;
                let position = header.position;
                (self.end, self.last) = (end_of(header), position);
                Ok(Step::Frame(WalkedFrame { position, epoch: self.epoch, runs, entries, payload, place }))
            }
            Kind::Released => {
                self.released = true;
                Ok(Step::Record)
            }
            Kind::Term => {
                let term = Term::decode(&body);
                let term = term.ok_or_else(|| self.damaged(stored, "a term cannot be understood"))?;
                let ended = self.before.filter(|_| header.number == 1);
                self.check(
                    stored,
                    ended.is_none_or(|ended| ended == term.before),
                    "records are missing: the epoch before does not end where its successor says",
                )?;
                Ok(Step::Record)
            }
            Kind::Image => Ok(Step::Image),
            _ => Ok(Step::Record),
        }
    }

    /// The reader's rule switched off for a frame of a former owner, to show that tests notice.
    fn believe(&mut self, stored: &Stored, header: &Header, body: &Bytes) -> Step {
        let Some((runs, entries, payload)) = take_frame(body) else { return self.skip() };
        let Ending { epoch, number, chain } = self.ending();
        let (position, before, sequence) = (self.end, self.last, stored.sequence);
        let place = Place { position, before, sequence, epoch, number, chain };
        Step::Frame(WalkedFrame { position: header.position, epoch, runs, entries, payload, place })
    }

    fn skip(&mut self) -> Step {
        self.void += 1;
        Step::Void
    }

    fn check(&self, stored: &Stored, holds: bool, what: &str) -> Result<(), StorageError> {
        if holds { Ok(()) } else { Err(self.damaged(stored, what)) }
    }

    fn damaged(&self, stored: &Stored, what: &str) -> StorageError {
        damaged(&self.stream, stored.sequence, what)
    }
}

pub(crate) fn damaged(stream: &str, sequence: u64, what: &str) -> StorageError {
    StorageError::Damaged { what: what.to_owned(), file: stream.to_owned(), offset: sequence }
}
