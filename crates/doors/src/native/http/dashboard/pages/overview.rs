//! The overview: first the sentences about groups that need an operator, then rates, backlog and age.

use forebay_wire::attention::{Attention, Concern, Severity, Subject};
use maud::{Markup, html};

use super::super::chart::{Chart, Series};
use super::super::format;
use super::super::history::History;
use super::super::layout::{figure, heading, name, nothing};
use super::super::sampler::Snapshot;
use super::super::view::{Page, Section, View};
use super::Span;
use super::alerts::Board;

/// Sentences on the page. There may be thousands, and a reader acts on the first ones.
const SENTENCES: usize = 12;
/// The chart whose values are times.
pub(super) const OLDEST: &str = "Oldest message";

/// The points of the charts.
pub(super) struct Charts {
    span: Span,
    arrived: Vec<f32>,
    settled: Vec<f32>,
    lag: Vec<f32>,
    parked: Vec<f32>,
    oldest: Vec<f32>,
}

impl Charts {
    pub(super) fn of(history: &History, span: Option<Span>, now: u64) -> Charts {
        let now = now / 1_000_000;
        let span = span.unwrap_or_else(|| Span::of_recording(history.recorded(now)));
        let points = |of| history.points(now, span.seconds(), (span.seconds() / span.step()) as usize, of);
        Charts {
            span,
            arrived: points(|sample| sample.arrived),
            settled: points(|sample| sample.settled),
            lag: points(|sample| sample.lag),
            parked: points(|sample| sample.parked),
            oldest: points(|sample| sample.oldest),
        }
    }
}

/// Without charts for a client that may not see figures of the whole server.
pub(super) fn write(
    view: &View,
    snapshot: &Snapshot,
    alerts: Option<&Board>,
    charts: Option<&Charts>,
) -> Page {
    let is_empty = snapshot.streams.is_empty();
    let charts = charts.filter(|_| !is_empty);
    let content = html! {
        (heading(html! { "Overview" }, html! {}, html! {}))
        // All of it is live, so that a page that was opened before the first stream shows that stream.
        (view.live("first-steps", "", shown(is_empty, first_steps)))
        (view.live("attention", "", shown(!is_empty, || sentences(view, &snapshot.attention))))
        @if let Some(alerts) = alerts { (view.live("alerts", "", alerts.write(view))) }
        (view.live("totals", "", shown(!is_empty, || totals(view, snapshot))))
        (view.live("spans", "", charts.map_or_else(|| html! {}, |charts| spans(charts.span))))
        (view.live("charts", "charts", charts.map_or_else(|| html! {}, pictures)))
    };
    Page { title: "Overview".to_owned(), section: Section::Overview, trail: Vec::new(), content }
}

fn shown(is_shown: bool, part: impl FnOnce() -> Markup) -> Markup {
    if is_shown {
        part()
    } else {
        html! {}
    }
}

fn sentences(view: &View, found: &[Attention]) -> Markup {
    let urgent = found.iter().filter(|one| one.severity != Severity::Notice).count();
    html! {
        section.attention aria-labelledby="attention-title" data-urgent=[(urgent > 0).then_some("")] {
            h2 #attention-title {
                @match urgent {
                    0 => { "Nothing needs attention" }
                    _ => { "Needs attention" span.badge { (format::count(urgent as u64)) } }
                }
            }
            @if found.is_empty() {
                p.calm { "Every group keeps up, has consumers, and nothing is parked." }
            } @else {
                ul {
                    @for one in found.iter().take(SENTENCES) {
                        li class=(one.severity.as_str()) { (sentence(view, one)) }
                    }
                }
                @if found.len() > SENTENCES {
                    p.more {
                        a href=(view.to("ui/groups?sort=attention")) {
                            "and " (format::count((found.len() - SENTENCES) as u64)) " more"
                        }
                    }
                }
            }
        }
    }
}

