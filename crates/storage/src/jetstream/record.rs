//! The records of a log on JetStream, to the byte.
//!
//! A record is one message of the stream: a header of 64 bytes and a body. All numbers are little endian.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 4 | `FBJ1` |
//! | 4 | 1 | kind |
//! | 5 | 1 | zero |
//! | 6 | 2 | parts that come before the record; in a part: its index |
//! | 8 | 4 | epoch of the owner that wrote it |
//! | 12 | 4 | CRC-32C of the whole body, its parts included; in a part: of the part |
//! | 16 | 8 | number: counts the records of the epoch from 1; in a part: number of the record it belongs to |
//! | 24 | 8 | position of the frame; in any other record: the end of the log |
//! | 32 | 4 | length of the whole body, its parts included; in a part: of the part |
//! | 36 | 4 | zero |
//! | 40 | 16 | chain: the hash of the record before it |
//! | 56 | 4 | zero |
//! | 60 | 4 | CRC-32C of the 60 bytes before |
//!
//! A body that is longer than [`PART_BYTES`] is divided. All of it but the end is in parts that are sent before the
//! record, and the record commits them. The hash of a record is the first 16 bytes of BLAKE3 over its header, which
//! contains the CRC of the body and the hash of the record before it: a lost or swapped record breaks the chain.

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_core::types::{Epoch, PartKey, Position, Seq, StreamId};

use crate::engine::{Frame, IndexRun, Run};

pub(crate) const HEADER_BYTES: usize = 64;
/// The longest body of one message of the stream. Servers take messages of 1 MiB unless they are told otherwise.
pub const PART_BYTES: usize = 512 << 10;
/// The largest message that is ever sent.
pub(crate) const MESSAGE_BYTES_MAX: usize = PART_BYTES + HEADER_BYTES;
/// A record has no more parts than this, so that a damaged header cannot ask for all memory.
const PARTS_MAX: usize = 4_096;
const MAGIC: [u8; 4] = *b"FBJ1";

pub(crate) type Hash = [u8; 16];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Takes the log. Not numbered: it begins an epoch.
    Claim = 1,
    /// States the owner of the epoch, and how the epoch before ended.
    Term = 2,
    Frame = 3,
    Index = 4,
    Image = 5,
    /// Shows that the owner is there.
    Beat = 6,
    Part = 7,
    /// The owner has stopped cleanly. Nothing of its epoch follows.
    Released = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Claim,
        Kind::Term,
        Kind::Frame,
        Kind::Index,
        Kind::Image,
        Kind::Beat,
        Kind::Part,
        Kind::Released,
    ];

    /// The last token of the subject.
    pub(crate) fn token(self) -> &'static str {
        match self {
            Kind::Claim => "own",
            Kind::Term | Kind::Released => "term",
            Kind::Frame => "log",
            Kind::Index => "idx",
            Kind::Image => "img",
            Kind::Beat => "beat",
            Kind::Part => "part",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) parts: u16,
    pub(crate) epoch: Epoch,
    pub(crate) crc: u32,
    pub(crate) number: u64,
    pub(crate) position: Position,
    pub(crate) length: u32,
    pub(crate) chain: Hash,
}

