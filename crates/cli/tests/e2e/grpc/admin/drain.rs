//! How a server drains: consumers that hold messages may finish them, and no client can hold it up for long.

use std::time::{Duration, Instant};

use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{answer, is_refused, message, of_group};
use crate::grpc::rig::{Server, Session, publish};
use crate::rig::Folder;

/// What the rig lets a server give its consumers, and then some.
const DRAIN_MAX: Duration = Duration::from_secs(2);
const LONGER: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drains_hands_out_nothing_and_lets_what_is_held_be_finished() {
    let folder = Folder::new("drain");
    let server = Server::start(&folder).await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    publish(&server, "work", ["1", "2"], 2).await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    let got = consumer.receive(1).await;
    let mut health = HealthClient::new(server.channel());
    let mut watch = answer(health.watch(HealthCheckRequest::default()).await);
    let first = watch.message().await.expect("it goes on").expect("it goes on");
    assert_eq!(first.status(), ServingStatus::Serving);

    server.terminate();
    let next = watch.message().await.expect("it goes on").expect("it goes on");
    assert_eq!(next.status(), ServingStatus::NotServing);
    let check = answer(health.check(HealthCheckRequest::default()).await);
    assert_eq!(check.status(), ServingStatus::NotServing);
    let receive = client.receive(of_group!(ReceiveRequest, "work", "team")).await;
    is_refused(receive, Code::Unavailable, "stopping", "the server is stopping");
    let publish =
        v1::PublishRequest { stream: "work".to_owned(), messages: vec![message("3")], ..Default::default() };
    let mut replies = answer(client.publish(tokio_stream::iter([publish])).await);
    let mut stored = 0;
    while let Ok(Some(reply)) = replies.message().await {
        stored += reply.confirmations.iter().filter(|one| one.problem.is_none()).count();
    }
    assert_eq!(stored, 0, "nothing more is taken in");

    consumer.credit(10).await;
    assert_eq!(consumer.ack(&got, 1..=1).await, [(Outcome::Acked, 1)], "what is held is finished");
    assert_eq!(consumer.ended().await, Some(Code::Unavailable));
    assert!(consumer.early_is_empty(), "nothing more is handed out");
    assert_eq!(server.ended(), Some(0));

    let server = Server::start(&folder).await;
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.checkpoint_seq, figures.lag), (1, 1));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_at_once() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["1"], 1).await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    consumer.receive(1).await;
    let begun = Instant::now();
    server.terminate();
    let mut health = HealthClient::new(server.channel());
    let mut watch = answer(health.watch(HealthCheckRequest::default()).await);
    while watch
        .message()
        .await
        .is_ok_and(|next| next.is_some_and(|of| of.status() != ServingStatus::NotServing))
    {}
    // Signals within 0.3 s count as one.
    tokio::time::sleep(Duration::from_millis(400)).await;
    server.terminate();
    assert_ne!(server.ended(), Some(0), "a server that was cut short says so");
    assert!(begun.elapsed() < LONGER, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_never_answers_does_not_hold_up_the_server() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["1"], 1).await;
    let mut consumer = Session::open(&server, "work", "team", 1).await;
    consumer.receive(1).await;
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() >= DRAIN_MAX / 2, "it was given time: {:?}", begun.elapsed());
    assert!(begun.elapsed() < LONGER, "{:?}", begun.elapsed());
}
