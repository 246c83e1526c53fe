//! Messages that were set aside, with the records of their failures.
//!
//! They are kept in small chunks that can be shared: taking an image of a million parked messages is
//! sharing some thousand chunks, and what changes while they are written is copied first, a chunk at a
//! time. So no turn has to write them all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::entry::{Cause, Failure};
use crate::seqset::SeqSet;
use crate::texts::Texts;
use crate::types::{KeyHash, Seq, SeqRange, Timestamp};

/// Failures of one message that are remembered; the newest stay.
pub(crate) const HISTORY_MAX: usize = 5;
/// Positions that share a chunk.
const CHUNK_BITS: u32 = 8;

/// The record of a parked message beside its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    pub attempts: u32,
    /// Zero if it has no key; `None` if the group has not read it.
    pub key: Option<KeyHash>,
    /// Oldest first. The last is the one it was parked for.
    pub failures: Box<[Failure]>,
}

impl Parked {
    pub fn failure(&self) -> &Failure {
        self.failures.last().expect("a message is parked for a failure")
    }

    pub fn at(&self) -> Timestamp {
        self.failure().at
    }

    /// The consumer's reason, or else the cause.
    pub fn reason(&self) -> &str {
        reason_of(self.failure())
    }
}

fn reason_of(failure: &Failure) -> &str {
    failure.reason.as_deref().unwrap_or(failure.cause.as_str())
}

/// A few parked messages next to each other, by position.
pub(crate) type Chunk = Vec<(Seq, Parked)>;

#[derive(Debug, Default)]
pub(crate) struct ParkedStore {
    chunks: BTreeMap<u32, Arc<Chunk>>,
    /// Chunks that changed since an image took them. One that is empty is gone.
    changed: BTreeSet<u32>,
    positions: SeqSet,
    reasons: BTreeMap<Arc<str>, SeqSet>,
    ages: BTreeSet<(Timestamp, Seq)>,
}

fn chunk_of(seq: Seq) -> u32 {
    (seq.0 >> CHUNK_BITS) as u32
}

impl ParkedStore {
    pub(crate) fn count(&self) -> u64 {
        self.positions.count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(crate) fn positions(&self) -> &SeqSet {
        &self.positions
    }

    pub(crate) fn get(&self, seq: Seq) -> Option<&Parked> {
        let chunk = self.chunks.get(&chunk_of(seq))?;
        let at = chunk.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&chunk[at].1)
    }

    /// Those after `after`, in order of position.
    pub(crate) fn iter_after(&self, after: Seq) -> impl Iterator<Item = (Seq, &Parked)> + '_ {
        let chunks = self.chunks.range(chunk_of(after.next())..);
        let records = chunks.flat_map(|(_, chunk)| chunk.iter());
        records.filter(move |(seq, _)| *seq > after).map(|(seq, parked)| (*seq, parked))
    }

    /// How many are parked for each reason.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&Arc<str>, u64)> + '_ {
        self.reasons.iter().map(|(reason, seqs)| (reason, seqs.count()))
    }

    pub(crate) fn with_reason(&self, reason: &str) -> Option<&SeqSet> {
        self.reasons.get(reason)
    }

    /// The one that was parked first.
    pub(crate) fn oldest(&self) -> Option<(Timestamp, Seq)> {
        self.ages.first().copied()
    }

    pub(crate) fn insert(&mut self, seq: Seq, parked: Parked) {
        self.remove(seq);
        self.positions.insert(SeqRange::one(seq));
        self.ages.insert((parked.at(), seq));
        let reason = parked.reason();
        if !self.reasons.contains_key(reason) {
            let shared = parked.failure().reason.clone().unwrap_or_else(|| Arc::from(reason));
            self.reasons.insert(shared, SeqSet::new());
        }
        self.reasons.get_mut(reason).expect("it is there now").insert(SeqRange::one(seq));
        self.changed.insert(chunk_of(seq));
        let chunk = Arc::make_mut(self.chunks.entry(chunk_of(seq)).or_default());
        let at = chunk.partition_point(|(other, _)| *other < seq);
        chunk.insert(at, (seq, parked));
    }

    pub(crate) fn remove(&mut self, seq: Seq) -> Option<Parked> {
        let number = chunk_of(seq);
        let chunk = self.chunks.get_mut(&number)?;
        let at = chunk.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        let chunk = Arc::make_mut(chunk);
        let (_, parked) = chunk.remove(at);
        if chunk.is_empty() {
            self.chunks.remove(&number);
        }
        self.changed.insert(number);
        self.positions.remove(SeqRange::one(seq));
        self.ages.remove(&(parked.at(), seq));
        let of_reason =
            self.reasons.get_mut(parked.reason()).expect("a parked message counts for its reason");
        of_reason.remove(SeqRange::one(seq));
        if of_reason.is_empty() {
            self.reasons.remove(parked.reason());
        }
        Some(parked)
    }

    /// Says of which key a message is. False if it is not here, or that was known.
    pub(crate) fn set_key(&mut self, seq: Seq, key: KeyHash) -> bool {
        let number = chunk_of(seq);
        let Some(chunk) = self.chunks.get_mut(&number) else { return false };
        let Ok(at) = chunk.binary_search_by_key(&seq, |(seq, _)| *seq) else { return false };
        if chunk[at].1.key.is_some() {
            return false;
        }
        Arc::make_mut(chunk)[at].1.key = Some(key);
        self.changed.insert(number);
        true
    }

    /// Drops some of the records, and returns whether any are left. For lists that are not wanted any more: a
    /// million records are not dropped in one turn.
    pub(crate) fn drop_some(&mut self, count: usize) -> bool {
        for _ in 0..count.div_ceil(1 << CHUNK_BITS) {
            self.chunks.pop_first();
        }
        for _ in 0..count {
            self.ages.pop_first();
        }
        if self.chunks.is_empty() && self.ages.is_empty() {
            self.reasons.pop_first();
        }
        !(self.chunks.is_empty() && self.ages.is_empty() && self.reasons.is_empty())
    }

    /// The chunks there are, and whether each changed since it was last frozen, which it now is.
    pub(crate) fn freeze(&mut self) -> Vec<(u32, Arc<Chunk>, bool)> {
        let changed = std::mem::take(&mut self.changed);
        let chunks = self.chunks.iter();
        chunks.map(|(&number, chunk)| (number, chunk.clone(), changed.contains(&number))).collect()
    }

    /// No image has any of the chunks.
    pub(crate) fn forget_taken(&mut self) {
        self.changed.extend(self.chunks.keys());
    }

    /// Takes in a chunk from an image.
    pub(crate) fn load(&mut self, number: u32, bytes: &[u8], texts: &mut Texts) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let mut from = u64::from(number) << CHUNK_BITS;
        for _ in 0..cursor.count()? {
            from = from.checked_add(cursor.varint()?).ok_or(DecodeError::OutOfRange("position"))?;
            if chunk_of(Seq(from)) != number {
                return Err(DecodeError::OutOfRange("position in a chunk of parked messages"));
            }
            let attempts = cursor.varint_u32()?;
            let key = if cursor.byte()? == 1 { Some(KeyHash(cursor.u64()?)) } else { None };
            let failures = take_failures(&mut cursor, texts)?;
            if failures.is_empty() {
                return Err(DecodeError::Contradiction("a message is parked for a failure"));
            }
            self.insert(Seq(from), Parked { attempts, key, failures: failures.into() });
        }
        self.changed.remove(&number);
        Ok(())
    }
}

