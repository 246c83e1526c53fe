//! AWS JSON 1.0.

use super::shape::{Content, Member, Value};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::protocol::Protocol;

pub(super) fn object(members: &[Member]) -> String {
    let mut out = String::new();
    write_object(&mut out, members);
    out
}

pub(super) fn error(error: &SqsError) -> String {
    let mut out = String::from("{\"__type\":");
    write_text(&mut out, &error.kind().json_type());
    out.push_str(",\"message\":");
    write_text(&mut out, error.message(Protocol::Json));
    out.push('}');
    out
}

fn write_object(out: &mut String, members: &[Member]) {
    separated(out, ('{', '}'), members, |out, member| {
        write_text(out, member.name);
        out.push(':');
        match &member.content {
            Content::One(value) => write_value(out, value),
            Content::List { items, .. } => separated(out, ('[', ']'), items, write_value),
            Content::Map { pairs, .. } => separated(out, ('{', '}'), pairs, |out, (key, value)| {
                write_text(out, key);
                out.push(':');
                write_value(out, value);
            }),
        }
    });
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Text(text) => write_text(out, text),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Structure(members) => write_object(out, members),
    }
}

pub(super) fn separated<T>(
    out: &mut String,
    (open, close): (char, char),
    items: &[T],
    mut write: impl FnMut(&mut String, &T),
) {
    out.push(open);
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(close);
}

/// With quotes and escapes.
pub(super) fn write_text(out: &mut String, text: &str) {
    out.reserve(text.len() + 2);
    out.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        // An escaped character is a single byte, so both ends of the slice are between characters.
        out.push_str(&text[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => out.push_str(&format!("\\u{control:04x}")),
        }
    }
    out.push_str(&text[plain_from..]);
    out.push('"');
}
