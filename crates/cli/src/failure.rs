//! Errors of the SDK as commands report them, each with its exit code.

use std::io::ErrorKind;

use anyhow::anyhow;
use forebay_client::error::{ProblemKind, Refusal};
use forebay_client::worker::WorkerError;
use forebay_client::{Advice, CallError, ConnectError, PublishError};

use crate::connect::unreachable;
use crate::exit::Exit;
use crate::safe::printable;

/// What a person does who has given no token to a server that asks for one.
pub(crate) const NO_TOKEN: &str =
    "the server asks for a token: set FOREBAY_TOKEN, name a file with --token-file, or run `forebay login`";

pub(crate) fn from_connect(error: &ConnectError, address: &str, has_token: bool) -> anyhow::Error {
    let exit = match error {
        ConnectError::NotAccepted { server, .. } if !has_token => {
            return anyhow!(Exit::Denied).context(format!("{NO_TOKEN}. server=`{}`", printable(server)));
        }
        ConnectError::Unreachable { cause, .. } => return unreachable(address, &**cause),
        ConnectError::Silent { .. } => {
            return unreachable(address, &std::io::Error::from(ErrorKind::TimedOut));
        }
        ConnectError::NotForebay { .. } => Exit::Unreachable,
        ConnectError::NotAccepted { .. } => Exit::Denied,
        _ => Exit::NotUnderstood,
    };
    anyhow!(exit).context(printable(&error.to_string()))
}

pub(crate) fn from_worker(error: &WorkerError) -> anyhow::Error {
    match error {
        WorkerError::Refused(error) => from_call(error),
        _ => anyhow!(printable(&error.to_string())),
    }
}

pub(crate) fn from_call(error: &CallError) -> anyhow::Error {
    let exit = match error {
        CallError::Refused { kind, advice, .. } => match (advice, kind.map(ProblemKind::status)) {
            (Advice::RetryLater, _) => Exit::Later,
            (Advice::RetryWithSameId, _) => Exit::Unknown,
            (Advice::FixRequest, Some(404)) => Exit::NotFound,
            (Advice::FixRequest, Some(401 | 403)) => Exit::Denied,
            (Advice::FixRequest, Some(409)) => Exit::Conflict,
            (Advice::FixRequest, _) => Exit::NotUnderstood,
        },
        _ => Exit::Unreachable,
    };
    let text = printable(&error.to_string());
    let text = text.trim_end_matches('.');
    anyhow!(exit).context(match exit {
        Exit::Later => format!("{text}. Try again later"),
        _ => text.to_owned(),
    })
}

pub(crate) fn from_publish(error: &PublishError) -> anyhow::Error {
    let (exit, detail) = match error {
        PublishError::Refused { refusal, detail } => (from_refusal(*refusal), detail),
        PublishError::NotInTime { detail, is_disconnected: true }
        | PublishError::Unknown { detail, is_disconnected: true } => (Exit::Unreachable, detail),
        PublishError::NotInTime { detail, .. } => (Exit::Later, detail),
        PublishError::Unknown { detail, .. } => (Exit::Unknown, detail),
        error => return anyhow!(Exit::Conflict).context(printable(&error.to_string())),
    };
    anyhow!(exit).context(printable(detail))
}

fn from_refusal(refusal: Refusal) -> Exit {
    match refusal {
        Refusal::NoSuchStream => Exit::NotFound,
        Refusal::Denied => Exit::Denied,
        Refusal::Invalid | Refusal::TooLarge | Refusal::Unsupported => Exit::NotUnderstood,
        _ => Exit::Conflict,
    }
}
