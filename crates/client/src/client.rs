//! The connection to a server, from which everything else starts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::v1::ListStreamsRequest;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::runtime::Handle as Runtime;
use tonic::transport::Endpoint;

use crate::channel::{Channel, Credential};
use crate::error::{CallError, ConnectError, ProblemKind};
use crate::publish::Streams;
use crate::tls::Connector;

/// The port of a server that is addressed without one.
const PORT: u16 = 7070;
/// Bytes that the server may send on one call, and on the connection, before this side has read them. The server has
/// the same limits.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest HTTP/2 frame. Fewer frames need fewer system calls.
const FRAME_MAX: u32 = 256 << 10;
/// A quiet connection is pinged this often, and closed if no answer comes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// The largest reply: as many messages as fit the largest credit.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// How long a server may take to accept a connection and to answer on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a publish is retried.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// A connection to a server.
///
/// Cheap to clone. All clones share one connection, which reconnects by itself. A call made while there is no
/// connection fails with [`Advice::RetryLater`](crate::Advice); publishing retries for a while.
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
    /// The pipelines end with the last clone of the client.
    streams: Streams,
    server: String,
    retry_for: Duration,
}

impl Client {
    /// Connects to `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`; without a port it is 7070. Fails if no
    /// server answers there.
    ///
    /// The nodes of a cluster are given with commas between them, such as `a:7070,b:7070,c:7070`. The first that
    /// answers is used. When the connection ends, because the node stopped or another one owns the log now, the client
    /// connects to the next one; messages that were not confirmed are sent again, and are stored once.
    pub async fn connect(url: impl Into<String>) -> Result<Client, ConnectError> {
        Client::builder(url).connect().await
    }

    /// Connects with settings of your own.
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
            token: None,
            ca: None,
            certificate: None,
        }
    }

    /// The server's host and port; several with commas between them.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    pub(crate) fn grpc(&self) -> ForebayClient<Channel> {
        self.shared.grpc.clone()
    }

    pub(crate) fn publish_streams(&self) -> &Streams {
        &self.shared.streams
    }

    /// How long a publish is retried.
    pub(crate) fn retry_for(&self) -> Duration {
        self.shared.retry_for
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.shared.server).finish_non_exhaustive()
    }
}

/// Settings of a [`Client`]. Made by [`Client::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect` or `connect_lazy` is called"]
pub struct ClientBuilder {
    url: String,
    application: Option<String>,
    connect_timeout: Duration,
    retry_for: Duration,
    token: Option<Token>,
    ca: Option<Vec<u8>>,
    certificate: Option<OwnCertificate>,
}

/// The certificate of the client and its key, which is not shown.
#[derive(Clone)]
struct OwnCertificate {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnCertificate(..)")
    }
}

