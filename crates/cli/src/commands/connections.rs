//! `forebay connections`: who is connected, and closing a connection.

use clap::{Args, Subcommand};
use forebay_wire::json::Connection;
use hyper::Method;

use super::Sure;
use crate::connect::Server;
use crate::http::{self, Listing, Query, encoded};
use crate::print::{Output, Table, print};
use crate::safe::printable;
use crate::settings::values::whole;
use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Connections {
    #[command(subcommand)]
    command: ConnectionsCommand,
}

#[derive(Debug, Subcommand)]
enum ConnectionsCommand {
    /// List the open connections of all ports: client, address, requests, bytes, consumers.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List {
        /// List at most so many.
        #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
        limit: Option<u64>,
        #[command(flatten)]
        server: Server,
    },
    /// Close a connection. Its consumers leave their groups; most clients connect again.
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// The id that `connections list` shows.
        id: String,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        server: Server,
    },
}

const LIST_EXAMPLES: &str = "\
Examples:
  forebay connections list
  forebay connections list -o json | jq '.connections[] | select(.consumers > 0)'";

const CLOSE_EXAMPLES: &str = "\
To keep a client out, revoke its token: `forebay token revoke`.

Examples:
  forebay connections close 17
  forebay connections close 17 --yes";

pub(crate) fn run(connections: &Connections, output: Output) -> anyhow::Result<()> {
    match &connections.command {
        ConnectionsCommand::List { limit, server } => list(*limit, server, output),
        ConnectionsCommand::Close { id, sure, server } => http::with(server, async |http| {
            sure.ask(&format!("Close connection {}? Its consumers leave their groups.", printable(id)))?;
            http.call(Method::DELETE, &format!("/connections/{}", encoded(id)), bytes::Bytes::new()).await?;
            match output {
                Output::Text => print(&format!("connection {} closed\n", printable(id))),
                Output::Json => print("{}\n"),
            }
        }),
    }
}

fn list(limit: Option<u64>, server: &Server, output: Output) -> anyhow::Result<()> {
    let listing = Listing {
        path: "/connections",
        query: Query::default(),
        field: "connections",
        cursor: "after",
        from: None,
        limit,
    };
    http::with(server, async |http| {
        let list = http.list(&listing).await?;
        if output == Output::Json {
            return list.print();
        }
        let connections: Vec<Connection> = list.read()?;
        let mut table = Table::new(&[
            "ID",
            "CLIENT",
            "API",
            "ADDRESS",
            "CONSUMERS",
            "REQUESTS",
            "RECEIVED",
            "SENT",
            "SINCE",
        ]);
        for one in &connections {
            table.row([
                printable(&one.id),
                one.client.as_deref().map_or_else(|| "-".to_owned(), printable),
                printable(&one.api),
                printable(&one.address),
                one.consumers.to_string(),
                one.requests.to_string(),
                units::bytes(one.received_bytes),
                units::bytes(one.sent_bytes),
                one.since.to_string(),
            ]);
        }
        table.print()
    })
}
