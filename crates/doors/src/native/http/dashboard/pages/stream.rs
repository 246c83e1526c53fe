//! One stream: depth, rates, size, its groups on one axis of positions, and its messages.

use forebay_broker::api::{Direction, Filter, GroupReport, StreamReport, StreamSettings};
use forebay_core::types::StreamName;
use forebay_wire::json::{StoredMessage, Time};
use maud::{Markup, html};

use super::super::super::failure::Failure;
use super::super::super::request::{Query, bad_parameter};
use super::super::super::{message, report};
use super::super::chart::{bar, positions};
use super::super::format;
use super::super::layout::{command, empty, figure, heading, name as short_name, title};
use super::super::view::{Page, Section, View, encoded};
use super::action::{Action, Field, Sent};
use super::message::table as message_table;
use super::parts::{ago, status};
use super::settings::Settings;
use crate::native::service::{Service, filter};

/// Messages on the page.
const MESSAGES: u64 = 25;
/// Groups on the axis.
const GROUPS: u64 = 25;

/// Which messages are shown.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Browse {
    from: Option<u64>,
    time: Option<Time>,
    key: Option<String>,
    kind: Option<String>,
}

impl Browse {
    pub(super) fn parse(query: &mut Query) -> Result<Browse, Failure> {
        let time = match query.text("time") {
            None => None,
            Some(text) => Some(
                read_time(&text)
                    .ok_or_else(|| bad_parameter("time", "must be a time such as 2026-11-15T10:30:00Z"))?,
            ),
        };
        Ok(Browse { from: query.number("from")?, time, key: query.text("key"), kind: query.text("type") })
    }

    fn filter(&self) -> Filter {
        filter(self.key.clone(), self.kind.clone())
    }
}

/// A time as people write it, or as a field of a form gives it, without seconds or an offset: that is UTC.
fn read_time(text: &str) -> Option<Time> {
    let forms = [text.to_owned(), format!("{text}Z"), format!("{text}:00Z")];
    forms.iter().find_map(|form| form.replace(' ', "T").parse().ok())
}

/// Everything that the page shows.
pub(super) struct Facts {
    stream: StreamReport,
    groups: Vec<GroupReport>,
    more_groups: bool,
    messages: Vec<StoredMessage>,
    from: u64,
    next: Option<u64>,
}

pub(super) async fn load(
    service: &Service,
    name: &StreamName,
    browse: &Browse,
    is_update: bool,
) -> Result<Facts, Failure> {
    let stream = service.stream(name.clone()).await?;
    let groups = service.groups(Some(name.clone()), None, Some(GROUPS)).await?;
    let (groups, more_groups) = (groups.items, groups.next.is_some());
    let (first, last) = (stream.figures.first.0, stream.figures.last.0);
    if is_update {
        return Ok(Facts { stream, groups, more_groups, messages: Vec::new(), from: first, next: None });
    }
    let from = match (browse.from, browse.time) {
        (Some(from), _) => from,
        (None, Some(time)) => position_at(service, name, first, last, time).await?,
        // The last ones, or with a filter the first ones that match.
        (None, None) if browse.filter().is_empty() => (last + 1).saturating_sub(MESSAGES).max(first),
        (None, None) => first,
    };
    let (page, _room) =
        service.read(name.clone(), Some(from), Direction::Forwards, Some(MESSAGES), &browse.filter()).await?;
    let messages = page.messages.iter().map(message::stored).collect();
    let next = (page.next <= page.last).then_some(page.next.0);
    Ok(Facts { stream, groups, more_groups, messages, from, next })
}

