//! `forebay pub` and `forebay sub`: a person's way in, over the same gRPC as everyone's.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::exit::{Exit, say};
use crate::{Pub, Server, Sub};

/// What is published as one batch at most.
const MESSAGES_PER_BATCH: usize = 256;
const BYTES_PER_BATCH: usize = 1 << 20;
/// Requests that wait to be sent.
const REQUESTS_MAX: usize = 64;
/// What `sub` holds at a time if it acks, and at most if it does not.
const CREDIT: u32 = 256;
const CREDIT_MAX: u32 = 100_000;

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}

async fn connect(server: &Server) -> anyhow::Result<ForebayClient<Channel>> {
    let address = server.server.strip_prefix("http://").unwrap_or(&server.server);
    let endpoint = Channel::from_shared(format!("http://{address}"))
        .with_context(|| format!("that is no address. server=`{}`", server.server))?;
    let channel = endpoint.connect().await.context(Exit::Unreachable).with_context(|| {
        format!("cannot connect; is the server running? --server takes another. server=`{}`", server.server)
    })?;
    Ok(ForebayClient::new(channel))
}

pub(crate) fn publish(options: &Pub) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let mut client = connect(&options.server).await?;
        let (requests, sent) = mpsc::channel(REQUESTS_MAX);
        let stream = options.stream.clone();
        let text = options.text.clone();
        let terms = terms(options);
        // Reading lines blocks, so it has a thread of its own.
        let reading = tokio::task::spawn_blocking(move || send_batches(&stream, text, &terms, &requests));
        let mut stored = 0;
        let broken = |status: Status, stored: u64| {
            let text = format!("{} ({:?})", status.message(), status.code());
            anyhow::anyhow!(Exit::Unreachable).context(format!(
                "the call broke off: {text}. {stored} messages are stored; the outcome of the rest is unknown"
            ))
        };
        let replies = client.publish(Requests(sent)).await.map_err(|status| broken(status, stored))?;
        let mut replies = replies.into_inner();
        while let Some(reply) = replies.message().await.map_err(|status| broken(status, stored))? {
            for confirmation in reply.confirmations {
                if let Some(problem) = confirmation.problem {
                    bail!("not stored: {} (after {stored} messages)", problem.detail);
                }
                stored += u64::from(confirmation.count);
            }
        }
        reading.await.context("reading the messages broke off")??;
        let messages = if stored == 1 { "message" } else { "messages" };
        say(&format!("stored {stored} {messages} in {}", options.stream));
        Ok(())
    })
}

/// What every message of a command is beside its body.
fn terms(options: &Pub) -> v1::Message {
    v1::Message {
        key: options.key.clone().unwrap_or_default(),
        priority: options.priority.into(),
        delay_ms: options.delay.map_or(0, millis),
        ttl_ms: options.ttl.map_or(0, millis),
        ..v1::Message::default()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn send_batches(
    stream: &str,
    text: Vec<String>,
    terms: &v1::Message,
    requests: &mpsc::Sender<v1::PublishRequest>,
) -> anyhow::Result<()> {
    let mut batches = Batches { stream, terms, requests, messages: Vec::new(), bytes: 0, ticket: 0 };
    if !text.is_empty() {
        for text in text {
            batches.push(text.into_bytes());
        }
        batches.send();
        return Ok(());
    }
    let mut input = BufReader::with_capacity(64 << 10, std::io::stdin().lock());
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).context("cannot read the standard input")? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        // Nothing more to read just now: what has been read must not wait for what may never come.
        if !batches.push(line) || (input.buffer().is_empty() && !batches.send()) {
            break;
        }
    }
    batches.send();
    Ok(())
}

/// Puts messages together to batches and sends them.
struct Batches<'a> {
    stream: &'a str,
    /// What every message is beside its body.
    terms: &'a v1::Message,
    requests: &'a mpsc::Sender<v1::PublishRequest>,
    messages: Vec<v1::Message>,
    bytes: usize,
    ticket: u64,
}

