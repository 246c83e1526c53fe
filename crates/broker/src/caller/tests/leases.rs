//! Leases of clients that have nothing but a receipt. The clock moves only when a test moves it.

use forebay_core::settings::{Backoff, Fairness, KeyLock, Retries, Strategy};

use super::*;

const LEASE: Duration = Duration::from_secs(30);
const NO_BACKOFF: Backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO, factor: 1.0, jitter: 0.0 };

async fn still() -> (Caller, Running) {
    let (caller, running) = open_at(engine(), Clock::still(), BrokerConfig::new([7; 32])).await;
    create(&caller, |settings| settings.backoff = NO_BACKOFF).await;
    (caller, running)
}

async fn advance(caller: &Caller, by: Duration) {
    caller.broker().owner().advance(by).await;
}

async fn receive_one(caller: &Caller) -> String {
    let mut received = receive(caller, 1, Duration::ZERO).await;
    assert_eq!(received.len(), 1, "there is one to be had");
    received.remove(0).0
}

fn extend_by(by: Duration) -> Verb {
    Verb::Extend { by, total_max: None }
}

async fn why_not(caller: &Caller, receipt: &str) -> NotYours {
    let receipts = [receipt.to_owned()];
    let extended = settle(caller, &receipts, extend_by(LEASE)).await;
    let settled = settle(caller, &receipts, Verb::Ack).await;
    assert_eq!(extended, settled, "an extension and an ack are refused for the same reason");
    match settled[0] {
        Outcome::NotYours(why) => why,
        other => panic!("it does not count, and yet it is {other:?}"),
    }
}

#[tokio::test]
async fn a_receipt_that_does_not_count_is_told_why() {
    let (caller, _running) = still().await;
    publish_some(&caller, 1).await;
    let first = receive_one(&caller).await;
    advance(&caller, LEASE).await;
    assert_eq!(why_not(&caller, &first).await, NotYours::Lapsed);
    let second = receive_one(&caller).await;
    assert_eq!(why_not(&caller, &first).await, NotYours::Superseded);
    advance(&caller, LEASE).await;
    assert_eq!(why_not(&caller, &first).await, NotYours::Superseded, "although nobody holds it now");
    let late = Settlement { late: true, ..Verb::Ack.into() };
    let acked = caller.settle(stream(), group(), std::slice::from_ref(&second), late).await;
    assert_eq!(acked, Ok(vec![Outcome::Acked]));
    assert_eq!(why_not(&caller, &first).await, NotYours::Gone);
    assert_eq!(why_not(&caller, &second).await, NotYours::Gone);

    assert_eq!(why_not(&caller, "").await, NotYours::Unknown);
    assert_eq!(why_not(&caller, &second[1..]).await, NotYours::Unknown);
    let other = GroupName::parse("other").expect("a name");
    caller.create_group(stream(), other.clone(), |_| {}).await.expect("the group is created");
    let foreign = caller.settle(stream(), other, &[second], Verb::Ack.into()).await;
    assert_eq!(foreign, Ok(vec![Outcome::NotYours(NotYours::Unknown)]), "another group's");
}

#[tokio::test]
async fn a_message_says_when_it_was_first_received_and_not_when_nobody_took_it() {
    let (caller, _running) = still().await;
    publish_some(&caller, 1).await;
    let untaken = caller.receive(stream(), group(), wish(1, Duration::ZERO)).await.expect("it is answered");
    assert_eq!(untaken.len(), 1);
    drop(untaken);
    advance(&caller, LEASE).await;
    let first = caller.broker().clock().now();
    for attempt in 1..=3 {
        let received = receive(&caller, 1, Duration::ZERO).await;
        let (_, message) = &received[0];
        assert_eq!((message.attempt.0, message.first_received), (attempt, first));
        assert_eq!(message.deadline, caller.broker().clock().now() + LEASE);
        advance(&caller, LEASE).await;
    }
}

fn of_a(body: &str) -> Message<'_> {
    Message { key: Some(b"a"), ..plain(body) }
}

