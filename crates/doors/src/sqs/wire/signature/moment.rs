//! Times, as they are written in signatures: `20261115T103000Z`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use forebay_core::types::Timestamp;
use forebay_wire::json::Time;

/// A second, and how it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    text: String,
    at: Timestamp,
}

impl Moment {
    /// As `X-Amz-Date` has it.
    pub(super) fn parse(text: &str) -> Option<Moment> {
        let bytes = text.as_bytes();
        let digits = |range: std::ops::Range<usize>| {
            let part = bytes.get(range)?;
            part.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(part).ok()).flatten()
        };
        if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
            return None;
        }
        let (year, month, day) = (digits(0..4)?, digits(4..6)?, digits(6..8)?);
        let (hour, minute, second) = (digits(9..11)?, digits(11..13)?, digits(13..15)?);
        let time: Time = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z").parse().ok()?;
        Some(Moment { text: text.to_owned(), at: Timestamp(time.0) })
    }

    /// As the `Date` header has it.
    pub(super) fn parse_http(text: &str) -> Option<Moment> {
        let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Moment::at(Timestamp::ZERO + since))
    }

    pub(super) fn at(at: Timestamp) -> Moment {
        let seconds = Duration::from_secs(at.since(Timestamp::ZERO).as_secs());
        let at = Timestamp::ZERO + seconds;
        // `2026-11-15T10:30:00.000000Z`, without separators and fractions.
        let full = Time(at.0).to_string();
        let text = full.split('.').next().unwrap_or_default().replace(['-', ':'], "") + "Z";
        Moment { text, at }
    }

    pub(super) fn timestamp(&self) -> Timestamp {
        self.at
    }

    /// `20261115`.
    pub(super) fn day(&self) -> &str {
        self.text.split('T').next().unwrap_or_default()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
