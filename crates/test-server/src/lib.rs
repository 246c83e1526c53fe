//! A real server inside a test, whose clock the test moves.
//!
//! It is the product itself, with the same groups, retries and API, on a log in memory and a port of its own. Only
//! its clock is different: it stands still until the test moves it, so a backoff of half a minute or a lease of an
//! hour is over at once. Handlers and network connections still take real time.
//!
//! The server knows nothing of the client that talks to it. A test connects with whatever it tests:
//!
//! ```
//! use std::time::Duration;
//! use forebay_test::TestServer;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), forebay_test::TestError> {
//! let server = TestServer::start().await?;
//! // With the SDK: let client = forebay_client::Client::connect(server.url()).await?;
//! assert!(server.url().starts_with("http://127.0.0.1:"));
//!
//! server.advance(Duration::from_secs(3_600)).await;
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::broker::{Broker, BrokerConfig, Running};
use forebay_broker::clock::Clock;
use forebay_doors::native;
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// The largest frame of a log in memory.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// How long a test waits, in real time, for a group to make progress.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(1);
/// A group that reports the same counts this often in a row waits for the clock, not for a consumer.
const POLLS_ALIKE: u32 = 8;
/// How long open connections may take to end when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A server inside a test. It stops when this value is dropped.
pub struct TestServer {
    address: SocketAddr,
    url: String,
    clock: ClockKind,
    engine: MemoryEngine,
    grpc: ForebayClient<Channel>,
    /// Absent once the server was stopped.
    serving: Option<Serving>,
}

struct Serving {
    broker: Broker,
    running: Running,
    door: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockKind {
    Still,
    Running,
}

/// How a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupState {
    /// Messages that are neither settled nor parked.
    pub lag: u64,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages that wait for their retry.
    pub waiting: u64,
    /// Messages that consumers hold.
    pub in_flight: u64,
    /// Messages that were set aside.
    pub parked: u64,
}

/// Why the test server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// The log, the port or the connection could not be opened.
    #[error("the test server did not start: {cause}")]
    NotStarted {
        /// The error, as text.
        cause: String,
    },
    /// The server did not report on the group, for example because there is no such group.
    #[error("the test server refused: {detail}. group=`{group}`")]
    Refused {
        /// The group, as `stream/group`.
        group: String,
        /// The server's words.
        detail: String,
    },
    /// At least one message is neither settled nor parked, and moving the clock does not change that.
    #[error("the group makes no progress. group=`{group}` lag=`{lag}` in_flight=`{in_flight}`")]
    Stuck {
        /// The group, as `stream/group`.
        group: String,
        /// Messages that are neither settled nor parked.
        lag: u64,
        /// Messages that consumers hold.
        in_flight: u64,
    },
}

/// Seals the receipts of the server. A test's receipts protect nothing, so they may be the same in every run.
const SECRET: [u8; 32] = [7; 32];

impl TestServer {
    /// Starts an empty server on a port of its own. Its clock stands still until [`TestServer::advance`] moves it.
    pub async fn start() -> Result<TestServer, TestError> {
        TestServer::with_clock(ClockKind::Still).await
    }

    /// Starts an empty server whose clock runs like any other.
    pub async fn start_in_real_time() -> Result<TestServer, TestError> {
        TestServer::with_clock(ClockKind::Running).await
    }

    async fn with_clock(clock: ClockKind) -> Result<TestServer, TestError> {
        let log = MemoryLog::new(BrokerConfig::new(SECRET).driver.shard, FRAME_BYTES_MAX);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        TestServer::open(MemoryEngine::new(log), address, clock).await
    }

    async fn open(
        engine: MemoryEngine,
        address: SocketAddr,
        kind: ClockKind,
    ) -> Result<TestServer, TestError> {
        let failed = |error: &dyn std::error::Error| TestError::NotStarted { cause: error.to_string() };
        let clock = match kind {
            ClockKind::Still => Clock::still(),
            ClockKind::Running => Clock::start(),
        };
        let listener = TcpListener::bind(address).await.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let opened = Broker::open(Arc::new(engine.another()), clock, BrokerConfig::new(SECRET)).await;
        let (broker, running) = opened.map_err(|error| failed(&error))?;
        let serve = native::serve(broker.entrance(), listener, broker.stopping());
        let door = tokio::spawn(async move {
            // It ends with the broker. A socket that fails shows in whatever the test does next.
            let _ = serve.await;
        });
        let url = format!("http://{address}");
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| failed(&error))?;
        let grpc = ForebayClient::new(endpoint.connect_lazy());
        let serving = Some(Serving { broker, running, door });
        Ok(TestServer { address, url, clock: kind, engine, grpc, serving })
    }

    /// Where the server listens, as `http://HOST:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server. Connections are closed, and its port becomes free.
    pub async fn stop(&mut self) {
        if let Some(Serving { broker, running, door }) = self.serving.take() {
            broker.stop();
            let _ = running.await;
            drop(broker);
            let _ = tokio::time::timeout(STOP_PATIENCE, door).await;
        }
    }

    /// Stops the server and starts it again on the same port, with everything that was durable.
    pub async fn restart(&mut self) -> Result<(), TestError> {
        self.stop().await;
        *self = TestServer::open(self.engine.another(), self.address, self.clock).await?;
        Ok(())
    }

    /// Lets this much time pass at the server, at once. Everything that becomes due is then on its way: retries,
    /// delayed messages, leases that run out, the next messages of a group with a rate. Has no effect on a server
    /// that runs in real time.
    pub async fn advance(&self, by: Duration) {
        if let Some(serving) = &self.serving {
            serving.broker.advance(by).await;
        }
    }

    /// How long it is until something becomes due at the server. `None`: nothing will, by itself.
    pub async fn next_due(&self) -> Option<Duration> {
        let broker = &self.serving.as_ref()?.broker;
        let due = broker.next_due().await?;
        Some(due.since(broker.clock().now()))
    }

    /// How a group stands.
    pub async fn group(&self, stream: &str, group: &str) -> Result<GroupState, TestError> {
        let request = v1::GetGroupRequest { stream: stream.into(), group: group.into() };
        let report = self.grpc.clone().get_group(request).await.map_err(|status| TestError::Refused {
            group: format!("{stream}/{group}"),
            detail: status.message().to_owned(),
        })?;
        let report = report.into_inner();
        Ok(GroupState {
            lag: report.lag,
            ready: report.ready,
            waiting: report.waiting,
            in_flight: report.in_flight,
            parked: report.parked,
        })
    }

    /// Waits until every message of the group is settled or parked, and says how the group then stands. Whenever
    /// the group waits for time to pass, the clock is moved to where something becomes due.
    pub async fn until_settled(&self, stream: &str, group: &str) -> Result<GroupState, TestError> {
        let give_up = Instant::now() + PATIENCE;
        let (mut before, mut alike) = (None, 0);
        loop {
            let state = self.group(stream, group).await?;
            if state.lag == 0 {
                return Ok(state);
            }
            alike = if before == Some(state) { alike + 1 } else { 0 };
            before = Some(state);
            if state.in_flight == 0
                && alike >= POLLS_ALIKE
                && let Some(due) = self.next_due().await
            {
                alike = 0;
                self.advance(due).await;
            }
            if Instant::now() >= give_up {
                let group = format!("{stream}/{group}");
                return Err(TestError::Stuck { group, lag: state.lag, in_flight: state.in_flight });
            }
            tokio::time::sleep(POLL).await;
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
        if let Some(serving) = &self.serving {
            serving.broker.stop();
            serving.door.abort();
        }
    }
}
