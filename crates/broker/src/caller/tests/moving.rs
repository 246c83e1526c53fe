//! Messages that go from one stream to another.

use forebay_core::entry::{JobFailure, MoveReason};
use forebay_core::group::JobRefusal;
use forebay_core::settings::{OnEnd, OnExhausted, OnFull, Retries};
use forebay_core::types::StreamId;

use super::*;

fn dead() -> StreamName {
    StreamName::parse("dead").expect("a name")
}

/// Takes one message out of a stream's group, which is made if need be.
async fn take_one(caller: &Caller, from: &StreamName) -> (String, Delivered) {
    caller.create_group(from.clone(), group(), |_| {}).await.expect("it is there");
    let receiving = caller.receive(from.clone(), group(), wish(1, SOON)).await.expect("it is answered");
    receiving.take().pop().expect("there is one")
}

#[tokio::test]
async fn a_moved_message_says_where_it_was_published_and_where_it_comes_from() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    let home = caller.stream(stream()).await.expect("it is there").id;
    publish_some(&caller, 2).await;
    let (_, first) = take_one(&caller, &stream()).await;
    let own = |message: &Delivered| message.home(home);
    assert_eq!((own(&first), first.from()), ((home, Seq(1)), None));
    let (receipt, second) = take_one(&caller, &stream()).await;
    assert_eq!(own(&second), (home, Seq(2)));
    assert_eq!(settle(&caller, &[receipt], Verb::Move(dead())).await, [Outcome::Moving]);

    let (receipt, moved) = take_one(&caller, &dead()).await;
    assert_eq!((moved.lease.seq, moved.receives(), moved.attempt.0), (Seq(1), 1, 1));
    // Asked with a stream that is not its home, since it knows that itself.
    let elsewhere = StreamId(u32::MAX);
    assert_eq!((moved.home(elsewhere), moved.from()), ((home, Seq(2)), Some(&stream())));
    let third = StreamName::parse("third").expect("a name");
    let on = Verb::Move(third.clone());
    caller.settle(dead(), group(), &[receipt], on.into()).await.expect("it is answered");
    let (receipt, moved) = take_one(&caller, &third).await;
    assert_eq!((moved.home(elsewhere), moved.from(), moved.receives()), ((home, Seq(2)), Some(&dead()), 2));

    caller.delete_stream(dead(), true).await.expect("it is deleted");
    caller.settle(third.clone(), group(), &[receipt], Verb::Return { delay: None }.into()).await.expect("ok");
    let (_, moved) = take_one(&caller, &third).await;
    assert_eq!((moved.home(elsewhere), moved.from()), ((home, Seq(2)), None), "where it comes from is gone");
    let seen = caller.read(third, Seq(1), 1).await.expect("it is read");
    assert_eq!(seen.messages[0].trail().map(|trail| (trail.home, trail.seq)), Some((home, Seq(2))));
}

/// Publishes to a stream, and takes everything that is published there to the dead ones.
async fn bury(caller: &Caller, bodies: &[&str]) {
    publish(caller, bodies.iter().map(|body| plain(body))).await.expect("there is room");
    let taken = receive(caller, bodies.len() as u32, SOON).await;
    let receipts: Vec<String> = taken.into_iter().map(|(receipt, _)| receipt).collect();
    let moving = settle(caller, &receipts, Verb::Move(dead())).await;
    assert_eq!(moving, vec![Outcome::Moving; bodies.len()]);
    while caller.stream(dead()).await.map_or(0, |report| report.figures.last.0) < bodies.len() as u64 {
        tokio::task::yield_now().await;
    }
}