impl Batches<'_> {
    /// False if nobody takes messages any more; the call has then ended and says why itself.
    fn push(&mut self, body: Vec<u8>) -> bool {
        let full = self.messages.len() >= MESSAGES_PER_BATCH || self.bytes + body.len() > BYTES_PER_BATCH;
        if full && !self.send() {
            return false;
        }
        self.bytes += body.len();
        self.messages.push(v1::Message { body: body.into(), ..self.terms.clone() });
        true
    }

    fn send(&mut self) -> bool {
        if self.messages.is_empty() {
            return true;
        }
        self.bytes = 0;
        self.ticket += 1;
        let messages = std::mem::take(&mut self.messages);
        let (stream, ticket) = (self.stream.to_owned(), self.ticket);
        let request = v1::PublishRequest { stream, messages, ticket, ..Default::default() };
        self.requests.blocking_send(request).is_ok()
    }
}

pub(crate) fn subscribe(options: &Sub) -> anyhow::Result<()> {
    let Some((stream, group)) = options.group.rsplit_once('/') else {
        bail!("a group is named STREAM/GROUP, such as emails/senders. given=`{}`", options.group);
    };
    let (stream, group) = (stream.to_owned(), group.to_owned());
    runtime()?.block_on(async {
        let mut client = connect(&options.server).await?;
        let request =
            v1::CreateGroupRequest { stream: stream.clone(), group: group.clone(), ..Default::default() };
        if client.create_group(request).await.map_err(refused)?.into_inner().created {
            say(&format!("created the group {}", options.group));
        }
        let (requests, sent) = mpsc::channel(REQUESTS_MAX);
        // Without acks every message stays in hand, so there must be room for all that are asked for.
        let most = if options.ack { CREDIT } else { CREDIT_MAX };
        let credit = options.max.map_or(most, |max| u32::try_from(max).unwrap_or(most).min(most));
        let open = v1::Open { stream, group, consumer: options.name.clone(), credit };
        let first = v1::ConsumeRequest { open: Some(open), ..Default::default() };
        requests.try_send(first).context("the first request was not sent")?;
        let replies = client.consume(Requests(sent)).await.map_err(refused)?.into_inner();
        print_messages(options, replies, requests).await
    })
}

/// Prints one line for each message: position, attempt, body.
async fn print_messages(
    options: &Sub,
    mut replies: Streaming<v1::ConsumeReply>,
    requests: mpsc::Sender<v1::ConsumeRequest>,
) -> anyhow::Result<()> {
    let mut left = options.max.unwrap_or(u64::MAX);
    let mut goodbye = left == 0;
    loop {
        if goodbye {
            let request = v1::ConsumeRequest { goodbye: true, ..Default::default() };
            let _ = requests.send(request).await;
            goodbye = false;
        }
        let reply = tokio::select! {
            reply = replies.message() => reply.map_err(refused)?,
            _ = tokio::signal::ctrl_c() => {
                left = 0;
                goodbye = true;
                continue;
            }
        };
        let Some(reply) = reply else { return Ok(()) };
        let Some(deliveries) = reply.deliveries.filter(|_| left > 0) else { continue };
        let mut leases = Vec::new();
        let mut messages = deliveries.messages.iter();
        for run in &deliveries.runs {
            let count = u64::from(run.count.max(1)).min(left);
            for (seq, message) in (run.first_seq..run.first_seq + count).zip(messages.by_ref()) {
                print_message(seq, run.attempt, &message.body)?;
            }
            if count > 0 {
                let (first_seq, first_grant) = (run.first_seq, run.first_grant);
                leases.push(v1::LeaseRun { first_seq, first_grant, count: count as u32 });
            }
            left -= count;
        }
        if options.ack {
            let settlement = v1::Settlement { epoch: deliveries.epoch, leases, ..Default::default() };
            let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
            let _ = requests.send(request).await;
        }
        goodbye = left == 0;
    }
}

fn print_message(seq: u64, attempt: u32, body: &[u8]) -> anyhow::Result<()> {
    let mut line = format!("{seq}\t#{attempt}\t").into_bytes();
    // What a message holds must not move the cursor of whoever looks at it.
    line.extend(body.iter().map(|&byte| if byte.is_ascii_control() && byte != b'\t' { b'?' } else { byte }));
    line.push(b'\n');
    match std::io::stdout().write_all(&line) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        printed => printed.context("cannot print"),
    }
}

fn refused(status: Status) -> anyhow::Error {
    anyhow::anyhow!("the server refused: {} ({:?})", status.message(), status.code())
}

/// What is sent, as a stream.
struct Requests<T>(mpsc::Receiver<T>);

impl<T> Stream for Requests<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}
