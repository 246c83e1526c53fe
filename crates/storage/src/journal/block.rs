//! Blocks and frames on disk.
//!
//! A block is what the journal writes and syncs at once. It begins and ends on a multiple of 4096
//! bytes, so a write never touches a sector that holds acknowledged data. Blocks form a chain: each
//! names the tag of the one before it and counts one further. A frame lies inside a commit block; its
//! header and its sections carry checksums that are seeded with the journal's id and the frame's
//! position, so that a copied or misdirected frame does not verify. The journal's id never leaves the
//! server, so a payload cannot imitate a block.
//!
//! A payload is checksummed once, in chunks. The chunk checksums are in the frame's sections, which
//! the frame header covers, which the block header covers. So recovery can skip payloads, and a single
//! message can be read and verified without the rest of a large frame.

use std::io::IoSlice;

use bytes::Bytes;
use forebay_core::types::{Epoch, Position, Seq, ShardId, StreamId};

use crate::engine::{Frame, Run};
use crate::journal::crypt::FramePlace;

/// Blocks begin and end on multiples of this.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const BLOCK_HEADER: usize = 128;
pub(crate) const FRAME_HEADER: usize = 48;
pub(crate) const RUN_BYTES: usize = 16;
/// In the count of a run: its messages are copies.
const RUN_COPIED: u32 = !Run::COUNT_MAX;
/// Payloads are checksummed in stretches of this size.
pub(crate) const CHUNK: usize = 64 * 1024;

const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"FBYBLOCK");
const BLOCK_VERSION: u16 = 1;
pub(crate) const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"FRAM");
/// Flags that a reader may ignore if it does not know them; all others it has to know.
const FLAGS_OPTIONAL: u16 = 0x00ff;
/// Of a frame: its entries and its payload are encrypted.
const FLAG_SEALED: u16 = 0x0100;

/// The random number of a journal, and the checksum state after it, from which all others start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalId {
    pub(crate) number: u128,
    seed: u32,
}

impl JournalId {
    pub(crate) fn new(number: u128) -> JournalId {
        JournalId { number, seed: crc32c::crc32c(&number.to_le_bytes()) }
    }

    /// Checksum state for something that lies at `position`.
    pub(crate) fn seed_at(&self, position: u64) -> u32 {
        append_word(append_word(self.seed, position as u32), (position >> 32) as u32)
    }
}

/// Equals `crc32c_append` of the four bytes of a word, little endian. By tables, because the general
/// function is made for long runs of bytes: half of its calls for a block of small frames were for a
/// position, a chunk's number or a table of one chunk.
pub(crate) fn append_word(crc: u32, word: u32) -> u32 {
    let state = (!crc ^ word).to_le_bytes();
    let parts = state.iter().zip(&WORD_TABLES).map(|(&byte, table)| table[usize::from(byte)]);
    !parts.fold(0, |crc, part| crc ^ part)
}

/// For each of the four bytes of a word, what it does to the checksum.
static WORD_TABLES: [[u32; 256]; 4] = word_tables();

const fn word_tables() -> [[u32; 256]; 4] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        // One further byte of zeros for each place before the last.
        while bit < 32 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
            if bit % 8 == 0 {
                tables[4 - bit / 8][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
}

/// The damage that a reader found, in words for the operator.
pub(crate) type Flaw = &'static str;

/// Identifies a block's content: its header checksum above its body checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tag(pub(crate) u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    SegmentHeader = 1,
    Commit = 2,
    Footer = 3,
}

/// The first 128 bytes of every block, little endian:
///
/// ```text
///   0  magic "FBYBLOCK"        8    64  epoch                4
///   8  version                 2    68  frame count          4
///  10  kind                    1    72  body length          4
///  11  zero                    1    76  key id (0: plain)    4
///  12  flags                   2    80  body crc32c          4
///  14  header length (128)     2    84  zero                40
///  16  journal id             16   124  header crc32c        4
///  32  position                8
///  40  sequence                8
///  48  durable end             8
///  56  tag of previous block   8
/// ```
///
/// The body crc covers the frame headers of a commit block, and the whole body of the other kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) kind: Kind,
    pub(crate) position: u64,
    /// One more than that of the block before. A footer is no part of the chain and repeats the last.
    pub(crate) sequence: u64,
    /// Everything before this position was durable when the block was written.
    pub(crate) durable_end: u64,
    pub(crate) previous: Tag,
    pub(crate) epoch: Epoch,
    pub(crate) frames: u32,
    pub(crate) body_len: u32,
    pub(crate) body_crc: u32,
    /// Id of the master key of an encrypted segment; 0 in a plain one.
    pub(crate) key: u32,
}

