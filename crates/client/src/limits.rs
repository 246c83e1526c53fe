//! Limits that the server has too.

use std::time::Duration;

/// The longest time that the server puts a message off, or that a lease lasts: a leap year.
pub(crate) const YEAR: Duration = Duration::from_secs(366 * 86_400);
