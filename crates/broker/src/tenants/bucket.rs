//! A rate, with a second's worth to spare.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::types::Timestamp;

/// As much may come at once as otherwise comes in this time.
const SPARE: u64 = 1_000_000_000;

/// When everything that has come would have come at the steady rate, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Bucket(AtomicU64);

impl Bucket {
    /// Takes one, or says how long the client has to wait for one.
    pub(super) fn take(&self, now: Timestamp, rate: u64) -> Result<(), Duration> {
        let (now, cost) = (nanos(now), cost(1, rate));
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
            Some(until.max(now) + cost).filter(|after| *after <= now + SPARE)
        });
        match taken {
            Ok(_) => Ok(()),
            Err(until) => Err(Duration::from_nanos((until + cost).saturating_sub(now + SPARE).max(1))),
        }
    }

    /// Takes so many, also if there are fewer: the bucket is in debt then.
    pub(super) fn charge(&self, now: Timestamp, rate: u64, count: u64) {
        let (now, cost) = (nanos(now), cost(count, rate));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
            Some(until.max(now).saturating_add(cost))
        });
    }

    /// How long there is nothing to take.
    pub(super) fn debt(&self, now: Timestamp) -> Option<Duration> {
        let over = self.0.load(Ordering::Relaxed).saturating_sub(nanos(now) + SPARE);
        (over > 0).then(|| Duration::from_nanos(over))
    }
}

fn nanos(at: Timestamp) -> u64 {
    at.0.saturating_mul(1_000).min(u64::MAX / 2)
}

/// The time that so many take, at most an hour: a debt must end.
fn cost(count: u64, rate: u64) -> u64 {
    let nanos = u128::from(count) * 1_000_000_000 / u128::from(rate.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX).min(3_600 * SPARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_second_is_spared_and_then_the_rate_counts() {
        let bucket = Bucket::default();
        let at = |micros| Timestamp(1_000 * SECOND + micros);
        for _ in 0..10 {
            assert_eq!(bucket.take(at(0), 10), Ok(()));
        }
        assert_eq!(bucket.take(at(0), 10), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(at(40_000), 10), Err(Duration::from_millis(60)));
        assert_eq!(bucket.take(at(100_000), 10), Ok(()));
        assert!(bucket.take(at(100_000), 10).is_err());
        for _ in 0..10 {
            assert_eq!(bucket.take(at(60 * SECOND), 10), Ok(()), "no more is spared than a second's worth");
        }
        assert!(bucket.take(at(60 * SECOND), 10).is_err());
        assert_eq!(Bucket::default().take(at(0), 1), Ok(()), "the slowest rate lets one through");
    }

    #[test]
    fn a_debt_is_paid_with_time() {
        let bucket = Bucket::default();
        let at = |micros| Timestamp(1_000 * SECOND + micros);
        bucket.charge(at(0), 1_000, 1_000);
        assert_eq!(bucket.debt(at(0)), None, "a second's worth is spared");
        bucket.charge(at(0), 1_000, 2_000);
        assert_eq!(bucket.debt(at(0)), Some(Duration::from_secs(2)));
        assert_eq!(bucket.debt(at(2 * SECOND)), None);
        bucket.charge(at(10 * SECOND), 1, u64::MAX);
        assert_eq!(bucket.debt(at(10 * SECOND)), Some(Duration::from_secs(3_599)), "every debt ends");
    }
}
