//! `forebay pub`: publishes messages from the command line, or each line of the input.
//!
//! Input is read on a thread of its own. The SDK's producer sends it: messages go together, a few batches are in
//! flight at a time, and after a broken connection they are sent again and still stored once.

mod input;
mod progress;
mod upload;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_client::error::ProblemKind;
use forebay_client::{Client, Message};
use forebay_wire::json::Span;
use forebay_wire::json::body::check_content_type;
use serde_json::json;
use tokio::sync::mpsc;

use crate::connect::{self, Server};
use crate::exit::{Exit, say};
use crate::failure;
use crate::print::{Output, print};
use crate::safe::printable;
use crate::settings::values::{duration, some_duration, whole};
use crate::units;

use self::input::{Input, Source};
use self::progress::Progress;

pub(crate) const EXAMPLES: &str = "\
With --ndjson each line is a message object of the API: id, type, key, headers, body, body_text or body_base64,
content_type, delay or deliver_at, priority, ttl, schema.

Without --content-type the server shows a message that is a JSON object or array as JSON, and any other text as text.

A batch that could not be stored is sent again for --retry-for, and is stored once even if the connection breaks.
To be safe across several runs of the command, give messages ids.

Examples:
  forebay pub emails 'hello' 'world'
  seq 1000 | forebay pub numbers         one message for each line
  forebay pub events --ndjson --file events.ndjson
  echo '{\"id\": \"email-17\", \"body\": {\"to\": \"a@example.com\"}}' | forebay pub emails --ndjson
  forebay pub emails 'now' --priority 9  goes before lower priorities
  forebay pub emails 'later' --delay 15m --ttl 2h
  forebay pub accounts 'debit 5' --key account-17 --id order-4711
  forebay pub numbers --file numbers.txt --id-prefix import-1";

/// Batches of lines that wait to be sent.
const BATCHES_READ_AHEAD: usize = 4;

#[derive(Debug, Args)]
pub(crate) struct Pub {
    /// The stream. One with a `/` in its name must exist, since it looks like STREAM/GROUP.
    stream: String,
    /// The messages. Default: each line of the standard input is a message.
    text: Vec<String>,
    /// Publish each line of this file. `-` is the standard input.
    #[arg(long, short, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Each line is a message object of the API.
    #[arg(long, conflicts_with_all = [
        "text", "priority", "delay", "ttl", "key", "kind", "content_type", "headers", "id", "id_prefix",
    ])]
    ndjson: bool,
    /// Priority from 0 to 9. Higher priorities are delivered first.
    #[arg(long, value_name = "0-9", default_value_t = 0, value_parser = whole::<u8>(0..=9))]
    priority: u8,
    /// Not delivered before this time has passed, such as 250ms, 30s, 15m, 12h, 7d.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Not delivered after this time has passed. Longer than the delay.
    #[arg(long, value_name = "TIME", value_parser = some_duration)]
    ttl: Option<Duration>,
    /// Messages with the same key belong together, where a group orders or spreads by key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Type of the message.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Media type of the bodies, such as text/plain or application/json.
    #[arg(long, value_name = "TYPE", value_parser = content_type)]
    content_type: Option<String>,
    /// A header of the message. May be given several times.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Message id: within the stream's dedupe_window, a second publish with the same id stores nothing.
    #[arg(long, value_name = "ID", conflicts_with_all = ["id_prefix", "file"])]
    id: Option<String>,
    /// Give messages the ids PREFIX-1, PREFIX-2 and so on, so that the command can be repeated safely.
    #[arg(long, value_name = "PREFIX")]
    id_prefix: Option<String>,
    /// How long to retry while nothing can be stored.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    retry_for: Duration,
    #[command(flatten)]
    server: Server,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, for example trace=4711")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn content_type(text: &str) -> Result<String, String> {
    check_content_type(text).map_err(|bad| bad.to_string())?;
    Ok(text.to_owned())
}

