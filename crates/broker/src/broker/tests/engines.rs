//! The task on engines that are slow in one way and quick in another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Waker};

use forebay_core::types::{Position, Seq};
use forebay_storage::engine::{
    Appended, BoxFuture, Claim, Durable, Engine, Frame, Image, ReadBudget, Saved, StorageError, StoredFrame,
};
use tokio::sync::oneshot;

use super::*;
use crate::caller::Receive;
use crate::error::CallError;

/// Frames that were appended and are not in the log.
type Held = Vec<(Frame, oneshot::Sender<Result<Durable<Position>, StorageError>>)>;

/// An engine in memory whose appends the test watches over.
struct WatchedEngine {
    inner: MemoryEngine,
    /// Frames that wait until the test lets them through, while it holds them back.
    held: Mutex<Option<Held>>,
    /// Called with every append.
    on_append: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl WatchedEngine {
    fn new() -> Arc<WatchedEngine> {
        let inner = MemoryEngine::new(MemoryLog::new(ShardId(0), 12 << 20));
        Arc::new(WatchedEngine { inner, held: Mutex::default(), on_append: OnceLock::new() })
    }

    fn hold(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    fn let_through(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (frame, answer) in held.into_iter().flatten() {
            let answered = self.inner.append(frame).try_take();
            let _ = answer.send(answered.expect("an engine in memory answers at once"));
        }
    }

    fn holds_any(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|held| !held.is_empty())
    }
}

impl Engine for WatchedEngine {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        self.inner.claim(shard)
    }

    fn append(&self, frame: Frame) -> Appended {
        if let Some(held) = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            let (answer, appended) = Appended::pending();
            held.push((frame, answer));
            return appended;
        }
        if let Some(on_append) = self.on_append.get() {
            on_append();
        }
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

async fn open(engine: Arc<WatchedEngine>, config: BrokerConfig) -> (Caller, Running) {
    let (broker, running) = Broker::open(engine, Clock::start(), config).await.expect("the log opens");
    (broker.enter(Principal::owner(), None), running)
}

async fn publish_to(caller: &Caller, name: &StreamName, body: &[u8]) {
    let mut batch = BatchBuilder::default();
    batch.push(&Message { body, ..Message::default() });
    let batch = batch.build();
    let room = caller.broker().room(name, &batch).await;
    let done = caller.publish(room, Arc::new(name.clone()), batch, PublishOptions::default()).await;
    done.expect("there is room");
}

fn names() -> (StreamName, GroupName) {
    (StreamName::parse("work").expect("a name"), GroupName::parse("team").expect("a name"))
}

#[tokio::test]
async fn a_group_is_gone_when_its_deletion_is_durable_and_not_before() {
    let engine = WatchedEngine::new();
    let config = BrokerConfig { stream_of_first_publish: None, ..BrokerConfig::new([7; 32]) };
    let (caller, _running) = open(engine.clone(), config).await;
    let (stream, group) = names();
    caller.create_group(stream.clone(), group.clone(), |_| {}).await.expect("a new group");
    let mut member = caller.subscribe(stream.clone(), group.clone(), "member", 1).await.expect("it joins");
    let (following, name) = (caller.clone(), stream.clone());
    let follower = tokio::spawn(async move { following.grown(name, Seq(0)).await });
    let request = Receive { max: 1, wait: Duration::from_secs(600), ..Receive::default() };
    let (polling, name) = (caller.clone(), (stream.clone(), group.clone()));
    let poller = tokio::spawn(async move { polling.receive(name.0, name.1, request).await.map(|_| ()) });
    let waits = async || caller.group(stream.clone(), group.clone()).await.expect("it is there").figures;
    while waits().await.consumers < 2 {
        tokio::task::yield_now().await;
    }
    engine.hold();
    let (deleting, name) = (caller.clone(), stream.clone());
    let deleted = tokio::spawn(async move { deleting.delete_stream(name, true).await });
    while !engine.holds_any() {
        tokio::task::yield_now().await;
    }
    // Whatever the task said in the turn of the deletion has been said by now.
    let _ = caller.broker().owner().next_due().await;
    let mut events = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(member.poll_events(&mut cx, &mut events, 9).is_pending(), "the member is told {events:?}");
    assert!(!poller.is_finished(), "the poller is told");
    assert!(!follower.is_finished(), "the follower is told");
    let (publishing, name) = (caller.clone(), stream.clone());
    let refused = tokio::spawn(async move {
        let batch = batch(1, 10);
        let room = publishing.broker().room(&name, &batch).await;
        publishing.publish(room, Arc::new(name), batch, PublishOptions::default()).await.map(|_| ())
    });
    let _ = caller.broker().owner().next_due().await;
    assert!(!refused.is_finished(), "the producer is told");
    assert!(!deleted.is_finished(), "the operator is told");
    engine.let_through();
    deleted.await.expect("it ends").expect("it is deleted");
    let gone = poller.await.expect("it ends");
    assert!(matches!(gone, Err(CallError::GroupGone)), "{gone:?}");
    poll_fn(|cx| member.poll_events(cx, &mut events, 9)).await;
    assert!(matches!(events[..], [Event::GroupGone]), "{events:?}");
    assert!(matches!(follower.await.expect("it ends"), Err(CallError::StreamGone)));
    assert!(refused.await.expect("it ends").is_err());
}

#[tokio::test]
async fn reads_get_their_turn_although_every_turn_has_a_receipt() {
    let engine = WatchedEngine::new();
    let mut config = BrokerConfig::new([7; 32]);
    config.driver.window_bytes_max = 1;
    let (caller, _running) = open(engine.clone(), config).await;
    let (stream, group) = names();
    caller.create_group(stream.clone(), group.clone(), |_| {}).await.expect("a new group");
    for _ in 0..3 {
        publish_to(&caller, &stream, b"old").await;
    }
    // Every append brings the next batch, so there is no turn without a receipt until the test ends.
    let busy = StreamName::parse("busy").expect("a name");
    let spare = GroupName::parse("spare").expect("a name");
    caller.create_group(busy.clone(), spare, |_| {}).await.expect("a new group");
    let go_on = Arc::new(AtomicBool::new(true));
    let (publishing, name, goes_on) = (caller.clone(), busy.clone(), go_on.clone());
    let publish = move || {
        if goes_on.load(Ordering::SeqCst) {
            let (caller, name) = (publishing.clone(), name.clone());
            let mut next = Box::pin(async move { publish_to(&caller, &name, b"new").await });
            // The first step of a publish puts it into the queue. Its answer is not awaited.
            let _ = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    };
    assert!(engine.on_append.set(Box::new(publish)).is_ok());
    publish_to(&caller, &busy, b"first").await;
    let request = Receive { max: 1, wait: Duration::from_secs(10), ..Receive::default() };
    let received = caller.receive(stream, group, request).await.expect("it is answered");
    go_on.store(false, Ordering::SeqCst);
    assert_eq!(received.len(), 1);
}