async fn over(caller: &Caller, job: JobId) -> crate::report::JobReport {
    loop {
        let report = caller.job(dead(), group(), job).await.expect("it is remembered");
        if !report.is_moving() {
            return report;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_waits_goes_back_to_where_it_came_from_and_begins_anew() {
    let engine = engine();
    let again = engine.another();
    let (caller, running) = open_with(engine, BrokerConfig::new([7; 32])).await;
    create(&caller, |_| {}).await;
    bury(&caller, &["one", "two", "three"]).await;
    let home = caller.stream(stream()).await.expect("it is there").id;
    let (held, _) = take_one(&caller, &dead()).await;

    // Slow enough that it is not done when the server stops.
    let rate = forebay_core::pace::Rate { per_second: 0.001, burst: 1 };
    let job = caller.move_waiting(dead(), group(), None, Some(rate)).await.expect("it starts");
    let jobs = caller.jobs(dead(), group()).await.expect("they are listed");
    assert!(jobs.iter().any(|report| report.id == job && report.is_moving()));
    let second = caller.move_waiting(dead(), group(), None, None).await;
    assert!(matches!(second, Err(CallError::Job(JobRefusal::Moving { .. }))), "{second:?}");
    let itself = caller.move_waiting(dead(), group(), Some(dead()), None).await;
    assert!(matches!(itself, Err(CallError::Job(JobRefusal::NoDestination))), "{itself:?}");
    caller.broker().owner().stop();
    running.await.expect("no panic").expect("it stopped as asked");

    let (caller, _running) = open_with(again, BrokerConfig::new([7; 32])).await;
    assert!(caller.job(dead(), group(), job).await.expect("it is remembered").is_moving(), "it goes on");
    caller.cancel_job(dead(), group(), job).await.expect("it runs");
    let job = caller.move_waiting(dead(), group(), None, None).await.expect("it starts");
    let report = over(&caller, job).await;
    assert_eq!((report.matched, report.done, report.failed), (3, 2, 1), "one of them is held");
    assert!(matches!(report.state, JobState::Done { .. }), "{report:?}");

    let back = receive(&caller, 9, SOON).await;
    let elsewhere = StreamId(u32::MAX);
    let told: Vec<_> =
        back.iter().map(|(_, one)| (one.home(elsewhere).1.0, one.receives(), one.attempt.0)).collect();
    assert_eq!(told, [(2, 0, 1), (3, 0, 1)]);
    assert!(back.iter().all(|(_, one)| one.home(elsewhere).0 == home && one.from() == Some(&dead())));
    assert!(back[0].1.content.ends_with(b"two"));
    let acked = caller.settle(dead(), group(), &[held], Verb::Ack.into()).await;
    assert_eq!(acked, Ok(vec![Outcome::Acked]), "it stayed with the one who holds it");
}

#[tokio::test]
async fn a_job_whose_messages_have_nowhere_to_go_fails_and_says_why() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    bury(&caller, &["one", "two"]).await;
    caller.create_group(dead(), group(), |_| {}).await.expect("it is there");
    caller.delete_stream(stream(), true).await.expect("it is deleted");
    let job = caller.move_waiting(dead(), group(), None, None).await.expect("it starts");
    let report = over(&caller, job).await;
    let failed = matches!(report.state, JobState::Failed { why: JobFailure::NoDestination, .. });
    assert!(failed && report.done == 0, "{report:?}");
    let there = caller.receive(dead(), group(), wish(9, SOON)).await.expect("it is answered");
    assert_eq!(there.len(), 2, "what was left stays");
}

/// A message whose last lease has ended is never in neither of the two streams for a client that looks into both.
#[tokio::test]
async fn a_dead_letter_is_there_by_the_end_of_the_receive_that_does_not_find_it_here() {
    let (caller, _running) = open().await;
    create(&caller, |settings| {
        settings.max_retries = Retries::AtMost(0);
        settings.on_exhausted = OnExhausted::Move(dead());
    })
    .await;
    caller.create_group(dead(), group(), |_| {}).await.expect("the group is created");
    for round in 0..50 {
        publish(&caller, [plain("dies")]).await.expect("there is room");
        let for_no_time = Receive { timeout: Some(Duration::ZERO), ..wish(1, SOON) };
        let shown = caller.receive(stream(), group(), for_no_time).await.expect("it is answered").take();
        assert_eq!(shown.len(), 1);
        // The same holds for a receive that finds another message instead.
        let finds_another = round % 2 == 1;
        if finds_another {
            publish(&caller, [plain("lives")]).await.expect("there is room");
        }
        let found = receive(&caller, 1, Duration::ZERO).await;
        assert_eq!(found.len(), usize::from(finds_another));
        let moved = caller.receive(dead(), group(), wish(1, Duration::ZERO)).await.expect("it is answered");
        assert_eq!(moved.take().len(), 1, "round {round}");
        for (receipt, _) in found {
            assert_eq!(settle(&caller, &[receipt], Verb::Ack).await, [Outcome::Acked]);
        }
    }
}

/// A stream that takes no more must not hold up the consumers of the one that messages would leave.
#[tokio::test]
async fn a_receive_does_not_wait_for_a_dead_letter_without_room() {
    let (caller, _running) = open().await;
    create(&caller, |settings| {
        settings.max_retries = Retries::AtMost(0);
        settings.on_exhausted = OnExhausted::Move(dead());
    })
    .await;
    let full = |settings: &mut StreamSettings| {
        settings.limits.max_messages = Some(1);
        settings.limits.on_full = OnFull::Reject;
    };
    caller.create_stream(dead(), full).await.expect("the stream is created");
    caller.create_group(dead(), group(), |_| {}).await.expect("the group is created");
    publish_some(&caller, 2).await;
    let for_no_time = Receive { timeout: Some(Duration::ZERO), ..wish(2, SOON) };
    assert_eq!(caller.receive(stream(), group(), for_no_time).await.expect("it is answered").take().len(), 2);
    assert!(receive(&caller, 1, Duration::ZERO).await.is_empty());
    let since = std::time::Instant::now();
    publish_some(&caller, 1).await;
    assert_eq!(receive(&caller, 1, SOON).await.len(), 1);
    assert!(since.elapsed() < Duration::from_millis(900), "it did not wait for the message without room");
}

#[tokio::test]
async fn messages_that_a_full_stream_drops_go_where_their_group_says() {
    let (caller, _running) = open().await;
    create(&caller, |settings| settings.on_dropped = OnEnd::Move(dead())).await;
    let full = |settings: &mut StreamSettings| {
        settings.limits.max_messages = Some(2);
        settings.limits.on_full = OnFull::DropOldest;
    };
    caller.change_stream(stream(), full).await.expect("it is changed");
    for _ in 0..5 {
        publish_some(&caller, 1).await;
    }
    while caller.stream(dead()).await.map_or(0, |report| report.figures.last.0) < 3 {
        tokio::task::yield_now().await;
    }
    let seen = caller.read(dead(), Seq(1), 9).await.expect("it is read");
    let trails =
        seen.messages.iter().filter_map(crate::window::Found::trail).map(|trail| (trail.seq, trail.why));
    let expected = [1, 2, 3].map(|seq| (Seq(seq), MoveReason::Dropped));
    assert_eq!(trails.collect::<Vec<_>>(), expected);
    assert_eq!(receive(&caller, 9, SOON).await.len(), 2, "the newest are still here");
}