pub(crate) fn run(options: &Pub, output: Output) -> anyhow::Result<()> {
    if options.id.is_some() && options.text.len() != 1 {
        return Err(anyhow::anyhow!(Exit::NotUnderstood)
            .context("--id needs exactly one message; use --id-prefix for several"));
    }
    if let (Some(delay), Some(ttl)) = (options.delay, options.ttl)
        && delay >= ttl
    {
        let (delay, ttl) = (Span(delay), Span(ttl));
        return Err(anyhow::anyhow!(Exit::NotUnderstood).context(format!(
            "--ttl must be longer than --delay, or the message expires before it is delivered. ttl=`{ttl}` \
             delay=`{delay}`"
        )));
    }
    let (input, size) = open(options)?;
    let source = Source { input, ndjson: options.ndjson, make: Box::new(maker(options)) };
    connect::runtime()?.block_on(async {
        let client = options.server.client("forebay-pub").await?;
        let is_new = is_new(&client, &options.stream).await?;
        let (lines, read) = mpsc::channel(BATCHES_READ_AHEAD);
        // Reading lines blocks, so it has a thread of its own.
        tokio::task::spawn_blocking(move || source.read(&lines));
        // A line that is being typed must not be drawn over.
        let is_typed = options.text.is_empty() && size.is_none() && std::io::stdin().is_terminal();
        let progress = Progress::new(size, std::io::stderr().is_terminal() && !is_typed);
        let tally = upload::run(&client, &options.stream, options.retry_for, read, progress).await?;
        match output {
            Output::Json => {
                let stored = json!({
                    "stream": options.stream, "stored": tally.stored, "duplicates": tally.duplicates,
                });
                print(&format!("{stored}\n"))
            }
            Output::Text => {
                let there = match tally.duplicates {
                    0 => String::new(),
                    count => format!("; {} there already", units::of(count, "message")),
                };
                let stream = printable(&options.stream);
                let stream = match is_new && has_no_group(&client, &options.stream).await {
                    true => format!("the new stream {stream}, which has no group yet"),
                    false => stream,
                };
                say(&format!("stored {} in {stream}{there}", units::of(tally.stored, "message")));
                Ok(())
            }
        }
    })
}

/// Whether the stream is not there yet, as far as the client may know. Refuses to create one whose name reads like that
/// of a group.
async fn is_new(client: &Client, stream: &str) -> anyhow::Result<bool> {
    let asked = client.stream(stream).await;
    match (asked, stream.rsplit_once('/')) {
        (Ok(_), _) => Ok(false),
        (Err(error), Some((before, _))) if error.is(ProblemKind::NoSuchStream) => {
            let (stream, before) = (printable(stream), printable(before));
            Err(anyhow::anyhow!(Exit::NotFound).context(format!(
                "there is no stream {stream}, and it looks like a group: messages are published to a stream, such \
                 as {before}. `forebay stream create {stream}` creates a stream of this name"
            )))
        }
        (Err(error), Some(_)) => Err(failure::from_call(&error)),
        // A client that may publish need not be allowed to ask.
        (Err(error), None) => Ok(error.is(ProblemKind::NoSuchStream)),
    }
}

async fn has_no_group(client: &Client, stream: &str) -> bool {
    client.stream(stream).await.is_ok_and(|report| report.groups.is_empty())
}

/// The input, and its size in bytes if that is known.
fn open(options: &Pub) -> anyhow::Result<(Input, Option<u64>)> {
    if !options.text.is_empty() {
        return Ok((Input::Words(options.text.clone()), None));
    }
    let Some(path) = options.file.as_ref().filter(|path| path.as_os_str() != "-") else {
        if options.file.is_none() && std::io::stdin().is_terminal() {
            say("each line is a message; ^D ends");
        }
        return Ok((Input::Lines(Box::new(std::io::stdin())), None));
    };
    let shown = printable(&path.display().to_string());
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let about = file.metadata().with_context(|| format!("cannot read {shown}"))?;
    if about.is_dir() {
        bail!("cannot read {shown}: it is a directory");
    }
    Ok((Input::Lines(Box::new(file)), about.is_file().then_some(about.len())))
}

/// Makes messages from lines, with the fields of the command line.
fn maker(options: &Pub) -> impl Fn(u64, Vec<u8>) -> Message + Send + use<> {
    let mut terms = Message::default().priority(options.priority);
    if let Some(key) = &options.key {
        terms = terms.key(key);
    }
    if let Some(kind) = &options.kind {
        terms = terms.kind(kind);
    }
    if let Some(content_type) = &options.content_type {
        terms = terms.content_type(content_type);
    }
    for (name, value) in &options.headers {
        terms = terms.header(name, value);
    }
    if let Some(delay) = options.delay {
        terms = terms.delay(delay);
    }
    if let Some(ttl) = options.ttl {
        terms = terms.ttl(ttl);
    }
    let (id, id_prefix) = (options.id.clone(), options.id_prefix.clone());
    move |number, body| {
        let message = terms.clone().with_body(body);
        match (&id, &id_prefix) {
            (Some(id), _) => message.id(id),
            (None, Some(prefix)) => message.id(format!("{prefix}-{number}")),
            (None, None) => message,
        }
    }
}
