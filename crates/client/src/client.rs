//! The connection to a server, and where everything else is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::v1::ListStreamsRequest;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::runtime::Handle as Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::error::{CallError, ConnectError};
use crate::publish::Streams;

/// Where a server listens if nobody says otherwise.
const PORT: u16 = 7070;
/// Bytes that may come on one call, and on the connection, before this side has read them: as the server has it.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest frame of HTTP/2 that may come: the fewer, the fewer system calls.
const FRAME_MAX: u32 = 256 << 10;
/// A connection that says nothing is asked whether it is still there, and given up if it does not answer.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// What one reply may hold: as many messages as fit the largest credit.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// How long a server may take to accept a connection and to answer on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long something is tried that may go better later.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// A connection to a server.
///
/// Cheap to clone; all clones share one connection, which comes back by itself when it breaks. A call that is made
/// while there is none fails with advice to try later. What is published is tried again for a while.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_client::Client;
///
/// let client = Client::connect("http://127.0.0.1:7070").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    grpc: ForebayClient<Channel>,
    /// Ends with the last handle.
    streams: Streams,
    server: String,
    retry_for: Duration,
}

impl Client {
    /// Connects to `http://HOST:PORT`, or `HOST:PORT`; the port is 7070 if there is none. Fails if no server
    /// answers there.
    pub async fn connect(url: impl Into<String>) -> Result<Client, ConnectError> {
        Client::builder(url).connect().await
    }

    /// Connects in some other way than usual.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use forebay_client::Client;
    ///
    /// let client = Client::builder("127.0.0.1:7070")
    ///     .application("billing")
    ///     .connect_timeout(Duration::from_secs(2))
    ///     .retry_for(Duration::from_secs(300))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            url: url.into(),
            application: None,
            connect_timeout: CONNECT_TIMEOUT,
            retry_for: RETRY_FOR,
        }
    }

    /// The server's host and port.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// The generated client of `forebay.v1` on the same connection, for what this one has no method for. The
    /// messages are in [`crate::v1`].
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::v1;
    ///
    /// let request = v1::ListJobsRequest { stream: "emails".into(), group: "senders".into() };
    /// for job in client.raw().list_jobs(request).await?.into_inner().jobs {
    ///     println!("{} of {}", job.done, job.matched);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw(&self) -> ForebayClient<Channel> {
        self.grpc()
    }

    pub(crate) fn grpc(&self) -> ForebayClient<Channel> {
        self.shared.grpc.clone()
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.shared.streams
    }

    /// How long something is tried that may go better later.
    pub(crate) fn retry_for(&self) -> Duration {
        self.shared.retry_for
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.shared.server).finish_non_exhaustive()
    }
}

/// How to connect. Made by [`Client::builder`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    url: String,
    application: Option<String>,
    connect_timeout: Duration,
    retry_for: Duration,
}

impl ClientBuilder {
    /// What the program is called, for whoever looks at the server's side of the connection.
    #[must_use]
    pub fn application(mut self, name: impl Into<String>) -> ClientBuilder {
        self.application = Some(name.into());
        self
    }

    /// How long the server may take to accept a connection and to answer on it. Ten seconds unless said.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// How long a message is sent again and again if it may go better later: the stream is full, the server is
    /// restarting, the network is down. A minute unless said.
    #[must_use]
    pub fn retry_for(mut self, time: Duration) -> ClientBuilder {
        self.retry_for = time;
        self
    }

