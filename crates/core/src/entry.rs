//! Entries: the durable facts, and how they are written.
//!
//! An entry is `kind (1 byte) | length (3 bytes, little endian) | body`. A kind with the top bit set may
//! be skipped by a release that does not know it; any other unknown kind stops recovery. Numbers in
//! bodies are variable-length, positions are written as distances from the one before, so that a whole
//! turn's acks of a busy group usually take a dozen bytes.
//!
//! Only what cannot be told from elsewhere is written, and always the result of a decision (the time
//! until which to wait), never the policy that led to it.
//!
//! | module | holds |
//! | --- | --- |
//! | `messages` | what the core knows of messages, in an entry and on its way there |
//! | `route` | where messages go that are on their way to another stream |
//! | `encode`, `decode` | the bytes, kind by kind, in the same order |

mod copied;
mod decode;
mod encode;
mod messages;
mod route;

use std::sync::Arc;
use std::time::Duration;

use crate::codec::DecodeError;
use crate::pace::Rate;
use crate::producers::ProducerStamp;
use crate::settings::{GroupSettings, StreamSettings};
use crate::types::{
    Epoch, Grant, GroupId, GroupName, JobId, KeyHash, Ordinal, Seq, SeqRange, StreamId, StreamName, Timestamp,
};

pub use copied::{COPIED_MAX, CopiedMessage, copied_runs, put_copied};
pub use decode::{each_encoded, entries};
pub(crate) use encode::put_published;
pub use encode::{note_bytes_max, published_bytes_max};
pub use messages::{MessageMeta, Messages, MoveReason, MoveTrail, Origin};
pub use route::Route;