impl BlockHeader {
    pub(crate) fn encode(&self, id: JournalId) -> ([u8; BLOCK_HEADER], Tag) {
        let mut out = [0; BLOCK_HEADER];
        out[0..8].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        out[8..10].copy_from_slice(&BLOCK_VERSION.to_le_bytes());
        out[10] = self.kind as u8;
        out[14..16].copy_from_slice(&(BLOCK_HEADER as u16).to_le_bytes());
        out[16..32].copy_from_slice(&id.number.to_le_bytes());
        out[32..40].copy_from_slice(&self.position.to_le_bytes());
        out[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        out[48..56].copy_from_slice(&self.durable_end.to_le_bytes());
        out[56..64].copy_from_slice(&self.previous.0.to_le_bytes());
        out[64..68].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[68..72].copy_from_slice(&self.frames.to_le_bytes());
        out[72..76].copy_from_slice(&self.body_len.to_le_bytes());
        out[76..80].copy_from_slice(&self.key.to_le_bytes());
        out[80..84].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[..124]);
        out[124..128].copy_from_slice(&crc.to_le_bytes());
        (out, tag(crc, self.body_crc))
    }

    /// Reads a header that is supposed to lie at `position`, in a block of at most `len_max` bytes.
    pub(crate) fn decode(
        bytes: &[u8],
        id: JournalId,
        position: u64,
        len_max: u64,
    ) -> Result<(BlockHeader, Tag), Flaw> {
        if bytes.len() < BLOCK_HEADER {
            return Err("the file ends within a block header");
        }
        if u64_at(bytes, 0) != BLOCK_MAGIC {
            return Err("no block begins here");
        }
        let crc = u32_at(bytes, 124);
        if crc32c::crc32c(&bytes[..124]) != crc {
            return Err("the block header does not match its checksum");
        }
        if u128_at(bytes, 16) != id.number {
            return Err("the block belongs to another journal");
        }
        if u64_at(bytes, 32) != position {
            return Err("the block belongs to another position");
        }
        if u16_at(bytes, 8) != BLOCK_VERSION || u16_at(bytes, 14) as usize != BLOCK_HEADER {
            return Err("the block has a version that this release does not know");
        }
        if u16_at(bytes, 12) & !FLAGS_OPTIONAL != 0 {
            return Err("the block needs a feature that this release does not know");
        }
        let kind = match bytes[10] {
            1 => Kind::SegmentHeader,
            2 => Kind::Commit,
            3 => Kind::Footer,
            _ => return Err("the block is of a kind that this release does not know"),
        };
        let header = BlockHeader {
            kind,
            position,
            sequence: u64_at(bytes, 40),
            durable_end: u64_at(bytes, 48),
            previous: Tag(u64_at(bytes, 56)),
            epoch: Epoch(u32_at(bytes, 64)),
            frames: u32_at(bytes, 68),
            body_len: u32_at(bytes, 72),
            body_crc: u32_at(bytes, 80),
            key: u32_at(bytes, 76),
        };
        if header.block_len() > len_max {
            return Err("the block claims to be larger than blocks may be");
        }
        Ok((header, tag(crc, header.body_crc)))
    }

    /// Length of the whole block with its padding.
    pub(crate) fn block_len(&self) -> u64 {
        padded(BLOCK_HEADER as u64 + u64::from(self.body_len))
    }
}

fn tag(header_crc: u32, body_crc: u32) -> Tag {
    Tag(u64::from(header_crc) << 32 | u64::from(body_crc))
}

/// `len` rounded up to whole pages.
pub(crate) fn padded(len: u64) -> u64 {
    len.next_multiple_of(PAGE)
}

/// The first 48 bytes of every frame, little endian:
///
/// ```text
///   0  magic "FRAM"        4    24  crc32c of runs and entries  4
///   4  flags               2    28  number within the block     4
///   6  header length (48)  2    32  offset within the block     4
///   8  shard               4    36  crc32c of the chunk table   4
///  12  run count           4    40  zero                        4
///  16  entries length      4    44  header crc32c               4
///  20  payload length      4
/// ```
///
/// It is followed by the chunk table (one crc32c for each 64 KiB of payload), the runs (stream 4, first
/// 8, count 4, whose top bit says that they are copies), the entries, and the payload. The table has a
/// checksum of its own, so that one message can be verified without reading the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) shard: ShardId,
    pub(crate) runs: u32,
    pub(crate) entries_len: u32,
    pub(crate) payload_len: u32,
    pub(crate) entries_crc: u32,
    pub(crate) table_crc: u32,
    pub(crate) number: u32,
    pub(crate) block_offset: u32,
    /// Whether entries and payload are encrypted. Their lengths are those on disk.
    pub(crate) is_sealed: bool,
}

