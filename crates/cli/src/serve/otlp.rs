//! Sends the metrics that the server exports to an OpenTelemetry collector, and spans if it should, in protobuf over
//! HTTP. An export that the collector does not take is given up: the next one has the same counters, and spans are
//! counted.

use bytes::Bytes;
use forebay_broker::api::{Broker, Tracer};
use forebay_doors::native::otlp::{Exports, SpanExports};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use tokio::task::JoinSet;

use crate::post::{AGENT, Poster, client, post};
use crate::settings::Settings;

/// Where a collector takes metrics, after its address, and where it takes spans.
pub(crate) const METRICS_PATH: &str = "/v1/metrics";
const TRACES_PATH: &str = "/v1/traces";

/// The exports of a server that starts now, and the tasks that send them until they are dropped. `None`: there is no
/// collector.
pub(super) fn begin(settings: &Settings, broker: &Broker) -> Option<(Exports, JoinSet<()>)> {
    let collector = settings.otlp_endpoint.clone()?;
    let mut sending = JoinSet::new();
    let tracer = settings.otlp_traces.then(|| {
        let (tracer, spans) = SpanExports::new(settings.server_name());
        broker.trace(&tracer);
        sending.spawn(send_spans(spans, tracer.clone(), collector.clone(), client()));
        tracer
    });
    let exports = Exports::new(settings.server_name(), settings.otlp_interval, tracer);
    sending.spawn(send(exports.clone(), collector, client()));
    Some((exports, sending))
}

async fn send(exports: Exports, collector: Uri, client: Poster) {
    let mut trouble = Trouble::new("metrics", &collector);
    loop {
        let sent = post(&client, request(&collector, exports.next().await)).await;
        exports.ended(sent.is_ok());
        trouble.tell(sent);
    }
}

async fn send_spans(mut spans: SpanExports, tracer: Tracer, collector: Uri, client: Poster) {
    let collector = beside(&collector);
    let mut trouble = Trouble::new("spans", &collector);
    while let Some((body, count)) = spans.next().await {
        let sent = post(&client, request(&collector, body)).await;
        tracer.ended(count, sent.is_ok());
        trouble.tell(sent);
    }
}

/// Where the collector of these metrics takes spans.
fn beside(metrics: &Uri) -> Uri {
    let text = metrics.to_string();
    let base = text.strip_suffix(METRICS_PATH).unwrap_or(&text);
    format!("{base}{TRACES_PATH}").parse().unwrap_or_else(|_| metrics.clone())
}

/// Tells the log when the collector can no longer be reached, and when it can again.
struct Trouble {
    what: &'static str,
    host: String,
    is_failing: bool,
}

impl Trouble {
    fn new(what: &'static str, collector: &Uri) -> Trouble {
        let host = collector.authority().map_or(String::new(), ToString::to_string);
        Trouble { what, host, is_failing: false }
    }

    fn tell(&mut self, sent: Result<(), String>) {
        let (what, host) = (self.what, self.host.as_str());
        match &sent {
            Ok(()) if self.is_failing => tracing::info!(collector = host, "{what} reach the collector again"),
            Err(error) if !self.is_failing => {
                tracing::warn!(collector = host, error, "{what} do not reach the collector and are dropped");
            }
            _ => {}
        }
        self.is_failing = sent.is_err();
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
