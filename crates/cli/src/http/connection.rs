//! One HTTP/1.1 connection, for one request at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::connect::{CONNECT_PATIENCE, host_of};
use crate::exit::Exit;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest answer.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A connection that is opened again if the server closes it between two requests.
pub(crate) struct Connection {
    address: String,
    tls: Option<Arc<ClientConfig>>,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects to `HOST:PORT`.
    pub(crate) async fn open(address: &str) -> anyhow::Result<Connection> {
        Connection::open_over(address, None).await
    }

    /// As [`Connection::open`], over TLS if there is a configuration for it.
    pub(crate) async fn open_over(
        address: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> anyhow::Result<Connection> {
        let sender = open(address, tls.as_ref()).await?;
        Ok(Connection { address: address.to_owned(), tls, sender })
    }

    /// Sends a request and reads the whole answer: its status and its body.
    pub(crate) async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(u16, Bytes)> {
        // Waits as well until the connection's task has seen the end of the last answer.
        if self.sender.ready().await.is_err() {
            self.sender = open(&self.address, self.tls.as_ref()).await?;
        }
        let exchange = async {
            let reply = self.sender.send_request(request).await.map_err(|error| match error.is_parse() {
                true => anyhow!(
                    "the server at {} did not answer in HTTP. If it has a certificate, its address is https://{}",
                    self.address,
                    self.address
                ),
                false => anyhow!(error).context("the connection broke"),
            })?;
            let status = reply.status().as_u16();
            let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
            let body = body.map_err(|error| anyhow!(error)).context("the answer broke off")?;
            Ok((status, body.to_bytes()))
        };
        match tokio::time::timeout(PATIENCE, exchange).await {
            Ok(answered) => answered.map_err(|error: anyhow::Error| error.context(Exit::Unreachable)),
            Err(_) => Err(anyhow!(Exit::Unreachable).context("the server did not answer in time")),
        }
    }
}

async fn open(address: &str, tls: Option<&Arc<ClientConfig>>) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let connecting = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(address));
    let socket = match connecting.await {
        Ok(socket) => socket.context(Exit::Unreachable)?,
        Err(_) => return Err(anyhow!(Exit::Unreachable).context("no answer in time")),
    };
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return begin(socket).await };
    let name = ServerName::try_from(host_of(address).to_owned()).context(Exit::NotUnderstood)?;
    let connecting = TlsConnector::from(tls.clone()).connect(name, socket);
    match tokio::time::timeout(CONNECT_PATIENCE, connecting).await {
        Ok(Ok(stream)) => begin(stream).await,
        Ok(Err(error)) => Err(anyhow!(error).context("the TLS handshake failed").context(Exit::Unreachable)),
        Err(_) => Err(anyhow!(Exit::Unreachable).context("no answer in time")),
    }
}

async fn begin<S>(stream: S) -> anyhow::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.context(Exit::Unreachable)?;
    // Ends with the connection. A request without an answer then fails.
    tokio::spawn(connection);
    Ok(sender)
}
