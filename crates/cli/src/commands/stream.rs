//! `forebay stream`: see streams, make and change them, look into them, empty them.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_model::StreamSettings;
use forebay_wire::json::body::from_base64;
use forebay_wire::json::{
    LogList, MessageList, PurgeReply, PurgeRequest, StoredMessage, StreamReport, TruncateReply,
    TruncateRequest,
};
use hyper::Method;

use super::pairs::{Pairs, flat, help};
use super::{Sure, stream_path};
use crate::connect::Server;
use crate::exit::say;
use crate::http::{self, Http, Listing, Query};
use crate::print::{Output, Table, print, print_facts};
use crate::safe::{printable, printable_bytes};
use crate::settings::values::whole;
use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Stream {
    #[command(subcommand)]
    command: StreamCommand,
}

#[derive(Debug, Subcommand)]
enum StreamCommand {
    /// List the streams.
    #[command(
        visible_alias = "ls",
        after_help = LIST_EXAMPLES
    )]
    List {
        #[command(flatten)]
        server: Server,
    },
    /// Show a stream: statistics, groups and settings.
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Name of the stream.
        stream: String,
        #[command(flatten)]
        server: Server,
    },
    /// Create a stream. Succeeds if it exists with these settings.
    #[command(after_help = help(StreamSettings::FIELDS, CREATE_EXAMPLES))]
    Create {
        /// Name of the stream.
        stream: String,
        #[command(flatten)]
        pairs: Pairs,
        #[command(flatten)]
        server: Server,
    },
    /// Change settings of a stream.
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// Name of the stream.
        stream: String,
        #[command(flatten)]
        pairs: Pairs,
        #[command(flatten)]
        server: Server,
    },
    /// Delete a stream with its messages and groups.
    #[command(
        after_help = DELETE_EXAMPLES
    )]
    Delete {
        /// Name of the stream.
        stream: String,
        /// Delete even if groups have consumers.
        #[arg(long)]
        force: bool,
        /// Delete only if no message is left, parked ones included.
        #[arg(long)]
        if_empty: bool,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
    /// Drop every message that is not settled, for all groups.
    #[command(
        after_help = PURGE_EXAMPLES
    )]
    Purge {
        /// Name of the stream.
        stream: String,
        /// Also drop parked messages.
        #[arg(long)]
        parked: bool,
        /// Drop only messages that no consumer holds.
        #[arg(long, conflicts_with = "parked")]
        ready_only: bool,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
    /// Drop every message before a position, for all groups and readers. Parked messages stay.
    #[command(
        after_help = TRUNCATE_EXAMPLES
    )]
    Truncate {
        /// Name of the stream.
        stream: String,
        /// The first position that stays.
        #[arg(long, value_name = "SEQ", value_parser = whole::<u64>(1..=u64::MAX))]
        before: u64,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
    /// Show messages without leasing them.
    #[command(visible_alias = "peek", after_help = BROWSE_EXAMPLES)]
    Browse(Browse),
    /// Print messages as they arrive, without leasing them, until ^C.
    #[command(visible_alias = "tail", after_help = FOLLOW_EXAMPLES)]
    Follow(Follow),
}

const LIST_EXAMPLES: &str = "\
Examples:
  forebay stream list
  forebay stream list -o json | jq -r '.streams[].stream'";

const SHOW_EXAMPLES: &str = "\
Examples:
  forebay stream show emails
  forebay stream show emails -o json";

const DELETE_EXAMPLES: &str = "\
Examples:
  forebay stream delete emails
  forebay stream delete emails --force --yes   even if groups have consumers
  forebay stream delete emails --if-empty --yes";

const PURGE_EXAMPLES: &str = "\
Examples:
  forebay stream purge emails
  forebay stream purge emails --parked --yes
  forebay stream purge emails --ready-only     leased messages stay";

const TRUNCATE_EXAMPLES: &str = "\
Examples:
  forebay stream truncate events --before 1000
  forebay stream truncate events --before 1000 --yes";

const CREATE_EXAMPLES: &str = "\
Examples:
  forebay stream create emails
  forebay stream create events retention.max_age=7d limits.max_bytes=10GiB
  forebay stream create emails --json '{\"ingress_rate\": {\"per_second\": 100}}'";

const SET_EXAMPLES: &str = "\
Names and values are those of `forebay stream create`; other settings keep their values.

