//! `forebay group`: see groups, make and change them, hold and move them, ask how many consumers they want.

use clap::{Args, Subcommand};
use forebay_model::GroupSettings;
use forebay_model::types::Timestamp;
use forebay_wire::json::{
    GroupReport, ParkedOnReset, PausedReply, ResetReply, ResetRequest, Scaling, Span, Start, Time,
};
use hyper::Method;

use super::pairs::{Pairs, flat, help};
use super::{GroupPath, Sure, status, word};
use crate::connect::Server;
use crate::exit::say;
use crate::http::{self, Http, Listing, Query, encoded};
use crate::print::{Cell, Output, Table, print, print_facts};
use crate::settings::values::whole;
use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Group {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    /// List the groups, of all streams or of one.
    #[command(
        visible_alias = "ls",
        after_help = LIST_EXAMPLES
    )]
    List {
        /// Only groups of this stream.
        stream: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Show a group: progress, rates, consumers and settings.
    #[command(
        after_help = SHOW_EXAMPLES
    )]
    Show(One),
    /// Create a group, and its stream if that does not exist. Succeeds if the group exists with these settings.
    #[command(after_help = help(GroupSettings::FIELDS, CREATE_EXAMPLES))]
    Create {
        /// The group.
        #[arg(value_name = "STREAM/GROUP")]
        group: GroupPath,
        #[command(flatten)]
        pairs: Pairs,
        #[command(flatten)]
        server: Server,
    },
    /// Change settings of a group. Its consumers stay connected.
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// The group.
        #[arg(value_name = "STREAM/GROUP")]
        group: GroupPath,
        #[command(flatten)]
        pairs: Pairs,
        #[command(flatten)]
        server: Server,
    },
    /// Delete a group, with its progress and its parked messages.
    #[command(
        after_help = DELETE_EXAMPLES
    )]
    Delete {
        /// The group.
        #[arg(value_name = "STREAM/GROUP")]
        group: GroupPath,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
    /// Pause delivery. Consumers may finish their leased messages.
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(One),
    /// Resume delivery.
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(One),
    /// Move the group to another position of the stream: rewind, or skip ahead.
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        /// The group.
        #[arg(value_name = "STREAM/GROUP")]
        group: GroupPath,
        /// `beginning`, `end`, a position, or a time such as 2026-11-15T10:30:00Z.
        #[arg(long, value_name = "PLACE", value_parser = place)]
        to: Start,
        /// Also discard parked messages; otherwise they are kept.
        #[arg(long)]
        drop_parked: bool,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
    /// Recommend a number of consumers.
    #[command(after_help = SCALING_EXAMPLES)]
    Scaling {
        /// The group.
        #[arg(value_name = "STREAM/GROUP")]
        group: GroupPath,
        /// The time within which the backlog should be worked off.
        #[arg(long, value_name = "TIME")]
        target_drain: Option<Span>,
        /// Minimum number of consumers.
        #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
        min: Option<u32>,
        /// Maximum number of consumers.
        #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
        max: Option<u32>,
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, Args)]
struct One {
    /// The group.
    #[arg(value_name = "STREAM/GROUP")]
    group: GroupPath,
    #[command(flatten)]
    server: Server,
}

const LIST_EXAMPLES: &str = "\
Examples:
  forebay group list
  forebay group list emails
  forebay group list -o json | jq '.groups[] | {group, lag}'";

const SHOW_EXAMPLES: &str = "\
Examples:
  forebay group show emails/senders
  forebay group show emails/senders -o json | jq .lag";

const DELETE_EXAMPLES: &str = "\
Examples:
  forebay group delete emails/senders
  forebay group delete emails/senders --yes";

const PAUSE_EXAMPLES: &str = "\
Examples:
  forebay group pause emails/senders";

const RESUME_EXAMPLES: &str = "\
Examples:
  forebay group resume emails/senders";