/// One sentence, with a link to the place where something can be done.
pub(super) fn sentence(view: &View, one: &Attention) -> Markup {
    let address = match (&one.subject, one.concern) {
        (Subject::Group(stream, group), Concern::Parked | Concern::Parking | Concern::ParkedFull) => {
            view.parked(stream, group)
        }
        (Subject::Group(stream, group), _) => view.group(stream, group),
        (Subject::Stream(stream), _) => view.stream(stream),
        (Subject::Server, Concern::ConnectionsFull) => view.to("ui/clients"),
        (Subject::Server, Concern::NoGroup) => view.to("ui/streams"),
        (Subject::Server, _) => view.to("ui/node"),
    };
    html! {
        span class=(format!("mark {}", one.severity.as_str())) role="img" aria-label=(one.severity.as_str()) {}
        span.sentence {
            a href=(address) {
                @match &one.subject {
                    Subject::Group(stream, group) => { (name(stream)) "/" (name(group)) }
                    Subject::Stream(stream) => { (name(stream)) }
                    Subject::Server => { "The server" }
                }
            }
            " " (one.text)
        }
    }
}

fn totals(view: &View, snapshot: &Snapshot) -> Markup {
    let totals = &snapshot.totals;
    let oldest = if totals.oldest_age > 0.0 { format::age(totals.oldest_age) } else { "–".to_owned() };
    html! {
        dl.figures {
            (figure("Published", &format::rate(totals.published), "/s", html! { "to all streams" }))
            (figure("Settled", &format::rate(totals.settled), "/s", html! { "by all groups" }))
            (figure("Backlog", &format::short(totals.lag as f64), "", html! {
                @if totals.delayed > 0 {
                    a href=(view.to("ui/delayed")) { (format::short(totals.delayed as f64)) " delayed" }
                } @else { "over all groups" }
            }))
            (figure("Oldest", &oldest, "", html! { "waiting" }))
            (figure("In flight", &format::short(totals.in_flight as f64), "", html! {
                a href=(view.to("ui/clients")) { (format::count_of(totals.consumers, "consumer")) }
            }))
            (figure("Parked", &format::short(totals.parked as f64), "", html! {
                a href=(view.to("ui/parked")) { "by reason" }
            }))
            (figure("Streams", &format::count(snapshot.server.streams as u64), "", html! {
                a href=(view.to("ui/streams")) { (format::bytes(totals.bytes)) }
            }))
            (figure("Groups", &format::count(snapshot.server.groups as u64), "", html! {
                a href=(view.to("ui/groups")) { "all groups" }
            }))
        }
    }
}

fn spans(span: Span) -> Markup {
    html! {
        nav.spans aria-label="How far back the charts go" {
            @for (one, name, words) in Span::ALL {
                a href=(format!("?span={name}")) aria-current=[(one == span).then_some("true")] { (words) }
            }
        }
    }
}

fn pictures(charts: &Charts) -> Markup {
    let series =
        |name, class, points: &[f32], filled| Series { name, class, points: points.to_vec(), filled };
    let chart = |title: &str, of: &str, series, write, unit| {
        let is_time = title == OLDEST;
        Chart { title, of, span: charts.span.seconds(), series, write, unit, is_time }.render()
    };
    html! {
        (chart("Rates", "messages a second", vec![
            series("in", "c-in", &charts.arrived, true),
            series("out", "c-out", &charts.settled, false),
        ], format::rate, "/s"))
        (chart("Backlog", "messages", vec![series("waiting", "c-lag", &charts.lag, true)], format::short, ""))
        (chart(OLDEST, "time waiting", vec![series("age", "c-age", &charts.oldest, true)], format::age, ""))
        (chart("Parked", "messages", vec![series("parked", "c-parked", &charts.parked, true)], format::short, ""))
    }
}

fn first_steps() -> Markup {
    let text = html! { "Publish a first message, and it appears here. Or see how a burst is absorbed." };
    let publish = "forebay pub emails '{\"to\":\"a@example.com\"}'";
    nothing("No streams yet", text, &[publish, "forebay demo --keep"])
}