Examples:
  forebay stream set emails limits.max_messages=1000000 limits.on_full=drop_oldest
  forebay stream set emails ingress_rate=null";

const BROWSE_EXAMPLES: &str = "\
Examples:
  forebay stream browse emails
  forebay stream browse emails --from 1000 --limit 5
  forebay stream browse emails --key user-4 --type email.send
  forebay stream peek emails -o json | jq '.messages[].body'";

const FOLLOW_EXAMPLES: &str = "\
Every reader gets every message, and no group is changed. A line has the position, the time, and the body; with
-o json it is an object as in the API.

Examples:
  forebay stream follow emails           new messages only
  forebay stream follow emails --from 1  everything that is kept, then new messages
  forebay stream follow emails --key user-4 --max 10 -o json | jq .body
  forebay stream follow --prefix orders-  all streams whose names begin with it, in the order of publishing
  forebay stream follow --all --from 1    every stream";

#[derive(Debug, Args)]
struct Follow {
    /// Name of the stream.
    #[arg(required_unless_present_any = ["prefix", "all"], conflicts_with_all = ["prefix", "all"])]
    stream: Option<String>,
    /// Instead of one stream: all streams whose names begin with this, also those that are created later.
    #[arg(long, value_name = "TEXT", conflicts_with = "all")]
    prefix: Option<String>,
    /// Instead of one stream: all streams.
    #[arg(long)]
    all: bool,
    /// The first position to print; with --prefix and --all, the position in the log. Default: only new messages.
    #[arg(long, value_name = "SEQ", value_parser = whole::<u64>(0..=u64::MAX))]
    from: Option<u64>,
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Exit after this many messages.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    max: u64,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Browse {
    /// Name of the stream.
    stream: String,
    /// The first position to show. Default: the oldest message.
    #[arg(long, value_name = "SEQ", value_parser = whole::<u64>(0..=u64::MAX))]
    from: Option<u64>,
    /// Maximum number of messages to show.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u64>(1..=100_000))]
    limit: u64,
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(stream: &Stream, output: Output) -> anyhow::Result<()> {
    match &stream.command {
        StreamCommand::List { server } => http::with(server, async |http| list(http, output).await),
        StreamCommand::Show { stream, server } => http::with(server, async |http| {
            let reply = http.get(&stream_path(stream)).await?;
            http::show(&reply, output, show)
        }),
        StreamCommand::Create { stream, pairs, server } => {
            let settings = pairs.object()?;
            http::with(server, async |http| {
                let set = format!("forebay stream set {}", printable(stream));
                let created = http.send(Method::PUT, &stream_path(stream), &settings).await;
                let reply = created.map_err(|error| http::changeable(error, &set, &settings))?;
                http::show::<serde_json::Value>(&reply, output, |_| {
                    let stream = printable(stream);
                    print(&match reply.status {
                        201 => format!("created the stream {stream}\n"),
                        _ => format!("stream {stream} already exists\n"),
                    })
                })
            })
        }
        StreamCommand::Set { stream, pairs, server } => {
            let settings = pairs.object()?;
            pairs.require("dedupe_window=10m")?;
            http::with(server, async |http| {
                let reply = http.send(Method::PATCH, &stream_path(stream), &settings).await?;
                http::show::<serde_json::Value>(&reply, output, |_| {
                    print(&format!("changed the stream {}\n", printable(stream)))
                })
            })
        }
        StreamCommand::Delete { stream, force, if_empty, sure, server } => {
            let question = format!("Delete the stream {} with its messages and groups?", printable(stream));
            sure.ask_about(server, &stream_path(stream), &question)?;
            let mut query = Query::default();
            query.add("force", force.then_some(true));
            query.add("if_empty", if_empty.then_some(true));
            http::with(server, async |http| {
                let path = format!("{}{query}", stream_path(stream));
                let reply = http.call(Method::DELETE, &path, bytes::Bytes::new()).await?;
                match output {
                    Output::Json => reply.print(),
                    Output::Text => print(&format!("deleted the stream {}\n", printable(stream))),
                }
            })
        }
        StreamCommand::Purge { stream, parked, ready_only, sure, server } => {
            let what = match (parked, ready_only) {
                (true, _) => "every message, parked ones too,",
                (_, true) => "every message that no consumer holds",
                _ => "every message",
            };
            let question = format!("Drop {what} of the stream {}?", printable(stream));
            sure.ask_about(server, &stream_path(stream), &question)?;
            http::with(server, async |http| {
                let path = format!("{}/purge", stream_path(stream));
                let request = PurgeRequest { parked: *parked, ready_only: *ready_only };
                let reply = http.send(Method::POST, &path, &request).await?;
                http::show(&reply, output, |done: &PurgeReply| {
                    print(&format!("dropped {}\n", units::of(done.purged, "message")))
                })
            })
        }
        StreamCommand::Truncate { stream, before, sure, server } => {
            let question = format!("Drop every message before position {before} of {}?", printable(stream));
            sure.ask_about(server, &stream_path(stream), &question)?;
            http::with(server, async |http| {
                let path = format!("{}/truncate", stream_path(stream));
                let reply = http.send(Method::POST, &path, &TruncateRequest { before: *before }).await?;
                http::show(&reply, output, |done: &TruncateReply| {
                    print(&format!("dropped {}\n", units::of(done.truncated, "message")))
                })
            })
        }
        StreamCommand::Browse(options) => {
            http::with(&options.server, async |http| browse(http, options, output).await)
        }
        StreamCommand::Follow(options) => {
            http::with(&options.server, async |http| follow(http, options, output).await)
        }
    }
}

async fn list(http: &mut Http, output: Output) -> anyhow::Result<()> {
    let query = Query::default();
    let of = Listing { path: "/streams", query, field: "streams", cursor: "after", from: None, limit: None };
    let list = http.list(&of).await?;
    if output == Output::Json {
        return list.print();
    }
    let streams: Vec<StreamReport> = list.read()?;
    if streams.is_empty() {
        say("there are no streams yet; publishing to one makes it");
    }
    let mut table = Table::new(&["STREAM", ">MESSAGES", ">SIZE", ">LAST", ">IN", ">OLDEST", ">GROUPS"]);
    for stream in streams {
        table.row([
            stream.stream.clone(),
            units::count(stream.messages),
            units::bytes(stream.bytes),
            units::count(stream.last_seq),
            units::rate(stream.rates.published.minute),
            oldest(&stream),
            units::count(stream.groups),
        ]);
    }
    table.print()
}

/// The age of the oldest message that a group still needs. Settled messages wait for their deletion and do not count.
pub(super) fn oldest(stream: &StreamReport) -> String {
    let age = stream.oldest_age.filter(|_| stream.messages > 0);
    age.map_or("-".to_owned(), units::age)
}

fn show(stream: &StreamReport) -> anyhow::Result<()> {
    let rates = stream.rates.published;
    let mut facts = vec![
        ("stream".to_owned(), stream.stream.clone()),
        (
            "messages".to_owned(),
            format!("{} ({})", units::count(stream.messages), units::bytes(stream.bytes)),
        ),
        ("positions".to_owned(), format!("{} to {}", stream.first_seq, stream.last_seq)),
        ("delayed".to_owned(), units::count(stream.delayed)),
        ("oldest".to_owned(), oldest(stream)),
        (
            "published".to_owned(),
            format!(
                "{} now, {} over a minute, {} over a quarter of an hour",
                units::rate(rates.second),
                units::rate(rates.minute),
                units::rate(rates.quarter_hour)
            ),
        ),
        ("created".to_owned(), stream.created_at.to_string()),
        (
            "groups".to_owned(),
            if stream.group_names.is_empty() { "none".to_owned() } else { stream.group_names.join(", ") },
        ),
    ];
    facts.extend(flat(&stream.settings).into_iter().map(|(name, value)| (format!("settings {name}"), value)));
    print_facts(&facts)
}

async fn browse(http: &mut Http, options: &Browse, output: Output) -> anyhow::Result<()> {
    let mut query = Query::default();
    query.add("key", options.key.as_deref());
    query.add("type", options.kind.as_deref());
    let from = options.from.map(|from| from.to_string());
    let path = format!("{}/messages", stream_path(&options.stream));
    let limit = Some(options.limit);
    let from = from.as_deref();
    let list =
        http.list(&Listing { path: &path, query, field: "messages", cursor: "from", from, limit }).await?;
    if output == Output::Json {
        return list.print();
    }
    let messages: Vec<StoredMessage> = list.read()?;
    if messages.is_empty() {
        say("there are no such messages");
    }
    let mut table = Table::new(&[">SEQ", "PUBLISHED", "ID", "TYPE", "KEY", ">PRIO", "BODY"]);
    for message in &messages {
        table.row([
            message.seq.to_string(),
            message.published_at.to_string(),
            message.id.clone().unwrap_or_default(),
            message.kind.clone().unwrap_or_default(),
            key(message),
            message.priority.to_string(),
            short_body(message),
        ]);
    }
    table.print()?;
    if let Some(next) = list.next {
        say(&format!("there are more: --from {}", printable(&next)));
    }
    Ok(())
}

/// Messages of one page.
const FOLLOW_PAGE: u64 = 500;
/// How often a stream is asked for more when it had no more.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// Prints pages of messages, and waits where there are no more.
async fn follow(http: &mut Http, options: &Follow, output: Output) -> anyhow::Result<()> {
    let stream = options.stream.as_deref();
    let path = stream.map_or("/log".to_owned(), |stream| format!("{}/messages", stream_path(stream)));
    let mut from = match (options.from, stream) {
        (Some(from), _) => from,
        (None, Some(stream)) => http.get(&stream_path(stream)).await?.read::<StreamReport>()?.last_seq + 1,
        (None, None) => http.get("/log?order=desc&limit=1").await?.read::<LogList>()?.last_log_position + 1,
    };
    if output == Output::Text && std::io::stderr().is_terminal() {
        let what = match (stream, &options.prefix) {
            (Some(stream), _) => printable(stream),
            (None, Some(prefix)) => format!("streams that begin with {}", printable(prefix)),
            (None, None) => "all streams".to_owned(),
        };
        say(&format!("following {what} from position {from}; ^C ends"));
    }
    let mut left = options.max;
    while left > 0 {
        let mut query = Query::default();
        query.add("from", Some(from));
        query.add("limit", Some(left.min(FOLLOW_PAGE)));
        query.add("key", options.key.as_deref());
        query.add("type", options.kind.as_deref());
        query.add("prefix", options.prefix.as_deref());
        let page_path = format!("{path}{query}");
        let asked = http.get(&page_path);
        let page = tokio::select! {
            page = asked => page?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let (messages, next, last) = match stream {
            Some(_) => {
                let page: MessageList = page.read()?;
                (page.messages, page.next, page.last_seq)
            }
            None => {
                let page: LogList = page.read()?;
                (page.messages, page.next, page.last_log_position)
            }
        };
        for message in &messages {
            print(&match output {
                Output::Json => format!("{}\n", serde_json::to_string(message)?),
                Output::Text => line(message),
            })?;
        }
        left -= (messages.len() as u64).min(left);
        // At the end, the next page begins behind the last message.
        let at_end = next.is_none();
        from = match next.and_then(|next| next.parse().ok()) {
            Some(next) => next,
            None => last.saturating_add(1).max(from),
        };
        if at_end && left > 0 {
            tokio::select! {
                () = tokio::time::sleep(FOLLOW_PAUSE) => {}
                _ = tokio::signal::ctrl_c() => return Ok(()),
            }
        }
    }
    Ok(())
}

/// A message that is followed. If it comes with its stream, the positions in the log and in the stream come first.
fn line(message: &StoredMessage) -> String {
    let (seq, at, body) = (message.seq, message.published_at, body(message));
    match &message.stream {
        Some(stream) => format!("{}\t{}\t{seq}\t{at}\t{body}\n", message.log_position, printable(stream)),
        None => format!("{seq}\t{at}\t{body}\n"),
    }
}

/// How much of a body a table shows.
const BODY_CHARS_MAX: usize = 80;

pub(super) fn short_body(message: &StoredMessage) -> String {
    let body = body(message);
    match body.char_indices().nth(BODY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &body[..end]),
        None => body,
    }
}

/// A key as a person reads it.
pub(super) fn key(message: &StoredMessage) -> String {
    match (&message.key, &message.key_base64) {
        (None, Some(text)) => {
            from_base64("key_base64", text).map_or_else(|_| printable(text), |bytes| printable_bytes(&bytes))
        }
        (key, _) => key.clone().unwrap_or_default(),
    }
}

/// A body as a person reads it.
pub(super) fn body(message: &StoredMessage) -> String {
    match (&message.body, &message.body_text, &message.body_base64) {
        (Some(body), _, _) => printable(body.get()),
        (None, Some(text), _) => printable(text),
        (None, None, Some(text)) => {
            from_base64("body_base64", text).map_or_else(|_| printable(text), |bytes| printable_bytes(&bytes))
        }
        (None, None, None) => "(no body)".to_owned(),
    }
}
