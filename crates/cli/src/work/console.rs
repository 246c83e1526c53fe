//! The standard error of `forebay work`: its own lines, and those of handlers.
//!
//! A terminal or the reader of a pipe can be slow, so a thread of its own writes the lines. Handlers wait until their
//! lines are taken; the renewal of leases never waits.

use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::log::{self, Level};
use crate::print::Output;
use crate::safe::{printable, printable_bytes};

/// Lines that wait to be written.
const LINES_MAX: usize = 256;
/// How long the last lines may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Where a line of a handler comes from: the message, and `stdout` or `stderr`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) seq: u64,
    pub(super) attempt: u32,
    pub(super) output: &'static str,
}

enum Line {
    /// About a message and an attempt, or about the command.
    Own(Level, Option<(u64, u32)>, String, Vec<(&'static str, Value)>),
    Handler(Origin, Vec<u8>),
}

/// Takes lines. Cheap to clone.
#[derive(Clone)]
pub(super) struct Console(mpsc::Sender<Line>);

/// The thread that writes.
pub(super) struct ConsoleThread(std::sync::mpsc::Receiver<()>);

impl Console {
    /// Lines for people, or lines of JSON as the server's log has them.
    pub(super) fn start(output: Output) -> (Console, ConsoleThread) {
        let (lines, said) = mpsc::channel(LINES_MAX);
        let (end, written) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            write(said, output);
            let _ = end.send(());
        });
        (Console(lines), ConsoleThread(written))
    }

    /// A line of information. It is left out if the queue is full because the reader is slow.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.log(Level::Info, text, &[]);
    }

    /// A line with fields for programs.
    pub(super) fn log(&self, level: Level, text: impl Into<String>, facts: &[(&'static str, Value)]) {
        let _ = self.0.try_send(Line::Own(level, None, text.into(), facts.to_vec()));
    }

    /// A line about one attempt of one message.
    pub(super) fn log_message(
        &self,
        level: Level,
        of: (u64, u32),
        text: impl Into<String>,
        facts: &[(&'static str, Value)],
    ) {
        let _ = self.0.try_send(Line::Own(level, Some(of), text.into(), facts.to_vec()));
    }

    /// A line of a handler. Waits until there is room in the queue.
    pub(super) async fn handler_line(&self, origin: Origin, line: &[u8]) {
        let _ = self.0.send(Line::Handler(origin, line.to_vec())).await;
    }
}

#[cfg(test)]
impl Console {
    /// Takes every line and writes none.
    pub(super) fn discarding() -> Console {
        let (lines, mut said) = mpsc::channel(LINES_MAX);
        std::thread::spawn(move || while said.blocking_recv().is_some() {});
        Console(lines)
    }
}

impl ConsoleThread {
    /// Waits until every line is written, for a second at most. Every [`Console`] must have been dropped before.
    pub(super) fn wait(self) {
        let _ = self.0.recv_timeout(FAREWELL);
    }
}

fn write(mut lines: mpsc::Receiver<Line>, output: Output) {
    while let Some(line) = lines.blocking_recv() {
        match (line, output) {
            (Line::Own(_, None, text, _), Output::Text) => put(&printable(&text)),
            (Line::Own(_, Some((seq, attempt)), text, _), Output::Text) => {
                put(&format!("{seq}\t#{attempt}\t{}", printable(&text)));
            }
            (Line::Own(level, _, text, facts), Output::Json) => log::line(level, &text, &facts),
            (Line::Handler(of, line), Output::Text) => {
                put(&format!("{}\t#{}\t{}", of.seq, of.attempt, printable_bytes(&line)));
            }
            (Line::Handler(of, line), Output::Json) => {
                let facts =
                    [("seq", of.seq.into()), ("attempt", of.attempt.into()), ("output", of.output.into())];
                log::line(Level::Info, &String::from_utf8_lossy(&line), &facts);
            }
        }
    }
}

fn put(line: &str) {
    // There is nowhere else to report it.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
