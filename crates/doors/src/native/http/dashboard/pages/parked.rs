//! Parked messages: of all groups, and of one, by reason, with the calls to replay, move or discard a selection.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_broker::api::{GroupReport, JobReport, JobState, Work};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json::Parked;
use maud::{Markup, html};

use super::super::super::failure::Failure;
use super::super::super::report;
use super::super::super::request::Query;
use super::super::chart::bar;
use super::super::format;
use super::super::layout::{command, empty, heading, nothing, title};
use super::super::sampler::{GroupRow, Snapshot};
use super::super::view::{Page, Section, View, encoded};
use super::List;
use super::message::{body_of, preview};
use super::parts::{ago, group_link, matches, no_match, page_of, pager, search};
use crate::native::service::{ParkedFilter, Service};

/// Messages on the page.
const MESSAGES: u64 = 100;
/// Groups whose reasons the page of all groups shows, and reasons of each.
const REASONS_GROUPS: usize = 25;
const REASONS: usize = 5;
/// Reasons on the page of a group.
const REASONS_OF_GROUP: usize = 50;
/// Messages that a search for a text looks at, beginning at the position of the page.
const SEARCHED: u64 = 2_000;
/// Jobs on the page, the last ones.
const JOBS: usize = 8;
/// Streams that the page names as destinations of a move. Others can be typed.
const DESTINATIONS: usize = 200;

/// A job that the page offers for a selection.
struct Offer {
    /// Its word on the command line and in addresses of the API.
    work: &'static str,
    label: &'static str,
    text: &'static str,
    /// It cannot be undone, so the page asks for the name of the group.
    is_dangerous: bool,
    has_destination: bool,
}

const OFFERS: [Offer; 3] = [
    Offer {
        work: "replay",
        label: "Replay",
        text: "They are delivered again, with all their retries.",
        is_dangerous: false,
        has_destination: false,
    },
    Offer {
        work: "move",
        label: "Move",
        text: "Each is published to the other stream and leaves this group, in one step.",
        is_dangerous: false,
        has_destination: true,
    },
    Offer {
        work: "discard",
        label: "Discard",
        text: "They are dropped for this group. This cannot be undone.",
        is_dangerous: true,
        has_destination: false,
    },
];

/// Which parked messages of a group are shown.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Filter {
    reason: Option<String>,
    key: Option<String>,
    kind: Option<String>,
    /// A text in the body, the headers, the key or the reason.
    text: Option<String>,
    after: u64,
}

impl Filter {
    pub(super) fn parse(query: &mut Query) -> Result<Filter, Failure> {
        Ok(Filter {
            reason: query.text("reason"),
            key: query.text("key"),
            kind: query.text("type"),
            text: query.text("q"),
            after: query.number("after")?.unwrap_or(0),
        })
    }

    fn of_api(&self) -> ParkedFilter {
        ParkedFilter { reason: self.reason.clone(), key: self.key.clone(), kind: self.kind.clone() }
    }

    /// Whether the API can select by it.
    fn is_selection(&self) -> bool {
        self.reason.is_some() || self.key.is_some() || self.kind.is_some()
    }

    /// The body of a call that selects by it.
    fn selection(&self) -> String {
        if !self.is_selection() {
            return r#"{"all":true}"#.to_owned();
        }
        let mut filter = serde_json::Map::new();
        for (name, value) in [("reason", &self.reason), ("key", &self.key), ("type", &self.kind)] {
            if let Some(value) = value {
                filter.insert(name.to_owned(), value.clone().into());
            }
        }
        serde_json::json!({ "filter": filter }).to_string()
    }

    /// The same as options of the command line.
    fn options(&self) -> String {
        if !self.is_selection() {
            return " --all".to_owned();
        }
        let options = [("reason", &self.reason), ("key", &self.key), ("type", &self.kind)];
        let given = options.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given.map(|(name, value)| format!(" --{name} {}", format::shell(value))).collect()
    }

    fn query(&self, after: u64) -> String {
        let mut address = format!("?after={after}");
        let texts = [("reason", &self.reason), ("key", &self.key), ("type", &self.kind), ("q", &self.text)];
        for (name, value) in texts {
            if let Some(value) = value {
                address += &format!("&{name}={}", encoded(value));
            }
        }
        address
    }
}

type Reasons = Vec<(Arc<str>, u64)>;

