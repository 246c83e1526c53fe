//! One message, and messages in a list.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_broker::api::{Direction, Filter, StreamReport};
use forebay_core::types::StreamName;
use forebay_wire::json::{GroupLife, MessageState, StoredMessage, Time};
use forebay_wire::problem::Kind;
use maud::{Markup, html};
use serde_json::Value;

use super::super::super::failure::Failure;
use super::super::super::{message, report};
use super::super::format;
use super::super::layout::{command, heading};
use super::super::view::{Page, Section, View};
use super::parts::{self, ago};
use crate::native::service::Service;

/// Characters of a body in a list.
const PREVIEW: usize = 160;
/// Bytes of a body on the page of a message. The API gives all of it.
const BODY_BYTES: usize = 256 << 10;
/// Groups of which the page tells what became of the message.
const GROUPS: usize = 200;

/// A body as text, and what it is.
pub(super) struct Body {
    pub(super) text: String,
    pub(super) form: &'static str,
    pub(super) bytes: usize,
}

/// The body of a message as the API gives it.
pub(super) fn body_of(message: &StoredMessage) -> Body {
    let fields = serde_json::to_value(message).unwrap_or_default();
    if let Some(body) = &message.body {
        return Body { text: body.get().to_owned(), form: "JSON", bytes: body.get().len() };
    }
    if let Some(text) = fields.get("body_text").and_then(Value::as_str) {
        return Body { text: text.to_owned(), form: "text", bytes: text.len() };
    }
    let bytes =
        message.body_base64.as_deref().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    match String::from_utf8(bytes) {
        Ok(text) => Body { bytes: text.len(), text, form: "bytes that are text" },
        Err(error) => {
            let bytes = error.into_bytes();
            Body { text: STANDARD.encode(&bytes), form: "bytes, in base64", bytes: bytes.len() }
        }
    }
}

/// The beginning of a body, on one line.
pub(super) fn preview(text: &str) -> String {
    let mut out = String::new();
    let mut was_space = false;
    for char in text.chars().map(|char| if char.is_control() { ' ' } else { char }) {
        if char != ' ' || !was_space {
            out.push(char);
        }
        was_space = char == ' ';
        if out.len() >= PREVIEW {
            out.push('…');
            break;
        }
    }
    out
}

/// Messages of a stream.
pub(super) fn table(view: &View, stream: &str, messages: &[StoredMessage]) -> Markup {
    html! {
        (parts::table("Messages", "messages", &[">Position", "Published", "Type", "Key", "Body"], html! {
            @for message in messages {
                tr {
                    td.number { a href=(view.message(stream, message.seq)) { (format::count(message.seq)) } }
                    td.nowrap { (ago(view, message.published_at.0)) }
                    td.clip { bdi title=[message.kind.as_deref()] { (message.kind.as_deref().unwrap_or_default()) } }
                    td.clip { bdi title=[message.key.as_deref()] { (message.key.as_deref().unwrap_or_default()) } }
                    td.payload { bdi { (preview(&body_of(message).text)) } }
                }
            }
        }))
    }
}

/// Everything that the page shows.
pub(super) struct Facts {
    stream: StreamReport,
    message: StoredMessage,
    groups: Vec<GroupLife>,
    /// Groups that are not shown.
    more: usize,
}

pub(super) async fn load(service: &Service, name: &StreamName, seq: u64) -> Result<Facts, Failure> {
    let stream = service.stream(name.clone()).await?;
    let (page, _room) =
        service.read(name.clone(), Some(seq), Direction::Forwards, Some(1), &Filter::default()).await?;
    let found = page.messages.first().filter(|found| found.seq.0 == seq).map(message::stored);
    let message = found.ok_or_else(|| {
        let text = format!(
            "the stream keeps no message at this position: it was settled, or it expired. position=`{seq}`"
        );
        Failure::new(Kind::NoSuchPath, text)
    })?;
    let lives = service.lives(name.clone(), seq).await?;
    let groups: Vec<GroupLife> =
        lives.iter().take(GROUPS).map(|(group, life)| report::life(group, life)).collect();
    Ok(Facts { stream, message, more: lives.len() - groups.len(), groups })
}

pub(super) fn write(view: &View, facts: &Facts) -> Page {
    let (stream, message) = (facts.stream.name.as_str(), &facts.message);
    let shell = format!("forebay stream browse {} --from {} --limit 1", format::shell(stream), message.seq);
    let content = html! {
        (heading(
            html! { "Message " (format::count(message.seq)) },
            html! { "Published " (ago(view, message.published_at.0)) " to " a href=(view.stream(stream)) { (stream) } },
            html! {},
        ))
        (content(message))
        section aria-labelledby="standing-title" {
            h2 #standing-title { "In each group" }
            (view.live("standing", "", standing(view, facts)))
        }
        section { p.command-title { "The same on the command line" } (command(&shell)) }
    };
    let trail = vec![("Streams".to_owned(), view.to("ui/streams")), (stream.to_owned(), view.stream(stream))];
    Page { title: format!("{stream} {}", message.seq), section: Section::Streams, trail, content }
}

