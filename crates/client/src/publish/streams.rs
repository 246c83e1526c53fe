//! The pipelines behind `Client::publish`: one for each stream that is published to, shared by everybody who does,
//! so that what is published at the same time travels together. They begin with the first publish, and end when
//! nobody has published for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tonic::transport::Channel;

use super::handle::{self, Handle, Terms};
use super::pipeline::Identity;

/// Streams that are published to at a time. Each has a call of its own, and a connection has 256.
const STREAMS_MAX: usize = 100;
/// How long to wait before looking again whether a stream has become unused.
const CROWDED_PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Streams {
    runtime: Runtime,
    channel: Channel,
    identity: Arc<Identity>,
    /// Held for a look only. Those that have ended stay until there is need for room.
    open: Mutex<HashMap<Box<str>, Handle>>,
}

impl Streams {
    pub(crate) fn new(runtime: Runtime, channel: Channel) -> Streams {
        Streams { runtime, channel, identity: handle::new_identity(), open: Mutex::default() }
    }

    /// The pipeline of a stream. None if as many as may be are in use, or if the last one is about to end: two would
    /// take each other for one that has started again.
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

    /// The pipeline of a stream, as soon as there may be one.
    pub(super) async fn get(&self, stream: &str) -> Handle {
        loop {
            match self.try_get(stream) {
                Some(handle) => return handle,
                None => tokio::time::sleep(CROWDED_PAUSE).await,
            }
        }
    }

    /// A pipeline that is nobody else's.
    pub(super) fn start(&self, stream: &str, terms: Terms) -> Handle {
        Handle::start(&self.runtime, self.channel.clone(), stream, handle::new_identity(), terms)
    }
}
