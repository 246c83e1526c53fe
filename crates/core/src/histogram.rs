//! How long something takes, over many times: the mean and the spread exactly, percentiles to a few percent.
//!
//! The buckets are log-linear: each power of two of microseconds is cut into equal parts, so a bucket is never
//! wider than that share of what it holds, from a microsecond to 19 hours. Counting one is an index and four
//! additions. It is written by hand because a group has several of these: [`Histogram`] takes two kilobytes and
//! never grows. The owner makes it when there is something to count. [`FineHistogram`] is for a few in a
//! program, where the last percentiles matter.

use std::time::Duration;

/// Times from `1 << RANGE_BITS` microseconds on, which is 19 hours, go into the last bucket.
const RANGE_BITS: u32 = 36;

/// 16 buckets for each power of two: percentiles are within about 3 %.
pub type Histogram = LogLinear<4, { buckets(4) }>;
/// 64 buckets for each power of two: percentiles are within 1 %. Takes eight kilobytes.
pub type FineHistogram = LogLinear<6, { buckets(6) }>;

const BYTES_MAX: usize = 2_560;
const _: () = assert!(size_of::<Histogram>() <= BYTES_MAX);

/// Each power of two has `1 << sub_bits` buckets. Below `1 << sub_bits` microseconds each one has its own.
const fn buckets(sub_bits: u32) -> usize {
    (1 << sub_bits) * (RANGE_BITS - sub_bits + 1) as usize
}

/// A histogram with `1 << SUB_BITS` buckets for each power of two; `BUCKETS` follows from that.
#[derive(Clone, PartialEq, Eq)]
pub struct LogLinear<const SUB_BITS: u32, const BUCKETS: usize> {
    count: u64,
    max: u64,
    /// Sums of all times, and of their squares, in microseconds. Whole numbers, since a small addition to a
    /// large float is lost. Both hold out for 2⁵⁶ times of 19 hours, and stop at their ends after that.
    sum: u128,
    squares: u128,
    /// A counter that is full stays so: percentiles lean to the other buckets from then on.
    counts: [u32; BUCKETS],
}

/// What a histogram says. All zero when nothing was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    pub count: u64,
    pub mean: Duration,
    /// Of all that was recorded, not an estimate from a sample.
    pub stddev: Duration,
    pub p50: Duration,
    pub p90: Duration,
    pub p95: Duration,
    pub p99: Duration,
    pub p999: Duration,
    pub max: Duration,
}

impl<const SUB_BITS: u32, const BUCKETS: usize> Default for LogLinear<SUB_BITS, BUCKETS> {
    fn default() -> LogLinear<SUB_BITS, BUCKETS> {
        const { assert!(BUCKETS == buckets(SUB_BITS), "the buckets follow from the bits") };
        LogLinear { count: 0, max: 0, sum: 0, squares: 0, counts: [0; BUCKETS] }
    }
}

impl<const SUB_BITS: u32, const BUCKETS: usize> std::fmt::Debug for LogLinear<SUB_BITS, BUCKETS> {
    /// Five hundred counters tell a reader nothing.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Histogram").field(&self.summary()).finish()
    }
}

impl<const SUB_BITS: u32, const BUCKETS: usize> LogLinear<SUB_BITS, BUCKETS> {
    const SUBS: u64 = 1 << SUB_BITS;

    pub fn record(&mut self, time: Duration) {
        self.record_n(time, 1);
    }

