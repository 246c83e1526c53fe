//! The rate limit: how many jobs a second may begin.

use std::time::Duration;

use tokio::time::Instant;

/// A bucket that fills steadily, and from which every job takes one drop.
#[derive(Debug)]
pub(super) struct Pace {
    per_second: f64,
    burst: f64,
    level: f64,
    /// When the level was what it is.
    at: Instant,
}

impl Pace {
    /// Starts with one job, not with a burst: workers that start together must not make one of their own.
    pub(super) fn new(now: Instant, per_second: f64, burst: u32) -> Pace {
        Pace { per_second, burst: f64::from(burst.max(1)), level: 1.0, at: now }
    }

    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + since * self.per_second).min(self.burst);
        self.at = now;
    }

    /// When the next job may begin. It may now, if that is not after `now`.
    pub(super) fn next_at(&mut self, now: Instant) -> Instant {
        self.fill(now);
        if self.level >= 1.0 {
            return now;
        }
        // A little later than needed is right; a little earlier would be asked again at once.
        now + Duration::from_secs_f64((1.0 - self.level) / self.per_second) + Duration::from_millis(1)
    }

    /// A batch may take more than there is; the next one then waits for longer.
    pub(super) fn spend(&mut self, count: usize) {
        self.level -= count as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_its_rate_and_one_burst() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 50.0, 10);
        let mut begun = Vec::new();
        for ms in 0..5_000 {
            let now = start + Duration::from_millis(ms);
            while pace.next_at(now) <= now {
                pace.spend(1);
                begun.push(ms);
            }
        }
        assert!((245..=260).contains(&begun.len()), "{}", begun.len());
        for from in 0..4_000 {
            let within = begun.iter().filter(|at| (from..from + 1_000).contains(*at)).count();
            assert!(within <= 60, "{within} in the second that begins at {from}");
        }
    }

    #[test]
    fn a_batch_is_paid_for_afterwards() {
        let now = Instant::now();
        let mut pace = Pace::new(now, 10.0, 1);
        pace.spend(11);
        let next = pace.next_at(now);
        assert!(next >= now + Duration::from_secs(1) && next < now + Duration::from_millis(1_200));
    }
}
