//! The connections of all clients: looking at them, and closing one.

use super::Caller;
use crate::access::{Resource, Right};
use crate::error::CallError;
use crate::report::Page;
use crate::stats::connections::ConnectionReport;

impl Caller {
    /// Connections that are open, the oldest first, after the one with this id.
    pub fn connections(&self, after: u64, limit: usize) -> Result<Page<ConnectionReport, u64>, CallError> {
        self.may(Right::Look, Resource::Server)?;
        Ok(self.broker.doors().table().list(after, limit))
    }

    /// Closes a connection. Its requests end without an answer, and its consumers leave their groups.
    pub fn close_connection(&self, id: &str) -> Result<(), CallError> {
        let record = self
            .record(Right::Operate, Resource::Server)?
            .doing("close")
            .about(|| format!("connection {id}"));
        let closed = id.parse().is_ok_and(|id| self.broker.doors().table().close(id));
        record.close(match closed {
            true => Ok(()),
            false => Err(CallError::NoSuchConnection { id: id.to_owned() }),
        })
    }

    /// Whether the caller may operate the server as a whole, and so see its settings and its log.
    pub fn operates_server(&self) -> bool {
        self.may(Right::Operate, Resource::Server).is_ok()
    }
}
