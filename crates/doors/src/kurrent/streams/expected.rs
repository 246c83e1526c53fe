//! The state that a client expects to find when it writes.

use forebay_core::types::Seq;
use forebay_wire::kurrent::streams::write_options::Expected as Wire;
use tonic::Status;

use crate::kurrent::{places, status};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kurrent) enum Expected {
    Any,
    NoStream,
    /// The stream exists, with any last revision.
    Exists,
    /// Of the last event.
    Revision(u64),
}

impl Expected {
    pub(in crate::kurrent) fn read(expected: Option<Wire>) -> Result<Expected, Status> {
        match expected {
            Some(Wire::Revision(revision)) => Ok(Expected::Revision(revision)),
            Some(Wire::NoStream(_)) => Ok(Expected::NoStream),
            Some(Wire::Any(_)) => Ok(Expected::Any),
            Some(Wire::StreamExists(_)) => Ok(Expected::Exists),
            None => Err(status::invalid("an expected revision must be set")),
        }
    }

    /// As version 4 writes it, and texts of errors do.
    pub(in crate::kurrent) fn of_number(number: i64) -> Option<Expected> {
        match number {
            -1 => Some(Expected::NoStream),
            -2 => Some(Expected::Any),
            -4 => Some(Expected::Exists),
            number => u64::try_from(number).ok().map(Expected::Revision),
        }
    }

    pub(in crate::kurrent) fn number(self) -> i64 {
        match self {
            Expected::NoStream => -1,
            Expected::Any => -2,
            Expected::Exists => -4,
            Expected::Revision(revision) => i64::try_from(revision).unwrap_or(i64::MAX),
        }
    }

    /// The position at which the stream has to end, if that is expected.
    pub(in crate::kurrent) fn last(self) -> Option<Seq> {
        match self {
            Expected::Any | Expected::Exists => None,
            Expected::NoStream => Some(Seq::START),
            Expected::Revision(revision) => Some(places::seq(revision)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expectation_has_a_number() {
        for expected in [Expected::Any, Expected::NoStream, Expected::Exists, Expected::Revision(7)] {
            assert_eq!(Expected::of_number(expected.number()), Some(expected));
        }
        assert_eq!((Expected::of_number(-3), Expected::of_number(-5)), (None, None));
        assert_eq!(Expected::Revision(0).last(), Some(Seq(1)));
        assert_eq!(Expected::NoStream.last(), Some(Seq::START));
    }
}
