//! Keys that are fetched from the issuer: when the program has to fetch them, and how long a token with an unknown key
//! waits for that. The last keys stay in force while the issuer does not answer.
//!
//! A client without a credential can name any key, so a token makes the server fetch at most once in [`GAP_MIN`].

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_broker::api::{Clock, IssuerFigures};
use forebay_core::types::Timestamp;
use tokio::sync::{Notify, Semaphore, watch};

/// How often keys may be fetched without a need.
pub const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
/// The shortest time between two fetches, unless the timer or a failure asks for one.
const GAP_MIN: Duration = Duration::from_secs(10);
/// The pause after the first failure. It doubles up to the other, or to the usual time between two fetches.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long the answer to a token with an unknown key waits for a fetch.
const PATIENCE: Duration = Duration::from_secs(3);
/// Answers that wait at a time. A further one is told to try again.
const WAITING_MAX: usize = 256;

/// The plan, as a plain value.
#[derive(Debug)]
struct Schedule {
    every: Duration,
    due: Timestamp,
    /// When the last fetch began.
    begun: Option<Timestamp>,
    is_under_way: bool,
    /// In a row.
    failures: u32,
}

impl Schedule {
    fn new(now: Timestamp, every: Duration) -> Schedule {
        Schedule { every, due: now, begun: None, is_under_way: false, failures: 0 }
    }

    fn begin(&mut self, now: Timestamp) {
        self.begun = Some(now);
        self.is_under_way = true;
    }

    fn end(&mut self, now: Timestamp, is_good: bool) {
        self.is_under_way = false;
        self.failures = if is_good { 0 } else { self.failures.saturating_add(1) };
        let pause = match self.failures.checked_sub(1) {
            None => self.every,
            Some(more) => PAUSE_MIN.saturating_mul(1 << more.min(16)).min(PAUSE_MAX).min(self.every),
        };
        self.due = now + pause;
    }

    /// A token names an unknown key. Whether the keys are fetched now, or were asked for.
    fn ask(&mut self, now: Timestamp) -> bool {
        if !self.is_settled(now) {
            return true;
        }
        let may = self.begun.is_none_or(|begun| now.since(begun) >= GAP_MIN);
        if may {
            self.due = now;
        }
        may
    }

    /// Whether no fetch is under way or due.
    fn is_settled(&self, now: Timestamp) -> bool {
        !self.is_under_way && self.due > now
    }
}

/// When the keys are fetched, and the answers that wait for it.
#[derive(Debug)]
pub(super) struct Fetching {
    clock: Clock,
    /// Locked for one question.
    schedule: Mutex<Schedule>,
    /// The schedule was changed by a token.
    asked: Notify,
    figures: watch::Sender<Figures>,
    waiting: Semaphore,
}

#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    fetches: u64,
    failures: u64,
    fetched: Option<Timestamp>,
}

impl Fetching {
    pub(super) fn new(clock: Clock, every: Duration) -> Fetching {
        Fetching {
            clock,
            schedule: Mutex::new(Schedule::new(clock.now(), every)),
            asked: Notify::new(),
            figures: watch::Sender::default(),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    /// Resolves when a fetch has to begin, which is then under way.
    pub(super) async fn is_due(&self) {
        loop {
            let due = self.schedule().due;
            tokio::select! {
                () = self.clock.reaches(due) => break,
                () = self.asked.notified() => {}
            }
        }
        self.schedule().begin(self.clock.now());
    }

    pub(super) fn end(&self, is_good: bool) {
        let now = self.clock.now();
        self.schedule().end(now, is_good);
        self.figures.send_modify(|figures| {
            figures.fetches += 1;
            figures.failures += u64::from(!is_good);
            figures.fetched = if is_good { Some(now) } else { figures.fetched };
        });
    }

    /// A token names an unknown key. Whether the answer may be another one soon.
    pub(super) fn ask(&self) -> bool {
        let is_asked = self.schedule().ask(self.clock.now());
        if is_asked {
            self.asked.notify_one();
        }
        is_asked
    }

    /// Resolves when no fetch is under way or due, and at the latest after a few seconds.
    pub(super) async fn settled(&self) {
        let Ok(_place) = self.waiting.try_acquire() else { return };
        let mut ended = self.figures.subscribe();
        if self.schedule().is_settled(self.clock.now()) {
            return;
        }
        let _ = tokio::time::timeout(PATIENCE, ended.changed()).await;
    }

    pub(super) fn figures(&self, keys: usize) -> IssuerFigures {
        let Figures { fetches, failures, fetched } = *self.figures.borrow();
        let age = fetched.map(|fetched| self.clock.now().since(fetched));
        IssuerFigures { keys, fetches, failures, age }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(900);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1_000_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn keys_are_fetched_at_once_and_then_by_the_timer() {
        let mut schedule = Schedule::new(at(0), EVERY);
        assert_eq!((schedule.due, schedule.is_settled(at(0))), (at(0), false));
        schedule.begin(at(0));
        schedule.end(at(1), true);
        assert_eq!((schedule.due, schedule.is_settled(at(1))), (at(901), true));
        assert!(!schedule.is_settled(at(901)));
    }

    #[test]
    fn failures_are_tried_again_after_pauses_that_double() {
        let mut schedule = Schedule::new(at(0), EVERY);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.begin(at(0));
            schedule.end(at(0), false);
            pauses.push(schedule.due.since(at(0)).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        schedule.end(at(0), true);
        assert_eq!(schedule.due, at(900), "the pauses begin anew");
        let mut often = Schedule::new(at(0), Duration::from_secs(5));
        for _ in 0..9 {
            often.end(at(0), false);
        }
        assert_eq!(often.due, at(5), "never later than the timer");
    }

    #[test]
    fn unknown_keys_are_asked_for_at_a_bounded_rate() {
        let mut schedule = Schedule::new(at(0), EVERY);
        assert!(schedule.ask(at(0)), "the first fetch is due");
        schedule.begin(at(0));
        assert!(schedule.ask(at(5)), "it is under way");
        schedule.end(at(6), true);
        assert!(!schedule.ask(at(9)) && schedule.due == at(906), "the last one began nine seconds ago");
        assert!(schedule.ask(at(10)) && schedule.due == at(10));
        schedule.begin(at(10));
        schedule.end(at(10), false);
        let begun = (0..600u64).filter(|second| {
            let now = at(11 + second);
            schedule.ask(now);
            let is_due = schedule.due <= now;
            if is_due {
                schedule.begin(now);
                schedule.end(now, true);
            }
            is_due
        });
        assert_eq!(begun.count(), 60, "a flood of unknown keys is one fetch in ten seconds");
    }
}
