//! Publishing, against a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_client::admin::settings::{Rate, StreamLimits};
use forebay_client::error::{ProblemKind, Refusal};
use forebay_client::{
    Advice, Client, ConnectError, GroupSettings, Message, Payload, PublishError, StreamSettings,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::rig::{Mood, PATIENCE, Proxy, Server, bodies, drain, read_all};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SendEmail {
    to: String,
}

impl Payload for SendEmail {
    const TYPE: &'static str = "email.send";
    const SCHEMA: u64 = 3;
}

#[tokio::test]
async fn a_message_arrives_with_everything_that_was_said_of_it() {
    let server = Server::start().await;
    let client = server.client().await;
    let email = SendEmail { to: "a@example.com".to_owned() };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let publish = client.publish("emails", &email).key("user-4").id("email-17").priority(5);
    let published = publish.header("traceparent", trace).header("color", "red").await.expect("it is stored");
    assert_eq!((published.seq, published.duplicate, published.id.as_deref()), (1, false, Some("email-17")));
    let stored = &read_all(&client, "emails").await[0];
    assert_eq!(stored.payload::<SendEmail>().expect("it decodes"), email);
    assert_eq!((stored.kind(), stored.schema()), (Some("email.send"), Some(3)));
    assert_eq!((stored.key(), stored.id(), stored.priority()), (Some("user-4"), Some("email-17"), 5));
    assert_eq!((stored.header("traceparent"), stored.header("color")), (Some(trace), Some("red")));

    let again = server.client().await.publish("emails", &email).id("email-17").await.expect("it is known");
    assert_eq!((again.seq, again.duplicate), (1, true));
    let plain = client.publish("emails", Message::new("x")).await.expect("it is stored");
    assert_eq!((plain.seq, plain.duplicate, plain.id), (2, false, None));
}

#[tokio::test]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let server = Server::start().await;
    let client = server.client().await;
    let results = client.publish_batch("s", ["a", "b", "c"].map(Message::new)).await.expect("it is stored");
    assert_eq!(results.iter().map(|published| published.seq).collect::<Vec<_>>(), [1, 2, 3]);

    let bad = [Message::new("d"), Message::new("e").delay(Duration::from_secs(3 * 365 * 86_400))];
    let error = client.publish_batch("s", bad).await.expect_err("a delay is too long");
    assert!(matches!(error, PublishError::Refused { refusal: Refusal::Invalid, .. }), "{error:?}");

    let wrong = client.publish_batch("s", [Message::new("f")]).expect_last_seq(2).await;
    assert!(matches!(wrong, Err(PublishError::WrongLastSeq { last_seq: 3 })), "{wrong:?}");
    client.publish_batch("s", [Message::new("g")]).expect_last_seq(3).await.expect("it ends there");
    let none = client.publish_batch("s", Vec::<Message>::new()).await.expect_err("there is nothing in it");
    assert_eq!(none.advice(), Advice::FixRequest);

    let known = [Message::new("h").id("1"), Message::new("i"), Message::new("j").id("1")];
    let results = client.publish_batch("s", known).await.expect("it is stored");
    let told: Vec<_> = results.iter().map(|published| (published.seq, published.duplicate)).collect();
    assert_eq!(told, [(5, false), (6, false), (5, true)]);
    assert_eq!(bodies(&client, "s").await, ["a", "b", "c", "g", "h", "i"]);
}

#[tokio::test]
async fn publishes_at_the_same_time_travel_together() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let client = Client::connect(proxy.url()).await.expect("the server answers");
    let stream = "s".repeat(200);
    let before = proxy.bytes();
    let publishes = (0..10_000).map(|n| {
        let (client, stream) = (client.clone(), stream.clone());
        tokio::spawn(async move { client.publish(&stream, Message::new(format!("{n}"))).await })
    });
    for publish in publishes.collect::<Vec<_>>() {
        publish.await.expect("it ran").expect("it is stored");
    }
    let each = (proxy.bytes() - before) / 10_000;
    assert!(each < 50, "{each} bytes for each message, where the name of the stream alone has 200");
    let mut all: Vec<u32> =
        bodies(&client, &stream).await.iter().map(|body| body.parse().expect("n")).collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..10_000));
}

