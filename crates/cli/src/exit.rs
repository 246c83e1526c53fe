//! How a command fails: its message and its exit code. The codes are in `--help`.

use std::io::Write as _;
use std::process::ExitCode;

/// An error with an exit code of its own. Every other one exits with 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    NotUnderstood = 2,
    DataInUse = 3,
    DataRefused = 4,
    CannotListen = 5,
    StorageFailed = 6,
    Unreachable = 7,
    NotFound = 8,
    Conflict = 9,
    Later = 10,
    Unknown = 11,
    Denied = 12,
    #[cfg_attr(not(feature = "jetstream"), allow(dead_code, reason = "a log on this disk does not go back"))]
    WentBack = 13,
}

/// For `--help`. A test checks that every code is listed.
pub(crate) const CODES: &str = "\
Exit codes:
  0  done, or stopped as asked
  1  the command failed; the message says why
  2  the command line, a setting or a request is invalid
  3  the data folder is in use by another process
  4  the data folder is damaged, a backup, from a newer release, or needs another key; it was not changed
  5  the server cannot listen on the address
  6  storage failed while the server was running
  7  the server could not be reached
  8  the stream, group, message or job does not exist
  9  conflict: it exists with other settings, or it is in use
 10  the server cannot do it now; nothing was done, try again later
 11  the outcome is unknown; repeat it with the same message ids
 12  permission denied
 13  the log on NATS ends before a record that was durable; nothing more was written";

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Exit::NotUnderstood => "the request could not be understood",
            Exit::DataInUse => "the data folder is in use",
            Exit::DataRefused => "the data folder was refused",
            Exit::CannotListen => "cannot listen",
            Exit::StorageFailed => "storage failed",
            Exit::Unreachable => "the server cannot be reached",
            Exit::NotFound => "it does not exist",
            Exit::Conflict => "the server refused",
            Exit::Later => "the server cannot do it now",
            Exit::Unknown => "the outcome is unknown",
            Exit::Denied => "permission denied",
            Exit::WentBack => "the log went back",
        })
    }
}

impl std::error::Error for Exit {}

pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Exit>().map_or(ExitCode::FAILURE, |exit| ExitCode::from(*exit as u8))
}

/// What happened, with its causes; without the word for the code, which says less than the rest.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let word = error.downcast_ref::<Exit>().map(ToString::to_string);
    let mut parts: Vec<String> = error.chain().map(ToString::to_string).collect();
    if parts.len() > 1 {
        parts.retain(|part| Some(part) != word.as_ref());
    }
    parts.join(": ")
}

/// The same for programs, as one line of JSON. Refusals of the server have a document of their own.
pub(crate) fn document(error: &anyhow::Error) -> String {
    let exit = error.downcast_ref::<Exit>().copied();
    let title = exit.map_or_else(|| "the command failed".to_owned(), |exit| exit.to_string());
    let code = exit.map_or(1, |exit| exit as u8);
    serde_json::json!({ "title": title, "detail": text(error), "exit_code": code }).to_string()
}

/// A line for the person at the terminal.
pub(crate) fn say(text: &str) {
    // If the standard error is closed, there is nowhere else to report it.
    let _ = writeln!(std::io::stderr(), "{text}");
}