const CREATE_EXAMPLES: &str = "\
Examples:
  forebay group create emails/senders
  forebay group create emails/senders max_retries=3 backoff.min=1s rate.per_second=100
  forebay group create accounts/ledger strategy=ordered acks=durable
  forebay group create emails/archive start=end --server 127.0.0.1:7171";

const SET_EXAMPLES: &str = "\
Names and values are those of `forebay group create`; other settings keep their values.

Examples:
  forebay group set emails/senders rate.per_second=20 max_retries=unlimited
  forebay group set emails/senders rate=null";

const RESET_EXAMPLES: &str = "\
Examples:
  forebay group reset emails/senders --to beginning
  forebay group reset emails/senders --to end
  forebay group reset emails/senders --to 1200
  forebay group reset emails/senders --to 2026-11-15T10:30:00Z --drop-parked --yes";

const SCALING_EXAMPLES: &str = "\
Examples:
  forebay group scaling emails/senders
  forebay group scaling emails/senders --target-drain 5m --min 1 --max 50
  forebay group scaling emails/senders -o json | jq .desired_consumers";

fn place(text: &str) -> Result<Start, String> {
    match text {
        "beginning" => Ok(Start::Beginning),
        "end" => Ok(Start::End),
        _ => match (text.parse::<u64>(), text.parse::<Time>()) {
            (Ok(seq), _) => Ok(Start::seq(seq)),
            (_, Ok(time)) => Ok(Start::Time(Timestamp(time.0))),
            _ => {
                Err("expected beginning, end, a position, or a time such as 2026-11-15T10:30:00Z".to_owned())
            }
        },
    }
}

pub(crate) fn run(group: &Group, output: Output) -> anyhow::Result<()> {
    match &group.command {
        GroupCommand::List { stream, server } => {
            http::with(server, async |http| list(http, stream.as_deref(), output).await)
        }
        GroupCommand::Show(one) => http::with(&one.server, async |http| {
            let reply = http.get(&one.group.path()).await?;
            http::show(&reply, output, show)
        }),
        GroupCommand::Create { group, pairs, server } => {
            let settings = pairs.object()?;
            http::with(server, async |http| {
                let set = format!("forebay group set {group}");
                let created = http.send(Method::PUT, &group.path(), &settings).await;
                let reply = created.map_err(|error| http::changeable(error, &set, &settings))?;
                http::show::<serde_json::Value>(&reply, output, |_| {
                    print(&match reply.status {
                        201 => format!("created the group {group}\n"),
                        _ => format!("group {group} already exists\n"),
                    })
                })
            })
        }
        GroupCommand::Set { group, pairs, server } => {
            let settings = pairs.object()?;
            pairs.require("max_retries=3")?;
            http::with(server, async |http| {
                let reply = http.send(Method::PATCH, &group.path(), &settings).await?;
                http::show::<serde_json::Value>(&reply, output, |_| {
                    print(&format!("changed the group {group}\n"))
                })
            })
        }
        GroupCommand::Delete { group, sure, server } => {
            let question = format!("Delete the group {group} with its progress and its parked messages?");
            sure.ask_about(server, &group.path(), &question)?;
            http::with(server, async |http| {
                let reply = http.call(Method::DELETE, &group.path(), bytes::Bytes::new()).await?;
                match output {
                    Output::Json => reply.print(),
                    Output::Text => print(&format!("deleted the group {group}\n")),
                }
            })
        }
        GroupCommand::Pause(one) => pause(one, "pause", output),
        GroupCommand::Resume(one) => pause(one, "resume", output),
        GroupCommand::Reset { group, to, drop_parked, sure, server } => {
            sure.ask_about(server, &group.path(), &format!("Reset the group {group}? Its leases end."))?;
            let parked = if *drop_parked { ParkedOnReset::Drop } else { ParkedOnReset::Keep };
            http::with(server, async |http| {
                let path = format!("{}/reset", group.path());
                let reply = http.send(Method::POST, &path, &ResetRequest { to: *to, parked }).await?;
                http::show(&reply, output, |done: &ResetReply| {
                    let through = done.settled_through;
                    let is_gone = match to {
                        Start::Beginning => through > 0,
                        Start::Seq(seq) => through >= seq.0.max(1),
                        Start::End | Start::Time(_) => false,
                    };
                    let why = if is_gone {
                        "; earlier messages are deleted when they are settled, unless the stream's `retention` \
                         keeps them"
                    } else {
                        ""
                    };
                    print(&format!("the group {group} continues after position {through}{why}\n"))
                })
            })
        }
        GroupCommand::Scaling { group, target_drain, min, max, server } => {
            let mut query = Query::default();
            query.add("target_drain", *target_drain);
            query.add("min", *min);
            query.add("max", *max);
            http::with(server, async |http| {
                let reply = http.get(&format!("{}/scaling{query}", group.path())).await?;
                http::show(&reply, output, scaling)
            })
        }
    }
}