/// One durable fact. Rare parts that are large are boxed, since every message makes entries.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// An owner has claimed the shard. The first entry of every epoch.
    Opened {
        epoch: Epoch,
        at: Timestamp,
    },
    StreamCreated {
        stream: StreamId,
        name: StreamName,
        settings: Box<StreamSettings>,
        at: Timestamp,
    },
    /// `floor`: everything up to here counts as settled from the start.
    GroupCreated {
        group: GroupId,
        stream: StreamId,
        name: GroupName,
        settings: Box<GroupSettings>,
        floor: Seq,
        at: Timestamp,
    },
    /// The contents follow, in this order, in the frame's payload section.
    Published {
        stream: StreamId,
        first: Seq,
        ordinal: Ordinal,
        at: Timestamp,
        stamp: Option<ProducerStamp>,
        messages: Messages,
    },
    /// A numbered batch of which some messages, or all, were known by their ids already. `seqs` are those that
    /// were new; they were published without a number right before.
    Numbered {
        stream: StreamId,
        at: Timestamp,
        stamp: ProducerStamp,
        count: u64,
        seqs: Option<SeqRange>,
    },
    /// Handed out over connections; merged over consumers.
    Handed {
        group: GroupId,
        /// Zero where an earlier release did not say.
        at: Timestamp,
        ranges: Vec<SeqRange>,
    },
    /// Handed out on leases that outlive a restart.
    Leased {
        group: GroupId,
        at: Timestamp,
        duration: Duration,
        runs: Vec<LeasedRun>,
    },
    Acked {
        group: GroupId,
        ranges: Vec<SeqRange>,
    },
    /// Not finished, and offered again from `until` on.
    Failed {
        group: GroupId,
        at: Timestamp,
        messages: Vec<FailedMessage>,
    },
    /// Given back unharmed: the attempt does not count.
    Returned {
        group: GroupId,
        ranges: Vec<SeqRange>,
    },
    /// Given back unharmed, and offered again from `until` on: the attempt does not count.
    Snoozed {
        group: GroupId,
        at: Timestamp,
        until: Timestamp,
        ranges: Vec<SeqRange>,
    },
    Parked {
        group: GroupId,
        at: Timestamp,
        messages: Vec<ParkedMessage>,
    },
    /// The keys of messages that were parked before the group had read them; zero stands for no key.
    KeysFound {
        group: GroupId,
        keys: Vec<(Seq, KeyHash)>,
    },
    /// Messages of the stream before `first` are kept only for groups that want them, and are promised to
    /// none that is created later.
    Released {
        stream: StreamId,
        first: Seq,
    },
    /// The same messages again, further on in the log, so that the front of it can go. Nothing else about
    /// them changes.
    Copied {
        stream: StreamId,
        messages: Vec<CopiedMessage>,
    },
    /// Done with, but not by an ack.
    Skipped {
        group: GroupId,
        how: Ending,
        ranges: Vec<SeqRange>,
    },
    /// On its way to another stream: not offered to consumers until it is there.
    Moving {
        group: GroupId,
        route: Route,
        seqs: Vec<SeqRange>,
    },
    /// Done with by the group, and still to be brought to another stream: the messages have expired, or the stream was
    /// full.
    Sent {
        group: GroupId,
        route: Route,
        ranges: Vec<SeqRange>,
    },
    /// From parked to ready.
    Replayed {
        group: GroupId,
        job: JobId,
        ranges: Vec<SeqRange>,
    },
    /// Parked no more, and wanted no more.
    Discarded {
        group: GroupId,
        job: JobId,
        ranges: Vec<SeqRange>,
    },
    JobStarted {
        group: GroupId,
        job: JobId,
        at: Timestamp,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
    },
    /// Messages that a job has come to and leaves where they are.
    JobPassed {
        group: GroupId,
        job: JobId,
        ranges: Vec<SeqRange>,
    },
    /// Over, called off, or unable to go on.
    JobEnded {
        group: GroupId,
        job: JobId,
        at: Timestamp,
        how: JobEnd,
    },
    /// Not on its way to another stream any more: ready again, as it was before.
    Stayed {
        group: GroupId,
        ranges: Vec<SeqRange>,
    },
    /// Leases on the clock that last longer, or less long, than they were granted for.
    Extended {
        group: GroupId,
        at: Timestamp,
        deadline: Timestamp,
        ranges: Vec<SeqRange>,
    },
    GroupChanged {
        group: GroupId,
        settings: Box<GroupSettings>,
        at: Timestamp,
    },
    StreamChanged {
        stream: StreamId,
        settings: Box<StreamSettings>,
        at: Timestamp,
    },
    GroupPaused {
        group: GroupId,
        paused: bool,
    },
    /// Progress begins anew after `floor`. Leases and attempts are over; parked messages stay unless told.
    Reset {
        group: GroupId,
        floor: Seq,
        parked: bool,
    },
    /// Everything up to `through` is gone, in every group. Parked messages stay unless told, and so do the ids by
    /// which duplicates are known.
    Purged {
        stream: StreamId,
        through: Seq,
        parked: bool,
        ids: bool,
    },
    GroupDeleted {
        group: GroupId,
    },
    StreamDeleted {
        stream: StreamId,
        /// Position in the log of its last message. An image that is being made may have no other trace of it, and a
        /// position is never given twice.
        last: Ordinal,
    },
    NotePut {
        door: u8,
        key: Vec<u8>,
        version: u64,
        value: Vec<u8>,
        expires: Option<Timestamp>,
    },
    NoteRemoved {
        door: u8,
        key: Vec<u8>,
    },
    /// Delayed messages of a stream wait longer by as much as `to` is more than `from`, or shorter. A message that
    /// was due before does not wait, although the groups may not have been told of it yet.
    Redelayed {
        stream: StreamId,
        at: Timestamp,
        from: Duration,
        to: Duration,
    },
    /// A reader has come to here; with no position it is there no more.
    ReaderMoved {
        stream: StreamId,
        name: GroupName,
        seq: Option<Seq>,
    },
}

/// Consecutive messages on consecutive grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedRun {
    pub range: SeqRange,
    /// Of the first; the others follow.
    pub grant: Grant,
}

/// One attempt that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: Timestamp,
    pub attempt: u32,
    pub cause: Cause,
    /// The consumer's reason.
    pub reason: Option<Arc<str>>,
    /// The consumer's name.
    pub consumer: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMessage {
    pub seq: Seq,
    pub until: Timestamp,
    pub failure: Failure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedMessage {
    pub seq: Seq,
    /// Zero if it has no key; `None` if the group has not read it.
    pub key: Option<KeyHash>,
    pub failure: Failure,
}

/// How an attempt ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The consumer said so.
    Nack = 1,
    /// The lease ran out.
    Timeout = 2,
    /// The consumer went away without a word.
    Lost = 3,
    /// The content could not be read back.
    Damaged = 4,
}

impl Cause {
    pub(crate) fn decode(byte: u8) -> Result<Cause, DecodeError> {
        match byte {
            1 => Ok(Cause::Nack),
            2 => Ok(Cause::Timeout),
            3 => Ok(Cause::Lost),
            4 => Ok(Cause::Damaged),
            _ => Err(DecodeError::OutOfRange("cause of a failure")),
        }
    }

