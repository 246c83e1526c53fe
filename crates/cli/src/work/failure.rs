//! Errors of the SDK as the command reports them.

use anyhow::anyhow;
use forebay_client::error::ProblemKind;
use forebay_client::worker::WorkerError;
use forebay_client::{Advice, CallError, ConnectError};

use crate::connect::Server;
use crate::exit::Exit;
use crate::safe::printable;

pub(super) fn of_connect(error: &ConnectError, server: &Server) -> anyhow::Error {
    let exit = match error {
        ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => {
            return anyhow!(error.clone()).context(Exit::Unreachable).context(server.unreachable());
        }
        ConnectError::NotForebay { .. } => Exit::Unreachable,
        _ => Exit::NotUnderstood,
    };
    anyhow!(exit).context(printable(&error.to_string()))
}

pub(super) fn of_worker(error: &WorkerError) -> anyhow::Error {
    match error {
        WorkerError::Refused(error) => of_call(error),
        _ => anyhow!(printable(&error.to_string())),
    }
}

pub(super) fn of_call(error: &CallError) -> anyhow::Error {
    let exit = match error {
        CallError::Refused { kind, advice, .. } => match (advice, kind.map(ProblemKind::status)) {
            (Advice::RetryLater, _) => Exit::Later,
            (Advice::RetryWithSameId, _) => Exit::Unknown,
            (Advice::FixRequest, Some(404)) => Exit::NotFound,
            (Advice::FixRequest, Some(403)) => Exit::Denied,
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
