//! How long messages take, and the spans of those that belong to a trace.

use forebay_core::types::Timestamp;

use super::*;
use crate::report::{BANDS, END_TO_END_BANDS};
use crate::trace::{Operation, Span, TraceContext, Tracer};

async fn open_still() -> (Caller, Running, Clock) {
    let clock = Clock::still();
    let (caller, running) = open_at(engine(), clock, BrokerConfig::new([7; 32])).await;
    (caller, running, clock)
}

fn receipts(received: &[(String, Delivered)]) -> Vec<String> {
    received.iter().map(|(receipt, _)| receipt.clone()).collect()
}

#[tokio::test]
async fn end_to_end_time_counts_from_the_publish_to_the_ack_however_often_a_message_is_tried() {
    let (caller, _running, clock) = open_still().await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 2).await;
    clock.advance(Duration::from_secs(2));
    publish_some(&caller, 1).await;
    clock.advance(Duration::from_secs(10));
    let first = receive(&caller, 3, SOON).await;
    clock.advance(Duration::from_secs(1));
    // One is acked, one is parked, and one is tried again later.
    assert_eq!(settle(&caller, &receipts(&first)[..1], Verb::Ack).await, [Outcome::Acked]);
    assert_eq!(settle(&caller, &receipts(&first)[1..2], Verb::Park).await, [Outcome::Parked]);
    let again = Verb::Return { delay: None };
    assert_eq!(settle(&caller, &receipts(&first)[2..], again).await, [Outcome::Returned]);
    clock.advance(Duration::from_secs(100));
    let second = receive(&caller, 3, SOON).await;
    assert_eq!(seqs(&second), [3]);
    assert_eq!(settle(&caller, &receipts(&second), Verb::Ack).await, [Outcome::Acked]);
    let report = caller.group(stream(), group()).await.expect("the group is there");
    let end_to_end = report.end_to_end.expect("times are kept");
    // The first was published 13 seconds before, and the third 111.
    assert_eq!(end_to_end.sum, Duration::from_secs(13 + 111));
    let within = |micros: u64| {
        let at = END_TO_END_BANDS.iter().position(|power| 1 << power > micros).expect("a band");
        end_to_end.shorter[at]
    };
    assert_eq!([within(3_000_000), within(16_000_000), within(130_000_000)], [0, 1, 2]);
    assert_eq!(end_to_end.shorter.last(), Some(&2), "a message that is parked has no end yet");
    let processing = report.processing_bands.expect("times are kept");
    assert_eq!((processing.shorter[BANDS.len()], processing.sum), (4, Duration::from_secs(3)));
    let commits = caller.server().await.expect("the server answers").commit_times;
    assert!(commits.count() >= 3, "{commits:?}");
}

#[tokio::test]
async fn a_lease_of_before_a_restart_still_knows_when_its_message_was_published() {
    let first = engine();
    let second = first.another();
    let clock = Clock::still();
    let config = || BrokerConfig::new([7; 32]);
    let (caller, running) = open_at(first, clock, config()).await;
    create(&caller, |settings| settings.message_timeout = Duration::from_secs(3_600)).await;
    publish_some(&caller, 3).await;
    let taken = receipts(&receive(&caller, 3, SOON).await);
    running.abort();
    let _ = running.await;
    clock.advance(Duration::from_secs(60));
    let (caller, _running) = open_at(second, clock, config()).await;
    assert_eq!(settle(&caller, &taken, Verb::Ack).await, [Outcome::Acked; 3]);
    let report = caller.group(stream(), group()).await.expect("the group is there");
    let end_to_end = report.end_to_end.expect("times are kept");
    assert_eq!((end_to_end.shorter.last(), end_to_end.sum), (Some(&3), Duration::from_secs(180)));
}

const TRACE: TraceContext = TraceContext { trace: [7; 16], parent: Some([3; 8]) };

/// Messages whose bodies begin with `t` belong to a trace.
fn find(content: &[u8]) -> Option<TraceContext> {
    crate::batch::parse_content(content).ok()?.body.starts_with(b"t").then_some(TRACE)
}