    /// The text that stands for a reason if the consumer gave none.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Nack => "(no reason given)",
            Cause::Timeout => "(timed out)",
            Cause::Lost => "(consumer lost)",
            Cause::Damaged => "(content damaged)",
        }
    }
}

/// How a group is done with a message that was not acked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Skipped = 1,
    Expired = 2,
    /// To make room.
    Dropped = 3,
    /// It is in another stream now.
    Moved = 4,
}

/// What a job does to the messages it was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Makes parked messages ready again.
    Replay,
    /// Drops parked messages.
    Discard,
    /// Moves the waiting messages of the group to another stream, or each message back to the one that it was
    /// moved from last.
    Move { to: Option<StreamName> },
    /// Moves parked messages to another stream.
    MoveParked { to: StreamName },
}

impl Work {
    /// Whether messages go to another stream. A group has one of these jobs at a time.
    pub fn moves(&self) -> bool {
        matches!(self, Work::Move { .. } | Work::MoveParked { .. })
    }

    /// Whether the job is about parked messages.
    pub fn is_about_parked(&self) -> bool {
        !matches!(self, Work::Move { .. })
    }

    /// The stream that messages go to, if the job names one.
    pub fn to(&self) -> Option<&StreamName> {
        match self {
            Work::Replay | Work::Discard => None,
            Work::Move { to } => to.as_ref(),
            Work::MoveParked { to } => Some(to),
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    Done,
    Cancelled,
    Failed(JobFailure),
}

/// Why a job could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFailure {
    #[error("the stream that messages go to is not there")]
    NoDestination,
    #[error("a message was not moved here, so that there is no stream to bring it back to")]
    NoOrigin,
    #[error("the stream does not take a message: {0}")]
    Refused(Arc<str>),
}

/// Which messages are meant: of those that are parked, or of those that wait in the group. Messages that come later
/// are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    All,
    /// Those with exactly this reason.
    Reason(Arc<str>),
    Seqs(Vec<SeqRange>),
}

impl Entry {
    /// When it was decided, where the entry says so.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Entry::Opened { at, .. }
            | Entry::StreamCreated { at, .. }
            | Entry::GroupCreated { at, .. }
            | Entry::Published { at, .. }
            | Entry::Numbered { at, .. }
            | Entry::Handed { at, .. }
            | Entry::Leased { at, .. }
            | Entry::Failed { at, .. }
            | Entry::Snoozed { at, .. }
            | Entry::Parked { at, .. }
            | Entry::JobStarted { at, .. }
            | Entry::JobEnded { at, .. }
            | Entry::Extended { at, .. }
            | Entry::GroupChanged { at, .. }
            | Entry::Redelayed { at, .. }
            | Entry::StreamChanged { at, .. } => Some(*at),
            Entry::Acked { .. }
            | Entry::Returned { .. }
            | Entry::KeysFound { .. }
            | Entry::Released { .. }
            | Entry::Copied { .. }
            | Entry::Skipped { .. }
            | Entry::Moving { .. }
            | Entry::Sent { .. }
            | Entry::Replayed { .. }
            | Entry::Discarded { .. }
            | Entry::JobPassed { .. }
            | Entry::Stayed { .. }
            | Entry::GroupPaused { .. }
            | Entry::Reset { .. }
            | Entry::Purged { .. }
            | Entry::GroupDeleted { .. }
            | Entry::StreamDeleted { .. }
            | Entry::NotePut { .. }
            | Entry::NoteRemoved { .. }
            | Entry::ReaderMoved { .. } => None,
        }
    }

    /// The group whose part of the state this changes, if it is a group's.
    pub(crate) fn group(&self) -> Option<GroupId> {
        match self {
            Entry::Handed { group, .. }
            | Entry::Leased { group, .. }
            | Entry::Acked { group, .. }
            | Entry::Failed { group, .. }
            | Entry::Returned { group, .. }
            | Entry::Snoozed { group, .. }
            | Entry::Parked { group, .. }
            | Entry::KeysFound { group, .. }
            | Entry::Skipped { group, .. }
            | Entry::Moving { group, .. }
            | Entry::Sent { group, .. }
            | Entry::Replayed { group, .. }
            | Entry::Discarded { group, .. }
            | Entry::JobStarted { group, .. }
            | Entry::JobPassed { group, .. }
            | Entry::JobEnded { group, .. }
            | Entry::Stayed { group, .. }
            | Entry::Extended { group, .. }
            | Entry::GroupPaused { group, .. }
            | Entry::Reset { group, .. } => Some(*group),
            // The registry's, a stream's or the shard's.
            Entry::Opened { .. }
            | Entry::StreamCreated { .. }
            | Entry::GroupCreated { .. }
            | Entry::Published { .. }
            | Entry::Numbered { .. }
            | Entry::Released { .. }
            | Entry::Copied { .. }
            | Entry::GroupChanged { .. }
            | Entry::StreamChanged { .. }
            | Entry::Purged { .. }
            | Entry::GroupDeleted { .. }
            | Entry::StreamDeleted { .. }
            | Entry::NotePut { .. }
            | Entry::NoteRemoved { .. }
            | Entry::Redelayed { .. }
            | Entry::ReaderMoved { .. } => None,
        }
    }
}

