//! Producers and consumers of the SQS door: AWS JSON over HTTP/1.1, unsigned, one request at a time on a connection
//! that is kept. Everything goes to the address that was given, whatever queue URLs say.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::pace::{Feed, Next};
use super::stamp::{self, Stamp};
use super::tally::{Sent, Tally};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::http;
use crate::safe::{printable, printable_bytes};

pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:9324";
/// The largest batch that SQS takes and gives.
pub(super) const BATCH_MAX: u64 = 10;
/// How long a receive waits for the first message.
const WAIT_SECONDS: u32 = 20;
/// How long a producer waits that was told to try later.
const REST: Duration = Duration::from_millis(10);
/// How much is shown of an answer that is not an error of SQS.
const SHOWN_BYTES_MAX: usize = 200;

/// A queue by its URL, as it stands in JSON.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    url: String,
    is_fifo: bool,
}

/// Makes the queue, which must be new.
pub(super) async fn create(
    address: &str,
    name: &str,
    attributes: &Map<String, Value>,
) -> anyhow::Result<Queue> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Created {
        queue_url: String,
    }
    let mut connection = Connection::open(address).await?;
    match connection.ask("GetQueueUrl", json!({ "QueueName": name }).to_string()).await? {
        Answer::Done(_) => return Err(super::is_there_already(name)),
        Answer::Refused(refusal) if refusal.kind == "QueueDoesNotExist" => {}
        Answer::Refused(refusal) => return Err(refusal.error()),
    }
    let body = json!({ "QueueName": name, "Attributes": attributes });
    let created = connection.done("CreateQueue", body.to_string()).await?;
    let created: Created =
        serde_json::from_slice(&created).context("the server's answer cannot be understood")?;
    Ok(Queue { url: Value::from(created.queue_url).to_string(), is_fifo: name.ends_with(".fifo") })
}

