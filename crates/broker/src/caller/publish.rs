//! Storing messages.
//!
//! Pressure travels back to its cause: a publisher takes [`Room`] from a byte budget before it enters, and the room is
//! given back after the sync.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::settings::StreamSettings;
use forebay_core::shard::PublishOptions;
use forebay_core::types::StreamName;
use forebay_storage::engine::Durable;
use tokio::sync::oneshot;

use super::Caller;
use crate::access::{Resource, Right};
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

/// What becomes of a batch for a stream that does not exist.
#[derive(Debug, Clone, Default)]
pub enum Absent {
    /// The stream is created where the server is configured so, with the settings that it is configured with.
    #[default]
    AsConfigured,
    /// The batch is refused.
    Refuse,
    /// The stream is created with these settings, in the frame of the batch. The caller needs the right to create it.
    Create(Arc<StreamSettings>),
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
        self.publish_or(room, stream, batch, options, Absent::AsConfigured)
    }

    /// As [`Caller::publish`], only to a stream that is there.
    pub fn publish_to_existing(&self, room: Room, stream: Arc<StreamName>, batch: Batch) -> Confirmation {
        self.publish_or(room, stream, batch, PublishOptions::default(), Absent::Refuse)
    }

    /// As [`Caller::publish`], and says what becomes of the batch if the stream does not exist.
    pub fn publish_or(
        &self,
        room: Room,
        stream: Arc<StreamName>,
        batch: Batch,
        options: PublishOptions,
        absent: Absent,
    ) -> Confirmation {
        let (reply, answer) = oneshot::channel();
        let creates = matches!(absent, Absent::Create(_));
        let may_create = || if creates { self.may(Right::Create, Resource::Stream(&stream)) } else { Ok(()) };
        if let Err(denied) = self.may_publish(&stream).and_then(|()| may_create()) {
            let _ = reply.send(Err(denied.into()));
            return Confirmation(answer);
        }
        if let Err(over) = self.broker.tenants().may_publish(&stream, batch.bytes()) {
            let _ = reply.send(Err(over.into()));
            return Confirmation(answer);
        }
        let shard = self.shard_of(&stream);
        let command = Command::Publish { stream, batch, options, absent, room: room.0, reply };
        if let Err(Command::Publish { reply, .. }) = shard.send(command) {
            let _ = reply.send(Err(PublishError::Stopping));
        }
        Confirmation(answer)
    }
}