impl FrameHeader {
    /// `seed` is that of the frame's position.
    fn encode(&self, seed: u32) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        let flags = if self.is_sealed { FLAG_SEALED } else { 0 };
        out[4..6].copy_from_slice(&flags.to_le_bytes());
        out[6..8].copy_from_slice(&(FRAME_HEADER as u16).to_le_bytes());
        out[8..12].copy_from_slice(&self.shard.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.runs.to_le_bytes());
        out[16..20].copy_from_slice(&self.entries_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.payload_len.to_le_bytes());
        out[24..28].copy_from_slice(&self.entries_crc.to_le_bytes());
        out[28..32].copy_from_slice(&self.number.to_le_bytes());
        out[32..36].copy_from_slice(&self.block_offset.to_le_bytes());
        out[36..40].copy_from_slice(&self.table_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &out[..44]);
        out[44..48].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a frame header that is supposed to lie at `position`, of a frame of at most `len_max` bytes.
    pub(crate) fn decode(
        bytes: &[u8],
        id: JournalId,
        position: u64,
        len_max: u64,
    ) -> Result<FrameHeader, Flaw> {
        if bytes.len() < FRAME_HEADER {
            return Err("the file ends within a frame header");
        }
        if u32_at(bytes, 0) != FRAME_MAGIC {
            return Err("no frame begins here");
        }
        if crc32c::crc32c_append(id.seed_at(position), &bytes[..44]) != u32_at(bytes, 44) {
            return Err("the frame header does not match its checksum");
        }
        if u16_at(bytes, 6) as usize != FRAME_HEADER
            || u16_at(bytes, 4) & !(FLAGS_OPTIONAL | FLAG_SEALED) != 0
        {
            return Err("the frame needs a feature that this release does not know");
        }
        let header = FrameHeader {
            shard: ShardId(u32_at(bytes, 8)),
            runs: u32_at(bytes, 12),
            entries_len: u32_at(bytes, 16),
            payload_len: u32_at(bytes, 20),
            entries_crc: u32_at(bytes, 24),
            table_crc: u32_at(bytes, 36),
            number: u32_at(bytes, 28),
            block_offset: u32_at(bytes, 32),
            is_sealed: u16_at(bytes, 4) & FLAG_SEALED != 0,
        };
        if header.len() > len_max {
            return Err("the frame claims to be larger than the room it is in");
        }
        Ok(header)
    }

    /// The place of an encrypted frame, to which its contents are bound.
    pub(crate) fn place(&self, journal: JournalId, position: u64) -> FramePlace {
        let FrameHeader { shard, entries_len, payload_len, .. } = *self;
        FramePlace { journal, position, shard: shard.0, entries_len, payload_len }
    }

    /// Length of the chunk table.
    pub(crate) fn table_len(&self) -> u64 {
        4 * u64::from(self.payload_len).div_ceil(CHUNK as u64)
    }

    /// Length of chunk table, runs and entries.
    pub(crate) fn front_len(&self) -> u64 {
        self.table_len() + RUN_BYTES as u64 * u64::from(self.runs) + u64::from(self.entries_len)
    }

    /// Where the payload begins, counted from the frame header.
    pub(crate) fn payload_offset(&self) -> u64 {
        FRAME_HEADER as u64 + self.front_len()
    }

    /// Length of the whole frame.
    pub(crate) fn len(&self) -> u64 {
        self.payload_offset() + u64::from(self.payload_len)
    }

