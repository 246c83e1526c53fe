//! `forebay parked`: lists parked messages with their reasons, and disposes of them.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use forebay_wire::json::body::Body;
use forebay_wire::json::{
    Job, JobList, Message, Parked as ParkedMessage, PublishResult, Rate, ReasonList, SelectFilter,
    SelectReply, SelectRequest, StoredMessage,
};
use hyper::Method;

use super::stream::{body, key, short_body};
use super::{GroupPath, Sure, word};
use crate::connect::Server;
use crate::exit::{Exit, say};
use crate::http::{self, Http, Listing, Query};
use crate::print::{Output, Table, print, print_facts};
use crate::safe::printable;
use crate::settings::values::whole;
use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Parked {
    #[command(subcommand)]
    command: ParkedCommand,
}

#[derive(Debug, Subcommand)]
enum ParkedCommand {
    /// List parked messages (dead letters), lowest position first.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(ListOptions),
    /// Show one parked message with its failures.
    #[command(
        after_help = SHOW_EXAMPLES
    )]
    Show {
        #[command(flatten)]
        one: One,
        /// Position of the message.
        #[arg(value_parser = whole::<u64>(1..=u64::MAX))]
        seq: u64,
    },
    /// Count parked messages by their reason.
    #[command(after_help = REASONS_EXAMPLES)]
    Reasons(One),
    /// Replay parked messages: deliver them again, with all their retries.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Select),
    /// Discard parked messages.
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard {
        #[command(flatten)]
        select: Select,
        #[command(flatten)]
        sure: Sure,
    },
    /// Move parked messages to another stream.
    #[command(after_help = MOVE_EXAMPLES)]
    Move {
        #[command(flatten)]
        select: Select,
        /// The stream that the messages go to. It must exist.
        #[arg(long, value_name = "STREAM")]
        to: String,
    },
    /// Publish an edited copy of a parked message and discard the parked one, in one step.
    #[command(after_help = RESUBMIT_EXAMPLES)]
    Resubmit(Resubmit),
    /// List jobs (replays, discards, moves), or show one.
    #[command(
        after_help = JOBS_EXAMPLES
    )]
    Jobs {
        #[command(flatten)]
        one: One,
        /// Show only this job.
        #[arg(value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
        job: Option<u32>,
    },
    /// Cancel a job. Messages that it has processed stay processed.
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        #[command(flatten)]
        one: One,
        /// Number of the job.
        #[arg(value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
        job: u32,
    },
}

const SHOW_EXAMPLES: &str = "\
Examples:
  forebay parked show emails/senders 17
  forebay parked show emails/senders 17 -o json";

const REASONS_EXAMPLES: &str = "\
Examples:
  forebay parked reasons emails/senders";

const JOBS_EXAMPLES: &str = "\
Examples:
  forebay parked jobs emails/senders
  forebay parked jobs emails/senders 3";

const CANCEL_EXAMPLES: &str = "\
Examples:
  forebay parked cancel emails/senders 3";

const LIST_EXAMPLES: &str = "\
Examples:
  forebay parked list emails/senders
  forebay parked list emails/senders --reason 'mailbox full' --limit 10
  forebay parked list emails/senders -o json | jq '.parked[].message.body'";

const REPLAY_EXAMPLES: &str = "\
Select messages by position, with --all, or with at least one of --reason, --key and --type. The selection is
fixed when the command is given; messages that are parked later are not touched.

Examples:
  forebay parked replay emails/senders 17 18
  forebay parked replay emails/senders --reason 'mailbox full' --rate 50
  forebay parked replay emails/senders --all --dry-run";

const DISCARD_EXAMPLES: &str = "\
Select messages by position, with --all, or with at least one of --reason, --key and --type.

Examples:
  forebay parked discard emails/senders 17 18
  forebay parked discard emails/senders --type email.test --dry-run
  forebay parked discard emails/senders --all --yes";

const MOVE_EXAMPLES: &str = "\
Select messages by position, with --all, or with at least one of --reason, --key and --type. Each message is published
to the other stream and leaves the group in one step. It keeps its key, headers, body and time of publishing.

