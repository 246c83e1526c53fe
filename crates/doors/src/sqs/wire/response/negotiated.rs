//! JSON for Query clients that ask for it with `Accept: application/json`: shaped like the XML, with pairs instead
//! of maps, and with lists of its own naming. Few do; what they look for is always there, if only as null.

use super::json::{separated, write_text};
use super::shape::{Content, Member, Value};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::protocol::{Action, Format, Protocol};

/// Lists that have another name here than in JSON proper.
const RENAMED: [(&str, &str); 2] = [("Messages", "messages"), ("QueueUrls", "queueUrls")];

/// The members that clients read without checking whether they are there.
fn expected(action: Action) -> &'static [&'static str] {
    match action {
        Action::ListQueues | Action::ListDeadLetterSourceQueues => &["queueUrls", "NextToken"],
        Action::ReceiveMessage => &["messages"],
        Action::GetQueueAttributes => &["Attributes"],
        Action::ListQueueTags => &["Tags"],
        _ => &[],
    }
}

pub(super) fn response(action: Action, members: Option<&[Member]>, request_id: &str) -> String {
    let name = action.name();
    let mut out = format!("{{\"{name}Response\":{{");
    if let Some(members) = members {
        out.push_str(&format!("\"{name}Result\":"));
        write_object(&mut out, members, expected(action));
        out.push(',');
    }
    out.push_str("\"ResponseMetadata\":{\"RequestId\":");
    write_text(&mut out, request_id);
    out.push_str("}}}");
    out
}

pub(super) fn error(error: &SqsError, request_id: &str) -> String {
    let mut out = String::from("{\"Error\":{\"Code\":");
    write_text(&mut out, error.code());
    out.push_str(",\"Message\":");
    write_text(&mut out, error.message(Protocol::Query(Format::Json)));
    out.push_str(",\"Type\":");
    write_text(&mut out, error.fault().name());
    out.push_str("},\"RequestId\":");
    write_text(&mut out, request_id);
    out.push('}');
    out
}

fn write_object(out: &mut String, members: &[Member], expected: &[&str]) {
    let name_of = |member: &Member| {
        let renamed = RENAMED.iter().find(|(from, _)| *from == member.name);
        renamed.map_or(member.name, |(_, to)| to)
    };
    let absent = expected.iter().filter(|name| !members.iter().any(|member| name_of(member) == **name));
    let absent: Vec<(&str, Option<&Content>)> = absent.map(|name| (*name, None)).collect();
    let mut all: Vec<(&str, Option<&Content>)> =
        members.iter().map(|member| (name_of(member), Some(&member.content))).collect();
    all.extend(absent);
    separated(out, ('{', '}'), &all, |out, (name, content)| {
        write_text(out, name);
        out.push(':');
        match content {
            None => out.push_str("null"),
            Some(Content::One(value)) => write_value(out, value),
            Some(Content::List { items, .. }) => separated(out, ('[', ']'), items, write_value),
            Some(Content::Map { key, value, pairs, .. }) => {
                separated(out, ('[', ']'), pairs, |out, (left, right)| {
                    out.push('{');
                    write_text(out, key);
                    out.push(':');
                    write_text(out, left);
                    out.push(',');
                    write_text(out, value);
                    out.push(':');
                    write_value(out, right);
                    out.push('}');
                });
            }
        }
    });
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Text(text) => write_text(out, text),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Structure(members) => write_object(out, members, &[]),
    }
}
