//! The open calls of consumers, by group, with the events that they hold. Nothing here is in the log: when a call ends,
//! the group has its events back.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_broker::api::{Lease, Settlement};
use forebay_core::types::{ConsumerId, GroupName, StreamName, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::super::links;
use super::held::{Held, HeldEvent, Proof};
use super::measure::{Measured, Times};
use super::service::ALL;

/// A stream and a group of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    pub(crate) stream: StreamName,
    pub(crate) group: GroupName,
}

impl Names {
    /// Whether this is a subscription to `$all`: a group on its links.
    pub(crate) fn is_all(&self) -> bool {
        self.stream.as_str().strip_prefix(links::OF_ALL) == Some(self.group.as_str())
    }

    /// The stream that clients subscribe to.
    pub(crate) fn source(&self) -> &str {
        if self.is_all() { ALL } else { self.stream.as_str() }
    }
}

/// All groups that this door has consumers of.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    groups: Mutex<HashMap<Names, Arc<GroupCalls>>>,
}

/// The calls of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupCalls {
    held: Mutex<Held>,
    open: Mutex<BTreeMap<ConsumerId, OpenCall>>,
    /// Of the whole group, since it was last looked at.
    pub(crate) measured: Mutex<Measured>,
}

#[derive(Debug)]
struct OpenCall {
    call: Arc<Call>,
    /// Tells the call that it is dropped.
    drop: oneshot::Sender<()>,
}

/// Leases that a call settles for answers that came another way.
pub(crate) type Answers = (Vec<Lease>, Settlement);

/// One call of a consumer.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) connection_name: String,
    pub(crate) user: String,
    pub(crate) since: Timestamp,
    /// How long events take is measured.
    pub(crate) extra_statistics: bool,
    /// Events that were sent.
    pub(crate) sent: AtomicU64,
    pub(crate) measured: Mutex<Measured>,
    pub(crate) times: Mutex<Times>,
    pub(crate) answers: Option<mpsc::UnboundedSender<Answers>>,
}

impl Call {
    fn answered(&self, time: Duration) {
        if self.extra_statistics {
            lock(&self.times).add(time);
        }
    }
}

/// A value is replaced whole or counted up, so a panic of another call leaves nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events that were answered for, by the way in which they are settled.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) leases: Vec<(Lease, Option<Arc<Call>>)>,
    pub(crate) receipts: Vec<String>,
}

impl Calls {
    /// The calls of a group, for a consumer that joins it or an event that is pulled.
    pub(crate) fn of(&self, names: &Names) -> Arc<GroupCalls> {
        lock(&self.groups).entry(names.clone()).or_default().clone()
    }

    pub(crate) fn find(&self, names: &Names) -> Option<Arc<GroupCalls>> {
        lock(&self.groups).get(names).cloned()
    }

    /// Ends all calls of a group, because its settings were changed.
    pub(crate) fn drop_group(&self, names: &Names) {
        if let Some(group) = self.find(names) {
            group.drop_all();
        }
    }

    /// Ends all calls.
    pub(crate) fn drop_all(&self) {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        groups.iter().for_each(|group| group.drop_all());
    }

    /// A group is gone.
    pub(crate) fn forget(&self, names: &Names) {
        lock(&self.groups).remove(names);
    }

    /// Forgets a group that has no calls and no events, after a call has ended.
    pub(crate) fn tidy(&self, names: &Names) {
        let mut groups = lock(&self.groups);
        let unused = |group: &Arc<GroupCalls>| lock(&group.open).is_empty() && lock(&group.held).len() == 0;
        // A call that is about to open has it too.
        if groups.get(names).is_some_and(|group| Arc::strong_count(group) <= 2 && unused(group)) {
            groups.remove(names);
        }
    }
}

impl GroupCalls {
    /// A call has joined the group as this consumer. Resolves when the call is dropped.
    pub(crate) fn enter(&self, consumer: ConsumerId, call: Arc<Call>) -> oneshot::Receiver<()> {
        let (drop, dropped) = oneshot::channel();
        lock(&self.open).insert(consumer, OpenCall { call, drop });
        dropped
    }

