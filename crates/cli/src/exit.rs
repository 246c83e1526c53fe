//! What the command says when it ends badly, and with which code. The codes are in `--help`.

use std::io::Write as _;
use std::process::ExitCode;

/// An error with an exit code of its own. Every other one exits with 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    DataInUse = 3,
    DataRefused = 4,
    CannotListen = 5,
    StorageFailed = 6,
    Unreachable = 7,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Exit::DataInUse => "the data folder is in use",
            Exit::DataRefused => "the data folder was refused",
            Exit::CannotListen => "cannot listen",
            Exit::StorageFailed => "storage failed",
            Exit::Unreachable => "the server cannot be reached",
        })
    }
}

impl std::error::Error for Exit {}

pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Exit>().map_or(ExitCode::FAILURE, |exit| ExitCode::from(*exit as u8))
}

/// A line for the person at the terminal, or for the log.
pub(crate) fn say(text: &str) {
    // Nobody reads it if the other end is closed, and there is nowhere else to say so.
    let _ = writeln!(std::io::stderr(), "{text}");
}
