//! How long something took, over many times, for percentiles that are good to less than 2 %.
//!
//! The buckets are log-linear: each power of two of microseconds is cut into 64 equal parts. The server keeps a coarser
//! one for each group; here there are a few for a whole run, and the last percentiles are what people look for.

use std::time::Duration;

/// Each power of two has `1 << SUB_BITS` buckets.
const SUB_BITS: u32 = 6;
const SUBS: u64 = 1 << SUB_BITS;
/// Times from `1 << RANGE_BITS` microseconds on, which is 12 days, go into the last bucket.
const RANGE_BITS: u32 = 40;
/// Below `SUBS` microseconds each one has a bucket of its own.
const BUCKETS: usize = (SUBS * (RANGE_BITS - SUB_BITS + 1) as u64) as usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Histogram {
    count: u64,
    max: u64,
    sum: u128,
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { count: 0, max: 0, sum: 0, counts: vec![0; BUCKETS] }
    }
}

/// What a histogram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) count: u64,
    pub(super) mean: Duration,
    pub(super) p50: Duration,
    pub(super) p90: Duration,
    pub(super) p99: Duration,
    pub(super) p999: Duration,
    pub(super) max: Duration,
}

impl Histogram {
    /// Records the same time for all that were answered together.
    pub(super) fn record(&mut self, time: Duration, times: u64) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count += times;
        self.sum += u128::from(micros) * u128::from(times);
        self.counts[bucket(micros)] += times;
        if times > 0 {
            self.max = self.max.max(micros);
        }
    }

    pub(super) fn merge(&mut self, other: &Histogram) {
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// `None` if nothing was recorded.
    pub(super) fn summary(&self) -> Option<Summary> {
        let mean = self.sum.checked_div(u128::from(self.count))?;
        Some(Summary {
            count: self.count,
            mean: Duration::from_micros(u64::try_from(mean).unwrap_or(u64::MAX)),
            p50: self.percentile(500),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p999: self.percentile(999),
            max: Duration::from_micros(self.max),
        })
    }

    /// A time that so many thousandths of all did not exceed, never below the true one.
    fn percentile(&self, thousandths: u64) -> Duration {
        let rank = (u128::from(self.count) * u128::from(thousandths)).div_ceil(1_000);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        Duration::from_micros(at.map_or(self.max, last_of).min(self.max))
    }
}

fn bucket(micros: u64) -> usize {
    if micros < SUBS {
        return micros as usize;
    }
    let shift = micros.ilog2() - SUB_BITS;
    let index = SUBS * u64::from(shift) + (micros >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUBS {
        return bucket;
    }
    let shift = bucket / SUBS - 1;
    (((bucket - SUBS * shift) + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_bucket_that_is_narrow() {
        for power in 0..RANGE_BITS {
            for micros in [1_u64 << power, (1 << power) + 1, (1 << power) * 2 - 1] {
                let last = last_of(bucket(micros));
                assert!(last >= micros && last - micros <= micros / SUBS, "{micros} became {last}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), None);
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros), 1));
        let summary = histogram.summary().expect("there is something");
        for (found, exact) in
            [(summary.p50, 5_000), (summary.p90, 9_000), (summary.p99, 9_900), (summary.p999, 9_990)]
        {
            let found = found.as_micros();
            assert!((exact..=exact + exact / 64).contains(&found), "{found} for {exact}");
        }
        assert_eq!((summary.mean.as_micros(), summary.max.as_micros()), (5_000, 10_000));
    }

    #[test]
    fn one_slow_moment_is_seen_and_two_histograms_are_one() {
        let mut fast = Histogram::default();
        fast.record(Duration::from_micros(100), 999);
        let mut slow = Histogram::default();
        slow.record(Duration::from_secs(3), 1);
        slow.record(Duration::from_secs(9), 0);
        fast.merge(&slow);
        let summary = fast.summary().expect("there is something");
        assert_eq!(summary.count, 1_000);
        assert!(summary.p999 < Duration::from_micros(103));
        assert_eq!(summary.max, Duration::from_secs(3));
        fast.merge(&slow);
        assert!(fast.summary().is_some_and(|summary| summary.p999 == Duration::from_secs(3)));
    }
}
