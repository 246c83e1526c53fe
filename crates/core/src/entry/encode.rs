//! How entries are written.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Entry, FailedMessage, Failure, JobEnd, JobFailure, LeasedRun, MessageMeta, MoveReason, MoveTrail,
    ParkedMessage, Selection, Work, blame, flag, form, kind, purge,
};
use crate::codec::{put_bytes, put_varint, zigzag};
use crate::entry::{Ending, put_copied};
use crate::pace::Rate;
use crate::producers::ProducerStamp;
use crate::settings::Logged;
use crate::types::{GroupId, JobId, Ordinal, Seq, SeqRange, StreamId, Timestamp, micros};

/// Writes one entry: the header, then what `body` adds.
pub(super) fn put_entry(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
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

fn put_seq(out: &mut Vec<u8>, seq: Seq, from: &mut u64) {
    put_varint(out, zigzag(seq.0.wrapping_sub(*from) as i64));
    *from = seq.0;
}

/// A time near `at`: decisions of one turn may have been made a little before it ends.
fn put_time(out: &mut Vec<u8>, time: Timestamp, at: Timestamp) {
    put_varint(out, zigzag(time.0.wrapping_sub(at.0) as i64));
}

pub(super) fn put_message(out: &mut Vec<u8>, message: &MessageMeta) {
    let trail = message.origin.and_then(|origin| origin.trail);
    let mut flags = 0;
    for (present, flag) in [
        (message.id.is_some(), flag::ID),
        (message.key.is_some(), flag::KEY),
        (message.priority != 0, flag::PRIORITY),
        (message.not_before.is_some(), flag::NOT_BEFORE),
        (message.expires.is_some(), flag::EXPIRES),
        (message.origin.is_some(), flag::ORIGIN),
        (trail.is_some(), flag::TRAIL),
        (trail.is_some_and(|trail| trail.why != MoveReason::Asked), flag::WHY),
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
    for at in [message.not_before, message.expires].into_iter().flatten() {
        put_varint(out, at.0);
    }
    if let Some(origin) = message.origin {
        put_varint(out, origin.published.0);
        put_varint(out, origin.receives.into());
        if let Some(MoveTrail { home, seq, from, why }) = origin.trail {
            put_varint(out, home.0.into());
            put_varint(out, seq.0);
            put_varint(out, from.0.into());
            if why != MoveReason::Asked {
                out.push(why as u8);
            }
        }
    }
}

fn put_stamp(out: &mut Vec<u8>, stamp: ProducerStamp) {
    put_varint(out, stamp.producer);
    put_varint(out, stamp.epoch.into());
    put_varint(out, stamp.number);
}

/// An upper bound of the bytes that a batch's entries take beside its contents, for callers that have to keep
/// them in one frame.
pub fn published_bytes_max(messages: &[MessageMeta]) -> usize {
    /// Bytes that are written once for a batch, including the entries that make room for it.
    const BATCH: usize = 256;
    // Plain messages are the usual ones.
    let of_one = |message: &MessageMeta| {
        if message.is_plain() {
            return 6;
        }
        // Flags and size, and the optional fields that are present; times and counts take ten bytes and five.
        6 + message.id.map_or(0, |_| 16)
            + message.key.map_or(0, |_| 8)
            + usize::from(message.priority != 0)
            + message.not_before.map_or(0, |_| 10)
            + message.expires.map_or(0, |_| 10)
            + message.origin.map_or(0, |origin| 15 + origin.trail.map_or(0, |_| 21))
    };
    BATCH + messages.iter().map(of_one).sum::<usize>()
}

/// More than the entry of a note takes.
pub fn note_bytes_max(key: &[u8], value: Option<&[u8]>) -> usize {
    64 + key.len() + value.map_or(0, <[u8]>::len)
}

/// Writes a `Published` entry without building one first.
pub(crate) fn put_published(
    out: &mut Vec<u8>,
    stream: StreamId,
    first: Seq,
    ordinal: Ordinal,
    at: Timestamp,
    stamp: Option<ProducerStamp>,
    messages: &[MessageMeta],
) {
    put_entry(out, kind::PUBLISHED, |out| {
        let size = messages[0].size;
        let uniform = messages.iter().all(|message| message.size == size && message.is_plain());
        let stamped = if stamp.is_some() { form::STAMPED } else { 0 };
        out.push(stamped | if uniform { form::UNIFORM } else { 0 });
        put_varint(out, stream.0.into());
        put_varint(out, first.0);
        put_varint(out, ordinal.0);
        put_varint(out, at.0);
        if let Some(stamp) = stamp {
            put_stamp(out, stamp);
        }
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

/// `group | ranges | when`: the time is last, since it was not there once.
fn put_handed(out: &mut Vec<u8>, group: GroupId, at: Timestamp, ranges: &[SeqRange]) {
    put_entry(out, kind::HANDED, |out| {
        put_varint(out, group.0.into());
        put_ranges(out, ranges);
        put_varint(out, at.0);
    });
}

fn put_acked(out: &mut Vec<u8>, group: GroupId, ranges: &[SeqRange]) {
    put_group_ranges(out, kind::ACKED, group, ranges);
}

fn put_returned(out: &mut Vec<u8>, group: GroupId, ranges: &[SeqRange]) {
    put_group_ranges(out, kind::RETURNED, group, ranges);
}

fn put_skipped(out: &mut Vec<u8>, group: GroupId, how: Ending, ranges: &[SeqRange]) {
    put_entry(out, kind::SKIPPED, |out| {
        put_varint(out, group.0.into());
        out.push(how as u8);
        put_ranges(out, ranges);
    });
}

/// `Replayed` or `Discarded`: messages leave the parked list.
fn put_taken_out(out: &mut Vec<u8>, group: GroupId, replayed: bool, job: JobId, ranges: &[SeqRange]) {
    put_entry(out, if replayed { kind::REPLAYED } else { kind::DISCARDED }, |out| {
        put_varint(out, group.0.into());
        put_varint(out, job.0.into());
        put_ranges(out, ranges);
    });
}

fn put_leased(out: &mut Vec<u8>, group: GroupId, at: Timestamp, duration: Duration, runs: &[LeasedRun]) {
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

fn put_extended(out: &mut Vec<u8>, group: GroupId, at: Timestamp, deadline: Timestamp, ranges: &[SeqRange]) {
    put_timed_ranges(out, kind::EXTENDED, group, at, deadline, ranges);
}

fn put_snoozed(out: &mut Vec<u8>, group: GroupId, at: Timestamp, until: Timestamp, ranges: &[SeqRange]) {
    put_timed_ranges(out, kind::SNOOZED, group, at, until, ranges);
}

/// `group | when it was decided | another time | ranges`.
fn put_timed_ranges(
    out: &mut Vec<u8>,
    kind: u8,
    group: GroupId,
    at: Timestamp,
    time: Timestamp,
    ranges: &[SeqRange],
) {
    put_entry(out, kind, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        put_time(out, time, at);
        put_ranges(out, ranges);
    });
}

/// The texts that some failures name, each once, and after them the failures name them by number.
fn put_texts<'a>(out: &mut Vec<u8>, failures: impl Iterator<Item = &'a Failure>) -> Vec<Arc<str>> {
    let mut texts: Vec<Arc<str>> = Vec::new();
    for failure in failures {
        for text in [&failure.reason, &failure.consumer].into_iter().flatten() {
            // Failures of one turn mostly share their few texts, and the newest is the likeliest.
            if !texts.iter().rev().any(|known| Arc::ptr_eq(known, text) || known == text) {
                texts.push(text.clone());
            }
        }
    }
    put_varint(out, texts.len() as u64);
    for text in &texts {
        put_bytes(out, text.as_bytes());
    }
    texts
}

/// `cause and flags | time | attempt | reason | consumer`.
fn put_failure(out: &mut Vec<u8>, failure: &Failure, flags: u8, at: Timestamp, texts: &[Arc<str>]) {
    let mut head = failure.cause as u8 | flags;
    head |= if failure.reason.is_some() { blame::REASON } else { 0 };
    head |= if failure.consumer.is_some() { blame::CONSUMER } else { 0 };
    out.push(head);
    put_time(out, failure.at, at);
    put_varint(out, failure.attempt.into());
    for text in [&failure.reason, &failure.consumer].into_iter().flatten() {
        let number = texts.iter().position(|known| known == text).expect("every text was collected");
        put_varint(out, number as u64);
    }
}

fn put_failed(out: &mut Vec<u8>, group: GroupId, at: Timestamp, messages: &[FailedMessage]) {
    put_entry(out, kind::FAILED, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        let texts = put_texts(out, messages.iter().map(|message| &message.failure));
        put_varint(out, messages.len() as u64);
        let mut from = 0;
        for message in messages {
            put_seq(out, message.seq, &mut from);
            put_time(out, message.until, at);
            put_failure(out, &message.failure, 0, at, &texts);
        }
    });
}

fn put_parked(out: &mut Vec<u8>, group: GroupId, at: Timestamp, messages: &[ParkedMessage]) {
    put_entry(out, kind::PARKED, |out| {
        put_varint(out, group.0.into());
        put_varint(out, at.0);
        let texts = put_texts(out, messages.iter().map(|message| &message.failure));
        put_varint(out, messages.len() as u64);
        let mut from = 0;
        for message in messages {
            put_seq(out, message.seq, &mut from);
            let flags = if message.key.is_some() { blame::KEY } else { 0 };
            put_failure(out, &message.failure, flags, at, &texts);
            if let Some(key) = message.key {
                out.extend_from_slice(&key.0.to_le_bytes());
            }
        }
    });
}

/// Zero in front, or the burst and then the rate.
fn put_rate(out: &mut Vec<u8>, rate: Option<Rate>) {
    put_varint(out, rate.map_or(0, |rate| rate.burst.into()));
    if let Some(rate) = rate {
        out.extend_from_slice(&rate.per_second.to_bits().to_le_bytes());
    }
}

/// One more than the number, and zero for none.
fn put_some(out: &mut Vec<u8>, number: Option<u64>) {
    put_varint(out, number.map_or(0, |number| number.saturating_add(1)));
}

fn put_selection(out: &mut Vec<u8>, selection: &Selection) {
    match selection {
        Selection::All => out.push(0),
        Selection::Reason(reason) => {
            out.push(1);
            put_bytes(out, reason.as_bytes());
        }
        Selection::Seqs(ranges) => {
            out.push(2);
            put_ranges(out, ranges);
        }
    }
}

impl Work {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Work::Replay => out.push(1),
            Work::Discard => out.push(2),
            Work::Move { to } => {
                out.push(3);
                put_bytes(out, to.as_ref().map_or(b"", |to| to.as_str().as_bytes()));
            }
            Work::MoveParked { to } => {
                out.push(4);
                put_bytes(out, to.as_str().as_bytes());
            }
        }
    }
}

impl JobEnd {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            JobEnd::Done => out.push(0),
            JobEnd::Cancelled => out.push(1),
            JobEnd::Failed(failure) => {
                out.push(2);
                failure.encode(out);
            }
        }
    }
}

