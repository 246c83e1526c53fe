//! Connections by door, and the consumers of all groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_broker::api::DoorStats;
use maud::{Markup, html};

use super::super::format;
use super::super::layout::{empty, figure, heading};
use super::super::sampler::{CONSUMERS_MAX, ConsumerRow, Snapshot};
use super::super::view::{Page, Section, View};
use super::List;
use super::parts::{ago, group_link, matches, number, page_of, pager, search};

pub(super) fn write(view: &View, snapshot: &Snapshot, doors: &[Arc<DoorStats>], list: &List) -> Page {
    let name = |row: &ConsumerRow| {
        matches(
            list,
            &[row.stream.as_str(), row.group.as_str(), &row.name, row.address.as_deref().unwrap_or_default()],
        )
    };
    let mut rows: Vec<&ConsumerRow> = snapshot.consumers.iter().filter(|row| name(row)).collect();
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
        section aria-labelledby="consumers-title" {
            h2 #consumers-title { "Consumers" }
            (search(list, "consumers", rows.len(), snapshot.consumers.len()))
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
        div.table role="region" aria-label="Connections by API" tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "API" } th.number scope="col" { "Open" } th.number scope="col" { "Accepted" }
                        th.number scope="col" { "Refused" } th.number scope="col" { "Given up" }
                        th.number scope="col" { "Requests" } th.number scope="col" { "With a problem" }
                    }
                }
                tbody {
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
                }
            }
        }
    }
}

fn consumers(view: &View, list: &List, rows: &[&ConsumerRow]) -> Markup {
    if rows.is_empty() {
        return empty(
            "No consumers",
            html! { "A consumer subscribes to a group: " code { "forebay sub orders/billing" } "." },
        );
    }
    html! {
        div.table role="region" aria-label="Consumers" tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "Consumer" } th scope="col" { "Group" } th scope="col" { "Address" }
                        th.number scope="col" { "Holds" } th.number scope="col" { "Takes at most" }
                        th.number scope="col" { "Acked" } th.number scope="col" { "Failed" }
                        th scope="col" { "Since" }
                    }
                }
                tbody {
                    @for row in page_of(list, rows) {
                        tr {
                            th scope="row" {
                                bdi.name { (if row.name.is_empty() { "unnamed" } else { &row.name }) }
                                span.hint { (if row.is_connected { "connected" } else { "polling" }) }
                            }
                            td { (group_link(view, row.stream.as_str(), row.group.as_str())) }
                            td.nowrap { (row.address.as_deref().unwrap_or("–")) }
                            (number(row.in_flight)) (number(row.credit.into())) (number(row.acked))
                            (number(row.failed))
                            td.nowrap { (ago(view, row.joined)) }
                        }
                    }
                }
            }
        }
    }
}
