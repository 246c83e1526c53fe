//! A real server inside a test, whose clock the test moves.
//!
//! It is the server itself: the same groups, the same retries and the same door, on a log in memory. Only its clock
//! stands still until it is told to move, so that a backoff of half a minute or a lease of an hour is
//! over at once. What handlers do in the meantime takes the time that it takes.
//!
//! ```
//! use std::time::Duration;
//! use forebay_client::testing::TestServer;
//! use forebay_client::{Fault, Job, Payload, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Ping;
//!
//! impl Payload for Ping {
//!     const TYPE: &'static str = "ping";
//! }
//!
//! async fn fails_twice(_: (), job: Job<Ping>) -> Result<(), Fault> {
//!     match job.info.attempt() {
//!         1 | 2 => Err(Fault::retry_after(Duration::from_secs(3_600), "not now")),
//!         _ => Ok(()),
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let server = TestServer::start().await?;
//!     let worker = Worker::new(server.client(), "pings", "pool", ())
//!         .ensure_group(Default::default())
//!         .on(fails_twice)
//!         .start()
//!         .await?;
//!     server.client().publish("pings", &Ping).await?;
//!
//!     // Two hours, in a moment.
//!     let group = server.until_settled("pings", "pool").await?;
//!     assert_eq!((group.lag, group.parked), (0, 0));
//!     assert_eq!(worker.shutdown().await?.retried, 2);
//!     Ok(())
//! }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::broker::{Broker, BrokerConfig};
use forebay_broker::clock::Clock;
use forebay_doors::native;
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::admin::groups::GroupReport;
use crate::client::Client;
use crate::clock;
use crate::error::{CallError, ConnectError};

/// The largest frame of a log in memory.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// How long a test waits, by its own watch, for what should come at once.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(1);
/// A group that looks the same this often in a row waits for its clock and not for a worker.
const LOOKS_ALIKE: u32 = 8;

/// A server inside a test.
pub struct TestServer {
    broker: Broker,
    client: Client,
    url: String,
    door: JoinHandle<()>,
}

/// Why a test server does not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    #[error("the server did not start: {why}")]
    NotStarted { why: String },
    #[error("the server cannot be reached")]
    Unreachable(#[from] ConnectError),
    #[error("the server refused")]
    Refused(#[from] CallError),
    /// Some message is neither settled nor parked, and time does not change that.
    #[error(
        "the group is stuck: it has {lag} messages to do, {in_flight} of them in the hands of consumers. \
         group=`{group}`"
    )]
    Stuck { group: String, lag: u64, in_flight: u64 },
}

impl TestServer {
    /// Starts an empty server, on a port of its own.
    pub async fn start() -> Result<TestServer, TestError> {
        let failed = |error: &dyn std::error::Error| TestError::NotStarted { why: error.to_string() };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| failed(&error))?;
        let config = BrokerConfig::new(secret);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
        let opened = Broker::open(Arc::new(engine), Clock::still(), config).await;
        let (broker, _) = opened.map_err(|error| failed(&error))?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let serving = native::serve(broker.clone(), listener, broker.stopping());
        let door = tokio::spawn(async move {
            // It ends with the broker. A socket that fails shows in whatever the test does next.
            let _ = serving.await;
        });
        let url = format!("http://{address}");
        let client = Client::connect(&url).await?;
        Ok(TestServer { broker, client, url, door })
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where the server is, for programs that connect by themselves.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lets this much time pass at the server, at once. Whatever it makes due is then on its way: retries,
    /// delayed messages, leases that lapse, the next messages of a group with a rate.
    pub async fn advance(&self, by: Duration) {
        self.broker.advance(by).await;
    }

    /// How long it is until something becomes due at the server. None: nothing will, by itself.
    pub async fn next_due(&self) -> Option<Duration> {
        let due = self.broker.next_due().await?;
        Some(due.since(self.broker.clock().now()))
    }

    /// Waits until every message of the group is settled or parked, and says how the group then stands. Whenever
    /// everyone waits, the clock is moved to where something becomes due.
    pub async fn until_settled(&self, stream: &str, group: &str) -> Result<GroupReport, TestError> {
        let give_up = clock::now() + PATIENCE;
        let mut before = (0, 0, 0, 0);
        let mut alike = 0;
        loop {
            let report = self.client.group(stream, group).await?;
            if report.lag == 0 {
                return Ok(report);
            }
            let now = (report.lag, report.in_flight, report.ready, report.waiting);
            alike = if now == before { alike + 1 } else { 0 };
            before = now;
            if report.in_flight == 0
                && alike >= LOOKS_ALIKE
                && let Some(due) = self.next_due().await
            {
                alike = 0;
                self.advance(due).await;
            }
            if clock::now() >= give_up {
                let group = format!("{stream}/{group}");
                return Err(TestError::Stuck { group, lag: report.lag, in_flight: report.in_flight });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.broker.stop();
        self.door.abort();
    }
}
