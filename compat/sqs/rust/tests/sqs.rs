//! The AWS SDK for Rust against the server that `FOREBAY_TEST_SQS` names.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::operation::RequestId as _;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName,
    QueueAttributeName, SendMessageBatchRequestEntry,
};

/// A client, and the queues that a test makes with it.
struct Server {
    sqs: Client,
    urls: Vec<String>,
}

impl Server {
    fn new() -> Server {
        let endpoint = std::env::var("FOREBAY_TEST_SQS")
            .expect("FOREBAY_TEST_SQS must name the server, as in http://127.0.0.1:9324");
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .endpoint_url(endpoint)
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "compat"))
            .build();
        Server { sqs: Client::from_conf(config), urls: Vec::new() }
    }

    async fn queue(&mut self, attributes: &[(QueueAttributeName, &str)]) -> String {
        let is_fifo = attributes.iter().any(|(name, _)| *name == QueueAttributeName::FifoQueue);
        let mut create = self.sqs.create_queue().queue_name(unique(if is_fifo { ".fifo" } else { "" }));
        for (name, value) in attributes {
            create = create.attributes(name.clone(), *value);
        }
        let url = create.send().await.expect("a queue").queue_url.expect("an address");
        self.urls.push(url.clone());
        url
    }

    async fn receive(&self, url: &str, max: i32) -> Vec<Message> {
        let received =
            self.sqs.receive_message().queue_url(url).max_number_of_messages(max).wait_time_seconds(1);
        let received = received
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All)
            .send();
        received.await.expect("messages, or none").messages.unwrap_or_default()
    }

    async fn delete(&self, url: &str, message: &Message) {
        let handle = message.receipt_handle().expect("a handle");
        self.sqs.delete_message().queue_url(url).receipt_handle(handle).send().await.expect("deleted");
    }

    async fn clean(self) {
        for url in &self.urls {
            self.sqs.delete_queue().queue_url(url).send().await.expect("deleted");
        }
    }
}

/// A name that no other test has.
fn unique(suffix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("compat-rust-{}-{now:x}-{number}{suffix}", std::process::id())
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body().expect("a body")).collect()
}

#[tokio::test]
async fn a_message_is_sent_received_and_deleted() {
    let mut server = Server::new();
    let url = server.queue(&[]).await;
    let text =
        MessageAttributeValue::builder().data_type("String").string_value("Bar").build().expect("a text");
    let bytes = MessageAttributeValue::builder().data_type("Binary.x").binary_value(Blob::new([0, 255]));
    let bytes = bytes.build().expect("bytes");
    let body = "a\r\nü€ <&> \"quoted\"";
    let send = server.sqs.send_message().queue_url(&url).message_body(body);
    let sent = send.message_attributes("Foo", text.clone()).send().await.expect("sent");
    assert_eq!(sent.md5_of_message_attributes(), Some("ae7155c6026991b6d54b11589678bf9c"));
    let [message] = &server.receive(&url, 10).await[..] else { panic!("one message") };
    assert_eq!(message.message_id(), sent.message_id());
    assert_eq!(message.body(), Some(body));
    assert_eq!(message.md5_of_body(), sent.md5_of_message_body());
    assert_eq!(message.message_attributes(), Some(&HashMap::from([("Foo".to_owned(), text)])));
    let count =
        &message.attributes().expect("attributes")[&MessageSystemAttributeName::ApproximateReceiveCount];
    assert_eq!(count, "1");
    server.delete(&url, message).await;

    let send = server.sqs.send_message().queue_url(&url).message_body("b");
    send.message_attributes("bytes", bytes.clone()).send().await.expect("sent");
    let [message] = &server.receive(&url, 10).await[..] else { panic!("one message") };
    assert_eq!(message.message_attributes().expect("attributes")["bytes"], bytes);
    server.clean().await;
}

#[tokio::test]
async fn batches_tell_of_each_entry() {
    let mut server = Server::new();
    let url = server.queue(&[]).await;
    let mut send = server.sqs.send_message_batch().queue_url(&url);
    for n in 0..10 {
        let body = if n == 3 { "\u{1}".to_owned() } else { format!("m{n}") };
        let entry = SendMessageBatchRequestEntry::builder().id(format!("e{n}")).message_body(body);
        send = send.entries(entry.build().expect("an entry"));
    }
    let sent = send.send().await.expect("sent");
    assert_eq!(sent.successful().len(), 9);
    let [failed] = sent.failed() else { panic!("one fails") };
    assert_eq!((failed.id(), failed.code(), failed.sender_fault()), ("e3", "InvalidMessageContents", true));

    let mut deleted = 0;
    while deleted < 9 {
        let messages = server.receive(&url, 10).await;
        assert!(!messages.is_empty(), "{deleted} messages came, of 9");
        let mut delete = server.sqs.delete_message_batch().queue_url(&url);
        for (n, message) in messages.iter().enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            let entry = entry.receipt_handle(message.receipt_handle().expect("a handle"));
            delete = delete.entries(entry.build().expect("an entry"));
        }
        let answer = delete.send().await.expect("deleted");
        assert!(answer.failed().is_empty());
        deleted += answer.successful().len();
    }
    server.clean().await;
}

