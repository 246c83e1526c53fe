//! `forebay cluster`: the owner of the log, and how the nodes and the servers of NATS stand.

use clap::{Args, Subcommand};
use forebay_wire::json::{ClusterReport, NodeRole};

use crate::connect::{Server, runtime};
use crate::http::Http;
use crate::print::{Output, Table, print, print_facts};
use crate::safe::printable;
use crate::units;

const STATUS: &str = "\
Any node may be asked: it asks the others. On a server with tokens the command needs one that may monitor.

Examples:
  forebay cluster status
  forebay cluster status --server a:7070,b:7070,c:7070
  forebay cluster status -o json | jq -r .owner";

#[derive(Debug, Args)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the owner of the log, the nodes, and the NATS servers that keep the log.
    #[command(after_help = STATUS)]
    Status {
        #[command(flatten)]
        server: Server,
    },
    /// Try a cluster out: three NATS servers and three nodes on this machine, load, faults, and the accounts.
    #[cfg(feature = "jetstream")]
    #[command(name = "try", after_help = crate::trial::EXAMPLES)]
    Try(crate::trial::Try),
}

pub(crate) fn run(options: &Cluster, output: Output) -> anyhow::Result<()> {
    let server = match &options.command {
        Command::Status { server } => server,
        #[cfg(feature = "jetstream")]
        Command::Try(options) => return crate::trial::run(options, output),
    };
    runtime()?.block_on(async {
        let mut http = Http::connect(server).await?;
        let reply = http.get("/cluster").await?;
        match output {
            Output::Json => reply.print(),
            Output::Text => show(&reply.read()?),
        }
    })
}

fn show(report: &ClusterReport) -> anyhow::Result<()> {
    let Some(cluster) = &report.cluster else {
        return print("the server has a log of its own and is not a node of a cluster\n");
    };
    let shown = |text: &str| printable(text).to_string();
    let asked = shown(report.node.as_deref().unwrap_or("none"));
    let mut facts = vec![
        ("cluster".to_owned(), shown(cluster)),
        ("asked".to_owned(), format!("{asked} ({})", word(report.role))),
        ("owner".to_owned(), owner(report)),
        ("term".to_owned(), units::count(report.term.into())),
    ];
    if let Some(log) = &report.log {
        let most = log.max_bytes.map(|most| format!(" of {}", units::bytes(most))).unwrap_or_default();
        let records = units::of(log.last_record, "record");
        let size = format!("{}: {records}, {}{most}", printable(&log.stream), units::bytes(log.bytes));
        facts.push(("log".to_owned(), size));
    }
    facts.extend(report.problem.iter().map(|why| ("problem".to_owned(), shown(why))));
    print_facts(&facts)?;
    let mut nodes = Table::new(&["NODE", "ROLE", "ADDRESS", "VERSION", "TENURE LEFT", "BEHIND"]);
    for node in &report.nodes {
        let left = node.tenure_left.map_or_else(String::new, units::age);
        let behind = units::count(node.records_behind);
        let role = word(node.role).to_owned();
        nodes.row([shown(&node.node), role, shown(&node.address), shown(&node.version), left, behind]);
    }
    print("\n")?;
    nodes.print()?;
    let Some(log) = &report.log else { return Ok(()) };
    let mut servers = Table::new(&["NATS SERVER", "ROLE", "STATE", "BEHIND", "LAST HEARD"]);
    for server in &log.servers {
        let role = if server.leader { "leader" } else { "replica" };
        let state = match (server.online, server.current) {
            (false, _) => "offline",
            (true, false) => "behind",
            (true, true) => "current",
        };
        let heard =
            server.silent_for.map_or_else(String::new, |silent| format!("{} ago", units::age(silent)));
        let behind = units::count(server.records_behind);
        servers.row([shown(&server.name), role.to_owned(), state.to_owned(), behind, heard]);
    }
    print("\n")?;
    servers.print()
}

fn word(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Single => "single",
        NodeRole::Owner => "owner",
        NodeRole::Standby => "standby",
    }
}

/// The last owner of the log, and whether it is one still.
fn owner(report: &ClusterReport) -> String {
    let Some(owner) = &report.owner else { return "none".to_owned() };
    let address = report.owner_address.as_deref().unwrap_or_default();
    let is_there = report.nodes.iter().any(|node| node.node == *owner && node.role == NodeRole::Owner);
    let remark = if is_there { "" } else { ", which does not answer" };
    format!("{} at {}{remark}", printable(owner), printable(address))
}

#[cfg(test)]
mod tests {
    use forebay_wire::json::ClusterNode;

    use super::*;

    #[test]
    fn an_owner_that_does_not_answer_is_told() {
        let mut report = ClusterReport {
            owner: Some("a".to_owned()),
            owner_address: Some("10.0.0.1:7070".to_owned()),
            ..ClusterReport::default()
        };
        assert_eq!(owner(&report), "a at 10.0.0.1:7070, which does not answer");
        let node = ClusterNode { node: "a".to_owned(), role: NodeRole::Owner, ..ClusterNode::default() };
        report.nodes.push(node);
        assert_eq!(owner(&report), "a at 10.0.0.1:7070");
        assert_eq!(owner(&ClusterReport::default()), "none");
    }
}