    /// Connects, and asks the server something, so that whoever has a client has been answered once.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let server = authority(&self.url)?;
        let endpoint = self.endpoint(&server)?;
        let answered = tokio::time::timeout(self.connect_timeout, ask(&endpoint, &server)).await;
        let (channel, grpc) = answered.map_err(|_| ConnectError::Silent { server: server.clone() })??;
        let streams = Streams::new(Runtime::current(), channel);
        Ok(Client { shared: Arc::new(Shared { grpc, streams, server, retry_for: self.retry_for }) })
    }

    /// A client that connects when it is first needed: for programs that may start before their server does. An address
    /// that cannot be one is refused all the same.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Client;
    ///
    /// let client = Client::builder("http://127.0.0.1:7070").connect_lazy()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_lazy(self) -> Result<Client, ConnectError> {
        let server = authority(&self.url)?;
        let channel = self.endpoint(&server)?.connect_lazy();
        let grpc = grpc_on(&channel);
        let streams = Streams::new(Runtime::current(), channel);
        Ok(Client { shared: Arc::new(Shared { grpc, streams, server, retry_for: self.retry_for }) })
    }

    fn endpoint(&self, server: &str) -> Result<Endpoint, ConnectError> {
        let endpoint = Endpoint::from_shared(format!("http://{server}"))
            .map_err(|_| ConnectError::InvalidUrl { url: self.url.clone() })?;
        let sdk = concat!("forebay-client/", env!("CARGO_PKG_VERSION"));
        let agent = match &self.application {
            Some(name) => format!("{name} {sdk}"),
            None => sdk.to_owned(),
        };
        let endpoint = endpoint
            .user_agent(agent)
            .map_err(|_| ConnectError::InvalidName { name: self.application.clone().unwrap_or_default() })?;
        Ok(endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_MAX)
            .http2_keep_alive_interval(KEEPALIVE_EVERY)
            .keep_alive_timeout(KEEPALIVE_ANSWER)
            .keep_alive_while_idle(true))
    }
}

fn grpc_on(channel: &Channel) -> ForebayClient<Channel> {
    ForebayClient::new(channel.clone()).max_decoding_message_size(REPLY_BYTES_MAX)
}

/// Connects and waits for one answer: a port may be open with nobody behind it, or with somebody else.
async fn ask(endpoint: &Endpoint, server: &str) -> Result<(Channel, ForebayClient<Channel>), ConnectError> {
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| ConnectError::Unreachable { server: server.to_owned(), cause: Arc::new(error) })?;
    let mut grpc = grpc_on(&channel);
    let question = ListStreamsRequest { limit: 1, ..ListStreamsRequest::default() };
    match grpc.list_streams(question).await.map_err(CallError::from) {
        // A refusal is an answer too. Whatever is asked next may be allowed, or come when the server is ready.
        Ok(_) | Err(CallError::Refused { .. }) => Ok((channel, grpc)),
        Err(CallError::NotUnderstood(cause)) => {
            Err(ConnectError::NotForebay { server: server.to_owned(), cause })
        }
        Err(CallError::Unreachable(cause) | CallError::Broken(cause)) => {
            Err(ConnectError::Unreachable { server: server.to_owned(), cause: Arc::new(*cause) })
        }
    }
}

/// Host and port of a URL.
fn authority(url: &str) -> Result<String, ConnectError> {
    let invalid = || ConnectError::InvalidUrl { url: url.to_owned() };
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some(("https", _)) => return Err(ConnectError::NoTls { url: url.to_owned() }),
        Some((scheme, _)) => return Err(ConnectError::UnknownScheme { scheme: scheme.to_owned() }),
        None => url,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let parsed: tonic::codegen::http::uri::Authority = rest.parse().map_err(|_| invalid())?;
    let host = parsed.host();
    if host.is_empty() || rest.contains('@') {
        return Err(invalid());
    }
    // What comes behind the host is a port, or else nothing.
    match (&rest[host.len()..], parsed.port_u16()) {
        ("", _) => Ok(format!("{host}:{PORT}")),
        (_, Some(port)) if port > 0 => Ok(format!("{host}:{port}")),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_understood_in_the_ways_that_people_write_it() {
        for (url, expected) in [
            ("http://127.0.0.1:7070", "127.0.0.1:7070"),
            ("http://127.0.0.1:7070/", "127.0.0.1:7070"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("queue.internal", "queue.internal:7070"),
            ("http://[::1]:9000", "[::1]:9000"),
            ("[::1]", "[::1]:7070"),
        ] {
            assert_eq!(authority(url).expect(url), expected);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for url in [
            "",
            "http://",
            "http://a:b",
            "http://a:0",
            "a:70000",
            "http://me:secret@a:1",
            "http://a/b",
            "a b",
        ] {
            let error = authority(url).expect_err(url);
            assert!(matches!(error, ConnectError::InvalidUrl { .. }), "{url}: {error}");
        }
        assert!(matches!(authority("https://a:1"), Err(ConnectError::NoTls { .. })));
        assert!(matches!(authority("redis://a:1"), Err(ConnectError::UnknownScheme { .. })));
    }
}
