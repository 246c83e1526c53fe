//! The story that the demo tells, as data.

use std::time::Duration;

/// An act of the story, which a process plays or suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// One worker is killed in the middle of its work.
    KillWorker,
    WorkerJoins,
    /// One worker is told to stop, and does so in order.
    WorkerLeaves,
    KillServer,
    StartServer,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Orders a second, and how many during the burst.
    pub(super) calm: f64,
    pub(super) burst: f64,
    pub(super) burst_from: Duration,
    pub(super) burst_until: Duration,
    /// When the last order comes.
    pub(super) orders_end: Duration,
    /// How many messages the workers get each second, however many wait.
    pub(super) pace: f64,
    /// Workers at the beginning.
    pub(super) workers: usize,
    /// The acts and their times, in order.
    pub(super) acts: Vec<(Duration, Act)>,
    /// How often the curves get a point.
    pub(super) sample: Duration,
}

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Plan {
    /// About half a minute.
    pub(super) fn full() -> Plan {
        Plan {
            calm: 150.0,
            burst: 2_500.0,
            burst_from: at(4.0),
            burst_until: at(8.0),
            orders_end: at(28.0),
            pace: 600.0,
            workers: 3,
            acts: vec![
                (at(11.0), Act::KillWorker),
                (at(13.0), Act::WorkerJoins),
                (at(16.0), Act::KillServer),
                (at(17.5), Act::StartServer),
                (at(21.0), Act::WorkerJoins),
                (at(21.0), Act::WorkerJoins),
                (at(25.0), Act::WorkerLeaves),
            ],
            sample: Duration::from_millis(500),
        }
    }

    /// The same in a few seconds.
    pub(super) fn quick() -> Plan {
        Plan {
            calm: 100.0,
            burst: 1_500.0,
            burst_from: at(0.4),
            burst_until: at(1.4),
            orders_end: at(3.5),
            acts: vec![
                (at(1.5), Act::KillWorker),
                (at(1.8), Act::WorkerJoins),
                (at(2.2), Act::KillServer),
                (at(2.5), Act::StartServer),
                (at(3.2), Act::WorkerLeaves),
            ],
            sample: Duration::from_millis(100),
            ..Plan::full()
        }
    }

    /// How many orders should have come by now.
    pub(super) fn orders_by(&self, now: Duration) -> f64 {
        let now = now.min(self.orders_end);
        let burst = now.min(self.burst_until).saturating_sub(self.burst_from);
        (now - burst).as_secs_f64() * self.calm + burst.as_secs_f64() * self.burst
    }
}

/// The trouble planned for an order. It follows from the order's number, so that all processes agree and
/// every run has some of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trouble {
    /// It can never be billed.
    pub(super) poison: bool,
    /// How often billing fails before it goes well.
    pub(super) fails: u32,
    /// The producer is not sure whether the order arrived, and sends it again.
    pub(super) copied: bool,
}

impl Trouble {
    pub(super) fn of(order: u64) -> Trouble {
        let fails = match order {
            order if order % 97 == 3 => 2,
            order if order % 31 == 5 => 1,
            _ => 0,
        };
        Trouble { poison: order % 211 == 17, fails, copied: order % 50 == 7 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_brings_far_more_than_the_pace_and_the_rest_less() {
        for plan in [Plan::full(), Plan::quick()] {
            assert!(plan.burst > 2.0 * plan.pace && plan.calm < plan.pace);
            assert!(plan.burst_from < plan.burst_until && plan.burst_until < plan.orders_end);
            let in_burst = plan.orders_by(plan.burst_until) - plan.orders_by(plan.burst_from);
            let expected = plan.burst * (plan.burst_until - plan.burst_from).as_secs_f64();
            assert!((in_burst - expected).abs() < 1.0, "{in_burst}");
            let all = plan.orders_by(plan.orders_end);
            assert_eq!(all, plan.orders_by(plan.orders_end * 2), "nothing comes after the end");
            // Each trouble must occur in the shortest run.
            let troubles: Vec<Trouble> = (0..all as u64).map(Trouble::of).collect();
            assert!(troubles.iter().any(|trouble| trouble.poison));
            assert!(troubles.iter().any(|trouble| trouble.fails == 2));
            assert!(troubles.iter().any(|trouble| trouble.copied));
        }
    }

    #[test]
    fn the_acts_come_in_order_and_the_server_comes_back() {
        for plan in [Plan::full(), Plan::quick()] {
            assert!(plan.acts.is_sorted_by_key(|(at, _)| *at));
            assert!(plan.acts.iter().all(|(at, _)| *at < plan.orders_end));
            let of = |act: Act| plan.acts.iter().position(|(_, of)| *of == act).expect("it happens");
            assert!(of(Act::KillServer) < of(Act::StartServer));
            of(Act::KillWorker);
        }
    }
}
