//! SIGTERM and SIGINT, as commands that run until they are stopped take them.

use std::time::Duration;

use anyhow::Context as _;
use forebay_broker::clock::Clock;
use forebay_core::types::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that come so close together are one request: `timeout` and some supervisors signal a process, and then its
/// group.
const SAME_WITHIN: Duration = Duration::from_millis(300);

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    clock: Clock,
    last: Option<Timestamp>,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            clock: Clock::start(),
            last: None,
        })
    }

    /// Resolves with the next request to stop.
    pub(crate) async fn any(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            let now = self.clock.now();
            if self.last.is_none_or(|last| now >= last + SAME_WITHIN) {
                self.last = Some(now);
                return;
            }
        }
    }
}
