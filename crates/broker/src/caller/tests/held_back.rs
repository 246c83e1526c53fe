//! Consumers that do not take their messages.

use super::*;

const BODY: usize = 20_000;

/// A broker that may hand out 128 KiB.
async fn narrow() -> (Caller, Running) {
    let (caller, running) =
        open_with(engine(), BrokerConfig { reply_bytes: 64 << 10, ..BrokerConfig::new([7; 32]) }).await;
    create(&caller, |_| {}).await;
    (caller, running)
}

async fn publish_large(caller: &Caller, count: usize) {
    let body = "x".repeat(BODY);
    for _ in 0..count {
        publish(caller, [plain(&body)]).await.expect("it is stored");
    }
}

/// Takes messages and acks them until so many have come. Each has been tried once.
async fn take(consumer: &mut Consumer, count: usize) {
    let (mut events, mut got) = (Vec::new(), 0);
    while got < count {
        poll_fn(|cx| consumer.poll_events(cx, &mut events, 100)).await;
        for event in events.drain(..) {
            if let Event::Delivery(delivery) = event {
                got += delivery.messages.len();
                assert_eq!(delivery.attempt.0, 1);
                let (leases, settlement) = (vec![delivery.leases()], Verb::Ack.into());
                consumer.settle(vec![SettleRequest { ticket: 1, leases, settlement }]).expect("it may");
            }
        }
    }
    assert_eq!(got, count);
}

#[tokio::test]
async fn a_consumer_that_does_not_read_holds_no_more_than_its_share_and_goes_on_when_it_reads() {
    let (caller, _running) = narrow().await;
    let mut slow = caller.subscribe(stream(), group(), "slow", 1_000).await.expect("it joins");
    publish_large(&caller, 40).await;
    let figures = caller.broker().memory().figures();
    assert!(figures.handed_out <= 6 * BODY && figures.held_back > 0, "{figures:?}");
    take(&mut slow, 40).await;
    assert_eq!(caller.broker().memory().figures().handed_out, 0);
}

#[tokio::test]
async fn many_consumers_that_do_not_read_leave_the_messages_to_others() {
    let (caller, _running) = narrow().await;
    let mut slow = Vec::new();
    for _ in 0..10 {
        slow.push(caller.subscribe(stream(), group(), "slow", 1_000).await.expect("it joins"));
    }
    publish_large(&caller, 60).await;
    let figures = caller.broker().memory().figures();
    assert!(figures.handed_out <= 128 << 10, "{figures:?}");
    // All of them leave in peace, and one takes everything.
    for consumer in &mut slow {
        consumer.goodbye();
    }
    drop(slow);
    let mut reads = caller.subscribe(stream(), group(), "reads", 1_000).await.expect("it joins");
    take(&mut reads, 60).await;
    assert_eq!(caller.broker().memory().figures().handed_out, 0);
}
