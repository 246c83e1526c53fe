//! A history: actions and observations of the clients of a server, and actions on the server, one line each.
//!
//! ```text
//! TIME PROCESS PHASE OPERATION FIELD=VALUE FIELD=VALUE
//! ```
//!
//! Time is microseconds since the run began, by a monotonic clock, and never goes back from one line to the
//! next. `invoke` is written before a request leaves, `ok` and `fail` after its answer has come. `info` is
//! a fact that is known without a request, or that the outcome of a request is not known. A value has no spaces; what
//! cannot stand in one is written as `%XX`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the run began.
pub(crate) type Time = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Invoke,
    Ok,
    Fail,
    Info,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Invoke => "invoke",
            Phase::Ok => "ok",
            Phase::Fail => "fail",
            Phase::Info => "info",
        }
    }

    fn parse(text: &str) -> Option<Phase> {
        [Phase::Invoke, Phase::Ok, Phase::Fail, Phase::Info].into_iter().find(|phase| phase.name() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) at: Time,
    pub(crate) process: u32,
    pub(crate) phase: Phase,
    pub(crate) operation: String,
    pub(crate) fields: BTreeMap<String, String>,
}

/// A flaw of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LineError {
    #[error("a line is TIME PROCESS PHASE OPERATION and fields")]
    Shape,
    #[error("a field is NAME=VALUE. field=`{0}`")]
    Field(String),
    #[error("the operation needs this field. operation=`{operation}` field=`{field}`")]
    Missing { operation: String, field: &'static str },
    #[error("not a number. field=`{field}` value=`{value}`")]
    Number { field: &'static str, value: String },
}

impl Line {
    pub(crate) fn parse(text: &str) -> Result<Line, LineError> {
        let mut words = text.split_ascii_whitespace();
        let mut word = || words.next().ok_or(LineError::Shape);
        let at = word()?.parse().map_err(|_| LineError::Shape)?;
        let process = word()?.parse().map_err(|_| LineError::Shape)?;
        let phase = Phase::parse(word()?).ok_or(LineError::Shape)?;
        let operation = word()?.to_owned();
        let fields = words
            .map(|word| {
                let (name, value) = word.split_once('=').ok_or_else(|| LineError::Field(word.to_owned()))?;
                Ok((name.to_owned(), unescape(value)))
            })
            .collect::<Result<_, LineError>>()?;
        Ok(Line { at, process, phase, operation, fields })
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    pub(crate) fn text(&self, field: &'static str) -> Result<&str, LineError> {
        let operation = || self.operation.clone();
        self.get(field).ok_or_else(|| LineError::Missing { operation: operation(), field })
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<T, LineError> {
        let value = self.text(field)?;
        value.parse().map_err(|_| LineError::Number { field, value: value.to_owned() })
    }

    pub(crate) fn optional<T: std::str::FromStr>(&self, field: &'static str) -> Result<Option<T>, LineError> {
        if self.get(field).is_some() { self.number(field).map(Some) } else { Ok(None) }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.at, self.process, self.phase.name(), self.operation)?;
        for (name, value) in &self.fields {
            write!(f, " {name}={}", escape(value))?;
        }
        Ok(())
    }
}

fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A character that is not part of an escape stands for itself.
fn unescape(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes a history as it happens.
pub(crate) struct History {
    started: Instant,
    /// Wall time when the run began, in microseconds since 1970, to tell a server's times in ours.
    wall: u64,
    /// One line at a time, each stamped when it is written, so that lines are in the order of time.
    file: Mutex<Out>,
}

struct Out {
    file: BufWriter<File>,
    /// A history that cannot be written is worth nothing, and is told of at the end.
    failed: Option<std::io::Error>,
}

impl History {
    pub(crate) fn create(path: &Path) -> std::io::Result<History> {
        let file = BufWriter::new(File::create(path)?);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Ok(History { started: Instant::now(), wall, file: Mutex::new(Out { file, failed: None }) })
    }

    pub(crate) fn now(&self) -> Time {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A time that the server gave, as this history tells it.
    pub(crate) fn time_of(&self, micros: u64) -> Time {
        micros.saturating_sub(self.wall)
    }

    pub(crate) fn instant_of(&self, at: Time) -> Instant {
        self.started + Duration::from_micros(at)
    }

    pub(crate) fn write(
        &self,
        process: u32,
        phase: Phase,
        operation: &str,
        fields: &[(&str, String)],
    ) -> Time {
        let mut out = self.file.lock().expect("whoever writes a line does not panic");
        let line = Line {
            at: self.now(),
            process,
            phase,
            operation: operation.to_owned(),
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        };
        if let Err(error) = writeln!(out.file, "{line}") {
            out.failed.get_or_insert(error);
        }
        line.at
    }

    pub(crate) fn flush(&self) -> std::io::Result<()> {
        let mut out = self.file.lock().expect("whoever writes a line does not panic");
        match out.failed.take() {
            Some(error) => Err(error),
            None => out.file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_same_after_it_was_written_and_read() {
        let text = "17 3 invoke publish key=k%20%25%0A n=5 stream=plain";
        let line = Line::parse(text).expect("a line");
        assert_eq!((line.at, line.process, line.phase), (17, 3, Phase::Invoke));
        assert_eq!(line.get("key"), Some("k %\n"));
        assert_eq!(line.number::<u64>("n"), Ok(5));
        assert_eq!(line.to_string(), text);
    }

    #[test]
    fn what_is_wrong_with_a_line_is_named() {
        assert_eq!(Line::parse("17 3 invoke"), Err(LineError::Shape));
        assert_eq!(Line::parse("17 3 maybe publish"), Err(LineError::Shape));
        assert_eq!(Line::parse("17 3 ok publish n"), Err(LineError::Field("n".to_owned())));
        let line = Line::parse("17 3 ok publish n=many").expect("a line");
        let value = "many".to_owned();
        assert_eq!(line.number::<u64>("n"), Err(LineError::Number { field: "n", value }));
        let operation = "publish".to_owned();
        assert_eq!(line.number::<u64>("seq"), Err(LineError::Missing { operation, field: "seq" }));
    }

    #[test]
    fn an_escape_that_is_none_stands_for_itself() {
        assert_eq!(unescape("100%"), "100%");
        assert_eq!(unescape("%zz%41"), "%zzA");
    }

    #[test]
    fn lines_are_in_the_order_of_time() {
        let path = std::env::temp_dir().join(format!("forebay-history-{}", std::process::id()));
        let history = History::create(&path).expect("a file");
        for n in 0..100 {
            history.write(n, Phase::Info, "step", &[("n", n.to_string())]);
        }
        history.flush().expect("it can be written");
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let times: Vec<Time> = text.lines().map(|line| Line::parse(line).expect("a line").at).collect();
        assert!(times.len() == 100 && times.is_sorted());
        std::fs::remove_file(path).expect("it can go");
    }
}
