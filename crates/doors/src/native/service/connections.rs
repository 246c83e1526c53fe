//! Connections of clients, for operators.

use forebay_broker::api::{ConnectionReport, Page};

use super::{Answer, Service, page};
use crate::native::problem::Refusal;

impl Service {
    /// Connections, the oldest first, after the one with this id.
    pub(in crate::native) fn connections(
        &self,
        after: Option<&str>,
        limit: Option<u64>,
    ) -> Answer<Page<ConnectionReport, u64>> {
        let limit = page(limit)?;
        let after = match after {
            Some(text) => {
                text.parse().map_err(|_| Refusal::value("after", "must be the id of a connection", text))?
            }
            None => 0,
        };
        self.answer(self.caller.connections(after, limit))
    }

    pub(in crate::native) fn close_connection(&self, id: &str) -> Answer<()> {
        self.answer(self.caller.close_connection(id))
    }
}
