//! How many consumers a group should have, for an autoscaler that asks now and then.
//!
//! The advice is a function of the group's present figures and of the asker's wishes; nothing is kept from
//! one question to the next. It starts from the rate that one consumer manages and the rate that must be
//! managed: the arrivals, and the backlog within the time that it may take. The rate of one consumer is the
//! hard part, since consumers that keep up do as much as arrives and not as much as they could. Their
//! measured pace is the truth only if work has been waiting all along; otherwise the time that a message
//! takes says how much more is in them, and without it no group would ever shrink while it has steady
//! traffic. It is written by hand because autoscalers come with rules for queues that know nothing of leases,
//! pace and processing times.

use std::time::Duration;

use super::rates::QUIET;

/// Faster than any group goes; a rate above it counts as this one.
const RATE_MAX: f64 = 1e12;
/// Rates are averages, and below a second they say nothing.
const DRAIN_MIN: f64 = 1.0;
/// Three centuries are never.
const DRAIN_NEVER: f64 = 1e10;
/// As long as rates look back. A message that has waited longer was there all the time that they were
/// measured.
const LOOK_BACK: Duration = Duration::from_secs(60);
/// Keeps a quotient that is whole but for the rounding of floats from being rounded up.
const ROUNDING: f64 = 1e-9;

/// The present figures of a group. Rates are for each second, over about the last minute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScalingInputs {
    /// Messages that wait for a consumer.
    pub backlog: u64,
    /// Messages that are with a consumer.
    pub in_flight: u64,
    pub consumers: u64,
    /// How long the oldest message of the backlog has waited.
    pub oldest_age: Duration,
    pub arrival_rate: f64,
    pub service_rate: f64,
    /// From the grant of a lease until it is settled, if any was settled.
    pub processing_mean: Option<Duration>,
    /// The group's own pace, if it has one.
    pub rate_max: Option<f64>,
}

/// The asker's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingTarget {
    /// How long the backlog may take. Less than a second counts as a second.
    pub drain: Duration,
    /// Counts as `max` if above it.
    pub min: u32,
    pub max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingAdvice {
    /// Seconds until the backlog is gone at the present pace. Zero if there is no backlog, `None` if it
    /// will never be gone.
    pub drain_time: Option<f64>,
    pub desired_consumers: u32,
}

pub fn advise(inputs: &ScalingInputs, target: &ScalingTarget) -> ScalingAdvice {
    let desired = desired_consumers(inputs, target.drain);
    ScalingAdvice {
        drain_time: drain_time(inputs),
        desired_consumers: desired.clamp(target.min.min(target.max), target.max),
    }
}

fn drain_time(inputs: &ScalingInputs) -> Option<f64> {
    if inputs.backlog == 0 {
        return Some(0.0);
    }
    let pace = paced(inputs, rate(inputs.service_rate)) - rate(inputs.arrival_rate);
    let seconds = inputs.backlog as f64 / pace;
    (pace > 0.0 && seconds < DRAIN_NEVER).then_some(seconds)
}

/// Before the asker's bounds.
fn desired_consumers(inputs: &ScalingInputs, drain: Duration) -> u32 {
    let arrival_rate = rate(inputs.arrival_rate);
    let idle = inputs.backlog == 0 && inputs.in_flight == 0 && arrival_rate < QUIET;
    if idle {
        return 0;
    }
    // Whatever is in flight may come back, and then someone must be there.
    let least = u32::from(inputs.in_flight > 0);
    // More consumers do not get a group past its own pace.
    let needed = paced(inputs, arrival_rate + inputs.backlog as f64 / drain.as_secs_f64().max(DRAIN_MIN));
    if needed <= 0.0 {
        return least;
    }
    let consumers = u32::try_from(inputs.consumers).unwrap_or(u32::MAX);
    let measured = measured_rate(inputs).map(|each| consumers_for(needed, each));
    let estimated = estimated_rate(inputs).map(|each| consumers_for(needed, each));
    let overloaded = inputs.backlog > 0 && inputs.oldest_age >= LOOK_BACK;
    let desired = match (measured, estimated) {
        (Some(measured), Some(_)) if overloaded => measured,
        // The estimate takes for granted that a consumer fetches the next message as soon as it is done
        // with one. For those that do not it is too high, so no more than half of them are sent home on it
        // before their pace is measured again.
        (Some(measured), Some(estimated)) => estimated.max(consumers.div_ceil(2)).min(measured),
        (Some(known), None) | (None, Some(known)) => known,
        (None, None) if inputs.backlog > 0 => consumers.saturating_add(1),
        (None, None) => consumers.max(1),
    };
    desired.max(least)
}

/// The recent rate of one consumer, if it did anything.
fn measured_rate(inputs: &ScalingInputs) -> Option<f64> {
    let service_rate = rate(inputs.service_rate);
    (inputs.consumers > 0 && service_rate >= QUIET).then(|| service_rate / inputs.consumers as f64)
}

