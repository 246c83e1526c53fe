//! The time, as the server tells it. The only reader of the system clock.
//!
//! Wall time is read once, when the server starts. From then on the clock advances with monotonic time,
//! so that it never runs backwards or jumps, whatever happens to the machine's idea of the date: leases
//! and delays are as long as they say. A date that was corrected meanwhile shows after the next start.
//!
//! Times in the log never go back either. If the date at a start is behind the log, because an earlier start had a
//! date that was ahead, the clock begins at the log's time and is ahead of the date. It then runs slower by a tenth
//! (`SLOWER_BY`) until the date has caught up, so that nothing ends before its time, and times are right again one
//! day. Meanwhile, a date that a client names is translated ([`Moment::of_date`]).
//!
//! Monotonic time comes from `tokio`, as the timers do. The simulator runs the shard task on a runtime whose time it
//! moves by itself, and the clock follows ([`Clock::starting_at`]).
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
    /// How far it was ahead of the date at `started`.
    ahead: Duration,
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
        Clock::starting_at(Timestamp::ZERO + wall)
    }

    /// A clock that tells this time now, whatever the machine's date is. For the simulator, in which nothing may depend
    /// on the machine.
    pub fn starting_at(wall: Timestamp) -> Clock {
        Clock { started: instant_now(), wall, ahead: Duration::ZERO, hand: None }
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
    ///
    /// It runs slower until the date has caught up; one that stands still does not.
    pub fn not_before(self, latest: Timestamp) -> Clock {
        let behind = latest.since(self.now());
        if self.is_still() || behind.is_zero() {
            return Clock { wall: self.wall + behind, ..self };
        }
        Clock { started: instant_now(), wall: latest, ahead: self.ahead + behind, hand: None }
    }

    /// A clock that goes on from this time, which another machine had, whatever the date of this one is. One that is
    /// ahead of the date runs slower until the date has caught up; one that is behind stays behind, since nothing may
    /// end before its time.
    pub fn going_on_from(self, at: Timestamp) -> Clock {
        if self.is_still() || at >= self.now() {
            return self.not_before(at);
        }
        Clock { started: instant_now(), wall: at, ahead: Duration::ZERO, hand: None }
    }

    pub fn now(&self) -> Timestamp {
        match self.hand {
            Some(hand) => self.wall + Duration::from_micros(hand.moved.load(Ordering::SeqCst)),
            None => self.after(self.elapsed()),
        }
    }

    fn elapsed(&self) -> Duration {
        instant_now().saturating_duration_since(self.started)
    }

    /// Its time when so much has passed since it was started.
    fn after(&self, passed: Duration) -> Timestamp {
        self.wall + (passed - (passed / SLOWER_BY).min(self.ahead))
    }

    /// How much passes from its start until it has advanced by so much.
    fn passes(&self, advance: Duration) -> Duration {
        if self.ahead.is_zero() {
            return advance;
        }
        // Rounded up, so that it has advanced by as much then.
        let slowly = advance + advance / (SLOWER_BY - 1) + Duration::from_micros(1);
        slowly.min(advance + self.ahead)
    }

    /// The present, and the means to tell where a date lies from here.
    pub fn moment(&self) -> Moment {
        Moment { now: self.now(), clock: Some(*self) }
    }

    /// How far the clock is ahead of the machine's date, in microseconds; less than zero if it is behind.
    pub fn ahead_of_date(&self) -> i64 {
        let (now, date) = (self.now().0, self.date().0);
        i64::try_from(i128::from(now) - i128::from(date)).unwrap_or(i64::MAX)
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
            Some(_) => instant_now() + FAR,
            // A deadline that is further away than a timer can tell is looked at again when that has passed.
            None => self.started + self.passes(at.since(self.wall).min(FAR)),
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

/// The runtime's monotonic time, which is the machine's unless a test has paused it.
fn instant_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A clock that is ahead of the date loses one of so many seconds.
const SLOWER_BY: u32 = 10;

/// The time at which a request is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now: Timestamp,
    clock: Option<Clock>,
}

impl Moment {
    /// A moment of a clock that tells the date.
    pub fn plain(now: Timestamp) -> Moment {
        Moment { now, clock: None }
    }

    /// The time of the clock when the machine's date will be this, or was. It counts from the date as it is now, so
    /// a clock that is ahead of the date is not early, as long as the server runs.
    pub fn of_date(&self, date: Timestamp) -> Timestamp {
        let Some(clock) = self.clock.filter(|clock| !clock.is_still()) else { return date };
        let today = clock.date();
        if date <= today {
            return self.now - today.since(date);
        }
        clock.after(clock.elapsed() + date.since(today))
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
    fn one_goes_on_from_the_time_of_another_machine() {
        let (clock, hour) = (Clock::start(), Duration::from_secs(3_600));
        let near = |one: Timestamp, other: Timestamp| {
            one.since(other).max(other.since(one)) < Duration::from_secs(60)
        };
        let behind = clock.going_on_from(clock.now() - hour);
        assert!(near(behind.now(), clock.now() - hour));
        assert!((behind.ahead_of_date() + 3_600_000_000).abs() < 60_000_000);
        // A date that a client names is as far away as it is by the date.
        assert!(near(behind.moment().of_date(clock.now() + hour), behind.now() + hour));
        assert!(behind.moment().of_date(clock.now() - hour) <= behind.now() - hour / 2);
        let later = clock.now() + hour;
        let ahead = clock.going_on_from(later);
        assert!(ahead.now() >= later && near(ahead.now(), later));
        assert!(
            near(Timestamp::ZERO + ahead.ahead, Timestamp::ZERO + hour),
            "it runs slower until the date has caught up"
        );
    }

    #[test]
    fn one_that_is_ahead_runs_slower_until_the_date_has_caught_up() {
        let hour = Duration::from_secs(3_600);
        let clock = Clock { ahead: 3 * hour, ..Clock::start() };
        let after = |passed: Duration| clock.after(passed).since(clock.wall);
        assert_eq!(after(10 * hour), 9 * hour);
        assert_eq!(after(30 * hour), 27 * hour, "caught up: 27 + 3 hours ahead of the start");
        assert_eq!(after(40 * hour), 37 * hour, "from then on as fast as any other");
        for advance in [Duration::ZERO, Duration::from_micros(7), hour, 26 * hour, 28 * hour, 99 * hour] {
            let passed = clock.passes(advance);
            assert!(after(passed) >= advance, "a timer is not early: {advance:?}");
            assert!(after(passed) - advance <= Duration::from_micros(2), "nor late: {advance:?}");
        }
    }

    #[test]
    fn a_date_is_as_far_away_by_a_clock_that_is_ahead() {
        let hour = Duration::from_secs(3_600);
        let near = |one: Timestamp, other: Timestamp| {
            one.since(other).max(other.since(one)) < Duration::from_secs(60)
        };
        let exact = Clock::start();
        let clock = exact.not_before(exact.now() + 3 * hour);
        assert!((clock.ahead_of_date() - 3 * 3_600_000_000).abs() < 60_000_000);
        let moment = clock.moment();
        // An hour from now is an hour from now, less the tenth by which the clock is slower.
        assert!(near(moment.of_date(exact.now() + hour), moment.now + hour - hour / 10));
        assert!(moment.of_date(exact.now() + hour) > moment.now, "it is not there yet");
        assert!(near(moment.of_date(exact.now() - hour), moment.now - hour));
        let still = Clock::still();
        assert_eq!(still.moment().of_date(Timestamp(5)), Timestamp(5));
        assert_eq!(Moment::plain(Timestamp(9)).of_date(Timestamp(5)), Timestamp(5));
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