/// The first reasons of each group on the page, and how many more it has.
type ReasonsOfGroups = HashMap<(String, String), (Reasons, usize)>;

pub(super) async fn reasons(service: &Service, snapshot: &Snapshot, list: &List) -> ReasonsOfGroups {
    let rows = rows(snapshot, list);
    let mut found = HashMap::new();
    for GroupRow { facts, .. } in page_of(list, &rows).iter().take(REASONS_GROUPS) {
        let (Ok(stream), Ok(group)) = (StreamName::parse(&facts.stream), GroupName::parse(&facts.group))
        else {
            continue;
        };
        if let Ok(mut reasons) = service.parked_reasons(stream, group).await {
            let more = reasons.len().saturating_sub(REASONS);
            reasons.truncate(REASONS);
            found.insert((facts.stream.clone(), facts.group.clone()), (reasons, more));
        }
    }
    found
}

fn rows<'a>(snapshot: &'a Snapshot, list: &List) -> Vec<&'a GroupRow> {
    let has = |row: &&GroupRow| row.facts.parked > 0 && matches(list, &[&row.facts.stream, &row.facts.group]);
    let mut rows: Vec<&GroupRow> = snapshot.groups.iter().filter(has).collect();
    rows.sort_by(|a, b| b.facts.parked.cmp(&a.facts.parked).then_with(|| a.facts.group.cmp(&b.facts.group)));
    rows
}

/// The parked messages of all groups.
pub(super) fn write_all(view: &View, snapshot: &Snapshot, list: &List, reasons: &ReasonsOfGroups) -> Page {
    let rows = rows(snapshot, list);
    let all: Vec<u64> =
        snapshot.groups.iter().map(|row| row.facts.parked).filter(|count| *count > 0).collect();
    let content = html! {
        (heading(
            html! { "Parked" },
            html! { "Messages that were set aside after their retries, or because a consumer said so" },
            html! {},
        ))
        (search(view, list, "group", rows.len(), all.len()))
        (view.live("parked", "", html! {
            @if all.is_empty() {
                (nothing("Nothing is parked", html! {
                    "Messages that cannot be processed are kept here with the reason, as in a dead-letter queue, "
                    "until they are replayed, moved or discarded."
                }, &[]))
            } @else if rows.is_empty() { (no_match(list, "group")) } @else {
                p.hint {
                    (format::count_of(all.iter().sum(), "message")) " in " (format::count_of(all.len() as u64, "group"))
                    " can be replayed, moved or discarded."
                }
            }
            div.cards {
                @for GroupRow { facts, .. } in page_of(list, &rows) {
                    section.card {
                        h2 { (group_link(view, &facts.stream, &facts.group)) }
                        p.total {
                            a href=(view.parked(&facts.stream, &facts.group)) {
                                (format::count_of(facts.parked, "message"))
                            }
                            span.hint {
                                "the oldest for " (format::age(facts.oldest_parked_age)) @if facts.parking >= 0.005 {
                                    ", " (format::rate(facts.parking)) "/s more"
                                }
                            }
                        }
                        @if let Some((reasons, more)) = reasons.get(&(facts.stream.clone(), facts.group.clone())) {
                            @let address = view.parked(&facts.stream, &facts.group);
                            (reasons_list(&address, reasons, facts.parked, None))
                            @if *more > 0 {
                                p.more-reasons {
                                    a href=(address) { "and " (format::count_of(*more as u64, "more reason")) }
                                }
                            }
                        }
                    }
                }
            }
        }))
        (pager(list, rows.len()))
    };
    Page { title: "Parked".to_owned(), section: Section::Parked, trail: Vec::new(), content }
}

/// Reasons with their counts, each a link to its messages.
fn reasons_list(address: &str, reasons: &[(Arc<str>, u64)], all: u64, current: Option<&str>) -> Markup {
    html! {
        ul.reasons {
            @for (reason, count) in reasons {
                li {
                    @let is_current = current == Some(&**reason);
                    a href=(format!("{address}?reason={}", encoded(reason)))
                        aria-current=[is_current.then_some("true")] {
                        bdi.reason { (if reason.is_empty() { "(no reason)" } else { reason }) }
                        span.count { (format::count(*count)) }
                        (bar(*count as f64 / all.max(1) as f64, "c-parked", &format!("{count} of {all}")))
                    }
                }
            }
        }
    }
}

