//! Messages of one key, one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::{Fault, GroupSettings, Job, Strategy};

use crate::worker::rig::*;

fn ordered(key_batch: u32) -> GroupSettings {
    let backoff = backoff(Duration::from_millis(10), SECOND);
    GroupSettings::new().strategy(Strategy::Ordered).key_batch(key_batch).backoff(backoff)
}

/// Messages `0..count`, spread over some keys.
fn spread(count: u32, keys: u32) -> impl Iterator<Item = (u32, String)> {
    (0..count).map(move |n| (n, format!("key-{}", n % keys)))
}

async fn keys_stay_in_order(key_batch: u32) {
    const MESSAGES: u32 = 600;
    let rig = Rig::with(ordered(key_batch)).await;
    let busy: Arc<HashMap<u32, AtomicBool>> =
        Arc::new((0..5).map(|key| (key, AtomicBool::new(false))).collect());
    let handler = move |seen: Seen, job: Job<Task>| {
        let busy = busy.clone();
        async move {
            let of_key = &busy[&(job.n % 5)];
            assert!(!of_key.swap(true, Ordering::SeqCst), "two of a key at once");
            tokio::time::sleep(Duration::from_micros(u64::from(job.n * 7 % 11) * 100)).await;
            of_key.store(false, Ordering::SeqCst);
            // Every eleventh fails the first time, and what follows it must wait for it.
            if job.n.is_multiple_of(11) && job.info.attempt() == 1 {
                return Err(Fault::transient("once"));
            }
            seen.add(&job);
            Ok(())
        }
    };
    let mut workers = Vec::new();
    for n in 0..3 {
        let worker = rig.worker().name(format!("worker-{n}")).concurrency(8).prefetch(20).on(handler.clone());
        workers.push(worker.start().await.expect("it is there"));
    }
    rig.publish_keyed(spread(MESSAGES, 5)).await;
    rig.settled().await;
    let seen = rig.seen.numbers();
    assert_eq!(seen.len(), MESSAGES as usize, "each is done once");
    for key in 0..5 {
        let of_key: Vec<u32> = seen.iter().copied().filter(|n| n % 5 == key).collect();
        assert!(of_key.is_sorted(), "key {key} was done in another order: {of_key:?}");
    }
    let panicked: u64 = workers.iter().map(|worker| worker.stats().panicked).sum();
    assert_eq!(panicked, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_many_workers_and_failures_every_key_is_done_in_order() {
    keys_stay_in_order(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_where_several_of_a_key_come_together() {
    keys_stay_in_order(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_do_not_wait_for_each_other() {
    let rig = Rig::with(ordered(1)).await;
    let open = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = open.clone();
    let handler = move |seen: Seen, job: Job<Task>| {
        let gate = gate.clone();
        async move {
            if job.info.key() == Some("key-0") {
                let _ = gate.acquire().await;
            }
            seen.add(&job);
            Ok::<(), Fault>(())
        }
    };
    let worker = rig.worker().concurrency(4).on(handler).start().await.expect("it is there");
    rig.publish_keyed(spread(100, 10)).await;
    until(|| rig.seen.all().len() == 90).await;
    assert!(rig.seen.numbers().iter().all(|n| n % 10 != 0));
    open.add_permits(100);
    rig.settled().await;
    assert_eq!(rig.seen.numbers()[90..], [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    drop(worker);
}
