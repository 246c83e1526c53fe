//! A handler with every process that it has started, so that none is left behind.

use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Child;

/// How long a handler that is asked to end may take to do so.
pub(in crate::work) const GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether anybody is left.
const LOOK: Duration = Duration::from_millis(20);

/// The process group that a handler leads. Killed when this is dropped, unless the handler has ended.
#[derive(Debug)]
pub(super) struct Family {
    leader: Option<Pid>,
}

impl Family {
    /// Of a child that was started as the leader of a group.
    pub(super) fn of(child: &Child) -> Family {
        Family { leader: child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) }
    }

    /// The handler has ended by itself. What it left running in the background is its own business.
    pub(super) fn let_go(&mut self) {
        self.leader = None;
    }

    /// Asks everybody to end, and kills those who have not after a while. Answers how the handler itself ended, if it
    /// did so when it was asked.
    pub(super) async fn end(&mut self, child: &mut Child) -> Option<ExitStatus> {
        let leader = self.leader?;
        self.signal(Signal::TERM);
        let mut status = None;
        let gone = async {
            status = child.wait().await.ok();
            // A shell may end before what it has started does. As long as one of the group is there, its number
            // is given to nobody else; and it takes far longer than a look for numbers to come round.
            while test_kill_process_group(leader) != Err(Errno::SRCH) {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(GRACE, gone).await.is_err() {
            self.signal(Signal::KILL);
            // Only one that hangs in the kernel is still there, and that one ends when the kernel lets it.
            let _ = tokio::time::timeout(GRACE, child.wait()).await;
        }
        self.leader = None;
        status
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // Whoever has gone meanwhile needs no signal.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
