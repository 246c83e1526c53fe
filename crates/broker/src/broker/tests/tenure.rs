//! The task of an owner that may lose its log to another node.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::settings::{Acks, Backoff, Retries};
use forebay_core::shard::PublishRefusal;
use forebay_core::types::{Epoch, Position};
use forebay_storage::engine::{
    Appended, BoxFuture, Claim, Elapsed, Engine, Frame, Image, ReadBudget, Saved, StorageError, StoredFrame,
    Tenure,
};

use super::*;

/// An engine in memory whose tenure the test decides.
struct Limited {
    inner: MemoryEngine,
    tenure: Tenure,
    elapsed: Option<Elapsed>,
}

impl Engine for Limited {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(async move {
            let claim = self.inner.claim(shard).await?;
            Ok(Claim { tenure: self.tenure.clone(), elapsed: self.elapsed, ..claim })
        })
    }

    fn append(&self, frame: Frame) -> Appended {
        self.inner.append(frame)
    }

    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        self.inner.read(shard, from, budget)
    }

    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        self.inner.save(shard, image)
    }

    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        self.inner.trim(shard, through)
    }
}

/// A tenure by a clock of its own, in seconds.
fn tenure() -> (Tenure, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1));
    let hand = clock.clone();
    let now = move || Timestamp::ZERO + Duration::from_secs(hand.load(Ordering::SeqCst));
    (Tenure::limited(Duration::from_secs(1), Duration::from_secs(5), now), clock)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

async fn open_limited(tenure: &Tenure) -> (Broker, Running) {
    let engine = Limited { inner: engine(), tenure: tenure.clone(), elapsed: None };
    Broker::open(Arc::new(engine), Clock::start(), BrokerConfig::new([7; 32])).await.expect("a new log opens")
}

#[tokio::test]
async fn messages_are_handed_out_only_while_the_log_is_surely_owned() {
    let (tenure, clock) = tenure();
    tenure.extend(at(10));
    let (broker, _running) = open_limited(&tenure).await;
    create(&broker, Duration::from_secs(30)).await;
    let mut consumer = owner(&broker).subscribe(stream(), group(), "worker", 10).await.expect("it is let in");
    publish(&broker, 1).await.expect("there is room");
    let events = next_events(&mut consumer).await;
    let Event::Delivery(delivery) = &events[0] else { panic!("a delivery comes first") };
    let leases = vec![delivery.leases()];

    clock.store(10, Ordering::SeqCst);
    publish(&broker, 1).await.expect("a durable message is confirmed");
    // The group acks before the log has it, as groups do unless they are told otherwise. Now the answer waits for that.
    assert_eq!(GroupSettings::default().acks, Acks::Journal);
    let ack = SettleRequest { ticket: 7, leases, settlement: Verb::Ack.into() };
    consumer.settle(vec![ack]).expect("an ack may be made");
    let events = next_events(&mut consumer).await;
    assert!(matches!(&events[0], Event::Settled(_)), "the ack is durable: {events:?}");
    let waited = tokio::time::timeout(Duration::from_millis(200), next_events(&mut consumer)).await;
    assert!(waited.is_err(), "nothing is handed out: {waited:?}");

    tenure.extend(at(20));
    let events = next_events(&mut consumer).await;
    assert!(matches!(&events[0], Event::Delivery(_)), "{events:?}");
}

