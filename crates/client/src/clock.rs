//! The only place where the SDK reads a clock: how long something has been tried, and when to try it again.
//! Times that messages carry do not come from here.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

/// Longer than any program runs.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The runtime's clock, which a test can pause.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time this long from now.
pub(crate) fn after(time: Duration) -> Instant {
    let now = now();
    now.checked_add(time.min(FAR)).unwrap_or(now)
}