    /// Records the same time `count` times over, as for a batch that was settled together.
    pub fn record_n(&mut self, time: Duration, count: u64) {
        if count == 0 {
            return;
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let sum = u128::from(micros) * u128::from(count);
        self.count = self.count.saturating_add(count);
        self.max = self.max.max(micros);
        self.sum = self.sum.saturating_add(sum);
        self.squares = self.squares.saturating_add(sum.saturating_mul(u128::from(micros)));
        let counter = &mut self.counts[Self::bucket(micros)];
        *counter = counter.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Adds all that the other one recorded.
    pub fn merge(&mut self, other: &LogLinear<SUB_BITS, BUCKETS>) {
        self.count = self.count.saturating_add(other.count);
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.saturating_add(other.squares);
        for (counter, more) in self.counts.iter_mut().zip(&other.counts) {
            *counter = counter.saturating_add(*more);
        }
    }

    pub fn summary(&self) -> Summary {
        if self.count == 0 {
            return Summary::default();
        }
        let [p50, p90, p95, p99, p999] = self.percentiles([500, 900, 950, 990, 999]);
        Summary {
            count: self.count,
            mean: self.mean(),
            stddev: self.stddev(),
            p50,
            p90,
            p95,
            p99,
            p999,
            max: Duration::from_micros(self.max),
        }
    }

    /// To the nanosecond.
    fn mean(&self) -> Duration {
        let count = u128::from(self.count);
        let part = (self.sum % count) * 1_000 / count;
        micros(self.sum / count).saturating_add(Duration::from_nanos(part as u64))
    }

    /// The squares are counted from the whole microsecond below the mean, in whole numbers. Taking the square
    /// of the mean from the mean of the squares, as floats, would leave nothing of a narrow spread.
    fn stddev(&self) -> Duration {
        let count = u128::from(self.count);
        let (base, rest) = (self.sum / count, self.sum % count);
        let from_base = self.squares.saturating_sub(base.saturating_mul(self.sum.saturating_add(rest)));
        let offset = rest as f64 / count as f64;
        let variance = (from_base as f64 / count as f64 - offset * offset).max(0.0);
        Duration::try_from_secs_f64(variance.sqrt() / 1e6).unwrap_or(Duration::MAX)
    }

    /// For each share in thousandths, in rising order: the middle of the bucket in which the first time lies
    /// that so many are not above.
    fn percentiles<const N: usize>(&self, shares: [u64; N]) -> [Duration; N] {
        // Not `count`, which goes on when a counter is full.
        let total: u64 = self.counts.iter().map(|&counter| u64::from(counter)).sum();
        let (mut index, mut seen) = (0, u64::from(self.counts[0]));
        shares.map(|share| {
            let rank = (total * share).div_ceil(1_000);
            while seen < rank {
                index += 1;
                seen += u64::from(self.counts[index]);
            }
            Duration::from_micros(Self::middle(index).min(self.max))
        })
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// All times together.
    pub fn sum(&self) -> Duration {
        micros(self.sum)
    }

    /// How many times were shorter than `1 << power` microseconds. Exact, since a bucket begins there.
    pub fn shorter_than(&self, power: u32) -> u64 {
        let end = Self::bucket(1 << power.min(RANGE_BITS));
        self.counts[..end].iter().map(|&counter| u64::from(counter)).sum()
    }

    fn bucket(micros: u64) -> usize {
        if micros < Self::SUBS {
            return micros as usize;
        }
        let power = micros.ilog2();
        if power >= RANGE_BITS {
            return BUCKETS - 1;
        }
        let shift = power - SUB_BITS;
        // The shifted value has its highest bit at `SUBS`, which moves it past the row before.
        (u64::from(shift) * Self::SUBS + (micros >> shift)) as usize
    }

    fn middle(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < Self::SUBS {
            return bucket;
        }
        let shift = bucket / Self::SUBS - 1;
        let low = (bucket % Self::SUBS + Self::SUBS) << shift;
        low + ((1 << shift) - 1) / 2
    }
}

fn micros(micros: u128) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &time in times {
            histogram.record(Duration::from_micros(time));
        }
        histogram
    }

    fn times() -> impl Strategy<Value = Vec<u64>> {
        let time = (0u32..RANGE_BITS, any::<u64>()).prop_map(|(bits, any)| any % (1 << bits));
        prop::collection::vec(time, 1..300)
    }

    proptest! {
        #[test]
        fn a_summary_agrees_with_the_sorted_times(mut times in times()) {
            let summary = of(&times).summary();
            times.sort_unstable();
            let count = times.len();
            prop_assert_eq!(summary.count, count as u64);
            prop_assert_eq!(summary.max, Duration::from_micros(times[count - 1]));

            let mean = times.iter().map(|&time| time as f64).sum::<f64>() / count as f64;
            let variance = times.iter().map(|&time| (time as f64 - mean).powi(2)).sum::<f64>() / count as f64;
            let near = |figure: Duration, exact: f64| {
                (figure.as_secs_f64() * 1e6 - exact).abs() <= 0.002 + exact * 1e-9
            };
            prop_assert!(near(summary.mean, mean), "{:?} is not {mean}", summary.mean);
            prop_assert!(near(summary.stddev, variance.sqrt()), "{:?} is not {}", summary.stddev, variance.sqrt());

            let Summary { p50, p90, p95, p99, p999, .. } = summary;
            for (share, figure) in [(500, p50), (900, p90), (950, p95), (990, p99), (999, p999)] {
                let exact = times[(count * share).div_ceil(1_000) - 1];
                let off = (figure.as_micros() as u64).abs_diff(exact);
                prop_assert!(off as f64 <= exact as f64 * 0.032, "{share}: {figure:?} is not {exact} µs");
            }
        }

        #[test]
        fn merging_is_recording_both(first in times(), second in times()) {
            let mut merged = of(&first);
            merged.merge(&of(&second));
            prop_assert!(merged == of(&[first, second].concat()));
        }

        #[test]
        fn recording_many_is_recording_each(time in 0u64..1 << 40, count in 0u64..50) {
            let mut many = Histogram::default();
            many.record_n(Duration::from_micros(time), count);
            prop_assert!(many == of(&vec![time; count as usize]));
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut last = 0;
        for power in 0..RANGE_BITS {
            for part in 0..64u64 {
                let micros = (1u64 << power) + ((part << power) >> 6);
                let index = Histogram::bucket(micros);
                assert!(index == last || index == last + 1, "{micros} µs in {index} after {last}");
                assert_eq!(Histogram::bucket(Histogram::middle(index)), index);
                last = index;
            }
        }
        assert_eq!(Histogram::bucket((1 << RANGE_BITS) - 1), buckets(4) - 1);
        assert_eq!(Histogram::bucket(1 << RANGE_BITS), buckets(4) - 1);
        assert_eq!(Histogram::bucket(u64::MAX), buckets(4) - 1);
    }

    #[test]
    fn times_below_a_power_of_two_are_counted_exactly() {
        let histogram = of(&[0, 1, 2, 3, 4, 255, 256, 1 << 20, 1 << 40]);
        let below = [0, 1, 2, 8, 9, 20, 21, 36, 60].map(|power| histogram.shorter_than(power));
        assert_eq!(below, [1, 2, 4, 6, 7, 7, 8, 8, 8]);
        assert_eq!(
            (histogram.count(), histogram.sum()),
            (9, Duration::from_micros(521 + (1 << 20) + (1 << 40)))
        );
    }

    #[test]
    fn a_fine_one_is_within_a_percent() {
        let mut histogram = FineHistogram::default();
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        let summary = histogram.summary();
        for (found, exact) in [(summary.p50, 5_000_u64), (summary.p99, 9_900), (summary.p999, 9_990)] {
            let off = (found.as_micros() as u64).abs_diff(exact);
            assert!(off * 100 <= exact, "{found:?} for {exact}");
        }
    }

    #[test]
    fn an_empty_one_is_all_zero() {
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    #[test]
    fn a_single_time_is_its_own_summary() {
        let second = Duration::from_secs(1);
        let summary = of(&[1_000_000]).summary();
        assert_eq!((summary.mean, summary.stddev, summary.max), (second, Duration::ZERO, second));
    }

    #[test]
    fn a_narrow_spread_far_from_zero_is_not_lost_in_a_large_count() {
        let mut histogram = Histogram::default();
        let hours = Duration::from_secs(10 * 3_600);
        histogram.record_n(hours, 1 << 40);
        histogram.record_n(hours + Duration::from_micros(2), 1 << 40);
        let summary = histogram.summary();
        assert_eq!(summary.mean, hours + Duration::from_micros(1));
        assert_eq!(summary.stddev, Duration::from_micros(1));
    }

    #[test]
    fn more_than_it_can_hold_does_no_harm() {
        let mut histogram = Histogram::default();
        histogram.record_n(Duration::MAX, u64::MAX);
        histogram.record_n(Duration::MAX, u64::MAX);
        histogram.record_n(Duration::ZERO, u64::MAX);
        histogram.merge(&histogram.clone());
        let summary = histogram.summary();
        assert_eq!(summary.count, u64::MAX);
        assert_eq!(summary.max, Duration::from_micros(u64::MAX));
        assert_eq!(summary.p50, Duration::ZERO);
        assert_eq!(summary.p99, Duration::from_micros(Histogram::middle(buckets(4) - 1)));
    }
}