pub(super) async fn delete(address: &str, queue: &Queue) -> anyhow::Result<()> {
    let body = format!(r#"{{"QueueUrl":{}}}"#, queue.url);
    Connection::open(address).await?.done("DeleteQueue", body).await.map(drop)
}

pub(super) struct Producer {
    pub(super) connection: Connection,
    pub(super) queue: Queue,
    pub(super) size: usize,
    pub(super) keys: u64,
}

impl Producer {
    pub(super) async fn run(
        mut self,
        mut feed: Feed,
        bell: Arc<Notify>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> anyhow::Result<()> {
        loop {
            let now = clock.now();
            match feed.next(now, BATCH_MAX) {
                Next::Send(count) => {
                    let batch = Sent { first: feed.take(count), count, at: now };
                    tally.send(&feed, batch);
                    self.send(&feed, batch, &tally, clock).await?;
                }
                // There is always room here, so it waits for something to be due.
                Next::Wait => bell.notified().await,
                Next::Over => {
                    tally.finish(&feed);
                    return Ok(());
                }
            }
        }
    }

    async fn send(&mut self, feed: &Feed, batch: Sent, tally: &Tally, clock: Clock) -> anyhow::Result<()> {
        let (action, body) = self.request(feed, batch);
        match self.connection.ask(action, body).await? {
            Answer::Refused(refusal) if refusal.is_for_now() => {
                tally.refuse(feed, batch);
                tokio::time::sleep(REST).await;
            }
            Answer::Refused(refusal) if refusal.status >= 500 => tally.lose_sight_of(batch),
            Answer::Refused(refusal) => return Err(refusal.error()),
            Answer::Done(reply) => {
                let now = clock.now();
                let failed =
                    if batch.count == 1 { Vec::new() } else { Batch::read(&reply, batch.count)?.failed };
                if failed.is_empty() {
                    tally.confirm(feed, batch, now);
                    return Ok(());
                }
                if let Some(fault) = failed.iter().find(|entry| entry.sender_fault) {
                    let (code, text) = (printable(&fault.code), printable(&fault.message));
                    bail!("the server refused a message: {code} {text}");
                }
                for index in 0..batch.count {
                    let one = Sent { first: batch.first + index, count: 1, at: batch.at };
                    match failed.iter().find(|entry| entry.id == index.to_string()) {
                        None => tally.confirm(feed, one, now),
                        Some(entry) if entry.code == "InternalError" || entry.code == "InternalFailure" => {
                            tally.lose_sight_of(one);
                        }
                        Some(_) => tally.refuse(feed, one),
                    }
                }
            }
        }
        Ok(())
    }

    fn request(&self, feed: &Feed, sent: Sent) -> (&'static str, String) {
        let mut body = String::with_capacity(128 + (self.size + 128) * sent.count as usize);
        let _ = write!(body, r#"{{"QueueUrl":{}"#, self.queue.url);
        let action = if sent.count == 1 {
            body.push(',');
            self.message(feed, sent.first, sent, &mut body);
            "SendMessage"
        } else {
            body.push_str(r#","Entries":["#);
            for index in 0..sent.count {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(body, r#"{comma}{{"Id":"{index}","#);
                self.message(feed, sent.first + index, sent, &mut body);
                body.push('}');
            }
            body.push(']');
            "SendMessageBatch"
        };
        body.push('}');
        (action, body)
    }

    fn message(&self, feed: &Feed, number: u64, sent: Sent, out: &mut String) {
        let stamp = Stamp { at: feed.since(number, sent.at), producer: feed.producer, number };
        let _ = write!(out, r#""MessageBody":"{}"#, stamp.encode_text());
        out.extend(std::iter::repeat_n('x', self.size - stamp::TEXT_BYTES));
        out.push('"');
        // A FIFO queue wants a group for everything.
        let keys = if self.queue.is_fifo { self.keys.max(1) } else { self.keys };
        if let Some(key) = super::key(keys, feed.producer, number) {
            let _ = write!(out, r#","MessageGroupId":"{key}""#);
        }
        if self.queue.is_fifo {
            let _ = write!(out, r#","MessageDeduplicationId":"{}-{number}""#, feed.producer);
        }
    }
}

pub(super) struct Consumer {
    pub(super) connection: Connection,
    pub(super) queue: Queue,
    /// The most that is asked for at once.
    pub(super) credit: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received<'a> {
    #[serde(borrow, default)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message<'a> {
    #[serde(borrow)]
    receipt_handle: Cow<'a, str>,
    #[serde(borrow)]
    body: Cow<'a, str>,
}

impl Consumer {
    /// Receives and deletes, for as long as it may.
    pub(super) async fn run(mut self, tally: Arc<Tally>, clock: Clock) -> anyhow::Result<()> {
        let receive = format!(
            r#"{{"QueueUrl":{},"MaxNumberOfMessages":{},"WaitTimeSeconds":{WAIT_SECONDS}}}"#,
            self.queue.url, self.credit
        );
        let mut stamps = Vec::new();
        loop {
            let reply = self.connection.done("ReceiveMessage", receive.clone()).await?;
            let now = clock.now();
            let received: Received<'_> =
                serde_json::from_slice(&reply).context("the server's answer cannot be understood")?;
            if received.messages.is_empty() {
                continue;
            }
            stamps.clear();
            stamps.extend(received.messages.iter().map(|message| Stamp::decode_text(&message.body)));
            tally.deliver(&stamps, now);
            let count = received.messages.len() as u64;
            let acked = self.delete(&received.messages).await?;
            tally.ack(acked, count - acked, clock.now());
        }
    }

    /// How many it could delete.
    async fn delete(&mut self, messages: &[Message<'_>]) -> anyhow::Result<u64> {
        let mut body = format!(r#"{{"QueueUrl":{}"#, self.queue.url);
        let handle = |message: &Message<'_>| Value::from(&*message.receipt_handle).to_string();
        if let [one] = messages {
            let _ = write!(body, r#","ReceiptHandle":{}}}"#, handle(one));
            return self.connection.done("DeleteMessage", body).await.map(|_| 1);
        }
        body.push_str(r#","Entries":["#);
        for (index, message) in messages.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(body, r#"{comma}{{"Id":"{index}","ReceiptHandle":{}}}"#, handle(message));
        }
        body.push_str("]}");
        let reply = self.connection.done("DeleteMessageBatch", body).await?;
        let count = messages.len() as u64;
        Ok(count - Batch::read(&reply, count)?.failed.len() as u64)
    }
}

/// The answer to a batch.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Batch {
    successful: Vec<serde::de::IgnoredAny>,
    failed: Vec<Failed>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Failed {
    id: String,
    code: String,
    message: String,
    sender_fault: bool,
}

impl Batch {
    fn read(reply: &[u8], count: u64) -> anyhow::Result<Batch> {
        let batch: Batch =
            serde_json::from_slice(reply).context("the server's answer cannot be understood")?;
        if (batch.successful.len() + batch.failed.len()) as u64 != count {
            bail!("the server did not answer for every message of a batch");
        }
        Ok(batch)
    }
}

enum Answer {
    Done(Bytes),
    Refused(Refusal),
}

/// An error of SQS.
#[derive(Debug)]
struct Refusal {
    status: u16,
    kind: String,
    text: String,
}

impl Refusal {
    fn read(status: u16, body: &[u8]) -> Refusal {
        #[derive(Deserialize)]
        struct Document {
            #[serde(rename = "__type")]
            kind: String,
            #[serde(default)]
            message: String,
        }
        match serde_json::from_slice::<Document>(body) {
            Ok(Document { kind, message }) => {
                let kind = kind.rsplit('#').next().unwrap_or_default().to_owned();
                Refusal { status, kind, text: printable(&message) }
            }
            Err(_) => {
                let shown = printable_bytes(&body[..body.len().min(SHOWN_BYTES_MAX)]);
                Refusal { status, kind: String::new(), text: format!("answer=`{shown}`") }
            }
        }
    }

    /// Nothing was stored, and it may go better later.
    fn is_for_now(&self) -> bool {
        self.status == 503 || self.kind.ends_with("RequestThrottled") || self.kind == "OverLimit"
    }

    fn error(self) -> anyhow::Error {
        let exit = match self.status {
            _ if self.is_for_now() => Exit::Later,
            401 | 403 => Exit::Denied,
            400..500 => Exit::NotUnderstood,
            _ => Exit::Unknown,
        };
        let kind = printable(&self.kind);
        anyhow!(exit).context(format!("SQS answered with status {}: {kind} {}", self.status, self.text))
    }
}

/// The API of SQS on one connection.
pub(super) struct Connection {
    address: String,
    http: http::Connection,
}

impl Connection {
    pub(super) async fn open(address: &str) -> anyhow::Result<Connection> {
        let opened = http::Connection::open(address).await;
        let http = opened.with_context(|| {
            format!(
                "cannot connect; does the server speak SQS there? --sqs takes another address. sqs=`{}`",
                printable(address)
            )
        })?;
        Ok(Connection { address: address.to_owned(), http })
    }

    /// The answer to a request that must succeed.
    async fn done(&mut self, action: &str, body: String) -> anyhow::Result<Bytes> {
        match self.ask(action, body).await? {
            Answer::Done(reply) => Ok(reply),
            Answer::Refused(refusal) => Err(refusal.error()),
        }
    }

    async fn ask(&mut self, action: &str, body: String) -> anyhow::Result<Answer> {
        let request = Request::post("/")
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .body(Full::new(Bytes::from(body)))
            .context(Exit::NotUnderstood)
            .with_context(|| super::no_sqs_address(&self.address))?;
        let (status, body) = self.http.exchange(request).await?;
        Ok(match status {
            200 => Answer::Done(body),
            _ => Answer::Refused(Refusal::read(status, &body)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_whether_it_is_for_now() {
        let read = |status, body: &str| Refusal::read(status, body.as_bytes());
        let gone = read(400, r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"no such\u001b"}"#);
        assert_eq!(
            (&*gone.kind, &*gone.text, gone.is_for_now()),
            ("QueueDoesNotExist", r"no such\x1b", false)
        );
        assert!(read(503, "{}").is_for_now());
        assert!(read(403, r#"{"__type":"com.amazonaws.sqs#RequestThrottled"}"#).is_for_now());
        let other = read(502, "<html>");
        assert_eq!(other.error().downcast_ref::<Exit>(), Some(&Exit::Unknown));
    }

    #[test]
    fn a_batch_is_answered_whole() {
        let reply = br#"{"Successful":[{"Id":"0"}],"Failed":[{"Id":"1","Code":"X","SenderFault":false}]}"#;
        assert_eq!(Batch::read(reply, 2).map(|batch| batch.failed.len()).ok(), Some(1));
        assert!(Batch::read(reply, 3).is_err());
        assert!(Batch::read(b"{}", 1).is_err());
        assert!(Batch::read(b"<", 1).is_err());
    }
}
