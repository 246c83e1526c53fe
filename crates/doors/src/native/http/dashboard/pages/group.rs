//! One group: how far it is, how fast, who works on it, and its settings.

use std::time::Duration;

use forebay_broker::api::{
    Bound, ConsumerReport, GroupReport, GroupSettings, JobReport, JobState, Summary, Work,
};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::attention::{GroupFacts, ServerFacts, attention};
use forebay_wire::json::GroupStatus;
use maud::{Markup, html};

use super::super::super::failure::Failure;
use super::super::super::report;
use super::super::chart::{Chart, Series, bar, heat};
use super::super::format;
use super::super::history::History;
use super::super::layout::{command, figure, heading, name as short_name, title};
use super::super::view::{Page, Section, View, encoded};
use super::Span;
use super::action::{Action, Field, Sent};
use super::overview::{OLDEST, sentence};
use super::parts::{ago, number, rate, status, table};
use super::settings::Settings;
use crate::native::service::Service;

/// The seconds of one point of a chart.
const STEP: u64 = 10;
/// Consumers on the page, the ones with the most messages first.
const CONSUMERS: usize = 200;

/// Everything that the page shows.
pub(super) struct Facts {
    group: GroupReport,
    jobs: Vec<JobReport>,
    reason: Option<String>,
}

pub(super) async fn load(
    service: &Service,
    stream: &StreamName,
    group: &GroupName,
) -> Result<Facts, Failure> {
    let report = service.group(stream.clone(), group.clone()).await?;
    let jobs = service.jobs(stream.clone(), group.clone()).await?;
    let reason = match report.figures.parked {
        0 => None,
        _ => {
            let reasons = service.parked_reasons(stream.clone(), group.clone()).await?;
            reasons.first().map(|(reason, _)| reason.to_string())
        }
    };
    Ok(Facts { group: report, jobs, reason })
}

/// The points of the charts.
pub(super) struct Charts {
    span: u64,
    arrived: Vec<f32>,
    settled: Vec<f32>,
    lag: Vec<f32>,
    oldest: Vec<f32>,
    in_flight: Vec<f32>,
    parked: Vec<f32>,
    heat: Vec<Vec<u64>>,
}

/// The seconds of the picture of processing times, at least: its columns are wide.
const HEAT_SPAN_MIN: u64 = 900;

impl Charts {
    pub(super) fn of(history: &History, stream: &StreamName, group: &GroupName, now: u64) -> Charts {
        let ring = history.of_group(stream.as_str(), group.as_str());
        let now = now / 1_000_000;
        let span = Span::of_recording(ring.map_or(0, |ring| ring.recorded(now))).seconds();
        let count = (span / STEP) as usize;
        let points = |of| match ring {
            Some(ring) => ring.points(now, span, count, of),
            None => vec![f32::NAN; count],
        };
        Charts {
            span,
            arrived: points(|sample| sample.arrived),
            settled: points(|sample| sample.settled),
            lag: points(|sample| sample.lag),
            oldest: points(|sample| sample.oldest),
            in_flight: points(|sample| sample.in_flight),
            parked: points(|sample| sample.parked),
            heat: history
                .heat_of(stream.as_str(), group.as_str())
                .map(|heat| heat.columns(now, span.max(HEAT_SPAN_MIN)))
                .unwrap_or_default(),
        }
    }
}

