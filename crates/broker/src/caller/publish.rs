//! Storing messages.
//!
//! Pressure travels back to its cause: a publisher takes [`Room`] from a byte budget before it enters, and the room is
//! given back after the sync.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::shard::PublishOptions;
use forebay_core::types::StreamName;
use forebay_storage::engine::Durable;
use tokio::sync::oneshot;

use super::Caller;
use crate::batch::Batch;
use crate::broker::Room;
use crate::driver::Published;
use crate::error::PublishError;
use crate::shard_task::Command;

/// Resolves when the batch is durable.
#[derive(Debug)]
pub struct Confirmation(oneshot::Receiver<Result<Durable<Published>, PublishError>>);

impl Future for Confirmation {
    type Output = Result<Durable<Published>, PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or(Err(PublishError::Unknown)))
    }
}

impl Caller {
    /// Stores a batch, whole or not at all. Batches of one caller are stored in the order of the calls. A
    /// stream that is not there is created, where the server is configured so.
    pub fn publish(
        &self,
        room: Room,
        stream: Arc<StreamName>,
        batch: Batch,
        options: PublishOptions,
    ) -> Confirmation {
        self.send(room, stream, batch, options, true)
    }

    /// As [`Caller::publish`], only to a stream that is there.
    pub fn publish_to_existing(&self, room: Room, stream: Arc<StreamName>, batch: Batch) -> Confirmation {
        self.send(room, stream, batch, PublishOptions::default(), false)
    }

    fn send(
        &self,
        room: Room,
        stream: Arc<StreamName>,
        batch: Batch,
        options: PublishOptions,
        may_create: bool,
    ) -> Confirmation {
        let (reply, answer) = oneshot::channel();
        if let Err(denied) = self.may_publish(&stream) {
            let _ = reply.send(Err(denied.into()));
            return Confirmation(answer);
        }
        let shard = self.shard_of(&stream);
        let command = Command::Publish { stream, batch, options, may_create, room: room.0, reply };
        if let Err(Command::Publish { reply, .. }) = shard.send(command) {
            let _ = reply.send(Err(PublishError::Stopping));
        }
        Confirmation(answer)
    }
}
