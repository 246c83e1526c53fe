//! Exact retry, through a proxy that cuts connections at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_client::{Client, Message};

use crate::rig::{Mood, Proxy, Server, read_all};

const PATIENCE: Duration = Duration::from_secs(120);

/// Each producer's messages, exactly once and in order.
async fn check(server: &Server, stream: &str, producers: usize, each: usize) {
    let client = server.client().await;
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let all = read_all(&client, stream).await;
    assert_eq!(all.len(), producers * each, "nothing is lost and nothing is there twice");
    for message in all {
        let text = String::from_utf8(message.body().to_vec()).expect("text");
        let (who, n) = text.split_once(' ').expect("two words");
        let expected = next.entry(who.to_owned()).or_default();
        assert_eq!(n.trim_end().parse(), Ok(*expected), "{who} at {}", message.seq());
        *expected += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbered_messages_are_stored_once_and_in_order() {
    const PRODUCERS: usize = 3;
    const EACH: usize = 7_000;
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let mut clients = Vec::new();
    for _ in 0..PRODUCERS {
        clients.push(Client::connect(proxy.url()).await.expect("the server answers"));
    }
    // Connections that are there now are not cut any more, so they are ended first.
    proxy.set(Mood::Refuse);
    tokio::time::sleep(Duration::from_millis(10)).await;
    proxy.set(Mood::Cut { within: 40_000 });
    let sending = clients.into_iter().enumerate().map(|(who, client)| {
        tokio::spawn(async move {
            let producer = client.producer("s").window(500).batch_max(60).build();
            let mut confirmations = Vec::with_capacity(EACH);
            for n in 0..EACH {
                let message = Message::new(format!("p{who} {n:<40}"));
                confirmations.push(producer.send(message).await.expect("it is taken"));
            }
            producer.close().await.expect("all of it is stored");
            let mut seq = 0;
            for confirmation in confirmations {
                let published = confirmation.await.expect("it is stored");
                assert!(published.seq > seq && !published.duplicate);
                seq = published.seq;
            }
        })
    });
    for sending in sending.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, sending).await.expect("in time").expect("all is well");
    }
    assert!(proxy.cuts() > 20, "only {} connections were cut", proxy.cuts());
    check(&server, "s", PRODUCERS, EACH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_publishes_and_batches_are_stored_once_too() {
    const TASKS: usize = 50;
    const EACH: usize = 30;
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let client = Client::connect(proxy.url()).await.expect("the server answers");
    proxy.set(Mood::Refuse);
    tokio::time::sleep(Duration::from_millis(10)).await;
    proxy.set(Mood::Cut { within: 20_000 });
    let tasks = (0..TASKS).map(|who| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut n = 0;
            let mut next = || {
                n += 1;
                let text = format!("t{who} {:<40}", n - 1);
                // Some have ids, and are retried by number all the same.
                if who % 3 == 0 { Message::new(text).id(format!("{who}-{n}")) } else { Message::new(text) }
            };
            let mut sent = 0;
            while sent < EACH {
                if who % 2 == 0 {
                    client.publish("s", next()).await.expect("it is stored");
                    sent += 1;
                } else {
                    let batch: Vec<Message> = (0..3).map(|_| next()).collect();
                    let results = client.publish_batch("s", batch).await.expect("it is stored");
                    assert!(results.windows(2).all(|two| two[0].seq + 1 == two[1].seq), "it is in one piece");
                    sent += 3;
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, task).await.expect("in time").expect("all is well");
    }
    assert!(proxy.cuts() > 10, "only {} connections were cut", proxy.cuts());
    check(&server, "s", TASKS, EACH).await;
}
