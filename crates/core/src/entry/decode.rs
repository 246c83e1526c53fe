//! How entries are read.

use std::sync::Arc;
use std::time::Duration;

use forebay_model::limits::PRIORITY_MAX;

use super::{
    Cause, Ending, Entry, FailedMessage, Failure, JobEnd, JobFailure, LeasedRun, MessageMeta, Messages,
    MoveReason, MoveTrail, Origin, ParkedMessage, Route, Selection, Work, blame, copied, flag, form, kind,
    purge,
};
use crate::codec::{Cursor, DecodeError, unzigzag};
use crate::pace::Rate;
use crate::producers::ProducerStamp;
use crate::settings::{GroupSettings, Logged, StreamSettings};
use crate::types::{
    Epoch, Grant, GroupId, GroupName, IdHash, JobId, KeyHash, Ordinal, Seq, SeqRange, StreamId, StreamName,
    Timestamp,
};

/// Messages of an entry for which room is made at once.
const MESSAGES_EXPECTED: usize = 1_024;

/// The bytes of each entry, for callers that have to distribute them over several frames.
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
    match decode_body(kind, &mut body) {
        Err(DecodeError::UnknownKind { .. }) if kind & kind::OPTIONAL != 0 => Ok(None),
        decoded => decoded.map(Some),
    }
}

