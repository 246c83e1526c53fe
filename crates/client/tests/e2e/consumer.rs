//! The plain consumer, against the real server.

use std::time::Duration;

use forebay_client::consumer::{Consumer, Delivery, Outcome, Settlement};
use forebay_client::{Client, GroupSettings, Message, Strategy};
use forebay_test::TestServer;
use forebay_wire::v1;
use futures_util::StreamExt;

const SECOND: Duration = Duration::from_secs(1);

async fn rig(messages: u32) -> (TestServer, Client) {
    let server = TestServer::start().await.expect("the server starts");
    let client = Client::connect(server.url()).await.expect("it answers");
    client.create_group("s", "g", GroupSettings::new()).await.expect("there was none");
    if messages > 0 {
        let messages = (1..=messages).map(|n| Message::new(n.to_string()));
        client.publish_batch("s", messages).await.expect("they are stored");
    }
    (server, client)
}

/// The next `count` messages, in however many pieces they come.
async fn take(consumer: &mut Consumer, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(consumer.next_batch().await.expect("the call goes on").expect("the call goes on"));
    }
    assert_eq!(taken.len(), count);
    taken
}

fn told(of: &[Delivery]) -> Vec<(u64, u32, &[u8])> {
    of.iter().map(|of| (of.seq(), of.attempt(), &of.body()[..])).collect()
}

#[tokio::test]
async fn messages_come_within_the_credit_and_are_settled_in_every_way() {
    let (server, client) = rig(6).await;
    let mut consumer = client.consumer("s", "g").name("one").credit(5).open().await.expect("it is there");
    let taken = take(&mut consumer, 5).await;
    assert_eq!(told(&taken)[..2], [(1, 1, &b"1"[..]), (2, 1, &b"2"[..])]);
    let lasts = taken[0].deadline() - std::time::Instant::now();
    assert!(lasts <= 30 * SECOND && lasts > 20 * SECOND, "{lasts:?}");

    let acked = consumer.ack(&taken[..1]);
    let retried = consumer.settle(&taken[1..2], Settlement::retry().after(5 * SECOND).reason("later"));
    let parked = consumer.settle(&taken[2..3], Settlement::park().reason("broken"));
    let skipped = consumer.settle(&taken[3..4], Settlement::skip());
    let back = consumer.settle(&taken[4..], Settlement::give_back().after(9 * SECOND));
    assert_eq!(acked.await.expect("an answer"), [Outcome::Acked]);
    assert_eq!(retried.await.expect("an answer"), [Outcome::Retrying]);
    assert_eq!(parked.await.expect("an answer"), [Outcome::Parked]);
    assert_eq!(skipped.await.expect("an answer"), [Outcome::Skipped]);
    assert_eq!(back.await.expect("an answer"), [Outcome::Returned]);
    let again = consumer.ack(&taken[..2]).await.expect("an answer");
    assert_eq!(again, [Outcome::NotYours, Outcome::NotYours]);
    assert_eq!(consumer.ack(&[]).await.expect("nothing to do"), []);

    let rest = take(&mut consumer, 1).await;
    assert_eq!(told(&rest), [(6, 1, &b"6"[..])]);
    server.advance(5 * SECOND).await;
    assert_eq!(told(&take(&mut consumer, 1).await), [(2, 2, &b"2"[..])]);
    server.advance(4 * SECOND).await;
    let back = take(&mut consumer, 1).await;
    assert_eq!(told(&back), [(5, 1, &b"5"[..])], "it was never out");
    assert!(back[0].is_redelivered() && !rest[0].is_redelivered(), "it was delivered all the same");
    consumer.close().await.expect("it leaves well");
}

#[tokio::test]
async fn what_is_extended_stays_and_the_rest_lapses() {
    let (server, client) = rig(2).await;
    let mut consumer = client.consumer("s", "g").open().await.expect("it is there");
    let taken = take(&mut consumer, 2).await;
    let extended = consumer.settle(&taken[..1], Settlement::extend(120 * SECOND)).await.expect("an answer");
    assert_eq!(extended, [Outcome::Extended]);
    server.advance(60 * SECOND).await;
    let outcomes = consumer.ack(&taken).await.expect("an answer");
    assert_eq!(outcomes, [Outcome::Acked, Outcome::NotYours]);
}

