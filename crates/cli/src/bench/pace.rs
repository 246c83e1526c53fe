//! When messages are due, and who is told that they are.
//!
//! Without a rate nothing is ever due: a producer sends as soon as its window lets it. With a rate every message has a
//! time at which it should be sent, whatever the server does meanwhile, and its latency counts from there. A server
//! that stalls for a second thus has a second of latency with everything that should have been sent in it, and not with
//! the one message that happened to be under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Notify;

use crate::clock::{Clock, Timestamp};

/// A timer of the runtime is good to a millisecond, which is more than a message takes; a thread's sleep to some
/// fifty microseconds. Sleeping less than this at a time gains nothing.
const NAP_MIN: Duration = Duration::from_micros(100);
/// How soon the thread sees that it may end.
const NAP_MAX: Duration = Duration::from_millis(50);

/// An open loop: messages at even distances, the producers in turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) began: Timestamp,
    pub(super) per_second: f64,
    pub(super) producers: u64,
}

impl Pace {
    /// When a message of a producer is due.
    pub(super) fn due(&self, producer: u16, number: u64) -> Timestamp {
        self.at(number * self.producers + u64::from(producer))
    }

    fn at(&self, index: u64) -> Timestamp {
        self.began + Duration::from_secs_f64(index as f64 / self.per_second)
    }

    /// How many messages of all producers are due by then.
    fn total(&self, now: Timestamp) -> u64 {
        if now < self.began {
            return 0;
        }
        (now.since(self.began).as_secs_f64() * self.per_second) as u64 + 1
    }

    fn count(&self, producer: u16, now: Timestamp) -> u64 {
        (self.total(now) + self.producers - 1 - u64::from(producer)) / self.producers
    }
}

/// The messages that one producer has to send.
#[derive(Debug, Clone)]
pub(super) struct Feed {
    pub(super) producer: u16,
    /// The most at once.
    pub(super) batch: u64,
    /// Messages that this producer sends in all.
    pub(super) share: u64,
    /// Nothing is sent from then on.
    pub(super) until: Timestamp,
    pub(super) pace: Option<Pace>,
    next: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Send(u64),
    /// For room, or for the next one to be due.
    Wait,
    Over,
}

impl Feed {
    pub(super) fn new(producer: u16, batch: u64, share: u64, until: Timestamp, pace: Option<Pace>) -> Feed {
        Feed { producer, batch, share, until, pace, next: 0 }
    }

    /// What to do now, with room for so many messages.
    pub(super) fn next(&self, now: Timestamp, room: u64) -> Next {
        if self.next >= self.share || now >= self.until {
            return Next::Over;
        }
        let left = self.share - self.next;
        match self.pace {
            Some(pace) => {
                match (pace.count(self.producer, now).saturating_sub(self.next)).min(left).min(room) {
                    0 => Next::Wait,
                    due => Next::Send(due.min(self.batch)),
                }
            }
            None if room < self.batch.min(left) => Next::Wait,
            None => Next::Send(self.batch.min(left)),
        }
    }

    /// Takes the next so many, and answers the first of them.
    pub(super) fn take(&mut self, count: u64) -> u64 {
        self.next += count;
        self.next - count
    }

    /// From when the time of a message counts that was sent then.
    pub(super) fn since(&self, number: u64, sent: Timestamp) -> Timestamp {
        self.pace.map_or(sent, |pace| pace.due(self.producer, number))
    }

    /// Those that were due before the end and were not sent.
    pub(super) fn unsent(&self) -> std::ops::Range<u64> {
        let due = self.pace.filter(|_| self.until < Timestamp(u64::MAX)).map_or(0, |pace| {
            // A message that is due at the very end is not due before it.
            pace.count(self.producer, Timestamp(self.until.0 - 1))
        });
        self.next..due.min(self.share).max(self.next)
    }
}

/// Wakes producers up when their messages are due. Ends when dropped.
#[derive(Debug)]
pub(super) struct Metronome {
    bells: Vec<Arc<Notify>>,
    stop: Arc<AtomicBool>,
}