/// Which message of an owner it is. Messages with the same identity have the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) epoch: Epoch,
    pub(crate) number: u64,
    /// The index of a part; `None` in the record itself.
    pub(crate) part: Option<u16>,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = self.kind as u8;
        out[6..8].copy_from_slice(&self.parts.to_le_bytes());
        out[8..12].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.position.0.to_le_bytes());
        out[32..36].copy_from_slice(&self.length.to_le_bytes());
        out[40..56].copy_from_slice(&self.chain);
        let crc = crc32c::crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if these bytes are no record of ours.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let mut input = Input(bytes);
        if input.array::<4>()? != MAGIC || crc32c::crc32c(&bytes[..60]).to_le_bytes() != bytes[60..] {
            return None;
        }
        let kind = input.u8()?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        input.u8()?;
        let parts = u16::from_le_bytes(input.array()?);
        let (epoch, crc, number, position) = (Epoch(input.u32()?), input.u32()?, input.u64()?, input.u64()?);
        let length = input.u32()?;
        input.u32()?;
        let header = Header {
            kind,
            parts,
            epoch,
            crc,
            number,
            position: Position(position),
            length,
            chain: input.array()?,
        };
        (usize::from(parts) <= PARTS_MAX).then_some(header)
    }

    pub(crate) fn hash(&self) -> Hash {
        let hash = blake3::hash(&self.encode());
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    pub(crate) fn identity(&self) -> Identity {
        let part = (self.kind == Kind::Part).then_some(self.parts);
        Identity { epoch: self.epoch, number: self.number, part }
    }
}

/// A message for the stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    pub(crate) bytes: Bytes,
}

impl Message {
    fn new(header: &Header, body: &[u8]) -> Message {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body.len());
        bytes.put_slice(&header.encode());
        bytes.put_slice(body);
        Message { kind: header.kind, identity: header.identity(), bytes: bytes.freeze() }
    }
}

/// Where a log can be read from: just before `sequence`, with everything that tells whether the next record is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the first frame from here on.
    pub(crate) position: Position,
    /// Of the frame before it, or zero. If it may go, so may everything before the place.
    pub(crate) before: Position,
    /// The first message of the frame.
    pub(crate) sequence: u64,
    pub(crate) epoch: Epoch,
    /// The number of the last record before it in its epoch.
    pub(crate) number: u64,
    pub(crate) chain: Hash,
}

/// Numbers the records of one owner and links them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scribe {
    pub(crate) epoch: Epoch,
    /// Of the last record.
    pub(crate) number: u64,
    pub(crate) chain: Hash,
    /// The position of the next frame.
    pub(crate) end: Position,
    /// The longest body of one message: [`PART_BYTES`], or less in a test.
    pub(crate) part_bytes: usize,
}

impl Scribe {
    /// The messages of the next record: its parts, then the record itself.
    pub(crate) fn write(&mut self, kind: Kind, body: &[u8]) -> Vec<Message> {
        self.number += 1;
        let parts = body.len().saturating_sub(1) / self.part_bytes;
        let header = |kind, parts: usize, crc, length: usize| Header {
            kind,
            parts: u16::try_from(parts).expect("no body has so many parts"),
            epoch: self.epoch,
            crc,
            number: self.number,
            position: self.end,
            length: u32::try_from(length).expect("no body is so long"),
            chain: self.chain,
        };
        let (divided, rest) = body.split_at(parts * self.part_bytes);
        let mut messages: Vec<Message> = divided
            .chunks(self.part_bytes)
            .enumerate()
            .map(|(index, part)| {
                Message::new(&header(Kind::Part, index, crc32c::crc32c(part), part.len()), part)
            })
            .collect();
        let head = header(kind, parts, crc32c::crc32c(body), body.len());
        messages.push(Message::new(&head, rest));
        self.chain = head.hash();
        if kind == Kind::Frame {
            self.end = end_of(&head);
        }
        messages
    }
}

/// The position after a frame.
pub(crate) fn end_of(header: &Header) -> Position {
    Position(header.position.0 + (HEADER_BYTES as u64) + u64::from(header.length))
}

/// The record that takes the log.
pub(crate) fn claim(epoch: Epoch, by: &Claimant) -> (Header, Message) {
    let body = by.encode();
    let header = Header {
        kind: Kind::Claim,
        parts: 0,
        epoch,
        crc: crc32c::crc32c(&body),
        number: 0,
        position: Position::START,
        length: u32::try_from(body.len()).expect("names are short"),
        chain: Hash::default(),
    };
    let message = Message::new(&header, &body);
    (header, message)
}

/// APIs beside the native one that a claim names.
const OTHERS_MAX: usize = 16;

