//! The connections of clients that are open, of all doors in one table, so that an operator can see them and close one.
//!
//! A connection is in the table from the moment a door accepts it until it ends, so the table is as large as the limits
//! of connections allow. The counts are atomic, and the table is locked when a connection begins or ends and when an
//! operator looks, never for a message.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::types::Timestamp;
use tokio::sync::oneshot;

use crate::access::Principal;
use crate::report::Page;

/// A connection that is open.
#[derive(Debug)]
pub struct LiveConnection {
    id: u64,
    door: &'static str,
    address: SocketAddr,
    since: Timestamp,
    requests: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    consumers: AtomicU64,
    /// The client that the last request was made by. Locked to compare it.
    who: Mutex<Option<Arc<str>>>,
    /// Taken by the operator who closes the connection.
    close: Mutex<Option<oneshot::Sender<()>>>,
}

impl LiveConnection {
    /// A request has come, of this client if it is known.
    pub fn request(&self, who: Option<&Principal>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(who) = who else { return };
        let mut last = lock(&self.who);
        if last.as_deref() != Some(who.name()) {
            *last = Some(who.name_shared());
        }
    }

    pub fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn report(&self) -> ConnectionReport {
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        ConnectionReport {
            id: self.id,
            door: self.door,
            address: self.address,
            since: self.since,
            who: lock(&self.who).clone(),
            requests: value(&self.requests),
            read: value(&self.read),
            written: value(&self.written),
            consumers: value(&self.consumers),
        }
    }
}

/// A connection, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Of its own, until the server starts anew.
    pub id: u64,
    /// The door that accepted it.
    pub door: &'static str,
    pub address: SocketAddr,
    pub since: Timestamp,
    /// The client that the last request was made by. None: no client was recognised so far.
    pub who: Option<Arc<str>>,
    pub requests: u64,
    /// Bytes of requests and of answers, without those of TLS.
    pub read: u64,
    pub written: u64,
    /// Consumers that are members of their groups through it.
    pub consumers: u64,
}

/// The connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    open: BTreeMap<u64, Arc<LiveConnection>>,
    by_address: HashMap<SocketAddr, u64>,
}

impl Table {
    /// A connection begins. The receiver resolves when an operator closes it.
    pub(crate) fn enter(
        &self,
        door: &'static str,
        address: SocketAddr,
        since: Timestamp,
    ) -> (Arc<LiveConnection>, oneshot::Receiver<()>) {
        let (close, closed) = oneshot::channel();
        let mut inner = lock(&self.0);
        inner.last += 1;
        let id = inner.last;
        let connection = Arc::new(LiveConnection {
            id,
            door,
            address,
            since,
            requests: AtomicU64::new(0),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            consumers: AtomicU64::new(0),
            who: Mutex::default(),
            close: Mutex::new(Some(close)),
        });
        inner.open.insert(id, connection.clone());
        inner.by_address.insert(address, id);
        (connection, closed)
    }

    pub(crate) fn leave(&self, connection: &LiveConnection) {
        let mut inner = lock(&self.0);
        inner.open.remove(&connection.id);
        if inner.by_address.get(&connection.address) == Some(&connection.id) {
            inner.by_address.remove(&connection.address);
        }
    }

    /// The connections after the one with this id, the oldest first.
    pub(crate) fn list(&self, after: u64, limit: usize) -> Page<ConnectionReport, u64> {
        let inner = lock(&self.0);
        let mut rest = inner.open.range(after.saturating_add(1)..).map(|(_, connection)| connection.report());
        let items: Vec<ConnectionReport> = rest.by_ref().take(limit).collect();
        let next = rest.next().and(items.last()).map(|last| last.id);
        Page { items, next }
    }

    /// Ends a connection. False: no connection has this id.
    pub(crate) fn close(&self, id: u64) -> bool {
        let found = lock(&self.0).open.get(&id).cloned();
        let Some(connection) = found else { return false };
        // One that was closed already is about to go.
        if let Some(close) = lock(&connection.close).take() {
            let _ = close.send(());
        }
        true
    }

    /// A consumer counts for the connection from this address until the value is dropped.
    pub(crate) fn consume(&self, address: Option<SocketAddr>) -> Option<Consuming> {
        let inner = lock(&self.0);
        let connection = inner.open.get(inner.by_address.get(&address?)?)?.clone();
        connection.consumers.fetch_add(1, Ordering::Relaxed);
        Some(Consuming(connection))
    }
}

/// A consumer that counts for its connection.
#[derive(Debug)]
pub(crate) struct Consuming(Arc<LiveConnection>);

impl Drop for Consuming {
    fn drop(&mut self) {
        self.0.consumers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn a_connection_is_listed_with_its_counts_until_it_ends() {
        let table = Table::default();
        let (one, _closed) = table.enter("http", address(1), Timestamp(7));
        let (two, _closed) = table.enter("sqs", address(2), Timestamp(8));
        one.request(None);
        one.request(Some(&Principal::owner_as("alice")));
        one.request(None);
        one.read(5);
        one.wrote(9);
        let consumer = table.consume(Some(address(1))).expect("the connection is known");
        let expected = ConnectionReport {
            id: 1,
            door: "http",
            address: address(1),
            since: Timestamp(7),
            who: Some("alice".into()),
            requests: 3,
            read: 5,
            written: 9,
            consumers: 1,
        };
        assert_eq!(table.list(0, 10).items[0], expected);
        drop(consumer);
        assert_eq!(table.list(0, 10).items[0].consumers, 0);
        assert!(table.consume(Some(address(9))).is_none() && table.consume(None).is_none());
        table.leave(&one);
        assert_eq!(table.list(0, 10).items.iter().map(|one| one.id).collect::<Vec<_>>(), [2]);
        table.leave(&two);
        let inner = lock(&table.0);
        assert!(inner.open.is_empty() && inner.by_address.is_empty(), "nothing is left behind");
    }

    #[test]
    fn a_list_goes_on_after_an_id() {
        let table = Table::default();
        let open: Vec<_> = (1..=5).map(|port| table.enter("http", address(port), Timestamp(0))).collect();
        let page = table.list(0, 2);
        assert_eq!((page.items.len(), page.next), (2, Some(2)));
        let page = table.list(2, 3);
        assert_eq!((page.items.len(), page.next), (3, None));
        assert_eq!(table.list(5, 3).items, []);
        assert_eq!(table.list(u64::MAX, 3).items, []);
        drop(open);
    }

    #[test]
    fn an_address_that_is_used_again_is_the_new_connection() {
        let table = Table::default();
        let (old, _closed) = table.enter("http", address(1), Timestamp(0));
        let (new, _closed) = table.enter("sqs", address(1), Timestamp(1));
        table.leave(&old);
        let consumer = table.consume(Some(address(1)));
        assert!(consumer.is_some_and(|consumer| consumer.0.id == new.id));
    }

    #[tokio::test]
    async fn a_connection_is_closed_once() {
        let table = Table::default();
        let (_one, closed) = table.enter("http", address(1), Timestamp(0));
        assert!(!table.close(2));
        assert!(table.close(1));
        assert_eq!(closed.await, Ok(()));
        assert!(table.close(1), "it is still there until its door lets go of it");
    }
}
