//! The few actions of SQS that are measured, over the AWS JSON protocol, unsigned.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::http::{Connection, post};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long received messages stay hidden: no measurement takes as long.
const VISIBILITY: &str = "3600";

pub(crate) struct Client {
    connection: Connection,
    host: String,
}

/// A queue of one server.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    host: String,
    url: String,
}

/// A request, ready to be sent any number of times.
pub(crate) struct Request(Vec<u8>);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created<'a> {
    #[serde(borrow)]
    queue_url: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct Received<'a> {
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message<'a> {
    #[serde(borrow)]
    receipt_handle: Cow<'a, str>,
}

/// The answer to a batch. Servers leave out empty lists.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Batch {
    successful: Vec<IgnoredAny>,
    failed: Vec<IgnoredAny>,
}

impl Client {
    pub(crate) async fn open(address: &str) -> Outcome<Client> {
        Ok(Client { connection: Connection::open(address).await?, host: address.to_owned() })
    }

    pub(crate) async fn list(&mut self) -> Outcome<()> {
        let request = Request::new(&self.host, "ListQueues", "{}");
        self.ask(&request).await.map(drop)
    }

    pub(crate) async fn create(&mut self, name: &str, is_fifo: bool) -> Outcome<Queue> {
        let (end, fifo) = if is_fifo { (".fifo", r#","FifoQueue":"true""#) } else { ("", "") };
        let body = format!(
            r#"{{"QueueName":"{name}{end}","Attributes":{{"VisibilityTimeout":"{VISIBILITY}"{fifo}}}}}"#
        );
        let request = Request::new(&self.host, "CreateQueue", &body);
        let host = self.host.clone();
        let created: Created<'_> = serde_json::from_slice(self.ask(&request).await?)?;
        Ok(Queue { host, url: created.queue_url.into_owned() })
    }

    pub(crate) async fn delete_queue(&mut self, queue: &Queue) -> Outcome<()> {
        self.ask(&queue.request("DeleteQueue", "")).await.map(drop)
    }

    pub(crate) async fn send(&mut self, request: &Request) -> Outcome<()> {
        self.ask(request).await.map(drop)
    }

    /// A batch of which everything must be taken.
    pub(crate) async fn send_all(&mut self, request: &Request, count: usize) -> Outcome<()> {
        let batch: Batch = serde_json::from_slice(self.ask(request).await?)?;
        batch.check(count)
    }

    /// The receipt handles of what there is.
    pub(crate) async fn receive(&mut self, request: &Request) -> Outcome<Vec<String>> {
        let received: Received<'_> = serde_json::from_slice(self.ask(request).await?)?;
        let messages = received.messages.unwrap_or_default();
        Ok(messages.into_iter().map(|message| message.receipt_handle.into_owned()).collect())
    }

    pub(crate) async fn delete(&mut self, queue: &Queue, handles: &[String]) -> Outcome<()> {
        match handles {
            [] => Ok(()),
            [one] => self.ask(&queue.delete(one)).await.map(drop),
            many => {
                let batch: Batch = serde_json::from_slice(self.ask(&queue.delete_all(many)).await?)?;
                batch.check(many.len())
            }
        }
    }

    async fn ask(&mut self, request: &Request) -> Outcome<&[u8]> {
        let reply = self.connection.ask(&request.0).await?;
        match reply.status {
            200 => Ok(reply.body),
            status => Err(format!("{status} {}", String::from_utf8_lossy(reply.body)).into()),
        }
    }
}

impl Batch {
    fn check(&self, count: usize) -> Outcome<()> {
        let (done, failed) = (self.successful.len(), self.failed.len());
        if done == count && failed == 0 {
            return Ok(());
        }
        Err(format!("not all of a batch was done. entries=`{count}` done=`{done}` failed=`{failed}`").into())
    }
}

impl Request {
    fn new(host: &str, action: &str, body: &str) -> Request {
        Request(post(host, &format!("AmazonSQS.{action}"), body.as_bytes()))
    }
}

impl Queue {
    fn request(&self, action: &str, rest: &str) -> Request {
        Request::new(&self.host, action, &format!(r#"{{"QueueUrl":"{}"{rest}}}"#, self.url))
    }

    pub(crate) fn receive(&self, max: usize, wait: u32) -> Request {
        let rest = format!(r#","MaxNumberOfMessages":{max},"WaitTimeSeconds":{wait}"#);
        self.request("ReceiveMessage", &rest)
    }

    fn delete(&self, handle: &str) -> Request {
        self.request("DeleteMessage", &format!(r#","ReceiptHandle":{}"#, quoted(handle)))
    }

    fn delete_all(&self, handles: &[String]) -> Request {
        let mut entries = String::new();
        for (n, handle) in handles.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            let _ = write!(entries, r#"{comma}{{"Id":"{n}","ReceiptHandle":{}}}"#, quoted(handle));
        }
        self.request("DeleteMessageBatch", &format!(r#","Entries":[{entries}]"#))
    }

    /// One message on its own, or a batch. Each message of a FIFO queue has what `fifo` gives: its group and its id.
    pub(crate) fn send(
        &self,
        size: usize,
        batch: usize,
        mut fifo: Option<&mut dyn FnMut() -> (String, String)>,
    ) -> Request {
        let body = "x".repeat(size);
        let mut message = || {
            let names = fifo.as_mut().map(|next| next());
            let names = names
                .map(|(group, id)| format!(r#","MessageGroupId":"{group}","MessageDeduplicationId":"{id}""#));
            format!(r#""MessageBody":"{body}"{}"#, names.unwrap_or_default())
        };
        if batch == 1 {
            return self.request("SendMessage", &format!(",{}", message()));
        }
        let entries: Vec<String> = (0..batch).map(|n| format!(r#"{{"Id":"{n}",{}}}"#, message())).collect();
        self.request("SendMessageBatch", &format!(r#","Entries":[{}]"#, entries.join(",")))
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