/// The rate that one consumer could reach if it always had a message, one at a time.
fn estimated_rate(inputs: &ScalingInputs) -> Option<f64> {
    inputs.processing_mean.map(|mean| 1.0 / mean.as_secs_f64().max(1.0 / RATE_MAX))
}

fn consumers_for(needed: f64, each: f64) -> u32 {
    // A float that is too large becomes the largest number.
    (needed / each * (1.0 - ROUNDING)).ceil() as u32
}

fn paced(inputs: &ScalingInputs, wanted: f64) -> f64 {
    inputs.rate_max.map_or(wanted, |most| wanted.min(rate(most)))
}

/// A rate that can be reckoned with: zero for one that is not a number.
fn rate(rate: f64) -> f64 {
    if rate.is_nan() { 0.0 } else { rate.clamp(0.0, RATE_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TARGET: ScalingTarget = ScalingTarget { drain: Duration::from_secs(100), min: 0, max: 50 };
    const OLD: Duration = Duration::from_secs(600);
    const NONE: ScalingInputs = ScalingInputs {
        backlog: 0,
        in_flight: 0,
        consumers: 0,
        oldest_age: Duration::ZERO,
        arrival_rate: 0.0,
        service_rate: 0.0,
        processing_mean: None,
        rate_max: None,
    };
    /// Four consumers that do 10 a second each and have had more to do than that for a while.
    const BUSY: ScalingInputs = ScalingInputs {
        backlog: 6_000,
        in_flight: 4,
        consumers: 4,
        oldest_age: OLD,
        arrival_rate: 30.0,
        service_rate: 40.0,
        processing_mean: Some(Duration::from_millis(20)),
        rate_max: None,
    };
    /// Ten consumers of which one would do.
    const BORED: ScalingInputs = ScalingInputs {
        backlog: 2,
        in_flight: 1,
        consumers: 10,
        oldest_age: Duration::from_millis(5),
        arrival_rate: 50.0,
        service_rate: 50.0,
        processing_mean: Some(Duration::from_millis(10)),
        rate_max: None,
    };

    #[test]
    fn advice_for_each_situation() {
        let mean = |millis| Some(Duration::from_millis(millis));
        let cases = [
            ("nothing to do", NONE, 0),
            ("consumers and nothing to do", ScalingInputs { consumers: 9, ..NONE }, 0),
            (
                "fading averages",
                ScalingInputs { consumers: 9, arrival_rate: 1e-4, service_rate: 1e-4, ..NONE },
                0,
            ),
            ("only the last ones in flight", ScalingInputs { consumers: 9, in_flight: 3, ..NONE }, 1),
            ("first message of a new group", ScalingInputs { backlog: 1, ..NONE }, 1),
            ("nothing served yet", ScalingInputs { backlog: 1, consumers: 3, ..NONE }, 4),
            (
                "all in flight, nothing served yet",
                ScalingInputs { in_flight: 9, arrival_rate: 1.0, consumers: 3, ..NONE },
                3,
            ),
            ("consumers left", ScalingInputs { consumers: 0, ..BUSY }, 2),
            ("stuck, but known from before", ScalingInputs { service_rate: 0.0, ..BUSY }, 2),
            ("arrivals and backlog", BUSY, 9),
            ("arrivals and backlog, no times", ScalingInputs { processing_mean: None, ..BUSY }, 9),
            ("just the arrivals", ScalingInputs { backlog: 0, processing_mean: None, ..BUSY }, 3),
            ("more than there may be", ScalingInputs { backlog: 1_000_000, ..BUSY }, 50),
            ("held by its own pace", ScalingInputs { rate_max: Some(60.0), ..BUSY }, 6),
            ("stopped by its own pace", ScalingInputs { rate_max: Some(0.0), in_flight: 0, ..BUSY }, 0),
            (
                "stopped by its own pace and unknown",
                ScalingInputs { backlog: 5, rate_max: Some(0.0), ..NONE },
                0,
            ),
            ("too many, half go", BORED, 5),
            ("too many, the rest go", ScalingInputs { consumers: 2, ..BORED }, 1),
            ("too many, but work was waiting all along", ScalingInputs { oldest_age: OLD, ..BORED }, 11),
            ("a burst after a rest", ScalingInputs { backlog: 1_000, service_rate: 0.01, ..BORED }, 5),
            ("as many as needed", ScalingInputs { processing_mean: mean(190), ..BORED }, 10),
            ("many at a time", ScalingInputs { processing_mean: mean(9_000), backlog: 0, ..BORED }, 10),
            (
                "three that just keep up",
                ScalingInputs { consumers: 3, processing_mean: None, backlog: 0, ..BORED },
                3,
            ),
        ];
        for (name, inputs, desired) in cases {
            assert_eq!(advise(&inputs, &TARGET).desired_consumers, desired, "{name}");
        }
    }

    #[test]
    fn those_who_just_keep_up_are_not_rounded_up() {
        for consumers in 1..1_000 {
            let inputs = ScalingInputs { consumers, arrival_rate: 0.7, service_rate: 0.7, ..NONE };
            let advice = advise(&inputs, &ScalingTarget { max: u32::MAX, ..TARGET });
            assert_eq!(u64::from(advice.desired_consumers), consumers);
        }
    }

    #[test]
    fn the_bounds_of_the_asker_hold() {
        let desired =
            |inputs, min, max| advise(inputs, &ScalingTarget { min, max, ..TARGET }).desired_consumers;
        assert_eq!(desired(&NONE, 2, 5), 2);
        assert_eq!(desired(&BUSY, 2, 5), 5);
        assert_eq!(desired(&BUSY, 20, 50), 20);
        assert_eq!(desired(&NONE, 9, 5), 5);
        assert_eq!(desired(&BUSY, 0, 0), 0);
        assert_eq!(desired(&ScalingInputs { backlog: 1, consumers: 7, ..NONE }, 1, 5), 5);
    }

    #[test]
    fn the_time_to_drain_is_told_if_there_is_an_end() {
        let drain_time = |inputs: ScalingInputs| advise(&inputs, &TARGET).drain_time;
        assert_eq!(drain_time(BUSY), Some(600.0));
        assert_eq!(drain_time(NONE), Some(0.0));
        assert_eq!(drain_time(ScalingInputs { backlog: 0, arrival_rate: 99.0, ..BUSY }), Some(0.0));
        assert_eq!(drain_time(ScalingInputs { arrival_rate: 40.0, ..BUSY }), None);
        assert_eq!(drain_time(ScalingInputs { arrival_rate: 50.0, ..BUSY }), None);
        assert_eq!(drain_time(ScalingInputs { backlog: 1, ..NONE }), None);
        assert_eq!(drain_time(ScalingInputs { rate_max: Some(31.0), ..BUSY }), Some(6_000.0));
        assert_eq!(drain_time(ScalingInputs { backlog: u64::MAX, ..BUSY }), None);
    }

    fn any_rate() -> impl Strategy<Value = f64> {
        prop_oneof![
            2 => any::<f64>(),
            1 => Just(0.0),
            1 => Just(f64::NAN),
            1 => Just(f64::INFINITY),
            8 => (-4.0f64..6.0).prop_map(|exponent| 10f64.powf(exponent)),
        ]
    }

    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![1 => any::<u64>(), 2 => Just(0), 4 => 1u64..100, 4 => 1u64..1_000_000]
    }

    fn any_time() -> impl Strategy<Value = Duration> {
        prop_oneof![
            1 => Just(Duration::ZERO),
            1 => Just(Duration::MAX),
            8 => (0u32..40).prop_map(|bits| Duration::from_micros(1 << bits)),
        ]
    }

    prop_compose! {
        fn any_inputs()(
            (backlog, in_flight, consumers) in (any_number(), any_number(), any_number()),
            (arrival_rate, service_rate) in (any_rate(), any_rate()),
            oldest_age in any_time(),
            processing_mean in prop::option::of(any_time()),
            rate_max in prop::option::of(any_rate()),
        ) -> ScalingInputs {
            ScalingInputs {
                backlog, in_flight, consumers, oldest_age, arrival_rate, service_rate, processing_mean, rate_max,
            }
        }
    }

    prop_compose! {
        fn any_target()(drain in any_time(), min in 0u32..100, max in prop_oneof![0u32..100, Just(u32::MAX)])
            -> ScalingTarget
        {
            ScalingTarget { drain, min, max }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn advice_is_within_bounds_and_made_of_numbers(inputs in any_inputs(), target in any_target()) {
            let advice = advise(&inputs, &target);
            prop_assert!(advice.desired_consumers <= target.max);
            prop_assert!(advice.desired_consumers >= target.min.min(target.max));
            if let Some(seconds) = advice.drain_time {
                prop_assert!(seconds.is_finite() && seconds >= 0.0);
            }
        }

        #[test]
        fn more_backlog_never_asks_for_fewer(inputs in any_inputs(), target in any_target(), more in any_number()) {
            let larger = ScalingInputs { backlog: inputs.backlog.saturating_add(more), ..inputs };
            let desired = |inputs| advise(inputs, &target).desired_consumers;
            prop_assert!(desired(&inputs) <= desired(&larger));
        }

        /// By the better of what they were seen to do and what their times promise.
        #[test]
        fn those_asked_for_keep_up_with_what_arrives(
            inputs in any_inputs(),
            arrival_rate in 0.01f64..1_000.0,
        ) {
            let inputs = ScalingInputs { arrival_rate, rate_max: None, ..inputs };
            let desired = advise(&inputs, &ScalingTarget { max: u32::MAX, ..TARGET }).desired_consumers;
            let known = [measured_rate(&inputs), estimated_rate(&inputs)];
            if let Some(each) = known.into_iter().flatten().reduce(f64::max) {
                prop_assert!(f64::from(desired) * each >= arrival_rate * 0.999_999 || desired == u32::MAX);
            }
            prop_assert!(desired >= 1);
        }
    }
}
