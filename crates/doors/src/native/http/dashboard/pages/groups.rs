//! All groups.

use std::cmp::Ordering;
use std::collections::HashMap;

use maud::{Markup, html};

use super::super::chart::spark;
use super::super::history::History;
use super::super::layout::{heading, nothing};
use super::super::sampler::{GroupRow, Snapshot};
use super::super::view::{Page, Section, View};
use super::parts::{
    age, column, group_link, matches, no_match, number, page_of, pager, rate, search, status,
};
use super::{List, Span};

const DEFAULT: &str = "attention";
/// Seconds of one point of the small lines at least, and how many points there are at most.
const STEP: u64 = 10;
const POINTS_MAX: u64 = 60;

/// The backlog of the groups on the page, over the last hour or as far back as it is known.
pub(super) struct Sparks(HashMap<(String, String), Vec<f32>>);

impl Sparks {
    pub(super) fn of(history: &History, rows: &[&GroupRow], list: &List, now: u64) -> Sparks {
        let now = now / 1_000_000;
        let span = Span::of_recording(history.recorded(now)).seconds();
        let shown = page_of(list, rows).iter().filter_map(|row| {
            let (stream, group) = (&row.facts.stream, &row.facts.group);
            let ring = history.of_group(stream, group)?;
            let points = ring.points(now, span, (span / STEP).min(POINTS_MAX) as usize, |sample| sample.lag);
            Some(((stream.clone(), group.clone()), points))
        });
        Sparks(shown.collect())
    }
}

pub(super) fn write(view: &View, list: &List, rows: &[&GroupRow], all: usize, sparks: &Sparks) -> Page {
    let content = html! {
        (heading(html! { "Groups" }, html! {}, html! {}))
        (search(view, list, "group", rows.len(), all))
        (view.live("groups", "", table(view, list, rows, sparks)))
        (pager(list, rows.len()))
    };
    Page { title: "Groups".to_owned(), section: Section::Groups, trail: Vec::new(), content }
}

/// The groups of a list, in its order.
pub(super) fn rows<'a>(snapshot: &'a Snapshot, list: &List) -> Vec<&'a GroupRow> {
    let fits = |row: &&GroupRow| matches(list, &[&row.facts.stream, &row.facts.group]);
    let sort = list.sort.as_deref().unwrap_or(DEFAULT);
    if sort == "attention" {
        let ordered = snapshot.by_attention.iter().map(|&at| &snapshot.groups[at as usize]);
        return ordered.filter(fits).collect();
    }
    let mut rows: Vec<&GroupRow> = snapshot.groups.iter().filter(fits).collect();
    let largest: fn(&GroupRow, &GroupRow) -> Ordering = match sort {
        "lag" => |a, b| b.facts.due.cmp(&a.facts.due),
        "oldest" => |a, b| b.facts.oldest_age.total_cmp(&a.facts.oldest_age),
        "in" => |a, b| b.arrived_now.total_cmp(&a.arrived_now),
        "out" => |a, b| b.settled_now.total_cmp(&a.settled_now),
        "flight" => |a, b| b.facts.in_flight.cmp(&a.facts.in_flight),
        "waiting" => |a, b| b.waiting.cmp(&a.waiting),
        "parked" => |a, b| b.facts.parked.cmp(&a.facts.parked),
        "consumers" => |a, b| b.facts.consumers.cmp(&a.facts.consumers),
        _ => |_, _| Ordering::Equal,
    };
    let by_name = |a: &GroupRow, b: &GroupRow| {
        (&a.facts.stream, &a.facts.group).cmp(&(&b.facts.stream, &b.facts.group))
    };
    rows.sort_by(|a, b| largest(a, b).then_with(|| by_name(a, b)));
    rows
}

fn table(view: &View, list: &List, rows: &[&GroupRow], sparks: &Sparks) -> Markup {
    if rows.is_empty() && list.text.is_some() {
        return no_match(list, "group");
    }
    if rows.is_empty() {
        let text = html! {
            "A group is a set of consumers that share the messages of a stream. "
            "Every group of a stream gets all of them."
        };
        return nothing("No groups yet", text, &["forebay group create orders/billing"]);
    }
    let head = |name, title, class| column(list, DEFAULT, name, title, class);
    html! {
        div.table role="region" aria-label="Groups" tabindex="0" {
            table {
                thead {
                    tr {
                        (head("name", "Group", "")) (head("attention", "Status", ""))
                        (head("lag", "Backlog", "number")) th scope="col" { "Trend" }
                        (head("oldest", "Oldest", "number")) (head("in", "In", "number"))
                        (head("out", "Out", "number")) (head("flight", "In flight", "number"))
                        (head("waiting", "Retrying", "number")) (head("parked", "Parked", "number"))
                        (head("consumers", "Consumers", "number"))
                    }
                }
                tbody {
                    @for row in page_of(list, rows) {
                        @let facts = &row.facts;
                        tr {
                            th scope="row" { (group_link(view, &facts.stream, &facts.group)) }
                            td { (status(facts.status)) }
                            (number(facts.due))
                            td.spark-cell {
                                @if let Some(points) = sparks.0.get(&(facts.stream.clone(), facts.group.clone())) {
                                    (spark(points, "c-lag"))
                                }
                            }
                            (age(facts.oldest_age)) (rate(row.arrived_now)) (rate(row.settled_now))
                            (number(facts.in_flight)) (number(row.waiting))
                            @if facts.parked > 0 {
                                td.number {
                                    a href=(view.parked(&facts.stream, &facts.group)) {
                                        (super::super::format::short(facts.parked as f64))
                                    }
                                }
                            } @else { (number(0)) }
                            (number(facts.consumers))
                        }
                    }
                }
            }
        }
    }
}
