//! The broker around an engine in memory: what the binary's tests cannot bring about from outside.

use std::future::poll_fn;
use std::time::Duration;

use forebay_core::types::ShardId;
use forebay_storage::memory::{MemoryEngine, MemoryLog};

use forebay_core::group::{LeaseRun, Outcome, Verb};
use forebay_core::settings::GroupSettings;
use forebay_core::shard::PublishOptions;
use forebay_core::types::{GroupName, StreamName};
use forebay_storage::engine::Durable;

use super::*;
use crate::batch::{BatchBuilder, Message};
use crate::caller::Consumer;
use crate::driver::Published;
use crate::error::PublishError;

mod engines;
mod still;
mod tenure;
mod wear;

fn batch(messages: usize, bytes: usize) -> Batch {
    let mut builder = BatchBuilder::default();
    for _ in 0..messages {
        builder.push(&Message { body: &vec![7; bytes], ..Message::default() });
    }
    builder.build()
}

fn engine() -> MemoryEngine {
    MemoryEngine::new(MemoryLog::new(ShardId(0), 12 << 20))
}

async fn open(engine: MemoryEngine, config: BrokerConfig) -> (Broker, Running) {
    Broker::open(Arc::new(engine), Clock::start(), config).await.expect("a new log opens")
}

fn stream() -> StreamName {
    StreamName::parse("work").expect("a name")
}

fn group() -> GroupName {
    GroupName::parse("team").expect("a name")
}

fn owner(broker: &Broker) -> Caller {
    broker.enter(Principal::owner(), None)
}

async fn create(broker: &Broker, timeout: Duration) {
    let change = move |settings: &mut GroupSettings| settings.message_timeout = timeout;
    let created = owner(broker).create_group(stream(), group(), change).await;
    assert!(created.expect("the group is created").new);
}

async fn publish(broker: &Broker, messages: usize) -> Result<Published, PublishError> {
    let batch = batch(messages, 10);
    let room = broker.room(&stream(), &batch).await;
    let options = PublishOptions::default();
    owner(broker).publish(room, Arc::new(stream()), batch, options).await.map(Durable::get)
}

async fn next_events(consumer: &mut Consumer) -> Vec<Event> {
    let mut events = Vec::new();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 16)).await;
    events
}

#[tokio::test]
async fn a_consumer_that_leaves_messages_lying_is_cut_off_and_others_get_them() {
    let (broker, _running) = open(engine(), BrokerConfig::new([7; 32])).await;
    create(&broker, Duration::from_millis(20)).await;
    let mut silent = owner(&broker).subscribe(stream(), group(), "worker", 2).await.expect("it is let in");
    publish(&broker, 2).await.expect("there is room");
    let mut seen = 0;
    tokio::time::sleep(Duration::from_millis(400)).await;
    'told: loop {
        for event in next_events(&mut silent).await {
            match event {
                Event::Delivery(delivery) => seen += delivery.messages.len(),
                Event::CutOff => break 'told,
                other => panic!("nothing was settled: {other:?}"),
            }
        }
    }
    assert!((5..=6).contains(&seen), "twice the credit, and one delivery: {seen}");
    assert!(next_events(&mut silent).await.is_empty(), "nothing comes after that");
    let mut other = owner(&broker).subscribe(stream(), group(), "worker", 2).await.expect("it is let in");
    let events = next_events(&mut other).await;
    assert!(matches!(&events[0], Event::Delivery(delivery) if delivery.attempt.0 > 1));
}

#[tokio::test]
async fn when_the_engine_fails_the_outcome_is_unknown_and_the_task_ends() {
    let engine = engine();
    let usurper = engine.another();
    let (broker, running) = open(engine, BrokerConfig::new([7; 32])).await;
    create(&broker, Duration::from_secs(30)).await;
    publish(&broker, 1).await.expect("all is well");
    usurper.claim(ShardId(0)).await.expect("anyone may claim");
    assert_eq!(publish(&broker, 1).await, Err(PublishError::Unknown));
    let ended = running.await.expect("the task did not panic");
    assert!(matches!(ended, Err(RecoveryError::Storage(_))), "{ended:?}");
    assert_eq!(publish(&broker, 1).await, Err(PublishError::Stopping), "nothing more is taken");
    broker.stopping().await;
}

