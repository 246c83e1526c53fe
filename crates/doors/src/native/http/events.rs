//! Changes in the server, as server-sent events: `GET /events`.
//!
//! One task looks at everything once a second, for all listeners together; it starts with the first of them and
//! ends with the last. A report that has not changed is not sent again, but when a new listener joins, every
//! report is sent once. A listener that does not keep up loses events and is told how many.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use forebay_broker::api::Stage;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use super::sse::{HEARTBEAT, HEARTBEAT_TEXT, begin, write_event};
use super::{Door, report};
use crate::native::service::{Overview, Service};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rounds of events that a listener may be behind.
const ROUNDS_BEHIND_MAX: usize = 16;

/// The listeners, and the task that sends them events.
#[derive(Default)]
pub(super) struct Events {
    /// Locked only to read it or to replace it. `None` while there are no listeners.
    rounds: Mutex<Option<broadcast::Sender<Bytes>>>,
    /// A new listener has joined, and needs every report.
    tell_all: AtomicBool,
}

impl Events {
    /// Adds a listener. The first one has to start the task.
    fn join(&self) -> (broadcast::Receiver<Bytes>, bool) {
        let mut rounds = self.rounds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.tell_all.store(true, Ordering::Relaxed);
        match rounds.as_ref() {
            Some(sender) => (sender.subscribe(), false),
            None => {
                let (sender, receiver) = broadcast::channel(ROUNDS_BEHIND_MAX);
                *rounds = Some(sender);
                (receiver, true)
            }
        }
    }

    /// Sends a round of events to all listeners. False if there are no listeners any more; then the task must
    /// end.
    fn tell(&self, round: Bytes) -> bool {
        let mut rounds = self.rounds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(sender) = rounds.as_ref().filter(|sender| sender.receiver_count() > 0) else {
            *rounds = None;
            return false;
        };
        if !round.is_empty() {
            let _ = sender.send(round);
        }
        true
    }
}

pub(super) fn listen(door: &Door) -> Response {
    let (rounds, is_first) = door.0.events.join();
    if is_first {
        // For all listeners, so not in the name of the first, whose token may be revoked.
        tokio::spawn(look(door.clone(), door.own()));
    }
    let (sender, response) = begin();
    let ended = door.broker().reached(Stage::Stopping);
    tokio::spawn(async move {
        tokio::select! {
            () = ended => {}
            () = sender.closed() => {}
            () = pass_on(rounds, &sender) => {}
        }
    });
    response
}

/// From the rounds for all to the queue of one.
async fn pass_on(mut rounds: broadcast::Receiver<Bytes>, sender: &mpsc::Sender<Bytes>) {
    loop {
        let text = match tokio::time::timeout(HEARTBEAT, rounds.recv()).await {
            Ok(Ok(round)) => round,
            Ok(Err(RecvError::Lagged(rounds))) => {
                let mut text = String::new();
                write_event(&mut text, "lost", None, &json!({ "rounds": rounds }));
                text.into()
            }
            Ok(Err(RecvError::Closed)) => return,
            Err(_) => Bytes::from_static(HEARTBEAT_TEXT),
        };
        if sender.send(text).await.is_err() {
            return;
        }
    }
}

/// Queries all reports once a second, until there are no listeners.
async fn look(door: Door, service: Service) {
    let events = &door.0.events;
    let mut before = Seen::default();
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        if events.tell_all.swap(false, Ordering::Relaxed) {
            before = Seen::default();
        }
        // A server that cannot be asked is stopping, and what it said last is the last there is.
        let (round, seen) = look_once(&door, &service, &before).await.unwrap_or_default();
        before = seen;
        if !events.tell(round.into()) {
            return;
        }
    }
}

/// The last report sent of the server, each stream and each group.
#[derive(Default)]
struct Seen {
    server: String,
    streams: HashMap<String, String>,
    groups: HashMap<(String, String), String>,
}

async fn look_once(door: &Door, service: &Service, before: &Seen) -> Option<(String, Seen)> {
    let mut text = String::new();
    let mut seen = Seen::default();
    let Overview { server, streams, groups } = service.overview().await.ok()?;
    seen.server = event("server", &report::server(&server, door.broker().stage()));
    if seen.server != before.server {
        text.push_str(&seen.server);
    }
    for stream in &streams {
        let (name, said) = (stream.name.to_string(), event("stream", &report::stream(stream)));
        if before.streams.get(&name) != Some(&said) {
            text.push_str(&said);
        }
        seen.streams.insert(name, said);
    }
    for group in &groups {
        let name = (group.stream.to_string(), group.name.to_string());
        let said = event("group", &report::group(group));
        if before.groups.get(&name) != Some(&said) {
            text.push_str(&said);
        }
        seen.groups.insert(name, said);
    }
    for stream in before.streams.keys().filter(|name| !seen.streams.contains_key(*name)) {
        write_event(&mut text, "gone", None, &json!({ "stream": stream }));
    }
    for (stream, group) in before.groups.keys().filter(|name| !seen.groups.contains_key(*name)) {
        write_event(&mut text, "gone", None, &json!({ "stream": stream, "group": group }));
    }
    Some((text, seen))
}

fn event(name: &str, data: &impl Serialize) -> String {
    let mut text = String::new();
    write_event(&mut text, name, None, data);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_starts_with_the_first_listener_and_ends_with_the_last() {
        let events = Events::default();
        assert!(!events.tell(Bytes::new()), "nobody listens");
        let (mut one, is_first) = events.join();
        assert!(is_first);
        let (two, is_first) = events.join();
        assert!(!is_first);
        assert!(events.tell(Bytes::from_static(b"x")));
        assert_eq!(one.try_recv().expect("it was told"), "x");
        drop(one);
        assert!(events.tell(Bytes::new()));
        drop(two);
        assert!(!events.tell(Bytes::new()));
        assert!(events.join().1, "the next one starts it again");
    }

    #[test]
    fn one_who_is_too_slow_loses_the_oldest() {
        let events = Events::default();
        let (mut slow, _) = events.join();
        for _ in 0..ROUNDS_BEHIND_MAX + 3 {
            assert!(events.tell(Bytes::from_static(b"x")));
        }
        assert!(matches!(slow.try_recv(), Err(broadcast::error::TryRecvError::Lagged(3))));
        assert!(slow.try_recv().is_ok());
    }
}
