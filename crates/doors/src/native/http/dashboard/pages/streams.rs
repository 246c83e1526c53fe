//! All streams.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::super::chart::bar;
use super::super::format;
use super::super::layout::{heading, nothing};
use super::super::sampler::{Snapshot, StreamRow};
use super::super::view::{Page, Section, View};
use super::List;
use super::parts::{age, column, matches, no_match, number, page_of, pager, rate, search, stream_link};

const DEFAULT: &str = "name";

pub(super) fn write(view: &View, snapshot: &Snapshot, list: &List) -> Page {
    let rows = rows(snapshot, list);
    let content = html! {
        (heading(html! { "Streams" }, html! {}, html! {}))
        (search(view, list, "stream", rows.len(), snapshot.streams.len()))
        (view.live("streams", "", table(view, list, &rows)))
        (pager(list, rows.len()))
    };
    Page { title: "Streams".to_owned(), section: Section::Streams, trail: Vec::new(), content }
}

fn rows<'a>(snapshot: &'a Snapshot, list: &List) -> Vec<&'a StreamRow> {
    let mut rows: Vec<&StreamRow> =
        snapshot.streams.iter().filter(|row| matches(list, &[&row.name])).collect();
    let largest: fn(&StreamRow, &StreamRow) -> Ordering = match list.sort.as_deref().unwrap_or(DEFAULT) {
        "messages" => |a, b| b.messages.cmp(&a.messages),
        "bytes" => |a, b| b.bytes.cmp(&a.bytes),
        "rate" => |a, b| b.published.total_cmp(&a.published),
        "oldest" => |a, b| b.oldest_age.total_cmp(&a.oldest_age),
        "delayed" => |a, b| b.delayed.cmp(&a.delayed),
        "groups" => |a, b| b.groups.cmp(&a.groups),
        _ => |_, _| Ordering::Equal,
    };
    rows.sort_by(|a, b| largest(a, b).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn table(view: &View, list: &List, rows: &[&StreamRow]) -> Markup {
    if rows.is_empty() && list.text.is_some() {
        return no_match(list, "stream");
    }
    if rows.is_empty() {
        let text = html! { "A stream is created when it is first published to, or by a command." };
        return nothing("No streams yet", text, &["forebay stream create orders"]);
    }
    let head = |name, title, class| column(list, DEFAULT, name, title, class);
    html! {
        div.table role="region" aria-label="Streams" tabindex="0" {
            table {
                thead {
                    tr {
                        (head("name", "Stream", "")) (head("messages", "Messages", "number"))
                        (head("rate", "In", "number")) (head("bytes", "Size", "number"))
                        th scope="col" { "Limit used" }
                        (head("oldest", "Oldest", "number")) (head("delayed", "Delayed", "number"))
                        (head("groups", "Groups", "number"))
                        th.number scope="col" { "Positions" }
                    }
                }
                tbody {
                    @for row in page_of(list, rows) {
                        tr {
                            th scope="row" { (stream_link(view, &row.name)) }
                            (number(row.messages)) (rate(row.published))
                            td.number data-zero=[(row.bytes == 0).then_some("")] { (format::bytes(row.bytes)) }
                            (share(row))
                            (age(row.oldest_age)) (number(row.delayed)) (number(row.groups))
                            td.number.positions-text { (format::count(row.first)) "–" (format::count(row.last)) }
                        }
                    }
                }
            }
        }
    }
}

/// How much of its limits the stream uses: of bytes or of messages, whichever is more.
fn share(row: &StreamRow) -> Markup {
    let part = |now: u64, max: Option<u64>| max.map(|max| now as f64 / max.max(1) as f64);
    let (bytes, messages) = (part(row.bytes, row.bytes_max), part(row.messages, row.messages_max));
    let Some(most) = bytes.into_iter().chain(messages).reduce(f64::max) else {
        return html! { td { span.hint { "no limit" } } };
    };
    let class = match most {
        most if most >= 0.9 => "critical",
        most if most >= 0.7 => "warning",
        _ => "",
    };
    let percent = match most * 100.0 {
        percent if percent > 0.0 && percent < 1.0 => "<1%".to_owned(),
        percent => format!("{percent:.0}%"),
    };
    html! { td.share { (bar(most, class, &format!("{percent} of its limit"))) span { (percent) } } }
}
