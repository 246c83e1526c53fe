//! The ways of messages to other streams.

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::entry::MoveReason;
use crate::settings::MoveTerms;
use crate::types::{JobId, StreamName};

/// Where a message goes that is on its way to another stream, and on which terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// By itself.
    Alone { to: StreamName, terms: MoveTerms, why: MoveReason },
    /// With others, by a job. With no stream it goes back to the one that it was moved from last.
    Job { job: JobId, to: Option<StreamName> },
}

/// Stands beside the bits of terms.
const JOB: u8 = 0x80;
/// Where the reason stands beside the bits of terms.
const WHY: u8 = 2;
const TERMS: u8 = (1 << WHY) - 1;

impl Route {
    pub fn to(&self) -> Option<&StreamName> {
        match self {
            Route::Alone { to, .. } => Some(to),
            Route::Job { to, .. } => to.as_ref(),
        }
    }

    pub fn job(&self) -> Option<JobId> {
        match self {
            Route::Alone { .. } => None,
            Route::Job { job, .. } => Some(*job),
        }
    }

    pub fn why(&self) -> MoveReason {
        match self {
            Route::Alone { why, .. } => *why,
            Route::Job { .. } => MoveReason::Asked,
        }
    }

    /// The name of the stream, and none at all for the way back.
    pub(crate) fn name(&self) -> &[u8] {
        self.to().map_or(b"", |to| to.as_str().as_bytes())
    }

    /// Whether there is nothing to say beside the name. There was nothing else once.
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self, Route::Alone { terms, why: MoveReason::Asked, .. } if *terms == MoveTerms::default())
    }

    /// Writes the route without the destination's name: `bits of terms and reason, or 128 | job, after 128`.
    pub(crate) fn put_rest(&self, out: &mut Vec<u8>) {
        match self {
            Route::Alone { terms, why, .. } => out.push(terms.bits() | (*why as u8) << WHY),
            Route::Job { job, .. } => {
                out.push(JOB);
                put_varint(out, job.0.into());
            }
        }
    }

    pub(crate) fn take_rest(name: &str, cursor: &mut Cursor<'_>) -> Result<Route, DecodeError> {
        match cursor.byte()? {
            JOB => Ok(Route::Job { job: JobId(cursor.varint_u32()?), to: None }.named(name)),
            bits => {
                let (terms, why) = (move_terms(bits & TERMS)?, MoveReason::decode(bits >> WHY)?);
                Ok(Route::Alone { to: StreamName::stored(name), terms, why })
            }
        }
    }

    /// The same to where a name says.
    pub(crate) fn named(self, name: &str) -> Route {
        let to = Some(name).filter(|name| !name.is_empty()).map(StreamName::stored);
        match self {
            Route::Alone { terms, why, .. } => Route::Alone { to: StreamName::stored(name), terms, why },
            Route::Job { job, .. } => Route::Job { job, to },
        }
    }

    /// The route of which nothing but the name was written.
    pub(crate) fn usual(name: &str) -> Route {
        Route::Alone { to: StreamName::stored(name), terms: MoveTerms::default(), why: MoveReason::Asked }
    }
}

fn move_terms(bits: u8) -> Result<MoveTerms, DecodeError> {
    MoveTerms::from_bits(bits.into()).ok_or(DecodeError::OutOfRange("terms of a move"))
}