Examples:
  forebay parked move emails/senders --reason 'mailbox full' --to quarantine
  forebay parked move emails/senders 17 18 --to quarantine
  forebay parked move emails/senders --all --to quarantine --rate 50 --dry-run";

const RESUBMIT_EXAMPLES: &str = "\
Examples:
  forebay parked resubmit emails/senders 17 --body '{\"to\": \"b@example.com\"}'     keeps all other fields
  forebay parked resubmit emails/senders 17 --file message.json     an object of the API
  forebay parked show emails/senders 17 -o json | jq .message.body";

#[derive(Debug, Args)]
struct One {
    /// The group.
    #[arg(value_name = "STREAM/GROUP")]
    group: GroupPath,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct ListOptions {
    #[command(flatten)]
    one: One,
    /// Maximum number of messages to show.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u64>(1..=100_000))]
    limit: u64,
    /// Only messages after this position.
    #[arg(long, value_name = "SEQ")]
    after: Option<String>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Debug, Args)]
struct Filter {
    /// Messages with exactly this reason.
    #[arg(long)]
    reason: Option<String>,
    /// Messages with this key.
    #[arg(long)]
    key: Option<String>,
    /// Messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

#[derive(Debug, Args)]
struct Select {
    #[command(flatten)]
    one: One,
    /// Positions of messages.
    #[arg(value_name = "SEQ", value_parser = whole::<u64>(1..=u64::MAX),
          conflicts_with_all = ["all", "reason", "key", "kind"])]
    seqs: Vec<u64>,
    /// All parked messages.
    #[arg(long, conflicts_with_all = ["reason", "key", "kind"])]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// Maximum number of messages, lowest positions first.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    limit: Option<u64>,
    /// Maximum rate, in messages per second.
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Only count the messages.
    #[arg(long)]
    dry_run: bool,
}

impl Select {
    fn request(&self, to: Option<&str>) -> anyhow::Result<SelectRequest> {
        let Filter { reason, key, kind } = &self.filter;
        let filter = SelectFilter { reason: reason.clone(), key: key.clone(), kind: kind.clone() };
        let filter = (filter != SelectFilter::default()).then_some(filter);
        if self.seqs.is_empty() && !self.all && filter.is_none() {
            return Err(anyhow!(Exit::NotUnderstood).context(
                "nothing is selected; expected positions, --all, or one of --reason, --key and --type",
            ));
        }
        Ok(SelectRequest {
            seqs: (!self.seqs.is_empty()).then(|| self.seqs.clone()),
            filter,
            all: self.all,
            limit: self.limit,
            rate: self.rate.map(Rate::per_second),
            dry_run: self.dry_run,
            to: to.map(ToOwned::to_owned),
        })
    }
}

#[derive(Debug, Args)]
struct Resubmit {
    #[command(flatten)]
    one: One,
    /// Position of the message.
    #[arg(value_parser = whole::<u64>(1..=u64::MAX))]
    seq: u64,
    /// The new body. All other fields are kept.
    #[arg(long, value_name = "TEXT", required_unless_present = "file")]
    body: Option<String>,
    /// A file with a message object of the API. Fields that it leaves out are kept. `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "body")]
    file: Option<PathBuf>,
}

