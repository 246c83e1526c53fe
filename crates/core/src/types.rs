//! The quantities and names of the domain. Each has its own type, and a constructor that validates
//! where there is something to validate, so that the rest of the core never checks twice.

use std::fmt;

pub(crate) use forebay_model::types::micros;
pub use forebay_model::types::{GroupName, NAME_BYTES_MAX, NameError, Seq, StreamName, Timestamp};

/// Consecutive positions, both ends included. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqRange {
    pub first: Seq,
    pub last: Seq,
}

impl SeqRange {
    pub fn new(first: Seq, last: Seq) -> SeqRange {
        assert!(first <= last, "a range of positions is never empty");
        SeqRange { first, last }
    }

    pub fn one(seq: Seq) -> SeqRange {
        SeqRange { first: seq, last: seq }
    }

    pub fn starting(first: Seq, count: u64) -> SeqRange {
        assert!(count > 0, "a range of positions is never empty");
        SeqRange { first, last: Seq(first.0 + count - 1) }
    }

    pub fn count(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }

    pub fn contains(&self, seq: Seq) -> bool {
        self.first <= seq && seq <= self.last
    }

    /// What both ranges have in common.
    pub fn overlap(&self, other: SeqRange) -> Option<SeqRange> {
        let first = self.first.max(other.first);
        let last = self.last.min(other.last);
        (first <= last).then_some(SeqRange { first, last })
    }

    pub fn seqs(&self) -> impl Iterator<Item = Seq> + use<> {
        (self.first.0..=self.last.0).map(Seq)
    }
}

impl fmt::Display for SeqRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Adds a range to a list that is written down as a whole, joining it to the last one where they touch.
pub(crate) fn push_range(ranges: &mut Vec<SeqRange>, range: SeqRange) {
    match ranges.last_mut() {
        Some(last) if last.last.next() == range.first => last.last = range.last,
        _ => ranges.push(range),
    }
}

/// Position of a message in the shard, over all its streams, given at publish and kept for life. The
/// first message is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ordinal(pub u64);

impl Ordinal {
    #[must_use]
    pub fn plus(self, n: u64) -> Ordinal {
        Ordinal(self.0 + n)
    }
}

/// How many times a message has been handed to a consumer. The first delivery is attempt 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

impl Attempt {
    pub const FIRST: Attempt = Attempt(1);
}

/// Number of a lease within an epoch of its shard. Never used again in that epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Grant(pub u64);

impl Grant {
    pub fn plus(self, count: u64) -> Grant {
        Grant(self.0 + count)
    }
}

/// How often a shard has been claimed. The first owner's epoch is 1; 0 means "never claimed".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

/// One log of frames, and the streams that live in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShardId(pub u32);

/// A stream, by the number it got when it was created. Never used again in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A group, by the number it got when it was created. Never used again in its shard, so a group that
/// was deleted and created anew is another one, and refuses the receipts of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A job on the parked messages of a group, by the number it got when it was started. 0 is no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JobId(pub u32);

/// A consumer, by the number its session was given. Never used again while the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// Where a frame lies in its log, as the engine counts. Grows from frame to frame; what lies between
/// two positions is the engine's own business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

impl Position {
    pub const START: Position = Position(0);
}

/// Names one part of a shard's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    pub kind: u8,
    pub id: u32,
    pub sub: u32,
}

/// A message id reduced to what the dedupe window remembers of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdHash(pub u128);

/// A message key reduced to what ordering needs of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

/// Every batch and table of the core has a ceiling, and all the ceilings live here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Content of one message, envelope included.
    pub message_bytes_max: u32,
    pub batch_messages_max: u32,
    /// Contents of one batch together. A batch is stored whole or not at all, so it must fit in a frame.
    pub batch_bytes_max: u32,
    pub streams_max: u32,
    pub groups_per_stream_max: u32,
    pub consumers_per_group_max: u32,
    /// What one consumer may hold.
    pub credit_max: u32,
    /// What a group may remember of messages that it had to read past.
    pub key_scan_bytes_max: usize,
    /// Jobs of one group that are not over.
    pub jobs_max: usize,
    pub readers_per_stream_max: usize,
}

impl Limits {
    pub const DEFAULT: Limits = Limits {
        // A message of 1 MiB through any door, with what a door makes of it: bytes in text, headers, a key.
        message_bytes_max: (1 << 20) + (512 << 10),
        batch_messages_max: 10_000,
        batch_bytes_max: 8 << 20,
        streams_max: 100_000,
        groups_per_stream_max: 256,
        consumers_per_group_max: 20_000,
        credit_max: 100_000,
        key_scan_bytes_max: 64 << 20,
        jobs_max: 16,
        readers_per_stream_max: 1_000,
    };
}

const _: () = assert!(Limits::DEFAULT.message_bytes_max <= Limits::DEFAULT.batch_bytes_max);
const _: () = assert!(Limits::DEFAULT.batch_messages_max <= Limits::DEFAULT.credit_max);
