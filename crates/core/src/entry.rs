//! Entries: the durable facts, and how they are written.
//!
//! An entry is `kind (1 byte) | length (3 bytes, little endian) | body`. A kind with the top bit set may
//! be skipped by a release that does not know it; any other unknown kind stops recovery. Numbers in
//! bodies are variable-length, positions are written as distances from the one before, so that a whole
//! turn's acks of a busy group usually take a dozen bytes.
//!
//! Only what cannot be told from elsewhere is written, and always the result of a decision (the time
//! until which to wait), never the policy that led to it.

mod copied;

use std::time::Duration;

pub use copied::{COPIED_MAX, CopiedMessage, copied_runs, put_copied};

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint, unzigzag, zigzag};
use crate::settings::{GroupSettings, StreamSettings};
use crate::types::{
    Epoch, Grant, GroupId, GroupName, IdHash, KeyHash, Ordinal, Seq, SeqRange, StreamId, StreamName,
    Timestamp, micros,
};

/// One durable fact.
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
        settings: StreamSettings,
        at: Timestamp,
    },
    /// `floor`: everything up to here counts as settled from the start.
    GroupCreated {
        group: GroupId,
        stream: StreamId,
        name: GroupName,
        settings: GroupSettings,
        floor: Seq,
        at: Timestamp,
    },
    /// The contents follow, in this order, in the frame's payload section.
    Published {
        stream: StreamId,
        first: Seq,
        ordinal: Ordinal,
        at: Timestamp,
        messages: Messages,
    },
    /// Handed out over connections; merged over consumers.
    Handed {
        group: GroupId,
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
    Parked {
        group: GroupId,
        at: Timestamp,
        messages: Vec<ParkedMessage>,
    },
    /// Messages of the stream before `first` are kept only for groups that want them, and are promised to
    /// none that is created later.
    Released {
        stream: StreamId,
        first: Seq,
    },
    /// Messages that were published earlier, stored once more so that the front of the log can go. The
    /// contents follow, in this order, in the frame's payload section. Changes nothing but where they are.
    Copied {
        stream: StreamId,
        messages: Vec<CopiedMessage>,
    },
}

/// Messages of one `Published` entry, from `first` on.
#[derive(Debug, Clone, PartialEq)]
pub enum Messages {
    /// Plain messages, all of one size.
    Uniform {
        count: u32,
        size: u32,
    },
    Each(Vec<MessageMeta>),
}

/// What the core knows of a message. Never its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageMeta {
    /// Bytes of its content in the payload section.
    pub size: u32,
    pub id: Option<IdHash>,
    pub key: Option<KeyHash>,
    pub priority: u8,
    pub not_before: Option<Timestamp>,
    pub expires: Option<Timestamp>,
}

impl MessageMeta {
    pub fn plain(size: u32) -> MessageMeta {
        MessageMeta { size, ..MessageMeta::default() }
    }

    fn is_plain(&self) -> bool {
        *self == MessageMeta::plain(self.size)
    }
}

/// Consecutive messages on consecutive grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedRun {
    pub range: SeqRange,
    /// Of the first; the others follow.
    pub grant: Grant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedMessage {
    pub seq: Seq,
    pub until: Timestamp,
    pub cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkedMessage {
    pub seq: Seq,
    pub at: Timestamp,
    pub cause: Cause,
}

/// How an attempt ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The consumer said so.
    Nack = 1,
    /// The lease ran out.
    Timeout = 2,
    /// The consumer went away without a word.
    Lost = 3,
}

impl Cause {
    pub(crate) fn decode(byte: u8) -> Result<Cause, DecodeError> {
        match byte {
            1 => Ok(Cause::Nack),
            2 => Ok(Cause::Timeout),
            3 => Ok(Cause::Lost),
            _ => Err(DecodeError::OutOfRange("cause of a failure")),
        }
    }
}

