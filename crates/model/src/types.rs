//! The quantities and names that settings are made of.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

pub use crate::limits::NAME_BYTES_MAX;
use crate::limits::POSITION_MAX;

/// Position of a message in its stream. The first message is 1; 0 means "before everything".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    pub const START: Seq = Seq(0);

    /// A position that a client names. No stream comes near the last one, so sums with it fit.
    pub fn named(number: u64) -> Seq {
        Seq(number.min(POSITION_MAX))
    }

    pub fn next(self) -> Seq {
        Seq(self.0.saturating_add(1))
    }

    /// The position `count` further on.
    pub fn plus(self, count: u64) -> Seq {
        Seq(self.0.saturating_add(count))
    }
}

impl From<u64> for Seq {
    fn from(number: u64) -> Seq {
        Seq(number)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Microseconds since 1970, UTC, as the broker's clock tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Whole microseconds, as the log writes durations down.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    /// A time before 1970 counts as 1970.
    fn from(at: SystemTime) -> Timestamp {
        Timestamp(micros(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(duration)))
    }
}

/// Why a name was refused. Reads after the name of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    Empty,
    TooLong {
        bytes: usize,
    },
    Control,
    Reserved,
    NotReserved,
    /// Of a group: `STREAM/GROUP` is read at its last slash.
    Slash,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Empty => f.write_str("must have at least one byte"),
            NameError::TooLong { bytes } => {
                write!(f, "must have at most {NAME_BYTES_MAX} bytes. bytes=`{bytes}`")
            }
            NameError::Control => f.write_str("must not have control characters"),
            NameError::Reserved => f.write_str("must not begin with `$`, which names of the system do"),
            NameError::Slash => f.write_str("must not contain `/`, which separates stream and group"),
            NameError::NotReserved => f.write_str("must begin with `$`, as names of the system do"),
        }
    }
}

impl std::error::Error for NameError {}

fn check_name(text: &str) -> Result<(), NameError> {
    match text {
        "" => Err(NameError::Empty),
        _ if text.len() > NAME_BYTES_MAX => Err(NameError::TooLong { bytes: text.len() }),
        _ if text.chars().any(char::is_control) => Err(NameError::Control),
        _ if text.starts_with('$') => Err(NameError::Reserved),
        _ => Ok(()),
    }
}

/// Without a slash in it, a group's name ends every `STREAM/GROUP` in one way only, whatever the stream is called.
fn check_group_name(text: &str) -> Result<(), NameError> {
    check_name(text)?;
    if text.contains('/') { Err(NameError::Slash) } else { Ok(()) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// 1 to 255 bytes of UTF-8 without control characters, not beginning with `$`; a group also without `/`.
            pub fn parse(text: &str) -> Result<$name, NameError> {
                $check(text)?;
                Ok($name(text.into()))
            }

            /// A name that was checked when it was stored. It is not checked again.
            pub fn stored(text: &str) -> $name {
                $name(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<$name, NameError> {
                $name::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name! {
    /// What users call a stream.
    StreamName check_name
}
impl StreamName {
    /// A name of the system, which begins with `$` and otherwise keeps to the rules of [`StreamName::parse`]. Streams
    /// of the system belong to a part of the server. Users cannot create them or publish to them, and may read them.
    pub fn of_system(text: &str) -> Result<StreamName, NameError> {
        match check_name(text) {
            Err(NameError::Reserved) if text.len() > 1 => Ok(StreamName(text.into())),
            Err(NameError::Reserved) => Err(NameError::Empty),
            Err(error) => Err(error),
            Ok(()) => Err(NameError::NotReserved),
        }
    }

    /// A name of a user or of the system, for calls that only look.
    pub fn of_any(text: &str) -> Result<StreamName, NameError> {
        StreamName::parse(text).or_else(|error| match error {
            NameError::Reserved => StreamName::of_system(text),
            error => Err(error),
        })
    }

    pub fn is_of_system(&self) -> bool {
        self.0.starts_with('$')
    }
}
name! {
    /// What users call a group. Unique within its stream.
    GroupName check_group_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_system_are_told_apart() {
        assert_eq!(StreamName::parse("$x"), Err(NameError::Reserved));
        assert_eq!(StreamName::of_system("x"), Err(NameError::NotReserved));
        assert_eq!(StreamName::of_system("$"), Err(NameError::Empty));
        assert_eq!(StreamName::of_system("$\n"), Err(NameError::Control));
        let long = format!("${}", "x".repeat(NAME_BYTES_MAX));
        assert_eq!(StreamName::of_system(&long), Err(NameError::TooLong { bytes: NAME_BYTES_MAX + 1 }));
        for (text, of_system) in [("$x", true), ("$$x", true), ("x", false), ("x$", false)] {
            let name = StreamName::of_any(text).expect("a name");
            assert_eq!((name.as_str(), name.is_of_system()), (text, of_system));
        }
        assert_eq!(StreamName::of_any(""), Err(NameError::Empty));
    }
}