fn pause(one: &One, verb: &str, output: Output) -> anyhow::Result<()> {
    http::with(&one.server, async |http| {
        let path = format!("{}/{verb}", one.group.path());
        let reply = http.call(Method::POST, &path, bytes::Bytes::new()).await?;
        http::show(&reply, output, |done: &PausedReply| {
            let done = if done.paused { "paused" } else { "resumed" };
            print(&format!("{done} the group {}\n", one.group))
        })
    })
}

async fn list(http: &mut Http, stream: Option<&str>, output: Output) -> anyhow::Result<()> {
    let path = match stream {
        Some(stream) => format!("/streams/{}/groups", encoded(stream)),
        None => "/groups".to_owned(),
    };
    let query = Query::default();
    let (field, cursor) = ("groups", "after");
    let list = http.list(&Listing { path: &path, query, field, cursor, from: None, limit: None }).await?;
    if output == Output::Json {
        return list.print();
    }
    let groups: Vec<GroupReport> = list.read()?;
    if groups.is_empty() {
        say("there are no groups yet; `forebay group create` creates one");
    }
    table(&groups).print()
}

/// The columns that every view of groups shows.
pub(super) fn table(groups: &[GroupReport]) -> Table {
    // Most servers have no delayed messages, and the table is wide.
    let delays = groups.iter().any(|group| group.delayed > 0);
    let mut titles = vec!["GROUP", "STATUS", ">LAG"];
    titles.extend(delays.then_some(">DELAYED"));
    titles.extend([">OLDEST", ">IN", ">OUT", ">IN FLIGHT", ">WAITING", ">PARKED", ">CONSUMERS"]);
    let mut table = Table::new(&titles);
    for group in groups {
        let mut row: Vec<Cell> = vec![
            format!("{}/{}", group.stream, group.group).into(),
            status(group),
            units::short(group.lag as f64).into(),
        ];
        row.extend(delays.then(|| units::short(group.delayed as f64).into()));
        row.extend([
            group.oldest_age.map_or("-".to_owned(), units::age).into(),
            units::rate(group.throughput.arrived.second).into(),
            units::rate(group.throughput.settled.second).into(),
            units::short(group.in_flight as f64).into(),
            units::short(group.waiting as f64).into(),
            units::short(group.parked as f64).into(),
            units::count(group.consumers.len() as u64).into(),
        ] as [Cell; 7]);
        table.row(row);
    }
    table
}

fn show(group: &GroupReport) -> anyhow::Result<()> {
    let (facts, consumers) = details(group);
    print_facts(&facts)?;
    if let Some(consumers) = consumers {
        print("\n")?;
        consumers.print()?;
    }
    Ok(())
}

