//! Times and texts of the wire in the words of this crate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn duration(millis: Option<u64>) -> Option<Duration> {
    millis.map(Duration::from_millis)
}

pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

pub(super) fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// A text that may be empty, and then says nothing.
pub(super) fn some_text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
