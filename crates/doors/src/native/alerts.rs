//! Alerts: a task looks at all groups and puts a notification into the queue of each receiver when some cross a
//! threshold or are well again. [`forebay_wire::alert`] decides; the program that runs the server sends.
//!
//! A queue is bounded, and the oldest notification is dropped from a full one: a receiver that comes back learns how
//! things are now.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_broker::api::{CallError, Caller, Entrance, Principal, Stage};
use forebay_core::types::Timestamp;
use forebay_wire::alert::{Alert, Event, Notification, Rules, Watch};
use forebay_wire::attention::GroupFacts;
use tokio::sync::Notify;

use super::facts::group_facts;

const EVERY: Duration = Duration::from_secs(1);
/// One part in so many of the time may go into looking.
const SHARE: u32 = 100;
/// Groups that are asked for at a time, and groups that are looked at. Of more, the first by name.
const STEP: usize = 125;
const GROUPS_MAX: usize = 20_000;
/// Notifications that wait for one receiver.
pub const QUEUE_MAX: usize = 100;
/// Characters of an error that are kept.
const ERROR_CHARS_MAX: usize = 200;

/// The alerts of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Alerts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: String,
    /// Locked to look at groups and to read the active alerts, never across a wait.
    watch: Mutex<Watch>,
    receivers: Vec<Receiver>,
}

impl Alerts {
    /// The server is named as its operator calls it, a receiver without any secret in its address.
    pub fn new(server: String, rules: Rules, hold: Duration, receivers: Vec<String>) -> Alerts {
        let receivers = receivers.into_iter().map(Receiver::new).collect();
        Alerts(Arc::new(Inner { server, watch: Mutex::new(Watch::new(rules, hold)), receivers }))
    }

    pub fn receivers(&self) -> &[Receiver] {
        &self.0.receivers
    }

    /// The alerts that are active.
    pub fn firing(&self) -> Vec<Alert> {
        locked(&self.0.watch).firing().to_vec()
    }

