//! Transactions of the SDK: outputs with the acknowledgement of their input, and messages for several streams.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_client::{
    Backoff, Client, Fault, GroupSettings, Job, Message, MessageSet, Payload, PublishError, Retries, Worker,
};
use serde::{Deserialize, Serialize};

use crate::rig::{Mood, PATIENCE, Proxy, Server, bodies};

const FROM: &str = "orders";
const GROUP: &str = "billing";

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
}

impl Payload for Order {
    const TYPE: &'static str = "order";
}

async fn bill(_state: (), job: Job<Order>) -> Result<(), Fault> {
    let text = job.number.to_string();
    let messages = MessageSet::new().add("invoices", Message::new(text.clone()))?;
    job.finish_with(messages.add("audit", Message::new(text))?).await?;
    // Too late to change anything.
    if job.number.is_multiple_of(2) { Err(Fault::transient("after it was finished")) } else { Ok(()) }
}

async fn fill(client: &Client, orders: u64) {
    // Each connection that breaks costs every message that was on its way an attempt.
    let soon = Backoff::new().min(Duration::from_millis(5)).max(Duration::from_millis(5));
    let settings = GroupSettings::new().max_retries(Retries::Unlimited).backoff(soon);
    client.create_group(FROM, GROUP, settings).await.expect("there was none");
    let orders: Vec<Order> = (0..orders).map(|number| Order { number }).collect();
    client.publish_batch(FROM, &orders).await.expect("they are stored");
}

async fn until_settled(client: &Client) {
    let settled = async {
        // Connections break, so an answer may not come.
        while !client.group(FROM, GROUP).await.is_ok_and(|group| group.lag == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE * 2, settled).await.expect("everything is settled in time");
}

/// Each number from 0, once.
async fn check(client: &Client, stream: &str, count: u64) {
    let bodies = bodies(client, stream).await;
    let numbers: BTreeSet<u64> = bodies.iter().map(|body| body.parse().expect("a number")).collect();
    assert_eq!(bodies.len() as u64, count, "{stream}: nothing is there twice");
    assert_eq!(numbers, (0..count).collect(), "{stream}: nothing is missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_finished_with_messages_for_several_streams() {
    let server = Server::start().await;
    let client = server.client().await;
    fill(&client, 40).await;
    let worker = Worker::builder(client.clone(), FROM, GROUP, ()).concurrency(8).on(bill).start().await;
    let worker = worker.expect("the group is there");
    until_settled(&client).await;
    let stats = worker.shutdown().await.expect("it leaves well");
    assert_eq!((stats.acked, stats.retried, stats.late), (40, 0, 0), "{stats:?}");
    check(&client, "invoices", 40).await;
    check(&client, "audit", 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_are_there_once_though_connections_break_at_any_moment() {
    const ORDERS: u64 = 600;
    let server = Server::start().await;
    let client = server.client().await;
    fill(&client, ORDERS).await;
    let proxy = Proxy::start(server.address, Mood::Cut { within: 400_000 }).await;
    let builder = loop {
        // The first connection may be cut too.
        if let Ok(through) = Client::connect(proxy.url()).await {
            break Worker::builder(through, FROM, GROUP, ()).concurrency(8).prefetch(8).on(bill);
        }
    };
    let stop = until_settled(&client);
    builder.run_until(stop).await.expect("it works until it is told to stop");
    assert!(proxy.cuts() > 3, "only {} connections were cut", proxy.cuts());
    assert_eq!(client.parked_reasons(FROM, GROUP).await.expect("it is there"), [], "no order is parked");
    check(&client, "invoices", ORDERS).await;
    check(&client, "audit", ORDERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_can_never_be_done_parks_the_message() {
    async fn wrong(_state: (), job: Job<Order>) -> Result<(), Fault> {
        let messages = MessageSet::new().add("good", Message::new("x"))?;
        job.finish_with(messages.add("$bad", Message::new("y"))?).await
    }
    let server = Server::start().await;
    let client = server.client().await;
    fill(&client, 1).await;
    let worker = Worker::builder(client.clone(), FROM, GROUP, ()).on(wrong).start().await;
    let worker = worker.expect("the group is there");
    until_settled(&client).await;
    let parked = client.parked(FROM, GROUP, 1).await.expect("it is parked");
    assert!(parked.reason.contains("publish[1].stream"), "{}", parked.reason);
    assert!(client.stream("good").await.is_err(), "nothing of it was done");
    worker.shutdown().await.expect("it leaves well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_for_several_streams_are_stored_together_and_once() {
    const SETS: u64 = 120;
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let through = Client::connect(proxy.url()).await.expect("the server answers");
    proxy.set(Mood::Refuse);
    tokio::time::sleep(Duration::from_millis(10)).await;
    proxy.set(Mood::Cut { within: 40_000 });
    for number in 0..SETS {
        let text = || Message::new(number.to_string());
        let set = MessageSet::new().add("a", text()).and_then(|set| set.add("b", text()));
        let published =
            through.publish_all(set.expect("bytes need no serializer")).await.expect("they are stored");
        assert!(published.len() == 2 && published.iter().all(|of| of.seq == number + 1), "{published:?}");
    }
    assert!(proxy.cuts() > 3, "only {} connections were cut", proxy.cuts());
    let client = server.client().await;
    check(&client, "a", SETS).await;
    check(&client, "b", SETS).await;
    let wrong =
        MessageSet::new().add("a", Message::new("x")).and_then(|set| set.add("$x", Message::new("y")));
    let refused = client.publish_all(wrong.expect("bytes need no serializer")).await;
    assert!(matches!(refused, Err(PublishError::Refused { .. })), "{refused:?}");
    check(&client, "a", SETS).await;
}