impl Messages {
    pub fn count(&self) -> u64 {
        match self {
            Messages::Uniform { count, .. } => u64::from(*count),
            Messages::Each(messages) => messages.len() as u64,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = MessageMeta> + '_ {
        let (uniform, each) = match self {
            Messages::Uniform { count, size } => (Some((*count, *size)), [].iter()),
            Messages::Each(messages) => (None, messages.iter()),
        };
        let (count, size) = uniform.unwrap_or_default();
        std::iter::repeat_n(MessageMeta::plain(size), count as usize).chain(each.copied())
    }

    /// Bytes of their contents together.
    pub fn bytes(&self) -> u64 {
        match self {
            Messages::Uniform { count, size } => u64::from(*count) * u64::from(*size),
            Messages::Each(messages) => messages.iter().map(|message| u64::from(message.size)).sum(),
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
    /// Kinds with this bit may be skipped by a release that does not know them.
    pub(super) const OPTIONAL: u8 = 0x80;
}

/// Bit 0 of a `Published` body: all messages are plain and of one size.
const UNIFORM: u8 = 1;

mod flag {
    pub(super) const ID: u8 = 1;
    pub(super) const KEY: u8 = 2;
    pub(super) const PRIORITY: u8 = 4;
    pub(super) const NOT_BEFORE: u8 = 8;
    pub(super) const EXPIRES: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

/// Writes one entry: the header, then what `body` adds.
fn put_entry(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[kind, 0, 0, 0]);
    body(out);
    let len = out.len() - start - 4;
    assert!(len < 1 << 24, "an entry fits in a frame");
    out[start + 1..start + 4].copy_from_slice(&(len as u32).to_le_bytes()[..3]);
}

fn put_ranges(out: &mut Vec<u8>, ranges: &[SeqRange]) {
    put_varint(out, ranges.len() as u64);
    let mut from = 0;
    for range in ranges {
        // The list is nearly sorted, but a retried message may be handed out after newer ones.
        put_varint(out, zigzag(range.first.0.wrapping_sub(from) as i64));
        put_varint(out, range.count() - 1);
        from = range.last.0;
    }
}

fn take_ranges(cursor: &mut Cursor<'_>) -> Result<Vec<SeqRange>, DecodeError> {
    let count = cursor.count()?;
    let mut ranges = Vec::with_capacity(count);
    let mut from = 0u64;
    for _ in 0..count {
        let first = take_seq(cursor, from)?;
        let more = cursor.varint()?;
        let last = first.0.checked_add(more).ok_or(DecodeError::OutOfRange("range of positions"))?;
        ranges.push(SeqRange::new(first, Seq(last)));
        from = last;
    }
    Ok(ranges)
}

fn put_seq(out: &mut Vec<u8>, seq: Seq, from: &mut u64) {
    put_varint(out, zigzag(seq.0.wrapping_sub(*from) as i64));
    *from = seq.0;
}

fn take_seq(cursor: &mut Cursor<'_>, from: u64) -> Result<Seq, DecodeError> {
    let seq = from.checked_add_signed(unzigzag(cursor.varint()?));
    seq.filter(|&seq| seq > 0).map(Seq).ok_or(DecodeError::OutOfRange("position"))
}

/// A time near `at`: decisions of one turn may have been made a little before it ends.
fn take_time(cursor: &mut Cursor<'_>, at: Timestamp) -> Result<Timestamp, DecodeError> {
    let time = at.0.checked_add_signed(unzigzag(cursor.varint()?));
    time.map(Timestamp).ok_or(DecodeError::OutOfRange("time"))
}

fn put_message(out: &mut Vec<u8>, message: &MessageMeta) {
    let mut flags = 0;
    for (present, flag) in [
        (message.id.is_some(), flag::ID),
        (message.key.is_some(), flag::KEY),
        (message.priority != 0, flag::PRIORITY),
        (message.not_before.is_some(), flag::NOT_BEFORE),
        (message.expires.is_some(), flag::EXPIRES),
    ] {
        if present {
            flags |= flag;
        }
    }
    out.push(flags);
    put_varint(out, message.size.into());
    if let Some(id) = message.id {
        out.extend_from_slice(&id.0.to_le_bytes());
    }
    if let Some(key) = message.key {
        out.extend_from_slice(&key.0.to_le_bytes());
    }
    if message.priority != 0 {
        out.push(message.priority);
    }
    if let Some(at) = message.not_before {
        put_varint(out, at.0);
    }
    if let Some(at) = message.expires {
        put_varint(out, at.0);
    }
}

fn take_message(cursor: &mut Cursor<'_>) -> Result<MessageMeta, DecodeError> {
    let flags = cursor.byte()?;
    if flags & !flag::ALL != 0 {
        return Err(DecodeError::UnknownField { field: flags.into() });
    }
    let has = |flag| flags & flag != 0;
    Ok(MessageMeta {
        size: cursor.varint_u32()?,
        id: if has(flag::ID) { Some(IdHash(cursor.u128()?)) } else { None },
        key: if has(flag::KEY) { Some(KeyHash(cursor.u64()?)) } else { None },
        priority: if has(flag::PRIORITY) { cursor.byte()? } else { 0 },
        not_before: if has(flag::NOT_BEFORE) { Some(Timestamp(cursor.varint()?)) } else { None },
        expires: if has(flag::EXPIRES) { Some(Timestamp(cursor.varint()?)) } else { None },
    })
}

/// Writes a `Published` entry without building one first.
pub(crate) fn put_published(
    out: &mut Vec<u8>,
    stream: StreamId,
    first: Seq,
    ordinal: Ordinal,
    at: Timestamp,
    messages: &[MessageMeta],
) {
    put_entry(out, kind::PUBLISHED, |out| {
        let size = messages[0].size;
        let uniform = messages.iter().all(|message| message.size == size && message.is_plain());
        out.push(if uniform { UNIFORM } else { 0 });
        put_varint(out, stream.0.into());
        put_varint(out, first.0);
        put_varint(out, ordinal.0);
        put_varint(out, at.0);
        put_varint(out, messages.len() as u64);
        if uniform {
            put_varint(out, size.into());
        } else {
            for message in messages {
                put_message(out, message);
            }
        }
    });
}

fn put_group_ranges(out: &mut Vec<u8>, kind: u8, group: GroupId, ranges: &[SeqRange]) {
    put_entry(out, kind, |out| {
        put_varint(out, group.0.into());
        put_ranges(out, ranges);
    });
}

pub(crate) fn put_handed(out: &mut Vec<u8>, group: GroupId, ranges: &[SeqRange]) {
    put_group_ranges(out, kind::HANDED, group, ranges);
}

pub(crate) fn put_acked(out: &mut Vec<u8>, group: GroupId, ranges: &[SeqRange]) {
    put_group_ranges(out, kind::ACKED, group, ranges);
}

pub(crate) fn put_returned(out: &mut Vec<u8>, group: GroupId, ranges: &[SeqRange]) {
    put_group_ranges(out, kind::RETURNED, group, ranges);
}

pub(crate) fn put_leased(
    out: &mut Vec<u8>,
    group: GroupId,
    at: Timestamp,
    duration: Duration,
    runs: &[LeasedRun],
) {
    put_entry(out, kind::LEASED, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        put_varint(out, micros(duration));
        put_varint(out, runs.len() as u64);
        let mut from = 0;
        for run in runs {
            put_seq(out, run.range.first, &mut from);
            put_varint(out, run.range.count() - 1);
            put_varint(out, run.grant.0);
        }
    });
}

pub(crate) fn put_failed(out: &mut Vec<u8>, group: GroupId, at: Timestamp, messages: &[FailedMessage]) {
    put_entry(out, kind::FAILED, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        put_varint(out, messages.len() as u64);
        let mut from = 0;
        for message in messages {
            put_seq(out, message.seq, &mut from);
            put_varint(out, zigzag(message.until.0.wrapping_sub(at.0) as i64));
            out.push(message.cause as u8);
        }
    });
}

pub(crate) fn put_parked(out: &mut Vec<u8>, group: GroupId, at: Timestamp, messages: &[ParkedMessage]) {
    put_entry(out, kind::PARKED, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        put_varint(out, messages.len() as u64);
        let mut from = 0;
        for message in messages {
            put_seq(out, message.seq, &mut from);
            put_varint(out, zigzag(message.at.0.wrapping_sub(at.0) as i64));
            out.push(message.cause as u8);
        }
    });
}

