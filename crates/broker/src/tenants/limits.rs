//! The limits that there are, and how a credential and the file say them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::{TENANT_PATTERNS_MAX, TENANTS_MAX};
use crate::access::Glob;

/// Before the pattern of streams.
const STREAMS: &str = "stream:";
/// The longest name or pattern.
const NAME_BYTES_MAX: usize = 255;

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Clients,
    Streams,
}

macro_rules! limits {
    ($($limit:ident $name:literal $subject:ident $unit:ident $sentence:literal $help:literal)*) => {
        /// A limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Limit { $($limit,)* }

        impl Limit {
            pub const ALL: [Limit; [$(Limit::$limit),*].len()] = [$(Limit::$limit),*];

            /// As the file says it.
            pub fn name(self) -> &'static str {
                match self { $(Limit::$limit => $name,)* }
            }

            pub fn subject(self) -> Subject {
                match self { $(Limit::$limit => Subject::$subject,)* }
            }

            /// For the reference.
            pub fn help(self) -> &'static str {
                match self { $(Limit::$limit => $help,)* }
            }

            fn unit(self) -> Unit {
                match self { $(Limit::$limit => Unit::$unit,)* }
            }

            /// The subject of a refusal.
            pub(super) fn sentence(self) -> &'static str {
                match self { $(Limit::$limit => $sentence,)* }
            }
        }
    };
}

// A limit, its name, its subject, the unit of its value, the beginning of a refusal, and the meaning.
limits! {
    Connections "connections" Clients Number "the number of connections of the client"
        "Connections at once."
    Requests "requests" Clients Number "the number of requests a second of the client"
        "Requests a second, of any kind; a call that streams is one."
    Bytes "bytes" Clients Size "the number of bytes a second of the client"
        "Bytes a second that the client sends in bodies of requests."
    InFlight "in_flight" Clients Number "the number of calls at once of the client"
        "Calls at once: also a receive that waits, a consumer and a producer that are connected."
    Streams "streams" Streams Number "the number of streams"
        "Streams that exist."
    StoredBytes "stored_bytes" Streams Size "the number of bytes stored in the streams"
        "Bytes that the streams hold together."
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Number,
    Size,
}

/// Why a text has no limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    #[error("a limit must be one of {}, with `=` and its value. limit=`{word}`", Names(*subject))]
    Unknown { word: String, subject: Subject },
    #[error(
        "{limit} must be a whole number of at least 1, with a unit (B, KiB, MiB, GiB or TiB) if it is a size. \
         value=`{value}`"
    )]
    Value { limit: &'static str, value: String },
    #[error("a limit must be given once. limit=`{limit}`")]
    Twice { limit: &'static str },
}

/// Why a file has no limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    #[error(
        "a line must be a client or `stream:PATTERN`, of 1 to {NAME_BYTES_MAX} bytes, a space and its limits. \
         line=`{line}`"
    )]
    Line { line: usize },
    #[error("{error} line=`{line}`")]
    Limits { line: usize, error: LimitError },
    #[error("{name} must be given once. line=`{line}`")]
    Twice { line: usize, name: String },
    #[error("there must be at most {TENANTS_MAX} lines, and {TENANT_PATTERNS_MAX} with patterns")]
    TooMany,
}

/// The limits of a subject.
struct Names(Subject);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Limit::ALL.iter().filter(|limit| limit.subject() == self.0).collect();
        for (n, limit) in names.iter().enumerate() {
            write!(f, "{}{}", if n > 0 { ", " } else { "" }, limit.name())?;
        }
        Ok(())
    }
}

type Values = [Option<u64>; Limit::ALL.len()];

/// Limits of a client: `requests=100,bytes=1MiB`. At least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits(pub(super) Values);

impl FromStr for ClientLimits {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<ClientLimits, LimitError> {
        read_values(Subject::Clients, text).map(ClientLimits)
    }
}

impl fmt::Display for ClientLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.0))
    }
}

/// A line of the file.
#[derive(Debug)]
pub(super) struct Line {
    /// As it is written, with `stream:`.
    pub(super) name: String,
    pub(super) subject: Subject,
    pub(super) glob: Glob,
    pub(super) values: Values,
}

pub(super) fn read(text: &str) -> Result<Vec<Line>, LimitsError> {
    let (mut lines, mut names, mut patterns) = (Vec::new(), BTreeSet::new(), 0);
    for (at, text) in text.lines().enumerate() {
        let (line, text) = (at + 1, text.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let read = read_line(line, text)?;
        if !names.insert(read.name.clone()) {
            return Err(LimitsError::Twice { line, name: read.name });
        }
        patterns += usize::from(read.subject == Subject::Streams || !read.glob.is_literal());
        lines.push(read);
        if lines.len() > TENANTS_MAX || patterns > TENANT_PATTERNS_MAX {
            return Err(LimitsError::TooMany);
        }
    }
    Ok(lines)
}

fn read_line(line: usize, text: &str) -> Result<Line, LimitsError> {
    let wrong = || LimitsError::Line { line };
    let (name, limits) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(wrong());
    }
    let (subject, pattern) = match name.strip_prefix(STREAMS) {
        Some(pattern) => (Subject::Streams, pattern),
        None => (Subject::Clients, name),
    };
    let glob = Glob::parse(pattern).ok_or_else(wrong)?;
    let values = read_values(subject, limits).map_err(|error| LimitsError::Limits { line, error })?;
    Ok(Line { name: name.to_owned(), subject, glob, values })
}

/// Limits with commas between them.
fn read_values(subject: Subject, text: &str) -> Result<Values, LimitError> {
    let mut values = [None; Limit::ALL.len()];
    for word in text.split(',').map(str::trim) {
        let unknown = || LimitError::Unknown { word: word.to_owned(), subject };
        let (limit, value) = word.split_once('=').ok_or_else(unknown)?;
        let found = Limit::ALL.into_iter().find(|of| of.name() == limit && of.subject() == subject);
        let limit = found.ok_or_else(unknown)?;
        let number = number(value, limit.unit());
        let wrong = || LimitError::Value { limit: limit.name(), value: value.to_owned() };
        if values[limit as usize].replace(number.ok_or_else(wrong)?).is_some() {
            return Err(LimitError::Twice { limit: limit.name() });
        }
    }
    Ok(values)
}

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

fn number(text: &str, unit: Unit) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match (&text[digits.len()..], unit) {
        ("", _) => 0,
        (suffix, Unit::Size) => UNITS.iter().find(|(name, _)| *name == suffix)?.1,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    // As much as a file or a counter can have.
    number.checked_mul(1 << shift).filter(|value| (1..1 << 60).contains(value))
}

/// Limits as the file says them.
pub(super) fn text(values: Values) -> String {
    let one = |(limit, value): (Limit, Option<u64>)| {
        let value = value?;
        let sizes = UNITS.iter().filter(|_| limit.unit() == Unit::Size);
        let unit = sizes.clone().find(|(_, shift)| value.trailing_zeros() >= *shift && value >> shift > 0);
        Some(match unit {
            Some((name, shift)) => format!("{}={}{name}", limit.name(), value >> shift),
            None => format!("{}={value}", limit.name()),
        })
    };
    let parts: Vec<String> = Limit::ALL.into_iter().zip(values).filter_map(one).collect();
    parts.join(",")
}
