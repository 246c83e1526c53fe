//! A queue is a stream with one group: what comes in by one door goes out by another.

use bytes::Bytes;
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::{
    Empty, MetadataEntry, StreamIdentifier, StreamOptions, Uuid, UuidOption, uuid, uuid_option,
};
use forebay_wire::kurrent::streams::streams_client::StreamsClient;
use forebay_wire::kurrent::streams::{
    AppendReq, ProposedMessage, ReadReq, WriteOptions, append_req, read_req, read_resp, write_options,
};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::rig::Folder;
use crate::sqs::rig::{Client, Process, bodies};

async fn channel(address: &str) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("it listens")
}

/// A client of KurrentDB in a few lines. `compat/kurrent` has the official ones.
struct Kurrent {
    streams: StreamsClient<Channel>,
    appended: u32,
}

impl Kurrent {
    async fn connect(address: &str) -> Kurrent {
        Kurrent { streams: StreamsClient::new(channel(address).await), appended: 0 }
    }

    async fn append(&mut self, stream: &str, content_type: &'static str, data: &[u8]) {
        let expected = Some(write_options::Expected::Any(Empty {}));
        let options =
            WriteOptions { stream_identifier: Some(identifier(stream)), expected, deadline_option: None };
        self.appended += 1;
        let id = uuid::Value::String(format!("11111111-2222-3333-4444-{:012}", self.appended));
        let event = ProposedMessage {
            id: Some(Uuid { value: Some(id) }),
            metadata: [("type", "told"), ("content-type", content_type)]
                .map(|(name, value)| MetadataEntry::new(name, value))
                .into(),
            custom_metadata: Bytes::new(),
            data: data.to_vec().into(),
        };
        let parts = [append_req::Content::Options(options), append_req::Content::ProposedMessage(event)];
        let parts = parts.map(|content| AppendReq { content: Some(content) });
        self.streams.append(tokio_stream::iter(parts)).await.expect("it is appended");
    }

    /// The content type and the data of the message at this position.
    async fn read(&mut self, stream: &str, seq: u64) -> (String, Vec<u8>) {
        use read_req::options::{CountOption, FilterOption, StreamOption};
        let revision = Some(RevisionOption::Revision(seq - 1));
        let of = StreamOptions { stream_identifier: Some(identifier(stream)), revision_option: revision };
        let options = read_req::Options {
            stream_option: Some(StreamOption::Stream(of)),
            count_option: Some(CountOption::Count(1)),
            filter_option: Some(FilterOption::NoFilter(Empty {})),
            uuid_option: Some(UuidOption { content: Some(uuid_option::Content::String(Empty {})) }),
            ..read_req::Options::default()
        };
        let asked = self.streams.read(ReadReq { options: Some(options) }).await;
        let mut replies = asked.expect("it is read").into_inner();
        while let Some(reply) = replies.message().await.expect("it goes on") {
            if let Some(read_resp::Content::Event(read)) = reply.content {
                let event = read.event.expect("an event");
                let content_type = MetadataEntry::find(&event.metadata, "content-type");
                return (content_type.expect("a content type").to_owned(), event.data.to_vec());
            }
        }
        panic!("there is no message {seq}");
    }
}

fn identifier(stream: &str) -> StreamIdentifier {
    StreamIdentifier { stream_name: Bytes::copy_from_slice(stream.as_bytes()) }
}

/// The ways in and out of a stream.
struct Doors {
    server: Process,
    native: Client,
    grpc: ForebayClient<Channel>,
    kurrent: Kurrent,
    queue: String,
}

impl Doors {
    async fn open(folder: &Folder) -> Doors {
        let ports = ["--sqs", "127.0.0.1:0", "--kurrent", "127.0.0.1:0"];
        let server = Process::start_with(&[&["--data", folder.path()], &ports[..]].concat());
        let queue = server.client.create("mix", json!({})).await;
        let grpc = ForebayClient::new(channel(&server.native).await);
        let kurrent = Kurrent::connect(server.kurrent.as_deref().expect("it listens for them")).await;
        Doors { native: Client::new(&server.native), server, grpc, kurrent, queue }
    }