/// A token, which is not shown.
#[derive(Clone)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl ClientBuilder {
    /// Sets the name of the program, which is sent as part of the user agent.
    pub fn application(mut self, name: impl Into<String>) -> ClientBuilder {
        self.application = Some(name.into());
        self
    }

    /// Sets how long the server may take to accept a connection and to answer on it. The default is ten seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a publish is retried while the stream is full, the server restarts or the network is down. The
    /// default is one minute.
    pub fn retry_for(mut self, time: Duration) -> ClientBuilder {
        self.retry_for = time;
        self
    }

    /// Sets the API token that authenticates the client, as `forebay token create` printed it. Each call carries it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Client;
    ///
    /// let token = std::env::var("FOREBAY_TOKEN")?;
    /// let client = Client::builder("http://127.0.0.1:7070").token(token).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(mut self, token: impl Into<String>) -> ClientBuilder {
        self.token = Some(Token(token.into()));
        self
    }

    /// Sets the certificates, in PEM, by which a server with an `https` address is recognised, in place of those that
    /// browsers trust: the certificate of an authority of your own, or that of the server.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Client;
    ///
    /// let ca = std::fs::read("ca.pem")?;
    /// let client = Client::builder("https://queue.internal:7070").ca_certificate(ca).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> ClientBuilder {
        self.ca = Some(pem.into());
        self
    }

    /// Sets the client's own certificate, with the certificates that signed it after it, and its private key, both in
    /// PEM. A server that knows the authority recognises the client by it, without a token.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay_client::Client;
    ///
    /// let (certificate, key) = (std::fs::read("billing.pem")?, std::fs::read("billing.key")?);
    /// let client =
    ///     Client::builder("https://queue.internal:7070").client_certificate(certificate, key).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn client_certificate(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> ClientBuilder {
        self.certificate = Some(OwnCertificate { chain: chain.into(), key: key.into() });
        self
    }

    /// Host and port of each server, and whether it is talked to with TLS.
    fn servers(&self) -> Result<Vec<(String, bool)>, ConnectError> {
        let servers = self.url.split(',').map(str::trim);
        servers.map(|one| Ok((authority(one)?, one.starts_with("https://")))).collect()
    }

    /// How servers are connected to, unless it is a single one without TLS.
    fn connector(&self, servers: &[(String, bool)]) -> Result<Option<Connector>, ConnectError> {
        if matches!(servers, [(_, false)]) {
            return Ok(None);
        }
        let own = self.certificate.as_ref().map(|own| (&own.chain[..], &own.key[..]));
        let connector = Connector::new(servers, self.ca.as_deref(), own, self.connect_timeout);
        connector.map(Some).map_err(|error| ConnectError::InvalidCertificate { cause: Arc::new(error) })
    }

    fn credential(&self) -> Result<Credential, ConnectError> {
        match &self.token {
            Some(token) => Credential::token(&token.0).ok_or(ConnectError::InvalidToken),
            None => Ok(Credential::default()),
        }
    }

    /// Connects, and makes one call to see that the server answers. Of several servers, the first that answers is used.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let servers = self.servers()?;
        let endpoint = self.endpoint(&servers)?;
        let (credential, connector) = (self.credential()?, self.connector(&servers)?);
        let mut failed = None;
        for (nth, (server, _)) in servers.iter().enumerate() {
            if let Some(connector) = &connector {
                connector.begin_at(nth);
            }
            let asked = ask(&endpoint, connector.clone(), credential.clone(), server);
            let answered = tokio::time::timeout(self.connect_timeout, asked).await;
            match answered.unwrap_or_else(|_| Err(ConnectError::Silent { server: server.clone() })) {
                Ok((channel, grpc)) => {
                    let streams = Streams::new(Runtime::current(), channel);
                    let (server, retry_for) = (names(&servers), self.retry_for);
                    return Ok(Client { shared: Arc::new(Shared { grpc, streams, server, retry_for }) });
                }
                Err(error) => failed.get_or_insert(error),
            };
        }
        Err(failed.unwrap_or_else(|| ConnectError::InvalidUrl { url: self.url.clone() }))
    }

    /// A client that connects when it is first used, for programs that may start before their server. It must be made
    /// inside a Tokio runtime and fails with [`ConnectError::NoRuntime`] otherwise.
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
        let servers = self.servers()?;
        let runtime = Runtime::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let endpoint = self.endpoint(&servers)?;
        let channel = match self.connector(&servers)? {
            Some(connector) => endpoint.connect_with_connector_lazy(connector),
            None => endpoint.connect_lazy(),
        };
        let channel = Channel::new(channel, self.credential()?);
        let grpc = grpc_on(&channel);
        let streams = Streams::new(runtime, channel);
        let (server, retry_for) = (names(&servers), self.retry_for);
        Ok(Client { shared: Arc::new(Shared { grpc, streams, server, retry_for }) })
    }

    fn endpoint(&self, servers: &[(String, bool)]) -> Result<Endpoint, ConnectError> {
        let server = servers.first().map(|(server, _)| server.as_str()).unwrap_or_default();
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

/// The servers of a client, as it shows them.
fn names(servers: &[(String, bool)]) -> String {
    servers.iter().map(|(server, _)| server.as_str()).collect::<Vec<_>>().join(",")
}

/// Connects and waits for one answer: another program, or none, may be behind an open port.
async fn ask(
    endpoint: &Endpoint,
    connector: Option<Connector>,
    credential: Credential,
    server: &str,
) -> Result<(Channel, ForebayClient<Channel>), ConnectError> {
    let connected = match connector {
        Some(connector) => endpoint.connect_with_connector(connector).await,
        None => endpoint.connect().await,
    };
    let channel = connected
        .map_err(|error| ConnectError::Unreachable { server: server.to_owned(), cause: Arc::new(error) })?;
    let channel = Channel::new(channel, credential);
    let mut grpc = grpc_on(&channel);
    let question = ListStreamsRequest { limit: 1, ..ListStreamsRequest::default() };
    match grpc.list_streams(question).await.map_err(CallError::from) {
        Err(CallError::Refused { kind: Some(ProblemKind::Unauthenticated), detail, .. }) => {
            Err(ConnectError::NotAccepted { server: server.to_owned(), detail })
        }
        // A refusal is an answer too: the next call may be allowed, or come when the server is ready.
        Ok(_) | Err(CallError::Refused { .. }) => Ok((channel, grpc)),
        Err(CallError::NotUnderstood(cause)) => {
            Err(ConnectError::NotForebay { server: server.to_owned(), cause })
        }
        Err(CallError::Unreachable(cause) | CallError::Broken(cause)) => {
            Err(ConnectError::Unreachable { server: server.to_owned(), cause })
        }
    }
}

/// Host and port of an address as people write it: `HOST`, `HOST:PORT` or `http://HOST:PORT`. The default port is 7070.
///
/// ```
/// assert_eq!(forebay_client::authority("queue.internal")?, "queue.internal:7070");
/// # Ok::<(), forebay_client::ConnectError>(())
/// ```
pub fn authority(url: &str) -> Result<String, ConnectError> {
    let invalid = || ConnectError::InvalidUrl { url: url.to_owned() };
    let rest = match url.split_once("://") {
        Some(("http" | "https", rest)) => rest,
        Some((scheme, _)) => return Err(ConnectError::UnknownScheme { scheme: scheme.to_owned() }),
        None => url,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let parsed: tonic::codegen::http::uri::Authority = rest.parse().map_err(|_| invalid())?;
    let host = parsed.host();
    if host.is_empty() || rest.contains('@') {
        return Err(invalid());
    }
    // Only a port may follow the host.
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
            ("https://queue.internal:7443/", "queue.internal:7443"),
        ] {
            assert_eq!(authority(url).expect(url), expected);
        }
    }

    #[test]
    fn several_servers_are_given_with_commas() {
        let servers = Client::builder("a, https://b:443,http://[::1]:9/").servers().expect("they are good");
        let expected = [("a:7070", false), ("b:443", true), ("[::1]:9", false)];
        assert_eq!(servers, expected.map(|(server, is_tls)| (server.to_owned(), is_tls)));
        assert_eq!(names(&servers), "a:7070,b:443,[::1]:9");
        for wrong in ["a,", ",a", "a,b c", "a,redis://b"] {
            assert!(Client::builder(wrong).servers().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_client_that_cannot_work_is_refused() {
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
        assert!(matches!(Client::builder("a:1").connect_lazy(), Err(ConnectError::NoRuntime)));
        assert!(matches!(authority("redis://a:1"), Err(ConnectError::UnknownScheme { .. })));
    }
}
