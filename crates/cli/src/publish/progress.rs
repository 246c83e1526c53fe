//! How far a long input has come, on a terminal.

use std::io::Write as _;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::units;

/// How often the line is drawn.
pub(super) const REDRAW: Duration = Duration::from_millis(200);
/// A run that is shorter than this shows no bar.
const SHORT: Duration = Duration::from_secs(1);
const BAR: usize = 24;

pub(super) struct Progress {
    /// Bytes of the input, if that is known.
    size: Option<u64>,
    done: u64,
    clock: Clock,
    began: Timestamp,
    on_terminal: bool,
    drawn: bool,
}

impl Progress {
    pub(super) fn new(size: Option<u64>, on_terminal: bool) -> Progress {
        let clock = Clock::start();
        Progress {
            size: size.filter(|size| *size > 0),
            done: 0,
            clock,
            began: clock.now(),
            on_terminal,
            drawn: false,
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.done += bytes;
    }

    pub(super) fn draw(&mut self, messages: u64) {
        let elapsed = self.clock.now().since(self.began);
        if self.on_terminal && elapsed >= SHORT {
            let line = line(self.done, self.size, messages, elapsed.as_secs_f64());
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            self.drawn = true;
        }
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, size: Option<u64>, messages: u64, seconds: f64) -> String {
    let stored = format!("{} stored  {}", units::count(messages), units::rate(messages as f64 / seconds));
    let Some(size) = size else { return stored };
    let part = (done as f64 / size as f64).min(1.0);
    let filled = (part * BAR as f64) as usize;
    let bar = format!("{}{}", "#".repeat(filled), " ".repeat(BAR - filled));
    let left = if part > 0.0 { units::age(seconds * (1.0 - part) / part) } else { "?".to_owned() };
    format!("[{bar}] {:3.0} %  {stored}  {left} left", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_much_is_done_and_how_long_the_rest_takes() {
        assert_eq!(line(50, None, 1_200, 2.0), "1,200 stored  600/s");
        let expected =
            format!("[{}{}]  25 %  3,000 stored  1.5 k/s  6.0s left", "#".repeat(6), " ".repeat(18));
        assert_eq!(line(25, Some(100), 3_000, 2.0), expected);
        assert!(line(0, Some(100), 0, 1.0).ends_with("? left"));
    }
}