#[tokio::test]
async fn more_streams_than_may_be_open_take_turns() {
    let server = Server::start().await;
    let client = server.client().await;
    let publishes = (0..300).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { client.publish(&format!("stream-{}", n % 150), Message::new("x")).await })
    });
    for publish in publishes.collect::<Vec<_>>() {
        publish.await.expect("it ran").expect("it is stored");
    }
    for n in 0..150 {
        assert_eq!(client.stream(&format!("stream-{n}")).await.expect("it exists").last_seq, 2);
    }
}

#[tokio::test]
async fn a_producer_keeps_the_order_and_says_when_all_is_done() {
    let server = Server::start().await;
    let client = server.client().await;
    let producer = client.producer("s").window(64).build();
    let mut confirmations = Vec::new();
    for n in 0..5_000 {
        confirmations.push(producer.send(Message::new(format!("{n}"))).await.expect("it is taken"));
    }
    producer.flush().await.expect("all of it is stored");
    for (confirmation, seq) in confirmations.into_iter().zip(1..) {
        assert_eq!(confirmation.await.expect("it is stored").seq, seq);
    }
    let clone = producer.clone();
    producer.send(Message::new("last")).await.expect("it is taken");
    producer.close().await.expect("all of it is stored");
    let error = clone.send(Message::new("too late")).await.expect_err("it is closed");
    assert!(matches!(error, PublishError::Closed), "{error:?}");
    clone.flush().await.expect("nothing failed");
    assert_eq!(bodies(&client, "s").await.len(), 5_001);
}

#[tokio::test]
async fn what_a_dropped_producer_was_given_is_published() {
    let server = Server::start().await;
    let client = server.client().await;
    let producer = client.producer("s").build();
    for n in 0..100 {
        producer.send(Message::new(format!("{n}"))).await.expect("it is taken");
    }
    drop(producer);
    let all = async {
        while client.stream("s").await.map_or(0, |report| report.last_seq) < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all).await.expect("all of it is stored");
}

