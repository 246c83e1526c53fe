//! Leases that are settled with messages that are published, by receipts and by connected consumers.

use std::task::Poll;

use super::*;

fn out() -> Arc<StreamName> {
    Arc::new(StreamName::parse("out").expect("a name"))
}

fn outputs(bundle: Bundle, id: Option<&str>) -> Bundle {
    let made = Message { id, ..plain("made") };
    bundle.publish(out(), batch([made]), PublishOptions::default())
}

async fn next_event(consumer: &mut Consumer) -> Event {
    let mut events = Vec::new();
    poll_fn(|cx| match consumer.poll_events(cx, &mut events, 1) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    })
    .await;
    events.pop().expect("the consumer is a member")
}

async fn last_seq(caller: &Caller, stream: &StreamName) -> u64 {
    caller.stream(stream.clone()).await.map_or(0, |report| report.figures.last.0)
}

#[tokio::test]
async fn leases_by_receipt_are_settled_with_messages_for_other_streams() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 3).await;
    let receipts: Vec<String> = receive(&caller, 3, SOON).await.into_iter().map(|(text, _)| text).collect();
    let settle = |receipts: &[String]| {
        Bundle::beside(stream()).settle(stream(), group(), receipts.to_vec(), Verb::Ack.into())
    };
    let forged = [receipts[0].clone(), "forged".to_owned()];
    let refused = caller.commit(outputs(settle(&forged), None)).await;
    let unknown = CallError::NotCurrent { nth: 0, at: 1, seq: None, why: NotYours::Unknown };
    assert_eq!(refused, Err(unknown));
    let missing = CallError::NoSuchStream { stream: (*out()).clone() };
    assert_eq!(caller.stream((*out()).clone()).await.map(|_| ()), Err(missing));

    let done = caller.commit(outputs(settle(&receipts[..2]), Some("a"))).await.expect("they are current");
    assert_eq!((&done.outcomes[..], done.again), (&[vec![(Outcome::Acked, 2)]][..], false));
    assert_eq!(last_seq(&caller, &out()).await, 1, "the stream is created with its first message");
    let again = caller.commit(outputs(settle(&receipts[..2]), Some("a"))).await.expect("it was done");
    assert!(again.again, "a client that did not hear the answer is told that it was done");
    let refused = caller.commit(outputs(settle(&receipts[1..]), Some("b"))).await;
    let gone = CallError::NotCurrent { nth: 0, at: 0, seq: Some(Seq(2)), why: NotYours::Gone };
    assert_eq!(refused, Err(gone));
    assert_eq!(last_seq(&caller, &out()).await, 1);
    let report = caller.group(stream(), group()).await.expect("the group is there");
    assert_eq!((report.figures.lag, report.figures.in_flight), (1, 1), "the third is held still");
    assert_eq!(report.processing.expect("times are kept").count, 2);
    assert_eq!(report.consumers[0].processing.expect("its own times, too").count, 2);
}

#[tokio::test]
async fn a_connected_consumer_settles_and_publishes_also_while_the_server_drains() {
    let (caller, running) = open().await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 2).await;
    let mut consumer = caller.subscribe(stream(), group(), "worker", 2).await.expect("there is room");
    let mut leases = Vec::new();
    while leases.iter().map(|run: &LeaseRun| run.count).sum::<u32>() < 2 {
        match next_event(&mut consumer).await {
            Event::Delivery(delivery) => leases.push(delivery.leases()),
            other => panic!("messages come first: {other:?}"),
        }
    }
    let held = LeaseRun::join(leases.into_iter().flat_map(LeaseRun::leases));
    let one = |at: u64| vec![LeaseRun::one(held[0].nth(at))];
    for (ticket, at) in [(7, 0), (8, 0), (9, 1)] {
        if ticket == 9 {
            caller.broker().owner().drain();
        }
        let bundle = Bundle::beside(stream()).settle_held(&consumer, one(at), Verb::Ack.into());
        let bundle = outputs(bundle, None);
        let room = caller.broker().bundle_room(&bundle).await;
        caller.commit_for(&mut consumer, ticket, room, bundle).expect("it may");
    }
    for (ticket, is_done) in [(7, true), (8, false), (9, true)] {
        match next_event(&mut consumer).await {
            Event::Committed(of, done) => {
                assert_eq!(of, ticket);
                assert_eq!(done.is_ok(), is_done, "{done:?}");
            }
            other => panic!("answers come in order: {other:?}"),
        }
    }
    let alone = outputs(Bundle::beside(stream()), None);
    assert_eq!(caller.commit(alone).await, Err(CallError::Stopping), "nothing else is taken in");
    running.await.expect("no panic").expect("it stopped when the last message was settled");
}

#[tokio::test]
async fn several_streams_take_messages_together_or_not_at_all() {
    let (caller, _running) = open().await;
    let other = Arc::new(StreamName::parse("other").expect("a name"));
    let publish = |bundle: Bundle, expect: Option<Seq>| {
        let options = PublishOptions { expect_last: expect, ..PublishOptions::default() };
        bundle.publish(other.clone(), batch([plain("x"), plain("y")]), options)
    };
    let refused = caller.commit(publish(outputs(Bundle::beside(stream()), None), Some(Seq(3)))).await;
    assert!(matches!(refused, Err(CallError::NotStored { nth: 1, .. })), "{refused:?}");
    assert_eq!((last_seq(&caller, &out()).await, last_seq(&caller, &other).await), (0, 0));
    let done = caller.commit(publish(outputs(Bundle::beside(stream()), None), Some(Seq(0)))).await;
    assert_eq!(done.expect("all of it is good").published.len(), 2);
    assert_eq!((last_seq(&caller, &out()).await, last_seq(&caller, &other).await), (1, 2));
}