pub(crate) fn run(parked: &Parked, output: Output) -> anyhow::Result<()> {
    match &parked.command {
        ParkedCommand::List(options) => {
            http::with(&options.one.server, async |http| list(http, options, output).await)
        }
        ParkedCommand::Show { one, seq } => http::with(&one.server, async |http| {
            let reply = http.get(&format!("{}/parked/{seq}", one.group.path())).await?;
            http::show(&reply, output, show)
        }),
        ParkedCommand::Reasons(one) => http::with(&one.server, async |http| {
            let reply = http.get(&format!("{}/parked/reasons", one.group.path())).await?;
            http::show(&reply, output, |list: &ReasonList| {
                let mut table = Table::new(&[">COUNT", "REASON"]);
                for reason in &list.reasons {
                    table.row([units::count(reason.count), reason.reason.clone()]);
                }
                table.print()
            })
        }),
        ParkedCommand::Replay(options) => select(options, "replay", None, "offered again", output),
        ParkedCommand::Discard { select: options, sure } => {
            options.request(None)?;
            if !options.dry_run {
                let One { group, server } = &options.one;
                let question = format!("Drop parked messages of the group {group}?");
                sure.ask_about(server, &group.path(), &question)?;
            }
            select(options, "discard", None, "dropped", output)
        }
        ParkedCommand::Move { select: options, to } => {
            select(options, "move", Some(to), &format!("moved to {}", printable(to)), output)
        }
        ParkedCommand::Resubmit(options) => {
            http::with(&options.one.server, async |http| resubmit(http, options, output).await)
        }
        ParkedCommand::Jobs { one, job: None } => http::with(&one.server, async |http| {
            let reply = http.get(&format!("{}/jobs", one.group.path())).await?;
            http::show(&reply, output, |list: &JobList| jobs(&list.jobs))
        }),
        ParkedCommand::Jobs { one, job: Some(job) } => http::with(&one.server, async |http| {
            let reply = http.get(&format!("{}/jobs/{job}", one.group.path())).await?;
            http::show(&reply, output, |job: &Job| jobs(std::slice::from_ref(job)))
        }),
        ParkedCommand::Cancel { one, job } => http::with(&one.server, async |http| {
            let path = format!("{}/jobs/{job}", one.group.path());
            let reply = http.call(Method::DELETE, &path, bytes::Bytes::new()).await?;
            match output {
                Output::Json => reply.print(),
                Output::Text => print(&format!("cancelled job {job}\n")),
            }
        }),
    }
}

async fn list(http: &mut Http, options: &ListOptions, output: Output) -> anyhow::Result<()> {
    let mut query = Query::default();
    query.add("reason", options.filter.reason.as_deref());
    query.add("key", options.filter.key.as_deref());
    query.add("type", options.filter.kind.as_deref());
    let path = format!("{}/parked", options.one.group.path());
    let (from, limit) = (options.after.as_deref(), Some(options.limit));
    let list =
        http.list(&Listing { path: &path, query, field: "parked", cursor: "after", from, limit }).await?;
    if output == Output::Json {
        return list.print();
    }
    let parked: Vec<ParkedMessage> = list.read()?;
    if parked.is_empty() {
        say("no parked messages match");
    }
    let mut table = Table::new(&[">SEQ", "PARKED", ">ATTEMPTS", "CONSUMER", "REASON", "TYPE", "KEY", "BODY"]);
    for one in &parked {
        let message = one.message.as_ref();
        let text = |of: fn(&StoredMessage) -> &Option<String>| {
            message.and_then(|it| of(it).clone()).unwrap_or_default()
        };
        table.row([
            one.seq.to_string(),
            one.parked_at.to_string(),
            units::count(one.attempts.into()),
            one.consumer.clone().unwrap_or("-".to_owned()),
            one.reason.clone(),
            text(|message| &message.kind),
            message.map(key).unwrap_or_default(),
            message.map_or("(cannot be read)".to_owned(), short_body),
        ]);
    }
    table.print()?;
    if let Some(next) = list.next {
        say(&format!("there are more: --after {}", printable(&next)));
    }
    Ok(())
}

fn show(parked: &ParkedMessage) -> anyhow::Result<()> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("position", parked.seq.to_string()),
        fact("reason", parked.reason.clone()),
        fact("parked", parked.parked_at.to_string()),
        fact("attempts", units::count(parked.attempts.into())),
        fact("consumer", parked.consumer.clone().unwrap_or("-".to_owned())),
    ];
    match &parked.message {
        None => facts.push(fact("message", "(cannot be read)".to_owned())),
        Some(message) => {
            facts.push(fact("published", message.published_at.to_string()));
            let texts = [("id", &message.id), ("type", &message.kind), ("key", &message.key)];
            facts.extend(texts.into_iter().filter_map(|(name, text)| Some(fact(name, text.clone()?))));
            facts.push(fact("priority", message.priority.to_string()));
            facts.extend(
                message.headers.iter().map(|(name, value)| fact(&format!("header {name}"), value.clone())),
            );
            facts.push(fact("body", body(message)));
        }
    }
    print_facts(&facts)?;
    if parked.history.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["FAILED", ">ATTEMPT", "CONSUMER", "REASON"]);
    for failure in &parked.history {
        let consumer = failure.consumer.clone().unwrap_or("-".to_owned());
        table.row([failure.at.to_string(), failure.attempt.to_string(), consumer, failure.reason.clone()]);
    }
    print("\n")?;
    table.print()
}