    async fn http(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.native.send(method, path, &[("content-type", "application/json")], &body).await;
        assert!(answer.status < 300, "{}", answer.body);
        answer.json()
    }

    /// Publishes a text by one door.
    async fn publish(&mut self, door: &str, text: &str) {
        match door {
            "pub" => drop(self.server.run(&["pub", "mix", text])),
            "pub --content-type" => {
                self.server.run(&["pub", "mix", "--content-type", "text/plain", text]);
            }
            "HTTP" => {
                let messages = json!({ "messages": [{ "body_text": text }] });
                self.http("POST", "/streams/mix/messages", &messages).await;
            }
            "gRPC" => {
                let message = v1::Message { body: text.to_owned().into(), ..Default::default() };
                let request = v1::PublishRequest {
                    stream: "mix".to_owned(),
                    messages: vec![message],
                    ..Default::default()
                };
                let replies = self.grpc.publish(tokio_stream::iter([request])).await.expect("it opens");
                let reply = replies.into_inner().message().await.expect("it goes on").expect("a reply");
                assert_eq!(reply.confirmations[0].problem, None);
            }
            "SQS" => drop(self.server.client.send_text(&self.queue, text).await),
            other => unreachable!("{other}"),
        }
    }

    /// The only message of the stream, as each door shows it.
    async fn read(&mut self, seq: u64) -> Vec<(&'static str, String)> {
        let group = format!("mix/g{seq}");
        self.http("PUT", &format!("/subscriptions/{group}"), &json!({ "start": { "seq": seq } })).await;
        let (_, event) = self.kurrent.read("mix", seq).await;
        let http = |message: &Value| {
            // A text that is a JSON object may be shown as one.
            let text = message["body_text"].as_str().map(str::to_owned);
            text.unwrap_or_else(|| message["body"].to_string())
        };
        let browsed = self.http("GET", &format!("/streams/mix/messages?from={seq}"), &Value::Null).await;
        let received = self.http("POST", &format!("/subscriptions/{group}/receive"), &json!({})).await;
        let leases = json!({ "leases": [received["messages"][0]["lease"]], "action": "return" });
        self.http("POST", &format!("/subscriptions/{group}/nack"), &leases).await;
        let request = v1::ReadMessagesRequest { stream: "mix".to_owned(), from: seq, ..Default::default() };
        let read = self.grpc.read_messages(request).await.expect("it is read").into_inner();
        let read = read.messages[0].message.clone().expect("a message").body;
        let sub = self.server.run(&["sub", &group, "--ack", "--max", "1", "--raw"]);
        let taken = self.server.client.receive(&self.queue, json!({})).await;
        self.server.client.delete(&self.queue, &taken[0]).await;
        vec![
            ("HTTP, read", http(&browsed["messages"][0])),
            ("HTTP, received", http(&received["messages"][0])),
            ("gRPC", String::from_utf8(read.to_vec()).expect("text")),
            ("sub", sub.strip_suffix('\n').expect("a line").to_owned()),
            ("SQS", bodies(&taken)[0].to_owned()),
            ("Kurrent", String::from_utf8(event).expect("text")),
        ]
    }
}

