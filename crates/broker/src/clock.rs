//! The time, as the server tells it. The only reader of the system clock.
//!
//! Wall time is read once, when the server starts. From then on the clock advances with monotonic time,
//! so that it never runs backwards or jumps, whatever happens to the machine's idea of the date: leases
//! and delays are as long as they say. A date that was corrected meanwhile shows after the next start.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_core::types::Timestamp;

/// Copies of a clock tell the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Timestamp,
}

impl Clock {
    pub fn start() -> Clock {
        // A machine whose date is before 1970 has no date; its clock then counts from there.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), wall: Timestamp::ZERO + wall }
    }

    /// The same clock, ahead if need be, so that it tells no time before this. The machine's date may have
    /// been set back since the last run, and what was decided then must not lie in the future.
    pub fn not_before(self, latest: Timestamp) -> Clock {
        let behind = latest.since(self.now());
        Clock { wall: self.wall + behind, ..self }
    }

    pub fn now(&self) -> Timestamp {
        self.wall + self.started.elapsed()
    }

    /// The same moment for a timer; at once if it has passed.
    pub fn instant_of(&self, at: Timestamp) -> Instant {
        // A deadline that is further away than a timer can tell is looked at again when that has passed.
        self.started + at.since(self.wall).min(FAR)
    }
}

/// Further ahead than any server lives.
const FAR: Duration = Duration::from_secs(50 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_date_and_never_goes_back() {
        let clock = Clock::start();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("the date is after 1970");
        let first = clock.now();
        assert!(first.since(Timestamp::ZERO + wall) < Duration::from_secs(5));
        for _ in 0..1_000 {
            assert!(clock.now() >= first);
        }
    }

    #[test]
    fn a_date_that_was_set_back_does_not_set_it_back() {
        let clock = Clock::start();
        let ahead = clock.now() + Duration::from_secs(3_600);
        assert!(clock.not_before(ahead).now() >= ahead);
        let behind = clock.now() - Duration::from_secs(3_600);
        assert!(clock.not_before(behind).now().since(clock.now()) < Duration::from_secs(60));
    }

    #[test]
    fn a_moment_in_the_future_is_as_far_for_a_timer() {
        let clock = Clock::start();
        let now = clock.now();
        let ahead = clock.instant_of(now + Duration::from_secs(3)) - clock.instant_of(now);
        assert_eq!(ahead, Duration::from_secs(3));
        assert!(clock.instant_of(Timestamp::ZERO) <= Instant::now());
        let _ = clock.instant_of(Timestamp(u64::MAX));
    }
}
