//! Connections by door and client, and the consumers of all groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_broker::api::{Caller, ConnectionReport, DoorStats, Entrance};
use maud::{Markup, html};

use super::super::format;
use super::super::layout::{figure, heading, name, nothing};
use super::super::sampler::{CONSUMERS_MAX, ConsumerRow, Snapshot};
use super::super::view::{Page, Section, View};
use super::action::Action;
use super::parts::{ago, group_link, matches, no_match, number, page_of, pager, search, table};
use super::{List, ROWS};

/// Connections that the page looks through.
const CONNECTIONS_MAX: usize = 2_000;

/// Figures of the whole server, for a client that may see them.
pub(super) struct Facts {
    doors: Vec<Arc<DoorStats>>,
    connections: Vec<ConnectionReport>,
    has_more: bool,
    may_close: bool,
}

impl Facts {
    pub(super) fn of(broker: &Entrance, caller: &Caller) -> Facts {
        match caller.connections(0, CONNECTIONS_MAX) {
            Ok(page) => Facts {
                doors: broker.doors().all(),
                connections: page.items,
                has_more: page.next.is_some(),
                may_close: caller.operates_server(),
            },
            Err(_) => Facts { doors: Vec::new(), connections: Vec::new(), has_more: false, may_close: false },
        }
    }
}

pub(super) fn write(view: &View, snapshot: &Snapshot, facts: &Facts, list: &List) -> Page {
    let doors = &facts.doors;
    let fits = |one: &&ConnectionReport| {
        let who = one.who.as_deref().unwrap_or_default();
        matches(list, &[one.door, who, &one.address.to_string()])
    };
    let mut open: Vec<&ConnectionReport> = facts.connections.iter().filter(fits).collect();
    open.sort_by_key(|one| std::cmp::Reverse((one.consumers, one.requests)));
    let is_named = |row: &ConsumerRow| {
        matches(
            list,
            &[row.stream.as_str(), row.group.as_str(), &row.name, row.address.as_deref().unwrap_or_default()],
        )
    };
    let mut rows: Vec<&ConsumerRow> = snapshot.consumers.iter().filter(|row| is_named(row)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.in_flight));
    let content = html! {
        (heading(html! { "Clients" }, html! {}, html! {}))
        (view.live("figures", "", html! {
            dl.figures {
                (figure("Connected", &format::count(snapshot.server.connected as u64), "", html! { "consumers" }))
                (figure("Polling", &format::count(snapshot.server.polling as u64), "", html! { "consumers" }))
                (figure("Waiting", &format::count(snapshot.server.waiting as u64), "", html! { "long polls" }))
            }
        }))
        @if !doors.is_empty() {
            section aria-labelledby="doors-title" {
                h2 #doors-title { "Connections by API" }
                (view.live("doors", "", doors_table(doors)))
            }
        }
        (search(view, list, "client", rows.len() + open.len(), snapshot.consumers.len() + facts.connections.len()))
        @if !doors.is_empty() {
            section aria-labelledby="connections-title" {
                h2 #connections-title { "Connections" }
                (view.live("connections", "", connections(view, &open, facts)))
                (close_dialog(view))
            }
        }
        section aria-labelledby="consumers-title" {
            h2 #consumers-title { "Consumers" }
            (view.live("consumers", "", consumers(view, list, &rows)))
            (pager(list, rows.len()))
            @if snapshot.consumers.len() == CONSUMERS_MAX {
                p.hint {
                    "There may be more: the first " (format::count(CONSUMERS_MAX as u64)) " are shown. "
                    "The page of a group shows its own."
                }
            }
        }
    };
    Page { title: "Clients".to_owned(), section: Section::Clients, trail: Vec::new(), content }
}

