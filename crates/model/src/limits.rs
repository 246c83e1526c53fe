//! Limits that several crates keep to.

use std::time::Duration;

/// The longest delay, lease and window.
pub const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// The longest age that a message may be kept for.
pub const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);
/// The log counts in microseconds, so a shorter time would be none.
pub const INSTANT: Duration = Duration::from_micros(1);

/// The slowest and the fastest rate, for each second.
pub const PER_SECOND_MIN: f64 = 0.001;
pub const PER_SECOND_MAX: f64 = 10_000_000.0;

/// The highest priority. The lowest is 0.
pub const PRIORITY_MAX: u8 = 9;
/// The highest position that a client can name.
pub const POSITION_MAX: u64 = u64::MAX >> 1;
/// The longest stream or group name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;
