//! Sends the metrics that the server exports to an OpenTelemetry collector, in protobuf over HTTP. An export that the
//! collector does not take is given up: the next one has the same counters.

use bytes::Bytes;
use forebay_doors::native::otlp::Exports;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use tokio::task::JoinSet;

use crate::post::{AGENT, Poster, client, post};
use crate::settings::Settings;

/// Where a collector takes metrics, after its address.
pub(crate) const METRICS_PATH: &str = "/v1/metrics";

/// The exports of a server that starts now, and the task that sends them until it is dropped. `None`: there is no
/// collector.
pub(super) fn begin(settings: &Settings) -> Option<(Exports, JoinSet<()>)> {
    let collector = settings.otlp_endpoint.clone()?;
    let exports = Exports::new(settings.server_name(), settings.otlp_interval);
    let mut sending = JoinSet::new();
    sending.spawn(send(exports.clone(), collector, client()));
    Some((exports, sending))
}

async fn send(exports: Exports, collector: Uri, client: Poster) {
    let mut is_failing = false;
    loop {
        let sent = post(&client, request(&collector, exports.next().await)).await;
        exports.ended(sent.is_ok());
        let host = collector.authority().map_or("", |of| of.as_str());
        match sent {
            Ok(()) if is_failing => tracing::info!(collector = host, "metrics reach the collector again"),
            Err(error) if !is_failing => {
                tracing::warn!(collector = host, error, "metrics do not reach the collector and are dropped");
                is_failing = true;
                continue;
            }
            _ => continue,
        }
        is_failing = false;
    }
}

fn request(collector: &Uri, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = collector.clone();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    request.headers_mut().insert(USER_AGENT, AGENT);
    request
}
