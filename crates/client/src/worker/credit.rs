//! How many messages the server may have delivered to this worker and not settled.

use std::time::Duration;

use super::desk::Desk;
use super::scale;

/// The byte limit of a worker, so that no reply becomes larger than can be read.
pub(super) const CREDIT_BYTES: u64 = 16 << 20;
/// Below this every change is sent.
const SMALL: u32 = 8;

/// The credit that the server was told last.
#[derive(Debug)]
pub(super) struct Credit {
    current: u32,
    /// The most that the server gives to one consumer.
    max: u32,
}

impl Credit {
    pub(super) fn new() -> Credit {
        Credit { current: 0, max: u32::MAX }
    }

    /// How many messages the worker would like to hold.
    pub(super) fn wanted(desk: &Desk, prefetch: Option<usize>, rate: Option<f64>) -> usize {
        let (limit, mean): (usize, Option<Duration>) = (desk.limit(), desk.job_mean());
        let prefetch = prefetch.unwrap_or_else(|| scale::prefetch(limit, mean));
        scale::credit(limit * desk.together() + prefetch, desk.with_runners(), desk.shut_in(), rate)
    }

    /// The credit to join with.
    pub(super) fn open(&mut self, wanted: usize, allowed: usize) -> u32 {
        self.current = to_u32(wanted.min(allowed));
        self.current
    }

    /// The server has accepted the worker, with this limit.
    pub(super) fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// The credit to send, if it has changed enough to be worth a request. `allowed` is `usize::MAX` unless the breaker
    /// or a pause limits it.
    pub(super) fn change(&mut self, wanted: usize, allowed: usize) -> Option<u32> {
        let wanted = to_u32(wanted.min(allowed)).min(self.max);
        let is_near = wanted.abs_diff(self.current) <= self.current / 4;
        let is_unlimited = allowed == usize::MAX;
        if wanted == self.current || (is_near && wanted > 0 && is_unlimited && self.current > SMALL) {
            return None;
        }
        self.current = wanted;
        Some(wanted)
    }

    /// The worker takes nothing more.
    pub(super) fn close(&mut self) -> u32 {
        self.current = 0;
        0
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_are_not_sent_unless_the_breaker_asks() {
        let mut credit = Credit::new();
        assert_eq!(credit.open(100, usize::MAX), 100);
        assert_eq!(credit.change(120, usize::MAX), None, "within a quarter");
        assert_eq!(credit.change(120, 90), Some(90));
        assert_eq!(credit.change(0, usize::MAX), Some(0));
        assert_eq!(credit.change(4, usize::MAX), Some(4));
        assert_eq!(credit.change(5, usize::MAX), Some(5), "few are told exactly");
        credit.set_max(50);
        assert_eq!(credit.change(1_000, usize::MAX), Some(50));
        assert_eq!(credit.close(), 0);
    }
}
