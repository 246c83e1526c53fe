//! Messages that are not due yet.

use maud::html;

use super::super::format;
use super::super::layout::{heading, nothing};
use super::super::sampler::{Snapshot, StreamRow};
use super::super::view::{Page, Section, View};
use super::List;
use super::parts::{matches, no_match, number, page_of, pager, search, stream_link, table};

pub(super) fn write(view: &View, snapshot: &Snapshot, list: &List) -> Page {
    let all: Vec<&StreamRow> = snapshot.streams.iter().filter(|row| row.delayed > 0).collect();
    let mut rows: Vec<&StreamRow> = all.iter().copied().filter(|row| matches(list, &[&row.name])).collect();
    rows.sort_by(|a, b| b.delayed.cmp(&a.delayed).then_with(|| a.name.cmp(&b.name)));
    let retrying: u64 = snapshot.groups.iter().map(|row| row.waiting).sum();
    let content = html! {
        (heading(
            html! { "Delayed" },
            html! { "Messages that were published with a delay and are not due yet" },
            html! {},
        ))
        (search(view, list, "stream", rows.len(), all.len()))
        (view.live("delayed", "", html! {
            p.hint {
                @if !all.is_empty() {
                    (format::count_of(snapshot.totals.delayed, "message")) " in "
                    (format::count_of(all.len() as u64, "stream")) " will become ready by themselves. "
                }
                @if retrying > 0 {
                    "Waiting for a retry, in groups: " (format::count_of(retrying, "message")) "."
                }
            }
            @if all.is_empty() {
                (nothing("Nothing is delayed", html! { "A message can be published with a delay." }, &[
                    "forebay pub emails '{\"to\":\"a@example.com\"}' --delay 15m",
                ]))
            } @else if rows.is_empty() { (no_match(list, "stream")) } @else {
                (table("Streams with delayed messages", "", &["Stream", ">Delayed", ">Messages in all"], html! {
                    @for row in page_of(list, &rows) {
                        tr {
                            th scope="row" { (stream_link(view, &row.name)) } (number(row.delayed))
                            (number(row.messages))
                        }
                    }
                }))
            }
        }))
        (pager(list, rows.len()))
    };
    Page { title: "Delayed".to_owned(), section: Section::Delayed, trail: Vec::new(), content }
}
