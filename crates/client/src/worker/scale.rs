//! How many jobs run at a time, and how many messages are held ready for them.
//!
//! Pure functions of the present state.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How many jobs a worker runs at a time: a fixed number, or between two bounds by the backlog.
///
/// ```
/// use forebay_client::worker::Concurrency;
///
/// let fixed: Concurrency = 8.into();
/// let automatic: Concurrency = (1..=64).into();
/// assert_ne!(fixed, automatic);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    pub(super) min: usize,
    pub(super) max: usize,
}

/// The most jobs of one worker.
const CONCURRENCY_MAX: usize = 10_000;

impl From<usize> for Concurrency {
    fn from(fixed: usize) -> Concurrency {
        Concurrency::from(fixed..=fixed)
    }
}

impl From<RangeInclusive<usize>> for Concurrency {
    /// Bounds are clamped to between 1 and 10,000.
    fn from(bounds: RangeInclusive<usize>) -> Concurrency {
        let min = (*bounds.start()).clamp(1, CONCURRENCY_MAX);
        Concurrency { min, max: (*bounds.end()).clamp(min, CONCURRENCY_MAX) }
    }
}

impl Concurrency {
    pub(super) fn is_automatic(&self) -> bool {
        self.min < self.max
    }
}

/// The state of the group and of this worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Messages that wait for a consumer.
    pub(super) backlog: u64,
    pub(super) oldest_age: Duration,
    /// Messages that come in each second.
    pub(super) arrival_rate: f64,
    /// Consumers that share the work, with this worker.
    pub(super) consumers: u64,
    /// How long one job takes, if any has ended.
    pub(super) job_mean: Option<Duration>,
    /// Jobs that run now.
    pub(super) running: usize,
}

/// How many jobs should run at a time from now on.
///
/// The work of each second is the arrivals, plus the share of the backlog that has to be done within the target
/// time; one job at a time does as many as fit in a second. It grows to that at once, at most doubling, and
/// shrinks slowly, so that a pause between two bursts does not cost the second one its start. If the oldest
/// message is older than the target, more are needed than one would think, and it grows whatever the sum says.
pub(super) fn concurrency(now: usize, load: &Load, target: Duration, bounds: Concurrency) -> usize {
    let target = target.as_secs_f64().max(1.0);
    let Some(job) = load.job_mean.map(|mean| mean.as_secs_f64()) else {
        // Jobs that have never ended may be long ones: as many more as there is work for.
        let wanted = if load.backlog > 0 && load.running >= now { now * 2 } else { now };
        return wanted.clamp(bounds.min, bounds.max);
    };
    let needed = (load.arrival_rate + load.backlog as f64 / target) * job / load.consumers.max(1) as f64;
    let mut wanted = needed.ceil().clamp(0.0, bounds.max as f64) as usize;
    if load.backlog > 0 && load.oldest_age.as_secs_f64() > target {
        wanted = wanted.max(now + now.div_ceil(2));
    }
    let slowest = now - now.div_ceil(8).min(now);
    wanted.clamp(slowest, now.saturating_mul(2).max(1)).clamp(bounds.min, bounds.max)
}

/// How much work, in time, is held ready beside the running jobs. Enough to cover many round trips to the
/// server, and so little that no other worker would have done it sooner.
const HELD_READY: Duration = Duration::from_millis(100);
const PREFETCH_MAX: f64 = 2_048.0;

/// How many messages to hold beside those that are being worked on.
///
/// If jobs are short, the round trip to the server dominates, and many are held; if they are long, none is held,
/// so that no message waits here while another worker could handle it.
pub(super) fn prefetch(concurrency: usize, job_mean: Option<Duration>) -> usize {
    let Some(job) = job_mean else { return concurrency };
    let ready = concurrency as f64 * HELD_READY.as_secs_f64() / job.as_secs_f64().max(1e-9);
    ready.min(PREFETCH_MAX) as usize
}

/// Messages that wait for a full bulkhead and make room for others, at most.
const SHUT_IN_MAX: usize = 1_024;
/// How much a worker with a rate of its own holds, in time.
const RATED_AHEAD: f64 = 1.0;