impl Entry {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Opened { epoch, at } => put_entry(out, kind::OPENED, |out| {
                put_varint(out, epoch.0.into());
                put_varint(out, at.0);
            }),
            Entry::StreamCreated { stream, name, settings, at } => {
                put_entry(out, kind::STREAM_CREATED, |out| {
                    put_varint(out, stream.0.into());
                    put_bytes(out, name.as_str().as_bytes());
                    put_varint(out, at.0);
                    settings.encode(out);
                });
            }
            Entry::GroupCreated { group, stream, name, settings, floor, at } => {
                put_entry(out, kind::GROUP_CREATED, |out| {
                    put_varint(out, group.0.into());
                    put_varint(out, stream.0.into());
                    put_bytes(out, name.as_str().as_bytes());
                    put_varint(out, floor.0);
                    put_varint(out, at.0);
                    settings.encode(out);
                });
            }
            Entry::Published { stream, first, ordinal, at, messages } => {
                let messages: Vec<MessageMeta> = messages.iter().collect();
                put_published(out, *stream, *first, *ordinal, *at, &messages);
            }
            Entry::Handed { group, ranges } => put_handed(out, *group, ranges),
            Entry::Leased { group, at, duration, runs } => put_leased(out, *group, *at, *duration, runs),
            Entry::Acked { group, ranges } => put_acked(out, *group, ranges),
            Entry::Failed { group, at, messages } => put_failed(out, *group, *at, messages),
            Entry::Returned { group, ranges } => put_returned(out, *group, ranges),
            Entry::Parked { group, at, messages } => put_parked(out, *group, *at, messages),
            Entry::Released { stream, first } => put_entry(out, kind::RELEASED, |out| {
                put_varint(out, stream.0.into());
                put_varint(out, first.0);
            }),
            Entry::Copied { stream, messages } => put_copied(out, *stream, messages),
        }
    }

    fn decode_body(kind: u8, cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
        let entry = match kind {
            kind::OPENED => {
                Entry::Opened { epoch: Epoch(cursor.varint_u32()?), at: Timestamp(cursor.varint()?) }
            }
            kind::STREAM_CREATED => Entry::StreamCreated {
                stream: StreamId(cursor.varint_u32()?),
                name: StreamName::stored(cursor.text()?),
                at: Timestamp(cursor.varint()?),
                settings: StreamSettings::decode(cursor.take(cursor.remaining())?)?,
            },
            kind::GROUP_CREATED => Entry::GroupCreated {
                group: GroupId(cursor.varint_u32()?),
                stream: StreamId(cursor.varint_u32()?),
                name: GroupName::stored(cursor.text()?),
                floor: Seq(cursor.varint()?),
                at: Timestamp(cursor.varint()?),
                settings: GroupSettings::decode(cursor.take(cursor.remaining())?)?,
            },
            kind::PUBLISHED => decode_published(cursor)?,
            kind::HANDED => Entry::Handed { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
            kind::ACKED => Entry::Acked { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
            kind::RETURNED => Entry::Returned { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
            kind::LEASED => decode_leased(cursor)?,
            kind::FAILED => decode_failed(cursor)?,
            kind::PARKED => decode_parked(cursor)?,
            kind::RELEASED => {
                Entry::Released { stream: StreamId(cursor.varint_u32()?), first: Seq(cursor.varint()?) }
            }
            kind::COPIED => copied::decode_copied(cursor)?,
            _ => return Err(DecodeError::UnknownKind { kind }),
        };
        if !cursor.is_at_end() {
            return Err(DecodeError::OutOfRange("length of an entry"));
        }
        Ok(entry)
    }
}

impl Entry {
    /// When it was decided, where the entry says so.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Entry::Opened { at, .. }
            | Entry::StreamCreated { at, .. }
            | Entry::GroupCreated { at, .. }
            | Entry::Published { at, .. }
            | Entry::Leased { at, .. }
            | Entry::Failed { at, .. }
            | Entry::Parked { at, .. } => Some(*at),
            Entry::Handed { .. } | Entry::Acked { .. } | Entry::Returned { .. } | Entry::Released { .. } => {
                None
            }
            // Their times are those of long ago.
            Entry::Copied { .. } => None,
        }
    }
}

