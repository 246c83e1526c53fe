//! `forebay sub`: receives messages as a consumer of a group, and prints them.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use forebay_client::admin::Created;
use forebay_client::consumer::{Consumer, Delivery, Settlement};
use forebay_client::error::ProblemKind;
use forebay_client::{CallError, Client, GroupSettings};
use forebay_wire::json;
use forebay_wire::json::body::{Body, to_base64};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::clock::Timestamp;
use crate::commands::GroupPath;
use crate::connect::{self, Server};
use crate::exit::{Exit, say};
use crate::failure::from_call;
use crate::http::GROUPS_LISTED;
use crate::print::{Output, print_bytes};
use crate::safe::printable_bytes;
use crate::settings::values::duration;

pub(crate) const EXAMPLES: &str = "\
A line has the position of the message, the attempt, and the body with control characters escaped; with -o json
it is an object as in the API.

A group that does not exist is an error, so that a mistyped name does not create one; --create creates it.

Examples:
  forebay sub emails/senders --create    create the group with the default settings, and show its messages
  forebay sub emails/senders             show messages; they are returned when the command exits
  forebay sub emails/senders --ack       ack them
  forebay sub emails/senders --ack --max 10
  forebay sub emails/senders --ack --idle 1s       exit when no more messages come
  forebay sub emails/senders --ack --raw > bodies.txt
  forebay sub emails/senders --nack park --reason 'cleaning up' --max 3
  forebay sub emails/senders --ack --name laptop -o json | jq .body";

/// How many messages `sub` holds at a time if it settles them, and at most if it does not.
const CREDIT: u32 = 256;
const CREDIT_MAX: u32 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct Sub {
    /// The group, as STREAM/GROUP.
    #[arg(value_name = "STREAM/GROUP")]
    group: GroupPath,
    /// Create the group, and its stream, if it does not exist.
    #[arg(long)]
    create: bool,
    /// Ack each message once it is printed.
    #[arg(long)]
    ack: bool,
    /// Nack each message once it is printed.
    #[arg(long, value_name = "ACTION", conflicts_with = "ack")]
    nack: Option<Nack>,
    /// The reason of a nack, stored with the failure.
    #[arg(long, value_name = "TEXT", requires = "nack", default_value = "")]
    reason: String,
    /// Exit after this many messages.
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Exit after this time without a message.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Print only bodies, unchanged, each followed by a newline.
    #[arg(long)]
    raw: bool,
    /// Name of the consumer in statistics and failures.
    #[arg(long, value_name = "NAME", default_value = "forebay-sub")]
    name: String,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Nack {
    /// Offer the message again.
    Retry,
    /// Park the message, as a dead letter.
    Park,
    /// Never offer the message again.
    Skip,
}

pub(crate) fn run(options: &Sub, output: Output) -> anyhow::Result<()> {
    connect::runtime()?.block_on(async {
        let client = options.server.client("forebay-sub").await?;
        if options.create && create_group(&client, &options.group).await? {
            say(&format!("created the group {}", options.group));
        }
        let GroupPath { stream, group } = options.group.clone();
        // Without settling every message stays in hand, so there must be room for all of them.
        let most = if options.settlement().is_some() { CREDIT } else { CREDIT_MAX };
        let credit = options.max.map_or(most, |max| u32::try_from(max).unwrap_or(most).min(most));
        let consumer = client.consumer(stream, group).name(&options.name).credit(credit).credit_bytes(None);
        let consumer = consumer.open().await.map_err(|error| not_opened(&options.group, &error))?;
        if output == Output::Text && std::io::stderr().is_terminal() {
            say(&format!("waiting for messages of {}; ^C ends", options.group));
        }
        Printer { options, output, left: options.max.unwrap_or(u64::MAX) }.run(consumer).await
    })
}

/// Creates a group with the default settings, and says whether it is new. A group with other settings is used as it is.
pub(crate) async fn create_group(client: &Client, path: &GroupPath) -> anyhow::Result<bool> {
    match client.create_group(&path.stream, &path.group, GroupSettings::new()).await {
        Ok(created) => Ok(created == Created::New),
        Err(error) if error.is(ProblemKind::SettingsDiffer) => Ok(false),
        // A client that may only consume uses the group that is there.
        Err(error) if error.is(ProblemKind::Denied) => Ok(false),
        Err(error) => Err(from_call(&error)),
    }
}

/// Why the messages of a group cannot be consumed.
pub(crate) fn not_opened(path: &GroupPath, error: &CallError) -> anyhow::Error {
    let absent = error.is(ProblemKind::NoSuchGroup) || error.is(ProblemKind::NoSuchStream);
    if !absent {
        return from_call(error);
    }
    anyhow!(Exit::NotFound)
        .context(format!("there is no group {path}. {GROUPS_LISTED}, and --create creates this one"))
}

impl Sub {
    /// What to do with messages that are printed.
    fn settlement(&self) -> Option<Settlement> {
        let nack = match self.nack {
            _ if self.ack => return Some(Settlement::ack()),
            Some(Nack::Retry) => Settlement::retry(),
            Some(Nack::Park) => Settlement::park(),
            Some(Nack::Skip) => Settlement::skip(),
            None => return None,
        };
        Some(nack.reason(&self.reason))
    }
}

struct Printer<'a> {
    options: &'a Sub,
    output: Output,
    /// How many messages are still to be printed.
    left: u64,
}