#[tokio::test]
async fn a_key_that_is_locked_by_position_lets_go_what_comes_before_the_leased_ones() {
    let engine = engine();
    let again = engine.another();
    let (caller, running) = open_at(engine, Clock::still(), BrokerConfig::new([7; 32])).await;
    let fifo = |settings: &mut GroupSettings| {
        settings.backoff = NO_BACKOFF;
        settings.strategy = Strategy::Ordered;
        settings.key_lock = KeyLock::Position;
        settings.key_batch = 10;
        settings.fairness = Fairness::Key;
    };
    create(&caller, fifo).await;
    publish(&caller, ["1", "2", "3", "4"].map(of_a)).await.expect("there is room");
    let held = receive(&caller, 3, Duration::ZERO).await;
    assert_eq!(seqs(&held), [1, 2, 3]);
    assert!(receive(&caller, 9, Duration::ZERO).await.is_empty());
    caller.broker().owner().stop();
    running.await.expect("no panic").expect("it stopped as asked");

    let (caller, _running) = open_at(again, Clock::still(), BrokerConfig::new([7; 32])).await;
    caller.create_group(stream(), group(), fifo).await.expect("it is as it was asked for");
    caller.change_group(stream(), group(), |settings| settings.key_batch = 9).await.expect("it is changed");
    let kept = caller.group(stream(), group()).await.expect("the group is there").settings;
    assert_eq!((kept.key_lock, kept.key_batch), (KeyLock::Position, 9));
    assert!(receive(&caller, 9, Duration::ZERO).await.is_empty(), "all of them are held");
    let now = Verb::Retry { delay: Some(Duration::ZERO) };
    assert_eq!(settle(&caller, &[held[0].0.clone()], now).await, [Outcome::Retrying]);
    assert_eq!(seqs(&receive(&caller, 9, Duration::ZERO).await), [1], "two and three are held");
}

#[tokio::test]
async fn a_receive_from_a_group_that_is_full_waits_or_is_refused_as_it_asks() {
    let (caller, _running) = open_at(engine(), Clock::still(), BrokerConfig::new([7; 32])).await;
    create(&caller, |settings| {
        settings.backoff = NO_BACKOFF;
        settings.max_in_flight = 3;
    })
    .await;
    publish_some(&caller, 5).await;
    let wary = |max| Receive { refuse_when_full: true, ..wish(max, LEASE * 9) };
    let refused = || async { caller.receive(stream(), group(), wary(1)).await.map(|_| ()) };
    let some = caller.receive(stream(), group(), wary(2)).await.expect("it is answered").take();
    let last = caller.receive(stream(), group(), wary(9)).await.expect("it is answered").take();
    assert_eq!((seqs(&some), seqs(&last)), (vec![1, 2], vec![3]), "it is full only now");
    assert_eq!(refused().await, Err(CallError::InFlightFull { limit: 3 }));
    assert_eq!(refused().await, Err(CallError::InFlightFull { limit: 3 }));
    assert_eq!(CallError::InFlightFull { limit: 3 }.advice(), crate::error::Advice::RetryLater);
    assert!(receive(&caller, 1, Duration::ZERO).await.is_empty(), "others just get nothing");

    // Some make room while another waits, and the next who asks is not refused.
    let (waited, ()) = tokio::join!(receive(&caller, 9, LEASE * 9), async {
        while caller.server().await.expect("it answers").waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(settle(&caller, &[last[0].0.clone()], Verb::Ack).await, [Outcome::Acked]);
    });
    assert_eq!(seqs(&waited), [4]);
    advance(&caller, LEASE).await;
    let lapsed =
        caller.receive(stream(), group(), wary(9)).await.expect("what has lapsed is let go of").take();
    assert_eq!(seqs(&lapsed), [1, 2, 4]);
    assert_eq!(caller.server().await.expect("it answers").waiting, 0, "nobody was forgotten");
}

const LAPSED: Outcome = Outcome::NotYours(NotYours::Lapsed);

async fn look(caller: &Caller, max: u32, wait: Duration) -> Vec<(String, Delivered)> {
    let request = Receive { timeout: Some(Duration::ZERO), ..wish(max, wait) };
    caller.receive(stream(), group(), request).await.expect("it is answered").take()
}

async fn ack_late(caller: &Caller, receipt: &str) -> Outcome {
    let late = Settlement { late: true, ..Verb::Ack.into() };
    caller.settle(stream(), group(), &[receipt.to_owned()], late).await.expect("it is answered")[0]
}

fn attempts(received: &[(String, Delivered)]) -> Vec<u32> {
    received.iter().map(|(_, message)| message.attempt.0).collect()
}

/// With contents that are in memory, and with contents that have to be read back first.
#[tokio::test]
async fn a_receive_for_no_time_shows_messages_and_keeps_nobody_from_them() {
    for window_bytes_max in [1 << 20, 0] {
        let mut config = BrokerConfig::new([7; 32]);
        config.driver.window_bytes_max = window_bytes_max;
        let (caller, _running) = open_at(engine(), Clock::still(), config).await;
        create(&caller, |settings| settings.backoff = NO_BACKOFF).await;
        publish_some(&caller, 3).await;
        let first = look(&caller, 9, Duration::ZERO).await;
        assert_eq!((seqs(&first), attempts(&first)), (vec![1, 2, 3], vec![1, 1, 1]));
        assert!(first.iter().all(|(_, message)| message.content == first[0].1.content));
        let second = look(&caller, 9, LEASE).await;
        assert_eq!((seqs(&second), attempts(&second)), (vec![1, 2, 3], vec![2, 2, 2]));
        assert_eq!(ack_late(&caller, &first[0].0).await, Outcome::NotYours(NotYours::Superseded));
        assert_eq!(ack_late(&caller, &second[0].0).await, Outcome::Acked);
        assert_eq!(settle(&caller, &[second[1].0.clone()], Verb::Ack).await, [LAPSED]);
        let third = receive(&caller, 9, Duration::ZERO).await;
        assert_eq!((seqs(&third), attempts(&third)), (vec![2, 3], vec![3, 3]));
        assert_eq!(in_flight(&caller).await, 2);
        let now = caller.broker().clock().now();
        let next = caller.broker().owner().next_due().await;
        assert!(next.is_some_and(|next| next > now), "nothing goes round and round: {next:?} at {now:?}");
    }
}