pub(super) fn write(view: &View, facts: &Facts, charts: &Charts) -> Page {
    let (stream, name) = (facts.group.stream.as_str(), facts.group.name.as_str());
    let actions = actions(view, facts);
    let is_paused = crate::native::facts::status(facts.group.figures.status) == GroupStatus::Paused;
    let shown = |action: &&Action<'_>| !matches!((action.id, is_paused), ("pause", true) | ("resume", false));
    let content = html! {
        (heading(
            title(Some(stream), name),
            view.live("state", "state", html! { (status(crate::native::facts::status(facts.group.figures.status))) }),
            html! { @for action in actions.iter().filter(shown) { (action.button()) } },
        ))
        (view.live("said", "", said(view, facts)))
        (view.live("figures", "", figures(view, facts)))
        (view.live("charts", "charts", pictures(facts, charts)))
        section aria-labelledby="flow-title" {
            h2 #flow-title { "Outcomes" }
            (view.live("flow", "", outcomes(facts)))
        }
        section aria-labelledby="times-title" {
            h2 #times-title { "Processing time" }
            div.times-grid {
                (view.live("times", "", times(facts)))
                (view.live("heat", "", heat_map(charts)))
            }
        }
        section aria-labelledby="consumers-title" {
            h2 #consumers-title { "Consumers" }
            (view.live("consumers", "", consumers(view, facts)))
        }
        section aria-labelledby="settings-title" {
            h2 #settings-title { "Settings" }
            (settings(view, &facts.group).render())
        }
        @for action in &actions { (action.dialog()) }
    };
    let trail = vec![("Groups".to_owned(), view.to("ui/groups")), (stream.to_owned(), view.stream(stream))];
    Page { title: format!("{stream}/{name}"), section: Section::Groups, trail, content }
}

/// The sentences about this group alone.
fn said(view: &View, facts: &Facts) -> Markup {
    let report = report::group(&facts.group);
    let group = GroupFacts { parked_reason: facts.reason.clone(), ..GroupFacts::from(&report) };
    let found = attention(&ServerFacts::default(), [], [&group]);
    html! {
        @if !found.is_empty() {
            section.attention.small aria-label="What needs attention" {
                ul { @for one in &found { li class=(one.severity.as_str()) { (sentence(view, one)) } } }
            }
        }
    }
}

fn figures(view: &View, facts: &Facts) -> Markup {
    let GroupReport { settings, figures, throughput, arrivals, .. } = &facts.group;
    let age = |age: Option<Duration>| age.map_or("–".to_owned(), |age| format::age(age.as_secs_f64()));
    let catch_up = match facts.group.catch_up {
        _ if figures.due() == 0 => "caught up".to_owned(),
        Some(seconds) => format!("caught up in {}", format::age(seconds)),
        None => "not catching up".to_owned(),
    };
    let pace = match settings.rate {
        Some(rate) => format!("of {}/s allowed", format::rate(rate.per_second)),
        None => "no pace set".to_owned(),
    };
    html! {
        dl.figures {
            (figure("Backlog", &format::short(figures.due() as f64), "", html! {
                (catch_up)
                @if figures.delayed > 0 { ", " (format::short(figures.delayed as f64)) " delayed" }
            }))
            (figure("Oldest", &age(figures.oldest_age), "", html! { "waiting" }))
            (figure("In", &format::rate(arrivals.second), "/s", html! {
                (format::rate(arrivals.minute)) "/s in 1 min"
            }))
            (figure("Out", &format::rate(throughput.settled.second), "/s", html! { (pace) }))
            (figure("In flight", &format::short(figures.in_flight as f64), "", html! {
                "of " (format::short(settings.max_in_flight.into())) " at most"
            }))
            (figure("Retrying", &format::short(figures.waiting as f64), "", html! {
                (format::rate(throughput.retried.minute)) "/s retried"
            }))
            (figure("Parked", &format::short(figures.parked as f64), "", html! {
                a href=(view.parked(facts.group.stream.as_str(), facts.group.name.as_str())) { "show them" }
            }))
            (figure("Position", &format::short(figures.counters.last_processed.0 as f64), "", html! {
                "of " span title=(format::count(figures.last_known.0)) {
                    (format::short(figures.last_known.0 as f64))
                }
            }))
        }
    }
}

fn pictures(facts: &Facts, charts: &Charts) -> Markup {
    let series =
        |name, class, points: &[f32], filled| Series { name, class, points: points.to_vec(), filled };
    let chart = |title: &str, of: &str, series, write, unit| {
        Chart { title, of, span: charts.span, series, write, unit, is_time: title == OLDEST }.render()
    };
    let mut rates =
        vec![series("in", "c-in", &charts.arrived, true), series("out", "c-out", &charts.settled, false)];
    if let Some(pace) = facts.group.settings.rate {
        rates.push(series("pace", "c-pace", &vec![pace.per_second as f32; charts.arrived.len()], false));
    }
    html! {
        (chart("Rates", "messages a second", rates, format::rate, "/s"))
        (chart("Backlog", "messages", vec![series("waiting", "c-lag", &charts.lag, true)], format::short, ""))
        (chart(OLDEST, "time waiting", vec![series("age", "c-age", &charts.oldest, true)], format::age, ""))
        (chart("In flight and parked", "messages", vec![
            series("in flight", "c-out", &charts.in_flight, false),
            series("parked", "c-parked", &charts.parked, true),
        ], format::short, ""))
    }
}