fn select(options: &Select, verb: &str, to: Option<&str>, done: &str, output: Output) -> anyhow::Result<()> {
    let request = options.request(to)?;
    let group = &options.one.group;
    http::with(&options.one.server, async |http| {
        let reply = http.send(Method::POST, &format!("{}/parked/{verb}", group.path()), &request).await?;
        let selected: SelectReply = reply.read()?;
        if selected.matched == 0 && !options.seqs.is_empty() {
            let positions: Vec<String> = options.seqs.iter().map(ToString::to_string).collect();
            return Err(anyhow!(Exit::NotFound).context(format!(
                "none of these messages is parked in the group {group}. positions=`{}`",
                positions.join(", ")
            )));
        }
        http::show(&reply, output, |selected: &SelectReply| {
            let messages = units::of(selected.matched, "message");
            if selected.matched == 0 && options.filter.reason.is_some() {
                say(&format!("reasons match exactly; `forebay parked reasons {group}` lists them"));
            }
            print(&match selected.job {
                Some(job) => {
                    format!(
                        "{messages} to be {done}, as job {job}; see `forebay parked jobs {group} {job}`\n"
                    )
                }
                None if options.dry_run => format!("{messages} would be {done}\n"),
                None => format!("{messages} {done}\n"),
            })
        })
    })
}

async fn resubmit(http: &mut Http, options: &Resubmit, output: Output) -> anyhow::Result<()> {
    let message = match (&options.file, &options.body) {
        (Some(file), _) => read_message(file).context(Exit::NotUnderstood)?,
        (None, text) => with_body(text.as_deref().unwrap_or_default()),
    };
    let path = format!("{}/parked/{}/resubmit", options.one.group.path(), options.seq);
    let reply = http.send(Method::POST, &path, &message).await?;
    http::show(&reply, output, |done: &PublishResult| {
        let stream = printable(&options.one.group.stream);
        print(&format!("position {} is now position {} of {stream}\n", options.seq, done.seq))
    })
}

/// A message of which only the body is given. The server leaves the rest as it was.
fn with_body(text: &str) -> Message {
    let Body { body, body_text, .. } = Body::of(Some(text.as_bytes()), "");
    Message { body, body_text, ..Message::default() }
}

fn read_message(file: &std::path::Path) -> anyhow::Result<Message> {
    let shown = printable(&file.display().to_string());
    let mut text = String::new();
    if shown == "-" {
        std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    }
    forebay_wire::json::read(text.as_bytes())
        .with_context(|| format!("{shown} is not a message object of the API"))
}

fn jobs(jobs: &[Job]) -> anyhow::Result<()> {
    if jobs.is_empty() {
        say("there are no jobs");
    }
    let mut table =
        Table::new(&[">JOB", "WORK", "STATE", ">MATCHED", ">DONE", ">FAILED", ">RATE", "STARTED"]);
    for job in jobs {
        table.row([
            job.job.to_string(),
            work(job),
            word(&job.state),
            units::count(job.matched),
            units::count(job.done),
            units::count(job.failed),
            job.rate.map_or("-".to_owned(), |rate| units::rate(rate.per_second)),
            job.started_at.to_string(),
        ]);
    }
    table.print()
}

/// What a job does, and where messages go.
fn work(job: &Job) -> String {
    let work = word(&job.work).replace('_', " ");
    job.to.as_ref().map_or(work.clone(), |to| format!("{work} to {to}"))
}