/// A node that owns a log, or wants to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimant {
    /// The name of the node in its cluster.
    pub node: String,
    /// Where its native API is.
    pub address: String,
    /// Where its other APIs are, by name.
    pub others: Vec<(String, String)>,
    /// Differs between two starts of one node.
    pub start: u64,
}

impl Claimant {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, &self.node);
        put_text(&mut out, &self.address);
        out.put_u64_le(self.start);
        let others = self.others.get(..OTHERS_MAX).unwrap_or(&self.others);
        out.put_u8(others.len() as u8);
        for (name, address) in others {
            put_text(&mut out, name);
            put_text(&mut out, address);
        }
        out
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Claimant> {
        let (node, address, start) = (input.text()?, input.text()?, input.u64()?);
        let count = input.u8()?;
        let others = (0..count).map(|_| Some((input.text()?, input.text()?))).collect::<Option<_>>()?;
        Some(Claimant { node, address, others, start })
    }
}

/// The body of a `Term`: the owner, and the last valid record before its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) owner: Claimant,
    pub(crate) before: Ending,
}

/// How an epoch ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) epoch: Epoch,
    pub(crate) number: u64,
    pub(crate) chain: Hash,
}

impl Term {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.owner.encode();
        out.put_u32_le(self.before.epoch.0);
        out.put_u64_le(self.before.number);
        out.put_slice(&self.before.chain);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Term> {
        let mut input = Input(bytes);
        let owner = Claimant::decode(&mut input)?;
        let before = Ending { epoch: Epoch(input.u32()?), number: input.u64()?, chain: input.array()? };
        Some(Term { owner, before })
    }
}

/// `runs | length of entries | entries | payload`.
pub(crate) fn put_frame(frame: &Frame) -> Vec<u8> {
    let length = 8 + frame.runs.len() * RUN_BYTES + frame.entries.len() + frame.payload.len();
    let mut out = Vec::with_capacity(length);
    out.put_u32_le(count_of(frame.runs.len()));
    for run in &frame.runs {
        out.put_u32_le(run.stream.0);
        out.put_u64_le(run.first.0);
        out.put_u32_le(run.count << 1 | u32::from(run.copied));
    }
    out.put_u32_le(count_of(frame.entries.len()));
    out.put_slice(&frame.entries);
    out.put_slice(&frame.payload);
    out
}

const RUN_BYTES: usize = 16;

/// The runs, entries and payload of a frame's body.
pub(crate) fn take_frame(body: &Bytes) -> Option<(Vec<Run>, Bytes, Bytes)> {
    let mut input = Input(body);
    let runs = input.list(RUN_BYTES, |input| {
        let (stream, first, count) = (StreamId(input.u32()?), Seq(input.u64()?), input.u32()?);
        Some(Run { stream, first, count: count >> 1, copied: count & 1 == 1 })
    })?;
    let length = input.u32()? as usize;
    let from = body.len() - input.0.len();
    let until = from.checked_add(length).filter(|until| *until <= body.len())?;
    Some((runs, body.slice(from..until), body.slice(until..)))
}

/// The body of an `Index`: the frames from the end of the index before it to `until`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IndexBody {
    /// Frames at positions from here to just before `until`.
    pub(crate) from: Position,
    /// Where to go on reading behind them.
    pub(crate) until: Option<Place>,
    pub(crate) places: Vec<Place>,
    pub(crate) runs: Vec<IndexRun>,
}

const PLACE_BYTES: usize = 52;
const INDEX_RUN_BYTES: usize = 29;

