//! One parked message in full, with its failures, and a form to resubmit an edited copy.

use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json::{FailureCause, Parked};
use maud::{Markup, html};

use super::super::super::failure::Failure;
use super::super::super::report;
use super::super::format;
use super::super::layout::heading;
use super::super::view::{Page, Section, View, encoded};
use super::action::{Action, Field, Sent};
use super::message::{body_of, content};
use super::parts::ago;
use crate::native::service::Service;

/// Everything that the page shows.
pub(super) struct Facts {
    stream: StreamName,
    group: GroupName,
    parked: Parked,
}

pub(super) async fn load(
    service: &Service,
    stream: &StreamName,
    group: &GroupName,
    seq: u64,
) -> Result<Facts, Failure> {
    let parked = report::parked(&service.parked_one(stream.clone(), group.clone(), seq).await?);
    Ok(Facts { stream: stream.clone(), group: group.clone(), parked })
}

pub(super) fn write(view: &View, facts: &Facts) -> Page {
    let (stream, group, parked) = (facts.stream.as_str(), facts.group.as_str(), &facts.parked);
    let full = format!("{stream}/{group}");
    let actions = actions(view, facts, &full);
    let content = html! {
        (heading(
            html! { "Parked message " (format::count(parked.seq)) },
            html! { bdi.reason { (parked.reason) } },
            html! { @for action in &actions { (action.button()) } },
        ))
        section aria-labelledby="failures-title" {
            h2 #failures-title { "Failures" }
            (failures(view, stream, parked))
        }
        section aria-labelledby="message-title" {
            h2 #message-title { "Message" }
            @match &parked.message {
                Some(message) => (content(message)),
                None => { p.hint { "The content cannot be read. An edited copy can still be resubmitted." } }
            }
        }
        @for action in &actions { (action.dialog()) }
    };
    let trail = vec![("Parked".to_owned(), view.to("ui/parked")), (full.clone(), view.parked(stream, group))];
    Page {
        title: format!("Parked message {} of {full}", parked.seq),
        section: Section::Parked,
        trail,
        content,
    }
}

fn failures(view: &View, stream: &str, parked: &Parked) -> Markup {
    html! {
        p.hint {
            "Delivered " (format::count_of(parked.attempts.into(), "time")) ", parked " (ago(view, parked.parked_at.0))
            @if let Some(consumer) = &parked.consumer { ", last with " bdi { (consumer) } } ". "
            a href=(view.message(stream, parked.seq)) { "What became of it in every group" }
        }
        ol.failures {
            @for failure in &parked.history {
                @let cause = match failure.cause {
                    FailureCause::Nack => "nack",
                    FailureCause::Timeout => "timeout",
                    FailureCause::Lost => "connection lost",
                    FailureCause::Damaged => "damaged",
                };
                li {
                    span.attempt { "Attempt " (failure.attempt) }
                    span.status.warning { (cause) }
                    bdi.reason { (failure.reason) }
                    span.hint {
                        (ago(view, failure.at.0)) @if let Some(consumer) = &failure.consumer {
                            ", " bdi { (consumer) }
                        }
                    }
                }
            }
        }
    }
}

fn actions<'a>(view: &View, facts: &Facts, full: &str) -> Vec<Action<'a>> {
    let seq = facts.parked.seq;
    let (stream, group) = (encoded(facts.stream.as_str()), encoded(facts.group.as_str()));
    let api = |rest: &str| view.to(&format!("subscriptions/{stream}/{group}/parked/{rest}"));
    let shell = format::shell(full);
    let back = Some(view.parked(facts.stream.as_str(), facts.group.as_str()));
    let message = facts.parked.message.as_ref();
    let text = |of: Option<&String>| of.cloned().unwrap_or_default();
    let body = message.map(|message| body_of(message).text).unwrap_or_default();
    let body = match serde_json::from_str::<serde_json::Value>(&body) {
        Ok(value) => serde_json::to_string_pretty(&value).unwrap_or(body),
        Err(_) => body,
    };
    let base = |id, label, title: &str, said: &str, rest: &str, command: String| Action {
        id,
        label,
        title: title.to_owned(),
        text: html! { p { (said) } },
        method: "POST",
        address: api(rest),
        body: format!("{{\"seqs\":[{seq}]}}"),
        fields: Vec::new(),
        command,
        options: "",
        confirm: None,
        done: "Done",
        then: back.clone(),
    };
    vec![
        Action {
            done: "Replayed",
            ..base(
                "replay-one",
                "Replay",
                "Replay this message",
                "It is delivered again, with all its retries.",
                "replay",
                format!("forebay parked replay {shell} {seq}"),
            )
        },
        Action {
            body: "{}".to_owned(),
            fields: vec![
                Field::new("body", "Body, in JSON", Sent::Json).value(body).required().long(),
                Field::new("key", "Key", Sent::Text)
                    .value(text(message.and_then(|message| message.key.as_ref()))),
                Field::new("type", "Type", Sent::Text)
                    .value(text(message.and_then(|message| message.kind.as_ref()))),
            ],
            options: " --body {body}",
            done: "Resubmitted as position {seq}",
            ..base(
                "resubmit",
                "Edit and resubmit",
                "Edit and resubmit",
                "Publishes the edited copy and settles the parked message, in one step. All groups of the stream get \
                 the copy.",
                &format!("{seq}/resubmit"),
                format!("forebay parked resubmit {shell} {seq}"),
            )
        },
        Action {
            fields: vec![Field::new("to", "To the stream", Sent::Text).required()],
            options: " --to {to}",
            done: "Moved",
            ..base(
                "move-one",
                "Move",
                "Move this message",
                "It is published to the other stream and leaves this group, in one step. The stream must exist.",
                "move",
                format!("forebay parked move {shell} {seq}"),
            )
        },
        Action {
            confirm: Some(seq.to_string()),
            done: "Discarded",
            ..base(
                "discard-one",
                "Discard",
                "Discard this message",
                "It is dropped for this group. This cannot be undone.",
                "discard",
                format!("forebay parked discard {shell} {seq}"),
            )
        },
    ]
}