/// How many messages to hold in all, where `base` would do.
///
/// Messages that wait for a full bulkhead must not keep away messages that could go past it, so they do not count,
/// within reason. And a worker that may begin only so many each second holds no more than it can begin soon, however
/// short its jobs are.
pub(super) fn credit(base: usize, running: usize, shut_in: usize, rate: Option<f64>) -> usize {
    let credit = base + shut_in.min(SHUT_IN_MAX);
    match rate {
        Some(per_second) => credit.min(running + (per_second * RATED_AHEAD).ceil().max(1.0) as usize),
        None => credit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Concurrency = Concurrency { min: 1, max: 32 };
    const TARGET: Duration = Duration::from_secs(60);

    fn load() -> Load {
        Load {
            backlog: 0,
            oldest_age: Duration::ZERO,
            arrival_rate: 0.0,
            consumers: 1,
            job_mean: Some(Duration::from_millis(100)),
            running: 1,
        }
    }

    fn settle(mut now: usize, load: &Load) -> usize {
        for _ in 0..100 {
            now = concurrency(now, load, TARGET, BOUNDS);
        }
        now
    }

    #[test]
    fn it_settles_at_what_the_arrivals_and_the_backlog_need() {
        assert_eq!(settle(5, &load()), 1, "with nothing to do the fewest are enough");
        assert_eq!(settle(1, &Load { arrival_rate: 50.0, ..load() }), 5);
        assert_eq!(settle(1, &Load { arrival_rate: 50.0, backlog: 6_000, ..load() }), 15);
        let shared = Load { arrival_rate: 50.0, backlog: 6_000, consumers: 3, ..load() };
        assert_eq!(settle(1, &shared), 5, "the others do their part");
        assert_eq!(settle(1, &Load { backlog: 10_000_000, ..load() }), 32);
    }

    #[test]
    fn it_doubles_at_most_and_shrinks_slowly() {
        let busy = Load { backlog: 1_000_000, ..load() };
        assert_eq!(concurrency(2, &busy, TARGET, BOUNDS), 4);
        assert_eq!(concurrency(32, &load(), TARGET, BOUNDS), 28);
        assert_eq!(concurrency(2, &load(), TARGET, BOUNDS), 1);
    }

    #[test]
    fn an_old_message_makes_it_grow_whatever_the_sum_says() {
        let stale = Load { backlog: 3, oldest_age: 2 * TARGET, ..load() };
        assert_eq!(concurrency(4, &stale, TARGET, BOUNDS), 6);
    }

    #[test]
    fn before_the_first_job_has_ended_it_grows_while_all_are_busy() {
        let unknown = Load { backlog: 10, running: 4, job_mean: None, ..load() };
        assert_eq!(concurrency(4, &unknown, TARGET, BOUNDS), 8);
        assert_eq!(concurrency(4, &Load { running: 3, ..unknown }, TARGET, BOUNDS), 4);
    }

    #[test]
    fn short_jobs_are_held_ready_and_long_ones_are_not() {
        assert_eq!(prefetch(8, None), 8);
        assert_eq!(prefetch(8, Some(Duration::from_secs(1))), 0);
        assert_eq!(prefetch(8, Some(Duration::from_millis(10))), 80);
        assert_eq!(prefetch(8, Some(Duration::ZERO)), 2_048);
    }

    #[test]
    fn a_rate_and_a_full_bulkhead_have_their_say_in_the_credit() {
        assert_eq!(credit(100, 5, 0, None), 100);
        assert_eq!(credit(100, 5, 30, None), 130);
        assert_eq!(credit(100, 5, 1_000_000, None), 100 + SHUT_IN_MAX);
        assert_eq!(credit(100, 5, 0, Some(10.0)), 15);
        assert_eq!(credit(100, 5, 0, Some(0.1)), 6);
        assert_eq!(credit(100, 50, 0, Some(1e9)), 100);
    }

    #[test]
    fn bounds_make_sense_whatever_is_said() {
        assert_eq!(Concurrency::from(0), Concurrency { min: 1, max: 1 });
        #[expect(clippy::reversed_empty_ranges, reason = "what a user might write")]
        let reversed = Concurrency::from(8..=2);
        assert_eq!(reversed, Concurrency { min: 8, max: 8 });
    }
}