/// The first position that was published at this time or later: messages are in the order of their times.
async fn position_at(
    service: &Service,
    stream: &StreamName,
    first: u64,
    last: u64,
    time: Time,
) -> Result<u64, Failure> {
    let (mut low, mut high) = (first, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let (page, _room) = service
            .read(stream.clone(), Some(middle), Direction::Forwards, Some(1), &Filter::default())
            .await?;
        match page.messages.first() {
            // Positions between are settled and gone; the message found stands for all of them.
            Some(found) if found.published.0 < time.0 => low = found.seq.0 + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

pub(super) fn write(view: &View, facts: &Facts, browse: &Browse) -> Page {
    let name = facts.stream.name.as_str();
    let actions = actions(view, facts);
    let content = html! {
        (heading(
            title(None, name),
            html! { "Stream, created " (ago(view, facts.stream.figures.created.0)) },
            html! { @for action in &actions { (action.button()) } },
        ))
        (view.live("figures", "", figures(facts)))
        section aria-labelledby="groups-title" {
            h2 #groups-title { "Groups by position" }
            (view.live("axis", "", axis(view, facts)))
        }
        section aria-labelledby="messages-title" {
            h2 #messages-title { "Messages" }
            (search(browse))
            div.listing { (messages(view, facts, browse)) }
        }
        section aria-labelledby="settings-title" {
            h2 #settings-title { "Settings" }
            (settings(view, &facts.stream).render())
        }
        @for action in &actions { (action.dialog()) }
    };
    let trail = vec![("Streams".to_owned(), view.to("ui/streams"))];
    Page { title: name.to_owned(), section: Section::Streams, trail, content }
}

fn figures(facts: &Facts) -> Markup {
    let StreamReport { settings, figures, published, .. } = &facts.stream;
    let of = |now: u64, max: Option<u64>, write: fn(u64) -> String| match max {
        None => html! { "no limit" },
        Some(max) => {
            let part = now as f64 / max.max(1) as f64;
            let class = if part >= 0.9 {
                "critical"
            } else if part >= 0.7 {
                "warning"
            } else {
                ""
            };
            html! { (bar(part, class, &format!("{:.0}% of the limit", part * 100.0))) "of " (write(max)) }
        }
    };
    let messages = of(figures.messages, settings.limits.max_messages, format::count);
    let bytes = of(figures.bytes, settings.limits.max_bytes, format::bytes);
    let oldest = figures.oldest_age.map_or("–".to_owned(), |age| format::age(age.as_secs_f64()));
    html! {
        dl.figures {
            (figure("Messages", &format::short(figures.messages as f64), "", messages))
            (figure("Size", &format::bytes(figures.bytes), "", bytes))
            (figure("Published", &format::rate(published.second), "/s", html! {
                (format::rate(published.minute)) "/s in 1 min"
            }))
            (figure("Oldest", &oldest, "", html! { "message" }))
            (figure("Delayed", &format::short(figures.delayed as f64), "", html! { "not due yet" }))
            (figure("Last position", &format::count(figures.last.0), "", html! {
                "the first is " (format::count(figures.first.0))
            }))
        }
    }
}

fn axis(view: &View, facts: &Facts) -> Markup {
    if facts.groups.is_empty() {
        let create =
            format!("forebay group create {}", format::shell(&format!("{}/workers", facts.stream.name)));
        return html! {
            div.empty { h2 { "No groups" } p { "Nothing is consumed from this stream yet." } (command(&create)) }
        };
    }
    let (first, last) = (facts.stream.figures.first.0, facts.stream.figures.last.0);
    html! {
        div.axis {
            div.axis-ends aria-hidden="true" { span { (format::count(first)) } span { (format::count(last)) } }
            ul {
                @for group in &facts.groups {
                    @let name = group.name.as_str();
                    @let figures = &group.figures;
                    @let words = format!("settled up to {} of {}", figures.floor.0, last);
                    li {
                        a.name href=(view.group(group.stream.as_str(), name)) { (short_name(name)) }
                        (status(crate::native::facts::status(figures.status)))
                        (positions(first, last, figures.floor.0, figures.counters.last_processed.0, &words))
                        span.lag { (format::short(figures.due() as f64)) " behind" }
                    }
                }
            }
            @if facts.more_groups {
                p.more {
                    a href=(view.to(&format!("ui/groups?q={}", encoded(&format!("{}/", facts.stream.name))))) {
                        "All groups of this stream"
                    }
                }
            }
        }
    }
}

fn search(browse: &Browse) -> Markup {
    let time = browse.time.map(|time| time.to_string()).unwrap_or_default();
    html! {
        form.filter role="search" {
            div.field {
                label for="browse-from" { "Position" }
                input #browse-from name="from" inputmode="numeric" pattern="[0-9]*" value=[browse.from];
            }
            div.field {
                label for="browse-time" { "Time, UTC" }
                input #browse-time name="time" placeholder="2026-11-15 10:30" value=(time);
            }
            div.field {
                label for="browse-key" { "Key" }
                input #browse-key name="key" spellcheck="false" value=[browse.key.as_deref()];
            }
            div.field {
                label for="browse-type" { "Type" }
                input #browse-type name="type" spellcheck="false" value=[browse.kind.as_deref()];
            }
            button type="submit" { "Show" }
            a.button href="?" { "Latest" }
        }
    }
}

fn messages(view: &View, facts: &Facts, browse: &Browse) -> Markup {
    let name = facts.stream.name.as_str();
    let page = |from: u64| {
        let mut address = format!("?from={from}");
        for (field, value) in [("key", &browse.key), ("type", &browse.kind)] {
            if let Some(value) = value {
                address += &format!("&{field}={}", encoded(value));
            }
        }
        address
    };
    html! {
        @if facts.messages.is_empty() {
            (empty("No messages here", html! { "Nothing from position " (format::count(facts.from)) " on matches." }))
        } @else {
            (message_table(view, name, &facts.messages))
        }
        nav.pager aria-label="More messages" {
            @if facts.from > facts.stream.figures.first.0 && browse.filter().is_empty() {
                a.button href=(page(facts.from.saturating_sub(MESSAGES).max(1))) rel="prev" { "Earlier" }
            }
            @if let Some(next) = facts.next { a.button href=(page(next)) rel="next" { "Later" } }
        }
    }
}

fn settings<'a>(view: &View, stream: &StreamReport) -> Settings<'a> {
    let report = report::stream(stream);
    Settings {
        fields: StreamSettings::FIELDS,
        values: serde_json::to_value(&report.settings).unwrap_or_default(),
        address: view.to(&format!("streams/{}", encoded(&report.stream))),
        command: format!("forebay stream set {}", format::shell(&report.stream)),
    }
}

fn actions<'a>(view: &View, facts: &Facts) -> Vec<Action<'a>> {
    let name = facts.stream.name.as_str();
    let api = |rest: &str| view.to(&format!("streams/{}{rest}", encoded(name)));
    let shell = format::shell(name);
    let messages = format::count_of(facts.stream.figures.messages, "message");
    vec![
        Action {
            id: "publish",
            label: "Publish",
            title: "Publish a test message".to_owned(),
            text: html! { p { "Every group of the stream gets it, and its consumers process it like any other." } },
            method: "POST",
            address: api("/messages"),
            body: "{}".to_owned(),
            fields: vec![
                Field::new("messages.0.body", "Body, in JSON", Sent::Json)
                    .value("{\n  \"test\": true\n}")
                    .required()
                    .long(),
                Field::new("messages.0.key", "Key", Sent::Text),
                Field::new("messages.0.type", "Type", Sent::Text),
                Field::new("messages.0.delay", "Delay", Sent::Text).hint("As 250ms, 30s, 15m"),
            ],
            command: format!("forebay pub {shell}"),
            options: " {messages.0.body}[ --key {messages.0.key}][ --type {messages.0.type}]\
                      [ --delay {messages.0.delay}]",
            confirm: None,
            done: "Published",
            then: None,
        },
        Action {
            id: "purge",
            label: "Purge",
            title: format!("Purge {name}"),
            text: html! {
                p {
                    "Drops every message that is ready, delayed or leased, for all groups: " (messages) " now. "
                    "This cannot be undone."
                }
            },
            method: "POST",
            address: api("/purge"),
            body: "{}".to_owned(),
            fields: vec![Field::new("parked", "Parked messages too", Sent::Flag)],
            command: format!("forebay stream purge {shell}"),
            options: "[ --parked{?parked}]",
            confirm: Some(name.to_owned()),
            done: "Purged {purged} messages",
            then: None,
        },
        Action {
            id: "delete",
            label: "Delete",
            title: format!("Delete {name}"),
            text: html! {
                p {
                    "Deletes the stream with " (messages) " and "
                    (format::count_of(facts.stream.figures.groups as u64, "group"))
                    ", even while consumers are connected. This cannot be undone."
                }
            },
            method: "DELETE",
            address: api("?force=true"),
            body: String::new(),
            fields: Vec::new(),
            command: format!("forebay stream delete {shell} --force"),
            options: "",
            confirm: Some(name.to_owned()),
            done: "Deleted",
            then: Some(view.to("ui/streams")),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let expected = "2026-11-15T10:30:00Z".parse::<Time>().ok();
        for text in ["2026-11-15T10:30:00Z", "2026-11-15 10:30", "2026-11-15T10:30", "2026-11-15 10:30:00"] {
            assert_eq!(read_time(text), expected, "{text}");
        }
        assert_eq!(read_time("yesterday"), None);
    }
}
