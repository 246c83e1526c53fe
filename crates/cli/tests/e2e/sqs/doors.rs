//! A queue is a stream with one group: what comes in by one door goes out by another.

use serde_json::json;

use crate::rig::Folder;
use crate::sqs::rig::{Process, bodies};

#[tokio::test]
async fn messages_go_from_one_door_to_another() {
    let folder = Folder::new("doors");
    let server = Process::start(&folder);
    let client = &server.client;
    let queue = client.create("orders", json!({})).await;
    server.run(&["pub", "orders", "--key", "k", "--type", "placed", "--header", "tenant=a", "{\"n\":1}"]);
    let taken = client.receive(&queue, json!({})).await;
    assert_eq!(bodies(&taken), ["{\"n\":1}"]);
    assert_eq!(taken[0]["MessageAttributes"]["tenant"], json!({ "DataType": "String", "StringValue": "a" }));
    assert_eq!(taken[0]["MessageAttributes"]["forebay.type"]["StringValue"], "placed");
    assert_eq!(taken[0]["Attributes"]["MessageGroupId"], "k");
    client.delete(&queue, &taken[0]).await;

    let message = json!({
        "QueueUrl": queue, "MessageBody": "\"from sqs\"", "MessageGroupId": "g",
        "MessageAttributes": { "colour": { "DataType": "String", "StringValue": "red" } },
    });
    client.call("SendMessage", message).await;
    let got = server.run(&["sub", "orders/queue", "--ack", "--max", "1", "-o", "json"]);
    for part in ["from sqs", "\"colour\"", "\"red\"", "\"g\""] {
        assert!(got.contains(part), "{part} is not in {got}");
    }
    assert_eq!(client.counts(&queue).await, ["0", "0", "0"], "what another door settled is settled");
}

#[tokio::test]
async fn a_queue_whose_stream_is_deleted_is_gone() {
    let folder = Folder::new("gone");
    let server = Process::start(&folder);
    let client = &server.client;
    let queue = client.create("orders", json!({})).await;
    server.run(&["stream", "delete", "orders", "--yes"]);
    let send = json!({ "QueueUrl": queue, "MessageBody": "x" });
    let none = "AWS.SimpleQueueService.NonExistentQueue";
    assert_eq!(client.refused("SendMessage", send).await, none);
    assert_eq!(client.refused("GetQueueUrl", json!({ "QueueName": "orders" })).await, none);
    let listed = server.run(&["stream", "list", "-o", "json"]);
    assert!(!listed.contains("orders"), "sending does not bring it back: {listed}");
    client.create("orders", json!({})).await;
    client.send_text(&queue, "x").await;
}

#[tokio::test]
async fn what_another_door_made_of_a_queues_name_is_not_the_queues() {
    let folder = Folder::new("renewed");
    let server = Process::start(&folder);
    let client = &server.client;
    let queue = client.create("orders", json!({})).await;
    server.run(&["stream", "delete", "orders", "--yes"]);
    // A client that creates it finds it gone, although no request has named it since.
    client.create("orders", json!({ "VisibilityTimeout": "7" })).await;
    client.send_text(&queue, "x").await;
    assert_eq!(client.attribute(&queue, "VisibilityTimeout").await, "7");
    server.run(&["stream", "delete", "orders", "--yes"]);
    server.run(&["pub", "orders", "mine"]);
    let none = "AWS.SimpleQueueService.NonExistentQueue";
    assert_eq!(client.refused("DeleteQueue", json!({ "QueueUrl": queue })).await, none);
    assert!(server.run(&["stream", "list", "-o", "json"]).contains("orders"), "it is somebody else's stream");
}

#[tokio::test]
async fn a_stream_that_is_there_becomes_a_queue_and_keeps_its_messages() {
    let folder = Folder::new("adopted");
    let server = Process::start(&folder);
    let client = &server.client;
    server.run(&["pub", "orders", "old"]);
    let queue = client.create("orders", json!({})).await;
    assert_eq!(bodies(&client.receive(&queue, json!({})).await), ["old"]);
    let shown = server.run(&["stream", "show", "orders", "-o", "json"]);
    assert!(!shown.contains("345600"), "its retention is nobody's but its owner's: {shown}");
}

#[tokio::test]
async fn bytes_from_another_door_come_as_base64() {
    let folder = Folder::new("bytes");
    let server = Process::start(&folder);
    let queue = server.client.create("orders", json!({})).await;
    let publish = json!({ "messages": [{ "body_base64": "AAH/" }] }).to_string();
    let native = crate::sqs::rig::Client::new(&server.native);
    let answer = native
        .send("POST", "/streams/orders/messages", &[("content-type", "application/json")], &publish)
        .await;
    assert!(answer.status < 300, "{}", answer.body);
    let taken = server.client.receive(&queue, json!({})).await;
    assert_eq!(bodies(&taken), ["AAH/"]);
    assert_eq!(taken[0]["MessageAttributes"]["forebay.body"]["StringValue"], "base64");
}

#[tokio::test]
async fn queue_urls_are_on_the_host_that_was_asked() {
    let folder = Folder::new("hosts");
    let server = Process::start_with(&[
        "--data",
        folder.path(),
        "--sqs",
        "127.0.0.1:0",
        "--host-names",
        "sqs.example.com",
    ]);
    for host in ["localhost:1234", "127.0.0.1:9324", "sqs.example.com"] {
        let client = server.client.clone().with("host", host);
        assert_eq!(client.create("q", json!({})).await, format!("http://{host}/000000000000/q"));
    }
    // A page of another site must not be able to use what listens on its reader's machine.
    for (name, value) in
        [("host", "evil.example"), ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")]
    {
        let client = server.client.clone().with(name, value);
        let answer = client.ask("ListQueues", json!({})).await;
        assert_eq!((answer.status, answer.error().0.as_str()), (403, "AccessDenied"), "{name}");
    }
}
