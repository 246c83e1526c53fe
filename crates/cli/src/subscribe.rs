//! `forebay sub`: receives messages as a consumer of a group, and prints them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use forebay_wire::{json, v1};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::commands::GroupPath;
use crate::connect::{self, Server};
use crate::exit::{Exit, say};
use crate::print::{Output, print_bytes};
use crate::safe::{printable, printable_bytes};
use crate::settings::values::duration;

pub(crate) const EXAMPLES: &str = "\
A line has the position of the message, the attempt, and the body with control characters escaped; with -o json
it is an object as in the API.

Examples:
  forebay sub emails/senders             show messages; they are returned when the command exits
  forebay sub emails/senders --ack       ack them
  forebay sub emails/senders --ack --max 10
  forebay sub emails/senders --ack --idle 1s       exit when no more messages come
  forebay sub emails/senders --ack --raw > bodies.txt
  forebay sub emails/senders --nack park --reason 'cleaning up' --max 3
  forebay sub emails/senders --ack --name laptop -o json | jq .body";

/// Requests that wait to be sent.
const REQUESTS_MAX: usize = 64;
/// What `sub` holds at a time if it settles, and at most if it does not.
const CREDIT: u32 = 256;
const CREDIT_MAX: u32 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct Sub {
    /// The group, as STREAM/GROUP.
    #[arg(value_name = "STREAM/GROUP")]
    group: GroupPath,
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
        let mut client = connect::grpc(&options.server).await?;
        let GroupPath { stream, group } = options.group.clone();
        let request =
            v1::CreateGroupRequest { stream: stream.clone(), group: group.clone(), ..Default::default() };
        // One that is there with settings of its own is as good.
        match client.create_group(request).await {
            Ok(reply) if reply.get_ref().created => say(&format!("created the group {}", options.group)),
            Err(status) if status.code() != Code::AlreadyExists => return Err(refused(&status)),
            Ok(_) | Err(_) => {}
        }
        let (requests, sent) = mpsc::channel(REQUESTS_MAX);
        // Without settling every message stays in hand, so there must be room for all that are asked for.
        let most = if options.ack || options.nack.is_some() { CREDIT } else { CREDIT_MAX };
        let credit = options.max.map_or(most, |max| u32::try_from(max).unwrap_or(most).min(most));
        let open = v1::Open { stream, group, consumer: options.name.clone(), credit };
        let first = v1::ConsumeRequest { open: Some(open), ..Default::default() };
        requests.try_send(first).context("the first request was not sent")?;
        let replies = client.consume(ReceiverStream::new(sent)).await.map_err(|status| refused(&status))?;
        Printer { options, output, requests, left: options.max.unwrap_or(u64::MAX) }
            .run(replies.into_inner())
            .await
    })
}

struct Printer<'a> {
    options: &'a Sub,
    output: Output,
    requests: mpsc::Sender<v1::ConsumeRequest>,
    left: u64,
}

