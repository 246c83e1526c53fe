//! The XML of the Query protocol. No whitespace between tags: some clients look for tags that follow each other.

use super::NAMESPACE;
use super::shape::{Content, Member, Value};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::message::is_allowed;
use crate::sqs::wire::protocol::{Action, Format, Protocol};

pub(super) fn response(action: Action, members: Option<&[Member]>, request_id: &str) -> String {
    let name = action.name();
    let mut out = format!("<{name}Response xmlns=\"{NAMESPACE}\">");
    if let Some(members) = members {
        let start = out.len();
        element(&mut out, &format!("{name}Result"), |out| write_members(out, members));
        // A list without items leaves nothing behind, so an empty result is seen only now.
        let empty = format!("<{name}Result></{name}Result>");
        if out[start..] == empty {
            out.truncate(start);
            out.push_str(&format!("<{name}Result/>"));
        }
    }
    element(&mut out, "ResponseMetadata", |out| text_element(out, "RequestId", request_id));
    out.push_str(&format!("</{name}Response>"));
    out
}

pub(super) fn error(error: &SqsError, request_id: &str) -> String {
    let mut out = format!("<ErrorResponse xmlns=\"{NAMESPACE}\">");
    element(&mut out, "Error", |out| {
        text_element(out, "Type", error.fault().name());
        text_element(out, "Code", error.code());
        text_element(out, "Message", error.message(Protocol::Query(Format::Xml)));
        out.push_str("<Detail/>");
    });
    text_element(&mut out, "RequestId", request_id);
    out.push_str("</ErrorResponse>");
    out
}

fn write_members(out: &mut String, members: &[Member]) {
    for member in members {
        match &member.content {
            Content::One(value) => element(out, member.name, |out| write_value(out, value)),
            Content::List { element: name, items } => {
                for item in items {
                    element(out, name, |out| write_value(out, item));
                }
            }
            Content::Map { element: name, key, value, pairs } => {
                for (left, right) in pairs {
                    element(out, name, |out| {
                        text_element(out, key, left);
                        element(out, value, |out| write_value(out, right));
                    });
                }
            }
        }
    }
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Text(text) => write_text(out, text),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Structure(members) => write_members(out, members),
    }
}

fn element(out: &mut String, name: &str, content: impl FnOnce(&mut String)) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    content(out);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}

fn text_element(out: &mut String, name: &str, text: &str) {
    element(out, name, |out| write_text(out, text));
}

/// A carriage return is escaped, since XML parsers take a bare one for a line feed. An error may repeat what a
/// client sent, and XML has no way to write a control character at all.
fn write_text(out: &mut String, text: &str) {
    out.reserve(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#xD;"),
            c if is_allowed(c) => out.push(c),
            _ => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
}