fn decode_body(kind: u8, cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let entry = match kind {
        kind::OPENED => Entry::Opened { epoch: Epoch(cursor.varint_u32()?), at: Timestamp(cursor.varint()?) },
        kind::STREAM_CREATED => Entry::StreamCreated {
            stream: take_stream(cursor)?,
            name: StreamName::stored(cursor.text()?),
            at: Timestamp(cursor.varint()?),
            settings: StreamSettings::decode(cursor.take(cursor.remaining())?)?.into(),
        },
        kind::GROUP_CREATED => Entry::GroupCreated {
            group: take_group(cursor)?,
            stream: take_stream(cursor)?,
            name: GroupName::stored(cursor.text()?),
            floor: Seq(cursor.varint()?),
            at: Timestamp(cursor.varint()?),
            settings: GroupSettings::decode(cursor.take(cursor.remaining())?)?.into(),
        },
        kind::PUBLISHED => decode_published(cursor)?,
        kind::HANDED => {
            let (group, ranges) = (take_group(cursor)?, take_ranges(cursor)?);
            let at = if cursor.is_at_end() { Timestamp::ZERO } else { Timestamp(cursor.varint()?) };
            Entry::Handed { group, at, ranges }
        }
        kind::ACKED => Entry::Acked { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
        kind::RETURNED => Entry::Returned { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
        kind::LEASED => decode_leased(cursor)?,
        kind::FAILED => decode_failed(cursor)?,
        kind::PARKED => decode_parked(cursor)?,
        kind::RELEASED => Entry::Released { stream: take_stream(cursor)?, first: Seq(cursor.varint()?) },
        kind::COPIED => copied::decode_copied(cursor)?,
        kind::SKIPPED => Entry::Skipped {
            group: take_group(cursor)?,
            how: take_ending(cursor)?,
            ranges: take_ranges(cursor)?,
        },
        kind::MOVING => {
            let (group, name, seqs) = (take_group(cursor)?, cursor.text()?, take_ranges(cursor)?);
            let usual = cursor.is_at_end();
            let route = if usual { Route::usual(name) } else { Route::take_rest(name, cursor)? };
            Entry::Moving { group, route, seqs }
        }
        kind::REPLAYED => Entry::Replayed {
            group: take_group(cursor)?,
            job: JobId(cursor.varint_u32()?),
            ranges: take_ranges(cursor)?,
        },
        kind::DISCARDED => Entry::Discarded {
            group: take_group(cursor)?,
            job: JobId(cursor.varint_u32()?),
            ranges: take_ranges(cursor)?,
        },
        kind::JOB_STARTED => decode_job_started(cursor)?,
        kind::JOB_ENDED => Entry::JobEnded {
            group: take_group(cursor)?,
            job: JobId(cursor.varint_u32()?),
            at: Timestamp(cursor.varint()?),
            how: JobEnd::decode(cursor)?,
        },
        kind::JOB_PASSED => Entry::JobPassed {
            group: take_group(cursor)?,
            job: JobId(cursor.varint_u32()?),
            ranges: take_ranges(cursor)?,
        },
        kind::SENT => {
            let (group, name) = (take_group(cursor)?, cursor.text()?);
            Entry::Sent { group, route: Route::take_rest(name, cursor)?, ranges: take_ranges(cursor)? }
        }
        kind::STAYED => Entry::Stayed { group: take_group(cursor)?, ranges: take_ranges(cursor)? },
        kind::EXTENDED => {
            let group = take_group(cursor)?;
            let at = Timestamp(cursor.varint()?);
            Entry::Extended { group, at, deadline: take_time(cursor, at)?, ranges: take_ranges(cursor)? }
        }
        kind::SNOOZED => {
            let group = take_group(cursor)?;
            let at = Timestamp(cursor.varint()?);
            Entry::Snoozed { group, at, until: take_time(cursor, at)?, ranges: take_ranges(cursor)? }
        }
        kind::GROUP_CHANGED => Entry::GroupChanged {
            group: take_group(cursor)?,
            at: Timestamp(cursor.varint()?),
            settings: GroupSettings::decode(cursor.take(cursor.remaining())?)?.into(),
        },
        kind::STREAM_CHANGED => Entry::StreamChanged {
            stream: take_stream(cursor)?,
            at: Timestamp(cursor.varint()?),
            settings: StreamSettings::decode(cursor.take(cursor.remaining())?)?.into(),
        },
        kind::GROUP_PAUSED => Entry::GroupPaused { group: take_group(cursor)?, paused: take_bool(cursor)? },
        kind::RESET => Entry::Reset {
            group: take_group(cursor)?,
            floor: Seq(cursor.varint()?),
            parked: take_bool(cursor)?,
        },
        kind::PURGED => {
            let (stream, through, flags) = (take_stream(cursor)?, Seq(cursor.varint()?), cursor.byte()?);
            if flags & !purge::ALL != 0 {
                return Err(DecodeError::UnknownField { field: flags.into() });
            }
            let has = |flag| flags & flag != 0;
            Entry::Purged { stream, through, parked: has(purge::PARKED), ids: has(purge::IDS) }
        }
        kind::GROUP_DELETED => Entry::GroupDeleted { group: take_group(cursor)? },
        kind::STREAM_DELETED => {
            let stream = take_stream(cursor)?;
            let last = Ordinal(if cursor.is_at_end() { 0 } else { cursor.varint()? });
            Entry::StreamDeleted { stream, last }
        }
        kind::NOTE_PUT => Entry::NotePut {
            door: cursor.byte()?,
            key: cursor.bytes()?.to_vec(),
            version: cursor.varint()?,
            expires: take_some(cursor)?.map(Timestamp),
            value: cursor.bytes()?.to_vec(),
        },
        kind::NOTE_REMOVED => Entry::NoteRemoved { door: cursor.byte()?, key: cursor.bytes()?.to_vec() },
        kind::NUMBERED => decode_numbered(cursor)?,
        kind::KEYS_FOUND => {
            let (group, count) = (take_group(cursor)?, cursor.count()?);
            let mut keys = Vec::with_capacity(count);
            let mut from = 0;
            for _ in 0..count {
                let seq = take_seq(cursor, from)?;
                from = seq.0;
                keys.push((seq, KeyHash(cursor.u64()?)));
            }
            Entry::KeysFound { group, keys }
        }
        kind::REDELAYED => Entry::Redelayed {
            stream: take_stream(cursor)?,
            at: Timestamp(cursor.varint()?),
            from: Duration::from_micros(cursor.varint()?),
            to: Duration::from_micros(cursor.varint()?),
        },
        kind::READER_MOVED => Entry::ReaderMoved {
            stream: take_stream(cursor)?,
            name: GroupName::stored(cursor.text()?),
            seq: take_some(cursor)?.map(Seq),
        },
        _ => return Err(DecodeError::UnknownKind { kind }),
    };
    if !cursor.is_at_end() {
        return Err(DecodeError::OutOfRange("length of an entry"));
    }
    Ok(entry)
}

fn take_group(cursor: &mut Cursor<'_>) -> Result<GroupId, DecodeError> {
    Ok(GroupId(cursor.varint_u32()?))
}

fn take_stream(cursor: &mut Cursor<'_>) -> Result<StreamId, DecodeError> {
    Ok(StreamId(cursor.varint_u32()?))
}

fn take_bool(cursor: &mut Cursor<'_>) -> Result<bool, DecodeError> {
    match cursor.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::OutOfRange("yes or no")),
    }
}

