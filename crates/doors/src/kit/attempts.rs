//! Slows down clients that present wrong credentials. Only the answer to a wrong credential waits, so a client with a
//! right one is never held up by others behind the same address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_broker::api::Clock;
use forebay_core::types::Timestamp;
use tokio::sync::Semaphore;

/// Failures of one address that are answered at once.
const FREE: u32 = 4;
/// How long the first answer after those waits. Each further one waits twice as long, up to a limit.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// After this time without a failure an address begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are remembered. When there are more, the ones that came first are forgotten.
const ADDRESSES_MAX: usize = 4_096;
/// Answers that wait at a time. A further one does not: it takes memory, and a client can have many addresses.
const WAITING_MAX: usize = 1_024;

/// The failures of each address.
pub(crate) struct Attempts {
    /// Locked to count a failure.
    failures: Mutex<HashMap<IpAddr, Failures>>,
    waiting: Semaphore,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Timestamp,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { failures: Mutex::default(), waiting: Semaphore::new(WAITING_MAX) }
    }
}

impl Attempts {
    /// Counts a failure, and waits as long as the answer to it has to.
    pub(crate) async fn failed(&self, clock: Clock, door: &'static str, from: IpAddr) {
        let count = self.count(clock.now(), network_of(from));
        let wait = wait_of(count);
        if count == FREE + 1 {
            tracing::warn!(door, peer = %from, "wrong credentials come from an address; its failures are slowed down");
        }
        if let Ok(_place) = self.waiting.try_acquire()
            && !wait.is_zero()
        {
            tokio::time::sleep(wait).await;
        }
    }

    /// How many failures an address has, with this one.
    fn count(&self, now: Timestamp, from: IpAddr) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&from) {
            failures.retain(|_, of| now.since(of.last) < FORGOTTEN_AFTER);
            if failures.len() >= ADDRESSES_MAX
                && let Some(oldest) =
                    failures.iter().min_by_key(|(_, of)| of.last).map(|(&address, _)| address)
            {
                failures.remove(&oldest);
            }
        }
        let of = failures.entry(from).or_insert(Failures { count: 0, last: now });
        if now.since(of.last) >= FORGOTTEN_AFTER {
            of.count = 0;
        }
        *of = Failures { count: of.count.saturating_add(1), last: now };
        of.count
    }
}

/// The wait for an address with so many failures.
fn wait_of(count: u32) -> Duration {
    match count.checked_sub(FREE + 1) {
        None => Duration::ZERO,
        Some(more) => FIRST_WAIT.saturating_mul(1 << more.min(10)).min(WAIT_MAX),
    }
}

/// A client of IPv6 has a network of addresses to itself.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn each_failure_waits_longer_than_the_last_up_to_a_limit() {
        let waits: Vec<u128> = (1..=12).map(|count| wait_of(count).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
        assert_eq!(wait_of(u32::MAX), WAIT_MAX);
    }

    #[test]
    fn failures_count_for_their_address_and_are_forgotten() {
        let (attempts, begin) = (Attempts::default(), Timestamp(1_000_000));
        assert_eq!([1, 2, 3].map(|_| attempts.count(begin, address(1))), [1, 2, 3]);
        assert_eq!(attempts.count(begin, address(2)), 1);
        assert_eq!(attempts.count(begin + FORGOTTEN_AFTER, address(1)), 1);
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let of = |text: &str| network_of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:5::6"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn the_table_has_a_limit() {
        let (attempts, begin) = (Attempts::default(), Timestamp(1_000_000));
        for n in 0..ADDRESSES_MAX as u32 + 100 {
            attempts.count(begin + Duration::from_micros(n.into()), address(n));
        }
        assert_eq!(attempts.failures.lock().expect("no panic").len(), ADDRESSES_MAX);
        assert_eq!(attempts.count(begin, address(0)), 1, "the first one was forgotten");
    }

    #[tokio::test]
    async fn the_answer_to_a_wrong_credential_waits() {
        let (attempts, clock) = (Attempts::default(), Clock::start());
        let begin = clock.now();
        for _ in 0..6 {
            attempts.failed(clock, "http", address(1)).await;
        }
        let waited = clock.now().since(begin);
        assert!(waited >= Duration::from_millis(300), "{waited:?}");
        assert_eq!(attempts.waiting.available_permits(), WAITING_MAX, "no answer waits any more");
    }
}
