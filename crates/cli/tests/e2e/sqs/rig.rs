//! A client of SQS in a few lines, and servers for it.

use std::sync::Arc;
use std::time::Duration;

use forebay_broker::broker::{Broker, BrokerConfig};
use forebay_broker::clock::Clock;
use forebay_core::types::ShardId;
use forebay_doors::sqs::{self, SqsConfig};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{self, Folder, address_after};

const FRAME_BYTES_MAX: usize = 12 << 20;

/// A client of the SQS door.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    headers: Vec<(String, String)>,
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| json!({}))
    }

    /// The code and the text of an error.
    pub(crate) fn error(&self) -> (String, String) {
        let code =
            self.head.lines().find_map(|line| line.strip_prefix("x-amzn-query-error: ")).unwrap_or_default();
        let code = code.split(';').next().unwrap_or_default().to_owned();
        (code, self.json()["message"].as_str().unwrap_or_default().to_owned())
    }
}

impl Client {
    pub(crate) fn new(address: &str) -> Client {
        Client { address: address.to_owned(), headers: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Client {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends a request as it is.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.try_send(method, path, headers, body).await.expect("the server answers")
    }

    /// The answer, if the server lives until it has been read.
    async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Answer> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<(&str, &str)> = own.chain(headers.iter().copied()).collect();
        if !all.iter().any(|(name, _)| *name == "host") {
            request += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in all {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let text = String::from_utf8(answer).expect("text");
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// An action, whatever comes of it.
    pub(crate) async fn ask(&self, action: &str, body: Value) -> Answer {
        self.try_ask(action, body).await.expect("the server answers")
    }

    /// An action, if the server lives until it is answered.
    pub(crate) async fn try_ask(&self, action: &str, body: Value) -> Option<Answer> {
        let target = format!("AmazonSQS.{action}");
        let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", target.as_str())];
        self.try_send("POST", "/", &headers, &body.to_string()).await
    }

    /// An action, of which the client waits no longer than this for what comes of it.
    pub(crate) async fn ask_and_leave(&self, action: &str, body: &Value, patience: Duration) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).await.expect("the server listens");
        let request = format!(
            "POST / HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-amz-json-1.0\r\n\
             x-amz-target: AmazonSQS.{action}\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        tokio::time::sleep(patience).await;
    }

    /// An action that succeeds.
    pub(crate) async fn call(&self, action: &str, body: Value) -> Value {
        let answer = self.ask(action, body.clone()).await;
        assert_eq!(answer.status, 200, "{action} {body}: {}", answer.body);
        answer.json()
    }

    /// The code of the error that an action comes to.
    pub(crate) async fn refused(&self, action: &str, body: Value) -> String {
        let answer = self.ask(action, body.clone()).await;
        assert_ne!(answer.status, 200, "{action} {body}: {}", answer.body);
        answer.error().0
    }

    pub(crate) async fn create(&self, name: &str, attributes: Value) -> String {
        let created = self.call("CreateQueue", json!({ "QueueName": name, "Attributes": attributes })).await;
        created["QueueUrl"].as_str().expect("a URL").to_owned()
    }

    pub(crate) async fn send_text(&self, queue: &str, body: &str) -> Value {
        self.call("SendMessage", json!({ "QueueUrl": queue, "MessageBody": body })).await
    }

    /// What there is now, at most ten.
    pub(crate) async fn receive(&self, queue: &str, more: Value) -> Vec<Value> {
        let mut wish = json!({
            "QueueUrl": queue, "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        for (name, value) in more.as_object().expect("members") {
            wish[name] = value.clone();
        }
        let received = self.call("ReceiveMessage", wish).await;
        received["Messages"].as_array().cloned().unwrap_or_default()
    }

    pub(crate) async fn delete(&self, queue: &str, message: &Value) {
        let handle = &message["ReceiptHandle"];
        self.call("DeleteMessage", json!({ "QueueUrl": queue, "ReceiptHandle": handle })).await;
    }

    pub(crate) async fn attribute(&self, queue: &str, name: &str) -> String {
        let wish = json!({ "QueueUrl": queue, "AttributeNames": [name] });
        let answered = self.call("GetQueueAttributes", wish).await;
        answered["Attributes"][name].as_str().unwrap_or_default().to_owned()
    }

    /// Visible, in flight, delayed.
    pub(crate) async fn counts(&self, queue: &str) -> [String; 3] {
        let names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ];
        let wish = json!({ "QueueUrl": queue, "AttributeNames": names });
        let answered = self.call("GetQueueAttributes", wish).await;
        names.map(|name| answered["Attributes"][name].as_str().unwrap_or_default().to_owned())
    }
}

pub(crate) fn bodies(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["Body"].as_str().expect("a body")).collect()
}

/// A server whose clock the test moves.
pub(crate) struct Still {
    pub(crate) client: Client,
    pub(crate) broker: Broker,
}

impl Still {
    pub(crate) async fn start() -> Still {
        Still::start_with(SqsConfig { waits: true, ..SqsConfig::new([7; 32]) }).await
    }

    pub(crate) async fn start_with(config: SqsConfig) -> Still {
        let engine = MemoryEngine::new(MemoryLog::new(ShardId(0), FRAME_BYTES_MAX));
        let opened = Broker::open(Arc::new(engine), Clock::still(), BrokerConfig::new([7; 32])).await;
        let (broker, _running) = opened.expect("it opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(sqs::serve(broker.entrance(), listener, broker.stopping(), config));
        Still { client: Client::new(&address), broker }
    }

    pub(crate) async fn advance(&self, seconds: u64) {
        self.broker.advance(Duration::from_secs(seconds)).await;
    }
}

/// A server process. Killed if the test does not end it.
pub(crate) struct Process {
    process: rig::Process,
    pub(crate) native: String,
    /// Where KurrentDB clients connect, if the words of the test ask for it.
    pub(crate) kurrent: Option<String>,
    pub(crate) client: Client,
}

impl Process {
    pub(crate) fn start(folder: &Folder) -> Process {
        Process::start_with(&["--data", folder.path(), "--sqs", "127.0.0.1:0"])
    }

    pub(crate) fn start_with(words: &[&str]) -> Process {
        let usual = ["--log", "text", "--drain-timeout", "1s", "--listen", "127.0.0.1:0"];
        let listens = |line: &str| {
            let native = address_after("listening on ", line)?;
            let sqs = address_after("SQS on ", line).unwrap_or_default();
            Some((native, sqs, address_after("Kurrent on ", line)))
        };
        let (process, (native, sqs, kurrent)) = rig::Process::serve(&[&usual[..], words].concat(), listens);
        Process { process, native, kurrent, client: Client::new(&sqs) }
    }

    /// As a power failure ends it, as far as the process is concerned.
    pub(crate) fn kill(self) {
        self.process.kill();
    }

    /// As an operator ends it.
    pub(crate) fn stop(self) {
        self.process.stop();
    }

    /// Runs a command against the server, and gives what it printed.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        rig::run(&[words, &["--server", &self.native]].concat(), "", &[]).good()
    }
}
