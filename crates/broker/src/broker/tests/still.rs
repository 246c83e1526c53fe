//! Time that a test moves: what it makes due, and what it leaves alone. No test here waits for real time.

use forebay_core::group::{Lease, LeaseRun, NotYours, Outcome, Verb};
use forebay_core::settings::Backoff;

use super::*;
use crate::caller::Receive;
use crate::driver::{Delivered, Delivery};

const LEASE: Duration = Duration::from_secs(60);
/// Long enough that only a moved clock gets there.
const LONG: Duration = Duration::from_secs(200);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn still() -> Broker {
    let opened = Broker::open(Arc::new(engine()), Clock::still(), BrokerConfig::new([7; 32])).await;
    let (broker, _running) = opened.expect("a new log opens");
    let change = |settings: &mut GroupSettings| {
        settings.message_timeout = LEASE;
        settings.backoff = Backoff { min: seconds(10), max: seconds(10), factor: 1.0, jitter: 0.0 };
    };
    owner(&broker).create_group(stream(), group(), change).await.expect("the group is created");
    broker
}

async fn join(broker: &Broker) -> Consumer {
    owner(broker).subscribe(stream(), group(), "worker", 10).await.expect("it is let in")
}

/// The events in the consumer's queue now.
async fn queued(consumer: &mut Consumer) -> Vec<Event> {
    let mut events = Vec::new();
    poll_fn(|cx| {
        let _ = consumer.poll_events(cx, &mut events, 4_096);
        std::task::Poll::Ready(())
    })
    .await;
    events
}

fn delivered(events: &[Event]) -> Vec<Delivered> {
    let deliveries = events.iter().filter_map(|event| match event {
        Event::Delivery(delivery) => Some(delivery.clone()),
        _ => None,
    });
    deliveries.flat_map(Delivery::into_each).collect()
}

async fn attempts(consumer: &mut Consumer) -> Vec<u32> {
    delivered(&queued(consumer).await).iter().map(|message| message.attempt.0).collect()
}

/// Takes one message, and leaves the answer to be taken.
async fn take(consumer: &mut Consumer) -> Lease {
    let events = next_events(consumer).await;
    let messages = delivered(&events);
    assert_eq!((messages.len(), messages[0].attempt.0), (1, 1));
    messages[0].lease
}

async fn settle(consumer: &mut Consumer, lease: Lease, verb: Verb) -> Outcome {
    let leases = vec![LeaseRun::one(lease)];
    consumer.settle(vec![SettleRequest { ticket: 1, leases, settlement: verb.into() }]).expect("it may");
    match &next_events(consumer).await[..] {
        [Event::Settled(settled)] => settled[0].outcomes[0].0,
        other => panic!("only an answer is due: {other:?}"),
    }
}

#[tokio::test]
async fn a_retry_comes_when_the_clock_says_so_and_not_before() {
    let broker = still().await;
    let mut consumer = join(&broker).await;
    publish(&broker, 1).await.expect("there is room");
    let lease = take(&mut consumer).await;
    let retry = Verb::Retry { delay: Some(seconds(30)) };
    assert_eq!(settle(&mut consumer, lease, retry).await, Outcome::Retrying);

    broker.advance(seconds(29)).await;
    assert!(queued(&mut consumer).await.is_empty());
    broker.advance(seconds(1)).await;
    assert_eq!(attempts(&mut consumer).await, [2], "it is there as soon as the clock was moved");
}

#[tokio::test]
async fn a_lease_lapses_when_the_clock_says_so() {
    let broker = still().await;
    let mut consumer = join(&broker).await;
    publish(&broker, 1).await.expect("there is room");
    let lease = take(&mut consumer).await;

    broker.advance(LEASE - Duration::from_micros(1)).await;
    assert!(queued(&mut consumer).await.is_empty());
    broker.advance(Duration::from_micros(1)).await;
    assert!(queued(&mut consumer).await.is_empty(), "it has failed, and waits as the backoff says");
    let settled = settle(&mut consumer, lease, Verb::Ack).await;
    assert_eq!(settled, Outcome::NotYours(NotYours::Superseded));
    broker.advance(seconds(10)).await;
    assert_eq!(attempts(&mut consumer).await, [2]);
}

#[tokio::test]
async fn a_test_jumps_from_one_thing_to_the_next() {
    let broker = still().await;
    let mut consumer = join(&broker).await;
    assert_eq!(broker.next_due().await, None, "nothing happens by itself");
    publish(&broker, 1).await.expect("there is room");
    let lease = take(&mut consumer).await;
    let now = broker.clock().now();
    assert_eq!(broker.next_due().await, Some(now + LEASE));
    settle(&mut consumer, lease, Verb::Retry { delay: Some(LONG) }).await;
    assert_eq!(broker.next_due().await, Some(now + LONG));

    let at = broker.next_due().await.expect("a retry is due");
    broker.advance(at.since(now)).await;
    assert_eq!(attempts(&mut consumer).await, [2]);
}

#[tokio::test]
async fn a_thousand_leases_lapse_together_however_much_a_turn_may_do() {
    let broker = still().await;
    let mut silent =
        owner(&broker).subscribe(stream(), group(), "worker", 1_000).await.expect("it is let in");
    publish(&broker, 1_000).await.expect("there is room");
    broker.advance(Duration::ZERO).await;
    assert_eq!(attempts(&mut silent).await, [1; 1_000]);
    broker.advance(LEASE).await;
    broker.advance(seconds(10)).await;
    assert_eq!(attempts(&mut silent).await, [2; 1_000]);
}

#[tokio::test]
async fn a_receive_waits_by_the_clock_and_gets_what_becomes_due_in_time() {
    let broker = still().await;
    let receive = |wait| {
        let caller = owner(&broker);
        let request = Receive { consumer: "poller".to_owned(), max: 1, wait, ..Receive::default() };
        async move { caller.receive(stream(), group(), request).await.expect("it is answered").take() }
    };
    let in_vain = tokio::spawn(receive(LONG));
    tokio::task::yield_now().await;
    broker.advance(LONG).await;
    assert!(in_vain.await.expect("it does not panic").is_empty());

    publish(&broker, 1).await.expect("there is room");
    assert_eq!(receive(LONG).await[0].1.attempt.0, 1);
    let again = tokio::spawn(receive(LEASE + seconds(10)));
    // In line before the clock moves.
    tokio::task::yield_now().await;
    broker.advance(LEASE).await;
    broker.advance(seconds(10)).await;
    let got = again.await.expect("it does not panic");
    assert_eq!(got[0].1.attempt.0, 2, "it became due in the very moment in which the wait was over");
}

#[tokio::test]
async fn acks_are_written_and_a_drain_ends_although_time_stands_still() {
    let broker = still().await;
    let mut consumer = join(&broker).await;
    publish(&broker, 1).await.expect("there is room");
    let lease = take(&mut consumer).await;
    broker.drain();
    broker.reached(Stage::Draining).await;
    assert_eq!(settle(&mut consumer, lease, Verb::Ack).await, Outcome::Acked);
    broker.stopping().await;
    broker.advance(LONG).await;
    assert_eq!(broker.next_due().await, None, "it ends although nobody is there any more");
}
