//! Where passwords are checked. A check takes milliseconds of a core, on purpose, so that guessing is slow; and a
//! client may send its password with every request, and a stranger as many wrong ones as the network carries.
//!
//! - A password that was right is recognised again by a fast hash, which is in memory only and keyed with a secret.
//!   So is one that was wrong a moment ago, as a client with an old password sends it again and again.
//! - One password is checked at a time, on a thread of its own, and as long a pause follows: all guesses together take
//!   half of a core at most.
//! - Few checks may wait, and few of them for one address. Further ones are refused at once, as busy.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::password::Verifier;
use crate::clock::Clock;

/// Checks that wait or run.
const WAITING_MAX: usize = 64;
/// Of these, from one address.
const WAITING_PER_ADDRESS_MAX: usize = 4;
/// Wrong passwords that are remembered.
const WRONG_MAX: usize = 256;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    Wrong,
    /// It was not checked.
    Busy,
}

#[derive(Debug)]
pub(super) struct Desk {
    clock: Clock,
    one: Arc<Semaphore>,
    /// Locked to count.
    waiting: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// The hashes of names with wrong passwords, the newest last. Locked to look and to add.
    wrong: Mutex<VecDeque<blake3::Hash>>,
}

/// A check that waits or runs. It counts until it is dropped.
struct Place {
    waiting: Arc<Mutex<HashMap<IpAddr, usize>>>,
    from: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.from);
            }
        }
    }
}

impl Desk {
    pub(super) fn new(clock: Clock) -> Desk {
        let one = Arc::new(Semaphore::new(1));
        Desk { clock, one, waiting: Arc::default(), wrong: Mutex::default() }
    }

    /// Whether this name with this password was wrong a moment ago.
    pub(super) fn was_wrong(&self, hash: &blake3::Hash) -> bool {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).contains(hash)
    }

    pub(super) fn is_wrong(&self, hash: blake3::Hash) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() == WRONG_MAX {
            wrong.pop_front();
        }
        wrong.push_back(hash);
    }

    /// A password was set, so a password that was wrong may be right.
    pub(super) fn forget(&self) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Checks a password. Goes on if the caller does not wait for the outcome, so that leaving saves a client nothing.
    pub(super) async fn check(&self, from: IpAddr, verifier: Verifier, password: String) -> Checked {
        let Some(place) = self.place(from) else { return Checked::Busy };
        let (clock, one) = (self.clock, self.one.clone());
        let check = tokio::spawn(async move {
            let Ok(turn) = one.acquire_owned().await else { return (Checked::Busy, None) };
            let begun = clock.now();
            let checked = tokio::task::spawn_blocking(move || verifier.accepts(&password)).await;
            let checked = match checked {
                Ok(true) => Checked::Right,
                Ok(false) => Checked::Wrong,
                Err(_) => Checked::Busy,
            };
            let spent = clock.now().since(begun);
            // The outcome is told before the pause.
            let pause = async move {
                tokio::time::sleep(spent).await;
                drop((turn, place));
            };
            (checked, Some(tokio::spawn(pause)))
        });
        check.await.map_or(Checked::Busy, |(checked, _)| checked)
    }

    fn place(&self, from: IpAddr) -> Option<Place> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = waiting.values().sum();
        let here = waiting.entry(from).or_default();
        if *here >= WAITING_PER_ADDRESS_MAX || all >= WAITING_MAX {
            if *here == 0 {
                waiting.remove(&from);
            }
            return None;
        }
        *here += 1;
        Some(Place { waiting: self.waiting.clone(), from })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn verifier(iterations: u32) -> Verifier {
        Verifier::of("the password", [1; 16], NonZeroU32::new(iterations).expect("it is not zero"))
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[tokio::test]
    async fn a_password_is_right_or_wrong() {
        let desk = Desk::new(Clock::start());
        let check = |password: &str| desk.check(address(1), verifier(10), password.to_owned());
        assert_eq!(check("the password").await, Checked::Right);
        assert_eq!(check("another password").await, Checked::Wrong);
    }

    #[tokio::test]
    async fn few_checks_wait_and_few_of_them_for_one_address() {
        let desk = Desk::new(Clock::start());
        let held = desk.one.clone().acquire_owned().await.expect("it is open");
        let check = |n| desk.check(address(n), verifier(10), "the password".to_owned());
        let mut begun = Vec::new();
        for n in 0..WAITING_MAX {
            let place = desk.place(address(u8::try_from(n / WAITING_PER_ADDRESS_MAX).expect("few")));
            begun.push(place.expect("there is room"));
        }
        assert_eq!(check(200).await, Checked::Busy, "too many wait");
        begun.truncate(WAITING_PER_ADDRESS_MAX);
        assert_eq!(check(0).await, Checked::Busy, "too many of this address wait");
        drop(held);
        assert_eq!(check(1).await, Checked::Right, "another address is served");
        begun.clear();
        while !desk.waiting.lock().expect("no panic").is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_does_not_free_its_place() {
        let desk = Desk::new(Clock::start());
        let held = desk.one.clone().acquire_owned().await.expect("it is open");
        for _ in 0..WAITING_PER_ADDRESS_MAX {
            let check = desk.check(address(1), verifier(10), "the password".to_owned());
            let left = tokio::time::timeout(std::time::Duration::ZERO, check).await;
            assert!(left.is_err());
        }
        assert_eq!(desk.check(address(1), verifier(10), "the password".to_owned()).await, Checked::Busy);
        drop(held);
        while !desk.waiting.lock().expect("no panic").is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn wrong_passwords_are_remembered_up_to_a_limit() {
        let desk = Desk::new(Clock::still());
        let hash = |n: usize| blake3::hash(&n.to_le_bytes());
        for n in 0..=WRONG_MAX {
            assert!(!desk.was_wrong(&hash(n)));
            desk.is_wrong(hash(n));
        }
        assert!(!desk.was_wrong(&hash(0)) && desk.was_wrong(&hash(1)) && desk.was_wrong(&hash(WRONG_MAX)));
        desk.forget();
        assert!(!desk.was_wrong(&hash(1)));
    }
}
