//! How fast something may go: so many a second, and so many at once after a rest.
//!
//! A pace is a leaky bucket (GCRA) that is told the time. Earned credit is counted in whole units so small
//! that the slowest rate still earns millions of them in a microsecond, and is never rounded after that, so
//! that a pace does not drift however often it is asked. The promise: in any window of length `w` no more
//! than `per_second × w + burst` go, also when a restart or a change of the rate falls into it.

pub use forebay_model::Rate;
use forebay_model::limits::PER_SECOND_MAX;

use crate::types::Timestamp;

/// Units that one per second earns in a microsecond. The rate is rounded down to whole units once, which
/// makes 0.001 a second slower by less than a billionth.
const UNITS: f64 = (1u64 << 40) as f64;
/// The cost of one message: the units that a rate of one per second earns in a second.
const ONE: i128 = 1_000_000 << 40;

fn units(rate: Rate) -> i128 {
    // NaN stays NaN in `clamp`, and the cast makes it zero.
    i128::from((rate.per_second.clamp(0.0, PER_SECOND_MAX) * UNITS) as u64)
}

fn saved_max(rate: Rate) -> i128 {
    i128::from(rate.burst.max(1)) * ONE
}

#[derive(Debug, Clone)]
pub(crate) struct Pace {
    rate: Rate,
    /// Units that were there at `since`; below zero is a debt.
    saved: i128,
    since: Timestamp,
}

impl Pace {
    /// A new pace: its burst may go at once.
    pub(crate) fn new(now: Timestamp, rate: Rate) -> Pace {
        Pace { rate, saved: saved_max(rate), since: now }
    }