/// A message in full: its fields, headers and body.
pub(super) fn content(message: &StoredMessage) -> Markup {
    let body = body_of(message);
    let cut = body.text.char_indices().map(|(at, _)| at).find(|at| *at >= BODY_BYTES);
    let shown = &body.text[..cut.unwrap_or(body.text.len())];
    html! {
        div.message {
            div.about {
                dl.facts {
                    (fact("Position", &format::count(message.seq)))
                    (fact("Published", &format!("{} UTC", format::moment(message.published_at.0))))
                    @if let Some(id) = &message.id { (fact("Id", id)) }
                    @if let Some(kind) = &message.kind { (fact("Type", kind)) }
                    @if let Some(schema) = message.schema { (fact("Schema", &schema.to_string())) }
                    @if let Some(key) = &message.key { (fact("Key", key)) }
                    (fact("Priority", &message.priority.to_string()))
                    @if let Some(at) = message.expires_at {
                        (fact("Expires", &format!("{} UTC", format::moment(at.0))))
                    }
                }
                @if !message.headers.is_empty() {
                    h3 { "Headers" }
                    dl.facts {
                        @for (name, value) in &message.headers {
                            div { dt.header { bdi { (name) } } dd { bdi { (value) } } }
                        }
                    }
                }
            }
            figure.body {
                figcaption { "Body, " (body.form) ", " (format::bytes(body.bytes as u64)) }
                pre tabindex="0" aria-label="The body of the message" {
                    code data-json=[(body.form == "JSON").then_some("")] { (shown) }
                }
                @if cut.is_some() { p.hint { "Only the beginning is shown." } }
            }
        }
    }
}

fn fact(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { bdi { (value) } } } }
}

fn standing(view: &View, facts: &Facts) -> Markup {
    let stream = facts.stream.name.as_str();
    html! {
        @if facts.groups.is_empty() { p.hint { "The stream has no groups, so no consumer gets the message yet." } }
        div.lives {
            @for life in &facts.groups {
                section.life {
                    h3 { a.name href=(view.group(stream, &life.group)) { (life.group) } (state(life)) }
                    ol.steps {
                        li {
                            (moment(view, facts.message.published_at))
                            span.step { "published" }
                        }
                        @if let Some(first) = life.first_delivered_at {
                            li { (moment(view, first)) span.step { "first handed out" } }
                        }
                        @for failure in &life.history {
                            li.failed {
                                (moment(view, failure.at))
                                span.step {
                                    "attempt " (failure.attempt) " failed"
                                    @if let Some(consumer) = &failure.consumer { " with " bdi.name { (consumer) } }
                                    ": " bdi.reason { (failure.reason) }
                                }
                            }
                        }
                        (now(view, stream, facts.message.seq, life))
                    }
                }
            }
        }
        @if facts.more > 0 { p.hint { "and " (format::count_of(facts.more as u64, "group")) " more" } }
    }
}

/// Where the message stands, in a word.
fn state(life: &GroupLife) -> Markup {
    let (class, word) = match life.state {
        MessageState::Pending => ("idle", "not handed out"),
        MessageState::Ready => ("busy", "ready again"),
        MessageState::Waiting => ("busy", "waiting"),
        MessageState::Leased => ("busy", "leased"),
        MessageState::Moving => ("busy", "moving"),
        MessageState::Parked => ("warning", "parked"),
        MessageState::Settled => ("ok", "settled"),
    };
    html! {
        span class=(format!("status {class}")) { (word) }
        @if let Some(attempts) = life.attempts.filter(|attempts| *attempts > 0) {
            span.hint { (format::count_of(attempts.into(), "attempt")) }
        }
    }
}

/// The last step: the present, or the time that is known of the end.
fn now(view: &View, stream: &str, seq: u64, life: &GroupLife) -> Markup {
    html! {
        @match life.state {
            MessageState::Pending | MessageState::Ready | MessageState::Moving => {}
            MessageState::Waiting => {
                @if let Some(at) = life.retry_at {
                    li.next { (moment(view, at)) span.step { "may be handed out again" } }
                }
            }
            MessageState::Leased => {
                @if let Some(at) = life.leased_at {
                    li.next {
                        (moment(view, at))
                        span.step {
                            "handed to "
                            @match &life.consumer {
                                Some(consumer) if !consumer.is_empty() => { bdi.name { (consumer) } }
                                Some(_) => { "a consumer without a name" }
                                None => { "a consumer before the server started anew" }
                            }
                        }
                    }
                }
                @if let Some(at) = life.lease_until {
                    li.next { (moment(view, at)) span.step { "has to be settled or extended" } }
                }
            }
            MessageState::Parked => {
                @if let Some(at) = life.parked_at {
                    li.failed {
                        (moment(view, at))
                        span.step {
                            a href=(format!("{}/{seq}", view.parked(stream, &life.group))) { "parked" }
                        }
                    }
                }
            }
            MessageState::Settled => {
                li.done { span.step { "settled; the group keeps no more of it" } }
            }
        }
    }
}

/// A time with how far from now it is.
fn moment(view: &View, at: Time) -> Markup {
    let ahead = at.0.saturating_sub(view.now) as f64 / 1e6;
    html! {
        @if ahead > 0.0 {
            time datetime=(at.to_string()) title=(format!("{} UTC", format::moment(at.0))) {
                "in " (format::age(ahead))
            }
        } @else { (ago(view, at.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_short_and_on_one_line() {
        assert_eq!(preview("{\n  \"a\": 1\n}"), "{ \"a\": 1 }");
        assert!(preview(&"é".repeat(10_000)).chars().count() < PREVIEW + 2);
    }
}
