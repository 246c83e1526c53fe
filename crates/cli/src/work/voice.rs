//! What the command says while it works, on the standard error: its own lines, and those of handlers.
//!
//! A terminal can be held up, and whoever reads a pipe can be slow. So lines are written by a thread of its own:
//! handlers wait until theirs are taken, and the renewal of leases waits for nobody.

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

/// Which message a handler speaks of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speaker {
    pub(super) seq: u64,
    pub(super) attempt: u32,
    pub(super) output: &'static str,
}

enum Line {
    /// Of a message and an attempt, or of none.
    Own(Level, Option<(u64, u32)>, String, Vec<(&'static str, Value)>),
    Handler(Speaker, Vec<u8>),
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Voice(mpsc::Sender<Line>);

/// The thread that writes.
pub(super) struct Written(std::sync::mpsc::Receiver<()>);

impl Voice {
    /// Lines for people, or lines of JSON as the server's log has them.
    pub(super) fn start(output: Output) -> (Voice, Written) {
        let (lines, said) = mpsc::channel(LINES_MAX);
        let (end, written) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            write(said, output);
            let _ = end.send(());
        });
        (Voice(lines), Written(written))
    }

    /// Left out if nobody has read for so long that there is no room.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.tell(Level::Info, text, &[]);
    }

    /// With facts that a program may want beside the words.
    pub(super) fn tell(&self, level: Level, text: impl Into<String>, facts: &[(&'static str, Value)]) {
        let _ = self.0.try_send(Line::Own(level, None, text.into(), facts.to_vec()));
    }

    /// Likewise, of one message in one attempt.
    pub(super) fn tell_of(
        &self,
        level: Level,
        of: (u64, u32),
        text: impl Into<String>,
        facts: &[(&'static str, Value)],
    ) {
        let _ = self.0.try_send(Line::Own(level, Some(of), text.into(), facts.to_vec()));
    }

    /// A line of a handler, which waits for whoever reads.
    pub(super) async fn pass_on(&self, speaker: Speaker, line: &[u8]) {
        let _ = self.0.send(Line::Handler(speaker, line.to_vec())).await;
    }
}

#[cfg(test)]
impl Voice {
    /// Everything is taken and nothing written.
    pub(super) fn unheard() -> Voice {
        let (lines, mut said) = mpsc::channel(LINES_MAX);
        std::thread::spawn(move || while said.blocking_recv().is_some() {});
        Voice(lines)
    }
}

impl Written {
    /// Waits until everything is written, but not for ever. Every voice must have been dropped before.
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
    // There is nowhere else to say it.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
