//! The pipelines behind `Client::publish`: one for each stream, shared by all tasks, so that messages published at the
//! same time are sent together. A pipeline starts with the first publish and ends when it was unused for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;

use super::handle::{self, Handle, Terms};
use super::pipeline::Identity;
use crate::channel::Channel;

/// Streams that are published to at a time. Each has a call of its own, and a connection allows 256 calls.
const STREAMS_MAX: usize = 100;
/// The wait between two checks whether a pipeline has become unused.
const CROWDED_PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Streams {
    runtime: Runtime,
    channel: Channel,
    identity: Arc<Identity>,
    /// Locked for a look-up only. Pipelines that have ended stay until their room is needed.
    open: Mutex<HashMap<Box<str>, Handle>>,
}

impl Streams {
    pub(crate) fn new(runtime: Runtime, channel: Channel) -> Streams {
        Streams { runtime, channel, identity: handle::new_identity(), open: Mutex::default() }
    }

    /// The pipeline of a stream. `None` if too many are in use, or if the last one is about to end: the server would
    /// take two at a time for one producer that restarted.
    pub(super) fn try_get(&self, stream: &str) -> Option<Handle> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = open.get(stream) {
            if !handle.is_closed() {
                return Some(handle.clone());
            }
            if !handle.has_ended() {
                return None;
            }
            open.remove(stream);
        }
        if open.len() >= STREAMS_MAX {
            open.retain(|_, handle| !handle.has_ended());
        }
        if open.len() >= STREAMS_MAX {
            if let Some(unused) = open.values().find(|handle| handle.is_unused() && !handle.is_closed()) {
                unused.close();
            }
            return None;
        }
        let (runtime, channel) = (&self.runtime, self.channel.clone());
        let handle = Handle::start(runtime, channel, stream, self.identity.clone(), super::SHARED);
        open.insert(stream.into(), handle.clone());
        Some(handle)
    }

    /// The pipeline of a stream, once there is room for it.
    pub(super) async fn get(&self, stream: &str) -> Handle {
        loop {
            match self.try_get(stream) {
                Some(handle) => return handle,
                None => tokio::time::sleep(CROWDED_PAUSE).await,
            }
        }
    }

    /// A pipeline that is not shared.
    pub(super) fn start(&self, stream: &str, terms: Terms) -> Handle {
        Handle::start(&self.runtime, self.channel.clone(), stream, handle::new_identity(), terms)
    }
}