fn take_some(cursor: &mut Cursor<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(cursor.varint()?.checked_sub(1))
}

fn take_ending(cursor: &mut Cursor<'_>) -> Result<Ending, DecodeError> {
    match cursor.byte()? {
        1 => Ok(Ending::Skipped),
        2 => Ok(Ending::Expired),
        3 => Ok(Ending::Dropped),
        4 => Ok(Ending::Moved),
        _ => Err(DecodeError::OutOfRange("ending of a message")),
    }
}

fn take_ranges(cursor: &mut Cursor<'_>) -> Result<Vec<SeqRange>, DecodeError> {
    let count = cursor.count()?;
    let mut ranges = Vec::with_capacity(count);
    let mut from = 0u64;
    for _ in 0..count {
        let range = take_range(cursor, from)?;
        ranges.push(range);
        from = range.last.0;
    }
    Ok(ranges)
}

fn take_range(cursor: &mut Cursor<'_>, from: u64) -> Result<SeqRange, DecodeError> {
    let first = take_seq(cursor, from)?;
    let more = cursor.varint()?;
    // One less than what fits, so that there is always a position after the last.
    let last = first.0.checked_add(more).filter(|&last| last < u64::MAX);
    Ok(SeqRange::new(first, Seq(last.ok_or(DecodeError::OutOfRange("range of positions"))?)))
}

fn take_seq(cursor: &mut Cursor<'_>, from: u64) -> Result<Seq, DecodeError> {
    let seq = from.checked_add_signed(unzigzag(cursor.varint()?));
    seq.filter(|&seq| seq > 0).map(Seq).ok_or(DecodeError::OutOfRange("position"))
}

fn take_time(cursor: &mut Cursor<'_>, at: Timestamp) -> Result<Timestamp, DecodeError> {
    let time = at.0.checked_add_signed(unzigzag(cursor.varint()?));
    time.map(Timestamp).ok_or(DecodeError::OutOfRange("time"))
}

pub(super) fn take_message(cursor: &mut Cursor<'_>) -> Result<MessageMeta, DecodeError> {
    let flags = cursor.byte()?;
    let has = |flag| flags & flag != 0;
    if has(flag::TRAIL) && !has(flag::ORIGIN) || has(flag::WHY) && !has(flag::TRAIL) {
        return Err(DecodeError::UnknownField { field: flags.into() });
    }
    let message = MessageMeta {
        size: cursor.varint_u32()?,
        id: if has(flag::ID) { Some(IdHash(cursor.u128()?)) } else { None },
        key: if has(flag::KEY) { Some(KeyHash(cursor.u64()?)) } else { None },
        priority: if has(flag::PRIORITY) { cursor.byte()? } else { 0 },
        not_before: if has(flag::NOT_BEFORE) { Some(Timestamp(cursor.varint()?)) } else { None },
        expires: if has(flag::EXPIRES) { Some(Timestamp(cursor.varint()?)) } else { None },
        origin: if has(flag::ORIGIN) {
            Some(take_origin(cursor, has(flag::TRAIL), has(flag::WHY))?)
        } else {
            None
        },
    };
    if message.priority > PRIORITY_MAX {
        return Err(DecodeError::OutOfRange("priority"));
    }
    Ok(message)
}

