//! Each way to fail: the attempts, the waits and what becomes of the message.

use std::time::Duration;

use forebay_client::{Class, Fault, GroupSettings, Job, Message};

use crate::worker::rig::*;

fn quick() -> GroupSettings {
    GroupSettings::new().backoff(backoff(SECOND, 60 * SECOND)).max_retries(3)
}

/// The waits until everything is settled, one by one.
async fn waits(rig: &Rig) -> Vec<Duration> {
    let mut waits = Vec::new();
    loop {
        let group = rig.until(|group| group.lag == 0 || (group.in_flight == 0 && group.ready == 0)).await;
        if group.lag == 0 {
            return waits;
        }
        let due = rig.server.next_due().await.expect("a retry is due");
        waits.push(due);
        rig.server.advance(due).await;
    }
}

#[tokio::test]
async fn a_transient_failure_is_retried_by_the_policy_and_then_parked() {
    let rig = Rig::with(quick()).await;
    let worker = rig.start(|_, _| Err(Fault::transient("the moon"))).await;
    rig.publish([7]).await;
    assert_eq!(waits(&rig).await, [SECOND, 2 * SECOND, 4 * SECOND]);
    assert_eq!(rig.seen.all(), [(7, 1), (7, 2), (7, 3), (7, 4)]);
    let parked = rig.parked().await;
    assert_eq!((parked.len(), parked[0].attempts, &parked[0].reason[..]), (1, 4, "the moon"));
    assert_eq!(parked[0].history.len(), 4);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.received, stats.retried, stats.parked, stats.acked), (4, 3, 1, 0));
}

#[tokio::test]
async fn retry_after_waits_for_that_long_and_costs_an_attempt() {
    let rig = Rig::with(quick()).await;
    let worker = rig
        .start(|_, attempt| match attempt {
            1 => Err(Fault::retry_after(90 * SECOND, "later")),
            _ => Ok(()),
        })
        .await;
    rig.publish([1]).await;
    assert_eq!(waits(&rig).await, [90 * SECOND]);
    assert_eq!(rig.seen.all(), [(1, 1), (1, 2)]);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.retried, stats.acked), (1, 1));
}

#[tokio::test]
async fn a_permanent_failure_is_parked_at_once() {
    let rig = Rig::with(quick()).await;
    let worker = rig.start(|_, _| Err(Fault::permanent("no such user"))).await;
    rig.publish([1]).await;
    let group = rig.settled().await;
    assert_eq!((group.parked, rig.seen.all()), (1, vec![(1, 1)]));
    let parked = rig.parked().await;
    assert_eq!((parked[0].attempts, &parked[0].reason[..]), (1, "no such user"));
    assert!(parked[0].consumer.as_deref().is_some_and(|name| name.starts_with("worker-")));
    assert_eq!(worker.shutdown().await.expect("it leaves well").parked, 1);
}

#[tokio::test]
async fn a_skipped_message_is_gone_without_being_done() {
    let rig = Rig::with(quick()).await;
    let worker = rig.start(|_, _| Err(Fault::skip("nobody wants it"))).await;
    rig.publish([1]).await;
    let group = rig.settled().await;
    assert_eq!((group.parked, rig.seen.all()), (0, vec![(1, 1)]));
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.skipped, stats.acked), (1, 0));
    assert_eq!(rig.group().await.counters.skipped, 1);
}

#[tokio::test]
async fn a_snoozed_message_comes_again_as_if_it_had_never_been_out() {
    let rig = Rig::with(quick().max_retries(0)).await;
    let left = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(3));
    let worker = rig
        .start(move |_, _| match left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Fault::snooze(600 * SECOND)),
        })
        .await;
    rig.publish([1]).await;
    assert_eq!(waits(&rig).await, [600 * SECOND; 3]);
    assert_eq!(rig.seen.all(), [(1, 1); 4], "each time it is the first attempt");
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.snoozed, stats.acked, stats.parked), (3, 1, 0));
}

