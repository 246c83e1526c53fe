//! The log of `forebay serve`, on the standard error: lines for people on a terminal, JSON elsewhere. It says
//! what happens to the server. What messages hold is never part of it.

use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;

use forebay_broker::clock::Clock;
use forebay_wire::json::Time;
use serde_json::Value;

use crate::safe::printable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

struct Log {
    format: Format,
    level: Level,
    clock: Clock,
}

/// Set once, when the settings are known.
static LOG: OnceLock<Log> = OnceLock::new();

pub(crate) fn start(format: Option<Format>, level: Level, clock: Clock) {
    let fitting = || if std::io::stderr().is_terminal() { Format::Text } else { Format::Json };
    let _ = LOG.set(Log { format: format.unwrap_or_else(fitting), level, clock });
}

pub(crate) fn is_started() -> bool {
    LOG.get().is_some()
}

/// A line, with facts that a program may want beside the words.
pub(crate) fn line(level: Level, text: &str, facts: &[(&str, Value)]) {
    let Some(log) = LOG.get().filter(|log| level <= log.level) else { return };
    let time = Time(log.clock.now().0);
    let line = match log.format {
        Format::Text => format!("{time} {:5} forebay: {}\n", level.word().to_uppercase(), printable(text)),
        Format::Json => json(time, level, text, facts),
    };
    // In one piece, so that lines of several threads do not mix; and there is nowhere else to say it.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn json(time: Time, level: Level, text: &str, facts: &[(&str, Value)]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut out = format!(r#"{{"time":"{time}","level":"{}","message":{}"#, level.word(), quoted(text));
    for (name, value) in facts {
        out.push_str(&format!(",{}:{}", quoted(name), value));
    }
    out.push_str("}\n");
    out
}

pub(crate) fn error(text: &str) {
    line(Level::Error, text, &[]);
}

pub(crate) fn warn(text: &str) {
    line(Level::Warn, text, &[]);
}

pub(crate) fn info(text: &str) {
    line(Level::Info, text, &[]);
}