#[tokio::test]
async fn a_goodbye_costs_nothing_and_a_loss_costs_an_attempt() {
    let (_server, client) = rig(1).await;
    for (attempt, says_goodbye) in [(1, true), (1, false), (2, true), (2, true)] {
        let mut consumer = client.consumer("s", "g").open().await.expect("it is there");
        assert_eq!(take(&mut consumer, 1).await[0].attempt(), attempt);
        match says_goodbye {
            true => consumer.close().await.expect("it leaves well"),
            false => drop(consumer),
        }
    }
}

#[tokio::test]
async fn credit_can_be_changed_and_bytes_count_too() {
    let (_server, client) = rig(10).await;
    let mut consumer = client.consumer("s", "g").credit(0).open().await.expect("it is there");
    consumer.set_credit(4);
    let taken = take(&mut consumer, 4).await;
    let nothing = tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await;
    assert!(nothing.is_err(), "no more than that");
    consumer.ack(&taken).await.expect("an answer");
    take(&mut consumer, 4).await;
    drop(consumer);
    let mut small = client.consumer("s", "g").credit(100).credit_bytes(1).open().await.expect("it is there");
    take(&mut small, 1).await;
    let nothing = tokio::time::timeout(Duration::from_millis(50), small.next_batch()).await;
    assert!(nothing.is_err(), "one always fits, and no more");
}

#[tokio::test]
async fn a_consumer_of_a_higher_rank_is_served_first_on_leases_of_its_own() {
    let (_server, client) = rig(0).await;
    let mut low = client.consumer("s", "g").name("low").open().await.expect("it is there");
    let first = client.consumer("s", "g").name("high").credit(2).rank(1).lease(5 * SECOND);
    let mut high = first.open().await.expect("it is there");
    client.publish_batch("s", (1..=3).map(|n| Message::new(n.to_string()))).await.expect("they are stored");
    let taken = take(&mut high, 2).await;
    assert_eq!(told(&taken), [(1, 1, &b"1"[..]), (2, 1, &b"2"[..])]);
    let lasts = taken[0].deadline() - std::time::Instant::now();
    assert!(lasts <= 5 * SECOND && lasts > SECOND, "{lasts:?}");
    assert_eq!(told(&take(&mut low, 1).await), [(3, 1, &b"3"[..])], "the rest goes to the other");
    let none =
        client.consumer("s", "g").lease(Duration::ZERO).open().await.expect_err("there is no such lease");
    assert!(none.to_string().contains("open.lease_ms"), "{none}");
}

#[tokio::test]
async fn a_sole_consumer_gets_everything_until_it_leaves() {
    let (_server, client) = rig(0).await;
    let sole = GroupSettings::new().strategy(Strategy::Sole);
    client.update_group("s", "g", sole, &[]).await.expect("it is changed");
    let mut first = client.consumer("s", "g").credit(1).open().await.expect("it is there");
    let mut second = client.consumer("s", "g").open().await.expect("it is there");
    client.publish_batch("s", (1..=2).map(|n| Message::new(n.to_string()))).await.expect("they are stored");
    assert_eq!(told(&take(&mut first, 1).await), [(1, 1, &b"1"[..])]);
    let waits = tokio::time::timeout(Duration::from_millis(100), second.next_batch()).await;
    assert!(waits.is_err(), "the second waits although it has room");
    first.close().await.expect("it leaves well");
    assert_eq!(told(&take(&mut second, 2).await), [(1, 1, &b"1"[..]), (2, 1, &b"2"[..])]);
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let (server, client) = rig(1).await;
    let error = client.consumer("s", "nobody").open().await.expect_err("there is none");
    assert!(error.is(forebay_client::error::ProblemKind::NoSuchGroup), "{error:?}");
    let mut consumer = client.consumer("s", "g").open().await.expect("it is there");
    let taken = take(&mut consumer, 1).await;
    let wrong = consumer.settle(&taken, Settlement::move_to("$system")).await.expect_err("not that one");
    assert_eq!(wrong.advice(), forebay_client::Advice::FixRequest);
    drop(server);
    assert!(consumer.next().await.expect("an error").is_err(), "the server is gone");
    assert!(consumer.ack(&taken).await.is_err());
}