#[tokio::test]
async fn text_is_text_by_whichever_door_it_comes_and_goes() {
    let folder = Folder::new("texts");
    let mut doors = Doors::open(&folder).await;
    let mut seq = 0;
    let texts = ["hello", "42", "null", "\"quoted\"", "{\"n\":1}", "grüße, 世界"];
    for text in texts {
        for door in ["pub", "pub --content-type", "HTTP", "gRPC", "SQS"] {
            doors.publish(door, text).await;
            seq += 1;
            for (reader, shown) in doors.read(seq).await {
                assert_eq!(shown, text, "published by {door}, read by {reader}");
            }
        }
    }
    let list = doors.http("GET", "/streams/mix/messages?limit=1000", &Value::Null).await;
    let said = |n: usize| list["messages"][n].as_object().expect("a message").contains_key("body_text");
    assert!((0..20).all(said), "text that is no JSON object or array is text, by every door");
    assert!(said(21) && said(22), "text that is said to be text is text, whatever it looks like");
    // A handler finds the same bytes on its standard input.
    let out = Folder::made("texts-handled");
    let command = format!("cat > {}/$FOREBAY_SEQ.body", out.path());
    doors.server.run(&["work", "mix/workers", "--create", "--exec", &command, "--idle", "1s"]);
    for (n, text) in texts.iter().flat_map(|text| std::iter::repeat_n(text, 5)).enumerate() {
        let body = std::fs::read_to_string(out.file(&format!("{}.body", n + 1))).expect("it was handled");
        assert_eq!(&body, text, "message {}", n + 1);
    }
}

