//! Figures of consumers: how many events, and how long they take. Each look at a subscription measures since the look
//! before, as its clients know it.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_core::types::Timestamp;

/// Answered events that the times of a consumer are taken from.
const TIMES_MAX: usize = 1_000;

/// The count at the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    at: Option<Timestamp>,
    total: u64,
}

impl Measured {
    /// How many there were since the last time, and how many each second. `since`: when counting began.
    pub(crate) fn look(&mut self, now: Timestamp, since: Timestamp, total: u64) -> (i64, i32) {
        let before = std::mem::replace(self, Measured { at: Some(now), total });
        let count = total.saturating_sub(before.total);
        let micros = now.0.saturating_sub(before.at.unwrap_or(since).0);
        let per_second = u128::from(count) * 1_000_000 / u128::from(micros.max(1_000_000));
        (i64::try_from(count).unwrap_or(i64::MAX), i32::try_from(per_second).unwrap_or(i32::MAX))
    }
}

/// How long the last events took from when they were sent until they were answered, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(VecDeque<u32>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        if self.0.len() == TIMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    }

    /// The measurements under their known names. None if nothing was answered.
    pub(crate) fn measurements(&self) -> Vec<(&'static str, i64)> {
        let mut times: Vec<u32> = self.0.iter().copied().collect();
        times.sort_unstable();
        let (Some(&fastest), Some(&highest)) = (times.first(), times.last()) else { return Vec::new() };
        let sum: u64 = times.iter().copied().map(u64::from).sum();
        // The time at a rank, in thousandths of all.
        let at = |share: usize| i64::from(times[(times.len() * share / 1_000).min(times.len() - 1)]);
        vec![
            ("Mean", i64::try_from(sum / times.len() as u64).unwrap_or(i64::MAX)),
            ("Median", at(500)),
            ("Fastest", i64::from(fastest)),
            ("Quintile 1", at(0)),
            ("Quintile 2", at(200)),
            ("Quintile 3", at(400)),
            ("Quintile 4", at(600)),
            ("Quintile 5", at(800)),
            ("90%", at(900)),
            ("95%", at(950)),
            ("99%", at(990)),
            ("99.5%", at(995)),
            ("99.9%", at(999)),
            ("Highest", i64::from(highest)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_have_their_known_names_and_order() {
        let mut times = Times::default();
        assert_eq!(times.measurements(), []);
        // The first hundred are too long ago.
        for ms in (0..100).map(|_| 9_999).chain(1..=1_000) {
            times.add(Duration::from_millis(ms));
        }
        let expected = [
            ("Mean", 500),
            ("Median", 501),
            ("Fastest", 1),
            ("Quintile 1", 1),
            ("Quintile 2", 201),
            ("Quintile 3", 401),
            ("Quintile 4", 601),
            ("Quintile 5", 801),
            ("90%", 901),
            ("95%", 951),
            ("99%", 991),
            ("99.5%", 996),
            ("99.9%", 1_000),
            ("Highest", 1_000),
        ];
        assert_eq!(times.measurements(), expected);
        let mut one = Times::default();
        one.add(Duration::from_micros(7_900));
        assert!(one.measurements().iter().all(|(_, ms)| *ms == 7), "whole milliseconds");
    }

    #[test]
    fn a_look_counts_from_the_look_before() {
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        let mut measured = Measured::default();
        assert_eq!(measured.look(at(10), at(0), 100), (100, 10));
        assert_eq!(measured.look(at(12), at(0), 104), (4, 2));
        assert_eq!(measured.look(at(12), at(0), 104), (0, 0));
        // A short time is not blown up to a rate that never was.
        assert_eq!(measured.look(Timestamp(12_000_001), at(0), 107), (3, 3));
    }
}