mod kind {
    pub(super) const OPENED: u8 = 1;
    pub(super) const STREAM_CREATED: u8 = 2;
    pub(super) const GROUP_CREATED: u8 = 3;
    pub(super) const PUBLISHED: u8 = 4;
    pub(super) const HANDED: u8 = 5;
    pub(super) const LEASED: u8 = 6;
    pub(super) const ACKED: u8 = 7;
    pub(super) const FAILED: u8 = 8;
    pub(super) const RETURNED: u8 = 9;
    pub(super) const PARKED: u8 = 10;
    pub(super) const RELEASED: u8 = 11;
    pub(super) const COPIED: u8 = 12;
    pub(super) const SKIPPED: u8 = 13;
    pub(super) const MOVING: u8 = 14;
    pub(super) const REPLAYED: u8 = 15;
    pub(super) const DISCARDED: u8 = 16;
    pub(super) const JOB_STARTED: u8 = 17;
    pub(super) const JOB_ENDED: u8 = 18;
    pub(super) const EXTENDED: u8 = 19;
    pub(super) const GROUP_CHANGED: u8 = 20;
    pub(super) const STREAM_CHANGED: u8 = 21;
    pub(super) const GROUP_PAUSED: u8 = 22;
    pub(super) const RESET: u8 = 23;
    pub(super) const PURGED: u8 = 24;
    pub(super) const GROUP_DELETED: u8 = 25;
    pub(super) const STREAM_DELETED: u8 = 26;
    pub(super) const NOTE_PUT: u8 = 27;
    pub(super) const NOTE_REMOVED: u8 = 28;
    pub(super) const READER_MOVED: u8 = 29;
    pub(super) const KEYS_FOUND: u8 = 30;
    pub(super) const NUMBERED: u8 = 31;
    pub(super) const SNOOZED: u8 = 32;
    pub(super) const REDELAYED: u8 = 33;
    pub(super) const JOB_PASSED: u8 = 34;
    pub(super) const STAYED: u8 = 35;
    pub(super) const SENT: u8 = 36;
    /// Kinds with this bit may be skipped by a release that does not know them.
    pub(super) const OPTIONAL: u8 = 0x80;
}

/// Bits of a `Published` body's first byte.
mod form {
    /// All messages are plain and of one size.
    pub(super) const UNIFORM: u8 = 1;
    /// The batch has a producer's number.
    pub(super) const STAMPED: u8 = 2;
    pub(super) const ALL: u8 = 3;
}

/// The optional fields of a message beside its size.
mod flag {
    pub(super) const ID: u8 = 1;
    pub(super) const KEY: u8 = 2;
    pub(super) const PRIORITY: u8 = 4;
    pub(super) const NOT_BEFORE: u8 = 8;
    pub(super) const EXPIRES: u8 = 16;
    pub(super) const ORIGIN: u8 = 32;
    /// Only with an origin.
    pub(super) const TRAIL: u8 = 64;
    /// The trail says why. Only with one.
    pub(super) const WHY: u8 = 128;
}

/// The optional parts of a purge, beside ready, delayed and leased messages.
mod purge {
    pub(super) const PARKED: u8 = 1;
    pub(super) const IDS: u8 = 2;
    pub(super) const ALL: u8 = 3;
}

/// The optional fields of a failure beside its time and attempt: the cause is in the low bits.
mod blame {
    pub(super) const CAUSE: u8 = 0x0f;
    pub(super) const REASON: u8 = 0x10;
    pub(super) const CONSUMER: u8 = 0x20;
    pub(super) const KEY: u8 = 0x40;
}

#[cfg(test)]
mod tests;