fn outcomes(facts: &Facts) -> Markup {
    let (counters, of) = (&facts.group.figures.counters, &facts.group.throughput);
    let is_usual = |name: &str| matches!(name, "Delivered" | "Acked" | "Retried" | "Parked");
    let rows = [
        ("Delivered", of.delivered, counters.delivered),
        ("Acked", of.acked, counters.acked),
        ("Retried", of.retried, counters.retried),
        ("Timed out", of.timed_out, counters.timed_out),
        ("Parked", of.parked, counters.parked),
        ("Skipped", of.skipped, counters.skipped),
        ("Expired", of.expired, counters.expired),
        ("Moved", of.moved, counters.moved),
        ("Dropped", of.dropped, counters.dropped),
    ];
    html! {
        (table("Outcomes", "", &["Outcome", ">Now", ">1 minute", ">15 minutes", ">Since the start"], html! {
            @for (name, rates, total) in rows.iter().filter(|(name, _, total)| *total > 0 || is_usual(name)) {
                tr {
                    th scope="row" { (name) } (rate(rates.second)) (rate(rates.minute))
                    (rate(rates.quarter_hour)) (number(*total))
                }
            }
        }))
    }
}

/// The bands of processing times, the shortest first.
const BANDS: [&str; 10] = [
    "under 256µs",
    "to 1ms",
    "to 4ms",
    "to 16ms",
    "to 66ms",
    "to 262ms",
    "to 1s",
    "to 4s",
    "to 17s",
    "longer",
];
const _: () = assert!(BANDS.len() == super::super::history::BANDS);

/// Seconds from the publish of a message to its ack, on average.
fn end_to_end(group: &GroupReport) -> Option<f64> {
    let times = group.end_to_end?;
    let count = times.shorter.last().copied().filter(|count| *count > 0)?;
    Some(times.sum.as_secs_f64() / count as f64)
}

fn times(facts: &Facts) -> Markup {
    let Some(times) = facts.group.processing.as_ref().filter(|times| times.count > 0) else {
        let text = if facts.group.settings.extra_statistics {
            "Nothing was settled since the server started."
        } else {
            "The setting extra_statistics is off."
        };
        return html! { p.hint { (text) } };
    };
    let rows = [
        ("half of the messages", "p50", times.p50),
        ("90%", "p90", times.p90),
        ("95%", "p95", times.p95),
        ("99%", "p99", times.p99),
        ("99.9%", "p99.9", times.p999),
        ("the slowest", "max", times.max),
    ];
    // By the logarithm: the slowest is often a thousand times the median.
    let place = |time: Duration| {
        let micros = |time: Duration| (time.as_micros() as f64).max(1.0).ln();
        let (low, high) = (micros(times.p50) - 2.0, micros(times.max));
        if high <= low { 1.0 } else { ((micros(time) - low) / (high - low)).clamp(0.04, 1.0) }
    };
    html! {
        div.timing {
            p.hint {
                "From the delivery to its settlement, " (format::count_of(times.count, "message")) " since the start; "
                (format::age(times.mean.as_secs_f64())) " on average." @if let Some(age) = end_to_end(&facts.group) {
                    " From publish to ack " (format::age(age)) " on average."
                }
            }
            dl.percentiles {
                @for (words, name, time) in rows {
                    div {
                        dt title=(words) { (name) }
                        dd {
                            (bar(place(time), "c-out", &format!("{words} within {}", format::age(time.as_secs_f64()))))
                            b { (format::age(time.as_secs_f64())) }
                        }
                    }
                }
            }
        }
    }
}

