//! What somebody may ask of the broker. A [`Caller`] is a handle in somebody's name: each of its verbs checks
//! first whether that principal may do it.

mod arrange;
mod consume;
mod notes;
mod operate;
mod publish;
mod read;
mod triage;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_core::types::{GroupName, StreamName};
use tokio::sync::oneshot;

use crate::access::{Action, Denied, Principal, Resource, authorize};
use crate::broker::Broker;
use crate::error::CallError;
use crate::shard_task::{Command, ShardTask};

pub use crate::driver::Arranged;
pub use arrange::{Arrangement, Change, NoteWish};
pub use consume::{Consumer, Receive, Receiving, Verdict};
pub use operate::{Created, GroupCursor};
pub use publish::Confirmation;
pub use read::Filter;
pub use triage::{JobTerms, Select};

/// A broker, as one principal may use it. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    pub(crate) broker: Broker,
    principal: Arc<Principal>,
    /// Where the caller is.
    address: Option<SocketAddr>,
}

impl Caller {
    pub(crate) fn new(broker: Broker, principal: Principal, address: Option<SocketAddr>) -> Caller {
        Caller { broker, principal: Arc::new(principal), address }
    }

    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    fn may(&self, action: Action, what: Resource<'_>) -> Result<(), Denied> {
        authorize(&self.principal, action, what)
    }

    fn may_in(&self, action: Action, stream: &StreamName, group: &GroupName) -> Result<(), Denied> {
        self.may(action, Resource::Group(stream, group))
    }

    /// Runs in the task that owns the shard, in its turn; the answer comes by `reply`.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ShardTask, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let _permit = self.broker.calls.acquire().await.expect("permits are never closed");
        self.ask_at_once(work).await
    }

    /// As `ask`, for what must not wait for others: settling.
    async fn ask_at_once<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ShardTask, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        let call = Command::Call(Box::new(move |task| work(task, reply)));
        self.broker.commands.send(call).map_err(|_| CallError::Stopping)?;
        answer.await.unwrap_or(Err(CallError::Unknown))
    }

    /// Looks at something. The answer speaks only of what is durable when it leaves.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&ShardTask) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        self.ask(move |task, reply| {
            let seen = look(task);
            task.answer_durably(reply, seen);
        })
        .await
    }
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

#[cfg(test)]
mod tests;