#[tokio::test]
async fn one_that_is_throttled_makes_the_whole_group_rest() {
    let rig = Rig::with(quick().max_retries(0)).await;
    let first = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let handler = does(move |_, _| match first.swap(false, std::sync::atomic::Ordering::Relaxed) {
        true => Err(Fault::throttled(Some(Duration::from_millis(300)), "too many")),
        false => Ok(()),
    });
    let worker = rig.worker().prefetch(0).on(handler).start().await.expect("the group is there");
    rig.publish([1]).await;
    until(|| worker.stats().throttled == 1).await;
    let other = rig.start(|_, _| Ok(())).await;
    rig.publish(2..=5).await;
    let group = rig.until(|group| group.ready == 4).await;
    let resting = group.resting_for.expect("it rests");
    assert!(resting <= Duration::from_millis(300), "{resting:?}");
    assert_eq!((group.waiting, group.in_flight, rig.seen.all().len()), (1, 0, 1), "nobody gets anything");
    rig.server.advance(Duration::from_millis(300)).await;
    rig.settled().await;
    let mut seen = rig.seen.all();
    seen.sort_unstable();
    assert_eq!(seen, [(1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)], "it cost no attempt");
    drop((worker, other));
}

#[tokio::test]
async fn a_panic_is_a_failure_like_another_and_the_worker_goes_on() {
    let rig = Rig::with(quick()).await;
    let worker = rig
        .start(|n, attempt| match (n, attempt) {
            (1, 1) => panic!("out of {}", "paper"),
            _ => Ok(()),
        })
        .await;
    rig.publish([1, 2]).await;
    let group = rig.until(|group| group.waiting == 1 && group.lag == 1).await;
    assert_eq!(group.counters.acked, 1, "the second was not held up");
    assert_eq!(waits(&rig).await, [SECOND]);
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.panicked, stats.retried, stats.acked), (1, 1, 2));
}

#[tokio::test]
async fn a_panic_before_the_first_wait_is_caught_too_and_its_words_are_kept() {
    let rig = Rig::with(quick().max_retries(0)).await;
    fn handler(_: Seen, _: Job<Task>) -> std::future::Ready<Result<(), Fault>> {
        panic!("at once");
    }
    let worker = rig.worker().on(handler).start().await.expect("the group is there");
    rig.publish([1]).await;
    rig.settled().await;
    assert_eq!(rig.parked().await[0].reason, "panicked: at once");
    drop(worker);
}

#[tokio::test]
async fn one_that_takes_too_long_has_failed() {
    let rig = Rig::with(quick().max_retries(0)).await;
    async fn hangs(_: Seen, _: Job<Task>) -> Result<(), Fault> {
        std::future::pending().await
    }
    let worker =
        rig.worker().timeout(Duration::from_millis(20)).on(hangs).start().await.expect("it is there");
    rig.publish([1]).await;
    rig.settled().await;
    assert_eq!(rig.parked().await[0].reason, "timed out after 0.02 seconds");
    assert_eq!(worker.shutdown().await.expect("it leaves well").timed_out, 1);
}

#[tokio::test]
async fn errors_that_come_by_a_question_mark_go_through_one_function() {
    let rig = Rig::with(quick()).await;
    async fn handler(seen: Seen, job: Job<Task>) -> Result<(), Fault> {
        seen.add(&job);
        match job.n {
            1 => drop("x".parse::<u32>()?),
            2 => drop(String::from_utf8(vec![0xff])?),
            _ => return Err(Fault::from("x".parse::<u32>().unwrap_err()).with_class(Class::Skip)),
        }
        Ok(())
    }
    let worker = rig
        .worker()
        .classify(|error| match error.is::<std::num::ParseIntError>() {
            true => Class::Permanent,
            false => Class::Transient,
        })
        .on(handler)
        .start()
        .await
        .expect("the group is there");
    rig.publish([1, 2, 3]).await;
    let group = rig.until(|group| group.lag == 1 && group.waiting == 1).await;
    assert_eq!(group.parked, 1);
    assert_eq!(rig.parked().await[0].reason, "invalid digit found in string");
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.parked, stats.retried, stats.skipped), (1, 1, 1));
}