/// How many messages took how long, over time.
fn heat_map(charts: &Charts) -> Markup {
    if charts.heat.iter().flatten().all(|count| *count == 0) {
        return html! {};
    }
    let span = charts.span.max(HEAT_SPAN_MIN);
    html! {
        figure.timing {
            figcaption.hint {
                "How long messages took, over the last " (format::age(span as f64))
                ". The stronger the colour, the more messages."
            }
            (heat(&charts.heat, &BANDS, span, "Processing times over time: the darker, the more messages"))
        }
    }
}

/// How many messages a consumer takes at a time. One that polls says so with each poll.
fn credit(consumer: &ConsumerReport) -> Markup {
    if consumer.bound == Bound::Connection {
        return number(consumer.credit.into());
    }
    html! { td.number data-zero { "–" } }
}

/// How many messages a consumer holds, with the one that it has held for longest.
fn holds(view: &View, group: &GroupReport, consumer: &ConsumerReport) -> Markup {
    let Some((seq, since)) = consumer.holds else { return number(consumer.in_flight) };
    html! {
        td.number title=[(consumer.in_flight > 9_999).then(|| format::count(consumer.in_flight))] {
            (format::short(consumer.in_flight as f64))
            span.hint.held {
                a href=(view.message(group.stream.as_str(), seq.0)) { (format::count(seq.0)) }
                " for " (format::age(view.since(since.0)))
            }
        }
    }
}

/// One of a consumer's processing times.
fn time_of(consumer: &ConsumerReport, of: fn(&Summary) -> Duration) -> String {
    let times = consumer.processing.as_ref().filter(|times| times.count > 0);
    times.map_or("–".to_owned(), |times| format::age(of(times).as_secs_f64()))
}

fn consumers(view: &View, facts: &Facts) -> Markup {
    let all = &facts.group.consumers;
    if all.is_empty() {
        return html! {
            div.empty {
                h2 { "No consumers" } p { "Messages wait until a consumer subscribes." }
                (command(&format!("forebay sub {}", shell_name(&facts.group))))
            }
        };
    }
    let acked: u64 = all.iter().map(|consumer| consumer.acked).sum();
    let mut rows: Vec<&ConsumerReport> = all.iter().collect();
    rows.sort_by_key(|consumer| std::cmp::Reverse((consumer.in_flight, consumer.acked)));
    html! {
        (table("Consumers", "", &[
            "Consumer", "Share of the work", ">Acked", ">Failed", ">Holds", ">Takes at most", ">Median",
            ">p99", "Since",
        ], html! {
            @for consumer in rows.iter().take(CONSUMERS) {
                @let share = consumer.acked as f64 / acked.max(1) as f64;
                tr {
                    th scope="row" {
                        bdi.name { (short_name(if consumer.name.is_empty() { "unnamed" } else { &consumer.name })) }
                        span.hint {
                            (if consumer.bound == Bound::Connection { "connected" } else { "polling" })
                            @if let Some(address) = consumer.address { ", " (address) }
                        }
                    }
                    td.share {
                        (bar(share, "c-out", &format!("{:.0}% of the acks", share * 100.0))) span {
                            (format!("{:.0}%", share * 100.0))
                        }
                    }
                    (number(consumer.acked)) (number(consumer.failed)) (holds(view, &facts.group, consumer))
                    (credit(consumer))
                    td.number { (time_of(consumer, |times| times.p50)) }
                    td.number { (time_of(consumer, |times| times.p99)) }
                    td.nowrap { (ago(view, consumer.joined.0)) }
                }
            }
        }))
        @if rows.len() > CONSUMERS {
            p.hint { "The first " (CONSUMERS) " of " (format::count(rows.len() as u64)) "." }
        }
    }
}

fn settings<'a>(view: &View, group: &GroupReport) -> Settings<'a> {
    let report = report::group(group);
    Settings {
        fields: GroupSettings::FIELDS,
        values: serde_json::to_value(&report.settings).unwrap_or_default(),
        address: api(view, group, ""),
        command: format!("forebay group set {}", shell_name(group)),
    }
}

fn api(view: &View, group: &GroupReport, rest: &str) -> String {
    let (stream, name) = (encoded(group.stream.as_str()), encoded(group.name.as_str()));
    view.to(&format!("subscriptions/{stream}/{name}{rest}"))
}

