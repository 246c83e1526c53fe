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

use forebay_broker::api::Principal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::certificates::{Clients, names_of};

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
    #[error("the authorities of clients cannot be used: {0}")]
    Authorities(String),
}

/// The certificate of a server, and the key to it. Cheap to clone; all clones change together.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<Identity>>>);

/// One certificate, for doors with other protocols.
struct Identity {
    /// HTTP/2 and HTTP/1.
    both: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    /// None: clients are not asked for certificates.
    clients: Option<Clients>,
}

/// The names in the certificate of a client, and the authorities by which it was checked.
pub(crate) struct Certified {
    names: Vec<String>,
    authorities: Arc<RootCertStore>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// A chain of certificates, the server's own first, and its private key, both in PEM; and clients that are
    /// recognised by certificates of their own.
    pub fn new(certificates: &[u8], key: &[u8], clients: Option<Clients>) -> Result<Tls, TlsError> {
        Ok(Tls(Arc::new(RwLock::new(Arc::new(Identity::new(certificates, key, clients)?)))))
    }

    /// New connections use these from now on. Connections that are open go on, except that clients end whose
    /// certificates are not accepted any more, or whose rights have changed.
    pub fn replace(&self, certificates: &[u8], key: &[u8], clients: Option<Clients>) -> Result<(), TlsError> {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let clients = clients.map(|clients| clients.after(now.clients.as_ref()));
        let identity = Arc::new(Identity::new(certificates, key, clients)?);
        if let Some(before) = &now.clients {
            before.end_unless_in(identity.clients.as_ref());
        }
        *now = identity;
        Ok(())
    }

    /// The client with this certificate, as of now.
    pub(crate) fn client(&self, certified: &Certified) -> Option<Principal> {
        let identity = self.now();
        let clients = identity.clients.as_ref()?;
        let is_checked = Arc::ptr_eq(&clients.authorities, &certified.authorities);
        if is_checked { clients.principal(&certified.names) } else { None }
    }

    fn now(&self) -> Arc<Identity> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Identity {
    fn new(certificates: &[u8], key: &[u8], clients: Option<Clients>) -> Result<Identity, TlsError> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().unwrap_or_default();
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey)?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13, &TLS12])?;
        let config = match &clients {
            None => config.with_no_client_auth(),
            // A client without a certificate may have a token.
            Some(clients) => {
                let roots = clients.authorities.clone();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.allow_unauthenticated().build();
                config.with_client_cert_verifier(
                    verifier.map_err(|error| TlsError::Authorities(error.to_string()))?,
                )
            }
        };
        let config = config.with_single_cert(chain, key)?;
        let with = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Identity { both: with(&[b"h2", b"http/1.1"]), http1: with(&[b"http/1.1"]), clients })
    }
}

impl Identity {
    /// The certificate of a client, which the handshake has checked.
    fn certified(&self, stream: &TlsStream<TcpStream>) -> Option<Certified> {
        let authorities = self.clients.as_ref()?.authorities.clone();
        let certificate = stream.get_ref().1.peer_certificates()?.first()?;
        Some(Certified { names: names_of(certificate), authorities })
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
        Ok(Ok(stream)) => {
            let certified = identity.certified(&stream);
            Some(Wire::Tls(Box::new(stream), certified))
        }
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
    Tls(Box<TlsStream<TcpStream>>, Option<Certified>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream, _) => stream.get_ref().0,
        }
    }

    /// The certificate of the client, if it has one that was accepted.
    pub(crate) fn take_certified(&mut self) -> Option<Certified> {
        match self {
            Wire::Plain(_) => None,
            Wire::Tls(_, certified) => certified.take(),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Whether the client chose HTTP/2 in the handshake. `None`: there was no handshake.
    pub(crate) fn chose_http2(&self) -> Option<bool> {
        match self {
            Wire::Plain(_) => None,
            Wire::Tls(stream, _) => Some(stream.get_ref().1.alpn_protocol() == Some(b"h2")),
        }
    }

    /// The socket of a connection without TLS.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            Wire::Plain(stream) => Some(stream),
            Wire::Tls(..) => None,
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
            Wire::Tls(stream, _) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream, _) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Wire::Tls(stream, _) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream, _) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream, _) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream, _) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_certificate_are_refused() {
        let refused = |certificates: &[u8], key: &[u8]| {
            Tls::new(certificates, key, None).expect_err("refused").to_string()
        };
        assert!(refused(b"", b"").starts_with("the certificate file must have"));
        let no_certificate = b"-----BEGIN CERTIFICATE-----\nnonsense!\n-----END CERTIFICATE-----\n";
        assert!(refused(no_certificate, b"").starts_with("the certificate file must have"));
        let certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(refused(certificate, b"").starts_with("the key file must have"));
    }
}