#[tokio::test]
async fn what_cannot_be_decoded_or_has_no_handler_is_parked_with_the_reason() {
    let rig = Rig::new().await;
    let handler = does(|_, _| Ok(()));
    async fn second(_: Seen, job: Job<TaskV2>) -> Result<(), Fault> {
        assert_eq!(job.number, 9);
        Ok(())
    }
    let worker = rig.worker().on(handler).on(second).start().await.expect("the group is there");
    let message = |body: &'static str, kind: &str, schema: Option<u64>| {
        let message = Message::new(body).kind(kind);
        match schema {
            Some(schema) => message.schema(schema),
            None => message,
        }
    };
    rig.publish_all(vec![
        message(r#"{"n":"one"}"#, "task", Some(1)),
        message("{", "task", None),
        message(r#"{"n":1}"#, "other", None),
        message(r#"{"n":1}"#, "", None),
        message(r#"{"n":1}"#, "task", Some(3)),
        message(r#"{"n":4}"#, "task", None),
        message(r#"{"number":9}"#, "task", Some(2)),
    ])
    .await;
    let group = rig.settled().await;
    assert_eq!(group.counters.acked, 2);
    assert_eq!(rig.seen.all(), [(4, 1)]);
    let reasons: Vec<String> = rig.parked().await.into_iter().map(|parked| parked.reason).collect();
    assert!(
        reasons[0].starts_with("cannot be decoded as task version 1: invalid type: string"),
        "{reasons:?}"
    );
    assert!(reasons[1].starts_with("cannot be decoded as task version 1: EOF"), "{reasons:?}");
    assert_eq!(
        reasons[2..],
        [
            "no handler for type other",
            "no handler for a message without a type",
            "no handler for version 3 of type task"
        ]
    );
    drop(worker);
}

#[tokio::test]
async fn each_item_of_a_batch_has_a_result_of_its_own() {
    let rig = Rig::with(quick().max_retries(0)).await;
    async fn many(seen: Seen, jobs: Vec<Job<Task>>) -> Vec<Result<(), Fault>> {
        jobs.iter().for_each(|job| seen.add(job));
        jobs.iter()
            .map(|job| match job.n % 3 {
                0 => Err(Fault::permanent(format!("{} is a third", job.n))),
                1 => Err(Fault::transient("one more")),
                _ => Ok(()),
            })
            .collect()
    }
    let worker =
        rig.worker().prefetch(100).on_batch(6, 50 * SECOND, many).start().await.expect("the group is there");
    rig.publish(0..6).await;
    let group = rig.settled().await;
    assert_eq!((group.parked, group.counters.acked), (4, 2));
    let reasons: Vec<String> = rig.parked().await.into_iter().map(|parked| parked.reason).collect();
    assert_eq!(reasons, ["0 is a third", "one more", "3 is a third", "one more"]);
    drop(worker);
}

#[tokio::test]
async fn a_batch_is_filled_without_being_told_how_much_to_hold() {
    let rig = Rig::new().await;
    let sizes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = sizes.clone();
    let handler = move |_: Seen, jobs: Vec<Job<Task>>| {
        told.lock().expect("no panic").push(jobs.len());
        let results = jobs.iter().map(|_| Ok(())).collect();
        async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            results
        }
    };
    let worker = rig.worker().on_batch(50, 20 * SECOND, handler).start().await.expect("the group is there");
    rig.publish(0..150).await;
    rig.settled().await;
    assert_eq!(*sizes.lock().expect("no panic"), [50, 50, 50]);
    drop(worker);
}

#[tokio::test]
async fn a_function_of_the_user_that_panics_does_not_end_the_worker() {
    let rig = Rig::with(quick().max_retries(0)).await;
    async fn handler(_: Seen, _: Job<Task>) -> Result<(), Fault> {
        "x".parse::<u32>()?;
        Ok(())
    }
    let worker = rig
        .worker()
        .classify(|_| panic!("not that one"))
        .on_event(|_| panic!("nor that one"))
        .on(handler)
        .start()
        .await
        .expect("the group is there");
    rig.publish([1, 2]).await;
    let group = rig.settled().await;
    assert_eq!(group.parked, 2);
    assert_eq!(worker.shutdown().await.expect("it leaves well").parked, 2);
}

#[tokio::test]
async fn a_batch_handler_that_answers_for_too_few_loses_nothing() {
    let rig = Rig::with(quick().max_retries(0)).await;
    async fn few(_: Seen, _: Vec<Job<Task>>) -> Vec<Result<(), Fault>> {
        vec![Ok(())]
    }
    let worker =
        rig.worker().prefetch(10).on_batch(3, 50 * SECOND, few).start().await.expect("the group is there");
    rig.publish(0..3).await;
    let group = rig.settled().await;
    assert_eq!((group.parked, group.counters.acked), (3, 0));
    assert_eq!(rig.parked().await[0].reason, "the handler answered for 1 jobs, and there were 3");
    drop(worker);
}