    /// Takes apart what lies between header and payload, after comparing it with its checksums.
    pub(crate) fn front<'b>(&self, bytes: &'b [u8], id: JournalId, position: u64) -> Result<Front<'b>, Flaw> {
        assert_eq!(bytes.len() as u64, self.front_len(), "the front of a frame is taken apart whole");
        let (table, rest) = bytes.split_at(self.table_len() as usize);
        let table = self.table(table, id, position)?;
        let (runs, _) = self.runs_and_entries(rest, id, position)?;
        Ok(Front { table, runs })
    }

    /// The bytes between the chunk table and the payload, after comparing them with their checksum. They
    /// may be good even if the table is not, which salvage makes use of.
    pub(crate) fn runs_and_entries<'b>(
        &self,
        bytes: &'b [u8],
        id: JournalId,
        position: u64,
    ) -> Result<(&'b [u8], &'b [u8]), Flaw> {
        if crc32c::crc32c_append(id.seed_at(position), bytes) != self.entries_crc {
            return Err("the entries of the frame do not match their checksum");
        }
        Ok(bytes.split_at(RUN_BYTES * self.runs as usize))
    }

    /// The chunk table, after comparing it with its checksum.
    pub(crate) fn table<'b>(&self, bytes: &'b [u8], id: JournalId, position: u64) -> Result<Table<'b>, Flaw> {
        assert_eq!(bytes.len() as u64, self.table_len(), "a chunk table is read whole");
        if crc32c::crc32c_append(id.seed_at(position), bytes) != self.table_crc {
            return Err("the chunk table of the frame does not match its checksum");
        }
        Ok(Table(bytes))
    }
}

/// The part of a frame between its header and its payload.
pub(crate) struct Front<'b> {
    pub(crate) table: Table<'b>,
    runs: &'b [u8],
}

impl<'b> Front<'b> {
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + use<'b> {
        decode_runs(self.runs)
    }
}

pub(crate) fn encode_runs(runs: &[Run], out: &mut Vec<u8>) {
    for run in runs {
        out.extend_from_slice(&run.stream.0.to_le_bytes());
        out.extend_from_slice(&run.first.0.to_le_bytes());
        assert!(run.count <= Run::COUNT_MAX, "a run has fewer messages than that");
        let count = if run.copied { run.count | RUN_COPIED } else { run.count };
        out.extend_from_slice(&count.to_le_bytes());
    }
}

pub(crate) fn decode_runs(bytes: &[u8]) -> impl Iterator<Item = Run> + '_ {
    bytes.chunks_exact(RUN_BYTES).map(|run| Run {
        stream: StreamId(u32_at(run, 0)),
        first: Seq(u64_at(run, 4)),
        count: u32_at(run, 12) & Run::COUNT_MAX,
        copied: u32_at(run, 12) & RUN_COPIED != 0,
    })
}

/// The checksums of the chunks of a payload.
pub(crate) struct Table<'b>(&'b [u8]);

impl Table<'_> {
    /// Compares payload bytes that begin with chunk `first` with their checksums.
    pub(crate) fn check(
        &self,
        payload: &[u8],
        first: usize,
        id: JournalId,
        position: u64,
    ) -> Result<(), Flaw> {
        let seed = id.seed_at(position);
        for (index, chunk) in payload.chunks(CHUNK).enumerate().map(|(index, chunk)| (first + index, chunk)) {
            if chunk_crc(seed, index, chunk) != u32_at(self.0, 4 * index) {
                return Err("the payload of the frame does not match its checksum");
            }
        }
        Ok(())
    }
}

fn chunk_crc(seed: u32, index: usize, chunk: &[u8]) -> u32 {
    crc32c::crc32c_append(append_word(seed, index as u32), chunk)
}

/// How many bytes a frame takes in a block.
pub(crate) fn frame_len(frame: &Frame) -> u64 {
    let payload = frame.payload.len() as u64;
    FRAME_HEADER as u64
        + 4 * payload.div_ceil(CHUNK as u64)
        + (RUN_BYTES * frame.runs.len()) as u64
        + frame.entries.len() as u64
        + payload
}

/// Entries and payloads up to this size are copied into the block; larger ones are written from where
/// they are. Copying this much costs less than one more buffer costs the system.
const COPY_MAX: usize = 2048;

/// A commit block in the making: the small parts in one buffer that is used again and again, large
/// entries and payloads where they are.
#[derive(Default)]
pub(crate) struct Encoder {
    scratch: Vec<u8>,
    /// The frame headers once more, one after the other, for the checksum of the body: one long run of
    /// bytes takes a fraction of the time that many short ones do.
    heads: Vec<u8>,
    outside: Vec<Outside>,
}

/// A section of a frame that is not in the scratch.
struct Outside {
    /// How much of the scratch comes before it.
    after: usize,
    frame: usize,
    section: fn(&Frame) -> &Bytes,
}

