//! The verbs of the broker. A [`Caller`] is a handle in the name of a principal: each of its verbs checks first whether
//! that principal may do it, and then asks the shard of the stream.

mod bundle;
mod connections;
mod consume;
mod credentials;
mod links;
mod notes;
mod operate;
mod publish;
mod read;
mod sources;
mod triage;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forebay_core::group::{Settlement, Verb};
use forebay_core::settings::{GroupSettings, Source};
use forebay_core::types::{GroupName, StreamName};

use crate::access::{Denied, Principal, Resource, Right, authorize, sees};
use crate::audit::Recording;
use crate::broker::Entrance;
use crate::error::CallError;
use crate::shard_handle::ShardHandle;

pub(crate) use crate::shard_handle::Reply;

pub use crate::driver::Committed;
pub use bundle::{Bundle, Change, NoteWish};
pub(crate) use bundle::{Parts, SettledLeases, StreamPart};
pub use consume::{Consumer, Receive, Receiving};
pub(crate) use links::Feeders;
pub use links::{LinkFeed, LinkStream, WriteLink};
pub use operate::{Created, GroupCursor};
pub use publish::{Absent, Confirmation};
pub use read::{Choice, Filter, LogFilter, LogMessage, LogPage, LogReader, Reader};
pub(crate) use read::{Signal, Standing};
pub(crate) use sources::FedStreams;
pub use triage::{JobTerms, Select};

/// A broker, as one principal may use it. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    broker: Entrance,
    principal: Arc<Principal>,
    /// Where the caller is.
    address: Option<SocketAddr>,
    /// The first stream that the caller published to. It may do so again without another look at its rights: most
    /// callers that publish in a row publish to one stream.
    publishes_to: OnceLock<Arc<StreamName>>,
}

impl Caller {
    pub(crate) fn new(broker: Entrance, principal: Principal, address: Option<SocketAddr>) -> Caller {
        Caller { broker, principal: Arc::new(principal), address, publishes_to: OnceLock::new() }
    }

    /// The broker that was entered, for its clock, limits, stage and room.
    pub fn broker(&self) -> &Entrance {
        &self.broker
    }

    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Refuses a caller without this right, for a door that answers from memory of its own.
    pub fn check(&self, right: Right, stream: &StreamName, group: &GroupName) -> Result<(), CallError> {
        Ok(self.may_in(right, stream, group)?)
    }

    /// The same for a stream.
    pub fn check_stream(&self, right: Right, stream: &StreamName) -> Result<(), CallError> {
        Ok(self.may(right, Resource::Stream(stream))?)
    }

    /// Whether the caller may know of a group, as far as that is up to its rights.
    pub fn sees_group(&self, stream: &StreamName, group: &GroupName) -> bool {
        sees(&self.principal, Resource::Group(stream, group))
    }

    /// The same of a stream.
    pub fn sees_stream(&self, stream: &StreamName) -> bool {
        sees(&self.principal, Resource::Stream(stream))
    }

    /// Whether the caller may see figures of the whole server.
    pub fn sees_server(&self) -> bool {
        sees(&self.principal, Resource::Server)
    }

    /// Whether nothing is hidden from the caller.
    pub fn sees_all(&self) -> bool {
        self.principal.sees_all()
    }

    /// Whether the caller may see parked messages of a group, and why they are parked.
    pub fn inspects(&self, stream: &StreamName, group: &GroupName) -> bool {
        self.may_in(Right::Inspect, stream, group).is_ok()
    }

    fn may(&self, action: Right, what: Resource<'_>) -> Result<(), Denied> {
        authorize(&self.principal, action, what)
    }

    /// As [`Caller::may`], for a call that the audit records, also if it is denied.
    fn record(&self, action: Right, what: Resource<'_>) -> Result<Recording, Denied> {
        let may = self.may(action, what);
        let record =
            Recording::begin(self, &self.principal, self.address, (action, what), may.as_ref().err());
        may.map(|()| record)
    }

    fn record_in(&self, action: Right, stream: &StreamName, group: &GroupName) -> Result<Recording, Denied> {
        self.record(action, Resource::Group(stream, group))
    }

    fn may_publish(&self, stream: &Arc<StreamName>) -> Result<(), Denied> {
        if self.publishes_to.get().is_some_and(|known| Arc::ptr_eq(known, stream))
            && self.principal.is_in_force()
        {
            return Ok(());
        }
        self.may(Right::Publish, Resource::Stream(stream))?;
        if !self.principal.sees_all() {
            let _ = self.publishes_to.set(stream.clone());
        }
        Ok(())
    }

    fn may_in(&self, action: Right, stream: &StreamName, group: &GroupName) -> Result<(), Denied> {
        self.may(action, Resource::Group(stream, group))
    }

    /// The shard of a stream.
    fn shard_of(&self, stream: &StreamName) -> &ShardHandle {
        self.broker.shard_of(stream)
    }
}

/// Settings that send messages to another stream need the right to publish there. A destination that the group had
/// before is not asked about.
pub(crate) fn may_move(
    who: &Principal,
    before: Option<&GroupSettings>,
    after: &GroupSettings,
) -> Result<(), Denied> {
    let is_new = |setting: &(&str, &StreamName)| {
        before.is_none_or(|before| before.destinations().all(|other| other != *setting))
    };
    let mut added = after.destinations().filter(is_new);
    added.try_for_each(|(_, to)| authorize(who, Right::Publish, Resource::Stream(to)))
}

/// Settings that copy messages of other streams need the right to read all streams that these may be.
pub(crate) fn may_feed(
    who: &Principal,
    before: Option<&Source>,
    after: Option<&Source>,
) -> Result<(), Denied> {
    match after {
        Some(source) if before != after => authorize(who, Right::Read, Resource::StreamsOf(&source.prefix)),
        _ => Ok(()),
    }
}

/// A settlement that moves messages to another stream needs the right to publish there.
fn may_settle(who: &Principal, settlement: &Settlement) -> Result<(), Denied> {
    match &settlement.verb {
        Verb::Move(to) => authorize(who, Right::Publish, Resource::Stream(to)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