    /// Looks at the groups until the server stops.
    pub(super) async fn run(self, broker: Entrance) {
        let caller = broker.enter(Principal::owner(), None);
        let clock = broker.clock();
        let mut stopped = std::pin::pin!(broker.reached(Stage::Stopping));
        let mut number = 0;
        loop {
            let began = clock.now();
            let looked = tokio::select! {
                () = &mut stopped => return,
                looked = look(&caller) => looked,
            };
            // A server that cannot be asked is mostly stopping.
            if let Ok(groups) = looked {
                self.observe(clock.now(), &mut number, &groups);
            }
            let wait = EVERY.max(clock.now().since(began) * SHARE);
            tokio::select! {
                () = &mut stopped => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn observe(&self, now: Timestamp, number: &mut u64, groups: &[GroupFacts]) {
        let changes = locked(&self.0.watch).observe(now.0, groups);
        for alert in &changes {
            let word = match alert.event {
                Event::Fired => "an alert begins",
                Event::Cleared => "an alert ends",
            };
            let (stream, group, kind) = (&alert.stream, &alert.group, alert.alert.as_str());
            tracing::info!(stream, group, alert = kind, "{word}: the group {}", alert.text);
        }
        *number += 1;
        let Some(notification) = Notification::new(&self.0.server, now.0, *number, changes) else { return };
        let notification = Arc::new(notification);
        for receiver in &self.0.receivers {
            receiver.push(notification.clone());
        }
    }
}

async fn look(caller: &Caller) -> Result<Vec<GroupFacts>, CallError> {
    let (mut groups, mut after) = (Vec::new(), None);
    while groups.len() < GROUPS_MAX {
        let page = caller.groups(None, after, STEP).await?;
        groups.extend(page.items.iter().map(|report| group_facts(report, None)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(groups)
}

/// Where notifications go, and how that went.
#[derive(Debug)]
pub struct Receiver {
    name: String,
    wake: Notify,
    /// Locked to put in and take out, never across a wait.
    queue: Mutex<VecDeque<Arc<Notification>>>,
    delivery: Mutex<Delivery>,
}

/// How sending goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    pub sent: u64,
    pub dropped: u64,
    pub last_sent: Option<Timestamp>,
    /// Since when the receiver does not take notifications, and why.
    pub failing: Option<(Timestamp, String)>,
}

impl Receiver {
    fn new(name: String) -> Receiver {
        let (wake, queue, delivery) = (Notify::new(), Mutex::default(), Mutex::default());
        Receiver { name, wake, queue, delivery }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn push(&self, notification: Arc<Notification>) {
        let mut queue = locked(&self.queue);
        if queue.len() == QUEUE_MAX {
            queue.pop_front();
            locked(&self.delivery).dropped += 1;
        }
        queue.push_back(notification);
        self.wake.notify_one();
    }

    /// The next notification. It stays in the queue until [`Receiver::sent`] or [`Receiver::give_up`].
    pub async fn next(&self) -> Arc<Notification> {
        loop {
            let first = locked(&self.queue).front().cloned();
            match first {
                Some(notification) => return notification,
                None => self.wake.notified().await,
            }
        }
    }

    /// The receiver took the notification.
    pub fn sent(&self, now: Timestamp, id: &str) {
        self.remove(id);
        let mut delivery = locked(&self.delivery);
        delivery.sent += 1;
        delivery.last_sent = Some(now);
        delivery.failing = None;
    }

    /// An attempt failed. Answers whether it is the first one since the last that did not.
    pub fn failed(&self, now: Timestamp, error: &str) -> bool {
        let mut delivery = locked(&self.delivery);
        let since = delivery.failing.as_ref().map(|(since, _)| *since);
        let error = error.chars().take(ERROR_CHARS_MAX).collect();
        delivery.failing = Some((since.unwrap_or(now), error));
        since.is_none()
    }

    /// The notification is too old to be sent.
    pub fn give_up(&self, id: &str) {
        self.remove(id);
        locked(&self.delivery).dropped += 1;
    }

    /// It may have been dropped meanwhile.
    fn remove(&self, id: &str) {
        let mut queue = locked(&self.queue);
        if queue.front().is_some_and(|first| first.id == id) {
            queue.pop_front();
        }
    }

    /// How many notifications wait.
    pub fn waiting(&self) -> usize {
        locked(&self.queue).len()
    }

    /// How sending goes.
    pub fn delivery(&self) -> Delivery {
        locked(&self.delivery).clone()
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(n: usize) -> Arc<Notification> {
        let id = format!("alert-{n}");
        let at = forebay_wire::json::Time(0);
        Arc::new(Notification { id, at, server: String::new(), alerts: Vec::new(), more: 0 })
    }

    #[tokio::test]
    async fn a_notification_waits_until_it_is_sent() {
        let receiver = Receiver::new("a".to_owned());
        for n in 0..2 {
            receiver.push(notification(n));
        }
        assert_eq!(receiver.next().await.id, "alert-0");
        assert!(receiver.failed(Timestamp(5), "refused"), "the first failure");
        assert!(!receiver.failed(Timestamp(9), "timed out"));
        assert_eq!(receiver.delivery().failing, Some((Timestamp(5), "timed out".to_owned())));
        assert_eq!(receiver.next().await.id, "alert-0", "it is tried again");
        receiver.sent(Timestamp(10), "alert-0");
        assert_eq!(receiver.next().await.id, "alert-1");
        receiver.give_up("alert-1");
        let delivery = Delivery { sent: 1, dropped: 1, last_sent: Some(Timestamp(10)), failing: None };
        assert_eq!((receiver.delivery(), receiver.waiting()), (delivery, 0));
    }

    #[tokio::test]
    async fn a_full_queue_drops_the_oldest() {
        let receiver = Receiver::new("a".to_owned());
        for n in 0..QUEUE_MAX + 3 {
            receiver.push(notification(n));
        }
        assert_eq!((receiver.waiting(), receiver.delivery().dropped), (QUEUE_MAX, 3));
        assert_eq!(receiver.next().await.id, "alert-3");
        // It was being sent when it was dropped: the next one stays.
        receiver.sent(Timestamp(0), "alert-2");
        assert_eq!(receiver.next().await.id, "alert-3");
    }
}