impl Printer<'_> {
    async fn run(&mut self, mut consumer: Consumer) -> anyhow::Result<()> {
        let idle = self.options.idle.unwrap_or(Duration::MAX);
        let mut settling = JoinSet::new();
        while self.left > 0 {
            let batch = tokio::select! {
                batch = consumer.next_batch() => batch,
                _ = tokio::signal::ctrl_c() => break,
                () = tokio::time::sleep(idle) => break,
            };
            let Some(batch) = batch else { return Ok(()) };
            let mut batch = batch.map_err(|error| from_call(&error))?;
            batch.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= batch.len() as u64;
            self.print(&batch)?;
            if let Some(how) = self.options.settlement() {
                // In the background, so that the next messages need not wait for the answer.
                settling.spawn(consumer.settle(&batch, how));
            }
            while let Some(settled) = settling.try_join_next() {
                settled?.map_err(|error| from_call(&error))?;
            }
        }
        while let Some(settled) = settling.join_next().await {
            settled?.map_err(|error| from_call(&error))?;
        }
        consumer.close().await.map_err(|error| from_call(&error))
    }

    fn print(&self, batch: &[Delivery]) -> anyhow::Result<()> {
        let mut out = Vec::new();
        for delivery in batch {
            let body = delivery.body();
            match self.output {
                Output::Json => serde_json::to_writer(&mut out, &Printed::from_delivery(delivery))?,
                Output::Text if self.options.raw && !std::io::stdout().is_terminal() => out.extend(body),
                Output::Text if self.options.raw => out.extend(printable_bytes(body).into_bytes()),
                Output::Text => {
                    let (seq, attempt) = (delivery.seq(), delivery.attempt());
                    out.extend(format!("{seq}\t#{attempt}\t{}", printable_bytes(body)).into_bytes());
                }
            }
            out.push(b'\n');
        }
        print_bytes(&out)
    }
}

/// A delivery as in the API, without its lease, which belongs to the connection.
#[derive(Serialize)]
struct Printed<'a> {
    seq: u64,
    attempt: u32,
    deadline: json::Time,
    published_at: json::Time,
    id: Option<&'a str>,
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<u64>,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers_base64: BTreeMap<&'a str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_body: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    priority: u8,
}

impl Printed<'_> {
    fn from_delivery(delivery: &Delivery) -> Printed<'_> {
        let bytes = delivery.has_body().then_some(&delivery.body()[..]);
        let body = Body::of(bytes, delivery.content_type().unwrap_or_default());
        let Body { body, body_text, body_base64, no_body, content_type } = body;
        let binary = |value: &[u8]| std::str::from_utf8(value).is_err();
        Printed {
            seq: delivery.seq(),
            attempt: delivery.attempt(),
            deadline: json::Time(Timestamp::from(delivery.deadline_at()).0),
            published_at: json::Time(Timestamp::from(delivery.published_at()).0),
            id: delivery.id(),
            kind: delivery.kind(),
            schema: delivery.schema(),
            key: delivery.key(),
            key_base64: delivery.key_bytes().filter(|key| binary(key)).map(to_base64),
            headers: delivery.headers().collect(),
            headers_base64: delivery
                .headers_bytes()
                .filter(|(_, value)| binary(value))
                .map(|(name, value)| (name, to_base64(value)))
                .collect(),
            body,
            body_text,
            body_base64,
            no_body,
            content_type,
            priority: delivery.priority(),
        }
    }
}
