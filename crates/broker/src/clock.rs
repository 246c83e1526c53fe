//! The time, as the server tells it. The only reader of the system clock.
//!
//! Wall time is read once, when the server starts. From then on the clock advances with monotonic time,
//! so that it never runs backwards or jumps, whatever happens to the machine's idea of the date: leases
//! and delays are as long as they say. A date that was corrected meanwhile shows after the next start.
//!
//! A test may have a clock that stands still until the test moves it ([`Clock::still`],
//! [`crate::broker::Broker::advance`]), so that an hour passes at once. Everything that a group, a stream or a
//! receive waits for goes by that clock. Timeouts of connections do not: a network needs its time whatever a
//! test says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_core::types::Timestamp;
use tokio::sync::Notify;

/// Copies of a clock tell the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Timestamp,
    /// Of a clock that stands still.
    hand: Option<&'static Hand>,
}

/// The hand of a clock that does not move by itself.
#[derive(Debug, Default)]
struct Hand {
    /// Microseconds since the clock was made.
    moved: AtomicU64,
    /// The time that waiting tasks were last told. A moment behind `moved`, so that none of them sees a time at
    /// which the shard has not done its work yet.
    told: AtomicU64,
    bell: Notify,
}

impl Clock {
    pub fn start() -> Clock {
        // A machine whose date is before 1970 has no date; its clock then counts from there.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), wall: Timestamp::ZERO + wall, hand: None }
    }

    /// A clock for tests: it tells the date at which it was made until it is moved.
    pub fn still() -> Clock {
        // Never given back, so that the clock can be copied like any other. A test makes one or two, of a few
        // bytes each, and a server that serves makes none.
        let hand: &'static Hand = Box::leak(Box::default());
        Clock { hand: Some(hand), ..Clock::start() }
    }

    /// Whether it moves only when it is told to.
    pub fn is_still(&self) -> bool {
        self.hand.is_some()
    }

    /// The same clock, ahead if need be, so that it tells no time before this. The machine's date may have
    /// been set back since the last run, and decisions of that run must not lie in the future.
    pub fn not_before(self, latest: Timestamp) -> Clock {
        let behind = latest.since(self.now());
        Clock { wall: self.wall + behind, ..self }
    }

    pub fn now(&self) -> Timestamp {
        match self.hand {
            Some(hand) => self.wall + Duration::from_micros(hand.moved.load(Ordering::SeqCst)),
            None => self.wall + self.started.elapsed(),
        }
    }

    /// The machine's date, for what strangers say of the time. Unlike `now` it follows when the date is set, and may go
    /// back; nothing here is decided by it.
    pub fn date(&self) -> Timestamp {
        match self.hand {
            Some(_) => self.now(),
            None => Timestamp::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// The same moment for a timer; at once if it has passed. On a clock that stands still no other moment
    /// comes by itself: `tell` wakes the tasks that wait.
    pub fn instant_of(&self, at: Timestamp) -> Instant {
        match self.hand {
            Some(_) if at <= self.now() => self.started,
            Some(_) => Instant::now() + FAR,
            // A deadline that is further away than a timer can tell is looked at again when that has passed.
            None => self.started + at.since(self.wall).min(FAR),
        }
    }

    /// Resolves when it is this late.
    pub async fn reaches(self, at: Timestamp) {
        let Some(hand) = self.hand else {
            return tokio::time::sleep_until(self.instant_of(at).into()).await;
        };
        loop {
            let mut rings = std::pin::pin!(hand.bell.notified());
            // In line before the time is read, so that nothing is told in between.
            rings.as_mut().enable();
            if self.wall + Duration::from_micros(hand.told.load(Ordering::SeqCst)) >= at {
                return;
            }
            rings.await;
        }
    }

    /// Moves a clock that stands still. Waiting tasks learn of it from [`Clock::tell`].
    pub(crate) fn advance(&self, by: Duration) {
        if let Some(hand) = self.hand {
            let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
            let later = |moved: u64| Some(moved.saturating_add(by));
            let _ = hand.moved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }
    }

    /// Wakes the tasks that wait for a time that has come.
    pub(crate) fn tell(&self) {
        if let Some(hand) = self.hand {
            hand.told.fetch_max(hand.moved.load(Ordering::SeqCst), Ordering::SeqCst);
            hand.bell.notify_waiters();
        }
    }
}

/// Further ahead than any server lives.
const FAR: Duration = Duration::from_secs(50 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_date_and_never_goes_back() {
        let clock = Clock::start();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("the date is after 1970");
        let first = clock.now();
        assert!(first.since(Timestamp::ZERO + wall) < Duration::from_secs(5));
        for _ in 0..1_000 {
            assert!(clock.now() >= first);
        }
    }

    #[test]
    fn a_date_that_was_set_back_does_not_set_it_back() {
        let clock = Clock::start();
        let ahead = clock.now() + Duration::from_secs(3_600);
        assert!(clock.not_before(ahead).now() >= ahead);
        let behind = clock.now() - Duration::from_secs(3_600);
        assert!(clock.not_before(behind).now().since(clock.now()) < Duration::from_secs(60));
    }

    #[test]
    fn a_moment_in_the_future_is_as_far_for_a_timer() {
        let clock = Clock::start();
        let now = clock.now();
        let ahead = clock.instant_of(now + Duration::from_secs(3)) - clock.instant_of(now);
        assert_eq!(ahead, Duration::from_secs(3));
        assert!(clock.instant_of(Timestamp::ZERO) <= Instant::now());
        let _ = clock.instant_of(Timestamp(u64::MAX));
    }

    #[test]
    fn one_that_stands_still_moves_when_it_is_told_and_its_copies_with_it() {
        let clock = Clock::still();
        let copy = clock;
        let then = clock.now();
        assert!(then.since(Clock::start().now()) < Duration::from_secs(5), "it tells the date");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(clock.now(), then);
        clock.advance(Duration::from_secs(30));
        assert_eq!(copy.now(), then + Duration::from_secs(30));
        let ahead = copy.not_before(then + Duration::from_secs(90));
        clock.advance(Duration::from_secs(1));
        assert_eq!(ahead.now(), then + Duration::from_secs(91), "one that was set ahead moves as well");
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp(u64::MAX));
    }

    #[test]
    fn nothing_comes_by_itself_where_time_stands_still() {
        let clock = Clock::still();
        let next = clock.now() + Duration::from_micros(1);
        assert!(clock.instant_of(clock.now()) <= Instant::now());
        assert!(clock.instant_of(next) > Instant::now() + Duration::from_secs(86_400));
        clock.advance(Duration::from_micros(1));
        assert!(clock.instant_of(next) <= Instant::now());
    }

    #[tokio::test]
    async fn those_who_wait_for_a_time_learn_that_it_has_come() {
        let clock = Clock::still();
        let at = clock.now() + Duration::from_secs(60);
        let waits = tokio::spawn(clock.reaches(at));
        for _ in 0..2 {
            tokio::task::yield_now().await;
            assert!(!waits.is_finished());
            clock.advance(Duration::from_secs(30));
            clock.tell();
        }
        waits.await.expect("it has come");
        clock.reaches(at).await;
        let running = Clock::start();
        running.reaches(running.now() + Duration::from_millis(1)).await;
    }
}