/// Everything about a group: facts, and a table of its consumers if it has any.
pub(super) fn details(group: &GroupReport) -> (Vec<(String, String)>, Option<Table>) {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let rates = group.throughput;
    let aged = |text: String, age: Option<f64>| match age {
        Some(age) => format!("{text}, the oldest {} old", units::age(age)),
        None => text,
    };
    let mut facts =
        vec![fact("group", format!("{}/{}", group.stream, group.group)), fact("status", status(group).0)];
    if let Some(rest) = group.resting_for {
        facts.push(fact("resting", format!("for {}, as a consumer asked", units::age(rest))));
    }
    let lag = match group.delayed {
        0 => units::of(group.lag, "message"),
        delayed => format!("{}, {} delayed", units::of(group.lag, "message"), units::count(delayed)),
    };
    facts.extend([
        fact("lag", aged(lag, group.oldest_age)),
        fact("caught up in", group.catch_up_time.map_or("never, at this pace".to_owned(), units::age)),
        fact("ready", units::count(group.ready)),
        fact("waiting", units::count(group.waiting)),
        fact("in flight", units::count(group.in_flight)),
        fact("parked", aged(units::of(group.parked, "message"), group.oldest_parked_age)),
        fact("moving", units::count(group.moving)),
        fact(
            "positions",
            format!(
                "last {}, processed {}, checkpointed {}",
                group.last_known_seq, group.last_processed_seq, group.last_checkpointed_seq
            ),
        ),
    ]);
    for (name, rates) in [
        ("arrived", rates.arrived),
        ("delivered", rates.delivered),
        ("acked", rates.acked),
        ("retried", rates.retried),
        ("timed out", rates.timed_out),
    ] {
        let text = format!("{} now, {} over a minute", units::rate(rates.second), units::rate(rates.minute));
        facts.push(fact(name, text));
    }
    if let Some(times) = group.processing_time.filter(|times| times.count > 0) {
        let text = format!(
            "median {}, 95 % within {}, 99 % within {}, at most {}",
            units::age(times.p50),
            units::age(times.p95),
            units::age(times.p99),
            units::age(times.max)
        );
        facts.push(fact("processing time", text));
    }
    facts.extend(flat(&group.settings).into_iter().map(|(name, value)| (format!("settings {name}"), value)));
    if group.consumers.is_empty() {
        return (facts, None);
    }
    let titles =
        ["CONSUMER", "ADDRESS", "KIND", ">IN FLIGHT", ">CREDIT", ">ACKED", ">FAILED", ">MEDIAN", "SINCE"];
    let mut table = Table::new(&titles);
    for consumer in &group.consumers {
        table.row([
            consumer.name.clone(),
            consumer.address.clone().unwrap_or("-".to_owned()),
            word(&consumer.kind),
            units::count(consumer.in_flight),
            units::count(consumer.credit.into()),
            units::count(consumer.acked),
            units::count(consumer.failed),
            consumer.processing_time.map_or("-".to_owned(), |times| units::age(times.p50)),
            consumer.connected_at.to_string(),
        ]);
    }
    (facts, Some(table))
}

fn scaling(scaling: &Scaling) -> anyhow::Result<()> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    print_facts(&[
        fact("consumers wanted", units::count(scaling.desired_consumers.into())),
        fact("consumers there", units::count(scaling.consumers)),
        fact("backlog", units::of(scaling.backlog, "message")),
        fact("oldest", units::age(scaling.oldest_age)),
        fact("in flight", units::count(scaling.in_flight)),
        fact("arriving", units::rate(scaling.arrival_rate)),
        fact("served", units::rate(scaling.service_rate)),
        fact("gone in", scaling.drain_time.map_or("never, at this pace".to_owned(), units::age)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_word_a_position_or_a_time() {
        assert_eq!(place("beginning"), Ok(Start::Beginning));
        assert_eq!(place("1200"), Ok(Start::seq(1200)));
        assert!(matches!(place("2026-11-15T10:30:00Z"), Ok(Start::Time(_))));
        for wrong in ["", "start", "-1", "yesterday"] {
            assert!(place(wrong).is_err_and(|text| text.contains("expected")), "{wrong}");
        }
    }
}