#[tokio::test]
async fn json_and_bytes_are_the_same_by_every_door() {
    let folder = Folder::new("contents");
    let mut doors = Doors::open(&folder).await;
    let messages = json!({ "messages": [
        { "body": { "n": 1.50 } }, { "body": "text" }, { "body_base64": "AP8=", "key_base64": "/w==" },
        { "body_base64": "iVBORw==", "content_type": "image/png", "headers_base64": { "raw": "/w==" } },
        { "no_body": true },
    ] });
    doors.http("POST", "/streams/mix/messages", &messages).await;
    let request = v1::ReadMessagesRequest { stream: "mix".to_owned(), ..Default::default() };
    let read = doors.grpc.read_messages(request).await.expect("it is read").into_inner().messages;
    let read: Vec<v1::Message> = read.into_iter().map(|stored| stored.message.expect("a message")).collect();
    let shown: Vec<(&[u8], &str)> = read.iter().map(|of| (&of.body[..], &of.content_type[..])).collect();
    assert_eq!(
        shown,
        [
            (&b"{\"n\":1.5}"[..], "application/json"),
            (b"\"text\"", "application/json"),
            (b"\x00\xff", "application/octet-stream"),
            (b"\x89PNG", "image/png"),
            (b"", ""),
        ]
    );
    assert_eq!((&read[2].key_bytes[..], &read[3].headers[0].value_bytes[..]), (&b"\xff"[..], &b"\xff"[..]));
    assert!(read[4].no_body && !read[3].no_body);
    let taken = doors.server.client.receive(&doors.queue, json!({})).await;
    assert_eq!(bodies(&taken), ["{\"n\":1.5}", "\"text\"", "AP8=", "iVBORw==", ""]);
    let attribute = |n: usize, name: &str| taken[n]["MessageAttributes"][name].clone();
    assert_eq!(attribute(2, "forebay.body")["StringValue"], "base64");
    assert_eq!(taken[2]["Attributes"]["MessageGroupId"], "/w==");
    assert_eq!(attribute(3, "forebay.content-type")["StringValue"], "image/png");
    assert_eq!(attribute(3, "raw"), json!({ "DataType": "Binary", "BinaryValue": "/w==" }));
    assert_eq!(attribute(4, "forebay.body")["StringValue"], "none");
    // The other way: bytes of an attribute are a header's.
    let message = json!({
        "QueueUrl": doors.queue, "MessageBody": "[1]",
        "MessageAttributes": { "raw": { "DataType": "Binary", "BinaryValue": "AP8=" } },
    });
    doors.server.client.call("SendMessage", message).await;
    let list = doors.http("GET", "/streams/mix/messages?from=6", &Value::Null).await;
    let message = &list["messages"][0];
    assert_eq!((&message["body"], &message["headers_base64"]["raw"]), (&json!([1]), &json!("AP8=")));
    for (shown, sent) in doors.http("GET", "/streams/mix/messages", &Value::Null).await["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(messages["messages"].as_array().expect("a list"))
    {
        for (field, value) in sent.as_object().expect("an object") {
            assert_eq!(&shown[field], value, "{field}");
        }
    }
    let lines = doors.server.run(&["sub", "mix/all", "--create", "--ack", "--max", "6", "-o", "json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (line, sent) in lines.iter().zip(messages["messages"].as_array().expect("a list")) {
        for (field, value) in sent.as_object().expect("an object") {
            assert_eq!(&line[field], value, "{field} over the command line");
        }
    }
}

/// What a KurrentDB client says of the contents of an event, it says to every other door, and the other way.
#[tokio::test]
async fn events_of_kurrent_are_the_same_by_every_door() {
    let folder = Folder::new("events");
    let mut doors = Doors::open(&folder).await;
    let (json, binary) = ("application/json", "application/octet-stream");
    let events: [(&str, &[u8]); 4] =
        [(json, b"{\"n\": 1}"), (json, b"\"text\""), (binary, b"hello"), (binary, b"\x00\xff")];
    for (content_type, data) in events {
        doors.kurrent.append("mix", content_type, data).await;
    }
    for (n, event) in events.iter().enumerate() {
        let (content_type, data) = doors.kurrent.read("mix", n as u64 + 1).await;
        assert_eq!((&content_type[..], &data[..]), *event);
    }
    let shown = [
        json!({ "body": { "n": 1 } }),
        json!({ "body": "text" }),
        json!({ "body_base64": "aGVsbG8=" }),
        json!({ "body_base64": "AP8=" }),
    ];
    let fields = |message: &Value| {
        let names = ["body", "body_text", "body_base64", "no_body", "content_type"];
        let given = names.iter().filter(|name| !message[**name].is_null());
        given.map(|name| ((*name).to_owned(), message[*name].clone())).collect::<Value>()
    };
    let listed = doors.http("GET", "/streams/mix/messages", &Value::Null).await;
    let listed: Vec<Value> = listed["messages"].as_array().expect("a list").iter().map(fields).collect();
    assert_eq!(listed, shown, "over HTTP");
    let lines = doors.server.run(&["sub", "mix/all", "--create", "--ack", "--max", "4", "-o", "json"]);
    let lines: Vec<Value> =
        lines.lines().map(|line| fields(&serde_json::from_str(line).expect("JSON"))).collect();
    assert_eq!(lines, shown, "on the command line");
    let request = v1::ReadMessagesRequest { stream: "mix".to_owned(), ..Default::default() };
    let read = doors.grpc.read_messages(request).await.expect("it is read").into_inner().messages;
    for (stored, (content_type, data)) in read.iter().zip(events) {
        let message = stored.message.as_ref().expect("a message");
        assert_eq!((&message.content_type[..], &message.body[..]), (content_type, data), "over gRPC");
    }
    let taken = doors.server.client.receive(&doors.queue, json!({})).await;
    assert_eq!(bodies(&taken), ["{\"n\": 1}", "\"text\"", "hello", "AP8="], "over SQS");

    // The other way.
    let messages = json!({ "messages": [
        { "body": 7 }, { "body_text": "{}" }, { "body_base64": "AP8=" }, { "no_body": true },
        { "body": {}, "content_type": "application/cloudevents+json" },
    ] });
    doors.http("POST", "/streams/mix/messages", &messages).await;
    doors.publish("pub", "[1]").await;
    doors.publish("pub", "hello").await;
    doors.publish("SQS", "{\"n\":1}").await;
    let expected: [(&str, &[u8]); 8] = [
        (json, b"7"),
        (binary, b"{}"),
        (binary, b"\x00\xff"),
        (binary, b""),
        (json, b"{}"),
        (json, b"[1]"),
        (binary, b"hello"),
        (json, b"{\"n\":1}"),
    ];
    for (n, event) in expected.iter().enumerate() {
        let (content_type, data) = doors.kurrent.read("mix", n as u64 + 5).await;
        assert_eq!((&content_type[..], &data[..]), *event, "message {}", n + 5);
    }
}

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
    let native = Client::new(&server.native);
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