#[tokio::test]
async fn each_of_many_who_wait_gets_what_is_shown_once() {
    let (caller, _running) = still().await;
    caller
        .change_group(stream(), group(), |settings| settings.max_retries = Retries::Unlimited)
        .await
        .expect("it is changed");
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let caller = caller.clone();
            tokio::spawn(async move { look(&caller, 9, LEASE).await })
        })
        .collect();
    while caller.server().await.expect("it answers").waiting < 20 {
        tokio::task::yield_now().await;
    }
    publish_some(&caller, 1).await;
    let mut seen = Vec::new();
    for one in waiting {
        let received = one.await.expect("no panic");
        assert_eq!(seqs(&received), [1], "once in each answer");
        seen.extend(attempts(&received));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<u32>>());
}

#[tokio::test]
async fn a_lease_is_made_no_longer_than_it_may_be_altogether() {
    let (caller, _running) = still().await;
    publish_some(&caller, 1).await;
    let receipt = [receive_one(&caller).await];
    advance(&caller, LEASE / 2).await;
    let extend = |by| Verb::Extend { by, total_max: Some(LEASE * 2) };
    assert_eq!(settle(&caller, &receipt, extend(LEASE * 2)).await, [Outcome::TooLong]);
    advance(&caller, LEASE / 4).await;
    assert_eq!(in_flight(&caller).await, 1, "it is as long as it was");
    assert_eq!(settle(&caller, &receipt, extend(LEASE)).await, [Outcome::Extended]);
    advance(&caller, LEASE / 2).await;
    assert_eq!(settle(&caller, &receipt, extend(LEASE)).await, [Outcome::TooLong]);
    assert_eq!(settle(&caller, &receipt, extend_by(LEASE)).await, [Outcome::Extended], "where nobody asks");
    assert_eq!(settle(&caller, &receipt, extend(Duration::ZERO)).await, [Outcome::Extended]);
    assert_eq!(receive(&caller, 1, Duration::ZERO).await.len(), 1, "no time at all is never too long");
}

/// The members of a crowd that is over depart, and with them all that is known of them.
#[tokio::test]
async fn a_crowd_that_has_gone_leaves_nothing_behind() {
    const CROWD: usize = 3_000;
    let (caller, _running) = still().await;
    let waiting: Vec<_> = (0..CROWD)
        .map(|_| {
            let caller = caller.clone();
            tokio::spawn(async move { receive(&caller, 1, LEASE).await.len() })
        })
        .collect();
    while caller.server().await.expect("it answers").waiting < CROWD {
        tokio::task::yield_now().await;
    }
    let (stream_figures, figures) = caller.figures(stream(), group()).await.expect("the group is there");
    assert_eq!((figures.consumers, figures.lag, stream_figures.delayed), (CROWD, 0, 0));
    advance(&caller, LEASE).await;
    for one in waiting {
        assert_eq!(one.await.expect("no panic"), 0);
    }
    assert!(receive(&caller, 1, Duration::ZERO).await.is_empty());
    assert_eq!(caller.server().await.expect("it answers").polling, CROWD, "there was an idle member for it");
    advance(&caller, LEASE).await;
    advance(&caller, LEASE).await;
    let server = caller.server().await.expect("it answers");
    assert_eq!((server.waiting, server.polling), (0, 0));
}

#[tokio::test]
async fn an_answer_has_the_most_urgent_messages_first_after_a_restart_too() {
    let engine = engine();
    let (caller, running) = open_with(engine.another(), BrokerConfig::new([7; 32])).await;
    create(&caller, |_| {}).await;
    let urgent = |priority| Message { priority, ..plain("x") };
    publish(&caller, [urgent(1), urgent(9), urgent(5)]).await.expect("there is room");
    caller.broker().owner().stop();
    running.await.expect("no panic").expect("it stopped as asked");
    let (caller, _running) = open_with(engine.another(), BrokerConfig::new([7; 32])).await;
    // These are in memory, and the others have to be read.
    publish(&caller, [urgent(3), urgent(7)]).await.expect("there is room");
    let received = receive(&caller, 9, SOON).await;
    assert_eq!(seqs(&received), [2, 5, 3, 4, 1]);
}
