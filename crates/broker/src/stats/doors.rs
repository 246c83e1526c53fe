//! The counts of a server's doors. Kept with the broker, so that one door can report all of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::types::Timestamp;
use tokio::sync::oneshot;

use super::connections::{LiveConnection, Table};

/// Further calls of one door, and further problems of one call, are counted as [`OTHER`], so that a client
/// cannot make the table grow.
const NAMES_MAX: usize = 128;
const OTHER: &str = "other";
/// The label of requests without a problem.
pub const NO_PROBLEM: &str = "none";

type ByName<T> = BTreeMap<Box<str>, T>;

/// The doors of a server, in the order in which they were opened.
#[derive(Debug, Default)]
pub struct Doors {
    doors: Mutex<Vec<Arc<DoorStats>>>,
    connections: Arc<Connections>,
}

/// The connections of all doors together.
#[derive(Debug)]
struct Connections {
    open: AtomicUsize,
    max: AtomicUsize,
    table: Table,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections { open: AtomicUsize::new(0), max: AtomicUsize::new(usize::MAX), table: Table::default() }
    }
}

impl Doors {
    /// The counters of the door with this name, made when it is first asked for.
    pub fn door(&self, name: &'static str) -> Arc<DoorStats> {
        let mut doors = lock(&self.doors);
        if let Some(door) = doors.iter().find(|door| door.name == name) {
            return door.clone();
        }
        let connections = self.connections.clone();
        doors.push(Arc::new(DoorStats { name, connections, ..DoorStats::default() }));
        doors[doors.len() - 1].clone()
    }

    pub fn all(&self) -> Vec<Arc<DoorStats>> {
        lock(&self.doors).clone()
    }

    /// All doors together keep no more connections than this.
    pub fn limit_connections(&self, max: usize) {
        self.connections.max.store(max, Ordering::Relaxed);
    }

    /// The connections that are open.
    pub(crate) fn table(&self) -> &Table {
        &self.connections.table
    }

    /// How many connections all doors may have together, if that is limited.
    pub fn connections_max(&self) -> Option<usize> {
        Some(self.connections.max.load(Ordering::Relaxed)).filter(|max| *max != usize::MAX)
    }
}

/// The counts of one door.
#[derive(Debug, Default)]
pub struct DoorStats {
    pub name: &'static str,
    /// Whether it accepts connections itself.
    pub listens: AtomicBool,
    /// Connections that are open now.
    pub open: AtomicU64,
    pub accepted: AtomicU64,
    /// Connections that were one too many.
    pub refused: AtomicU64,
    /// Connections that were given up because the client did not take a reply.
    pub stalled: AtomicU64,
    /// Requests without a credential, or with a wrong one, where one was needed.
    pub unauthenticated: AtomicU64,
    /// Handlers that panicked.
    pub panics: AtomicU64,
    /// Shared by all doors.
    connections: Arc<Connections>,
    /// Requests by call and problem. Locked for one addition.
    requests: Mutex<ByName<ByName<u64>>>,
}

impl DoorStats {
    /// Counts a request that was answered, with the kind of its problem if it has one.
    pub fn count(&self, call: &str, problem: Option<&str>) {
        let mut requests = lock(&self.requests);
        let of_call = entry(&mut requests, call, BTreeMap::new);
        *entry(of_call, problem.unwrap_or(NO_PROBLEM), || 0) += 1;
    }

    /// All requests, by call and problem.
    pub fn requests(&self) -> Vec<(Box<str>, Box<str>, u64)> {
        let requests = lock(&self.requests);
        let rows = requests.iter().flat_map(|(call, problems)| {
            problems.iter().map(|(problem, &count)| (call.clone(), problem.clone(), count))
        });
        rows.collect()
    }

    /// A connection begins; it ends when the value is dropped. `None` if all doors together have as many as they may.
    pub fn connect(self: &Arc<DoorStats>, address: SocketAddr, now: Timestamp) -> Option<Connected> {
        let Connections { open, max, table } = &*self.connections;
        if open.fetch_add(1, Ordering::Relaxed) >= max.load(Ordering::Relaxed) {
            open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        let (live, closed) = table.enter(self.name, address, now);
        Some(Connected { door: self.clone(), live, closed: Some(closed) })
    }
}

/// A connection that is open.
#[derive(Debug)]
pub struct Connected {
    door: Arc<DoorStats>,
    live: Arc<LiveConnection>,
    closed: Option<oneshot::Receiver<()>>,
}

impl Connected {
    /// Its counts.
    pub fn live(&self) -> Arc<LiveConnection> {
        self.live.clone()
    }

    /// Resolves when an operator closes it. To be called once.
    pub fn closed(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let closed = self.closed.take();
        async move {
            let is_closed = match closed {
                Some(closed) => closed.await.is_ok(),
                None => false,
            };
            if !is_closed {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.door.connections.table.leave(&self.live);
        self.door.open.fetch_sub(1, Ordering::Relaxed);
        self.door.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value under this name, without a copy of the name if it is there already.
fn entry<'a, T>(map: &'a mut ByName<T>, name: &str, make: impl FnOnce() -> T) -> &'a mut T {
    let name = if map.contains_key(name) || map.len() < NAMES_MAX { name } else { OTHER };
    if !map.contains_key(name) {
        map.insert(name.into(), make());
    }
    map.get_mut(name).expect("it was put there if it was not")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    #[test]
    fn requests_are_counted_by_call_and_problem_and_the_table_is_bounded() {
        let doors = Doors::default();
        doors.door("http").count("get", None);
        doors.door("http").count("get", None);
        doors.door("http").count("get", Some("busy"));
        doors.door("sqs").count("send", None);
        let all = doors.all();
        assert_eq!(all.iter().map(|door| door.name).collect::<Vec<_>>(), ["http", "sqs"]);
        let row = |call: &str, problem: &str, count| (Box::from(call), Box::from(problem), count);
        assert_eq!(all[0].requests(), [row("get", "busy", 1), row("get", "none", 2)]);
        for n in 0..1_000 {
            all[1].count(&format!("call-{n}"), None);
        }
        assert_eq!(all[1].requests().len(), NAMES_MAX + 1);
        assert!(all[1].requests().contains(&row(OTHER, "none", 1_000 - (NAMES_MAX as u64 - 1))));
    }

    #[test]
    fn a_connection_counts_until_it_ends() {
        let door = Doors::default().door("http");
        let (one, two) = (
            door.connect(peer(), Timestamp(0)).expect("a place"),
            door.connect(peer(), Timestamp(0)).expect("a place"),
        );
        drop(one);
        assert_eq!((door.open.load(Ordering::Relaxed), door.accepted.load(Ordering::Relaxed)), (1, 2));
        drop(two);
        assert_eq!(door.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_doors_together_have_a_largest_number_of_connections() {
        let doors = Doors::default();
        let (http, sqs) = (doors.door("http"), doors.door("sqs"));
        assert_eq!(doors.connections_max(), None);
        doors.limit_connections(2);
        assert_eq!(doors.connections_max(), Some(2));
        let one = http.connect(peer(), Timestamp(0)).expect("the first");
        let two = sqs.connect(peer(), Timestamp(0)).expect("the second");
        assert!(http.connect(peer(), Timestamp(0)).is_none() && sqs.connect(peer(), Timestamp(0)).is_none());
        assert_eq!(http.accepted.load(Ordering::Relaxed), 1);
        drop(two);
        assert!(http.connect(peer(), Timestamp(0)).is_some(), "a place is free again");
        drop(one);
    }
}
