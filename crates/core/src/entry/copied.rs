//! Copies of messages, made so that the front of the log can go. A copy keeps all that its message was:
//! position, position in the shard, time of publish, and what the core knows of it.
//!
//! Body of the entry: `stream`, then runs until it ends. A run is messages that were published together
//! and are copied together: `flags (1 byte; 1: plain messages of one size) | count | position | position in
//! the shard | time | size, or the messages one by one`. Positions and times are distances from the run
//! before, so that a run takes no more than the `Published` entry that it is a part of.

use crate::codec::{Cursor, DecodeError, put_varint, unzigzag, zigzag};
use crate::entry::decode::take_message;
use crate::entry::encode::{put_entry, put_message};
use crate::entry::form::UNIFORM;
use crate::entry::{Entry, MessageMeta, kind};
use crate::types::{Ordinal, Seq, StreamId, Timestamp};

/// A message that is stored once more, as it was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedMessage {
    pub seq: Seq,
    pub ordinal: Ordinal,
    /// When it was published.
    pub at: Timestamp,
    pub meta: MessageMeta,
}

/// Messages in one entry at most, so that a few bytes cannot claim to be very many.
pub const COPIED_MAX: usize = 1 << 16;

/// Whether two messages that follow each other were published together.
fn go_together(one: &CopiedMessage, next: &CopiedMessage) -> bool {
    let follows = |one: u64, next: u64| next.checked_sub(1) == Some(one);
    follows(one.seq.0, next.seq.0) && follows(one.ordinal.0, next.ordinal.0) && next.at == one.at
}

/// Messages that were published together, one run after the other: they are consecutive and of one time.
pub fn copied_runs(messages: &[CopiedMessage]) -> impl Iterator<Item = &[CopiedMessage]> {
    messages.chunk_by(go_together)
}

pub fn put_copied(out: &mut Vec<u8>, stream: StreamId, messages: &[CopiedMessage]) {
    assert!(!messages.is_empty() && messages.len() <= COPIED_MAX, "an entry has a few messages");
    put_entry(out, kind::COPIED, |out| {
        put_varint(out, stream.0.into());
        let mut from = [0; 3];
        for run in copied_runs(messages) {
            let first = run[0];
            let uniform =
                run.iter().all(|message| message.meta.size == first.meta.size && message.meta.is_plain());
            out.push(if uniform { UNIFORM } else { 0 });
            put_varint(out, run.len() as u64);
            for (from, value) in from.iter_mut().zip([first.seq.0, first.ordinal.0, first.at.0]) {
                put_varint(out, zigzag(value.wrapping_sub(*from) as i64));
                *from = value;
            }
            if uniform {
                put_varint(out, first.meta.size.into());
            } else {
                run.iter().for_each(|message| put_message(out, &message.meta));
            }
        }
    });
}

pub(super) fn decode_copied(cursor: &mut Cursor<'_>) -> Result<Entry, DecodeError> {
    let stream = StreamId(cursor.varint_u32()?);
    let mut messages: Vec<CopiedMessage> = Vec::new();
    let mut from = [0u64; 3];
    while !cursor.is_at_end() {
        let flags = cursor.byte()?;
        let count = cursor.varint()?;
        if count == 0 || count > (COPIED_MAX - messages.len()) as u64 {
            return Err(DecodeError::OutOfRange("number of copies"));
        }
        for from in &mut from {
            let value = from.checked_add_signed(unzigzag(cursor.varint()?));
            *from = value.ok_or(DecodeError::OutOfRange("place of a copy"))?;
        }
        let [seq, ordinal, at] = from;
        if seq == 0 || seq.checked_add(count).is_none() || ordinal.checked_add(count).is_none() {
            return Err(DecodeError::OutOfRange("place of a copy"));
        }
        let size = match flags {
            UNIFORM => Some(cursor.varint_u32()?),
            0 => None,
            _ => return Err(DecodeError::UnknownField { field: flags.into() }),
        };
        for n in 0..count {
            let meta = match size {
                Some(size) => MessageMeta::plain(size),
                None => take_message(cursor)?,
            };
            let (seq, ordinal) = (Seq(seq + n), Ordinal(ordinal + n));
            messages.push(CopiedMessage { seq, ordinal, at: Timestamp(at), meta });
        }
    }
    if messages.is_empty() {
        return Err(DecodeError::OutOfRange("number of copies"));
    }
    Ok(Entry::Copied { stream, messages })
}