fn take_origin(cursor: &mut Cursor<'_>, has_trail: bool, has_why: bool) -> Result<Origin, DecodeError> {
    let (published, receives) = (Timestamp(cursor.varint()?), cursor.varint_u32()?);
    let trail = if has_trail {
        let (home, seq) = (take_stream(cursor)?, Seq(cursor.varint()?));
        let from = take_stream(cursor)?;
        let why = if has_why { MoveReason::decode(cursor.byte()?)? } else { MoveReason::Asked };
        Some(MoveTrail { home, seq, from, why })
    } else {
        None
    };
    Ok(Origin { published, receives, trail })
}

fn take_stamp(cursor: &mut Cursor<'_>) -> Result<ProducerStamp, DecodeError> {
    Ok(ProducerStamp { producer: cursor.varint()?, epoch: cursor.varint_u32()?, number: cursor.varint()? })
}

fn decode_numbered(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let stream = take_stream(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let stamp = take_stamp(cursor)?;
    let (count, stored) = (cursor.varint()?, cursor.varint()?);
    let first = if stored > 0 { Seq(cursor.varint()?) } else { Seq::START };
    if count == 0 || stored > count || first.0.checked_add(stored).is_none() {
        return Err(DecodeError::OutOfRange("numbered batch"));
    }
    let seqs = (stored > 0).then(|| SeqRange::starting(first, stored));
    Ok(Entry::Numbered { stream, at, stamp, count, seqs })
}

fn decode_published(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let form = cursor.byte()?;
    if form & !form::ALL != 0 {
        return Err(DecodeError::UnknownField { field: form.into() });
    }
    let stream = take_stream(cursor)?;
    let first = Seq(cursor.varint()?);
    let ordinal = Ordinal(cursor.varint()?);
    let at = Timestamp(cursor.varint()?);
    let stamp = if form & form::STAMPED != 0 { Some(take_stamp(cursor)?) } else { None };
    let messages = if form & form::UNIFORM != 0 {
        Messages::Uniform { count: cursor.varint_u32()?, size: cursor.varint_u32()? }
    } else {
        let count = cursor.count()?;
        // As many as one usually meets: a count that is not true must not cost much.
        let mut messages = Vec::with_capacity(count.min(MESSAGES_EXPECTED));
        for _ in 0..count {
            messages.push(take_message(cursor)?);
        }
        Messages::Each(messages)
    };
    if messages.count() == 0 || first.0.checked_add(messages.count()).is_none() {
        return Err(DecodeError::OutOfRange("published range"));
    }
    Ok(Entry::Published { stream, first, ordinal, at, stamp, messages })
}

fn decode_leased(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let duration = Duration::from_micros(cursor.varint()?);
    let count = cursor.count()?;
    let mut runs = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let range = take_range(cursor, from)?;
        from = range.first.0;
        runs.push(LeasedRun { range, grant: Grant(cursor.varint()?) });
    }
    Ok(Entry::Leased { group, at, duration, runs })
}

fn take_texts(cursor: &mut Cursor<'_>) -> Result<Vec<Arc<str>>, DecodeError> {
    let count = cursor.count()?;
    (0..count).map(|_| Ok(Arc::from(cursor.text()?))).collect()
}

