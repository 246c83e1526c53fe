//! TLS of a connection: how the server is recognised, and the bytes that go through it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
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
    #[error("the private key must be in PEM (PKCS #8, PKCS #1 or SEC 1)")]
    NoKey,
    #[error("the host is neither a name nor an address")]
    NoName,
}

/// Opens connections to one server.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    /// Host and port.
    server: String,
    name: ServerName<'static>,
}

impl Connector {
    /// The server at this host and port is recognised by these certificates, or by those that browsers trust. The
    /// client shows its own certificate, if it has one with a key.
    pub(crate) fn new(
        server: &str,
        ca: Option<&[u8]>,
        own: Option<(&[u8], &[u8])>,
    ) -> Result<Connector, TlsError> {
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
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match own {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
                    .collect::<Result<_, _>>()
                    .map_err(|_| TlsError::NoCertificate)?;
                if chain.is_empty() {
                    return Err(TlsError::NoCertificate);
                }
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey)?;
                config.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::NoName)?;
        Ok(Connector { tls: TlsConnector::from(Arc::new(config)), server: server.to_owned(), name })
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Connector { tls, server, name } = self.clone();
        Box::pin(async move {
            let socket = TcpStream::connect(server).await?;
            socket.set_nodelay(true)?;
            Ok(TokioIo::new(tls.connect(name, socket).await?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_are_none_are_refused() {
        assert!(matches!(Connector::new("a:1", Some(b""), None), Err(TlsError::NoCertificate)));
        assert!(matches!(Connector::new("a:1", Some(b"nonsense"), None), Err(TlsError::NoCertificate)));
        let own = |certificate: &[u8]| Connector::new("a:1", None, Some((certificate, b""))).map(drop);
        assert!(matches!(own(b""), Err(TlsError::NoCertificate)));
        let certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(own(certificate), Err(TlsError::NoKey)));
        for server in ["queue.internal:7070", "127.0.0.1:7070", "[::1]:7070"] {
            assert!(Connector::new(server, None, None).is_ok(), "{server}");
        }
    }
}
