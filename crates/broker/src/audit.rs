//! Who did what: a record of every administrative and triage call, whatever became of it. Publishing, consuming and
//! looking are not recorded. A record has names and errors, and never contents or secrets.
//!
//! Records go to up to two writers, a file and a stream, each through a queue with a bound. If a writer does not keep
//! up, records are lost, counted, and the log says so.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_core::types::Timestamp;
use tokio::sync::mpsc;

use crate::access::{Denied, Principal, Resource, Right};
use crate::caller::Caller;
use crate::error::CallError;

/// Records that may wait for the writer.
const WAITING_MAX: usize = 10_000;

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOutcome {
    Done,
    Denied,
    /// It was allowed and not done. Why not.
    Refused(String),
    /// The client went away, so that it may or may not have been done.
    Unknown,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub at: Timestamp,
    pub who: Arc<str>,
    pub from: Option<SocketAddr>,
    pub action: Right,
    /// The name of the call: several calls need the same right.
    pub verb: &'static str,
    /// The stream, the group, the credential, or the server.
    pub what: String,
    pub outcome: AuditOutcome,
}

impl AuditRecord {
    /// Says it in the server's log, where every change of streams, groups and credentials can be found also without an
    /// audit. A call that was refused has changed nothing.
    fn log(&self) {
        let AuditRecord { who, verb, what, .. } = self;
        // The server makes changes of its own when it starts, which are not of interest.
        let Some(from) = self.from.map(|from| from.to_string()) else { return };
        // A record about a credential names the call in the thing.
        let call = match self.action {
            Right::Administer => what.clone(),
            _ => format!("{verb} {what}"),
        };
        match &self.outcome {
            AuditOutcome::Done => tracing::info!(%who, from, "{call}"),
            AuditOutcome::Denied => tracing::warn!(%who, from, "{call}: denied"),
            AuditOutcome::Refused(why) => tracing::debug!(%who, from, "{call}: {why}"),
            AuditOutcome::Unknown => {
                tracing::info!(%who, from, "{call}: the client left, so the outcome is unknown");
            }
        }
    }
}

/// Where records go.
#[derive(Debug, Default)]
pub struct Audit {
    writers: [OnceLock<mpsc::Sender<AuditRecord>>; 2],
    lost: AtomicU64,
}

impl Audit {
    /// Records are written from now on, by the holder of the queue. None: there are as many writers as there may be.
    pub fn begin(&self) -> Option<mpsc::Receiver<AuditRecord>> {
        let (sender, queue) = mpsc::channel(WAITING_MAX);
        let is_taken = |writer: &OnceLock<_>| writer.set(sender.clone()).is_err();
        (!self.writers.iter().all(is_taken)).then_some(queue)
    }

    /// Records that were lost because the writer did not keep up.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn write(&self, record: AuditRecord) {
        record.log();
        for writer in self.writers.iter().filter_map(OnceLock::get) {
            if writer.try_send(record.clone()).is_err() && self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(
                    "ALARM: records of the audit are lost, since they cannot be written fast enough"
                );
            }
        }
    }
}

/// A call that is under way. Its record is written when it ends.
#[must_use = "a call is closed with its result"]
pub(crate) struct Recording {
    audit: Arc<Audit>,
    /// None once it is written.
    record: Option<AuditRecord>,
}

impl Recording {
    /// Begins the record of a call, if the principal has the right to it. A refusal is recorded too.
    pub(crate) fn begin(
        caller: &Caller,
        who: &Principal,
        from: Option<SocketAddr>,
        (action, what): (Right, Resource<'_>),
        denied: Option<&Denied>,
    ) -> Recording {
        let broker = caller.broker();
        let outcome = if denied.is_some() { AuditOutcome::Denied } else { AuditOutcome::Unknown };
        let (at, who) = (broker.clock().date(), who.name_shared());
        let record =
            AuditRecord { at, who, from, action, verb: action.word(), what: what.to_string(), outcome };
        Recording { audit: broker.audit().clone(), record: Some(record) }
    }

    /// Names the call more exactly than its right does.
    pub(crate) fn doing(mut self, verb: &'static str) -> Recording {
        if let Some(record) = &mut self.record {
            record.verb = verb;
        }
        self
    }

    /// Names the thing more exactly.
    pub(crate) fn about(mut self, what: impl FnOnce() -> String) -> Recording {
        if let Some(record) = &mut self.record {
            record.what = what();
        }
        self
    }

    /// The call has ended so.
    pub(crate) fn close<T>(mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        if let Some(record) = &mut self.record {
            record.outcome = match &result {
                Ok(_) => AuditOutcome::Done,
                Err(CallError::Denied(_)) => AuditOutcome::Denied,
                Err(CallError::Unknown) => AuditOutcome::Unknown,
                Err(error) => AuditOutcome::Refused(error.to_string()),
            };
        }
        result
    }
}

/// The records of changes that are made together, which all end the same way.
#[must_use = "calls are closed with their result"]
#[derive(Default)]
pub(crate) struct Recordings(Vec<Recording>);

impl Recordings {
    pub(crate) fn begin(&mut self, record: Recording) {
        self.0.push(record);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn close<T>(self, result: Result<T, CallError>) -> Result<T, CallError> {
        self.0.into_iter().fold(result, |result, record| record.close(result))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            self.audit.write(record);
        }
    }
}