/// The failure, and the flags that are not its own.
fn take_failure(
    cursor: &mut Cursor<'_>,
    at: Timestamp,
    texts: &[Arc<str>],
) -> Result<(Failure, u8), DecodeError> {
    let head = cursor.byte()?;
    if head & 0x80 != 0 {
        return Err(DecodeError::UnknownField { field: head.into() });
    }
    let cause = Cause::decode(head & blame::CAUSE)?;
    let at = take_time(cursor, at)?;
    let attempt = cursor.varint_u32()?;
    let mut text = |present: u8| -> Result<Option<Arc<str>>, DecodeError> {
        if head & present == 0 {
            return Ok(None);
        }
        let number = usize::try_from(cursor.varint()?).unwrap_or(usize::MAX);
        texts.get(number).cloned().map(Some).ok_or(DecodeError::OutOfRange("number of a text"))
    };
    let failure =
        Failure { at, attempt, cause, reason: text(blame::REASON)?, consumer: text(blame::CONSUMER)? };
    Ok((failure, head))
}

fn decode_failed(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let texts = take_texts(cursor)?;
    let count = cursor.count()?;
    let mut messages = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let seq = take_seq(cursor, from)?;
        from = seq.0;
        let until = take_time(cursor, at)?;
        let (failure, _) = take_failure(cursor, at, &texts)?;
        messages.push(FailedMessage { seq, until, failure });
    }
    Ok(Entry::Failed { group, at, messages })
}

fn decode_parked(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let at = Timestamp(cursor.varint()?);
    let texts = take_texts(cursor)?;
    let count = cursor.count()?;
    let mut messages = Vec::with_capacity(count);
    let mut from = 0;
    for _ in 0..count {
        let seq = take_seq(cursor, from)?;
        from = seq.0;
        let (failure, flags) = take_failure(cursor, at, &texts)?;
        let key = if flags & blame::KEY != 0 { Some(KeyHash(cursor.u64()?)) } else { None };
        messages.push(ParkedMessage { seq, key, failure });
    }
    Ok(Entry::Parked { group, at, messages })
}

impl Work {
    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Work, DecodeError> {
        match cursor.byte()? {
            1 => Ok(Work::Replay),
            2 => Ok(Work::Discard),
            3 => {
                let name = cursor.text()?;
                Ok(Work::Move { to: Some(name).filter(|name| !name.is_empty()).map(StreamName::stored) })
            }
            4 => Ok(Work::MoveParked { to: StreamName::stored(cursor.text()?) }),
            _ => Err(DecodeError::OutOfRange("work of a job")),
        }
    }
}

impl JobEnd {
    fn decode(cursor: &mut Cursor<'_>) -> Result<JobEnd, DecodeError> {
        match cursor.byte()? {
            0 => Ok(JobEnd::Done),
            1 => Ok(JobEnd::Cancelled),
            2 => Ok(JobEnd::Failed(JobFailure::decode(cursor)?)),
            _ => Err(DecodeError::OutOfRange("end of a job")),
        }
    }
}

impl JobFailure {
    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<JobFailure, DecodeError> {
        match cursor.byte()? {
            0 => Ok(JobFailure::NoDestination),
            1 => Ok(JobFailure::NoOrigin),
            2 => Ok(JobFailure::Refused(Arc::from(cursor.text()?))),
            _ => Err(DecodeError::OutOfRange("failure of a job")),
        }
    }
}

fn decode_job_started(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let group = take_group(cursor)?;
    let job = JobId(cursor.varint_u32()?);
    let at = Timestamp(cursor.varint()?);
    let work = Work::decode(cursor)?;
    let limit = take_some(cursor)?;
    let burst = cursor.varint_u32()?;
    let rate = if burst > 0 {
        let rate = Rate { per_second: f64::from_bits(cursor.u64()?), burst };
        rate.check("rate").map_err(|_| DecodeError::OutOfRange("rate of a job"))?;
        Some(rate)
    } else {
        None
    };
    let selection = match cursor.byte()? {
        0 => Selection::All,
        1 => Selection::Reason(Arc::from(cursor.text()?)),
        2 => Selection::Seqs(take_ranges(cursor)?),
        _ => return Err(DecodeError::OutOfRange("selection of a job")),
    };
    Ok(Entry::JobStarted { group, job, at, work, selection, limit, rate })
}