    /// A call has ended. The group gives its events to others.
    pub(crate) fn leave(&self, consumer: ConsumerId) {
        let Some(open) = lock(&self.open).remove(&consumer) else { return };
        lock(&self.held).forget(&open.call);
    }

    fn drop_all(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        for OpenCall { call, drop } in open.into_values() {
            lock(&self.held).forget(&call);
            let _ = drop.send(());
        }
    }

    pub(crate) fn call(&self, consumer: ConsumerId) -> Option<Arc<Call>> {
        lock(&self.open).get(&consumer).map(|open| open.call.clone())
    }

    /// An event was sent to a call, or pulled.
    pub(crate) fn sent(&self, now: Timestamp, id: [u8; 16], event: HeldEvent) {
        if let Some(call) = &event.call {
            call.sent.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.held).add(now, id, event);
    }

    /// Takes out the events that a client answers for. Ids that are not known are ignored: an answer may come late.
    pub(crate) fn answered(&self, now: Timestamp, ids: impl Iterator<Item = [u8; 16]>) -> Answered {
        let mut held = lock(&self.held);
        let mut answered = Answered::default();
        for id in ids {
            let Some(event) = held.take(&id) else { continue };
            if let Some(call) = &event.call {
                call.answered(Duration::from_micros(now.0.saturating_sub(event.sent.0)));
            }
            match event.proof {
                Proof::Lease(lease) => answered.leases.push((lease, event.call)),
                Proof::Receipt(receipt) => answered.receipts.push(receipt),
            }
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::types::{Epoch, Grant, Seq};

    fn names() -> Names {
        Names { stream: StreamName::stored("s"), group: GroupName::stored("g") }
    }

    fn event(call: &Arc<Call>) -> HeldEvent {
        HeldEvent {
            seq: Seq(1),
            proof: Proof::Lease(Lease { epoch: Epoch(1), seq: Seq(1), grant: Grant(1) }),
            deadline: Timestamp(30_000_000),
            sent: Timestamp(0),
            call: Some(call.clone()),
        }
    }

    #[test]
    fn a_dropped_group_tells_its_calls_and_forgets_their_events() {
        let calls = Calls::default();
        let group = calls.of(&names());
        let call = Arc::new(Call::default());
        let mut dropped = group.enter(ConsumerId(1), call.clone());
        group.sent(Timestamp(0), [1; 16], event(&call));
        assert!(dropped.try_recv().is_err());
        assert!(group.call(ConsumerId(1)).is_some());
        calls.drop_group(&names());
        assert!(dropped.try_recv().is_ok());
        assert!(group.call(ConsumerId(1)).is_none());
        assert!(group.answered(Timestamp(1), [[1; 16]].into_iter()).leases.is_empty());
    }

    #[test]
    fn a_group_without_calls_takes_no_memory() {
        let calls = Calls::default();
        let (group, call) = (calls.of(&names()), Arc::new(Call::default()));
        let _dropped = group.enter(ConsumerId(1), call.clone());
        group.sent(Timestamp(0), [1; 16], event(&call));
        calls.tidy(&names());
        assert!(calls.find(&names()).is_some(), "it has a call");
        group.leave(ConsumerId(1));
        calls.tidy(&names());
        assert!(calls.find(&names()).is_none());
    }

    #[test]
    fn answers_are_timed_only_where_it_is_asked_for() {
        let group = GroupCalls::default();
        for (extra_statistics, expected) in [(false, None), (true, Some(("Mean", 3)))] {
            let call = Arc::new(Call { extra_statistics, ..Call::default() });
            group.sent(Timestamp(0), [1; 16], event(&call));
            assert_eq!(group.answered(Timestamp(3_000), [[1; 16], [2; 16]].into_iter()).leases.len(), 1);
            assert_eq!(lock(&call.times).measurements().first().copied(), expected);
            assert_eq!(call.sent.load(Ordering::Relaxed), 1);
        }
    }
}
