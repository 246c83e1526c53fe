//! The client for requests to services of others, over http and https.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::header::HeaderValue;
use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connect::{CONNECT_PATIENCE, trusting};

/// How long a connection is kept for the next request.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How long a receiver may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of an answer, so many bytes are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The value of the header `user-agent`.
pub(crate) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("forebay/", env!("CARGO_PKG_VERSION")));

pub(crate) type Poster = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Believes certificates of the public authorities.
pub(crate) fn client() -> Poster {
    of(HttpsConnectorBuilder::new().with_webpki_roots())
}

/// Believes certificates of these authorities, in PEM, and no others.
pub(crate) fn client_trusting(pem: &[u8]) -> anyhow::Result<Poster> {
    let config = trusting(Some(pem))?.with_no_client_auth();
    Ok(of(HttpsConnectorBuilder::new().with_tls_config(config)))
}

fn of(connector: HttpsConnectorBuilder<WantsSchemes>) -> Poster {
    let mut tcp = HttpConnector::new();
    // The next layer knows https.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_PATIENCE));
    let connector = connector.https_or_http().enable_http1();
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_MAX)
        .build(connector.wrap_connector(tcp))
}

/// The innermost source of an error. The outer ones only say where it was noticed.
pub(crate) fn cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause
}

/// Sends a request whose answer matters only for its status. The error says why it did not arrive.
pub(crate) async fn post(client: &Poster, request: Request<Full<Bytes>>) -> Result<(), String> {
    let answered = tokio::time::timeout(PATIENCE, async {
        let answer = client.request(request).await.map_err(|error| cause(&error).to_string())?;
        let status = answer.status();
        let _ = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("HTTP {}", status.as_u16())) }
    });
    answered.await.unwrap_or_else(|_| Err(format!("no answer within {} seconds", PATIENCE.as_secs())))
}
