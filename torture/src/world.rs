//! What all clients of a run share: the history, where the server is, and what time of the run it is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::history::{History, Phase, Time};

/// A server that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) run: u32,
    pub(crate) address: SocketAddr,
    /// Where it serves SQS, if it does.
    pub(crate) sqs: Option<SocketAddr>,
    /// Where it serves KurrentDB clients, if it does.
    pub(crate) kurrent: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Clients do what they like.
    Chaos,
    /// Producers come to an end; consumers finish everything but poison.
    Calm,
    /// Consumers finish poison too.
    Healed,
    Over,
}

pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) server: watch::Receiver<Option<Server>>,
    pub(crate) stage: watch::Receiver<Stage>,
    numbers: AtomicU64,
    /// Messages that a consumer has dropped without settling them, by group and position, and whether another consumer
    /// has got them since. The watching consumer removes them again.
    watched: Mutex<BTreeMap<(String, u64), bool>>,
    /// Events that a consumer has acked or skipped, by subscription of a KurrentDB client, and events that a reader has
    /// seen, by reader.
    done: Mutex<BTreeMap<String, BTreeSet<u64>>>,
}

impl World {
    pub(crate) fn new(
        history: History,
        server: watch::Receiver<Option<Server>>,
        stage: watch::Receiver<Stage>,
    ) -> World {
        World {
            history,
            server,
            stage,
            numbers: AtomicU64::new(0),
            watched: Mutex::default(),
            done: Mutex::default(),
        }
    }

    /// A number that is given once.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, u64), bool>> {
        self.watched.lock().expect("whoever watches does not panic")
    }

    /// Watches for the next delivery of a message.
    pub(crate) fn watch(&self, group: &str, seq: u64) {
        self.watched().insert((group.to_owned(), seq), false);
    }

    pub(crate) fn came(&self, group: &str, seq: u64) {
        if let Some(came) = self.watched().get_mut(&(group.to_owned(), seq)) {
            *came = true;
        }
    }

    /// Whether the message came again. Not watched any more if it did, or if this is the last look.
    pub(crate) fn has_come(&self, group: &str, seq: u64, is_last: bool) -> bool {
        let mut watched = self.watched();
        let key = (group.to_owned(), seq);
        let came = watched.get(&key).copied().unwrap_or(true);
        if came || is_last {
            watched.remove(&key);
        }
        came
    }

    fn done(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeSet<u64>>> {
        self.done.lock().expect("no task panics while it counts")
    }

    /// A consumer of a KurrentDB client is done with an event, or a reader has seen it.
    pub(crate) fn is_done_with(&self, name: &str, event: u64) {
        self.done().entry(name.to_owned()).or_default().insert(event);
    }

    /// With how many events a subscription or a reader of a KurrentDB client is done.
    pub(crate) fn done_with(&self, name: &str) -> u64 {
        self.done().get(name).map_or(0, |events| events.len() as u64)
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Waits for a server, and for none once the run is over.
    pub(crate) async fn listening(&self) -> Option<Server> {
        let (mut server, mut stage) = (self.server.clone(), self.stage.clone());
        loop {
            if *stage.borrow_and_update() == Stage::Over {
                return None;
            }
            if let Some(server) = *server.borrow_and_update() {
                return Some(server);
            }
            let changed = tokio::select! {
                changed = server.changed() => changed,
                changed = stage.changed() => changed,
            };
            changed.ok()?;
        }
    }

    pub(crate) fn write(
        &self,
        process: u32,
        phase: Phase,
        operation: &str,
        fields: &[(&str, String)],
    ) -> Time {
        self.history.write(process, phase, operation, fields)
    }

    /// Something that must not happen, and that no other line tells.
    pub(crate) fn trouble(&self, process: u32, what: String) {
        self.write(process, Phase::Info, "trouble", &[("what", what)]);
    }
}