/// A node that another one has replaced, and that does not know it yet, would refuse by what the log said before.
#[tokio::test]
async fn a_publish_is_refused_only_while_the_log_is_surely_owned() {
    let (tenure, clock) = tenure();
    tenure.extend(at(10));
    let (broker, _running) = open_limited(&tenure).await;
    create(&broker, Duration::from_secs(30)).await;
    let batch = batch(1, 10);
    let room = broker.room(&stream(), &batch).await;
    let options = PublishOptions { expect_last: Some(Seq(9)), ..PublishOptions::default() };
    clock.store(10, Ordering::SeqCst);
    let mut refused = owner(&broker).publish(room, Arc::new(stream()), batch, options);
    let waited = tokio::time::timeout(Duration::from_millis(200), &mut refused).await;
    assert!(waited.is_err(), "the node does not know what the log says");

    tenure.extend(at(20));
    let refused = refused.await.map(Durable::get);
    assert!(
        matches!(refused, Err(PublishError::Refused(PublishRefusal::WrongLastSeq { .. }))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn consumers_are_cut_off_when_another_node_may_serve_and_the_owner_goes_on() {
    let (tenure, clock) = tenure();
    tenure.extend(at(10));
    let (broker, _running) = open_limited(&tenure).await;
    create(&broker, Duration::from_secs(30)).await;
    let subscribe =
        async || owner(&broker).subscribe(stream(), group(), "worker", 10).await.expect("it is let in");
    let mut consumer = subscribe().await;
    publish(&broker, 1).await.expect("there is room");
    assert!(matches!(&next_events(&mut consumer).await[0], Event::Delivery(_)));

    clock.store(15, Ordering::SeqCst);
    publish(&broker, 1).await.expect("a durable message is confirmed");
    let waited = tokio::time::timeout(Duration::from_millis(200), next_events(&mut consumer)).await;
    assert!(waited.is_err(), "its lease is its own for the grace: {waited:?}");
    clock.store(16, Ordering::SeqCst);
    let events = next_events(&mut consumer).await;
    assert!(matches!(&events[..], [Event::LogUnsure]), "{events:?}");

    // The log is reached again, and no other node has claimed it.
    tenure.extend(at(20));
    let mut consumer = subscribe().await;
    let mut count = 0;
    while count < 2 {
        for event in next_events(&mut consumer).await {
            let Event::Delivery(delivery) = event else { panic!("only deliveries come: {event:?}") };
            count += delivery.leases().count;
        }
    }
    assert_eq!(tenure.stalls(), 1);
}

#[tokio::test]
async fn a_consumer_is_not_cut_off_because_its_leases_lapsed_while_deliveries_waited() {
    let (tenure, clock) = tenure();
    tenure.extend(at(10));
    let (broker, _running) = open_limited(&tenure).await;
    let change = |settings: &mut GroupSettings| {
        settings.message_timeout = Duration::from_millis(100);
        settings.max_retries = Retries::Unlimited;
        settings.backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO, ..Backoff::default() };
    };
    owner(&broker).create_group(stream(), group(), change).await.expect("the group is created");
    let mut consumer = owner(&broker).subscribe(stream(), group(), "worker", 1).await.expect("it is let in");
    clock.store(10, Ordering::SeqCst);
    publish(&broker, 1).await.expect("a durable message is confirmed");
    let waited = tokio::time::timeout(Duration::from_millis(700), next_events(&mut consumer)).await;
    assert!(waited.is_err(), "nothing is handed out: {waited:?}");

    tenure.extend(at(20));
    let events = next_events(&mut consumer).await;
    assert!(matches!(&events[..], [Event::Delivery(_)]), "leases that lapsed do not come: {events:?}");
}

#[tokio::test]
async fn a_frame_that_takes_too_long_holds_deliveries_back() {
    let (tenure, clock) = tenure();
    tenure.extend(at(100));
    assert!(tenure.may_serve());
    tenure.set_waits_since(Some(at(1)));
    assert!(tenure.may_serve());
    clock.store(2, Ordering::SeqCst);
    assert!(!tenure.may_serve(), "it has waited for a second");
    tenure.set_waits_since(None);
    assert!(tenure.may_serve());
    clock.store(100, Ordering::SeqCst);
    assert!(!tenure.may_serve(), "the tenure is over");
}

#[tokio::test]
async fn an_owner_that_lost_the_log_ends_although_it_has_nothing_to_write() {
    let (tenure, _clock) = tenure();
    tenure.extend(at(10));
    let (broker, running) = open_limited(&tenure).await;
    create(&broker, Duration::from_secs(30)).await;
    tenure.end(StorageError::Fenced { epoch: Epoch(2) });
    let ended = running.await.expect("the task did not panic");
    let is_fenced = matches!(ended, Err(RecoveryError::Storage(StorageError::Fenced { epoch: Epoch(2) })));
    assert!(is_fenced, "{ended:?}");
    assert_eq!(publish(&broker, 1).await, Err(PublishError::Stopping), "nothing more is taken");
}

#[tokio::test]
async fn leases_on_the_clock_do_not_end_early_because_the_next_node_has_another_date() {
    let log = engine();
    let open = async |clock: Clock, elapsed: Option<Elapsed>| {
        let inner = log.another();
        let engine = Limited { inner, tenure: Tenure::default(), elapsed };
        Broker::open(Arc::new(engine), clock, BrokerConfig::new([7; 32])).await.expect("the log opens").0
    };
    let date = Timestamp::ZERO + Duration::from_secs(1_000_000);
    let broker = open(Clock::starting_at(date), None).await;
    create(&broker, Duration::from_secs(20)).await;
    publish(&broker, 1).await.expect("there is room");
    let latest = broker.clock().now();
    broker.stop();
    let hour = Duration::from_secs(3_600);
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    for (skewed, stamped, seen, expected) in [
        // This date is ahead, and the servers know better.
        (date + hour, minute, second, minute),
        // The clocks of the servers are ahead, and this date is right.
        (date + minute, hour, second, minute),
        // Both are behind, and this machine has seen more time pass.
        (date - hour, second, minute, minute),
        // This date is behind: the stamps of the servers do not go back before the log.
        (date - hour, Duration::ZERO, Duration::ZERO, Duration::ZERO),
    ] {
        let elapsed = Elapsed { stamped, seen };
        let times = (latest, Duration::ZERO);
        let (clock, _) = carried_over(Clock::starting_at(skewed), times, elapsed, Duration::ZERO);
        let off = clock.now().since(latest + expected).max((latest + expected).since(clock.now()));
        assert!(off < Duration::from_secs(10), "{skewed:?} {stamped:?} {seen:?}: off by {off:?}");
        assert!(clock.now() >= latest);
    }
    let elapsed = Elapsed { stamped: second, seen: Duration::ZERO };
    let broker = open(Clock::starting_at(date + hour), Some(elapsed)).await;
    assert!(broker.clock().now() < date + minute, "it goes on from the time of the former owner");
    let (fresh, _) = carried_over(Clock::starting_at(date), Default::default(), elapsed, Duration::ZERO);
    assert!(fresh.now() >= date, "a new log has no time to go on from");
}

#[tokio::test]
async fn a_clock_that_is_behind_its_date_stays_behind_with_the_next_owner() {
    let log = engine();
    let date = Timestamp::ZERO + Duration::from_secs(1_000_000);
    let seconds = Duration::from_secs;
    for (passed, stamped, expected) in [
        (0, 0, 0),
        // The last frame was stored ten seconds after its decisions, so that the servers saw less time pass.
        (60, 50, 50),
        // Another server leads, and its clock is ahead by an hour.
        (120, 3_600, 110),
        (180, 3_600, 170),
    ] {
        let elapsed = Some(Elapsed { stamped: seconds(stamped), seen: Duration::ZERO });
        let engine = Limited { inner: log.another(), tenure: Tenure::default(), elapsed };
        let clock = Clock::starting_at(date + seconds(passed));
        let opened = Broker::open(Arc::new(engine), clock, BrokerConfig::new([7; 32])).await;
        let (broker, running) = opened.expect("the log opens");
        let late = broker.clock().now().since(date + seconds(expected));
        assert!(late < seconds(5), "after {passed} s the clock is ahead by {late:?}");
        let early = (date + seconds(expected)).since(broker.clock().now());
        assert!(early < seconds(5), "after {passed} s the clock is behind by {early:?}");
        if passed == 0 {
            create(&broker, seconds(20)).await;
        }
        publish(&broker, 1).await.expect("there is room");
        broker.stop();
        running.await.expect("the task did not panic").expect("it stops cleanly");
    }
}
