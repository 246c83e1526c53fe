//! Spans of messages, for a collector of traces: what the server did with messages whose producers trace them.
//!
//! The names of attributes are those of OpenTelemetry's conventions for messaging.

use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{Operation, Span, Tracer};
use forebay_core::types::Timestamp;
use prost::Message as _;
use tokio::sync::mpsc;

use super::wire::{self, KeyValue};
use super::{resource, scope};
use crate::kit::trace::context_of;

/// Spans of one export.
const BATCH_MAX: usize = 512;
/// How long an export waits for more spans.
const LINGER: Duration = Duration::from_secs(1);

/// Spans on their way to a collector.
#[derive(Debug)]
pub struct SpanExports {
    instance: String,
    queue: mpsc::Receiver<Span>,
    batch: Vec<Span>,
}

impl SpanExports {
    /// A tracer for the broker, and the exports of its spans.
    pub fn new(instance: String) -> (Tracer, SpanExports) {
        let (tracer, queue) = Tracer::new(context_of);
        (tracer, SpanExports { instance, queue, batch: Vec::new() })
    }

    /// Waits for the next export: the body of a request to `/v1/traces`, and how many spans it has. None if there are
    /// no more.
    pub async fn next(&mut self) -> Option<(Bytes, u64)> {
        if self.queue.recv_many(&mut self.batch, BATCH_MAX).await == 0 {
            return None;
        }
        let (queue, batch) = (&mut self.queue, &mut self.batch);
        let fill = async {
            let mut room = BATCH_MAX - batch.len();
            while room > 0 && queue.recv_many(batch, room).await > 0 {
                room = BATCH_MAX - batch.len();
            }
        };
        let _ = tokio::time::timeout(LINGER, fill).await;
        let spans: Vec<wire::Span> = self.batch.drain(..).map(span).collect();
        let count = spans.len() as u64;
        let scopes = vec![wire::ScopeSpans { scope: Some(scope()), spans }];
        let resources = vec![wire::ResourceSpans { resource: Some(resource(&self.instance)), scopes }];
        Some((wire::ExportSpans { resources }.encode_to_vec().into(), count))
    }
}

fn span(span: Span) -> wire::Span {
    let Span { context, id, operation, stream, seq, message, start, end } = span;
    let (name, kind) = match &operation {
        Operation::Publish => ("publish", "send"),
        Operation::Deliver { .. } => ("deliver", "receive"),
        Operation::Settle { .. } => ("settle", "settle"),
    };
    let mut attributes = vec![
        KeyValue::text("messaging.system", "forebay"),
        KeyValue::text("messaging.operation.name", name),
        KeyValue::text("messaging.operation.type", kind),
        KeyValue::text("messaging.destination.name", stream.as_str()),
        KeyValue::number("forebay.message.position", seq),
    ];
    attributes.extend(message.map(|id| KeyValue::text("messaging.message.id", &id)));
    match &operation {
        Operation::Publish => {}
        Operation::Deliver { group, attempt } => {
            attributes.push(KeyValue::text("messaging.consumer.group.name", group.as_str()));
            attributes.push(KeyValue::number("forebay.message.attempt", u64::from(*attempt)));
        }
        Operation::Settle { group, outcome } => {
            attributes.push(KeyValue::text("messaging.consumer.group.name", group.as_str()));
            attributes.push(KeyValue::text("forebay.message.outcome", outcome));
        }
    }
    let nanos = |time: Timestamp| time.0.saturating_mul(1_000);
    wire::Span {
        trace_id: context.trace.to_vec(),
        span_id: id.to_vec(),
        parent_span_id: context.parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        name: format!("{name} {stream}"),
        kind: wire::SERVER,
        start_ns: nanos(start),
        end_ns: nanos(end),
        attributes,
    }
}
