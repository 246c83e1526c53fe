//! The time of commands that talk to a server. `forebay serve` has the broker's clock.

use std::ops::Add;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the machine's date as of its start, and from then on monotonic time: it never goes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    date: Duration,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        let date = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), date }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(micros(self.date + self.started.elapsed()))
    }
}

/// Microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub(crate) u64);

impl Timestamp {
    /// The time from `earlier` to this; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(at: SystemTime) -> Timestamp {
        Timestamp(micros(at.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(duration)))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