fn all(queue: &mut tokio::sync::mpsc::Receiver<Span>) -> Vec<Span> {
    std::iter::from_fn(|| queue.try_recv().ok()).collect()
}

#[tokio::test]
async fn messages_of_a_trace_have_spans_and_others_have_none() {
    let (caller, _running, clock) = open_still().await;
    let (tracer, mut queue) = Tracer::new(find);
    create(&caller, |_| {}).await;
    publish(&caller, [plain("t before")]).await.expect("there is room");
    caller.broker().trace(&tracer);
    let began = clock.now();
    let traced = Message { id: Some("one"), ..plain("traced") };
    publish(&caller, [plain("x"), traced.clone(), plain("t")]).await.expect("there is room");
    publish(&caller, [traced]).await.expect("it is there already");
    clock.advance(Duration::from_secs(5));
    let received = receive(&caller, 10, SOON).await;
    assert_eq!(seqs(&received), [1, 2, 3, 4]);
    clock.advance(Duration::from_secs(2));
    let receipts = receipts(&received);
    assert_eq!(settle(&caller, &receipts[1..3], Verb::Ack).await, [Outcome::Acked; 2]);
    assert_eq!(settle(&caller, &receipts[3..], Verb::Park).await, [Outcome::Parked]);
    assert_eq!(settle(&caller, &receipts[2..], Verb::Ack).await.len(), 2, "answers that come too late");
    let spans = all(&mut queue);
    let told: Vec<(&Operation, u64, Option<&str>)> =
        spans.iter().map(|span| (&span.operation, span.seq, span.message.as_deref())).collect();
    let deliver = Operation::Deliver { group: group(), attempt: 1 };
    let settled = |outcome| Operation::Settle { group: group(), outcome };
    assert_eq!(
        told,
        [
            (&Operation::Publish, 3, Some("one")),
            (&Operation::Publish, 4, None),
            (&deliver, 1, None),
            (&deliver, 3, Some("one")),
            (&deliver, 4, None),
            (&settled("acked"), 3, Some("one")),
            (&settled("parked"), 4, None),
        ]
    );
    let (delivered, acked) = (&spans[3], &spans[5]);
    assert_eq!((delivered.context, acked.context.parent), (TRACE, Some(delivered.id)));
    assert_eq!((delivered.start, delivered.end), (began, began + Duration::from_secs(5)));
    assert_eq!((acked.start, acked.end), (delivered.end, began + Duration::from_secs(7)));
    assert!(spans.iter().all(|span| span.context.trace == TRACE.trace && span.start > Timestamp::ZERO));
}

#[tokio::test]
async fn a_connected_consumer_and_a_transaction_have_spans_too() {
    let (caller, _running, _) = open_still().await;
    let (tracer, mut queue) = Tracer::new(find);
    caller.broker().trace(&tracer);
    create(&caller, |_| {}).await;
    let bundle = Bundle::beside(stream());
    let bundle =
        bundle.publish(Arc::new(stream()), batch([plain("t1"), plain("t2")]), PublishOptions::default());
    caller.commit(bundle).await.expect("it is done");
    let mut consumer = caller.subscribe(stream(), group(), "worker", 10).await.expect("it joins");
    let mut events = Vec::new();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 8)).await;
    let leases = events.iter().filter_map(|event| match event {
        Event::Delivery(delivery) => Some(delivery.leases()),
        _ => None,
    });
    let leases: Vec<LeaseRun> = leases.collect();
    let request = SettleRequest { ticket: 1, leases, settlement: Verb::Ack.into() };
    consumer.settle(vec![request]).expect("it may");
    events.clear();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 8)).await;
    let words: Vec<String> = all(&mut queue)
        .iter()
        .map(|span| match &span.operation {
            Operation::Publish => format!("publish {}", span.seq),
            Operation::Deliver { .. } => format!("deliver {}", span.seq),
            Operation::Settle { outcome, .. } => format!("{outcome} {}", span.seq),
        })
        .collect();
    assert_eq!(words, ["publish 1", "publish 2", "deliver 1", "deliver 2", "acked 1", "acked 2"]);
}