/// `count`, then `distance | attempts | key | failures` for each.
pub(crate) fn encode_chunk(number: u32, chunk: &Chunk, out: &mut Vec<u8>) {
    put_varint(out, chunk.len() as u64);
    let mut from = u64::from(number) << CHUNK_BITS;
    for (seq, parked) in chunk {
        put_varint(out, seq.0 - from);
        from = seq.0;
        put_varint(out, parked.attempts.into());
        out.push(u8::from(parked.key.is_some()));
        if let Some(key) = parked.key {
            out.extend_from_slice(&key.0.to_le_bytes());
        }
        put_failures(out, &parked.failures);
    }
}

/// `count`, then `at | attempt | cause | reason | consumer` for each; a text that is not there is empty.
pub(crate) fn put_failures(out: &mut Vec<u8>, failures: &[Failure]) {
    put_varint(out, failures.len() as u64);
    for failure in failures {
        put_varint(out, failure.at.0);
        put_varint(out, failure.attempt.into());
        out.push(failure.cause as u8);
        for text in [&failure.reason, &failure.consumer] {
            put_bytes(out, text.as_deref().unwrap_or_default().as_bytes());
        }
    }
}

pub(crate) fn take_failures(cursor: &mut Cursor<'_>, texts: &mut Texts) -> Result<Vec<Failure>, DecodeError> {
    let count = cursor.count()?;
    let mut failures = Vec::with_capacity(count);
    for _ in 0..count {
        failures.push(Failure {
            at: Timestamp(cursor.varint()?),
            attempt: cursor.varint_u32()?,
            cause: Cause::decode(cursor.byte()?)?,
            reason: take_text(cursor, texts)?,
            consumer: take_text(cursor, texts)?,
        });
    }
    Ok(failures)
}

fn take_text(cursor: &mut Cursor<'_>, texts: &mut Texts) -> Result<Option<Arc<str>>, DecodeError> {
    let text = cursor.text()?;
    Ok((!text.is_empty()).then(|| texts.share(text)))
}

/// A failure from the log, with texts that it shares with all others. As in an image, an empty text is left out.
pub(super) fn with_shared_texts(failure: &Failure, texts: &mut Texts) -> Failure {
    let mut share =
        |text: &Option<Arc<str>>| text.as_ref().filter(|text| !text.is_empty()).map(|text| texts.share(text));
    let (reason, consumer) = (share(&failure.reason), share(&failure.consumer));
    Failure { reason, consumer, ..failure.clone() }
}
