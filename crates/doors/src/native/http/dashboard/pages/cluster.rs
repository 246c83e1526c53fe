//! The nodes of a cluster, the owner of the log, and the NATS servers that keep it.

use forebay_wire::json::{ClusterLog, ClusterNode, ClusterReport, NatsServer, NodeRole};
use maud::{Markup, html};

use super::super::format;
use super::super::layout::{command, empty, figure, heading};
use super::super::view::{Page, Section, View};
use super::parts::{number, table};

pub(super) fn write(view: &View, report: &ClusterReport) -> Page {
    let content = html! {
        (heading(
            html! { "Cluster" },
            html! { @if let Some(name) = &report.cluster { bdi { (name) } } },
            html! {},
        ))
        @if report.cluster.is_none() {
            (empty("This server is one machine", html! {
                "It keeps a log of its own and is not a node of a cluster. A server whose log is on NATS JetStream "
                "shows its nodes here."
            }))
        } @else {
            (view.live("problem", "", problem(report)))
            (view.live("cluster-figures", "", figures(report)))
            section aria-labelledby="nodes-title" {
                h2 #nodes-title { "Nodes" } (view.live("nodes", "", nodes(report)))
            }
            section aria-labelledby="servers-title" {
                h2 #servers-title { "NATS servers" }
                (view.live("servers", "", servers(report.log.as_ref())))
            }
            p.command-title { "The same on the command line" }
            (command("forebay cluster status"))
        }
    };
    Page { title: "Cluster".to_owned(), section: Section::Cluster, trail: Vec::new(), content }
}

/// The node that is the owner now. The owner that the log names last may be gone.
fn serving(report: &ClusterReport) -> Option<&ClusterNode> {
    let is_owner = |node: &&ClusterNode| {
        node.role == NodeRole::Owner && report.owner.as_deref().is_none_or(|owner| owner == node.node)
    };
    report.nodes.iter().find(is_owner)
}

/// A part of the report that is missing, or an owner that does not answer.
fn problem(report: &ClusterReport) -> Markup {
    let owner = report.owner.as_deref().filter(|_| serving(report).is_none());
    if report.problem.is_none() && owner.is_none() {
        return html! {};
    }
    html! {
        section.attention aria-label="Problems of the cluster" {
            ul {
                @if let Some(owner) = owner {
                    li.critical {
                        span.mark.critical role="img" aria-label="critical" {}
                        span.sentence { "The owner of the log, " bdi { (owner) } ", does not answer." }
                    }
                }
                @if let Some(why) = &report.problem {
                    li.warning {
                        span.mark.warning role="img" aria-label="warning" {}
                        span.sentence { (why) }
                    }
                }
            }
        }
    }
}

fn figures(report: &ClusterReport) -> Markup {
    let owner = report.owner.as_deref().unwrap_or("none");
    let address = report.owner_address.as_deref().unwrap_or_default();
    let tenure = serving(report).and_then(|node| node.tenure_left).map_or("–".to_owned(), format::age);
    html! {
        dl.figures {
            (figure("Owner", owner, "", html! { bdi { (address) } }))
            (figure("Term", &format::count(report.term.into()), "", html! { "owners so far" }))
            (figure("Tenure left", &tenure, "", html! { "until renewal" }))
            (figure("Nodes", &format::count(report.nodes.len() as u64), "", html! { "answer" }))
            @if let Some(log) = &report.log {
                (figure("Log", &format::bytes(log.bytes), "", html! {
                    @match log.max_bytes { Some(max) => { "of " (format::bytes(max)) } None => { "no limit" } }
                }))
                (figure("Records", &format::short(log.last_record as f64), "", html! { bdi { (log.stream) } }))
            }
        }
    }
}

fn role(node: &ClusterNode) -> Markup {
    match node.role {
        NodeRole::Owner => html! { span.status.ok { "owner" } },
        NodeRole::Standby => html! { span.status { "standby" } },
        NodeRole::Single => html! { span.status { "single" } },
    }
}

fn nodes(report: &ClusterReport) -> Markup {
    if report.nodes.is_empty() {
        return html! { p.hint { "No node has answered." } };
    }
    html! {
        (table("Nodes", "", &[
            "Node", "Role", "Address", "Version", ">Last term as owner", ">Tenure left", ">Records behind",
        ], html! {
            @for node in &report.nodes {
                tr {
                    th scope="row" {
                        bdi { (node.node) }
                        @if report.node.as_deref() == Some(&*node.node) { span.hint { "wrote this page" } }
                    }
                    td { (role(node)) }
                    td { bdi { (node.address) } } td { bdi { (node.version) } }
                    td.number data-zero=[(node.term == 0).then_some("")] {
                        @if node.term == 0 { "–" } @else { (format::count(node.term.into())) }
                    }
                    td.number { (node.tenure_left.map_or("–".to_owned(), format::age)) }
                    (number(node.records_behind))
                }
            }
        }))
    }
}

fn state(server: &NatsServer) -> Markup {
    match (server.online, server.current) {
        (false, _) => html! { span.status.critical { "offline" } },
        (true, false) => html! { span.status.warning { "behind" } },
        (true, true) => html! { span.status.ok { "current" } },
    }
}

fn servers(log: Option<&ClusterLog>) -> Markup {
    let Some(log) = log else { return html! { p.hint { "The log cannot be asked for now." } } };
    html! {
        (table("NATS servers", "", &["NATS server", "Role", "State", ">Records behind", ">Last heard"], html! {
            @for server in &log.servers {
                tr {
                    th scope="row" { bdi { (server.name) } }
                    td { (if server.leader { "leader" } else { "replica" }) }
                    td { (state(server)) }
                    (number(server.records_behind))
                    td.number {
                        (server.silent_for.map_or("–".to_owned(), |age| format!("{} ago", format::age(age))))
                    }
                }
            }
        }))
    }
}
