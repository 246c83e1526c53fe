//! Whether a credential is still good. Everything that is done in its name holds on to this.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::types::Timestamp;
use tokio::sync::Notify;

use crate::clock::Clock;

/// Whether a credential is still good, shared by everything that is done in its name.
#[derive(Debug)]
pub(crate) struct Standing {
    expires: Option<Timestamp>,
    has_ended: AtomicBool,
    ending: Notify,
}

impl Standing {
    pub(crate) fn new(expires: Option<Timestamp>) -> Standing {
        Standing { expires, has_ended: AtomicBool::new(false), ending: Notify::new() }
    }

    /// The credential was revoked.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.ending.notify_waiters();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Resolves when the credential is revoked or expires.
    pub(crate) async fn ended(&self, clock: Clock) {
        let ending = self.ending.notified();
        // A revocation after this line wakes the waiter.
        let mut ending = std::pin::pin!(ending);
        ending.as_mut().enable();
        if self.has_ended() {
            return;
        }
        match self.expires {
            Some(expires) => tokio::select! {
                () = ending => {}
                () = clock.reaches(expires) => {}
            },
            None => ending.await,
        }
    }
}