impl IndexBody {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.from.0);
        let until = self.until.as_slice();
        for places in [until, &self.places] {
            out.put_u32_le(count_of(places.len()));
            for place in places {
                put_place(&mut out, place);
            }
        }
        out.put_u32_le(count_of(self.runs.len()));
        for run in &self.runs {
            out.put_u32_le(run.stream.0);
            out.put_u64_le(run.first.0);
            out.put_u64_le(run.count);
            out.put_u64_le(run.position.0);
            out.put_u8(u8::from(run.copied));
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<IndexBody> {
        let mut input = Input(bytes);
        let from = Position(input.u64()?);
        let until = input.list(PLACE_BYTES, take_place)?.first().copied();
        let places = input.list(PLACE_BYTES, take_place)?;
        let runs = input.list(INDEX_RUN_BYTES, |input| {
            let (stream, first, count) = (StreamId(input.u32()?), Seq(input.u64()?), input.u64()?);
            let (position, copied) = (Position(input.u64()?), input.u8()? == 1);
            Some(IndexRun { stream, first, count, position, copied })
        })?;
        Some(IndexBody { from, until, places, runs })
    }
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    out.put_u64_le(place.position.0);
    out.put_u64_le(place.before.0);
    out.put_u64_le(place.sequence);
    out.put_u32_le(place.epoch.0);
    out.put_u64_le(place.number);
    out.put_slice(&place.chain);
}

fn take_place(input: &mut Input<'_>) -> Option<Place> {
    Some(Place {
        position: Position(input.u64()?),
        before: Position(input.u64()?),
        sequence: input.u64()?,
        epoch: Epoch(input.u32()?),
        number: input.u64()?,
        chain: input.array()?,
    })
}

/// The body of an `Image`: where each part of the shard's state is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) parts: Vec<StoredPart>,
    /// How far the image before this one covers the log.
    pub(crate) covered: Position,
    /// The files of the image before this one, which are kept too.
    pub(crate) before: Vec<FileId>,
}

/// The changed parts of one save, one after the other, in chunks of [`PART_BYTES`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(crate) epoch: Epoch,
    /// Counts the saves of the epoch from 1.
    pub(crate) number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredPart {
    pub(crate) key: PartKey,
    pub(crate) through: Position,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
}

const STORED_PART_BYTES: usize = 45;
const FILE_ID_BYTES: usize = 8;

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.covered.0);
        out.put_u32_le(count_of(self.before.len()));
        for file in &self.before {
            put_file(&mut out, *file);
        }
        out.put_u32_le(count_of(self.parts.len()));
        for part in &self.parts {
            out.put_u8(part.key.kind);
            out.put_u32_le(part.key.id);
            out.put_u32_le(part.key.sub);
            out.put_u64_le(part.through.0);
            put_file(&mut out, part.file);
            out.put_u64_le(part.offset);
            out.put_u64_le(part.length);
            out.put_u32_le(part.crc);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Manifest> {
        let mut input = Input(bytes);
        let covered = Position(input.u64()?);
        let before = input.list(FILE_ID_BYTES, take_file)?;
        let parts = input.list(STORED_PART_BYTES, |input| {
            let key = PartKey { kind: input.u8()?, id: input.u32()?, sub: input.u32()? };
            let (through, file) = (Position(input.u64()?), take_file(input)?);
            Some(StoredPart {
                key,
                through,
                file,
                offset: input.u64()?,
                length: input.u64()?,
                crc: input.u32()?,
            })
        })?;
        Some(Manifest { parts, covered, before })
    }
}

fn put_file(out: &mut Vec<u8>, file: FileId) {
    out.put_u32_le(file.epoch.0);
    out.put_u32_le(file.number);
}

fn take_file(input: &mut Input<'_>) -> Option<FileId> {
    Some(FileId { epoch: Epoch(input.u32()?), number: input.u32()? })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.put_u16_le(bytes.len() as u16);
    out.put_slice(bytes);
}

fn count_of(count: usize) -> u32 {
    u32::try_from(count).expect("a frame is shorter than 4 GiB")
}

/// Bytes that are read from the front. Every read returns `None` where there are too few.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A count and as many items, each of which takes so many bytes.
    fn list<T>(&mut self, bytes: usize, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if self.0.len() / bytes < count {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }
}
