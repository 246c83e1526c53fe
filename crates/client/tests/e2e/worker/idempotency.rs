//! Work that is done once, with the store in memory. The other stores have tests of their own.

use std::time::Duration;

use forebay_client::idempotency::{Begun, IdempotencyStore as _, MemoryStore};
use forebay_client::{Fault, Job, Message, StreamSettings};

use crate::worker::rig::*;

fn message(n: u32, id: &str) -> Message {
    Message::new(format!(r#"{{"n":{n}}}"#)).kind("task").id(id)
}

#[tokio::test]
async fn what_was_done_is_acked_without_running() {
    let rig = Rig::new().await;
    // The server forgets ids at once, so that the same id can be published twice.
    let forgets = StreamSettings::new().dedupe_window(Duration::ZERO);
    rig.client.update_stream(STREAM, forgets, &[]).await.expect("it is there");
    let store = MemoryStore::new();
    let worker = rig
        .worker()
        .idempotency(store, 600 * SECOND)
        .on(does(|_, _| Ok(())))
        .start()
        .await
        .expect("it is there");
    rig.publish_all(vec![message(1, "a"), message(2, "b")]).await;
    rig.settled().await;
    rig.publish_all(vec![message(3, "a"), message(4, "c")]).await;
    rig.settled().await;
    assert_eq!(rig.seen.numbers(), [1, 2, 4]);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.duplicates, stats.acked), (1, 4));
}

#[tokio::test]
async fn a_failure_gives_the_claim_up_so_that_the_retry_runs() {
    let rig = Rig::new().await;
    let store = MemoryStore::new();
    let handler = does(|_, attempt| match attempt {
        1 => Err(Fault::transient("once")),
        _ => Ok(()),
    });
    let worker =
        rig.worker().idempotency(store, 600 * SECOND).on(handler).start().await.expect("it is there");
    rig.publish([1]).await;
    rig.settled().await;
    assert_eq!(rig.seen.all(), [(1, 1), (1, 2)]);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.retried, stats.acked, stats.snoozed), (1, 1, 0));
}

#[tokio::test]
async fn what_somebody_else_is_at_waits_without_costing_an_attempt() {
    let rig = Rig::new().await;
    let store = std::sync::Arc::new(MemoryStore::new());
    let key = format!("{STREAM}/{GROUP}/id/a");
    let begun = store.begin(&key, 600 * SECOND).await.expect("it does not fail");
    let Begun::New(claim) = begun else { panic!("nobody had it") };
    let worker = rig
        .worker()
        .idempotency(store.clone(), 600 * SECOND)
        .on(does(|_, _| Ok(())))
        .start()
        .await
        .expect("it is there");
    rig.publish_all(vec![message(1, "a")]).await;
    until(|| worker.stats().snoozed == 1).await;
    let due = rig.server.next_due().await.expect("it comes again");
    assert!(due <= 5 * SECOND, "{due:?}");
    store.finish(&claim, 600 * SECOND).await.expect("it is ours");
    rig.settled().await;
    assert_eq!(rig.seen.all(), []);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.duplicates, stats.retried), (1, 0));
}

#[tokio::test]
async fn a_key_of_ones_own_is_what_counts() {
    let rig = Rig::new().await;
    async fn handler(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        seen.add(&job);
        Ok(())
    }
    let worker = rig
        .worker()
        .idempotency(MemoryStore::new(), 600 * SECOND)
        .idempotency_key(|job| format!("even-{}", job.seq() % 2))
        .on(handler)
        .start()
        .await
        .expect("it is there");
    rig.publish(1..=6).await;
    rig.settled().await;
    assert_eq!(rig.seen.numbers(), [1, 2]);
    drop(worker);
}
