//! The core's view of messages.

use crate::codec::DecodeError;
use crate::types::{IdHash, KeyHash, Seq, StreamId, Timestamp};

/// Messages of one `Published` entry, from its first position on.
#[derive(Debug, Clone, PartialEq)]
pub enum Messages {
    /// Plain messages, all of one size.
    Uniform {
        count: u32,
        size: u32,
    },
    Each(Vec<MessageMeta>),
}

/// The core's view of a message. Never its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageMeta {
    /// Bytes of its content in the payload section.
    pub size: u32,
    pub id: Option<IdHash>,
    pub key: Option<KeyHash>,
    pub priority: u8,
    pub not_before: Option<Timestamp>,
    pub expires: Option<Timestamp>,
    pub origin: Option<Origin>,
}

/// Where a message that was moved comes from, as far as its receivers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// When it was published first.
    pub published: Timestamp,
    /// How often it was handed out before it came here.
    pub receives: u32,
    /// Not known of messages that were moved when this was not written down yet.
    pub trail: Option<MoveTrail>,
}

/// The streams that a moved message comes from. They may be gone, and their numbers are not given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTrail {
    /// Where it was published first.
    pub home: StreamId,
    /// As which message there.
    pub seq: Seq,
    /// The stream that it was moved from last.
    pub from: StreamId,
    /// Why it was moved last.
    pub why: MoveReason,
}

/// Why a message was moved to another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MoveReason {
    /// A consumer or an operator asked for it.
    #[default]
    Asked = 0,
    /// Its retries were used up.
    Exhausted = 1,
    /// It expired.
    Expired = 2,
    /// The stream was full.
    Dropped = 3,
}

impl MoveReason {
    /// Whether it was moved without a consumer: it had expired, or was dropped.
    pub fn is_end(self) -> bool {
        matches!(self, MoveReason::Expired | MoveReason::Dropped)
    }

    pub(crate) fn decode(byte: u8) -> Result<MoveReason, DecodeError> {
        match byte {
            0 => Ok(MoveReason::Asked),
            1 => Ok(MoveReason::Exhausted),
            2 => Ok(MoveReason::Expired),
            3 => Ok(MoveReason::Dropped),
            _ => Err(DecodeError::OutOfRange("reason of a move")),
        }
    }
}

/// It is copied several times on the way of every message, also of those that nothing of this is said about. Up to this
/// size a copy is a few instructions, and beyond it a call.
const _: () = assert!(size_of::<MessageMeta>() <= 128);

impl MessageMeta {
    pub fn plain(size: u32) -> MessageMeta {
        MessageMeta { size, ..MessageMeta::default() }
    }

    pub(super) fn is_plain(&self) -> bool {
        !self.is_special() && self.id.is_none() && self.key.is_none() && self.origin.is_none()
    }

    /// Whether its stream has to know more of it than its size and its id.
    pub(crate) fn is_special(&self) -> bool {
        self.priority != 0 || self.not_before.is_some() || self.expires.is_some()
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