#[tokio::test]
async fn publishers_wait_for_room_and_settling_does_not() {
    let config = BrokerConfig { room_bytes: 10_000, ..BrokerConfig::new([7; 32]) };
    let (broker, _running) = open(engine(), config).await;
    create(&broker, Duration::from_secs(30)).await;
    publish(&broker, 1).await.expect("there is room");
    let mut consumer = owner(&broker).subscribe(stream(), group(), "worker", 1).await.expect("it is let in");
    let events = next_events(&mut consumer).await;
    let Event::Delivery(delivery) = &events[0] else { panic!("a delivery comes first") };

    let large = batch(1, 50_000);
    let room = broker.try_room(&stream(), &large).expect("a batch larger than the budget enters alone");
    assert!(broker.try_room(&stream(), &batch(1, 1)).is_none());
    let leases = vec![delivery.leases()];
    consumer.settle(vec![SettleRequest { ticket: 7, leases, settlement: Verb::Ack.into() }]).expect("it may");
    let events = next_events(&mut consumer).await;
    let Event::Settled(settled) = &events[0] else { panic!("the answer comes") };
    assert_eq!((settled[0].ticket, &settled[0].outcomes[..]), (7, &[(Outcome::Acked, 1)][..]));
    let options = PublishOptions::default();
    owner(&broker).publish(room, Arc::new(stream()), large, options).await.expect("it is stored");
    assert!(broker.try_room(&stream(), &batch(1, 1)).is_some(), "room is given back after the sync");
}

#[tokio::test]
async fn what_was_taken_in_is_durable_after_a_stop() {
    let engine = engine();
    let again = engine.another();
    let (broker, running) = open(engine, BrokerConfig::new([7; 32])).await;
    create(&broker, Duration::from_secs(30)).await;
    let mut consumer = owner(&broker).subscribe(stream(), group(), "worker", 5).await.expect("it is let in");
    publish(&broker, 5).await.expect("there is room");
    let events = next_events(&mut consumer).await;
    let Event::Delivery(delivery) = &events[0] else { panic!("a delivery comes first") };
    let leases = vec![LeaseRun { count: 3, ..delivery.leases() }];
    consumer.settle(vec![SettleRequest { ticket: 1, leases, settlement: Verb::Ack.into() }]).expect("it may");
    broker.stop();
    running.await.expect("the task did not panic").expect("it stopped as asked");
    assert_eq!(publish(&broker, 1).await, Err(PublishError::Stopping));

    let (broker, _running) = open(again, BrokerConfig::new([7; 32])).await;
    let figures = owner(&broker).group(stream(), group()).await.expect("the group is there").figures;
    assert_eq!((figures.floor.0, figures.lag), (3, 2));
}

#[test]
fn a_date_far_ahead_of_the_log_is_refused() {
    let (day, latest) = (Duration::from_secs(86_400), Timestamp(1 << 50));
    let max = Some(366 * day);
    for date in [latest - 400 * day, latest, latest + 30 * day, latest + 366 * day] {
        assert!(check_date(date, latest, max).is_ok(), "a server may have rested, or its date was set back");
    }
    let refused = check_date(latest + 400 * day, latest, max);
    assert!(matches!(refused, Err(OpenError::DateJump { days: 400, max_days: 366 })));
    assert!(check_date(latest + 400 * day, latest, None).is_ok());
    assert!(check_date(latest, Timestamp::ZERO, max).is_ok(), "a new log says nothing about the date");
}

/// A date that was ahead at one start must not make the dates that clients name come too early ever after.
#[tokio::test]
async fn after_a_start_with_a_date_that_was_ahead_a_named_date_has_not_come_yet() {
    let hour = Duration::from_secs(3_600);
    let engine = engine();
    let again = engine.another();
    let exact = Clock::start();
    let wrong = exact.not_before(exact.now() + 3 * hour);
    let opened = Broker::open(Arc::new(engine), wrong, BrokerConfig::new([7; 32])).await;
    let (broker, running) = opened.expect("a new log opens");
    create(&broker, Duration::from_secs(30)).await;
    publish(&broker, 1).await.expect("there is room");
    broker.stop();
    running.await.expect("the task did not panic").expect("it stopped as asked");

    let (broker, _running) = open(again, BrokerConfig::new([7; 32])).await;
    let ahead = owner(&broker).server().await.expect("it serves").clock_ahead;
    assert!((ahead - 3 * 3_600_000_000).abs() < 60_000_000, "the clock is {ahead} microseconds ahead");
    let at = broker.clock().moment().of_date(exact.now() + hour);
    let mut builder = BatchBuilder::default();
    builder.push(&Message { body: b"later", not_before: Some(at), ..Message::default() });
    let batch = builder.build();
    let room = broker.room(&stream(), &batch).await;
    let options = PublishOptions::default();
    owner(&broker).publish(room, Arc::new(stream()), batch, options).await.expect("it is stored");
    let report = owner(&broker).stream(stream()).await.expect("the stream is there");
    assert_eq!(report.figures.delayed, 1, "an hour from now by the date is in the future");
}