/// Everything that the page of a group shows.
pub(super) struct Facts {
    group: GroupReport,
    reasons: Reasons,
    parked: Vec<Parked>,
    next: Option<u64>,
    /// How many were looked at, where a text is searched for.
    searched: Option<u64>,
    jobs: Vec<JobReport>,
}

pub(super) async fn load(
    service: &Service,
    stream: &StreamName,
    group: &GroupName,
    filter: &Filter,
    is_update: bool,
) -> Result<Facts, Failure> {
    let report = service.group(stream.clone(), group.clone()).await?;
    let reasons = service.parked_reasons(stream.clone(), group.clone()).await?;
    let jobs = service.jobs(stream.clone(), group.clone()).await?;
    if is_update {
        return Ok(Facts { group: report, reasons, parked: Vec::new(), next: None, searched: None, jobs });
    }
    let (mut parked, mut after, mut searched) = (Vec::new(), filter.after, 0);
    let next = loop {
        let (page, _room) =
            service.parked(stream.clone(), group.clone(), after, Some(MESSAGES), filter.of_api()).await?;
        searched += page.items.len() as u64;
        parked.extend(
            page.items.iter().map(report::parked).filter(|one| has_text(one, filter.text.as_deref())),
        );
        match page.next {
            None => break None,
            Some(next)
                if parked.len() as u64 >= MESSAGES || searched >= SEARCHED || filter.text.is_none() =>
            {
                break Some(next.0);
            }
            Some(next) => after = next.0,
        }
    };
    let searched = filter.text.is_some().then_some(searched);
    Ok(Facts { group: report, reasons, parked, next, searched, jobs })
}

fn has_text(parked: &Parked, text: Option<&str>) -> bool {
    let Some(text) = text.map(str::to_lowercase) else { return true };
    let has = |other: &str| other.to_lowercase().contains(&text);
    has(&parked.reason)
        || parked.message.as_ref().is_some_and(|message| {
            [&message.id, &message.key, &message.kind].into_iter().flatten().any(|field| has(field))
                || message.headers.iter().any(|(name, value)| has(name) || has(value))
                || has(&body_of(message).text)
        })
}

pub(super) fn write(view: &View, facts: &Facts, snapshot: &Snapshot, filter: &Filter) -> Page {
    let (stream, group) = (facts.group.stream.as_str(), facts.group.name.as_str());
    let full = format!("{stream}/{group}");
    let content = html! {
        (heading(
            html! { "Parked in " (title(Some(stream), group)) },
            view.live("parked-total", "", html! { (format::count_of(facts.group.figures.parked, "message")) }),
            html! {},
        ))
        (view.live("jobs", "", jobs(view, facts)))
        @if facts.group.figures.parked == 0 && !filter.is_selection() {
            (empty("Nothing is parked in this group", html! {
                a href=(view.group(stream, group)) { "Back to the group" }
            }))
        } @else {
            div.triage {
                aside aria-label="Reasons" {
                    h2 { "By reason" }
                    (view.live("reasons", "", html! {
                        @let shown = &facts.reasons[..facts.reasons.len().min(REASONS_OF_GROUP)];
                        (reasons_list("", shown, facts.group.figures.parked, filter.reason.as_deref()))
                        @if facts.reasons.len() > REASONS_OF_GROUP {
                            p.hint {
                                "and " (format::count((facts.reasons.len() - REASONS_OF_GROUP) as u64)) " more reasons"
                            }
                        }
                        @if filter.reason.is_some() { p { a href="?" { "All reasons" } } }
                    }))
                }
                div.selected {
                    (fields(filter))
                    (selection(view, facts, filter))
                }
            }
        }
        datalist #destinations {
            @let others = snapshot.streams.iter().filter(|other| other.name != stream);
            @for other in others.take(DESTINATIONS) { option value=(other.name) {} }
        }
        @for offer in &OFFERS { (dialog(view, facts, offer, &full, filter)) }
    };
    let trail = vec![("Parked".to_owned(), view.to("ui/parked")), (full.clone(), view.group(stream, group))];
    Page { title: format!("Parked in {full}"), section: Section::Parked, trail, content }
}

fn fields(filter: &Filter) -> Markup {
    html! {
        form.filter role="search" {
            @if let Some(reason) = &filter.reason { input type="hidden" name="reason" value=(reason); }
            div.field {
                label for="parked-q" { "Text" }
                input #parked-q name="q" type="search" spellcheck="false" value=[filter.text.as_deref()];
            }
            div.field {
                label for="parked-key" { "Key" }
                input #parked-key name="key" spellcheck="false" value=[filter.key.as_deref()];
            }
            div.field {
                label for="parked-type" { "Type" }
                input #parked-type name="type" spellcheck="false" value=[filter.kind.as_deref()];
            }
            button type="submit" { "Search" }
        }
    }
}