impl Metronome {
    /// Without a pace it never rings.
    pub(super) fn start(
        pace: Option<Pace>,
        producers: u64,
        clock: Clock,
        until: Timestamp,
    ) -> anyhow::Result<Metronome> {
        let bells: Vec<Arc<Notify>> = (0..producers).map(|_| Arc::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(pace) = pace {
            let (bells, stop) = (bells.clone(), stop.clone());
            std::thread::Builder::new()
                .name("metronome".to_owned())
                .spawn(move || beat(pace, clock, until, &bells, &stop))
                .context("cannot start a thread")?;
        }
        Ok(Metronome { bells, stop })
    }

    pub(super) fn bell(&self, producer: u16) -> Arc<Notify> {
        self.bells[usize::from(producer)].clone()
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn beat(pace: Pace, clock: Clock, until: Timestamp, bells: &[Arc<Notify>], stop: &AtomicBool) {
    let mut rung = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        let due = pace.total(now);
        for index in (rung..due).take(bells.len()) {
            bells[(index % pace.producers) as usize].notify_one();
        }
        rung = due;
        if now >= until {
            // So that all of them see it.
            return bells.iter().for_each(|bell| bell.notify_one());
        }
        std::thread::sleep(pace.at(due).min(until).since(now).clamp(NAP_MIN, NAP_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Timestamp = Timestamp(u64::MAX);

    fn at(micros: u64) -> Timestamp {
        Timestamp(1_000_000 + micros)
    }

    /// A message a millisecond.
    fn pace(producers: u64) -> Pace {
        Pace { began: at(0), per_second: 1_000.0, producers }
    }

    #[test]
    fn producers_take_turns_and_each_message_has_its_time() {
        let pace = pace(2);
        assert_eq!([pace.due(0, 0), pace.due(1, 0), pace.due(0, 1)], [at(0), at(1_000), at(2_000)]);
        assert_eq!((pace.count(0, Timestamp(0)), pace.count(1, at(500))), (0, 0));
        assert_eq!((pace.count(0, at(500)), pace.count(1, at(1_500)), pace.count(0, at(2_500))), (1, 1, 2));
        let all: u64 = (0..2).map(|producer| pace.count(producer, at(1_000_500))).sum();
        assert_eq!(all, 1_001);
    }

    #[test]
    fn with_a_rate_what_is_due_goes_and_what_could_not_go_is_still_due() {
        let mut feed = Feed::new(0, 10, u64::MAX, at(100_000), Some(pace(1)));
        assert_eq!(feed.next(at(500), 1_000), Next::Send(1));
        assert_eq!(feed.take(1), 0);
        assert_eq!(feed.next(at(600), 1_000), Next::Wait);
        // The server stalled for thirty milliseconds.
        assert_eq!(feed.next(at(30_500), 1_000), Next::Send(10));
        assert_eq!(feed.next(at(30_500), 3), Next::Send(3));
        assert_eq!(feed.next(at(30_500), 0), Next::Wait);
        assert_eq!(feed.since(7, at(30_500)), at(7_000), "it counts from when it was due");
        assert_eq!(feed.next(at(100_000), 1_000), Next::Over);
        assert_eq!(feed.unsent(), 1..100);
    }

    #[test]
    fn without_a_rate_whole_batches_go_while_there_is_room() {
        let mut feed = Feed::new(0, 64, 100, NEVER, None);
        assert_eq!(feed.next(at(0), 63), Next::Wait);
        assert_eq!(feed.next(at(0), 64), Next::Send(64));
        feed.take(64);
        assert_eq!(feed.next(at(0), 36), Next::Send(36), "the last one is what is left");
        assert_eq!(feed.since(64, at(9)), at(9));
        feed.take(36);
        assert_eq!(feed.next(at(0), 64), Next::Over);
        assert_eq!(feed.unsent(), 100..100);
    }

    #[tokio::test]
    async fn a_bell_rings_when_something_is_due_and_at_the_end() {
        let clock = Clock::start();
        let began = clock.now() + Duration::from_millis(5);
        let pace = Pace { began, per_second: 100.0, producers: 2 };
        let until = began + Duration::from_millis(2);
        let metronome = Metronome::start(Some(pace), 2, clock, until).expect("a thread");
        let (first, second) = (metronome.bell(0), metronome.bell(1));
        first.notified().await;
        assert!(clock.now() >= began);
        second.notified().await;
        assert!(clock.now() >= until, "the second is due only after the end");
    }
}
