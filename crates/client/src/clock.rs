//! The one place where the client reads a clock: how long something has been tried, and when to try it again.
//! No time that a message carries comes from here.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

/// Longer than any program runs.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The runtime's clock, which a test can hold still.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// When so much time has passed.
pub(crate) fn after(time: Duration) -> Instant {
    let now = now();
    now.checked_add(time.min(FAR)).unwrap_or(now)
}
