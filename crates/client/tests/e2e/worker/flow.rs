//! How much runs at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_client::worker::{BreakerPolicy, BreakerState, Route};
use forebay_client::{Fault, GroupSettings, Job, Message};

use crate::worker::rig::*;

/// Counts how many are inside at a time.
#[derive(Clone, Default)]
struct Inside(Arc<(AtomicUsize, AtomicUsize)>);

impl Inside {
    async fn stay(&self, time: Duration) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

fn stays(inside: &Inside, time: Duration) -> impl Fn(Seen, Job<Task>) -> BoxedJob + Clone + use<> {
    let inside = inside.clone();
    move |seen, job| {
        let inside = inside.clone();
        Box::pin(async move {
            inside.stay(time).await;
            seen.add(&job);
            Ok(())
        })
    }
}

type BoxedJob = std::pin::Pin<Box<dyn Future<Output = Result<(), Fault>> + Send>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_run_at_a_time_as_are_said() {
    let rig = Rig::new().await;
    let inside = Inside::default();
    let handler = stays(&inside, Duration::from_millis(5));
    let worker = rig.worker().concurrency(7).prefetch(50).on(handler).start().await.expect("it is there");
    rig.publish(0..200).await;
    rig.settled().await;
    assert_eq!(inside.most(), 7);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulkhead_limits_its_routes_and_leaves_the_others_alone() {
    let rig = Rig::new().await;
    let (narrow, wide) = (Inside::default(), Inside::default());
    let two = |inside: &Inside| {
        let inside = inside.clone();
        move |_: Seen, _: Job<TaskV2>| {
            let inside = inside.clone();
            async move {
                inside.stay(Duration::from_millis(2)).await;
                Ok(())
            }
        }
    };
    let worker = rig
        .worker()
        .concurrency(10)
        .prefetch(100)
        .bulkhead("narrow", 2)
        .route(Route::new(stays(&narrow, Duration::from_millis(10))).bulkhead("narrow"))
        .on(two(&wide))
        .start()
        .await
        .expect("it is there");
    rig.publish(0..30).await;
    let second = |n| Message::new(format!(r#"{{"number":{n}}}"#)).kind("task").schema(2);
    rig.publish_all((0..100).map(second).collect()).await;
    rig.settled().await;
    assert_eq!(narrow.most(), 2);
    assert!(wide.most() > 2, "{}", wide.most());
    drop(worker);
}

#[tokio::test]
async fn a_rate_is_kept() {
    let rig = Rig::new().await;
    let worker = rig.worker().concurrency(10).rate(100.0, 5).on(does(|_, _| Ok(()))).start();
    let worker = worker.await.expect("it is there");
    rig.publish(0..40).await;
    let began = std::time::Instant::now();
    rig.settled().await;
    // 40 at 100 a second, less a burst of 5: never sooner, however busy the machine is.
    assert!(began.elapsed() >= Duration::from_millis(330), "{:?}", began.elapsed());
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_makes_it_grow_and_an_empty_stream_shrink() {
    let rig = Rig::new().await;
    let inside = Inside::default();
    let handler = stays(&inside, Duration::from_millis(20));
    let worker =
        rig.worker().concurrency(1..=12).target_drain(SECOND).on(handler).start().await.expect("it is there");
    assert_eq!(worker.stats().concurrency, 1);
    // More than can be done before it has grown, however slow the machine is.
    rig.publish(0..10_000).await;
    until(|| worker.stats().concurrency == 12).await;
    until(|| inside.most() > 4).await;
    assert!(inside.most() <= 12, "{}", inside.most());
    rig.client.purge_stream(STREAM, false).await.expect("it is there");
    rig.settled().await;
    // What came in the last minute counts as arrivals. The server takes it for what came in the second before it first
    // looked, so that second passes first, and then the minute.
    rig.server.advance(SECOND).await;
    rig.server.advance(600 * SECOND).await;
    until(|| worker.stats().concurrency == 1).await;
    drop(worker);
}

#[tokio::test]
async fn an_open_breaker_takes_nothing_and_costs_no_attempts() {
    let backoff = backoff(Duration::from_millis(1), Duration::from_millis(1));
    let rig = Rig::with(GroupSettings::new().backoff(backoff).max_retries(100)).await;
    let down = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_down = down.clone();
    let handler = does(move |_, _| match is_down.load(Ordering::SeqCst) {
        true => Err(Fault::transient("down")),
        false => Ok(()),
    });
    let policy =
        BreakerPolicy { results: 10, open_min: 2 * SECOND, open_max: 2 * SECOND, ..BreakerPolicy::default() };
    let worker = rig.worker().prefetch(20).breaker(policy).on(handler).start().await.expect("it is there");
    rig.publish(0..50).await;
    until(|| worker.stats().breaker == BreakerState::Open).await;
    rig.until(|group| group.in_flight == 0).await;
    assert_eq!(rig.seen.all().len(), 10);
    // A probe finds out that it is still down.
    until(|| rig.seen.all().len() >= 11).await;
    assert!(rig.seen.all().len() < 15, "a probe at a time: {}", rig.seen.all().len());
    down.store(false, Ordering::SeqCst);
    rig.settled().await;
    assert_eq!(worker.stats().breaker, BreakerState::Closed);
    let mut done = rig.seen.numbers();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), 50);
    drop(worker);
}

#[tokio::test]
async fn middleware_runs_around_every_job_the_first_outermost() {
    let rig = Rig::new().await;
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (outer, inner) = (said.clone(), said.clone());
    let worker = rig
        .worker()
        .middleware(move |job, next| {
            let said = outer.clone();
            async move {
                said.lock().expect("no panic").push(format!("outer {:?}", facts(&job)));
                let result = next.run().await;
                said.lock().expect("no panic").push(format!("done {result:?}"));
                result
            }
        })
        .middleware(move |job, next| {
            let said = inner.clone();
            async move {
                said.lock().expect("no panic").push("inner".to_owned());
                match job.seq() {
                    1 => next.run().await,
                    _ => Err(Fault::skip("not today")),
                }
            }
        })
        .on(does(|_, _| Ok(())))
        .start()
        .await
        .expect("it is there");
    rig.publish([1, 2]).await;
    rig.settled().await;
    assert_eq!(rig.seen.numbers(), [1]);
    let said = said.lock().expect("no panic").clone();
    assert_eq!(said[..4], ["outer (1, 1)", "inner", "done Ok(())", "outer (2, 1)"]);
    assert!(said[5].starts_with("done Err(Fault { class: Some(Skip)"), "{said:?}");
    drop(worker);
}
