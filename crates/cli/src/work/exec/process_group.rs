//! The processes of a handler: itself and all that it has started.

use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Child;

/// How long a handler may take to end after SIGTERM.
pub(in crate::work) const GRACE: Duration = Duration::from_secs(2);
/// How often the group is polled for processes that are left.
const POLL: Duration = Duration::from_millis(20);

/// The process group that a handler leads. Killed when this is dropped, unless the handler has ended.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    leader: Option<Pid>,
}

impl ProcessGroup {
    /// The group of a child that was started as its leader.
    pub(super) fn led_by(child: &Child) -> ProcessGroup {
        ProcessGroup { leader: child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) }
    }

    /// The handler has ended by itself. Its background processes go on.
    pub(super) fn let_go(&mut self) {
        self.leader = None;
    }

    /// Sends SIGTERM to all processes, and SIGKILL to those left after the grace period. Returns the handler's exit
    /// status if it ended within that.
    pub(super) async fn end(&mut self, child: &mut Child) -> Option<ExitStatus> {
        let leader = self.leader?;
        self.signal(Signal::TERM);
        let mut status = None;
        let gone = async {
            status = child.wait().await.ok();
            // A shell may end before its children. The system does not reuse the group's id while a process of it is
            // left, nor within the time between two polls.
            while test_kill_process_group(leader) != Err(Errno::SRCH) {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(GRACE, gone).await.is_err() {
            self.signal(Signal::KILL);
            // Only a process that hangs in the kernel is still left. It ends when the kernel lets it.
            let _ = tokio::time::timeout(GRACE, child.wait()).await;
        }
        self.leader = None;
        status
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // A group that has ended needs no signal.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