    /// A pace with nothing saved, as after a restart: how many went just before is not known any more, and a
    /// full burst on top of them would break the promise.
    pub(crate) fn reopened(now: Timestamp, rate: Rate) -> Pace {
        Pace { rate, saved: 0, since: now }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// How many may go now.
    pub(crate) fn available(&self, now: Timestamp) -> u64 {
        u64::try_from(self.saved_at(now) / ONE).unwrap_or(0)
    }

    /// Counts what went. More than was available becomes a debt, which is paid before anything goes again.
    pub(crate) fn spend(&mut self, now: Timestamp, count: u64) {
        self.settle(now);
        self.saved = self.saved.saturating_sub(i128::from(count) * ONE);
    }

    /// The earliest time at which one may go: in the past if one may have gone already, and the end of
    /// time if nothing is ever earned.
    pub(crate) fn next_at(&self) -> Timestamp {
        let missing = ONE.saturating_sub(self.saved).max(0) as u128;
        let earned = units(self.rate) as u128;
        match (missing, earned) {
            (0, _) => self.since,
            (_, 0) => Timestamp(u64::MAX),
            _ => {
                let wait = u64::try_from(missing.div_ceil(earned)).unwrap_or(u64::MAX);
                Timestamp(self.since.0.saturating_add(wait))
            }
        }
    }

    /// Changes the rate from now on. Credit so far is earned at the old rate, a debt stays, and no more
    /// credit is kept than the new burst allows.
    pub(crate) fn change(&mut self, now: Timestamp, rate: Rate) {
        self.settle(now);
        self.rate = rate;
        self.saved = self.saved.min(saved_max(rate));
    }

    fn saved_at(&self, now: Timestamp) -> i128 {
        // A clock that steps back earns nothing until it is where it was.
        let elapsed = i128::from(now.0.saturating_sub(self.since.0));
        let earned = elapsed.saturating_mul(units(self.rate));
        self.saved.saturating_add(earned).min(saved_max(self.rate))
    }

    fn settle(&mut self, now: Timestamp) {
        self.saved = self.saved_at(now);
        self.since = self.since.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Wait(u64),
        /// As much as there is.
        SpendAll,
        SpendOne,
        Change(f64, u32),
        Restart,
    }

    fn per_second() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.001),
            Just(10_000_000.0),
            (-3.0f64..7.0).prop_map(|exponent| 10f64.powf(exponent)),
            (1u32..1_000).prop_map(f64::from),
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u64..5_000).prop_map(Op::Wait),
            2 => (0u32..40).prop_map(|bits| Op::Wait(1 << bits)),
            4 => Just(Op::SpendAll),
            4 => Just(Op::SpendOne),
            1 => (per_second(), 0u32..200).prop_map(|(per_second, burst)| Op::Change(per_second, burst)),
            1 => Just(Op::Restart),
        ]
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_promised(
            first in per_second(),
            burst in 0u32..200,
            ops in prop::collection::vec(op(), 1..100),
        ) {
            let mut now = Timestamp(1_700_000_000_000_000);
            let mut rate = Rate { per_second: first, burst };
            let mut pace = Pace::new(now, rate);
            // What the rates alone allow since the begin, and what went when they allowed so much.
            let mut allowed = 0.0;
            let mut spent: Vec<(f64, u32, u64)> = Vec::new();
            for op in ops {
                match op {
                    Op::Wait(micros) => {
                        now.0 += micros;
                        allowed += rate.per_second * micros as f64 / 1e6;
                    }
                    Op::SpendAll | Op::SpendOne => {
                        let available = pace.available(now);
                        prop_assert!(available <= u64::from(rate.burst.max(1)));
                        prop_assert_eq!(available > 0, pace.next_at() <= now);
                        let count = if matches!(op, Op::SpendOne) { available.min(1) } else { available };
                        pace.spend(now, count);
                        spent.push((allowed, rate.burst.max(1), count));
                    }
                    Op::Change(per_second, burst) => {
                        rate = Rate { per_second, burst };
                        pace.change(now, rate);
                    }
                    Op::Restart => pace = Pace::reopened(now, rate),
                }
            }
            for (from, &(before, burst, _)) in spent.iter().enumerate() {
                let mut sum = 0;
                for &(after, _, count) in &spent[from..] {
                    sum += count;
                    let most = (after - before) * (1.0 + 1e-9) + f64::from(burst) + 1e-3;
                    prop_assert!(sum as f64 <= most, "{sum} went where {most} were promised");
                }
            }
        }

        /// A caller that comes whenever a message may go gets the whole rate.
        #[test]
        fn nothing_is_lost_to_rounding(per_second in per_second(), steps in 1u64..2_000) {
            let start = Timestamp(1_700_000_000_000_000);
            let mut pace = Pace::reopened(start, Rate { per_second, burst: 20_000_000 });
            let mut sum = 0;
            let mut now = start;
            for _ in 0..steps {
                now = pace.next_at().max(Timestamp(now.0 + 1));
                let count = pace.available(now);
                prop_assert!(count > 0);
                pace.spend(now, count);
                sum += count;
            }
            let earned = per_second * (now.0 - start.0) as f64 / 1e6;
            prop_assert!((sum as f64 - earned).abs() <= 1.0 + earned * 1e-8, "{sum} of {earned}");
        }
    }

    #[test]
    fn a_new_pace_begins_with_its_burst() {
        let mut pace = Pace::new(Timestamp(1_000_000), Rate { per_second: 0.25, burst: 10 });
        assert_eq!(pace.available(Timestamp(1_000_000)), 10);
        pace.spend(Timestamp(1_000_000), 10);
        assert_eq!(pace.next_at(), Timestamp(5_000_000));
    }

    #[test]
    fn a_pace_starts_empty_after_a_restart_and_saves_up_to_its_burst() {
        let mut pace = Pace::reopened(Timestamp(1_000_000), Rate { per_second: 10.0, burst: 5 });
        assert_eq!(pace.available(Timestamp(1_000_000)), 0);
        assert_eq!(pace.next_at(), Timestamp(1_100_000));
        assert_eq!(pace.available(Timestamp(1_100_000)), 1);
        assert_eq!(pace.available(Timestamp(9_000_000)), 5);
        pace.spend(Timestamp(9_000_000), 7);
        assert_eq!(pace.next_at(), Timestamp(9_300_000), "a debt of two is paid first");
        pace.change(Timestamp(9_000_000), Rate { per_second: 1.0, burst: 0 });
        assert_eq!(pace.next_at(), Timestamp(12_000_000), "also at another rate");
        assert_eq!(pace.available(Timestamp(u64::MAX)), 1);
    }

    #[test]
    fn odd_rates_do_no_harm() {
        for per_second in [0.0, -1.0, f64::NAN] {
            let mut pace = Pace::reopened(Timestamp(5), Rate { per_second, burst: 5 });
            assert_eq!(pace.available(Timestamp(u64::MAX)), 0);
            assert_eq!(pace.next_at(), Timestamp(u64::MAX));
            pace.spend(Timestamp(6), u64::MAX);
        }
        let mut pace = Pace::reopened(Timestamp(0), Rate { per_second: f64::INFINITY, burst: u32::MAX });
        assert_eq!(pace.available(Timestamp(1_000_000)), 10_000_000);
        assert_eq!(pace.available(Timestamp(u64::MAX)), u64::from(u32::MAX));
        pace.spend(Timestamp(1_000_000), 10_000_000);
        assert_eq!(pace.available(Timestamp(0)), 0, "a clock that steps back earns nothing");
    }
}
