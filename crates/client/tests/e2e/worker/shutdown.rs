//! Leaving well.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_client::worker::WorkerError;
use forebay_client::{Fault, Job, Worker};

use crate::worker::rig::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_nothing_is_lost_and_no_attempt_is_burned() {
    const MESSAGES: u32 = 4_000;
    let rig = Rig::new().await;
    async fn handler(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        tokio::time::sleep(Duration::from_millis(u64::from(job.n % 7))).await;
        seen.add(&job);
        Ok(())
    }
    rig.publish(0..MESSAGES).await;
    let mut acked = 0;
    let mut workers = 0;
    while rig.group().await.lag > 0 {
        let worker = rig
            .worker()
            .name(format!("worker-{workers}"))
            .concurrency(16)
            .prefetch(100)
            .on(handler)
            .start()
            .await
            .expect("it is there");
        tokio::time::sleep(Duration::from_millis(30)).await;
        let began = std::time::Instant::now();
        let stats = worker.shutdown().await.expect("it leaves well");
        assert!(began.elapsed() < 5 * SECOND, "within its deadline");
        assert_eq!((stats.running, stats.waiting, stats.late, stats.lost), (0, 0, 0, 0));
        acked += stats.acked;
        workers += 1;
    }
    assert!(workers > 2, "it was interrupted while there was work: {workers}");
    assert_eq!(acked, u64::from(MESSAGES));
    let mut seen = rig.seen.all();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq((0..MESSAGES).map(|n| (n, 1))), "each once, at its first attempt");
    let counters = rig.group().await.counters;
    assert_eq!((counters.acked, counters.retried), (u64::from(MESSAGES), 0));
    assert!(counters.returned > 0, "some were given back");
}

#[tokio::test]
async fn what_is_not_done_in_time_goes_back_without_costing_an_attempt() {
    let rig = Rig::new().await;
    async fn never_ends(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        std::future::pending().await
    }
    let worker = rig
        .worker()
        .concurrency(3)
        .prefetch(3)
        .shutdown_within(Duration::from_millis(50))
        .on(never_ends)
        .start()
        .await
        .expect("it is there");
    rig.publish(1..=5).await;
    until(|| rig.seen.all().len() == 3).await;
    let began = std::time::Instant::now();
    let stats = worker.shutdown().await.expect("it leaves well");
    assert!(began.elapsed() < 2 * SECOND);
    assert_eq!((stats.returned, stats.acked), (5, 0));
    let next = rig.start(|_, _| Ok(())).await;
    rig.settled().await;
    let mut second: Vec<_> = rig.seen.all()[3..].to_vec();
    second.sort_unstable();
    assert_eq!(second, (1..=5).map(|n| (n, 1)).collect::<Vec<_>>(), "the first attempt each");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_hears_of_the_end_may_tidy_up_and_costs_no_attempt() {
    let rig = Rig::new().await;
    async fn tidies_up(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        job.info.cancelled().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen.add(&job);
        Err(Fault::permanent("out of time"))
    }
    let short = Duration::from_millis(20);
    let worker = rig.worker().concurrency(4).prefetch(0).shutdown_within(short).on(tidies_up);
    let worker = worker.start().await.expect("it is there");
    rig.publish(1..=4).await;
    until(|| rig.seen.all().len() == 4).await;
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!(rig.seen.all().len(), 8, "each of them tidied up");
    assert_eq!((stats.returned, stats.parked, stats.retried), (4, 0, 0));
    let group = rig.group().await;
    assert_eq!((group.lag, group.parked), (4, 0));
}

#[tokio::test]
async fn a_worker_waits_for_its_server_if_it_is_told_to_run() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address");
    drop(nobody);
    let client = forebay_client::Client::builder(format!("http://{address}")).connect_lazy();
    let client = client.expect("it is an address");
    let worker = || Worker::builder(client.clone(), STREAM, GROUP, Seen::default()).on(does(|_, _| Ok(())));
    let error = worker().start().await.expect_err("nobody is there");
    assert!(matches!(error, WorkerError::Refused(_)), "{error:?}");
    let a_while = tokio::time::sleep(Duration::from_millis(200));
    let stats =
        worker().shutdown_within(Duration::MAX).run_until(a_while).await.expect("it was told to stop");
    assert!(stats.disconnected > 0 && stats.received == 0, "{stats:?}");
}

#[tokio::test]
async fn one_who_dies_without_a_word_costs_what_it_held_an_attempt() {
    let rig = Rig::new().await;
    async fn never_ends(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        std::future::pending().await
    }
    let worker = rig.worker().prefetch(0).on(never_ends).start().await.expect("it is there");
    rig.publish([1]).await;
    until(|| rig.seen.all().len() == 1).await;
    drop(worker);
    let next = rig.start(|_, _| Ok(())).await;
    rig.settled().await;
    assert_eq!(rig.seen.all(), [(1, 1), (1, 2)]);
    drop(next);
}

#[tokio::test]
async fn it_runs_until_it_is_told() {
    let rig = Rig::new().await;
    let done = std::sync::Arc::new(AtomicU32::new(0));
    let count = done.clone();
    let handler = does(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    rig.publish(0..10).await;
    let enough = async {
        until(|| done.load(Ordering::Relaxed) == 10).await;
    };
    let stats = rig.worker().on(handler).run_until(enough).await.expect("it leaves well");
    assert_eq!(stats.acked, 10);
    assert_eq!(rig.group().await.lag, 0);
}

#[tokio::test]
async fn mistakes_are_told_at_the_start() {
    let rig = Rig::new().await;
    let client = rig.client.clone();
    let refused = |error: WorkerError| error.to_string();
    let none = Worker::builder(client.clone(), STREAM, GROUP, ()).start().await.unwrap_err();
    assert_eq!(refused(none), "a worker must have a handler: `on`, `on_batch` or `on_any`");
    let twice = rig.worker().on(does(|_, _| Ok(()))).on(does(|_, _| Ok(()))).start().await.unwrap_err();
    assert_eq!(refused(twice), "a type must have one handler. type=`task version 1`");
    let route = forebay_client::worker::Route::new(does(|_, _| Ok(()))).bulkhead("smtp");
    let nowhere = rig.worker().route(route).start().await.unwrap_err();
    assert_eq!(refused(nowhere), "the bulkhead of a route must be added to the worker. bulkhead=`smtp`");
    let rate = rig.worker().rate(0.0, 1).on(does(|_, _| Ok(()))).start().await.unwrap_err();
    assert_eq!(refused(rate), "rate must be between 0.000001 and 1000000000 per second. value=`0`");
    let absent = Worker::builder(client, STREAM, "nobody", rig.seen.clone()).on(does(|_, _| Ok(())));
    let absent = absent.start().await.unwrap_err();
    assert!(matches!(absent, WorkerError::Refused(_)), "{absent:?}");
}
