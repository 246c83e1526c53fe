//! The verbs of the broker. A [`Caller`] is a handle in the name of a principal: each of its verbs checks first whether
//! that principal may do it, and then asks the shard of the stream.

mod bundle;
mod consume;
mod notes;
mod operate;
mod publish;
mod read;
mod triage;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_core::types::{GroupName, StreamName};

use crate::access::{Denied, Principal, Resource, Right, authorize};
use crate::broker::Entrance;
use crate::shard_handle::ShardHandle;

pub(crate) use crate::shard_handle::Reply;

pub use crate::driver::Committed;
pub use bundle::{Bundle, Change, NoteWish};
pub(crate) use bundle::{Parts, SettledLeases, StreamPart};
pub use consume::{Consumer, Receive, Receiving};
pub use operate::{Created, GroupCursor};
pub use publish::{Absent, Confirmation};
pub use read::{Choice, Filter, LogFilter, LogMessage, LogPage, LogReader, Reader};
pub(crate) use read::{Signal, Standing};
pub use triage::{JobTerms, Select};

/// A broker, as one principal may use it. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    broker: Entrance,
    principal: Arc<Principal>,
    /// Where the caller is.
    address: Option<SocketAddr>,
}

impl Caller {
    pub(crate) fn new(broker: Entrance, principal: Principal, address: Option<SocketAddr>) -> Caller {
        Caller { broker, principal: Arc::new(principal), address }
    }

    /// The broker that was entered, for its clock, limits, stage and room.
    pub fn broker(&self) -> &Entrance {
        &self.broker
    }

    fn may(&self, action: Right, what: Resource<'_>) -> Result<(), Denied> {
        authorize(&self.principal, action, what)
    }

    fn may_in(&self, action: Right, stream: &StreamName, group: &GroupName) -> Result<(), Denied> {
        self.may(action, Resource::Group(stream, group))
    }

    /// The shard of a stream.
    fn shard_of(&self, stream: &StreamName) -> &ShardHandle {
        self.broker.shard_of(stream)
    }
}

#[cfg(test)]
mod tests;
