//! The log of `forebay serve`, on the standard error: lines for people on a terminal, JSON elsewhere. It says
//! what happens to the server. The contents of messages are never part of it.
//!
//! The crates of the server emit `tracing` events; [`Events`] is the subscriber that writes them. It is written
//! by hand because that is a hundred lines: there are no spans to keep, and `tracing-subscriber` would bring a
//! registry for them and five more crates.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, OnceLock, PoisonError};

use forebay_broker::clock::Clock;
use forebay_doors::native::node::LogLine;
use forebay_wire::json::Time;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

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

    fn filter(self) -> LevelFilter {
        match self {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }

    fn of(level: tracing::Level) -> Level {
        match level {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            _ => Level::Debug,
        }
    }
}

struct Log {
    format: Format,
    level: Level,
    clock: Clock,
}

/// Lines that are kept for the dashboard, and characters of each.
const KEPT_LINES: usize = 500;
const KEPT_CHARS: usize = 1_000;

/// The last lines. Locked to add one and to copy them.
static RECENT: Mutex<VecDeque<LogLine>> = Mutex::new(VecDeque::new());

/// The last lines, the oldest first.
pub(crate) fn recent() -> Vec<LogLine> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

fn keep(time: Time, level: Level, text: &str) {
    let text = printable(text).chars().take(KEPT_CHARS).collect();
    let line = LogLine { at: time.0, level: level.word(), text };
    push(&mut RECENT.lock().unwrap_or_else(PoisonError::into_inner), line);
}

fn push(lines: &mut VecDeque<LogLine>, line: LogLine) {
    if lines.len() == KEPT_LINES {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// Set once, when the settings are known.
static LOG: OnceLock<Log> = OnceLock::new();

pub(crate) fn start(format: Option<Format>, level: Level, clock: Clock) {
    let fitting = || if std::io::stderr().is_terminal() { Format::Text } else { Format::Json };
    let _ = LOG.set(Log { format: format.unwrap_or_else(fitting), level, clock });
}

/// Writes the events of this process to the log from here on, and panics as lines of the log.
pub(crate) fn follow_events() {
    let Some(log) = LOG.get() else { return };
    // Fails only if there is a subscriber already, which then hears everything.
    let _ = tracing::subscriber::set_global_default(Events { level: log.level });
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or("a panic without a text");
        let location = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(location, thread, "panicked: {text}");
        // For its backtrace, which the environment asks for.
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|asked| asked != "0") {
            usual(panic);
        }
    }));
}

pub(crate) fn is_started() -> bool {
    LOG.get().is_some()
}

/// A line, with facts for programs beside the words. People see the words alone, which name the facts.
pub(crate) fn line(level: Level, text: &str, facts: &[(&str, Value)]) {
    let Some(log) = LOG.get().filter(|log| level <= log.level) else { return };
    let time = Time(log.clock.now().0);
    keep(time, level, text);
    write(&match log.format {
        Format::Text => text_line(time, level, text),
        Format::Json => json_line(time, level, text, facts),
    });
}

