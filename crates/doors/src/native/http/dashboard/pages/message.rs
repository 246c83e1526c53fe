//! One message, and messages in a list.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_broker::api::{Direction, Filter, GroupReport, StreamReport};
use forebay_core::types::StreamName;
use forebay_wire::json::StoredMessage;
use forebay_wire::problem::Kind;
use maud::{Markup, html};
use serde_json::Value;

use super::super::super::failure::Failure;
use super::super::super::message;
use super::super::format;
use super::super::layout::{command, heading};
use super::super::view::{Page, Section, View};
use super::parts::ago;
use crate::native::service::Service;

/// Characters of a body in a list.
const PREVIEW: usize = 160;
/// Bytes of a body on the page of a message. The API gives all of it.
const BODY_BYTES: usize = 256 << 10;
/// Groups of which the page says whether they are done with the message.
const GROUPS: u64 = 200;

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
        div.table role="region" aria-label="Messages" tabindex="0" {
            table.messages {
                thead {
                    tr {
                        th.number scope="col" { "Position" } th scope="col" { "Published" } th scope="col" { "Type" }
                        th scope="col" { "Key" } th scope="col" { "Body" }
                    }
                }
                tbody {
                    @for message in messages {
                        tr {
                            td.number { a href=(view.message(stream, message.seq)) { (format::count(message.seq)) } }
                            td.nowrap { (ago(view, message.published_at.0)) }
                            td { bdi { (message.kind.as_deref().unwrap_or_default()) } }
                            td.key-cell { bdi { (message.key.as_deref().unwrap_or_default()) } }
                            td.payload { bdi { (preview(&body_of(message).text)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Everything that the page shows.
pub(super) struct Facts {
    stream: StreamReport,
    message: StoredMessage,
    groups: Vec<Standing>,
}

/// A message in a group.
struct Standing {
    group: GroupReport,
    state: State,
}

enum State {
    Parked {
        attempts: u32,
        reason: String,
    },
    Settled,
    /// Not settled yet, and the group has come this far.
    Open,
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
    let mut groups = Vec::new();
    for group in service.groups(Some(name.clone()), None, Some(GROUPS)).await?.items {
        let parked = match group.figures.parked {
            0 => None,
            _ => service.parked_one(name.clone(), group.name.clone(), seq).await.ok(),
        };
        let state = match parked {
            Some(report) => {
                State::Parked { attempts: report.parked.attempts, reason: report.parked.reason().to_owned() }
            }
            None if seq <= group.figures.floor.0 => State::Settled,
            None => State::Open,
        };
        groups.push(Standing { group, state });
    }
    Ok(Facts { stream, message, groups })
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
            dl.facts {
                (fact("Position", &format::count(message.seq)))
                (fact("Published", &format!("{} UTC", format::moment(message.published_at.0))))
                @if let Some(id) = &message.id { (fact("Id", id)) }
                @if let Some(kind) = &message.kind { (fact("Type", kind)) }
                @if let Some(schema) = message.schema { (fact("Schema", &schema.to_string())) }
                @if let Some(key) = &message.key { (fact("Key", key)) }
                (fact("Priority", &message.priority.to_string()))
                @if let Some(at) = message.expires_at { (fact("Expires", &format!("{} UTC", format::moment(at.0)))) }
                @for (name, value) in &message.headers { div { dt.header { bdi { (name) } } dd { bdi { (value) } } } }
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
        @if facts.groups.is_empty() { p.hint { "The stream has no groups." } }
        ul.standing {
            @for Standing { group, state } in &facts.groups {
                @let name = group.name.as_str();
                li {
                    a.name href=(view.group(stream, name)) { (name) }
                    @match state {
                        State::Settled => { span.status.ok { "settled" } }
                        State::Open => {
                            span.status.busy { "not settled" }
                            span.hint { "everything up to " (format::count(group.figures.floor.0)) " is" }
                        }
                        State::Parked { attempts, reason } => {
                            a href=(format!("{}/{}", view.parked(stream, name), facts.message.seq)) {
                                span.status.warning { "parked" }
                            }
                            span.hint {
                                "after " (format::count_of((*attempts).into(), "attempt")) ": " bdi { (reason) }
                            }
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
    fn a_preview_is_short_and_on_one_line() {
        assert_eq!(preview("{\n  \"a\": 1\n}"), "{ \"a\": 1 }");
        assert!(preview(&"é".repeat(10_000)).chars().count() < PREVIEW + 2);
    }
}