fn shell_name(group: &GroupReport) -> String {
    format::shell(&format!("{}/{}", group.stream, group.name))
}

/// Whether a job on parked messages is running.
pub(super) fn is_running(job: &JobReport) -> bool {
    job.state == JobState::Running && !matches!(job.work, Work::Move { .. })
}

fn actions<'a>(view: &View, facts: &Facts) -> Vec<Action<'a>> {
    let group = &facts.group;
    let (shell, full) = (shell_name(group), format!("{}/{}", group.stream, group.name));
    let jobs = facts.jobs.iter().filter(|job| is_running(job)).count();
    let rate = group.settings.rate.map(|rate| rate.per_second.to_string()).unwrap_or_default();
    let action = |id, label, title: String, text, method, rest: &str, command: String| Action {
        id,
        label,
        title,
        text,
        method,
        address: api(view, group, rest),
        body: "{}".to_owned(),
        fields: Vec::new(),
        command,
        options: "",
        confirm: None,
        done: "Done",
        then: None,
    };
    let text = |text: &str| html! { p { (text) } };
    vec![
        Action {
            done: "Paused",
            ..action(
                "pause",
                "Pause",
                format!("Pause {full}"),
                text("Nothing more is delivered. Consumers may finish the messages that they hold."),
                "POST",
                "/pause",
                format!("forebay group pause {shell}"),
            )
        },
        Action {
            done: "Resumed",
            ..action(
                "resume",
                "Resume",
                format!("Resume {full}"),
                text("Delivery goes on where it stopped."),
                "POST",
                "/resume",
                format!("forebay group resume {shell}"),
            )
        },
        Action {
            fields: vec![
                Field::new("rate", "Messages a second", Sent::Pace)
                    .value(rate)
                    .hint("Empty takes the limit away"),
            ],
            options: " rate.per_second={rate}",
            done: "The pace is changed",
            ..action(
                "pace",
                "Pace",
                format!("The pace of {full}"),
                text(
                    "Messages go out no faster than this, however many consumers there are. It changes at once; \
                     consumers stay connected.",
                ),
                "PATCH",
                "",
                format!("forebay group set {shell}"),
            )
        },
        Action {
            fields: vec![
                Field::new("max_in_flight", "Messages in flight, all consumers together", Sent::Number)
                    .value(group.settings.max_in_flight.to_string()),
                Field::new("max_consumers", "Consumers, 0 for no limit", Sent::Number)
                    .value(group.settings.max_consumers.to_string()),
            ],
            options: " max_in_flight={max_in_flight} max_consumers={max_consumers}",
            done: "The limits are changed",
            ..action(
                "limits",
                "Limits",
                format!("Limits of {full}"),
                text("They change at once; consumers stay connected."),
                "PATCH",
                "",
                format!("forebay group set {shell}"),
            )
        },
        Action {
            fields: vec![
                Field::new("to", "Go to", Sent::Place)
                    .required()
                    .hint("beginning, end, a position, or a time such as 2026-11-15T10:30:00Z"),
                Field::new("parked", "Discard parked messages too", Sent::Flag),
            ],
            options: " --to {to}[ --drop-parked{?parked}]",
            confirm: Some(full.clone()),
            done: "Everything up to {settled_through} counts as settled",
            ..action(
                "reset",
                "Reset",
                format!("Reset {full}"),
                html! {
                    p {
                        "Moves the group to another position: messages after it are delivered again, messages "
                        "before it are skipped."
                    }
                    @if jobs > 0 { p { (format::count_of(jobs as u64, "job")) " of parked messages is running." } }
                },
                "POST",
                "/reset",
                format!("forebay group reset {shell}"),
            )
        },
        Action {
            body: String::new(),
            confirm: Some(full.clone()),
            done: "Deleted",
            then: Some(view.to("ui/groups")),
            ..action(
                "delete",
                "Delete",
                format!("Delete {full}"),
                html! {
                    p {
                        "Deletes the group with its progress and "
                        (format::count_of(group.figures.parked, "parked message"))
                        ". The messages stay in the stream for other groups. This cannot be undone."
                    }
                },
                "DELETE",
                "",
                format!("forebay group delete {shell}"),
            )
        },
    ]
}
