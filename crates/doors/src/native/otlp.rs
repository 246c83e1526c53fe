//! Export of the server's metrics over OTLP, the OpenTelemetry protocol, to a collector; `traces` exports spans.
//!
//! A task takes the figures of `/metrics` once in an interval, and puts them, encoded, into a short queue; the program
//! that runs the server sends them. Values count from the start of the server, so an export that is dropped costs a
//! point of a chart and no count. Nothing here is on the path of messages.

mod traces;
pub mod wire;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{Stage, Tracer};
use forebay_core::types::Timestamp;
use prost::Message as _;
use tokio::sync::Notify;

use super::http::Door;
use super::http::metrics::{self, Form, Labels, Scrape, Times};
pub use traces::SpanExports;
use wire::{CUMULATIVE, Data, KeyValue};

/// Exports that wait to be sent. The oldest is dropped from a full queue.
pub const QUEUE_MAX: usize = 4;

/// The exports of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exports(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The server, as its operator calls it.
    instance: String,
    every: Duration,
    /// The spans that the collector is sent, if it is.
    tracer: Option<Tracer>,
    wake: Notify,
    /// Locked to put in and take out, never across a wait.
    queue: Mutex<VecDeque<Bytes>>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Exports {
    pub fn new(instance: String, every: Duration, tracer: Option<Tracer>) -> Exports {
        let (wake, queue) = (Notify::new(), Mutex::default());
        let (sent, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        Exports(Arc::new(Inner { instance, every, tracer, wake, queue, sent, dropped }))
    }

    /// Waits for the next export: the body of a request to `/v1/metrics`.
    pub async fn next(&self) -> Bytes {
        loop {
            let woken = self.0.wake.notified();
            if let Some(body) = self.queue().pop_front() {
                return body;
            }
            woken.await;
        }
    }

    /// The collector has taken an export, or it is given up.
    pub fn ended(&self, is_sent: bool) {
        let count = if is_sent { &self.0.sent } else { &self.0.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many exports were sent, and how many were dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.0.sent.load(Ordering::Relaxed), self.0.dropped.load(Ordering::Relaxed))
    }

    /// The same of spans. None if they are not exported.
    pub(super) fn span_counts(&self) -> Option<(u64, u64)> {
        self.0.tracer.as_ref().map(Tracer::counts)
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Bytes>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, body: Bytes) {
        let mut queue = self.queue();
        if queue.len() == QUEUE_MAX {
            queue.pop_front();
            self.ended(false);
        }
        queue.push_back(body);
        self.0.wake.notify_one();
    }

    /// Takes figures until the server stops.
    pub(super) async fn run(self, door: Door) {
        let broker = door.broker();
        let (clock, service) = (broker.clock(), door.own());
        let started = clock.now();
        let mut stopped = std::pin::pin!(broker.reached(Stage::Stopping));
        loop {
            tokio::select! {
                () = &mut stopped => return,
                () = tokio::time::sleep(self.0.every) => {}
            }
            // A server that cannot be asked is mostly stopping.
            let Ok(scrape) = Scrape::take(&door, &service).await else { continue };
            let mut figures = Figures::at(started, clock.now());
            scrape.tell(&mut figures);
            self.push(figures.encode(&self.0.instance));
        }
    }
}

/// The metrics of one moment.
struct Figures {
    start_ns: u64,
    time_ns: u64,
    metrics: Vec<wire::Metric>,
    /// Whether the last metric only rises.
    is_counter: bool,
}

impl Figures {
    fn at(started: Timestamp, now: Timestamp) -> Figures {
        let nanos = |time: Timestamp| time.0.saturating_mul(1_000);
        Figures { start_ns: nanos(started), time_ns: nanos(now), metrics: Vec::new(), is_counter: false }
    }

    fn encode(mut self, instance: &str) -> Bytes {
        // A metric without a value has nothing to say, and some collectors refuse it.
        self.metrics.retain(|metric| metric.data.is_some());
        let scopes = vec![wire::ScopeMetrics { scope: Some(scope()), metrics: self.metrics }];
        let resources = vec![wire::ResourceMetrics { resource: Some(resource(instance)), scopes }];
        wire::ExportMetrics { resources }.encode_to_vec().into()
    }

    fn last(&mut self) -> &mut Option<Data> {
        &mut self.metrics.last_mut().expect("a metric begins before its values").data
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The server, as the collector is told.
fn resource(instance: &str) -> wire::Resource {
    let attributes =
        [("service.name", "forebay"), ("service.version", VERSION), ("service.instance.id", instance)];
    wire::Resource { attributes: attributes.map(|(key, value)| KeyValue::text(key, value)).into() }
}

fn scope() -> wire::Scope {
    wire::Scope { name: "forebay".to_owned(), version: VERSION.to_owned() }
}

fn attributes(labels: Labels<'_>) -> Vec<KeyValue> {
    labels.iter().map(|(key, value)| KeyValue::text(key, value)).collect()
}

impl Form for Figures {
    fn begin(&mut self, metric: &'static metrics::Metric) {
        let is_counted_in = |unit: &str| metric.name.trim_end_matches("_total").ends_with(unit);
        let unit = if is_counted_in("_seconds") {
            "s"
        } else if is_counted_in("_bytes") {
            "By"
        } else {
            "1"
        };
        self.is_counter = metric.kind == "counter";
        self.metrics.push(wire::Metric {
            name: metric.name.to_owned(),
            description: metric.help.to_owned(),
            unit: unit.to_owned(),
            data: None,
        });
    }

    fn value(&mut self, labels: Labels<'_>, value: f64) {
        let (start_ns, time_ns) = (self.start_ns, self.time_ns);
        let is_counter = self.is_counter;
        let attributes = attributes(labels);
        let point = wire::NumberPoint { attributes, start_ns, time_ns, value: Some(value) };
        match self.last() {
            Some(Data::Sum(sum)) => sum.points.push(point),
            Some(Data::Gauge(gauge)) => gauge.points.push(point),
            data if is_counter => {
                let sum = wire::Sum { points: vec![point], temporality: CUMULATIVE, is_monotonic: true };
                *data = Some(Data::Sum(sum));
            }
            data => *data = Some(Data::Gauge(wire::Gauge { points: vec![point] })),
        }
    }

    fn histogram(&mut self, labels: Labels<'_>, times: &Times) {
        let (mut below, mut buckets, mut bounds) = (0, Vec::new(), Vec::new());
        for (bound, count) in &times.buckets {
            bounds.push(*bound);
            buckets.push(count.saturating_sub(below));
            below = *count;
        }
        buckets.push(times.count.saturating_sub(below));
        let point = wire::HistogramPoint {
            attributes: attributes(labels),
            start_ns: self.start_ns,
            time_ns: self.time_ns,
            count: times.count,
            sum: Some(times.sum),
            buckets,
            bounds,
        };
        match self.last() {
            Some(Data::Histogram(histogram)) => histogram.points.push(point),
            data => {
                *data =
                    Some(Data::Histogram(wire::Histogram { points: vec![point], temporality: CUMULATIVE }));
            }
        }
    }
}