fn selection(view: &View, facts: &Facts, filter: &Filter) -> Markup {
    let (stream, group) = (facts.group.stream.as_str(), facts.group.name.as_str());
    if facts.parked.is_empty() {
        let looked =
            facts.searched.map(|n| format!(" Of {} that were searched.", format::count_of(n, "message")));
        return empty("No parked message matches", html! { (looked.unwrap_or_default()) });
    }
    html! {
        div.selection data-selection {
            div.toolbar {
                label.check { input type="checkbox" data-select-all; " All on this page" }
                div.scope role="group" aria-label="Selected messages" {
                    span.hint data-selected-count aria-live="polite" { "None selected" }
                    (buttons("selected", "selected", true))
                }
                @let all = if filter.is_selection() { "all that match" } else { "all" };
                div.scope role="group" aria-label="All messages" {
                    span.hint { (if filter.is_selection() { "All that match" } else { "All messages" }) }
                    (buttons("all", all, false))
                }
            }
            div.table role="region" aria-label="Parked messages" tabindex="0" {
                table.messages {
                    thead {
                        tr {
                            th scope="col" { span.hidden { "Selected" } } th.number scope="col" { "Position" }
                            th scope="col" { "Key" } th scope="col" { "Reason and body" }
                            th.number.roomy scope="col" { "Attempts" } th.number.roomy scope="col" { "Parked" }
                        }
                    }
                    tbody {
                        @for parked in &facts.parked {
                            tr {
                                td {
                                    input type="checkbox" data-seq=(parked.seq)
                                        aria-label=(format!("Select message {}", parked.seq));
                                }
                                td.number {
                                    a href=(format!("{}/{}", view.parked(stream, group), parked.seq)) {
                                        (format::count(parked.seq))
                                    }
                                }
                                td.clip { bdi title=(key_of(parked)) { (key_of(parked)) } }
                                td.case {
                                    bdi title=(preview(&parked.reason)) { (preview(&parked.reason)) }
                                    bdi.content { (beginning_of(parked)) }
                                }
                                td.number.roomy { (parked.attempts) }
                                td.number.roomy { (ago(view, parked.parked_at.0)) }
                            }
                        }
                    }
                }
            }
            @if let Some(searched) = facts.searched {
                p.hint { (format::count_of(searched, "message")) " were searched for the text." }
            }
            @if let Some(next) = facts.next {
                nav.pager aria-label="More parked messages" {
                    a.button href=(filter.query(next)) rel="next" { "More" }
                }
            }
        }
    }
}

/// The jobs that a set of messages can be given to.
fn buttons(of: &str, words: &str, disabled: bool) -> Markup {
    html! {
        @for Offer { work, label, is_dangerous, .. } in &OFFERS {
            button.danger[*is_dangerous] type="button" data-open=(work) data-of=(of) disabled[disabled]
                aria-label=(format!("{label} {words}")) { (label) }
        }
    }
}

fn key_of(parked: &Parked) -> &str {
    parked.message.as_ref().and_then(|message| message.key.as_deref()).unwrap_or_default()
}

/// The beginning of the body.
fn beginning_of(parked: &Parked) -> String {
    match &parked.message {
        Some(message) => preview(&body_of(message).text),
        None => "cannot be read".to_owned(),
    }
}