impl Encoder {
    /// Encodes `frames` as one block and returns its tag and length. `header` says all but what follows
    /// from the frames. `positions` receives where each frame begins.
    pub(crate) fn encode(
        &mut self,
        id: JournalId,
        mut header: BlockHeader,
        frames: &[Frame],
        positions: &mut Vec<Position>,
    ) -> (Tag, u64) {
        self.scratch.clear();
        self.heads.clear();
        self.outside.clear();
        self.scratch.resize(BLOCK_HEADER, 0);
        let mut offset = BLOCK_HEADER as u64;
        for (number, frame) in frames.iter().enumerate() {
            let position = header.position + offset;
            self.encode_frame(id.seed_at(position), number, offset, frame, header.key != 0);
            positions.push(Position(position));
            offset += frame_len(frame);
        }
        header.frames = u32::try_from(frames.len()).expect("a block holds a bounded number of frames");
        header.body_len = u32::try_from(offset).expect("a block has a bounded length") - BLOCK_HEADER as u32;
        header.body_crc = crc32c::crc32c(&self.heads);
        let (bytes, tag) = header.encode(id);
        self.scratch[..BLOCK_HEADER].copy_from_slice(&bytes);
        let padding = header.block_len() - offset;
        self.scratch.resize(self.scratch.len() + padding as usize, 0);
        (tag, header.block_len())
    }

    /// `seed` is that of the frame's position.
    fn encode_frame(&mut self, seed: u32, number: usize, offset: u64, frame: &Frame, is_sealed: bool) {
        let start = self.scratch.len();
        let table = start + FRAME_HEADER;
        self.scratch.resize(table, 0);
        let mut table_crc = seed;
        for (index, chunk) in frame.payload.chunks(CHUNK).enumerate() {
            let crc = chunk_crc(seed, index, chunk);
            table_crc = append_word(table_crc, crc);
            self.scratch.extend_from_slice(&crc.to_le_bytes());
        }
        let runs = self.scratch.len();
        encode_runs(&frame.runs, &mut self.scratch);
        let copied = self.place(number, frame, |frame| &frame.entries);
        let mut entries_crc = crc32c::crc32c_append(seed, &self.scratch[runs..]);
        if !copied {
            entries_crc = crc32c::crc32c_append(entries_crc, &frame.entries);
        }
        let head = FrameHeader {
            shard: frame.shard,
            runs: frame.runs.len() as u32,
            entries_len: frame.entries.len() as u32,
            payload_len: frame.payload.len() as u32,
            entries_crc,
            table_crc,
            number: number as u32,
            block_offset: offset as u32,
            is_sealed,
        }
        .encode(seed);
        self.scratch[start..table].copy_from_slice(&head);
        self.heads.extend_from_slice(&head);
        self.place(number, frame, |frame| &frame.payload);
    }

    /// Puts a section of a frame where it belongs in the block, and says whether it was copied.
    fn place(&mut self, number: usize, frame: &Frame, section: fn(&Frame) -> &Bytes) -> bool {
        let bytes = section(frame);
        let copied = bytes.len() <= COPY_MAX;
        if copied {
            self.scratch.extend_from_slice(bytes);
        } else {
            self.outside.push(Outside { after: self.scratch.len(), frame: number, section });
        }
        copied
    }

    /// The block that was encoded last, as one list of buffers with its padding. One allocation for a
    /// block, however many messages are in it.
    pub(crate) fn slices<'a>(&'a self, frames: &'a [Frame]) -> Vec<IoSlice<'a>> {
        let mut slices = Vec::with_capacity(2 * self.outside.len() + 1);
        let mut start = 0;
        for Outside { after, frame, section } in &self.outside {
            if *after > start {
                slices.push(IoSlice::new(&self.scratch[start..*after]));
            }
            slices.push(IoSlice::new(section(&frames[*frame])));
            start = *after;
        }
        slices.push(IoSlice::new(&self.scratch[start..]));
        slices
    }
}

/// A block of one of the other kinds, whole.
pub(crate) fn encode_plain(id: JournalId, mut header: BlockHeader, body: &[u8]) -> (Bytes, Tag) {
    header.body_len = u32::try_from(body.len()).expect("a block has a bounded length");
    header.body_crc = crc32c::crc32c(body);
    let (bytes, tag) = header.encode(id);
    let mut out = Vec::with_capacity(header.block_len() as usize);
    out.extend_from_slice(&bytes);
    out.extend_from_slice(body);
    out.resize(header.block_len() as usize, 0);
    (out.into(), tag)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}
