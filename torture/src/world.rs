//! What all clients of a run share: the history, where the server is, and what time of the run it is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::history::{History, Phase, Time};
use crate::http::Connection;
use crate::server::Addresses;

/// A node that does not say within this time which term it serves in is passed by.
const TELLS_WITHIN: Duration = Duration::from_secs(2);
/// Before another node is asked.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A server that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) run: u32,
    pub(crate) address: SocketAddr,
    /// Where it serves SQS, if it does.
    pub(crate) sqs: Option<SocketAddr>,
    /// Where it serves KurrentDB clients, if it does.
    pub(crate) kurrent: Option<SocketAddr>,
    /// A node of a cluster: a run of it is a term, which it tells.
    pub(crate) is_node: bool,
}

impl Server {
    /// The run in which a server answers that tells this epoch.
    pub(crate) fn run_of(self, epoch: u32) -> u32 {
        if self.is_node { epoch } else { self.run }
    }
}

/// Where clients find the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    One(Server),
    /// The nodes of a cluster. Any of them may be asked.
    Nodes(Arc<[Addresses]>),
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
    pub(crate) place: watch::Receiver<Option<Place>>,
    pub(crate) stage: watch::Receiver<Stage>,
    /// Counts the nodes that clients have asked, so that each asks another one next.
    turns: AtomicUsize,
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
        place: watch::Receiver<Option<Place>>,
        stage: watch::Receiver<Stage>,
    ) -> World {
        World {
            history,
            place,
            stage,
            turns: AtomicUsize::new(0),
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
        let (mut place, mut stage) = (self.place.clone(), self.stage.clone());
        loop {
            if *stage.borrow_and_update() == Stage::Over {
                return None;
            }
            let now = place.borrow_and_update().clone();
            match now {
                Some(Place::One(server)) => return Some(server),
                Some(Place::Nodes(nodes)) => {
                    let turn = self.turns.fetch_add(1, Ordering::Relaxed);
                    if let Some(server) = at_node(nodes[turn % nodes.len()]).await {
                        return Some(server);
                    }
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                None => {
                    let changed = tokio::select! {
                        changed = place.changed() => changed,
                        changed = stage.changed() => changed,
                    };
                    changed.ok()?;
                }
            }
        }
    }

    /// Whether a connection that was made now is to the server that was asked for. That of a cluster may have changed
    /// meanwhile.
    pub(crate) async fn is_still(&self, server: Server) -> bool {
        let Server { address: native, sqs, kurrent, .. } = server;
        !server.is_node || at_node(Addresses { native, sqs, kurrent }).await == Some(server)
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

/// A node of a cluster as a server, if it reaches the owner of the log.
pub(crate) async fn at_node(addresses: Addresses) -> Option<Server> {
    let Addresses { native, sqs, kurrent } = addresses;
    let asked = async { term_at(&mut Connection::open(native).await.ok()?).await };
    let run = tokio::time::timeout(TELLS_WITHIN, asked).await.ok()??;
    Some(Server { run, address: native, sqs, kurrent, is_node: true })
}

/// The term of the owner that answers on a connection, which ends with the term.
pub(crate) async fn term_at(connection: &mut Connection) -> Option<u32> {
    let answer = connection.request("GET", "/server", None).await.ok()?;
    let epoch = answer.body["epoch"].as_u64().filter(|_| answer.status == 200)?;
    u32::try_from(epoch).ok()
}
