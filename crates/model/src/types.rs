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
name! {
    /// What users call a group. Unique within its stream.
    GroupName check_group_name
}