#[tokio::test]
async fn a_group_is_in_order_and_waits_while_one_of_it_is_held() {
    let mut server = Server::new();
    let url = server
        .queue(&[
            (QueueAttributeName::FifoQueue, "true"),
            (QueueAttributeName::ContentBasedDeduplication, "true"),
        ])
        .await;
    let send = async |body: &str| {
        let send = server.sqs.send_message().queue_url(&url).message_body(body).message_group_id(&body[..1]);
        send.send().await.expect("sent").sequence_number.expect("a number")
    };
    let first = send("a1").await;
    assert_eq!(send("a1").await, first, "a duplicate");
    assert!(send("a2").await > first);
    send("b1").await;
    let held = server.receive(&url, 1).await;
    assert_eq!(bodies(&held), ["a1"]);
    assert_eq!(bodies(&server.receive(&url, 10).await), ["b1"]);
    server.delete(&url, &held[0]).await;
    assert_eq!(bodies(&server.receive(&url, 10).await), ["a2"]);
    server.clean().await;
}

#[tokio::test]
async fn what_is_let_go_of_too_often_is_dead() {
    let mut server = Server::new();
    let dead = server.queue(&[]).await;
    let arn = QueueAttributeName::QueueArn;
    let found = server.sqs.get_queue_attributes().queue_url(&dead).attribute_names(arn.clone()).send().await;
    let found = found.expect("attributes").attributes.expect("attributes");
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":2}}"#, found[&arn]);
    let url = server.queue(&[(QueueAttributeName::RedrivePolicy, &policy)]).await;
    server.sqs.send_message().queue_url(&url).message_body("a").send().await.expect("sent");
    for _ in 0..2 {
        let [message] = &server.receive(&url, 10).await[..] else { panic!("one message") };
        let change = server.sqs.change_message_visibility().queue_url(&url).visibility_timeout(0);
        let handle = message.receipt_handle().expect("a handle");
        change.receipt_handle(handle).send().await.expect("let go of");
    }
    assert_eq!(bodies(&server.receive(&url, 10).await), [""; 0]);
    let [message] = &server.receive(&dead, 10).await[..] else { panic!("one message") };
    let source = MessageSystemAttributeName::DeadLetterQueueSourceArn;
    let name = url.rsplit('/').next().expect("a name");
    assert!(message.attributes().expect("attributes")[&source].ends_with(name));
    server.clean().await;
}

#[tokio::test]
async fn a_wait_ends_when_a_message_arrives() {
    let mut server = Server::new();
    let url = server.queue(&[]).await;
    let since = Instant::now();
    let waiting = tokio::spawn(server.sqs.receive_message().queue_url(&url).wait_time_seconds(20).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.sqs.send_message().queue_url(&url).message_body("a").send().await.expect("sent");
    let received = waiting.await.expect("no panic").expect("messages");
    assert_eq!(bodies(received.messages()), ["a"]);
    assert!(since.elapsed() < Duration::from_secs(15));
    server.clean().await;
}

#[tokio::test]
async fn pages_of_queues_are_walked_through() {
    let server = Server::new();
    let prefix = unique("-");
    let mut expected = BTreeSet::new();
    for n in 0..5 {
        let made = server.sqs.create_queue().queue_name(format!("{prefix}{n}")).send().await;
        expected.insert(made.expect("a queue").queue_url.expect("an address"));
    }
    let pages = server.sqs.list_queues().queue_name_prefix(&prefix).max_results(2).into_paginator();
    let found = pages.items().send().collect::<Result<Vec<String>, _>>().await.expect("pages");
    assert_eq!(BTreeSet::from_iter(found), expected);
    for url in expected {
        server.sqs.delete_queue().queue_url(url).send().await.expect("deleted");
    }
}

/// Status and code of an error that the service gave.
fn told<E: ProvideErrorMetadata>(error: &SdkError<E>) -> (u16, String) {
    let SdkError::ServiceError(service) = error else { panic!("the service answers") };
    (service.raw().status().as_u16(), service.err().code().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn errors_have_the_variants_of_the_sdk() {
    let mut server = Server::new();
    let url = server.queue(&[]).await;
    let name = url.rsplit('/').next().expect("a name").to_owned();
    let sqs = &server.sqs;

    let error = sqs.get_queue_url().queue_name(format!("{name}-nothing")).send().await.expect_err("no queue");
    assert_eq!(told(&error).0, 400);
    let error = error.into_service_error();
    assert!(error.is_queue_does_not_exist() && error.request_id().is_some(), "{error:?}");
    assert_eq!(error.message(), Some("The specified queue does not exist."));

    let delay = QueueAttributeName::DelaySeconds;
    let error =
        sqs.create_queue().queue_name(&name).attributes(delay, "5").send().await.expect_err("it is there");
    assert!(error.into_service_error().is_queue_name_exists());
    let error = sqs.send_message().queue_url(&url).message_body("\u{1}").send().await.expect_err("no text");
    assert!(error.into_service_error().is_invalid_message_contents());
    let error = sqs.delete_message_batch().queue_url(&url).set_entries(Some(Vec::new())).send().await;
    assert!(error.expect_err("no entries").into_service_error().is_empty_batch_request());
    let error =
        sqs.delete_message().queue_url(&url).receipt_handle("nothing").send().await.expect_err("no handle");
    assert!(error.into_service_error().is_receipt_handle_is_invalid());
    let source = "arn:aws:sqs:us-east-1:000000000000:compat-rust-nothing";
    let error = sqs.start_message_move_task().source_arn(source).send().await.expect_err("no source");
    assert_eq!(told(&error).0, 404);
    assert!(error.into_service_error().is_resource_not_found_exception());
    // The model does not know this one, which goes by the code of the older protocol.
    let error = sqs.send_message().queue_url(&url).message_body("b").delay_seconds(901).send().await;
    assert_eq!(told(&error.expect_err("too long")), (400, "InvalidParameterValue".to_owned()));
    server.clean().await;
}
