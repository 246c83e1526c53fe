//! How a server ends by itself. The doors close when the task that owns the shard ends, so both ends are seen at about
//! the same time, in any order. The task knows the cause.

use std::io;
use std::time::Duration;

use forebay_broker::broker::Running;
use forebay_broker::recovery::RecoveryError;
use tokio::task::{JoinError, JoinHandle};

/// The end of a server, as its cause tells it.
pub(super) enum End {
    Task(Result<Result<(), RecoveryError>, JoinError>),
    /// The doors have closed, and the task has not ended within the patience.
    Doors(Result<io::Result<()>, JoinError>),
}

/// Resolves when the task or the doors end.
pub(super) async fn end(
    running: &mut Running,
    doors: &mut JoinHandle<io::Result<()>>,
    patience: Duration,
) -> End {
    tokio::select! {
        biased;
        ended = &mut *running => End::Task(ended),
        served = doors => match tokio::time::timeout(patience, running).await {
            Ok(ended) => End::Task(ended),
            Err(_) => End::Doors(served),
        },
    }
}

#[cfg(test)]
mod tests {
    use forebay_storage::engine::StorageError;
    use tokio::sync::oneshot;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn is_stopped(end: &End) -> bool {
        matches!(end, End::Task(Ok(Err(RecoveryError::Storage(StorageError::Stopped)))))
    }

    #[tokio::test]
    async fn a_failure_of_storage_is_the_cause_even_if_the_doors_are_seen_to_close_first() {
        let (fail, failed) = oneshot::channel::<()>();
        let mut running: Running = tokio::spawn(async move {
            let _ = failed.await;
            Err(StorageError::Stopped.into())
        });
        let mut doors = tokio::spawn(async { Ok(()) });
        while !doors.is_finished() {
            tokio::task::yield_now().await;
        }
        let ending = tokio::spawn(async move { end(&mut running, &mut doors, PATIENCE).await });
        // The end of the doors has been seen by now.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        fail.send(()).expect("the task waits");
        assert!(is_stopped(&ending.await.expect("it ends")));
    }

    #[tokio::test]
    async fn of_two_ends_at_once_the_task_counts() {
        for _ in 0..64 {
            let mut running: Running = tokio::spawn(async { Err(StorageError::Stopped.into()) });
            let mut doors = tokio::spawn(async { Ok(()) });
            while !(running.is_finished() && doors.is_finished()) {
                tokio::task::yield_now().await;
            }
            assert!(is_stopped(&end(&mut running, &mut doors, PATIENCE).await));
        }
    }

    #[tokio::test]
    async fn doors_that_close_alone_are_told_of() {
        let mut running: Running = tokio::spawn(std::future::pending());
        let mut doors = tokio::spawn(async { Err(io::Error::from(io::ErrorKind::ConnectionReset)) });
        let ended = end(&mut running, &mut doors, Duration::from_millis(1)).await;
        assert!(matches!(ended, End::Doors(Ok(Err(_)))));
    }
}
