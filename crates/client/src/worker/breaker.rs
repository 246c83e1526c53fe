//! The circuit breaker: stops taking messages while most jobs fail, and probes when that is over.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Settings of a circuit breaker: when a worker stops taking messages because a service that its jobs need is down.
///
/// While the breaker is open the worker takes nothing and gives back messages that have not begun, so that they do not
/// use up their retries in vain. After a while it lets a few probes through: if they succeed it closes, and if one
/// fails it stays open for twice as long.
///
/// Only failures that may pass count: transient faults, timeouts, panics and throttling.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerPolicy {
    /// How many of the latest results count.
    pub results: usize,
    /// The breaker opens if this share of them, from 0 to 1, are failures.
    pub failure_ratio: f64,
    /// How long it is open at first.
    pub open_min: Duration,
    /// How long it is open at most, after doubling.
    pub open_max: Duration,
    /// How many probes must succeed before it closes.
    pub probes: u32,
}

impl Default for BreakerPolicy {
    fn default() -> BreakerPolicy {
        BreakerPolicy {
            results: 20,
            failure_ratio: 0.5,
            open_min: Duration::from_secs(5),
            open_max: Duration::from_secs(60),
            probes: 1,
        }
    }
}

/// The state of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BreakerState {
    /// Jobs run as usual.
    #[default]
    Closed,
    /// No messages are taken.
    Open,
    /// A few probes run.
    HalfOpen,
}

/// The longest time that a breaker stays open.
const OPEN_MAX: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
pub(super) struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// How long it is open the next time.
    open_for: Duration,
}

#[derive(Debug)]
enum State {
    /// The latest results; true is a failure.
    Closed(VecDeque<bool>),
    Open {
        until: Instant,
    },
    HalfOpen {
        out: u32,
        good: u32,
    },
}

/// How many jobs may begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Any,
    /// As many as this, beside those that run.
    Probes(u32),
    Nothing {
        until: Instant,
    },
}

impl Breaker {
    pub(super) fn new(mut policy: BreakerPolicy) -> Breaker {
        policy.open_max = policy.open_max.min(OPEN_MAX);
        policy.open_min = policy.open_min.min(policy.open_max);
        let open_for = policy.open_min;
        Breaker { policy, state: State::Closed(VecDeque::new()), open_for }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed(_) => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    pub(super) fn gate(&mut self, now: Instant) -> Gate {
        if let State::Open { until } = self.state {
            if now < until {
                return Gate::Nothing { until };
            }
            self.state = State::HalfOpen { out: 0, good: 0 };
        }
        match self.state {
            State::HalfOpen { out, good } => {
                Gate::Probes(self.policy.probes.max(1).saturating_sub(out + good))
            }
            _ => Gate::Any,
        }
    }

    pub(super) fn began(&mut self) {
        if let State::HalfOpen { out, .. } = &mut self.state {
            *out += 1;
        }
    }

    /// A job ended: each of its messages with a failure or not, or given back, which does not count.
    pub(super) fn ended(&mut self, now: Instant, failed: impl IntoIterator<Item = Option<bool>>) {
        for failed in failed {
            self.message_ended(now, failed);
        }
        if let State::HalfOpen { out, .. } = &mut self.state {
            // Jobs that began before it opened may end now as well. They count as probes.
            *out = out.saturating_sub(1);
        }
    }

    fn message_ended(&mut self, now: Instant, failed: Option<bool>) {
        match &mut self.state {
            State::Closed(results) => {
                let Some(failed) = failed else { return };
                if results.len() >= self.policy.results.max(1) {
                    results.pop_front();
                }
                results.push_back(failed);
                let failures = results.iter().filter(|failed| **failed).count();
                let is_full = results.len() >= self.policy.results.max(1);
                if is_full && failures as f64 >= self.policy.failure_ratio * results.len() as f64 {
                    self.open(now);
                }
            }
            State::HalfOpen { good, .. } => match failed {
                Some(true) => {
                    self.open_for = self.open_for.saturating_mul(2).min(self.policy.open_max);
                    self.open(now);
                }
                Some(false) => {
                    *good += 1;
                    if *good >= self.policy.probes.max(1) {
                        self.open_for = self.policy.open_min;
                        self.state = State::Closed(VecDeque::new());
                    }
                }
                None => {}
            },
            State::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Instant) {
        self.state = State::Open { until: now + self.open_for };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy { results: 4, probes: 2, ..BreakerPolicy::default() })
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_opens_when_half_of_the_latest_results_are_failures() {
        let now = Instant::now();
        let mut breaker = breaker();
        for failed in [false, false, true] {
            breaker.ended(now, [Some(failed)]);
            assert_eq!(breaker.gate(now), Gate::Any);
        }
        breaker.ended(now, [None]);
        assert_eq!(breaker.gate(now), Gate::Any, "what was given back says nothing");
        breaker.ended(now, [Some(true)]);
        assert_eq!(breaker.gate(now), Gate::Nothing { until: now + 5 * SECOND });
    }

    #[test]
    fn two_good_probes_close_it_and_a_bad_one_doubles_the_wait() {
        let now = Instant::now();
        let mut breaker = breaker();
        for _ in 0..4 {
            breaker.ended(now, [Some(true)]);
        }
        let now = now + 5 * SECOND;
        assert_eq!(breaker.gate(now), Gate::Probes(2));
        breaker.began();
        assert_eq!(breaker.gate(now), Gate::Probes(1));
        breaker.ended(now, [Some(true)]);
        assert_eq!(breaker.gate(now), Gate::Nothing { until: now + 10 * SECOND });
        let now = now + 10 * SECOND;
        for left in [2, 1] {
            assert_eq!(breaker.gate(now), Gate::Probes(left));
            breaker.began();
        }
        assert_eq!(breaker.gate(now), Gate::Probes(0));
        breaker.ended(now, [Some(false)]);
        assert_eq!(breaker.gate(now), Gate::Probes(0), "one that succeeded is not tried again");
        breaker.ended(now, [Some(false)]);
        assert_eq!(breaker.gate(now), Gate::Any);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_probe_that_was_given_back_is_tried_again() {
        let now = Instant::now();
        let mut breaker = breaker();
        for _ in 0..4 {
            breaker.ended(now, [Some(true)]);
        }
        let now = now + 5 * SECOND;
        assert_eq!(breaker.gate(now), Gate::Probes(2));
        breaker.began();
        breaker.ended(now, [None]);
        assert_eq!(breaker.gate(now), Gate::Probes(2));
    }
}