/// A call on a selection: first it is only counted, then it is done, with a rate.
fn dialog(view: &View, facts: &Facts, offer: &Offer, full: &str, filter: &Filter) -> Markup {
    let (stream, group) = (encoded(facts.group.stream.as_str()), encoded(facts.group.name.as_str()));
    let Offer { work, label, text, is_dangerous, has_destination } = *offer;
    let id = |part: &str| format!("{work}-{part}");
    let head = format!("forebay parked {work} {}", format::shell(full));
    let address = |work: &str| view.to(&format!("subscriptions/{stream}/{group}/parked/{work}"));
    html! {
        dialog id=(work) aria-labelledby=(id("title")) {
            // Every job counts alike, and a replay does so without a destination.
            form method="dialog" data-parked-job data-address=(address(work)) data-count=(address("replay"))
                data-selection=(filter.selection()) data-head=(head) data-options=(filter.options()) {
                h2 id=(id("title")) { (label) " parked messages" }
                p { b data-matched { "…" } " " span data-matched-word { "messages match" } ". " (text) }
                @if has_destination {
                    div.field {
                        label for=(id("to")) { "To the stream" }
                        input id=(id("to")) name="to" type="text" list="destinations" required autocomplete="off"
                            spellcheck="false" placeholder="an existing stream";
                    }
                }
                div.field {
                    label for=(id("rate")) { "No faster than, messages a second" }
                    input id=(id("rate")) name="rate" type="number" min="0.1" step="any"
                        placeholder="as fast as possible";
                }
                @if is_dangerous {
                    div.field {
                        label for=(id("confirm")) { "Type " code { (full) } " to confirm" }
                        input id=(id("confirm")) type="text" autocomplete="off" spellcheck="false"
                            data-confirm=(full);
                    }
                }
                p.command-title { "The same on the command line" }
                (command(&head))
                p.error role="alert" data-error hidden {}
                div.buttons {
                    button.quiet type="button" data-close { "Cancel" }
                    button type="submit" disabled class=(if is_dangerous { "danger" } else { "primary" }) {
                        (label)
                    }
                }
            }
        }
    }
}

fn work_of(job: &JobReport) -> &'static str {
    match job.work {
        Work::Replay => "Replay",
        Work::Discard => "Discard",
        Work::Move { .. } | Work::MoveParked { .. } => "Move",
    }
}

fn state_of(job: &JobReport) -> &'static str {
    match job.state {
        JobState::Running => "running",
        JobState::Done { .. } => "done",
        JobState::Cancelled { .. } => "cancelled",
        JobState::Failed { .. } => "failed",
    }
}

fn class_of(state: &str) -> &'static str {
    match state {
        "running" => "status busy",
        "done" => "status ok",
        _ => "status warning",
    }
}

/// Jobs that run, and the last ones that ended.
fn jobs(view: &View, facts: &Facts) -> Markup {
    let (stream, group) = (encoded(facts.group.stream.as_str()), encoded(facts.group.name.as_str()));
    let mut jobs: Vec<&JobReport> = facts.jobs.iter().collect();
    jobs.sort_by_key(|job| std::cmp::Reverse((job.state == JobState::Running, job.id.0)));
    html! {
        @if !jobs.is_empty() {
            section.jobs aria-label="Jobs" {
                ul {
                    @for job in jobs.iter().take(JOBS) {
                        @let (work, state) = (work_of(job), state_of(job));
                        @let ended = job.done + job.failed;
                        @let colour = if state == "failed" { "critical" } else { "c-out" };
                        @let words = format!("{ended} of {}", job.matched);
                        @let cancel = view.to(&format!("subscriptions/{stream}/{group}/jobs/{}", job.id.0));
                        li data-state=(state) data-job=(job.id.0) {
                            span.job-name {
                                (work) " " (job.id.0) @if let Some(to) = job.work.to() { " to " bdi { (to) } }
                            }
                            (bar(ended as f64 / job.matched.max(1) as f64, colour, &words))
                            span.job-count {
                                (format::count(ended)) " of " (format::count(job.matched)) @if job.failed > 0 {
                                    ", " (format::count(job.failed)) " not parked any more"
                                }
                                @if let JobState::Failed { why, .. } = &job.state { ": " (why) }
                            }
                            span class=(class_of(state)) {
                                (state)
                            }
                            @if state == "running" && job.work.is_about_parked() {
                                button.quiet type="button" data-cancel=(cancel) {
                                    "Cancel"
                                }
                            } @else { span.hint { (ago(view, job.started.0)) } }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_the_same_as_json_and_as_a_command() {
        let all = Filter::default();
        assert_eq!((all.selection().as_str(), all.options().as_str()), (r#"{"all":true}"#, " --all"));
        let some =
            Filter { reason: Some("it's <b>".to_owned()), key: Some("k".to_owned()), ..Filter::default() };
        assert_eq!(some.selection(), r#"{"filter":{"key":"k","reason":"it's <b>"}}"#);
        assert_eq!(some.options(), r" --reason 'it'\''s <b>' --key k");
        assert_eq!(some.query(7), "?after=7&reason=it%27s%20%3Cb%3E&key=k");
    }
}
