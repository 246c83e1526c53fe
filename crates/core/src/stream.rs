//! A stream: admission, dedupe, positions.
//!
//! A message gets its position when it is admitted and exists when its frame is durable; `last` is the
//! former, `durable` the latter. Groups are told only of what is durable.

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::dedupe::Dedupe;
use crate::entry::{MessageMeta, Messages};
use crate::settings::StreamSettings;
use crate::types::{GroupId, GroupName, Ordinal, Position, Seq, SeqRange, StreamId, StreamName, Timestamp};

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) name: StreamName,
    pub(crate) settings: StreamSettings,
    pub(crate) created: Timestamp,
    /// From here on everything is kept. What lies before is kept where a group wants it.
    pub(crate) first: Seq,
    /// The last position given out.
    pub(crate) last: Seq,
    /// The last position that is durable.
    pub(crate) durable: Seq,
    /// The shard-wide position of the last message.
    pub(crate) ordinal: Ordinal,
    pub(crate) dedupe: Dedupe,
    /// By name, so that they are told of arrivals in an order that does not depend on history.
    pub(crate) groups: Vec<(GroupName, GroupId)>,
    /// Whether something changed since a snapshot took this part.
    pub(crate) changed: bool,
    /// Recovery: the part as loaded has every entry up to here.
    pub(crate) through: Position,
}

/// What became of one published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub seq: Seq,
    /// The id was seen before, and `seq` is the message it was seen with; nothing was stored.
    pub duplicate: bool,
}

impl Stream {
    pub(crate) fn new(
        id: StreamId,
        name: StreamName,
        settings: StreamSettings,
        created: Timestamp,
    ) -> Stream {
        Stream {
            id,
            name,
            settings,
            created,
            first: Seq(1),
            last: Seq::START,
            durable: Seq::START,
            ordinal: Ordinal(0),
            dedupe: Dedupe::default(),
            groups: Vec::new(),
            changed: true,
            through: Position::START,
        }
    }

    /// Decides for each message whether it is new, gives the new ones their positions, and returns which
    /// those are. `fresh` collects the messages to be stored.
    ///
    /// An id is remembered as soon as it is met, so one that comes twice in a batch is a duplicate of
    /// itself.
    pub(crate) fn publish(
        &mut self,
        now: Timestamp,
        ordinal: Ordinal,
        messages: &[MessageMeta],
        fresh: &mut Vec<MessageMeta>,
        admissions: &mut Vec<Admission>,
    ) -> Option<SeqRange> {
        let first = self.last.next();
        for message in messages {
            let next = first.plus(fresh.len() as u64);
            let known = message.id.and_then(|id| self.dedupe.find(now, id, &self.settings));
            admissions.push(Admission { seq: known.unwrap_or(next), duplicate: known.is_some() });
            if known.is_none() {
                fresh.push(*message);
                self.remember_id(now, next, message);
            }
        }
        let range = (!fresh.is_empty()).then(|| SeqRange::starting(first, fresh.len() as u64))?;
        self.advance(range, ordinal);
        Some(range)
    }

    /// What `publish` did, from the log.
    pub(crate) fn apply_published(
        &mut self,
        first: Seq,
        ordinal: Ordinal,
        at: Timestamp,
        messages: &Messages,
    ) -> Result<SeqRange, DecodeError> {
        if first != self.last.next() {
            return Err(DecodeError::Contradiction("positions of a stream have no gaps"));
        }
        if let Messages::Each(messages) = messages {
            for (n, message) in messages.iter().enumerate() {
                self.remember_id(at, first.plus(n as u64), message);
            }
        }
        if ordinal.0.checked_add(messages.count()).is_none() {
            return Err(DecodeError::OutOfRange("position in the shard"));
        }
        let range = SeqRange::starting(first, messages.count());
        self.advance(range, ordinal);
        Ok(range)
    }

    fn remember_id(&mut self, at: Timestamp, seq: Seq, message: &MessageMeta) {
        if let Some(id) = message.id {
            self.dedupe.remember(at, id, seq, &self.settings);
        }
    }

    fn advance(&mut self, range: SeqRange, ordinal: Ordinal) {
        self.last = range.last;
        self.ordinal = Ordinal(ordinal.0 + range.count() - 1);
        self.changed = true;
    }

    pub(crate) fn release(&mut self, first: Seq) {
        self.first = self.first.max(first);
        self.changed = true;
    }

    /// `first | last | ordinal`. Name and settings are in the registry, ids in parts of their own.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.first.0);
        put_varint(out, self.last.0);
        put_varint(out, self.ordinal.0);
    }

    pub(crate) fn decode(&mut self, bytes: &[u8], through: Position) -> Result<(), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        self.first = Seq(cursor.varint()?);
        self.last = Seq(cursor.varint()?);
        self.ordinal = Ordinal(cursor.varint()?);
        self.through = through;
        self.changed = false;
        Ok(())
    }
}
