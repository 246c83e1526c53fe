//! Prints the events of the worker: failures as they come, a lost connection once, and counts now and then.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_client::CallError;
use forebay_client::worker::{BreakerState, WorkerEvent, WorkerStats};
use serde_json::Value;

use super::console::Console;
use super::reason::first;
use crate::clock::Timestamp;
use crate::log::Level;
use crate::print::Output;
use crate::units;

/// How often counts are printed, if they have changed.
const COUNTS_EVERY: Duration = Duration::from_secs(10);
/// How much of a reason is shown on a line for people.
const SHOWN_BYTES_MAX: usize = 200;

pub(super) struct EventPrinter {
    console: Console,
    /// Whether counts are printed.
    counts: bool,
    /// The loss of the connection was printed.
    is_away: AtomicBool,
    /// The last count that was printed, and when.
    said: Mutex<Option<(Timestamp, u64)>>,
}

impl EventPrinter {
    pub(super) fn new(console: Console, output: Output) -> EventPrinter {
        EventPrinter {
            console,
            counts: output == Output::Json || std::io::stderr().is_terminal(),
            is_away: AtomicBool::new(false),
            said: Mutex::new(None),
        }
    }

    pub(super) fn say(&self, text: impl Into<String>) {
        self.console.log(Level::Info, text, &[]);
    }

    pub(super) fn stopping(&self, running: usize, time: Duration) {
        let running = units::of(running as u64, "message");
        let time = units::age(time.as_secs_f64());
        self.say(format!("stopping: waits for {running}, {time} at most; a second signal stops at once"));
    }

    /// Called from the worker's own tasks.
    pub(super) fn print_event(&self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Connected => self.is_back(),
            WorkerEvent::Disconnected { error, .. } => self.is_away(error),
            WorkerEvent::Failed { seq, attempt, reason, parked } => {
                let word = if *parked { "parked" } else { "failed" };
                let text = format!("{word}: {}", first(reason, SHOWN_BYTES_MAX));
                let facts: [(&'static str, Value); 3] =
                    [("seq", (*seq).into()), ("attempt", (*attempt).into()), ("parked", (*parked).into())];
                self.console.log_message(Level::Warn, (*seq, *attempt), text, &facts);
            }
            WorkerEvent::LateAnswer { seq } => {
                let text = format!("message {seq} was done when its lease was over, and may be done again");
                self.console.log(Level::Warn, text, &[("seq", (*seq).into())]);
            }
            WorkerEvent::Breaker(state) => self.console.log(Level::Warn, breaker(*state), &[]),
            WorkerEvent::Concurrency(jobs) => {
                let text = format!("{jobs} at a time from now on");
                self.console.log(Level::Info, text, &[("concurrency", (*jobs).into())]);
            }
            // The handler that is ended by it says so; and one that had not begun is no news.
            WorkerEvent::LeaseLost { .. } => {}
            _ => {}
        }
    }

    fn is_back(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            self.say("connected to the server again");
        }
    }

    fn is_away(&self, error: &CallError) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            let text = format!("the connection to the server is lost; reconnecting: {error}");
            self.console.log(Level::Warn, text, &[]);
        }
    }

    /// Prints counts, if it is time to and they have changed.
    pub(super) fn print_counts(&self, now: Timestamp, stats: &WorkerStats) {
        if !self.counts {
            return;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = stats.acked + stats.retried + stats.parked + stats.skipped;
        let Some((at, before)) = *said else {
            *said = Some((now, settled));
            return;
        };
        let since = now.since(at);
        if since < COUNTS_EVERY {
            return;
        }
        *said = Some((now, settled));
        if settled != before {
            let rate = units::rate((settled - before) as f64 / since.as_secs_f64());
            let text = format!("{}; {} running, {rate}", counts(stats), stats.running);
            let facts: [(&'static str, Value); 6] = [
                ("done", stats.acked.into()),
                ("retried", stats.retried.into()),
                ("parked", stats.parked.into()),
                ("skipped", stats.skipped.into()),
                ("running", stats.running.into()),
                ("concurrency", stats.concurrency.into()),
            ];
            self.console.log(Level::Info, text, &facts);
        }
    }
}

fn breaker(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Open => "nearly all messages fail; no messages are taken for a while",
        BreakerState::HalfOpen => "trying a message",
        BreakerState::Closed => "messages succeed again; working as before",
    }
}

/// The counts in a line, without those that are zero.
pub(super) fn counts(stats: &WorkerStats) -> String {
    let mut text = format!("{} done", units::count(stats.acked));
    for (count, word) in [
        (stats.retried, "retried"),
        (stats.parked, "parked"),
        (stats.skipped, "skipped"),
        (stats.throttled, "put off"),
        (stats.returned + stats.snoozed, "given back"),
        (stats.late, "done too late"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {} {word}", units::count(count)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_say_what_there_was_and_nothing_else() {
        let mut stats = WorkerStats::default();
        assert_eq!(counts(&stats), "0 done");
        (stats.acked, stats.retried, stats.parked, stats.returned, stats.snoozed) = (1_234, 2, 1, 3, 4);
        assert_eq!(counts(&stats), "1,234 done, 2 retried, 1 parked, 7 given back");
    }
}
