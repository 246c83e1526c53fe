//! The task of an owner that may lose its log to another node.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::settings::Acks;
use forebay_core::types::{Epoch, Position};
use forebay_storage::engine::{
    Appended, BoxFuture, Claim, Engine, Frame, Image, ReadBudget, Saved, StorageError, StoredFrame, Tenure,
};

use super::*;

/// An engine in memory whose tenure the test decides.
struct Limited {
    inner: MemoryEngine,
    tenure: Tenure,
}

impl Engine for Limited {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(async move { Ok(Claim { tenure: self.tenure.clone(), ..self.inner.claim(shard).await? }) })
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
    (Tenure::limited(Duration::from_secs(1), now), clock)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

async fn open_limited(tenure: &Tenure) -> (Broker, Running) {
    let engine = Limited { inner: engine(), tenure: tenure.clone() };
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
