//! Spans of messages that belong to a trace, for the part of the server that exports them.
//!
//! A producer that traces its work sends the trace along with the message, in a form that depends on its protocol. The
//! doors know these forms ([`FindTrace`]). The task of a shard records a [`Span`] when the message is stored, handed
//! out and answered, whichever doors its producer and its consumer use. Nothing is looked at unless a [`Tracer`] was
//! given to the broker. A tracer never waits: spans that do not fit into its queue are counted and dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::types::{GroupName, StreamName, Timestamp};
use tokio::sync::mpsc;

/// Spans that wait to be exported.
pub const SPANS_MAX: usize = 8_192;

/// The place of a message in a trace, as its producer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The span of the producer. None if the message begins the trace.
    pub parent: Option<[u8; 8]>,
}

/// Finds the trace in the content of a message. None if it has none, or its producer does not want it recorded.
pub type FindTrace = fn(&[u8]) -> Option<TraceContext>;

/// What the server did with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// From the decision to store it until it was durable.
    Publish,
    /// From the publish until it was handed to a consumer.
    Deliver { group: GroupName, attempt: u32 },
    /// From the delivery to the answer of the consumer, with what became of the message.
    Settle { group: GroupName, outcome: &'static str },
}

/// A piece of work on one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub context: TraceContext,
    pub id: [u8; 8],
    pub operation: Operation,
    pub stream: StreamName,
    pub seq: u64,
    /// The message's own id, if it has one.
    pub message: Option<String>,
    pub start: Timestamp,
    pub end: Timestamp,
}

/// Takes spans. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    find: FindTrace,
    spans: mpsc::Sender<Span>,
    sent: AtomicU64,
    dropped: AtomicU64,
    /// How many spans were named.
    named: AtomicU64,
}

impl Tracer {
    /// A tracer, and the queue of its spans.
    pub fn new(find: FindTrace) -> (Tracer, mpsc::Receiver<Span>) {
        let (spans, queue) = mpsc::channel(SPANS_MAX);
        let count = || AtomicU64::new(0);
        (Tracer(Arc::new(Inner { find, spans, sent: count(), dropped: count(), named: count() })), queue)
    }

    pub(crate) fn find(&self, content: &[u8]) -> Option<TraceContext> {
        (self.0.find)(content)
    }

    /// A name for a span that no other span of its trace has.
    pub(crate) fn name(&self, trace: &[u8; 16], now: Timestamp) -> [u8; 8] {
        let number = self.0.named.fetch_add(1, Ordering::Relaxed);
        let mut hash = blake3::Hasher::new();
        hash.update(trace).update(&now.0.to_le_bytes()).update(&number.to_le_bytes());
        let mut name = [0; 8];
        name.copy_from_slice(&hash.finalize().as_bytes()[..8]);
        name
    }

    pub(crate) fn record(&self, span: Span) {
        if self.0.spans.try_send(span).is_err() {
            self.ended(1, false);
        }
    }

    /// So many spans have reached their receiver, or are given up.
    pub fn ended(&self, spans: u64, is_sent: bool) {
        let count = if is_sent { &self.0.sent } else { &self.0.dropped };
        count.fetch_add(spans, Ordering::Relaxed);
    }

    /// How many spans were sent, and how many were dropped.
    pub fn counts(&self) -> (u64, u64) {
        (self.0.sent.load(Ordering::Relaxed), self.0.dropped.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_do_not_fit_are_counted_and_dropped() {
        let (tracer, mut queue) = Tracer::new(|_| None);
        let context = TraceContext { trace: [1; 16], parent: None };
        let span = |n: u64| Span {
            context,
            id: tracer.name(&context.trace, Timestamp(7)),
            operation: Operation::Publish,
            stream: StreamName::parse("orders").expect("a name"),
            seq: n,
            message: None,
            start: Timestamp(7),
            end: Timestamp(8),
        };
        for n in 0..SPANS_MAX as u64 + 3 {
            tracer.record(span(n));
        }
        assert_eq!(tracer.counts(), (0, 3));
        let (first, second) = (queue.try_recv().expect("a span"), queue.try_recv().expect("a span"));
        assert_eq!((first.seq, second.seq), (0, 1));
        assert_ne!(first.id, second.id);
    }
}