#[tokio::test]
async fn a_consumer_is_a_stream_of_deliveries_that_are_settled_one_by_one() {
    let (server, client) = rig(9).await;
    let mut consumer = client.consumer("s", "g").credit(7).open().await.expect("it is there");
    let taken: Vec<Delivery> = StreamExt::by_ref(&mut consumer)
        .take(7)
        .map(|delivery| delivery.expect("the call goes on"))
        .collect()
        .await;
    let [acked, retried, parked, skipped, back, moved, extended] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!((acked.seq(), acked.body(), acked.attempt()), (1, &"1".into(), 1));
    let lasts = extended.deadline_at().duration_since(extended.published_at()).expect("it is later");
    assert_eq!(lasts, 30 * SECOND);
    assert_eq!(acked.ack().await.expect("an answer"), Outcome::Acked);
    assert_eq!(acked.ack().await.expect("an answer"), Outcome::NotYours);
    assert_eq!(retried.retry("later").await.expect("an answer"), Outcome::Retrying);
    assert_eq!(parked.park("broken").await.expect("an answer"), Outcome::Parked);
    assert_eq!(skipped.skip().await.expect("an answer"), Outcome::Skipped);
    assert_eq!(back.give_back().await.expect("an answer"), Outcome::Returned);
    assert_eq!(moved.move_to("elsewhere").await.expect("an answer"), Outcome::Moving);
    assert_eq!(extended.extend(60 * SECOND).await.expect("an answer"), Outcome::Extended);
    assert_eq!(client.parked("s", "g", 3).await.expect("it is parked").reason, "broken");
    server.advance(45 * SECOND).await;
    assert_eq!(extended.ack().await.expect("an answer"), Outcome::Acked);
}

#[tokio::test]
async fn nothing_is_settled_before_it_is_awaited() {
    let (_server, client) = rig(1).await;
    let mut consumer = client.consumer("s", "g").open().await.expect("it is there");
    let taken = take(&mut consumer, 1).await;
    drop(consumer.ack(&taken));
    assert_eq!(client.group("s", "g").await.expect("it is there").in_flight, 1);
    assert_eq!(consumer.ack(&taken).await.expect("an answer"), [Outcome::Acked]);
}

/// Any client, with the default limits of gRPC libraries.
#[tokio::test]
async fn no_reply_is_larger_than_a_plain_client_reads() {
    const MESSAGES: usize = 40;
    let (server, client) = rig(0).await;
    for _ in 0..MESSAGES / 4 {
        let batch = (0..4).map(|_| Message::new(vec![b'x'; 500 << 10]));
        client.publish_batch("s", batch.collect::<Vec<_>>()).await.expect("there is room");
    }
    let endpoint = tonic::transport::Channel::from_shared(server.url().to_owned()).expect("an address");
    let channel = endpoint.connect().await.expect("it is there");
    let mut plain = v1::forebay_client::ForebayClient::new(channel);
    let (stream, group, consumer) = ("s".to_owned(), "g".to_owned(), "plain".to_owned());
    let open = v1::Open { stream, group, consumer, credit: 1_000, ..Default::default() };
    let (requests, sent) = tokio::sync::mpsc::channel(1);
    requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() }).await.expect("it is empty");
    let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
    let mut replies = plain.consume(sent).await.expect("it is there").into_inner();
    let mut seqs = Vec::new();
    while seqs.len() < MESSAGES {
        let reply = replies.message().await.expect("it can be read").expect("the call goes on");
        let Some(deliveries) = reply.deliveries else { continue };
        let of_runs =
            deliveries.runs.iter().flat_map(|run| run.first_seq..run.first_seq + u64::from(run.count));
        let before = seqs.len();
        seqs.extend(of_runs);
        assert_eq!(seqs.len() - before, deliveries.messages.len());
    }
    assert!(seqs.iter().copied().eq(1..=MESSAGES as u64), "{seqs:?}");
}