impl JobFailure {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            JobFailure::NoDestination => out.push(0),
            JobFailure::NoOrigin => out.push(1),
            JobFailure::Refused(why) => {
                out.push(2);
                put_bytes(out, why.as_bytes());
            }
        }
    }
}

impl Entry {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Published { stream, first, ordinal, at, stamp, messages } => {
                let messages: Vec<MessageMeta> = messages.iter().collect();
                put_published(out, *stream, *first, *ordinal, *at, *stamp, &messages);
            }
            Entry::Copied { stream, messages } => put_copied(out, *stream, messages),
            Entry::Handed { group, at, ranges } => put_handed(out, *group, *at, ranges),
            Entry::Leased { group, at, duration, runs } => put_leased(out, *group, *at, *duration, runs),
            Entry::Acked { group, ranges } => put_acked(out, *group, ranges),
            Entry::Failed { group, at, messages } => put_failed(out, *group, *at, messages),
            Entry::Returned { group, ranges } => put_returned(out, *group, ranges),
            Entry::Snoozed { group, at, until, ranges } => put_snoozed(out, *group, *at, *until, ranges),
            Entry::Parked { group, at, messages } => put_parked(out, *group, *at, messages),
            Entry::Skipped { group, how, ranges } => put_skipped(out, *group, *how, ranges),
            Entry::Replayed { group, job, ranges } => put_taken_out(out, *group, true, *job, ranges),
            Entry::Discarded { group, job, ranges } => put_taken_out(out, *group, false, *job, ranges),
            Entry::Extended { group, at, deadline, ranges } => {
                put_extended(out, *group, *at, *deadline, ranges);
            }
            rare => put_entry(out, rare.kind(), |out| rare.put_rare(out)),
        }
    }

    /// The kinds that are written one at a time, and seldom.
    fn kind(&self) -> u8 {
        match self {
            Entry::Opened { .. } => kind::OPENED,
            Entry::StreamCreated { .. } => kind::STREAM_CREATED,
            Entry::GroupCreated { .. } => kind::GROUP_CREATED,
            Entry::Released { .. } => kind::RELEASED,
            Entry::Moving { .. } => kind::MOVING,
            Entry::JobStarted { .. } => kind::JOB_STARTED,
            Entry::JobEnded { .. } => kind::JOB_ENDED,
            Entry::JobPassed { .. } => kind::JOB_PASSED,
            Entry::Stayed { .. } => kind::STAYED,
            Entry::Sent { .. } => kind::SENT,
            Entry::GroupChanged { .. } => kind::GROUP_CHANGED,
            Entry::StreamChanged { .. } => kind::STREAM_CHANGED,
            Entry::GroupPaused { .. } => kind::GROUP_PAUSED,
            Entry::Reset { .. } => kind::RESET,
            Entry::Purged { .. } => kind::PURGED,
            Entry::GroupDeleted { .. } => kind::GROUP_DELETED,
            Entry::StreamDeleted { .. } => kind::STREAM_DELETED,
            Entry::NotePut { .. } => kind::NOTE_PUT,
            Entry::NoteRemoved { .. } => kind::NOTE_REMOVED,
            Entry::Redelayed { .. } => kind::REDELAYED,
            Entry::ReaderMoved { .. } => kind::READER_MOVED,
            Entry::KeysFound { .. } => kind::KEYS_FOUND,
            Entry::Numbered { .. } => kind::NUMBERED,
            _ => unreachable!("the frequent kinds write themselves"),
        }
    }

    fn put_rare(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Opened { epoch, at } => {
                put_varint(out, epoch.0.into());
                put_varint(out, at.0);
            }
            Entry::StreamCreated { stream, name, settings, at } => {
                put_varint(out, stream.0.into());
                put_bytes(out, name.as_str().as_bytes());
                put_varint(out, at.0);
                settings.encode(out);
            }
            Entry::GroupCreated { group, stream, name, settings, floor, at } => {
                put_varint(out, group.0.into());
                put_varint(out, stream.0.into());
                put_bytes(out, name.as_str().as_bytes());
                put_varint(out, floor.0);
                put_varint(out, at.0);
                settings.encode(out);
            }
            Entry::Released { stream, first } => {
                put_varint(out, stream.0.into());
                put_varint(out, first.0);
            }
            Entry::Moving { group, route, seqs } => {
                put_varint(out, group.0.into());
                put_bytes(out, route.name());
                put_ranges(out, seqs);
                if !route.is_usual() {
                    route.put_rest(out);
                }
            }
            Entry::JobStarted { group, job, at, work, selection, limit, rate } => {
                put_varint(out, group.0.into());
                put_varint(out, job.0.into());
                put_varint(out, at.0);
                work.encode(out);
                put_some(out, *limit);
                put_rate(out, *rate);
                put_selection(out, selection);
            }
            Entry::JobEnded { group, job, at, how } => {
                put_varint(out, group.0.into());
                put_varint(out, job.0.into());
                put_varint(out, at.0);
                how.encode(out);
            }
            Entry::JobPassed { group, job, ranges } => {
                put_varint(out, group.0.into());
                put_varint(out, job.0.into());
                put_ranges(out, ranges);
            }
            Entry::Sent { group, route, ranges } => {
                put_varint(out, group.0.into());
                put_bytes(out, route.name());
                route.put_rest(out);
                put_ranges(out, ranges);
            }
            Entry::Stayed { group, ranges } => {
                put_varint(out, group.0.into());
                put_ranges(out, ranges);
            }
            Entry::GroupChanged { group, settings, at } => {
                put_varint(out, group.0.into());
                put_varint(out, at.0);
                settings.encode(out);
            }
            Entry::StreamChanged { stream, settings, at } => {
                put_varint(out, stream.0.into());
                put_varint(out, at.0);
                settings.encode(out);
            }
            Entry::GroupPaused { group, paused } => {
                put_varint(out, group.0.into());
                out.push(u8::from(*paused));
            }
            Entry::Reset { group, floor, parked } => {
                put_varint(out, group.0.into());
                put_varint(out, floor.0);
                out.push(u8::from(*parked));
            }
            Entry::Purged { stream, through, parked, ids } => {
                put_varint(out, stream.0.into());
                put_varint(out, through.0);
                out.push(if *parked { purge::PARKED } else { 0 } | if *ids { purge::IDS } else { 0 });
            }
            Entry::GroupDeleted { group } => put_varint(out, group.0.into()),
            Entry::StreamDeleted { stream, last } => {
                put_varint(out, stream.0.into());
                put_varint(out, last.0);
            }
            Entry::NotePut { door, key, version, value, expires } => {
                out.push(*door);
                put_bytes(out, key);
                put_varint(out, *version);
                put_some(out, expires.map(|at| at.0));
                put_bytes(out, value);
            }
            Entry::NoteRemoved { door, key } => {
                out.push(*door);
                put_bytes(out, key);
            }
            Entry::Numbered { stream, at, stamp, count, seqs } => {
                put_varint(out, stream.0.into());
                put_varint(out, at.0);
                put_stamp(out, *stamp);
                put_varint(out, *count);
                put_varint(out, seqs.map_or(0, |seqs| seqs.count()));
                if let Some(seqs) = seqs {
                    put_varint(out, seqs.first.0);
                }
            }
            Entry::KeysFound { group, keys } => {
                put_varint(out, group.0.into());
                put_varint(out, keys.len() as u64);
                let mut from = 0;
                for (seq, key) in keys {
                    put_seq(out, *seq, &mut from);
                    out.extend_from_slice(&key.0.to_le_bytes());
                }
            }
            Entry::Redelayed { stream, at, from, to } => {
                put_varint(out, stream.0.into());
                put_varint(out, at.0);
                put_varint(out, micros(*from));
                put_varint(out, micros(*to));
            }
            Entry::ReaderMoved { stream, name, seq } => {
                put_varint(out, stream.0.into());
                put_bytes(out, name.as_str().as_bytes());
                put_some(out, seq.map(|seq| seq.0));
            }
            _ => unreachable!("the frequent kinds write themselves"),
        }
    }
}
