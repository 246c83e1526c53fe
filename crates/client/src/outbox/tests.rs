//! Relays against a real server and real databases: killed at any point, two at a time, with rows that are refused.

mod killed;
mod story;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_test::TestServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{PostgresOutbox, SqliteOutbox};
use crate::admin::streams::ReadQuery;
use crate::services_tests as services;
use crate::{Client, Message, StoredMessage};

/// A real server in this process, and a way to it that can be cut. Both go with this value.
struct Server {
    client: Client,
    way: JoinSet<()>,
    /// Where clients find it.
    address: SocketAddr,
    server: TestServer,
}

async fn server() -> Server {
    let server = TestServer::start_in_real_time().await.expect("it starts");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut way = JoinSet::new();
    way.spawn(pass_on(listener, server.address()));
    // Short, so that a relay sees that something is wrong.
    let client = Client::builder(address.to_string()).retry_for(Duration::from_millis(300));
    let client = client.connect().await.expect("the server answers");
    Server { client, way, address, server }
}

/// Dropping this stops the task that holds the other end.
type Stop = oneshot::Sender<()>;

/// How to stop something, and what resolves then.
fn stop() -> (Stop, impl Future<Output = ()> + Send + 'static) {
    let (stop, stopped) = oneshot::channel();
    (stop, async { drop(stopped.await) })
}

/// Connections end with this future.
async fn pass_on(listener: TcpListener, to: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        let (mut here, _) = listener.accept().await.expect("a connection");
        connections.spawn(async move {
            let mut there = TcpStream::connect(to).await.expect("the server is there");
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        });
    }
}

impl Server {
    /// From now on the server cannot be reached.
    async fn leave(&mut self) {
        self.way.shutdown().await;
    }

    async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the same port");
        self.way.spawn(pass_on(listener, self.server.address()));
    }
}

/// Everything that is in a stream.
async fn stored(client: &Client, stream: &str) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    let mut query = ReadQuery { from: 1, limit: 1_000, ..ReadQuery::default() };
    loop {
        let Ok(page) = client.read_messages(stream, query.clone()).await else { return messages };
        messages.extend(page.messages);
        if page.next > page.last_seq {
            return messages;
        }
        query.from = page.next;
    }
}

fn bodies(messages: &[StoredMessage]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.body()).into_owned()).collect()
}

/// Waits until there are so many messages.
async fn arrived(client: &Client, stream: &str, count: usize) -> Vec<StoredMessage> {
    let patience = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let messages = stored(client, stream).await;
            if messages.len() >= count {
                return messages;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    match patience.await {
        Ok(messages) => messages,
        Err(_) => panic!("only {:?} came", bodies(&stored(client, stream).await)),
    }
}

async fn sqlite() -> (services::SqliteFile, SqliteOutbox) {
    let file = services::sqlite(8).await;
    let outbox = SqliteOutbox::new(file.pool.clone());
    outbox.create_table().await.expect("a table");
    (file, outbox)
}

async fn postgres() -> Option<(sqlx::PgPool, PostgresOutbox, String)> {
    let pool = services::postgres(10).await?;
    let table = services::unique("outbox");
    let outbox = PostgresOutbox::with_table(pool.clone(), &table).expect("a name");
    outbox.create_table().await.expect("a table");
    Some((pool, outbox, table))
}

/// Every message once, and those of one key in order. A body is `key/number`.
#[track_caller]
fn check_exact(messages: &[StoredMessage], keys: u64, each: u64) {
    let mut last: HashMap<String, u64> = HashMap::new();
    for body in bodies(messages) {
        let (key, number) = body.split_once('/').expect("a key and a number");
        let number: u64 = number.parse().expect("a number");
        let before = last.insert(key.to_owned(), number);
        assert_eq!(before.map_or(0, |before| before + 1), number, "of key {key}");
    }
    assert_eq!(messages.len() as u64, keys * each);
}

fn numbered(key: u64, number: u64) -> Message {
    Message::new(format!("{key}/{number}")).key(key.to_string())
}