fn doors_table(doors: &[Arc<DoorStats>]) -> Markup {
    let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let requests = |door: &DoorStats| {
        let rows = door.requests();
        let all: u64 = rows.iter().map(|(_, _, count)| count).sum();
        let failed: u64 =
            rows.iter().filter(|(_, problem, _)| &**problem != "none").map(|(_, _, count)| count).sum();
        (all, failed)
    };
    html! {
        (table("Connections by API", "", &[
            "API", ">Open", ">Accepted", ">Refused", ">Stalled", ">Requests", ">Errors",
        ], html! {
            @for door in doors {
                @let (all, failed) = requests(door);
                tr {
                    th scope="row" { (door.name) }
                    @if door.listens.load(Ordering::Relaxed) {
                        (number(value(&door.open))) (number(value(&door.accepted)))
                        (number(value(&door.refused))) (number(value(&door.stalled)))
                    } @else { td.number.shared colspan="4" { span.hint { "on the native port" } } }
                    (number(all)) (number(failed))
                }
            }
        }))
    }
}

/// The connections with the most consumers and requests.
fn connections(view: &View, open: &[&ConnectionReport], facts: &Facts) -> Markup {
    if open.is_empty() {
        return html! { p.hint { "No connection matches." } };
    }
    let columns =
        ["Client", "API", "Address", ">Consumers", ">Requests", ">Received", ">Sent", "Since", "~Actions"];
    let columns = if facts.may_close { &columns[..] } else { &columns[..columns.len() - 1] };
    html! {
        (table("Connections", "", columns, html! {
            @for one in open.iter().take(ROWS) {
                tr {
                    th scope="row" {
                        @match &one.who {
                            Some(who) => { bdi.name { (name(who)) } }
                            None => { span.hint { "not recognised" } }
                        }
                    }
                    td { (one.door) }
                    td.nowrap { (one.address) }
                    (number(one.consumers)) (number(one.requests))
                    td.number { (format::bytes(one.read)) } td.number { (format::bytes(one.written)) }
                    td.nowrap { (ago(view, one.since.0)) }
                    @if facts.may_close {
                        td.number {
                            button.quiet type="button" data-open="close" data-of=(one.id)
                                aria-label=(format!("Close the connection from {}", one.address)) { "Close" }
                        }
                    }
                }
            }
        }))
        @if open.len() > ROWS || facts.has_more {
            p.hint { "The first " (format::count(ROWS as u64)) " are shown; a search finds others." }
        }
    }
}

/// One dialog for all rows: the button that opens it says which connection is meant.
fn close_dialog(view: &View) -> Markup {
    Action {
        id: "close",
        label: "Close",
        title: "Close this connection?".to_owned(),
        text: html! {
            p {
                "Its requests end without an answer, and its consumers leave their groups. Most clients connect "
                "again at once: revoke the token to keep one out."
            }
        },
        method: "DELETE",
        address: view.to("connections/{of}"),
        body: String::new(),
        fields: Vec::new(),
        command: "forebay connections close {of}".to_owned(),
        options: "",
        confirm: None,
        done: "Closed",
        then: None,
    }
    .dialog()
}

fn consumers(view: &View, list: &List, rows: &[&ConsumerRow]) -> Markup {
    if rows.is_empty() && list.text.is_some() {
        return no_match(list, "consumer");
    }
    if rows.is_empty() {
        let text = html! { "A consumer subscribes to a group and gets its messages." };
        return nothing("No consumers yet", text, &["forebay sub orders/billing"]);
    }
    html! {
        (table("Consumers", "", &[
            "Consumer", "Group", "Address", ">Holds", ">Takes at most", ">Acked", ">Failed", "Since",
        ], html! {
            @for row in page_of(list, rows) {
                tr {
                    th scope="row" {
                        bdi.name { (name(if row.name.is_empty() { "unnamed" } else { &row.name })) }
                        span.hint { (if row.is_connected { "connected" } else { "polling" }) }
                    }
                    td { (group_link(view, row.stream.as_str(), row.group.as_str())) }
                    td.nowrap { (row.address.as_deref().unwrap_or("–")) }
                    (number(row.in_flight))
                    // One that polls says with each poll how many it takes.
                    @if row.is_connected { (number(row.credit.into())) } @else { td.number data-zero { "–" } }
                    (number(row.acked))
                    (number(row.failed))
                    td.nowrap { (ago(view, row.joined)) }
                }
            }
        }))
    }
}
