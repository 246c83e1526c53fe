//! The server of the tests, by its own calls alone. How clients fare with it is tested where they live.

use std::time::Duration;

use forebay_test::{TestError, TestServer};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tonic::transport::Endpoint;

const HOUR: Duration = Duration::from_secs(3_600);

/// A group with one message that is due in an hour.
async fn delayed(server: &TestServer) {
    let endpoint = Endpoint::from_shared(server.url().to_owned()).expect("an address");
    let mut client = ForebayClient::new(endpoint.connect().await.expect("it listens"));
    let (stream, group) = ("s".to_owned(), "g".to_owned());
    client
        .create_group(v1::CreateGroupRequest { stream, group, ..Default::default() })
        .await
        .expect("it is new");
    let message = v1::Message { body: "x".into(), delay_ms: 3_600_000, ..Default::default() };
    let request =
        v1::PublishRequest { stream: "s".to_owned(), messages: vec![message], ..Default::default() };
    let sent = tokio_stream::once(request);
    let mut replies = client.publish(sent).await.expect("a call").into_inner();
    while replies.message().await.expect("the call goes on").is_some() {}
}

#[tokio::test]
async fn an_hour_passes_at_once() {
    let server = TestServer::start().await.expect("it starts");
    delayed(&server).await;
    assert_eq!(server.group("s", "g").await.expect("it is there").ready, 0);
    let due = server.next_due().await.expect("a message becomes due");
    assert!(due <= HOUR && due > HOUR / 2, "{due:?}");
    server.advance(HOUR).await;
    assert_eq!(server.group("s", "g").await.expect("it is there").ready, 1);
}

#[tokio::test]
async fn a_restart_keeps_the_log_and_the_port() {
    let mut server = TestServer::start().await.expect("it starts");
    delayed(&server).await;
    let url = server.url().to_owned();
    server.restart().await.expect("the port is free");
    assert_eq!(server.url(), url);
    assert_eq!(server.group("s", "g").await.expect("it is there").lag, 1);
}

#[tokio::test]
async fn a_group_that_does_not_exist_is_named() {
    let server = TestServer::start().await.expect("it starts");
    let error = server.until_settled("s", "g").await.expect_err("there is no such group");
    assert!(matches!(&error, TestError::Refused { group, .. } if group == "s/g"), "{error}");
}
