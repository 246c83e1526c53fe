//! How many there are a second, lately: averages over about a second, a minute and a quarter of an hour.
//!
//! A [`Meter`] looks at a total that grows and keeps three averages in which the past fades exponentially,
//! in a hundred bytes and without a list of samples. An average of this kind starts at zero and would take
//! as long to arrive as it looks back. Each therefore knows how much of its weight it has seen and is
//! divided by it, so that a server that started five seconds ago does not claim a quiet quarter of an hour.
//! It is written by hand because it is thirty lines, is told the time, and is kept for each group.

use forebay_core::types::Timestamp;

const SECOND: f64 = 1.0;
const MINUTE: f64 = 60.0;
const QUARTER_HOUR: f64 = 900.0;
/// Less a second than this is as good as nothing: not even one in a quarter of an hour.
pub const QUIET: f64 = 0.001;

/// Averages for each second, over about so long.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub second: f64,
    pub minute: f64,
    pub quarter_hour: f64,
}

/// Tells the rates of a total that grows.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    base: Option<Base>,
    grew: bool,
    second: Average,
    minute: Average,
    quarter_hour: Average,
}

/// The total from which growth is counted.
#[derive(Debug, Clone, Copy)]
struct Base {
    at: Timestamp,
    total: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Average {
    sum: f64,
    /// How much of the whole weight the samples so far have: near zero at first, and near one in the end.
    weight: f64,
}

impl Meter {
    /// Takes note of the total, about once a second. The first one only says where counting begins, and so
    /// does one that went back: what it counted was made anew.
    pub fn sample(&mut self, now: Timestamp, total: u64) {
        let fresh = Base { at: now, total };
        let Some(base) = self.base.filter(|base| base.total <= total && base.at <= now) else {
            // Also if the clock was set back: how long it took is not known then, and no rate is better
            // than a wrong one.
            self.base = Some(fresh);
            self.grew = false;
            return;
        };
        if base.at == now {
            // No time has passed to spread the growth over. It is part of the next sample.
            self.grew |= total > base.total;
            return;
        }
        let growth = total - base.total;
        let elapsed = now.since(base.at).as_secs_f64();
        let rate = growth as f64 / elapsed;
        self.second.add(elapsed / SECOND, rate);
        self.minute.add(elapsed / MINUTE, rate);
        self.quarter_hour.add(elapsed / QUARTER_HOUR, rate);
        self.grew = growth > 0;
        self.base = Some(fresh);
    }

    pub fn rates(&self) -> Rates {
        Rates {
            second: self.second.value(),
            minute: self.minute.value(),
            quarter_hour: self.quarter_hour.value(),
        }
    }

    /// Whether nothing happens and nothing has for a while, so that the meter tells no more than a new one.
    pub fn is_quiet(&self) -> bool {
        let Rates { second, minute, quarter_hour } = self.rates();
        !self.grew && second < QUIET && minute < QUIET && quarter_hour < QUIET
    }
}

impl Average {
    /// A steady rate over a time, which is given in time constants. However a time is cut into samples,
    /// the average is the same.
    fn add(&mut self, elapsed: f64, rate: f64) {
        // One minus the exponential, without the loss that this has for a short time.
        let fresh = -(-elapsed).exp_m1();
        self.sum += (rate - self.sum) * fresh;
        self.weight += (1.0 - self.weight) * fresh;
    }

    fn value(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Timestamp = Timestamp(1_700_000_000_000_000);

    fn at(seconds: f64) -> Timestamp {
        Timestamp(START.0 + (seconds * 1e6) as u64)
    }

    /// A meter that saw 100 a second for so long, sampled each second.
    fn steady(seconds: u64) -> Meter {
        let mut meter = Meter::default();
        for second in 0..=seconds {
            meter.sample(at(second as f64), 5_000 + second * 100);
        }
        meter
    }

    #[track_caller]
    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() <= expected * 0.01, "{value} is not about {expected}");
    }

