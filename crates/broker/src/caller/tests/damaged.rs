//! Receives that meet messages which cannot be read.

use forebay_core::types::Position;
use forebay_storage::engine::{
    Appended, BoxFuture, Claim, Damage, Engine, Frame, Image, ReadBudget, Readout, Saved, StorageError,
    StoredFrame,
};

use super::*;

/// An engine that cannot read the frames of these messages.
struct Broken(MemoryEngine, std::ops::RangeInclusive<u64>);

impl Engine for Broken {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        self.0.claim(shard)
    }

    fn append(&self, frame: Frame) -> Appended {
        self.0.append(frame)
    }

    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        self.0.read(shard, from, budget)
    }

    fn read_around(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        Box::pin(async move {
            let is_broken =
                |frame: &StoredFrame| frame.runs.first().is_some_and(|run| self.1.contains(&run.first.0));
            let frames = self.0.read(shard, from, budget).await?;
            let (broken, frames): (Vec<_>, Vec<_>) = frames.into_iter().partition(is_broken);
            let place = |frame: StoredFrame| Damage {
                from: frame.position,
                until: Position(frame.position.0 + 1),
                payload: None,
                what: "it is broken".to_owned(),
                file: "segment-0000000001".to_owned(),
                offset: 0,
                is_new: false,
            };
            Ok(Readout { frames, damage: broken.into_iter().map(place).collect() })
        })
    }

    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        self.0.save(shard, image)
    }

    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        self.0.trim(shard, through)
    }
}

async fn open_broken(broken: std::ops::RangeInclusive<u64>) -> (Caller, Running) {
    let mut config = BrokerConfig::new([7; 32]);
    config.driver.window_bytes_max = 1;
    let opened = Broker::open(Arc::new(Broken(engine(), broken)), Clock::start(), config).await;
    let (broker, running) = opened.expect("the log opens");
    let caller = broker.enter(Principal::owner(), None);
    create(&caller, |_| {}).await;
    (caller, running)
}

#[tokio::test]
async fn a_receive_that_meets_only_damaged_messages_goes_on_waiting() {
    let (caller, _running) = open_broken(1..=3).await;
    for _ in 1..=4 {
        publish_some(&caller, 1).await;
    }
    assert_eq!(seqs(&receive(&caller, 1, SOON).await), [4]);
    let report = caller.group(stream(), group()).await.expect("the group is there");
    assert_eq!((report.figures.parked, report.figures.in_flight), (3, 1));
}

#[tokio::test]
async fn a_receive_that_does_not_wait_passes_over_damaged_messages() {
    let (caller, _running) = open_broken(1..=2).await;
    for _ in 1..=3 {
        publish_some(&caller, 1).await;
    }
    assert_eq!(seqs(&receive(&caller, 1, Duration::ZERO).await), [3]);
    assert!(receive(&caller, 1, Duration::ZERO).await.is_empty(), "there is no other");
}