#[tokio::test]
async fn no_more_is_on_its_way_than_the_window_allows() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let client = Client::connect(proxy.url()).await.expect("the server answers");
    proxy.set(Mood::Hold);
    let producer = Arc::new(client.producer("s").window(10).build());
    let taken = Arc::new(AtomicUsize::new(0));
    let sending = tokio::spawn({
        let (producer, taken) = (producer.clone(), taken.clone());
        async move {
            for n in 0..30 {
                producer.send(Message::new(format!("{n}"))).await.expect("it is taken");
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(taken.load(Ordering::Relaxed), 10);
    proxy.set(Mood::Pass);
    timeout(PATIENCE, sending).await.expect("it goes on").expect("nothing breaks");
    producer.flush().await.expect("all of it is stored");

    proxy.set(Mood::Hold);
    let by_bytes = client.producer("s").window_bytes(1_000).build();
    let large = || Message::new(vec![7; 600]);
    by_bytes.send(large()).await.expect("it is taken");
    assert!(timeout(Duration::from_millis(100), by_bytes.send(large())).await.is_err(), "there is no room");
    proxy.set(Mood::Pass);
    // Larger than the window: it goes alone.
    timeout(PATIENCE, by_bytes.send(Message::new(vec![7; 5_000]))).await.expect("in time").expect("taken");
    by_bytes.close().await.expect("all of it is stored");
    assert_eq!(client.stream("s").await.expect("it exists").last_seq, 32);
}

#[tokio::test]
async fn one_bad_message_fails_alone() {
    let server = Server::start().await;
    let client = server.client().await;
    let producer = client.producer("s").build();
    let mut sent = Vec::new();
    for n in 0..400u32 {
        let message = match n {
            77 => Message::new(vec![0; (1 << 20) + (600 << 10)]),
            200 | 201 => Message::new("late").ttl(Duration::from_secs(3 * 365 * 86_400)),
            n => Message::new(format!("{n}")),
        };
        sent.push(producer.send(message).await.expect("it is taken"));
    }
    let error = producer.flush().await.expect_err("some failed");
    assert!(matches!(error, PublishError::Refused { refusal: Refusal::TooLarge, .. }), "{error:?}");
    producer.flush().await.expect("nothing failed since");
    for (confirmation, n) in sent.into_iter().zip(0..) {
        match (n, confirmation.await) {
            (77, Err(PublishError::Refused { refusal: Refusal::TooLarge, .. })) => {}
            (200 | 201, Err(PublishError::Refused { refusal: Refusal::Invalid, .. })) => {}
            (_, Ok(_)) => {}
            (n, other) => panic!("{n}: {other:?}"),
        }
    }
    let expected: Vec<String> =
        (0..400).filter(|n| ![77, 200, 201].contains(n)).map(|n: u32| n.to_string()).collect();
    assert_eq!(bodies(&client, "s").await, expected);
}

#[tokio::test]
async fn what_no_server_takes_is_refused_before_it_is_sent() {
    let server = Server::start().await;
    let client = server.client().await;
    let error =
        client.publish("s", Message::new("x")).priority(10).await.expect_err("there is no such priority");
    assert!(matches!(error, PublishError::Refused { refusal: Refusal::Invalid, .. }), "{error:?}");
    let error = client.publish("s", Message::new(vec![0; 20 << 20])).await.expect_err("it is too large");
    assert!(matches!(error, PublishError::Refused { refusal: Refusal::TooLarge, .. }), "{error:?}");
    let error = client.publish("$system", Message::new("x")).await.expect_err("it is reserved");
    assert!(matches!(error, PublishError::Refused { refusal: Refusal::Invalid, .. }), "{error:?}");
    assert!(client.stream("s").await.expect_err("nothing was stored").is(ProblemKind::NoSuchStream));
}

#[tokio::test]
async fn a_full_stream_is_filled_as_it_drains() {
    let server = Server::start().await;
    let client = server.client().await;
    let limits = StreamLimits::new().max_messages(20);
    client.create_stream("s", StreamSettings::new().limits(limits)).await.expect("it is created");
    client.create_group("s", "g", GroupSettings::new()).await.expect("it is created");
    let producer = client.producer("s").build();
    for n in 0..200 {
        producer.send(Message::new(format!("{n}"))).await.expect("it is taken");
    }
    timeout(PATIENCE, drain(&client, "s", "g", 200)).await.expect("there is always more");
    producer.close().await.expect("all of it is stored");
    assert_eq!(client.group("s", "g").await.expect("it exists").counters.acked, 200);

    let patience = Duration::from_millis(300);
    let hasty = client.producer("s").retry_for(patience).build();
    for n in 0..25 {
        hasty.send(Message::new(format!("{n}"))).await.expect("it is taken");
    }
    let error = hasty.close().await.expect_err("nobody drains it");
    assert!(matches!(error, PublishError::NotInTime { .. }), "{error:?}");
    assert_eq!(error.advice(), Advice::RetryLater);
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(client.stream("s").await.expect("it exists").last_seq, 220);
}

#[tokio::test]
async fn a_stream_with_a_rate_slows_its_producers_down() {
    let server = Server::start().await;
    let client = server.client().await;
    let rate = Rate::per_second(400.0).burst(20);
    client.create_stream("s", StreamSettings::new().ingress_rate(rate)).await.expect("it is created");
    let producer = client.producer("s").build();
    let began = Instant::now();
    for n in 0..200 {
        producer.send(Message::new(format!("{n}"))).await.expect("it is taken");
    }
    producer.flush().await.expect("all of it is stored");
    let after = client.publish("s", Message::new("200")).await.expect("it is stored");
    assert_eq!(after.seq, 201);
    assert!(began.elapsed() > Duration::from_millis(400), "{:?}", began.elapsed());
    let expected: Vec<String> = (0..=200).map(|n: u32| n.to_string()).collect();
    assert_eq!(bodies(&client, "s").await, expected);
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_in_time() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.address, Mood::Pass).await;
    let retry_for = Duration::from_millis(300);
    let connecting = Client::builder(proxy.url()).retry_for(retry_for).application("test").connect();
    let client = connecting.await.expect("the server answers");
    client.publish("s", Message::new("1")).await.expect("it is stored");

    // It is unknown whether the sent messages are stored.
    proxy.set(Mood::Mute);
    let silent = timeout(PATIENCE, client.publish("s", Message::new("2"))).await.expect("in time");
    assert_eq!(
        silent.as_ref().expect_err("nothing came back").advice(),
        Advice::RetryWithSameId,
        "{silent:?}"
    );

    // What could not be sent is not stored.
    proxy.set(Mood::Refuse);
    drop(proxy);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    let gone = timeout(PATIENCE, client.publish("s", Message::new("3"))).await.expect("in time");
    assert_eq!(gone.as_ref().expect_err("nobody is there").advice(), Advice::RetryLater, "{gone:?}");
    assert!(began.elapsed() >= retry_for);
    let call = client.stream("s").await.expect_err("nobody is there");
    assert_eq!(call.advice(), Advice::RetryLater, "{call:?}");
    let stored = bodies(&server.client().await, "s").await;
    assert!(stored == ["1", "2"] || stored == ["1"], "{stored:?}");
}

#[tokio::test]
async fn whoever_cannot_be_a_server_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has an address").to_string();
    let silent = Client::builder(&address).connect_timeout(Duration::from_millis(100)).connect().await;
    let error = silent.expect_err("nobody answers");
    assert!(matches!(error, ConnectError::Silent { .. }) && error.to_string().contains(&address), "{error}");
    drop(listener);
    let error = Client::connect(&address).await.expect_err("nobody listens");
    assert!(
        matches!(error, ConnectError::Unreachable { .. }) && error.to_string().contains(&address),
        "{error}"
    );
    assert_eq!(error.advice(), Advice::RetryLater);
    let error = Client::connect(format!("amqp://{address}")).await.expect_err("another protocol");
    assert!(matches!(error, ConnectError::UnknownScheme { .. }), "{error}");
    let named = Client::builder(&address).application("line\nbreak").connect().await;
    assert!(matches!(named, Err(ConnectError::InvalidName { .. })), "{named:?}");
}

#[tokio::test]
async fn a_server_that_restarts_interrupts_nobody() {
    let server = Server::start().await;
    let client = server.client().await;
    let producer = client.producer("s").build();
    let sending = tokio::spawn(async move {
        for n in 0..6_000 {
            producer.send(Message::new(format!("{n}"))).await.expect("it is taken");
            if n % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        producer.close().await
    });
    let mut server = server;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        server = server.restart().await;
    }
    timeout(PATIENCE, sending).await.expect("in time").expect("it ran").expect("all of it is stored");
    let expected: Vec<String> = (0..6_000).map(|n: u32| n.to_string()).collect();
    assert!(bodies(&server.client().await, "s").await == expected);
}

#[tokio::test]
async fn the_last_handle_takes_its_tasks_with_it() {
    let server = Server::start().await;
    // The server's own tasks have begun when each of them has run.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let client = server.client().await;
    for n in 0..10 {
        client.publish(&format!("s{n}"), Message::new("x")).await.expect("it is stored");
    }
    let producer = client.producer("p").build();
    producer.send(Message::new("x")).await.expect("it is taken");
    assert!(tasks() > before + 10);
    drop((client, producer));
    let ended = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("nothing is left");
}

#[tokio::test]
async fn what_nobody_uses_goes_away_and_comes_back() {
    let server = Server::start().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let client = server.client().await;
    let producer = client.producer("p").build();
    producer.send(Message::new("x")).await.expect("it is taken").await.expect("it is stored");
    let before = tasks();
    for n in 0..10 {
        client.publish(&format!("s{n}"), Message::new("x")).await.expect("it is stored");
    }
    assert!(tasks() >= before + 10);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    let ended = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("nothing is left");
    for n in 0..10 {
        let again = client.publish(&format!("s{n}"), Message::new("y")).await.expect("it is stored");
        assert_eq!(again.seq, 2);
    }
    let again = producer.send(Message::new("y")).await.expect("it is taken").await.expect("it is stored");
    assert_eq!(again.seq, 2);
}
