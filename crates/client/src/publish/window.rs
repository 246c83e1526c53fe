//! How much may be in flight: a number of messages, and of bytes.

use tokio::sync::{AcquireError, Semaphore, TryAcquireError};

use super::pipeline::Room;

pub(super) struct Window {
    most: Room,
    messages: Semaphore,
    bytes: Semaphore,
}

/// There is no room now, or no more messages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    Full,
    Closed,
}

impl Window {
    pub(super) fn new(messages: usize, bytes: usize) -> Window {
        let messages = messages.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let bytes = bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Window {
            most: Room { messages, bytes },
            messages: Semaphore::new(messages),
            bytes: Semaphore::new(bytes),
        }
    }

    /// The room for messages. A batch larger than the window goes when nothing else is in flight.
    pub(super) fn room_for(&self, messages: usize, bytes: usize) -> Room {
        Room { messages: messages.min(self.most.messages), bytes: bytes.min(self.most.bytes) }
    }

    /// Takes room if there is some now and no other task waits for it.
    pub(super) fn try_take(&self, room: Room) -> Result<(), NoRoom> {
        let no_room = |error| match error {
            TryAcquireError::NoPermits => NoRoom::Full,
            TryAcquireError::Closed => NoRoom::Closed,
        };
        let messages = self.messages.try_acquire_many(room.messages as u32).map_err(no_room)?;
        let bytes = self.bytes.try_acquire_many(room.bytes as u32).map_err(no_room)?;
        messages.forget();
        bytes.forget();
        Ok(())
    }

    /// Waits for room, first come, first served.
    pub(super) async fn take(&self, room: Room) -> Result<(), NoRoom> {
        let closed = |_: AcquireError| NoRoom::Closed;
        let messages = self.messages.acquire_many(room.messages as u32).await.map_err(closed)?;
        let bytes = self.bytes.acquire_many(room.bytes as u32).await.map_err(closed)?;
        messages.forget();
        bytes.forget();
        Ok(())
    }

    pub(super) fn give_back(&self, room: Room) {
        if room.messages > 0 {
            self.messages.add_permits(room.messages);
            self.bytes.add_permits(room.bytes);
        }
    }

    /// Whether no message is in flight.
    pub(super) fn is_unused(&self) -> bool {
        self.messages.available_permits() == self.most.messages
    }

    pub(super) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }

    /// Ends every wait for room.
    pub(super) fn close(&self) {
        self.messages.close();
        self.bytes.close();
    }
}