/// In one piece, so that lines of several threads do not mix. An error has nowhere else to go.
fn write(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn text_line(time: Time, level: Level, text: &str) -> String {
    format!("{time} {:5} forebay: {}\n", level.word().to_uppercase(), printable(text))
}

fn json_line(time: Time, level: Level, text: &str, facts: &[(&str, Value)]) -> String {
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

/// The subscriber of the process: events of Forebay's own crates, down to a level.
struct Events {
    level: Level,
}

impl Subscriber for Events {
    /// The answer is kept with the place that emits, so an event that is not wanted costs a comparison.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("forebay")
            && *metadata.level() <= self.level.filter()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.filter())
    }

    fn event(&self, event: &Event<'_>) {
        let Some(log) = LOG.get() else { return };
        let mut facts = Facts::default();
        event.record(&mut facts);
        let (time, level) = (Time(log.clock.now().0), Level::of(*event.metadata().level()));
        keep(time, level, &facts.in_words());
        write(&match log.format {
            Format::Text => text_line(time, level, &facts.in_words()),
            Format::Json => json_line(time, level, &facts.message, &facts.rest),
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What an event says.
#[derive(Debug, Default)]
struct Facts {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

impl Facts {
    /// The message, with the facts at its end.
    fn in_words(&self) -> String {
        let mut text = self.message.clone();
        if !self.rest.is_empty() && !text.ends_with('.') {
            text.push('.');
        }
        for (name, value) in &self.rest {
            // Writing to a string does not fail.
            let _ = match value {
                Value::String(value) => write!(text, " {name}=`{value}`"),
                value => write!(text, " {name}=`{value}`"),
            };
        }
        text
    }

    fn add(&mut self, field: &Field, value: Value) {
        self.rest.push((field.name(), value));
    }
}

impl Visit for Facts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    /// With its causes.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(of) = cause {
            let _ = write!(text, ": {of}");
            cause = of.source();
        }
        self.add(field, text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event, as `Events` would read it.
    fn facts(emit: impl FnOnce()) -> Vec<Facts> {
        struct Capture(std::sync::Mutex<Vec<Facts>>);
        impl Subscriber for Capture {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn event(&self, event: &Event<'_>) {
                let mut facts = Facts::default();
                event.record(&mut facts);
                self.0.lock().expect("no other thread").push(facts);
            }
            fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
                span::Id::from_u64(1)
            }
            fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
            fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
            fn enter(&self, _: &span::Id) {}
            fn exit(&self, _: &span::Id) {}
        }
        let capture = std::sync::Arc::new(Capture(std::sync::Mutex::default()));
        tracing::subscriber::with_default(capture.clone(), emit);
        std::mem::take(&mut *capture.0.lock().expect("no other thread"))
    }

    #[test]
    fn an_event_is_a_line_with_its_fields_at_the_end() {
        let events = facts(|| {
            let source = std::io::Error::other("the cable");
            let free: Option<u64> = None;
            tracing::warn!(bytes = 7_u64, is_full = true, free, who = %"a b", "the disk is {}", "slow");
            tracing::error!(error = &source as &(dyn Error + 'static), "it broke");
        });
        let time = Time(0);
        let [slow, broke] = &events[..] else { panic!("{events:?}") };
        assert_eq!(slow.in_words(), "the disk is slow. bytes=`7` is_full=`true` who=`a b`");
        let line: Value =
            serde_json::from_str(&json_line(time, Level::Warn, &slow.message, &slow.rest)).expect("JSON");
        assert_eq!(line["message"], "the disk is slow");
        assert_eq!((&line["bytes"], &line["level"]), (&7.into(), &"warn".into()));
        assert_eq!(broke.in_words(), "it broke. error=`the cable`");
    }

    #[test]
    fn the_last_lines_are_kept_and_no_more() {
        let mut lines = VecDeque::new();
        for n in 0..KEPT_LINES as u64 + 3 {
            push(&mut lines, LogLine { at: n, level: "info", text: String::new() });
        }
        assert_eq!((lines.len(), lines[0].at), (KEPT_LINES, 3));
    }

    #[test]
    fn events_of_other_crates_and_below_the_level_are_not_wanted() {
        let wanted = |level| {
            let events = Events { level };
            let mut seen = Vec::new();
            for (name, metadata) in [
                ("own info", metadata(tracing::Level::INFO, "forebay_broker::driver")),
                ("own debug", metadata(tracing::Level::DEBUG, "forebay_storage::journal")),
                ("strange", metadata(tracing::Level::ERROR, "h2::proto")),
            ] {
                if events.enabled(&metadata) {
                    seen.push(name);
                }
            }
            seen
        };
        assert_eq!(wanted(Level::Debug), ["own info", "own debug"]);
        assert_eq!(wanted(Level::Info), ["own info"]);
        assert_eq!(wanted(Level::Warn), [""; 0]);
    }

    fn metadata(level: tracing::Level, target: &'static str) -> Metadata<'static> {
        struct Place;
        impl tracing::callsite::Callsite for Place {
            fn set_interest(&self, _: Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("it is only named")
            }
        }
        static PLACE: Place = Place;
        let fields = tracing::field::FieldSet::new(&[], tracing::callsite::Identifier(&PLACE));
        Metadata::new("event", target, level, None, None, None, fields, tracing::metadata::Kind::EVENT)
    }
}