impl Printer<'_> {
    async fn run(&mut self, mut replies: Streaming<v1::ConsumeReply>) -> anyhow::Result<()> {
        let idle = self.options.idle.unwrap_or(Duration::MAX);
        let mut leaving = false;
        loop {
            if self.left == 0 && !leaving {
                leaving = true;
                let request = v1::ConsumeRequest { goodbye: true, ..Default::default() };
                let _ = self.requests.send(request).await;
            }
            let reply = tokio::select! {
                reply = replies.message() => reply.map_err(|status| refused(&status))?,
                _ = tokio::signal::ctrl_c(), if !leaving => {
                    self.left = 0;
                    continue;
                }
                () = tokio::time::sleep(idle), if !leaving => {
                    self.left = 0;
                    continue;
                }
            };
            let Some(reply) = reply else { return Ok(()) };
            if let Some(deliveries) = reply.deliveries.filter(|_| self.left > 0) {
                self.take(deliveries).await?;
            }
        }
    }

    /// Prints as many as are still wanted, and settles those.
    async fn take(&mut self, deliveries: v1::Deliveries) -> anyhow::Result<()> {
        let mut leases = Vec::new();
        let mut messages = deliveries.messages.iter();
        let mut printed = Vec::new();
        for run in &deliveries.runs {
            let of_run = u64::from(run.count.max(1));
            let count = of_run.min(self.left);
            for (seq, message) in (run.first_seq..run.first_seq + of_run).zip(messages.by_ref()) {
                if seq < run.first_seq + count {
                    self.print(seq, run, message, &mut printed)?;
                }
            }
            if count > 0 {
                let (first_seq, first_grant) = (run.first_seq, run.first_grant);
                leases.push(v1::LeaseRun { first_seq, first_grant, count: count as u32 });
            }
            self.left -= count;
        }
        print_bytes(&printed)?;
        let action = match self.options.nack {
            _ if self.options.ack => v1::settlement::Action::Ack,
            Some(Nack::Retry) => v1::settlement::Action::Retry,
            Some(Nack::Park) => v1::settlement::Action::Park,
            Some(Nack::Skip) => v1::settlement::Action::Skip,
            None => return Ok(()),
        };
        let settlement = v1::Settlement {
            action: action.into(),
            epoch: deliveries.epoch,
            leases,
            reason: self.options.reason.clone(),
            ..Default::default()
        };
        let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
        let _ = self.requests.send(request).await;
        Ok(())
    }

    fn print(
        &self,
        seq: u64,
        run: &v1::DeliveryRun,
        message: &v1::Message,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        use std::io::IsTerminal as _;
        match self.output {
            Output::Json => serde_json::to_writer(&mut *out, &Printed::of(seq, run, message))?,
            Output::Text if self.options.raw && !std::io::stdout().is_terminal() => out.extend(&message.body),
            Output::Text if self.options.raw => out.extend(printable_bytes(&message.body).into_bytes()),
            Output::Text => {
                out.extend(
                    format!("{seq}\t#{}\t{}", run.attempt, printable_bytes(&message.body)).into_bytes(),
                );
            }
        }
        out.push(b'\n');
        Ok(())
    }
}

/// A delivery as in the API, without its lease: that goes with the connection, and is of no use to anybody else.
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
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    priority: u32,
}

impl Printed<'_> {
    fn of<'a>(seq: u64, run: &v1::DeliveryRun, message: &'a v1::Message) -> Printed<'a> {
        let given = |text: &'a str| Some(text).filter(|text| !text.is_empty());
        let body = serde_json::from_slice::<&RawValue>(&message.body).ok();
        Printed {
            seq,
            attempt: run.attempt,
            deadline: json::Time(run.deadline_us),
            published_at: json::Time(message.published_at_us),
            id: given(&message.id),
            kind: given(&message.r#type),
            schema: message.schema,
            key: given(&message.key),
            headers: message.headers.iter().map(|header| (&*header.name, &*header.value)).collect(),
            body,
            body_base64: body.is_none().then(|| STANDARD.encode(&message.body)),
            priority: message.priority,
        }
    }
}

pub(crate) fn refused(status: &Status) -> anyhow::Error {
    let advice = status.metadata().get("forebay-retry").and_then(|advice| advice.to_str().ok());
    let exit = match (status.code(), advice) {
        (Code::NotFound, _) => Exit::NotFound,
        (Code::InvalidArgument, _) => Exit::NotUnderstood,
        (Code::PermissionDenied | Code::Unauthenticated, _) => Exit::Denied,
        (_, Some("later")) => Exit::Later,
        (_, Some("same_id")) => Exit::Unknown,
        (_, Some(_)) => Exit::Conflict,
        (_, None) => Exit::Unreachable,
    };
    let text = printable(status.message());
    let text = text.trim_end_matches('.');
    anyhow!(exit).context(match exit {
        Exit::Later => format!("{text}. Try again later"),
        Exit::Unreachable => format!("the call broke off: {text} ({:?})", status.code()),
        _ => text.to_owned(),
    })
}