    #[test]
    fn a_first_sample_only_says_where_counting_begins() {
        let mut meter = Meter::default();
        assert_eq!(meter.rates(), Rates::default());
        meter.sample(START, 1_000_000);
        assert_eq!(meter.rates(), Rates::default());
        assert!(meter.is_quiet());
    }

    #[test]
    fn no_average_starts_near_zero() {
        for seconds in [1, 3, 5, 100, 5_000] {
            let Rates { second, minute, quarter_hour } = steady(seconds).rates();
            for rate in [second, minute, quarter_hour] {
                assert_near(rate, 100.0);
            }
        }
    }

    #[test]
    fn each_average_fades_in_its_own_time() {
        let mut meter = steady(10_000);
        for second in 1..=60 {
            meter.sample(at(10_000.0 + f64::from(second)), 5_000 + 1_000_000);
            if second == 5 {
                assert!(meter.rates().second < 1.0);
            }
        }
        let rates = meter.rates();
        assert_near(rates.minute, 100.0 * (-1f64).exp());
        assert_near(rates.quarter_hour, 100.0 * (-60f64 / 900.0).exp());
    }

    #[test]
    fn a_meter_is_quiet_once_all_averages_have_faded() {
        let mut meter = steady(100);
        assert!(!meter.is_quiet());
        meter.sample(at(160.0), 15_000);
        assert!(!meter.is_quiet(), "the minute still remembers");
        meter.sample(at(20_000.0), 15_000);
        assert!(meter.is_quiet());
        meter.sample(at(1e9), 15_001);
        assert!(!meter.is_quiet(), "one in thirty years is below every rate, but it has just come");
        meter.sample(at(1e9 + 1.0), 15_001);
        assert!(meter.is_quiet());
    }

    #[test]
    fn a_total_that_went_back_is_a_new_beginning() {
        let mut meter = steady(20);
        meter.sample(at(21.0), 3);
        assert_near(meter.rates().minute, 100.0);
        meter.sample(at(22.0), 103);
        assert_near(meter.rates().second, 100.0);
    }

    #[test]
    fn a_clock_that_was_set_back_is_one_too() {
        let mut meter = steady(20);
        meter.sample(at(2.0), 7_100);
        meter.sample(at(3.0), 7_200);
        assert_near(meter.rates().second, 100.0);
    }

    #[test]
    fn growth_in_no_time_is_part_of_the_next_sample() {
        let mut meter = steady(20);
        meter.sample(at(20.0), 7_050);
        assert_near(meter.rates().second, 100.0);
        meter.sample(at(21.0), 7_100);
        assert_near(meter.rates().second, 100.0);
        let mut fresh = Meter::default();
        fresh.sample(START, 0);
        fresh.sample(START, u64::MAX);
        assert_eq!(fresh.rates(), Rates::default());
        assert!(!fresh.is_quiet());
    }

    proptest! {
        #[test]
        fn irregular_samples_of_a_steady_rate_show_it(
            gaps in prop::collection::vec(1u64..5_000, 1..100),
            per_milli in 1u64..1_000,
        ) {
            let mut meter = Meter::default();
            let (mut now, mut total) = (START, 0);
            meter.sample(now, total);
            for gap in gaps {
                now.0 += gap * 1_000;
                total += gap * per_milli;
                meter.sample(now, total);
            }
            let Rates { second, minute, quarter_hour } = meter.rates();
            let expected = per_milli as f64 * 1_000.0;
            for rate in [second, minute, quarter_hour] {
                prop_assert!((rate - expected).abs() <= expected * 1e-6, "{} is not {}", rate, expected);
            }
        }

        #[test]
        fn rates_are_numbers_whatever_is_sampled(
            samples in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            sorted in any::<bool>(),
        ) {
            let mut samples = samples;
            if sorted {
                samples.sort_unstable();
            }
            let mut meter = Meter::default();
            for (now, total) in samples {
                meter.sample(Timestamp(now), total);
                let Rates { second, minute, quarter_hour } = meter.rates();
                for rate in [second, minute, quarter_hour] {
                    prop_assert!(rate.is_finite() && rate >= 0.0, "{}", rate);
                }
            }
        }
    }
}