fn take_group(cursor: &mut Cursor<'_>) -> Result<GroupId, DecodeError> {
    Ok(GroupId(cursor.varint_u32()?))
}

fn decode_published(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let flags = cursor.byte()?;
    let stream = StreamId(cursor.varint_u32()?);
    let first = Seq(cursor.varint()?);
    let ordinal = Ordinal(cursor.varint()?);
    let at = Timestamp(cursor.varint()?);
    let messages = match flags {
        UNIFORM => Messages::Uniform { count: cursor.varint_u32()?, size: cursor.varint_u32()? },
        0 => {
            let count = cursor.count()?;
            Messages::Each((0..count).map(|_| take_message(cursor)).collect::<Result<_, _>>()?)
        }
        _ => return Err(DecodeError::UnknownField { field: flags.into() }),
    };
    if messages.count() == 0 || first.0.checked_add(messages.count()).is_none() {
        return Err(DecodeError::OutOfRange("published range"));
    }
    Ok(Entry::Published { stream, first, ordinal, at, messages })
}

fn decode_leased(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let duration = Duration::from_micros(cursor.varint()?);
    let count = cursor.count()?;
    let mut runs = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let first = take_seq(cursor, from)?;
        from = first.0;
        let more = cursor.varint()?;
        let last = first.0.checked_add(more).ok_or(DecodeError::OutOfRange("range of positions"))?;
        runs.push(LeasedRun { range: SeqRange::new(first, Seq(last)), grant: Grant(cursor.varint()?) });
    }
    Ok(Entry::Leased { group, at, duration, runs })
}

