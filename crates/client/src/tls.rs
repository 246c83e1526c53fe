//! Opening connections: to which of several servers, and how a server is recognised with TLS.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("there is no certificate in PEM")]
    NoCertificate,
    #[error(transparent)]
    Refused(#[from] tokio_rustls::rustls::Error),
    #[error("the host is neither a name nor an address")]
    NoName,
}

/// Opens connections: to one server, or to any of several that serve the same clients.
#[derive(Clone)]
pub(crate) struct Connector {
    servers: Arc<[Target]>,
    /// The server that the next connection is opened to. One after the other, so that a client does not stay with a
    /// server that has just cut it off.
    next: Arc<AtomicUsize>,
    /// How long one server may take.
    patience: Duration,
}

struct Target {
    /// Host and port.
    server: String,
    /// With TLS: the settings, and the name by which it is recognised.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// For servers by host and port, and whether they are talked to with TLS. They are recognised by these
    /// certificates, or by those that browsers trust. All of them together may take so long.
    pub(crate) fn new(
        servers: &[(String, bool)],
        ca: Option<&[u8]>,
        connect_timeout: Duration,
    ) -> Result<Connector, TlsError> {
        let targets = servers.iter().map(|(server, is_tls)| {
            let tls = if *is_tls { Some((connector(ca)?, name_of(server)?)) } else { None };
            Ok(Target { server: server.clone(), tls })
        });
        let servers: Arc<[Target]> = targets.collect::<Result<_, TlsError>>()?;
        let patience = connect_timeout / u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1);
        Ok(Connector { servers, next: Arc::default(), patience })
    }

    /// The next connection is tried at this server first.
    pub(crate) fn begin_at(&self, nth: usize) {
        self.next.store(nth, Ordering::Relaxed);
    }

    async fn open(self) -> io::Result<Wire> {
        let count = self.servers.len();
        let first = self.next.load(Ordering::Relaxed);
        let mut failed = None;
        for nth in first..first + count {
            let target = &self.servers[nth % count];
            let opened = tokio::time::timeout(self.patience, target.open()).await;
            self.next.store((nth + 1) % count, Ordering::Relaxed);
            match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(wire) => return Ok(wire),
                Err(error) => failed.get_or_insert(error),
            };
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

fn connector(ca: Option<&[u8]>) -> Result<TlsConnector, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(|_| TlsError::NoCertificate)?)?;
            }
            if roots.is_empty() {
                return Err(TlsError::NoCertificate);
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn name_of(server: &str) -> Result<ServerName<'static>, TlsError> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::NoName)
}

impl Target {
    async fn open(&self) -> io::Result<Wire> {
        let socket = TcpStream::connect(&self.server).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Wire::Plain(socket)),
            Some((tls, name)) => Ok(Wire::Tls(Box::new(tls.connect(name.clone(), socket).await?))),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.open().await.map(TokioIo::new) })
    }
}

/// The bytes of a connection, encrypted or not.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls a method of the stream, which one it may be.
macro_rules! on {
    ($wire:expr, $method:ident $(, $argument:expr)*) => {
        match $wire.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Wire::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on!(self, poll_read, cx, to)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on!(self, poll_write, cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, poll_shutdown, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on!(self, poll_write_vectored, cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn new(servers: &[(&str, bool)], ca: Option<&[u8]>) -> Result<Connector, TlsError> {
        let servers: Vec<_> =
            servers.iter().map(|(server, is_tls)| ((*server).to_owned(), *is_tls)).collect();
        Connector::new(&servers, ca, Duration::from_secs(10))
    }

    #[test]
    fn certificates_that_are_none_are_refused() {
        assert!(matches!(new(&[("a:1", true)], Some(b"")), Err(TlsError::NoCertificate)));
        assert!(matches!(new(&[("a:1", true)], Some(b"nonsense")), Err(TlsError::NoCertificate)));
        for server in ["queue.internal:7070", "127.0.0.1:7070", "[::1]:7070"] {
            assert!(new(&[(server, true)], None).is_ok(), "{server}");
        }
    }

    #[tokio::test]
    async fn each_connection_goes_to_the_next_server_that_answers() {
        let sockets = [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let [a, b] = sockets.map(|socket| socket.expect("a port"));
        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = |socket: &TcpListener| socket.local_addr().expect("an address").to_string();
        let (first, second, third) = (at(&a), at(&closed), at(&b));
        drop(closed);
        let connector = new(&[(&first, false), (&second, false), (&third, false)], None).expect("it is made");
        let peer = async || match connector.clone().open().await {
            Ok(Wire::Plain(stream)) => stream.peer_addr().expect("an address").to_string(),
            Ok(Wire::Tls(_)) => "encrypted".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(peer().await, first);
        assert_eq!(peer().await, third, "the second one does not answer");
        assert_eq!(peer().await, first);
        connector.begin_at(2);
        assert_eq!(peer().await, third);
        drop((a, b));
        assert!(connector.open().await.is_err());
    }
}
