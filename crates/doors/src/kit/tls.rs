//! TLS: certificates that can be replaced while the server runs, and the wire of a connection, encrypted or not.
//!
//! TLS 1.2 and 1.3, with the cipher suites that rustls offers by default: all of them have forward secrecy and
//! authenticated encryption.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// How long a client may take for its part of the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("the certificate file must have at least one certificate in PEM")]
    NoCertificate,
    #[error("the key file must have a private key in PEM (PKCS #8, PKCS #1 or SEC 1)")]
    NoKey,
    #[error("the certificate and the key cannot be used together")]
    Refused(#[from] rustls::Error),
}

/// The certificate of a server, and the key to it. Cheap to clone; all clones change together.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<Identity>>>);

/// One certificate, for doors with other protocols.
struct Identity {
    /// HTTP/2 and HTTP/1.
    both: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// A chain of certificates, the server's own first, and its private key, both in PEM.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Tls, TlsError> {
        Ok(Tls(Arc::new(RwLock::new(Arc::new(Identity::new(certificates, key)?)))))
    }

    /// New connections use these from now on. Connections that are open go on.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let identity = Arc::new(Identity::new(certificates, key)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = identity;
        Ok(())
    }

    fn now(&self) -> Arc<Identity> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Identity {
    fn new(certificates: &[u8], key: &[u8]) -> Result<Identity, TlsError> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().unwrap_or_default();
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey)?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let with = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Identity { both: with(&[b"h2", b"http/1.1"]), http1: with(&[b"http/1.1"]) })
    }
}

/// The protocols that a door speaks over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Both,
}

/// Begins a connection: at once, or after a handshake. `None` if that failed, or took too long.
pub(crate) async fn begin(
    tls: Option<&Tls>,
    speaks: Speaks,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<Wire> {
    let Some(tls) = tls else { return Some(Wire::Plain(stream)) };
    let identity = tls.now();
    let config = match speaks {
        Speaks::Http1 => identity.http1.clone(),
        Speaks::Both => identity.both.clone(),
    };
    match tokio::time::timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => Some(Wire::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake took too long");
            None
        }
    }
}

/// The bytes of a connection.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.get_ref().0,
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Whether the client chose HTTP/2 in the handshake. `None`: there was no handshake.
    pub(crate) fn chose_http2(&self) -> Option<bool> {
        match self {
            Wire::Plain(_) => None,
            Wire::Tls(stream) => Some(stream.get_ref().1.alpn_protocol() == Some(b"h2")),
        }
    }

    /// The socket of a connection without TLS.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            Wire::Plain(stream) => Some(stream),
            Wire::Tls(_) => None,
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Wire::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_certificate_are_refused() {
        let refused =
            |certificates: &[u8], key: &[u8]| Tls::new(certificates, key).expect_err("refused").to_string();
        assert!(refused(b"", b"").starts_with("the certificate file must have"));
        let no_certificate = b"-----BEGIN CERTIFICATE-----\nnonsense!\n-----END CERTIFICATE-----\n";
        assert!(refused(no_certificate, b"").starts_with("the certificate file must have"));
        let certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(refused(certificate, b"").starts_with("the key file must have"));
    }
}