fn decode_failed(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let count = cursor.count()?;
    let mut messages = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let seq = take_seq(cursor, from)?;
        from = seq.0;
        let until = take_time(cursor, at)?;
        messages.push(FailedMessage { seq, until, cause: Cause::decode(cursor.byte()?)? });
    }
    Ok(Entry::Failed { group, at, messages })
}

fn decode_parked(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let count = cursor.count()?;
    let mut messages = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let seq = take_seq(cursor, from)?;
        from = seq.0;
        let parked_at = take_time(cursor, at)?;
        messages.push(ParkedMessage { seq, at: parked_at, cause: Cause::decode(cursor.byte()?)? });
    }
    Ok(Entry::Parked { group, at, messages })
}

/// Where one entry after the other begins and ends, for whoever has to put them into several frames.
pub fn each_encoded(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let len = 4 + u32::from_le_bytes([header[1], header[2], header[3], 0]) as usize;
        let (entry, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        Some(entry)
    })
}

/// The entries of a frame, in order. Kinds that may be skipped and are not known are skipped.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = Result<Entry, DecodeError>> + '_ {
    let mut cursor = Cursor::new(bytes);
    let mut broken = false;
    std::iter::from_fn(move || {
        while !broken && !cursor.is_at_end() {
            match next_entry(&mut cursor) {
                Ok(None) => {}
                Ok(Some(entry)) => return Some(Ok(entry)),
                Err(error) => {
                    broken = true;
                    return Some(Err(error));
                }
            }
        }
        None
    })
}

fn next_entry(cursor: &mut Cursor<'_>) -> Result<Option<Entry>, DecodeError> {
    let header = cursor.take(4)?;
    let kind = header[0];
    let len = u32::from_le_bytes([header[1], header[2], header[3], 0]);
    let mut body = Cursor::new(cursor.take(len as usize)?);
    match Entry::decode_body(kind, &mut body) {
        Err(DecodeError::UnknownKind { .. }) if kind & kind::OPTIONAL != 0 => Ok(None),
        decoded => decoded.map(Some),
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
