//! Leases that are kept alive, and leases that are lost.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::worker::WorkerEvent;
use forebay_client::{Fault, GroupSettings, Job};
use tokio::sync::{Mutex, Notify, mpsc};

use crate::worker::rig::*;

fn lease(of: Duration) -> GroupSettings {
    GroupSettings::new().message_timeout(of)
}

#[tokio::test]
async fn a_lost_lease_cancels_the_job_and_its_late_ack_is_refused_and_reported() {
    let rig = Rig::with(lease(30 * SECOND)).await;
    let (events, mut told) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let gate = go_on.clone();
    let handler = move |seen: Seen, job: Job<Task>| {
        let gate = gate.clone();
        async move {
            seen.add(&job);
            if job.info.attempt() == 1 {
                gate.notified().await;
            }
            Ok::<(), Fault>(())
        }
    };
    let hear = move |event: &WorkerEvent| drop(events.send(event.clone()));
    let worker = rig.worker().concurrency(2).on_event(hear).on(handler).start().await.expect("it is there");
    rig.publish([1]).await;
    until(|| rig.seen.all().len() == 1).await;
    rig.server.advance(31 * SECOND).await;
    // The lease has lapsed, and the message comes again once its backoff is over.
    rig.server.advance(SECOND).await;
    until(|| rig.seen.all().len() == 2).await;
    rig.until(|group| group.lag == 0).await;
    go_on.notify_one();
    until(|| worker.stats().late == 1).await;
    assert_eq!(rig.seen.all(), [(1, 1), (1, 2)]);
    let mut late = false;
    while let Ok(event) = told.try_recv() {
        late |= matches!(event, WorkerEvent::LateAnswer { seq: 1 });
    }
    assert!(late, "it was reported");
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.acked, stats.late), (1, 1));
}

#[tokio::test]
async fn whoever_works_on_a_message_that_was_taken_away_is_told() {
    let rig = Rig::with(lease(SECOND)).await;
    async fn waits_for_the_end(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        job.info.cancelled().await;
        seen.add(&job);
        Err(Fault::transient("taken away"))
    }
    let worker = rig.worker().on(waits_for_the_end).start().await.expect("it is there");
    rig.publish([1]).await;
    until(|| rig.seen.all().len() == 1).await;
    rig.client.purge_stream(STREAM, false).await.expect("it is there");
    until(|| worker.stats().lost == 1).await;
    until(|| rig.seen.all().len() == 2).await;
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.acked, stats.retried, stats.lost), (0, 0, 1));
}

#[tokio::test]
async fn one_lease_that_has_little_time_left_shortens_no_other() {
    let rig = Rig::with(lease(30 * SECOND)).await;
    async fn slow(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        tokio::time::sleep(2 * SECOND).await;
        Ok(())
    }
    let worker = rig.worker().concurrency(10).on(slow).start().await.expect("it is there");
    rig.publish(0..5).await;
    until(|| rig.seen.all().len() == 5).await;
    // A third of the time is over at the server, and nothing was renewed yet.
    let short = lease(Duration::from_millis(300));
    rig.client.update_group(STREAM, GROUP, short, &[]).await.expect("it is there");
    rig.publish(5..6).await;
    until(|| rig.seen.all().len() == 6).await;
    // Renewed within the first looks, for as long as leases were when the worker came.
    tokio::time::sleep(SECOND).await;
    rig.server.advance(20 * SECOND).await;
    rig.until(|group| group.lag == 0).await;
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.acked, stats.lost, stats.late), (6, 0, 0));
}

/// With a clock that runs: the server is the binary's own, and leases really lapse.
#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_the_handler_runs() {
    let rig = Rig::with(lease(SECOND)).await;
    async fn slow(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        tokio::time::sleep(3 * SECOND).await;
        Ok(())
    }
    let worker = rig.worker().on(slow).start().await.expect("it is there");
    rig.publish([1]).await;
    // The server's time goes as ours does.
    let running = Arc::new(Mutex::new(()));
    for _ in 0..60 {
        let _turn = running.lock().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.server.advance(Duration::from_millis(100)).await;
        if rig.group().await.lag == 0 {
            break;
        }
    }
    assert_eq!(rig.seen.all(), [(1, 1)], "it was never given to anyone else");
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.acked, stats.lost, stats.late), (1, 0, 0));
    assert_eq!(rig.group().await.counters.timed_out, 0);
}
